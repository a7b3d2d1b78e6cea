//! What is known of one task.

use alloc::boxed::Box;
use alloc::vec::Vec;

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

    /// Appends bytes from which [`Body::unpack`] makes this handle again, given the same `before`: the one packed
    /// before it in the same run, `None` where a run begins. Answers false, and appends nothing, if this handle
    /// cannot be packed: it is then kept as it is.
    fn pack(&self, before: Option<&Self>, out: &mut Vec<u8>) -> bool;

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
    /// A keyed hash of its payload (`UNIQUE`). No bytes ever equal it.
    PayloadHash(u128),
}

/// Where a ready task stands in the line: the smallest rank is handed out next.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Rank {
    /// The priority, negated so that larger ones come first.
    pub lane: i16,
    /// A plain push has its id here; what went to the back, the last id of that moment; what went to the front, a
    /// negative number that falls with every group.
    pub major: i64,
    /// Order among equals. Zero for a plain push.
    pub minor: u64,
}

impl Rank {
    /// Where a plain push stands.
    pub const fn plain(id: TaskId) -> Self {
        // Ids have 59 bits.
        Self { lane: 0, major: id.raw().cast_signed(), minor: 0 }
    }

    /// The lane of a priority.
    pub const fn lane_of(priority: i8) -> i16 {
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
pub enum State {
    /// Waiting and due.
    Ready(Rank),
    /// Not due yet.
    Delayed(Due),
    /// Some worker has it.
    Leased(Lease),
    /// Given up, at this time.
    Dead(LogTime),
}

impl State {
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
pub struct Lease {
    /// When it began.
    pub start: LogTime,
    /// Which of the queue's deliveries it is: what is given back together keeps this order.
    pub seq: u64,
    /// What ends it, if anything but its holder does. A plain pop has none and pays for none.
    pub terms: Option<Box<Terms>>,
}

impl Lease {
    /// When it runs out.
    pub fn deadline(&self) -> Option<LogTime> {
        Some(self.terms.as_ref()?.deadline?.at)
    }

    /// The worker or connection it ends with.
    pub fn holder(&self) -> Option<Holder> {
        self.terms.as_ref()?.holder
    }

    /// Whether nothing but its holder, or RECOVER, ends it.
    pub fn is_open_ended(&self) -> bool {
        self.terms.as_ref().is_none_or(|t| t.deadline.is_none() && t.holder.is_none())
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
    /// Why it failed or died last.
    pub reason: Option<Box<[u8]>>,
    /// Its last deliveries, once it was delivered and came back.
    pub past: Vec<Past>,
    /// The trace context of its producer. Kept, not yet used.
    pub trace: Option<Box<[u8]>>,
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
    pub state: State,
    /// The incarnation of the store that delivered it last.
    pub incarnation: u64,
    /// How often it was delivered.
    pub deliveries: u32,
    /// What its tries were spent on.
    pub tries: Tries,
    /// Larger first.
    pub priority: i8,
    /// Called off while leased.
    pub cancelled: bool,
    /// Waits again after a lapse or a lost worker, so that the late ack of its id still counts.
    pub late_ack: bool,
    /// What only some tasks have.
    pub extras: Option<Box<Extras>>,
}

impl<B> Task<B> {
    /// A task as pushed.
    pub const fn new(id: TaskId, body: B, pushed: LogTime, state: State) -> Self {
        Self {
            id,
            body,
            pushed,
            state,
            incarnation: 0,
            deliveries: 0,
            tries: Tries { failed: 0, lapsed: 0, lost: 0 },
            priority: 0,
            cancelled: false,
            late_ack: false,
            extras: None,
        }
    }

    /// The lease, if it is leased.
    pub const fn lease(&self) -> Option<&Lease> {
        match &self.state {
            State::Leased(lease) => Some(lease),
            _ => None,
        }
    }

    /// Whether it is ready or delayed.
    pub const fn waits(&self) -> bool {
        matches!(self.state, State::Ready(_) | State::Delayed(_))
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

    /// Its extras, made if need be.
    pub fn extras_mut(&mut self) -> &mut Extras {
        self.extras.get_or_insert_default()
    }

    /// Takes its time to live away, as if it never had one.
    pub fn live_on(&mut self) {
        if let Some(extras) = &mut self.extras {
            extras.expires = None;
        }
        // Equal states look the same, so that a digest can tell them apart from others.
        self.extras.take_if(|extras| **extras == Extras::default());
    }

    /// Remembers a delivery that is over; only the last few are kept.
    pub fn remember(&mut self, past: Past) {
        let kept = &mut self.extras_mut().past;
        if kept.len() >= limits::DELIVERIES_KEPT {
            kept.remove(0);
        }
        kept.push(past);
    }
}
