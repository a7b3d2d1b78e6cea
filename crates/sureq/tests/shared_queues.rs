//! The worker on queues shared with other programs: homes without leases, failures or delays are supported too.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use sureq::{Failure, Home, Outcome, State, Tally, Token, Worker, WorkerHandle};
use sureq_testkit::redis_server::RedisServer;

/// A timeout that only a hang reaches.
const PATIENCE: Duration = Duration::from_secs(30);

fn open(redis: &RedisServer, layout: &str) -> Home {
    sureq::open(&format!("{}?layout={layout}", redis.url())).expect("Redis listens")
}

/// Waits until the tally of a worker meets a condition.
async fn until(handle: &WorkerHandle, is_so: impl Fn(&Tally) -> bool) {
    let since = Instant::now();
    while !handle.status().is_some_and(|status| is_so(&status.tally)) {
        assert!(since.elapsed() < PATIENCE, "the condition was never met: {:?}", handle.status());
        tokio::task::yield_now().await;
    }
}

type Tries = Arc<AtomicU32>;

async fn fail_at_first(tries: State<Tries>) -> Result<(), Failure> {
    if tries.fetch_add(1, Ordering::SeqCst) == 0 { Err(Failure::new("not yet")) } else { Ok(()) }
}

/// Runs a worker over three tasks, the first of which fails once.
async fn work(home: &Home) -> Tally {
    let queue = home.queue("emails");
    queue.push_all(["a", "b", "c"]).await.expect("Redis answers");
    let worker = Worker::new(home).name("w").state(Tries::default()).work("emails", fail_at_first);
    let handle = worker.handle();
    let stop = async move { until(&handle, |tally| tally.done == 3).await };
    worker.run_until(stop).await.expect("the worker ends without an error")
}

#[tokio::test]
async fn a_worker_works_in_the_keys_of_each_program() {
    for layout in ["work-queue", "worqr", "redis-queue"] {
        let redis = RedisServer::start();
        let home = open(&redis, layout);
        let tally = work(&home).await;
        assert_eq!((tally.taken, tally.done, tally.failed), (4, 3, 1), "{layout}");
        let info = home.queue("emails").info().await.expect("Redis answers");
        assert_eq!((info.ready, info.leased), (0, 0), "{layout}");
        let left: i64 =
            redis::cmd("EXISTS").arg("worqr:workers").query(&mut redis.connect()).expect("it answers");
        assert_eq!(left, 0, "the worker is deregistered");
        home.close().expect("a Redis has nothing to lose");
    }
}

async fn wait_for_the_end(token: Token) -> Outcome {
    token.wait().await;
    Outcome::Cancelled
}

#[tokio::test]
async fn a_worker_learns_of_tasks_that_clients_of_worqr_cancelled() {
    let redis = RedisServer::start();
    let home = open(&redis, "worqr");
    home.queue("emails").push("a").await.expect("Redis answers");
    let worker = Worker::new(&home).name("w").ttl(Duration::from_secs(1)).work("emails", wait_for_the_end);
    let handle = worker.handle();
    let stop = async {
        until(&handle, |tally| tally.taken == 1).await;
        let (mut raw, since) = (redis.connect(), Instant::now());
        loop {
            let mut publish = redis::cmd("PUBLISH");
            let heard: i64 = publish.arg("worqr_emails_cancel").arg("a").query(&mut raw).expect("it answers");
            if heard > 0 {
                break;
            }
            assert!(since.elapsed() < PATIENCE, "the home does not listen");
            tokio::task::yield_now().await;
        }
        until(&handle, |tally| tally.cancelled == 1).await;
    };
    let tally = worker.run_until(stop).await.expect("the worker ends without an error");
    assert_eq!((tally.cancelled, tally.done), (1, 0));
    let info = home.queue("emails").info().await.expect("Redis answers");
    assert_eq!((info.ready, info.leased), (0, 0), "it is gone");
    home.close().expect("a Redis has nothing to lose");
}
