//! RESP2 for a client: requests appended to a buffer, replies split into tokens.
//!
//! A reply becomes a flat list of tokens in a vector that is reused for the next one, so that the client allocates
//! nothing per request and stays cheap compared with the server.

use std::ops::Range;

/// One element of a reply. Bytes are ranges in the scanned buffer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Token {
    /// `+OK`
    Simple(Range<usize>),
    /// `-ERR …`, without the dash.
    Error(Range<usize>),
    /// `:1`
    Integer(i64),
    /// `$5 hello`
    Bulk(Range<usize>),
    /// `*2`, whose elements are the tokens that follow.
    Array(usize),
    /// `$-1` or `*-1`
    Null,
}

/// Splits the reply at the start of a buffer into tokens, like [`scan`] for RESP.
pub(crate) type Scan = fn(&[u8], &mut Vec<Token>) -> Result<Option<usize>, String>;

/// Scans the reply at the start of `bytes`. Returns its length, with its elements in `tokens`, or `None` as long as
/// its end is missing.
pub(crate) fn scan(bytes: &[u8], tokens: &mut Vec<Token>) -> Result<Option<usize>, String> {
    tokens.clear();
    let mut at = 0;
    let mut wanted = 1_usize;
    while wanted > 0 {
        let Some(line) = line_at(bytes, at) else { return Ok(None) };
        let Some(&kind) = bytes.get(at) else { return Ok(None) };
        let text = at + 1..line;
        at = line + 2;
        wanted -= 1;
        let token = match kind {
            b'+' => Token::Simple(text),
            b'-' => Token::Error(text),
            b':' => Token::Integer(integer(&bytes[text])?),
            b'$' => match usize::try_from(integer(&bytes[text])?) {
                Err(_) => Token::Null,
                Ok(length) => {
                    let start = at;
                    at += length + 2;
                    if bytes.len() < at {
                        return Ok(None);
                    }
                    Token::Bulk(start..start + length)
                }
            },
            b'*' => match usize::try_from(integer(&bytes[text])?) {
                Err(_) => Token::Null,
                Ok(length) => {
                    wanted += length;
                    Token::Array(length)
                }
            },
            other => return Err(format!("a reply begins with {:?}", char::from(other))),
        };
        tokens.push(token);
    }
    Ok(Some(at))
}

/// Appends the header of a request with this many words.
pub(crate) fn request(out: &mut Vec<u8>, words: usize) {
    header(out, b'*', words);
}

/// Appends one word of a request.
pub(crate) fn word(out: &mut Vec<u8>, bytes: &[u8]) {
    header(out, b'$', bytes.len());
    out.extend_from_slice(bytes);
    out.extend_from_slice(b"\r\n");
}

/// Appends a number as a word of a request.
pub(crate) fn number(out: &mut Vec<u8>, number: usize) {
    let mut digits = [0; 20];
    word(out, decimal(number, &mut digits));
}

/// Appends a complete request.
pub(crate) fn command(out: &mut Vec<u8>, words: &[&[u8]]) {
    request(out, words.len());
    for bytes in words {
        word(out, bytes);
    }
}

fn header(out: &mut Vec<u8>, kind: u8, number: usize) {
    let mut digits = [0; 20];
    out.push(kind);
    out.extend_from_slice(decimal(number, &mut digits));
    out.extend_from_slice(b"\r\n");
}

fn decimal(mut number: usize, digits: &mut [u8; 20]) -> &[u8] {
    let mut at = digits.len();
    loop {
        at -= 1;
        digits[at] = b'0' + (number % 10) as u8;
        number /= 10;
        if number == 0 {
            return &digits[at..];
        }
    }
}

/// The end of the line that starts at `from`, before its CR LF.
pub(crate) fn line_at(bytes: &[u8], from: usize) -> Option<usize> {
    let length = bytes.get(from..)?.iter().position(|&byte| byte == b'\n')?;
    (from + length).checked_sub(1)
}

fn integer(text: &[u8]) -> Result<i64, String> {
    let (negative, digits) = match text {
        [b'-', digits @ ..] => (true, digits),
        digits => (false, digits),
    };
    // Eighteen digits fit; no reply of a queue has more.
    if digits.is_empty() || digits.len() > 18 || !digits.iter().all(u8::is_ascii_digit) {
        return Err(format!("a reply has {:?} for a number", String::from_utf8_lossy(text)));
    }
    let value = digits.iter().fold(0, |value, digit| value * 10 + i64::from(digit - b'0'));
    Ok(if negative { -value } else { value })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reply_is_whole_only_with_its_last_byte() {
        let reply = b"*2\r\n*3\r\n$1\r\nq\r\n$3\r\n1-1\r\n$4\r\na\r\nb\r\n:-12\r\n";
        let mut tokens = Vec::new();
        for end in 0..reply.len() {
            assert_eq!(scan(&reply[..end], &mut tokens), Ok(None), "cut at {end}");
        }
        let mut more = reply.to_vec();
        more.extend_from_slice(b"+OK");
        assert_eq!(scan(&more, &mut tokens), Ok(Some(reply.len())));
        let Token::Bulk(payload) = tokens[4].clone() else { panic!("{tokens:?}") };
        assert_eq!(&more[payload], b"a\r\nb");
        assert_eq!(tokens[0..2], [Token::Array(2), Token::Array(3)]);
        assert_eq!(tokens[5..], [Token::Integer(-12)]);
    }

    #[test]
    fn every_kind_of_reply_is_known() {
        let check = |reply: &[u8], expected: Token| {
            let mut tokens = Vec::new();
            assert_eq!(scan(reply, &mut tokens), Ok(Some(reply.len())));
            assert_eq!(tokens, [expected]);
        };
        check(b"+PONG\r\n", Token::Simple(1..5));
        check(b"-ERR no\r\n", Token::Error(1..7));
        check(b":0\r\n", Token::Integer(0));
        check(b"$0\r\n\r\n", Token::Bulk(4..4));
        check(b"$-1\r\n", Token::Null);
        check(b"*-1\r\n", Token::Null);
        check(b"*0\r\n", Token::Array(0));
    }

    #[test]
    fn malformed_replies_are_refused() {
        assert!(scan(b"HTTP/1.1 400\r\n", &mut Vec::new()).is_err());
        assert!(scan(b":1x\r\n", &mut Vec::new()).is_err());
        assert!(scan(b"$\r\n", &mut Vec::new()).is_err());
    }

    #[test]
    fn requests_are_arrays_of_words() {
        let mut out = Vec::new();
        command(&mut out, &[b"LPUSH", b"q", b""]);
        assert_eq!(out, b"*3\r\n$5\r\nLPUSH\r\n$1\r\nq\r\n$0\r\n\r\n");
        out.clear();
        number(&mut out, 1230);
        assert_eq!(out, b"$4\r\n1230\r\n");
    }
}
