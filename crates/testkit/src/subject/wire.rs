//! Encodes requests and decodes replies of both dialects.

use sureq_proto::resp::{Piece, PieceReader, Scanner};

use crate::scenario::Value;

/// The largest reply in a scenario.
const REPLY_BYTES_MAX: usize = 256 << 20;
/// The bytes of a RESP command.
pub(super) fn encode_words(words: &[Vec<u8>]) -> Vec<u8> {
    let mut bytes = format!("*{}\r\n", words.len()).into_bytes();
    for word in words {
        bytes.extend_from_slice(format!("${}\r\n", word.len()).as_bytes());
        bytes.extend_from_slice(word);
        bytes.extend_from_slice(b"\r\n");
    }
    bytes
}

/// Takes one RESP reply from the front of `bytes`; `None` if it is incomplete.
///
/// # Panics
///
/// If it is not RESP: a home that sends such bytes has failed its test.
pub(super) fn take_resp(bytes: &mut Vec<u8>) -> Option<Value> {
    let len = Scanner::new(REPLY_BYTES_MAX).scan(bytes).expect("a reply is RESP")?;
    let value = value(&mut PieceReader::new(&bytes[..len]));
    bytes.drain(..len);
    Some(value)
}

/// Takes one line from the front of `bytes`, without its end; `None` if it is incomplete.
pub(super) fn take_line(bytes: &mut Vec<u8>) -> Option<Value> {
    let end = bytes.iter().position(|&c| c == b'\n')?;
    let mut line: Vec<u8> = bytes.drain(..=end).collect();
    line.pop();
    Some(Value::Line(line))
}

fn value(pieces: &mut PieceReader<'_>) -> Value {
    let text = |line: &[u8]| String::from_utf8(line.to_vec()).expect("a line is text");
    match pieces.take().expect("a whole reply has all its pieces") {
        Piece::Bulk(bytes) => Value::Bulk(bytes.to_vec()),
        Piece::Simple(line) => Value::Simple(text(line)),
        Piece::Error(line) => Value::Error(text(line)),
        Piece::Integer(n) => Value::Int(n),
        Piece::Null => Value::Null,
        Piece::Array(n) => Value::Array((0..n).map(|_| value(pieces)).collect()),
        Piece::Map(n) => Value::Map((0..n).map(|_| (value(pieces), value(pieces))).collect()),
        Piece::Push(_) => panic!("no connection has a subscription"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reply_is_read_once_it_is_whole() {
        let whole = b"*3\r\n$1\r\na\r\n:-7\r\n%1\r\n+k\r\n_\r\n-ERR x\r\n$-1\r\n=6\r\ntxt:ab\r\n";
        let mut bytes = Vec::new();
        let mut values = Vec::new();
        for &byte in whole {
            bytes.push(byte);
            values.extend(take_resp(&mut bytes));
        }
        let shown: Vec<String> = values.iter().map(ToString::to_string).collect();
        assert_eq!(shown, ["[a -7 {+k null}]", "-ERR x", "null", "ab"]);
        assert!(bytes.is_empty());
    }

    #[test]
    fn a_line_is_read_without_its_end() {
        let mut bytes = b"nil\nTASK".to_vec();
        assert_eq!(take_line(&mut bytes), Some(Value::Line(b"nil".to_vec())));
        assert_eq!(take_line(&mut bytes), None);
        assert_eq!(bytes, b"TASK");
    }
}
