//! Binds the listeners, starts the network threads, and stops them in good order.

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

/// How long connections get to take their remaining replies once the server stops, and the last errors after the home was closed.
const DRAIN_TIME: Duration = Duration::from_secs(4);
const LAST_TIME: Duration = Duration::from_secs(1);

/// The pause after the system had no descriptor or memory for another connection.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Descriptors that are kept for the log, the listeners and the process itself.
const FILES_RESERVED: usize = 32;

/// Descriptors that a network thread needs for itself.
const FILES_PER_THREAD: usize = 4;

/// A peer that has been silent for this long is asked whether it is still there.
const KEEPALIVE: Duration = Duration::from_secs(300);

/// The configuration of a server.
#[derive(Clone, Debug)]
pub struct Config {
    /// Where RESP is spoken.
    pub resp: Option<SocketAddr>,
    /// Where the text dialect is spoken.
    pub text: Option<SocketAddr>,
    /// How long a reservation of the text dialect lasts, and how often.
    pub reservations: ReservationPolicy,
    /// Seconds after which a quiet text connection is closed; 0 is never.
    pub text_idle_secs: u32,
    /// The longest line of the text dialect.
    pub text_line_bytes_max: usize,
    /// Where a line about every text command goes, if anywhere.
    pub text_log: Option<fn(fmt::Arguments<'_>)>,
    /// The number of network threads.
    pub threads: usize,
    /// The users. Without any, every client may do everything.
    pub users: Arc<Users>,
    /// The user of all text connections, since the text protocol has no authentication; without one they may do everything.
    pub text_user: Option<Arc<User>>,
    /// The limits of connections.
    pub bounds: Bounds,
}

impl Config {
    pub(crate) fn text_limits(&self) -> TextLimits {
        TextLimits { line_bytes_max: self.text_line_bytes_max, ..TextLimits::default() }
    }
}

/// Why a server did not start, or stopped.
#[derive(Debug, thiserror::Error)]
pub enum ServerError {
    /// An address could not be listened on.
    #[error("cannot listen for {dialect} on {address}: {source}")]
    Listen {
        /// The dialect of the listener.
        dialect: &'static str,
        /// Where.
        address: SocketAddr,
        /// Why not.
        source: io::Error,
    },
    /// The system refused a thread or a runtime.
    #[error("cannot start a thread: {0}")]
    Thread(#[source] io::Error),
    /// The home failed. Nothing was confirmed since.
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

/// A server that listens.
pub struct Server {
    common: Arc<Common>,
    resp: Option<StdListener>,
    text: Option<StdListener>,
    stop: watch::Sender<bool>,
}

/// Stops a server from anywhere.
#[derive(Clone, Debug)]
pub struct Stopper(watch::Sender<bool>);

impl Stopper {
    /// Asks the server to stop. A second call changes nothing.
    pub fn stop(&self) {
        self.0.send_replace(true);
    }
}

impl Server {
    /// Binds the listeners; nothing is accepted yet.
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

    /// Where RESP is spoken.
    pub fn resp_address(&self) -> Option<SocketAddr> {
        self.resp.as_ref()?.local_addr().ok()
    }

    /// Where the text dialect is spoken.
    pub fn text_address(&self) -> Option<SocketAddr> {
        self.text.as_ref()?.local_addr().ok()
    }

    /// A handle that stops it.
    pub fn stopper(&self) -> Stopper {
        Stopper(self.stop.clone())
    }

    /// Serves until it is stopped or its home fails. In either case no connection is left, and after a stop
    /// everything that was answered is durable.
    pub fn run(self) -> Result<(), ServerError> {
        let mut threads = Threads::start(&self.common)?;
        let served = self.accept(&threads.doors);
        threads.drain();
        served?;
        let closed = self.common.home.close().map_err(ServerError::Home);
        // Commands that were never answered get an error.
        threads.wait(LAST_TIME);
        closed
    }

    /// Accepts on this thread and hands connections to the network threads in turn.
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
            // A thread that is gone takes no more connections; the server is stopping.
            if door.send(Message::Serve(stream, protocol, conn)).is_err() {
                self.common.clients.leave(conn);
            }
        };
        runtime.block_on(async {
            let mut stopped = self.stop.subscribe();
            tokio::select! {
                _ = stopped.wait_for(|stop| *stop) => Ok(()),
                () = self.common.subscriptions.tell_all() => Ok(()),
                failure = failure_of(&*self.common.home) => Err(ServerError::Home(failure)),
                error = accept_all(self.resp.as_ref(), Protocol::Resp, &hand_over) => Err(error),
                error = accept_all(self.text.as_ref(), Protocol::Text, &hand_over) => Err(error),
            }
        })
    }
}

/// So many connections that the log always finds a descriptor for its next segment, whatever the system's limit.
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
                // A connection that is gone already shows itself to the thread that reads from it.
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

/// Errors that concern only the connection that was about to be accepted.
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
        // Once is enough, however often the task is woken for other reasons. No log gets so far: the waker is called
        // only for a failure.
        if !std::mem::replace(&mut asked, true) {
            home.wake_at(Position(u64::MAX), cx.waker());
        }
        home.failure().map_or(Poll::Pending, Poll::Ready)
    })
    .await
}

/// The network threads.
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
                // Batch delays are shorter than the usual timer slack. Where it cannot be set they are longer, and fewer pay off.
                let _ = set_current_timer_slack(NonZeroU64::new(1));
                runtime.block_on(net_thread::run(common, messages));
            };
            let handle = std::thread::Builder::new().name(format!("sureq-net-{n}")).spawn(run);
            handles.push(handle.map_err(ServerError::Thread)?);
            doors.push(door);
        }
        Ok(Self { doors, handles })
    }

    /// Lets all connections end in good order, but not for ever.
    fn drain(&mut self) {
        for door in &self.doors {
            let _ = door.send(Message::Drain);
        }
        self.wait(DRAIN_TIME);
    }

    /// Waits for the threads to end, but not for longer than this.
    fn wait(&mut self, within: Duration) {
        let deadline = Instant::now() + within;
        while self.handles.iter().any(|handle| !handle.is_finished()) && Instant::now() < deadline {
            std::thread::sleep(Duration::from_millis(1));
        }
        for handle in self.handles.extract_if(.., |handle| handle.is_finished()) {
            // A panic on a network thread has been printed; its connections are gone.
            let _ = handle.join();
        }
    }
}
