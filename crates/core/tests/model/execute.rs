//! The commands of the model.

use sureq_core::command::{AckScope, ConnId, IdForm, View, When};
use sureq_core::id::Claim;
use sureq_core::reply::{Explanation, HeldUp, Info, Outcome, QueueRow, TaskView, Why, WorkerRow};
use sureq_core::settings::{Overflow, Place};
use sureq_core::task::{Holder, StateKind, Tries};
use sureq_core::{LogTime, TaskId};

use super::command::{AddPlan, Cmd, Name, Naming, PopPlan, Setting, TaskText, WorkerName};
use super::naive::{Cause, Due, Lease, NaiveQueue, NaiveState, NaiveTask, Naming as TaskName};
use super::{Model, NaiveWorker};
use crate::support::Answer;

type Refused = &'static str;

impl Model {
    pub fn execute(&mut self, cmd: &Cmd) -> Result<Answer, Refused> {
        Ok(match cmd {
            Cmd::Push(queue, payloads) => return self.push(queue, payloads),
            Cmd::Add(plan) => return self.add(plan),
            Cmd::Pop(plan) => return self.pop(plan),
            Cmd::Extend(queue, task, ms) => {
                let claim = claim(task)?;
                positive(*ms)?;
                let outcome = self.outcome(queue, claim);
                if outcome == Outcome::Done {
                    let deadline = Some((self.log + ms, *ms));
                    let task = self.queue(queue).tasks.get_mut(&claim.id()).unwrap();
                    let NaiveState::Leased(lease) = &mut task.state else { unreachable!() };
                    lease.deadline = deadline;
                }
                Answer::Outcome(outcome)
            }
            Cmd::Return { queue, task, to, failed, is_last } => {
                let claim = claim(task)?;
                let outcome = self.outcome(queue, claim);
                match outcome {
                    Outcome::Stale => {}
                    Outcome::Cancelled => self.queue(queue).lose(claim.id()),
                    Outcome::Done => self.return_task(queue, claim.id(), *to, failed.as_deref(), *is_last),
                }
                Answer::Outcome(outcome)
            }
            Cmd::Recover(queue, count, elapsed) => self.recover(queue, *count, *elapsed),
            Cmd::Inspect(queue, view, start, count) => {
                let (log, there) = (self.log, self.settled(queue));
                let mut ids = if there { self.queue(queue).view(*view) } else { Vec::new() };
                let from_end = ids.len().checked_add_signed(*start as isize);
                let first = if *start < 0 { from_end } else { Some(start.unsigned_abs() as usize) };
                ids = first.and_then(|first| ids.get(first..)).unwrap_or_default().to_vec();
                ids.truncate(*count as usize);
                let shown = ids.into_iter().map(|id| self.queues[queue].shown(id, log)).collect();
                Answer::Tasks(shown)
            }
            Cmd::Info(queue) => {
                let there = self.settled(queue);
                let mut info = if there { self.queues[queue].info(self.log) } else { Info::default() };
                info.workers =
                    self.workers.values().filter(|worker| worker.works.contains(queue)).count() as u64;
                Answer::Info(Box::new(info))
            }
            Cmd::Explain(queue, task) => {
                let id = claim(task)?.id();
                let explained = self.settled(queue).then(|| self.explain(queue, id)).flatten();
                Answer::Explained(explained.map(Box::new))
            }
            Cmd::Ack(..) | Cmd::CancelIds(..) | Cmd::CancelNames(..) | Cmd::CancelPayload(..) => {
                return self.conclude(cmd);
            }
            Cmd::Bury(..) | Cmd::Revive(..) | Cmd::Delete(..) | Cmd::Purge(..) => return self.remove(cmd),
            Cmd::Drop(_)
            | Cmd::Exists(_)
            | Cmd::Pause(_)
            | Cmd::Resume(_)
            | Cmd::Config(..)
            | Cmd::Queues(_) => {
                return self.of_queues(cmd);
            }
            _ => return self.of_workers(cmd),
        })
    }

    fn conclude(&mut self, cmd: &Cmd) -> Result<Answer, Refused> {
        Ok(match cmd {
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
            Cmd::CancelIds(queue, tasks) => {
                let claims = claims(tasks, IdForm::Long)?;
                let there = self.settled(queue);
                let meant =
                    |claim: &Claim| matches!(claim, Claim::Id(_)) || there && self.is_current(queue, *claim);
                let ids: Vec<TaskId> = claims.into_iter().filter(meant).map(Claim::id).collect();
                self.cancel(queue, |_| ids)
            }
            Cmd::CancelNames(queue, names) => self.cancel(queue, |queue| {
                let found = |name: &Name| queue.named(&TaskName::Bytes(name.as_bytes().to_vec()));
                names.iter().filter_map(found).collect()
            }),
            Cmd::CancelPayload(queue, payload) => self.cancel(queue, |queue| {
                let same = queue.tasks.values().filter(|task| task.payload == *payload);
                same.map(|task| task.id).collect()
            }),
            other => unreachable!("{other:?}"),
        })
    }

    fn explain(&self, name: Name, id: TaskId) -> Option<Explanation> {
        let queue = &self.queues[name];
        let task = queue.tasks.get(&id)?;
        let leased = queue.counts()[2];
        let held_up = match (queue.paused, queue.settings.max_leased) {
            (Some(since), _) => Some(HeldUp::Paused { since: LogTime(since) }),
            (None, Some(max)) if leased >= max => Some(HeldUp::AllLeased { leased, max }),
            _ => None,
        };
        let mut worker = None;
        let why = match &task.state {
            NaiveState::Ready => {
                let ahead = queue.view(View::Ready).iter().position(|&other| other == id)? as u64;
                Why::Ready { ahead, held_up }
            }
            NaiveState::Delayed(Due::Log(at)) => Why::Delayed { until: *at, in_ms: at - self.log, held_up },
            NaiveState::Delayed(Due::Wall(at)) => Why::Delayed { until: *at, in_ms: at - self.wall, held_up },
            NaiveState::Leased(lease) => {
                worker = lease.worker.map(|incarnation| self.workers[&incarnation].name.as_bytes().into());
                let conn = lease.conn.map(|conn| Holder::Conn(ConnId(conn)));
                Why::Leased {
                    since: LogTime(lease.start),
                    until: lease.deadline.map(|(at, _)| LogTime(at)),
                    holder: lease.worker.map(Holder::Worker).or(conn),
                    cancelled: task.cancelled,
                }
            }
            NaiveState::Dead(at) => Why::Dead { at: LogTime(*at) },
        };
        Some(Explanation {
            id,
            deliveries: task.deliveries,
            tries: Tries { failed: task.failed, lapsed: task.lapsed, lost: task.lost },
            tries_max: task.tries_max.unwrap_or(queue.settings.tries()),
            reason: task.reason.as_deref().map(Into::into),
            worker,
            why,
        })
    }

    fn remove(&mut self, cmd: &Cmd) -> Result<Answer, Refused> {
        Ok(match cmd {
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
                    let ids_alone = |claims: Vec<Claim>| {
                        let ids = claims.into_iter().filter(|claim| matches!(claim, Claim::Id(_)));
                        ids.map(Claim::id).collect()
                    };
                    let ids = claims.map_or_else(all, ids_alone);
                    revived = ids.into_iter().filter(|&id| queue.revive(id)).count() as u64;
                }
                Answer::Count(revived)
            }
            Cmd::Delete(queue, tasks) => {
                let claims = claims(tasks, IdForm::Long)?;
                let mut deleted = 0;
                if self.settled(queue) {
                    for claim in claims {
                        let meant = matches!(claim, Claim::Id(_)) || self.is_current(queue, claim);
                        if meant && self.queues[queue].tasks.contains_key(&claim.id()) {
                            self.queue(queue).lose(claim.id());
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
                            for id in ids {
                                queue.lose(id);
                            }
                        }
                    }
                }
                Answer::Count(purged)
            }
            other => unreachable!("{other:?}"),
        })
    }

    fn of_queues(&mut self, cmd: &Cmd) -> Result<Answer, Refused> {
        Ok(match cmd {
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
                let itself = |change: &Setting| matches!(change, Setting::DeadLetter(name) if name == queue);
                if changes.iter().any(itself) {
                    return Err("out of range");
                }
                if !changes.is_empty() {
                    self.make(queue);
                    self.settle(queue);
                    let settings = &mut self.queue(queue).settings;
                    for change in changes {
                        settings.change(&change.change());
                    }
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
            other => unreachable!("{other:?}"),
        })
    }

    fn of_workers(&mut self, cmd: &Cmd) -> Result<Answer, Refused> {
        Ok(match cmd {
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
                let mut receipts = Vec::new();
                for name in self.by_number() {
                    let queue = &self.queues[name];
                    for id in queue.leased(|lease| lease.worker == Some(worker.1)) {
                        let task = &queue.tasks[&id];
                        receipts.extend(task.cancelled.then(|| task.receipt()));
                    }
                }
                let log = self.log;
                let beating = self.workers.get_mut(&worker.1).unwrap();
                beating.expires = log + beating.ttl;
                receipts.append(&mut beating.lapsed);
                Answer::Receipts(receipts)
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
            other => unreachable!("{other:?}"),
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
            When::After(ms) if ms > 0 => NaiveState::Delayed(Due::Log(self.log + ms)),
            When::At(at) if at.0 > self.wall => NaiveState::Delayed(Due::Wall(at.0)),
            _ => NaiveState::Ready,
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

    /// MAX-LENGTH and MAX-BYTES bound ready and delayed tasks; a batch beyond them is refused as a whole.
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
            let line = queue.view(View::Ready);
            let lowest = line.iter().map(|id| queue.tasks[id].priority).min();
            let first = line.into_iter().find(|id| Some(queue.tasks[id].priority) == lowest);
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
            let bare = plan.lease_ms.is_none() && plan.worker.is_none() && plan.conn.is_none();
            let length = plan.lease_ms.or(queue.settings.lease_ms.filter(|_| bare));
            for id in queue.view(View::Ready).into_iter().take(left.min(free)) {
                let more = plan.meta.then(|| Box::new(queue.more(id)));
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
        self.receipts.extend(popped.iter().map(TaskView::receipt));
        Ok(Answer::Tasks(popped))
    }

    fn recover(&mut self, name: Name, count: u32, elapsed: u64) -> Answer {
        let (log, incarnation) = (self.log, self.incarnation);
        let mut recovered = Vec::new();
        if self.settled(name) {
            let queue = self.queue(name);
            let open = |l: &Lease| l.deadline.is_none() && l.worker.is_none() && l.conn.is_none();
            for id in queue.leased(open) {
                let NaiveState::Leased(lease) = queue.tasks[&id].state.clone() else { unreachable!() };
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
                let NaiveState::Leased(lease) = queue.tasks[&id].state.clone() else { unreachable!() };
                let seq = queue.next_seq();
                queue.lease(id, Lease { start: log, seq, ..lease }, incarnation);
            }
        }
        let views: Vec<_> = recovered.into_iter().map(|id| self.queues[name].shown(id, log)).collect();
        self.receipts.extend(views.iter().map(TaskView::receipt));
        Answer::Tasks(views)
    }

    fn return_task(
        &mut self,
        name: Name,
        id: TaskId,
        to: Option<Place>,
        failed: Option<&[u8]>,
        is_last: bool,
    ) {
        let log = self.log;
        let queue = self.queue(name);
        let Some(reason) = failed else {
            return queue.land(&[id], to.unwrap_or(Place::Front), Cause::Free, log);
        };
        if is_last || queue.is_last_try(id) {
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

    fn alive(&self, worker: &WorkerName) -> Result<(), Refused> {
        let mut of_that_name = self.workers.iter().filter(|(_, found)| found.name == worker.0);
        match of_that_name.next() {
            Some((&incarnation, _)) if incarnation == worker.1 => Ok(()),
            Some((&incarnation, _)) if incarnation > worker.1 => Err("worker replaced"),
            _ => Err("worker gone"),
        }
    }
}

fn claims(tasks: &[TaskText], form: IdForm) -> Result<Vec<Claim>, Refused> {
    let read = |text: &TaskText| match form {
        IdForm::Long => Claim::parse(text),
        IdForm::Short => TaskId::parse_short(text).map(Claim::Id),
    };
    tasks.iter().map(read).collect::<Option<Vec<_>>>().ok_or("malformed id")
}

fn claim(task: &TaskText) -> Result<Claim, Refused> {
    Claim::parse(task).ok_or("malformed id")
}

const fn positive(n: u64) -> Result<(), Refused> {
    if n == 0 { Err("out of range") } else { Ok(()) }
}
