//! The arguments of handlers: each kind, and the outcome if one cannot be made.

use std::time::Duration;

use sureq::{
    BadPayload, Decode, Delivery, DeliveryNumber, Failure, FromDelivery, Id, Json, Needs, Receipt, Rejection,
    State, Token, View, Worker, WorkerError,
};

use crate::support::{AtWork, Tell, counts, home, queue, said};

#[tokio::test]
async fn a_handler_takes_every_kind_of_argument() {
    let (home, queue) = queue();
    let id = queue.push(Json(7)).await.expect("the push succeeds");
    let (tell, mut said) = said::<All>();
    let handler = async |Json(n): Json<i32>,
                         text: String,
                         bytes: Vec<u8>,
                         id: Id,
                         number: DeliveryNumber,
                         token: Token,
                         delivery: Delivery,
                         tell: State<Tell<All>>| {
        let is_new = token.fired().is_none() && delivery.task().delivery() == number.0;
        let _ = tell.send((n, text, bytes, id, number, is_new));
    };
    let worker = AtWork::start(Worker::new(&home).state(tell).work("q", handler));
    let all = (7, "7".to_owned(), b"7".to_vec(), id, DeliveryNumber(1), true);
    assert_eq!(said.next().await, all);
    assert_eq!(worker.tally(|tally| tally.done == 1).await.taken, 1);
    worker.stop().await;
}

type All = (i32, String, Vec<u8>, Id, DeliveryNumber, bool);

#[tokio::test]
async fn the_fence_of_a_receipt_grows_from_delivery_to_delivery() {
    let (home, queue) = queue();
    queue.push("x").await.expect("the push succeeds");
    let (tell, mut said) = said::<Option<(u64, u32)>>();
    let handler =
        async |receipt: Receipt, DeliveryNumber(n): DeliveryNumber, tell: State<Tell<Option<(u64, u32)>>>| {
            let _ = tell.send(receipt.fence());
            if n < 3 { Err(Failure::again_now("once more")) } else { Ok(()) }
        };
    let worker = AtWork::start(Worker::new(&home).state(tell).work("q", handler));
    let fences = said.many(3).await;
    assert!(fences[0].is_some() && fences.is_sorted_by(|a, b| a < b), "{fences:?}");
    worker.stop().await;
}

#[tokio::test]
async fn a_missing_state_is_an_error_before_a_task_is_popped() {
    let (home, queue) = queue();
    queue.push("x").await.expect("the push succeeds");
    let handler = async |_: State<String>| ();
    let error = Worker::new(&home)
        .state(1_u8)
        .work("q", handler)
        .run()
        .await
        .expect_err("the worker has no state of type String");
    assert!(matches!(&error, WorkerError::MissingState { queue, .. } if queue == "q"), "{error}");
    assert!(error.to_string().contains("State<alloc::string::String>"), "{error}");
    let info = queue.info().await.expect("the home answers");
    assert_eq!((info.ready, info.leased), (1, 0));
}

#[tokio::test]
async fn a_worker_without_queues_is_an_error() {
    let error = Worker::new(&home()).run().await.expect_err("the worker has no queue");
    assert!(matches!(error, WorkerError::NoQueues));
}

#[tokio::test]
async fn a_task_whose_payload_cannot_be_decoded_is_dead_with_a_reason() {
    struct Even(u8);
    impl Decode for Even {
        fn decode(payload: &[u8]) -> Result<Self, BadPayload> {
            match payload {
                &[n] if n % 2 == 0 => Ok(Self(n)),
                _ => Err(BadPayload::new("an even number", "it is odd")),
            }
        }
    }
    let (home, queue) = queue();
    queue.push_all([[1_u8], [2]]).await.expect("the push succeeds");
    let (tell, mut said) = said::<u8>();
    let handler = async |Even(n): Even, tell: State<Tell<u8>>| {
        let _ = tell.send(n);
    };
    let worker = AtWork::start(Worker::new(&home).state(tell).work("q", handler));
    counts(&queue, |info| info.dead == 1 && info.ready + info.leased == 0).await;
    let dead = queue.inspect(View::Dead, 0, 9).await.expect("the queue can be inspected");
    let why = dead[0]
        .more
        .as_ref()
        .expect("a dead task has a reason")
        .reason
        .as_deref()
        .map(String::from_utf8_lossy);
    assert_eq!(why.as_deref(), Some("the payload is not an even number: it is odd"));
    assert_eq!((dead[0].payload.as_ref(), said.next().await), (&[1][..], 2));
    assert_eq!(worker.stop().await.dead, 1);
}

/// An argument that needs a state and does not declare that.
struct Forgetful;

impl FromDelivery for Forgetful {
    fn from_delivery(delivery: &Delivery) -> Result<Self, Rejection> {
        State::<String>::from_delivery(delivery).map(|_| Self)
    }
}

/// The same, and it declares that.
struct Telling;

impl FromDelivery for Telling {
    fn from_delivery(delivery: &Delivery) -> Result<Self, Rejection> {
        State::<String>::from_delivery(delivery).map(|_| Self)
    }

    fn needs(needs: &Needs<'_>) -> Result<(), &'static str> {
        State::<String>::needs(needs)
    }
}

#[tokio::test]
async fn a_missing_state_is_an_error_at_the_start_if_declared_and_delays_tasks_if_not() {
    let (home, queue) = queue();
    queue.add("x").tries(1).await.expect("the push succeeds");
    let error = Worker::new(&home).work("q", async |_: Telling| ()).run().await.expect_err("it is missing");
    assert!(matches!(error, WorkerError::MissingState { .. }), "{error}");
    let worker = AtWork::start(Worker::new(&home).work("q", async |_: Forgetful| ()));
    worker.tally(|tally| tally.requeued == 1).await;
    let info = queue.info().await.expect("the home answers");
    assert_eq!(
        (info.ready, info.delayed, info.dead),
        (0, 1, 0),
        "not at once, and not at the cost of its try"
    );
    worker.stop().await;
}

#[tokio::test]
async fn a_rejected_argument_decides_what_happens_to_the_task() {
    struct Choosy;
    impl FromDelivery for Choosy {
        fn from_delivery(delivery: &Delivery) -> Result<Self, Rejection> {
            match delivery.task().payload() {
                b"dead" => Err(Rejection::dead("it is of no use")),
                b"failed" => Err(Rejection::failed("not this time")),
                b"later" => Err(Rejection::later(Duration::from_secs(60))),
                _ => Ok(Self),
            }
        }
    }
    let (home, queue) = queue();
    queue.push_all(["dead", "failed", "later", "done"]).await.expect("the push succeeds");
    let worker = AtWork::start(Worker::new(&home).work("q", async |_: Choosy| ()));
    let tally = worker.tally(|tally| tally.dead + tally.failed + tally.requeued + tally.done == 4).await;
    assert_eq!((tally.dead, tally.failed, tally.requeued, tally.done), (1, 1, 1, 1));
    worker.stop().await;
}

#[tokio::test]
async fn a_queue_has_one_handler() {
    let worker = Worker::new(&home()).work("q", async || ()).work("q", async || ());
    let error = worker.run().await.expect_err("the queue has two handlers");
    assert!(matches!(&error, WorkerError::TwoHandlers { queue } if queue == "q"), "{error}");
}
