//! The pipelined connection that all callers share: they append their commands, and replies arrive in the same order.

use std::collections::VecDeque;
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use sureq_core::command::{IdForm, Return, TaskRef};
use sureq_core::id::IdText;
use sureq_core::settings::Place;
use sureq_core::{Command, Receipt, Refusal, Replies, Reply, limits};
use sureq_home_api::Payload;
use sureq_home_api::elsewhere::{PopOf, ReplySizes, ReplySlot, Requeue, SizePlace, Undelivered};
use sureq_proto::resp::{BadReply, Piece, PieceReader};
use sureq_proto::{ReplyForm, decode_reply, encode_command};
use tokio::net::TcpStream;
use tokio::sync::Notify;

use crate::Patience;
use crate::conn::{Conn, garbage};
use crate::target::Target;

/// Unsent bytes beyond which commands are refused. A single command may be larger.
const UNSENT_BYTES_MAX: usize = 64 << 20;

/// Unanswered batches beyond which commands are refused.
const ASKED_MAX: usize = 1 << 20;

/// Commands that are sent together, and the slot for their replies.
pub(crate) struct Batch {
    /// The encoded commands.
    pub(crate) bytes: Vec<u8>,
    pub(crate) entries: Vec<BatchEntry>,
    pub(crate) slot: Arc<ReplySlot>,
}

/// One command of a batch.
pub(crate) enum BatchEntry {
    /// An encoded command. `end` is the offset behind it: in its batch, and once the batch is queued, in the
    /// connection. `place` is where the size of its reply is remembered.
    Sent { form: ReplyForm<'static>, end: u64, place: Option<SizePlace> },
    /// The command cannot be encoded, or exceeds a limit.
    Refused(Refusal),
}

impl Batch {
    pub(crate) fn of(commands: &[Command<'_>]) -> Self {
        let (mut bytes, mut pops) = (Vec::new(), Vec::new());
        let mut entries = Vec::with_capacity(commands.len());
        for (at, command) in commands.iter().enumerate() {
            let begin = bytes.len();
            let encoded = encode_within_limits(&mut bytes, command);
            if encoded.is_err() {
                bytes.truncate(begin);
            }
            entries.push(match encoded {
                Ok(()) => {
                    let form = ReplyForm::of_sent(command);
                    if let Command::Pop(pop) = command {
                        let queues = pop.queues.iter().map(|&queue| queue.into()).collect();
                        pops.push(PopOf { command: at, queues });
                    }
                    BatchEntry::Sent { form, end: bytes.len() as u64, place: SizePlace::of(command) }
                }
                Err(no) => BatchEntry::Refused(no),
            });
        }
        Self { bytes, entries, slot: Arc::new(ReplySlot::new(pops, receipt_text)) }
    }

    fn refuse(&self, refusal: &Refusal) {
        self.slot.refuse(self.entries.len(), refusal);
    }
}

/// A receipt as the server writes it. No incarnation is 0; a delivery with that value has no receipt, only its id.
pub(crate) fn receipt_text(receipt: Receipt) -> Vec<u8> {
    match receipt.incarnation {
        0 => IdText::of_id(receipt.id).as_bytes().to_vec(),
        _ => IdText::of_receipt(receipt).as_bytes().to_vec(),
    }
}

impl Requeue for Pipe {
    fn requeue(&self, undelivered: Vec<Undelivered>) {
        self.requeue_all(undelivered);
    }
}

/// Appends a command. Refuses one that exceeds a limit of every server: the server would reply with a protocol error
/// that does not name the limit, and close the connection.
fn encode_within_limits(bytes: &mut Vec<u8>, command: &Command<'_>) -> Result<(), Refusal> {
    command.check()?;
    let begin = bytes.len();
    encode_command(bytes, command).map_err(|no| Refusal::not_there(no.what, "RQ.*"))?;
    let max = limits::COMMAND_BYTES_MAX;
    if bytes.len() - begin > max { Err(Refusal::TooLarge { what: "the command", max }) } else { Ok(()) }
}

/// A batch that was sent or queued.
struct Asked {
    entries: Vec<BatchEntry>,
    replies: Replies<Payload>,
    slot: Arc<ReplySlot>,
    since: Instant,
    /// When the first bytes of its first reply arrived.
    began: Option<Instant>,
}

impl Asked {
    /// Adds the refusals of unsent commands that are next in order. Returns whether all replies are there.
    fn settle(&mut self) -> bool {
        while let Some(BatchEntry::Refused(no)) = self.entries.get(self.replies.list.len()) {
            self.replies.list.push(Reply::Refused(no.clone()));
        }
        self.replies.list.len() == self.entries.len()
    }

    /// Adds the reply to the next sent command.
    fn take(&mut self, frame: &[u8], sizes: &ReplySizes) {
        if let Some(BatchEntry::Sent { form, place, .. }) = self.entries.get(self.replies.list.len()) {
            let first = self.replies.tasks.len();
            read_answer(form, frame, &mut self.replies);
            if let Some(place) = place {
                let each = frame.len().checked_div(self.replies.tasks.len() - first);
                sizes.learn(*place, each.into_iter());
            }
        }
    }

    /// Refuses the remaining commands after the connection was lost. `written` is the offset up to which it was
    /// written.
    fn lose(&mut self, written: u64, why: &str) {
        while let Some(entry) = self.entries.get(self.replies.list.len()) {
            let refusal = match entry {
                BatchEntry::Refused(no) => no.clone(),
                // A command that was sent only in part was not executed.
                BatchEntry::Sent { end, .. } if *end > written => Refusal::Unavailable { why: why.into() },
                BatchEntry::Sent { .. } => Refusal::Unknown { why: why.into() },
            };
            self.replies.list.push(Reply::Refused(refusal));
        }
    }
}

/// Decodes a reply and appends it. Its payloads share one copy of the frame.
pub(crate) fn read_answer(form: &ReplyForm<'_>, frame: &[u8], replies: &mut Replies<Payload>) {
    let mut shared: Option<Arc<[u8]>> = None;
    let cut = |range| {
        let frame = shared.get_or_insert_with(|| frame.into());
        Payload::within(frame, range)
    };
    if let Err(bad) = decode_reply(form, frame, cut, replies) {
        let why = format!("the server sent an invalid reply: {bad}").into();
        replies.list.push(Reply::Refused(Refusal::Unknown { why }));
    }
}

/// The current connection, if there is one, and the batches that were sent over it.
pub(crate) struct Pipe {
    /// The sizes of earlier replies, to limit the size of a batch.
    pub(crate) sizes: ReplySizes,
    state: Mutex<PipeState>,
    /// Wakes the thread after a change of the state.
    changed: Notify,
}

struct PipeState {
    link: Result<Arc<TcpStream>, Refusal>,
    is_closed: bool,
    /// Bytes that the socket has not accepted yet.
    unsent: VecDeque<u8>,
    /// The number of bytes queued for this connection so far, and of those that the socket has accepted.
    queued: u64,
    written: u64,
    asked: VecDeque<Asked>,
    /// When bytes were last sent or received.
    progress: Instant,
    /// The thread no longer waits for missing replies.
    is_given_up: bool,
}

impl Pipe {
    pub(crate) fn new() -> Self {
        let state = PipeState {
            link: Err(Refusal::Closed),
            is_closed: false,
            unsent: VecDeque::new(),
            queued: 0,
            written: 0,
            asked: VecDeque::new(),
            progress: Instant::now(),
            is_given_up: false,
        };
        Self { sizes: ReplySizes::default(), state: Mutex::new(state), changed: Notify::new() }
    }

    fn lock(&self) -> MutexGuard<'_, PipeState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sends a batch, or refuses it.
    pub(crate) fn ask(&self, mut batch: Batch) {
        let mut state = self.lock();
        let link = match state.room() {
            Ok(link) => link,
            Err(no) => {
                drop(state);
                return batch.refuse(&no);
            }
        };
        for entry in &mut batch.entries {
            if let BatchEntry::Sent { end, .. } = entry {
                *end += state.queued;
            }
        }
        let Batch { bytes, entries, slot } = batch;
        let mut asked =
            Asked { entries, replies: Replies::default(), slot, since: Instant::now(), began: None };
        if bytes.is_empty() && asked.settle() {
            drop(state);
            asked.slot.fill(asked.replies);
            return;
        }
        state.queued += bytes.len() as u64;
        state.asked.push_back(asked);
        let sent = if state.unsent.is_empty() { write_some(&link, &bytes).unwrap_or(0) } else { 0 };
        state.written += sent as u64;
        if sent < bytes.len() {
            state.unsent.extend(&bytes[sent..]);
            drop(state);
            self.changed.notify_one();
        }
    }

    /// Requeues deliveries that no caller took, at the front of their queues.
    pub(crate) fn requeue_all(&self, undelivered: Vec<Undelivered>) {
        for Undelivered { queue, tasks } in undelivered {
            // Each return puts its task at the front, so the last task goes first.
            let back = tasks.iter().rev().map(|bytes| {
                let task = TaskRef { bytes, form: IdForm::Long };
                Command::Return(Return {
                    queue: &queue,
                    task,
                    to: Some(Place::Front),
                    failed: None,
                    is_last: false,
                })
            });
            let commands: Vec<Command<'_>> = back.collect();
            // If this fails, the leases of these tasks lapse.
            self.ask(Batch::of(&commands));
        }
    }

    /// Refuses further commands. The connection ends once all replies have arrived.
    pub(crate) fn close(&self) {
        self.lock().is_closed = true;
        self.changed.notify_one();
    }

    /// Stops waiting for replies, after the timeout of closing. Unanswered commands get an error.
    pub(crate) fn give_up(&self) {
        self.lock().is_given_up = true;
        self.changed.notify_one();
    }

    /// Whether commands can be sent now.
    pub(crate) fn is_connected(&self) -> bool {
        self.lock().link.is_ok()
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.lock().is_closed
    }

    /// Waits until the state changes.
    pub(crate) async fn changed(&self) {
        self.changed.notified().await;
    }

    /// Refuses commands with this reason until a connection is attached.
    pub(crate) fn refuse_all(&self, refusal: Refusal) {
        self.lock().link = Err(refusal);
    }

    /// Sends commands over this connection from now on.
    pub(crate) fn attach(&self, conn: &Conn) {
        let mut state = self.lock();
        (state.queued, state.written) = (0, 0);
        state.link = Ok(Arc::clone(&conn.stream));
    }

    /// Serves the attached connection until it ends. Returns whether it ended because the pipe was closed.
    pub(crate) async fn serve(&self, mut conn: Conn, target: &Target, patience: Patience) -> bool {
        let mut current = None;
        let ended = self.exchange(&mut conn, &mut current, patience).await;
        let is_closed = ended.is_ok();
        let why = ended.err().map(|error| format!("sureq at {target}: {error}"));
        self.lose(current, &why.unwrap_or_default());
        is_closed
    }

    /// Writes and reads until the pipe is closed and all replies have arrived. An error ends the connection.
    async fn exchange(
        &self,
        conn: &mut Conn,
        current: &mut Option<Asked>,
        patience: Patience,
    ) -> io::Result<()> {
        // Frequent enough to detect a timeout soon, and rare enough to cost nothing.
        let mut looks = tokio::time::interval((patience.answer / 8).max(Duration::from_millis(10)));
        while !self.is_done(current.as_ref()) {
            let (has_more, is_given_up) = {
                let state = self.lock();
                (!state.unsent.is_empty(), state.is_given_up)
            };
            if is_given_up {
                return Err(io::Error::new(
                    io::ErrorKind::TimedOut,
                    "it did not answer before the home was closed",
                ));
            }
            tokio::select! {
                ready = conn.stream.readable() => {
                    ready?;
                    self.read(conn, current)?;
                }
                ready = conn.stream.writable(), if has_more => {
                    ready?;
                    self.write_rest(&conn.stream)?;
                }
                () = self.changed.notified() => {}
                _ = looks.tick() => self.check_time(current.as_ref(), patience.answer)?,
            }
        }
        Ok(())
    }

    fn is_done(&self, current: Option<&Asked>) -> bool {
        let state = self.lock();
        state.is_closed && current.is_none() && state.asked.is_empty()
    }

    fn write_rest(&self, stream: &TcpStream) -> io::Result<()> {
        let mut state = self.lock();
        let state = &mut *state;
        let (front, _) = state.unsent.as_slices();
        let sent = write_some(stream, front)?;
        state.unsent.drain(..sent);
        state.written += sent as u64;
        if sent > 0 {
            // The socket was full before, so the server or the network has accepted bytes since.
            state.progress = Instant::now();
        }
        if state.unsent.is_empty() {
            // Do not keep the capacity that a very large command needed.
            state.unsent.shrink_to(64 << 10);
        }
        Ok(())
    }

    fn read(&self, conn: &mut Conn, current: &mut Option<Asked>) -> io::Result<()> {
        match conn.stream.try_read(conn.inbox.room()) {
            Ok(0) => return Err(io::Error::new(io::ErrorKind::UnexpectedEof, "it closed the connection")),
            Ok(n) => conn.inbox.add(n),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(()),
            Err(error) => return Err(error),
        }
        self.lock().progress = Instant::now();
        while conn.inbox.take().map_err(garbage)? {
            self.answer(conn.inbox.taken(), conn.inbox.taken_began(), current)?;
        }
        Ok(())
    }

    /// Adds a reply to the oldest batch.
    fn answer(&self, frame: &[u8], began: Instant, current: &mut Option<Asked>) -> io::Result<()> {
        if matches!(PieceReader::new(frame).take(), Ok(Piece::Push(_))) {
            return Ok(());
        }
        let mut asked = match current.take() {
            Some(asked) => asked,
            None => self.lock().asked.pop_front().ok_or_else(|| garbage(BadReply::Shape))?,
        };
        asked.settle();
        asked.take(frame, &self.sizes);
        let began = *asked.began.get_or_insert(began);
        if asked.settle() {
            self.requeue_all(asked.slot.fill_at(asked.replies, began));
        } else {
            *current = Some(asked);
        }
        Ok(())
    }

    /// Fails if the oldest batch has waited too long, and no bytes were sent or received meanwhile. Progress resets
    /// the timeout, since a large payload on a slow network may take longer than any reply.
    fn check_time(&self, current: Option<&Asked>, patience: Duration) -> io::Result<()> {
        let state = self.lock();
        let first = current.or_else(|| state.asked.front());
        let since = first.map(|asked| asked.since.max(state.progress));
        if since.is_some_and(|since| since.elapsed() >= patience) {
            return Err(io::Error::new(io::ErrorKind::TimedOut, format!("no answer within {patience:?}")));
        }
        Ok(())
    }

    /// Refuses all batches whose replies can no longer arrive.
    fn lose(&self, current: Option<Asked>, why: &str) {
        let mut state = self.lock();
        state.link =
            Err(if state.is_closed { Refusal::Closed } else { Refusal::Unavailable { why: why.into() } });
        let asked = std::mem::take(&mut state.asked);
        state.unsent = VecDeque::new();
        let written = state.written;
        drop(state);
        for mut asked in current.into_iter().chain(asked) {
            asked.lose(written, why);
            // Earlier replies may contain tasks. They cannot be returned without a connection: their leases lapse.
            asked.slot.fill(asked.replies);
        }
    }
}

impl PipeState {
    /// The connection, unless the pipe is closed, disconnected or too far behind.
    fn room(&self) -> Result<Arc<TcpStream>, Refusal> {
        if self.is_closed {
            return Err(Refusal::Closed);
        }
        if self.unsent.len() > UNSENT_BYTES_MAX || self.asked.len() >= ASKED_MAX {
            let why = "too many commands wait to be sent to the server: try again later".into();
            return Err(Refusal::Unavailable { why });
        }
        self.link.clone()
    }
}

/// Writes as much as the socket accepts at once. The next write reports an error that follows a success.
fn write_some(stream: &TcpStream, bytes: &[u8]) -> io::Result<usize> {
    let mut sent = 0;
    while sent < bytes.len() {
        match stream.try_write(&bytes[sent..]) {
            Ok(n) => sent += n,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock || sent > 0 => break,
            Err(error) => return Err(error),
        }
    }
    Ok(sent)
}
