//! Records the states of a store, and compares recovered states with them.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use sureq_core::Broker;
use sureq_engine::log::Position;
use sureq_engine::{Body, Observer};
use sureq_sync::sim;

/// States with more tasks or queues are not recorded: a digest after each command would take too long.
const TASKS_MAX: u64 = 300;
const QUEUES_MAX: usize = 100;

/// The states of a store by position. Clones share them.
#[derive(Clone, Default)]
pub(crate) struct States {
    inner: Arc<Mutex<Inner>>,
}

#[derive(Default)]
struct Inner {
    /// None for a state that has too many tasks or queues.
    past: BTreeMap<Position, Option<StateDigest>>,
    /// All confirmed changes are before this.
    confirmed: Position,
    findings: Vec<String>,
    compared: u64,
}

impl States {
    /// A reply was sent, so everything before the position is as durable as promised.
    pub(crate) fn confirm(&self, position: Position) {
        let mut inner = self.lock();
        inner.confirmed = inner.confirmed.max(position);
    }

    /// The store has crashed in a way that its durability level does not cover.
    pub(crate) fn doubt(&self) {
        self.lock().confirmed = Position::START;
    }

    /// Contradictions that were found.
    pub(crate) fn findings(&self) -> Vec<String> {
        std::mem::take(&mut self.lock().findings)
    }

    /// The number of recovered states that were compared.
    pub(crate) fn compared(&self) -> u64 {
        self.lock().compared
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The part of a state that is compared: a digest of all of it, and counts, which help to find the difference between
/// two states.
#[derive(Clone, Debug, PartialEq, Eq)]
struct StateDigest {
    digest: u64,
    /// By the names of the queues.
    counts: BTreeMap<Box<[u8]>, [u64; 4]>,
}

impl StateDigest {
    fn of(broker: &Broker<Body>) -> Option<Self> {
        if broker.queues().nth(QUEUES_MAX).is_some() {
            return None;
        }
        let counts: BTreeMap<_, _> =
            broker.queues().map(|(name, queue)| (name.into(), queue.counts())).collect();
        let tasks: u64 = counts.values().flatten().sum();
        (tasks <= TASKS_MAX).then(|| Self { digest: broker.logged_digest(), counts })
    }

    /// Describes the difference from another state, if there is one.
    fn difference(&self, other: &Self) -> Option<String> {
        let names: BTreeSet<_> = self.counts.keys().chain(other.counts.keys()).collect();
        let differ = names.into_iter().filter_map(|name| {
            let (was, is) = (self.counts.get(name), other.counts.get(name));
            (was != is).then(|| format!("{} had {was:?} and has {is:?}", String::from_utf8_lossy(name)))
        });
        let differ: Vec<String> = differ.collect();
        let what = if differ.is_empty() { "although all counts are equal".into() } else { differ.join(", ") };
        (self != other).then_some(what)
    }
}

impl Observer for States {
    fn recovered(&self, position: Position, broker: &Broker<Body>) {
        let mut inner = self.lock();
        if position < inner.confirmed {
            let confirmed = inner.confirmed;
            inner.findings.push(format!("recovered up to {position:?}, but {confirmed:?} was confirmed"));
        }
        let recovered = StateDigest::of(broker);
        // Copying payloads forward changes only the position.
        let past = inner.past.range(..=position).next_back().map(|(at, state)| (*at, state.clone()));
        if let (Some((at, Some(past))), Some(recovered)) = (past, &recovered) {
            inner.compared += 1;
            if let Some(difference) = past.difference(recovered) {
                let finding =
                    format!("the state of {at:?} is recovered differently at {position:?}: {difference}");
                inner.findings.push(finding);
            }
        }
        // Earlier states are not needed any more, and later ones are lost.
        inner.past = BTreeMap::from([(position, recovered)]);
    }

    fn changed(&self, position: Position, broker: &Broker<Body>) {
        // The state lock is held here, so an injected panic poisons it.
        sim::may_panic();
        let mut inner = self.lock();
        // Without an event the state is the same.
        if inner.past.last_key_value().is_none_or(|(last, _)| *last < position) {
            inner.past.insert(position, StateDigest::of(broker));
        }
    }
}

impl fmt::Debug for States {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("States")
    }
}
