//! The records of tasks, found by id, with two lists threaded through them.
//!
//! A slot is a place in one of many small pages, so that a task in the delivered or the dead list costs two small
//! numbers instead of an allocation, and leaves its list in constant time wherever it stands. An image of the queue
//! shares the pages; a change then copies one of them, and nothing ever copies them all.

use alloc::sync::Arc;
use alloc::vec::Vec;
use core::hash::BuildHasher;
use core::mem;

use foldhash::fast::FixedState;

use super::shared::Shared;
use crate::id::TaskId;
use crate::index::Index;
use crate::meter;
use crate::task::{Body, Task};

/// No slot.
pub(super) const NOWHERE: u32 = u32::MAX;

/// Slots of a page.
pub(super) const PAGE_SLOTS: usize = 64;

/// Pages kept when a table empties; beyond that the memory of a past flood is given back.
const KEPT_PAGES: usize = 16;

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

    /// The slot of its first task.
    pub(super) const fn head(&self) -> u32 {
        self.head
    }
}

#[derive(Clone, Debug)]
pub(super) struct TaskSlot<B> {
    pub(super) task: Option<Task<B>>,
    /// Neighbours in a list; of a free slot, `next` is the next free one.
    prev: u32,
    pub(super) next: u32,
}

impl<B> TaskSlot<B> {
    pub(super) const fn new(task: Option<Task<B>>, next: u32) -> Self {
        Self { task, prev: NOWHERE, next }
    }
}

/// Some slots.
pub(super) type Page<B> = Vec<TaskSlot<B>>;

/// Tasks by id.
#[derive(Clone, Debug)]
pub(super) struct Table<B> {
    /// All but the last are full.
    pages: Vec<Shared<Page<B>>>,
    /// How many slots the pages have.
    slots: u32,
    free: u32,
    index: Index<u32>,
    /// The bytes of all that its tasks have beside their records.
    owned: usize,
    /// How often a record has come, changed or gone. Volatile.
    moves: u64,
}

impl<B> Default for Table<B> {
    fn default() -> Self {
        Self { pages: Vec::new(), slots: 0, free: NOWHERE, index: Index::default(), owned: 0, moves: 0 }
    }
}

fn hash(id: TaskId) -> u64 {
    FixedState::default().hash_one(id.raw())
}

/// Where a task's record is; good until the task is removed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct SlotNo(u32);

impl<B: Body> Table<B> {
    pub(super) fn len(&self) -> usize {
        self.index.len()
    }

    /// The bytes of all that its tasks have beside their records.
    pub(super) const fn owned(&self) -> usize {
        self.owned
    }

    /// How often a record has come, changed or gone.
    pub(super) const fn moves(&self) -> u64 {
        self.moves
    }

    /// About how many bytes it takes, what hangs on the records aside.
    pub(super) fn memory(&self) -> usize {
        // A page that is alone grows with its tasks. The index keeps four bytes and one of its own per place, an eighth of
        // which are never used, and allocators round that up.
        let slots = self.pages.len().saturating_sub(1) * PAGE_SLOTS
            + self.pages.last().map_or(0, |page| page.get().capacity());
        slots * size_of::<TaskSlot<B>>() + self.index.capacity() * 7
    }

    pub(super) fn find(&self, id: TaskId) -> Option<SlotNo> {
        let pages = &self.pages;
        self.index.find(hash(id), |&at| id_at(pages, at) == id).copied().map(SlotNo)
    }

    pub(super) fn get(&self, id: TaskId) -> Option<&Task<B>> {
        self.find(id).map(|at| self.at(at))
    }

    pub(super) fn at(&self, at: SlotNo) -> &Task<B> {
        slot(&self.pages, at.0).and_then(|slot| slot.task.as_ref()).expect("a found slot holds a task")
    }

    /// Changes a task. What it has beside its record may be more or less afterwards.
    pub(super) fn change<T>(&mut self, at: SlotNo, change: impl FnOnce(&mut Task<B>) -> T) -> T {
        let task = self.slot_mut(at.0).task.as_mut().expect("a found slot holds a task");
        let before = task.owned_bytes();
        let changed = change(task);
        let owned = task.owned_bytes();
        self.owned = self.owned - before + owned;
        self.moves += 1;
        changed
    }

    fn slot_mut(&mut self, at: u32) -> &mut TaskSlot<B> {
        &mut self.pages[at as usize / PAGE_SLOTS].change()[at as usize % PAGE_SLOTS]
    }

    /// Takes in a task whose id is not there yet.
    pub(super) fn insert(&mut self, task: Task<B>) -> SlotNo {
        let id = task.id;
        self.owned += task.owned_bytes();
        self.moves += 1;
        let slot = TaskSlot::new(Some(task), NOWHERE);
        let at = if self.free == NOWHERE {
            self.append_slot(slot)
        } else {
            let at = self.free;
            let free = self.slot_mut(at);
            let next = free.next;
            *free = slot;
            self.free = next;
            at
        };
        let pages = &self.pages;
        self.index.insert(hash(id), at, |&at| hash(id_at(pages, at)));
        SlotNo(at)
    }

    fn append_slot(&mut self, slot: TaskSlot<B>) -> u32 {
        let at = self.slots;
        assert!(at < NOWHERE, "a queue holds fewer than 2^32 records");
        if at as usize == self.pages.len() * PAGE_SLOTS {
            // The first page grows as it is filled: most queues have few records.
            let room = if self.pages.is_empty() { 0 } else { PAGE_SLOTS };
            self.pages.push(Shared::Own(Vec::with_capacity(room)));
        }
        let page = self.pages.last_mut().expect("there is one with room");
        page.change().push(slot);
        self.slots += 1;
        at
    }

    /// Takes out a task that is in no list.
    pub(super) fn remove(&mut self, id: TaskId) -> Option<Task<B>> {
        let pages = &self.pages;
        let at = self.index.remove(hash(id), |&at| id_at(pages, at) == id)?;
        let next = mem::replace(&mut self.free, at);
        let slot = self.slot_mut(at);
        slot.next = next;
        let task = slot.task.take();
        self.owned -= task.as_ref().map_or(0, Task::owned_bytes);
        self.moves += 1;
        if self.index.is_empty() && self.pages.len() > KEPT_PAGES {
            self.renew();
        }
        task
    }

    /// Leaves an empty table behind.
    pub(super) fn renew(&mut self) -> Self {
        let moves = self.moves + 1;
        mem::replace(self, Self { moves, ..Self::default() })
    }

    pub(super) fn append(&mut self, list: &mut List, at: SlotNo) {
        let slot = self.slot_mut(at.0);
        (slot.prev, slot.next) = (list.tail, NOWHERE);
        match list.tail {
            NOWHERE => list.head = at.0,
            tail => self.slot_mut(tail).next = at.0,
        }
        list.tail = at.0;
        list.len += 1;
    }

    pub(super) fn unlink(&mut self, list: &mut List, at: SlotNo) {
        let slot = self.slot_mut(at.0);
        let (prev, next) = (mem::replace(&mut slot.prev, NOWHERE), mem::replace(&mut slot.next, NOWHERE));
        match prev {
            NOWHERE => list.head = next,
            prev => self.slot_mut(prev).next = next,
        }
        match next {
            NOWHERE => list.tail = prev,
            next => self.slot_mut(next).prev = prev,
        }
        list.len -= 1;
    }

    /// The last task of a list.
    pub(super) fn last(&self, list: &List) -> Option<&Task<B>> {
        self.task_in(list.tail)
    }

    /// The tasks of a list, first to last.
    pub(super) fn walk(&self, list: &List) -> Walk<'_, B> {
        Walk { table: self, at: list.head }
    }

    /// The tasks of a list from this one on.
    pub(super) const fn walk_at(&self, at: SlotNo) -> Walk<'_, B> {
        Walk { table: self, at: at.0 }
    }

    /// Who stands before and behind a task in its list.
    pub(super) fn neighbours(&self, at: SlotNo) -> [Option<SlotNo>; 2] {
        let slot = slot(&self.pages, at.0);
        let links = slot.map_or([NOWHERE; 2], |slot| [slot.prev, slot.next]);
        links.map(|link| (link != NOWHERE).then_some(SlotNo(link)))
    }

    /// All tasks, in no order that means anything but the same one after the same events.
    pub(super) fn iter(&self) -> impl Iterator<Item = &Task<B>> {
        let slots = self.pages.iter().flat_map(Shared::get).inspect(|_| meter::step());
        slots.filter_map(|slot| slot.task.as_ref())
    }

    /// Where all records are.
    pub(super) fn all(&self) -> impl Iterator<Item = SlotNo> + use<B> {
        let mut taken: Vec<SlotNo> = Vec::with_capacity(self.index.len());
        taken.extend((0..self.slots).filter(|&at| id_at(&self.pages, at) != TaskId::NONE).map(SlotNo));
        taken.into_iter()
    }

    /// The id of a task from this slot on; `from` moves on to it.
    pub(super) fn next_id(&self, from: &mut u32) -> Option<TaskId> {
        while *from < self.slots {
            if let Some(task) = slot(&self.pages, *from).and_then(|slot| slot.task.as_ref()) {
                return Some(task.id);
            }
            *from += 1;
        }
        None
    }

    /// How many slots there are.
    pub(super) const fn slots(&self) -> u32 {
        self.slots
    }

    /// The task in a slot, if there is one.
    pub(super) fn task_in(&self, at: u32) -> Option<&Task<B>> {
        slot(&self.pages, at)?.task.as_ref()
    }

    /// All pages, for an image.
    pub(super) fn image(&mut self, last_stamp: &mut u64, mut add: impl FnMut(u64, Arc<Page<B>>)) {
        for page in &mut self.pages {
            let (stamp, page) = page.stamped(last_stamp);
            add(stamp, page);
        }
    }

    /// Adds a page from an image, behind all others; those before it must be full, and no id there twice. Its free
    /// slots are ready for use.
    pub(super) fn restore(&mut self, page: Page<B>, stamp: u64) -> Option<()> {
        if self.slots as usize != self.pages.len() * PAGE_SLOTS || page.is_empty() || page.len() > PAGE_SLOTS
        {
            return None;
        }
        let first = self.slots;
        self.slots = first.checked_add(page.len() as u32).filter(|&slots| slots < NOWHERE)?;
        self.owned += page.iter().filter_map(|slot| slot.task.as_ref()).map(Task::owned_bytes).sum::<usize>();
        self.pages.push(Shared::Imaged(Arc::new(page), stamp));
        for at in first..self.slots {
            let id = id_at(&self.pages, at);
            if id == TaskId::NONE {
                // The links of free slots are not part of what is stored, so that the page is as it is on disk.
                let free = mem::replace(&mut self.free, at);
                self.link(at, NOWHERE, free);
            } else if self.find(id).is_some() {
                return None;
            } else {
                let pages = &self.pages;
                self.index.insert(hash(id), at, |&at| hash(id_at(pages, at)));
            }
        }
        Some(())
    }

    /// Sets the neighbours of a slot without a change to what is stored of it.
    fn link(&mut self, at: u32, prev: u32, next: u32) {
        let page = self.pages[at as usize / PAGE_SLOTS].amend();
        if let Some(slot) = page.and_then(|page| page.get_mut(at as usize % PAGE_SLOTS)) {
            (slot.prev, slot.next) = (prev, next);
        }
    }

    /// The list that begins at this slot and has `len` tasks, all of which `belongs` must agree to; `None` if the
    /// links do not make one.
    pub(super) fn thread(
        &mut self,
        head: u32,
        len: usize,
        mut belongs: impl FnMut(&Task<B>) -> bool,
    ) -> Option<List> {
        let (mut at, mut prev) = (head, NOWHERE);
        for _ in 0..len {
            let slot = slot(&self.pages, at)?;
            let next = slot.next;
            if !slot.task.as_ref().is_some_and(&mut belongs) {
                return None;
            }
            self.link(at, prev, next);
            (prev, at) = (at, next);
        }
        // A list that ends after `len` steps met no slot twice.
        (at == NOWHERE).then_some(List { head, tail: prev, len })
    }
}

fn slot<B: Clone>(pages: &[Shared<Page<B>>], at: u32) -> Option<&TaskSlot<B>> {
    meter::step();
    pages.get(at as usize / PAGE_SLOTS)?.get().get(at as usize % PAGE_SLOTS)
}

fn id_at<B: Clone>(pages: &[Shared<Page<B>>], at: u32) -> TaskId {
    slot(pages, at).and_then(|slot| slot.task.as_ref()).map_or(TaskId::NONE, |task| task.id)
}

/// A walk along a list.
pub(super) struct Walk<'t, B> {
    table: &'t Table<B>,
    at: u32,
}

impl<'t, B> Walk<'t, B> {
    /// A walk along nothing.
    pub(super) const fn nowhere(table: &'t Table<B>) -> Self {
        Self { table, at: NOWHERE }
    }
}

impl<'t, B: Body> Iterator for Walk<'t, B> {
    type Item = &'t Task<B>;

    fn next(&mut self) -> Option<&'t Task<B>> {
        let slot = slot(&self.table.pages, self.at)?;
        self.at = slot.next;
        slot.task.as_ref()
    }
}

#[cfg(all(test, target_pointer_width = "64"))]
mod tests {
    use super::{PAGE_SLOTS, TaskSlot};
    use crate::task::{Deadline, Extras, Lease, Task, TaskState, Terms};
    use crate::time::LogTime;

    /// A table of a million deliveries is a million of these. A page is an exact size of what allocators hand out, so that a
    /// slot that grows by a byte costs a sixth more.
    #[test]
    fn a_record_is_no_larger_than_it_was() {
        type Body = [u64; 3];
        assert_eq!([size_of::<Lease>(), size_of::<TaskState>(), size_of::<Task<Body>>()], [24, 24, 88]);
        assert_eq!([size_of::<TaskSlot<Body>>(), PAGE_SLOTS * size_of::<TaskSlot<Body>>()], [96, 6144]);
        let deadline = Some(Deadline { at: LogTime(1), length_ms: 1 });
        let timed = Lease::new(LogTime(0), 1, Terms { deadline, ..Terms::default() });
        assert_eq!([timed.boxed_bytes(), size_of::<Extras>()], [80, 128], "and neither is what hangs on it");
    }
}
