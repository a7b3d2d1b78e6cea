//! How pops wait for a list that is never empty.
//!
//! What was taken stays in the list, so that a command that blocks would not. Instead Redis is told to say when the list changes,
//! over a connection of its own for each queue that is waited for: the names of two queues on one connection must not begin
//! alike. When what was taken will be late is the script's answer.

use std::rc::Rc;
use std::time::{Duration, Instant};

use redis::aio::MultiplexedConnection;
use redis::{PushInfo, PushKind, RedisError, Value, cmd};
use sureq_redis::layout::{HANGS, HomeThread, SubscriptionRequests};
use tokio::sync::oneshot;
use tokio::time::{sleep, timeout};

const RETRY_MIN: Duration = Duration::from_millis(50);
const RETRY_MAX: Duration = Duration::from_secs(2);

/// How long a connection is kept for a queue that nobody waits for.
const IDLE: Duration = Duration::from_secs(30);

/// Has someone listen for every queue that is waited for, for as long as the home is open.
pub(crate) async fn track(home: Rc<HomeThread>, mut requests: SubscriptionRequests) {
    while let Some((queue, done)) = requests.recv().await {
        if home.waiters().begin_subscription(&queue) {
            tokio::task::spawn_local(track_one(Rc::clone(&home), queue, done));
        }
        // Dropped otherwise: whoever listens already tries everyone when it does.
    }
}

async fn track_one(home: Rc<HomeThread>, queue: Vec<u8>, done: oneshot::Sender<()>) {
    let (mut done, mut pause) = (Some(done), RETRY_MIN);
    loop {
        let began = Instant::now();
        if listen(&home, &queue, done.take()).await.is_ok() {
            break;
        }
        // The connection was lost, or there is none yet: what was missed meanwhile is found by looking.
        home.probe().await;
        home.waiters().stir(&queue);
        if began.elapsed() > RETRY_MAX {
            pause = RETRY_MIN;
        }
        sleep(pause).await;
        pause = (pause * 2).min(RETRY_MAX);
    }
    home.waiters().end_subscription(&queue);
}

/// Listens until nobody has waited for the queue for a while. Whoever requests to know when that begins is not kept if it does not.
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
        // Whoever wanted it may have left.
        let _ = done.send(());
    }
    home.waiters().stir(queue);
    loop {
        match timeout(IDLE, pushes.recv()).await {
            Ok(Some(said)) if said.kind == PushKind::Disconnection => return Err(lost()),
            Ok(Some(said)) if is_about(&said, &key) => home.waiters().stir(queue),
            Ok(Some(_)) => {}
            Ok(None) => return Err(lost()),
            Err(_) if home.waiters().is_wanted(queue) => still_there(&mut connection).await?,
            Err(_) => return Ok(()),
        }
    }
}

/// Finds out whether the server still answers over this connection.
async fn still_there(connection: &mut MultiplexedConnection) -> Result<(), RedisError> {
    timeout(HANGS, cmd("PING").query_async(connection)).await.unwrap_or_else(|_| Err(lost()))
}

fn lost() -> RedisError {
    std::io::Error::from(std::io::ErrorKind::ConnectionReset).into()
}

/// Whether this key has changed; Redis tells of all that begin like it.
fn is_about(said: &PushInfo, key: &[u8]) -> bool {
    let is_key = |value: &Value| matches!(value, Value::BulkString(name) if name == key);
    said.kind == PushKind::Invalidate
        && said.data.iter().any(|value| match value {
            Value::Array(keys) => keys.iter().any(is_key),
            // All keys are gone.
            Value::Nil => true,
            _ => false,
        })
}
