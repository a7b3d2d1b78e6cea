//! How pops wait for a queue that foreign clients take from too.
//!
//! Whoever only looked would never get anything beside clients that block: Redis serves those the moment something comes. So
//! this blocks as they do, by a BLMOVE from the queue to what is processed, and leases what it was given right after. One
//! connection of its own does that for each queue, for all who wait in this process. If the process dies between the two
//! steps, the id stands there without a lease, and cleaning brings it back.

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

/// How long a connection is kept for a queue that nobody waits for.
const IDLE: Duration = Duration::from_secs(30);

/// How much later than here the time of the last who waited may be up in Redis, before it is told to stop.
const GRACE: Duration = Duration::from_millis(50);

/// How long a connection may take to stop blocking once it was told to; then it is given up.
const STOP: Duration = Duration::from_secs(1);

/// Errors of Redis that pass.
const PASSING: [&str; 7] =
    ["UNBLOCKED", "LOADING", "READONLY", "MASTERDOWN", "CLUSTERDOWN", "TRYAGAIN", "MISCONF"];

/// Those who move, one for each queue that is or was waited for lately.
#[derive(Default)]
pub(crate) struct Moves {
    movers: RefCell<BTreeMap<Vec<u8>, Mover>>,
    is_ending: Cell<bool>,
}

struct Mover {
    /// Who waits has changed.
    changed: Rc<Notify>,
    task: JoinHandle<()>,
}

impl Moves {
    /// Stops all, so that nothing is moved any more. Nobody must be waiting.
    pub(crate) async fn end(&self) {
        self.is_ending.set(true);
        let movers = self.movers.take();
        for mover in movers.values() {
            mover.changed.notify_one();
        }
        let ended = join_all(movers.into_values().map(|mover| mover.task));
        // One that does not stop loses its connection with the home; cleaning heals what it moved.
        let _ = timeout(STOP * 2, ended).await;
    }

    fn tell(&self) {
        self.movers.borrow().values().for_each(|mover| mover.changed.notify_one());
    }
}

/// Has someone move for every queue that is waited for, and answers those whose time is up, for as long as the home is open.
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
        session.moves.tell();
        // Nothing has to be tried: Redis itself serves those who block, before it executes the next command.
        for done in looks {
            // Whoever asked may have stopped listening.
            let _ = done.send(());
        }
        home.waiters().sleep(now).await;
    }
}

/// Moves ids of a queue for those who wait for it, until nobody has for a while.
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

/// Whether there may be an answer if it is tried again.
fn is_passing(error: &RedisError) -> bool {
    match error.code() {
        Some(code) => PASSING.contains(&code),
        None => true,
    }
}

type Blocking = (MultiplexedConnection, u64);

/// Waits for one id, for as long as somebody waits for it. Gives the connection back if it can be used again.
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
        // If it is not heard, the connection is given up.
        let _ = home.unblock(number).await;
        return match timeout(STOP, &mut moving).await {
            Ok(moved) => Ok((moved?, Some((kept, number)))),
            // Dropped, it is closed, and nothing is moved for it any more.
            Err(_) => Ok((None, None)),
        };
    }
}

/// Gives an id that was moved to the first who waits for it, or back if nobody does. False if Redis would not: then the next
/// one is better left where it is for a while.
async fn hand_over(home: &HomeThread, queue: &[u8], id: Vec<u8>) -> bool {
    let Some(waiter) = home.waiters().next(queue) else {
        // What cannot be given back now is brought back by cleaning.
        return home.call(&Call::about("unmove", queue).arg(id), Patience::Normal).await.is_ok();
    };
    let from = waiter.queues.iter().position(|name| name == queue).unwrap_or_default();
    let call = with_moved(&waiter.call, from, id);
    let mut answer = home.call(&call, Patience::Normal).await;
    if matches!(answer, Err(Refusal::Unknown { .. })) {
        // Whether or not it was leased by this home, it may be leased by this home again.
        let again = home.call(&call, Patience::Normal).await;
        if !matches!(again, Err(Refusal::Unavailable { .. })) {
            answer = again;
        }
    }
    let mut replies = Replies::default();
    match answer {
        // Nothing was done: it goes on waiting, and cleaning brings the id back.
        Err(Refusal::Unavailable { .. }) => {
            home.waiters().restore(waiter);
            return false;
        }
        Err(no) => replies.list.push(Reply::Refused(no)),
        // There were ghosts, and there is more behind them.
        Ok(answer) if is_again(&answer) => {
            home.waiters().restore(waiter);
            return true;
        }
        Ok(answer) => replies = home.read_tasks(answer),
    }
    // It was a ghost.
    if matches!(replies.list.last(), Some(Reply::Tasks(span)) if span.is_empty()) {
        home.waiters().restore(waiter);
        return true;
    }
    home.answer(&waiter, replies).await;
    // Whoever moves from its other queues need not any more.
    home.waiters().wake();
    true
}
