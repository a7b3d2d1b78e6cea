//! Checks that each event that makes a task available wakes a waiting client in time. No faults are injected
//! meanwhile.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use sureq_core::command::{
    Add, Block, Command, ConnId, IdForm, LeaseAsk, Pop, Return, TaskRef, TaskRefs, View, When, Worker,
    WorkerRef,
};
use sureq_core::reply::{Replies, Reply};
use sureq_core::settings::{Change, Changes, Place};
use sureq_core::{LogTime, WallTime, limits};
use sureq_engine::clock::Clock as _;
use sureq_home_api::{Home as _, Ticket};
use sureq_sync::{now, thread};

use crate::client::{Client, Lease, queue_name};
use crate::history::Delivery;
use crate::plan::Plan;

/// How late a waiting client may be woken.
const LATE_MAX: Duration = Duration::from_millis(50);

/// Every thread switch takes simulated time; this many switches are allowed on top of the bound.
const TURNS: u32 = 1_000;

/// Longer than a client takes until it waits.
const IN_LINE: Duration = Duration::from_secs(1);

/// How long the disk is full during a large push, and the most bytes by which that exceeds a segment.
const FULL: Duration = Duration::from_secs(2);
const LARGE_BYTES: usize = 100_000;

/// Longer than any check takes.
const LONG_MS: u64 = 600_000;

/// The queue that clients wait for. It is empty.
const QUEUE: usize = 0;

/// Another queue, and the number of queues that are used here.
const OTHER_QUEUE: usize = 1;
pub(crate) const CHECKED_QUEUES: usize = 3;

/// How late a waiting client may be woken, with the thread switches until it is.
pub(crate) fn late_max(plan: &Plan) -> Duration {
    LATE_MAX + plan.step_max() * TURNS
}

impl Client {
    /// Lets a client wait for a task, and makes one available in a different way each time.
    pub(crate) fn check_liveness(&mut self) {
        let name = queue_name(QUEUE);
        self.wakes("a push", |client| {
            client.push_one();
            now()
        });
        self.wakes("a delayed task", |client| client.add_after(Duration::from_secs(3)));
        self.wakes("a task with a time of day", |client| client.add_at(Duration::from_millis(3_030)));
        let (_, due) = self.pushed_and_taken(Lease::of_ms(5_000), Duration::from_secs(5));
        self.wakes("a lease that lapses", |_| due);
        let (taken, _) = self.pushed_and_taken(Lease::of_ms(LONG_MS), Duration::ZERO);
        self.wakes("a return with a delay", |client| client.return_after(taken, 1_500));
        let (taken, _) = self.pushed_and_taken(Lease::of_ms(LONG_MS), Duration::ZERO);
        self.wakes("a shorter lease", |client| client.shorten(taken, 1_500));
        self.wakes_by_worker(&name, 0);
        self.wakes_by_worker(&name, 2);
        self.comes_back_from_worker(&name);
        let ask = LeaseAsk { conn: Some(ConnId(1)), ..LeaseAsk::NONE };
        let (taken, _) = self.pushed_and_taken(Lease { ask, until: None }, Duration::ZERO);
        self.wakes("a connection that closes", |client| {
            client.let_come(&taken);
            client.engine.close_conn(ConnId(1));
            now()
        });
        if let Some(gone) = self.wait_and_forget(&name) {
            self.push_one();
            self.wakes("a client that is gone when it is served", |_| {
                drop(gone);
                now()
            });
        }
        self.ask(Command::Pause { queue: &name });
        self.push_one();
        self.wakes("a queue that is resumed", |client| {
            client.resume(QUEUE);
            now()
        });
        let (taken, _) = self.pushed_and_taken(Lease::of_ms(LONG_MS), Duration::ZERO);
        self.bury(taken);
        self.wakes("a task that is revived", |client| {
            client.ask(Command::Revive { queue: &queue_name(QUEUE), tasks: None });
            now()
        });
        self.wakes_after_failure();
        self.wakes_by_limit();
        self.wakes_by_dead_letter();
        self.wakes_by_another_queue();
        self.others_go_on_beside_a_large_push();
    }

    /// Pushes a task that is larger than a segment while the disk has no space for it. Reports other commands that
    /// are answered late meanwhile.
    fn others_go_on_beside_a_large_push(&mut self) {
        let (taken, _) = self.pushed_and_taken(Lease::of_ms(LONG_MS), Duration::ZERO);
        let bytes = self.plan.segment_bytes as usize + self.rng.usize(..LARGE_BYTES);
        let (begun, pushes) = (self.begin_one(QUEUE, bytes), self.another());
        self.disk.leave_room(Some(self.rng.u64(..self.plan.segment_bytes)));
        let large = thread::spawn("large push", move || pushes.push_begun(QUEUE, &[begun]));
        let disk = self.disk.clone();
        let relief = thread::spawn("relief", move || {
            thread::sleep(FULL);
            disk.relieve();
        });
        let (late_max, until) = (late_max(&self.plan), now() + FULL);
        while now() < until {
            let asked = now();
            self.shorten(taken.clone(), LONG_MS);
            let took = now() - asked;
            if took > late_max && self.engine.failure().is_none() {
                let finding = format!("a command took {took:?} while a large push waited for room");
                self.history().findings.push(finding);
            }
            thread::sleep(FULL / 10);
        }
        for thread in [large, relief] {
            // The simulation counts panics of these threads.
            _ = thread.expect("the system has a thread").join();
        }
        self.finish(&taken);
        let left = self.take(QUEUE, 2, Lease::of_ms(LONG_MS), None);
        self.finish(&left);
    }

    /// A task that has failed comes back after its backoff, whose random part the core decides.
    fn wakes_after_failure(&mut self) {
        let (taken, _) = self.pushed_and_taken(Lease::of_ms(LONG_MS), Duration::ZERO);
        let looked = now();
        let leased = self.look_at_first(View::Leased);
        self.wakes("a retry after a failure", |client| {
            client.let_come(&taken);
            for delivery in &taken {
                let task = TaskRef { bytes: &delivery.receipt, form: IdForm::Long };
                let queue = &queue_name(QUEUE);
                client.ask(Command::Return(Return {
                    queue,
                    task,
                    to: None,
                    failed: Some(b"x"),
                    is_last: false,
                }));
            }
            let (Some((since, elapsed_ms)), Some((due, _))) = (leased, client.look_at_first(View::Delayed))
            else {
                return now();
            };
            let wait = Duration::from_millis(due.0.saturating_sub(since.0 + elapsed_ms));
            if wait.is_zero() {
                client.history().findings.push("a failed task does not wait".into());
            }
            looked + wait
        });
    }

    /// The time of the first task of a state, and the milliseconds since then.
    fn look_at_first(&self, view: View) -> Option<(LogTime, u64)> {
        let name = queue_name(QUEUE);
        let replies = self.ask(Command::Inspect { queue: &name, view, start: 0, count: 1 })?;
        replies.tasks.first().map(|task| (task.at, task.elapsed_ms))
    }

    /// A task that could not be delivered because of MAX-LEASED is when another is finished, or the limit is raised.
    fn wakes_by_limit(&mut self) {
        for what in ["a slot that is free again", "a limit that is raised", "a limit that is removed"] {
            self.set(QUEUE, Change::MaxLeased(1));
            let begun = self.begin(QUEUE, 2, now());
            self.push_begun(QUEUE, &begun);
            let taken = self.take(QUEUE, 1, Lease::of_ms(LONG_MS), None);
            self.wakes(what, |client| {
                match what {
                    "a slot that is free again" => client.finish(&taken),
                    "a limit that is raised" => client.set(QUEUE, Change::MaxLeased(2)),
                    _ => client.set(QUEUE, Change::MaxLeased(0)),
                }
                now()
            });
            self.set(QUEUE, Change::MaxLeased(0));
            self.finish(&taken);
        }
    }

    /// A dead task moves to another queue.
    fn wakes_by_dead_letter(&mut self) {
        self.set(OTHER_QUEUE, Change::DeadLetter(&queue_name(QUEUE)));
        for is_buried in [true, false] {
            let begun = self.begin(OTHER_QUEUE, 1, now());
            self.push_begun(OTHER_QUEUE, &begun);
            let taken = self.take(OTHER_QUEUE, 1, Lease::of_ms(LONG_MS), None);
            self.wakes("a task that dies in another queue", |client| {
                client.let_come(&taken);
                for delivery in &taken {
                    client.history().begin_burial(delivery.number, Some(QUEUE));
                    let (queue, list) = (&queue_name(OTHER_QUEUE), [delivery.receipt.as_slice()]);
                    let task = TaskRef { bytes: list[0], form: IdForm::Long };
                    client.ask(if is_buried {
                        Command::Bury { queue, tasks: TaskRefs { list: &list, form: IdForm::Long } }
                    } else {
                        Command::Return(Return { queue, task, to: None, failed: Some(b"x"), is_last: true })
                    });
                }
                now()
            });
        }
        self.set(OTHER_QUEUE, Change::DeadLetter(b""));
    }

    /// A pop waits for several queues at once.
    fn wakes_by_another_queue(&mut self) {
        let queues = [QUEUE, OTHER_QUEUE, CHECKED_QUEUES - 1];
        let queue = queues[self.rng.usize(..queues.len())];
        self.wakes_on(&queues, "a push to one of several queues", |client| {
            let begun = client.begin(queue, 1, now());
            client.push_begun(queue, &begun);
            now()
        });
    }

    fn set(&self, queue: usize, change: Change<'_>) {
        let changes = Changes::List(&[change]);
        self.ask(Command::Config { queue: &queue_name(queue), changes });
    }

    fn wakes(&mut self, what: &str, act: impl FnOnce(&mut Self) -> Instant) {
        self.wakes_on(&[QUEUE], what, act);
    }

    /// Lets a client wait, and calls `act`, which makes a task available at the time that it returns. Reports if the
    /// client receives the task late.
    fn wakes_on(&mut self, queues: &[usize], what: &str, act: impl FnOnce(&mut Self) -> Instant) {
        let queues = queues.to_vec();
        let got = Arc::new(Mutex::new(None));
        let (waiter, gets) = (self.another(), Arc::clone(&got));
        let waits = thread::spawn("waiter", move || {
            let taken = waiter.take_any(&queues, 1, Lease::of_ms(LONG_MS), Some(Block::Millis(LONG_MS)));
            let came = now();
            waiter.finish(&taken);
            *gets.lock().unwrap_or_else(PoisonError::into_inner) = Some((came, taken.len()));
        });
        thread::sleep(IN_LINE);
        let due = act(self);
        let is_over = waits.expect("the system has a thread").join().is_err();
        let got = got.lock().unwrap_or_else(PoisonError::into_inner).take();
        let late_max = late_max(&self.plan);
        let finding = match got {
            _ if is_over || self.engine.failure().is_some() => return,
            Some((came, 1)) if came <= due + late_max => return,
            Some((came, 1)) => format!("{what} wakes {:?} late", came - due),
            _ => format!("{what} wakes no client"),
        };
        self.history().findings.push(finding);
    }

    fn push_one(&mut self) {
        let begun = self.begin(QUEUE, 1, now());
        self.push_begun(QUEUE, &begun);
    }

    fn add_after(&mut self, delay: Duration) -> Instant {
        let begun = self.begin(QUEUE, 1, now() + delay);
        let when = When::After(delay.as_millis() as u64);
        self.add_begun(QUEUE, &begun[0], Add { when, ..Add::plain(&[], &[]) });
        now() + delay
    }

    fn add_at(&mut self, delay: Duration) -> Instant {
        let begun = self.begin(QUEUE, 1, now() + delay);
        let at = WallTime(self.clock.wall_ms() + delay.as_millis() as u64);
        self.add_begun(QUEUE, &begun[0], Add { when: When::At(at), ..Add::plain(&[], &[]) });
        now() + delay
    }

    /// Begins to wait for a task, and never takes the answer.
    fn wait_and_forget(&self, queue: &[u8]) -> Option<Ticket> {
        let lease = LeaseAsk { ms: Some(LONG_MS), ..LeaseAsk::NONE };
        let pop = Pop { queues: &[queue], count: 1, block: Some(Block::Forever), lease, meta: false };
        self.engine.submit(&[Command::Pop(pop)], &mut Replies::default()).into_ticket()
    }

    /// Pushes a task and pops it. Returns the delivery, and the time after `time`.
    fn pushed_and_taken(&mut self, lease: Lease<'_>, time: Duration) -> (Vec<Delivery>, Instant) {
        self.push_one();
        let taken = self.take(QUEUE, 1, lease, None);
        if taken.len() != 1 {
            self.history().findings.push(format!("{} tasks of one", taken.len()));
        }
        (taken, now() + time)
    }

    fn let_come(&self, taken: &[Delivery]) {
        for delivery in taken {
            self.history().begin_taking(delivery.number, now(), Duration::ZERO);
        }
    }

    fn return_after(&self, taken: Vec<Delivery>, ms: u64) -> Instant {
        for delivery in taken {
            self.history().begin_taking(delivery.number, now(), Duration::from_millis(ms));
            let task = TaskRef { bytes: &delivery.receipt, form: IdForm::Long };
            let to = Some(Place::After(ms));
            let queue = &queue_name(QUEUE);
            self.ask(Command::Return(Return { queue, task, to, failed: None, is_last: false }));
        }
        now() + Duration::from_millis(ms)
    }

    fn shorten(&self, taken: Vec<Delivery>, ms: u64) -> Instant {
        for delivery in taken {
            self.history().begin_taking(delivery.number, now(), Duration::from_millis(ms));
            let task = TaskRef { bytes: &delivery.receipt, form: IdForm::Long };
            self.ask(Command::Extend { queue: &queue_name(QUEUE), task, ms });
        }
        now() + Duration::from_millis(ms)
    }

    fn bury(&self, taken: Vec<Delivery>) {
        for delivery in taken {
            self.history().begin_taking(delivery.number, now(), Duration::ZERO);
            let list = [delivery.receipt.as_slice()];
            let tasks = TaskRefs { list: &list, form: IdForm::Long };
            self.ask(Command::Bury { queue: &queue_name(QUEUE), tasks });
        }
    }

    /// Checks that all tasks of a stopped worker can be popped again at once, however many it holds.
    fn comes_back_from_worker(&mut self, queue: &[u8]) {
        let slice = limits::SLICE_TASKS;
        let count = [2, 20, slice, slice + 1, 2 * slice + 1][self.rng.usize(..5)];
        let (ttl_ms, name) = (LONG_MS, &b"holds many"[..]);
        let replies = self.ask(Command::Worker(Worker::Start { name, ttl_ms }));
        let Some([Reply::Started(incarnation)]) = replies.as_ref().map(|replies| &replies.list[..]) else {
            return;
        };
        let worker = WorkerRef { name, incarnation: *incarnation };
        for numbers in (0..count).collect::<Vec<_>>().chunks(slice) {
            let begun = self.begin_small(QUEUE, numbers.len(), now());
            self.push_begun(QUEUE, &begun);
        }
        let ask = LeaseAsk { worker: Some(worker), ..LeaseAsk::NONE };
        let lease = Lease { ask, until: Some(now() + Duration::from_millis(ttl_ms)) };
        let taken = self.take(QUEUE, count as u32, lease, None);
        let all = taken.len();
        self.let_come(&taken);
        self.ask(Command::Worker(Worker::Stop(worker)));
        thread::sleep(LATE_MAX);
        let back = self.take(QUEUE, count as u32, Lease::of_ms(LONG_MS), None);
        if (all, back.len()) != (count, count) && self.engine.failure().is_none() {
            let finding = format!("{} tasks of {count} came back from a worker that had {all}", back.len());
            self.history().findings.push(finding);
        }
        let info = self.ask(Command::Info { queue });
        if let Some([Reply::Info(info)]) = info.as_ref().map(|replies| &replies.list[..])
            && info.leased != back.len() as u64
        {
            let finding = format!("{} tasks count as leased, of {}", info.leased, back.len());
            self.history().findings.push(finding);
        }
        self.finish(&back);
    }

    /// Lets a worker pop a task, send a number of heartbeats and be lost. It must hold the task until then, and no
    /// longer.
    fn wakes_by_worker(&mut self, queue: &[u8], beats: usize) {
        let (ttl, name) = (Duration::from_secs(4), &b"last"[..]);
        let mut asked = now();
        let ttl_ms = ttl.as_millis() as u64;
        let replies = self.ask(Command::Worker(Worker::Start { name, ttl_ms }));
        let Some([Reply::Started(incarnation)]) = replies.as_ref().map(|replies| &replies.list[..]) else {
            return;
        };
        let mut lost = now() + ttl;
        let worker = WorkerRef { name, incarnation: *incarnation };
        self.ask(Command::Worker(Worker::Work(worker, queue)));
        let ask = LeaseAsk { worker: Some(worker), ..LeaseAsk::NONE };
        let (taken, _) = self.pushed_and_taken(Lease { ask, until: Some(asked + ttl) }, Duration::ZERO);
        for _ in 0..beats {
            thread::sleep(ttl * 3 / 4);
            asked = now();
            self.ask(Command::Worker(Worker::Beat(worker)));
            lost = now() + ttl;
            for delivery in &taken {
                self.history().is_held_until(delivery, asked + ttl);
            }
        }
        self.wakes("a worker that is lost", |_| lost);
    }
}
