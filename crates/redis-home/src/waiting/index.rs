//! An index of waiting pops by arrival, queue and timeout, and an agenda of when to look at which queue.

use std::cell::Cell;
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;
use std::sync::Arc;

use sureq_core::{Refusal, limits};
use sureq_home_api::elsewhere::ReplySlot;
use tokio::sync::Notify;

use crate::script::call::Call;

pub struct Waiter {
    pub call: Call,
    pub queues: Vec<Vec<u8>>,
    /// When it times out, on the monotonic clock.
    pub(crate) until_ms: Option<u64>,
    pub(crate) slot: Arc<ReplySlot>,
    place: Cell<u64>,
    /// A pop for it is being executed.
    pub(crate) is_tried: Cell<bool>,
    /// Notifies when that pop is done.
    pub(crate) was_tried: Notify,
    /// It times out as soon as that pop is done.
    pub(crate) is_dismissed: Cell<bool>,
}

impl Waiter {
    pub(crate) fn new(call: Call, queues: Vec<Vec<u8>>, until_ms: Option<u64>, slot: Arc<ReplySlot>) -> Self {
        let (is_tried, was_tried, is_dismissed) = (Cell::new(false), Notify::new(), Cell::new(false));
        Self { call, queues, until_ms, slot, place: Cell::new(0), is_tried, was_tried, is_dismissed }
    }
}

impl Waiter {
    pub fn refuse(&self, no: &Refusal) {
        // A dropped ticket needs no answer.
        self.slot.refuse_if_open(1, no);
    }

    /// About how much memory it takes. The name of a queue is in its call, its slot, its list and the indexes.
    fn bytes(&self) -> usize {
        const WAITER_BYTES: usize = 1_000;
        const QUEUE_BYTES: usize = 200;
        WAITER_BYTES + self.queues.iter().map(|queue| 4 * queue.len() + QUEUE_BYTES).sum::<usize>()
    }

    /// Its position in the order of arrival.
    pub(crate) fn place(&self) -> u64 {
        self.place.get()
    }
}

impl Drop for Waiter {
    /// If a waiter is dropped without an answer, the home was closed while its pop was being executed.
    fn drop(&mut self) {
        let why = "the home was closed before Redis answered".into();
        self.slot.refuse_if_open(1, &Refusal::Unknown { why });
    }
}

/// Waiting pops by arrival, queue and timeout.
#[derive(Default)]
pub(crate) struct WaiterIndex {
    all: BTreeMap<u64, Rc<Waiter>>,
    by_queue: BTreeMap<Vec<u8>, BTreeSet<u64>>,
    by_end: BTreeSet<(u64, u64)>,
    last_place: u64,
    /// About how much memory they take.
    bytes: usize,
}

impl WaiterIndex {
    /// Whether one more may wait.
    pub(crate) fn has_room_for(&self, waiter: &Waiter) -> bool {
        self.bytes + waiter.bytes() <= limits::WAITING_BYTES_MAX
    }

    /// Adds a waiter at the end.
    pub(crate) fn join(&mut self, waiter: Waiter) {
        self.last_place += 1;
        waiter.place.set(self.last_place);
        self.restore(Rc::new(waiter));
    }

    /// Puts a removed waiter back at its place.
    pub(crate) fn restore(&mut self, waiter: Rc<Waiter>) {
        let place = waiter.place.get();
        for queue in &waiter.queues {
            self.by_queue.entry(queue.clone()).or_default().insert(place);
        }
        self.by_end.extend(waiter.until_ms.map(|until| (until, place)));
        self.bytes += waiter.bytes();
        self.all.insert(place, waiter);
    }

    /// Removes a waiter; returns whether it was there.
    pub(crate) fn leave(&mut self, waiter: &Waiter) -> bool {
        let place = waiter.place.get();
        if self.all.remove(&place).is_none() {
            return false;
        }
        self.bytes -= waiter.bytes();
        for queue in &waiter.queues {
            if let Some(places) = self.by_queue.get_mut(queue) {
                places.remove(&place);
                if places.is_empty() {
                    self.by_queue.remove(queue);
                }
            }
        }
        if let Some(until) = waiter.until_ms {
            self.by_end.remove(&(until, place));
        }
        true
    }

    pub(crate) fn contains(&self, waiter: &Waiter) -> bool {
        self.all.contains_key(&waiter.place.get())
    }

    pub(crate) fn len(&self) -> usize {
        self.all.len()
    }

    pub(crate) fn all(&self) -> Vec<Rc<Waiter>> {
        self.all.values().cloned().collect()
    }

    pub(crate) fn queues(&self) -> BTreeSet<Vec<u8>> {
        self.by_queue.keys().cloned().collect()
    }

    pub(crate) fn queue_count(&self) -> usize {
        self.by_queue.len()
    }

    pub(crate) fn is_wanted(&self, queue: &[u8]) -> bool {
        self.by_queue.contains_key(queue)
    }

    /// The waiters for any of these queues, in order.
    pub(crate) fn of<'a>(&self, queues: impl IntoIterator<Item = &'a Vec<u8>>) -> Vec<Rc<Waiter>> {
        let places: BTreeSet<u64> =
            queues.into_iter().filter_map(|queue| self.by_queue.get(queue)).flatten().copied().collect();
        places.iter().filter_map(|place| self.all.get(place)).cloned().collect()
    }

    /// The waiters that have timed out.
    pub(crate) fn late(&self, now_ms: u64) -> Vec<Rc<Waiter>> {
        let late = self.by_end.range(..=(now_ms, u64::MAX));
        late.filter_map(|(_, place)| self.all.get(place)).cloned().collect()
    }

    pub(crate) fn next_end(&self) -> Option<u64> {
        self.by_end.first().map(|(until, _)| *until)
    }
}

/// When to look at which queue, on the monotonic clock.
#[derive(Default)]
pub(crate) struct Agenda {
    by_queue: BTreeMap<Vec<u8>, u64>,
    by_time: BTreeSet<(u64, Vec<u8>)>,
    /// Deadlines that messages announced since a script was last asked.
    announced: BTreeMap<Vec<u8>, u64>,
}

impl Agenda {
    /// Marks a queue about which a script is about to be asked; the script knows every announcement so far.
    pub(crate) fn ask(&mut self, queue: &[u8]) {
        self.announced.remove(queue);
    }

    /// Stores the answer of the script. Announcements since then may be unknown to it.
    pub(crate) fn set(&mut self, queue: &[u8], at_ms: Option<u64>) {
        let announced = self.announced.get(queue).copied();
        self.put(queue, [at_ms, announced].into_iter().flatten().min());
    }

    /// Stores a deadline from a message.
    pub(crate) fn announce(&mut self, queue: &[u8], at_ms: u64) {
        let announced = self.announced.entry(queue.to_vec()).or_insert(at_ms);
        *announced = at_ms.min(*announced);
        if self.by_queue.get(queue).is_none_or(|known| at_ms < *known) {
            self.put(queue, Some(at_ms));
        }
    }

    /// Forgets a queue that has no waiters any more.
    pub(crate) fn forget(&mut self, queue: &[u8]) {
        self.announced.remove(queue);
        self.put(queue, None);
    }

    fn put(&mut self, queue: &[u8], at_ms: Option<u64>) {
        if let Some((queue, before)) = self.by_queue.remove_entry(queue) {
            self.by_time.remove(&(before, queue));
        }
        if let Some(at) = at_ms {
            self.by_queue.insert(queue.to_vec(), at);
            self.by_time.insert((at, queue.to_vec()));
        }
    }

    pub(crate) fn next(&self) -> Option<u64> {
        self.by_time.first().map(|(at, _)| *at)
    }

    /// Removes and returns the queues that are due.
    pub(crate) fn take_due(&mut self, now_ms: u64) -> Vec<Vec<u8>> {
        let mut due = Vec::new();
        while self.next().is_some_and(|at| at <= now_ms) {
            let Some((_, queue)) = self.by_time.pop_first() else { break };
            self.by_queue.remove(&queue);
            due.push(queue);
        }
        due
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::script::call::receipt_text;

    fn waiter(queues: &[&[u8]], until_ms: Option<u64>) -> Waiter {
        let queues = queues.iter().map(|queue| queue.to_vec()).collect();
        Waiter::new(
            Call::new("pop", None),
            queues,
            until_ms,
            Arc::new(ReplySlot::new(Vec::new(), receipt_text)),
        )
    }

    #[test]
    fn a_removed_waiter_is_found_nowhere_and_returns_to_its_place() {
        let mut waiters = WaiterIndex::default();
        waiters.join(waiter(&[b"a", b"b"], Some(50)));
        waiters.join(waiter(&[b"a"], None));
        let ends = |waiters: &[Rc<Waiter>]| waiters.iter().map(|one| one.until_ms).collect::<Vec<_>>();
        assert_eq!(ends(&waiters.of([&b"a".to_vec(), &b"b".to_vec()])), [Some(50), None]);
        assert_eq!((waiters.late(49).len(), waiters.next_end()), (0, Some(50)));
        let first = waiters.late(50).remove(0);
        assert!(waiters.leave(&first) && !waiters.leave(&first));
        assert!(!waiters.is_wanted(b"b") && waiters.is_wanted(b"a") && waiters.next_end().is_none());
        waiters.restore(first);
        assert_eq!(ends(&waiters.all()), [Some(50), None]);
        waiters.all().iter().for_each(|waiter| assert!(waiters.leave(waiter)));
        assert_eq!(waiters.bytes, 0);
    }

    #[test]
    fn each_queue_is_due_once_and_at_its_last_time() {
        let mut agenda = Agenda::default();
        agenda.set(b"a", Some(5));
        agenda.set(b"a", Some(9));
        agenda.set(b"b", Some(7));
        agenda.set(b"c", Some(6));
        agenda.set(b"c", None);
        assert_eq!((agenda.next(), agenda.take_due(6)), (Some(7), vec![]));
        assert_eq!(agenda.take_due(9), [b"b".to_vec(), b"a".to_vec()]);
        assert_eq!(agenda.next(), None);
    }

    #[test]
    fn an_announcement_while_a_script_is_asked_counts() {
        let mut agenda = Agenda::default();
        agenda.announce(b"a", 9);
        agenda.announce(b"a", 12);
        assert_eq!(agenda.next(), Some(9));
        agenda.ask(b"a");
        agenda.set(b"a", Some(20));
        assert_eq!(agenda.next(), Some(20));
        agenda.ask(b"a");
        agenda.announce(b"a", 15);
        agenda.set(b"a", None);
        assert_eq!(agenda.next(), Some(15));
        agenda.forget(b"a");
        agenda.set(b"a", None);
        assert_eq!(agenda.next(), None);
    }
}
