//! The one table of RESP commands. Parsing, arity, COMMAND's replies, help and docs/commands.md all come from it.
//!
//! A new command is a row here and a parse function beside its kin. The rows that matter most for speed go first.

use super::{Group, Keys, Row, Sub, keys, queue, session};

const WRITE: &[&str] = &["write", "denyoom", "fast"];
const CHANGE: &[&str] = &["write", "fast"];
const BLOCKING: &[&str] = &["write", "noscript", "blocking", "movablekeys"];
const READ: &[&str] = &["readonly", "fast"];
const READ_SLOW: &[&str] = &["readonly"];
const SERVER: &[&str] = &["loading", "stale", "fast"];
const HANDSHAKE: &[&str] = &["noscript", "loading", "stale", "fast", "no_auth", "allow_busy"];

/// What a row has that does not say otherwise.
const BASE: Row = Row {
    name: "",
    arity: 0,
    flags: SERVER,
    keys: Keys::NONE,
    group: Group::Server,
    summary: "",
    syntax: "",
    reply: "",
    notes: "",
    example: "",
    subs: &[],
    parse: session::ping,
};

/// Each command, once.
pub const TABLE: &[Row] = &[
    Row {
        name: "RQ.PUSH",
        arity: -3,
        flags: WRITE,
        keys: Keys::FIRST,
        group: Group::Queue,
        summary: "Adds tasks to the end of a queue.",
        syntax: "RQ.PUSH key payload [payload ...]",
        reply: "An array of ids, one for each payload, in order.",
        notes: "Makes the queue if there is none. A payload is any bytes, also none at all. All payloads are added, or none is.",
        example: "> RQ.PUSH emails hello world\n1) \"1601155608777-1\"\n2) \"1601155608777-2\"",
        parse: queue::push,
        ..BASE
    },
    Row {
        name: "RQ.POP",
        arity: -2,
        flags: BLOCKING,
        group: Group::Queue,
        summary: "Hands out tasks, which stay with the queue until they are acknowledged.",
        syntax: "RQ.POP [COUNT n] [BLOCK ms] [LEASE ms] [WORKER w#n] [CONN] [META] key [key ...]",
        reply: "An array of `[key, id, payload]`; an empty one if there is nothing; null when BLOCK ran out. With \
                LEASE, WORKER or CONN each is `[key, id, payload, receipt, deliveries]`. META adds a map of name, tries, \
                pushed-at and last reason.",
        notes: "Options come in any order before the keys, and their words are never keys. COUNT is 1 unless given; a bare \
                number before the keys is a count too, if a key follows it. All that is wanted is taken from the first queue, \
                then from the next. BLOCK 0 waits for ever. LEASE takes the task back after so many milliseconds, WORKER when \
                that worker is gone (no command starts one yet), CONN when this connection is closed.",
        example: "> RQ.POP COUNT 2 BLOCK 1000 emails\n1) 1) \"emails\"\n   2) \"1601155608777-1\"\n   3) \"hello\"\n\
                  2) 1) \"emails\"\n   2) \"1601155608777-2\"\n   3) \"world\"",
        parse: queue::pop,
        ..BASE
    },
    Row {
        name: "RQ.ACK",
        arity: -3,
        flags: CHANGE,
        keys: Keys::FIRST,
        group: Group::Queue,
        summary: "Finishes tasks that were handed out.",
        syntax: "RQ.ACK key id|receipt [id|receipt ...]",
        reply: "An array of those arguments, as they were given, that this call finished.",
        notes: "A receipt counts only while its delivery is the current one. A bare id also finishes a task whose lease \
                ran out and that waits again. A malformed id is an error, and nothing is finished.",
        example: "> RQ.ACK emails 1601155608777-1\n1) \"1601155608777-1\"",
        parse: queue::ack,
        ..BASE
    },
    Row {
        name: "RQ.RECOVER",
        arity: 4,
        flags: CHANGE,
        keys: Keys::FIRST,
        group: Group::Queue,
        summary: "Hands out again what was popped long ago and never finished.",
        syntax: "RQ.RECOVER key count elapsed",
        reply: "An array of `[id, payload]`.",
        notes: "Takes at most `count` tasks whose last delivery is at least `elapsed` milliseconds ago, the oldest first, \
                each at most once per call. Tasks with a lease, a worker or a connection come back by themselves and are \
                not touched.",
        example: "> RQ.RECOVER emails 10 60000\n1) 1) \"1601155608777-2\"\n   2) \"world\"",
        parse: queue::recover,
        ..BASE
    },
    Row {
        name: "RQ.INSPECT",
        arity: -4,
        flags: READ_SLOW,
        keys: Keys::FIRST,
        group: Group::Queue,
        summary: "Shows tasks without changing them.",
        syntax: "RQ.INSPECT key [PENDING|DELAYED|DEAD] start count",
        reply: "An array. Ready tasks, which are shown unless another state is named: `[id, payload]`. PENDING: \
                `[id, payload, last delivery, elapsed, deliveries]`. DELAYED: `[id, payload, due]`. DEAD: \
                `[id, payload, died at, reason, failed, lapsed, lost]`. Times are in milliseconds.",
        notes: "A negative start counts from the end.",
        example: "> RQ.INSPECT emails PENDING 0 1\n1) 1) \"1601155608777-1\"\n   2) \"hello\"\n   3) (integer) 1601155609000\n   \
                  4) (integer) 1234\n   5) (integer) 1",
        parse: queue::inspect,
        ..BASE
    },
    Row {
        name: "RQ.INFO",
        arity: 2,
        flags: READ,
        keys: Keys::FIRST,
        group: Group::Queue,
        summary: "Shows the counts, ages and settings of a queue.",
        syntax: "RQ.INFO key",
        reply: "A map (in RESP2 a flat array): `undelivered`, `delivered`, `ready`, `delayed`, `leased`, `dead`, \
                `waiting_bytes`, `oldest_ms`, `paused` (since when, or 0), `pushed`, `finished`, then the settings.",
        notes: "Costs the same however many tasks there are.",
        example: "> RQ.INFO emails\n 1) \"undelivered\"\n 2) (integer) 2\n 3) \"delivered\"\n 4) (integer) 1",
        parse: queue::info,
        ..BASE
    },
    Row {
        name: "DEL",
        arity: -2,
        flags: CHANGE,
        keys: Keys::ALL,
        group: Group::Keys,
        summary: "Removes queues with all their tasks, settings and pause.",
        syntax: "DEL key [key ...]",
        reply: "How many of them had tasks.",
        notes: "Tasks that were handed out are removed too.",
        example: "> DEL emails\n(integer) 1",
        parse: keys::del,
        ..BASE
    },
    Row {
        name: "UNLINK",
        arity: -2,
        flags: CHANGE,
        keys: Keys::ALL,
        group: Group::Keys,
        summary: "The same as DEL.",
        syntax: "UNLINK key [key ...]",
        reply: "How many of them had tasks.",
        example: "> UNLINK emails\n(integer) 1",
        parse: keys::del,
        ..BASE
    },
    Row {
        name: "EXISTS",
        arity: -2,
        flags: READ,
        keys: Keys::ALL,
        group: Group::Keys,
        summary: "Counts which of these queues have tasks.",
        syntax: "EXISTS key [key ...]",
        reply: "A number; a queue that is named twice counts twice.",
        example: "> EXISTS emails nothing\n(integer) 1",
        parse: keys::exists,
        ..BASE
    },
    Row {
        name: "TYPE",
        arity: 2,
        flags: READ,
        keys: Keys::FIRST,
        group: Group::Keys,
        summary: "Tells whether a key is a queue.",
        syntax: "TYPE key",
        reply: "`RELIABLEQ`, or `none` if it has no tasks.",
        example: "> TYPE emails\nRELIABLEQ",
        parse: keys::kind,
        ..BASE
    },
    Row {
        name: "KEYS",
        arity: 2,
        flags: READ_SLOW,
        group: Group::Keys,
        summary: "Lists the queues that have tasks.",
        syntax: "KEYS pattern",
        reply: "An array of names.",
        notes: "Goes through all queues at once; SCAN does it in steps.",
        example: "> KEYS *\n1) \"emails\"",
        parse: keys::keys,
        ..BASE
    },
    Row {
        name: "SCAN",
        arity: -2,
        flags: READ_SLOW,
        group: Group::Keys,
        summary: "Lists the queues that have tasks, a page at a time.",
        syntax: "SCAN cursor [MATCH pattern] [COUNT count] [TYPE type]",
        reply: "The cursor of the next page, 0 if there is none, and an array of names.",
        example: "> SCAN 0 MATCH e* COUNT 100\n1) \"0\"\n2) 1) \"emails\"",
        parse: keys::scan,
        ..BASE
    },
    Row {
        name: "DBSIZE",
        arity: 1,
        flags: READ,
        group: Group::Keys,
        summary: "Counts the queues that have tasks.",
        syntax: "DBSIZE",
        reply: "A number.",
        example: "> DBSIZE\n(integer) 1",
        parse: keys::dbsize,
        ..BASE
    },
    Row {
        name: "PING",
        arity: -1,
        group: Group::Connection,
        summary: "Answers.",
        syntax: "PING [message]",
        reply: "`PONG`, or the message.",
        example: "> PING\nPONG",
        parse: session::ping,
        ..BASE
    },
    Row {
        name: "ECHO",
        arity: 2,
        group: Group::Connection,
        summary: "Answers with its argument.",
        syntax: "ECHO message",
        reply: "The message.",
        example: "> ECHO hi\n\"hi\"",
        parse: session::echo,
        ..BASE
    },
    Row {
        name: "HELLO",
        arity: -1,
        flags: HANDSHAKE,
        group: Group::Connection,
        summary: "Chooses the version of the protocol, and says who the client is.",
        syntax: "HELLO [protover [AUTH username password] [SETNAME clientname]]",
        reply: "A map: server, version, proto, id, mode, role, modules.",
        example: "> HELLO 3\n1# \"server\" => \"sureq\"\n2# \"proto\" => (integer) 3",
        parse: session::hello,
        ..BASE
    },
    Row {
        name: "AUTH",
        arity: -2,
        flags: HANDSHAKE,
        group: Group::Connection,
        summary: "Says who the client is.",
        syntax: "AUTH [username] password",
        reply: "An error: this server knows no users yet.",
        example: "> AUTH secret\n(error) ERR AUTH called without any password configured: this server knows no users",
        parse: session::auth,
        ..BASE
    },
    Row {
        name: "CLIENT",
        arity: -2,
        group: Group::Connection,
        summary: "Names and lists connections.",
        syntax: "CLIENT subcommand [argument ...]",
        reply: "Depends on the subcommand.",
        example: "> CLIENT SETNAME worker-7\nOK",
        subs: CLIENT,
        ..BASE
    },
    Row {
        name: "SELECT",
        arity: 2,
        group: Group::Connection,
        summary: "Chooses the database, of which there is one.",
        syntax: "SELECT 0",
        reply: "`OK`; an error for any other number.",
        example: "> SELECT 0\nOK",
        parse: session::select,
        ..BASE
    },
    Row {
        name: "RESET",
        arity: 1,
        flags: HANDSHAKE,
        group: Group::Connection,
        summary: "Makes the connection as if it were new.",
        syntax: "RESET",
        reply: "`RESET`.",
        notes: "Version 2 of the protocol, no name, not authenticated.",
        example: "> RESET\nRESET",
        parse: session::reset,
        ..BASE
    },
    Row {
        name: "QUIT",
        arity: -1,
        flags: HANDSHAKE,
        group: Group::Connection,
        summary: "Closes the connection.",
        syntax: "QUIT",
        reply: "`OK`.",
        example: "> QUIT\nOK",
        parse: session::quit,
        ..BASE
    },
    Row {
        name: "INFO",
        arity: -1,
        summary: "Tells about the server.",
        syntax: "INFO [section ...]",
        reply: "A text of `name:value` lines.",
        example: "> INFO server\n# Server\nredis_version:7.4.0",
        parse: session::info,
        ..BASE
    },
    Row {
        name: "COMMAND",
        arity: -1,
        summary: "Describes the commands.",
        syntax: "COMMAND [subcommand [argument ...]]",
        reply: "Depends on the subcommand; alone, what COMMAND INFO answers.",
        example: "> COMMAND COUNT\n(integer) 25",
        subs: COMMAND,
        parse: session::command,
        ..BASE
    },
    Row {
        name: "CONFIG",
        arity: -2,
        flags: &["noscript", "loading", "stale"],
        summary: "Answers tools that ask for Redis' settings.",
        syntax: "CONFIG GET parameter [parameter ...]",
        reply: "An empty map: this server has none of Redis' settings.",
        example: "> CONFIG GET save\n(empty array)",
        subs: CONFIG,
        ..BASE
    },
    Row {
        name: "TIME",
        arity: 1,
        summary: "Tells the server's clock.",
        syntax: "TIME",
        reply: "The unix time in seconds, and the microseconds of the current one.",
        example: "> TIME\n1) \"1601155608\"\n2) \"777123\"",
        parse: session::time,
        ..BASE
    },
];

const CLIENT: &[Sub] = &[
    Sub {
        name: "ID",
        arity: 2,
        syntax: "ID",
        summary: "The number of this connection.",
        parse: session::client_id,
    },
    Sub {
        name: "SETNAME",
        arity: 3,
        syntax: "SETNAME <name>",
        summary: "Names this connection.",
        parse: session::client_setname,
    },
    Sub {
        name: "GETNAME",
        arity: 2,
        syntax: "GETNAME",
        summary: "The name of this connection, or null.",
        parse: session::client_getname,
    },
    Sub {
        name: "SETINFO",
        arity: 4,
        syntax: "SETINFO LIB-NAME|LIB-VER <value>",
        summary: "Says which library the client uses.",
        parse: session::client_setinfo,
    },
    Sub {
        name: "INFO",
        arity: 2,
        syntax: "INFO",
        summary: "A line on this connection.",
        parse: session::client_info,
    },
    Sub {
        name: "LIST",
        arity: -2,
        syntax: "LIST [TYPE NORMAL|MASTER|REPLICA|PUBSUB | ID <id> ...]",
        summary: "A line on each connection.",
        parse: session::client_list,
    },
    Sub {
        name: "NO-EVICT",
        arity: 3,
        syntax: "NO-EVICT ON|OFF",
        summary: "Accepted; no connection is evicted here.",
        parse: session::client_on_off,
    },
    Sub {
        name: "NO-TOUCH",
        arity: 3,
        syntax: "NO-TOUCH ON|OFF",
        summary: "Accepted; nothing is touched here.",
        parse: session::client_on_off,
    },
    Sub { name: "HELP", arity: 2, syntax: "HELP", summary: "This text.", parse: session::client_help },
];

const COMMAND: &[Sub] = &[
    Sub {
        name: "COUNT",
        arity: 2,
        syntax: "COUNT",
        summary: "How many commands there are.",
        parse: session::command_count,
    },
    Sub {
        name: "INFO",
        arity: -2,
        syntax: "INFO [<command> ...]",
        summary: "Arity, flags and keys of commands.",
        parse: session::command_info,
    },
    Sub {
        name: "DOCS",
        arity: -2,
        syntax: "DOCS [<command> ...]",
        summary: "What commands are for.",
        parse: session::command_docs,
    },
    Sub {
        name: "LIST",
        arity: 2,
        syntax: "LIST",
        summary: "The names of all commands.",
        parse: session::command_list,
    },
    Sub {
        name: "GETKEYS",
        arity: -3,
        syntax: "GETKEYS <command> [<argument> ...]",
        summary: "Which arguments of a command are keys.",
        parse: session::command_getkeys,
    },
    Sub { name: "HELP", arity: 2, syntax: "HELP", summary: "This text.", parse: session::command_help },
];

const CONFIG: &[Sub] = &[
    Sub {
        name: "GET",
        arity: -3,
        syntax: "GET <pattern> ...",
        summary: "Redis' settings, of which there are none here.",
        parse: session::config_get,
    },
    Sub { name: "HELP", arity: 2, syntax: "HELP", summary: "This text.", parse: session::config_help },
];
