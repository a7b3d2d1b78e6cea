//! Measures how long other clients wait while many events happen at the same instant: tasks that are all due, workers
//! that are all lost.

use std::error::Error;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use crate::client::Client;
use crate::dialect::misfit;
use crate::resp::{self, Token};
use crate::servers::{Installation, Server};
use crate::tables::{count, parse_count, short, table};
use crate::targets::{Settings, Target};
use crate::{Common, Outcome, machine};

/// Options of `flood`.
#[derive(clap::Args)]
pub(crate) struct Arguments {
    /// Tasks that are due in the same millisecond
    #[arg(long, value_name = "N", default_value = "1M", value_parser = parse_count)]
    tasks: u64,
    /// Workers that are lost in the same instant, each with one task
    #[arg(long, value_name = "N", default_value = "100k", value_parser = parse_count)]
    workers: u64,
    #[command(flatten)]
    common: Common,
}

/// The longest acceptable wait.
const AIM: Duration = Duration::from_millis(50);
/// A longer gap in a loop that only reads the clock is attributed to the machine.
const GAP: Duration = Duration::from_millis(5);
const REST: Duration = Duration::from_secs(5);
/// Commands that are sent before their replies are read.
const BURST: u64 = 1000;

/// The effect of one flood on other clients.
struct Row {
    what: String,
    /// The duration of the flood.
    lasted: Duration,
    waits: Vec<Duration>,
    /// The longest gap of the machine itself, in the same time before the flood.
    gap: Duration,
}

/// Runs the measurement and prints the table.
pub(crate) fn run(arguments: &Arguments) -> Result<Outcome, Box<dyn Error>> {
    let place = arguments.common.place()?;
    let versions = place.check(&[Target::SureqNone])?;
    let rows = [due(&place, arguments.tasks)?, lost(&place, arguments.workers)?];
    println!("{}; {}.\n", machine(), versions.join(", "));
    print!("{}", render(&rows));
    Ok(Outcome::Sound)
}

/// Tasks that are all due at once.
fn due(place: &Installation, tasks: u64) -> Result<Row, Box<dyn Error>> {
    let server = place.start_with(Target::SureqNone, Settings::default())?;
    let mut client = Client::open(server.address, server.dialect, 0)?;
    let lead = Duration::from_secs(5) + Duration::from_micros(20 * tasks);
    let at = (SystemTime::now() + lead).duration_since(UNIX_EPOCH)?.as_millis().to_string();
    eprintln!("adding {tasks} tasks that are due at {at}");
    send_all(&mut client, tasks, |out, _| {
        resp::command(out, &[b"RQ.ADD", b"flood", b"x", b"AT", at.as_bytes()]);
    })?;
    let gap = machine_gap(Duration::from_secs(2));
    watch(&server, format!("{} tasks due at once", short(tasks)), tasks, gap)
}

/// Workers that are all lost at once: a start of the server gives each of them its full time to live.
fn lost(place: &Installation, workers: u64) -> Result<Row, Box<dyn Error>> {
    let mut server = place.start_with(Target::SureqNone, Settings::default())?;
    let mut client = Client::open(server.address, server.dialect, 0)?;
    let ttl = (5000 + workers / 10).to_string();
    eprintln!("starting {workers} workers");
    send_all(&mut client, workers, |out, _| resp::command(out, &[b"RQ.PUSH", b"flood", b"x"]))?;
    let mut names = Vec::new();
    for first in (0..workers).step_by(BURST as usize) {
        let these = first..workers.min(first + BURST);
        for n in these.clone() {
            let name = format!("w{n}");
            resp::command(
                &mut client.output,
                &[b"RQ.WORKER", b"START", name.as_bytes(), b"TTL", ttl.as_bytes()],
            );
        }
        client.send()?;
        for _ in these {
            let reply = client.reply()?;
            let [Token::Bulk(name)] = reply.tokens else {
                return Err(misfit(reply.bytes, reply.tokens, "worker").into());
            };
            names.push(reply.bytes[name.clone()].to_vec());
        }
    }
    send_all(&mut client, workers, |out, n| {
        resp::command(out, &[b"RQ.POP", b"WORKER", &names[n as usize], b"flood"]);
    })?;
    server.rest(REST)?;
    server.kill()?;
    server.exec()?;
    server.wait_until_ready()?;
    let gap = machine_gap(Duration::from_secs(2));
    watch(&server, format!("{} workers lost at once", short(workers)), workers, gap)
}

/// Sends this many commands, and reads their replies, none of which may be an error.
fn send_all(
    client: &mut Client,
    commands: u64,
    mut write: impl FnMut(&mut Vec<u8>, u64),
) -> Result<(), Box<dyn Error>> {
    for first in (0..commands).step_by(BURST as usize) {
        let these = first..commands.min(first + BURST);
        these.clone().for_each(|n| write(&mut client.output, n));
        client.send()?;
        for _ in these {
            let reply = client.reply()?;
            if matches!(reply.tokens, [Token::Error(_), ..]) {
                return Err(misfit(reply.bytes, reply.tokens, "command").into());
            }
        }
    }
    Ok(())
}

/// Pushes to another queue, one after the other, until all tasks of the flood are ready.
fn watch(server: &Server, what: String, tasks: u64, gap: Duration) -> Result<Row, Box<dyn Error>> {
    let mut client = Client::open(server.address, server.dialect, 0)?;
    let (mut waits, mut begun) = (Vec::new(), None);
    loop {
        for _ in 0..100 {
            let since = Instant::now();
            resp::command(&mut client.output, &[b"RQ.PUSH", b"other", b"x"]);
            client.send()?;
            client.reply()?;
            waits.push(since.elapsed());
        }
        let ready = ready(&mut client)?;
        if ready == 0 {
            // The flood has not started yet.
            waits.clear();
            begun = None;
        } else if ready == tasks {
            let lasted = begun.map_or(Duration::ZERO, |begun: Instant| begun.elapsed());
            return Ok(Row { what, lasted, waits, gap });
        } else {
            begun.get_or_insert_with(Instant::now);
        }
    }
}

fn ready(client: &mut Client) -> Result<u64, Box<dyn Error>> {
    resp::command(&mut client.output, &[b"RQ.INFO", b"flood"]);
    client.send()?;
    let reply = client.reply()?;
    match reply.tokens {
        [Token::Array(_), _, Token::Integer(ready), ..] => Ok(u64::try_from(*ready)?),
        _ => Err(misfit(reply.bytes, reply.tokens, "count").into()),
    }
}

/// The longest time for which a loop that does nothing was not run.
fn machine_gap(aim: Duration) -> Duration {
    let (begun, mut last, mut longest) = (Instant::now(), Instant::now(), Duration::ZERO);
    while begun.elapsed() < aim {
        let now = Instant::now();
        longest = longest.max(now - last);
        last = now;
    }
    longest
}

fn render(rows: &[Row]) -> String {
    let ms = |duration: Duration| format!("{:.1}", duration.as_secs_f64() * 1e3);
    let rows: Vec<Vec<String>> = rows
        .iter()
        .map(|row| {
            let mut waits = row.waits.clone();
            waits.sort_unstable();
            let longest = waits.last().copied().unwrap_or_default();
            let p99 = waits.get(waits.len() * 99 / 100).copied().unwrap_or_default();
            let verdict = match longest {
                longest if longest <= AIM => "met",
                _ if row.gap > GAP => "missed; so does the machine",
                _ => "missed",
            };
            vec![
                row.what.clone(),
                format!("{:.2}", row.lasted.as_secs_f64()),
                format!("{:.0}", count(waits.len() as u64)),
                ms(p99),
                ms(longest),
                ms(AIM),
                verdict.to_owned(),
                ms(row.gap),
            ]
        })
        .collect();
    let head = [
        "flood",
        "lasted s",
        "pushes",
        "p99 ms",
        "longest ms",
        "at most",
        "verdict",
        "gap of the machine ms",
    ];
    table(&head, &rows)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wait_caused_by_the_machine_is_marked() {
        let row = |longest: u64, gap: u64| Row {
            what: "flood".to_owned(),
            lasted: Duration::from_secs(1),
            waits: vec![Duration::from_millis(1), Duration::from_millis(longest)],
            gap: Duration::from_millis(gap),
        };
        assert!(render(&[row(50, 0)]).contains(" met "));
        assert!(render(&[row(51, 0)]).contains(" missed "));
        assert!(render(&[row(51, 60)]).contains("so does the machine"));
    }
}
