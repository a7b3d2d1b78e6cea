//! The plan of a run: drawn from a seed, or read from the file of a stored run.

use std::time::Duration;

use fastrand::Rng;
use serde::{Deserialize, Serialize};
use sureq_engine::Options;
use sureq_engine::log::Durability;

/// A command of a client, by kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Kind {
    Push,
    Add,
    Named,
    At,
    Pop,
    WaitingPop,
    /// Several commands at once.
    Pipeline,
    /// A pipeline whose client is gone before it is answered.
    Cut,
    /// An add with a priority that is ready at once.
    Urgent,
    /// Pushes to many queues at once, or a pop over many queues.
    Wide,
    /// Many workers that start, pop and stop or are lost together.
    Crowd,
    /// A pop whose client is gone before it is answered.
    Vanish,
    Ack,
    Extend,
    Return,
    Fail,
    Cancel,
    Bury,
    Revive,
    Delete,
    Purge,
    Drop,
    Pause,
    Resume,
    /// Many tasks that are all due at the same moment.
    Flood,
    /// A batch of tasks of which nearly all are finished at once, so that segments are left with few live tasks.
    Churn,
    /// A push that leaves hardly any room in the segment, also as the last thing that a client does.
    Fill,
    /// A command about the client's worker.
    Work,
    WorkerPop,
    /// A pop with leases that end with the connection, or the end of the connection.
    Connect,
    StepWall,
    Look,
    Rest,
}

const KINDS: [Kind; 33] = [
    Kind::Push,
    Kind::Add,
    Kind::Named,
    Kind::At,
    Kind::Pop,
    Kind::WaitingPop,
    Kind::Pipeline,
    Kind::Cut,
    Kind::Urgent,
    Kind::Wide,
    Kind::Crowd,
    Kind::Vanish,
    Kind::Ack,
    Kind::Extend,
    Kind::Return,
    Kind::Fail,
    Kind::Cancel,
    Kind::Bury,
    Kind::Revive,
    Kind::Delete,
    Kind::Purge,
    Kind::Drop,
    Kind::Flood,
    Kind::Churn,
    Kind::Fill,
    Kind::Pause,
    Kind::Resume,
    Kind::Work,
    Kind::WorkerPop,
    Kind::Connect,
    Kind::StepWall,
    Kind::Look,
    Kind::Rest,
];

/// How a life of the store ends. A life is the time from one start to the next.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum End {
    /// It is closed.
    Closed,
    /// The process is killed at the nth call to the disk: written data survives.
    Killed(u64),
    /// The power is cut at the nth call: any part of the unsynced data survives.
    PowerCut(u64),
    /// The process is killed at the nth call of a kind.
    KilledAt(Aim, u64),
    /// The power is cut at the nth call of a kind.
    PowerCutAt(Aim, u64),
    /// A thread panics at its nth call to the disk or change of the state.
    Panicked(EngineThread, u64),
}

/// A thread that runs code of the engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum EngineThread {
    Log,
    Preallocator,
    Ticker,
    Loader,
    Oversized,
    Compactor,
    Client,
}

impl EngineThread {
    const ALL: [Self; 7] = [
        Self::Log,
        Self::Preallocator,
        Self::Ticker,
        Self::Loader,
        Self::Oversized,
        Self::Compactor,
        Self::Client,
    ];

    /// The name of the thread.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Log => "sureq-log",
            Self::Preallocator => "sureq-prealloc",
            Self::Ticker => "sureq-ticker",
            Self::Loader => "sureq-loader",
            Self::Oversized => "sureq-oversized",
            Self::Compactor => "sureq-compactor",
            Self::Client => "client",
        }
    }
}

/// The calls that a crash is aimed at. Before each of them the disk has changes that are not durable yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Aim {
    Write,
    Sync,
    Rename,
    Remove,
    SyncDirectory,
}

impl End {
    /// Whether unsynced data may be lost.
    pub(crate) const fn is_power_cut(self) -> bool {
        matches!(self, Self::PowerCut(_) | Self::PowerCutAt(..))
    }

    pub(crate) const fn is_kill(self) -> bool {
        matches!(self, Self::Killed(_) | Self::KilledAt(..))
    }
}

/// The faults of the disk in each life, besides its end.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) struct Faults {
    /// One in this many reads fails, and fewer while the store is opened; 0 for none.
    pub(crate) read_every: u32,
    /// After this many disk calls a sync fails, or a write if it is a multiple of four, and the store must be reopened;
    /// 0 for never.
    pub(crate) broken_at: u64,
    /// For this long there is space for only `room_bytes` more; 0 for no limit.
    pub(crate) full_ms: u64,
    pub(crate) room_bytes: u64,
    /// The longest time that one in a thousand syncs takes.
    pub(crate) hang_max_ms: u64,
}

/// With more queues than this, they are configured only if the plan has settings.
pub(crate) const MANY_QUEUES: usize = 50;

/// The settings of every queue in a run; 0 means no limit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) struct Config {
    pub(crate) ttl_ms: u64,
    pub(crate) max_leased: u64,
    pub(crate) max_length: u64,
    /// Tasks that die go to the next queue; those of the last one stay.
    pub(crate) dead_letter: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Level {
    Always,
    Interval,
    None,
}

impl Level {
    /// Whether confirmed changes survive a life that ended so.
    pub(crate) const fn survives(self, end: End) -> bool {
        match self {
            Self::Always => true,
            Self::Interval => !end.is_power_cut(),
            Self::None => matches!(end, End::Closed),
        }
    }
}

/// Everything that is decided before a run begins.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) struct Plan {
    /// Decides the rest: the order of the threads, the choices of clients, the duration of calls.
    pub(crate) seed: u64,
    pub(crate) durability: Level,
    pub(crate) segment_bytes: u64,
    pub(crate) cache_bytes: usize,
    /// The memory limit, except in the last life; 0 for none.
    #[serde(default)]
    pub(crate) memory_bytes: u64,
    /// A thread is interrupted at one in this many opportunities.
    pub(crate) yield_every: u32,
    /// The most time that passes at each interruption.
    pub(crate) step_max_us: u64,
    pub(crate) clients: usize,
    pub(crate) queues: usize,
    /// The number of different task names.
    pub(crate) names: usize,
    /// The number of commands of each client in a life.
    pub(crate) commands: usize,
    /// The largest payload in bytes.
    pub(crate) payload_max: usize,
    /// The most tasks of a push or a pop.
    pub(crate) batch_max: usize,
    pub(crate) lease_max_ms: u64,
    pub(crate) delay_max_ms: u64,
    /// The longest rest of a client.
    pub(crate) rest_max_ms: u64,
    /// The longest time of a sync, and that of one sync in a hundred.
    pub(crate) sync_max_us: u64,
    pub(crate) slow_sync_max_ms: u64,
    /// The kinds of commands, each as often as its weight.
    pub(crate) kinds: Vec<Kind>,
    pub(crate) lives: Vec<End>,
    pub(crate) faults: Faults,
    pub(crate) config: Config,
}

impl Plan {
    /// Draws the plan of a seed.
    pub(crate) fn draw(seed: u64) -> Self {
        let rng = &mut Rng::with_seed(seed);
        let levels = [Level::Always, Level::Always, Level::Interval, Level::None];
        let durability = levels[rng.usize(..levels.len())];
        // A random subset of the commands, with random weights.
        let mut kinds: Vec<Kind> = vec![Kind::Push, Kind::Pop, Kind::Ack];
        for kind in KINDS {
            let weight = [0, 0, 1, 2, 5][rng.usize(..5)];
            kinds.extend(std::iter::repeat_n(kind, weight));
        }
        let lives = draw_lives(rng);
        let config = Config::draw(rng);
        let queues = [1, 1, 1, 2, 2, 5, 5, 50, 50, 5_000][rng.usize(..10)];
        let cache_bytes = [0, 4 << 10, 1 << 20][rng.usize(..3)];
        let memory_bytes =
            one_in(6, rng, |rng| cache_bytes as u64 + [64 << 10, 1 << 20, 8 << 20][rng.usize(..3)]);
        Self {
            seed,
            durability,
            segment_bytes: draw_segment_bytes(rng),
            cache_bytes,
            memory_bytes,
            yield_every: 1 << rng.u32(..7),
            step_max_us: 1 << rng.u32(..8),
            clients: rng.usize(1..5),
            queues: if config.dead_letter { queues.max(2) } else { queues },
            names: [1, 10, 1_000][rng.usize(..3)],
            commands: 10 << rng.u32(..6),
            payload_max: [8, 100, 1_000, 20_000, 200_000][rng.usize(..5)],
            batch_max: [1, 3, 20, 1_500][rng.usize(..4)],
            lease_max_ms: [10, 1_000, 100_000][rng.usize(..3)],
            delay_max_ms: [1, 100, 10_000, 1_000_000][rng.usize(..4)],
            rest_max_ms: [1, 100, 10_000, 600_000][rng.usize(..4)],
            sync_max_us: [0, 100, 10_000][rng.usize(..3)],
            slow_sync_max_ms: [0, 100, 2_000][rng.usize(..3)],
            kinds,
            lives,
            faults: Faults::draw(durability, rng),
            config,
        }
    }

    /// The options with which the store is opened.
    pub(crate) fn options(&self, is_last: bool) -> Options {
        let memory_bytes = if is_last { 0 } else { self.memory_bytes };
        Options {
            durability: match self.durability {
                Level::Always => Durability::Always,
                Level::Interval => Durability::Interval,
                Level::None => Durability::None,
            },
            segment_bytes: Some(self.segment_bytes),
            cache_bytes: self.cache_bytes,
            memory_bytes_max: Some(memory_bytes).filter(|&bytes| bytes > 0),
            ..Options::default()
        }
    }

    /// Whether a kind of command is among those of the run.
    pub(crate) fn has(&self, kind: Kind) -> bool {
        self.kinds.contains(&kind)
    }

    pub(crate) const fn step_max(&self) -> Duration {
        Duration::from_micros(self.step_max_us)
    }
}

fn draw_end(rng: &mut Rng) -> End {
    let calls = 1 << rng.u32(2..14);
    // Directories are synced rarely, so a crash that is aimed at that comes early.
    let aims = [
        (Aim::Write, 10),
        (Aim::Sync, 10),
        (Aim::Sync, 10),
        (Aim::Rename, 5),
        (Aim::Remove, 5),
        (Aim::SyncDirectory, 5),
        (Aim::SyncDirectory, 5),
    ];
    let (aim, bits) = aims[rng.usize(..aims.len())];
    let most = 1 << rng.u32(..=bits);
    let nth = rng.u64(1..=most);
    match rng.u32(..12) {
        0 => End::Closed,
        11 => {
            let thread = EngineThread::ALL[rng.usize(..EngineThread::ALL.len())];
            let most = 1 << rng.u32(..10);
            End::Panicked(thread, rng.u64(1..=most))
        }
        1..5 => End::PowerCut(rng.u64(1..calls)),
        5..8 => End::PowerCutAt(aim, nth),
        8 => End::KilledAt(aim, nth),
        _ => End::Killed(rng.u64(1..calls)),
    }
}

/// Draws the size of segments. With small ones, rare cases at the end of a segment become frequent: the next segment
/// begins, the events of a start do not fit, a push is larger than a segment.
fn draw_segment_bytes(rng: &mut Rng) -> u64 {
    if rng.u32(..3) == 0 { (4 << 10) << rng.u32(..4) } else { (64 << 10) << rng.u32(..4) }
}

/// How the lives of a run end. One in eight of those that crash is followed by three that crash while the store is
/// opened.
fn draw_lives(rng: &mut Rng) -> Vec<End> {
    let mut lives = Vec::new();
    for _ in 0..rng.usize(1..6) {
        lives.push(draw_end(rng));
        if lives.last() != Some(&End::Closed) && rng.u32(..8) == 0 {
            let early = |rng: &mut Rng| {
                let calls = rng.u64(1..100);
                if rng.bool() { End::PowerCut(calls) } else { End::Killed(calls) }
            };
            lives.extend((0..3).map(|_| early(rng)));
        }
    }
    lives
}

/// Draws a value in one of `n` cases, and the default in all others.
fn one_in<T: Default>(n: u32, rng: &mut Rng, draw: impl FnOnce(&mut Rng) -> T) -> T {
    if rng.u32(..n) == 0 { draw(rng) } else { T::default() }
}

impl Faults {
    fn draw(durability: Level, rng: &mut Rng) -> Self {
        let broken_at = one_in(4, rng, |rng| {
            let calls = 1 << rng.u32(4..12);
            rng.u64(1..calls)
        });
        Self {
            read_every: one_in(4, rng, |rng| 1 << rng.u32(1..8)),
            // At the level `none` nothing is promised, so a failed write proves nothing.
            broken_at: if durability == Level::None { 0 } else { broken_at },
            full_ms: one_in(6, rng, |rng| rng.u64(1..60_000)),
            room_bytes: rng.u64(..2 << 20),
            hang_max_ms: one_in(6, rng, |_| 60_000),
        }
    }
}

impl Config {
    fn draw(rng: &mut Rng) -> Self {
        // With dead letters, many tasks should die.
        let dead_letter = one_in(4, rng, |_| true);
        let ttl_ms =
            one_in(if dead_letter { 2 } else { 4 }, rng, |rng| [1, 50, 5_000, 500_000][rng.usize(..4)]);
        Self {
            ttl_ms,
            max_leased: one_in(4, rng, |rng| rng.u64(1..20)),
            max_length: one_in(8, rng, |rng| rng.u64(1..2_000)),
            dead_letter,
        }
    }
}
