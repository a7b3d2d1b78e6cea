//! Queries that change nothing.

use alloc::boxed::Box;
use alloc::vec::Vec;
use core::ops::Deref;

use super::Queue;
use super::packed::{Entry, ReadAheadSpan};
use super::ready::ReadyTask;
use crate::command::View;
use crate::event::{Fields, FullTask, QueueNo};
use crate::id::TaskId;
use crate::limits;
use crate::reply::{Info, More, TaskView};
use crate::task::{Body, Name, OrderKey, Task, TaskState};
use crate::time::{LogTime, Now, WallTime};

/// A task to look at: its record, or the record that a packed task would have.
pub(super) enum Look<'q, B> {
    Record(&'q Task<B>),
    Packed(Task<B>),
}

impl<B> Deref for Look<'_, B> {
    type Target = Task<B>;

    fn deref(&self) -> &Task<B> {
        match self {
            Self::Record(task) => task,
            Self::Packed(task) => task,
        }
    }
}

impl<B> Entry<B> {
    /// The record that it would have.
    pub(super) fn into_task(self) -> Task<B> {
        let state = self.due.map_or(TaskState::Ready(OrderKey::pushed(self.id)), TaskState::Delayed);
        Task::new(self.id, self.body, self.pushed, state)
    }
}

impl<B: Body> Queue<B> {
    /// A task, packed or not.
    pub(super) fn look(&self, id: TaskId) -> Option<Look<'_, B>> {
        if let Some(task) = self.table.get(id) {
            return Some(Look::Record(task));
        }
        let packed = self.ready.packed.find(id).or_else(|| self.packed_delayed.find(id));
        packed.map(|entry| Look::Packed(entry.into_task()))
    }

    /// The record of a task, or the one that it would have.
    pub(crate) fn record(&self, id: TaskId) -> Option<Task<B>> {
        self.look(id).map(|look| match look {
            Look::Record(task) => task.clone(),
            Look::Packed(task) => task,
        })
    }

    pub(crate) fn body_of(&self, id: TaskId) -> Option<B> {
        self.look(id).map(|task| task.body.clone())
    }

    /// The tasks with this payload, as far as their handles can compare it.
    pub(crate) fn ids_of_payload(&self, payload: &[u8]) -> Vec<TaskId> {
        let records = self.table.iter().map(|task| (task.id, task.body.is(payload)));
        let packed = self.ready.packed.iter().chain(self.packed_delayed.iter());
        let all = records.chain(packed.map(|entry| (entry.id, entry.body.is(payload))));
        let mut ids: Vec<TaskId> = all.filter(|(_, is)| *is == Some(true)).map(|(id, _)| id).collect();
        ids.sort_unstable();
        ids
    }

    /// Visits the body of each task.
    pub fn bodies(&self, visit: &mut dyn FnMut(&B)) {
        self.table.iter().for_each(|task| visit(&task.body));
        self.ready.packed.iter().chain(self.packed_delayed.iter()).for_each(|entry| visit(&entry.body));
    }

    /// Counts, ages and settings.
    pub fn info(&self, now: Now) -> Info {
        let [ready, delayed, leased, dead] = self.counts();
        let head = self.ready.head().map(|task| match task {
            ReadyTask::Packed(plain) => plain.pushed,
            ReadyTask::Indexed(id) => self.table.get(id).map_or(now.log, |task| task.pushed),
        });
        Info {
            ready,
            delayed,
            leased,
            dead,
            waiting_bytes: self.waiting_bytes,
            oldest_ms: head.map_or(0, |pushed| now.log.since(pushed)),
            paused: self.paused,
            pushed: self.totals.pushed,
            finished: self.totals.finished,
            pushed_of_late: self.rates.pushed.in_window(now.log),
            finished_of_late: self.rates.finished.in_window(now.log),
            workers: 0,
            settings: self.settings.clone(),
            lengths_only: false,
        }
    }

    /// The bodies of ready tasks in the order of delivery, from position `start` on.
    pub fn upcoming_bodies(&self, start: usize) -> impl Iterator<Item = B> {
        self.ready.iter_from(start).filter_map(|task| match task {
            ReadyTask::Packed(plain) => Some(plain.body),
            ReadyTask::Indexed(id) => self.table.get(id).map(|task| task.body.clone()),
        })
    }

    /// The same as spans of many tasks, which saves most of the decoding.
    pub fn read_ahead_spans(&self, start: usize) -> impl Iterator<Item = ReadAheadSpan<B>> {
        let plain = self.ready.read_ahead_spans(start);
        let mixed = plain.is_none().then(|| self.upcoming_bodies(start).map(ReadAheadSpan::Task));
        plain.into_iter().flatten().chain(mixed.into_iter().flatten())
    }

    /// Shows tasks of one state from `start` on; a negative start counts from the end.
    pub fn inspect(&self, view: View, start: i64, count: u32, now: Now, out: &mut Vec<TaskView<B>>) {
        let [ready, delayed, leased, dead] = self.counts();
        let len = match view {
            // Revived tasks that have not been moved yet have no position.
            View::Ready => ready.min(self.ready.len() as u64),
            View::Delayed => delayed,
            View::Leased => leased,
            View::Dead => dead,
        };
        let start = if start < 0 { len.checked_add_signed(start) } else { Some(start.unsigned_abs()) };
        let Some(start) = start.filter(|&start| start < len) else { return };
        let (start, count) = (start as usize, count.min(limits::REPLY_TASKS_MAX) as usize);
        match view {
            View::Ready => {
                let line = self.ready.iter_from(start).map(|task| match task {
                    ReadyTask::Packed(plain) => Some(plain_view(plain, now)),
                    ReadyTask::Indexed(id) => self.view(id, now),
                });
                collect(line.flatten().take(count), out);
            }
            View::Delayed => {
                // There is an index for each clock. The two are merged by their milliseconds.
                let by_log = self.delayed.counted();
                let is_before = |place, (WallTime(at), id)| place + by_log.before((LogTime(at), id)) < start;
                let delayed_wall = self.delayed_wall.counted().partition(is_before);
                let by_log = self.delayed.iter_from(start - delayed_wall);
                let mut by_log = by_log.map(|&(at, id)| (at.0, id)).peekable();
                let by_wall = self.delayed_wall.iter_from(delayed_wall);
                let mut by_wall = by_wall.map(|&(at, id)| (at.0, id)).peekable();
                let due = core::iter::from_fn(|| match (by_log.peek(), by_wall.peek()) {
                    (Some(log), Some(wall)) if wall < log => by_wall.next(),
                    (Some(_), _) => by_log.next(),
                    (None, _) => by_wall.next(),
                });
                collect(due.take(count).filter_map(|(_, id)| self.view(id, now)), out);
            }
            View::Leased => {
                let tasks = self.deliveries.walk_from(&self.table, start).take(count);
                collect(tasks.filter_map(|task| self.view(task.id, now)), out);
            }
            View::Dead => {
                let dead = self.deaths.iter_from(start).take(count);
                collect(dead.filter_map(|&(_, id)| self.view(id, now)), out);
            }
        }
    }

    /// The view of a task in INSPECT.
    fn view(&self, id: TaskId, now: Now) -> Option<TaskView<B>> {
        let task = self.look(id)?;
        let at = match &task.state {
            TaskState::Leased(lease) => lease.start(),
            TaskState::Delayed(due) => LogTime(due.raw()),
            TaskState::Dead(at) => *at,
            TaskState::Ready(_) => task.pushed,
        };
        Some(TaskView {
            queue: 0,
            id,
            body: task.body.clone(),
            deliveries: task.deliveries,
            incarnation: task.incarnation,
            at,
            elapsed_ms: now.log.since(at),
            more: matches!(task.state, TaskState::Dead(_)).then(|| Box::new(self.more(id))),
            foreign_id: None,
        })
    }

    /// The details of a task.
    pub(super) fn more(&self, id: TaskId) -> More {
        let Some(task) = self.look(id) else {
            return More { tries_max: self.settings.tries(), ..More::default() };
        };
        let name = match task.name() {
            Some(Name::Bytes(name)) => Some(name.clone()),
            _ => None,
        };
        let reason = task.extras.as_ref().and_then(|extras| extras.reason.clone());
        let tries_max = self.tries_max(&task);
        More { name, tries: task.tries(), tries_max, pushed: task.pushed, reason }
    }

    /// Visits each task as a whole, in an order in which an import yields the same queue.
    pub fn export(&self, payload: &mut dyn FnMut(&B) -> Box<[u8]>, visit: &mut dyn FnMut(&FullTask<'_>)) {
        let mut export = |task: &Task<B>| visit(&full(self.no, task, &payload(&task.body)));
        for task in self.ready.iter() {
            match task {
                ReadyTask::Packed(plain) => export(&plain.into_task()),
                ReadyTask::Indexed(id) => _ = self.table.get(id).map(&mut export),
            }
        }
        self.packed_delayed.iter().for_each(|entry| export(&entry.into_task()));
        let delayed =
            self.delayed.iter().map(|&(_, id)| id).chain(self.delayed_wall.iter().map(|&(_, id)| id));
        delayed.filter_map(|id| self.table.get(id)).for_each(&mut export);
        let listed = self.table.walk(&self.leased).chain(self.reviving()).chain(self.table.walk(&self.dead));
        listed.for_each(export);
    }
}

/// The task with its payload, in the form of events.
pub(crate) fn full<'a, B>(queue: QueueNo, task: &'a Task<B>, payload: &'a [u8]) -> FullTask<'a> {
    let extras = task.extras.as_deref();
    let fields = Fields {
        due: None,
        priority: task.priority,
        name: task.name().map(Name::as_ref),
        tries_max: extras.and_then(|extras| extras.tries_max),
        backoff_ms: extras.and_then(|extras| extras.backoff_ms),
        expires: extras.and_then(|extras| extras.expires),
        trace: extras.and_then(|extras| extras.trace.as_deref()),
    };
    FullTask {
        queue,
        id: task.id,
        payload,
        pushed: task.pushed,
        state: task.state.clone(),
        stray_neg_priority: None,
        incarnation: task.incarnation,
        deliveries: task.deliveries,
        tries: task.tries(),
        cancelled: task.cancelled,
        late_ack: task.late_ack,
        fields,
        reason: extras.and_then(|extras| extras.reason.as_deref()),
        past: extras.map_or(&[], |extras| &extras.past),
    }
}

fn plain_view<B>(plain: Entry<B>, now: Now) -> TaskView<B> {
    let Entry { id, pushed, body, .. } = plain;
    let elapsed_ms = now.log.since(pushed);
    TaskView {
        queue: 0,
        id,
        body,
        deliveries: 0,
        incarnation: 0,
        at: pushed,
        elapsed_ms,
        more: None,
        foreign_id: None,
    }
}

/// Collects tasks as long as their payloads fit a reply.
fn collect<B: Body>(views: impl Iterator<Item = TaskView<B>>, out: &mut Vec<TaskView<B>>) {
    let (first, mut bytes) = (out.len(), 0);
    for view in views {
        bytes += view.body.len();
        if bytes > limits::REPLY_BYTES_MAX && out.len() > first {
            break;
        }
        out.push(view);
    }
}
