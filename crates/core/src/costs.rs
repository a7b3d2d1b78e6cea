//! The cost of commands in steps, with a thousand of everything and with very many.
//!
//! Rule 7: no command costs more than O(log n) plus its result. The bound is the same for both sizes, so that a
//! linear scan exceeds it by far.

use alloc::format;
use alloc::string::{String, ToString};
use alloc::vec::Vec;

use crate::command::{
    AckScope, Add, Cancel, Command, IdForm, LeaseAsk, Pop, Return, TaskRef, TaskRefs, View, When, Worker,
    WorkerRef,
};
use crate::meter::steps_of;
use crate::settings::{Change, Changes, Place};
use crate::task::Body;
use crate::{
    Broker, Bulk, Event, LogTime, Now, Progress, Recorder, Replies, Reply, TaskId, WallTime, limits,
};

/// The maximum steps of a command. Blocks of 256 entries are skipped one by one, so a million entries cost a few
/// thousand steps, some microseconds.
const QUIET_STEPS: u64 = 12_000;

/// The maximum steps of a command while more than a slice is due: it also moves up to a slice of each kind.
const FLOOD_STEPS: u64 = QUIET_STEPS + 40 * limits::SLICE_TASKS as u64;

const MANY: usize = 1_000_000;

#[derive(Clone, Copy, Debug)]
struct Nothing;

impl Body for Nothing {
    fn len(&self) -> usize {
        1
    }

    fn is(&self, _: &[u8]) -> Option<bool> {
        Some(false)
    }

    fn pack(&self, _: Option<&Self>, _: &mut Vec<u8>) -> bool {
        true
    }

    fn unpack<'b>(_: Option<&Self>, bytes: &'b [u8]) -> Option<(Self, &'b [u8])> {
        Some((Self, bytes))
    }
}

struct Forgetful;

impl Recorder for Forgetful {
    type Body = Nothing;

    fn record(&mut self, _: &Event<'_>) {}

    fn new_body(&mut self, _: usize, _: &[u8]) -> Nothing {
        Nothing
    }

    fn payload_hash(&self, _: &[u8]) -> u128 {
        0
    }

    fn release_body(&mut self, _: Nothing) {}
}

struct Home {
    broker: Broker<Nothing>,
    now: Now,
    /// The ids and receipts of the last pop.
    taken: Vec<String>,
}

impl Home {
    fn new() -> Self {
        let now = Now { log: LogTime(1_000_000), wall: WallTime(1_000_000) };
        let mut broker = Broker::default();
        broker.start(1, now, &mut Forgetful);
        Self { broker, now, taken: Vec::new() }
    }

    /// Executes a command. Returns its steps and its reply.
    fn measure(&mut self, command: &Command<'_>) -> (u64, Reply, Replies<Nothing>) {
        let mut out = Replies::default();
        let (steps, ()) = steps_of(|| self.broker.execute(self.now, command, &mut Forgetful, &mut out));
        let reply = out.list.pop().expect("one command, one reply");
        assert!(!matches!(reply, Reply::Refused(_)), "{command:?}: {reply:?}");
        (steps, reply, out)
    }

    fn run(&mut self, command: &Command<'_>) -> Reply {
        let (_, reply, out) = self.measure(command);
        if let Reply::Tasks(_) = reply {
            self.taken = out.tasks.iter().map(|task| task.receipt().to_string()).collect();
        }
        reply
    }

    /// Executes commands, each of which must stay below the bound.
    fn bound(&mut self, steps_max: u64, what: &str, commands: &[Command<'_>]) {
        for command in commands {
            let (steps, ..) = self.measure(command);
            assert!(steps <= steps_max, "{what}: {steps} steps for {command:?}");
        }
    }

    /// Executes a command that may take slices, each of which must stay below the bound. Returns the number of
    /// slices.
    fn bound_slices(&mut self, steps_max: u64, what: &str, command: &Command<'_>) -> usize {
        self.slices_of(steps_max, what, command).0
    }

    /// The same, with the replies.
    fn slices_of(&mut self, steps_max: u64, what: &str, command: &Command<'_>) -> (usize, Replies<Nothing>) {
        let (mut bulk, mut out) = (Bulk::default(), Replies::default());
        for slice in 1.. {
            let (steps, progress) = steps_of(|| {
                self.broker.execute_slice(self.now, command, &mut bulk, &mut Forgetful, &mut out)
            });
            assert!(steps <= steps_max, "{what}: {steps} steps for slice {slice} of {command:?}");
            if progress == Progress::Done {
                assert!(!matches!(out.list[..], [Reply::Refused(_)]), "{command:?}: {:?}", out.list);
                return (slice, out);
            }
        }
        unreachable!("a command ends")
    }

    /// Ticks until nothing is due, each tick within the bound.
    fn bound_ticks(&mut self, steps_max: u64, what: &str) {
        while self.broker.next_deadline().is_due(self.now) {
            let (steps, ()) = steps_of(|| self.broker.tick(self.now, &mut Forgetful));
            assert!(steps <= steps_max, "{what}: {steps} steps for a tick");
        }
    }

    fn start_worker(&mut self, name: &'static [u8]) -> WorkerRef<'static> {
        match self.run(&Command::Worker(Worker::Start { name, ttl_ms: 1_000 })) {
            Reply::Started(incarnation) => WorkerRef { name, incarnation },
            other => panic!("{other:?}"),
        }
    }

    /// Lets the worker lease one task in each of `queues` queues, and work on them.
    fn hold(&mut self, worker: WorkerRef<'_>, queues: usize) {
        for n in 0..queues {
            let queue = format!("queue {n}");
            self.run(&Command::Push { queue: queue.as_bytes(), payloads: &[b"x"] });
            self.pop(queue.as_bytes(), 1, LeaseAsk { worker: Some(worker), ..LeaseAsk::NONE });
            self.run(&Command::Worker(Worker::Work(worker, queue.as_bytes())));
        }
    }

    fn push(&mut self, queue: &[u8], count: usize) {
        let payloads = [&b"x"[..]; 1_000];
        for _ in 0..count / payloads.len() {
            self.run(&Command::Push { queue, payloads: &payloads });
        }
    }

    fn pop(&mut self, queue: &[u8], count: usize, lease: LeaseAsk<'_>) {
        self.run(&Command::Pop(Pop { lease, ..Pop::plain(&[queue], count as u32) }));
        assert_eq!(self.taken.len(), count, "delivered");
    }

    fn config(&mut self, changes: &[Change<'_>]) {
        self.run(&Command::Config { queue: b"q", changes: Changes::List(changes) });
    }

    fn bury(&mut self, queue: &[u8]) {
        let taken = core::mem::take(&mut self.taken);
        let list: Vec<&[u8]> = taken.iter().map(String::as_bytes).collect();
        self.run(&Command::Bury { queue, tasks: TaskRefs { list: &list, form: IdForm::Long } });
    }

    fn pass(&mut self, ms: u64) {
        (self.now.log.0, self.now.wall.0) = (self.now.log.0 + ms, self.now.wall.0 + ms);
    }
}

const fn task(bytes: &[u8]) -> TaskRef<'_> {
    TaskRef { bytes, form: IdForm::Long }
}

/// Commands that read a queue, at its ends and in its middle.
fn looks(count: i64) -> Vec<Command<'static>> {
    let mut looks = Vec::from([
        Command::Info { queue: b"q" },
        Command::Exists { queues: &[b"q"] },
        Command::Size,
        Command::Queues { pattern: None, cursor: 0, count: 10 },
        Command::Config { queue: b"q", changes: Changes::List(&[]) },
        Command::Worker(Worker::List),
        Command::Explain { queue: b"q", task: task(b"1-1") },
    ]);
    for view in [View::Ready, View::Leased, View::Delayed, View::Dead] {
        for start in [0, -1, count / 2, count / 3, 1 - count] {
            looks.push(Command::Inspect { queue: b"q", view, start, count: 1 });
        }
    }
    looks
}

/// Commands that change one or two tasks.
fn changes() -> Vec<Command<'static>> {
    let add = Add::plain(b"q", b"x");
    let none = TaskRefs { list: &[b"1-1"], form: IdForm::Long };
    Vec::from([
        Command::Push { queue: b"q", payloads: &[b"x"] },
        Command::Add(Add { name: Some(crate::command::NameArg::Bytes(b"n")), ..add }),
        Command::Add(Add { priority: 7, ..add }),
        Command::Add(Add { when: When::After(5), ..add }),
        Command::Add(Add { when: When::At(WallTime(1 << 40)), ..add }),
        Command::Add(Add { ttl_ms: Some(5), ..add }),
        Command::Pop(Pop::plain(&[b"q"], 1)),
        Command::Pop(Pop::plain(&[b"q"], 10)),
        Command::Pop(Pop { meta: true, ..Pop::plain(&[b"other", b"q"], 2) }),
        Command::Ack { queue: b"q", tasks: none, scope: AckScope::LeasedOrLapsed },
        Command::Extend { queue: b"q", task: task(b"1-1"), ms: 5 },
        Command::Return(Return {
            queue: b"q",
            task: task(b"1-1"),
            to: Some(Place::Front),
            failed: None,
            is_last: false,
        }),
        Command::Recover { queue: b"q", count: 1, elapsed_ms: 0 },
        Command::Recover { queue: b"q", count: 1, elapsed_ms: 1 << 40 },
        Command::Cancel { queue: b"q", which: Cancel::Ids(none) },
        Command::Cancel { queue: b"q", which: Cancel::Names(&[b"n"]) },
        Command::Bury { queue: b"q", tasks: none },
        Command::Revive { queue: b"q", tasks: Some(none) },
        Command::Delete { queue: b"q", tasks: none },
        Command::Pause { queue: b"q" },
        Command::Resume { queue: b"q" },
        Command::Config { queue: b"q", changes: Changes::List(&[Change::Tries(7)]) },
    ])
}

/// Checks that reads and changes stay within the bound in a home of `count` tasks that `make` creates, with
/// everything that is due after `pass`.
fn check(what: &str, steps_max: u64, make: impl Fn(&mut Home, usize)) {
    for count in [1_000, MANY] {
        let mut home = Home::new();
        make(&mut home, count);
        let what = format!("{count} {what}");
        home.bound(steps_max, &what, &looks(count.cast_signed() as i64));
        home.bound(steps_max, &what, &changes());
    }
}

/// A push of many tasks is not sliced: its cost per task is bounded, whatever the queue holds and has to drop.
#[test]
fn the_largest_push_is_linear_in_its_tasks() {
    const EACH: u64 = 8;
    let payloads = alloc::vec![&b"x"[..]; limits::PUSH_TASKS_MAX];
    let drops = [Change::MaxLength(MANY as u64 / 2), Change::Overflow(crate::settings::Overflow::DropOldest)];
    for (settings, before) in
        [(&[][..], 0), (&[], MANY), (&[Change::TtlMs(1 << 40)], MANY / 10), (&drops, MANY)]
    {
        let mut home = Home::new();
        if let [_, ..] = settings {
            home.config(settings);
        }
        home.push(b"q", before);
        for count in [limits::PUSH_TASKS_MAX / 10, limits::PUSH_TASKS_MAX] {
            let push = Command::Push { queue: b"q", payloads: &payloads[..count] };
            let what = format!("{count} payloads behind {before} tasks with {settings:?}");
            home.bound(FLOOD_STEPS / 10 + EACH * count as u64, &what, &[push]);
        }
    }
}

#[test]
fn with_many_ready_tasks() {
    check("ready", QUIET_STEPS, |home, count| home.push(b"q", count));
}

#[test]
fn with_many_ready_tasks_that_have_records() {
    check("ready, with priorities and without", QUIET_STEPS, |home, count| {
        for n in 0..count {
            home.run(&Command::Add(Add { priority: (n % 3) as i8, ..Add::plain(b"q", b"x") }));
        }
    });
}

#[test]
fn with_many_delayed_tasks() {
    check("delayed", QUIET_STEPS, |home, count| {
        for n in 0..count as u64 {
            let ms = 1_000 + n * 7_919 % count as u64;
            let when = if n % 2 == 0 { When::After(ms) } else { When::At(WallTime(2_000_000 + ms)) };
            home.run(&Command::Add(Add { when, ..Add::plain(b"q", b"x") }));
        }
    });
}

#[test]
fn with_many_leased_tasks() {
    check("leased", QUIET_STEPS, |home, count| {
        home.push(b"q", 2 * count);
        home.pop(b"q", count, LeaseAsk { ms: Some(1_000_000), ..LeaseAsk::NONE });
        home.pop(b"q", 10, LeaseAsk::NONE);
    });
}

#[test]
fn with_many_dead_tasks() {
    check("dead", QUIET_STEPS, |home, count| {
        home.push(b"q", count);
        home.pop(b"q", count, LeaseAsk::NONE);
        home.bury(b"q");
        home.push(b"q", 1_000);
    });
}

#[test]
fn with_many_expired_tasks_at_the_head() {
    check("expired at the head", FLOOD_STEPS, |home, count| {
        home.config(&[Change::TtlMs(1_000)]);
        home.push(b"q", count);
        home.config(&[Change::TtlMs(0)]);
        home.push(b"q", 1_000);
        home.pass(2_000);
    });
}

#[test]
fn with_many_expired_tasks_and_nothing_else() {
    check("expired", FLOOD_STEPS, |home, count| {
        home.config(&[Change::TtlMs(1_000)]);
        home.push(b"q", count);
        home.pass(2_000);
        let pop = Command::Pop(Pop::plain(&[b"q"], 1 << 20));
        home.bound(FLOOD_STEPS, "a pop of all", &[pop]);
    });
}

#[test]
fn with_many_leases_that_lapse_for_the_last_time() {
    check("lapsed", FLOOD_STEPS, |home, count| {
        home.config(&[Change::Tries(1)]);
        home.push(b"q", count);
        home.pop(b"q", count, LeaseAsk { ms: Some(1_000), ..LeaseAsk::NONE });
        home.pass(2_000);
        let pop = Command::Pop(Pop::plain(&[b"q"], 1 << 20));
        home.bound(FLOOD_STEPS, "a pop of all", &[pop]);
    });
}

#[test]
fn with_many_queues_and_workers() {
    for count in [1_000, MANY / 5] {
        let mut home = Home::new();
        let Reply::Started(incarnation) =
            home.run(&Command::Worker(Worker::Start { name: b"w", ttl_ms: 1 << 40 }))
        else {
            panic!("a start returns the incarnation")
        };
        let worker = WorkerRef { name: b"w", incarnation };
        for n in 0..count {
            let queue = format!("queue {n}");
            home.run(&Command::Push { queue: queue.as_bytes(), payloads: &[b"x", b"y"] });
            home.pop(queue.as_bytes(), 1, LeaseAsk { worker: Some(worker), ..LeaseAsk::NONE });
            let receipt = home.taken[0].clone();
            let tasks = TaskRefs { list: &[receipt.as_bytes()], form: IdForm::Long };
            home.run(&Command::Ack { queue: queue.as_bytes(), tasks, scope: AckScope::Leased });
        }
        let what = format!("{count} queues that were once popped");
        home.bound(
            QUIET_STEPS,
            &what,
            &[Command::Worker(Worker::Beat(worker)), Command::Worker(Worker::List)],
        );
        home.bound(QUIET_STEPS, &what, &looks(10));
        home.bound(QUIET_STEPS, &what, &changes());
        home.bound(QUIET_STEPS, &what, &[Command::Worker(Worker::Stop(worker))]);
    }
}

/// Many tasks with records in each state, next to some that are packed.
fn fill_with_records(home: &mut Home, count: usize) {
    home.push(b"q", count);
    home.pop(b"q", count, LeaseAsk::NONE);
    home.bury(b"q");
    home.push(b"q", count);
    home.pop(b"q", count, LeaseAsk { ms: Some(1_000_000), ..LeaseAsk::NONE });
    home.push(b"q", 2_000);
    for n in 0..count {
        let when = if n % 2 == 0 { When::After(1_000) } else { When::At(WallTime(9_000_000)) };
        let delayed = Add { when, ttl_ms: (n % 3 == 0).then_some(1 << 40), ..Add::plain(b"q", b"x") };
        home.run(&Command::Add(delayed));
        home.run(&Command::Add(Add { priority: (n % 3) as i8, ..Add::plain(b"q", b"x") }));
    }
}

#[test]
fn a_purge_of_each_state_among_very_many_records() {
    for state in [None, Some(View::Ready), Some(View::Delayed), Some(View::Dead)] {
        let mut home = Home::new();
        let count = MANY / 5;
        fill_with_records(&mut home, count);
        let what = format!("{count} in each state");
        let slices = home.bound_slices(FLOOD_STEPS, &what, &Command::Purge { queue: b"q", state });
        assert!(slices > 50, "{state:?}: {slices} slices");
        home.bound_ticks(FLOOD_STEPS, &what);
    }
}

#[test]
fn a_second_revival_of_all() {
    let mut home = Home::new();
    let count = MANY / 5;
    fill_with_records(&mut home, count);
    let revive = Command::Revive { queue: b"q", tasks: None };
    home.bound_slices(FLOOD_STEPS, "a first revival", &revive);
    home.pop(b"q", count / 2, LeaseAsk::NONE);
    home.bury(b"q");
    let slices = home.bound_slices(FLOOD_STEPS, "a second revival", &revive);
    assert!(slices > 50, "{slices} slices");
    home.bound_ticks(FLOOD_STEPS, "two revivals");
}

#[test]
fn a_worker_that_holds_tasks_of_very_many_queues() {
    type End = fn(WorkerRef<'static>) -> Worker<'static>;
    let ends: [End; 3] = [
        |worker| Worker::Stop(worker),
        |worker| Worker::Fail { name: worker.name },
        |worker| Worker::Start { name: worker.name, ttl_ms: 1_000 },
    ];
    for end in ends {
        let mut home = Home::new();
        let (worker, idle) = (home.start_worker(b"w"), home.start_worker(b"idle"));
        home.hold(worker, MANY / 10);
        let what = "a task in each of many queues";
        home.bound(
            QUIET_STEPS,
            what,
            &[Command::Worker(Worker::Beat(worker)), Command::Worker(Worker::Beat(idle))],
        );
        let slices = home.bound_slices(FLOOD_STEPS, what, &Command::Worker(end(worker)));
        assert!(slices > 100, "{slices} slices");
        assert_eq!(home.broker.queue(b"queue 7").map(crate::Queue::counts), Some([1, 0, 0, 0]));
    }
    let mut home = Home::new();
    let worker = home.start_worker(b"w");
    home.hold(worker, MANY / 10);
    home.pass(2_000);
    home.bound(FLOOD_STEPS, "its time to live is over", &changes());
    home.bound_ticks(FLOOD_STEPS, "its time to live is over");
    assert_eq!(home.broker.queue(b"queue 7").map(crate::Queue::counts), Some([1, 0, 0, 0]));
}

/// Queues with `count` expired tasks in each.
fn fill_with_expired(home: &mut Home, queues: usize, count: usize, changes: &[Change<'_>]) -> Vec<String> {
    let names: Vec<String> = (0..queues).map(|n| format!("queue {n}")).collect();
    for name in names.iter().map(String::as_bytes) {
        home.run(&Command::Config { queue: name, changes: Changes::List(changes) });
        home.run(&Command::Config { queue: name, changes: Changes::List(&[Change::TtlMs(2_000)]) });
        home.push(name, count);
        home.run(&Command::Config { queue: name, changes: Changes::List(&[Change::TtlMs(0)]) });
    }
    home.pass(3_000);
    names
}

#[test]
fn a_pop_of_very_many_queues_with_expired_tasks() {
    let mut home = Home::new();
    let names = fill_with_expired(&mut home, limits::POP_QUEUES_MAX, 2_000, &[]);
    for n in [500, limits::POP_QUEUES_MAX - 1] {
        home.run(&Command::Add(Add { ttl_ms: Some(1 << 40), ..Add::plain(names[n].as_bytes(), b"x") }));
    }
    let queues: Vec<&[u8]> = names.iter().map(String::as_bytes).collect();
    let pop = Command::Pop(Pop::plain(&queues, 1 << 20));
    let (slices, out) = home.slices_of(FLOOD_STEPS, "2,000 expired in each queue", &pop);
    assert!(slices > 400, "{slices} slices");
    assert_eq!(out.tasks.iter().map(|task| task.queue).collect::<Vec<_>>(), [500, 1_023]);
    assert_eq!(out.list, [Reply::Tasks(crate::reply::Span::new(0, 2))]);
}

#[test]
fn a_pop_of_very_many_queues_whose_tasks_expire_into_another() {
    let mut home = Home::new();
    let changes = [Change::Expired(crate::settings::Expired::Dead), Change::DeadLetter(b"grave")];
    let names = fill_with_expired(&mut home, limits::POP_QUEUES_MAX, 1_000, &changes);
    let mut queues: Vec<&[u8]> = names.iter().map(String::as_bytes).collect();
    queues[limits::POP_QUEUES_MAX - 1] = b"grave";
    let pop = Command::Pop(Pop::plain(&queues, 10));
    let (slices, out) = home.slices_of(FLOOD_STEPS, "1,000 expired in each queue", &pop);
    assert!(slices > 400, "{slices} slices");
    assert_eq!(out.tasks.len(), 10);
}

#[test]
fn a_worker_with_tasks_in_very_many_queues_with_expired_tasks() {
    let mut home = Home::new();
    let start = Command::Worker(Worker::Start { name: b"w", ttl_ms: 1 << 40 });
    let Reply::Started(incarnation) = home.run(&start) else { panic!("a start answers the incarnation") };
    let (stays, lost) = (WorkerRef { name: b"w", incarnation }, home.start_worker(b"lost"));
    home.hold(stays, 200);
    home.hold(lost, 200);
    fill_with_expired(&mut home, 200, 2_000, &[]);
    let slices = home.bound_slices(FLOOD_STEPS, "2,000 expired", &Command::Worker(Worker::Stop(stays)));
    assert!(slices > 100, "{slices} slices");
    home.bound_ticks(FLOOD_STEPS, "2,000 expired");
    assert_eq!(home.broker.queue(b"queue 7").map(crate::Queue::counts), Some([2, 0, 0, 0]));
}

#[test]
fn ticks_of_many_queues_with_a_slice_of_expired_tasks_each() {
    let mut home = Home::new();
    fill_with_expired(&mut home, 40, 1_000, &[]);
    home.bound_ticks(FLOOD_STEPS, "1,000 expired in each queue");
}

#[test]
fn work_that_is_under_way_is_finished_without_anything_else_that_is_due() {
    let mut home = Home::new();
    let start = Command::Worker(Worker::Start { name: b"w", ttl_ms: 1 << 40 });
    let Reply::Started(incarnation) = home.run(&start) else { panic!("a start answers the incarnation") };
    let worker = WorkerRef { name: b"w", incarnation };
    home.push(b"q", 3_000);
    home.pop(b"q", 3_000, LeaseAsk { worker: Some(worker), ..LeaseAsk::NONE });
    home.config(&[Change::TtlMs(1_000)]);
    home.push(b"q", 5_000);
    home.run(&Command::Worker(Worker::Stop(worker)));
    let counts = |home: &Home| home.broker.queue(b"q").map(crate::Queue::counts);
    assert_eq!(counts(&home), Some([6_000, 0, 2_000, 0]), "the end of the worker is announced");
    home.pass(2_000);
    home.broker.settle_under_way(home.now, &mut Forgetful);
    assert_eq!(counts(&home), Some([7_000, 0, 1_000, 0]), "no task has expired");
}

#[test]
fn a_drop_of_many_queues_with_many_tasks() {
    let mut home = Home::new();
    let names: Vec<String> = (0..limits::SLICE_QUEUES).map(|n| format!("queue {n}")).collect();
    for name in &names {
        home.push(name.as_bytes(), limits::SLICE_TASKS);
    }
    let queues: Vec<&[u8]> = names.iter().map(String::as_bytes).collect();
    home.bound(FLOOD_STEPS, "a drop", &[Command::Drop { queues: &queues }]);
    assert!(home.broker.is_unfinished(), "most payloads are released later");
    home.bound_ticks(FLOOD_STEPS, "after a drop");
    assert!(!home.broker.is_unfinished());
}

#[test]
fn a_drop_of_a_queue_that_once_had_very_many_records() {
    let mut home = Home::new();
    home.push(b"q", MANY / 10);
    home.pop(b"q", MANY / 10, LeaseAsk::NONE);
    let taken = core::mem::take(&mut home.taken);
    let list: Vec<&[u8]> = taken.iter().map(String::as_bytes).collect();
    let tasks = TaskRefs { list: &list[..list.len() - 1], form: IdForm::Long };
    home.run(&Command::Ack { queue: b"q", tasks, scope: AckScope::Leased });
    home.bound(QUIET_STEPS, "a drop", &[Command::Drop { queues: &[b"q"] }]);
    assert!(home.broker.is_unfinished(), "the last record lies behind very many free slots");
    home.bound_ticks(QUIET_STEPS, "after a drop");
    assert!(!home.broker.is_unfinished());
}

#[test]
fn a_worker_whose_tasks_of_very_many_queues_are_cancelled() {
    let mut home = Home::new();
    let worker = home.start_worker(b"w");
    for n in 0..MANY / 10 {
        let queue = format!("queue {n}");
        let queue = queue.as_bytes();
        home.run(&Command::Push { queue, payloads: &[b"x"] });
        home.pop(queue, 1, LeaseAsk { worker: Some(worker), ..LeaseAsk::NONE });
        let taken = home.taken[0].clone();
        let tasks = TaskRefs { list: &[taken.as_bytes()], form: IdForm::Long };
        home.run(&Command::Cancel { queue, which: Cancel::Ids(tasks) });
    }
    let what = "a cancelled task in each of many queues";
    let (slices, out) = home.slices_of(FLOOD_STEPS, what, &Command::Worker(Worker::List));
    assert!(slices >= 10, "{slices} slices");
    assert_eq!(out.workers.iter().map(|row| row.leased).collect::<Vec<_>>(), [MANY as u64 / 10]);
    let slices = home.bound_slices(FLOOD_STEPS, what, &Command::Worker(Worker::Stop(worker)));
    assert!(slices > 100, "{slices} slices");
}

#[test]
fn an_image_of_very_many_queues_that_have_changed() {
    let mut home = Home::new();
    for n in 0..MANY / 10 {
        home.run(&Command::Push { queue: format!("queue {n}").as_bytes(), payloads: &[b"x"] });
    }
    let (steps, ()) = steps_of(|| home.broker.begin_image());
    assert!(steps <= QUIET_STEPS, "{steps} steps to begin");
    let mut slices = 0;
    loop {
        let (steps, more) = steps_of(|| home.broker.image_some(500));
        assert!(steps <= QUIET_STEPS, "{steps} steps");
        home.bound(QUIET_STEPS, "while an image is taken", &changes());
        slices += 1;
        if !more {
            break;
        }
    }
    assert_eq!(home.broker.end_image().sorted().queues.len(), MANY / 10);
    assert_eq!(slices, MANY / 10 / 500);
}

#[test]
fn a_limit_that_was_lowered_is_reached_in_slices() {
    let mut home = Home::new();
    home.push(b"q", MANY);
    home.config(&[Change::MaxLength(10), Change::Overflow(crate::settings::Overflow::DropOldest)]);
    home.bound(FLOOD_STEPS, "a push into a queue that is much too long", &changes());
}

#[test]
fn many_cancelled_tasks_are_removed_by_recover_in_slices() {
    let mut home = Home::new();
    home.push(b"q", MANY / 10);
    home.pop(b"q", MANY / 10, LeaseAsk::NONE);
    let taken = core::mem::take(&mut home.taken);
    let list: Vec<&[u8]> = taken.iter().map(String::as_bytes).collect();
    let tasks = TaskRefs { list: &list, form: IdForm::Long };
    home.run(&Command::Cancel { queue: b"q", which: Cancel::Ids(tasks) });
    home.bound(FLOOD_STEPS, "recover", &[Command::Recover { queue: b"q", count: 1, elapsed_ms: 0 }]);
}

#[test]
fn a_slow_pattern_is_matched_against_many_names_in_slices() {
    let mut home = Home::new();
    let hostile = "a".repeat(2_000);
    for n in 0..30 {
        let queue = format!("{hostile}{hostile}{n}");
        home.run(&Command::Push { queue: queue.as_bytes(), payloads: &[b"x"] });
    }
    let pattern = format!("*{hostile}b");
    let steps_max = 12 * limits::PATTERN_STEPS_MAX as u64;
    let (mut cursor, mut calls) = (0, 0);
    loop {
        let command = Command::Queues { pattern: Some(pattern.as_bytes()), cursor, count: 1_000 };
        let (steps, reply, _) = home.measure(&command);
        assert!(steps <= steps_max, "{steps} steps");
        let Reply::Queues { cursor: next, .. } = reply else { panic!("{reply:?}") };
        (cursor, calls) = (next, calls + 1);
        if cursor == 0 {
            break;
        }
    }
    assert!(calls >= 30, "{calls} calls");
}

/// Compaction copies tasks that have moved to other queues. A slice of it must not search each queue that has adopted
/// tasks.
#[test]
fn a_slice_of_compaction_among_very_many_dead_letter_queues() {
    const SLICE: usize = 128;
    const EACH: u64 = 40;
    let mut home = Home::new();
    let mut ids = Vec::new();
    for n in 0..MANY / 100 {
        let letters = format!("letters {n}");
        home.config(&[Change::DeadLetter(letters.as_bytes())]);
        let (.., out) = home.measure(&Command::Push { queue: b"q", payloads: &[b"x"] });
        ids.extend(out.ids);
        home.pop(b"q", 1, LeaseAsk::NONE);
        home.bury(b"q");
    }
    assert_eq!((ids.len(), home.broker.adopted()), (MANY / 100, MANY / 100), "all have moved");
    let pushed_to = home.broker.number_of(b"q").expect("it has settings");
    let mut copy = |ids: &[TaskId]| {
        steps_of(|| {
            let copied = ids
                .iter()
                .filter(|id| home.broker.copy_forward(pushed_to, **id, b"x", |_| true, &mut Forgetful));
            copied.count()
        })
    };
    for some in [&ids[..SLICE], &ids[ids.len() - SLICE..]] {
        let (steps, copied) = copy(some);
        assert_eq!(copied, SLICE);
        assert!(steps <= EACH * SLICE as u64, "{steps} steps");
    }
    let gone = [TaskId::LAST; SLICE];
    let (steps, copied) = copy(&gone);
    assert_eq!(copied, 0);
    assert!(steps <= EACH * SLICE as u64, "{steps} steps for tasks that are gone");
}
