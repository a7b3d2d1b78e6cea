//! Splits bytes into lines and parses them to requests.
//!
//! All lines of a read are taken, whether they end in LF or CRLF. The parser remembers how far it has searched an
//! unfinished line. For a line that is too long it reports one error, and drops the bytes of the line as they arrive.

use super::request::{Complaint, Request};
use crate::guard;
use sureq_core::limits::{TEXT_ENDLESS_BYTES_MAX, TEXT_LINE_BYTES_MAX};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// The maximum length of a line that is executed, without its end.
    pub line_bytes_max: usize,
    /// The length of a line above which the connection is closed.
    pub endless_bytes_max: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self { line_bytes_max: TEXT_LINE_BYTES_MAX, endless_bytes_max: TEXT_ENDLESS_BYTES_MAX }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Item<'b> {
    /// A request to execute.
    Request(Request<'b>),
    /// An error reply. The connection stays open.
    Complaint(Complaint),
}

/// A parsed line, and the offset of its end in the buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ParsedLine<'b> {
    pub item: Item<'b>,
    /// The offset after its last byte. A caller that executes only the lines up to this one continues from here, after
    /// [`Parser::restart`].
    pub end: usize,
}

/// The reason why a connection is closed without a reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Close {
    /// The client speaks HTTP: it may be a browser that a malicious page uses.
    Http,
    /// A line exceeds the maximum length at which the connection is kept.
    Endless,
}

/// A parser for one connection.
#[derive(Debug)]
pub struct Parser {
    limits: Limits,
    /// The number of bytes of the unfinished line at the start of the buffer that were searched for its end.
    searched: usize,
    /// The number of dropped bytes of a line that is too long. `None` if there is no such line.
    dropped: Option<usize>,
    /// `dropped` as it was before the last call of [`Self::parse`].
    dropped_before: Option<usize>,
    batch_max: usize,
}

/// The result of looking at the next bytes.
enum NextLine<'b> {
    Line(&'b [u8]),
    TooLong,
    /// The end of a line that was reported as too long before.
    Dropped,
    Unfinished,
}

impl Parser {
    /// A parser at the start of a connection. `endless_bytes_max` is raised above `line_bytes_max` if necessary.
    pub fn new(limits: Limits) -> Self {
        let endless_bytes_max = limits.endless_bytes_max.max(limits.line_bytes_max.saturating_add(1));
        Self {
            limits: Limits { endless_bytes_max, ..limits },
            searched: 0,
            dropped: None,
            dropped_before: None,
            batch_max: usize::MAX,
        }
    }

    /// Changes the maximum number of lines per call of [`Self::parse`] from now on.
    pub const fn set_batch_max(&mut self, batch_max: usize) {
        self.batch_max = batch_max;
    }

    /// Continues after the last of `done`, the executed first lines of the last call. The next buffer begins where
    /// that line ends, or is the same again if none was executed. The rest of a line that is too long is dropped
    /// without a second error.
    pub fn restart(&mut self, done: &[ParsedLine<'_>]) {
        self.searched = 0;
        self.dropped = match done.last() {
            None => self.dropped_before,
            Some(last) => (last.item == Item::Complaint(Complaint::LineTooLong)).then_some(0),
        };
    }

    /// Parses all lines of `buf`. Returns the number of consumed bytes; the next call's buffer must begin after them.
    ///
    /// If the result is [`Close`], the caller executes and answers the lines before it first. An unfinished line at
    /// the end of a connection is dropped.
    pub fn parse<'b>(&mut self, buf: &'b [u8], lines: &mut Vec<ParsedLine<'b>>) -> Result<usize, Close> {
        self.dropped_before = self.dropped;
        let mut at = 0;
        let most = lines.len().saturating_add(self.batch_max);
        while lines.len() < most {
            match self.next(buf, &mut at)? {
                NextLine::Line(line) => lines.push(ParsedLine { item: understand(line)?, end: at }),
                NextLine::TooLong => {
                    lines.push(ParsedLine { item: Item::Complaint(Complaint::LineTooLong), end: at });
                }
                NextLine::Dropped => {}
                NextLine::Unfinished => break,
            }
        }
        Ok(at)
    }

    fn next<'b>(&mut self, buf: &'b [u8], at: &mut usize) -> Result<NextLine<'b>, Close> {
        let rest = &buf[*at..];
        if let Some(dropped) = self.dropped {
            return self.drop_on(dropped, rest, at);
        }
        let known = std::mem::take(&mut self.searched);
        let max = self.limits.line_bytes_max;
        // The end of the longest line takes two more bytes.
        let window = &rest[..rest.len().min(max.saturating_add(2))];
        if let Some(found) = window[known..].iter().position(|&c| c == b'\n') {
            let whole = &rest[..known + found];
            let line = whole.strip_suffix(b"\r").unwrap_or(whole);
            if line.len() <= max {
                *at += whole.len() + 1;
                return Ok(NextLine::Line(line));
            }
        } else if !is_over(window, max) {
            self.searched = rest.len();
            return Ok(NextLine::Unfinished);
        }
        self.dropped = Some(0);
        Ok(NextLine::TooLong)
    }

    /// Drops bytes of a line that is too long, up to its end if that has arrived.
    fn drop_on<'b>(&mut self, dropped: usize, rest: &'b [u8], at: &mut usize) -> Result<NextLine<'b>, Close> {
        let room = self.limits.endless_bytes_max - dropped;
        let window = &rest[..rest.len().min(room.saturating_add(1))];
        if let Some(end) = window.iter().position(|&c| c == b'\n') {
            self.dropped = None;
            *at += end + 1;
            return Ok(NextLine::Dropped);
        }
        if window.len() > room {
            return Err(Close::Endless);
        }
        self.dropped = Some(dropped + window.len());
        *at += window.len();
        Ok(NextLine::Unfinished)
    }
}

/// Whether an unfinished line with this start is too long already. A final CR may belong to its end.
fn is_over(start: &[u8], max: usize) -> bool {
    start.strip_suffix(b"\r").unwrap_or(start).len() > max
}

fn understand(line: &[u8]) -> Result<Item<'_>, Close> {
    // Only these can be the start of an HTTP request; none of the other four commands can.
    let request = Request::parse(line);
    if matches!(request, Err(Complaint::UnknownCommand) | Ok(Request::Delete { .. })) && guard::is_http(line)
    {
        return Err(Close::Http);
    }
    Ok(request.map_or_else(Item::Complaint, Item::Request))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The items that a connection gets from these pieces, and the reason why it is closed.
    fn hear(limits: Limits, pieces: &[&[u8]]) -> (Vec<String>, Option<Close>) {
        hear_with_stops(limits, pieces, &[])
    }

    /// The same, but only `stops[n]` lines are executed after call `n`.
    fn hear_with_stops(limits: Limits, pieces: &[&[u8]], stops: &[usize]) -> (Vec<String>, Option<Close>) {
        let mut parser = Parser::new(limits);
        let (mut buf, mut heard, mut stops) = (Vec::new(), Vec::new(), stops.iter());
        for piece in pieces {
            buf.extend_from_slice(piece);
            loop {
                let mut items = Vec::new();
                let outcome = parser.parse(&buf, &mut items);
                let done = stops.next().map_or(items.len(), |stop| *stop.min(&items.len()));
                heard.extend(items[..done].iter().map(|line: &ParsedLine<'_>| format!("{:?}", line.item)));
                if done < items.len() {
                    parser.restart(&items[..done]);
                    let end = items[..done].last().map_or(0, |last| last.end);
                    buf.drain(..end);
                    continue;
                }
                match outcome {
                    Ok(consumed) => drop(buf.drain(..consumed)),
                    Err(close) => return (heard, Some(close)),
                }
                break;
            }
        }
        (heard, None)
    }

    fn check(limits: Limits, input: &[u8]) {
        let whole = hear(limits, &[input]);
        let bytes: Vec<&[u8]> = input.chunks(1).collect();
        assert_eq!(whole, hear(limits, &bytes), "byte by byte: {input:?}");
        for cut in 0..=input.len() {
            let (a, b) = input.split_at(cut);
            assert_eq!(whole, hear(limits, &[a, b]), "cut at {cut}: {input:?}");
        }
    }

    const SMALL: Limits = Limits { line_bytes_max: 8, endless_bytes_max: 20 };

    #[test]
    fn lines_are_parsed_the_same_however_they_arrive() {
        for input in [
            &b"ADD 0 x\nRESERVE\r\nSTATS\n\n\r\nDELETE a\n"[..],
            b"RESERVE",
            b"12345678\n12345678\r\n123456789\n123456789\r\nSTATS\n",
            b"12345678\r\r\nSTATS\n",
            b"123456789012345678901\nSTATS\n",
            b"12345678901234567890\nSTATS\n",
            b"1234567890123456789012345678901",
            b"STATS\nGET / HTTP/1.1\nSTATS\n",
            b"Host: x\nSTATS\n",
            b"DELETE / HTTP/1.1\nSTATS\n",
            b"ADD 0 HTTP/1.1\nPOST\nDELETE x\n",
        ] {
            check(SMALL, input);
            check(Limits::default(), input);
        }
    }

    #[test]
    fn the_limit_counts_the_line_without_its_end() {
        let too_long = || format!("{:?}", Item::Complaint(Complaint::LineTooLong));
        let unknown = || format!("{:?}", Item::Complaint(Complaint::UnknownCommand));
        let heard = |input: &[u8]| hear(SMALL, &[input]).0;
        assert_eq!(heard(b"12345678\n"), [unknown()]);
        assert_eq!(heard(b"12345678\r\n"), [unknown()]);
        assert_eq!(heard(b"123456789\nx\n"), [too_long(), unknown()]);
        assert_eq!(heard(b"123456789\r\nx\n"), [too_long(), unknown()]);
        assert_eq!(heard(b"123456789"), [too_long()]);
        assert_eq!(hear(SMALL, &[&b"x".repeat(20), b"\nx\n"]), (vec![too_long(), unknown()], None));
        assert_eq!(hear(SMALL, &[&b"x".repeat(21)]), (vec![too_long()], Some(Close::Endless)));
    }

    #[test]
    fn drops_long_lines_and_searches_unfinished_ones_once() {
        let mut parser = Parser::new(Limits::default());
        let mut items = Vec::new();
        let line = vec![b'x'; 60_000];
        assert_eq!(parser.parse(&line, &mut items), Ok(0));
        assert_eq!(parser.searched, 60_000);
        let line = vec![b'x'; 70_000];
        assert_eq!(parser.parse(&line, &mut items), Ok(70_000));
        assert_eq!(parser.parse(&line, &mut items), Ok(70_000));
        assert_eq!(
            items.iter().map(|line: &ParsedLine<'_>| line.item).collect::<Vec<_>>(),
            [Item::Complaint(Complaint::LineTooLong)]
        );
    }

    #[test]
    fn parsing_continues_after_the_last_executed_line() {
        let input = b"RESERVE\r\nSTATS\n12345";
        let (mut parser, mut lines) = (Parser::new(SMALL), Vec::new());
        assert_eq!(parser.parse(input, &mut lines), Ok(15));
        assert_eq!(lines.iter().map(|line| line.end).collect::<Vec<_>>(), [9, 15]);
        parser.restart(&lines[..1]);
        let mut again = Vec::new();
        assert_eq!(parser.parse(&input[9..], &mut again), Ok(6));
        assert_eq!(again[0].item, lines[1].item);
    }

    #[test]
    fn reports_a_long_line_once_even_if_later_lines_wait() {
        let input = b"123456789\nSTATS\n";
        let (mut parser, mut lines) = (Parser::new(SMALL), Vec::new());
        assert_eq!(parser.parse(input, &mut lines), Ok(16));
        assert_eq!(lines[0].item, Item::Complaint(Complaint::LineTooLong));
        parser.restart(&lines[..1]);
        let mut again = Vec::new();
        assert_eq!(parser.parse(&input[lines[0].end..], &mut again), Ok(16));
        assert_eq!(again, lines[1..]);
    }

    /// The server executes nothing while the home or the peer takes no more.
    #[test]
    fn the_rest_of_a_long_line_is_dropped_also_if_the_next_line_has_to_wait() {
        let (mut parser, mut lines) = (Parser::new(SMALL), Vec::new());
        assert_eq!(parser.parse(b"ADD 0 a long", &mut lines), Ok(12));
        assert_eq!(lines[0].item, Item::Complaint(Complaint::LineTooLong));
        let rest = b" line\nSTATS\n";
        for _ in 0..3 {
            let mut lines = Vec::new();
            assert_eq!(parser.parse(rest, &mut lines), Ok(rest.len()));
            assert_eq!(lines, [ParsedLine { item: Item::Request(Request::Stats), end: rest.len() }]);
            parser.restart(&lines[..0]);
        }
        // The bytes that were dropped before count: with these there are more than 20.
        assert_eq!(parser.parse(b"234567890", &mut Vec::new()), Err(Close::Endless));
    }

    #[test]
    fn a_batch_ends_after_a_line() {
        let input = b"RESERVE\n123456789\nSTATS\n";
        let (mut parser, mut lines, mut at) = (Parser::new(SMALL), Vec::new(), 0);
        parser.set_batch_max(1);
        for consumed in [8, 0, 16] {
            lines.clear();
            assert_eq!(parser.parse(&input[at..], &mut lines), Ok(consumed));
            assert_eq!(lines.len(), 1);
            at += consumed;
        }
        assert_eq!(lines[0].item, Item::Request(Request::Stats));
    }

    #[test]
    fn an_http_request_closes_the_connection_before_any_later_line() {
        for http in ["POST / HTTP/1.1\r\nADD 0 x\n", "hOsT: y\nADD 0 x\n", "DELETE /x HTTP/1.0\r\nADD 0 x\n"]
        {
            assert_eq!(hear(Limits::default(), &[http.as_bytes()]), (vec![], Some(Close::Http)), "{http:?}");
        }
    }

    proptest::proptest! {
        #[test]
        fn any_split_gives_the_same_items(input in "[ADRET 0x\r\n]{0,60}", cuts in proptest::collection::vec(0usize..60, 0..5)) {
            let mut cuts: Vec<usize> = cuts.into_iter().filter(|&cut| cut <= input.len()).collect();
            cuts.sort_unstable();
            let (mut pieces, mut from) = (Vec::new(), 0);
            for cut in cuts {
                pieces.push(&input.as_bytes()[from..cut]);
                from = cut;
            }
            pieces.push(&input.as_bytes()[from..]);
            proptest::prop_assert_eq!(hear(SMALL, &[input.as_bytes()]), hear(SMALL, &pieces));
        }

        #[test]
        fn any_stop_hears_the_same(
            pieces in proptest::collection::vec("[ADRET 0x\r\n]{0,20}", 1..5),
            stops in proptest::collection::vec(0usize..3, 0..9),
        ) {
            let pieces: Vec<&[u8]> = pieces.iter().map(String::as_bytes).collect();
            proptest::prop_assert_eq!(hear(SMALL, &pieces), hear_with_stops(SMALL, &pieces, &stops));
        }
    }
}
