//! Makes the table of `stall` from its pushes and the server's background work.

use std::fmt::Write as _;
use std::time::Duration;

use crate::tables::{count, megabytes, table};

/// The limit for the 99th percentile of a push during background work.
const P99: Duration = Duration::from_millis(10);
/// The limit for bytes written beside the log, as a share of it.
const EXTRA: f64 = 0.2;

/// One push. Times are relative to the start of the run.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sample {
    pub(crate) start: Duration,
    pub(crate) took: Duration,
}

/// The server's background work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Work {
    Checkpoint,
    Compaction,
}

/// A period in which background work was running.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Window {
    pub(crate) work: Work,
    pub(crate) span: (Duration, Duration),
}

/// Bytes written, according to the server.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Written {
    pub(crate) log: u64,
    pub(crate) checkpoints: u64,
    pub(crate) copied: u64,
}

/// All observations of a run.
pub(crate) struct Finding {
    pub(crate) samples: Vec<Sample>,
    pub(crate) windows: Vec<Window>,
    /// Whether the server reports its background work.
    pub(crate) is_reported: bool,
    pub(crate) checkpoints: Option<u64>,
    pub(crate) pushed_bytes: u64,
    /// The bytes that the kernel has counted for the process.
    pub(crate) process_bytes: u64,
    pub(crate) written: Option<Written>,
}

impl Finding {
    /// The durations of the pushes that overlap with some of this work, in order; of all pushes, if no work is named.
    fn during(&self, works: &[Work]) -> Vec<Duration> {
        // Windows are ordered by their ends and overlap only their neighbours, like the requests.
        let spans: Vec<(Duration, Duration)> = self
            .windows
            .iter()
            .filter(|window| works.contains(&window.work))
            .map(|window| window.span)
            .collect();
        let overlaps = |sample: &&Sample| {
            let next = spans.partition_point(|(_, end)| *end < sample.start);
            works.is_empty() || spans.get(next).is_some_and(|(start, _)| *start <= sample.start + sample.took)
        };
        let mut took: Vec<Duration> =
            self.samples.iter().filter(overlaps).map(|sample| sample.took).collect();
        took.sort_unstable();
        took
    }

    /// The table, as Markdown, and the verdicts on the aims.
    pub(crate) fn render(&self) -> String {
        let rows: [(&str, &[Work]); 4] = [
            ("all", &[]),
            ("during a checkpoint", &[Work::Checkpoint]),
            ("during compaction", &[Work::Compaction]),
            ("during either", &[Work::Checkpoint, Work::Compaction]),
        ];
        let mut lines = Vec::new();
        let mut verdicts = String::new();
        for (what, works) in rows {
            let took = self.during(works);
            if let [_] = works {
                let verdict = self.verdict(permille(&took, 990));
                let _ =
                    writeln!(verdicts, "- p99 of a push {what}, at most {} ms: {verdict}", P99.as_millis());
            }
            let cell = |value: Option<Duration>| {
                value.map_or("–".to_owned(), |value| format!("{:.2}", value.as_secs_f64() * 1e3))
            };
            let mut line = vec![what.to_owned(), took.len().to_string()];
            line.extend([500, 990, 999, 1000].map(|rank| cell(permille(&took, rank))));
            lines.push(line);
        }
        let mut text = table(&["pushes", "count", "p50 ms", "p99 ms", "p99.9 ms", "longest ms"], &lines);
        text.push('\n');
        text.push_str(&verdicts);
        if let Some(checkpoints) = self.checkpoints {
            let _ = writeln!(text, "- {checkpoints} checkpoints");
        }
        text.push_str(&self.bytes());
        text
    }

    fn verdict(&self, p99: Option<Duration>) -> &'static str {
        match p99 {
            _ if !self.is_reported => "not measured, the server does not report its background work",
            None => "not measured, there was none",
            Some(p99) if p99 <= P99 => "met",
            Some(_) => "missed",
        }
    }

    fn bytes(&self) -> String {
        let mut text = format!(
            "- {} MB of payloads pushed, {} MB written by the process (/proc/PID/io, prepared segments included)\n",
            megabytes(count(self.pushed_bytes)),
            megabytes(count(self.process_bytes))
        );
        if let Some(Written { log, checkpoints, copied }) = self.written {
            let extra = count(checkpoints + copied) / count(log.max(1));
            let verdict = if extra <= EXTRA { "met" } else { "missed" };
            let _ = writeln!(
                text,
                "- {} MB logged, {} MB of checkpoints, {} MB of compaction: {:.0} % more than logged, at most \
                 {:.0} %: {verdict}",
                megabytes(count(log)),
                megabytes(count(checkpoints)),
                megabytes(count(copied)),
                extra * 100.0,
                EXTRA * 100.0
            );
        }
        text
    }

    /// The finding as one line of JSON.
    pub(crate) fn json(&self) -> String {
        let millis = |works: &[Work], rank| {
            permille(&self.during(works), rank)
                .map_or("null".to_owned(), |value| format!("{:.3}", value.as_secs_f64() * 1e3))
        };
        let both = [Work::Checkpoint, Work::Compaction];
        let written = self.written.map_or("null".to_owned(), |Written { log, checkpoints, copied }| {
            format!("{{\"log\":{log},\"checkpoints\":{checkpoints},\"copied\":{copied}}}")
        });
        format!(
            "{{\"pushes\":{},\"p50_ms\":{},\"p99_ms\":{},\"max_ms\":{},\"busy_p99_ms\":{},\"busy_max_ms\":{},\
             \"pushed_bytes\":{},\"process_bytes\":{},\"written\":{written}}}",
            self.samples.len(),
            millis(&[], 500),
            millis(&[], 990),
            millis(&[], 1000),
            millis(&both, 990),
            millis(&both, 1000),
            self.pushed_bytes,
            self.process_bytes,
        )
    }
}

/// The duration that this many of a thousand do not exceed.
fn permille(sorted: &[Duration], rank: usize) -> Option<Duration> {
    let index = (sorted.len() * rank).div_ceil(1000).checked_sub(1)?;
    sorted.get(index).copied()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn millis(value: u64) -> Duration {
        Duration::from_millis(value)
    }

    fn finding(written: Option<Written>) -> Finding {
        let sample = |start, took| Sample { start: millis(start), took: millis(took) };
        Finding {
            samples: vec![sample(0, 1), sample(10, 2), sample(18, 5), sample(25, 1), sample(40, 3)],
            windows: vec![
                Window { work: Work::Checkpoint, span: (millis(20), millis(26)) },
                Window { work: Work::Compaction, span: (millis(39), millis(41)) },
            ],
            is_reported: true,
            checkpoints: Some(1),
            pushed_bytes: 5_000_000,
            process_bytes: 6_000_000,
            written,
        }
    }

    #[test]
    fn a_push_counts_if_it_overlaps() {
        let finding = finding(None);
        assert_eq!(finding.during(&[Work::Checkpoint]), [millis(1), millis(5)]);
        assert_eq!(finding.during(&[Work::Compaction]), [millis(3)]);
        assert_eq!(finding.during(&[Work::Checkpoint, Work::Compaction]).len(), 3);
        assert_eq!(finding.during(&[]).len(), 5);
    }

    #[test]
    fn goals_are_judged_by_the_figures_of_the_server() {
        let check = |copied, expected: &str| {
            let text = finding(Some(Written { log: 100, checkpoints: 10, copied })).render();
            assert!(text.contains(expected), "{text}");
        };
        check(10, "20 % more than logged, at most 20 %: met");
        check(11, "21 % more than logged, at most 20 %: missed");
        let mut without = finding(None);
        assert!(without.render().contains("during compaction, at most 10 ms: met"), "{}", without.render());
        without.windows.pop();
        assert!(without.render().contains("during a checkpoint, at most 10 ms: met"), "{}", without.render());
        assert!(without.render().contains("not measured, there was none"), "{}", without.render());
        let mut silent = finding(None);
        silent.is_reported = false;
        assert!(silent.render().contains("not measured"), "{}", silent.render());
        assert!(silent.json().contains("\"busy_max_ms\":5.000"), "{}", silent.json());
    }

    #[test]
    fn ranks_are_those_of_the_sorted_durations() {
        let sorted: Vec<Duration> = (1..=1000).map(millis).collect();
        assert_eq!(permille(&sorted, 990), Some(millis(990)));
        assert_eq!(permille(&sorted, 1000), Some(millis(1000)));
        assert_eq!(permille(&sorted[..1], 500), Some(millis(1)));
        assert_eq!(permille(&[], 500), None);
    }
}
