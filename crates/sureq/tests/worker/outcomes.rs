//! The state of a task after each outcome of its handler.

use std::time::{Duration, Instant};

use sureq::{
    Change, Changes, Death, DeliveryNumber, Failure, Home, Info, Outcome, Queue, State, Stop, Tally, Token,
    View, Worker,
};

use sureq_testkit::local_server::LocalServer;
use sureq_testkit::redis_server::RedisServer;

use crate::support::{AtWork, Tell, counts, queue, said};

/// Runs one task with a handler that returns `first` at its first delivery and is done at the next.
async fn check(first: impl Fn() -> Outcome + Clone + Send + Sync + 'static) -> (Tally, Duration) {
    let (home, queue) = queue();
    queue.add("x").backoff(Duration::from_millis(100)).await.expect("the push succeeds");
    let (tell, mut said) = said::<Instant>();
    let handler = move |DeliveryNumber(n): DeliveryNumber| {
        let _ = tell.send(Instant::now());
        let outcome = if n == 1 { first() } else { Outcome::Done };
        async { outcome }
    };
    let worker = AtWork::start(Worker::new(&home).work("q", handler));
    let times = said.many(2).await;
    worker.tally(|tally| tally.done == 1).await;
    counts(&queue, is_empty).await;
    (worker.stop().await, times[1] - times[0])
}

fn is_empty(info: &Info) -> bool {
    info.ready + info.delayed + info.leased + info.dead == 0
}

async fn details_of_the_first_dead_task(queue: &Queue) -> Death {
    let dead = queue.inspect(View::Dead, 0, 9).await.expect("the queue can be inspected");
    dead.into_iter().next().and_then(|task| task.more).expect("a dead task has a reason")
}

fn failed(again: sureq::Again) -> Outcome {
    Outcome::Failed { reason: "not yet".into(), again }
}

#[tokio::test]
async fn a_failed_task_is_retried_after_its_backoff() {
    let (tally, between) = check(|| failed(sureq::Again::Backoff)).await;
    assert_eq!((tally.failed, tally.done, tally.taken), (1, 1, 2));
    assert!(between >= Duration::from_millis(49), "{between:?} of 50 to 100 ms");
}

#[tokio::test]
async fn a_failed_task_is_retried_at_the_requested_time() {
    let wait = Duration::from_millis(300);
    let (tally, between) = check(move || failed(sureq::Again::After(wait))).await;
    assert_eq!((tally.failed, tally.done), (1, 1));
    // The home counts whole milliseconds.
    assert!(between + Duration::from_millis(1) >= wait, "{between:?}");
}

#[tokio::test]
async fn a_failed_task_that_is_retried_at_once_waits_for_no_backoff() {
    let (home, queue) = queue();
    queue.add("x").backoff(Duration::from_secs(3600)).await.expect("the push succeeds");
    let handler = async |DeliveryNumber(n): DeliveryNumber| {
        if n == 1 { Err(Failure::again_now("once more")) } else { Ok(()) }
    };
    let worker = AtWork::start(Worker::new(&home).work("q", handler));
    worker.tally(|tally| tally.done == 1).await;
    assert_eq!(worker.stop().await.failed, 1);
}

#[tokio::test]
async fn returning_a_task_costs_no_try() {
    let (home, queue) = queue();
    queue.add("x").tries(1).await.expect("the push succeeds");
    let handler = async |DeliveryNumber(n): DeliveryNumber| match n {
        1 => Outcome::Requeue { after: Duration::ZERO },
        2 => Outcome::Requeue { after: Duration::from_millis(20) },
        _ => Outcome::Done,
    };
    let worker = AtWork::start(Worker::new(&home).work("q", handler));
    worker.tally(|tally| tally.done == 1).await;
    counts(&queue, is_empty).await;
    assert_eq!(worker.stop().await.requeued, 2);
}

#[tokio::test]
async fn a_task_is_dead_when_its_handler_says_so_or_its_tries_are_spent() {
    let (home, queue) = queue();
    queue.push("at once").await.expect("the push succeeds");
    let handler = async |text: String| match &*text {
        "at once" => Outcome::Dead { reason: "no such address".into() },
        _ => failed(sureq::Again::Now),
    };
    let worker = AtWork::start(Worker::new(&home).work("q", handler));
    counts(&queue, |info| info.dead == 1).await;
    let more = details_of_the_first_dead_task(&queue).await;
    assert_eq!(more.reason.as_deref(), Some(&b"no such address"[..]));
    queue.purge(Some(View::Dead)).await.expect("the home answers");
    queue.add("again and again").tries(3).await.expect("the push succeeds");
    counts(&queue, |info| info.dead == 1).await;
    assert_eq!(details_of_the_first_dead_task(&queue).await.tries.failed, 3);
    let tally = worker.stop().await;
    assert_eq!((tally.taken, tally.dead, tally.failed), (4, 2, 2));
}

#[tokio::test]
async fn a_panic_is_a_failed_try_and_the_worker_continues() {
    let (home, queue) = queue();
    queue.add("x").tries(2).backoff(Duration::from_millis(1)).await.expect("the push succeeds");
    queue.push("y").await.expect("the push succeeds");
    let handler = async |text: String| assert_ne!(text, "x", "the handler broke");
    let worker = AtWork::start(Worker::new(&home).work("q", handler));
    counts(&queue, |info| info.dead == 1 && info.ready + info.leased == 0).await;
    let more = details_of_the_first_dead_task(&queue).await;
    let reason = String::from_utf8(more.reason.expect("it says why").into()).unwrap();
    assert!(reason.starts_with("panicked: ") && reason.contains("the handler broke"), "{reason}");
    let tally = worker.stop().await;
    assert_eq!((tally.panicked, tally.failed, tally.dead, tally.done), (2, 1, 1, 1));
}

#[tokio::test]
async fn a_task_cancelled_while_it_runs_notifies_its_handler_and_is_deleted() {
    let (home, queue) = queue();
    let id = queue.push("x").await.expect("the push succeeds");
    let (tell, mut said) = said::<Option<Stop>>();
    let handler = async |token: Token, tell: State<Tell<Option<Stop>>>| {
        let _ = tell.send(None);
        let _ = tell.send(Some(token.wait().await));
        Outcome::Cancelled
    };
    let ttl = Duration::from_millis(600);
    let worker = AtWork::start(Worker::new(&home).state(tell).ttl(ttl).work("q", handler));
    assert_eq!(said.next().await, None);
    assert!(queue.cancel(&id).await.expect("the home answers"));
    assert_eq!(said.next().await, Some(Stop::Cancelled));
    counts(&queue, is_empty).await;
    let tally = worker.stop().await;
    assert_eq!((tally.taken, tally.cancelled, tally.done), (1, 1, 0));
}

#[tokio::test]
async fn a_handler_that_returns_cancelled_finishes_its_task() {
    let (home, queue) = queue();
    queue.push("x").await.expect("the push succeeds");
    let worker = AtWork::start(Worker::new(&home).work("q", async || Outcome::Cancelled));
    worker.tally(|tally| tally.cancelled == 1).await;
    counts(&queue, is_empty).await;
    assert_eq!(worker.stop().await.taken, 1);
}

#[tokio::test]
async fn each_handler_gets_the_tasks_of_its_own_queue() {
    let (home, _) = queue();
    let (tell, mut said) = said::<String>();
    let handler_a = async |text: String, tell: State<Tell<String>>| _ = tell.send(format!("a{text}"));
    let handler_b = async |text: String, tell: State<Tell<String>>| _ = tell.send(format!("b{text}"));
    let worker = AtWork::start(Worker::new(&home).state(tell).work("a", handler_a).work("b", handler_b));
    home.queue("a").push_all(["1", "2"]).await.expect("the push succeeds");
    home.queue("b").push("3").await.expect("the push succeeds");
    let mut heard = said.many(3).await;
    heard.sort();
    assert_eq!(heard, ["a1", "a2", "b3"]);
    assert_eq!(worker.stop().await.done, 3);
}

/// Every dead task is counted as dead, however it died, and even if it moved to a dead-letter queue.
async fn check_dead(home: &Home, dead_letter: Option<&[u8]>) {
    let queue = home.queue("q");
    if let Some(letters) = dead_letter {
        let changes = [Change::DeadLetter(letters)];
        queue.configure(Changes::List(&changes)).await.expect("the home answers");
    }
    for (text, tries) in [("fails", 2), ("fails at once", 2), ("is dead", 25), ("is done", 1)] {
        let backoff = Duration::from_millis(1);
        assert!(queue.add(text).tries(tries).backoff(backoff).await.expect("the push succeeds").added);
    }
    let handler = async |text: String| match &*text {
        "fails" => Err(Failure::new("not yet")),
        "fails at once" => Err(Failure::again_now("not yet")),
        "is dead" => Err(Failure::dead("never")),
        _ => Ok(()),
    };
    let worker = AtWork::start(Worker::new(home).work("q", handler));
    let ends = |tally: &Tally| tally.done + tally.failed + tally.dead;
    worker.tally(|tally| ends(tally) == 6).await;
    let tally = worker.stop().await;
    assert_eq!((tally.taken, tally.done, tally.failed + tally.dead), (6, 1, 5));
    // A task that failed, was ready at once and is gone may have been finished by another worker.
    assert_eq!(tally.dead, if dead_letter.is_some() { 2 } else { 3 }, "{tally:?}");
}

#[tokio::test]
async fn tasks_that_die_of_their_last_try_are_counted_as_dead() {
    check_dead(&queue().0, None).await;
    let server = LocalServer::start(&queue().0);
    check_dead(&sureq::open(&server.url()).expect("it listens"), None).await;
    let redis = RedisServer::start();
    check_dead(&sureq::open(&redis.url()).expect("it listens"), None).await;
}

#[tokio::test]
async fn tasks_that_go_to_a_dead_letter_queue_are_counted_as_dead() {
    check_dead(&queue().0, Some(b"letters")).await;
}
