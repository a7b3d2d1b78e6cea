//! `sureq dq`: the command line of DefferedQ, flag for flag, in the syntax of Go's flag package.

use std::fmt::Write as _;
use std::net::{SocketAddr, ToSocketAddrs};
use std::process::ExitCode;
use std::sync::Arc;

use sureq::{Options, limits};
use sureq_server::{Bounds, Config, ReservationPolicy, Server};

use crate::exit;
use crate::go_uint::{self, NotUint};
use crate::say;
use crate::serve::{open_to_serve, print_warnings, serve};
use crate::settings::{DEFAULT_HOME, default_threads};

const BANNER: &str = "DefferedQ is a simple and fast work queue.\n";

/// What helps where the directory is taken: several of these on one host were no trouble in the original.
const IN_USE: &str = "give each its own directory with -home file:DIR, or keep nothing with -home mem:";

/// Name, kind, and help of each flag, in the order Go prints them.
const FLAGS: [(&str, &str, &str); 7] = [
    ("debug", "uint", "Debug profiler, 1 - enable, 0 - disable"),
    ("h", "string", "TCP server host (default \"127.0.0.1\")"),
    (
        "home",
        "string",
        "Where tasks are kept: file:DIR, mem: to keep nothing, redis://HOST:PORT or redis-cluster://HOST:PORT (default \"file:./sureq-data\")",
    ),
    ("ict", "uint", "Inactive connection time (in seconds), 0 - without limit"),
    ("p", "string", "TCP server port (default \"12000\")"),
    (
        "rta",
        "uint",
        "The number of attempts after which the watcher will delete the reserved task from queue, \
         0 - watcher delete the reserved task when life time expires",
    ),
    (
        "rtt",
        "uint",
        "Reserved task life time (in seconds) after which the watcher will delete the reserved task \
         or add it back to the queue, 0 - disable watcher",
    ),
];

/// What the flags say.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Flags {
    host: String,
    port: String,
    home: String,
    idle_secs: u32,
    watcher: ReservationPolicy,
    debug: bool,
}

impl Default for Flags {
    fn default() -> Self {
        Self {
            host: "127.0.0.1".to_owned(),
            port: "12000".to_owned(),
            home: DEFAULT_HOME.to_owned(),
            idle_secs: 0,
            watcher: ReservationPolicy::default(),
            debug: false,
        }
    }
}

pub(crate) fn run(program: &str, words: &[String]) -> ExitCode {
    if words.first().is_some_and(|word| word == "--help") {
        say::out(format_args!("{BANNER}"));
    }
    let flags = match Flags::parse(words) {
        Ok(flags) => flags,
        Err(BadFlags::Help) => {
            say::err(format_args!("{}", usage(program)));
            return ExitCode::SUCCESS;
        }
        Err(BadFlags::Wrong(why)) => {
            say::err(format_args!("{why}\n{}", usage(program)));
            return ExitCode::from(exit::USAGE);
        }
    };
    let Some(address) = flags.address() else {
        say::err(format_args!("Error listening: {}:{}: no such address", flags.host, flags.port));
        return ExitCode::from(exit::CANNOT_START);
    };
    if !address.ip().is_loopback() {
        say::err(format_args!(
            "{address} can be reached from other machines, and this protocol knows no passwords"
        ));
    }
    let options = Options { notice: Some(say::notice), ..Options::default() };
    let home = match open_to_serve(&flags.home, &options, IN_USE) {
        Ok(home) => home,
        Err(code) => return code,
    };
    print_warnings(&home);
    match Server::bind(Arc::clone(home.api()), flags.config(address)) {
        Ok(server) => {
            serve(server, |server| say::err(format_args!("{}", flags.start_line(server.text_address()))))
        }
        Err(error) => {
            say::err(format_args!("Error listening: {error}"));
            ExitCode::from(exit::CANNOT_START)
        }
    }
}

/// Why there are no flags.
#[derive(Clone, Debug, PartialEq, Eq)]
enum BadFlags {
    /// Somebody asks what there is.
    Help,
    Wrong(String),
}

impl From<String> for BadFlags {
    fn from(why: String) -> Self {
        Self::Wrong(why)
    }
}

fn usage(program: &str) -> String {
    let mut text = format!("Usage of {program}:");
    for (name, kind, help) in FLAGS {
        let _ = write!(text, "\n  -{name} {kind}\n    \t{help}");
    }
    text
}

impl Flags {
    /// Go's syntax: `-x v`, `-x=v`, `--x v`; the first word that is no flag ends them.
    fn parse(words: &[String]) -> Result<Self, BadFlags> {
        let mut flags = Self::default();
        let mut words = words.iter();
        while let Some(word) = words.next() {
            if word == "--" || word == "-" || !word.starts_with('-') {
                break;
            }
            let flag = word.strip_prefix("--").or_else(|| word.strip_prefix('-')).unwrap_or(word);
            if flag.starts_with('-') || flag.starts_with('=') {
                return Err(format!("bad flag syntax: {word}").into());
            }
            let (name, value) = match flag.split_once('=') {
                Some((name, value)) => (name, Some(value.to_owned())),
                None => (flag, None),
            };
            if name == "help" {
                return Err(BadFlags::Help);
            }
            if !FLAGS.iter().any(|(known, ..)| *known == name) {
                return Err(format!("flag provided but not defined: -{name}").into());
            }
            let value = value.or_else(|| words.next().cloned());
            let value = value.ok_or_else(|| format!("flag needs an argument: -{name}"))?;
            flags.set(name, &value)?;
        }
        Ok(flags)
    }

    fn set(&mut self, name: &str, value: &str) -> Result<(), String> {
        let bad = |why| format!("invalid value \"{value}\" for flag -{name}: {why}");
        let any = || go_uint::parse(value).map_err(bad);
        let number = || u32::try_from(any()?).map_err(|_| bad(NotUint::OutOfRange));
        match name {
            "h" => value.clone_into(&mut self.host),
            "p" => value.clone_into(&mut self.port),
            "home" => value.clone_into(&mut self.home),
            "ict" => self.idle_secs = number()?,
            "rtt" => self.watcher.timeout_secs = number()?,
            "rta" => self.watcher.attempts = number()?,
            _ => self.debug = any()? > 0,
        }
        Ok(())
    }

    /// An empty host is every interface, as in the original's container.
    fn address(&self) -> Option<SocketAddr> {
        let host = if self.host.is_empty() { "0.0.0.0" } else { &self.host };
        let port: u16 = self.port.parse().ok()?;
        // As Go does: a name that has both kinds of address means the older kind.
        let addresses: Vec<SocketAddr> = (host, port).to_socket_addrs().ok()?.collect();
        addresses.iter().find(|address| address.is_ipv4()).or(addresses.first()).copied()
    }

    fn config(&self, address: SocketAddr) -> Config {
        Config {
            resp: None,
            text: Some(address),
            watcher: self.watcher,
            text_idle_secs: self.idle_secs,
            text_line_bytes_max: limits::TEXT_LINE_BYTES_MAX,
            text_log: self.debug.then_some(say::err),
            threads: default_threads(),
            users: Arc::default(),
            text_user: None,
            bounds: Bounds::default(),
        }
    }

    /// Names the port that is listened on, which the system chose if port 0 was asked for.
    fn start_line(&self, address: Option<SocketAddr>) -> String {
        let Self { host, idle_secs, watcher, debug, .. } = self;
        let port = address.map_or_else(|| self.port.clone(), |address| address.port().to_string());
        let ReservationPolicy { timeout_secs, attempts } = watcher;
        format!(
            "Listening {host}:{port} with options -ict={idle_secs} -rtt={timeout_secs} -rta={attempts} -debug={debug}"
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(line: &str) -> Result<Flags, BadFlags> {
        let words: Vec<String> = line.split_whitespace().map(str::to_owned).collect();
        Flags::parse(&words)
    }

    #[test]
    fn flags_are_read_as_go_reads_them() {
        let expected = Flags {
            host: "localhost".to_owned(),
            port: "13000".to_owned(),
            idle_secs: 5,
            watcher: ReservationPolicy { timeout_secs: 7, attempts: 256 },
            debug: true,
            ..Flags::default()
        };
        for line in [
            "-h localhost -p 13000 -ict 5 -rtt 7 -rta 256 -debug 1",
            "--h=localhost --p=13000 --ict=5 --rtt=7 --rta=256 --debug=1",
            "-h=localhost -p 13000 -ict=5 --rtt 7 -rta 256 -debug 1 rest -p 1",
            "-h=localhost -p 13000 -ict=0b101 --rtt 07 -rta 0x1_00 -debug 0xffff_ffff_ffff -- -p 1",
        ] {
            assert_eq!(parse(line).as_ref(), Ok(&expected), "{line}");
        }
        assert_eq!(parse(""), Ok(Flags::default()));
    }

    #[test]
    fn what_go_refuses_is_refused() {
        for (line, why) in [
            ("-x 1", "flag provided but not defined: -x"),
            ("-ict", "flag needs an argument: -ict"),
            ("-rtt -1", "invalid value \"-1\" for flag -rtt: parse error"),
            ("-rta x", "invalid value \"x\" for flag -rta: parse error"),
            ("---p 1", "bad flag syntax: ---p"),
            ("-rtt=", "invalid value \"\" for flag -rtt: parse error"),
            ("-rtt +1", "invalid value \"+1\" for flag -rtt: parse error"),
            ("-rtt 08", "invalid value \"08\" for flag -rtt: parse error"),
            ("-ict 4294967296", "invalid value \"4294967296\" for flag -ict: value out of range"),
            (
                "-debug 18446744073709551616",
                "invalid value \"18446744073709551616\" for flag -debug: value out of range",
            ),
        ] {
            assert_eq!(parse(line), Err(BadFlags::Wrong(why.to_owned())), "{line}");
        }
        for line in ["-help", "--help", "-p 1 --help", "-help=1"] {
            assert_eq!(parse(line), Err(BadFlags::Help), "{line}");
        }
    }
}
