//! The three steps of a task, push, pop and ack, in the words of either server.
//!
//! | | sureq | Redis, the reliable list pattern |
//! |---|---|---|
//! | push | `RQ.PUSH q p …` | `LPUSH q p …` |
//! | pop | `RQ.POP COUNT n q` | `RPOPLPUSH q q:processing`, n times |
//! | ack | `RQ.ACK q id …` | `LREM q:processing -1 p`, n times |
//! | wait | `RQ.POP COUNT 1 BLOCK 0 q` | `BLMOVE q q:processing RIGHT LEFT 0` |

use crate::ledger::Ledger;
use crate::resp::{self, Token};

const QUEUE: &[u8] = b"bench";
const PROCESSING: &[u8] = b"bench:processing";

/// Whose commands are spoken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Dialect {
    /// sureq's `RQ.*`.
    Rq,
    /// Two Redis lists.
    List,
}

/// What a round of requests does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    Push,
    Pop,
    Ack,
}

impl Dialect {
    /// How many of the tasks of a batch one reply speaks of.
    pub(crate) fn tasks_per_reply(self, step: Step, batch: usize) -> usize {
        match (self, step) {
            (Dialect::Rq, _) | (Dialect::List, Step::Push) => batch,
            (Dialect::List, Step::Pop | Step::Ack) => 1,
        }
    }

    /// Asks to push `tasks` new tasks, `batch` at a time.
    pub(crate) fn push(self, out: &mut Vec<u8>, tasks: usize, batch: usize, ledger: &mut Ledger) {
        for count in batches(tasks, batch) {
            resp::request(out, 2 + count);
            resp::word(out, if self == Dialect::Rq { b"RQ.PUSH" } else { b"LPUSH" });
            resp::word(out, QUEUE);
            for _ in 0..count {
                resp::word(out, &ledger.make());
            }
        }
    }

    /// Asks for `tasks` tasks, `batch` at a time.
    pub(crate) fn pop(self, out: &mut Vec<u8>, tasks: usize, batch: usize) {
        for count in batches(tasks, self.tasks_per_reply(Step::Pop, batch)) {
            if self == Dialect::Rq {
                resp::request(out, 4);
                resp::word(out, b"RQ.POP");
                resp::word(out, b"COUNT");
                resp::number(out, count);
                resp::word(out, QUEUE);
            } else {
                resp::command(out, &[b"RPOPLPUSH", QUEUE, PROCESSING]);
            }
        }
    }

    /// Asks for one task and waits until there is one.
    pub(crate) fn wait(self, out: &mut Vec<u8>) {
        match self {
            Dialect::Rq => resp::command(out, &[b"RQ.POP", b"COUNT", b"1", b"BLOCK", b"0", QUEUE]),
            Dialect::List => resp::command(out, &[b"BLMOVE", QUEUE, PROCESSING, b"RIGHT", b"LEFT", b"0"]),
        }
    }

    /// Asks how many tasks the server holds, in whatever state.
    pub(crate) fn count(self, out: &mut Vec<u8>) {
        match self {
            Dialect::Rq => resp::command(out, &[b"RQ.INFO", QUEUE]),
            Dialect::List => {
                let script = b"return redis.call('LLEN', KEYS[1]) + redis.call('LLEN', KEYS[2])";
                resp::command(out, &[b"EVAL", script, b"2", QUEUE, PROCESSING]);
            }
        }
    }

    /// Reads the answer to [`Dialect::count`].
    pub(crate) fn counted(self, tokens: &[Token]) -> Option<u64> {
        match (self, tokens) {
            // RedisRQ's two fields come first: `undelivered` n `delivered` n.
            (Dialect::Rq, [Token::Array(_), _, Token::Integer(waiting), _, Token::Integer(taken), ..]) => {
                u64::try_from(waiting + taken).ok()
            }
            (Dialect::List, [Token::Integer(count)]) => u64::try_from(*count).ok(),
            _ => None,
        }
    }

    /// Whether this is the answer to a push.
    pub(crate) fn pushed(self, tokens: &[Token], tasks: usize) -> bool {
        match (self, tokens) {
            (Dialect::Rq, [Token::Array(ids), ..]) => *ids == tasks,
            (Dialect::List, [Token::Integer(_)]) => true,
            _ => false,
        }
    }

    /// Reads the answer to a pop: enters each delivery with `deliver`, appends the ack that it calls for to `acks`, and
    /// answers how many tasks came, or `None` if this is no answer to a pop.
    pub(crate) fn popped(
        self,
        bytes: &[u8],
        tokens: &[Token],
        acks: &mut Vec<u8>,
        mut deliver: impl FnMut(&[u8]),
    ) -> Option<usize> {
        match (self, tokens) {
            (Dialect::Rq, [Token::Array(0)]) | (Dialect::List, [Token::Null]) => Some(0),
            (Dialect::Rq, [Token::Array(count), tasks @ ..]) => {
                resp::request(acks, 2 + count);
                resp::word(acks, b"RQ.ACK");
                resp::word(acks, QUEUE);
                for task in tasks.chunks(4) {
                    let [Token::Array(3), _, Token::Bulk(id), Token::Bulk(payload)] = task else {
                        return None;
                    };
                    resp::word(acks, &bytes[id.clone()]);
                    deliver(&bytes[payload.clone()]);
                }
                Some(*count)
            }
            (Dialect::List, [Token::Bulk(payload)]) => {
                let payload = &bytes[payload.clone()];
                resp::command(acks, &[b"LREM", PROCESSING, b"-1", payload]);
                deliver(payload);
                Some(1)
            }
            _ => None,
        }
    }

    /// Reads the answer to an ack: how many tasks it finished.
    pub(crate) fn acked(self, tokens: &[Token]) -> Option<usize> {
        match (self, tokens) {
            (Dialect::Rq, [Token::Array(ids), ..]) => Some(*ids),
            (Dialect::List, [Token::Integer(removed)]) => usize::try_from(*removed).ok(),
            _ => None,
        }
    }
}

/// Cuts `tasks` into batches; the last may be smaller.
fn batches(tasks: usize, batch: usize) -> impl Iterator<Item = usize> {
    (0..tasks).step_by(batch).map(move |start| batch.min(tasks - start))
}

/// An answer that does not fit its question, in words.
pub(crate) fn misfit(bytes: &[u8], tokens: &[Token], asked: &str) -> String {
    match tokens.first() {
        Some(Token::Error(text)) => {
            format!("the server refused a {asked}: {}", String::from_utf8_lossy(&bytes[text.clone()]))
        }
        _ => format!("the server answered a {asked} with {tokens:?}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn scan(reply: &[u8]) -> Vec<Token> {
        let mut tokens = Vec::new();
        assert_eq!(resp::scan(reply, &mut tokens), Ok(Some(reply.len())));
        tokens
    }

    fn text(write: impl FnOnce(&mut Vec<u8>)) -> String {
        let mut out = Vec::new();
        write(&mut out);
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn batches_are_native_in_one_dialect_and_pipelined_in_the_other() {
        let rq = text(|out| Dialect::Rq.pop(out, 5, 2));
        assert_eq!(rq.matches("RQ.POP").count(), 3);
        assert!(rq.ends_with("COUNT\r\n$1\r\n1\r\n$5\r\nbench\r\n"), "{rq}");
        assert_eq!(text(|out| Dialect::List.pop(out, 5, 2)).matches("RPOPLPUSH").count(), 5);
        for dialect in [Dialect::Rq, Dialect::List] {
            let mut out = Vec::new();
            dialect.push(&mut out, 4, 4, &mut Ledger::new(0));
            assert!(out.starts_with(b"*6\r\n"));
        }
    }

    #[test]
    fn a_delivery_is_entered_and_its_ack_written() {
        let check = |dialect: Dialect, reply: &[u8], acks: &[&[u8]]| {
            let (mut out, mut expected, mut payloads) = (Vec::new(), Vec::new(), Vec::new());
            let count =
                dialect.popped(reply, &scan(reply), &mut out, |payload| payloads.push(payload.to_vec()));
            assert_eq!((count, payloads), (Some(1), vec![b"body".to_vec()]));
            resp::command(&mut expected, acks);
            assert_eq!(out, expected);
        };
        let reply = b"*1\r\n*3\r\n$5\r\nbench\r\n$3\r\n1-1\r\n$4\r\nbody\r\n";
        check(Dialect::Rq, reply, &[b"RQ.ACK", b"bench", b"1-1"]);
        check(Dialect::List, b"$4\r\nbody\r\n", &[b"LREM", b"bench:processing", b"-1", b"body"]);
    }

    #[test]
    fn an_error_is_an_answer_to_nothing() {
        let tokens = scan(b"-ERR no\r\n");
        for dialect in [Dialect::Rq, Dialect::List] {
            assert!(!dialect.pushed(&tokens, 1));
            assert_eq!(dialect.acked(&tokens), None);
            assert_eq!(dialect.counted(&tokens), None);
            assert_eq!(dialect.popped(b"-ERR no\r\n", &tokens, &mut Vec::new(), |_| ()), None);
        }
        assert_eq!(misfit(b"-ERR no\r\n", &tokens, "push"), "the server refused a push: ERR no");
    }
}
