//! Counts the channels and patterns that a listener needs.

use std::collections::BTreeMap;

/// Whether a name is a channel or a pattern.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum By {
    /// One channel.
    Channel,
    /// All channels that match a pattern.
    Pattern,
}

/// The beginning or the end of a subscription.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Subscription {
    /// Whether it is to a channel or a pattern.
    pub by: By,
    /// The name of the channel, or the pattern.
    pub name: Vec<u8>,
    /// True if the subscription begins, false if it ends.
    pub begins: bool,
}

impl Subscription {
    /// The beginning of a subscription.
    pub const fn begin(by: By, name: Vec<u8>) -> Self {
        Self { by, name, begins: true }
    }

    /// The end of a subscription.
    pub const fn end(by: By, name: Vec<u8>) -> Self {
        Self { by, name, begins: false }
    }
}

/// The number of subscriptions to each channel and pattern.
#[derive(Debug, Default)]
pub struct Subscriptions(BTreeMap<(By, Vec<u8>), usize>);

impl Subscriptions {
    /// Counts a change. Returns it if it is the first beginning or the last end, which must be sent to the server.
    pub fn change(&mut self, change: Subscription) -> Option<Subscription> {
        let key = (change.by, change.name);
        let count = self.0.get(&key).copied().unwrap_or(0);
        let (is_sent, now) =
            if change.begins { (count == 0, count + 1) } else { (count == 1, count.saturating_sub(1)) };
        if now > 0 {
            self.0.insert(key.clone(), now);
        } else {
            self.0.remove(&key);
        }
        let (by, name) = key;
        is_sent.then_some(Subscription { by, name, ..change })
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The number of channels and patterns.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// All channels and patterns, channels first.
    pub fn iter(&self) -> impl Iterator<Item = (By, &[u8])> {
        self.0.keys().map(|(by, name)| (*by, &name[..]))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_first_beginning_and_the_last_end_are_sent() {
        let mut all = Subscriptions::default();
        let begin = || Subscription::begin(By::Channel, b"a".to_vec());
        let end = || Subscription::end(By::Channel, b"a".to_vec());
        assert_eq!(all.change(end()), None, "there was none");
        assert_eq!(all.change(begin()), Some(begin()));
        assert_eq!(all.change(begin()), None);
        let pattern = Subscription::begin(By::Pattern, b"a".to_vec());
        assert_eq!(all.change(pattern.clone()), Some(pattern));
        assert!(all.iter().eq([(By::Channel, &b"a"[..]), (By::Pattern, b"a")]));
        assert_eq!(all.change(end()), None);
        assert_eq!(all.change(end()), Some(end()));
        assert_eq!((all.len(), all.is_empty()), (1, false));
    }
}
