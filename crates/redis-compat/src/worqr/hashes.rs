//! Hashes of the payloads of recent deliveries.
//!
//! A finished task loses the mark that makes it unique. The name of that mark is an MD5 hash, which no script can
//! compute. So a home remembers the hashes of its deliveries; for a task that another home delivered, or that was
//! delivered long ago, it reads the payload first.

use std::cell::RefCell;
use std::collections::{BTreeMap, VecDeque};

use redis::Value;
use sureq_core::{Refusal, Replies, Reply};
use sureq_home_api::Payload;

use super::hash;
use sureq_redis::layout::{AnswerForm, Call, HomeThread, SLICE, UnexpectedAnswer, bytes, list};

/// The number of remembered hashes.
const KEPT: usize = 8 << 10;

/// Hashes by id.
#[derive(Debug, Default)]
pub(crate) struct Hashes(RefCell<Last>);

#[derive(Debug, Default)]
struct Last {
    by_id: BTreeMap<Box<[u8]>, String>,
    /// The ids, in order.
    ids: VecDeque<Box<[u8]>>,
}

impl Hashes {
    /// Remembers the tasks in replies.
    pub(crate) fn remember(&self, replies: &Replies<Payload>) {
        let mut last = self.0.borrow_mut();
        for reply in &replies.list {
            let Reply::Tasks(span) = reply else { continue };
            for task in &replies.tasks[span.range()] {
                let Some(id) = &task.foreign_id else { continue };
                last.by_id.insert(id.clone(), hash(task.body.as_ref()));
                last.ids.push_back(id.clone());
                if last.ids.len() > KEPT
                    && let Some(oldest) = last.ids.pop_front()
                {
                    last.by_id.remove(&oldest);
                }
            }
        }
    }

    fn get(&self, id: &[u8]) -> Option<String> {
        self.0.borrow().by_id.get(id).cloned()
    }
}

impl Hashes {
    /// Writes the hashes into the acks among calls.
    pub(crate) async fn write(&self, home: &HomeThread, calls: &mut [Result<(Call, AnswerForm), Refusal>]) {
        for call in calls {
            if let Ok((ack, AnswerForm::Acked)) = call
                && let Err(no) = self.write_into(home, ack).await
            {
                // Finished without its hash, the task would leave its mark behind. Nothing was done so far.
                *call = Err(match no {
                    no @ Refusal::WrongType { .. } => no,
                    no => Refusal::Unavailable { why: no.to_string().into() },
                });
            }
        }
    }

    /// Completes an ack, whose arguments are its queue, then ids and hashes in turn.
    async fn write_into(&self, home: &HomeThread, ack: &mut Call) -> Result<(), Refusal> {
        let mut unknown = Vec::new();
        for at in (1..ack.args.len()).step_by(2) {
            match self.get(&ack.args[at]) {
                Some(hash) => ack.args[at + 1] = hash.into_bytes(),
                None => unknown.push(at),
            }
        }
        if unknown.is_empty() {
            return Ok(());
        }
        let mut left = &unknown[..];
        while !left.is_empty() {
            let ids = left.iter().take(SLICE).map(|&at| ack.args[at].clone());
            let call = Call::new("tasks", ack.queue.as_deref()).arg(ack.args[0].clone()).args(ids);
            // Those whose payloads are too many bytes for one answer are left to the next one.
            let payloads = list(home.ask(&call).await?)?;
            let (read, rest) = left.split_at_checked(payloads.len().max(1)).ok_or(UnexpectedAnswer)?;
            for (&at, payload) in read.iter().zip(payloads) {
                // An ack of a task that does not exist finishes nothing, and needs no hash.
                if payload != Value::Nil {
                    ack.args[at + 1] = hash(&bytes(payload)?).into_bytes();
                }
            }
            left = rest;
        }
        Ok(())
    }
}
