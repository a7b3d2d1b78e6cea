//! Listeners receive each notice once, in order, and none that a crash could undo.

mod engine_support;

use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use engine_support::{ack, ack_of, events_in, execute, fresh, open, options, pop, push};
use sureq_core::command::{
    Add, Cancel, ConnId, IdForm, LeaseAsk, Pop, Return, TaskRef, TaskRefs, When, Worker, WorkerRef,
};
use sureq_core::notice::{Kind, Kinds};
use sureq_core::settings::{Change, Changes, Overflow, Place};
use sureq_core::{Command, Event, Replies, Reply, TaskId, codec, limits};
use sureq_engine::Engine;
use sureq_engine::log::Durability;
use sureq_home_api::{Home as _, ListenEvent, Listener, NoticeTasks, Payload};
use sureq_testkit::manual_clock::ManualClock;
use sureq_testkit::valve::Valve;

/// A listener that is subscribed to everything.
fn listen(engine: &Engine) -> Listener {
    let listener = engine.listen();
    listener.subscribe_all(Kind::ALL.into_iter().collect());
    listener
}

fn poll(listener: &Listener) -> Poll<Option<ListenEvent>> {
    listener.poll(&mut Context::from_waker(Waker::noop()))
}

fn text_of(event: ListenEvent) -> String {
    let ListenEvent::Notice(notice) = event else { return "missed".to_owned() };
    let tasks = match notice.tasks {
        NoticeTasks::Count(count) => count.to_string(),
        NoticeTasks::Ids(ids) => ids.iter().map(TaskId::to_string).collect::<Vec<_>>().join(" "),
        NoticeTasks::Foreign(_) => unreachable!("no other program publishes here"),
    };
    format!("{} {} {tasks}", notice.kind.name(), String::from_utf8_lossy(&notice.queue))
}

/// All notices that can be received now.
fn heard(listener: &Listener) -> Vec<String> {
    let mut all = Vec::new();
    while let Poll::Ready(Some(event)) = poll(listener) {
        all.push(text_of(event));
    }
    all
}

/// All notices of events so far, once they are durable.
fn heard_by_now(engine: &Engine, listener: &Listener) -> Vec<String> {
    engine.commit();
    assert!(engine.wait(engine.end()), "{:?}", engine.failure());
    heard(listener)
}

/// A store and a listener to it.
struct Story {
    engine: Engine,
    clock: Arc<ManualClock>,
    listener: Listener,
}

impl Story {
    fn new() -> Self {
        let (engine, _, clock) = fresh();
        let listener = listen(&engine);
        Self { engine, clock, listener }
    }

    /// Executes a command, and checks its notices.
    fn check(&self, command: Command<'_>, expect: &[&str]) -> Replies<Payload> {
        let (replies, _) = execute(&self.engine, &[command]);
        assert!(!matches!(replies.list[0], Reply::Refused(_)), "{:?}", replies.list);
        assert_eq!(heard(&self.listener), expect, "{command:?}");
        replies
    }

    /// Lets time pass, and checks the notices.
    fn check_time(&self, ms: u64, expect: &[&str]) {
        self.clock.pass(ms);
        self.engine.tick();
        assert_eq!(heard_by_now(&self.engine, &self.listener), expect, "after {ms} ms");
    }

    fn check_push(&self, payloads: &[&[u8]]) -> Vec<String> {
        let expect = format!("work q {}", payloads.len());
        let replies = self.check(Command::Push { queue: b"q", payloads }, &[&expect]);
        replies.ids.iter().map(TaskId::to_string).collect()
    }

    fn check_pop(&self, lease: LeaseAsk<'_>) {
        self.check(Command::Pop(Pop { lease, ..Pop::plain(&[b"q"], 9) }), &[]);
    }
}

const fn refs<'a>(list: &'a [&'a [u8]]) -> TaskRefs<'a> {
    TaskRefs { list, form: IdForm::Long }
}

const fn lease_ms(ms: u64) -> LeaseAsk<'static> {
    LeaseAsk { ms: Some(ms), ..LeaseAsk::NONE }
}

const fn back(id: &[u8], to: Place) -> Command<'_> {
    let task = TaskRef { bytes: id, form: IdForm::Long };
    Command::Return(Return { queue: b"q", task, to: Some(to), failed: None, is_last: false })
}

#[test]
fn every_event_that_makes_tasks_ready_publishes_work() {
    let it = Story::new();
    let ids = it.check_push(&[b"a", b"b"]);
    let id = ids[0].as_bytes();
    for to in [Place::Front, Place::Back] {
        it.check_pop(LeaseAsk::NONE);
        it.check(back(id, to), &["work q 1"]);
        it.check(back(ids[1].as_bytes(), to), &["work q 1"]);
    }
    it.check_pop(lease_ms(1_000));
    it.check_time(1_001, &["work q 2"]);
    it.check_pop(LeaseAsk { conn: Some(ConnId(7)), ..LeaseAsk::NONE });
    it.engine.close_conn(ConnId(7));
    assert_eq!(heard_by_now(&it.engine, &it.listener), ["work q 2"]);
    it.check(Command::Bury { queue: b"q", tasks: refs(&[id]) }, &[]);
    it.check(Command::Revive { queue: b"q", tasks: None }, &["work q 1"]);
    it.check(Command::Pause { queue: b"q" }, &[]);
    it.check(Command::Resume { queue: b"q" }, &["work q 2"]);
    it.check(Command::Resume { queue: b"q" }, &[]);
}

#[test]
fn a_delayed_task_is_work_when_it_is_due() {
    let it = Story::new();
    for ms in [1_000, 1_000, 2_000] {
        let add = Add { when: When::After(ms), ..Add::plain(b"q", b"later") };
        it.check(Command::Add(add), &[]);
    }
    it.check_time(999, &[]);
    it.check_time(1, &["work q 2"]);
    // A command that finds tasks due makes them ready itself.
    it.clock.pass(1_000);
    it.check(Command::Pop(Pop::plain(&[b"q"], 3)), &["work q 1"]);
    let replies = it.check(
        Command::Inspect { queue: b"q", view: sureq_core::command::View::Leased, start: 0, count: 9 },
        &[],
    );
    let id = replies.tasks[0].id.to_string();
    it.check(back(id.as_bytes(), Place::After(500)), &[]);
    it.check_time(500, &["work q 1"]);
}

#[test]
fn tasks_of_a_lost_worker_are_work_once_for_each_queue() {
    let it = Story::new();
    it.check_push(&[b"a", b"b"]);
    it.check(Command::Push { queue: b"p", payloads: &[b"c"] }, &["work p 1"]);
    let started = it.check(Command::Worker(Worker::Start { name: b"w", ttl_ms: 3_000 }), &[]);
    let Reply::Started(incarnation) = started.list[0] else { panic!("{:?}", started.list) };
    let worker = Some(WorkerRef { name: b"w", incarnation });
    for queue in [&b"q"[..], b"q", b"p"] {
        let queues = [queue];
        let pop = Pop { lease: LeaseAsk { worker, ..LeaseAsk::NONE }, ..Pop::plain(&queues, 1) };
        it.check(Command::Pop(pop), &[]);
    }
    it.check_time(3_001, &["work q 2", "work p 1"]);
}

#[test]
fn a_task_that_moves_to_its_dead_letter_queue_is_work_there() {
    let it = Story::new();
    it.check(Command::Config { queue: b"q", changes: Changes::List(&[Change::DeadLetter(b"graves")]) }, &[]);
    let ids = it.check_push(&[b"a"]);
    it.check(Command::Bury { queue: b"q", tasks: refs(&[ids[0].as_bytes()]) }, &["work graves 1"]);
}

#[test]
fn finished_and_cancelled_tasks_are_published_by_id() {
    let it = Story::new();
    let ids = it.check_push(&[b"a", b"b", b"c", b"d"]);
    let cancel = |id: &str, expect: &str| {
        let list = [id.as_bytes()];
        it.check(Command::Cancel { queue: b"q", which: Cancel::Ids(refs(&list)) }, &[expect]);
    };
    cancel(&ids[3], &format!("cancel q {}", ids[3]));
    it.check_pop(LeaseAsk::NONE);
    let done = [ids[0].as_bytes(), ids[1].as_bytes()];
    it.check(ack_of(&done), &[&format!("done q {} {}", ids[0], ids[1])]);
    it.check(ack_of(&done), &[]);
    cancel(&ids[2], &format!("cancel q {}", ids[2]));
    // The task was marked before; now it is removed.
    it.check(back(ids[2].as_bytes(), Place::Front), &[&format!("cancel q {}", ids[2])]);
}

#[test]
fn other_removals_publish_the_number_of_tasks() {
    let it = Story::new();
    let ids = it.check_push(&[b"a", b"b", b"c"]);
    let two = [ids[0].as_bytes(), ids[1].as_bytes(), ids[1].as_bytes()];
    it.check(Command::Delete { queue: b"q", tasks: refs(&two) }, &["delete q 2"]);
    it.check_push(&[b"d"]);
    it.check(Command::Purge { queue: b"q", state: None }, &["delete q 2"]);
    it.check(Command::Purge { queue: b"q", state: None }, &[]);
    it.check(Command::Add(Add { ttl_ms: Some(100), ..Add::plain(b"q", b"short") }), &["work q 1"]);
    it.check_time(101, &["delete q 1"]);
    let narrow = [Change::MaxLength(2), Change::Overflow(Overflow::DropOldest)];
    it.check(Command::Config { queue: b"q", changes: Changes::List(&narrow) }, &[]);
    it.check_push(&[b"e", b"f"]);
    it.check(Command::Push { queue: b"q", payloads: &[b"g", b"h"] }, &["delete q 2", "work q 2"]);
    it.check_pop(LeaseAsk::NONE);
    it.check_push(&[b"i"]);
    it.check(Command::Drop { queues: &[b"q", b"q", b"none"] }, &["delete q 3"]);
    it.check(Command::Drop { queues: &[b"q"] }, &[]);
}

/// Many tasks are moved in slices, so that other commands are not delayed. Each slice is published once.
#[test]
fn many_due_tasks_are_published_slice_by_slice() {
    let it = Story::new();
    let tasks = 2 * limits::SLICE_TASKS + 1;
    let add = Command::Add(Add { when: When::After(10), ..Add::plain(b"q", b"x") });
    drop(execute(&it.engine, &vec![add; tasks]));
    it.clock.pass(10);
    for _ in 0..3 {
        it.engine.tick();
    }
    let all = heard_by_now(&it.engine, &it.listener);
    let sum: usize =
        all.iter().map(|text| text.strip_prefix("work q ").unwrap().parse::<usize>().unwrap()).sum();
    assert_eq!((sum, all.len()), (tasks, 3), "{all:?}");
}

/// Rule 2, for listeners: a notice is not delivered before its change is durable.
#[test]
fn a_notice_is_published_only_once_it_is_durable() {
    let (valve, clock) = (Valve::new(), Arc::new(ManualClock::default()));
    let engine = open(&valve.shared(), &clock, Durability::Always);
    let ids = push(&engine, &[b"x"]);
    pop(&engine, 1);
    let listener = listen(&engine);
    valve.close();
    let text = ids[0].to_string();
    let acked = engine.execute(&[ack_of(&[text.as_bytes()])], &mut Replies::default());
    valve.wait_until_held();
    assert!(poll(&listener).is_pending(), "it is published before the sync");
    std::thread::scope(|scope| {
        let waiting = scope.spawn(|| listener.wait());
        valve.open();
        assert!(engine.wait(acked.position));
        assert_eq!(waiting.join().unwrap().map(text_of), Some(format!("done q {text}")));
    });
    engine.close().unwrap();
    assert_eq!(listener.wait(), None, "a closed store publishes nothing more");
}

#[test]
fn changes_in_doubt_after_a_failed_sync_are_never_published() {
    let (valve, clock) = (Valve::new(), Arc::new(ManualClock::default()));
    let engine = open(&valve.shared(), &clock, Durability::Always);
    let listener = listen(&engine);
    push(&engine, &[b"x"]);
    assert_eq!(heard(&listener), ["work q 1"]);
    valve.close();
    let push = [Command::Push { queue: b"q", payloads: &[b"y"] }];
    let pushed = engine.execute(&push, &mut Replies::default());
    valve.wait_until_held();
    valve.fail_log();
    valve.open();
    assert!(!engine.wait(pushed.position));
    assert_eq!(listener.wait(), None);
}

/// At `none` replies wait for nothing, and neither do notices.
#[test]
fn at_the_level_none_notices_do_not_wait_for_a_sync() {
    let (valve, clock) = (Valve::new(), Arc::new(ManualClock::default()));
    let engine = open(&valve.shared(), &clock, Durability::None);
    let listener = listen(&engine);
    valve.close();
    push(&engine, &[b"x"]);
    assert_eq!(heard(&listener), ["work q 1"]);
    valve.open();
    engine.close().unwrap();
}

#[test]
fn a_listener_created_after_the_close_ends_at_once() {
    let (engine, ..) = fresh();
    engine.close().unwrap();
    assert_eq!(poll(&listen(&engine)), Poll::Ready(None));
}

#[test]
fn a_replay_publishes_nothing() {
    let (engine, disk, clock) = fresh();
    push(&engine, &[b"x"]);
    let conn = LeaseAsk { conn: Some(ConnId(1)), ..LeaseAsk::NONE };
    drop(execute(&engine, &[Command::Pop(Pop { lease: conn, ..Pop::plain(&[b"q"], 1) })]));
    engine.close().unwrap();
    let again = open(&disk.shared(), &clock, Durability::Always);
    let listener = listen(&again);
    assert_eq!(heard_by_now(&again, &listener), Vec::<String>::new());
    assert_eq!(pop(&again, 9).len(), 1);
}

#[test]
fn only_subscribed_notices_arrive_and_only_while_subscribed() {
    let (engine, ..) = fresh();
    let listener = engine.listen();
    let done: Kinds = [Kind::Done].into_iter().collect();
    let life = || {
        let ids = push(&engine, &[b"x"]);
        pop(&engine, 1);
        assert_eq!(ack(&engine, &ids), 1);
        let kinds = heard(&listener).into_iter().map(|text| text.split(' ').next().unwrap().to_owned());
        kinds.collect::<Vec<_>>()
    };
    assert_eq!(life(), [""; 0]);
    listener.subscribe(Kind::Work, b"q");
    listener.subscribe(Kind::Work, b"q");
    listener.subscribe(Kind::Done, b"other");
    assert_eq!(life(), ["work"]);
    listener.subscribe_all(done);
    assert_eq!(life(), ["work", "done"]);
    listener.unsubscribe(Kind::Work, b"q");
    listener.unsubscribe_all(done);
    assert_eq!(life(), ["work"], "subscribed twice, and unsubscribed once");
    listener.unsubscribe(Kind::Work, b"q");
    listener.unsubscribe(Kind::Work, b"q");
    assert_eq!(life(), [""; 0]);
    listener.subscribe(Kind::Work, b"q");
    assert_eq!(life(), ["work"], "a surplus unsubscribe has no effect");
}

/// Notices of finished tasks arrive in the order of the log, even if several threads finish tasks.
#[test]
fn notices_of_several_threads_arrive_in_the_order_of_the_log() {
    let (engine, disk, _) = fresh();
    let listener = listen(&engine);
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                for _ in 0..50 {
                    push(&engine, &[b"x"]);
                    let pop = Command::Pop(Pop::plain(&[b"q"], 1));
                    let (popped, _) = execute(&engine, &[pop]);
                    let ids: Vec<TaskId> = popped.tasks.iter().map(|task| task.id).collect();
                    ack(&engine, &ids);
                }
            });
        }
    });
    let all = heard_by_now(&engine, &listener);
    engine.close().unwrap();
    let done: Vec<&str> = all.iter().filter_map(|text| text.strip_prefix("done q ")).collect();
    let mut logged = Vec::new();
    for event in events_in(&disk) {
        codec::decode(&event, |event| {
            if let Event::Finished { ids, .. } = event {
                logged.extend(ids.iter().map(|id| id.to_string()));
            }
        })
        .unwrap();
    }
    assert_eq!(done, logged);
    assert_eq!(done.len(), 200);
}

#[test]
fn a_listener_that_falls_behind_learns_that_it_missed_notices() {
    let engine = Engine::in_memory(&options(Durability::None));
    let listener = listen(&engine);
    let name = vec![b'n'; limits::QUEUE_NAME_BYTES_MAX];
    let push = Command::Push { queue: &name, payloads: &[b"x"] };
    for _ in 0..limits::NOTICES_PENDING_BYTES_MAX / name.len() + 100 {
        drop(execute(&engine, &[push]));
    }
    let all = heard(&listener);
    assert_eq!(all[0], "missed");
    assert!(all.len() < 1_000, "later notices are kept: {}", all.len());
    assert_eq!(heard(&listener), [""; 0]);
    drop(execute(&engine, &[push]));
    assert!(heard(&listener)[0].starts_with("work n"));
}

#[test]
fn a_dropped_listener_receives_nothing() {
    let (engine, ..) = fresh();
    let (stays, goes) = (listen(&engine), listen(&engine));
    drop(goes);
    push(&engine, &[b"x"]);
    assert_eq!(heard(&stays), ["work q 1"]);
    drop(stays);
    push(&engine, &[b"x"]);
}
