//! One connection: reads, hands what arrived to its dialect, writes what may leave.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::future::poll_fn;
use std::io;
use std::mem;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use sureq_core::command::{Command, ConnId};
use sureq_core::reply::TaskView;
use sureq_core::{Receipt, Replies};
use sureq_home_api::{Answer, Home, Payload, Position, Submitted, Ticket};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio::time::{Instant, Sleep, sleep};

use crate::bounds::Allowance;
use crate::checker::Login;
use crate::input::Input;
use crate::net_thread::Thread;
use crate::output::Output;
use crate::users::User;

/// How much is read at once.
const READ_BYTES: usize = 64 << 10;

/// How much of a connection that waits for a task is read ahead, to notice that it is gone.
const READ_AHEAD_BYTES: usize = 1 << 20;

/// How much is written at once.
const WRITE_BYTES: usize = 256 << 10;

/// How often a connection writes before others get their turn.
const WRITES_PER_TURN: usize = 4;

/// How often a connection reads before others get their turn, and what was gathered is committed.
const READS_PER_TURN: usize = 4;

/// What a connection takes up besides its buffers, about: its task, its socket, its place in lists.
const CONNECTION_BYTES: usize = 1 << 10;

thread_local! {
    /// Rooms that all connections of a thread share: an idle connection holds no buffer.
    static ROOM: RefCell<Room> = RefCell::new(Room { input: vec![0; READ_BYTES], replies: Replies::default() });
}

struct Room {
    input: Vec<u8>,
    replies: Replies<Payload>,
}

/// What a dialect has to work with when something arrived.
pub(crate) struct DialectCx<'t> {
    pub(crate) home: &'t dyn Home,
    pub(crate) out: &'t mut Output,
    pub(crate) replies: &'t mut Replies<Payload>,
    pub(crate) thread: &'t Thread,
    /// The answer to the commands at the beginning of the input, which were waited for.
    pub(crate) ready: Option<Ready>,
    /// How much of `replies` has been written already.
    pub(crate) written: Written,
    /// How much memory `replies` takes up, if it was waited for.
    bytes: usize,
    /// Of an answer that is written in parts: deliveries whose reply has not been begun, once they were looked for.
    pub(crate) unbegun: Option<VecDeque<Unbegun>>,
}

/// A delivery in an answer, whose reply has not been begun.
pub(crate) struct Unbegun {
    /// The number of that reply in the answer.
    pub(crate) reply: usize,
    pub(crate) queue: Box<[u8]>,
    pub(crate) receipt: Receipt,
}

/// How much of an answer has been written: so many replies, and so many items of the next.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Written {
    pub(crate) replies: usize,
    pub(crate) items: usize,
}

/// An answer that was waited for, or what is left of a long one.
pub(crate) struct Ready {
    replies: Replies<Payload>,
    position: Position,
    written: Written,
    /// How much memory it takes up, about, while it waits to be written.
    bytes: usize,
    unbegun: Option<VecDeque<Unbegun>>,
}

impl Ready {
    /// How many commands it answers.
    pub(crate) const fn commands(&self) -> usize {
        self.replies.list.len()
    }
}

impl From<Answer> for Ready {
    fn from(Answer { replies, position, .. }: Answer) -> Self {
        let payloads: usize =
            replies.tasks.iter().map(|task| task.body.as_ref().len() + more_bytes(task)).sum();
        let names: usize = replies.queues.iter().map(|row| row.name.len()).sum();
        let bytes = payloads + names + size_of_val(&*replies.tasks) + size_of_val(&*replies.queues);
        Self { replies, position, written: Written::default(), bytes, unbegun: None }
    }
}

/// What the name, the reason and a foreign id of a task take up.
fn more_bytes(task: &TaskView<Payload>) -> usize {
    let len = |bytes: &Option<Box<[u8]>>| bytes.as_ref().map_or(0, |bytes| bytes.len());
    task.more.as_ref().map_or(0, |more| size_of_val(&**more) + len(&more.name) + len(&more.reason))
        + len(&task.foreign_id)
}

impl DialectCx<'_> {
    /// Has the home execute commands, or hands over what it has answered to them.
    pub(crate) fn submit(&mut self, commands: &[Command<'_>]) -> Submitted {
        let Some(ready) = self.ready.take() else {
            (self.written, self.bytes, self.unbegun) = (Written::default(), 0, None);
            return self.home.submit(commands, self.replies);
        };
        (*self.replies, self.written, self.bytes) = (ready.replies, ready.written, ready.bytes);
        self.unbegun = ready.unbegun;
        let executed = self.replies.list.len();
        Submitted { executed, position: ready.position, ..Submitted::default() }
    }

    /// Takes what is left of an answer that was not written to its end.
    pub(crate) fn rest(&mut self, position: Position) -> Ready {
        let (replies, unbegun) = (mem::take(self.replies), self.unbegun.take());
        Ready { replies, position, written: self.written, bytes: self.bytes, unbegun }
    }
}

/// What a dialect did with what arrived.
pub(crate) struct Consumed {
    /// How many bytes it is done with.
    pub(crate) bytes: usize,
    pub(crate) next: Then,
    /// Nothing more should be taken before this is durable.
    pub(crate) hold: Option<Position>,
    /// Others who waited got something out of it.
    pub(crate) served: bool,
}

/// What a connection does next.
pub(crate) enum Then {
    /// Reads on.
    Read,
    /// Hands over the rest again: there is more to do in it.
    Again,
    /// Hands over the rest again once its peer has taken more of what it was answered.
    Later,
    /// Hands over the rest again together with what is left of a long answer, once others had their turn.
    WriteOn(Box<Ready>),
    /// Waits for an answer, and then hands over the rest again together with it.
    Wait(Ticket),
    /// Waits until it is known who its peer is.
    LogIn(Login),
    /// Sends what is left, and closes.
    Close,
}

/// A dialect, for one connection.
pub(crate) trait Dialect {
    /// Executes what has arrived and appends the replies.
    fn take(&mut self, input: &[u8], cx: &mut DialectCx<'_>) -> Consumed;

    /// Appends what the connection is told without having asked; answers whether there was anything. An error ends it.
    fn hear(&mut self, _out: &mut Output) -> io::Result<bool> {
        Ok(false)
    }

    /// How much memory it takes up besides what every connection does.
    fn bytes(&self) -> usize {
        0
    }

    /// Appends the reply to a login, which failed if there is no user; answers whether the peer may try again.
    fn greet(&mut self, _user: Option<Arc<User>>, _thread: &Thread, _out: &mut Output) -> bool {
        true
    }

    /// What the connection may take up now.
    fn allowance(&self) -> Allowance;
}

/// What a connection waits for before it goes on.
enum Awaited {
    Task(Ticket),
    Login(Login),
}

/// One connection and its dialect.
pub(crate) struct Connection<D> {
    stream: TcpStream,
    dialect: D,
    thread: Arc<Thread>,
    conn: ConnId,
    /// What has arrived and is not yet a whole request.
    input: Input,
    out: Output,
    ticket: Option<Awaited>,
    /// What was waited for is there.
    ready: Option<Ready>,
    hold: Option<Position>,
    /// What has arrived holds whole requests, which wait until there is room for their replies.
    later: bool,
    /// The position that this connection is parked under.
    parked: Option<Position>,
    reading: Reading,
    idle: Option<Idle>,
    /// Closes it if its peer has not said in time who it is.
    login_ends: Option<Pin<Box<Sleep>>>,
    /// The thread knows how to reach this connection.
    is_met: bool,
    /// Others are to be answered before this one.
    gives_way: bool,
    /// How much memory the home has been told that this connection takes up.
    charged: usize,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Reading {
    Open,
    /// The peer has sent its last byte, or nothing more is wanted of it.
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
            ticket: None,
            ready: None,
            hold: None,
            later: false,
            parked: None,
            reading: Reading::Open,
            idle: idle.map(|limit| Idle { limit, timer: Box::pin(sleep(limit)) }),
            login_ends: None,
            is_met: false,
            gives_way: false,
            charged: 0,
        }
    }

    /// Serves the connection until it ends.
    pub(crate) async fn serve(mut self) {
        // Whether the peer went or failed makes no difference: what it did not get goes back.
        let _ = poll_fn(|cx| {
            let polled = self.poll(cx);
            let left = self.ready.as_ref().map_or(0, |ready| ready.bytes);
            let buffers = self.input.capacity() + self.out.capacity() + left;
            self.charge(CONNECTION_BYTES + buffers + self.dialect.bytes());
            polled
        })
        .await;
    }

    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        if !mem::replace(&mut self.is_met, true) {
            self.thread.meet(self.conn, cx.waker());
        }
        for _ in 0..READS_PER_TURN {
            if self.thread.home.failure().is_some() {
                return Poll::Ready(Err(io::ErrorKind::BrokenPipe.into()));
            }
            // Looked at once: whoever is held back by it is parked by it, however far the log gets meanwhile.
            let durable = self.thread.home.durable();
            let Poll::Ready(waits_for) = self.flush(cx)? else {
                cx.waker().wake_by_ref();
                return Poll::Pending;
            };
            // Reading goes first: of a peer that is known to be gone, no answer is taken that it would never get.
            let mut progress = self.poll_read(durable, cx)?;
            progress |= self.poll_ticket(cx);
            // Nothing is told in the middle of a reply.
            if self.ready.is_none() {
                progress |= self.dialect.hear(&mut self.out)?;
            }
            if progress && mem::take(&mut self.gives_way) {
                // What they get leaves before the answer to who pushed it: they have waited longer.
                cx.waker().wake_by_ref();
                return Poll::Pending;
            }
            if progress {
                continue;
            }
            let done = self.ticket.is_none() && !self.later && self.out.is_empty();
            if done && self.reading == Reading::Ended {
                return Poll::Ready(Ok(()));
            }
            self.park(waits_for, durable, cx);
            return self.poll_idle(cx);
        }
        // A thread that is never idle would never commit.
        self.thread.home.commit();
        cx.waker().wake_by_ref();
        Poll::Pending
    }

    /// Has the home count what this connection takes up.
    fn charge(&mut self, bytes: usize) {
        if bytes != self.charged {
            self.thread.home.charge(bytes, self.charged);
            self.charged = bytes;
        }
    }

    /// Sends what may leave; answers what the rest waits for. Pending, if there is so much that others are to have their turn
    /// before it goes on.
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

    fn poll_ticket(&mut self, cx: &mut Context<'_>) -> bool {
        match &mut self.ticket {
            None => return false,
            Some(Awaited::Task(ticket)) => {
                let Poll::Ready(answer) = ticket.poll(cx) else { return false };
                self.ready = Some(answer.into());
            }
            Some(Awaited::Login(login)) => {
                let Poll::Ready(user) = login.poll(cx) else { return false };
                if !self.dialect.greet(user, &self.thread, &mut self.out) {
                    self.reading = Reading::Ended;
                    self.input = Input::default();
                }
                self.out.gate(Position::START);
            }
        }
        self.ticket = None;
        self.take_input();
        true
    }

    /// Reads once, if there is room; answers whether anything came of it.
    fn poll_read(&mut self, durable: Position, cx: &mut Context<'_>) -> io::Result<bool> {
        if self.thread.is_draining() && self.ticket.is_none() {
            self.reading = Reading::Ended;
        }
        if self.is_held(durable) {
            return Ok(false);
        }
        if mem::take(&mut self.later) {
            self.take_input();
            return Ok(true);
        }
        let ahead = self.ticket.is_some() && self.input.len() > READ_AHEAD_BYTES;
        let wanted =
            self.dialect.allowance().input_bytes_max.saturating_sub(self.input.len()).min(READ_BYTES);
        if self.reading == Reading::Ended || ahead || wanted == 0 {
            return Ok(false);
        }
        ROOM.with_borrow_mut(|room| {
            let mut buffer = ReadBuf::new(&mut room.input[..wanted]);
            match Pin::new(&mut self.stream).poll_read(cx, &mut buffer) {
                Poll::Pending => return Ok(false),
                Poll::Ready(read) => read?,
            }
            let len = buffer.filled().len();
            if len == 0 {
                self.reading = Reading::Ended;
                // Nobody is there to take what a waiting pop would get. Whatever else was asked for is still answered: the
                // peer may only have said all that it has to say.
                self.ticket
                    .take_if(|awaited| matches!(awaited, Awaited::Task(ticket) if ticket.waits_for_tasks()));
                return Ok(true);
            }
            self.renew_idle();
            let Room { input, replies } = room;
            if self.input.is_empty() && self.ticket.is_none() {
                let consumed = self.take(&input[..len], replies);
                self.keep(&input[consumed..len]);
            } else {
                self.keep(&input[..len]);
                self.take_input_with(replies);
            }
            Ok(true)
        })
    }

    /// Keeps what has arrived until more does.
    fn keep(&mut self, input: &[u8]) {
        self.input.keep(input, self.dialect.allowance().input_bytes_max);
    }

    /// Whether nothing more is to be executed for now: the peer does not take its answers, or the disk is behind.
    fn is_held(&self, durable: Position) -> bool {
        self.hold.is_some_and(|hold| hold > durable)
            || self.out.len() > self.dialect.allowance().output_bytes_max
    }

    fn take_input(&mut self) {
        ROOM.with_borrow_mut(|room| self.take_input_with(&mut room.replies));
    }

    fn take_input_with(&mut self, replies: &mut Replies<Payload>) {
        if self.ticket.is_some() || self.later || self.input.is_empty() {
            return;
        }
        let mut input = mem::take(&mut self.input);
        let consumed = self.take(input.rest(), replies);
        input.advance(consumed);
        self.input = input;
    }

    /// Hands input to the dialect until it wants more; answers how much of it is done with.
    fn take(&mut self, input: &[u8], replies: &mut Replies<Payload>) -> usize {
        let mut consumed = 0;
        loop {
            let ready = self.ready.take();
            let (home, out, thread) = (&*self.thread.home, &mut self.out, &*self.thread);
            let written = Written::default();
            let mut cx = DialectCx { home, out, replies, thread, ready, written, bytes: 0, unbegun: None };
            let taken = self.dialect.take(&input[consumed..], &mut cx);
            replies.clear();
            consumed += taken.bytes;
            self.hold = taken.hold.or(self.hold);
            self.gives_way |= taken.served;
            match taken.next {
                Then::Again => {}
                Then::Read => return consumed,
                Then::Later => {
                    self.later = true;
                    return consumed;
                }
                Then::WriteOn(ready) => {
                    self.ready = Some(*ready);
                    (self.later, self.gives_way) = (true, true);
                    return consumed;
                }
                Then::Wait(ticket) => {
                    self.ticket = Some(Awaited::Task(ticket));
                    if self.thread.is_draining() {
                        self.thread.home.dismiss_waiters();
                    }
                    return consumed;
                }
                Then::LogIn(login) => {
                    self.ticket = Some(Awaited::Login(login));
                    return consumed;
                }
                Then::Close => {
                    self.reading = Reading::Ended;
                    return input.len();
                }
            }
        }
    }

    /// Has the pump wake this connection when what it waits for is durable.
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

/// However a connection ends, what it was handed and never got goes back.
impl<D> Drop for Connection<D> {
    fn drop(&mut self) {
        // If this is a panic, the home may be what failed; it is not asked for more.
        if !std::thread::panicking() {
            self.thread.home.charge(0, self.charged);
            drop(self.ticket.take());
            for (queue, receipts) in self.out.take_unsent() {
                self.thread.home.requeue(&queue, &receipts);
            }
            let unbegun = self.ready.take().and_then(|ready| ready.unbegun).unwrap_or_default();
            for some in unbegun.into_iter().collect::<Vec<_>>().chunk_by(|one, next| one.queue == next.queue)
            {
                let receipts: Vec<Receipt> = some.iter().map(|unbegun| unbegun.receipt).collect();
                self.thread.home.requeue(&some[0].queue, &receipts);
            }
            self.thread.home.close_conn(self.conn);
        }
        // Whoever sees that it is gone finds what it held where it belongs.
        self.thread.leave(self.conn);
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Read as _, Write as _};
    use std::net::{Ipv4Addr, TcpListener, TcpStream as StdStream};
    use std::thread;

    use sureq_engine::{Engine, Options};
    use tokio::time::timeout;

    use super::*;
    use crate::net_thread::tests::thread_of;
    use crate::resp::RespSession;

    const TASKS: usize = 20_000;

    /// Reads up to the reply to the PING behind a long one; answers how many payloads there were.
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

    #[tokio::test]
    async fn a_long_answer_is_written_in_parts_as_its_peer_reads_it() {
        let home = Arc::new(Engine::in_memory(&Options::default()));
        let push = Command::Push { queue: b"q", payloads: &[&[b'x'; 1_000][..]; 100] };
        let pushed = home.submit(&vec![push; TASKS / 100], &mut Replies::default());
        assert_eq!(pushed.executed, TASKS / 100);
        home.commit();
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let mut peer = StdStream::connect(listener.local_addr().expect("it has one")).expect("it listens");
        let (stream, _) = listener.accept().expect("it connected");
        stream.set_nonblocking(true).expect("a socket can be");
        let stream = TcpStream::from_std(stream).expect("within a runtime");
        let thread = thread_of(home);
        let session = RespSession::new(ConnId(1), Ipv4Addr::LOCALHOST.into(), &thread);
        let mut connection = Connection::new(stream, session, ConnId(1), Arc::clone(&thread), None);
        peer.write_all(format!("RQ.INSPECT q 0 {TASKS}\r\nPING\r\n").as_bytes()).expect("there is room");
        // Far less than the reply, which has 20 MB.
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
                assert!(connection.ready.is_some(), "there is more to be written");
                let peer = peer.try_clone().expect("a socket can be shared");
                reader = Some(thread::spawn(move || read_all(&peer)));
            }
            let is_done = connection.out.is_empty() && connection.ready.is_none() && !connection.later;
            let is_read = reader.is_some() && is_done;
            if is_read { Poll::Ready(()) } else { Poll::Pending }
        });
        timeout(Duration::from_secs(60), written).await.expect("it is read in far less time");
        let read = reader.expect("it was started").join().expect("it read all");
        assert_eq!(read, TASKS);
        assert!(polls > TASKS / 1_000, "{polls} polls: others had hardly a turn");
    }
}
