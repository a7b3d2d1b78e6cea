//! The client that waits.

use std::error::Error;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use crate::client::Client;
use crate::resp;
use crate::servers::Server;

const PAUSE: Duration = Duration::from_millis(1);

/// How long pushes took.
pub(super) struct Waits {
    pub(super) count: usize,
    pub(super) longest: Duration,
    /// The longest time by which the machine woke a sleeping thread too late meanwhile.
    pub(super) machine: Duration,
}

/// Pushes, pops and acks in a queue of its own, one command at a time, while `act` runs.
pub(super) fn beside(
    server: &Server,
    act: impl FnOnce() -> Result<(), Box<dyn Error>>,
) -> Result<Waits, Box<dyn Error>> {
    let client = server.client()?;
    let is_over = AtomicBool::new(false);
    thread::scope(|scope| {
        let probe = scope.spawn(|| pushes(client, &is_over).map_err(|error| error.to_string()));
        let machine = scope.spawn(|| lateness(&is_over));
        let acted = act();
        is_over.store(true, Ordering::Release);
        let waits = probe.join().map_err(|_| "the probe panicked")?;
        let machine = machine.join().map_err(|_| "the watch panicked")?;
        acted?;
        let waits = waits?;
        let longest = waits.iter().max().copied().unwrap_or_default();
        Ok(Waits { count: waits.len(), longest, machine })
    })
}

fn pushes(mut client: Client, is_over: &AtomicBool) -> Result<Vec<Duration>, Box<dyn Error>> {
    let mut waits = Vec::new();
    let requests: [&[&[u8]]; 3] =
        [&[b"RQ.PUSH", b"probe", b"x"], &[b"RQ.POP", b"LEASE", b"60000", b"probe"], &[b"RQ.INFO", b"probe"]];
    while !is_over.load(Ordering::Acquire) {
        for request in requests {
            let since = Instant::now();
            resp::command(&mut client.output, request);
            client.send()?;
            client.reply()?;
            waits.push(since.elapsed());
        }
        thread::sleep(PAUSE);
    }
    Ok(waits)
}

fn lateness(is_over: &AtomicBool) -> Duration {
    let mut longest = Duration::ZERO;
    while !is_over.load(Ordering::Acquire) {
        let since = Instant::now();
        thread::sleep(PAUSE);
        longest = longest.max(since.elapsed().saturating_sub(PAUSE));
    }
    longest
}
