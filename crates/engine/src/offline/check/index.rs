//! Compares the place that the index has for each task's payload with the log.
//!
//! A checksum proves that a payload is intact, but not that it belongs to the task: an index entry that points to
//! another payload of the same length would go unnoticed. The log has the task's id next to each payload.

use std::cell::Cell;
use std::collections::BTreeMap;

use sureq_core::event::{Event, QueueNo};
use sureq_core::{Broker, TaskId};

use super::report::Finding;
use super::state::Built;
use super::{REPORT_IT, Steps};
use crate::disk::Disk;
use crate::log::salvage::{Content, Found};
use crate::log::segment_name;
use crate::payload::body::Body;
use crate::payload::payload_scan::payloads_in;

/// The most tasks whose places are in memory at a time: 64 MiB. Exceeded only if more tasks are in one file.
const TASKS_AT_ONCE: u64 = 4 << 20;

/// The log that an index is compared with.
pub(super) struct Log<'l> {
    pub(super) disk: &'l dyn Disk,
    pub(super) segments: &'l [Found],
    /// The offset up to which each segment is sound, by number. Later damage is reported elsewhere.
    pub(super) sound_upto: &'l BTreeMap<u64, u64>,
}

/// A task whose payload is not at the place that the index has for it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Misplaced {
    queue: QueueNo,
    id: TaskId,
    file: u64,
    offset: u32,
    /// The task whose payload begins at that place, if one does.
    owner: Option<TaskId>,
}

impl Misplaced {
    pub(super) fn finding(&self, broker: &Broker<Body>) -> Finding {
        let what = match self.owner {
            Some(owner) => {
                format!("the log has the payload of task {owner} here, the index that of {}", self.id)
            }
            None => format!("no payload begins here, but the index has that of task {}", self.id),
        };
        let name = broker.name_of(self.queue).unwrap_or_default().escape_ascii();
        let meaning =
            format!("task {} of queue {name} would be delivered with a payload that is not its own", self.id);
        Finding::wrong(segment_name(self.file), what, meaning, REPORT_IT).at(u64::from(self.offset), None)
    }
}

/// The index entry of a task. There are many, so the file is not part of it.
struct Entry {
    id: TaskId,
    offset: u32,
    queue: QueueNo,
}

const _: () = assert!(size_of::<Entry>() == 16);

impl Log<'_> {
    /// Compares the place of each task's payload with the log, and visits the entries that do not match.
    pub(super) fn compare(&self, built: &Built, steps: &mut Steps<'_>, misplaced: &mut dyn FnMut(Misplaced)) {
        let tasks = self.tasks_by_file(built);
        let segments = self.segments.iter().filter(|segment| tasks.contains_key(&segment.number));
        steps.begin("comparing the index with the log", segments.map(|segment| segment.bytes).sum());
        for files in groups(&tasks, TASKS_AT_ONCE) {
            for (file, entries) in entries_in(built, &files) {
                let segment = self.segments.iter().find(|segment| segment.number == file);
                if let Some(segment) = segment {
                    self.compare_segment(segment, entries, misplaced);
                    steps.step(segment.bytes);
                }
            }
        }
    }

    /// The number of tasks with payloads in each readable file. The counts in a checkpoint are not used, since they
    /// may be wrong like the index.
    fn tasks_by_file(&self, built: &Built) -> BTreeMap<u64, u64> {
        let mut tasks = BTreeMap::new();
        built.broker.bodies(&mut |body| {
            let file = body.place().and_then(|place| built.file_of(u64::from(place.segment)));
            if let Some(file) = file.filter(|file| self.sound_upto.contains_key(file)) {
                *tasks.entry(file).or_default() += 1;
            }
        });
        tasks
    }

    fn compare_segment(
        &self,
        segment: &Found,
        mut entries: Vec<Entry>,
        misplaced: &mut dyn FnMut(Misplaced),
    ) {
        // If it can no longer be read, its payloads are reported as unreadable.
        let Ok(content) = Content::load(self.disk, segment) else { return };
        let sound_upto = self.sound_upto.get(&segment.number).copied().unwrap_or_default();
        entries.retain(|entry| u64::from(entry.offset) < sound_upto);
        entries.sort_unstable_by_key(|entry| (entry.offset, entry.id));
        let mut entries = entries.into_iter().peekable();
        let mut miss = |Entry { id, offset, queue }: Entry, owner: Option<TaskId>| {
            misplaced(Misplaced { queue, id, file: segment.number, offset, owner });
        };
        content.visit(&mut |piece| {
            // Bytes behind a malformed event have no known payloads.
            let _ = payloads_in(piece.place, piece.body, &mut |recorded| {
                while let Some(entry) = entries.next_if(|entry| u64::from(entry.offset) <= recorded.offset) {
                    let owner = Some(recorded.id).filter(|_| u64::from(entry.offset) == recorded.offset);
                    if owner != Some(entry.id) {
                        miss(entry, owner);
                    }
                }
            });
        });
        entries.for_each(|entry| miss(entry, None));
    }
}

/// Groups files, in order, so that the files of a group have no more than `tasks_max` tasks, or the group is one
/// file.
fn groups(tasks: &BTreeMap<u64, u64>, tasks_max: u64) -> Vec<Vec<u64>> {
    let (mut groups, mut in_group): (Vec<Vec<u64>>, u64) = (Vec::new(), 0);
    for (&file, &tasks) in tasks {
        match groups.last_mut() {
            Some(group) if in_group + tasks <= tasks_max => {
                group.push(file);
                in_group += tasks;
            }
            _ => {
                groups.push(vec![file]);
                in_group = tasks;
            }
        }
    }
    groups
}

/// The index entries of each of these files.
fn entries_in(built: &Built, files: &[u64]) -> BTreeMap<u64, Vec<Entry>> {
    let mut by_file: BTreeMap<u64, Vec<Entry>> = files.iter().map(|&file| (file, Vec::new())).collect();
    let place = Cell::new(None);
    let mut note = |body: &Body| {
        place.set(body.place());
        Box::default()
    };
    built.broker.export(&mut note, &mut |event| {
        if let Event::Task(task) = event
            && let Some(place) = place.take()
            && let Some(file) = built.file_of(u64::from(place.segment))
            && let Some(entries) = by_file.get_mut(&file)
        {
            entries.push(Entry { id: task.id, offset: place.offset, queue: task.queue });
        }
    });
    by_file
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_group_exceeds_the_limit_of_tasks_only_if_it_is_one_file() {
        let grouped = |tasks: &[u64]| groups(&(1..).zip(tasks.iter().copied()).collect(), 10);
        assert_eq!(grouped(&[]), Vec::<Vec<u64>>::new());
        assert_eq!(grouped(&[4, 6, 1]), [vec![1, 2], vec![3]]);
        assert_eq!(grouped(&[4, 7, 3]), [vec![1], vec![2, 3]]);
        assert_eq!(grouped(&[99, 1, 99, 99]), [vec![1], vec![2], vec![3], vec![4]]);
    }
}
