//! Payloads in replies.

use std::fmt;
use std::ops::{Deref, Range};
use std::sync::Arc;

use sureq_core::reply::TaskView;

/// The payload of a task in a reply: a part of a shared buffer, so that replies and caches share it without copying.
#[derive(Clone)]
pub struct Payload {
    buffer: Arc<[u8]>,
    start: u32,
    len: u32,
}

impl Payload {
    /// A part of a buffer.
    pub fn within(buffer: &Arc<[u8]>, range: Range<usize>) -> Self {
        Self::new(Arc::clone(buffer), range)
    }

    /// A part of a buffer, which it keeps alive.
    pub fn new(buffer: Arc<[u8]>, range: Range<usize>) -> Self {
        debug_assert!(range.end <= buffer.len(), "a payload lies within its buffer");
        Self { buffer, start: range.start as u32, len: range.len() as u32 }
    }

    /// Memory that it keeps alive: the whole buffer and its two reference counts.
    pub fn owned_bytes(&self) -> usize {
        2 * size_of::<usize>() + self.buffer.len()
    }
}

impl From<&[u8]> for Payload {
    fn from(payload: &[u8]) -> Self {
        Self { buffer: payload.into(), start: 0, len: payload.len() as u32 }
    }
}

impl From<Vec<u8>> for Payload {
    fn from(payload: Vec<u8>) -> Self {
        Self::from(&payload[..])
    }
}

impl AsRef<[u8]> for Payload {
    fn as_ref(&self) -> &[u8] {
        &self.buffer[self.start as usize..][..self.len as usize]
    }
}

impl Deref for Payload {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        self.as_ref()
    }
}

impl fmt::Debug for Payload {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self.as_ref(), f)
    }
}

/// Compares the bytes.
impl<T: AsRef<[u8]> + ?Sized> PartialEq<T> for Payload {
    fn eq(&self, other: &T) -> bool {
        self.as_ref() == other.as_ref()
    }
}

impl Eq for Payload {}

/// The tasks of a pop grouped by its queues, in order, each mapped by `name`. Queues without tasks are left out.
pub fn by_queue<'a, Q, B, T>(
    queues: &'a [Q],
    tasks: &'a [TaskView<B>],
    name: impl Fn(&TaskView<B>) -> T,
) -> impl Iterator<Item = (&'a Q, Vec<T>)> {
    queues.iter().enumerate().filter_map(move |(index, queue)| {
        let own = tasks.iter().filter(|task| task.queue as usize == index);
        let own: Vec<T> = own.map(&name).collect();
        (!own.is_empty()).then_some((queue, own))
    })
}
