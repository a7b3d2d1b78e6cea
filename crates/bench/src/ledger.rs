//! The client's own account of every task, which the server is held to.

use crate::payload::{PAYLOAD_BYTES, Payloads};

/// What was pushed, delivered and acked in one run.
pub(crate) struct Ledger {
    payloads: Payloads,
    /// By number.
    tasks: Vec<Entry>,
    pub(crate) confirmed: u64,
    pub(crate) acked: u64,
    /// Tasks that are meant to be in the server when the account is closed.
    pub(crate) backlog: u64,
    wrong: Wrong,
}

/// What is known of a task. There are millions of them, so that it is one byte.
#[derive(Clone, Copy, Default)]
struct Entry(u8);

impl Entry {
    const CONFIRMED: u8 = 0x80;
    const ACKED: u8 = 0x40;
    /// Delivered before a crash, and not known to be acked.
    const OPEN: u8 = 0x20;
    const DELIVERIES: u8 = 0x1f;

    fn has(self, flag: u8) -> bool {
        self.0 & flag != 0
    }

    fn set(&mut self, flag: u8) {
        self.0 |= flag;
    }

    fn deliveries(self) -> u8 {
        self.0 & Self::DELIVERIES
    }

    fn deliver(&mut self) {
        self.0 += u8::from(self.deliveries() < Self::DELIVERIES);
    }

    fn crash(&mut self) {
        let open = self.deliveries() > 0 && !self.has(Self::ACKED);
        self.0 &= !Self::DELIVERIES;
        if open {
            self.set(Self::OPEN);
        }
    }
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
    /// In the server at the end although they should not be.
    pub(crate) left: u64,
}

impl Wrong {
    /// Everything that went wrong, in one number.
    pub(crate) fn total(self) -> u64 {
        self.lost + self.duplicated + self.altered + self.unacked + self.left
    }

    /// In words.
    pub(crate) fn describe(self) -> String {
        let Wrong { lost, duplicated, altered, unacked, left } = self;
        format!("{lost} lost, {duplicated} duplicated, {altered} altered, {unacked} unacked, {left} left")
    }
}

impl std::ops::AddAssign for Wrong {
    fn add_assign(&mut self, other: Wrong) {
        self.lost += other.lost;
        self.duplicated += other.duplicated;
        self.altered += other.altered;
        self.unacked += other.unacked;
        self.left += other.left;
    }
}

impl Ledger {
    pub(crate) fn new(salt: u64) -> Self {
        Ledger {
            payloads: Payloads::new(salt),
            tasks: Vec::new(),
            confirmed: 0,
            acked: 0,
            backlog: 0,
            wrong: Wrong::default(),
        }
    }

    /// How many tasks were made, confirmed or not.
    pub(crate) fn made(&self) -> u64 {
        self.tasks.len() as u64
    }

    /// The payload of the next task.
    pub(crate) fn make(&mut self) -> [u8; PAYLOAD_BYTES] {
        let payload = self.payloads.make(self.made());
        self.tasks.push(Entry::default());
        payload
    }

    /// Enters that the pushes of so many tasks from number `first` on were confirmed.
    pub(crate) fn confirm(&mut self, first: u64, count: u64) {
        for task in &mut self.tasks[first as usize..(first + count) as usize] {
            task.set(Entry::CONFIRMED);
        }
        self.confirmed += count;
    }

    /// Whether this is the payload of a task that was made here.
    pub(crate) fn knows(&self, payload: &[u8]) -> bool {
        self.payloads.number_of(payload).is_some_and(|number| number < self.made())
    }

    /// Enters a delivery; answers the number of the task, if it is one of ours.
    pub(crate) fn deliver(&mut self, payload: &[u8]) -> Option<u64> {
        let number = self.payloads.number_of(payload).filter(|&number| number < self.made());
        let Some(number) = number else {
            self.wrong.altered += 1;
            return None;
        };
        let task = &mut self.tasks[number as usize];
        self.wrong.duplicated += u64::from(task.deliveries() > 0 || task.has(Entry::ACKED));
        task.deliver();
        Some(number)
    }

    /// Enters the answer to an ack of `asked` tasks, of which those with these numbers are ours.
    pub(crate) fn ack(&mut self, numbers: &[u64], asked: u64, accepted: u64) {
        self.acked += accepted;
        self.wrong.unacked += asked.saturating_sub(accepted);
        if accepted == asked {
            for &number in numbers {
                self.tasks[number as usize].set(Entry::ACKED);
            }
        }
    }

    /// The server was killed. What was asked and not answered may have happened or not.
    pub(crate) fn crash(&mut self) {
        self.tasks.iter_mut().for_each(Entry::crash);
    }

    /// The account, when every reply has come and the server says that it holds `left` tasks.
    pub(crate) fn close(&self, left: u64) -> Wrong {
        let delivered = self.tasks.iter().filter(|task| task.deliveries() > 0).count() as u64;
        Wrong {
            lost: self.confirmed.saturating_sub(delivered + left.min(self.backlog)),
            left: left.saturating_sub(self.backlog),
            ..self.wrong
        }
    }

    /// The account after a crash, when everything was drained and the server says that it still holds `left` tasks.
    pub(crate) fn close_after_crash(&self, left: u64) -> Wrong {
        let must_come =
            |task: &&Entry| task.has(Entry::CONFIRMED) && !task.has(Entry::ACKED) && !task.has(Entry::OPEN);
        let lost = self.tasks.iter().filter(must_come).filter(|task| task.deliveries() == 0).count();
        Wrong { lost: lost as u64, left, ..self.wrong }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_way_to_go_wrong_is_counted_once() {
        let mut ledger = Ledger::new(1);
        let tasks = [ledger.make(), ledger.make(), ledger.make()];
        ledger.confirm(0, 3);
        assert_eq!(ledger.deliver(&tasks[1]), Some(1));
        assert_eq!(ledger.deliver(&tasks[0]), Some(0));
        assert_eq!(ledger.deliver(&tasks[0]), Some(0));
        assert_eq!(ledger.deliver(b"x"), None);
        assert_eq!(ledger.deliver(&Payloads::new(1).make(3)), None);
        ledger.ack(&[0, 1], 2, 1);
        let expected = Wrong { lost: 1, duplicated: 1, altered: 2, unacked: 1, left: 4 };
        assert_eq!(ledger.close(4), expected);
        assert_eq!(expected.total(), 9);
    }

    #[test]
    fn a_backlog_is_meant_to_be_there() {
        let mut ledger = Ledger::new(1);
        let tasks = [ledger.make(), ledger.make(), ledger.make()];
        ledger.confirm(0, 3);
        ledger.backlog = 2;
        ledger.deliver(&tasks[0]);
        assert_eq!(ledger.close(2), Wrong::default());
        assert_eq!(ledger.close(1), Wrong { lost: 1, ..Wrong::default() });
        assert_eq!(ledger.close(3), Wrong { left: 1, ..Wrong::default() });
    }

    #[test]
    fn after_a_crash_only_what_was_answered_is_certain() {
        let mut ledger = Ledger::new(1);
        let [lost, acked, open, unsure] = [ledger.make(), ledger.make(), ledger.make(), ledger.make()];
        ledger.confirm(0, 3);
        ledger.deliver(&acked);
        ledger.ack(&[1], 1, 1);
        ledger.deliver(&open);
        ledger.crash();
        assert_eq!(ledger.close_after_crash(0), Wrong { lost: 1, ..Wrong::default() });
        for payload in [lost, open, unsure] {
            ledger.deliver(&payload);
        }
        ledger.ack(&[0, 2, 3], 3, 3);
        assert_eq!(ledger.close_after_crash(0), Wrong::default());
        ledger.deliver(&acked);
        assert_eq!(ledger.close_after_crash(0), Wrong { duplicated: 1, ..Wrong::default() });
    }
}
