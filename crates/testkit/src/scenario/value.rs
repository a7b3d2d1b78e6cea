//! A reply as a scenario shows it, in whatever dialect it was sent.

use std::fmt;

use super::words::quote;

/// A reply.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Value {
    /// `7`
    Int(i64),
    /// `word` or `"any \x00 bytes"`
    Bulk(Vec<u8>),
    /// `+OK`
    Simple(String),
    /// `-ERR what is wrong`
    Error(String),
    /// `null`
    Null,
    /// `[a b c]`
    Array(Vec<Value>),
    /// `{name value name value}`
    Map(Vec<(Value, Value)>),
    /// A line of the text dialect, without its end.
    Line(Vec<u8>),
}

impl fmt::Display for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Int(n) => write!(f, "{n}"),
            Self::Bulk(bytes) if is_word(bytes) => f.write_str(&String::from_utf8_lossy(bytes)),
            Self::Bulk(bytes) => f.write_str(&quote(bytes)),
            Self::Simple(text) => write!(f, "+{text}"),
            Self::Error(text) => write!(f, "-{text}"),
            Self::Null => f.write_str("null"),
            Self::Array(items) => {
                f.write_str("[")?;
                for (n, item) in items.iter().enumerate() {
                    write!(f, "{}{item}", if n == 0 { "" } else { " " })?;
                }
                f.write_str("]")
            }
            Self::Map(entries) => {
                f.write_str("{")?;
                for (n, (key, value)) in entries.iter().enumerate() {
                    write!(f, "{}{key} {value}", if n == 0 { "" } else { " " })?;
                }
                f.write_str("}")
            }
            Self::Line(line) => f.write_str(&line_text(line)),
        }
    }
}

/// Whether bytes can be written without quotes.
fn is_word(bytes: &[u8]) -> bool {
    let plain = |c: &u8| c.is_ascii_alphanumeric() || b"_.:-".contains(c);
    bytes.first().is_some_and(u8::is_ascii_alphabetic) && bytes.iter().all(plain) && bytes != b"null"
}

/// A line as it is, or in quotes if it contains invisible characters.
fn line_text(line: &[u8]) -> String {
    let visible = line.iter().all(|c| matches!(c, b' '..=b'~'));
    let edges = line.first().is_some_and(|c| b" \"".contains(c)) || line.last() == Some(&b' ');
    if visible && !edges && !line.is_empty() {
        String::from_utf8_lossy(line).into_owned()
    } else {
        quote(line)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bulk(bytes: &[u8]) -> Value {
        Value::Bulk(bytes.to_vec())
    }

    #[test]
    fn a_value_is_displayed_as_in_a_scenario() {
        let items = vec![bulk(b"q"), bulk(b"7"), Value::Int(7), bulk(b""), bulk(b"null"), Value::Null];
        assert_eq!(Value::Array(items).to_string(), r#"[q "7" 7 "" "null" null]"#);
        assert_eq!(Value::Map(vec![(bulk(b"a"), Value::Int(-1))]).to_string(), "{a -1}");
        assert_eq!(bulk(b"a \"b\"\n\xff").to_string(), r#""a \"b\"\n\xff""#);
        assert_eq!(Value::Line(b"TASK x BODY ".to_vec()).to_string(), r#""TASK x BODY ""#);
        assert_eq!(Value::Line(b"unknown command".to_vec()).to_string(), "unknown command");
    }
}
