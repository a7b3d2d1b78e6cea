//! Numbers about a store, for operators.

use crate::position::Position;

/// Numbers about a store. Counts are since it was opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Status {
    /// The position after the last event, durable or not.
    pub position: Position,
    /// The position of the newest checkpoint, if one was taken.
    pub checkpoint: Position,
    /// The number of checkpoints taken.
    pub checkpoints: u64,
    /// Whether a checkpoint is being taken.
    pub is_checkpointing: bool,
    /// Whether compaction is copying tasks forward.
    pub is_copying: bool,
    /// Bytes written to the log.
    pub logged_bytes: u64,
    /// Bytes of the log that a start would read.
    pub since_checkpoint_bytes: u64,
    /// The number of those bytes at which the next checkpoint is taken.
    pub checkpoint_due_bytes: u64,
    /// Bytes written to checkpoints.
    pub checkpoint_bytes: u64,
    /// Bytes of the log by which tasks were copied forward.
    pub copied_bytes: u64,
    /// Segments of the log.
    pub segments: u64,
    /// Bytes of all segments of the log.
    pub segments_bytes: u64,
    /// Bytes that the existing tasks need in the log.
    pub live_bytes: u64,
    /// Bytes of payloads in memory.
    pub cache_bytes: u64,
    /// Memory that is accounted for: tasks, workers, payloads, waiting pops, connections.
    pub memory_bytes: u64,
    /// The limit of that memory; 0 is no limit.
    pub memory_bytes_max: u64,
    /// Whether pushes are refused because the disk is full.
    pub is_full: bool,
    /// The free bytes of the disk, at most some seconds ago.
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
