//! Compares what tasks know of their payloads with the frames that are about to be written. Each costs a look-up per
//! payload, so that only builds with debug assertions do it: every test of the engine runs with it.

use sureq_core::Broker;

use crate::commit::commit_buffer::Batch;
use crate::payload::body::Body;
use crate::payload::payload_scan::{LoggedPayload, payloads_in};

/// Panics if a task whose payload is in this frame has another place for it. One that was recorded again since has a
/// later one.
pub(crate) fn verify(broker: &Broker<Body>, batch: &Batch) {
    if !cfg!(debug_assertions) || !batch.has_payloads {
        return;
    }
    let read = payloads_in(
        batch.place,
        &batch.frame.body_behind(0),
        &mut |LoggedPayload { queue, id, offset, payload }| {
            let Some(stored) = broker.body_of(queue, id).and_then(|body| body.place()) else { return };
            let (here, there) =
                ((batch.place.segment, offset), (u64::from(stored.segment), u64::from(stored.offset)));
            let is_right = stored.len as usize == payload.len() && there >= here;
            assert!(is_right, "the payload of task {id} is written to {here:?}, and the task has {stored:?}");
        },
    );
    read.expect("what was encoded can be decoded");
}
