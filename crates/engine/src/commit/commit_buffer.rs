//! Records the events that the broker decides, in frames for the log thread to write.
//!
//! A task must know where its payload will be before the payload is written. So the buffer decides which frame goes
//! where: it knows the place of the frame that it fills, and begins another, in the next segment, when a command no
//! longer fits. The writer follows the same rule, and an assertion compares the two.
//!
//! The events of one unit (a command, or a slice of a tick) stay in one frame, and events may follow the one that holds
//! payloads. So a place that is handed out within a unit is a forecast: it holds if the rest of the unit fits as well.
//! [`CommitBuffer::end_unit`] knows the whole unit, decides where it goes, and corrects the forecast if it was wrong:
//!
//! ```text
//! segment 7                       segment 8
//! |..earlier units..|Pushed|      forecast: the payload will be in segment 7
//! |..earlier units..|Pushed Moved Moved M|oved       the unit has outgrown segment 7
//! |..earlier units..|seal|        |Pushed Moved Moved Moved|   end_unit: its places are in segment 8
//! ```
//!
//! Large payloads were encoded before the lock was taken ([`Prepared`]). The unit that has them gets a frame of its
//! own.

use std::collections::VecDeque;

use sureq_core::{Broker, Event, Recorder, codec};

use crate::commit::prepared::{self, Form, Prepared};
use crate::compaction::live::LiveBodies;
use crate::log::{FrameBuf, LogAddress, Position, Room, Section};
use crate::meter::Meter;
use crate::payload::body::{Body, Stored};
use crate::payload::cache::Found;
use crate::payload::payload_scan::{LoggedPayload, offset_in, payloads_in};
use crate::waiting::notice_buffer::NoticeBuffer;

/// While more than this fraction of a segment waits to be written, callers wait: a checkpoint waits for all of it,
/// and the number of segments of the log is bounded.
const LONG_SEGMENT_PART: u64 = 4;
const LONG_BYTES_MIN: u64 = 64 << 10;

/// A frame of this size takes no more commands: it is in memory several times, and larger writes gain little.
const FRAME_BYTES: usize = 2 << 20;

/// Events that are applied but not written yet.
pub(crate) struct CommitBuffer {
    /// `None` for a store in memory.
    open_frame: Option<OpenFrame>,
    /// Full frames, which are written before the one that is being filled.
    full: VecDeque<Batch>,
    full_bytes: usize,
    is_committed: bool,
    end: Position,
    /// Whether the last unit is larger than a segment.
    is_oversized: bool,
    hash_key: [u8; 16],
    /// The payloads of the next event, if they are large.
    prepared: Option<Prepared>,
    /// Counts the bytes that are encoded and the tasks that events move.
    pub(crate) meter: Meter,
    /// The live payloads of each segment.
    pub(crate) live: LiveBodies,
    /// The notices of the current unit.
    pub(crate) notices: NoticeBuffer,
    /// Workers that have ended, whose waiting pops must be refused.
    pub(crate) ended_workers: Vec<u64>,
}

/// The frame that is being filled.
struct OpenFrame {
    frame: FrameBuf,
    events: u32,
    /// Where it will be written.
    room: Room,
    has_payloads: bool,
    /// Whether places were handed out for payloads that were recorded since the mark.
    is_placed: bool,
    /// The end of the last complete unit.
    mark: Mark,
    /// Where the next payload of the event recorded last begins in the body, its length first.
    next_payload: usize,
}

/// A point in a frame between two units.
#[derive(Clone, Copy, Default)]
struct Mark {
    bytes: usize,
    events: u32,
    end: Position,
    has_payloads: bool,
}

/// A frame to be written.
pub(crate) struct Batch {
    pub(crate) frame: FrameBuf,
    pub(crate) events: u32,
    /// The position after its last event.
    pub(crate) end: Position,
    /// The future place of its body.
    pub(crate) place: LogAddress,
    pub(crate) has_payloads: bool,
}

impl CommitBuffer {
    /// A buffer that continues in `room`.
    pub(crate) fn new(end: Position, room: Room, hash_key: [u8; 16], live: LiveBodies) -> Self {
        let mark = Mark { end, ..Mark::default() };
        let frame = FrameBuf::new();
        let open_frame = Some(OpenFrame {
            frame,
            events: 0,
            room,
            has_payloads: false,
            is_placed: false,
            mark,
            next_payload: 0,
        });
        let full = VecDeque::new();
        let notices = NoticeBuffer::default();
        Self {
            open_frame,
            full,
            full_bytes: 0,
            is_committed: false,
            end,
            is_oversized: false,
            hash_key,
            prepared: None,
            meter: Meter::default(),
            live,
            notices,
            ended_workers: Vec::new(),
        }
    }

    /// A buffer for a store in memory, which records nothing.
    pub(crate) fn forgetful(hash_key: [u8; 16]) -> Self {
        Self {
            open_frame: None,
            full: VecDeque::new(),
            full_bytes: 0,
            is_committed: false,
            end: Position::START,
            is_oversized: false,
            hash_key,
            prepared: None,
            meter: Meter::default(),
            live: LiveBodies::default(),
            notices: NoticeBuffer::default(),
            ended_workers: Vec::new(),
        }
    }

    /// The position after the last recorded event.
    pub(crate) const fn end(&self) -> Position {
        self.end
    }

    /// The key of the hashes of payloads that serve as names.
    pub(crate) const fn hash_key(&self) -> [u8; 16] {
        self.hash_key
    }

    /// Whether the last unit is larger than a segment, and so needs a file of its own size.
    pub(crate) const fn is_oversized(&self) -> bool {
        self.is_oversized
    }

    /// Lends encoded payloads to the next event, which contains them.
    pub(crate) fn lend(&mut self, prepared: Option<Prepared>) {
        self.prepared = prepared;
    }

    /// Takes the encoded payloads back, if no event has used them. To be dropped after the lock is released.
    pub(crate) const fn take_left(&mut self) -> Option<Prepared> {
        self.prepared.take()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.full.is_empty() && self.open_frame.as_ref().is_none_or(|open_frame| open_frame.events == 0)
    }

    /// Ends a unit: its events stay together in one frame; what follows may go to another. Decides where that frame
    /// goes, and corrects the places that tasks of the broker have for its payloads.
    pub(crate) fn end_unit(&mut self, broker: &mut Broker<Body>) {
        let Some(open_frame) = &mut self.open_frame else { return };
        if !open_frame.has_room() {
            let forecast = open_frame.unit_place();
            self.seat();
            self.correct(forecast, broker);
        }
        let Some(open_frame) = &mut self.open_frame else { return };
        assert!(open_frame.has_room(), "a complete unit has a place");
        self.is_oversized = !open_frame.room.fits(open_frame.frame.body_len());
        open_frame.is_placed = false;
        open_frame.mark = Mark {
            bytes: open_frame.frame.body_len(),
            events: open_frame.events,
            end: self.end,
            has_payloads: open_frame.has_payloads,
        };
        if open_frame.mark.bytes >= FRAME_BYTES || open_frame.frame.section().is_some() {
            self.full_bytes += open_frame.mark.bytes;
            self.full.push_back(open_frame.close(FrameBuf::new()));
        }
    }

    /// Finds a place for a unit that does not fit into the current frame: a frame of its own, if necessary in the next
    /// segment.
    fn seat(&mut self) {
        let Some(open_frame) = &mut self.open_frame else { return };
        if open_frame.mark.bytes > 0 {
            self.full_bytes += open_frame.mark.bytes;
            self.full.push_back(open_frame.close(FrameBuf::new()));
        }
        if !open_frame.has_room() {
            open_frame.room.roll();
        }
    }

    /// Corrects the places of the payloads of the last unit: it is at its present place now, and no longer at
    /// `forecast`.
    fn correct(&mut self, forecast: LogAddress, broker: &mut Broker<Body>) {
        let Some(open_frame) = self.open_frame.as_ref().filter(|open_frame| open_frame.is_placed) else {
            return;
        };
        let unit = open_frame.frame.body_behind(open_frame.mark.bytes);
        let unit = unit.as_ref();
        let place = open_frame.unit_place();
        let live = &mut self.live;
        let read = payloads_in(place, unit, &mut |LoggedPayload { queue, id, offset, payload }| {
            let expected = placed(forecast, (offset - place.offset) as usize, payload.len());
            let is_meant = |body: &Body| body.place() == Some(expected);
            // A task that left the state within the unit is not found, and needs no place.
            let mut recorder = ReplayRecorder { frame: unit, place, live };
            broker.copy_forward(queue, id, payload, is_meant, &mut recorder);
        });
        read.expect("what was encoded can be decoded");
    }

    /// Marks the buffered events as to be written.
    pub(crate) const fn commit(&mut self) {
        self.is_committed = true;
    }

    /// Whether the log thread has something to write.
    pub(crate) fn is_committed(&self) -> bool {
        !self.full.is_empty() || self.is_committed && !self.is_empty()
    }

    /// The number of bytes that wait to be written.
    pub(crate) fn bytes(&self) -> usize {
        self.full_bytes + self.open_frame.as_ref().map_or(0, |open_frame| open_frame.frame.body_len())
    }

    /// Whether callers must wait, because too much waits to be written.
    pub(crate) fn is_long(&self) -> bool {
        let segment = self.open_frame.as_ref().map_or(0, |open_frame| open_frame.room.segment_bytes());
        self.bytes() as u64 > (segment / LONG_SEGMENT_PART).max(LONG_BYTES_MIN)
    }

    /// The segment of the frame that is being filled.
    pub(crate) fn segment(&self) -> u64 {
        self.open_frame.as_ref().map_or(0, |open_frame| open_frame.room.segment())
    }

    /// The segment and offset of the oldest payload that the log thread has not taken.
    pub(crate) fn unwritten_from(&self) -> (u32, u32) {
        let open_frame = self.open_frame.as_ref().map(|open_frame| open_frame.room.body());
        let oldest = self.full.front().map(|batch| batch.place).or(open_frame);
        oldest.map_or((0, 0), |place| (place.segment as u32, place.offset as u32))
    }

    /// Takes the next frame to be written, if there is one. All units must have ended.
    pub(crate) fn take(&mut self, empty: &mut FrameBuf) -> Option<Batch> {
        if let Some(batch) = self.full.pop_front() {
            self.full_bytes -= batch.frame.body_len();
            return Some(batch);
        }
        self.is_committed = false;
        let open_frame = self.open_frame.as_mut().filter(|open_frame| open_frame.events > 0)?;
        assert_eq!(open_frame.mark.events, open_frame.events, "a unit is written whole");
        Some(open_frame.close(std::mem::take(empty)))
    }

    /// Whether a full frame waits to be written.
    pub(crate) fn has_full(&self) -> bool {
        !self.full.is_empty()
    }

    /// The bytes of a payload that the log thread has not taken.
    pub(crate) fn payload(&self, place: Stored) -> Option<Found<'_>> {
        let open_frame = self.open_frame.as_ref()?;
        let within = |at: LogAddress, frame: &'_ FrameBuf| -> Option<usize> {
            let start = u64::from(place.offset).checked_sub(at.offset)? as usize;
            let is_here = at.segment == u64::from(place.segment) && start < frame.body_len().max(1);
            is_here.then_some(start)
        };
        let found = within(open_frame.room.body(), &open_frame.frame).map(|start| (start, &open_frame.frame));
        let in_full = || {
            let mut full = self.full.iter();
            full.find_map(|batch| Some((within(batch.place, &batch.frame)?, &batch.frame)))
        };
        let (start, frame) = found.or_else(in_full)?;
        match frame.section() {
            // A frame with a section has all its payloads there.
            Some(section) => Found::within(section, start, place),
            None => frame.body().get(start..)?.get(..place.len as usize).map(Found::Written),
        }
    }
}

impl OpenFrame {
    /// Ends the frame at the last mark, which becomes the beginning of the next.
    fn close(&mut self, empty: FrameBuf) -> Batch {
        let Mark { bytes, events, end, has_payloads } = self.mark;
        let mut next = empty;
        next.reset();
        self.frame.move_behind(bytes, &mut next);
        let frame = std::mem::replace(&mut self.frame, next);
        let batch = Batch { frame, events, end, place: self.room.body(), has_payloads };
        self.room.advance(bytes);
        self.events -= events;
        self.next_payload = self.next_payload.saturating_sub(bytes);
        self.has_payloads = self.is_placed;
        self.mark = Mark { end, ..Mark::default() };
        batch
    }

    /// Whether the frame fits its segment. The first frame of a segment always fits.
    fn has_room(&self) -> bool {
        let is_first = self.room.is_fresh() && self.mark.bytes == 0;
        is_first || self.room.fits(self.frame.body_len())
    }

    /// Where the unit behind the mark begins.
    fn unit_place(&self) -> LogAddress {
        let LogAddress { segment, offset } = self.room.body();
        LogAddress { segment, offset: offset + self.mark.bytes as u64 }
    }
}

impl Recorder for CommitBuffer {
    type Body = Body;

    fn record(&mut self, event: &Event<'_>) {
        self.notices.observe(event);
        self.meter.event(event);
        if let Event::WorkerEnded(incarnation) = *event {
            self.ended_workers.push(incarnation);
        }
        let Some(open_frame) = &mut self.open_frame else { return };
        let before = open_frame.frame.body_mut().len();
        let prepared = self.prepared.take_if(|prepared| prepared.is_of(event));
        let section = prepared.and_then(Prepared::into_section);
        let payloads_at = match section {
            None => codec::encode_with(event, open_frame.frame.body_mut(), crc32c::crc32c),
            Some(_) => codec::encode_around_payloads(event, open_frame.frame.body_mut()),
        };
        self.meter.bytes(open_frame.frame.body_mut().len() - before);
        open_frame.events += 1;
        self.end.0 += 1;
        let Some(payloads_at) = payloads_at else { return };
        open_frame.next_payload = payloads_at - FrameBuf::BODY_AT;
        if let Some(bytes) = section {
            open_frame.frame.put_section(Section { at: open_frame.next_payload, bytes });
            return self.seat();
        }
        // Once a place has been handed out, the rest of the unit stays in the same frame until the unit ends.
        if !open_frame.is_placed && !open_frame.has_room() {
            self.seat();
        }
    }

    fn note_task_count(&mut self, tasks: usize) {
        self.notices.counted(tasks);
        self.meter.counted(tasks);
    }

    fn new_body(&mut self, index: usize, payload: &[u8]) -> Body {
        let Some(open_frame) = &mut self.open_frame else { return self.loaded(index, payload) };
        (open_frame.has_payloads, open_frame.is_placed) = (true, true);
        let at = open_frame.next_payload + codec::payload_head_len(payload.len());
        open_frame.next_payload = at + payload.len();
        assert!(open_frame.next_payload <= open_frame.frame.body_len(), "a payload lies within its frame");
        let place = placed(open_frame.room.body(), at, payload.len());
        self.live.add(place);
        Body::Stored(place)
    }

    fn release_body(&mut self, body: Body) {
        self.meter.release();
        if let Body::Stored(place) = body {
            self.live.remove(place);
        }
    }

    fn payload_hash(&self, payload: &[u8]) -> u128 {
        let prepared = self.prepared.as_ref().and_then(|prepared| prepared.hash_of(payload));
        prepared.unwrap_or_else(|| prepared::payload_hash(&self.hash_key, payload))
    }
}

impl CommitBuffer {
    /// The handle of a payload of a store in memory.
    fn loaded(&mut self, index: usize, payload: &[u8]) -> Body {
        if let Some(Prepared { form: Form::Bodies(bodies), .. }) = &self.prepared
            && let Some(body) = bodies.get(index)
        {
            assert_eq!(sureq_core::task::Body::len(body), payload.len(), "it was prepared for this event");
            return body.clone();
        }
        self.meter.bytes(payload.len());
        Body::from(payload)
    }
}

/// The place of a payload of a frame whose body begins at `body`.
fn placed(body: LogAddress, at: usize, len: usize) -> Stored {
    let number = "segments are numbered and measured in 32 bits";
    Stored {
        segment: u32::try_from(body.segment).expect(number),
        offset: u32::try_from(body.offset + at as u64).expect(number),
        len: len as u32,
    }
}

/// Gives replayed payloads their places. Records nothing, since the events are in the log already.
pub(crate) struct ReplayRecorder<'f> {
    /// The body of the frame that is being replayed, and its place.
    pub(crate) frame: &'f [u8],
    pub(crate) place: LogAddress,
    pub(crate) live: &'f mut LiveBodies,
}

impl<'f> ReplayRecorder<'f> {
    /// A recorder for changes after the replay, which add no payloads.
    pub(crate) const fn after_all(live: &'f mut LiveBodies) -> Self {
        Self { frame: &[], place: LogAddress { segment: 0, offset: 0 }, live }
    }
}

impl Recorder for ReplayRecorder<'_> {
    type Body = Body;

    fn record(&mut self, _event: &Event<'_>) {}

    fn new_body(&mut self, _index: usize, payload: &[u8]) -> Body {
        let place = placed(self.place, offset_in(self.frame, payload), payload.len());
        self.live.add(place);
        Body::Stored(place)
    }

    fn release_body(&mut self, body: Body) {
        if let Body::Stored(place) = body {
            self.live.remove(place);
        }
    }

    fn payload_hash(&self, _payload: &[u8]) -> u128 {
        // Hashes are recorded with the events that need them; replay never computes one.
        0
    }
}

#[cfg(test)]
mod tests {
    use sureq_core::event::{Fields, Payloads, QueueNo};
    use sureq_core::{Command, LogTime, Now, Replies, TaskId, WallTime, codec};

    use super::*;
    use crate::payload::placement;

    /// Frames are taken in order and complete, however much is buffered.
    #[test]
    fn a_frame_takes_no_more_commands_once_it_is_large() {
        let room = Room::new(1, 192, 64 << 20, 64 << 20);
        let mut buffer = CommitBuffer::new(Position::START, room, [0; 16], LiveBodies::default());
        let (mut broker, payload) = (Broker::default(), vec![7; 600 << 10]);
        for n in 1..=10_u64 {
            let id = TaskId::new(1 << 40, n).expect("an id");
            buffer.record(&Event::Pushed {
                queue: QueueNo(1),
                first: id,
                payloads: Payloads::Slices(&[&payload]),
                fields: Fields::default(),
            });
            assert!(buffer.new_body(0, &payload).place().is_some());
            buffer.end_unit(&mut broker);
        }
        let mut taken = Vec::new();
        while let Some(batch) = buffer.take(&mut FrameBuf::new()) {
            assert!(batch.frame.body_len() < FRAME_BYTES + (601 << 10));
            taken.push((batch.events, batch.end));
        }
        assert_eq!(taken, [(4, Position(4)), (4, Position(8)), (2, Position(10))]);
        assert!(buffer.is_empty() && buffer.bytes() == 0);
    }

    /// A broker whose decisions are recorded in segments of one size, and whose places are compared with every frame.
    struct RecordingBroker {
        broker: Broker<Body>,
        buffer: CommitBuffer,
    }

    impl RecordingBroker {
        /// Executes a command as one unit, in which this many events follow its own.
        fn execute(&mut self, now: Now, command: &Command<'_>, following: usize) {
            let mut replies = Replies::default();
            self.broker.execute(now, command, &mut self.buffer, &mut replies);
            assert!(replies.list.iter().all(|reply| !matches!(reply, sureq_core::Reply::Refused(_))));
            (0..following).for_each(|_| self.buffer.record(&Event::Resumed(QueueNo(1))));
            self.buffer.end_unit(&mut self.broker);
        }

        /// Takes all frames, and returns the places of their bodies.
        fn take_all(&mut self) -> Vec<LogAddress> {
            let batches = std::iter::from_fn(|| self.buffer.take(&mut FrameBuf::new()));
            batches.inspect(|batch| placement::verify(&self.broker, batch)).map(|batch| batch.place).collect()
        }
    }

    /// A payload keeps its place however much space is left in the segment: if no event after it fits, if some do,
    /// and if all do.
    #[test]
    fn a_payload_keeps_its_place_whatever_follows_it_in_its_unit() {
        const SEGMENT_BYTES: u64 = 64 << 10;
        let now = Now { log: LogTime(1 << 40), wall: WallTime(1 << 40) };
        let mut corrected = 0;
        for offset in (192..SEGMENT_BYTES - 192).step_by(1024) {
            let room = Room::new(50, offset, SEGMENT_BYTES, SEGMENT_BYTES);
            let buffer = CommitBuffer::new(Position::START, room, [0; 16], LiveBodies::default());
            let mut recorded = RecordingBroker { broker: Broker::default(), buffer };
            recorded.execute(now, &Command::Push { queue: b"q", payloads: &[b"before"] }, 0);
            recorded.execute(now, &Command::Push { queue: b"q", payloads: &[b"payload"] }, 12_000);
            let places = recorded.take_all();
            // Two frames, and the first ends early enough for a part of the second.
            corrected += usize::from(places.len() == 2 && offset + (16 << 10) < SEGMENT_BYTES);
            let mut found = LiveBodies::default();
            recorded.broker.bodies(&mut |body| body.place().into_iter().for_each(|place| found.add(place)));
            assert_eq!(found.total(), recorded.buffer.live.total());
            assert!(found.segments().eq(recorded.buffer.live.segments()), "offset {offset}");
        }
        assert!(corrected > 0, "in some cases the segment ends after the payload");
    }

    #[test]
    fn the_fast_checksum_is_the_one_that_events_have() {
        for payload in [&b""[..], b"123456789", &[0; 100], &[255; 4099]] {
            assert_eq!(crc32c::crc32c(payload), codec::checksum(payload));
        }
        assert_eq!(codec::checksum(b"123456789"), 0xe306_9283, "the check value of CRC-32C");
    }
}
