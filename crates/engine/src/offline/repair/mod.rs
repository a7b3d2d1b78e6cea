//! Saves as much as possible of a damaged store into a new one, and reports the losses. The damaged store is not
//! changed.
//!
//! The map:
//! - [`repair()`] (here) finds the best beginning, replays the log, and writes the new store.
//! - `beginning` chooses the beginning: a checkpoint, the log from its first event, parts of a checkpoint, or
//!   nothing.
//! - `salvage` rebuilds the state from a log with gaps.
//! - `rebuild` writes the new store.
//!
//! The new store has a new uuid, so that a start refuses files of the old store that are copied into it. Its
//! incarnation and its id mark are above the old ones, so that no receipt and no id repeats.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::ops::RangeInclusive;
use std::sync::Arc;

use sureq_core::event::QueueNo;
use sureq_core::{LogTime, Now, TaskId, WallTime, codec};

use crate::checkpoint::Checkpoints;
use crate::clock::Clock;
use crate::commit::preallocator::mark_ahead_of;
use crate::disk::Disk;
use crate::fault::{Fault, OpenError};
use crate::log::Position;
use crate::log::salvage::{Content, Found, Piece, find_segments};
use crate::offline::backup::clear;
use crate::offline::check::payloads::Payloads;
use crate::offline::check::{Identity, Progress, Report, Steps, check, identify, state};
use crate::offline::unfinished;
use crate::payload::body::Stored;
use crate::store::StoreValues;

mod beginning;
mod rebuild;
mod salvage;

pub use beginning::Beginning;
use rebuild::Source;
pub use salvage::Gap;
use salvage::{Salvage, believable_payloads, is_trusted, place_of};

/// If the id mark is lost, ids are plausible up to this far ahead of the clock.
const IDS_AHEAD_MS: u64 = 86_400_000;

#[derive(Clone, Debug)]
pub struct Repaired {
    /// The state that the repair began with.
    pub beginning: Beginning,
    /// The lost events.
    pub gaps: Vec<Gap>,
    /// Known tasks that could not be saved.
    pub lost: Vec<Lost>,
    /// Saved tasks that may have been finished or removed in a gap: they may be executed twice.
    pub doubtful: Vec<Doubtful>,
    /// The number of tasks of a damaged checkpoint of which not even the ids are left.
    pub unnamed: u64,
    /// The replacement names of queues whose names are lost.
    pub nameless: Vec<Vec<u8>>,
    /// The result of a check of the new store.
    pub report: Report,
}

/// A task that could not be saved.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Lost {
    pub queue: Vec<u8>,
    pub id: TaskId,
    pub why: String,
}

/// A task that was saved, but may have been finished.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Doubtful {
    pub queue: Vec<u8>,
    pub id: TaskId,
}

impl Repaired {
    /// Whether the new store contains everything that the old one did.
    pub fn is_complete(&self) -> bool {
        let nothing_lost = self.lost.is_empty() && self.unnamed == 0 && self.gaps.is_empty();
        nothing_lost && self.doubtful.is_empty() && self.nameless.is_empty()
    }
}

/// Saves as much as possible of the store in `from` into a new store in `to`, which must be empty. Does not change
/// `from`. On an error, removes everything that it wrote.
pub fn repair(
    from: &Arc<dyn Disk>,
    to: &Arc<dyn Disk>,
    clock: &dyn Clock,
    progress: &mut Progress<'_>,
) -> Result<Repaired, OpenError> {
    let repaired = unfinished::begin(&**to).map_err(OpenError::from);
    let repaired = repaired.and_then(|()| save(from, to, clock, progress));
    if repaired.is_err() {
        // The first error is the one to report, even if this fails too.
        let _ = clear(&**to);
    }
    repaired
}

fn save(
    from: &Arc<dyn Disk>,
    to: &Arc<dyn Disk>,
    clock: &dyn Clock,
    progress: &mut Progress<'_>,
) -> Result<Repaired, OpenError> {
    let (Identity { uuid, values }, _) = identify(&**from, &from.list()?)?;
    let uuid = uuid.unwrap_or_default();
    let wall_ms = clock.wall_ms();
    let mut steps = Steps::new(progress);
    let log = Log { disk: from, segments: find_segments(&**from, uuid)? };
    let (checkpoints, _) = Checkpoints::look(Arc::clone(from), uuid)?;
    steps.begin("looking for a beginning", 0);
    let (beginning, mut salvage) = beginning::find(&log, &checkpoints, ids_end(values, wall_ms), &mut steps);
    salvage.names = beginning::names(&checkpoints);
    log.replay(&mut salvage, &checkpoints, &mut steps);
    salvage.broker.refresh_all();

    let mut payloads = Payloads::new(Arc::clone(from), log.certain_files());
    let elsewhere = log.find_elsewhere(&salvage, &mut payloads, &mut steps);
    let values = values_of_new(to, values, &salvage, wall_ms)?;
    steps.begin("writing the new store", 0);
    let source = Source {
        broker: &salvage.broker,
        payloads: &mut payloads,
        elsewhere: &elsewhere,
        values,
        last_id: salvage.broker.last_id(),
        segment_bytes: log.segment_bytes(),
    };
    let lost = rebuild::rebuild(source, to, &mut steps)?.lost;
    unfinished::end(&**to)?;
    let report = check(to, progress)?;
    let gone: BTreeSet<TaskId> = lost.iter().map(|lost| lost.id).collect();
    let doubtful = doubtful(&salvage, &gone);
    let gaps = salvage.all_gaps();
    let Salvage { nameless, unnamed, .. } = salvage;
    let nameless = nameless.into_iter().collect();
    Ok(Repaired { beginning, gaps, lost, doubtful, unnamed, nameless, report })
}

/// The first id that cannot have been assigned.
fn ids_end(values: Option<StoreValues>, wall_ms: u64) -> TaskId {
    let mark =
        values.filter(|values| values.id_mark > 0).and_then(|values| TaskId::at_or_below(values.id_mark));
    mark.or_else(|| TaskId::new(wall_ms.saturating_add(IDS_AHEAD_MS), 1)).unwrap_or(TaskId::LAST)
}

/// The identity of the new store.
fn values_of_new(
    to: &Arc<dyn Disk>,
    old: Option<StoreValues>,
    salvage: &Salvage,
    wall_ms: u64,
) -> Result<StoreValues, Fault> {
    let broker = &salvage.broker;
    let (uuid, fresh_key) = (to.entropy()?, to.entropy()?);
    let last = broker.last_id();
    let mark = if let Some(old) = old {
        old.id_mark.max(last.successor().unwrap_or(TaskId::LAST).raw())
    } else {
        let now = Now { log: LogTime(wall_ms.max(broker.clock().0)), wall: WallTime(wall_ms) };
        mark_ahead_of(last, now).raw()
    };
    let before = old.map_or(wall_ms, |old| old.incarnation).max(broker.incarnation());
    Ok(StoreValues {
        uuid,
        incarnation: before.saturating_add(1),
        id_mark: mark,
        log_time: old.map_or(0, |old| old.log_time).max(broker.clock().0),
        // Task names that are payload hashes depend on the key.
        hash_key: old.map_or(fresh_key, |old| old.hash_key),
    })
}

fn doubtful(salvage: &Salvage, gone: &BTreeSet<TaskId>) -> Vec<Doubtful> {
    let mut doubtful = Vec::new();
    salvage.broker.export(&mut |_| Box::default(), &mut |event| {
        if let sureq_core::Event::Task(task) = event
            && salvage.is_doubtful(task.id)
            && !gone.contains(&task.id)
        {
            let queue = salvage.broker.name_of(task.queue).unwrap_or_default().to_vec();
            doubtful.push(Doubtful { queue, id: task.id });
        }
    });
    doubtful.sort_by(|a, b| (&a.queue, a.id).cmp(&(&b.queue, b.id)));
    doubtful
}

/// The readable part of a log.
struct Log<'l> {
    disk: &'l Arc<dyn Disk>,
    segments: Vec<Found>,
}

impl Log<'_> {
    fn parts(&self) -> impl Iterator<Item = &Found> {
        self.segments.iter().filter(|segment| segment.is_part())
    }

    /// The segment numbers that each file replaces.
    fn files(&self) -> Vec<(RangeInclusive<u64>, u64)> {
        self.parts().map(|segment| (segment.first_number..=segment.number, segment.number)).collect()
    }

    /// Like [`Self::files`], but without guesses: the wrong segment may have the payload of another task at the same
    /// place.
    fn certain_files(&self) -> Vec<(RangeInclusive<u64>, u64)> {
        let certain = |segment: &Found| segment.header.map_or(segment.number, |header| header.first_number);
        self.parts().map(|segment| (certain(segment)..=segment.number, segment.number)).collect()
    }

    /// Visits every frame of every readable segment. An unreadable segment is skipped, and its events show as a gap.
    fn visit(&self, steps: &mut Steps<'_>, visit: &mut dyn FnMut(&Piece<'_>)) -> Reach {
        let mut reach = Reach::default();
        for segment in self.parts() {
            reach.is_open = false;
            if let Some(header) = segment.header {
                reach.known = reach.known.max(header.first).max(header.synced);
            }
            if let Ok(content) = Content::load(&**self.disk, segment) {
                let gone = content.visit(visit);
                reach.known = reach.known.max(gone.synced);
                // An incomplete frame at the end may have been complete once.
                reach.is_open = gone.is_sealed || gone.is_frayed;
            }
            steps.step(segment.bytes);
        }
        reach
    }

    /// The size that most segments have.
    fn segment_bytes(&self) -> Option<u64> {
        let mut counts: BTreeMap<u64, usize> = BTreeMap::new();
        for header in self.parts().filter_map(|segment| segment.header) {
            *counts.entry(header.bytes).or_default() += 1;
        }
        counts.into_iter().max_by_key(|&(_, count)| count).map(|(bytes, _)| bytes)
    }

    fn bytes(&self) -> u64 {
        self.parts().map(|segment| segment.bytes).sum()
    }

    /// Replays the log to its end.
    fn replay(&self, salvage: &mut Salvage, checkpoints: &Checkpoints, steps: &mut Steps<'_>) {
        steps.begin("reading the log", self.bytes());
        let reach = self.visit(steps, &mut |piece| salvage.take(piece));
        let checkpoint = checkpoints.positions().max().unwrap_or_default();
        let known = reach.known.max(checkpoint);
        if salvage.position() < known {
            salvage.gap(Some(known));
        }
        let has_torn = self.segments.iter().any(|segment| !segment.is_part() && segment.header.is_none());
        if reach.is_open && !has_torn {
            salvage.gap(None);
        }
    }

    /// Finds copies of payloads that cannot be read at their places, as compaction leaves them. Maps each place to
    /// that of a copy.
    fn find_elsewhere(
        &self,
        salvage: &Salvage,
        payloads: &mut Payloads,
        steps: &mut Steps<'_>,
    ) -> HashMap<Stored, Stored> {
        let mut wanted: BTreeMap<TaskId, Stored> = BTreeMap::new();
        steps.begin("reading payloads", 0);
        let mut bad = |_: QueueNo, id, place, _| _ = wanted.insert(id, place);
        state::read_payloads(&salvage.broker, payloads, &mut bad, &mut |bytes| steps.step(bytes));
        let mut elsewhere = HashMap::new();
        if wanted.is_empty() {
            return elsewhere;
        }
        steps.begin("looking for other copies", self.bytes());
        self.visit(steps, &mut |piece| {
            let (mut rest, is_trusted) = (piece.body, is_trusted(piece));
            while let Ok(((), behind)) = codec::decode(rest, |event| {
                believable_payloads(event, piece.body, is_trusted, &mut |_, id, payload| {
                    if let Some(place) = wanted.get(&id)
                        && payload.len() == place.len as usize
                        && let Some(found) = place_of(piece, payload)
                    {
                        elsewhere.insert(*place, found);
                    }
                });
            }) {
                rest = behind;
            }
        });
        elsewhere
    }
}

/// How far a log is known to have reached.
#[derive(Default)]
struct Reach {
    /// All events before this position existed once.
    known: Position,
    /// Whether its last segment refers to frames that are missing.
    is_open: bool,
}
