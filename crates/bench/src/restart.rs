//! The time of sureq from exec to the first task after `kill -9` under load, when the next checkpoint was nearly due.
//!
//! The data of the killed server is copied. One copy is started with the page cache as it is, the other with an empty
//! one; the second is drained, and every task is checked against the confirmations before the kill.

use std::error::Error;
use std::fs;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

use crate::account::{Account, Wrong};
use crate::dialect::{QUEUE, misfit};
use crate::fill::{First, drain, fill, first_pop};
use crate::info::{CHECKPOINT_DUE, Info, SINCE_CHECKPOINT};
use crate::load::{self, LoadShape, LoadStep};
use crate::procstat::{self, Memory};
use crate::resp::{self, Token};
use crate::servers::{Installation, Server};
use crate::tables::{count, median, megabytes, parse_count, short, table};
use crate::targets::{Settings, Target};
use crate::{Common, Outcome, footprint, machine, salt};

/// Options of `restart`.
#[derive(clap::Args)]
pub(crate) struct Arguments {
    /// Waiting tasks
    #[arg(long, value_name = "N", default_value = "5M", value_parser = parse_count)]
    tasks: u64,
    /// Number of repetitions; the table shows medians
    #[arg(long, value_name = "N", default_value_t = 3)]
    reps: usize,
    /// Guarantee of a confirmation
    #[arg(long, value_name = "LEVEL", default_value = "always", value_parser = ["always", "interval", "none"])]
    durability: String,
    /// The load under which the server is killed: single, pipeline or batch
    #[arg(long, value_name = "LOAD", default_value = "pipeline", value_parser = ["single", "pipeline", "batch"])]
    load: String,
    /// Longest duration of the load; the exact one if the server does not report when a checkpoint is due
    #[arg(long, value_name = "SECONDS")]
    seconds: Option<f64>,
    /// Passed to the server
    #[arg(long, value_name = "SIZE")]
    segment_bytes: Option<String>,
    #[command(flatten)]
    common: Common,
}

/// The limit from exec to the first reply.
const AIM: Duration = Duration::from_millis(300);
/// The share of the bytes at which a checkpoint is due.
const NEARLY_PERCENT: u64 = 95;
/// The shortest duration of the load.
const LEAST: Duration = Duration::from_millis(500);
const MOST: Duration = Duration::from_secs(300);
/// The duration of the load if the server does not report when a checkpoint is due.
const BLIND: Duration = Duration::from_secs(3);
const ASK: Duration = Duration::from_millis(5);
const REST: Duration = Duration::from_secs(60);
const RECOVERED: &[u8] = b"500";

struct Row {
    warm: Duration,
    cold: Option<Duration>,
    memory: Memory,
    disk: u64,
    /// Bytes of log since the last checkpoint at the kill, and those at which one is due.
    since: Option<(u64, u64)>,
    /// The number of drained tasks.
    drained: u64,
    wrong: Wrong,
}

/// Runs the measurement and prints the table.
pub(crate) fn run(arguments: &Arguments) -> Result<Outcome, Box<dyn Error>> {
    let target = Target::of_level(&arguments.durability);
    let shape = LoadShape::named(&arguments.load).ok_or("no such load")?;
    let place = arguments.common.place()?;
    let versions = place.check(&[target])?;
    let mut journal = arguments.common.journal()?;
    let mut rows = Vec::new();
    for repetition in 1..=arguments.reps.max(1) {
        let row = measure(arguments, &place, target, shape)?;
        eprintln!("{repetition}/{} {}", arguments.reps.max(1), row.progress());
        journal.write(&row.json(arguments.tasks, target))?;
        rows.push(row);
    }
    println!("{}; {}. Medians of {} runs.\n", machine(), versions.join(", "), rows.len());
    print!("{}", render(&rows, arguments.tasks, target));
    // With `none` a crash may undo confirmed changes, but alter nothing.
    let promised = |row: &Row| match target {
        Target::SureqNone => Wrong { altered: row.wrong.altered, ..Wrong::default() },
        _ => row.wrong,
    };
    Ok(Outcome::of(rows.iter().map(promised)))
}

fn measure(
    arguments: &Arguments,
    place: &Installation,
    target: Target,
    shape: LoadShape,
) -> Result<Row, Box<dyn Error>> {
    let settings = Settings { segment_bytes: arguments.segment_bytes.clone(), ..Settings::default() };
    let mut server = place.start_with(target, settings)?;
    let mut account = Account::new(salt());
    fill(&server, &mut account, arguments.tasks)?;
    server.rest(REST)?;
    let since = kill_under_load(arguments, &server, shape, &mut account)?;
    server.kill()?;
    account.crash();
    let disk = footprint::of_server(server.directory())?;

    let (data, copy) = (server.directory().join("data"), server.directory().join("copy"));
    footprint::copy(&data, &copy)?;
    let started = server.exec()?;
    let warm = first_pop(&mut server, &mut account, started, First::Leave)?;
    server.rest(REST)?;
    let memory = procstat::memory(server.pid())?;
    server.kill()?;

    fs::remove_dir_all(&data)?;
    fs::rename(&copy, &data)?;
    let dropped = procstat::drop_page_cache();
    if let Err(why) = &dropped {
        eprintln!("no cold start: {why}");
    }
    let started = server.exec()?;
    let cold = first_pop(&mut server, &mut account, started, First::Finish)?;
    let drained = 1 + drain(&server, &mut account, u64::MAX)? + recover(&server, &mut account)?;
    let wrong = account.close(server.count()?);
    Ok(Row { warm, cold: dropped.is_ok().then_some(cold), memory, disk, since, drained, wrong })
}

/// Runs the load until the next checkpoint is nearly due, and kills the server under it.
fn kill_under_load(
    arguments: &Arguments,
    server: &Server,
    shape: LoadShape,
    account: &mut Account,
) -> Result<Option<(u64, u64)>, Box<dyn Error>> {
    let mut client = server.client()?;
    let read = |info: &Info| Some((info.number(SINCE_CHECKPOINT)?, info.number(CHECKPOINT_DUE)?));
    let info = Info::get(&mut client)?;
    info.warn_of_missing(
        &[SINCE_CHECKPOINT, CHECKPOINT_DUE],
        "killed after a fixed time, wherever the log is then",
    );
    let is_reported = read(&info).is_some();
    let limit = match arguments.seconds {
        Some(seconds) => Duration::try_from_secs_f64(seconds)?,
        None if is_reported => MOST,
        None => BLIND,
    };
    let pid = i32::try_from(server.pid()).ok().and_then(Pid::from_raw).ok_or("the server has no pid")?;
    let start = Instant::now();
    let (mut asked, mut since) = (start, None);
    load::run_until(server, shape, account, &mut || {
        if asked.elapsed() < ASK {
            return Ok(LoadStep::Produce);
        }
        asked = Instant::now();
        if is_reported {
            since = read(&Info::get(&mut client)?);
        }
        let due = since.is_some_and(|(since, due)| since * 100 >= due * NEARLY_PERCENT);
        if start.elapsed() >= LEAST && (due || start.elapsed() >= limit) {
            if is_reported && !due {
                eprintln!("no checkpoint was nearly due within {} s", limit.as_secs());
            }
            // A child that was not reaped, so that its id was not reused.
            kill_process(pid, Signal::KILL)?;
            return Ok(LoadStep::Abandon);
        }
        Ok(LoadStep::Produce)
    })?;
    Ok(since)
}

/// Recovers the tasks that were leased when the server was killed, and finishes them.
fn recover(server: &Server, account: &mut Account) -> Result<u64, Box<dyn Error>> {
    let mut client = server.client()?;
    let mut recovered = 0;
    loop {
        resp::command(&mut client.output, &[b"RQ.RECOVER", QUEUE, RECOVERED, b"0"]);
        client.send()?;
        let reply = client.reply()?;
        let [Token::Array(came), tasks @ ..] = reply.tokens else {
            return Err(misfit(reply.bytes, reply.tokens, "RQ.RECOVER").into());
        };
        let came = *came;
        if came == 0 {
            return Ok(recovered);
        }
        let (mut acks, mut numbers) = (Vec::new(), Vec::new());
        resp::request(&mut acks, 2 + came);
        resp::word(&mut acks, b"RQ.ACK");
        resp::word(&mut acks, QUEUE);
        for task in tasks.chunks(3) {
            let [_, Token::Bulk(id), Token::Bulk(payload)] = task else {
                return Err(misfit(reply.bytes, reply.tokens, "RQ.RECOVER").into());
            };
            resp::word(&mut acks, &reply.bytes[id.clone()]);
            numbers.extend(account.deliver(&reply.bytes[payload.clone()]));
        }
        client.output = acks;
        client.send()?;
        let reply = client.reply()?;
        let [Token::Array(done), ..] = reply.tokens else {
            return Err(misfit(reply.bytes, reply.tokens, "ack").into());
        };
        account.ack(&numbers, came as u64, *done as u64);
        recovered += came as u64;
    }
}

impl Row {
    fn progress(&self) -> String {
        let cold = self.cold.map_or("–".to_owned(), |cold| format!("{:.3} s", cold.as_secs_f64()));
        let since = self.since.map_or(String::new(), |(since, due)| {
            format!(", killed {} of {} MB after a checkpoint", megabytes(count(since)), megabytes(count(due)))
        });
        format!(
            "restart {:.3} s, cold {cold}{since}, {} tasks drained: {}",
            self.warm.as_secs_f64(),
            self.drained,
            self.wrong.describe()
        )
    }

    fn json(&self, tasks: u64, target: Target) -> String {
        let figure = |value: Option<String>| value.unwrap_or_else(|| "null".to_owned());
        format!(
            "{{\"target\":\"{}\",\"tasks\":{tasks},\"restart_seconds\":{:.4},\"restart_cold_seconds\":{},\"rss\":{},\
             \"disk\":{},\"log_since_checkpoint\":{},\"drained\":{},\"lost\":{},\"duplicated\":{},\"altered\":{},\
             \"unacked\":{},\"left\":{}}}",
            target.name(),
            self.warm.as_secs_f64(),
            figure(self.cold.map(|cold| format!("{:.4}", cold.as_secs_f64()))),
            self.memory.resident,
            self.disk,
            figure(self.since.map(|(since, _)| since.to_string())),
            self.drained,
            self.wrong.lost,
            self.wrong.duplicated,
            self.wrong.altered,
            self.wrong.unacked,
            self.wrong.left,
        )
    }
}

fn render(rows: &[Row], tasks: u64, target: Target) -> String {
    let of = |figure: &dyn Fn(&Row) -> Option<f64>| median(rows.iter().filter_map(figure).collect());
    let seconds = |value: Option<f64>| value.map_or("–".to_owned(), |value| format!("{value:.3}"));
    let bytes = |value: Option<f64>| value.map_or("–".to_owned(), megabytes);
    let warm = of(&|row| Some(row.warm.as_secs_f64()));
    let verdict = if warm.is_some_and(|warm| warm <= AIM.as_secs_f64()) { "met" } else { "missed" };
    let mut wrong = Wrong::default();
    for row in rows {
        wrong += row.wrong;
    }
    let line = vec![
        target.title().to_owned(),
        short(tasks),
        seconds(warm),
        format!("{:.1} s", AIM.as_secs_f64()),
        verdict.to_owned(),
        seconds(of(&|row| row.cold.map(|cold| cold.as_secs_f64()))),
        bytes(of(&|row| row.since.map(|(since, _)| count(since)))),
        bytes(of(&|row| row.since.map(|(_, due)| count(due)))),
        bytes(of(&|row| Some(count(row.memory.resident)))),
        bytes(of(&|row| Some(count(row.disk)))),
    ];
    let head = [
        "server",
        "waiting",
        "restart s",
        "at most",
        "verdict",
        "cold page cache s",
        "log since checkpoint MB",
        "due at MB",
        "resident after it MB",
        "disk MB",
    ];
    let drained: u64 = rows.iter().map(|row| row.drained).sum();
    let loss = if target == Target::SureqNone { " `none` may lose what was confirmed." } else { "" };
    format!("{}\n{drained} tasks drained and compared: {}.{loss}\n", table(&head, &[line]), wrong.describe())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_median_is_compared_with_the_aim() {
        let row = |millis| Row {
            warm: Duration::from_millis(millis),
            cold: None,
            memory: Memory::default(),
            disk: 1,
            since: Some((95, 100)),
            drained: 2,
            wrong: Wrong::default(),
        };
        let text = render(&[row(100), row(300), row(900)], 5_000_000, Target::SureqAlways);
        assert!(text.contains("met") && text.contains("0.300") && text.contains("5M"), "{text}");
        assert!(render(&[row(301)], 1, Target::SureqAlways).contains("missed"));
        assert!(row(1).json(3, Target::SureqNone).contains("\"restart_cold_seconds\":null"));
    }
}
