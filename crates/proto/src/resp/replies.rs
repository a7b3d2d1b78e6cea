//! Decodes replies: the client's side of RESP2 and RESP3.
//!
//! A [`Scanner`] finds the end of a reply as its bytes arrive, however they are split, and examines each byte once.
//! [`PieceReader`] then walks through a whole reply without copying any of it. Input is untrusted: a length is
//! believed only as far as its bytes have arrived, nesting and sizes are bounded, and invalid RESP is an error.

use std::fmt;

use crate::decimal::read_i64;

/// The maximum nesting depth of replies. Those of sureq are at most four levels deep.
const DEPTH_MAX: usize = 8;

/// The maximum length of a line: a simple string, an error, a number, or the header of something longer.
const LINE_BYTES_MAX: usize = 64 << 10;

/// The minimum size of a piece in bytes.
const PIECE_BYTES_MIN: usize = 3;

/// The reason why bytes are not a valid reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BadReply {
    /// No reply begins with this byte.
    Marker(u8),
    /// A length, a count or a number is malformed.
    Number,
    /// A line does not end with CRLF, or a bulk string does not end where its length says.
    End,
    /// The reply is nested too deeply.
    Depth,
    /// The reply exceeds the size limit.
    Size,
    /// The reply does not have the form that the command expects.
    Shape,
}

impl fmt::Display for BadReply {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Marker(marker) => write!(f, "no RESP reply begins with '{}'", marker.escape_ascii()),
            Self::Number => f.write_str("a number in a reply is malformed"),
            Self::End => f.write_str("a piece of a reply does not end where it should"),
            Self::Depth => write!(f, "a reply is nested more than {DEPTH_MAX} deep"),
            Self::Size => f.write_str("a reply exceeds the size limit"),
            Self::Shape => f.write_str("a reply does not fit its command"),
        }
    }
}

impl std::error::Error for BadReply {}

/// One piece of a reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Piece<'b> {
    /// A bulk string: any bytes.
    Bulk(&'b [u8]),
    /// A line: a status, or a number that is not an integer.
    Simple(&'b [u8]),
    Error(&'b [u8]),
    /// An integer or a boolean.
    Integer(i64),
    Null,
    /// The header of an array with this number of elements, which follow.
    Array(usize),
    /// The header of a map with this number of entries, which follow: each is a key and its value.
    Map(usize),
    /// The header of a push message with this number of elements, which follow. It is not a reply to a request.
    Push(usize),
}

impl Piece<'_> {
    /// The number of pieces that follow and belong to this one.
    const fn inner(self) -> usize {
        match self {
            Self::Array(n) | Self::Push(n) => n,
            Self::Map(n) => 2 * n,
            _ => 0,
        }
    }
}

/// Finds the end of a reply as its bytes arrive.
#[derive(Clone, Debug)]
pub struct Scanner {
    bytes_max: usize,
    /// The offset of the next piece.
    at: usize,
    /// The offset up to which the line of the next piece was searched for its end.
    searched: usize,
    /// The number of pieces that are still missing, per nesting level.
    open: [usize; DEPTH_MAX],
    depth: usize,
}

impl Scanner {
    /// A scanner for replies of at most `bytes_max` bytes each.
    pub const fn new(bytes_max: usize) -> Self {
        Self { bytes_max, at: 0, searched: 0, open: [0; DEPTH_MAX], depth: 0 }
    }

    /// Continues with the reply at the start of `bytes`, which must begin with the bytes of earlier calls. Returns
    /// the length of the reply once it is complete, and is then ready for the next one.
    pub fn scan(&mut self, bytes: &[u8]) -> Result<Option<usize>, BadReply> {
        while let Some((piece, end)) = self.piece(bytes)? {
            if end > self.bytes_max {
                return Err(BadReply::Size);
            }
            (self.at, self.searched) = (end, end);
            self.enter(piece.inner())?;
            if self.depth == 0 {
                *self = Self::new(self.bytes_max);
                return Ok(Some(end));
            }
        }
        if bytes.len() > self.bytes_max {
            return Err(BadReply::Size);
        }
        Ok(None)
    }

    /// The next piece and its end, if it has arrived completely.
    fn piece<'b>(&mut self, bytes: &'b [u8]) -> Result<Option<(Piece<'b>, usize)>, BadReply> {
        let from = self.searched.max(self.at);
        let Some(end) = find_end(&bytes[from..]).map(|end| from + end) else {
            if bytes.len() - self.at > LINE_BYTES_MAX {
                return Err(BadReply::End);
            }
            // The last byte may be the CR of an unfinished CRLF, so it is searched again.
            self.searched = bytes.len().saturating_sub(1).max(self.at);
            if let Some(&marker) = bytes.get(self.at) {
                kind_of(marker)?;
            }
            return Ok(None);
        };
        self.searched = end;
        read_piece(bytes, self.at, end, self.bytes_max)
    }

    /// Counts a piece, and expects the pieces that belong to it.
    fn enter(&mut self, inner: usize) -> Result<(), BadReply> {
        if inner > self.bytes_max / PIECE_BYTES_MIN {
            return Err(BadReply::Size);
        }
        if let Some(level) = self.depth.checked_sub(1) {
            self.open[level] -= 1;
        }
        if inner > 0 {
            *self.open.get_mut(self.depth).ok_or(BadReply::Depth)? = inner;
            self.depth += 1;
        }
        while self.depth > 0 && self.open[self.depth - 1] == 0 {
            self.depth -= 1;
        }
        Ok(())
    }
}

/// Reads the pieces of one whole reply, or of several in sequence.
#[derive(Clone, Debug)]
pub struct PieceReader<'b> {
    bytes: &'b [u8],
    at: usize,
}

impl<'b> PieceReader<'b> {
    /// A reader at the first piece.
    pub const fn new(bytes: &'b [u8]) -> Self {
        Self { bytes, at: 0 }
    }

    /// The offset at which the last piece ended.
    pub const fn at(&self) -> usize {
        self.at
    }

    /// The next piece. Fails if the bytes end before it does.
    pub fn take(&mut self) -> Result<Piece<'b>, BadReply> {
        let end = find_end(&self.bytes[self.at..]).ok_or(BadReply::End)?;
        let read = read_piece(self.bytes, self.at, self.at + end, usize::MAX)?;
        let (piece, end) = read.ok_or(BadReply::End)?;
        self.at = end;
        Ok(piece)
    }

    /// Skips the pieces that belong to `piece`.
    pub fn skip(&mut self, piece: Piece<'_>) -> Result<(), BadReply> {
        let mut left = piece.inner();
        while left > 0 {
            left = left.checked_add(self.take()?.inner()).ok_or(BadReply::Size)? - 1;
        }
        Ok(())
    }
}

/// The kind of a piece, by its marker byte.
enum Kind {
    Line,
    Blob,
    Group,
}

const fn kind_of(marker: u8) -> Result<Kind, BadReply> {
    match marker {
        b'+' | b'-' | b':' | b'_' | b'#' | b',' | b'(' => Ok(Kind::Line),
        b'$' | b'=' | b'!' => Ok(Kind::Blob),
        b'*' | b'~' | b'>' | b'%' => Ok(Kind::Group),
        other => Err(BadReply::Marker(other)),
    }
}

/// The piece whose line goes from `at` to `end`, and the end of the piece. `None` if a part of it has not arrived.
fn read_piece(
    bytes: &[u8],
    at: usize,
    end: usize,
    bytes_max: usize,
) -> Result<Option<(Piece<'_>, usize)>, BadReply> {
    let behind = end + 2;
    let Some((&marker, line)) = bytes[at..end].split_first() else { return Err(BadReply::Marker(b'\r')) };
    let piece = match kind_of(marker)? {
        Kind::Line => read_line(marker, line)?,
        Kind::Group | Kind::Blob if line == b"-1" => Piece::Null,
        Kind::Group => {
            let n = count(line)?;
            match marker {
                b'%' if n <= usize::MAX / 2 => Piece::Map(n),
                b'%' => return Err(BadReply::Size),
                b'>' => Piece::Push(n),
                _ => Piece::Array(n),
            }
        }
        Kind::Blob => {
            let len = count(line)?;
            if len > bytes_max {
                return Err(BadReply::Size);
            }
            let stop = behind.checked_add(len).ok_or(BadReply::Size)?;
            let Some(tail) = bytes.get(stop..).and_then(|rest| rest.first_chunk::<2>()) else {
                return Ok(None);
            };
            if tail != b"\r\n" {
                return Err(BadReply::End);
            }
            let blob = &bytes[behind..stop];
            let piece = match marker {
                b'!' => Piece::Error(blob),
                // A verbatim string begins with its format and a colon.
                b'=' => Piece::Bulk(blob.get(4..).ok_or(BadReply::End)?),
                _ => Piece::Bulk(blob),
            };
            return Ok(Some((piece, stop + 2)));
        }
    };
    Ok(Some((piece, behind)))
}

fn read_line(marker: u8, line: &[u8]) -> Result<Piece<'_>, BadReply> {
    Ok(match marker {
        b'-' => Piece::Error(line),
        b':' => Piece::Integer(read_i64(line.strip_prefix(b"+").unwrap_or(line)).ok_or(BadReply::Number)?),
        b'_' if line.is_empty() => Piece::Null,
        b'#' if line == b"t" => Piece::Integer(1),
        b'#' if line == b"f" => Piece::Integer(0),
        b'_' | b'#' => return Err(BadReply::Number),
        _ => Piece::Simple(line),
    })
}

fn count(line: &[u8]) -> Result<usize, BadReply> {
    read_i64(line).and_then(|n| usize::try_from(n).ok()).ok_or(BadReply::Number)
}

/// The offset of the `\r\n` that ends a line.
fn find_end(bytes: &[u8]) -> Option<usize> {
    let mut from = 0;
    while let Some(at) = bytes[from..].iter().position(|&c| c == b'\r') {
        match bytes.get(from + at + 1) {
            Some(b'\n') => return Some(from + at),
            Some(_) => from += at + 1,
            None => return None,
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const MAX: usize = 1 << 20;

    fn check(bytes: &str, expect: Result<Option<usize>, BadReply>) {
        assert_eq!(Scanner::new(MAX).scan(bytes.as_bytes()), expect, "{bytes:?}");
        // Feeding the bytes one by one must give the same result.
        let mut scanner = Scanner::new(MAX);
        let mut found = Ok(None);
        for end in 0..=bytes.len() {
            found = scanner.scan(&bytes.as_bytes()[..end]);
            if found != Ok(None) {
                break;
            }
        }
        assert_eq!(found, expect, "{bytes:?} byte by byte");
    }

    #[test]
    fn a_reply_ends_where_it_says() {
        for whole in [
            "+OK\r\n",
            "-ERR a\rb\r\n",
            ":-12\r\n",
            "_\r\n",
            "#t\r\n",
            ",1.5\r\n",
            "$-1\r\n",
            "*-1\r\n",
            "$4\r\na\r\nb\r\n",
            "=6\r\ntxt:ab\r\n",
            "*0\r\n",
            "*2\r\n*1\r\n:1\r\n$0\r\n\r\n",
            "%2\r\n+a\r\n*1\r\n_\r\n+b\r\n%0\r\n",
            ">2\r\n+a\r\n~1\r\n:1\r\n",
        ] {
            check(whole, Ok(Some(whole.len())));
            let mut pieces = PieceReader::new(whole.as_bytes());
            let first = pieces.take().unwrap();
            pieces.skip(first).unwrap();
            assert_eq!(pieces.at(), whole.len(), "{whole:?}");
        }
    }

    #[test]
    fn refuses_invalid_replies_as_early_as_possible() {
        check("HTTP/1.1 400 Bad Request\r\n", Err(BadReply::Marker(b'H')));
        check("\r\n", Err(BadReply::Marker(b'\r')));
        check(":one\r\n", Err(BadReply::Number));
        check("$x\r\n", Err(BadReply::Number));
        check("*-2\r\n", Err(BadReply::Number));
        check("$1\r\nabc", Err(BadReply::End));
        check("=2\r\nab\r\n", Err(BadReply::End));
        check("$1048577\r\n", Err(BadReply::Size));
        check("*400000\r\n", Err(BadReply::Size));
        check("%9223372036854775807\r\n", Err(BadReply::Size));
        check(&"*1\r\n".repeat(9), Err(BadReply::Depth));
        check(&"+".repeat(LINE_BYTES_MAX + 2), Err(BadReply::End));
        let endless = format!("*300000\r\n{}", ":1\r\n".repeat(270_000));
        assert_eq!(Scanner::new(MAX).scan(endless.as_bytes()), Err(BadReply::Size));
    }

    proptest! {
        /// Any input is handled without a panic, and with the same result however it is split.
        #[test]
        fn hostile_bytes(bytes in proptest::collection::vec(prop_oneof![
            Just(b'*'), Just(b'$'), Just(b'\r'), Just(b'\n'), Just(b'1'), Just(b'2'), Just(b':'), Just(b'%'), any::<u8>()
        ], 0..60), cut in 0..60usize) {
            let cut = cut.min(bytes.len());
            let whole = Scanner::new(40).scan(&bytes);
            let mut scanner = Scanner::new(40);
            let parts = match scanner.scan(&bytes[..cut]) {
                Ok(None) => scanner.scan(&bytes),
                found => found,
            };
            // If several things are wrong, the split input may report another of them first.
            prop_assert_eq!(parts.map_err(drop), whole.map_err(drop));
        }
    }
}
