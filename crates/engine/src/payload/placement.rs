//! Compares the places that tasks have for their payloads with the frames that are about to be written. This costs a
//! look-up per payload, so only builds with debug assertions do it. All tests of the engine run with it.

use std::collections::BTreeMap;

use sureq_core::Broker;

use crate::commit::commit_buffer::Batch;
use crate::log::LogAddress;
use crate::payload::body::Body;
use crate::payload::payload_scan::{LoggedPayload, payloads_in};

/// Panics if a task whose payload is in this frame has another place for it, except behind this frame: then the task
/// was recorded again since.
pub(crate) fn verify(broker: &Broker<Body>, batch: &Batch) {
    if !cfg!(debug_assertions) || !batch.has_payloads {
        return;
    }
    let body = batch.frame.body_behind(0);
    // If a frame has a task twice, its place is the second one.
    let mut written = BTreeMap::new();
    let read = payloads_in(batch.place, &body, &mut |LoggedPayload { queue, id, offset, payload }| {
        written.insert(id, (queue, offset, payload.len()));
    });
    read.expect("what was encoded can be decoded");
    for (id, (queue, offset, len)) in written {
        let Some(stored) = broker.body_of(queue, id).and_then(|body| body.place()) else { continue };
        let there = LogAddress { segment: stored.segment.into(), offset: stored.offset.into() };
        let is_right = stored.len as usize == len && may_be_at(there, batch.place, body.len(), offset);
        let segment = batch.place.segment;
        assert!(
            is_right,
            "the payload of task {id} is written to {segment}:{offset}, and the task has {stored:?}"
        );
    }
}

/// Whether a task may have the place `there` for its payload. The frame, whose body is `body_bytes` long and begins at
/// `frame`, has the payload at `offset`.
fn may_be_at(there: LogAddress, frame: LogAddress, body_bytes: usize, offset: u64) -> bool {
    if there.segment == frame.segment && there.offset <= frame.offset + body_bytes as u64 {
        there.offset == offset
    } else {
        there > frame
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_task_has_the_place_of_its_payload_or_one_behind_the_frame() {
        let frame = LogAddress { segment: 7, offset: 1_000 };
        let check = |segment, offset| may_be_at(LogAddress { segment, offset }, frame, 500, 1_200);
        assert!(check(7, 1_200), "its place");
        for wrong in [1_000, 1_199, 1_201, 1_300, 1_500] {
            assert!(!check(7, wrong), "{wrong} is in this frame");
        }
        assert!(!check(7, 999) && !check(6, 1_200) && !check(6, 9_000), "before this frame");
        assert!(check(7, 1_501) && check(8, 192), "recorded again in a later frame");
    }
}
