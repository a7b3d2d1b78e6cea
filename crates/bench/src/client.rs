//! A blocking connection for everything that is not timed per request: filling, draining, inspecting.

use std::io::{self, ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use crate::dialect::Dialect;
use crate::resp::{Scan, Token};

const INPUT_BYTES: usize = 64 << 10;
/// A server that reads its log after a start does not answer meanwhile.
const PATIENCE: Duration = Duration::from_secs(300);

/// A connection that waits for its replies.
pub(crate) struct Client {
    stream: TcpStream,
    scan: Scan,
    /// Requests that are not sent yet.
    pub(crate) output: Vec<u8>,
    input: Vec<u8>,
    /// Replies that are not consumed yet, between `taken` and `filled`.
    taken: usize,
    filled: usize,
    tokens: Vec<Token>,
}

/// One reply, whose tokens point into its bytes.
#[derive(Clone, Copy)]
pub(crate) struct Reply<'a> {
    pub(crate) bytes: &'a [u8],
    pub(crate) tokens: &'a [Token],
}

impl Client {
    /// Connects and greets. The greeting is sent with the first requests.
    pub(crate) fn open(address: SocketAddr, dialect: &dyn Dialect, me: usize) -> io::Result<Self> {
        let mut client = Client::connect(address, dialect.scanner())?;
        dialect.greet(&mut client.output, me);
        Ok(client)
    }

    /// Connects to a server whose replies are decoded by `scan`.
    pub(crate) fn connect(address: SocketAddr, scan: Scan) -> io::Result<Self> {
        let stream = TcpStream::connect(address)?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(PATIENCE))?;
        stream.set_write_timeout(Some(PATIENCE))?;
        Ok(Client {
            stream,
            scan,
            output: Vec::new(),
            input: vec![0; INPUT_BYTES],
            taken: 0,
            filled: 0,
            tokens: Vec::new(),
        })
    }

    /// Sends the bytes in `output`.
    pub(crate) fn send(&mut self) -> io::Result<()> {
        self.stream.write_all(&self.output)?;
        self.output.clear();
        Ok(())
    }

    /// Waits for the next reply.
    pub(crate) fn reply(&mut self) -> Result<Reply<'_>, Box<dyn std::error::Error>> {
        loop {
            let length = (self.scan)(&self.input[self.taken..self.filled], &mut self.tokens)?;
            if let Some(length) = length {
                let bytes = &self.input[self.taken..self.taken + length];
                self.taken += length;
                return Ok(Reply { bytes, tokens: &self.tokens });
            }
            self.read()?;
        }
    }

    fn read(&mut self) -> io::Result<()> {
        self.input.copy_within(self.taken..self.filled, 0);
        self.filled -= self.taken;
        self.taken = 0;
        if self.filled == self.input.len() {
            self.input.resize(self.input.len() * 2, 0);
        }
        loop {
            match self.stream.read(&mut self.input[self.filled..]) {
                Ok(0) => {
                    return Err(io::Error::new(ErrorKind::UnexpectedEof, "the server closed a connection"));
                }
                Ok(count) => {
                    self.filled += count;
                    return Ok(());
                }
                Err(e) if e.kind() == ErrorKind::Interrupted => {}
                Err(e) => return Err(e),
            }
        }
    }
}
