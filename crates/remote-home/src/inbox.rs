//! The input of a connection, split into replies. The buffer grows with the input, and shrinks after a very large
//! reply.

use std::time::Instant;

use sureq_proto::resp::{BadReply, Scanner};

/// The least free bytes for one read.
const READ_BYTES: usize = 16 << 10;

/// The capacity that an empty buffer keeps.
const KEPT_BYTES: usize = 64 << 10;

/// The largest reply: the payloads, names and numbers of as many tasks as one reply may contain.
pub(crate) const REPLY_BYTES_MAX: usize = 512 << 20;

/// The bytes that were read, and the replies in them.
pub(crate) struct Inbox {
    room: Vec<u8>,
    /// `room[start..end]` was read and is not taken yet.
    start: usize,
    end: usize,
    /// The length of the reply that was taken last; it ends at `start`.
    taken: usize,
    /// When the first bytes of the last taken reply arrived, when those of the next one did, and when any did last.
    taken_began: Instant,
    began: Instant,
    last_read: Instant,
    scanner: Scanner,
}

impl Inbox {
    pub(crate) fn new() -> Self {
        let now = Instant::now();
        Self {
            room: Vec::new(),
            start: 0,
            end: 0,
            taken: 0,
            taken_began: now,
            began: now,
            last_read: now,
            scanner: Scanner::new(REPLY_BYTES_MAX),
        }
    }

    /// The free part of the buffer, to read into.
    pub(crate) fn room(&mut self) -> &mut [u8] {
        self.taken = 0;
        if self.start == self.end {
            (self.start, self.end) = (0, 0);
            self.room.truncate(KEPT_BYTES);
            self.room.shrink_to(KEPT_BYTES);
        }
        if self.room.len() - self.end < READ_BYTES && self.start > 0 {
            self.room.copy_within(self.start..self.end, 0);
            (self.start, self.end) = (0, self.end - self.start);
        }
        if self.room.len() - self.end < READ_BYTES {
            self.room.resize((self.room.len() * 2).max(READ_BYTES * 2), 0);
        }
        &mut self.room[self.end..]
    }

    /// Notes that this many bytes were read into [`Self::room`].
    pub(crate) fn add(&mut self, bytes: usize) {
        self.last_read = Instant::now();
        if self.start == self.end {
            self.began = self.last_read;
        }
        self.end += bytes;
    }

    /// Takes the next reply. Returns false if it is not complete yet.
    pub(crate) fn take(&mut self) -> Result<bool, BadReply> {
        let Some(len) = self.scanner.scan(&self.room[self.start..self.end])? else { return Ok(false) };
        (self.start, self.taken) = (self.start + len, len);
        // The bytes after this reply arrived with the last read: an earlier read would have completed the reply.
        (self.taken_began, self.began) = (self.began, self.last_read);
        Ok(true)
    }

    /// When the first bytes of the reply that was taken last arrived.
    pub(crate) const fn taken_began(&self) -> Instant {
        self.taken_began
    }

    /// The reply that was taken last; valid until more is read.
    pub(crate) fn taken(&self) -> &[u8] {
        &self.room[self.start - self.taken..self.start]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fill(inbox: &mut Inbox, mut bytes: &[u8]) {
        while !bytes.is_empty() {
            let room = inbox.room();
            let n = room.len().min(bytes.len());
            room[..n].copy_from_slice(&bytes[..n]);
            inbox.add(n);
            bytes = &bytes[n..];
        }
    }

    fn check(inbox: &mut Inbox, expect: &[u8]) {
        assert_eq!(inbox.take(), Ok(true));
        assert_eq!(inbox.taken(), expect);
    }

    #[test]
    fn splits_input_into_replies_and_frees_the_memory_of_a_large_one() {
        let mut inbox = Inbox::new();
        let large = [b"$1000000\r\n", &vec![b'x'; 1_000_000][..], b"\r\n"].concat();
        for _ in 0..3 {
            fill(&mut inbox, b":1\r\n:2\r\n$2\r\na");
            check(&mut inbox, &b":1\r\n"[..]);
            check(&mut inbox, &b":2\r\n"[..]);
            assert_eq!(inbox.take(), Ok(false));
            fill(&mut inbox, b"b\r\n");
            check(&mut inbox, &b"$2\r\nab\r\n"[..]);
            fill(&mut inbox, &large);
            check(&mut inbox, &large[..]);
            assert_eq!(inbox.take(), Ok(false));
            inbox.room();
            assert!(inbox.room.capacity() <= KEPT_BYTES, "{}", inbox.room.capacity());
        }
        fill(&mut inbox, b"HTTP/1.1 400\r\n");
        assert_eq!(inbox.take(), Err(BadReply::Marker(b'H')));
    }
}
