//! Commands whose events are larger than a segment. No prepared file has space for them, so it is reserved before they
//! are executed. If the disk has none, the command is refused, and no other command has to wait.
//!
//! Reserving space creates a file, which may block on a disk that hangs. The caller's thread serves other connections
//! too, so it does not do that: [`OversizedCommand`] owns a copy of the command, the caller gets a ticket, and the
//! thread `sureq-oversized` reserves the space and executes the command.

use std::collections::VecDeque;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, PoisonError};

use sureq_core::command::{Add, Cancel, NameArg, TaskRefs};
use sureq_core::{Command, Refusal, Replies, Reply};
use sureq_sync::{Condvar, Mutex, MutexGuard};

use crate::commit::durable::Durable;
use crate::log::{LogError, Position, Reserved, Spares};
use crate::payload::body::Body;
use crate::shared::{EngineState, Shared};
use crate::waiting::ticket::{EngineTicket, PendingAnswer, TicketCell, only, poisoned};

/// The most bytes that an event takes up besides payloads, names and ids.
const EVENT_BYTES: usize = 256;

/// The bytes before a payload: its length and its checksum.
const PAYLOAD_HEAD_BYTES: usize = 10;

/// The most bytes that one task in a list of ids takes up.
const ID_BYTES: usize = 20;

/// Space for events that time causes in the same unit: slices of tasks that fall due, expire or move elsewhere.
const SETTLED_BYTES: usize = 256 << 10;

/// An upper bound of the bytes of the events of the command itself.
fn event_bytes(command: &Command<'_>) -> usize {
    let ids = |tasks: &TaskRefs<'_>| tasks.list.len() * ID_BYTES;
    let bytes = match command {
        Command::Push { queue, payloads } => {
            let payload = |payload: &&[u8]| payload.len() + PAYLOAD_HEAD_BYTES;
            queue.len() + payloads.iter().map(payload).sum::<usize>()
        }
        Command::Add(add) => {
            let name = if let Some(NameArg::Bytes(name)) = add.name { name.len() } else { 0 };
            add.queue.len() + name + add.payload.len()
        }
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

/// A command that outlives the buffer it was read from.
struct Owned {
    /// The command without what it borrows.
    form: Command<'static>,
    queue: Box<[u8]>,
    /// Payloads, ids or names, concatenated, and where each ends.
    bytes: Vec<u8>,
    ends: Vec<usize>,
}

impl Owned {
    /// A copy of a command that may be larger than a segment.
    fn of(command: &Command<'_>) -> Option<Self> {
        const NONE: &[&[u8]] = &[];
        let refs = |tasks: &TaskRefs<'_>| TaskRefs { list: NONE, form: tasks.form };
        let queue: &[u8] = b"";
        let (own, list, form) = match *command {
            Command::Push { queue: own, payloads } => {
                (own, payloads, Command::Push { queue, payloads: NONE })
            }
            Command::Add(add) => return Some(Self::of_add(&add)),
            Command::Ack { queue: own, tasks, scope } => {
                (own, tasks.list, Command::Ack { queue, tasks: refs(&tasks), scope })
            }
            Command::Bury { queue: own, tasks } => {
                (own, tasks.list, Command::Bury { queue, tasks: refs(&tasks) })
            }
            Command::Delete { queue: own, tasks } => {
                (own, tasks.list, Command::Delete { queue, tasks: refs(&tasks) })
            }
            Command::Revive { queue: own, tasks: Some(tasks) } => {
                (own, tasks.list, Command::Revive { queue, tasks: Some(refs(&tasks)) })
            }
            Command::Cancel { queue: own, which: Cancel::Ids(tasks) } => {
                (own, tasks.list, Command::Cancel { queue, which: Cancel::Ids(refs(&tasks)) })
            }
            Command::Cancel { queue: own, which: Cancel::Names(names) } => {
                (own, names, Command::Cancel { queue, which: Cancel::Names(NONE) })
            }
            Command::Drop { queues } => (queue, queues, Command::Drop { queues: NONE }),
            _ => return None,
        };
        Some(Self::with_list(form, own, list))
    }

    fn of_add(add: &Add<'_>) -> Self {
        let (name, list) = match add.name {
            None => (None, vec![add.payload]),
            Some(NameArg::Payload) => (Some(NameArg::Payload), vec![add.payload]),
            Some(NameArg::Bytes(name)) => (Some(NameArg::Bytes(&[])), vec![add.payload, name]),
        };
        let Add { when, priority, tries, backoff_ms, ttl_ms, .. } = *add;
        let form = Add { queue: &[], payload: &[], name, when, priority, tries, backoff_ms, ttl_ms };
        Self::with_list(Command::Add(form), add.queue, &list)
    }

    fn with_list(form: Command<'static>, queue: &[u8], list: &[&[u8]]) -> Self {
        let mut bytes = Vec::with_capacity(list.iter().map(|item| item.len()).sum());
        let ends = list.iter().map(|item| {
            bytes.extend_from_slice(item);
            bytes.len()
        });
        let ends = ends.collect();
        Self { form, queue: queue.into(), bytes, ends }
    }

    fn memory(&self) -> usize {
        self.bytes.capacity() + self.ends.capacity() * size_of::<usize>()
    }

    fn with<T>(&self, act: impl FnOnce(&Command<'_>) -> T) -> T {
        let starts = [0].into_iter().chain(self.ends.iter().copied());
        let list: Vec<&[u8]> = starts.zip(&self.ends).map(|(start, &end)| &self.bytes[start..end]).collect();
        let (queue, list) = (&*self.queue, &*list);
        let refs = |tasks: TaskRefs<'_>| TaskRefs { list, form: tasks.form };
        let command = match self.form {
            Command::Push { .. } => Command::Push { queue, payloads: list },
            Command::Add(add) => {
                let name = match add.name {
                    Some(NameArg::Bytes(_)) => Some(NameArg::Bytes(list[1])),
                    other => other,
                };
                Command::Add(Add { queue, payload: list[0], name, ..add })
            }
            Command::Ack { tasks, scope, .. } => Command::Ack { queue, tasks: refs(tasks), scope },
            Command::Bury { tasks, .. } => Command::Bury { queue, tasks: refs(tasks) },
            Command::Delete { tasks, .. } => Command::Delete { queue, tasks: refs(tasks) },
            Command::Revive { tasks, .. } => Command::Revive { queue, tasks: tasks.map(refs) },
            Command::Cancel { which: Cancel::Ids(tasks), .. } => {
                Command::Cancel { queue, which: Cancel::Ids(refs(tasks)) }
            }
            Command::Cancel { which: Cancel::Names(_), .. } => {
                Command::Cancel { queue, which: Cancel::Names(list) }
            }
            Command::Drop { .. } => Command::Drop { queues: list },
            other => unreachable!("{other:?} is no command that can be larger than a segment"),
        };
        act(&command)
    }
}

/// A command that waits for its space.
pub(crate) struct OversizedCommand {
    command: Owned,
    /// The most bytes that its events may take up.
    bytes: usize,
    cell: Arc<TicketCell>,
}

/// The commands that wait for their space to be reserved.
#[derive(Default)]
pub(crate) struct OversizedCommands {
    jobs: Mutex<Jobs>,
    wakes: Condvar,
}

#[derive(Default)]
struct Jobs {
    waiting: VecDeque<OversizedCommand>,
    /// The ticket of the command that is being executed.
    current: Option<Arc<TicketCell>>,
    is_woken: bool,
}

impl OversizedCommands {
    /// Wakes the thread, so that it checks whether it must end.
    pub(crate) fn wake(&self) {
        self.lock().is_woken = true;
        self.wakes.notify_one();
    }

    /// Answers all tickets with an error, after the store has failed.
    pub(crate) fn fail(&self, durable: &Durable) {
        let mut jobs = self.lock();
        let waiting = std::mem::take(&mut jobs.waiting).into_iter().map(|oversized| oversized.cell);
        let cells: Vec<_> = waiting.chain(jobs.current.clone()).collect();
        drop(jobs);
        for cell in &cells {
            cell.fail(durable);
        }
    }

    fn push(&self, oversized: OversizedCommand) {
        self.lock().waiting.push_back(oversized);
        self.wakes.notify_one();
    }

    /// Waits for the next command; returns `None` after [`Self::wake`].
    fn next(&self) -> Option<OversizedCommand> {
        let mut jobs = self.lock();
        jobs.current = None;
        let is_idle = |jobs: &mut Jobs| jobs.waiting.is_empty() && !jobs.is_woken;
        jobs = self.wakes.wait_while(jobs, is_idle).unwrap_or_else(PoisonError::into_inner);
        let oversized = jobs.waiting.pop_front();
        jobs.is_woken &= oversized.is_some();
        jobs.current = oversized.as_ref().map(|oversized| Arc::clone(&oversized.cell));
        oversized
    }

    fn lock(&self) -> MutexGuard<'_, Jobs> {
        // A panic elsewhere cannot leave the list half changed.
        self.jobs.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Shared {
    /// Whether the events of a command may be larger than a segment.
    pub(crate) fn is_oversized(&self, command: &Command<'_>) -> bool {
        let segment_bytes = self.preallocator.segment_bytes as usize;
        segment_bytes > 0 && event_bytes(command) + EVENT_BYTES > segment_bytes
    }

    /// A copy of a command that is larger than a segment. Must not be called with the lock.
    pub(crate) fn oversized(&self, command: &Command<'_>) -> Option<OversizedCommand> {
        if !self.is_oversized(command) || command.check().is_err() {
            return None;
        }
        let bytes = event_bytes(command) + SETTLED_BYTES.min(self.preallocator.segment_bytes as usize);
        Some(OversizedCommand { command: Owned::of(command)?, bytes, cell: Arc::default() })
    }

    /// Hands a command to the thread that executes it once its space is reserved.
    pub(crate) fn submit_oversized(self: &Arc<Self>, oversized: OversizedCommand) -> EngineTicket {
        let cell = Arc::clone(&oversized.cell);
        cell.lock().is_loading = true;
        self.charged.fetch_add(oversized.command.memory(), Relaxed);
        self.oversized.push(oversized);
        EngineTicket { number: None, cell, shared: Arc::clone(self) }
    }
}

/// Executes oversized commands one by one, until the store closes.
pub(crate) fn run(shared: &Shared) {
    loop {
        match shared.oversized.next() {
            Some(oversized) => execute(shared, &oversized),
            None if shared.durable.failure().is_some() || shared.lock().closing => return,
            None => {}
        }
    }
}

/// Reserves the space of a command, executes it, and answers its ticket.
fn execute(shared: &Shared, oversized: &OversizedCommand) {
    let spares = shared.preallocator.spares();
    let reserved = spares.as_ref().map(|spares| spares.reserve(oversized.bytes));
    let room = match reserved {
        Some(Ok(reserved)) => Room::Reserved(reserved),
        Some(Err(LogError::NoSpace(_))) => Room::None,
        // The log thread will get the same error at its write, and handle it.
        Some(Err(_)) | None => Room::Unknown,
    };
    // If the log fails from here on, it is unknown whether the command is on disk.
    oversized.cell.lock().is_executed = true;
    // The memory of the copy must not be the reason to refuse it.
    shared.charged.fetch_sub(oversized.command.memory(), Relaxed);
    let (replies, position) =
        oversized.command.with(|command| execute_in(shared, command, room, spares.as_deref()));
    let mut ticket = oversized.cell.lock();
    ticket.answer = Some(PendingAnswer::new(Vec::new(), replies, position));
    ticket.is_loading = false;
    if let Some(waker) = ticket.waker.take() {
        drop(ticket);
        shared.durable.wake_at(position, &waker);
    }
}

/// The outcome of reserving space.
enum Room {
    Reserved(Reserved),
    None,
    Unknown,
}

fn execute_in(
    shared: &Shared,
    command: &Command<'_>,
    room: Room,
    spares: Option<&Spares>,
) -> (Replies<Body>, Position) {
    let prepared = shared.prepare(command);
    let mut state = lock_when_short(shared);
    let mut replies = Replies::default();
    let refusal = match &room {
        _ if shared.durable.failure().is_some() => Some(Refusal::Poisoned),
        _ if state.closing => Some(Refusal::Closed),
        Room::None => Some(Refusal::NoSpace),
        Room::Reserved(_) | Room::Unknown => shared.refusal(&state, command),
    };
    let mut unused = if let Room::Reserved(reserved) = room { Some(reserved) } else { None };
    let mut position = Position::START;
    // Large memory takes time to free: not under the lock.
    let mut left = None;
    if let Some(refusal) = refusal {
        replies = if refusal == Refusal::Poisoned { poisoned() } else { only(Reply::Refused(refusal)) };
    } else {
        let now = shared.clock.now();
        shared.raise_mark_if_near(&state, now);
        let EngineState { broker, buffer, .. } = &mut *state;
        buffer.lend(prepared);
        broker.execute(now, command, buffer, &mut replies);
        left = buffer.take_left();
        shared.end_unit(&mut state);
        // The log thread uses the space for the frame that ends here.
        if state.buffer.is_oversized()
            && let (Some(spares), Some(reserved)) = (spares, unused.take())
        {
            spares.entrust(state.buffer.end(), reserved);
        }
        shared.serve(&mut state, now);
        state.forget_awake_unless_awaited();
        position = shared.position(&state);
        shared.notify_threads(&mut state, now);
    }
    shared.unlock_and_wake(state);
    drop(left);
    if let (Some(spares), Some(reserved)) = (spares, unused) {
        spares.discard(&reserved);
    }
    (replies, position)
}

/// Takes the lock when the commit buffer is short enough.
fn lock_when_short(shared: &Shared) -> MutexGuard<'_, EngineState> {
    loop {
        let state = shared.lock();
        let hold = state.buffer.is_long().then(|| state.buffer.end());
        let Some(hold) = hold.filter(|_| shared.durable.failure().is_none()) else { return state };
        drop(state);
        shared.durable.wait_for(hold);
    }
}

#[cfg(test)]
mod tests {
    use sureq_core::command::{AckScope, Add, IdForm};
    use sureq_core::{Broker, LogTime, Now, Replies, WallTime, limits};

    use super::*;
    use crate::commit::commit_buffer::CommitBuffer;
    use crate::compaction::live::LiveBodies;
    use crate::log::Room;

    /// The space reserved for a command is enough for all events that it records.
    #[test]
    fn no_command_records_more_bytes_than_its_upper_bound() {
        let room = Room::new(1, 192, 1 << 30, 1 << 30);
        let mut buffer = CommitBuffer::new(Position::START, room, [7; 16], LiveBodies::default());
        let (mut broker, mut replies) = (Broker::default(), Replies::default());
        let now = Now { log: LogTime(1 << 40), wall: WallTime(1 << 40) };
        let (long, large) = (vec![b'q'; 4096], vec![b'x'; 1 << 20]);
        let small: Vec<&[u8]> = vec![&[]; limits::PUSH_TASKS_MAX];
        let mut execute = |command: Command<'_>| {
            let before = buffer.bytes();
            replies.clear();
            broker.execute(now, &command, &mut buffer, &mut replies);
            buffer.end_unit(&mut broker);
            let recorded = buffer.bytes() - before;
            assert!(recorded > 0 && recorded <= event_bytes(&command), "{recorded} bytes");
            replies.ids.clone()
        };
        execute(Command::Push { queue: &long, payloads: &[&large, &large] });
        execute(Command::Add(Add { ttl_ms: Some(1), tries: Some(9), ..Add::plain(b"other", &large) }));
        let push = Command::Push { queue: b"q", payloads: &small };
        let ids = [execute(push), execute(push)].concat();
        // In no order, so that no two of them are neighbours.
        let texts: Vec<String> = (0..ids.len()).map(|n| ids[n * 7919 % ids.len()].to_string()).collect();
        let list: Vec<&[u8]> = texts.iter().map(String::as_bytes).collect();
        let tasks = |list| TaskRefs { list, form: IdForm::Long };
        execute(Command::Bury { queue: b"q", tasks: tasks(&list[..10_000]) });
        execute(Command::Revive { queue: b"q", tasks: Some(tasks(&list[..5_000])) });
        execute(Command::Cancel { queue: b"q", which: Cancel::Ids(tasks(&list[10_000..15_000])) });
        execute(Command::Delete { queue: b"q", tasks: tasks(&list[15_000..]) });
        let pop = sureq_core::command::Pop::plain(&[b"q"], 5_000);
        broker.execute(now, &Command::Pop(pop), &mut buffer, &mut replies);
        buffer.end_unit(&mut broker);
        let scope = AckScope::LeasedOrLapsed;
        let ack = Command::Ack { queue: b"q", tasks: tasks(&list[..5_000]), scope };
        let before = buffer.bytes();
        broker.execute(now, &ack, &mut buffer, &mut replies);
        buffer.end_unit(&mut broker);
        assert!((1..=event_bytes(&ack)).contains(&(buffer.bytes() - before)));
    }
}
