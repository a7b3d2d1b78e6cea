//! [`Task`], a popped task, and [`Seen`], a task that was only inspected.

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

/// A popped task, leased to its consumer.
///
/// Finish it with [`Task::ack`], or return it with [`Task::requeue`] or [`Task::fail`]. Dropping it does nothing:
/// the task is requeued when its lease ends.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let emails = sureq::open("mem:")?.queue("emails");
/// # emails.push("to: ann").await?;
/// let task = emails.pop().lease(std::time::Duration::from_secs(30)).await?.expect("one was pushed");
/// match task.decode::<String>() {
///     Ok(address) => _ = task.ack().await?,
///     Err(error) => _ = task.fail(error.to_string()).await?,
/// }
/// # Ok(()) }
/// ```
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
    /// When the reply arrived.
    pub(crate) since: Instant,
    pub(crate) length: Option<Duration>,
}

impl Task {
    pub(crate) fn new(home: &Home, queue: &Arc<[u8]>, view: TaskView<Payload>, leased: Leased) -> Self {
        Self { home: home.clone(), queue: Arc::clone(queue), view, leased }
    }

    /// The end of the lease that the pop requested; extensions are not included. It is counted from the arrival of
    /// the reply: a remote home started to count earlier, by the latency of the network. `None` without a lease.
    pub fn lease_end(&self) -> Option<Instant> {
        self.leased.since.checked_add(self.leased.length?)
    }

    /// When the lease began.
    pub(crate) fn since(&self) -> Instant {
        self.leased.since
    }

    /// The id that the push returned; it stays the same over all deliveries.
    pub fn id(&self) -> Id {
        id_of(&self.view)
    }

    /// The receipt of this delivery. Homes without receipts (`sureq://…` for a pop without a lease, and the key
    /// layouts of other programs on Redis) use the id of the task instead, which refers to the current delivery.
    pub fn receipt(&self) -> Receipt {
        match &self.view.foreign_id {
            Some(foreign) => Receipt::foreign(foreign.clone()),
            // No store has this incarnation.
            None if self.view.incarnation == 0 => Receipt::of_current_delivery(self.view.id),
            None => Receipt::own(self.view.receipt()),
        }
    }

    /// The payload as it was pushed.
    pub fn payload(&self) -> &[u8] {
        self.view.body.as_ref()
    }

    /// Decodes the payload.
    pub fn decode<T: Decode>(&self) -> Result<T, BadPayload> {
        T::decode(self.payload())
    }

    /// The name of its queue; bytes that are not UTF-8 are replaced.
    pub fn queue_name(&self) -> Cow<'_, str> {
        String::from_utf8_lossy(&self.queue)
    }

    /// The exact name of its queue.
    pub fn queue_bytes(&self) -> &[u8] {
        &self.queue
    }

    /// The queue that the task was popped from.
    pub fn queue(&self) -> Queue {
        self.home.queue(&self.queue)
    }

    /// The number of deliveries, including this one; 1 if the home does not count them (see [`Task::receipt`]).
    pub fn delivery(&self) -> u32 {
        self.view.deliveries.max(1)
    }

    /// Name, tries and more, if the pop requested it with [`PopOne::meta`](crate::PopOne::meta).
    pub fn meta(&self) -> Option<&More> {
        self.view.more.as_deref()
    }

    /// Finishes the task. [`Held::Lost`] means that the lease ended and the task was delivered again, or that it is
    /// finished already.
    pub async fn ack(&self) -> Result<Held> {
        self.queue().ack(self.receipt()).await
    }

    /// Extends the lease: it then ends `lease` from now.
    pub async fn extend(&self, lease: Duration) -> Result<Held> {
        self.queue().extend(self.receipt(), lease).await
    }

    /// Returns the task to the front of its queue, at no cost of a try.
    pub async fn requeue(&self) -> Result<Held> {
        self.queue().requeue(self.receipt()).await
    }

    /// Fails the try: the task is retried after its backoff, or dead if that was its last try.
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

/// An inspected task. Which fields are set depends on the inspected state, and is the same in every home.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Seen {
    /// The id that the push returned.
    pub id: Id,
    /// The payload as it was pushed.
    pub payload: Payload,
    /// When it is due (delayed), was last delivered (leased) or died (dead), in unix milliseconds. For a ready task
    /// it is the time of its push, taken from its id, or 0 if the id contains no time.
    pub at: LogTime,
    /// The time since its last delivery (leased).
    pub elapsed: Option<Duration>,
    /// The number of its deliveries (leased).
    pub deliveries: Option<u32>,
    /// Why it died (dead).
    pub more: Option<Death>,
}

/// Why a task died.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Death {
    /// Its tries by how they ended.
    pub tries: Tries,
    /// The reason of its last failure, if it failed.
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
