//! Handlers: async functions whose arguments are taken from the delivery, optionally wrapped in tower layers.

use std::convert::Infallible;
use std::error::Error;
use std::fmt;
use std::future::{Future, poll_fn};
use std::marker::PhantomData;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use tower_layer::Layer;
use tower_service::Service;

use super::delivery::{Delivery, FromDelivery, Needs};
use super::outcome::{Again, IntoOutcome, Outcome, error_text};

pub(super) type OutcomeFuture = Pin<Box<dyn Future<Output = Outcome> + Send>>;

/// An async function that handles tasks: up to eight arguments that implement [`FromDelivery`], and a result that
/// implements [`IntoOutcome`].
pub trait Handler<Args>: Clone + Send + Sync + 'static {
    /// Runs the handler.
    fn handle(&self, delivery: Delivery) -> OutcomeFuture;

    /// The type of a shared state that the handler needs and the worker lacks.
    #[doc(hidden)]
    fn missing(needs: &Needs<'_>) -> Option<&'static str>;
}

macro_rules! handler {
    ($($arg:ident),*) => {
        impl<F, Fut, $($arg),*> Handler<($($arg,)*)> for F
        where
            F: Fn($($arg),*) -> Fut + Clone + Send + Sync + 'static,
            Fut: Future<Output: IntoOutcome> + Send + 'static,
            $($arg: FromDelivery + Send + 'static,)*
        {
            #[allow(non_snake_case, unused_variables, reason = "arguments are named like their types; there may be none")]
            fn handle(&self, delivery: Delivery) -> OutcomeFuture {
                $(let $arg = match $arg::from_delivery(&delivery) {
                    Ok(value) => value,
                    Err(rejection) => return Box::pin(async { rejection.0 }),
                };)*
                let handled = self($($arg),*);
                Box::pin(async { handled.await.into_outcome() })
            }

            #[allow(unused_variables, reason = "there may be no arguments")]
            fn missing(needs: &Needs<'_>) -> Option<&'static str> {
                let needed: [Result<(), &'static str>; _] = [$($arg::needs(needs)),*];
                needed.into_iter().find_map(Result::err)
            }
        }
    };
}

handler!();
handler!(A);
handler!(A, B);
handler!(A, B, C);
handler!(A, B, C, D);
handler!(A, B, C, D, E);
handler!(A, B, C, D, E, F1);
handler!(A, B, C, D, E, F1, G);
handler!(A, B, C, D, E, F1, G, H);

/// A handler with options for its queue; see [`route`].
///
/// ```
/// # use sureq::{Json, Worker, route};
/// # async fn report(Json(month): Json<u8>) {}
/// # fn main() -> Result<(), sureq::OpenError> {
/// # let home = sureq::open("mem:")?;
/// let worker = Worker::new(&home).work("reports", route(report).concurrency(2).weight(3));
/// # Ok(()) }
/// ```
#[derive(Clone)]
pub struct Route {
    call: Arc<dyn Call>,
    missing: fn(&Needs<'_>) -> Option<&'static str>,
    pub(super) concurrency: Option<usize>,
    pub(super) weight: u32,
    pub(super) ack_first: bool,
}

/// Wraps a handler, to set options for its queue.
pub fn route<Args: 'static>(handler: impl Handler<Args>) -> Route {
    fn missing_of<H: Handler<Args>, Args>(needs: &Needs<'_>) -> Option<&'static str> {
        H::missing(needs)
    }
    fn route_of<H: Handler<Args>, Args: 'static>(handler: H) -> Route {
        Route {
            call: Arc::new(Handled { handler, args: PhantomData::<fn() -> Args> }),
            missing: missing_of::<H, Args>,
            concurrency: None,
            weight: 1,
            ack_first: false,
        }
    }
    route_of(handler)
}

impl Route {
    /// Limits the concurrent handlers of this queue. [`Worker::concurrency`](crate::Worker::concurrency) limits all
    /// queues together.
    #[must_use]
    pub fn concurrency(self, tasks: usize) -> Self {
        Self { concurrency: Some(tasks.max(1)), ..self }
    }

    /// Sets the share of this queue relative to the weights of the others [default: 1].
    #[must_use]
    pub fn weight(self, weight: u32) -> Self {
        Self { weight: weight.max(1), ..self }
    }

    /// Finishes each task before its handler runs: at-most-once delivery. If the handler fails or the worker dies,
    /// the task is not retried.
    #[must_use]
    pub fn ack_first(self) -> Self {
        Self { ack_first: true, ..self }
    }

    /// Wraps the handler in a tower layer. An error of the layer fails the try.
    #[must_use]
    pub fn layer<L>(self, layer: L) -> Self
    where
        L: Layer<HandlerService>,
        L::Service: Service<Delivery, Response = Outcome, Future: Send, Error: Into<Box<dyn Error + Send + Sync>>>
            + Clone
            + Send
            + Sync
            + 'static,
    {
        let service = layer.layer(HandlerService(Arc::clone(&self.call)));
        Self { call: Arc::new(Layered(service)), ..self }
    }

    pub(super) fn call(&self, delivery: Delivery) -> OutcomeFuture {
        self.call.call(delivery)
    }

    /// The type of a shared state that the handler needs and the worker lacks.
    pub(super) fn missing(&self, needs: &Needs<'_>) -> Option<&'static str> {
        (self.missing)(needs)
    }
}

impl fmt::Debug for Route {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Route")
            .field("concurrency", &self.concurrency)
            .field("weight", &self.weight)
            .field("ack_first", &self.ack_first)
            .finish_non_exhaustive()
    }
}

/// An argument of [`Worker::work`](crate::Worker::work): a handler or a [`Route`].
pub trait IntoRoute<Marker> {
    /// Converts it to a route.
    fn into_route(self) -> Route;
}

/// Marks a route that is made of a handler.
#[doc(hidden)]
#[derive(Debug)]
pub struct OfHandler<Args>(PhantomData<Args>);

impl<H: Handler<Args>, Args: 'static> IntoRoute<OfHandler<Args>> for H {
    fn into_route(self) -> Route {
        route(self)
    }
}

impl IntoRoute<()> for Route {
    fn into_route(self) -> Route {
        self
    }
}

trait Call: Send + Sync {
    fn call(&self, delivery: Delivery) -> OutcomeFuture;
}

struct Handled<H, Args> {
    handler: H,
    args: PhantomData<fn() -> Args>,
}

impl<H: Handler<Args>, Args> Call for Handled<H, Args> {
    fn call(&self, delivery: Delivery) -> OutcomeFuture {
        self.handler.handle(delivery)
    }
}

/// A handler as a tower service, which layers wrap.
#[derive(Clone)]
pub struct HandlerService(Arc<dyn Call>);

impl Service<Delivery> for HandlerService {
    type Response = Outcome;
    type Error = Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<Outcome, Infallible>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, delivery: Delivery) -> Self::Future {
        let outcome = self.0.call(delivery);
        Box::pin(async { Ok(outcome.await) })
    }
}

impl fmt::Debug for HandlerService {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("HandlerService").finish_non_exhaustive()
    }
}

struct Layered<S>(S);

impl<S> Call for Layered<S>
where
    S: Service<Delivery, Response = Outcome, Future: Send, Error: Into<Box<dyn Error + Send + Sync>>>
        + Clone
        + Send
        + Sync
        + 'static,
{
    fn call(&self, delivery: Delivery) -> OutcomeFuture {
        let mut service = self.0.clone();
        Box::pin(async move {
            let handled = async {
                poll_fn(|cx| service.poll_ready(cx)).await?;
                service.call(delivery).await
            };
            handled.await.unwrap_or_else(|error: S::Error| Outcome::Failed {
                reason: error_text(&*error.into()).into(),
                again: Again::Backoff,
            })
        })
    }
}
