//! Tasks by rank, in order, in a way that tells how many stand before one without walking past them.
//!
//! A sorted list, cut into blocks. A block is found by a search over all of them; what stands before it is the sum of the
//! lengths of those before it, one number for hundreds of tasks.

use alloc::collections::VecDeque;

use crate::id::TaskId;
use crate::task::{Rank, Turn};

/// How long a block grows before it is cut in two.
const BLOCK_MAX: usize = 256;

/// Neighbours that have no more than this together become one.
const BLOCK_MIN: usize = BLOCK_MAX / 4;

type Entry = (Rank, TaskId);

/// Tasks by rank.
#[derive(Clone, Debug, Default)]
pub(super) struct Ranked {
    /// None of them is empty.
    blocks: VecDeque<VecDeque<Entry>>,
    len: usize,
}

impl Ranked {
    pub(super) const fn len(&self) -> usize {
        self.len
    }

    /// About how many bytes it takes.
    pub(super) fn memory(&self) -> usize {
        // Blocks that were cut are half empty, those that were filled in order are full, and a deque has room for a power of
        // two of them.
        self.len * size_of::<Entry>() * 3 / 2
    }

    /// The block that has this rank, or would have it.
    fn block_of(&self, rank: Rank) -> usize {
        let at = self.blocks.partition_point(|block| block.back().is_some_and(|last| last.0 < rank));
        at.min(self.blocks.len().saturating_sub(1))
    }

    fn find(&self, rank: Rank) -> Option<(usize, usize)> {
        let at = self.block_of(rank);
        let within = self.blocks.get(at)?.binary_search_by_key(&rank, |entry| entry.0).ok()?;
        Some((at, within))
    }

    pub(super) fn contains(&self, rank: Rank) -> bool {
        self.find(rank).is_some()
    }

    /// Adds a task; answers false, and changes nothing, if another has the rank.
    pub(super) fn insert(&mut self, rank: Rank, id: TaskId) -> bool {
        let at = self.block_of(rank);
        let is_last = at + 1 == self.blocks.len();
        let Some(block) = self.blocks.get_mut(at) else {
            self.blocks.push_back(VecDeque::from([(rank, id)]));
            self.len = 1;
            return true;
        };
        let Err(within) = block.binary_search_by_key(&rank, |entry| entry.0) else { return false };
        self.len += 1;
        if block.len() < BLOCK_MAX {
            block.insert(within, (rank, id));
        } else if within == BLOCK_MAX && is_last {
            // What comes in order leaves full blocks behind.
            self.blocks.push_back(VecDeque::from([(rank, id)]));
        } else {
            let mut behind = block.split_off(BLOCK_MAX / 2);
            match within.checked_sub(BLOCK_MAX / 2) {
                Some(within) => behind.insert(within, (rank, id)),
                None => block.insert(within, (rank, id)),
            }
            self.blocks.insert(at + 1, behind);
        }
        true
    }

    /// Takes a task out.
    pub(super) fn remove(&mut self, rank: Rank) -> Option<TaskId> {
        let (at, within) = self.find(rank)?;
        let (_, id) = self.blocks[at].remove(within)?;
        self.len -= 1;
        let len = |at: usize| self.blocks.get(at).map_or(BLOCK_MAX, VecDeque::len);
        if len(at) == 0 {
            self.blocks.remove(at);
        } else if let Some(first) = [at, at.wrapping_sub(1)]
            .into_iter()
            .find(|&at| len(at).saturating_add(len(at.wrapping_add(1))) <= BLOCK_MIN)
        {
            let behind = self.blocks.remove(first + 1)?;
            self.blocks[first].extend(behind);
            self.blocks[first].shrink_to(BLOCK_MIN);
        }
        Some(id)
    }

    /// All from the one at this place on. Blocks before it are passed over whole.
    pub(super) fn iter_from(&self, mut start: usize) -> impl Iterator<Item = Entry> {
        let mut at = 0;
        while self.blocks.get(at).is_some_and(|block| block.len() <= start) {
            start -= self.blocks[at].len();
            at += 1;
        }
        self.blocks.range(at..).flatten().skip(start).copied()
    }

    /// The first one of the least urgent.
    pub(super) fn first_of_last_lane(&self) -> Option<Entry> {
        let lane = self.blocks.back()?.back()?.0.lane;
        let first = self.before(Rank { lane, turn: Turn { major: i64::MIN, minor: 0 } });
        self.iter_from(first).next()
    }

    pub(super) fn first(&self) -> Option<Entry> {
        self.blocks.front()?.front().copied()
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = Entry> {
        self.blocks.iter().flatten().copied()
    }

    /// How many stand before this rank.
    pub(super) fn before(&self, rank: Rank) -> usize {
        let at = self.block_of(rank);
        let Some(block) = self.blocks.get(at) else { return 0 };
        let whole: usize = self.blocks.range(..at).map(VecDeque::len).sum();
        whole + block.partition_point(|entry| entry.0 < rank)
    }
}

#[cfg(test)]
mod tests {
    use alloc::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;

    fn rank(n: u64) -> Rank {
        Rank { lane: (n % 3) as i16, turn: Turn { major: (n / 7).cast_signed(), minor: n % 7 } }
    }

    proptest! {
        /// Against a tree: pushes in order and out of order, removals from the front and anywhere.
        #[test]
        fn ranked_tasks_are_a_sorted_list(steps in prop::collection::vec((0..4u8, 0..3000u64, 1..600u64), 1..30)) {
            let (mut ranked, mut model) = (Ranked::default(), BTreeMap::new());
            for (kind, n, count) in steps {
                for n in n..n + count {
                    let id = TaskId::from_raw(n + 1).unwrap();
                    match kind {
                        0 | 1 => {
                            let rank = rank(if kind == 0 { n } else { n.wrapping_mul(7919) % 3000 });
                            let is_new = !model.contains_key(&rank);
                            prop_assert_eq!(ranked.insert(rank, id), is_new);
                            model.entry(rank).or_insert(id);
                        }
                        2 => {
                            let first = model.pop_first();
                            prop_assert_eq!(ranked.first(), first);
                            first.map(|(rank, _)| ranked.remove(rank));
                        }
                        _ => prop_assert_eq!(ranked.remove(rank(n)), model.remove(&rank(n))),
                    }
                }
                prop_assert!(ranked.iter().eq(model.iter().map(|(&rank, &id)| (rank, id))));
                prop_assert_eq!(ranked.len(), model.len());
                let asked = rank(n + count / 2);
                prop_assert_eq!(ranked.before(asked), model.range(..asked).count());
                prop_assert_eq!(ranked.contains(asked), model.contains_key(&asked));
                let from = (n as usize + count as usize) % (model.len() + 1);
                prop_assert!(ranked.iter_from(from).map(|(rank, _)| rank).eq(model.keys().copied().skip(from)));
                let lane = model.keys().next_back().map(|last| last.lane);
                let last = model.iter().find(|(rank, _)| Some(rank.lane) == lane);
                prop_assert_eq!(ranked.first_of_last_lane(), last.map(|(&rank, &id)| (rank, id)));
                prop_assert!(ranked.blocks.len() <= 2 + 2 * model.len() / (BLOCK_MIN / 2), "few in many blocks");
                prop_assert!(ranked.blocks.iter().all(|block| !block.is_empty() && block.len() <= BLOCK_MAX));
            }
        }
    }

    #[test]
    fn what_comes_in_order_fills_its_blocks() {
        let mut ranked = Ranked::default();
        (1..=10_000u64).for_each(|n| assert!(ranked.insert(rank(n * 21), TaskId::from_raw(n).unwrap())));
        assert!(ranked.blocks.len() <= 10_000 / BLOCK_MAX + 1, "{} blocks", ranked.blocks.len());
        let room: usize = ranked.blocks.iter().map(VecDeque::capacity).sum();
        assert!(room * size_of::<Entry>() <= ranked.memory(), "room for {room}");
    }
}
