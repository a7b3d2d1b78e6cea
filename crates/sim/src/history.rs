//! The replies to all clients, and the contradictions between them.
//!
//! Every task has a number, with which its payload begins. A client records each command before it sends it, and the
//! reply if one arrives; without a reply, the command may have happened or not. A command was executed at some moment
//! between its sending and the arrival of its reply; nothing else is assumed about time.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use sureq_core::TaskId;
use sureq_sync::now;

use crate::holder::ENDLESS;
use crate::liveness::late_max;
use crate::plan::{Faults, Plan};

/// Log time counts whole milliseconds, so a command may count as up to one millisecond earlier than it was.
const RESOLUTION: Duration = Duration::from_millis(1);

/// How many floods of tasks a run has at most.
const FLOODS_MAX: u32 = 2;

/// The knowledge about one task.
#[derive(Debug)]
struct Task {
    queue: usize,
    bytes: usize,
    /// Its id, once its push was confirmed.
    id: Option<String>,
    removal: Removal,
    /// The number of commands that may have removed it.
    removers: u32,
    /// It must not be delivered before this.
    not_before: Instant,
    /// The number of its last known delivery.
    deliveries: u32,
    /// The number of commands in progress that may change its lease, and when the last one ended.
    takings: u32,
    taken_at: Option<Instant>,
    /// When its push was sent, and when it was confirmed.
    began: Instant,
    confirmed: Option<Instant>,
    priority: i8,
    /// It is ready from its push until its first delivery, if it is not removed.
    is_plain: bool,
}

/// The deliveries of one queue and priority, as they became known.
#[derive(Debug, Default)]
struct Lane {
    /// First deliveries of plain tasks: when the reply came, and the largest id up to then.
    plain: Vec<(Instant, TaskId)>,
    /// All deliveries: when the reply came, and when the last one of them was requested.
    all: Vec<(Instant, Instant)>,
}

/// A time from one moment to another.
type Span = (Instant, Instant);

/// The last entry of a list that is sorted by time whose time is before this.
fn last_before<T: Copy>(list: &[(Instant, T)], time: Instant) -> Option<T> {
    let at = list.partition_point(|(came, _)| *came < time);
    Some(list.get(at.checked_sub(1)?)?.1)
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Removal {
    /// No reply has confirmed that it is gone.
    None,
    /// It is gone since then.
    Done(Instant),
}

/// The replies to all clients.
#[derive(Debug, Default)]
pub(crate) struct History {
    tasks: BTreeMap<u64, Task>,
    receipts: BTreeSet<Vec<u8>>,
    /// All ids that were confirmed, also of tasks that are gone.
    ids: BTreeSet<String>,
    /// The number of purges of each queue in progress.
    purges: BTreeMap<usize, usize>,
    /// Queues that are certainly paused, and since when.
    pauses: BTreeMap<usize, Instant>,
    /// When each queue was last resumed, and the number of resumes in progress.
    resumes: BTreeMap<usize, (Option<Instant>, u32)>,
    /// Tasks that die go to another queue.
    has_dead_letters: bool,
    /// Tasks that were not delivered stay ready in their place.
    has_order: bool,
    lanes: BTreeMap<(usize, i8), Lane>,
    /// The deliveries so far in the reply that is being recorded: the largest id of a plain task.
    in_reply: BTreeMap<(usize, i8), Option<TaskId>>,
    /// If set, a waiting client must get a ready task after this time at the latest.
    late_max: Option<Duration>,
    /// When clients certainly waited for a task of a queue, and when plain tasks were certainly ready.
    waits: BTreeMap<usize, Vec<Span>>,
    ready: BTreeMap<usize, Vec<(Span, u64)>>,
    /// Queues that have been paused.
    paused_once: BTreeSet<usize>,
    floods: u32,
    last: u64,
    pub(crate) commands: u64,
    pub(crate) findings: Vec<String>,
}

/// A delivery that a client has received.
#[derive(Clone, Debug)]
pub(crate) struct Delivery {
    pub(crate) number: u64,
    pub(crate) queue: usize,
    pub(crate) receipt: Vec<u8>,
    /// Which delivery of the task it is.
    pub(crate) nth: u32,
}

impl History {
    /// An empty history of a run with this plan.
    pub(crate) fn new(plan: &Plan) -> Self {
        let Plan { config, faults, .. } = plan;
        let has_dead_letters = config.dead_letter;
        // An expired task is dead, and goes to the back when it is revived.
        let has_order = config.ttl_ms == 0 && !has_dead_letters;
        let is_prompt = has_order && config.max_leased == 0 && *faults == Faults::default();
        let late_max = is_prompt.then(|| late_max(plan));
        Self { has_dead_letters, has_order, late_max, ..Self::default() }
    }

    /// Whether there may be another flood of tasks. Each takes as long as thousands of other commands.
    pub(crate) const fn begin_flood(&mut self) -> bool {
        self.floods += 1;
        self.floods <= FLOODS_MAX
    }

    /// A task is about to be pushed.
    pub(crate) fn begin_push(&mut self, queue: usize, bytes: usize, not_before: Instant) -> u64 {
        self.last += 1;
        let is_of = |purged: usize| purged == queue || self.has_dead_letters && queue < purged;
        let is_purged = self.purges.iter().any(|(&purged, &purges)| purges > 0 && is_of(purged));
        let (removal, removers) = (Removal::None, u32::from(is_purged));
        let task = Task {
            queue,
            bytes,
            id: None,
            removal,
            removers,
            not_before,
            deliveries: 0,
            takings: 0,
            taken_at: None,
            began: now(),
            confirmed: None,
            priority: 0,
            is_plain: true,
        };
        self.tasks.insert(self.last, task);
        self.last
    }

    /// A push was confirmed.
    pub(crate) fn pushed(&mut self, number: u64, id: String) {
        if !self.ids.insert(id.clone()) {
            self.findings.push(format!("task {number} got the id {id} of another task"));
        }
        let task = self.task(number);
        (task.id, task.confirmed) = (Some(id), Some(now()));
    }

    /// A task is about to be added that has another place in its queue than if it was pushed.
    pub(crate) fn place(&mut self, number: u64, priority: i8, is_plain: bool) {
        let task = self.task(number);
        (task.priority, task.is_plain) = (priority, is_plain);
    }

    /// A client is about to bury a task, which may then move to another queue.
    pub(crate) fn begin_burial(&mut self, number: u64, to: Option<usize>) {
        let task = self.task(number);
        task.is_plain = false;
        task.queue = to.unwrap_or(task.queue);
    }

    /// A push was refused, so the task must never appear.
    pub(crate) fn refused(&mut self, number: u64) {
        self.tasks.remove(&number);
    }

    /// The reply to a pop is recorded next, delivery by delivery.
    pub(crate) fn begin_reply(&mut self) {
        self.in_reply.clear();
    }

    /// A task was delivered. Returns none for an unknown task.
    pub(crate) fn delivered(
        &mut self,
        payload: &[u8],
        queue: usize,
        (id, receipt): (TaskId, Vec<u8>),
        nth: u32,
        (asked, came, until): (Instant, Instant, Instant),
    ) -> Option<Delivery> {
        let number = number_of(payload);
        let Some(task) = number.and_then(|number| self.tasks.get_mut(&number)) else {
            self.findings.push(format!("a task was delivered but never pushed: {} bytes", payload.len()));
            return None;
        };
        let number = number?;
        let is_there = task.queue == queue || self.has_dead_letters;
        if !is_there || task.bytes != payload.len() || !is_whole(number, payload) {
            self.findings.push(format!("task {number} was delivered with another queue or payload"));
        }
        task.queue = queue;
        match task.removal {
            Removal::Done(since) if asked > since => {
                self.findings.push(format!("task {number} was delivered after its finish"));
            }
            _ => {}
        }
        // Clients record deliveries in any order, so a delivery before the last one proves nothing.
        let is_last = nth > task.deliveries;
        if is_last && came + RESOLUTION <= task.not_before {
            let early = task.not_before - came;
            self.findings.push(format!("task {number} was delivered {early:?} early, or while leased"));
        }
        if !self.receipts.insert(receipt.clone()) {
            self.findings.push(format!("task {number} was delivered with a receipt of an earlier delivery"));
        }
        // Its lease began at the delivery, and commands that were in progress at the same time may have changed it.
        if is_last {
            let is_certain = task.takings == 0 && task.taken_at.is_none_or(|at| at < asked);
            task.not_before = if is_certain { until } else { asked };
            task.deliveries = nth;
        }
        if self.has_order {
            self.check_order(number, id, nth == 1, (asked, came));
        }
        Some(Delivery { number, queue, receipt, nth })
    }

    /// Reports a delivery that certainly happened before that of a task which was ready and should have come first: one
    /// with a smaller id and the same priority, or with a larger priority.
    fn check_order(&mut self, number: u64, id: TaskId, is_first: bool, (asked, came): Span) {
        let Task { queue, priority, confirmed, is_plain, .. } = self.tasks[&number];
        let is_plain = is_plain && is_first;
        let lower = (queue, i8::MIN)..(queue, priority);
        if is_plain {
            let known = self.lanes.get(&(queue, priority)).and_then(|lane| last_before(&lane.plain, asked));
            let beside = self.in_reply.get(&(queue, priority)).copied().flatten();
            if known.max(beside) > Some(id) {
                self.findings.push(format!("task {number} was delivered after one that was pushed later"));
            }
            let requested = |lane: &Lane| last_before(&lane.all, asked);
            let known = self.lanes.range(lower.clone()).filter_map(|(_, lane)| requested(lane)).max();
            let beside = self.in_reply.range(lower).next().map(|_| asked);
            if let Some(confirmed) = confirmed {
                if known.max(beside) > Some(confirmed) {
                    let finding = format!("task {number} was delivered after one with a smaller priority");
                    self.findings.push(finding);
                }
                if self.late_max.is_some_and(|late_max| asked > confirmed + late_max) {
                    self.ready.entry(queue).or_default().push(((confirmed, asked), number));
                }
            }
        }
        let beside = self.in_reply.entry((queue, priority)).or_default();
        *beside = (*beside).max(is_plain.then_some(id));
        let lane = self.lanes.entry((queue, priority)).or_default();
        if is_plain {
            let largest = lane.plain.last().map_or(id, |(_, last)| id.max(*last));
            lane.plain.push((came, largest));
        }
        let latest = lane.all.last().map_or(asked, |(_, last)| asked.max(*last));
        lane.all.push((came, latest));
    }

    /// A client certainly waited for a task of this queue from `since` to `until`.
    pub(crate) fn waited(&mut self, queue: usize, since: Instant, until: Instant) {
        if self.late_max.is_some_and(|late_max| until > since + late_max) {
            self.waits.entry(queue).or_default().push((since, until));
        }
    }

    /// Whether the push of a task is confirmed.
    pub(crate) fn is_confirmed(&self, number: u64) -> bool {
        self.tasks.get(&number).is_some_and(|task| task.confirmed.is_some())
    }

    /// When the push of a task was sent.
    pub(crate) fn began(&self, number: u64) -> Instant {
        self.tasks[&number].began
    }

    /// Reports clients that waited while a task was ready.
    pub(crate) fn settle_waits(&mut self) {
        let Some(late_max) = self.late_max else { return };
        for (queue, waits) in &self.waits {
            if self.paused_once.contains(queue) {
                continue;
            }
            for &((ready, taken), number) in self.ready.get(queue).into_iter().flatten() {
                let mut both = waits.iter().map(|&(since, until)| (since.max(ready), until.min(taken)));
                if let Some((from, to)) = both.find(|&(from, to)| to > from + late_max) {
                    let finding = format!("a client waited for {:?} beside task {number}", to - from);
                    self.findings.push(finding);
                }
            }
        }
    }

    /// A client is about to send a command that may allow another delivery after this time.
    pub(crate) fn begin_taking(&mut self, number: u64, now: Instant, time: Duration) {
        let task = self.task(number);
        task.not_before = task.not_before.min(now + time);
        task.takings += 1;
    }

    /// The command has ended, with or without effect.
    pub(crate) fn end_taking(&mut self, number: u64, now: Instant) {
        let task = self.task(number);
        task.takings -= 1;
        task.taken_at = Some(now);
    }

    /// The command was executed, so the task is not delivered before `at`, unless it has been delivered since, or
    /// other commands about it were in progress.
    pub(crate) fn end_taking_until(
        &mut self,
        delivery: &Delivery,
        asked: Instant,
        now: Instant,
        at: Instant,
    ) {
        let task = self.task(delivery.number);
        let is_alone = task.takings == 1 && task.taken_at.is_none_or(|taken| taken < asked);
        if is_alone && task.deliveries == delivery.nth {
            task.not_before = at;
        }
        self.end_taking(delivery.number, now);
    }

    /// The worker that holds the task certainly lives until `at`. The task may have been buried meanwhile, which the
    /// worker does not learn.
    pub(crate) fn is_held_until(&mut self, delivery: &Delivery, at: Instant) {
        let task = self.task(delivery.number);
        if task.takings == 0 && task.taken_at.is_none() && task.deliveries == delivery.nth {
            task.not_before = at;
        }
    }

    /// The clock was set or the store was opened again: tasks may be delivered at any time.
    pub(crate) fn forget_times(&mut self, now: Instant) {
        for task in self.tasks.values_mut() {
            task.not_before = task.not_before.min(now);
        }
    }

    /// All connections have ended, and their leases with them.
    pub(crate) fn end_connections(&mut self, now: Instant) {
        for task in self.tasks.values_mut() {
            if task.not_before > now + ENDLESS / 2 {
                task.not_before = now;
            }
        }
    }

    /// The store has crashed in a way that its durability level does not cover: confirmed tasks may be lost, and
    /// removed ones may be back.
    pub(crate) fn doubt_all(&mut self, now: Instant) {
        for task in self.tasks.values_mut() {
            task.removal = Removal::None;
            task.removers += 1;
            // If the crash undid a delivery, it was not ready for all the time before the next one.
            task.is_plain = false;
            // If the crash undid a delivery, the next one has the same number.
            task.deliveries = 0;
        }
        self.pauses.clear();
        self.lanes.clear();
        self.forget_times(now);
    }

    /// A client is about to pause a queue.
    pub(crate) fn begin_pause(&mut self, queue: usize) {
        self.paused_once.insert(queue);
    }

    /// A pause that was sent at `asked` is confirmed.
    pub(crate) fn paused(&mut self, queue: usize, asked: Instant, now: Instant) {
        let (last, under_way) = self.resumes.get(&queue).copied().unwrap_or_default();
        if under_way == 0 && last.is_none_or(|last| last < asked) {
            self.pauses.insert(queue, now);
        }
    }

    /// A client is about to resume a queue.
    pub(crate) fn begin_resume(&mut self, queue: usize) {
        self.pauses.remove(&queue);
        self.resumes.entry(queue).or_default().1 += 1;
    }

    /// The command has ended, with or without effect.
    pub(crate) fn end_resume(&mut self, queue: usize, now: Instant) {
        let (last, under_way) = self.resumes.entry(queue).or_default();
        (*last, *under_way) = (Some(now), *under_way - 1);
    }

    /// Whether the queue was paused before `asked` and has not been resumed since.
    pub(crate) fn is_paused_since(&self, queue: usize, asked: Instant) -> bool {
        self.pauses.get(&queue).is_some_and(|since| *since < asked)
    }

    /// A client is about to remove a task.
    pub(crate) fn begin_removal(&mut self, number: u64) {
        self.task(number).removers += 1;
    }

    /// According to its reply, a command did not remove the task.
    pub(crate) fn not_removed(&mut self, number: u64) {
        self.task(number).removers -= 1;
    }

    /// A task was removed.
    pub(crate) fn removed(&mut self, number: u64, now: Instant) {
        let task = self.task(number);
        if !matches!(task.removal, Removal::Done(_)) {
            task.removal = Removal::Done(now);
        }
    }

    /// A client is about to remove all tasks of a queue, including tasks that are pushed meanwhile.
    pub(crate) fn begin_purge(&mut self, queue: usize) {
        *self.purges.entry(queue).or_default() += 1;
        for number in self.of_queue(queue) {
            self.begin_removal(number);
        }
    }

    /// The command has ended, with or without effect.
    pub(crate) fn end_purge(&mut self, queue: usize) {
        *self.purges.entry(queue).or_default() -= 1;
    }

    /// The tasks that may be in a queue. With dead letters, tasks move to the next queue without a reply to any
    /// client.
    fn of_queue(&self, queue: usize) -> Vec<u64> {
        let is_of = |task: &Task| task.queue == queue || self.has_dead_letters && task.queue < queue;
        self.tasks.iter().filter(|(_, task)| is_of(task)).map(|(number, _)| *number).collect()
    }

    /// The confirmed tasks of a queue, gone or not. Empty with dead letters, which move tasks between queues.
    pub(crate) fn confirmed_of(&self, queue: usize) -> Vec<u64> {
        let is_of = |task: &Task| task.queue == queue && task.id.is_some() && !self.has_dead_letters;
        self.tasks.iter().filter(|(_, task)| is_of(task)).map(|(number, _)| *number).collect()
    }

    /// A task of this queue with a known id.
    pub(crate) fn any_of(&self, queue: usize, nth: usize) -> Option<(u64, String)> {
        let numbers = self.of_queue(queue);
        let number = *numbers.get(nth % numbers.len().max(1))?;
        Some((number, self.tasks[&number].id.clone()?))
    }

    /// Reports lost tasks in the end, when all queues are empty: those that were confirmed and never removed.
    pub(crate) fn settle(&mut self) {
        for (number, task) in &self.tasks {
            if task.id.is_some() && task.removal == Removal::None && task.removers == 0 {
                self.findings.push(format!("task {number} is lost: {task:?}"));
            }
        }
    }

    fn task(&mut self, number: u64) -> &mut Task {
        self.tasks.get_mut(&number).expect("only tasks that were begun are recorded")
    }
}

/// The payload of a task: its number, and bytes derived from it.
pub(crate) fn payload_of(number: u64, bytes: usize) -> Vec<u8> {
    let mut payload = number.to_le_bytes().to_vec();
    payload.extend((8..bytes.max(8)).map(|at| filler(number, at)));
    payload
}

const fn filler(number: u64, at: usize) -> u8 {
    (number.wrapping_mul(31).wrapping_add(at as u64 * 7)) as u8
}

fn number_of(payload: &[u8]) -> Option<u64> {
    Some(u64::from_le_bytes(payload.first_chunk::<8>()?.to_owned()))
}

fn is_whole(number: u64, payload: &[u8]) -> bool {
    payload.iter().enumerate().skip(8).all(|(at, &byte)| byte == filler(number, at))
}
