//! Images of a store, from which checkpoints are written, and restoring a store from one.
//!
//! The head is the last stamp (a varint), and events: [`Event::Started`], [`Event::IdsUpto`],
//! [`Event::WorkerStarted`] of each worker, [`Event::Worked`] and [`Event::Mark`]. The rest is one
//! [`QueueImage`] per queue; queues that have not changed since the last image are left out.

use alloc::sync::Arc;
use alloc::vec::Vec;
use core::mem;

use super::Broker;
use crate::codec::{decode, encode, read_number, write_number};
use crate::event::{Event, QueueNo};
use crate::id::TaskId;
use crate::meter;
use crate::queue::{Damaged, Inconsistent, Queue, QueueImage};
use crate::task::Body;

/// Stamps count from 1 and never get near this value.
const STAMP_MAX: u64 = 1 << 62;

/// A store, as it was when the image was taken.
#[derive(Debug)]
pub struct Image<B> {
    /// The bytes of the state that spans queues.
    pub head: Vec<u8>,
    /// The queues that changed since the last image, by number: a new or changed queue, or `None` for a queue that is
    /// gone. A queue that is not listed is the same as in the last image.
    pub queues: Vec<(QueueNo, Option<Arc<QueueImage<B>>>)>,
}

/// An image under way, of the store at one moment.
#[derive(Clone, Debug)]
pub(super) struct Imaging<B> {
    /// The head without the last stamp.
    head: Vec<u8>,
    /// Queues that changed since the last image, including those that were imaged already before a change.
    waiting: Vec<QueueNo>,
    /// Images of queues. The first image of each queue counts.
    taken: Vec<(QueueNo, Option<Arc<QueueImage<B>>>)>,
}

/// A complete image that is not sorted yet.
#[derive(Debug)]
pub struct Unsorted<B> {
    last_stamp: u64,
    imaging: Imaging<B>,
}

impl<B> Unsorted<B> {
    /// Sorts the image. This takes time if there are very many queues, but does not need the broker.
    pub fn sorted(self) -> Image<B> {
        let Imaging { head: events, taken: mut queues, .. } = self.imaging;
        let mut head = Vec::with_capacity(events.len() + 10);
        write_number(self.last_stamp, &mut head);
        head.extend_from_slice(&events);
        // The sort is stable, so the first entry of each queue stays.
        queues.sort_by_key(|&(no, _)| no);
        queues.dedup_by_key(|&mut (no, _)| no);
        Image { head, queues }
    }
}

/// A queue as it was stored.
#[derive(Clone, Copy, Debug)]
pub struct Stored<H, P> {
    pub queue: QueueNo,
    pub head: H,
    /// The stamps and the bytes of its parts, in the order of [`QueueImage::parts`].
    pub parts: P,
}

impl<B: Body> Broker<B> {
    /// The durable state that changed since the last image, taken at once: see [`Broker::begin_image`].
    pub fn image(&mut self) -> Image<B> {
        self.begin_image();
        while self.image_some(usize::MAX) {}
        self.end_image().sorted()
    }

    /// Begins an image of the durable state of the store as it is now: everything that changed since the last image.
    /// The image shares runs and pages with the queues and copies none. [`Broker::image_some`] takes the images of
    /// queues; a queue that changes before that is imaged first. After a replay, call [`Broker::refresh_all`] before
    /// this. An image with bodies that cannot be packed is refused by [`Broker::restore`]. Must not be called while
    /// [`Broker::is_under_way`], since announced operations are not part of an image.
    pub fn begin_image(&mut self) {
        debug_assert!(self.unfinished.is_empty(), "images do not contain unfinished operations");
        debug_assert!(self.imaging.is_none(), "one image after the other");
        self.images += 1;
        let queues = mem::take(&mut self.touched);
        self.imaging = Some(Imaging { head: self.image_head(), waiting: queues, taken: Vec::new() });
    }

    /// Images up to `count` queues that the image still needs. Returns whether there are more.
    pub fn image_some(&mut self, count: usize) -> bool {
        for _ in 0..count {
            let Some(no) = self.imaging.as_mut().and_then(|imaging| imaging.waiting.pop()) else {
                return false;
            };
            meter::step();
            if !self.image_before_change(no)
                && let Some(imaging) = &mut self.imaging
            {
                // The queue was gone when the image was begun, or has been imaged already; then that entry counts.
                imaging.taken.push((no, None));
            }
        }
        self.imaging.as_ref().is_some_and(|imaging| !imaging.waiting.is_empty())
    }

    /// Images a queue if the image under way still needs it. Returns whether it did. To be called before each change
    /// of a queue.
    #[inline]
    pub(super) fn image_before_change(&mut self, no: QueueNo) -> bool {
        let Some(imaging) = &mut self.imaging else { return false };
        let Some(Some(slot)) = self.slots.get_mut(no.0 as usize) else { return false };
        if slot.touched.is_none_or(|images| images == self.images) {
            return false;
        }
        slot.touched = None;
        let image = slot.queue.image(&slot.name, &mut self.last_stamp);
        imaging.taken.push((no, Some(Arc::new(image))));
        true
    }

    /// Ends the image. The last call of [`Broker::image_some`] must have returned that there are no more queues.
    pub fn end_image(&mut self) -> Unsorted<B> {
        let imaging = self.imaging.take().expect("an image that was begun");
        assert!(imaging.waiting.is_empty(), "an image is ended when it has all queues");
        Unsorted { last_stamp: self.last_stamp, imaging }
    }

    /// Makes the next image include all queues, changed or not. For a driver that has lost the last images.
    pub fn touch_all(&mut self) {
        let images = self.images;
        for slot in self.slots.iter_mut().flatten().filter(|slot| slot.touched.is_none()) {
            slot.touched = Some(images);
            self.touched.push(slot.queue.no());
        }
    }

    /// The head of an image, without the last stamp.
    fn image_head(&self) -> Vec<u8> {
        let mut head = Vec::new();
        encode(&Event::Started { incarnation: self.incarnation, time: self.clock }, &mut head);
        if self.last_id != TaskId::NONE {
            encode(&Event::IdsUpto(self.last_id), &mut head);
        }
        for (incarnation, worker) in self.workers.all() {
            let (name, ttl_ms) = (&*worker.name, worker.ttl_ms);
            encode(&Event::WorkerStarted { name, incarnation, ttl_ms }, &mut head);
            for &queue in &worker.works {
                encode(&Event::Worked { incarnation, queue }, &mut head);
            }
        }
        for (source, cursor) in &self.marks {
            encode(&Event::Mark { source, cursor }, &mut head);
        }
        head
    }

    /// Restores a store from the bytes of an image: of its head and of all its queues. Parts keep their stamps, so
    /// that later images include only later changes. The next steps are the replay of the events after the image, and
    /// [`Broker::start`] or [`Broker::refresh_all`], which update the indexes. The bytes may come from a damaged
    /// disk: inconsistent data is refused, except within runs of ready tasks, which are decoded when they are needed.
    /// An entry that cannot be decoded then counts as absent.
    pub fn restore<H: AsRef<[u8]>, P: AsRef<[u8]>, I: IntoIterator<Item = (u64, P)>>(
        head: &[u8],
        queues: impl IntoIterator<Item = Stored<H, I>>,
    ) -> Result<Self, Damaged> {
        let mut broker = Self::default();
        let (last_stamp, events) = read_number(head).map_err(|_| Damaged("the last stamp"))?;
        if last_stamp > STAMP_MAX {
            return Err(Damaged("the last stamp"));
        }
        broker.last_stamp = last_stamp;
        broker.restore_head(events, Self::restore_own)?;
        for stored in queues {
            let parts = stored.parts.into_iter().map(|(stamp, bytes)| (stamp.min(last_stamp), bytes));
            let (name, queue) = Queue::restore(stored.queue, stored.head.as_ref(), parts)?;
            broker.take_over(stored.queue, &name, queue)?;
        }
        broker.restore_head(events, Self::restore_worked)?;
        Ok(broker)
    }

    pub(super) fn restore_head(
        &mut self,
        mut events: &[u8],
        take: fn(&mut Self, &Event<'_>) -> Result<(), Damaged>,
    ) -> Result<(), Damaged> {
        while !events.is_empty() {
            let (taken, rest) = decode(events, |event| take(self, event)).map_err(|_| Damaged("the head"))?;
            taken?;
            events = rest;
        }
        Ok(())
    }

    /// Applies the events of a head, which need no queues.
    pub(super) fn restore_own(&mut self, event: &Event<'_>) -> Result<(), Damaged> {
        match event {
            Event::Worked { .. } => Ok(()),
            Event::Started { .. } | Event::IdsUpto(_) | Event::WorkerStarted { .. } | Event::Mark { .. } => {
                self.apply_own(event).unwrap_or(Ok(())).map_err(damaged)
            }
            _ => Err(Damaged("an event that does not belong in a head")),
        }
    }

    pub(super) fn restore_worked(&mut self, event: &Event<'_>) -> Result<(), Damaged> {
        match event {
            Event::Worked { .. } => self.apply_own(event).unwrap_or(Ok(())).map_err(damaged),
            _ => Ok(()),
        }
    }

    pub(super) fn take_over(&mut self, no: QueueNo, name: &[u8], mut queue: Queue<B>) -> Result<(), Damaged> {
        if queue.last_id() > self.last_id || !queue.holders().all(|holder| self.workers.may_hold(holder)) {
            return Err(Damaged("a queue that is ahead of its store"));
        }
        self.make(no, name).map_err(damaged)?;
        self.holds.extend(queue.holders().map(|holder| (holder, no)));
        if queue.has_adopted() {
            self.adopters.insert(no);
            // It is not known which of these tasks came from other queues, so all are listed.
            self.adopted.extend(queue.recorded_ids().map(|id| (id, no)));
        }
        queue.enter_incarnation(self.incarnation);
        let slot = self.slot_mut(no).ok_or(Damaged("a queue that could not be created"))?;
        slot.queue = queue;
        self.take_holder_news(no);
        Ok(())
    }
}

const fn damaged(inconsistent: Inconsistent) -> Damaged {
    Damaged(inconsistent.what)
}
