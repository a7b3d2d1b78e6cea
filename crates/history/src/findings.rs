//! Findings and counts.

use std::ops::AddAssign;

/// Violations that no correct queue can commit. All must be zero, except where a durability level promises less.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Findings {
    /// Confirmed tasks that are gone without having been finished.
    pub lost: u64,
    /// Deliveries of tasks that were never pushed, whose push certainly failed, or whose payload changed.
    pub phantom: u64,
    /// Deliveries requested after the finish of their task was confirmed.
    pub resurrected: u64,
    /// Deliveries of tasks that another client certainly held.
    pub double_held: u64,
    /// Confirmed finishes of tasks whose finish had been confirmed before.
    pub finished_twice: u64,
    /// Refused finishes by clients that certainly held the task.
    pub denied: u64,
    /// Confirmed finishes by receipt after the task had been delivered to another client.
    pub stale: u64,
    /// Pushes of several tasks that were executed in part.
    pub torn: u64,
    /// Ids of two tasks, and tasks with two ids.
    pub repeated_ids: u64,
}

impl Findings {
    /// The sum of all findings.
    pub const fn total(&self) -> u64 {
        let Self {
            lost,
            phantom,
            resurrected,
            double_held,
            finished_twice,
            denied,
            stale,
            torn,
            repeated_ids,
        } = *self;
        lost + phantom + resurrected + double_held + finished_twice + denied + stale + torn + repeated_ids
    }
}

impl AddAssign for Findings {
    fn add_assign(&mut self, other: Self) {
        self.lost += other.lost;
        self.phantom += other.phantom;
        self.resurrected += other.resurrected;
        self.double_held += other.double_held;
        self.finished_twice += other.finished_twice;
        self.denied += other.denied;
        self.stale += other.stale;
        self.torn += other.torn;
        self.repeated_ids += other.repeated_ids;
    }
}

/// Counts of operations.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Push commands that were confirmed.
    pub pushes: u64,
    /// Tasks whose push was confirmed.
    pub confirmed: u64,
    /// Tasks whose push certainly failed.
    pub failed: u64,
    /// Tasks whose push has an unknown outcome.
    pub unknown: u64,
    pub deliveries: u64,
    /// Deliveries of tasks that had been delivered before.
    pub redelivered: u64,
    /// Tasks whose finish was confirmed.
    pub finished: u64,
}
