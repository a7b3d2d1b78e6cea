//! The settings of `serve`: flags go before the environment, the environment before the file, the file before the
//! defaults.

use std::fs;
use std::net::{SocketAddr, ToSocketAddrs};
use std::path::PathBuf;
use std::sync::Arc;

use clap::Args;
use serde::Deserialize;
use sureq::{CACHE_BYTES, Durability, Options, limits};
use sureq_server::users::Users;
use sureq_server::{Config, ReservationPolicy};

use crate::users_file::{self, UserEntry};
use crate::{print, size};

#[derive(Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct ServeArguments {
    #[command(flatten)]
    settings: Settings,
    /// Read settings from a TOML file; its keys are the long flags without the dashes
    #[arg(long, value_name = "FILE", env = "SUREQ_CONFIG")]
    config: Option<PathBuf>,
}

const EXAMPLES: &str = "\
Flags take precedence over the environment, the environment over the file of --config, the file over the defaults.

Examples:
  sureq serve
  sureq serve --home file:/var/lib/sureq --memory 2GB
  sureq serve --resp 0.0.0.0:7379 --users /etc/sureq/users.toml
  sureq serve --home redis://127.0.0.1:6379 --text off";

/// The settings; each is optional.
#[derive(Args, Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case", default)]
pub(crate) struct Settings {
    /// Home of the queue: `file:DIR`, `mem:` to keep nothing, `redis://HOST:PORT`, `redis-cluster://HOST:PORT,…` or
    /// `redis-sentinel://HOST:PORT,…/SERVICE` [default: `file:./sureq-data`]
    #[arg(long, value_name = "URL", env = "SUREQ_SERVE_HOME")]
    home: Option<String>,
    /// Address for Redis clients, or off [default: 127.0.0.1:7379]
    #[arg(long, value_name = "ADDR|off", env = "SUREQ_RESP")]
    resp: Option<String>,
    /// Address for the text protocol of `DefferedQ`, or off [default: 127.0.0.1:12000; off if there are users and no
    /// --text-user]
    #[arg(long, value_name = "ADDR|off", env = "SUREQ_TEXT")]
    text: Option<String>,
    /// When a change is confirmed: always (on disk), interval (written; on disk within 100 ms) or none (in memory)
    /// [default: always]
    #[arg(long, value_name = "LEVEL", env = "SUREQ_DURABILITY")]
    durability: Option<String>,
    /// Memory for payloads; others are read from disk when they are popped
    /// [default: 64MB, at most half of --memory]
    #[arg(long, value_name = "SIZE", env = "SUREQ_CACHE", allow_hyphen_values = true)]
    #[serde(deserialize_with = "size::text_or_number")]
    cache: Option<String>,
    /// Memory for tasks, workers, the cache and connections; beyond it pushes are refused [default: no limit]
    #[arg(long, value_name = "SIZE", env = "SUREQ_MEMORY", allow_hyphen_values = true)]
    #[serde(deserialize_with = "size::text_or_number")]
    memory: Option<String>,
    /// Size of a log segment [default: 32MB, less on a small disk]
    #[arg(long, value_name = "SIZE", env = "SUREQ_SEGMENT_BYTES", allow_hyphen_values = true)]
    #[serde(deserialize_with = "size::text_or_number")]
    segment_bytes: Option<String>,
    /// Network threads [default: half the cores, at least 1]
    #[arg(long, value_name = "N", env = "SUREQ_THREADS", allow_hyphen_values = true)]
    threads: Option<usize>,
    /// Read users from a TOML file; without users, every client that can connect may do everything
    #[arg(long, value_name = "FILE", env = "SUREQ_USERS")]
    users: Option<PathBuf>,
    /// Users, as tables of the file of settings.
    #[arg(skip)]
    user: Vec<UserEntry>,
    /// Largest number of connections [default: 10000, or fewer if the system allows fewer descriptors]
    #[arg(long, value_name = "N", env = "SUREQ_CONNECTIONS_MAX", allow_hyphen_values = true)]
    pub(crate) connections_max: Option<usize>,
    /// Largest number of arguments of a command [default: 1048576]
    #[arg(long, value_name = "N", env = "SUREQ_COMMAND_ARGS_MAX", allow_hyphen_values = true)]
    pub(crate) command_args_max: Option<usize>,
    /// Largest size of a command [default: 128MB]
    #[arg(long, value_name = "SIZE", env = "SUREQ_COMMAND_MAX", allow_hyphen_values = true)]
    #[serde(deserialize_with = "size::text_or_number")]
    pub(crate) command_max: Option<String>,
    /// Unread replies of a connection beyond which its requests are not read [default: 8MB]
    #[arg(long, value_name = "SIZE", env = "SUREQ_OUTPUT_MAX", allow_hyphen_values = true)]
    #[serde(deserialize_with = "size::text_or_number")]
    pub(crate) output_max: Option<String>,
    /// Largest command of a client that has not authenticated [default: 24KB]
    #[arg(long, value_name = "SIZE", env = "SUREQ_LOGIN_MAX", allow_hyphen_values = true)]
    #[serde(deserialize_with = "size::text_or_number")]
    pub(crate) login_max: Option<String>,
    /// Seconds until a client that has not authenticated is disconnected; 0 is never [default: 60]
    #[arg(long, value_name = "SECONDS", env = "SUREQ_LOGIN_TIME", allow_hyphen_values = true)]
    pub(crate) login_time: Option<u32>,
    /// Text: the user whose roles apply, since the protocol has no authentication; with users and without this
    /// setting the text port is off
    #[arg(long, value_name = "NAME", env = "SUREQ_TEXT_USER")]
    text_user: Option<String>,
    /// Text: seconds until a reservation times out; the task is then requeued or deleted, see --text-rta; 0 is never
    /// [default: 0]
    #[arg(long, value_name = "SECONDS", env = "SUREQ_TEXT_RTT", allow_hyphen_values = true)]
    text_rtt: Option<u32>,
    /// Text: timed-out reservations before the task is deleted; at 0 the first timeout deletes it [default: 0]
    #[arg(long, value_name = "N", env = "SUREQ_TEXT_RTA", allow_hyphen_values = true)]
    text_rta: Option<u32>,
    /// Text: seconds until an idle connection is closed; 0 is never [default: 0]
    #[arg(long, value_name = "SECONDS", env = "SUREQ_TEXT_ICT", allow_hyphen_values = true)]
    text_ict: Option<u32>,
    /// Text: longest line, without its line end [default: 64KB]
    #[arg(long, value_name = "SIZE", env = "SUREQ_TEXT_LINE_MAX", allow_hyphen_values = true)]
    #[serde(deserialize_with = "size::text_or_number")]
    text_line_max: Option<String>,
}

/// The result of all settings: what `serve` opens and how.
pub(crate) struct Plan {
    pub(crate) home: String,
    /// A warning about settings without effect.
    pub(crate) warning: Option<String>,
    pub(crate) options: Options,
    pub(crate) config: Config,
}

impl ServeArguments {
    /// Combines flags, environment, file and defaults, and checks them.
    pub(crate) fn plan(&self) -> Result<Plan, String> {
        let mut settings = self.settings.clone();
        if let Some(path) = &self.config {
            let text = fs::read_to_string(path)
                .map_err(|e| format!("--config: cannot read {}: {e}", path.display()))?;
            let file = toml::from_str(&text).map_err(|e| format!("--config: {}: {e}", path.display()))?;
            settings = settings.or(file);
        }
        let config = settings.config()?;
        refuse_unprotected_listeners(&config)?;
        if config.resp.is_none() && config.text.is_none() {
            return Err("--resp and --text are both off: nothing would be served".to_owned());
        }
        settings.refuse_store_settings_on_redis()?;
        let (options, warning) = (settings.options()?, settings.ignored_in_memory());
        Ok(Plan { home: settings.home(), warning, options, config })
    }
}

/// Refuses listeners that other machines could use without authentication.
fn refuse_unprotected_listeners(config: &Config) -> Result<(), String> {
    let is_open = |address: &SocketAddr| !address.ip().is_loopback();
    if let Some(address) = config.resp.filter(is_open).filter(|_| config.users.is_empty()) {
        return Err(format!(
            "--resp {address} can be reached from other machines, and there are no users: add --users FILE (`sureq user \
             --help` shows how), or listen on 127.0.0.1"
        ));
    }
    if let Some(address) = config.text.filter(is_open) {
        return Err(format!(
            "--text {address} can be reached from other machines, and the text protocol has no authentication: listen on \
             127.0.0.1"
        ));
    }
    Ok(())
}

impl Settings {
    /// These settings, completed by `others`.
    fn or(self, others: Self) -> Self {
        Self {
            home: self.home.or(others.home),
            resp: self.resp.or(others.resp),
            text: self.text.or(others.text),
            durability: self.durability.or(others.durability),
            cache: self.cache.or(others.cache),
            memory: self.memory.or(others.memory),
            segment_bytes: self.segment_bytes.or(others.segment_bytes),
            threads: self.threads.or(others.threads),
            text_rtt: self.text_rtt.or(others.text_rtt),
            text_rta: self.text_rta.or(others.text_rta),
            text_ict: self.text_ict.or(others.text_ict),
            text_line_max: self.text_line_max.or(others.text_line_max),
            users: self.users.or(others.users),
            user: [self.user, others.user].concat(),
            connections_max: self.connections_max.or(others.connections_max),
            command_args_max: self.command_args_max.or(others.command_args_max),
            command_max: self.command_max.or(others.command_max),
            output_max: self.output_max.or(others.output_max),
            login_max: self.login_max.or(others.login_max),
            login_time: self.login_time.or(others.login_time),
            text_user: self.text_user.or(others.text_user),
        }
    }

    fn home(&self) -> String {
        self.home.clone().unwrap_or_else(|| DEFAULT_HOME.to_owned())
    }

    /// Names the settings that have no effect with `mem:`.
    fn ignored_in_memory(&self) -> Option<String> {
        let of_disks = [
            ("--durability", &self.durability),
            ("--cache", &self.cache),
            ("--segment-bytes", &self.segment_bytes),
        ];
        let given = of_disks.iter().filter(|(_, value)| value.is_some() && self.keeps_nothing());
        let given: Vec<&str> = given.map(|(flag, _)| *flag).collect();
        (!given.is_empty()).then(|| format!("ignoring {}: mem: keeps nothing on disk", given.join(", ")))
    }

    fn keeps_nothing(&self) -> bool {
        self.home.as_deref() == Some("mem:")
    }

    /// Refuses settings of a store where the home is a Redis, which has its own.
    fn refuse_store_settings_on_redis(&self) -> Result<(), String> {
        let home = self.home();
        let own = [
            ("--durability", &self.durability),
            ("--cache", &self.cache),
            ("--memory", &self.memory),
            ("--segment-bytes", &self.segment_bytes),
        ];
        match own.iter().find(|(_, value)| value.is_some()) {
            Some((flag, _)) if home.starts_with("redis") => {
                Err(format!("{flag} does not apply to {home}: configure that Redis instead"))
            }
            _ => Ok(()),
        }
    }

    fn options(&self) -> Result<Options, String> {
        let durability = match self.durability.as_deref() {
            None | Some("always") => Durability::Always,
            Some("interval") => Durability::Interval,
            Some("none") => Durability::None,
            Some(other) => return Err(format!("--durability {other}: write always, interval or none")),
        };
        let segment_bytes = size::of_flag("--segment-bytes", self.segment_bytes.as_deref())?;
        if segment_bytes.is_some_and(|bytes| !(SEGMENT_BYTES_MIN..=SEGMENT_BYTES_MAX).contains(&bytes)) {
            return Err("--segment-bytes: write a size between 64KB and 1GB".to_owned());
        }
        let (cache, memory_bytes_max) = self.cache_and_memory()?;
        Ok(Options {
            durability,
            segment_bytes,
            cache_bytes: cache as usize,
            memory_bytes_max,
            notice: Some(print::notice),
            ..Options::default()
        })
    }

    /// Bytes of `--cache`, and of `--memory`, which includes the cache.
    fn cache_and_memory(&self) -> Result<(u64, Option<u64>), String> {
        let cache = size::of_flag("--cache", self.cache.as_deref())?;
        if cache.is_some_and(|cache| cache < CACHE_BYTES_MIN) {
            return Err("--cache: write a size of at least 1MB".to_owned());
        }
        let memory = size::of_flag("--memory", self.memory.as_deref())?;
        if memory.is_some_and(|memory| memory < MEMORY_BYTES_MIN) {
            return Err("--memory: write a size of at least 16MB".to_owned());
        }
        let cache = match (cache, memory) {
            (Some(cache), Some(memory))
                if !self.keeps_nothing() && memory < cache.saturating_add(MEMORY_BYTES_MIN) =>
            {
                let [cache, memory, least] = [cache, memory, cache.saturating_add(MEMORY_BYTES_MIN)]
                    .map(|size| size::format(size as usize));
                return Err(format!(
                    "--memory {memory} has no room for --cache {cache} and at least 16MB of tasks and connections: write \
                     --memory {least} or more, or a smaller --cache"
                ));
            }
            (Some(cache), _) => cache,
            (None, memory) => {
                memory.map_or(CACHE_BYTES as u64, |memory| (memory / 2).min(CACHE_BYTES as u64))
            }
        };
        Ok((cache, memory))
    }

    fn config(&self) -> Result<Config, String> {
        let line_max = size::of_flag("--text-line-max", self.text_line_max.as_deref())?
            .unwrap_or(limits::TEXT_LINE_BYTES_MAX as u64);
        if !(16..=limits::TEXT_ENDLESS_BYTES_MAX as u64).contains(&line_max) {
            return Err("--text-line-max: write a size between 16 bytes and 1MB".to_owned());
        }
        let threads = self.threads.unwrap_or_else(default_threads);
        if !(1..=THREADS_MAX).contains(&threads) {
            return Err(format!("--threads: write a number between 1 and {THREADS_MAX}"));
        }
        let users = self.all_users()?;
        let text_user = match &self.text_user {
            None => None,
            Some(name) => {
                let user = users.find(name.as_bytes()).cloned();
                Some(user.ok_or_else(|| format!("--text-user {name}: no such user"))?)
            }
        };
        Ok(Config {
            resp: address("--resp", self.resp.as_deref().unwrap_or("127.0.0.1:7379"))?,
            text: self.text_address(&users)?,
            reservations: ReservationPolicy {
                timeout_secs: self.text_rtt.unwrap_or(0),
                attempts: self.text_rta.unwrap_or(0),
            },
            text_idle_secs: self.text_ict.unwrap_or(0),
            text_line_bytes_max: line_max as usize,
            text_log: None,
            threads,
            users: Arc::new(users),
            text_user,
            bounds: self.bounds()?,
        })
    }

    /// The users of the settings file and of the users file.
    fn all_users(&self) -> Result<Users, String> {
        let mut entries = self.user.clone();
        if let Some(path) = &self.users {
            entries.extend(users_file::read(path)?);
        }
        users_file::users(&entries)
    }

    /// The address of the text dialect. If there are users, it is off unless `--text-user` names one.
    fn text_address(&self, users: &Users) -> Result<Option<SocketAddr>, String> {
        let lacks_user = !users.is_empty() && self.text_user.is_none();
        match self.text.as_deref() {
            None if lacks_user => Ok(None),
            Some(text) if lacks_user && text != "off" => Err(format!(
                "--text {text}: the text protocol has no authentication: set --text-user to the user whose roles apply"
            )),
            text => address("--text", text.unwrap_or("127.0.0.1:12000")),
        }
    }
}

pub(crate) const DEFAULT_HOME: &str = "file:./sureq-data";
const CACHE_BYTES_MIN: u64 = 1 << 20;
const MEMORY_BYTES_MIN: u64 = 16 << 20;
const SEGMENT_BYTES_MIN: u64 = 64 << 10;
const SEGMENT_BYTES_MAX: u64 = 1 << 30;
const THREADS_MAX: usize = 256;

/// Half the cores: a thread serves a hundred thousand requests a second, and the log needs a core too.
pub(crate) fn default_threads() -> usize {
    std::thread::available_parallelism().map_or(1, |cores| (cores.get() / 2).max(1))
}

fn address(flag: &str, text: &str) -> Result<Option<SocketAddr>, String> {
    if text == "off" {
        return Ok(None);
    }
    let addresses: Vec<SocketAddr> = text.to_socket_addrs().map(Iterator::collect).unwrap_or_default();
    let found = addresses.iter().find(|address| address.is_ipv4()).or(addresses.first()).copied();
    found.map(Some).ok_or_else(|| format!("{flag} {text}: write an address such as 127.0.0.1:7379, or off"))
}
