//! The settings of `serve`: flags go before the environment, the environment before the file, the file before the
//! defaults.

use std::fs;
use std::net::{SocketAddr, ToSocketAddrs};
use std::path::PathBuf;

use clap::Args;
use serde::Deserialize;
use sureq::{CACHE_BYTES, Durability, Options, limits};
use sureq_server::{Config, Watcher};

use crate::{say, size};

/// What `serve` can be told.
#[derive(Args)]
pub(crate) struct ServeArguments {
    #[command(flatten)]
    settings: Settings,
    /// Read settings from a TOML file; its keys are the long flags without the dashes
    #[arg(long, value_name = "FILE", env = "SUREQ_CONFIG")]
    config: Option<PathBuf>,
}

/// The settings, each of which may be left open.
#[derive(Args, Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case", default)]
pub(crate) struct Settings {
    /// Where the queue lives: `file:DIR`, or `mem:` to keep nothing [default: `file:./sureq-data`]
    #[arg(long, value_name = "URL", env = "SUREQ_SERVE_HOME")]
    home: Option<String>,
    /// Where Redis clients are served [default: 127.0.0.1:7379]
    #[arg(long, value_name = "ADDR|off", env = "SUREQ_RESP")]
    resp: Option<String>,
    /// Where `DefferedQ`'s text protocol is served [default: 127.0.0.1:12000]
    #[arg(long, value_name = "ADDR|off", env = "SUREQ_TEXT")]
    text: Option<String>,
    /// What a confirmation promises: always (on disk), interval (with the system at once, on disk within 100 ms)
    /// or none [default: always]
    #[arg(long, value_name = "LEVEL", env = "SUREQ_DURABILITY")]
    durability: Option<String>,
    /// How many bytes of payloads are kept in memory; the others are read from the disk when their turn comes
    /// [default: 64MB]
    #[arg(long, value_name = "SIZE", env = "SUREQ_CACHE")]
    #[serde(deserialize_with = "size::text_or_number")]
    cache: Option<String>,
    /// How much memory tasks, payloads and connections may use before pushes are refused [default: no limit]
    #[arg(long, value_name = "SIZE", env = "SUREQ_MEMORY")]
    #[serde(deserialize_with = "size::text_or_number")]
    memory: Option<String>,
    /// The size of a segment of the log [default: 32MB, less on a small disk]
    #[arg(long, value_name = "SIZE", env = "SUREQ_SEGMENT_BYTES")]
    #[serde(deserialize_with = "size::text_or_number")]
    segment_bytes: Option<String>,
    /// Network threads [default: half the cores, at least 1]
    #[arg(long, value_name = "N", env = "SUREQ_THREADS")]
    threads: Option<usize>,
    /// Text: seconds after which a reservation is taken back; 0 is never [default: 0]
    #[arg(long, value_name = "SECONDS", env = "SUREQ_TEXT_RTT")]
    text_rtt: Option<u32>,
    /// Text: how often it is, before the task is deleted [default: 0]
    #[arg(long, value_name = "N", env = "SUREQ_TEXT_RTA")]
    text_rta: Option<u32>,
    /// Text: seconds after which a quiet connection is closed; 0 is never [default: 0]
    #[arg(long, value_name = "SECONDS", env = "SUREQ_TEXT_ICT")]
    text_ict: Option<u32>,
    /// Text: the longest line, without its end [default: 64KB]
    #[arg(long, value_name = "SIZE", env = "SUREQ_TEXT_LINE_MAX")]
    #[serde(deserialize_with = "size::text_or_number")]
    text_line_max: Option<String>,
}

/// What `serve` does.
pub(crate) struct Plan {
    pub(crate) home: String,
    pub(crate) options: Options,
    pub(crate) config: Config,
}

impl ServeArguments {
    /// Puts flags, environment, file and defaults together.
    pub(crate) fn plan(&self) -> Result<Plan, String> {
        let mut settings = self.settings.clone();
        if let Some(path) = &self.config {
            let text =
                fs::read_to_string(path).map_err(|e| format!("cannot read {}: {e}", path.display()))?;
            let file = toml::from_str(&text).map_err(|e| format!("{}: {e}", path.display()))?;
            settings = settings.or(file);
        }
        let config = settings.config()?;
        for (flag, address) in [("--resp", config.resp), ("--text", config.text)] {
            if let Some(address) = address.filter(|address| !address.ip().is_loopback()) {
                return Err(format!(
                    "{flag} {address} can be reached from other machines, and anyone there could use the queue: \
                     listen on 127.0.0.1 and put a tunnel or a proxy that authenticates in front"
                ));
            }
        }
        if config.resp.is_none() && config.text.is_none() {
            return Err("--resp and --text are both off: nothing would be served".to_owned());
        }
        Ok(Plan { home: settings.home(), options: settings.options()?, config })
    }
}

impl Settings {
    /// These, and the others where these are open.
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
        }
    }

    fn home(&self) -> String {
        self.home.clone().unwrap_or_else(|| DEFAULT_HOME.to_owned())
    }

    fn options(&self) -> Result<Options, String> {
        let durability = match self.durability.as_deref() {
            None | Some("always") => Durability::Always,
            Some("interval") => Durability::Interval,
            Some("none") => Durability::None,
            Some(other) => return Err(format!("--durability {other}: write always, interval or none")),
        };
        let segment_bytes = self.segment_bytes.as_deref().map(size::parse).transpose()?;
        if segment_bytes.is_some_and(|bytes| !(SEGMENT_BYTES_MIN..=SEGMENT_BYTES_MAX).contains(&bytes)) {
            return Err("--segment-bytes: write a size between 64KB and 1GB".to_owned());
        }
        let cache = self.cache.as_deref().map_or(Ok(CACHE_BYTES as u64), size::parse)?;
        if cache < CACHE_BYTES_MIN {
            return Err("--cache: write a size of at least 1MB".to_owned());
        }
        let memory = self.memory.as_deref().map(size::parse).transpose()?;
        if memory.is_some_and(|memory| memory < cache + MEMORY_BYTES_MIN) {
            return Err("--memory: write a size that is at least 16MB more than --cache".to_owned());
        }
        Ok(Options {
            durability,
            segment_bytes,
            cache_bytes: cache as usize,
            memory_bytes_max: memory,
            notice: Some(say::notice),
            ..Options::default()
        })
    }

    fn config(&self) -> Result<Config, String> {
        let line_max =
            self.text_line_max.as_deref().map_or(Ok(limits::TEXT_LINE_BYTES_MAX as u64), size::parse)?;
        if !(16..=limits::TEXT_ENDLESS_BYTES_MAX as u64).contains(&line_max) {
            return Err("--text-line-max: write a size between 16 bytes and 1MB".to_owned());
        }
        let threads = self.threads.unwrap_or_else(default_threads);
        if !(1..=THREADS_MAX).contains(&threads) {
            return Err(format!("--threads: write a number between 1 and {THREADS_MAX}"));
        }
        Ok(Config {
            resp: address("--resp", self.resp.as_deref().unwrap_or("127.0.0.1:7379"))?,
            text: address("--text", self.text.as_deref().unwrap_or("127.0.0.1:12000"))?,
            watcher: Watcher {
                timeout_secs: self.text_rtt.unwrap_or(0),
                attempts: self.text_rta.unwrap_or(0),
            },
            text_idle_secs: self.text_ict.unwrap_or(0),
            text_line_bytes_max: line_max as usize,
            text_log: None,
            threads,
        })
    }
}

pub(crate) const DEFAULT_HOME: &str = "file:./sureq-data";
const CACHE_BYTES_MIN: u64 = 1 << 20;
const MEMORY_BYTES_MIN: u64 = 16 << 20;
const SEGMENT_BYTES_MIN: u64 = 64 << 10;
const SEGMENT_BYTES_MAX: u64 = 1 << 30;
const THREADS_MAX: usize = 256;

/// One thread serves a hundred thousand requests a second; the other half of the cores is for the log and for others.
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
