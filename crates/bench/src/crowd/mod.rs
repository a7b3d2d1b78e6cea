//! Measures how long another client waits while each command of the table runs on a store with many tasks in each
//! state, queues and workers.
//!
//! * `fixture` fills the store.
//! * `commands` lists the commands; those that empty queues are last.
//! * `probe` pushes, pops and inspects in a queue of its own and times each command. A thread beside it records the
//!   delays of the machine, to distinguish them from those of the server.

mod commands;
mod fixture;
mod probe;

use std::error::Error;
use std::fmt;
use std::time::{Duration, Instant};

use crate::client::Client;
use crate::dialect::misfit;
use crate::resp::{self, Token};
use crate::servers::{Installation, Server};
use crate::tables::{parse_count, table};
use crate::targets::{Settings, Target};
use crate::{Common, Outcome, machine};

use commands::Step;
use fixture::Fixture;
use probe::Waits;

/// Options of `crowd`.
#[derive(clap::Args)]
pub(crate) struct Arguments {
    /// Tasks in each state: ready, delayed, leased, dead
    #[arg(long, value_name = "N", default_value = "1M", value_parser = parse_count)]
    tasks: u64,
    /// Additional queues
    #[arg(long, value_name = "N", default_value = "10k", value_parser = parse_count)]
    queues: u64,
    /// Workers, which share the leased tasks
    #[arg(long, value_name = "N", default_value = "1k", value_parser = parse_count)]
    workers: u64,
    /// Homes of the queues
    #[arg(long, value_name = "HOME", default_values_t = [Lives::File, Lives::Module, Lives::Redis], value_delimiter = ',')]
    homes: Vec<Lives>,
    #[command(flatten)]
    common: Common,
}

/// The homes that are measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum Lives {
    File,
    Module,
    Redis,
}

impl fmt::Display for Lives {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Lives::File => "file",
            Lives::Module => "module",
            Lives::Redis => "redis",
        })
    }
}

/// The limit for a command of another client.
const AIM: Duration = Duration::from_millis(20);
/// How long the probe continues after a command, since deferred work of the command is part of its cost.
const AFTERMATH: Duration = Duration::from_millis(100);

/// The effect of one command on other clients.
struct Row {
    command: String,
    took: Duration,
    waits: Waits,
}

/// Runs the measurement and prints a table for each home.
pub(crate) fn run(arguments: &Arguments) -> Result<Outcome, Box<dyn Error>> {
    let place = arguments.common.place()?;
    let mut journal = arguments.common.journal()?;
    let targets: Vec<Target> = arguments.homes.iter().flat_map(|home| home.targets()).copied().collect();
    let versions = place.check(&targets)?;
    println!("{}; {}.\n", machine(), versions.join(", "));
    for home in &arguments.homes {
        let servers = home.start(&place)?;
        let server = servers.last().ok_or("a home has a server")?;
        let mut client = server.client()?;
        eprintln!("{home}: adding {} tasks in each state", arguments.tasks);
        let fixture = Fixture::fill(&mut client, arguments.tasks, arguments.queues, arguments.workers)?;
        let mut rows = Vec::new();
        for step in commands::all(&fixture) {
            eprintln!("{home}: {}", step.name);
            let row = measure(server, &mut client, &step)?;
            journal.write(&row.json(*home))?;
            rows.push(row);
        }
        println!("{home}:\n\n{}", render(&rows));
    }
    Ok(Outcome::Sound)
}

impl Lives {
    fn targets(self) -> &'static [Target] {
        match self {
            Lives::File => &[Target::SureqNone],
            Lives::Module => &[Target::SureqModule],
            Lives::Redis => &[Target::Redis, Target::SureqNone],
        }
    }

    /// Starts the servers of the home; the last one executes `RQ.*`.
    fn start(self, place: &Installation) -> Result<Vec<Server>, Box<dyn Error>> {
        let mut servers = Vec::new();
        for target in self.targets() {
            let home = servers.last().map(|redis: &Server| format!("redis://{}", redis.address));
            servers.push(place.start_with(*target, Settings { home, ..Settings::default() })?);
        }
        Ok(servers)
    }
}

/// Runs a step while the probe runs.
fn measure(server: &Server, client: &mut Client, step: &Step) -> Result<Row, Box<dyn Error>> {
    let mut took = Duration::ZERO;
    let waits = probe::beside(server, || {
        let began = Instant::now();
        for command in &step.commands {
            let words: Vec<&[u8]> = command.iter().map(Vec::as_slice).collect();
            resp::command(&mut client.output, &words);
            client.send()?;
            let reply = client.reply()?;
            if matches!(reply.tokens, [Token::Error(_), ..]) {
                return Err(misfit(reply.bytes, reply.tokens, step.name).into());
            }
        }
        took = began.elapsed();
        std::thread::sleep(AFTERMATH);
        Ok(())
    })?;
    Ok(Row { command: step.name.to_owned(), took, waits })
}

impl Row {
    fn verdict(&self) -> &'static str {
        match self.waits.longest {
            longest if longest <= AIM => "met",
            longest if longest <= AIM + self.waits.machine => "the machine's own",
            _ => "missed",
        }
    }

    fn json(&self, home: Lives) -> String {
        let ms = |duration: Duration| format!("{:.3}", duration.as_secs_f64() * 1e3);
        format!(
            "{{\"home\":\"{home}\",\"command\":\"{}\",\"took_ms\":{},\"probes\":{},\"longest_ms\":{},\"longest_look_ms\":{},\"machine_ms\":{}}}",
            self.command,
            ms(self.took),
            self.waits.count,
            ms(self.waits.longest),
            ms(self.waits.longest_look),
            ms(self.waits.machine)
        )
    }
}

fn render(rows: &[Row]) -> String {
    let ms = |duration: Duration| format!("{:.1}", duration.as_secs_f64() * 1e3);
    let rows: Vec<Vec<String>> = rows
        .iter()
        .map(|row| {
            vec![
                row.command.clone(),
                ms(row.took),
                row.waits.count.to_string(),
                ms(row.waits.longest),
                ms(row.waits.longest_look),
                ms(row.waits.machine),
                row.verdict().to_owned(),
            ]
        })
        .collect();
    let heads = [
        "command",
        "took ms",
        "probes",
        "longest wait ms",
        "of RQ.INFO ms",
        "machine's own ms",
        "at most 20 ms",
    ];
    table(&heads, &rows)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wait_counts_as_missed_only_beyond_the_delay_of_the_machine() {
        let verdict = |longest: u64, machine: u64| {
            let (longest, machine) = (Duration::from_millis(longest), Duration::from_millis(machine));
            let waits = Waits { count: 1, longest, longest_look: longest, machine };
            Row { command: String::new(), took: Duration::ZERO, waits }.verdict()
        };
        assert_eq!([verdict(20, 0), verdict(25, 5), verdict(26, 5)], ["met", "the machine's own", "missed"]);
    }
}
