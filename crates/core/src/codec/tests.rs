//! Every event is decoded as it was encoded, and bytes that are not an event are refused.

use alloc::string::String;
use alloc::vec;
use alloc::vec::Vec;
use alloc::{format, rc::Rc};

use proptest::collection::vec as some;
use proptest::option;
use proptest::prelude::*;

use super::{Malformed, checksum, decode, encode, encode_with, payload_head_len, read_number};
use crate::Broker;
use crate::command::{ConnId, LapseEnd, LapsePolicy};
use crate::event::{
    Counters, Event, Fields, Flood, FullTask, Ids, Landing, LeaseTerms, NameRef, Payloads, Purge, QueueNo,
    Recorder, Removal, Totals,
};
use crate::id::TaskId;
use crate::settings::{Expired, Overflow, Place, Settings};
use crate::task::{
    Body, Cause, Deadline, Due, Holder, Lease, OrderKey, Past, Rank, StateKind, TaskState, Terms, Tries,
};
use crate::time::{LogTime, WallTime};

/// The owned contents of an event. [`Parts::events`] makes one event of each kind from them.
#[derive(Clone, Debug)]
struct Parts {
    queue: QueueNo,
    other: QueueNo,
    numbers: [u64; 4],
    id: TaskId,
    ids: Vec<TaskId>,
    bytes: Vec<u8>,
    more_bytes: Vec<u8>,
    payloads: Vec<Vec<u8>>,
    cause: Cause,
    removal: Removal,
    landing: Landing,
    terms: LeaseTerms,
    state: TaskState,
    neg_priority: Option<i16>,
    due: Due,
    fields: OwnedFields,
    reason: Option<Vec<u8>>,
    past: Vec<Past>,
    tries: Tries,
    flags: [bool; 2],
    settings: Settings,
    counters: Counters,
}

#[derive(Clone, Debug)]
struct OwnedFields {
    due: Option<Due>,
    priority: i8,
    name: Option<Result<Vec<u8>, u128>>,
    tries_max: Option<u32>,
    backoff_ms: Option<u64>,
    expires: Option<u64>,
    trace: Option<Vec<u8>>,
}

impl OwnedFields {
    fn borrowed(&self) -> Fields<'_> {
        Fields {
            due: self.due,
            priority: self.priority,
            name: self.name.as_ref().map(|name| match name {
                Ok(bytes) => NameRef::Bytes(bytes),
                Err(hash) => NameRef::PayloadHash(*hash),
            }),
            tries_max: self.tries_max,
            backoff_ms: self.backoff_ms,
            expires: self.expires.map(LogTime),
            trace: self.trace.as_deref(),
        }
    }
}

impl Parts {
    /// One event of each kind.
    fn events(&self, visit: &mut dyn FnMut(&Event<'_>)) {
        let (queue, id, ids) = (self.queue, self.id, Ids::Slice(&self.ids));
        let [a, b, c, d] = self.numbers;
        let slices: Vec<&[u8]> = self.payloads.iter().map(Vec::as_slice).collect();
        let (bytes, cause, reason) = (&self.bytes[..], self.cause, self.reason.as_deref());
        let fields = self.fields.borrowed();
        let strays = |neg_priority: &i16| {
            self.state.kind() == StateKind::Ready && *neg_priority != Rank::negated(fields.priority)
        };
        let task = FullTask {
            queue,
            id,
            payload: bytes,
            pushed: LogTime(a),
            state: self.state.clone(),
            stray_neg_priority: self.neg_priority.filter(strays),
            incarnation: b,
            deliveries: c as u32,
            tries: self.tries,
            cancelled: self.flags[0],
            late_ack: self.flags[1],
            fields,
            reason,
            past: &self.past,
        };
        for event in [
            Event::Started { incarnation: a, time: LogTime(b) },
            Event::Clock(LogTime(a)),
            Event::QueueMade { queue, name: bytes },
            Event::QueueGone(queue),
            Event::QueueDropped(queue),
            Event::Pushed { queue, first: id, payloads: Payloads::Slices(&slices), fields },
            Event::Popped { queue, ids, terms: self.terms },
            Event::Recovered { queue, ids },
            Event::Finished { queue, ids },
            Event::Extended { queue, id, length_ms: d },
            Event::Returned { queue, ids, to: self.landing, cause, reason },
            Event::Died { queue, ids, cause, reason },
            Event::Removed { queue, ids, why: self.removal },
            Event::Marked { queue, ids },
            Event::DueCame { queue, upto: self.due, last_due: d, last_id: id },
            Event::Revived { queue, ids },
            Event::Moved { from: queue, id, to: self.other },
            Event::Paused(queue),
            Event::Resumed(queue),
            Event::Configured { queue, settings: &self.settings },
            Event::WorkerStarted { name: bytes, incarnation: a, ttl_ms: b },
            Event::WorkerEnded(a),
            Event::Worked { incarnation: a, queue },
            Event::Rested { incarnation: a, queue },
            Event::Task(&task),
            Event::Mark { source: bytes, cursor: &self.more_bytes },
            Event::Counted { queue, counters: &self.counters },
            Event::IdsUpto(id),
            Event::HolderEnded { queue, holder: self.terms.holder.unwrap_or(Holder::Worker(a)), cause },
            Event::Purged {
                queue,
                what: [Purge::All, Purge::Ready, Purge::Delayed, Purge::Dead][a as usize % 4],
            },
            Event::AllRevived(queue),
        ] {
            visit(&event);
        }
    }

    fn encoded(&self) -> Vec<Vec<u8>> {
        let mut all = Vec::new();
        self.events(&mut |event| all.push(bytes_of(event)));
        all
    }
}

fn bytes_of(event: &Event<'_>) -> Vec<u8> {
    let mut bytes = Vec::new();
    encode(event, &mut bytes);
    bytes
}

// ---- The parts of events.

/// Small numbers, edge cases of the encoding, and arbitrary ones.
fn number() -> impl Strategy<Value = u64> {
    prop_oneof![
        4 => 0..300u64,
        1 => prop::sample::select(vec![0x7f, 0x80, 0x3fff, 0x4000, u64::from(u32::MAX), u64::MAX - 1, u64::MAX]),
        1 => any::<u64>(),
    ]
}

fn id() -> impl Strategy<Value = TaskId> {
    let ms = prop_oneof![3 => 0..3u64, 1 => 0..1u64 << 42, 1 => Just((1 << 42) - 1)];
    let seq = prop_oneof![3 => 1..5u64, 1 => (1u64 << 17) - 3..1 << 17, 1 => 1..1u64 << 17];
    (ms, seq).prop_map(|(ms, seq)| TaskId::new(ms, seq).unwrap())
}

/// Runs of consecutive ids, some across the end of a millisecond, and single ids.
fn ids() -> impl Strategy<Value = Vec<TaskId>> {
    let run = (id(), 1..6u64).prop_map(|(first, n)| (0..n).filter_map(|n| first.nth(n)).collect::<Vec<_>>());
    some(run, 0..4).prop_map(|runs| runs.concat())
}

fn bytes() -> impl Strategy<Value = Vec<u8>> {
    prop_oneof![1 => Just(vec![]), 1 => Just(vec![0]), 6 => some(any::<u8>(), 0..40), 1 => Just(vec![7; 300])]
}

fn cause() -> impl Strategy<Value = Cause> {
    prop::sample::select(vec![Cause::Free, Cause::Failed, Cause::Lapsed, Cause::Lost])
}

fn due() -> impl Strategy<Value = Due> {
    prop_oneof![
        number().prop_map(|ms| Due::Log(LogTime(ms))),
        number().prop_map(|ms| Due::Wall(WallTime(ms))),
    ]
}

fn holder() -> impl Strategy<Value = Option<Holder>> {
    prop_oneof![
        Just(None),
        number().prop_map(|n| Some(Holder::Worker(n))),
        number().prop_map(|n| Some(Holder::Conn(ConnId(n)))),
    ]
}

fn lapse() -> impl Strategy<Value = Option<LapsePolicy>> {
    let place = prop_oneof![Just(Place::Front), Just(Place::Back), number().prop_map(Place::After)];
    let then = prop::sample::select(vec![LapseEnd::Dead, LapseEnd::Delete]);
    let policy = (place, option::of(any::<u32>()), then);
    option::of(policy.prop_map(|(to, limit, then)| LapsePolicy { to, limit, then }))
}

fn state() -> impl Strategy<Value = TaskState> {
    let deadline =
        option::of((number(), number()).prop_map(|(at, length_ms)| Deadline { at: LogTime(at), length_ms }));
    let terms =
        (deadline, holder(), lapse()).prop_map(|(deadline, holder, lapse)| Terms { deadline, holder, lapse });
    let lease = (number(), number(), terms);
    prop_oneof![
        (any::<i64>(), number()).prop_map(|(major, minor)| TaskState::Ready(OrderKey { major, minor })),
        due().prop_map(TaskState::Delayed),
        lease.prop_map(|(start, seq, terms)| TaskState::Leased(Lease::new(LogTime(start), seq, terms))),
        number().prop_map(|at| TaskState::Dead(LogTime(at))),
    ]
}

fn fields() -> impl Strategy<Value = OwnedFields> {
    let name = option::of(prop_oneof![bytes().prop_map(Ok), any::<u128>().prop_map(Err)]);
    let numbers = (option::of(any::<u32>()), option::of(number()), option::of(number()));
    (option::of(due()), any::<i8>(), name, numbers, option::of(bytes())).prop_map(
        |(due, priority, name, (tries_max, backoff_ms, expires), trace)| OwnedFields {
            due,
            priority,
            name,
            tries_max,
            backoff_ms,
            expires,
            trace,
        },
    )
}

fn past() -> impl Strategy<Value = Past> {
    (any::<u32>(), number(), number(), number(), cause()).prop_map(
        |(delivery, incarnation, start, end, cause)| Past {
            delivery,
            incarnation,
            start: LogTime(start),
            end: LogTime(end),
            cause,
        },
    )
}

fn settings() -> impl Strategy<Value = Settings> {
    let numbers = prop::array::uniform6(option::of(number()));
    (numbers, option::of(any::<u32>()), any::<bool>(), any::<bool>(), option::of(bytes())).prop_map(
        |([lease_ms, backoff_ms, ttl_ms, max_length, max_bytes, max_leased], tries, dead, drop, letter)| {
            Settings {
                lease_ms,
                tries,
                backoff_ms,
                ttl_ms,
                expired: if dead { Expired::Dead } else { Expired::Delete },
                max_length,
                max_bytes,
                overflow: if drop { Overflow::DropOldest } else { Overflow::Refuse },
                max_leased,
                dead_letter: letter.map(Into::into),
            }
        },
    )
}

fn counters() -> impl Strategy<Value = Counters> {
    let flood = (due(), any::<i64>(), number(), number());
    let flood = flood.prop_map(|(upto, major, minor, end)| Flood { upto, major, minor, end });
    let last_id = option::of(id()).prop_map(Option::unwrap_or_default);
    (last_id, prop::array::uniform6(number()), option::of(flood), option::of(number())).prop_map(
        |(last_id, [pushed, finished, removed, seq, front_group, minor], flood, paused)| Counters {
            last_id,
            totals: Totals { pushed, finished, removed },
            seq,
            front_group,
            minor,
            flood,
            paused: paused.map(LogTime),
        },
    )
}

fn parts() -> impl Strategy<Value = Parts> {
    let removal = prop::sample::select(vec![
        Removal::Cancelled,
        Removal::Expired,
        Removal::Deleted,
        Removal::Dropped,
        Removal::Lapsed,
    ]);
    let landing = prop_oneof![
        number().prop_map(|group| Landing::Front { group }),
        Just(Landing::Back),
        number().prop_map(|at| Landing::Delayed(LogTime(at))),
    ];
    let terms = (option::of(number()), holder(), lapse());
    let terms = terms.prop_map(|(length_ms, holder, lapse)| LeaseTerms { length_ms, holder, lapse });
    let queue = || prop_oneof![4 => 0..3u32, 1 => any::<u32>()].prop_map(QueueNo);
    let tries = any::<[u32; 3]>().prop_map(|[failed, lapsed, lost]| Tries { failed, lapsed, lost });
    let names = (queue(), queue(), prop::array::uniform4(number()), id(), ids());
    let blobs = (bytes(), bytes(), some(bytes(), 0..4), option::of(bytes()));
    let small = (cause(), removal, landing, terms, due(), tries, any::<[bool; 2]>());
    let large = (state(), option::of(any::<i16>()), fields(), some(past(), 0..7), settings(), counters());
    (names, blobs, small, large).prop_map(
        |(
            (queue, other, numbers, id, ids),
            (bytes, more_bytes, payloads, reason),
            (cause, removal, landing, terms, due, tries, flags),
            (state, neg_priority, fields, past, settings, counters),
        )| Parts {
            queue,
            other,
            numbers,
            id,
            ids,
            bytes,
            more_bytes,
            payloads,
            cause,
            removal,
            landing,
            terms,
            state,
            neg_priority,
            due,
            fields,
            reason,
            past,
            tries,
            flags,
            settings,
            counters,
        },
    )
}

// ---- A broker that replays arbitrary events.

struct Deaf;

impl Body for Rc<[u8]> {
    fn len(&self) -> usize {
        <[u8]>::len(self)
    }

    fn is(&self, payload: &[u8]) -> Option<bool> {
        Some(**self == *payload)
    }

    fn pack(&self, _: Option<&Self>, _: &mut Vec<u8>) -> bool {
        false
    }

    fn unpack<'b>(_: Option<&Self>, _: &'b [u8]) -> Option<(Self, &'b [u8])> {
        None
    }
}

impl Recorder for Deaf {
    type Body = Rc<[u8]>;

    fn record(&mut self, _: &Event<'_>) {}

    fn new_body(&mut self, _: usize, payload: &[u8]) -> Rc<[u8]> {
        payload.into()
    }

    fn payload_hash(&self, _: &[u8]) -> u128 {
        0
    }

    fn release_body(&mut self, _: Rc<[u8]>) {}
}

/// Decodes and applies events up to the first refused one, as when a store is opened. Returns whether all were
/// accepted.
fn throw(mut bytes: &[u8], broker: &mut Broker<Rc<[u8]>>) -> bool {
    while let Ok((applied, rest)) = decode(bytes, |event| broker.replay(event, &mut Deaf)) {
        if applied.is_err() {
            return false;
        }
        bytes = rest;
    }
    true
}

proptest! {
    #[test]
    fn payloads_are_found_at_the_offset_that_encoding_returns(parts in parts()) {
        parts.events(&mut |event| {
            let mut bytes = b"before".to_vec();
            let at = encode_with(event, &mut bytes, checksum);
            let payloads: Vec<&[u8]> = match event {
                Event::Pushed { payloads, .. } => payloads.iter().collect(),
                Event::Task(task) => vec![task.payload],
                _ => Vec::new(),
            };
            assert_eq!(at.is_some(), !payloads.is_empty());
            let mut at = at.unwrap_or(0);
            for payload in payloads {
                let (len, rest) = read_number(&bytes[at..]).expect("its length");
                assert_eq!(len, payload.len() as u64);
                assert_eq!(rest[..4], checksum(payload).to_le_bytes());
                at += payload_head_len(payload.len());
                assert_eq!(&bytes[at..at + payload.len()], payload);
                at += payload.len();
            }
        });
    }

    #[test]
    fn every_event_decodes_to_itself(parts in parts()) {
        parts.events(&mut |event| {
            let mut bytes = bytes_of(event);
            let length = bytes.len();
            bytes.extend(b"rest");
            let read = decode(&bytes, |read| {
                assert_eq!(read, event);
                assert_eq!(bytes_of(read), &bytes[..length], "encoding the decoded event gives the same bytes");
            });
            assert_eq!(read, Ok(((), &b"rest"[..])), "{event:?}");
        });
    }

    #[test]
    fn every_event_cut_short_is_malformed(parts in parts()) {
        for bytes in parts.encoded() {
            for cut in 0..bytes.len() {
                let read = decode(&bytes[..cut], |event| format!("{event:?}"));
                prop_assert!(read.is_err(), "{cut} of {} bytes: {read:?}", bytes.len());
            }
        }
    }

    #[test]
    fn any_bytes_are_read_without_a_panic(bytes: Vec<u8>, tag in 0..30u8) {
        let mut tagged = vec![tag];
        tagged.extend(&bytes);
        for bytes in [bytes, tagged] {
            let _ = decode(&bytes, |event| bytes_of(event).len());
            throw(&bytes, &mut Broker::default());
        }
    }

    #[test]
    fn events_that_decode_are_applied_without_a_panic(all in some(parts(), 1..4), order in some(any::<prop::sample::Index>(), 1..60)) {
        let events: Vec<Vec<u8>> = all.iter().flat_map(Parts::encoded).collect();
        let mut broker = Broker::default();
        let made = |n| bytes_of(&Event::QueueMade { queue: QueueNo(n), name: &[n as u8] });
        throw(&[made(0), made(1), made(2)].concat(), &mut broker);
        for pick in order {
            let before = broker.clone();
            // A refused event may have been applied in part. A store would stop there; the test continues from before
            // it.
            if !throw(pick.get::<Vec<u8>>(&events), &mut broker) {
                broker = before;
            }
        }
        broker.refresh_all();
    }
}

#[test]
fn a_payload_of_a_megabyte_decodes_to_itself() {
    let (payload, name) = (vec![0; 1 << 20], vec![0xff; 1 << 20]);
    let fields = Fields { name: Some(NameRef::Bytes(&name)), ..Fields::default() };
    let payloads: [&[u8]; 2] = [&payload, b""];
    let first = TaskId::new(1, 1).unwrap();
    let event = Event::Pushed { queue: QueueNo(0), first, payloads: Payloads::Slices(&payloads), fields };
    let bytes = bytes_of(&event);
    assert_eq!(decode(&bytes, |read| *read == event), Ok((true, &[][..])));
}

#[test]
fn a_million_neighbours_are_a_few_bytes() {
    let first = TaskId::new(5, 1).unwrap();
    let ids: Vec<TaskId> = (0..1_000_000).filter_map(|n| first.nth(n)).collect();
    let event = Event::Finished { queue: QueueNo(0), ids: Ids::Slice(&ids) };
    let bytes = bytes_of(&event);
    assert!(bytes.len() < 64, "{} bytes", bytes.len());
    assert_eq!(decode(&bytes, |read| *read == event), Ok((true, &[][..])));
}

#[test]
fn allocations_are_not_based_on_claimed_lengths() {
    let claims = [
        // A push of 2^63 payloads, a name of 2^62 bytes, a run of ids into the next millisecond.
        "06 00 0100020000000000 ffffffffffffffff7f",
        "03 00 ffffffffffffffff3f 61",
        "09 00 01 ffff010000000000 01",
    ];
    for claim in claims {
        let bytes: Vec<u8> = claim.split(' ').flat_map(unhex).collect();
        assert!(decode(&bytes, |_| ()).is_err(), "{claim}");
    }
}

#[test]
fn optional_fields_are_skipped_and_others_are_refused() {
    let pushed = |tag: &str| {
        let bytes = format!("06 00 0100020000000000 01 01 3043d0c1 61 {tag} 02 0000 00");
        let bytes: Vec<u8> = bytes.split(' ').flat_map(unhex).collect();
        decode(&bytes, |event| matches!(event, Event::Pushed { fields, .. } if fields.is_plain()))
            .map(|read| read.0)
    };
    assert_eq!(pushed("85"), Ok(true));
    assert_eq!(pushed("0c"), Err(Malformed::Unknown(12)));
    assert_eq!(pushed("01"), Err(Malformed::Number), "a value that is longer than its field");
}

fn unhex(word: &str) -> Vec<u8> {
    let digit = |c: u8| (c as char).to_digit(16).expect("hex") as u8;
    word.as_bytes().chunks(2).map(|pair| digit(pair[0]) << 4 | digit(pair[1])).collect()
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect::<Vec<_>>().concat()
}

/// One example of each kind of event. A line here never changes; a new kind gets a new line.
const GOLDEN: &[&str] = &[
    "0101ac02",
    "0201",
    "0303056279746573",
    "0403",
    "0503",
    "0603010000d0ca9f17030203e9b2942a6f6e650000000000010680d095ffbc310301ff04046e616d650601050702fa01080290030905747261636500",
    "07030301000a000000000002fcff3f00efff4f003d1e0802e80702",
    "08030301000a000000000002fcff3f00efff4f00",
    "09030301000a000000000002fcff3f00efff4f00",
    "0a03010000d0ca9f1703f0a204",
    "0b030301000a000000000002fcff3f00efff4f000006020103776879",
    "0c030301000a000000000002fcff3f00efff4f00020103776879",
    "0d030301000a000000000002fcff3f00efff4f0003",
    "0e030301000a000000000002fcff3f00efff4f00",
    "0f030180d095ffbc31f0a204010000d0ca9f1703",
    "10030301000a000000000002fcff3f00efff4f00",
    "1103010000d0ca9f1703ac02",
    "1203",
    "1303",
    "1403ff07010203040506070464656164",
    "1505627974657301ac02",
    "1601",
    "170103",
    "180103",
    "1903010000d0ca9f170305929c6ed0627974657301ac020201020301023c047b1e5a0702e80702010680d095ffbc310301ff04046e616d650601050702fa0108029003090574726163650a037768790b05010203040300",
    "1a0562797465730100",
    "1b0301000a00000000000904030b0c0d03000103030463",
    "1c010000d0ca9f1703",
    "1d03040802",
    "1e0301",
    "1f03",
];

#[test]
fn the_encoding_of_events_is_unchanged() {
    let id = |ms, seq| TaskId::new(ms, seq).unwrap();
    let log = LogTime(1_700_000_000_000);
    let policy = LapsePolicy { to: Place::After(1_000), limit: Some(2), then: LapseEnd::Delete };
    let terms = Terms {
        deadline: Some(Deadline { at: LogTime(90), length_ms: 30 }),
        holder: Some(Holder::Worker(7)),
        lapse: Some(policy),
    };
    let parts = Parts {
        queue: QueueNo(3),
        other: QueueNo(300),
        numbers: [1, 300, 2, 70_000],
        id: id(1_700_000_000_000, 1),
        ids: vec![id(5, 1), id(5, 2), id(5, 3), id(9, 1), id(4, 9)],
        bytes: b"bytes".to_vec(),
        more_bytes: vec![0],
        payloads: vec![b"one".to_vec(), vec![]],
        cause: Cause::Lapsed,
        removal: Removal::Dropped,
        landing: Landing::Front { group: 6 },
        terms: LeaseTerms { length_ms: Some(30), holder: Some(Holder::Conn(ConnId(8))), lapse: Some(policy) },
        state: TaskState::Leased(Lease::new(LogTime(60), 4, terms)),
        neg_priority: None,
        due: Due::Wall(WallTime(log.0)),
        fields: OwnedFields {
            due: Some(Due::Log(log)),
            priority: -1,
            name: Some(Ok(b"name".to_vec())),
            tries_max: Some(5),
            backoff_ms: Some(250),
            expires: Some(400),
            trace: Some(b"trace".to_vec()),
        },
        reason: Some(b"why".to_vec()),
        past: vec![Past {
            delivery: 1,
            incarnation: 2,
            start: LogTime(3),
            end: LogTime(4),
            cause: Cause::Lost,
        }],
        tries: Tries { failed: 1, lapsed: 2, lost: 3 },
        flags: [true, false],
        settings: Settings {
            lease_ms: Some(1),
            tries: Some(2),
            backoff_ms: Some(3),
            ttl_ms: Some(4),
            expired: Expired::Dead,
            max_length: Some(5),
            max_bytes: Some(6),
            overflow: Overflow::DropOldest,
            max_leased: Some(7),
            dead_letter: Some(b"dead".as_slice().into()),
        },
        counters: Counters {
            last_id: id(5, 1),
            totals: Totals { pushed: 9, finished: 4, removed: 3 },
            seq: 11,
            front_group: 12,
            minor: 13,
            flood: Some(Flood { upto: Due::Log(LogTime(1)), major: -2, minor: 3, end: 4 }),
            paused: Some(LogTime(99)),
        },
    };
    let written: Vec<String> = parts.encoded().iter().map(|bytes| hex(bytes)).collect();
    assert_eq!(written, GOLDEN);
}

#[test]
fn a_ready_task_is_written_with_its_negated_priority() {
    let check = |priority, major, minor, golden: &str| {
        let task = FullTask {
            queue: QueueNo(3),
            id: TaskId::new(5, 1).unwrap(),
            payload: b"x",
            pushed: LogTime(1),
            state: TaskState::Ready(OrderKey { major, minor }),
            stray_neg_priority: None,
            incarnation: 0,
            deliveries: 0,
            tries: Tries::default(),
            cancelled: false,
            late_ack: false,
            fields: Fields { priority, ..Fields::default() },
            reason: None,
            past: &[],
        };
        assert_eq!(
            hex(&bytes_of(&Event::Task(&task))),
            ["190301000a000000000001935f3ca97801000000000000", golden].concat()
        );
    };
    check(9, -6, 4, "00110b0403010900");
    check(-128, 70_000, 0, "008002e0c5080003018000");
    check(0, i64::MIN, u64::MAX, "0000ffffffffffffffffff01ffffffffffffffffff0100");
}
