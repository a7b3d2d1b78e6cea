//! Checks a store that is not open: reports its contents and its damage, and changes nothing.
//!
//! The map:
//! - [`check()`] (here) goes through all of it: the `store` file, segments, checkpoints, states, payloads, index, other
//!   files.
//! - `identity` finds out the identity of the store.
//! - `segments` goes through the frames of the log. `state` builds the state as a start would, from each checkpoint.
//! - `payloads` reads payloads from where they lie. `index` holds the places that tasks have for them against
//!   the log.
//! - `running` asks a running store whether it agrees with itself.
//! - [`Report`] (`report`) is the result, [`Finding`] one thing that is not as it should be.
//!
//! Whatever is wrong with one file, the others are looked at too.

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

/// More lost payloads than this are counted and not listed: each takes half a kilobyte of memory, and who has lost that
/// many goes on with a repair, which lists all. The same goes for wrong places in the index, of which none is expected.
const LISTED_MAX: usize = 100_000;

/// Checks the store in `disk`. Changes nothing, not even where there is damage.
///
/// An error says that one cannot even look: there is no store, a later release wrote it, or the directory cannot be
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

/// A check under way.
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

    /// Files of checkpoints that a start will not even look into.
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
                let advice =
                    "if a start from another is possible, serve it: the next two checkpoints take its place";
                self.report.findings.push(Finding::damage(damage, meaning, advice));
            }
            if !file.is_needed && file.damages.is_empty() {
                let what = "no checkpoint refers to it";
                let meaning = "a crash kept it from being removed";
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

    /// From where on the log is needed. What a start begins from is not known yet: the newest, if nothing is wrong.
    fn needs(&self) -> Needs {
        let positions: Vec<Position> =
            self.report.checkpoints.iter().filter_map(|file| file.position).collect();
        let newest = positions.iter().copied().max().unwrap_or_default();
        // Before two are kept, the log is needed from its beginning on; but a store that was copied, or ran on a full
        // disk, has one and no beginning.
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

    /// Builds the state from each checkpoint; answers the newest. Says what a start would come to, which tries the
    /// older one where the newer is damaged itself, and not where the log behind it is.
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
        let meaning = "one of the two is not what was written, although its checksums match";
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
                "it counts {} live payloads of {} bytes in {}, its tasks have {} of {}",
                counted.tasks,
                counted.bytes,
                segment_name(miscount.segment),
                found.tasks,
                found.bytes
            );
            let meaning = "the segment may be kept for good, or given up while it is needed";
            self.report.findings.push(Finding::wrong(named(number), what, meaning, REPORT_IT));
        }
    }

    /// Looks at the state that a start would have.
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
                // It is counted as if each task were written alone; together they take less.
                (segment.live_tasks, segment.live_bytes) = (live.tasks, live.bytes.min(segment.used_bytes));
            }
        }
        let used: u64 = self.report.segments.iter().map(|segment| segment.used_bytes).sum();
        self.report.live_bytes = self.report.segments.iter().map(|segment| segment.live_bytes).sum();
        self.report.dead_bytes = used.saturating_sub(self.report.live_bytes);
        self.report.workers = built.broker.workers().count() as u64;
        for miscount in state::miscounts(&built.live, &built.broker) {
            let (counted, found) = (miscount.counted.tasks, miscount.found.tasks);
            let what = format!("{counted} live payloads are counted, {found} tasks have theirs there");
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

    /// Files that are not part of the state.
    fn other_files(&mut self, names: &[String]) {
        for name in names {
            if is_spare_name(name) {
                self.report.spares.0 += 1;
                self.report.spares.1 += self.disk.open(name).and_then(|file| file.len()).unwrap_or(0);
            } else if name == store::NEW_NAME || is_draft_name(name) {
                let what = "a file that is not whole";
                let meaning = "a crash interrupted its making; nothing refers to it";
                let advice = "nothing: the next start removes it";
                self.report.findings.push(Finding::note(name, what, meaning, advice));
            } else if name != LOCK_NAME
                && name != store::NAME
                && !is_segment_name(name)
                && !is_checkpoint_name(name)
            {
                let meaning = "it is neither read nor removed";
                let advice = "nothing, unless it has lost its name";
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
    "keep the directory and report it: this is an error of sureq, or of the machine's memory";
const OLD_STORE: &str = "the file is older than the log: ids or receipts could be given out twice";
const OLD_INCARNATION: &str = "its incarnation is below the one that the log was written in";
const OLD_MARK: &str = "its mark for ids is not above all that were given out";

/// The name of a checkpoint, by its number.
fn named(number: u64) -> String {
    format!("checkpoint-{number:020}")
}

/// The text of an error without the parts that a finding has of its own.
fn plain(error: &OpenError) -> String {
    match error {
        OpenError::Damaged(damage) => damage.what.clone(),
        OpenError::Replay { source, .. } => source.to_string(),
        other => other.to_string(),
    }
}
