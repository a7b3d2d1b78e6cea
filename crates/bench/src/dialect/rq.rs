//! sureq's own commands, which know batches.

use super::{Dialect, QUEUE, Step};
use crate::ledger::Ledger;
use crate::resp::{self, Token};

/// `RQ.PUSH`, `RQ.POP`, `RQ.ACK`.
pub(crate) struct Rq;

impl Dialect for Rq {
    fn tasks_per_reply(&self, _step: Step, batch: usize) -> usize {
        batch
    }

    fn push(&self, out: &mut Vec<u8>, _me: usize, tasks: usize, ledger: &mut Ledger) {
        resp::request(out, 2 + tasks);
        resp::word(out, b"RQ.PUSH");
        resp::word(out, QUEUE);
        for _ in 0..tasks {
            resp::word(out, &ledger.make());
        }
    }

    fn pop(&self, out: &mut Vec<u8>, _me: usize, tasks: usize) {
        resp::request(out, 4);
        resp::word(out, b"RQ.POP");
        resp::word(out, b"COUNT");
        resp::number(out, tasks);
        resp::word(out, QUEUE);
    }

    fn wait(&self, out: &mut Vec<u8>, _me: usize) {
        resp::command(out, &[b"RQ.POP", b"COUNT", b"1", b"BLOCK", b"0", QUEUE]);
    }

    fn count(&self, out: &mut Vec<u8>, _me: usize) {
        resp::command(out, &[b"RQ.INFO", QUEUE]);
    }

    fn pushed(&self, _bytes: &[u8], tokens: &[Token], tasks: usize) -> bool {
        matches!(tokens, [Token::Array(ids), ..] if *ids == tasks)
    }

    fn popped(
        &self,
        _me: usize,
        bytes: &[u8],
        tokens: &[Token],
        acks: &mut Vec<u8>,
        deliver: &mut dyn FnMut(&[u8]),
    ) -> Option<usize> {
        let [Token::Array(count), tasks @ ..] = tokens else { return None };
        if *count > 0 {
            resp::request(acks, 2 + count);
            resp::word(acks, b"RQ.ACK");
            resp::word(acks, QUEUE);
        }
        for task in tasks.chunks(4) {
            let [Token::Array(3), _, Token::Bulk(id), Token::Bulk(payload)] = task else {
                return None;
            };
            resp::word(acks, &bytes[id.clone()]);
            deliver(&bytes[payload.clone()]);
        }
        Some(*count)
    }

    fn acked(&self, tokens: &[Token], _last: bool) -> Option<usize> {
        match tokens {
            [Token::Array(ids), ..] => Some(*ids),
            _ => None,
        }
    }

    fn counted(&self, _bytes: &[u8], tokens: &[Token]) -> Option<u64> {
        match tokens {
            // RedisRQ's two fields come first: `undelivered` n `delivered` n.
            [Token::Array(_), _, Token::Integer(waiting), _, Token::Integer(taken), ..] => {
                u64::try_from(waiting + taken).ok()
            }
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::{check_delivery, check_empty, text};
    use super::*;

    #[test]
    fn batches_are_native() {
        let pop = text(|out| Rq.pop(out, 0, 5));
        assert!(pop.ends_with("COUNT\r\n$1\r\n5\r\n$5\r\nbench\r\n"), "{pop}");
        assert!(text(|out| Rq.push(out, 0, 4, &mut Ledger::new(0))).starts_with("*6\r\n"));
    }

    #[test]
    fn a_delivery_is_acked_by_its_id() {
        let mut ack = Vec::new();
        resp::command(&mut ack, &[b"RQ.ACK", b"bench", b"1-1"]);
        check_delivery(&Rq, b"*1\r\n*3\r\n$5\r\nbench\r\n$3\r\n1-1\r\n$4\r\nbody\r\n", &ack);
        check_empty(&Rq, b"*0\r\n");
    }
}
