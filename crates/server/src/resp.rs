//! A RESP session: any Redis client.

use std::cell::RefCell;

use sureq::command::{Command, ConnId, Pop};
use sureq::{Answer, Position, Reply, Ticket, limits};
use sureq_proto::resp::{Args, Limits, Parser, Version, Writer, recycle};
use sureq_proto::verbs::{
    self, Caller, Client, Connections, LibraryInfo, Request, SessionCommand, UsageError,
};
use sureq_proto::{Greeting, Owed, encode_answer, encode_hello, encode_owed, encode_reply};

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
    /// What the command that waits will be answered with.
    owed: Option<Owed>,
}

thread_local! {
    /// What all sessions of a thread parse and execute in: an idle one holds none of it.
    static ROOMS: RefCell<Rooms> = RefCell::default();
}

/// Room for this many requests is kept from one read to the next.
const ROOM_KEPT: usize = 4 << 10;

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
        Self { conn, version: Version::Resp2, parser, owed: None }
    }
}

impl Dialect for RespSession {
    fn take(&mut self, input: &[u8], turn: &mut Turn<'_>) -> Taken {
        let Rooms { mut unquoted, mut args, requests, commands } = ROOMS.take();
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
        let Answered { stop, hold, served } = self.execute(&requests, &commands, turn);
        // What is behind a stop is parsed again when its turn comes, and so is what is wrong with it.
        let (consumed, next) = match (stop, outcome) {
            (Some(Stop::Waits(n, ticket)), _) => {
                self.parser.restart();
                (args.end(n), Next::Wait(ticket))
            }
            (Some(Stop::Later(n)), _) => {
                self.parser.restart();
                (n.checked_sub(1).map_or(0, |last| args.end(last)), Next::Later)
            }
            (Some(Stop::Quits), _) => (input.len(), Next::Close),
            (None, Ok(progress)) => (progress.consumed, if progress.more { Next::Again } else { Next::Read }),
            (None, Err(error)) => {
                if error.is_told() {
                    Writer::new(turn.out.bytes_mut(), self.version).error(format_args!("ERR {error}"));
                    turn.out.gate(Position::START);
                }
                (input.len(), Next::Close)
            }
        };
        let (mut commands, mut requests, args) = (recycle(commands), recycle(requests), args.renew());
        requests.shrink_to(ROOM_KEPT);
        commands.shrink_to(ROOM_KEPT);
        unquoted.shrink_to(ROOM_KEPT);
        ROOMS.set(Rooms { unquoted, args, requests, commands });
        Taken { consumed, next, hold, served }
    }

    fn answer(&mut self, answer: &Answer, out: &mut Output) {
        let Some(owed) = self.owed.take() else { return };
        let names = &answer.queues;
        let start = out.end();
        for task in answer.replies.tasks.iter().filter(|_| !names.is_empty()) {
            out.hand(start, &names[task.queue as usize], task.receipt());
        }
        if let Some(reply) = answer.replies.list.first() {
            encode_owed(out.bytes_mut(), self.version, owed, names, reply, &answer.replies);
        }
    }
}

/// Why a batch was not executed to its end.
enum Stop {
    /// Request `n` waits.
    Waits(usize, Ticket),
    /// Request `n` and what is behind it has to wait for room in the output.
    Later(usize),
    Quits,
}

struct Answered {
    stop: Option<Stop>,
    hold: Option<Position>,
    served: bool,
}

impl RespSession {
    /// Executes what is for the home, as much as possible at once, and answers everything in order.
    fn execute(
        &mut self,
        requests: &Requests<'_>,
        commands: &[Command<'_>],
        turn: &mut Turn<'_>,
    ) -> Answered {
        let (mut n, mut commands, mut hold, mut served) = (0, commands, None, false);
        while let Some(request) = requests.get(n) {
            if turn.out.len() > limits::OUTPUT_BYTES_MAX {
                return Answered { stop: Some(Stop::Later(n)), hold, served };
            }
            match request {
                Ok(Request::Home { .. }) => {
                    let run =
                        requests[n..].iter().take_while(|r| matches!(r, Ok(Request::Home { .. }))).count();
                    let executed = turn.home.gather(&commands[..run], turn.replies);
                    turn.thread.gathering.add();
                    self.answer_all(&requests[n..n + executed.done], turn);
                    turn.out.gate(executed.position);
                    n += executed.done;
                    hold = executed.hold.or(hold);
                    served |= executed.served;
                    if let (Some(ticket), Some(command)) = (executed.ticket, commands.get(executed.done)) {
                        self.owed = Owed::of(command);
                        return Answered { stop: Some(Stop::Waits(n, ticket)), hold, served };
                    }
                    commands = &commands[executed.done..];
                    turn.replies.clear();
                    if executed.done == 0 {
                        return Answered { stop: Some(Stop::Later(n)), hold, served };
                    }
                    continue;
                }
                Ok(Request::Session(command)) => self.answer_itself(command, turn),
                Err(error) => Writer::new(turn.out.bytes_mut(), self.version).error(error),
            }
            turn.out.gate(Position::START);
            n += 1;
            if matches!(request, Ok(Request::Session(SessionCommand::Quit))) {
                return Answered { stop: Some(Stop::Quits), hold, served };
            }
        }
        Answered { stop: None, hold, served }
    }

    /// Appends the replies to requests that the home has executed.
    fn answer_all(&self, requests: &[Result<Request<'_>, UsageError>], turn: &mut Turn<'_>) {
        for (request, reply) in requests.iter().zip(&turn.replies.list) {
            let Ok(Request::Home { command, shape }) = request else { continue };
            if let (Command::Pop(pop), Reply::Tasks(span)) = (command, reply) {
                hand_over(pop, &turn.replies.tasks[span.range()], turn.out);
            }
            encode_reply(turn.out.bytes_mut(), self.version, command, *shape, reply, turn.replies);
        }
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
            Client::Nothing => w.simple("OK"),
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
