//! A store with very many tasks, queues and workers.

use std::error::Error;
use std::fmt::Write as _;

use crate::client::Client;
use crate::dialect::misfit;
use crate::resp::{self, Token};

/// Tasks in one command.
const BATCH: u64 = 1_000;
/// Long enough that nothing becomes due while the benchmark runs.
const HOUR_MS: &str = "3600000";

/// Names of queues, tasks and workers in the store.
pub(super) struct Fixture {
    /// Workers with their incarnations. Each holds a share of the tasks in `leased`.
    pub(super) workers: Vec<String>,
    pub(super) queues: u64,
    pub(super) tasks: u64,
    /// A thousand ids from the middle of each of these queues.
    pub(super) ready: Vec<String>,
    pub(super) leased: Vec<String>,
    pub(super) dead: Vec<String>,
}

impl Fixture {
    pub(super) fn fill(
        client: &mut Client,
        tasks: u64,
        queues: u64,
        workers: u64,
    ) -> Result<Self, Box<dyn Error>> {
        let mut names = Vec::new();
        for n in 0..workers.max(1) {
            let name = format!("w{n}");
            names.push(word(client, &["RQ.WORKER", "START", &name, "TTL", HOUR_MS])?);
        }
        let (mut ready, mut leased, mut dead) = (Vec::new(), Vec::new(), Vec::new());
        let batches = tasks.div_ceil(BATCH).max(1);
        for n in 0..batches {
            let is_middle = n == batches / 2;
            let pushed = push(client, "ready")?;
            if is_middle {
                ready = pushed;
            }
            let buried = push(client, "dead")?;
            ask_of(client, &["RQ.BURY", "dead"], &buried)?;
            if is_middle {
                dead = buried;
            }
            let taken = push(client, "leased")?;
            let worker = &names[(n % names.len() as u64) as usize];
            ask(
                client,
                &["RQ.POP", "COUNT", &BATCH.to_string(), "LEASE", HOUR_MS, "WORKER", worker, "leased"],
            )?;
            if is_middle {
                leased = taken;
            }
            delay(client)?;
        }
        let mut queue = String::new();
        for n in 0..queues {
            queue.clear();
            let _ = write!(queue, "queue-{n}");
            resp::command(&mut client.output, &[b"RQ.PUSH", queue.as_bytes(), b"x"]);
            if n % BATCH == BATCH - 1 || n == queues - 1 {
                client.send()?;
                for _ in 0..=n % BATCH {
                    client.reply()?;
                }
            }
        }
        Ok(Fixture { workers: names, queues, tasks, ready, leased, dead })
    }
}

/// Adds a batch of delayed tasks.
fn delay(client: &mut Client) -> Result<(), Box<dyn Error>> {
    for _ in 0..BATCH {
        resp::command(&mut client.output, &[b"RQ.ADD", b"delayed", b"x", b"DELAY", HOUR_MS.as_bytes()]);
    }
    client.send()?;
    for _ in 0..BATCH {
        let reply = client.reply()?;
        if !matches!(reply.tokens, [Token::Array(_), ..]) {
            return Err(misfit(reply.bytes, reply.tokens, "add").into());
        }
    }
    Ok(())
}

fn push(client: &mut Client, queue: &str) -> Result<Vec<String>, Box<dyn Error>> {
    let payloads = vec!["x".to_owned(); BATCH as usize];
    ask_of(client, &["RQ.PUSH", queue], &payloads)
}

fn word(client: &mut Client, words: &[&str]) -> Result<String, Box<dyn Error>> {
    ask(client, words)?.pop().ok_or_else(|| format!("{} answers nothing", words.join(" ")).into())
}

fn ask_of(client: &mut Client, words: &[&str], more: &[String]) -> Result<Vec<String>, Box<dyn Error>> {
    let words: Vec<&str> = words.iter().copied().chain(more.iter().map(String::as_str)).collect();
    ask(client, &words)
}

/// Sends a command; returns the strings in its reply.
fn ask(client: &mut Client, words: &[&str]) -> Result<Vec<String>, Box<dyn Error>> {
    let bytes: Vec<&[u8]> = words.iter().map(|word| word.as_bytes()).collect();
    resp::command(&mut client.output, &bytes);
    client.send()?;
    let reply = client.reply()?;
    if matches!(reply.tokens, [Token::Error(_), ..]) {
        return Err(misfit(reply.bytes, reply.tokens, words[0]).into());
    }
    let text = |token: &Token| match token {
        Token::Bulk(at) => Some(String::from_utf8_lossy(&reply.bytes[at.clone()]).into_owned()),
        _ => None,
    };
    Ok(reply.tokens.iter().filter_map(text).collect())
}
