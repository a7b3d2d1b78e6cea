//! Clients that wait for tasks in the name of a worker, so that they are refused when that worker ends.
//!
//! Redis frees the handle of a client soon after the client waits no longer. It calls one of three callbacks first:
//! `woken` (it was served or refused), `over` (its time is over) or `left` (it is gone, or was sent away). Each of
//! them removes the client from here, and a client that is refused is removed before it is: every handle here is valid.
//!
//! This is not part of the [`Process`](crate::process::Process), since Redis calls back at any time, even while a step
//! has the process. No function of Redis is called while it is borrowed.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::mem;

use sureq_core::Refusal;
use sureq_core::command::WorkerRef;

use crate::keyed::Steps;
use crate::redis::{Waiter, WaiterId};
use crate::workers;

thread_local! {
    static WAITERS: RefCell<Waiters> = RefCell::default();
    /// The refusal for the client whose handle is being ended.
    static REFUSAL: Cell<Option<Refusal>> = const { Cell::new(None) };
}

#[derive(Default)]
struct Waiters {
    clients: BTreeMap<WaiterId, Client>,
    by_worker: BTreeSet<(u64, WaiterId)>,
    /// Workers that may have ended, whose clients must be checked.
    suspects: BTreeSet<u64>,
}

/// A waiting client.
struct Client {
    waiter: Waiter,
    db: i32,
    name: Box<[u8]>,
    incarnation: u64,
}

impl Waiters {
    fn insert(&mut self, client: Client) {
        let id = client.waiter.id();
        self.by_worker.insert((client.incarnation, id));
        self.clients.insert(id, client);
    }

    fn take(&mut self, id: WaiterId) -> Option<Client> {
        let client = self.clients.remove(&id)?;
        self.by_worker.remove(&(client.incarnation, id));
        Some(client)
    }

    fn of(&self, incarnation: u64) -> impl Iterator<Item = WaiterId> {
        let ids = self.by_worker.range((incarnation, WaiterId::MIN)..=(incarnation, WaiterId::MAX));
        ids.map(|&(_, id)| id)
    }
}

/// A client began to wait in the name of a worker.
pub(crate) fn begin(waiter: Waiter, db: i32, worker: WorkerRef<'_>) {
    let client = Client { waiter, db, name: worker.name.into(), incarnation: worker.incarnation };
    WAITERS.with_borrow_mut(|waiters| waiters.insert(client));
}

/// A client stopped waiting. No effect if it did not wait for a worker. Infallible, so that callbacks need no guard
/// around it.
pub(crate) fn end(id: WaiterId) {
    WAITERS.with_borrow_mut(|waiters| drop(waiters.take(id)));
}

/// A worker may have ended: [`refuse_suspects`] will check the clients that wait in its name.
pub(crate) fn suspect(incarnation: u64) {
    WAITERS.with_borrow_mut(|waiters| {
        if waiters.of(incarnation).next().is_some() {
            waiters.suspects.insert(incarnation);
        }
    });
}

/// Every worker may have ended, or may be in another database.
pub(crate) fn suspect_all() {
    WAITERS.with_borrow_mut(|waiters| {
        waiters.suspects = waiters.by_worker.iter().map(|&(incarnation, _)| incarnation).collect();
    });
}

/// The number of workers that [`refuse_suspects`] must check.
pub(crate) fn suspects() -> usize {
    WAITERS.with_borrow(|waiters| waiters.suspects.len())
}

/// The number of clients that wait in the name of a worker.
pub(crate) fn count() -> usize {
    WAITERS.with_borrow(|waiters| waiters.clients.len())
}

/// Refuses clients whose worker has ended, with the error that their pop would get now. Must not be called while a
/// client is being woken, which its own pop answers.
pub(crate) fn refuse_suspects(steps: &Steps<'_, '_>) {
    let suspects = WAITERS.with_borrow_mut(|waiters| mem::take(&mut waiters.suspects));
    if suspects.is_empty() {
        return;
    }
    let before = steps.ctx.db();
    for incarnation in suspects {
        let ids: Vec<WaiterId> = WAITERS.with_borrow(|waiters| waiters.of(incarnation).collect());
        for id in ids {
            let worker = WAITERS.with_borrow(|waiters| {
                waiters.clients.get(&id).map(|client| (client.db, client.name.clone()))
            });
            let Some((db, name)) = worker else { continue };
            if !steps.ctx.select(db) {
                continue;
            }
            if let Err(refusal) = workers::check(steps, WorkerRef { name: &name, incarnation }) {
                refuse(id, refusal);
            }
        }
    }
    steps.ctx.select(before);
}

/// Redis calls `over` for the client before this returns, which takes the refusal.
fn refuse(id: WaiterId, refusal: Refusal) {
    if let Some(client) = WAITERS.with_borrow_mut(|waiters| waiters.take(id)) {
        REFUSAL.set(Some(refusal));
        client.waiter.end();
        REFUSAL.set(None);
    }
}

/// The refusal for the client for which Redis calls `over`; `None` if it timed out.
pub(crate) fn take_refusal() -> Option<Refusal> {
    REFUSAL.take()
}
