//! Unsigned numbers as Go's flag package reads them: `strconv.ParseUint` with base 0.

use std::fmt;

/// Why a text is not a number, in the words of Go's flag package.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NotUint {
    Syntax,
    OutOfRange,
}

impl fmt::Display for NotUint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Syntax => "parse error",
            Self::OutOfRange => "value out of range",
        })
    }
}

/// Reads decimal, or `0b`, `0o`, `0x` and a bare leading `0` for octal. `_` may stand between digits and behind a
/// prefix.
pub(crate) fn parse(text: &str) -> Result<u64, NotUint> {
    if text.is_empty() {
        return Err(NotUint::Syntax);
    }
    let (radix, digits) = split_radix(text.as_bytes());
    let mut number: u64 = 0;
    for &c in digits.iter().filter(|&&c| c != b'_') {
        let digit = char::from(c).to_digit(radix).ok_or(NotUint::Syntax)?;
        let times = number.checked_mul(radix.into()).ok_or(NotUint::OutOfRange)?;
        number = times.checked_add(digit.into()).ok_or(NotUint::OutOfRange)?;
    }
    if has_stray_underscore(text.as_bytes()) { Err(NotUint::Syntax) } else { Ok(number) }
}

/// The base of a number according to its prefix, and its digits. A prefix without digits does not count.
fn split_radix(text: &[u8]) -> (u32, &[u8]) {
    match text {
        [b'0', b'b' | b'B', digits @ ..] if !digits.is_empty() => (2, digits),
        [b'0', b'o' | b'O', digits @ ..] if !digits.is_empty() => (8, digits),
        [b'0', b'x' | b'X', digits @ ..] if !digits.is_empty() => (16, digits),
        [b'0', digits @ ..] => (8, digits),
        _ => (10, text),
    }
}

/// Whether an underscore is anywhere but between two digits, or between a prefix and a digit.
fn has_stray_underscore(text: &[u8]) -> bool {
    let (mut rest, mut may_follow) = (text, false);
    if let [b'0', b'b' | b'B' | b'o' | b'O' | b'x' | b'X', digits @ ..] = text {
        (rest, may_follow) = (digits, true);
    }
    for &c in rest {
        if c == b'_' && !may_follow {
            return true;
        }
        may_follow = c != b'_';
    }
    rest.last() == Some(&b'_')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_that_go_accepts() {
        for (text, number) in [
            ("0", 0),
            ("00", 0),
            ("7", 7),
            ("010", 8),
            ("0o10", 8),
            ("0O17", 15),
            ("0b101", 5),
            ("0B1", 1),
            ("0x10", 16),
            ("0XfF", 255),
            ("1_0", 10),
            ("1_000_000", 1_000_000),
            ("0_10", 8),
            ("0x_1f", 31),
            ("0b_1_1", 3),
            ("18446744073709551615", u64::MAX),
            ("0xffff_ffff_ffff_ffff", u64::MAX),
        ] {
            assert_eq!(parse(text), Ok(number), "{text}");
        }
    }

    #[test]
    fn numbers_that_go_refuses() {
        for text in [
            "", "+1", "-1", " 1", "1 ", "08", "0b2", "0o8", "0xg", "0x", "0b", "0o", "_1", "1_", "1__0",
            "0_", "0x_", "0x1_", "1.0", "1e3", "ten", "0x+1", "1_a",
        ] {
            assert_eq!(parse(text), Err(NotUint::Syntax), "{text}");
        }
        // The number is too large before the letter is reached.
        for text in ["18446744073709551616", "0x1_0000_0000_0000_0000", "99999999999999999999999x"] {
            assert_eq!(parse(text), Err(NotUint::OutOfRange), "{text}");
        }
    }
}
