//! What a store tells of itself: for operators, and for whoever measures it.

use std::sync::atomic::Ordering::Relaxed;

use crate::engine::Engine;
use crate::loader::Loader;
use crate::log::Position;
use crate::shared::{Shared, State};

/// There is room again when this part of the memory is free.
const ROOM_AGAIN_PART: u64 = 32;

/// How a store is doing. Counts are since it was opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Status {
    /// The position after the last event, durable or not.
    pub position: Position,
    /// Where the newest checkpoint stands, if one was taken.
    pub checkpoint: Position,
    /// How many checkpoints were taken.
    pub checkpoints: u64,
    /// Whether one is being taken.
    pub is_checkpointing: bool,
    /// Whether tasks are being copied forward.
    pub is_copying: bool,
    /// Bytes written to the log.
    pub logged_bytes: u64,
    /// Bytes of the log that a start would read.
    pub since_checkpoint_bytes: u64,
    /// The next checkpoint is taken when it is so many.
    pub checkpoint_due_bytes: u64,
    /// Bytes written to checkpoints.
    pub checkpoint_bytes: u64,
    /// Bytes of the log by which tasks were copied forward.
    pub copied_bytes: u64,
    /// Segments of the log.
    pub segments: u64,
    /// Their bytes.
    pub segments_bytes: u64,
    /// Bytes that the tasks which are there would take up in the log.
    pub live_bytes: u64,
    /// Payloads in memory.
    pub cache_bytes: u64,
    /// Memory that is accounted for: tasks, workers, payloads, waiting pops, connections.
    pub memory_bytes: u64,
    /// What it may be at most; 0 is no limit.
    pub memory_bytes_max: u64,
    /// Whether pushes are refused because the disk is full.
    pub is_full: bool,
    /// How many bytes of the disk were free when that was last looked at, some seconds ago at most.
    pub disk_free_bytes: u64,
    /// The size of a new segment.
    pub segment_bytes: u64,
    /// Reads of the log that failed.
    pub read_errors: u64,
    /// Tasks that are dead because their payloads could not be read.
    pub unreadable_tasks: u64,
    /// Segments that are kept because tasks cannot be copied out of them.
    pub unreadable_segments: u64,
}

impl Engine {
    /// How the store is doing.
    pub fn status(&self) -> Status {
        let shared = &self.shared;
        let state = shared.lock();
        let tidying = &shared.tidying;
        Status {
            position: state.tape.end(),
            checkpoint: Position(tidying.checkpoint.load(Relaxed)),
            checkpoints: tidying.taken.load(Relaxed),
            is_checkpointing: tidying.is_checkpointing.load(Relaxed),
            is_copying: tidying.is_copying.load(Relaxed),
            logged_bytes: state.logged_bytes,
            since_checkpoint_bytes: tidying.since_checkpoint(state.logged_bytes),
            checkpoint_due_bytes: tidying.due.load(Relaxed),
            checkpoint_bytes: tidying.checkpoint_bytes.load(Relaxed),
            copied_bytes: tidying.copied_bytes.load(Relaxed),
            segments: state.segments.len() as u64,
            segments_bytes: state.segments.iter().map(|segment| segment.bytes).sum(),
            live_bytes: state.tape.live.total().bytes,
            cache_bytes: shared.cached(&state),
            memory_bytes: shared.memory(&state),
            memory_bytes_max: shared.memory_max.unwrap_or(0),
            is_full: state.no_space,
            disk_free_bytes: shared.keeper.disk_free_bytes.load(Relaxed),
            segment_bytes: shared.keeper.segment_bytes,
            read_errors: shared.read_faults.errors(),
            unreadable_tasks: shared.read_faults.dead(),
            unreadable_segments: state.unreadable.len() as u64,
        }
    }

    /// Counts memory that something outside holds on behalf of those who use the store, connections for one: so much, and
    /// not so much as before.
    pub fn charge(&self, bytes: usize, before: usize) {
        let charged = &self.shared.charged;
        if bytes > before {
            charged.fetch_add(bytes - before, Relaxed)
        } else {
            charged.fetch_sub(before - bytes, Relaxed)
        };
    }
}

impl Shared {
    /// Payloads in memory: those in the cache, and those that are on their way there.
    fn cached(&self, state: &State) -> u64 {
        let arrived = self.loader.as_ref().map_or(0, Loader::arrived_bytes);
        (state.cache.bytes() + arrived) as u64
    }

    /// The memory that is accounted for.
    pub(crate) fn memory(&self, state: &State) -> u64 {
        let charged = self.charged.load(Relaxed) as u64;
        let waiting = state.line.memory() as u64;
        state.broker.memory() + self.cached(state) + state.tape.bytes() as u64 + waiting + charged
    }

    /// What the operator is to hear about memory, if anything, after commands some of which may have been refused for want of
    /// it. There is room again when there is a little: who is at the limit goes back and forth across it.
    pub(crate) fn note_memory(&self, state: &mut State, is_refused: bool) -> Option<String> {
        let max = self.memory_max?;
        if is_refused && !state.no_memory {
            state.no_memory = true;
            let mb = max >> 20;
            return Some(format!(
                "the {mb} MB of --memory are used up: pushes and pops that wait are refused until workers catch up"
            ));
        }
        if state.no_memory && self.memory(state) < max - max / ROOM_AGAIN_PART {
            state.no_memory = false;
            return Some("there is memory again: pushes are accepted".to_owned());
        }
        None
    }

    /// Whether it is so much that no more tasks are taken in.
    pub(crate) fn is_out_of_memory(&self, state: &State) -> bool {
        self.memory_max.is_some_and(|max| self.memory(state) > max)
    }
}
