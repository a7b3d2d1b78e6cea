//! Payloads for replies: from memory at once, from the disk by a ticket.

use std::sync::Arc;

use sureq_core::Command;
use sureq_core::command::Cancel;
use sureq_core::reply::TaskView;

use crate::ahead::Readable;
use crate::body::{Body, Stored};
use crate::cache::Found;
use crate::seek::Search;
use crate::shared::{Shared, State};
use crate::ticket::{Answer, Ticket, TicketCell};
use sureq_seam::Payload;

/// Smaller payloads of one reply are put together in one piece of memory; the others have their own.
const TOGETHER_BYTES_MAX: usize = 4 << 10;

/// Room that is kept from one reply to the next.
const KEPT_BYTES: usize = 64 << 10;

/// What came of the search for the payloads of a reply.
#[derive(Default)]
struct Fetched {
    /// Some are not in memory.
    is_cold: bool,
    /// Some had been read from the disk.
    is_read: bool,
}

impl State {
    /// A payload that is in memory. Most are asked for soon after they came.
    pub(crate) fn payload(&mut self, place: Stored) -> Option<Found<'_>> {
        if let Some(payload) = self.cache.find_near(place) {
            return Some(Found::Read(payload));
        }
        match self.tape.payload(place) {
            Some(bytes) => Some(Found::Written(bytes)),
            None => self.cache.find(place),
        }
    }

    fn fetch(&mut self, tasks: &mut [TaskView<Body>]) -> Fetched {
        let (mut fetched, mut is_any_together) = (Fetched::default(), false);
        let mut together = std::mem::take(&mut self.payloads);
        for task in tasks.iter_mut() {
            let Some(place) = task.body.place() else { continue };
            match self.payload(place) {
                Some(Found::Written(bytes)) if bytes.len() <= TOGETHER_BYTES_MAX => {
                    task.body = Body::Stored(Stored { segment: 0, offset: together.len() as u32, ..place });
                    together.extend_from_slice(bytes);
                    is_any_together = true;
                }
                Some(Found::Written(bytes)) => task.body = Body::from(bytes),
                Some(Found::Read(payload)) => {
                    task.body = Body::Loaded(payload);
                    fetched.is_read = true;
                }
                None => fetched.is_cold = true,
            }
        }
        if is_any_together {
            hand_out(&together, tasks);
        }
        together.clear();
        together.shrink_to(KEPT_BYTES);
        self.payloads = together;
        fetched
    }
}

/// Gives tasks their payloads out of one piece of memory. No segment has the number 0: such a place is one in it.
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
    /// Puts payloads that are in memory into a reply; answers whether those were all. Where some had to be read from the
    /// disk, what lies behind them is read ahead.
    pub(crate) fn fetch(
        &self,
        state: &mut State,
        command: &Command<'_>,
        tasks: &mut [TaskView<Body>],
    ) -> bool {
        let Some(loader) = &self.loader else { return true };
        loader.unload(&mut state.cache);
        let Fetched { is_cold, is_read } = state.fetch(tasks);
        if let Command::Pop(pop) = command
            && (is_cold || is_read)
        {
            let State { broker, ahead, cache, tape, .. } = state;
            let before = cache.written_from().min(tape.unwritten_from());
            let readable = Readable { before, budget: cache.budget() };
            // Tasks of one queue stand together: a reply is gone through once, however many queues it is from.
            for popped in tasks.chunk_by(|one, next| one.queue == next.queue) {
                let queue = pop.queues[popped[0].queue as usize];
                if let Some(reading) = ahead.next(broker, queue, popped.len(), readable) {
                    loader.read_ahead(reading);
                }
            }
        }
        !is_cold
    }

    /// Has the payloads of an answer read.
    pub(crate) fn load(self: &Arc<Self>, answer: Answer) -> Ticket {
        let cell = Arc::<TicketCell>::default();
        self.load_into(&cell, answer);
        Ticket { number: None, cell, shared: Arc::clone(self) }
    }

    /// Begins a search for payloads, where they lie on the disk.
    pub(crate) fn search(self: &Arc<Self>, command: &Command<'_>) -> Option<Ticket> {
        let Command::Cancel { queue, which: Cancel::Payload(payload) } = command else { return None };
        let loader = self.loader.as_ref()?;
        let cell = Arc::<TicketCell>::default();
        cell.lock().is_loading = true;
        loader.search(Search::new(queue, payload, Arc::clone(&cell)));
        Some(Ticket { number: None, cell, shared: Arc::clone(self) })
    }

    pub(crate) fn load_into(&self, cell: &Arc<TicketCell>, answer: Answer) {
        let mut ticket = cell.lock();
        ticket.answer = Some(answer);
        ticket.is_loading = true;
        drop(ticket);
        self.loader.iter().for_each(|loader| loader.load(Arc::clone(cell)));
    }
}
