//! How keys are named, and which of them share a slot.
//!
//! A script reaches the keys of one slot. In a cluster whose prefix has no slot tag, the queues of each slot tag are
//! therefore a store of their own, with its own clock, ids and connections; one more store lists them. With a tag in
//! the prefix, or without a cluster, all queues are one store.

use sureq_slots::{slot_of, tag_of};

use super::channels::Channels;
use crate::connection::target::Target;

impl Target {
    /// Whether each slot tag is a store of its own.
    pub(crate) fn is_spread(&self) -> bool {
        self.is_cluster() && tag_of(self.prefix.as_bytes()).is_none()
    }

    /// The store of a queue, named by the slot tag of its keys; none if there is only one store.
    pub(crate) fn store_of(&self, queue: &[u8]) -> Option<Vec<u8>> {
        self.is_spread().then(|| {
            let key = self.queue_key(queue);
            tag_of(&key).expect("a queue's key has something in its braces").to_vec()
        })
    }

    /// The keys of a call in sureq's own layout, about a queue, a store, or all of them: a key that never exists, and
    /// the numbers of the store. While a slot migrates, Redis executes no command that names a key that it does not
    /// find; the first key ensures that no script finds half of a queue.
    pub(crate) fn store_keys(&self, queue: Option<&[u8]>) -> [Vec<u8>; 2] {
        let own = match queue {
            _ if !self.is_spread() => self.prefix.clone().into_bytes(),
            None => format!("{}{{stores}}:", self.prefix).into_bytes(),
            Some(queue) => {
                let tag = self.store_of(queue).unwrap_or_default();
                [self.prefix.as_bytes(), b"s:{", &tag, b"}:"].concat()
            }
        };
        let absent = queue.map_or_else(|| [&own, &b"absent"[..]].concat(), |queue| self.queue_key(queue));
        [absent, [&own, &b"store"[..]].concat()]
    }

    /// The key of a queue, or the beginning of its keys.
    pub fn queue_key(&self, queue: &[u8]) -> Vec<u8> {
        self.layout.queue_key(&self.prefix, queue)
    }

    /// The hash slot of all keys of a call about a queue, or about all of them.
    pub(crate) fn slot(&self, queue: Option<&[u8]>) -> u16 {
        if !self.is_cluster() {
            0
        } else if self.is_spread() {
            slot_of(&self.store_keys(queue)[1])
        } else {
            slot_of(self.prefix.as_bytes())
        }
    }

    pub fn channels(&self) -> Channels<'_> {
        Channels { prefix: &self.prefix, layout: &*self.layout }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_begin_with_the_prefix() {
        let target = Target::parse("redis://h?prefix=jobs:").unwrap();
        assert_eq!(target.queue_key(b"a"), b"jobs:q:{a}");
        assert_eq!(target.queue_key(b""), b"jobs:x:{x}");
        assert_eq!(target.queue_key(b"}b"), b"jobs:x:{x}b}");
        assert_eq!(target.store_keys(Some(b"a")), [b"jobs:q:{a}".to_vec(), b"jobs:store".to_vec()]);
    }

    #[test]
    fn all_keys_of_a_call_are_in_one_slot() {
        for url in ["redis-cluster://h", "redis-cluster://h?prefix={jobs}:"] {
            let target = Target::parse(url).unwrap();
            for queue in
                [None, Some(&b"a"[..]), Some(b""), Some(b"}b"), Some(b"{a}b"), Some(b"a}b"), Some(b"{")]
            {
                let [absent, store] = target.store_keys(queue);
                assert_eq!(slot_of(&absent), slot_of(&store), "{url} {queue:?}");
                assert_eq!(target.slot(queue), slot_of(&store), "{url} {queue:?}");
            }
        }
    }

    #[test]
    fn a_slot_tag_is_a_store() {
        let target = Target::parse("redis-cluster://h").unwrap();
        assert_eq!(target.store_of(b"{app}one"), target.store_of(b"{app}two"));
        assert_ne!(target.store_of(b"one"), target.store_of(b"two"));
        let tag = target.store_of(b"{app}one").unwrap();
        assert_eq!(target.store_keys(Some(&tag))[1], target.store_keys(Some(b"{app}two"))[1]);
        let target = Target::parse("redis-cluster://h?prefix={jobs}:").unwrap();
        assert_eq!(target.store_of(b"one"), None);
    }
}
