//! One connection: it connects, authenticates, sends one command at a time, and shuts down cleanly.

use std::io;
use std::net::Shutdown;
use std::sync::Arc;
use std::time::{Duration, Instant};

use socket2::{SockRef, TcpKeepalive};
use sureq_proto::resp::{BadReply, Piece, PieceReader, Pieces as _, Version, Writer};
use tokio::net::TcpStream;
use tokio::time::{timeout, timeout_at};

use crate::Patience;
use crate::inbox::Inbox;
use crate::target::Target;

/// TCP keepalive: a silent peer is probed after the first time, and then again at the second interval.
const KEEPALIVE: Duration = Duration::from_secs(15);
const KEEPALIVE_AGAIN: Duration = Duration::from_secs(5);
const KEEPALIVE_TRIES: u32 = 3;

/// The most unsent bytes in the socket's buffer. With more, a large payload on a slow network would look stalled:
/// megabytes would drain from the buffer without any write that shows the progress.
const UNSENT_BYTES: u32 = 128 << 10;

/// Why connecting failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ConnectError {
    /// No server listens there, or the connection broke.
    #[error("{0}")]
    Io(#[from] io::Error),
    /// The server did not accept or did not answer within this time.
    #[error("no answer within {0:?}")]
    Silent(Duration),
    /// The server refused this client, for example because of a wrong password.
    #[error("the server refuses: {0}")]
    Refused(String),
    /// The peer is not a sureq server.
    #[error("not a sureq server: {0}")]
    NotSureq(String),
}

impl ConnectError {
    /// Whether the server refused only because it is still loading its data.
    pub(crate) fn is_loading(&self) -> bool {
        matches!(self, Self::Refused(text) if text.starts_with("LOADING"))
    }
}

/// Why a command has no reply.
#[derive(Debug)]
pub(crate) struct Lost {
    /// The server may have received the whole command.
    pub(crate) was_sent: bool,
    pub(crate) why: String,
}

/// A complete reply.
#[derive(Clone, Copy)]
pub(crate) struct Frame<'a> {
    pub(crate) bytes: &'a [u8],
    /// When its first bytes arrived.
    pub(crate) began: Instant,
}

/// When to give up waiting for a reply.
#[derive(Clone, Copy, Debug)]
pub(crate) struct AnswerBy {
    /// When its first bytes are due; `None` is no limit.
    first: Option<Instant>,
    /// How long the rest of the reply may make no progress.
    progress: Duration,
    /// The time that the error names.
    wait: Duration,
}

impl AnswerBy {
    /// No limit.
    pub(crate) const ANY: Self = Self { first: None, progress: Duration::MAX, wait: Duration::MAX };

    /// The reply begins within this time plus the patience, and makes progress from then on.
    pub(crate) fn within(time: Duration, patience: Duration) -> Self {
        let wait = time.saturating_add(patience);
        Self { first: Instant::now().checked_add(wait), progress: patience, wait }
    }

    /// The reply begins at any time, and makes progress from then on.
    pub(crate) const fn once_begun(patience: Duration) -> Self {
        Self { first: None, progress: patience, wait: patience }
    }

    fn late(&self) -> io::Error {
        io::Error::new(io::ErrorKind::TimedOut, format!("no answer within {:?}", self.wait))
    }
}

/// A connection after a successful HELLO.
pub(crate) struct Conn {
    pub(crate) stream: Arc<TcpStream>,
    pub(crate) inbox: Inbox,
}

impl Conn {
    pub(crate) async fn open(target: &Target, patience: Patience) -> Result<Self, ConnectError> {
        let silent = |_| ConnectError::Silent(patience.connect);
        let connecting = TcpStream::connect((target.host.as_str(), target.port));
        let stream = timeout(patience.connect, connecting).await.map_err(silent)??;
        stream.set_nodelay(true)?;
        let keepalive = TcpKeepalive::new().with_time(KEEPALIVE).with_interval(KEEPALIVE_AGAIN);
        SockRef::from(&stream).set_tcp_keepalive(&keepalive.with_retries(KEEPALIVE_TRIES))?;
        #[cfg(any(target_os = "android", target_os = "linux"))]
        SockRef::from(&stream).set_tcp_notsent_lowat(UNSENT_BYTES)?;
        let mut conn = Self { stream: Arc::new(stream), inbox: Inbox::new() };
        timeout(patience.connect, conn.handshake(target)).await.map_err(silent)??;
        Ok(conn)
    }

    async fn handshake(&mut self, target: &Target) -> Result<(), ConnectError> {
        let mut words: Vec<&[u8]> = vec![b"HELLO", b"3"];
        if let Some(login) = &target.login {
            words.extend([&b"AUTH"[..], &login.user, &login.password]);
        }
        words.extend([&b"SETNAME"[..], b"sureq"]);
        let answer =
            self.ask(&words_of(&words), AnswerBy::ANY).await.map_err(|lost| io::Error::other(lost.why))?;
        match is_sureq(answer.bytes) {
            Ok(true) => Ok(()),
            Ok(false) => Err(ConnectError::NotSureq(
                "it speaks RESP, but has no queues; is it a Redis? Write redis://".to_owned(),
            )),
            Err(HandshakeError::Refused(text)) => Err(ConnectError::Refused(text)),
            Err(HandshakeError::Odd(odd)) => Err(ConnectError::NotSureq(odd.to_string())),
        }
    }

    /// Sends a command and waits for its reply. A caller that stops waiting can call [`Self::withdraw`] next.
    pub(crate) async fn ask(&mut self, command: &[u8], by: AnswerBy) -> Result<Frame<'_>, Lost> {
        let mut rest = command;
        while !rest.is_empty() {
            let not_sent = |error: io::Error| Lost { was_sent: false, why: error.to_string() };
            let writable = timeout(by.progress, self.stream.writable()).await;
            writable.map_err(|_| by.late()).flatten().map_err(not_sent)?;
            match self.stream.try_write(rest) {
                Ok(n) => rest = &rest[n..],
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(error) => return Err(not_sent(error)),
            }
        }
        let sent = |why: String| Lost { was_sent: true, why };
        match self.read_by(by).await {
            Ok(Some(())) => {}
            Ok(None) => return Err(sent("it closed the connection".to_owned())),
            Err(error) => return Err(sent(error.to_string())),
        }
        Ok(self.frame())
    }

    fn frame(&self) -> Frame<'_> {
        Frame { bytes: self.inbox.taken(), began: self.inbox.taken_began() }
    }

    /// Waits for the next reply; `None` at the end of the connection.
    async fn read(&mut self) -> io::Result<Option<()>> {
        self.read_by(AnswerBy::ANY).await
    }

    /// Waits for the next reply, no longer than these limits; `None` at the end of the connection.
    async fn read_by(&mut self, by: AnswerBy) -> io::Result<Option<()>> {
        let mut deadline = by.first;
        loop {
            match self.inbox.take() {
                Ok(true) => return Ok(Some(())),
                Ok(false) => {}
                Err(bad) => return Err(garbage(bad)),
            }
            match deadline {
                None => self.stream.readable().await?,
                Some(at) => timeout_at(at.into(), self.stream.readable()).await.map_err(|_| by.late())??,
            }
            match self.stream.try_read(self.inbox.room()) {
                Ok(0) => return Ok(None),
                Ok(n) => {
                    self.inbox.add(n);
                    deadline = by.first.max(Instant::now().checked_add(by.progress));
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(error) => return Err(error),
            }
        }
    }

    /// Waits for the next message that the server sends on its own.
    pub(crate) async fn hear(&mut self) -> io::Result<&[u8]> {
        match self.read().await? {
            Some(()) => Ok(self.inbox.taken()),
            None => Err(io::ErrorKind::UnexpectedEof.into()),
        }
    }

    /// Shuts down the sending side, which makes the server give up a waiting pop. Returns the reply if the server had
    /// sent one before, and otherwise `None`.
    pub(crate) async fn withdraw(&mut self, patience: Patience) -> Result<Option<Frame<'_>>, Lost> {
        let lost = |why: String| Lost { was_sent: true, why };
        SockRef::from(&*self.stream).shutdown(Shutdown::Write).map_err(|error| lost(error.to_string()))?;
        match self.read_by(AnswerBy::within(Duration::ZERO, patience.connect)).await {
            Ok(Some(())) => Ok(Some(self.frame())),
            Ok(None) => Ok(None),
            Err(error) => Err(lost(error.to_string())),
        }
    }

    /// Whether the server has closed the connection, or has sent something unrequested.
    pub(crate) fn is_stale(&self) -> bool {
        let mut one = [std::mem::MaybeUninit::uninit()];
        match SockRef::from(&*self.stream).peek(&mut one) {
            Err(error) => error.kind() != io::ErrorKind::WouldBlock,
            Ok(_) => true,
        }
    }
}

/// The error for bytes that are not a RESP3 reply.
pub(crate) fn garbage(bad: BadReply) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, format!("it sent an invalid reply: {bad}"))
}

/// Encodes a command.
pub(crate) fn words_of(words: &[&[u8]]) -> Vec<u8> {
    let mut bytes = Vec::new();
    let w = &mut Writer::new(&mut bytes, Version::Resp2);
    w.array(words.len());
    for word in words {
        w.bulk(word);
    }
    bytes
}

/// Why the reply to HELLO is not accepted.
enum HandshakeError {
    Refused(String),
    Odd(BadReply),
}

/// Whether the reply to HELLO is from a sureq server, or from a Redis with the sureq module.
fn is_sureq(greeting: &[u8]) -> Result<bool, HandshakeError> {
    let mut pieces = PieceReader::new(greeting);
    let mut is_sureq = false;
    while pieces.at() < greeting.len() {
        match pieces.take().map_err(HandshakeError::Odd)? {
            Piece::Error(error) => {
                return Err(HandshakeError::Refused(String::from_utf8_lossy(error).into_owned()));
            }
            Piece::Bulk(word) => is_sureq |= word == b"sureq",
            _ => {}
        }
    }
    Ok(is_sureq)
}
