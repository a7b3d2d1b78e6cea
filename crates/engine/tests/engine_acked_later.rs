//! The story of a task whose end lies in a younger segment than its push: that segment goes, the older one stays for
//! the sake of another task, and with it the push. Nothing brings the task back, whatever is lost besides.

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

/// So much of a segment that it is not worth copying forward.
const PINNED_BYTES: usize = 3000;

const FIRST: &str = "00000000000000000001.seg";

type Files = BTreeMap<String, Arc<Vec<u8>>>;

fn open(disk: &SimDisk) -> Result<Engine, OpenError> {
    let options =
        Options { durability: Durability::Always, segment_bytes: Some(SEGMENT_BYTES), ..Options::default() };
    Engine::open_on(disk.shared(), Arc::new(ManualClock::default()), &options)
}

/// Others come and go, so that segments do too.
fn pass(engine: &Engine) {
    let _ = execute(engine, &[Command::Push { queue: b"dropped", payloads: &[&[b'x'; 500]] }]);
    let _ = execute(engine, &[Command::Drop { queues: &[b"dropped"] }]);
}

fn last_segment(disk: &SimDisk) -> String {
    disk.files().into_keys().rfind(|name| name.starts_with('0')).unwrap()
}

/// What is left of a store.
struct Told {
    files: Files,
    /// What was there on the way, since the task was finished.
    seen: Vec<Files>,
    /// The task that was finished.
    acked: TaskId,
    /// The one that lies beside it and stays.
    pinned: TaskId,
    payload: Vec<u8>,
}

/// The segment with the end of the task is gone. That with its push is there if the other task in it is a large one.
fn tell(pinned_bytes: usize) -> Told {
    let disk = SimDisk::new(7);
    let engine = open(&disk).unwrap();
    let payload = vec![b'p'; pinned_bytes];
    let ids = push(&engine, &[b"acked later", &payload]);
    assert!(last_segment(&disk) == FIRST, "both are in the first segment");
    assert_eq!(pop(&engine, 1), [b"acked later"]);
    let stays = pinned_bytes == PINNED_BYTES;
    until("some segments were written", || {
        pass(&engine);
        if !stays {
            // One sparse segment alone would not be too many.
            let _ = execute(&engine, &[Command::Push { queue: b"kept", payloads: &[b"kept"] }]);
        }
        last_segment(&disk).as_str() > "00000000000000000006.seg"
    });
    let before = last_segment(&disk);
    assert_eq!(ack(&engine, &ids[..1]), 1);
    let after = last_segment(&disk);
    let mut seen: Vec<Files> = Vec::new();
    until("the segment of the end is gone, and that of the push if it can go", || {
        pass(&engine);
        let files = disk.files();
        if seen.last().is_none_or(|last| !last.keys().eq(files.keys())) {
            seen.push(files.clone());
        }
        !files.contains_key(&before) && !files.contains_key(&after) && (stays || !files.contains_key(FIRST))
    });
    engine.close().unwrap();
    let files = disk.files();
    Told { files, seen, acked: ids[0], pinned: ids[1], payload }
}

/// Whether there are files that are kept because checkpoints refer to them.
fn has_blobs(files: &Files) -> bool {
    files.keys().any(|name| name.starts_with("checkpoint-") && name.contains('.'))
}

impl Told {
    /// Opens these files; answers whether they are a store that can be served.
    fn check(&self, files: &Files, context: &str) -> bool {
        let Ok(engine) = open(&SimDisk::with_files(9, files)) else { return false };
        let found = tasks_in(&engine, context);
        assert!(!found.contains_key(&self.acked), "it is back: {context}");
        let is_new = files.keys().all(|name| name.starts_with("spare-"));
        if !is_new {
            assert_eq!(found.get(&self.pinned), Some(&self.payload), "the other one is lost: {context}");
        }
        engine.check().unwrap();
        engine.close().unwrap();
        true
    }

    /// All is there, or one of the checkpoints is not as it should be, or not at all.
    fn check_with_checkpoints_lost(&self, files: &Files) {
        assert!(self.check(files, "all is there"), "{:?}", files.keys());
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
        println!("{} states on the way", self.seen.len());
        // Spares tell nothing of the log, and so are there or not all at once.
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
    let told = tell(PINNED_BYTES);
    assert!(told.files.contains_key(FIRST), "{:?}", told.files.keys());
    told.check_everything();
}

/// The same where the other task was copied forward, and the segment with the push is gone as well.
#[test]
fn a_task_acked_in_a_younger_segment_than_its_push_never_comes_back_after_its_neighbour_was_moved() {
    let told = tell(10);
    assert!(!told.files.contains_key(FIRST), "{:?}", told.files.keys());
    told.check_everything();
}
