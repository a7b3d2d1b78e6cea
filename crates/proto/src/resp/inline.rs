//! Inline commands, as a person types them: words on a line, with quotes around words that contain blanks.
//!
//! The rules are those of Redis: `"…"` supports `\n \r \t \b \a \xHH` and `\` before any other character; `'…'`
//! supports only `\'`; a closing quote must be followed by a blank or the end of the line.

use std::ops::Range;

/// A closing quote is missing, or is not followed by a blank.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Unbalanced;

/// Whether this line contains quotes, so that splitting it at blanks is not enough.
pub(super) fn is_quoted(line: &[u8]) -> bool {
    line.iter().any(|&c| c == b'"' || c == b'\'')
}

/// The words of a line without quotes.
pub(super) fn words(line: &[u8]) -> impl Iterator<Item = &[u8]> {
    line.split(|&c| is_blank(c)).filter(|word| !word.is_empty())
}

/// Splits a line with quotes. Appends the bytes of the words to `out`, and returns their ranges there.
pub(super) fn unquote(line: &[u8], out: &mut Vec<u8>) -> Result<Vec<Range<usize>>, Unbalanced> {
    let mut words = Vec::new();
    let mut rest = line;
    loop {
        rest = skip_blanks(rest);
        if rest.is_empty() {
            return Ok(words);
        }
        let start = out.len();
        rest = word(rest, out)?;
        words.push(start..out.len());
    }
}

/// Removes one word from the start of `rest` and appends it to `out`.
fn word<'l>(mut rest: &'l [u8], out: &mut Vec<u8>) -> Result<&'l [u8], Unbalanced> {
    loop {
        match rest {
            [] => return Ok(rest),
            [c, ..] if is_blank(*c) => return Ok(rest),
            [b'"', inside @ ..] => return after_quote(double_quoted(inside, out)?),
            [b'\'', inside @ ..] => return after_quote(single_quoted(inside, out)?),
            [c, tail @ ..] => {
                out.push(*c);
                rest = tail;
            }
        }
    }
}

fn double_quoted<'l>(mut rest: &'l [u8], out: &mut Vec<u8>) -> Result<&'l [u8], Unbalanced> {
    loop {
        match rest {
            [b'"', tail @ ..] => return Ok(tail),
            [b'\\', b'x', high, low, tail @ ..] if high.is_ascii_hexdigit() && low.is_ascii_hexdigit() => {
                out.push(hex(*high) << 4 | hex(*low));
                rest = tail;
            }
            [b'\\', c, tail @ ..] => {
                out.push(escaped(*c));
                rest = tail;
            }
            [c, tail @ ..] => {
                out.push(*c);
                rest = tail;
            }
            [] => return Err(Unbalanced),
        }
    }
}

fn single_quoted<'l>(mut rest: &'l [u8], out: &mut Vec<u8>) -> Result<&'l [u8], Unbalanced> {
    loop {
        match rest {
            [b'\'', tail @ ..] => return Ok(tail),
            [b'\\', b'\'', tail @ ..] => {
                out.push(b'\'');
                rest = tail;
            }
            [c, tail @ ..] => {
                out.push(*c);
                rest = tail;
            }
            [] => return Err(Unbalanced),
        }
    }
}

fn after_quote(rest: &[u8]) -> Result<&[u8], Unbalanced> {
    match rest {
        [] => Ok(rest),
        [c, ..] if is_blank(*c) => Ok(rest),
        _ => Err(Unbalanced),
    }
}

fn skip_blanks(line: &[u8]) -> &[u8] {
    let start = line.iter().position(|&c| !is_blank(c)).unwrap_or(line.len());
    &line[start..]
}

fn is_blank(c: u8) -> bool {
    matches!(c, b' ' | b'\t' | b'\n' | b'\r' | 0x0b | 0x0c)
}

fn escaped(c: u8) -> u8 {
    match c {
        b'n' => b'\n',
        b'r' => b'\r',
        b't' => b'\t',
        b'b' => 0x08,
        b'a' => 0x07,
        other => other,
    }
}

fn hex(digit: u8) -> u8 {
    match digit {
        b'0'..=b'9' => digit - b'0',
        _ => (digit | 0x20) - b'a' + 10,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(line: &str, expect: Result<&[&[u8]], Unbalanced>) {
        let mut out = Vec::new();
        let words = unquote(line.as_bytes(), &mut out);
        let words = words.map(|ranges| ranges.into_iter().map(|r| out[r].to_vec()).collect::<Vec<_>>());
        assert_eq!(words, expect.map(|words| words.iter().map(|w| w.to_vec()).collect()), "{line:?}");
        if !is_quoted(line.as_bytes()) {
            let plain: Vec<Vec<u8>> = self::words(line.as_bytes()).map(<[u8]>::to_vec).collect();
            assert_eq!(Ok(plain), words, "{line:?} cut at blanks");
        }
    }

    #[test]
    fn splits_words_like_redis() {
        check("", Ok(&[]));
        check("  \t ", Ok(&[]));
        check(" a  b\tc ", Ok(&[b"a", b"b", b"c"]));
        check("a\\n", Ok(&[b"a\\n"]));
        check(r#""a b" 'c d'"#, Ok(&[b"a b", b"c d"]));
        check(r#""\x41\n\r\t\b\a\"\\\q""#, Ok(&[b"A\n\r\t\x08\x07\"\\q"]));
        check(r#""\xZZ""#, Ok(&[b"xZZ"]));
        check(r"'it\'s' 'a\nb'", Ok(&[b"it's", b"a\\nb"]));
        check(r#"foo"bar" x"#, Ok(&[b"foobar", b"x"]));
        check(r#""" ''"#, Ok(&[b"", b""]));
    }

    #[test]
    fn unbalanced_quotes_are_refused() {
        for bad in [r#"""#, r#""a"#, "'", "'a", r#""a"b"#, "'a'b", r#""a\"#, r#"a "b"#, r#"'a""#] {
            check(bad, Err(Unbalanced));
        }
    }
}
