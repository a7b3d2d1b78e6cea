//! The steps of a task, push, pop and ack, in the protocol of each system.
//!
//! | | push | pop | ack |
//! |---|---|---|---|
//! | [`Rq`], sureq | `RQ.PUSH q p …` | `RQ.POP COUNT n q` | `RQ.ACK q id …` |
//! | [`LeasedRq`], sureq with leases | the same | `RQ.POP COUNT n LEASE ms WORKER w#n q` | `RQ.ACK q receipt …` |
//! | [`List`], Redis lists | `LPUSH q p …` | `RPOPLPUSH q q:processing`, n times | `LREM q:processing -1 p`, n times |
//! | [`Stream`], Redis Streams | `XADD q * p …`, n times | `XREADGROUP … COUNT n …` | `XACK q g id …`, `XDEL q id …` |
//! | [`Beanstalk`] | `put`, n times | `reserve-with-timeout 0`, n times | `delete id`, n times |
//! | [`Nats`] | `PUB q`, n times | one pull of n | `+ACK` to each task's subject |
//!
//! If a system has no batches, a batch consists of requests that are sent at once.

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

/// The queue of all dialects.
pub(crate) const QUEUE: &[u8] = b"bench";

/// The kind of a round of requests.
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

/// The protocol of a system. Requests are appended to `out` by the connection with the number `me`; replies are the
/// tokens of one reply, which refer to `bytes`. Functions that read a reply return `None` if it does not fit the
/// request.
pub(crate) trait Dialect: Sync {
    /// The decoder of its replies.
    fn scanner(&self) -> Scan {
        resp::scan
    }

    /// The first bytes of a new connection, which have no reply.
    fn greet(&self, _out: &mut Vec<u8>, _me: usize) {}

    /// Creates the queue, if that does not happen automatically; returns the number of replies.
    fn prepare(&self, _out: &mut Vec<u8>, _me: usize) -> usize {
        0
    }

    /// Asks whether the server is ready.
    fn ping(&self, out: &mut Vec<u8>) {
        resp::command(out, &[b"PING"]);
    }

    /// Whether this is the reply to a ping.
    fn ponged(&self, bytes: &[u8], tokens: &[Token]) -> bool {
        matches!(tokens, [Token::Simple(text)] if &bytes[text.clone()] == b"PONG")
    }

    /// Whether this is the reply of a server that has started and is not ready yet.
    fn loading(&self, _bytes: &[u8], _tokens: &[Token]) -> bool {
        false
    }

    /// The number of tasks of a batch in one reply.
    fn tasks_per_reply(&self, step: Step, batch: usize) -> usize;

    /// The number of replies to an ack.
    fn replies_per_ack(&self) -> usize {
        1
    }

    /// Writes the pushes of a batch of new tasks.
    fn push(&self, out: &mut Vec<u8>, me: usize, tasks: usize, account: &mut Account);

    /// Writes pops of a batch of tasks.
    fn pop(&self, out: &mut Vec<u8>, me: usize, tasks: usize);

    /// Writes a pop of one task that waits until there is one.
    fn wait(&self, out: &mut Vec<u8>, me: usize);

    /// Asks for the number of tasks in the server, in any state.
    fn count(&self, out: &mut Vec<u8>, me: usize);

    /// Whether this is the reply to a push of `tasks` tasks.
    fn pushed(&self, bytes: &[u8], tokens: &[Token], tasks: usize) -> bool;

    /// Reads the reply to a pop: passes each delivery to `deliver`, appends its ack to `acks`, and returns the number
    /// of tasks.
    fn popped(
        &self,
        me: usize,
        bytes: &[u8],
        tokens: &[Token],
        acks: &mut Vec<u8>,
        deliver: &mut dyn FnMut(&[u8]),
    ) -> Option<usize>;

    /// Reads a reply to an ack, with `last` if it is the last one; returns the number of tasks that it finished.
    fn acked(&self, tokens: &[Token], last: bool) -> Option<usize>;

    /// Reads the reply to [`Dialect::count`].
    fn counted(&self, bytes: &[u8], tokens: &[Token]) -> Option<u64>;
}

/// Splits `tasks` into batches; the last may be smaller.
pub(crate) fn batches(tasks: usize, batch: usize) -> impl Iterator<Item = usize> {
    (0..tasks).step_by(batch).map(move |start| batch.min(tasks - start))
}

/// The text for a reply that does not fit its request.
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

    /// The tokens of a complete reply.
    pub(super) fn scan(dialect: &dyn Dialect, reply: &[u8]) -> Vec<Token> {
        let mut tokens = Vec::new();
        for end in 0..reply.len() {
            assert_eq!(dialect.scanner()(&reply[..end], &mut tokens), Ok(None), "cut at {end}");
        }
        assert_eq!(dialect.scanner()(reply, &mut tokens), Ok(Some(reply.len())));
        tokens
    }

    /// The bytes of a request as text.
    pub(super) fn text(write: impl FnOnce(&mut Vec<u8>)) -> String {
        let mut out = Vec::new();
        write(&mut out);
        String::from_utf8_lossy(&out).into_owned()
    }

    /// Checks that a reply with one task, whose payload is `body`, leads to this ack.
    pub(super) fn check_delivery(dialect: &dyn Dialect, reply: &[u8], acks: &[u8]) {
        let (mut out, mut payloads) = (Vec::new(), Vec::new());
        let tokens = scan(dialect, reply);
        let count =
            dialect.popped(7, reply, &tokens, &mut out, &mut |payload| payloads.push(payload.to_vec()));
        assert_eq!((count, payloads), (Some(1), vec![b"body".to_vec()]));
        assert_eq!(String::from_utf8_lossy(&out), String::from_utf8_lossy(acks));
    }

    /// Checks a reply without a task.
    pub(super) fn check_empty(dialect: &dyn Dialect, reply: &[u8]) {
        let tokens = scan(dialect, reply);
        let count = dialect.popped(7, reply, &tokens, &mut Vec::new(), &mut |_| panic!("there is no task"));
        assert_eq!(count, Some(0));
    }

    #[test]
    fn an_error_fits_no_request() {
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
