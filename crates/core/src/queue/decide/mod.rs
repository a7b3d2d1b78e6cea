//! Decisions, by the table of transitions in docs/use/life-of-a-task.md. Each is recorded, then applied.
//!
//! Every call first settles what is due ([`Queue::settle`]), so that no command sees an outdated state. [`accept`]
//! adds tasks, [`deliver`] leases tasks and ends leases, [`conclude`] finishes, returns, cancels, buries, revives,
//! deletes and purges.

mod accept;
mod conclude;
mod deliver;
mod unreadable;

use alloc::collections::BTreeSet;
use alloc::vec::Vec;

use super::Queue;
use crate::command::{IdForm, TaskRefs};
use crate::event::{Event, Ids, Landing, Recorder, Removal};
use crate::id::{Claim, TaskId};
use crate::reply::Refusal;
use crate::settings::{Changes, Place, Settings};
use crate::task::{Body, Cause, StateKind};
use crate::time::{LogTime, Now};

pub use accept::Pushes;
pub use deliver::{PopAsk, Popped, RecoverAsk};

impl<B: Body> Queue<B> {
    pub(super) fn commit<R: Recorder<Body = B>>(&mut self, event: &Event<'_>, at: LogTime, rec: &mut R) {
        match event {
            Event::Pushed { payloads, .. } => self.rates.pushed.count(payloads.len() as u64, at),
            Event::Finished { ids: Ids::Slice(ids), .. } => self.rates.finished.count(ids.len() as u64, at),
            _ => {}
        }
        rec.record(event);
        self.apply(event, at, rec).expect("a decision fits the state it was made on");
    }

    pub(super) const fn landing(&self, place: Place, now: Now) -> Landing {
        match place {
            Place::Front => Landing::Front { group: self.front_group + 1 },
            Place::Back | Place::After(0) => Landing::Back,
            Place::After(ms) => Landing::Delayed(now.log.after(ms)),
        }
    }

    pub(super) fn send_back<R: Recorder<Body = B>>(
        &mut self,
        ids: &[TaskId],
        to: Landing,
        cause: Cause,
        reason: Option<&[u8]>,
        now: Now,
        rec: &mut R,
    ) {
        let ids = Ids::Slice(ids);
        self.commit(&Event::Returned { queue: self.no, ids, to, cause, reason }, now.log, rec);
    }

    pub(super) fn remove_all<R: Recorder<Body = B>>(
        &mut self,
        ids: &[TaskId],
        why: Removal,
        now: Now,
        rec: &mut R,
    ) {
        if !ids.is_empty() {
            self.commit(&Event::Removed { queue: self.no, ids: Ids::Slice(ids), why }, now.log, rec);
        }
    }

    pub(super) fn bury_all<R: Recorder<Body = B>>(
        &mut self,
        ids: &[TaskId],
        cause: Cause,
        reason: Option<&[u8]>,
        now: Now,
        rec: &mut R,
    ) {
        if !ids.is_empty() {
            self.commit(&Event::Died { queue: self.no, ids: Ids::Slice(ids), cause, reason }, now.log, rec);
            // Recorded here and not in `apply`: at replay, the move follows the death in the log.
            if self.settings.dead_letter.is_some() {
                self.dying.extend_from_slice(ids);
            }
        }
    }

    /// Begins a new incarnation of a queue that has a log of its own: timed leases are extended to a minimum from
    /// `time` on, and earlier connections are gone. In a broker, [`crate::Broker::start`] does this for all queues.
    pub fn start<R: Recorder<Body = B>>(&mut self, incarnation: u64, time: LogTime, rec: &mut R) {
        self.commit(&Event::Started { incarnation, time }, time, rec);
    }

    /// Stops deliveries.
    pub fn pause<R: Recorder<Body = B>>(&mut self, now: Now, rec: &mut R) {
        if self.paused.is_none() {
            self.commit(&Event::Paused(self.no), now.log, rec);
        }
    }

    pub fn resume<R: Recorder<Body = B>>(&mut self, now: Now, rec: &mut R) {
        if self.paused.is_some() {
            self.commit(&Event::Resumed(self.no), now.log, rec);
            rec.note_task_count(self.ready.len());
        }
    }

    /// Changes settings. Events that were due before the change follow the old settings.
    pub fn configure<R: Recorder<Body = B>>(
        &mut self,
        changes: Changes<'_>,
        now: Now,
        rec: &mut R,
    ) -> Settings {
        self.settle_once(now, rec);
        let mut settings = self.settings.clone();
        for change in changes.iter() {
            settings.change(&change);
        }
        if settings != self.settings {
            self.commit(&Event::Configured { queue: self.no, settings: &settings }, now.log, rec);
        }
        settings
    }

    pub fn state_of(&self, id: TaskId) -> Option<StateKind> {
        if let Some(task) = self.table.get(id) {
            return Some(if self.bulk.revives(&task.state) { StateKind::Ready } else { task.state.kind() });
        }
        if self.ready.packed.contains(id) {
            return Some(StateKind::Ready);
        }
        self.packed_delayed.contains(id).then_some(StateKind::Delayed)
    }

    /// Whether a claim is valid: an id always is, a receipt only for the current delivery.
    fn is_meant(&self, claim: Claim) -> bool {
        matches!(claim, Claim::Id(_)) || self.is_current(claim)
    }

    /// Whether the task is leased, and the claim is an id or the receipt of that lease.
    fn is_current(&self, claim: Claim) -> bool {
        self.table.get(claim.id()).is_some_and(|task| {
            let meant = match claim {
                Claim::Id(_) => true,
                Claim::Receipt(receipt) => task.receipt() == receipt,
            };
            meant && task.lease().is_some()
        })
    }
}

/// A list of ids without duplicates. For ids in ascending order it needs no set.
#[derive(Default)]
struct Distinct {
    ids: Vec<TaskId>,
    last: TaskId,
    /// All of `ids`, once an id came out of order.
    set: Option<BTreeSet<TaskId>>,
}

impl Distinct {
    /// An empty list that uses this buffer.
    fn within(mut room: Vec<TaskId>) -> Self {
        room.clear();
        Self { ids: room, ..Self::default() }
    }

    /// Adds an id. Returns false if the list has it already.
    fn add(&mut self, id: TaskId) -> bool {
        if id <= self.last || self.set.is_some() {
            let set = self.set.get_or_insert_with(|| self.ids.iter().copied().collect());
            if !set.insert(id) {
                return false;
            }
        }
        self.last = self.last.max(id);
        self.ids.push(id);
        true
    }
}

/// Parses task references. One malformed reference refuses all of them.
pub(crate) fn claims(tasks: TaskRefs<'_>) -> Result<impl Iterator<Item = Claim>, Refusal> {
    let read = |bytes: &&[u8]| match tasks.form {
        IdForm::Long => Claim::parse(bytes),
        IdForm::Short => TaskId::parse_short(bytes).map(Claim::Id),
    };
    let claims: Option<Vec<Claim>> = tasks.list.iter().map(read).collect();
    Ok(claims.ok_or(Refusal::MalformedId)?.into_iter())
}
