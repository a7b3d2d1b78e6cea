//! Sends calls to the server that owns their queue, and to its successor after a failover or a migration. A call is
//! sent again only if it was certainly not executed.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures_util::future::join_all;
use redis::aio::{MultiplexedConnection, PubSub};
use redis::{Cmd, ErrorKind, Pipeline, PushInfo, RedisError, ServerErrorKind, Value, cmd};
use sureq_core::Refusal;
use tokio::sync::mpsc;
use tokio::time::timeout;

use crate::connection::abandonment::Abandonment;
use crate::connection::node::{About, HANDSHAKE_TIME, Node, Sent};
use crate::connection::target::Target;
use crate::connection::topology::Topology;
use crate::layout::{Exchange, HeaderContext, Late, LayoutSession};
use crate::script::answer::{fields, number};
use crate::script::call::Call;
use crate::script::clock::Clock;
use crate::script::slices::only_tasks;
use crate::waiting::subscription::is_forbidden;

/// How long a command waits for a server before it is refused: usually, and if a later attempt follows anyway.
const REACH_FOR: Duration = Duration::from_secs(3);
const TRY_FOR: Duration = Duration::from_millis(200);
const RETRY_MIN: Duration = Duration::from_millis(20);
const RETRY_MAX: Duration = Duration::from_millis(500);

/// How many times a batch is sent that the server did not execute, because it lacks the script or rejects the
/// reported time.
const REJECTIONS_MAX: usize = 5;

/// The time without an answer after which the topology is asked whether another server has taken over.
const TAKEN_OVER: Duration = Duration::from_secs(1);

/// The connections of a home, and how its calls reach the servers.
pub(crate) struct Link {
    topology: Topology,
    pub(crate) target: Target,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) session: Rc<dyn LayoutSession>,
    /// Distinguishes this home from others.
    home: String,
    pub(crate) abandonment: Abandonment,
    /// Pops whose answers no replica confirmed, and that were therefore not delivered.
    unconfirmed: RefCell<Vec<(Call, Value)>>,
}

/// How long a call waits for a server that cannot be reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Patience {
    /// As long as it takes to follow a queue that has moved.
    Short,
    /// As long as a failover usually takes.
    Normal,
}

/// The progress of sending some calls to one slot.
struct Attempt {
    slot: u16,
    until: Instant,
    pause: Duration,
    rejections: usize,
    /// Why the script rejected the reported time of the last attempt.
    late: Option<Late>,
    /// When the calls were sent last, on the monotonic clock.
    sent_us: u64,
}

impl Link {
    pub(crate) fn new(
        target: Target,
        clock: Arc<dyn Clock>,
        home: String,
        abandonment: Abandonment,
    ) -> Result<Self, RedisError> {
        let topology = Topology::new(target.servers.clone())?;
        let (session, unconfirmed) = (target.layout().session(&target), RefCell::default());
        Ok(Self { topology, target, clock, session, home, abandonment, unconfirmed })
    }

    /// Connects to all servers that own slots, and reads their version and settings. Fails only if none of them
    /// can be reached.
    pub(crate) async fn connect(&self) -> Result<Vec<About>, RedisError> {
        let nodes = self.topology.owners().await?;
        let met = join_all(nodes.iter().map(|node| node.connect(self.target.layout()))).await;
        let (mut all, mut failed) = (Vec::new(), None);
        for about in met {
            match about {
                Ok(about) => all.push(about),
                Err(error) => failed = Some(error),
            }
        }
        let mut lacks_channels = false;
        for node in &nodes {
            if let Ok(Some(connection)) = node.connection(self.target.layout()).await {
                self.send_first_calls(node, &connection).await;
                lacks_channels |= self.lacks_channels(connection).await;
            }
        }
        if let Some(first) = all.first_mut() {
            first.lacks_channels = lacks_channels;
        }
        match failed {
            Some(error) if all.is_empty() => Err(error),
            _ if all.is_empty() => {
                Err(std::io::Error::other("no server of the cluster has any slots").into())
            }
            _ => Ok(all),
        }
    }

    /// Whether Redis forbids this user the channels of queues. An empty message on a channel that normally has no
    /// subscriber shows it.
    async fn lacks_channels(&self, mut connection: MultiplexedConnection) -> bool {
        let Some(channel) = self.target.layout().probe_channel(&self.target.prefix) else { return false };
        let mut say = cmd("PUBLISH");
        say.arg(channel).arg("");
        let said = timeout(HANDSHAKE_TIME, say.query_async::<Value>(&mut connection)).await;
        said.is_ok_and(|said| said.is_err_and(|error| is_forbidden(&error)))
    }

    /// A new connection for a command that blocks, and its number for [`Self::unblock`].
    pub(crate) async fn block(&self) -> Result<(MultiplexedConnection, u64), RedisError> {
        let node = self.topology.node(self.target.slot(None)).await?;
        let mut connection = node.new_connection().await.inspect_err(|_| self.topology.invalidate())?;
        let number = cmd("CLIENT").arg("ID").query_async(&mut connection).await?;
        Ok((connection, number))
    }

    /// A new connection, and what the server pushes over it.
    pub(crate) async fn pushed(
        &self,
    ) -> Result<(MultiplexedConnection, mpsc::UnboundedReceiver<PushInfo>), RedisError> {
        let node = self.topology.node(self.target.slot(None)).await?;
        node.pushed().await.inspect_err(|_| self.topology.invalidate())
    }

    /// Ends the blocking command of such a connection, as if its timeout had passed.
    pub(crate) async fn unblock(&self, number: u64) -> Result<(), Refusal> {
        let (_, mut connection) =
            self.reach(&mut Attempt::to(self.target.slot(None), Patience::Normal)).await?;
        let mut command = cmd("CLIENT");
        command.arg("UNBLOCK").arg(number);
        let closed = || Err(std::io::Error::from(std::io::ErrorKind::TimedOut).into());
        let unblocked = self.abandonment.or(command.query_async(&mut connection), closed).await;
        unblocked.map_err(|error| refusal_of(&error))
    }

    /// A new connection for subscriptions.
    pub(crate) async fn listen(&self) -> Result<PubSub, RedisError> {
        let node = self.topology.subscription_node().await?;
        node.listen().await.inspect_err(|_| self.topology.invalidate())
    }

    /// Pings the servers, so that lost connections are noticed.
    pub(crate) async fn probe(&self) {
        self.topology.probe().await;
    }

    /// Whether messages can be missed while the connection stands: in a cluster, another server may fail to pass them
    /// on.
    pub(crate) const fn may_miss(&self) -> bool {
        self.topology.is_many()
    }

    /// Pops that were executed and whose answers were withheld, since no replica has confirmed them.
    pub(crate) fn take_unconfirmed(&self) -> Vec<(Call, Value)> {
        self.unconfirmed.take()
    }

    /// Whether this call is a pop whose answer was withheld.
    pub(crate) fn is_unconfirmed(&self, call: &Call) -> bool {
        self.unconfirmed.borrow().iter().any(|(pop, _)| pop.args == call.args)
    }

    /// The server that owns a slot, and a connection to it. Retries until the attempt is over.
    async fn reach(&self, attempt: &mut Attempt) -> Result<(Rc<Node>, MultiplexedConnection), Refusal> {
        let closed = || {
            let why = format!("the home was closed while Redis at {} did not answer", self.target.address());
            Err(Refusal::Unavailable { why: why.into() })
        };
        self.abandonment.or(Box::pin(self.find(attempt)), closed).await
    }

    async fn find(&self, attempt: &mut Attempt) -> Result<(Rc<Node>, MultiplexedConnection), Refusal> {
        loop {
            let error = match self.topology.node(attempt.slot).await {
                Err(error) => error,
                Ok(node) => match node.connection(self.target.layout()).await {
                    Ok(Some(connection)) => {
                        self.send_first_calls(&node, &connection).await;
                        return Ok((node, connection));
                    }
                    Ok(None) => std::io::Error::from(std::io::ErrorKind::NotConnected).into(),
                    Err(error) => error,
                },
            };
            let why = || format!("Redis at {} does not answer: {error}", self.target.address());
            attempt.wait(why).await?;
            self.topology.invalidate();
        }
    }

    /// Sends a server the first calls of the layout, once per connection. Where each slot tag is a store, every call is
    /// one.
    async fn send_first_calls(&self, node: &Node, connection: &MultiplexedConnection) {
        if self.target.is_spread() || !node.needs_first_calls() {
            return;
        }
        let (mut commands, now_us) = (Pipeline::new(), self.clock.monotonic_us());
        for call in self.target.layout().first_calls() {
            commands.add_command(self.command(node, &call, &self.session.time(now_us, None)));
        }
        if !commands.is_empty() {
            // Every call reports the same; this is only sooner.
            let _ = timeout(HANDSHAKE_TIME, node.send(connection.clone(), &commands)).await;
        }
    }

    /// A call as it is sent to a server; all calls of a batch report the same time.
    fn command(&self, node: &Node, call: &Call, time: &str) -> Cmd {
        let mut command = node.runner().command(call.op);
        let keys = self.target.layout().keys(&self.target, call.queue.as_deref());
        command.arg(keys.len()).arg(&keys[..]).arg(call.op).arg(&self.target.prefix);
        let run_id = node.run_id();
        let context = HeaderContext { time, home: &self.home, run_id: &run_id, clock: &*self.clock };
        self.session.header(call, &context, &mut command);
        for arg in &call.args {
            command.arg(arg);
        }
        command
    }

    /// Sends calls at once, each to the server that owns its queue, and returns their answers. Calls of one slot are
    /// executed in order.
    pub(crate) async fn send(&self, calls: &[&Call], patience: Patience) -> Vec<Result<Value, Refusal>> {
        let slots: Vec<u16> = calls.iter().map(|call| self.target.slot(call.queue.as_deref())).collect();
        let Some(&first) = slots.first() else { return Vec::new() };
        if slots.iter().all(|&slot| slot == first) {
            return self.send_to_slot(Attempt::to(first, patience), calls).await;
        }
        let mut groups: BTreeMap<u16, Vec<usize>> = BTreeMap::new();
        for (at, slot) in slots.into_iter().enumerate() {
            groups.entry(slot).or_default().push(at);
        }
        let sent = groups.iter().map(async |(&slot, places)| {
            let some: Vec<&Call> = places.iter().map(|&at| calls[at]).collect();
            self.send_to_slot(Attempt::to(slot, patience), &some).await
        });
        let mut answers: Vec<Result<Value, Refusal>> = Vec::new();
        answers.resize_with(calls.len(), || Err(Refusal::Closed));
        for (places, some) in groups.values().zip(join_all(sent).await) {
            for (&at, answer) in places.iter().zip(some) {
                answers[at] = answer;
            }
        }
        answers
    }

    /// Sends calls to the server that owns a slot. Calls that were not executed are sent again until the attempt is
    /// over.
    async fn send_to_slot(&self, mut attempt: Attempt, calls: &[&Call]) -> Vec<Result<Value, Refusal>> {
        let mut answers: Vec<Result<Value, Refusal>> = Vec::with_capacity(calls.len());
        while answers.len() < calls.len() {
            if let Err(no) = self.try_rest(&mut attempt, calls, &mut answers).await {
                answers.resize_with(calls.len(), || Err(no.clone()));
            }
        }
        answers
    }

    /// Tries once to get the answers that are missing. An error is for all that are missing then.
    async fn try_rest(
        &self,
        attempt: &mut Attempt,
        calls: &[&Call],
        answers: &mut Vec<Result<Value, Refusal>>,
    ) -> Result<(), Refusal> {
        let rest = &calls[answers.len()..];
        let (node, connection) = self.reach(attempt).await?;
        let Some(values) = self.send_once(&node, connection, rest, attempt).await? else { return Ok(()) };
        let outcomes: Vec<Outcome> = rest
            .iter()
            .zip(values)
            .map(|(call, value)| self.classify(call, value, attempt.sent_us))
            .collect();
        let is_done = |outcome: &Outcome| matches!(outcome, Outcome::Known(_));
        let Some(from) = outcomes.iter().position(|outcome| !is_done(outcome)) else {
            answers.extend(outcomes.into_iter().filter_map(Outcome::known));
            return Ok(());
        };
        if outcomes[from..].iter().any(is_done) {
            answers.extend(outcomes.into_iter().map(|outcome| outcome.known().unwrap_or_else(undone)));
            return Ok(());
        }
        // None of the rest was executed: it can be sent again, in its order.
        let mut outcomes = outcomes.into_iter();
        answers.extend(outcomes.by_ref().take(from).filter_map(Outcome::known));
        let why = match outcomes.next() {
            Some(Outcome::NotHere(error)) => return self.follow(attempt, &node, &error).await,
            Some(Outcome::Late(late)) => {
                attempt.late = Some(late);
                "the call took longer to reach Redis each time, so that its clock may have been set meanwhile"
            }
            _ => {
                node.forget();
                "Redis loses its scripts as soon as they are loaded"
            }
        };
        attempt.rejections += 1;
        if attempt.rejections < REJECTIONS_MAX {
            return Ok(());
        }
        Err(Refusal::Unavailable { why: why.into() })
    }

    /// Follows a slot to its new server, or waits until its migration is over.
    async fn follow(&self, attempt: &mut Attempt, node: &Node, error: &RedisError) -> Result<(), Refusal> {
        let code = error.code().unwrap_or_default();
        let to = error.detail().and_then(|detail| detail.rsplit(' ').next()).filter(|_| code == "MOVED");
        match to {
            Some(to) => self.topology.moved(attempt.slot, to),
            None => self.topology.invalidate(),
        }
        // A demoted server is dropped; it may become the primary again later.
        if code == "READONLY" {
            node.forget();
        }
        attempt.wait(|| format!("Redis says: {error}")).await
    }

    /// Sends calls over a connection, once. `None` if they were not sent; an error if they were sent and their
    /// answers are lost.
    async fn send_once(
        &self,
        node: &Rc<Node>,
        connection: MultiplexedConnection,
        calls: &[&Call],
        attempt: &mut Attempt,
    ) -> Result<Option<Vec<Value>>, Refusal> {
        let mut commands = Pipeline::with_capacity(calls.len());
        attempt.sent_us = self.clock.monotonic_us();
        // All calls report the same time: if the first one comes too late, so do the others, and all can be sent
        // again.
        let time = self.session.time(attempt.sent_us, attempt.late);
        for call in calls {
            commands.add_command(self.command(node, call, &time));
        }
        let sent = async {
            if self.target.is_replicated {
                node.send_and_wait(commands).await
            } else {
                node.send(connection, &commands).await
            }
        };
        let unknown = |why: String| Err(Refusal::Unknown { why: why.into() });
        let closed =
            || Some(Sent::Lost(std::io::Error::other("the home was closed before it answered").into()));
        match self.abandonment.or(Box::pin(self.unless_taken_over(node, attempt.slot, sent)), closed).await {
            Some(Sent::Answered(values)) => Ok(Some(values)),
            Some(Sent::Unconfirmed(values)) => {
                for (&call, value) in calls.iter().zip(values).filter(|(call, _)| call.op == "pop") {
                    if let Ok([_, answer]) = fields(value) {
                        self.unconfirmed.borrow_mut().push((call.clone(), only_tasks(answer)));
                    }
                }
                unknown("no replica has confirmed it in time".to_owned())
            }
            Some(Sent::Unreached(error)) => {
                self.topology.invalidate();
                node.forget();
                attempt
                    .wait(|| format!("Redis at {} does not answer: {error}", self.target.address()))
                    .await?;
                Ok(None)
            }
            Some(Sent::Lost(error)) => {
                self.topology.invalidate();
                unknown(format!("the answer of Redis was lost: {error}"))
            }
            None => {
                node.forget();
                unknown("another server has taken over before this one answered".to_owned())
            }
        }
    }

    /// Waits for an answer, unless another server has taken over from one that hangs.
    async fn unless_taken_over(
        &self,
        node: &Rc<Node>,
        slot: u16,
        sent: impl Future<Output = Sent>,
    ) -> Option<Sent> {
        if !self.topology.is_many() {
            return Some(sent.await);
        }
        tokio::pin!(sent);
        loop {
            if let Ok(sent) = tokio::time::timeout(TAKEN_OVER, &mut sent).await {
                return Some(sent);
            }
            if self.topology.has_left(node, slot).await {
                return None;
            }
        }
    }

    fn classify(&self, call: &Call, value: Value, sent_us: u64) -> Outcome {
        let error = match value {
            Value::ServerError(error) => RedisError::from(error),
            value => {
                let answered_us = self.clock.monotonic_us();
                let outcome = fields(value).and_then(|[word, answer]| {
                    let exchange = Exchange { sent_us, answered_us };
                    let answered = self.session.answered(call, number(word)?, &answer, exchange);
                    Ok(answered.map_or_else(Outcome::Late, |()| Outcome::Known(Ok(answer))))
                });
                return outcome.unwrap_or_else(|unexpected| Outcome::Known(Err(unexpected.into())));
            }
        };
        let is_function_missing = error.detail().is_some_and(|detail| detail.contains("Function not found"));
        if is_function_missing || error.kind() == ErrorKind::Server(ServerErrorKind::NoScript) {
            return Outcome::NoScript;
        }
        let is_passing = self.topology.is_many() && PASSING.contains(&error.code().unwrap_or_default());
        match refusal_of(&error) {
            Refusal::Unavailable { .. } if is_passing => Outcome::NotHere(error),
            no => Outcome::Known(Err(no)),
        }
    }
}

impl Attempt {
    fn to(slot: u16, patience: Patience) -> Self {
        let patience = if patience == Patience::Short { TRY_FOR } else { REACH_FOR };
        let (until, pause) = (Instant::now() + patience, Duration::ZERO);
        Self { slot, until, pause, rejections: 0, late: None, sent_us: 0 }
    }

    /// Waits, longer each time. An error if the attempt is over.
    async fn wait(&mut self, why: impl FnOnce() -> String) -> Result<(), Refusal> {
        if Instant::now() > self.until {
            return Err(Refusal::Unavailable { why: why().into() });
        }
        tokio::time::sleep(self.pause).await;
        self.pause = (self.pause * 2).clamp(RETRY_MIN, RETRY_MAX);
        Ok(())
    }
}

enum Outcome {
    Known(Result<Value, Refusal>),
    /// The server does not have the script.
    NoScript,
    /// The script rejected the reported time: the call took too long to arrive, or the clock of Redis was set.
    Late(Late),
    /// Another server owns the slot, or will in a moment.
    NotHere(RedisError),
}

/// The refusal of a call that was not executed, between others that were.
fn undone() -> Result<Value, Refusal> {
    let why = "Redis was loading its scripts, or its clock was being corrected: try again";
    Err(Refusal::Unavailable { why: why.into() })
}

impl Outcome {
    fn known(self) -> Option<Result<Value, Refusal>> {
        match self {
            Self::Known(answer) => Some(answer),
            Self::NoScript | Self::Late(_) | Self::NotHere(_) => None,
        }
    }
}

/// Temporary errors of a cluster or behind sentinels: a slot migrates, or a replica takes over.
const PASSING: [&str; 7] = ["MOVED", "ASK", "TRYAGAIN", "CLUSTERDOWN", "READONLY", "MASTERDOWN", "LOADING"];

/// Errors that Redis reports before a script has changed anything.
const BEFORE: [&str; 13] = [
    "MOVED",
    "ASK",
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

/// The refusal for an error of Redis: `UNKNOWN` unless the call certainly changed nothing.
pub fn refusal_of(error: &RedisError) -> Refusal {
    let code = error.code().unwrap_or_default();
    let why = format!("Redis says: {error}");
    // Before 7.0 Redis prefixes errors of a script with words of its own.
    if code == "OOM" || why.contains(": -OOM command not allowed") {
        return Refusal::OutOfMemory;
    }
    // With a position in the script, the part before that position was executed.
    let has_begun = why.contains("script:");
    if BEFORE.contains(&code) && !has_begun {
        return Refusal::Unavailable { why: why.into() };
    }
    if code == "WRONGTYPE" && !has_begun {
        return Refusal::WrongType { words: error.detail().unwrap_or_default().into() };
    }
    Refusal::Unknown { why: why.into() }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refusal_to(line: &str) -> Refusal {
        let Ok(Value::ServerError(error)) = redis::parse_redis_value(line.as_bytes()) else {
            panic!("{line} is an error");
        };
        refusal_of(&RedisError::from(error))
    }

    #[test]
    fn a_full_memory_is_known_in_a_script_of_any_redis() {
        let said = "OOM command not allowed when used memory > 'maxmemory'.";
        for line in [
            format!("-{said}\r\n"),
            format!("-{said} script: f_30f7, on @user_script:1.\r\n"),
            format!(
                "-ERR Error running script (call to f_30f7): @user_script:1: @user_script: 1: -{said}\r\n"
            ),
        ] {
            assert_eq!(refusal_to(&line), Refusal::OutOfMemory, "{line}");
        }
    }
}
