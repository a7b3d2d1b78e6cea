//! sureq's own commands, which have batches.

use super::{Dialect, QUEUE, Step};
use crate::account::Account;
use crate::resp::{self, Token};

/// `RQ.PUSH`, `RQ.POP`, `RQ.ACK`.
pub(crate) struct Rq;

/// The same with leases: pops have a deadline and a worker, acks go by receipt.
pub(crate) struct LeasedRq {
    /// `name#n`, from the reply to `RQ.WORKER START`.
    pub(crate) worker: String,
}

/// The length of a lease.
const LEASE_MS: &[u8] = b"30000";

/// Reads tasks with this many fields, one of which is used for the ack.
fn read_popped(
    bytes: &[u8],
    tokens: &[Token],
    (fields, named): (usize, usize),
    acks: &mut Vec<u8>,
    deliver: &mut dyn FnMut(&[u8]),
) -> Option<usize> {
    let [Token::Array(count), tasks @ ..] = tokens else { return None };
    if *count > 0 {
        resp::request(acks, 2 + count);
        resp::word(acks, b"RQ.ACK");
        resp::word(acks, QUEUE);
    }
    for task in tasks.chunks(1 + fields) {
        let [Token::Array(len), task @ ..] = task else { return None };
        let (Token::Bulk(name), Token::Bulk(payload)) = (task.get(named)?, task.get(2)?) else { return None };
        if *len != fields {
            return None;
        }
        resp::word(acks, &bytes[name.clone()]);
        deliver(&bytes[payload.clone()]);
    }
    Some(*count)
}

impl Dialect for LeasedRq {
    fn tasks_per_reply(&self, step: Step, batch: usize) -> usize {
        Rq.tasks_per_reply(step, batch)
    }

    fn push(&self, out: &mut Vec<u8>, me: usize, tasks: usize, account: &mut Account) {
        Rq.push(out, me, tasks, account);
    }

    fn pop(&self, out: &mut Vec<u8>, _me: usize, tasks: usize) {
        resp::request(out, 8);
        resp::word(out, b"RQ.POP");
        resp::word(out, b"COUNT");
        resp::number(out, tasks);
        for word in [b"LEASE", LEASE_MS, b"WORKER", self.worker.as_bytes(), QUEUE] {
            resp::word(out, word);
        }
    }

    fn wait(&self, out: &mut Vec<u8>, _me: usize) {
        let worker = self.worker.as_bytes();
        resp::command(out, &[b"RQ.POP", b"BLOCK", b"0", b"LEASE", LEASE_MS, b"WORKER", worker, QUEUE]);
    }

    fn count(&self, out: &mut Vec<u8>, me: usize) {
        Rq.count(out, me);
    }

    fn pushed(&self, bytes: &[u8], tokens: &[Token], tasks: usize) -> bool {
        Rq.pushed(bytes, tokens, tasks)
    }

    fn popped(
        &self,
        _me: usize,
        bytes: &[u8],
        tokens: &[Token],
        acks: &mut Vec<u8>,
        deliver: &mut dyn FnMut(&[u8]),
    ) -> Option<usize> {
        read_popped(bytes, tokens, (5, 3), acks, deliver)
    }

    fn acked(&self, tokens: &[Token], last: bool) -> Option<usize> {
        Rq.acked(tokens, last)
    }

    fn counted(&self, bytes: &[u8], tokens: &[Token]) -> Option<u64> {
        Rq.counted(bytes, tokens)
    }
}

impl Dialect for Rq {
    fn tasks_per_reply(&self, _step: Step, batch: usize) -> usize {
        batch
    }

    fn push(&self, out: &mut Vec<u8>, _me: usize, tasks: usize, account: &mut Account) {
        resp::request(out, 2 + tasks);
        resp::word(out, b"RQ.PUSH");
        resp::word(out, QUEUE);
        for _ in 0..tasks {
            resp::word(out, &account.make());
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
        read_popped(bytes, tokens, (3, 1), acks, deliver)
    }

    fn acked(&self, tokens: &[Token], _last: bool) -> Option<usize> {
        match tokens {
            [Token::Array(ids), ..] => Some(*ids),
            _ => None,
        }
    }

    fn counted(&self, _bytes: &[u8], tokens: &[Token]) -> Option<u64> {
        match tokens {
            // The two fields of RedisRQ are first: `undelivered` n `delivered` n.
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
        assert!(text(|out| Rq.push(out, 0, 4, &mut Account::new(0))).starts_with("*6\r\n"));
    }

    #[test]
    fn a_delivery_is_acked_by_its_id() {
        let mut ack = Vec::new();
        resp::command(&mut ack, &[b"RQ.ACK", b"bench", b"1-1"]);
        check_delivery(&Rq, b"*1\r\n*3\r\n$5\r\nbench\r\n$3\r\n1-1\r\n$4\r\nbody\r\n", &ack);
        check_empty(&Rq, b"*0\r\n");
    }

    #[test]
    fn a_leased_delivery_is_acked_by_its_receipt() {
        let leased = LeasedRq { worker: "w#7".to_owned() };
        let pop = text(|out| leased.pop(out, 0, 5));
        assert!(pop.contains("$5\r\nLEASE\r\n$5\r\n30000\r\n$6\r\nWORKER\r\n$3\r\nw#7\r\n"), "{pop}");
        let mut ack = Vec::new();
        resp::command(&mut ack, &[b"RQ.ACK", b"bench", b"1-1@1.9"]);
        let reply = b"*1\r\n*5\r\n$5\r\nbench\r\n$3\r\n1-1\r\n$4\r\nbody\r\n$7\r\n1-1@1.9\r\n:1\r\n";
        check_delivery(&leased, reply, &ack);
        check_empty(&leased, b"*0\r\n");
    }
}
