//! Cleans up behind a benchmark that was interrupted.
//!
//! It is a second process of this program, outside the reach of ctrl-c, that reads from a pipe which processes and
//! directories there are. When the pipe ends, however its writer came to its end, it ends those processes and removes those
//! directories. After a benchmark that ended by itself there is nothing left to do.

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

/// The subcommand under which it runs.
pub(crate) const COMMAND: &str = "janitor";
/// What the names of the directories begin with; it removes no others.
pub(crate) const PREFIX: &str = "sureq-bench-";

/// The benchmark's end of the pipe.
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

    /// A process that must not outlive the benchmark.
    pub(crate) fn process(&self, pid: u32) -> io::Result<()> {
        self.tell(&format!("process {pid}"))
    }

    /// A directory that must not outlive the benchmark.
    pub(crate) fn directory(&self, path: &Path) -> io::Result<()> {
        self.tell(&format!("directory {}", path.display()))
    }

    fn tell(&self, line: &str) -> io::Result<()> {
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

/// The janitor itself: reads to the end, then cleans up.
pub(crate) fn run() -> Result<(), Box<dyn Error>> {
    let mut processes: HashMap<i32, OwnedFd> = HashMap::new();
    let mut directories: Vec<PathBuf> = Vec::new();
    for line in io::stdin().lock().lines() {
        let line = line?;
        match line.split_once(' ') {
            Some(("process", pid)) => {
                let pid: i32 = pid.parse()?;
                // A handle of the process itself: a number could belong to another one by then.
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
        // One that has ended already is fine.
        let _ = pidfd_send_signal(handle, Signal::KILL);
    }
    directories.retain(|path| {
        path.file_name().is_some_and(|name| name.as_encoded_bytes().starts_with(PREFIX.as_bytes()))
    });
    // A process that was just ended may still be writing.
    for _ in 0..50 {
        directories.retain(|path| fs::remove_dir_all(path).is_err() && path.exists());
        if directories.is_empty() {
            break;
        }
        thread::sleep(Duration::from_millis(100));
    }
    Ok(())
}
