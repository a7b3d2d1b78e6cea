//! Input of a connection that has not been executed yet.

/// Room beyond this many bytes is not kept when all is done.
const KEPT_BYTES: usize = 4 << 10;

/// Bytes in the order of their arrival.
#[derive(Default)]
pub(crate) struct Input {
    bytes: Vec<u8>,
    /// How many of them are done with. They are moved away when they are the greater part, so that a long pipeline that is
    /// executed a few commands at a time is not moved each time.
    done: usize,
}

impl Input {
    pub(crate) fn len(&self) -> usize {
        self.bytes.len() - self.done
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The memory that it takes up.
    pub(crate) fn capacity(&self) -> usize {
        self.bytes.capacity()
    }

    /// The bytes that are not done with.
    pub(crate) fn rest(&self) -> &[u8] {
        &self.bytes[self.done..]
    }

    /// Adds input, where no more than `max` bytes are ever kept.
    pub(crate) fn keep(&mut self, input: &[u8], max: usize) {
        let len = self.bytes.len() + input.len();
        if len > self.bytes.capacity() && self.done > 0 {
            self.bytes.drain(..self.done);
            self.done = 0;
        }
        let len = self.len() + input.len();
        if len > self.bytes.capacity() && len > max / 2 {
            // Growing as a list does would make room for more than may ever be kept.
            self.bytes.reserve_exact(max.max(len) - self.bytes.len());
        }
        self.bytes.extend_from_slice(input);
    }

    /// Drops the next `count` bytes.
    pub(crate) fn advance(&mut self, count: usize) {
        self.done += count;
        if self.done == self.bytes.len() {
            self.bytes.clear();
            self.bytes.shrink_to(KEPT_BYTES);
            self.done = 0;
        } else if self.done > self.bytes.len() / 2 {
            self.bytes.drain(..self.done);
            self.done = 0;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn executed_bytes_go_and_the_rest_stays() {
        let mut input = Input::default();
        for n in 0..100_u8 {
            input.keep(&[n; 10], usize::MAX);
            input.advance(7);
            let left = 3 * (usize::from(n) + 1);
            assert_eq!((input.len(), input.rest().len()), (left, left));
            assert_eq!(input.rest().last(), Some(&n));
            assert!(input.bytes.len() <= 2 * left + 10, "{} bytes for {left}", input.bytes.len());
        }
        input.advance(input.len());
        assert!(input.is_empty() && input.capacity() <= KEPT_BYTES);
    }

    #[test]
    fn no_more_room_is_made_than_may_be_kept() {
        let mut input = Input::default();
        input.keep(&[1; 60], 100);
        input.advance(1);
        input.keep(&[2; 40], 100);
        assert_eq!((input.len(), input.capacity()), (99, 100));
    }
}
