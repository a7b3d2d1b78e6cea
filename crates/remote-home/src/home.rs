//! The home: a thread that talks to the server, and the handle through which callers use it.

use std::cell::Cell;
use std::collections::HashMap;
use std::fmt;
use std::rc::Rc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError, mpsc as std_mpsc};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use sureq_core::command::{Block, ConnId, Pop, Worker};
use sureq_core::{Command, Now, Receipt, Refusal, Replies};
use sureq_home_api::elsewhere::{ChannelListener, SlotTicket, Subscription, Undelivered};
use sureq_home_api::{Broken, Home, Listener, NoticeQueue, Payload, Submitted, Ticket};
use tokio::sync::{mpsc, watch};
use tokio::task::{JoinSet, LocalSet};
use tokio::time::timeout;

use crate::Patience;
use crate::clock::Clock;
use crate::conn::{Conn, ConnectError};
use crate::listener::{ListenerChannels, listen};
use crate::pipe::{Batch, BatchEntry, Pipe, receipt_text};
use crate::target::Target;
use crate::waiting::{Common, PopPermit, WAITING_MAX, WaitingPop, unreachable};

/// The backoff between attempts to connect, at first and at most.
const RETRY_MIN: Duration = Duration::from_millis(20);
const RETRY_MAX: Duration = Duration::from_secs(2);

#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OpenError {
    /// The server cannot be reached, or refuses this client.
    #[error("sureq at {address}: {source}")]
    Server {
        /// The host and port.
        address: String,
        source: ConnectError,
    },
    /// The thread that talks to the server could not be started.
    #[error("cannot start a thread: {0}")]
    Thread(std::io::Error),
}

/// Queues on a server. Dropping the last clone closes the home.
#[derive(Clone)]
pub struct RemoteHome {
    shared: Arc<Shared>,
}

struct Shared {
    address: String,
    pipe: Arc<Pipe>,
    /// A second connection, for commands that keep leases and workers alive: behind a large payload they would be
    /// late.
    control: Arc<Pipe>,
    has_control: AtomicBool,
    jobs: mpsc::UnboundedSender<Job>,
    /// The number of pops in progress on dedicated connections.
    waiting: Arc<AtomicUsize>,
    dismissals: watch::Sender<u64>,
    /// False once the server has refused a lease: the home behind it may not support them.
    has_leases: AtomicBool,
    clock: Clock,
    thread: Mutex<Option<JoinHandle<()>>>,
}

enum Job {
    Wait(Option<ConnId>, WaitingPop),
    CloseConn(ConnId),
    Listen(Arc<NoticeQueue>, mpsc::UnboundedReceiver<Subscription>),
    /// Opens the connection for commands that must not wait behind large payloads.
    Control,
    Close(std_mpsc::Sender<()>),
}

impl RemoteHome {
    /// Connects to a server.
    pub fn open(target: Target) -> Result<Self, OpenError> {
        Self::open_by(target, Patience::default())
    }

    /// Connects to a server with these timeouts.
    pub fn open_by(target: Target, patience: Patience) -> Result<Self, OpenError> {
        let address = target.to_string();
        let (pipe, control) = (Arc::new(Pipe::new()), Arc::new(Pipe::new()));
        let (jobs, queue) = mpsc::unbounded_channel();
        let (dismissals, dismissed) = watch::channel(0);
        let (opened, is_open) = std_mpsc::channel();
        let common = Common {
            target,
            patience,
            pipe: Arc::clone(&pipe),
            control: Arc::clone(&control),
            dismissals: dismissed,
            idle: Vec::new().into(),
        };
        let thread = std::thread::Builder::new()
            .name("sureq-remote".to_owned())
            .spawn(move || run(common, queue, &opened))
            .map_err(OpenError::Thread)?;
        match is_open.recv() {
            Ok(Ok(())) => {}
            Ok(Err(source)) => return Err(OpenError::Server { address, source }),
            Err(_) => return Err(OpenError::Thread(std::io::ErrorKind::Other.into())),
        }
        let shared = Shared {
            address,
            pipe,
            control,
            has_control: AtomicBool::new(false),
            jobs,
            waiting: Arc::default(),
            dismissals,
            has_leases: AtomicBool::new(true),
            clock: Clock::start(),
            thread: Mutex::new(Some(thread)),
        };
        Ok(Self { shared: Arc::new(shared) })
    }

    /// Sends the first of these commands: those before the first one that needs a dedicated connection, or that one
    /// alone. Sends fewer if their replies may not fit into memory. [`Ticket::commands`] says how many were sent.
    pub fn send(&self, commands: &[Command<'_>]) -> Ticket {
        let upto_own = commands.iter().position(|command| own_of(command).is_some());
        let n = upto_own.unwrap_or(commands.len()).max(1).min(commands.len());
        let pipe = Arc::clone(&self.shared.pipe);
        let n = pipe.sizes.fit(&commands[..n]);
        let own = commands.first().and_then(own_of);
        let batch = Batch::of(&commands[..n]);
        for command in &commands[..n] {
            pipe.sizes.note_pushed(command);
        }
        let slot = Arc::clone(&batch.slot);
        match own {
            None if commands[..n].iter().all(is_urgent) => self.control().ask(batch),
            None => pipe.ask(batch),
            Some(own) => self.wait(own, batch),
        }
        let is_waiting = own.is_some_and(|own| own.block.is_some());
        let pending =
            if is_waiting { SlotTicket::for_tasks(slot, pipe) } else { SlotTicket::new(slot, pipe) };
        Ticket::new(n, pending)
    }

    /// The connection for commands that must not wait behind large payloads. The first call opens it. While it is not
    /// connected, the shared connection is used.
    fn control(&self) -> &Pipe {
        let shared = &self.shared;
        if !shared.has_control.swap(true, Ordering::AcqRel) {
            // Sending fails only if the home is closed; then both connections refuse commands.
            let _ = shared.jobs.send(Job::Control);
        }
        if shared.control.is_connected() { &shared.control } else { &shared.pipe }
    }

    /// Sends a pop to the thread, which serves it on a dedicated connection.
    fn wait(&self, own: Own, batch: Batch) {
        let shared = &self.shared;
        let Batch { bytes, mut entries, slot } = batch;
        let form = match entries.pop() {
            Some(BatchEntry::Sent { form, .. }) => form,
            Some(BatchEntry::Refused(no)) => return slot.refuse(1, &no),
            None => return,
        };
        if shared.pipe.is_closed() {
            return slot.refuse(1, &Refusal::Closed);
        }
        let Some(permit) = PopPermit::take(&shared.waiting) else {
            let why = format!("{WAITING_MAX} pops are waiting already: try again later").into();
            return slot.refuse(1, &Refusal::Unavailable { why });
        };
        let dismissals = *shared.dismissals.borrow();
        let is_answered = Cell::new(false);
        let pop =
            WaitingPop { bytes, form, block: own.block, slot, dismissals, _permit: permit, is_answered };
        if let Err(mpsc::error::SendError(Job::Wait(_, pop))) = shared.jobs.send(Job::Wait(own.conn, pop)) {
            pop.refuse(&Refusal::Closed);
        }
    }

    /// Disconnects after the replies to earlier commands have arrived. Waits for them no longer than
    /// [`Patience::answer`].
    pub fn close(&self) {
        self.shared.dismiss();
        let (done, is_done) = std_mpsc::channel();
        if self.shared.jobs.send(Job::Close(done)).is_ok() {
            // An error means that the thread has ended already.
            let _ = is_done.recv();
        }
        let thread = self.shared.thread.lock().unwrap_or_else(PoisonError::into_inner).take();
        // A panic of the thread was reported on that thread.
        if let Some(thread) = thread {
            let _ = thread.join();
        }
    }
}

impl Home for RemoteHome {
    fn submit(&self, commands: &[Command<'_>], _: &mut Replies<Payload>) -> Submitted {
        if commands.is_empty() { Submitted::default() } else { Submitted::waiting(self.send(commands)) }
    }

    fn requeue(&self, queue: &[u8], receipts: &[Receipt]) {
        let tasks = receipts.iter().map(|receipt| receipt_text(*receipt)).collect();
        self.shared.pipe.requeue_all(vec![Undelivered { queue: queue.into(), tasks }]);
    }

    /// Dropping the ticket of a waiting pop does the same to its connection: only a closed connection makes the
    /// server give up the pop.
    fn close_conn(&self, conn: ConnId) {
        // Sending fails only if the home is closed, which has ended all such leases.
        let _ = self.shared.jobs.send(Job::CloseConn(conn));
    }

    fn dismiss_waiters(&self) {
        self.shared.dismiss();
    }

    /// Counts the pops on dedicated connections.
    fn waiters(&self) -> usize {
        self.shared.waiting.load(Ordering::Acquire)
    }

    fn listen(&self) -> Listener {
        let (queue, (sender, changes)) = (Arc::<NoticeQueue>::default(), mpsc::unbounded_channel());
        if self.shared.jobs.send(Job::Listen(Arc::clone(&queue), changes)).is_err() {
            queue.end();
        }
        Listener::new(ChannelListener::new(queue, ListenerChannels(sender)))
    }

    fn has_leases(&self) -> bool {
        self.shared.has_leases.load(Ordering::SeqCst)
    }

    fn give_up_leases(&self) -> bool {
        self.shared.has_leases.swap(false, Ordering::SeqCst)
    }

    /// The time by this machine's clocks, which may differ from the server's.
    fn now(&self) -> Now {
        self.shared.clock.now()
    }

    fn close(&self) -> Result<(), Broken> {
        RemoteHome::close(self);
        Ok(())
    }
}

impl Shared {
    fn dismiss(&self) {
        self.dismissals.send_modify(|n| *n += 1);
    }
}

impl Drop for Shared {
    /// Does not wait for the thread: the last clone may be dropped on that thread.
    fn drop(&mut self) {
        self.dismiss();
        // Sending fails only if the thread has ended already.
        let _ = self.jobs.send(Job::Close(std_mpsc::channel().0));
    }
}

impl fmt::Debug for RemoteHome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RemoteHome").field("address", &self.shared.address).finish_non_exhaustive()
    }
}

/// Why a pop needs a dedicated connection: it waits for tasks, or its leases end with a connection.
#[derive(Clone, Copy)]
struct Own {
    block: Option<Block>,
    conn: Option<ConnId>,
}

/// Whether a command keeps a worker or a lease alive. Such a command must not be late, and its order among other
/// commands does not matter.
const fn is_urgent(command: &Command<'_>) -> bool {
    matches!(command, Command::Extend { .. } | Command::Worker(Worker::Start { .. } | Worker::Beat(_)))
}

fn own_of(command: &Command<'_>) -> Option<Own> {
    let Command::Pop(Pop { block, count, lease, .. }) = command else { return None };
    // A pop of zero tasks does not wait.
    let block = block.filter(|_| *count > 0);
    (block.is_some() || lease.conn.is_some()).then_some(Own { block, conn: lease.conn })
}

fn run(
    common: Common,
    jobs: mpsc::UnboundedReceiver<Job>,
    opened: &std_mpsc::Sender<Result<(), ConnectError>>,
) {
    let runtime = match tokio::runtime::Builder::new_current_thread().enable_io().enable_time().build() {
        Ok(runtime) => runtime,
        Err(error) => {
            // The caller of `open` waits for this.
            let _ = opened.send(Err(error.into()));
            return;
        }
    };
    LocalSet::new().block_on(&runtime, async {
        let first = first(&common).await;
        let (conn, outcome) = match first {
            Ok(conn) => (Some(conn), Ok(())),
            Err(error) => (None, Err(error)),
        };
        let common = Rc::new(common);
        let pipe = conn.map(|conn| {
            let common = Rc::clone(&common);
            tokio::task::spawn_local(async move { keep_connected(&common, &common.pipe, Some(conn)).await })
        });
        // The caller of `open` waits for this.
        let _ = opened.send(outcome);
        if let Some(pipe) = pipe {
            work(&common, jobs, pipe).await;
        }
    });
}

/// Opens the first connection. Retries while the server is loading its data.
async fn first(common: &Common) -> Result<Conn, ConnectError> {
    let since = Instant::now();
    loop {
        match Conn::open(&common.target, common.patience).await {
            Err(error) if error.is_loading() && since.elapsed() < common.patience.load => {
                tokio::time::sleep(jittered(RETRY_MAX / 4)).await;
            }
            done => return done.inspect(|conn| common.pipe.attach(conn)),
        }
    }
}

/// Serves a shared connection, and reconnects whenever it is lost, until the home is closed.
async fn keep_connected(common: &Common, pipe: &Pipe, first: Option<Conn>) {
    let mut next = match first {
        Some(first) => Some(first),
        None => reconnect(common, pipe).await,
    };
    while let Some(conn) = next {
        if pipe.serve(conn, &common.target, common.patience).await {
            return;
        }
        next = reconnect(common, pipe).await;
    }
}

/// Tries until a connection is open. Returns `None` if the home is closed meanwhile.
async fn reconnect(common: &Common, pipe: &Pipe) -> Option<Conn> {
    let mut wait = RETRY_MIN;
    loop {
        if pipe.is_closed() {
            return None;
        }
        let opened = tokio::select! {
            opened = Conn::open(&common.target, common.patience) => opened,
            () = pipe.changed() => continue,
        };
        match opened {
            Ok(conn) => {
                pipe.attach(&conn);
                return Some(conn);
            }
            Err(error) => pipe.refuse_all(unreachable(&common.target, &error)),
        }
        tokio::select! {
            () = tokio::time::sleep(jittered(wait)) => {}
            () = pipe.changed() => {}
        }
        wait = (wait * 2).min(RETRY_MAX);
    }
}

/// Adds jitter: returns between half of `wait` and all of it, so that the clients of a lost server do not reconnect
/// all at the same time.
fn jittered(wait: Duration) -> Duration {
    wait.mul_f64(0.5 + fastrand::f64() / 2.0)
}

/// Executes the jobs of callers until the home is closed.
async fn work(
    common: &Rc<Common>,
    mut jobs: mpsc::UnboundedReceiver<Job>,
    pipe: tokio::task::JoinHandle<()>,
) {
    let mut lanes: HashMap<ConnId, mpsc::UnboundedSender<WaitingPop>> = HashMap::new();
    let (mut under_way, mut listeners) = (JoinSet::new(), Vec::<Arc<NoticeQueue>>::new());
    let (mut closed, mut control) = (None, None);
    while closed.is_none() {
        let Some(job) = jobs.recv().await else { break };
        while under_way.try_join_next().is_some() {}
        match job {
            Job::Wait(None, pop) => _ = under_way.spawn_local(Rc::clone(common).serve(pop)),
            Job::Wait(Some(conn), pop) => {
                let lane = lanes.entry(conn).or_insert_with(|| {
                    let (lane, pops) = mpsc::unbounded_channel();
                    under_way.spawn_local(Rc::clone(common).serve_lane(pops));
                    lane
                });
                // The receiver of a lane lives as long as its sender is in the map.
                let _ = lane.send(pop);
            }
            Job::CloseConn(conn) => _ = lanes.remove(&conn),
            Job::Listen(queue, changes) => {
                listeners.retain(|queue| Arc::strong_count(queue) > 1);
                listeners.push(Arc::clone(&queue));
                tokio::task::spawn_local(listen(Rc::clone(common), queue, changes));
            }
            Job::Control => {
                let common = Rc::clone(common);
                control = Some(tokio::task::spawn_local(async move {
                    keep_connected(&common, &common.control, None).await;
                }));
            }
            Job::Close(done) => closed = Some(done),
        }
    }
    common.pipe.close();
    common.control.close();
    drop(lanes);
    jobs.close();
    while let Ok(job) = jobs.try_recv() {
        match job {
            Job::Wait(_, pop) => pop.refuse(&Refusal::Closed),
            Job::Listen(queue, _) => queue.end(),
            _ => {}
        }
    }
    let pipes = async {
        // A panic of these tasks was reported when it happened.
        let _ = pipe.await;
        if let Some(control) = control {
            let _ = control.await;
        }
    };
    let mut pipes = std::pin::pin!(pipes);
    let ended = async {
        while under_way.join_next().await.is_some() {}
        pipes.as_mut().await;
    };
    // A server that does not answer delays closing by at most this time. Its unanswered commands get an error.
    if timeout(common.patience.answer, ended).await.is_err() {
        common.pipe.give_up();
        common.control.give_up();
        pipes.await;
    }
    for queue in &listeners {
        queue.end();
    }
    // The caller of `close` waits for this.
    if let Some(done) = closed {
        let _ = done.send(());
    }
}
