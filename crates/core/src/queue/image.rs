//! Images of a queue for checkpoints, and restoring a queue from one.
//!
//! An image shares the runs and pages of its queue, so taking one copies none of them. It is encoded later, while the
//! queue continues to change: a small head, and one part per run and page. A part keeps its stamp as long as it does
//! not change, so that it is stored only once.
//!
//! The head is three events ([`Event::QueueMade`], [`Event::Configured`], [`Event::Counted`]), then as varints the
//! waiting bytes, whether it ever adopted a task, for leased and dead tasks their number and the slot plus one of the
//! first, and the numbers of runs of ready tasks, runs of delayed tasks and pages. Then come the overlays of the runs.
//! The parts have the same order.
//!
//! A page is encoded as the number of its slots, and for each slot in use: its number, the slot plus one of the next
//! in its list, and an [`Event::Task`] with the packed handle as its payload. A handle that cannot be packed cannot
//! be stored, and an image with one is refused when it is restored.

use alloc::boxed::Box;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::fmt;

use super::Queue;
use super::apply::import::{group_of, is_sound, record_of};
use super::packed::{Packed, Run, RunOverlay};
use super::read::full;
use super::table::{NOWHERE, PAGE_SLOTS, Page, TaskSlot};
use crate::codec::{Reader, decode, encode, write_number};
use crate::event::{Counters, Event, FullTask, QueueNo};
use crate::id::TaskId;
use crate::settings::Settings;
use crate::task::{Body, Due, Lease, Rank, StateKind, Task, TaskState};
use crate::time::LogTime;

/// The durable state of a queue, as it was when the image was taken.
#[derive(Debug)]
pub struct QueueImage<B> {
    head: Vec<u8>,
    overlays: Vec<RunOverlay<B>>,
    parts: Vec<Part<B>>,
}

/// A part of an image that is stored by itself: a run or a page.
#[derive(Clone, Debug)]
pub struct Part<B> {
    stamp: u64,
    content: Content<B>,
}

#[derive(Clone, Debug)]
enum Content<B> {
    Run(Arc<Run<B>>),
    Page(Arc<Page<B>>),
}

/// Bytes that are not a valid image of a queue or a store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Damaged(pub &'static str);

impl fmt::Display for Damaged {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "an image is inconsistent: {}", self.0)
    }
}

impl core::error::Error for Damaged {}

impl<B: Body> QueueImage<B> {
    /// Appends the bytes of the head.
    pub fn head(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.head);
        self.overlays.iter().for_each(|overlay| overlay.write(out));
    }

    /// The parts, in the order in which a restore needs them.
    pub fn parts(&self) -> &[Part<B>] {
        &self.parts
    }
}

impl<B: Body> Part<B> {
    /// The stamp of this content: a number above 0 that no other content of the store ever had.
    pub const fn stamp(&self) -> u64 {
        self.stamp
    }

    /// Appends the bytes of the part.
    pub fn encode(&self, out: &mut Vec<u8>) {
        match &self.content {
            Content::Run(run) => run.write(out),
            Content::Page(page) => write_page(page, out),
        }
    }
}

fn write_page<B: Body>(page: &Page<B>, out: &mut Vec<u8>) {
    out.push(page.len() as u8);
    let mut handle = Vec::new();
    for (at, slot) in page.iter().enumerate() {
        let Some(task) = &slot.task else { continue };
        out.push(at as u8);
        write_link(slot.next, out);
        handle.clear();
        // If the handle cannot be packed, the payload is empty and the restore refuses the task.
        task.body.pack(None, &mut handle);
        encode(&Event::Task(&full(QueueNo(0), task, &handle)), out);
    }
}

/// A slot plus one, so that 0 means none.
fn write_link(slot: u32, out: &mut Vec<u8>) {
    write_number(u64::from(slot.wrapping_add(1)), out);
}

fn read_link(r: &mut Reader<'_>) -> Option<u32> {
    let link: u32 = r.small().ok()?;
    Some(link.checked_sub(1).unwrap_or(NOWHERE))
}

pub(super) fn read_page<B: Body>(bytes: &[u8]) -> Option<Page<B>> {
    let (&slots, mut rest) = bytes.split_first()?;
    let slots = usize::from(slots);
    if slots > PAGE_SLOTS {
        return None;
    }
    let mut page: Page<B> = Vec::with_capacity(slots);
    while !rest.is_empty() {
        let mut r = Reader::new(rest);
        let at = usize::from(r.byte().ok()?);
        let next = read_link(&mut r)?;
        let (task, behind) = decode(r.rest(), |event| match event {
            Event::Task(full) => read_task(full),
            _ => None,
        })
        .ok()?;
        if at < page.len() || at >= slots {
            return None;
        }
        page.resize_with(at, || TaskSlot::new(None, NOWHERE));
        page.push(TaskSlot::new(Some(task?), next));
        rest = behind;
    }
    page.resize_with(slots, || TaskSlot::new(None, NOWHERE));
    Some(page)
}

fn read_task<B: Body>(full: &FullTask<'_>) -> Option<Task<B>> {
    let (body, rest) = B::unpack(None, full.payload)?;
    (rest.is_empty() && is_sound(full)).then(|| record_of(full, body))
}

/// The first section of a head.
pub(super) struct Head {
    pub(super) name: Box<[u8]>,
    pub(super) settings: Settings,
    pub(super) counters: Counters,
}

impl Head {
    pub(super) fn read(bytes: &[u8]) -> Option<(Self, &[u8])> {
        let (name, rest) = decode(bytes, |event| match event {
            Event::QueueMade { name, .. } => Some(Box::from(*name)),
            _ => None,
        })
        .ok()?;
        let (settings, rest) = decode(rest, |event| match event {
            Event::Configured { settings, .. } => Some(Settings::clone(settings)),
            _ => None,
        })
        .ok()?;
        let (counters, rest) = decode(rest, |event| match event {
            Event::Counted { counters, .. } => Some(**counters),
            _ => None,
        })
        .ok()?;
        Some((Self { name: name?, settings: settings?, counters: counters? }, rest))
    }
}

impl<B: Body> Queue<B> {
    /// An image of the queue under this name. Parts that changed since the last image get new stamps.
    pub(crate) fn image(&mut self, name: &[u8], last_stamp: &mut u64) -> QueueImage<B> {
        self.changed = false;
        let (queue, mut head) = (self.no, Vec::new());
        encode(&Event::QueueMade { queue, name }, &mut head);
        encode(&Event::Configured { queue, settings: &self.settings }, &mut head);
        encode(&Event::Counted { queue, counters: &self.counters() }, &mut head);
        write_number(self.waiting_bytes, &mut head);
        head.push(u8::from(self.adopted));
        for list in [&self.leased, &self.dead] {
            write_number(list.len() as u64, &mut head);
            write_link(list.head(), &mut head);
        }
        let (mut overlays, mut parts) = (Vec::new(), Vec::new());
        for packed in [&mut self.ready.packed, &mut self.packed_delayed] {
            let before = parts.len();
            packed.image(last_stamp, |overlay, stamp, run| {
                overlays.push(overlay.clone());
                parts.push(Part { stamp, content: Content::Run(run) });
            });
            write_number((parts.len() - before) as u64, &mut head);
        }
        let runs = parts.len();
        self.table.image(last_stamp, |stamp, page| parts.push(Part { stamp, content: Content::Page(page) }));
        write_number((parts.len() - runs) as u64, &mut head);
        QueueImage { head, overlays, parts }
    }

    /// Restores a queue and its name from an image. Runs of ready tasks are not decoded; all other data is, and must
    /// be consistent.
    pub(crate) fn restore<P: AsRef<[u8]>>(
        no: QueueNo,
        head: &[u8],
        mut parts: impl Iterator<Item = (u64, P)>,
    ) -> Result<(Box<[u8]>, Self), Damaged> {
        let (Head { name, settings, counters }, rest) =
            Head::read(head).ok_or(Damaged("the head of a queue"))?;
        let mut queue = Self { settings, ..Self::new(no) };
        let mut r = Reader::new(rest);
        let (waiting_bytes, lists, counts) =
            queue.read_numbers(&mut r).ok_or(Damaged("the numbers of a queue"))?;
        let mut ready = Packed::default();
        restore_runs(&mut ready, counts[0], &mut parts, &mut r).ok_or(Damaged("a run of ready tasks"))?;
        restore_runs(&mut queue.packed_delayed, counts[1], &mut parts, &mut r)
            .ok_or(Damaged("a run of delayed tasks"))?;
        queue.ready.packed = ready;
        queue.index_packed_delayed().ok_or(Damaged("a delayed task"))?;
        for _ in 0..counts[2] {
            let (stamp, bytes) = parts.next().ok_or(Damaged("a page that is missing"))?;
            let page = read_page(bytes.as_ref()).ok_or(Damaged("a page of records"))?;
            queue.table.restore(page, stamp).ok_or(Damaged("the order of pages"))?;
        }
        queue.index_records(lists).ok_or(Damaged("a record"))?;
        if !r.rest().is_empty() || parts.next().is_some() || waiting_bytes < queue.waiting_bytes {
            return Err(Damaged("more parts than the queue has"));
        }
        queue.waiting_bytes = waiting_bytes;
        let runs = [queue.ready.packed.last_id(), queue.packed_delayed.last_id()];
        queue.last_id = queue.last_id.max(runs[0]).max(runs[1]);
        queue.apply_counted(&counters).map_err(|inconsistent| Damaged(inconsistent.what))?;
        queue.changed = false;
        Ok((name, queue))
    }

    /// Reads the waiting bytes; the lists as length and first slot; the numbers of runs, delayed runs and pages.
    #[expect(clippy::type_complexity, reason = "the numbers of a head, which the callers destructure")]
    pub(super) fn read_numbers(
        &mut self,
        r: &mut Reader<'_>,
    ) -> Option<(u64, [(usize, u32); 2], [usize; 3])> {
        let waiting_bytes = r.number().ok()?;
        self.adopted = match r.byte().ok()? {
            0 => false,
            1 => true,
            _ => return None,
        };
        let lists = [(r.small().ok()?, read_link(r)?), (r.small().ok()?, read_link(r)?)];
        Some((waiting_bytes, lists, [r.small().ok()?, r.small().ok()?, r.small().ok()?]))
    }

    /// Adds the packed delayed tasks to the index of their clock, sorted once.
    fn index_packed_delayed(&mut self) -> Option<()> {
        let (mut by_log, mut by_wall) = (Vec::new(), Vec::new());
        let mut last = TaskId::NONE;
        for entry in self.packed_delayed.iter() {
            match entry.due.filter(|_| entry.id > last)? {
                Due::Log(due) => by_log.push((due, entry.id)),
                Due::Wall(due) => by_wall.push((due, entry.id)),
            }
            last = entry.id;
            self.waiting_bytes = self.waiting_bytes.checked_add(entry.body.len() as u64)?;
        }
        if self.is_any_delayed_ready() {
            return None;
        }
        self.delayed_bytes = self.waiting_bytes;
        by_log.sort_unstable();
        by_wall.sort_unstable();
        (self.delayed, self.delayed_wall) = (by_log.into_iter().collect(), by_wall.into_iter().collect());
        (self.delayed.len() + self.delayed_wall.len() == self.packed_delayed.len()).then_some(())
    }

    /// Whether a task is packed both as delayed and as ready. Few tasks are looked up one by one; for many it is
    /// faster to iterate over both runs in parallel.
    fn is_any_delayed_ready(&self) -> bool {
        const LOOKED_UP_PART: usize = 64;
        if self.packed_delayed.len() * LOOKED_UP_PART < self.ready.packed.len() {
            return self.packed_delayed.iter().any(|entry| self.ready.packed.contains(entry.id));
        }
        let mut ready = self.ready.packed.iter().map(|entry| entry.id).peekable();
        self.packed_delayed.iter().any(|entry| {
            while ready.next_if(|&id| id < entry.id).is_some() {}
            ready.peek() == Some(&entry.id)
        })
    }

    /// Adds records to the indexes for their states.
    fn index_records(&mut self, lists: [(usize, u32); 2]) -> Option<()> {
        let mut counts = [0, 0];
        for at in self.table.all() {
            let task = self.table.at(at);
            if self.ready.packed.contains(task.id) || self.packed_delayed.contains(task.id) {
                return None;
            }
            match &task.state {
                TaskState::Ready(order) => {
                    if self.ready.is_taken(Rank::of(task.priority, *order)) {
                        return None;
                    }
                    self.minor = self.minor.max(order.minor);
                    self.front_group = self.front_group.max(group_of(*order));
                }
                TaskState::Delayed(_) => {}
                TaskState::Leased(lease) => {
                    self.seq = self.seq.max(lease.seq());
                    counts[0] += 1;
                }
                TaskState::Dead(_) => counts[1] += 1,
            }
            self.last_id = self.last_id.max(task.id);
            if task.waits() {
                self.waiting_bytes = self.waiting_bytes.checked_add(task.body.len() as u64)?;
            }
            if task.state.kind() == StateKind::Delayed {
                self.delayed_bytes += task.body.len() as u64;
            }
            if let Some(name) = task.name()
                && self.names.insert(name.clone(), task.id).is_some()
            {
                return None;
            }
            self.index(at);
        }
        let [(leased, leased_head), (dead, dead_head)] = lists;
        let mut seq = 0;
        let in_order = |task: &Task<B>| {
            let before = core::mem::replace(&mut seq, task.lease().map_or(0, Lease::seq));
            seq > before
        };
        self.leased = self.table.thread(leased_head, leased, in_order)?;
        let mut last_death = LogTime(0);
        let in_order = |task: &Task<B>| match task.state {
            TaskState::Dead(at) => at >= core::mem::replace(&mut last_death, at),
            _ => false,
        };
        self.dead = self.table.thread(dead_head, dead, in_order)?;
        (counts == [leased, dead]).then_some(())
    }
}

fn restore_runs<B: Body, P: AsRef<[u8]>>(
    into: &mut Packed<B>,
    count: usize,
    parts: &mut impl Iterator<Item = (u64, P)>,
    overlay: &mut Reader<'_>,
) -> Option<()> {
    for _ in 0..count {
        let (stamp, bytes) = parts.next()?;
        into.restore(Run::read(bytes.as_ref())?, stamp, overlay)?;
    }
    Some(())
}
