//! Bytes of requests, and replies from bytes: what a client of either dialect writes and reads.

use crate::scenario::Value;

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

/// Takes one RESP reply from the front of `bytes`; none if it is not whole yet.
///
/// # Panics
///
/// If it is no RESP: a home that sends such a thing has failed its test.
pub(super) fn take_resp(bytes: &mut Vec<u8>) -> Option<Value> {
    let mut at = 0;
    let value = resp(bytes, &mut at)?;
    bytes.drain(..at);
    Some(value)
}

/// Takes one line from the front of `bytes`, without its end; none if it is not whole yet.
pub(super) fn take_line(bytes: &mut Vec<u8>) -> Option<Value> {
    let end = bytes.iter().position(|&c| c == b'\n')?;
    let mut line: Vec<u8> = bytes.drain(..=end).collect();
    line.pop();
    Some(Value::Line(line))
}

fn resp(bytes: &[u8], at: &mut usize) -> Option<Value> {
    let line = line(bytes, at)?;
    let (kind, text) = line.split_first().expect("a reply has a first byte");
    let text = std::str::from_utf8(text).expect("the head of a reply is text");
    let number = || text.parse::<i64>().expect("a number");
    Some(match kind {
        b':' => Value::Int(number()),
        b'+' => Value::Simple(text.to_owned()),
        b'-' => Value::Error(text.to_owned()),
        b'_' => Value::Null,
        b'$' | b'=' | b'*' | b'%' if number() < 0 => Value::Null,
        b'$' => Value::Bulk(blob(bytes, at, number())?),
        // A verbatim text begins with its kind and a colon.
        b'=' => Value::Bulk(blob(bytes, at, number())?.split_off(4)),
        b'*' | b'~' => Value::Array((0..number()).map(|_| resp(bytes, at)).collect::<Option<_>>()?),
        b'%' => {
            let entries = (0..number()).map(|_| Some((resp(bytes, at)?, resp(bytes, at)?)));
            Value::Map(entries.collect::<Option<_>>()?)
        }
        _ => panic!("no RESP reply begins with {:?}", char::from(*kind)),
    })
}

fn line<'b>(bytes: &'b [u8], at: &mut usize) -> Option<&'b [u8]> {
    let rest = &bytes[*at..];
    let end = rest.windows(2).position(|pair| pair == b"\r\n")?;
    *at += end + 2;
    Some(&rest[..end])
}

fn blob(bytes: &[u8], at: &mut usize, len: i64) -> Option<Vec<u8>> {
    let len = usize::try_from(len).expect("a length");
    let blob = bytes.get(*at..*at + len + 2)?;
    assert_eq!(&blob[len..], b"\r\n", "a blob ends where it said");
    *at += len + 2;
    Some(blob[..len].to_vec())
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
