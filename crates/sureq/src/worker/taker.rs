//! The taker: pops as many tasks as there is room for, and starts their handlers.

use std::any::Any;
use std::panic::AssertUnwindSafe;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::time::{Duration, Instant};

use futures_util::FutureExt;
use sureq_core::reply::Outcome as Answered;
use sureq_core::{Command, Refusal, Reply};
use tokio::sync::watch;
use tokio::time::sleep;

use super::delivery::{Delivery, Live, Stop};
use super::outcome::{Again, Outcome};
use super::shared::{Backoff, Registration, Report, Shared};
use super::status::add;
use super::table::TaskSlot;
use crate::error::{Error, Result};
use crate::id::Receipt;
use crate::pop::PopMany;
use crate::queue::{millis, one};
use crate::task::Task;

/// The next pop.
#[derive(Debug)]
struct Plan {
    /// The indexes of queues, in the order of the pop.
    order: Vec<usize>,
    /// The room reserved for the waiting pop.
    count: usize,
    /// Queues have limits of their own, so that each is first popped for its own room.
    is_bounded: bool,
}

/// Pops tasks until an error ends the worker.
pub(super) async fn take(shared: &Arc<Shared>) -> Error {
    let mut registration = shared.registration.subscribe();
    let mut backoff = Backoff::default();
    loop {
        let seen = registration.borrow_and_update().clone();
        let incarnation = match seen {
            Registration::As(incarnation) => Some(incarnation),
            Registration::Unneeded => None,
            Registration::Ended(error) => return error,
            Registration::Pending => {
                // The sender is part of `shared`.
                let _ = registration.changed().await;
                continue;
            }
        };
        let Some(plan) = room_for_some(shared).await else { continue };
        let taken = async {
            if plan.is_bounded && take_at_once(shared, &plan.order, 0, incarnation).await? > 0 {
                return Ok(());
            }
            wait_for_some(shared, &plan, incarnation, &mut registration).await
        };
        match taken.await {
            Ok(()) => backoff.reset(),
            Err(error) => match wait_after(shared, error, &mut backoff).await {
                Ok(()) => {}
                Err(error) => return error,
            },
        }
    }
}

/// Waits for tasks of all queues with room, until some arrive or something changes.
async fn wait_for_some(
    shared: &Arc<Shared>,
    plan: &Plan,
    incarnation: Option<u64>,
    registration: &mut watch::Receiver<Registration>,
) -> Result<()> {
    let mut pop = pin!(ask_for(shared, &plan.order, plan.count, incarnation).wait_forever().run());
    loop {
        let freed = tokio::select! {
            biased;
            taken = &mut pop => {
                let tasks = taken?;
                shared.reachable();
                start(shared, tasks, incarnation);
                return Ok(());
            }
            _ = registration.changed() => return Ok(()),
            freed = more_room(shared, plan) => freed,
        };
        // The waiting pop stays open: on a server it has a connection of its own. Only if these queues have fewer
        // tasks than there is room does the worker wait for all queues together.
        take_at_once(shared, &freed, plan.count, incarnation).await?;
        if freed.iter().any(|&at| room_at(shared, at) > 0) {
            return Ok(());
        }
    }
}

/// Pops without waiting: from each queue as many tasks as it has room for, less the reserved room. Returns the number
/// of tasks.
async fn take_at_once(
    shared: &Arc<Shared>,
    order: &[usize],
    promised: usize,
    incarnation: Option<u64>,
) -> Result<usize> {
    let (mut taken, mut rest) = (0, order);
    while let Some(&first) = rest.first() {
        let room = shared.room().saturating_sub(promised);
        let count = room.min(room_at(shared, first));
        // One pop may take all its tasks from one queue: the following queues are included if they have as much room.
        let others =
            rest[1..].iter().take_while(|&&at| count == room && room_at(shared, at) >= count).count();
        let (asked, behind) = rest.split_at(1 + others);
        rest = behind;
        if count > 0 {
            let tasks = ask_for(shared, asked, count, incarnation).run().await?;
            shared.reachable();
            taken += tasks.len();
            start(shared, tasks, incarnation);
        }
    }
    Ok(taken)
}

/// Handles the error of a pop. Only a permanent error ends the worker.
async fn wait_after(shared: &Shared, error: Error, backoff: &mut Backoff) -> Result<()> {
    match error {
        // The next heartbeat finds out whether this worker was replaced or only an earlier incarnation of it.
        Error::WorkerGone | Error::WorkerReplaced => shared.nudge.notify_one(),
        // Leases may be unsupported: retry once without.
        Error::Refused(Refusal::NotThere { .. }) if shared.home.api().give_up_leases() => return Ok(()),
        error if shared.is_final(&error) => return Err(error),
        error => shared.unreachable(&error),
    }
    sleep(backoff.next()).await;
    Ok(())
}

/// Waits until handlers may be started; `None` if something else changed.
async fn room_for_some(shared: &Shared) -> Option<Plan> {
    if let Some(plan) = plan(shared) {
        return Some(plan);
    }
    shared.is_full.store(true, SeqCst);
    // A handler may have ended before the flag was set.
    if plan(shared).is_none() {
        shared.changed.notified().await;
    }
    shared.is_full.store(false, SeqCst);
    // Let other handlers that are about to end free their room too.
    let mut room = 0;
    while room < shared.room() {
        room = shared.room();
        tokio::task::yield_now().await;
    }
    plan(shared)
}

/// Waits until queues outside the plan have room; returns them.
async fn more_room(shared: &Shared, plan: &Plan) -> Vec<usize> {
    loop {
        shared.changed.notified().await;
        let left_out = (0..shared.queues.len()).filter(|at| !plan.order.contains(at));
        let freed: Vec<usize> = left_out.filter(|&at| room_at(shared, at) > 0).collect();
        if !freed.is_empty() {
            return freed;
        }
    }
}

fn room_at(shared: &Shared, queue: usize) -> usize {
    let queue = &shared.queues[queue];
    queue.route.concurrency.map_or(usize::MAX, |max| max.saturating_sub(queue.running.load(SeqCst)))
}

fn plan(shared: &Shared) -> Option<Plan> {
    let room = shared.room();
    if room == 0 {
        return None;
    }
    let mut order: Vec<usize> = (0..shared.queues.len()).filter(|&at| room_at(shared, at) > 0).collect();
    let is_bounded = shared.queues.iter().any(|queue| queue.route.concurrency.is_some());
    let count = if is_bounded { 1 } else { room };
    if !shared.options.is_strict && order.len() > 1 {
        // A weighted random order: the probability of being first is the weight of a queue divided by the sum of all
        // weights.
        let mut drawn: Vec<(f64, usize)> = order
            .iter()
            .map(|&at| (fastrand::f64().powf(1.0 / f64::from(shared.queues[at].route.weight)), at))
            .collect();
        drawn.sort_by(|a, b| b.0.total_cmp(&a.0));
        order = drawn.into_iter().map(|(_, at)| at).collect();
    }
    (!order.is_empty()).then_some(Plan { order, count, is_bounded })
}

fn ask_for(shared: &Shared, order: &[usize], count: usize, incarnation: Option<u64>) -> PopMany {
    let queues = order.iter().map(|&at| Arc::clone(&shared.queues[at].name)).collect();
    let count = u32::try_from(count).unwrap_or(u32::MAX);
    let pop = PopMany::new(shared.home.clone(), queues, count);
    // A home without leases decides by itself how long a task is held.
    let pop = if shared.home.api().has_leases() { pop.lease(shared.options.lease) } else { pop.no_lease() };
    match incarnation {
        Some(incarnation) => pop.worker(&shared.options.name, incarnation),
        None => pop,
    }
}

/// Starts the handlers of popped tasks that the worker still holds. The leases count from the arrival of the reply,
/// which may be long ago if handlers blocked all threads.
fn start(shared: &Arc<Shared>, tasks: Vec<Task>, incarnation: Option<u64>) {
    add(&shared.counts.taken, tasks.len() as u64);
    let Some(since) = tasks.iter().map(Task::since).min() else { return };
    let options = &shared.options;
    let is_late = is_late(shared, since);
    // Without leases nothing is extended. A lease that may have ended is not recorded until an extension has
    // confirmed it.
    let lease = (shared.home.api().has_leases() && !is_late).then_some((since, options.lease));
    let mut started: Vec<Running> = tasks
        .into_iter()
        .map(|task| {
            let queue = shared.queues.iter().position(|queue| *queue.name == *task.queue_bytes());
            let queue = queue.expect("a pop returns tasks of its own queues only");
            let live = Delivery::new(task, Arc::clone(&shared.states)).0;
            let slot = shared.table.insert(Arc::clone(&live), incarnation, lease);
            shared.begin(queue);
            Running { shared: Arc::clone(shared), queue, slot, live, outcome: None, is_settled: false }
        })
        .collect();
    let to_ack: Vec<Running> =
        started.extract_if(.., |running| shared.queues[running.queue].route.ack_first).collect();
    if !to_ack.is_empty() {
        tokio::spawn(ack_and_start(Arc::clone(shared), to_ack));
    }
    // The worker may have been declared lost meanwhile. If that happens after this check, the tokens fire.
    if is_late || !is_registered(shared, incarnation) {
        for of_one in by_queue(started) {
            tokio::spawn(make_sure_and_start(Arc::clone(shared), of_one));
        }
    } else {
        started.into_iter().for_each(spawn);
    }
}

/// Whether a lease that began at `since` must be extended before it is relied on.
fn is_late(shared: &Shared, since: Instant) -> bool {
    since.elapsed() > shared.options.lease / 3
}

/// Whether the worker is still registered under the incarnation that popped the tasks.
fn is_registered(shared: &Shared, incarnation: Option<u64>) -> bool {
    match *shared.registration.borrow() {
        Registration::As(current) => incarnation == Some(current),
        Registration::Unneeded => incarnation.is_none(),
        Registration::Pending | Registration::Ended(_) => false,
    }
}

fn by_queue(mut all: Vec<Running>) -> Vec<Vec<Running>> {
    all.sort_by_key(|running| running.queue);
    let mut lists = Vec::<Vec<Running>>::new();
    for running in all {
        match lists.last_mut() {
            Some(list) if list[0].queue == running.queue => list.push(running),
            _ => lists.push(vec![running]),
        }
    }
    lists
}

/// Rounds of extensions after which tasks are returned if the replies take longer than leases allow.
const EXTENSION_ROUNDS: u32 = 3;

/// Extends the leases of tasks of one queue, and starts the handlers of those that are still held.
async fn make_sure_and_start(shared: Arc<Shared>, mut all: Vec<Running>) {
    let lease = shared.options.lease;
    for round in 1.. {
        if all.is_empty() {
            return;
        }
        let since = Instant::now();
        let receipts: Vec<Receipt> = all.iter().map(|running| running.live.task.receipt()).collect();
        let extend = all.iter().zip(&receipts).map(|(running, receipt)| Command::Extend {
            queue: running.live.task.queue_bytes(),
            task: one(receipt.as_ref()),
            ms: millis(lease),
        });
        let replies = shared.home.ask(&extend.collect::<Vec<_>>()).await;
        if is_late(&shared, since) {
            if round < EXTENSION_ROUNDS && !*shared.is_stopping.borrow() {
                continue;
            }
            // Dropping them returns them to the home. The lease renewer could not extend them in time either.
            let (worker, took) = (shared.name(), since.elapsed());
            tracing::warn!(%worker, ?took, ?lease, "tasks are returned without a run: the home answers too slowly for their lease");
            return;
        }
        for (at, running) in std::mem::take(&mut all).into_iter().enumerate() {
            match replies.list.get(at) {
                Some(Reply::Outcome(Answered::Done)) => {
                    shared.table.extended(running.slot, &running.live, since, lease);
                    spawn(running);
                }
                Some(Reply::Outcome(Answered::Cancelled)) => {
                    running.live.fire(Stop::Cancelled);
                    spawn(running);
                }
                Some(Reply::Outcome(Answered::Stale)) => running.discard(|shared| &shared.counts.lost),
                // The home does not support extensions. Without leases the task is held; with a lease it is held
                // until that ends.
                Some(Reply::Refused(Refusal::NotThere { .. })) => {
                    if !shared.home.api().has_leases() || running.live.task.since().elapsed() < lease {
                        spawn(running);
                    } else {
                        running.discard(|shared| &shared.counts.lost);
                    }
                }
                // Dropping it requeues the task when the home answers.
                _ => drop(running),
            }
        }
    }
}

/// Acks tasks before their handlers run, and runs only those that this call acked.
async fn ack_and_start(shared: Arc<Shared>, all: Vec<Running>) {
    for of_one in by_queue(all) {
        let queue = shared.home.queue(&shared.queues[of_one[0].queue].name);
        let receipts: Vec<Receipt> = of_one.iter().map(|running| running.live.task.receipt()).collect();
        let acked = queue.ack_all(&receipts).await;
        for (at, running) in of_one.into_iter().enumerate() {
            match &acked {
                Ok(acked) if acked[at] => {
                    running.live.set_acked();
                    shared.table.forget_lease(running.slot, &running.live);
                    spawn(running);
                }
                Ok(_) => running.discard(|shared| &shared.counts.lost),
                // If it was not acked, it is redelivered after its lease.
                Err(error) => {
                    tracing::warn!(id = %running.live.task.id(), %error, "the task is not run: it could not be acked first");
                    running.discard(|shared| &shared.counts.unknown);
                }
            }
        }
    }
}

fn spawn(running: Running) {
    let (shared, slot, live) = (Arc::clone(&running.shared), running.slot, Arc::clone(&running.live));
    let handler = tokio::spawn(run(running));
    shared.table.set_abort(slot, &live, handler.abort_handle());
}

async fn run(mut running: Running) {
    running.outcome = match running.live.fired() {
        _ if running.live.is_acked() => None,
        // A handler whose token has fired before its start is not run.
        Some(Stop::Cancelled) => Some(Outcome::Cancelled),
        Some(_) => Some(Outcome::Requeue { after: Duration::ZERO }),
        None => None,
    };
    if running.outcome.is_some() {
        return;
    }
    let shared = &running.shared;
    shared.table.begin(running.slot, &running.live, shared.options.run_max);
    let route = &shared.queues[running.queue].route;
    let delivery = Delivery(Arc::clone(&running.live));
    let handled = AssertUnwindSafe(async { route.call(delivery).await }).catch_unwind().await;
    let outcome = handled.unwrap_or_else(|panic| {
        add(&running.shared.counts.panicked, 1);
        Outcome::Failed { reason: format!("panicked: {}", words_of(&*panic)).into(), again: Again::Backoff }
    });
    running.outcome = Some(outcome);
}

fn words_of(panic: &(dyn Any + Send)) -> &str {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    text.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("no message")
}

/// A handler that runs or is about to. When it is dropped, the handler has ended, in whatever way.
struct Running {
    shared: Arc<Shared>,
    queue: usize,
    slot: TaskSlot,
    live: Arc<Live>,
    outcome: Option<Outcome>,
    /// Whether there is nothing to report.
    is_settled: bool,
}

impl Running {
    /// Drops a task that is not run, and counts it.
    fn discard(mut self, count: impl FnOnce(&Shared) -> &AtomicU64) {
        self.is_settled = true;
        self.shared.table.remove(self.slot, &self.live);
        add(count(&self.shared), 1);
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if !self.is_settled {
            let decided = self.shared.table.ended(self.slot, &self.live);
            // Without an outcome and a decision, the handler was dropped with its runtime.
            let back = Outcome::Requeue { after: Duration::ZERO };
            let outcome = self.outcome.take().or(decided).unwrap_or(back);
            self.shared.report(Report {
                queue: self.queue,
                slot: self.slot,
                live: Arc::clone(&self.live),
                outcome,
            });
        }
        self.shared.end(self.queue);
    }
}

#[cfg(all(test, feature = "embedded"))]
mod tests {
    use super::super::handler::{IntoRoute, route};
    use super::*;

    /// A queue with a small limit is popped separately, so that the others can still be popped in batches.
    #[tokio::test]
    async fn a_limit_of_one_queue_does_not_limit_the_others() {
        let home = crate::open("mem:").expect("a home in memory opens");
        for (queue, tasks) in [("one", 2), ("two", 0), ("many", 20)] {
            home.queue(queue).push_all(vec!["x"; tasks]).await.expect("the push succeeds");
        }
        let handler = async || std::future::pending::<()>().await;
        let routes = [
            ("one", route(handler).concurrency(1)),
            ("two", route(handler).concurrency(2)),
            ("many", handler.into_route()),
        ];
        let shared = Arc::new(Shared::for_tests(&home, routes.into()));
        shared.registration.send_replace(Registration::Unneeded);
        let plan = plan(&shared).expect("there is room");
        assert!(plan.is_bounded && plan.count == 1);
        assert_eq!(take_at_once(&shared, &plan.order, 0, None).await.expect("the home answers"), 16);
        let running: Vec<usize> = shared.queues.iter().map(|queue| queue.running.load(SeqCst)).collect();
        assert_eq!(running, [1, 0, 15]);
        assert_eq!(take_at_once(&shared, &plan.order, 0, None).await.expect("the home answers"), 0);
    }
}
