//! The systems under test with their settings: their names, their guarantees, and how they are started.

use std::ffi::OsString;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::dialect::{Beanstalk, Dialect, List, Nats, Rq, Stream};

/// A server with its settings.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Target {
    Redis,
    RedisAlways,
    SureqAlways,
    SureqInterval,
    SureqNone,
    SureqModule,
    RedisLists,
    RedisStreams,
    Beanstalkd,
    Nats,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Program {
    Sureq,
    Redis,
    Beanstalkd,
    Nats,
}

impl Program {
    pub(crate) const ALL: [Program; 4] = [Program::Sureq, Program::Redis, Program::Beanstalkd, Program::Nats];

    /// The name of the program on the PATH, and of its Debian package.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Program::Sureq => "sureq",
            Program::Redis => "redis-server",
            Program::Beanstalkd => "beanstalkd",
            Program::Nats => "nats-server",
        }
    }

    /// The argument that prints its version.
    pub(crate) fn version_flag(self) -> &'static str {
        if self == Program::Beanstalkd { "-v" } else { "--version" }
    }
}

/// Settings of sureq that are set only if a measurement needs them.
#[derive(Clone, Debug, Default)]
pub(crate) struct Settings {
    pub(crate) segment_bytes: Option<String>,
    pub(crate) cache: Option<String>,
    /// The port of the text dialect, if it is used.
    pub(crate) text_port: Option<u16>,
    /// The home, if it is not a directory.
    pub(crate) home: Option<String>,
    /// The path of the module that a Redis loads.
    pub(crate) module: Option<PathBuf>,
}

impl Target {
    /// The targets of the comparison under load, in the order in which they take turns.
    pub(crate) const COMPARED: [Target; 6] = [
        Target::Redis,
        Target::RedisAlways,
        Target::SureqAlways,
        Target::SureqInterval,
        Target::SureqNone,
        Target::SureqModule,
    ];

    /// The targets of the comparison that are measured only when they are named.
    pub(crate) const ON_DEMAND: [Target; 2] = [Target::SureqInterval, Target::SureqModule];

    /// The targets that are measured with a backlog. All of them keep it over a restart.
    pub(crate) const KEEPING: [Target; 7] = [
        Target::SureqAlways,
        Target::SureqInterval,
        Target::SureqNone,
        Target::RedisLists,
        Target::RedisStreams,
        Target::Beanstalkd,
        Target::Nats,
    ];

    /// sureq with this `--durability`.
    pub(crate) fn of_level(level: &str) -> Target {
        match level {
            "interval" => Target::SureqInterval,
            "none" => Target::SureqNone,
            _ => Target::SureqAlways,
        }
    }

    /// The name on the command line.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Target::Redis => "redis",
            Target::RedisAlways => "redis-always",
            Target::SureqAlways => "sureq-always",
            Target::SureqInterval => "sureq-interval",
            Target::SureqNone => "sureq-none",
            Target::SureqModule => "sureq-module",
            Target::RedisLists => "redis-lists",
            Target::RedisStreams => "redis-streams",
            Target::Beanstalkd => "beanstalkd",
            Target::Nats => "nats",
        }
    }

    /// Its name in the tables.
    pub(crate) fn title(self) -> &'static str {
        match self {
            Target::Redis => "redis, persistence off",
            Target::RedisAlways => "redis, appendfsync always",
            Target::SureqAlways => "sureq, always",
            Target::SureqInterval => "sureq, interval",
            Target::SureqNone => "sureq, none",
            Target::SureqModule => "sureq's module, persistence off",
            Target::RedisLists => "Redis lists",
            Target::RedisStreams => "Redis Streams",
            Target::Beanstalkd => "beanstalkd",
            Target::Nats => "NATS JetStream",
        }
    }

    /// The guarantee of its confirmations.
    pub(crate) fn durability(self) -> &'static str {
        match self {
            Target::Redis | Target::SureqModule => "nothing is kept",
            Target::RedisAlways => "appendfsync always",
            Target::SureqAlways => "always: on disk",
            Target::SureqInterval => "interval: written, synced within 100 ms",
            Target::SureqNone => "none: written within 10 ms",
            Target::RedisLists | Target::RedisStreams => "appendfsync everysec",
            Target::Beanstalkd => "-b DIR -f 50: written, synced within 50 ms",
            Target::Nats => "file store: written, synced every 2 min",
        }
    }

    /// The Redis with the same guarantee, if there is one.
    pub(crate) fn peer(self) -> Target {
        match self {
            Target::RedisAlways | Target::SureqAlways => Target::RedisAlways,
            _ => Target::Redis,
        }
    }

    pub(crate) fn dialect(self) -> &'static dyn Dialect {
        match self {
            Target::Redis | Target::RedisAlways | Target::RedisLists => &List,
            Target::SureqAlways | Target::SureqInterval | Target::SureqNone | Target::SureqModule => &Rq,
            Target::RedisStreams => &Stream,
            Target::Beanstalkd => &Beanstalk,
            Target::Nats => &Nats,
        }
    }

    pub(crate) fn program(self) -> Program {
        match self {
            Target::Redis
            | Target::RedisAlways
            | Target::SureqModule
            | Target::RedisLists
            | Target::RedisStreams => Program::Redis,
            Target::SureqAlways | Target::SureqInterval | Target::SureqNone => Program::Sureq,
            Target::Beanstalkd => Program::Beanstalkd,
            Target::Nats => Program::Nats,
        }
    }

    /// Whether it waits for the disk before it confirms.
    pub(crate) fn syncs(self) -> bool {
        self.peer() == Target::RedisAlways
    }

    /// The command that starts it from `program`, listening on `port` of loopback and with its data in `directory`.
    pub(crate) fn command(
        self,
        program: &Path,
        port: u16,
        directory: &Path,
        settings: &Settings,
    ) -> io::Result<Command> {
        let mut command = Command::new(program);
        command.current_dir(directory);
        match self.program() {
            Program::Sureq => self.sureq(&mut command, port, directory, settings),
            Program::Redis => {
                self.redis(&mut command, port, directory);
                if let Some(module) = settings.module.as_ref().filter(|_| self == Target::SureqModule) {
                    command.arg("--loadmodule").arg(module);
                }
            }
            Program::Beanstalkd => {
                let binlog = directory.join("binlog");
                fs::create_dir_all(&binlog)?;
                command.args(["-l", "127.0.0.1", "-p", &port.to_string(), "-f", "50", "-b"]).arg(binlog);
            }
            Program::Nats => {
                let settings = directory.join("nats.conf");
                // The client answers no pings of the server, whose interval is therefore longer than any run.
                let store = directory.join("jetstream");
                fs::write(
                    &settings,
                    format!(
                        "listen: \"127.0.0.1:{port}\"\nping_interval: \"24h\"\njetstream {{ store_dir: \"{}\" }}\n",
                        store.display()
                    ),
                )?;
                command.arg("-c").arg(settings);
            }
        }
        Ok(command)
    }

    fn redis(self, command: &mut Command, port: u16, directory: &Path) {
        command
            .args(["--bind", "127.0.0.1", "--port", &port.to_string(), "--save", "", "--dir"])
            .arg(directory);
        match self {
            // A rewrite would fork during one run and not during the next; leaving it out favours Redis.
            Target::RedisAlways => command.args([
                "--appendonly",
                "yes",
                "--appendfsync",
                "always",
                "--auto-aof-rewrite-percentage",
                "0",
            ]),
            Target::Redis | Target::SureqModule => command.args(["--appendonly", "no"]),
            // With a backlog, a rewritten file makes a restart fast, so rewrites have their defaults.
            _ => command.args(["--appendonly", "yes", "--appendfsync", "everysec"]),
        };
    }

    /// The only place that builds sureq's flags.
    fn sureq(self, command: &mut Command, port: u16, directory: &Path, settings: &Settings) {
        // Variables for another server must not change this one.
        for (variable, _) in std::env::vars_os() {
            if variable.as_encoded_bytes().starts_with(b"SUREQ_") {
                command.env_remove(variable);
            }
        }
        let level = match self {
            Target::SureqInterval => "interval",
            Target::SureqNone => "none",
            _ => "always",
        };
        let text = settings.text_port.map_or("off".to_owned(), |port| format!("127.0.0.1:{port}"));
        command.args(["serve", "--resp", &format!("127.0.0.1:{port}"), "--text", &text, "--home"]);
        if let Some(home) = &settings.home {
            command.arg(home);
            return;
        }
        let mut home = OsString::from("file:");
        home.push(directory.join("data"));
        command.arg(home).args(["--durability", level]);
        if let Some(size) = &settings.segment_bytes {
            command.args(["--segment-bytes", size]);
        }
        if let Some(size) = &settings.cache {
            command.args(["--cache", size]);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flags_of_sureq_are_given_only_when_needed() {
        let args = |settings: &Settings| {
            let command =
                Target::SureqNone.command(Path::new("sureq"), 7, Path::new("/d"), settings).unwrap();
            let words: Vec<_> = command.get_args().map(|arg| arg.to_string_lossy().into_owned()).collect();
            words.join(" ")
        };
        let plain = "serve --resp 127.0.0.1:7 --text off --home file:/d/data --durability none";
        assert_eq!(args(&Settings::default()), plain);
        let settings = Settings {
            segment_bytes: Some("1MB".into()),
            cache: Some("8MB".into()),
            text_port: Some(8),
            ..Settings::default()
        };
        assert_eq!(args(&settings), plain.replace("off", "127.0.0.1:8") + " --segment-bytes 1MB --cache 8MB");
    }
}
