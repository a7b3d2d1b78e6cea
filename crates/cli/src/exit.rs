//! Exit codes.

use std::process::ExitCode;

use sureq::{OpenError, StoreError};

use crate::print;

/// Cannot start: an address in use, an invalid setting, a directory that cannot be opened.
pub(crate) const CANNOT_START: u8 = 1;
/// The command line is invalid.
pub(crate) const USAGE: u8 = 2;
/// A proof failed: tasks were lost, or finished twice.
pub(crate) const BROKEN: u8 = 3;
/// No task or no such id.
pub(crate) const NOTHING_THERE: u8 = 4;
/// The home cannot be reached; nothing was done.
pub(crate) const UNAVAILABLE: u8 = 69;
/// The reply was lost: the outcome is unknown.
pub(crate) const UNKNOWN: u8 = 70;
/// The store is damaged, or not all of it could be saved; nothing in it was changed.
pub(crate) const DAMAGED: u8 = 65;
/// A retry may succeed: no room in the queue, in memory or on disk; a store that changed too fast; a Redis that did not
/// answer.
pub(crate) const TRY_AGAIN: u8 = 75;
/// The disk failed while serving; nothing was confirmed since.
pub(crate) const DISK_FAILED: u8 = 74;
/// Not logged in, wrong credentials, or a missing role.
pub(crate) const NO_PERMISSION: u8 = 77;

/// A second signal arrived before all clients were answered.
pub(crate) const INTERRUPTED: i32 = 130;

pub(crate) const HELP: &str = "\
Exit codes:
  0   done; stopped cleanly; the store is sound
  1   refused, or could not start: address in use, store in use, bad setting, no such program
  2   invalid command line
  3   sureq prove: tasks were lost or finished twice
  4   nothing or not everything was done: no task, no such id
  65  the store is damaged; nothing in it was changed
  69  the home cannot be reached; nothing was done
  70  the reply was lost: the outcome is unknown
  74  the disk failed; nothing was confirmed since
  75  try again: queue full, no memory, no disk space, store changed too fast to copy, not all queues cleaned
  77  no permission: not logged in, wrong credentials, or a missing role
  130 ended by a second signal before all clients were answered";

/// Prints the error and returns the exit code.
pub(crate) fn failed(code: u8, why: impl std::fmt::Display) -> ExitCode {
    print::err(format_args!("sureq: {why}"));
    ExitCode::from(code)
}

/// The code for a home that could not be opened.
pub(crate) fn code_of(error: &OpenError) -> u8 {
    match error {
        error if error.is_denied() => NO_PERMISSION,
        OpenError::Store { source: StoreError::Damaged(_) | StoreError::Replay { .. }, .. } => DAMAGED,
        _ => CANNOT_START,
    }
}
