//! Tasks: one that was taken, and one that was only looked at.

use std::borrow::Cow;
use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};

use sureq_core::command::View;
use sureq_core::reply::{More, TaskView};
use sureq_core::task::Tries;
use sureq_core::{LogTime, TaskId};

use crate::Decode;
use crate::error::{BadPayload, Result};
use crate::home::Home;
use crate::id::{Id, Receipt};
use crate::queue::{Held, Queue};
use sureq_home_api::Payload;

/// A task that was taken. It is the taker's until its lease ends; dropping it does nothing, so that it comes back then.
#[derive(Clone)]
pub struct Task {
    home: Home,
    queue: Arc<[u8]>,
    view: TaskView<Payload>,
    leased: Leased,
}

/// The lease that a pop gave.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Leased {
    /// When the answer came, whenever it was looked at.
    pub(crate) since: Instant,
    pub(crate) length: Option<Duration>,
}

impl Task {
    pub(crate) fn new(home: &Home, queue: &Arc<[u8]>, view: TaskView<Payload>, leased: Leased) -> Self {
        Self { home: home.clone(), queue: Arc::clone(queue), view, leased }
    }

    /// When the lease that its pop asked for ends, unless it was extended since. It is counted from when the answer began to come;
    /// a home elsewhere began to count a little earlier, by the time that its first byte took. None if the pop asked for no lease.
    pub fn lease_end(&self) -> Option<Instant> {
        self.leased.since.checked_add(self.leased.length?)
    }

    /// Since when it is its taker's.
    pub(crate) fn since(&self) -> Instant {
        self.leased.since
    }

    /// Its id.
    pub fn id(&self) -> Id {
        id_of(&self.view)
    }

    /// The receipt of this delivery. Where the home gives none, it is the task's id, which means whatever delivery is current: on
    /// `sureq://…` for a pop without a lease, and in the keys of other programs.
    pub fn receipt(&self) -> Receipt {
        match &self.view.foreign_id {
            Some(foreign) => Receipt::foreign(foreign.clone()),
            // No store has this incarnation.
            None if self.view.incarnation == 0 => Receipt::of_current_delivery(self.view.id),
            None => Receipt::own(self.view.receipt()),
        }
    }

    /// Its bytes.
    pub fn payload(&self) -> &[u8] {
        self.view.body.as_ref()
    }

    /// What its bytes stand for.
    pub fn decode<T: Decode>(&self) -> Result<T, BadPayload> {
        T::decode(self.payload())
    }

    /// The name of its queue.
    pub fn queue_name(&self) -> Cow<'_, str> {
        String::from_utf8_lossy(&self.queue)
    }

    /// The name of its queue, which may be any bytes.
    pub fn queue_bytes(&self) -> &[u8] {
        &self.queue
    }

    /// Its queue.
    pub fn queue(&self) -> Queue {
        self.home.queue(&self.queue)
    }

    /// How often it has been delivered, this time included; at least once, where the home does not count it (see
    /// [`Task::receipt`]).
    pub fn delivery(&self) -> u32 {
        self.view.deliveries.max(1)
    }

    /// What else is known of it, if the pop asked for it.
    pub fn meta(&self) -> Option<&More> {
        self.view.more.as_deref()
    }

    /// Finishes it. It is [`Held::Lost`] if the lease had ended and somebody else has it now, or if it is finished already.
    pub async fn ack(&self) -> Result<Held> {
        self.queue().ack(self.receipt()).await
    }

    /// Moves the end of its lease to so long from now.
    pub async fn extend(&self, lease: Duration) -> Result<Held> {
        self.queue().extend(self.receipt(), lease).await
    }

    /// Gives it back to the front of the line, at no cost of a try.
    pub async fn give_back(&self) -> Result<Held> {
        self.queue().give_back(self.receipt()).await
    }

    /// Gives it back as failed: it comes again after its backoff, or is dead if that was its last try.
    pub async fn fail(&self, reason: impl AsRef<[u8]>) -> Result<Held> {
        self.queue().fail(self.receipt(), reason).await
    }
}

impl fmt::Debug for Task {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Task")
            .field("queue", &self.queue_name())
            .field("id", &self.id())
            .field("delivery", &self.delivery())
            .field("payload_bytes", &self.payload().len())
            .finish_non_exhaustive()
    }
}

/// A task that was looked at. What is told of it depends on the state that was asked for; it is the same in every home.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Seen {
    /// Its id.
    pub id: Id,
    /// Its bytes.
    pub payload: Payload,
    /// When it is due (delayed), was delivered last (leased) or died (dead), in unix milliseconds. For a ready one it is when it was
    /// pushed, as its id tells it, and 0 if that does not.
    pub at: LogTime,
    /// How long ago it was delivered last (leased).
    pub elapsed: Option<Duration>,
    /// How often it was delivered (leased).
    pub deliveries: Option<u32>,
    /// What it died of (dead).
    pub more: Option<Death>,
}

/// What a dead task died of.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Death {
    /// What its tries were spent on.
    pub tries: Tries,
    /// Why it failed last, if it did.
    pub reason: Option<Box<[u8]>>,
}

impl Seen {
    pub(crate) fn new(view: View, task: TaskView<Payload>) -> Self {
        let is_leased = view == View::Leased;
        let at = match view {
            View::Ready if task.at.0 == 0 => LogTime(task.id.ms()),
            _ => task.at,
        };
        Self {
            id: id_of(&task),
            payload: task.body,
            at,
            elapsed: is_leased.then(|| Duration::from_millis(task.elapsed_ms)),
            deliveries: is_leased.then_some(task.deliveries),
            more: task.more.map(|more| Death { tries: more.tries, reason: more.reason }),
        }
    }
}

fn id_of(view: &TaskView<Payload>) -> Id {
    match &view.foreign_id {
        Some(foreign) => Id::foreign(foreign.clone()),
        None if view.id == TaskId::NONE => Id::foreign_or_empty(None),
        None => Id::own(view.id),
    }
}
