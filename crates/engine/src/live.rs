//! How much of each segment is still needed: the payloads of tasks that are not gone.
//!
//! Kept as tasks come and go, so that nobody has to look through a segment to know whether it can go.

use std::collections::VecDeque;
use std::ops::RangeInclusive;

use sureq_core::limits;

use crate::body::Stored;

/// What a whole task takes up in the log besides its payload, about.
const RECORD_BYTES: u64 = 48;

/// No segment holds so many payloads.
const TASKS_MAX: u64 = 1 << 32;

/// No two segments of a store are so many apart: what is old is copied forward.
const SEGMENTS_MAX: u32 = 1 << 24;

/// Payloads in a segment that are still needed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Live {
    /// How many.
    pub tasks: u64,
    /// How much a copy of their tasks would take up in the log.
    pub bytes: u64,
}

impl Live {
    fn add(&mut self, other: Live) {
        self.tasks += other.tasks;
        self.bytes += other.bytes;
    }
}

/// The live payloads of all segments, by the numbers that places name.
#[derive(Clone, Debug, Default)]
pub(crate) struct LiveBodies {
    /// The number of the first in the list.
    first: u32,
    segments: VecDeque<Live>,
    total: Live,
    /// A segment has lost its last one since somebody asked.
    has_emptied: bool,
}

impl LiveBodies {
    pub(crate) fn add(&mut self, place: Stored) {
        let bytes = u64::from(place.len) + RECORD_BYTES;
        self.entry(place.segment).add(Live { tasks: 1, bytes });
        self.total.add(Live { tasks: 1, bytes });
    }

    /// Takes one away. A place that was never added is not missed: an older checkpoint knows tasks that are long gone.
    pub(crate) fn remove(&mut self, place: Stored) {
        let bytes = u64::from(place.len) + RECORD_BYTES;
        let at = place.segment.checked_sub(self.first).map(|at| at as usize);
        let Some(live) = at.and_then(|at| self.segments.get_mut(at)).filter(|live| live.tasks > 0) else {
            return;
        };
        live.tasks -= 1;
        self.has_emptied |= live.tasks == 0;
        live.bytes = live.bytes.saturating_sub(bytes);
        self.total.tasks -= 1;
        self.total.bytes = self.total.bytes.saturating_sub(bytes);
        self.forget_empty_front();
    }

    /// Takes away what is counted elsewhere.
    pub(crate) fn subtract(&mut self, other: &Self) {
        for (number, gone) in other.segments() {
            let at = number.checked_sub(u64::from(self.first)).map(|at| at as usize);
            let Some(live) = at.and_then(|at| self.segments.get_mut(at)) else { continue };
            let (tasks, bytes) = (gone.tasks.min(live.tasks), gone.bytes.min(live.bytes));
            *live = Live { tasks: live.tasks - tasks, bytes: live.bytes - bytes };
            self.has_emptied |= tasks > 0 && live.tasks == 0;
            self.total = Live { tasks: self.total.tasks - tasks, bytes: self.total.bytes - bytes };
        }
        self.forget_empty_front();
    }

    fn forget_empty_front(&mut self) {
        while self.segments.len() > 1 && self.segments.front().is_some_and(|live| live.tasks == 0) {
            self.segments.pop_front();
            self.first += 1;
        }
    }

    /// Whether a segment has lost its last one since this was asked.
    pub(crate) fn has_emptied(&mut self) -> bool {
        std::mem::take(&mut self.has_emptied)
    }

    /// What is live in segments with these numbers.
    pub(crate) fn within(&self, numbers: RangeInclusive<u64>) -> Live {
        let first = u64::from(self.first);
        let (start, end) =
            (numbers.start().saturating_sub(first), (*numbers.end() + 1).saturating_sub(first));
        let len = self.segments.len();
        let mut live = Live::default();
        self.segments
            .range((start as usize).min(len)..(end as usize).min(len))
            .for_each(|&segment| live.add(segment));
        live
    }

    /// What is live in each, by number.
    pub(crate) fn segments(&self) -> impl Iterator<Item = (u64, Live)> {
        (u64::from(self.first)..).zip(self.segments.iter().copied())
    }

    /// Says what is live in a segment of which nothing was said yet; none if that cannot be.
    pub(crate) fn put(&mut self, segment: u32, live: Live) -> Option<()> {
        let is_far = !self.segments.is_empty() && segment.abs_diff(self.first) > SEGMENTS_MAX;
        let each_max = limits::PAYLOAD_BYTES_MAX as u64 + RECORD_BYTES;
        let bytes = live.tasks.checked_mul(RECORD_BYTES)?..=live.tasks.checked_mul(each_max)?;
        let sound = live.tasks > 0 && live.tasks <= TASKS_MAX && bytes.contains(&live.bytes);
        if is_far || !sound || self.within(u64::from(segment)..=u64::from(segment)).tasks > 0 {
            return None;
        }
        self.total.tasks = self.total.tasks.checked_add(live.tasks)?;
        self.total.bytes = self.total.bytes.checked_add(live.bytes)?;
        *self.entry(segment) = live;
        Some(())
    }

    /// What is live in all.
    pub(crate) const fn total(&self) -> Live {
        self.total
    }

    fn entry(&mut self, segment: u32) -> &mut Live {
        if self.segments.is_empty() {
            self.first = segment;
        }
        while segment < self.first {
            self.segments.push_front(Live::default());
            self.first -= 1;
        }
        let at = (segment - self.first) as usize;
        if at >= self.segments.len() {
            self.segments.resize(at + 1, Live::default());
        }
        &mut self.segments[at]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn place(segment: u32, len: u32) -> Stored {
        Stored { segment, offset: 0, len }
    }

    #[test]
    fn what_comes_and_goes_is_counted_by_segment() {
        let mut live = LiveBodies::default();
        for (segment, len) in [(7, 10), (7, 20), (9, 5), (3, 1)] {
            live.add(place(segment, len));
        }
        assert_eq!(live.within(7..=7), Live { tasks: 2, bytes: 30 + 2 * RECORD_BYTES });
        assert_eq!(live.within(4..=8).tasks, 2);
        assert_eq!(live.within(0..=u64::MAX - 1), live.total());
        live.remove(place(3, 1));
        live.remove(place(7, 10));
        assert_eq!((live.first, live.total().tasks), (7, 2));
        live.remove(place(7, 20));
        live.remove(place(9, 5));
        assert_eq!(live.total(), Live::default());
        live.remove(place(2, 1));
        live.remove(place(9, 5));
        live.remove(place(100, 5));
        assert_eq!(live.total(), Live::default(), "what was never there cannot be taken away");
    }

    #[test]
    fn what_is_counted_elsewhere_is_taken_away_at_once() {
        let (mut all, mut some) = (LiveBodies::default(), LiveBodies::default());
        for (segment, len) in [(3, 1), (7, 10), (7, 20), (9, 5)] {
            all.add(place(segment, len));
        }
        for (segment, len) in [(3, 1), (7, 20), (100, 5)] {
            some.add(place(segment, len));
        }
        let mut one_by_one = all.clone();
        all.subtract(&some);
        one_by_one.remove(place(3, 1));
        one_by_one.remove(place(7, 20));
        assert_eq!((all.first, all.total()), (one_by_one.first, one_by_one.total()));
        assert!(all.segments().eq(one_by_one.segments()) && all.has_emptied());
    }
}
