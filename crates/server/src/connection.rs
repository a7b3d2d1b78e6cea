//! One connection: reads input, hands it to the dialect, writes the replies that may be sent.

use std::cell::RefCell;
use std::future::poll_fn;
use std::io;
use std::mem;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use sureq_core::Replies;
use sureq_core::command::ConnId;
use sureq_home_api::{Payload, Position};
use tokio::io::{AsyncRead, AsyncWrite, Interest, ReadBuf};
use tokio::net::TcpStream;
use tokio::time::{Instant, Sleep, sleep};

use crate::bounds::Allowance;
use crate::checker::Login;
use crate::execute::{LateReplies, PendingReplies, ReplyRecord, SessionCx};
use crate::input::Input;
use crate::net_thread::Thread;
use crate::output::Output;
use crate::users::User;

const READ_BYTES: usize = 64 << 10;

/// The maximum number of bytes that are read ahead while a command waits for its reply. Reading ahead is how the end
/// of the connection is noticed.
const READ_AHEAD_BYTES: usize = 1 << 20;

/// Ready once the client has closed its half of the connection or reset it, even if bytes that it sent are unread.
/// READABLE would be ready because of those bytes. PRIORITY covers the closed state too, and sockets are not
/// registered for urgent data.
const PEER_CLOSED: Interest = Interest::PRIORITY;

/// The maximum size of one write in bytes.
const WRITE_BYTES: usize = 256 << 10;

/// The number of writes after which a connection yields to others.
const WRITES_PER_TURN: usize = 4;

/// The number of reads after which a connection yields to others and the executed commands are committed.
const READS_PER_TURN: usize = 4;

/// About the memory of a connection besides its buffers: its tokio task, its socket and its entries in maps.
const CONNECTION_BYTES: usize = 1 << 10;

thread_local! {
    /// Buffers that all connections of a thread share, so that an idle connection has none of its own.
    static BUFFERS: RefCell<Buffers> =
        RefCell::new(Buffers { input: vec![0; READ_BYTES], replies: Replies::default() });
}

struct Buffers {
    input: Vec<u8>,
    replies: Replies<Payload>,
}

/// The outcome of handing input to a dialect.
pub(crate) struct Consumed<F> {
    /// The number of input bytes that the dialect has consumed.
    pub(crate) bytes: usize,
    pub(crate) next: Then<F>,
    /// No further command should be executed before this position is durable.
    pub(crate) hold: Option<Position>,
    /// Waiting pops of other connections were served.
    pub(crate) served: bool,
}

/// The next step of a connection.
pub(crate) enum Then<F> {
    /// Read more input.
    Read,
    /// Hand over the rest of the input again at once: it contains more requests.
    Again,
    /// Hand over the rest of the input again once the home accepts more commands, or the client has read enough
    /// replies.
    Later,
    /// Wait for the home to answer, then hand over the rest of the input.
    Wait(PendingReplies<F>),
    /// Wait until the login succeeds or fails.
    LogIn(Login),
    /// Send the remaining replies, then close.
    Close,
}

/// The protocol handling of one connection.
pub(crate) trait Dialect {
    /// The record of a command that is kept until its reply is written.
    type Record: ReplyRecord;

    /// Executes the requests in the input and appends their replies.
    fn take(&mut self, input: &[u8], cx: &mut SessionCx<'_>) -> Consumed<Self::Record>;

    /// Appends the next part of replies that came later. Returns whether it was the last part.
    fn write(&self, late: &mut LateReplies<Self::Record>, output: (&mut Output, &Thread)) -> bool;

    /// Appends pub/sub messages. Returns whether there were any. An error ends the connection.
    fn push_messages(&mut self, _out: &mut Output) -> io::Result<bool> {
        Ok(false)
    }

    /// Checks that no such message is missing, while none can be appended. An error ends the connection.
    fn check_messages(&self) -> io::Result<()> {
        Ok(())
    }

    /// The memory that it uses besides that of every connection.
    fn bytes(&self) -> usize {
        0
    }

    /// Appends the reply to a login. The login failed if `user` is `None`. Returns whether the connection stays open.
    fn finish_login(&mut self, _user: Option<Arc<User>>, _thread: &Thread, _out: &mut Output) -> bool {
        true
    }

    /// The limits that apply to the connection at present.
    fn allowance(&self) -> Allowance;
}

/// The answer that a connection waits for before it executes more input.
enum Awaited<F> {
    Replies(PendingReplies<F>),
    Login(Login),
}

impl<F: ReplyRecord> Awaited<F> {
    /// Whether this is a pop that waits for tasks.
    fn waits_for_tasks(&self) -> bool {
        matches!(self, Self::Replies(waiting) if waiting.waits_for_tasks())
    }
}

pub(crate) struct Connection<D: Dialect> {
    stream: TcpStream,
    dialect: D,
    thread: Arc<Thread>,
    conn: ConnId,
    /// Input that has arrived and has not been executed.
    input: Input,
    out: Output,
    awaited: Option<Awaited<D::Record>>,
    /// Replies that came later, as far as they are not written yet.
    late: Option<LateReplies<D::Record>>,
    hold: Option<Position>,
    /// The input contains whole requests, which wait until the home executes more and there is room for their
    /// replies.
    later: bool,
    /// The position that this connection is parked under.
    parked: Option<Position>,
    reading: Reading,
    idle: Option<Idle>,
    /// Closes the connection if its client does not authenticate in time.
    login_ends: Option<Pin<Box<Sleep>>>,
    /// The thread has registered the waker of this connection.
    is_registered: bool,
    /// Yield to other connections before going on.
    must_yield: bool,
    /// The memory of this connection that the home currently accounts for.
    charged: usize,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Reading {
    Open,
    /// The client has closed its half, or no more input is accepted.
    Ended,
}

/// Closes a connection that has been quiet for too long.
struct Idle {
    limit: Duration,
    timer: Pin<Box<Sleep>>,
}

impl<D: Dialect> Connection<D> {
    pub(crate) fn new(
        stream: TcpStream,
        dialect: D,
        conn: ConnId,
        thread: Arc<Thread>,
        idle: Option<Duration>,
    ) -> Self {
        Self {
            stream,
            dialect,
            thread,
            conn,
            input: Input::default(),
            out: Output::default(),
            awaited: None,
            late: None,
            hold: None,
            later: false,
            parked: None,
            reading: Reading::Open,
            idle: idle.map(|limit| Idle { limit, timer: Box::pin(sleep(limit)) }),
            login_ends: None,
            is_registered: false,
            must_yield: false,
            charged: 0,
        }
    }

    /// Serves the connection until it ends.
    pub(crate) async fn serve(mut self) {
        loop {
            let is_over = poll_fn(|cx| {
                let polled = self.poll(cx);
                let buffers = self.input.capacity() + self.out.capacity();
                self.charge(CONNECTION_BYTES + buffers + self.records_bytes() + self.dialect.bytes());
                match polled {
                    // A disconnect and an error have the same consequence: tasks whose delivery was not sent are
                    // requeued.
                    Poll::Ready(_) => Poll::Ready(true),
                    Poll::Pending if self.is_read_ahead() => Poll::Ready(false),
                    Poll::Pending => Poll::Pending,
                }
            })
            .await;
            if is_over {
                return;
            }
            woken_or_closed(&self.stream).await;
        }
    }

    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        if !mem::replace(&mut self.is_registered, true) {
            self.thread.register_waker(self.conn, cx.waker());
        }
        for _ in 0..READS_PER_TURN {
            if self.thread.home.failure().is_some() {
                return Poll::Ready(Err(io::ErrorKind::BrokenPipe.into()));
            }
            // Load the position once, so that being held back and being parked are decided by the same value even if
            // the log advances in between.
            let durable = self.thread.home.durable();
            let Poll::Ready(waits_for) = self.flush(cx)? else {
                cx.waker().wake_by_ref();
                return Poll::Pending;
            };
            // Read first: if the client is known to be gone, no tasks are popped for it.
            let mut progress = self.poll_read(durable, cx)?;
            progress |= self.poll_awaited(cx);
            // Messages are not written into the middle of a reply.
            if self.late.is_none() {
                let pushed = self.dialect.push_messages(&mut self.out);
                if pushed.is_err() {
                    // The last message may contain the reason why the connection ends. Send it if there is room.
                    let _ = self.flush(cx)?;
                }
                progress |= pushed?;
            } else {
                self.dialect.check_messages()?;
            }
            if progress && mem::take(&mut self.must_yield) {
                // The served waiters have waited longer, so their replies are sent before the reply to the push.
                cx.waker().wake_by_ref();
                return Poll::Pending;
            }
            if progress {
                continue;
            }
            let answered = self.awaited.is_none() && self.late.is_none() && !self.later;
            let done = answered && self.out.is_empty();
            if done && self.reading == Reading::Ended {
                return Poll::Ready(Ok(()));
            }
            self.park(waits_for, durable, cx);
            return self.poll_idle(cx);
        }
        // Commit here, because the committer runs only when a thread has nothing else to do.
        self.thread.home.commit();
        cx.waker().wake_by_ref();
        Poll::Pending
    }

    /// The memory of the records of commands whose replies are not written yet.
    fn records_bytes(&self) -> usize {
        let awaited = match &self.awaited {
            Some(Awaited::Replies(waiting)) => waiting.bytes(),
            Some(Awaited::Login(_)) | None => 0,
        };
        awaited + self.late.as_ref().map_or(0, LateReplies::bytes)
    }

    /// Reports to the home how much memory this connection uses.
    fn charge(&mut self, bytes: usize) {
        if bytes != self.charged {
            self.thread.home.charge(bytes, self.charged);
            self.charged = bytes;
        }
    }

    /// Sends the replies that are durable. Returns the position that the other replies wait for. Pending after some
    /// writes, so that other connections get their turn.
    fn flush(&mut self, cx: &mut Context<'_>) -> io::Result<Poll<Option<Position>>> {
        for _ in 0..WRITES_PER_TURN {
            let waits_for = self.out.release(self.thread.home.durable());
            let sendable = self.out.sendable();
            if sendable.is_empty() {
                return Ok(Poll::Ready(waits_for));
            }
            let some = &sendable[..sendable.len().min(WRITE_BYTES)];
            match Pin::new(&mut self.stream).poll_write(cx, some) {
                Poll::Pending => return Ok(Poll::Ready(waits_for)),
                Poll::Ready(Ok(0)) => return Err(io::ErrorKind::WriteZero.into()),
                Poll::Ready(sent) => self.out.advance(sent?),
            }
        }
        Ok(Poll::Pending)
    }

    fn poll_awaited(&mut self, cx: &mut Context<'_>) -> bool {
        match &mut self.awaited {
            None => return false,
            Some(Awaited::Replies(waiting)) => {
                let Poll::Ready(late) = waiting.poll(cx) else { return false };
                self.late = Some(late);
            }
            Some(Awaited::Login(login)) => {
                let Poll::Ready(user) = login.poll(cx) else { return false };
                if !self.dialect.finish_login(user, &self.thread, &mut self.out) {
                    self.reading = Reading::Ended;
                    self.input = Input::default();
                }
                self.out.gate(Position::START);
            }
        }
        self.awaited = None;
        self.write_late();
        self.take_input();
        true
    }

    /// Appends the next part of replies that came later.
    fn write_late(&mut self) {
        if let Some(late) = &mut self.late {
            if self.dialect.write(late, (&mut self.out, &self.thread)) {
                self.late = None;
            } else {
                self.must_yield = true;
            }
        }
    }

    /// Reads once, if there is room. Returns whether there was progress.
    fn poll_read(&mut self, durable: Position, cx: &mut Context<'_>) -> io::Result<bool> {
        if self.thread.is_draining() && self.awaited.is_none() {
            self.reading = Reading::Ended;
        }
        if self.is_read_ahead() && pin!(self.stream.ready(PEER_CLOSED)).poll(cx).is_ready() {
            self.end_reading();
            return Ok(true);
        }
        if self.is_held(durable) {
            return Ok(false);
        }
        if self.late.is_some() || mem::take(&mut self.later) {
            self.write_late();
            self.take_input();
            return Ok(true);
        }
        let ahead = self.awaited.is_some() && self.input.len() > READ_AHEAD_BYTES;
        let wanted =
            self.dialect.allowance().input_bytes_max.saturating_sub(self.input.len()).min(READ_BYTES);
        if self.reading == Reading::Ended || ahead || wanted == 0 {
            return Ok(false);
        }
        BUFFERS.with_borrow_mut(|buffers| {
            let mut buffer = ReadBuf::new(&mut buffers.input[..wanted]);
            match Pin::new(&mut self.stream).poll_read(cx, &mut buffer) {
                Poll::Pending => return Ok(false),
                Poll::Ready(read) => read?,
            }
            let len = buffer.filled().len();
            if len == 0 {
                self.end_reading();
                return Ok(true);
            }
            self.renew_idle();
            let Buffers { input, replies } = buffers;
            if self.input.is_empty() && self.awaited.is_none() {
                let consumed = self.take(&input[..len], replies);
                self.keep(&input[consumed..len]);
            } else {
                self.keep(&input[..len]);
                self.take_input_with(replies);
            }
            Ok(true)
        })
    }

    /// Handles that the client has closed its half. A waiting pop is dropped: the client may be gone, and its task
    /// would be lost until the lease ends. Other commands are still answered, since the client may still read.
    fn end_reading(&mut self) {
        self.reading = Reading::Ended;
        self.awaited.take_if(|awaited| awaited.waits_for_tasks());
    }

    /// Whether a pop waits and the input behind it has reached the read-ahead limit. The connection is not read from
    /// then, so reading does not detect that the client is gone.
    fn is_read_ahead(&self) -> bool {
        self.input.len() > READ_AHEAD_BYTES && self.awaited.as_ref().is_some_and(Awaited::waits_for_tasks)
    }

    /// Buffers input until more arrives.
    fn keep(&mut self, input: &[u8]) {
        self.input.keep(input, self.dialect.allowance().input_bytes_max);
    }

    /// Whether no commands are executed for now, because the client does not read its replies or the disk is behind.
    fn is_held(&self, durable: Position) -> bool {
        self.hold.is_some_and(|hold| hold > durable)
            || self.out.len() > self.dialect.allowance().output_bytes_max
    }

    fn take_input(&mut self) {
        BUFFERS.with_borrow_mut(|buffers| self.take_input_with(&mut buffers.replies));
    }

    fn take_input_with(&mut self, replies: &mut Replies<Payload>) {
        let waits = self.awaited.is_some() || self.late.is_some() || self.later;
        if waits || self.input.is_empty() {
            return;
        }
        let mut input = mem::take(&mut self.input);
        let consumed = self.take(input.rest(), replies);
        input.advance(consumed);
        self.input = input;
    }

    /// Hands input to the dialect until it needs more. Returns the number of bytes that were consumed.
    fn take(&mut self, input: &[u8], replies: &mut Replies<Payload>) -> usize {
        let mut consumed = 0;
        loop {
            let (home, out, thread) = (&*self.thread.home, &mut self.out, &*self.thread);
            let mut cx = SessionCx { home, out, replies, thread };
            let taken = self.dialect.take(&input[consumed..], &mut cx);
            replies.clear();
            consumed += taken.bytes;
            self.hold = taken.hold.or(self.hold);
            self.must_yield |= taken.served;
            match taken.next {
                Then::Again => {}
                Then::Read => return consumed,
                Then::Later => {
                    self.later = true;
                    return consumed;
                }
                Then::Wait(waiting) => {
                    self.awaited = Some(Awaited::Replies(waiting));
                    if self.thread.is_draining() {
                        self.thread.home.dismiss_waiters();
                    }
                    return consumed;
                }
                Then::LogIn(login) => {
                    self.awaited = Some(Awaited::Login(login));
                    return consumed;
                }
                Then::Close => {
                    self.reading = Reading::Ended;
                    return input.len();
                }
            }
        }
    }

    /// Registers to be woken when the position that this connection waits for is durable.
    fn park(&mut self, waits_for: Option<Position>, durable: Position, cx: &Context<'_>) {
        let hold = self.hold.filter(|&hold| hold > durable);
        let position = [waits_for, hold].into_iter().flatten().min();
        if position.is_some() && position != self.parked {
            self.parked = position;
            let position = position.unwrap_or_default();
            self.thread.durability_waiters.park(&*self.thread.home, position, cx.waker());
        }
    }

    fn renew_idle(&mut self) {
        if let Some(idle) = &mut self.idle {
            idle.timer.as_mut().reset(Instant::now() + idle.limit);
        }
    }

    fn poll_idle(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        if let Some(time) = self.dialect.allowance().time {
            let timer = self.login_ends.get_or_insert_with(|| Box::pin(sleep(time)));
            if timer.as_mut().poll(cx).is_ready() {
                return Poll::Ready(Err(io::ErrorKind::TimedOut.into()));
            }
        } else {
            self.login_ends = None;
        }
        match &mut self.idle {
            Some(idle) => {
                ready!(idle.timer.as_mut().poll(cx));
                Poll::Ready(Err(io::ErrorKind::TimedOut.into()))
            }
            None => Poll::Pending,
        }
    }
}

/// Resolves when the current task is woken for any reason, or when the peer closes.
async fn woken_or_closed(stream: &TcpStream) {
    let (mut closed, mut is_first) = (pin!(stream.ready(PEER_CLOSED)), true);
    poll_fn(|cx| {
        let is_closed = closed.as_mut().poll(cx).is_ready();
        if mem::take(&mut is_first) && !is_closed { Poll::Pending } else { Poll::Ready(()) }
    })
    .await;
}

/// However a connection ends, tasks whose delivery was never sent are requeued.
impl<D: Dialect> Drop for Connection<D> {
    fn drop(&mut self) {
        // A failure of the home may be the cause of the panic, so the home is not called.
        if !std::thread::panicking() {
            self.thread.home.charge(0, self.charged);
            // All of them go to the front of their queues, so the last ones go first. A home elsewhere requeues the
            // tasks of replies that have not arrived when they do.
            drop(self.awaited.take());
            // Each queue is requeued once: a home may execute two requeues side by side.
            let mut unsent = self.out.take_unsent();
            for (queue, receipts) in self.late.iter().flat_map(LateReplies::undelivered) {
                match unsent.iter_mut().find(|(name, _)| **name == *queue) {
                    Some((_, all)) => all.extend(receipts),
                    None => unsent.push((queue.into(), receipts)),
                }
            }
            for (queue, receipts) in unsent {
                self.thread.home.requeue(&queue, &receipts);
            }
            self.thread.home.close_conn(self.conn);
        }
        // Last, so that an observer who sees that the connection is gone finds its tasks requeued.
        self.thread.leave(self.conn);
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Read as _, Write as _};
    use std::net::{Ipv4Addr, TcpListener, TcpStream as StdStream};
    use std::thread;
    use std::time::Instant;

    use sureq_core::TaskId;
    use sureq_core::command::{Command, Pop};
    use sureq_engine::{Engine, Options};
    use sureq_home_api::{Answer, Home as _, Position};
    use sureq_proto::{ReplyForm, ReplyStyle};
    use tokio::time::timeout;

    use super::*;
    use crate::net_thread::tests::thread_of;
    use crate::resp::RespSession;

    const TASKS: usize = 20_000;

    /// Reads up to the reply to the PING that follows a long reply. Returns the number of payloads.
    fn read_all(mut peer: &StdStream) -> usize {
        let (mut read, mut some) = (Vec::new(), [0; 8 << 10]);
        while !read.ends_with(b"+PONG\r\n") {
            let len = peer.read(&mut some).expect("it is sent");
            assert!(len > 0, "it ends after {} bytes", read.len());
            read.extend_from_slice(&some[..len]);
        }
        assert!(read.starts_with(format!("*{TASKS}\r\n").as_bytes()));
        read.windows(7).filter(|window| window == b"$1000\r\n").count()
    }

    /// A connection to a home with `TASKS` tasks, and its peer.
    fn connection() -> (Connection<RespSession>, StdStream) {
        let home = Arc::new(Engine::in_memory(&Options::default()));
        let push = Command::Push { queue: b"q", payloads: &[&[b'x'; 1_000][..]; 100] };
        let pushed = home.submit(&vec![push; TASKS / 100], &mut Replies::default());
        assert_eq!(pushed.executed, TASKS / 100);
        home.commit();
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let peer = StdStream::connect(listener.local_addr().expect("it has one")).expect("it listens");
        let (stream, _) = listener.accept().expect("it connected");
        stream.set_nonblocking(true).expect("a socket can be");
        let stream = TcpStream::from_std(stream).expect("within a runtime");
        let thread = thread_of(home);
        let session = RespSession::new(ConnId(1), Ipv4Addr::LOCALHOST.into(), &thread);
        (Connection::new(stream, session, ConnId(1), thread, None), peer)
    }

    #[tokio::test]
    async fn a_long_answer_is_written_in_parts_as_its_peer_reads_it() {
        let (mut connection, mut peer) = connection();
        peer.write_all(format!("RQ.INSPECT q 0 {TASKS}\r\nPING\r\n").as_bytes()).expect("there is room");
        // Far less than the size of the reply, which is 20 MB.
        let most = connection.dialect.allowance().output_bytes_max + (1 << 20);
        let (mut reader, mut polls) = (None, 0);
        let written = poll_fn(|cx| {
            let polled = connection.poll(cx);
            polls += 1;
            assert!(polled.is_pending(), "{polled:?}");
            assert!(
                connection.out.len() < most,
                "{} bytes are held after {polls} polls",
                connection.out.len()
            );
            if reader.is_none() && connection.is_held(connection.thread.home.durable()) {
                assert!(connection.late.is_some(), "there is more to be written");
                let peer = peer.try_clone().expect("a socket can be shared");
                reader = Some(thread::spawn(move || read_all(&peer)));
            }
            let is_done = connection.out.is_empty() && connection.late.is_none() && !connection.later;
            let is_read = reader.is_some() && is_done;
            if is_read { Poll::Ready(()) } else { Poll::Pending }
        });
        timeout(Duration::from_secs(60), written).await.expect("it is read in far less time");
        let read = reader.expect("it was started").join().expect("it read all");
        assert_eq!(read, TASKS);
        assert!(polls > TASKS / 1_000, "{polls} polls: other connections hardly got a turn");
    }

    /// One of the tasks is in a reply that was encoded but not sent, and two in replies that came later.
    #[tokio::test]
    async fn tasks_of_a_vanished_client_are_requeued_in_their_order() {
        let (mut connection, _peer) = connection();
        let home = Arc::clone(&connection.thread.home);
        let pop = Command::Pop(Pop::plain(&[b"q"], 1));
        let pop_three = || {
            let mut replies = Replies::default();
            let popped = home.execute(&[pop; 3], &mut replies);
            assert_eq!(popped.executed, 3);
            replies
        };
        let mut replies = pop_three();
        let ids: Vec<TaskId> = replies.tasks.iter().map(|task| task.id).collect();
        connection.out.note_delivery(connection.out.end(), b"q", replies.tasks[0].receipt());
        connection.out.bytes_mut().extend_from_slice(b"a reply that is not sent");
        replies.list.remove(0);
        let forms = vec![ReplyForm::of(&pop, ReplyStyle::Native).into_owned(); 2];
        let answer = Answer { replies, position: Position::START, at: Instant::now() };
        connection.late = Some(LateReplies::new(forms, answer));
        drop(connection);
        assert_eq!(pop_three().tasks.iter().map(|task| task.id).collect::<Vec<_>>(), ids);
    }

    /// It would keep its subscriptions for as long as it does not read.
    #[tokio::test]
    async fn a_subscriber_that_is_given_up_in_the_middle_of_a_long_answer_is_disconnected() {
        let (mut connection, mut peer) = connection();
        let requests = format!("HELLO 3\r\nPSUBSCRIBE *\r\nRQ.INSPECT q 0 {TASKS}\r\n");
        peer.write_all(requests.as_bytes()).expect("there is room");
        let mut is_given_up = false;
        let ended = poll_fn(|cx| {
            let polled = connection.poll(cx);
            if !is_given_up && connection.is_held(connection.thread.home.durable()) {
                assert!(connection.late.is_some(), "there is more to be written");
                is_given_up = true;
                connection.thread.subscriptions().disconnect_all();
            }
            polled
        });
        let ended = timeout(Duration::from_secs(60), ended).await.expect("it is woken");
        assert_eq!(ended.map_err(|error| error.kind()), Err(io::ErrorKind::TimedOut));
        assert_eq!(connection.thread.subscriptions().too_slow(), 1);
        drop(peer);
    }
}
