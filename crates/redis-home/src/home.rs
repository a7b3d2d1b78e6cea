//! The home as its callers see it. The thread that talks to Redis is in `thread`.

use std::fmt;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::RecvTimeoutError;
use std::sync::{Arc, Mutex, PoisonError, mpsc as std_mpsc};
use std::thread::JoinHandle;
use std::time::Duration;

use redis::RedisError;
use sureq_core::command::{Block, Cancel, Command, ConnId, Pop, Worker};
use sureq_core::{LogTime, Now, Receipt, Refusal, Replies, WallTime};
use sureq_home_api::elsewhere::{
    ChannelListener, PopOf, ReplySizes, ReplySlot, Requeue, SizePlace, SlotTicket, Undelivered,
};
use sureq_home_api::{
    Broken, CleanReport, Cleaning, Home, Listener, NoticeQueue, Payload, Submitted, Ticket,
};
use tokio::sync::{mpsc, oneshot};

use crate::connection::abandonment::Abandonment;
use crate::connection::node::About;
use crate::connection::target::Target;
use crate::layout::deliveries::Deliveries;
use crate::layout::{Ids, Layout};
use crate::script::call::receipt_text;
use crate::script::clock::{Clock, SystemClock, system_ms};
use crate::spread::check;
use crate::thread::{Batch, Job, Own, run};
use crate::waiting::listener::ListenerChannels;

/// The oldest supported version of Redis.
const VERSION_MIN: (u32, u32) = (6, 2);

/// How long closing waits for outstanding replies, and then for the thread.
const CLOSE_TIME: Duration = Duration::from_secs(3);
const ABANDONMENT_TIME: Duration = Duration::from_secs(1);

/// Why a home could not be opened.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// Redis does not answer, or not as it should.
    #[error("Redis at {address}: {source}")]
    Redis { address: String, source: RedisError },
    #[error("Redis at {address} is version {version}: sureq needs 6.2 or later, or Valkey")]
    TooOld { address: String, version: String },
    /// The thread could not be started.
    #[error("cannot start a thread: {0}")]
    Thread(std::io::Error),
}

/// A home on Redis. Clones share it.
#[derive(Clone)]
pub struct RedisHome {
    shared: Arc<Shared>,
}

/// The shared part of all clones.
pub(crate) struct Shared {
    pub(crate) jobs: mpsc::UnboundedSender<Job>,
    waiting: Arc<AtomicUsize>,
    /// Distinguishes its connections from those of other homes.
    name: String,
    warnings: Vec<String>,
    target: Target,
    deliveries: Arc<Deliveries>,
    sizes: Arc<ReplySizes>,
    abandonment: Abandonment,
    clock: Arc<dyn Clock>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

impl RedisHome {
    /// Connects to Redis.
    pub fn open(target: Target) -> Result<Self, OpenError> {
        Self::open_by(target, Arc::new(SystemClock))
    }

    /// Connects to Redis, with these clocks.
    pub fn open_by(target: Target, clock: Arc<dyn Clock>) -> Result<Self, OpenError> {
        let address = target.address();
        let (jobs, queue) = mpsc::unbounded_channel();
        let (opened, is_open) = std_mpsc::channel();
        let waiting = Arc::new(AtomicUsize::new(0));
        let name = format!("{:016x}", fastrand::u64(..));
        let deliveries = Arc::<Deliveries>::default();
        let (sizes, abandonment) = (Arc::<ReplySizes>::default(), Abandonment::new());
        let own = Own {
            count: Arc::clone(&waiting),
            name: name.clone(),
            deliveries: Arc::clone(&deliveries),
            sizes: Arc::clone(&sizes),
            abandonment: abandonment.clone(),
        };
        let (own_clock, own_target) = (Arc::clone(&clock), target.clone());
        let thread = std::thread::Builder::new()
            .name("sureq-redis".to_owned())
            .spawn(move || run(own_target, own_clock, own, queue, &opened))
            .map_err(OpenError::Thread)?;
        let servers = match is_open.recv() {
            Ok(Ok(servers)) => servers,
            Ok(Err(source)) => return Err(OpenError::Redis { address, source }),
            Err(_) => return Err(OpenError::Thread(std::io::ErrorKind::Other.into())),
        };
        let warnings = servers.iter().flat_map(|server| warnings(server, &target.prefix)).collect();
        let thread = Mutex::new(Some(thread));
        let shared =
            Shared { jobs, waiting, name, warnings, target, deliveries, sizes, abandonment, clock, thread };
        let home = Self { shared: Arc::new(shared) };
        if let Some(About { address, version, .. }) = servers.into_iter().find(is_too_old) {
            home.close();
            return Err(OpenError::TooOld { address, version });
        }
        Ok(home)
    }

    /// Sends commands in order: all up to the first that may wait, or that one alone, and only as many as have
    /// replies that are expected to fit into memory. The ticket stands for the commands that were sent.
    pub fn send(&self, commands: &[Command<'_>]) -> Ticket {
        let first = commands.first().and_then(block_of);
        let upto_waiting = commands.iter().take_while(|command| block_of(command).is_none()).count();
        // Commands after one that takes several calls are sent when it is done.
        let Shared { target, name, sizes, .. } = &*self.shared;
        let is_sliced =
            |command: &Command<'_>| target.layout().is_sliced(command, sizes.expected_bytes(command));
        let upto_steps = commands.iter().position(|command| is_stepwise(command) || is_sliced(command));
        let upto_steps = upto_steps.map_or(commands.len(), |at| at + 1);
        let n = if first.is_some() { 1 } else { sizes.fit(&commands[..upto_waiting.min(upto_steps)]) };
        let commands = &commands[..n];
        let call_of = |command: &Command<'_>| {
            check(target, command)?;
            command.check()?;
            target.layout().call_of(command, name)
        };
        let calls: Vec<_> = commands.iter().map(call_of).collect();
        let mut pops = Vec::new();
        let mut conns = Vec::new();
        for (at, command) in commands.iter().enumerate() {
            if let Command::Pop(pop) = command {
                let queues = pop.queues.iter().map(|&queue| queue.into()).collect();
                pops.push(PopOf { command: at, queues });
                // A pop for a connection is refused by layouts in which connections hold no tasks.
                if let Some(conn) = pop.lease.conn.filter(|_| calls[at].is_ok()) {
                    conns.extend(pop.queues.iter().map(|queue| (conn, target.store_of(queue))));
                }
            }
        }
        let is_sliced = commands.last().is_some_and(is_sliced);
        for command in commands {
            sizes.note_pushed(command);
        }
        let places = commands.iter().map(SizePlace::of).collect();
        let slot = Arc::new(ReplySlot::new(pops, receipt_text));
        let batch = Batch { calls, is_sliced, places, block: first, slot: Arc::clone(&slot), conns };
        if let Err(mpsc::error::SendError(Job::Run(batch))) = self.shared.jobs.send(Job::Run(batch)) {
            batch.refuse();
        }
        let home = Arc::clone(&self.shared);
        let pending =
            if first.is_some() { SlotTicket::for_tasks(slot, home) } else { SlotTicket::new(slot, home) };
        Ticket::new(n, pending)
    }

    pub fn layout(&self) -> &dyn Layout {
        self.shared.target.layout()
    }

    /// Tries all waiting pops, as a message would; for tests that move time by hand. Earlier jobs are done when this
    /// returns.
    pub fn look(&self) {
        let (done, is_done) = oneshot::channel();
        if self.shared.jobs.send(Job::Look(done)).is_ok() {
            // Fails only if the home is closed meanwhile.
            let _ = is_done.blocking_recv();
        }
    }

    /// Ends the leases of its connections, and disconnects. Earlier commands are executed first, unless Redis does
    /// not answer for three seconds: then those that were sent are `UNKNOWN`, and the others `UNAVAILABLE`.
    pub fn close(&self) {
        let (done, is_done) = std_mpsc::channel();
        if self.shared.jobs.send(Job::Close(done)).is_ok()
            && is_done.recv_timeout(CLOSE_TIME) == Err(RecvTimeoutError::Timeout)
        {
            self.shared.abandonment.begin();
            if is_done.recv_timeout(ABANDONMENT_TIME) == Err(RecvTimeoutError::Timeout) {
                // The thread hangs in something that ends with the process.
                return;
            }
        }
        let thread = self.shared.thread.lock().unwrap_or_else(PoisonError::into_inner).take();
        // A panic in the thread was reported by the panic hook.
        if let Some(thread) = thread {
            let _ = thread.join();
        }
    }
}

impl Home for RedisHome {
    fn submit(&self, commands: &[Command<'_>], _: &mut Replies<Payload>) -> Submitted {
        if commands.is_empty() { Submitted::default() } else { Submitted::waiting(self.send(commands)) }
    }

    fn requeue(&self, queue: &[u8], receipts: &[Receipt]) {
        let text_of = |receipt: &Receipt| match self.layout().ids() {
            Ids::Numbers => Some(receipt_text(*receipt)),
            Ids::Foreign => self.shared.deliveries.id(*receipt),
        };
        let tasks = receipts.iter().filter_map(text_of).collect();
        self.shared.requeue(vec![Undelivered { queue: queue.into(), tasks }]);
    }

    fn close_conn(&self, conn: ConnId) {
        // A closed home has ended the leases of all its connections.
        let _ = self.shared.jobs.send(Job::CloseConn(conn));
    }

    fn dismiss_waiters(&self) {
        // A closed home has dismissed all its waiters.
        let _ = self.shared.jobs.send(Job::Dismiss);
    }

    fn waiters(&self) -> usize {
        self.shared.waiting.load(Ordering::Acquire)
    }

    fn listen(&self) -> Listener {
        let (queue, (sender, changes)) = (Arc::<NoticeQueue>::default(), mpsc::unbounded_channel());
        if self.shared.jobs.send(Job::Listen(Arc::clone(&queue), changes)).is_err() {
            queue.end();
        }
        let channels = ListenerChannels::new(sender, self.shared.target.clone());
        Listener::new(ChannelListener::new(queue, channels))
    }

    /// The time of this machine; scripts use the clock of Redis.
    fn now(&self) -> Now {
        let wall = self.shared.clock.wall_ms().unwrap_or_else(system_ms);
        Now { log: LogTime(wall), wall: WallTime(wall) }
    }

    fn warnings(&self) -> &[String] {
        &self.shared.warnings
    }

    fn has_leases(&self) -> bool {
        self.layout().has_leases()
    }

    /// Takes a second or more if a task seems abandoned, since it is then checked twice.
    fn clean(&self, queues: &[&[u8]], how: Cleaning) -> Result<CleanReport, Refusal> {
        let (done, is_done) = std_mpsc::channel();
        let queues = queues.iter().map(|queue| queue.to_vec()).collect();
        // A closed home drops the job, and with it the sender.
        let _ = self.shared.jobs.send(Job::Clean(queues, how, done));
        is_done.recv().unwrap_or(Err(Refusal::Closed))
    }

    fn close(&self) -> Result<(), Broken> {
        RedisHome::close(self);
        Ok(())
    }
}

impl Requeue for Shared {
    fn requeue(&self, undelivered: Vec<Undelivered>) {
        // A closed home has nothing to requeue.
        let _ = self.jobs.send(Job::Abandoned(undelivered));
    }
}

impl fmt::Debug for RedisHome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RedisHome").field("name", &self.shared.name).finish_non_exhaustive()
    }
}

/// Warnings for the operator of the home about a server.
fn warnings(server: &About, prefix: &str) -> Vec<String> {
    let About { address, policy, lacks_channels, .. } = server;
    let mut warnings = Vec::new();
    if let Some(policy) = policy.as_ref().filter(|policy| *policy != "noeviction") {
        warnings.push(format!(
            "Redis at {address} may evict tasks when its memory is full (maxmemory-policy {policy}): set it to noeviction"
        ));
    }
    if *lacks_channels {
        warnings.push(format!(
            "Redis at {address} forbids this user the channels {prefix}*: waiting pops are not woken and poll once a second, \
             here and in other programs; allow them with ACL SETUSER <user> &{prefix}* +publish +subscribe +psubscribe"
        ));
    }
    warnings
}

fn is_too_old(server: &About) -> bool {
    let mut parts = server.version.split('.').map(|part| part.parse::<u32>().unwrap_or(0));
    (parts.next().unwrap_or(0), parts.next().unwrap_or(0)) < VERSION_MIN
}

/// The longest wait of a command.
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
            | Command::Worker(Worker::Start { .. } | Worker::Stop(_) | Worker::Fail { .. })
    )
}
