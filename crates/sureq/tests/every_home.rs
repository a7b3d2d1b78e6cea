//! What the library tells of tasks is true in every home, and the same.

use std::time::Duration;

use sureq::{Held, Home, View};
use sureq_testkit::local_server::LocalServer;
use sureq_testkit::redis_server::RedisServer;

/// Runs a check in memory, on a server and on a Redis.
async fn everywhere(check: impl AsyncFn(&Home)) {
    let memory = sureq::open("mem:").expect("memory is there");
    check(&memory).await;
    let server = LocalServer::start(&sureq::open("mem:").expect("memory is there"));
    check(&sureq::open(&server.url()).expect("it listens")).await;
    let redis = RedisServer::start();
    check(&sureq::open(&redis.url()).expect("it listens")).await;
}

#[tokio::test]
async fn a_task_that_was_taken_without_a_lease_can_be_finished_extended_and_given_back() {
    everywhere(async |home| {
        let queue = home.queue("q");
        let id = queue.push("x").await.expect("it is pushed");
        let task = queue.pop().no_lease().await.expect("it can be asked").expect("it is there");
        assert_eq!((task.id(), task.delivery()), (id.clone(), 1));
        assert_eq!(task.extend(Duration::from_secs(60)).await, Ok(Held::Yes), "{task:?}");
        assert_eq!(task.give_back().await, Ok(Held::Yes), "{task:?}");
        let again = queue.pop().no_lease().await.expect("it can be asked").expect("it is there again");
        assert_eq!(again.id(), id);
        assert_eq!(again.ack().await, Ok(Held::Yes), "{}", again.receipt());
        assert_eq!(again.ack().await, Ok(Held::Lost), "it is finished once");
        assert_eq!(queue.info().await.expect("it can be asked").leased, 0);
    })
    .await;
}

#[tokio::test]
async fn an_inspected_task_has_only_known_fields() {
    everywhere(async |home| {
        let queue = home.queue("q");
        queue.add("dies").tries(1).await.expect("it is added");
        let task = queue.pop().await.expect("it can be asked").expect("it is there");
        let leased = queue.inspect(View::Leased, 0, 9).await.expect("it can be looked at");
        assert_eq!(leased[0].deliveries, Some(1));
        assert!(leased[0].elapsed.is_some() && leased[0].more.is_none());
        assert_eq!(task.fail("broken").await, Ok(Held::Yes));
        queue.push("waits").await.expect("it is pushed");
        let ready = queue.inspect(View::Ready, 0, 9).await.expect("it can be looked at");
        let dead = queue.inspect(View::Dead, 0, 9).await.expect("it can be looked at");
        for seen in [&ready[0], &dead[0]] {
            assert_eq!((seen.deliveries, seen.elapsed), (None, None), "{seen:?}");
            assert!(seen.at.0 > 1_600_000_000_000, "{seen:?}");
        }
        let death = dead[0].more.as_ref().expect("it died of something");
        assert_eq!((death.tries.failed, death.reason.as_deref()), (1, Some(&b"broken"[..])));
    })
    .await;
}

/// Whoever waits for a home does not hold up the runtime's only thread.
#[tokio::test]
async fn a_home_is_opened_and_closed_beside_other_tasks() {
    let silent = std::net::TcpListener::bind(("127.0.0.1", 0)).expect("loopback has free ports");
    let url = format!("sureq://{}", silent.local_addr().expect("it is bound"));
    let opening = tokio::spawn(async move { sureq::open_async(&url).await });
    // The server accepts and says nothing; this runs all the same, and ends the wait.
    let (accepted, _) =
        tokio::task::spawn_blocking(move || silent.accept()).await.expect("no panic").expect("it came");
    assert!(!opening.is_finished(), "nobody has answered");
    drop(accepted);
    opening.await.expect("it does not panic").expect_err("it is no server");
    let home = sureq::open_async("mem:").await.expect("memory is there");
    home.queue("q").push("x").await.expect("it is pushed");
    home.close_async().await.expect("it can be closed");
    home.queue("q").push("x").await.expect_err("it is closed");
}
