//! Each kind of violation is reported, and no legal history is.

use std::time::Duration;

use sureq_history::{Delivery, EPSILON, Findings, History, Outcome, Push, Time};

const LEASE: Duration = Duration::from_secs(1);

fn ms(ms: u64) -> Time {
    Time::from_micros(ms * 1_000)
}

/// A delivery with a lease of a second, asked for and received at these milliseconds.
fn leased(number: u64, asked: u64, received: u64) -> Delivery {
    Delivery { asked: ms(asked), received: ms(received), lease: Some(LEASE), ..Delivery::untimed(number) }
}

/// A history of this many confirmed tasks.
fn confirmed(count: u64) -> History {
    let mut history = History::default();
    for _ in 0..count {
        let push = history.invoke_push(1);
        history.complete_push(push, Outcome::Ok);
    }
    history
}

fn finish(history: &mut History, number: u64, outcome: Outcome, at: u64) {
    history.invoke_finish(number);
    history.complete_finish(number, outcome, ms(at));
}

fn deny(history: &mut History, number: u64, at: u64) {
    history.invoke_finish(number);
    history.deny_finish(number, ms(at));
}

fn expect(history: &History, expected: Findings) {
    assert_eq!(history.findings(0), expected, "{history}");
}

#[test]
fn a_confirmed_task_that_is_gone_is_lost() {
    let mut history = confirmed(5);
    // 0 was finished; the finish of 1 has an unknown outcome; 2 was never delivered; 3 was delivered; the finish of 4
    // was refused after its lease.
    history.deliver(&leased(0, 0, 1));
    finish(&mut history, 0, Outcome::Ok, 2);
    history.deliver(&leased(1, 0, 1));
    finish(&mut history, 1, Outcome::Unknown, 2);
    history.deliver(&leased(3, 0, 1));
    history.deliver(&leased(4, 0, 1));
    deny(&mut history, 4, 2_000);
    expect(&history, Findings { lost: 3, ..Findings::default() });
    assert_eq!(history.findings(2).lost, 1, "a task that is still in the queue is not lost");
    assert_eq!(history.findings(9).lost, 0);
}

#[test]
fn a_finish_without_an_answer_may_have_happened() {
    let mut history = confirmed(1);
    history.deliver(&leased(0, 0, 1));
    history.invoke_finish(0);
    expect(&history, Findings::default());
    // Refusals of other finishes prove nothing: the first one may have taken effect.
    for at in 2..9 {
        deny(&mut history, 0, at);
    }
    expect(&history, Findings::default());
}

#[test]
fn many_open_finishes_are_not_forgotten() {
    let mut history = confirmed(1);
    (0..300).for_each(|_| history.invoke_finish(0));
    (0..299).for_each(|_| history.deny_finish(0, ms(1)));
    expect(&history, Findings::default());
}

#[test]
fn a_push_without_an_answer_may_have_happened() {
    let mut history = History::default();
    let pushes = [history.invoke_push(1), history.invoke_push(2), history.invoke_push(2)];
    for push in pushes {
        history.complete_push(push, Outcome::Unknown);
    }
    for number in pushes[1].numbers() {
        history.deliver(&leased(number, 0, 1));
        finish(&mut history, number, Outcome::Ok, 2);
    }
    expect(&history, Findings::default());
    assert_eq!(history.executed_unconfirmed(), 2);
    history.deliver(&leased(pushes[2].first, 0, 1));
    expect(&history, Findings { torn: 1, ..Findings::default() });
    assert_eq!(history.findings(1).torn, 0, "the other one may be left");
}

#[test]
fn a_delivery_without_a_push_is_a_phantom() {
    let mut history = confirmed(1);
    let failed = [history.invoke_push(1), history.invoke_push(1)];
    history.deliver(&leased(failed[0].first, 0, 1));
    for push in failed {
        history.complete_push(push, Outcome::Failed);
    }
    // Delivered before and after the push failed; never pushed at all; and with a payload that belongs to no task.
    history.deliver(&leased(failed[1].first, 0, 1));
    history.deliver(&leased(77, 0, 1));
    history.deliver(&Delivery { number: None, ..leased(0, 0, 1) });
    assert_eq!(history.findings(1), Findings { phantom: 4, ..Findings::default() }, "{history}");
}

#[test]
fn a_finished_task_that_is_delivered_is_resurrected() {
    let mut history = confirmed(2);
    history.deliver(&leased(0, 0, 10));
    finish(&mut history, 0, Outcome::Ok, 20);
    history.deliver(&leased(0, 21, 30));
    history.deliver(&Delivery::untimed(1));
    finish(&mut history, 1, Outcome::Ok, 20);
    history.deliver(&Delivery::untimed(1));
    expect(&history, Findings { resurrected: 2, ..Findings::default() });
}

#[test]
fn a_delivery_recorded_before_the_finish_can_be_a_resurrection() {
    let mut history = confirmed(1);
    history.invoke_finish(0);
    history.deliver(&leased(0, 21, 30));
    history.complete_finish(0, Outcome::Ok, ms(20));
    expect(&history, Findings { resurrected: 1, ..Findings::default() });
}

#[test]
fn a_delivery_that_crosses_a_finish_is_legal() {
    let mut history = confirmed(1);
    // Its lease lapsed, another client requested it, and then the first client finished it by its id.
    history.deliver(&leased(0, 0, 10));
    finish(&mut history, 0, Outcome::Ok, 1_020);
    history.deliver(&leased(0, 1_019, 1_030));
    deny(&mut history, 0, 1_040);
    expect(&history, Findings::default());
}

#[test]
fn a_finish_of_long_ago_is_not_forgotten() {
    let mut history = confirmed(3);
    for (number, at) in [(0, 1_000), (1, 20_000), (2, 40_000)] {
        history.deliver(&leased(number, at - 10, at - 5));
        finish(&mut history, number, Outcome::Ok, at);
    }
    // The time of the finish of 0 is forgotten, but it was certainly before 20 s.
    history.deliver(&leased(0, 900, 40_000));
    expect(&history, Findings::default());
    history.deliver(&leased(0, 20_001, 40_000));
    expect(&history, Findings { resurrected: 1, ..Findings::default() });
}

#[test]
fn two_leases_that_certainly_overlap_are_reported() {
    let ends = 1_000 - EPSILON.as_millis() as u64;
    for (asked, received, is_found) in [
        (500, ends - 1, true),
        (500, ends, false),
        (ends, ends + 1, false),
        // Requested before the first client received it; but at 10 ms both clients hold it.
        (1, 9, true),
    ] {
        let mut history = confirmed(1);
        history.deliver(&leased(0, 0, 10));
        history.deliver(&leased(0, asked, received));
        let double_held = u64::from(is_found);
        assert_eq!(
            history.findings(1),
            Findings { double_held, ..Findings::default() },
            "{asked}–{received}"
        );
    }
}

#[test]
fn a_lease_that_was_over_when_its_reply_came_overlaps_nothing() {
    let mut history = confirmed(1);
    history.deliver(&leased(0, 0, 5_000));
    history.deliver(&leased(0, 1_001, 1_002));
    history.deliver(&leased(0, 4_000, 5_001));
    assert_eq!(history.findings(1), Findings::default(), "{history}");
}

#[test]
fn a_finish_does_not_free_a_task_for_others() {
    let mut history = confirmed(1);
    history.deliver(&leased(0, 0, 10));
    finish(&mut history, 0, Outcome::Unknown, 20);
    history.deliver(&leased(0, 30, 40));
    expect(&history, Findings { double_held: 1, ..Findings::default() });
}

#[test]
fn a_release_frees_a_task_for_others() {
    let mut history = confirmed(2);
    history.deliver(&leased(0, 0, 10));
    history.release(0, ms(20));
    history.deliver(&leased(0, 21, 22));
    history.deliver(&Delivery::untimed(1));
    history.release(1, ms(20));
    history.deliver(&Delivery { asked: ms(21), received: ms(22), ..Delivery::untimed(1) });
    assert_eq!(history.findings(2), Findings::default(), "{history}");
    history.deliver(&leased(1, 30, 40));
    assert_eq!(history.findings(2), Findings { double_held: 1, ..Findings::default() }, "{history}");
}

#[test]
fn without_a_lease_a_task_is_held_until_a_crash() {
    let mut history = confirmed(2);
    history.deliver(&Delivery::untimed(0));
    history.deliver(&Delivery::untimed(1));
    history.release_all();
    history.deliver(&Delivery::untimed(0));
    assert_eq!(history.findings(2), Findings::default(), "{history}");
    history.deliver(&Delivery::untimed(0));
    assert_eq!(history.findings(2), Findings { double_held: 1, ..Findings::default() }, "{history}");
}

#[test]
fn two_confirmed_finishes_are_reported() {
    let mut history = confirmed(1);
    history.deliver(&leased(0, 0, 10));
    finish(&mut history, 0, Outcome::Ok, 20);
    finish(&mut history, 0, Outcome::Ok, 30);
    expect(&history, Findings { finished_twice: 1, ..Findings::default() });
}

#[test]
fn a_finish_by_the_holder_must_not_be_refused() {
    let mut history = confirmed(4);
    history.deliver(&Delivery::untimed(0));
    history.deliver(&leased(1, 0, 10));
    // An unreachable queue is not a refusal.
    finish(&mut history, 0, Outcome::Failed, 15);
    // The lease of 2 is over, and another client holds 3 as well.
    history.deliver(&leased(2, 0, 10));
    history.deliver(&leased(3, 0, 10));
    history.deliver(&leased(3, 999, 1_001));
    for (number, at) in [(0, 20), (1, 20), (2, 999), (3, 1_002)] {
        deny(&mut history, number, at);
    }
    assert_eq!(history.findings(4), Findings { denied: 2, ..Findings::default() }, "{history}");
}

#[test]
fn a_stale_receipt_finishes_nothing() {
    // A finding only if the second delivery was certainly granted after the first was received, and was received
    // before the finish was sent.
    for (asked, received, is_found) in [(1_010, 1_020, true), (1_010, 1_040, false), (5, 1_020, false)] {
        let mut history = confirmed(1);
        let own = leased(0, 0, 10);
        history.deliver(&own);
        history.deliver(&leased(0, asked, received));
        history.check_receipt(&own, ms(1_030));
        finish(&mut history, 0, Outcome::Ok, 1_050);
        expect(&history, Findings { stale: u64::from(is_found), ..Findings::default() });
    }
}

#[test]
fn an_id_belongs_to_one_task() {
    let mut history = confirmed(3);
    history.note_ids(Push { first: 0, count: 2 }, &[5, 6]);
    history.deliver(&Delivery { id: Some(5), ..leased(0, 0, 1) });
    assert_eq!(history.findings(3), Findings::default());
    // Two ids of one task, which was executed twice; and one id of two tasks.
    history.deliver(&Delivery { id: Some(7), ..leased(1, 0, 1) });
    history.deliver(&Delivery { id: Some(5), ..leased(2, 0, 1) });
    assert_eq!(history.findings(3), Findings { repeated_ids: 2, ..Findings::default() }, "{history}");
}
