//! Producers and workers that note what they know, and what must be so in the end.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard};

use sureq_core::{Refusal, Reply};
use sureq_redis::RedisHome;

use super::{ack, info, open, pop_leased, push, until};

pub struct Load {
    url: String,
    queues: Vec<Vec<u8>>,
    confirmed: Mutex<BTreeSet<u64>>,
    /// Pushes of which nobody knows whether they happened.
    unknown: Mutex<BTreeSet<u64>>,
    finished: Mutex<BTreeMap<u64, u32>>,
    /// Acks of which nobody knows.
    maybe_finished: Mutex<BTreeSet<u64>>,
    next: AtomicU64,
    is_over: AtomicBool,
}

/// Says that it is over when it is dropped.
struct Over<'a>(&'a AtomicBool);

impl Drop for Over<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Release);
    }
}

fn number(payload: &[u8]) -> u64 {
    sureq_core::id::decimal(payload).expect("a payload is a number")
}

fn known<T>(what: &Mutex<T>) -> MutexGuard<'_, T> {
    what.lock().expect("whoever noted something did not panic")
}

impl Load {
    /// On these queues of a home.
    pub fn new(url: &str, queues: &[&[u8]]) -> Self {
        Self {
            url: url.to_owned(),
            queues: queues.iter().map(|queue| queue.to_vec()).collect(),
            confirmed: Mutex::default(),
            unknown: Mutex::default(),
            finished: Mutex::default(),
            maybe_finished: Mutex::default(),
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
        let before = known(&self.confirmed).len();
        until("pushes are confirmed", || known(&self.confirmed).len() > before + more);
    }

    fn produce(&self) {
        let home = open(&self.url);
        while !self.is_over.load(Ordering::Acquire) {
            let n = self.next.fetch_add(1, Ordering::AcqRel);
            let queue = &self.queues[n as usize % self.queues.len()];
            match push(&home, queue, n.to_string().as_bytes()) {
                Reply::Pushed(_) => _ = known(&self.confirmed).insert(n),
                Reply::Refused(Refusal::Unknown { .. }) => _ = known(&self.unknown).insert(n),
                Reply::Refused(Refusal::Unavailable { .. }) => {}
                other => panic!("{other:?}"),
            }
        }
        home.close();
    }

    fn work(&self) {
        let home = open(&self.url);
        while !self.is_over.load(Ordering::Acquire) {
            for queue in &self.queues {
                self.work_once(&home, queue);
            }
        }
        home.close();
    }

    /// Answers whether there was a task.
    fn work_once(&self, home: &RedisHome, queue: &[u8]) -> bool {
        let Ok(tasks) = pop_leased(home, queue, 300) else { return true };
        for (payload, id) in &tasks {
            let n = number(payload);
            match ack(home, queue, id) {
                Reply::Acked(span) if span.len() == 1 => {
                    *known(&self.finished).entry(n).or_default() += 1;
                }
                Reply::Acked(_) | Reply::Refused(Refusal::Unavailable { .. }) => {}
                Reply::Refused(Refusal::Unknown { .. }) => {
                    known(&self.maybe_finished).insert(n);
                }
                other => panic!("{other:?}"),
            }
        }
        !tasks.is_empty()
    }

    /// Finishes what is left, and sees to it that nothing is lost, nothing was finished twice, and nothing is there that was
    /// refused.
    pub fn finish(&self) {
        let home = open(&self.url);
        for queue in &self.queues {
            until("all are done", || {
                while self.work_once(&home, queue) {}
                let info = info(&home, queue);
                info.ready + info.leased + info.delayed == 0
            });
        }
        home.close();
        let (confirmed, finished) = (known(&self.confirmed), known(&self.finished));
        let (maybe, unknown) = (known(&self.maybe_finished), known(&self.unknown));
        let is_there = |n: &&u64| finished.contains_key(n) || maybe.contains(n);
        let lost: Vec<&u64> = confirmed.iter().filter(|n| !is_there(n)).collect();
        assert!(lost.is_empty(), "lost: {lost:?}");
        let twice: Vec<_> = finished.iter().filter(|(_, times)| **times > 1).collect();
        assert!(twice.is_empty(), "finished twice: {twice:?}");
        let odd: Vec<_> =
            finished.keys().filter(|n| !confirmed.contains(n) && !unknown.contains(n)).collect();
        assert!(odd.is_empty(), "refused and yet there: {odd:?}");
        assert!(confirmed.len() > 100, "{}", confirmed.len());
    }
}
