//! A network thread: one current-thread runtime and the connections that it serves.

use std::collections::HashMap;
use std::net::TcpStream as StdStream;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::Waker;
use std::time::Duration;

use sureq_core::command::ConnId;
use sureq_home_api::Home;
use tokio::net::TcpStream;
use tokio::sync::mpsc::UnboundedReceiver;
use tokio::sync::watch;

use crate::bounds::Bounds;
use crate::checker::Checker;
use crate::clients::{Clients, Protocol};
use crate::connection::Connection;
use crate::durability_waiters::DurabilityWaiters;
use crate::group_commit::GroupCommit;
use crate::info::Facts;
use crate::resp::RespSession;
use crate::server::Common;
use crate::subscriptions::Subscriptions;
use crate::text::TextSession;
use crate::users::Users;

/// State that the connections of a thread share.
pub(crate) struct Thread {
    pub(crate) home: Arc<dyn Home>,
    pub(crate) durability_waiters: DurabilityWaiters,
    pub(crate) group_commit: GroupCommit,
    common: Arc<Common>,
    draining: AtomicBool,
    /// The wakers of the open connections.
    wakers: Mutex<HashMap<ConnId, Waker>>,
    /// The number of open connections. When draining, the thread ends once it is 0.
    open: watch::Sender<usize>,
}

/// A message to a network thread.
pub(crate) enum Message {
    Serve(StdStream, Protocol, ConnId),
    /// Execute no more requests, send the remaining replies, and end.
    Drain,
}

impl Thread {
    fn new(common: Arc<Common>) -> Self {
        Self {
            home: Arc::clone(&common.home),
            durability_waiters: DurabilityWaiters::default(),
            group_commit: GroupCommit::default(),
            common,
            draining: AtomicBool::new(false),
            wakers: Mutex::default(),
            open: watch::Sender::new(0),
        }
    }

    fn wakers(&self) -> MutexGuard<'_, HashMap<ConnId, Waker>> {
        self.wakers.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Registers the waker of a connection.
    pub(crate) fn register_waker(&self, conn: ConnId, waker: &Waker) {
        let mut wakers = self.wakers();
        if wakers.get(&conn).is_none_or(|known| !known.will_wake(waker)) {
            wakers.insert(conn, waker.clone());
        }
    }

    /// The waker of a connection, if it has been registered.
    pub(crate) fn waker_of(&self, conn: ConnId) -> Option<Waker> {
        self.wakers().get(&conn).cloned()
    }

    /// Removes a connection that has ended.
    pub(crate) fn leave(&self, conn: ConnId) {
        self.wakers().remove(&conn);
        self.common.clients.leave(conn);
        self.open.send_modify(|open| *open -= 1);
    }

    pub(crate) fn is_draining(&self) -> bool {
        self.draining.load(Ordering::Relaxed)
    }

    pub(crate) fn bounds(&self) -> &Bounds {
        &self.common.config.bounds
    }

    pub(crate) fn clients(&self) -> &Clients {
        &self.common.clients
    }

    pub(crate) fn subscriptions(&self) -> &Arc<Subscriptions> {
        &self.common.subscriptions
    }

    pub(crate) fn users(&self) -> &Users {
        &self.common.config.users
    }

    pub(crate) fn checker(&self) -> &Checker {
        &self.common.checker
    }

    pub(crate) fn facts(&self) -> Facts<'_> {
        let common = &self.common;
        Facts {
            home: &*self.home,
            clients: &common.clients,
            subscriptions: &common.subscriptions,
            started: common.started,
            resp_port: common.resp_port,
        }
    }

    fn drain(&self) {
        self.draining.store(true, Ordering::Relaxed);
        self.home.dismiss_waiters();
        self.wakers().values().for_each(Waker::wake_by_ref);
    }
}

/// Serves connections until a `Drain` message arrives and the last connection has ended.
pub(crate) async fn run(common: Arc<Common>, mut messages: UnboundedReceiver<Message>) {
    let thread = Arc::new(Thread::new(common));
    let waking = tokio::spawn({
        let thread = Arc::clone(&thread);
        async move { thread.durability_waiters.wake_connections(&*thread.home, &thread.group_commit).await }
    });
    let committer = tokio::spawn({
        let thread = Arc::clone(&thread);
        async move { thread.group_commit.commit_all(&*thread.home, &thread.durability_waiters).await }
    });
    while let Some(message) = messages.recv().await {
        match message {
            Message::Serve(stream, protocol, conn) => serve(&thread, stream, protocol, conn),
            Message::Drain => break,
        }
    }
    thread.drain();
    // The watch cannot close before `thread` does.
    let _ = thread.open.subscribe().wait_for(|open| *open == 0).await;
    waking.abort();
    committer.abort();
    thread.home.commit();
}

fn serve(thread: &Arc<Thread>, stream: StdStream, protocol: Protocol, conn: ConnId) {
    thread.open.send_modify(|open| *open += 1);
    let Ok(stream) = TcpStream::from_std(stream) else { return thread.leave(conn) };
    let Ok(peer) = stream.peer_addr() else { return thread.leave(conn) };
    let config = &thread.common.config;
    let shared = Arc::clone(thread);
    match protocol {
        Protocol::Resp => {
            let session = RespSession::new(conn, peer.ip(), thread);
            tokio::spawn(Connection::new(stream, session, conn, shared, None).serve());
        }
        Protocol::Text => {
            let idle = Some(config.text_idle_secs).filter(|&secs| secs > 0);
            let idle = idle.map(|secs| Duration::from_secs(secs.into()));
            let session = TextSession::new(config);
            tokio::spawn(Connection::new(stream, session, conn, shared, idle).serve());
        }
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use std::io::{self, Write as _};
    use std::time::Instant;

    use sureq_core::command::Command;
    use sureq_engine::{Engine, Options};
    use sureq_home_api::Position;
    use sureq_proto::ReplyForm;
    use tokio::net::TcpListener;
    use tokio::sync::mpsc::{UnboundedSender, unbounded_channel};

    use super::*;
    use crate::bounds::Allowance;
    use crate::connection::{Consumed, Dialect, Then};
    use crate::execute::{LateReplies, SessionCx};
    use crate::output::Output;
    use crate::server::Config;

    /// Pushes the input that arrives, and holds the connection back until the push is durable. The push becomes
    /// durable after the connection is held back and before it is parked.
    struct Overtaken {
        home: Arc<dyn Home>,
        hold: Option<Position>,
        /// How often messages were requested since then.
        asked: usize,
        taken: UnboundedSender<Vec<u8>>,
    }

    impl Dialect for Overtaken {
        type Record = ReplyForm<'static>;

        fn take(&mut self, input: &[u8], cx: &mut SessionCx<'_>) -> Consumed<ReplyForm<'static>> {
            let push = Command::Push { queue: b"q", payloads: &[input] };
            let executed = cx.home.submit(&[push], cx.replies);
            let hold = Some(executed.position);
            assert!(hold > Some(self.home.durable()), "it is not committed");
            (self.hold, self.asked) = (hold, 0);
            let _ = self.taken.send(input.to_vec());
            Consumed { bytes: input.len(), next: Then::Read, hold, served: false }
        }

        fn write(&self, _: &mut LateReplies<ReplyForm<'static>>, _: (&mut Output, &Thread)) -> bool {
            unreachable!("a push does not wait")
        }

        fn push_messages(&mut self, _out: &mut Output) -> io::Result<bool> {
            self.asked += 1;
            // The first call comes after the input was executed, the second after the connection was not read from
            // because it is held back.
            if let Some(hold) = self.hold
                && self.asked == 2
            {
                self.home.commit();
                while self.home.durable() < hold {
                    std::thread::yield_now();
                }
            }
            Ok(false)
        }

        fn allowance(&self) -> Allowance {
            Allowance { input_bytes_max: 1 << 10, output_bytes_max: 1 << 10, time: None }
        }
    }

    /// A thread with a home and one connection, which the test creates.
    pub(crate) fn thread_of(home: Arc<dyn Home>) -> Arc<Thread> {
        let thread = Thread::new(common(home));
        thread.open.send_modify(|open| *open += 1);
        Arc::new(thread)
    }

    fn common(home: Arc<dyn Home>) -> Arc<Common> {
        let config = Config {
            resp: None,
            text: None,
            reservations: sureq_proto::text::ReservationPolicy::default(),
            text_idle_secs: 0,
            text_line_bytes_max: 1 << 10,
            text_log: None,
            threads: 1,
            users: Arc::default(),
            text_user: None,
            bounds: Bounds::default(),
        };
        let subscriptions = Arc::new(Subscriptions::new(&*home));
        let (clients, started) = (Clients::at_most(10), Instant::now());
        let checker = Checker::start(&config.users).expect("a thread");
        Arc::new(Common { home, config, clients, subscriptions, checker, started, resp_port: 0 })
    }

    #[tokio::test]
    async fn wakes_a_held_connection_even_if_the_log_catches_up_before_it_parks() {
        let dir = tempfile::tempdir().expect("a directory");
        let engine = Engine::open(dir.path(), &Options::default()).expect("a new store");
        let home: Arc<dyn Home> = Arc::new(engine);
        let thread = thread_of(Arc::clone(&home));
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let address = listener.local_addr().expect("it has one");
        let mut client = StdStream::connect(address).expect("it listens");
        let (stream, _) = listener.accept().await.expect("accepted");
        let (taken, mut is_taken) = unbounded_channel();
        let dialect = Overtaken { home, hold: None, asked: 0, taken };
        tokio::spawn(Connection::new(stream, dialect, ConnId(1), Arc::clone(&thread), None).serve());
        tokio::spawn(async move {
            thread.durability_waiters.wake_connections(&*thread.home, &thread.group_commit).await;
        });
        for word in [b"one", b"two"] {
            client.write_all(word).expect("there is room");
            let came = tokio::time::timeout(Duration::from_secs(10), is_taken.recv()).await;
            assert_eq!(came, Ok(Some(word.to_vec())));
        }
    }
}
