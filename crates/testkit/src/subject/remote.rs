//! A home on a server in this process, with a manual clock: sessions without sockets use the home, which uses the
//! server.

use std::collections::{BTreeMap, BTreeSet};
use std::task::{Context, Poll, Waker};

use sureq_core::Replies;
use sureq_core::command::{Command, ConnId, IdForm, TaskRef};
use sureq_home_api::{Answer, Home as _, Payload, Ticket};
use sureq_remote::{Patience, RemoteHome, Target};

use super::Candidate;
use super::engine::SimStore;
use super::local::{Home, Local};
use super::server::{Client, serve};
use crate::local_server::LocalServer;
use crate::patience::until;
use crate::scenario::{Need, Watch};

/// The queue on another server. Features of the text dialect alone cannot be reached with RQ.*.
pub const REMOTE: Candidate = Candidate {
    name: "remote",
    open: |watch| Box::new(Local::new(RemoteSubject::new(watch), watch)),
    can: |need| need != Need::Text,
    otherwise: &[],
};

struct RemoteSubject {
    watch: Watch,
    store: SimStore,
    server: Option<LocalServer>,
    home: RemoteHome,
    /// Connections with pops of their own, each of which has a connection of the home.
    conns: BTreeSet<ConnId>,
    /// A separate connection, to ask the server about the others.
    control: Client,
    last_waiting: u64,
    tickets: BTreeMap<u64, Ticket>,
}

impl RemoteSubject {
    fn new(watch: Watch) -> Self {
        let store = SimStore::new();
        let server = serve(&store, watch);
        let (home, control) = open(&server);
        let (conns, tickets) = (BTreeSet::new(), BTreeMap::new());
        Self { watch, store, server: Some(server), home, conns, control, last_waiting: 0, tickets }
    }

    /// The reply of a ticket, or `None` if its pop waits on the server.
    fn settle(&self, ticket: &Ticket, waited_before: usize) -> Option<Replies<Payload>> {
        let mut answer = None;
        let waits_for_tasks = ticket.waits_for_tasks();
        let waits = || waits_for_tasks && self.store.engine.waiters() > waited_before;
        until("the server answers", || {
            answer = poll(ticket);
            answer.is_some() || waits()
        });
        answer
    }

    /// Waits until server and home have the same number of waiting clients.
    fn agree(&self) {
        until("the server has the same waiters", || self.store.engine.waiters() == self.home.waiters());
    }
}

fn open(server: &LocalServer) -> (RemoteHome, Client) {
    let target = Target::parse(&format!("sureq://{}", server.resp)).expect("a URL");
    let home = RemoteHome::open_by(target, Patience::default()).expect("the server listens");
    let mut control = Client::connect(server.resp, false);
    // The home opens its second connection for the first lease that it extends. Later connections are other ones.
    let task = TaskRef { bytes: b"1-1", form: IdForm::Long };
    let _ = home.execute(&[Command::Extend { queue: b"none", task, ms: 1 }], &mut Replies::default());
    until("the home has its connections", || control.connected() == 3);
    (home, control)
}

fn poll(ticket: &Ticket) -> Option<Replies<Payload>> {
    match ticket.poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(Answer { replies, .. }) => Some(replies),
        Poll::Pending => None,
    }
}

impl Home for RemoteSubject {
    fn execute(&mut self, commands: &[Command<'_>], replies: &mut Replies<Payload>) -> Option<u64> {
        let mut done = 0;
        while done < commands.len() {
            self.agree();
            let waited_before = self.store.engine.waiters();
            if let Command::Pop(pop) = &commands[done] {
                self.conns.extend(pop.lease.conn);
            }
            let submitted = self.home.submit(&commands[done..], replies);
            let ticket = submitted.into_ticket().expect("a server answers later");
            let Some(answer) = self.settle(&ticket, waited_before) else {
                self.last_waiting += 1;
                self.tickets.insert(self.last_waiting, ticket);
                return Some(self.last_waiting);
            };
            done += answer.list.len();
            replies.append(answer);
        }
        None
    }

    fn answer(&mut self, waiting: u64) -> Option<Replies<Payload>> {
        self.agree();
        let replies = poll(self.tickets.get(&waiting)?)?;
        self.tickets.remove(&waiting);
        Some(replies)
    }

    fn leave(&mut self, waiting: u64) {
        self.agree();
        let Some(ticket) = self.tickets.remove(&waiting) else { return };
        assert!(poll(&ticket).is_none(), "no scenario closes a connection with an unread reply");
        let before = self.home.waiters();
        drop(ticket);
        until("the home notices the closed connection", || self.home.waiters() < before);
        self.agree();
    }

    fn close_conn(&mut self, conn: ConnId) {
        let before = self.control.connected();
        self.home.close_conn(conn);
        if self.conns.remove(&conn) {
            self.control.await_fewer(before);
        }
    }

    fn pass(&mut self, ms: u64) {
        self.store.pass(ms);
        self.agree();
    }

    fn jump(&mut self, ms: i64) {
        self.store.jump(ms);
    }

    fn restart(&mut self) {
        self.tickets.clear();
        self.home.close();
        self.server.take().expect("the server runs").stop();
        self.store.reopen();
        self.store.let_it_happen();
        let server = serve(&self.store, self.watch);
        self.conns.clear();
        (self.home, self.control) = open(&server);
        self.server = Some(server);
    }
}

impl Drop for RemoteSubject {
    fn drop(&mut self) {
        self.tickets.clear();
        if !std::thread::panicking() {
            self.home.close();
            self.server.take().into_iter().for_each(LocalServer::stop);
        }
    }
}
