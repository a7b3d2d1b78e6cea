//! A run of entries as bytes: each says only in what it differs from the one before.
//!
//! An entry is a control byte, whose bits say which of the following are there: the distance of its id from the one
//! before (a varint; absent if it is the next number), the distance of its push time (zigzag; absent if the same),
//! the distance of its due time from its push time (zigzag; absent if it is ready), and the packed handle of its body
//! (absent if it is kept beside the run). Every [`GROUP`]th entry is coded against the start of the run instead, with
//! no body before it, so that finding an entry decodes one group and not all of the run.

use alloc::vec::Vec;

use crate::codec::{Reader, write_number, write_signed};
use crate::id::TaskId;
use crate::task::{Body, Due};
use crate::time::{LogTime, WallTime};

/// Entries of a run.
pub(super) const ENTRIES_MAX: u16 = 512;

/// Entries from one new start to the next.
pub(super) const GROUP: u16 = 64;

/// How many groups a run has at most.
pub(super) const GROUPS_MAX: usize = (ENTRIES_MAX / GROUP) as usize;

/// A run that has come to this many bytes takes no more entries.
const BYTES_MAX: usize = 16 << 10;

/// Bits of a control byte.
mod bit {
    pub(super) const NEXT: u8 = 1;
    pub(super) const SAME_TIME: u8 = 2;
    pub(super) const DUE_LOG: u8 = 4;
    pub(super) const DUE_WALL: u8 = 8;
    pub(super) const ASIDE: u8 = 16;
    pub(super) const ALL: u8 = 31;
}

/// A task as it was pushed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::queue) struct Entry<B> {
    pub(in crate::queue) id: TaskId,
    pub(in crate::queue) pushed: LogTime,
    pub(in crate::queue) due: Option<Due>,
    pub(in crate::queue) body: B,
}

/// An entry as a run tells it: the body may be elsewhere.
#[derive(Debug)]
pub(super) struct Coded<B> {
    pub(super) index: u16,
    pub(super) id: TaskId,
    pub(super) pushed: LogTime,
    pub(super) due: Option<Due>,
    pub(super) body: Option<B>,
}

/// Entries, in order of their ids. Once sealed it never changes again.
#[derive(Clone, Debug)]
pub(in crate::queue) struct Run<B> {
    first: TaskId,
    last: TaskId,
    count: u16,
    /// When the first was pushed.
    base: u64,
    /// Where each group begins.
    groups: [u32; GROUPS_MAX],
    bytes: Vec<u8>,
    /// What the next entry is coded against; `None` once sealed.
    tail: Option<Tail<B>>,
}

#[derive(Clone, Debug)]
struct Tail<B> {
    pushed: u64,
    before: Option<B>,
}

/// A walk along a run: what the entry at `index` is coded against.
#[derive(Clone, Debug)]
pub(super) struct Cursor<B> {
    index: u16,
    at: usize,
    id: u64,
    pushed: u64,
    before: Option<B>,
}

impl<B> Cursor<B> {
    /// Before the first entry of a group.
    pub(super) const fn at_group(group: u16) -> Self {
        Self { index: group * GROUP, at: 0, id: 0, pushed: 0, before: None }
    }

    /// The index of the entry it stands before.
    pub(super) const fn index(&self) -> u16 {
        self.index
    }
}

impl<B> Default for Run<B> {
    fn default() -> Self {
        Self {
            first: TaskId::NONE,
            last: TaskId::NONE,
            count: 0,
            base: 0,
            groups: [0; GROUPS_MAX],
            bytes: Vec::new(),
            tail: Some(Tail { pushed: 0, before: None }),
        }
    }
}

impl<B: Body> Run<B> {
    pub(super) const fn count(&self) -> u16 {
        self.count
    }

    pub(super) const fn first(&self) -> TaskId {
        self.first
    }

    pub(super) const fn last(&self) -> TaskId {
        self.last
    }

    pub(super) fn bytes(&self) -> usize {
        self.bytes.capacity()
    }

    /// Whether it is not sealed yet.
    pub(super) const fn is_open(&self) -> bool {
        self.tail.is_some()
    }

    /// Whether it takes another entry.
    pub(super) fn has_room(&self) -> bool {
        self.is_open() && self.count < ENTRIES_MAX && self.bytes.len() < BYTES_MAX
    }

    /// Says that nothing will be appended any more.
    pub(super) fn seal(&mut self) {
        self.tail = None;
        self.bytes.shrink_to_fit();
    }

    /// A walk that stands behind the last entry of a run that is not sealed.
    pub(super) fn end(&self) -> Cursor<B> {
        let (pushed, before) =
            self.tail.as_ref().map_or((0, None), |tail| (tail.pushed, tail.before.clone()));
        Cursor { index: self.count, at: self.bytes.len(), id: self.last.raw(), pushed, before }
    }

    /// Appends an entry with an id above all others. Answers false if its body has to be kept elsewhere.
    pub(super) fn push(&mut self, id: TaskId, pushed: LogTime, due: Option<Due>, body: &B) -> bool {
        let tail = self.tail.as_mut().expect("only a run that has room is appended to");
        let mut before_id = self.last.raw();
        if self.count == 0 {
            (self.first, self.base) = (id, pushed.0);
        }
        if self.count.is_multiple_of(GROUP) {
            self.groups[usize::from(self.count / GROUP)] = self.bytes.len() as u32;
            before_id = self.first.raw() - 1;
            *tail = Tail { pushed: self.base, before: None };
        }
        let at = self.bytes.len();
        self.bytes.push(0);
        let mut control = 0;
        match id.raw() - before_id {
            1 => control |= bit::NEXT,
            distance => write_number(distance, &mut self.bytes),
        }
        match pushed.0.wrapping_sub(tail.pushed).cast_signed() {
            0 => control |= bit::SAME_TIME,
            distance => write_signed(distance, &mut self.bytes),
        }
        if let Some(due) = due {
            control |= if matches!(due, Due::Log(_)) { bit::DUE_LOG } else { bit::DUE_WALL };
            write_signed(due.raw().wrapping_sub(pushed.0).cast_signed(), &mut self.bytes);
        }
        let packed = body.pack(tail.before.as_ref(), &mut self.bytes);
        if packed {
            tail.before = Some(body.clone());
        } else {
            control |= bit::ASIDE;
        }
        tail.pushed = pushed.0;
        self.bytes[at] = control;
        self.last = id;
        self.count += 1;
        packed
    }

    /// The entry that the cursor stands before, which then stands behind it. `None` at the end, and where the bytes
    /// are no entry: what was read from a disk may be anything.
    #[inline]
    pub(super) fn next(&self, cursor: &mut Cursor<B>) -> Option<Coded<B>> {
        if cursor.index >= self.count {
            return None;
        }
        if cursor.index.is_multiple_of(GROUP) {
            cursor.at = self.groups[usize::from(cursor.index / GROUP)] as usize;
            (cursor.id, cursor.pushed) = (self.first.raw() - 1, self.base);
            cursor.before = None;
        }
        let mut r = Reader::new(self.bytes.get(cursor.at..)?);
        let control = r.byte().ok()?;
        let id = self.next_id(control, cursor.id, &mut r)?;
        let mut pushed = cursor.pushed;
        if control & bit::SAME_TIME == 0 {
            pushed = pushed.wrapping_add_signed(r.signed().ok()?);
        }
        let due = match control & (bit::DUE_LOG | bit::DUE_WALL) {
            0 => None,
            bit::DUE_LOG => Some(Due::Log(LogTime(pushed.wrapping_add_signed(r.signed().ok()?)))),
            bit::DUE_WALL => Some(Due::Wall(WallTime(pushed.wrapping_add_signed(r.signed().ok()?)))),
            _ => return None,
        };
        let mut rest = r.rest();
        let mut body = None;
        if control & bit::ASIDE == 0 {
            let (unpacked, behind) = B::unpack(cursor.before.as_ref(), rest)?;
            cursor.before = Some(unpacked.clone());
            (body, rest) = (Some(unpacked), behind);
        }
        let index = cursor.index;
        cursor.at = self.bytes.len().checked_sub(rest.len())?;
        (cursor.index, cursor.id, cursor.pushed) = (index + 1, id.raw(), pushed);
        Some(Coded { index, id, pushed: LogTime(pushed), due, body })
    }

    fn next_id(&self, control: u8, before: u64, r: &mut Reader<'_>) -> Option<TaskId> {
        if control & !bit::ALL != 0 {
            return None;
        }
        let distance = if control & bit::NEXT == 0 { r.number().ok()? } else { 1 };
        let id = TaskId::from_raw(before.checked_add(distance)?)?;
        (distance > 0 && id <= self.last).then_some(id)
    }

    /// The id of the first entry of a group.
    fn group_id(&self, group: u16) -> Option<TaskId> {
        let at = self.groups[usize::from(group)] as usize;
        let mut r = Reader::new(self.bytes.get(at..)?);
        let control = r.byte().ok()?;
        self.next_id(control, self.first.raw() - 1, &mut r)
    }

    /// The entry with this id.
    pub(super) fn find(&self, id: TaskId) -> Option<Coded<B>> {
        if self.count == 0 || id < self.first || id > self.last {
            return None;
        }
        let (mut low, mut high) = (0, self.count.div_ceil(GROUP));
        while high - low > 1 {
            let middle = low.midpoint(high);
            if self.group_id(middle).is_some_and(|first| first <= id) {
                low = middle;
            } else {
                high = middle;
            }
        }
        let mut cursor = Cursor::at_group(low);
        while cursor.index < (low + 1) * GROUP {
            let coded = self.next(&mut cursor)?;
            if coded.id >= id {
                return Some(coded).filter(|coded| coded.id == id);
            }
        }
        None
    }

    /// Appends the bytes that [`Self::read`] makes the same run of.
    pub(in crate::queue) fn write(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.first.raw().to_le_bytes());
        write_number(self.last.raw() - self.first.raw(), out);
        write_number(u64::from(self.count), out);
        write_number(self.base, out);
        for &group in &self.groups[1..usize::from(self.count.div_ceil(GROUP))] {
            write_number(u64::from(group), out);
        }
        out.extend_from_slice(&self.bytes);
    }

    /// A sealed run from its bytes. The entries are not looked at.
    pub(in crate::queue) fn read(bytes: &[u8]) -> Option<Self> {
        let mut r = Reader::new(bytes);
        let first = r.id().ok()?;
        let last = TaskId::from_raw(first.raw().checked_add(r.number().ok()?)?)?;
        let count: u16 = r.small().ok()?;
        if count == 0 || count > ENTRIES_MAX {
            return None;
        }
        let base = r.number().ok()?;
        let mut groups = [0; GROUPS_MAX];
        for at in 1..usize::from(count.div_ceil(GROUP)) {
            groups[at] = r.small().ok()?;
            if groups[at] <= groups[at - 1] {
                return None;
            }
        }
        Some(Self { first, last, count, base, groups, bytes: r.rest().to_vec(), tail: None })
    }
}
