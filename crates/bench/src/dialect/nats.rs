//! NATS `JetStream` in its plain text protocol: a stream with work-queue retention in files, and one pull consumer.
//!
//! Every request carries the inbox of the connection, to which the server publishes its reply: the number of a
//! published task, the tasks of a pull, or an empty message after an ack. The acks are therefore confirmed, like
//! those of the other systems.

use std::io::Write as _;

use super::{Dialect, Step};
use crate::account::Account;
use crate::resp::{Scan, Token, line_at};

const STREAM: &str =
    r#"{"name":"bench","subjects":["bench"],"retention":"workqueue","storage":"file","num_replicas":1}"#;
/// Tasks are not redelivered within a day, and not held back.
const CONSUMER: &str = r#"{"stream_name":"bench","config":{"durable_name":"c","deliver_policy":"all","ack_policy":"explicit","ack_wait":86400000000000,"max_ack_pending":-1,"max_waiting":4096}}"#;

/// `PUB` to the stream, `$JS.API.CONSUMER.MSG.NEXT`, and `+ACK`.
pub(crate) struct Nats;

impl Dialect for Nats {
    fn scanner(&self) -> Scan {
        scan
    }

    fn greet(&self, out: &mut Vec<u8>, me: usize) {
        let _ = write!(out, "CONNECT {{\"verbose\":false,\"pedantic\":false}}\r\nSUB _INBOX.{me} 1\r\n");
    }

    fn prepare(&self, out: &mut Vec<u8>, me: usize) -> usize {
        publish(out, me, "$JS.API.STREAM.CREATE.bench", STREAM.as_bytes());
        publish(out, me, "$JS.API.CONSUMER.DURABLE.CREATE.bench.c", CONSUMER.as_bytes());
        2
    }

    fn ping(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(b"PING\r\n");
    }

    fn tasks_per_reply(&self, _step: Step, _batch: usize) -> usize {
        1
    }

    fn push(&self, out: &mut Vec<u8>, me: usize, tasks: usize, account: &mut Account) {
        for _ in 0..tasks {
            publish(out, me, "bench", &account.make());
        }
    }

    fn pop(&self, out: &mut Vec<u8>, me: usize, tasks: usize) {
        publish(out, me, "$JS.API.CONSUMER.MSG.NEXT.bench.c", format!("{{\"batch\":{tasks}}}").as_bytes());
    }

    fn wait(&self, out: &mut Vec<u8>, me: usize) {
        self.pop(out, me, 1);
    }

    fn count(&self, out: &mut Vec<u8>, me: usize) {
        publish(out, me, "$JS.API.STREAM.INFO.bench", b"");
    }

    fn pushed(&self, bytes: &[u8], tokens: &[Token], _tasks: usize) -> bool {
        answer(bytes, tokens).is_some_and(|text| text.contains("\"seq\":") && !text.contains("\"error\""))
    }

    fn popped(
        &self,
        me: usize,
        bytes: &[u8],
        tokens: &[Token],
        acks: &mut Vec<u8>,
        deliver: &mut dyn FnMut(&[u8]),
    ) -> Option<usize> {
        match tokens {
            [Token::Array(2), Token::Bulk(subject), Token::Bulk(payload)] => {
                let subject = str::from_utf8(&bytes[subject.clone()]).ok()?;
                publish(acks, me, subject, b"+ACK");
                deliver(&bytes[payload.clone()]);
                Some(1)
            }
            // A message without a subject for an ack is a status: there are no tasks.
            [Token::Array(2), Token::Null, _] => Some(0),
            _ => None,
        }
    }

    fn acked(&self, tokens: &[Token], _last: bool) -> Option<usize> {
        match tokens {
            [Token::Array(2), Token::Null, Token::Bulk(nothing)] if nothing.is_empty() => Some(1),
            _ => None,
        }
    }

    fn counted(&self, bytes: &[u8], tokens: &[Token]) -> Option<u64> {
        let (_, rest) = answer(bytes, tokens)?.split_once("\"messages\":")?;
        let digits = rest.split(|c: char| !c.is_ascii_digit()).next()?;
        digits.parse().ok()
    }
}

fn publish(out: &mut Vec<u8>, me: usize, subject: &str, payload: &[u8]) {
    let _ = write!(out, "PUB {subject} _INBOX.{me} {}\r\n", payload.len());
    out.extend_from_slice(payload);
    out.extend_from_slice(b"\r\n");
}

/// The text that was published to the inbox.
fn answer<'a>(bytes: &'a [u8], tokens: &[Token]) -> Option<&'a str> {
    match tokens {
        [Token::Array(2), Token::Null, Token::Bulk(text)] => str::from_utf8(&bytes[text.clone()]).ok(),
        _ => None,
    }
}

/// A message becomes its reply subject and its payload. Messages of the server itself (`INFO`, `PING`) are skipped:
/// it is started with a ping interval that is longer than any run.
fn scan(bytes: &[u8], tokens: &mut Vec<Token>) -> Result<Option<usize>, String> {
    tokens.clear();
    let mut at = 0;
    loop {
        let Some(line) = line_at(bytes, at) else { return Ok(None) };
        let text = str::from_utf8(&bytes[at..line]).map_err(|_| "a reply is not text".to_owned())?;
        let next = line + 2;
        if text.starts_with("INFO ") || text == "PING" || text == "+OK" {
            at = next;
            continue;
        }
        if text == "PONG" {
            tokens.push(Token::Simple(at..line));
            return Ok(Some(next));
        }
        if text.starts_with('-') {
            tokens.push(Token::Error(at + 1..line));
            return Ok(Some(next));
        }
        let words: Vec<&str> = text.split_ascii_whitespace().collect();
        let (reply, length) = match words[..] {
            ["MSG", _, _, length] => (None, length),
            ["MSG", _, _, reply, length] => (Some(reply), length),
            _ => return Err(format!("a reply begins with {text:?}")),
        };
        let length: usize = length.parse().map_err(|_| format!("a message has {length:?} for a length"))?;
        let end = next + length + 2;
        if bytes.len() < end {
            return Ok(None);
        }
        let reply = reply.map_or(Token::Null, |reply| {
            let start = at + text.find(reply).unwrap_or_default();
            Token::Bulk(start..start + reply.len())
        });
        tokens.extend([Token::Array(2), reply, Token::Bulk(next..next + length)]);
        return Ok(Some(end));
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::{check_delivery, check_empty, scan as whole, text};
    use super::*;

    #[test]
    fn requests_name_the_inbox_of_their_connection() {
        assert!(text(|out| Nats.greet(out, 3)).ends_with("SUB _INBOX.3 1\r\n"));
        let pop = text(|out| Nats.pop(out, 3, 10));
        assert_eq!(pop, "PUB $JS.API.CONSUMER.MSG.NEXT.bench.c _INBOX.3 12\r\n{\"batch\":10}\r\n");
    }

    #[test]
    fn a_delivery_is_acked_to_its_own_subject() {
        let reply = b"INFO {}\r\nPING\r\nMSG bench 1 $JS.ACK.bench.c.1.1.1.17.0 4\r\nbody\r\n";
        check_delivery(&Nats, reply, b"PUB $JS.ACK.bench.c.1.1.1.17.0 _INBOX.7 4\r\n+ACK\r\n");
        check_empty(&Nats, b"MSG _INBOX.7 1  0\r\n\r\n");
        assert_eq!(Nats.acked(&whole(&Nats, b"MSG _INBOX.7 1 0\r\n\r\n"), true), Some(1));
    }

    #[test]
    fn a_push_is_confirmed_by_its_number() {
        let check = |body: &str, expected| {
            let reply = format!("MSG _INBOX.7 1  {}\r\n{body}\r\n", body.len());
            let tokens = whole(&Nats, reply.as_bytes());
            assert_eq!(Nats.pushed(reply.as_bytes(), &tokens, 1), expected, "{body}");
        };
        check(r#"{"stream":"bench", "seq":1}"#, true);
        check(r#"{"error":{"code":503},"seq":0}"#, false);
    }

    #[test]
    fn the_length_of_the_stream_is_parsed() {
        let body = r#"{"state":{"messages":123,"bytes":9}}"#;
        let reply = format!("MSG _INBOX.7 1 {}\r\n{body}\r\n", body.len());
        assert_eq!(Nats.counted(reply.as_bytes(), &whole(&Nats, reply.as_bytes())), Some(123));
    }
}
