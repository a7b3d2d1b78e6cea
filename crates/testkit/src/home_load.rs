//! Producers and workers on a home, by its URL, that note what they know; and what must be so in the end, whatever happened to
//! the home meanwhile.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard};

use sureq::Home;
use sureq_core::command::{AckScope, Block, Command, IdForm, LeaseAsk, Pop, TaskRefs};
use sureq_core::reply::TaskView;
use sureq_core::{Refusal, Replies, Reply, id};
use sureq_home_api::Payload;

use crate::patience::until;

/// How workers ask for tasks.
#[derive(Clone, Copy, Debug)]
pub struct Asking {
    /// How many at once.
    pub count: u32,
    /// How long they wait.
    pub block: Option<Block>,
    /// How long what they take is theirs.
    pub lease_ms: u64,
}

/// Producers and workers of some queues.
pub struct HomeLoad {
    url: String,
    queues: Vec<Vec<u8>>,
    asking: Asking,
    known: Mutex<Known>,
    next: AtomicU64,
    is_over: AtomicBool,
}

/// What they know of their tasks, by number.
#[derive(Default)]
struct Known {
    confirmed: BTreeSet<u64>,
    /// Pushes of which nobody knows whether they happened.
    unknown: BTreeSet<u64>,
    finished: BTreeMap<u64, u32>,
    /// Acks of which nobody knows.
    maybe_finished: BTreeSet<u64>,
}

/// Says that it is over when it is dropped.
struct Over<'a>(&'a AtomicBool);

impl Drop for Over<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Release);
    }
}

impl HomeLoad {
    /// On these queues of a home.
    pub fn new(url: &str, queues: &[&[u8]], asking: Asking) -> Self {
        Self {
            url: url.to_owned(),
            queues: queues.iter().map(|queue| queue.to_vec()).collect(),
            asking,
            known: Mutex::default(),
            next: AtomicU64::new(0),
            is_over: AtomicBool::new(false),
        }
    }

    /// So many producers and workers each are busy while something happens.
    pub fn run(&self, pairs: usize, happens: impl FnOnce()) {
        std::thread::scope(|scope| {
            for _ in 0..pairs {
                scope.spawn(|| self.produce());
                scope.spawn(|| self.work());
            }
            // Also if it panics: nobody is to wait for them then.
            let _over = Over(&self.is_over);
            happens();
        });
    }

    /// Waits until so many more pushes are confirmed.
    pub fn until_confirmed(&self, more: usize) {
        let before = self.known().confirmed.len();
        until("pushes are confirmed", || self.known().confirmed.len() > before + more);
    }

    /// Finishes what is left, and sees to it that nothing is lost, nothing was finished twice, and nothing is there that was
    /// refused.
    ///
    /// # Panics
    ///
    /// If something is.
    pub fn finish(&self) {
        let home = self.open();
        for queue in &self.queues {
            until("all are done", || {
                while self.work_once(&home, queue) {}
                is_empty(&home, queue)
            });
        }
        close(&home);
        self.known().check();
    }

    fn known(&self) -> MutexGuard<'_, Known> {
        self.known.lock().expect("whoever noted something did not panic")
    }

    fn open(&self) -> Home {
        sureq::open(&self.url).expect("the home is there")
    }

    fn produce(&self) {
        let home = self.open();
        while !self.is_over.load(Ordering::Acquire) {
            let n = self.next.fetch_add(1, Ordering::AcqRel);
            let queue = &self.queues[n as usize % self.queues.len()];
            let payload = n.to_string();
            let push = Command::Push { queue, payloads: &[payload.as_bytes()] };
            match &ask(&home, &push).list[0] {
                Reply::Pushed(_) => _ = self.known().confirmed.insert(n),
                no => {
                    if is_unknown(no) {
                        self.known().unknown.insert(n);
                    }
                }
            }
        }
        close(&home);
    }

    fn work(&self) {
        let home = self.open();
        while !self.is_over.load(Ordering::Acquire) {
            for queue in &self.queues {
                self.work_once(&home, queue);
            }
        }
        close(&home);
    }

    /// Takes and finishes some; answers whether there may be more.
    fn work_once(&self, home: &Home, queue: &[u8]) -> bool {
        let Asking { count, block, lease_ms } = self.asking;
        let lease = LeaseAsk { ms: Some(lease_ms), ..LeaseAsk::NONE };
        let taken = ask(home, &Command::Pop(Pop { block, lease, ..Pop::plain(&[queue], count) }));
        match &taken.list[0] {
            Reply::Tasks(_) | Reply::TimedOut => {}
            // Whatever was taken comes back, and is found by whoever asks again.
            no => _ = is_unknown(no),
        }
        for task in &taken.tasks {
            self.finish_one(home, queue, task);
        }
        !taken.tasks.is_empty()
    }

    /// Half of them by their receipts, half by their ids.
    fn finish_one(&self, home: &Home, queue: &[u8], task: &TaskView<Payload>) {
        let n = id::decimal(task.body.as_ref()).expect("a payload is a number");
        let name = if n.is_multiple_of(2) { task.id.to_string() } else { task.receipt().to_string() };
        let tasks = TaskRefs { list: &[name.as_bytes()], form: IdForm::Long };
        match &ask(home, &Command::Ack { queue, tasks, scope: AckScope::LeasedOrLapsed }).list[0] {
            Reply::Acked(span) if span.len() == 1 => *self.known().finished.entry(n).or_default() += 1,
            Reply::Acked(_) => {}
            no => {
                if is_unknown(no) {
                    self.known().maybe_finished.insert(n);
                }
            }
        }
    }
}

impl Known {
    fn check(&self) {
        let Self { confirmed, unknown, finished, maybe_finished } = self;
        let is_there = |n: &&u64| finished.contains_key(n) || maybe_finished.contains(n);
        let lost: Vec<_> = confirmed.iter().filter(|n| !is_there(n)).collect();
        assert!(lost.is_empty(), "lost: {lost:?}");
        let twice: Vec<_> = finished.iter().filter(|(_, times)| **times > 1).collect();
        assert!(twice.is_empty(), "finished twice: {twice:?}");
        let odd: Vec<_> =
            finished.keys().filter(|n| !confirmed.contains(n) && !unknown.contains(n)).collect();
        assert!(odd.is_empty(), "refused and yet there: {odd:?}");
        println!("{} confirmed, {} unknown, {} finished", confirmed.len(), unknown.len(), finished.len());
        assert!(confirmed.len() > 100, "too few were pushed to tell: {}", confirmed.len());
    }
}

/// Whether nobody knows if it happened; otherwise it did not. A home that is harmed may say nothing else.
fn is_unknown(no: &Reply) -> bool {
    match no {
        Reply::Refused(Refusal::Unknown { .. }) => true,
        Reply::Refused(Refusal::Unavailable { .. }) => false,
        other => panic!("{other:?}"),
    }
}

fn is_empty(home: &Home, queue: &[u8]) -> bool {
    match &ask(home, &Command::Info { queue }).list[0] {
        Reply::Info(info) => info.ready + info.leased + info.delayed == 0,
        no => {
            is_unknown(no);
            false
        }
    }
}

/// What a home answers to one command, once it is there.
fn ask(home: &Home, command: &Command<'_>) -> Replies<Payload> {
    let mut replies = Replies::default();
    let submitted = home.api().execute(std::slice::from_ref(command), &mut replies);
    home.api().wait(submitted.position);
    if let Some(ticket) = submitted.into_ticket() {
        replies.append(ticket.wait().replies);
    }
    replies
}

fn close(home: &Home) {
    home.close().expect("it is closed in good order");
}

#[cfg(test)]
mod tests {
    use super::*;

    fn known() -> Known {
        let all = 0..200;
        Known {
            confirmed: all.clone().collect(),
            finished: all.map(|n| (n, 1)).collect(),
            ..Known::default()
        }
    }

    #[test]
    fn what_is_unknown_may_be_so_or_not() {
        let mut known = known();
        known.check();
        known.finished.remove(&3);
        known.maybe_finished.insert(3);
        known.unknown.extend([200, 201]);
        known.finished.insert(200, 1);
        known.check();
    }

    #[test]
    #[should_panic(expected = "lost: [7]")]
    fn what_is_lost_is_found() {
        let mut known = known();
        known.finished.remove(&7);
        known.check();
    }

    #[test]
    #[should_panic(expected = "finished twice: [(7, 2)]")]
    fn what_was_finished_twice_is_found() {
        let mut known = known();
        known.finished.insert(7, 2);
        known.check();
    }

    #[test]
    #[should_panic(expected = "refused and yet there: [999]")]
    fn what_was_refused_and_came_is_found() {
        let mut known = known();
        known.finished.insert(999, 1);
        known.check();
    }
}
