//! The names of channels, on which scripts and other programs tell what they did to a queue.

use crate::layout::Layout;

/// How channels are named.
#[derive(Clone, Debug)]
pub(crate) struct Channels {
    pub(crate) prefix: String,
    pub(crate) layout: Layout,
}

impl Channels {
    /// The channel on which this is told of a queue.
    pub(crate) fn name(&self, kind: &str, queue: &[u8]) -> Vec<u8> {
        let (before, behind) = self.around(kind);
        [before.as_bytes(), queue, behind.as_bytes()].concat()
    }

    /// The queue that a channel is about, if it is one on which this is told.
    pub(crate) fn queue<'a>(&self, kind: &str, channel: &'a [u8]) -> Option<&'a [u8]> {
        let (before, behind) = self.around(kind);
        channel.strip_prefix(before.as_bytes())?.strip_suffix(behind.as_bytes())
    }

    /// What matches the channels on which this is told of any queue. What the prefix says is meant as it stands.
    pub(crate) fn pattern(&self, kind: &str) -> Vec<u8> {
        let (before, behind) = self.around(kind);
        let mut pattern = Vec::new();
        for c in before.bytes() {
            if matches!(c, b'*' | b'?' | b'[' | b']' | b'\\') {
                pattern.push(b'\\');
            }
            pattern.push(c);
        }
        pattern.push(b'*');
        pattern.extend_from_slice(behind.as_bytes());
        pattern
    }

    /// What stands before the name of the queue, and what behind it.
    fn around(&self, kind: &str) -> (String, String) {
        match self.layout {
            Layout::Worqr => (format!("{}_", self.prefix), format!("_{kind}")),
            _ => (format!("{}{kind}:", self.prefix), String::new()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn channels_are_named_as_the_layout_has_it() {
        let ours = Channels { prefix: "jobs*:".into(), layout: Layout::Sureq };
        assert_eq!(ours.name("work", b"a"), b"jobs*:work:a");
        assert_eq!(ours.queue("work", b"jobs*:work:a"), Some(&b"a"[..]));
        assert_eq!(ours.queue("done", b"jobs*:work:a"), None);
        assert_eq!(ours.pattern("work"), b"jobs\\*:work:*");
        let theirs = Channels { prefix: "worqr".into(), layout: Layout::Worqr };
        assert_eq!(theirs.name("work", b"a_b"), b"worqr_a_b_work");
        assert_eq!(theirs.queue("work", b"worqr_a_b_work"), Some(&b"a_b"[..]));
        assert_eq!(theirs.pattern("cancel"), b"worqr_*_cancel");
    }
}
