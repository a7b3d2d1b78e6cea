//! The number of pipelined commands that are parsed at once.
//!
//! Commands that were parsed but not executed are parsed again later. A home that talks to another server accepts
//! only a few commands at a time, so a session that always parsed its whole pipeline would parse a long one again for
//! every few commands. It parses about twice as many commands as the previous batch executed instead.

/// The smallest batch: twice the 32 task commands that such a home accepts at once, so that the session notices when
/// it accepts more.
const LEAST: usize = 64;

/// The largest batch. Beyond this size, the cost of starting a batch is negligible next to that of its commands.
const MOST: usize = 1024;

/// The size of the next batch of a connection.
#[derive(Clone, Copy, Debug)]
pub(crate) struct BatchSize(u16);

impl Default for BatchSize {
    fn default() -> Self {
        Self(MOST as u16)
    }
}

impl BatchSize {
    /// The maximum number of commands to parse now.
    pub(crate) fn next(self) -> usize {
        self.0.into()
    }

    /// Notes that all `executed` commands of a batch were executed, and that more follow.
    pub(crate) fn went_through(&mut self, executed: usize) {
        self.0 = self.0.max(executed.saturating_mul(2).min(MOST) as u16);
    }

    /// Notes that the last batch stopped after `executed` commands.
    pub(crate) fn stopped_after(&mut self, executed: usize) {
        self.0 = executed.saturating_mul(2).clamp(LEAST, MOST) as u16;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The number of times that commands are parsed in total, with a home that executes at most `at_once` commands at
    /// once.
    fn parsed(pipeline: usize, at_once: usize) -> usize {
        let (mut batch, mut done, mut parsed) = (BatchSize::default(), 0, 0);
        while done < pipeline {
            let asked = batch.next().min(pipeline - done);
            let executed = asked.min(at_once);
            parsed += asked;
            done += executed;
            if executed < asked {
                batch.stopped_after(executed);
            } else {
                batch.went_through(executed);
            }
        }
        parsed
    }

    #[test]
    fn each_command_is_parsed_a_few_times_however_long_the_pipeline_is() {
        for at_once in [32, 33, 100, 1_000, usize::MAX] {
            let (short, long) = (parsed(10_000, at_once), parsed(1_000_000, at_once));
            assert!(short <= 3 * 10_000, "{at_once} at once: {short} of 10,000");
            assert!(long <= 3 * 1_000_000, "{at_once} at once: {long} of 1,000,000");
        }
    }

    #[test]
    fn batch_grows_again_when_the_home_executes_more() {
        let mut batch = BatchSize::default();
        batch.stopped_after(1);
        assert_eq!(batch.next(), LEAST);
        for _ in 0..10 {
            batch.went_through(batch.next());
        }
        assert_eq!(batch.next(), MOST);
    }
}
