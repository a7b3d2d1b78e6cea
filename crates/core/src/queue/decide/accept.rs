//! Adding tasks.

use crate::command::{Add, NameArg, When};
use crate::event::{Event, Fields, NameRef, Payloads, Recorder, Removal};
use crate::id::TaskId;
use crate::limits;
use crate::queue::Queue;
use crate::reply::Refusal;
use crate::settings::Overflow;
use crate::task::{Body, Due, StateKind};
use crate::time::Now;

/// The tasks of a push.
#[derive(Clone, Copy, Debug)]
pub struct Pushes<'a> {
    /// The id of the first task; the others follow in sequence.
    pub first: TaskId,
    /// The payloads, one task each.
    pub payloads: &'a [&'a [u8]],
}

impl<B: Body> Queue<B> {
    /// Adds tasks without options (other than the queue's time to live). The broker assigns their ids.
    pub fn push<R: Recorder<Body = B>>(
        &mut self,
        pushes: Pushes<'_>,
        now: Now,
        rec: &mut R,
    ) -> Result<(), Refusal> {
        self.settle_once(now, rec);
        let bytes = pushes.payloads.iter().map(|payload| payload.len() as u64).sum();
        self.make_room(pushes.payloads.len(), bytes, now, rec)?;
        let expires = self.settings.ttl_ms.map(|ms| now.log.after(ms));
        let fields = Fields { expires, ..Fields::default() };
        let payloads = Payloads::Slices(pushes.payloads);
        self.commit(&Event::Pushed { queue: self.no, first: pushes.first, payloads, fields }, now.log, rec);
        Ok(())
    }

    /// The task that already has the name, if `add` gives one.
    pub fn named<R: Recorder<Body = B>>(
        &mut self,
        add: &Add<'_>,
        now: Now,
        rec: &mut R,
    ) -> Option<(TaskId, StateKind)> {
        self.settle_once(now, rec);
        let name = name_of(add, rec)?.to_owned();
        let id = *self.names.get(&name)?;
        self.settle_one(id, now, rec);
        Some((id, self.table.get(id)?.state.kind()))
    }

    /// Adds one task with options, under an id from the broker. Its name must be free: call [`Self::named`] first,
    /// which also settles what is due.
    pub fn add<R: Recorder<Body = B>>(
        &mut self,
        id: TaskId,
        add: &Add<'_>,
        now: Now,
        rec: &mut R,
    ) -> Result<StateKind, Refusal> {
        self.make_room(1, add.payload.len() as u64, now, rec)?;
        let due = match add.when {
            When::AtOnce | When::After(0) => None,
            When::After(ms) => Some(Due::Log(now.log.after(ms))),
            When::At(at) => Some(Due::Wall(at)).filter(|_| at > now.wall),
        };
        let ttl_ms = add.ttl_ms.or(self.settings.ttl_ms);
        let fields = Fields {
            due,
            priority: add.priority,
            name: name_of(add, rec),
            tries_max: add.tries,
            backoff_ms: add.backoff_ms,
            expires: ttl_ms.map(|ms| now.log.after(ms)),
            trace: None,
        };
        let payloads = Payloads::Slices(&[add.payload]);
        self.commit(&Event::Pushed { queue: self.no, first: id, payloads, fields }, now.log, rec);
        Ok(if due.is_some() { StateKind::Delayed } else { StateKind::Ready })
    }

    /// Makes room for `count` more tasks of `bytes` in total, by dropping the oldest tasks if the settings allow it.
    fn make_room<R: Recorder<Body = B>>(
        &mut self,
        count: usize,
        bytes: u64,
        now: Now,
        rec: &mut R,
    ) -> Result<(), Refusal> {
        if !self.is_full_for(count, bytes) {
            return Ok(());
        }
        let alone_too_much = self.settings.max_length.is_some_and(|max| count as u64 > max)
            || self.settings.max_bytes.is_some_and(|max| bytes > max);
        if self.settings.overflow == Overflow::Refuse || alone_too_much {
            return Err(Refusal::QueueFull);
        }
        // If the limit was lowered, it is reached in slices: each push drops up to a slice more than it needs.
        for _ in 0..count + limits::SLICE_TASKS {
            if !self.is_full_for(count, bytes) {
                break;
            }
            // The oldest task of the lowest priority goes first; if none is ready, the delayed task that is due
            // first.
            let oldest = self.ready.oldest_of_least_urgent();
            let soonest = || self.delayed.first().map(|&(_, id)| id);
            let delayed_wall = || self.delayed_wall.first().map(|&(_, id)| id);
            let Some(id) = oldest.or_else(soonest).or_else(delayed_wall) else { break };
            self.remove_all(&[id], Removal::Dropped, now, rec);
        }
        Ok(())
    }

    fn is_full_for(&self, count: usize, bytes: u64) -> bool {
        let [ready, delayed, ..] = self.counts();
        let length = self.settings.max_length.is_some_and(|max| ready + delayed + count as u64 > max);
        length || self.settings.max_bytes.is_some_and(|max| self.waiting_bytes + bytes > max)
    }
}

fn name_of<'a, R: Recorder>(add: &Add<'a>, rec: &R) -> Option<NameRef<'a>> {
    Some(match add.name? {
        NameArg::Bytes(name) => NameRef::Bytes(name),
        NameArg::Payload => NameRef::PayloadHash(rec.payload_hash(add.payload)),
    })
}
