//! The record of a task: its state, its lease, its position in the order of delivery, its history.

use alloc::boxed::Box;
use alloc::vec::Vec;
use core::mem;

use crate::command::{ConnId, LapsePolicy};
use crate::id::{Receipt, TaskId};
use crate::limits;
use crate::time::{LogTime, WallTime};

/// The handle of a payload. The core stores it and never looks inside.
///
/// Waiting tasks are packed into runs of bytes, together with their handles ([`Body::pack`]). A handle that owns
/// memory cannot be packed; it is kept beside its run and dropped with its task.
pub trait Body: Clone {
    /// The length of the payload in bytes.
    fn len(&self) -> usize;

    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Whether the payload equals `payload`; `None` if the handle cannot compare it.
    fn is(&self, payload: &[u8]) -> Option<bool>;

    /// The memory that the handle owns, in bytes. A packed handle owns none.
    fn owned_bytes(&self) -> usize {
        0
    }

    /// Appends bytes from which [`Body::unpack`] restores the handle, given the same `before`: the handle packed
    /// before it in the same run, or `None` at the start of a run. Returns false and appends nothing if the handle
    /// cannot be packed.
    fn pack(&self, before: Option<&Self>, out: &mut Vec<u8>) -> bool;

    /// Whether [`Body::unpack`] would restore this handle from all of these bytes. A shortcut for handles that can
    /// decide this faster than by packing; false is always a correct result.
    fn is_unpacked_from(&self, before: Option<&Self>, bytes: &[u8]) -> bool {
        let _ = (before, bytes);
        false
    }

    /// Restores the handle at the start of `bytes`, and returns the rest of them; `None` if there is no valid handle.
    /// The bytes may come from a damaged disk, so this must never panic.
    fn unpack<'b>(before: Option<&Self>, bytes: &'b [u8]) -> Option<(Self, &'b [u8])>;
}

/// The state of a task, without its details.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum StateKind {
    /// Waiting for a delivery.
    Ready,
    /// Not due yet.
    Delayed,
    /// Delivered to a worker, and not finished yet.
    Leased,
    /// Given up; kept until it is revived or deleted.
    Dead,
}

/// The tries of a task, by how they ended.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Tries {
    /// The worker reported a failure.
    pub failed: u32,
    pub lapsed: u32,
    pub lost: u32,
}

impl Tries {
    pub const fn total(self) -> u32 {
        self.failed.saturating_add(self.lapsed).saturating_add(self.lost)
    }

    /// The number of tries that ended without an action of the worker: lapses and lost workers.
    pub const fn unfinished(self) -> u32 {
        self.lapsed.saturating_add(self.lost)
    }

    /// Counts a try, if the cause costs one.
    pub fn count(&mut self, cause: Cause) {
        let counter = match cause {
            Cause::Free => return,
            Cause::Failed => &mut self.failed,
            Cause::Lapsed => &mut self.lapsed,
            Cause::Lost => &mut self.lost,
        };
        *counter = counter.saturating_add(1);
    }
}

/// The reason why a delivery ended without the task being finished.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Cause {
    /// It was returned without a failure. Costs no try.
    Free,
    /// The worker reported a failure.
    Failed,
    /// The deadline of the lease passed.
    Lapsed,
    Lost,
}

/// The name of a task, unique in its queue.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Name {
    /// Bytes that the producer chose.
    Bytes(Box<[u8]>),
    /// A keyed hash of the payload (`UNIQUE`). It never equals a name of bytes. An array, because the alignment of a
    /// `u128` would make every type that contains a name larger.
    PayloadHash([u8; 16]),
}

/// The order of ready tasks of one priority: the smallest key is delivered first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct OrderKey {
    /// The id of a pushed task; the last id at that moment for a task that went to the back; a negative number,
    /// smaller with every group, for a task that went to the front.
    pub major: i64,
    /// Order among tasks of the same `major`. Zero for a pushed task.
    pub minor: u64,
}

impl OrderKey {
    /// The key of a pushed task is its id, so that pushed tasks are delivered in the order of their ids.
    pub const fn pushed(id: TaskId) -> Self {
        // The cast is lossless: ids have 59 bits.
        Self { major: id.raw().cast_signed(), minor: 0 }
    }
}

/// The order of all ready tasks of a queue: the smallest rank is delivered first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Rank {
    /// The priority, negated so that larger priorities sort first.
    pub neg_priority: i16,
    /// Order within the priority.
    pub order: OrderKey,
}

impl Rank {
    /// The rank of a pushed task without a priority.
    pub const fn pushed(id: TaskId) -> Self {
        Self::of(0, OrderKey::pushed(id))
    }

    /// The rank of a task with this priority.
    pub const fn of(priority: i8, order: OrderKey) -> Self {
        Self { neg_priority: Self::negated(priority), order }
    }

    /// The priority as it is compared: higher priorities come first, so they are lower numbers.
    pub const fn negated(priority: i8) -> i16 {
        -(priority as i16)
    }
}

/// The time at which a delayed task is due, by one of two clocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Due {
    Log(LogTime),
    Wall(WallTime),
}

/// The state of a task, with its details.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum TaskState {
    /// Waiting for a delivery. The rest of its rank follows from the priority.
    Ready(OrderKey),
    /// Not due yet.
    Delayed(Due),
    /// Delivered to a worker.
    Leased(Lease),
    /// Dead since this time.
    Dead(LogTime),
}

impl TaskState {
    /// The state without its details.
    pub const fn kind(&self) -> StateKind {
        match self {
            Self::Ready(_) => StateKind::Ready,
            Self::Delayed(_) => StateKind::Delayed,
            Self::Leased(_) => StateKind::Leased,
            Self::Dead(_) => StateKind::Dead,
        }
    }
}

/// A lease: the delivery of a task to a worker, until it is finished or returned.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Lease(LeaseForm);

/// A plain pop has no terms and costs no memory for them. Terms are never empty, so that equal leases have equal
/// forms.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum LeaseForm {
    Plain {
        start: LogTime,
        seq: u64,
    },
    /// The start is in the box, because beside the pointer it would make every record larger.
    OnTerms {
        seq: u64,
        boxed: Box<StartAndTerms>,
    },
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct StartAndTerms {
    start: LogTime,
    terms: Terms,
}

impl Lease {
    pub(crate) const fn boxed_bytes(&self) -> usize {
        match &self.0 {
            LeaseForm::Plain { .. } => 0,
            LeaseForm::OnTerms { .. } => size_of::<StartAndTerms>(),
        }
    }

    /// Delivery number `seq` of the queue, which begins at `start`.
    pub fn new(start: LogTime, seq: u64, terms: Terms) -> Self {
        Self(if terms.is_none() {
            LeaseForm::Plain { start, seq }
        } else {
            LeaseForm::OnTerms { seq, boxed: Box::new(StartAndTerms { start, terms }) }
        })
    }

    pub const fn start(&self) -> LogTime {
        match &self.0 {
            LeaseForm::Plain { start, .. } => *start,
            LeaseForm::OnTerms { boxed, .. } => boxed.start,
        }
    }

    /// The number of the delivery in its queue. Tasks that are requeued together keep this order.
    pub const fn seq(&self) -> u64 {
        match self.0 {
            LeaseForm::Plain { seq, .. } | LeaseForm::OnTerms { seq, .. } => seq,
        }
    }

    /// The terms; `None` if only its holder ends the lease.
    pub const fn terms(&self) -> Option<&Terms> {
        match &self.0 {
            LeaseForm::Plain { .. } => None,
            LeaseForm::OnTerms { boxed, .. } => Some(&boxed.terms),
        }
    }

    /// The time at which it lapses.
    pub fn deadline(&self) -> Option<LogTime> {
        Some(self.terms()?.deadline?.at)
    }

    /// The worker or connection with which it ends.
    pub fn holder(&self) -> Option<Holder> {
        self.terms()?.holder
    }

    /// Whether only its holder or RECOVER can end it.
    pub fn is_open_ended(&self) -> bool {
        self.terms().is_none_or(|t| t.deadline.is_none() && t.holder.is_none())
    }

    /// Turns it into another delivery on the same terms.
    pub fn begin_again(&mut self, at: LogTime, number: u64) {
        let (start, seq) = match &mut self.0 {
            LeaseForm::Plain { start, seq } => (start, seq),
            LeaseForm::OnTerms { seq, boxed } => (&mut boxed.start, seq),
        };
        (*start, *seq) = (at, number);
    }

    pub fn extend(&mut self, deadline: Deadline) {
        let deadline = Some(deadline);
        match &mut self.0 {
            LeaseForm::OnTerms { boxed, .. } => boxed.terms.deadline = deadline,
            LeaseForm::Plain { start, seq } => {
                *self = Self::new(*start, *seq, Terms { deadline, ..Terms::default() });
            }
        }
    }

    /// The deadline, for a change.
    pub fn deadline_mut(&mut self) -> Option<&mut Deadline> {
        match &mut self.0 {
            LeaseForm::Plain { .. } => None,
            LeaseForm::OnTerms { boxed, .. } => boxed.terms.deadline.as_mut(),
        }
    }
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Terms {
    /// The time at which the lease lapses.
    pub deadline: Option<Deadline>,
    /// The worker or connection with which the lease ends.
    pub holder: Option<Holder>,
    /// The consequences of a lapse, if they differ from the queue's defaults.
    pub lapse: Option<LapsePolicy>,
}

impl Terms {
    /// Whether there are no terms.
    pub const fn is_none(&self) -> bool {
        self.deadline.is_none() && self.holder.is_none() && self.lapse.is_none()
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Deadline {
    /// The time at which the lease lapses.
    pub at: LogTime,
    /// The length for which the lease was given or extended. After a restart, at least the smaller of this and a
    /// limit is left.
    pub length_ms: u64,
}

/// A worker or connection with which leases end.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Holder {
    /// A worker, by its incarnation.
    Worker(u64),
    Conn(ConnId),
}

/// A delivery that is over.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Past {
    /// The number of the delivery: 1 for the first delivery of the task.
    pub delivery: u32,
    /// The incarnation of the store when it began.
    pub incarnation: u64,
    pub start: LogTime,
    pub end: LogTime,
    /// The reason why it ended.
    pub cause: Cause,
}

/// The fields that only some tasks have. They are boxed, so that the others save the memory.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Extras {
    pub name: Option<Name>,
    /// The number of tries before the task is dead; `None` means the queue's default.
    pub tries_max: Option<u32>,
    /// The first wait of its backoff in milliseconds; `None` means the queue's default.
    pub backoff_ms: Option<u64>,
    /// The end of its time to live.
    pub expires: Option<LogTime>,
    /// The tries, by how they ended.
    pub tries: Tries,
    /// The reason of its last failure or death.
    pub reason: Option<Box<[u8]>>,
    /// The last deliveries that are over. An exact allocation, because most tasks have only one of them.
    pub past: Box<[Past]>,
    /// The trace context of its producer. Stored, but not used yet.
    pub trace: Option<Box<[u8]>>,
}

impl Extras {
    /// The form in which a task stores them: `None` if all fields are empty, so that equal tasks have equal digests.
    pub fn boxed(self) -> Option<Box<Self>> {
        (self != Self::default()).then(|| Box::new(self))
    }

    /// The memory of the extras in bytes. A name counts twice, since the index of names has a copy.
    fn bytes(&self) -> usize {
        let name = match &self.name {
            Some(Name::Bytes(name)) => 2 * name.len(),
            Some(Name::PayloadHash(_)) | None => 0,
        };
        let len = |bytes: &Option<Box<[u8]>>| bytes.as_ref().map_or(0, |bytes| bytes.len());
        size_of::<Self>() + name + len(&self.reason) + len(&self.trace) + size_of_val(&*self.past)
    }
}

/// The record of a task. Tasks that were pushed without options and have not changed since have none: they are
/// packed.
#[derive(Clone, Debug)]
pub struct Task<B> {
    pub id: TaskId,
    pub body: B,
    /// The log time of the push. Ages and times to live count from here; the time in the id is only approximate.
    pub pushed: LogTime,
    pub state: TaskState,
    /// The incarnation of the store at the last delivery.
    pub incarnation: u64,
    pub deliveries: u32,
    /// Larger priorities are delivered first.
    pub priority: i8,
    /// Whether it was cancelled while leased.
    pub cancelled: bool,
    /// Whether it was requeued after a lapse or a lost worker, so that an ack of its id still finishes it.
    pub late_ack: bool,
    /// The fields that only some tasks have.
    pub extras: Option<Box<Extras>>,
}

impl<B> Task<B> {
    /// A task that was never delivered.
    pub const fn new(id: TaskId, body: B, pushed: LogTime, state: TaskState) -> Self {
        Self {
            id,
            body,
            pushed,
            state,
            incarnation: 0,
            deliveries: 0,
            priority: 0,
            cancelled: false,
            late_ack: false,
            extras: None,
        }
    }

    pub const fn lease(&self) -> Option<&Lease> {
        match &self.state {
            TaskState::Leased(lease) => Some(lease),
            _ => None,
        }
    }

    /// The rank, if the task is ready.
    pub const fn rank(&self) -> Option<Rank> {
        match self.state {
            TaskState::Ready(order) => Some(Rank::of(self.priority, order)),
            _ => None,
        }
    }

    /// Whether the task is ready or delayed.
    pub const fn waits(&self) -> bool {
        matches!(self.state, TaskState::Ready(_) | TaskState::Delayed(_))
    }

    /// The receipt of its current or last delivery.
    pub const fn receipt(&self) -> Receipt {
        Receipt { id: self.id, incarnation: self.incarnation, delivery: self.deliveries }
    }

    /// The end of its time to live.
    pub fn expires(&self) -> Option<LogTime> {
        self.extras.as_ref()?.expires
    }

    pub fn name(&self) -> Option<&Name> {
        self.extras.as_ref()?.name.as_ref()
    }

    /// The tries, by how they ended.
    pub fn tries(&self) -> Tries {
        self.extras.as_ref().map_or_else(Tries::default, |extras| extras.tries)
    }

    /// The memory that it owns beside its record, in bytes.
    pub(crate) fn owned_bytes(&self) -> usize
    where
        B: Body,
    {
        let extras = self.extras.as_deref().map_or(0, Extras::bytes);
        self.body.owned_bytes() + self.lease().map_or(0, Lease::boxed_bytes) + extras
    }

    /// The extras, which are created if it has none.
    pub fn extras_mut(&mut self) -> &mut Extras {
        self.extras.get_or_insert_default()
    }

    /// Counts a try, if the cause costs one.
    pub fn count_try(&mut self, cause: Cause) {
        if cause != Cause::Free {
            self.extras_mut().tries.count(cause);
        }
    }

    /// Resets the count of its tries.
    pub fn restore_tries(&mut self) {
        self.take_away(|extras| extras.tries = Tries::default());
    }

    pub fn live_on(&mut self) {
        self.take_away(|extras| extras.expires = None);
    }

    pub fn become_nameless(&mut self) {
        self.take_away(|extras| extras.name = None);
    }

    /// Changes its extras, and removes them if all fields are empty ([`Extras::boxed`]).
    fn take_away(&mut self, take: impl FnOnce(&mut Extras)) {
        if let Some(extras) = &mut self.extras {
            take(extras);
        }
        self.extras.take_if(|extras| **extras == Extras::default());
    }

    /// Records a delivery that is over, and removes the oldest beyond the limit.
    pub fn remember(&mut self, past: Past) {
        let kept = &mut self.extras_mut().past;
        let mut all = mem::take(kept).into_vec();
        if all.len() >= limits::DELIVERIES_KEPT {
            all.remove(0);
        }
        all.reserve_exact(1);
        all.push(past);
        *kept = all.into_boxed_slice();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn task() -> Task<()> {
        Task::new(TaskId::new(1, 1).unwrap(), (), LogTime(0), TaskState::Dead(LogTime(0)))
    }

    #[test]
    fn removed_fields_leave_no_trace() {
        let check = |add: fn(&mut Task<()>), take: fn(&mut Task<()>)| {
            let mut task = task();
            add(&mut task);
            assert!(task.extras.is_some());
            task.extras_mut().tries_max = Some(5);
            take(&mut task);
            let left = Extras { tries_max: Some(5), ..Extras::default() };
            assert_eq!(task.extras.as_deref(), Some(&left), "the rest stays");
            task.extras_mut().tries_max = None;
            take(&mut task);
            assert_eq!(task.extras, None);
        };
        check(|task| task.count_try(Cause::Lapsed), Task::restore_tries);
        check(|task| task.extras_mut().expires = Some(LogTime(9)), Task::live_on);
        check(|task| task.extras_mut().name = Some(Name::PayloadHash([0; 16])), Task::become_nameless);
    }

    #[test]
    fn only_causes_that_cost_a_try_are_counted() {
        let mut task = task();
        task.count_try(Cause::Free);
        assert_eq!((task.tries(), &task.extras), (Tries::default(), &None));
        for cause in [Cause::Failed, Cause::Lost, Cause::Lost] {
            task.count_try(cause);
        }
        assert_eq!(task.tries(), Tries { failed: 1, lapsed: 0, lost: 2 });
    }

    #[test]
    fn equal_terms_give_equal_leases() {
        let deadline = Deadline { at: LogTime(9), length_ms: 8 };
        let terms = Terms { deadline: Some(deadline), ..Terms::default() };
        let mut extended = Lease::new(LogTime(1), 2, Terms::default());
        assert_eq!(extended.terms(), None);
        extended.extend(deadline);
        assert_eq!(extended, Lease::new(LogTime(1), 2, terms));
        extended.begin_again(LogTime(3), 4);
        assert_eq!((extended.start(), extended.seq(), extended.terms()), (LogTime(3), 4, Some(&terms)));
        let holder = Some(Holder::Worker(7));
        let mut held = Lease::new(LogTime(1), 2, Terms { holder, ..Terms::default() });
        held.extend(deadline);
        assert_eq!(held.terms(), Some(&Terms { holder, ..terms }));
    }
}
