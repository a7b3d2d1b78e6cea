//! The duration of a push while sureq takes checkpoints and compacts its log, with millions of delayed tasks.
//!
//! Pushes are sent at a fixed rate over a few connections, whether earlier ones are answered or not, so that a server
//! that stalls is not spared; those of a millisecond are sent together. A push is timed from its write to its reply.
//! Meanwhile a consumer pops the tasks and acks most of them; the tasks that it keeps leave segments that are mostly
//! dead, which compaction removes. A third connection reads `INFO` every few milliseconds to find out which
//! background work is running.

use std::collections::VecDeque;
use std::error::Error;
use std::time::{Duration, Instant};

use mio::{Events, Poll};

use crate::connection::Connection;
use crate::dialect::misfit;
use crate::info::{
    CHECKPOINT_RUNNING, CHECKPOINT_WRITTEN, CHECKPOINTS_TAKEN, COPIED_WRITTEN, COPY_RUNNING, Info,
    LOG_WRITTEN,
};
use crate::payload::Payloads;
use crate::procstat;
use crate::resp::{self, Token};
use crate::servers::Server;
use crate::stall_report::{Finding, Sample, Window, Work, Written};
use crate::tables::{parse_count, parse_size};
use crate::targets::{Settings, Target};
use crate::text::{DELAY_MS_MAX, Text};
use crate::{Broken, Common, Outcome, machine, salt};

/// Options of `stall`.
#[derive(clap::Args)]
pub(crate) struct Arguments {
    /// Delayed tasks that are added first
    #[arg(long, value_name = "N", default_value = "5M", value_parser = parse_count)]
    tasks: u64,
    /// Pushes a second
    #[arg(long, value_name = "N", default_value_t = 5_000, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    rate: u32,
    /// Duration
    #[arg(long, value_name = "SECONDS", default_value_t = 120)]
    seconds: u64,
    /// Bytes of one payload
    #[arg(long, value_name = "SIZE", default_value = "4KB", value_parser = parse_size)]
    payload: u64,
    /// One in this many tasks is popped and never acked
    #[arg(long, value_name = "N", default_value_t = 10)]
    keep: u64,
    /// Passed to the server
    #[arg(long, value_name = "SIZE")]
    segment_bytes: Option<String>,
    /// Guarantee of a confirmation
    #[arg(long, value_name = "LEVEL", default_value = "none", value_parser = ["always", "interval", "none"])]
    durability: String,
    #[command(flatten)]
    common: Common,
}

const PRODUCERS: usize = 4;
const CONSUMER: usize = PRODUCERS;
const OBSERVER: usize = PRODUCERS + 1;
const QUEUE: &[u8] = b"bench:stall";
const ASK: Duration = Duration::from_millis(3);
const DELAY_MS_MIN: u64 = 3_600_000;
const REST: Duration = Duration::from_secs(60);
/// The most tasks in one pop; the consumer waits until there are as many.
const BATCH: u64 = 64;
/// The time limit for replies after the last push.
const PATIENCE: Duration = Duration::from_secs(30);

/// Runs the measurement and prints the results.
pub(crate) fn run(arguments: &Arguments) -> Result<Outcome, Box<dyn Error>> {
    let target = Target::of_level(&arguments.durability);
    let place = arguments.common.place()?;
    let versions = place.check(&[target])?;
    let settings = Settings {
        segment_bytes: arguments.segment_bytes.clone(),
        text_port: Some(0),
        ..Settings::default()
    };
    let server = place.start_with(target, settings)?;
    let address = server.text_address().ok_or("the server has no text port")?;
    let mut text = Text::open(address, salt())?;
    eprintln!("adding {} delayed tasks", arguments.tasks);
    text.add(arguments.tasks, DELAY_MS_MIN, DELAY_MS_MAX)?;
    server.rest(REST)?;
    let info = Info::get(&mut server.client()?)?;
    info.warn_of_missing(
        &[CHECKPOINT_RUNNING, CHECKPOINTS_TAKEN, COPY_RUNNING],
        "slow pushes cannot be attributed to background work",
    );
    info.warn_of_missing(
        &[LOG_WRITTEN, CHECKPOINT_WRITTEN, COPIED_WRITTEN],
        "written bytes are known only for the whole process",
    );
    eprintln!("{} pushes a second for {} s", arguments.rate, arguments.seconds);
    let before = procstat::written(server.pid())?;
    let mut stall = Stall::connect(arguments, &server, info)?;
    stall.drive()?;
    let finding = stall.finding(procstat::written(server.pid())? - before);
    let (waiting, reserved) = text.stats()?;
    if (waiting, reserved) != (arguments.tasks, 0) {
        return Err(Broken(format!("of {} delayed tasks {waiting} are left", arguments.tasks)).into());
    }
    let held = server_holds(&server)?;
    if held != stall.pushed - stall.acked {
        let expected = stall.pushed - stall.acked;
        return Err(Broken(format!("the server holds {held} tasks instead of {expected}")).into());
    }
    arguments.common.journal()?.write(&finding.json())?;
    println!("{}; {}.\n", machine(), versions.join(", "));
    print!("{}", finding.render());
    Ok(Outcome::Sound)
}

fn server_holds(server: &Server) -> Result<u64, Box<dyn Error>> {
    let mut client = server.client()?;
    resp::command(&mut client.output, &[b"RQ.INFO", QUEUE]);
    client.send()?;
    let reply = client.reply()?;
    let counted = server.dialect.counted(reply.bytes, reply.tokens);
    Ok(counted.ok_or_else(|| misfit(reply.bytes, reply.tokens, "RQ.INFO"))?)
}

/// The reply that the consumer waits for.
enum Awaited {
    Nothing,
    Tasks,
    Ack(u64),
}

struct Stall {
    period: Duration,
    aim: Duration,
    payloads: Payloads,
    payload: Vec<u8>,
    keep: u64,
    poll: Poll,
    connections: Vec<Connection>,
    /// By producer: the times of the pushes that are not answered yet.
    under_way: [VecDeque<Instant>; PRODUCERS],
    awaited: Awaited,
    /// The times of the latest `INFO` request and reply, and whether one is in flight.
    asked: Instant,
    asking: bool,
    pushed: u64,
    confirmed: u64,
    popped: u64,
    acked: u64,
    start: Instant,
    samples: Vec<Sample>,
    windows: Vec<Window>,
    first: Info,
    latest: Info,
    /// The time of the request before the latest.
    previous: Instant,
    tokens: Vec<Token>,
}

impl Stall {
    fn connect(arguments: &Arguments, server: &Server, info: Info) -> Result<Self, Box<dyn Error>> {
        let poll = Poll::new()?;
        let mut connections = Vec::new();
        for me in 0..=OBSERVER {
            connections.push(Connection::open(server.address, server.dialect, poll.registry(), me)?);
        }
        let now = Instant::now();
        Ok(Stall {
            period: Duration::from_secs(1) / arguments.rate,
            aim: Duration::from_secs(arguments.seconds),
            payloads: Payloads::new(salt()),
            payload: vec![0; usize::try_from(arguments.payload)?.max(size_of::<u64>())],
            keep: arguments.keep.max(1),
            poll,
            connections,
            under_way: std::array::from_fn(|_| VecDeque::new()),
            awaited: Awaited::Nothing,
            asked: now,
            asking: false,
            pushed: 0,
            confirmed: 0,
            popped: 0,
            acked: 0,
            start: now,
            samples: Vec::new(),
            windows: Vec::new(),
            first: info.clone(),
            latest: info,
            previous: now,
            tokens: Vec::new(),
        })
    }

    fn drive(&mut self) -> Result<(), Box<dyn Error>> {
        let mut events = Events::with_capacity(64);
        self.start = Instant::now();
        let (mut due, end) = (self.start + self.period, self.start + self.aim);
        loop {
            let now = Instant::now();
            while due <= now && due < end {
                self.push()?;
                due += self.period;
            }
            let producing = due < end;
            if !producing && self.confirmed == self.pushed && matches!(self.awaited, Awaited::Nothing) {
                return Ok(());
            }
            if now > end + PATIENCE {
                return Err(format!("the server has not answered for {} s", PATIENCE.as_secs()).into());
            }
            if !self.asking && now - self.asked >= ASK {
                self.ask()?;
            }
            if producing && matches!(self.awaited, Awaited::Nothing) && self.confirmed - self.popped >= BATCH
            {
                self.pop()?;
            }
            let patience = if producing { due.saturating_duration_since(now).min(ASK) } else { ASK };
            match self.poll.poll(&mut events, Some(patience)) {
                Err(e) if e.kind() != std::io::ErrorKind::Interrupted => return Err(e.into()),
                _ => {}
            }
            let tokens: Vec<usize> = events.iter().map(|event| event.token().0).collect();
            for me in tokens {
                self.connections[me].flush()?;
                self.connections[me].fill()?;
                match me {
                    OBSERVER => self.observe()?,
                    CONSUMER => self.consume()?,
                    producer => self.confirm(producer)?,
                }
            }
        }
    }

    fn push(&mut self) -> Result<(), Box<dyn Error>> {
        let me = (self.pushed % PRODUCERS as u64) as usize;
        self.payloads.write(self.pushed, &mut self.payload);
        resp::command(&mut self.connections[me].output, &[b"RQ.PUSH", QUEUE, &self.payload]);
        self.pushed += 1;
        self.under_way[me].push_back(Instant::now());
        Ok(self.connections[me].flush()?)
    }

    fn confirm(&mut self, me: usize) -> Result<(), Box<dyn Error>> {
        let now = Instant::now();
        while let Some(bytes) = self.connections[me].next_reply(&mut self.tokens)? {
            if !matches!(self.tokens[..], [Token::Array(1), _]) {
                return Err(misfit(bytes, &self.tokens, "push").into());
            }
            let sent = self.under_way[me].pop_front().ok_or("a reply without a request")?;
            self.samples.push(Sample { start: sent - self.start, took: now - sent });
            self.confirmed += 1;
        }
        Ok(())
    }

    fn pop(&mut self) -> Result<(), Box<dyn Error>> {
        let connection = &mut self.connections[CONSUMER];
        resp::command(&mut connection.output, &[b"RQ.POP", b"COUNT", BATCH.to_string().as_bytes(), QUEUE]);
        connection.flush()?;
        self.awaited = Awaited::Tasks;
        Ok(())
    }

    fn consume(&mut self) -> Result<(), Box<dyn Error>> {
        let connection = &mut self.connections[CONSUMER];
        let mut ids = Vec::new();
        while let Some(bytes) = connection.next_reply(&mut self.tokens)? {
            match (&self.awaited, &self.tokens[..]) {
                (Awaited::Ack(asked), [Token::Array(done), ..]) if *asked == *done as u64 => {
                    self.acked += asked;
                    self.awaited = Awaited::Nothing;
                }
                (Awaited::Tasks, [Token::Array(_), tasks @ ..]) => {
                    for task in tasks.chunks(4) {
                        let [_, _, Token::Bulk(id), Token::Bulk(body)] = task else {
                            return Err(misfit(bytes, &self.tokens, "pop").into());
                        };
                        let body = &bytes[body.clone()];
                        let number = body.first_chunk().map(|head| u64::from_le_bytes(*head));
                        let number = number.ok_or_else(|| Broken("a task was altered".into()))?;
                        self.payloads.write(number, &mut self.payload);
                        if number >= self.pushed || body != self.payload {
                            return Err(Broken("a task was altered".into()).into());
                        }
                        self.popped += 1;
                        if !number.is_multiple_of(self.keep) {
                            ids.push(bytes[id.clone()].to_vec());
                        }
                    }
                    self.awaited = Awaited::Nothing;
                }
                _ => return Err(misfit(bytes, &self.tokens, "pop or ack").into()),
            }
        }
        if !ids.is_empty() {
            resp::request(&mut connection.output, 2 + ids.len());
            resp::word(&mut connection.output, b"RQ.ACK");
            resp::word(&mut connection.output, QUEUE);
            for id in &ids {
                resp::word(&mut connection.output, id);
            }
            connection.flush()?;
            self.awaited = Awaited::Ack(ids.len() as u64);
        }
        Ok(())
    }

    fn ask(&mut self) -> Result<(), Box<dyn Error>> {
        Info::ask(&mut self.connections[OBSERVER].output);
        self.connections[OBSERVER].flush()?;
        self.previous = self.asked;
        self.asked = Instant::now();
        self.asking = true;
        Ok(())
    }

    /// Work was running since the previous request if the server reports it, or has finished some meanwhile.
    fn observe(&mut self) -> Result<(), Box<dyn Error>> {
        while let Some(bytes) = self.connections[OBSERVER].next_reply(&mut self.tokens)? {
            let info = Info::read(bytes, &self.tokens)?;
            let grew = |name| info.number(name) > self.latest.number(name);
            let on = |name| info.number(name).is_some_and(|value| value > 0);
            let span = (self.previous.saturating_duration_since(self.start), self.start.elapsed());
            if on(CHECKPOINT_RUNNING) || grew(CHECKPOINTS_TAKEN) || grew(CHECKPOINT_WRITTEN) {
                self.windows.push(Window { work: Work::Checkpoint, span });
            }
            if on(COPY_RUNNING) || grew(COPIED_WRITTEN) {
                self.windows.push(Window { work: Work::Compaction, span });
            }
            self.latest = info;
            self.asking = false;
        }
        Ok(())
    }

    fn finding(&mut self, process_bytes: u64) -> Finding {
        let grown = |name| Some(self.latest.number(name)? - self.first.number(name)?);
        Finding {
            samples: std::mem::take(&mut self.samples),
            windows: std::mem::take(&mut self.windows),
            is_reported: self.latest.number(CHECKPOINT_RUNNING).is_some(),
            checkpoints: grown(CHECKPOINTS_TAKEN),
            pushed_bytes: self.pushed * self.payload.len() as u64,
            process_bytes,
            written: grown(LOG_WRITTEN)
                .zip(grown(CHECKPOINT_WRITTEN))
                .zip(grown(COPIED_WRITTEN))
                // Compacted data is written to the log too, in addition to the requests.
                .map(|((log, checkpoints), copied)| Written {
                    log: log.saturating_sub(copied),
                    checkpoints,
                    copied,
                }),
        }
    }
}
