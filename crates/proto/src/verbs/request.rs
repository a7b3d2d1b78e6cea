//! Parsed RESP commands: for the home to execute, or for the session to answer itself.

use crate::ReplyStyle;
use crate::resp::Version;
use sureq_core::command::{Command, ConnId};

/// One parsed RESP command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Request<'a> {
    /// A command for the home, executed in order with the others of the read.
    Home {
        command: Command<'a>,
        /// The RESP command that determines the form of the reply.
        style: ReplyStyle,
    },
    /// A command for the session. It touches no queue.
    Session(SessionCommand<'a>),
}

impl<'a> From<Command<'a>> for Request<'a> {
    fn from(command: Command<'a>) -> Self {
        Self::Home { command, style: ReplyStyle::Native }
    }
}

/// The sender of a command, as far as a command depends on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Caller {
    /// The connection, for leases that end with it.
    pub conn: ConnId,
}

/// A command that a session answers itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SessionCommand<'a> {
    /// PING, with the text to reply with.
    Ping(Option<&'a [u8]>),
    Echo(&'a [u8]),
    Hello(Hello<'a>),
    Auth(Credentials<'a>),
    /// ACL WHOAMI.
    WhoAmI,
    Client(Client<'a>),
    /// INFO, with the requested sections; none means the default ones.
    Info(&'a [&'a [u8]]),
    /// SELECT 0, the only database.
    Select,
    Command(Describe<'a>),
    /// CONFIG GET, with its patterns.
    ConfigGet(&'a [&'a [u8]]),
    /// HELP of the command with this name, which has subcommands.
    Help(&'static str),
    Time,
    /// QUIT: reply, then close the connection.
    Quit,
    /// RESET: return to the state of a new connection.
    Reset,
    /// SCAN for keys of a type that no queue has. The result is empty.
    ScanNothing,
    /// SUBSCRIBE or PSUBSCRIBE, with its channels or patterns.
    Subscribe(By, &'a [&'a [u8]]),
    /// UNSUBSCRIBE or PUNSUBSCRIBE; no name means all.
    Unsubscribe(By, &'a [&'a [u8]]),
    PubSub(PubSub<'a>),
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Hello<'a> {
    /// The protocol version from now on; `None` keeps the current one.
    pub version: Option<Version>,
    /// The credentials, if the command also authenticates.
    pub credentials: Option<Credentials<'a>>,
    /// The name of the connection in CLIENT LIST.
    pub name: Option<&'a [u8]>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Credentials<'a> {
    /// The user; `None` means the default user.
    pub user: Option<&'a [u8]>,
    /// The password, or a token.
    pub password: &'a [u8],
}

impl std::fmt::Debug for Credentials<'_> {
    /// The password is left out, so that it never reaches a log.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Credentials").field("user", &self.user).finish_non_exhaustive()
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Client<'a> {
    /// CLIENT ID: the id of this connection.
    Id,
    /// CLIENT GETNAME: the name of this connection, or null.
    GetName,
    /// CLIENT SETNAME: sets the name of this connection; an empty name removes it.
    SetName(&'a [u8]),
    /// CLIENT SETINFO: records the library that the client uses.
    SetInfo(LibraryInfo<'a>),
    /// CLIENT INFO: one line about this connection.
    Info,
    /// CLIENT LIST: a line about each connection.
    List(Connections<'a>),
    /// NO-EVICT and NO-TOUCH, which have no effect here.
    Nothing,
}

/// The attributes that CLIENT SETINFO sets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LibraryInfo<'a> {
    Name(&'a [u8]),
    Version(&'a [u8]),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Connections<'a> {
    All,
    /// Those without subscriptions.
    Normal,
    /// Those with subscriptions.
    PubSub,
    /// Those of a type that no connection here has.
    None,
    /// Those with these ids, which have been validated.
    Ids(&'a [&'a [u8]]),
}

/// The kinds of subscriptions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum By {
    /// A subscription to one channel.
    Channel,
    /// A subscription to all channels that match a pattern.
    Pattern,
}

/// PUBSUB and its subcommands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PubSub<'a> {
    /// CHANNELS: the channels that have subscribers and match the pattern, if there is one.
    Channels(Option<&'a [u8]>),
    /// NUMSUB: the number of subscribers of each of these channels.
    NumSub(&'a [&'a [u8]]),
    /// NUMPAT: the number of patterns with subscribers.
    NumPat,
}

/// COMMAND and its subcommands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Describe<'a> {
    Count,
    /// COMMAND alone or COMMAND INFO: all commands, or these.
    Info(&'a [&'a [u8]]),
    /// DOCS: all commands, or these.
    Docs(&'a [&'a [u8]]),
    /// LIST: the names of all commands.
    List,
    /// GETKEYS: the keys of this command.
    Keys(&'a [&'a [u8]]),
}
