//! The servers under test: each is started on a free port in a directory of its own, and killed by its handle.

use std::error::Error;
use std::fs::{self, File};
use std::io;
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use tempfile::TempDir;

use crate::client::Client;
use crate::dialect::{Dialect, misfit};
use crate::janitor::{Janitor, PREFIX};
use crate::procstat;
use crate::targets::{Program, Settings, Target};

const START: Duration = Duration::from_secs(30);
/// The time limit for a server to become idle after a start.
pub(crate) const SETTLE: Duration = Duration::from_secs(10);
/// A server that used no tick of CPU for this time is considered idle.
const QUIET: Duration = Duration::from_millis(300);
/// The number of connections that only observe; those of a load count from zero.
pub(crate) const OBSERVER: usize = 1_000_000;

/// The paths of the programs, and the directory for their data.
pub(crate) struct Installation {
    sureq: PathBuf,
    module: PathBuf,
    directory: PathBuf,
    janitor: Arc<Janitor>,
}

impl Installation {
    /// `sureq` is the one beside this program by default, and `directory` the system's for temporary files.
    pub(crate) fn new(sureq: Option<&Path>, directory: Option<&Path>) -> io::Result<Self> {
        Ok(Installation {
            module: std::env::current_exe()?.with_file_name("libsureq_module.so"),
            // The servers run in directories of their own, where a relative path would be wrong.
            sureq: match sureq {
                Some(path) => std::path::absolute(path)?,
                None => std::env::current_exe()?.with_file_name("sureq"),
            },
            directory: match directory {
                Some(path) => std::path::absolute(path)?,
                None => std::path::absolute(std::env::temp_dir())?,
            },
            janitor: Arc::new(Janitor::start()?),
        })
    }

    /// Checks that these targets can run here, and returns their versions.
    pub(crate) fn check(&self, targets: &[Target]) -> Result<Vec<String>, String> {
        let mut versions = Vec::new();
        for program in Program::ALL {
            if targets.iter().any(|target| target.program() == program) {
                versions.push(self.version(program)?);
            }
        }
        if targets.contains(&Target::SureqModule) && !self.module.exists() {
            let why = "build it with `cargo build --release -p sureq-module`";
            return Err(format!("there is no {}: {why}", self.module.display()));
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

    fn version(&self, program: Program) -> Result<String, String> {
        let path = self.program(program);
        let output = Command::new(&path).arg(program.version_flag()).output().map_err(|e| match program {
            Program::Sureq => format!(
                "cannot run {}: {e}; build it with `cargo build --release`, or say where it is with --sureq",
                path.display()
            ),
            other => format!(
                "cannot run {0} from the PATH: {e}; install it (Debian and Ubuntu: apt install {0}), or leave it \
                 out with --only",
                other.name()
            ),
        })?;
        let text = String::from_utf8_lossy(&output.stdout);
        let words: Vec<&str> = text.split_ascii_whitespace().take(3).collect();
        Ok(words.join(" "))
    }

    /// Whether this sureq has a flag of `serve`.
    pub(crate) fn knows(&self, flag: &str) -> io::Result<bool> {
        let help = Command::new(&self.sureq).args(["serve", "--help"]).output()?;
        Ok(String::from_utf8_lossy(&help.stdout).split_ascii_whitespace().any(|word| word == flag))
    }

    fn program(&self, program: Program) -> PathBuf {
        match program {
            Program::Sureq => self.sureq.clone(),
            // Debian installs it outside the PATH of normal users.
            Program::Nats if Path::new("/usr/sbin/nats-server").exists() => "/usr/sbin/nats-server".into(),
            other => other.name().into(),
        }
    }

    /// Starts a target and waits until it answers and is idle.
    pub(crate) fn start(&self, target: Target) -> Result<Server, Box<dyn Error>> {
        self.start_with(target, Settings::default())
    }

    /// The same, with settings of sureq. A port for the text dialect is chosen here.
    pub(crate) fn start_with(
        &self,
        target: Target,
        mut settings: Settings,
    ) -> Result<Server, Box<dyn Error>> {
        let directory = tempfile::Builder::new().prefix(PREFIX).tempdir_in(&self.directory)?;
        self.janitor.directory(directory.path())?;
        let port = free_port()?;
        if settings.text_port.is_some() {
            settings.text_port = Some(free_port()?);
        }
        settings.module = Some(self.module.clone());
        let mut server = Server {
            child: None,
            target,
            program: self.program(target.program()),
            settings,
            address: SocketAddr::from((Ipv4Addr::LOCALHOST, port)),
            dialect: target.dialect(),
            directory,
            janitor: Arc::clone(&self.janitor),
        };
        server.exec()?;
        server.wait_until_ready()?;
        server.prepare()?;
        server.rest(SETTLE)?;
        Ok(server)
    }
}

fn free_port() -> io::Result<u16> {
    Ok(TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?.local_addr()?.port())
}

/// The number of `statfs` for a file system in memory.
const TMPFS: rustix::fs::FsWord = 0x0102_1994;

/// A server and its directory. Dropping it kills the process and removes its data.
pub(crate) struct Server {
    child: Option<Child>,
    pub(crate) target: Target,
    program: PathBuf,
    settings: Settings,
    pub(crate) address: SocketAddr,
    pub(crate) dialect: &'static dyn Dialect,
    directory: TempDir,
    janitor: Arc<Janitor>,
}

impl Server {
    pub(crate) fn pid(&self) -> u32 {
        self.child.as_ref().map_or(0, Child::id)
    }

    /// The directory of its data.
    pub(crate) fn directory(&self) -> &Path {
        self.directory.path()
    }

    /// The address of the text dialect.
    pub(crate) fn text_address(&self) -> Option<SocketAddr> {
        self.settings.text_port.map(|port| SocketAddr::from((Ipv4Addr::LOCALHOST, port)))
    }

    /// Runs the program in its directory, for the first time or again; returns the time of the start.
    pub(crate) fn exec(&mut self) -> Result<Instant, Box<dyn Error>> {
        let log = self.directory.path().join("server.log");
        let mut command =
            self.target.command(&self.program, self.address.port(), self.directory.path(), &self.settings)?;
        command
            .stdin(Stdio::null())
            .stdout(File::create(&log)?)
            .stderr(File::options().append(true).open(&log)?);
        let start = Instant::now();
        let child = self.child.insert(command.spawn()?);
        self.janitor.process(child.id())?;
        Ok(start)
    }

    /// Kills the process, like a crash.
    pub(crate) fn kill(&mut self) -> io::Result<()> {
        if let Some(mut child) = self.child.take() {
            child.kill()?;
            child.wait()?;
        }
        Ok(())
    }

    /// A connection of its own that has sent the greeting.
    pub(crate) fn client(&self) -> io::Result<Client> {
        Client::open(self.address, self.dialect, OBSERVER)
    }

    pub(crate) fn wait_until_ready(&mut self) -> Result<(), Box<dyn Error>> {
        let deadline = Instant::now() + START;
        let mut why = String::new();
        while Instant::now() < deadline {
            self.must_run()?;
            match self.ping() {
                Ok(true) => return Ok(()),
                Ok(false) => {}
                Err(e) => why = e.to_string(),
            }
            thread::sleep(Duration::from_millis(10));
        }
        Err(format!("{} did not answer within {} s: {why}", self.target.name(), START.as_secs()).into())
    }

    /// Fails with the output of the server if it has ended by itself.
    pub(crate) fn must_run(&mut self) -> Result<(), Box<dyn Error>> {
        if let Some(child) = &mut self.child
            && let Some(status) = child.try_wait()?
        {
            let said = fs::read_to_string(self.directory.path().join("server.log")).unwrap_or_default();
            return Err(format!("{} ended with {status}\n{}", self.target.name(), said.trim_end()).into());
        }
        Ok(())
    }

    /// Waits until the server has finished its background work, such as preparing or rewriting files, which would
    /// affect short runs more than long ones. A server that never becomes idle is measured as it is.
    pub(crate) fn rest(&self, limit: Duration) -> Result<(), Box<dyn Error>> {
        let deadline = Instant::now() + limit;
        let mut before = procstat::cpu_time(self.pid())?;
        while Instant::now() < deadline {
            thread::sleep(QUIET);
            let now = procstat::cpu_time(self.pid())?;
            if now == before && !procstat::has_children(self.pid()) {
                break;
            }
            before = now;
        }
        Ok(())
    }

    /// The number of its tasks, according to the server.
    pub(crate) fn count(&self) -> Result<u64, Box<dyn Error>> {
        let mut client = self.client()?;
        self.dialect.count(&mut client.output, OBSERVER);
        client.send()?;
        let reply = client.reply()?;
        let count = self.dialect.counted(reply.bytes, reply.tokens);
        Ok(count.ok_or_else(|| misfit(reply.bytes, reply.tokens, "count"))?)
    }

    fn prepare(&self) -> Result<(), Box<dyn Error>> {
        let mut client = self.client()?;
        let replies = self.dialect.prepare(&mut client.output, OBSERVER);
        client.send()?;
        for _ in 0..replies {
            let reply = client.reply()?;
            let text = String::from_utf8_lossy(reply.bytes);
            if text.starts_with('-') || text.contains("\"error\"") {
                return Err(format!("{} cannot make the queue: {text}", self.target.name()).into());
            }
        }
        Ok(())
    }

    fn ping(&self) -> Result<bool, Box<dyn Error>> {
        let mut client = self.client()?;
        self.dialect.ping(&mut client.output);
        client.send()?;
        let reply = client.reply()?;
        if self.dialect.ponged(reply.bytes, reply.tokens) {
            return Ok(true);
        }
        if self.dialect.loading(reply.bytes, reply.tokens) {
            return Ok(false);
        }
        Err(misfit(reply.bytes, reply.tokens, "ping").into())
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // Nothing is kept, so that no orderly end is needed; the process may have ended already.
        let _ = self.kill();
    }
}
