//! Restores the rest of a store when parts of its image are lost.

use super::{Broker, Stored};
use crate::codec::read_number;
use crate::queue::{Damaged, Queue};
use crate::task::Body;

impl<B: Body> Broker<B> {
    /// Restores a store from an image of which some parts of queues are lost (`None`). Returns how many were. The
    /// remaining tasks are unchanged, and the counters are computed anew.
    pub fn restore_partly<H: AsRef<[u8]>, P: AsRef<[u8]>, I: IntoIterator<Item = Option<P>>>(
        head: &[u8],
        queues: impl IntoIterator<Item = Stored<H, I>>,
    ) -> Result<(Self, usize), Damaged> {
        let (mut broker, mut lost) = (Self::default(), 0);
        let (_, events) = read_number(head).map_err(|_| Damaged("the last stamp"))?;
        broker.restore_head(events, Self::restore_own)?;
        for stored in queues {
            let salvaged =
                Queue::restore_partly(stored.queue, stored.head.as_ref(), stored.parts.into_iter())?;
            lost += salvaged.lost;
            broker.take_over(stored.queue, &salvaged.name, salvaged.queue)?;
        }
        broker.restore_head(events, Self::restore_worked)?;
        broker.refresh_all();
        Ok((broker, lost))
    }

    /// The names and incarnations of live workers.
    pub fn workers(&self) -> impl Iterator<Item = (&[u8], u64)> {
        self.workers.all().map(|(incarnation, worker)| (&*worker.name, incarnation))
    }
}
