//! Checks the segments of a log: headers, frames, chain, positions, and gaps between segments.

use std::collections::BTreeMap;

use super::Steps;
use super::report::{Finding, REPAIR, SegmentReport};
use crate::disk::Disk;
use crate::fault::{Damage, OpenError};
use crate::log::Position;
use crate::log::salvage::{Content, Found, Gone, Kind};
use crate::log::segment_name;

/// The consequence of incomplete frames at the end of a log.
const TORN: &str = "a start cuts it off; if the process was killed while it wrote this, it was never confirmed; \
                    otherwise the last confirmed changes are damaged";
const TORN_ADVICE: &str = "nothing, if the process was killed or the power was cut; otherwise save what can be saved with \
                           `sureq check --repair` before the next start";

/// The positions from which checkpoints need the log.
#[derive(Clone, Copy)]
pub(super) struct Needs {
    /// The log is needed from here on, so that each kept checkpoint can be used.
    pub(super) from: Position,
    /// A start reads it from here on.
    pub(super) start: Position,
}

/// The findings in the segments of a log.
pub(super) struct Examined {
    pub(super) reports: Vec<SegmentReport>,
    pub(super) findings: Vec<Finding>,
    /// The offset up to which each segment is sound, by its number; the maximum for an undamaged one.
    pub(super) sound_upto: BTreeMap<u64, u64>,
    /// The number of the first segment that a start reads, from the newest and from the older checkpoint.
    start: u64,
    older_start: u64,
}

pub(super) fn examine(disk: &dyn Disk, found: &[Found], needs: Needs, steps: &mut Steps<'_>) -> Examined {
    let parts: Vec<&Found> = found.iter().filter(|segment| segment.is_part()).collect();
    let begin = |position: Position| {
        let holds = |segment: &&&Found| segment.header.is_some_and(|header| header.first <= position);
        parts.iter().rfind(holds).map_or(0, |segment| segment.number)
    };
    let (start, older_start) = (begin(needs.start), begin(needs.from));
    let mut examined = Examined {
        reports: Vec::new(),
        findings: Vec::new(),
        sound_upto: BTreeMap::new(),
        start,
        older_start,
    };
    let is_torn = found.iter().any(|segment| segment.kind == Kind::TornCreation);
    for segment in found.iter().filter(|segment| !segment.is_part()) {
        examined.findings.push(set_aside(segment));
    }
    examined.note_missing(&parts, needs);
    for (at, segment) in parts.iter().enumerate() {
        let next = parts.get(at + 1).copied();
        match &segment.fault {
            Some(OpenError::Damaged(damage)) => examined.damaged(damage, segment),
            Some(error) => examined.findings.push(unreadable(segment, error)),
            None => {}
        }
        match Content::load(disk, segment) {
            Err(fault) => examined.findings.push(unreadable(segment, &fault.into())),
            Ok(content) => {
                let gone = content.visit(&mut |_| ());
                let end = bad_end(segment, next, &gone, is_torn);
                let torn_from = gone.torn_from.filter(|_| next.is_none());
                examined.gone_through(segment, &gone, end.as_ref(), torn_from);
                if next.is_none() && gone.is_frayed {
                    examined.frayed(segment, &gone);
                }
                examined.reports.push(report(segment, &gone));
            }
        }
        steps.step(segment.bytes);
    }
    examined
}

fn report(segment: &Found, gone: &Gone) -> SegmentReport {
    let first = segment.header.map_or(gone.position, |header| header.first);
    SegmentReport {
        file: segment.name(),
        bytes: segment.bytes,
        used_bytes: gone.end,
        first,
        end: gone.position,
        frames: gone.frames,
        live_tasks: 0,
        live_bytes: 0,
    }
}

impl Examined {
    /// Reports damage of the frames of a segment and of its end.
    fn gone_through(&mut self, segment: &Found, gone: &Gone, end: Option<&Damage>, torn_from: Option<u64>) {
        let damages = || gone.damages.iter().chain(end);
        for damage in damages() {
            if torn_from.is_some_and(|from| damage.offset >= from) {
                self.findings.push(Finding::damage(damage, TORN, TORN_ADVICE));
            } else {
                self.damaged(damage, segment);
            }
        }
        // Without a sound header it is unknown where frames begin.
        if segment.fault.is_none() {
            let sound_upto = damages().map(|damage| damage.offset).min().unwrap_or(u64::MAX);
            self.sound_upto.insert(segment.number, sound_upto);
        }
    }

    fn damaged(&mut self, damage: &Damage, segment: &Found) {
        let (meaning, advice) = if segment.number < self.older_start {
            (
                "no start reads these events, but tasks whose payloads are in this file may be lost; the others cannot \
                 be copied out of it, so the file is never removed",
                "see whether tasks are listed as lost; to free the disk space, repair with `sureq check --repair`",
            )
        } else if segment.number < self.start {
            (
                "a start from the newest checkpoint does not read these events; a start from the older one would",
                "serve it: after the next two checkpoints these events are not needed any more",
            )
        } else {
            ("a start refuses the store here, because confirmed changes would be lost", REPAIR)
        };
        self.findings.push(Finding::damage(damage, meaning, advice));
    }

    /// Reports an end of the log that may be damage.
    fn frayed(&mut self, segment: &Found, gone: &Gone) {
        let what = "the log ends at a frame header whose checksum does not match";
        let meaning = "after a crash on a disk that tears sectors, this is a frame that was never confirmed; otherwise \
                       confirmed changes are lost";
        let advice = "if there was no crash, check the last operations";
        let note = Finding::note(segment.name(), what, meaning, advice);
        self.findings.push(note.at(gone.end, Some(gone.position)));
    }

    /// Reports needed events that are missing: before the first segment, or because numbers are missing.
    fn note_missing(&mut self, parts: &[&Found], needs: Needs) {
        if let Some(first) = parts.first()
            && let Some(header) = first.header.filter(|header| header.first > needs.from)
        {
            let what = format!("the events before position {} are missing", header.first);
            let damage = Damage { file: first.name(), offset: 0, position: Some(needs.from), what };
            self.damaged(&damage, first);
        }
        for pair in parts.windows(2) {
            let (last, next) = (pair[0], pair[1]);
            let is_needed = next.header.is_none_or(|header| header.first > needs.from);
            if next.first_number > last.number + 1 && is_needed {
                let what = match next.first_number - last.number {
                    2 => "the file is missing".to_owned(),
                    more => format!(
                        "the file is missing, and so are those up to {}",
                        segment_name(last.number + more - 1)
                    ),
                };
                let position = last.header.map(|header| header.first.max(needs.from));
                let damage = Damage { file: segment_name(last.number + 1), offset: 0, position, what };
                self.damaged(&damage, next);
            }
        }
    }
}

/// The damage at the end of a segment, if it does not end where it should.
fn bad_end(segment: &Found, next: Option<&Found>, gone: &Gone, is_torn: bool) -> Option<Damage> {
    let damage =
        |what: String| Damage { file: segment.name(), offset: gone.end, position: Some(gone.position), what };
    let Some(next) = next else {
        return if gone.is_sealed && !is_torn {
            Some(damage(format!("{} is expected and missing", segment_name(segment.number + 1))))
        } else if gone.position < gone.synced {
            let synced = gone.synced;
            Some(damage(format!(
                "there is no sound frame, but all events before position {synced} were durable"
            )))
        } else {
            None
        };
    };
    let is_next = next.first_number == segment.number + 1;
    match next.header {
        Some(header) if is_next => {
            let fits = gone.position == header.first
                && (gone.chain == header.previous_chain || segment.header.is_none());
            (!fits).then(|| damage(format!("{} does not continue it", next.name())))
        }
        Some(_) if !gone.is_sealed => Some(damage("there is no sound frame, and no seal ends it".to_owned())),
        _ => None,
    }
}

/// The finding for a file that has the name of a segment but is not part of the log.
fn set_aside(segment: &Found) -> Finding {
    let name = segment.name();
    let what = segment.fault.as_ref().map_or_else(String::new, |error| match error {
        OpenError::Damaged(damage) => damage.what.clone(),
        other => other.to_string(),
    });
    match segment.kind {
        Kind::Superseded => {
            let what = "a newer segment has taken its place";
            Finding::note(
                name,
                what,
                "a start was interrupted; nothing is lost",
                "nothing: the next start removes it",
            )
        }
        Kind::TornCreation => {
            let meaning = "a crash interrupted its creation; it was still empty";
            Finding::note(name, what, meaning, "nothing: the next start removes it")
        }
        Kind::Foreign | Kind::Part => {
            let meaning = "a start refuses the store, since it may have been mixed up with another";
            Finding::wrong(name, what, meaning, "move the file away if it does not belong here").at(0, None)
        }
        Kind::Unreadable => {
            let meaning = "its content is unknown";
            Finding::wrong(name, what, meaning, "make it readable, and check again")
        }
    }
}

fn unreadable(segment: &Found, error: &OpenError) -> Finding {
    let meaning = "its content is unknown";
    Finding::wrong(segment.name(), error.to_string(), meaning, "make it readable, and check again")
}
