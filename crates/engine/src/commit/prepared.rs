//! Large payloads, which are encoded and checksummed before the state lock is taken.
//!
//! An event consists of a few bytes and its payloads. The few bytes depend on the state and are encoded under the lock;
//! the payloads do not. This module encodes the section of payloads of one event, in the format of the log:
//!
//! ```text
//! | length | checksum | payload | length | checksum | payload | ..
//! ```
//!
//! The frame writes the section without copying it, and payloads of replies are slices of it. In a store in memory,
//! each payload is allocated by itself instead, since it is freed with its task.

use std::hash::Hasher;
use std::sync::Arc;

use siphasher::sip128::{Hasher128, SipHasher13};
use sureq_core::command::NameArg;
use sureq_core::event::{Event, Payloads};
use sureq_core::{Command, codec};

use crate::payload::body::Body;
use crate::shared::Shared;

/// Payloads of one command that are smaller in total are copied under the lock: that costs less than a frame of their
/// own.
pub(crate) const LARGE_BYTES: usize = 256 << 10;

#[cfg(test)]
thread_local! {
    /// The payload bytes that this thread has prepared.
    pub(crate) static PREPARED_BYTES: std::cell::Cell<usize> = const { std::cell::Cell::new(0) };
}

/// The encoded payloads of an event.
pub(crate) struct Prepared {
    source: Source,
    pub(crate) form: Form,
    /// The hash of the payload, if it is the task's name.
    hash: Option<u128>,
}

/// How payloads are prepared.
pub(crate) enum Form {
    /// In the format of the log.
    Section(Arc<[u8]>),
    /// Each allocated by itself.
    Bodies(Vec<Body>),
}

/// The address of the payloads in the command. It identifies them, since the command outlives its execution.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Source {
    address: usize,
    len: usize,
    count: usize,
}

impl Source {
    fn of(payloads: &[&[u8]]) -> Option<Self> {
        let first = payloads.first()?;
        Some(Self { address: first.as_ptr().addr(), len: first.len(), count: payloads.len() })
    }
}

pub(crate) fn payload_bytes(command: &Command<'_>) -> usize {
    match command {
        Command::Push { payloads, .. } => payloads.iter().map(|payload| payload.len()).sum(),
        Command::Add(add) => add.payload.len(),
        _ => 0,
    }
}

impl Prepared {
    /// Encodes payloads for the log.
    pub(crate) fn section(payloads: &[&[u8]]) -> Option<Self> {
        let each = |payload: &&[u8]| codec::payload_head_len(payload.len()) + payload.len();
        let mut section: Arc<[u8]> = std::iter::repeat_n(0, payloads.iter().map(each).sum()).collect();
        let mut rest = Arc::get_mut(&mut section).expect("it is not shared yet");
        for payload in payloads {
            let written = codec::write_payload(payload, rest, crc32c::crc32c);
            rest = &mut rest[written..];
        }
        Some(Self { source: Source::of(payloads)?, form: Form::Section(section), hash: None })
    }

    /// Copies payloads for a store in memory.
    fn bodies(payloads: &[&[u8]]) -> Option<Self> {
        let bodies = payloads.iter().map(|&payload| Body::from(payload)).collect();
        Some(Self { source: Source::of(payloads)?, form: Form::Bodies(bodies), hash: None })
    }

    /// The section, unless this is for a store in memory.
    pub(crate) fn into_section(self) -> Option<Arc<[u8]>> {
        match self.form {
            Form::Section(section) => Some(section),
            Form::Bodies(_) => None,
        }
    }

    /// Whether these payloads are those of the event.
    pub(crate) fn is_of(&self, event: &Event<'_>) -> bool {
        let source = match event {
            Event::Pushed { payloads: Payloads::Slices(payloads), .. } => Source::of(payloads),
            Event::Task(task) => Source::of(&[task.payload]),
            _ => None,
        };
        source == Some(self.source)
    }

    pub(crate) fn hash_of(&self, payload: &[u8]) -> Option<u128> {
        self.hash.filter(|_| Source::of(&[payload]) == Some(self.source))
    }
}

/// The hash of a payload with the key of a store.
pub(crate) fn payload_hash(key: &[u8; 16], payload: &[u8]) -> u128 {
    let mut hasher = SipHasher13::new_with_key(key);
    hasher.write(payload);
    hasher.finish128().as_u128()
}

impl Shared {
    /// Encodes the payloads of a command if they are large. Must not be called with the lock.
    pub(crate) fn prepare(&self, command: &Command<'_>) -> Option<Prepared> {
        if payload_bytes(command) < LARGE_BYTES || self.durable.failure().is_some() {
            return None;
        }
        // A command that will be refused is not worth the memory.
        let is_refused = |shared: &Self| {
            let state = shared.lock();
            state.closing || shared.refusal(&state, command).is_some()
        };
        if command.check().is_err() || is_refused(self) {
            return None;
        }
        #[cfg(test)]
        PREPARED_BYTES.set(PREPARED_BYTES.get() + payload_bytes(command));
        let is_kept = self.loader.is_some();
        let prepare = if is_kept { Prepared::section } else { Prepared::bodies };
        match command {
            Command::Push { payloads, .. } => prepare(payloads),
            Command::Add(add) => {
                let mut prepared = prepare(&[add.payload])?;
                let is_named = add.name == Some(NameArg::Payload);
                prepared.hash = is_named.then(|| payload_hash(&self.hash_key, add.payload));
                Some(prepared)
            }
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use sureq_core::TaskId;
    use sureq_core::event::{Fields, QueueNo};

    use super::*;

    /// The event around the section has the same bytes as the event encoded at once.
    #[test]
    fn an_event_around_its_section_is_the_event() {
        let large = vec![7; 1 << 20];
        for payloads in [&[&large[..]][..], &[b"", b"x", &large, b"", &large[..300]]] {
            let event = Event::Pushed {
                queue: QueueNo(300),
                first: TaskId::new(1 << 40, 1).expect("an id"),
                payloads: Payloads::Slices(payloads),
                fields: Fields { priority: 3, ..Fields::default() },
            };
            let prepared = Prepared::section(payloads).expect("there are payloads");
            assert!(prepared.is_of(&event));
            let Form::Section(section) = &prepared.form else { panic!("it is for the log") };
            let (mut whole, mut around) = (b"before".to_vec(), b"before".to_vec());
            let at = codec::encode_with(&event, &mut whole, crc32c::crc32c);
            assert_eq!(codec::encode_around_payloads(&event, &mut around), at);
            let behind = around.split_off(at.expect("it has payloads"));
            assert!([&around[..], section, &behind].concat() == whole);
        }
    }

    #[test]
    fn a_prepared_section_matches_only_its_own_payloads() {
        let (one, other) = (vec![1; 100], vec![1; 100]);
        let prepared = Prepared::section(&[&one, &other]).expect("there are payloads");
        let is_of = |payloads: &[&[u8]]| {
            prepared.is_of(&Event::Pushed {
                queue: QueueNo(1),
                first: TaskId::new(1 << 40, 1).expect("an id"),
                payloads: Payloads::Slices(payloads),
                fields: Fields::default(),
            })
        };
        assert!(is_of(&[&one, &other]));
        assert!(!is_of(&[&other, &one]) && !is_of(&[&one]) && !is_of(&[&one[..99], &other]) && !is_of(&[]));
    }
}
