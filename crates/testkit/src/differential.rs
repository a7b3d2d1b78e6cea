//! Differential test: the core and another home execute the same random commands, and every reply must be equal.
//!
//! A seed draws steps ([`draw`]). The core executes them, and [`author`] records its replies as a scenario, which
//! then runs in the other home. A scenario that fails is reduced: steps are removed as long as it still fails. The
//! reduced one is printed, and belongs in `scenarios/` once the defect is fixed.
//!
//! The core itself is compared with a naive model by its own tests.

mod author;
mod draw;

use std::path::Path;
use std::time::{Duration, Instant};

use crate::conformance::{exception, judge};
use crate::scenario::{Restarts, Scenario};
use crate::subject::Candidate;

use author::Author;
use draw::{Draw, Scope};

/// Commands per seed.
const COMMANDS: usize = 500;

/// The time limit for reducing a failing scenario.
const SHRINK_TIME_MAX: Duration = Duration::from_secs(60);

/// One step and its number, by which later steps refer to its replies.
#[derive(Clone, Debug)]
struct Step {
    number: usize,
    act: Act,
}

#[derive(Clone, Debug)]
enum Act {
    /// All queues get their first settings.
    Begin {
        configs: Vec<Vec<Word>>,
    },
    /// A queue is dropped, and gets its first settings again.
    Drop {
        conn: usize,
        queue: String,
        config: Vec<Word>,
    },
    /// Requests that are sent at once.
    Ask {
        conn: usize,
        requests: Vec<Vec<Word>>,
    },
    /// Time passes, and then each of these queues is looked at, in this order: some homes execute what is due only
    /// then.
    Pass {
        ms: u64,
        queues: Vec<String>,
    },
    /// The wall clock is set, and a short time passes.
    Jump {
        ms: i64,
        queues: Vec<String>,
    },
    Restart,
    Close(usize),
}

/// A word of a request.
#[derive(Clone, Debug)]
enum Word {
    Text(Vec<u8>),
    /// Text that first appeared in the replies to an earlier step.
    Seen(Name),
}

/// An id, a receipt or a worker, by the step that returned it and its position among those of that step.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Name {
    step: usize,
    place: usize,
}

/// A permitted difference of a home from the core, which is not compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Difference {
    /// Restarts take too long, or are impossible.
    Restarts,
    /// Leases of a connection do not end together, or the test cannot find out when they have ended.
    Connections,
    /// Waiting clients are not always served in the order of arrival.
    Line,
    /// Queues are keys: `DEL` and `EXISTS` count queues that have settings but no tasks, and an empty one without
    /// settings loses its counters.
    Keys,
}

/// Compares the home with the core on this many random commands. `SUREQ_TEST_SCALE=10` runs ten times as many;
/// `SUREQ_TEST_SEED=7` starts with that seed instead of 0.
///
/// # Panics
///
/// If a reply differs. The message contains the seed and the reduced scenario.
pub fn exercise(candidate: &Candidate, differences: &[Difference], commands: usize) {
    let number = |name| std::env::var(name).ok().and_then(|value| value.parse().ok());
    let commands = commands * number("SUREQ_TEST_SCALE").unwrap_or(1).max(1);
    let first = number("SUREQ_TEST_SEED").unwrap_or(0);
    let scope = Scope::of(candidate, differences);
    for seed in first..first + commands.div_ceil(COMMANDS) {
        let (steps, text) = write(seed as u64, scope);
        if let Some(how) = differs(candidate, &text) {
            let (steps, how) = shrink(candidate, scope, steps, how);
            panic!(
                "{} answers seed {seed} otherwise than the core:\n{how}\n\n{}",
                candidate.name,
                render(&steps, scope)
            );
        }
    }
}

/// The steps of a seed, and the scenario that they make.
fn write(seed: u64, scope: Scope) -> (Vec<Step>, String) {
    let (mut draw, mut author) = (Draw::new(seed, scope), Author::new(scope));
    let mut steps: Vec<Step> = Vec::new();
    let mut perform = |act: Act, author: &mut Author| {
        steps.push(Step { number: steps.len(), act });
        steps.last().into_iter().for_each(|step| author.perform(step));
    };
    while author.commands() < COMMANDS {
        perform(draw.act(&author), &mut author);
    }
    draw.last_acts().into_iter().for_each(|act| perform(act, &mut author));
    (steps, author.text())
}

/// The steps as a scenario with the replies of the core.
fn render(steps: &[Step], scope: Scope) -> String {
    let mut author = Author::new(scope);
    for step in steps {
        author.perform(step);
    }
    author.text()
}

/// The first difference between a home and the core, if there is one.
fn differs(candidate: &Candidate, text: &str) -> Option<String> {
    let scenario =
        Scenario::parse(Path::new("found.txt"), text).unwrap_or_else(|error| panic!("{error}:\n{text}"));
    if let Some(exception) = exception(&scenario, candidate) {
        panic!("{}: {exception:?}, although only supported commands are drawn:\n{text}", candidate.name);
    }
    judge(&scenario, candidate, Restarts::AsWritten).err()
}

/// Removes steps, in ever smaller groups, and then single requests, as long as the scenario still fails. The first step
/// stays: the comparison depends on its settings.
fn shrink(candidate: &Candidate, scope: Scope, mut steps: Vec<Step>, mut how: String) -> (Vec<Step>, String) {
    let until = Instant::now() + SHRINK_TIME_MAX;
    let still_differs = |steps: &[Step]| {
        if Instant::now() < until { differs(candidate, &render(steps, scope)) } else { None }
    };
    let mut part = steps.len() / 2;
    while part > 0 {
        let (mut end, before) = (steps.len(), steps.len());
        while end > 0 {
            let begin = end.saturating_sub(part);
            let mut fewer = [&steps[..begin], &steps[end..]].concat();
            if begin == 0 {
                fewer.insert(0, steps[0].clone());
            }
            if let Some(differently) = still_differs(&fewer) {
                (steps, how) = (fewer, differently);
            }
            end = begin;
        }
        if part > 1 || steps.len() == before {
            part /= 2;
        }
    }
    for at in (0..steps.len()).rev() {
        for request in (0..requests_of(&steps[at])).rev() {
            let mut fewer = steps.clone();
            if let Act::Ask { requests, .. } = &mut fewer[at].act
                && requests.len() > 1
            {
                requests.remove(request);
                if let Some(differently) = still_differs(&fewer) {
                    (steps, how) = (fewer, differently);
                }
            }
        }
    }
    (steps, how)
}

fn requests_of(step: &Step) -> usize {
    if let Act::Ask { requests, .. } = &step.act { requests.len() } else { 0 }
}
