//! Messages to subscribers, framed as in Redis: arrays in RESP2, pushes in RESP3.

use crate::resp::{Pieces as _, Version, Writer};
use crate::verbs::By;

/// The kind of change of a subscription.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    /// The connection is subscribed now.
    Subscribed,
    /// The connection is not subscribed now. It may not have been before.
    Unsubscribed,
}

/// Appends the confirmation of a change: the channel or pattern, `None` if there was none to unsubscribe from, and
/// the number of subscriptions that the connection has now.
pub fn encode_change(
    out: &mut Vec<u8>,
    version: Version,
    change: Change,
    by: By,
    name: Option<&[u8]>,
    count: usize,
) {
    let w = &mut Writer::new(out, version);
    w.push(3);
    w.bulk(match (change, by) {
        (Change::Subscribed, By::Channel) => b"subscribe",
        (Change::Subscribed, By::Pattern) => b"psubscribe",
        (Change::Unsubscribed, By::Channel) => b"unsubscribe",
        (Change::Unsubscribed, By::Pattern) => b"punsubscribe",
    });
    match name {
        Some(name) => w.bulk(name),
        None => w.null(),
    }
    w.count(count as u64);
}

/// Appends a message, with the pattern if it is sent for a pattern subscription.
pub fn encode_message(
    out: &mut Vec<u8>,
    version: Version,
    pattern: Option<&[u8]>,
    channel: &[u8],
    payload: &[u8],
) {
    let w = &mut Writer::new(out, version);
    if let Some(pattern) = pattern {
        w.push(4);
        w.bulk(b"pmessage");
        w.bulk(pattern);
    } else {
        w.push(3);
        w.bulk(b"message");
    }
    w.bulk(channel);
    w.bulk(payload);
}

/// Appends the reply to PING for a subscribed connection. In RESP2 it is an array, which a client can distinguish
/// from messages.
pub fn encode_pong(out: &mut Vec<u8>, text: Option<&[u8]>) {
    let w = &mut Writer::new(out, Version::Resp2);
    w.array(2);
    w.bulk(b"pong");
    w.bulk(text.unwrap_or_default());
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(encode: impl Fn(&mut Vec<u8>, Version), expect: &str) {
        for (version, marker) in [(Version::Resp2, "*"), (Version::Resp3, ">")] {
            let mut out = Vec::new();
            encode(&mut out, version);
            assert_eq!(String::from_utf8(out).unwrap(), format!("{marker}{expect}"), "{version:?}");
        }
    }

    #[test]
    fn frames() {
        check(
            |out, v| encode_change(out, v, Change::Subscribed, By::Pattern, Some(b"a*"), 12),
            "3\r\n$10\r\npsubscribe\r\n$2\r\na*\r\n:12\r\n",
        );
        check(
            |out, v| encode_message(out, v, None, b"c", b""),
            "3\r\n$7\r\nmessage\r\n$1\r\nc\r\n$0\r\n\r\n",
        );
        check(
            |out, v| encode_message(out, v, Some(b"*"), b"c", b"7"),
            "4\r\n$8\r\npmessage\r\n$1\r\n*\r\n$1\r\nc\r\n$1\r\n7\r\n",
        );
    }

    #[test]
    fn unsubscribing_without_subscriptions_is_confirmed_once() {
        for (version, expect) in [
            (Version::Resp2, "*3\r\n$11\r\nunsubscribe\r\n$-1\r\n:0\r\n"),
            (Version::Resp3, ">3\r\n$11\r\nunsubscribe\r\n_\r\n:0\r\n"),
        ] {
            let mut out = Vec::new();
            encode_change(&mut out, version, Change::Unsubscribed, By::Channel, None, 0);
            assert_eq!(String::from_utf8(out).unwrap(), expect);
        }
    }
}
