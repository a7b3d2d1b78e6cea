//! Commands that the server answers itself: handshakes, names, introspection. Their errors have the texts of Redis.
#![expect(clippy::unnecessary_wraps, reason = "the table needs the same signature for all commands")]

use super::args::{Arg, Opt, Options};
use super::error::{UsageError, quoted};
use super::options::is;
use super::request::{
    Caller, Client, Connections, Credentials, Describe, Hello, LibraryInfo, Request, SessionCommand,
};
use super::{BASE, CONTAINER, Group, HANDSHAKE, Row, Sub, TABLE};
use crate::decimal::read_i64;
use crate::resp::Version;

type Parsed<'a> = Result<Request<'a>, UsageError>;

/// The commands of this file, in the order of the table.
pub(super) const ROWS: &[Row] =
    &[PING, ECHO, HELLO, AUTH, ACL, CLIENT, SELECT, RESET, QUIT, INFO, COMMAND, CONFIG, TIME];

const PING: Row = Row {
    name: "PING",
    args: &[Arg::text("message").optional()],
    role: None,
    group: Group::Connection,
    summary: "Answers PONG.",
    reply: "`PONG`, or the message.",
    example: "> PING\nPONG",
    parse: ping,
    ..BASE
};

const ECHO: Row = Row {
    name: "ECHO",
    args: &[Arg::text("message")],
    role: None,
    group: Group::Connection,
    summary: "Answers with its argument.",
    reply: "The message.",
    example: "> ECHO hi\n\"hi\"",
    parse: echo,
    ..BASE
};

const HELLO_OPTIONS: Options = Options::new(
    &[
        Opt::args("AUTH", &[Arg::text("username"), Arg::text("password")]),
        Opt::value("SETNAME", &[Arg::text("clientname")]),
    ],
    &[],
);

const ON_OFF: &[&str] = &["ON", "OFF"];

const LISTED: &[Opt] = &[
    Opt::value("TYPE", &[Arg::word(&["NORMAL", "MASTER", "REPLICA", "PUBSUB"])]),
    Opt::args("ID", &[Arg::number("id", 1..=i64::MAX as u64).many()]),
];

const HELLO: Row = Row {
    name: "HELLO",
    args: &[Arg::block(&[Arg::number("protover", 2..=3), Arg::options(&HELLO_OPTIONS)]).optional()],
    role: None,
    flags: HANDSHAKE,
    group: Group::Connection,
    summary: "Chooses the protocol version, and authenticates.",
    reply: "A map: server, version, proto, id, mode, role, modules.",
    example: "> HELLO 3\n1# \"server\" => \"sureq\"\n...",
    parse: hello,
    ..BASE
};

const AUTH: Row = Row {
    name: "AUTH",
    args: &[Arg::text("username").optional(), Arg::text("password")],
    role: None,
    flags: HANDSHAKE,
    group: Group::Connection,
    summary: "Authenticates the connection.",
    reply: "`OK`, or an error that begins with WRONGPASS.",
    notes: "Without a name it is the user `default`, or the user whose token is given as the password. \
            After five wrong passwords in a row the connection is closed. On a server without users it is \
            an error.",
    example: "> AUTH secret\n(error) ERR AUTH called without any password configured: this server has no users",
    parse: auth,
    ..BASE
};

const ACL: Row = Row {
    name: "ACL",
    args: &[Arg::word(&["WHOAMI"]), Arg::IGNORED],
    role: None,
    group: Group::Connection,
    summary: "Answers the name of the user.",
    reply: "The name of the user; `default` on a server without users.",
    example: "> ACL WHOAMI\n\"default\"",
    subs: ACL_SUBCOMMANDS,
    ..BASE
};

const CLIENT: Row = Row {
    name: "CLIENT",
    args: CONTAINER,
    role: None,
    group: Group::Connection,
    summary: "Names and lists connections.",
    reply: "Depends on the subcommand.",
    example: "> CLIENT SETNAME worker-7\nOK",
    subs: CLIENT_SUBCOMMANDS,
    ..BASE
};

const SELECT: Row = Row {
    name: "SELECT",
    args: &[Arg::number("index", 0..=0)],
    role: None,
    group: Group::Connection,
    summary: "Chooses the database; there is only 0.",
    reply: "`OK`; an error for any other number.",
    example: "> SELECT 0\nOK",
    parse: select,
    ..BASE
};

const RESET: Row = Row {
    name: "RESET",
    role: None,
    flags: HANDSHAKE,
    group: Group::Connection,
    summary: "Resets the connection to its initial state.",
    reply: "`RESET`.",
    notes: "Protocol version 2, no name, not authenticated.",
    example: "> RESET\nRESET",
    parse: reset,
    ..BASE
};

const QUIT: Row = Row {
    name: "QUIT",
    args: &[Arg::IGNORED],
    role: None,
    flags: HANDSHAKE,
    group: Group::Connection,
    summary: "Closes the connection.",
    reply: "`OK`.",
    example: "> QUIT\nOK",
    parse: quit,
    ..BASE
};

const INFO: Row = Row {
    name: "INFO",
    args: &[Arg::text("section").any()],
    role: None,
    summary: "Answers figures of the server.",
    notes: INFO_FIELDS,
    reply: "A text of `name:value` lines.",
    example: "> INFO server\n# Server\nredis_version:7.4.0\n...",
    parse: info,
    ..BASE
};

const COMMAND: Row = Row {
    name: "COMMAND",
    args: &[Arg::block(CONTAINER).optional()],
    role: None,
    summary: "Describes the commands.",
    reply: "Depends on the subcommand; without one, the reply of COMMAND INFO.",
    example: "> COMMAND GETKEYS RQ.POP COUNT 10 emails reports\n1) \"emails\"\n2) \"reports\"",
    subs: COMMAND_SUBCOMMANDS,
    parse: command,
    ..BASE
};

const CONFIG: Row = Row {
    name: "CONFIG",
    args: CONTAINER,
    role: None,
    flags: &["noscript", "loading", "stale"],
    summary: "Answers tools that query Redis' settings.",
    reply: "An empty map: this server has none of Redis' settings.",
    example: "> CONFIG GET save\n(empty array)",
    subs: CONFIG_SUBCOMMANDS,
    ..BASE
};

const TIME: Row = Row {
    name: "TIME",
    role: None,
    summary: "Answers the server's clock.",
    reply: "The unix time in seconds, and the microseconds of the current one.",
    example: "> TIME\n1) \"1601155608\"\n2) \"777123\"",
    parse: time,
    ..BASE
};

const ACL_SUBCOMMANDS: &[Sub] = &[
    Sub { name: "WHOAMI", args: &[], summary: "The name of the user.", parse: acl_whoami },
    Sub { name: "HELP", args: &[], summary: "This text.", parse: acl_help },
];

const CLIENT_SUBCOMMANDS: &[Sub] = &[
    Sub { name: "ID", args: &[], summary: "The number of this connection.", parse: client_id },
    Sub {
        name: "SETNAME",
        args: &[Arg::text("name")],
        summary: "Names this connection.",
        parse: client_setname,
    },
    Sub {
        name: "GETNAME",
        args: &[],
        summary: "The name of this connection, or null.",
        parse: client_getname,
    },
    Sub {
        name: "SETINFO",
        args: &[Arg::word(&["LIB-NAME", "LIB-VER"]), Arg::text("value")],
        summary: "Records which library the client uses.",
        parse: client_setinfo,
    },
    Sub { name: "INFO", args: &[], summary: "A line on this connection.", parse: client_info },
    Sub {
        name: "LIST",
        args: &[Arg::one_of(LISTED).optional()],
        summary: "A line on each connection.",
        parse: client_list,
    },
    Sub {
        name: "NO-EVICT",
        args: &[Arg::word(ON_OFF)],
        summary: "Accepted; no connection is evicted here.",
        parse: client_on_off,
    },
    Sub {
        name: "NO-TOUCH",
        args: &[Arg::word(ON_OFF)],
        summary: "Accepted; nothing is touched here.",
        parse: client_on_off,
    },
    Sub { name: "HELP", args: &[], summary: "This text.", parse: client_help },
];

const COMMAND_SUBCOMMANDS: &[Sub] = &[
    Sub { name: "COUNT", args: &[], summary: "The number of commands.", parse: command_count },
    Sub {
        name: "INFO",
        args: &[Arg::text("command").any()],
        summary: "Arity, flags and keys of commands.",
        parse: command_info,
    },
    Sub {
        name: "DOCS",
        args: &[Arg::text("command").any()],
        summary: "The documentation of commands.",
        parse: command_docs,
    },
    Sub { name: "LIST", args: &[], summary: "The names of all commands.", parse: command_list },
    Sub {
        name: "GETKEYS",
        args: &[Arg::text("command"), Arg::text("argument").any()],
        summary: "Which arguments of a command are keys.",
        parse: command_getkeys,
    },
    Sub { name: "HELP", args: &[], summary: "This text.", parse: command_help },
];

const CONFIG_SUBCOMMANDS: &[Sub] = &[
    Sub {
        name: "GET",
        args: &[Arg::text("pattern").many()],
        summary: "Redis' settings: always an empty map.",
        parse: config_get,
    },
    Sub { name: "HELP", args: &[], summary: "This text.", parse: config_help },
];

/// The fields of INFO about the store.
const INFO_FIELDS: &str = "Sections are `server`, `clients`, `memory`, `persistence` and `stats`. Counters begin at 0 with each start. Fields
about the log are 0 with homes other than a directory.

| field | meaning |
|---|---|
| `used_memory` | bytes that count against `--memory`: tasks, workers, the cache, unwritten data, connections |
| `used_memory_rss` | resident memory of the process |
| `maxmemory` | the value of `--memory`; 0 is no limit |
| `cache_bytes` | payloads in memory, at most `--cache` |
| `durable_position` | all events before this position are as durable as `--durability` promises |
| `log_position` | number of events since the store was made |
| `log_bytes_written` | bytes written to the log |
| `log_bytes_since_checkpoint` | bytes of the log that a restart would read now |
| `log_segments`, `log_segments_bytes` | files of the log, and their size |
| `log_live_bytes` | bytes of existing tasks in them |
| `checkpoint_position` | position of the newest checkpoint; 0 before the first |
| `checkpoint_due_bytes` | the next checkpoint is taken when `log_bytes_since_checkpoint` reaches this |
| `checkpoint_running` | 1 while a checkpoint is being taken |
| `checkpoints_taken`, `checkpoint_bytes_written` | number of checkpoints taken, and bytes written for them |
| `copy_forward_running` | 1 during compaction: while tasks are copied out of a segment that is mostly dead |
| `copied_bytes_written` | bytes of the log that compaction wrote |
| `segment_bytes` | the size of a new segment |
| `disk_free_bytes` | free space on the disk of the store, at most some seconds old |
| `disk_full` | 1 while pushes are refused with `NOSPACE` |
| `read_errors` | failed reads of the log |
| `unreadable_tasks` | tasks that are dead because their payload cannot be read; their reason names file and offset |
| `unreadable_segments` | files of the log that are kept because they, or parts of them, cannot be read |";

/// The maximum length of a connection's name or library version in bytes.
const CLIENT_NAME_BYTES_MAX: usize = 256;

const BAD_NAME: UsageError =
    UsageError::text("ERR Client names cannot contain spaces, newlines or special characters.");

fn ping<'a>(argv: &'a [&'a [u8]], _: Caller) -> Parsed<'a> {
    match argv {
        [_] => session(SessionCommand::Ping(None)),
        [_, text] => session(SessionCommand::Ping(Some(text))),
        _ => Err(UsageError::arity("ping")),
    }
}

fn echo<'a>(argv: &'a [&'a [u8]], _: Caller) -> Parsed<'a> {
    session(SessionCommand::Echo(argv[1]))
}

fn hello<'a>(argv: &'a [&'a [u8]], _: Caller) -> Parsed<'a> {
    let mut hello = Hello::default();
    let [_, version, options @ ..] = argv else { return session(SessionCommand::Hello(hello)) };
    hello.version = Some(read_version(version)?);
    let mut rest = options;
    while let [option, tail @ ..] = rest {
        rest = match tail {
            [user, password, tail @ ..]
                if option.eq_ignore_ascii_case(b"AUTH") && hello.credentials.is_none() =>
            {
                hello.credentials = Some(Credentials { user: Some(user), password });
                tail
            }
            [name, tail @ ..] if option.eq_ignore_ascii_case(b"SETNAME") && hello.name.is_none() => {
                hello.name = Some(checked_name(name)?);
                tail
            }
            _ => {
                return Err(UsageError::new(format!(
                    "ERR Syntax error in HELLO option '{}'",
                    quoted(option, 128)
                )));
            }
        };
    }
    session(SessionCommand::Hello(hello))
}

fn read_version(text: &[u8]) -> Result<Version, UsageError> {
    match read_i64(text) {
        Some(2) => Ok(Version::Resp2),
        Some(3) => Ok(Version::Resp3),
        Some(_) => Err(UsageError::text("NOPROTO unsupported protocol version")),
        None => Err(UsageError::text("ERR Protocol version is not an integer or out of range")),
    }
}

fn auth<'a>(argv: &'a [&'a [u8]], _: Caller) -> Parsed<'a> {
    session(SessionCommand::Auth(match *argv {
        [_, password] => Credentials { user: None, password },
        [_, user, password] => Credentials { user: Some(user), password },
        _ => return Err(UsageError::SYNTAX),
    }))
}

fn info<'a>(argv: &'a [&'a [u8]], _: Caller) -> Parsed<'a> {
    session(SessionCommand::Info(&argv[1..]))
}

fn select<'a>(argv: &'a [&'a [u8]], _: Caller) -> Parsed<'a> {
    match read_i64(argv[1]) {
        Some(0) => session(SessionCommand::Select),
        Some(_) => Err(UsageError::text("ERR DB index is out of range")),
        None => Err(UsageError::NOT_AN_INTEGER),
    }
}

fn time<'a>(_: &'a [&'a [u8]], _: Caller) -> Parsed<'a> {
    session(SessionCommand::Time)
}

fn quit<'a>(_: &'a [&'a [u8]], _: Caller) -> Parsed<'a> {
    session(SessionCommand::Quit)
}

fn reset<'a>(_: &'a [&'a [u8]], _: Caller) -> Parsed<'a> {
    session(SessionCommand::Reset)
}

fn config_get<'a>(argv: &'a [&'a [u8]], _: Caller) -> Parsed<'a> {
    session(SessionCommand::ConfigGet(&argv[2..]))
}

fn config_help<'a>(_: &'a [&'a [u8]], _: Caller) -> Parsed<'a> {
    session(SessionCommand::Help("CONFIG"))
}

fn acl_whoami<'a>(_: &'a [&'a [u8]], _: Caller) -> Parsed<'a> {
    session(SessionCommand::WhoAmI)
}

fn acl_help<'a>(_: &'a [&'a [u8]], _: Caller) -> Parsed<'a> {
    session(SessionCommand::Help("ACL"))
}

fn client_id<'a>(_: &'a [&'a [u8]], _: Caller) -> Parsed<'a> {
    client(Client::Id)
}

fn client_getname<'a>(_: &'a [&'a [u8]], _: Caller) -> Parsed<'a> {
    client(Client::GetName)
}

fn client_setname<'a>(argv: &'a [&'a [u8]], _: Caller) -> Parsed<'a> {
    client(Client::SetName(checked_name(argv[2])?))
}

fn client_setinfo<'a>(argv: &'a [&'a [u8]], _: Caller) -> Parsed<'a> {
    let (attribute, value) = (argv[2], argv[3]);
    let (what, info) = if attribute.eq_ignore_ascii_case(b"LIB-NAME") {
        ("lib-name", LibraryInfo::Name(value))
    } else if attribute.eq_ignore_ascii_case(b"LIB-VER") {
        ("lib-ver", LibraryInfo::Version(value))
    } else {
        return Err(UsageError::new(format!("ERR Unrecognized option '{}'", quoted(attribute, 128))));
    };
    if !is_plain(value) {
        return Err(UsageError::new(format!(
            "ERR {what} cannot contain spaces, newlines or special characters."
        )));
    }
    client(Client::SetInfo(info))
}

fn client_info<'a>(_: &'a [&'a [u8]], _: Caller) -> Parsed<'a> {
    client(Client::Info)
}

fn client_list<'a>(argv: &'a [&'a [u8]], _: Caller) -> Parsed<'a> {
    client(Client::List(match &argv[2..] {
        [] => Connections::All,
        [option, kind] if option.eq_ignore_ascii_case(b"TYPE") => read_connection_type(kind)?,
        [option, ids @ ..] if option.eq_ignore_ascii_case(b"ID") && !ids.is_empty() => {
            if ids.iter().any(|id| read_i64(id).is_none_or(|id| id < 1)) {
                return Err(UsageError::text("ERR Invalid client ID"));
            }
            Connections::Ids(ids)
        }
        _ => return Err(UsageError::SYNTAX),
    }))
}

fn read_connection_type(kind: &[u8]) -> Result<Connections<'static>, UsageError> {
    if kind.eq_ignore_ascii_case(b"normal") {
        return Ok(Connections::Normal);
    }
    if kind.eq_ignore_ascii_case(b"pubsub") {
        return Ok(Connections::PubSub);
    }
    let others: [&[u8]; 3] = [b"master", b"replica", b"slave"];
    if others.iter().any(|other| other.eq_ignore_ascii_case(kind)) {
        return Ok(Connections::None);
    }
    Err(UsageError::new(format!("ERR Unknown client type '{}'", quoted(kind, 128))))
}

/// NO-EVICT and NO-TOUCH.
fn client_on_off<'a>(argv: &'a [&'a [u8]], _: Caller) -> Parsed<'a> {
    if ON_OFF.iter().any(|word| is(argv[2], word)) {
        return client(Client::Nothing);
    }
    Err(UsageError::SYNTAX)
}

fn client_help<'a>(_: &'a [&'a [u8]], _: Caller) -> Parsed<'a> {
    session(SessionCommand::Help("CLIENT"))
}

/// COMMAND alone.
fn command<'a>(_: &'a [&'a [u8]], _: Caller) -> Parsed<'a> {
    describe(Describe::Info(&[]))
}

fn command_count<'a>(_: &'a [&'a [u8]], _: Caller) -> Parsed<'a> {
    describe(Describe::Count)
}

fn command_info<'a>(argv: &'a [&'a [u8]], _: Caller) -> Parsed<'a> {
    describe(Describe::Info(described("INFO", &argv[2..])?))
}

fn command_docs<'a>(argv: &'a [&'a [u8]], _: Caller) -> Parsed<'a> {
    describe(Describe::Docs(described("DOCS", &argv[2..])?))
}

/// The commands to be described, if they are no more than there are. A row is some 200 times as long as a name, so that
/// one request with the same name many times would fill the memory with its reply.
fn described<'a>(sub: &str, names: &'a [&'a [u8]]) -> Result<&'a [&'a [u8]], UsageError> {
    let max: usize = TABLE.iter().map(|row| 1 + row.subs.len()).sum();
    if names.len() > max {
        return Err(UsageError::new(format!("ERR COMMAND {sub} takes at most {max} names")));
    }
    Ok(names)
}

fn command_list<'a>(_: &'a [&'a [u8]], _: Caller) -> Parsed<'a> {
    describe(Describe::List)
}

fn command_getkeys<'a>(argv: &'a [&'a [u8]], _: Caller) -> Parsed<'a> {
    describe(Describe::Keys(&argv[2..]))
}

fn command_help<'a>(_: &'a [&'a [u8]], _: Caller) -> Parsed<'a> {
    session(SessionCommand::Help("COMMAND"))
}

fn session(command: SessionCommand<'_>) -> Parsed<'_> {
    Ok(Request::Session(command))
}

fn client(client: Client<'_>) -> Parsed<'_> {
    session(SessionCommand::Client(client))
}

fn describe(describe: Describe<'_>) -> Parsed<'_> {
    session(SessionCommand::Command(describe))
}

fn checked_name(name: &[u8]) -> Result<&[u8], UsageError> {
    if is_plain(name) { Ok(name) } else { Err(BAD_NAME) }
}

/// Whether the text may appear in CLIENT LIST, and is short enough to be kept with the connection.
fn is_plain(text: &[u8]) -> bool {
    text.len() <= CLIENT_NAME_BYTES_MAX && text.iter().all(|c| matches!(c, b'!'..=b'~'))
}
