//! Key layouts: which keys a queue has in Redis, and therefore which script executes its commands.
//!
//! `OwnLayout` is sureq's own and supports every command. Other crates add the layouts of other programs, so that
//! their clients and sureq share queues: they implement [`Layout`] and [`LayoutSession`], and pass [`Layouts`] to
//! [`Target::parse_with`]. `sureq-redis-compat` is such a crate.
//!
//! - [`Call`] is one call of the script; [`AnswerForm`] says how its answer becomes a reply.
//! - [`HomeThread`] is the home as a session sees it: it sends calls, and has the [`Waiters`] that wait for tasks.

pub(crate) mod channels;
pub(crate) mod deliveries;
pub(crate) mod keys;
mod options;
pub(crate) mod own;
mod services;

use std::any::Any;
use std::borrow::Cow;
use std::fmt;
use std::rc::Rc;
use std::sync::Arc;

use futures_util::future::LocalBoxFuture;
use redis::{Cmd, Value};
use sureq_core::command::Command;
use sureq_core::notice::Kind;
use sureq_core::{Refusal, Replies};
use sureq_home_api::elsewhere::PopOf;
use sureq_home_api::{CleanReport, Cleaning, NoticeTasks, Payload};

pub use crate::connection::link::{Patience, refusal_of};
use crate::connection::target::Target;
pub use crate::script::answer::{Ids, UnexpectedAnswer, bytes, fields, is_again, list, number};
pub use crate::script::call::{AnswerForm, Call, ListForm, PopForm, PopRoom, SliceForm};
use crate::script::clock::Clock;
pub use crate::script::clock::Late;
pub use crate::script::slices::{SLICE, is_long};
pub use crate::thread::HomeThread;
pub use crate::waiting::index::Waiter;
pub use crate::waiting::subscription::{HANGS, SILENCE, SubscriptionRequest, still_there};
pub use crate::waiting::waiters::{SubscriptionRequests, Waiters};
pub use channels::Channels;
pub use options::{FindLayout, LayoutOptions, Layouts};
pub(crate) use own::OwnLayout;

/// The keys that queues have in Redis, and how commands are executed on them.
///
/// An implementation guarantees:
///
/// 1. **One call is one script.** [`Self::call_of`] turns a command into one [`Call`], or refuses it by name. The
///    script executes it atomically, answers in the form that [`AnswerForm`] describes, and is bounded: it touches
///    about [`SLICE`] tasks, and answers a cursor, or `again`, if there is more to do.
/// 2. **The script's arguments** are `KEYS` as [`Self::keys`] returns them, and `ARGV`: the operation, the prefix, the
///    header that [`LayoutSession::header`] writes, and the arguments of the call. It answers a pair: a number for
///    [`LayoutSession::answered`], and the answer itself. A refusal is `{'!', CODE}` or `{'!', CODE, detail}`, and has
///    changed nothing.
/// 3. **All keys of a call share a hash slot**: that of the prefix, or with [`Self::spans_slots`] that of the queue.
/// 4. **A pop that finds nothing answers an empty list.** The home keeps the pop as a waiter; [`Self::waiting`] says
///    how it is woken.
/// 5. **`requeue`** is an operation of every script: it takes a queue and the ids of tasks that a pop delivered and
///    that did not reach their caller, and requeues them at the front at no cost.
/// 6. **A layout holds no state.** State belongs to the session, of which each open home has one.
pub trait Layout: Any + fmt::Debug + Send + Sync {
    /// The name by which a URL selects it: `layout=NAME`.
    fn name(&self) -> &'static str;

    /// The prefix of all keys, if the URL has none.
    fn prefix(&self) -> &'static str {
        ""
    }

    /// The Lua source, which ends with the function `run(KEYS, ARGV)`.
    fn script(&self) -> Cow<'static, str>;

    /// The call for a command that is within the limits of the core. `home` distinguishes this home from others.
    fn call_of(&self, command: &Command<'_>, home: &str) -> Result<(Call, AnswerForm), Refusal>;

    /// The positions of the arguments of a pop.
    fn pop_form(&self) -> PopForm;

    /// Prepares a pop for its next slice, after its first `given` tasks were delivered.
    fn next_slice(&self, _pop: &mut Call, _given: usize) {}

    /// Whether a command takes several calls. `reply_bytes` is the expected size of its reply.
    fn is_sliced(&self, command: &Command<'_>, reply_bytes: usize) -> bool;

    /// How the calls of an operation are divided; `None` if no command needs it. Pops and lists of queues are divided
    /// in the same way in all layouts.
    fn slice_form(&self, op: &str) -> Option<SliceForm>;

    /// The format of ids in answers.
    fn ids(&self) -> Ids {
        Ids::Foreign
    }

    /// The key of a queue, or the beginning of its keys.
    fn queue_key(&self, prefix: &str, queue: &[u8]) -> Vec<u8>;

    /// The keys that a call about a queue, or about all of them, names. In a cluster one of them never exists: while a
    /// slot migrates, Redis executes no command that names a key that it does not find, and so no script finds half of
    /// a queue.
    fn keys(&self, target: &Target, queue: Option<&[u8]>) -> Vec<Vec<u8>> {
        let mut keys = vec![self.queue_key(target.prefix(), queue.unwrap_or_default())];
        if target.is_cluster() {
            keys.push([target.prefix().as_bytes(), b"absent"].concat());
        }
        keys
    }

    /// Whether queues of a cluster may lie in different slots. Otherwise the prefix must have a slot tag.
    fn spans_slots(&self) -> bool {
        false
    }

    /// The text before and after a queue's name in the channel for messages of a kind; none if scripts and clients of
    /// this layout publish nothing.
    fn channel(&self, _prefix: &str, _kind: &str) -> Option<(String, String)> {
        None
    }

    /// A channel on which an empty message shows whether this user may use all channels of this layout.
    fn probe_channel(&self, _prefix: &str) -> Option<Vec<u8>> {
        None
    }

    /// The tasks of a message on the channel for notices of a kind; `None` for any other message.
    fn notice(&self, kind: Kind, payload: &[u8]) -> Option<NoticeTasks> {
        NoticeTasks::parse(kind, payload)
    }

    /// How waiting pops are woken.
    fn wake_up(&self) -> WakeUp;

    /// Whether tasks become available when time passes, without a message. The script's operation `tick` then answers
    /// when.
    fn has_deadlines(&self) -> bool {
        false
    }

    /// Whether a task is held by a lease that ends.
    fn has_leases(&self) -> bool {
        false
    }

    /// Calls that every server gets when the home connects to it.
    fn first_calls(&self) -> Vec<Call> {
        Vec::new()
    }

    /// The state of one open home.
    fn session(&self, target: &Target) -> Rc<dyn LayoutSession>;
}

impl dyn Layout {
    pub fn downcast<L: Layout>(&self) -> Option<&L> {
        (self as &dyn Any).downcast_ref()
    }
}

/// How waiting pops are woken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WakeUp {
    /// The home subscribes to the channels `work` and `wake` of each queue with waiters; their messages wake these.
    Published,
    /// The session watches each queue with waiters ([`LayoutSession::wake_waiters`]) and calls [`Waiters::try_soon`]
    /// when one may have a task.
    Watched,
    /// The session pops tasks from the queue itself and hands them to waiters ([`LayoutSession::wake_waiters`]).
    Taken,
}

/// Values that [`LayoutSession::header`] may write into a call.
pub struct HeaderContext<'a> {
    /// The result of [`LayoutSession::time`] for this batch.
    pub time: &'a str,
    /// Distinguishes this home from others.
    pub home: &'a str,
    /// The id of this run of the server.
    pub run_id: &'a str,
    pub clock: &'a dyn Clock,
}

/// When a call was sent and answered, in microseconds of the monotonic clock.
#[derive(Clone, Copy, Debug)]
pub struct Exchange {
    pub sent_us: u64,
    pub answered_us: u64,
}

/// The state that an open home keeps for its layout. It lives on the thread of the home, which calls every method.
///
/// An implementation guarantees:
///
/// 1. No method blocks the thread; futures wait for Redis and for time only.
/// 2. [`Self::start`] spawns background work as local tasks, which end with the home.
/// 3. After [`Self::close`] nothing takes a task from a queue any more.
pub trait LayoutSession {
    /// Starts background work. The home is connected.
    fn start(self: Rc<Self>, _home: &Rc<HomeThread>) {}

    /// The time as all calls of a batch report it. If a script has refused the time of the last attempt, this is for
    /// the next attempt.
    fn time(&self, _now_us: u64, _late: Option<Late>) -> String {
        String::new()
    }

    /// Writes the arguments between the prefix and those of the call.
    fn header(&self, call: &Call, context: &HeaderContext<'_>, command: &mut Cmd);

    /// Processes the number that a script returned beside its answer. An error if the script refused the call for the
    /// time in its header; the call is then repeated.
    fn answered(&self, _call: &Call, _word: u64, _answer: &Value, _exchange: Exchange) -> Result<(), Late> {
        Ok(())
    }

    /// Completes calls before they are sent. `pops` says which of them are pops.
    fn prepare<'a>(
        &'a self,
        _home: &'a HomeThread,
        _calls: &'a mut [Result<(Call, AnswerForm), Refusal>],
        _pops: &'a [PopOf],
    ) -> LocalBoxFuture<'a, ()> {
        Box::pin(std::future::ready(()))
    }

    /// Records the tasks in replies that are about to reach their callers.
    fn delivered(&self, _replies: &Replies<Payload>) {}

    /// Wakes or serves waiters while the home is open; with [`WakeUp::Watched`] and [`WakeUp::Taken`].
    fn wake_waiters(
        self: Rc<Self>,
        _home: Rc<HomeThread>,
        _requests: SubscriptionRequests,
    ) -> LocalBoxFuture<'static, ()> {
        Box::pin(std::future::ready(()))
    }

    /// Cleans these queues, or all if none is named: requeues the tasks of clients that are gone, and removes
    /// leftovers.
    fn clean<'a>(
        &'a self,
        home: &'a HomeThread,
        queues: Vec<Vec<u8>>,
        how: Cleaning,
    ) -> LocalBoxFuture<'a, Result<CleanReport, Refusal>>;

    /// Stops taking tasks. No waiter is left.
    fn close(&self) -> LocalBoxFuture<'_, ()> {
        Box::pin(std::future::ready(()))
    }
}

/// A layout that several parts of a home share.
pub(crate) type SharedLayout = Arc<dyn Layout>;
