//! Sends calls and serves waiters, with as few round trips as their order allows.
//!
//! A task that a call makes available goes to a waiter before a later call of the same batch can take or see it. So a
//! batch is sent in runs: a run ends before a call about a queue that has waiters and that the run has touched
//! already. Pushes may follow pushes. Waiters for unrelated queues are tried at the same time.

use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

use futures_util::future::join_all;
use redis::Value;
use sureq_core::Refusal;
use tokio::sync::oneshot;

use crate::connection::link::Patience;
use crate::script::call::Call;
use crate::thread::{HomeThread, Store};
use crate::waiting::index::Waiter;
use crate::waiting::waiters::try_one;

/// How many waiters for the same queues are tried at once.
const TRIED_MAX: usize = 32;

/// Queues with waiters that a call is about; `None` means any.
type About<'a> = Option<Vec<&'a [u8]>>;

impl HomeThread {
    /// Sends calls in order; returns their answers.
    pub(crate) async fn send(&self, calls: &[&Call]) -> Vec<Result<Value, Refusal>> {
        self.enlist(calls).await;
        let (mut answers, mut rest) = (Vec::with_capacity(calls.len()), calls);
        while let [first, ..] = rest {
            let run = &rest[..self.run_len(rest)];
            if self.spans(first) {
                answers.push(self.execute(first).await);
            } else {
                answers.extend(self.link.send(run, Patience::Normal).await);
            }
            rest = &rest[run.len()..];
            if let [next, ..] = rest {
                self.serve_between(run, next).await;
            }
        }
        answers
    }

    /// How many of these calls may be sent at once.
    fn run_len(&self, calls: &[&Call]) -> usize {
        let spans = calls.iter().position(|call| self.spans(call));
        let most = spans.unwrap_or(calls.len()).max(1);
        if self.waiters.is_empty() {
            return most;
        }
        let mut touched = Touched::default();
        let mut len = 0;
        for call in &calls[..most] {
            if !touched.take(self.waited_for(call), is_push(call)) {
                break;
            }
            len += 1;
        }
        len
    }

    /// Serves the waiters for which calls may have made tasks ready, if the next call could take such a task.
    pub(crate) async fn serve_between(&self, before: &[&Call], next: &Call) {
        let mut touched = Touched::default();
        for call in before {
            touched.add(self.waited_for(call), is_push(call));
        }
        if touched.take(self.waited_for(next), is_push(next)) {
            return;
        }
        let queues: Vec<Option<&[u8]>> =
            if touched.is_all { vec![None] } else { touched.queues.keys().copied().map(Some).collect() };
        let looks = queues.into_iter().map(|queue| {
            let (done, is_done) = oneshot::channel();
            self.waiters.look(queue, done);
            is_done
        });
        // Waiters are served for as long as the home is open.
        join_all(looks).await;
    }

    /// The queues of a call that have waiters.
    fn waited_for<'a>(&self, call: &'a Call) -> About<'a> {
        if self.waiters.is_empty() {
            return Some(Vec::new());
        }
        let queues: Vec<&[u8]> = match call.op {
            "pop" => call
                .args
                .iter()
                .skip(self.link.target.layout().pop_form().queues)
                .map(|queue| &queue[..])
                .collect(),
            "exists" | "drop" => call.args.iter().map(|queue| &queue[..]).collect(),
            _ => vec![call.queue.as_deref()?],
        };
        Some(queues.into_iter().filter(|queue| self.waiters.is_wanted(queue)).collect())
    }
}

fn is_push(call: &Call) -> bool {
    matches!(call.op, "push" | "add")
}

/// The queues with waiters that calls may have changed.
#[derive(Default)]
struct Touched<'a> {
    /// Each queue, and whether it was only pushed to.
    queues: BTreeMap<&'a [u8], bool>,
    is_all: bool,
}

impl<'a> Touched<'a> {
    /// Adds a call, unless waiters must be served before it.
    fn take(&mut self, about: About<'a>, is_push: bool) -> bool {
        let is_free = match &about {
            None => self.queues.is_empty() && !self.is_all,
            Some(queues) => {
                let is_same = |queue: &&[u8]| self.queues.get(queue).is_none_or(|pushed| *pushed && is_push);
                queues.is_empty() || !self.is_all && queues.iter().all(is_same)
            }
        };
        if is_free {
            self.add(about, is_push);
        }
        is_free
    }

    fn add(&mut self, about: About<'a>, is_push: bool) {
        match about {
            None => self.is_all = true,
            Some(queues) => {
                for queue in queues {
                    *self.queues.entry(queue).or_insert(true) &= is_push;
                }
            }
        }
    }
}

/// Tries all waiters for queues of a store. Waiters for the same queue are tried in the order of arrival.
pub(crate) async fn serve(home: &Rc<HomeThread>, store: &Store, everyone: Vec<Rc<Waiter>>) {
    join_all(groups(everyone).into_iter().map(|group| serve_group(home, store, group))).await;
}

/// Splits waiters into groups without common queues. Each group keeps the order of arrival.
fn groups(everyone: Vec<Rc<Waiter>>) -> Vec<Vec<Rc<Waiter>>> {
    let mut group_of: BTreeMap<Vec<u8>, usize> = BTreeMap::new();
    let mut groups: Vec<Vec<Rc<Waiter>>> = Vec::new();
    for waiter in everyone {
        let known: BTreeSet<usize> =
            waiter.queues.iter().filter_map(|queue| group_of.get(queue)).copied().collect();
        let mut known = known.into_iter();
        let own = known.next().unwrap_or_else(|| {
            groups.push(Vec::new());
            groups.len() - 1
        });
        for other in known {
            let joined = std::mem::take(&mut groups[other]);
            for queue in joined.iter().flat_map(|one| &one.queues) {
                group_of.insert(queue.clone(), own);
            }
            groups[own].extend(joined);
        }
        for queue in &waiter.queues {
            group_of.insert(queue.clone(), own);
        }
        groups[own].push(waiter);
    }
    groups.retain(|group| !group.is_empty());
    for group in &mut groups {
        group.sort_by_key(|waiter| waiter.place());
    }
    groups
}

/// Tries the waiters of a group in order: as many at once as were served before.
async fn serve_group(home: &Rc<HomeThread>, store: &Store, group: Vec<Rc<Waiter>>) {
    let mut empty: BTreeSet<&Vec<Vec<u8>>> = BTreeSet::new();
    let (mut rest, mut served) = (&group[..], 0_usize);
    // Calls on separate connections would overtake each other.
    let most = if home.link.target.is_replicated { 1 } else { TRIED_MAX };
    while !rest.is_empty() {
        let mut tried = Vec::new();
        while let [next, behind @ ..] = rest
            && tried.len() < served.clamp(1, most)
        {
            rest = behind;
            if next.slot.is_abandoned() {
                home.waiters.remove(next);
            } else if !empty.contains(&next.queues) {
                tried.push(next);
            }
        }
        let outcomes = join_all(tried.iter().map(|waiter| try_one(home, store, waiter))).await;
        for (waiter, may_go_on) in tried.into_iter().zip(outcomes) {
            if may_go_on {
                served += 1;
            } else {
                empty.insert(&waiter.queues);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use sureq_home_api::elsewhere::ReplySlot;

    use super::*;
    use crate::script::call::receipt_text;
    use crate::waiting::index::WaiterIndex;

    #[test]
    fn waiters_for_the_same_queues_are_grouped_in_order() {
        let mut waiters = WaiterIndex::default();
        for queues in [&["a"][..], &["b"], &["c"], &["b", "a"], &["c"], &["d"]] {
            let queues = queues.iter().map(|queue| queue.as_bytes().to_vec()).collect();
            waiters.join(Waiter::new(
                Call::new("pop", None),
                queues,
                None,
                Arc::new(ReplySlot::new(Vec::new(), receipt_text)),
            ));
        }
        let places = |group: &Vec<Rc<Waiter>>| group.iter().map(|waiter| waiter.place()).collect::<Vec<_>>();
        let groups: Vec<Vec<u64>> = groups(waiters.all()).iter().map(places).collect();
        assert_eq!(groups, [vec![1, 2, 4], vec![3, 5], vec![6]]);
    }

    #[test]
    fn a_run_ends_before_a_call_that_could_take_a_waiters_task() {
        let mut touched = Touched::default();
        let about = |queue: &'static [u8]| Some(vec![queue]);
        assert!(touched.take(Some(vec![]), false), "no waiter wants it");
        assert!(touched.take(about(b"q"), true) && touched.take(about(b"q"), true), "pushes follow pushes");
        assert!(!touched.take(about(b"q"), false), "a pop waits");
        assert!(touched.take(about(b"other"), false));
        assert!(!touched.take(about(b"other"), true));
        assert!(!touched.take(None, false), "the end of a worker may requeue tasks of any queue");
    }
}
