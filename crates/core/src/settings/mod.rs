//! The settings of a queue: defaults for its tasks, and bounds.

mod words;

use alloc::boxed::Box;

use crate::limits;

pub use words::{BadSetting, Changes, SettingValue, SettingWords};

/// The destination of a returned task.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Place {
    /// The front, before all tasks of its priority.
    Front,
    Back,
    /// The back, after this many milliseconds.
    After(u64),
}

/// The fate of a task whose time to live ends.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Expired {
    /// The task is removed.
    #[default]
    Delete,
    /// The task is dead.
    Dead,
}

/// The handling of a push into a full queue.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Overflow {
    /// The push is refused as a whole.
    #[default]
    Refuse,
    /// The oldest waiting tasks are dropped to make room.
    DropOldest,
}

/// The settings of a queue; `None` means the default.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Settings {
    /// The length of a lease whose pop gives neither a length nor a holder, in milliseconds.
    pub lease_ms: Option<u64>,
    /// The number of tries before a task is dead.
    pub tries: Option<u32>,
    /// The first wait of the backoff in milliseconds.
    pub backoff_ms: Option<u64>,
    /// The time to live of tasks in milliseconds.
    pub ttl_ms: Option<u64>,
    /// The fate of expired tasks.
    pub expired: Expired,
    /// The maximum number of ready and delayed tasks.
    pub max_length: Option<u64>,
    /// The maximum number of payload bytes of ready and delayed tasks.
    pub max_bytes: Option<u64>,
    /// The handling of a push beyond these limits.
    pub overflow: Overflow,
    /// The maximum number of tasks that may be leased at once.
    pub max_leased: Option<u64>,
    /// The queue that dead tasks move to.
    pub dead_letter: Option<Box<[u8]>>,
}

/// A new value for the field of the same name in [`Settings`]. Zero, or an empty name, restores the default.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change<'a> {
    LeaseMs(u64),
    Tries(u32),
    BackoffMs(u64),
    TtlMs(u64),
    Expired(Expired),
    MaxLength(u64),
    MaxBytes(u64),
    Overflow(Overflow),
    MaxLeased(u64),
    DeadLetter(&'a [u8]),
}

impl Settings {
    /// The number of tries before a task is dead, unless the task has its own number.
    pub fn tries(&self) -> u32 {
        self.tries.unwrap_or(limits::TRIES_DEFAULT)
    }

    /// The first wait of the backoff in milliseconds, unless the task has its own.
    pub fn backoff_ms(&self) -> u64 {
        self.backoff_ms.unwrap_or(limits::BACKOFF_MS_DEFAULT)
    }

    pub fn is_default(&self) -> bool {
        *self == Self::default()
    }

    pub fn change(&mut self, change: &Change<'_>) {
        match *change {
            Change::LeaseMs(ms) => self.lease_ms = Some(ms).filter(|&n| n > 0),
            Change::Tries(n) => self.tries = Some(n).filter(|&n| n > 0),
            Change::BackoffMs(ms) => self.backoff_ms = Some(ms).filter(|&n| n > 0),
            Change::TtlMs(ms) => self.ttl_ms = Some(ms).filter(|&n| n > 0),
            Change::Expired(expired) => self.expired = expired,
            Change::MaxLength(n) => self.max_length = Some(n).filter(|&n| n > 0),
            Change::MaxBytes(n) => self.max_bytes = Some(n).filter(|&n| n > 0),
            Change::Overflow(overflow) => self.overflow = overflow,
            Change::MaxLeased(n) => self.max_leased = Some(n).filter(|&n| n > 0),
            Change::DeadLetter(name) => {
                self.dead_letter = Some(name).filter(|n| !n.is_empty()).map(Into::into);
            }
        }
    }
}
