//! A client that uses RESP.

use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use sureq_core::command::Block;
use sureq_history::Outcome;

use super::{AckReply, Asking, Session, Taken};
use crate::client::{RespClient, Value, encode, set_patience};

/// The time limit for a reply, beyond the wait of a pop; then the connection is dropped.
const ANSWER: Duration = Duration::from_secs(3);

/// Error codes of commands that certainly had no effect.
const HAD_NO_EFFECT: [&str; 4] = ["UNAVAILABLE", "NOSPACE", "CLOSED", "LOADING"];

/// A connection that is replaced when it is lost.
pub(super) struct RespSession {
    address: SocketAddr,
    client: Option<RespClient>,
}

impl RespSession {
    pub(super) fn new(address: SocketAddr) -> Self {
        Self { address, client: None }
    }

    /// The reply to a command, or the outcome without one.
    fn ask(&mut self, argv: &[&[u8]]) -> Result<Value, Outcome> {
        let client = match &mut self.client {
            Some(client) => client,
            none => {
                // The server is down: nothing was sent.
                let client = RespClient::try_connect(self.address).map_err(|_| Outcome::Failed)?;
                set_patience(client.stream(), ANSWER);
                none.insert(client)
            }
        };
        let answered = |client: &mut RespClient| -> io::Result<Value> {
            client.send_raw(&encode(argv))?;
            client.read()
        };
        match answered(client) {
            Ok(Value::Error(error)) => Err(outcome_of(&error)),
            Ok(value) => Ok(value),
            Err(_) => {
                self.client = None;
                Err(Outcome::Unknown)
            }
        }
    }
}

impl Session for RespSession {
    fn push(&mut self, queue: &[u8], payloads: &[Vec<u8>]) -> Outcome {
        let argv: Vec<&[u8]> =
            [b"RQ.PUSH", queue].into_iter().chain(payloads.iter().map(Vec::as_slice)).collect();
        match self.ask(&argv) {
            Ok(ids) => {
                assert_eq!(ids.ids().len(), payloads.len(), "one id for each payload");
                Outcome::Ok
            }
            Err(outcome) => outcome,
        }
    }

    fn pop(&mut self, queue: &[u8], asking: &Asking) -> Vec<Taken> {
        let (count, lease) = (asking.count.to_string(), asking.lease_ms.to_string());
        let block = match asking.block {
            Some(Block::Millis(ms)) => Some(ms.to_string()),
            Some(Block::Forever) => panic!("it would never end"),
            None => None,
        };
        let mut argv: Vec<&[u8]> = vec![b"RQ.POP", b"COUNT", count.as_bytes(), b"LEASE", lease.as_bytes()];
        argv.extend(block.iter().flat_map(|ms| [b"BLOCK", ms.as_bytes()]));
        argv.push(queue);
        let taken = |task: Value| {
            let mut fields = task.list().into_iter().skip(1);
            let mut next = || fields.next().expect("a leased task has five fields");
            let (id, payload, receipt) = (next().text(), next().bytes(), next().text());
            Taken { id, receipt, payload }
        };
        match self.ask(&argv) {
            Ok(Value::Array(tasks)) => tasks.into_iter().map(taken).collect(),
            Ok(Value::Null) | Err(_) => Vec::new(),
            Ok(other) => panic!("{other:?}"),
        }
    }

    fn ack(&mut self, queue: &[u8], id_or_receipt: &str) -> AckReply {
        match self.ask(&[b"RQ.ACK", queue, id_or_receipt.as_bytes()]) {
            Ok(done) if done.clone().list().is_empty() => AckReply::Denied,
            Ok(_) => AckReply::Done,
            Err(outcome) => AckReply::Other(outcome),
        }
    }

    fn requeue(&mut self, queue: &[u8], receipt: &str) {
        if let Ok(value) = self.ask(&[b"RQ.RETURN", queue, receipt.as_bytes()]) {
            assert!(matches!(value, Value::Int(0 | 1)), "{value:?}");
        }
    }

    /// `RQ.INFO` returns names and numbers in turn.
    fn count(&mut self, queue: &[u8]) -> Option<u64> {
        let fields = self.ask(&[b"RQ.INFO", queue]).ok()?.list();
        let number = |name: &str| {
            let at = fields.iter().position(|field| *field == Value::Bulk(name.as_bytes().to_vec()));
            match at.and_then(|at| fields.get(at + 1)) {
                Some(Value::Int(n)) => n.unsigned_abs(),
                other => panic!("RQ.INFO: {name} is {other:?}"),
            }
        };
        Some(["ready", "leased", "delayed", "dead"].into_iter().map(number).sum())
    }

    fn close(self: Box<Self>) {}
}

/// The outcome that an error implies. A home under faults may report only these errors.
fn outcome_of(error: &str) -> Outcome {
    match error.split(' ').next() {
        Some("UNKNOWN") => Outcome::Unknown,
        Some(code) if HAD_NO_EFFECT.contains(&code) => Outcome::Failed,
        _ => panic!("{error}"),
    }
}
