//! A RESP session: any Redis client.

use std::cell::RefCell;
use std::io;

use sureq::command::{Command, ConnId, Pop};
use sureq::{Answer, Position, Reply, Ticket, limits};
use sureq_proto::resp::{Args, Limits, Parser, Version, Writer, recycle};
use sureq_proto::verbs::{
    self, By, Caller, Client, Connections, LibraryInfo, PubSub, Request, SessionCommand, UsageError,
};
use sureq_proto::{
    Change, Greeting, Owed, encode_answer, encode_change, encode_hello, encode_owed, encode_pong,
    encode_reply,
};

use crate::connection::{Dialect, Next, Taken, Turn};
use crate::info::{self, REDIS_VERSION};
use crate::net_thread::Thread;
use crate::output::Output;
use crate::subscriber::Subscriber;

type Requests<'a> = Vec<Result<Request<'a>, UsageError>>;

/// What a RESP connection is in the middle of.
pub(crate) struct RespSession {
    conn: ConnId,
    version: Version,
    parser: Parser,
    /// What the command that waits will be answered with.
    owed: Option<Owed>,
    /// What it listens to, if it does.
    subscriber: Option<Box<Subscriber>>,
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
        Self { conn, version: Version::Resp2, parser, owed: None, subscriber: None }
    }

    /// Whether it is sent messages that it could not tell from replies, and so may ask for nothing that has one.
    fn is_confined(&self) -> bool {
        self.subscriber.is_some() && self.version == Version::Resp2
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
        let Answered { stop, hold, served } = self.execute(&args, &requests, &commands, turn);
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

    fn hear(&mut self, out: &mut Output) -> io::Result<bool> {
        let Some(subscriber) = &mut self.subscriber else { return Ok(false) };
        subscriber.hear(self.version, out)
    }

    fn bytes(&self) -> usize {
        self.subscriber.as_ref().map_or(0, |subscriber| subscriber.bytes())
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
        args: &Args<'_>,
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
                Ok(request) if self.is_confined() && !is_free(request) => {
                    commands = &commands[usize::from(matches!(request, Request::Home { .. }))..];
                    let name = verbs::full_name(args.command(n));
                    Writer::new(turn.out.bytes_mut(), self.version)
                        .error(format_args!("ERR Can't execute '{name}': {CONFINED}"));
                }
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
        let is_confined = self.is_confined();
        let out = turn.out.bytes_mut();
        match command {
            SessionCommand::Ping(text) if is_confined => return encode_pong(out, *text),
            SessionCommand::Subscribe(by, names) => return self.subscribe(*by, names, turn),
            SessionCommand::Unsubscribe(by, names) => return self.unsubscribe(*by, names, turn),
            _ if encode_answer(out, self.version, command) => return,
            _ => {}
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
                self.subscriber = None;
                turn.thread.clients().note(self.conn, |client| {
                    client.name.clear();
                    client.subscriptions = (0, 0);
                });
                Writer::new(out, self.version).simple("RESET");
            }
            SessionCommand::PubSub(what) => self.answer_pubsub(what, turn.thread, out),
            SessionCommand::Quit => Writer::new(out, self.version).simple("OK"),
            _ => Writer::new(out, self.version).error("ERR not supported here"),
        }
    }

    fn subscribe(&mut self, by: By, names: &[&[u8]], turn: &mut Turn<'_>) {
        let subscriber = self.subscriber.get_or_insert_with(|| {
            let waker = turn.thread.waker_of(self.conn).expect("a connection is met before it is read from");
            Box::new(Subscriber::new(self.conn, turn.thread.subscriptions(), waker))
        });
        if let Err(error) = subscriber.subscribe(by, names, self.version, turn.out.bytes_mut()) {
            Writer::new(turn.out.bytes_mut(), self.version).error(error);
        }
        self.note_subscriptions(turn.thread);
    }

    fn unsubscribe(&mut self, by: By, names: &[&[u8]], turn: &mut Turn<'_>) {
        match &mut self.subscriber {
            Some(subscriber) => subscriber.unsubscribe(by, names, self.version, turn.out),
            None => leave_nothing(turn.out.bytes_mut(), self.version, by, names),
        }
        self.note_subscriptions(turn.thread);
    }

    /// Brings what others see of it in step.
    fn note_subscriptions(&mut self, thread: &Thread) {
        self.subscriber.take_if(|subscriber| subscriber.is_empty());
        let counts = self.subscriber.as_ref().map_or((0, 0), |subscriber| subscriber.counts());
        thread.clients().note(self.conn, |client| client.subscriptions = counts);
    }

    fn answer_pubsub(&self, what: &PubSub<'_>, thread: &Thread, out: &mut Vec<u8>) {
        let subscriptions = thread.subscriptions();
        let mut w = Writer::new(out, self.version);
        match what {
            PubSub::Channels(pattern) => {
                let channels = subscriptions.channels(*pattern);
                w.array(channels.len());
                for channel in channels {
                    w.bulk(&channel);
                }
            }
            PubSub::NumSub(channels) => {
                w.array(2 * channels.len());
                for channel in *channels {
                    w.bulk(channel);
                    w.count(subscriptions.len_of(channel) as u64);
                }
            }
            PubSub::NumPat => w.count(subscriptions.len().1 as u64),
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
            Client::Info => w.verbatim(&clients.list(|id, _| id == self.conn.0)),
            Client::List(Connections::All) => w.verbatim(&clients.list(|_, _| true)),
            Client::List(Connections::Normal) => {
                w.verbatim(&clients.list(|_, client| !client.is_subscriber()));
            }
            Client::List(Connections::PubSub) => {
                w.verbatim(&clients.list(|_, client| client.is_subscriber()));
            }
            Client::List(Connections::None) => w.verbatim(b""),
            Client::List(Connections::Ids(ids)) => {
                let wanted = |id: u64, _: &_| ids.iter().any(|wanted| **wanted == *id.to_string().as_bytes());
                w.verbatim(&clients.list(wanted));
            }
            Client::Nothing => w.simple("OK"),
        }
    }
}

/// Whether a connection may ask for this that is sent messages where replies would be.
const fn is_free(request: &Request<'_>) -> bool {
    matches!(
        request,
        Request::Session(
            SessionCommand::Subscribe(..)
                | SessionCommand::Unsubscribe(..)
                | SessionCommand::Ping(_)
                | SessionCommand::Quit
                | SessionCommand::Reset
        )
    )
}

/// Confirms to a connection without subscriptions that it has none.
fn leave_nothing(out: &mut Vec<u8>, version: Version, by: By, names: &[&[u8]]) {
    if names.is_empty() {
        encode_change(out, version, Change::Unsubscribed, by, None, 0);
    }
    for name in names {
        encode_change(out, version, Change::Unsubscribed, by, Some(name), 0);
    }
}

/// Redis' words.
const CONFINED: &str =
    "only (P|S)SUBSCRIBE / (P|S)UNSUBSCRIBE / PING / QUIT / RESET are allowed in this context";

const NO_PASSWORD: &str = "ERR AUTH called without any password configured: this server knows no users";

/// Remembers what a pop handed out, until its reply is on its way.
fn hand_over(pop: &Pop<'_>, tasks: &[sureq::reply::TaskView<sureq::Body>], out: &mut Output) {
    let start = out.end();
    for task in tasks {
        out.hand(start, pop.queues[task.queue as usize], task.receipt());
    }
}
