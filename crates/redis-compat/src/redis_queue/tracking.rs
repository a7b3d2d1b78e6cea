//! Wakes pops that wait for a list that is never empty.
//!
//! A taken task stays in the list, so a blocking command would return at once. Instead Redis reports that the list
//! has changed (`CLIENT TRACKING`), over one connection per queue with waiters: on one connection, no tracked prefix
//! may be the beginning of another. The script reports when a task will be late.

use std::rc::Rc;
use std::time::{Duration, Instant};

use redis::aio::MultiplexedConnection;
use redis::{PushInfo, PushKind, RedisError, Value, cmd};
use sureq_redis::layout::{HANGS, HomeThread, SubscriptionRequests};
use tokio::sync::oneshot;
use tokio::time::{sleep, timeout};

const RETRY_MIN: Duration = Duration::from_millis(50);
const RETRY_MAX: Duration = Duration::from_secs(2);

/// How long a connection is kept for a queue without waiters.
const IDLE: Duration = Duration::from_secs(30);

/// Tracks every queue with waiters, while the home is open.
pub(crate) async fn track(home: Rc<HomeThread>, mut requests: SubscriptionRequests) {
    while let Some((queue, done)) = requests.recv().await {
        if home.waiters().begin_subscription(&queue) {
            tokio::task::spawn_local(track_one(Rc::clone(&home), queue, done));
        }
        // A request for a queue that is tracked already is dropped: its waiters are tried anyway.
    }
}

async fn track_one(home: Rc<HomeThread>, queue: Vec<u8>, done: oneshot::Sender<()>) {
    let (mut done, mut pause) = (Some(done), RETRY_MIN);
    loop {
        let began = Instant::now();
        if listen(&home, &queue, done.take()).await.is_ok() {
            break;
        }
        // The connection was lost, or there is none yet. Looking at the queue makes up for missed messages.
        home.probe().await;
        home.waiters().try_soon(&queue);
        if began.elapsed() > RETRY_MAX {
            pause = RETRY_MIN;
        }
        sleep(pause).await;
        pause = (pause * 2).min(RETRY_MAX);
    }
    home.waiters().end_subscription(&queue);
}

/// Tracks a queue until it has had no waiters for a while. `done` is dropped if tracking does not begin.
async fn listen(
    home: &HomeThread,
    queue: &[u8],
    done: Option<oneshot::Sender<()>>,
) -> Result<(), RedisError> {
    let key = home.target().queue_key(queue);
    let (mut connection, mut pushes) = home.push_connection().await?;
    let mut tracking = cmd("CLIENT");
    tracking.arg("TRACKING").arg("ON").arg("BCAST").arg("PREFIX").arg(&key);
    tracking.query_async::<()>(&mut connection).await?;
    if let Some(done) = done {
        // The waiter may be gone.
        let _ = done.send(());
    }
    home.waiters().try_soon(queue);
    loop {
        match timeout(IDLE, pushes.recv()).await {
            Ok(Some(said)) if said.kind == PushKind::Disconnection => return Err(lost()),
            Ok(Some(said)) if is_about(&said, &key) => home.waiters().try_soon(queue),
            Ok(Some(_)) => {}
            Ok(None) => return Err(lost()),
            Err(_) if home.waiters().is_wanted(queue) => still_there(&mut connection).await?,
            Err(_) => return Ok(()),
        }
    }
}

/// Pings over this connection.
async fn still_there(connection: &mut MultiplexedConnection) -> Result<(), RedisError> {
    timeout(HANGS, cmd("PING").query_async(connection)).await.unwrap_or_else(|_| Err(lost()))
}

fn lost() -> RedisError {
    std::io::Error::from(std::io::ErrorKind::ConnectionReset).into()
}

/// Whether this key has changed; Redis reports all keys that begin with it.
fn is_about(said: &PushInfo, key: &[u8]) -> bool {
    let is_key = |value: &Value| matches!(value, Value::BulkString(name) if name == key);
    said.kind == PushKind::Invalidate
        && said.data.iter().any(|value| match value {
            Value::Array(keys) => keys.iter().any(is_key),
            // The database was flushed.
            Value::Nil => true,
            _ => false,
        })
}
