//! Writes RESP replies piece by piece into a buffer that the caller owns.

use std::fmt;
use std::io::Write as _;

use crate::decimal;
use sureq_core::id::{IdText, TaskId};

/// The RESP version of a connection.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Version {
    /// The version of every new connection.
    #[default]
    Resp2,
    /// After `HELLO 3`.
    Resp3,
}

impl Version {
    pub const fn number(self) -> u8 {
        match self {
            Self::Resp2 => 2,
            Self::Resp3 => 3,
        }
    }
}

/// The maximum size of the framing of a bulk string in bytes.
const BULK_FRAME_BYTES_MAX: usize = 1 + 20 + 2 + 2;

/// The headers with numbers below 100, without their markers, padded to a size that is copied in one instruction.
const SHORT_HEADERS: [[u8; 8]; 100] = {
    let mut headers = [[0, 0, b'\r', b'\n', 0, 0, 0, 0]; 100];
    let mut n = 0;
    while n < 100 {
        if n < 10 {
            headers[n][1] = b'0' + n as u8;
        } else {
            headers[n] = [0, b'0' + (n / 10) as u8, b'0' + (n % 10) as u8, b'\r', b'\n', 0, 0, 0];
        }
        n += 1;
    }
    headers
};

/// A sink for the pieces of a reply. After a header of an array or map, the caller writes the number of pieces that
/// it announces.
pub trait Pieces {
    /// A simple string. The text must not contain line breaks.
    fn simple(&mut self, text: &str);

    /// An error. The text may contain any characters.
    fn error(&mut self, text: impl fmt::Display);

    fn integer(&mut self, n: i64);

    fn bulk(&mut self, bytes: &[u8]);

    fn null(&mut self);

    /// The header of an array; `len` pieces follow.
    fn array(&mut self, len: usize);

    /// The header of a map; `len` keys follow, each with its value. A flat array in RESP2.
    fn map(&mut self, len: usize);

    /// An unsigned number. Numbers beyond the signed range of RESP are written as its maximum.
    fn count(&mut self, n: u64) {
        self.integer(i64::try_from(n).unwrap_or(i64::MAX));
    }

    /// An id, as a bulk string.
    fn id(&mut self, id: TaskId) {
        self.bulk(IdText::of_id(id).as_bytes());
    }
}

/// Writes replies into a buffer.
#[derive(Debug)]
pub struct Writer<'o> {
    out: &'o mut Vec<u8>,
    version: Version,
}

impl<'o> Writer<'o> {
    /// A writer that appends to `out`.
    pub const fn new(out: &'o mut Vec<u8>, version: Version) -> Self {
        Self { out, version }
    }

    pub const fn version(&self) -> Version {
        self.version
    }

    /// A text for humans: a bulk string in RESP2, a verbatim string marked as plain text in RESP3.
    pub fn verbatim(&mut self, text: &[u8]) {
        match self.version {
            Version::Resp2 => self.bulk(text),
            Version::Resp3 => {
                self.header(b'=', text.len() + 4);
                self.out.extend_from_slice(b"txt:");
                self.out.extend_from_slice(text);
                self.out.extend_from_slice(b"\r\n");
            }
        }
    }

    /// A null value in place of an array.
    pub fn null_array(&mut self) {
        self.out.extend_from_slice(match self.version {
            Version::Resp2 => b"*-1\r\n",
            Version::Resp3 => b"_\r\n",
        });
    }

    /// The header of a push message; `len` pieces follow. An array in RESP2.
    pub fn push(&mut self, len: usize) {
        match self.version {
            Version::Resp2 => self.header(b'*', len),
            Version::Resp3 => self.header(b'>', len),
        }
    }

    /// The header of a set; `len` pieces follow. An array in RESP2.
    pub fn set(&mut self, len: usize) {
        match self.version {
            Version::Resp2 => self.header(b'*', len),
            Version::Resp3 => self.header(b'~', len),
        }
    }

    #[inline]
    fn header(&mut self, marker: u8, n: usize) {
        // Fast path: nearly all numbers have one digit or two, and are written in one copy.
        if let Some(&(mut header)) = SHORT_HEADERS.get(n) {
            header[0] = marker;
            let len = self.out.len() + if n < 10 { 4 } else { 5 };
            self.out.extend_from_slice(&header);
            return self.out.truncate(len);
        }
        self.out.push(marker);
        decimal::write_u64(self.out, n as u64);
        self.out.extend_from_slice(b"\r\n");
    }

    fn line(&mut self, marker: u8, text: &[u8]) {
        self.out.push(marker);
        self.out.extend_from_slice(text);
        self.out.extend_from_slice(b"\r\n");
    }
}

impl Pieces for Writer<'_> {
    /// `+text`
    fn simple(&mut self, text: &str) {
        self.line(b'+', text.as_bytes());
    }

    /// `-text`. Line breaks become spaces, and other bytes that are not printable ASCII become `?`.
    fn error(&mut self, text: impl fmt::Display) {
        self.out.push(b'-');
        let start = self.out.len();
        // Writing to a `Vec` does not fail.
        let _ = write!(self.out, "{text}");
        self.out[start..].iter_mut().for_each(|c| *c = harmless(*c));
        self.out.extend_from_slice(b"\r\n");
    }

    /// `:n`
    fn integer(&mut self, n: i64) {
        self.out.push(b':');
        decimal::write_i64(self.out, n);
        self.out.extend_from_slice(b"\r\n");
    }

    fn bulk(&mut self, bytes: &[u8]) {
        self.out.reserve(bytes.len() + BULK_FRAME_BYTES_MAX);
        self.header(b'$', bytes.len());
        self.out.extend_from_slice(bytes);
        self.out.extend_from_slice(b"\r\n");
    }

    fn null(&mut self) {
        self.out.extend_from_slice(match self.version {
            Version::Resp2 => b"$-1\r\n",
            Version::Resp3 => b"_\r\n",
        });
    }

    fn array(&mut self, len: usize) {
        self.header(b'*', len);
    }

    fn map(&mut self, len: usize) {
        match self.version {
            Version::Resp2 => self.header(b'*', 2 * len),
            Version::Resp3 => self.header(b'%', len),
        }
    }
}

/// Makes a byte of an error text safe, so that the error stays on one line.
pub const fn harmless(c: u8) -> u8 {
    match c {
        b' '..=b'~' => c,
        b'\r' | b'\n' | b'\t' => b' ',
        _ => b'?',
    }
}

#[cfg(test)]
#[expect(clippy::redundant_closure_for_method_calls, reason = "the method alone is not general enough")]
mod tests {
    use super::*;

    fn check(write: impl Fn(&mut Writer<'_>), resp2: &str, resp3: &str) {
        for (version, expect) in [(Version::Resp2, resp2), (Version::Resp3, resp3)] {
            let mut out = Vec::new();
            write(&mut Writer::new(&mut out, version));
            assert_eq!(String::from_utf8(out).unwrap(), expect, "{version:?}");
        }
    }

    #[test]
    fn pieces() {
        check(|w| w.simple("OK"), "+OK\r\n", "+OK\r\n");
        check(|w| w.integer(-12), ":-12\r\n", ":-12\r\n");
        check(|w| w.count(u64::MAX), ":9223372036854775807\r\n", ":9223372036854775807\r\n");
        check(|w| w.bulk(b""), "$0\r\n\r\n", "$0\r\n\r\n");
        check(|w| w.bulk(b"a\r\nb"), "$4\r\na\r\nb\r\n", "$4\r\na\r\nb\r\n");
        check(|w| w.verbatim(b"hi"), "$2\r\nhi\r\n", "=6\r\ntxt:hi\r\n");
        check(|w| w.null(), "$-1\r\n", "_\r\n");
        check(|w| w.null_array(), "*-1\r\n", "_\r\n");
        for n in [0, 9, 10, 12, 99, 100, 12_345] {
            let header = format!("*{n}\r\n");
            check(|w| w.array(n), &header, &header);
        }
        check(|w| w.map(2), "*4\r\n", "%2\r\n");
        check(|w| w.set(2), "*2\r\n", "~2\r\n");
        check(|w| w.push(2), "*2\r\n", ">2\r\n");
    }

    #[test]
    fn an_error_is_always_one_line() {
        check(|w| w.error("ERR a\r\n+OK\0\u{e9}"), "-ERR a  +OK???\r\n", "-ERR a  +OK???\r\n");
    }
}
