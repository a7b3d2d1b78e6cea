//! What the command prints. A reader who has gone away is no reason to stop serving.

use std::fmt::Arguments;
use std::io::{Write, stderr, stdout};

/// A line on standard output.
pub(crate) fn out(line: Arguments<'_>) {
    let _ = writeln!(stdout(), "{line}");
}

/// A line on standard error.
pub(crate) fn err(line: Arguments<'_>) {
    let _ = writeln!(stderr(), "{line}");
}

/// What a home has to say to its operator.
pub(crate) fn notice(line: &str) {
    err(format_args!("sureq: {line}"));
}
