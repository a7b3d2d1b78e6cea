//! Queues on one Redis: sureq and the published crate `redis-work-queue`, in turns. It measures a worker that takes
//! and finishes tasks.

use std::error::Error;
use std::time::{Duration, Instant};

use redis_0_26::AsyncCommands as _;
use redis_work_queue::{Item, KeyPrefix, WorkQueue};
use sureq::home_api::command::{AckScope, Command, IdForm, LeaseAsk, Pop, TaskRefs};
use sureq::home_api::reply::TaskView;
use sureq::home_api::{Payload, Replies, Reply};
use sureq::{Home, Worker};

use crate::procstat::cpu_time;
use crate::servers::{Installation, Server};
use crate::tables::{count, median, micros, table, times};
use crate::targets::Target;
use crate::{Common, Outcome, machine};

/// Options of `redis`.
#[derive(clap::Args)]
pub(crate) struct Arguments {
    /// Number of repetitions; the table shows medians
    #[arg(long, value_name = "N", default_value_t = 5)]
    reps: usize,
    /// Number of tasks in each run
    #[arg(long, value_name = "N", default_value_t = 10_000)]
    tasks: usize,
    #[command(flatten)]
    common: Common,
}

const PAYLOAD: [u8; 64] = [b'x'; 64];
const LEASE_MS: u64 = 60_000;
/// The number of tasks in a batch.
const BATCH: u32 = 100;
/// The number of tasks that are pushed at once.
const FILL: usize = 500;

/// Tasks per second, relative to those of the peer: one at a time, and in batches.
const AIMS: [f64; 2] = [1.8, 5.0];
/// Round trips per task, one at a time.
const TRIPS_AIM: f64 = 2.0;

#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Peer,
    One,
    Worker,
    Batch,
    SharedOne,
    SharedWorker,
    SharedBatch,
}

impl Kind {
    const ALL: [Self; 7] = [
        Self::Peer,
        Self::One,
        Self::Worker,
        Self::Batch,
        Self::SharedOne,
        Self::SharedWorker,
        Self::SharedBatch,
    ];

    const fn name(self) -> &'static str {
        match self {
            Self::Peer => "redis-work-queue 0.3, lease and complete",
            Self::One => "sureq, POP LEASE and ACK",
            Self::Worker => "sureq, a Worker with one handler",
            Self::Batch => "sureq, POP COUNT 100 and ACK",
            Self::SharedOne => "sureq in the crate's keys, POP LEASE and ACK",
            Self::SharedWorker => "sureq in the crate's keys, a Worker with one handler",
            Self::SharedBatch => "sureq in the crate's keys, POP COUNT 100 and ACK",
        }
    }

    /// The layout in the URL.
    const fn layout(self) -> &'static str {
        match self {
            Self::Peer | Self::SharedOne | Self::SharedWorker | Self::SharedBatch => "work-queue",
            Self::One | Self::Worker | Self::Batch => "sureq",
        }
    }
}

/// The cost of one run.
struct Run {
    kind: Kind,
    per_second: f64,
    /// CPU of Redis per task, in microseconds.
    cpu: f64,
    /// Reads of Redis from its clients, per task.
    trips: f64,
}

/// Runs the measurement and prints the table.
pub(crate) fn run(arguments: &Arguments) -> Result<Outcome, Box<dyn Error>> {
    let place = arguments.common.place()?;
    let versions = place.check(&[Target::Redis])?;
    let mut journal = arguments.common.journal()?;
    let reps = arguments.reps.max(1);
    let mut runs = Vec::new();
    for repetition in 1..=reps {
        for kind in Kind::ALL {
            let run = measure(&place, kind, arguments.tasks.max(1))?;
            eprintln!("{repetition}/{reps} {:<50} {:>8.0} tasks/s", kind.name(), run.per_second);
            journal.write(&run.json())?;
            runs.push(run);
        }
    }
    println!(
        "{}; {}. Medians of {reps} runs of {} tasks.\n",
        machine(),
        versions.join(", "),
        arguments.tasks
    );
    print!("{}", render(&runs));
    Ok(Outcome::of(Vec::new()))
}

fn measure(place: &Installation, kind: Kind, tasks: usize) -> Result<Run, Box<dyn Error>> {
    let server = place.start(Target::Redis)?;
    let url = format!("redis://{}", server.address);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let watch = Watch { server: &server, url: &url };
    match kind {
        Kind::Peer => runtime.block_on(peer(&watch, tasks)),
        Kind::Worker | Kind::SharedWorker => runtime.block_on(worker(&watch, kind, tasks)),
        Kind::One | Kind::SharedOne => ours(&watch, kind, tasks, 1),
        Kind::Batch | Kind::SharedBatch => ours(&watch, kind, tasks, BATCH),
    }
}

/// Measures the cost of a run.
struct Watch<'w> {
    server: &'w Server,
    url: &'w str,
}

struct Begun {
    since: Instant,
    cpu: Duration,
    trips: u64,
}

impl Watch<'_> {
    fn begin(&self) -> Result<Begun, Box<dyn Error>> {
        Ok(Begun { trips: self.trips()?, cpu: cpu_time(self.server.pid())?, since: Instant::now() })
    }

    fn end(&self, begun: &Begun, kind: Kind, tasks: usize) -> Result<Run, Box<dyn Error>> {
        let (elapsed, cpu) = (begun.since.elapsed(), cpu_time(self.server.pid())?.saturating_sub(begun.cpu));
        let (trips, tasks) = (self.trips()? - begun.trips, count(tasks as u64));
        let per_second = tasks / elapsed.as_secs_f64();
        Ok(Run { kind, per_second, cpu: micros(cpu) / tasks, trips: count(trips) / tasks })
    }

    /// The number of reads of Redis from its clients.
    fn trips(&self) -> Result<u64, Box<dyn Error>> {
        let mut connection = redis_0_26::Client::open(self.url)?.get_connection()?;
        let stats: String = redis_0_26::cmd("INFO").arg("stats").query(&mut connection)?;
        let field = stats.lines().find_map(|line| line.strip_prefix("total_reads_processed:"));
        Ok(field.ok_or("Redis does not count its reads")?.trim().parse()?)
    }
}

async fn peer(watch: &Watch<'_>, tasks: usize) -> Result<Run, Box<dyn Error>> {
    let mut db = redis_0_26::Client::open(watch.url)?.get_multiplexed_async_connection().await?;
    let queue = WorkQueue::new(KeyPrefix::from("bench"));
    for first in (0..tasks).step_by(FILL) {
        let mut pipeline = redis_0_26::pipe();
        for _ in first..tasks.min(first + FILL) {
            queue.add_unique_item_to_pipeline(&mut pipeline, &Item::new(Box::from(PAYLOAD)));
        }
        let () = pipeline.query_async(&mut db).await?;
    }
    let begun = watch.begin()?;
    for _ in 0..tasks {
        let lease = Duration::from_millis(LEASE_MS);
        let item = queue.lease(&mut db, Some(Duration::ZERO), lease).await?.ok_or("a task is missing")?;
        if !queue.complete(&mut db, &item).await? {
            return Err("a task was finished by another worker".into());
        }
    }
    let run = watch.end(&begun, Kind::Peer, tasks)?;
    let left: u64 = db.llen("bench:queue").await?;
    if left > 0 { Err("tasks are left over".into()) } else { Ok(run) }
}

/// Opens a home and pushes tasks.
fn filled(watch: &Watch<'_>, kind: Kind, tasks: usize) -> Result<Home, Box<dyn Error>> {
    let home = sureq::open(&format!("{}?layout={}", watch.url, kind.layout()))?;
    let payloads: Vec<&[u8]> = vec![&PAYLOAD; FILL];
    for first in (0..tasks).step_by(FILL) {
        let some = &payloads[..FILL.min(tasks - first)];
        ask(&home, &Command::Push { queue: b"bench", payloads: some })?;
    }
    Ok(home)
}

/// The worker of the library, with one handler that does nothing.
async fn worker(watch: &Watch<'_>, kind: Kind, tasks: usize) -> Result<Run, Box<dyn Error>> {
    let home = filled(watch, kind, tasks)?;
    let worker = Worker::new(&home).concurrency(1).work("bench", async || ());
    let handle = worker.handle();
    let begun = watch.begin()?;
    let done = || handle.status().map_or(0, |status| status.tally.done);
    let all_done = async {
        while done() < tasks as u64 {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    };
    let tally = worker.run_until(all_done).await?;
    let run = watch.end(&begun, kind, tasks)?;
    home.close().map_err(|error| error.to_string())?;
    if tally.done == tasks as u64 { Ok(run) } else { Err(format!("{tasks} tasks: {tally:?}").into()) }
}

fn ours(watch: &Watch<'_>, kind: Kind, tasks: usize, batch: u32) -> Result<Run, Box<dyn Error>> {
    let home = filled(watch, kind, tasks)?;
    let begun = watch.begin()?;
    let mut done = 0;
    while done < tasks {
        let lease = LeaseAsk { ms: Some(LEASE_MS), ..LeaseAsk::NONE };
        let popped = ask(&home, &Command::Pop(Pop { lease, ..Pop::plain(&[b"bench"], batch) }))?;
        let receipt = |task: &TaskView<_>| match &task.foreign_id {
            Some(id) => id.to_vec(),
            None => task.receipt().to_string().into_bytes(),
        };
        let receipts: Vec<Vec<u8>> = popped.tasks.iter().map(receipt).collect();
        let list: Vec<&[u8]> = receipts.iter().map(Vec::as_slice).collect();
        let refs = TaskRefs { list: &list, form: IdForm::Long };
        let acked =
            ask(&home, &Command::Ack { queue: b"bench", tasks: refs, scope: AckScope::LeasedOrLapsed })?;
        if list.is_empty() || acked.indexes.len() != list.len() {
            return Err("a task is missing, or was finished by another worker".into());
        }
        done += list.len();
    }
    let run = watch.end(&begun, kind, tasks)?;
    home.close().map_err(|error| error.to_string())?;
    Ok(run)
}

/// Executes one command.
fn ask(home: &Home, command: &Command<'_>) -> Result<Replies<Payload>, Box<dyn Error>> {
    let mut replies = Replies::default();
    let _ = home.api().execute(std::slice::from_ref(command), &mut replies);
    match replies.list.first() {
        Some(Reply::Refused(no)) => Err(no.to_string().into()),
        _ => Ok(replies),
    }
}

impl Run {
    fn json(&self) -> String {
        let Run { kind, per_second, cpu, trips } = self;
        let name = kind.name();
        format!(
            "{{\"what\":\"{name}\",\"per_second\":{per_second:.1},\"cpu_us\":{cpu:.2},\"trips\":{trips:.3}}}"
        )
    }
}

fn render(runs: &[Run]) -> String {
    let of = |kind: Kind, figure: fn(&Run) -> f64| {
        median(runs.iter().filter(|run| run.kind == kind).map(figure).collect()).unwrap_or(f64::NAN)
    };
    let peer = of(Kind::Peer, |run| run.per_second);
    let rows = Kind::ALL.map(|kind| {
        let ratio = of(kind, |run| run.per_second) / peer;
        let aim = match kind {
            Kind::Peer => String::new(),
            Kind::One | Kind::Worker | Kind::SharedOne | Kind::SharedWorker => {
                format!("{} × in at most {TRIPS_AIM} round trips", AIMS[0])
            }
            Kind::Batch | Kind::SharedBatch => format!("{} ×", AIMS[1]),
        };
        vec![
            kind.name().to_owned(),
            format!("{:.0}", of(kind, |run| run.per_second)),
            times(Some(ratio)),
            aim,
            format!("{:.2}", of(kind, |run| run.trips)),
            format!("{:.1}", of(kind, |run| run.cpu)),
        ]
    });
    let head =
        ["", "tasks/s", "beside the crate", "aim", "round trips per task", "CPU of Redis per task, µs"];
    table(&head, &rows)
}
