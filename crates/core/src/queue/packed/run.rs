//! A run of entries as bytes: each entry is encoded by its differences from the one before.
//!
//! An entry is a control byte, whose bits say which of the following are there: how many more entries are coded by the
//! same bytes (a byte; absent if none is), the distance of its id from the one before (a varint; absent if it is the
//! next number), the distance of its push time (zigzag; absent if the same), the distance of its due time from its push
//! time (zigzag; absent if it is ready), and the packed handle of its body (absent if it is kept beside the run). Every
//! [`GROUP`]th entry is coded against the start of the run instead, with no body before it, so that finding an entry
//! decodes one group and not all of the run.
//!
//! Tasks that were pushed together differ from each other in the same way, so that a group of them needs only two
//! encoded entries.

use alloc::boxed::Box;
use alloc::collections::VecDeque;
use alloc::vec::Vec;

use crate::codec::{Reader, write_number, write_signed};
use crate::id::TaskId;
use crate::task::{Body, Due};
use crate::time::{LogTime, WallTime};

/// The maximum number of entries of a run. With this many, the cost of the run itself, in memory and in every image,
/// is negligible.
pub(super) const ENTRIES_MAX: u16 = 4096;

/// The number of entries of a group.
pub(super) const GROUP: u16 = 64;

/// The maximum number of groups of a run.
pub(super) const GROUPS_MAX: usize = (ENTRIES_MAX / GROUP) as usize;

/// A run of this many bytes takes no more entries, since a run that is not full is copied for every image.
const BYTES_MAX: usize = 8 << 10;

/// Bits of a control byte.
mod bit {
    pub(super) const NEXT: u8 = 1;
    pub(super) const SAME_TIME: u8 = 2;
    pub(super) const DUE_LOG: u8 = 4;
    pub(super) const DUE_WALL: u8 = 8;
    pub(super) const ASIDE: u8 = 16;
    pub(super) const REPEATED: u8 = 32;
    pub(super) const ALL: u8 = 63;
}

/// The control bytes of entries that differ only in their bodies.
const PLAIN: u8 = bit::NEXT | bit::SAME_TIME;
const PLAIN_REPEATED: u8 = PLAIN | bit::REPEATED;

/// An unchanged task since its push.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::queue) struct Entry<B> {
    pub(in crate::queue) id: TaskId,
    pub(in crate::queue) pushed: LogTime,
    pub(in crate::queue) due: Option<Due>,
    pub(in crate::queue) body: B,
}

/// A decoded entry; its body may be outside of the run.
#[derive(Debug)]
pub(super) struct Coded<B> {
    pub(super) index: u16,
    pub(super) id: TaskId,
    pub(super) pushed: LogTime,
    pub(super) due: Option<Due>,
    pub(super) body: Option<B>,
}

/// Entries, in order of their ids. A sealed run never changes.
#[derive(Clone, Debug)]
pub(in crate::queue) struct Run<B> {
    first: TaskId,
    last: TaskId,
    count: u16,
    /// The push time of the first entry.
    base: u64,
    /// The offset of each group except the first.
    groups: Vec<u16>,
    bytes: Vec<u8>,
    /// The entry that the next one is encoded against; `None` once sealed.
    tail: Option<Box<Tail<B>>>,
}

#[derive(Clone, Debug)]
struct Tail<B> {
    /// The offset of the last entry.
    at: usize,
    pushed: u64,
    before: Option<B>,
}

/// The position of an iteration: the values that the entry at `index` is encoded against. It stays valid while
/// entries are appended.
#[derive(Clone, Debug)]
pub(super) struct Cursor<B> {
    index: u16,
    /// The offset of the bytes that encoded the entry before, the number of entries that they have encoded so far,
    /// and their end.
    at: usize,
    coded: u8,
    end: usize,
    id: u64,
    /// Entries of the group have ids below this one.
    id_limit: u64,
    pushed: u64,
    before: Option<B>,
}

/// The differences of an entry from the one before.
struct Code<'r> {
    control: u8,
    distance: u64,
    time: i64,
    due: i64,
    /// The rest of the bytes, which begin with the body if the run contains it.
    body: &'r [u8],
}

impl<B> Cursor<B> {
    /// A cursor before the first entry of a group.
    pub(super) const fn at_group(group: u16) -> Self {
        Self { index: group * GROUP, at: 0, coded: 0, end: 0, id: 0, id_limit: 0, pushed: 0, before: None }
    }

    /// Advances over an entry whose bytes end at `end`.
    #[inline]
    fn advance(&mut self, id: TaskId, pushed: LogTime, end: usize) {
        (self.id, self.pushed, self.end) = (id.raw(), pushed.0, end);
        self.index += 1;
        // At most the number of entries of a group, since every group starts at zero.
        self.coded += 1;
    }

    /// Skips the rest of a group.
    pub(super) fn pass_over_group(&mut self) {
        *self = Self::at_group(self.index / GROUP + 1);
    }

    /// The index of the next entry.
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
            groups: Vec::new(),
            bytes: Vec::new(),
            tail: None,
        }
    }
}

impl<B> Run<B> {
    /// A run that entries can be appended to.
    pub(super) fn open() -> Self {
        Self { tail: Some(Box::new(Tail { at: 0, pushed: 0, before: None })), ..Self::default() }
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
        self.bytes.capacity() + self.groups.capacity() * size_of::<u16>()
    }

    /// Whether it is not sealed.
    pub(super) const fn is_open(&self) -> bool {
        self.tail.is_some()
    }

    /// Whether another entry fits.
    pub(super) fn has_room(&self) -> bool {
        self.is_open() && self.count < ENTRIES_MAX && self.bytes.len() < BYTES_MAX
    }

    /// Whether it takes much memory, regardless of its number of entries.
    pub(super) fn is_large(&self) -> bool {
        self.bytes.len() >= BYTES_MAX / 2
    }

    /// Seals the run: no entries can be appended from now on.
    pub(super) fn seal(&mut self) {
        self.tail = None;
        // Copied, because shrinking in place may leave half of an allocator's block empty.
        self.bytes = Vec::from(&self.bytes[..]);
        self.groups = Vec::from(&self.groups[..]);
    }

    /// The cursor after the last entry of a run that is not sealed.
    pub(super) fn end(&self) -> Cursor<B> {
        let Tail { at, pushed, before } =
            self.tail.as_deref().cloned().expect("only a run that is not sealed has an end to stand behind");
        let coded = self.more(at).map_or(0, |more| more + 1);
        let (id, end) = (self.last.raw(), self.bytes.len());
        Cursor { index: self.count, at, coded, end, id, id_limit: u64::MAX, pushed, before }
    }

    /// The offset of a group.
    fn group_at(&self, group: u16) -> usize {
        group.checked_sub(1).map_or(0, |later| usize::from(self.groups[usize::from(later)]))
    }

    /// The number of further entries that the bytes at `at` encode.
    fn more(&self, at: usize) -> Option<u8> {
        let &control = self.bytes.get(at)?;
        if control & bit::REPEATED == 0 { Some(0) } else { self.bytes.get(at + 1).copied() }
    }

    /// The control byte at `at`, and a reader of the bytes after it and after the number of entries.
    fn fields(&self, at: usize) -> Option<(u8, Reader<'_>)> {
        let &control = self.bytes.get(at)?;
        let head = if control & bit::REPEATED == 0 { 1 } else { 2 };
        Some((control, Reader::new(self.bytes.get(at + head..)?)))
    }

    /// Appends an entry with an id above all others. Returns false if its body must be kept outside of the run.
    pub(super) fn push(&mut self, id: TaskId, pushed: LogTime, due: Option<Due>, body: &B) -> bool {
        if due.is_none() && self.repeats(id, pushed, body) {
            return true;
        }
        let tail = self.tail.as_mut().expect("only a run that has room is appended to");
        let mut before_id = self.last.raw();
        if self.count == 0 {
            (self.first, self.base) = (id, pushed.0);
        }
        if self.count.is_multiple_of(GROUP) {
            if self.count > 0 {
                self.groups.push(self.bytes.len() as u16);
            }
            before_id = self.first.raw() - 1;
            **tail = Tail { at: self.bytes.len(), pushed: self.base, before: None };
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
        if !fold(&mut self.bytes, tail.at, at) {
            tail.at = at;
        }
        self.last = id;
        self.count += 1;
        packed
    }

    /// Extends the last encoded entry by one, if the new entry has the next id, the same push time, and the body that
    /// the bytes imply. Equivalent to encoding it, and faster: of tasks that were pushed together, all but the first
    /// few take this path.
    #[inline]
    fn repeats(&mut self, id: TaskId, pushed: LogTime, body: &B) -> bool {
        let Some(tail) = self.tail.as_deref_mut() else { return false };
        let is_next = id.raw() == self.last.raw() + 1 && pushed.0 == tail.pushed;
        if !is_next || self.count.is_multiple_of(GROUP) {
            return false;
        }
        let (head, is_repeated) = match self.bytes[tail.at] {
            PLAIN => (1, false),
            PLAIN_REPEATED => (2, true),
            _ => return false,
        };
        if !body.is_unpacked_from(tail.before.as_ref(), &self.bytes[tail.at + head..]) {
            return false;
        }
        tail.before = Some(body.clone());
        if is_repeated {
            self.bytes[tail.at + 1] += 1;
        } else {
            self.bytes[tail.at] = PLAIN_REPEATED;
            self.bytes.insert(tail.at + 1, 1);
        }
        self.last = id;
        self.count += 1;
        true
    }

    /// The next entry; the cursor advances. `None` at the end, and if the bytes are not an entry: they may come from
    /// a damaged disk.
    #[inline]
    pub(super) fn next(&self, cursor: &mut Cursor<B>) -> Option<Coded<B>> {
        if cursor.index >= self.count {
            return None;
        }
        self.enter(cursor)?;
        let code = self.code(cursor)?;
        self.decode(&code, cursor)
    }

    /// Decodes entries to the end of a list, until it has `count` entries, there are no more, or a body is not in the
    /// run. Much faster than decoding them one by one: each is written once, at its final place.
    pub(super) fn append_to(
        &self,
        list: &mut VecDeque<(u16, Entry<B>)>,
        count: usize,
        cursor: &mut Cursor<B>,
    ) {
        while list.len() < count
            && cursor.index < self.count
            && let Some(more) = self.enter(cursor)
            && let Some(code) = self.code(cursor)
        {
            let alike = usize::from(more.saturating_sub(cursor.coded)) + 1;
            // At most to the end of the group, even if the bytes claim more.
            let in_group = usize::from((GROUP - cursor.index % GROUP).min(self.count - cursor.index));
            let wanted = alike.min(in_group).min(count - list.len());
            let appended = self.append_alike(&code, wanted, list, cursor);
            if let Some((_, last)) = list.back().filter(|_| appended > 0) {
                cursor.before = Some(last.body.clone());
            }
            if appended < wanted {
                return;
            }
        }
    }

    /// Decodes `count` entries that differ from those before them in the same way. Returns the number decoded.
    #[inline]
    fn append_alike(
        &self,
        code: &Code<'_>,
        wanted: usize,
        list: &mut VecDeque<(u16, Entry<B>)>,
        cursor: &mut Cursor<B>,
    ) -> usize {
        if code.control & bit::ASIDE != 0 {
            return 0;
        }
        for appended in 0..wanted {
            let Some((id, pushed, due)) = self.id_and_times(code, cursor) else { return appended };
            let before = match list.back() {
                Some((_, entry)) if appended > 0 => Some(&entry.body),
                _ => cursor.before.as_ref(),
            };
            let Some((body, rest)) = B::unpack(before, code.body) else { return appended };
            list.push_back((cursor.index, Entry { id, pushed, due, body }));
            cursor.advance(id, pushed, self.bytes.len() - rest.len());
        }
        wanted
    }

    /// Moves to the bytes that encode the next entry. Returns the number of further entries that they encode.
    #[inline]
    fn enter(&self, cursor: &mut Cursor<B>) -> Option<u8> {
        if cursor.index.is_multiple_of(GROUP) {
            let group = cursor.index / GROUP;
            cursor.at = self.group_at(group);
            let next = Some(group + 1).filter(|&next| next * GROUP < self.count);
            cursor.id_limit = next.and_then(|next| self.group_id(next)).map_or(u64::MAX, TaskId::raw);
            (cursor.id, cursor.pushed) = (self.first.raw() - 1, self.base);
            (cursor.coded, cursor.before) = (0, None);
            return self.more(cursor.at);
        }
        let more = self.more(cursor.at)?;
        if cursor.coded <= more {
            return Some(more);
        }
        (cursor.at, cursor.coded) = (cursor.end, 0);
        self.more(cursor.at)
    }

    /// The differences of the next entry from the one before.
    #[inline]
    fn code(&self, cursor: &Cursor<B>) -> Option<Code<'_>> {
        let (control, mut r) = self.fields(cursor.at)?;
        let distance = distance(control, &mut r)?;
        let time = if control & bit::SAME_TIME == 0 { r.signed().ok()? } else { 0 };
        let due = if control & (bit::DUE_LOG | bit::DUE_WALL) == 0 { 0 } else { r.signed().ok()? };
        Some(Code { control, distance, time, due, body: r.rest() })
    }

    /// The next entry, from its differences.
    #[inline]
    fn decode(&self, code: &Code<'_>, cursor: &mut Cursor<B>) -> Option<Coded<B>> {
        let (id, pushed, due) = self.id_and_times(code, cursor)?;
        let (mut body, mut rest) = (None, code.body);
        if code.control & bit::ASIDE == 0 {
            let (unpacked, behind) = B::unpack(cursor.before.as_ref(), rest)?;
            cursor.before = Some(unpacked.clone());
            (body, rest) = (Some(unpacked), behind);
        }
        let index = cursor.index;
        cursor.advance(id, pushed, self.bytes.len() - rest.len());
        Some(Coded { index, id, pushed, due, body })
    }

    /// The id and times of the next entry.
    #[inline]
    fn id_and_times(&self, code: &Code<'_>, cursor: &Cursor<B>) -> Option<(TaskId, LogTime, Option<Due>)> {
        let id = self.id_at(cursor.id, code.distance).filter(|id| id.raw() < cursor.id_limit)?;
        let pushed = cursor.pushed.wrapping_add_signed(code.time);
        let due = match code.control & (bit::DUE_LOG | bit::DUE_WALL) {
            0 => None,
            bit::DUE_LOG => Some(Due::Log(LogTime(pushed.wrapping_add_signed(code.due)))),
            bit::DUE_WALL => Some(Due::Wall(WallTime(pushed.wrapping_add_signed(code.due)))),
            _ => return None,
        };
        Some((id, LogTime(pushed), due))
    }

    /// The id at this distance from another.
    #[inline]
    fn id_at(&self, before: u64, distance: u64) -> Option<TaskId> {
        let id = TaskId::from_raw(before.checked_add(distance)?)?;
        (distance > 0 && id <= self.last).then_some(id)
    }

    /// The id of the first entry of a group.
    fn group_id(&self, group: u16) -> Option<TaskId> {
        let (control, mut r) = self.fields(self.group_at(group))?;
        self.id_at(self.first.raw() - 1, distance(control, &mut r)?)
    }

    /// The last group whose first id is at most this number, or else the first group.
    pub(super) fn group_of(&self, raw: u64) -> u16 {
        let (mut low, mut high) = (0, self.count.div_ceil(GROUP));
        while high - low > 1 {
            let middle = low.midpoint(high);
            if self.group_id(middle).is_some_and(|first| first.raw() <= raw) {
                low = middle;
            } else {
                high = middle;
            }
        }
        low
    }

    pub(super) fn find(&self, id: TaskId) -> Option<Coded<B>> {
        if self.count == 0 || id < self.first || id > self.last {
            return None;
        }
        let group = self.group_of(id.raw());
        let mut cursor = Cursor::at_group(group);
        while cursor.index < (group + 1) * GROUP {
            let coded = self.next(&mut cursor)?;
            if coded.id >= id {
                return Some(coded).filter(|coded| coded.id == id);
            }
        }
        None
    }

    /// The bodies of the first entry of a group and of the last entry before `upto`, if the run contains them.
    pub(super) fn ends(&self, group: u16, upto: u16) -> Option<(B, B)> {
        let first = self.next(&mut Cursor::at_group(group))?.body?;
        let mut cursor = Cursor::at_group((upto - 1) / GROUP);
        let mut last = None;
        while cursor.index < upto {
            last = self.next(&mut cursor)?.body;
        }
        Some((first, last?))
    }

    /// Appends the bytes from which [`Self::read`] restores the run.
    pub(in crate::queue) fn write(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.first.raw().to_le_bytes());
        write_number(self.last.raw() - self.first.raw(), out);
        write_number(u64::from(self.count), out);
        write_number(self.base, out);
        for &group in &self.groups {
            write_number(u64::from(group), out);
        }
        out.extend_from_slice(&self.bytes);
    }

    /// Restores a sealed run. The entries are not decoded.
    pub(in crate::queue) fn read(bytes: &[u8]) -> Option<Self> {
        let mut r = Reader::new(bytes);
        let first = r.id().ok()?;
        let last = TaskId::from_raw(first.raw().checked_add(r.number().ok()?)?)?;
        let count: u16 = r.small().ok()?;
        if count == 0 || count > ENTRIES_MAX {
            return None;
        }
        let base = r.number().ok()?;
        let mut groups: Vec<u16> = Vec::with_capacity(usize::from(count.div_ceil(GROUP) - 1));
        for _ in 1..count.div_ceil(GROUP) {
            let group: u16 = r.small().ok()?;
            if group <= groups.last().copied().unwrap_or(0) {
                return None;
            }
            groups.push(group);
        }
        let run = Self { first, last, count, base, groups, bytes: r.rest().to_vec(), tail: None };
        run.has_groups_in_order().then_some(run)
    }

    /// Whether the first ids of its groups increase. Together with [`Self::id_at`], which keeps the other ids between
    /// them, this guarantees that no two entries of a run have the same id, whatever its bytes are.
    fn has_groups_in_order(&self) -> bool {
        let ids = (0..self.count.div_ceil(GROUP)).map(|group| self.group_id(group));
        let mut last = TaskId::NONE;
        ids.into_iter().all(|id| id.is_some_and(|id| core::mem::replace(&mut last, id) < id))
    }
}

/// The distance of an id from the one before.
#[inline]
fn distance(control: u8, r: &mut Reader<'_>) -> Option<u64> {
    if control & !bit::ALL != 0 {
        return None;
    }
    if control & bit::NEXT == 0 { r.number().ok() } else { Some(1) }
}

/// Merges the last entry, whose bytes begin at `at`, into the one before it, whose bytes begin at `before`, if their
/// bytes are equal. Returns whether they are.
fn fold(bytes: &mut Vec<u8>, before: usize, at: usize) -> bool {
    if before >= at {
        return false;
    }
    let is_repeated = bytes[before] & bit::REPEATED != 0;
    let head = if is_repeated { 2 } else { 1 };
    // Mostly one or two bytes, so a loop is faster than a call to compare them.
    let is_same = bytes[before] & !bit::REPEATED == bytes[at]
        && bytes[before + head..at].iter().eq(bytes[at + 1..].iter());
    if is_same {
        bytes.truncate(at);
        if is_repeated {
            bytes[before + 1] += 1;
        } else {
            bytes[before] |= bit::REPEATED;
            bytes.insert(before + 1, 1);
        }
    }
    is_same
}
