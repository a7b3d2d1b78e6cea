//! Puts payloads into replies: at once if they are in memory, and behind a ticket if they are on disk.

use std::sync::Arc;

use sureq_core::Command;
use sureq_core::command::Cancel;
use sureq_core::reply::TaskView;

use crate::payload::ahead::Readable;
use crate::payload::body::{Body, Stored};
use crate::payload::cache::Found;
use crate::payload::seek::Search;
use crate::shared::{EngineState, Shared};
use crate::waiting::sliced::SLICE_BYTES;
use crate::waiting::ticket::{EngineTicket, PendingAnswer, TicketCell};
use sureq_home_api::Payload;

/// Smaller payloads of one reply share one allocation; others have their own.
const TOGETHER_BYTES_MAX: usize = 4 << 10;

/// The bytes that are copied for one reply under the lock; a single payload may be larger.
const COPIED_BYTES_MAX: usize = SLICE_BYTES;

/// A payload may share an allocation of at most this many bytes, or of this many times its own size.
const SHARED_BYTES_MAX: usize = 1280 << 10;
const SHARED_PART: usize = 2;

/// The capacity that is kept from one reply to the next.
const KEPT_BYTES: usize = 64 << 10;

/// Facts about where the payloads of a reply were found.
#[derive(Default)]
struct Fetched {
    /// Some are not in memory.
    is_cold: bool,
    /// Some were found in spans that had been read from the disk.
    is_read: bool,
}

impl EngineState {
    /// A payload, if it is in memory.
    pub(crate) fn payload(&mut self, place: Stored) -> Option<Found<'_>> {
        if let Some(payload) = self.cache.find_near(place) {
            return Some(Found::Read(payload));
        }
        match self.buffer.payload(place) {
            Some(found) => Some(found),
            None => self.cache.find(place),
        }
    }

    /// Finds payloads, and copies a bounded number of bytes: the rest is left to the loader, which releases the lock in
    /// between.
    fn fetch(&mut self, tasks: &mut [TaskView<Body>]) -> Fetched {
        let (mut fetched, mut is_any_together) = (Fetched::default(), false);
        let mut together = std::mem::take(&mut self.payloads);
        let mut copied = 0;
        for task in tasks.iter_mut() {
            let Some(place) = task.body.place() else { continue };
            let found = self.payload(place);
            if matches!(found, Some(Found::Written(_))) {
                copied += place.len as usize;
            }
            match found {
                Some(Found::Written(bytes)) if copied > COPIED_BYTES_MAX && bytes.len() < copied => {
                    copied -= bytes.len();
                    fetched.is_cold = true;
                }
                Some(Found::Written(bytes)) if bytes.len() <= TOGETHER_BYTES_MAX => {
                    task.body = Body::Stored(Stored { segment: 0, offset: together.len() as u32, ..place });
                    together.extend_from_slice(bytes);
                    is_any_together = true;
                }
                Some(Found::Written(bytes)) => task.body = Body::from(bytes),
                Some(Found::Large(payload)) => task.body = Body::Loaded(payload),
                Some(Found::Read(payload)) => {
                    task.body = Body::Loaded(payload);
                    fetched.is_read = true;
                }
                None => fetched.is_cold = true,
            }
        }
        self.meter.bytes(copied);
        if is_any_together {
            hand_out(&together, tasks);
        }
        together.clear();
        together.shrink_to(KEPT_BYTES);
        self.payloads = together;
        fetched
    }
}

/// Gives tasks their payloads out of one allocation. A place in segment 0, which does not exist, is an offset in it.
fn hand_out(together: &[u8], tasks: &mut [TaskView<Body>]) {
    let buffer: Arc<[u8]> = together.into();
    for task in tasks {
        if let Some(Stored { segment: 0, offset, len }) = task.body.place() {
            let start = offset as usize;
            task.body = Body::Loaded(Payload::within(&buffer, start..start + len as usize));
        }
    }
}

impl Shared {
    /// Puts payloads that are in memory into a reply. Returns whether those were all. If some had been read from the
    /// disk, the payloads that follow are read ahead.
    pub(crate) fn fetch(
        &self,
        state: &mut EngineState,
        command: &Command<'_>,
        tasks: &mut [TaskView<Body>],
    ) -> bool {
        let Some(loader) = &self.loader else { return true };
        let Fetched { is_cold, is_read } = self.look_for(state, tasks);
        if let Command::Pop(pop) = command
            && (is_cold || is_read)
        {
            let EngineState { broker, ahead, cache, buffer, meter, .. } = state;
            let before = cache.written_from().min(buffer.unwritten_from());
            let readable = Readable { before, budget: cache.budget() };
            // Tasks of one queue are adjacent, so this visits each task once.
            for popped in tasks.chunk_by(|one, next| one.queue == next.queue) {
                let queue = pop.queues[popped[0].queue as usize];
                if let Some(reading) = ahead.next(broker, queue, popped.len(), readable, meter) {
                    loader.read_ahead(reading);
                }
            }
        }
        !is_cold
    }

    /// Puts payloads that are in memory into the tasks of a slice.
    pub(crate) fn fetch_all(&self, state: &mut EngineState, tasks: &mut [TaskView<Body>]) {
        self.look_for(state, tasks);
    }

    fn look_for(&self, state: &mut EngineState, tasks: &mut [TaskView<Body>]) -> Fetched {
        self.loader.iter().for_each(|loader| loader.unload(&mut state.cache));
        if self.loader.is_some() { state.fetch(tasks) } else { Fetched::default() }
    }

    /// Asks the loader for the payloads of an answer.
    pub(crate) fn load(self: &Arc<Self>, answer: PendingAnswer) -> EngineTicket {
        let cell = Arc::<TicketCell>::default();
        self.load_into(&cell, answer);
        EngineTicket { number: None, cell, shared: Arc::clone(self) }
    }

    /// Begins a search for a payload, in stores that have payloads on disk.
    pub(crate) fn search(self: &Arc<Self>, command: &Command<'_>) -> Option<EngineTicket> {
        let Command::Cancel { queue, which: Cancel::Payload(payload) } = command else { return None };
        let loader = self.loader.as_ref()?;
        let cell = Arc::<TicketCell>::default();
        cell.lock().is_loading = true;
        loader.search(Search::new(queue, payload, Arc::clone(&cell)));
        Some(EngineTicket { number: None, cell, shared: Arc::clone(self) })
    }

    pub(crate) fn load_into(&self, cell: &Arc<TicketCell>, answer: PendingAnswer) {
        cell.begin(answer, None);
        self.read_for(cell);
    }
}

/// Copies payloads that are a small part of a large allocation, which they would otherwise keep alive.
pub(crate) fn part_from_large(tasks: &mut [TaskView<Body>]) {
    for task in tasks {
        if let Body::Loaded(payload) = &task.body
            && payload.owned_bytes() > SHARED_BYTES_MAX.max(SHARED_PART * payload.as_ref().len())
        {
            task.body = Body::from(payload.as_ref());
        }
    }
}
