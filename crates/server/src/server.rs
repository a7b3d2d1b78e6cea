//! Binds the listeners, starts the network threads and shuts them down gracefully.

use std::fmt;
use std::future::poll_fn;
use std::io::{self, Write as _};
use std::net::{SocketAddr, TcpListener as StdListener, TcpStream as StdStream};
use std::num::NonZeroU64;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::Poll;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rustix::process::{Resource, getrlimit};
use rustix::thread::set_current_timer_slack;
use socket2::{SockRef, TcpKeepalive};
use sureq_home_api::{Broken, Home, Position};
use sureq_proto::text::{Limits as TextLimits, ReservationPolicy};
use tokio::net::TcpListener;
use tokio::sync::mpsc::{UnboundedSender, unbounded_channel};
use tokio::sync::watch;

use crate::bounds::Bounds;
use crate::checker::Checker;
use crate::clients::{Clients, Protocol};
use crate::net_thread::{self, Message};
use crate::subscriptions::Subscriptions;
use crate::users::{User, Users};

/// `DRAIN_TIME` is the time in which connections can read their remaining replies once the server stops. `LAST_TIME`
/// is the time in which they can read the last errors after the home was closed.
const DRAIN_TIME: Duration = Duration::from_secs(4);
const LAST_TIME: Duration = Duration::from_secs(1);

/// The pause after the system had no descriptor or memory for another connection.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Descriptors that are reserved for the log, the listeners and the process itself.
const FILES_RESERVED: usize = 32;

/// Descriptors that a network thread needs for itself.
const FILES_PER_THREAD: usize = 4;

/// A connection that has been silent for this long is probed with TCP keepalive.
const KEEPALIVE: Duration = Duration::from_secs(300);

/// The configuration of a server.
#[derive(Clone, Debug)]
pub struct Config {
    /// The listen address of the RESP dialect, if it is offered.
    pub resp: Option<SocketAddr>,
    /// The listen address of the text dialect, if it is offered.
    pub text: Option<SocketAddr>,
    /// The duration of a reservation of the text dialect, and the maximum number of reservations of a task.
    pub reservations: ReservationPolicy,
    /// Seconds after which an idle text connection is closed; 0 for never.
    pub text_idle_secs: u32,
    /// The maximum length of a line of the text dialect in bytes.
    pub text_line_bytes_max: usize,
    /// The function that logs a line about every text command, if any.
    pub text_log: Option<fn(fmt::Arguments<'_>)>,
    pub threads: usize,
    /// The configured users. Without any, every client has all rights.
    pub users: Arc<Users>,
    /// The user of all text connections, since the text protocol has no authentication. Without one they have all
    /// rights.
    pub text_user: Option<Arc<User>>,
    /// The limits of connections.
    pub bounds: Bounds,
}

impl Config {
    pub(crate) fn text_limits(&self) -> TextLimits {
        TextLimits { line_bytes_max: self.text_line_bytes_max, ..TextLimits::default() }
    }
}

/// The reason why a server did not start, or stopped.
#[derive(Debug, thiserror::Error)]
pub enum ServerError {
    /// The server could not listen on an address.
    #[error("cannot listen for {dialect} on {address}: {source}")]
    Listen { dialect: &'static str, address: SocketAddr, source: io::Error },
    /// The system could not create a thread or a runtime.
    #[error("cannot start a thread: {0}")]
    Thread(#[source] io::Error),
    /// The home failed. No command has been confirmed since.
    #[error("the store failed, and nothing was confirmed since: {0}")]
    Home(Broken),
}

/// State that all threads of a server share.
pub(crate) struct Common {
    pub(crate) home: Arc<dyn Home>,
    pub(crate) config: Config,
    pub(crate) clients: Clients,
    pub(crate) subscriptions: Arc<Subscriptions>,
    pub(crate) checker: Checker,
    pub(crate) started: Instant,
    pub(crate) resp_port: u16,
}

/// A server whose listeners are bound.
pub struct Server {
    common: Arc<Common>,
    resp: Option<StdListener>,
    text: Option<StdListener>,
    stop: watch::Sender<bool>,
}

/// A handle that stops a server from any thread.
#[derive(Clone, Debug)]
pub struct Stopper(watch::Sender<bool>);

impl Stopper {
    /// Asks the server to stop. A second call changes nothing.
    pub fn stop(&self) {
        self.0.send_replace(true);
    }
}

impl Server {
    /// Binds the listeners. No connection is accepted before [`run`](Self::run).
    pub fn bind(home: Arc<dyn Home>, config: Config) -> Result<Self, ServerError> {
        let resp = config.resp.map(|address| listen("RESP", address)).transpose()?;
        let text = config.text.map(|address| listen("text", address)).transpose()?;
        let resp_port = resp.as_ref().and_then(|l| l.local_addr().ok()).map_or(0, |address| address.port());
        let clients = Clients::at_most(connections_max(&config));
        let subscriptions = Arc::new(Subscriptions::new(&*home));
        let checker = Checker::start(&config.users).map_err(ServerError::Thread)?;
        let started = Instant::now();
        let common = Common { home, config, clients, subscriptions, checker, started, resp_port };
        Ok(Self { common: Arc::new(common), resp, text, stop: watch::Sender::new(false) })
    }

    /// The bound address of the RESP dialect, if it is offered.
    pub fn resp_address(&self) -> Option<SocketAddr> {
        self.resp.as_ref()?.local_addr().ok()
    }

    /// The bound address of the text dialect, if it is offered.
    pub fn text_address(&self) -> Option<SocketAddr> {
        self.text.as_ref()?.local_addr().ok()
    }

    /// A handle that stops this server.
    pub fn stopper(&self) -> Stopper {
        Stopper(self.stop.clone())
    }

    /// Serves until the server is stopped or its home fails. All connections are closed when it returns, and after a
    /// stop everything that was answered is durable.
    pub fn run(self) -> Result<(), ServerError> {
        let mut threads = Threads::start(&self.common)?;
        let served = self.accept(&threads.doors);
        threads.drain();
        served?;
        let closed = self.common.home.close().map_err(ServerError::Home);
        // Commands that were not answered before get an error.
        threads.wait(LAST_TIME);
        closed
    }

    /// Accepts connections on this thread and hands them to the network threads in turn.
    fn accept(self: &Server, doors: &[UnboundedSender<Message>]) -> Result<(), ServerError> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        let runtime = runtime.map_err(ServerError::Thread)?;
        let next = AtomicUsize::new(0);
        let hand_over = |stream: StdStream, protocol: Protocol, peer: SocketAddr| {
            if self.common.clients.len() >= self.common.clients.max() {
                return turn_away(&stream, protocol);
            }
            let conn = self.common.clients.join(protocol, peer);
            let door = &doors[next.fetch_add(1, Ordering::Relaxed) % doors.len()];
            // A thread that has ended serves no more connections: the server is stopping.
            if door.send(Message::Serve(stream, protocol, conn)).is_err() {
                self.common.clients.leave(conn);
            }
        };
        runtime.block_on(async {
            let mut stopped = self.stop.subscribe();
            tokio::select! {
                _ = stopped.wait_for(|stop| *stop) => Ok(()),
                () = self.common.subscriptions.deliver_all() => Ok(()),
                failure = failure_of(&*self.common.home) => Err(ServerError::Home(failure)),
                error = accept_all(self.resp.as_ref(), Protocol::Resp, &hand_over) => Err(error),
                error = accept_all(self.text.as_ref(), Protocol::Text, &hand_over) => Err(error),
            }
        })
    }
}

/// The maximum number of connections, low enough that the log always finds a descriptor for its next segment,
/// whatever the system's limit.
fn connections_max(config: &Config) -> usize {
    let reserved = FILES_RESERVED + config.threads * FILES_PER_THREAD;
    let files = getrlimit(Resource::Nofile).current.map_or(usize::MAX, |files| files as usize);
    files.saturating_sub(reserved).clamp(1, config.bounds.connections_max)
}

fn listen(dialect: &'static str, address: SocketAddr) -> Result<StdListener, ServerError> {
    let bound = StdListener::bind(address).and_then(|listener| {
        listener.set_nonblocking(true)?;
        Ok(listener)
    });
    bound.map_err(|source| ServerError::Listen { dialect, address, source })
}

async fn accept_all(
    listener: Option<&StdListener>,
    protocol: Protocol,
    hand_over: &dyn Fn(StdStream, Protocol, SocketAddr),
) -> ServerError {
    let Some(listener) = listener else { return std::future::pending().await };
    let listener = match listener.try_clone().and_then(TcpListener::from_std) {
        Ok(listener) => listener,
        Err(error) => return ServerError::Thread(error),
    };
    loop {
        match listener.accept().await {
            Ok((stream, peer)) => {
                // If the connection is gone already, the thread that reads from it will find out.
                if let Ok(stream) = stream.into_std() {
                    let socket = SockRef::from(&stream);
                    let _ = socket.set_tcp_nodelay(true);
                    let _ = socket.set_tcp_keepalive(&TcpKeepalive::new().with_time(KEEPALIVE));
                    hand_over(stream, protocol, peer);
                }
            }
            Err(error) if is_of_one_connection(&error) => {}
            Err(_) => tokio::time::sleep(ACCEPT_PAUSE).await,
        }
    }
}

/// Whether an error concerns only the connection that was about to be accepted.
fn is_of_one_connection(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::ConnectionAborted | io::ErrorKind::ConnectionReset | io::ErrorKind::Interrupted
    )
}

fn turn_away(mut stream: &StdStream, protocol: Protocol) {
    let text: &[u8] = match protocol {
        Protocol::Resp => b"-ERR max number of clients reached\r\n",
        Protocol::Text => b"max number of clients reached\n",
    };
    // Best effort: the client sees the close in any case.
    let _ = stream.write(text);
}

/// Resolves if the home fails.
async fn failure_of(home: &dyn Home) -> Broken {
    let mut asked = false;
    poll_fn(move |cx| {
        // Register the waker only once, however often the task is woken for other reasons. The log never reaches this
        // position, so the waker is called only for a failure.
        if !std::mem::replace(&mut asked, true) {
            home.wake_at(Position(u64::MAX), cx.waker());
        }
        home.failure().map_or(Poll::Pending, Poll::Ready)
    })
    .await
}

struct Threads {
    doors: Vec<UnboundedSender<Message>>,
    handles: Vec<JoinHandle<()>>,
}

impl Threads {
    fn start(common: &Arc<Common>) -> Result<Self, ServerError> {
        let (mut doors, mut handles) = (Vec::new(), Vec::new());
        for n in 0..common.config.threads.max(1) {
            let (door, messages) = unbounded_channel();
            let common = Arc::clone(common);
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
            let runtime = runtime.map_err(ServerError::Thread)?;
            let run = move || {
                // Batch delays are shorter than the default timer slack. If the slack cannot be set, they take longer
                // and fewer pay off.
                let _ = set_current_timer_slack(NonZeroU64::new(1));
                runtime.block_on(net_thread::run(common, messages));
            };
            let handle = std::thread::Builder::new().name(format!("sureq-net-{n}")).spawn(run);
            handles.push(handle.map_err(ServerError::Thread)?);
            doors.push(door);
        }
        Ok(Self { doors, handles })
    }

    /// Asks all connections to end gracefully, and waits for a limited time.
    fn drain(&mut self) {
        for door in &self.doors {
            let _ = door.send(Message::Drain);
        }
        self.wait(DRAIN_TIME);
    }

    /// Waits for the threads to end, but at most for `within`.
    fn wait(&mut self, within: Duration) {
        let deadline = Instant::now() + within;
        while self.handles.iter().any(|handle| !handle.is_finished()) && Instant::now() < deadline {
            std::thread::sleep(Duration::from_millis(1));
        }
        for handle in self.handles.extract_if(.., |handle| handle.is_finished()) {
            // A panic on a network thread has been printed; its connections are closed.
            let _ = handle.join();
        }
    }
}
