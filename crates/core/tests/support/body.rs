//! A payload that is its own handle, and the log that creates and counts them.

use std::collections::BTreeSet;
use std::rc::Rc;

use sureq_core::codec::{encode, read_number, write_number};
use sureq_core::task::Body;
use sureq_core::{Event, Recorder};

/// A payload and its number: no two handles of a log have the same one.
#[derive(Clone, Debug, Eq)]
pub struct Bytes(pub Rc<[u8]>, pub u64);

/// This bit of the number is set if the handle cannot be packed.
const ASIDE: u64 = 1 << 63;

impl PartialEq for Bytes {
    fn eq(&self, other: &Self) -> bool {
        self.0 == other.0
    }
}

impl Body for Bytes {
    fn len(&self) -> usize {
        self.0.len()
    }

    fn is(&self, payload: &[u8]) -> Option<bool> {
        Some(*self.0 == *payload)
    }

    fn owned_bytes(&self) -> usize {
        if self.1 & ASIDE == 0 { 0 } else { self.0.len() }
    }

    fn pack(&self, before: Option<&Self>, out: &mut Vec<u8>) -> bool {
        if self.1 & ASIDE != 0 {
            return false;
        }
        let (number, same) = before.map_or((0, false), |before| (before.1, before.0 == self.0));
        write_number(self.1.wrapping_sub(number), out);
        if same {
            write_number(0, out);
        } else {
            write_number(self.0.len() as u64 + 1, out);
            out.extend_from_slice(&self.0);
        }
        true
    }

    fn is_unpacked_from(&self, before: Option<&Self>, bytes: &[u8]) -> bool {
        let read = Self::unpack(before, bytes);
        read.is_some_and(|(read, rest)| read == *self && read.1 == self.1 && rest.is_empty())
    }

    fn unpack<'b>(before: Option<&Self>, bytes: &'b [u8]) -> Option<(Self, &'b [u8])> {
        let (distance, rest) = read_number(bytes).ok()?;
        let (len, rest) = read_number(rest).ok()?;
        let number = before.map_or(0, |before| before.1).wrapping_add(distance);
        let Some(len) = len.checked_sub(1) else { return Some((Self(before?.0.clone(), number), rest)) };
        let (payload, rest) = rest.split_at_checked(usize::try_from(len).ok()?)?;
        Some((Self(payload.into(), number), rest))
    }
}

impl From<&[u8]> for Bytes {
    fn from(bytes: &[u8]) -> Self {
        Self(bytes.into(), 0)
    }
}

/// The handles of a log that cannot be packed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Kept {
    #[default]
    Packed,
    /// The handles of payloads of odd length.
    Mixed,
}

/// A recorder that keeps the encoded events, and counts handles.
#[derive(Clone, Debug, Default)]
pub struct Log {
    pub bytes: Vec<u8>,
    pub kept: Kept,
    made: u64,
    /// The numbers of handles that were created and not released.
    pub live: BTreeSet<u64>,
    /// The number of releases of a handle that was not live.
    pub unknown_bodies: usize,
}

impl Log {
    /// A log that continues this one, without its previous events.
    pub fn follower(&self) -> Self {
        Self { bytes: Vec::new(), ..self.clone() }
    }

    pub fn of(kept: Kept) -> Self {
        Self { kept, ..Self::default() }
    }
}

impl Recorder for Log {
    type Body = Bytes;

    fn record(&mut self, event: &Event<'_>) {
        encode(event, &mut self.bytes);
    }

    fn new_body(&mut self, _: usize, payload: &[u8]) -> Bytes {
        self.made += 1;
        let aside = self.kept == Kept::Mixed && payload.len() % 2 == 1;
        let number = if aside { self.made | ASIDE } else { self.made };
        self.live.insert(number);
        Bytes(payload.into(), number)
    }

    fn payload_hash(&self, payload: &[u8]) -> u128 {
        let fnv =
            |hash: u128, &byte: &u8| (hash ^ u128::from(byte)).wrapping_mul(0x1000_0000_0000_0000_0000_013b);
        payload.iter().fold(0x6c62_272e_07bb_0142_62b8_2175_6295_c58d, fnv)
    }

    fn release_body(&mut self, body: Bytes) {
        self.unknown_bodies += usize::from(!self.live.remove(&body.1));
    }
}
