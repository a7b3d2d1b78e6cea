//! Makes the table of `backlog` from its rows.

use std::fmt::Write as _;

use crate::account::Wrong;
use crate::backlog::{LOADS, Restart};
use crate::load::Measured;
use crate::procstat::Memory;
use crate::tables::{count, median, megabytes, micros, short, table, times};
use crate::targets::{Program, Target};

/// The limit for CPU per task with a backlog, relative to that without one.
const FLAT: f64 = 1.2;

/// One backlog on one system.
pub(crate) struct Row {
    pub(crate) target: Target,
    pub(crate) size: u64,
    /// The memory of the server after its start.
    pub(crate) empty: Memory,
    pub(crate) memory: Memory,
    /// Allocated bytes.
    pub(crate) disk: u64,
    pub(crate) filled_per_second: f64,
    pub(crate) loads: [Measured; 2],
    pub(crate) restart: Restart,
    /// Tasks that were popped and compared at the end.
    pub(crate) drained: u64,
    pub(crate) wrong: Wrong,
}

/// A figure of a row.
type Figure = fn(&Row) -> Option<f64>;

const SINGLE: Figure = |row| Some(cpu(&row.loads[0]));
const BATCH: Figure = |row| Some(cpu(&row.loads[1]));
const RESIDENT: Figure = |row| Some(count(row.memory.resident));
const ANONYMOUS: Figure = |row| Some(count(row.memory.anonymous));
const PER_TASK: Figure = |row| {
    let grown = count(row.memory.resident) - count(row.empty.resident);
    (row.size > 0).then(|| grown / count(row.size))
};
const DISK: Figure = |row| Some(count(row.disk));
const WARM: Figure = |row| Some(row.restart.warm.as_secs_f64());
const COLD: Figure = |row| row.restart.cold.map(|cold| cold.as_secs_f64());
const AFTER: Figure = |row| Some(count(row.restart.memory.resident));

/// Microseconds of the server's CPU for a push, a pop and an ack.
fn cpu(load: &Measured) -> f64 {
    micros(load.cost.server_cpu) / count(load.tasks.max(1))
}

impl Row {
    /// The row in short, printed while the benchmark runs.
    pub(crate) fn progress(&self) -> String {
        let mut text = format!(
            "{:>6.1} B/task  {:>6.2} µs single  {:>5.2} µs batch  restart {:>7.3} s",
            PER_TASK(self).unwrap_or_default(),
            cpu(&self.loads[0]),
            cpu(&self.loads[1]),
            self.restart.warm.as_secs_f64(),
        );
        if let Some(cold) = self.restart.cold {
            let _ = write!(text, ", cold {:>7.3} s", cold.as_secs_f64());
        }
        if self.wrong.total() > 0 {
            let _ = write!(text, "  BROKEN: {}", self.wrong.describe());
        }
        text
    }

    /// The row as one line of JSON. None of its names needs escaping.
    pub(crate) fn json(&self, repetition: usize) -> String {
        let mut text = format!(
            "{{\"repetition\":{repetition},\"target\":\"{}\",\"backlog\":{},\"empty_rss\":{},\"rss\":{},\
             \"rss_anon\":{},\"disk\":{},\"filled_per_second\":{:.0},\"restart_seconds\":{:.4},\
             \"restart_rss\":{},\"drained\":{},\"lost\":{},\"duplicated\":{},\"altered\":{},\"unacked\":{},\"left\":{}",
            self.target.name(),
            self.size,
            self.empty.resident,
            self.memory.resident,
            self.memory.anonymous,
            self.disk,
            self.filled_per_second,
            self.restart.warm.as_secs_f64(),
            self.restart.memory.resident,
            self.drained,
            self.wrong.lost,
            self.wrong.duplicated,
            self.wrong.altered,
            self.wrong.unacked,
            self.wrong.left,
        );
        if let Some(cold) = self.restart.cold {
            let _ = write!(text, ",\"restart_cold_seconds\":{:.4}", cold.as_secs_f64());
        }
        for (shape, load) in LOADS.iter().zip(&self.loads) {
            let _ = write!(
                text,
                ",\"{0}_us_per_task\":{1:.4},\"{0}_tasks\":{2},\"{0}_p99_us\":{3:.1}",
                shape.name,
                cpu(load),
                load.tasks,
                micros(load.p99)
            );
        }
        text + "}"
    }
}

/// The table, as Markdown, and the verdicts on the aims.
pub(crate) fn render(rows: &[Row], targets: &[Target], sizes: &[u64]) -> String {
    let of = |target: Target, size: u64, figure: Figure| {
        let own = rows.iter().filter(|row| row.target == target && row.size == size);
        median(own.filter_map(figure).collect())
    };
    let mut lines = Vec::new();
    let mut verdicts = String::new();
    for &target in targets {
        for &size in sizes {
            let get = |figure| of(target, size, figure);
            let flat = |figure| Some(get(figure)? / of(target, 0, figure)?);
            let cell = |figure, show: fn(f64) -> String| get(figure).map_or("–".to_owned(), show);
            lines.push(vec![
                target.title().to_owned(),
                target.durability().to_owned(),
                short(size),
                cell(RESIDENT, megabytes),
                cell(ANONYMOUS, megabytes),
                cell(PER_TASK, |bytes| format!("{bytes:.1}")),
                cell(DISK, megabytes),
                cell(SINGLE, |us| format!("{us:.2}")),
                times(flat(SINGLE)),
                cell(BATCH, |us| format!("{us:.2}")),
                times(flat(BATCH)),
                cell(WARM, |seconds| format!("{seconds:.3}")),
                cell(COLD, |seconds| format!("{seconds:.3}")),
                cell(AFTER, megabytes),
            ]);
            if target.program() == Program::Sureq && size > 0 {
                for (shape, ratio) in [(LOADS[0], flat(SINGLE)), (LOADS[1], flat(BATCH))] {
                    let verdict = match ratio {
                        None => "not measured",
                        Some(ratio) if ratio <= FLAT => "met",
                        Some(_) => "missed",
                    };
                    let _ = writeln!(
                        verdicts,
                        "- {}, {} waiting, {}: {} of the CPU per task of an empty queue, at most {FLAT:.2} ×: {verdict}",
                        target.title(),
                        short(size),
                        shape.title,
                        times(ratio),
                    );
                }
            }
        }
    }
    let head = [
        "system",
        "durability",
        "waiting",
        "resident MB",
        "of it anonymous",
        "bytes/task",
        "disk MB",
        "CPU µs, single",
        "÷ empty",
        "CPU µs, batch",
        "÷ empty",
        "restart s",
        "cold s",
        "resident after it MB",
    ];
    let tasks: u64 =
        rows.iter().map(|row| row.drained + row.loads.iter().map(|load| load.tasks).sum::<u64>()).sum();
    let mut text = format!(
        "{}\n{verdicts}\n{tasks} tasks popped and compared in {} runs.",
        table(&head, &lines),
        rows.len()
    );
    for &target in targets {
        let mut wrong = Wrong::default();
        rows.iter().filter(|row| row.target == target).for_each(|row| wrong += row.wrong);
        if wrong.total() > 0 {
            let _ = write!(text, "\nBROKEN: {}: {}.", target.title(), wrong.describe());
        }
    }
    text + "\n"
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::procstat::Cost;

    fn a_row(size: u64, cpu_us: u64) -> Row {
        let tasks = 100;
        let cost = Cost {
            elapsed: Duration::from_secs(1),
            server_cpu: Duration::from_micros(cpu_us * tasks),
            client_cpu: Duration::ZERO,
        };
        let load =
            Measured { tasks, cost, p50: Duration::ZERO, p99: Duration::ZERO, wrong: Wrong::default() };
        Row {
            target: Target::SureqNone,
            size,
            empty: Memory { resident: 1_000, anonymous: 0 },
            memory: Memory { resident: 1_000 + size * 30, anonymous: 0 },
            disk: 0,
            filled_per_second: 0.0,
            loads: [load, load],
            restart: Restart { warm: Duration::from_millis(5), cold: None, memory: Memory::default() },
            drained: 0,
            wrong: Wrong::default(),
        }
    }

    #[test]
    fn a_backlog_is_compared_with_an_empty_queue() {
        let rows = [a_row(0, 10), a_row(1_000, 11), a_row(10_000, 13)];
        let text = render(&rows, &[Target::SureqNone], &[0, 1_000, 10_000]);
        let cells: Vec<&str> = text.lines().nth(4).unwrap().split('|').map(str::trim).collect();
        assert_eq!(cells[3], "10k");
        assert_eq!((cells[6], cells[8], cells[9], cells[13]), ("30.0", "13.00", "1.30 ×", "–"));
        assert_eq!((text.matches(": met").count(), text.matches(": missed").count()), (2, 2));
        assert!(text.contains("600 tasks popped and compared in 3 runs.\n"), "{text}");
    }

    #[test]
    fn a_row_is_a_line_of_json() {
        let line = a_row(7, 1).json(2);
        assert!(line.starts_with("{\"repetition\":2,\"target\":\"sureq-none\",\"backlog\":7,"), "{line}");
        assert!(line.ends_with('}') && !line.contains("cold"), "{line}");
    }
}
