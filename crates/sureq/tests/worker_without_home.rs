//! A worker whose home hangs or dies while handlers run.

use std::sync::Arc;
use std::time::{Duration, Instant};

use sureq::{Failure, Home, State, Stop, Tally, Token, Worker, WorkerHandle, WorkerStatus};
use sureq_testkit::machine_watch::MachineWatch;
use sureq_testkit::patience::until;
use sureq_testkit::process::{free_port, unread_bytes};
use sureq_testkit::redis_server::RedisServer;
use tokio::sync::Notify;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;
use tokio::time::timeout;

/// A timeout that only a hang reaches.
const PATIENCE: Duration = Duration::from_secs(30);

struct AtWork {
    handle: WorkerHandle,
    stop: oneshot::Sender<()>,
    run: JoinHandle<Tally>,
}

impl AtWork {
    fn start(worker: Worker) -> Self {
        let (stop, stopped) = oneshot::channel();
        let handle = worker.handle();
        let run = async {
            let stop = async { _ = stopped.await };
            worker.run_until(stop).await.expect("the worker ends without an error")
        };
        Self { handle, stop, run: tokio::spawn(run) }
    }

    async fn until(&self, is_so: impl Fn(&WorkerStatus) -> bool) {
        let since = Instant::now();
        while !self.handle.status().is_some_and(|status| is_so(&status)) {
            assert!(since.elapsed() < PATIENCE, "the condition was never met: {:?}", self.handle.status());
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }

    async fn stop(self) -> Tally {
        let _ = self.stop.send(());
        timeout(PATIENCE, self.run).await.expect("it ends").expect("it does not panic")
    }
}

async fn open(url: &str, layout: &str) -> Home {
    let home = sureq::open(&format!("{url}?layout={layout}")).expect("Redis listens");
    home.queue("q").push("x").await.expect("the push succeeds");
    home
}

async fn fail_when_released(gate: State<Arc<Notify>>) -> Result<(), Failure> {
    gate.notified().await;
    Err(Failure::new("the test failed it"))
}

/// Lets a handler fail while Redis hangs, and then kills Redis. Whether the task was returned is unknown.
async fn fail_while_redis_hangs(layout: &str) -> AtWork {
    let port = free_port();
    let mut redis = RedisServer::start_at(port);
    let home = open(&format!("redis://127.0.0.1:{port}"), layout).await;
    let gate = Arc::<Notify>::default();
    let worker = Worker::new(&home).state(Arc::clone(&gate)).grace(Duration::ZERO);
    let worker = AtWork::start(worker.work("q", fail_when_released));
    worker.until(|status| status.running == 1).await;
    redis.suspend();
    gate.notify_one();
    worker.until(|status| status.unconfirmed == 1).await;
    until("it has been sent", || unread_bytes(port) > 0);
    redis.kill();
    worker
}

/// Without a fence, a second return could take the task from another worker.
#[tokio::test]
async fn a_return_by_a_bare_id_is_not_retried_after_a_lost_reply() {
    let worker = fail_while_redis_hangs("work-queue").await;
    worker.until(|status| status.tally.unknown == 1 && status.unconfirmed == 0).await;
    assert_eq!(worker.stop().await.unknown, 1);
}

/// With a receipt, the return is retried until the worker ends. Then its outcome is unknown.
#[tokio::test]
async fn unconfirmed_outcomes_at_the_end_count_as_unknown() {
    let worker = fail_while_redis_hangs("sureq").await;
    worker.until(|status| status.outages > 0).await;
    let tally = worker.stop().await;
    assert_eq!((tally.taken, tally.unknown, tally.failed), (1, 1, 0));
}

/// A handler that runs too long is stopped in time, though the heartbeats of the worker are not answered.
#[tokio::test]
async fn a_handler_is_aborted_at_run_max_while_the_home_hangs() {
    let redis = RedisServer::start();
    let home = open(&redis.url(), "sureq").await;
    let (tell, mut ended) = tokio::sync::mpsc::unbounded_channel::<Instant>();
    let handler = move |token: Token| {
        let tell = tell.clone();
        async move {
            /// Reports that the handler is dropped, if its token fired for that reason.
            struct Dropped(Token, tokio::sync::mpsc::UnboundedSender<Instant>);
            impl Drop for Dropped {
                fn drop(&mut self) {
                    if self.0.fired() == Some(Stop::TooLong) {
                        let _ = self.1.send(Instant::now());
                    }
                }
            }
            let _dropped = Dropped(token, tell);
            std::future::pending::<()>().await;
        }
    };
    // The worker sends a heartbeat after four seconds, and waits six seconds for the reply.
    let ttl = Duration::from_secs(12);
    let worker = Worker::new(&home).lease(ttl).ttl(ttl).run_max(Duration::from_secs(5)).grace(Duration::ZERO);
    let worker = worker.work("q", handler);
    let worker = AtWork::start(worker);
    worker.until(|status| status.running == 1).await;
    let (machine, since) = (MachineWatch::start(), Instant::now());
    redis.suspend();
    let ended = timeout(PATIENCE, ended.recv()).await.expect("it is ended").expect("it says so");
    machine.assert_within(ended - since, Duration::from_secs(7), "the end of the handler");
    redis.resume();
    worker.until(|status| status.tally.failed == 1).await;
    worker.stop().await;
}
