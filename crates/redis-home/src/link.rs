//! The connection to Redis.

use std::cell::RefCell;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use redis::aio::{ConnectionLike, MultiplexedConnection, PubSub, SendError};
use redis::{
    AsyncConnectionConfig, Client, Cmd, ErrorKind, Pipeline, PushInfo, PushKind, RedisError, ServerErrorKind,
    Value, cmd,
};
use sureq_core::Refusal;
use tokio::sync::{Mutex, mpsc};

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

/// What takes up memory.
const ADDING: [&str; 2] = ["push", "add"];

/// How long a replica has for what was written.
const REPLICA_MS: u64 = 2_000;

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
    runner: RefCell<Runner>,
    connection: RefCell<Option<Connected>>,
    /// Held by whoever connects, so that the others wait for that.
    connecting: Mutex<()>,
    /// Connections that nobody uses now, where each answer waits for a replica: waiting holds a connection up.
    idle: RefCell<Vec<Connected>>,
}

/// A connection, and whether it is known to be lost.
struct Connected {
    connection: MultiplexedConnection,
    is_lost: Arc<AtomicBool>,
}

/// How Redis is told what to run.
#[derive(Clone, Debug, Default)]
enum Runner {
    /// Nothing is loaded yet.
    #[default]
    None,
    /// A function of this name. Each release has its own, so that two of them can share a Redis.
    Function(String),
    /// The script of this checksum, where there are no functions, or this user may load none.
    Script(String),
}

impl Runner {
    async fn load(layout: Layout, connection: &mut MultiplexedConnection) -> Result<Self, RedisError> {
        let source = layout.script();
        // FNV-1a: two releases must not share a name, that is all.
        let mix = |hash: u64, byte: u8| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
        let name = format!("sureq_{:016x}", source.bytes().fold(0xcbf2_9ce4_8422_2325, mix));
        // What adds nothing goes on when Redis' memory is full: it is how room is made.
        let free = format!("{{function_name='{name}_free', callback=run, flags={{'allow-oom'}}}}");
        let library = format!(
            "#!lua name={name}\n{source}redis.register_function('{name}', run)\nredis.register_function{free}\n"
        );
        let loaded: Result<String, RedisError> =
            cmd("FUNCTION").arg("LOAD").arg(library).query_async(connection).await;
        match loaded {
            Ok(_) => return Ok(Self::Function(name)),
            Err(error) if error.to_string().contains("already exists") => return Ok(Self::Function(name)),
            Err(error) if error.is_connection_dropped() || error.is_io_error() => return Err(error),
            Err(_) => {}
        }
        let script = format!("{source}return run(KEYS, ARGV)\n");
        Ok(Self::Script(cmd("SCRIPT").arg("LOAD").arg(script).query_async(connection).await?))
    }

    /// The beginning of a call.
    fn command(&self, op: &str) -> Cmd {
        let (mut evaluate, mut call) = (cmd("EVALSHA"), cmd("FCALL"));
        match self {
            Self::Function(name) if ADDING.contains(&op) => call.arg(name).clone(),
            Self::Function(name) => call.arg(format!("{name}_free")).clone(),
            Self::Script(sha) => evaluate.arg(sha).clone(),
            Self::None => evaluate.arg("").clone(),
        }
    }
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
        let (runner, connection, idle) = (RefCell::default(), RefCell::default(), RefCell::default());
        let (log, look_out) = (LogClock::default(), LookOut::default());
        Ok(Self {
            client,
            target,
            clock,
            log,
            look_out,
            home,
            runner,
            connection,
            connecting: Mutex::new(()),
            idle,
        })
    }

    /// Connects, and asks the server about itself.
    pub(crate) async fn connect(&self) -> Result<About, RedisError> {
        let mut connected = self.new_connection().await?;
        let connection = &mut connected.connection;
        let info: String = cmd("INFO").query_async(connection).await?;
        let field = |name: &str| {
            let mut lines = info.lines().filter_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
            lines.next().unwrap_or_default().to_owned()
        };
        let about = About {
            version: field("redis_version"),
            policy: Some(field("maxmemory_policy")).filter(|policy| !policy.is_empty()),
            run_id: field("run_id"),
        };
        let runner = Runner::load(self.target.layout, connection).await?;
        self.runner.replace(runner);
        for call in self.target.layout.greetings(&about.run_id) {
            let _: Value = self.command(&call, false).query_async(connection).await?;
        }
        self.connection.replace(Some(connected));
        self.idle.take();
        Ok(about)
    }

    async fn new_connection(&self) -> Result<Connected, RedisError> {
        let is_lost = Arc::<AtomicBool>::default();
        let config = AsyncConnectionConfig::new()
            .set_connection_timeout(Some(CONNECT_TIMEOUT))
            // A busy Redis is waited for: an answer that is not heard would leave it open whether something was done.
            .set_response_timeout(None)
            // A loss is noticed when it happens: what is sent to nobody would leave it open whether it was done.
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

    /// A connection of its own for a command that blocks, and its number, by which it is told to stop.
    pub(crate) async fn block(&self) -> Result<(MultiplexedConnection, u64), RedisError> {
        let mut connection = self.new_connection().await?.connection;
        let number = cmd("CLIENT").arg("ID").query_async(&mut connection).await?;
        Ok((connection, number))
    }

    /// A connection of its own, and what Redis says over it by itself.
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

    /// Finds out whether the connection still stands, by something that does no harm.
    pub(crate) async fn probe(&self) {
        let connection = self.connection.borrow().as_ref().map(|connected| connected.connection.clone());
        if let Some(mut connection) = connection {
            let alive: Result<String, RedisError> = cmd("PING").query_async(&mut connection).await;
            if alive.is_err() {
                self.connection.take();
            }
        }
    }

    /// Log time as this home knows it.
    pub(crate) fn log_ms(&self) -> u64 {
        self.log.now_ms(self.clock.monotonic_ms())
    }

    /// The connection that is there, or a new one; tries for a while.
    async fn connection(&self) -> Result<MultiplexedConnection, Refusal> {
        let (since, mut pause) = (Instant::now(), RETRY_MIN);
        loop {
            self.connection.borrow_mut().take_if(|connected| connected.is_lost.load(Ordering::Acquire));
            if let Some(connected) = &*self.connection.borrow() {
                return Ok(connected.connection.clone());
            }
            let Ok(connecting) = self.connecting.try_lock() else {
                // Whoever connects says how it went by what is there then.
                drop(self.connecting.lock().await);
                if self.connection.borrow().is_some() || since.elapsed() <= CONNECT_FOR {
                    continue;
                }
                return Err(Refusal::Unavailable { why: "Redis does not answer".into() });
            };
            let connected = self.connect().await;
            drop(connecting);
            match connected {
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

    /// A call as it is sent. Whoever is sure of the time has just been asked for it.
    fn command(&self, call: &Call, is_sure: bool) -> Cmd {
        match self.target.layout {
            Layout::Sureq => self.sureq_command(call, is_sure),
            Layout::WorkQueue { .. } => {
                let looks = self.look_out.is_due(call, self.clock.monotonic_ms());
                self.foreign_command(call, if looks { "1" } else { "" })
            }
            Layout::Worqr => self.foreign_command(call, ""),
            Layout::RedisQueue(times) => self.foreign_command(call, &times.task_s.to_string()),
        }
    }

    fn foreign_command(&self, call: &Call, setting: &str) -> Cmd {
        let mut command = self.runner.borrow().command(call.op);
        let key = self.target.foreign_key(call.queue.as_deref().unwrap_or_default());
        command.arg(1).arg(key);
        command.arg(call.op).arg(&self.target.prefix).arg(setting).arg(&self.home);
        for arg in &call.args {
            command.arg(arg);
        }
        command
    }

    fn sureq_command(&self, call: &Call, is_sure: bool) -> Cmd {
        let mut command = self.runner.borrow().command(call.op);
        let key = call.queue.as_ref().map_or_else(|| self.target.store_key(), |q| self.target.queue_key(q));
        command.arg(2).arg(key).arg(self.target.store_key());
        let wall = self.clock.wall_ms().map(|ms| ms.to_string()).unwrap_or_default();
        let told = format!("{}{}", if is_sure { "!" } else { "" }, self.log_ms());
        command.arg(call.op).arg(&self.target.prefix).arg(told).arg(wall);
        for arg in &call.args {
            command.arg(arg);
        }
        command
    }

    /// Sends calls at once; answers what each answered.
    pub(crate) async fn send(&self, calls: &[&Call]) -> Vec<Result<Value, Refusal>> {
        let mut answers: Vec<Result<Value, Refusal>> = Vec::with_capacity(calls.len());
        let mut is_sure = false;
        for _ in 0..LOADS_MAX {
            let rest = &calls[answers.len()..];
            if rest.is_empty() {
                break;
            }
            let connection = match self.connection().await {
                Ok(connection) => connection,
                Err(no) => {
                    answers.resize_with(calls.len(), || Err(no.clone()));
                    break;
                }
            };
            let sent = if self.target.is_replicated {
                self.send_and_wait(rest, is_sure).await
            } else {
                self.send_over(connection, rest, is_sure).await
            };
            match sent {
                Ok(values) => {
                    let judged: Vec<Judged> =
                        rest.iter().zip(values).map(|(call, value)| self.judge(call, value)).collect();
                    let is_done = |judged: &Judged| matches!(judged, Judged::Known(_));
                    match judged.iter().position(|judged| !is_done(judged)) {
                        // None of the rest was executed: it can be sent again, in its order.
                        Some(from) if !judged[from..].iter().any(is_done) => {
                            is_sure = matches!(judged[from], Judged::Late);
                            if !is_sure {
                                self.connection.take();
                            }
                            answers.extend(judged.into_iter().map_while(Judged::known));
                        }
                        _ => answers
                            .extend(judged.into_iter().map(|judged| judged.known().unwrap_or_else(undone))),
                    }
                }
                Err(lost) => {
                    answers.resize_with(calls.len(), || Err(Refusal::Unknown { why: lost.clone() }));
                }
            }
        }
        let gone =
            || Err(Refusal::Unavailable { why: "Redis loses its scripts as soon as they are loaded".into() });
        answers.resize_with(calls.len(), gone);
        answers
    }

    /// Sends calls over the connection that all share; an error is why the answers are lost.
    async fn send_over(
        &self,
        mut connection: MultiplexedConnection,
        calls: &[&Call],
        is_sure: bool,
    ) -> Result<Vec<Value>, Box<str>> {
        let mut pipeline = Pipeline::with_capacity(calls.len());
        for call in calls {
            pipeline.add_command(self.command(call, is_sure));
        }
        connection.req_packed_commands(&pipeline, 0, calls.len()).await.map_err(|error| {
            self.connection.take();
            format!("the connection to Redis broke: {error}").into()
        })
    }

    /// Sends calls over a connection of their own, and waits until a replica has what they wrote.
    async fn send_and_wait(&self, calls: &[&Call], is_sure: bool) -> Result<Vec<Value>, Box<str>> {
        let broke =
            |error: RedisError| -> Box<str> { format!("the connection to Redis broke: {error}").into() };
        let idle = self.idle.borrow_mut().pop().filter(|idle| !idle.is_lost.load(Ordering::Acquire));
        let mut connected = match idle {
            Some(connected) => connected,
            None => self.new_connection().await.map_err(broke)?,
        };
        let mut pipeline = Pipeline::with_capacity(calls.len() + 1);
        for call in calls {
            pipeline.add_command(self.command(call, is_sure));
        }
        pipeline.cmd("WAIT").arg(1).arg(REPLICA_MS);
        let mut values =
            connected.connection.req_packed_commands(&pipeline, 0, calls.len() + 1).await.map_err(broke)?;
        self.idle.borrow_mut().push(connected);
        match values.pop() {
            Some(Value::Int(1..)) => Ok(values),
            // What was refused was not written.
            _ if values.iter().all(|value| matches!(value, Value::ServerError(_))) => Ok(values),
            other => Err(format!("no replica has confirmed it within {REPLICA_MS} ms ({other:?})").into()),
        }
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
                    if self.target.layout == Layout::Sureq && is_late(&answer) {
                        return Ok(None);
                    }
                    match self.target.layout {
                        Layout::Sureq => self.log.hear(number(first)?, now),
                        Layout::WorkQueue { .. } if number(first)? == 1 => {
                            self.look_out.hear(call, &answer, now);
                        }
                        Layout::WorkQueue { .. } | Layout::Worqr | Layout::RedisQueue(_) => {}
                    }
                    Ok(Some(answer))
                });
                return match answer {
                    Ok(Some(answer)) => Judged::Known(Ok(answer)),
                    Ok(None) => Judged::Late,
                    Err(strange) => Judged::Known(Err(strange.into())),
                };
            }
        };
        let is_function_missing = error.detail().is_some_and(|detail| detail.contains("Function not found"));
        if is_function_missing || error.kind() == ErrorKind::Server(ServerErrorKind::NoScript) {
            return Judged::NoScript;
        }
        Judged::Known(Err(refusal_of(&error)))
    }
}

enum Judged {
    Known(Result<Value, Refusal>),
    /// The script was not there.
    NoScript,
    /// It was on its way for so long that what it said of the time is not believed.
    Late,
}

/// Whether a script wants to be told the time anew.
fn is_late(answer: &Value) -> bool {
    let Value::Array(words) = answer else { return false };
    matches!(&words[..], [Value::BulkString(mark), Value::BulkString(code)] if mark == b"!" && code == b"LATE")
}

/// One that was not executed, in the middle of others that were.
fn undone() -> Result<Value, Refusal> {
    Err(Refusal::Unavailable { why: "Redis was just loading its scripts: try again".into() })
}

impl Judged {
    fn known(self) -> Option<Result<Value, Refusal>> {
        match self {
            Self::Known(answer) => Some(answer),
            Self::NoScript | Self::Late => None,
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
    let why = format!("Redis says: {error}");
    // Redis says where in a script it was that something was not allowed: what stands before that was done.
    let has_begun = why.contains("script:");
    if BEFORE.contains(&code) && !has_begun {
        return Refusal::Unavailable { why: why.into() };
    }
    Refusal::Unknown { why: why.into() }
}
