//! Names of notification channels: `sureq:<kind>:<queue>`.

use sureq_core::notice::{Kind, Kinds};

const PREFIX: &[u8] = b"sureq:";

/// The kind and the queue of a channel. `None` if nothing is ever published on a channel of this name.
///
/// ```
/// use sureq_core::notice::Kind;
/// use sureq_proto::channel;
///
/// assert_eq!(channel::read(b"sureq:work:emails"), Some((Kind::Work, &b"emails"[..])));
/// assert_eq!(channel::read(b"news"), None);
/// ```
pub fn read(channel: &[u8]) -> Option<(Kind, &[u8])> {
    let rest = channel.strip_prefix(PREFIX)?;
    let kinds = Kind::ALL.into_iter();
    let mut found = kinds.filter_map(|kind| Some((kind, rest.strip_prefix(kind.name().as_bytes())?)));
    found.find_map(|(kind, rest)| Some((kind, rest.strip_prefix(b":")?)))
}

/// Writes the channel of a kind and a queue to `out`, replacing its content.
pub fn write(kind: Kind, queue: &[u8], out: &mut Vec<u8>) {
    out.clear();
    for part in [PREFIX, kind.name().as_bytes(), b":", queue] {
        out.extend_from_slice(part);
    }
}

/// The kinds of channels that a pattern may match. Exact for a pattern that begins with literal characters, otherwise
/// possibly too many.
pub fn kinds_of_pattern(pattern: &[u8]) -> Kinds {
    let is_plain = |c: &u8| !matches!(c, b'*' | b'?' | b'[' | b'\\');
    let plain = pattern.iter().take_while(|c| is_plain(c)).count();
    let plain = &pattern[..plain];
    let mut head = Vec::new();
    let may_match = |kind: &Kind| {
        write(*kind, b"", &mut head);
        plain.starts_with(&head) || head.starts_with(plain) && plain.len() < pattern.len()
    };
    Kind::ALL.into_iter().filter(may_match).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_the_channels_that_it_writes() {
        let mut channel = Vec::new();
        for kind in Kind::ALL {
            for queue in [&b""[..], b"emails", b"a:b", b"\0\xff"] {
                write(kind, queue, &mut channel);
                assert_eq!(read(&channel), Some((kind, queue)));
            }
        }
        for other in [&b""[..], b"sureq:", b"sureq:work", b"sureq:works:q", b"Sureq:work:q", b"worqr_q_work"]
        {
            assert_eq!(read(other), None, "{:?}", other.escape_ascii().to_string());
        }
    }

    fn check(pattern: &str, expect: &[Kind]) {
        let kinds = kinds_of_pattern(pattern.as_bytes());
        assert!(kinds.iter().eq(expect.iter().copied()), "{pattern}: {kinds:?}");
    }

    #[test]
    fn kinds_of_a_pattern_follow_from_its_literal_prefix() {
        for everything in ["*", "sureq:*", "s?req:work:x", "[s]ureq:*", "sureq:\\work:*"] {
            check(everything, &Kind::ALL);
        }
        check("sureq:done:*", &[Kind::Done]);
        check("sureq:d*:x", &[Kind::Done, Kind::Delete]);
        check("sureq:cancel:[ab]", &[Kind::Cancel]);
        check("sureq:work:emails", &[Kind::Work]);
        for nothing in ["", "news.*", "sureq", "sureq:work", "sureq.*"] {
            check(nothing, &[]);
        }
    }
}
