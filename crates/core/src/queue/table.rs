//! The records of tasks, found by id, with two lists threaded through them.
//!
//! A slot is an index into one growing list, so that a task in the delivered or the dead list costs two small
//! numbers instead of an allocation, and leaves its list in constant time wherever it stands.

use alloc::vec::Vec;
use core::hash::BuildHasher;
use core::mem;

use foldhash::fast::FixedState;
use hashbrown::HashTable;

use crate::id::TaskId;
use crate::task::Task;

const NOWHERE: u32 = u32::MAX;

/// Slots kept when a table empties; beyond that the memory of a past flood is given back.
const KEPT_SLOTS: usize = 1024;

/// One of the lists that a task can be threaded into.
#[derive(Clone, Copy, Debug)]
pub(super) struct List {
    head: u32,
    tail: u32,
    len: usize,
}

impl Default for List {
    fn default() -> Self {
        Self { head: NOWHERE, tail: NOWHERE, len: 0 }
    }
}

impl List {
    pub(super) const fn len(&self) -> usize {
        self.len
    }
}

#[derive(Clone, Debug)]
struct Slot<B> {
    task: Option<Task<B>>,
    /// Neighbours in a list; of a free slot, `next` is the next free one.
    prev: u32,
    next: u32,
}

/// Tasks by id.
#[derive(Clone, Debug)]
pub(super) struct Table<B> {
    slots: Vec<Slot<B>>,
    free: u32,
    index: HashTable<u32>,
}

impl<B> Default for Table<B> {
    fn default() -> Self {
        Self { slots: Vec::new(), free: NOWHERE, index: HashTable::new() }
    }
}

fn hash(id: TaskId) -> u64 {
    FixedState::default().hash_one(id.raw())
}

/// Where a task's record is; good until the task is removed.
#[derive(Clone, Copy, Debug)]
pub(super) struct At(u32);

impl<B> Table<B> {
    pub(super) fn len(&self) -> usize {
        self.index.len()
    }

    pub(super) fn find(&self, id: TaskId) -> Option<At> {
        let slots = &self.slots;
        self.index.find(hash(id), |&at| id_at(slots, at) == id).copied().map(At)
    }

    pub(super) fn get(&self, id: TaskId) -> Option<&Task<B>> {
        self.find(id).map(|at| self.at(at))
    }

    pub(super) fn get_mut(&mut self, id: TaskId) -> Option<&mut Task<B>> {
        self.find(id).map(|at| self.at_mut(at))
    }

    pub(super) fn at(&self, at: At) -> &Task<B> {
        self.slots[at.0 as usize].task.as_ref().expect("a found slot holds a task")
    }

    pub(super) fn at_mut(&mut self, at: At) -> &mut Task<B> {
        self.slots[at.0 as usize].task.as_mut().expect("a found slot holds a task")
    }

    /// Takes in a task whose id is not there yet.
    pub(super) fn insert(&mut self, task: Task<B>) -> At {
        let id = task.id;
        let slot = Slot { task: Some(task), prev: NOWHERE, next: NOWHERE };
        let at = if self.free == NOWHERE {
            self.slots.push(slot);
            u32::try_from(self.slots.len() - 1).expect("a queue holds fewer than 2^32 records")
        } else {
            let at = self.free;
            self.free = self.slots[at as usize].next;
            self.slots[at as usize] = slot;
            at
        };
        let slots = &self.slots;
        self.index.insert_unique(hash(id), at, |&at| hash(id_at(slots, at)));
        At(at)
    }

    /// Takes out a task that is in no list.
    pub(super) fn remove(&mut self, id: TaskId) -> Option<Task<B>> {
        let slots = &self.slots;
        let entry = self.index.find_entry(hash(id), |&at| id_at(slots, at) == id).ok()?;
        let (at, _) = entry.remove();
        let slot = &mut self.slots[at as usize];
        let task = slot.task.take();
        slot.next = mem::replace(&mut self.free, at);
        if self.index.is_empty() && self.slots.len() > KEPT_SLOTS {
            *self = Self::default();
        }
        task
    }

    pub(super) fn append(&mut self, list: &mut List, at: At) {
        let slot = &mut self.slots[at.0 as usize];
        (slot.prev, slot.next) = (list.tail, NOWHERE);
        match list.tail {
            NOWHERE => list.head = at.0,
            tail => self.slots[tail as usize].next = at.0,
        }
        list.tail = at.0;
        list.len += 1;
    }

    pub(super) fn unlink(&mut self, list: &mut List, at: At) {
        let slot = &mut self.slots[at.0 as usize];
        let (prev, next) = (mem::replace(&mut slot.prev, NOWHERE), mem::replace(&mut slot.next, NOWHERE));
        match prev {
            NOWHERE => list.head = next,
            prev => self.slots[prev as usize].next = next,
        }
        match next {
            NOWHERE => list.tail = prev,
            next => self.slots[next as usize].prev = prev,
        }
        list.len -= 1;
    }

    /// The tasks of a list, first to last.
    pub(super) fn walk(&self, list: &List) -> Walk<'_, B> {
        Walk { table: self, at: list.head }
    }

    /// All tasks, in no order that means anything but the same one after the same events.
    pub(super) fn iter(&self) -> impl Iterator<Item = &Task<B>> {
        self.slots.iter().filter_map(|slot| slot.task.as_ref())
    }
}

fn id_at<B>(slots: &[Slot<B>], at: u32) -> TaskId {
    slots[at as usize].task.as_ref().map_or(TaskId::NONE, |task| task.id)
}

/// A walk along a list.
pub(super) struct Walk<'t, B> {
    table: &'t Table<B>,
    at: u32,
}

impl<'t, B> Iterator for Walk<'t, B> {
    type Item = &'t Task<B>;

    fn next(&mut self) -> Option<&'t Task<B>> {
        let slot = self.table.slots.get(self.at as usize)?;
        self.at = slot.next;
        slot.task.as_ref()
    }
}
