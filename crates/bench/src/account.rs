//! The client's account of every task, against which the server is checked.

use sureq_history::{Delivery, History, Outcome, Push, Time};

use crate::payload::{PAYLOAD_BYTES, Payloads};

/// The pushes, deliveries and acks of one run.
pub(crate) struct Account {
    payloads: Payloads,
    history: History,
    pub(crate) acked: u64,
    /// Tasks that are meant to be in the server when the account is closed.
    pub(crate) backlog: u64,
    unacked: u64,
}

/// Errors of the server. All must be zero.
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

impl Account {
    pub(crate) fn new(salt: u64) -> Self {
        let (payloads, history) = (Payloads::new(salt), History::default());
        Account { payloads, history, acked: 0, backlog: 0, unacked: 0 }
    }

    /// How many tasks were made, confirmed or not.
    pub(crate) fn made(&self) -> u64 {
        self.history.tasks()
    }

    /// How many tasks were confirmed.
    pub(crate) fn confirmed(&self) -> u64 {
        self.history.counts().confirmed
    }

    /// The payload of the next task.
    pub(crate) fn make(&mut self) -> [u8; PAYLOAD_BYTES] {
        self.payloads.make(self.history.invoke_push(1).first)
    }

    /// Records that the pushes of `count` tasks from number `first` on were confirmed.
    pub(crate) fn confirm(&mut self, first: u64, count: u64) {
        self.history.complete_push(Push { first, count }, Outcome::Ok);
    }

    /// Whether this is the payload of a task that was made here.
    pub(crate) fn knows(&self, payload: &[u8]) -> bool {
        self.payloads.number_of(payload).is_some_and(|number| number < self.made())
    }

    /// Enters a delivery; answers the number of the task, if it is one of ours. Whatever is delivered is acked next.
    pub(crate) fn deliver(&mut self, payload: &[u8]) -> Option<u64> {
        let number = self.payloads.number_of(payload).filter(|&number| number < self.made());
        self.history.deliver(&Delivery { number, ..Delivery::untimed(0) });
        self.history.invoke_finish(number?);
        number
    }

    /// Enters the answer to an ack of `asked` tasks, of which those with these numbers are ours. If only some were
    /// accepted, nobody knows which.
    pub(crate) fn ack(&mut self, numbers: &[u64], asked: u64, accepted: u64) {
        self.acked += accepted;
        self.unacked += asked.saturating_sub(accepted);
        if accepted == asked {
            for &number in numbers {
                self.history.complete_finish(number, Outcome::Ok, Time::default());
            }
        }
    }

    /// The server was killed, and everything is to be drained. What was asked and not answered may have happened or
    /// not.
    pub(crate) fn crash(&mut self) {
        self.backlog = 0;
        self.history.release_all();
    }

    /// The account, when nothing is under way any more and the server says that it holds `left` tasks.
    pub(crate) fn close(&self, left: u64) -> Wrong {
        let found = self.history.findings(left.min(self.backlog));
        Wrong {
            duplicated: found.double_held + found.resurrected + found.finished_twice,
            altered: found.phantom,
            lost: found.lost,
            unacked: self.unacked,
            left: left.saturating_sub(self.backlog),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_way_to_go_wrong_is_counted_once() {
        let mut account = Account::new(1);
        let tasks = [account.make(), account.make(), account.make()];
        account.confirm(0, 3);
        assert_eq!(account.deliver(&tasks[1]), Some(1));
        assert_eq!(account.deliver(&tasks[0]), Some(0));
        assert_eq!(account.deliver(&tasks[0]), Some(0));
        assert_eq!(account.deliver(b"x"), None);
        assert_eq!(account.deliver(&Payloads::new(1).make(3)), None);
        account.ack(&[0, 1], 2, 1);
        let expected = Wrong { lost: 1, duplicated: 1, altered: 2, unacked: 1, left: 4 };
        assert_eq!(account.close(4), expected);
        assert_eq!(expected.total(), 9);
    }

    #[test]
    fn a_backlog_is_meant_to_be_there() {
        let mut account = Account::new(1);
        let tasks = [account.make(), account.make(), account.make()];
        account.confirm(0, 3);
        account.backlog = 2;
        account.deliver(&tasks[0]);
        assert_eq!(account.close(2), Wrong::default());
        assert_eq!(account.close(1), Wrong { lost: 1, ..Wrong::default() });
        assert_eq!(account.close(3), Wrong { left: 1, ..Wrong::default() });
    }

    #[test]
    fn after_a_crash_only_answered_requests_are_certain() {
        let mut account = Account::new(1);
        let [lost, acked, open, unsure] = [account.make(), account.make(), account.make(), account.make()];
        account.confirm(0, 3);
        account.deliver(&acked);
        account.ack(&[1], 1, 1);
        account.deliver(&open);
        account.crash();
        assert_eq!(account.close(0), Wrong { lost: 1, ..Wrong::default() });
        for payload in [lost, open, unsure] {
            account.deliver(&payload);
        }
        account.ack(&[0, 2, 3], 3, 3);
        assert_eq!(account.close(0), Wrong::default());
        account.deliver(&acked);
        assert_eq!(account.close(0), Wrong { duplicated: 1, ..Wrong::default() });
    }
}
