//! Many tasks in one or many queues of sureq, with payloads of any length.
//!
//! Tasks are distributed round-robin over the queues, and a queue is first in, first out, so that the number of every
//! popped task is known in advance, and its payload is compared with the expected one.

use std::collections::{BTreeSet, VecDeque};
use std::error::Error;

use crate::Broken;
use crate::client::Client;
use crate::dialect::misfit;
use crate::payload::{Payloads, mix};
use crate::resp::{self, Token};

/// The least number of tasks in one write, and the most in flight at a time; both may be one request more.
const CHUNK: usize = 500;
const AHEAD: usize = 3 * CHUNK;
/// Tasks in one pop, ack or cancellation.
const BATCH: u64 = 500;

/// The length of payloads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Length {
    Fixed(usize),
    /// Any length from 1 byte on.
    UpTo(usize),
}

/// The queues and their contents.
pub(crate) struct Queues {
    client: Client,
    payloads: Payloads,
    /// The number of queues.
    width: u64,
    length: Length,
    /// Tasks below this number were pushed; task n is in queue n modulo `width`.
    pushed: u64,
    /// For a single queue: tasks below this number were popped.
    popped: u64,
    cancelled: BTreeSet<u64>,
}

/// Pushes that are not confirmed yet.
#[derive(Default)]
struct UnderWay {
    /// The number of tasks in each request.
    requests: VecDeque<usize>,
    tasks: usize,
    /// The number of their tasks that are not sent yet.
    unsent: usize,
}

impl UnderWay {
    fn add(&mut self, tasks: usize) {
        self.requests.push_back(tasks);
        self.tasks += tasks;
        self.unsent += tasks;
    }
}

impl Queues {
    pub(crate) fn new(client: Client, payloads: Payloads, width: u64, length: Length) -> Self {
        Queues { client, payloads, width, length, pushed: 0, popped: 0, cancelled: BTreeSet::new() }
    }

    /// Pushes `tasks` tasks to the queues in turn, `batch` of them to one queue in one request.
    pub(crate) fn fill(&mut self, tasks: u64, batch: u64) -> Result<(), Box<dyn Error>> {
        let mut under_way = UnderWay::default();
        let end = self.pushed + tasks;
        let (turn, stride) = (self.width * batch.max(1), usize::try_from(self.width)?);
        for start in (self.pushed..end).step_by(usize::try_from(turn)?) {
            for queue in 0..self.width {
                let numbers: Vec<u64> = (start + queue..end.min(start + turn)).step_by(stride).collect();
                if numbers.is_empty() {
                    continue;
                }
                self.push(queue, &numbers);
                under_way.add(numbers.len());
                if under_way.unsent >= CHUNK {
                    self.client.send()?;
                    under_way.unsent = 0;
                }
                while under_way.tasks > AHEAD {
                    self.confirm(&mut under_way)?;
                }
            }
        }
        self.client.send()?;
        while under_way.tasks > 0 {
            self.confirm(&mut under_way)?;
        }
        self.pushed = end;
        Ok(())
    }

    /// Pops `tasks` tasks of a single queue and acks none.
    pub(crate) fn lease(&mut self, tasks: u64) -> Result<(), Box<dyn Error>> {
        let end = self.popped + tasks;
        while self.popped < end {
            let popped = self.pop(0, BATCH.min(end - self.popped), &mut (self.popped..), &mut Vec::new())?;
            self.popped += popped;
        }
        Ok(())
    }

    /// Pops and acks `tasks` tasks of a single queue.
    pub(crate) fn finish(&mut self, tasks: u64) -> Result<(), Box<dyn Error>> {
        let end = self.popped + tasks;
        let mut ids = Vec::new();
        while self.popped < end {
            let popped = self.pop(0, BATCH.min(end - self.popped), &mut (self.popped..), &mut ids)?;
            self.popped += popped;
            self.ack(0, &ids)?;
            ids.clear();
        }
        Ok(())
    }

    /// Cancels a random share of the waiting tasks; returns their number.
    pub(crate) fn cancel(&mut self, share: f64) -> Result<u64, Box<dyn Error>> {
        for queue in 0..self.width {
            let name = name(queue);
            resp::command(&mut self.client.output, &[b"RQ.INSPECT", name.as_bytes(), b"0", b"1000000"]);
            self.client.send()?;
            let reply = self.client.reply()?;
            let [Token::Array(_), tasks @ ..] = reply.tokens else {
                return Err(misfit(reply.bytes, reply.tokens, "RQ.INSPECT").into());
            };
            let mut ids = Vec::new();
            for (place, task) in (0_u64..).zip(tasks.chunks(3)) {
                let [_, Token::Bulk(id), _] = task else {
                    return Err(misfit(reply.bytes, reply.tokens, "RQ.INSPECT").into());
                };
                let number = queue + place * self.width;
                if is_cancelled(number, share) {
                    self.cancelled.insert(number);
                    ids.push(reply.bytes[id.clone()].to_vec());
                }
            }
            for some in ids.chunks(usize::try_from(BATCH)?) {
                let mut words: Vec<&[u8]> = vec![b"RQ.CANCEL", name.as_bytes(), b"ID"];
                words.extend(some.iter().map(Vec::as_slice));
                resp::command(&mut self.client.output, &words);
                self.client.send()?;
                let reply = self.client.reply()?;
                if !matches!(reply.tokens, [Token::Integer(n)] if u64::try_from(*n) == Ok(some.len() as u64))
                {
                    return Err(misfit(reply.bytes, reply.tokens, "RQ.CANCEL").into());
                }
            }
        }
        Ok(self.cancelled.len() as u64)
    }

    /// Pops and acks everything, and checks that no task is missing and none is left.
    pub(crate) fn drain(&mut self) -> Result<(), Box<dyn Error>> {
        for queue in 0..self.width {
            let all: Vec<u64> = (queue..self.pushed)
                .step_by(usize::try_from(self.width)?)
                .filter(|number| !self.cancelled.contains(number))
                .collect();
            let mut left = all.len() as u64;
            let mut expected = all.into_iter();
            let mut ids = Vec::new();
            while left > 0 {
                left -= self.pop(queue, BATCH.min(left), &mut expected, &mut ids)?;
                self.ack(queue, &ids)?;
                ids.clear();
            }
            resp::command(&mut self.client.output, &[b"RQ.POP", b"COUNT", b"1", name(queue).as_bytes()]);
            self.client.send()?;
            let reply = self.client.reply()?;
            if !matches!(reply.tokens, [Token::Array(0)]) {
                return Err(Broken(misfit(reply.bytes, reply.tokens, "pop of an empty queue")).into());
            }
        }
        Ok(())
    }

    fn push(&mut self, queue: u64, numbers: &[u64]) {
        let out = &mut self.client.output;
        resp::request(out, 2 + numbers.len());
        resp::word(out, b"RQ.PUSH");
        resp::word(out, name(queue).as_bytes());
        for &number in numbers {
            resp::word(out, &payload(self.payloads, self.length, number));
        }
    }

    fn confirm(&mut self, under_way: &mut UnderWay) -> Result<(), Box<dyn Error>> {
        let tasks = under_way.requests.pop_front().unwrap_or_default();
        under_way.tasks -= tasks;
        let reply = self.client.reply()?;
        match reply.tokens {
            [Token::Array(ids), ..] if *ids == tasks => Ok(()),
            tokens => Err(misfit(reply.bytes, tokens, "push").into()),
        }
    }

    /// Pops up to `wanted` tasks, which must be the next expected ones; returns their number, at least one.
    fn pop(
        &mut self,
        queue: u64,
        wanted: u64,
        expected: &mut dyn Iterator<Item = u64>,
        ids: &mut Vec<Vec<u8>>,
    ) -> Result<u64, Box<dyn Error>> {
        let out = &mut self.client.output;
        resp::command(out, &[b"RQ.POP", b"COUNT", wanted.to_string().as_bytes(), name(queue).as_bytes()]);
        self.client.send()?;
        let reply = self.client.reply()?;
        let [Token::Array(came), tasks @ ..] = reply.tokens else {
            return Err(misfit(reply.bytes, reply.tokens, "pop").into());
        };
        if *came == 0 {
            return Err(Broken(format!("{} has lost at least {wanted} tasks", name(queue))).into());
        }
        for task in tasks.chunks(4) {
            let [_, _, Token::Bulk(id), Token::Bulk(body)] = task else {
                return Err(misfit(reply.bytes, reply.tokens, "pop").into());
            };
            let number =
                expected.next().ok_or_else(|| Broken("more tasks were delivered than pushed".into()))?;
            if reply.bytes[body.clone()] != payload(self.payloads, self.length, number) {
                return Err(Broken(format!("task {number} of {} was lost or altered", name(queue))).into());
            }
            ids.push(reply.bytes[id.clone()].to_vec());
        }
        Ok(*came as u64)
    }

    fn ack(&mut self, queue: u64, ids: &[Vec<u8>]) -> Result<(), Box<dyn Error>> {
        let out = &mut self.client.output;
        resp::request(out, 2 + ids.len());
        resp::word(out, b"RQ.ACK");
        resp::word(out, name(queue).as_bytes());
        for id in ids {
            resp::word(out, id);
        }
        self.client.send()?;
        let reply = self.client.reply()?;
        match reply.tokens {
            [Token::Array(done), ..] if *done == ids.len() => Ok(()),
            tokens => Err(Broken(misfit(reply.bytes, tokens, "ack")).into()),
        }
    }
}

/// Whether a task belongs to the share that is cancelled, which is random and reproducible.
fn is_cancelled(number: u64, share: f64) -> bool {
    f64::from((mix(!number) >> 32) as u32) / f64::from(u32::MAX) < share
}

/// The name of a queue.
pub(crate) fn name(queue: u64) -> String {
    format!("bench:{queue}")
}

/// The payload with this number.
pub(crate) fn payload(payloads: Payloads, length: Length, number: u64) -> Vec<u8> {
    let length = match length {
        Length::Fixed(length) => length,
        Length::UpTo(longest) => payloads.length(number, longest),
    };
    let mut payload = vec![0; length];
    payloads.write(number, &mut payload);
    payload
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lengths_and_shares_match_the_request() {
        let payloads = Payloads::new(1);
        assert_eq!(payload(payloads, Length::Fixed(1024), 5).len(), 1024);
        let cancelled = (0..10_000).filter(|&number| is_cancelled(number, 0.1)).count();
        assert!((900..1100).contains(&cancelled), "{cancelled}");
        let lengths: BTreeSet<usize> =
            (0..2000).map(|number| payload(payloads, Length::UpTo(200), number).len()).collect();
        assert_eq!((lengths.first(), lengths.last()), (Some(&1), Some(&200)));
    }
}
