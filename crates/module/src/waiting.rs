//! Clients that wait for tasks in the name of a worker, so that they are refused when that worker ends.
//!
//! Redis frees the handle of a client soon after the client stops waiting. It calls one of three callbacks first:
//! `woken` (the client was served or refused), `over` (its wait timed out) or `left` (it disconnected or was
//! unblocked). Each of them removes the client from here, and a client that is to be refused is removed before it is:
//! so every handle here is valid.
//!
//! This is not part of the [`Process`](crate::process::Process), since Redis may call back at any time, even while a
//! step has the process borrowed. No function of Redis is called while the list is borrowed.

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
    /// The refusal for the client that is being unblocked.
    static REFUSAL: Cell<Option<Refusal>> = const { Cell::new(None) };
}

#[derive(Default)]
struct Waiters {
    clients: BTreeMap<WaiterId, Client>,
    by_worker: BTreeSet<(u64, WaiterId)>,
    /// Workers that may have ended. The clients that wait for them must be checked.
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

/// Records a client that begins to wait in the name of a worker.
pub(crate) fn begin(waiter: Waiter, db: i32, worker: WorkerRef<'_>) {
    let client = Client { waiter, db, name: worker.name.into(), incarnation: worker.incarnation };
    WAITERS.with_borrow_mut(|waiters| waiters.insert(client));
}

/// Removes a client that stopped waiting. No effect if it did not wait for a worker. Infallible, so that callbacks
/// need no guard around it.
pub(crate) fn end(id: WaiterId) {
    WAITERS.with_borrow_mut(|waiters| drop(waiters.take(id)));
}

/// Records that a worker may have ended: [`refuse_suspects`] will check the clients that wait for it.
pub(crate) fn suspect(incarnation: u64) {
    WAITERS.with_borrow_mut(|waiters| {
        if waiters.of(incarnation).next().is_some() {
            waiters.suspects.insert(incarnation);
        }
    });
}

/// Records that every worker may have ended, or may be in another database.
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
/// client is being woken: that client's own pop answers it.
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

/// Unblocks and refuses a client. Before this returns, Redis calls `over` for the client, which takes the refusal.
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
