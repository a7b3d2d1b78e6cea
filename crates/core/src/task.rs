//! What is known of one task.

use alloc::boxed::Box;
use alloc::vec::Vec;
use core::mem;

use crate::command::{ConnId, LapsePolicy};
use crate::id::{Receipt, TaskId};
use crate::limits;
use crate::time::{LogTime, WallTime};

/// A handle to a task's payload. The core moves it about and never looks inside.
///
/// Waiting tasks are kept in packed runs, where a handle is a few bytes: what [`Body::pack`] makes of it. A handle
/// that owns memory says that it cannot be packed; it is kept beside its run, and dropped with its task.
pub trait Body: Clone {
    /// How many bytes the payload has.
    fn len(&self) -> usize;

    /// Whether it has none.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Whether the payload is this one, as far as the handle can tell.
    fn is(&self, payload: &[u8]) -> Option<bool>;

    /// How many bytes of memory a handle owns that cannot be packed.
    fn owned_bytes(&self) -> usize {
        0
    }

    /// Appends bytes from which [`Body::unpack`] makes this handle again, given the same `before`: the one packed
    /// before it in the same run, `None` where a run begins. Answers false, and appends nothing, if this handle
    /// cannot be packed: it is then kept as it is.
    fn pack(&self, before: Option<&Self>, out: &mut Vec<u8>) -> bool;

    /// Whether [`Body::unpack`] makes this handle of all of these bytes. No is always a right answer: it is for handles of which
    /// that is known for less than packing them costs.
    fn is_unpacked_from(&self, before: Option<&Self>, bytes: &[u8]) -> bool {
        let _ = (before, bytes);
        false
    }

    /// The handle at the start of `bytes` and what is behind it; `None` if the bytes are not one. They may be
    /// anything: this never panics.
    fn unpack<'b>(before: Option<&Self>, bytes: &'b [u8]) -> Option<(Self, &'b [u8])>;
}

/// The state of a task, without its details.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum StateKind {
    /// Waiting and due.
    Ready,
    /// Not due yet.
    Delayed,
    /// Some worker has it.
    Leased,
    /// Given up.
    Dead,
}

/// What tries were spent on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Tries {
    /// Its worker said so.
    pub failed: u32,
    /// Its lease ran out.
    pub lapsed: u32,
    /// Its worker was lost.
    pub lost: u32,
}

impl Tries {
    /// All of them.
    pub const fn total(self) -> u32 {
        self.failed.saturating_add(self.lapsed).saturating_add(self.lost)
    }

    /// Those that ended without a word of the worker: lapses and lost workers together.
    pub const fn unfinished(self) -> u32 {
        self.lapsed.saturating_add(self.lost)
    }

    /// Counts one more, if the cause costs one.
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

/// Why a delivery ended without the task being finished.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Cause {
    /// Given back in good order; costs no try.
    Free,
    /// Its worker said that it failed.
    Failed,
    /// Its deadline passed.
    Lapsed,
    /// Its worker was lost.
    Lost,
}

/// What a task is called, besides its id.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Name {
    /// What its producer chose.
    Bytes(Box<[u8]>),
    /// A keyed hash of its payload (`UNIQUE`). No bytes ever equal it. It is kept as bytes because a `u128` would have to
    /// lie at multiples of 16, which makes all that holds a name larger.
    PayloadHash([u8; 16]),
}

/// Orders ready tasks of one priority: the smallest is handed out first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct OrderKey {
    /// A plain push has its id here; what went to the back, the last id of that moment; what went to the front, a
    /// negative number that falls with every group.
    pub major: i64,
    /// Order among equals. Zero for a plain push.
    pub minor: u64,
}

impl OrderKey {
    /// The key of a task that was pushed.
    pub const fn pushed(id: TaskId) -> Self {
        // Ids have 59 bits.
        Self { major: id.raw().cast_signed(), minor: 0 }
    }
}

/// Orders all ready tasks of a queue: the smallest rank is handed out next.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Rank {
    /// The priority, negated so that larger ones come first.
    pub neg_priority: i16,
    /// Order within the priority.
    pub order: OrderKey,
}

impl Rank {
    /// Where a plain push stands.
    pub const fn pushed(id: TaskId) -> Self {
        Self::of(0, OrderKey::pushed(id))
    }

    /// Where a task of this priority stands.
    pub const fn of(priority: i8, order: OrderKey) -> Self {
        Self { neg_priority: Self::negated(priority), order }
    }

    /// The priority, negated.
    pub const fn negated(priority: i8) -> i16 {
        -(priority as i16)
    }
}

/// When a delayed task is due, and by which clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Due {
    /// By log time.
    Log(LogTime),
    /// By the wall clock.
    Wall(WallTime),
}

/// The state of a task that has a record of its own.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum TaskState {
    /// Waiting and due. The rest of its rank follows from the priority.
    Ready(OrderKey),
    /// Not due yet.
    Delayed(Due),
    /// Some worker has it.
    Leased(Lease),
    /// Given up, at this time.
    Dead(LogTime),
}

impl TaskState {
    /// Without the details.
    pub const fn kind(&self) -> StateKind {
        match self {
            Self::Ready(_) => StateKind::Ready,
            Self::Delayed(_) => StateKind::Delayed,
            Self::Leased(_) => StateKind::Leased,
            Self::Dead(_) => StateKind::Dead,
        }
    }
}

/// A delivery to a worker.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Lease(LeaseForm);

/// A plain pop has no terms and pays for none. Where there are terms they are never empty, so that equal leases look
/// the same.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum LeaseForm {
    Plain {
        start: LogTime,
        seq: u64,
    },
    /// The start is in the box because there is no room for it beside the pointer: it would make every record larger.
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
    /// The bytes of what it has in a box.
    pub(crate) const fn boxed_bytes(&self) -> usize {
        match &self.0 {
            LeaseForm::Plain { .. } => 0,
            LeaseForm::OnTerms { .. } => size_of::<StartAndTerms>(),
        }
    }

    /// A delivery that begins at `start`, on these terms if there are any.
    pub fn new(start: LogTime, seq: u64, terms: Terms) -> Self {
        Self(if terms.is_none() {
            LeaseForm::Plain { start, seq }
        } else {
            LeaseForm::OnTerms { seq, boxed: Box::new(StartAndTerms { start, terms }) }
        })
    }

    /// When it began.
    pub const fn start(&self) -> LogTime {
        match &self.0 {
            LeaseForm::Plain { start, .. } => *start,
            LeaseForm::OnTerms { boxed, .. } => boxed.start,
        }
    }

    /// Which of the queue's deliveries it is: what is given back together keeps this order.
    pub const fn seq(&self) -> u64 {
        match self.0 {
            LeaseForm::Plain { seq, .. } | LeaseForm::OnTerms { seq, .. } => seq,
        }
    }

    /// What ends it, if anything but its holder does.
    pub const fn terms(&self) -> Option<&Terms> {
        match &self.0 {
            LeaseForm::Plain { .. } => None,
            LeaseForm::OnTerms { boxed, .. } => Some(&boxed.terms),
        }
    }

    /// When it runs out.
    pub fn deadline(&self) -> Option<LogTime> {
        Some(self.terms()?.deadline?.at)
    }

    /// The worker or connection it ends with.
    pub fn holder(&self) -> Option<Holder> {
        self.terms()?.holder
    }

    /// Whether nothing but its holder, or RECOVER, ends it.
    pub fn is_open_ended(&self) -> bool {
        self.terms().is_none_or(|t| t.deadline.is_none() && t.holder.is_none())
    }

    /// Makes it another delivery on the same terms.
    pub fn begin_again(&mut self, at: LogTime, number: u64) {
        let (start, seq) = match &mut self.0 {
            LeaseForm::Plain { start, seq } => (start, seq),
            LeaseForm::OnTerms { seq, boxed } => (&mut boxed.start, seq),
        };
        (*start, *seq) = (at, number);
    }

    /// Gives it this deadline instead of the one it had, if any.
    pub fn extend(&mut self, deadline: Deadline) {
        let deadline = Some(deadline);
        match &mut self.0 {
            LeaseForm::OnTerms { boxed, .. } => boxed.terms.deadline = deadline,
            LeaseForm::Plain { start, seq } => {
                *self = Self::new(*start, *seq, Terms { deadline, ..Terms::default() });
            }
        }
    }

    /// Its deadline, to be moved.
    pub fn deadline_mut(&mut self) -> Option<&mut Deadline> {
        match &mut self.0 {
            LeaseForm::Plain { .. } => None,
            LeaseForm::OnTerms { boxed, .. } => boxed.terms.deadline.as_mut(),
        }
    }
}

/// What ends a lease.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Terms {
    /// A point in time.
    pub deadline: Option<Deadline>,
    /// The end of a worker or of a connection.
    pub holder: Option<Holder>,
    /// What a lapse does, instead of the queue's defaults.
    pub lapse: Option<LapsePolicy>,
}

impl Terms {
    /// Whether there are none.
    pub const fn is_none(&self) -> bool {
        self.deadline.is_none() && self.holder.is_none() && self.lapse.is_none()
    }
}

/// The deadline of a lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Deadline {
    /// When.
    pub at: LogTime,
    /// How long the lease was given or extended for; a restart is measured by it.
    pub length_ms: u64,
}

/// Whose end is the end of a lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Holder {
    /// This incarnation of a worker.
    Worker(u64),
    /// This connection.
    Conn(ConnId),
}

/// A delivery that is over.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Past {
    /// Which one it was.
    pub delivery: u32,
    /// In which incarnation of the store.
    pub incarnation: u64,
    /// When it began.
    pub start: LogTime,
    /// When it ended.
    pub end: LogTime,
    /// Why.
    pub cause: Cause,
}

/// What only some tasks have; the others do not pay for it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Extras {
    /// Its name.
    pub name: Option<Name>,
    /// Tries before it is dead, if not the queue's.
    pub tries_max: Option<u32>,
    /// The first wait of its backoff, if not the queue's.
    pub backoff_ms: Option<u64>,
    /// When its time to live is over.
    pub expires: Option<LogTime>,
    /// What its tries were spent on.
    pub tries: Tries,
    /// Why it failed or died last.
    pub reason: Option<Box<[u8]>>,
    /// Its last deliveries, once it was delivered and came back. Most come back once: there is no room for more than there
    /// are.
    pub past: Box<[Past]>,
    /// The trace context of its producer. Kept, not yet used.
    pub trace: Option<Box<[u8]>>,
}

impl Extras {
    /// As a task has them: not at all if there is nothing in them, so that equal states look the same and a digest can
    /// tell them apart from others.
    pub fn boxed(self) -> Option<Box<Self>> {
        (self != Self::default()).then(|| Box::new(self))
    }

    /// The bytes of it and of all that it has. A name is there twice: the index of names has it too.
    fn bytes(&self) -> usize {
        let name = match &self.name {
            Some(Name::Bytes(name)) => 2 * name.len(),
            Some(Name::PayloadHash(_)) | None => 0,
        };
        let len = |bytes: &Option<Box<[u8]>>| bytes.as_ref().map_or(0, |bytes| bytes.len());
        size_of::<Self>() + name + len(&self.reason) + len(&self.trace) + size_of_val(&*self.past)
    }
}

/// A task with a record of its own: every one but those that were plainly pushed and never touched since.
#[derive(Clone, Debug)]
pub struct Task<B> {
    /// Its id.
    pub id: TaskId,
    /// Its payload.
    pub body: B,
    /// When it was pushed. Ages and times to live count from here, never from the id.
    pub pushed: LogTime,
    /// Where it is in its life.
    pub state: TaskState,
    /// The incarnation of the store that delivered it last.
    pub incarnation: u64,
    /// How often it was delivered.
    pub deliveries: u32,
    /// Larger first.
    pub priority: i8,
    /// Cancelled while leased.
    pub cancelled: bool,
    /// Waits again after a lapse or a lost worker, so that the late ack of its id still counts.
    pub late_ack: bool,
    /// What only some tasks have.
    pub extras: Option<Box<Extras>>,
}

impl<B> Task<B> {
    /// A task as pushed.
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

    /// The lease, if it is leased.
    pub const fn lease(&self) -> Option<&Lease> {
        match &self.state {
            TaskState::Leased(lease) => Some(lease),
            _ => None,
        }
    }

    /// Where it stands in the line, if it is ready.
    pub const fn rank(&self) -> Option<Rank> {
        match self.state {
            TaskState::Ready(order) => Some(Rank::of(self.priority, order)),
            _ => None,
        }
    }

    /// Whether it is ready or delayed.
    pub const fn waits(&self) -> bool {
        matches!(self.state, TaskState::Ready(_) | TaskState::Delayed(_))
    }

    /// The receipt of its current or last delivery.
    pub const fn receipt(&self) -> Receipt {
        Receipt { id: self.id, incarnation: self.incarnation, delivery: self.deliveries }
    }

    /// When its time to live is over.
    pub fn expires(&self) -> Option<LogTime> {
        self.extras.as_ref()?.expires
    }

    /// Its name.
    pub fn name(&self) -> Option<&Name> {
        self.extras.as_ref()?.name.as_ref()
    }

    /// What its tries were spent on.
    pub fn tries(&self) -> Tries {
        self.extras.as_ref().map_or_else(Tries::default, |extras| extras.tries)
    }

    /// The bytes of all that it has beside its record.
    pub(crate) fn owned_bytes(&self) -> usize
    where
        B: Body,
    {
        let extras = self.extras.as_deref().map_or(0, Extras::bytes);
        self.body.owned_bytes() + self.lease().map_or(0, Lease::boxed_bytes) + extras
    }

    /// Its extras, made if need be.
    pub fn extras_mut(&mut self) -> &mut Extras {
        self.extras.get_or_insert_default()
    }

    /// Counts a try, if the cause costs one.
    pub fn count_try(&mut self, cause: Cause) {
        if cause != Cause::Free {
            self.extras_mut().tries.count(cause);
        }
    }

    /// Gives it back all its tries, as if none had been spent.
    pub fn restore_tries(&mut self) {
        self.take_away(|extras| extras.tries = Tries::default());
    }

    /// Takes its time to live away, as if it never had one.
    pub fn live_on(&mut self) {
        self.take_away(|extras| extras.expires = None);
    }

    /// Takes its name away, as if it never had one.
    pub fn become_nameless(&mut self) {
        self.take_away(|extras| extras.name = None);
    }

    /// Takes something out of its extras, and those if nothing is left: see [`Extras::boxed`].
    fn take_away(&mut self, take: impl FnOnce(&mut Extras)) {
        if let Some(extras) = &mut self.extras {
            take(extras);
        }
        self.extras.take_if(|extras| **extras == Extras::default());
    }

    /// Remembers a delivery that is over; only the last few are kept.
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
    fn what_was_taken_away_leaves_no_trace() {
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
    fn only_what_costs_a_try_is_counted() {
        let mut task = task();
        task.count_try(Cause::Free);
        assert_eq!((task.tries(), &task.extras), (Tries::default(), &None));
        for cause in [Cause::Failed, Cause::Lost, Cause::Lost] {
            task.count_try(cause);
        }
        assert_eq!(task.tries(), Tries { failed: 1, lapsed: 0, lost: 2 });
    }

    #[test]
    fn a_lease_is_the_same_whichever_way_it_came_to_its_terms() {
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
