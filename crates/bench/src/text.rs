//! sureq's text dialect, limited to delayed tasks: `ADD`, `RESERVE`, `RETURN`, `STATS`.
//!
//! Bodies are the hexadecimal digits of a payload of half their length, since a body has neither spaces nor line
//! ends.

use std::collections::VecDeque;
use std::error::Error;
use std::io::Write as _;
use std::net::SocketAddr;

use crate::Broken;
use crate::client::Client;
use crate::payload::{PAYLOAD_BYTES, Payloads, mix};
use crate::resp::Token;

/// Requests in one write; two such chunks are in flight at a time.
const CHUNK: u64 = 1_000;
const AHEAD: usize = 2;
/// The longest delay of the dialect, some 24 days.
pub(crate) const DELAY_MS_MAX: u64 = 2_147_483_647;

/// A connection in the text dialect.
pub(crate) struct Text {
    pub(crate) client: Client,
    payloads: Payloads,
}

pub(crate) struct Reserved {
    pub(crate) id: String,
    pub(crate) number: u64,
}

impl Text {
    pub(crate) fn open(address: SocketAddr, salt: u64) -> Result<Self, Box<dyn Error>> {
        Ok(Text { client: Client::connect(address, scan)?, payloads: Payloads::new(salt) })
    }

    /// Adds `tasks` tasks with random delays between two bounds.
    pub(crate) fn add(&mut self, tasks: u64, least_ms: u64, most_ms: u64) -> Result<(), Box<dyn Error>> {
        let (mut sent, mut under_way) = (0, VecDeque::new());
        loop {
            while sent < tasks && under_way.len() < AHEAD {
                let count = CHUNK.min(tasks - sent);
                for number in sent..sent + count {
                    let delay = least_ms + mix(number) % (most_ms - least_ms + 1);
                    let body = body(self.payloads, number);
                    let _ = writeln!(self.client.output, "ADD {delay} {body}");
                }
                self.client.send()?;
                sent += count;
                under_way.push_back(count);
            }
            let Some(count) = under_way.pop_front() else { return Ok(()) };
            for _ in 0..count {
                let line = self.line()?;
                if !(line.starts_with("TASK ") && line.contains(" DELAY ")) {
                    return Err(format!("the server answered an ADD with {line:?}").into());
                }
            }
        }
    }

    /// Reads the reply to a `RESERVE`.
    pub(crate) fn reserved(&mut self) -> Result<Option<Reserved>, Box<dyn Error>> {
        let payloads = self.payloads;
        let line = self.line()?;
        if line == "nil" {
            return Ok(None);
        }
        let words: Vec<&str> = line.split(' ').collect();
        let ["TASK", id, "BODY", text] = words[..] else {
            return Err(format!("the server answered a RESERVE with {line:?}").into());
        };
        let number = u64::from_str_radix(text.get(..16).unwrap_or_default(), 16).map(u64::swap_bytes);
        match number {
            Ok(number) if body(payloads, number) == text => Ok(Some(Reserved { id: id.to_owned(), number })),
            _ => Err(Broken(format!("a task was altered: {line:?}")).into()),
        }
    }

    /// Reads a reply that must be `ok`.
    pub(crate) fn must_be_ok(&mut self) -> Result<(), Box<dyn Error>> {
        match self.line()?.as_str() {
            "ok" => Ok(()),
            other => Err(format!("the server answered a RETURN with {other:?}").into()),
        }
    }

    /// The numbers of waiting and of reserved tasks.
    pub(crate) fn stats(&mut self) -> Result<(u64, u64), Box<dyn Error>> {
        self.client.output.extend_from_slice(b"STATS\n");
        self.client.send()?;
        let line = self.line()?;
        let words: Vec<&str> = line.split(' ').collect();
        match words[..] {
            ["TASKS", waiting, "RESERVED", reserved, ..] => Ok((waiting.parse()?, reserved.parse()?)),
            _ => Err(format!("the server answered STATS with {line:?}").into()),
        }
    }

    fn line(&mut self) -> Result<String, Box<dyn Error>> {
        let reply = self.client.reply()?;
        Ok(String::from_utf8_lossy(reply.bytes).trim_end_matches('\n').to_owned())
    }
}

/// The body with this number, of the same length as other payloads.
fn body(payloads: Payloads, number: u64) -> String {
    let mut half = [0; PAYLOAD_BYTES / 2];
    payloads.write(number, &mut half);
    let mut text = Vec::with_capacity(PAYLOAD_BYTES);
    for byte in half {
        let _ = write!(text, "{byte:02x}");
    }
    String::from_utf8_lossy(&text).into_owned()
}

/// A reply is a line.
#[expect(clippy::unnecessary_wraps, reason = "other dialects have replies that make no sense")]
fn scan(bytes: &[u8], tokens: &mut Vec<Token>) -> Result<Option<usize>, String> {
    tokens.clear();
    let Some(end) = bytes.iter().position(|&byte| byte == b'\n') else { return Ok(None) };
    tokens.push(Token::Simple(0..end));
    Ok(Some(end + 1))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_body_is_text_and_begins_with_its_number() {
        let text = body(Payloads::new(3), 0x0102);
        assert_eq!(text.len(), PAYLOAD_BYTES);
        assert!(text.starts_with("0201000000000000"), "{text}");
        assert_ne!(body(Payloads::new(4), 0x0102), text);
        assert_eq!(u64::from_str_radix(&text[..16], 16).map(u64::swap_bytes), Ok(0x0102));
    }

    #[test]
    fn a_reply_ends_with_its_line() {
        let mut tokens = Vec::new();
        assert_eq!(scan(b"ok", &mut tokens), Ok(None));
        assert_eq!(scan(b"ok\nnil\n", &mut tokens), Ok(Some(3)));
    }
}
