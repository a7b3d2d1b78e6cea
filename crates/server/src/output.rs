//! The replies of a connection that are not sent yet.
//!
//! Replies are sent in order, and none before the position that it waits for is durable. The deliveries among them
//! are remembered until their first byte is sent: if the connection ends before that, the tasks are requeued.

use std::collections::VecDeque;

use sureq_core::Receipt;
use sureq_home_api::Position;

/// A buffer with more capacity than this after a burst is freed once it is empty, and sent bytes are dropped from the
/// buffer once they are more than this.
const KEPT_BYTES: usize = 16 << 10;

/// The capacity for this many deliveries is kept after a burst.
const KEPT_DELIVERIES: usize = 256;

/// The unsent replies of a connection.
#[derive(Debug, Default)]
pub(crate) struct Output {
    bytes: Vec<u8>,
    /// The number of `bytes` that have been sent.
    sent: usize,
    /// The number of `bytes` that may be sent.
    released: usize,
    /// Positions, in order, each with the end of the part of `bytes` that waits for it.
    gates: VecDeque<(Position, usize)>,
    deliveries: VecDeque<NotedDelivery>,
    /// The queues that the entries of `deliveries` refer to, in the same order.
    queues: Vec<Box<[u8]>>,
    /// The bytes of their names.
    names_bytes: usize,
}

/// A delivery whose reply begins at `start`.
#[derive(Debug)]
struct NotedDelivery {
    start: usize,
    queue: usize,
    receipt: Receipt,
}

impl Output {
    /// The buffer to append replies to.
    pub(crate) fn bytes_mut(&mut self) -> &mut Vec<u8> {
        &mut self.bytes
    }

    /// The offset at which the next reply begins.
    pub(crate) fn end(&self) -> usize {
        self.bytes.len()
    }

    /// The allocated memory in bytes.
    pub(crate) fn capacity(&self) -> usize {
        self.bytes.capacity()
            + self.deliveries.capacity() * size_of::<NotedDelivery>()
            + self.queues.capacity() * size_of::<Box<[u8]>>()
            + self.names_bytes
    }

    /// The number of unsent bytes.
    pub(crate) fn len(&self) -> usize {
        self.bytes.len() - self.sent
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Lets everything that was appended so far wait for this position.
    pub(crate) fn gate(&mut self, position: Position) {
        let end = self.bytes.len();
        match self.gates.back_mut() {
            Some((last, upto)) if *last >= position => *upto = end,
            _ => self.gates.push_back((position, end)),
        }
    }

    /// Records that the reply which begins at `start` delivers a task.
    pub(crate) fn note_delivery(&mut self, start: usize, queue: &[u8], receipt: Receipt) {
        // Deliveries come grouped by queue, and most connections use the same queue again and again.
        if self.queues.last().is_none_or(|last| **last != *queue) {
            self.queues.push(queue.into());
            self.names_bytes += queue.len();
        }
        self.deliveries.push_back(NotedDelivery { start, queue: self.queues.len() - 1, receipt });
    }

    /// Releases the replies that are durable. Returns the position that the rest waits for.
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

    /// The bytes that may be sent now.
    pub(crate) fn sendable(&self) -> &[u8] {
        &self.bytes[self.sent..self.released]
    }

    /// Drops bytes that were sent.
    pub(crate) fn advance(&mut self, sent: usize) {
        self.sent += sent;
        while self.deliveries.front().is_some_and(|delivery| delivery.start < self.sent) {
            self.deliveries.pop_front();
        }
        let all = self.sent == self.bytes.len();
        if all || self.sent > KEPT_BYTES && self.sent >= self.bytes.len() / 2 {
            self.free_sent();
        }
    }

    /// Frees sent bytes. This cannot wait for an empty buffer: a busy connection may always have unsent replies.
    fn free_sent(&mut self) {
        let sent = std::mem::take(&mut self.sent);
        self.bytes.drain(..sent);
        self.bytes.shrink_to(KEPT_BYTES);
        self.released -= sent;
        self.gates.iter_mut().for_each(|(_, upto)| *upto -= sent);
        // The last name is kept: it is probably that of the next delivery.
        let unused = self.queues.len().saturating_sub(1);
        let unused = self.deliveries.front().map_or(unused, |first| first.queue);
        self.names_bytes -= self.queues.drain(..unused).map(|name| name.len()).sum::<usize>();
        for delivery in &mut self.deliveries {
            delivery.start -= sent;
            delivery.queue -= unused;
        }
        self.deliveries.shrink_to(KEPT_DELIVERIES);
        self.queues.shrink_to(KEPT_DELIVERIES);
    }

    /// Removes and returns the deliveries that were never sent, by queue, in order.
    pub(crate) fn take_unsent(&mut self) -> Vec<(Box<[u8]>, Vec<Receipt>)> {
        let mut unsent: Vec<(Box<[u8]>, Vec<Receipt>)> = Vec::new();
        for NotedDelivery { queue, receipt, .. } in self.deliveries.drain(..) {
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
    use sureq_core::TaskId;

    fn receipt(seq: u64) -> Receipt {
        Receipt { id: TaskId::new(1, seq).unwrap(), incarnation: 1, delivery: 1 }
    }

    fn reply(out: &mut Output, text: &str, position: u64) {
        out.bytes_mut().extend_from_slice(text.as_bytes());
        out.gate(Position(position));
    }

    #[test]
    fn replies_are_sent_in_order_and_not_before_their_position() {
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
    fn sent_bytes_are_freed_although_there_is_always_more() {
        let mut out = Output::default();
        let text = "x".repeat(1000);
        reply(&mut out, &text, 0);
        for n in 1..1000 {
            out.note_delivery(out.end(), format!("q{}", n % 7).as_bytes(), receipt(n));
            reply(&mut out, &text, n);
            out.release(Position(n - 1));
            assert_eq!(out.sendable().len(), 1000);
            out.advance(1000);
        }
        assert_eq!((out.len(), out.take_unsent().len()), (1000, 1));
        assert!(out.bytes.capacity() < 100_000);
    }

    /// Like a client that pops from several queues by turns, without waiting for the replies.
    #[test]
    fn names_of_queues_are_freed_although_a_delivery_is_always_unsent() {
        let mut out = Output::default();
        for n in 0..10_000 {
            out.note_delivery(out.end(), format!("queue-{}", n % 7).as_bytes(), receipt(n + 1));
            reply(&mut out, &"x".repeat(100), 0);
            out.release(Position(0));
            out.advance(out.len() - 100);
            assert!(out.queues.len() <= 2 * KEPT_BYTES / 100, "{} names after {n} replies", out.queues.len());
        }
        out.note_delivery(out.end(), b"last", receipt(1));
        let unsent = out.take_unsent();
        assert_eq!(
            unsent,
            [(b"queue-3"[..].into(), vec![receipt(10_000)]), (b"last"[..].into(), vec![receipt(1)])]
        );
    }

    #[test]
    fn memory_of_a_large_reply_is_freed_once_it_is_sent() {
        let mut out = Output::default();
        for n in 0..10_000 {
            out.note_delivery(0, format!("queue-{}", n / 10).as_bytes(), receipt(n + 1));
        }
        reply(&mut out, &"x".repeat(1_000_000), 0);
        assert!(out.capacity() > 1_400_000, "{} bytes", out.capacity());
        out.release(Position(0));
        out.advance(1_000_000);
        assert!(out.capacity() < 40_000, "{} bytes", out.capacity());
    }

    #[test]
    fn returns_deliveries_until_their_first_byte_is_sent() {
        let mut out = Output::default();
        out.note_delivery(out.end(), b"q", receipt(1));
        reply(&mut out, "first", 1);
        out.note_delivery(out.end(), b"r", receipt(2));
        out.note_delivery(out.end(), b"q", receipt(3));
        reply(&mut out, "second", 2);
        out.release(Position(2));
        out.advance(1);
        let unsent = out.take_unsent();
        assert_eq!(unsent, [(b"r"[..].into(), vec![receipt(2)]), (b"q"[..].into(), vec![receipt(3)])]);
    }
}
