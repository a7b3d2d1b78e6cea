//! The home: a thread of its own that talks to Redis, and the handle of those who use it.

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::fmt;
use std::rc::Rc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError, mpsc as std_mpsc};
use std::thread::JoinHandle;
use std::time::Duration;

use redis::{RedisError, Value};
use sureq_core::command::{Block, Cancel, Command, ConnId, Pop};
use sureq_core::{LogTime, Now, Receipt, Refusal, Replies, Reply, WallTime};
use tokio::sync::{mpsc, oneshot};
use tokio::task::LocalSet;

use crate::answer::{Payload, bytes, fields, number, read, refusal};
use crate::call::{Call, Shape, conn_name, spelt_receipt};
use crate::channels::Channels;
use crate::cleaning::{CleanReport, Cleaner, Cleaning, clean, keep_clean};
use crate::clock::{Clock, SystemClock, system_ms};
use crate::handed::Handed;
use crate::layout::{Layout, Waiting};
use crate::line::{Line, Waiter, hear, serve_line};
use crate::link::{About, Link};
use crate::listener::{Ear, Listener, Want, listen};
use crate::target::Target;
use crate::ticket::{PopOf, Slot, Ticket};
use crate::work_queue::is_again;
use crate::work_queue::moving::{Moves, serve_moves};
use crate::worqr::cancels::hear_cancels;
use crate::worqr::hashes::write_hashes;
use crate::{redis_queue, worqr};

/// How often a home whose connections hold tasks says that it lives.
const BEAT: Duration = Duration::from_secs(10);

/// The oldest Redis that will do.
const VERSION_MIN: (u32, u32) = (6, 2);

/// Why a Redis did not become a home.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// It does not answer, or not as it should.
    #[error("Redis at {address}: {source}")]
    Redis {
        /// Where it should be.
        address: String,
        /// What it says.
        source: RedisError,
    },
    /// It is too old.
    #[error("Redis at {address} is version {version}: sureq needs 6.2 or later, or Valkey")]
    TooOld {
        /// Where it is.
        address: String,
        /// What it is.
        version: String,
    },
    /// There is no thread for it.
    #[error("cannot start a thread: {0}")]
    Thread(std::io::Error),
}

/// Queues in a Redis.
#[derive(Clone)]
pub struct RedisHome {
    shared: Arc<Shared>,
}

struct Shared {
    jobs: mpsc::UnboundedSender<Job>,
    waiting: Arc<AtomicUsize>,
    /// Tells its connections from those of other homes.
    name: String,
    warnings: Vec<String>,
    channels: Channels,
    layout: Layout,
    handed: Arc<Handed>,
    clock: Arc<dyn Clock>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

/// What the thread is to do.
#[derive(Debug)]
pub(crate) enum Job {
    Run(Batch),
    /// Nobody takes the answer of a ticket any more; what it was given goes back.
    Abandoned(Vec<(Vec<u8>, Vec<Vec<u8>>)>),
    CloseConn(ConnId),
    Dismiss,
    Listen(Arc<Ear>, mpsc::UnboundedReceiver<Want>),
    Look(oneshot::Sender<()>),
    Clean(Vec<Vec<u8>>, Cleaning, std_mpsc::Sender<Result<CleanReport, Refusal>>),
    Close(std_mpsc::Sender<()>),
}

/// Commands that are sent at once.
#[derive(Debug)]
pub(crate) struct Batch {
    calls: Vec<Result<(Call, Shape), Refusal>>,
    /// How long its one pop may wait.
    block: Option<Block>,
    slot: Arc<Slot>,
    conns: Vec<ConnId>,
}

impl Batch {
    /// Answers that the home is closed.
    fn refuse(&self) {
        let mut replies = Replies::default();
        replies.list.resize_with(self.calls.len(), || Reply::Refused(Refusal::Closed));
        // Whoever has left needs no answer.
        let _ = self.slot.fill(replies);
    }
}

impl RedisHome {
    /// Connects to a Redis.
    pub fn open(target: Target) -> Result<Self, OpenError> {
        Self::open_by(target, Arc::new(SystemClock))
    }

    /// Connects to a Redis, by any clock.
    pub fn open_by(target: Target, clock: Arc<dyn Clock>) -> Result<Self, OpenError> {
        let (address, channels) = (target.connection.addr().to_string(), target.channels());
        let layout = target.layout;
        let (jobs, queue) = mpsc::unbounded_channel();
        let (opened, is_open) = std_mpsc::channel();
        let waiting = Arc::new(AtomicUsize::new(0));
        let name = format!("{:016x}", fastrand::u64(..));
        let handed = Arc::<Handed>::default();
        let own = Own { count: Arc::clone(&waiting), name: name.clone(), handed: Arc::clone(&handed) };
        let own_clock = Arc::clone(&clock);
        let thread = std::thread::Builder::new()
            .name("sureq-redis".to_owned())
            .spawn(move || run(target, own_clock, own, queue, &opened))
            .map_err(OpenError::Thread)?;
        let about = match is_open.recv() {
            Ok(Ok(about)) => about,
            Ok(Err(source)) => return Err(OpenError::Redis { address, source }),
            Err(_) => return Err(OpenError::Thread(std::io::ErrorKind::Other.into())),
        };
        let mut warnings = Vec::new();
        if let Some(policy) = about.policy.filter(|policy| policy != "noeviction") {
            warnings.push(format!(
                "Redis at {address} may throw tasks away when its memory is full (maxmemory-policy {policy}): set it to noeviction"
            ));
        }
        let thread = Mutex::new(Some(thread));
        let shared = Shared { jobs, waiting, name, warnings, channels, layout, handed, clock, thread };
        let home = Self { shared: Arc::new(shared) };
        if !is_new_enough(&about.version) {
            home.close();
            return Err(OpenError::TooOld { address, version: about.version });
        }
        Ok(home)
    }

    /// What its users should know about this Redis.
    pub fn warnings(&self) -> &[String] {
        &self.shared.warnings
    }

    /// Sends commands, in order and at once: all up to the first that may wait, or that one alone. The ticket says how many.
    pub fn execute(&self, commands: &[Command<'_>]) -> Ticket {
        let first = commands.first().and_then(block_of);
        let upto_waiting = commands.iter().take_while(|command| block_of(command).is_none()).count();
        // What is behind a command that takes several steps is sent when all of them are done.
        let upto_steps = commands.iter().position(is_stepwise).map_or(commands.len(), |at| at + 1);
        let n = if first.is_some() { 1 } else { upto_waiting.min(upto_steps) };
        let commands = &commands[..n];
        let mut pops = Vec::new();
        let mut conns = Vec::new();
        for (at, command) in commands.iter().enumerate() {
            if let Command::Pop(pop) = command {
                pops.push(PopOf {
                    command: at,
                    queues: pop.queues.iter().map(|queue| queue.to_vec()).collect(),
                });
                // Where a connection cannot hold tasks, its pop is refused.
                conns.extend(pop.lease.conn.filter(|_| self.shared.layout == Layout::Sureq));
            }
        }
        let Shared { layout, name, .. } = &*self.shared;
        let calls = commands.iter().map(|command| layout.call_of(command, name)).collect();
        let slot = Arc::new(Slot::new(pops));
        let batch = Batch { calls, block: first, slot: Arc::clone(&slot), conns };
        if let Err(mpsc::error::SendError(Job::Run(batch))) = self.shared.jobs.send(Job::Run(batch)) {
            batch.refuse();
        }
        Ticket { slot, jobs: self.shared.jobs.clone(), commands: n, is_waiting: first.is_some() }
    }

    /// Gives deliveries that never reached their taker back to the front of their queue, at no cost.
    pub fn undeliver(&self, queue: &[u8], receipts: &[Receipt]) {
        let spelt = |receipt: &Receipt| match self.shared.layout {
            Layout::Sureq => Some(spelt_receipt(*receipt).into_bytes()),
            Layout::WorkQueue { .. } | Layout::Worqr | Layout::RedisQueue(_) => {
                self.shared.handed.id(*receipt)
            }
        };
        let spelt = receipts.iter().filter_map(spelt).collect();
        // A home that is closed has nothing to take back.
        let _ = self.shared.jobs.send(Job::Abandoned(vec![(queue.to_vec(), spelt)]));
    }

    /// Whether a pop can say how long a task is its taker's.
    pub fn has_leases(&self) -> bool {
        matches!(self.shared.layout, Layout::Sureq | Layout::WorkQueue { .. })
    }

    /// Which keys its queues have.
    pub(crate) fn layout(&self) -> Layout {
        self.shared.layout
    }

    /// Brings back what somebody took and will not finish, in a layout whose leases nothing ends by itself; of all queues if none
    /// is named. What seems to be left alone is looked at a second time after a second, so that this may take as long.
    pub fn clean(&self, queues: &[&[u8]], how: Cleaning) -> Result<CleanReport, Refusal> {
        let (done, is_done) = std_mpsc::channel();
        let queues = queues.iter().map(|queue| queue.to_vec()).collect();
        // A home that is closed drops the job, and with it the other end.
        let _ = self.shared.jobs.send(Job::Clean(queues, how, done));
        is_done.recv().unwrap_or(Err(Refusal::Closed))
    }

    /// Ends the leases that were to end with a connection.
    pub fn close_conn(&self, conn: ConnId) {
        // Closing ended them all.
        let _ = self.shared.jobs.send(Job::CloseConn(conn));
    }

    /// Answers all pops that wait as if their time were up.
    pub fn dismiss_waiting(&self) {
        // Closing dismissed them all.
        let _ = self.shared.jobs.send(Job::Dismiss);
    }

    /// How many pops wait in line.
    pub fn waiting(&self) -> usize {
        self.shared.waiting.load(Ordering::Acquire)
    }

    /// Someone who hears what happens to queues.
    pub fn listen(&self) -> Listener {
        let (ear, (wants, wanted)) = (Arc::<Ear>::default(), mpsc::unbounded_channel());
        if self.shared.jobs.send(Job::Listen(Arc::clone(&ear), wanted)).is_err() {
            ear.end();
        }
        Listener { ear, wants, channels: self.shared.channels.clone() }
    }

    /// What time it is by the clocks of this machine; scripts go by Redis' own.
    pub fn now(&self) -> Now {
        let wall = self.shared.clock.wall_ms().unwrap_or_else(system_ms);
        Now { log: LogTime(wall), wall: WallTime(wall) }
    }

    /// Tries all pops that wait, as a message would; for those who move time by hand. What was asked before is done by then.
    pub fn look(&self) {
        let (done, is_done) = oneshot::channel();
        if self.shared.jobs.send(Job::Look(done)).is_ok() {
            // The thread ends only when the home is closed.
            let _ = is_done.blocking_recv();
        }
    }

    /// Ends what its connections hold, and lets go of Redis. What was asked before is done by then.
    pub fn close(&self) {
        let (done, is_done) = std_mpsc::channel();
        if self.shared.jobs.send(Job::Close(done)).is_ok() {
            // The thread says so, or has ended.
            let _ = is_done.recv();
        }
        let thread = self.shared.thread.lock().unwrap_or_else(PoisonError::into_inner).take();
        // A panic there was told there.
        if let Some(thread) = thread {
            let _ = thread.join();
        }
    }
}

impl fmt::Debug for RedisHome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RedisHome").field("name", &self.shared.name).finish_non_exhaustive()
    }
}

fn is_new_enough(version: &str) -> bool {
    let mut parts = version.split('.').map(|part| part.parse::<u32>().unwrap_or(0));
    (parts.next().unwrap_or(0), parts.next().unwrap_or(0)) >= VERSION_MIN
}

/// How long a command may wait.
fn block_of(command: &Command<'_>) -> Option<Block> {
    match command {
        Command::Pop(Pop { block, count: 1.., .. }) => *block,
        _ => None,
    }
}

/// Whether a command may take more than one call.
const fn is_stepwise(command: &Command<'_>) -> bool {
    matches!(
        command,
        Command::Cancel { which: Cancel::Payload(_), .. }
            | Command::Revive { tasks: None, .. }
            | Command::Purge { .. }
            | Command::Drop { .. }
            | Command::Size
    )
}

/// What the thread has.
pub(crate) struct Inner {
    pub(crate) link: Link,
    pub(crate) line: Line,
    pub(crate) moves: Moves,
    pub(crate) cleaner: Cleaner,
    pub(crate) worqr: worqr::Known,
    name: String,
    handed: Arc<Handed>,
    /// Connections that may hold tasks.
    conns: RefCell<BTreeSet<ConnId>>,
    /// Those of them that were closed while Redis could not be told.
    closing: RefCell<BTreeSet<ConnId>>,
}

/// What the thread has in common with the handle, or with nobody else.
struct Own {
    name: String,
    /// How many wait in line.
    count: Arc<AtomicUsize>,
    handed: Arc<Handed>,
}

fn run(
    target: Target,
    clock: Arc<dyn Clock>,
    own: Own,
    jobs: mpsc::UnboundedReceiver<Job>,
    opened: &std_mpsc::Sender<Result<About, RedisError>>,
) {
    let runtime = match tokio::runtime::Builder::new_current_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => {
            // Whoever opens waits for this.
            let _ = opened.send(Err(error.into()));
            return;
        }
    };
    LocalSet::new().block_on(&runtime, async {
        let layout = target.layout;
        let link = match Link::new(target, clock, own.name.clone()) {
            Ok(link) => link,
            Err(error) => {
                // Whoever opens waits for this.
                let _ = opened.send(Err(error));
                return;
            }
        };
        let about = link.connect().await;
        let is_open = about.is_ok();
        // Whoever opens waits for this.
        let _ = opened.send(about);
        if is_open {
            let (queue, wants) = Line::new(own.count);
            let inner = Rc::new(Inner {
                link,
                line: queue,
                moves: Moves::default(),
                cleaner: Cleaner::default(),
                worqr: worqr::Known::default(),
                name: own.name,
                handed: own.handed,
                conns: RefCell::default(),
                closing: RefCell::default(),
            });
            let own = || Rc::clone(&inner);
            match layout.waiting() {
                Waiting::Blocked => _ = tokio::task::spawn_local(serve_moves(own())),
                Waiting::Told | Waiting::Tracked => _ = tokio::task::spawn_local(serve_line(own())),
            }
            match layout.waiting() {
                Waiting::Blocked => {}
                Waiting::Told => _ = tokio::task::spawn_local(hear(own(), wants)),
                Waiting::Tracked => {
                    tokio::task::spawn_local(redis_queue::tracking::track(own(), wants));
                }
            }
            if layout.needs_cleaning() {
                tokio::task::spawn_local(keep_clean(own()));
            }
            if layout == Layout::Worqr {
                tokio::task::spawn_local(hear_cancels(own()));
            }
            work(&inner, jobs).await;
        }
    });
}

/// Does what is asked for, until the home is closed.
async fn work(inner: &Rc<Inner>, mut jobs: mpsc::UnboundedReceiver<Job>) {
    let (mut beats, mut ears) = (None, Vec::<Arc<Ear>>::new());
    let mut under_way: Vec<tokio::task::JoinHandle<()>> = Vec::new();
    while let Some(job) = jobs.recv().await {
        under_way.retain(|task| !task.is_finished());
        let own = Rc::clone(inner);
        match job {
            Job::Run(batch) => {
                if !batch.conns.is_empty() && beats.is_none() {
                    beats = Some(tokio::task::spawn_local(beat(Rc::clone(inner))));
                }
                under_way.push(tokio::task::spawn_local(async move { own.run(batch).await }));
            }
            Job::Abandoned(receipts) => {
                inner.line.wake();
                under_way.push(tokio::task::spawn_local(async move { own.give_back(receipts).await }));
            }
            Job::CloseConn(conn) => {
                under_way.push(tokio::task::spawn_local(async move { own.close_conn(conn).await }));
            }
            Job::Dismiss => inner.line.dismiss(),
            Job::Listen(ear, wants) => {
                ears.push(Arc::clone(&ear));
                // Clients of other programs tell nobody what they do, and so nothing is heard there.
                if inner.link.target.layout.tells() {
                    tokio::task::spawn_local(listen(own, ear, wants));
                }
            }
            Job::Look(done) => {
                for task in under_way.drain(..) {
                    // A panic in it was told there.
                    let _ = task.await;
                }
                // Where time is moved by hand, beats come with it.
                if !inner.conns.borrow().is_empty() {
                    inner.say_alive().await;
                }
                inner.line.look(done);
            }
            Job::Clean(queues, how, done) => {
                under_way.push(tokio::task::spawn_local(async move {
                    // Whoever asked waits for this.
                    let _ = done.send(clean(&own, queues, how).await);
                }));
            }
            Job::Close(done) => {
                inner.line.dismiss();
                inner.moves.end().await;
                for task in under_way.drain(..) {
                    // A panic in it was told there.
                    let _ = task.await;
                }
                // Some may have come to wait meanwhile.
                inner.line.dismiss();
                inner.close_conns().await;
                for ear in &ears {
                    ear.end();
                }
                jobs.close();
                while let Ok(job) = jobs.try_recv() {
                    if let Job::Run(batch) = job {
                        batch.refuse();
                    }
                }
                // Whoever closes waits for this.
                let _ = done.send(());
                return;
            }
        }
    }
}

/// Says again and again that the home lives.
async fn beat(inner: Rc<Inner>) {
    loop {
        inner.say_alive().await;
        inner.close_left_over().await;
        tokio::time::sleep(BEAT).await;
    }
}

impl Inner {
    async fn run(&self, batch: Batch) {
        let Batch { mut calls, block, slot, conns } = batch;
        self.conns.borrow_mut().extend(conns);
        self.prepare(&mut calls, &slot).await;
        let sent: Vec<&Call> = calls.iter().flatten().map(|(call, _)| call).collect();
        let mut answers = self.send(&sent).await.into_iter();
        let mut replies = Replies::default();
        for call in &calls {
            let (call, shape) = match call {
                Ok(call) => call,
                Err(no) => {
                    replies.list.push(Reply::Refused(no.clone()));
                    continue;
                }
            };
            let mut answer = answers.next().unwrap_or(Err(Refusal::Closed));
            if let Shape::Counts(next) = shape {
                answer = self.go_on(call, *next, answer).await;
            }
            if *shape == Shape::Tasks {
                answer = self.again(call, answer).await;
            }
            match answer {
                Ok(answer) => read(self.link.target.layout.ids(), shape, answer, &mut replies),
                Err(no) => replies.list.push(Reply::Refused(no)),
            }
        }
        let found_nothing = matches!(replies.list.last(), Some(Reply::Tasks(span)) if span.is_empty());
        match (block, calls.into_iter().next()) {
            (Some(block), Some(Ok((call, _)))) if found_nothing => self.wait(call, block, slot).await,
            _ => self.give(&slot, replies).await,
        }
    }

    /// What other programs' keys ask for before calls are sent.
    async fn prepare(&self, calls: &mut [Result<(Call, Shape), Refusal>], slot: &Slot) {
        let layout = self.link.target.layout;
        if !layout.needs_cleaning() {
            return;
        }
        for pop in &slot.pops {
            let Some(Ok((call, _))) = calls.get(pop.command) else { continue };
            pop.queues.iter().for_each(|queue| self.cleaner.watch(self, queue));
            if layout == Layout::Worqr {
                self.worqr.cancels.note(call, &pop.queues);
            }
        }
        if layout == Layout::Worqr {
            write_hashes(self, calls).await;
        }
    }

    /// Sends calls at once. If somebody waits, one after the other: whoever has waited longer gets what one of them brings
    /// before the next can take it.
    async fn send(&self, calls: &[&Call]) -> Vec<Result<Value, Refusal>> {
        if calls.len() < 2 || self.line.is_empty() {
            return self.link.send(calls).await;
        }
        let mut answers = Vec::with_capacity(calls.len());
        for call in calls {
            answers.push(self.link.ask(call).await);
            let (done, is_done) = oneshot::channel();
            self.line.look(done);
            // The line is served for as long as the home is open.
            let _ = is_done.await;
        }
        answers
    }

    async fn wait(&self, call: Call, block: Block, slot: Arc<Slot>) {
        let until_ms = match block {
            Block::Forever => None,
            Block::Millis(ms) => Some(self.link.clock.monotonic_ms().saturating_add(ms)),
        };
        let queues = slot.pops.first().map(|pop| pop.queues.clone()).unwrap_or_default();
        if self.link.target.layout.waiting() == Waiting::Blocked {
            // It may have been the end of a millisecond.
            let until_ms = until_ms.map(|at| at.saturating_add(1));
            self.line.stand(Waiter { call, queues, until_ms, slot });
        } else {
            self.line.join(Waiter { call, queues, until_ms, slot }).await;
        }
    }

    /// Gives an answer to whoever waits for it. If nobody does, what it hands out goes back.
    pub(crate) async fn give(&self, slot: &Slot, mut replies: Replies<Payload>) {
        self.handed.number(&mut replies);
        if self.link.target.layout == Layout::Worqr {
            self.worqr.hashes.remember(&replies);
        }
        if let Some(untaken) = slot.fill(replies) {
            self.give_back(slot.receipts(&untaken)).await;
        }
    }

    async fn give_back(&self, receipts: Vec<(Vec<u8>, Vec<Vec<u8>>)>) {
        for (queue, receipts) in receipts {
            let call = Call::new("undeliver", Some(&queue)).arg(queue.clone());
            // Whatever cannot be given back now comes back as any delivery does whose holder is silent.
            let _ = self.link.ask(&call.args(receipts)).await;
        }
    }

    /// The answer of a pop, however often it wants to be asked for it.
    pub(crate) async fn again(&self, call: &Call, first: Result<Value, Refusal>) -> Result<Value, Refusal> {
        let mut answer = first;
        while answer.as_ref().is_ok_and(is_again) {
            answer = self.link.ask(call).await;
        }
        answer
    }

    /// The further steps of a call that is done in steps.
    async fn go_on(
        &self,
        call: &Call,
        next: Option<usize>,
        first: Result<Value, Refusal>,
    ) -> Result<Value, Refusal> {
        let (mut call, mut answer, mut count) = (call.clone(), first?, 0);
        loop {
            if let Some(no) = refusal(&answer) {
                return Err(no);
            }
            let [cursor, n] = fields(answer)?;
            let cursor = bytes(cursor)?;
            count += number(n)?;
            if cursor == b"0" {
                return Ok(Value::Int(count.cast_signed()));
            }
            if let Some(arg) = next.and_then(|at| call.args.get_mut(at)) {
                *arg = cursor;
            }
            answer = self.link.ask(&call).await.map_err(|no| match no {
                // The steps before were done.
                Refusal::Unavailable { why } => Refusal::Unknown { why },
                other => other,
            })?;
        }
    }

    async fn close_conn(&self, conn: ConnId) {
        if !self.conns.borrow().contains(&conn) {
            return;
        }
        let call = Call::new("close_conns", None).arg(conn_name(&self.name, conn));
        match self.link.ask(&call).await {
            Ok(_) => _ = self.conns.borrow_mut().remove(&conn),
            // It is tried again with every beat.
            Err(_) => _ = self.closing.borrow_mut().insert(conn),
        }
        self.line.wake();
    }

    /// Says that this home lives. One beat that is lost does no harm.
    async fn say_alive(&self) {
        let _ = self.link.ask(&Call::new("home", None).arg(self.name.clone())).await;
    }

    /// Ends what could not be ended when its connection was closed.
    async fn close_left_over(&self) {
        for conn in self.closing.take() {
            self.close_conn(conn).await;
        }
    }

    async fn close_conns(&self) {
        let conns = self.conns.take();
        if !conns.is_empty() {
            let names = conns.into_iter().map(|conn| conn_name(&self.name, conn));
            // If it is not heard, other homes will notice that this one is silent.
            let _ = self.link.ask(&Call::new("close_conns", None).args(names)).await;
        }
    }
}
