//! What a process has cost: user and system time of all its threads, from `/proc/PID/stat`.
//!
//! The kernel scales these to what the scheduler counted, in steps of a clock tick (10 ms). A run of a second is
//! therefore good to about one percent. Work that the kernel does on its own threads, such as writing dirty pages, belongs to nobody.

use std::fs;
use std::io;
use std::time::{Duration, Instant};

/// What a stretch of time has cost both sides.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Cost {
    pub(crate) elapsed: Duration,
    pub(crate) server_cpu: Duration,
    pub(crate) client_cpu: Duration,
}

/// Reads the cost of a server and of this process, from its start to its end.
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

/// CPU time of a process since it began.
pub(crate) fn cpu_time(pid: u32) -> io::Result<Duration> {
    let path = format!("/proc/{pid}/stat");
    let stat = fs::read_to_string(&path)
        .map_err(|e| io::Error::new(e.kind(), format!("cannot read {path}: {e}")))?;
    let ticks = ticks(&stat).ok_or_else(|| io::Error::other(format!("{path} has no times: {stat:?}")))?;
    Ok(Duration::from_millis(ticks * 1000 / rustix::param::clock_ticks_per_second()))
}

/// The sum of `utime` and `stime`, the 14th and 15th field. The second field, the name, may hold blanks and brackets.
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
    fn this_process_can_be_read() {
        cpu_time(std::process::id()).unwrap();
        assert!(cpu_time(u32::MAX).unwrap_err().to_string().contains("/proc/"));
    }
}
