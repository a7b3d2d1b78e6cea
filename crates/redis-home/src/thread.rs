//! The thread that communicates with Redis. It executes the jobs that `home` sends it, until the home is closed.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;
use std::sync::atomic::AtomicUsize;
use std::sync::{Arc, mpsc as std_mpsc};
use std::time::Duration;

use futures_util::future::join_all;
use redis::{RedisError, Value};
use sureq_core::command::{Block, ConnId};
use sureq_core::reply::Span;
use sureq_core::{Refusal, Replies, Reply};
use sureq_home_api::Payload;
use sureq_home_api::elsewhere::{PopOf, ReplySizes, ReplySlot, SizePlace, Subscription, Undelivered};
use sureq_home_api::{CleanReport, Cleaning, NoticeQueue};
use tokio::sync::{mpsc, oneshot};
use tokio::task::LocalSet;
use tokio::time::{MissedTickBehavior, timeout};

use crate::connection::abandonment::Abandonment;
use crate::connection::link::Link;
use crate::connection::link::Patience;
use crate::connection::node::About;
use crate::connection::target::Target;
use crate::layout::WakeUp;
use crate::layout::deliveries::Deliveries;
use crate::script::answer::{bytes, fields, is_again, number, read, refusal};
use crate::script::call::{AnswerForm, Call, conn_name, fail_call, receipt_text};
use crate::script::clock::Clock;
use crate::script::operations::argument;
use crate::script::slices::partly_done;
use crate::spread::{Listed, keep_listed, notice_restarts};
use crate::waiting::index::Waiter;
use crate::waiting::listener::listen;
use crate::waiting::subscription::receive;
use crate::waiting::waiters::{SubscriptionRequests, Waiters, serve_waiters};

/// How often a home whose connections hold tasks sends a heartbeat.
const BEAT: Duration = Duration::from_secs(10);

/// How long a heartbeat waits for servers: a little longer than it takes to reach one that is away.
const BEATING: Duration = Duration::from_secs(4);

/// How long ending connections that were left over waits for servers.
const ENDING: Duration = Duration::from_secs(60);

/// How many tasks of an answer are read before other commands get a turn.
const READ_AT_ONCE: usize = 1_000;

/// How many connections one call ends.
const CONNS_AT_ONCE: usize = 16;

/// A store: the queues of a slot tag in a cluster, or all queues if there is none.
pub(crate) type Store = Option<Vec<u8>>;

#[derive(Debug)]
pub(crate) enum Job {
    Run(Batch),
    /// A ticket was dropped. The tasks in its reply are requeued.
    Abandoned(Vec<Undelivered>),
    CloseConn(ConnId),
    Dismiss,
    Listen(Arc<NoticeQueue>, mpsc::UnboundedReceiver<Subscription>),
    Look(oneshot::Sender<()>),
    Clean(Vec<Vec<u8>>, Cleaning, std_mpsc::Sender<Result<CleanReport, Refusal>>),
    Close(std_mpsc::Sender<()>),
}

/// Commands that are sent together.
#[derive(Debug)]
pub(crate) struct Batch {
    pub(crate) calls: Vec<Result<(Call, AnswerForm), Refusal>>,
    /// The last command takes several calls.
    pub(crate) is_sliced: bool,
    /// Where the reply size of each command is learned.
    pub(crate) places: Vec<Option<SizePlace>>,
    /// For how long its only pop may wait.
    pub(crate) block: Option<Block>,
    pub(crate) slot: Arc<ReplySlot>,
    /// Connections that may hold the tasks of its pop, and the stores of these connections.
    pub(crate) conns: Vec<(ConnId, Store)>,
}

impl Batch {
    /// Refuses all commands, since the home is closed.
    pub(crate) fn refuse(&self) {
        self.slot.refuse(self.calls.len(), &Refusal::Closed);
    }
}

/// The thread of an open home: its connections, and the waiting pops.
pub struct HomeThread {
    pub(crate) link: Link,
    pub(crate) waiters: Waiters,
    pub(crate) name: String,
    deliveries: Arc<Deliveries>,
    sizes: Arc<ReplySizes>,
    pub(crate) listed: Listed,
    /// Connections that may hold tasks, and the stores of these connections.
    conns: RefCell<BTreeMap<ConnId, BTreeSet<Store>>>,
    /// Closed connections that Redis has not been informed about yet.
    closing: RefCell<BTreeSet<ConnId>>,
}

/// The state that the handle passes to the thread.
pub(crate) struct Own {
    pub(crate) name: String,
    /// The number of waiting pops.
    pub(crate) count: Arc<AtomicUsize>,
    pub(crate) deliveries: Arc<Deliveries>,
    pub(crate) sizes: Arc<ReplySizes>,
    pub(crate) abandonment: Abandonment,
}

/// Executes jobs until the home is closed.
pub(crate) fn run(
    target: Target,
    clock: Arc<dyn Clock>,
    own: Own,
    jobs: mpsc::UnboundedReceiver<Job>,
    opened: &std_mpsc::Sender<Result<Vec<About>, RedisError>>,
) {
    let runtime = match tokio::runtime::Builder::new_current_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => {
            // `open` waits for this.
            let _ = opened.send(Err(error.into()));
            return;
        }
    };
    LocalSet::new().block_on(&runtime, async {
        let link = match Link::new(target, clock, own.name.clone(), own.abandonment) {
            Ok(link) => link,
            Err(error) => {
                // `open` waits for this.
                let _ = opened.send(Err(error));
                return;
            }
        };
        let about = link.connect().await;
        let is_open = about.is_ok();
        // `open` waits for this.
        let _ = opened.send(about);
        if is_open {
            let (queue, requests) = Waiters::new(own.count);
            let home = Rc::new(HomeThread {
                link,
                waiters: queue,
                listed: Listed::default(),
                name: own.name,
                deliveries: own.deliveries,
                sizes: own.sizes,
                conns: RefCell::default(),
                closing: RefCell::default(),
            });
            begin_serving(&home, requests);
            work(&home, jobs).await;
        }
    });
    // A DNS lookup may still be running. It cannot be cancelled, and is not waited for.
    runtime.shutdown_background();
}

/// Starts the tasks that run while the home is open.
fn begin_serving(home: &Rc<HomeThread>, requests: SubscriptionRequests) {
    let (session, own) = (|| Rc::clone(&home.link.session), || Rc::clone(home));
    let waiting = home.link.target.layout().wake_up();
    match waiting {
        WakeUp::Published => _ = tokio::task::spawn_local(receive(own(), requests)),
        WakeUp::Watched | WakeUp::Taken => {
            _ = tokio::task::spawn_local(session().wake_waiters(own(), requests));
        }
    }
    if waiting != WakeUp::Taken {
        tokio::task::spawn_local(serve_waiters(own()));
    }
    if home.link.target.is_spread() {
        tokio::task::spawn_local(keep_listed(own()));
    }
    session().start(home);
}

/// Executes jobs until the home is closed.
async fn work(home: &Rc<HomeThread>, mut jobs: mpsc::UnboundedReceiver<Job>) {
    let (mut beats, mut listeners) = (None, Vec::<Arc<NoticeQueue>>::new());
    let mut under_way: Vec<tokio::task::JoinHandle<()>> = Vec::new();
    if home.link.target.is_spread() {
        let own = Rc::clone(home);
        under_way.push(tokio::task::spawn_local(async move { notice_restarts(&own).await }));
    }
    while let Some(job) = jobs.recv().await {
        under_way.retain(|task| !task.is_finished());
        let own = Rc::clone(home);
        match job {
            Job::Run(batch) => {
                if !batch.conns.is_empty() && beats.is_none() {
                    beats = Some(tokio::task::spawn_local(beat(Rc::clone(home))));
                }
                under_way.push(tokio::task::spawn_local(async move { own.run(batch).await }));
            }
            Job::Abandoned(undelivered) => {
                home.waiters.drop_abandoned();
                under_way.push(tokio::task::spawn_local(async move { own.requeue_all(undelivered).await }));
            }
            Job::CloseConn(conn) => {
                under_way.push(tokio::task::spawn_local(async move { own.close_conn(conn).await }));
            }
            Job::Dismiss => home.waiters.dismiss(),
            Job::Listen(queue, changes) => {
                listeners.retain(|queue| Arc::strong_count(queue) > 1);
                listeners.push(Arc::clone(&queue));
                // Without channels there is nothing to receive.
                if home.link.target.channels().are_there() {
                    tokio::task::spawn_local(listen(own, queue, changes));
                }
            }
            Job::Look(done) => {
                for task in under_way.drain(..) {
                    // A panic in it was reported by the panic hook.
                    let _ = task.await;
                }
                // Tests that move time by hand get heartbeats with it.
                if !home.conns.borrow().is_empty() {
                    home.send_heartbeats().await;
                }
                home.waiters.look(None, done);
            }
            Job::Clean(queues, how, done) => {
                under_way.push(tokio::task::spawn_local(async move {
                    // The caller waits for this.
                    let _ = done.send(own.link.session.clean(&own, queues, how).await);
                }));
            }
            Job::Close(done) => {
                home.waiters.dismiss();
                home.link.session.close().await;
                for task in under_way.drain(..) {
                    // A panic in it was reported by the panic hook.
                    let _ = task.await;
                }
                // More pops may have begun to wait meanwhile.
                home.waiters.dismiss();
                home.close_conns().await;
                for queue in &listeners {
                    queue.end();
                }
                jobs.close();
                while let Ok(job) = jobs.try_recv() {
                    match job {
                        Job::Run(batch) => batch.refuse(),
                        Job::Listen(queue, _) => queue.end(),
                        _ => {}
                    }
                }
                // `close` waits for this.
                let _ = done.send(());
                return;
            }
        }
    }
}

/// Sends heartbeats, and ends connections that could not be ended before. Neither waits for a server that is away or
/// hangs until the next heartbeat is late. All of it ends with the home, which drops its tasks.
async fn beat(home: Rc<HomeThread>) {
    let mut ending: Option<tokio::task::JoinHandle<()>> = None;
    let mut beats = tokio::time::interval(BEAT);
    beats.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        beats.tick().await;
        // Losing one does no harm.
        let _ = timeout(BEATING, home.send_heartbeats()).await;
        if ending.as_ref().is_none_or(tokio::task::JoinHandle::is_finished) {
            let own = Rc::clone(&home);
            ending = Some(tokio::task::spawn_local(async move {
                // The next heartbeat tries the rest again.
                let _ = timeout(ENDING, own.close_left_over()).await;
            }));
        }
    }
}

impl HomeThread {
    async fn run(&self, batch: Batch) {
        let Batch { mut calls, is_sliced, places, block, slot, conns } = batch;
        for (conn, store) in conns {
            self.conns.borrow_mut().entry(conn).or_default().insert(store);
        }
        self.link.session.prepare(self, &mut calls, slot.pops()).await;
        let sliced = if is_sliced { calls.last().and_then(|last| last.as_ref().ok()) } else { None };
        let mut sent: Vec<&Call> = calls.iter().flatten().map(|(call, _)| call).collect();
        sent.truncate(sent.len() - usize::from(sliced.is_some()));
        let mut answers = self.send(&sent).await;
        if let Some((call, _)) = sliced {
            // All unconfirmed tasks go to the front, so these go there before the slices take more.
            self.requeue_unconfirmed().await;
            self.serve_between(&sent, call).await;
            answers.push(self.ask_in_slices(call).await);
        }
        let mut answers = answers.into_iter();
        let mut replies = Replies::default();
        for call in &calls {
            let (call, form) = match call {
                Ok(call) => call,
                Err(no) => {
                    replies.list.push(Reply::Refused(no.clone()));
                    continue;
                }
            };
            let mut answer = answers.next().unwrap_or(Err(Refusal::Closed));
            // A sliced call has been continued already, and its answer is the sum.
            if let AnswerForm::Counts(next) = form
                && !matches!(answer, Ok(Value::Int(_)))
            {
                answer = self.continue_steps(call, *next, answer).await;
            }
            if *form == AnswerForm::StartedInSteps {
                answer = self.end_predecessor(call, answer).await;
            }
            if *form == AnswerForm::Tasks {
                answer = self.retry_pop(call, answer).await;
            }
            if *form == AnswerForm::ReceiptsInSteps {
                answer = self.finish_beat(call, answer).await;
            }
            match answer {
                Ok(answer) => self.read_answer(form, answer, &mut replies).await,
                Err(no) => replies.list.push(Reply::Refused(no)),
            }
        }
        self.learn_sizes(&places, &replies);
        self.requeue_unconfirmed().await;
        let found_nothing = matches!(replies.list.last(), Some(Reply::Tasks(span)) if span.is_empty());
        match (block, calls.into_iter().next()) {
            (Some(block), Some(Ok((call, _)))) if found_nothing => self.wait(call, block, slot).await,
            _ => self.give(&slot, replies).await,
        }
    }

    /// Reads an answer. A long list of tasks is read in parts, since all commands of the home share this thread.
    async fn read_answer(&self, form: &AnswerForm, answer: Value, replies: &mut Replies<Payload>) {
        let ids = self.link.target.layout().ids();
        let mut tasks = match answer {
            Value::Array(tasks) if form.is_tasks() && tasks.len() > READ_AT_ONCE => tasks.into_iter(),
            other => return read(ids, form, other, replies),
        };
        let start = replies.tasks.len();
        replies.tasks.reserve(tasks.len());
        while !tasks.as_slice().is_empty() {
            let some = tasks.by_ref().take(READ_AT_ONCE).collect();
            read(ids, form, Value::Array(some), replies);
            match replies.list.last_mut() {
                // The span grows with each part.
                Some(Reply::Tasks(span) | Reply::Inspected(span)) => {
                    *span = Span::new(start, replies.tasks.len());
                }
                _ => return,
            }
            if !tasks.as_slice().is_empty() {
                replies.list.pop();
                tokio::task::yield_now().await;
            }
        }
    }

    fn learn_sizes(&self, places: &[Option<SizePlace>], replies: &Replies<Payload>) {
        for (place, reply) in places.iter().zip(&replies.list) {
            if let (Some(place), Reply::Tasks(span) | Reply::Inspected(span)) = (place, reply) {
                self.sizes
                    .learn(*place, replies.tasks[span.range()].iter().map(|task| task.body.as_ref().len()));
            }
        }
    }

    async fn wait(&self, call: Call, block: Block, slot: Arc<ReplySlot>) {
        let until_ms = match block {
            Block::Forever => None,
            Block::Millis(ms) => Some(self.link.clock.monotonic_ms().saturating_add(ms)),
        };
        let queues = slot.pops().iter().flat_map(|pop| &*pop.queues).map(|queue| queue.to_vec()).collect();
        let is_taken = self.link.target.layout().wake_up() == WakeUp::Taken;
        // There Redis counts from a later part of this millisecond.
        let until_ms = until_ms.map(|at| at.saturating_add(is_taken.into()));
        let waiter = Waiter::new(call, queues, until_ms, slot);
        if !self.waiters.has_room_for(&waiter) {
            waiter.refuse(&Refusal::OutOfMemory);
        } else if is_taken {
            self.waiters.stand(waiter);
        } else {
            let joins = self.waiters.join(waiter);
            self.link.abandonment.or(joins, || ()).await;
        }
    }

    /// Passes replies to their ticket. If it was dropped, their tasks are requeued.
    pub(crate) async fn give(&self, slot: &ReplySlot, mut replies: Replies<Payload>) {
        self.deliveries.number(&mut replies);
        self.link.session.delivered(&replies);
        self.requeue_all(slot.fill(replies)).await;
    }

    /// Requeues the tasks of pops that no replica has confirmed: they were not delivered. Those of the last pop go
    /// first, so that all keep their order.
    pub(crate) async fn requeue_unconfirmed(&self) {
        for (call, answer) in self.link.take_unconfirmed().into_iter().rev() {
            self.requeue_answer(&call, answer).await;
        }
    }

    /// Returns the tasks of the earlier slices of a pop whose last one is unknown. If no replica has confirmed that
    /// one, its tasks go back first, so that all keep their order.
    pub(crate) async fn requeue_popped(&self, call: &Call, tasks: Vec<Value>) {
        self.requeue_unconfirmed().await;
        self.requeue_answer(call, Value::Array(tasks)).await;
    }

    /// Returns the tasks in the answer to a pop.
    async fn requeue_answer(&self, call: &Call, answer: Value) {
        let queues = call.args.get(self.link.target.layout().pop_form().queues..).unwrap_or_default();
        let pop = PopOf { command: 0, queues: queues.iter().map(|queue| queue[..].into()).collect() };
        let replies = self.read_tasks(answer);
        self.requeue_all(pop.undelivered(&replies, receipt_text)).await;
    }

    async fn requeue_all(&self, undelivered: Vec<Undelivered>) {
        for Undelivered { queue, tasks } in undelivered {
            self.requeue(&queue, &tasks).await;
        }
    }

    /// The answer to a pop, which is repeated for as long as its script answers `again`.
    pub(crate) async fn retry_pop(
        &self,
        call: &Call,
        first: Result<Value, Refusal>,
    ) -> Result<Value, Refusal> {
        let mut answer = first;
        while answer.as_ref().is_ok_and(is_again) {
            answer = self.call(call, Patience::Normal).await;
        }
        answer
    }

    /// Repeats a call that is executed in steps, until it is done.
    pub(crate) async fn continue_steps(
        &self,
        call: &Call,
        next: Option<usize>,
        first: Result<Value, Refusal>,
    ) -> Result<Value, Refusal> {
        let (mut call, mut answer, mut count, mut is_first) = (call.clone(), first?, 0, true);
        loop {
            if let Some(no) = refusal(&answer) {
                return Err(if is_first { no } else { partly_done(no) });
            }
            is_first = false;
            let [cursor, n] = fields(answer)?;
            let cursor = bytes(cursor)?;
            count += number(n)?;
            if cursor == b"0" {
                return Ok(Value::Int(count.cast_signed()));
            }
            if let Some(arg) = next.and_then(|at| call.args.get_mut(at)) {
                *arg = cursor;
            }
            answer = self.call(&call, Patience::Normal).await.map_err(partly_done)?;
        }
    }

    /// The answer to the start of a worker, once its predecessor of the same name has been ended completely.
    async fn end_predecessor(&self, call: &Call, answer: Result<Value, Refusal>) -> Result<Value, Refusal> {
        let answer = answer?;
        if refusal(&answer).is_some() {
            return Ok(answer);
        }
        let [incarnation, left] = fields(answer)?;
        let left = bytes(left)?;
        if let Some(name) = call.args.first().filter(|_| left != b"0") {
            let rest = fail_call(name, &left);
            let first = self.call(&rest, Patience::Normal).await;
            // Later calls to the script do the rest.
            let _ = self.continue_steps(&rest, Some(argument("fail", "left")), first).await;
        }
        Ok(incarnation)
    }

    async fn close_conn(&self, conn: ConnId) {
        let Some(stores) = self.conns.borrow().get(&conn).cloned() else { return };
        if self.end_conns(&stores, &[conn_name(&self.name, conn)]).await {
            self.conns.borrow_mut().remove(&conn);
        } else {
            // Each heartbeat retries it.
            self.closing.borrow_mut().insert(conn);
        }
    }

    /// Ends the leases of connections in stores, step by step. Returns whether each store has done it, or will do the
    /// rest by itself.
    async fn end_conns(&self, stores: &BTreeSet<Store>, names: &[String]) -> bool {
        let (mut left, mut is_done) = (stores.clone(), true);
        while !left.is_empty() {
            let answers = self.call_stores("close_conns", &left, names).await;
            let outcomes: Vec<(Store, Result<bool, Refusal>)> = std::mem::take(&mut left)
                .into_iter()
                .zip(answers)
                .map(|(store, answer)| (store, answer.and_then(|answer| Ok(bytes(answer)? == b"more"))))
                .collect();
            is_done &= outcomes.iter().all(|(_, outcome)| outcome.is_ok());
            left.extend(
                outcomes.into_iter().filter(|(_, is_more)| *is_more == Ok(true)).map(|(store, _)| store),
            );
        }
        is_done
    }

    /// Sends each store a call about connections; returns their answers.
    async fn call_stores(
        &self,
        what: &'static str,
        stores: &BTreeSet<Store>,
        names: &[String],
    ) -> Vec<Result<Value, Refusal>> {
        let call = |store: &Store| Call::new(what, store.as_deref()).args(names.iter().cloned());
        let calls: Vec<Call> = stores.iter().map(call).collect();
        let answers = self.link.send(&calls.iter().collect::<Vec<_>>(), Patience::Normal).await;
        answers
            .into_iter()
            .map(|answer| answer.and_then(|answer| refusal(&answer).map_or(Ok(answer), Err)))
            .collect()
    }

    /// Sends a heartbeat to each store where connections may hold tasks. Losing one does no harm.
    async fn send_heartbeats(&self) {
        let stores = self.conns.borrow().values().flatten().cloned().collect();
        self.call_stores("home", &stores, std::slice::from_ref(&self.name)).await;
    }

    /// Ends connections that could not be ended when they were closed. Each store is asked by itself, and no more once
    /// it has failed.
    async fn close_left_over(&self) {
        let mut left: BTreeMap<Store, Vec<ConnId>> = BTreeMap::new();
        self.closing.borrow_mut().retain(|conn| self.conns.borrow().contains_key(conn));
        for conn in &*self.closing.borrow() {
            for store in self.conns.borrow().get(conn).into_iter().flatten() {
                left.entry(store.clone()).or_default().push(*conn);
            }
        }
        let endings = left.into_iter().map(|(store, conns)| self.close_left_over_in(store, conns));
        join_all(endings).await;
    }

    async fn close_left_over_in(&self, store: Store, conns: Vec<ConnId>) {
        let stores = BTreeSet::from([store.clone()]);
        for some in conns.chunks(CONNS_AT_ONCE) {
            let names: Vec<String> = some.iter().map(|conn| conn_name(&self.name, *conn)).collect();
            if !self.end_conns(&stores, &names).await {
                return;
            }
            for conn in some {
                self.note_ended(*conn, &store);
            }
        }
    }

    /// Notes that a closed connection holds nothing of a store any more.
    fn note_ended(&self, conn: ConnId, store: &Store) {
        let mut conns = self.conns.borrow_mut();
        let is_done = conns.get_mut(&conn).is_none_or(|stores| {
            stores.remove(store);
            stores.is_empty()
        });
        if is_done {
            conns.remove(&conn);
            self.closing.borrow_mut().remove(&conn);
        }
    }

    async fn close_conns(&self) {
        let conns = self.conns.take();
        let stores = conns.values().flatten().cloned().collect();
        let names: Vec<String> = conns.into_keys().map(|conn| conn_name(&self.name, conn)).collect();
        // If this fails, other homes notice that the heartbeats have stopped.
        for some in names.chunks(CONNS_AT_ONCE) {
            self.end_conns(&stores, some).await;
        }
    }
}
