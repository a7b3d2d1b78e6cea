//! A child process under test: started, signalled, waited for and always reaped.
//!
//! Nothing here polls. Threads collect the output and wake the callers that wait for a line. Another thread notices
//! the end of the process without reaping it, so that the process id is not reused until the owner takes the result.

use std::ffi::OsStr;
use std::fmt;
use std::fs::File;
use std::io::{BufRead as _, BufReader, Read};
use std::net::{Ipv4Addr, TcpListener};
use std::os::unix::process::{CommandExt as _, ExitStatusExt as _};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::process::{
    Pid, PidfdFlags, Resource, Rlimit, Signal, WaitId, WaitIdOptions, getrlimit, kill_process,
    kill_process_group, pidfd_open, setrlimit, waitid,
};

pub use crate::patience::PATIENCE;

/// A child process that leads a process group of its own, so that its children end with it.
pub struct Process {
    child: Child,
    pid: Pid,
    ended: Arc<Latch>,
    status: Option<ExitStatus>,
    stdout: Captured,
    stderr: Captured,
    waiter: Option<JoinHandle<()>>,
}

impl Process {
    /// Starts a command with its output captured.
    pub fn start(command: &mut Command) -> Self {
        let command =
            command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).process_group(0);
        let mut child = command.spawn().unwrap_or_else(|error| panic!("cannot start {command:?}: {error}"));
        let pid = Pid::from_child(&child);
        let stdout = Captured::from(child.stdout.take().expect("it is piped"));
        let stderr = Captured::from(child.stderr.take().expect("it is piped"));
        let ended = Arc::<Latch>::default();
        let waiter = std::thread::spawn({
            let ended = Arc::clone(&ended);
            move || {
                while let Err(error) = waitid(WaitId::Pid(pid), WaitIdOptions::EXITED | WaitIdOptions::NOWAIT)
                {
                    assert_eq!(error, rustix::io::Errno::INTR, "waiting for a child that was not reaped");
                }
                ended.open();
            }
        });
        Self { child, pid, ended, status: None, stdout, stderr, waiter: Some(waiter) }
    }

    /// The process id.
    pub fn id(&self) -> u32 {
        self.pid.as_raw_nonzero().get().unsigned_abs()
    }

    /// Sends a signal to the process only.
    pub fn signal(&self, signal: Signal) {
        kill_process(self.pid, signal).expect("it is not reaped yet");
    }

    /// Suspends it, and returns when all of its threads have stopped.
    pub fn suspend(&self) {
        self.signal(Signal::STOP);
        waitid(WaitId::Pid(self.pid), WaitIdOptions::STOPPED).expect("it is a child that stops");
    }

    /// Resumes it.
    pub fn resume(&self) {
        self.signal(Signal::CONT);
    }

    /// Kills it and all its children with signal 9.
    pub fn kill9(&mut self) -> ExitStatus {
        // The group may be gone already; then only the result is left to take.
        let _ = kill_process_group(self.pid, Signal::KILL);
        self.wait(PATIENCE)
    }

    /// Whether it has ended.
    pub fn has_ended(&self) -> bool {
        self.ends_within(Duration::ZERO)
    }

    /// Waits for its end; returns whether it came in time.
    pub fn ends_within(&self, within: Duration) -> bool {
        self.ended.is_open(within)
    }

    /// Waits for its end; fails the test if it does not come in time.
    pub fn wait(&mut self, within: Duration) -> ExitStatus {
        if let Some(status) = self.status {
            return status;
        }
        assert!(self.ended.is_open(within), "still running after {within:?}:\n{self}");
        let status = self.child.wait().expect("it has ended and is not reaped yet");
        self.status = Some(status);
        if let Some(waiter) = self.waiter.take() {
            waiter.join().expect("the waiter only waits");
        }
        status
    }

    /// Waits for its end; returns the exit code.
    pub fn exit_code(&mut self, within: Duration) -> i32 {
        let status = self.wait(within);
        status.code().unwrap_or_else(|| panic!("ended by signal {:?}:\n{self}", status.signal()))
    }

    /// The complete standard output. Waits for the stream to end, and fails the test if it does not: the output of a
    /// running process does not prove that something was not printed (see [`Self::find_in_stdout`]).
    pub fn stdout(&self) -> String {
        self.stdout.whole().unwrap_or_else(|| panic!("its standard output does not end:\n{self}"))
    }

    /// The complete standard error, like [`Self::stdout`].
    pub fn stderr(&self) -> String {
        self.stderr.whole().unwrap_or_else(|| panic!("its standard error does not end:\n{self}"))
    }

    /// The standard output read so far, of a process that may still run. Its two streams are not ordered: first wait
    /// for the line that the test is about.
    pub fn stdout_so_far(&self) -> String {
        self.stdout.so_far()
    }

    /// The standard error read so far, like [`Self::stdout_so_far`].
    pub fn stderr_so_far(&self) -> String {
        self.stderr.so_far()
    }

    /// Waits for a line of standard output for which `find` returns a value; `None` if the stream ends first.
    pub fn try_find_in_stdout<T>(&self, find: impl Fn(&str) -> Option<T>) -> Option<T> {
        self.stdout.find(find)
    }

    /// Waits for a line of standard output for which `find` returns a value.
    pub fn find_in_stdout<T>(&self, find: impl Fn(&str) -> Option<T>) -> T {
        self.try_find_in_stdout(find).unwrap_or_else(|| panic!("the expected line was not printed:\n{self}"))
    }

    /// Waits for a line of standard error for which `find` returns a value.
    pub fn find_in_stderr<T>(&self, find: impl Fn(&str) -> Option<T>) -> T {
        self.stderr.find(find).unwrap_or_else(|| panic!("the expected line was not printed:\n{self}"))
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        if self.status.is_none() {
            let _ = kill_process_group(self.pid, Signal::KILL);
            // The process must be reaped before its id may be reused.
            self.ended.is_open(PATIENCE);
            let _ = self.child.wait();
        }
    }
}

impl fmt::Display for Process {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "stdout:\n{}stderr:\n{}", self.stdout.so_far(), self.stderr.so_far())
    }
}

/// A free port of loopback that no other test gets until this process ends: tests run concurrently, and there is
/// always a moment between choosing a port and binding it. It is below the range that the system uses for outgoing
/// connections, so that none of them takes it.
///
/// # Panics
///
/// If no port is free.
pub fn free_port() -> u16 {
    /// One locked file for each port of this process.
    static TAKEN: Mutex<Vec<File>> = Mutex::new(Vec::new());
    let dir = std::env::temp_dir().join("sureq-test-ports");
    std::fs::create_dir_all(&dir).expect("a temporary directory");
    let take = |port: u16| {
        let file = File::create(dir.join(port.to_string())).expect("the file can be created");
        file.try_lock().ok()?;
        TcpListener::bind((Ipv4Addr::LOCALHOST, port)).ok()?;
        TAKEN.lock().unwrap_or_else(PoisonError::into_inner).push(file);
        Some(port)
    };
    std::iter::repeat_with(|| fastrand::u16(15_000..32_000)).find_map(take).expect("loopback has free ports")
}

/// Bytes that have arrived at this port of loopback and that the process has not read yet, over all connections.
///
/// # Panics
///
/// If `/proc/net/tcp` cannot be read.
pub fn unread_bytes(port: u16) -> u64 {
    let table = std::fs::read_to_string("/proc/net/tcp").expect("/proc is mounted");
    // sl local_address rem_address st tx_queue:rx_queue …, numbers in hexadecimal
    let unread = |line: &str| {
        let mut fields = line.split_whitespace().skip(1);
        let (_, local) = fields.next()?.split_once(':')?;
        let (_, received) = fields.nth(2)?.split_once(':')?;
        let is_there = u16::from_str_radix(local, 16).ok()? == port;
        is_there.then(|| u64::from_str_radix(received, 16).ok())?
    };
    table.lines().skip(1).filter_map(unread).sum()
}

/// Waits for the exit of a process that is not a child.
///
/// # Panics
///
/// If it does not exit in time.
pub fn await_end(id: u32) {
    let pid = Pid::from_raw(id.cast_signed()).expect("a process has a number");
    let handle = match pidfd_open(pid, PidfdFlags::empty()) {
        Ok(handle) => handle,
        Err(Errno::SRCH) => return,
        Err(error) => panic!("process {id} cannot be watched: {error}"),
    };
    let patience = Timespec::try_from(PATIENCE).expect("the time limit is small");
    let ended = poll(&mut [PollFd::new(&handle, PollFlags::IN)], Some(&patience));
    assert_eq!(ended, Ok(1), "process {id} does not end");
}

/// Runs a command and returns its output. Panics if it fails.
pub fn run<A: AsRef<OsStr>>(program: &str, arguments: &[A]) -> String {
    let output = Command::new(program).args(arguments).stdin(Stdio::null()).output();
    let output = output.unwrap_or_else(|error| panic!("cannot run {program}: {error}"));
    let arguments: Vec<_> = arguments.iter().map(AsRef::as_ref).collect();
    let (out, err) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{program} {arguments:?}: {}\n{out}{err}", output.status);
    out.into_owned()
}

/// Raises the limit of open files of this process and its later children to the maximum.
pub fn raise_file_limit() {
    let maximum = getrlimit(Resource::Nofile).maximum;
    setrlimit(Resource::Nofile, Rlimit { current: maximum, maximum })
        .expect("up to the maximum is always allowed");
}

/// An event that happens once, and that other threads wait for.
#[derive(Debug, Default)]
pub struct Latch {
    open: Mutex<bool>,
    opened: Condvar,
}

impl Latch {
    /// Signals the event.
    pub fn open(&self) {
        *self.open.lock().unwrap_or_else(PoisonError::into_inner) = true;
        self.opened.notify_all();
    }

    /// Waits for the event; returns whether it happened in time.
    pub fn is_open(&self, within: Duration) -> bool {
        let open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        *self.opened.wait_timeout_while(open, within, |open| !*open).unwrap_or_else(PoisonError::into_inner).0
    }
}

/// The output of a process, line by line.
struct Captured {
    shared: Arc<Shared>,
}

#[derive(Default)]
struct Shared {
    lines: Mutex<Lines>,
    grown: Condvar,
}

#[derive(Default)]
struct Lines {
    list: Vec<String>,
    ended: bool,
}

impl Captured {
    fn from(pipe: impl Read + Send + 'static) -> Self {
        let shared = Arc::<Shared>::default();
        let writer = Arc::clone(&shared);
        // Ends with the pipe, which ends with the process.
        std::thread::spawn(move || {
            let mut pipe = BufReader::new(pipe);
            loop {
                let mut line = Vec::new();
                let read = pipe.read_until(b'\n', &mut line).unwrap_or(0);
                let mut lines = writer.lock();
                if read == 0 {
                    lines.ended = true;
                } else {
                    lines.list.push(String::from_utf8_lossy(&line).into_owned());
                }
                drop(lines);
                writer.grown.notify_all();
                if read == 0 {
                    break;
                }
            }
        });
        Self { shared }
    }

    /// The complete output when the stream has ended; `None` if it does not end in time.
    fn whole(&self) -> Option<String> {
        let grown = &self.shared.grown;
        let lines = grown.wait_timeout_while(self.shared.lock(), PATIENCE, |lines| !lines.ended);
        let lines = lines.unwrap_or_else(PoisonError::into_inner).0;
        lines.ended.then(|| lines.list.concat())
    }

    fn so_far(&self) -> String {
        self.shared.lock().list.concat()
    }

    fn find<T>(&self, find: impl Fn(&str) -> Option<T>) -> Option<T> {
        let mut lines = self.shared.lock();
        let mut seen = 0;
        loop {
            while let Some(line) = lines.list.get(seen) {
                if let Some(found) = find(line) {
                    return Some(found);
                }
                seen += 1;
            }
            if lines.ended {
                return None;
            }
            let (grown, timeout) =
                self.shared.grown.wait_timeout(lines, PATIENCE).unwrap_or_else(PoisonError::into_inner);
            if timeout.timed_out() {
                return None;
            }
            lines = grown;
        }
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Lines> {
        self.lines.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_port_is_given_to_one_test_only() {
        let port = free_port();
        let file = File::create(std::env::temp_dir().join(format!("sureq-test-ports/{port}")));
        file.expect("the file exists").try_lock().expect_err("the port is taken");
    }
}
