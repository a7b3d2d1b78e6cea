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
    /// Some payloads are live only until work in progress releases them, or the store closes.
    Later,
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
            outcome(&shared.lock(), segment)
        }
        Err(error) => Copied::Unreadable(error),
    }
}

/// The outcome, once every payload of the segment was looked at. It is decided under one lock: payloads of dropped
/// queues are released by any thread, at any moment.
pub(crate) fn outcome(state: &EngineState, segment: &SegmentInfo) -> Copied {
    if state.buffer.live.within(segment.numbers()).tasks == 0 {
        Copied::All
    } else if state.closing || state.broker.is_unfinished() {
        Copied::Later
    } else {
        Copied::NotAll
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

#[cfg(test)]
mod tests {
    use sureq_core::{Command, Replies, limits};

    use super::*;
    use crate::{Engine, Options};

    /// A segment that is set aside because of payloads that are only waiting to be released would be kept for ever.
    #[test]
    fn a_segment_with_payloads_of_a_dropped_queue_is_copied_later() {
        let dir = tempfile::tempdir().expect("a directory");
        let engine = Engine::open(dir.path(), &Options::default()).expect("a new store");
        let shared = &engine.shared;
        let now = shared.clock.now();
        let mut state = shared.lock();
        let segment = *state.segments.last().expect("the open one");
        let EngineState { broker, buffer, .. } = &mut *state;
        let mut execute = |command: &Command<'_>| {
            broker.execute(now, command, buffer, &mut Replies::default());
            buffer.end_unit(broker);
        };
        execute(&Command::Push { queue: b"kept", payloads: &[b"x"] });
        execute(&Command::Push { queue: b"dropped", payloads: &vec![&b"x"[..]; 2 * limits::SLICE_TASKS] });
        assert!(matches!(outcome(&state, &segment), Copied::NotAll), "nothing would release these payloads");

        let EngineState { broker, buffer, .. } = &mut *state;
        for queue in [&b"dropped"[..], b"kept"] {
            broker.execute(now, &Command::Drop { queues: &[queue] }, buffer, &mut Replies::default());
            buffer.end_unit(broker);
        }
        assert!(matches!(outcome(&state, &segment), Copied::Later), "the rest is released in slices");

        let EngineState { broker, buffer, .. } = &mut *state;
        while broker.is_unfinished() {
            broker.tick(now, buffer);
            buffer.end_unit(broker);
        }
        assert!(matches!(outcome(&state, &segment), Copied::All), "nothing is live");
        drop(state);
        engine.close().expect("nothing is wrong with it");
    }
}
