//! Measures the resident memory per task, by state, size and number of queues, against the goals.

use std::error::Error;
use std::time::Duration;

use crate::client::Client;
use crate::memory_cases::{CASES, Case, TaskState};
use crate::payload::Payloads;
use crate::procstat::{self, Memory};
use crate::queues::Queues;
use crate::servers::{Installation, Server};
use crate::tables::{count, megabytes, parse_count, parse_size, short, table};
use crate::targets::{Settings, Target};
use crate::text::{DELAY_MS_MAX, Text};
use crate::{Broken, Common, Outcome, footprint, machine, salt};

/// Options of `memory`.
#[derive(clap::Args)]
pub(crate) struct Arguments {
    /// Only these cases: one-queue, one-kilobyte, thousand-queues, cache-100k, cache-1m, delayed, leased
    #[arg(long, value_name = "NAME,…", value_delimiter = ',')]
    only: Vec<String>,
    /// A share of the tasks, to try the benchmark; the figures of few tasks mean little
    #[arg(long, value_name = "SHARE", default_value_t = 1.0)]
    scale: f64,
    /// Guarantee of a confirmation; it makes no difference to memory, and `none` fills faster
    #[arg(long, value_name = "LEVEL", default_value = "none", value_parser = ["always", "interval", "none"])]
    durability: String,
    /// Payloads in one push; those of the thousand queues are pushed one by one
    #[arg(long, value_name = "N", default_value = "100", value_parser = parse_count)]
    batch: u64,
    /// Share of the tasks of thousand-queues that is cancelled
    #[arg(long, value_name = "SHARE", default_value_t = 0.1)]
    cancel: f64,
    #[command(flatten)]
    common: Common,
}

const REST: Duration = Duration::from_secs(60);
const DELAY_MS_MIN: u64 = 3_600_000;

/// The result of one case.
struct Row {
    what: String,
    tasks: u64,
    empty: Memory,
    memory: Memory,
    /// Allocated bytes; zero if they were not measured.
    disk: u64,
    /// The limit for bytes per task; `None` if there is no aim.
    aim: Option<Aim>,
}

/// A limit for bytes per task.
#[derive(Clone, Copy)]
struct Aim {
    bytes: f64,
    /// Whether the memory of an empty server counts.
    in_all: bool,
}

/// Runs the measurement and prints the table.
pub(crate) fn run(arguments: &Arguments) -> Result<Outcome, Box<dyn Error>> {
    if !(0.0..=1.0).contains(&arguments.scale) || !(0.0..=1.0).contains(&arguments.cancel) {
        return Err("--scale and --cancel must be between 0 and 1".into());
    }
    if let Some(wrong) = arguments.only.iter().find(|name| !CASES.iter().any(|case| case.name == **name)) {
        return Err(format!("--only {wrong}: no such case; --help lists them").into());
    }
    let target = Target::of_level(&arguments.durability);
    let place = arguments.common.place()?;
    let versions = place.check(&[target])?;
    let cached = place.knows("--cache")?;
    if !cached {
        eprintln!("this sureq has no --cache: started without it, and judged as if it had one");
    }
    let mut journal = arguments.common.journal()?;
    let mut rows = Vec::new();
    for case in CASES {
        if !arguments.only.is_empty() && !arguments.only.iter().any(|name| name == case.name) {
            continue;
        }
        let settings = Settings {
            cache: case.cache.filter(|_| cached).map(str::to_owned),
            text_port: (case.state == TaskState::Delayed).then_some(0),
            ..Settings::default()
        };
        let new = measure(arguments, &place, target, settings, case)
            .inspect_err(|_| eprintln!("the case {} failed", case.name))?;
        for row in &new {
            journal.write(&row.json())?;
        }
        rows.extend(new);
    }
    println!("{}; {}.\n", machine(), versions.join(", "));
    print!("{}", render(&rows));
    Ok(Outcome::Sound)
}

fn measure(
    arguments: &Arguments,
    place: &Installation,
    target: Target,
    settings: Settings,
    case: Case,
) -> Result<Vec<Row>, Box<dyn Error>> {
    let tasks = scaled(case.tasks, arguments.scale).max(1);
    let server = place.start_with(target, settings)?;
    let empty = procstat::memory(server.pid())?;
    let cache = case.cache.map_or(Ok(0), parse_size)?;
    let look = |what: String, tasks: u64| -> Result<Row, Box<dyn Error>> {
        server.rest(REST)?;
        let memory = procstat::memory(server.pid())?;
        let disk = footprint::of_server(server.directory())?;
        let in_all = case.cache.is_none();
        let aim = Aim { bytes: case.aim + count(cache) / count(tasks), in_all };
        let row = Row { what, tasks, empty, memory, disk, aim: Some(aim) };
        eprintln!("{}", row.progress());
        Ok(row)
    };
    if case.state == TaskState::Delayed {
        let address = server.text_address().ok_or("the server has no text port")?;
        let mut text = Text::open(address, salt())?;
        text.add(tasks, DELAY_MS_MIN, DELAY_MS_MAX)?;
        let row = look(case.title.to_owned(), tasks)?;
        let (waiting, reserved) = text.stats()?;
        if (waiting, reserved) != (tasks, 0) {
            return Err(Broken(format!("of {tasks} tasks {waiting} wait and {reserved} are reserved")).into());
        }
        return Ok(vec![row]);
    }
    let mut queues = queues(&server, case)?;
    queues.fill(tasks, case.batch.unwrap_or(arguments.batch))?;
    let mut rows = Vec::new();
    if case.state == TaskState::Leased {
        queues.lease(tasks)?;
        rows.push(look(case.title.to_owned(), tasks)?);
        return Ok(rows);
    }
    rows.push(look(case.title.to_owned(), tasks)?);
    if case.queues > 1 && arguments.cancel > 0.0 {
        let cancelled = queues.cancel(arguments.cancel)?;
        rows.push(look(format!("{}, {cancelled} cancelled", case.title), tasks - cancelled)?);
    }
    queues.drain()?;
    Ok(rows)
}

fn queues(server: &Server, case: Case) -> Result<Queues, Box<dyn Error>> {
    let client = Client::open(server.address, server.dialect, 0)?;
    Ok(Queues::new(client, Payloads::new(salt()), case.queues, case.payload))
}

fn scaled(tasks: u64, scale: f64) -> u64 {
    // In thousandths of a percent, which is fine enough.
    let share = Duration::from_secs_f64(scale).as_micros();
    (u128::from(tasks) * share / 1_000_000) as u64
}

impl Row {
    /// Resident bytes per task: all of them, and those added by the tasks.
    fn per_task(&self) -> (f64, f64) {
        let (all, before) = (count(self.memory.resident), count(self.empty.resident));
        (all / count(self.tasks), (all - before) / count(self.tasks))
    }

    fn verdict(&self) -> &'static str {
        let (all, grown) = self.per_task();
        match self.aim {
            None => "–",
            Some(Aim { bytes, in_all }) if if in_all { all } else { grown } <= bytes => "met",
            Some(_) => "missed",
        }
    }

    fn progress(&self) -> String {
        let (all, grown) = self.per_task();
        format!(
            "{:<60} {:>6} MB, {all:.1} bytes per task in all, {grown:.1} without the empty server",
            self.what,
            megabytes(count(self.memory.resident))
        )
    }

    fn json(&self) -> String {
        let (all, grown) = self.per_task();
        format!(
            "{{\"case\":\"{}\",\"tasks\":{},\"empty_rss\":{},\"rss\":{},\"rss_anon\":{},\"disk\":{},\
             \"bytes_per_task_in_all\":{all:.2},\"bytes_per_task\":{grown:.2}}}",
            self.what,
            self.tasks,
            self.empty.resident,
            self.memory.resident,
            self.memory.anonymous,
            self.disk
        )
    }
}

fn render(rows: &[Row]) -> String {
    let lines: Vec<_> = rows
        .iter()
        .map(|row| {
            let (all, grown) = row.per_task();
            let aim = row.aim.map_or("–".to_owned(), |aim| {
                format!("{:.1} {}", aim.bytes, if aim.in_all { "in all" } else { "without the empty server" })
            });
            vec![
                row.what.clone(),
                short(row.tasks),
                megabytes(count(row.empty.resident)),
                megabytes(count(row.memory.resident)),
                megabytes(count(row.memory.anonymous)),
                format!("{all:.1}"),
                format!("{grown:.1}"),
                aim,
                row.verdict().to_owned(),
                if row.disk == 0 { "–".to_owned() } else { megabytes(count(row.disk)) },
            ]
        })
        .collect();
    let head = [
        "what",
        "tasks",
        "empty server MB",
        "resident MB",
        "of it anonymous",
        "bytes/task in all",
        "without the empty server",
        "at most",
        "verdict",
        "disk MB",
    ];
    table(&head, &lines)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_aim_counts_the_empty_server_or_not() {
        let row = |in_all| Row {
            what: "x".into(),
            tasks: 100,
            empty: Memory { resident: 1_000, anonymous: 0 },
            memory: Memory { resident: 4_500, anonymous: 0 },
            disk: 0,
            aim: Some(Aim { bytes: 40.0, in_all }),
        };
        assert_eq!((row(true).verdict(), row(false).verdict()), ("missed", "met"));
        assert!(render(&[row(true)]).contains("45.0"));
        assert_eq!(scaled(5_000_000, 0.01), 50_000);
        assert_eq!(scaled(5_000_000, 1.0), 5_000_000);
    }
}
