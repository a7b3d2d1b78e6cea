//! The result of a check.

use std::fmt;

use crate::fault::Damage;
use crate::log::Position;

/// The result of a check of a store.
#[derive(Clone, Debug, Default)]
pub struct Report {
    /// The format of its log.
    pub format: u32,
    /// The store's identity, if it is known.
    pub uuid: Option<[u8; 16]>,
    /// The incarnation of its last start.
    pub incarnation: u64,
    /// The position of the first event that its files still contain.
    pub begin: Position,
    /// The position after its last event.
    pub end: Position,
    /// The number of the checkpoint that a start would begin from.
    pub starts_from: Option<u64>,
    /// Why a start would refuse the store, if it would.
    pub refusal: Option<String>,
    /// The segments of its log, in order.
    pub segments: Vec<SegmentReport>,
    /// The files of its checkpoints, including those that checkpoints share, in order.
    pub checkpoints: Vec<CheckpointReport>,
    /// Whether a state could be built; if not, the queues and tasks are unknown.
    pub has_state: bool,
    /// Its queues, by name.
    pub queues: Vec<QueueReport>,
    pub workers: u64,
    /// The most bytes that the existing tasks take up in the log.
    pub live_bytes: u64,
    /// The rest of the log: finished tasks, and events that a checkpoint contains.
    pub dead_bytes: u64,
    /// The number of spare files, and their bytes.
    pub spares: (u64, u64),
    /// Damage and notes.
    pub findings: Vec<Finding>,
    /// The number of tasks that have lost their payloads, besides those with findings of their own.
    pub unlisted_payloads: u64,
}

/// A segment of the log.
#[derive(Clone, Debug)]
pub struct SegmentReport {
    pub file: String,
    /// The length of the file.
    pub bytes: u64,
    /// The bytes up to the end of the last sound frame.
    pub used_bytes: u64,
    pub first: Position,
    /// The position after its last event.
    pub end: Position,
    /// The number of sound frames.
    pub frames: u64,
    /// The number of payloads of existing tasks.
    pub live_tasks: u64,
    /// The most bytes that those tasks take up in it.
    pub live_bytes: u64,
}

/// A file of one or several checkpoints.
#[derive(Clone, Debug)]
pub struct CheckpointReport {
    pub file: String,
    /// The length of the file.
    pub bytes: u64,
    /// The position of the checkpoint; `None` for a file that is only kept for blobs that checkpoints refer to.
    pub position: Option<Position>,
    /// Whether the state can be restored from it and the log behind it.
    pub restores: bool,
}

/// A queue, and the number of its tasks in each state.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct QueueReport {
    pub name: Vec<u8>,
    /// Tasks that can be popped.
    pub ready: u64,
    /// Tasks that are not due yet.
    pub delayed: u64,
    /// Tasks under a lease.
    pub leased: u64,
    /// Tasks that are out of tries.
    pub dead: u64,
    pub is_paused: bool,
    /// The bytes of all payloads.
    pub payload_bytes: u64,
}

impl QueueReport {
    pub fn tasks(&self) -> u64 {
        self.ready + self.delayed + self.leased + self.dead
    }
}

/// The severity of a finding.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Severity {
    /// A harmless leftover of a crash or of another program.
    Note,
    /// Data is missing or not as it was written.
    Damage,
}

/// An irregularity that a check found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    pub severity: Severity,
    pub file: String,
    /// The offset in the file, if it concerns one place.
    pub offset: Option<u64>,
    /// The position of the first affected event, if it is known.
    pub position: Option<Position>,
    /// The observation.
    pub what: String,
    /// The consequence.
    pub meaning: String,
    /// The remedy.
    pub advice: String,
}

/// The remedy for damage that a start cannot handle.
pub(crate) const REPAIR: &str =
    "keep the directory as it is, and save what can be saved with `sureq check --repair`";

impl Finding {
    pub(crate) fn damage(damage: &Damage, meaning: impl Into<String>, advice: impl Into<String>) -> Finding {
        Finding {
            severity: Severity::Damage,
            file: damage.file.clone(),
            offset: Some(damage.offset),
            position: damage.position,
            what: damage.what.clone(),
            meaning: meaning.into(),
            advice: advice.into(),
        }
    }

    /// Damage that does not concern one place.
    pub(crate) fn wrong(
        file: impl Into<String>,
        what: impl Into<String>,
        meaning: impl Into<String>,
        advice: impl Into<String>,
    ) -> Finding {
        Finding { severity: Severity::Damage, ..Finding::note(file, what, meaning, advice) }
    }

    pub(crate) fn note(
        file: impl Into<String>,
        what: impl Into<String>,
        meaning: impl Into<String>,
        advice: impl Into<String>,
    ) -> Finding {
        Finding {
            severity: Severity::Note,
            file: file.into(),
            offset: None,
            position: None,
            what: what.into(),
            meaning: meaning.into(),
            advice: advice.into(),
        }
    }

    pub(crate) fn at(self, offset: u64, position: Option<Position>) -> Finding {
        Finding { offset: Some(offset), position: position.or(self.position), ..self }
    }
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.file)?;
        if let Some(offset) = self.offset {
            write!(f, " at offset {offset}")?;
        }
        if let Some(position) = self.position {
            write!(f, " (position {position})")?;
        }
        write!(f, ": {}", self.what)
    }
}

impl Report {
    /// Whether nothing is damaged.
    pub fn is_sound(&self) -> bool {
        self.damages() == 0
    }

    /// The number of findings of damage.
    pub fn damages(&self) -> usize {
        self.findings.iter().filter(|finding| finding.severity == Severity::Damage).count()
    }

    pub fn tasks(&self) -> u64 {
        self.queues.iter().map(QueueReport::tasks).sum()
    }
}
