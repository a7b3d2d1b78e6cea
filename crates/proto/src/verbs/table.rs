//! The table of RESP commands: the only list of them. Parsing, arity, encoding, HELP, COMMAND's replies and
//! docs/reference/commands.md come from it.
//!
//! Each command is declared in the file of its topic, with its parse function below. The commands that matter most for speed
//! go first.

use super::{Row, keys, manage, pubsub, queue, session, task, worker};

/// Each command, once.
pub const TABLE: &[Row] = &[
    queue::PUSH,
    queue::POP,
    queue::ACK,
    queue::RECOVER,
    queue::INSPECT,
    queue::INFO,
    task::ADD,
    task::EXTEND,
    task::RETURN,
    task::CANCEL,
    task::BURY,
    task::REVIVE,
    task::DELETE,
    task::EXPLAIN,
    manage::PAUSE,
    manage::RESUME,
    manage::PURGE,
    manage::CONFIG,
    manage::QUEUES,
    worker::WORKER,
    keys::DEL,
    keys::UNLINK,
    keys::EXISTS,
    keys::TYPE,
    keys::KEYS,
    keys::SCAN,
    keys::DBSIZE,
    pubsub::SUBSCRIBE,
    pubsub::UNSUBSCRIBE,
    pubsub::PSUBSCRIBE,
    pubsub::PUNSUBSCRIBE,
    pubsub::PUBSUB,
    session::PING,
    session::ECHO,
    session::HELLO,
    session::AUTH,
    session::ACL,
    session::CLIENT,
    session::SELECT,
    session::RESET,
    session::QUIT,
    session::INFO,
    session::COMMAND,
    session::CONFIG,
    session::TIME,
];
