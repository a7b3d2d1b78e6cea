//! Looking without touching.

use alloc::boxed::Box;
use alloc::vec::Vec;

use super::Queue;
use super::ready::Standing;
use crate::command::View;
use crate::event::{Fields, FullTask};
use crate::id::TaskId;
use crate::limits;
use crate::reply::{Info, More, TaskView};
use crate::task::{Body, Name, Rank, State, Task};
use crate::time::{LogTime, Now};

impl<B: Body> Queue<B> {
    /// Counts, ages and settings.
    pub fn info(&self, now: Now) -> Info {
        let [ready, delayed, leased, dead] = self.counts();
        let head = self.ready.iter().next().map(|standing| match standing {
            Standing::Plain(plain) => plain.pushed,
            Standing::Placed(id) => self.table.get(id).map_or(now.log, |task| task.pushed),
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
            settings: self.settings.clone(),
        }
    }

    /// Shows tasks of one state from `start` on; a negative start counts from the end.
    pub fn inspect(&self, view: View, start: i64, count: u32, now: Now, out: &mut Vec<TaskView<B>>) {
        let [ready, delayed, leased, dead] = self.counts();
        let len = match view {
            View::Ready => ready,
            View::Delayed => delayed,
            View::Leased => leased,
            View::Dead => dead,
        };
        let start = if start < 0 { len.checked_add_signed(start) } else { Some(start.unsigned_abs()) };
        let Some(start) = start.filter(|&start| start < len) else { return };
        let (start, count) = (start as usize, count.min(limits::REPLY_TASKS_MAX) as usize);
        match view {
            View::Ready => {
                let line = self.ready.iter_from(start).map(|standing| match standing {
                    Standing::Plain(plain) => {
                        let body = plain.body().expect("tombstones do not stand in the line").clone();
                        plain_view(plain.id, body, plain.pushed, now)
                    }
                    Standing::Placed(id) => self.view(id, now),
                });
                collect(line.take(count), out);
            }
            View::Delayed => {
                // Two clocks: each index is in order, and the two are shown as one by what they say.
                let mut by_log = self.delayed.iter().map(|&(at, id)| (at.0, id)).peekable();
                let mut by_wall = self.appointed.iter().map(|&(at, id)| (at.0, id)).peekable();
                let due = core::iter::from_fn(|| match (by_log.peek(), by_wall.peek()) {
                    (Some(log), Some(wall)) if wall < log => by_wall.next(),
                    (Some(_), _) => by_log.next(),
                    (None, _) => by_wall.next(),
                });
                collect(due.skip(start).take(count).map(|(_, id)| self.view(id, now)), out);
            }
            View::Leased => {
                let tasks = self.table.walk(&self.leased).skip(start).take(count);
                collect(tasks.map(|task| self.view(task.id, now)), out);
            }
            View::Dead => {
                let tasks = self.table.walk(&self.dead).skip(start).take(count);
                collect(tasks.map(|task| self.view(task.id, now)), out);
            }
        }
    }

    /// How a task with a record looks.
    fn view(&self, id: TaskId, now: Now) -> TaskView<B> {
        let task = self.table.get(id).expect("an index points at records");
        let at = match &task.state {
            State::Leased(lease) => lease.start,
            State::Delayed(due) => LogTime(due.raw()),
            State::Dead(at) => *at,
            State::Ready(_) => task.pushed,
        };
        TaskView {
            queue: 0,
            id,
            body: task.body.clone(),
            deliveries: task.deliveries,
            incarnation: task.incarnation,
            at,
            elapsed_ms: now.log.since(at),
            more: matches!(task.state, State::Dead(_)).then(|| Box::new(self.more(id))),
        }
    }

    /// The rest of what is known of a task.
    pub(super) fn more(&self, id: TaskId) -> More {
        let Some(task) = self.table.get(id) else {
            let pushed = self.ready.find_plain(id).map_or(LogTime(0), |plain| plain.pushed);
            return More { tries_max: self.settings.tries(), pushed, ..More::default() };
        };
        let name = match task.name() {
            Some(Name::Bytes(name)) => Some(name.clone()),
            _ => None,
        };
        let reason = task.extras.as_ref().and_then(|extras| extras.reason.clone());
        let tries_max = self.tries_max(task);
        More { name, tries: task.tries, tries_max, pushed: task.pushed, reason }
    }

    /// Hands each task whole to `visit`, in an order in which taking them in gives the same queue.
    pub fn export(&self, payload: &mut dyn FnMut(&B) -> Box<[u8]>, visit: &mut dyn FnMut(&FullTask<'_>)) {
        for standing in self.ready.iter() {
            match standing {
                Standing::Plain(plain) => {
                    let body = payload(plain.body().expect("tombstones do not stand in the line"));
                    let task = Task::new(plain.id, (), plain.pushed, State::Ready(Rank::plain(plain.id)));
                    self.export_one(&task, &body, visit);
                }
                Standing::Placed(id) => self.export_id(id, payload, visit),
            }
        }
        let delayed = self.delayed.iter().map(|&(_, id)| id).chain(self.appointed.iter().map(|&(_, id)| id));
        delayed.for_each(|id| self.export_id(id, payload, visit));
        let listed = self.table.walk(&self.leased).chain(self.table.walk(&self.dead));
        listed.for_each(|task| self.export_id(task.id, payload, visit));
    }

    fn export_id(
        &self,
        id: TaskId,
        payload: &mut dyn FnMut(&B) -> Box<[u8]>,
        visit: &mut dyn FnMut(&FullTask<'_>),
    ) {
        let task = self.table.get(id).expect("an index points at records");
        let body = payload(&task.body);
        self.export_one(task, &body, visit);
    }

    fn export_one<T>(&self, task: &Task<T>, payload: &[u8], visit: &mut dyn FnMut(&FullTask<'_>)) {
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
        visit(&FullTask {
            queue: self.no,
            id: task.id,
            payload,
            pushed: task.pushed,
            state: task.state.clone(),
            incarnation: task.incarnation,
            deliveries: task.deliveries,
            tries: task.tries,
            cancelled: task.cancelled,
            late_ack: task.late_ack,
            fields,
            reason: extras.and_then(|extras| extras.reason.as_deref()),
            past: extras.map_or(&[], |extras| &extras.past),
        });
    }
}

fn plain_view<B>(id: TaskId, body: B, pushed: LogTime, now: Now) -> TaskView<B> {
    let elapsed_ms = now.log.since(pushed);
    TaskView { queue: 0, id, body, deliveries: 0, incarnation: 0, at: pushed, elapsed_ms, more: None }
}

/// As many as a reply may carry.
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
