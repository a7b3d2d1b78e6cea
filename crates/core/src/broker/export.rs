//! Export of a broker as events.

use alloc::boxed::Box;

use super::Broker;
use crate::event::Event;
use crate::id::TaskId;
use crate::task::Body;

impl<B: Body> Broker<B> {
    /// Visits events that turn an empty broker into one with the same digest. The tasks of a queue come in an order
    /// that preserves the orders of all its lists, and [`Event::Counted`] follows them. `payload` reads the bytes of a
    /// body.
    pub fn export(&self, payload: &mut dyn FnMut(&B) -> Box<[u8]>, visit: &mut dyn FnMut(&Event<'_>)) {
        visit(&Event::Started { incarnation: self.incarnation, time: self.clock });
        if self.last_id != TaskId::NONE {
            visit(&Event::IdsUpto(self.last_id));
        }
        for (incarnation, worker) in self.workers.all() {
            visit(&Event::WorkerStarted { name: &worker.name, incarnation, ttl_ms: worker.ttl_ms });
        }
        for slot in self.slots.iter().flatten() {
            let queue = slot.queue.no();
            visit(&Event::QueueMade { queue, name: &slot.name });
            if !slot.queue.settings().is_default() {
                visit(&Event::Configured { queue, settings: slot.queue.settings() });
            }
            slot.queue.export(payload, &mut |task| visit(&Event::Task(task)));
            visit(&Event::Counted { queue, counters: &slot.queue.counters() });
        }
        for (incarnation, worker) in self.workers.all() {
            worker.works.iter().for_each(|&queue| visit(&Event::Worked { incarnation, queue }));
        }
        for (source, cursor) in &self.marks {
            visit(&Event::Mark { source, cursor });
        }
    }
}
