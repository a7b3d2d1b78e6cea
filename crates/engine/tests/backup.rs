//! A backup of a store in use: although files are created, grow and are removed meanwhile, the copy is sound, and
//! contains all tasks that were confirmed before the backup began and not finished.

mod check_support;

use std::collections::BTreeSet;
use std::io;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;

use check_support::{Life, checked, checkpoints, disk_of, is_segment, lived, open};
use sureq_core::TaskId;
use sureq_core::command::LeaseAsk;
use sureq_engine::backup::{Backup, BackupError, Verify, backup};
use sureq_engine::disk::{Disk, DiskFile};
use sureq_engine::fault::Fault;
use sureq_testkit::manual_clock::ManualClock;
use sureq_testkit::sim_disk::SimDisk;

/// A disk that is read a few bytes at a time, so that much happens between the first and the last byte of a file.
struct Slow {
    disk: SimDisk,
    bytes: usize,
}

impl Disk for Slow {
    fn list(&self) -> Result<Vec<String>, Fault> {
        self.disk.list()
    }

    fn open(&self, name: &str) -> Result<Box<dyn DiskFile>, Fault> {
        Ok(Box::new(SlowFile { file: Disk::open(&self.disk, name)?, bytes: self.bytes }))
    }

    fn create(&self, _: &str) -> Result<Box<dyn DiskFile>, Fault> {
        unreachable!("a backup only reads")
    }

    fn rename(&self, _: &str, _: &str) -> Result<(), Fault> {
        unreachable!("a backup only reads")
    }

    fn remove(&self, _: &str) -> Result<(), Fault> {
        unreachable!("a backup only reads")
    }

    fn sync_dir(&self) -> Result<(), Fault> {
        unreachable!("a backup only reads")
    }

    fn capacity(&self) -> Result<u64, Fault> {
        self.disk.capacity()
    }

    fn free(&self) -> Result<u64, Fault> {
        self.disk.free()
    }

    fn entropy(&self) -> Result<[u8; 16], Fault> {
        unreachable!("a backup only reads")
    }
}

struct SlowFile {
    file: Box<dyn DiskFile>,
    bytes: usize,
}

impl DiskFile for SlowFile {
    fn path(&self) -> &Path {
        self.file.path()
    }

    fn write_some_at(&self, _: u64, _: &[u8]) -> io::Result<usize> {
        unreachable!("a backup only reads")
    }

    fn read_some_at(&self, offset: u64, into: &mut [u8]) -> io::Result<usize> {
        thread::yield_now();
        let len = into.len().min(self.bytes);
        self.file.read_some_at(offset, &mut into[..len])
    }

    fn sync_data(&self) -> Result<(), Fault> {
        unreachable!("a backup only reads")
    }

    fn len(&self) -> Result<u64, Fault> {
        self.file.len()
    }
}

fn copied(from: &Arc<dyn Disk>) -> Result<(Backup, SimDisk), BackupError> {
    let to = SimDisk::new(9);
    let backup = backup(from, &to.shared(), Verify::Check, &mut |_, _, _| ())?;
    Ok((backup, to))
}

/// The tasks of a store, by id, that an engine finds in it.
fn tasks_of(disk: &SimDisk) -> BTreeSet<TaskId> {
    let engine = open(disk, &Arc::new(ManualClock::default()));
    let mut ids = BTreeSet::new();
    engine.inspect(|broker| {
        broker.check().expect("it is sound");
        broker.export(&mut |_| Box::default(), &mut |event| {
            if let sureq_core::Event::Task(task) = event {
                ids.insert(task.id);
            }
        });
    });
    engine.close().expect("a sound disk");
    ids
}

#[test]
fn a_store_that_is_not_open_is_copied_as_it_is() {
    let lived = lived();
    let disk = disk_of(&lived.files);
    let (backup, to) = copied(&disk.shared()).expect("the disk works");
    assert_eq!((backup.retries, disk.trace_len()), (0, 0));
    let (sound, copy) = (checked(&disk), backup.report.expect("it was checked"));
    assert!(copy.is_sound(), "{:#?}", copy.findings);
    assert_eq!((copy.uuid, copy.incarnation, copy.end), (sound.uuid, sound.incarnation, sound.end));
    assert_eq!(copy.queues, sound.queues);
    assert_eq!(backup.position, sound.end);
    assert_eq!(tasks_of(&to), lived.live.keys().copied().collect());
}

#[test]
fn incomplete_frames_are_not_copied_and_damaged_ones_are() {
    let lived = lived();
    let last = lived.files.keys().rfind(|name| is_segment(name)).expect("there is a segment");
    let frames = check_support::frames_of(&lived.files[last]).len();
    assert!(frames > 2, "{frames} frames");
    let tail_of = |disk: &SimDisk, at: usize| {
        disk.edit(last, |bytes| {
            let start = bytes.as_ptr().addr();
            let body = check_support::frames_of(bytes)[at].1;
            let offset = body.as_ptr().addr() - start;
            bytes[offset] ^= 0x10;
        });
    };
    let torn = disk_of(&lived.files);
    tail_of(&torn, frames - 1);
    let (backup, to) = copied(&torn.shared()).expect("the disk works");
    assert!(backup.report.expect("it was checked").findings.is_empty(), "the half-written frame is left out");
    assert!(checked(&to).end < checked(&disk_of(&lived.files)).end);

    let damaged = disk_of(&lived.files);
    tail_of(&damaged, frames / 2);
    let (backup, to) = copied(&damaged.shared()).expect("the disk works");
    let (report, original) = (backup.report.expect("it was checked"), checked(&damaged));
    assert!(!report.is_sound(), "damage is reported");
    let places = |report: &sureq_engine::check::Report| -> Vec<_> {
        report.findings.iter().map(|finding| (finding.file.clone(), finding.offset)).collect()
    };
    assert_eq!(places(&report), places(&original));
    assert_eq!(to.files()[last], damaged.files()[last], "a damaged segment is copied unchanged");
}

/// Stops the other thread at the end of a test, also if the test fails.
struct Over<'o>(&'o AtomicBool);

impl Drop for Over<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

#[test]
fn a_damaged_checkpoint_is_copied_with_the_one_before_it() {
    let lived = lived();
    let newest = checkpoints(&lived.files).pop().expect("there is one");
    let disk = disk_of(&lived.files);
    disk.edit(&newest, |bytes| {
        let last = bytes.len() - 1;
        bytes[last] ^= 1;
    });
    let (backup, to) = copied(&disk.shared()).expect("the disk works");
    let (copy, original) = (backup.report.expect("it was checked"), checked(&disk));
    assert!(!copy.is_sound() && !original.is_sound());
    assert_eq!(
        (copy.refusal, &copy.queues, copy.starts_from),
        (None, &original.queues, original.starts_from)
    );
    assert_eq!(tasks_of(&to), lived.live.keys().copied().collect());
}

/// The expected state of all tasks, while another thread pushes and finishes them.
#[derive(Default)]
struct Known {
    confirmed: BTreeSet<TaskId>,
    finished: BTreeSet<TaskId>,
}

#[test]
fn backups_of_a_busy_store_are_sound_and_contain_all_confirmed_changes() {
    let mut life = Life::new();
    life.push(b"old", 20);
    let known = Arc::new(Mutex::new(Known::default()));
    known.lock().expect("no thread panicked").confirmed.extend(life.live.keys());
    let from: Arc<dyn Disk> = Arc::new(Slow { disk: life.disk.clone(), bytes: 1500 });
    let is_over = AtomicBool::new(false);
    let (rolled, checkpoints, retries) = thread::scope(|scope| {
        let (is_over, shared) = (&is_over, Arc::clone(&known));
        let worker = scope.spawn(move || {
            let mut held: Vec<TaskId> = Vec::new();
            let mut rounds = 0;
            while !is_over.load(Ordering::Relaxed) {
                rounds += 1;
                let ids = life.push(b"busy", 8);
                shared.lock().expect("no thread panicked").confirmed.extend(ids);
                held.extend(life.pop(b"busy", 8, LeaseAsk::NONE));
                if rounds % 7 != 0 {
                    // A task that is about to be finished may be in a copy or not.
                    shared.lock().expect("no thread panicked").finished.extend(&held);
                    life.ack(b"busy", &held);
                    held.clear();
                }
                while life.engine.status().segments > 30 {
                    thread::yield_now();
                }
            }
            life
        });
        let over = Over(is_over);
        let mut retries = 0;
        for n in 0..20 {
            let before: BTreeSet<TaskId> = known.lock().expect("no thread panicked").confirmed.clone();
            let (backup, to) = copied(&from).unwrap_or_else(|error| panic!("backup {n}: {error}"));
            let report = backup.report.expect("it was checked");
            assert!(report.is_sound(), "backup {n}: {:#?}", report.findings);
            retries += backup.retries;
            let there = tasks_of(&to);
            let finished = known.lock().expect("no thread panicked").finished.clone();
            let lost: Vec<&TaskId> =
                before.iter().filter(|id| !there.contains(id) && !finished.contains(id)).collect();
            assert!(lost.is_empty(), "backup {n} lacks {lost:?}");
        }
        drop(over);
        let life = worker.join().expect("it only works");
        let status = life.engine.status();
        let rolled = life.disk.files().into_keys().rfind(|name| is_segment(name)).expect("a segment");
        life.engine.close().expect("a sound disk");
        (rolled, status.checkpoints, retries)
    });
    println!("{rolled}, {checkpoints} checkpoints, {retries} retries");
    assert!(checkpoints > 10, "{checkpoints} checkpoints are too few to get in the way");
}
