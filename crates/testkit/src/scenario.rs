//! A scenario: commands and their replies in a small text file, which must be the same in every home.
//!
//! ```text
//! # A task that is popped and acknowledged is gone.          The first comment is the title.
//! > RQ.PUSH emails a "b c"      # Words as in redis-cli; this part of a line is a comment.
//! [$a $b]                       # A reply. An id gets its name when it is first seen.
//! > RQ.POP COUNT 2 emails
//! [[emails $a a] [emails $b "b c"]]
//! text> STATS                   (no comments in lines of the text dialect)
//! TASKS 0 RESERVED 0 CONNECTIONS 1 HEAP _
//! c2> RQ.POP BLOCK 0 emails     # Another connection, whose reply
//! ...                           # is not there yet.
//! > RQ.PUSH emails d            # Commands that stand below each other
//! > RQ.ACK emails $a            # are sent at once.
//! [$d]
//! [$a]
//! c2< [[emails $d d]]           # Now it is.
//! pass 2s                       # Time: ms, s, m, h, d.
//! leap 2s                       # The same in one step: whatever is due meanwhile happens at its end.
//! jump -365d                    # The wall clock alone.
//! restart                       # Stop and open again; connections are closed.
//! close c2
//! ```
//!
//! A connection whose name begins with `text` uses the text dialect: a line is sent literally, or as words in quotes,
//! which are joined. Replies: `7`, `word`, `"any bytes"`, `+OK`, `-ERR text` or `-ERR beginning...`, `null`,
//! `[array]`, `{map}`; `_` matches anything, `[a ...]` may have more elements, `$t+500` is the number `$t` plus 500.
//! Two names never have the same text.
//!
//! Before the first step: `watcher rtt=1 rta=2` configures the watcher of the text dialect; `no-extra-restarts: why`
//! says that the scenario cannot run with a restart after every step.

mod captures;
mod pattern;
mod play;
mod read;
mod value;
mod words;

use std::path::PathBuf;

pub use play::{Mismatch, Played, Restarts, play};
pub use value::Value;

use pattern::Pattern;
pub(crate) use words::quote;

#[derive(Clone, Debug)]
pub struct Scenario {
    /// The path of its file.
    pub path: PathBuf,
    /// The first sentence of its first comment.
    pub title: String,
    /// The timeouts of the text dialect.
    pub watcher: Watch,
    /// The reason against running it with a restart after every step.
    pub no_extra_restarts: Option<String>,
    lines: Vec<String>,
    steps: Vec<Step>,
}

/// The timeouts of the text dialect's watcher.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Watch {
    /// The seconds until a reservation times out; 0 is never.
    pub rtt: u32,
    /// The number of timeouts after which a task is requeued.
    pub rta: u32,
}

/// The features that a scenario needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Need {
    /// A restart.
    Restart,
    /// The text dialect.
    Text,
    /// A manual clock.
    Time,
    /// Commands that span queues in one step: workers, dead-letter queues.
    Together,
}

/// One step. Lines are counted from zero.
#[derive(Clone, Debug)]
struct Step {
    line: usize,
    act: Act,
}

#[derive(Clone, Debug)]
enum Act {
    /// Requests, sent at once, and their immediate replies.
    Ask {
        conn: String,
        requests: Vec<(usize, String)>,
        expected: Vec<Expected>,
        waits: bool,
    },
    /// The reply to an earlier request.
    Answer {
        conn: String,
        expected: Expected,
    },
    Pass(u64),
    Leap(u64),
    Jump(i64),
    Restart,
    Close(String),
}

/// An expected reply, and its lines.
#[derive(Clone, Debug)]
struct Expected {
    pattern: Pattern,
    first: usize,
    last: usize,
}

impl Scenario {
    /// The features that it needs.
    pub fn needs(&self) -> Vec<Need> {
        let mut needs: Vec<Need> = self.steps.iter().flat_map(|step| need(&step.act)).collect();
        needs.sort_unstable();
        needs.dedup();
        needs
    }

    /// The name of its file, without the extension.
    pub fn name(&self) -> String {
        self.path.file_stem().unwrap_or_default().to_string_lossy().into_owned()
    }
}

fn need(act: &Act) -> Vec<Need> {
    match act {
        Act::Restart => vec![Need::Restart],
        Act::Pass(_) | Act::Leap(_) | Act::Jump(_) => vec![Need::Time],
        Act::Ask { conn, .. } if is_text(conn) => vec![Need::Text],
        Act::Ask { requests, .. } if requests.iter().any(|(_, request)| spans_queues(request)) => {
            vec![Need::Together]
        }
        Act::Ask { .. } | Act::Answer { .. } | Act::Close(_) => Vec::new(),
    }
}

/// Whether a command touches several queues at once.
fn spans_queues(request: &str) -> bool {
    let mut words = request.split_ascii_whitespace();
    let is = |word: &str, what: &str| word.eq_ignore_ascii_case(what);
    words.next().is_some_and(|verb| is(verb, "RQ.WORKER"))
        || words.any(|word| is(word, "WORKER") || is(word, "DEAD-LETTER"))
}

/// Whether a connection of this name uses the text dialect.
fn is_text(conn: &str) -> bool {
    conn.starts_with("text")
}

/// The bytes of a text line: literal, or words in quotes, joined.
fn line_bytes(text: &str) -> Result<Vec<u8>, String> {
    if !text.starts_with('"') {
        return Ok(text.as_bytes().to_vec());
    }
    let words = words::split(text)?.into_iter();
    let bytes = words.map(|word| match word {
        words::Word::Quoted(bytes) => Ok(bytes),
        words::Word::Bare(word) => Err(format!("{word} is not in quotes, as the words before it")),
    });
    bytes.collect::<Result<Vec<_>, _>>().map(|parts| parts.concat())
}
