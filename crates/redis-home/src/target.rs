//! Which Redis, and how: what a URL says.

use redis::{ConnectionInfo, IntoConnectionInfo, ProtocolVersion};
use sureq_core::limits;

use crate::channels::Channels;
use crate::layout::{Layout, Wishes};

/// Where queues live in a Redis.
#[derive(Clone, Debug)]
pub struct Target {
    /// How to reach it.
    pub(crate) connection: ConnectionInfo,
    /// What all keys begin with.
    pub(crate) prefix: String,
    /// Whether an answer counts only once a replica has what it tells.
    pub(crate) is_replicated: bool,
    pub(crate) layout: Layout,
}

/// What is wrong with a URL.
#[derive(Debug, thiserror::Error)]
pub enum BadTarget {
    /// It is none of Redis.
    #[error("it does not say which Redis: write redis://[user:password@]host[:port][/database]: {0}")]
    Url(redis::RedisError),
    /// It asks for something that there is not.
    #[error(
        "there is no option {name:?}: known are layout, prefix, durability, with layout=work-queue also lease, and with \
         layout=redis-queue poptimeout, tasktimeout and exptime"
    )]
    Option {
        /// What it asks for.
        name: String,
    },
    /// It asks for a promise that there is not.
    #[error("there is no durability {durability:?}: write replicated, or leave it to Redis")]
    Durability {
        /// What it asks for.
        durability: String,
    },
    /// It asks for keys that this release does not know.
    #[error("there is no layout {layout:?}: known are sureq, work-queue, worqr and redis-queue")]
    Layout {
        /// What it asks for.
        layout: String,
    },
    /// It asks for a lease that there cannot be.
    #[error("{lease:?} is no lease: write milliseconds, at least 1")]
    Lease {
        /// What it asks for.
        lease: String,
    },
    /// It asks for a time that there cannot be.
    #[error("{name}={text} is no time: write whole seconds{}", if name == "poptimeout" { "" } else { ", at least 1" })]
    Seconds {
        /// Which time.
        name: String,
        /// What it asks for.
        text: String,
    },
}

impl Target {
    /// Understands `redis://…?option=value&…`.
    pub fn parse(url: &str) -> Result<Self, BadTarget> {
        let (address, options) = url.split_once('?').unwrap_or((url, ""));
        let is_socket = address.contains("unix:");
        // The address of a socket has its user and its database among the options.
        let mut address = format!("{address}?");
        let (mut layout, mut prefix, mut wishes, mut is_replicated) =
            ("sureq", None, Wishes::default(), false);
        for option in options.split('&').filter(|option| !option.is_empty()) {
            let (name, value) = option.split_once('=').unwrap_or((option, ""));
            match name {
                "prefix" => prefix = Some(value.to_owned()),
                "layout" => layout = value,
                "lease" => wishes.lease_ms = Some(lease_of(value)?),
                "poptimeout" => wishes.pop_s = Some(seconds_of(name, value, 0)?),
                "tasktimeout" => wishes.task_s = Some(seconds_of(name, value, 1)?),
                "exptime" => wishes.expire_s = Some(seconds_of(name, value, 1)?),
                "durability" if value == "replicated" => is_replicated = true,
                "durability" => return Err(BadTarget::Durability { durability: value.to_owned() }),
                "user" | "pass" | "db" if is_socket => address.extend([option, "&"]),
                _ => return Err(BadTarget::Option { name: name.to_owned() }),
            }
        }
        let layout = Layout::named(layout, &mut wishes)
            .ok_or_else(|| BadTarget::Layout { layout: layout.to_owned() })?;
        if let Some(name) = wishes.left() {
            return Err(BadTarget::Option { name: name.to_owned() });
        }
        let connection = address.into_connection_info().map_err(BadTarget::Url)?;
        let settings = connection.redis_settings().clone().set_protocol(ProtocolVersion::RESP3);
        let prefix = prefix.unwrap_or_else(|| layout.prefix().to_owned());
        Ok(Self { connection: connection.set_redis_settings(settings), prefix, layout, is_replicated })
    }

    /// The hash of the store.
    pub(crate) fn store_key(&self) -> Vec<u8> {
        format!("{}store", self.prefix).into_bytes()
    }

    /// Where the keys of a queue begin. They share what is in braces, and so their slot; Redis looks for no slot in empty
    /// braces.
    pub(crate) fn queue_key(&self, queue: &[u8]) -> Vec<u8> {
        let (before, letter): (_, &[u8]) =
            if queue.first().is_none_or(|&first| first == b'}') { ("x:{", b"x") } else { ("q:{", b"") };
        [self.prefix.as_bytes(), before.as_bytes(), letter, queue, b"}"].concat()
    }

    /// The list of ids that wait, in the keys of redis-work-queue.
    pub(crate) fn waiting_key(&self, queue: &[u8]) -> Vec<u8> {
        [self.prefix.as_bytes(), queue, b":queue"].concat()
    }

    /// The list of ids that somebody has, in the keys of redis-work-queue.
    pub(crate) fn processing_key(&self, queue: &[u8]) -> Vec<u8> {
        [self.prefix.as_bytes(), queue, b":processing"].concat()
    }

    /// The key by which a queue in the keys of another program is found, and its slot.
    pub(crate) fn foreign_key(&self, queue: &[u8]) -> Vec<u8> {
        match self.layout {
            Layout::Sureq | Layout::WorkQueue { .. } => self.waiting_key(queue),
            Layout::Worqr => [self.prefix.as_bytes(), b":queues:", queue].concat(),
            Layout::RedisQueue(_) => [self.prefix.as_bytes(), queue].concat(),
        }
    }

    /// The channels on which things are told of queues.
    pub(crate) fn channels(&self) -> Channels {
        Channels { prefix: self.prefix.clone(), layout: self.layout }
    }
}

fn lease_of(text: &str) -> Result<u64, BadTarget> {
    let bad = || BadTarget::Lease { lease: text.to_owned() };
    let ms = sureq_core::id::decimal(text.as_bytes()).ok_or_else(bad)?;
    if (1..=limits::SPAN_MS_MAX).contains(&ms) { Ok(ms) } else { Err(bad()) }
}

fn seconds_of(name: &str, text: &str, least: u64) -> Result<u64, BadTarget> {
    let seconds = sureq_core::id::decimal(text.as_bytes());
    let is_right = |seconds: &u64| (least..=limits::SPAN_MS_MAX / 1_000).contains(seconds);
    let bad = || BadTarget::Seconds { name: name.to_owned(), text: text.to_owned() };
    seconds.filter(is_right).ok_or_else(bad)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::redis_queue::Times;

    #[test]
    fn urls_say_where_and_how() {
        let target = Target::parse("redis://127.0.0.1:7000/3?prefix=jobs:&layout=sureq").unwrap();
        assert_eq!(target.prefix, "jobs:");
        assert_eq!(target.queue_key(b"a"), b"jobs:q:{a}");
        assert_eq!(target.queue_key(b""), b"jobs:x:{x}");
        assert_eq!(target.queue_key(b"}b"), b"jobs:x:{x}b}");
        assert!(Target::parse("redis://h").is_ok_and(|target| target.prefix == "sureq:"));
        assert!(matches!(Target::parse("redis://h?colour=red"), Err(BadTarget::Option { .. })));
        assert!(matches!(Target::parse("redis://h?layout=odd"), Err(BadTarget::Layout { .. })));
        assert!(matches!(Target::parse("redis://h?durability=some"), Err(BadTarget::Durability { .. })));
        assert!(Target::parse("redis://h?durability=replicated").unwrap().is_replicated);
        assert!(matches!(Target::parse("http://h"), Err(BadTarget::Url(_))));
        let target = Target::parse("redis://h?layout=work-queue&lease=250").unwrap();
        assert_eq!(target.layout, Layout::WorkQueue { lease_ms: 250 });
        assert_eq!(target.waiting_key(b"jobs"), b"jobs:queue");
        assert_eq!(target.processing_key(b"jobs"), b"jobs:processing");
        let target = Target::parse("redis://h?layout=work-queue&prefix=a:").unwrap();
        assert_eq!(target.waiting_key(b"jobs"), b"a:jobs:queue");
        assert!(matches!(Target::parse("redis://h?layout=work-queue&lease=0"), Err(BadTarget::Lease { .. })));
        assert!(matches!(Target::parse("redis://h?lease=5"), Err(BadTarget::Option { .. })));
    }

    #[test]
    fn layouts_have_options_of_their_own() {
        let target = Target::parse("redis://h?layout=worqr").unwrap();
        assert_eq!(target.foreign_key(b"jobs"), b"worqr:queues:jobs");
        let target = Target::parse("redis://h?tasktimeout=5&layout=redis-queue&exptime=9").unwrap();
        assert_eq!(target.layout, Layout::RedisQueue(Times { pop_s: 30, task_s: 5, expire_s: Some(9) }));
        assert_eq!(target.foreign_key(b"jobs"), b"jobs");
        let no = |url: &str| Target::parse(url).unwrap_err().to_string();
        assert!(no("redis://h?layout=worqr&lease=5").starts_with("there is no option \"lease\""));
        assert!(no("redis://h?layout=work-queue&exptime=5").starts_with("there is no option \"exptime\""));
        let url = "redis://h?layout=redis-queue&tasktimeout=0";
        assert_eq!(no(url), "tasktimeout=0 is no time: write whole seconds, at least 1");
    }
}
