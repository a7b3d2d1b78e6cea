//! Checkpoints return the state that was written, over many generations that share blobs, in bounded space.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod checkpoint_support;

use std::sync::Arc;

use checkpoint_support::{Parts, Session, UUID, copy, loaded, name, names, parts_at, taken};
use sureq_engine::checkpoint::{Blob, Checkpoints};
use sureq_engine::disk::DirDisk;
use sureq_engine::fault::OpenError;
use sureq_engine::log::Position;
use sureq_engine::store::Store;
use sureq_testkit::sim_disk::{Kept, Op, SimDisk};

/// A small random number generator. The same seed gives the same numbers.
struct Dice(u64);

impl Dice {
    fn below(&mut self, limit: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % limit
    }
}

/// Adds, changes or removes about one part in `rate`.
fn churn(parts: &mut Parts, rate: u64, dice: &mut Dice) {
    for part in 0..300 {
        if dice.below(rate) == 0 {
            let byte = dice.below(256) as u8;
            match dice.below(4) {
                0 => drop(parts.remove(&part)),
                _ => drop(parts.insert(part, vec![byte; dice.below(1500) as usize])),
            }
        }
    }
}

fn bytes_of(parts: &Parts) -> u64 {
    parts.values().map(|bytes| bytes.len() as u64).sum()
}

#[test]
fn both_kept_checkpoints_return_their_blobs_and_space_is_bounded() {
    for seed in 0..4 {
        let mut dice = Dice(seed);
        let disk = SimDisk::new(seed);
        let mut session = Session::start(&disk).unwrap();
        let mut parts = Parts::new();
        let mut has_shared = false;
        for generation in 1..250 {
            let older = session.parts.clone();
            churn(&mut parts, [2, 20, 200, 1000][dice.below(4) as usize], &mut dice);
            session.take(generation, parts.clone()).unwrap();
            has_shared |= names(&disk).len() > 2;
            let context = format!("seed {seed}, generation {generation}");

            let live = bytes_of(&older).max(bytes_of(&parts));
            let bytes: usize = disk.files().values().map(|file| file.len()).sum();
            assert_eq!(session.checkpoints.bytes(), bytes as u64, "{context}");
            // Two manifests of 300 parts, and headers.
            assert!(bytes as u64 <= 3 * live + 16_384, "{bytes} bytes for {live}: {context}");
            assert!(names(&disk).len() <= 2 + 33, "{context}");

            if generation % 3 == 0 {
                let newest = Session::start(&disk).unwrap();
                assert!(newest.parts == parts && newest.skipped.is_none(), "{context}");
                assert_eq!(newest.checkpoints.needed_from(), Position(generation - 1));
                let damaged = copy(&disk);
                damaged.edit(&name(generation), |bytes| *bytes.last_mut().unwrap() ^= 1);
                match Session::start(&damaged) {
                    Ok(fallen_back) => {
                        assert!(fallen_back.parts == older, "{context}");
                        assert_eq!(fallen_back.skipped.unwrap().file, name(generation));
                    }
                    Err(error) => assert!(generation == 1, "{context}: {error}"),
                }
            }
            if dice.below(10) == 0 {
                session = Session::start(&disk).unwrap();
                session.checkpoints.remove_leftovers().unwrap();
            }
        }
        assert!(has_shared);
    }
}

#[test]
fn many_small_files_are_written_together() {
    let disk = SimDisk::new(1);
    let mut session = Session::start(&disk).unwrap();
    let mut parts = Parts::new();
    let mut most = 0;
    for generation in 1..100 {
        parts.insert(generation, vec![generation as u8; 4000]);
        session.take(u64::from(generation), parts.clone()).unwrap();
        most = most.max(names(&disk).len());
    }
    assert!((20..=34).contains(&most), "{most} files");
    assert!(Session::start(&disk).unwrap().parts == parts);
}

#[test]
fn a_store_without_checkpoints_begins_at_the_start() {
    let disk = SimDisk::new(1);
    let mut session = loaded(&disk).unwrap();
    assert_eq!((session.position, session.checkpoints.bytes()), (0, 0));
    assert!(!session.checkpoints.drop_older().unwrap().is_dropped());
    session.checkpoints.remove_leftovers().unwrap();
    assert_eq!(disk.trace_len(), 0);
}

#[test]
fn the_log_is_needed_from_the_older_of_two() {
    let disk = SimDisk::new(1);
    let mut session = Session::start(&disk).unwrap();
    for needed in [0, 1, 2, 3] {
        session.next().unwrap();
        assert_eq!(session.checkpoints.needed_from(), Position(needed));
    }
    assert!(session.checkpoints.drop_older().unwrap().is_dropped());
    assert_eq!(session.checkpoints.needed_from(), Position(4));
    let is_checkpoint = |file: &&String| (1..9).any(|number| **file == name(number));
    assert_eq!(names(&disk).iter().filter(is_checkpoint).count(), 1);
    session.next().unwrap();
    assert_eq!(session.checkpoints.needed_from(), Position(4));
    assert_eq!(Session::start(&disk).unwrap().checkpoints.needed_from(), Position(4));
}

/// A start does not use a dropped checkpoint, even if its file is kept for its blobs.
#[test]
fn a_dropped_checkpoint_is_not_fallen_back_to() {
    let disk = taken(8);
    let mut session = Session::start(&disk).unwrap();
    assert!(session.checkpoints.drop_older().unwrap().is_dropped());
    assert!(names(&disk).contains(&format!("{}.blobs", name(7))), "{:?}", names(&disk));
    assert_eq!(names(&disk.crash(Kept::Nothing, Kept::Nothing)), names(&disk), "a power cut undoes the drop");
    disk.edit(&name(8), |bytes| bytes[0] ^= 1);
    assert_eq!(checkpoint_support::refusal(&disk).file, name(8));
    disk.take(&name(8));
    assert!(checkpoint_support::refusal(&disk).what.contains("the checkpoint that refers to it is missing"));
}

#[test]
fn the_older_is_not_dropped_unless_every_byte_of_the_newest_is_sound() {
    let untouched = taken(8);
    let newest = loaded(&untouched).unwrap();
    let refers_to = |file: u64| newest.blobs.values().any(|blob| blob.file == file);
    let mut shared = 0;
    for (file, name) in (1..=8).flat_map(|file| [(file, name(file)), (file, format!("{}.blobs", name(file)))])
    {
        let Some(content) = untouched.files().get(&name).cloned() else { continue };
        shared += usize::from(file < 8 && refers_to(file));
        let blobs_end = u64::from_le_bytes(content[56..64].try_into().unwrap()) as usize;
        for at in 0..content.len() {
            let disk = copy(&untouched);
            let mut session = Session::start(&disk).unwrap();
            disk.edit(&name, |bytes| bytes[at] ^= 0x10);
            let before = disk.trace_len();
            // The newest checkpoint does not need table and manifest of an older file.
            let matters = file == 8 || (refers_to(file) && at < blobs_end);
            assert_eq!(session.checkpoints.drop_older().unwrap().is_dropped(), !matters, "{name} at {at}");
            if matters {
                assert_eq!((disk.trace_len(), session.checkpoints.needed_from()), (before, Position(7)));
            }
        }
    }
    assert!(shared >= 2, "{shared} files shared");
}

#[test]
fn a_damaged_newest_is_left_in_place_and_removed_by_the_next() {
    let disk = taken(5);
    disk.edit(&name(5), |bytes| *bytes.last_mut().unwrap() ^= 1);
    let mut session = loaded(&disk).unwrap();
    assert_eq!((session.position, session.skipped.as_ref().unwrap().file.clone()), (4, name(5)));
    assert_eq!(session.checkpoints.needed_from(), Position::START, "one is kept");
    session.checkpoints.remove_leftovers().unwrap();
    assert!(names(&disk).contains(&name(5)));
    session.next().unwrap();
    assert!(!names(&disk).contains(&name(5)));
    assert_eq!((session.position, session.checkpoints.needed_from()), (5, Position(4)));
    let again = loaded(&disk).unwrap();
    assert_eq!((again.position, again.skipped), (5, None));
    assert!(names(&disk).contains(&name(6)), "no number is used twice");
}

#[test]
fn unknown_files_are_left_alone() {
    let foreign_files =
        ["checkpoint-7", "checkpoint", "checkpoint-00000000000000000003.bak", "blobs", "spare-1"];
    let disk = taken(2);
    for file in foreign_files {
        disk.put(file, Arc::new(b"mine".to_vec()));
    }
    let mut session = loaded(&disk).unwrap();
    session.checkpoints.remove_leftovers().unwrap();
    for _ in 0..5 {
        session.next().unwrap();
    }
    session.checkpoints.drop_older().unwrap();
    for file in foreign_files {
        assert_eq!(disk.files()[file].as_slice(), b"mine", "{file}");
    }
}

#[test]
fn a_draft_that_is_dropped_or_left_behind_is_removed() {
    let disk = taken(2);
    let before = disk.files();
    let mut session = loaded(&disk).unwrap();
    let mut pace = |_| {};
    let mut draft = session.checkpoints.begin(Position(9), &mut pace).unwrap();
    draft.write(b"in vain").unwrap();
    drop(draft);
    assert!(disk.files() == before);
    disk.put("checkpoint.new", Arc::new(vec![7; 7]));
    assert_eq!(loaded(&disk).unwrap().position, 2);
    let mut session = Session::start(&disk).unwrap();
    session.next().unwrap();
    disk.put("checkpoint.new", Arc::new(vec![7; 7]));
    let mut session = Session::start(&disk).unwrap();
    session.checkpoints.remove_leftovers().unwrap();
    assert!(!disk.files().contains_key("checkpoint.new"));
    assert_eq!(loaded(&disk).unwrap().position, 3);
}

#[test]
fn no_store_file_is_created_if_there_are_checkpoints() {
    let disk = taken(1);
    let refused = Store::open(&disk.shared()).err().unwrap().to_string();
    assert!(refused.contains(&format!("the file is missing, but {} is there", name(1))), "{refused}");
}

#[test]
fn a_blob_that_cannot_be_applied_is_named() {
    let disk = taken(2);
    let mut checkpoints = Checkpoints::open(disk.shared(), UUID).unwrap();
    let outcome = checkpoints.load(|loaded| -> Result<(), _> { Err(loaded.refuse_manifest("no".into())) });
    match outcome {
        Err(OpenError::Replay { file, position, .. }) => {
            assert_eq!((file, position), (name(2), Position(2)));
        }
        _ => panic!("taken, or fallen back"),
    }
    let blobs: Vec<Blob> = Session::start(&disk).unwrap().blobs.into_values().collect();
    let outcome = checkpoints.load(|loaded| loaded.read_blobs(&blobs, &mut |_, _| Err("no".into())));
    assert!(matches!(outcome, Err(OpenError::Replay { offset, .. }) if offset == blobs[0].offset));
}

/// Ten thousand blobs of 4 KiB.
fn write_large(checkpoints: &mut Checkpoints, pace: &mut dyn FnMut(usize)) -> Vec<Blob> {
    let mut draft = checkpoints.begin(Position(1), pace).unwrap();
    let blobs: Vec<Blob> = (0..10_000_u32).map(|n| draft.write(&[n as u8; 4096]).unwrap()).collect();
    draft.finish(b"", &blobs).unwrap();
    blobs
}

fn read_large(checkpoints: &mut Checkpoints, blobs: &[Blob]) {
    let mut next = 0;
    let restored = checkpoints.load(|loaded| {
        loaded.read_blobs(blobs, &mut |index, bytes| {
            assert!(index == next && bytes.len() == 4096 && bytes[77] == index as u8);
            next += 1;
            Ok(())
        })
    });
    assert!(restored.unwrap().is_some() && next == blobs.len());
}

#[test]
fn a_large_checkpoint_is_written_in_pieces_and_synced_as_it_grows() {
    let disk = SimDisk::new(1);
    let mut checkpoints = Checkpoints::open(disk.shared(), UUID).unwrap();
    let mut paced = 0;
    let blobs = write_large(&mut checkpoints, &mut |bytes| paced += bytes);
    assert_eq!(paced as u64 + 128, checkpoints.bytes());
    let (mut unsynced, mut pieces) = (0, 0);
    for op in disk.trace() {
        match op {
            Op::Write { bytes, .. } => {
                assert!(bytes.len() <= 256 << 10);
                unsynced += bytes.len();
                pieces += 1;
            }
            Op::Sync { .. } => unsynced = 0,
            _ => {}
        }
        assert!(unsynced <= 4 << 20);
    }
    assert!(pieces < 170, "{pieces} writes of 40 MiB");
    let before = disk.calls();
    read_large(&mut checkpoints, &blobs);
    let calls = disk.calls() - before;
    assert!(calls < 50, "{calls} calls read 40 MiB");
    assert!(checkpoints.drop_older().unwrap().is_dropped());
}

#[test]
fn a_large_checkpoint_is_read_back_from_a_real_disk() {
    let directory = tempfile::tempdir().unwrap();
    let disk: Arc<DirDisk> = Arc::new(DirDisk::open(directory.path()).unwrap());
    let mut checkpoints = Checkpoints::open(disk.clone(), UUID).unwrap();
    let blobs = write_large(&mut checkpoints, &mut |_| {});
    let mut checkpoints = Checkpoints::open(disk, UUID).unwrap();
    read_large(&mut checkpoints, &blobs);
    assert!(checkpoints.drop_older().unwrap().is_dropped());
}

#[test]
fn states_of_these_tests_share_some_parts_and_differ_in_others() {
    assert!((1..100).all(|position| parts_at(position) != parts_at(position + 1)));
    let session = loaded(&taken(6)).unwrap();
    assert!(session.blobs.values().any(|blob| blob.file < 6), "these tests are about sharing");
    assert!(session.blobs.values().any(|blob| blob.file == 6));
}
