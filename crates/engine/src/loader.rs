//! The thread that reads payloads back from the log, so that no network thread ever waits for the disk.
//!
//! A reply whose payloads are not in memory is set aside and its taker gets a ticket for it, as for a pop that waits. What
//! lies next in that queue is read along with it, ahead of whoever comes next: so only the first of many is held up.

use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use sureq_core::command::{IdForm, TaskRefs};
use sureq_core::{Command, Receipt, Refusal, Replies, Reply};

use crate::body::{Body, Stored};
use crate::cache::is_whole;
use crate::fault::Fault;
use crate::log::{Place, Position, Reader};
use crate::seek::{Candidates, Search};
use crate::shared::Shared;
use crate::ticket::TicketCell;
use sureq_seam::Payload;

/// How much is read at once, and so how much one reading holds in memory beside the cache.
const READ_BYTES_MAX: u64 = 1 << 20;

/// How much is read at least where someone waits: what lies behind it is likely to be asked for next, if not by the same
/// queue then by another.
const READ_BYTES_MIN: u64 = 64 << 10;

/// Payloads that lie no further apart are read together.
const GAP_BYTES_MAX: u64 = 4 << 10;

/// Stretches that nobody waits for yet are forgotten when there are more than this to read.
const AHEAD_JOBS_MAX: usize = 64;

/// So many other jobs are done at most before a search takes its next step.
const OTHERS_PER_STEP: usize = 16;

/// The checksum before a payload.
const CRC_BYTES: u64 = 4;

/// What is to be read.
pub(crate) struct Loader {
    reader: Reader,
    jobs: Mutex<Jobs>,
    wakes: Condvar,
    done: Condvar,
}

#[derive(Default)]
struct Jobs {
    /// Answers that someone waits for. They go first.
    answers: VecDeque<Arc<TicketCell>>,
    /// What will be asked for soon.
    ahead: VecDeque<Vec<Stored>>,
    /// Searches, each of which takes a step when there is nothing else to do, or after so much of it.
    searches: VecDeque<Search>,
    /// How many other jobs were done since the last step of a search.
    others: usize,
    /// How many were taken up so far, and how many are done with.
    begun: u64,
    ended: u64,
    closing: bool,
}

impl Jobs {
    fn next(&mut self) -> Option<Job> {
        let is_others_turn = self.others < OTHERS_PER_STEP || self.searches.is_empty();
        self.others += 1;
        if is_others_turn {
            let answer = self.answers.pop_front().map(Job::Answer);
            let other = answer.or_else(|| self.ahead.pop_front().map(Job::Ahead));
            if other.is_some() {
                return other;
            }
        }
        self.others = 0;
        self.searches.pop_front().map(if self.closing { Job::Dismiss } else { Job::Search })
    }
}

enum Job {
    Answer(Arc<TicketCell>),
    Ahead(Vec<Stored>),
    Search(Search),
    /// The store closes.
    Dismiss(Search),
}

impl Loader {
    pub(crate) fn new(reader: Reader) -> Self {
        Self { reader, jobs: Mutex::default(), wakes: Condvar::new(), done: Condvar::new() }
    }

    /// Has the payloads of an answer loaded.
    pub(crate) fn load(&self, cell: Arc<TicketCell>) {
        self.jobs().answers.push_back(cell);
        self.wakes.notify_one();
    }

    /// Has payloads read that will be asked for soon.
    pub(crate) fn read_ahead(&self, places: Vec<Stored>) {
        let mut jobs = self.jobs();
        jobs.ahead.push_back(places);
        if jobs.ahead.len() > AHEAD_JOBS_MAX {
            jobs.ahead.pop_front();
        }
        self.wakes.notify_one();
    }

    /// Has a payload searched for.
    pub(crate) fn search(&self, search: Search) {
        self.jobs().searches.push_back(search);
        self.wakes.notify_one();
    }

    /// Waits until all that was asked for by now has been read: nobody reads any more from what was not needed then.
    pub(crate) fn settle(&self) {
        let mut jobs = self.jobs();
        let upto = jobs.begun + (jobs.answers.len() + jobs.ahead.len() + jobs.searches.len()) as u64;
        while jobs.ended < upto && !jobs.closing {
            jobs = self.done.wait(jobs).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Lets go of a segment that is about to be retired.
    pub(crate) fn forget(&self, segment: u64) {
        self.reader.forget(segment);
    }

    pub(crate) fn close(&self) {
        self.jobs().closing = true;
        self.wakes.notify_all();
        self.done.notify_all();
    }

    fn next(&self) -> Option<Job> {
        let mut jobs = self.jobs();
        loop {
            if let Some(job) = jobs.next() {
                jobs.begun += 1;
                return Some(job);
            }
            if jobs.closing {
                return None;
            }
            jobs = self.wakes.wait(jobs).unwrap_or_else(PoisonError::into_inner);
        }
    }

    fn end(&self) {
        self.jobs().ended += 1;
        self.done.notify_all();
    }

    fn jobs(&self) -> MutexGuard<'_, Jobs> {
        // The lists are whole at every instant, so a panic elsewhere does not spoil them.
        self.jobs.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Reads a stretch that holds all of these places.
    fn read(&self, stretch: &Stretch) -> Result<Arc<[u8]>, Fault> {
        let place = Place { segment: u64::from(stretch.segment), offset: stretch.start };
        self.reader.read_upto(place, (stretch.end - stretch.start) as usize)
    }
}

/// A payload that an answer needs.
struct Wanted {
    /// Which of the answer's tasks it belongs to.
    index: usize,
    place: Stored,
}

/// Why a payload could not be had.
struct Unreadable {
    /// Which of the answer's tasks it belongs to.
    index: usize,
    /// Whether other bytes are where it was: it will not be better next time.
    is_damaged: bool,
    why: String,
}

pub(crate) fn run(shared: &Shared) {
    let Some(loader) = &shared.loader else { return };
    while let Some(job) = loader.next() {
        match job {
            Job::Ahead(places) => read_ahead(shared, loader, places),
            Job::Answer(cell) => load(shared, loader, &cell),
            Job::Search(search) => step(shared, loader, search),
            Job::Dismiss(search) => search.dismiss(shared),
        }
        loader.end();
    }
}

fn read_ahead(shared: &Shared, loader: &Loader, places: Vec<Stored>) {
    for stretch in stretches(places) {
        // Nobody has asked yet: whoever does is told what is wrong.
        if let Ok(bytes) = loader.read(&stretch) {
            shared.lock().cache.keep_read(stretch.segment, stretch.start as u32, bytes);
        }
    }
}

/// Takes a search one step further.
fn step(shared: &Shared, loader: &Loader, mut search: Search) {
    if search.is_abandoned() {
        return;
    }
    let Candidates { mut found, unread } = search.look(shared);
    let mut unreadable = None;
    // One stretch after the other, so that no more than one is held in memory.
    for stretch in stretches(unread.iter().map(|(_, place)| *place).collect()) {
        let read = [(stretch, loader.read(&stretch))];
        let here = |place: Stored| stretch.segment == place.segment && stretch.holds(place);
        for &(id, place) in unread.iter().filter(|(_, place)| here(*place)) {
            match find(loader, &read, place) {
                Ok(payload) if *payload.as_ref() == *search.payload => found.push(id),
                Ok(_) => {}
                Err((_, why)) => unreadable = unreadable.or(Some((id, why))),
            }
        }
    }
    search.conclude(shared, &found, unreadable);
    if search.is_done() {
        search.answer(shared);
    } else {
        loader.search(search);
    }
}

/// Puts the payloads into an answer, and wakes its taker. If that goes away meanwhile, it has given the tasks back itself.
fn load(shared: &Shared, loader: &Loader, cell: &TicketCell) {
    let (payloads, unreadable) = fetch(shared, loader, wanted(cell));
    let refused = unreadable.and_then(|unreadable| give_up(shared, cell, unreadable));
    let mut ticket = cell.lock();
    let Some(answer) = &mut ticket.answer else { return };
    match refused {
        Some((refused, position)) => {
            answer.replies = refused;
            answer.position = answer.position.max(position);
        }
        None => {
            for (index, payload) in payloads {
                answer.replies.tasks[index].body = Body::Loaded(payload);
            }
        }
    }
    let position = answer.position;
    ticket.is_loading = false;
    if let Some(waker) = ticket.waker.take() {
        drop(ticket);
        shared.durable.wake_at(position, &waker);
    }
}

fn wanted(cell: &TicketCell) -> Vec<Wanted> {
    let ticket = cell.lock();
    let tasks = ticket.answer.iter().flat_map(|answer| &answer.replies.tasks).enumerate();
    tasks.filter_map(|(index, task)| Some(Wanted { index, place: task.body.place()? })).collect()
}

/// The payloads, from memory or from the disk, and the first that could not be had.
fn fetch(
    shared: &Shared,
    loader: &Loader,
    wanted: Vec<Wanted>,
) -> (Vec<(usize, Payload)>, Option<Unreadable>) {
    let mut payloads = Vec::with_capacity(wanted.len());
    let mut cold = Vec::new();
    let sealed = {
        let mut state = shared.lock();
        for Wanted { index, place } in wanted {
            match state.payload(place) {
                Some(found) => payloads.push((index, found.into())),
                None => cold.push(Wanted { index, place }),
            }
        }
        state.tape.segment().saturating_sub(1)
    };
    let read = read_all(shared, loader, cold.iter().map(|wanted| wanted.place).collect(), sealed);
    let mut unreadable = None;
    for Wanted { index, place } in cold {
        match find(loader, &read, place) {
            Ok(payload) => payloads.push((index, payload)),
            Err((is_damaged, why)) => {
                unreadable = unreadable.or(Some(Unreadable { index, is_damaged, why }));
            }
        }
    }
    (payloads, unreadable)
}

/// Reads stretches with these places, and keeps them for who comes next. Segments below `sealed` do not change any more,
/// so that what lies behind the places can be kept too.
fn read_all(shared: &Shared, loader: &Loader, places: Vec<Stored>, sealed: u64) -> Vec<Read> {
    let mut read = Vec::new();
    for mut stretch in stretches(places) {
        if u64::from(stretch.segment) < sealed {
            stretch.end = stretch.end.max(stretch.start + READ_BYTES_MIN);
        }
        let bytes = loader.read(&stretch);
        if let Ok(bytes) = &bytes {
            let mut state = shared.lock();
            state.cache.keep_read(stretch.segment, stretch.start as u32, Arc::clone(bytes));
        }
        read.push((stretch, bytes));
    }
    read
}

type Read = (Stretch, Result<Arc<[u8]>, Fault>);

fn find(loader: &Loader, read: &[Read], place: Stored) -> Result<Payload, (bool, String)> {
    let offset = place.offset;
    let holds = |stretch: &Stretch| stretch.segment == place.segment && stretch.holds(place);
    let Some((stretch, bytes)) = read.iter().find(|(stretch, _)| holds(stretch)) else {
        return Err((false, "it was not read".to_owned()));
    };
    let bytes = bytes.as_ref().map_err(|error| (false, format!("{error}, at offset {offset}")))?;
    let at = (u64::from(place.offset) - stretch.start) as usize;
    if is_whole(bytes, at, place) {
        return Ok(Payload::within(bytes, at..at + place.len as usize));
    }
    let file = loader.reader.file_of(u64::from(place.segment));
    Err((true, format!("{file} is damaged at offset {offset}: the checksum of the payload does not match")))
}

/// Takes back what cannot be delivered: the others wait again, and what is damaged is given up, so that it does not
/// stand in the way of those behind it. Answers what its taker is told instead, once that is durable.
fn give_up(shared: &Shared, cell: &TicketCell, unreadable: Unreadable) -> Option<(Replies<Body>, Position)> {
    let Unreadable { index, is_damaged, why } = unreadable;
    let (id, queues) = {
        let ticket = cell.lock();
        let answer = ticket.answer.as_ref()?;
        (answer.replies.tasks.get(index)?.id, answer.receipts())
    };
    for (queue, receipts) in queues {
        let is_bad = |receipt: &Receipt| is_damaged && receipt.id == id;
        let good: Vec<Receipt> = receipts.iter().copied().filter(|receipt| !is_bad(receipt)).collect();
        shared.change(|broker, now, tape| {
            broker.undeliver(&queue, &good, now, tape);
            if receipts.iter().any(is_bad) {
                let id = id.to_string();
                let tasks = TaskRefs { list: &[id.as_bytes()], form: IdForm::Long };
                let bury = Command::Bury { queue: &queue, tasks };
                broker.execute(now, &bury, tape, &mut Replies::default());
            }
        });
    }
    let mut refused = Replies::default();
    refused.list.push(Reply::Refused(Refusal::Damaged { id, why: why.into() }));
    Some((refused, shared.position(&shared.lock())))
}

/// Neighbouring places of one segment.
#[derive(Clone, Copy)]
struct Stretch {
    segment: u32,
    start: u64,
    end: u64,
}

impl Stretch {
    fn holds(&self, place: Stored) -> bool {
        let range = place.range();
        self.start + CRC_BYTES <= range.start && range.end <= self.end
    }
}

/// Stretches that hold these places with their checksums, as few as is sensible.
fn stretches(mut places: Vec<Stored>) -> Vec<Stretch> {
    places.sort_unstable();
    let mut stretches: Vec<Stretch> = Vec::new();
    for place in places {
        let range = place.range();
        match stretches.last_mut() {
            Some(last)
                if last.segment == place.segment
                    && range.start <= last.end + GAP_BYTES_MAX
                    && range.end <= last.start + READ_BYTES_MAX =>
            {
                last.end = last.end.max(range.end);
            }
            _ => {
                let start = range.start.saturating_sub(CRC_BYTES);
                stretches.push(Stretch { segment: place.segment, start, end: range.end });
            }
        }
    }
    stretches
}
