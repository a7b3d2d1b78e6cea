//! The connection to Redis.

use std::cell::RefCell;
use std::sync::Arc;
use std::time::{Duration, Instant};

use redis::aio::{ConnectionLike, MultiplexedConnection, PubSub};
use redis::{
    AsyncConnectionConfig, Client, Cmd, ErrorKind, Pipeline, RedisError, ServerErrorKind, Value, cmd,
};
use sureq_core::Refusal;

use crate::answer::{fields, number};
use crate::call::Call;
use crate::clock::{Clock, LogClock};
use crate::layout::Layout;
use crate::target::Target;
use crate::work_queue::look_out::LookOut;

/// How long a command waits for a connection before it is refused.
const CONNECT_FOR: Duration = Duration::from_secs(3);
const CONNECT_TIMEOUT: Duration = Duration::from_secs(1);
const RETRY_MIN: Duration = Duration::from_millis(20);
const RETRY_MAX: Duration = Duration::from_millis(500);

/// How often calls are sent again that met a Redis without the script.
const LOADS_MAX: usize = 3;

/// A connection that comes back by itself.
pub(crate) struct Link {
    client: Client,
    pub(crate) target: Target,
    pub(crate) clock: Arc<dyn Clock>,
    log: LogClock,
    look_out: LookOut,
    /// Tells this home from others.
    home: String,
    /// What the script is called, as Redis said.
    sha: RefCell<String>,
    connection: RefCell<Option<MultiplexedConnection>>,
}

/// What a server tells of itself.
pub(crate) struct About {
    pub(crate) version: String,
    pub(crate) policy: Option<String>,
    run_id: String,
}

impl Link {
    pub(crate) fn new(target: Target, clock: Arc<dyn Clock>, home: String) -> Result<Self, RedisError> {
        let client = Client::open(target.connection.clone())?;
        let (sha, connection) = (RefCell::default(), RefCell::default());
        let (log, look_out) = (LogClock::default(), LookOut::default());
        Ok(Self { client, target, clock, log, look_out, home, sha, connection })
    }

    /// Connects, and asks the server about itself.
    pub(crate) async fn connect(&self) -> Result<About, RedisError> {
        let mut connection = self.new_connection().await?;
        let info: String = cmd("INFO").query_async(&mut connection).await?;
        let field = |name: &str| {
            let mut lines = info.lines().filter_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
            lines.next().unwrap_or_default().to_owned()
        };
        let about = About {
            version: field("redis_version"),
            policy: Some(field("maxmemory_policy")).filter(|policy| !policy.is_empty()),
            run_id: field("run_id"),
        };
        let sha: String =
            cmd("SCRIPT").arg("LOAD").arg(self.target.layout.script()).query_async(&mut connection).await?;
        *self.sha.borrow_mut() = sha;
        for call in self.target.layout.greetings(&about.run_id) {
            let _: Value = self.command(&call).query_async(&mut connection).await?;
        }
        *self.connection.borrow_mut() = Some(connection);
        Ok(about)
    }

    async fn new_connection(&self) -> Result<MultiplexedConnection, RedisError> {
        let config = AsyncConnectionConfig::new()
            .set_connection_timeout(Some(CONNECT_TIMEOUT))
            // A busy Redis is waited for: an answer that is not heard would leave it open whether something was done.
            .set_response_timeout(None);
        self.client.get_multiplexed_async_connection_with_config(&config).await
    }

    /// A connection of its own for a command that blocks, and its number, by which it is told to stop.
    pub(crate) async fn block(&self) -> Result<(MultiplexedConnection, u64), RedisError> {
        let mut connection = self.new_connection().await?;
        let number = cmd("CLIENT").arg("ID").query_async(&mut connection).await?;
        Ok((connection, number))
    }

    /// Ends what blocks such a connection, as if its time were up.
    pub(crate) async fn unblock(&self, number: u64) -> Result<(), Refusal> {
        let mut connection = self.connection().await?;
        let unblocked = cmd("CLIENT").arg("UNBLOCK").arg(number).query_async(&mut connection).await;
        unblocked.map_err(|error| refusal_of(&error))
    }

    /// A connection of its own for messages.
    pub(crate) async fn listen(&self) -> Result<PubSub, RedisError> {
        self.client.get_async_pubsub().await
    }

    /// Log time as this home knows it.
    pub(crate) fn log_ms(&self) -> u64 {
        self.log.now_ms(self.clock.monotonic_ms())
    }

    /// The connection that is there, or a new one; tries for a while.
    async fn connection(&self) -> Result<MultiplexedConnection, Refusal> {
        let (since, mut pause) = (Instant::now(), RETRY_MIN);
        loop {
            if let Some(connection) = &*self.connection.borrow() {
                return Ok(connection.clone());
            }
            match self.connect().await {
                Ok(_) => {}
                Err(error) if since.elapsed() > CONNECT_FOR => {
                    let why = format!("Redis at {} does not answer: {error}", self.target.connection.addr());
                    return Err(Refusal::Unavailable { why: why.into() });
                }
                Err(_) => {
                    tokio::time::sleep(pause).await;
                    pause = (pause * 2).min(RETRY_MAX);
                }
            }
        }
    }

    fn command(&self, call: &Call) -> Cmd {
        match self.target.layout {
            Layout::Sureq => self.sureq_command(call),
            Layout::WorkQueue { .. } => self.work_queue_command(call),
        }
    }

    fn work_queue_command(&self, call: &Call) -> Cmd {
        let mut command = cmd("EVALSHA");
        let key = self.target.waiting_key(call.queue.as_deref().unwrap_or_default());
        let looks = if self.look_out.is_due(call, self.clock.monotonic_ms()) { "1" } else { "" };
        command.arg(&*self.sha.borrow()).arg(1).arg(key);
        command.arg(call.op).arg(&self.target.prefix).arg(looks).arg(&self.home);
        for arg in &call.args {
            command.arg(arg);
        }
        command
    }

    fn sureq_command(&self, call: &Call) -> Cmd {
        let mut command = cmd("EVALSHA");
        let key = call.queue.as_ref().map_or_else(|| self.target.store_key(), |q| self.target.queue_key(q));
        command.arg(&*self.sha.borrow()).arg(2).arg(key).arg(self.target.store_key());
        let wall = self.clock.wall_ms().map(|ms| ms.to_string()).unwrap_or_default();
        command.arg(call.op).arg(&self.target.prefix).arg(self.log_ms()).arg(wall);
        for arg in &call.args {
            command.arg(arg);
        }
        command
    }

    /// Sends calls at once; answers what each answered.
    pub(crate) async fn send(&self, calls: &[&Call]) -> Vec<Result<Value, Refusal>> {
        let mut answers: Vec<Result<Value, Refusal>> = Vec::with_capacity(calls.len());
        for _ in 0..LOADS_MAX {
            let rest = &calls[answers.len()..];
            if rest.is_empty() {
                break;
            }
            let mut connection = match self.connection().await {
                Ok(connection) => connection,
                Err(no) => {
                    answers.resize_with(calls.len(), || Err(no.clone()));
                    break;
                }
            };
            let mut pipeline = Pipeline::with_capacity(rest.len());
            for call in rest {
                pipeline.add_command(self.command(call));
            }
            match connection.req_packed_commands(&pipeline, 0, rest.len()).await {
                Ok(values) => {
                    let known = rest.iter().zip(values).map(|(call, value)| self.judge(call, value));
                    // From the first call on that met no script, none has been executed.
                    answers.extend(known.map_while(Judged::known));
                    if answers.len() < calls.len() {
                        self.connection.take();
                    }
                }
                Err(error) => {
                    self.connection.take();
                    let why = format!("the connection to Redis broke: {error}");
                    answers.resize_with(calls.len(), || Err(Refusal::Unknown { why: why.clone().into() }));
                }
            }
        }
        let gone =
            || Err(Refusal::Unavailable { why: "Redis loses its scripts as soon as they are loaded".into() });
        answers.resize_with(calls.len(), gone);
        answers
    }

    /// Sends one call.
    pub(crate) async fn ask(&self, call: &Call) -> Result<Value, Refusal> {
        let closed = || Err(Refusal::Closed);
        self.send(&[call]).await.pop().unwrap_or_else(closed)
    }

    fn judge(&self, call: &Call, value: Value) -> Judged {
        let error = match value {
            Value::ServerError(error) => RedisError::from(error),
            value => {
                let answer = fields(value).and_then(|[first, answer]| {
                    let now = self.clock.monotonic_ms();
                    match self.target.layout {
                        Layout::Sureq => self.log.hear(number(first)?, now),
                        Layout::WorkQueue { .. } if number(first)? == 1 => {
                            self.look_out.hear(call, &answer, now);
                        }
                        Layout::WorkQueue { .. } => {}
                    }
                    Ok(answer)
                });
                return Judged::Known(answer.map_err(Refusal::from));
            }
        };
        if error.kind() == ErrorKind::Server(ServerErrorKind::NoScript) {
            return Judged::NoScript;
        }
        Judged::Known(Err(refusal_of(&error)))
    }
}

enum Judged {
    Known(Result<Value, Refusal>),
    NoScript,
}

impl Judged {
    fn known(self) -> Option<Result<Value, Refusal>> {
        match self {
            Self::Known(answer) => Some(answer),
            Self::NoScript => None,
        }
    }
}

/// Errors of Redis that come before a script has changed anything.
const BEFORE: [&str; 11] = [
    "READONLY",
    "LOADING",
    "MISCONF",
    "NOAUTH",
    "NOPERM",
    "BUSY",
    "NOREPLICAS",
    "MASTERDOWN",
    "CLUSTERDOWN",
    "TRYAGAIN",
    "WRONGPASS",
];

pub(crate) fn refusal_of(error: &RedisError) -> Refusal {
    let code = error.code().unwrap_or_default();
    if code == "OOM" {
        return Refusal::OutOfMemory;
    }
    let why = format!("Redis says: {error}").into();
    if BEFORE.contains(&code) { Refusal::Unavailable { why } } else { Refusal::Unknown { why } }
}
