//! [`History`]: records operations and computes findings.

use std::fmt;
use std::ops::Range;
use std::time::Duration;

use crate::entry::Entry;
use crate::holds::{EPSILON, Hold, Holds};
use crate::{Counts, Findings, Time};

/// The most findings that are described in text.
const EXAMPLES_MAX: usize = 20;

/// How an operation completed, from the view of its client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// It was confirmed.
    Ok,
    /// It certainly had no effect, and never will.
    Failed,
    /// Its reply was lost: it had its effect, will have it, or never does.
    Unknown,
}

/// One push command, of tasks with numbers in a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Push {
    /// The number of its first task.
    pub first: u64,
    /// How many tasks it pushes.
    pub count: u64,
}

impl Push {
    /// The numbers of its tasks.
    pub const fn numbers(self) -> Range<u64> {
        self.first..self.first + self.count
    }
}

/// A task as a client received it.
#[derive(Clone, Copy, Debug)]
pub struct Delivery {
    /// The task that its payload belongs to, if it is the payload of any.
    pub number: Option<u64>,
    /// The id that the queue gave it, if ids are to be compared. It costs eight bytes per task.
    pub id: Option<u64>,
    /// When the request was sent.
    pub asked: Time,
    /// When the reply was received.
    pub received: Time,
    /// The length of its lease; `None` if it is held until it is finished or released.
    pub lease: Option<Duration>,
}

impl Delivery {
    /// A delivery with a lease that does not end by itself.
    pub const fn untimed(number: u64) -> Self {
        let never = Time::from_micros(0);
        Self { number: Some(number), id: None, asked: never, received: never, lease: None }
    }
}

/// Whether a task had been delivered before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Seen {
    /// This is its first delivery.
    First,
    /// It was delivered before.
    Again,
}

/// The requests and replies of all clients. Tasks have numbers from 0 in the order of their pushes.
///
/// It takes one byte per task, eight more if ids are compared, and about 100 bytes for each task that is held by a
/// lease with a time or was finished in the last ten seconds.
#[derive(Debug, Default)]
pub struct History {
    tasks: Vec<Entry>,
    /// By task number; 0 if unknown.
    ids: Vec<u64>,
    holds: Holds,
    /// Pushes of several tasks with an unknown outcome.
    unknown: Vec<Push>,
    counts: Counts,
    found: Findings,
    examples: Vec<String>,
}

impl History {
    /// A push of `count` new tasks is about to be sent.
    pub fn invoke_push(&mut self, count: u64) -> Push {
        let first = self.tasks.len() as u64;
        self.tasks.resize(self.tasks.len() + count as usize, Entry::INVOKED);
        Push { first, count }
    }

    /// A push completed.
    pub fn complete_push(&mut self, push: Push, outcome: Outcome) {
        match outcome {
            Outcome::Ok => {
                self.tasks[range(push)].iter_mut().for_each(|task| task.set(Entry::CONFIRMED));
                self.counts.pushes += 1;
                self.counts.confirmed += push.count;
            }
            Outcome::Failed => {
                self.counts.failed += push.count;
                for number in push.numbers() {
                    let task = &mut self.tasks[number as usize];
                    task.clear(Entry::INVOKED);
                    if task.has(Entry::DELIVERED) {
                        self.found.phantom += 1;
                        self.report(format_args!("{number} was delivered, and its push failed"));
                    }
                }
            }
            Outcome::Unknown => {
                self.counts.unknown += push.count;
                if push.count > 1 {
                    self.unknown.push(push);
                }
            }
        }
    }

    /// The queue gave these ids to the tasks of a push.
    pub fn note_ids(&mut self, push: Push, ids: &[u64]) {
        assert_eq!(ids.len() as u64, push.count, "one id for each task");
        push.numbers().zip(ids).for_each(|(number, id)| self.note_id(number, *id));
    }

    fn note_id(&mut self, number: u64, id: u64) {
        if self.ids.len() <= number as usize {
            self.ids.resize(number as usize + 1, 0);
        }
        let known = &mut self.ids[number as usize];
        if *known == 0 {
            *known = id;
        } else if *known != id {
            let known = *known;
            self.found.repeated_ids += 1;
            self.report(format_args!("{number} has the ids {known} and {id}"));
        }
    }

    /// A client received a task.
    pub fn deliver(&mut self, delivery: &Delivery) -> Seen {
        self.counts.deliveries += 1;
        let known = delivery
            .number
            .filter(|number| self.tasks.get(*number as usize).is_some_and(|task| task.has(Entry::INVOKED)));
        let Some(number) = known else {
            self.found.phantom += 1;
            self.report(format_args!("never pushed: {delivery:?}"));
            return Seen::First;
        };
        if let Some(id) = delivery.id {
            self.note_id(number, id);
        }
        let before = self.tasks[number as usize];
        self.tasks[number as usize].set(Entry::DELIVERED);
        if before.has(Entry::FINISHED) {
            self.deliver_finished(number, before, delivery);
        } else {
            self.deliver_unfinished(number, before, delivery);
        }
        if before.has(Entry::DELIVERED) {
            self.counts.redelivered += 1;
            return Seen::Again;
        }
        Seen::First
    }

    /// Records the delivery of a finished task, which is legal if it was in flight when the finish was confirmed to
    /// another client.
    fn deliver_finished(&mut self, number: u64, task: Entry, delivery: &Delivery) {
        if !task.has(Entry::TIMED) || self.holds.was_finished_before(number, delivery.asked) {
            self.found.resurrected += 1;
            self.report(format_args!("{number} was finished before: {delivery:?}"));
        }
    }

    fn deliver_unfinished(&mut self, number: u64, task: Entry, delivery: &Delivery) {
        let Delivery { asked, received, lease, .. } = *delivery;
        let entry = &mut self.tasks[number as usize];
        entry.set(if lease.is_some() { Entry::TIMED } else { Entry::HELD });
        let until = lease.map_or(Time::NEVER, |lease| asked.after(lease).before(EPSILON));
        // Without times the flag suffices.
        let hold = entry.has(Entry::TIMED).then_some(Hold { asked, received, until });
        let overlapped = hold.and_then(|hold| self.holds.add(number, hold));
        if overlapped.is_some() || task.has(Entry::HELD) {
            self.found.double_held += 1;
            self.report(format_args!("{number} was held, {overlapped:?}: {delivery:?}"));
        }
    }

    /// Other clients may hold the task from now on: it is about to be returned or recovered, or its worker to be
    /// declared lost.
    pub fn release(&mut self, number: u64, at: Time) {
        if let Some(task) = self.tasks.get_mut(number as usize) {
            task.clear(Entry::HELD);
            // A finish by the former holder and the next delivery can cross now.
            task.set(Entry::TIMED);
            self.holds.release(number, at);
        }
    }

    /// No client certainly holds a task from now on, as after a crash of a queue that does not promise to keep leases.
    /// No operation may be in progress.
    pub fn release_all(&mut self) {
        self.tasks.iter_mut().for_each(|task| task.clear(Entry::HELD));
        self.holds.release_all();
    }

    /// A finish of a task is about to be sent. If no completion follows, its outcome is unknown.
    pub fn invoke_finish(&mut self, number: u64) {
        if let Some(task) = self.tasks.get_mut(number as usize) {
            task.open_finish();
        }
    }

    /// A finish completed; `at` is when its reply was received.
    pub fn complete_finish(&mut self, number: u64, outcome: Outcome, at: Time) {
        let Some(task) = self.tasks.get_mut(number as usize) else { return };
        let before = *task;
        match outcome {
            Outcome::Ok => {
                task.close_finish();
                task.set(Entry::FINISHED);
                self.note_finished(number, before, at);
            }
            Outcome::Failed => task.close_finish(),
            Outcome::Unknown => {}
        }
    }

    /// A finish by the receipt of `own`, which was sent at `sent`, is about to be recorded as confirmed: that delivery
    /// must have been the current one.
    pub fn check_receipt(&mut self, own: &Delivery, sent: Time) {
        let later = own.number.and_then(|number| self.holds.later(number, own.received, sent));
        if let Some(later) = later {
            self.found.stale += 1;
            self.report(format_args!("{own:?} was finished by its receipt at {sent}, after {later:?}"));
        }
    }

    /// A finish was refused: the client does not hold the task. `at` is when the reply was received.
    pub fn deny_finish(&mut self, number: u64, at: Time) {
        let Some(task) = self.tasks.get(number as usize).copied() else { return };
        let is_held = task.has(Entry::HELD) || self.holds.is_certain(number, at);
        // Another finish of the same task may have succeeded, with a lost reply.
        if is_held && task.open_finishes() == 1 && !task.has(Entry::FINISHED) {
            self.found.denied += 1;
            self.report(format_args!("{number} was held, and its finish refused at {at}"));
        }
        self.complete_finish(number, Outcome::Failed, at);
    }

    fn note_finished(&mut self, number: u64, before: Entry, at: Time) {
        if before.has(Entry::FINISHED) {
            self.found.finished_twice += 1;
            self.report(format_args!("{number} was finished again at {at}"));
            return;
        }
        self.counts.finished += 1;
        if before.has(Entry::TIMED)
            && let Some(hold) = self.holds.finish(number, at)
        {
            self.found.resurrected += 1;
            self.report(format_args!("{number} was finished at {at}, before {hold:?}"));
        }
    }

    /// The counts so far.
    pub fn counts(&self) -> Counts {
        self.counts
    }

    /// The number of invoked tasks, confirmed or not.
    pub fn tasks(&self) -> u64 {
        self.tasks.len() as u64
    }

    /// The number of tasks that were delivered although their push was not confirmed.
    pub fn executed_unconfirmed(&self) -> u64 {
        let is_so = |task: &&Entry| task.has(Entry::DELIVERED) && !task.has(Entry::CONFIRMED);
        self.tasks.iter().filter(is_so).count() as u64
    }

    /// The findings, when no operation is in progress and the queue reports that it still has `left` tasks.
    pub fn findings(&self, left: u64) -> Findings {
        let must_be_left = self.tasks.iter().filter(|task| task.must_be_left()).count() as u64;
        let torn = self.unknown.iter().filter(|push| left == 0 && self.is_torn(**push)).count() as u64;
        let mut ids: Vec<u64> = self.ids.iter().copied().filter(|id| *id != 0).collect();
        ids.sort_unstable();
        let repeated = ids.windows(2).filter(|pair| pair[0] == pair[1]).count() as u64;
        let lost = must_be_left.saturating_sub(left);
        Findings { lost, torn, repeated_ids: self.found.repeated_ids + repeated, ..self.found }
    }

    /// Once the queue is empty, either all tasks of a push must have been delivered, or none.
    fn is_torn(&self, push: Push) -> bool {
        let seen = self.tasks[range(push)].iter().filter(|task| task.has(Entry::DELIVERED)).count() as u64;
        seen != 0 && seen != push.count
    }

    fn report(&mut self, words: fmt::Arguments<'_>) {
        if self.examples.len() < EXAMPLES_MAX {
            self.examples.push(words.to_string());
        }
    }
}

/// A description with the numbers of some lost tasks and the first of the other findings.
impl fmt::Display for History {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Counts { pushes, confirmed, failed, unknown, deliveries, redelivered, finished } = self.counts;
        write!(
            f,
            "{confirmed} tasks in {pushes} pushes confirmed, {failed} failed, {unknown} unknown; {deliveries} deliveries, \
             {redelivered} of them again; {finished} finished"
        )?;
        let missing = self.tasks.iter().zip(0_u64..).filter(|(task, _)| task.must_be_left());
        let missing: Vec<u64> = missing.map(|(_, number)| number).take(EXAMPLES_MAX).collect();
        if !missing.is_empty() {
            write!(f, "\nnot finished: {missing:?}")?;
        }
        self.examples.iter().try_for_each(|example| write!(f, "\n{example}"))
    }
}

fn range(push: Push) -> Range<usize> {
    let Range { start, end } = push.numbers();
    start as usize..end as usize
}
