//! A task that was acked in a later segment than it was pushed in: the segment with the ack is removed, but the one
//! with the push is kept because of another task. The acked task must not come back, even if any other files are
//! lost.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod engine_support;

use std::collections::BTreeMap;
use std::sync::Arc;

use engine_support::facts::tasks_in;
use engine_support::{ack, execute, pop, push};
use sureq_core::{Command, TaskId};
use sureq_engine::fault::OpenError;
use sureq_engine::log::Durability;
use sureq_engine::{Engine, Options};
use sureq_testkit::manual_clock::ManualClock;
use sureq_testkit::patience::until;
use sureq_testkit::sim_disk::SimDisk;

const SEGMENT_BYTES: u64 = 4096;

/// So large a part of a segment that it is not worth copying forward.
const PINNED_BYTES: usize = 3000;

const FIRST: &str = "00000000000000000001.seg";

type Files = BTreeMap<String, Arc<Vec<u8>>>;

fn open(disk: &SimDisk) -> Result<Engine, OpenError> {
    let options =
        Options { durability: Durability::Always, segment_bytes: Some(SEGMENT_BYTES), ..Options::default() };
    Engine::open_on(disk.shared(), Arc::new(ManualClock::default()), &options)
}

/// Pushes and removes another task, so that segments are filled and removed. If all segments are to be removed in the
/// end, small tasks stay in each of them. Compaction leaves a single sparse segment alone, and of several it takes the
/// sparsest first, so that without further tasks the fullest would stay.
fn pass(engine: &Engine, keeps: bool) {
    let _ = execute(engine, &[Command::Push { queue: b"dropped", payloads: &[&[b'x'; 500]] }]);
    let _ = execute(engine, &[Command::Drop { queues: &[b"dropped"] }]);
    if keeps {
        let _ = execute(engine, &[Command::Push { queue: b"kept", payloads: &[b"kept"] }]);
    }
}

fn last_segment(disk: &SimDisk) -> String {
    disk.files().into_keys().rfind(|name| name.starts_with('0')).unwrap()
}

/// The files of a store.
struct Story {
    files: Files,
    /// The files at earlier moments, since the task was acked.
    seen: Vec<Files>,
    /// The task that was acked.
    acked: TaskId,
    /// The task in the same segment, which stays.
    pinned: TaskId,
    payload: Vec<u8>,
}

/// Returns a store without the segment with the ack. The segment with the push is kept if the other task in it is
/// large.
fn story(pinned_bytes: usize) -> Story {
    let disk = SimDisk::new(7);
    let engine = open(&disk).unwrap();
    let payload = vec![b'p'; pinned_bytes];
    let ids = push(&engine, &[b"acked later", &payload]);
    assert!(last_segment(&disk) == FIRST, "both are in the first segment");
    assert_eq!(pop(&engine, 1), [b"acked later"]);
    let stays = pinned_bytes == PINNED_BYTES;
    until("some segments were written", || {
        pass(&engine, !stays);
        last_segment(&disk).as_str() > "00000000000000000006.seg"
    });
    let before = last_segment(&disk);
    assert_eq!(ack(&engine, &ids[..1]), 1);
    let after = last_segment(&disk);
    let mut seen: Vec<Files> = Vec::new();
    until("the segment of the ack is removed, and that of the push if it can be", || {
        pass(&engine, !stays);
        let files = disk.files();
        if seen.last().is_none_or(|last| !last.keys().eq(files.keys())) {
            seen.push(files.clone());
        }
        !files.contains_key(&before) && !files.contains_key(&after) && (stays || !files.contains_key(FIRST))
    });
    engine.close().unwrap();
    let files = disk.files();
    Story { files, seen, acked: ids[0], pinned: ids[1], payload }
}

/// Whether there are files that are kept because checkpoints refer to them.
fn has_blobs(files: &Files) -> bool {
    files.keys().any(|name| name.starts_with("checkpoint-") && name.contains('.'))
}

impl Story {
    /// Opens these files. Returns whether they are a store that can be served.
    fn check(&self, files: &Files, context: &str) -> bool {
        let Ok(engine) = open(&SimDisk::with_files(9, files)) else { return false };
        let found = tasks_in(&engine, context);
        assert!(!found.contains_key(&self.acked), "the acked task is back: {context}");
        let is_new = files.keys().all(|name| name.starts_with("spare-"));
        if !is_new {
            assert_eq!(found.get(&self.pinned), Some(&self.payload), "the other task is lost: {context}");
        }
        engine.check().unwrap();
        engine.close().unwrap();
        true
    }

    /// Checks these files complete, with each of the checkpoints damaged, and without each of them.
    fn check_with_checkpoints_lost(&self, files: &Files) {
        assert!(self.check(files, "complete"), "{:?}", files.keys());
        let checkpoints: Vec<&String> =
            files.keys().filter(|name| name.starts_with("checkpoint-") && !name.contains('.')).collect();
        for &name in checkpoints.iter().filter(|_| checkpoints.len() > 1) {
            let context = format!("{name} of {:?}", files.keys());
            let mut files = files.clone();
            Arc::make_mut(files.get_mut(name).unwrap())[100] ^= 1;
            assert!(self.check(&files, &format!("damaged: {context}")), "damaged: {context}");
            files.remove(name);
            let is_served = self.check(&files, &format!("missing: {context}"));
            assert!(is_served || has_blobs(&files), "missing: {context}");
        }
    }

    fn check_everything(&self) {
        for files in &self.seen {
            self.check_with_checkpoints_lost(files);
        }
        self.check_with_checkpoints_lost(&self.files);
        println!("{} earlier states", self.seen.len());
        // Spares have no part of the log, so only all of them or none are removed.
        let names: Vec<&String> = self.files.keys().filter(|name| !name.starts_with("spare-")).collect();
        let mut served = 0;
        for subset in 0..1_usize << names.len() {
            let missing: Vec<&String> = names
                .iter()
                .enumerate()
                .filter(|(n, _)| subset >> n & 1 == 1)
                .map(|(_, name)| *name)
                .collect();
            let mut files = self.files.clone();
            files.retain(|name, _| !missing.contains(&name));
            served += usize::from(self.check(&files, &format!("without {missing:?}")));
            files.retain(|name, _| !name.starts_with("spare-"));
            self.check(&files, &format!("without {missing:?} and spares"));
        }
        println!("{served} of {} subsets are served", 1_usize << names.len());
    }
}

#[test]
fn a_task_acked_in_a_younger_segment_than_its_push_never_comes_back() {
    let story = story(PINNED_BYTES);
    assert!(story.files.contains_key(FIRST), "{:?}", story.files.keys());
    story.check_everything();
}

/// Here the other task was copied forward, and the segment with the push is removed as well.
#[test]
fn a_task_acked_in_a_younger_segment_than_its_push_never_comes_back_after_its_neighbour_was_moved() {
    let story = story(10);
    assert!(!story.files.contains_key(FIRST), "{:?}", story.files.keys());
    story.check_everything();
}
