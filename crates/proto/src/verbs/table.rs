//! The table of RESP commands. Parsing, arity, encoding, HELP, the replies to COMMAND and docs/reference/commands.md
//! are derived from it.
//!
//! Each command is declared in the file of its topic, followed by the functions that read and write it. The commands
//! that matter most for speed come first.

use super::{BASE, Row, keys, manage, pubsub, queue, session, task, worker};

/// All commands, each once.
pub const TABLE: &[Row] = &rows::<{ len() }>();

const TOPICS: [&[Row]; 7] =
    [queue::ROWS, task::ROWS, manage::ROWS, worker::ROWS, keys::ROWS, pubsub::ROWS, session::ROWS];

const fn len() -> usize {
    let (mut len, mut topic) = (0, 0);
    while topic < TOPICS.len() {
        len += TOPICS[topic].len();
        topic += 1;
    }
    len
}

const fn rows<const LEN: usize>() -> [Row; LEN] {
    let (mut rows, mut len, mut topic) = ([BASE; LEN], 0, 0);
    while topic < TOPICS.len() {
        let mut at = 0;
        while at < TOPICS[topic].len() {
            rows[len] = TOPICS[topic][at];
            (at, len) = (at + 1, len + 1);
        }
        topic += 1;
    }
    rows
}
