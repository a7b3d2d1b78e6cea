//! A cache of the patterns that match a channel.

use std::collections::HashMap;
use std::sync::Arc;

use sureq_core::limits;

use crate::subscriptions::Name;

/// The approximate size of an entry in bytes, besides its channel and its list of patterns.
const ENTRY_BYTES: usize = 128;

/// The patterns that match each channel of recent messages. The entries are valid until a pattern is added or
/// removed.
#[derive(Debug, Default)]
pub(crate) struct Matches {
    by_channel: HashMap<Box<[u8]>, Arc<[Name]>>,
    bytes: usize,
}

impl Matches {
    pub(crate) fn get(&self, channel: &[u8]) -> Option<Arc<[Name]>> {
        self.by_channel.get(channel).map(Arc::clone)
    }

    /// Adds the patterns of a channel that has no entry yet, unless they are larger than the maximum size of the
    /// whole cache. Returns the other entries if they had to make room.
    pub(crate) fn insert(&mut self, channel: &[u8], patterns: &Arc<[Name]>) -> Self {
        let bytes = ENTRY_BYTES + channel.len() + size_of_val(&**patterns);
        let mut removed = Self::default();
        if bytes > limits::PATTERN_CACHE_BYTES_MAX {
            return removed;
        }
        if self.bytes + bytes > limits::PATTERN_CACHE_BYTES_MAX {
            removed = std::mem::take(self);
        }
        self.bytes += bytes;
        self.by_channel.insert(channel.into(), Arc::clone(patterns));
        removed
    }
}
