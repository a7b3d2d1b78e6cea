//! Measures the disk use of sureq in relation to the live data, sampled each second.
//!
//! Either a few tasks are popped and never acked while many more pass through, so that the log would grow without
//! limit unless the server compacted it; or delayed tasks are reserved and returned repeatedly, so that the same few
//! are logged again and again.

use std::error::Error;
use std::fmt::Write as _;
use std::io::Write as _;
use std::path::PathBuf;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::thread;
use std::time::{Duration, Instant};

use crate::client::Client;
use crate::dialect::misfit;
use crate::payload::{PAYLOAD_BYTES, Payloads, mix};
use crate::queues::{Length, Queues};
use crate::resp::{self, Token};
use crate::servers::{Installation, Server};
use crate::tables::{count, megabytes, parse_count, parse_size};
use crate::targets::{Settings, Target};
use crate::text::Text;
use crate::{Broken, Common, Journal, Outcome, footprint, machine, salt};

/// Options of `disk`.
#[derive(clap::Args)]
pub(crate) struct Arguments {
    /// Payload bytes that are pushed, popped and acked
    #[arg(long, value_name = "SIZE", default_value = "50GB", value_parser = parse_size)]
    bytes: u64,
    /// Bytes of one payload
    #[arg(long, value_name = "SIZE", default_value = "1KB", value_parser = parse_size)]
    payload: u64,
    /// Tasks that are popped and never acked, spread over the run; the first task is one of them
    #[arg(long, value_name = "N", default_value_t = 1)]
    pinned: u64,
    /// Reserve and return delayed tasks instead, in the text dialect
    #[arg(long)]
    churn: bool,
    /// With --churn: number of tasks
    #[arg(long, value_name = "N", default_value = "100k", value_parser = parse_count)]
    tasks: u64,
    /// With --churn: duration
    #[arg(long, value_name = "SECONDS", default_value_t = 600)]
    seconds: u64,
    /// The size of a segment, passed on to the server; small ones make the bound meaningful with little data
    #[arg(long, value_name = "SIZE", default_value = "1MB")]
    segment_bytes: String,
    /// Guarantee of a confirmation
    #[arg(long, value_name = "LEVEL", default_value = "none", value_parser = ["always", "interval", "none"])]
    durability: String,
    #[command(flatten)]
    common: Common,
}

/// The limit: this many times the live bytes, plus this many segments.
const LIVE_TIMES: u64 = 3;
const SEGMENTS: u64 = 8;
/// A run ends early if less is free, so that it does not fill the disk.
const FREE_BYTES_MIN: u64 = 2 << 30;
const SAMPLE: Duration = Duration::from_secs(1);
/// The number of samples per line of progress.
const PROGRESS: u64 = 10;
/// Tasks in one push, pop and ack.
const BATCH: u64 = 256;
/// With `--churn`: requests sent at once, and the longest delay of a returned task.
const RESERVES: usize = 100;
const RETURN_MS_MAX: u64 = 2_000;

/// Runs the measurement; the outcome says whether the limit held.
pub(crate) fn run(arguments: &Arguments) -> Result<Outcome, Box<dyn Error>> {
    let target = Target::of_level(&arguments.durability);
    let place = arguments.common.place()?;
    let versions = place.check(&[target])?;
    let server = start(arguments, &place, target)?;
    let segment = parse_size(&arguments.segment_bytes)?;
    let mut watch = Watch::new(&server, segment, arguments.common.journal()?);
    let progress = Progress::default();
    // A separate thread takes the samples, so that they continue while the server delays the load.
    let done = thread::scope(|scope| -> Result<String, Box<dyn Error>> {
        let watching = scope.spawn(|| {
            let watched = watch.until_over(&progress).map_err(|why| why.to_string());
            // The load ends if the samples do.
            progress.over.store(true, Relaxed);
            watched
        });
        let done = if arguments.churn {
            churn(arguments, &server, &progress)
        } else {
            pass(arguments, &server, &progress)
        };
        progress.over.store(true, Relaxed);
        watching.thread().unpark();
        watching.join().map_err(|_| "the thread that takes samples panicked")??;
        done
    })?;
    println!("{}; {}.\n", machine(), versions.join(", "));
    println!("{done}, {}, segments of {}.\n", target.title(), arguments.segment_bytes);
    print!("{}", watch.report());
    Ok(Outcome::Sound)
}

fn start(arguments: &Arguments, place: &Installation, target: Target) -> Result<Server, Box<dyn Error>> {
    let settings = Settings {
        segment_bytes: Some(arguments.segment_bytes.clone()),
        text_port: arguments.churn.then_some(0),
        ..Settings::default()
    };
    place.start_with(target, settings)
}

/// Passes tasks through while a few stay.
fn pass(arguments: &Arguments, server: &Server, progress: &Progress) -> Result<String, Box<dyn Error>> {
    let length = usize::try_from(arguments.payload)?.max(1);
    let payloads = Payloads::new(salt());
    let open = || Client::open(server.address, server.dialect, 0);
    let mut flow = Queues::new(open()?, payloads, 1, Length::Fixed(length));
    let mut pins = Pins { client: open()?, payloads, length, pinned: 0 };
    let batches = arguments.bytes.div_ceil(arguments.payload.max(1) * BATCH);
    let mut through = 0;
    for batch in 0..batches {
        // The k-th of n tasks is pinned after k/n of the batches.
        while pins.pinned < arguments.pinned && pins.pinned * batches <= batch * arguments.pinned {
            pins.pin()?;
        }
        flow.fill(BATCH, BATCH)?;
        flow.finish(BATCH)?;
        through += BATCH * arguments.payload;
        progress.is_at(pins.pinned * arguments.payload, through);
        if progress.over.load(Relaxed) {
            eprintln!("the disk is nearly full: ended after {} MB", megabytes(count(through)));
            break;
        }
    }
    let held = server_holds(server, PINNED)?;
    if held != pins.pinned {
        return Err(Broken(format!("{} tasks were pinned, and the server holds {held}", pins.pinned)).into());
    }
    Ok(format!(
        "{} MB pushed, popped, compared and acked while {} tasks were never acked",
        megabytes(count(through)),
        pins.pinned
    ))
}

const PINNED: &[u8] = b"bench:pinned";

/// Tasks in a queue of their own that are popped and never acked.
struct Pins {
    client: Client,
    payloads: Payloads,
    length: usize,
    pinned: u64,
}

impl Pins {
    fn pin(&mut self) -> Result<(), Box<dyn Error>> {
        let mut payload = vec![0; self.length];
        self.payloads.write(self.pinned, &mut payload);
        resp::command(&mut self.client.output, &[b"RQ.PUSH", PINNED, &payload]);
        resp::command(&mut self.client.output, &[b"RQ.POP", PINNED]);
        self.client.send()?;
        self.client.reply()?;
        let reply = self.client.reply()?;
        match reply.tokens {
            [Token::Array(1), _, _, _, Token::Bulk(body)] if reply.bytes[body.clone()] == payload => {}
            tokens => return Err(misfit(reply.bytes, tokens, "pop").into()),
        }
        self.pinned += 1;
        Ok(())
    }
}

fn server_holds(server: &Server, queue: &[u8]) -> Result<u64, Box<dyn Error>> {
    let mut client = server.client()?;
    resp::command(&mut client.output, &[b"RQ.INFO", queue]);
    client.send()?;
    let reply = client.reply()?;
    let counted = server.dialect.counted(reply.bytes, reply.tokens);
    Ok(counted.ok_or_else(|| misfit(reply.bytes, reply.tokens, "RQ.INFO"))?)
}

/// Reserves and returns the same tasks.
fn churn(arguments: &Arguments, server: &Server, progress: &Progress) -> Result<String, Box<dyn Error>> {
    let address = server.text_address().ok_or("the server has no text port")?;
    let mut text = Text::open(address, salt())?;
    text.add(arguments.tasks, 0, RETURN_MS_MAX)?;
    let live = arguments.tasks * PAYLOAD_BYTES as u64;
    progress.is_at(live, 0);
    let mut reserved = vec![false; usize::try_from(arguments.tasks)?];
    let end = Instant::now() + Duration::from_secs(arguments.seconds);
    let mut returned = 0_u64;
    while Instant::now() < end && !progress.over.load(Relaxed) {
        text.client.output.extend_from_slice(&b"RESERVE\n".repeat(RESERVES));
        text.client.send()?;
        let mut numbers = Vec::new();
        for _ in 0..RESERVES {
            let Some(task) = text.reserved()? else { continue };
            let flag = reserved
                .get_mut(usize::try_from(task.number)?)
                .ok_or_else(|| Broken("a task was never added".into()))?;
            if std::mem::replace(flag, true) {
                return Err(Broken(format!("task {} was reserved twice", task.number)).into());
            }
            let delay = mix(task.number ^ returned) % (RETURN_MS_MAX + 1);
            let _ = writeln!(text.client.output, "RETURN {} {delay}", task.id);
            numbers.push(task.number);
            returned += 1;
        }
        text.client.send()?;
        for number in &numbers {
            text.must_be_ok()?;
            reserved[usize::try_from(*number)?] = false;
        }
        if numbers.is_empty() {
            thread::sleep(Duration::from_millis(1));
        }
        progress.is_at(live, returned * PAYLOAD_BYTES as u64);
    }
    let (waiting, taken) = text.stats()?;
    if (waiting, taken) != (arguments.tasks, 0) {
        let tasks = arguments.tasks;
        return Err(Broken(format!("of {tasks} tasks {waiting} wait and {taken} are reserved")).into());
    }
    Ok(format!(
        "{} delayed tasks reserved, compared and returned {returned} times in {} s",
        arguments.tasks, arguments.seconds
    ))
}

/// The progress of the load.
#[derive(Default)]
struct Progress {
    live: AtomicU64,
    through: AtomicU64,
    /// The live bytes are known.
    begun: AtomicBool,
    /// The load has ended, or must end because the disk is nearly full.
    over: AtomicBool,
}

impl Progress {
    fn is_at(&self, live: u64, through: u64) {
        self.live.store(live, Relaxed);
        self.through.store(through, Relaxed);
        self.begun.store(true, Relaxed);
    }
}

/// Samples the files each second.
struct Watch {
    directory: PathBuf,
    journal: Journal,
    segment: u64,
    start: Instant,
    due: Instant,
    samples: u64,
    broken: u64,
    /// The sample that came closest to its limit, or was furthest above it.
    worst: Option<Sample>,
    used_max: u64,
    checkpoints_max: u64,
}

#[derive(Clone, Copy, Debug)]
struct Sample {
    used: u64,
    live: u64,
    bound: u64,
}

impl Watch {
    fn new(server: &Server, segment: u64, journal: Journal) -> Self {
        let now = Instant::now();
        Watch {
            directory: server.directory().to_owned(),
            journal,
            segment,
            start: now,
            due: now + SAMPLE,
            samples: 0,
            broken: 0,
            worst: None,
            used_max: 0,
            checkpoints_max: 0,
        }
    }

    /// Takes samples until the load has ended.
    fn until_over(&mut self, progress: &Progress) -> Result<(), Box<dyn Error>> {
        while !progress.over.load(Relaxed) {
            thread::park_timeout(self.due.saturating_duration_since(Instant::now()));
            if Instant::now() < self.due {
                continue;
            }
            self.due += SAMPLE;
            if !progress.begun.load(Relaxed) {
                continue;
            }
            self.sample(progress.live.load(Relaxed), progress.through.load(Relaxed))?;
            if footprint::free(&self.directory)? < FREE_BYTES_MIN {
                progress.over.store(true, Relaxed);
            }
        }
        self.sample(progress.live.load(Relaxed), progress.through.load(Relaxed))
    }

    /// Takes a sample.
    fn sample(&mut self, live: u64, through: u64) -> Result<(), Box<dyn Error>> {
        let used = footprint::of_segments(&self.directory)?;
        let checkpoints = footprint::of_checkpoints(&self.directory)?;
        self.enter(used, checkpoints, live);
        self.journal.write(&format!(
            "{{\"second\":{:.1},\"through\":{through},\"live\":{live},\"used\":{used},\"checkpoints\":{checkpoints}}}",
            self.start.elapsed().as_secs_f64()
        ))?;
        if self.samples.is_multiple_of(PROGRESS) {
            eprintln!(
                "{:>5.0} s  {:>8} MB through  {:>6} MB used  {:>6} MB live  {} broken",
                self.start.elapsed().as_secs_f64(),
                megabytes(count(through)),
                megabytes(count(used)),
                megabytes(count(live)),
                self.broken
            );
        }
        Ok(())
    }

    fn enter(&mut self, used: u64, checkpoints: u64, live: u64) {
        let sample = Sample { used, live, bound: LIVE_TIMES * live + SEGMENTS * self.segment };
        self.samples += 1;
        self.broken += u64::from(used > sample.bound);
        self.used_max = self.used_max.max(used);
        self.checkpoints_max = self.checkpoints_max.max(checkpoints);
        let over = |sample: Sample| i128::from(sample.used) - i128::from(sample.bound);
        if self.worst.is_none_or(|worst| over(sample) > over(worst)) {
            self.worst = Some(sample);
        }
    }

    fn report(&self) -> String {
        let mut text = String::new();
        let _ = writeln!(
            text,
            "- {} samples; at most {} MB of segments, {} MB of checkpoints",
            self.samples,
            megabytes(count(self.used_max)),
            megabytes(count(self.checkpoints_max))
        );
        if let Some(Sample { used, live, bound }) = self.worst {
            let beyond = count(used) - count(SEGMENTS * self.segment);
            let ratio = if live == 0 { f64::INFINITY } else { beyond / count(live) };
            let _ = writeln!(
                text,
                "- at worst {} MB used with {} MB live, bound {} MB; (used − {SEGMENTS} segments) ÷ live = {}",
                megabytes(count(used)),
                megabytes(count(live)),
                megabytes(count(bound)),
                if beyond <= 0.0 { "below 0".to_owned() } else { format!("{ratio:.2}") }
            );
        }
        let verdict = if self.broken == 0 { "met" } else { "missed" };
        let _ = writeln!(
            text,
            "- never above {LIVE_TIMES} × live + {SEGMENTS} segments: {verdict}, {} of {} samples above it",
            self.broken, self.samples
        );
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sample_above_the_bound_is_counted() {
        let now = Instant::now();
        let mut watch = Watch {
            directory: PathBuf::new(),
            journal: Journal::none(),
            segment: 1_000_000,
            start: now,
            due: now,
            samples: 0,
            broken: 0,
            worst: None,
            used_max: 0,
            checkpoints_max: 0,
        };
        watch.enter(8_000_000, 5, 1_000_000);
        assert!(watch.report().contains("below 0"), "{}", watch.report());
        watch.enter(11_000_000, 7, 1_000_000);
        assert!(watch.report().contains("met, 0 of 2"), "{}", watch.report());
        watch.enter(12_000_000, 6, 1_000_000);
        watch.enter(20_000_000, 6, 10_000_000);
        let report = watch.report();
        assert!(report.contains("missed, 1 of 4") && report.contains("÷ live = 4.00"), "{report}");
    }
}
