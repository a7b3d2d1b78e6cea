//! The client whose waits are measured.

use std::error::Error;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use crate::client::Client;
use crate::resp;
use crate::servers::Server;

const PAUSE: Duration = Duration::from_millis(1);

/// The durations of the probe's commands.
pub(super) struct Waits {
    pub(super) count: usize,
    pub(super) longest: Duration,
    /// The longest command that only reads. The others also wait until earlier writes are on disk.
    pub(super) longest_look: Duration,
    /// The longest delay with which the machine woke a sleeping thread meanwhile.
    pub(super) machine: Duration,
}

/// Pushes, pops and inspects in a queue of its own, one command at a time, while `act` runs.
pub(super) fn beside(
    server: &Server,
    act: impl FnOnce() -> Result<(), Box<dyn Error>>,
) -> Result<Waits, Box<dyn Error>> {
    let client = server.client()?;
    let is_over = AtomicBool::new(false);
    thread::scope(|scope| {
        let probe = scope.spawn(|| probe(client, &is_over).map_err(|error| error.to_string()));
        let machine = scope.spawn(|| lateness(&is_over));
        let acted = act();
        is_over.store(true, Ordering::Release);
        let waits = probe.join().map_err(|_| "the probe panicked")?;
        let machine = machine.join().map_err(|_| "the watch panicked")?;
        acted?;
        let waits = waits?;
        Ok(Waits { machine, ..waits })
    })
}

fn probe(mut client: Client, is_over: &AtomicBool) -> Result<Waits, Box<dyn Error>> {
    let zero = Duration::ZERO;
    let mut waits = Waits { count: 0, longest: zero, longest_look: zero, machine: zero };
    let look: &[&[u8]] = &[b"RQ.INFO", b"probe"];
    let requests: [&[&[u8]]; 3] =
        [&[b"RQ.PUSH", b"probe", b"x"], &[b"RQ.POP", b"LEASE", b"60000", b"probe"], look];
    while !is_over.load(Ordering::Acquire) {
        for request in requests {
            let since = Instant::now();
            resp::command(&mut client.output, request);
            client.send()?;
            client.reply()?;
            let took = since.elapsed();
            waits.count += 1;
            waits.longest = waits.longest.max(took);
            if request == look {
                waits.longest_look = waits.longest_look.max(took);
            }
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
