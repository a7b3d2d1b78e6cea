//! The only code that changes a broker.

use alloc::boxed::Box;

use super::{Broker, QueueSlot};
use crate::event::{Event, QueueNo, Recorder};
use crate::id::TaskId;
use crate::queue::{HolderNews, Inconsistent, Queue};
use crate::task::{Body, Holder, TaskState};

/// Numbers of queues are small. A store never assigns a number further ahead than this.
const NUMBERS_AHEAD: usize = 1 << 20;

const UNKNOWN_QUEUE: Inconsistent = Inconsistent::new("a queue that was never created", TaskId::NONE);

impl<B: Body> Broker<B> {
    /// Applies an event. The log may be damaged or hostile: an event that does not fit is an error, never a panic.
    pub(super) fn apply<R: Recorder<Body = B>>(
        &mut self,
        event: &Event<'_>,
        rec: &mut R,
    ) -> Result<(), Inconsistent> {
        if let Some(applied) = self.apply_own(event) {
            applied?;
        } else if let Event::QueueDropped(queue) = *event {
            self.image_before_change(queue);
            let slot = self.slots.get_mut(queue.0 as usize).and_then(Option::as_mut).ok_or(UNKNOWN_QUEUE)?;
            for holder in slot.queue.holders() {
                self.holds.remove(&(holder, queue));
            }
            let remains = slot.queue.empty_out();
            self.adopters.remove(&queue);
            // The caller releases the bodies: this may be one of very many queues.
            self.set_aside(remains);
        } else {
            self.apply_to_queue(event, rec)?;
        }
        if let Event::Started { .. } = event {
            for slot in self.slots.iter_mut().flatten() {
                slot.queue.apply(event, self.clock, rec)?;
            }
        }
        Ok(())
    }

    /// Applies an event that is not about the content of a queue. Returns `None` for other events.
    pub(super) fn apply_own(&mut self, event: &Event<'_>) -> Option<Result<(), Inconsistent>> {
        match *event {
            Event::Started { incarnation, time } => {
                self.incarnation = self.incarnation.max(incarnation);
                self.clock = self.clock.max(time);
                self.holds.retain(|(holder, _)| matches!(holder, Holder::Worker(_)));
                self.workers.beat_all(self.clock);
            }
            Event::Clock(time) => self.clock = self.clock.max(time),
            Event::QueueMade { queue, name } => return Some(self.make(queue, name)),
            Event::QueueGone(queue) => return Some(self.forget(queue)),
            Event::WorkerStarted { name, incarnation, ttl_ms } => {
                self.raise_last_id(TaskId::from_raw(incarnation).unwrap_or(TaskId::NONE));
                return Some(self.workers.start(name, incarnation, ttl_ms, self.clock));
            }
            Event::WorkerEnded(incarnation) => return Some(self.end_work(incarnation)),
            Event::Worked { incarnation, queue } => return Some(self.begin_work(incarnation, queue)),
            Event::Rested { incarnation, queue } => {
                let rested = self.workers.rest(incarnation, queue);
                return Some(rested.and_then(|rested| {
                    self.slot_mut(queue).ok_or(UNKNOWN_QUEUE)?.workers -= usize::from(rested);
                    Ok(())
                }));
            }
            Event::IdsUpto(id) => self.raise_last_id(id),
            Event::Moved { from, id, to } => return Some(self.move_task(from, id, to)),
            Event::Mark { source, cursor } => _ = self.marks.insert(source.into(), cursor.into()),
            _ => return None,
        }
        Some(Ok(()))
    }

    fn end_work(&mut self, incarnation: u64) -> Result<(), Inconsistent> {
        for queue in self.workers.end(incarnation)? {
            self.slot_mut(queue).ok_or(UNKNOWN_QUEUE)?.workers -= 1;
        }
        Ok(())
    }

    fn begin_work(&mut self, incarnation: u64, queue: QueueNo) -> Result<(), Inconsistent> {
        let slot = self.slots.get_mut(queue.0 as usize).and_then(Option::as_mut);
        let slot = slot.ok_or(UNKNOWN_QUEUE)?;
        slot.workers += usize::from(self.workers.work(incarnation, queue)?);
        Ok(())
    }

    fn apply_to_queue<R: Recorder<Body = B>>(
        &mut self,
        event: &Event<'_>,
        rec: &mut R,
    ) -> Result<(), Inconsistent> {
        let clock = self.clock;
        let no = event.queue().ok_or(UNKNOWN_QUEUE)?;
        if let Event::Popped { terms, .. } = event
            && terms.holder.is_some_and(|holder| !self.workers.may_hold(holder))
        {
            return Err(Inconsistent::new("a pop by a worker that is not alive", TaskId::NONE));
        }
        self.image_before_change(no);
        let slot = self.slots.get_mut(no.0 as usize).and_then(Option::as_mut).ok_or(UNKNOWN_QUEUE)?;
        slot.queue.apply(event, clock, rec)?;
        self.take_holder_news(no);
        let slot = self.slots.get_mut(no.0 as usize).and_then(Option::as_mut).ok_or(UNKNOWN_QUEUE)?;
        let (last, purged) = (slot.queue.last_id(), slot.queue.take_purged());
        self.raise_last_id(last);
        for remains in purged {
            self.set_aside(remains);
        }
        let holder = match event {
            Event::Popped { terms, .. } => terms.holder,
            Event::Task(task) => match &task.state {
                TaskState::Leased(lease) => lease.holder(),
                _ => None,
            },
            _ => None,
        };
        holder.map(|holder| self.holds.insert((holder, no)));
        Ok(())
    }

    /// Updates the broker's indexes of the holders of a queue's tasks.
    pub(super) fn take_holder_news(&mut self, no: QueueNo) {
        let Some(Some(slot)) = self.slots.get_mut(no.0 as usize) else { return };
        let (holds, cancelled) = (&mut self.holds, &mut self.cancelled);
        slot.queue.drain_holder_news(|holder, news| match (news, holder) {
            (HolderNews::HoldsNothing, _) => _ = holds.remove(&(holder, no)),
            (HolderNews::HasCancelled, Holder::Worker(_)) => _ = cancelled.insert((holder, no)),
            (HolderNews::HasCancelled, Holder::Conn(_)) => {}
        });
    }

    pub(super) fn make(&mut self, no: QueueNo, name: &[u8]) -> Result<(), Inconsistent> {
        let at = no.0 as usize;
        let taken = self.slot(no).is_some() || self.names.contains_key(name);
        if taken || at > self.slots.len() + NUMBERS_AHEAD {
            return Err(Inconsistent::new("a queue that is created twice", TaskId::NONE));
        }
        for between in self.slots.len()..at {
            self.free.insert(QueueNo(between as u32));
        }
        if self.slots.len() <= at {
            self.slots.resize_with(at + 1, || None);
        }
        self.free.remove(&no);
        let mut queue = Queue::new(no);
        queue.enter_incarnation(self.incarnation);
        self.slots[at] = Some(Box::new(QueueSlot {
            name: name.into(),
            queue,
            workers: 0,
            deadline: None,
            wall_deadline: None,
            idle_since: None,
            awake: false,
            has_tasks: false,
            touched: None,
            memory: 0,
            motion: 0,
            owned: 0,
        }));
        self.names.insert(name.into(), no);
        Ok(())
    }

    fn forget(&mut self, no: QueueNo) -> Result<(), Inconsistent> {
        self.image_before_change(no);
        let slot = self.slots.get_mut(no.0 as usize);
        let gone = slot.and_then(|slot| slot.take_if(|slot| slot.is_forgettable()));
        let gone = gone.ok_or(Inconsistent::new("a forgotten queue that is not empty", TaskId::NONE))?;
        gone.idle_since.map(|since| self.idle.remove(&(since, no)));
        gone.deadline.map(|at| self.deadlines.remove(&(at, no)));
        gone.wall_deadline.map(|at| self.wall_deadlines.remove(&(at, no)));
        self.unfinished.remove(&no);
        self.names.remove(&gone.name);
        self.free.insert(no);
        self.adopters.remove(&no);
        self.memory -= gone.memory + gone.owned;
        self.touched.push(no);
        Ok(())
    }

    fn move_task(&mut self, from: QueueNo, id: TaskId, to: QueueNo) -> Result<(), Inconsistent> {
        let unknown = Inconsistent::new("a move between queues that were never created", id);
        if from == to || self.slot(to).is_none() {
            return Err(unknown);
        }
        self.image_before_change(from);
        self.image_before_change(to);
        let task = self.slot_mut(from).ok_or(unknown)?.queue.release(id)?;
        self.adopters.insert(to);
        self.slot_mut(to).ok_or(unknown)?.queue.adopt(task)?;
        self.note_adopted(id, to);
        Ok(())
    }
}
