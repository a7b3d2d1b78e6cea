//! A record of every task of the client, against which the server is checked.

use sureq_history::{Delivery, History, Outcome, Push, Time};

use crate::payload::{PAYLOAD_BYTES, Payloads};

/// The pushes, deliveries and acks of one run.
pub(crate) struct Account {
    payloads: Payloads,
    history: History,
    pub(crate) acked: u64,
    /// Tasks that should be in the server at the end.
    pub(crate) backlog: u64,
    unacked: u64,
}

/// Errors of the server. All must be zero.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Wrong {
    /// Confirmed, and never delivered.
    pub(crate) lost: u64,
    /// Delivered more than once.
    pub(crate) duplicated: u64,
    /// Delivered with bytes that were never pushed.
    pub(crate) altered: u64,
    /// Delivered, and not acked successfully.
    pub(crate) unacked: u64,
    /// In the server at the end, although they should not be.
    pub(crate) left: u64,
}

impl Wrong {
    /// The sum of all errors.
    pub(crate) fn total(self) -> u64 {
        self.lost + self.duplicated + self.altered + self.unacked + self.left
    }

    /// The counts as text.
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

    /// The number of tasks that were created, confirmed or not.
    pub(crate) fn made(&self) -> u64 {
        self.history.tasks()
    }

    /// The number of confirmed tasks.
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

    /// Whether this is the payload of a task of this account.
    pub(crate) fn knows(&self, payload: &[u8]) -> bool {
        self.payloads.number_of(payload).is_some_and(|number| number < self.made())
    }

    /// Records a delivery; returns the number of the task, if it belongs to this account. Every delivered task is
    /// acked next.
    pub(crate) fn deliver(&mut self, payload: &[u8]) -> Option<u64> {
        let number = self.payloads.number_of(payload).filter(|&number| number < self.made());
        self.history.deliver(&Delivery { number, ..Delivery::untimed(0) });
        self.history.invoke_finish(number?);
        number
    }

    /// Records the reply to an ack of `asked` tasks, of which those with these numbers belong to this account. If
    /// only some were accepted, it is unknown which.
    pub(crate) fn ack(&mut self, numbers: &[u64], asked: u64, accepted: u64) {
        self.acked += accepted;
        self.unacked += asked.saturating_sub(accepted);
        if accepted == asked {
            for &number in numbers {
                self.history.complete_finish(number, Outcome::Ok, Time::default());
            }
        }
    }

    /// Records that the server was killed, and that everything will be drained. Requests without a reply may have
    /// been executed or not.
    pub(crate) fn crash(&mut self) {
        self.backlog = 0;
        self.history.release_all();
    }

    /// The errors, when no request is in flight and the server reports `left` tasks.
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
    fn each_error_is_counted_once() {
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
    fn a_backlog_is_not_an_error() {
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
