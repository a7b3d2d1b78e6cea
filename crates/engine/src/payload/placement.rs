//! Compares the places that tasks have for their payloads with the frames that are about to be written. This costs a
//! look-up per payload, so only builds with debug assertions do it. All tests of the engine run with it.

use sureq_core::Broker;

use crate::commit::commit_buffer::Batch;
use crate::payload::body::Body;
use crate::payload::payload_scan::{LoggedPayload, payloads_in};

/// Panics if a task whose payload is in this frame has another place for it. A later place is right: the task was
/// recorded again since.
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
