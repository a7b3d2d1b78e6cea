//! The words of a line: bare, or in quotes with escapes and perhaps repeated (`"ab"*3` is one word of six bytes,
//! `"ab"**3` are three words).

use std::fmt::Write as _;

/// One word of a line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Word {
    /// Without quotes: a name, a number, a capture, a bracket.
    Bare(String),
    /// In quotes: exactly these bytes.
    Quoted(Vec<u8>),
}

/// Splits a line into words; brackets are separate words. A word that begins with `#` starts a comment.
pub(crate) fn split(line: &str) -> Result<Vec<Word>, String> {
    let mut words = Vec::new();
    let mut rest = line.trim_start();
    while let Some(first) = rest.chars().next() {
        rest = match first {
            '#' => break,
            '"' => {
                let (bytes, times, behind) = quoted(rest)?;
                words.extend(std::iter::repeat_n(Word::Quoted(bytes), times));
                behind
            }
            '[' | ']' | '{' | '}' => {
                words.push(Word::Bare(first.to_string()));
                &rest[1..]
            }
            _ => {
                let ends = |c: char| c.is_whitespace() || "[]{}\"".contains(c);
                let (word, behind) = rest.split_at(rest.find(ends).unwrap_or(rest.len()));
                words.push(Word::Bare(word.to_owned()));
                behind
            }
        }
        .trim_start();
    }
    Ok(words)
}

/// Parses a quoted word at the start of `text`; returns its bytes, the number of such words, and the rest.
fn quoted(text: &str) -> Result<(Vec<u8>, usize, &str), String> {
    let mut bytes = Vec::new();
    let mut chars = text.char_indices().skip(1);
    while let Some((at, c)) = chars.next() {
        match c {
            '"' => return repeated(bytes, &text[at + 1..]),
            '\\' => {
                let (at, escape) = chars.next().ok_or("a line ends in a backslash")?;
                match escape {
                    'n' => bytes.push(b'\n'),
                    'r' => bytes.push(b'\r'),
                    't' => bytes.push(b'\t'),
                    '"' | '\\' => bytes.push(escape as u8),
                    'x' => {
                        let digits = text.get(at + 1..at + 3).ok_or("\\x needs two digits")?;
                        let byte = u8::from_str_radix(digits, 16).map_err(|_| "\\x needs two hex digits")?;
                        bytes.push(byte);
                        chars.nth(1);
                    }
                    _ => return Err(format!("unknown escape \\{escape}")),
                }
            }
            _ => bytes.extend_from_slice(c.encode_utf8(&mut [0; 4]).as_bytes()),
        }
    }
    Err("a quote is not closed".to_owned())
}

fn repeated(bytes: Vec<u8>, behind: &str) -> Result<(Vec<u8>, usize, &str), String> {
    let times = |count: &'_ str| -> Result<(usize, usize), String> {
        let end = count.find(|c: char| !c.is_ascii_digit()).unwrap_or(count.len());
        let times = count[..end].parse().map_err(|_| "expected a number of repetitions after *")?;
        Ok((times, end))
    };
    if let Some(count) = behind.strip_prefix("**") {
        let (times, end) = times(count)?;
        Ok((bytes, times, &count[end..]))
    } else if let Some(count) = behind.strip_prefix('*') {
        let (times, end) = times(count)?;
        Ok((bytes.repeat(times), 1, &count[end..]))
    } else {
        Ok((bytes, 1, behind))
    }
}

/// Bytes in quotes, in the form that [`split`] reads.
pub(crate) fn quote(bytes: &[u8]) -> String {
    let mut text = String::from("\"");
    for &c in bytes {
        match c {
            b'"' | b'\\' => text.extend(['\\', char::from(c)]),
            b'\n' => text.push_str("\\n"),
            b'\r' => text.push_str("\\r"),
            b'\t' => text.push_str("\\t"),
            b' '..=b'~' => text.push(char::from(c)),
            // Writing to a `String` does not fail.
            _ => drop(write!(text, "\\x{c:02x}")),
        }
    }
    text.push('"');
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(line: &str, expect: &[&str]) {
        let words = split(line).unwrap().into_iter().map(|word| match word {
            Word::Bare(word) => word,
            Word::Quoted(bytes) => quote(&bytes),
        });
        assert_eq!(words.collect::<Vec<_>>(), expect, "{line}");
    }

    #[test]
    fn words_are_bare_or_quoted() {
        check("", &[]);
        check("  RQ.PUSH  q a # why", &["RQ.PUSH", "q", "a"]);
        check("[[q $a] #", &["[", "[", "q", "$a", "]"]);
        check(r#""a b" "\x00\xff\n" "" "#, &[r#""a b""#, r#""\x00\xff\n""#, "\"\""]);
        check(r#""ab"*3 c#d"#, &[r#""ababab""#, "c#d"]);
        check(r#""ab"**3 c"#, &[r#""ab""#, r#""ab""#, r#""ab""#, "c"]);
        check("\"ü\"", &["\"\\xc3\\xbc\""]);
        for bad in ["\"a", r#""\q""#, r#""\x1"#, r#""a"*"#, r#""a"**"#, "\"a\\"] {
            assert!(split(bad).is_err(), "{bad}");
        }
    }
}
