//! Lines on the standard streams. Errors are ignored: a server continues when the reader of its output exits.

use std::fmt::Arguments;
use std::io::{Write, stderr, stdout};

/// Prints a line on standard output.
pub(crate) fn out(line: Arguments<'_>) {
    let _ = writeln!(stdout(), "{line}");
}

/// Prints a line on standard error.
pub(crate) fn err(line: Arguments<'_>) {
    let _ = writeln!(stderr(), "{line}");
}

/// Prints a notice of a home for its operator.
pub(crate) fn notice(line: &str) {
    err(format_args!("sureq: {line}"));
}
