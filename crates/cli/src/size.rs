//! Sizes on the command line: a number of bytes, or one with a unit.

use serde::{Deserialize, Deserializer};

/// Parses `33554432`, `64MB`, `8k` or `1GiB`. Units are powers of 1024, in any case.
pub(crate) fn parse(text: &str) -> Result<u64, String> {
    let digits = text.len() - text.trim_start_matches(|c: char| c.is_ascii_digit()).len();
    let (number, unit) = text.split_at(digits);
    let wrong = || format!("{text:?} is not a size: write a number of bytes, or one with KB, MB or GB");
    let number: u64 = number.parse().map_err(|_| wrong())?;
    let shift = match unit.to_ascii_lowercase().as_str() {
        "" | "b" => 0,
        "k" | "kb" | "kib" => 10,
        "m" | "mb" | "mib" => 20,
        "g" | "gb" | "gib" => 30,
        _ => return Err(wrong()),
    };
    number.checked_mul(1 << shift).ok_or_else(wrong)
}

/// The size of an optional flag.
pub(crate) fn of_flag(flag: &str, text: Option<&str>) -> Result<Option<u64>, String> {
    text.map(parse).transpose().map_err(|why| format!("{flag}: {why}"))
}

/// A size in the form that `parse` reads.
pub(crate) fn format(bytes: usize) -> String {
    match bytes {
        bytes if bytes.is_multiple_of(1 << 30) => format!("{}GB", bytes >> 30),
        bytes if bytes.is_multiple_of(1 << 20) => format!("{}MB", bytes >> 20),
        bytes if bytes.is_multiple_of(1 << 10) => format!("{}KB", bytes >> 10),
        bytes => bytes.to_string(),
    }
}

/// A size in a TOML file: a number of bytes, or text as on the command line.
pub(crate) fn text_or_number<'de, D: Deserializer<'de>>(from: D) -> Result<Option<String>, D::Error> {
    #[derive(Deserialize)]
    #[serde(untagged)]
    enum Size {
        Bytes(u64),
        Text(String),
    }
    Ok(Some(match Size::deserialize(from)? {
        Size::Bytes(bytes) => bytes.to_string(),
        Size::Text(text) => text,
    }))
}

#[cfg(test)]
mod tests {
    use super::parse;

    #[test]
    fn sizes_have_units_or_are_bytes() {
        let cases =
            [("0", 0), ("123", 123), ("8k", 8 << 10), ("64MB", 64 << 20), ("1GiB", 1 << 30), ("5b", 5)];
        for (text, bytes) in cases {
            assert_eq!(parse(text), Ok(bytes), "{text}");
        }
        for bad in ["", "MB", "-1", "1.5MB", "12 MB", "1TB", "99999999999999999999", "18446744073709551615GB"]
        {
            assert!(parse(bad).is_err(), "{bad}");
        }
    }
}
