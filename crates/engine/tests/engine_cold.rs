//! Payloads that are not in memory: only the pops that need them wait, they are delivered in order and unchanged, and
//! the task of a damaged one is dead and reported, and delays no other.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod engine_support;

use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use engine_support::{ack, execute, pop, push};
use sureq_core::command::{Add, Block, Cancel, Pop, View, When};
use sureq_core::{Command, Refusal, Replies, Reply, TaskId};
use sureq_engine::log::Durability;
use sureq_engine::{Engine, Options};
use sureq_home_api::{Home as _, Payload, Ticket};
use sureq_testkit::manual_clock::ManualClock;
use sureq_testkit::valve::Valve;

/// A store with no payloads in memory.
struct Cold {
    valve: Valve,
    clock: Arc<ManualClock>,
    engine: Engine,
    ids: Vec<TaskId>,
}

const SEGMENT_BYTES: u64 = 16 << 10;
const LARGE_SEGMENT_BYTES: u64 = 1 << 20;

fn payload(n: usize) -> Vec<u8> {
    (0..600).map(|at| (n * 7 + at) as u8).collect()
}

fn open(valve: &Valve, clock: &Arc<ManualClock>) -> Engine {
    open_with(valve, clock, SEGMENT_BYTES)
}

fn open_with(valve: &Valve, clock: &Arc<ManualClock>, segment_bytes: u64) -> Engine {
    open_cached(valve, clock, segment_bytes, 0)
}

fn open_cached(valve: &Valve, clock: &Arc<ManualClock>, segment_bytes: u64, cache_bytes: usize) -> Engine {
    let options = Options {
        durability: Durability::Always,
        segment_bytes: Some(segment_bytes),
        cache_bytes,
        ..Options::default()
    };
    Engine::open_on(valve.shared(), Arc::clone(clock) as _, &options).unwrap()
}

impl Cold {
    /// A store with this many tasks.
    fn new(tasks: usize) -> Self {
        let (valve, clock) = (Valve::new(), Arc::new(ManualClock::default()));
        let engine = open(&valve, &clock);
        let ids = (0..tasks).flat_map(|n| push(&engine, &[&payload(n)])).collect();
        engine.close().unwrap();
        let engine = open(&valve, &clock);
        Self { valve, clock, engine, ids }
    }

    /// Begins a command that has to wait for the disk.
    fn begin(&self, command: &Command<'_>) -> Ticket {
        let mut replies = Replies::default();
        let executed = self.engine.submit(std::slice::from_ref(command), &mut replies);
        self.engine.commit();
        let ticket = executed.into_ticket().expect("it has to wait for the disk");
        assert!(!ticket.waits_for_tasks());
        ticket
    }

    fn execute(&self, commands: &[Command<'_>]) {
        let _ = execute(&self.engine, commands);
    }

    fn inspect(&self, view: View) -> Vec<TaskId> {
        let (replies, _) =
            execute(&self.engine, &[Command::Inspect { queue: b"q", view, start: 0, count: 1000 }]);
        replies.tasks.iter().map(|task| task.id).collect()
    }

    /// The place of a task's payload.
    fn place(&self, n: usize) -> (String, usize) {
        let payload = payload(n);
        let files = self.valve.disk.files();
        let mut found = files.iter().filter(|(name, _)| name.starts_with('0')).filter_map(|(name, bytes)| {
            let at = bytes.windows(payload.len()).position(|window| window == payload)?;
            Some((name.clone(), at))
        });
        found.next().expect("it is in the log")
    }
}

fn payloads(replies: &Replies<Payload>) -> Vec<Vec<u8>> {
    replies.tasks.iter().map(|task| task.body.as_ref().to_vec()).collect()
}

fn pop_of(count: u32) -> Command<'static> {
    Command::Pop(Pop::plain(&[b"q"], count))
}

#[test]
fn others_are_served_while_a_read_hangs() {
    let cold = Cold::new(40);
    cold.valve.hold_reads();
    let ticket = cold.begin(&pop_of(2));
    cold.valve.wait_until_read_is_held();
    let (replies, _) = execute(&cold.engine, &[Command::Push { queue: b"other", payloads: &[b"hot"] }]);
    assert_eq!(replies.ids.len(), 1);
    assert_eq!(cold.engine.inspect(|broker| broker.queue(b"other").unwrap().counts()), [1, 0, 0, 0]);
    cold.engine.check().unwrap();
    assert!(ticket.poll(&mut Context::from_waker(Waker::noop())).is_pending());
    cold.valve.release_reads();
    assert_eq!(payloads(&ticket.wait().replies), [payload(0), payload(1)]);
    assert_eq!(pop(&cold.engine, 100), (2..40).map(payload).collect::<Vec<_>>(), "all other tasks, in order");
}

#[test]
fn tasks_of_a_dropped_ticket_are_requeued_in_order() {
    let cold = Cold::new(40);
    cold.valve.hold_reads();
    let ticket = cold.begin(&pop_of(3));
    cold.valve.wait_until_read_is_held();
    drop(ticket);
    cold.valve.release_reads();
    assert_eq!(pop(&cold.engine, 100), (0..40).map(payload).collect::<Vec<_>>());
    cold.engine.check().unwrap();
}

#[test]
fn a_waiting_pop_gets_a_delayed_task_from_the_disk() {
    let cold = Cold::new(0);
    let late = payload(7);
    let add = Add { when: When::After(5_000), ..Add::plain(b"q", &late) };
    cold.execute(&[Command::Add(add)]);
    // Another task is written after it, so that it is not in the last frame, which is in memory.
    cold.execute(&[Command::Push { queue: b"other", payloads: &[&payload(1)] }]);
    let wait = Pop { block: Some(Block::Forever), ..Pop::plain(&[b"q"], 1) };
    let mut replies = Replies::default();
    let executed = cold.engine.submit(&[Command::Pop(wait)], &mut replies);
    let ticket = executed.into_ticket().unwrap();
    cold.valve.hold_reads();
    cold.clock.pass(6_000);
    cold.engine.tick();
    cold.valve.wait_until_read_is_held();
    assert!(matches!(ticket.poll(&mut Context::from_waker(Waker::noop())), Poll::Pending));
    cold.valve.release_reads();
    assert_eq!(payloads(&ticket.wait().replies), [late]);
}

#[test]
fn leased_tasks_are_inspected_and_recovered_from_the_disk() {
    let cold = Cold::new(30);
    pop(&cold.engine, 10);
    cold.engine.close().unwrap();
    let cold = Cold { engine: open(&cold.valve, &cold.clock), ..cold };
    let look = Command::Inspect { queue: b"q", view: View::Leased, start: 0, count: 100 };
    assert_eq!(payloads(&cold.begin(&look).wait().replies), (0..10).map(payload).collect::<Vec<_>>());
    let recover = Command::Recover { queue: b"q", count: 100, elapsed_ms: 0 };
    assert_eq!(payloads(&cold.begin(&recover).wait().replies), (0..10).map(payload).collect::<Vec<_>>());
}

/// All bytes of a read are in memory at once: a reply with many tasks must not read everything between them.
#[test]
fn scattered_payloads_are_read_without_the_gaps() {
    const TASKS: usize = 300;
    let (valve, clock) = (Valve::new(), Arc::new(ManualClock::default()));
    let engine = open_with(&valve, &clock, LARGE_SEGMENT_BYTES);
    let others: Vec<Vec<u8>> = (0..15).map(payload).collect();
    let others: Vec<&[u8]> = others.iter().map(Vec::as_slice).collect();
    for n in 0..TASKS {
        push(&engine, &[&payload(n)]);
        let _ = execute(&engine, &[Command::Push { queue: b"other", payloads: &others }]);
    }
    engine.close().unwrap();
    let engine = open_with(&valve, &clock, LARGE_SEGMENT_BYTES);
    let before = valve.bytes_loaded();
    assert_eq!(pop(&engine, TASKS as u32), (0..TASKS).map(payload).collect::<Vec<_>>());
    let (read, needed) = (valve.bytes_loaded() - before, TASKS * (payload(0).len() + 4));
    assert!((needed..needed + (100 << 10)).contains(&read), "{read} bytes for {needed}");
}

/// Only the first pop waits for the disk: the following payloads are read before they are needed, and no more than
/// fit in the cache, while other tasks are pushed.
#[test]
fn a_queue_that_is_being_drained_is_read_ahead_within_the_cache() {
    const TASKS: usize = 3000;
    const CACHE_BYTES: usize = 1 << 20;
    let (valve, clock) = (Valve::new(), Arc::new(ManualClock::default()));
    let engine = open_with(&valve, &clock, LARGE_SEGMENT_BYTES);
    let all: Vec<Vec<u8>> = (0..TASKS).map(payload).collect();
    for some in all.chunks(50) {
        push(&engine, &some.iter().map(Vec::as_slice).collect::<Vec<_>>());
    }
    let _ = execute(&engine, &[Command::Push { queue: b"other", payloads: &[b"this"] }]);
    engine.close().unwrap();
    let engine = open_cached(&valve, &clock, LARGE_SEGMENT_BYTES, CACHE_BYTES);
    let (mut waited, mut most) = (Vec::new(), 0);
    for (n, expected) in all.iter().enumerate() {
        let mut replies = Replies::default();
        let executed = engine.submit(&[pop_of(1)], &mut replies);
        engine.commit();
        if let Some(ticket) = executed.into_ticket() {
            waited.push(n);
            replies = ticket.wait().replies;
        }
        assert_eq!(payloads(&replies), [expected.as_slice()]);
        let late = [Command::Push { queue: b"late", payloads: &[expected] }];
        // A search is executed after all pending reads.
        let search = Command::Cancel { queue: b"other", which: Cancel::Payload(b"that") };
        let _ = execute(&engine, &late);
        assert_eq!(*cancelled(&execute(&engine, &[search]).0), Reply::Count(0));
        most = engine.status().cache_bytes.max(most);
    }
    assert_eq!(waited, [0], "only the first pop waits for the disk");
    let half = CACHE_BYTES as u64 / 2;
    assert!((half..=2 * half).contains(&most), "{most} bytes of a cache of {CACHE_BYTES} were used");
}

/// A segment that has become obsolete stays until a pending read from it has ended.
#[test]
fn a_segment_is_kept_until_pending_reads_have_ended() {
    let cold = Cold::new(60);
    let (file, _) = cold.place(0);
    cold.valve.hold_reads();
    let look = Command::Inspect { queue: b"q", view: View::Ready, start: 0, count: 1 };
    let ticket = cold.begin(&look);
    cold.valve.wait_until_read_is_held();
    let taken = cold.engine.status().checkpoints;
    cold.execute(&[Command::Drop { queues: &[b"q"] }]);
    let since = Instant::now();
    while cold.engine.status().checkpoints < taken + 1 {
        assert!(since.elapsed() < Duration::from_secs(20), "{:?}", cold.engine.status());
        cold.execute(&[Command::Push { queue: b"other", payloads: &[&payload(1)] }]);
        cold.execute(&[Command::Drop { queues: &[b"other"] }]);
    }
    let since = Instant::now();
    while since.elapsed() < Duration::from_millis(200) {
        assert!(cold.valve.disk.files().contains_key(&file), "{file} was removed while it was being read");
        std::thread::yield_now();
    }
    cold.valve.release_reads();
    assert_eq!(payloads(&ticket.wait().replies), [payload(0)]);
    let since = Instant::now();
    while cold.valve.disk.files().contains_key(&file) {
        assert!(since.elapsed() < Duration::from_secs(20), "{file} is never removed");
        std::thread::yield_now();
    }
}

/// A pop returns the other tasks. The task of a damaged payload is dead with a reason that names the place.
fn check_damage(damage: fn(&mut Vec<u8>, usize), is_alone: bool) {
    let cold = Cold::new(40);
    let (file, at) = cold.place(3);
    cold.valve.disk.edit(&file, |bytes| damage(bytes, at));
    let popped = pop(&cold.engine, 10);
    let look = Command::Inspect { queue: b"q", view: View::Dead, start: 0, count: 100 };
    let (dead, _) = execute(&cold.engine, std::slice::from_ref(&look));
    let shown = dead.tasks.iter().find(|task| task.id == cold.ids[3]).expect("it is dead");
    let reason = String::from_utf8(shown.more.as_ref().unwrap().reason.as_ref().unwrap().to_vec()).unwrap();
    assert!(reason.contains(&format!("{file} is damaged at offset {at}:")), "{reason}");
    assert_eq!(shown.body.as_ref(), b"", "there is no payload to show");
    assert!(cold.engine.failure().is_none(), "{:?}", cold.engine.failure());
    // Other tasks with damaged payloads die when they would be delivered.
    let all: Vec<Vec<u8>> = popped.into_iter().chain(pop(&cold.engine, 100)).collect();
    let (dead, _) = execute(&cold.engine, &[look]);
    let lost = dead.tasks.len();
    assert_eq!(cold.engine.status().unreadable_tasks, lost as u64);
    assert!(if is_alone { lost == 1 } else { lost > 1 }, "{lost}");
    let others: Vec<Vec<u8>> =
        (0..40).filter(|n| dead.tasks.iter().all(|task| task.id != cold.ids[*n])).map(payload).collect();
    assert_eq!(all.len(), others.len(), "all other tasks");
    assert!(all == others, "the other tasks, in order");
    if is_alone {
        let rest: Vec<TaskId> = cold.ids.iter().copied().filter(|id| *id != cold.ids[3]).collect();
        assert_eq!(ack(&cold.engine, &rest), 39);
    }
    cold.engine.check().unwrap();
}

#[test]
fn a_damaged_payload_is_reported_by_file_and_offset_and_its_task_dies() {
    check_damage(|bytes, at| bytes[at + 100] ^= 1, true);
    check_damage(|bytes, at| bytes[at - 2] ^= 1, true);
}

#[test]
fn a_file_that_became_shorter_is_reported() {
    check_damage(|bytes, at| bytes.truncate(at + 10), false);
    check_damage(|bytes, at| bytes.truncate(at - 300), false);
}

/// Tasks are copied out of other segments although a damaged one has to stay.
#[test]
fn a_damaged_segment_does_not_prevent_the_removal_of_others() {
    let cold = Cold::new(200);
    let (file, at) = cold.place(3);
    cold.valve.disk.edit(&file, |bytes| bytes[at + 100] ^= 1);
    let (other, _) = cold.place(120);
    // One task is left in each segment, and the damaged one has the fewest live bytes.
    let ids: Vec<TaskId> =
        cold.ids.iter().enumerate().filter(|(n, _)| n % 15 != 0).map(|(_, id)| *id).collect();
    for chunk in ids.chunks(10) {
        let texts: Vec<String> = chunk.iter().map(ToString::to_string).collect();
        let list: Vec<&[u8]> = texts.iter().map(String::as_bytes).collect();
        let tasks = sureq_core::command::TaskRefs { list: &list, form: sureq_core::command::IdForm::Long };
        cold.execute(&[Command::Delete { queue: b"q", tasks }]);
    }
    let since = Instant::now();
    while cold.valve.disk.files().contains_key(&other) {
        assert!(since.elapsed() < Duration::from_secs(20), "{other} is kept: {:?}", cold.engine.status());
        std::thread::yield_now();
    }
    assert!(cold.valve.disk.files().contains_key(&file));
    assert_eq!(cold.inspect(View::Ready).len(), 14);
    cold.engine.check().unwrap();
}

fn cancel_of(payload: &[u8]) -> Command<'_> {
    Command::Cancel { queue: b"q", which: Cancel::Payload(payload) }
}

fn cancelled(replies: &Replies<Payload>) -> &Reply {
    replies.list.last().expect("there is an answer")
}

/// More tasks than one step of the search covers: on disk and in memory, ready and leased, and others with payloads
/// of the same length.
#[test]
fn all_tasks_with_a_payload_are_cancelled_and_no_others() {
    let cold = Cold::new(0);
    let kinds: [&[u8]; 4] = [b"this one", b"that one", b"this", b""];
    for round in 0..1500_usize {
        let payloads: Vec<&[u8]> = (0..4).map(|n| kinds[(round + n) % 4]).collect();
        cold.execute(&[Command::Push { queue: b"q", payloads: &payloads }]);
    }
    cold.engine.close().unwrap();
    let engine = open(&cold.valve, &cold.clock);
    let _ = execute(&engine, &[pop_of(40)]);
    push(&engine, &[b"this one", b"that one"]);
    let add = Add { when: When::After(1000), ..Add::plain(b"q", b"this one") };
    let _ = execute(&engine, &[Command::Add(add)]);
    let (replies, _) = execute(&engine, &[cancel_of(b"this one")]);
    assert_eq!(*cancelled(&replies), Reply::Count(1502));
    let (replies, _) = execute(&engine, &[cancel_of(b"this one"), cancel_of(b"nothing of it")]);
    assert_eq!(replies.list, [Reply::Count(0), Reply::Count(0)]);
    let left = pop(&engine, 10_000);
    assert_eq!(left.len(), 4501 - 30, "all but the cancelled and the leased tasks");
    assert!(left.iter().all(|payload| payload != b"this one"));
}

#[test]
fn a_search_cancels_tasks_that_existed_when_it_began_and_ends_with_its_caller() {
    let cold = Cold::new(40);
    let same = payload(3);
    cold.valve.hold_reads();
    let ticket = cold.begin(&cancel_of(&same));
    cold.valve.wait_until_read_is_held();
    let later = push(&cold.engine, &[&same])[0];
    cold.valve.release_reads();
    assert_eq!(*cancelled(&ticket.wait().replies), Reply::Count(1));
    let ready = cold.inspect(View::Ready);
    assert!(!ready.contains(&cold.ids[3]) && ready.contains(&later), "{ready:?}");

    cold.valve.hold_reads();
    let abandoned = cold.begin(&cancel_of(&payload(5)));
    let gone = cold.begin(&cancel_of(&payload(7)));
    drop((abandoned, gone));
    cold.valve.release_reads();
    let (replies, _) = execute(&cold.engine, &[cancel_of(&payload(9))]);
    assert_eq!(*cancelled(&replies), Reply::Count(1), "later searches are answered");
}

#[test]
fn a_search_is_refused_if_a_payload_is_unreadable_or_the_store_closes() {
    let cold = Cold::new(40);
    let (file, at) = cold.place(11);
    cold.valve.disk.edit(&file, |bytes| bytes[at + 5] ^= 1);
    let (replies, _) = execute(&cold.engine, &[cancel_of(&payload(11))]);
    let refused = cancelled(&replies);
    assert!(matches!(refused, Reply::Refused(Refusal::Damaged { .. })), "{refused:?}");

    cold.valve.hold_reads();
    let ticket = cold.begin(&cancel_of(&payload(13)));
    cold.valve.wait_until_read_is_held();
    let waiting = cold.begin(&cancel_of(&payload(15)));
    std::thread::scope(|scope| {
        let closing = scope.spawn(|| cold.engine.close());
        while !matches!(execute(&cold.engine, &[Command::Size]).0.list[..], [Reply::Refused(Refusal::Closed)])
        {
            std::thread::yield_now();
        }
        cold.valve.release_reads();
        closing.join().unwrap().unwrap();
    });
    for ticket in [ticket, waiting] {
        assert_eq!(*cancelled(&ticket.wait().replies), Reply::Refused(Refusal::Closed));
    }
}
