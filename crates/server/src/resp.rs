//! A RESP session: any Redis client.

use std::cell::RefCell;
use std::collections::{BTreeSet, VecDeque};
use std::io;
use std::net::IpAddr;
use std::sync::Arc;

use sureq_core::Reply;
use sureq_core::command::{Command, ConnId, Pop};
use sureq_core::limits;
use sureq_home_api::{Flow, Payload, Position, Ticket};
use sureq_proto::resp::{Args, Parser, Pieces as _, Version, Writer, recycle};
use sureq_proto::verbs::{
    self, By, Caller, Client, Connections, Credentials, Hello, LibraryInfo, PubSub, Request, Rights, Role,
    SessionCommand, UsageError,
};
use sureq_proto::{
    Change, Greeting, Part, encode_answer, encode_change, encode_hello, encode_part, encode_pong,
};

use crate::batch::BatchSize;
use crate::bounds::{Allowance, Bounds};
use crate::checker::Login;
use crate::clients::{Client as Known, connection_id};
use crate::connection::{Consumed, Dialect, DialectCx, Ready, Then, Unbegun, Written};
use crate::info::{self, REDIS_VERSION};
use crate::net_thread::Thread;
use crate::output::Output;
use crate::subscriber::Subscriber;
use crate::users::{Claim, DEFAULT_USER, User};

type Requests<'a> = Vec<Result<Request<'a>, UsageError>>;

/// What a RESP connection is in the middle of.
pub(crate) struct RespSession {
    conn: ConnId,
    version: Version,
    parser: Parser,
    batch: BatchSize,
    /// What it listens to, if it does.
    subscriber: Option<Box<Subscriber>>,
    peer: IpAddr,
    standing: Standing,
    bounds: Bounds,
    /// What a login that is under way will be answered with.
    greeting: Welcome,
    /// How often in a row a password was wrong.
    wrong_passwords: u32,
}

/// Who the peer is.
enum Standing {
    /// Nobody asks: the server has no users.
    Anyone,
    /// It has not said so.
    Stranger,
    User(Arc<User>),
}

/// How a login is answered that succeeds.
#[derive(Default)]
enum Welcome {
    /// AUTH.
    #[default]
    Plain,
    /// HELLO, with the version and the name that it asked for.
    Hello { version: Option<Version>, name: Option<Box<[u8]>> },
}

thread_local! {
    /// What all sessions of a thread parse and execute in: an idle one holds none of it.
    static ROOMS: RefCell<Rooms> = RefCell::default();
}

/// Room for this many requests is kept from one read to the next.
const ROOM_KEPT: usize = 4 << 10;

/// How much of a long answer is written before others get their turn.
const PART_BYTES: usize = 256 << 10;

/// Rooms that are kept from one read to the next.
#[derive(Default)]
struct Rooms {
    unquoted: Vec<u8>,
    args: Args<'static>,
    requests: Requests<'static>,
    commands: Vec<Command<'static>>,
}

impl RespSession {
    pub(crate) fn new(conn: ConnId, peer: IpAddr, thread: &Thread) -> Self {
        let bounds = *thread.bounds();
        let mut session = Self {
            conn,
            version: Version::Resp2,
            parser: Parser::new(bounds.of_known()),
            batch: BatchSize::default(),
            subscriber: None,
            peer,
            standing: Standing::Anyone,
            bounds,
            greeting: Welcome::Plain,
            wrong_passwords: 0,
        };
        session.begin(thread);
        session
    }

    /// Whether it is sent messages that it could not tell from replies, and so may ask for nothing that has one.
    fn is_confined(&self) -> bool {
        self.subscriber.is_some() && self.version == Version::Resp2
    }

    /// As a new connection stands.
    fn begin(&mut self, thread: &Thread) {
        let standing = if thread.users().is_empty() { Standing::Anyone } else { Standing::Stranger };
        self.stand_as(standing, thread);
    }

    fn stand_as(&mut self, standing: Standing, thread: &Thread) {
        self.parser.set_limits(match standing {
            Standing::Stranger => self.bounds.of_strangers(),
            Standing::Anyone | Standing::User(_) => self.bounds.of_known(),
        });
        self.standing = standing;
        let user = self.user().map(Box::from);
        thread.clients().note(self.conn, |client| client.user = user);
    }

    /// What the peer is called.
    fn user(&self) -> Option<&str> {
        match &self.standing {
            Standing::Anyone => Some(DEFAULT_USER),
            Standing::Stranger => None,
            Standing::User(user) => Some(user.name()),
        }
    }

    /// What the peer may do, unless that is everything.
    fn rights(&self) -> Option<&Rights> {
        match &self.standing {
            Standing::User(user) => Some(user.rights()).filter(|rights| !rights.has_everywhere(Role::Admin)),
            Standing::Anyone | Standing::Stranger => None,
        }
    }

    /// Understands a command, if the peer may send it.
    fn admit<'a>(&self, argv: &'a [&'a [u8]], rights: Option<&Rights>) -> Result<Request<'a>, UsageError> {
        if matches!(self.standing, Standing::Stranger) && !verbs::is_for_strangers(argv[0]) {
            return Err(verbs::NO_AUTH);
        }
        let request = verbs::parse(argv, Caller { conn: self.conn })?;
        if let Some(rights) = rights {
            rights.check(argv[0], &request)?;
        }
        Ok(request)
    }

    /// Refuses a command that has not arrived whole, once its first words tell that the peer may not send it. What is
    /// still to come of it is then let go as it arrives. Answers whether there was one.
    fn refuse_unfinished(&mut self, rest: &[u8], out: &mut Output) -> bool {
        let checked = self.rights().map(|rights| rights.check_beginning(self.parser.unfinished(rest)));
        let Some(Err(no)) = checked else { return false };
        self.parser.pass_over();
        Writer::new(out.bytes_mut(), self.version).error(no);
        out.gate(Position::START);
        true
    }
}

/// Whether what stands behind this is said by someone else.
const fn changes_user(command: &SessionCommand<'_>) -> bool {
    matches!(
        command,
        SessionCommand::Auth(_)
            | SessionCommand::Reset
            | SessionCommand::Hello(Hello { credentials: Some(_), .. })
    )
}

impl Dialect for RespSession {
    fn take(&mut self, input: &[u8], cx: &mut DialectCx<'_>) -> Consumed {
        let Rooms { mut unquoted, mut args, requests, commands } = ROOMS.take();
        let answered = cx.ready.as_ref().map(Ready::commands);
        // Strangers say one thing at a time.
        if !matches!(self.standing, Standing::Stranger) {
            self.parser.set_batch_max(self.batch.next(answered));
        }
        let outcome = self.parser.parse(input, &mut unquoted, &mut args);
        let mut requests: Requests<'_> = recycle(requests);
        let mut commands: Vec<Command<'_>> = recycle(commands);
        let (rights, mut turns) = (self.rights(), false);
        for argv in args.iter() {
            let request = self.admit(argv, rights);
            if let Ok(Request::Home { command, .. }) = &request {
                commands.push(*command);
            }
            let quits = matches!(request, Ok(Request::Session(SessionCommand::Quit)));
            turns = matches!(&request, Ok(Request::Session(command)) if changes_user(command));
            requests.push(request);
            if quits || turns {
                break;
            }
        }
        let Answered { stop, hold, served } = self.execute(&args, &requests, &commands, cx);
        // What is behind a stop is parsed again when its turn comes, and so is what is wrong with it.
        let (consumed, next) = match (stop, outcome) {
            (Some(Stop::Waits(n, ticket)), _) => {
                self.parser.restart();
                (before(&args, n), Then::Wait(ticket))
            }
            (Some(Stop::WritesOn(n, rest)), _) => {
                self.parser.restart();
                (before(&args, n), Then::WriteOn(rest))
            }
            (Some(Stop::Later(n)), _) => {
                self.parser.restart();
                self.batch.stopped_after(n);
                (before(&args, n), Then::Later)
            }
            (Some(Stop::LogsIn(n, login)), _) => {
                self.parser.restart();
                (args.end(n), Then::LogIn(login))
            }
            (Some(Stop::Quits), _) => (input.len(), Then::Close),
            (None, _) if turns => {
                self.parser.restart();
                (args.end(requests.len() - 1), Then::Again)
            }
            (None, Ok(progress)) => {
                if progress.more {
                    self.batch.went_through(requests.len());
                }
                let again = self.refuse_unfinished(&input[progress.consumed..], cx.out) || progress.more;
                (progress.consumed, if again { Then::Again } else { Then::Read })
            }
            (None, Err(error)) => {
                if error.is_told() {
                    Writer::new(cx.out.bytes_mut(), self.version).error(format_args!("ERR {error}"));
                    cx.out.gate(Position::START);
                }
                (input.len(), Then::Close)
            }
        };
        let (mut commands, mut requests, args) = (recycle(commands), recycle(requests), args.renew());
        requests.shrink_to(ROOM_KEPT);
        commands.shrink_to(ROOM_KEPT);
        unquoted.shrink_to(ROOM_KEPT);
        ROOMS.set(Rooms { unquoted, args, requests, commands });
        Consumed { bytes: consumed, next, hold, served }
    }

    fn hear(&mut self, out: &mut Output) -> io::Result<bool> {
        let Some(subscriber) = &mut self.subscriber else { return Ok(false) };
        subscriber.hear(self.version, out)
    }

    fn bytes(&self) -> usize {
        self.subscriber.as_ref().map_or(0, |subscriber| subscriber.bytes())
    }

    fn greet(&mut self, user: Option<Arc<User>>, thread: &Thread, out: &mut Output) -> bool {
        let greeting = std::mem::take(&mut self.greeting);
        if let Some(user) = user {
            self.welcome(user, &greeting, thread, out.bytes_mut());
            return true;
        }
        Writer::new(out.bytes_mut(), self.version).error(WRONG_PASSWORD);
        self.wrong_passwords += 1;
        self.wrong_passwords < limits::WRONG_PASSWORDS_MAX
    }

    fn allowance(&self) -> Allowance {
        match self.standing {
            Standing::Stranger => self.bounds.stranger(),
            Standing::Anyone | Standing::User(_) => self.bounds.known(),
        }
    }
}

/// Where the command before the `n`th ends.
fn before(args: &Args<'_>, n: usize) -> usize {
    n.checked_sub(1).map_or(0, |last| args.end(last))
}

/// Why a batch was not executed to its end.
enum Stop {
    /// Request `n` waits.
    Waits(usize, Ticket),
    /// There is more of the answer to request `n` and those behind it.
    WritesOn(usize, Box<Ready>),
    /// Request `n` and what is behind it has to wait for room in the output.
    Later(usize),
    /// What is behind request `n` has to wait until it is known who sent it.
    LogsIn(usize, Login),
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
        cx: &mut DialectCx<'_>,
    ) -> Answered {
        let (mut n, mut commands, mut hold, mut served) = (0, commands, None, false);
        while let Some(request) = requests.get(n) {
            if cx.ready.is_none() && cx.out.len() > self.allowance().output_bytes_max {
                return Answered { stop: Some(Stop::Later(n)), hold, served };
            }
            match request {
                Ok(request) if self.is_confined() && !is_free(request) => {
                    commands = &commands[usize::from(matches!(request, Request::Home { .. }))..];
                    let name = verbs::full_name(args.command(n));
                    Writer::new(cx.out.bytes_mut(), self.version)
                        .error(format_args!("ERR Can't execute '{name}': {CONFINED}"));
                }
                Ok(Request::Home { .. }) => {
                    let run =
                        requests[n..].iter().take_while(|r| matches!(r, Ok(Request::Home { .. }))).count();
                    let is_ready = cx.ready.is_some();
                    let submitted = cx.submit(&commands[..run]);
                    let executed = submitted.executed;
                    cx.thread.group_commit.add();
                    let part_bytes = if is_ready { PART_BYTES } else { usize::MAX };
                    let is_whole = self.answer_some(&requests[n..n + executed], part_bytes, cx);
                    cx.out.gate(submitted.position);
                    if !is_whole {
                        note_unbegun(&requests[n..n + executed], cx);
                        let rest = Box::new(cx.rest(submitted.position));
                        return Answered { stop: Some(Stop::WritesOn(n, rest)), hold, served };
                    }
                    n += executed;
                    served |= submitted.served_waiters;
                    match submitted.flow {
                        Flow::Ready | Flow::Backpressure(None) => {}
                        Flow::Backpressure(Some(until)) => hold = Some(until),
                        Flow::Waiting(ticket) => {
                            return Answered { stop: Some(Stop::Waits(n, ticket)), hold, served };
                        }
                    }
                    commands = &commands[executed..];
                    cx.replies.clear();
                    if executed == 0 {
                        return Answered { stop: Some(Stop::Later(n)), hold, served };
                    }
                    continue;
                }
                Ok(Request::Session(command)) => {
                    if let Some(login) = self.answer_itself(command, cx) {
                        return Answered { stop: Some(Stop::LogsIn(n, login)), hold, served };
                    }
                }
                Err(error) => Writer::new(cx.out.bytes_mut(), self.version).error(error),
            }
            cx.out.gate(Position::START);
            n += 1;
            if matches!(request, Ok(Request::Session(SessionCommand::Quit))) {
                return Answered { stop: Some(Stop::Quits), hold, served };
            }
        }
        Answered { stop: None, hold, served }
    }

    /// Appends the replies to requests that the home has executed, or the next part of them: an answer that was waited for
    /// may be as long as its client asked for, and others are served between its parts. Answers whether it was the last one.
    fn answer_some(
        &self,
        requests: &[Result<Request<'_>, UsageError>],
        bytes: usize,
        cx: &mut DialectCx<'_>,
    ) -> bool {
        let upto = cx.out.end().saturating_add(bytes);
        let answered = requests.iter().zip(&cx.replies.list);
        for (request, reply) in answered.skip(cx.written.replies) {
            let Ok(Request::Home { command, shape }) = request else { continue };
            let part = Part { from: cx.written.items, bytes: upto.saturating_sub(cx.out.end()) };
            if part.bytes == 0 {
                return false;
            }
            if let (Command::Pop(pop), Reply::Tasks(span), 0) = (command, reply, part.from) {
                hand_over(pop, &cx.replies.tasks[span.range()], cx.out);
            }
            let out = cx.out.bytes_mut();
            if let Some(next) = encode_part(out, self.version, command, *shape, reply, cx.replies, part) {
                cx.written.items = next;
                return false;
            }
            cx.written = Written { replies: cx.written.replies + 1, items: 0 };
        }
        true
    }

    /// Answers what is for the session, or begins the login that has to end before there is an answer.
    fn answer_itself(&mut self, command: &SessionCommand<'_>, cx: &mut DialectCx<'_>) -> Option<Login> {
        let is_confined = self.is_confined();
        let out = cx.out.bytes_mut();
        match command {
            SessionCommand::Ping(text) if is_confined => {
                encode_pong(out, *text);
                return None;
            }
            SessionCommand::Subscribe(by, names) => {
                self.subscribe(*by, names, cx);
                return None;
            }
            SessionCommand::Unsubscribe(by, names) => {
                self.unsubscribe(*by, names, cx);
                return None;
            }
            _ if encode_answer(out, self.version, command) => return None,
            _ => {}
        }
        match command {
            SessionCommand::Hello(hello) => {
                let Hello { version, name, credentials } = *hello;
                let greeting = Welcome::Hello { version, name: name.map(Box::from) };
                if let Some(said) = credentials {
                    return self.log_in(&said, greeting, cx);
                }
                if matches!(self.standing, Standing::Stranger) {
                    Writer::new(out, self.version).error(HELLO_NEEDS_AUTH);
                } else {
                    self.reply_to_login(&greeting, cx.thread, out);
                }
            }
            SessionCommand::Auth(said) => return self.log_in(said, Welcome::Plain, cx),
            SessionCommand::WhoAmI => {
                Writer::new(out, self.version).bulk(self.user().unwrap_or_default().as_bytes());
            }
            SessionCommand::Client(client) => self.answer_client(client, cx.thread, out),
            SessionCommand::Info(sections) => {
                let text = info::info(&cx.thread.facts(), sections);
                Writer::new(out, self.version).verbatim(text.as_bytes());
            }
            SessionCommand::Time => {
                let now = cx.home.now().wall.0;
                let mut w = Writer::new(out, self.version);
                w.array(2);
                w.bulk((now / 1_000).to_string().as_bytes());
                w.bulk((now % 1_000 * 1_000).to_string().as_bytes());
            }
            SessionCommand::Reset => {
                self.version = Version::Resp2;
                self.subscriber = None;
                cx.thread.clients().note(self.conn, |client| {
                    client.name.clear();
                    client.subscriptions = (0, 0);
                });
                self.begin(cx.thread);
                Writer::new(out, self.version).simple("RESET");
            }
            SessionCommand::PubSub(what) => self.answer_pubsub(what, cx.thread, out),
            SessionCommand::Quit => Writer::new(out, self.version).simple("OK"),
            _ => Writer::new(out, self.version).error("ERR not supported here"),
        }
        None
    }

    /// Finds out who this is: at once by a token, or by a password, which takes its time.
    fn log_in(&mut self, said: &Credentials<'_>, greeting: Welcome, cx: &mut DialectCx<'_>) -> Option<Login> {
        let (thread, out) = (cx.thread, cx.out.bytes_mut());
        let users = thread.users();
        if users.is_empty() {
            Writer::new(out, self.version).error(NO_PASSWORD);
            return None;
        }
        let claim = Claim::new(said);
        if let Some(user) = claim.as_ref().and_then(|claim| users.by_token(claim)) {
            self.welcome(Arc::clone(user), &greeting, thread, out);
            return None;
        }
        let login = match claim {
            Some(claim) => thread.checker().check(self.peer, claim),
            None => Some(Login::wrong()),
        };
        match login {
            Some(_) => self.greeting = greeting,
            None => Writer::new(out, self.version).error(TOO_MANY_LOGINS),
        }
        login
    }

    fn welcome(&mut self, user: Arc<User>, greeting: &Welcome, thread: &Thread, out: &mut Vec<u8>) {
        self.wrong_passwords = 0;
        self.stand_as(Standing::User(user), thread);
        self.reply_to_login(greeting, thread, out);
    }

    fn reply_to_login(&mut self, greeting: &Welcome, thread: &Thread, out: &mut Vec<u8>) {
        match greeting {
            Welcome::Plain => Writer::new(out, self.version).simple("OK"),
            Welcome::Hello { version, name } => {
                if let Some(name) = name {
                    thread.clients().note(self.conn, |client| client.name = name.to_vec());
                }
                self.version = version.unwrap_or(self.version);
                encode_hello(out, self.version, Greeting { version: REDIS_VERSION, conn: self.conn.0 });
            }
        }
    }

    fn subscribe(&mut self, by: By, names: &[&[u8]], cx: &mut DialectCx<'_>) {
        let subscriber = self.subscriber.get_or_insert_with(|| {
            let waker = cx.thread.waker_of(self.conn).expect("a connection is met before it is read from");
            Box::new(Subscriber::new(self.conn, cx.thread.subscriptions(), waker))
        });
        if let Err(error) = subscriber.subscribe(by, names, self.version, cx.out.bytes_mut()) {
            Writer::new(cx.out.bytes_mut(), self.version).error(error);
        }
        self.note_subscriptions(cx.thread);
    }

    fn unsubscribe(&mut self, by: By, names: &[&[u8]], cx: &mut DialectCx<'_>) {
        match &mut self.subscriber {
            Some(subscriber) => subscriber.unsubscribe(by, names, self.version, cx.out),
            None => leave_nothing(cx.out.bytes_mut(), self.version, by, names),
        }
        self.note_subscriptions(cx.thread);
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
        // Whoever may not do everything is told of its own connections only.
        let is_shown = |client: &Known| self.rights().is_none() || client.user.as_deref() == self.user();
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
            Client::List(Connections::All) => w.verbatim(&clients.list(|_, client| is_shown(client))),
            Client::List(Connections::Normal) => {
                w.verbatim(&clients.list(|_, client| !client.is_subscriber() && is_shown(client)));
            }
            Client::List(Connections::PubSub) => {
                w.verbatim(&clients.list(|_, client| client.is_subscriber() && is_shown(client)));
            }
            Client::List(Connections::None) => w.verbatim(b""),
            Client::List(Connections::Ids(ids)) => {
                let wanted: BTreeSet<u64> = ids.iter().filter_map(|id| connection_id(id)).collect();
                w.verbatim(&clients.list(|id, client| wanted.contains(&id) && is_shown(client)));
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

const WRONG_PASSWORD: &str = "WRONGPASS invalid username-password pair or user is disabled.";
const TOO_MANY_LOGINS: &str = "ERR too many passwords wait for being checked, try again later";
const HELLO_NEEDS_AUTH: &str = "NOAUTH HELLO must be called with the client already authenticated, otherwise the HELLO \
     <proto> AUTH <user> <pass> option can be used to authenticate the client and select the RESP protocol version at the \
     same time";
const NO_PASSWORD: &str = "ERR AUTH called without any password configured: this server knows no users";

/// Remembers what a pop handed out, until its reply is on its way.
/// Notes which deliveries of an answer that goes on have not been begun: if the connection is gone by then, they go back.
fn note_unbegun(requests: &[Result<Request<'_>, UsageError>], cx: &mut DialectCx<'_>) {
    let begun = cx.written.replies + usize::from(cx.written.items > 0);
    if let Some(unbegun) = &mut cx.unbegun {
        while unbegun.front().is_some_and(|unbegun| unbegun.reply < begun) {
            unbegun.pop_front();
        }
        return;
    }
    let mut unbegun = VecDeque::new();
    for (reply, (request, answer)) in requests.iter().zip(&cx.replies.list).enumerate().skip(begun) {
        if let (Ok(Request::Home { command: Command::Pop(pop), .. }), Reply::Tasks(span)) = (request, answer)
        {
            let tasks = &cx.replies.tasks[span.range()];
            unbegun.extend(tasks.iter().map(|task| {
                let queue = pop.queues[task.queue as usize].into();
                Unbegun { reply, queue, receipt: task.receipt() }
            }));
        }
    }
    cx.unbegun = Some(unbegun);
}

fn hand_over(pop: &Pop<'_>, tasks: &[sureq_core::reply::TaskView<Payload>], out: &mut Output) {
    let start = out.end();
    for task in tasks {
        out.hand(start, pop.queues[task.queue as usize], task.receipt());
    }
}
