//! What a connection has been answered and not yet sent.
//!
//! Replies leave in order, and none before the position it waits for is durable. The deliveries among them are
//! remembered until their first byte has left: if the connection is gone by then, they go back.

use std::collections::VecDeque;

use sureq::{Position, Receipt};

/// A buffer that a burst made larger than this is given back once it is empty.
const KEPT_BYTES: usize = 64 << 10;

/// Unsent replies.
#[derive(Debug, Default)]
pub(crate) struct Output {
    bytes: Vec<u8>,
    /// How much of `bytes` has been sent.
    sent: usize,
    /// How much of it may be.
    released: usize,
    /// What waits for which position: up to where in `bytes`, in order.
    gates: VecDeque<(Position, usize)>,
    handed: VecDeque<Handed>,
    /// The queues that `handed` names.
    queues: Vec<Box<[u8]>>,
}

/// A delivery whose reply begins at `start`.
#[derive(Debug)]
struct Handed {
    start: usize,
    queue: usize,
    receipt: Receipt,
}

impl Output {
    /// Where to append replies to.
    pub(crate) fn bytes_mut(&mut self) -> &mut Vec<u8> {
        &mut self.bytes
    }

    /// Where the next reply begins.
    pub(crate) fn end(&self) -> usize {
        self.bytes.len()
    }

    /// How much is unsent.
    pub(crate) fn len(&self) -> usize {
        self.bytes.len() - self.sent
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// All that was appended so far waits for this position.
    pub(crate) fn gate(&mut self, position: Position) {
        let end = self.bytes.len();
        match self.gates.back_mut() {
            Some((last, upto)) if *last >= position => *upto = end,
            _ => self.gates.push_back((position, end)),
        }
    }

    /// Remembers that the reply which begins at `start` hands out a task.
    pub(crate) fn hand(&mut self, start: usize, queue: &[u8], receipt: Receipt) {
        // The queues of a connection are few, and the same ones again and again.
        let known = self.queues.iter().rposition(|known| **known == *queue);
        let queue = known.unwrap_or_else(|| {
            self.queues.push(queue.into());
            self.queues.len() - 1
        });
        self.handed.push_back(Handed { start, queue, receipt });
    }

    /// Lets out what is durable; answers what the rest waits for.
    pub(crate) fn release(&mut self, durable: Position) -> Option<Position> {
        while let Some(&(position, upto)) = self.gates.front() {
            if position > durable {
                return Some(position);
            }
            self.released = upto;
            self.gates.pop_front();
        }
        None
    }

    /// What may be sent now.
    pub(crate) fn sendable(&self) -> &[u8] {
        &self.bytes[self.sent..self.released]
    }

    /// Counts what was sent.
    pub(crate) fn advance(&mut self, sent: usize) {
        self.sent += sent;
        while self.handed.front().is_some_and(|handed| handed.start < self.sent) {
            self.handed.pop_front();
        }
        if self.sent == self.bytes.len() {
            self.start_over();
        }
    }

    fn start_over(&mut self) {
        (self.sent, self.released) = (0, 0);
        self.bytes.clear();
        self.bytes.shrink_to(KEPT_BYTES);
        if self.queues.len() > 64 {
            self.queues.clear();
        }
    }

    /// The deliveries that never left, by queue, in order.
    pub(crate) fn take_unsent(&mut self) -> Vec<(Box<[u8]>, Vec<Receipt>)> {
        let mut unsent: Vec<(Box<[u8]>, Vec<Receipt>)> = Vec::new();
        for Handed { queue, receipt, .. } in self.handed.drain(..) {
            let name = &self.queues[queue];
            match unsent.iter_mut().find(|(queue, _)| queue == name) {
                Some((_, receipts)) => receipts.push(receipt),
                None => unsent.push((name.clone(), vec![receipt])),
            }
        }
        unsent
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use sureq::TaskId;

    fn receipt(seq: u64) -> Receipt {
        Receipt { id: TaskId::new(1, seq).unwrap(), incarnation: 1, delivery: 1 }
    }

    fn reply(out: &mut Output, text: &str, position: u64) {
        out.bytes_mut().extend_from_slice(text.as_bytes());
        out.gate(Position(position));
    }

    #[test]
    fn replies_leave_in_order_and_not_before_their_position() {
        let mut out = Output::default();
        reply(&mut out, "a", 5);
        reply(&mut out, "b", 3);
        reply(&mut out, "c", 7);
        assert_eq!(out.release(Position(4)), Some(Position(5)));
        assert_eq!(out.sendable(), b"");
        assert_eq!(out.release(Position(5)), Some(Position(7)));
        assert_eq!(out.sendable(), b"ab");
        out.advance(1);
        assert_eq!(out.sendable(), b"b");
        assert_eq!(out.release(Position(9)), None);
        assert_eq!(out.sendable(), b"bc");
        out.advance(2);
        assert!(out.is_empty());
    }

    #[test]
    fn a_delivery_goes_back_unless_its_first_byte_has_left() {
        let mut out = Output::default();
        out.hand(out.end(), b"q", receipt(1));
        reply(&mut out, "first", 1);
        out.hand(out.end(), b"r", receipt(2));
        out.hand(out.end(), b"q", receipt(3));
        reply(&mut out, "second", 2);
        out.release(Position(2));
        out.advance(1);
        let unsent = out.take_unsent();
        assert_eq!(unsent, [(b"r"[..].into(), vec![receipt(2)]), (b"q"[..].into(), vec![receipt(3)])]);
    }
}
