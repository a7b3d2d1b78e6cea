//! Joins neighbouring payloads into spans of the log that are read at once.

use std::ops::Range;

use crate::payload::body::{CRC_BYTES, Stored};
use crate::payload::cache::Start;

/// The largest read, and so the most memory that one read holds beside the cache.
const READ_BYTES_MAX: u64 = 1 << 20;

/// Payloads with at most this gap between them are read together.
const GAP_BYTES_MAX: u64 = 4 << 10;

/// Neighbouring places of one segment, with their checksums.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ReadSpan {
    pub(crate) segment: u32,
    pub(crate) start: u64,
    pub(crate) end: u64,
}

impl ReadSpan {
    const fn of(place: Stored) -> Self {
        let Range { start, end } = place.range();
        Self { segment: place.segment, start: start.saturating_sub(CRC_BYTES), end }
    }

    /// The smallest span around these places, which must be sorted and of one segment.
    pub(crate) fn around(places: impl Iterator<Item = Stored>) -> Option<Self> {
        places.map(Self::of).reduce(|all, next| Self { end: all.end.max(next.end), ..all })
    }

    /// The bytes that a place adds to the span of the place before it, including the gap.
    pub(crate) fn bytes_for(place: Stored, before: Option<Stored>) -> usize {
        let gap = before
            .filter(|before| before.segment == place.segment)
            .and_then(|before| u64::from(place.offset).checked_sub(before.range().end))
            .filter(|&gap| gap <= GAP_BYTES_MAX);
        gap.unwrap_or(0) as usize + place.len as usize
    }

    /// The span from one place to another, if the payloads between them are close together.
    pub(crate) fn between(first: Stored, last: Stored, payloads: usize) -> Option<Self> {
        let is_in_order = first.segment == last.segment && first.offset <= last.offset;
        let span = Self { end: last.range().end, ..Self::of(first) };
        let bytes = span.end.checked_sub(span.start).filter(|_| is_in_order)?;
        let near = payloads as u64 * (u64::from(first.len) + GAP_BYTES_MAX);
        (bytes <= near.min(READ_BYTES_MAX)).then_some(span)
    }

    /// Extends the span to a place behind it, if that is close. Returns whether it did.
    fn extend(&mut self, place: Stored) -> bool {
        let range = place.range();
        let is_near = self.segment == place.segment
            && range.start <= self.end + GAP_BYTES_MAX
            && range.end <= self.start + READ_BYTES_MAX;
        if is_near {
            self.end = self.end.max(range.end);
        }
        is_near
    }

    /// Extends the span by another behind it, if that is close. Returns whether it did.
    pub(crate) fn join(&mut self, next: Self) -> bool {
        let is_near = self.segment == next.segment
            && (self.end..=self.end + GAP_BYTES_MAX).contains(&next.start)
            && next.end <= self.start + READ_BYTES_MAX;
        if is_near {
            self.end = next.end;
        }
        is_near
    }

    pub(crate) const fn bytes(&self) -> usize {
        (self.end - self.start) as usize
    }

    pub(crate) const fn first(&self) -> Start {
        (self.segment, self.start as u32)
    }

    /// The range of a place in the bytes of the span.
    pub(crate) const fn find(&self, place: Stored) -> Range<usize> {
        let at = (place.offset as u64 - self.start) as usize;
        at..at + place.len as usize
    }
}

/// Groups items into spans that cover their places, each with its items.
pub(crate) fn read_spans<T>(
    items: &mut [T],
    place_of: impl Fn(&T) -> Stored,
) -> impl Iterator<Item = (ReadSpan, &[T])> {
    items.sort_unstable_by_key(&place_of);
    let mut rest: &[T] = items;
    std::iter::from_fn(move || {
        let mut span = ReadSpan::of(place_of(rest.first()?));
        let count = 1 + rest[1..].iter().take_while(|item| span.extend(place_of(item))).count();
        Some((span, rest.split_off(..count)?))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn place(segment: u32, offset: u32, len: u32) -> Stored {
        Stored { segment, offset, len }
    }

    fn of(mut places: Vec<Stored>) -> Vec<(u32, Range<u64>, usize)> {
        read_spans(&mut places, |&place| place)
            .map(|(span, some)| (span.segment, span.start..span.end, some.len()))
            .collect()
    }

    #[test]
    fn neighbours_are_read_together_and_others_by_themselves() {
        let near = 4 << 10;
        assert_eq!(of(vec![]), []);
        assert_eq!(of(vec![place(1, 500, 10), place(1, 200, 64)]), [(1, 196..510, 2)], "in any order");
        assert_eq!(
            of(vec![place(1, 200, 64), place(1, 264 + near, 1)]),
            [(1, 196..265 + u64::from(near), 2)]
        );
        assert_eq!(
            of(vec![place(1, 200, 64), place(1, 265 + near, 1), place(2, 200, 64)]),
            [(1, 196..264, 1), (1, 261 + u64::from(near)..266 + u64::from(near), 1), (2, 196..264, 1)]
        );
        assert_eq!(of(vec![place(1, 200, 64), place(1, 200, 64)]), [(1, 196..264, 2)], "wanted twice");
        assert_eq!(of(vec![place(1, 2, 0)]), [(1, 0..2, 1)], "no place is so near the start");
    }

    #[test]
    fn two_places_are_one_span_if_the_payloads_between_are_close() {
        let between = |first, last, payloads| {
            let span = ReadSpan::between(first, last, payloads);
            span.map(|ReadSpan { segment, start, end }| (segment, start..end))
        };
        let (first, last) = (place(1, 200, 64), place(1, 8300, 60));
        assert_eq!(between(first, last, 100), Some((1, 196..8360)));
        assert_eq!(between(first, last, 2), Some((1, 196..8360)));
        assert_eq!(between(first, last, 1), None, "there is more between them than of them");
        assert_eq!(between(first, first, 1), Some((1, 196..264)), "one alone");
        assert_eq!(between(last, first, 100), None, "the wrong way round");
        assert_eq!(between(first, place(2, 8300, 60), 100), None, "in two segments");
        assert_eq!(between(first, place(1, 200 + (1 << 20), 60), 512), None, "more than is read at once");
    }

    #[test]
    fn a_gap_is_counted_where_it_is_read() {
        let first = place(1, 200, 64);
        assert_eq!(ReadSpan::bytes_for(first, None), 64);
        assert_eq!(ReadSpan::bytes_for(place(1, 300, 10), Some(first)), 46);
        assert_eq!(ReadSpan::bytes_for(place(1, 265 + (4 << 10), 10), Some(first)), 10, "too far away");
        assert_eq!(ReadSpan::bytes_for(place(2, 300, 10), Some(first)), 10, "in another segment");
        assert_eq!(ReadSpan::bytes_for(place(1, 100, 10), Some(first)), 10, "before it");
    }

    #[test]
    fn spans_that_follow_each_other_are_one() {
        let first = ReadSpan { segment: 1, start: 100, end: 200 };
        let joined = |segment, start, end| {
            let mut all = first;
            all.join(ReadSpan { segment, start, end }).then_some(all.start..all.end)
        };
        assert_eq!(joined(1, 200, 300), Some(100..300));
        assert_eq!(joined(1, 200 + GAP_BYTES_MAX, 5000), Some(100..5000));
        assert_eq!(joined(1, 201 + GAP_BYTES_MAX, 5000), None, "too far away");
        assert_eq!(joined(1, 199, 300), None, "not behind it");
        assert_eq!(joined(2, 200, 300), None, "in another segment");
        assert_eq!(joined(1, 200, 101 + READ_BYTES_MAX), None, "more than is read at once");
    }

    #[test]
    fn no_more_is_read_at_once_than_there_is_room_for() {
        let places = (0..100).map(|n| place(7, 192 + n * 40_000, 39_000)).collect();
        let read = of(places);
        assert!(read.iter().all(|(_, range, _)| range.end - range.start <= READ_BYTES_MAX));
        assert_eq!(read.iter().map(|(_, _, count)| count).sum::<usize>(), 100);
        assert_eq!(read.len(), 4, "26 of them are a megabyte");
        let oversized = of(vec![place(7, 200, 5 << 20)]);
        assert_eq!(oversized, [(7, 196..200 + (5 << 20), 1)], "one payload is read whole");
    }
}
