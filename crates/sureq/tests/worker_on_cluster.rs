//! A worker on queues of several servers of a cluster: a server that hangs delays its own queues only.

use std::sync::Arc;
use std::time::{Duration, Instant};

use sureq::{State, Stop, Token, Worker, WorkerHandle, WorkerStatus};
use sureq_testkit::redis_cluster::RedisCluster;
use tokio::sync::mpsc::{UnboundedSender, unbounded_channel};
use tokio::sync::{Notify, Semaphore};
use tokio::time::timeout;

/// A timeout that only a hang reaches.
const PATIENCE: Duration = Duration::from_secs(30);
const LEASE: Duration = Duration::from_secs(2);

/// A message of a handler: its payload, and why its token fired.
type Said = (String, Option<Stop>);

async fn until(handle: &WorkerHandle, is_so: impl Fn(&WorkerStatus) -> bool) {
    let since = Instant::now();
    while !handle.status().is_some_and(|status| is_so(&status)) {
        assert!(since.elapsed() < PATIENCE, "the condition was never met: {:?}", handle.status());
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

/// The name of a queue whose primary satisfies the condition.
fn name_on(cluster: &RedisCluster, is_there: impl Fn(usize) -> bool) -> String {
    let mut names = (0..100).map(|n| format!("q{n}"));
    let key = |name: &str| format!("sureq:q:{{{name}}}:body");
    names.find(|name| is_there(cluster.owners(&key(name)).0)).expect("names are spread over all servers")
}

struct Gates {
    healthy: Notify,
    silent: Semaphore,
}

async fn wait(payload: String, token: Token, tell: State<UnboundedSender<Said>>, gates: State<Arc<Gates>>) {
    let _ = tell.send((payload.clone(), None));
    if payload == "silent, brief" {
        let _passed = gates.silent.acquire().await;
        return;
    }
    tokio::select! {
        why = token.wait() => {
            let _ = tell.send((payload, Some(why)));
        }
        () = gates.healthy.notified(), if payload == "healthy" => {}
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_hangs_does_not_affect_tasks_on_other_servers() {
    // The primary has no replica that could replace it, and the other servers continue without it.
    let cluster = RedisCluster::start_with(&["--cluster-require-full-coverage", "no"]);
    let silent = name_on(&cluster, |_| true);
    let (primary, replica) = cluster.owners(&format!("sureq:q:{{{silent}}}:body"));
    let healthy = name_on(&cluster, |server| server != primary);
    let home = sureq::open(&cluster.url()).expect("the cluster opens");
    home.queue(&healthy).push("healthy").await.expect("the push succeeds");
    home.queue(&silent).push_all(["silent, long", "silent, brief"]).await.expect("the push succeeds");
    let (tell, mut said) = unbounded_channel::<Said>();
    let gates = Arc::new(Gates { healthy: Notify::new(), silent: Semaphore::new(0) });
    let worker = Worker::new(&home).lease(LEASE).grace(Duration::ZERO).state(tell);
    let worker = worker.state(Arc::clone(&gates));
    let worker = worker.work(&healthy, wait).work(&silent, wait);
    let handle = worker.handle();
    let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
    let run = tokio::spawn(worker.run_until(async { _ = stopped.await }));
    until(&handle, |status| status.tally.taken == 3).await;
    for _ in 0..3 {
        assert_eq!(said.recv().await.expect("they run").1, None);
    }

    cluster.server(replica.expect("the primary has a replica")).suspend();
    cluster.server(primary).suspend();
    // The outcome of this task cannot be confirmed for now.
    gates.silent.add_permits(1);
    until(&handle, |status| status.unconfirmed == 1).await;
    // The token of the running handler fires in time. That of the healthy one does not fire, however long the outage
    // takes.
    let report = timeout(PATIENCE, said.recv()).await.expect("a handler reports it").expect("it runs");
    assert_eq!(report, ("silent, long".to_owned(), Some(Stop::LeaseLost)));
    let report = timeout(2 * LEASE, said.recv()).await;
    assert!(report.is_err(), "the healthy one keeps its lease: {report:?}");
    gates.healthy.notify_one();
    until(&handle, |status| status.tally.done == 1).await;
    assert_eq!(handle.status().expect("it runs").unconfirmed, 2, "the silent server has confirmed nothing");
    let info = home.queue(&healthy).info().await.expect("the home answers");
    assert_eq!((info.ready, info.leased), (0, 0), "it is done, once");

    cluster.server(primary).resume();
    cluster.server(replica.expect("the primary has a replica")).resume();
    until(&handle, |status| status.unconfirmed == 0).await;
    let _ = stop.send(());
    run.await.expect("it does not panic").expect("the worker ends without an error");
}
