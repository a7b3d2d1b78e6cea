//! What clients say to the server itself: handshakes, names, introspection.
#![expect(clippy::unnecessary_wraps, reason = "the table wants one signature of all")]

use super::error::{UsageError, quoted};
use super::request::{
    Caller, Client, Connections, Credentials, Describe, Hello, LibraryInfo, Request, SessionCommand,
};
use crate::decimal::read_i64;
use crate::resp::Version;

type Outcome<'a> = Result<Request<'a>, UsageError>;

/// The longest name or library version that a connection is remembered by.
const CLIENT_NAME_BYTES_MAX: usize = 256;

const BAD_NAME: UsageError =
    UsageError::text("ERR Client names cannot contain spaces, newlines or special characters.");

pub(super) fn ping<'a>(argv: &'a [&'a [u8]], _: Caller) -> Outcome<'a> {
    match argv {
        [_] => session(SessionCommand::Ping(None)),
        [_, text] => session(SessionCommand::Ping(Some(text))),
        _ => Err(UsageError::arity("ping")),
    }
}

pub(super) fn echo<'a>(argv: &'a [&'a [u8]], _: Caller) -> Outcome<'a> {
    session(SessionCommand::Echo(argv[1]))
}

pub(super) fn hello<'a>(argv: &'a [&'a [u8]], _: Caller) -> Outcome<'a> {
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

pub(super) fn auth<'a>(argv: &'a [&'a [u8]], _: Caller) -> Outcome<'a> {
    session(SessionCommand::Auth(match *argv {
        [_, password] => Credentials { user: None, password },
        [_, user, password] => Credentials { user: Some(user), password },
        _ => return Err(UsageError::SYNTAX),
    }))
}

pub(super) fn info<'a>(argv: &'a [&'a [u8]], _: Caller) -> Outcome<'a> {
    session(SessionCommand::Info(&argv[1..]))
}

pub(super) fn select<'a>(argv: &'a [&'a [u8]], _: Caller) -> Outcome<'a> {
    match read_i64(argv[1]) {
        Some(0) => session(SessionCommand::Select),
        Some(_) => Err(UsageError::text("ERR DB index is out of range")),
        None => Err(UsageError::NOT_AN_INTEGER),
    }
}

pub(super) fn time<'a>(_: &'a [&'a [u8]], _: Caller) -> Outcome<'a> {
    session(SessionCommand::Time)
}

pub(super) fn quit<'a>(_: &'a [&'a [u8]], _: Caller) -> Outcome<'a> {
    session(SessionCommand::Quit)
}

pub(super) fn reset<'a>(_: &'a [&'a [u8]], _: Caller) -> Outcome<'a> {
    session(SessionCommand::Reset)
}

pub(super) fn config_get<'a>(argv: &'a [&'a [u8]], _: Caller) -> Outcome<'a> {
    session(SessionCommand::ConfigGet(&argv[2..]))
}

pub(super) fn config_help<'a>(_: &'a [&'a [u8]], _: Caller) -> Outcome<'a> {
    session(SessionCommand::Help("CONFIG"))
}

pub(super) fn acl_whoami<'a>(_: &'a [&'a [u8]], _: Caller) -> Outcome<'a> {
    session(SessionCommand::WhoAmI)
}

pub(super) fn acl_help<'a>(_: &'a [&'a [u8]], _: Caller) -> Outcome<'a> {
    session(SessionCommand::Help("ACL"))
}

pub(super) fn client_id<'a>(_: &'a [&'a [u8]], _: Caller) -> Outcome<'a> {
    client(Client::Id)
}

pub(super) fn client_getname<'a>(_: &'a [&'a [u8]], _: Caller) -> Outcome<'a> {
    client(Client::GetName)
}

pub(super) fn client_setname<'a>(argv: &'a [&'a [u8]], _: Caller) -> Outcome<'a> {
    client(Client::SetName(checked_name(argv[2])?))
}

pub(super) fn client_setinfo<'a>(argv: &'a [&'a [u8]], _: Caller) -> Outcome<'a> {
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

pub(super) fn client_info<'a>(_: &'a [&'a [u8]], _: Caller) -> Outcome<'a> {
    client(Client::Info)
}

pub(super) fn client_list<'a>(argv: &'a [&'a [u8]], _: Caller) -> Outcome<'a> {
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
pub(super) fn client_on_off<'a>(argv: &'a [&'a [u8]], _: Caller) -> Outcome<'a> {
    if argv[2].eq_ignore_ascii_case(b"ON") || argv[2].eq_ignore_ascii_case(b"OFF") {
        return client(Client::Nothing);
    }
    Err(UsageError::SYNTAX)
}

pub(super) fn client_help<'a>(_: &'a [&'a [u8]], _: Caller) -> Outcome<'a> {
    session(SessionCommand::Help("CLIENT"))
}

/// COMMAND alone.
pub(super) fn command<'a>(_: &'a [&'a [u8]], _: Caller) -> Outcome<'a> {
    describe(Describe::Info(&[]))
}

pub(super) fn command_count<'a>(_: &'a [&'a [u8]], _: Caller) -> Outcome<'a> {
    describe(Describe::Count)
}

pub(super) fn command_info<'a>(argv: &'a [&'a [u8]], _: Caller) -> Outcome<'a> {
    describe(Describe::Info(&argv[2..]))
}

pub(super) fn command_docs<'a>(argv: &'a [&'a [u8]], _: Caller) -> Outcome<'a> {
    describe(Describe::Docs(&argv[2..]))
}

pub(super) fn command_list<'a>(_: &'a [&'a [u8]], _: Caller) -> Outcome<'a> {
    describe(Describe::List)
}

pub(super) fn command_getkeys<'a>(argv: &'a [&'a [u8]], _: Caller) -> Outcome<'a> {
    describe(Describe::Keys(&argv[2..]))
}

pub(super) fn command_help<'a>(_: &'a [&'a [u8]], _: Caller) -> Outcome<'a> {
    session(SessionCommand::Help("COMMAND"))
}

fn session(command: SessionCommand<'_>) -> Outcome<'_> {
    Ok(Request::Session(command))
}

fn client(client: Client<'_>) -> Outcome<'_> {
    session(SessionCommand::Client(client))
}

fn describe(describe: Describe<'_>) -> Outcome<'_> {
    session(SessionCommand::Command(describe))
}

fn checked_name(name: &[u8]) -> Result<&[u8], UsageError> {
    if is_plain(name) { Ok(name) } else { Err(BAD_NAME) }
}

/// Fit for a line of CLIENT LIST, and to be kept as long as the connection is.
fn is_plain(text: &[u8]) -> bool {
    text.len() <= CLIENT_NAME_BYTES_MAX && text.iter().all(|c| matches!(c, b'!'..=b'~'))
}
