//! Sessions without sockets: both dialects in front of a home in this process.

use std::collections::{BTreeMap, VecDeque};

use sureq_core::command::{Command, ConnId};
use sureq_core::{Replies, Reply};
use sureq_home_api::Payload;
use sureq_proto::resp::{Pieces as _, Version, Writer};
use sureq_proto::verbs::{self, Caller, SessionCommand};
use sureq_proto::{HelloFields, ReplyForm, encode_answer, encode_hello, encode_reply, text};

use super::wire::{take_line, take_resp};
use super::{Request, Subject};
use crate::scenario::{Value, Watch};

/// A home in this process.
pub(super) trait Home {
    /// Executes commands in order, as one batch; stops at a pop that waits, and returns its number.
    fn execute(&mut self, commands: &[Command<'_>], replies: &mut Replies<Payload>) -> Option<u64>;

    /// The reply to a waiting pop, when it is ready.
    fn answer(&mut self, waiting: u64) -> Option<Replies<Payload>>;

    /// Ends the wait of a pop.
    fn leave(&mut self, waiting: u64);

    fn close_conn(&mut self, conn: ConnId);
    fn pass(&mut self, ms: u64);

    /// Checks that its state is consistent, if it supports that.
    fn check(&mut self) {}

    fn jump(&mut self, ms: i64);
    fn restart(&mut self);
}

/// A home and its connections.
pub(super) struct Local<H> {
    pub(super) home: H,
    reservations: text::ReservationPolicy,
    last_conn: u64,
    sessions: BTreeMap<String, Session>,
}

struct Session {
    conn: ConnId,
    version: Version,
    is_text: bool,
    /// The waiting pop, if the first unanswered request is one.
    waiting: Option<u64>,
    /// Requests without a reply.
    behind: VecDeque<Request>,
    out: Vec<u8>,
}

impl<H: Home> Local<H> {
    pub(super) fn new(home: H, watch: Watch) -> Self {
        let reservations = text::ReservationPolicy { timeout_secs: watch.rtt, attempts: watch.rta };
        Self { home, reservations, last_conn: 0, sessions: BTreeMap::new() }
    }

    fn take_session(&mut self, conn: &str, is_text: bool) -> Session {
        self.sessions.remove(conn).unwrap_or_else(|| {
            self.last_conn += 1;
            Session {
                conn: ConnId(self.last_conn),
                version: Version::Resp2,
                is_text,
                waiting: None,
                behind: VecDeque::new(),
                out: Vec::new(),
            }
        })
    }

    /// Executes the next requests, as long as no pop waits.
    fn work(&mut self, session: &mut Session) {
        loop {
            if let Some(waiting) = session.waiting {
                let Some(replies) = self.home.answer(waiting) else { return };
                session.waiting = None;
                answer_first(session, &replies);
            }
            if session.behind.is_empty() {
                return;
            }
            if session.is_text {
                self.work_text(session);
            } else {
                self.work_resp(session);
            }
        }
    }

    fn work_text(&mut self, session: &mut Session) {
        let connections = self.sessions.values().filter(|session| session.is_text).count() + 1;
        let bytes: Vec<u8> = session
            .behind
            .drain(..)
            .flat_map(|request| [line_of(request), b"\n".to_vec()])
            .flatten()
            .collect();
        let mut items = Vec::new();
        let parsed = text::Parser::new(text::Limits::default()).parse(&bytes, &mut items);
        assert_eq!(parsed, Ok(bytes.len()), "a scenario sends whole lines");
        for line in &items {
            match &line.item {
                text::Item::Complaint(complaint) => text::encode_complaint(&mut session.out, *complaint),
                text::Item::Request(request) => {
                    let mut replies = Replies::default();
                    let waits = self.home.execute(&[request.command(self.reservations)], &mut replies);
                    assert_eq!(waits, None, "nothing of this dialect waits");
                    let gauges = text::Gauges { connections, memory_bytes: 0 };
                    text::encode_reply(
                        &mut session.out,
                        &text::TextReplyForm::of(request),
                        &replies.list[0],
                        &replies,
                        gauges,
                    );
                }
            }
        }
    }

    /// Executes requests up to a pop that waits; consecutive commands of the home are one batch.
    fn work_resp(&mut self, session: &mut Session) {
        let asked: Vec<Vec<Vec<u8>>> = session.behind.drain(..).map(words_of).collect();
        let argvs: Vec<Vec<&[u8]>> =
            asked.iter().map(|words| words.iter().map(Vec::as_slice).collect()).collect();
        let caller = Caller { conn: session.conn };
        let mut done = 0;
        while done < argvs.len() && session.waiting.is_none() {
            match verbs::parse(&argvs[done], caller) {
                Err(error) => Writer::new(&mut session.out, session.version).error(error),
                Ok(verbs::Request::Session(command)) => answer_itself(session, &command),
                Ok(verbs::Request::Home { .. }) => {
                    done += self.work_batch(session, &argvs[done..], caller);
                    continue;
                }
            }
            done += 1;
        }
        session.behind = asked.into_iter().skip(done).map(Request::Words).collect();
    }

    /// Executes the home's commands at the front; returns how many were answered.
    fn work_batch(&mut self, session: &mut Session, argvs: &[Vec<&[u8]>], caller: Caller) -> usize {
        let parsed = argvs.iter().map_while(|argv| match verbs::parse(argv, caller) {
            Ok(verbs::Request::Home { command, style }) => Some((command, style)),
            _ => None,
        });
        let (commands, styles): (Vec<_>, Vec<_>) = parsed.unzip();
        let mut replies = Replies::default();
        let waiting = self.home.execute(&commands, &mut replies);
        let done = replies.list.len();
        for n in 0..done {
            let reply: &Reply = &replies.list[n];
            encode_reply(
                &mut session.out,
                session.version,
                &ReplyForm::of(&commands[n], styles[n]),
                reply,
                &replies,
            );
        }
        session.waiting = waiting;
        // A home may stop early if replies are large; it continues with the next call.
        assert!(done > 0 || waiting.is_some(), "a home without waiters makes progress");
        done
    }

    fn work_all(&mut self) {
        let names: Vec<String> = self.sessions.keys().cloned().collect();
        for name in names {
            if let Some(mut session) = self.sessions.remove(&name) {
                self.work(&mut session);
                self.sessions.insert(name, session);
            }
        }
    }
}

impl<H: Home> Subject for Local<H> {
    fn ask(&mut self, conn: &str, requests: &[Request]) {
        let mut session = self.take_session(conn, matches!(requests, [Request::Line(_), ..]));
        session.behind.extend(requests.iter().cloned());
        self.work(&mut session);
        self.sessions.insert(conn.to_owned(), session);
    }

    fn reply(&mut self, conn: &str) -> Option<Value> {
        self.work_all();
        let session = self.sessions.get_mut(conn)?;
        if session.is_text { take_line(&mut session.out) } else { take_resp(&mut session.out) }
    }

    fn has_reply(&mut self, conn: &str) -> bool {
        self.work_all();
        self.sessions.get(conn).is_some_and(|session| !session.out.is_empty())
    }

    fn pass(&mut self, ms: u64) {
        self.home.pass(ms);
    }

    fn check(&mut self) {
        self.home.check();
    }

    fn jump(&mut self, ms: i64) {
        self.home.jump(ms);
    }

    fn restart(&mut self) {
        for (_, session) in std::mem::take(&mut self.sessions) {
            if let Some(waiting) = session.waiting {
                self.home.leave(waiting);
            }
        }
        self.home.restart();
    }

    fn close(&mut self, conn: &str) {
        let Some(session) = self.sessions.remove(conn) else { return };
        if let Some(waiting) = session.waiting {
            self.home.leave(waiting);
        }
        self.home.close_conn(session.conn);
    }
}

/// Replies to the first request, which waited.
fn answer_first(session: &mut Session, replies: &Replies<Payload>) {
    let words = words_of(session.behind.pop_front().expect("a waiting request is kept"));
    let argv: Vec<&[u8]> = words.iter().map(Vec::as_slice).collect();
    match verbs::parse(&argv, Caller { conn: session.conn }) {
        Ok(verbs::Request::Home { command, style }) => {
            encode_reply(
                &mut session.out,
                session.version,
                &ReplyForm::of(&command, style),
                &replies.list[0],
                replies,
            );
        }
        _ => unreachable!("only a command of the home waits"),
    }
}

fn answer_itself(session: &mut Session, command: &SessionCommand<'_>) {
    if let SessionCommand::Hello(hello) = command {
        session.version = hello.version.unwrap_or(session.version);
        let greeting = HelloFields { version: "7.4.0", conn: session.conn.0 };
        return encode_hello(&mut session.out, session.version, greeting);
    }
    let answered = encode_answer(&mut session.out, session.version, command);
    assert!(answered, "{command:?} is about a server, not about queues");
}

fn line_of(request: Request) -> Vec<u8> {
    match request {
        Request::Line(line) => line,
        Request::Words(_) => unreachable!("a text connection sends lines"),
    }
}

fn words_of(request: Request) -> Vec<Vec<u8>> {
    match request {
        Request::Words(words) => words,
        Request::Line(_) => unreachable!("a RESP connection sends words"),
    }
}
