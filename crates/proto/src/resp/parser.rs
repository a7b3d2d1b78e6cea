//! Parses bytes to argument lists: RESP arrays of bulk strings, and inline commands.
//!
//! The parser borrows the read buffer and takes all whole commands in it at once. It remembers its progress in an
//! unfinished command, so that each byte is examined a bounded number of times however slowly it arrives. No length
//! in a header ever reserves memory. The parser does not interpret the words.

use super::args::Args;
use super::error::ProtocolError;
use super::inline;
use crate::guard;
use sureq_core::limits::{
    COMMAND_ARGS_MAX, COMMAND_BYTES_MAX, INLINE_BYTES_MAX, PAYLOAD_BYTES_MAX, UNAUTHENTICATED_ARG_BYTES_MAX,
    UNAUTHENTICATED_ARGS_MAX, UNAUTHENTICATED_COMMAND_BYTES_MAX,
};

/// The maximum length of a header line. Longer numbers are always invalid.
const HEADER_BYTES_MAX: usize = 64;

/// The capacity that is kept for the arguments of the next command that arrives in pieces.
const PIECES_KEPT: usize = 1 << 10;

/// The first byte of a TLS handshake. No command begins with it.
const TLS_HANDSHAKE: u8 = 0x16;

/// The limits of a client's commands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// The maximum number of words of a command.
    pub args_max: usize,
    /// The maximum size of one word in bytes.
    pub bulk_bytes_max: usize,
    /// The maximum size of a command in bytes, including its framing.
    pub command_bytes_max: usize,
    /// The maximum size of an inline command in bytes.
    pub inline_bytes_max: usize,
    /// The maximum number of commands that one call of [`Parser::parse`] takes.
    pub batch_max: usize,
    /// Whether the client has not authenticated and the limits will be higher after it does. Errors say so.
    pub is_unauthenticated: bool,
}

impl Limits {
    /// The limits after authentication.
    pub const TRUSTED: Self = Self {
        args_max: COMMAND_ARGS_MAX,
        bulk_bytes_max: PAYLOAD_BYTES_MAX,
        command_bytes_max: COMMAND_BYTES_MAX,
        inline_bytes_max: INLINE_BYTES_MAX,
        batch_max: usize::MAX,
        is_unauthenticated: false,
    };

    /// The limits before authentication. AUTH and HELLO fit. Commands are taken one at a time, because commands that
    /// follow an AUTH in the same read have to be parsed with the limits after it.
    pub const UNAUTHENTICATED: Self = Self {
        args_max: UNAUTHENTICATED_ARGS_MAX,
        bulk_bytes_max: UNAUTHENTICATED_ARG_BYTES_MAX,
        command_bytes_max: UNAUTHENTICATED_COMMAND_BYTES_MAX,
        inline_bytes_max: UNAUTHENTICATED_ARG_BYTES_MAX,
        batch_max: 1,
        is_unauthenticated: true,
    };
}

/// The result of [`Parser::parse`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Progress {
    /// The number of consumed bytes. The next call's buffer must begin after them.
    pub consumed: usize,
    /// Whether another call may find more commands without another read.
    pub more: bool,
}

/// A RESP request parser for one connection.
#[derive(Debug)]
pub struct Parser {
    limits: Limits,
    /// The number of bytes of the unfinished inline command at the start of the buffer that were searched for its
    /// end.
    searched: usize,
    /// The unfinished array at the start of the buffer.
    array: Option<Array>,
    /// The positions of the words of that array, relative to the start of the buffer.
    pieces: Vec<Piece>,
    /// The rest of a refused command, which is dropped as it arrives.
    passing: Option<Passing>,
}

/// The part of a refused array that has not arrived yet.
#[derive(Clone, Copy, Debug)]
struct Passing {
    /// The number of bytes up to the header of the next word, or to the end. The last two of them end a word.
    bytes: usize,
    /// The number of words after that.
    left: usize,
}

#[derive(Clone, Copy, Debug)]
struct Array {
    /// The offset of the header of the next word.
    at: usize,
    /// The number of words that have not arrived yet.
    left: usize,
}

/// The position of a word in the buffer. A command is smaller than 4 GiB.
#[derive(Clone, Copy, Debug)]
struct Piece {
    start: u32,
    end: u32,
}

/// A number in a header.
enum Number {
    Whole { value: usize, next: usize },
    Negative { next: usize },
    Unfinished,
    Bad,
    TooLong,
}

impl Parser {
    /// A parser at the start of a connection.
    pub const fn new(limits: Limits) -> Self {
        Self { limits, searched: 0, array: None, pieces: Vec::new(), passing: None }
    }

    /// Changes the limits for commands that are parsed from now on.
    pub const fn set_limits(&mut self, limits: Limits) {
        self.limits = limits;
    }

    /// Changes the maximum number of commands per call from now on.
    pub const fn set_batch_max(&mut self, batch_max: usize) {
        self.limits.batch_max = batch_max;
    }

    /// Forgets the progress in the unfinished command. To be called if the next buffer begins before it, with
    /// commands that were parsed but could not be executed yet.
    pub fn restart(&mut self) {
        self.searched = 0;
        self.array = None;
        self.pieces.clear();
    }

    /// The words that have arrived of an unfinished command. `rest` is the part of the buffer that the last call of
    /// [`Parser::parse`] did not consume.
    pub fn unfinished<'b>(&self, rest: &'b [u8]) -> impl Iterator<Item = &'b [u8]> {
        let pieces = if self.array.is_some() { &self.pieces[..] } else { &[] };
        pieces.iter().map(move |piece| &rest[piece.start as usize..piece.end as usize])
    }

    /// Drops the unfinished command: its rest is discarded as it arrives, and it is never returned.
    pub fn pass_over(&mut self) {
        if let Some(Array { at, left }) = self.array.take() {
            self.passing = Some(Passing { bytes: at, left });
            self.pieces = Vec::new();
        }
    }

    /// Appends all whole commands at the start of `buf` to `args`.
    ///
    /// `unquoted` stores the words of an inline command with quotes; a call takes at most one of those. Its previous
    /// content is dropped.
    ///
    /// After an error the connection cannot be parsed any further. The commands before the error are in `args`; the
    /// caller executes them, then sends the error and closes the connection.
    pub fn parse<'b>(
        &mut self,
        buf: &'b [u8],
        unquoted: &'b mut Vec<u8>,
        args: &mut Args<'b>,
    ) -> Result<Progress, ProtocolError> {
        unquoted.clear();
        let mut unquoted = Some(unquoted);
        let mut at = 0;
        let most = args.len().saturating_add(self.limits.batch_max);
        if let Some(passing) = self.passing.take() {
            let consumed = self.pass(passing, buf)?;
            return Ok(Progress { consumed, more: self.passing.is_none() && consumed < buf.len() });
        }
        if let Some(array) = self.array.take() {
            match self.resume(array, buf, args)? {
                Some(end) => at = end,
                None => return Ok(Progress { consumed: 0, more: false }),
            }
        }
        while let Some(&first) = buf.get(at) {
            if args.len() >= most {
                return Ok(Progress { consumed: at, more: true });
            }
            let step = if first == b'*' {
                self.array(buf, at, args)?
            } else {
                self.inline(buf, at, &mut unquoted, args)?
            };
            match step {
                Step::To(end) => at = end,
                Step::Later => return Ok(Progress { consumed: at, more: true }),
                Step::Unfinished => break,
            }
        }
        Ok(Progress { consumed: at, more: false })
    }

    /// The memory that the parser keeps between reads, in bytes.
    pub const fn memory_bytes(&self) -> usize {
        self.pieces.capacity() * size_of::<Piece>()
    }

    fn array<'b>(&mut self, buf: &'b [u8], start: usize, args: &mut Args<'b>) -> Result<Step, ProtocolError> {
        let (left, next) = match number(buf, start + 1) {
            Number::Whole { value: 0, next } | Number::Negative { next } => return Ok(Step::To(next)),
            Number::Whole { value, next } => (value, next),
            Number::Unfinished => return Ok(Step::Unfinished),
            Number::Bad => return Err(ProtocolError::MultibulkLength),
            Number::TooLong => return Err(ProtocolError::MultibulkCountTooBig),
        };
        if left > self.limits.args_max {
            return Err(if self.limits.is_unauthenticated && left <= COMMAND_ARGS_MAX {
                ProtocolError::UnauthenticatedMultibulkLength
            } else {
                ProtocolError::MultibulkLength
            });
        }
        let mut array = Array { at: next, left };
        if scan(buf, start, &mut array, &self.limits, |from, to| args.push(&buf[from..to]))? {
            args.finish(array.at);
            return Ok(Step::To(array.at));
        }
        args.abandon();
        self.suspend(&buf[start..], Array { at: next - start, left })?;
        Ok(Step::Unfinished)
    }

    /// Records the positions of the words of an unfinished array. For this they are scanned a second time, once.
    #[cold]
    fn suspend(&mut self, buf: &[u8], mut array: Array) -> Result<(), ProtocolError> {
        self.pieces.clear();
        let pieces = &mut self.pieces;
        scan(buf, 0, &mut array, &self.limits, |from, to| pieces.push(Piece::new(from, to)))?;
        self.array = Some(array);
        Ok(())
    }

    /// Continues with an unfinished array. Returns its end if that has arrived.
    #[cold]
    fn resume<'b>(
        &mut self,
        mut array: Array,
        buf: &'b [u8],
        args: &mut Args<'b>,
    ) -> Result<Option<usize>, ProtocolError> {
        let pieces = &mut self.pieces;
        if !scan(buf, 0, &mut array, &self.limits, |from, to| pieces.push(Piece::new(from, to)))? {
            self.array = Some(array);
            return Ok(None);
        }
        for piece in self.pieces.drain(..) {
            args.push(&buf[piece.start as usize..piece.end as usize]);
        }
        self.pieces.shrink_to(PIECES_KEPT);
        args.finish(array.at);
        Ok(Some(array.at))
    }

    /// Drops the part of a refused array that has arrived. Returns the number of bytes dropped.
    #[cold]
    fn pass(&mut self, mut passing: Passing, buf: &[u8]) -> Result<usize, ProtocolError> {
        let mut at = 0;
        loop {
            let here = buf.len() - at;
            if here < passing.bytes {
                // The end of the word stays in the buffer until both of its bytes have arrived.
                let passed = here.min(passing.bytes.saturating_sub(2));
                passing.bytes -= passed;
                at += passed;
                break;
            }
            at += passing.bytes;
            if passing.bytes >= 2 && buf[at - 2..at] != *b"\r\n" {
                return Err(ProtocolError::BulkEnd);
            }
            passing.bytes = 0;
            if passing.left == 0 {
                return Ok(at);
            }
            match buf.get(at) {
                None => break,
                Some(b'$') => {}
                Some(&other) => return Err(ProtocolError::ExpectedBulk(other)),
            }
            let Number::Whole { value, next } = number(buf, at + 1) else {
                unusual(buf, at)?;
                break;
            };
            if value > self.limits.bulk_bytes_max {
                return Err(too_big(value, &self.limits));
            }
            passing = Passing { bytes: value + 2, left: passing.left - 1 };
            at = next;
        }
        self.passing = Some(passing);
        Ok(at)
    }

    #[cold]
    fn inline<'b>(
        &mut self,
        buf: &'b [u8],
        start: usize,
        unquoted: &mut Option<&'b mut Vec<u8>>,
        args: &mut Args<'b>,
    ) -> Result<Step, ProtocolError> {
        let rest = &buf[start..];
        if rest[0] == TLS_HANDSHAKE {
            return Err(ProtocolError::Tls);
        }
        let known = std::mem::take(&mut self.searched);
        let window = &rest[..rest.len().min(self.limits.inline_bytes_max + 1)];
        let Some(found) = window[known..].iter().position(|&c| c == b'\n') else {
            if rest.len() > self.limits.inline_bytes_max {
                return Err(ProtocolError::InlineTooBig);
            }
            self.searched = rest.len();
            return Ok(Step::Unfinished);
        };
        let line = &rest[..known + found];
        let line = line.strip_suffix(b"\r").unwrap_or(line);
        if guard::is_http(line) || guard::is_post(line) {
            return Err(ProtocolError::Http);
        }
        let end = start + known + found + 1;
        if !inline::is_quoted(line) {
            inline::words(line).for_each(|word| args.push(word));
        } else if let Some(room) = unquoted.take() {
            let words = inline::unquote(line, room).map_err(|_| ProtocolError::UnbalancedQuotes)?;
            let room: &'b Vec<u8> = room;
            for word in words {
                args.push(&room[word]);
            }
        } else {
            return Ok(Step::Later);
        }
        args.finish(end);
        Ok(Step::To(end))
    }
}

impl Piece {
    fn new(start: usize, end: usize) -> Self {
        Self { start: start as u32, end: end as u32 }
    }
}

enum Step {
    /// The command ends at this offset.
    To(usize),
    /// The command is whole, but this call can take no more commands of its kind.
    Later,
    /// The command has not arrived completely.
    Unfinished,
}

/// Appends words from `buf`; the command begins at `start`. Returns whether all words of the array have arrived.
#[inline]
fn scan(
    buf: &[u8],
    start: usize,
    array: &mut Array,
    limits: &Limits,
    mut take: impl FnMut(usize, usize),
) -> Result<bool, ProtocolError> {
    while array.left > 0 {
        let Some(&marker) = buf.get(array.at) else { return Ok(false) };
        if marker != b'$' {
            return Err(ProtocolError::ExpectedBulk(marker));
        }
        let Number::Whole { value, next } = number(buf, array.at + 1) else {
            return unusual(buf, array.at);
        };
        let end = next.saturating_add(value);
        if value > limits.bulk_bytes_max || end - start > limits.command_bytes_max {
            return Err(too_big(value, limits));
        }
        let Some(&[cr, lf]) = buf.get(end..).and_then(<[u8]>::first_chunk) else { return Ok(false) };
        if cr != b'\r' || lf != b'\n' {
            return Err(ProtocolError::BulkEnd);
        }
        take(next, end);
        array.at = end + 2;
        array.left -= 1;
    }
    Ok(true)
}

/// Handles a word header that is not a plain number.
#[cold]
fn unusual(buf: &[u8], at: usize) -> Result<bool, ProtocolError> {
    match number(buf, at + 1) {
        Number::Unfinished => Ok(false),
        Number::TooLong => Err(ProtocolError::BulkCountTooBig),
        Number::Bad | Number::Negative { .. } | Number::Whole { .. } => Err(ProtocolError::BulkLength),
    }
}

#[cold]
fn too_big(value: usize, limits: &Limits) -> ProtocolError {
    if value <= limits.bulk_bytes_max {
        ProtocolError::CommandTooBig
    } else if limits.is_unauthenticated && value <= PAYLOAD_BYTES_MAX {
        ProtocolError::UnauthenticatedBulkLength
    } else {
        ProtocolError::BulkLength
    }
}

/// Reads the number of a header and its CRLF. Fast path: nearly all numbers have one digit or two.
#[expect(clippy::inline_always, reason = "measured: a call per word is a fifth of the time a command takes")]
#[inline(always)]
fn number(buf: &[u8], start: usize) -> Number {
    match buf.get(start..).and_then(<[u8]>::first_chunk) {
        Some(&[ones @ b'0'..=b'9', b'\r', b'\n', _]) => {
            Number::Whole { value: usize::from(ones - b'0'), next: start + 3 }
        }
        Some(&[tens @ b'1'..=b'9', ones @ b'0'..=b'9', b'\r', b'\n']) => {
            let value = usize::from(tens - b'0') * 10 + usize::from(ones - b'0');
            Number::Whole { value, next: start + 4 }
        }
        _ => any_number(buf, start),
    }
}

#[inline(never)]
fn any_number(buf: &[u8], start: usize) -> Number {
    let mut at = start;
    let mut value = 0usize;
    loop {
        let Some(&byte) = buf.get(at) else { return unended(at - start) };
        let digit = byte.wrapping_sub(b'0');
        if digit > 9 {
            break;
        }
        if at - start == HEADER_BYTES_MAX {
            return Number::TooLong;
        }
        value = value.wrapping_mul(10).wrapping_add(usize::from(digit));
        at += 1;
    }
    let digits = at - start;
    match buf[at..] {
        [b'\r', b'\n', ..] if digits == 1 => Number::Whole { value, next: at + 2 },
        [b'\r', b'\n', ..] if (2..19).contains(&digits) && buf[start] != b'0' => {
            Number::Whole { value, next: at + 2 }
        }
        [b'\r'] => Number::Unfinished,
        [b'-', ..] if digits == 0 => negative(buf, start),
        _ => Number::Bad,
    }
}

#[cold]
fn unended(digits: usize) -> Number {
    if digits > HEADER_BYTES_MAX { Number::TooLong } else { Number::Unfinished }
}

#[cold]
fn negative(buf: &[u8], start: usize) -> Number {
    match number(buf, start + 1) {
        Number::Whole { value: 1.., next } => Number::Negative { next },
        Number::Unfinished => Number::Unfinished,
        Number::TooLong => Number::TooLong,
        _ => Number::Bad,
    }
}
