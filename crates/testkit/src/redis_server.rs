//! A Redis of one's own: on a socket in a directory of its own, so that it needs no port.

use std::path::{Path, PathBuf};
use std::process::Command;

use tempfile::TempDir;

use rustix::process::Signal;

use crate::process::{PATIENCE, Process};

/// A running server, stopped when it is dropped. What it was told is on disk before it answers.
pub struct RedisServer {
    dir: TempDir,
    program: PathBuf,
    options: Vec<String>,
    process: Option<Process>,
}

impl RedisServer {
    /// Starts the `redis-server` of this machine.
    pub fn start() -> Self {
        Self::start_with(Path::new("redis-server"), &[])
    }

    /// Starts a server with more options.
    pub fn start_with(program: &Path, options: &[&str]) -> Self {
        let dir = tempfile::tempdir().expect("there is room for a directory");
        let options = options.iter().map(|&option| option.to_owned()).collect();
        let mut server = Self { dir, program: program.to_owned(), options, process: None };
        server.go();
        server
    }

    /// Where it listens.
    pub fn url(&self) -> String {
        format!("redis+unix://{}", self.socket().display())
    }

    /// Stops it in good order, and starts it again.
    pub fn restart(&mut self) {
        self.stop();
        self.go();
    }

    /// Ends it with signal 9, and starts it again.
    pub fn crash(&mut self) {
        if let Some(mut process) = self.process.take() {
            process.kill9();
        }
        self.go();
    }

    /// The socket that it listens on.
    pub fn socket(&self) -> PathBuf {
        self.dir.path().join("socket")
    }

    fn go(&mut self) {
        let mut command = Command::new(&self.program);
        command.args(["--port", "0", "--save", "", "--appendonly", "yes", "--appendfsync", "always"]);
        command.arg("--unixsocket").arg(self.socket()).arg("--dir").arg(self.dir.path());
        command.args(&self.options);
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

impl Drop for RedisServer {
    fn drop(&mut self) {
        self.stop();
    }
}
