//! Redis Streams with one consumer group. A finished task is acknowledged and deleted; otherwise it would stay in the
//! stream.

use super::list::redis_loading;
use super::{Dialect, QUEUE, Step};
use crate::account::Account;
use crate::resp::{self, Token};

const GROUP: &[u8] = b"g";
const CONSUMER: &[u8] = b"c";
const FIELD: &[u8] = b"p";

/// `XADD`, `XREADGROUP`, `XACK` and `XDEL`.
pub(crate) struct Stream;

impl Dialect for Stream {
    fn prepare(&self, out: &mut Vec<u8>, _me: usize) -> usize {
        resp::command(out, &[b"XGROUP", b"CREATE", QUEUE, GROUP, b"0", b"MKSTREAM"]);
        1
    }

    fn loading(&self, bytes: &[u8], tokens: &[Token]) -> bool {
        redis_loading(bytes, tokens)
    }

    fn tasks_per_reply(&self, step: Step, batch: usize) -> usize {
        if step == Step::Push { 1 } else { batch }
    }

    fn replies_per_ack(&self) -> usize {
        2
    }

    fn push(&self, out: &mut Vec<u8>, _me: usize, tasks: usize, account: &mut Account) {
        for _ in 0..tasks {
            resp::command(out, &[b"XADD", QUEUE, b"*", FIELD, &account.make()]);
        }
    }

    fn pop(&self, out: &mut Vec<u8>, _me: usize, tasks: usize) {
        resp::request(out, 9);
        for word in [b"XREADGROUP".as_slice(), b"GROUP", GROUP, CONSUMER, b"COUNT"] {
            resp::word(out, word);
        }
        resp::number(out, tasks);
        for word in [b"STREAMS".as_slice(), QUEUE, b">"] {
            resp::word(out, word);
        }
    }

    fn wait(&self, out: &mut Vec<u8>, _me: usize) {
        let words: [&[u8]; 11] = [
            b"XREADGROUP",
            b"GROUP",
            GROUP,
            CONSUMER,
            b"COUNT",
            b"1",
            b"BLOCK",
            b"0",
            b"STREAMS",
            QUEUE,
            b">",
        ];
        resp::command(out, &words);
    }

    fn count(&self, out: &mut Vec<u8>, _me: usize) {
        // A task that was deleted and not acknowledged is no longer in the stream, but still in the list of the
        // group.
        let script = b"local n = redis.call('XLEN', KEYS[1]) \
            local p = redis.call('XPENDING', KEYS[1], ARGV[1])[1] \
            if p > n then return p end return n";
        resp::command(out, &[b"EVAL", script, b"1", QUEUE, GROUP]);
    }

    fn pushed(&self, _bytes: &[u8], tokens: &[Token], _tasks: usize) -> bool {
        matches!(tokens, [Token::Bulk(_)])
    }

    fn popped(
        &self,
        _me: usize,
        bytes: &[u8],
        tokens: &[Token],
        acks: &mut Vec<u8>,
        deliver: &mut dyn FnMut(&[u8]),
    ) -> Option<usize> {
        let (count, entries) = match tokens {
            [Token::Null] => return Some(0),
            [Token::Array(1), Token::Array(2), Token::Bulk(_), Token::Array(count), entries @ ..] => {
                (*count, entries)
            }
            _ => return None,
        };
        // Each is `[id, [field, payload]]`; the ids are used in both commands.
        let mut ids = Vec::with_capacity(count);
        for entry in entries.chunks(5) {
            let [Token::Array(2), Token::Bulk(id), Token::Array(2), _, Token::Bulk(payload)] = entry else {
                return None;
            };
            ids.push(id.clone());
            deliver(&bytes[payload.clone()]);
        }
        for head in [&[b"XACK".as_slice(), QUEUE, GROUP] as &[&[u8]], &[b"XDEL", QUEUE]] {
            resp::request(acks, head.len() + ids.len());
            for word in head.iter().copied().chain(ids.iter().map(|id| &bytes[id.clone()])) {
                resp::word(acks, word);
            }
        }
        Some(count)
    }

    /// Of the two replies, the second counts, that of `XDEL`.
    fn acked(&self, tokens: &[Token], last: bool) -> Option<usize> {
        match tokens {
            [Token::Integer(_)] if !last => Some(0),
            [Token::Integer(removed)] => usize::try_from(*removed).ok(),
            _ => None,
        }
    }

    fn counted(&self, _bytes: &[u8], tokens: &[Token]) -> Option<u64> {
        match tokens {
            [Token::Integer(count)] => u64::try_from(*count).ok(),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::{check_delivery, check_empty, scan, text};
    use super::*;

    #[test]
    fn pushes_are_pipelined_and_pops_are_native() {
        assert_eq!(text(|out| Stream.push(out, 0, 3, &mut Account::new(0))).matches("XADD").count(), 3);
        let pop = text(|out| Stream.pop(out, 0, 12));
        assert!(pop.starts_with("*9\r\n") && pop.contains("COUNT\r\n$2\r\n12\r\n"), "{pop}");
    }

    #[test]
    fn a_delivery_is_acked_and_deleted() {
        let mut acks = Vec::new();
        resp::command(&mut acks, &[b"XACK", b"bench", b"g", b"1-0"]);
        resp::command(&mut acks, &[b"XDEL", b"bench", b"1-0"]);
        let reply = b"*1\r\n*2\r\n$5\r\nbench\r\n*1\r\n*2\r\n$3\r\n1-0\r\n*2\r\n$1\r\np\r\n$4\r\nbody\r\n";
        check_delivery(&Stream, reply, &acks);
        check_empty(&Stream, b"*-1\r\n");
    }

    #[test]
    fn only_the_deletion_finishes_a_task() {
        let reply = scan(&Stream, b":3\r\n");
        assert_eq!((Stream.acked(&reply, false), Stream.acked(&reply, true)), (Some(0), Some(3)));
    }
}
