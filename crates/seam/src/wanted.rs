//! What a listener wants to hear, and so what a home has to subscribe to for it.

use std::collections::BTreeMap;

/// How something is to be heard: on a channel, or on all that match a pattern.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum By {
    /// On the one that is called so.
    Channel,
    /// On all that match.
    Pattern,
}

/// One more, or one fewer, who wants to hear something.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Want {
    /// How.
    pub by: By,
    /// The channel or the pattern.
    pub name: Vec<u8>,
    /// One more.
    pub is_more: bool,
}

impl Want {
    /// One more wants it.
    pub const fn more(by: By, name: Vec<u8>) -> Self {
        Self { by, name, is_more: true }
    }

    /// One fewer does.
    pub const fn fewer(by: By, name: Vec<u8>) -> Self {
        Self { by, name, is_more: false }
    }
}

/// How many want each channel and each pattern.
#[derive(Debug, Default)]
pub struct Wanted(BTreeMap<(By, Vec<u8>), usize>);

impl Wanted {
    /// Takes a want in; gives it back if it is the first or the last of its kind, so that the other side has to be told.
    pub fn take(&mut self, want: Want) -> Option<Want> {
        let key = (want.by, want.name);
        let count = self.0.get(&key).copied().unwrap_or(0);
        let (is_told, now) =
            if want.is_more { (count == 0, count + 1) } else { (count == 1, count.saturating_sub(1)) };
        if now > 0 {
            self.0.insert(key.clone(), now);
        } else {
            self.0.remove(&key);
        }
        let (by, name) = key;
        is_told.then_some(Want { by, name, ..want })
    }

    /// Whether nothing is wanted.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// How many channels and patterns are.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// What is wanted, channels first.
    pub fn iter(&self) -> impl Iterator<Item = (By, &[u8])> {
        self.0.keys().map(|(by, name)| (*by, &name[..]))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_other_side_is_told_of_the_first_and_the_last() {
        let mut wanted = Wanted::default();
        let more = || Want::more(By::Channel, b"a".to_vec());
        let fewer = || Want::fewer(By::Channel, b"a".to_vec());
        assert_eq!(wanted.take(fewer()), None, "what was never wanted is not wanted now either");
        assert_eq!(wanted.take(more()), Some(more()));
        assert_eq!(wanted.take(more()), None);
        let pattern = Want::more(By::Pattern, b"a".to_vec());
        assert_eq!(wanted.take(pattern.clone()), Some(pattern));
        assert!(wanted.iter().eq([(By::Channel, &b"a"[..]), (By::Pattern, b"a")]));
        assert_eq!(wanted.take(fewer()), None);
        assert_eq!(wanted.take(fewer()), Some(fewer()));
        assert_eq!((wanted.len(), wanted.is_empty()), (1, false));
    }
}
