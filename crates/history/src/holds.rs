//! When clients certainly held tasks, and when finishes were confirmed.
//!
//! ```text
//! request sent                 reply received                          request sent + lease
//!      |------ granted somewhere here ------|====== certainly held ======|-- maybe --|
//!                                                                        ^ less EPSILON
//! ```

use std::collections::{HashMap, VecDeque};
use std::time::Duration;

use crate::Time;

/// How much earlier a lease may end than its holder computes, since homes round to whole milliseconds.
pub const EPSILON: Duration = Duration::from_millis(2);

/// How long the time of a finish is remembered.
const REMEMBERED: Duration = Duration::from_secs(10);

/// One delivery.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Hold {
    pub(crate) asked: Time,
    pub(crate) received: Time,
    /// The end of the certain part, exclusive.
    pub(crate) until: Time,
}

impl Hold {
    fn overlaps(&self, other: &Self) -> bool {
        self.received.max(other.received) < self.until.min(other.until)
    }
}

/// The deliveries of unfinished tasks, and the latest finishes.
#[derive(Debug, Default)]
pub(crate) struct Holds {
    of_tasks: HashMap<u64, Vec<Hold>>,
    finished: HashMap<u64, Time>,
    /// Oldest first, as they were recorded.
    finishes: VecDeque<(Time, u64)>,
    /// No forgotten finish is later than this.
    forgotten: Time,
}

impl Holds {
    /// Adds a delivery; returns one that it overlaps.
    pub(crate) fn add(&mut self, number: u64, hold: Hold) -> Option<Hold> {
        let others = self.of_tasks.entry(number).or_default();
        let overlapped = others.iter().find(|other| other.overlaps(&hold)).copied();
        others.push(hold);
        overlapped
    }

    /// Other clients may hold the task from now on.
    pub(crate) fn release(&mut self, number: u64, at: Time) {
        for hold in self.of_tasks.get_mut(&number).into_iter().flatten() {
            hold.until = hold.until.min(at);
        }
    }

    pub(crate) fn release_all(&mut self) {
        self.of_tasks.clear();
    }

    /// Whether the task's only delivery certainly lasts at this time.
    pub(crate) fn is_certain(&self, number: u64, at: Time) -> bool {
        matches!(self.of_tasks.get(&number).map(Vec::as_slice), Some([hold]) if at < hold.until)
    }

    /// A delivery that was certainly granted after one that was received at `received`, and received before `sent`.
    pub(crate) fn later(&self, number: u64, received: Time, sent: Time) -> Option<Hold> {
        let mut holds = self.of_tasks.get(&number).into_iter().flatten();
        holds.find(|hold| received < hold.asked && hold.received < sent).copied()
    }

    /// Records a confirmed finish. Returns a delivery that was requested later and recorded before.
    pub(crate) fn finish(&mut self, number: u64, at: Time) -> Option<Hold> {
        self.finished.insert(number, at);
        self.finishes.push_back((at, number));
        while let Some(&(old, number)) = self.finishes.front()
            && old.after(REMEMBERED) < at
        {
            self.finishes.pop_front();
            self.finished.remove(&number);
            self.forgotten = self.forgotten.max(old);
        }
        let holds = self.of_tasks.remove(&number).unwrap_or_default();
        holds.into_iter().find(|hold| at < hold.asked)
    }

    /// Whether the finish of a finished task was certainly confirmed before this time.
    pub(crate) fn was_finished_before(&self, number: u64, at: Time) -> bool {
        *self.finished.get(&number).unwrap_or(&self.forgotten) < at
    }
}
