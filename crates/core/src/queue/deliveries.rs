//! The list of leased tasks, divided into blocks by delivery number. Positions in the list, and leases that only
//! their holder ends, are found without a scan of the whole list.

use alloc::collections::BTreeMap;

use super::table::{SlotNo, Table, Walk};
use crate::meter;
use crate::task::{Body, Lease, Task};

/// The number of consecutive delivery numbers that share a block.
const BLOCK_SEQS: u64 = 256;

#[derive(Clone, Debug)]
struct Block {
    /// The number of its leases, and how many of them are open-ended.
    leases: u32,
    open_ended: u32,
    /// The slot of any lease of the block.
    any: SlotNo,
}

/// The blocks that have leases, in order.
#[derive(Clone, Debug, Default)]
pub(super) struct Deliveries(BTreeMap<u64, Block>);

const fn block_of(lease: &Lease) -> u64 {
    lease.seq() / BLOCK_SEQS
}

impl Deliveries {
    /// The approximate memory in bytes.
    pub(super) fn memory(&self) -> usize {
        self.0.len() * size_of::<(u64, Block)>() * 3 / 2
    }

    /// Adds a lease that is in the list already.
    pub(super) fn add(&mut self, lease: &Lease, at: SlotNo) {
        let block = self.0.entry(block_of(lease)).or_insert(Block { leases: 0, open_ended: 0, any: at });
        block.leases += 1;
        block.open_ended += u32::from(lease.is_open_ended());
    }

    /// Removes a lease that is still in the list.
    pub(super) fn remove<B: Body>(&mut self, lease: &Lease, at: SlotNo, table: &Table<B>) {
        let number = block_of(lease);
        let Some(block) = self.0.get_mut(&number) else { return };
        block.leases -= 1;
        block.open_ended -= u32::from(lease.is_open_ended());
        if block.leases == 0 {
            self.0.remove(&number);
        } else if block.any == at {
            // The leases of a block are neighbours in the list.
            let [before, behind] = table.neighbours(at);
            let is_of_block = |at: &SlotNo| is_of(table.at(*at), number);
            let other = behind.filter(is_of_block).or_else(|| before.filter(is_of_block));
            block.any = other.unwrap_or(block.any);
        }
    }

    /// Leased tasks from position `n` on.
    pub(super) fn walk_from<'t, B: Body>(&self, table: &'t Table<B>, mut start: usize) -> Walk<'t, B> {
        for (&number, block) in &self.0 {
            meter::step();
            if start < block.leases as usize {
                let mut walk = table.walk_at(first_of(table, number, block));
                walk.by_ref().take(start).for_each(drop);
                return walk;
            }
            start -= block.leases as usize;
        }
        Walk::nowhere(table)
    }

    /// Tasks with open-ended leases, in order of delivery.
    pub(super) fn open_ended<'t, B: Body>(
        &'t self,
        table: &'t Table<B>,
    ) -> impl Iterator<Item = &'t Task<B>> {
        let blocks = self.0.iter().inspect(|_| meter::step()).filter(|(_, block)| block.open_ended > 0);
        let tasks = blocks.flat_map(move |(&number, block)| {
            let walk = table.walk_at(first_of(table, number, block));
            walk.take_while(move |task| is_of(task, number))
        });
        tasks.filter(|task| task.lease().is_some_and(Lease::is_open_ended))
    }

    /// The number of leases, and how many of them are open-ended.
    pub(super) fn counts(&self) -> [usize; 2] {
        let sum = |of: fn(&Block) -> u32| self.0.values().map(|block| of(block) as usize).sum();
        [sum(|block| block.leases), sum(|block| block.open_ended)]
    }
}

fn is_of<B>(task: &Task<B>, number: u64) -> bool {
    task.lease().is_some_and(|lease| block_of(lease) == number)
}

/// The first lease of a block in the list.
fn first_of<B: Body>(table: &Table<B>, number: u64, block: &Block) -> SlotNo {
    let mut first = block.any;
    while let [Some(before), _] = table.neighbours(first)
        && is_of(table.at(before), number)
    {
        first = before;
    }
    first
}
