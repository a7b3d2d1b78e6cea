//! Reduces a run with a finding to a smaller one that still has a finding.

use std::time::{Duration, Instant};

use crate::plan::{Config, Faults, Plan};
use crate::world::{Outcome, run};

/// The most time that a reduction takes.
const TIME_MAX: Duration = Duration::from_secs(60);

/// The smallest run with a finding, which may be a different finding.
pub(crate) fn shrink(mut smallest: Outcome) -> Outcome {
    let until = Instant::now() + TIME_MAX;
    loop {
        let smaller = smaller_than(&smallest.plan).into_iter().find_map(|plan| {
            let is_over = Instant::now() >= until;
            if is_over { None } else { Some(run(&plan)).filter(|outcome| !outcome.findings.is_empty()) }
        });
        match smaller {
            Some(outcome) => smallest = outcome,
            None => return smallest,
        }
    }
}

/// Smaller runs, much smaller ones first.
fn smaller_than(plan: &Plan) -> Vec<Plan> {
    let mut all = Vec::new();
    let mut add = |change: &dyn Fn(&mut Plan)| {
        let mut smaller = plan.clone();
        change(&mut smaller);
        if smaller != *plan {
            all.push(smaller);
        }
    };
    add(&|plan| plan.lives.truncate(plan.lives.len() / 2));
    for life in 0..plan.lives.len() {
        add(&|plan| {
            plan.lives.remove(life);
        });
    }
    add(&|plan| plan.commands = (plan.commands / 2).max(1));
    add(&|plan| plan.clients = 1);
    add(&|plan| plan.clients = (plan.clients - 1).max(1));
    add(&|plan| plan.queues = 1);
    add(&|plan| plan.batch_max = 1);
    add(&|plan| plan.payload_max = 8);
    add(&|plan| plan.faults = Faults::default());
    add(&|plan| plan.faults.read_every = 0);
    add(&|plan| plan.faults.broken_at = 0);
    add(&|plan| plan.faults.full_ms = 0);
    add(&|plan| plan.faults.hang_max_ms = 0);
    add(&|plan| plan.config = Config::default());
    add(&|plan| plan.config.ttl_ms = 0);
    add(&|plan| plan.config.max_leased = 0);
    add(&|plan| plan.config.max_length = 0);
    add(&|plan| plan.config.dead_letter = false);
    add(&|plan| plan.memory_bytes = 0);
    add(&|plan| plan.sync_max_us = 0);
    add(&|plan| plan.slow_sync_max_ms = 0);
    let mut kinds = plan.kinds.clone();
    kinds.sort();
    kinds.dedup();
    for kind in kinds {
        add(&|plan| {
            if plan.kinds.iter().any(|other| *other != kind) {
                plan.kinds.retain(|other| *other != kind);
            }
        });
    }
    add(&|plan| plan.commands = (plan.commands * 7 / 8).max(1));
    all
}
