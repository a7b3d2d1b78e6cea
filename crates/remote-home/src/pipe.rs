//! The connection that all callers share: they write their commands one behind the other, and replies come in that order.

use std::collections::VecDeque;
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use sureq_core::command::{IdForm, Return, TaskRef};
use sureq_core::id::IdText;
use sureq_core::settings::Place;
use sureq_core::{Command, Receipt, Refusal, Replies, Reply, limits};
use sureq_home_api::Payload;
use sureq_home_api::elsewhere::{PopOf, ReplySizes, ReplySlot, Requeue, SizePlace, Untaken};
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

/// Commands, and who waits for what comes of them.
pub(crate) struct Batch {
    /// The encoded commands.
    pub(crate) bytes: Vec<u8>,
    pub(crate) said: Vec<Said>,
    pub(crate) slot: Arc<ReplySlot>,
}

/// One command of a batch.
pub(crate) enum Said {
    /// It ends behind so many bytes, and the size of its reply is remembered there.
    Sent { form: ReplyForm<'static>, end: u64, place: Option<SizePlace> },
    /// There are no words for it, or it is beyond a limit.
    Unsayable(Refusal),
}

impl Batch {
    pub(crate) fn of(commands: &[Command<'_>]) -> Self {
        let (mut bytes, mut pops) = (Vec::new(), Vec::new());
        let mut said = Vec::with_capacity(commands.len());
        for (at, command) in commands.iter().enumerate() {
            let begin = bytes.len();
            let encoded = encode_within_limits(&mut bytes, command);
            if encoded.is_err() {
                bytes.truncate(begin);
            }
            said.push(match encoded {
                Ok(()) => {
                    let form = ReplyForm::of_sent(command);
                    if let Command::Pop(pop) = command {
                        let queues = pop.queues.iter().map(|&queue| queue.into()).collect();
                        pops.push(PopOf { command: at, queues });
                    }
                    Said::Sent { form, end: bytes.len() as u64, place: SizePlace::of(command) }
                }
                Err(no) => Said::Unsayable(no),
            });
        }
        Self { bytes, said, slot: Arc::new(ReplySlot::new(pops, spelt)) }
    }

    fn refuse(&self, refusal: &Refusal) {
        self.slot.refuse(self.said.len(), refusal);
    }
}

/// A receipt as the server knows it. No incarnation is zero: such a delivery is known by its id alone.
pub(crate) fn spelt(receipt: Receipt) -> Vec<u8> {
    match receipt.incarnation {
        0 => IdText::of_id(receipt.id).as_bytes().to_vec(),
        _ => IdText::of_receipt(receipt).as_bytes().to_vec(),
    }
}

impl Requeue for Pipe {
    fn requeue(&self, untaken: Vec<Untaken>) {
        self.give_back(untaken);
    }
}

/// Appends a command. One beyond the limits that every server has is refused here: a server would answer a protocol error, which
/// says nothing about the limit, and close the connection.
fn encode_within_limits(bytes: &mut Vec<u8>, command: &Command<'_>) -> Result<(), Refusal> {
    command.check()?;
    let begin = bytes.len();
    encode_command(bytes, command).map_err(|no| Refusal::not_there(no.what, "RQ.*"))?;
    let max = limits::COMMAND_BYTES_MAX;
    if bytes.len() - begin > max { Err(Refusal::TooLarge { what: "the command", max }) } else { Ok(()) }
}

/// A batch on its way.
struct Asked {
    said: Vec<Said>,
    replies: Replies<Payload>,
    slot: Arc<ReplySlot>,
    since: Instant,
    /// When the first of its answers began to come.
    began: Option<Instant>,
}

impl Asked {
    /// Answers what was not sent and is next; says whether all is answered.
    fn settle(&mut self) -> bool {
        while let Some(Said::Unsayable(no)) = self.said.get(self.replies.list.len()) {
            self.replies.list.push(Reply::Refused(no.clone()));
        }
        self.replies.list.len() == self.said.len()
    }

    /// Takes the next answer in.
    fn take(&mut self, frame: &[u8], sizes: &ReplySizes) {
        if let Some(Said::Sent { form, place, .. }) = self.said.get(self.replies.list.len()) {
            let first = self.replies.tasks.len();
            read_answer(form, frame, &mut self.replies);
            if let Some(place) = place {
                let each = frame.len().checked_div(self.replies.tasks.len() - first);
                sizes.learn(*place, each.into_iter());
            }
        }
    }

    /// Answers the rest after the connection was lost, up to where it was written.
    fn lose(&mut self, written: u64, why: &str) {
        while let Some(said) = self.said.get(self.replies.list.len()) {
            let refusal = match said {
                Said::Unsayable(no) => no.clone(),
                // A command that was not sent as a whole was not executed.
                Said::Sent { end, .. } if *end > written => Refusal::Unavailable { why: why.into() },
                Said::Sent { .. } => Refusal::Unknown { why: why.into() },
            };
            self.replies.list.push(Reply::Refused(refusal));
        }
    }
}

/// Puts an answer behind the others. Payloads stay in one copy of it.
pub(crate) fn read_answer(form: &ReplyForm<'_>, frame: &[u8], replies: &mut Replies<Payload>) {
    let mut shared: Option<Arc<[u8]>> = None;
    let cut = |range| {
        let frame = shared.get_or_insert_with(|| frame.into());
        Payload::within(frame, range)
    };
    if let Err(bad) = decode_reply(form, frame, cut, replies) {
        let why = format!("the server's answer makes no sense: {bad}").into();
        replies.list.push(Reply::Refused(Refusal::Unknown { why }));
    }
}

/// The connection, if there is one, and what was asked over it.
pub(crate) struct Pipe {
    /// The sizes of earlier replies.
    pub(crate) sizes: ReplySizes,
    state: Mutex<State>,
    /// Something changed that the thread has to look at.
    changed: Notify,
}

struct State {
    link: Result<Arc<TcpStream>, Refusal>,
    is_closed: bool,
    /// Bytes that the socket did not take at once.
    unsent: VecDeque<u8>,
    /// Bytes that were queued for this connection, and bytes that the socket took.
    queued: u64,
    written: u64,
    asked: VecDeque<Asked>,
    /// When the server was last seen to take or to send something.
    progress: Instant,
    /// Replies that have not arrived are not waited for any longer.
    is_given_up: bool,
}

impl Pipe {
    pub(crate) fn new() -> Self {
        let state = State {
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

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sends commands, or says why not.
    pub(crate) fn ask(&self, mut batch: Batch) {
        let mut state = self.lock();
        let link = match state.room() {
            Ok(link) => link,
            Err(no) => {
                drop(state);
                return batch.refuse(&no);
            }
        };
        for said in &mut batch.said {
            if let Said::Sent { end, .. } = said {
                *end += state.queued;
            }
        }
        let Batch { bytes, said, slot } = batch;
        let mut asked = Asked { said, replies: Replies::default(), slot, since: Instant::now(), began: None };
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

    /// Returns deliveries that were not taken to the front of their queues.
    pub(crate) fn give_back(&self, untaken: Vec<Untaken>) {
        for Untaken { queue, tasks } in untaken {
            // A task that is returned later stands before one that was returned earlier.
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
            // Whatever cannot be given back now comes back as any delivery does whose holder is silent.
            self.ask(Batch::of(&commands));
        }
    }

    /// From now on nothing more is asked, and the connection goes when all is answered.
    pub(crate) fn close(&self) {
        self.lock().is_closed = true;
        self.changed.notify_one();
    }

    /// The time for closing is over: unanswered commands are lost.
    pub(crate) fn give_up(&self) {
        self.lock().is_given_up = true;
        self.changed.notify_one();
    }

    /// Whether something may be asked now.
    pub(crate) fn is_connected(&self) -> bool {
        self.lock().link.is_ok()
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.lock().is_closed
    }

    /// Waits until there is something for the thread to look at.
    pub(crate) async fn changed(&self) {
        self.changed.notified().await;
    }

    /// Refuses what is asked from now on, until there is a connection.
    pub(crate) fn refuse_all(&self, refusal: Refusal) {
        self.lock().link = Err(refusal);
    }

    /// From now on what is asked goes over this connection.
    pub(crate) fn attach(&self, conn: &Conn) {
        let mut state = self.lock();
        (state.queued, state.written) = (0, 0);
        state.link = Ok(Arc::clone(&conn.stream));
    }

    /// Serves the connection that was attached until it ends; answers whether that is because the pipe was closed.
    pub(crate) async fn serve(&self, mut conn: Conn, target: &Target, patience: Patience) -> bool {
        let mut current = None;
        let ended = self.exchange(&mut conn, &mut current, patience).await;
        let is_closed = ended.is_ok();
        let why = ended.err().map(|error| format!("sureq at {target}: {error}"));
        self.lose(current, &why.unwrap_or_default());
        is_closed
    }

    /// Writes and reads. An error is the end of the connection.
    async fn exchange(
        &self,
        conn: &mut Conn,
        current: &mut Option<Asked>,
        patience: Patience,
    ) -> io::Result<()> {
        // Often enough, and so seldom that it costs nothing.
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
            // The socket was full: the server, or the way to it, has taken some.
            state.progress = Instant::now();
        }
        if state.unsent.is_empty() {
            // A giant leaves no room behind.
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

    /// Takes in a reply for the oldest batch.
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
            self.give_back(asked.slot.fill_at(asked.replies, began));
        } else {
            *current = Some(asked);
        }
        Ok(())
    }

    /// A server that leaves the first of them unanswered for too long, and neither takes nor sends anything meanwhile, is as good
    /// as gone. A slow line is not: a large payload may take longer than any answer.
    fn check_time(&self, current: Option<&Asked>, patience: Duration) -> io::Result<()> {
        let state = self.lock();
        let first = current.or_else(|| state.asked.front());
        let since = first.map(|asked| asked.since.max(state.progress));
        if since.is_some_and(|since| since.elapsed() >= patience) {
            return Err(io::Error::new(io::ErrorKind::TimedOut, format!("no answer within {patience:?}")));
        }
        Ok(())
    }

    /// Answers everything that will not be answered any more.
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
            // Earlier replies may hold tasks, which cannot be returned without a connection: their leases end by themselves.
            asked.slot.fill(asked.replies);
        }
    }
}

impl State {
    /// The connection, if more may be asked over it.
    fn room(&self) -> Result<Arc<TcpStream>, Refusal> {
        if self.is_closed {
            return Err(Refusal::Closed);
        }
        if self.unsent.len() > UNSENT_BYTES_MAX || self.asked.len() >= ASKED_MAX {
            let why = "too much waits for the server to take it: ask again later".into();
            return Err(Refusal::Unavailable { why });
        }
        self.link.clone()
    }
}

/// Writes as much as the socket takes at once. An error that follows a success is found by the next write.
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
