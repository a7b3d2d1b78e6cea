//! Encodes events.

use alloc::vec::Vec;

use super::checksum;
use super::runs::runs_of;
use super::{field, setting, tag, terms};
use crate::command::{LapseEnd, LapsePolicy};
use crate::event::{
    Counters, Event, Fields, Flood, FullTask, Ids, Landing, LeaseTerms, NameRef, Payloads, Purge, QueueNo,
    Removal,
};
use crate::id::TaskId;
use crate::settings::{Expired, Overflow, Place, Settings};
use crate::task::{Cause, Due, Holder, OrderKey, Past, Rank, TaskState, Terms};

/// Appends the bytes of one event.
pub fn encode(event: &Event<'_>, out: &mut Vec<u8>) {
    encode_with(event, out, checksum);
}

/// Appends the bytes of one event, with a faster way to compute [`checksum`]. Returns the offset in `out` of the
/// first payload of the event, if it has payloads: [`payload_head_len`] bytes of head, then the payload. The next
/// payload of the event follows it.
pub fn encode_with(event: &Event<'_>, out: &mut Vec<u8>, checksum: fn(&[u8]) -> u32) -> Option<usize> {
    write(event, Writer { out, checksum: Some(checksum), payloads_at: None })
}

/// Appends the bytes of one event without those of its payloads. Returns the offset in `out` at which the output of
/// [`write_payload`] for each of them belongs, if it has any.
pub fn encode_around_payloads(event: &Event<'_>, out: &mut Vec<u8>) -> Option<usize> {
    write(event, Writer { out, checksum: None, payloads_at: None })
}

/// Writes a payload with its head of [`payload_head_len`] bytes to the beginning of `out`, in the encoding of events.
/// Returns the total number of bytes. `checksum` is a faster way to compute [`checksum`].
pub fn write_payload(payload: &[u8], out: &mut [u8], checksum: fn(&[u8]) -> u32) -> usize {
    let (mut at, mut len) = (0, payload.len());
    while len >= 0x80 {
        out[at] = len as u8 | 0x80;
        (at, len) = (at + 1, len >> 7);
    }
    out[at] = len as u8;
    let head = payload_head_len(payload.len());
    out[head - CHECKSUM_LEN..head].copy_from_slice(&checksum(payload).to_le_bytes());
    out[head..head + payload.len()].copy_from_slice(payload);
    head + payload.len()
}

fn write(event: &Event<'_>, mut w: Writer<'_>) -> Option<usize> {
    match event {
        Event::Started { incarnation, time } => w.tag(tag::STARTED).number(*incarnation).number(time.0),
        Event::Clock(time) => w.tag(tag::CLOCK).number(time.0),
        Event::QueueMade { queue, name } => w.tag(tag::QUEUE_MADE).queue(*queue).bytes(name),
        Event::QueueGone(queue) => w.tag(tag::QUEUE_GONE).queue(*queue),
        Event::QueueDropped(queue) => w.tag(tag::QUEUE_DROPPED).queue(*queue),
        Event::Pushed { queue, first, payloads, fields } => {
            w.tag(tag::PUSHED).queue(*queue).id(*first).payloads(payloads).fields(fields).byte(field::END)
        }
        Event::Popped { queue, ids, terms } => w.tag(tag::POPPED).queue(*queue).ids(ids).lease_terms(terms),
        Event::Recovered { queue, ids } => w.tag(tag::RECOVERED).queue(*queue).ids(ids),
        Event::Finished { queue, ids } => w.tag(tag::FINISHED).queue(*queue).ids(ids),
        Event::Extended { queue, id, length_ms } => {
            w.tag(tag::EXTENDED).queue(*queue).id(*id).number(*length_ms)
        }
        Event::Returned { queue, ids, to, cause, reason } => {
            w.tag(tag::RETURNED).queue(*queue).ids(ids).landing(*to).cause(*cause).optional(*reason)
        }
        Event::Died { queue, ids, cause, reason } => {
            w.tag(tag::DIED).queue(*queue).ids(ids).cause(*cause).optional(*reason)
        }
        Event::Removed { queue, ids, why } => w.tag(tag::REMOVED).queue(*queue).ids(ids).byte(removal(*why)),
        Event::Purged { queue, what } => w.tag(tag::PURGED).queue(*queue).byte(purge(*what)),
        Event::Marked { queue, ids } => w.tag(tag::MARKED).queue(*queue).ids(ids),
        Event::DueCame { queue, upto, last_due, last_id } => {
            w.tag(tag::DUE_CAME).queue(*queue).due(*upto).number(*last_due).id(*last_id)
        }
        Event::HolderEnded { queue, holder, cause } => {
            let terms = LeaseTerms { holder: Some(*holder), ..LeaseTerms::default() };
            w.tag(tag::HOLDER_ENDED).queue(*queue).lease_terms(&terms).cause(*cause)
        }
        Event::Revived { queue, ids } => w.tag(tag::REVIVED).queue(*queue).ids(ids),
        Event::AllRevived(queue) => w.tag(tag::ALL_REVIVED).queue(*queue),
        Event::Moved { from, id, to } => w.tag(tag::MOVED).queue(*from).id(*id).queue(*to),
        Event::Paused(queue) => w.tag(tag::PAUSED).queue(*queue),
        Event::Resumed(queue) => w.tag(tag::RESUMED).queue(*queue),
        Event::Configured { queue, settings } => w.tag(tag::CONFIGURED).queue(*queue).settings(settings),
        Event::WorkerStarted { name, incarnation, ttl_ms } => {
            w.tag(tag::WORKER_STARTED).bytes(name).number(*incarnation).number(*ttl_ms)
        }
        Event::WorkerEnded(incarnation) => w.tag(tag::WORKER_ENDED).number(*incarnation),
        Event::Worked { incarnation, queue } => w.tag(tag::WORKED).number(*incarnation).queue(*queue),
        Event::Rested { incarnation, queue } => w.tag(tag::RESTED).number(*incarnation).queue(*queue),
        Event::Task(task) => w.tag(tag::TASK).full_task(task),
        Event::Counted { queue, counters } => w.tag(tag::COUNTED).queue(*queue).counters(counters),
        Event::IdsUpto(id) => w.tag(tag::IDS_UPTO).id(*id),
        Event::Mark { source, cursor } => w.tag(tag::MARK).bytes(source).bytes(cursor),
    };
    w.payloads_at
}

/// The number of bytes before a payload of this length: the length as a varint, and the checksum.
pub const fn payload_head_len(len: usize) -> usize {
    varint_len(len as u64) as usize + CHECKSUM_LEN
}

/// Appends a number as a varint: seven bits in each byte, the lowest first, the highest bit set in all but the last.
pub fn write_number(mut n: u64, out: &mut Vec<u8>) {
    while n >= 0x80 {
        out.push(n as u8 | 0x80);
        n >>= 7;
    }
    out.push(n as u8);
}

/// Appends a signed number in zigzag encoding, in which small absolute values are short.
pub fn write_signed(n: i64, out: &mut Vec<u8>) {
    write_number(((n << 1) ^ (n >> 63)).cast_unsigned(), out);
}

const fn removal(why: Removal) -> u8 {
    match why {
        Removal::Cancelled => 0,
        Removal::Expired => 1,
        Removal::Deleted => 2,
        Removal::Dropped => 3,
        Removal::Lapsed => 4,
    }
}

const fn purge(what: Purge) -> u8 {
    match what {
        Purge::All => 0,
        Purge::Ready => 1,
        Purge::Delayed => 2,
        Purge::Dead => 3,
    }
}

const fn cause(cause: Cause) -> u8 {
    match cause {
        Cause::Free => 0,
        Cause::Failed => 1,
        Cause::Lapsed => 2,
        Cause::Lost => 3,
    }
}

/// The size of the checksum before a payload in bytes.
const CHECKSUM_LEN: usize = 4;

struct Writer<'o> {
    out: &'o mut Vec<u8>,
    /// `None` if payloads are left out.
    checksum: Option<fn(&[u8]) -> u32>,
    /// The offset of the first payload.
    payloads_at: Option<usize>,
}

impl Writer<'_> {
    fn byte(&mut self, byte: u8) -> &mut Self {
        self.out.push(byte);
        self
    }

    fn tag(&mut self, tag: u8) -> &mut Self {
        self.byte(tag)
    }

    fn number(&mut self, n: u64) -> &mut Self {
        write_number(n, self.out);
        self
    }

    fn signed(&mut self, n: i64) -> &mut Self {
        write_signed(n, self.out);
        self
    }

    fn queue(&mut self, queue: QueueNo) -> &mut Self {
        self.number(u64::from(queue.0))
    }

    fn id(&mut self, id: TaskId) -> &mut Self {
        self.out.extend_from_slice(&id.raw().to_le_bytes());
        self
    }

    fn bytes(&mut self, bytes: &[u8]) -> &mut Self {
        self.number(bytes.len() as u64);
        self.out.extend_from_slice(bytes);
        self
    }

    /// Absent is 0, present is 1 and the bytes.
    fn optional(&mut self, bytes: Option<&[u8]>) -> &mut Self {
        match bytes {
            None => self.byte(0),
            Some(bytes) => self.byte(1).bytes(bytes),
        }
    }

    fn payloads(&mut self, payloads: &Payloads<'_>) -> &mut Self {
        self.number(payloads.len() as u64);
        for payload in payloads.iter() {
            self.payload(payload);
        }
        self
    }

    /// A payload has its own checksum, so that it can be verified when it is read from disk by itself.
    fn payload(&mut self, payload: &[u8]) -> &mut Self {
        self.payloads_at.get_or_insert(self.out.len());
        let Some(checksum) = self.checksum else { return self };
        self.number(payload.len() as u64);
        let sum = checksum(payload);
        self.out.extend_from_slice(&sum.to_le_bytes());
        self.out.extend_from_slice(payload);
        self
    }

    fn ids(&mut self, ids: &Ids<'_>) -> &mut Self {
        match ids {
            Ids::Slice(slice) => self.id_runs(slice),
            Ids::Encoded(_) => self.id_runs(&ids.iter().collect::<Vec<_>>()),
        }
    }

    fn id_runs(&mut self, ids: &[TaskId]) -> &mut Self {
        self.number(runs_of(ids).count() as u64);
        let mut last = None;
        for (first, length) in runs_of(ids) {
            match last {
                None => self.id(first),
                Some(last) => self.signed(first.raw().wrapping_sub(last).cast_signed()),
            };
            self.number(length - 1);
            last = Some(first.raw() + length - 1);
        }
        self
    }

    fn cause(&mut self, why: Cause) -> &mut Self {
        self.byte(cause(why))
    }

    fn due(&mut self, due: Due) -> &mut Self {
        self.byte(u8::from(matches!(due, Due::Wall(_)))).number(due.raw())
    }

    fn landing(&mut self, to: Landing) -> &mut Self {
        match to {
            Landing::Front { group } => self.byte(0).number(group),
            Landing::Back => self.byte(1),
            Landing::Delayed(due) => self.byte(2).number(due.0),
        }
    }

    fn place(&mut self, place: Place) -> &mut Self {
        match place {
            Place::Front => self.byte(0),
            Place::Back => self.byte(1),
            Place::After(ms) => self.byte(2).number(ms),
        }
    }

    fn lease_terms(&mut self, terms: &LeaseTerms) -> &mut Self {
        let deadline = terms.length_ms.map(|length| (None, length));
        self.terms(deadline, terms.holder, terms.lapse)
    }

    fn terms(
        &mut self,
        deadline: Option<(Option<u64>, u64)>,
        holder: Option<Holder>,
        lapse: Option<LapsePolicy>,
    ) -> &mut Self {
        let mut bits = 0;
        bits |= deadline.map_or(0, |(at, _)| terms::LENGTH | at.map_or(0, |_| terms::DEADLINE));
        bits |=
            holder.map_or(0, |h| if matches!(h, Holder::Worker(_)) { terms::WORKER } else { terms::CONN });
        bits |= lapse.map_or(0, |p| {
            let limit = p.limit.map_or(0, |_| terms::LAPSE_LIMIT);
            let then = if p.then == LapseEnd::Delete { terms::LAPSE_DELETE } else { 0 };
            terms::LAPSE | limit | then
        });
        self.byte(bits);
        if let Some((at, length)) = deadline {
            self.number(length);
            at.map(|at| self.number(at));
        }
        match holder {
            Some(Holder::Worker(n)) => _ = self.number(n),
            Some(Holder::Conn(conn)) => _ = self.number(conn.0),
            None => {}
        }
        if let Some(policy) = lapse {
            self.place(policy.to);
            policy.limit.map(|limit| self.number(u64::from(limit)));
        }
        self
    }

    fn fields(&mut self, fields: &Fields<'_>) -> &mut Self {
        match fields.due {
            Some(Due::Log(at)) => self.number_field(field::DUE_LOG, at.0),
            Some(Due::Wall(at)) => self.number_field(field::DUE_WALL, at.0),
            None => {}
        }
        if fields.priority != 0 {
            self.byte(field::PRIORITY).byte(1).byte(fields.priority.cast_unsigned());
        }
        match fields.name {
            Some(NameRef::Bytes(name)) => _ = self.byte(field::NAME).bytes(name),
            Some(NameRef::PayloadHash(hash)) => _ = self.byte(field::NAME_HASH).bytes(&hash.to_le_bytes()),
            None => {}
        }
        let numbers = [
            (field::TRIES_MAX, fields.tries_max.map(u64::from)),
            (field::BACKOFF_MS, fields.backoff_ms),
            (field::EXPIRES, fields.expires.map(|at| at.0)),
        ];
        for (tag, value) in numbers {
            if let Some(value) = value {
                self.number_field(tag, value);
            }
        }
        fields.trace.map(|trace| self.byte(field::TRACE).bytes(trace));
        self
    }

    fn number_field(&mut self, tag: u8, value: u64) {
        self.byte(tag).byte(varint_len(value)).number(value);
    }

    fn full_task(&mut self, task: &FullTask<'_>) -> &mut Self {
        self.queue(task.queue).id(task.id).payload(task.payload).number(task.pushed.0);
        self.number(task.incarnation).number(u64::from(task.deliveries));
        for count in [task.tries.failed, task.tries.lapsed, task.tries.lost] {
            self.number(u64::from(count));
        }
        self.byte(u8::from(task.cancelled) | u8::from(task.late_ack) << 1);
        self.state(&task.state, task.stray_neg_priority.unwrap_or(Rank::negated(task.fields.priority)));
        self.fields(&task.fields);
        task.reason.map(|reason| self.byte(field::REASON).bytes(reason));
        if !task.past.is_empty() {
            let mut past = Vec::new();
            let mut nested = Writer { out: &mut past, checksum: self.checksum, payloads_at: None };
            task.past.iter().for_each(|p| nested.past(p));
            self.byte(field::PAST).bytes(&past);
        }
        self.byte(field::END)
    }

    fn past(&mut self, past: &Past) {
        self.number(u64::from(past.delivery)).number(past.incarnation).number(past.start.0);
        self.number(past.end.0).cause(past.cause);
    }

    fn state(&mut self, state: &TaskState, neg_priority: i16) -> &mut Self {
        match state {
            TaskState::Ready(OrderKey { major, minor }) => {
                self.byte(0).signed(i64::from(neg_priority)).signed(*major).number(*minor)
            }
            TaskState::Delayed(due) => self.byte(1).due(*due),
            TaskState::Leased(lease) => {
                let Terms { deadline, holder, lapse } = lease.terms().copied().unwrap_or_default();
                self.byte(2).number(lease.start().0).number(lease.seq());
                self.terms(deadline.map(|d| (Some(d.at.0), d.length_ms)), holder, lapse)
            }
            TaskState::Dead(at) => self.byte(3).number(at.0),
        }
    }

    fn counters(&mut self, counters: &Counters) -> &mut Self {
        let Counters { last_id, totals, seq, front_group, minor, flood, paused } = counters;
        self.id(*last_id).number(totals.pushed).number(totals.finished).number(totals.removed);
        self.number(*seq).number(*front_group).number(*minor);
        self.byte(u8::from(flood.is_some()) | u8::from(paused.is_some()) << 1);
        if let Some(Flood { upto, major, minor, end }) = flood {
            self.due(*upto).signed(*major).number(*minor).number(*end);
        }
        if let Some(since) = paused {
            self.number(since.0);
        }
        self
    }

    fn settings(&mut self, s: &Settings) -> &mut Self {
        let numbers = setting_numbers(s);
        let mut bits = 0;
        for (bit, value) in numbers {
            bits |= value.map_or(0, |_| bit);
        }
        bits |= if s.expired == Expired::Dead { setting::EXPIRED_DEAD } else { 0 };
        bits |= if s.overflow == Overflow::DropOldest { setting::DROP_OLDEST } else { 0 };
        bits |= s.dead_letter.as_ref().map_or(0, |_| setting::DEAD_LETTER);
        self.number(bits);
        for value in numbers.into_iter().filter_map(|(_, value)| value) {
            self.number(value);
        }
        if let Some(queue) = &s.dead_letter {
            self.bytes(queue);
        }
        self
    }
}

/// The settings that are numbers, in the order they are written.
fn setting_numbers(s: &Settings) -> [(u64, Option<u64>); 7] {
    [
        (setting::LEASE, s.lease_ms),
        (setting::TRIES, s.tries.map(u64::from)),
        (setting::BACKOFF, s.backoff_ms),
        (setting::TTL, s.ttl_ms),
        (setting::MAX_LENGTH, s.max_length),
        (setting::MAX_BYTES, s.max_bytes),
        (setting::MAX_LEASED, s.max_leased),
    ]
}

const fn varint_len(n: u64) -> u8 {
    let bits = 64 - (n | 1).leading_zeros();
    bits.div_ceil(7) as u8
}
