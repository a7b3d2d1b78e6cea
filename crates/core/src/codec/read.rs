//! Decodes events. All input is untrusted.

use alloc::vec::Vec;
use core::fmt;

use super::runs::{EncodedIds, EncodedPayloads};
use super::{field, setting, tag, terms};
use crate::command::{ConnId, LapseEnd, LapsePolicy};
use crate::event::{
    Counters, Event, Fields, Flood, FullTask, Ids, Landing, LeaseTerms, NameRef, Payloads, Purge, QueueNo,
    Removal, Totals,
};
use crate::id::TaskId;
use crate::settings::{Expired, Overflow, Place, Settings};
use crate::task::{Cause, Deadline, Due, Holder, Lease, OrderKey, Past, Rank, TaskState, Terms, Tries};
use crate::time::{LogTime, WallTime};

/// The reason why bytes are not an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Malformed {
    Short,
    Number,
    Id,
    /// An event, field or variant that this release does not know.
    Unknown(u8),
}

impl fmt::Display for Malformed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Short => f.write_str("an event ends too early"),
            Self::Number => f.write_str("a number in an event is out of range"),
            Self::Id => f.write_str("an event holds something that is not a task id"),
            Self::Unknown(tag) => {
                write!(f, "an event has the unknown tag {tag}: was it written by a later release?")
            }
        }
    }
}

impl core::error::Error for Malformed {}

/// Decodes one event from the front of `bytes` and passes it to `visit`. Returns its result and the rest.
pub fn decode<T>(bytes: &[u8], visit: impl FnOnce(&Event<'_>) -> T) -> Result<(T, &[u8]), Malformed> {
    let mut r = Reader::new(bytes);
    // Storage for the parts of some events that are not slices of the input.
    let (settings, past, task, counters);
    let event = match r.byte()? {
        tag::STARTED => Event::Started { incarnation: r.number()?, time: r.time()? },
        tag::CLOCK => Event::Clock(r.time()?),
        tag::QUEUE_MADE => Event::QueueMade { queue: r.queue()?, name: r.bytes()? },
        tag::QUEUE_GONE => Event::QueueGone(r.queue()?),
        tag::QUEUE_DROPPED => Event::QueueDropped(r.queue()?),
        tag::PUSHED => {
            let (queue, first, payloads) =
                (r.queue()?, r.id()?, Payloads::Encoded(EncodedPayloads::read(&mut r)?));
            Event::Pushed { queue, first, payloads, fields: r.push_fields()? }
        }
        tag::POPPED => Event::Popped { queue: r.queue()?, ids: r.ids()?, terms: r.lease_terms()? },
        tag::RECOVERED => Event::Recovered { queue: r.queue()?, ids: r.ids()? },
        tag::FINISHED => Event::Finished { queue: r.queue()?, ids: r.ids()? },
        tag::EXTENDED => Event::Extended { queue: r.queue()?, id: r.id()?, length_ms: r.number()? },
        tag::RETURNED => {
            let (queue, ids, to) = (r.queue()?, r.ids()?, r.landing()?);
            Event::Returned { queue, ids, to, cause: r.cause()?, reason: r.optional()? }
        }
        tag::DIED => {
            Event::Died { queue: r.queue()?, ids: r.ids()?, cause: r.cause()?, reason: r.optional()? }
        }
        tag::REMOVED => Event::Removed { queue: r.queue()?, ids: r.ids()?, why: r.removal()? },
        tag::PURGED => Event::Purged { queue: r.queue()?, what: r.purge()? },
        tag::MARKED => Event::Marked { queue: r.queue()?, ids: r.ids()? },
        tag::DUE_CAME => {
            Event::DueCame { queue: r.queue()?, upto: r.due()?, last_due: r.number()?, last_id: r.id()? }
        }
        tag::HOLDER_ENDED => {
            let (queue, terms) = (r.queue()?, r.lease_terms()?);
            let LeaseTerms { length_ms: None, holder: Some(holder), lapse: None } = terms else {
                return Err(Malformed::Unknown(tag::HOLDER_ENDED));
            };
            Event::HolderEnded { queue, holder, cause: r.cause()? }
        }
        tag::REVIVED => Event::Revived { queue: r.queue()?, ids: r.ids()? },
        tag::ALL_REVIVED => Event::AllRevived(r.queue()?),
        tag::MOVED => Event::Moved { from: r.queue()?, id: r.id()?, to: r.queue()? },
        tag::PAUSED => Event::Paused(r.queue()?),
        tag::RESUMED => Event::Resumed(r.queue()?),
        tag::CONFIGURED => {
            let queue = r.queue()?;
            settings = r.settings()?;
            Event::Configured { queue, settings: &settings }
        }
        tag::WORKER_STARTED => {
            Event::WorkerStarted { name: r.bytes()?, incarnation: r.number()?, ttl_ms: r.number()? }
        }
        tag::WORKER_ENDED => Event::WorkerEnded(r.number()?),
        tag::WORKED => Event::Worked { incarnation: r.number()?, queue: r.queue()? },
        tag::RESTED => Event::Rested { incarnation: r.number()?, queue: r.queue()? },
        tag::TASK => {
            let (head, found) = r.full_task()?;
            past = found;
            task = FullTask { past: &past, ..head };
            Event::Task(&task)
        }
        tag::COUNTED => {
            let queue = r.queue()?;
            counters = r.counters()?;
            Event::Counted { queue, counters: &counters }
        }
        tag::IDS_UPTO => Event::IdsUpto(r.id()?),
        tag::MARK => Event::Mark { source: r.bytes()?, cursor: r.bytes()? },
        unknown => return Err(Malformed::Unknown(unknown)),
    };
    Ok((visit(&event), r.rest()))
}

/// Decodes a number that [`super::write_number`] wrote at the start of `bytes`. Returns it and the rest.
#[inline]
pub fn read_number(bytes: &[u8]) -> Result<(u64, &[u8]), Malformed> {
    let mut r = Reader::new(bytes);
    Ok((r.number()?, r.rest()))
}

/// Reads bytes that may end at any point.
pub(crate) struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    pub(crate) const fn new(bytes: &'a [u8]) -> Self {
        Self(bytes)
    }

    pub(crate) const fn rest(&self) -> &'a [u8] {
        self.0
    }

    fn take(&mut self, len: usize) -> Result<&'a [u8], Malformed> {
        let (taken, rest) = self.0.split_at_checked(len).ok_or(Malformed::Short)?;
        self.0 = rest;
        Ok(taken)
    }

    fn all(&mut self) -> &'a [u8] {
        core::mem::take(&mut self.0)
    }

    pub(crate) fn array<const N: usize>(&mut self) -> Result<[u8; N], Malformed> {
        let (taken, rest) = self.0.split_first_chunk().ok_or(Malformed::Short)?;
        self.0 = rest;
        Ok(*taken)
    }

    pub(crate) fn byte(&mut self) -> Result<u8, Malformed> {
        let [byte] = self.array()?;
        Ok(byte)
    }

    #[inline]
    pub(crate) fn number(&mut self) -> Result<u64, Malformed> {
        // Most numbers are small.
        match self.0.split_first() {
            Some((&byte, rest)) if byte < 0x80 => {
                self.0 = rest;
                Ok(u64::from(byte))
            }
            _ => self.long_number(),
        }
    }

    fn long_number(&mut self) -> Result<u64, Malformed> {
        let mut value = 0u64;
        for shift in (0..64).step_by(7) {
            let byte = self.byte()?;
            let bits = u64::from(byte & 0x7f);
            if shift == 63 && bits > 1 {
                return Err(Malformed::Number);
            }
            value |= bits << shift;
            if byte < 0x80 {
                return Ok(value);
            }
        }
        Err(Malformed::Number)
    }

    pub(crate) fn signed(&mut self) -> Result<i64, Malformed> {
        let n = self.number()?;
        Ok((n >> 1).cast_signed() ^ -(n & 1).cast_signed())
    }

    pub(crate) fn small<T: TryFrom<u64>>(&mut self) -> Result<T, Malformed> {
        T::try_from(self.number()?).map_err(|_| Malformed::Number)
    }

    /// The number of items of at least one byte each, so at most the number of remaining bytes.
    pub(crate) fn count(&mut self) -> Result<usize, Malformed> {
        let count = self.small()?;
        if count > self.0.len() { Err(Malformed::Short) } else { Ok(count) }
    }

    pub(crate) fn bytes(&mut self) -> Result<&'a [u8], Malformed> {
        let len = self.small()?;
        self.take(len)
    }

    /// A payload. Its checksum is not verified here: the checksum of a frame covers whole events.
    pub(super) fn payload(&mut self) -> Result<&'a [u8], Malformed> {
        let len = self.small()?;
        let _checksum: [u8; 4] = self.array()?;
        self.take(len)
    }

    fn optional(&mut self) -> Result<Option<&'a [u8]>, Malformed> {
        match self.byte()? {
            0 => Ok(None),
            1 => self.bytes().map(Some),
            other => Err(Malformed::Unknown(other)),
        }
    }

    fn queue(&mut self) -> Result<QueueNo, Malformed> {
        self.small().map(QueueNo)
    }

    pub(crate) fn id(&mut self) -> Result<TaskId, Malformed> {
        TaskId::from_raw(u64::from_le_bytes(self.array()?)).ok_or(Malformed::Id)
    }

    fn ids(&mut self) -> Result<Ids<'a>, Malformed> {
        EncodedIds::read(self).map(Ids::Encoded)
    }

    pub(crate) fn time(&mut self) -> Result<LogTime, Malformed> {
        self.number().map(LogTime)
    }

    fn cause(&mut self) -> Result<Cause, Malformed> {
        Ok(match self.byte()? {
            0 => Cause::Free,
            1 => Cause::Failed,
            2 => Cause::Lapsed,
            3 => Cause::Lost,
            other => return Err(Malformed::Unknown(other)),
        })
    }

    fn removal(&mut self) -> Result<Removal, Malformed> {
        Ok(match self.byte()? {
            0 => Removal::Cancelled,
            1 => Removal::Expired,
            2 => Removal::Deleted,
            3 => Removal::Dropped,
            4 => Removal::Lapsed,
            other => return Err(Malformed::Unknown(other)),
        })
    }

    fn purge(&mut self) -> Result<Purge, Malformed> {
        Ok(match self.byte()? {
            0 => Purge::All,
            1 => Purge::Ready,
            2 => Purge::Delayed,
            3 => Purge::Dead,
            other => return Err(Malformed::Unknown(other)),
        })
    }

    pub(crate) fn due(&mut self) -> Result<Due, Malformed> {
        match self.byte()? {
            0 => Ok(Due::Log(self.time()?)),
            1 => Ok(Due::Wall(WallTime(self.number()?))),
            other => Err(Malformed::Unknown(other)),
        }
    }

    fn landing(&mut self) -> Result<Landing, Malformed> {
        Ok(match self.byte()? {
            0 => Landing::Front { group: self.number()? },
            1 => Landing::Back,
            2 => Landing::Delayed(self.time()?),
            other => return Err(Malformed::Unknown(other)),
        })
    }

    fn place(&mut self) -> Result<Place, Malformed> {
        Ok(match self.byte()? {
            0 => Place::Front,
            1 => Place::Back,
            2 => Place::After(self.number()?),
            other => return Err(Malformed::Unknown(other)),
        })
    }

    fn lease_terms(&mut self) -> Result<LeaseTerms, Malformed> {
        let (deadline, holder, lapse) = self.terms()?;
        if matches!(deadline, Some((Some(_), _))) {
            return Err(Malformed::Unknown(terms::DEADLINE));
        }
        Ok(LeaseTerms { length_ms: deadline.map(|(_, length)| length), holder, lapse })
    }

    #[expect(clippy::type_complexity, reason = "the three parts of terms, which both callers destructure")]
    fn terms(
        &mut self,
    ) -> Result<(Option<(Option<u64>, u64)>, Option<Holder>, Option<LapsePolicy>), Malformed> {
        let bits = self.byte()?;
        let has = |bit| bits & bit != 0;
        if bits & 0x80 != 0
            || has(terms::WORKER) && has(terms::CONN)
            || has(terms::DEADLINE) && !has(terms::LENGTH)
            || has(terms::LAPSE_LIMIT | terms::LAPSE_DELETE) && !has(terms::LAPSE)
        {
            return Err(Malformed::Unknown(bits));
        }
        let mut deadline = None;
        if has(terms::LENGTH) {
            let length = self.number()?;
            deadline = Some((if has(terms::DEADLINE) { Some(self.number()?) } else { None }, length));
        }
        let mut holder = None;
        if has(terms::WORKER) {
            holder = Some(Holder::Worker(self.number()?));
        } else if has(terms::CONN) {
            holder = Some(Holder::Conn(ConnId(self.number()?)));
        }
        let mut lapse = None;
        if has(terms::LAPSE) {
            let to = self.place()?;
            let limit = if has(terms::LAPSE_LIMIT) { Some(self.small()?) } else { None };
            let then = if has(terms::LAPSE_DELETE) { LapseEnd::Delete } else { LapseEnd::Dead };
            lapse = Some(LapsePolicy { to, limit, then });
        }
        Ok((deadline, holder, lapse))
    }

    fn push_fields(&mut self) -> Result<Fields<'a>, Malformed> {
        let mut fields = Fields::default();
        while let Some((tag, value)) = self.field()? {
            fields.take(tag, value)?;
        }
        Ok(fields)
    }

    /// The next optional field: its tag, and a reader of its value.
    fn field(&mut self) -> Result<Option<(u8, Self)>, Malformed> {
        match self.byte()? {
            field::END => Ok(None),
            tag => Ok(Some((tag, Self::new(self.bytes()?)))),
        }
    }

    fn full_task(&mut self) -> Result<(FullTask<'a>, Vec<Past>), Malformed> {
        let (queue, id, payload, pushed) = (self.queue()?, self.id()?, self.payload()?, self.time()?);
        let (incarnation, deliveries) = (self.number()?, self.small()?);
        let tries = Tries { failed: self.small()?, lapsed: self.small()?, lost: self.small()? };
        let flags = self.byte()?;
        if flags > 3 {
            return Err(Malformed::Unknown(flags));
        }
        let (state, neg_priority) = self.state()?;
        let (mut fields, mut reason, mut past) = (Fields::default(), None, Vec::new());
        while let Some((tag, mut value)) = self.field()? {
            match tag {
                field::REASON => reason = Some(value.all()),
                field::PAST => {
                    while !value.rest().is_empty() {
                        past.push(value.past()?);
                    }
                }
                _ => fields.take(tag, value)?,
            }
        }
        let (cancelled, late_ack) = (flags & 1 != 0, flags & 2 != 0);
        let stray_neg_priority =
            neg_priority.filter(|&neg_priority| neg_priority != Rank::negated(fields.priority));
        let task = FullTask {
            queue,
            id,
            payload,
            pushed,
            state,
            stray_neg_priority,
            incarnation,
            deliveries,
            tries,
            cancelled,
            late_ack,
            fields,
            reason,
            past: &[],
        };
        Ok((task, past))
    }

    fn past(&mut self) -> Result<Past, Malformed> {
        Ok(Past {
            delivery: self.small()?,
            incarnation: self.number()?,
            start: self.time()?,
            end: self.time()?,
            cause: self.cause()?,
        })
    }

    /// A state. For a ready task, also the negated priority, which is encoded before the priority it must agree with.
    fn state(&mut self) -> Result<(TaskState, Option<i16>), Malformed> {
        let mut neg_priority = None;
        let state = match self.byte()? {
            0 => {
                neg_priority = Some(i16::try_from(self.signed()?).map_err(|_| Malformed::Number)?);
                TaskState::Ready(OrderKey { major: self.signed()?, minor: self.number()? })
            }
            1 => TaskState::Delayed(self.due()?),
            2 => {
                let (start, seq) = (self.time()?, self.number()?);
                let (deadline, holder, lapse) = self.terms()?;
                let deadline = deadline.map(|(at, length_ms)| {
                    let at = LogTime(at.unwrap_or_else(|| start.after(length_ms).0));
                    Deadline { at, length_ms }
                });
                TaskState::Leased(Lease::new(start, seq, Terms { deadline, holder, lapse }))
            }
            3 => TaskState::Dead(self.time()?),
            other => return Err(Malformed::Unknown(other)),
        };
        Ok((state, neg_priority))
    }

    fn counters(&mut self) -> Result<Counters, Malformed> {
        let raw = u64::from_le_bytes(self.array()?);
        let none = (raw == 0).then_some(TaskId::NONE);
        let last_id = none.or_else(|| TaskId::from_raw(raw)).ok_or(Malformed::Id)?;
        let totals = Totals { pushed: self.number()?, finished: self.number()?, removed: self.number()? };
        let (seq, front_group, minor) = (self.number()?, self.number()?, self.number()?);
        let bits = self.byte()?;
        if bits > 3 {
            return Err(Malformed::Unknown(bits));
        }
        let flood = if bits & 1 != 0 { Some(self.flood()?) } else { None };
        let paused = if bits & 2 != 0 { Some(self.time()?) } else { None };
        Ok(Counters { last_id, totals, seq, front_group, minor, flood, paused })
    }

    fn flood(&mut self) -> Result<Flood, Malformed> {
        let (upto, major) = (self.due()?, self.signed()?);
        Ok(Flood { upto, major, minor: self.number()?, end: self.number()? })
    }

    fn settings(&mut self) -> Result<Settings, Malformed> {
        let bits = self.number()?;
        if bits & !setting::ALL != 0 {
            return Err(Malformed::Number);
        }
        let has = |bit| bits & bit != 0;
        let mut number = |bit| if has(bit) { self.number().map(Some) } else { Ok(None) };
        let lease_ms = number(setting::LEASE)?;
        let tries = number(setting::TRIES)?.map(u32::try_from).transpose().map_err(|_| Malformed::Number)?;
        let (backoff_ms, ttl_ms) = (number(setting::BACKOFF)?, number(setting::TTL)?);
        let (max_length, max_bytes) = (number(setting::MAX_LENGTH)?, number(setting::MAX_BYTES)?);
        let max_leased = number(setting::MAX_LEASED)?;
        let dead_letter = if has(setting::DEAD_LETTER) { Some(self.bytes()?.into()) } else { None };
        Ok(Settings {
            lease_ms,
            tries,
            backoff_ms,
            ttl_ms,
            expired: if has(setting::EXPIRED_DEAD) { Expired::Dead } else { Expired::Delete },
            max_length,
            max_bytes,
            overflow: if has(setting::DROP_OLDEST) { Overflow::DropOldest } else { Overflow::Refuse },
            max_leased,
            dead_letter,
        })
    }
}

impl<'a> Fields<'a> {
    /// Reads one field, whose value must take all of its bytes.
    fn take(&mut self, tag: u8, mut value: Reader<'a>) -> Result<(), Malformed> {
        match tag {
            field::DUE_LOG => self.due = Some(Due::Log(value.time()?)),
            field::DUE_WALL => self.due = Some(Due::Wall(WallTime(value.number()?))),
            field::PRIORITY => self.priority = value.byte()?.cast_signed(),
            field::NAME => self.name = Some(NameRef::Bytes(value.all())),
            field::NAME_HASH => self.name = Some(NameRef::PayloadHash(u128::from_le_bytes(value.array()?))),
            field::TRIES_MAX => self.tries_max = Some(value.small()?),
            field::BACKOFF_MS => self.backoff_ms = Some(value.number()?),
            field::EXPIRES => self.expires = Some(value.time()?),
            field::TRACE => self.trace = Some(value.all()),
            optional if optional & field::MAY_BE_SKIPPED != 0 => _ = value.all(),
            unknown => return Err(Malformed::Unknown(unknown)),
        }
        if value.rest().is_empty() { Ok(()) } else { Err(Malformed::Number) }
    }
}
