//! The thread that reads payloads back from the log, so that no network thread ever waits for the disk.
//!
//! If payloads of a reply are not in memory, the caller gets a ticket, as for a pop that waits. The loader also reads
//! the next payloads of that queue, so that only the first of many pops has to wait.

use std::collections::VecDeque;
use std::io;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, PoisonError};
use std::task::Waker;

use sureq_core::{TaskId, limits};
use sureq_sync::{Condvar, Mutex, MutexGuard};

use crate::commit::durable::Durable;
use crate::fault::{Fault, Operation};
use crate::log::{LogAddress, Position, Reader, segment_name};
use crate::payload::ahead::Reading;
use crate::payload::body::{Body, Stored};
use crate::payload::cache::{Cache, Start, is_whole};
use crate::payload::read_span::{ReadSpan, read_spans};
use crate::payload::seek::{Candidates, Search};
use crate::payload::unreadable::{self, Missing, ReadFailure};
use crate::shared::Shared;
use crate::waiting::sliced::{SLICE_BYTES, SLICE_TASKS};
use crate::waiting::ticket::TicketCell;
use sureq_home_api::Payload;

/// The least that is read for a waiting reply: the payloads that follow in the segment are likely to be needed next.
const READ_BYTES_MIN: u64 = 64 << 10;

/// When more spans than this wait to be read ahead, the oldest are discarded.
const AHEAD_JOBS_MAX: usize = 64;

/// A search takes its next step after at most this many other jobs.
const OTHERS_PER_STEP: usize = 16;

/// After this many failed reads for one answer, the rest of its payloads are left for the next attempt.
const FAILED_READS_MAX: usize = 32;

/// The bytes that may be read ahead without being in the cache yet.
const ARRIVED_BYTES_MAX: usize = 1 << 20;

/// The jobs of the loader, and the spans that it has read ahead.
pub(crate) struct Loader {
    /// `None` once the store is closed, since a reader keeps the directory locked.
    reader: Mutex<Option<Arc<Reader>>>,
    jobs: Mutex<Jobs>,
    wakes: Condvar,
    done: Condvar,
    /// Spans that were read ahead while the state lock was taken. The next holder of the lock puts them into the cache:
    /// that costs less than to wait for the lock and be woken.
    arrived: Mutex<Vec<Arrived>>,
    arrived_bytes: AtomicUsize,
}

/// A span that was read ahead.
struct Arrived {
    start: Start,
    bytes: Arc<[u8]>,
    payloads: usize,
}

#[derive(Default)]
struct Jobs {
    /// Answers that callers wait for. They are served first. Jobs are numbered in order of arrival.
    answers: VecDeque<(u64, Arc<TicketCell>)>,
    /// Payloads to read ahead.
    ahead: VecDeque<(u64, Reading)>,
    /// Searches. Each takes a step when there is nothing else to do, or after [`OTHERS_PER_STEP`] other jobs.
    searches: VecDeque<(u64, Search)>,
    /// The number of other jobs since the last step of a search.
    others: usize,
    /// The number of jobs so far.
    count: u64,
    /// The job that is being done, and the ticket that waits for it.
    current: Option<u64>,
    current_answer: Option<Arc<TicketCell>>,
    closing: bool,
}

impl Jobs {
    fn next(&mut self) -> Option<(u64, Job)> {
        let is_others_turn = self.others < OTHERS_PER_STEP || self.searches.is_empty();
        self.others += 1;
        if is_others_turn {
            let answer = self.answers.pop_front().map(|(number, cell)| (number, Job::Answer(cell)));
            let ahead = || self.ahead.pop_front().map(|(number, reading)| (number, Job::Ahead(reading)));
            let other = answer.or_else(ahead);
            if other.is_some() {
                return other;
            }
        }
        self.others = 0;
        let job = if self.closing { Job::Dismiss } else { Job::Search };
        self.searches.pop_front().map(|(number, search)| (number, job(search)))
    }

    /// The number of the next job.
    const fn number(&mut self) -> u64 {
        self.count += 1;
        self.count
    }

    /// Whether a job with this number or a lower one is not done yet.
    fn has_any_upto(&self, count: u64) -> bool {
        let waiting = [
            self.answers.front().map(|(number, _)| *number),
            self.ahead.front().map(|(number, _)| *number),
            self.searches.front().map(|(number, _)| *number),
            self.current,
        ];
        waiting.into_iter().flatten().any(|number| number <= count)
    }
}

enum Job {
    Answer(Arc<TicketCell>),
    Ahead(Reading),
    Search(Search),
    /// Ends a search, because the store closes.
    Dismiss(Search),
}

impl Job {
    /// The ticket that waits for it.
    fn cell(&self) -> Option<Arc<TicketCell>> {
        match self {
            Self::Answer(cell) => Some(Arc::clone(cell)),
            Self::Search(search) | Self::Dismiss(search) => Some(search.cell()),
            Self::Ahead(_) => None,
        }
    }
}

impl Loader {
    pub(crate) fn new(reader: Reader) -> Self {
        let (jobs, arrived) = (Mutex::default(), Mutex::default());
        let (wakes, done) = (Condvar::new(), Condvar::new());
        let reader = Mutex::new(Some(Arc::new(reader)));
        Self { reader, jobs, wakes, done, arrived, arrived_bytes: AtomicUsize::new(0) }
    }

    /// Asks for the payloads of an answer.
    pub(crate) fn load(&self, cell: Arc<TicketCell>) {
        let mut jobs = self.jobs();
        let number = jobs.number();
        jobs.answers.push_back((number, cell));
        self.wakes.notify_one();
    }

    /// Asks for payloads ahead of need.
    pub(crate) fn read_ahead(&self, reading: Reading) {
        let mut jobs = self.jobs();
        let number = jobs.number();
        jobs.ahead.push_back((number, reading));
        if jobs.ahead.len() > AHEAD_JOBS_MAX {
            jobs.ahead.pop_front();
        }
        drop(jobs);
        self.wakes.notify_one();
    }

    /// Moves spans that were read ahead into the cache.
    pub(crate) fn unload(&self, cache: &mut Cache) {
        if self.arrived_bytes() > 0 {
            let mut arrived = self.arrived();
            self.arrived_bytes.store(0, Ordering::Relaxed);
            for Arrived { start, bytes, payloads } in arrived.drain(..) {
                cache.keep_read(start, bytes, payloads);
            }
        }
    }

    /// The bytes that were read ahead and are not in the cache yet.
    pub(crate) fn arrived_bytes(&self) -> usize {
        self.arrived_bytes.load(Ordering::Relaxed)
    }

    /// Starts a search for a payload.
    pub(crate) fn search(&self, search: Search) {
        let mut jobs = self.jobs();
        let number = jobs.number();
        jobs.searches.push_back((number, search));
        self.wakes.notify_one();
    }

    /// Waits until all present jobs are done. From then on nothing reads from segments that were not needed before.
    pub(crate) fn settle(&self) {
        let mut jobs = self.jobs();
        let upto = jobs.count;
        // No caller waits for these.
        jobs.ahead.clear();
        while jobs.has_any_upto(upto) && !jobs.closing {
            jobs = self.done.wait(jobs).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Closes a segment that is about to be retired.
    pub(crate) fn forget(&self, segment: u64) {
        self.reader().iter().for_each(|reader| reader.forget(segment));
    }

    /// Releases the directory. Nothing is read any more.
    pub(crate) fn leave(&self) {
        self.reader.lock().unwrap_or_else(PoisonError::into_inner).take();
    }

    fn reader(&self) -> Option<Arc<Reader>> {
        // A panic elsewhere cannot leave it half changed.
        self.reader.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// The name of the file that holds a payload.
    fn file_of(&self, place: Stored) -> String {
        let segment = u64::from(place.segment);
        self.reader().map_or_else(|| segment_name(segment), |reader| reader.file_of(segment))
    }

    /// Answers all waiting tickets with an error, after the store has failed. Their tasks are not requeued, since that
    /// would not be confirmed either.
    pub(crate) fn fail(&self, durable: &Durable) {
        let cells: Vec<Arc<TicketCell>> = {
            let mut jobs = self.jobs();
            jobs.closing = true;
            let current = jobs.current_answer.take();
            let searches: Vec<_> = jobs.searches.drain(..).map(|(_, search)| search.into_cell()).collect();
            let answers: Vec<_> = jobs.answers.drain(..).map(|(_, cell)| cell).collect();
            current.into_iter().chain(answers).chain(searches).collect()
        };
        self.wakes.notify_all();
        self.done.notify_all();
        for cell in cells {
            cell.fail(durable);
        }
    }

    pub(crate) fn close(&self) {
        self.jobs().closing = true;
        self.wakes.notify_all();
        self.done.notify_all();
    }

    fn next(&self) -> Option<Job> {
        let mut jobs = self.jobs();
        loop {
            if let Some((number, job)) = jobs.next() {
                jobs.current = Some(number);
                jobs.current_answer = job.cell();
                return Some(job);
            }
            if jobs.closing {
                return None;
            }
            jobs = self.wakes.wait(jobs).unwrap_or_else(PoisonError::into_inner);
        }
    }

    fn end(&self) {
        {
            let mut jobs = self.jobs();
            (jobs.current, jobs.current_answer) = (None, None);
        }
        self.done.notify_all();
    }

    fn jobs(&self) -> MutexGuard<'_, Jobs> {
        // A panic elsewhere cannot leave the lists half changed.
        self.jobs.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn arrived(&self) -> MutexGuard<'_, Vec<Arrived>> {
        // As above.
        self.arrived.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn read(&self, span: &ReadSpan) -> Result<Arc<[u8]>, Fault> {
        let place = LogAddress { segment: u64::from(span.segment), offset: span.start };
        if let Some(reader) = self.reader() {
            return reader.read_upto(place, span.bytes());
        }
        let closed = io::Error::from(io::ErrorKind::NotConnected);
        Err(Fault::new(Operation::Read, segment_name(place.segment), closed))
    }
}

/// A payload that an answer needs.
#[derive(Clone, Copy)]
struct Wanted {
    /// The index of its task in the answer.
    index: usize,
    place: Stored,
}

/// The reason why a payload could not be read.
type Reason = (ReadFailure, String);

pub(crate) fn run(shared: &Shared) {
    let Some(loader) = &shared.loader else { return };
    while let Some(job) = loader.next() {
        match job {
            Job::Ahead(reading) => read_ahead(shared, loader, reading),
            Job::Answer(cell) => load(shared, loader, &cell),
            Job::Search(search) => step(shared, loader, search),
            Job::Dismiss(search) => search.dismiss(shared),
        }
        loader.end();
    }
}

fn read_ahead(shared: &Shared, loader: &Loader, mut reading: Reading) {
    let apart = read_spans(&mut reading.places, |&place| place).map(|(span, places)| (span, places.len()));
    let all = reading.spans.into_iter().chain(apart);
    // An error here is reported when a reply needs the payload.
    let read = |(span, payloads): (ReadSpan, usize)| {
        let bytes = loader.read(&span).inspect_err(|_| shared.read_faults.note_error()).ok()?;
        Some(Arrived { start: span.first(), bytes, payloads })
    };
    let read: Vec<Arrived> = all.filter_map(read).collect();
    let mut arrived = loader.arrived();
    arrived.extend(read);
    let bytes = arrived.iter().map(|span| span.bytes.len()).sum();
    loader.arrived_bytes.store(bytes, Ordering::Relaxed);
    drop(arrived);
    let locked = if bytes > ARRIVED_BYTES_MAX { Some(shared.lock()) } else { shared.try_lock() };
    if let Some(mut state) = locked {
        loader.unload(&mut state.cache);
    }
}

/// Does one step of a search.
fn step(shared: &Shared, loader: &Loader, mut search: Search) {
    if search.is_abandoned() {
        return;
    }
    let Candidates { mut found, mut unread } = search.look(shared);
    let mut unreadable = None;
    let mut patience = FAILED_READS_MAX;
    // One span after the other, so that memory holds no more than one.
    for (span, candidates) in read_spans(&mut unread, |&(_, place)| place) {
        let places = (candidates, |&(_, place): &(TaskId, Stored)| place);
        read_each(shared, loader, span, places, &mut patience, &mut |&(id, _), payload| match payload {
            Ok(payload) if *payload.as_ref() == *search.payload => found.push(id),
            Ok(_) => {}
            Err((_, why)) => unreadable = unreadable.take().or(Some((id, why))),
        });
    }
    search.conclude(shared, &found, unreadable);
    if search.is_done() {
        search.answer(shared);
    } else {
        loader.search(search);
    }
}

/// Puts the payloads into an answer and wakes its caller. If the caller has dropped the ticket, that has requeued the
/// tasks.
fn load(shared: &Shared, loader: &Loader, cell: &TicketCell) {
    let (payloads, missing) = fetch(shared, loader, wanted(cell));
    let position = (!missing.is_empty()).then(|| unreadable::requeue_unreadable(shared, cell, &missing));
    let mut ticket = cell.lock();
    if shared.durable.failure().is_some() {
        // The log has failed. The ticket may have an answer that says so already; otherwise its next poll gives one.
        let waker = ticket.waker.take();
        drop(ticket);
        waker.into_iter().for_each(Waker::wake);
        return;
    }
    ticket.end_reading();
    let Some(answer) = &mut ticket.answer else { return };
    for (index, payload) in payloads {
        answer.replies.tasks[index].body = Body::Loaded(payload);
    }
    answer.leave_out(&missing);
    answer.position = answer.position.max(position.unwrap_or_default());
    let position = answer.position;
    // If more slices follow, the caller executes them at once. Nothing writes the slices so far before that.
    let wakes_at = if ticket.is_loading { Position::START } else { position };
    if let Some(waker) = ticket.waker.take() {
        drop(ticket);
        shared.durable.wake_at(wakes_at, &waker);
    }
}

fn wanted(cell: &TicketCell) -> Vec<Wanted> {
    let ticket = cell.lock();
    let tasks = ticket.answer.iter().flat_map(|answer| &answer.replies.tasks).enumerate();
    tasks.filter_map(|(index, task)| Some(Wanted { index, place: task.body.place()? })).collect()
}

/// The payloads, from memory or from the disk, and those that could not be read.
fn fetch(shared: &Shared, loader: &Loader, wanted: Vec<Wanted>) -> (Vec<(usize, Payload)>, Vec<Missing>) {
    let mut payloads = Vec::with_capacity(wanted.len());
    let mut cold = Vec::new();
    let mut sealed = 0;
    let mut wanted = wanted.into_iter().peekable();
    while wanted.peek().is_some() {
        if !payloads.is_empty() || !cold.is_empty() {
            shared.yield_lock();
        }
        let mut state = shared.lock();
        loader.unload(&mut state.cache);
        let (mut looked_at, mut copied) = (0, 0);
        while looked_at < SLICE_TASKS
            && copied < SLICE_BYTES
            && let Some(Wanted { index, place }) = wanted.next()
        {
            looked_at += 1;
            match state.payload(place) {
                Some(found) => {
                    copied += place.len as usize;
                    payloads.push((index, found.into()));
                }
                None => cold.push(Wanted { index, place }),
            }
        }
        state.meter.bytes(copied);
        sealed = state.buffer.segment().saturating_sub(1);
    }
    let mut missing = Vec::new();
    let mut patience = FAILED_READS_MAX;
    let spans: Vec<_> = read_spans(&mut cold, |wanted| wanted.place).collect();
    let is_alone = spans.len() == 1;
    for (span, wanted) in spans {
        // A sealed segment does not change any more, so the bytes that follow can be cached too.
        let has_more = is_alone
            && u64::from(span.segment) < sealed
            && span.end < span.start + READ_BYTES_MIN
            && read_more(shared, loader, span, wanted, &mut payloads);
        if has_more {
            continue;
        }
        let is_scattered =
            2 * wanted.iter().map(|wanted| u64::from(wanted.place.len)).sum::<u64>() < span.end - span.start;
        let places = (wanted, |wanted: &Wanted| wanted.place);
        read_each(shared, loader, span, places, &mut patience, &mut |wanted, payload| match payload {
            // The answer must not keep memory that it does not use.
            Ok(payload) if is_scattered => payloads.push((wanted.index, Payload::from(payload.as_ref()))),
            Ok(payload) => payloads.push((wanted.index, payload)),
            Err((failure, why)) => missing.push(Missing { index: wanted.index, failure, why }),
        });
    }
    (payloads, missing)
}

/// Reads a span and the bytes that follow it, and puts them into the cache. Returns false, and uses nothing of it, if a
/// payload in it is damaged.
fn read_more(
    shared: &Shared,
    loader: &Loader,
    span: ReadSpan,
    wanted: &[Wanted],
    payloads: &mut Vec<(usize, Payload)>,
) -> bool {
    let more = ReadSpan { end: span.start + READ_BYTES_MIN, ..span };
    let Ok(bytes) = loader.read(&more) else { return false };
    let found: Option<Vec<(usize, Payload)>> = wanted
        .iter()
        .map(|wanted| {
            let range = more.find(wanted.place);
            let is_sound = is_whole(&bytes, range.start, wanted.place);
            is_sound.then(|| (wanted.index, Payload::from(&bytes[range])))
        })
        .collect();
    let Some(found) = found else { return false };
    payloads.extend(found);
    shared.lock().cache.keep_read(more.first(), bytes, usize::MAX);
    true
}

/// Reads the payloads of a span. If that fails, it reads the halves, so that an unreadable place affects only the
/// payload there. After too many failures the rest is left for the next attempt, since each failure may take seconds.
fn read_each<T>(
    shared: &Shared,
    loader: &Loader,
    span: ReadSpan,
    (items, place_of): (&[T], impl Fn(&T) -> Stored + Copy),
    patience: &mut usize,
    visit: &mut dyn FnMut(&T, Result<Payload, Reason>),
) {
    let is_a_place = |item: &T| place_of(item).len as usize <= limits::PAYLOAD_BYTES_MAX;
    let read = if items.iter().all(is_a_place) { Some(loader.read(&span)) } else { None };
    match read {
        Some(Ok(bytes)) => {
            for item in items {
                visit(item, find(loader, &span, &bytes, place_of(item)));
            }
        }
        Some(Err(fault)) if items.len() == 1 || *patience == 0 || fault.is_shortage() => {
            shared.read_faults.note_error();
            let is_tried = items.len() == 1 && !fault.is_shortage();
            *patience = patience.saturating_sub(1);
            for item in items {
                let failure = if is_tried { ReadFailure::Failed } else { ReadFailure::Untried };
                visit(item, Err((failure, format!("{fault}, at offset {}", place_of(item).offset))));
            }
        }
        None if items.len() == 1 => visit(&items[0], Err(damaged(loader, place_of(&items[0])))),
        failed => {
            if failed.is_some() {
                shared.read_faults.note_error();
                *patience -= 1;
            }
            let (first, second) = items.split_at(items.len() / 2);
            for half in [first, second] {
                if let Some(span) = ReadSpan::around(half.iter().map(place_of)) {
                    read_each(shared, loader, span, (half, place_of), patience, visit);
                }
            }
        }
    }
}

fn find(loader: &Loader, span: &ReadSpan, bytes: &Arc<[u8]>, place: Stored) -> Result<Payload, Reason> {
    let range = span.find(place);
    if is_whole(bytes, range.start, place) {
        return Ok(Payload::within(bytes, range));
    }
    Err(damaged(loader, place))
}

fn damaged(loader: &Loader, place: Stored) -> Reason {
    let (file, offset) = (loader.file_of(place), place.offset);
    let why = format!("{file} is damaged at offset {offset}: the checksum of the payload does not match");
    (ReadFailure::Damaged, why)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A job counts as pending until it is done, also if others overtake it.
    #[test]
    fn a_job_that_was_overtaken_is_still_waited_for() {
        let mut jobs = Jobs::default();
        let number = jobs.number();
        jobs.ahead.push_back((number, Reading::default()));
        let upto = jobs.count;
        for _ in 0..3 {
            let number = jobs.number();
            jobs.answers.push_back((number, Arc::default()));
        }
        for later in 2..=4 {
            let (number, job) = jobs.next().expect("there are some");
            assert!(number == later && matches!(job, Job::Answer(_)), "answers go first");
            jobs.current = Some(number);
            assert!(jobs.has_any_upto(upto), "the earlier job is not done");
        }
        let (number, job) = jobs.next().expect("there is one");
        jobs.current = Some(number);
        assert!(number == 1 && matches!(job, Job::Ahead(_)));
        assert!(jobs.has_any_upto(upto), "it is being done");
        jobs.current = None;
        assert!(!jobs.has_any_upto(upto) && jobs.next().is_none());
    }
}
