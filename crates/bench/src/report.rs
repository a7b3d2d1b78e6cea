//! Makes the tables of runs: medians, ratios to Redis, and goals with their measurements.

use std::fmt::Write as _;

use crate::account::Wrong;
use crate::goals::{self, Goal};
use crate::load::{Measured, SHAPES};
use crate::tables::{median, micros, table, times};
use crate::targets::Target;

/// The name of the latency measurement, as for the loads.
pub(crate) const LATENCY: &str = "latency";

/// The share of the pushed tasks that must be done by the time of the last push, which allows for the end of a short
/// run.
const KEEPS_UP: f64 = 0.95;

/// One run of one load on one target.
pub(crate) struct Run {
    pub(crate) repetition: usize,
    pub(crate) load: &'static str,
    pub(crate) target: Target,
    pub(crate) measured: Measured,
}

/// The figures of a run, or the median of several.
#[derive(Clone, Copy)]
pub(crate) struct Figures {
    pub(crate) server_us_per_task: f64,
    pub(crate) client_us_per_task: f64,
    pub(crate) tasks_per_second: f64,
    pub(crate) p50_us: f64,
    pub(crate) p99_us: f64,
}

impl Run {
    pub(crate) fn figures(&self) -> Figures {
        let Measured { tasks, cost, p50, p99, .. } = self.measured;
        let tasks = u32::try_from(tasks).map_or(f64::MAX, f64::from);
        Figures {
            server_us_per_task: micros(cost.server_cpu) / tasks,
            client_us_per_task: micros(cost.client_cpu) / tasks,
            tasks_per_second: tasks / cost.elapsed.as_secs_f64(),
            p50_us: micros(p50),
            p99_us: micros(p99),
        }
    }

    /// The run as one line of JSON. None of its names needs escaping.
    pub(crate) fn json(&self) -> String {
        let (figures, measured) = (self.figures(), &self.measured);
        let Wrong { lost, duplicated, altered, unacked, left } = measured.wrong;
        format!(
            "{{\"repetition\":{},\"load\":\"{}\",\"target\":\"{}\",\"tasks\":{},\"seconds\":{:.3},\
             \"tasks_per_second\":{:.1},\"server_us_per_task\":{:.4},\"client_us_per_task\":{:.4},\"p50_us\":{:.1},\
             \"p99_us\":{:.1},\"lost\":{lost},\"duplicated\":{duplicated},\"altered\":{altered},\
             \"unacked\":{unacked},\"left\":{left}}}",
            self.repetition,
            self.load,
            self.target.name(),
            measured.tasks,
            measured.cost.elapsed.as_secs_f64(),
            figures.tasks_per_second,
            figures.server_us_per_task,
            figures.client_us_per_task,
            figures.p50_us,
            figures.p99_us,
        )
    }
}

/// The medians of all repetitions of a load on a target, if it was run.
pub(crate) fn medians(runs: &[Run], load: &str, target: Target) -> Option<Figures> {
    let of = |pick: fn(&Figures) -> f64| {
        median(
            runs.iter()
                .filter(|run| run.load == load && run.target == target)
                .map(|run| pick(&run.figures()))
                .collect(),
        )
    };
    Some(Figures {
        server_us_per_task: of(|figures| figures.server_us_per_task)?,
        client_us_per_task: of(|figures| figures.client_us_per_task)?,
        tasks_per_second: of(|figures| figures.tasks_per_second)?,
        p50_us: of(|figures| figures.p50_us)?,
        p99_us: of(|figures| figures.p99_us)?,
    })
}

/// The whole report, as Markdown. The latencies were measured at `rate` tasks a second.
pub(crate) fn render(runs: &[Run], rate: u32) -> String {
    let mut text = String::new();
    for shape in SHAPES {
        if let Some(table) = load_table(runs, shape.name) {
            let _ = writeln!(text, "### {} (`{}`)\n\n{table}", shape.title, shape.name);
        }
    }
    if let Some(table) = latency_table(runs, rate) {
        let _ = writeln!(
            text,
            "### Push to delivery, one blocked consumer, {rate} tasks a second (`{LATENCY}`)\n\n{table}"
        );
    }
    let _ = writeln!(text, "### Aims\n\n{}", goals_table(&goals::goals(runs)));
    text.push_str(&verdict(runs));
    text
}

fn load_table(runs: &[Run], load: &str) -> Option<String> {
    let redis = medians(runs, load, Target::Redis);
    let mut rows = Vec::new();
    for target in Target::COMPARED {
        let Some(figures) = medians(runs, load, target) else { continue };
        let peer = medians(runs, load, target.peer());
        rows.push(vec![
            target.title().to_owned(),
            format!("{:.2}", figures.server_us_per_task),
            times(redis.map(|redis| figures.server_us_per_task / redis.server_us_per_task)),
            format!("{:.0}", figures.tasks_per_second),
            times(peer.map(|peer| figures.tasks_per_second / peer.tasks_per_second)),
            format!("{:.0}", figures.p50_us),
            format!("{:.0}", figures.p99_us),
            format!("{:.2}", figures.client_us_per_task),
        ]);
    }
    let head = [
        "server",
        "CPU µs/task",
        "÷ redis off",
        "tasks/s",
        "÷ redis, same durability",
        "request p50 µs",
        "p99 µs",
        "client CPU µs/task",
    ];
    (!rows.is_empty()).then(|| table(&head, &rows))
}

fn latency_table(runs: &[Run], rate: u32) -> Option<String> {
    let mut rows = Vec::new();
    let mut late = String::new();
    for target in Target::COMPARED {
        let Some(figures) = medians(runs, LATENCY, target) else { continue };
        let peer = medians(runs, LATENCY, target.peer());
        rows.push(vec![
            target.title().to_owned(),
            format!("{:.0}", figures.p50_us),
            times(peer.map(|peer| figures.p50_us / peer.p50_us)),
            format!("{:.0}", figures.p99_us),
            times(peer.map(|peer| figures.p99_us / peer.p99_us)),
        ]);
        if figures.tasks_per_second < f64::from(rate) * KEEPS_UP {
            let _ = writeln!(
                late,
                "\n{} did not keep up: it reached {:.0} tasks a second, and its times are those of a growing queue. \
                 Compare at a lower `--rate`.",
                target.title(),
                figures.tasks_per_second
            );
        }
    }
    let head = ["server", "p50 µs", "÷ redis, same durability", "p99 µs", "÷ redis, same durability"];
    (!rows.is_empty()).then(|| table(&head, &rows) + &late)
}

fn goals_table(goals: &[Goal]) -> String {
    let rows: Vec<_> = goals
        .iter()
        .map(|goal| vec![goal.what.clone(), goal.aim(), times(goal.ratio), goal.verdict().to_owned()])
        .collect();
    table(&["what", "aim", "measured", "verdict"], &rows)
}

fn verdict(runs: &[Run]) -> String {
    let tasks: u64 = runs.iter().map(|run| run.measured.tasks).sum();
    let broken: Vec<&Run> = runs.iter().filter(|run| run.measured.wrong.total() > 0).collect();
    if broken.is_empty() {
        return format!(
            "{tasks} tasks in {} runs, every payload compared: 0 lost, 0 duplicated, 0 altered, 0 unacked, 0 left.\n",
            runs.len()
        );
    }
    let mut text = String::new();
    for run in broken {
        let _ = writeln!(
            text,
            "BROKEN: {} under {}, repetition {}: {}.",
            run.target.name(),
            run.load,
            run.repetition,
            run.measured.wrong.describe()
        );
    }
    text
}

#[cfg(test)]
pub(crate) mod tests {
    use std::time::Duration;

    use super::*;
    use crate::procstat::Cost;

    /// A run of a second with this server CPU per task, in microseconds.
    pub(crate) fn a_run(load: &'static str, target: Target, cpu_us: u64, tasks: u64) -> Run {
        let cost = Cost {
            elapsed: Duration::from_secs(1),
            server_cpu: Duration::from_micros(cpu_us * tasks),
            client_cpu: Duration::from_micros(tasks),
        };
        let measured = Measured {
            tasks,
            cost,
            p50: Duration::from_micros(100),
            p99: Duration::from_micros(200),
            wrong: Wrong::default(),
        };
        Run { repetition: 1, load, target, measured }
    }

    #[test]
    fn ratios_are_those_of_the_medians() {
        let runs = [
            a_run("single", Target::Redis, 20, 1000),
            a_run("single", Target::SureqNone, 4, 1000),
            a_run("single", Target::Redis, 10, 1000),
            a_run("single", Target::SureqNone, 5, 3000),
            a_run("single", Target::Redis, 10, 1000),
            a_run("single", Target::SureqNone, 9, 2000),
        ];
        let text = load_table(&runs, "single").unwrap();
        let line = text.lines().find(|line| line.contains("sureq, none")).unwrap();
        let cells: Vec<&str> = line.split('|').map(str::trim).collect();
        assert_eq!(cells[2..6], ["5.00", "0.50 ×", "2000", "2.00 ×"]);
        assert_eq!(load_table(&runs, "batch"), None);
    }

    #[test]
    fn a_server_that_falls_behind_is_named() {
        let runs = [a_run(LATENCY, Target::Redis, 1, 399), a_run(LATENCY, Target::RedisAlways, 1, 300)];
        let text = latency_table(&runs, 400).unwrap();
        assert!(
            text.contains("\n\nredis, appendfsync always did not keep up: it reached 300 tasks"),
            "{text}"
        );
        assert_eq!(text.matches("keep up").count(), 1);
    }

    #[test]
    fn every_error_is_reported() {
        let mut runs = [a_run("batch", Target::Redis, 1, 10)];
        assert!(verdict(&runs).starts_with("10 tasks in 1 runs"));
        assert!(runs[0].json().contains(r#""target":"redis","tasks":10,"seconds":1.000"#));
        runs[0].measured.wrong.lost = 3;
        assert!(verdict(&runs).starts_with("BROKEN: redis under batch, repetition 1: 3 lost"));
    }
}
