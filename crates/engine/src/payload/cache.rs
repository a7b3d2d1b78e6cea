//! Payloads in memory: those that were written last, and those that were read ahead.
//!
//! Most tasks are popped soon after their push, so the last frames stay in a ring after they were written. Payloads at
//! the head of a long queue are read ahead of need, and are dropped once all of them have been used. Each kind has half
//! of the budget, so that neither evicts the other.
//!
//! Large payloads are not copied into the ring: the memory that they were written from is kept, as far as the budget
//! beside the ring allows.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::log::{FrameBuf, LogAddress, Section};
use crate::meter::Meter;
use crate::payload::body::{CRC_BYTES, Stored};
use sureq_home_api::Payload;

/// The initial size of the ring.
const RING_BYTES_MIN: usize = 4 << 20;

/// A frame that is larger than the ring and than this is dropped as soon as it can be read back.
const KEPT_OVERSIZED_BYTES: usize = 1 << 20;

/// The approximate memory of a span besides its bytes.
const SPAN_BYTES: usize = 128;

/// The order of spans may contain this many dropped ones before it is cleaned up.
const ORDER_SLACK: usize = 64;

/// The segment and the offset of a first byte.
pub(crate) type Start = (u32, u32);

/// Parts of the log in memory.
#[derive(Debug)]
pub(crate) struct Cache {
    written: Ring,
    large: LargeWritten,
    read: ReadSpans,
    /// Counts the bytes that are copied.
    pub(crate) meter: Meter,
}

/// Where a payload was found.
pub(crate) enum Found<'c> {
    /// In a frame that was written last, or is about to be.
    Written(&'c [u8]),
    /// In such a frame, in memory that can be shared.
    Large(Payload),
    /// In a span that was read ahead.
    Read(Payload),
}

impl Found<'_> {
    /// A payload of a section, if it is the one at this place of the batch.
    pub(crate) fn within(section: &Section, at: usize, place: Stored) -> Option<Self> {
        let start = section.find(at, place.len as usize)?;
        Some(Self::Large(Payload::within(&section.bytes, start..start + place.len as usize)))
    }
}

impl From<Found<'_>> for Payload {
    fn from(found: Found<'_>) -> Self {
        match found {
            Found::Written(bytes) => Self::from(bytes),
            Found::Large(payload) | Found::Read(payload) => payload,
        }
    }
}

impl Cache {
    /// A cache of this size.
    pub(crate) fn new(budget: usize) -> Self {
        let (written, large) = (Ring::new(budget / 2), LargeWritten::default());
        Self { written, large, read: ReadSpans::new(budget / 2), meter: Meter::default() }
    }

    /// Keeps the payloads of a frame that is about to be written. They stay until the next frame even if they exceed
    /// the budget, since they cannot be read from disk yet.
    pub(crate) fn keep_frame(&mut self, place: LogAddress, frame: &FrameBuf) {
        let (segment, offset) = (place.segment as u32, place.offset as u32);
        match frame.section() {
            // A frame with a section has all its payloads there.
            Some(section) => self.large.keep((segment, offset), section.clone()),
            None => self.keep_written(segment, offset, frame.body()),
        }
    }

    fn keep_written(&mut self, segment: u32, offset: u32, body: &[u8]) {
        self.meter.bytes(body.len());
        self.written.keep((segment, offset), body);
    }

    /// Notes that the last frame has been written, so that it can be dropped if it is too large for the ring.
    pub(crate) fn has_written(&mut self) {
        self.written.drop_oversized(KEPT_OVERSIZED_BYTES);
        let room = self.written.capacity_max.saturating_sub(self.written.bytes.len());
        self.large.has_written(room);
    }

    /// Keeps a span that was read, until this many of its payloads have been used.
    pub(crate) fn keep_read(&mut self, start: Start, bytes: Arc<[u8]>, payloads: usize) {
        if bytes.len() <= self.read.budget {
            self.read.insert(start, bytes, payloads);
        }
    }

    /// The payload at this place, if it is in the span that was used last.
    pub(crate) fn find_near(&mut self, place: Stored) -> Option<Payload> {
        let (bytes, at) = self.read.find_near(place)?;
        self.meter.bytes(place.len as usize);
        if !is_whole(&bytes, at, place) {
            return None;
        }
        Some(Payload::new(bytes, at..at + place.len as usize))
    }

    /// The payload at this place, if it is cached. A payload that was read from the disk is verified by its checksum.
    pub(crate) fn find(&mut self, place: Stored) -> Option<Found<'_>> {
        if let Some(frame) = self.written.frame_of(place) {
            let within = (place.offset - frame.start.1) as usize;
            return Some(Found::Written(&self.written.body(frame)[within..][..place.len as usize]));
        }
        if let Some(found) = self.large.find(place) {
            return Some(found);
        }
        let found = self.read.find(place).filter(|(bytes, at)| is_whole(bytes, *at, place));
        if found.is_none() {
            self.written.miss(place);
        }
        self.meter.bytes(found.as_ref().map_or(0, |_| place.len as usize));
        found.map(|(bytes, at)| Found::Read(Payload::new(bytes, at..at + place.len as usize)))
    }

    /// The oldest place among the cached frames. Everything written from there on is in memory.
    pub(crate) fn written_from(&self) -> Start {
        let ring = self.written.frames.front().map_or((u32::MAX, 0), |oldest| oldest.start);
        self.large.being_written().map_or(ring, |start| ring.min(start))
    }

    /// The most bytes that spans may take up.
    pub(crate) const fn budget(&self) -> usize {
        self.read.budget
    }

    /// The bytes that it takes up.
    pub(crate) fn bytes(&self) -> usize {
        self.written.bytes.len() + self.written.oversized.len() + self.large.bytes + self.read.bytes
    }
}

/// Whether the payload at `at` of a span matches its checksum.
pub(crate) fn is_whole(bytes: &[u8], at: usize, place: Stored) -> bool {
    let Some(sum_at) = at.checked_sub(CRC_BYTES as usize) else { return false };
    let payload = bytes.get(at..).and_then(|rest| rest.get(..place.len as usize));
    let sum = bytes.get(sum_at..).and_then(|sum| sum.first_chunk()).copied().map(u32::from_le_bytes);
    payload.is_some_and(|payload| sum == Some(crc32c::crc32c(payload)))
}

/// Sections of frames, oldest first, and so sorted by place.
#[derive(Debug, Default)]
struct LargeWritten {
    sections: VecDeque<(Start, Section)>,
    bytes: usize,
    /// The newest one is not written yet.
    is_writing: bool,
}

impl LargeWritten {
    fn keep(&mut self, start: Start, section: Section) {
        self.bytes += section.bytes.len();
        self.sections.push_back((start, section));
        self.is_writing = true;
    }

    /// Notes that all of them are written, and drops those that exceed the budget.
    fn has_written(&mut self, room: usize) {
        self.is_writing = false;
        while self.bytes > room
            && let Some((_, gone)) = self.sections.pop_front()
        {
            self.bytes -= gone.bytes.len();
        }
    }

    fn being_written(&self) -> Option<Start> {
        self.sections.back().filter(|_| self.is_writing).map(|(start, _)| *start)
    }

    fn find(&self, place: Stored) -> Option<Found<'_>> {
        let before = self.sections.partition_point(|(start, _)| *start <= (place.segment, place.offset));
        let ((segment, offset), section) = self.sections.get(before.checked_sub(1)?)?;
        let at = place.offset.checked_sub(*offset).filter(|_| *segment == place.segment)?;
        Found::within(section, at as usize, place)
    }
}

/// The last frames, each contiguous, in a buffer that is reused. It grows only when that is useful, so that it stays
/// in the processor's caches.
#[derive(Debug)]
struct Ring {
    bytes: Vec<u8>,
    capacity: usize,
    capacity_max: usize,
    /// The bytes that were put in so far, including those skipped at the end of the buffer.
    end: u64,
    /// Oldest first, and so sorted by place.
    frames: VecDeque<Frame>,
    /// The one that was used last.
    last: Option<Frame>,
    /// The newest frame, if it is larger than the ring.
    oversized: Vec<u8>,
}

#[derive(Clone, Copy, Debug)]
struct Frame {
    start: Start,
    len: usize,
    /// Where it begins, counted as [`Ring::end`] is. None if it is the oversized one.
    at: Option<u64>,
}

impl Frame {
    fn holds(&self, place: Stored) -> bool {
        let (segment, offset) = self.start;
        let within = place.offset.checked_sub(offset).filter(|_| segment == place.segment);
        within.is_some_and(|within| within as usize + place.len as usize <= self.len)
    }
}

impl Ring {
    fn new(capacity_max: usize) -> Self {
        let capacity = capacity_max.min(RING_BYTES_MIN);
        let (frames, bytes, oversized) = (VecDeque::new(), Vec::new(), Vec::new());
        Self { bytes, capacity, capacity_max, end: 0, frames, last: None, oversized }
    }

    /// Notes a miss. If a larger ring would have the payload, the ring grows.
    fn miss(&mut self, place: Stored) {
        let Some(&newest) = self.frames.back() else { return };
        let (segment, offset) = newest.start;
        let back = match segment.checked_sub(place.segment) {
            Some(0) => offset.checked_sub(place.offset),
            Some(1) => Some(offset),
            _ => None,
        };
        let is_used_up = self.end >= self.capacity as u64 && self.capacity < self.capacity_max;
        if is_used_up && back.is_some_and(|back| (back as usize) < self.capacity_max) {
            let capacity = (2 * self.capacity).min(self.capacity_max);
            let mut larger = Self { capacity, ..Self::new(self.capacity_max) };
            for &frame in &self.frames {
                larger.keep(frame.start, self.body(frame));
            }
            *self = larger;
        }
    }

    fn body(&self, frame: Frame) -> &[u8] {
        match frame.at {
            Some(at) => &self.bytes[self.index(at)..][..frame.len],
            None => &self.oversized,
        }
    }

    /// Drops the oversized frame, if it has more bytes than this.
    fn drop_oversized(&mut self, bytes: usize) {
        if self.oversized.len() > bytes {
            self.frames.pop_back();
            (self.last, self.oversized) = (None, Vec::new());
        }
    }

    fn keep(&mut self, start: Start, body: &[u8]) {
        if self.frames.back().is_some_and(|newest| newest.at.is_none()) {
            self.frames.pop_back();
        }
        (self.last, self.oversized) = (None, Vec::new());
        let len = body.len();
        if len > self.capacity {
            self.oversized = body.to_vec();
            self.frames.push_back(Frame { start, len, at: None });
            return;
        }
        let left = self.capacity - self.index(self.end);
        let at = if len > left { self.end + left as u64 } else { self.end };
        self.end = at + len as u64;
        let gone = self.end.saturating_sub(self.capacity as u64);
        while self.frames.front().is_some_and(|oldest| oldest.at.is_some_and(|at| at < gone)) {
            self.frames.pop_front();
        }
        let index = self.index(at);
        if self.bytes.capacity() == 0 {
            self.bytes.reserve_exact(self.capacity);
        }
        self.bytes.resize(self.bytes.len().max(index + len), 0);
        self.bytes[index..index + len].copy_from_slice(body);
        self.frames.push_back(Frame { start, len, at: Some(at) });
    }

    /// The frame that holds this place. Looks at the last used one first, since neighbours are used in turn.
    fn frame_of(&mut self, place: Stored) -> Option<Frame> {
        if let Some(last) = self.last.filter(|last| last.holds(place)) {
            return Some(last);
        }
        let start = (place.segment, place.offset);
        // Payloads at the head of a long queue are older than all frames.
        if start < self.frames.front()?.start {
            return None;
        }
        let at = self.frames.partition_point(|frame| frame.start <= start).checked_sub(1)?;
        self.last = self.frames.get(at).copied().filter(|frame| frame.holds(place));
        self.last
    }

    const fn index(&self, at: u64) -> usize {
        if self.capacity == 0 { 0 } else { (at % self.capacity as u64) as usize }
    }
}

/// Spans that were read ahead.
#[derive(Debug)]
struct ReadSpans {
    by_start: BTreeMap<Start, Arc<Kept>>,
    /// Oldest first, with their numbers; some may have been dropped.
    order: VecDeque<(Start, u64)>,
    /// The number of spans so far.
    count: u64,
    /// The one that was used last.
    last: Option<(Start, Arc<Kept>)>,
    bytes: usize,
    budget: usize,
}

#[derive(Debug)]
struct Kept {
    number: u64,
    bytes: Arc<[u8]>,
    /// How many of its payloads are still expected to be used.
    left: AtomicUsize,
}

impl ReadSpans {
    fn new(budget: usize) -> Self {
        Self { by_start: BTreeMap::new(), order: VecDeque::new(), count: 0, last: None, bytes: 0, budget }
    }

    fn insert(&mut self, start: Start, bytes: Arc<[u8]>, payloads: usize) {
        self.remove(start);
        self.bytes += bytes.len() + SPAN_BYTES;
        self.count += 1;
        let kept = Kept { number: self.count, bytes, left: AtomicUsize::new(payloads) };
        self.order.push_back((start, kept.number));
        self.by_start.insert(start, Arc::new(kept));
        while self.bytes > self.budget
            && let Some((oldest, number)) = self.order.pop_front()
        {
            if is_there(&self.by_start, oldest, number) {
                self.remove(oldest);
            }
        }
        if self.order.len() > 2 * self.by_start.len() + ORDER_SLACK {
            self.order.retain(|&(start, number)| is_there(&self.by_start, start, number));
        }
    }

    fn remove(&mut self, start: Start) {
        self.last.take_if(|(last, _)| *last == start);
        if let Some(gone) = self.by_start.remove(&start) {
            self.bytes -= gone.bytes.len() + SPAN_BYTES;
        }
    }

    /// The span that holds the place, and the range in it.
    fn find(&mut self, place: Stored) -> Option<(Arc<[u8]>, usize)> {
        let is_near = self.last.as_ref().is_some_and(|(start, kept)| kept.holds(*start, place).is_some());
        if !is_near {
            let within = (place.segment, 0)..=(place.segment, place.offset);
            let (&start, kept) = self.by_start.range(within).next_back()?;
            kept.holds(start, place)?;
            self.last = Some((start, Arc::clone(kept)));
        }
        self.find_near(place)
    }

    /// Like [`Self::find`], but only in the span that was used last.
    fn find_near(&mut self, place: Stored) -> Option<(Arc<[u8]>, usize)> {
        let (start, kept) = self.last.as_ref()?;
        let (start, at, bytes) = (*start, kept.holds(*start, place)?, Arc::clone(&kept.bytes));
        // Changed only under the state lock.
        let left = kept.left.load(Ordering::Relaxed).saturating_sub(1);
        kept.left.store(left, Ordering::Relaxed);
        if left == 0 {
            self.remove(start);
        }
        Some((bytes, at))
    }
}

impl Kept {
    /// The range of the place in the span, if that begins at `start`.
    fn holds(&self, (segment, offset): Start, place: Stored) -> Option<usize> {
        let at = place.offset.checked_sub(offset)? as usize;
        (segment == place.segment && at + place.len as usize <= self.bytes.len()).then_some(at)
    }
}

/// Whether the span with this number is still there, and not a later one with the same start.
fn is_there(by_start: &BTreeMap<Start, Arc<Kept>>, start: Start, number: u64) -> bool {
    by_start.get(&start).is_some_and(|kept| kept.number == number)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn place(segment: u32, offset: u32, len: u32) -> Stored {
        Stored { segment, offset, len }
    }

    fn written(cache: &mut Cache, place: Stored) -> Option<Vec<u8>> {
        match cache.find(place)? {
            Found::Written(bytes) => Some(bytes.to_vec()),
            Found::Large(_) | Found::Read(_) => None,
        }
    }

    /// Compares the ring with a list of all frames: every hit is right, and the last frame is always a hit.
    #[test]
    fn the_last_frames_are_found_and_no_other_bytes_are() {
        let mut cache = Cache::new(2 * 1000);
        let mut frames: Vec<(Stored, Vec<u8>)> = Vec::new();
        let (mut segment, mut offset) = (1, 192);
        for n in 0..2000_u32 {
            let len = [0, 1, 37, 200, 333, 999, 1000, 1001, 5000][(n * 7 % 9) as usize];
            let body: Vec<u8> = (0..len).map(|at| (n * 31 + at) as u8).collect();
            if n % 50 == 49 {
                (segment, offset) = (segment + 1, 192);
            }
            cache.keep_written(segment, offset, &body);
            let at = place(segment, offset, len);
            assert_eq!(written(&mut cache, at).as_deref(), Some(&body[..]), "frame {n}");
            frames.push((at, body));
            offset += len + 64;
            for (at, body) in &frames[frames.len().saturating_sub(40)..] {
                let (skip, some) = (at.len / 3, at.len / 2);
                let part = place(at.segment, at.offset + skip, some);
                let found = written(&mut cache, part);
                assert!(
                    found.is_none_or(|found| found == body[skip as usize..][..some as usize]),
                    "frame {n}"
                );
            }
        }
        assert!(cache.bytes() <= 1000 + 5000);
        assert_eq!(written(&mut cache, place(1, 0, 10)), None, "before all of them");
        assert_eq!(written(&mut cache, place(segment, offset, 10)), None, "behind the last");
    }

    #[test]
    fn an_oversized_frame_is_dropped_once_it_has_been_written() {
        let mut cache = Cache::new(2 * 1000);
        cache.keep_written(1, 192, &[7; 500]);
        for (len, is_kept) in [(KEPT_OVERSIZED_BYTES, true), (KEPT_OVERSIZED_BYTES + 1, false)] {
            let frame = place(1, 1000, len as u32);
            cache.keep_written(1, 1000, &vec![9; len]);
            assert!(written(&mut cache, frame).is_some(), "it cannot be read from disk yet");
            cache.has_written();
            assert_eq!(written(&mut cache, frame).is_some(), is_kept);
        }
        assert_eq!(written(&mut cache, place(1, 192, 500)), Some(vec![7; 500]), "the ring is as it was");
        assert_eq!(cache.written_from(), (1, 192));
        assert!(cache.bytes() <= 1000);
    }

    /// A section is found only at the place it was written to. It stays while the budget beside the ring allows.
    #[test]
    fn large_payloads_are_shared_and_dropped_when_they_exceed_the_budget() {
        let mut cache = Cache::new(2 * 1000);
        let section: Arc<[u8]> = (0..=255).collect();
        let mut frame = FrameBuf::new();
        frame.extend(b"event");
        frame.put_section(Section { at: 3, bytes: Arc::clone(&section) });
        for n in 0..20_u32 {
            let offset = 1000 * u64::from(n);
            cache.keep_frame(LogAddress { segment: 5, offset }, &frame);
            let found = |cache: &mut Cache, skip: u32, len: u32| match cache.find(place(5, skip, len)) {
                Some(Found::Large(payload)) => Some(payload.as_ref().to_vec()),
                _ => None,
            };
            let start = 1000 * n;
            assert_eq!(cache.written_from(), (5, start), "it cannot be read yet");
            assert_eq!(found(&mut cache, start + 3, 256).as_deref(), Some(&section[..]));
            assert_eq!(found(&mut cache, start + 13, 7).as_deref(), Some(&section[10..17]));
            for (skip, len) in [(start, 1), (start + 2, 5), (start + 259, 1), (start + 250, 10)] {
                assert_eq!(found(&mut cache, skip, len), None, "{skip} {len}");
            }
            assert!(cache.find(place(6, start + 3, 1)).is_none());
            cache.has_written();
            assert!(cache.bytes() <= 1000 && cache.written_from() == (u32::MAX, 0), "{}", cache.bytes());
            assert!(found(&mut cache, start + 3, 256).is_some());
        }
        cache.keep_written(6, 192, &[7; 900]);
        cache.has_written();
        assert!(cache.find(place(5, 19_003, 1)).is_none() && cache.bytes() <= 1000);
    }

    #[test]
    fn the_ring_grows_if_a_larger_one_would_have_the_payload() {
        let mut cache = Cache::new(64 << 20);
        let body = vec![7; 1 << 10];
        for n in 0..16 << 10 {
            cache.keep_written(1, n << 10, &body);
        }
        assert_eq!(cache.bytes(), RING_BYTES_MIN, "there was no miss yet");
        for _ in 0..10 {
            assert!(written(&mut cache, place(1, 0, 100)).is_none());
        }
        let kept = place(1, (13 << 10) << 10, 1 << 10);
        assert_eq!(written(&mut cache, kept), Some(body.clone()), "its frames are kept");
        for n in 16 << 10..32 << 10 {
            cache.keep_written(1, n << 10, &body);
        }
        assert_eq!(cache.bytes(), 2 * RING_BYTES_MIN, "it doubles once, however many misses there were");
        let never = [place(1, 100 << 20, 1), place(9, 0, 1)];
        assert!(never.into_iter().all(|place| written(&mut cache, place).is_none()));
        assert_eq!(cache.bytes(), 2 * RING_BYTES_MIN, "no ring has payloads that were never written");
    }

    #[test]
    fn spans_are_verified_by_checksum_and_the_oldest_is_dropped() {
        let mut cache = Cache::new(2 * 1000);
        let mut bytes = b"....".to_vec();
        bytes.extend(crc32c::crc32c(b"payload").to_le_bytes());
        bytes.extend(b"payload");
        cache.keep_read((3, 100), bytes.clone().into(), 100);
        assert!(matches!(cache.find(place(3, 108, 7)), Some(Found::Read(p)) if p.as_ref() == b"payload"));
        for other in
            [place(3, 107, 7), place(3, 108, 6), place(3, 108, 8), place(4, 108, 7), place(3, 101, 3)]
        {
            assert!(cache.find(other).is_none(), "{other:?}");
        }
        for n in 0..20 {
            cache.keep_read((9, n * 100), vec![0; 100].into(), 100);
        }
        assert!(cache.find(place(3, 108, 7)).is_none() && cache.bytes() <= 1000);
        cache.keep_read((3, 100), vec![0; 1001].into(), 100);
        assert!(cache.bytes() <= 1000, "it is larger than the budget");
    }

    #[test]
    fn a_span_that_is_read_again_is_cached_once_and_counts_as_new() {
        let mut cache = Cache::new(2 * 1000);
        let mut bytes = crc32c::crc32c(b"payload").to_le_bytes().to_vec();
        bytes.extend(b"payload");
        cache.keep_read((3, 100), bytes.clone().into(), 100);
        for n in 0..2 {
            cache.keep_read((9, n * 300), vec![0; 300].into(), 100);
        }
        for _ in 0..1000 {
            cache.keep_read((3, 100), bytes.clone().into(), 100);
        }
        assert!(cache.read.order.len() <= 2 * 3 + ORDER_SLACK, "{}", cache.read.order.len());
        cache.keep_read((9, 900), vec![0; 300].into(), 100);
        assert!(cache.find(place(3, 104, 7)).is_some(), "others are older");
        assert!(cache.bytes() <= 1000);
    }

    #[test]
    fn a_span_is_dropped_when_all_its_payloads_were_used() {
        let mut cache = Cache::new(2 << 20);
        let mut two = crc32c::crc32c(b"one").to_le_bytes().to_vec();
        two.extend(b"one");
        two.extend(crc32c::crc32c(b"two").to_le_bytes());
        two.extend(b"two");
        let places = |n| [place(1, n * 100 + 4, 3), place(1, n * 100 + 11, 3)];
        // The first one stays, so that the order of arrival does not determine which are still there.
        cache.keep_read((0, 0), vec![0; 50].into(), 1);
        let empty = cache.bytes();
        for n in 0..10_000 {
            cache.keep_read((1, n * 100), two.clone().into(), 2);
            for place in places(n) {
                assert!(matches!(cache.find(place), Some(Found::Read(_))), "{n}");
            }
            assert!(places(n).into_iter().all(|place| cache.find(place).is_none()), "{n}");
            assert_eq!(cache.bytes(), empty, "{n}");
        }
        assert!(cache.read.order.len() <= 2 + ORDER_SLACK, "{}", cache.read.order.len());
    }
}
