//! [`Delivery`] and the arguments of handlers that are taken from it.

use std::any::{Any, TypeId, type_name};
use std::borrow::Cow;
use std::collections::HashMap;
use std::ops::Deref;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};
use std::time::Duration;

use tokio::sync::Notify;

use super::outcome::{Again, Outcome};
use crate::error::BadPayload;
use crate::id::{Id, Receipt};
use crate::payload::Decode;
use crate::task::Task;

/// The delay of a task whose handler lacks a state: a worker that has the state can take it meanwhile.
const MISSING_FOR: Duration = Duration::from_secs(1);

/// A task that is being handled. All arguments of a handler are taken from it; see [`FromDelivery`].
#[derive(Clone, Debug)]
pub struct Delivery(pub(super) Arc<Live>);

/// The state of a running handler.
#[derive(Debug)]
pub(super) struct Live {
    pub(super) task: Task,
    pub(super) states: Arc<States>,
    fired: AtomicU8,
    notify: Notify,
    /// The task was finished before its handler ran: it has no lease and needs no report.
    is_acked: AtomicBool,
    /// Its lease is no longer extended, though its handler still runs.
    is_released: AtomicBool,
}

impl Delivery {
    pub(super) fn new(task: Task, states: Arc<States>) -> Self {
        let (fired, notify) = (AtomicU8::new(0), Notify::new());
        let (is_acked, is_released) = (AtomicBool::new(false), AtomicBool::new(false));
        Self(Arc::new(Live { task, states, fired, notify, is_acked, is_released }))
    }

    /// The task that is handled.
    pub fn task(&self) -> &Task {
        &self.0.task
    }

    /// The token that fires when the handler should stop.
    pub fn token(&self) -> Token {
        Token(Arc::clone(&self.0))
    }
}

/// Fires when a handler should stop, before the handler is dropped, so that it can clean up. [`Stop`] lists the
/// reasons and how much time each leaves.
///
/// ```
/// use std::time::Duration;
/// use sureq::{Failure, Outcome, Stop, Token};
///
/// # async fn upload(_: &str) -> Result<(), Failure> { Ok(()) }
/// # async fn discard_parts() {}
/// async fn handle(file: String, token: Token) -> Result<Outcome, Failure> {
///     tokio::select! {
///         uploaded = upload(&file) => uploaded?,
///         // An upload may continue while the worker stops; only a graver reason ends it.
///         _ = token.wait_beyond(Stop::Stopping) => {
///             discard_parts().await;
///             return Ok(Outcome::Requeue { after: Duration::ZERO });
///         }
///     }
///     Ok(Outcome::Done)
/// }
/// ```
#[derive(Clone, Debug)]
pub struct Token(Arc<Live>);

/// Why a handler should stop, in order of gravity.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[non_exhaustive]
pub enum Stop {
    /// The worker stops. The handler is dropped at the end of the [`grace`](crate::Worker::grace) period; a result
    /// before that counts.
    Stopping = 1,
    /// The handler ran for [`run_max`](crate::Worker::run_max). It is dropped at the end of the
    /// [`grace`](crate::Worker::grace) period and its try fails; a result before that counts.
    TooLong = 2,
    /// The task was cancelled. The handler is not dropped because of it.
    Cancelled = 3,
    /// The lease ended or could not be extended in time: another worker may have the task. The handler is not dropped
    /// because of it; its result counts only if its delivery is still the current one.
    LeaseLost = 4,
    /// The worker was declared lost or replaced: all its tasks were requeued. The handler is not dropped because of it.
    WorkerLost = 5,
}

impl Token {
    /// The gravest reason to stop so far, if any.
    pub fn fired(&self) -> Option<Stop> {
        self.0.fired()
    }

    /// Waits until the handler should stop.
    pub async fn wait(&self) -> Stop {
        self.wait_until(|_| true).await
    }

    /// Waits for a reason to stop that is graver than `known`.
    pub async fn wait_beyond(&self, known: Stop) -> Stop {
        self.wait_until(|why| why > known).await
    }

    async fn wait_until(&self, is_meant: impl Fn(Stop) -> bool) -> Stop {
        loop {
            let notified = self.0.notify.notified();
            if let Some(stop) = self.fired().filter(|&why| is_meant(why)) {
                return stop;
            }
            notified.await;
        }
    }
}

impl Live {
    pub(super) fn fired(&self) -> Option<Stop> {
        Some(match self.fired.load(Ordering::Acquire) {
            1 => Stop::Stopping,
            2 => Stop::TooLong,
            3 => Stop::Cancelled,
            4 => Stop::LeaseLost,
            5 => Stop::WorkerLost,
            _ => return None,
        })
    }

    pub(super) fn is_acked(&self) -> bool {
        self.is_acked.load(Ordering::Acquire)
    }

    pub(super) fn set_acked(&self) {
        self.is_acked.store(true, Ordering::Release);
    }

    pub(super) fn is_released(&self) -> bool {
        self.is_released.load(Ordering::Acquire)
    }

    pub(super) fn release(&self) {
        self.is_released.store(true, Ordering::Release);
    }

    /// Whether another worker may have the task.
    pub(super) fn may_be_anothers(&self) -> bool {
        self.is_released() || matches!(self.fired(), Some(Stop::LeaseLost | Stop::WorkerLost))
    }

    /// Fires the token; the gravest reason is kept.
    pub(super) fn fire(&self, why: Stop) {
        self.fired.fetch_max(why as u8, Ordering::AcqRel);
        self.notify.notify_waiters();
    }
}

/// The shared states of a worker, by type.
#[derive(Debug, Default)]
pub(super) struct States(HashMap<TypeId, Arc<dyn Any + Send + Sync>>);

impl States {
    pub(super) fn add<T: Send + Sync + 'static>(&mut self, state: T) {
        self.0.insert(TypeId::of::<T>(), Arc::new(state));
    }

    fn get<T: Send + Sync + 'static>(&self) -> Option<Arc<T>> {
        self.0.get(&TypeId::of::<T>()).cloned()?.downcast().ok()
    }
}

/// A type that a handler takes as an argument: a [`Decode`] type for the payload, [`Task`](crate::Task) data,
/// [`State`], [`Token`], or your own.
///
/// An implementation that uses others forwards their [`needs`](Self::needs), so that the worker reports a missing
/// state before it takes a task:
///
/// ```
/// use std::time::Duration;
/// use sureq::{Delivery, FromDelivery, Needs, Rejection, State};
///
/// struct Tenants {
///     names: Vec<String>,
/// }
///
/// /// The tenant of a task: the payload up to its first space.
/// struct Tenant(String);
///
/// impl FromDelivery for Tenant {
///     fn from_delivery(delivery: &Delivery) -> Result<Self, Rejection> {
///         let tenants = State::<Tenants>::from_delivery(delivery)?;
///         let text = String::from_delivery(delivery)?;
///         match text.split_once(' ') {
///             Some((name, _)) if tenants.names.iter().any(|tenant| tenant == name) => Ok(Self(name.to_owned())),
///             Some(_) => Err(Rejection::later(Duration::from_secs(60))),
///             None => Err(Rejection::dead("the task has no tenant")),
///         }
///     }
///
///     fn needs(needs: &Needs<'_>) -> Result<(), &'static str> {
///         State::<Tenants>::needs(needs)
///     }
/// }
/// ```
pub trait FromDelivery: Sized {
    /// Takes the value from the delivery, or says what happens to the task instead.
    fn from_delivery(delivery: &Delivery) -> Result<Self, Rejection>;

    /// Checks that the worker has the states that this needs; the error is the name of a missing type. Called once,
    /// before the worker takes a task.
    fn needs(_: &Needs<'_>) -> Result<(), &'static str> {
        Ok(())
    }
}

/// The states of a worker, for [`FromDelivery::needs`].
#[derive(Debug)]
pub struct Needs<'a>(pub(super) &'a States);

/// An argument cannot be taken from a delivery; the handler does not run. Says what happens to the task.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rejection(pub(super) Outcome);

impl Rejection {
    /// The task is dead: another try would end the same way.
    pub fn dead(reason: impl Into<Cow<'static, str>>) -> Self {
        Self(Outcome::Dead { reason: reason.into() })
    }

    /// The try failed: the task is retried after its backoff, or dead if that was its last try.
    pub fn failed(reason: impl Into<Cow<'static, str>>) -> Self {
        Self(Outcome::Failed { reason: reason.into(), again: Again::Backoff })
    }

    /// The task is redelivered after this time, at no cost of a try.
    pub fn later(after: Duration) -> Self {
        Self(Outcome::Requeue { after })
    }
}

/// The task is dead: its payload stays the same.
impl From<BadPayload> for Rejection {
    fn from(bad: BadPayload) -> Self {
        Self::dead(bad.to_string())
    }
}

impl<T: Decode> FromDelivery for T {
    fn from_delivery(delivery: &Delivery) -> Result<Self, Rejection> {
        Ok(T::decode(delivery.task().payload())?)
    }
}

impl FromDelivery for Delivery {
    fn from_delivery(delivery: &Delivery) -> Result<Self, Rejection> {
        Ok(delivery.clone())
    }
}

impl FromDelivery for Id {
    fn from_delivery(delivery: &Delivery) -> Result<Self, Rejection> {
        Ok(delivery.task().id())
    }
}

impl FromDelivery for Receipt {
    fn from_delivery(delivery: &Delivery) -> Result<Self, Rejection> {
        Ok(delivery.task().receipt())
    }
}

impl FromDelivery for Token {
    fn from_delivery(delivery: &Delivery) -> Result<Self, Rejection> {
        Ok(delivery.token())
    }
}

/// The number of deliveries of the task, including this one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct DeliveryNumber(pub u32);

impl FromDelivery for DeliveryNumber {
    fn from_delivery(delivery: &Delivery) -> Result<Self, Rejection> {
        Ok(Self(delivery.task().delivery()))
    }
}

/// A value that all handlers of a worker share, set with [`Worker::state`](crate::Worker::state).
#[derive(Clone, Debug)]
pub struct State<T>(pub Arc<T>);

impl<T> Deref for State<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.0
    }
}

impl<T: Send + Sync + 'static> FromDelivery for State<T> {
    fn from_delivery(delivery: &Delivery) -> Result<Self, Rejection> {
        delivery.0.states.get().map(State).ok_or_else(|| {
            // The worker checks this at its start, but an implementation of `needs` may be missing.
            tracing::error!(
                wants = type_name::<T>(),
                "a handler needs a state that the worker does not have"
            );
            Rejection::later(MISSING_FOR)
        })
    }

    fn needs(needs: &Needs<'_>) -> Result<(), &'static str> {
        needs.0.get::<T>().map(|_| ()).ok_or(type_name::<T>())
    }
}
