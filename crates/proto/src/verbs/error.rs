//! Errors of RESP commands that cannot be parsed. Such a command is not executed, and the connection stays open.

use std::borrow::Cow;
use std::fmt::{self, Write as _};

/// The maximum number of bytes of a client's text that an error repeats.
pub(super) const QUOTED_BYTES_MAX: usize = 128;

/// An error reply to a command that could not be parsed: its code and text, always printable ASCII.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UsageError(Cow<'static, str>);

impl UsageError {
    pub(super) const SYNTAX: Self = Self::text("ERR syntax error");
    pub(super) const NOT_AN_INTEGER: Self = Self::text("ERR value is not an integer or out of range");

    pub(super) const fn text(text: &'static str) -> Self {
        Self(Cow::Borrowed(text))
    }

    pub(super) fn new(text: String) -> Self {
        Self(Cow::Owned(text))
    }

    #[cold]
    pub(super) fn no_value(option: &str) -> Self {
        Self::new(format!("ERR {option} needs a value"))
    }

    #[cold]
    pub(super) fn given_twice(option: &str) -> Self {
        Self::new(format!("ERR {option} is given twice"))
    }

    /// A value that is not a number, or outside these bounds.
    #[cold]
    pub(super) fn out_of_range(name: &str, low: impl fmt::Display, high: impl fmt::Display) -> Self {
        Self::new(format!("ERR {name} must be an integer from {low} to {high}"))
    }

    /// Too few words, or too many. `name` is in Redis' notation: `rq.push`, `client|setname`.
    #[cold]
    pub(super) fn arity(name: &str) -> Self {
        Self::new(format!("ERR wrong number of arguments for '{}' command", name.to_ascii_lowercase()))
    }

    #[cold]
    pub(super) fn unknown_subcommand(container: &str, subcommand: &[u8]) -> Self {
        Self::new(format!(
            "ERR unknown subcommand '{}'. Try {container} HELP.",
            quoted(subcommand, QUOTED_BYTES_MAX)
        ))
    }

    /// The exact text of Redis, including the final blank, because clients look for it.
    #[cold]
    pub(super) fn unknown_command(argv: &[&[u8]]) -> Self {
        let name = argv.first().map_or(String::new(), |name| quoted(name, QUOTED_BYTES_MAX));
        let mut list = String::new();
        for arg in argv.iter().skip(1) {
            if list.len() >= QUOTED_BYTES_MAX {
                break;
            }
            let room = QUOTED_BYTES_MAX - list.len();
            // Writing to a `String` does not fail.
            let _ = write!(list, "'{}' ", quoted(arg, room));
        }
        Self::new(format!("ERR unknown command '{name}', with args beginning with: {list}"))
    }

    /// The code and the text, without line breaks.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for UsageError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for UsageError {}

/// At most `max` bytes of a client's text, with unprintable bytes replaced.
pub(super) fn quoted(text: &[u8], max: usize) -> String {
    text.iter()
        .take(max)
        .map(|&c| match c {
            b' '..=b'~' => char::from(c),
            b'\r' | b'\n' | b'\t' => ' ',
            _ => '?',
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(argv: &[&[u8]], expect: &str) {
        assert_eq!(UsageError::unknown_command(argv).as_str(), expect);
    }

    #[test]
    fn reports_an_unknown_command_with_the_text_of_redis() {
        check(&[b"foo", b"a", b"b"], "ERR unknown command 'foo', with args beginning with: 'a' 'b' ");
        check(&[b"foo"], "ERR unknown command 'foo', with args beginning with: ");
        check(&[b"f\r\no", b"\0\xff"], "ERR unknown command 'f  o', with args beginning with: '??' ");
    }

    #[test]
    fn the_error_for_an_unknown_command_has_bounded_length() {
        let long = vec![b'x'; 1 << 20];
        let text = UsageError::unknown_command(&[&long, &long, &long]).to_string();
        let (name, args) = ("x".repeat(128), "x".repeat(128));
        assert_eq!(text, format!("ERR unknown command '{name}', with args beginning with: '{args}' "));
        let many = vec![&b"ab"[..]; 1_000];
        let text = UsageError::unknown_command(&many).to_string();
        assert_eq!(text.matches("'ab' ").count(), 26);
    }
}
