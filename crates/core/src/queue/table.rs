//! The records of tasks, by id, with linked lists threaded through them.
//!
//! Records are stored in the slots of many small pages. A position in the list of leased or dead tasks costs two
//! small numbers instead of an allocation, and a task leaves its list in constant time. An image of the queue shares
//! the pages; a change then copies one page, and nothing ever copies all of them.

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

/// The number that means no slot.
pub(super) const NOWHERE: u32 = u32::MAX;

pub(super) const PAGE_SLOTS: usize = 64;

/// The number of pages that an empty table keeps; the memory of further ones is freed.
const KEPT_PAGES: usize = 16;

/// A linked list of tasks.
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

    /// The slot of the first task.
    pub(super) const fn head(&self) -> u32 {
        self.head
    }
}

#[derive(Clone, Debug)]
pub(super) struct TaskSlot<B> {
    pub(super) task: Option<Task<B>>,
    /// The neighbours in a list. In a free slot, `next` is the next free slot.
    prev: u32,
    pub(super) next: u32,
}

impl<B> TaskSlot<B> {
    pub(super) const fn new(task: Option<Task<B>>, next: u32) -> Self {
        Self { task, prev: NOWHERE, next }
    }
}

pub(super) type Page<B> = Vec<TaskSlot<B>>;

/// Tasks by id.
#[derive(Clone, Debug)]
pub(super) struct Table<B> {
    /// All pages except the last are full.
    pages: Vec<Shared<Page<B>>>,
    /// The number of slots in all pages.
    slots: u32,
    free: u32,
    index: Index<u32>,
    /// The memory in bytes that its tasks own beside their records.
    owned: usize,
    /// The number of additions, changes and removals. Volatile.
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

/// The slot of a task's record, valid until the task is removed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct SlotNo(u32);

impl<B: Body> Table<B> {
    pub(super) fn len(&self) -> usize {
        self.index.len()
    }

    /// The memory in bytes that its tasks own beside their records.
    pub(super) const fn owned(&self) -> usize {
        self.owned
    }

    /// The number of additions, changes and removals.
    pub(super) const fn moves(&self) -> u64 {
        self.moves
    }

    /// The approximate memory in bytes, without the memory that its tasks own beside their records.
    pub(super) fn memory(&self) -> usize {
        // A single page grows with its tasks. The index takes five bytes per entry, an eighth of which are never
        // used, and allocators round that up.
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

    /// Changes a task, and updates the count of memory that tasks own beside their records.
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

    /// Adds a task. The table must not contain its id.
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
        // An index that grows moves up to a few thousand entries, which has a test of its own.
        self.index.insert(hash(id), at, |&at| meter::uncounted(|| hash(id_at(pages, at))));
        SlotNo(at)
    }

    fn append_slot(&mut self, slot: TaskSlot<B>) -> u32 {
        let at = self.slots;
        assert!(at < NOWHERE, "a queue holds fewer than 2^32 records");
        if at as usize == self.pages.len() * PAGE_SLOTS {
            // The first page grows as it fills, because most queues have few records.
            let room = if self.pages.is_empty() { 0 } else { PAGE_SLOTS };
            self.pages.push(Shared::Own(Vec::with_capacity(room)));
        }
        let page = self.pages.last_mut().expect("there is one with room");
        page.change().push(slot);
        self.slots += 1;
        at
    }

    /// Removes a task that is in no list.
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

    /// Frees the memory of an empty table.
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

    pub(super) fn last(&self, list: &List) -> Option<&Task<B>> {
        self.task_in(list.tail)
    }

    /// The tasks of a list, in order.
    pub(super) fn walk(&self, list: &List) -> Walk<'_, B> {
        Walk { table: self, at: list.head }
    }

    /// The tasks of a list from this one on.
    pub(super) const fn walk_at(&self, at: SlotNo) -> Walk<'_, B> {
        Walk { table: self, at: at.0 }
    }

    /// The neighbours of a task in its list.
    pub(super) fn neighbours(&self, at: SlotNo) -> [Option<SlotNo>; 2] {
        let slot = slot(&self.pages, at.0);
        let links = slot.map_or([NOWHERE; 2], |slot| [slot.prev, slot.next]);
        links.map(|link| (link != NOWHERE).then_some(SlotNo(link)))
    }

    /// All tasks, in an arbitrary order that is the same after the same events.
    pub(super) fn iter(&self) -> impl Iterator<Item = &Task<B>> {
        let slots = self.pages.iter().flat_map(Shared::get).inspect(|_| meter::step());
        slots.filter_map(|slot| slot.task.as_ref())
    }

    /// The slots of all records.
    pub(super) fn all(&self) -> impl Iterator<Item = SlotNo> + use<B> {
        let mut taken: Vec<SlotNo> = Vec::with_capacity(self.index.len());
        taken.extend((0..self.slots).filter(|&at| id_at(&self.pages, at) != TaskId::NONE).map(SlotNo));
        taken.into_iter()
    }

    /// The id of the first task from slot `from` on, before slot `upto`. `from` advances to it.
    pub(super) fn next_id(&self, from: &mut u32, upto: u32) -> Option<TaskId> {
        while *from < self.slots.min(upto) {
            if let Some(task) = slot(&self.pages, *from).and_then(|slot| slot.task.as_ref()) {
                return Some(task.id);
            }
            *from += 1;
        }
        None
    }

    pub(super) const fn slots(&self) -> u32 {
        self.slots
    }

    /// The task in a slot, if it has one.
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

    /// Adds a page from an image, after all others. Those before it must be full, and no id may occur twice. Its free
    /// slots become available.
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
                // Links of free slots are not stored, so the page stays equal to its bytes on disk.
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

    /// Sets the neighbours of a slot. They are not stored, so the page keeps its stamp.
    fn link(&mut self, at: u32, prev: u32, next: u32) {
        let page = self.pages[at as usize / PAGE_SLOTS].amend();
        if let Some(slot) = page.and_then(|page| page.get_mut(at as usize % PAGE_SLOTS)) {
            (slot.prev, slot.next) = (prev, next);
        }
    }

    /// Restores the list of `len` tasks that begins at this slot; `belongs` must accept each of them. `None` if the
    /// links do not form such a list.
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
        // A list that ends after `len` steps visited no slot twice.
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

/// An iteration over a list.
pub(super) struct Walk<'t, B> {
    table: &'t Table<B>,
    at: u32,
}

impl<'t, B> Walk<'t, B> {
    /// An empty iteration.
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

    /// A table of a million leased tasks has a million of these. The size of a page is exactly a size class of
    /// allocators, so that a slot that grows by a byte costs a sixth more.
    #[test]
    fn the_size_of_a_record_is_unchanged() {
        type Body = [u64; 3];
        assert_eq!([size_of::<Lease>(), size_of::<TaskState>(), size_of::<Task<Body>>()], [24, 24, 88]);
        assert_eq!([size_of::<TaskSlot<Body>>(), PAGE_SLOTS * size_of::<TaskSlot<Body>>()], [96, 6144]);
        let deadline = Some(Deadline { at: LogTime(1), length_ms: 1 });
        let timed = Lease::new(LogTime(0), 1, Terms { deadline, ..Terms::default() });
        assert_eq!(
            [timed.boxed_bytes(), size_of::<Extras>()],
            [80, 128],
            "the boxes of a record are unchanged too"
        );
    }
}
