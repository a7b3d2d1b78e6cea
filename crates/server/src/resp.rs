//! A RESP session: any Redis client.

use std::mem;

use sureq::command::{Command, ConnId, Pop};
use sureq::{Answer, Reply};
use sureq_proto::resp::{Args, Limits, Parser, Version, Writer, recycle};
use sureq_proto::verbs::{self, Caller, Client, Connections, LibraryInfo, Request, SessionCommand, UsageError};
use sureq_proto::{Greeting, PopForm, encode_answer, encode_hello, encode_popped, encode_reply};

use crate::connection::{Dialect, Next, Taken, Turn};
use crate::info::{self, REDIS_VERSION};
use crate::net_thread::Thread;
use crate::output::Output;

type Requests<'a> = Vec<Result<Request<'a>, UsageError>>;

/// What a RESP connection is in the middle of.
pub(crate) struct RespSession {
    conn: ConnId,
    version: Version,
    parser: Parser,
    /// How to answer the pop that waits.
    waiting: Option<PopForm>,
    rooms: Rooms,
}

/// Rooms that are kept from one read to the next.
#[derive(Default)]
struct Rooms {
    unquoted: Vec<u8>,
    args: Args<'static>,
    requests: Requests<'static>,
    commands: Vec<Command<'static>>,
}

impl RespSession {
    pub(crate) fn new(conn: ConnId) -> Self {
        let parser = Parser::new(Limits::TRUSTED);
        Self { conn, version: Version::Resp2, parser, waiting: None, rooms: Rooms::default() }
    }
}

impl Dialect for RespSession {
    fn take(&mut self, input: &[u8], turn: &mut Turn<'_>) -> Taken {
        let Rooms { mut unquoted, mut args, requests, commands } = mem::take(&mut self.rooms);
        let outcome = self.parser.parse(input, &mut unquoted, &mut args);
        let mut requests: Requests<'_> = recycle(requests);
        let mut commands: Vec<Command<'_>> = recycle(commands);
        for argv in args.iter() {
            let request = verbs::parse(argv, Caller { conn: self.conn });
            if let Ok(Request::Home { command, .. }) = &request {
                commands.push(*command);
            }
            let quits = matches!(request, Ok(Request::Session(SessionCommand::Quit)));
            requests.push(request);
            if quits {
                break;
            }
        }
        let answered = self.execute(&requests, &commands, turn);
        let mut taken = match outcome {
            Ok(progress) => {
                let next = if progress.more { Next::Again } else { Next::Read };
                Taken { consumed: progress.consumed, next, hold: answered.hold }
            }
            Err(error) => {
                if error.is_told() && !matches!(answered.stop, Some(Stop::Waits(..))) {
                    Writer::new(turn.out.bytes_mut(), self.version).error(format_args!("ERR {error}"));
                    turn.out.gate(sureq::Position::START);
                }
                Taken { consumed: input.len(), next: Next::Close, hold: answered.hold }
            }
        };
        match answered.stop {
            Some(Stop::Waits(n, ticket)) => {
                // What is behind the pop is parsed again once it is answered.
                self.parser.restart();
                (taken.consumed, taken.next) = (args.end(n), Next::Wait(ticket));
            }
            Some(Stop::Quits) => taken.next = Next::Close,
            None => {}
        }
        let (commands, requests) = (recycle(commands), recycle(requests));
        let args = args.renew();
        self.rooms = Rooms { unquoted, args, requests, commands };
        taken
    }

    fn answer(&mut self, answer: &Answer, out: &mut Output) {
        let Some(form) = self.waiting.take() else { return };
        let names = answer.pop.queues();
        let start = out.end();
        for task in &answer.replies.tasks {
            out.hand(start, &names[task.queue as usize], task.receipt());
        }
        if let Some(reply) = answer.replies.list.first() {
            encode_popped(out.bytes_mut(), self.version, form, names, reply, &answer.replies);
        }
    }
}

/// Why a batch was not executed to its end.
enum Stop {
    /// Request `n` waits.
    Waits(usize, sureq::Ticket),
    Quits,
}

struct Answered {
    stop: Option<Stop>,
    hold: Option<sureq::Position>,
}

impl RespSession {
    /// Executes what is for the home, all at once, and answers everything in order.
    fn execute(&mut self, requests: &Requests<'_>, commands: &[Command<'_>], turn: &mut Turn<'_>) -> Answered {
        let mut executed = None;
        if !commands.is_empty() {
            executed = Some(turn.home.gather(commands, turn.replies));
        }
        let done = executed.as_ref().map_or(0, |executed| executed.done);
        let mut position = sureq::Position::START;
        let (mut hold, mut ticket) = (None, None);
        if let Some(executed) = executed {
            (position, hold, ticket) = (executed.position, executed.hold, executed.ticket);
        }
        let mut next = 0;
        let mut stop = None;
        for (n, request) in requests.iter().enumerate() {
            match request {
                Ok(Request::Home { command, .. }) if next == done => {
                    if let (Command::Pop(pop), Some(ticket)) = (command, ticket.take()) {
                        self.waiting = Some(PopForm::of(pop));
                        stop = Some(Stop::Waits(n, ticket));
                    }
                    break;
                }
                Ok(Request::Home { command, shape }) => {
                    let reply = &turn.replies.list[next];
                    next += 1;
                    if let (Command::Pop(pop), Reply::Tasks(span)) = (command, reply) {
                        hand_over(pop, &turn.replies.tasks[span.range()], turn.out);
                    }
                    encode_reply(turn.out.bytes_mut(), self.version, command, *shape, reply, turn.replies);
                }
                Ok(Request::Session(command)) => {
                    self.answer_itself(command, turn);
                    if matches!(command, SessionCommand::Quit) {
                        stop = Some(Stop::Quits);
                    }
                }
                Err(error) => Writer::new(turn.out.bytes_mut(), self.version).error(error),
            }
        }
        turn.out.gate(position);
        Answered { stop, hold }
    }

    fn answer_itself(&mut self, command: &SessionCommand<'_>, turn: &mut Turn<'_>) {
        let out = turn.out.bytes_mut();
        if encode_answer(out, self.version, command) {
            return;
        }
        match command {
            SessionCommand::Hello(hello) => {
                if hello.credentials.is_some() {
                    return Writer::new(out, self.version).error(NO_PASSWORD);
                }
                if let Some(name) = hello.name {
                    turn.thread.clients().note(self.conn, |client| client.name = name.to_vec());
                }
                self.version = hello.version.unwrap_or(self.version);
                encode_hello(out, self.version, Greeting { version: REDIS_VERSION, conn: self.conn.0 });
            }
            SessionCommand::Auth(_) => Writer::new(out, self.version).error(NO_PASSWORD),
            SessionCommand::Client(client) => self.answer_client(client, turn.thread, out),
            SessionCommand::Info(sections) => {
                let text = info::info(&turn.thread.facts(), sections);
                Writer::new(out, self.version).verbatim(text.as_bytes());
            }
            SessionCommand::Time => {
                let now = turn.home.now().wall.0;
                let mut w = Writer::new(out, self.version);
                w.array(2);
                w.bulk((now / 1_000).to_string().as_bytes());
                w.bulk((now % 1_000 * 1_000).to_string().as_bytes());
            }
            SessionCommand::Reset => {
                self.version = Version::Resp2;
                turn.thread.clients().note(self.conn, |client| client.name.clear());
                Writer::new(out, self.version).simple("RESET");
            }
            SessionCommand::Quit => Writer::new(out, self.version).simple("OK"),
            _ => Writer::new(out, self.version).error("ERR not supported here"),
        }
    }

    fn answer_client(&self, client: &Client<'_>, thread: &Thread, out: &mut Vec<u8>) {
        let clients = thread.clients();
        let mut w = Writer::new(out, self.version);
        match client {
            Client::Id => w.count(self.conn.0),
            Client::GetName => match clients.name(self.conn) {
                name if name.is_empty() => w.null(),
                name => w.bulk(&name),
            },
            Client::SetName(name) => {
                clients.note(self.conn, |client| client.name = name.to_vec());
                w.simple("OK");
            }
            Client::SetInfo(library) => {
                clients.note(self.conn, |client| match library {
                    LibraryInfo::Name(name) => client.library = name.to_vec(),
                    LibraryInfo::Version(version) => client.library_version = version.to_vec(),
                });
                w.simple("OK");
            }
            Client::Info => w.verbatim(&clients.list(|id| id == self.conn.0)),
            Client::List(Connections::All) => w.verbatim(&clients.list(|_| true)),
            Client::List(Connections::None) => w.verbatim(b""),
            Client::List(Connections::Ids(ids)) => {
                let wanted = |id: u64| ids.iter().any(|wanted| **wanted == *id.to_string().as_bytes());
                w.verbatim(&clients.list(wanted));
            }
            Client::Nothing | Client::Help => w.simple("OK"),
        }
    }
}

const NO_PASSWORD: &str = "ERR AUTH called without any password configured: this server knows no users";

/// Remembers what a pop handed out, until its reply is on its way.
fn hand_over(pop: &Pop<'_>, tasks: &[sureq::reply::TaskView<sureq::Body>], out: &mut Output) {
    let start = out.end();
    for task in tasks {
        out.hand(start, pop.queues[task.queue as usize], task.receipt());
    }
}
