//! The processes of a proof: workers, and a server that is killed and restarted on its directory.

use std::io::{self, BufRead as _, BufReader};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed, Ordering::SeqCst};
use std::thread::JoinHandle;

use sureq_history::{Delivery, Outcome, Seen, Time};

use super::worker::{AGAIN, LEASE};
use super::{Records, SERVER, WORKER};

/// The most attempts to start a server: another process may have its port for a moment.
const STARTS_MAX: usize = 20;

/// This program with other arguments. Variables of the parent are removed, and a Ctrl-C does not reach it: it ends when
/// its standard input closes, which only the parent holds.
fn this_program() -> io::Result<Command> {
    let mut command = Command::new(std::env::current_exe()?);
    for (name, _) in std::env::vars_os().filter(|(name, _)| name.to_string_lossy().starts_with("SUREQ_")) {
        command.env_remove(name);
    }
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null()).process_group(0);
    Ok(command)
}

/// A directory that is removed on drop, unless it is evidence.
pub(super) struct StoreDir {
    path: PathBuf,
    pub(super) is_kept: bool,
}

impl StoreDir {
    pub(super) fn make(parent: &Path) -> io::Result<Self> {
        let path = parent.join(format!("sureq-prove-{}", std::process::id()));
        std::fs::create_dir(&path)?;
        Ok(Self { path, is_kept: false })
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for StoreDir {
    fn drop(&mut self) {
        if !self.is_kept {
            // A leftover directory has the process id in its name.
            let _ = std::fs::remove_dir_all(&self.path);
        }
    }
}

/// A server that keeps its address across restarts.
pub(super) struct Server {
    dir: PathBuf,
    durability: String,
    address: String,
    child: Child,
}

impl Server {
    pub(super) fn start(dir: &Path, durability: &str) -> io::Result<Self> {
        let (child, address) = launch(dir, durability, "127.0.0.1:0")?;
        Ok(Self { dir: dir.to_owned(), durability: durability.to_owned(), address, child })
    }

    pub(super) fn url(&self) -> String {
        format!("sureq://{}", self.address)
    }

    /// Kills it with signal 9 and restarts it.
    pub(super) fn crash(&mut self) -> io::Result<()> {
        end(&mut self.child)?;
        let mut tries = 0;
        self.child = loop {
            tries += 1;
            match launch(&self.dir, &self.durability, &self.address) {
                Ok((child, _)) => break child,
                Err(error) if tries == STARTS_MAX => return Err(error),
                Err(_) => std::thread::sleep(std::time::Duration::from_millis(100)),
            }
        };
        Ok(())
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = end(&mut self.child);
    }
}

/// Starts a server and waits for its address.
fn launch(dir: &Path, durability: &str, address: &str) -> io::Result<(Child, String)> {
    let mut home = std::ffi::OsString::from("file:");
    home.push(dir);
    let mut command = this_program()?;
    command
        .args([SERVER, "--text", "off", "--resp", address, "--durability", durability, "--home"])
        .arg(home);
    let mut child = command.spawn()?;
    let output = BufReader::new(child.stdout.take().expect("it is piped"));
    for line in output.lines().map_while(Result::ok) {
        if let Some(words) = line.trim_start().strip_prefix("Redis clients") {
            let address = words.split_whitespace().next().unwrap_or_default().to_owned();
            return Ok((child, address));
        }
    }
    end(&mut child)?;
    Err(io::Error::other(format!(
        "cannot start a server in {0}: run `sureq serve --home file:{0}` to see why",
        dir.display()
    )))
}

/// A worker and the thread that records its output.
pub(super) struct Worker {
    child: Child,
    recorder: Option<JoinHandle<()>>,
    /// The number of tasks that it popped and has not asked to finish.
    held: Arc<AtomicU64>,
}

impl Worker {
    pub(super) fn start(home: &str, queue: &str, records: &Records) -> io::Result<Self> {
        let mut command = this_program()?;
        let mut child = command.args([WORKER, home, queue]).spawn()?;
        let (output, records) = (child.stdout.take().expect("it is piped"), records.clone());
        let held = Arc::<AtomicU64>::default();
        let recorder = std::thread::spawn({
            let held = Arc::clone(&held);
            move || {
                let mut output = BufReader::new(output);
                let mut line = String::new();
                while output.read_line(&mut line).is_ok_and(|bytes| bytes > 0) {
                    note(&line, &records, &held);
                    line.clear();
                }
            }
        });
        Ok(Self { child, recorder: Some(recorder), held })
    }

    /// The number of tasks that it holds, as far as its output was read; exact after `kill`.
    pub(super) fn held(&self) -> u64 {
        self.held.load(Relaxed)
    }

    /// Kills it with signal 9; all its output is recorded then.
    pub(super) fn kill(&mut self) -> io::Result<()> {
        end(&mut self.child)?;
        if let Some(recorder) = self.recorder.take() {
            recorder.join().map_err(|_| io::Error::other("cannot record the output of a worker"))?;
        }
        Ok(())
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        let _ = end(&mut self.child);
    }
}

/// Records a line of a worker's output. An incomplete line, cut off by a kill, has no effect. A finish that was
/// requested and not reported stays unknown.
///
/// ```text
/// take SENT RECEIVED NUMBER[+] …     tasks that it received; + if the home says that it delivered the task before
/// ask NUMBER …                       it is about to finish them
/// done RECEIVED NUMBER …             the home said that it finished them
/// not RECEIVED NUMBER …              the home said that it did not hold them
/// ```
fn note(line: &str, records: &Records, held: &AtomicU64) {
    let Some(line) = line.strip_suffix('\n') else { return };
    let mut words = line.split(' ');
    let verb = words.next();
    let mut time = || words.next().and_then(|word| word.parse::<Time>().ok()).unwrap_or_default();
    match verb {
        Some("take") => {
            let (asked, received) = (time(), time());
            words.for_each(|word| note_taken(word, asked, received, records, held));
        }
        Some("ask") => {
            for number in numbers(words) {
                records.history.lock().invoke_finish(number);
                held.fetch_sub(1, Relaxed);
            }
        }
        Some("done") => {
            let at = time();
            numbers(words).for_each(|number| records.history.lock().complete_finish(number, Outcome::Ok, at));
        }
        Some("not") => {
            let at = time();
            numbers(words).for_each(|number| records.history.lock().deny_finish(number, at));
        }
        _ => {}
    }
}

fn note_taken(word: &str, asked: Time, received: Time, records: &Records, held: &AtomicU64) {
    let text = word.strip_suffix(AGAIN);
    let number = text.unwrap_or(word).parse().ok();
    let delivery = Delivery { number, id: None, asked, received, lease: Some(LEASE) };
    let seen = records.history.lock().deliver(&delivery);
    if number.is_some() {
        held.fetch_add(1, Relaxed);
        let is_again = text.is_some() || seen == Seen::Again;
        records.redelivered.fetch_add(is_again.into(), SeqCst);
    }
}

fn numbers<'w>(words: impl Iterator<Item = &'w str>) -> impl Iterator<Item = u64> {
    words.filter_map(|word| word.parse().ok())
}

fn end(child: &mut Child) -> io::Result<()> {
    child.kill()?;
    child.wait().map(|_| ())
}
