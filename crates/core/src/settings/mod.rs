//! What a queue may be told: its defaults and bounds.

mod words;

use alloc::boxed::Box;

use crate::limits;

pub use words::{BadSetting, Changes, SettingWords, Shown};

/// Where a task goes back to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Place {
    /// Next in line, before all of its priority.
    Front,
    /// Last in line.
    Back,
    /// Last in line, once so many milliseconds have passed.
    After(u64),
}

/// What becomes of a task whose time to live is over.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Expired {
    /// It is gone: whoever set a time to live asked for it.
    #[default]
    Delete,
    /// It is kept among the dead.
    Dead,
}

/// What a push into a full queue does.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Overflow {
    /// It is refused, whole.
    #[default]
    Refuse,
    /// The oldest waiting tasks make room.
    DropOldest,
}

/// The settings of a queue; `None` is the default of everything.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Settings {
    /// The deadline of a pop that does not name one.
    pub lease_ms: Option<u64>,
    /// Tries before a task is dead.
    pub tries: Option<u32>,
    /// The first wait of the backoff.
    pub backoff_ms: Option<u64>,
    /// How long a task may wait.
    pub ttl_ms: Option<u64>,
    /// What then.
    pub expired: Expired,
    /// How many tasks may wait.
    pub max_length: Option<u64>,
    /// How many payload bytes may wait.
    pub max_bytes: Option<u64>,
    /// What a push beyond that does.
    pub overflow: Overflow,
    /// How many may be leased at once.
    pub max_leased: Option<u64>,
    /// Where tasks go instead of dying here.
    pub dead_letter: Option<Box<[u8]>>,
}

/// One change of the settings. A zero or an empty name clears.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change<'a> {
    /// The default lease.
    LeaseMs(u64),
    /// Tries before a task is dead.
    Tries(u32),
    /// The first wait of the backoff.
    BackoffMs(u64),
    /// How long a task may wait.
    TtlMs(u64),
    /// What becomes of expired tasks.
    Expired(Expired),
    /// How many tasks may wait.
    MaxLength(u64),
    /// How many payload bytes may wait.
    MaxBytes(u64),
    /// What a push beyond that does.
    Overflow(Overflow),
    /// How many may be leased at once.
    MaxLeased(u64),
    /// The queue that dying tasks move to.
    DeadLetter(&'a [u8]),
}

impl Settings {
    /// Tries before a task of this queue is dead, unless the task says otherwise.
    pub fn tries(&self) -> u32 {
        self.tries.unwrap_or(limits::TRIES_DEFAULT)
    }

    /// The first wait of the backoff, unless the task says otherwise.
    pub fn backoff_ms(&self) -> u64 {
        self.backoff_ms.unwrap_or(limits::BACKOFF_MS_DEFAULT)
    }

    /// Whether nothing was ever set, or all was cleared.
    pub fn is_default(&self) -> bool {
        *self == Self::default()
    }

    /// Takes one change in.
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
