//! How many pipelined commands are parsed at once.
//!
//! Commands that were parsed and could not be executed are parsed again later. A home that talks to another server takes a few
//! commands at a time, so a session that parsed all of a long pipeline each time would look at it again for every few commands.
//! It parses about twice as many as were executed the last time instead: each command is then parsed a few times at most,
//! however long the pipeline is.

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
    /// How many to parse now. If the commands at the beginning of the input were answered meanwhile, those alone.
    pub(crate) fn next(&mut self, answered: Option<usize>) -> usize {
        let Some(answered) = answered else { return self.0.into() };
        self.stopped_after(answered);
        answered.max(1)
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

    /// Parses a pipeline in front of a home that executes so many commands at once, as a session does; answers how many
    /// commands were parsed in all.
    fn parsed(pipeline: usize, at_once: usize) -> usize {
        let (mut batch, mut done, mut parsed) = (BatchSize::default(), 0, 0);
        while done < pipeline {
            let asked = batch.next(None).min(pipeline - done);
            let executed = asked.min(at_once);
            parsed += asked + batch.next(Some(executed)).min(pipeline - done);
            done += executed;
        }
        parsed
    }

    #[test]
    fn each_command_is_parsed_a_few_times_however_long_the_pipeline_is() {
        for at_once in [32, 33, 100, 1_000, usize::MAX] {
            let (short, long) = (parsed(10_000, at_once), parsed(1_000_000, at_once));
            assert!(short <= 4 * 10_000, "{at_once} at once: {short} of 10,000");
            assert!(long <= 4 * 1_000_000, "{at_once} at once: {long} of 1,000,000");
        }
    }

    #[test]
    fn a_home_that_takes_more_again_is_given_more() {
        let mut batch = BatchSize::default();
        assert_eq!((batch.next(Some(1)), batch.next(None)), (1, LEAST));
        for _ in 0..10 {
            let all = batch.next(None);
            batch.next(Some(all));
        }
        assert_eq!(batch.next(None), MOST);
    }
}
