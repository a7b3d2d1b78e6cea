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
