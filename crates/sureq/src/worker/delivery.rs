//! A delivery as its handler sees it, and what a handler can ask of it by its arguments.

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

/// How long a task waits whose handler wants a state that is not there: another worker may have it.
const MISSING_FOR: Duration = Duration::from_secs(1);

/// A task in the hands of a handler: whatever a handler can take as an argument is taken from this.
#[derive(Clone, Debug)]
pub struct Delivery(pub(super) Arc<Live>);

/// What there is for as long as a handler runs.
#[derive(Debug)]
pub(super) struct Live {
    pub(super) task: Task,
    pub(super) states: Arc<States>,
    fired: AtomicU8,
    notify: Notify,
    /// It was finished before its handler ran: there is no lease to keep and nothing left to tell the home.
    is_acked: AtomicBool,
    /// Its lease is let run out, though its handler is still there.
    is_let_go: AtomicBool,
}

impl Delivery {
    pub(super) fn new(task: Task, states: Arc<States>) -> Self {
        let (fired, notify) = (AtomicU8::new(0), Notify::new());
        let (is_acked, is_let_go) = (AtomicBool::new(false), AtomicBool::new(false));
        Self(Arc::new(Live { task, states, fired, notify, is_acked, is_let_go }))
    }

    /// The task.
    pub fn task(&self) -> &Task {
        &self.0.task
    }

    /// What says when the handler should stop.
    pub fn token(&self) -> Token {
        Token(Arc::clone(&self.0))
    }
}

/// Says when a handler should stop, and why. It fires before the handler is dropped, so that there is time to clean up: see
/// [`Stop`] for how much.
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
///         // When the worker stops, what is nearly done may go on: only a graver reason ends it.
///         _ = token.wait_beyond(Stop::Stopping) => {
///             discard_parts().await;
///             return Ok(Outcome::GiveBack { after: Duration::ZERO });
///         }
///     }
///     Ok(Outcome::Done)
/// }
/// ```
#[derive(Clone, Debug)]
pub struct Token(Arc<Live>);

/// Why a handler should stop, in the order of their gravity.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[non_exhaustive]
pub enum Stop {
    /// The worker stops. The handler may go on for the [`grace`](crate::Worker::grace), and is dropped at its end. What it
    /// returns by then counts.
    Stopping = 1,
    /// It ran for [`run_max`](crate::Worker::run_max). It may clean up for the [`grace`](crate::Worker::grace), and is dropped at
    /// its end; then its try has failed. What it returns by then counts.
    TooLong = 2,
    /// The task was cancelled. The handler is not dropped because of it.
    Cancelled = 3,
    /// The lease ended, or could not be extended in time: somebody else may have the task. The handler is not dropped because of
    /// it, and what it returns counts only if the task is still its own.
    LeaseLost = 4,
    /// The worker was taken for dead, or replaced: all its tasks went back. The handler is not dropped because of it.
    WorkerLost = 5,
}

impl Token {
    /// Why to stop, if so: the gravest reason so far.
    pub fn fired(&self) -> Option<Stop> {
        self.0.fired()
    }

    /// Waits until the handler should stop.
    pub async fn wait(&self) -> Stop {
        self.wait_until(|_| true).await
    }

    /// Waits until there is a graver reason to stop than this one.
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

    pub(super) fn is_let_go(&self) -> bool {
        self.is_let_go.load(Ordering::Acquire)
    }

    pub(super) fn let_go(&self) {
        self.is_let_go.store(true, Ordering::Release);
    }

    /// Whether somebody else may have the task by now.
    pub(super) fn may_be_anothers(&self) -> bool {
        self.is_let_go() || matches!(self.fired(), Some(Stop::LeaseLost | Stop::WorkerLost))
    }

    /// Tells the handler to stop. The gravest reason stays.
    pub(super) fn fire(&self, why: Stop) {
        self.fired.fetch_max(why as u8, Ordering::AcqRel);
        self.notify.notify_waiters();
    }
}

/// What handlers share, by its type.
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

/// Something a handler takes as an argument.
///
/// Whatever can be made of a delivery can be one. An argument that is made of others says which states those need, so that the
/// worker notices before it takes anything if it was not given them:
///
/// ```
/// use std::time::Duration;
/// use sureq::{Delivery, FromDelivery, Needs, Rejection, State};
///
/// struct Tenants {
///     names: Vec<String>,
/// }
///
/// /// Whose task it is: what stands before the first space.
/// struct Tenant(String);
///
/// impl FromDelivery for Tenant {
///     fn from_delivery(delivery: &Delivery) -> Result<Self, Rejection> {
///         let tenants = State::<Tenants>::from_delivery(delivery)?;
///         let text = String::from_delivery(delivery)?;
///         match text.split_once(' ') {
///             Some((name, _)) if tenants.names.iter().any(|tenant| tenant == name) => Ok(Self(name.to_owned())),
///             Some(_) => Err(Rejection::later(Duration::from_secs(60))),
///             None => Err(Rejection::dead("the task is nobody's")),
///         }
///     }
///
///     fn needs(needs: &Needs<'_>) -> Result<(), &'static str> {
///         State::<Tenants>::needs(needs)
///     }
/// }
/// ```
pub trait FromDelivery: Sized {
    /// Takes it from the delivery.
    fn from_delivery(delivery: &Delivery) -> Result<Self, Rejection>;

    /// Whether the worker has what this needs; if not, the name of the type that is missing. Asked once, before anything is
    /// taken.
    fn needs(_: &Needs<'_>) -> Result<(), &'static str> {
        Ok(())
    }
}

/// What a worker has for its handlers: the states that it was given.
#[derive(Debug)]
pub struct Needs<'a>(pub(super) &'a States);

/// A handler's argument could not be made of a task, and what becomes of the task.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rejection(pub(super) Outcome);

impl Rejection {
    /// The task is dead: the next try would find the same.
    pub fn dead(reason: impl Into<Cow<'static, str>>) -> Self {
        Self(Outcome::Dead { reason: reason.into() })
    }

    /// The try failed: the task comes again after its backoff, or is dead if that was its last.
    pub fn failed(reason: impl Into<Cow<'static, str>>) -> Self {
        Self(Outcome::Failed { reason: reason.into(), again: Again::Backoff })
    }

    /// The task comes again after so long, at no cost of a try.
    pub fn later(after: Duration) -> Self {
        Self(Outcome::GiveBack { after })
    }
}

/// The task is dead: it has the same payload next time.
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

/// How often the task has been delivered, this time included.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct DeliveryNumber(pub u32);

impl FromDelivery for DeliveryNumber {
    fn from_delivery(delivery: &Delivery) -> Result<Self, Rejection> {
        Ok(Self(delivery.task().delivery()))
    }
}

/// What all handlers of a worker share, given to it by [`Worker::state`](crate::Worker::state).
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
            // The worker asks for it before it takes anything; an argument of somebody's own making may have said nothing.
            tracing::error!(
                wants = type_name::<T>(),
                "a handler wants a state that the worker was not given"
            );
            Rejection::later(MISSING_FOR)
        })
    }

    fn needs(needs: &Needs<'_>) -> Result<(), &'static str> {
        needs.0.get::<T>().map(|_| ()).ok_or(type_name::<T>())
    }
}
