//! The protocol of beanstalkd. It has no batches, and a job is deleted over the connection that reserved it.

use std::io::Write as _;

use super::{Dialect, Step};
use crate::account::Account;
use crate::resp::{Scan, Token, line_at};

/// Longer than any run.
const TIME_TO_RUN_SECONDS: u32 = 86_400;

/// `put`, `reserve-with-timeout` and `delete` on the tube `default`.
pub(crate) struct Beanstalk;

impl Dialect for Beanstalk {
    fn scanner(&self) -> Scan {
        scan
    }

    fn ping(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(b"list-tube-used\r\n");
    }

    fn ponged(&self, bytes: &[u8], tokens: &[Token]) -> bool {
        is(bytes, tokens, b"USING")
    }

    fn tasks_per_reply(&self, _step: Step, _batch: usize) -> usize {
        1
    }

    fn push(&self, out: &mut Vec<u8>, _me: usize, tasks: usize, account: &mut Account) {
        for _ in 0..tasks {
            let payload = account.make();
            let _ = write!(out, "put 0 0 {TIME_TO_RUN_SECONDS} {}\r\n", payload.len());
            out.extend_from_slice(&payload);
            out.extend_from_slice(b"\r\n");
        }
    }

    fn pop(&self, out: &mut Vec<u8>, _me: usize, tasks: usize) {
        for _ in 0..tasks {
            out.extend_from_slice(b"reserve-with-timeout 0\r\n");
        }
    }

    fn wait(&self, out: &mut Vec<u8>, _me: usize) {
        out.extend_from_slice(b"reserve\r\n");
    }

    fn count(&self, out: &mut Vec<u8>, _me: usize) {
        out.extend_from_slice(b"stats-tube default\r\n");
    }

    fn pushed(&self, bytes: &[u8], tokens: &[Token], _tasks: usize) -> bool {
        is(bytes, tokens, b"INSERTED")
    }

    fn popped(
        &self,
        _me: usize,
        bytes: &[u8],
        tokens: &[Token],
        acks: &mut Vec<u8>,
        deliver: &mut dyn FnMut(&[u8]),
    ) -> Option<usize> {
        match tokens {
            [Token::Array(2), Token::Bulk(id), Token::Bulk(payload)] => {
                acks.extend_from_slice(b"delete ");
                acks.extend_from_slice(&bytes[id.clone()]);
                acks.extend_from_slice(b"\r\n");
                deliver(&bytes[payload.clone()]);
                Some(1)
            }
            tokens => is(bytes, tokens, b"TIMED_OUT").then_some(0),
        }
    }

    fn acked(&self, tokens: &[Token], _last: bool) -> Option<usize> {
        // The only reply of a deletion that is not an error is `DELETED`.
        matches!(tokens, [Token::Simple(_)]).then_some(1)
    }

    fn counted(&self, bytes: &[u8], tokens: &[Token]) -> Option<u64> {
        let [Token::Array(1), Token::Bulk(table)] = tokens else { return None };
        let table = str::from_utf8(&bytes[table.clone()]).ok()?;
        let value = |name: &str| {
            let line = table.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(": "));
            line?.trim().parse::<u64>().ok()
        };
        Some(
            value("current-jobs-ready")?
                + value("current-jobs-reserved")?
                + value("current-jobs-delayed")?
                + value("current-jobs-buried")?,
        )
    }
}

fn is(bytes: &[u8], tokens: &[Token], word: &[u8]) -> bool {
    matches!(tokens, [Token::Simple(line)] if bytes[line.clone()].starts_with(word))
}

/// A reply is a line, followed by bytes if the line ends in their number.
fn scan(bytes: &[u8], tokens: &mut Vec<Token>) -> Result<Option<usize>, String> {
    tokens.clear();
    let Some(line) = line_at(bytes, 0) else { return Ok(None) };
    let text = str::from_utf8(&bytes[..line]).map_err(|_| "a reply is not text".to_owned())?;
    let words: Vec<&str> = text.split(' ').collect();
    let body = |length: &str| {
        let length: usize = length.parse().map_err(|_| format!("a reply has {length:?} for a length"))?;
        let start = line + 2;
        Ok::<_, String>((bytes.len() >= start + length + 2).then_some(start..start + length))
    };
    match words[..] {
        ["RESERVED", id, length] => {
            let Some(payload) = body(length)? else { return Ok(None) };
            let (start, end) = ("RESERVED ".len(), payload.end + 2);
            tokens.extend([Token::Array(2), Token::Bulk(start..start + id.len()), Token::Bulk(payload)]);
            Ok(Some(end))
        }
        ["OK", length] => {
            let Some(table) = body(length)? else { return Ok(None) };
            let end = table.end + 2;
            tokens.extend([Token::Array(1), Token::Bulk(table)]);
            Ok(Some(end))
        }
        ["INSERTED" | "USING", _] | ["DELETED" | "TIMED_OUT"] => {
            tokens.push(Token::Simple(0..line));
            Ok(Some(line + 2))
        }
        _ => {
            tokens.push(Token::Error(0..line));
            Ok(Some(line + 2))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::{check_delivery, check_empty, scan as whole, text};
    use super::*;

    #[test]
    fn a_payload_is_sent_with_its_length() {
        let mut account = Account::new(0);
        let mut out = Vec::new();
        Beanstalk.push(&mut out, 0, 2, &mut account);
        assert!(out.starts_with(b"put 0 0 86400 64\r\n"));
        assert_eq!(out.len(), 2 * ("put 0 0 86400 64\r\n".len() + 66));
        assert_eq!(text(|out| Beanstalk.pop(out, 0, 2)).lines().count(), 2);
    }

    #[test]
    fn a_delivery_is_acked_by_its_number() {
        check_delivery(&Beanstalk, b"RESERVED 12 4\r\nbody\r\n", b"delete 12\r\n");
        check_empty(&Beanstalk, b"TIMED_OUT\r\n");
        assert_eq!(Beanstalk.acked(&whole(&Beanstalk, b"DELETED\r\n"), true), Some(1));
        assert_eq!(Beanstalk.acked(&whole(&Beanstalk, b"NOT_FOUND\r\n"), true), None);
    }

    #[test]
    fn jobs_of_all_states_are_counted() {
        let table = "---\ncurrent-jobs-urgent: 9\ncurrent-jobs-ready: 3\ncurrent-jobs-reserved: 2\n\
                     current-jobs-delayed: 0\ncurrent-jobs-buried: 1\n";
        let reply = format!("OK {}\r\n{table}\r\n", table.len());
        assert_eq!(Beanstalk.counted(reply.as_bytes(), &whole(&Beanstalk, reply.as_bytes())), Some(6));
    }
}
