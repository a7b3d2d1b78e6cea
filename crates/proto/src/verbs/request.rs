//! Parsed RESP commands: for the home to execute, or for the session to answer itself.

use crate::ReplyStyle;
use crate::resp::Version;
use sureq_core::command::{Command, ConnId};

/// One parsed RESP command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Request<'a> {
    /// For the home, in order with the others of the read.
    Home {
        /// The command.
        command: Command<'a>,
        /// Which verb its reply is for.
        style: ReplyStyle,
    },
    /// For the session: no queue is touched.
    Session(SessionCommand<'a>),
}

impl<'a> From<Command<'a>> for Request<'a> {
    fn from(command: Command<'a>) -> Self {
        Self::Home { command, style: ReplyStyle::Native }
    }
}

/// The sender of a command, as far as a command can depend on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Caller {
    /// The connection, for leases that end with it.
    pub conn: ConnId,
}

/// A command that a session answers by itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SessionCommand<'a> {
    /// PING, with what it is to be answered with.
    Ping(Option<&'a [u8]>),
    /// ECHO.
    Echo(&'a [u8]),
    /// HELLO.
    Hello(Hello<'a>),
    /// AUTH.
    Auth(Credentials<'a>),
    /// ACL WHOAMI.
    WhoAmI,
    /// CLIENT.
    Client(Client<'a>),
    /// INFO, with the sections asked for; none means the usual ones.
    Info(&'a [&'a [u8]]),
    /// SELECT 0, the only database there is.
    Select,
    /// COMMAND.
    Command(Describe<'a>),
    /// CONFIG GET, with its patterns.
    ConfigGet(&'a [&'a [u8]]),
    /// HELP of a command that has subcommands.
    Help(&'static str),
    /// TIME.
    Time,
    /// QUIT: answer, then close.
    Quit,
    /// RESET: as a new connection.
    Reset,
    /// SCAN for keys of a type that no queue has.
    ScanNothing,
    /// SUBSCRIBE or PSUBSCRIBE, with its channels or patterns.
    Subscribe(By, &'a [&'a [u8]]),
    /// UNSUBSCRIBE or PUNSUBSCRIBE; no name means all.
    Unsubscribe(By, &'a [&'a [u8]]),
    /// PUBSUB.
    PubSub(PubSub<'a>),
}

/// The options of HELLO.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Hello<'a> {
    /// The protocol version from now on; none leaves it as it is.
    pub version: Option<Version>,
    /// The credentials, if it authenticates.
    pub credentials: Option<Credentials<'a>>,
    /// Its name in CLIENT LIST.
    pub name: Option<&'a [u8]>,
}

/// The credentials of a login.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Credentials<'a> {
    /// The user; none is the default one.
    pub user: Option<&'a [u8]>,
    /// The password.
    pub password: &'a [u8],
}

impl std::fmt::Debug for Credentials<'_> {
    /// A password never reaches a log.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Credentials").field("user", &self.user).finish_non_exhaustive()
    }
}

/// CLIENT and its subcommands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Client<'a> {
    /// The number of this connection.
    Id,
    /// The name of this connection, or null.
    GetName,
    /// Names this connection; an empty name takes it away.
    SetName(&'a [u8]),
    /// Says what library the client uses.
    SetInfo(LibraryInfo<'a>),
    /// One line on this connection.
    Info,
    /// A line on each connection.
    List(Connections<'a>),
    /// NO-EVICT and NO-TOUCH, which concern nothing here.
    Nothing,
}

/// The attributes that CLIENT SETINFO sets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LibraryInfo<'a> {
    /// LIB-NAME.
    Name(&'a [u8]),
    /// LIB-VER.
    Version(&'a [u8]),
}

/// Which connections to list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Connections<'a> {
    /// Each.
    All,
    /// Those that have subscribed to nothing.
    Normal,
    /// Those that have subscribed to something.
    PubSub,
    /// Those of a type that no connection here has.
    None,
    /// Those with these numbers; what is none is an error found before.
    Ids(&'a [&'a [u8]]),
}

/// The kinds of subscriptions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum By {
    /// One channel.
    Channel,
    /// All channels that match.
    Pattern,
}

/// PUBSUB and its subcommands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PubSub<'a> {
    /// CHANNELS: those that have subscribers, and match if there is a pattern.
    Channels(Option<&'a [u8]>),
    /// NUMSUB: how many subscribers each of these has.
    NumSub(&'a [&'a [u8]]),
    /// NUMPAT: how many patterns there are.
    NumPat,
}

/// COMMAND and its subcommands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Describe<'a> {
    /// COUNT.
    Count,
    /// COMMAND alone or COMMAND INFO: all, or these.
    Info(&'a [&'a [u8]]),
    /// DOCS: all, or these.
    Docs(&'a [&'a [u8]]),
    /// LIST: the names.
    List,
    /// GETKEYS: the keys of this command.
    Keys(&'a [&'a [u8]]),
}
