//! The servers under test: each started on a free port in a directory of its own, and stopped by its own handle.

use std::error::Error;
use std::fs::{self, File};
use std::io::{self, ErrorKind, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use tempfile::TempDir;

use crate::dialect::Dialect;
use crate::procstat;

const START_SECONDS: u64 = 30;
const SETTLE_SECONDS: u64 = 10;
/// A server that used no tick of CPU for so long has done what it does after a start.
const QUIET: Duration = Duration::from_millis(300);

/// A server with its settings.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Target {
    Redis,
    RedisAlways,
    SureqAlways,
    SureqInterval,
    SureqNone,
}

impl Target {
    /// All of them, in the order in which they take turns.
    pub(crate) const ALL: [Target; 5] =
        [Target::Redis, Target::RedisAlways, Target::SureqAlways, Target::SureqInterval, Target::SureqNone];

    /// The name on the command line.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Target::Redis => "redis",
            Target::RedisAlways => "redis-always",
            Target::SureqAlways => "sureq-always",
            Target::SureqInterval => "sureq-interval",
            Target::SureqNone => "sureq-none",
        }
    }

    /// What the tables call it.
    pub(crate) fn title(self) -> &'static str {
        match self {
            Target::Redis => "redis, persistence off",
            Target::RedisAlways => "redis, appendfsync always",
            Target::SureqAlways => "sureq, always",
            Target::SureqInterval => "sureq, interval",
            Target::SureqNone => "sureq, none",
        }
    }

    /// The Redis that promises what this target does, as far as there is one.
    pub(crate) fn peer(self) -> Target {
        match self {
            Target::RedisAlways | Target::SureqAlways => Target::RedisAlways,
            Target::Redis | Target::SureqInterval | Target::SureqNone => Target::Redis,
        }
    }

    pub(crate) fn dialect(self) -> Dialect {
        match self {
            Target::Redis | Target::RedisAlways => Dialect::List,
            Target::SureqAlways | Target::SureqInterval | Target::SureqNone => Dialect::Rq,
        }
    }

    /// Whether it waits for the disk.
    pub(crate) fn syncs(self) -> bool {
        self.peer() == Target::RedisAlways
    }
}

/// Where the programs are, and where they may write.
pub(crate) struct Place {
    pub(crate) sureq: PathBuf,
    pub(crate) directory: PathBuf,
}

impl Place {
    /// Makes sure that these targets can run here, and says which versions they are.
    pub(crate) fn check(&self, targets: &[Target]) -> Result<Vec<String>, String> {
        let mut versions = Vec::new();
        if targets.iter().any(|target| target.dialect() == Dialect::List) {
            versions.push(version(Path::new("redis-server")).map_err(|e| {
                format!(
                    "cannot run redis-server from the PATH: {e}; install it (Debian and Ubuntu: apt install \
                     redis-server, Fedora: dnf install redis), or leave it out with --only"
                )
            })?);
        }
        if targets.iter().any(|target| target.dialect() == Dialect::Rq) {
            versions.push(version(&self.sureq).map_err(|e| {
                format!(
                    "cannot run {}: {e}; build it with `cargo build --release`, or say where it is with --sureq",
                    self.sureq.display()
                )
            })?);
        }
        let kind = rustix::fs::statfs(&self.directory)
            .map_err(|e| format!("cannot use {}: {e}", self.directory.display()))?
            .f_type;
        if targets.iter().any(|target| target.syncs()) && kind == TMPFS {
            return Err(format!(
                "{} is in memory (tmpfs), where a sync costs nothing: choose a directory on a disk with --dir",
                self.directory.display()
            ));
        }
        Ok(versions)
    }

    /// Starts a target and waits until it answers and has come to rest.
    pub(crate) fn start(&self, target: Target) -> Result<Server, Box<dyn Error>> {
        let directory = tempfile::Builder::new().prefix("sureq-bench-").tempdir_in(&self.directory)?;
        let port = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?.local_addr()?.port();
        let log = directory.path().join("server.log");
        let child = self
            .command(target, port, directory.path())
            .stdin(Stdio::null())
            .stdout(File::create(&log)?)
            .stderr(File::options().append(true).open(&log)?)
            .spawn()?;
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
        let mut server = Server { child, address, dialect: target.dialect(), directory };
        server.wait_until_ready().map_err(|why| {
            let said = fs::read_to_string(&log).unwrap_or_default();
            format!("{} did not start: {why}\n{}", target.name(), said.trim_end())
        })?;
        server.settle()?;
        Ok(server)
    }

    fn command(&self, target: Target, port: u16, directory: &Path) -> Command {
        if target.dialect() == Dialect::List {
            let mut command = Command::new("redis-server");
            command
                .args(["--bind", "127.0.0.1", "--port", &port.to_string(), "--save", "", "--dir"])
                .arg(directory);
            if target == Target::RedisAlways {
                // A rewrite would fork in the middle of one run and not of the next; leaving it out favours Redis.
                command.args(["--appendonly", "yes", "--appendfsync", "always"]);
                command.args(["--auto-aof-rewrite-percentage", "0"]);
            } else {
                command.args(["--appendonly", "no"]);
            }
            return command;
        }
        let level = match target {
            Target::SureqInterval => "interval",
            Target::SureqNone => "none",
            _ => "always",
        };
        let mut command = Command::new(&self.sureq);
        // What is set for another server must not change this one.
        for (variable, _) in std::env::vars_os() {
            if variable.as_encoded_bytes().starts_with(b"SUREQ_") {
                command.env_remove(variable);
            }
        }
        let home = format!("file:{}", directory.join("data").display());
        command.args(["serve", "--resp", &format!("127.0.0.1:{port}"), "--text", "off", "--home", &home]);
        command.args(["--durability", level]).current_dir(directory);
        command
    }
}

/// The number by which `statfs` knows a file system that lives in memory.
const TMPFS: rustix::fs::FsWord = 0x0102_1994;

fn version(program: &Path) -> io::Result<String> {
    let output = Command::new(program).arg("--version").output()?;
    let text = String::from_utf8_lossy(&output.stdout);
    let words: Vec<&str> = text.split_ascii_whitespace().take(3).collect();
    Ok(words.join(" "))
}

/// A running server. Dropping it ends the process and removes what it wrote.
pub(crate) struct Server {
    child: Child,
    pub(crate) address: SocketAddr,
    pub(crate) dialect: Dialect,
    #[expect(
        dead_code,
        reason = "kept for its drop, which removes the directory after the process has ended"
    )]
    directory: TempDir,
}

impl Server {
    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    fn wait_until_ready(&mut self) -> Result<(), String> {
        let deadline = Instant::now() + Duration::from_secs(START_SECONDS);
        while Instant::now() < deadline {
            if let Some(status) = self.child.try_wait().map_err(|e| e.to_string())? {
                return Err(format!("it ended with {status}"));
            }
            match self.ping() {
                Ok(()) => return Ok(()),
                Err(e) if e.kind() == ErrorKind::InvalidData => return Err(e.to_string()),
                Err(_) => thread::sleep(Duration::from_millis(10)),
            }
        }
        Err(format!("no answer within {START_SECONDS} s"))
    }

    /// Lets the server finish what it does once, such as preparing files, which would weigh on short runs more than on long
    /// ones. One that never rests is measured as it is.
    fn settle(&self) -> io::Result<()> {
        let deadline = Instant::now() + Duration::from_secs(SETTLE_SECONDS);
        let mut before = procstat::cpu_time(self.pid())?;
        while Instant::now() < deadline {
            thread::sleep(QUIET);
            let now = procstat::cpu_time(self.pid())?;
            if now == before {
                break;
            }
            before = now;
        }
        Ok(())
    }

    fn ping(&self) -> io::Result<()> {
        let mut stream = TcpStream::connect(self.address)?;
        stream.set_read_timeout(Some(Duration::from_secs(1)))?;
        stream.write_all(b"*1\r\n$4\r\nPING\r\n")?;
        let mut answer = [0; 7];
        stream.read_exact(&mut answer)?;
        if &answer != b"+PONG\r\n" {
            let answer = String::from_utf8_lossy(&answer).into_owned();
            return Err(io::Error::new(ErrorKind::InvalidData, format!("PING was answered with {answer:?}")));
        }
        Ok(())
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // Nothing of it is kept, so that there is no use in an orderly end; a process that has ended already is fine too.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
