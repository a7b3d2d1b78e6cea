//! The client's own account of every task, which the server is held to.

use crate::payload::Payloads;

/// What was pushed, delivered and acked in one run.
pub(crate) struct Ledger {
    payloads: Payloads,
    /// By number: how often the task was delivered.
    deliveries: Vec<u8>,
    pub(crate) confirmed: u64,
    pub(crate) acked: u64,
    wrong: Wrong,
}

/// What must not happen. All of it is zero, or the server is broken.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Wrong {
    /// Confirmed, and never delivered.
    pub(crate) lost: u64,
    /// Delivered again.
    pub(crate) duplicated: u64,
    /// Delivered with bytes that were never pushed.
    pub(crate) altered: u64,
    /// Delivered, and its ack not accepted.
    pub(crate) unacked: u64,
    /// Still in the server after everything was acked.
    pub(crate) left: u64,
}

impl Wrong {
    /// Everything that went wrong, in one number.
    pub(crate) fn total(self) -> u64 {
        self.lost + self.duplicated + self.altered + self.unacked + self.left
    }
}

impl Ledger {
    pub(crate) fn new(salt: u64) -> Self {
        Ledger {
            payloads: Payloads::new(salt),
            deliveries: Vec::new(),
            confirmed: 0,
            acked: 0,
            wrong: Wrong::default(),
        }
    }

    /// How many tasks were made, confirmed or not.
    pub(crate) fn made(&self) -> u64 {
        self.deliveries.len() as u64
    }

    /// The payload of the next task.
    pub(crate) fn make(&mut self) -> [u8; crate::payload::PAYLOAD_BYTES] {
        let payload = self.payloads.make(self.made());
        self.deliveries.push(0);
        payload
    }

    /// Enters a delivery; answers the number of the task, if it is one of ours.
    pub(crate) fn deliver(&mut self, payload: &[u8]) -> Option<u64> {
        let number = self.payloads.number_of(payload).filter(|&number| number < self.made());
        let Some(number) = number else {
            self.wrong.altered += 1;
            return None;
        };
        let times = &mut self.deliveries[number as usize];
        self.wrong.duplicated += u64::from(*times > 0);
        *times = times.saturating_add(1);
        Some(number)
    }

    /// Enters the answer to an ack of `asked` tasks.
    pub(crate) fn ack(&mut self, asked: u64, accepted: u64) {
        self.acked += accepted;
        self.wrong.unacked += asked.saturating_sub(accepted);
    }

    /// The final account, when every reply has come and the server says that it still holds `left` tasks.
    pub(crate) fn close(&self, left: u64) -> Wrong {
        let delivered = self.deliveries.iter().filter(|&&times| times > 0).count() as u64;
        Wrong { lost: self.confirmed.saturating_sub(delivered), left, ..self.wrong }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_way_to_go_wrong_is_counted_once() {
        let mut ledger = Ledger::new(1);
        let tasks = [ledger.make(), ledger.make(), ledger.make()];
        ledger.confirmed = 3;
        assert_eq!(ledger.deliver(&tasks[1]), Some(1));
        assert_eq!(ledger.deliver(&tasks[0]), Some(0));
        assert_eq!(ledger.deliver(&tasks[0]), Some(0));
        assert_eq!(ledger.deliver(b"x"), None);
        assert_eq!(ledger.deliver(&Payloads::new(1).make(3)), None);
        ledger.ack(2, 1);
        let expected = Wrong { lost: 1, duplicated: 1, altered: 2, unacked: 1, left: 4 };
        assert_eq!(ledger.close(4), expected);
        assert_eq!(expected.total(), 9);
    }
}
