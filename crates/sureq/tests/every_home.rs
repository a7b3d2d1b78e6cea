//! Every home reports the same about a task through the library.

use std::time::Duration;

use sureq::{Held, Home, View};
use sureq_testkit::local_server::LocalServer;
use sureq_testkit::redis_server::RedisServer;

/// Runs a check in memory, on a server and on a Redis.
async fn everywhere(check: impl AsyncFn(&Home)) {
    let memory = sureq::open("mem:").expect("a home in memory opens");
    check(&memory).await;
    let server = LocalServer::start(&sureq::open("mem:").expect("a home in memory opens"));
    check(&sureq::open(&server.url()).expect("it listens")).await;
    let redis = RedisServer::start();
    check(&sureq::open(&redis.url()).expect("it listens")).await;
}

#[tokio::test]
async fn a_task_popped_without_a_lease_can_be_acked_extended_and_returned() {
    everywhere(async |home| {
        let queue = home.queue("q");
        let id = queue.push("x").await.expect("the push succeeds");
        let task = queue.pop().no_lease().await.expect("the home answers").expect("a task is ready");
        assert_eq!((task.id(), task.delivery()), (id.clone(), 1));
        assert_eq!(task.extend(Duration::from_secs(60)).await, Ok(Held::Yes), "{task:?}");
        assert_eq!(task.requeue().await, Ok(Held::Yes), "{task:?}");
        let again = queue.pop().no_lease().await.expect("the home answers").expect("a task is ready again");
        assert_eq!(again.id(), id);
        assert_eq!(again.ack().await, Ok(Held::Yes), "{}", again.receipt());
        assert_eq!(again.ack().await, Ok(Held::Lost), "it is finished once");
        assert_eq!(queue.info().await.expect("the home answers").leased, 0);
    })
    .await;
}

#[tokio::test]
async fn an_inspected_task_has_only_known_fields() {
    everywhere(async |home| {
        let queue = home.queue("q");
        queue.add("dies").tries(1).await.expect("the push succeeds");
        let task = queue.pop().await.expect("the home answers").expect("a task is ready");
        let leased = queue.inspect(View::Leased, 0, 9).await.expect("the queue can be inspected");
        assert_eq!(leased[0].deliveries, Some(1));
        assert!(leased[0].elapsed.is_some() && leased[0].more.is_none());
        assert_eq!(task.fail("broken").await, Ok(Held::Yes));
        queue.push("waits").await.expect("the push succeeds");
        let ready = queue.inspect(View::Ready, 0, 9).await.expect("the queue can be inspected");
        let dead = queue.inspect(View::Dead, 0, 9).await.expect("the queue can be inspected");
        for seen in [&ready[0], &dead[0]] {
            assert_eq!((seen.deliveries, seen.elapsed), (None, None), "{seen:?}");
            assert!(seen.at.0 > 1_600_000_000_000, "{seen:?}");
        }
        let death = dead[0].more.as_ref().expect("a dead task has a reason");
        assert_eq!((death.tries.failed, death.reason.as_deref()), (1, Some(&b"broken"[..])));
    })
    .await;
}

/// Opening a home does not block the only thread of the runtime.
#[tokio::test]
async fn opening_and_closing_a_home_does_not_block_the_runtime() {
    let silent = std::net::TcpListener::bind(("127.0.0.1", 0)).expect("loopback has free ports");
    let url = format!("sureq://{}", silent.local_addr().expect("it is bound"));
    let opening = tokio::spawn(async move { sureq::open_async(&url).await });
    // The server accepts and does not answer. This thread runs meanwhile, and ends the wait.
    let (accepted, _) =
        tokio::task::spawn_blocking(move || silent.accept()).await.expect("no panic").expect("it came");
    assert!(!opening.is_finished(), "no answer has arrived");
    drop(accepted);
    opening.await.expect("it does not panic").expect_err("it is no server");
    let home = sureq::open_async("mem:").await.expect("a home in memory opens");
    home.queue("q").push("x").await.expect("the push succeeds");
    home.close_async().await.expect("the home closes");
    home.queue("q").push("x").await.expect_err("it is closed");
}
