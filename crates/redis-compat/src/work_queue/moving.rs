//! Serves waiting pops on queues from which foreign clients take tasks too.
//!
//! Redis serves blocked clients the moment a task arrives, so a home that only looked at the queue would get nothing
//! beside them. So the home blocks as well: a BLMOVE moves an id from the queue to the processed items, and a call
//! leases it right after that. One connection per queue does so for all waiters of this process. If the process dies
//! between the two steps, the id has no lease, and cleaning requeues it.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;
use std::time::Duration;

use futures_util::future::join_all;
use redis::aio::MultiplexedConnection;
use redis::{RedisError, cmd};
use sureq_core::{Refusal, Replies, Reply};
use tokio::sync::Notify;
use tokio::task::JoinHandle;
use tokio::time::{sleep, timeout};

use super::{Session, processing_key, with_moved};
use sureq_redis::layout::{Call, HomeThread, Patience, is_again, refusal_of};

const RETRY_MIN: Duration = Duration::from_millis(50);
const RETRY_MAX: Duration = Duration::from_secs(2);

/// How long a connection is kept for a queue without waiters.
const IDLE: Duration = Duration::from_secs(30);

/// How much later than here a timeout may end in Redis, before the connection is unblocked.
const GRACE: Duration = Duration::from_millis(50);

/// How long a connection may take to stop blocking; then it is dropped.
const STOP: Duration = Duration::from_secs(1);

/// Errors of Redis that pass.
const PASSING: [&str; 7] =
    ["UNBLOCKED", "LOADING", "READONLY", "MASTERDOWN", "CLUSTERDOWN", "TRYAGAIN", "MISCONF"];

/// The movers: one for each queue that has or recently had waiters.
#[derive(Default)]
pub(crate) struct Moves {
    movers: RefCell<BTreeMap<Vec<u8>, Mover>>,
    is_ending: Cell<bool>,
}

struct Mover {
    /// Notifies that the waiters have changed.
    changed: Rc<Notify>,
    task: JoinHandle<()>,
}

impl Moves {
    /// Stops all movers, so that nothing is moved any more. There must be no waiters.
    pub(crate) async fn end(&self) {
        self.is_ending.set(true);
        let movers = self.movers.take();
        for mover in movers.values() {
            mover.changed.notify_one();
        }
        let ended = join_all(movers.into_values().map(|mover| mover.task));
        // A mover that does not stop loses its connection when the home closes; cleaning requeues an id that it
        // moved.
        let _ = timeout(STOP * 2, ended).await;
    }

    fn notify(&self) {
        self.movers.borrow().values().for_each(|mover| mover.changed.notify_one());
    }
}

/// Starts a mover for every queue with waiters, and answers waiters that have timed out, while the home is open.
pub(crate) async fn serve_moves(session: Rc<Session>, home: Rc<HomeThread>) {
    loop {
        let looks = home.waiters().take_looks();
        let now = home.now_ms();
        home.waiters().drop_late(now);
        if !session.moves.is_ending.get() {
            for queue in home.waiters().queues() {
                session.moves.movers.borrow_mut().entry(queue).or_insert_with_key(|queue| {
                    let changed = Rc::new(Notify::new());
                    let moving =
                        move_ids(Rc::clone(&session), Rc::clone(&home), queue.clone(), Rc::clone(&changed));
                    Mover { changed, task: tokio::task::spawn_local(moving) }
                });
            }
        }
        session.moves.notify();
        // There is nothing to try: Redis serves blocked clients before it executes the next command.
        for done in looks {
            // The receiver may be gone.
            let _ = done.send(());
        }
        home.waiters().sleep(now).await;
    }
}

/// Moves ids of a queue to its waiters, until it has had none for a while.
async fn move_ids(session: Rc<Session>, home: Rc<HomeThread>, queue: Vec<u8>, changed: Rc<Notify>) {
    let (mut connection, mut pause) = (None, RETRY_MIN);
    loop {
        if !home.waiters().is_wanted(&queue) {
            let is_over = session.moves.is_ending.get() || timeout(IDLE, changed.notified()).await.is_err();
            if is_over && !home.waiters().is_wanted(&queue) {
                session.moves.movers.borrow_mut().remove(&queue);
                return;
            }
            continue;
        }
        let moved = match connection.take() {
            Some(kept) => move_one(&session, &home, &queue, &changed, kept).await,
            None => match home.blocking_connection().await {
                Ok(new) => move_one(&session, &home, &queue, &changed, new).await,
                Err(error) => Err(error),
            },
        };
        match moved {
            Ok((id, kept)) => {
                connection = kept;
                let is_over = match id {
                    Some(id) => hand_over(&home, &queue, id).await,
                    None => true,
                };
                if is_over {
                    pause = RETRY_MIN;
                } else {
                    sleep(pause).await;
                    pause = (pause * 2).min(RETRY_MAX);
                }
            }
            Err(error) if is_passing(&error) => {
                sleep(pause).await;
                pause = (pause * 2).min(RETRY_MAX);
            }
            Err(error) => {
                let no = match refusal_of(&error) {
                    no @ Refusal::WrongType { .. } => no,
                    _ => Refusal::Unavailable { why: format!("Redis says: {error}").into() },
                };
                while let Some(waiter) = home.waiters().next(&queue) {
                    waiter.refuse(&no);
                }
            }
        }
    }
}

/// Whether a retry may succeed.
fn is_passing(error: &RedisError) -> bool {
    match error.code() {
        Some(code) => PASSING.contains(&code),
        None => true,
    }
}

type Blocking = (MultiplexedConnection, u64);

/// Waits for one id, as long as the queue has waiters. Returns the connection if it can be used again.
async fn move_one(
    session: &Session,
    home: &HomeThread,
    queue: &[u8],
    changed: &Notify,
    blocking: Blocking,
) -> Result<(Option<Vec<u8>>, Option<Blocking>), RedisError> {
    let (mut connection, number) = blocking;
    let now = home.now_ms();
    let Some(block_ms) = home.waiters().block_ms(queue, now) else {
        return Ok((None, Some((connection, number))));
    };
    let seconds = Duration::from_millis(block_ms).as_secs_f64();
    let (from, to) = (home.target().queue_key(queue), processing_key(home.target().prefix(), queue));
    let mut command = cmd("BLMOVE");
    command.arg(from).arg(to).arg("RIGHT").arg("LEFT").arg(seconds);
    let kept = connection.clone();
    let moving = command.query_async::<Option<Vec<u8>>>(&mut connection);
    tokio::pin!(moving);
    loop {
        tokio::select! {
            moved = &mut moving => return Ok((moved?, Some((kept, number)))),
            () = changed.notified() => {}
        }
        if home.waiters().is_wanted(queue) {
            continue;
        }
        let grace_ms = GRACE.as_millis() as u64;
        let is_ending_itself = block_ms > 0 && now + block_ms <= home.now_ms() + grace_ms;
        if is_ending_itself
            && !session.moves.is_ending.get()
            && let Ok(moved) = timeout(GRACE * 2, &mut moving).await
        {
            return Ok((moved?, Some((kept, number))));
        }
        if home.waiters().is_wanted(queue) {
            continue;
        }
        // If this fails, the connection is dropped.
        let _ = home.unblock(number).await;
        return match timeout(STOP, &mut moving).await {
            Ok(moved) => Ok((moved?, Some((kept, number)))),
            // Dropping the connection closes it, and nothing is moved over it any more.
            Err(_) => Ok((None, None)),
        };
    }
}

/// Delivers a moved id to the first waiter, or moves it back if there is none. False if Redis refuses for now: then
/// the next id should stay in the queue for a while.
async fn hand_over(home: &HomeThread, queue: &[u8], id: Vec<u8>) -> bool {
    let Some(waiter) = home.waiters().next(queue) else {
        // If this fails, cleaning requeues it.
        return home.call(&Call::about("unmove", queue).arg(id), Patience::Normal).await.is_ok();
    };
    let from = waiter.queues.iter().position(|name| name == queue).unwrap_or_default();
    let call = with_moved(&waiter.call, from, id);
    let mut answer = home.call(&call, Patience::Normal).await;
    // Tasks that no replica has confirmed are requeued, as those of other pops are.
    if matches!(answer, Err(Refusal::Unknown { .. })) && !home.requeue_if_unconfirmed(&call).await {
        // Repeating is safe: this home may lease an id again that it has leased.
        let again = home.call(&call, Patience::Normal).await;
        if !matches!(again, Err(Refusal::Unavailable { .. })) {
            answer = again;
        }
        home.requeue_if_unconfirmed(&call).await;
    }
    let mut replies = Replies::default();
    match answer {
        // Nothing was done: the waiter stays, and cleaning requeues the id.
        Err(Refusal::Unavailable { .. }) => {
            home.waiters().restore(waiter);
            return false;
        }
        Err(no) => replies.list.push(Reply::Refused(no)),
        // Ids without items were removed, and more may follow.
        Ok(answer) if is_again(&answer) => {
            home.waiters().restore(waiter);
            return true;
        }
        Ok(answer) => replies = home.read_tasks(answer),
    }
    // The id had no item.
    if matches!(replies.list.last(), Some(Reply::Tasks(span)) if span.is_empty()) {
        home.waiters().restore(waiter);
        return true;
    }
    home.answer(&waiter, replies).await;
    // Movers of its other queues may not be needed any more.
    home.waiters().wake();
    true
}
