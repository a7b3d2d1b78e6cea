//! What a seed does.

use std::time::Duration;

use fastrand::Rng;
use sureq_engine::Options;
use sureq_engine::log::Durability;

/// A command of a client, by kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Push,
    Add,
    Pop,
    WaitingPop,
    Ack,
    Extend,
    Return,
    Fail,
    Cancel,
    Bury,
    Revive,
    Delete,
    Purge,
    Look,
    Rest,
}

const KINDS: [Kind; 15] = [
    Kind::Push,
    Kind::Add,
    Kind::Pop,
    Kind::WaitingPop,
    Kind::Ack,
    Kind::Extend,
    Kind::Return,
    Kind::Fail,
    Kind::Cancel,
    Kind::Bury,
    Kind::Revive,
    Kind::Delete,
    Kind::Purge,
    Kind::Look,
    Kind::Rest,
];

/// How one life of a store ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum End {
    /// It is closed.
    Closed,
    /// The process is killed after so many calls to the disk: what was written is there.
    Killed(u64),
    /// The power is cut after so many calls: what was not synced may be there.
    PowerCut(u64),
}

/// All that a seed decides before it begins.
#[derive(Clone, Debug)]
pub(crate) struct Plan {
    pub(crate) options: Options,
    pub(crate) yield_every: u32,
    pub(crate) step_max: Duration,
    pub(crate) clients: usize,
    pub(crate) queues: usize,
    /// How often each kind of command is chosen, one entry for each time.
    pub(crate) kinds: Vec<Kind>,
    pub(crate) commands: usize,
    /// How many bytes a payload has at most.
    pub(crate) payload_max: usize,
    /// How many tasks a push or a pop is about at most.
    pub(crate) batch_max: usize,
    pub(crate) lease_max_ms: u64,
    pub(crate) delay_max_ms: u64,
    /// How long a client rests at most.
    pub(crate) rest_max: Duration,
    /// How long a sync takes at most, and how long one in a hundred does.
    pub(crate) sync_max: Duration,
    pub(crate) slow_sync_max: Duration,
    pub(crate) lives: Vec<End>,
}

impl Plan {
    pub(crate) fn draw(rng: &mut Rng) -> Self {
        let durability = [Durability::Always, Durability::Always, Durability::Interval, Durability::None];
        let durability = durability[rng.usize(..durability.len())];
        let options = Options {
            durability,
            segment_bytes: Some((64 << 10) << rng.u32(..4)),
            cache_bytes: [0, 4 << 10, 1 << 20][rng.usize(..3)],
            ..Options::default()
        };
        // A subset of the commands, each as often as chance has it.
        let mut kinds: Vec<Kind> = vec![Kind::Push, Kind::Pop, Kind::Ack];
        for kind in KINDS {
            let weight = [0, 0, 1, 2, 5][rng.usize(..5)];
            kinds.extend(std::iter::repeat_n(kind, weight));
        }
        let lives = (0..rng.usize(1..6)).map(|_| Self::draw_end(durability, rng)).collect();
        Self {
            options,
            yield_every: 1 << rng.u32(..7),
            step_max: Duration::from_micros(1 << rng.u32(..8)),
            clients: rng.usize(1..5),
            queues: [1, 1, 2, 5, 50][rng.usize(..5)],
            kinds,
            commands: 10 << rng.u32(..6),
            payload_max: [8, 100, 1_000, 20_000, 200_000][rng.usize(..5)],
            batch_max: [1, 3, 20, 1_500][rng.usize(..4)],
            lease_max_ms: [10, 1_000, 100_000][rng.usize(..3)],
            delay_max_ms: [1, 100, 10_000, 1_000_000][rng.usize(..4)],
            rest_max: Duration::from_millis([1, 100, 10_000, 600_000][rng.usize(..4)]),
            sync_max: Duration::from_micros([0, 100, 10_000][rng.usize(..3)]),
            slow_sync_max: Duration::from_millis([0, 100, 2_000][rng.usize(..3)]),
            lives,
        }
    }

    fn draw_end(durability: Durability, rng: &mut Rng) -> End {
        let calls = 1 << rng.u32(2..14);
        match rng.u32(..5) {
            0 => End::Closed,
            // Where nothing is promised, nothing can be broken but by a store that is closed.
            _ if durability == Durability::None => End::Closed,
            // Where a confirmation does not promise that it is on disk, a power cut may take it back.
            1 | 2 if durability == Durability::Always => End::PowerCut(rng.u64(1..calls)),
            _ => End::Killed(rng.u64(1..calls)),
        }
    }
}
