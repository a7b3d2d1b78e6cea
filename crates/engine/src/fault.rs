//! Errors of the disk and of its contents, in three separate kinds.
//!
//! A [`Fault`] is a call that failed: it names the operation and the path. A [`Damage`] is content that contradicts
//! what was once made durable: it names file, offset and position. An [`OpenError`] is why a directory cannot be
//! served; when it is returned because of damage, nothing on disk has been changed.

use std::path::PathBuf;
use std::{error, fmt, io};

use rustix::io::Errno;

use crate::log::Position;

/// The call that failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operation {
    List,
    Create,
    Open,
    Measure,
    Read,
    Write,
    Sync,
    Rename,
    Remove,
    SyncDirectory,
    Lock,
    DrawEntropy,
}

impl fmt::Display for Operation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Operation::List => "list",
            Operation::Create => "create",
            Operation::Open => "open",
            Operation::Measure => "measure",
            Operation::Read => "read",
            Operation::Write => "write",
            Operation::Sync => "sync",
            Operation::Rename => "rename",
            Operation::Remove => "remove",
            Operation::SyncDirectory => "sync the directory",
            Operation::Lock => "lock",
            Operation::DrawEntropy => "draw random bytes from",
        })
    }
}

/// A call to the disk that failed.
#[derive(Debug, thiserror::Error)]
#[error("cannot {operation} {}: {source}", path.display())]
pub struct Fault {
    pub operation: Operation,
    /// The file or directory.
    pub path: PathBuf,
    /// The error of the system.
    pub source: io::Error,
}

impl Fault {
    /// A failed `operation` on `path`.
    pub fn new(operation: Operation, path: impl Into<PathBuf>, source: io::Error) -> Fault {
        Fault { operation, path: path.into(), source }
    }

    /// Whether the operation only reads: its failure puts no written data in doubt.
    pub fn is_of_reading(&self) -> bool {
        matches!(
            self.operation,
            Operation::List | Operation::Open | Operation::Measure | Operation::Read | Operation::DrawEntropy
        )
    }

    /// Whether the process or the system has run out of descriptors or memory, which is not a fault of the disk.
    pub fn is_shortage(&self) -> bool {
        matches!(Errno::from_io_error(&self.source), Some(Errno::MFILE | Errno::NFILE | Errno::NOMEM))
    }

    /// Whether the disk or the quota is full.
    pub fn is_no_space(&self) -> bool {
        matches!(self.source.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded)
    }
}

/// Content that contradicts what was made durable.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{file} is damaged at offset {offset}{}: {what}; nothing was changed", at(*position))]
pub struct Damage {
    /// The file's name in its directory.
    pub file: String,
    pub offset: u64,
    /// The first event that cannot be trusted, if it is known.
    pub position: Option<Position>,
    pub what: String,
}

fn at(position: Option<Position>) -> String {
    position.map_or_else(String::new, |position| format!(" (position {position})"))
}

/// The error of a replay that cannot apply a frame or a blob.
pub type ReplayError = Box<dyn error::Error + Send + Sync>;

/// Why a directory cannot be served.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// The disk failed.
    #[error(transparent)]
    Disk(#[from] Fault),
    /// Another process serves the directory.
    #[error("{} is in use by another sureq (pid {pid})", path.display())]
    InUse {
        path: PathBuf,
        /// The id of that process, or `unknown` if it has not written its id yet.
        pid: String,
    },
    /// A copy was begun in the directory and not finished.
    #[error(
        "{} is an unfinished copy: the `sureq backup` or `sureq check --repair` that wrote it was interrupted; \
         remove the directory, and run the command again",
        path.display()
    )]
    Unfinished { path: PathBuf },
    /// The directory has no files of a store.
    #[error("there is no store in this directory")]
    NoStore,
    /// The content contradicts what was made durable.
    #[error(transparent)]
    Damaged(#[from] Damage),
    /// A later release wrote this file.
    #[error(
        "{file} has format {found}, this release knows formats up to {known}: use the release that wrote it"
    )]
    NewerFormat {
        /// The file's name in its directory.
        file: String,
        /// The format in the file.
        found: u32,
        /// The newest format known here.
        known: u32,
    },
    /// A frame or a checkpoint matches its checksums, but cannot be applied.
    #[error("cannot replay {file} at offset {offset} (position {position}): {source}")]
    Replay {
        /// The file's name in its directory.
        file: String,
        /// The offset of the frame, blob or manifest.
        offset: u64,
        /// The position of the frame's first event, or of the checkpoint.
        position: Position,
        source: ReplayError,
    },
}
