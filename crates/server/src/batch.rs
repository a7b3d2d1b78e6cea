//! How many pipelined commands are parsed at once.
//!
//! Commands that were parsed and could not be executed are parsed again later. A home that talks to another server takes a few
//! commands at a time, so a session that parsed all of a long pipeline each time would look at it again for every few commands.
//! It parses about twice as many as were executed the last time instead.

/// Twice the 32 commands for tasks that a home takes at once, so that it is noticed when it takes more.
const LEAST: usize = 64;

/// More are of no use: a batch of this many costs next to nothing besides its commands.
const MOST: usize = 1024;

/// How many commands the next batch of a connection may have.
#[derive(Clone, Copy, Debug)]
pub(crate) struct BatchSize(u16);

impl Default for BatchSize {
    fn default() -> Self {
        Self(MOST as u16)
    }
}

impl BatchSize {
    /// How many to parse now.
    pub(crate) fn next(self) -> usize {
        self.0.into()
    }

    /// Notes that all commands of a batch were executed, and that there are more.
    pub(crate) fn went_through(&mut self, executed: usize) {
        self.0 = self.0.max(executed.saturating_mul(2).min(MOST) as u16);
    }

    /// Notes that so many commands of the last batch were executed, and the others were not.
    pub(crate) fn stopped_after(&mut self, executed: usize) {
        self.0 = executed.saturating_mul(2).clamp(LEAST, MOST) as u16;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// How many commands a session parses in all, in front of a home that executes at most `at_once` commands at once.
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
    fn a_home_that_takes_more_again_is_given_more() {
        let mut batch = BatchSize::default();
        batch.stopped_after(1);
        assert_eq!(batch.next(), LEAST);
        for _ in 0..10 {
            batch.went_through(batch.next());
        }
        assert_eq!(batch.next(), MOST);
    }
}
