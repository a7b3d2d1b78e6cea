//! The taker: asks for as many tasks as there is room for, and starts their handlers.

use std::any::Any;
use std::panic::AssertUnwindSafe;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;
use std::time::Instant;

use futures_util::FutureExt;
use tokio::time::sleep;

use super::delivery::{Delivery, Live};
use super::outcome::{Again, Outcome};
use super::shared::{Backoff, Registration, Report, Shared};
use super::status::add;
use super::table::Slot;
use crate::error::{Error, Result};
use crate::id::Receipt;
use crate::pop::PopMany;
use crate::task::Task;
use sureq_core::Refusal;

/// What to ask for.
#[derive(Debug)]
struct Plan {
    /// Benches, in the order in which their queues are looked at.
    order: Vec<usize>,
    count: usize,
}

/// Takes tasks until that makes no sense any more.
pub(super) async fn take(shared: &Arc<Shared>) -> Error {
    let mut registration = shared.registration.subscribe();
    let mut backoff = Backoff::default();
    loop {
        let seen = registration.borrow_and_update().clone();
        let incarnation = match seen {
            Registration::As(incarnation) => Some(incarnation),
            Registration::Unneeded => None,
            Registration::Over(error) => return error,
            Registration::Pending => {
                // The sender is part of `shared`.
                let _ = registration.changed().await;
                continue;
            }
        };
        let Some(plan) = room_for_some(shared).await else { continue };
        let mut pop = pin!(ask_for(shared, &plan, incarnation).run());
        let taken = tokio::select! {
            biased;
            taken = &mut pop => taken,
            _ = registration.changed() => continue,
            () = more_room(shared, &plan) => continue,
        };
        match taken {
            Ok(tasks) => {
                backoff.reset();
                shared.in_touch();
                start(shared, tasks, incarnation);
            }
            Err(error) => match wait_after(shared, error, &mut backoff).await {
                Ok(()) => {}
                Err(error) => return error,
            },
        }
    }
}

/// What to do after a pop that failed. Only what will never change ends the worker.
async fn wait_after(shared: &Shared, error: Error, backoff: &mut Backoff) -> Result<()> {
    match error {
        Error::WorkerGone => shared.nudge.notify_one(),
        // It may be the lease that is not there; it is asked for once.
        Error::Refused(Refusal::NotThere { .. }) if shared.home.give_up_leases() => return Ok(()),
        error if shared.is_final(&error) => return Err(error),
        error => shared.in_trouble(&error),
    }
    sleep(backoff.next()).await;
    Ok(())
}

/// Waits until handlers may be started; none if something else has changed meanwhile.
async fn room_for_some(shared: &Shared) -> Option<Plan> {
    if let Some(plan) = plan(shared) {
        return Some(plan);
    }
    shared.is_full.store(true, SeqCst);
    // A handler may have ended between the look and the flag.
    if plan(shared).is_none() {
        shared.changed.notified().await;
    }
    shared.is_full.store(false, SeqCst);
    // The first of many handlers to end has woken this; the others are about to.
    let mut room = 0;
    while room < shared.room() {
        room = shared.room();
        tokio::task::yield_now().await;
    }
    plan(shared)
}

/// Waits until queues may be asked for that were left out.
async fn more_room(shared: &Shared, plan: &Plan) {
    loop {
        shared.changed.notified().await;
        let has_grown =
            (0..shared.benches.len()).any(|at| !plan.order.contains(&at) && room_at(shared, at) > 0);
        if has_grown {
            return;
        }
    }
}

fn room_at(shared: &Shared, bench: usize) -> usize {
    let bench = &shared.benches[bench];
    bench.route.concurrency.map_or(usize::MAX, |max| max.saturating_sub(bench.running.load(SeqCst)))
}

fn plan(shared: &Shared) -> Option<Plan> {
    let mut count = shared.room();
    if count == 0 {
        return None;
    }
    let mut order: Vec<usize> = (0..shared.benches.len()).filter(|&at| room_at(shared, at) > 0).collect();
    // All of them may be of one queue.
    for &at in &order {
        count = count.min(room_at(shared, at));
    }
    if !shared.options.is_strict && order.len() > 1 {
        // Each comes first in as many of the turns as its weight has a share of them all.
        let mut drawn: Vec<(f64, usize)> = order
            .iter()
            .map(|&at| (fastrand::f64().powf(1.0 / f64::from(shared.benches[at].route.weight)), at))
            .collect();
        drawn.sort_by(|a, b| b.0.total_cmp(&a.0));
        order = drawn.into_iter().map(|(_, at)| at).collect();
    }
    (!order.is_empty()).then_some(Plan { order, count })
}

fn ask_for(shared: &Shared, plan: &Plan, incarnation: Option<u64>) -> PopMany {
    let queues = plan.order.iter().map(|&at| Arc::clone(&shared.benches[at].queue)).collect();
    let count = u32::try_from(plan.count).unwrap_or(u32::MAX);
    let pop = PopMany::new(shared.home.clone(), queues, count).wait_forever();
    // Where there are none, a task is the worker's for as long as it lives, or as the home says.
    let pop = if shared.home.has_leases() { pop.lease(shared.options.lease) } else { pop.no_lease() };
    match incarnation {
        Some(incarnation) => pop.worker(&shared.options.name, incarnation),
        None => pop,
    }
}

/// Starts the handlers of tasks that were taken.
fn start(shared: &Arc<Shared>, tasks: Vec<Task>, incarnation: Option<u64>) {
    add(&shared.counts.taken, tasks.len() as u64);
    let since = Instant::now();
    let mut to_ack = Vec::new();
    for task in tasks {
        let bench = shared.benches.iter().position(|bench| *bench.queue == *task.queue_bytes());
        let bench = bench.expect("tasks come from the queues that were asked for");
        let live = Delivery::new(task, Arc::clone(&shared.states)).0;
        let options = &shared.options;
        let slot = shared.table.insert(Arc::clone(&live), incarnation, since, options.lease, options.run_max);
        shared.begin(bench);
        let running = Running { shared: Arc::clone(shared), bench, slot, live, outcome: None };
        if shared.benches[bench].route.ack_first {
            to_ack.push(running);
        } else {
            spawn(running);
        }
    }
    if !to_ack.is_empty() {
        tokio::spawn(ack_and_start(Arc::clone(shared), to_ack));
    }
}

/// Finishes tasks before their handlers run; only what this very call finished is run.
async fn ack_and_start(shared: Arc<Shared>, mut all: Vec<Running>) {
    all.sort_by_key(|running| running.bench);
    while let Some(first) = all.last() {
        let bench = first.bench;
        let of_one = all.split_off(all.partition_point(|running| running.bench < bench));
        let queue = shared.home.queue(&shared.benches[bench].queue);
        let receipts: Vec<Receipt> = of_one.iter().map(|running| running.live.task.receipt()).collect();
        let acked = queue.ack_all(&receipts).await;
        for (at, running) in of_one.into_iter().enumerate() {
            match &acked {
                Ok(acked) if acked[at] => {
                    running.live.set_acked();
                    shared.table.forget_lease(running.slot, &running.live);
                    spawn(running);
                }
                Ok(_) => running.let_go(|shared| &shared.counts.lost),
                // If it was not finished, its lease runs out and it comes again.
                Err(error) => {
                    tracing::warn!(id = %running.live.task.id(), %error, "not run: it could not be finished first");
                    running.let_go(|shared| &shared.counts.unknown);
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
    let route = &running.shared.benches[running.bench].route;
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
    text.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("without a word")
}

/// A handler that runs, or is about to. Dropped, it has ended, whatever the way.
struct Running {
    shared: Arc<Shared>,
    bench: usize,
    slot: Slot,
    live: Arc<Live>,
    outcome: Option<Outcome>,
}

impl Running {
    /// Nothing will be run.
    fn let_go(self, count: impl FnOnce(&Shared) -> &std::sync::atomic::AtomicU64) {
        if self.shared.table.ended(self.slot, &self.live) {
            self.shared.table.remove(self.slot, &self.live);
            add(count(&self.shared), 1);
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if self.shared.table.ended(self.slot, &self.live) {
            // Without an outcome it was dropped with its runtime.
            let outcome =
                self.outcome.take().unwrap_or(Outcome::GiveBack { after: std::time::Duration::ZERO });
            self.shared.report(Report { slot: self.slot, live: Arc::clone(&self.live), outcome });
        }
        self.shared.end(self.bench);
    }
}
