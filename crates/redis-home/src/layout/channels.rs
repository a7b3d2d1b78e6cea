//! The names of channels, on which scripts and other programs publish changes of a queue.

use super::Layout;

/// The channels of a layout under a prefix.
#[derive(Clone, Copy, Debug)]
pub struct Channels<'a> {
    pub(crate) prefix: &'a str,
    pub(crate) layout: &'a dyn Layout,
}

impl Channels<'_> {
    /// The channel for messages of a kind about a queue.
    pub fn name(&self, kind: &str, queue: &[u8]) -> Vec<u8> {
        let (before, behind) = self.around(kind);
        [before.as_bytes(), queue, behind.as_bytes()].concat()
    }

    /// The queue of a channel, if it is one for messages of this kind.
    pub fn queue<'c>(&self, kind: &str, channel: &'c [u8]) -> Option<&'c [u8]> {
        let (before, behind) = self.around(kind);
        channel.strip_prefix(before.as_bytes())?.strip_suffix(behind.as_bytes())
    }

    /// The pattern that matches the channels for messages of a kind. Special characters in the prefix are escaped.
    pub fn pattern(&self, kind: &str) -> Vec<u8> {
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

    /// Whether anything is published at all.
    pub(crate) fn are_there(&self) -> bool {
        self.layout.channel(self.prefix, "").is_some()
    }

    /// The text before and after a queue's name.
    fn around(&self, kind: &str) -> (String, String) {
        self.layout.channel(self.prefix, kind).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use crate::Target;

    #[test]
    fn channels_are_named_as_the_layout_has_it() {
        let target = Target::parse("redis://h?prefix=jobs*:").unwrap();
        let channels = target.channels();
        assert_eq!(channels.name("work", b"a"), b"jobs*:work:a");
        assert_eq!(channels.queue("work", b"jobs*:work:a"), Some(&b"a"[..]));
        assert_eq!(channels.queue("done", b"jobs*:work:a"), None);
        assert_eq!(channels.pattern("work"), b"jobs\\*:work:*");
    }
}
