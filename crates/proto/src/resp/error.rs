//! Errors for bytes that are not valid RESP. The reason is sent to the client, and the connection is closed.

use std::fmt;

/// The reason why a connection cannot be parsed any further. The texts are those of Redis where Redis has the error.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProtocolError {
    /// `*` is not followed by a valid number of words.
    MultibulkLength,
    /// The command has more words than are allowed before authentication.
    UnauthenticatedMultibulkLength,
    /// The number after `*` has too many digits.
    MultibulkCountTooBig,
    /// `$` is not followed by a valid length.
    BulkLength,
    /// The word is longer than is allowed before authentication.
    UnauthenticatedBulkLength,
    /// The number after `$` has too many digits.
    BulkCountTooBig,
    /// There is another byte where `$` was expected.
    ExpectedBulk(u8),
    /// A word does not end where its length says.
    BulkEnd,
    /// The command as a whole exceeds the size limit.
    CommandTooBig,
    /// An inline command is too long.
    InlineTooBig,
    /// The quotes of an inline command do not close.
    UnbalancedQuotes,
    /// The client speaks HTTP: it may be a browser that a malicious page uses. The connection is closed without a
    /// reply.
    Http,
    /// The client begins a TLS handshake. The connection is closed without a reply, which such a client would not
    /// understand.
    Tls,
}

impl ProtocolError {
    /// Whether the error is sent to the client before its connection is closed.
    pub const fn is_reported(self) -> bool {
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
            Self::BulkEnd => "expected CRLF after a bulk",
            Self::CommandTooBig => "too big request",
            Self::InlineTooBig => "too big inline request",
            Self::UnbalancedQuotes => "unbalanced quotes in request",
            Self::Http => "this is not an HTTP port",
            Self::Tls => "this is not a TLS port",
        })
    }
}

impl std::error::Error for ProtocolError {}
