//! One queue without a broker, as in the Redis module: the driver assigns the ids and records its events.

use std::hash::{DefaultHasher, Hasher};

use crate::support::{Bytes, Log, START_MS, words};
use crate::x;
use sureq_core::codec::decode;
use sureq_core::command::{Add, Command, ConnId, IdForm, NameArg, TaskRef, TaskRefs, View};
use sureq_core::event::{Counters, Flood, LeaseTerms, QueueNo, Totals};
use sureq_core::queue::{HolderNews, PopAsk, Popped, Pushes, Settled};
use sureq_core::reply::{TaskView, Why};
use sureq_core::settings::{Change, Changes};
use sureq_core::task::{Cause, Due, Holder, Name, StateKind};
use sureq_core::{Event, LogTime, Now, Queue, Receipt, Replies, Reply, TaskId, WallTime};

const CONN: Holder = Holder::Conn(ConnId(7));
const WORKER: Holder = Holder::Worker(3);

/// A queue, and a second one that only replays its events.
struct Alone {
    queue: Queue<Bytes>,
    log: Log,
    now: Now,
    ids: u64,
    twin: Queue<Bytes>,
    replayed: usize,
}

impl Alone {
    fn new(no: u32) -> Self {
        let (queue, twin) = (Queue::new(QueueNo(no)), Queue::new(QueueNo(no)));
        let now = Now { log: LogTime(START_MS), wall: WallTime(START_MS) };
        let mut alone =
            Self { queue, log: Log::default(), now, ids: u64::from(no) * 1_000, twin, replayed: 0 };
        alone.queue.start(1, now.log, &mut alone.log);
        alone.verify();
        alone
    }

    fn next_id(&mut self) -> TaskId {
        self.ids += 1;
        TaskId::new(START_MS, self.ids).unwrap()
    }

    fn push(&mut self, payloads: &[&str]) -> Vec<TaskId> {
        let ids: Vec<TaskId> = payloads.iter().map(|_| self.next_id()).collect();
        let payloads: Vec<&[u8]> = payloads.iter().map(|payload| payload.as_bytes()).collect();
        let pushes = Pushes { first: ids[0], payloads: &payloads };
        self.queue.push(pushes, self.now, &mut self.log).unwrap();
        self.verify();
        ids
    }

    fn add(&mut self, add: Add<'_>) -> TaskId {
        let id = self.next_id();
        assert_eq!(self.queue.named(&add, self.now, &mut self.log), None, "the name is free");
        self.queue.add(id, &add, self.now, &mut self.log).unwrap();
        self.verify();
        id
    }

    fn pop(&mut self, count: u32, length_ms: Option<u64>, holder: Option<Holder>) -> Vec<TaskView<Bytes>> {
        let terms = LeaseTerms { length_ms, holder, lapse: None };
        let ask = PopAsk { count, bytes: usize::MAX, first_bytes: 0, terms, queue: 5, meta: false };
        let mut tasks = Vec::new();
        self.queue.pop(&ask, self.now, &mut self.log, &mut tasks);
        self.verify();
        tasks
    }

    fn run(&mut self, command: &Command<'_>) -> Reply {
        let mut out = Replies::default();
        let reply = self.queue.execute(command, self.now, &mut self.log, &mut out).unwrap();
        self.verify();
        reply
    }

    fn see(&self, view: View) -> String {
        let mut tasks = Vec::new();
        self.queue.inspect(view, 0, u32::MAX, self.now, &mut tasks);
        words(&tasks)
    }

    fn bury(&mut self, ids: &[TaskId]) {
        let ids: Vec<String> = ids.iter().map(ToString::to_string).collect();
        let list: Vec<&[u8]> = ids.iter().map(String::as_bytes).collect();
        let buried =
            self.run(&Command::Bury { queue: b"q", tasks: TaskRefs { list: &list, form: IdForm::Long } });
        assert_eq!(buried, Reply::Count(ids.len() as u64));
    }

    fn pass(&mut self, ms: u64) {
        self.now.log = self.now.log.after(ms);
    }

    /// Checks the invariants, and that a replay of the events yields the same state.
    fn verify(&mut self) {
        self.queue.check().unwrap_or_else(|broken| panic!("{}", broken.0));
        let (mut bytes, mut log) = (&self.log.bytes[self.replayed..], Log::default());
        while !bytes.is_empty() {
            let (twin, at) = (&mut self.twin, self.now.log);
            ((), bytes) = decode(bytes, |event| twin.apply(event, at, &mut log).unwrap()).unwrap();
        }
        self.replayed = self.log.bytes.len();
        let digest = |queue: &Queue<Bytes>| {
            let mut hasher = DefaultHasher::new();
            queue.digest(&mut hasher);
            hasher.finish()
        };
        assert_eq!(digest(&self.twin), digest(&self.queue), "the events replay to the same state");
    }

    fn news(&mut self) -> Vec<(Holder, HolderNews)> {
        let mut all = Vec::new();
        self.queue.drain_holder_news(|holder, news| all.push((holder, news)));
        all
    }
}

#[test]
fn a_holder_ends_in_slices_and_its_tasks_stay_in_order() {
    let mut alone = Alone::new(1);
    alone.push(&["a", "b", "c", "d", "e", "f"]);
    alone.pop(3, None, Some(CONN));
    alone.pop(1, None, Some(WORKER));
    let mut group = None;
    let mut end = |alone: &mut Alone| {
        let ended = alone.queue.end_some(CONN, Cause::Free, 2, &mut group, alone.now, &mut alone.log);
        alone.verify();
        ended
    };
    assert_eq!(end(&mut alone), 2);
    assert_eq!((alone.see(View::Ready), alone.queue.held_by(CONN)), ("a b e f".into(), 1));
    assert_eq!(alone.news(), [], "it still holds one");
    assert_eq!(end(&mut alone), 1);
    assert_eq!(end(&mut alone), 0);
    assert_eq!(alone.see(View::Ready), "a b c e f", "in order, before the task that was never delivered");
    assert_eq!(alone.see(View::Leased), "d", "another holder keeps its task");
    assert_eq!(alone.queue.holders().collect::<Vec<_>>(), [WORKER]);
    assert_eq!(alone.news(), [(CONN, HolderNews::HoldsNothing)]);
    assert_eq!(alone.news(), [], "news is reported once");
    assert!(!alone.queue.is_unfinished(), "no slice is left");
}

#[test]
fn an_older_end_of_a_holder_does_not_include_later_deliveries() {
    let mut alone = Alone::new(1);
    alone.push(&["a", "b", "c"]);
    alone.pop(1, None, Some(CONN));
    alone.pop(1, None, Some(WORKER));
    for holder in [CONN, WORKER] {
        alone.queue.end_some(holder, Cause::Free, 9, &mut None, alone.now, &mut alone.log);
        alone.verify();
    }
    assert_eq!(alone.see(View::Ready), "b a c", "each end begins a group of its own at the front");
}

#[test]
fn a_holder_learns_of_each_of_its_cancelled_tasks() {
    let mut alone = Alone::new(1);
    let ids = alone.push(&["a", "b", "c"]);
    let held = alone.pop(2, None, Some(WORKER));
    alone.pop(1, None, Some(CONN));
    let claims = [ids[1], ids[2]].map(sureq_core::id::Claim::Id);
    assert_eq!(alone.queue.cancel(claims.into_iter(), alone.now, &mut alone.log), 2);
    alone.verify();
    let mut news = alone.news();
    news.sort_by_key(|(holder, _)| *holder != WORKER);
    assert_eq!(news, [WORKER, CONN].map(|holder| (holder, HolderNews::HasCancelled)));
    let cancelled = |alone: &Alone, holder| {
        let mut receipts = Vec::new();
        alone.queue.cancelled_of(holder, &mut receipts);
        receipts
    };
    assert_eq!(cancelled(&alone, WORKER), [held[1].receipt()], "its own and no others");
    assert_eq!(cancelled(&alone, Holder::Worker(4)), []);
}

#[test]
fn dead_tasks_are_revived_a_few_at_a_time_in_order_of_death() {
    let mut alone = Alone::new(1);
    let ids = alone.push(&["a", "b", "c", "d"]);
    alone.bury(&[ids[2], ids[0], ids[1]]);
    assert_eq!(alone.queue.revive_some(2, alone.now, &mut alone.log), 2);
    alone.verify();
    assert_eq!((alone.see(View::Ready), alone.see(View::Dead)), ("d c a".into(), "b".into()));
    assert_eq!(alone.queue.revive_some(2, alone.now, &mut alone.log), 1);
    assert_eq!(alone.queue.revive_some(2, alone.now, &mut alone.log), 0);
    alone.verify();
    assert_eq!(alone.see(View::Ready), "d c a b");
}

#[test]
fn purged_bodies_are_released_a_few_at_a_time_or_at_once() {
    const MANY: usize = 1_200;
    for at_once in [false, true] {
        let mut alone = Alone::new(1);
        alone.push(&vec!["a"; MANY]);
        assert!(!alone.queue.has_purged());
        assert_eq!(alone.run(&Command::Purge { queue: b"q", state: None }), Reply::Count(MANY as u64));
        assert!(alone.queue.is_empty() && alone.queue.has_purged());
        assert_eq!(alone.log.live.len(), MANY, "nothing is released yet");
        if at_once {
            alone.queue.release_purged(&mut alone.log);
        } else {
            alone.queue.release_some_purged(2, &mut alone.log);
            assert!(alone.queue.has_purged());
            assert_eq!(alone.log.live.len(), MANY - 2);
            alone.queue.release_some_purged(MANY - 3, &mut alone.log);
            assert!(alone.queue.has_purged(), "one is left");
            alone.queue.release_some_purged(1, &mut alone.log);
        }
        assert!(!alone.queue.has_purged());
        assert_eq!((alone.log.live.len(), alone.log.unknown_bodies), (0, 0));
    }
}

#[test]
fn a_slice_settled_ahead_counts_for_the_next_command() {
    let mut alone = Alone::new(1);
    alone.push(&["a", "b"]);
    alone.pop(1, Some(10), Some(WORKER));
    alone.pop(1, Some(20), None);
    alone.pass(10);
    assert_eq!(alone.queue.settle_ahead(alone.now, &mut alone.log), Settled::All);
    alone.verify();
    assert_eq!(alone.see(View::Ready), "a");
    let lapsed = alone.queue.take_lapsed();
    assert_eq!(
        lapsed.iter().map(|(worker, receipt)| (*worker, receipt.delivery)).collect::<Vec<_>>(),
        [(3, 1)]
    );
    assert_eq!(alone.queue.take_lapsed(), [], "each is reported once");
    // Tasks that become due after settling ahead are not settled by the next command, but by the one after it.
    alone.pass(10);
    alone.run(&Command::Purge { queue: b"q", state: Some(View::Dead) });
    assert_eq!(alone.see(View::Ready), "a");
    alone.run(&Command::Purge { queue: b"q", state: Some(View::Dead) });
    assert_eq!(alone.see(View::Ready), "b a", "the later lapse is before the earlier one");
}

#[test]
fn a_dead_task_moves_between_logs_completely_and_once() {
    let (mut from, mut to) = (Alone::new(1), Alone::new(2));
    let config = Command::Config { queue: b"q", changes: Changes::List(&[Change::Tries(1)]) };
    from.run(&config);
    let id = from.add(Add { name: Some(NameArg::Bytes(b"n")), ttl_ms: Some(50), priority: 3, ..x() });
    to.push(&["y"]);
    from.pop(1, Some(10), None);
    let move_dead_to = |from: &mut Alone, to: &mut Alone, id| {
        let recs = (&mut from.log, &mut to.log);
        let moved =
            from.queue.move_dead_to(id, &mut to.queue, &mut |body| body.0.as_ref().into(), from.now, recs);
        from.verify();
        to.verify();
        moved
    };
    assert!(!move_dead_to(&mut from, &mut to, id), "it is not dead yet");
    (from.now.log, to.now.log) = (from.now.log.after(10), to.now.log.after(10));
    from.queue.settle(from.now, &mut from.log);
    assert_eq!(from.queue.state_of(id), Some(StateKind::Dead));
    assert!(move_dead_to(&mut from, &mut to, id));
    assert!(!move_dead_to(&mut from, &mut to, id), "this queue does not have it any more");
    assert!(from.queue.is_empty() && from.log.live.is_empty());
    let totals = from.queue.totals();
    assert_eq!((totals.pushed, totals.finished, totals.removed), (1, 0, 1));
    assert_eq!(to.see(View::Ready), "x y", "it keeps its priority");
    assert_eq!(to.queue.bearer_of(&Name::Bytes(b"n"[..].into())), Some(id));
    assert_eq!(to.queue.bearer_of(&Name::Bytes(b"m"[..].into())), None);
    to.pass(1_000);
    assert_eq!(to.queue.settle(to.now, &mut to.log), Settled::All);
    let handed_out = to.pop(1, None, None);
    assert_eq!((handed_out[0].id, handed_out[0].deliveries), (id, 2), "it loses its time to live");
}

#[test]
fn a_moved_task_yields_to_a_task_with_its_name_or_id() {
    let (mut from, mut to) = (Alone::new(1), Alone::new(2));
    let named = Add { name: Some(NameArg::Bytes(b"n")), ..x() };
    let (id, owner) = (from.add(named), to.add(named));
    from.bury(&[id]);
    let moved = from.queue.move_dead_to(
        id,
        &mut to.queue,
        &mut |body| body.0.as_ref().into(),
        from.now,
        (&mut from.log, &mut to.log),
    );
    from.verify();
    to.verify();
    assert!(moved);
    assert_eq!(to.queue.bearer_of(&Name::Bytes(b"n"[..].into())), Some(owner));
    assert_eq!(to.see(View::Ready), "x x");
    // The move is refused if the other queue has the id already.
    let mut twice = from.queue.clone();
    let pushes = Pushes { first: TaskId::new(START_MS + 1, 1).unwrap(), payloads: &[b"z"] };
    for queue in [&mut twice, &mut to.queue] {
        queue.push(pushes, from.now, &mut Log::default()).unwrap();
    }
    let dead = sureq_core::id::Claim::Id(pushes.first);
    twice.bury([dead].into_iter(), from.now, &mut Log::default());
    let recs = (&mut Log::default(), &mut Log::default());
    let body = &mut |body: &Bytes| body.0.as_ref().into();
    assert!(!twice.move_dead_to(pushes.first, &mut to.queue, body, from.now, recs));
    assert_eq!(twice.state_of(pushes.first), Some(StateKind::Dead), "it stays in its queue");
}

#[test]
fn a_pop_stops_before_the_task_that_exceeds_its_bytes() {
    let terms = LeaseTerms { length_ms: None, holder: None, lapse: None };
    // The limits of all payloads and of the first alone, and the lengths of the payloads.
    let cases = [
        (4, 0, 9, 2, 4, false),
        (5, 0, 9, 2, 4, true),
        (3, 0, 9, 1, 3, true),
        (2, 0, 9, 0, 0, true),
        (2, 3, 9, 1, 3, true),
        (2, 2, 9, 0, 0, true),
        (9, 0, 9, 3, 9, false),
        (8, 0, 9, 2, 4, true),
        (9, 0, 2, 2, 4, false),
        (9, 0, 1, 1, 3, false),
    ];
    for records in [false, true] {
        for (bytes, first_bytes, count, tasks, sum, is_cut) in cases {
            let mut alone = Alone::new(1);
            let priority = i8::from(records);
            for payload in [&b"aaa"[..], b"b", b"ccccc"] {
                alone.add(Add { priority, ..Add::plain(b"q", payload) });
            }
            let ask = PopAsk { count, bytes, first_bytes, terms, queue: 5, meta: false };
            let mut out = Vec::new();
            let popped = alone.queue.pop(&ask, alone.now, &mut alone.log, &mut out);
            alone.verify();
            let is_cut = is_cut || (tasks == 2 && count == 9);
            assert_eq!(popped, Popped { tasks, bytes: sum, is_cut }, "{ask:?}");
            assert_eq!(out.len(), tasks as usize);
            assert!(out.iter().all(|task| task.queue == 5 && task.incarnation == 1), "{out:?}");
        }
    }
}

#[test]
fn the_next_bodies_are_listed_from_any_position() {
    let mut alone = Alone::new(1);
    let payloads = |alone: &Alone, start| {
        let bodies = alone.queue.upcoming_bodies(start);
        bodies.map(|body| String::from_utf8_lossy(&body.0).into_owned()).collect::<Vec<_>>().join(" ")
    };
    assert_eq!(payloads(&alone, 0), "");
    alone.push(&["a", "b", "c"]);
    assert_eq!([0, 1, 3, 4].map(|start| payloads(&alone, start)), ["a b c", "b c", "", ""]);
    assert_eq!(alone.queue.read_ahead_spans(1).count(), 2);
    alone.add(Add { priority: 1, ..x() });
    assert_eq!([0, 1, 3, 4].map(|start| payloads(&alone, start)), ["x a b c", "a b c", "c", ""]);
    assert_eq!(alone.queue.read_ahead_spans(1).count(), 3);
}

#[test]
fn an_unreadable_delivery_is_delayed_or_dies_at_no_cost_of_a_try() {
    let mut alone = Alone::new(1);
    alone.run(&Command::Config { queue: b"q", changes: Changes::List(&[Change::Tries(1)]) });
    let ids = alone.push(&["a", "b", "c"]);
    let mut receipts: Vec<Receipt> = alone.pop(3, None, None).iter().map(TaskView::receipt).collect();
    alone.queue.cancel([sureq_core::id::Claim::Id(ids[1])].into_iter(), alone.now, &mut alone.log);
    receipts[2].delivery += 1;
    let long = [b'r'; 5_000];
    alone.queue.requeue_unreadable(&receipts, Some(30), &long, alone.now, &mut alone.log);
    alone.verify();
    assert_eq!(alone.see(View::Delayed), "a");
    assert_eq!(alone.see(View::Leased), "c", "the receipt is of another delivery");
    assert_eq!(alone.queue.state_of(ids[1]), None, "a cancelled task is removed");
    alone.pass(29);
    assert_eq!(alone.pop(9, None, None).len(), 0);
    alone.pass(1);
    let again = alone.pop(9, None, None);
    assert_eq!(words(&again), "a", "no try was counted");
    let receipt = again[0].receipt();
    alone.queue.requeue_unreadable(&[receipt, receipt], None, b"lost", alone.now, &mut alone.log);
    alone.verify();
    let mut dead = Vec::new();
    alone.queue.inspect(View::Dead, 0, 9, alone.now, &mut dead);
    assert_eq!(words(&dead), "a");
    assert_eq!(dead[0].more.as_ref().unwrap().reason.as_deref(), Some(&b"lost"[..]));
}

#[test]
fn a_query_shows_due_tasks_as_they_are_and_changes_nothing() {
    let mut alone = Alone::new(1);
    let id = alone.push(&["a", "b"])[0].to_string();
    alone.pop(1, Some(10), None);
    alone.pass(10);
    let task = TaskRef { bytes: id.as_bytes(), form: IdForm::Long };
    let look = |alone: &Alone, command: &Command<'_>| {
        let mut out = Replies::default();
        let reply = alone.queue.execute_read(command, alone.now, &mut out);
        (reply, words(&out.tasks))
    };
    let recorded = alone.log.bytes.len();
    let leased = Command::Inspect { queue: b"q", view: View::Leased, start: 0, count: 9 };
    assert_eq!(look(&alone, &leased).1, "a", "its lease is over, but the task has not been moved");
    let (info, _) = look(&alone, &Command::Info { queue: b"q" });
    assert!(matches!(&info, Ok(Reply::Info(info)) if (info.leased, info.ready) == (1, 1)), "{info:?}");
    let (why, _) = look(&alone, &Command::Explain { queue: b"q", task });
    let is_leased = |why: &Why| matches!(why, Why::Leased { .. });
    assert!(matches!(&why, Ok(Reply::Explained(Some(e))) if is_leased(&e.why)), "{why:?}");
    let (settings, _) = look(&alone, &Command::Config { queue: b"q", changes: Changes::List(&[]) });
    assert!(matches!(&settings, Ok(Reply::Settings(settings)) if settings.is_default()), "{settings:?}");
    let changes = Changes::List(&[Change::Tries(1)]);
    for change in [Command::Pause { queue: b"q" }, Command::Config { queue: b"q", changes }] {
        assert!(look(&alone, &change).0.is_err(), "{change:?} is not read-only");
    }
    assert_eq!(alone.log.bytes.len(), recorded);
    let (mut out, now) = (Replies::default(), alone.now);
    let explained =
        alone.queue.execute(&Command::Explain { queue: b"q", task }, now, &mut alone.log, &mut out);
    let is_ready = |why: &Why| matches!(why, Why::Ready { ahead: 0, .. });
    assert!(matches!(&explained, Ok(Reply::Explained(Some(e))) if is_ready(&e.why)), "{explained:?}");
    let push = Command::Push { queue: b"q", payloads: &[b"x"] };
    assert!(
        alone.queue.execute(&push, now, &mut alone.log, &mut out).is_err(),
        "a queue does not assign ids"
    );
    alone.verify();
}

#[test]
fn counters_that_do_not_fit_their_queue_are_refused() {
    let mut alone = Alone::new(1);
    alone.push(&["a", "b", "c"]);
    alone.pop(2, None, Some(CONN));
    alone.queue.end_holder(CONN, Cause::Free, 9, alone.now, &mut alone.log);
    alone.pop(1, None, None);
    alone.verify();
    let right = alone.queue.counters();
    assert!(right.seq > 0 && right.front_group > 0, "{right:?}");
    let flood = |minor, end| Some(Flood { upto: Due::Log(alone.now.log), major: 1, minor, end });
    let high = (1 << 62) + 1;
    let totals = |pushed| Totals { pushed, ..right.totals };
    let minor = right.minor + 5;
    let fit = [
        right,
        Counters { seq: high - 1, front_group: high - 1, minor: high - 1, ..right },
        Counters { minor, flood: flood(minor, minor), ..right },
        Counters { minor, flood: flood(1, 2), ..right },
        Counters { last_id: TaskId::LAST, ..right },
    ];
    let unfit = [
        Counters { seq: right.seq - 1, ..right },
        Counters { seq: high, ..right },
        Counters { front_group: right.front_group - 1, ..right },
        Counters { front_group: high, ..right },
        Counters { minor: high, ..right },
        Counters { last_id: TaskId::new(START_MS, 1_002).unwrap(), ..right },
        Counters { totals: totals(right.totals.pushed + 1), ..right },
        Counters { totals: totals(right.totals.pushed - 1), ..right },
        Counters { minor, flood: flood(minor + 1, minor + 1), ..right },
        Counters { minor, flood: flood(3, 2), ..right },
    ];
    let apply = |counters: Counters| {
        let mut queue = alone.queue.clone();
        let event = Event::Counted { queue: queue.no(), counters: &counters };
        queue.apply(&event, alone.now.log, &mut Log::default()).is_ok()
    };
    for counters in fit {
        assert!(apply(counters), "{counters:?}");
    }
    for counters in unfit {
        assert!(!apply(counters), "{counters:?}");
    }
}
