//! The arguments of the commands of one read, all in one list.
//!
//! Nothing is copied: an argument is a slice of the read buffer. The list keeps its room from one read to the
//! next, so that a command costs no allocation of its own.

/// Room beyond this many arguments is given back when a read is done, so that one giant command does not stay
/// in memory as long as its connection.
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

/// Where a command ends.
#[derive(Clone, Copy, Debug)]
struct Mark {
    /// In the list of arguments.
    args: usize,
    /// In the read buffer.
    bytes: usize,
}

impl<'b> Args<'b> {
    /// The number of commands.
    pub fn len(&self) -> usize {
        self.commands.len()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.commands.is_empty()
    }

    /// The words of command `n`, of which there is always at least one.
    pub fn command(&self, n: usize) -> &[&'b [u8]] {
        let start = if n == 0 { 0 } else { self.commands[n - 1].args };
        &self.list[start..self.commands[n].args]
    }

    /// Where command `n` ends in the read buffer. A caller that executes only the commands up to this one keeps the bytes
    /// from here on and parses them again later.
    pub fn end(&self, n: usize) -> usize {
        self.commands[n].bytes
    }

    /// The words of each command, in order.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = &[&'b [u8]]> {
        (0..self.len()).map(|n| self.command(n))
    }

    /// Forgets the commands and keeps the room, for a buffer that need not live as long, or longer.
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

    /// Ends the command whose words were pushed last; without any, there is no command.
    pub(super) fn finish(&mut self, bytes: usize) {
        if self.list.len() > self.finished() {
            self.commands.push(Mark { args: self.list.len(), bytes });
        }
    }

    /// Takes back the words that were pushed since the last whole command.
    pub(super) fn abandon(&mut self) {
        self.list.truncate(self.finished());
    }

    fn finished(&self) -> usize {
        self.commands.last().map_or(0, |mark| mark.args)
    }
}

/// The room of an emptied list, for items of another lifetime. The standard library collects a mapped
/// `into_iter` of the same layout in place, so no memory moves.
pub fn recycle<T, U>(mut list: Vec<T>) -> Vec<U> {
    list.clear();
    list.into_iter().map(|_| unreachable!("the list is empty")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn room_is_kept_but_not_a_giants() {
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
