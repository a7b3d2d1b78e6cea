//! Commands whose events are larger than a segment. No file that is kept ready has room for them, so that their room is
//! reserved before they are executed: where there is none, they are refused, and nothing waits for them.

use std::sync::Arc;

use sureq_core::Command;
use sureq_core::command::{Cancel, TaskRefs};

use crate::log::{LogError, Position, Reserved, Spares};
use crate::shared::Shared;

/// What an event takes up at most besides payloads, names and ids.
const EVENT_BYTES: usize = 256;

/// What stands before a payload: its length and its checksum.
const PAYLOAD_HEAD_BYTES: usize = 10;

/// The most that one task in a list of ids takes up.
const ID_BYTES: usize = 20;

/// What may happen by itself in the same unit: slices of tasks that fall due, expire or move elsewhere.
const SETTLED_BYTES: usize = 256 << 10;

/// At most so many bytes of events follow from the command itself.
fn event_bytes(command: &Command<'_>) -> usize {
    let ids = |tasks: &TaskRefs<'_>| tasks.list.len() * ID_BYTES;
    let bytes = match command {
        Command::Push { queue, payloads } => {
            let payload = |payload: &&[u8]| payload.len() + PAYLOAD_HEAD_BYTES;
            queue.len() + payloads.iter().map(payload).sum::<usize>()
        }
        Command::Add(add) => add.queue.len() + add.payload.len(),
        Command::Ack { tasks, .. }
        | Command::Bury { tasks, .. }
        | Command::Delete { tasks, .. }
        | Command::Revive { tasks: Some(tasks), .. }
        | Command::Cancel { which: Cancel::Ids(tasks), .. } => ids(tasks),
        Command::Cancel { which: Cancel::Names(names), .. } => names.len() * ID_BYTES,
        Command::Drop { queues } => queues.len() * ID_BYTES,
        _ => 0,
    };
    bytes + EVENT_BYTES
}

/// Room that was reserved for the commands of a batch. What was not used is given back.
#[derive(Default)]
pub(crate) struct Reservations {
    spares: Option<Arc<Spares>>,
    /// By the index of the command; none if there was no room.
    rooms: Vec<(usize, Option<Reserved>)>,
}

impl Shared {
    /// Reserves room for those commands that need more than a segment. Not to be called with the lock: it may have to wait
    /// for the disk.
    pub(crate) fn reserve(&self, commands: &[Command<'_>]) -> Reservations {
        let segment_bytes = self.keeper.segment_bytes as usize;
        let is_giant = |(_, bytes): &(usize, usize)| *bytes + EVENT_BYTES > segment_bytes;
        let sizes = commands.iter().map(event_bytes).enumerate();
        let mut giants = sizes.filter(is_giant).peekable();
        if segment_bytes == 0 || giants.peek().is_none() || self.durable.failure().is_some() {
            return Reservations::default();
        }
        let Some(spares) = self.keeper.spares() else { return Reservations::default() };
        let mut rooms = Vec::new();
        for (index, bytes) in giants {
            match spares.reserve(bytes + SETTLED_BYTES.min(segment_bytes)) {
                Ok(reserved) => rooms.push((index, Some(reserved))),
                Err(LogError::NoSpace(_)) => rooms.push((index, None)),
                // The log meets the same when it comes to write, and knows what to do.
                Err(_) => {}
            }
        }
        Reservations { spares: Some(spares), rooms }
    }
}

impl Reservations {
    /// Whether there was no room for the command with this index.
    pub(crate) fn is_refused(&self, index: usize) -> bool {
        self.rooms.iter().any(|(at, room)| *at == index && room.is_none())
    }

    /// Leaves the room of a command to the log, which needs it for the frame that ends at this position.
    pub(crate) fn hand_over(&mut self, index: usize, end: Position) {
        let room = self.rooms.iter_mut().find(|(at, _)| *at == index).and_then(|(_, room)| room.take());
        if let (Some(spares), Some(room)) = (&self.spares, room) {
            spares.entrust(end, room);
        }
    }
}

impl Drop for Reservations {
    fn drop(&mut self) {
        for (_, room) in self.rooms.drain(..) {
            if let (Some(spares), Some(room)) = (&self.spares, room) {
                spares.give_back(&room);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use sureq_core::command::{AckScope, Add, IdForm};
    use sureq_core::{Broker, LogTime, Now, Replies, WallTime};

    use super::*;
    use crate::live::LiveBodies;
    use crate::log::Room;
    use crate::tape::Tape;

    /// Whatever a command may record, no less room is reserved for it.
    #[test]
    fn no_command_records_more_than_it_was_expected_to() {
        let room = Room::new(1, 192, 1 << 30, 1 << 30);
        let mut tape = Tape::new(Position::START, room, [7; 16], LiveBodies::default());
        let (mut broker, mut replies) = (Broker::default(), Replies::default());
        let now = Now { log: LogTime(1 << 40), wall: WallTime(1 << 40) };
        let (long, large) = (vec![b'q'; 4096], vec![b'x'; 1 << 20]);
        let small: Vec<&[u8]> = vec![&[]; 20_000];
        let mut execute = |command: Command<'_>| {
            let before = tape.bytes();
            replies.clear();
            broker.execute(now, &command, &mut tape, &mut replies);
            tape.end_unit(&mut broker);
            let recorded = tape.bytes() - before;
            assert!(recorded > 0 && recorded <= event_bytes(&command), "{recorded} bytes");
            replies.ids.clone()
        };
        execute(Command::Push { queue: &long, payloads: &[&large, &large] });
        execute(Command::Add(Add { ttl_ms: Some(1), tries: Some(9), ..Add::plain(b"other", &large) }));
        let ids = execute(Command::Push { queue: b"q", payloads: &small });
        // In no order, so that no two of them are neighbours.
        let texts: Vec<String> = (0..ids.len()).map(|n| ids[n * 7919 % ids.len()].to_string()).collect();
        let list: Vec<&[u8]> = texts.iter().map(String::as_bytes).collect();
        let tasks = |list| TaskRefs { list, form: IdForm::Long };
        execute(Command::Bury { queue: b"q", tasks: tasks(&list[..10_000]) });
        execute(Command::Revive { queue: b"q", tasks: Some(tasks(&list[..5_000])) });
        execute(Command::Cancel { queue: b"q", which: Cancel::Ids(tasks(&list[10_000..15_000])) });
        execute(Command::Delete { queue: b"q", tasks: tasks(&list[15_000..]) });
        let pop = sureq_core::command::Pop::plain(&[b"q"], 5_000);
        broker.execute(now, &Command::Pop(pop), &mut tape, &mut replies);
        tape.end_unit(&mut broker);
        let scope = AckScope::LeasedOrLapsed;
        let ack = Command::Ack { queue: b"q", tasks: tasks(&list[..5_000]), scope };
        let before = tape.bytes();
        broker.execute(now, &ack, &mut tape, &mut replies);
        tape.end_unit(&mut broker);
        assert!((1..=event_bytes(&ack)).contains(&(tape.bytes() - before)));
    }
}
