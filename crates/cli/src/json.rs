//! Reports of check, backup and clean as JSON. Names that are not UTF-8 are escaped: `\xff`.

use serde::Serialize;
use sureq::CleanReport;
use sureq::store::{Backup, Beginning, Finding, Repaired, Report, Severity};

use crate::report::hex;

#[derive(Serialize)]
pub(crate) struct ReportJson {
    sound: bool,
    /// Why the store cannot be served.
    refusal: Option<String>,
    format: u32,
    uuid: Option<String>,
    /// As text, since JSON numbers are exact only to 2^53.
    incarnation: String,
    begin: u64,
    end: u64,
    /// The checkpoint that a start begins from.
    starts_from: Option<u64>,
    /// Whether a state could be built; otherwise queues and tasks are unknown.
    has_state: bool,
    tasks: u64,
    workers: u64,
    live_bytes: u64,
    dead_bytes: u64,
    spare_files: u64,
    spare_bytes: u64,
    segments: Vec<SegmentJson>,
    checkpoints: Vec<CheckpointJson>,
    queues: Vec<QueueJson>,
    findings: Vec<FindingJson>,
    /// Tasks without their payload beyond those in `findings`.
    payloads_not_listed: u64,
}

#[derive(Serialize)]
struct SegmentJson {
    file: String,
    bytes: u64,
    used_bytes: u64,
    first: u64,
    end: u64,
    frames: u64,
    live_tasks: u64,
    live_bytes: u64,
}

#[derive(Serialize)]
struct CheckpointJson {
    file: String,
    bytes: u64,
    position: Option<u64>,
    restores: bool,
}

#[derive(Serialize)]
struct QueueJson {
    name: String,
    ready: u64,
    delayed: u64,
    leased: u64,
    dead: u64,
    paused: bool,
    payload_bytes: u64,
}

#[derive(Serialize)]
struct FindingJson {
    severity: &'static str,
    file: String,
    offset: Option<u64>,
    position: Option<u64>,
    what: String,
    meaning: String,
    advice: String,
}

#[derive(Serialize)]
pub(crate) struct RepairedJson {
    complete: bool,
    begun_from: &'static str,
    checkpoint: Option<u64>,
    gaps: Vec<GapJson>,
    lost: Vec<LostJson>,
    /// Lost tasks whose ids are unknown.
    lost_unknown: u64,
    in_doubt: Vec<TaskJson>,
    nameless_queues: Vec<String>,
    store: ReportJson,
}

#[derive(Serialize)]
struct GapJson {
    from: u64,
    upto: Option<u64>,
}

#[derive(Serialize)]
struct LostJson {
    queue: String,
    id: String,
    why: String,
}

#[derive(Serialize)]
struct TaskJson {
    queue: String,
    id: String,
}

#[derive(Serialize)]
pub(crate) struct BackupJson {
    position: u64,
    files: u64,
    bytes: u64,
    retries: u32,
    store: Option<ReportJson>,
}

#[derive(Serialize)]
pub(crate) struct CleanJson {
    queues: Vec<CleanedJson>,
    /// Removed marks of unique tasks that belonged to no task.
    marks: u64,
}

#[derive(Serialize)]
struct CleanedJson {
    name: String,
    returned: u64,
    removed: u64,
    error: Option<String>,
}

impl From<&CleanReport> for CleanJson {
    fn from(report: &CleanReport) -> Self {
        let queues = report.queues.iter().map(|queue| {
            let cleaned = queue.outcome.as_ref().copied().unwrap_or_default();
            CleanedJson {
                name: name(&queue.queue),
                returned: cleaned.returned,
                removed: cleaned.removed,
                error: queue.outcome.as_ref().err().map(ToString::to_string),
            }
        });
        Self { queues: queues.collect(), marks: report.marks }
    }
}

/// A JSON object on one line.
pub(crate) fn line(value: &impl Serialize) -> String {
    serde_json::to_string(value).unwrap_or_else(|error| format!("{{\"error\": {:?}}}", error.to_string()))
}

/// A JSON object, indented.
pub(crate) fn text(value: &impl Serialize) -> String {
    serde_json::to_string_pretty(value)
        .unwrap_or_else(|error| format!("{{\"error\": {:?}}}", error.to_string()))
}

fn name(bytes: &[u8]) -> String {
    str::from_utf8(bytes).map_or_else(|_| bytes.escape_ascii().to_string(), str::to_owned)
}

impl From<&Report> for ReportJson {
    fn from(report: &Report) -> Self {
        let segments = report.segments.iter().map(|segment| SegmentJson {
            file: segment.file.clone(),
            bytes: segment.bytes,
            used_bytes: segment.used_bytes,
            first: segment.first.0,
            end: segment.end.0,
            frames: segment.frames,
            live_tasks: segment.live_tasks,
            live_bytes: segment.live_bytes,
        });
        let checkpoints = report.checkpoints.iter().map(|file| CheckpointJson {
            file: file.file.clone(),
            bytes: file.bytes,
            position: file.position.map(|position| position.0),
            restores: file.restores,
        });
        let queues = report.queues.iter().map(|queue| QueueJson {
            name: name(&queue.name),
            ready: queue.ready,
            delayed: queue.delayed,
            leased: queue.leased,
            dead: queue.dead,
            paused: queue.is_paused,
            payload_bytes: queue.payload_bytes,
        });
        Self {
            sound: report.is_sound(),
            refusal: report.refusal.clone(),
            format: report.format,
            uuid: report.uuid.map(hex),
            incarnation: report.incarnation.to_string(),
            begin: report.begin.0,
            end: report.end.0,
            starts_from: report.starts_from,
            has_state: report.has_state,
            tasks: report.tasks(),
            workers: report.workers,
            live_bytes: report.live_bytes,
            dead_bytes: report.dead_bytes,
            spare_files: report.spares.0,
            spare_bytes: report.spares.1,
            segments: segments.collect(),
            checkpoints: checkpoints.collect(),
            queues: queues.collect(),
            findings: report.findings.iter().map(FindingJson::from).collect(),
            payloads_not_listed: report.unlisted_payloads,
        }
    }
}

impl From<&Finding> for FindingJson {
    fn from(finding: &Finding) -> Self {
        Self {
            severity: match finding.severity {
                Severity::Note => "note",
                Severity::Damage => "damage",
            },
            file: finding.file.clone(),
            offset: finding.offset,
            position: finding.position.map(|position| position.0),
            what: finding.what.clone(),
            meaning: finding.meaning.clone(),
            advice: finding.advice.clone(),
        }
    }
}

impl From<&Repaired> for RepairedJson {
    fn from(repaired: &Repaired) -> Self {
        let (begun_from, checkpoint) = match repaired.beginning {
            Beginning::Checkpoint { number } => ("checkpoint", Some(number)),
            Beginning::Log => ("log", None),
            Beginning::PartOfCheckpoint { number, .. } => ("part of a checkpoint", Some(number)),
            Beginning::Nothing => ("nothing", None),
        };
        let gaps = repaired.gaps.iter();
        let lost = repaired.lost.iter();
        let in_doubt = repaired.doubtful.iter();
        Self {
            complete: repaired.is_complete(),
            begun_from,
            checkpoint,
            gaps: gaps.map(|gap| GapJson { from: gap.from.0, upto: gap.upto.map(|upto| upto.0) }).collect(),
            lost: lost
                .map(|lost| LostJson {
                    queue: name(&lost.queue),
                    id: lost.id.to_string(),
                    why: lost.why.clone(),
                })
                .collect(),
            lost_unknown: repaired.unnamed,
            in_doubt: in_doubt
                .map(|task| TaskJson { queue: name(&task.queue), id: task.id.to_string() })
                .collect(),
            nameless_queues: repaired.nameless.iter().map(|queue| name(queue)).collect(),
            store: ReportJson::from(&repaired.report),
        }
    }
}

impl From<&Backup> for BackupJson {
    fn from(backup: &Backup) -> Self {
        Self {
            position: backup.position.0,
            files: backup.files,
            bytes: backup.bytes,
            retries: backup.retries,
            store: backup.report.as_ref().map(ReportJson::from),
        }
    }
}
