//! Estimates of reply sizes: a home that sends commands elsewhere ends a batch before their replies would fill its
//! memory.
//!
//! The estimate for a queue is the largest task seen in the last minute or two. A reply from an unseen queue counts
//! as a quarter of the budget, so that only a few commands are sent before its sizes are known. Another process may
//! have pushed larger tasks since; so the number of commands that request tasks is limited, too.

use std::hash::Hasher as _;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use sureq_core::Command;
use sureq_core::command::ReplyKind;
use sureq_core::fnv::Fnv;
use sureq_core::limits;

/// The expected bytes of all replies to a batch. A single command may ask for more.
pub const BATCH_REPLY_BYTES: usize = limits::OUTPUT_BYTES_MAX;

/// The expected bytes of a reply from a queue that was not seen before.
const UNSEEN_BYTES: usize = BATCH_REPLY_BYTES / 4;

/// The approximate bytes of a task in a reply besides its payload.
const TASK_BYTES: usize = 128;

/// The approximate bytes of an id, a receipt or an index in a reply.
const ID_BYTES: usize = 32;

/// The approximate bytes of any other reply.
const REPLY_BYTES: usize = 256;

/// The most commands with tasks in their replies that are sent at once, however small those are expected to be.
const TASK_COMMANDS_MAX: usize = 32;

/// For how long a size is remembered at least; at most it is twice as long.
const REMEMBERED: Duration = Duration::from_secs(60);

/// The number of remembered sizes. Queues with the same index share one.
const PLACES: u64 = 1 << 10;

/// The bytes of the largest task seen of each queue, with overhead; 0 if none was seen.
type Largest = Box<[AtomicU32]>;

/// The sizes of tasks that were seen lately, by the queues they were asked of.
#[derive(Debug)]
pub struct ReplySizes {
    /// Sizes seen in the current period, and in the one before it.
    largest: Largest,
    largest_before: Largest,
    began: Instant,
    /// The number of periods before this one.
    period: AtomicU64,
}

/// The index under which the sizes of a queue's tasks are remembered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SizePlace(usize);

impl Default for ReplySizes {
    fn default() -> Self {
        let none = || (0..PLACES).map(|_| AtomicU32::new(0)).collect();
        Self { largest: none(), largest_before: none(), began: sureq_sync::now(), period: AtomicU64::new(0) }
    }
}

impl SizePlace {
    /// The place of a command whose reply carries tasks.
    pub fn of(command: &Command<'_>) -> Option<Self> {
        match command.reply_kind() {
            ReplyKind::Popped(pop) => Some(Self::of_queues(pop.queues)),
            ReplyKind::Recovered { queue, .. } | ReplyKind::Inspected { queue, .. } => {
                Some(Self::of_queues(&[queue]))
            }
            ReplyKind::Ids(_)
            | ReplyKind::Added
            | ReplyKind::Acked(_)
            | ReplyKind::Outcome
            | ReplyKind::CountOrOk
            | ReplyKind::Info
            | ReplyKind::Settings
            | ReplyKind::Explained
            | ReplyKind::Queues { .. }
            | ReplyKind::Started(_)
            | ReplyKind::Receipts
            | ReplyKind::Workers => None,
        }
    }

    fn of_queues(queues: &[&[u8]]) -> Self {
        let mut hasher = Fnv::default();
        for queue in queues {
            hasher.write(queue);
        }
        let hash = hasher.finish();
        Self(((hash ^ (hash >> 32)) % PLACES) as usize)
    }
}

impl ReplySizes {
    /// The number of these commands to send at once: at least the first, and further ones while their replies fit the
    /// budget.
    pub fn fit(&self, commands: &[Command<'_>]) -> usize {
        let (mut left, mut asking) = (BATCH_REPLY_BYTES, 0);
        for (n, command) in commands.iter().enumerate() {
            asking += usize::from(SizePlace::of(command).is_some());
            if asking > TASK_COMMANDS_MAX {
                return n;
            }
            match left.checked_sub(self.expected_bytes(command)) {
                Some(less) => left = less,
                None => return n.max(1),
            }
        }
        commands.len()
    }

    /// Notes how large the payloads of a reply were.
    pub fn learn(&self, place: SizePlace, payloads: impl Iterator<Item = usize>) {
        let period = sureq_sync::now().duration_since(self.began).as_secs() / REMEMBERED.as_secs();
        if self.period.swap(period, Ordering::Relaxed) != period {
            self.begin_period();
        }
        let bytes = payloads.max().map_or(TASK_BYTES, |bytes| bytes + TASK_BYTES);
        self.largest[place.0].fetch_max(u32::try_from(bytes).unwrap_or(u32::MAX), Ordering::Relaxed);
    }

    /// Forgets sizes that were seen before the last period.
    fn begin_period(&self) {
        for (now, before) in self.largest.iter().zip(&self.largest_before) {
            before.store(now.swap(0, Ordering::Relaxed), Ordering::Relaxed);
        }
    }

    /// Notes payloads that are pushed to a queue. A queue whose other tasks were not seen stays unseen.
    pub fn note_pushed(&self, command: &Command<'_>) {
        let (queue, largest) = match command {
            Command::Push { queue, payloads } => (*queue, payloads.iter().map(|payload| payload.len()).max()),
            Command::Add(add) => (add.queue, Some(add.payload.len())),
            _ => return,
        };
        // Small payloads make no difference to a batch.
        if let Some(largest) = largest.filter(|&largest| largest >= BATCH_REPLY_BYTES >> 10) {
            let place = SizePlace::of_queues(&[queue]);
            if self.get(place) > 0 {
                self.learn(place, std::iter::once(largest));
            }
        }
    }

    fn get(&self, place: SizePlace) -> usize {
        let both = [&self.largest, &self.largest_before];
        both.into_iter().map(|largest| largest[place.0].load(Ordering::Relaxed)).max().unwrap_or(0) as usize
    }

    /// The expected bytes of the reply to a command.
    pub fn expected_bytes(&self, command: &Command<'_>) -> usize {
        match command.reply_kind() {
            ReplyKind::Ids(count) => REPLY_BYTES + count * ID_BYTES,
            ReplyKind::Acked(tasks) => REPLY_BYTES + tasks.list.len() * ID_BYTES,
            ReplyKind::Popped(pop) => self.tasks_bytes(command, pop.count),
            ReplyKind::Recovered { count, .. } | ReplyKind::Inspected { count, .. } => {
                self.tasks_bytes(command, count)
            }
            ReplyKind::Queues { count } => (count as usize).saturating_mul(TASK_BYTES).min(UNSEEN_BYTES),
            ReplyKind::Receipts | ReplyKind::Workers => UNSEEN_BYTES / 16,
            ReplyKind::Added
            | ReplyKind::Outcome
            | ReplyKind::CountOrOk
            | ReplyKind::Info
            | ReplyKind::Settings
            | ReplyKind::Explained
            | ReplyKind::Started(_) => REPLY_BYTES,
        }
    }

    fn tasks_bytes(&self, command: &Command<'_>, count: u32) -> usize {
        match SizePlace::of(command).map(|place| self.get(place)) {
            None | Some(0) => UNSEEN_BYTES,
            Some(each) => each.saturating_mul(count as usize).min(limits::REPLY_BYTES_MAX),
        }
    }
}

#[cfg(test)]
mod tests {
    use sureq_core::command::{Pop, View};

    use super::*;

    const QUEUE: &[&[u8]] = &[b"q"];

    fn pop(count: u32) -> Command<'static> {
        Command::Pop(Pop::plain(QUEUE, count))
    }

    fn inspect() -> Command<'static> {
        Command::Inspect { queue: b"q", view: View::Ready, start: 0, count: 1 }
    }

    fn place() -> SizePlace {
        SizePlace::of(&inspect()).expect("its reply carries tasks")
    }

    #[test]
    fn an_unseen_queue_is_sent_only_a_few_commands_at_once() {
        let sizes = ReplySizes::default();
        assert_eq!(sizes.fit(&[pop(1); 100]), 4);
        assert_eq!(sizes.fit(&[]), 0);
    }

    #[test]
    fn requests_for_small_tasks_are_batched_and_those_for_large_ones_are_not() {
        let sizes = ReplySizes::default();
        sizes.learn(place(), [100].into_iter());
        let push = Command::Push { queue: b"q", payloads: &[b"x"] };
        assert_eq!(sizes.fit(&vec![push; 2_000]), 2_000);
        assert_eq!(sizes.fit(&[pop(1), push].repeat(100)), 2 * TASK_COMMANDS_MAX);
        sizes.learn(place(), [8 << 20].into_iter());
        assert_eq!((sizes.fit(&[pop(1); 30]), sizes.fit(&[inspect(); 30])), (1, 1));
        // Smaller tasks do not lower the estimate. It is forgotten after two periods.
        for _ in 0..200 {
            sizes.learn(place(), [100].into_iter());
        }
        assert_eq!(sizes.fit(&[inspect(); 30]), 1);
        sizes.begin_period();
        sizes.learn(place(), [100].into_iter());
        assert_eq!(sizes.fit(&[inspect(); 30]), 1);
        sizes.begin_period();
        assert_eq!(sizes.fit(&[inspect(); 30]), 30);
        // The sizes of this home's own pushes count too, not only those in replies.
        sizes.note_pushed(&Command::Push { queue: b"q", payloads: &[&vec![0; 3 << 20]] });
        assert_eq!(sizes.fit(&[inspect(); 30]), 2);
    }

    #[test]
    fn the_estimate_of_a_pop_grows_with_its_count() {
        let sizes = ReplySizes::default();
        sizes.learn(place(), std::iter::empty());
        assert_eq!(sizes.fit(&[pop(10_000); 30]), BATCH_REPLY_BYTES / (10_000 * TASK_BYTES));
        assert_eq!(sizes.fit(&[pop(u32::MAX); 3]), 1);
    }
}
