//! The input of a connection that has not been executed yet.

/// When all input is consumed, capacity beyond this many bytes is freed.
const KEPT_BYTES: usize = 4 << 10;

/// Bytes in the order of their arrival.
#[derive(Default)]
pub(crate) struct Input {
    bytes: Vec<u8>,
    /// The number of consumed bytes at the start of `bytes`. They are removed when they are the greater part, so that
    /// a long pipeline that is executed a few commands at a time is not moved in memory each time.
    done: usize,
}

impl Input {
    pub(crate) fn len(&self) -> usize {
        self.bytes.len() - self.done
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The allocated memory in bytes.
    pub(crate) fn capacity(&self) -> usize {
        self.bytes.capacity()
    }

    /// The bytes that are not consumed yet.
    pub(crate) fn rest(&self) -> &[u8] {
        &self.bytes[self.done..]
    }

    /// Appends input. The caller never keeps more than `max` bytes.
    pub(crate) fn keep(&mut self, input: &[u8], max: usize) {
        let len = self.bytes.len() + input.len();
        if len > self.bytes.capacity() && self.done > 0 {
            self.bytes.drain(..self.done);
            self.done = 0;
        }
        let len = self.len() + input.len();
        if len > self.bytes.capacity() && len > max / 2 {
            // The growth strategy of `Vec` would allocate more than may ever be kept.
            self.bytes.reserve_exact(max.max(len) - self.bytes.len());
        }
        self.bytes.extend_from_slice(input);
    }

    /// Marks the next `count` bytes as consumed.
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
    fn drops_executed_bytes_and_keeps_the_rest() {
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
    fn allocates_no_more_than_the_limit() {
        let mut input = Input::default();
        input.keep(&[1; 60], 100);
        input.advance(1);
        input.keep(&[2; 40], 100);
        assert_eq!((input.len(), input.capacity()), (99, 100));
    }
}
