//! Pushes tasks into a server and pops them again, as fast as one connection can.

use std::collections::VecDeque;
use std::error::Error;
use std::thread;
use std::time::{Duration, Instant};

use crate::Broken;
use crate::account::Account;
use crate::client::Client;
use crate::dialect::{Step, batches, misfit};
use crate::servers::{OBSERVER, Server};

/// Tasks in one write. Two such chunks are in flight at a time, so that the server never waits, and their replies fit
/// into the buffers of a socket, so that neither side blocks.
const CHUNK: usize = 500;
const AHEAD: usize = 2;
/// Tasks in one request, if the system has batches.
const BATCH: usize = 100;
/// The pause between two attempts to reach a server that starts.
const RETRY: Duration = Duration::from_micros(500);

/// Pushes `tasks` new tasks.
pub(crate) fn fill(server: &Server, account: &mut Account, tasks: u64) -> Result<(), Box<dyn Error>> {
    let mut client = server.client()?;
    let mut under_way: VecDeque<(u64, usize)> = VecDeque::new();
    let mut unsent = tasks;
    loop {
        while unsent > 0 && under_way.len() < AHEAD {
            let (first, count) = (account.made(), CHUNK.min(usize::try_from(unsent).unwrap_or(CHUNK)));
            for batch in batches(count, BATCH) {
                server.dialect.push(&mut client.output, OBSERVER, batch, account);
            }
            client.send()?;
            unsent -= count as u64;
            under_way.push_back((first, count));
        }
        let Some((first, count)) = under_way.pop_front() else { break };
        for batch in batches(count, BATCH) {
            for asked in batches(batch, server.dialect.tasks_per_reply(Step::Push, batch)) {
                let reply = client.reply()?;
                if !server.dialect.pushed(reply.bytes, reply.tokens, asked) {
                    return Err(misfit(reply.bytes, reply.tokens, "push").into());
                }
            }
        }
        account.confirm(first, count as u64);
    }
    account.backlog += tasks;
    Ok(())
}

/// Pops and acks `tasks` tasks, or as many as there are; returns the number.
pub(crate) fn drain(server: &Server, account: &mut Account, tasks: u64) -> Result<u64, Box<dyn Error>> {
    let mut client = server.client()?;
    let mut drained = 0;
    while drained < tasks {
        let wanted = CHUNK.min(usize::try_from(tasks - drained).unwrap_or(CHUNK));
        let came = take(server, &mut client, account, wanted)?;
        drained += came as u64;
        if came < wanted {
            break;
        }
    }
    account.backlog = account.backlog.saturating_sub(drained);
    Ok(drained)
}

fn take(
    server: &Server,
    client: &mut Client,
    account: &mut Account,
    tasks: usize,
) -> Result<usize, Box<dyn Error>> {
    let dialect = server.dialect;
    for batch in batches(tasks, BATCH) {
        dialect.pop(&mut client.output, OBSERVER, batch);
    }
    client.send()?;
    let (mut came, mut acks, mut requests, mut numbers) = (0, Vec::new(), 0, Vec::new());
    for batch in batches(tasks, BATCH) {
        for _ in batches(batch, dialect.tasks_per_reply(Step::Pop, batch)) {
            let reply = client.reply()?;
            let mut deliver = |payload: &[u8]| numbers.extend(account.deliver(payload));
            let count = dialect.popped(OBSERVER, reply.bytes, reply.tokens, &mut acks, &mut deliver);
            let count = count.ok_or_else(|| misfit(reply.bytes, reply.tokens, "pop"))?;
            came += count;
            requests += if count > 0 { dialect.replies_per_ack() } else { 0 };
        }
    }
    std::mem::swap(&mut client.output, &mut acks);
    client.send()?;
    let mut accepted = 0;
    for left in (0..requests).rev() {
        let reply = client.reply()?;
        let count = dialect.acked(reply.tokens, left.is_multiple_of(dialect.replies_per_ack()));
        accepted += count.ok_or_else(|| misfit(reply.bytes, reply.tokens, "ack"))?;
    }
    account.ack(&numbers, came as u64, accepted as u64);
    Ok(came)
}

/// The treatment of the first task after a restart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum First {
    /// Record and ack it.
    Finish,
    /// Compare it and leave it leased; the server is not used again.
    Leave,
}

/// Pops from a server that was just started until it answers; returns the time since `started`.
pub(crate) fn first_pop(
    server: &mut Server,
    account: &mut Account,
    started: Instant,
    first: First,
) -> Result<Duration, Box<dyn Error>> {
    let dialect = server.dialect;
    loop {
        server.must_run()?;
        let Ok(mut client) = server.client() else {
            thread::sleep(RETRY);
            continue;
        };
        dialect.pop(&mut client.output, OBSERVER, 1);
        client.send()?;
        let reply = client.reply()?;
        let elapsed = started.elapsed();
        if dialect.loading(reply.bytes, reply.tokens) {
            thread::sleep(RETRY);
            continue;
        }
        let (mut acks, mut payload) = (Vec::new(), Vec::new());
        let mut keep = |bytes: &[u8]| payload.extend_from_slice(bytes);
        let popped = dialect.popped(OBSERVER, reply.bytes, reply.tokens, &mut acks, &mut keep);
        if popped != Some(1) {
            return Err(misfit(reply.bytes, reply.tokens, "pop after a restart").into());
        }
        if first == First::Leave {
            return if account.knows(&payload) {
                Ok(elapsed)
            } else {
                Err(Broken("the first task after a restart was never pushed".into()).into())
            };
        }
        let number = account.deliver(&payload);
        std::mem::swap(&mut client.output, &mut acks);
        client.send()?;
        let mut accepted = 0;
        for left in (0..dialect.replies_per_ack()).rev() {
            let reply = client.reply()?;
            let count = dialect.acked(reply.tokens, left == 0);
            accepted += count.ok_or_else(|| misfit(reply.bytes, reply.tokens, "ack"))?;
        }
        account.ack(number.as_slice(), 1, accepted as u64);
        account.backlog = account.backlog.saturating_sub(1);
        return Ok(elapsed);
    }
}
