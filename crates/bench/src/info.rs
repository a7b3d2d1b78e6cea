//! The figures in sureq's `INFO`.

use std::collections::HashMap;
use std::error::Error;

use crate::client::{Client, Reply};
use crate::dialect::misfit;
use crate::resp::{self, Token};

/// The size of the log since the last checkpoint.
pub(crate) const SINCE_CHECKPOINT: &str = "log_bytes_since_checkpoint";
pub(crate) const CHECKPOINT_DUE: &str = "checkpoint_due_bytes";
/// Whether a checkpoint is running, and how many were taken.
pub(crate) const CHECKPOINT_RUNNING: &str = "checkpoint_running";
pub(crate) const CHECKPOINTS_TAKEN: &str = "checkpoints_taken";
pub(crate) const COPY_RUNNING: &str = "copy_forward_running";
/// Bytes written since the start.
pub(crate) const LOG_WRITTEN: &str = "log_bytes_written";
pub(crate) const CHECKPOINT_WRITTEN: &str = "checkpoint_bytes_written";
pub(crate) const COPIED_WRITTEN: &str = "copied_bytes_written";

/// The numbers in one reply to `INFO`.
#[derive(Clone, Debug, Default)]
pub(crate) struct Info(HashMap<String, u64>);

impl Info {
    /// Requests all sections.
    pub(crate) fn ask(out: &mut Vec<u8>) {
        resp::command(out, &[b"INFO"]);
    }

    /// Reads the reply.
    pub(crate) fn read(bytes: &[u8], tokens: &[Token]) -> Result<Self, String> {
        let [Token::Bulk(text)] = tokens else { return Err(misfit(bytes, tokens, "INFO")) };
        let text = String::from_utf8_lossy(&bytes[text.clone()]);
        let fields = text.lines().filter_map(|line| {
            let (name, value) = line.split_once(':')?;
            Some((name.to_owned(), value.trim().parse().ok()?))
        });
        Ok(Info(fields.collect()))
    }

    /// Requests them over a connection of its own, and waits.
    pub(crate) fn get(client: &mut Client) -> Result<Self, Box<dyn Error>> {
        Info::ask(&mut client.output);
        client.send()?;
        let Reply { bytes, tokens } = client.reply()?;
        Ok(Info::read(bytes, tokens)?)
    }

    /// A number, if this server has it.
    pub(crate) fn number(&self, name: &str) -> Option<u64> {
        self.0.get(name).copied()
    }

    /// Prints on standard error which of these numbers the server does not have.
    pub(crate) fn warn_of_missing(&self, names: &[&str], therefore: &str) {
        let missing: Vec<&str> = names.iter().copied().filter(|name| !self.0.contains_key(*name)).collect();
        if !missing.is_empty() {
            eprintln!("INFO of this sureq has no {}: {therefore}", missing.join(", "));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_read_and_words_are_not() {
        let text = "# Persistence\r\nloading:0\r\nlog_position:123\r\nredis_mode:standalone\r\n";
        let reply = format!("${}\r\n{text}\r\n", text.len());
        let mut tokens = Vec::new();
        resp::scan(reply.as_bytes(), &mut tokens).unwrap();
        let info = Info::read(reply.as_bytes(), &tokens).unwrap();
        assert_eq!(info.number("log_position"), Some(123));
        assert_eq!((info.number("redis_mode"), info.number("absent")), (None, None));
        assert!(Info::read(b":1\r\n", &[Token::Integer(1)]).is_err());
    }
}
