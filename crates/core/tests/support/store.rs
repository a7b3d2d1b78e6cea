//! Stores images as the engine does: each part once, under its stamp.

use std::collections::BTreeMap;

use sureq_core::Broker;
use sureq_core::broker::{Image, Stored};
use sureq_core::event::QueueNo;
use sureq_core::queue::Damaged;

use super::body::Bytes;

/// The last image, assembled from all images so far.
#[derive(Clone, Debug, Default)]
pub struct Store {
    pub head: Vec<u8>,
    /// The head of each queue, and the stamps of its parts.
    pub queues: BTreeMap<QueueNo, (Vec<u8>, Vec<u64>)>,
    pub parts: BTreeMap<u64, Vec<u8>>,
    /// The number of parts that the last image had to write.
    pub written: usize,
}

impl Store {
    pub fn take(&mut self, broker: &mut Broker<Bytes>) {
        self.keep(broker.image());
    }

    /// Adds an image.
    pub fn keep(&mut self, image: Image<Bytes>) {
        self.head = image.head;
        self.written = 0;
        for (no, queue) in image.queues {
            let Some(queue) = queue else {
                self.queues.remove(&no);
                continue;
            };
            let mut stamps = Vec::new();
            for part in queue.parts() {
                let mut bytes = Vec::new();
                part.encode(&mut bytes);
                assert!(part.stamp() > 0, "a part has a stamp");
                stamps.push(part.stamp());
                if let Some(stored) = self.parts.get(&part.stamp()) {
                    assert_eq!(stored, &bytes, "a stamp identifies one content");
                } else {
                    self.written += 1;
                    self.parts.insert(part.stamp(), bytes);
                }
            }
            let mut head = Vec::new();
            queue.head(&mut head);
            self.queues.insert(no, (head, stamps));
        }
    }

    pub fn restore(&self) -> Result<Broker<Bytes>, Damaged> {
        let queues = self.queues.iter().map(|(&queue, (head, stamps))| Stored {
            queue,
            head,
            parts: stamps.iter().map(|stamp| (*stamp, &self.parts[stamp])),
        });
        Broker::restore(&self.head, queues)
    }

    /// The same without the lost parts. Returns the number of lost parts.
    pub fn restore_partly(&self, is_lost: impl Fn(u64) -> bool) -> Result<(Broker<Bytes>, usize), Damaged> {
        let queues = self.queues.iter().map(|(&queue, (head, stamps))| Stored {
            queue,
            head,
            parts: stamps.iter().map(|stamp| (!is_lost(*stamp)).then(|| &self.parts[stamp])),
        });
        Broker::restore_partly(&self.head, queues)
    }
}
