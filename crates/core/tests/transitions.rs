//! The table of transitions: every state of a task against every command about it.
//!
//! A row is a command, a column the state before it; a cell is the reply and the state afterwards.
#![expect(unreachable_pub, reason = "the modules of a test share items")]
#![allow(clippy::unwrap_used, clippy::needless_pass_by_value, reason = "test helpers may panic")]

mod support;

use support::{Answer, Home, leased};
use sureq_core::command::{
    AckScope, Add, Cancel, Command, ConnId, IdForm, LeaseAsk, Return, TaskRef, TaskRefs, View, When, Worker,
    WorkerRef,
};
use sureq_core::reply::Outcome;
use sureq_core::settings::{Change, Place};
use sureq_core::{Receipt, TaskId};

/// The states of a task, as far as commands distinguish them.
const STATES: [&str; 12] = [
    "ready", "delayed", "leased", "timed", "worker", "conn", "marked", "lapsed", "returned", "backoff",
    "dead", "gone",
];

struct Scene {
    home: Home,
    id: TaskId,
    receipt: Receipt,
    worker: u64,
}

/// A queue with one task in that state.
fn scene(state: &str) -> Scene {
    let mut home = Home::default();
    let Answer::Started(worker) = home.run(&Command::Worker(Worker::Start { name: b"w", ttl_ms: 500 }))
    else {
        panic!("a worker starts");
    };
    let when = if state == "delayed" { When::After(100) } else { When::AtOnce };
    let Answer::Added(id, true, _) = home.run(&Command::Add(Add { when, ..Add::plain(b"q", b"x") })) else {
        panic!("a task is added");
    };
    let by_worker =
        LeaseAsk { worker: Some(WorkerRef { name: b"w", incarnation: worker }), ..LeaseAsk::NONE };
    let lease = match state {
        "timed" | "lapsed" | "backoff" => leased(50),
        "worker" => by_worker,
        "conn" => LeaseAsk { conn: Some(ConnId(1)), ..LeaseAsk::NONE },
        _ => LeaseAsk::NONE,
    };
    let mut receipt = Receipt { id, incarnation: 1, delivery: 1 };
    if !matches!(state, "ready" | "delayed" | "dead" | "gone") {
        receipt = home.take(1, lease)[0].receipt();
    }
    match state {
        "marked" => assert_eq!(cancel(&mut home, id), Answer::Count(1)),
        "lapsed" => home.pass(50),
        "returned" => assert_eq!(home.return_task(id, None, None), Outcome::Done),
        "backoff" => assert_eq!(home.return_task(id, None, Some("why")), Outcome::Done),
        "dead" => assert_eq!(
            refs(&id.to_string(), |tasks| home.run(&Command::Bury { queue: b"q", tasks })),
            Answer::Count(1)
        ),
        "gone" => assert_eq!(
            refs(&id.to_string(), |tasks| home.run(&Command::Delete { queue: b"q", tasks })),
            Answer::Count(1)
        ),
        _ => {}
    }
    home.tick();
    Scene { home, id, receipt, worker }
}

fn refs<T>(task: &str, run: impl FnOnce(TaskRefs<'_>) -> T) -> T {
    run(TaskRefs { list: &[task.as_bytes()], form: IdForm::Long })
}

fn cancel(home: &mut Home, id: TaskId) -> Answer {
    refs(&id.to_string(), |tasks| home.run(&Command::Cancel { queue: b"q", which: Cancel::Ids(tasks) }))
}

impl Scene {
    /// Executes a command and returns the reply as a word or a number.
    fn say(&mut self, command: &str) -> String {
        let (id, receipt) = (self.id.to_string(), self.receipt.to_string());
        let stale = Receipt { delivery: self.receipt.delivery + 1, ..self.receipt }.to_string();
        let worker = WorkerRef { name: b"w", incarnation: self.worker };
        let home = &mut self.home;
        let queue = b"q";
        let return_task = |home: &mut Home, task: &str, to, failed| {
            let task = TaskRef { bytes: task.as_bytes(), form: IdForm::Long };
            home.run(&Command::Return(Return { queue, task, to, failed, is_last: false }))
        };
        let extend = |home: &mut Home, task: &str| {
            let task = TaskRef { bytes: task.as_bytes(), form: IdForm::Long };
            home.run(&Command::Extend { queue, task, ms: 70 })
        };
        let ack = |home: &mut Home, task: &str, scope| {
            refs(task, |tasks| home.run(&Command::Ack { queue, tasks, scope }))
        };
        let late = AckScope::LeasedOrLapsed;
        let answer = match command {
            "pop" => Answer::Tasks(home.take(1, LeaseAsk::NONE)),
            "ack id" => ack(home, &id, late),
            "ack id, leased only" => ack(home, &id, AckScope::Leased),
            "ack receipt" => ack(home, &receipt, late),
            "ack other receipt" => ack(home, &stale, late),
            "extend id" => extend(home, &id),
            "extend receipt" => extend(home, &receipt),
            "extend other receipt" => extend(home, &stale),
            "return" => return_task(home, &id, None, None),
            "return back" => return_task(home, &receipt, Some(Place::Back), None),
            "return after" => return_task(home, &receipt, Some(Place::After(10)), None),
            "return failed" => return_task(home, &receipt, None, Some(b"why")),
            "return failed, last try" => {
                home.config(&[Change::Tries(1)]);
                return_task(home, &receipt, None, Some(b"why"))
            }
            "return other receipt" => return_task(home, &stale, None, None),
            "recover" => home.run(&Command::Recover { queue, count: 9, elapsed_ms: 0 }),
            "cancel" => cancel(home, self.id),
            "bury" => refs(&id, |tasks| home.run(&Command::Bury { queue, tasks })),
            "cancel other receipt" => {
                refs(&stale, |tasks| home.run(&Command::Cancel { queue, which: Cancel::Ids(tasks) }))
            }
            "delete other receipt" => refs(&stale, |tasks| home.run(&Command::Delete { queue, tasks })),
            "revive other receipt" => {
                refs(&stale, |tasks| home.run(&Command::Revive { queue, tasks: Some(tasks) }))
            }
            "bury other receipt" => refs(&stale, |tasks| home.run(&Command::Bury { queue, tasks })),
            "revive" => refs(&id, |tasks| home.run(&Command::Revive { queue, tasks: Some(tasks) })),
            "revive all" => home.run(&Command::Revive { queue, tasks: None }),
            "delete" => refs(&id, |tasks| home.run(&Command::Delete { queue, tasks })),
            "purge" => home.run(&Command::Purge { queue, state: None }),
            "purge leased" => home.run(&Command::Purge { queue, state: Some(View::Leased) }),
            "drop" => home.run(&Command::Drop { queues: &[queue] }),
            "beat" => home.run(&Command::Worker(Worker::Beat(worker))),
            "rest" => home.run(&Command::Worker(Worker::Rest(worker, queue))),
            "stop" => home.run(&Command::Worker(Worker::Stop(worker))),
            "fail" => home.run(&Command::Worker(Worker::Fail { name: b"w" })),
            "conn closes" => {
                home.close_conn(ConnId(1));
                Answer::Ok
            }
            "requeue_undelivered" => {
                home.requeue_undelivered(queue, &[self.receipt]);
                Answer::Ok
            }
            "restart" => {
                home.restart(2);
                Answer::Ok
            }
            "200 ms pass" => {
                home.pass(200);
                home.tick();
                Answer::Ok
            }
            other => panic!("no command {other}"),
        };
        match answer {
            Answer::Tasks(tasks) => tasks.len().to_string(),
            Answer::Acked(acked) => acked.len().to_string(),
            Answer::Receipts(receipts) => receipts.len().to_string(),
            Answer::Count(n) => n.to_string(),
            Answer::Outcome(Outcome::Done) => "1".into(),
            Answer::Outcome(Outcome::Stale) => "0".into(),
            Answer::Outcome(Outcome::Cancelled) => "C".into(),
            Answer::Ok => "-".into(),
            other => panic!("{command}: {other:?}"),
        }
    }

    /// The state of the task now: r, d, l, x (dead), or a dot if it is gone.
    fn place(&self) -> char {
        use sureq_core::task::StateKind;
        match self.home.broker.queue(b"q").and_then(|queue| queue.state_of(self.id)) {
            Some(StateKind::Ready) => 'r',
            Some(StateKind::Delayed) => 'd',
            Some(StateKind::Leased) => 'l',
            Some(StateKind::Dead) => 'x',
            None => '.',
        }
    }
}

#[test]
fn every_command_in_every_state() {
    let table = "
                           | ready delayed leased timed worker conn marked lapsed returned backoff dead gone
    pop                    | 1l    0d      0l     0l    0l     0l   0l     1l     1l       0d      0x   0.
    ack id                 | 0r    0d      1.     1.    1.     1.   1.     1.     0r       0d      0x   0.
    ack id, leased only    | 0r    0d      1.     1.    1.     1.   1.     0r     0r       0d      0x   0.
    ack receipt            | 0r    0d      1.     1.    1.     1.   1.     0r     0r       0d      0x   0.
    ack other receipt      | 0r    0d      0l     0l    0l     0l   0l     0r     0r       0d      0x   0.
    extend id              | 0r    0d      1l     1l    1l     1l   Cl     0r     0r       0d      0x   0.
    extend receipt         | 0r    0d      1l     1l    1l     1l   Cl     0r     0r       0d      0x   0.
    extend other receipt   | 0r    0d      0l     0l    0l     0l   0l     0r     0r       0d      0x   0.
    return                 | 0r    0d      1r     1r    1r     1r   C.     0r     0r       0d      0x   0.
    return back            | 0r    0d      1r     1r    1r     1r   C.     0r     0r       0d      0x   0.
    return after           | 0r    0d      1d     1d    1d     1d   C.     0r     0r       0d      0x   0.
    return failed          | 0r    0d      1d     1d    1d     1d   C.     0r     0r       0d      0x   0.
    return failed, last try| 0r    0d      1x     1x    1x     1x   C.     0r     0r       0d      0x   0.
    return other receipt   | 0r    0d      0l     0l    0l     0l   0l     0r     0r       0d      0x   0.
    recover                | 0r    0d      1l     0l    0l     0l   0.     0r     0r       0d      0x   0.
    cancel                 | 1.    1.      1l     1l    1l     1l   0l     1.     1.       1.      0x   0.
    cancel other receipt   | 0r    0d      0l     0l    0l     0l   0l     0r     0r       0d      0x   0.
    bury                   | 1x    1x      1x     1x    1x     1x   1x     1x     1x       1x      0x   0.
    bury other receipt     | 0r    0d      0l     0l    0l     0l   0l     0r     0r       0d      0x   0.
    revive                 | 0r    0d      0l     0l    0l     0l   0l     0r     0r       0d      1r   0.
    revive all             | 0r    0d      0l     0l    0l     0l   0l     0r     0r       0d      1r   0.
    revive other receipt   | 0r    0d      0l     0l    0l     0l   0l     0r     0r       0d      0x   0.
    delete other receipt   | 0r    0d      0l     0l    0l     0l   0l     0r     0r       0d      0x   0.
    delete                 | 1.    1.      1.     1.    1.     1.   1.     1.     1.       1.      1.   0.
    purge                  | 1.    1.      0l     0l    0l     0l   0l     1.     1.       1.      1.   0.
    purge leased           | 0r    0d      0l     0l    0l     0l   0l     0r     0r       0d      0x   0.
    drop                   | 1.    1.      1.     1.    1.     1.   1.     1.     1.       1.      1.   0.
    beat                   | 0r    0d      0l     0l    0l     0l   0l     0r     0r       0d      0x   0.
    rest                   | 0r    0d      0l     0l    1r     0l   0l     0r     0r       0d      0x   0.
    stop                   | 0r    0d      0l     0l    1r     0l   0l     0r     0r       0d      0x   0.
    fail                   | 0r    0d      0l     0l    1r     0l   0l     0r     0r       0d      0x   0.
    conn closes            | -r    -d      -l     -l    -l     -r   -l     -r     -r       -d      -x   -.
    requeue_undelivered              | -r    -d      -r     -r    -r     -r   -.     -r     -r       -d      -x   -.
    restart                | -r    -d      -l     -l    -l     -r   -l     -r     -r       -d      -x   -.
    200 ms pass            | -r    -r      -l     -r    -l     -l   -l     -r     -r       -d      -x   -.
    ";
    for row in table.lines().filter(|row| row.contains('|')).skip(1) {
        let (command, cells) = row.split_once('|').expect("a row has a bar");
        let command = command.trim();
        let found: Vec<String> = STATES
            .iter()
            .map(|state| {
                let mut scene = scene(state);
                let said = scene.say(command);
                scene.home.verify();
                format!("{said}{}", scene.place())
            })
            .collect();
        let expected: Vec<&str> = cells.split_whitespace().collect();
        assert_eq!(found, expected, "{command}, over {STATES:?}");
    }
}
