//! Checks a store that is not open: reports its contents and its damage, and changes nothing.
//!
//! The map:
//! - [`check()`] (here) checks everything: the `store` file, segments, checkpoints, states, payloads, index, other
//!   files.
//! - `identity` finds out the identity of the store.
//! - `segments` checks the frames of the log. `state` builds the state as a start would, from each checkpoint.
//! - `payloads` reads payloads at their places. `index` compares the places in the index with the log.
//! - `running` checks the consistency of an open store.
//! - [`Report`] (`report`) is the result, and a [`Finding`] one irregularity.
//!
//! Damage of one file does not prevent the check of the others.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use sureq_core::Now;

use crate::checkpoint::{Checkpoints, is_checkpoint_name, is_draft_name};
use crate::disk::{Disk, LOCK_NAME};
use crate::fault::{Damage, Fault, OpenError};
use crate::log::salvage::{Found, find_segments, is_spare_name};
use crate::log::{FORMAT_VERSION, Position, is_segment_name, segment_name};
use crate::store::{self, StoreValues};

mod identity;
mod index;
pub(crate) mod payloads;
mod report;
mod running;
mod segments;
pub(crate) mod state;

pub(crate) use identity::{Identity, identify};
use payloads::Payloads;
pub(crate) use report::REPAIR;
pub use report::{CheckpointReport, Finding, QueueReport, Report, SegmentReport, Severity};
use segments::Needs;
use state::Built;

/// Receives the progress of long work: the step, bytes done, bytes in total.
pub type Progress<'p> = dyn FnMut(&'static str, u64, u64) + 'p;

/// Lost payloads beyond this number are counted and not listed: each takes half a kilobyte of memory, and a repair,
/// which is the next step then, lists all of them. The limit also applies to wrong places in the index, of which none
/// is expected.
const LISTED_MAX: usize = 100_000;

/// Checks the store in `disk`. Changes nothing, not even where there is damage.
///
/// It fails only if no check is possible: there is no store, a later release wrote it, or the directory cannot be
/// read.
pub fn check(disk: &Arc<dyn Disk>, progress: &mut Progress<'_>) -> Result<Report, OpenError> {
    let names = disk.list()?;
    let (identity, findings) = identify(&**disk, &names)?;
    let mut check = Check {
        disk,
        steps: Steps::new(progress),
        report: Report { format: FORMAT_VERSION, findings, ..Report::default() },
    };
    check.report.uuid = identity.uuid;
    check.report.incarnation = identity.values.map_or(0, |values| values.incarnation);
    if let Some(uuid) = identity.uuid {
        check.all(uuid, identity.values)?;
    }
    check.other_files(&names);
    let mut report = check.report;
    report.findings.sort_by(|a, b| (b.severity, &a.file, a.offset).cmp(&(a.severity, &b.file, b.offset)));
    report.findings.dedup();
    Ok(report)
}

/// Reports the progress.
pub(crate) struct Steps<'p> {
    progress: &'p mut Progress<'p>,
    what: &'static str,
    done: u64,
    total: u64,
}

impl<'p> Steps<'p> {
    pub(crate) fn new(progress: &'p mut Progress<'_>) -> Steps<'p> {
        Steps { progress, what: "", done: 0, total: 0 }
    }

    pub(crate) fn begin(&mut self, what: &'static str, total: u64) {
        (self.what, self.done, self.total) = (what, 0, total);
        (self.progress)(what, 0, total);
    }

    pub(crate) fn step(&mut self, bytes: u64) {
        self.done += bytes;
        (self.progress)(self.what, self.done, self.total.max(self.done));
    }
}

struct Check<'c, 'p> {
    disk: &'c Arc<dyn Disk>,
    steps: Steps<'p>,
    report: Report,
}

impl Check<'_, '_> {
    fn all(&mut self, uuid: [u8; 16], values: Option<StoreValues>) -> Result<(), Fault> {
        if values.is_none() {
            self.refuse(&"the `store` file is missing or damaged");
        }
        let (checkpoints, refused) = Checkpoints::look(Arc::clone(self.disk), uuid)?;
        self.refused(refused);
        self.checkpoints(&checkpoints);
        let found = find_segments(&**self.disk, uuid)?;
        let sound_upto = self.segments(&found);
        let may_be_new = values.is_none_or(|values| values.incarnation == 0);
        let built = if self.report.checkpoints.is_empty() {
            self.whole_log(uuid, may_be_new)
        } else {
            self.states(uuid, &checkpoints, may_be_new)
        };
        if let Some(built) = built {
            self.state(&built, values);
            self.index(&built, &index::Log { disk: &**self.disk, segments: &found, sound_upto: &sound_upto });
        }
        Ok(())
    }

    /// Reports files of checkpoints that make a start refuse the store.
    fn refused(&mut self, refused: Vec<(String, OpenError)>) {
        for (name, error) in refused {
            let meaning = "a start refuses the store, since it may have been mixed up with another";
            let advice = "move the file away if it does not belong here";
            self.refuse(&error);
            self.report.findings.push(Finding::wrong(name, plain(&error), meaning, advice).at(0, None));
        }
    }

    fn checkpoints(&mut self, checkpoints: &Checkpoints) {
        self.steps.begin("reading checkpoints", checkpoints.bytes());
        let steps = &mut self.steps;
        for file in checkpoints.examine(&mut |bytes| steps.step(bytes)) {
            for damage in &file.damages {
                let meaning = "a checkpoint that needs this cannot be used";
                let advice = "if a start from another checkpoint is possible, serve the store: two new ones replace this";
                self.report.findings.push(Finding::damage(damage, meaning, advice));
            }
            if !file.is_needed && file.damages.is_empty() {
                let what = "no checkpoint refers to it";
                let meaning = "a crash prevented its removal";
                let advice = "nothing: the next start removes it";
                self.report.findings.push(Finding::note(&file.name, what, meaning, advice));
            }
            self.report.checkpoints.push(CheckpointReport {
                file: file.name,
                bytes: file.bytes,
                position: file.position.filter(|_| file.is_checkpoint),
                restores: false,
            });
        }
    }

    /// The positions from which the log is needed. They assume that a start uses the newest checkpoint, which is not
    /// certain yet.
    fn needs(&self) -> Needs {
        let positions: Vec<Position> =
            self.report.checkpoints.iter().filter_map(|file| file.position).collect();
        let newest = positions.iter().copied().max().unwrap_or_default();
        // A store with fewer than two checkpoints usually still has the beginning of its log. But it has only one,
        // and no beginning, if it is a copy or the disk was full.
        Needs { from: positions.iter().copied().min().unwrap_or_default(), start: newest }
    }

    /// Returns the offset up to which each segment is sound.
    fn segments(&mut self, found: &[Found]) -> BTreeMap<u64, u64> {
        let needs = self.needs();
        self.steps.begin("reading the log", found.iter().map(|segment| segment.bytes).sum());
        let examined = segments::examine(&**self.disk, found, needs, &mut self.steps);
        self.report.begin = examined.reports.first().map_or(Position::START, |segment| segment.first);
        self.report.end = examined.reports.last().map_or(Position::START, |segment| segment.end);
        self.report.segments = examined.reports;
        self.report.findings.extend(examined.findings);
        examined.sound_upto
    }

    /// Builds the state from the beginning of the log.
    fn whole_log(&mut self, uuid: [u8; 16], may_be_new: bool) -> Option<Built> {
        self.steps.begin("building the state", 0);
        match state::replay(self.disk, uuid, state::Beginning::default(), may_be_new) {
            Ok(built) => {
                self.missing(&built);
                Some(built)
            }
            Err(error) => {
                self.refuse(&error);
                self.cannot_build("the state cannot be built", &error);
                None
            }
        }
    }

    /// Builds the state from each checkpoint, and returns that of the newest. Notes the outcome of a start, which
    /// falls back to the older checkpoint if the newer one is damaged, but not if the log after it is.
    fn states(&mut self, uuid: [u8; 16], checkpoints: &Checkpoints, may_be_new: bool) -> Option<Built> {
        let mut newest: Option<(u64, Built, u64)> = None;
        let (mut is_decided, mut first_damage) = (false, None);
        for number in checkpoints.numbers() {
            self.steps.begin("building the state", 0);
            let restored = state::restore(checkpoints, number);
            let is_damaged = matches!(restored, Err(OpenError::Damaged(_)));
            let built = restored.and_then(|beginning| state::replay(self.disk, uuid, beginning, may_be_new));
            match built {
                Err(error) => {
                    let meaning = format!("the state cannot be restored from checkpoint {number}");
                    self.cannot_build(&meaning, &error);
                    if is_damaged {
                        first_damage.get_or_insert(error);
                    } else if !is_decided {
                        is_decided = true;
                        self.refuse(&error);
                    }
                }
                Ok(built) => {
                    if !is_decided {
                        is_decided = true;
                        self.report.starts_from = built.missing.is_none().then_some(number);
                        self.missing(&built);
                    }
                    self.restored(number, &built);
                    let digest = built.digest();
                    match &newest {
                        Some((newer, state, other)) => {
                            let is_same = digest == *other
                                && built.end == state.end
                                && built.live_by_file() == state.live_by_file();
                            if !is_same {
                                self.differs(number, *newer);
                            }
                        }
                        None => newest = Some((number, built, digest)),
                    }
                }
            }
        }
        if !is_decided {
            match first_damage {
                Some(error) => self.refuse(&error),
                None => self.refuse(&"there are files of checkpoints, and no checkpoint"),
            }
        }
        newest.map(|(_, built, _)| built)
    }

    fn missing(&mut self, built: &Built) {
        if let Some(error) = &built.missing {
            self.refuse(error);
            self.cannot_build("a start refuses the store, because tasks have lost their payloads", error);
        }
    }

    fn restored(&mut self, number: u64, built: &Built) {
        let name = named(number);
        self.report
            .checkpoints
            .iter_mut()
            .filter(|file| file.file == name)
            .for_each(|file| file.restores = true);
        self.miscounted(number, built);
    }

    fn differs(&mut self, number: u64, newer: u64) {
        let what = format!("replaying the log from it gives another state than from checkpoint {newer}");
        let meaning = "one of the two is wrong, although its checksums match";
        self.report.findings.push(Finding::wrong(named(number), what, meaning, REPORT_IT));
    }

    /// Reports why a state could not be built, unless that was reported before.
    fn cannot_build(&mut self, meaning: &str, error: &OpenError) {
        let (file, offset) = match error {
            OpenError::Damaged(Damage { file, offset, .. }) | OpenError::Replay { file, offset, .. } => {
                (file.clone(), *offset)
            }
            _ => ("the log".to_owned(), 0),
        };
        let is_known = |finding: &Finding| finding.file == file && finding.severity == Severity::Damage;
        if !self.report.findings.iter().any(is_known) {
            self.report.findings.push(Finding::wrong(file, plain(error), meaning, REPAIR).at(offset, None));
        }
    }

    /// Keeps the first reason why a start would refuse the store.
    fn refuse(&mut self, error: &dyn fmt::Display) {
        self.report.refusal.get_or_insert_with(|| error.to_string());
    }

    fn miscounted(&mut self, number: u64, built: &Built) {
        for miscount in &built.miscounts {
            let (counted, found) = (miscount.counted, miscount.found);
            let what = format!(
                "it counts {} live payloads of {} bytes in {}, but its tasks have {} of {}",
                counted.tasks,
                counted.bytes,
                segment_name(miscount.segment),
                found.tasks,
                found.bytes
            );
            let meaning = "the segment may be kept forever, or removed while it is needed";
            self.report.findings.push(Finding::wrong(named(number), what, meaning, REPORT_IT));
        }
    }

    /// Checks the state that a start would have.
    fn state(&mut self, built: &Built, values: Option<StoreValues>) {
        self.report.end = built.end;
        self.report.has_state = true;
        if let Some(cut) = &built.cut {
            let what = "a write that a crash interrupted; the log ends here";
            let meaning = "it was never confirmed, and nothing is lost";
            let note = Finding::note(&cut.file, what, meaning, "nothing: the next start cuts it off");
            self.report.findings.push(note.at(cut.offset, Some(cut.position)));
        }
        if let Err(broken) = built.broker.check() {
            let meaning = "the state contradicts itself";
            self.report.findings.push(Finding::wrong("the state", broken.0, meaning, REPORT_IT));
        }
        if values.is_some_and(|values| values.incarnation < built.broker.incarnation()) {
            self.report.findings.push(Finding::wrong(store::NAME, OLD_INCARNATION, OLD_STORE, REPAIR));
        }
        if values
            .is_some_and(|values| values.id_mark <= built.broker.last_id().raw() && values.incarnation > 0)
        {
            self.report.findings.push(Finding::wrong(store::NAME, OLD_MARK, OLD_STORE, REPAIR));
        }
        self.counts(built);
        self.payloads(built);
    }

    fn counts(&mut self, built: &Built) {
        let by_file = built.live_by_file();
        for segment in &mut self.report.segments {
            let live = by_file.iter().find(|(number, _)| segment_name(**number) == segment.file);
            if let Some((_, live)) = live {
                // Each task is counted as if it had a frame of its own; together they take less.
                (segment.live_tasks, segment.live_bytes) = (live.tasks, live.bytes.min(segment.used_bytes));
            }
        }
        let used: u64 = self.report.segments.iter().map(|segment| segment.used_bytes).sum();
        self.report.live_bytes = self.report.segments.iter().map(|segment| segment.live_bytes).sum();
        self.report.dead_bytes = used.saturating_sub(self.report.live_bytes);
        self.report.workers = built.broker.workers().count() as u64;
        for miscount in state::miscounts(&built.live, &built.broker) {
            let (counted, found) = (miscount.counted.tasks, miscount.found.tasks);
            let what = format!("{counted} live payloads are counted, but {found} tasks have payloads there");
            let file = segment_name(miscount.segment);
            self.report.findings.push(Finding::wrong(file, what, "the counts do not add up", REPORT_IT));
        }
    }

    fn payloads(&mut self, built: &Built) {
        self.steps.begin("reading payloads", built.live.total().bytes);
        let mut payloads = Payloads::new(Arc::clone(self.disk), built.files.clone());
        let (mut bad, mut unlisted) = (Vec::new(), 0u64);
        let steps = &mut self.steps;
        let bytes = state::read_payloads(
            &built.broker,
            &mut payloads,
            &mut |queue, id, _, damage| {
                if bad.len() < LISTED_MAX { bad.push((queue, id, damage)) } else { unlisted += 1 }
            },
            &mut |bytes| steps.step(bytes),
        );
        for (queue, id, damage) in bad {
            let name = built.broker.name_of(queue).unwrap_or_default();
            let meaning = format!("task {id} of queue {} has lost its payload", name.escape_ascii());
            let advice =
                "push it again if you can; the pop that reaches it makes it dead, with this as the reason";
            self.report.findings.push(Finding::damage(&damage, meaning, advice));
        }
        if unlisted > 0 {
            let what = format!("{unlisted} more tasks have lost their payloads");
            self.report.unlisted_payloads = unlisted;
            self.report.findings.push(Finding::wrong("the log", what, "they are not listed here", REPAIR));
        }
        self.queues(built, &bytes);
    }

    fn index(&mut self, built: &Built, log: &index::Log<'_>) {
        let (mut misplaced, mut unlisted) = (Vec::new(), 0u64);
        log.compare(built, &mut self.steps, &mut |task| {
            if misplaced.len() < LISTED_MAX { misplaced.push(task) } else { unlisted += 1 }
        });
        let findings = misplaced.iter().map(|task| task.finding(&built.broker));
        self.report.findings.extend(findings);
        if unlisted > 0 {
            let what = format!("the index has wrong places for {unlisted} more tasks");
            self.report.findings.push(Finding::wrong("the log", what, "they are not listed here", REPORT_IT));
        }
    }

    fn queues(&mut self, built: &Built, bytes: &BTreeMap<sureq_core::event::QueueNo, u64>) {
        for (name, queue) in built.broker.queues() {
            let [ready, delayed, leased, dead] = queue.counts();
            self.report.queues.push(QueueReport {
                name: name.to_vec(),
                ready,
                delayed,
                leased,
                dead,
                is_paused: queue.info(Now::default()).paused.is_some(),
                payload_bytes: bytes.get(&queue.no()).copied().unwrap_or(0),
            });
        }
        self.report.queues.sort_by(|a, b| a.name.cmp(&b.name));
    }

    /// Reports files that are not part of the state.
    fn other_files(&mut self, names: &[String]) {
        for name in names {
            if is_spare_name(name) {
                self.report.spares.0 += 1;
                self.report.spares.1 += self.disk.open(name).and_then(|file| file.len()).unwrap_or(0);
            } else if name == store::NEW_NAME || is_draft_name(name) {
                let what = "an incomplete file";
                let meaning = "a crash interrupted its creation; nothing refers to it";
                let advice = "nothing: the next start removes it";
                self.report.findings.push(Finding::note(name, what, meaning, advice));
            } else if name != LOCK_NAME
                && name != store::NAME
                && !is_segment_name(name)
                && !is_checkpoint_name(name)
            {
                let meaning = "it is neither read nor removed";
                let advice = "nothing, unless it is a renamed file of the store";
                self.report.findings.push(Finding::note(
                    name,
                    "not a file of a store: ignored",
                    meaning,
                    advice,
                ));
            }
        }
    }
}

const REPORT_IT: &str =
    "keep the directory and report it: this is a bug in sureq, or an error of the machine's memory";
const OLD_STORE: &str = "the file is older than the log: ids or receipts could repeat";
const OLD_INCARNATION: &str = "its incarnation is below that of the log";
const OLD_MARK: &str = "its id mark is not above all assigned ids";

fn named(number: u64) -> String {
    format!("checkpoint-{number:020}")
}

/// The text of an error without the file and the offset, which a finding has as fields.
fn plain(error: &OpenError) -> String {
    match error {
        OpenError::Damaged(damage) => damage.what.clone(),
        OpenError::Replay { source, .. } => source.to_string(),
        other => other.to_string(),
    }
}
