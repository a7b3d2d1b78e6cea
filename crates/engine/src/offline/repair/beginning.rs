//! Chooses the state that a repair begins with.

use std::collections::{BTreeMap, BTreeSet};

use sureq_core::event::{Event, QueueNo};
use sureq_core::{Broker, TaskId, codec};

use super::salvage::{Salvage, ids_of, is_trusted};
use super::{Log, Steps};
use crate::checkpoint::Checkpoints;
use crate::compaction::live::LiveBodies;
use crate::compaction::snapshot::Snapshot;
use crate::log::Position;
use crate::log::salvage::Piece;
use crate::offline::check::state;
use crate::payload::body::Body;
use crate::payload::payload_scan::payloads_of;

/// The state that a repair begins with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Beginning {
    /// An undamaged checkpoint.
    Checkpoint { number: u64 },
    /// An empty state: the log reaches back to its first event.
    Log,
    /// A checkpoint without its lost parts. The tasks in those are searched for in the log.
    PartOfCheckpoint {
        number: u64,
        /// The number of lost parts.
        lost: usize,
    },
    /// An empty state, although the beginning of the log is lost.
    Nothing,
}

/// Finds the best available beginning.
pub(super) fn find(
    log: &Log<'_>,
    checkpoints: &Checkpoints,
    ids_end: TaskId,
    steps: &mut Steps<'_>,
) -> (Beginning, Salvage) {
    for number in checkpoints.numbers() {
        if let Ok(found) = state::restore(checkpoints, number) {
            let (broker, position) = found.into_parts();
            return (Beginning::Checkpoint { number }, Salvage::from_whole(broker, position, ids_end));
        }
    }
    let needed = checkpoints.positions().max().unwrap_or_default();
    if whole_upto(log, steps) >= needed.max(Position(1)) {
        let salvage = Salvage::from_whole(Broker::default(), Position::START, ids_end);
        return (Beginning::Log, salvage);
    }
    for number in checkpoints.numbers() {
        let mut position = Position::START;
        let part = checkpoints.load_part(number, |loaded| {
            position = loaded.position;
            Snapshot::load_partly(loaded)
        });
        if let Ok((broker, live, lost)) = part {
            let mut salvage = Salvage::from_part(broker, position, ids_end);
            take_in_lost(log, &mut salvage, &live, position, steps);
            return (Beginning::PartOfCheckpoint { number, lost }, salvage);
        }
    }
    (Beginning::Nothing, Salvage::from_part(Broker::default(), Position::START, ids_end))
}

/// The names of queues in checkpoints. The newest checkpoint takes precedence.
pub(super) fn names(checkpoints: &Checkpoints) -> BTreeMap<QueueNo, Vec<u8>> {
    let mut names = BTreeMap::new();
    for number in checkpoints.numbers().into_iter().rev() {
        let found = checkpoints.load_part(number, |loaded| Ok(Snapshot::names(&loaded.manifest)));
        names.extend(found.unwrap_or_default());
    }
    names
}

/// The position up to which the log is complete from its first event on.
fn whole_upto(log: &Log<'_>, steps: &mut Steps<'_>) -> Position {
    let mut upto = Position::START;
    log.visit(steps, &mut |piece| {
        if piece.first == upto && is_trusted(piece) {
            upto = piece.end();
        }
    });
    upto
}

/// Adds tasks that may have been in the lost parts of a checkpoint at `position`: tasks that were recorded before,
/// that no event has removed, and whose file has more live payloads, as the checkpoint counts them, than the
/// remaining tasks explain.
fn take_in_lost(
    log: &Log<'_>,
    salvage: &mut Salvage,
    live: &LiveBodies,
    position: Position,
    steps: &mut Steps<'_>,
) {
    let short = files_with_more(log, live, &salvage.broker);
    let mut candidates: BTreeMap<TaskId, (QueueNo, u64)> = BTreeMap::new();
    log.visit(steps, &mut |piece| {
        if piece.first < position && !is_trusted(piece) {
            salvage.gap_before(piece);
        }
        each_event(piece, &mut |at, event| {
            match *event {
                Event::QueueMade { queue, .. } | Event::QueueGone(queue) | Event::QueueDropped(queue) => {
                    // The queue has no older tasks left: they were removed or moved before.
                    candidates.retain(|_, (of, _)| *of != queue);
                }
                Event::Moved { id, to, .. } => {
                    candidates.get_mut(&id).into_iter().for_each(|(of, _)| *of = to);
                }
                Event::Finished { .. } | Event::Removed { .. } => {
                    let (_, ids) = ids_of(event).expect("it is about tasks");
                    ids.iter().for_each(|id| _ = candidates.remove(&id));
                }
                _ if at < position => payloads_of(event, &mut |queue, id, _| {
                    candidates.insert(id, (queue, piece.place.segment));
                }),
                _ => {}
            }
        });
    });
    let wanted: BTreeSet<TaskId> = candidates
        .into_iter()
        .filter(|(_, (_, file))| short.contains(file))
        .map(|(id, _)| id)
        .filter(|&id| !salvage.broker.queues().any(|(_, queue)| queue.state_of(id).is_some()))
        .collect();
    if !wanted.is_empty() {
        log.visit(steps, &mut |piece| {
            each_event(piece, &mut |at, event| {
                if at < position {
                    salvage.take_doubtful(event, &wanted, piece);
                }
            });
        });
    }
    salvage.unnamed = unnamed(log, live, &salvage.broker);
}

/// The number of payloads that are counted as live but belong to no task of this broker, over all files.
fn unnamed(log: &Log<'_>, live: &LiveBodies, broker: &Broker<Body>) -> u64 {
    let (found, files) = (bodies_of(broker), log.files());
    let has_file = |number: u64| files.iter().any(|(numbers, _)| numbers.contains(&number));
    let lost_files =
        live.segments().map(|(number, _)| number..=number).filter(|numbers| !has_file(*numbers.start()));
    let groups = files.iter().map(|(numbers, _)| numbers.clone()).chain(lost_files);
    groups.map(|numbers| live.within(numbers.clone()).tasks.saturating_sub(found.within(numbers).tasks)).sum()
}

/// The payloads of this broker's tasks.
fn bodies_of(broker: &Broker<Body>) -> LiveBodies {
    let mut found = LiveBodies::default();
    broker.bodies(&mut |body| body.place().into_iter().for_each(|place| found.add(place)));
    found
}

/// Visits the events of a frame with their positions, if the frame can be trusted.
fn each_event(piece: &Piece<'_>, visit: &mut dyn FnMut(Position, &Event<'_>)) {
    if !is_trusted(piece) {
        return;
    }
    let mut rest = piece.body;
    for position in piece.first.0..piece.end().0 {
        match codec::decode(rest, |event| visit(Position(position), event)) {
            Ok(((), behind)) => rest = behind,
            Err(_) => return,
        }
    }
}

/// The files in which more payloads are counted as live than this broker's tasks have there.
fn files_with_more(log: &Log<'_>, live: &LiveBodies, broker: &Broker<Body>) -> BTreeSet<u64> {
    let found = bodies_of(broker);
    let files = log.files().into_iter();
    let is_short = |numbers: &std::ops::RangeInclusive<u64>| {
        live.within(numbers.clone()).tasks > found.within(numbers.clone()).tasks
    };
    files.filter(|(numbers, _)| is_short(numbers)).map(|(_, file)| file).collect()
}
