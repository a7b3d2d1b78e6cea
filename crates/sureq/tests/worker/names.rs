//! Two workers of one name: the later one works, and the earlier one ends with an error that says why.

use std::time::Duration;

use sureq::{Home, State, Stop, Token, Worker, WorkerError};
use sureq_testkit::local_server::LocalServer;
use sureq_testkit::process::free_port;
use sureq_testkit::redis_module::Host;
use sureq_testkit::redis_server::RedisServer;

use crate::support::{AtWork, Tell, counts, said};

const NAME: &str = "twin";
const TASKS: usize = 6;

/// Reports that it runs, and later why its token fired.
async fn until_stopped(tell: State<Tell<Option<Stop>>>, token: Token) {
    let _ = tell.send(None);
    let _ = tell.send(Some(token.wait().await));
}

fn worker(home: &Home) -> Worker {
    Worker::new(home).name(NAME).ttl(Duration::from_millis(1500)).lease(Duration::from_secs(60))
}

/// Starts a second worker under the name of one that is busy.
async fn check(home: &Home, home_of_the_second: &Home) {
    let queue = home.queue("q");
    queue.push_all(["x"; TASKS]).await.expect("the push succeeds");
    let (tell, mut said) = said::<Option<Stop>>();
    let first = AtWork::start(worker(home).concurrency(2).state(tell).work("q", until_stopped));
    assert_eq!(said.many(2).await, [None, None], "both handlers run");

    let second = AtWork::start(worker(home_of_the_second).work("q", async || ()));
    let error = first.end().await.expect_err("it was replaced");
    assert!(matches!(&error, WorkerError::Replaced { name } if name == NAME), "{error}");
    assert_eq!(said.many(2).await, [Some(Stop::WorkerLost); 2]);
    assert_eq!(said.rest(), [], "it took nothing more");

    second.tally(|tally| tally.done == TASKS as u64).await;
    let tally = second.stop().await;
    assert_eq!((tally.taken, tally.done, tally.lost), (TASKS as u64, TASKS as u64, 0));
    counts(&queue, |info| info.ready + info.delayed + info.leased + info.dead == 0).await;
    assert_eq!(home.workers().await.expect("the workers can be listed").len(), 0);
}

fn open(url: &str) -> Home {
    sureq::open(url).expect("the home opens")
}

#[tokio::test]
async fn a_second_worker_of_a_name_replaces_the_first_in_a_directory() {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let home = open(&format!("file:{}", dir.path().display()));
    check(&home, &home).await;
}

#[tokio::test]
async fn a_second_worker_of_a_name_replaces_the_first_on_a_server() {
    let server = LocalServer::start(&open("mem:"));
    check(&open(&server.url()), &open(&server.url())).await;
}

#[tokio::test]
async fn a_second_worker_of_a_name_replaces_the_first_on_a_redis() {
    let redis = RedisServer::start();
    check(&open(&redis.url()), &open(&redis.url())).await;
}

#[tokio::test]
async fn a_second_worker_of_a_name_replaces_the_first_on_the_module() {
    let port = free_port();
    let _redis = Host::Redis.start(&["--port", &port.to_string()], &[]);
    let url = format!("sureq://127.0.0.1:{port}");
    check(&open(&url), &open(&url)).await;
}
