//! Checks whether the state of an open store is consistent, for tests.

use crate::compaction::live::{Live, LiveBodies};
use crate::engine::Engine;
use crate::payload::body::Body;

impl Engine {
    /// Compares the counts and indexes that each change updates with the tasks themselves: the indexes of the queues,
    /// the live payloads of each segment, and the segments. Visits every task.
    pub fn check(&self) -> Result<(), String> {
        let state = self.shared.lock();
        state.broker.check().map_err(|broken| broken.0)?;
        let mut found = LiveBodies::default();
        let mut count = |body: &Body| body.place().into_iter().for_each(|place| found.add(place));
        state.broker.bodies(&mut count);
        state.broker.dropped_bodies(&mut count);
        state.releasing.iter().for_each(|dropped| dropped.bodies(&mut count));
        let (found, kept) = (by_segment(&found), by_segment(&state.buffer.live));
        if found != kept {
            return Err(format!(
                "tasks have these live payloads in segments: {found:?}; counted were {kept:?}"
            ));
        }
        // Buffered frames may belong to segments that do not exist yet.
        let next = state.segments.last().map_or(0, |last| last.number + 1);
        let is_there = |number: u64| state.segments.iter().any(|segment| segment.numbers().contains(&number));
        match found.iter().find(|(number, _)| *number < next && !is_there(*number)) {
            Some((number, live)) if self.shared.loader.is_some() => {
                Err(format!("segment {number} is gone, and {} payloads in it are needed", live.tasks))
            }
            _ => Ok(()),
        }
    }
}

fn by_segment(live: &LiveBodies) -> Vec<(u64, Live)> {
    live.segments().filter(|(_, live)| live.tasks > 0).collect()
}
