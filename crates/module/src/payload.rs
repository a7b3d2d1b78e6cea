//! The payload of a task, in memory.
//!
//! While a task waits in a long queue, its payload is part of the run that it is coded into, without overhead. A
//! payload that is too large for that, or belongs to a delivered task, has an allocation of its own.

use std::sync::Arc;

use sureq_core::codec::{read_number, write_number};
use sureq_core::task::Body;

/// The largest payload that is coded into runs.
pub(crate) const PACKED_BYTES_MAX: usize = 1 << 10;

/// The overhead of an allocated payload: two counters.
pub(crate) const HEAP_BYTES: usize = 16;

/// A payload, reference-counted: a reply may outlive the task, and copies of a key share payloads. The counter is
/// atomic, since Redis frees large values on another thread.
#[derive(Clone, Debug)]
pub(crate) struct Payload(Arc<[u8]>);

impl From<&[u8]> for Payload {
    fn from(bytes: &[u8]) -> Self {
        Self(bytes.into())
    }
}

impl AsRef<[u8]> for Payload {
    fn as_ref(&self) -> &[u8] {
        &self.0
    }
}

impl Body for Payload {
    fn len(&self) -> usize {
        self.0.len()
    }

    fn is(&self, payload: &[u8]) -> Option<bool> {
        Some(*self.0 == *payload)
    }

    fn pack(&self, _: Option<&Self>, out: &mut Vec<u8>) -> bool {
        if self.0.len() > PACKED_BYTES_MAX {
            return false;
        }
        write_number(self.0.len() as u64, out);
        out.extend_from_slice(&self.0);
        true
    }

    fn unpack<'b>(_: Option<&Self>, bytes: &'b [u8]) -> Option<(Self, &'b [u8])> {
        let (len, rest) = read_number(bytes).ok()?;
        let (payload, rest) = rest.split_at_checked(usize::try_from(len).ok()?)?;
        Some((Self::from(payload), rest))
    }
}
