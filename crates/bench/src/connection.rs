//! A non-blocking connection with two buffers, which are reused.

use std::io::{self, ErrorKind, Read, Write};
use std::net::SocketAddr;

use mio::net::TcpStream;
use mio::{Interest, Registry};

use crate::dialect::Dialect;
use crate::resp::{Scan, Token};

const INPUT_BYTES: usize = 16 << 10;

/// A connection that is registered with an epoll.
pub(crate) struct Connection {
    stream: TcpStream,
    scan: Scan,
    /// Requests that are not sent yet begin at `sent`.
    pub(crate) output: Vec<u8>,
    sent: usize,
    input: Vec<u8>,
    /// Replies that are not consumed yet, between `taken` and `filled`.
    taken: usize,
    filled: usize,
}

impl Connection {
    /// Connects, greets, and registers under the number `me`. The greeting is sent with the first requests.
    pub(crate) fn open(
        address: SocketAddr,
        dialect: &dyn Dialect,
        registry: &Registry,
        me: usize,
    ) -> io::Result<Self> {
        let stream = std::net::TcpStream::connect(address)?;
        stream.set_nodelay(true)?;
        stream.set_nonblocking(true)?;
        let mut stream = TcpStream::from_std(stream);
        registry.register(&mut stream, mio::Token(me), Interest::READABLE | Interest::WRITABLE)?;
        let mut output = Vec::new();
        dialect.greet(&mut output, me);
        Ok(Connection {
            stream,
            scan: dialect.scanner(),
            output,
            sent: 0,
            input: vec![0; INPUT_BYTES],
            taken: 0,
            filled: 0,
        })
    }

    /// Sends as much of `output` as the socket accepts. The rest is sent with the next event.
    pub(crate) fn flush(&mut self) -> io::Result<()> {
        while self.sent < self.output.len() {
            match self.stream.write(&self.output[self.sent..]) {
                Ok(count) => self.sent += count,
                Err(e) if e.kind() == ErrorKind::WouldBlock => return Ok(()),
                Err(e) if e.kind() == ErrorKind::Interrupted => {}
                Err(e) => return Err(e),
            }
        }
        self.output.clear();
        self.sent = 0;
        Ok(())
    }

    /// Reads all available bytes. A read that does not fill the buffer has emptied the socket (epoll(7),
    /// "edge-triggered"), which saves another read.
    pub(crate) fn fill(&mut self) -> io::Result<()> {
        loop {
            if self.taken == self.filled {
                (self.taken, self.filled) = (0, 0);
            } else if self.filled == self.input.len() {
                self.input.copy_within(self.taken..self.filled, 0);
                self.filled -= self.taken;
                self.taken = 0;
            }
            if self.filled == self.input.len() {
                self.input.resize(self.input.len() * 2, 0);
            }
            match self.stream.read(&mut self.input[self.filled..]) {
                Ok(0) => {
                    return Err(io::Error::new(ErrorKind::UnexpectedEof, "the server closed a connection"));
                }
                Ok(count) => {
                    self.filled += count;
                    if self.filled < self.input.len() {
                        return Ok(());
                    }
                }
                Err(e) if e.kind() == ErrorKind::WouldBlock => return Ok(()),
                Err(e) if e.kind() == ErrorKind::Interrupted => {}
                Err(e) => return Err(e),
            }
        }
    }

    /// Takes the next complete reply, if there is one: the bytes that `tokens` refer to.
    pub(crate) fn next_reply(&mut self, tokens: &mut Vec<Token>) -> Result<Option<&[u8]>, String> {
        let bytes = &self.input[self.taken..self.filled];
        let Some(length) = (self.scan)(bytes, tokens)? else { return Ok(None) };
        self.taken += length;
        Ok(Some(bytes))
    }
}
