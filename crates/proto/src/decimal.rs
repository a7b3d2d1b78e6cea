//! Decimal numbers in requests and replies.
//!
//! Reading is as strict as in Redis: an optional minus, digits, no leading zeros, no blanks, no overflow.

/// Reads a signed decimal number.
pub fn read_i64(text: &[u8]) -> Option<i64> {
    let (negative, digits) = match text {
        [b'-', digits @ ..] => (true, digits),
        digits => (false, digits),
    };
    if digits == b"0" {
        return (!negative).then_some(0);
    }
    if !matches!(digits.first(), Some(b'1'..=b'9')) {
        return None;
    }
    let size = sureq_core::id::decimal(digits)?;
    if negative { 0i64.checked_sub_unsigned(size) } else { i64::try_from(size).ok() }
}

/// Reads an unsigned decimal number.
pub fn read_u64(text: &[u8]) -> Option<u64> {
    if text.len() > 1 && text[0] == b'0' { None } else { sureq_core::id::decimal(text) }
}

pub fn write_u64(out: &mut Vec<u8>, mut n: u64) {
    if n < 10 {
        out.push(b'0' + n as u8);
        return;
    }
    let mut digits = [0u8; 20];
    let mut at = digits.len();
    while n > 0 {
        at -= 1;
        digits[at] = b'0' + (n % 10) as u8;
        n /= 10;
    }
    out.extend_from_slice(&digits[at..]);
}

pub fn write_i64(out: &mut Vec<u8>, n: i64) {
    if n < 0 {
        out.push(b'-');
    }
    write_u64(out, n.unsigned_abs());
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn only_the_canonical_spelling_is_a_number() {
        for bad in
            ["", "-", "+1", " 1", "1 ", "01", "00", "-0", "-01", "1.0", "0x1", "9223372036854775808", "--1"]
        {
            assert_eq!(read_i64(bad.as_bytes()), None, "{bad:?}");
        }
        assert_eq!(read_i64(b"-9223372036854775808"), Some(i64::MIN));
        assert_eq!(read_u64(b"18446744073709551615"), Some(u64::MAX));
        assert_eq!(read_u64(b"18446744073709551616"), None);
        assert_eq!(read_u64(b"007"), None);
        assert_eq!(read_u64(b"0"), Some(0));
    }

    proptest! {
        #[test]
        fn written_numbers_are_read_back(n: i64) {
            let mut out = Vec::new();
            write_i64(&mut out, n);
            prop_assert_eq!(String::from_utf8_lossy(&out), n.to_string());
            prop_assert_eq!(read_i64(&out), Some(n));
        }
    }
}
