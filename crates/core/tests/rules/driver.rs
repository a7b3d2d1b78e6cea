//! Calls of a driver other than commands.

use crate::support::{Answer, Bytes, Home, START_MS, Store, leased, words};
use crate::{PLAIN, start, x};
use sureq_core::broker::{PopSlice, SlicePopped};
use sureq_core::command::{AckScope, Command, IdForm, LeaseAsk, Pop, TaskRefs, View, Worker, WorkerRef};
use sureq_core::id::TaskId;
use sureq_core::queue::{Popped, RecoverAsk};
use sureq_core::reply::{Refusal, Span, TaskView};
use sureq_core::settings::Change;
use sureq_core::task::StateKind;
use sureq_core::{Replies, Reply};

fn push_to(home: &mut Home, queue: &[u8], payloads: &[&[u8]]) {
    assert!(matches!(home.run(&Command::Push { queue, payloads }), Answer::Ids(_)));
}

#[test]
fn no_id_is_assigned_at_or_above_the_mark() {
    let mut home = Home::default();
    let mark = TaskId::new(START_MS, 3).unwrap();
    home.broker.set_id_mark(mark);
    assert_eq!(home.broker.id_mark(), mark);
    // Near the mark, the time in ids stands still.
    home.broker.set_id_mark(TaskId::new(START_MS + 5_010, 1).unwrap());
    home.pass(20);
    assert_eq!(home.push(&["a"])[0], TaskId::new(START_MS + 10, 1).unwrap());
    home.broker.set_id_mark(TaskId::new(START_MS + 10, 4).unwrap());
    let three = Command::Push { queue: b"q", payloads: &[b"b", b"c", b"d"] };
    assert_eq!(home.run(&three), Answer::Refused("other"), "the last of them would be the mark");
    assert_eq!(home.push(&["b", "c"]).last(), TaskId::new(START_MS + 10, 3).as_ref());
    let mut out = Replies::default();
    home.broker.execute(home.now, &three, &mut home.log, &mut out);
    assert!(matches!(out.list[0], Reply::Refused(Refusal::Unavailable { .. })), "{:?}", out.list);
    home.broker.set_id_mark(TaskId::LAST);
    assert_eq!(
        home.push(&["e"])[0],
        TaskId::new(START_MS + 20, 1).unwrap(),
        "without a mark ids follow the clock"
    );
    home.verify();
}

#[test]
fn the_last_id_only_rises() {
    let mut home = Home::default();
    let [low, high] = [5, 9].map(|seq| TaskId::new(START_MS, seq).unwrap());
    home.broker.raise_last_id(high);
    home.broker.raise_last_id(low);
    assert_eq!(home.broker.last_id(), high);
    assert_eq!(home.push(&["a"])[0], high.successor().unwrap());
}

#[test]
fn wake_ups_can_be_forgotten_while_no_pop_waits() {
    let mut home = Home::default();
    home.push(&["a"]);
    assert!(home.broker.has_awake());
    home.broker.forget_awake();
    assert!(!home.broker.has_awake() && home.awake().is_empty());
    home.push(&["b"]);
    assert_eq!(home.awake(), [home.broker.number_of(b"q").unwrap()], "the next wake-up is reported");
}

#[test]
fn a_queue_is_found_by_number_and_knows_its_name() {
    let mut home = Home::default();
    push_to(&mut home, b"p", &[b"a", b"b"]);
    home.push(&["c"]);
    let no = home.broker.number_of(b"p").unwrap();
    assert_eq!(home.broker.queue_at(no).map(sureq_core::Queue::len), Some(2));
    assert_eq!(home.broker.name_of(no), Some(&b"p"[..]));
    home.run(&Command::Drop { queues: &[b"p"] });
    home.pass(3_600_000);
    home.tick();
    assert!(home.broker.queue_at(no).is_none() && home.broker.name_of(no).is_none());
}

#[test]
fn a_sliced_pop_begins_at_the_given_queue_and_stops_when_it_is_full() {
    let slice = PopSlice { from: 0, count: 9, bytes: 99, first_bytes: 0 };
    let cases = [
        (slice, "aaa b cc d", (4, 7, false)),
        (PopSlice { from: 1, ..slice }, "cc d", (2, 3, false)),
        (PopSlice { from: 2, ..slice }, "", (0, 0, false)),
        (PopSlice { count: 2, ..slice }, "aaa b", (2, 4, false)),
        (PopSlice { count: 3, ..slice }, "aaa b cc", (3, 6, false)),
        (PopSlice { bytes: 6, ..slice }, "aaa b cc", (3, 6, true)),
        (PopSlice { bytes: 5, ..slice }, "aaa b", (2, 4, true)),
        (PopSlice { bytes: 3, ..slice }, "aaa", (1, 3, true)),
        (PopSlice { bytes: 2, first_bytes: 3, ..slice }, "aaa", (1, 3, true)),
        (PopSlice { bytes: 2, ..slice }, "", (0, 0, true)),
    ];
    for (slice, expected, (tasks, bytes, is_cut)) in cases {
        let mut home = Home::default();
        push_to(&mut home, b"p", &[b"aaa", b"b"]);
        push_to(&mut home, b"q", &[b"cc", b"d"]);
        let (pop, mut out) = (Pop::plain(&[b"p", b"q"], 9), Replies::default());
        let popped = home.broker.pop_slice(&pop, &slice, home.now, &mut home.log, &mut out);
        let popped_whole = SlicePopped { popped: Popped { tasks, bytes, is_cut }, next_queue: None };
        assert_eq!(popped, Ok(popped_whole), "{slice:?}");
        assert_eq!(words(&out.tasks), expected, "{slice:?}");
        let from_second = out.tasks.iter().filter(|task| task.queue == 1);
        assert!(from_second.map(|task| &*task.body.0).all(|body| body == b"cc" || body == b"d"));
        home.verify();
    }
}

#[test]
fn a_sliced_pop_is_refused_for_the_same_reasons_as_a_whole_one() {
    let mut home = Home::default();
    home.push(&["a"]);
    let slice = PopSlice { from: 0, count: 9, bytes: 99, first_bytes: 0 };
    let pop = |home: &mut Home, pop: Pop<'_>| {
        home.broker.pop_slice(&pop, &slice, home.now, &mut home.log, &mut Replies::default())
    };
    let unknown = WorkerRef { name: b"w", incarnation: 9 };
    let by_unknown = Pop { lease: LeaseAsk { worker: Some(unknown), ..PLAIN }, ..Pop::plain(&[b"q"], 1) };
    assert_eq!(pop(&mut home, by_unknown), Err(Refusal::WorkerGone));
    let long = vec![b'n'; 100_000];
    assert!(pop(&mut home, Pop::plain(&[&long], 1)).is_err(), "the name is too long");
    let worker = start(&mut home, b"w", 1_000);
    let held = pop(&mut home, Pop { lease: crate::by(worker), ..Pop::plain(&[b"q"], 1) });
    assert_eq!(held.map(|slice| slice.popped.tasks), Ok(1));
    home.pass(1_000);
    home.tick();
    assert_eq!(home.see(View::Ready), "a", "the tasks of an ended worker are requeued");
    home.verify();
}

#[test]
fn a_sliced_recovery_leases_no_task_twice() {
    let mut home = Home::default();
    home.push(&["aaa", "b", "cc", "d"]);
    home.take(4, PLAIN);
    home.pass(10);
    let upto = home.broker.queue(b"q").unwrap().last_delivery();
    let recover = |home: &mut Home, ask: RecoverAsk| {
        let mut out = Replies::default();
        home.broker.recover_slice(b"q", &ask, home.now, &mut home.log, &mut out);
        home.verify();
        words(&out.tasks)
    };
    let ask = RecoverAsk { count: 2, elapsed_ms: 10, bytes: 99, first_bytes: 0, upto };
    assert_eq!(recover(&mut home, RecoverAsk { elapsed_ms: 11, ..ask }), "", "they are too young");
    assert_eq!(recover(&mut home, RecoverAsk { bytes: 2, ..ask }), "", "the first is too large");
    assert_eq!(recover(&mut home, RecoverAsk { bytes: 2, first_bytes: 3, ..ask }), "aaa");
    let again = RecoverAsk { elapsed_ms: 0, ..ask };
    assert_eq!(recover(&mut home, RecoverAsk { bytes: 1, ..again }), "b", "the next is too large");
    assert_eq!(recover(&mut home, again), "cc d");
    assert_eq!(recover(&mut home, again), "", "all others were delivered after it began");
    assert_eq!(recover(&mut home, RecoverAsk { upto: u64::MAX, ..again }), "aaa b");
}

#[test]
fn the_bodies_of_dropped_queues_are_known_until_all_are_released() {
    let mut home = Home::default();
    let payloads = vec![&b"a"[..]; 1_000];
    for _ in 0..8 {
        push_to(&mut home, b"q", &payloads);
    }
    let made = home.log.live.len();
    home.run(&Command::Drop { queues: &[b"q"] });
    let dropped = |home: &Home| {
        let mut bodies = 0;
        home.broker.dropped_bodies(&mut |_: &Bytes| bodies += 1);
        bodies
    };
    assert!(dropped(&home) > 0 && home.broker.is_unfinished());
    assert_eq!((made, home.log.live.len()), (8_000, dropped(&home)));
    let before = home.broker.memory();
    home.broker.release_all_dropped(&mut home.log);
    assert!(!home.broker.is_unfinished());
    assert_eq!((dropped(&home), home.log.live.len(), home.log.unknown_bodies), (0, 0, 0));
    assert!(home.broker.memory() < before);
}

#[test]
fn an_image_can_be_made_to_include_all_queues() {
    let mut home = Home::default();
    home.push(&["a"]);
    push_to(&mut home, b"p", &[b"b"]);
    home.take_image();
    assert_eq!(home.broker.image().queues.len(), 0, "nothing has changed");
    home.broker.touch_all();
    home.broker.touch_all();
    let image = home.broker.image();
    assert_eq!(image.queues.len(), 2, "each of them once");
    let mut store = Store::default();
    store.keep(image);
    assert_eq!(store.restore().unwrap().digest(), home.broker.digest(), "it is complete");
}

#[test]
fn replies_are_the_same_with_other_payloads() {
    let mut home = Home::default();
    home.config(&[Change::LeaseMs(50)]);
    home.push(&["a", "bb"]);
    let mut out = Replies::default();
    let pop = Pop { meta: true, lease: leased(9), ..Pop::plain(&[b"q"], 9) };
    for command in [Command::Push { queue: b"q", payloads: &[b"c"] }, Command::Pop(pop), Command::Add(x())] {
        home.broker.execute(home.now, &command, &mut home.log, &mut out);
    }
    let lengths = out.clone().map_bodies(|body| body.0.len());
    let mut appended = Replies::default();
    appended.append_mapped(&mut out.clone(), |body| body.0.len());
    assert_eq!((&appended.list, &appended.tasks), (&lengths.list, &lengths.tasks));
    assert_eq!((&lengths.list, &lengths.ids), (&out.list, &out.ids));
    let shown = |task: &TaskView<Bytes>| (task.receipt(), task.at, task.elapsed_ms, task.more.clone());
    let expected: Vec<_> = out.tasks.iter().map(|task| (task.body.0.len(), shown(task))).collect();
    let found = lengths
        .tasks
        .iter()
        .map(|task| (task.body, (task.receipt(), task.at, task.elapsed_ms, task.more.clone())));
    assert_eq!(found.collect::<Vec<_>>(), expected);
    assert_eq!(expected.len(), 3);
}

/// Replies with one of each kind that refers to a list.
fn batch(home: &mut Home, out: &mut Replies<Bytes>) {
    let worker = start(home, b"w", 1_000);
    let id = home.push(&["a", "b", "c"])[0].to_string();
    let tasks = TaskRefs { list: &[id.as_bytes()], form: IdForm::Long };
    let lease = LeaseAsk { ms: Some(10), ..crate::by(worker) };
    let commands = [
        Command::Push { queue: b"p", payloads: &[b"x", b"y"] },
        Command::Pop(Pop { lease, ..Pop::plain(&[b"q"], 9) }),
        Command::Inspect { queue: b"q", view: View::Leased, start: 0, count: 1 },
        Command::Ack { queue: b"q", tasks, scope: AckScope::Leased },
        Command::Queues { cursor: 0, pattern: None, count: 9 },
        Command::Worker(Worker::List),
    ];
    for command in &commands {
        home.broker.execute(home.now, command, &mut home.log, out);
    }
    home.pass(10);
    home.tick();
    home.broker.execute(home.now, &Command::Worker(Worker::Beat(worker)), &mut home.log, out);
}

#[test]
fn appended_replies_equal_those_of_one_batch() {
    let (mut home, mut together) = (Home::default(), Replies::default());
    batch(&mut home, &mut together);
    batch(&mut home, &mut together);
    let (mut home, mut first, mut second) = (Home::default(), Replies::default(), Replies::default());
    batch(&mut home, &mut first);
    batch(&mut home, &mut second);
    first.append(second);
    assert_eq!(first.list, together.list);
    assert_eq!((first.ids, first.tasks, first.indexes), (together.ids, together.tasks, together.indexes));
    assert_eq!((first.queues, first.receipts), (together.queues, together.receipts));
    assert_eq!(first.workers, together.workers);
    for reply in &together.list {
        let is_there = match reply {
            Reply::Pushed(span) | Reply::Tasks(span) => span.len() >= 2,
            Reply::Inspected(span) | Reply::Acked(span) | Reply::Receipts(span) | Reply::Workers(span) => {
                !span.is_empty()
            }
            Reply::Queues { rows, .. } => rows.len() == 2,
            _ => false,
        };
        assert!(is_there, "{reply:?}");
    }
}

#[test]
fn appended_replies_keep_foreign_ids() {
    let foreign = |id: &[u8]| {
        let state = StateKind::Ready;
        let list = vec![
            Reply::PushedForeign(Span::new(0, 1)),
            Reply::AddedForeign { at: 1, added: true, state },
            Reply::ReceiptsForeign(Span::new(1, 2)),
        ];
        Replies::<Bytes> { list, foreign_ids: vec![Some(id.into()), None], ..Replies::default() }
    };
    let mut both = foreign(b"a");
    both.append(foreign(b"b"));
    let expected = [
        Reply::PushedForeign(Span::new(2, 3)),
        Reply::AddedForeign { at: 3, added: true, state: StateKind::Ready },
        Reply::ReceiptsForeign(Span::new(3, 4)),
    ];
    assert_eq!(both.list[3..], expected);
    assert_eq!(both.foreign_ids, [Some(b"a"[..].into()), None, Some(b"b"[..].into()), None]);
    both.clear();
    assert!(both.list.is_empty() && both.foreign_ids.is_empty());
}
