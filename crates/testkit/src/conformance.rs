//! One suite for every home: each scenario of `scenarios/` runs in each home, and docs/understand/conformance.md
//! lists which home supports which.
//!
//! A home joins with a [`Candidate`], a ten-line test file that calls [`exercise`], and a place in the table's test.
//! With `SUREQ_BLESS=1` the core writes its replies into the scenarios, and the table is regenerated.

use std::fmt::Write as _;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};

use crate::scenario::{Need, Restarts, Scenario, play};
use crate::subject::Candidate;

/// Whether expectations are to be rewritten instead of checked.
pub fn blesses() -> bool {
    std::env::var_os("SUREQ_BLESS").is_some_and(|value| value == "1")
}

/// All scenarios, by name.
///
/// # Panics
///
/// If one cannot be read.
pub fn scenarios() -> Vec<Scenario> {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("scenarios");
    let files = std::fs::read_dir(&dir).expect("the scenarios are in their directory");
    let mut paths: Vec<PathBuf> = files.filter_map(|file| Some(file.ok()?.path())).collect();
    paths.retain(|path| path.extension().is_some_and(|ending| ending == "txt"));
    paths.sort();
    let read = paths.iter().map(|path| Scenario::load(path).unwrap_or_else(|error| panic!("{error}")));
    read.collect()
}

/// The reason why a scenario need not hold in a home.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Exception {
    /// The home lacks something that the scenario needs.
    Cannot(Need),
    /// The home has other replies, for this reason.
    Otherwise(&'static str),
}

pub(crate) fn exception(scenario: &Scenario, candidate: &Candidate) -> Option<Exception> {
    if let Some(need) = scenario.needs().into_iter().find(|&need| !(candidate.can)(need)) {
        return Some(Exception::Cannot(need));
    }
    let name = scenario.name();
    let known = candidate.otherwise.iter().find(|(scenario, _)| *scenario == name);
    known.map(|(_, why)| Exception::Otherwise(why))
}

/// Runs one scenario in one home, unless there is an exception. The error describes the difference.
pub(crate) fn judge(scenario: &Scenario, candidate: &Candidate, restarts: Restarts) -> Result<(), String> {
    if exception(scenario, candidate).is_some() {
        return Ok(());
    }
    let played = catch_unwind(AssertUnwindSafe(|| {
        let mut subject = (candidate.open)(scenario.watcher);
        play(scenario, subject.as_mut(), restarts)
    }));
    match played {
        Err(_) => Err(format!("{}: a panic, reported above", scenario.path.display())),
        Ok(played) => played.mismatches.first().map_or(Ok(()), |first| Err(first.to_string())),
    }
}

/// Runs all scenarios in a home, and those that allow it once more with a restart after every step.
///
/// # Panics
///
/// If one of them differs; the message contains the difference.
pub fn exercise(candidate: &Candidate) {
    exercise_with(candidate, &[Restarts::AsWritten, Restarts::Everywhere]);
}

/// Runs all scenarios in a home, with these restarts if a scenario allows them.
///
/// # Panics
///
/// If one of them differs; the message contains the difference.
pub fn exercise_with(candidate: &Candidate, restarts: &[Restarts]) {
    let scenarios = scenarios();
    assert!(!scenarios.is_empty(), "there are scenarios");
    if blesses() {
        return bless(&scenarios, candidate);
    }
    let mut differences = String::new();
    for scenario in &scenarios {
        let allows = scenario.no_extra_restarts.is_none() && (candidate.can)(Need::Restart);
        for restarts in restarts.iter().take(1 + usize::from(allows)) {
            if let Err(how) = judge(scenario, candidate, *restarts) {
                // Writing to a `String` does not fail.
                let _ = writeln!(differences, "{how}\n  (restarts: {restarts:?})");
            }
        }
    }
    assert!(differences.is_empty(), "{} differs from the scenarios:\n{differences}", candidate.name);
}

/// Records the replies of the core, which is the reference.
fn bless(scenarios: &[Scenario], candidate: &Candidate) {
    if candidate.name != "core" {
        return;
    }
    for scenario in scenarios {
        let mut subject = (candidate.open)(scenario.watcher);
        let played = play(scenario, subject.as_mut(), Restarts::AsWritten);
        if !played.mismatches.is_empty() {
            std::fs::write(&scenario.path, played.retold).expect("a scenario can be written");
        }
    }
}

/// The contents of docs/understand/conformance.md. No scenario runs for it: each home has a test that calls
/// [`exercise`], which fails if a scenario without an exception does not hold.
pub fn table(candidates: &[Candidate]) -> String {
    let mut text = String::from(HEAD);
    let names: Vec<&str> = candidates.iter().map(|candidate| candidate.name).collect();
    let _ = writeln!(text, "| scenario | what it shows | {} |", names.join(" | "));
    let _ = writeln!(text, "|---|---|{}", "---|".repeat(names.len()));
    for scenario in scenarios() {
        let cell = |candidate: &Candidate| match exception(&scenario, candidate) {
            None => "yes".to_owned(),
            Some(Exception::Cannot(need)) => format!("no: {}", need_text(need)),
            Some(Exception::Otherwise(why)) => format!("no: {why}"),
        };
        let verdicts: Vec<String> = candidates.iter().map(cell).collect();
        let (name, title) = (scenario.name(), &scenario.title);
        let link = format!("[{name}](../../crates/testkit/scenarios/{name}.txt)");
        let _ = writeln!(text, "| {link} | {title} | {} |", verdicts.join(" | "));
    }
    text
}

const HEAD: &str = "# Conformance

Which scenario holds in which home. Every scenario of `crates/testkit/scenarios` is played in every home, and its
replies are compared; `crates/testkit/src/scenario.rs` explains the format. Scenarios that do not say
`no-extra-restarts` are also played with a restart after every step; for a cluster, a failover takes the place of a
restart. In `cluster` each queue is in the slot of its name, and commands that span slots are refused
([why](../reference/redis-keys.md#in-a-cluster)); in `cluster, one slot` a prefix keeps all queues together.

This page is generated: `SUREQ_BLESS=1 cargo test -p sureq-testkit --test conformance_table`.

";

const fn need_text(need: Need) -> &'static str {
    match need {
        Need::Restart => "keeps nothing",
        Need::Text => "has no text dialect",
        Need::Time => "has no clock that can be moved",
        Need::Together => "spans slots",
    }
}
