//! The steps of a task, push, pop and ack, in the words of each system.
//!
//! | | push | pop | ack |
//! |---|---|---|---|
//! | [`Rq`], sureq | `RQ.PUSH q p …` | `RQ.POP COUNT n q` | `RQ.ACK q id …` |
//! | [`LeasedRq`], sureq with leases | the same | `RQ.POP COUNT n LEASE ms WORKER w#n q` | `RQ.ACK q receipt …` |
//! | [`List`], Redis lists | `LPUSH q p …` | `RPOPLPUSH q q:processing`, n times | `LREM q:processing -1 p`, n times |
//! | [`Stream`], Redis Streams | `XADD q * p …`, n times | `XREADGROUP … COUNT n STREAMS q >` | `XACK q g id …`, `XDEL q id …` |
//! | [`Beanstalk`] | `put`, n times | `reserve-with-timeout 0`, n times | `delete id`, n times |
//! | [`Nats`] | `PUB q`, n times | one pull of n | `+ACK` to each task's subject |
//!
//! Where a system knows no batches, a batch is so many requests sent at once.

mod beanstalk;
mod list;
mod nats;
mod rq;
mod stream;

pub(crate) use beanstalk::Beanstalk;
pub(crate) use list::List;
pub(crate) use nats::Nats;
pub(crate) use rq::{LeasedRq, Rq};
pub(crate) use stream::Stream;

use crate::account::Account;
use crate::resp::{self, Scan, Token};

/// The queue that all dialects speak of.
pub(crate) const QUEUE: &[u8] = b"bench";

/// What a round of requests does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    Push,
    Pop,
    Ack,
}

impl Step {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Step::Push => "push",
            Step::Pop => "pop",
            Step::Ack => "ack",
        }
    }
}

/// A system's words. Requests are appended to `out` by the connection with the number `me`; answers are the tokens of one
/// reply, which point into `bytes`. A reading answers `None` if the reply does not fit the question.
pub(crate) trait Dialect: Sync {
    /// How its replies are cut into tokens.
    fn scanner(&self) -> Scan {
        resp::scan
    }

    /// What a new connection says before anything else. It has no reply.
    fn greet(&self, _out: &mut Vec<u8>, _me: usize) {}

    /// Makes the queue, where that does not happen by itself; answers how many replies come.
    fn prepare(&self, _out: &mut Vec<u8>, _me: usize) -> usize {
        0
    }

    /// Asks whether the server is there.
    fn ping(&self, out: &mut Vec<u8>) {
        resp::command(out, &[b"PING"]);
    }

    /// Whether this is the answer to a ping.
    fn ponged(&self, bytes: &[u8], tokens: &[Token]) -> bool {
        matches!(tokens, [Token::Simple(text)] if &bytes[text.clone()] == b"PONG")
    }

    /// Whether this is the answer of a server that has started and cannot serve yet.
    fn loading(&self, _bytes: &[u8], _tokens: &[Token]) -> bool {
        false
    }

    /// How many of the tasks of a batch one reply speaks of.
    fn tasks_per_reply(&self, step: Step, batch: usize) -> usize;

    /// How many replies an ack has.
    fn replies_per_ack(&self) -> usize {
        1
    }

    /// Asks to push a batch of new tasks.
    fn push(&self, out: &mut Vec<u8>, me: usize, tasks: usize, account: &mut Account);

    /// Asks for a batch of tasks.
    fn pop(&self, out: &mut Vec<u8>, me: usize, tasks: usize);

    /// Asks for one task and waits until there is one.
    fn wait(&self, out: &mut Vec<u8>, me: usize);

    /// Asks how many tasks the server holds, in whatever state.
    fn count(&self, out: &mut Vec<u8>, me: usize);

    /// Whether this is the answer to a push of so many tasks.
    fn pushed(&self, bytes: &[u8], tokens: &[Token], tasks: usize) -> bool;

    /// Reads the answer to a pop: enters each delivery with `deliver`, appends the ack that it calls for to `acks`, and
    /// answers how many tasks came.
    fn popped(
        &self,
        me: usize,
        bytes: &[u8],
        tokens: &[Token],
        acks: &mut Vec<u8>,
        deliver: &mut dyn FnMut(&[u8]),
    ) -> Option<usize>;

    /// Reads a reply to an ack, `last` if no more replies to it come: how many tasks are finished by it.
    fn acked(&self, tokens: &[Token], last: bool) -> Option<usize>;

    /// Reads the answer to [`Dialect::count`].
    fn counted(&self, bytes: &[u8], tokens: &[Token]) -> Option<u64>;
}

/// Cuts `tasks` into batches; the last may be smaller.
pub(crate) fn batches(tasks: usize, batch: usize) -> impl Iterator<Item = usize> {
    (0..tasks).step_by(batch).map(move |start| batch.min(tasks - start))
}

/// An answer that does not fit its question, in words.
pub(crate) fn misfit(bytes: &[u8], tokens: &[Token], asked: &str) -> String {
    let text = |range: &std::ops::Range<usize>| String::from_utf8_lossy(&bytes[range.clone()]).into_owned();
    match tokens {
        [Token::Error(why), ..] => format!("the server refused a {asked}: {}", text(why)),
        [Token::Array(_), .., Token::Bulk(last)] => {
            format!("the server answered a {asked} with {tokens:?}, at the end {:?}", text(last))
        }
        _ => format!("the server answered a {asked} with {tokens:?}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The tokens of a whole reply.
    pub(super) fn scan(dialect: &dyn Dialect, reply: &[u8]) -> Vec<Token> {
        let mut tokens = Vec::new();
        for end in 0..reply.len() {
            assert_eq!(dialect.scanner()(&reply[..end], &mut tokens), Ok(None), "cut at {end}");
        }
        assert_eq!(dialect.scanner()(reply, &mut tokens), Ok(Some(reply.len())));
        tokens
    }

    /// What a request looks like on the wire.
    pub(super) fn text(write: impl FnOnce(&mut Vec<u8>)) -> String {
        let mut out = Vec::new();
        write(&mut out);
        String::from_utf8_lossy(&out).into_owned()
    }

    /// A reply with one task, whose payload is `body`, calls for this ack.
    pub(super) fn check_delivery(dialect: &dyn Dialect, reply: &[u8], acks: &[u8]) {
        let (mut out, mut payloads) = (Vec::new(), Vec::new());
        let tokens = scan(dialect, reply);
        let count =
            dialect.popped(7, reply, &tokens, &mut out, &mut |payload| payloads.push(payload.to_vec()));
        assert_eq!((count, payloads), (Some(1), vec![b"body".to_vec()]));
        assert_eq!(String::from_utf8_lossy(&out), String::from_utf8_lossy(acks));
    }

    /// A reply that brings no task.
    pub(super) fn check_empty(dialect: &dyn Dialect, reply: &[u8]) {
        let tokens = scan(dialect, reply);
        let count = dialect.popped(7, reply, &tokens, &mut Vec::new(), &mut |_| panic!("there is no task"));
        assert_eq!(count, Some(0));
    }

    #[test]
    fn an_error_is_an_answer_to_nothing() {
        let check = |dialect: &dyn Dialect, reply: &[u8]| {
            let tokens = scan(dialect, reply);
            assert!(!dialect.ponged(reply, &tokens));
            assert!(!dialect.pushed(reply, &tokens, 1));
            assert_eq!(dialect.acked(&tokens, true), None);
            assert_eq!(dialect.acked(&tokens, false), None);
            assert_eq!(dialect.counted(reply, &tokens), None);
            assert_eq!(dialect.popped(0, reply, &tokens, &mut Vec::new(), &mut |_| ()), None);
        };
        for dialect in [&Rq as &dyn Dialect, &List, &Stream, &Nats] {
            check(dialect, b"-ERR no\r\n");
        }
        check(&Beanstalk, b"OUT_OF_MEMORY\r\n");
        let tokens = scan(&Rq, b"-ERR no\r\n");
        assert_eq!(misfit(b"-ERR no\r\n", &tokens, "push"), "the server refused a push: ERR no");
    }

    #[test]
    fn the_last_batch_may_be_smaller() {
        assert_eq!(batches(5, 2).collect::<Vec<_>>(), [2, 2, 1]);
        assert_eq!(batches(0, 2).count(), 0);
    }
}
