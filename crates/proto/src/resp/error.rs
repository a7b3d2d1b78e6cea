//! Errors of bytes that are not RESP. The reason is sent, and the connection closed.

use std::fmt;

/// Why nothing more can be parsed from a connection. The texts are Redis' where Redis has one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProtocolError {
    /// `*` is not followed by a number of words that a command may have.
    MultibulkLength,
    /// More words than a peer may send that has not said who it is.
    UnauthenticatedMultibulkLength,
    /// `*` is followed by an endless number.
    MultibulkCountTooBig,
    /// `$` is not followed by a length that a word may have.
    BulkLength,
    /// A longer word than a peer may send that has not said who it is.
    UnauthenticatedBulkLength,
    /// `$` is followed by an endless number.
    BulkCountTooBig,
    /// Where `$` was due there is something else.
    ExpectedBulk(u8),
    /// A word does not end where its length says.
    BulkEnd,
    /// The command as a whole is too large.
    CommandTooBig,
    /// An inline command is too long.
    InlineTooBig,
    /// The quotes of an inline command do not close.
    UnbalancedQuotes,
    /// The peer speaks HTTP: perhaps a browser that was led here. It is closed without a word.
    Http,
    /// The peer begins a TLS handshake. It is closed without a word, since it would not understand one.
    Tls,
}

impl ProtocolError {
    /// Whether the peer is told before its connection is closed.
    pub const fn is_told(self) -> bool {
        !matches!(self, Self::Http | Self::Tls)
    }
}

impl fmt::Display for ProtocolError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Protocol error: ")?;
        f.write_str(match self {
            Self::MultibulkLength => "invalid multibulk length",
            Self::UnauthenticatedMultibulkLength => "unauthenticated multibulk length",
            Self::MultibulkCountTooBig => "too big mbulk count string",
            Self::BulkLength => "invalid bulk length",
            Self::UnauthenticatedBulkLength => "unauthenticated bulk length",
            Self::BulkCountTooBig => "too big bulk count string",
            Self::ExpectedBulk(got) => {
                let got = if matches!(got, b' '..=b'~') { char::from(*got) } else { '?' };
                return write!(f, "expected '$', got '{got}'");
            }
            Self::BulkEnd => "expected CRLF behind a bulk",
            Self::CommandTooBig => "too big request",
            Self::InlineTooBig => "too big inline request",
            Self::UnbalancedQuotes => "unbalanced quotes in request",
            Self::Http => "this is not an HTTP port",
            Self::Tls => "this is not a TLS port",
        })
    }
}

impl std::error::Error for ProtocolError {}
