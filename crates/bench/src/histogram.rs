//! Durations, counted in buckets that are at most 1/64 wide, so that a run of any length takes the same memory.

use std::time::Duration;

/// The number of bits below the leading one that select a bucket.
const DETAIL_BITS: u32 = 6;
const DETAIL: u64 = 1 << DETAIL_BITS;
/// Enough for any duration of 64 bits in nanoseconds.
const BUCKETS: usize = ((64 - DETAIL_BITS as usize) + 1) << DETAIL_BITS;

/// How often each duration occurred.
pub(crate) struct Histogram {
    counts: Vec<u64>,
    total: u64,
}

impl Histogram {
    pub(crate) fn new() -> Self {
        Histogram { counts: vec![0; BUCKETS], total: 0 }
    }

    /// Counts a duration `times` times.
    pub(crate) fn record(&mut self, duration: Duration, times: u64) {
        let nanos = u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX);
        self.counts[bucket(nanos)] += times;
        self.total += times;
    }

    /// The duration that this share of all durations does not exceed, or zero if there are none.
    pub(crate) fn percentile(&self, percent: u64) -> Duration {
        let rank = (self.total * percent).div_ceil(100).max(1);
        let mut seen = 0;
        for (index, count) in self.counts.iter().enumerate() {
            seen += count;
            if seen >= rank {
                return Duration::from_nanos(middle(index));
            }
        }
        Duration::ZERO
    }
}

/// Numbers below `DETAIL` have a bucket each; from there on every power of two is split into `DETAIL` buckets.
fn bucket(nanos: u64) -> usize {
    let shift = (nanos | DETAIL).ilog2() - DETAIL_BITS;
    ((u64::from(shift) << DETAIL_BITS) + (nanos >> shift)) as usize
}

fn middle(bucket: usize) -> u64 {
    let bucket = bucket as u64;
    let shift = (bucket >> DETAIL_BITS).saturating_sub(1);
    let lowest = (bucket - (shift << DETAIL_BITS)) << shift;
    lowest + ((1 << shift) >> 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bucket_holds_its_middle_and_buckets_are_narrow() {
        for nanos in (0..5_000).chain((0..57).map(|bit| 77 << bit)).chain([u64::MAX]) {
            let found = middle(bucket(nanos));
            assert!(found.abs_diff(nanos) <= nanos / 64, "{nanos} is shown as {found}");
            assert_eq!(bucket(found), bucket(nanos));
        }
        assert!(bucket(u64::MAX) < BUCKETS);
    }

    #[test]
    fn percentiles_are_those_of_the_sorted_durations() {
        let mut histogram = Histogram::new();
        assert_eq!(histogram.percentile(50), Duration::ZERO);
        for nanos in (1..=60).rev() {
            histogram.record(Duration::from_nanos(nanos), 1);
        }
        let check = |percent, nanos| assert_eq!(histogram.percentile(percent), Duration::from_nanos(nanos));
        check(50, 30);
        check(99, 60);
        check(1, 1);
        check(100, 60);
    }

    #[test]
    fn one_slow_in_two_hundred_is_above_the_99th() {
        let mut histogram = Histogram::new();
        histogram.record(Duration::from_nanos(10), 199);
        histogram.record(Duration::from_secs(1), 1);
        assert_eq!(histogram.percentile(99), Duration::from_nanos(10));
        assert!(histogram.percentile(100) > Duration::from_millis(980));
    }
}
