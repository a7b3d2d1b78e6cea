//! Races: all events that can end one lease, in every order, at the deadline and a millisecond before and after.

use proptest::prelude::*;
use sureq_core::command::{Command, LeaseAsk, Worker};
use sureq_core::reply::Outcome;
use sureq_core::{LogTime, Receipt};

use crate::support::{Answer, Home};
use crate::{beat, by, extend, start};

/// The length of the contested lease and the time to live of its worker.
const MS: u64 = 10;

/// An action that affects the task.
#[derive(Clone, Copy, Debug)]
enum Act {
    /// Its first holder acks it, by receipt or by id.
    FinishByReceipt,
    FinishById,
    /// Its first holder extends the lease.
    Extend,
    /// Its first holder sends a heartbeat.
    Beat,
    /// Its worker is declared lost.
    FailWorker,
    /// A tick.
    Tick,
    /// Another client pops it, if it is ready, and acks it.
    TakeAndFinish,
    /// A millisecond passes.
    Pass,
}

fn acts() -> impl Strategy<Value = Vec<Act>> {
    use Act::{Beat, Extend, FailWorker, FinishById, FinishByReceipt, Pass, TakeAndFinish, Tick};
    let act = prop::sample::select(vec![
        FinishByReceipt,
        FinishById,
        Extend,
        Beat,
        FailWorker,
        Tick,
        Tick,
        TakeAndFinish,
        Pass,
    ]);
    prop::collection::vec(act, 2..8)
}

#[derive(Debug, Default)]
struct Seen {
    finished: u32,
    /// The number of deliveries to others.
    taken: u32,
}

fn contest(by_worker: bool, before: u64, acts: &[Act]) -> Result<(), TestCaseError> {
    let mut home = Home::default();
    let id = home.push(&["a"])[0];
    let worker = start(&mut home, b"w", MS);
    let lease = if by_worker { by(worker) } else { LeaseAsk { ms: Some(MS), ..LeaseAsk::NONE } };
    let receipt = home.take(1, lease)[0].receipt();
    home.pass(MS - before);
    let (mut seen, mut deadline) = (Seen::default(), home.now.log.after(before));
    // The time at which the worker times out, and the time at which the lease lapses if it was extended.
    let (mut dies, mut extended, mut is_failed, mut is_over) = (deadline, None, false, false);
    for act in acts {
        is_over |= home.now.log >= deadline;
        match act {
            Act::FinishByReceipt => {
                let done = home.ack(receipt);
                prop_assert!(!(done && is_over), "a receipt is stale once its delivery is over");
                seen.finished += u32::from(done);
                is_over |= done;
            }
            Act::FinishById => {
                let done = home.ack(id);
                seen.finished += u32::from(done);
                is_over |= done;
            }
            Act::Extend => {
                let outcome = extend(&mut home, receipt, MS);
                prop_assert_eq!(outcome == Outcome::Done, !is_over, "{:?}", outcome);
                if outcome == Outcome::Done {
                    let until = home.now.log.after(MS);
                    extended = Some(until);
                    // A lease of a worker also ends with the worker.
                    deadline = if by_worker { until.min(dies) } else { until };
                }
            }
            Act::Beat if by_worker => {
                let lives = !matches!(beat(&mut home, worker), Answer::Refused(_));
                prop_assert_eq!(
                    lives,
                    home.now.log < dies && !is_failed,
                    "until its time to live is over, not at that moment"
                );
                if lives {
                    dies = home.now.log.after(MS);
                    deadline = extended.map_or(dies, |until: LogTime| until.min(dies));
                }
            }
            Act::FailWorker if by_worker => {
                home.run(&Command::Worker(Worker::Fail { name: b"w" }));
                (is_failed, is_over) = (true, true);
            }
            Act::Beat | Act::FailWorker => {}
            Act::Tick => home.tick(),
            Act::TakeAndFinish => {
                for other in home.take(1, LeaseAsk::NONE) {
                    prop_assert!(is_over, "two clients hold it at once");
                    seen.taken += 1;
                    prop_assert!(!home.ack(receipt), "the first holder's receipt is stale");
                    prop_assert!(home.ack(other.receipt()));
                    seen.finished += 1;
                }
            }
            Act::Pass => home.pass(1),
        }
    }
    // The remaining holder finishes the task; it is finished once in total.
    home.pass(100 * MS);
    home.tick();
    for other in home.take(9, LeaseAsk::NONE) {
        seen.finished += u32::from(home.ack(other.receipt()));
    }
    prop_assert_eq!(seen.finished, 1, "{:?}", seen);
    let late = Receipt { delivery: 9, ..receipt };
    prop_assert!(!home.ack(id) && !home.ack(receipt) && !home.ack(late));
    home.verify();
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 10_000, ..ProptestConfig::default() })]

    #[test]
    fn a_lease_has_one_outcome(before in 0..=1u64, acts in acts()) {
        contest(false, before, &acts)?;
    }

    #[test]
    fn the_lease_of_a_worker_has_one_outcome(before in 0..=1u64, acts in acts()) {
        contest(true, before, &acts)?;
    }
}
