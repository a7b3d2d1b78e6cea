//! A RESP session, which serves any Redis client.

use std::cell::RefCell;
use std::io;
use std::net::IpAddr;
use std::sync::Arc;

use sureq_core::command::{Command, ConnId};
use sureq_core::{Replies, Reply, limits};
use sureq_home_api::{Payload, Position};
use sureq_proto::resp::{Args, Parser, Pieces as _, Version, Writer, recycle};
use sureq_proto::verbs::{
    self, By, Caller, Client, Connections, Credentials, Hello, LibraryInfo, PubSub, Request, Rights, Role,
    SessionCommand, UsageError,
};
use sureq_proto::{
    Change, HelloFields, Part, ReplyForm, encode_answer, encode_change, encode_hello, encode_part,
    encode_pong,
};

use crate::batch::BatchSize;
use crate::bounds::{Allowance, Bounds};
use crate::checker::Login;
use crate::clients::Client as Known;
use crate::connection::{Consumed, Dialect, Then};
use crate::execute::{Answered, Executed, LateReplies, ReplyRecord, Session, SessionCx, Stop, execute};
use crate::info::{self, REDIS_VERSION};
use crate::net_thread::Thread;
use crate::output::Output;
use crate::subscriber::Subscriber;
use crate::users::{Claim, DEFAULT_USER, User};

/// The state of a RESP connection.
pub(crate) struct RespSession {
    conn: ConnId,
    version: Version,
    parser: Parser,
    batch: BatchSize,
    /// Its subscriptions, if it has any.
    subscriber: Option<Box<Subscriber>>,
    peer: IpAddr,
    identity: Identity,
    bounds: Bounds,
    /// How to reply to the login in progress if it succeeds.
    login_reply: LoginReply,
    wrong_passwords: u32,
}

/// The authentication state of the client.
enum Identity {
    /// The server has no users, so authentication is not needed.
    Unneeded,
    /// The client has not authenticated.
    Unknown,
    User(Arc<User>),
}

/// The reply to a login that succeeds.
#[derive(Default)]
enum LoginReply {
    #[default]
    Ok,
    /// The reply to HELLO, with the requested version and name.
    Hello { version: Option<Version>, name: Option<Box<[u8]>> },
}

thread_local! {
    /// Parse buffers that all sessions of a thread share, so that an idle session has none of its own.
    static BUFFERS: RefCell<Buffers> = RefCell::default();
}

/// The capacity for this many requests is kept from one read to the next.
const REQUESTS_KEPT: usize = 4 << 10;

/// Buffers whose capacity is kept from one read to the next.
#[derive(Default)]
struct Buffers {
    unquoted: Vec<u8>,
    args: Args<'static>,
    requests: Vec<ParsedRequest<'static>>,
}

/// A request, and the words that it was parsed from.
pub(crate) struct ParsedRequest<'a> {
    argv: &'a [&'a [u8]],
    request: Result<Request<'a>, UsageError>,
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
            identity: Identity::Unneeded,
            bounds,
            login_reply: LoginReply::Ok,
            wrong_passwords: 0,
        };
        session.begin(thread);
        session
    }

    /// Whether it is sent messages that RESP2 cannot distinguish from replies, so that most commands are refused.
    fn is_confined(&self) -> bool {
        self.subscriber.is_some() && self.version == Version::Resp2
    }

    /// Resets the session to the state of a new connection.
    fn begin(&mut self, thread: &Thread) {
        let identity = if thread.users().is_empty() { Identity::Unneeded } else { Identity::Unknown };
        self.identify_as(identity, thread);
    }

    fn identify_as(&mut self, identity: Identity, thread: &Thread) {
        self.parser.set_limits(match identity {
            Identity::Unknown => self.bounds.of_unauthenticated(),
            Identity::Unneeded | Identity::User(_) => self.bounds.of_known(),
        });
        self.identity = identity;
        let user = self.user().map(Box::from);
        thread.clients().note(self.conn, |client| client.user = user);
    }

    fn user(&self) -> Option<&str> {
        match &self.identity {
            Identity::Unneeded => Some(DEFAULT_USER),
            Identity::Unknown => None,
            Identity::User(user) => Some(user.name()),
        }
    }

    /// The rights of the client; `None` if it has all rights.
    fn rights(&self) -> Option<&Rights> {
        match &self.identity {
            Identity::User(user) => Some(user.rights()).filter(|rights| !rights.has_everywhere(Role::Admin)),
            Identity::Unneeded | Identity::Unknown => None,
        }
    }

    /// Parses a command, and refuses it if the client has no permission to send it.
    fn admit<'a>(&self, argv: &'a [&'a [u8]], rights: Option<&Rights>) -> Result<Request<'a>, UsageError> {
        if matches!(self.identity, Identity::Unknown) && !verbs::needs_no_user(argv[0]) {
            return Err(verbs::NO_AUTH);
        }
        let request = verbs::parse(argv, Caller { conn: self.conn });
        if let (Some(rights), Ok(request)) = (rights, &request) {
            rights.check(argv[0], request)?;
        }
        request
    }

    /// Refuses a command that has not arrived completely, once its first words show that the client has no permission
    /// to send it. The rest of the command is dropped as it arrives. Returns whether there was such a command.
    fn refuse_unfinished(&mut self, rest: &[u8], out: &mut Output) -> bool {
        let checked = self.rights().map(|rights| rights.check_beginning(self.parser.unfinished(rest)));
        let Some(Err(no)) = checked else { return false };
        self.parser.pass_over();
        Writer::new(out.bytes_mut(), self.version).error(no);
        out.gate(Position::START);
        true
    }
}

/// Whether the commands after this one may have to be checked against another user's rights.
const fn changes_user(command: &SessionCommand<'_>) -> bool {
    matches!(
        command,
        SessionCommand::Auth(_)
            | SessionCommand::Reset
            | SessionCommand::Hello(Hello { credentials: Some(_), .. })
    )
}

impl Dialect for RespSession {
    type Record = ReplyForm<'static>;

    fn take(&mut self, input: &[u8], cx: &mut SessionCx<'_>) -> Consumed<ReplyForm<'static>> {
        let Buffers { mut unquoted, mut args, requests } = BUFFERS.take();
        // A client that has not authenticated is served one command at a time.
        if !matches!(self.identity, Identity::Unknown) {
            self.parser.set_batch_max(self.batch.next());
        }
        let outcome = self.parser.parse(input, &mut unquoted, &mut args);
        let mut requests: Vec<ParsedRequest<'_>> = recycle(requests);
        let (rights, mut turns) = (self.rights(), false);
        for argv in args.iter() {
            // A request is large, so it is inspected where it is kept.
            requests.push(ParsedRequest { argv, request: self.admit(argv, rights) });
            if let Some(Ok(Request::Session(command))) = requests.last().map(|last| &last.request) {
                turns = changes_user(command);
                if turns || matches!(command, SessionCommand::Quit) {
                    break;
                }
            }
        }
        let Executed { requests: done, stop, hold, served } = execute(self, &requests, cx);
        let (bytes, next) = match (stop, outcome) {
            (Some(stop), _) => {
                // Requests that were not executed are parsed again later, and so is a protocol error behind them.
                self.parser.restart();
                let next = match stop {
                    Stop::Waits(waiting) => Then::Wait(waiting),
                    Stop::Later => Then::Later,
                    Stop::LogsIn(login) => Then::LogIn(login),
                    Stop::Quits => Then::Close,
                };
                if matches!(next, Then::Close) {
                    (input.len(), next)
                } else {
                    self.batch.stopped_after(done);
                    (end_of(&args, done), next)
                }
            }
            (None, _) if turns => {
                self.parser.restart();
                (end_of(&args, done), Then::Again)
            }
            (None, Ok(progress)) => {
                if progress.more {
                    self.batch.went_through(done);
                }
                let again = self.refuse_unfinished(&input[progress.consumed..], cx.out) || progress.more;
                (progress.consumed, if again { Then::Again } else { Then::Read })
            }
            (None, Err(error)) => {
                if error.is_reported() {
                    Writer::new(cx.out.bytes_mut(), self.version).error(format_args!("ERR {error}"));
                    cx.out.gate(Position::START);
                }
                (input.len(), Then::Close)
            }
        };
        let (mut requests, args) = (recycle(requests), args.renew());
        requests.shrink_to(REQUESTS_KEPT);
        unquoted.shrink_to(REQUESTS_KEPT);
        BUFFERS.set(Buffers { unquoted, args, requests });
        Consumed { bytes, next, hold, served }
    }

    fn write(&self, late: &mut LateReplies<ReplyForm<'static>>, output: (&mut Output, &Thread)) -> bool {
        late.write(self, output)
    }

    fn push_messages(&mut self, out: &mut Output) -> io::Result<bool> {
        let Some(subscriber) = &mut self.subscriber else { return Ok(false) };
        subscriber.push_messages(self.version, out)
    }

    fn check_messages(&self) -> io::Result<()> {
        self.subscriber.as_ref().map_or(Ok(()), |subscriber| subscriber.check_messages())
    }

    fn bytes(&self) -> usize {
        self.subscriber.as_ref().map_or(0, |subscriber| subscriber.bytes())
    }

    fn finish_login(&mut self, user: Option<Arc<User>>, thread: &Thread, out: &mut Output) -> bool {
        let reply = std::mem::take(&mut self.login_reply);
        if let Some(user) = user {
            self.admit_user(user, &reply, thread, out.bytes_mut());
            return true;
        }
        Writer::new(out.bytes_mut(), self.version).error(WRONG_PASSWORD);
        self.wrong_passwords += 1;
        self.wrong_passwords < limits::WRONG_PASSWORDS_MAX
    }

    fn allowance(&self) -> Allowance {
        match self.identity {
            Identity::Unknown => self.bounds.unauthenticated(),
            Identity::Unneeded | Identity::User(_) => self.bounds.known(),
        }
    }
}

/// The offset at which the first `n` commands end.
fn end_of(args: &Args<'_>, n: usize) -> usize {
    n.checked_sub(1).map_or(0, |last| args.end(last))
}

impl Session for RespSession {
    type Request<'a> = ParsedRequest<'a>;
    type Form<'a> = ReplyForm<'a>;

    fn command<'r>(&self, request: &'r ParsedRequest<'_>) -> Option<Command<'r>> {
        match &request.request {
            Ok(Request::Home { command, .. }) if !self.is_confined() => Some(*command),
            _ => None,
        }
    }

    fn form<'r>(&self, request: &'r ParsedRequest<'_>) -> ReplyForm<'r> {
        match &request.request {
            Ok(Request::Home { command, style }) => ReplyForm::of(command, *style),
            Ok(Request::Session(_)) | Err(_) => unreachable!("the session answers it"),
        }
    }

    fn into_owned(form: ReplyForm<'_>) -> ReplyForm<'static> {
        form.into_owned()
    }

    fn encode(
        &self,
        form: &ReplyForm<'_>,
        reply: &Reply,
        replies: &Replies<Payload>,
        part: Part,
        (out, _): (&mut Vec<u8>, &Thread),
    ) -> Option<usize> {
        encode_part(out, self.version, form, reply, replies, part)
    }

    fn answer(&mut self, request: &ParsedRequest<'_>, cx: &mut SessionCx<'_>) -> Answered {
        match &request.request {
            Ok(parsed) if self.is_confined() && !is_free(parsed) => {
                let name = verbs::full_name(request.argv);
                Writer::new(cx.out.bytes_mut(), self.version)
                    .error(format_args!("ERR Can't execute '{name}': {CONFINED}"));
            }
            Ok(Request::Session(command)) => return self.answer_itself(command, cx),
            Ok(Request::Home { .. }) => unreachable!("the home executes it"),
            Err(error) => Writer::new(cx.out.bytes_mut(), self.version).error(error),
        }
        Answered::Done
    }

    fn output_bytes_max(&self) -> usize {
        self.allowance().output_bytes_max
    }
}

impl ReplyRecord for ReplyForm<'_> {
    fn popped_queue(&self, number: u32) -> Option<&[u8]> {
        match self {
            Self::Popped { queues, .. } => Some(queues.get(number as usize)),
            _ => None,
        }
    }

    fn heap_bytes(&self) -> usize {
        self.heap_bytes()
    }
}

impl RespSession {
    /// Answers a command of the session, or begins a login that is answered when it succeeds or fails.
    fn answer_itself(&mut self, command: &SessionCommand<'_>, cx: &mut SessionCx<'_>) -> Answered {
        let is_confined = self.is_confined();
        let out = cx.out.bytes_mut();
        match command {
            SessionCommand::Ping(text) if is_confined => {
                encode_pong(out, *text);
                return Answered::Done;
            }
            SessionCommand::Subscribe(by, names) => {
                self.subscribe(*by, names, cx);
                return Answered::Done;
            }
            SessionCommand::Unsubscribe(by, names) => return self.unsubscribe(*by, names, cx),
            _ if encode_answer(out, self.version, command) => return Answered::Done,
            _ => {}
        }
        match command {
            SessionCommand::Hello(hello) => {
                let Hello { version, name, credentials } = *hello;
                let reply = LoginReply::Hello { version, name: name.map(Box::from) };
                if let Some(said) = credentials {
                    return self.log_in(&said, reply, cx);
                }
                if matches!(self.identity, Identity::Unknown) {
                    Writer::new(out, self.version).error(HELLO_NEEDS_AUTH);
                } else {
                    self.reply_to_login(&reply, cx.thread, out);
                }
            }
            SessionCommand::Auth(said) => return self.log_in(said, LoginReply::Ok, cx),
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
            SessionCommand::Reset
                if self.subscriber.as_ref().is_some_and(|subscriber| subscriber.is_given_up()) =>
            {
                return Answered::Quits;
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
            SessionCommand::Quit => {
                Writer::new(out, self.version).simple("OK");
                return Answered::Quits;
            }
            _ => Writer::new(out, self.version).error("ERR not supported here"),
        }
        Answered::Done
    }

    /// Authenticates the client: immediately by a token, or by a password, whose check takes time.
    fn log_in(&mut self, said: &Credentials<'_>, reply: LoginReply, cx: &mut SessionCx<'_>) -> Answered {
        let (thread, out) = (cx.thread, cx.out.bytes_mut());
        let users = thread.users();
        if users.is_empty() {
            Writer::new(out, self.version).error(NO_PASSWORD);
            return Answered::Done;
        }
        let claim = Claim::new(said);
        if let Some(user) = claim.as_ref().and_then(|claim| users.by_token(claim)) {
            self.admit_user(Arc::clone(user), &reply, thread, out);
            return Answered::Done;
        }
        let login = match claim {
            Some(claim) => thread.checker().check(self.peer, claim),
            None => Some(Login::wrong()),
        };
        let Some(login) = login else {
            Writer::new(out, self.version).error(TOO_MANY_LOGINS);
            return Answered::Done;
        };
        self.login_reply = reply;
        Answered::LogsIn(login)
    }

    fn admit_user(&mut self, user: Arc<User>, reply: &LoginReply, thread: &Thread, out: &mut Vec<u8>) {
        self.wrong_passwords = 0;
        self.identify_as(Identity::User(user), thread);
        self.reply_to_login(reply, thread, out);
    }

    fn reply_to_login(&mut self, reply: &LoginReply, thread: &Thread, out: &mut Vec<u8>) {
        match reply {
            LoginReply::Ok => Writer::new(out, self.version).simple("OK"),
            LoginReply::Hello { version, name } => {
                if let Some(name) = name {
                    thread.clients().note(self.conn, |client| client.name = name.to_vec());
                }
                self.version = version.unwrap_or(self.version);
                encode_hello(out, self.version, HelloFields { version: REDIS_VERSION, conn: self.conn.0 });
            }
        }
    }

    fn subscribe(&mut self, by: By, names: &[&[u8]], cx: &mut SessionCx<'_>) {
        let subscriber = self.subscriber.get_or_insert_with(|| {
            let waker = cx.thread.waker_of(self.conn).expect("a connection is met before it is read from");
            Box::new(Subscriber::new(self.conn, cx.thread.subscriptions(), waker))
        });
        if let Err(error) = subscriber.subscribe(by, names, self.version, cx.out.bytes_mut()) {
            Writer::new(cx.out.bytes_mut(), self.version).error(error);
        }
        self.note_subscriptions(cx.thread);
    }

    /// A subscriber that was given up cannot leave as if it had missed nothing: the connection takes no more commands,
    /// and ends with the error of [`Subscriber::push_messages`].
    fn unsubscribe(&mut self, by: By, names: &[&[u8]], cx: &mut SessionCx<'_>) -> Answered {
        match &mut self.subscriber {
            Some(subscriber) => {
                if subscriber.unsubscribe(by, names, self.version, cx.out).is_err() {
                    return Answered::Quits;
                }
            }
            None => leave_nothing(cx.out.bytes_mut(), self.version, by, names),
        }
        self.note_subscriptions(cx.thread);
        Answered::Done
    }

    /// Updates its entry in CLIENT LIST.
    fn note_subscriptions(&mut self, thread: &Thread) {
        self.subscriber.take_if(|subscriber| subscriber.is_empty());
        let counts = self.subscriber.as_ref().map_or((0, 0), |subscriber| subscriber.counts());
        thread.clients().note(self.conn, |client| client.subscriptions = counts);
    }

    fn answer_pubsub(&self, what: &PubSub<'_>, thread: &Thread, out: &mut Vec<u8>) {
        let subscriptions = thread.subscriptions();
        let mut w = Writer::new(out, self.version);
        match what {
            PubSub::Channels(pattern) => match subscriptions.channels(*pattern) {
                Some(channels) => {
                    w.array(channels.len());
                    for channel in channels {
                        w.bulk(&channel);
                    }
                }
                None => w.error(format_args!(
                    "ERR the pattern takes more than {} steps to match all channels",
                    limits::PATTERN_STEPS_MAX
                )),
            },
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
        // A user without all rights sees only its own connections.
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
            Client::Info => w.verbatim(&clients.line_of(self.conn)),
            Client::List(Connections::All) => w.verbatim(&clients.list(is_shown)),
            Client::List(Connections::Normal) => {
                w.verbatim(&clients.list(|client| !client.is_subscriber() && is_shown(client)));
            }
            Client::List(Connections::PubSub) => {
                w.verbatim(&clients.list(|client| client.is_subscriber() && is_shown(client)));
            }
            Client::List(Connections::None) => w.verbatim(b""),
            Client::List(Connections::Ids(ids)) => w.verbatim(&clients.list_of(ids, is_shown)),
            Client::Nothing => w.simple("OK"),
        }
    }
}

/// Whether a RESP2 connection with subscriptions may send this request.
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

/// Replies to the unsubscription of a connection that has no subscriptions.
fn leave_nothing(out: &mut Vec<u8>, version: Version, by: By, names: &[&[u8]]) {
    if names.is_empty() {
        encode_change(out, version, Change::Unsubscribed, by, None, 0);
    }
    for name in names {
        encode_change(out, version, Change::Unsubscribed, by, Some(name), 0);
    }
}

/// The text that Redis uses.
const CONFINED: &str =
    "only (P|S)SUBSCRIBE / (P|S)UNSUBSCRIBE / PING / QUIT / RESET are allowed in this context";

const WRONG_PASSWORD: &str = "WRONGPASS invalid username-password pair or user is disabled.";
const TOO_MANY_LOGINS: &str = "ERR too many logins are waiting, try again later";
const HELLO_NEEDS_AUTH: &str = "NOAUTH HELLO must be called with the client already authenticated, otherwise the HELLO \
     <proto> AUTH <user> <pass> option can be used to authenticate the client and select the RESP protocol version at the \
     same time";
const NO_PASSWORD: &str = "ERR AUTH called without any password configured: this server has no users";

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;
    use std::task::Waker;

    use sureq_engine::{Engine, Options};

    use super::*;
    use crate::net_thread::tests::thread_of;

    /// Hands commands to a session. Returns what it says, and whether it closes the connection.
    fn take(session: &mut RespSession, thread: &Thread, input: &str) -> (String, bool) {
        let (mut out, mut replies) = (Output::default(), Replies::default());
        let mut cx = SessionCx { home: &*thread.home, out: &mut out, replies: &mut replies, thread };
        let consumed = session.take(input.as_bytes(), &mut cx);
        assert_eq!(consumed.bytes, input.len());
        let said = String::from_utf8_lossy(out.bytes_mut()).replace("\r\n", " ");
        (said, matches!(consumed.next, Then::Close))
    }

    #[test]
    fn a_subscriber_that_was_given_up_cannot_leave_without_noticing() {
        for leaves in ["UNSUBSCRIBE", "UNSUBSCRIBE sureq:work:q", "RESET"] {
            let thread = thread_of(Arc::new(Engine::in_memory(&Options::default())));
            thread.register_waker(ConnId(1), Waker::noop());
            let mut session = RespSession::new(ConnId(1), Ipv4Addr::LOCALHOST.into(), &thread);
            let (said, _) = take(&mut session, &thread, "SUBSCRIBE sureq:work:q\r\n");
            assert_eq!(said, "*3 $9 subscribe $12 sureq:work:q :1 ");
            thread.subscriptions().disconnect_all();
            let answer = take(&mut session, &thread, &format!("{leaves}\r\nPING\r\n"));
            assert_eq!(answer, (String::new(), true), "{leaves}");
            let ended = session.push_messages(&mut Output::default()).map_err(|error| error.kind());
            assert_eq!(ended, Err(io::ErrorKind::TimedOut), "{leaves}");
            assert_eq!(thread.subscriptions().too_slow(), 1);
        }
    }

    #[test]
    fn a_subscriber_that_misses_nothing_can_leave() {
        for leaves in ["UNSUBSCRIBE", "RESET"] {
            let thread = thread_of(Arc::new(Engine::in_memory(&Options::default())));
            thread.register_waker(ConnId(1), Waker::noop());
            let mut session = RespSession::new(ConnId(1), Ipv4Addr::LOCALHOST.into(), &thread);
            take(&mut session, &thread, "SUBSCRIBE sureq:work:q\r\n");
            let (said, closes) = take(&mut session, &thread, &format!("{leaves}\r\n"));
            assert!(!said.is_empty() && !closes && session.subscriber.is_none(), "{leaves}: {said}");
            thread.subscriptions().disconnect_all();
            assert_eq!(take(&mut session, &thread, "PING\r\n"), ("+PONG ".to_owned(), false));
        }
    }
}
