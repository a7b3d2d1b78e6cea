//! Why a task is not being worked on, as fields and as a sentence.

use alloc::boxed::Box;
use alloc::string::String;
use core::fmt;

use crate::id::TaskId;
use crate::task::{Holder, StateKind, Tries};
use crate::time::LogTime;

/// Why a task is not being worked on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Explanation {
    pub id: TaskId,
    pub deliveries: u32,
    /// The tries, by how they ended.
    pub tries: Tries,
    /// The number of tries after which the task is dead.
    pub tries_max: u32,
    /// The reason of the last failure.
    pub reason: Option<Box<[u8]>>,
    /// The name of the worker that holds the task.
    pub worker: Option<Box<[u8]>>,
    /// The state of the task, and the event that it waits for.
    pub why: Why,
}

/// The state of a task, and the event that it waits for. Times are unix milliseconds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Why {
    /// It waits for a delivery.
    Ready {
        /// The number of tasks that are delivered before it.
        ahead: u64,
        /// The reason why the queue delivers no task, if there is one.
        held_up: Option<HeldUp>,
    },
    /// It waits until it is due.
    Delayed {
        /// The due time.
        until: u64,
        /// The milliseconds until then.
        in_ms: u64,
        /// The reason why the queue delivers no task, if there is one.
        held_up: Option<HeldUp>,
    },
    /// A client holds it.
    Leased {
        since: LogTime,
        /// The deadline of the lease.
        until: Option<LogTime>,
        /// The worker or connection with which the lease ends.
        holder: Option<Holder>,
        /// Whether the task was cancelled.
        cancelled: bool,
    },
    /// It waits for nothing: it is dead.
    Dead {
        /// The time of death.
        at: LogTime,
    },
}

/// The reason why a queue delivers no task at all.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HeldUp {
    /// The queue is paused.
    Paused {
        /// The time of the pause.
        since: LogTime,
    },
    /// As many tasks are leased as its settings allow.
    AllLeased {
        /// The number of leased tasks.
        leased: u64,
        /// The maximum number of leased tasks.
        max: u64,
    },
}

impl Explanation {
    pub const fn state(&self) -> StateKind {
        match self.why {
            Why::Ready { .. } => StateKind::Ready,
            Why::Delayed { .. } => StateKind::Delayed,
            Why::Leased { .. } => StateKind::Leased,
            Why::Dead { .. } => StateKind::Dead,
        }
    }
}

impl fmt::Display for Explanation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.why {
            Why::Ready { ahead, held_up: None } => write!(f, "ready, {ahead} ahead")?,
            Why::Ready { held_up: Some(held_up @ HeldUp::Paused { .. }), ahead } => {
                write!(f, "{held_up}; ready, {ahead} ahead")?;
            }
            Why::Ready { held_up: Some(held_up), ahead } => write!(f, "ready, {ahead} ahead, but {held_up}")?,
            Why::Delayed { until, in_ms, held_up } => {
                write!(f, "delayed until {until}, {} from now", Span(*in_ms))?;
                if let Some(held_up) = held_up {
                    write!(f, "; {held_up}")?;
                }
            }
            Why::Leased { since, until, holder, cancelled } => {
                self.write_lease(f, *since, *until, *holder)?;
                if *cancelled {
                    f.write_str("; cancelled: its holder learns it from its next extension or heartbeat")?;
                }
            }
            Why::Dead { .. } if self.tries.total() < self.tries_max => {
                write!(f, "dead: buried after {} of {} tries", self.tries.total(), self.tries_max)?;
            }
            Why::Dead { .. } => write!(f, "dead: {} of {} tries", self.tries.total(), self.tries_max)?,
        }
        if !matches!(self.why, Why::Leased { .. })
            && let Some(reason) = &self.reason
        {
            write!(f, ", last reason: {}", String::from_utf8_lossy(reason))?;
        }
        Ok(())
    }
}

impl Explanation {
    fn write_lease(
        &self,
        f: &mut fmt::Formatter<'_>,
        since: LogTime,
        until: Option<LogTime>,
        holder: Option<Holder>,
    ) -> fmt::Result {
        f.write_str("leased")?;
        match (holder, &self.worker) {
            (Some(Holder::Worker(n)), Some(name)) => write!(f, " by {}#{n}", String::from_utf8_lossy(name))?,
            (Some(Holder::Worker(n)), None) => write!(f, " by worker #{n}")?,
            (Some(Holder::Conn(conn)), _) => write!(f, " by connection {}", conn.0)?,
            (None, _) => {}
        }
        write!(f, " since {}", since.0)?;
        match until {
            Some(until) => write!(f, " until {}", until.0)?,
            None if holder.is_none() => f.write_str(" with no deadline")?,
            None => {}
        }
        write!(f, ", delivery {}", self.deliveries)
    }
}

impl fmt::Display for HeldUp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Paused { since } => write!(f, "queue paused since {}", since.0),
            Self::AllLeased { leased, max } => write!(f, "{leased} of {max} leased"),
        }
    }
}

/// A duration in a form for people.
struct Span(u64);

impl fmt::Display for Span {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self(ms) = *self;
        let (seconds, minutes, hours) = (ms / 1000, ms / 60_000, ms / 3_600_000);
        match ms {
            0..1000 => write!(f, "{ms} ms"),
            1000..60_000 => write!(f, "{seconds}.{} s", ms % 1000 / 100),
            60_000..3_600_000 => write!(f, "{minutes} min {} s", seconds % 60),
            3_600_000..172_800_000 => write!(f, "{hours} h {} min", minutes % 60),
            _ => write!(f, "{} days", hours / 24),
        }
    }
}
