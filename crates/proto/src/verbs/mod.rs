//! RESP commands: parses words to [`Request`]s, by one table.
//!
//! * [`TABLE`]: the declaration of each command: arguments, role, documentation, and the functions that read and
//!   write it. The declarations are in files by topic.
//! * [`Arg`]: an argument. Arity, keys, syntax, HELP, COMMAND DOCS and options are derived from the list of them.
//! * [`parse`]: parses the words of a command to a request.
//! * [`Rights`]: the commands that a user may run.
//! * [`describe`](fn@describe), [`commands_markdown`]: descriptions of the commands, for clients and for readers.

mod access;
mod args;
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

use crate::command_encoder::CommandWords;
pub use access::{NO_AUTH, Rights, Role, needs_no_user, queues_of, roles_markdown};
use args::Syntax;
pub use args::{Arg, Count, Keys, Kind, Opt, Options};
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
use sureq_core::command::Command;
pub use table::TABLE;
pub(crate) use task::means_all;
pub(crate) use worker::read as read_worker;

/// Parses the words of a command. Their number fits the arity.
type Parse = for<'a> fn(&'a [&'a [u8]], Caller) -> Result<Request<'a>, UsageError>;

/// Appends the words after the name of a command. Returns false if the row does not declare this command.
type Encode = fn(&Command<'_>, &mut CommandWords) -> bool;

/// The declaration of a command.
#[derive(Clone, Copy, Debug)]
pub struct Row {
    /// The name in capitals.
    pub name: &'static str,
    /// The arguments, in order.
    pub args: &'static [Arg],
    /// The role that the command requires on the queues it names; `None` if every user may run it.
    pub role: Option<Role>,
    /// The flags, as COMMAND INFO reports them.
    pub flags: &'static [&'static str],
    /// The chapter in the documentation.
    pub group: Group,
    /// The purpose in one sentence.
    pub summary: &'static str,
    /// A description of the reply.
    pub reply: &'static str,
    /// Further documentation.
    pub notes: &'static str,
    /// An example, as it looks in redis-cli.
    pub example: &'static str,
    /// The subcommands, if it has any.
    pub subs: &'static [Sub],
    parse: Parse,
    /// `None` if another row encodes its command.
    encode: Option<Encode>,
}

/// The declaration of a subcommand.
#[derive(Clone, Copy, Debug)]
pub struct Sub {
    /// The name in capitals.
    pub name: &'static str,
    /// The arguments, in order.
    pub args: &'static [Arg],
    /// The purpose in one sentence.
    pub summary: &'static str,
    parse: Parse,
}

impl Row {
    /// The number of words including the name. A negative number is a minimum.
    pub const fn arity(&self) -> i32 {
        args::arity(1, self.args)
    }

    pub const fn keys(&self) -> Keys {
        args::keys(self.args)
    }

    /// Name and arguments, as the documentation shows them.
    pub fn syntax(&self) -> String {
        format!("{}{}", self.name, args::syntax(self.args, Syntax::Plain))
    }

    /// Appends the words after the name of a command. Returns false if this row does not declare the command.
    pub(crate) fn encode(&self, command: &Command<'_>, words: &mut CommandWords) -> bool {
        self.encode.is_some_and(|encode| encode(command, words))
    }
}

impl Sub {
    /// The number of words including both names. A negative number is a minimum.
    pub const fn arity(&self) -> i32 {
        args::arity(2, self.args)
    }

    /// Name and arguments, as HELP shows them.
    pub fn syntax(&self) -> String {
        format!("{}{}", self.name, args::syntax(self.args, Syntax::Angled))
    }
}

const WRITE: &[&str] = &["write", "denyoom", "fast"];
const CHANGE: &[&str] = &["write", "fast"];
const BLOCKING: &[&str] = &["write", "noscript", "blocking", "movablekeys"];
const READ: &[&str] = &["readonly", "fast"];
const READ_SLOW: &[&str] = &["readonly"];
const SERVER: &[&str] = &["loading", "stale", "fast"];
const LISTENING: &[&str] = &["pubsub", "noscript", "loading", "stale"];
const HANDSHAKE: &[&str] = &["noscript", "loading", "stale", "fast", "no_auth", "allow_busy"];

/// The arguments of a command with subcommands.
const CONTAINER: &[Arg] = &[Arg::text("subcommand"), Arg::text("argument").any()];

/// The defaults of a row.
const BASE: Row = Row {
    name: "",
    args: &[],
    // The safe default, in case a row declares no role.
    role: Some(Role::Admin),
    flags: SERVER,
    group: Group::Server,
    summary: "",
    reply: "",
    notes: "",
    example: "",
    subs: &[],
    parse: only_subcommands,
    encode: None,
};

fn only_subcommands<'a>(_: &'a [&'a [u8]], _: Caller) -> Result<Request<'a>, UsageError> {
    Err(UsageError::SYNTAX)
}

/// The chapters of the documentation of commands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Group {
    /// Commands on tasks and queues.
    Queue,
    /// Queues as Redis keys.
    Keys,
    PubSub,
    Connection,
    Server,
}

impl Group {
    /// All groups, in the order of the documentation.
    pub const ALL: [Self; 5] = [Self::Queue, Self::Keys, Self::PubSub, Self::Connection, Self::Server];

    /// The name in COMMAND DOCS.
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

/// Parses one command. `argv` contains at least the name.
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
    let Some(at) = argv.first().and_then(|name| position(name)) else {
        return Err(UsageError::unknown_command(argv));
    };
    let row = &TABLE[at];
    if !fits(ARITIES[at], argv.len()) {
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
    if !fits(sub.arity(), argv.len()) {
        return Err(UsageError::arity(&format!("{}|{}", row.name, sub.name)));
    }
    (sub.parse)(argv, caller)
}

/// The name of a command in Redis' notation, including its subcommand: `rq.push`, `client|setname`.
pub fn full_name(argv: &[&[u8]]) -> String {
    let has_subs = argv.first().and_then(|name| find(name)).is_some_and(|row| !row.subs.is_empty());
    let words: Vec<String> =
        argv.iter().take(1 + usize::from(has_subs)).map(|word| error::quoted(word, 128)).collect();
    words.join("|").to_ascii_lowercase()
}

/// The row of a command. The case of the name does not matter.
pub fn find(name: &[u8]) -> Option<&'static Row> {
    position(name).map(|at| &TABLE[at])
}

/// The index of a command in [`TABLE`]. The case of the name does not matter.
pub fn position(name: &[u8]) -> Option<usize> {
    let code = Code::of(name)?;
    CODES.iter().position(|known| *known == code)
}

/// Whether a command may have this number of words.
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

/// The arities, in the order of the table.
const ARITIES: [i32; TABLE.len()] = {
    let mut arities = [0; TABLE.len()];
    let mut at = 0;
    while at < arities.len() {
        arities[at] = TABLE[at].arity();
        at += 1;
    }
    arities
};
