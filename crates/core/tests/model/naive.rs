//! One queue of the model.

use std::collections::BTreeMap;

use sureq_core::command::{LapseEnd, LapsePolicy, View};
use sureq_core::reply::{Info, More, TaskView};
use sureq_core::settings::{Expired, Place, Settings};
use sureq_core::task::{StateKind, Tries};
use sureq_core::{LogTime, Receipt, TaskId};

use super::body;
use crate::support::Bytes;

#[derive(Clone, Debug)]
pub struct NaiveQueue {
    pub no: u32,
    pub tasks: BTreeMap<TaskId, NaiveTask>,
    /// Ready tasks in the order in which they became ready, regardless of priority.
    pub line: Vec<TaskId>,
    pub dead: Vec<TaskId>,
    /// Dead tasks that are to move to the dead-letter queue.
    pub dying: Vec<TaskId>,
    pub settings: Settings,
    pub paused: Option<u64>,
    pub pushed: u64,
    pub finished: u64,
    pub removed: u64,
    pub idle_since: Option<u64>,
    seq: u64,
}

#[derive(Clone, Debug)]
pub struct NaiveTask {
    pub id: TaskId,
    pub payload: Vec<u8>,
    pub pushed: u64,
    pub state: NaiveState,
    pub name: Option<Naming>,
    pub priority: i8,
    pub tries_max: Option<u32>,
    pub backoff: Option<u64>,
    pub expires: Option<u64>,
    pub deliveries: u32,
    pub incarnation: u64,
    pub failed: u32,
    pub lapsed: u32,
    pub lost: u32,
    pub reason: Option<Vec<u8>>,
    pub cancelled: bool,
    pub late_ack: bool,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Naming {
    Bytes(Vec<u8>),
    Payload(Vec<u8>),
}

#[derive(Clone, Debug)]
pub enum NaiveState {
    Ready,
    Delayed(Due),
    Leased(Lease),
    Dead(u64),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Due {
    Log(u64),
    Wall(u64),
}

#[derive(Clone, Debug)]
pub struct Lease {
    pub start: u64,
    pub seq: u64,
    /// The time at which it lapses, and the length it was given.
    pub deadline: Option<(u64, u64)>,
    pub worker: Option<u64>,
    pub conn: Option<u64>,
    pub lapse: Option<LapsePolicy>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cause {
    Free,
    Failed,
    Lapsed,
    Lost,
}

impl NaiveTask {
    pub fn new(id: TaskId, payload: &[u8], pushed: u64) -> Self {
        Self {
            id,
            payload: payload.to_vec(),
            pushed,
            state: NaiveState::Ready,
            name: None,
            priority: 0,
            tries_max: None,
            backoff: None,
            expires: None,
            deliveries: 0,
            incarnation: 0,
            failed: 0,
            lapsed: 0,
            lost: 0,
            reason: None,
            cancelled: false,
            late_ack: false,
        }
    }

    pub fn kind(&self) -> StateKind {
        match self.state {
            NaiveState::Ready => StateKind::Ready,
            NaiveState::Delayed(_) => StateKind::Delayed,
            NaiveState::Leased(_) => StateKind::Leased,
            NaiveState::Dead(_) => StateKind::Dead,
        }
    }

    pub fn receipt(&self) -> Receipt {
        Receipt { id: self.id, incarnation: self.incarnation, delivery: self.deliveries }
    }

    /// The time at which its lease lapses, and its position among leases that lapse together.
    pub fn deadline(&self) -> Option<(u64, u64)> {
        match &self.state {
            NaiveState::Leased(lease) => lease.deadline.map(|(at, _)| (at, lease.seq)),
            _ => None,
        }
    }

    fn waits(&self) -> bool {
        matches!(self.state, NaiveState::Ready | NaiveState::Delayed(_))
    }

    fn total(&self) -> u32 {
        self.failed + self.lapsed + self.lost
    }

    fn spend(&mut self, cause: Cause) {
        match cause {
            Cause::Free => {}
            Cause::Failed => self.failed += 1,
            Cause::Lapsed => self.lapsed += 1,
            Cause::Lost => self.lost += 1,
        }
    }
}

impl NaiveQueue {
    pub fn new(no: u32) -> Self {
        Self {
            no,
            tasks: BTreeMap::new(),
            line: Vec::new(),
            dead: Vec::new(),
            dying: Vec::new(),
            settings: Settings::default(),
            paused: None,
            pushed: 0,
            finished: 0,
            removed: 0,
            idle_since: None,
            seq: 0,
        }
    }

    /// Whether it has no tasks, settings or pause.
    pub fn is_bare(&self) -> bool {
        self.tasks.is_empty() && self.settings == Settings::default() && self.paused.is_none()
    }

    pub fn next_seq(&mut self) -> u64 {
        self.seq += 1;
        self.seq
    }

    pub fn counts(&self) -> [u64; 4] {
        let count = |kind| self.tasks.values().filter(|task| task.kind() == kind).count() as u64;
        [StateKind::Ready, StateKind::Delayed, StateKind::Leased, StateKind::Dead].map(count)
    }

    pub fn named(&self, name: &Naming) -> Option<TaskId> {
        self.tasks.values().find(|task| task.name.as_ref() == Some(name)).map(|task| task.id)
    }

    pub fn waiting(&self) -> Vec<&NaiveTask> {
        self.tasks.values().filter(|task| task.waits()).collect()
    }

    pub fn waiting_bytes(&self) -> usize {
        self.waiting().iter().map(|task| task.payload.len()).sum()
    }

    /// Leased tasks that satisfy a condition, in order of delivery.
    pub fn leased(&self, which: impl Fn(&Lease) -> bool) -> Vec<TaskId> {
        let mut found: Vec<(u64, TaskId)> = Vec::new();
        for task in self.tasks.values() {
            if let NaiveState::Leased(lease) = &task.state
                && which(lease)
            {
                found.push((lease.seq, task.id));
            }
        }
        found.sort_unstable();
        found.into_iter().map(|(_, id)| id).collect()
    }

    pub fn view(&self, view: View) -> Vec<TaskId> {
        match view {
            View::Ready => {
                let mut line = self.line.clone();
                line.sort_by_key(|id| -i16::from(self.tasks[id].priority));
                line
            }
            View::Delayed => {
                let mut due: Vec<_> = self.delayed().into_iter().collect();
                due.sort_by_key(|&(due, id)| match due {
                    Due::Log(at) | Due::Wall(at) => (at, id),
                });
                due.into_iter().map(|(_, id)| id).collect()
            }
            View::Leased => self.leased(|_| true),
            View::Dead => {
                // Tasks that died in the same millisecond are shown in order of their ids.
                let died = |id: &TaskId| match self.tasks[id].state {
                    NaiveState::Dead(at) => at,
                    _ => unreachable!("only the dead are among them"),
                };
                let mut dead = self.dead.clone();
                dead.sort_by_key(|id| (died(id), *id));
                dead
            }
        }
    }

    fn delayed(&self) -> Vec<(Due, TaskId)> {
        let due = |task: &NaiveTask| match task.state {
            NaiveState::Delayed(due) => Some((due, task.id)),
            _ => None,
        };
        self.tasks.values().filter_map(due).collect()
    }

    pub fn delayed_by_log(&self) -> Vec<TaskId> {
        let mut due = self.delayed();
        due.retain(|(due, _)| matches!(due, Due::Log(_)));
        due.sort_unstable();
        due.into_iter().map(|(_, id)| id).collect()
    }

    pub fn delayed_by_wall(&self) -> Vec<TaskId> {
        let mut due = self.delayed();
        due.retain(|(due, _)| matches!(due, Due::Wall(_)));
        due.sort_unstable();
        due.into_iter().map(|(_, id)| id).collect()
    }

    /// The next log time at which something happens to a task without a command.
    pub fn next_log(&self) -> Option<u64> {
        let next = |task: &NaiveTask| {
            let expires = task.expires.filter(|_| task.waits());
            let state = match &task.state {
                NaiveState::Delayed(Due::Log(at)) => Some(*at),
                NaiveState::Leased(lease) => lease.deadline.map(|(at, _)| at),
                _ => None,
            };
            [expires, state].into_iter().flatten().min()
        };
        self.tasks.values().filter_map(next).min()
    }

    pub fn next_wall(&self) -> Option<u64> {
        let wall = |&(due, _): &(Due, TaskId)| match due {
            Due::Wall(at) => Some(at),
            Due::Log(_) => None,
        };
        self.delayed().iter().filter_map(wall).min()
    }

    pub fn info(&self, log: u64) -> Info {
        let [ready, delayed, leased, dead] = self.counts();
        let head = self.view(View::Ready).first().map(|id| self.tasks[id].pushed);
        Info {
            ready,
            delayed,
            leased,
            dead,
            waiting_bytes: self.waiting_bytes() as u64,
            oldest_ms: head.map_or(0, |pushed| log - pushed),
            paused: self.paused.map(LogTime),
            pushed: self.pushed,
            finished: self.finished,
            pushed_of_late: 0,
            finished_of_late: 0,
            workers: 0,
            settings: self.settings.clone(),
            lengths_only: false,
        }
    }

    pub fn shown(&self, id: TaskId, log: u64) -> TaskView<Bytes> {
        let task = &self.tasks[&id];
        let at = match &task.state {
            NaiveState::Ready => task.pushed,
            NaiveState::Delayed(Due::Log(at) | Due::Wall(at)) | NaiveState::Dead(at) => *at,
            NaiveState::Leased(lease) => lease.start,
        };
        TaskView {
            queue: 0,
            id,
            body: body(&task.payload),
            deliveries: task.deliveries,
            incarnation: task.incarnation,
            at: LogTime(at),
            elapsed_ms: log.saturating_sub(at),
            more: (task.kind() == StateKind::Dead).then(|| Box::new(self.more(id))),
            foreign_id: None,
        }
    }

    pub fn more(&self, id: TaskId) -> More {
        let task = &self.tasks[&id];
        let name = match &task.name {
            Some(Naming::Bytes(name)) => Some(name.clone().into()),
            _ => None,
        };
        More {
            name,
            tries: Tries { failed: task.failed, lapsed: task.lapsed, lost: task.lost },
            tries_max: self.tries_max(task),
            pushed: LogTime(task.pushed),
            reason: task.reason.clone().map(Into::into),
        }
    }

    fn tries_max(&self, task: &NaiveTask) -> u32 {
        task.tries_max.or(self.settings.tries).unwrap_or(25)
    }

    pub fn is_last_try(&self, id: TaskId) -> bool {
        let task = &self.tasks[&id];
        task.total() + 1 >= self.tries_max(task)
    }

    /// The design gives bounds of the wait, which another test checks. The wait within these bounds is up to the
    /// core, and this computes the same.
    pub fn backoff(&self, id: TaskId, times: u32) -> u64 {
        let task = &self.tasks[&id];
        let first = task.backoff.or(self.settings.backoff_ms).unwrap_or(1_000);
        let whole = (first << (times - 1)).min(3_600_000);
        let mixed = (id.raw() ^ u64::from(task.deliveries) << 40).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        whole - (mixed >> 32) % (whole / 2 + 1)
    }

    /// Removes a task from the list that it is in.
    fn detach(&mut self, id: TaskId) {
        self.line.retain(|&other| other != id);
        self.dead.retain(|&other| other != id);
    }

    pub fn remove(&mut self, id: TaskId) {
        self.detach(id);
        self.tasks.remove(&id);
    }

    /// Removes a task that is not finished.
    pub fn lose(&mut self, id: TaskId) {
        self.remove(id);
        self.removed += 1;
    }

    pub fn lease(&mut self, id: TaskId, lease: Lease, incarnation: u64) {
        self.detach(id);
        let task = self.tasks.get_mut(&id).unwrap();
        task.state = NaiveState::Leased(lease);
        task.deliveries += 1;
        task.incarnation = incarnation;
        task.late_ack = false;
    }

    pub fn land(&mut self, ids: &[TaskId], to: Place, cause: Cause, log: u64) {
        for &id in ids {
            let task = self.tasks.get_mut(&id).unwrap();
            task.spend(cause);
            task.late_ack = matches!(cause, Cause::Lapsed | Cause::Lost);
            task.state = match to {
                Place::After(ms) if ms > 0 => NaiveState::Delayed(Due::Log(log + ms)),
                _ => NaiveState::Ready,
            };
        }
        match to {
            Place::Front => _ = self.line.splice(0..0, ids.iter().copied()),
            Place::Back | Place::After(0) => self.line.extend(ids),
            Place::After(_) => {}
        }
    }

    pub fn die(&mut self, id: TaskId, cause: Cause, reason: Option<&[u8]>, log: u64) {
        self.detach(id);
        let task = self.tasks.get_mut(&id).unwrap();
        task.spend(cause);
        task.state = NaiveState::Dead(log);
        (task.cancelled, task.late_ack) = (false, false);
        if let Some(reason) = reason {
            task.reason = Some(reason.to_vec());
        }
        self.dead.push(id);
        if self.settings.dead_letter.is_some() {
            self.dying.push(id);
        }
    }

    pub fn revive(&mut self, id: TaskId) -> bool {
        if !self.dead.contains(&id) {
            return false;
        }
        self.detach(id);
        let task = self.tasks.get_mut(&id).unwrap();
        (task.failed, task.lapsed, task.lost) = (0, 0, 0);
        (task.state, task.expires) = (NaiveState::Ready, None);
        self.line.push(id);
        true
    }

    /// Ends leases without an action of their holders. Tasks that return to the front go there as a group, in this
    /// order.
    pub fn end(&mut self, ids: &[TaskId], cause: Cause, log: u64) {
        let mut front = Vec::new();
        for &id in ids {
            let task = &self.tasks[&id];
            let NaiveState::Leased(lease) = &task.state else { unreachable!() };
            let reason: &[u8] = if cause == Cause::Lost { b"worker lost" } else { b"lease lapsed" };
            if task.cancelled {
                self.lose(id);
                continue;
            }
            if cause == Cause::Free {
                front.push(id);
                continue;
            }
            let times = task.lapsed + task.lost;
            let limit = lease.lapse.and_then(|policy| policy.limit);
            let over = limit.map_or(self.is_last_try(id), |limit| times >= limit);
            let to = lease.lapse.map(|policy| policy.to);
            if over && lease.lapse.is_some_and(|policy| policy.then == LapseEnd::Delete) {
                self.lose(id);
            } else if over {
                self.die(id, cause, Some(reason), log);
            } else if let Some(to) = to.filter(|&to| to != Place::Front) {
                self.land(&[id], to, cause, log);
            } else if to.is_some() || times + 1 < 3 {
                front.push(id);
            } else {
                let wait = self.backoff(id, times + 1 - 2);
                self.land(&[id], Place::After(wait), cause, log);
            }
        }
        self.land(&front, Place::Front, cause, log);
    }

    pub fn expire(&mut self, log: u64) {
        let mut over: Vec<(u64, TaskId)> = Vec::new();
        for task in self.waiting() {
            over.extend(task.expires.filter(|&at| at <= log).map(|at| (at, task.id)));
        }
        over.sort_unstable();
        for (_, id) in over {
            match self.settings.expired {
                Expired::Delete => self.lose(id),
                Expired::Dead => self.die(id, Cause::Free, Some(b"expired"), log),
            }
        }
    }

    pub fn fall_due(&mut self, log: u64, wall: u64) {
        let mut due = self.delayed();
        due.retain(|&(due, _)| match due {
            Due::Log(at) => at <= log,
            Due::Wall(at) => at <= wall,
        });
        due.sort_unstable();
        for (_, id) in due {
            self.tasks.get_mut(&id).unwrap().state = NaiveState::Ready;
            self.line.push(id);
        }
    }
}
