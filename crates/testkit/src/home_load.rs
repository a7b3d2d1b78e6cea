//! Producers and workers on a home that record their requests and replies. Their history must be legal, regardless of
//! the faults of the home.
//!
//! They reach the home through the library (`library`), or through a RESP socket (`resp`): a server in front of the
//! home, or a Redis with the module.

mod library;
mod resp;

use std::net::SocketAddr;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use fastrand::Rng;
use sureq_core::command::Block;
use sureq_history::{Counts, Delivery, Findings, Outcome, SharedHistory, Time, payload};

use self::library::LibrarySession;
use self::resp::RespSession;
use crate::patience::until_within;

/// The time limit of homes for a request after the last fault. Only a hang reaches it.
const RECOVERY: Duration = Duration::from_secs(120);

/// The pause of a producer after a push that was not confirmed.
const RETRY: Duration = Duration::from_millis(2);

/// The pops of workers.
#[derive(Clone, Copy, Debug)]
pub struct Asking {
    /// The number of tasks in one pop.
    pub count: u32,
    /// How long a pop waits.
    pub block: Option<Block>,
    pub lease_ms: u64,
    /// The length of the lease that workers assume. More than `lease_ms` is a defect that the history must show.
    pub believed_ms: u64,
}

/// Commands of clients besides pushing, popping and finishing single tasks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Habits {
    /// None.
    Plain,
    /// One push in eight has several tasks. Of 32 deliveries one is dropped, so that its lease lapses, one is
    /// returned, and four are finished late, perhaps after their leases.
    Mixed,
}

/// How clients reach the home.
#[derive(Clone, Debug)]
pub enum Access {
    /// Through the library, by URL.
    Library(String),
    /// By RESP, at this address.
    Resp(SocketAddr),
}

/// Producers and workers of some queues.
pub struct HomeLoad {
    access: Access,
    queues: Vec<Vec<u8>>,
    asking: Asking,
    habits: Habits,
    rng: Mutex<Rng>,
    history: SharedHistory,
    is_over: AtomicBool,
}

/// A task that a session received.
struct Taken {
    id: String,
    receipt: String,
    payload: Vec<u8>,
}

/// A delivery that its worker has not finished yet.
struct Late {
    due: Instant,
    queue: Vec<u8>,
    task: Taken,
    delivery: Delivery,
}

/// The reply to an ack.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum AckReply {
    Done,
    /// The task is not its own, or no longer.
    Denied,
    /// There was no such reply.
    Other(Outcome),
}

/// The connection of one client to the home. It reconnects by itself, and blocks for a bounded time.
trait Session {
    fn push(&mut self, queue: &[u8], payloads: &[Vec<u8>]) -> Outcome;

    /// Takes tasks; an empty list also if the reply was lost.
    fn pop(&mut self, queue: &[u8], asking: &Asking) -> Vec<Taken>;

    fn ack(&mut self, queue: &[u8], id_or_receipt: &str) -> AckReply;

    /// Returns a task to the front. The reply does not matter: the task may be redelivered from the request on.
    fn requeue(&mut self, queue: &[u8], receipt: &str);

    /// The number of tasks of the queue, if the home answers.
    fn count(&mut self, queue: &[u8]) -> Option<u64>;

    fn close(self: Box<Self>);
}

/// Ends the load on drop.
struct Over<'a>(&'a AtomicBool);

impl Drop for Over<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Release);
    }
}

impl HomeLoad {
    /// Clients of these queues of a home, through the library.
    pub fn new(url: &str, queues: &[&[u8]], asking: Asking) -> Self {
        Self::with(Access::Library(url.to_owned()), queues, asking, Habits::Plain, Rng::new())
    }

    /// Clients of these queues of a home.
    pub fn with(access: Access, queues: &[&[u8]], asking: Asking, habits: Habits, rng: Rng) -> Self {
        Self {
            access,
            queues: queues.iter().map(|queue| queue.to_vec()).collect(),
            asking,
            habits,
            rng: Mutex::new(rng),
            history: SharedHistory::default(),
            is_over: AtomicBool::new(false),
        }
    }

    /// Runs `pairs` producers and as many workers while a function runs.
    pub fn run(&self, pairs: usize, happens: impl FnOnce()) {
        std::thread::scope(|scope| {
            for _ in 0..pairs {
                scope.spawn(|| self.produce());
                scope.spawn(|| self.work());
            }
            // Also after a panic, so that no thread waits for them.
            let _over = Over(&self.is_over);
            happens();
        });
    }

    /// The counts so far.
    pub fn counts(&self) -> Counts {
        self.history.lock().counts()
    }

    /// Waits until this many more pushes are confirmed.
    pub fn until_confirmed(&self, more: u64) {
        let before = self.counts().confirmed;
        until_within("pushes are confirmed", RECOVERY, || self.counts().confirmed > before + more);
    }

    /// Waits until more pushes have certainly failed.
    pub fn until_refused(&self) {
        let before = self.counts().failed;
        until_within("pushes are refused", RECOVERY, || self.counts().failed > before);
    }

    /// Finishes the remaining tasks, and checks the history.
    ///
    /// # Panics
    ///
    /// If it is not legal, or too short to prove anything.
    pub fn finish(&self) {
        let found = self.drain();
        let history = self.history.lock();
        assert_eq!(found, Findings::default(), "{history}");
        assert!(history.counts().confirmed > 100, "too few pushes to prove anything: {history}");
    }

    /// Finishes the remaining tasks; returns the findings.
    ///
    /// # Panics
    ///
    /// If tasks remain.
    pub fn drain(&self) -> Findings {
        let mut session = self.session();
        for queue in &self.queues {
            until_within("all are done", RECOVERY, || {
                while self.work_once(&mut *session, queue, &mut None).0 > 0 {}
                session.count(queue) == Some(0)
            });
        }
        session.close();
        let history = self.history.lock();
        println!("{history}");
        history.findings(0)
    }

    fn rng(&self) -> Option<Rng> {
        let mut rng = self.rng.lock().expect("no thread panics with the lock");
        (self.habits == Habits::Mixed).then(|| rng.fork())
    }

    /// Opens a session when the home can be reached.
    fn session(&self) -> Box<dyn Session> {
        let since = Instant::now();
        loop {
            let error = match &self.access {
                Access::Resp(address) => return Box::new(RespSession::new(*address)),
                Access::Library(url) => match LibrarySession::open(url) {
                    Ok(session) => return Box::new(session),
                    Err(error) => error,
                },
            };
            assert!(since.elapsed() < RECOVERY, "the home cannot be opened: {error}");
        }
    }

    fn produce(&self) {
        let (mut session, mut rng) = (self.session(), self.rng());
        while !self.is_over.load(Ordering::Acquire) {
            let count = rng.as_mut().map_or(1, |rng| if rng.u8(..8) == 0 { rng.u64(2..6) } else { 1 });
            let push = self.history.lock().invoke_push(count);
            let queue = &self.queues[push.first as usize % self.queues.len()];
            let payloads: Vec<Vec<u8>> = push.numbers().map(payload::encode).collect();
            let outcome = session.push(queue, &payloads);
            self.history.lock().complete_push(push, outcome);
            if outcome != Outcome::Ok {
                std::thread::sleep(RETRY);
            }
        }
        session.close();
    }

    fn work(&self) {
        let (mut session, mut rng, mut late) = (self.session(), self.rng(), Vec::<Late>::new());
        while !self.is_over.load(Ordering::Acquire) {
            for queue in &self.queues {
                late.extend(self.work_once(&mut *session, queue, &mut rng).1);
            }
            let now = Instant::now();
            for Late { queue, task, delivery, .. } in late.extract_if(.., |late| late.due < now) {
                self.finish_one(&mut *session, &queue, &task, &delivery, By::Receipt);
            }
        }
        session.close();
    }

    /// Pops and finishes some tasks; returns how many, and those to finish later.
    fn work_once(
        &self,
        session: &mut dyn Session,
        queue: &[u8],
        rng: &mut Option<Rng>,
    ) -> (usize, Vec<Late>) {
        let asked = Time::now();
        let tasks = session.pop(queue, &self.asking);
        let (received, lease) = (Time::now(), Duration::from_millis(self.asking.believed_ms));
        let delivery = |task: &Taken| {
            let number = payload::decode(&task.payload);
            Delivery { number, id: None, asked, received, lease: Some(lease) }
        };
        let tasks: Vec<_> = tasks.into_iter().map(|task| (delivery(&task), task)).collect();
        for (delivery, _) in &tasks {
            self.history.lock().deliver(delivery);
        }
        let (count, mut late) = (tasks.len(), Vec::new());
        for (delivery, task) in tasks {
            let Some(number) = delivery.number else { continue };
            match rng.as_mut().map_or(u8::MAX, |rng| rng.u8(..32)) {
                0 => {}
                1 => {
                    self.history.lock().release(number, Time::now());
                    session.requeue(queue, &task.receipt);
                }
                2..6 => {
                    let due = Instant::now() + lease.mul_f64(rng.as_mut().map_or(0.0, Rng::f64) * 2.0);
                    late.push(Late { due, queue: queue.to_vec(), task, delivery });
                }
                _ => {
                    let by = if number.is_multiple_of(2) { By::Id } else { By::Receipt };
                    self.finish_one(session, queue, &task, &delivery, by);
                }
            }
        }
        (count, late)
    }

    fn finish_one(&self, session: &mut dyn Session, queue: &[u8], task: &Taken, delivery: &Delivery, by: By) {
        let Some(number) = delivery.number else { return };
        self.history.lock().invoke_finish(number);
        let sent = Time::now();
        let outcome = session.ack(queue, if by == By::Id { &task.id } else { &task.receipt });
        let (at, mut history) = (Time::now(), self.history.lock());
        match outcome {
            AckReply::Done => {
                if by == By::Receipt {
                    history.check_receipt(delivery, sent);
                }
                history.complete_finish(number, Outcome::Ok, at);
            }
            AckReply::Denied => history.deny_finish(number, at),
            AckReply::Other(outcome) => history.complete_finish(number, outcome, at),
        }
    }
}

/// How a task is finished: by its id (the current delivery) or its receipt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum By {
    Id,
    Receipt,
}
