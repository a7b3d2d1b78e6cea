//! The handle of a payload: its place in the log, or the bytes.

use std::ops::Range;

use sureq_core::codec::{read_number, write_number};
use sureq_home_api::Payload;

/// The handle of a payload.
///
/// A task in the state has the place of its payload in the log, which takes a few bytes. A reply has the bytes: they
/// are loaded before it is sent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Body {
    /// In the log.
    Stored(Stored),
    /// In memory.
    Loaded(Payload),
}

/// The size of the checksum before a payload.
pub(crate) const CRC_BYTES: u64 = 4;

/// The place of a payload in the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Stored {
    /// The number of the segment that it was written to. A recovery may have rewritten that segment under another
    /// number.
    pub(crate) segment: u32,
    pub(crate) offset: u32,
    pub(crate) len: u32,
}

impl Stored {
    /// The bytes that it takes up in its segment.
    pub(crate) const fn range(self) -> Range<u64> {
        self.offset as u64..self.offset as u64 + self.len as u64
    }
}

impl From<&[u8]> for Body {
    fn from(payload: &[u8]) -> Self {
        Self::Loaded(Payload::from(payload))
    }
}

impl AsRef<[u8]> for Body {
    /// The bytes. Panics for a place in the log: all payloads are loaded before a reply leaves the engine.
    fn as_ref(&self) -> &[u8] {
        match self {
            Self::Loaded(payload) => payload.as_ref(),
            Self::Stored(place) => panic!("the payload at {place:?} was not loaded"),
        }
    }
}

/// Bits of the first number of a packed place.
mod bits {
    /// In the same segment as the one before, behind it: the number is the gap between them. Otherwise it is the
    /// offset, and the segment follows.
    pub(super) const BEHIND: u64 = 1;
    /// As long as the one before. Otherwise the length follows.
    pub(super) const SAME_LEN: u64 = 2;
    pub(super) const COUNT: u32 = 2;
}

impl sureq_core::task::Body for Body {
    fn len(&self) -> usize {
        match self {
            Self::Loaded(payload) => payload.as_ref().len(),
            Self::Stored(place) => place.len as usize,
        }
    }

    fn is(&self, payload: &[u8]) -> Option<bool> {
        match self {
            Self::Loaded(loaded) => Some(loaded.as_ref() == payload),
            Self::Stored(place) => (place.len as usize != payload.len()).then_some(false),
        }
    }

    fn owned_bytes(&self) -> usize {
        match self {
            Self::Loaded(payload) => payload.owned_bytes(),
            Self::Stored(_) => 0,
        }
    }

    fn pack(&self, before: Option<&Self>, out: &mut Vec<u8>) -> bool {
        let Self::Stored(place) = self else { return false };
        let before = before.and_then(Self::place);
        let gap = before
            .filter(|before| before.segment == place.segment)
            .and_then(|before| u64::from(place.offset).checked_sub(before.range().end));
        let same_len = before.is_some_and(|before| before.len == place.len);
        let flags = if gap.is_some() { bits::BEHIND } else { 0 } | if same_len { bits::SAME_LEN } else { 0 };
        write_number(gap.unwrap_or(u64::from(place.offset)) << bits::COUNT | flags, out);
        if gap.is_none() {
            write_number(u64::from(place.segment), out);
        }
        if !same_len {
            write_number(u64::from(place.len), out);
        }
        true
    }

    #[inline]
    fn is_unpacked_from(&self, before: Option<&Self>, bytes: &[u8]) -> bool {
        let (Self::Stored(place), Some((Self::Stored(unpacked), []))) = (self, Self::unpack(before, bytes))
        else {
            return false;
        };
        unpacked == *place
    }

    #[inline]
    fn unpack<'b>(before: Option<&Self>, bytes: &'b [u8]) -> Option<(Self, &'b [u8])> {
        let before = before.and_then(Self::place);
        let (first, bytes) = read_number(bytes).ok()?;
        let value = first >> bits::COUNT;
        let (offset, segment, bytes) = if first & bits::BEHIND == 0 {
            let (segment, bytes) = read_number(bytes).ok()?;
            (value, u32::try_from(segment).ok()?, bytes)
        } else {
            (before?.range().end.checked_add(value)?, before?.segment, bytes)
        };
        let (len, bytes) = if first & bits::SAME_LEN == 0 {
            let (len, bytes) = read_number(bytes).ok()?;
            (u32::try_from(len).ok()?, bytes)
        } else {
            (before?.len, bytes)
        };
        let place = Stored { segment, offset: u32::try_from(offset).ok()?, len };
        Some((Self::Stored(place), bytes))
    }
}

impl Body {
    /// The payload in memory. Every reply that leaves the engine has it.
    pub(crate) fn into_payload(self) -> Payload {
        match self {
            Self::Loaded(payload) => payload,
            Self::Stored(place) => panic!("the payload at {place:?} was not loaded"),
        }
    }

    /// Its place in the log, if it has one.
    pub(crate) const fn place(&self) -> Option<Stored> {
        match self {
            Self::Stored(place) => Some(*place),
            Self::Loaded(_) => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use sureq_core::task::Body as _;

    fn stored(segment: u32, offset: u32, len: u32) -> Body {
        Body::Stored(Stored { segment, offset, len })
    }

    #[test]
    fn places_pack_and_unpack_after_any_other_place() {
        let places = [
            stored(1, 192, 64),
            stored(1, 273, 64),
            stored(1, 354, 0),
            stored(1, 100, 7),
            stored(2, 192, 7),
            stored(u32::MAX, u32::MAX, u32::MAX),
            stored(1, 0, u32::MAX),
            stored(1, u32::MAX, 1),
        ];
        let mut packed = Vec::new();
        for (at, place) in places.iter().enumerate() {
            assert!(place.pack(at.checked_sub(1).map(|at| &places[at]), &mut packed));
        }
        let (mut rest, mut before) = (&packed[..], None);
        for place in &places {
            let (unpacked, behind) = Body::unpack(before, rest).unwrap();
            assert_eq!(unpacked, *place);
            (rest, before) = (behind, Some(place));
        }
        assert!(rest.is_empty());
    }

    #[test]
    fn a_neighbour_of_the_same_length_costs_one_byte() {
        let mut packed = Vec::new();
        stored(7, 281, 64).pack(Some(&stored(7, 200, 64)), &mut packed);
        assert_eq!(packed.len(), 1);
    }

    #[test]
    fn a_place_knows_the_bytes_it_is_unpacked_from() {
        let before = stored(7, 200, 64);
        let mut packed = Vec::new();
        stored(7, 281, 64).pack(Some(&before), &mut packed);
        assert!(stored(7, 281, 64).is_unpacked_from(Some(&before), &packed));
        for other in [stored(7, 282, 64), stored(7, 281, 63), stored(8, 281, 64)] {
            assert!(!other.is_unpacked_from(Some(&before), &packed), "{other:?}");
        }
        assert!(
            !stored(7, 281, 64).is_unpacked_from(None, &packed),
            "without the place before, these bytes are invalid"
        );
        packed.push(0);
        assert!(!stored(7, 281, 64).is_unpacked_from(Some(&before), &packed), "there is more");
        let loaded = Body::Loaded(Payload::from(&b"x"[..]));
        assert!(!loaded.is_unpacked_from(Some(&before), &packed[..1]));
    }

    #[test]
    fn malformed_packed_places_are_refused() {
        for bytes in [
            &b""[..],
            &[0x80],
            &[0xff; 10],
            &[1],
            &[3],
            &[0, 0x80],
            &[0, 1],
            &[0xfd, 0xff, 0xff, 0xff, 0x7f, 1, 1],
        ] {
            assert_eq!(Body::unpack(None, bytes), None, "{bytes:?}");
        }
        let end = stored(1, u32::MAX, u32::MAX);
        assert_eq!(Body::unpack(Some(&end), &[3]), None, "it would lie beyond any segment");
        let loaded = Body::Loaded(Payload::from(&b"x"[..]));
        assert!(!loaded.pack(None, &mut Vec::new()), "only a place can be packed");
    }

    #[test]
    fn a_handle_is_three_words() {
        assert_eq!(size_of::<Body>(), 24);
    }
}
