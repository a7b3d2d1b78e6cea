//! Numbers about an open store, for operators and benchmarks.

use std::sync::atomic::Ordering::Relaxed;

use sureq_home_api::Status;

use crate::engine::Engine;
use crate::log::Position;
use crate::payload::loader::Loader;
use crate::shared::{EngineState, Shared};

/// Pushes are accepted again when this fraction of the memory limit is free.
const ROOM_AGAIN_PART: u64 = 32;

/// Above the memory limit, workers can register until they use this fraction of it: new workers must be able to work
/// off a backlog.
const WORKERS_PART: u64 = 16;

impl Engine {
    /// Numbers about the store.
    pub fn status(&self) -> Status {
        let shared = &self.shared;
        let state = shared.lock();
        let compaction = &shared.compaction;
        Status {
            position: state.buffer.end(),
            checkpoint: Position(compaction.checkpoint.load(Relaxed)),
            checkpoints: compaction.taken.load(Relaxed),
            is_checkpointing: compaction.is_checkpointing.load(Relaxed),
            is_copying: compaction.is_copying.load(Relaxed),
            logged_bytes: state.logged_bytes,
            since_checkpoint_bytes: compaction.since_checkpoint(state.logged_bytes),
            checkpoint_due_bytes: compaction.due.load(Relaxed),
            checkpoint_bytes: compaction.checkpoint_bytes.load(Relaxed),
            copied_bytes: compaction.copied_bytes.load(Relaxed),
            segments: state.segments.len() as u64,
            segments_bytes: state.segments.iter().map(|segment| segment.bytes).sum(),
            live_bytes: state.buffer.live.total().bytes,
            cache_bytes: shared.cached(&state),
            memory_bytes: shared.memory(&state),
            memory_bytes_max: shared.memory_max.unwrap_or(0),
            is_full: state.no_space,
            disk_free_bytes: shared.preallocator.disk_free_bytes.load(Relaxed),
            segment_bytes: shared.preallocator.segment_bytes,
            read_errors: shared.read_faults.errors(),
            unreadable_tasks: shared.read_faults.dead(),
            unreadable_segments: state.unreadable.len() as u64,
        }
    }
}

impl Shared {
    /// Counts memory that a caller holds on behalf of clients: `bytes` instead of `before`.
    pub(crate) fn charge(&self, bytes: usize, before: usize) {
        if bytes > before {
            self.charged.fetch_add(bytes - before, Relaxed)
        } else {
            self.charged.fetch_sub(before - bytes, Relaxed)
        };
    }

    /// The bytes of payloads in memory: in the cache, and read ahead for it.
    fn cached(&self, state: &EngineState) -> u64 {
        let arrived = self.loader.as_ref().map_or(0, Loader::arrived_bytes);
        (state.cache.bytes() + arrived) as u64
    }

    /// The memory that is accounted for.
    pub(crate) fn memory(&self, state: &EngineState) -> u64 {
        let charged = self.charged.load(Relaxed) as u64;
        let waiting = state.waiters.memory() as u64;
        state.broker.memory() + self.cached(state) + state.buffer.bytes() as u64 + waiting + charged
    }

    /// A line for the operator, if the memory limit has just been reached or is no longer reached. The end is reported
    /// only when a part of the memory is free, since usage moves back and forth across the limit.
    pub(crate) fn note_memory(&self, state: &mut EngineState, is_refused: bool) -> Option<String> {
        let max = self.memory_max?;
        if is_refused && !state.no_memory {
            state.no_memory = true;
            let mb = max >> 20;
            return Some(format!(
                "the {mb} MB of --memory are used up: pushes, new queues and pops that wait are refused until workers catch up"
            ));
        }
        if state.no_memory && self.memory(state) < max - max / ROOM_AGAIN_PART {
            state.no_memory = false;
            return Some("there is memory again: pushes are accepted".to_owned());
        }
        None
    }

    /// Whether workers may register although the memory limit is reached.
    pub(crate) fn has_memory_for_workers(&self, state: &EngineState) -> bool {
        self.memory_max.is_none_or(|max| state.broker.workers_memory() < max / WORKERS_PART)
    }

    /// Whether the memory limit is reached, so that commands that add tasks or queues are refused.
    pub(crate) fn is_out_of_memory(&self, state: &EngineState) -> bool {
        self.memory_max.is_some_and(|max| self.memory(state) > max)
    }
}
