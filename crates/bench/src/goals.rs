//! The goals of sureq, as ratios to Redis measured in the same run.

use crate::load::SHAPES;
use crate::report::{self, Figures, LATENCY, Run};
use crate::targets::Target;

/// CPU per task of each load, in the order of [`SHAPES`], over that of Redis with persistence off.
const CPU_ALWAYS: [f64; SHAPES.len()] = [1.2, 0.5, 0.35];
const CPU_NONE: [f64; SHAPES.len()] = [0.95, 0.4, 0.3];
/// The module has no aim for one command at a time: there both have the cost of the same sockets.
const CPU_MODULE: [Option<f64>; SHAPES.len()] = [None, Some(0.75), Some(0.45)];
/// Tasks per second, one command at a time, over those of Redis with `appendfsync always`.
const THROUGHPUT_ALWAYS: f64 = 1.2;

/// A limit for a ratio.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Bound {
    AtMost(f64),
    AtLeast(f64),
}

/// One aim and its measured value.
pub(crate) struct Goal {
    pub(crate) what: String,
    bound: Bound,
    /// `None` if one of the two was not run.
    pub(crate) ratio: Option<f64>,
}

impl Goal {
    pub(crate) fn aim(&self) -> String {
        match self.bound {
            Bound::AtMost(limit) => format!("at most {limit:.2} ×"),
            Bound::AtLeast(limit) => format!("at least {limit:.2} ×"),
        }
    }

    pub(crate) fn verdict(&self) -> &'static str {
        match (self.bound, self.ratio) {
            (_, None) => "not measured",
            (Bound::AtMost(limit), Some(ratio)) if ratio <= limit => "met",
            (Bound::AtLeast(limit), Some(ratio)) if ratio >= limit => "met",
            (_, Some(_)) => "missed",
        }
    }
}

/// All aims, with the results of these runs.
pub(crate) fn goals(runs: &[Run]) -> Vec<Goal> {
    let ratio = |load: &str, target: Target, base: Target, pick: fn(Figures) -> f64| {
        let (ours, theirs) = (report::medians(runs, load, target)?, report::medians(runs, load, base)?);
        Some(pick(ours) / pick(theirs))
    };
    let mut goals = Vec::new();
    let aims = [
        (Target::SureqAlways, CPU_ALWAYS.map(Some)),
        (Target::SureqNone, CPU_NONE.map(Some)),
        (Target::SureqModule, CPU_MODULE),
    ];
    for (target, limits) in aims {
        for (shape, limit) in SHAPES.iter().zip(limits) {
            let Some(limit) = limit else { continue };
            goals.push(Goal {
                what: format!("CPU per task, {}, {}", target.title(), shape.title),
                bound: Bound::AtMost(limit),
                ratio: ratio(shape.name, target, Target::Redis, |figures| figures.server_us_per_task),
            });
        }
    }
    let (target, shape) = (Target::SureqAlways, &SHAPES[0]);
    goals.push(Goal {
        what: format!("tasks/s, {}, {}", target.title(), shape.title),
        bound: Bound::AtLeast(THROUGHPUT_ALWAYS),
        ratio: ratio(shape.name, target, Target::RedisAlways, |figures| figures.tasks_per_second),
    });
    for target in [Target::SureqAlways, Target::SureqNone] {
        let peer = target.peer();
        for (name, ratio) in [
            ("p50", ratio(LATENCY, target, peer, |figures| figures.p50_us)),
            ("p99", ratio(LATENCY, target, peer, |figures| figures.p99_us)),
        ] {
            let what = format!("push to delivery {name}, {}", target.title());
            goals.push(Goal { what, bound: Bound::AtMost(1.0), ratio });
        }
    }
    goals
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::tests::a_run;

    #[test]
    fn aims_are_met_missed_or_not_measured() {
        let runs = [
            a_run("single", Target::Redis, 10, 1000),
            a_run("single", Target::RedisAlways, 30, 500),
            a_run("single", Target::SureqAlways, 12, 599),
            a_run("single", Target::SureqNone, 10, 1000),
            a_run(LATENCY, Target::SureqNone, 10, 1000),
            a_run(LATENCY, Target::Redis, 10, 1000),
        ];
        let verdicts: Vec<&str> = goals(&runs).iter().map(Goal::verdict).collect();
        let cpu_always = ["met", "not measured", "not measured"];
        let cpu_none = ["missed", "not measured", "not measured"];
        let latency = ["not measured", "not measured", "met", "met"];
        let cpu_module = ["not measured"; 2];
        assert_eq!(verdicts, [&cpu_always[..], &cpu_none, &cpu_module, &["missed"], &latency].concat());
    }
}
