//! Lists that stay encoded until they are walked, so that a replay allocates nothing.

use super::read::{Malformed, Reader};
use crate::id::TaskId;

/// Encoded payloads, each with its length before it. Validated on creation.
#[derive(Clone, Copy, Debug)]
pub struct EncodedPayloads<'a> {
    count: usize,
    bytes: &'a [u8],
}

impl<'a> EncodedPayloads<'a> {
    pub const EMPTY: Self = Self { count: 0, bytes: &[] };

    /// The number of payloads that are left.
    pub const fn len(&self) -> usize {
        self.count
    }

    pub const fn is_empty(&self) -> bool {
        self.count == 0
    }

    pub(super) fn read(reader: &mut Reader<'a>) -> Result<Self, Malformed> {
        let count = reader.count()?;
        let bytes = reader.rest();
        for _ in 0..count {
            reader.payload()?;
        }
        let used = bytes.len() - reader.rest().len();
        Ok(Self { count, bytes: &bytes[..used] })
    }
}

#[expect(
    clippy::copy_iterator,
    reason = "an iterator over borrowed bytes, which callers copy to iterate again"
)]
impl<'a> Iterator for EncodedPayloads<'a> {
    type Item = &'a [u8];

    fn next(&mut self) -> Option<&'a [u8]> {
        if self.count == 0 {
            return None;
        }
        let mut reader = Reader::new(self.bytes);
        let payload = reader.payload().ok()?;
        self.count -= 1;
        self.bytes = reader.rest();
        Some(payload)
    }
}

/// Encoded ids: runs of consecutive ids. Validated on creation.
#[derive(Clone, Copy, Debug)]
pub struct EncodedIds<'a> {
    runs: usize,
    bytes: &'a [u8],
    /// The current run: the next raw id, and the number of ids that follow it.
    next: u64,
    left: u64,
}

impl<'a> EncodedIds<'a> {
    pub const EMPTY: Self = Self { runs: 0, bytes: &[], next: 0, left: 0 };

    pub(super) fn read(reader: &mut Reader<'a>) -> Result<Self, Malformed> {
        let runs = reader.count()?;
        if runs == 0 {
            return Ok(Self::EMPTY);
        }
        let first = reader.id()?.raw();
        let left = run_length(reader, first)?;
        let bytes = reader.rest();
        let mut last = first + left - 1;
        for _ in 1..runs {
            let start = run_start(reader, last)?;
            last = start + run_length(reader, start)? - 1;
        }
        let used = bytes.len() - reader.rest().len();
        Ok(Self { runs: runs - 1, bytes: &bytes[..used], next: first, left })
    }
}

/// The first id of a run, given the last id of the run before.
fn run_start(reader: &mut Reader<'_>, last: u64) -> Result<u64, Malformed> {
    let gap = reader.signed()?;
    let start = last.checked_add_signed(gap).ok_or(Malformed::Id)?;
    TaskId::from_raw(start).map(TaskId::raw).ok_or(Malformed::Id)
}

/// The number of ids of a run. All of them must be valid ids.
fn run_length(reader: &mut Reader<'_>, first: u64) -> Result<u64, Malformed> {
    let more = reader.number()?;
    // Ids of a run share their millisecond: a run never crosses into the next one, whose sequence starts at 1.
    let room = (1 << 17) - 1 - (first & ((1 << 17) - 1));
    if more > room { Err(Malformed::Id) } else { Ok(more + 1) }
}

#[expect(
    clippy::copy_iterator,
    reason = "an iterator over borrowed bytes, which callers copy to iterate again"
)]
impl Iterator for EncodedIds<'_> {
    type Item = TaskId;

    fn next(&mut self) -> Option<TaskId> {
        if self.left == 0 {
            if self.runs == 0 {
                return None;
            }
            let mut reader = Reader::new(self.bytes);
            let last = self.next.wrapping_sub(1);
            self.next = run_start(&mut reader, last).ok()?;
            self.left = run_length(&mut reader, self.next).ok()?;
            self.bytes = reader.rest();
            self.runs -= 1;
        }
        self.left -= 1;
        self.next += 1;
        TaskId::from_raw(self.next - 1)
    }
}

/// The runs of a list of ids: first id and length.
pub(super) fn runs_of(ids: &[TaskId]) -> impl Iterator<Item = (TaskId, u64)> {
    ids.chunk_by(|a, b| b.raw() == a.raw() + 1 && b.ms() == a.ms()).map(|run| (run[0], run.len() as u64))
}
