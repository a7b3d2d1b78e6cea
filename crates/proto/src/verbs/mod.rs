//! RESP commands: words to [`Request`]s, by one table.
//!
//! * [`TABLE`]: a row per command, and the only list of them.
//! * [`parse`]: words to a request. What the words of each command mean stands in files by topic.
//! * [`Rights`]: which commands a user may run, by the role in each row.
//! * [`describe`](fn@describe), [`commands_markdown`]: what clients and humans are told of the commands.

mod access;
mod code;
mod describe;
mod error;
mod keys;
mod manage;
mod markdown;
mod options;
mod pubsub;
mod queue;
mod request;
mod session;
mod table;
mod task;
mod worker;

pub use access::{NO_AUTH, Rights, Role, is_for_strangers, roles_markdown};
use code::Code;
pub use describe::{describe, help};
pub use error::UsageError;
pub use keys::TYPE_NAME;
pub use markdown::commands_markdown;
pub(crate) use queue::is_pop_option;
pub use request::{
    By, Caller, Client, Connections, Credentials, Describe, Hello, LibraryInfo, PubSub, Request,
    SessionCommand,
};
pub use table::TABLE;
pub(crate) use worker::read as read_worker;

/// How the words of a command become a request. Their number has been checked against the row's arity.
type Parse = for<'a> fn(&'a [&'a [u8]], Caller) -> Result<Request<'a>, UsageError>;

/// One command.
#[derive(Clone, Copy, Debug)]
pub struct Row {
    /// In capitals.
    pub name: &'static str,
    /// How many words, the name included; a negative number is a minimum.
    pub arity: i32,
    /// Which role it needs on the queues it names; none for what every user may do.
    pub role: Option<Role>,
    /// As COMMAND INFO shows them.
    pub flags: &'static [&'static str],
    /// Which words are keys.
    pub keys: Keys,
    /// What it is about.
    pub group: Group,
    /// One sentence.
    pub summary: &'static str,
    /// Name and arguments, as documentation shows them.
    pub syntax: &'static str,
    /// What it answers.
    pub reply: &'static str,
    /// What else is to be known.
    pub notes: &'static str,
    /// As it looks in redis-cli.
    pub example: &'static str,
    /// Its subcommands, if it has any.
    pub subs: &'static [Sub],
    parse: Parse,
}

/// One subcommand.
#[derive(Clone, Copy, Debug)]
pub struct Sub {
    /// In capitals.
    pub name: &'static str,
    /// How many words, both names included; a negative number is a minimum.
    pub arity: i32,
    /// Name and arguments, as HELP shows them.
    pub syntax: &'static str,
    /// One sentence.
    pub summary: &'static str,
    parse: Parse,
}

/// Which words of a command are keys, as COMMAND INFO tells it: 0 is none, a negative last one counts from the end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Keys {
    /// The first.
    pub first: i8,
    /// The last.
    pub last: i8,
    /// Every how many.
    pub step: i8,
}

impl Keys {
    const NONE: Self = Self { first: 0, last: 0, step: 0 };
    const FIRST: Self = Self { first: 1, last: 1, step: 1 };
    const ALL: Self = Self { first: 1, last: -1, step: 1 };
}

/// What a command is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Group {
    /// Tasks.
    Queue,
    /// Queues as Redis' keys.
    Keys,
    /// Notifications.
    PubSub,
    /// The connection.
    Connection,
    /// The server.
    Server,
}

impl Group {
    /// All of them, as documentation orders them.
    pub const ALL: [Self; 5] = [Self::Queue, Self::Keys, Self::PubSub, Self::Connection, Self::Server];

    /// Its name in COMMAND DOCS.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Queue => "queue",
            Self::Keys => "generic",
            Self::PubSub => "pubsub",
            Self::Connection => "connection",
            Self::Server => "server",
        }
    }
}

/// Understands one command. `argv` has at least the name.
///
/// ```
/// use sureq_core::command::{Command, ConnId};
/// use sureq_proto::verbs::{Caller, Request, parse};
///
/// let caller = Caller { conn: ConnId(1) };
/// let argv: [&[u8]; 3] = [b"rq.push", b"emails", b"hello"];
/// let push = Command::Push { queue: b"emails", payloads: &[b"hello"] };
/// assert_eq!(parse(&argv, caller), Ok(Request::from(push)));
///
/// let no = parse(&argv[..1], caller).unwrap_err();
/// assert_eq!(no.as_str(), "ERR wrong number of arguments for 'rq.push' command");
/// ```
pub fn parse<'a>(argv: &'a [&'a [u8]], caller: Caller) -> Result<Request<'a>, UsageError> {
    let Some(row) = argv.first().and_then(|name| find(name)) else {
        return Err(UsageError::unknown_command(argv));
    };
    if !fits(row.arity, argv.len()) {
        return Err(UsageError::arity(row.name));
    }
    if row.subs.is_empty() || argv.len() == 1 {
        return (row.parse)(argv, caller);
    }
    parse_sub(row, argv, caller)
}

fn parse_sub<'a>(row: &Row, argv: &'a [&'a [u8]], caller: Caller) -> Result<Request<'a>, UsageError> {
    let Some(sub) = row.subs.iter().find(|sub| sub.name.as_bytes().eq_ignore_ascii_case(argv[1])) else {
        return Err(UsageError::unknown_subcommand(row.name, argv[1]));
    };
    if !fits(sub.arity, argv.len()) {
        return Err(UsageError::arity(&format!("{}|{}", row.name, sub.name)));
    }
    (sub.parse)(argv, caller)
}

/// The name of a command as Redis shows it, its subcommand included: `rq.push`, `client|setname`.
pub fn full_name(argv: &[&[u8]]) -> String {
    let has_subs = argv.first().and_then(|name| find(name)).is_some_and(|row| !row.subs.is_empty());
    let words: Vec<String> =
        argv.iter().take(1 + usize::from(has_subs)).map(|word| error::quoted(word, 128)).collect();
    words.join("|").to_ascii_lowercase()
}

/// The row of a command, whatever the case of its name.
pub fn find(name: &[u8]) -> Option<&'static Row> {
    let code = Code::of(name)?;
    CODES.iter().position(|known| *known == code).map(|at| &TABLE[at])
}

/// Whether a command may have this many words.
const fn fits(arity: i32, words: usize) -> bool {
    let least = arity.unsigned_abs() as usize;
    if arity < 0 { words >= least } else { words == least }
}

/// Names as numbers, in the order of the table.
const CODES: [Code; TABLE.len()] = {
    let mut codes = [Code { len: 0, first: 0, last: 0 }; TABLE.len()];
    let mut at = 0;
    while at < codes.len() {
        codes[at] = Code::of(TABLE[at].name.as_bytes()).expect("a name in the table is short enough");
        at += 1;
    }
    codes
};
