//! A `sureq` server as a process of its own, on ports that the system chooses.

use std::ffi::{OsStr, OsString};
use std::net::SocketAddr;
use std::ops::{Deref, DerefMut};
use std::path::Path;
use std::process::Command;

use rustix::process::Signal;

use crate::client::{RespClient, TextClient};
use crate::process::Process;

/// A description of how to start a server: the program, an optional wrapper, its arguments and environment.
#[derive(Clone, Debug)]
pub struct Launch {
    words: Vec<OsString>,
    environment: Vec<(OsString, OsString)>,
}

impl Launch {
    /// A program without arguments.
    pub fn new(program: impl AsRef<OsStr>) -> Self {
        Self { words: vec![program.as_ref().to_owned()], environment: Vec::new() }
    }

    /// `sureq serve` with its data in `dir`, on ports that the system chooses.
    pub fn serve(program: &str, dir: &Path) -> Self {
        let mut home = OsString::from("file:");
        home.push(dir);
        Self::new(program)
            .args(["serve", "--resp", "127.0.0.1:0", "--text", "127.0.0.1:0", "--home"])
            .args([home])
    }

    /// Adds arguments. A later one does not replace an earlier one.
    #[must_use]
    pub fn args<A: AsRef<OsStr>>(mut self, args: impl IntoIterator<Item = A>) -> Self {
        self.words.extend(args.into_iter().map(|arg| arg.as_ref().to_owned()));
        self
    }

    /// Adds a wrapper program that runs the rest, like `strace` or `prlimit`.
    #[must_use]
    pub fn under<A: AsRef<OsStr>>(mut self, wrapper: impl IntoIterator<Item = A>) -> Self {
        self.words.splice(0..0, wrapper.into_iter().map(|word| word.as_ref().to_owned()));
        self
    }

    /// Sets an environment variable.
    #[must_use]
    pub fn env(mut self, name: impl AsRef<OsStr>, value: impl AsRef<OsStr>) -> Self {
        self.environment.push((name.as_ref().to_owned(), value.as_ref().to_owned()));
        self
    }

    /// Starts the process without waiting for the server.
    pub fn spawn(&self) -> Process {
        let mut command = Command::new(&self.words[0]);
        command.args(&self.words[1..]).envs(self.environment.iter().map(|(name, value)| (name, value)));
        Process::start(&mut command)
    }

    /// Starts the server; an error with the process if it ends before it prints its addresses.
    pub fn try_start(&self) -> Result<Server, Process> {
        let process = self.spawn();
        let resp = process.try_find_in_stdout(|line| address_behind("Redis clients", line));
        let text = process.try_find_in_stdout(|line| address_behind("netcat", line));
        match (resp, text) {
            (Some(resp), Some(text)) => Ok(Server { process, resp, text }),
            _ => Err(process),
        }
    }

    /// Starts the server and waits until it prints its addresses.
    pub fn start(&self) -> Server {
        let process = self.spawn();
        let resp = process.find_in_stdout(|line| address_behind("Redis clients", line));
        let text = process.find_in_stdout(|line| address_behind("netcat", line));
        Server { process, resp, text }
    }
}

/// A server that is ready.
pub struct Server {
    process: Process,
    /// The address for RESP.
    pub resp: SocketAddr,
    /// The address for the text dialect.
    pub text: SocketAddr,
}

impl Server {
    /// The process of the server.
    pub fn into_process(self) -> Process {
        self.process
    }

    /// A new RESP connection.
    pub fn client(&self) -> RespClient {
        RespClient::connect(self.resp)
    }

    /// A new text connection.
    pub fn text_client(&self) -> TextClient {
        TextClient::connect(self.text)
    }

    /// Sends SIGTERM.
    pub fn terminate(&self) {
        self.signal(Signal::TERM);
    }

    /// The resident memory.
    pub fn resident_bytes(&self) -> u64 {
        self.status_bytes("VmRSS:")
    }

    /// The peak of the resident memory.
    pub fn peak_bytes(&self) -> u64 {
        self.status_bytes("VmHWM:")
    }

    fn status_bytes(&self, field: &str) -> u64 {
        let status =
            std::fs::read_to_string(format!("/proc/{}/status", self.id())).expect("the server is running");
        let line = status.lines().find_map(|line| line.strip_prefix(field)).expect("a process has a size");
        line.trim().trim_end_matches(" kB").parse::<u64>().expect("it is in kilobytes") << 10
    }

    /// The number of open files and sockets.
    pub fn open_files(&self) -> usize {
        std::fs::read_dir(format!("/proc/{}/fd", self.id())).expect("the server is running").count()
    }

    /// The used CPU time, in clock ticks of 10 ms.
    pub fn cpu_ticks(&self) -> u64 {
        let stat =
            std::fs::read_to_string(format!("/proc/{}/stat", self.id())).expect("the server is running");
        // The name in parentheses may contain anything; after it come the state and then numbers.
        let numbers = stat.rsplit_once(')').map_or("", |(_, behind)| behind);
        numbers.split_whitespace().skip(11).take(2).filter_map(|n| n.parse::<u64>().ok()).sum()
    }
}

impl Deref for Server {
    type Target = Process;

    fn deref(&self) -> &Process {
        &self.process
    }
}

impl DerefMut for Server {
    fn deref_mut(&mut self) -> &mut Process {
        &mut self.process
    }
}

/// The address in a line that begins with `what`.
fn address_behind(what: &str, line: &str) -> Option<SocketAddr> {
    line.trim_start().strip_prefix(what)?.split_whitespace().next()?.parse().ok()
}
