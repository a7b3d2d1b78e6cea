//! Texts: the reasons why a task is not being worked on, and the reasons of refusals.

use sureq_core::command::ConnId;
use sureq_core::reply::{Explanation, HeldUp, Refusal, Why};
use sureq_core::task::{Holder, StateKind, Tries};
use sureq_core::{LogTime, TaskId};

const PAUSED: Option<HeldUp> = Some(HeldUp::Paused { since: LogTime(5) });
const ALL_LEASED: Option<HeldUp> = Some(HeldUp::AllLeased { leased: 3, max: 2 });

fn explained(why: Why) -> Explanation {
    let id = TaskId::new(1, 1).unwrap();
    let tries = Tries { lapsed: 1, ..Tries::default() };
    Explanation { id, deliveries: 4, tries, tries_max: 3, reason: None, worker: None, why }
}

#[test]
fn the_explanation_of_a_waiting_task_gives_the_reason() {
    let ready = |held_up| explained(Why::Ready { ahead: 7, held_up });
    assert_eq!(ready(None).to_string(), "ready, 7 ahead");
    assert_eq!(ready(PAUSED).to_string(), "queue paused since 5; ready, 7 ahead");
    assert_eq!(ready(ALL_LEASED).to_string(), "ready, 7 ahead, but 3 of 2 leased");
    assert_eq!(ready(None).state(), StateKind::Ready);
    let delayed = |in_ms, held_up| explained(Why::Delayed { until: 9, in_ms, held_up });
    assert_eq!(delayed(1, PAUSED).to_string(), "delayed until 9, 1 ms from now; queue paused since 5");
    assert_eq!(delayed(1, None).state(), StateKind::Delayed);
    for (in_ms, expected) in [
        (0, "0 ms"),
        (999, "999 ms"),
        (1_000, "1.0 s"),
        (59_999, "59.9 s"),
        (60_000, "1 min 0 s"),
        (3_599_999, "59 min 59 s"),
        (3_600_000, "1 h 0 min"),
        (172_799_999, "47 h 59 min"),
        (172_800_000, "2 days"),
        (260_000_000, "3 days"),
    ] {
        assert_eq!(delayed(in_ms, None).to_string(), format!("delayed until 9, {expected} from now"));
    }
    let failed = Explanation { reason: Some(b"broke"[..].into()), ..ready(None) };
    assert_eq!(failed.to_string(), "ready, 7 ahead, last reason: broke");
}

#[test]
fn the_explanation_of_a_leased_task_names_its_holder_and_deadline() {
    let leased =
        |until, holder, cancelled| explained(Why::Leased { since: LogTime(5), until, holder, cancelled });
    let (worker, conn) = (Some(Holder::Worker(8)), Some(Holder::Conn(ConnId(6))));
    assert_eq!(leased(None, None, false).to_string(), "leased since 5 with no deadline, delivery 4");
    assert_eq!(leased(Some(LogTime(9)), None, false).to_string(), "leased since 5 until 9, delivery 4");
    assert_eq!(leased(None, worker, false).to_string(), "leased by worker #8 since 5, delivery 4");
    assert_eq!(leased(None, conn, false).to_string(), "leased by connection 6 since 5, delivery 4");
    let named = Explanation { worker: Some(b"w"[..].into()), ..leased(None, worker, true) };
    assert_eq!(
        named.to_string(),
        "leased by w#8 since 5, delivery 4; cancelled: its holder learns it from its next extension or heartbeat"
    );
    assert_eq!(named.state(), StateKind::Leased);
    let failed = Explanation { reason: Some(b"broke"[..].into()), ..leased(None, None, false) };
    assert_eq!(
        failed.to_string(),
        "leased since 5 with no deadline, delivery 4",
        "the reason of an earlier failure is not shown"
    );
}

#[test]
fn the_explanation_of_a_dead_task_shows_whether_its_tries_were_spent() {
    let dead = |lapsed| Explanation {
        tries: Tries { lapsed, ..Tries::default() },
        ..explained(Why::Dead { at: LogTime(5) })
    };
    assert_eq!(dead(2).to_string(), "dead: buried after 2 of 3 tries");
    assert_eq!(dead(3).to_string(), "dead: 3 of 3 tries");
    assert_eq!(dead(4).to_string(), "dead: 4 of 3 tries");
    assert_eq!(dead(3).state(), StateKind::Dead);
}

#[test]
fn a_refusal_names_the_problem() {
    let expected = [
        (Refusal::TooLarge { what: "the payload", max: 9 }, "the payload is too large: at most 9 bytes"),
        (
            Refusal::TooMany { what: "tasks", max: 9 },
            "too many tasks: at most 9 in one command; send several commands",
        ),
        (Refusal::OutOfRange { what: "the delay" }, "the delay is out of range"),
        (Refusal::Unavailable { why: "no disk".into() }, "nothing was done: no disk"),
        (Refusal::Unknown { why: "no answer".into() }, "outcome unknown: no answer"),
    ];
    for (refusal, words) in expected {
        assert_eq!(refusal.to_string(), words);
    }
}

#[test]
fn each_refusal_has_its_code() {
    let why = || "why".into();
    let codes = [
        (Refusal::WrongType { words: why() }, "WRONGTYPE"),
        (Refusal::QueueFull, "QUEUEFULL"),
        (Refusal::WorkerGone, "GONE"),
        (Refusal::WorkerReplaced, "GONE"),
        (Refusal::not_there("task", "q"), "NOTTHERE"),
        (Refusal::NoSpace, "NOSPACE"),
        (Refusal::OutOfMemory, "OOM"),
        (Refusal::Poisoned, "POISONED"),
        (Refusal::QueuePoisoned { why: why() }, "POISONED"),
        (Refusal::Closed, "CLOSED"),
        (Refusal::Damaged { id: TaskId::LAST, why: why() }, "DAMAGED"),
        (Refusal::Unavailable { why: why() }, "UNAVAILABLE"),
        (Refusal::Unknown { why: why() }, "UNKNOWN"),
        (Refusal::MalformedId, "ERR"),
        (Refusal::NoMoreIds, "ERR"),
    ];
    for (refusal, code) in codes {
        assert_eq!(refusal.code(), code);
    }
}
