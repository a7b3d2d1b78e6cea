//! Counts the live payloads of each segment: those of tasks that still exist.
//!
//! The counts are updated as tasks come and go, so that no segment has to be read to know whether it can be removed.

use std::ops::RangeInclusive;

use sureq_core::limits;

use crate::payload::body::Stored;

/// The approximate bytes that a copied task takes up in the log besides its payload.
const RECORD_BYTES: u64 = 48;

/// More payloads than any segment holds.
const TASKS_MAX: u64 = 1 << 32;

/// The live payloads of a segment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Live {
    pub tasks: u64,
    /// The bytes that a copy of their tasks would take up in the log.
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
    /// The segments that have any, sorted by number.
    segments: Vec<(u32, Live)>,
    total: Live,
    /// A segment has lost its last live payload since [`Self::has_emptied`] was called.
    has_emptied: bool,
}

impl LiveBodies {
    #[inline]
    pub(crate) fn add(&mut self, place: Stored) {
        let bytes = u64::from(place.len) + RECORD_BYTES;
        self.entry(place.segment).add(Live { tasks: 1, bytes });
        self.total.add(Live { tasks: 1, bytes });
    }

    /// Removes a payload. A place that was never added is ignored: an older checkpoint has tasks that are gone since.
    pub(crate) fn remove(&mut self, place: Stored) {
        let bytes = u64::from(place.len) + RECORD_BYTES;
        let Ok(at) = self.find(place.segment) else { return };
        let live = &mut self.segments[at].1;
        live.tasks -= 1;
        live.bytes = live.bytes.saturating_sub(bytes);
        if live.tasks == 0 {
            self.has_emptied = true;
            self.segments.remove(at);
        }
        self.total.tasks -= 1;
        self.total.bytes = self.total.bytes.saturating_sub(bytes);
    }

    pub(crate) fn subtract(&mut self, other: &Self) {
        for &(number, gone) in &other.segments {
            let Ok(at) = self.find(number) else { continue };
            let live = &mut self.segments[at].1;
            let (tasks, bytes) = (gone.tasks.min(live.tasks), gone.bytes.min(live.bytes));
            *live = Live { tasks: live.tasks - tasks, bytes: live.bytes - bytes };
            self.total = Live { tasks: self.total.tasks - tasks, bytes: self.total.bytes - bytes };
            if live.tasks == 0 {
                self.has_emptied = true;
                self.segments.remove(at);
            }
        }
    }

    /// Whether a segment has lost its last live payload since the last call.
    pub(crate) fn has_emptied(&mut self) -> bool {
        std::mem::take(&mut self.has_emptied)
    }

    /// The live payloads of the segments with these numbers.
    pub(crate) fn within(&self, numbers: RangeInclusive<u64>) -> Live {
        let start = self.segments.partition_point(|(number, _)| u64::from(*number) < *numbers.start());
        let mut live = Live::default();
        let rest = self.segments[start..].iter();
        rest.take_while(|(number, _)| u64::from(*number) <= *numbers.end())
            .for_each(|&(_, segment)| live.add(segment));
        live
    }

    /// The live payloads of each segment that has any.
    pub(crate) fn segments(&self) -> impl Iterator<Item = (u64, Live)> {
        self.segments.iter().map(|&(number, live)| (u64::from(number), live))
    }

    /// Adds the counts of a segment that has none yet. Returns none for impossible counts.
    pub(crate) fn put(&mut self, segment: u32, live: Live) -> Option<()> {
        let each_max = limits::PAYLOAD_BYTES_MAX as u64 + RECORD_BYTES;
        let bytes = live.tasks.checked_mul(RECORD_BYTES)?..=live.tasks.checked_mul(each_max)?;
        let sound = live.tasks > 0 && live.tasks <= TASKS_MAX && bytes.contains(&live.bytes);
        if !sound || self.find(segment).is_ok() {
            return None;
        }
        self.total.tasks = self.total.tasks.checked_add(live.tasks)?;
        self.total.bytes = self.total.bytes.checked_add(live.bytes)?;
        *self.entry(segment) = live;
        Some(())
    }

    /// The live payloads of all segments.
    pub(crate) const fn total(&self) -> Live {
        self.total
    }

    #[inline]
    fn entry(&mut self, segment: u32) -> &mut Live {
        let at = self.find(segment).unwrap_or_else(|at| {
            self.segments.insert(at, (segment, Live::default()));
            at
        });
        &mut self.segments[at].1
    }

    /// The index of a segment in the list, or the one at which it would be inserted.
    #[inline]
    fn find(&self, segment: u32) -> Result<usize, usize> {
        // Pushed payloads go to the last one.
        match self.segments.last() {
            Some(&(last, _)) if last == segment => Ok(self.segments.len() - 1),
            Some(&(last, _)) if last < segment => Err(self.segments.len()),
            _ => self.segments.binary_search_by_key(&segment, |&(number, _)| number),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn place(segment: u32, len: u32) -> Stored {
        Stored { segment, offset: 0, len }
    }

    #[test]
    fn payloads_are_counted_by_segment() {
        let mut live = LiveBodies::default();
        for (segment, len) in [(7, 10), (7, 20), (9, 5), (3, 1)] {
            live.add(place(segment, len));
        }
        assert_eq!(live.within(7..=7), Live { tasks: 2, bytes: 30 + 2 * RECORD_BYTES });
        assert_eq!(live.within(4..=8).tasks, 2);
        assert_eq!(live.within(0..=u64::MAX - 1), live.total());
        live.remove(place(3, 1));
        live.remove(place(7, 10));
        assert_eq!((live.segments().next().map(|(number, _)| number), live.total().tasks), (Some(7), 2));
        live.remove(place(7, 20));
        live.remove(place(9, 5));
        assert_eq!(live.total(), Live::default());
        live.remove(place(2, 1));
        live.remove(place(9, 5));
        live.remove(place(100, 5));
        assert_eq!(live.total(), Live::default(), "removing an unknown payload has no effect");
    }

    /// One task that is never finished may stay in the first segment for as long as the store lives.
    #[test]
    fn segments_may_be_as_far_apart_as_their_numbers_go() {
        let mut live = LiveBodies::default();
        for segment in [1, 1 << 25, u32::MAX / 2] {
            assert!(live.put(segment, Live { tasks: 1, bytes: RECORD_BYTES }).is_some(), "{segment}");
        }
        live.add(place(u32::MAX / 2, 5));
        assert_eq!(live.within(2..=u64::MAX - 1).tasks, 3);
        assert_eq!(live.segments().count(), 3, "other numbers take up no memory");
    }

    #[test]
    fn other_counts_are_subtracted_at_once() {
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
        assert_eq!(all.total(), one_by_one.total());
        assert!(all.segments().eq(one_by_one.segments()) && all.has_emptied());
    }
}
