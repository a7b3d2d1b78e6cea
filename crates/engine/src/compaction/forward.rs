//! Copies the live tasks of a segment to the end of the log, so that the segment can be removed. Without this, one old
//! task would keep its segment forever.

use std::sync::atomic::Ordering;
use std::time::Duration;

use sureq_core::TaskId;
use sureq_core::event::QueueNo;
use sureq_sync::thread;

use crate::commit::log_thread::LogThread;
use crate::commit::prepared::{LARGE_BYTES, Prepared};
use crate::disk::Disk;
use crate::failpoint::failpoint;
use crate::fault::OpenError;
use crate::log::{SegmentInfo, visit_segment};
use crate::payload::body::Body;
use crate::payload::payload_scan::{LoggedPayload, payloads_in};
use crate::shared::{EngineState, Shared};

/// The tasks and bytes that are copied under one lock.
const SLICE_TASKS: usize = 128;
const SLICE_BYTES: usize = 256 << 10;

/// The pause between two slices. It keeps copying below about a hundred megabytes a second.
const PAUSE: Duration = Duration::from_millis(2);

/// A payload of the segment, which may be live or not.
struct Candidate {
    queue: QueueNo,
    id: TaskId,
    /// Its offset in the segment.
    offset: u64,
    payload: Vec<u8>,
    /// The payload encoded for the log, if it is large.
    prepared: Option<Prepared>,
}

/// The outcome of copying a segment.
pub(crate) enum Copied {
    All,
    /// Some tasks could not be copied.
    NotAll,
    /// A part of the segment cannot be read, so it has to stay.
    Unreadable(OpenError),
}

/// Copies the live tasks of a segment.
pub(crate) fn copy(shared: &Shared, disk: &dyn Disk, uuid: [u8; 16], segment: &SegmentInfo) -> Copied {
    let mut slice = Slice { shared, segment, candidates: Vec::new(), bytes: 0 };
    let visited = visit_segment(disk, uuid, segment.number, &mut |place, body| {
        payloads_in(place, body, &mut |logged| slice.add(&logged))?;
        Ok(())
    });
    match visited {
        Ok(()) => {
            slice.copy();
            let is_empty = shared.lock().buffer.live.within(segment.numbers()).tasks == 0;
            if is_empty { Copied::All } else { Copied::NotAll }
        }
        Err(error) => Copied::Unreadable(error),
    }
}

/// Tasks that are copied together.
struct Slice<'s> {
    shared: &'s Shared,
    segment: &'s SegmentInfo,
    candidates: Vec<Candidate>,
    bytes: usize,
}

impl Slice<'_> {
    /// Whether copying must wait for the log thread. It must not if the log thread waits for compaction.
    fn must_wait(&self) -> bool {
        let state = self.shared.lock();
        state.buffer.is_long()
            && state.log_thread != LogThread::Waits
            && self.shared.durable.failure().is_none()
    }

    fn add(&mut self, logged: &LoggedPayload<'_>) {
        let &LoggedPayload { queue, id, offset, payload } = logged;
        self.bytes += payload.len();
        let payload = payload.to_vec();
        let is_large = payload.len() >= LARGE_BYTES;
        let prepared = is_large.then(|| Prepared::section(&[&payload])).flatten();
        self.candidates.push(Candidate { queue, id, offset, payload, prepared });
        if self.candidates.len() >= SLICE_TASKS || self.bytes >= SLICE_BYTES {
            self.copy();
        }
    }

    /// Records the live candidates again.
    fn copy(&mut self) {
        let numbers = self.segment.numbers();
        let copied;
        {
            let mut state = self.shared.lock();
            if state.closing || self.shared.durable.failure().is_some() {
                return;
            }
            let EngineState { broker, buffer, .. } = &mut *state;
            let before = buffer.bytes();
            failpoint("forward.before");
            for Candidate { queue, id, offset, payload, prepared } in &mut self.candidates {
                let is_meant = |body: &Body| {
                    body.place().is_some_and(|place| {
                        u64::from(place.offset) == *offset && numbers.contains(&u64::from(place.segment))
                    })
                };
                buffer.lend(prepared.take());
                if broker.copy_forward(*queue, *id, payload, is_meant, buffer) {
                    buffer.end_unit(broker);
                }
                *prepared = buffer.take_left();
            }
            copied = (buffer.bytes() - before) as u64;
            let now = self.shared.clock.now();
            self.shared.notify_threads(&mut state, now);
        }
        self.bytes = 0;
        self.candidates.clear();
        if copied > 0 {
            failpoint("forward.half");
            self.shared.compaction.copied_bytes.fetch_add(copied, Ordering::Relaxed);
            thread::sleep(PAUSE);
            while self.must_wait() {
                thread::sleep(PAUSE);
            }
        }
    }
}
