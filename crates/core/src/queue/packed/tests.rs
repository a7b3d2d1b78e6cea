//! Compares packed entries with a plain list of them.

use alloc::collections::BTreeMap;
use alloc::vec::Vec;

use proptest::prelude::*;

use super::run::Run;
use super::{Entry, FRESH_MIN, Packed, ReadAheadSpan};
use crate::codec::{Reader, read_number, write_number};
use crate::id::TaskId;
use crate::task::{Body, Due};
use crate::time::{LogTime, WallTime};

/// A body that is a number, packed as the distance from the one before. An odd number cannot be packed.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Number(u64);

impl Body for Number {
    fn len(&self) -> usize {
        3
    }

    fn is(&self, _: &[u8]) -> Option<bool> {
        None
    }

    fn pack(&self, before: Option<&Self>, out: &mut Vec<u8>) -> bool {
        let even = self.0.is_multiple_of(2);
        if even {
            write_number(self.0.wrapping_sub(before.map_or(0, |before| before.0)), out);
        }
        even
    }

    fn is_unpacked_from(&self, before: Option<&Self>, bytes: &[u8]) -> bool {
        Self::unpack(before, bytes).is_some_and(|(read, rest)| read == *self && rest.is_empty())
    }

    fn unpack<'b>(before: Option<&Self>, bytes: &'b [u8]) -> Option<(Self, &'b [u8])> {
        let (distance, rest) = read_number(bytes).ok()?;
        Some((Self(before.map_or(0, |before| before.0).wrapping_add(distance)), rest))
    }
}

#[derive(Clone, Debug)]
enum Step {
    /// This many entries, each at this distance from the one before, of this kind.
    Push(u16, u64, u8),
    PopFront(u16),
    /// The entry at this position, modulo the length.
    Take(usize),
    /// All except every nth of the first few thousand.
    Decimate(usize),
    Replace(usize, u64),
    /// This many consecutive entries from this position on.
    ReplaceMany(usize, u64),
    IterFrom(usize),
    ReadAheadSpans(usize),
    LookAhead(usize),
    /// Takes an image, and continues with the restored entries.
    Image,
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        8 => (prop_oneof![4 => 1..5u16, 4 => 1..700u16, 1 => 4000..5000u16], prop_oneof![Just(1u64), 1..9u64, Just(1 << 20)], any::<u8>())
            .prop_map(|(n, gap, way)| Step::Push(n, gap, way)),
        4 => prop_oneof![4 => 1..900u16, 1 => 4000..5000u16].prop_map(Step::PopFront),
        8 => any::<usize>().prop_map(Step::Take),
        2 => (2..9usize).prop_map(Step::Decimate),
        4 => (prop_oneof![Just(0), any::<usize>()], any::<u64>()).prop_map(|(at, n)| Step::Replace(at, n)),
        2 => (any::<usize>(), any::<u64>()).prop_map(|(at, n)| Step::ReplaceMany(at, n)),
        4 => any::<usize>().prop_map(Step::IterFrom),
        4 => any::<usize>().prop_map(Step::ReadAheadSpans),
        4 => (0..300usize).prop_map(Step::LookAhead),
        2 => Just(Step::Image),
    ]
}

/// The packed entries, and the list that they must equal.
#[derive(Default)]
struct Pair {
    packed: Packed<Number>,
    model: Vec<Entry<Number>>,
    last: u64,
    stamps: u64,
    stored: BTreeMap<u64, Vec<u8>>,
    /// Whether some bodies are odd.
    mixed: bool,
    /// Whether any body has been replaced.
    has_replaced: bool,
}

impl Pair {
    fn push(&mut self, gap: u64, way: u8) {
        let mut raw = self.last + gap;
        while TaskId::from_raw(raw).is_none() {
            raw += 1;
        }
        self.last = raw;
        let id = TaskId::from_raw(raw).expect("found above");
        let pushed = LogTime(raw.wrapping_mul(u64::from(way & 1)) >> 3);
        let due = match way & 6 {
            0 => None,
            2 => Some(Due::Log(LogTime(raw % 1000))),
            _ => Some(Due::Wall(WallTime(raw))),
        };
        let odd = u64::from(self.mixed && way & 8 != 0);
        let entry = Entry { id, pushed, due, body: Number(raw.wrapping_mul(6) | odd) };
        self.packed.push(entry.clone());
        self.model.push(entry);
    }

    fn take(&mut self, at: usize) {
        let expected = self.model.remove(at);
        assert_eq!(self.packed.take(expected.id), Some(expected.clone()));
        assert_eq!(self.packed.take(expected.id), None, "it was removed");
    }

    fn replace(&mut self, at: usize, n: u64) {
        let body = Number(if self.mixed { n } else { n & !1 });
        self.has_replaced = true;
        let entry = &mut self.model[at];
        let before = core::mem::replace(&mut entry.body, body.clone());
        assert_eq!(self.packed.replace(entry.id, body), Some(before));
    }

    fn step(&mut self, step: &Step) {
        let len = self.model.len();
        match *step {
            Step::Push(count, gap, way) => (0..count).for_each(|_| self.push(gap, way)),
            Step::PopFront(count) => (0..len.min(count.into())).for_each(|_| self.take(0)),
            Step::IterFrom(at) => {
                let at = at % (len + 1);
                let some: Vec<_> = self.packed.iter_from(at).take(100).collect();
                assert_eq!(some, self.model[at..len.min(at + 100)]);
            }
            Step::ReadAheadSpans(at) => self.read_ahead_spans(at % (len + 1)),
            Step::LookAhead(count) => self.packed.decode_front(count),
            Step::Image if !self.mixed => self.image(),
            _ if len == 0 => {}
            Step::Take(at) => self.take(at % len),
            Step::Decimate(n) => {
                (0..len.min(6000)).rev().filter(|at| at % n != 0).for_each(|at| self.take(at));
            }
            Step::Replace(at, n) => self.replace(at % len, n),
            Step::ReplaceMany(at, n) => {
                (at % len..len.min(at % len + 800)).for_each(|at| self.replace(at, n));
            }
            Step::Image => {}
        }
    }

    /// The bodies of a span must be between its ends, and no entry may be left out.
    fn read_ahead_spans(&self, start: usize) {
        let mut at = start;
        for span in self.packed.read_ahead_spans(start) {
            match span {
                ReadAheadSpan::Task(body) => {
                    assert_eq!(body, self.model[at].body);
                    at += 1;
                }
                ReadAheadSpan::Run { first, last, tasks } => {
                    let run = &self.model[at..at + tasks];
                    // A replaced body can have any value.
                    let is_between = |entry: &Entry<Number>| (first.0..=last.0).contains(&entry.body.0);
                    assert!(self.has_replaced || run.iter().all(is_between));
                    at += tasks;
                }
            }
        }
        assert_eq!(at, self.model.len());
    }

    fn image(&mut self) {
        let (mut overlays, mut runs) = (Vec::new(), Vec::new());
        self.packed.image(&mut self.stamps, |overlay, stamp, run| {
            overlay.write(&mut overlays);
            let mut bytes = Vec::new();
            run.write(&mut bytes);
            runs.push((stamp, bytes));
        });
        let mut restored = Packed::default();
        let mut r = Reader::new(&overlays);
        for (stamp, bytes) in runs {
            let stored = self.stored.entry(stamp).or_insert_with(|| bytes.clone());
            assert_eq!(*stored, bytes, "a stamp stands for one content");
            restored.restore(Run::read(&bytes).expect("a run"), stamp, &mut r).expect("a run that fits");
        }
        self.packed = restored;
    }

    fn check(&self) {
        assert_eq!(self.packed.broken(), None);
        assert_eq!(self.packed.len(), self.model.len());
        assert!(self.packed.iter().eq(self.model.iter().cloned()), "all in order");
        for (below, entry) in self.model.iter().enumerate().step_by(37) {
            assert_eq!(self.packed.find(entry.id).as_ref(), Some(entry));
            assert_eq!(self.packed.count_below(entry.id.raw()), below);
            assert_eq!(self.packed.count_below(entry.id.raw() + 1), below + 1);
            let beside = TaskId::from_raw(entry.id.raw() + 1);
            let there = self.model.get(below + 1).map(|next| next.id) == beside;
            assert!(beside.is_none_or(|id| self.packed.contains(id) == there));
        }
    }
}

proptest! {
    #[test]
    fn packed_entries_behave_like_a_list(mixed: bool, steps in prop::collection::vec(step(), 1..40)) {
        let mut pair = Pair { last: 1 << 30, mixed, ..Pair::default() };
        for step in &steps {
            pair.step(step);
            pair.check();
        }
    }
}

#[test]
fn a_backlog_costs_a_few_bytes_per_task_and_none_once_it_is_gone() {
    let mut pair = Pair { last: 1 << 30, ..Pair::default() };
    (0..100_000).for_each(|_| pair.push(1, 0));
    assert!(pair.packed.memory() < 50_000, "{} bytes", pair.packed.memory());
    let spans = pair.packed.read_ahead_spans(0).filter(|span| matches!(span, ReadAheadSpan::Run { .. }));
    assert!(spans.count() > 190, "most tasks lie inside a span");
    let ids: Vec<TaskId> = pair.model.iter().map(|entry| entry.id).collect();
    for id in ids {
        assert!(pair.packed.take(id).is_some());
    }
    assert!(pair.packed.memory() < 1_000, "{} bytes", pair.packed.memory());
    assert_eq!(pair.packed.broken(), None);
}

#[test]
fn a_busy_queue_is_not_coded_and_one_that_waits_is() {
    let mut pair = Pair { last: 1 << 30, ..Pair::default() };
    (0..1000).for_each(|_| pair.push(1, 0));
    assert!(pair.packed.runs.len() > 900, "none is popped");
    for _ in 0..5000 {
        pair.push(1, 0);
        pair.take(0);
    }
    assert_eq!(pair.packed.runs.len(), 0, "they are popped as fast as they are pushed");
    (0..50_000).for_each(|_| pair.push(1, 0));
    assert!(pair.packed.fresh.len() <= FRESH_MIN, "they are pushed faster than they are popped");
    pair.check();
}

#[test]
fn entries_after_many_encoded_ones_are_encoded_at_once() {
    let mut pair = Pair { last: 1 << 30, ..Pair::default() };
    (0..20_000).for_each(|_| pair.push(1, 0));
    assert!(pair.packed.fresh.is_empty(), "encoded at once, even without an image");
    (0..15_000).for_each(|_| pair.take(0));
    (0..10).for_each(|_| pair.push(1, 0));
    assert_eq!(pair.packed.fresh.len(), 10, "it is short now");
    pair.check();
}

/// Large bodies, such as those that own their bytes, so that a run has few entries.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Large([u8; 200]);

impl Body for Large {
    fn len(&self) -> usize {
        self.0.len()
    }

    fn is(&self, _: &[u8]) -> Option<bool> {
        None
    }

    fn pack(&self, _: Option<&Self>, out: &mut Vec<u8>) -> bool {
        out.extend_from_slice(&self.0);
        true
    }

    fn unpack<'b>(_: Option<&Self>, bytes: &'b [u8]) -> Option<(Self, &'b [u8])> {
        bytes.split_first_chunk().map(|(body, rest)| (Self(*body), rest))
    }
}

#[test]
fn a_few_large_entries_do_not_keep_the_memory_of_all() {
    let mut packed = Packed::default();
    let ids: Vec<TaskId> = (1 << 30..(1 << 30) + 10_000).filter_map(TaskId::from_raw).collect();
    for &id in &ids {
        let body = Large(core::array::from_fn(|at| (id.raw() >> (at % 8)) as u8));
        packed.push(Entry { id, pushed: LogTime(0), due: None, body });
    }
    let full = packed.memory();
    for &id in ids.iter().enumerate().filter(|(at, _)| at % 20 != 0).map(|(_, id)| id) {
        assert!(packed.take(id).is_some());
    }
    assert!(packed.memory() < full / 3, "{} of {full} bytes", packed.memory());
    assert_eq!(packed.broken(), None);
}

#[test]
fn a_few_entries_of_many_do_not_keep_the_memory_of_all() {
    let mut pair = Pair { last: 1 << 30, ..Pair::default() };
    (0..100_000).for_each(|_| pair.push(1 << 20, 2));
    let full = pair.packed.memory();
    for (at, entry) in pair.model.iter().enumerate().filter(|(at, _)| at % 100 != 0) {
        assert!(pair.packed.take(entry.id).is_some(), "{at}");
    }
    assert!(pair.packed.memory() < full / 20, "{} of {full} bytes", pair.packed.memory());
    assert_eq!(pair.packed.len(), 1000);
    assert_eq!(pair.packed.broken(), None);
}
