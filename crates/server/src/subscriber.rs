//! The subscriptions of one connection, and the delivery of its messages.

use std::collections::BTreeSet;
use std::io;
use std::sync::Arc;
use std::task::Waker;

use sureq_core::command::ConnId;
use sureq_core::limits;
use sureq_home_api::{NoticeTasks, Position};
use sureq_proto::resp::{Pieces as _, Version, Writer};
use sureq_proto::verbs::By;
use sureq_proto::{Change, channel, decimal, encode_change, encode_message};

use crate::output::Output;
use crate::subscriptions::{GivenUp, Letter, Mailbox, Name, Subscriptions};

/// Messages are encoded only while fewer bytes than this are unsent, so that a slow subscriber has a small output
/// buffer.
const SPELT_BYTES_MAX: usize = 64 << 10;

/// The approximate memory of a subscription besides its name: its entries in maps.
const SUBSCRIPTION_BYTES: usize = 192;

/// A connection with at least one subscription.
pub(crate) struct Subscriber {
    conn: ConnId,
    all: Arc<Subscriptions>,
    mailbox: Arc<Mailbox>,
    channels: BTreeSet<Name>,
    patterns: BTreeSet<Name>,
    /// A message that is partly encoded, and the index of the next task in it.
    open: Option<(Letter, usize)>,
    /// The memory of the names in bytes.
    bytes: usize,
}

impl Subscriber {
    /// A connection that is about to subscribe. The waker wakes it when messages arrive.
    pub(crate) fn new(conn: ConnId, all: &Arc<Subscriptions>, waker: Waker) -> Self {
        all.join();
        Self {
            conn,
            all: Arc::clone(all),
            mailbox: Arc::new(Mailbox::new(waker)),
            channels: BTreeSet::new(),
            patterns: BTreeSet::new(),
            open: None,
            bytes: 0,
        }
    }

    /// The numbers of channels and patterns that it has subscribed to.
    pub(crate) fn counts(&self) -> (usize, usize) {
        (self.channels.len(), self.patterns.len())
    }

    fn len(&self) -> usize {
        self.channels.len() + self.patterns.len()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The memory that it uses, in bytes.
    pub(crate) fn bytes(&self) -> usize {
        self.bytes + self.mailbox.bytes()
    }

    fn names(&mut self, by: By) -> &mut BTreeSet<Name> {
        match by {
            By::Channel => &mut self.channels,
            By::Pattern => &mut self.patterns,
        }
    }

    /// Subscribes to each name, and confirms each. If a limit would be exceeded, the whole command is refused.
    pub(crate) fn subscribe(
        &mut self,
        by: By,
        names: &[&[u8]],
        version: Version,
        out: &mut Vec<u8>,
    ) -> Result<(), String> {
        let max = limits::SUBSCRIPTIONS_MAX;
        if self.len() + names.len() > max {
            return Err(format!("ERR a connection can subscribe to {max} channels and patterns at most"));
        }
        let max = limits::CHANNEL_BYTES_MAX;
        if names.iter().any(|name| name.len() > max) {
            return Err(format!("ERR a channel or pattern can have {max} bytes at most"));
        }
        for &name in names {
            if !self.names(by).contains(name) {
                let shared = self.all.add(by, name, self.conn, &self.mailbox);
                self.names(by).insert(shared);
                self.bytes += name.len() + SUBSCRIPTION_BYTES;
            }
            encode_change(out, version, Change::Subscribed, by, Some(name), self.len());
        }
        Ok(())
    }

    /// Unsubscribes from each, or from all if none is named, and confirms each. One that was given up stays subscribed.
    pub(crate) fn unsubscribe(
        &mut self,
        by: By,
        names: &[&[u8]],
        version: Version,
        out: &mut Output,
    ) -> Result<(), GivenUp> {
        // Earlier messages come before the confirmation.
        self.read_mail(version, out)?;
        let out = out.bytes_mut();
        if !names.is_empty() {
            for &name in names {
                self.leave(by, name);
                encode_change(out, version, Change::Unsubscribed, by, Some(name), self.len());
            }
            return Ok(());
        }
        let all = self.names(by).clone();
        for name in &all {
            self.leave(by, name);
            encode_change(out, version, Change::Unsubscribed, by, Some(name), self.len());
        }
        if all.is_empty() {
            encode_change(out, version, Change::Unsubscribed, by, None, self.len());
        }
        Ok(())
    }

    fn leave(&mut self, by: By, name: &[u8]) {
        if let Some(name) = self.names(by).take(name) {
            self.all.remove(by, &name, self.conn);
            self.bytes -= name.len() + SUBSCRIPTION_BYTES;
        }
    }

    /// Encodes messages as far as there is room. Returns whether there were any. An error ends the connection.
    pub(crate) fn push_messages(&mut self, version: Version, out: &mut Output) -> io::Result<bool> {
        self.read_mail(version, out).map_err(|why| {
            if why == GivenUp::TooCostly {
                Writer::new(out.bytes_mut(), version).error(format_args!(
                    "ERR the patterns of this connection took more than {} steps to match a message",
                    limits::NOTICE_STEPS_MAX
                ));
                out.gate(Position::START);
            }
            self.disconnected(why)
        })
    }

    /// Checks that no mail is missing. An error ends the connection.
    pub(crate) fn check_messages(&self) -> io::Result<()> {
        self.mailbox.check().map_err(|why| self.disconnected(why))
    }

    /// Whether mail is missing, so that it is to be disconnected.
    pub(crate) fn is_given_up(&self) -> bool {
        self.mailbox.check().is_err()
    }

    /// Counts that it is disconnected.
    fn disconnected(&self, why: GivenUp) -> io::Error {
        self.all.count_disconnected(why);
        match why {
            GivenUp::TooSlow => io::ErrorKind::TimedOut.into(),
            GivenUp::TooCostly => io::ErrorKind::QuotaExceeded.into(),
        }
    }

    fn read_mail(&mut self, version: Version, out: &mut Output) -> Result<bool, GivenUp> {
        // Check this even if there is no room: a subscriber that reads nothing must be disconnected too.
        self.mailbox.check()?;
        let start = out.end();
        while out.len() < SPELT_BYTES_MAX {
            let Some((letter, from)) = self.next_letter()? else { break };
            let upto = encode(&letter, from, version, out);
            self.open = upto.map(|upto| (letter, upto));
        }
        if out.end() == start {
            return Ok(false);
        }
        // The home publishes only notices of durable changes.
        out.gate(Position::START);
        Ok(true)
    }

    fn next_letter(&mut self) -> Result<Option<(Letter, usize)>, GivenUp> {
        loop {
            let next = match self.open.take() {
                Some(open) => Some(open),
                None => self.mailbox.take()?.map(|letter| (letter, 0)),
            };
            // The client has unsubscribed after the notice was put into the mailbox.
            match next {
                Some((letter, _)) if !self.names(letter.by).contains(&letter.name) => {}
                next => return Ok(next),
            }
        }
    }
}

/// Encodes a message from a task on until the output is full enough. Returns the index of the next task, or `None` if
/// the message is complete.
fn encode(letter: &Letter, from: usize, version: Version, out: &mut Output) -> Option<usize> {
    let mut channel = Vec::new();
    let (pattern, channel) = match letter.by {
        By::Channel => (None, &*letter.name),
        By::Pattern => {
            channel::write(letter.notice.kind, &letter.notice.queue, &mut channel);
            (Some(&*letter.name), &channel[..])
        }
    };
    match &letter.notice.tasks {
        NoticeTasks::Count(count) => {
            let mut payload = Vec::new();
            decimal::write_u64(&mut payload, *count);
            encode_message(out.bytes_mut(), version, pattern, channel, &payload);
        }
        NoticeTasks::Ids(ids) => {
            for (index, id) in ids.iter().enumerate().skip(from) {
                if out.len() >= SPELT_BYTES_MAX {
                    return Some(index);
                }
                encode_message(out.bytes_mut(), version, pattern, channel, id.to_string().as_bytes());
            }
        }
        NoticeTasks::Foreign(text) => encode_message(out.bytes_mut(), version, pattern, channel, text),
    }
    None
}

impl Drop for Subscriber {
    fn drop(&mut self) {
        self.all.leave();
        for by in [By::Channel, By::Pattern] {
            for name in std::mem::take(self.names(by)) {
                self.all.remove(by, &name, self.conn);
            }
        }
    }
}
