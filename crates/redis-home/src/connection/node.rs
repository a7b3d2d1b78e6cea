//! One server and the connections to it. The topology knows which slots it owns.

use std::cell::{Cell, RefCell};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use redis::aio::{ConnectionLike, MultiplexedConnection, PubSub, SendError};
use redis::{
    AsyncConnectionConfig, Client, ConnectionInfo, Pipeline, PushInfo, PushKind, RedisError, Value, cmd,
};
use tokio::sync::{Mutex, mpsc};
use tokio::time::timeout;

use crate::layout::Layout;
use crate::script::runner::Runner;

const CONNECT_TIMEOUT: Duration = Duration::from_secs(1);

/// The time limit for a server to introduce itself and to load the script.
pub(crate) const HANDSHAKE_TIME: Duration = Duration::from_secs(3);

/// The time limit for a replica to confirm a change.
const REPLICA_MS: u64 = 2_000;

pub(crate) struct Node {
    client: Client,
    runner: RefCell<Runner>,
    /// The id of this run of the server.
    run_id: RefCell<String>,
    connection: RefCell<Option<Connected>>,
    /// The first calls of the layout were sent over this connection.
    has_first_calls: Cell<bool>,
    /// Held while a connection is made, so that other callers wait for it.
    connecting: Mutex<()>,
    /// Unused connections for batches that wait for a replica. `WAIT` blocks a connection, so such batches do not
    /// share one.
    idle: RefCell<Vec<Connected>>,
}

/// A connection, and whether it is known to be lost.
struct Connected {
    connection: MultiplexedConnection,
    is_lost: Arc<AtomicBool>,
}

/// The facts that a server reports about itself.
pub(crate) struct About {
    pub(crate) address: String,
    pub(crate) version: String,
    pub(crate) policy: Option<String>,
    /// Redis forbids this user the channels of queues.
    pub(crate) lacks_channels: bool,
}

/// The result of sending commands.
pub(crate) enum Sent {
    Answered(Vec<Value>),
    /// Executed, but not confirmed by a replica.
    Unconfirmed(Vec<Value>),
    /// They may or may not have been executed.
    Lost(RedisError),
    /// They were not sent.
    Unreached(RedisError),
}

impl Node {
    pub(crate) fn new(info: ConnectionInfo) -> Result<Self, RedisError> {
        Ok(Self {
            client: Client::open(info)?,
            runner: RefCell::default(),
            run_id: RefCell::default(),
            connection: RefCell::default(),
            has_first_calls: Cell::new(false),
            connecting: Mutex::new(()),
            idle: RefCell::default(),
        })
    }

    pub(crate) fn info(&self) -> &ConnectionInfo {
        self.client.get_connection_info()
    }

    /// How the script is called on this server.
    pub(crate) fn runner(&self) -> Runner {
        self.runner.borrow().clone()
    }

    /// The id of this run of the server.
    pub(crate) fn run_id(&self) -> String {
        self.run_id.borrow().clone()
    }

    /// Whether the first calls are still to be sent. They count as sent from now on.
    pub(crate) fn needs_first_calls(&self) -> bool {
        !self.has_first_calls.replace(true)
    }

    /// Connects, reads what the server reports about itself, and loads the script.
    pub(crate) async fn connect(&self, layout: &dyn Layout) -> Result<About, RedisError> {
        let met = timeout(HANDSHAKE_TIME, self.meet(layout)).await;
        met.unwrap_or_else(|_| Err(std::io::Error::from(std::io::ErrorKind::TimedOut).into()))
    }

    async fn meet(&self, layout: &dyn Layout) -> Result<About, RedisError> {
        let mut connected = self.new_connected().await?;
        let connection = &mut connected.connection;
        let info: String = cmd("INFO").query_async(connection).await?;
        let field = |name: &str| {
            let mut lines = info.lines().filter_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
            lines.next().unwrap_or_default().to_owned()
        };
        let about = About {
            address: self.info().addr().to_string(),
            version: field("redis_version"),
            policy: Some(field("maxmemory_policy")).filter(|policy| !policy.is_empty()),
            lacks_channels: false,
        };
        self.runner.replace(Runner::load(layout, connection).await?);
        self.run_id.replace(field("run_id"));
        self.connection.replace(Some(connected));
        self.has_first_calls.set(false);
        self.idle.take();
        Ok(about)
    }

    /// The existing connection, or a new one. `None` if another caller was just connecting, and may have succeeded.
    pub(crate) async fn connection(
        &self,
        layout: &dyn Layout,
    ) -> Result<Option<MultiplexedConnection>, RedisError> {
        if let Some(connection) = self.known_connection() {
            return Ok(Some(connection));
        }
        let Ok(connecting) = self.connecting.try_lock() else {
            drop(self.connecting.lock().await);
            return Ok(self.known_connection());
        };
        let connected = self.connect(layout).await;
        drop(connecting);
        connected.map(|_| self.known_connection())
    }

    fn known_connection(&self) -> Option<MultiplexedConnection> {
        self.connection.borrow_mut().take_if(|connected| connected.is_lost.load(Ordering::Acquire));
        self.connection.borrow().as_ref().map(|connected| connected.connection.clone())
    }

    /// Gives up the connection; the next call makes a new one.
    pub(crate) fn forget(&self) {
        self.connection.take();
    }

    async fn new_connected(&self) -> Result<Connected, RedisError> {
        let is_lost = Arc::<AtomicBool>::default();
        let config = AsyncConnectionConfig::new()
            .set_connection_timeout(Some(CONNECT_TIMEOUT))
            // No timeout: after one, it would be unknown whether a command of a busy server was executed.
            .set_response_timeout(None)
            // A loss must be noticed at once: commands sent over a lost connection would be in doubt.
            .set_push_sender({
                let is_lost = Arc::clone(&is_lost);
                move |said: PushInfo| {
                    if said.kind == PushKind::Disconnection {
                        is_lost.store(true, Ordering::Release);
                    }
                    Ok::<(), SendError>(())
                }
            });
        let connection = self.client.get_multiplexed_async_connection_with_config(&config).await?;
        Ok(Connected { connection, is_lost })
    }

    pub(crate) async fn new_connection(&self) -> Result<MultiplexedConnection, RedisError> {
        Ok(self.new_connected().await?.connection)
    }

    /// A new connection, and what the server pushes over it.
    pub(crate) async fn pushed(
        &self,
    ) -> Result<(MultiplexedConnection, mpsc::UnboundedReceiver<PushInfo>), RedisError> {
        let (sender, pushes) = mpsc::unbounded_channel();
        let config = AsyncConnectionConfig::new()
            .set_connection_timeout(Some(CONNECT_TIMEOUT))
            .set_response_timeout(None)
            .set_push_sender(sender);
        Ok((self.client.get_multiplexed_async_connection_with_config(&config).await?, pushes))
    }

    /// A new connection for subscriptions.
    pub(crate) async fn listen(&self) -> Result<PubSub, RedisError> {
        let connected = timeout(HANDSHAKE_TIME, self.client.get_async_pubsub()).await;
        connected.unwrap_or_else(|_| Err(std::io::Error::from(std::io::ErrorKind::TimedOut).into()))
    }

    /// Pings the server, so that a lost connection is noticed.
    pub(crate) async fn probe(&self) {
        if let Some(mut connection) = self.known_connection() {
            let alive: Result<String, RedisError> = cmd("PING").query_async(&mut connection).await;
            if alive.is_err() {
                self.forget();
            }
        }
    }

    /// Sends commands over the shared connection.
    pub(crate) async fn send(&self, mut connection: MultiplexedConnection, commands: &Pipeline) -> Sent {
        match connection.req_packed_commands(commands, 0, commands.len()).await {
            Ok(values) => Sent::Answered(values),
            Err(error) => {
                self.forget();
                Sent::Lost(error)
            }
        }
    }

    /// Sends commands over a connection of their own, and waits until a replica has confirmed what they wrote.
    pub(crate) async fn send_and_wait(&self, mut commands: Pipeline) -> Sent {
        let idle = self.idle.borrow_mut().pop().filter(|idle| !idle.is_lost.load(Ordering::Acquire));
        let mut connected = match idle {
            Some(connected) => connected,
            None => match self.new_connected().await {
                Ok(connected) => connected,
                Err(error) => return Sent::Unreached(error),
            },
        };
        commands.cmd("WAIT").arg(1).arg(REPLICA_MS);
        let answered = connected.connection.req_packed_commands(&commands, 0, commands.len()).await;
        let mut values = match answered {
            Ok(values) => values,
            Err(error) => return Sent::Lost(error),
        };
        self.idle.borrow_mut().push(connected);
        match values.pop() {
            Some(Value::Int(1..)) => Sent::Answered(values),
            // A refused command wrote nothing.
            _ if values.iter().all(|value| matches!(value, Value::ServerError(_))) => Sent::Answered(values),
            _ => Sent::Unconfirmed(values),
        }
    }
}
