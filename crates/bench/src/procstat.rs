//! The cost of a process: CPU time, memory and writes, from the files of `/proc/PID`.
//!
//! CPU time is user and system time of all its threads. The kernel scales these to the time that the scheduler
//! counted, in steps of a clock tick (10 ms), so a run of a second is accurate to about one percent. Work on the
//! kernel's own threads, such as writing dirty pages, is not attributed to any process.

use std::fs;
use std::io;
use std::time::{Duration, Instant};

/// The cost of a period for server and client.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Cost {
    pub(crate) elapsed: Duration,
    pub(crate) server_cpu: Duration,
    pub(crate) client_cpu: Duration,
}

/// Measures the cost of a server and of this process, from its creation to its end.
pub(crate) struct Meter {
    server: u32,
    start: Instant,
    server_cpu: Duration,
    client_cpu: Duration,
}

impl Meter {
    pub(crate) fn start(server: u32) -> io::Result<Self> {
        let (server_cpu, client_cpu) = (cpu_time(server)?, cpu_time(std::process::id())?);
        Ok(Meter { server, start: Instant::now(), server_cpu, client_cpu })
    }

    pub(crate) fn stop(self) -> io::Result<Cost> {
        Ok(Cost {
            elapsed: self.start.elapsed(),
            server_cpu: cpu_time(self.server)?.saturating_sub(self.server_cpu),
            client_cpu: cpu_time(std::process::id())?.saturating_sub(self.client_cpu),
        })
    }
}

/// CPU time of a process since its start.
pub(crate) fn cpu_time(pid: u32) -> io::Result<Duration> {
    let path = format!("/proc/{pid}/stat");
    let stat = read(&path)?;
    let ticks = ticks(&stat).ok_or_else(|| io::Error::other(format!("{path} has no times: {stat:?}")))?;
    Ok(Duration::from_millis(ticks * 1000 / rustix::param::clock_ticks_per_second()))
}

/// Resident memory of a process, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Memory {
    pub(crate) resident: u64,
    /// The part that is not backed by files. The rest is mapped files, whose pages the kernel can drop.
    pub(crate) anonymous: u64,
}

/// The resident memory of a process.
pub(crate) fn memory(pid: u32) -> io::Result<Memory> {
    let path = format!("/proc/{pid}/status");
    let status = read(&path)?;
    let bytes = |name| field(&status, name).map(|kibibytes| kibibytes << 10);
    match (bytes("VmRSS:"), bytes("RssAnon:")) {
        (Some(resident), Some(anonymous)) => Ok(Memory { resident, anonymous }),
        _ => Err(io::Error::other(format!("{path} has no resident memory"))),
    }
}

/// Bytes that a process has caused to be written to the disk, including dirty pages.
pub(crate) fn written(pid: u32) -> io::Result<u64> {
    let path = format!("/proc/{pid}/io");
    let io = read(&path)?;
    field(&io, "write_bytes:").ok_or_else(|| io::Error::other(format!("{path} has no write_bytes")))
}

/// Whether a process has children, such as the one in which Redis rewrites its file.
pub(crate) fn has_children(pid: u32) -> bool {
    read(&format!("/proc/{pid}/task/{pid}/children")).is_ok_and(|children| !children.trim().is_empty())
}

/// Makes the kernel drop all clean pages of files, so that the next reads come from the disk. Requires root.
pub(crate) fn drop_page_cache() -> io::Result<()> {
    rustix::fs::sync();
    let path = "/proc/sys/vm/drop_caches";
    fs::write(path, "3").map_err(|e| io::Error::new(e.kind(), format!("cannot write {path}: {e}")))
}

fn read(path: &str) -> io::Result<String> {
    fs::read_to_string(path).map_err(|e| io::Error::new(e.kind(), format!("cannot read {path}: {e}")))
}

/// The number after a name at the start of a line.
fn field(text: &str, name: &str) -> Option<u64> {
    let line = text.lines().find_map(|line| line.strip_prefix(name))?;
    line.split_ascii_whitespace().next()?.parse().ok()
}

/// The sum of `utime` and `stime`, the 14th and 15th field. The second field, the name, may contain spaces and
/// brackets.
fn ticks(stat: &str) -> Option<u64> {
    let (_, fields) = stat.rsplit_once(')')?;
    let mut fields = fields.split_ascii_whitespace().skip(11);
    let user: u64 = fields.next()?.parse().ok()?;
    let system: u64 = fields.next()?.parse().ok()?;
    Some(user + system)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_with_brackets_does_not_shift_the_fields() {
        let stat =
            "7 (a) b (c) S 1 7 7 0 -1 4194560 100 0 0 0 250 31 9 9 20 0 4 0 100 1000 10 18446744073709551615";
        assert_eq!(ticks(stat), Some(281));
        assert_eq!(ticks("7 (a) S 1"), None);
    }

    #[test]
    fn a_field_is_a_whole_word_at_the_start_of_a_line() {
        let status = "Name:\tRssAnon: 7\nVmRSS:\t  12 kB\nRssAnon:\t  3 kB\n";
        assert_eq!((field(status, "VmRSS:"), field(status, "RssAnon:")), (Some(12), Some(3)));
        assert_eq!(field(status, "VmHWM:"), None);
    }

    #[test]
    fn this_process_can_be_read() {
        let pid = std::process::id();
        cpu_time(pid).unwrap();
        let memory = memory(pid).unwrap();
        assert!(memory.anonymous > 0 && memory.anonymous <= memory.resident, "{memory:?}");
        written(pid).unwrap();
        assert!(cpu_time(u32::MAX).unwrap_err().to_string().contains("/proc/"));
    }
}
