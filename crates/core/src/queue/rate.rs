//! Recent rates of events. Volatile: not part of the state.

use crate::time::LogTime;

/// The window. With ten seconds, a count is a rate in tenths per second.
const WINDOW_MS: u64 = 10_000;

/// Counts of the current window and of the one before it.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Rate {
    window: u64,
    current: u64,
    before: u64,
}

impl Rate {
    /// Counts `n` events.
    pub(super) const fn count(&mut self, n: u64, now: LogTime) {
        *self = self.at(now);
        self.current += n;
    }

    /// The counts, moved forward to this time.
    const fn at(self, now: LogTime) -> Self {
        let window = now.0 / WINDOW_MS;
        match window.saturating_sub(self.window) {
            0 => self,
            1 => Self { window, current: 0, before: self.current },
            _ => Self { window, current: 0, before: 0 },
        }
    }

    /// The approximate number of events in the last ten seconds. The previous window counts by the fraction of it
    /// that is within.
    pub(super) fn in_window(self, now: LogTime) -> u64 {
        let Self { current, before, .. } = self.at(now);
        let left = WINDOW_MS - now.0 % WINDOW_MS;
        current + (u128::from(before) * u128::from(left) / u128::from(WINDOW_MS)) as u64
    }
}

/// The rates of a queue.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Rates {
    pub(super) pushed: Rate,
    pub(super) finished: Rate,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_ten_seconds_count_and_older_ones_fade() {
        let mut rate = Rate::default();
        (0..10).for_each(|second| rate.count(5, LogTime(100_000 + second * 1000)));
        let seen = |at| rate.in_window(LogTime(at));
        assert_eq!([seen(109_999), seen(110_000), seen(115_000), seen(119_000)], [50, 50, 25, 5]);
        assert_eq!([seen(120_000), seen(u64::MAX)], [0, 0]);
    }
}
