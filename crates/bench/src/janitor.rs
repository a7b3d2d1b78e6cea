//! Cleans up after an interrupted benchmark.
//!
//! It is a second process of this program that ctrl-c does not reach. It reads the processes and directories of the
//! benchmark from a pipe. When the pipe ends, for whatever reason, it kills those processes and removes those
//! directories. After a benchmark that ended normally there is nothing left to do.

use std::collections::HashMap;
use std::error::Error;
use std::fs;
use std::io::{self, BufRead, Write};
use std::os::fd::OwnedFd;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};

/// The name of the subcommand.
pub(crate) const COMMAND: &str = "janitor";
/// The beginning of the directory names; it removes no others.
pub(crate) const PREFIX: &str = "sureq-bench-";

/// The end of the pipe in the benchmark.
pub(crate) struct Janitor(Mutex<Child>);

impl Janitor {
    pub(crate) fn start() -> io::Result<Self> {
        let child = Command::new(std::env::current_exe()?)
            .arg(COMMAND)
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .process_group(0)
            .spawn()?;
        Ok(Janitor(Mutex::new(child)))
    }

    /// Adds a process that must not outlive the benchmark.
    pub(crate) fn process(&self, pid: u32) -> io::Result<()> {
        self.send_line(&format!("process {pid}"))
    }

    /// Adds a directory that must not outlive the benchmark.
    pub(crate) fn directory(&self, path: &Path) -> io::Result<()> {
        self.send_line(&format!("directory {}", path.display()))
    }

    fn send_line(&self, line: &str) -> io::Result<()> {
        let mut child = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        child.stdin.as_mut().map_or(Ok(()), |pipe| writeln!(pipe, "{line}"))
    }
}

impl Drop for Janitor {
    fn drop(&mut self) {
        let child = self.0.get_mut().unwrap_or_else(PoisonError::into_inner);
        drop(child.stdin.take());
        let _ = child.wait();
    }
}

/// The janitor process: reads to the end, then cleans up.
pub(crate) fn run() -> Result<(), Box<dyn Error>> {
    let mut processes: HashMap<i32, OwnedFd> = HashMap::new();
    let mut directories: Vec<PathBuf> = Vec::new();
    for line in io::stdin().lock().lines() {
        let line = line?;
        match line.split_once(' ') {
            Some(("process", pid)) => {
                let pid: i32 = pid.parse()?;
                // A handle of the process: its id could belong to another process later.
                if let Some(handle) =
                    Pid::from_raw(pid).and_then(|pid| pidfd_open(pid, PidfdFlags::empty()).ok())
                {
                    processes.insert(pid, handle);
                }
            }
            Some(("directory", path)) => directories.push(PathBuf::from(path)),
            _ => return Err(format!("cannot understand {line:?}").into()),
        }
    }
    for handle in processes.values() {
        // The process may have ended already.
        let _ = pidfd_send_signal(handle, Signal::KILL);
    }
    directories.retain(|path| {
        path.file_name().is_some_and(|name| name.as_encoded_bytes().starts_with(PREFIX.as_bytes()))
    });
    // A process that was just killed may still be writing.
    for _ in 0..50 {
        directories.retain(|path| fs::remove_dir_all(path).is_err() && path.exists());
        if directories.is_empty() {
            break;
        }
        thread::sleep(Duration::from_millis(100));
    }
    Ok(())
}
