//! The queue as DESIGN describes it, in the most naive way: maps, lists and linear scans.
//!
//! It is written from the transition table and the fine print, not from the core. Whatever the core does fast, this
//! does slowly; where the two differ, one of them is wrong.

pub mod command;
pub mod naive;
pub mod plan;

use std::collections::BTreeMap;

use command::{AddPlan, Cmd, Happening, Name, Naming, PopPlan, Spelt, WorkerName};
use naive::{Cause, Due, Lease, NaiveQueue, NaiveTask, Naming as TaskName, State};
use sureq_core::command::{AckScope, IdForm, View, When};
use sureq_core::id::Claim;
use sureq_core::reply::{Info, Outcome, QueueRow, WorkerRow};
use sureq_core::settings::{Overflow, Place};
use sureq_core::task::StateKind;
use sureq_core::{Receipt, TaskId};

use crate::support::{Answer, Bytes, START_MS};

const HOUR_MS: u64 = 3_600_000;

#[derive(Clone, Debug)]
pub struct Model {
    pub log: u64,
    pub wall: u64,
    pub incarnation: u64,
    last_id: TaskId,
    pub queues: BTreeMap<Name, NaiveQueue>,
    pub workers: BTreeMap<u64, NaiveWorker>,
    /// What callers were told, so that they can come back with it.
    pub ids: Vec<TaskId>,
    pub receipts: Vec<Receipt>,
    pub incarnations: Vec<WorkerName>,
    /// What happened last, with everything in it spelt out, and the answer to it.
    pub last: Option<(Happening, Option<Answer>)>,
}

#[derive(Clone, Debug)]
pub struct NaiveWorker {
    name: Name,
    ttl: u64,
    pub expires: u64,
    works: Vec<Name>,
    lapsed: Vec<Receipt>,
}

impl Default for Model {
    fn default() -> Self {
        Self {
            log: START_MS,
            wall: START_MS,
            incarnation: 1,
            last_id: TaskId::NONE,
            queues: BTreeMap::new(),
            workers: BTreeMap::new(),
            ids: Vec::new(),
            receipts: Vec::new(),
            incarnations: Vec::new(),
            last: None,
        }
    }
}

type Refused = &'static str;

impl Model {
    pub fn happen(&mut self, happening: Happening) {
        let answer = match &happening {
            Happening::Pass(ms) => {
                (self.log, self.wall) = (self.log + ms, self.wall + ms);
                None
            }
            Happening::Wall(ms) => {
                self.wall = *ms;
                None
            }
            Happening::Tick => {
                self.tick();
                None
            }
            Happening::Restart => {
                self.restart();
                None
            }
            Happening::CloseConn(conn) => {
                self.end_lost_workers();
                self.end_holder(|lease| lease.conn == Some(*conn), Cause::Free);
                None
            }
            Happening::Undeliver(name, receipts) => {
                self.end_lost_workers();
                if self.queues.contains_key(name) {
                    self.settle(name);
                    let mut ids = Vec::new();
                    for receipt in receipts {
                        if self.is_current(name, Claim::Receipt(*receipt)) && !ids.contains(&receipt.id) {
                            ids.push(receipt.id);
                        }
                    }
                    self.end(name, &ids, Cause::Free);
                }
                None
            }
            Happening::Cmd(cmd) => {
                self.end_lost_workers();
                Some(self.execute(cmd).unwrap_or_else(Answer::Refused))
            }
        };
        self.note_idle();
        self.last = Some((happening, answer));
    }

    fn execute(&mut self, cmd: &Cmd) -> Result<Answer, Refused> {
        Ok(match cmd {
            Cmd::Push(queue, payloads) => return self.push(queue, payloads),
            Cmd::Add(plan) => return self.add(plan),
            Cmd::Pop(plan) => return self.pop(plan),
            Cmd::Ack(queue, tasks, form, scope) => {
                let claims = claims(tasks, *form)?;
                let mut acked = Vec::new();
                if self.settled(queue) {
                    for (index, claim) in claims.into_iter().enumerate() {
                        let late = *scope == AckScope::LeasedOrLapsed && matches!(claim, Claim::Id(_));
                        let lapsed = self.task(queue, claim.id()).is_some_and(|task| task.late_ack && late);
                        if self.is_current(queue, claim) || lapsed {
                            let queue = self.queue(queue);
                            queue.remove(claim.id());
                            queue.finished += 1;
                            acked.push(index as u32);
                        }
                    }
                }
                Answer::Acked(acked)
            }
            Cmd::Extend(queue, task, ms) => {
                let claim = claim(task)?;
                positive(*ms)?;
                let outcome = self.outcome(queue, claim);
                if outcome == Outcome::Done {
                    let deadline = Some((self.log + ms, *ms));
                    let task = self.queue(queue).tasks.get_mut(&claim.id()).unwrap();
                    let State::Leased(lease) = &mut task.state else { unreachable!() };
                    lease.deadline = deadline;
                }
                Answer::Outcome(outcome)
            }
            Cmd::Return { queue, task, to, failed } => {
                let claim = claim(task)?;
                let outcome = self.outcome(queue, claim);
                match outcome {
                    Outcome::Stale => {}
                    Outcome::Cancelled => self.queue(queue).lose(claim.id()),
                    Outcome::Done => self.give_back(queue, claim.id(), *to, failed.as_deref()),
                }
                Answer::Outcome(outcome)
            }
            Cmd::Recover(queue, count, elapsed) => self.recover(queue, *count, *elapsed),
            Cmd::Inspect(queue, view, start, count) => {
                let (log, there) = (self.log, self.settled(queue));
                let mut ids = if there { self.queue(queue).view(*view) } else { Vec::new() };
                let first = if *start < 0 { ids.len() as i64 + start } else { *start };
                if first < 0 || first > ids.len() as i64 {
                    ids.clear();
                } else {
                    ids.drain(..first as usize);
                }
                ids.truncate(*count as usize);
                let shown = ids.into_iter().map(|id| self.queues[queue].shown(id, log)).collect();
                Answer::Tasks(shown)
            }
            Cmd::Info(queue) => {
                let there = self.settled(queue);
                let info = if there { self.queues[queue].info(self.log) } else { Info::default() };
                Answer::Info(Box::new(info))
            }
            Cmd::CancelIds(queue, tasks) => {
                let claims = claims(tasks, IdForm::Long)?;
                self.cancel(queue, |_| claims.iter().map(|claim| claim.id()).collect())
            }
            Cmd::CancelNames(queue, names) => self.cancel(queue, |queue| {
                let named = |name: &Name| queue.named(&TaskName::Bytes(name.as_bytes().to_vec()));
                names.iter().filter_map(named).collect()
            }),
            Cmd::Bury(queue, tasks) => {
                let claims = claims(tasks, IdForm::Long)?;
                let (log, mut buried) = (self.log, 0);
                if self.settled(queue) {
                    for claim in claims {
                        let alive = self.task(queue, claim.id()).is_some_and(|t| t.kind() != StateKind::Dead);
                        if alive && (matches!(claim, Claim::Id(_)) || self.is_current(queue, claim)) {
                            self.queue(queue).die(claim.id(), Cause::Free, None, log);
                            buried += 1;
                        }
                    }
                    self.move_dying(queue);
                }
                Answer::Count(buried)
            }
            Cmd::Revive(queue, tasks) => {
                let claims = tasks.as_ref().map(|tasks| claims(tasks, IdForm::Long)).transpose()?;
                let mut revived = 0;
                if self.settled(queue) {
                    let queue = self.queue(queue);
                    let all = || queue.dead.clone();
                    let ids = claims.map_or_else(all, |claims| claims.iter().map(|c| c.id()).collect());
                    revived = ids.into_iter().filter(|&id| queue.revive(id)).count() as u64;
                }
                Answer::Count(revived)
            }
            Cmd::Delete(queue, tasks) => {
                let claims = claims(tasks, IdForm::Long)?;
                let mut deleted = 0;
                if self.settled(queue) {
                    let queue = self.queue(queue);
                    for claim in claims {
                        if queue.tasks.contains_key(&claim.id()) {
                            queue.lose(claim.id());
                            deleted += 1;
                        }
                    }
                }
                Answer::Count(deleted)
            }
            Cmd::Purge(queue, state) => {
                let mut purged = 0;
                if self.settled(queue) {
                    let queue = self.queue(queue);
                    for view in [View::Ready, View::Delayed, View::Dead] {
                        if state.is_none_or(|state| state == view) {
                            let ids = queue.view(view);
                            purged += ids.len() as u64;
                            ids.into_iter().for_each(|id| queue.lose(id));
                        }
                    }
                }
                Answer::Count(purged)
            }
            Cmd::Drop(queues) => {
                let mut dropped = 0;
                for name in queues {
                    if let Some(queue) = self.queues.get_mut(name).filter(|queue| !queue.is_bare()) {
                        dropped += u64::from(!queue.tasks.is_empty());
                        *queue = NaiveQueue::new(queue.no);
                    }
                }
                Answer::Count(dropped)
            }
            Cmd::Exists(queues) => {
                let there = |name: &&Name| self.queues.get(*name).is_some_and(|q| !q.tasks.is_empty());
                Answer::Count(queues.iter().filter(there).count() as u64)
            }
            Cmd::Pause(queue) => {
                self.make(queue);
                self.settle(queue);
                let log = self.log;
                self.queue(queue).paused.get_or_insert(log);
                Answer::Ok
            }
            Cmd::Resume(queue) => {
                if self.settled(queue) {
                    self.queue(queue).paused = None;
                }
                Answer::Ok
            }
            Cmd::Config(queue, changes) => {
                let itself = |change: &command::Setting| matches!(change, command::Setting::DeadLetter(name) if name == queue);
                if changes.iter().any(itself) {
                    return Err("out of range");
                }
                if !changes.is_empty() {
                    self.make(queue);
                    self.settle(queue);
                    let settings = &mut self.queue(queue).settings;
                    changes.iter().for_each(|change| settings.change(&change.change()));
                }
                let settings = self.queues.get(queue).map(|queue| queue.settings.clone());
                Answer::Settings(Box::new(settings.unwrap_or_default()))
            }
            Cmd::Queues(pattern) => {
                let mut rows = Vec::new();
                for name in self.by_number() {
                    let queue = &self.queues[name];
                    if !queue.tasks.is_empty() && pattern.is_none_or(|pattern| pattern == name) {
                        rows.push(QueueRow { name: name.as_bytes().into(), counts: queue.counts() });
                    }
                }
                Answer::Queues(rows, 0)
            }
            Cmd::Start(name, ttl) => {
                positive(*ttl)?;
                let incarnation = self.next_id().raw();
                self.fail_worker(name);
                self.last_id = self.next_id();
                let (works, lapsed) = (Vec::new(), Vec::new());
                let worker = NaiveWorker { name, ttl: *ttl, expires: self.log + ttl, works, lapsed };
                self.workers.insert(incarnation, worker);
                self.incarnations.push((name, incarnation));
                Answer::Started(incarnation)
            }
            Cmd::Beat(worker) => {
                self.alive(worker)?;
                let mut told = Vec::new();
                for name in self.by_number() {
                    let queue = &self.queues[name];
                    for id in queue.leased(|lease| lease.worker == Some(worker.1)) {
                        let task = &queue.tasks[&id];
                        told.extend(task.cancelled.then(|| task.receipt()));
                    }
                }
                let log = self.log;
                let beating = self.workers.get_mut(&worker.1).unwrap();
                beating.expires = log + beating.ttl;
                told.append(&mut beating.lapsed);
                Answer::Receipts(told)
            }
            Cmd::Work(worker, queue) => {
                self.alive(worker)?;
                self.make(queue);
                let works = &mut self.workers.get_mut(&worker.1).unwrap().works;
                if !works.contains(queue) {
                    works.push(queue);
                }
                Answer::Ok
            }
            Cmd::Rest(worker, queue) => {
                self.alive(worker)?;
                let mut back = 0;
                if self.queues.contains_key(queue) {
                    self.workers.get_mut(&worker.1).unwrap().works.retain(|name| name != queue);
                    back = self.end_leases(queue, |lease| lease.worker == Some(worker.1), Cause::Free);
                }
                Answer::Count(back)
            }
            Cmd::Stop(worker) => {
                self.alive(worker)?;
                Answer::Count(self.end_worker(worker.1, Cause::Free))
            }
            Cmd::Fail(name) => Answer::Count(self.fail_worker(name)),
            Cmd::List => {
                let row = |(&incarnation, worker): (&u64, &NaiveWorker)| {
                    let held = |queue: &NaiveQueue| queue.leased(|l| l.worker == Some(incarnation)).len();
                    let leased = self.queues.values().map(held).sum::<usize>() as u64;
                    WorkerRow { name: worker.name.as_bytes().into(), incarnation, ttl_ms: worker.ttl, leased }
                };
                Answer::Workers(self.workers.iter().map(row).collect())
            }
        })
    }

    fn push(&mut self, name: Name, payloads: &[Vec<u8>]) -> Result<Answer, Refused> {
        if payloads.is_empty() {
            return Ok(Answer::Ids(Vec::new()));
        }
        self.make(name);
        self.settle(name);
        let bytes = payloads.iter().map(Vec::len).sum();
        self.make_room(name, payloads.len(), bytes)?;
        let mut ids = Vec::new();
        for payload in payloads {
            let id = self.next_id();
            let expires = self.queues[name].settings.ttl_ms.map(|ttl| self.log + ttl);
            let task = NaiveTask { expires, ..NaiveTask::new(id, payload, self.log) };
            self.accept(name, task);
            ids.push(id);
        }
        Ok(Answer::Ids(ids))
    }

    fn add(&mut self, plan: &AddPlan) -> Result<Answer, Refused> {
        for value in [plan.tries.map(u64::from), plan.backoff_ms, plan.ttl_ms] {
            value.map_or(Ok(()), positive)?;
        }
        self.make(plan.queue);
        self.settle(plan.queue);
        let name = plan.name.map(|name| match name {
            Naming::Name(name) => TaskName::Bytes(name.as_bytes().to_vec()),
            Naming::Unique => TaskName::Payload(plan.payload.clone()),
        });
        if let Some(id) = name.as_ref().and_then(|name| self.queues[plan.queue].named(name)) {
            return Ok(Answer::Added(id, false, self.queues[plan.queue].tasks[&id].kind()));
        }
        self.make_room(plan.queue, 1, plan.payload.len())?;
        let state = match plan.when {
            When::After(ms) if ms > 0 => State::Delayed(Due::Log(self.log + ms)),
            When::At(at) if at.0 > self.wall => State::Delayed(Due::Wall(at.0)),
            _ => State::Ready,
        };
        let ttl = plan.ttl_ms.or(self.queues[plan.queue].settings.ttl_ms);
        let task = NaiveTask {
            state,
            name,
            priority: plan.priority,
            tries_max: plan.tries,
            backoff: plan.backoff_ms,
            expires: ttl.map(|ttl| self.log + ttl),
            ..NaiveTask::new(self.next_id(), &plan.payload, self.log)
        };
        let (id, kind) = (task.id, task.kind());
        self.accept(plan.queue, task);
        Ok(Answer::Added(id, true, kind))
    }

    fn accept(&mut self, name: Name, task: NaiveTask) {
        self.last_id = task.id;
        self.ids.push(task.id);
        let queue = self.queue(name);
        queue.pushed += 1;
        if task.kind() == StateKind::Ready {
            queue.line.push(task.id);
        }
        queue.tasks.insert(task.id, task);
    }

    /// MAX-LENGTH and MAX-BYTES are of ready and delayed tasks; a batch beyond is refused whole.
    fn make_room(&mut self, name: Name, count: usize, bytes: usize) -> Result<(), Refused> {
        let queue = self.queue(name);
        let fits = |queue: &NaiveQueue, count: usize, bytes: usize| {
            let length = queue.settings.max_length.is_none_or(|max| count as u64 <= max);
            length && queue.settings.max_bytes.is_none_or(|max| bytes as u64 <= max)
        };
        while !fits(queue, queue.waiting().len() + count, queue.waiting_bytes() + bytes) {
            if queue.settings.overflow == Overflow::Refuse || !fits(queue, count, bytes) {
                return Err("queue full");
            }
            let first = queue.view(View::Ready).first().copied();
            let oldest = first.or_else(|| queue.delayed_by_log().first().copied());
            let oldest = oldest.or_else(|| queue.delayed_by_wall().first().copied());
            queue.lose(oldest.expect("something waits"));
        }
        Ok(())
    }

    fn pop(&mut self, plan: &PopPlan) -> Result<Answer, Refused> {
        plan.lease_ms.map_or(Ok(()), positive)?;
        if plan.worker.is_some() && plan.conn.is_some() {
            return Err("out of range");
        }
        plan.worker.as_ref().map_or(Ok(()), |worker| self.alive(worker))?;
        let mut popped = Vec::new();
        let (log, incarnation) = (self.log, self.incarnation);
        for (index, name) in plan.queues.iter().enumerate() {
            let left = plan.count as usize - popped.len();
            if left == 0 || !self.settled(name) {
                continue;
            }
            let queue = self.queue(name);
            let free = queue
                .settings
                .max_leased
                .map_or(usize::MAX, |max| (max as usize).saturating_sub(queue.leased(|_| true).len()));
            let free = if queue.paused.is_some() { 0 } else { free };
            let plain = plan.lease_ms.is_none() && plan.worker.is_none() && plan.conn.is_none();
            let length = plan.lease_ms.or(queue.settings.lease_ms.filter(|_| plain));
            for id in queue.view(View::Ready).into_iter().take(left.min(free)) {
                let more = plan.meta.then(|| queue.more(id));
                let lease = Lease {
                    start: log,
                    seq: queue.next_seq(),
                    deadline: length.map(|ms| (log + ms, ms)),
                    worker: plan.worker.map(|worker| worker.1),
                    conn: plan.conn,
                    lapse: plan.lapse,
                };
                queue.lease(id, lease, incarnation);
                let mut view = queue.shown(id, log);
                (view.queue, view.more) = (index as u32, more);
                popped.push(view);
            }
        }
        self.receipts.extend(popped.iter().map(|view| view.receipt()));
        Ok(Answer::Tasks(popped))
    }

    fn recover(&mut self, name: Name, count: u32, elapsed: u64) -> Answer {
        let (log, incarnation) = (self.log, self.incarnation);
        let mut recovered = Vec::new();
        if self.settled(name) {
            let queue = self.queue(name);
            let open = |l: &Lease| l.deadline.is_none() && l.worker.is_none() && l.conn.is_none();
            for id in queue.leased(open) {
                let State::Leased(lease) = queue.tasks[&id].state.clone() else { unreachable!() };
                if recovered.len() == count as usize || log - lease.start < elapsed {
                    break;
                }
                if queue.tasks[&id].cancelled {
                    queue.lose(id);
                    continue;
                }
                recovered.push(id);
            }
            for &id in &recovered {
                let State::Leased(lease) = queue.tasks[&id].state.clone() else { unreachable!() };
                let seq = queue.next_seq();
                queue.lease(id, Lease { start: log, seq, ..lease }, incarnation);
            }
        }
        let views: Vec<_> = recovered.into_iter().map(|id| self.queues[name].shown(id, log)).collect();
        self.receipts.extend(views.iter().map(|view| view.receipt()));
        Answer::Tasks(views)
    }

    fn give_back(&mut self, name: Name, id: TaskId, to: Option<Place>, failed: Option<&[u8]>) {
        let log = self.log;
        let queue = self.queue(name);
        let Some(reason) = failed else {
            return queue.land(&[id], to.unwrap_or(Place::Front), Cause::Free, log);
        };
        if queue.is_last_try(id) {
            queue.die(id, Cause::Failed, Some(reason), log);
            return self.move_dying(name);
        }
        let wait = queue.backoff(id, queue.tasks[&id].failed + 1);
        queue.tasks.get_mut(&id).unwrap().reason = Some(reason.to_vec());
        queue.land(&[id], to.unwrap_or(Place::After(wait)), Cause::Failed, log);
    }

    fn cancel(&mut self, name: Name, which: impl FnOnce(&NaiveQueue) -> Vec<TaskId>) -> Answer {
        let mut count = 0;
        if self.settled(name) {
            let queue = self.queue(name);
            for id in which(queue) {
                let Some(task) = queue.tasks.get_mut(&id) else { continue };
                match task.kind() {
                    StateKind::Ready | StateKind::Delayed => queue.lose(id),
                    StateKind::Leased if !task.cancelled => task.cancelled = true,
                    StateKind::Leased | StateKind::Dead => continue,
                }
                count += 1;
            }
        }
        Answer::Count(count)
    }

    fn outcome(&mut self, name: Name, claim: Claim) -> Outcome {
        if !self.settled(name) || !self.is_current(name, claim) {
            return Outcome::Stale;
        }
        if self.queues[name].tasks[&claim.id()].cancelled { Outcome::Cancelled } else { Outcome::Done }
    }

    fn is_current(&self, name: Name, claim: Claim) -> bool {
        self.task(name, claim.id()).is_some_and(|task| {
            let meant = match claim {
                Claim::Id(_) => true,
                Claim::Receipt(receipt) => receipt == task.receipt(),
            };
            meant && task.kind() == StateKind::Leased
        })
    }

    /// What is due by itself in a queue: leases, then times to live, then delays.
    fn settle(&mut self, name: Name) {
        let (log, wall) = (self.log, self.wall);
        let due = |lease: &Lease| lease.deadline.is_some_and(|(at, _)| at <= log);
        let mut lapsed = self.queues[name].leased(due);
        lapsed.sort_by_key(|id| self.queues[name].tasks[id].deadline());
        self.end(name, &lapsed, Cause::Lapsed);
        let queue = self.queue(name);
        queue.expire(log);
        queue.fall_due(log, wall);
        self.move_dying(name);
    }

    /// Settles a queue if it is there.
    fn settled(&mut self, name: Name) -> bool {
        let there = self.queues.contains_key(name);
        if there {
            self.settle(name);
        }
        there
    }

    /// A worker or a connection ends: what it holds of all queues comes back.
    fn end_holder(&mut self, which: impl Fn(&Lease) -> bool, cause: Cause) -> u64 {
        let queues = self.by_number();
        queues.into_iter().map(|name| self.end_leases(name, &which, cause)).sum()
    }

    fn end_leases(&mut self, name: Name, which: impl Fn(&Lease) -> bool, cause: Cause) -> u64 {
        if self.queues[name].leased(&which).is_empty() {
            return 0;
        }
        self.settle(name);
        let ids = self.queues[name].leased(&which);
        self.end(name, &ids, cause);
        self.move_dying(name);
        ids.len() as u64
    }

    /// Deliveries end without their holders' word.
    fn end(&mut self, name: Name, ids: &[TaskId], cause: Cause) {
        let log = self.log;
        for &id in ids {
            let task = &self.queues[name].tasks[&id];
            let State::Leased(lease) = &task.state else { unreachable!() };
            if let (Cause::Lapsed, Some(worker)) = (cause, lease.worker) {
                let receipt = task.receipt();
                if let Some(worker) = self.workers.get_mut(&worker) {
                    worker.lapsed.push(receipt);
                }
            }
        }
        self.queue(name).end(ids, cause, log);
    }

    /// Tasks that died where there is a dead-letter queue go to the end of its line.
    fn move_dying(&mut self, name: Name) {
        let queue = self.queue(name);
        let dying = std::mem::take(&mut queue.dying);
        let Some(letter) = queue.settings.dead_letter.clone() else { return };
        if dying.is_empty() {
            return;
        }
        let letter = plan::QUEUES.into_iter().find(|name| name.as_bytes() == &*letter).unwrap();
        self.make(letter);
        for id in dying {
            let queue = self.queue(name);
            let mut task = queue.tasks[&id].clone();
            queue.lose(id);
            let to = self.queue(letter);
            (task.state, task.expires) = (State::Ready, None);
            if task.name.as_ref().is_some_and(|name| to.named(name).is_some()) {
                task.name = None;
            }
            to.pushed += 1;
            to.line.push(id);
            to.tasks.insert(id, task);
        }
    }

    fn tick(&mut self) {
        loop {
            self.end_lost_workers();
            let by_number = self.by_number();
            let due = by_number.iter().filter_map(|name| Some((self.queues[name].next_log()?, *name)));
            let due = due.filter(|&(at, _)| at <= self.log).min_by_key(|&(at, _)| at);
            let met = by_number.iter().filter_map(|name| Some((self.queues[name].next_wall()?, *name)));
            let met = met.filter(|&(at, _)| at <= self.wall).min_by_key(|&(at, _)| at);
            if let Some((_, name)) = due.or(met) {
                self.settle(name);
                self.note_idle();
                continue;
            }
            let old = |queue: &NaiveQueue| queue.idle_since.is_some_and(|since| since + HOUR_MS <= self.log);
            let Some(name) = by_number.iter().find(|name| old(&self.queues[*name])) else { return };
            self.queues.remove(name);
        }
    }

    fn restart(&mut self) {
        self.incarnation += 1;
        let log = self.log;
        for queue in self.queues.values_mut() {
            for task in queue.tasks.values_mut() {
                if let State::Leased(Lease { deadline: Some((at, length)), .. }) = &mut task.state {
                    *at = (*at).max(log + (*length).min(10_000));
                }
            }
            let conns = queue.leased(|lease| lease.conn.is_some());
            queue.end(&conns, Cause::Free, log);
            queue.idle_since = None;
        }
        for worker in self.workers.values_mut() {
            worker.expires = log + worker.ttl;
            worker.lapsed.clear();
        }
    }

    fn end_lost_workers(&mut self) {
        loop {
            let lost = self.workers.iter().filter(|(_, worker)| worker.expires <= self.log);
            let Some((_, incarnation)) = lost.map(|(&n, worker)| (worker.expires, n)).min() else { return };
            self.end_worker(incarnation, Cause::Lost);
        }
    }

    fn end_worker(&mut self, incarnation: u64, cause: Cause) -> u64 {
        self.workers.remove(&incarnation);
        self.end_holder(|lease| lease.worker == Some(incarnation), cause)
    }

    fn fail_worker(&mut self, name: Name) -> u64 {
        let found = self.workers.iter().find(|(_, worker)| worker.name == name).map(|(&n, _)| n);
        found.map_or(0, |incarnation| self.end_worker(incarnation, Cause::Lost))
    }

    fn alive(&self, worker: &WorkerName) -> Result<(), Refused> {
        let alive = self.workers.get(&worker.1).is_some_and(|found| found.name == worker.0);
        if alive { Ok(()) } else { Err("worker gone") }
    }

    fn make(&mut self, name: Name) {
        let taken = |no: &u32| self.queues.values().any(|queue| queue.no == *no);
        let no = (0..).find(|no| !taken(no)).unwrap();
        self.queues.entry(name).or_insert_with(|| NaiveQueue::new(no));
    }

    fn note_idle(&mut self) {
        for (name, queue) in &mut self.queues {
            let worked_on = self.workers.values().any(|worker| worker.works.contains(name));
            if worked_on || !queue.is_bare() {
                queue.idle_since = None;
            } else {
                queue.idle_since.get_or_insert(self.log);
            }
        }
    }

    fn queue(&mut self, name: Name) -> &mut NaiveQueue {
        self.queues.get_mut(name).expect("the queue is there")
    }

    fn task(&self, name: Name, id: TaskId) -> Option<&NaiveTask> {
        self.queues.get(name)?.tasks.get(&id)
    }

    fn by_number(&self) -> Vec<Name> {
        let mut names: Vec<Name> = self.queues.keys().copied().collect();
        names.sort_by_key(|name| self.queues[name].no);
        names
    }

    fn next_id(&self) -> TaskId {
        self.last_id.next(self.log).unwrap()
    }

    /// The next point in log time at which something happens by itself.
    pub fn next_log(&self) -> Option<u64> {
        let queues = self.queues.values().filter_map(NaiveQueue::next_log);
        queues.chain(self.workers.values().map(|worker| worker.expires)).min()
    }
}

fn claims(tasks: &[Spelt], form: IdForm) -> Result<Vec<Claim>, Refused> {
    let read = |spelt: &Spelt| match form {
        IdForm::Long => Claim::parse(spelt),
        IdForm::Short => TaskId::parse_short(spelt).map(Claim::Id),
    };
    tasks.iter().map(read).collect::<Option<Vec<_>>>().ok_or("malformed id")
}

fn claim(task: &Spelt) -> Result<Claim, Refused> {
    Claim::parse(task).ok_or("malformed id")
}

const fn positive(n: u64) -> Result<(), Refused> {
    if n == 0 { Err("out of range") } else { Ok(()) }
}

/// A payload as replies show it.
pub fn body(payload: &[u8]) -> Bytes {
    payload.into()
}
