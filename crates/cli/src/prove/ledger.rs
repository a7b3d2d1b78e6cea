//! The accounts of a proof: what was confirmed to producers, what workers took, and what was confirmed to them as finished.

/// What is known of all tasks, each by its number.
#[derive(Debug, Default)]
pub(super) struct Ledger {
    tasks: Vec<Task>,
    counts: Counts,
}

#[derive(Clone, Copy, Debug, Default)]
struct Task {
    is_confirmed: bool,
    is_finished: bool,
    /// Deliveries whose worker asked to finish them and has not said what came of it, and may never: a crash took the answer, or
    /// the worker. One that was taken and died before it asked is not among them: its task must come again.
    asked: u8,
    deliveries: u8,
}

/// What is counted while it happens.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Counts {
    /// Tasks that the home confirmed.
    pub(super) confirmed: u64,
    /// Pushes of tasks of which nobody knows whether they were taken note of.
    pub(super) unknown: u64,
    /// Tasks whose end was confirmed.
    pub(super) finished: u64,
    /// Deliveries of a task that had been delivered before, by what the home says or the workers said.
    pub(super) redelivered: u64,
    /// Tasks whose end was confirmed more than once.
    pub(super) finished_twice: u64,
    /// Deliveries with a payload that nobody pushed.
    pub(super) altered: u64,
}

/// Whether the home says that it delivered the task before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Delivery {
    First,
    Again,
}

/// What came of a delivery.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Came {
    /// The home said that this delivery finished it.
    Finished,
    /// The home said that it did not.
    NotFinished,
}

impl Ledger {
    /// A task was confirmed to its producer.
    pub(super) fn confirm(&mut self, number: u64) {
        self.task(number).is_confirmed = true;
        self.counts.confirmed += 1;
    }

    /// So many tasks may have been pushed or not.
    pub(super) fn unknown(&mut self, tasks: u64) {
        self.counts.unknown += tasks;
    }

    /// A worker has a task. Without a number its payload is nobody's. The home may know of deliveries that never arrived.
    pub(super) fn take(&mut self, number: Option<u64>, delivery: Delivery) {
        let Some(number) = number else {
            self.counts.altered += 1;
            return;
        };
        let task = self.task(number);
        task.deliveries = task.deliveries.saturating_add(1);
        let is_again = delivery == Delivery::Again || task.deliveries > 1;
        self.counts.redelivered += u64::from(is_again);
    }

    /// A worker is about to finish a task.
    pub(super) fn ask(&mut self, number: u64) {
        let task = self.task(number);
        task.asked = task.asked.saturating_add(1);
    }

    /// A worker heard what came of a delivery.
    pub(super) fn hear(&mut self, number: u64, came: Came) {
        let task = self.task(number);
        task.asked = task.asked.saturating_sub(1);
        if came == Came::Finished {
            let is_twice = std::mem::replace(&mut task.is_finished, true);
            self.counts.finished += u64::from(!is_twice);
            self.counts.finished_twice += u64::from(is_twice);
        }
    }

    pub(super) fn counts(&self) -> Counts {
        self.counts
    }

    /// The tasks that were confirmed, were not finished, and are not among those whose worker may have finished them without living
    /// to say so. It means something once the queue is empty.
    pub(super) fn lost(&self) -> u64 {
        let is_lost = |task: &&Task| task.is_confirmed && !task.is_finished && task.asked == 0;
        self.tasks.iter().filter(is_lost).count() as u64
    }

    fn task(&mut self, number: u64) -> &mut Task {
        let at = usize::try_from(number).expect("tasks are counted from zero");
        if self.tasks.len() <= at {
            self.tasks.resize(at + 1, Task::default());
        }
        &mut self.tasks[at]
    }
}

/// The payload of a task: its number, and what only that number has.
pub(super) fn payload(number: u64) -> String {
    format!("{number} {:016x}", mix(number))
}

/// The number of a task, if this is its payload.
pub(super) fn number_of(text: &[u8]) -> Option<u64> {
    let number = std::str::from_utf8(text).ok()?.split_once(' ')?.0.parse().ok()?;
    (payload(number).as_bytes() == text).then_some(number)
}

fn mix(number: u64) -> u64 {
    let word = (number ^ 0x5bd1_e995_97f4_a7c5).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    word ^ (word >> 29)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_lost_and_what_is_twice_is_found() {
        let mut ledger = Ledger::default();
        (0..7).for_each(|number| ledger.confirm(number));
        let take = |ledger: &mut Ledger, number| {
            ledger.take(Some(number), Delivery::First);
            ledger.ask(number);
        };
        // 0 is finished, by its second delivery.
        take(&mut ledger, 0);
        take(&mut ledger, 0);
        ledger.hear(0, Came::Finished);
        ledger.hear(0, Came::NotFinished);
        // 1 is finished twice, 2 was never seen, 3 was taken and not finished.
        for _ in 0..2 {
            take(&mut ledger, 1);
            ledger.hear(1, Came::Finished);
        }
        take(&mut ledger, 3);
        ledger.hear(3, Came::NotFinished);
        // The workers of 4 and 5 died: one had asked to finish it, the other held it, so that it had to come again.
        take(&mut ledger, 4);
        ledger.take(Some(5), Delivery::First);
        // 6 was delivered before, to a worker that died before it could say so.
        ledger.take(Some(6), Delivery::Again);
        ledger.ask(6);
        ledger.hear(6, Came::Finished);
        ledger.take(None, Delivery::First);
        assert_eq!(ledger.lost(), 3, "2, 3 and 5");
        let expected =
            Counts { confirmed: 7, unknown: 0, finished: 3, redelivered: 3, finished_twice: 1, altered: 1 };
        assert_eq!(ledger.counts(), expected);
    }

    #[test]
    fn a_payload_tells_its_number_and_nothing_else_does() {
        for number in [0, 7, 1 << 40] {
            let text = payload(number);
            assert_eq!(number_of(text.as_bytes()), Some(number));
            assert_eq!(number_of(&text.as_bytes()[1..]), None);
        }
        assert_eq!(number_of(b""), None);
    }
}
