//! The usual reliable queue on plain Redis lists: a task is in one of two lists until it is done.

use super::{Dialect, QUEUE, Step};
use crate::account::Account;
use crate::resp::{self, Token};

const PROCESSING: &[u8] = b"bench:processing";

/// Two Redis lists.
pub(crate) struct List;

impl Dialect for List {
    fn loading(&self, bytes: &[u8], tokens: &[Token]) -> bool {
        redis_loading(bytes, tokens)
    }

    fn tasks_per_reply(&self, step: Step, batch: usize) -> usize {
        if step == Step::Push { batch } else { 1 }
    }

    fn push(&self, out: &mut Vec<u8>, _me: usize, tasks: usize, account: &mut Account) {
        resp::request(out, 2 + tasks);
        resp::word(out, b"LPUSH");
        resp::word(out, QUEUE);
        for _ in 0..tasks {
            resp::word(out, &account.make());
        }
    }

    fn pop(&self, out: &mut Vec<u8>, _me: usize, tasks: usize) {
        for _ in 0..tasks {
            resp::command(out, &[b"RPOPLPUSH", QUEUE, PROCESSING]);
        }
    }

    fn wait(&self, out: &mut Vec<u8>, _me: usize) {
        resp::command(out, &[b"BLMOVE", QUEUE, PROCESSING, b"RIGHT", b"LEFT", b"0"]);
    }

    fn count(&self, out: &mut Vec<u8>, _me: usize) {
        let script = b"return redis.call('LLEN', KEYS[1]) + redis.call('LLEN', KEYS[2])";
        resp::command(out, &[b"EVAL", script, b"2", QUEUE, PROCESSING]);
    }

    fn pushed(&self, _bytes: &[u8], tokens: &[Token], _tasks: usize) -> bool {
        matches!(tokens, [Token::Integer(_)])
    }

    fn popped(
        &self,
        _me: usize,
        bytes: &[u8],
        tokens: &[Token],
        acks: &mut Vec<u8>,
        deliver: &mut dyn FnMut(&[u8]),
    ) -> Option<usize> {
        match tokens {
            [Token::Null] => Some(0),
            [Token::Bulk(payload)] => {
                let payload = &bytes[payload.clone()];
                resp::command(acks, &[b"LREM", PROCESSING, b"-1", payload]);
                deliver(payload);
                Some(1)
            }
            _ => None,
        }
    }

    fn acked(&self, tokens: &[Token], _last: bool) -> Option<usize> {
        match tokens {
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

/// Redis accepts connections while it still reads its append-only file, and replies with an error.
pub(super) fn redis_loading(bytes: &[u8], tokens: &[Token]) -> bool {
    matches!(tokens, [Token::Error(text)] if bytes[text.clone()].starts_with(b"LOADING"))
}

#[cfg(test)]
mod tests {
    use super::super::tests::{check_delivery, check_empty, scan, text};
    use super::*;

    #[test]
    fn batches_are_native_for_pushes_and_pipelined_for_pops() {
        assert_eq!(text(|out| List.pop(out, 0, 5)).matches("RPOPLPUSH").count(), 5);
        assert!(text(|out| List.push(out, 0, 4, &mut Account::new(0))).starts_with("*6\r\n"));
    }

    #[test]
    fn a_delivery_is_acked_by_its_payload() {
        let mut ack = Vec::new();
        resp::command(&mut ack, &[b"LREM", b"bench:processing", b"-1", b"body"]);
        check_delivery(&List, b"$4\r\nbody\r\n", &ack);
        check_empty(&List, b"$-1\r\n");
    }

    #[test]
    fn loading_differs_from_other_errors() {
        let check = |reply: &[u8], expected| {
            assert_eq!(List.loading(reply, &scan(&List, reply)), expected);
        };
        check(b"-LOADING Redis is loading the dataset in memory\r\n", true);
        check(b"-ERR no\r\n", false);
    }
}
