//! The arguments of the commands of one read, all in one list.
//!
//! Arguments are not copied: each is a slice of the read buffer. The list keeps its capacity from one read to the
//! next, so that a command needs no allocation of its own.

/// Capacity beyond this many arguments is freed after a read, so that the connection does not keep the memory of one
/// large command.
const ROOM_KEPT: usize = 4 << 10;

/// The commands of one read.
///
/// ```
/// use sureq_proto::resp::{Args, Limits, Parser};
///
/// let mut room = Args::default();
/// let mut unquoted = Vec::new();
/// for buffer in [&b"PING\r\n*1\r\n$4\r\nQUIT\r\n"[..], b"ECHO 'a b'\r\n"] {
///     let mut args = std::mem::take(&mut room);
///     let progress = Parser::new(Limits::TRUSTED).parse(buffer, &mut unquoted, &mut args).unwrap();
///     assert_eq!(progress.consumed, buffer.len());
///     for command in args.iter() {
///         println!("{command:?}");
///     }
///     room = args.renew();
/// }
/// ```
#[derive(Debug, Default)]
pub struct Args<'b> {
    list: Vec<&'b [u8]>,
    commands: Vec<Mark>,
}

/// The end of a command.
#[derive(Clone, Copy, Debug)]
struct Mark {
    /// The end offset in the list of arguments.
    args: usize,
    /// The end offset in the read buffer.
    bytes: usize,
}

impl<'b> Args<'b> {
    pub fn len(&self) -> usize {
        self.commands.len()
    }

    pub fn is_empty(&self) -> bool {
        self.commands.is_empty()
    }

    /// The words of command `n`; always at least one.
    pub fn command(&self, n: usize) -> &[&'b [u8]] {
        let start = if n == 0 { 0 } else { self.commands[n - 1].args };
        &self.list[start..self.commands[n].args]
    }

    /// The end offset of command `n` in the read buffer. A caller that executes only the commands up to this one
    /// keeps the bytes from this offset on and parses them again later.
    pub fn end(&self, n: usize) -> usize {
        self.commands[n].bytes
    }

    /// The words of each command, in order.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = &[&'b [u8]]> {
        (0..self.len()).map(|n| self.command(n))
    }

    /// Removes the commands and keeps the capacity, for a read buffer with another lifetime.
    #[must_use]
    pub fn renew<'c>(mut self) -> Args<'c> {
        self.list.clear();
        self.list.shrink_to(ROOM_KEPT);
        self.commands.clear();
        self.commands.shrink_to(ROOM_KEPT);
        Args { list: recycle(self.list), commands: self.commands }
    }

    /// The number of arguments that fit without an allocation.
    pub fn capacity(&self) -> usize {
        self.list.capacity()
    }

    pub(super) fn push(&mut self, arg: &'b [u8]) {
        self.list.push(arg);
    }

    /// Ends the command whose words were pushed last. If there were none, no command is added.
    pub(super) fn finish(&mut self, bytes: usize) {
        if self.list.len() > self.finished() {
            self.commands.push(Mark { args: self.list.len(), bytes });
        }
    }

    /// Removes the words that were pushed since the last whole command.
    pub(super) fn abandon(&mut self) {
        self.list.truncate(self.finished());
    }

    fn finished(&self) -> usize {
        self.commands.last().map_or(0, |mark| mark.args)
    }
}

/// Empties a list and keeps its capacity for items of another lifetime. The standard library collects a mapped
/// `into_iter` of the same layout in place, so no memory is moved.
pub fn recycle<T, U>(mut list: Vec<T>) -> Vec<U> {
    list.clear();
    list.into_iter().map(|_| unreachable!("the list is empty")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keeps_capacity_except_that_of_a_large_command() {
        let mut args = Args::default();
        for _ in 0..1_000 {
            args.push(b"x");
        }
        args.finish(1);
        let (room, address) = (args.capacity(), args.list.as_ptr());
        let args = args.renew();
        assert_eq!((args.capacity(), args.list.as_ptr()), (room, address));
        assert!(args.is_empty());

        let mut args = args;
        for _ in 0..100_000 {
            args.push(b"x");
        }
        assert!(args.renew().capacity() <= ROOM_KEPT);
    }
}
