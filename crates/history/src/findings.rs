//! What is counted.

use std::ops::AddAssign;

/// What no correct queue can have done. All of it must be zero, except where a durability level promises less.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Findings {
    /// Tasks whose push was confirmed, that nobody finished and that are gone.
    pub lost: u64,
    /// Deliveries of tasks that were never pushed, whose push certainly failed, or whose payload changed.
    pub phantom: u64,
    /// Deliveries that were asked for after the finish of their task had been confirmed.
    pub resurrected: u64,
    /// Deliveries of tasks that someone else certainly held.
    pub double_held: u64,
    /// Finishes that were confirmed although the same task's finish had been confirmed before.
    pub finished_twice: u64,
    /// Finishes that were refused although whoever asked certainly held the task.
    pub denied: u64,
    /// Finishes by receipt that were confirmed although the task had been delivered to someone else before.
    pub stale: u64,
    /// Pushes of several tasks of which only some happened.
    pub torn: u64,
    /// Ids of two tasks, and tasks with two ids.
    pub repeated_ids: u64,
}

impl Findings {
    /// All findings in one number.
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

/// How much happened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Push commands that were confirmed.
    pub pushes: u64,
    /// Tasks whose push was confirmed.
    pub confirmed: u64,
    /// Tasks whose push certainly failed.
    pub failed: u64,
    /// Tasks whose push happened or not.
    pub unknown: u64,
    /// Deliveries.
    pub deliveries: u64,
    /// Deliveries of tasks that had been delivered before.
    pub redelivered: u64,
    /// Tasks whose finish was confirmed.
    pub finished: u64,
}
