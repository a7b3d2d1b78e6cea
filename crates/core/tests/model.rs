//! Compares the core with the model: random histories, with every reply compared, every invariant checked, and every
//! log replayed.
//!
//! `SUREQ_TEST_SCALE=10` runs ten times as many histories, `PROPTEST_CASES=40` exactly 40. A failing history is
//! shrunk, printed and kept in `model.proptest-regressions`.
#![expect(unreachable_pub, reason = "the modules of a test share items")]
#![allow(clippy::unwrap_used, clippy::needless_pass_by_value, reason = "test helpers may panic")]

#[path = "model/mod.rs"]
mod model;
mod support;

use model::Model;
use model::command::Happening;
use model::naive::NaiveTask;
use model::plan::{Plan, plan};
use proptest::prelude::*;
use proptest::test_runner::{Config, FileFailurePersistence};
use proptest_state_machine::{ReferenceStateMachine, StateMachineTest, prop_state_machine};
use support::{Answer, Home, Kept};
use sureq_core::command::ConnId;
use sureq_core::event::QueueNo;
use sureq_core::task::StateKind;

impl ReferenceStateMachine for Model {
    type State = Self;
    type Transition = Plan;

    fn init_state() -> BoxedStrategy<Self> {
        Just(Self::default()).boxed()
    }

    fn transitions(_: &Self) -> BoxedStrategy<Plan> {
        plan().boxed()
    }

    fn apply(mut model: Self, plan: &Plan) -> Self {
        let happening = model.resolve(plan.clone());
        model.happen(happening);
        model
    }
}

struct Core;

impl StateMachineTest for Core {
    type SystemUnderTest = Home;
    type Reference = Model;

    fn init_test(_: &Model) -> Home {
        Home::default()
    }

    fn apply(mut home: Home, model: &Model, _: Plan) -> Home {
        let (happening, expected) = model.last.as_ref().expect("the model went first");
        let before: Vec<QueueNo> = poppable(&home);
        match happening {
            Happening::Cmd(cmd) => {
                let mut answer = cmd.with(|command| home.run(command));
                if let Answer::Queues(rows, _) = &mut answer {
                    rows.sort_by_key(|row| home.broker.number_of(&row.name));
                }
                assert_eq!(Some(&answer), expected.as_ref(), "{cmd:?}");
            }
            Happening::Pass(ms) => home.pass(*ms),
            Happening::Wall(ms) => home.now.wall.0 = *ms,
            Happening::Tick => home.tick(),
            Happening::Restart => home.restart(model.incarnation),
            Happening::CloseConn(conn) => home.close_conn(ConnId(*conn)),
            Happening::RequeueUndelivered(queue, receipts) => {
                home.requeue_undelivered(queue.as_bytes(), receipts);
            }
            Happening::Forward(id) => {
                let there = home.broker.queues().any(|(_, queue)| queue.state_of(*id).is_some());
                assert_eq!(home.forward(*id), there, "{id} is copied forward");
                assert!(!home.broker.has_awake(), "it wakes no pop");
            }
        }
        let (awake, now) = (home.awake(), poppable(&home));
        let slept = now.iter().find(|no| !before.contains(no) && !awake.contains(no));
        assert_eq!(slept, None, "a queue from which a pop succeeds now is reported as awake");
        home
    }

    fn check_invariants(home: &Home, model: &Model) {
        for (name, queue) in &model.queues {
            let found = home.broker.queue(name.as_bytes()).expect("the queue is there");
            assert_eq!(found.counts(), queue.counts(), "{name}");
            for id in &model.ids {
                let expected = queue.tasks.get(id).map(NaiveTask::kind);
                assert_eq!(found.state_of(*id), expected, "{id} of {name}");
            }
            // C1: every accepted task exists, is finished, or was removed for a stated reason.
            let totals = found.totals();
            assert_eq!(totals.left(), Some(found.len()), "{name}: {totals:?}");
            assert_eq!(
                (totals.pushed, totals.finished, totals.removed),
                (queue.pushed, queue.finished, queue.removed)
            );
        }
        assert_eq!(home.broker.queues().count(), model.queues.len(), "no other queue exists");
    }

    fn teardown(home: Home, _: Model) {
        let copy = home.copy();
        copy.check().unwrap_or_else(|broken| panic!("a copy: {}", broken.0));
        assert_eq!(copy.digest(), home.broker.digest(), "an export gives the same state");
    }
}

fn poppable(home: &Home) -> Vec<QueueNo> {
    home.broker
        .queues()
        .filter(|(_, queue)| queue.can_pop(home.broker.clock()))
        .map(|(_, queue)| queue.no())
        .collect()
}

/// Verifies after each step. This needs the home mutably, and so cannot be part of `check_invariants`.
struct Verified;

impl StateMachineTest for Verified {
    type SystemUnderTest = Home;
    type Reference = Model;

    fn init_test(model: &Model) -> Home {
        Core::init_test(model)
    }

    fn apply(home: Home, model: &Model, plan: Plan) -> Home {
        let mut home = Core::apply(home, model, plan);
        home.verify();
        home
    }

    fn check_invariants(home: &Home, model: &Model) {
        Core::check_invariants(home, model);
    }

    fn teardown(home: Home, model: Model) {
        Core::teardown(home, model);
    }
}

/// The same with some bodies that cannot be packed, which images cannot contain.
struct Mixed;

impl StateMachineTest for Mixed {
    type SystemUnderTest = Home;
    type Reference = Model;

    fn init_test(_: &Model) -> Home {
        Home::of(Kept::Mixed)
    }

    fn apply(home: Home, model: &Model, plan: Plan) -> Home {
        Verified::apply(home, model, plan)
    }

    fn check_invariants(home: &Home, model: &Model) {
        Core::check_invariants(home, model);
    }

    fn teardown(home: Home, model: Model) {
        Core::teardown(home, model);
    }
}

fn config() -> Config {
    let scale = std::env::var("SUREQ_TEST_SCALE").ok().and_then(|scale| scale.parse().ok()).unwrap_or(1);
    let config = Config::default();
    // Proptest's own variables take precedence: `mutants/core` runs fewer cases and keeps no failures.
    let cases = if std::env::var_os("PROPTEST_CASES").is_some() { config.cases } else { 400 * scale };
    let kept = || Box::new(FileFailurePersistence::WithSource("proptest-regressions")) as Box<_>;
    Config { cases, failure_persistence: config.failure_persistence.as_ref().map(|_| kept()), ..config }
}

prop_state_machine! {
    #![proptest_config(config())]

    #[test]
    fn the_core_behaves_like_the_model(sequential 1..120 => Verified);

    #[test]
    fn bodies_that_cannot_be_packed_are_kept_unchanged(sequential 1..120 => Mixed);
}

#[test]
fn the_model_test_reaches_every_state() {
    use proptest::strategy::ValueTree;
    let mut runner = proptest::test_runner::TestRunner::deterministic();
    let mut met = std::collections::BTreeSet::new();
    let mut model = Model::default();
    for _ in 0..2_000 {
        let plan = plan().new_tree(&mut runner).unwrap().current();
        model = <Model as ReferenceStateMachine>::apply(model, &plan);
        met.extend(model.queues.values().flat_map(|queue| queue.tasks.values().map(NaiveTask::kind)));
    }
    assert_eq!(met.len(), [StateKind::Ready, StateKind::Delayed, StateKind::Leased, StateKind::Dead].len());
}
