//! The reports of `check` and `backup` as text.

use std::fmt::Write as _;

use crate::format::{self, size};
use sureq::store::{Beginning, Doubtful, Finding, Lost, QueueReport, Repaired, Report, Severity};

/// Further queues or findings are only counted; `--json` lists all.
const LISTED_MAX: usize = 20;

/// The state of a store, one fact per line.
pub(crate) fn store(report: &Report) -> String {
    let mut text = String::new();
    let uuid = report.uuid.map_or_else(|| "unknown".to_owned(), hex);
    line(
        &mut text,
        "store",
        format_args!("{uuid}, log format {}, incarnation {}", report.format, report.incarnation),
    );
    let (bytes, used) = report
        .segments
        .iter()
        .fold((0, 0), |(bytes, used), segment| (bytes + segment.bytes, used + segment.used_bytes));
    let (first, end, segments) = (report.begin, report.end, report.segments.len());
    line(
        &mut text,
        "log",
        format_args!(
            "positions {first} to {end} in {}, {} of {} used",
            many(segments, "segment"),
            size(used),
            size(bytes)
        ),
    );
    let (live, dead) = (size(report.live_bytes), size(report.dead_bytes));
    let (spares, spare_bytes) = report.spares;
    line(
        &mut text,
        "",
        format_args!(
            "{live} live, {dead} dead; {} with {} in reserve",
            many(spares as usize, "file"),
            size(spare_bytes)
        ),
    );
    checkpoints(&mut text, report);
    if report.has_state {
        queues(&mut text, &report.queues);
    } else {
        line(
            &mut text,
            "queues",
            format_args!("unknown: no state can be built; `--repair` shows what can be saved"),
        );
    }
    if report.workers > 0 {
        line(&mut text, "workers", format_args!("{}", report.workers));
    }
    findings(&mut text, &report.findings);
    let verdict = match (report.damages(), &report.refusal) {
        (0, _) => "sound: all data is as it was written".to_owned(),
        (n, None) => format!("damaged: {}; it can still be served", many(n, "finding")),
        (n, Some(why)) => format!("damaged: {}; it cannot be served: {why}", many(n, "finding")),
    };
    line(&mut text, "verdict", format_args!("{verdict}"));
    text
}

fn checkpoints(text: &mut String, report: &Report) {
    if report.checkpoints.is_empty() {
        return line(text, "checkpoints", format_args!("none"));
    }
    let bytes = report.checkpoints.iter().map(|file| file.bytes).sum();
    let files = many(report.checkpoints.len(), "file");
    let kept = report.checkpoints.iter().filter_map(|file| Some((file.position?, file.restores)));
    let kept: Vec<String> = kept
        .map(|(position, restores)| {
            format!("at {position}{}", if restores { "" } else { " (cannot be used)" })
        })
        .collect();
    line(text, "checkpoints", format_args!("{} in {files} with {}", kept.join(", "), size(bytes)));
}

fn queues(text: &mut String, queues: &[QueueReport]) {
    let tasks: u64 = queues.iter().map(QueueReport::tasks).sum();
    let bytes = queues.iter().map(|queue| queue.payload_bytes).sum();
    let (lines, tasks) = (many(queues.len(), "queue"), many(tasks as usize, "task"));
    line(text, "queues", format_args!("{lines} with {tasks}, {}", size(bytes)));
    if queues.is_empty() {
        return;
    }
    let _ = writeln!(
        text,
        "  {:>10} {:>10} {:>10} {:>10} {:>9}  name",
        "ready", "delayed", "leased", "dead", "payloads"
    );
    for queue in queues.iter().take(LISTED_MAX) {
        let paused = if queue.is_paused { " (paused)" } else { "" };
        let QueueReport { ready, delayed, leased, dead, payload_bytes, .. } = queue;
        let (bytes, name) = (size(*payload_bytes), queue.name.escape_ascii());
        let _ =
            writeln!(text, "  {ready:>10} {delayed:>10} {leased:>10} {dead:>10} {bytes:>9}  {name}{paused}");
    }
    more(text, queues.len(), "queues");
}

fn findings(text: &mut String, findings: &[Finding]) {
    if findings.is_empty() {
        return;
    }
    line(text, "findings", format_args!("{}", findings.len()));
    for finding in findings.iter().take(LISTED_MAX) {
        let kind = match finding.severity {
            Severity::Note => "note",
            Severity::Damage => "DAMAGE",
        };
        let _ = writeln!(text, "  {kind}: {finding}");
        let _ = writeln!(text, "    meaning: {}", finding.meaning);
        let _ = writeln!(text, "    advice: {}", finding.advice);
    }
    more(text, findings.len(), "findings");
}

/// The result of a repair, one fact per line.
pub(crate) fn repair(repaired: &Repaired) -> String {
    let mut text = String::new();
    let beginning = match repaired.beginning {
        Beginning::Checkpoint { number } => format!("checkpoint {number}, which is sound"),
        Beginning::Log => "the log, which reaches back to its first event".to_owned(),
        Beginning::PartOfCheckpoint { number, lost } => {
            format!("checkpoint {number}, of which {} could not be read", many(lost, "part"))
        }
        Beginning::Nothing => "the rest of the log only".to_owned(),
    };
    line(&mut text, "started from", format_args!("{beginning}"));
    line(&mut text, "saved", format_args!("{}", many(repaired.report.tasks() as usize, "task")));
    for gap in &repaired.gaps {
        let from = gap.from;
        let upto = gap.upto.map_or_else(|| "on".to_owned(), |upto| format!("up to {upto}"));
        line(&mut text, "lost", format_args!("the events from position {from} {upto}"));
    }
    if repaired.unnamed > 0 {
        let count = many(repaired.unnamed as usize, "task");
        line(&mut text, "lost", format_args!("up to {count} whose ids are unknown"));
    }
    if !repaired.lost.is_empty() {
        line(&mut text, "lost", format_args!("{}", many(repaired.lost.len(), "task")));
    }
    // All of them, however many there are: nothing else lists them.
    for Lost { queue, id, why } in &repaired.lost {
        let _ = writeln!(text, "  {id} of {}: {why}", queue.escape_ascii());
    }
    doubtful(&mut text, &repaired.doubtful);
    for name in &repaired.nameless {
        let name = name.escape_ascii();
        line(&mut text, "nameless", format_args!("a queue whose name is lost is called {name}"));
    }
    if repaired.is_complete() {
        line(&mut text, "complete", format_args!("nothing is lost"));
    }
    text
}

fn doubtful(text: &mut String, doubtful: &[Doubtful]) {
    if doubtful.is_empty() {
        return;
    }
    let count = many(doubtful.len(), "task");
    line(
        text,
        "in doubt",
        format_args!("{count} saved that may have been finished in the lost part of the log"),
    );
    for Doubtful { queue, id } in doubtful {
        let _ = writeln!(text, "  {id} of {}", queue.escape_ascii());
    }
}

fn more(text: &mut String, count: usize, what: &str) {
    if count > LISTED_MAX {
        let _ = writeln!(text, "  … and {} more {what}; --json lists all", count - LISTED_MAX);
    }
}

fn line(text: &mut String, what: &str, value: std::fmt::Arguments<'_>) {
    let _ = writeln!(text, "{what:<12} {value}");
}

pub(crate) fn hex(bytes: [u8; 16]) -> String {
    bytes.iter().fold(String::new(), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}

fn many(count: usize, thing: &str) -> String {
    format::many(count as u64, thing)
}
