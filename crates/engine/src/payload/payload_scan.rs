//! Finds the payloads in the events of the log, with their tasks and places.

use sureq_core::event::{Event, QueueNo};
use sureq_core::{TaskId, codec};

use crate::log::LogAddress;

/// A payload in a segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct LoggedPayload<'f> {
    /// The queue of its task when the event was recorded.
    pub(crate) queue: QueueNo,
    pub(crate) id: TaskId,
    /// Where it begins in the segment.
    pub(crate) offset: u64,
    pub(crate) payload: &'f [u8],
}

/// Visits the payloads of a frame whose body is at `place`, in the order of their offsets.
pub(crate) fn payloads_in(
    place: LogAddress,
    body: &[u8],
    visit: &mut dyn FnMut(LoggedPayload<'_>),
) -> Result<(), codec::Malformed> {
    let mut rest = body;
    while !rest.is_empty() {
        let ((), behind) = codec::decode(rest, |event| {
            payloads_of(event, &mut |queue, id, payload| {
                let offset = place.offset + offset_in(body, payload) as u64;
                visit(LoggedPayload { queue, id, offset, payload });
            });
        })?;
        rest = behind;
    }
    Ok(())
}

pub(crate) fn payloads_of<'a>(event: &Event<'a>, visit: &mut dyn FnMut(QueueNo, TaskId, &'a [u8])) {
    match event {
        Event::Pushed { queue, first, payloads, .. } => {
            for (n, payload) in payloads.iter().enumerate() {
                first.nth(n as u64).into_iter().for_each(|id| visit(*queue, id, payload));
            }
        }
        Event::Task(task) => visit(task.queue, task.id, task.payload),
        _ => {}
    }
}

/// The offset of a payload in the body of its frame. A decoded payload borrows the body, so its address gives the
/// offset.
pub(crate) fn offset_in(body: &[u8], payload: &[u8]) -> usize {
    payload.as_ptr().addr() - body.as_ptr().addr()
}

#[cfg(test)]
mod tests {
    use sureq_core::event::{Fields, Payloads};

    use super::*;

    #[test]
    fn each_payload_has_its_id_and_an_offset_of_its_own_even_if_it_is_empty() {
        let first = TaskId::new(1000, 1).expect("it is in range");
        let mut body = Vec::new();
        for (first, payloads) in
            [(first, &[&b""[..], b"", b"abc"][..]), (first.nth(7).expect("it is too"), &[b""])]
        {
            let payloads = Payloads::Slices(payloads);
            codec::encode(&Event::Resumed(QueueNo(9)), &mut body);
            codec::encode(
                &Event::Pushed { queue: QueueNo(2), first, payloads, fields: Fields::default() },
                &mut body,
            );
        }
        let mut found = Vec::new();
        let place = LogAddress { segment: 3, offset: 192 };
        let mut note = |logged: LoggedPayload<'_>| {
            let at = (logged.offset - place.offset) as usize;
            assert_eq!(&body[at..at + logged.payload.len()], logged.payload);
            found.push((logged.id.seq(), logged.offset, logged.payload.len()));
        };
        payloads_in(place, &body, &mut note).expect("they are events");
        assert!(found.is_sorted_by(|a, b| a.1 < b.1), "{found:?}");
        assert_eq!(
            found.iter().map(|&(seq, _, len)| (seq, len)).collect::<Vec<_>>(),
            [(1, 0), (2, 0), (3, 3), (8, 0)]
        );
        assert!(payloads_in(place, &body[..body.len() - 1], &mut |_| ()).is_err(), "an event is cut off");
    }
}
