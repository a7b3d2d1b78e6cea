//! Possible contents of a log and of its directory: nothing, one batch, a full segment, a batch larger than a
//! segment, payloads that look like the log itself, recycled files, and foreign files.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod log_support;

use std::sync::Arc;

use log_support::{
    Run, UUID, append, assert_goes_on, batch, batches_in, count_in, events, options, position, recovered,
    refusal,
};
use sureq_engine::disk::{DirDisk, Disk};
use sureq_engine::fault::OpenError;
use sureq_engine::log::{Durability, LogAddress, LogOptions, Position, Reader, recover};
use sureq_testkit::sim_disk::{Kept, SimDisk};

/// The room for frames in a segment of this size: all but its header and its seal.
fn room(segment_bytes: usize) -> usize {
    segment_bytes - 128 - 64
}

#[test]
fn an_empty_log_can_be_continued() {
    let mut run = Run::new(4096, Durability::Always);
    run.session(0).session(0);
    assert_goes_on(&run.disk, &run.options, &[]);
}

#[test]
fn a_log_of_one_batch_can_be_continued() {
    let mut run = Run::new(4096, Durability::Always);
    run.session(1).session(0);
    assert_goes_on(&run.disk, &run.options, &run.batches);
}

#[test]
fn a_log_that_ends_with_its_segment_can_be_continued() {
    let mut run = Run::new(4096, Durability::Always);
    run.session_of(vec![vec![1; room(4096) - 64]]);
    assert_eq!(run.segments().len(), 1);
    run.session(0);
    assert_eq!(run.segments().len(), 1);
    assert_goes_on(&run.disk, &run.options, &run.batches);
    assert_eq!(run.segments().len(), 2, "the next batch began a segment");
}

/// A segment always has space for its seal, so that no file ever grows.
#[test]
fn a_full_segment_has_room_for_its_seal() {
    for body_bytes in room(4096) - 256..room(4096) {
        let mut run = Run::new(4096, Durability::Always);
        run.session_of(vec![vec![1; body_bytes], batch(1), vec![1; body_bytes], batch(3)]);
        let whole_pages = run.disk.files().values().all(|file| file.len().is_multiple_of(4096));
        assert!(whole_pages, "{body_bytes} bytes");
        assert_goes_on(&run.disk, &run.options, &run.batches);
    }
}

#[test]
fn a_batch_larger_than_a_segment_gets_one_of_its_own_size() {
    let mut run = Run::new(4096, Durability::Always);
    run.session_of(vec![vec![1; 100_000], batch(1), vec![2; 5000], batch(3)]);
    run.session(1);
    assert_goes_on(&run.disk, &run.options, &run.batches);
    assert!(run.disk.files().values().any(|file| file.len() > 100_000));
}

#[test]
fn a_log_moves_on_to_smaller_and_larger_segments() {
    let mut run = Run::new(16 << 10, Durability::Always);
    run.session(70);
    for segment_bytes in [4 << 10, 64 << 10] {
        run.options.segment_bytes = segment_bytes;
        run.session(70);
    }
    assert_goes_on(&run.disk, &run.options, &run.batches);
}

/// Bodies are found at the places that the append and the replay state, also after the tail was rewritten.
#[test]
fn bodies_are_read_back_from_their_places() {
    let mut run = Run::new(4096, Durability::Always);
    run.session(60);
    let mut places: Vec<LogAddress> = Vec::new();
    let disk = run.disk.shared();
    let mut log = recover(&disk, &run.options, &mut |frame| {
        places.push(frame.place);
        Ok(())
    })
    .unwrap();
    let mut frame = sureq_engine::log::FrameBuf::new();
    frame.extend(&batch(60));
    places.push(log.writer.append(&mut frame, events(60)).unwrap());
    let reader = Reader::new(disk, &log.segments);
    for (index, place) in places.into_iter().enumerate() {
        assert_eq!(*reader.read_upto(place, batch(index).len()).unwrap(), batch(index));
    }
}

/// A place from before the tail was rewritten is found in the segment that replaces its segment.
#[test]
fn places_from_before_a_recovery_stay_valid() {
    let mut run = Run::new(4096, Durability::Always);
    run.session(60);
    let disk = run.disk.shared();
    let mut frame = sureq_engine::log::FrameBuf::new();
    frame.extend(&batch(60));
    let mut log = recover(&disk, &run.options, &mut |_| Ok(())).unwrap();
    let place = log.writer.append(&mut frame, events(60)).unwrap();
    log.writer.sync().unwrap();
    drop(log);
    for _ in 0..3 {
        let log = recover(&disk, &run.options, &mut |_| Ok(())).unwrap();
        let reader = Reader::new(Arc::clone(&disk), &log.segments);
        assert_eq!(*reader.read_upto(place, batch(60).len()).unwrap(), batch(60));
    }
}

/// A client may push the bytes of a log: they are an ordinary payload.
#[test]
fn payloads_that_contain_the_log_itself_are_not_replayed() {
    let mut run = Run::new(16 << 10, Durability::Always);
    run.session(70);
    let segments: Vec<Vec<u8>> = run.segments().iter().map(|name| run.disk.files()[name].to_vec()).collect();
    let mut shifted = segments.clone();
    // Frames within the payload are at offsets where frames may begin.
    for payload in &mut shifted {
        payload.drain(..64);
    }
    run.session_of([segments, shifted].concat());
    assert_goes_on(&run.disk, &run.options, &run.batches);
}

/// Rule 3, with hostile payloads: a torn frame whose payload is a copy of its own segment is a torn tail. The copied
/// frames are neither replayed nor reported as damage.
#[test]
fn a_torn_payload_that_holds_its_own_segment_is_a_torn_tail() {
    let disk = SimDisk::new(1);
    let (_, mut log) = recovered(&disk, &options(64 << 10)).unwrap();
    let mut batches: Vec<_> = (0..40).map(batch).collect();
    for (index, body) in batches.iter().enumerate() {
        append(&mut log.writer, index, body);
    }
    log.writer.sync().unwrap();
    let (name, segment) = disk.files().pop_first().unwrap();
    let written = count_bytes(&batches);
    batches.push(segment[..written].to_vec());
    append(&mut log.writer, 40, &batches[40]);
    for cut in (written..2 * written).step_by(7) {
        let torn = SimDisk::with_files(2, &disk.files());
        torn.edit(&name, |bytes| bytes[cut..].fill(0));
        assert_eq!(count_in(&torn, &options(64 << 10), &batches).unwrap(), 40, "cut at {cut}");
    }
}

fn count_bytes(batches: &[Vec<u8>]) -> usize {
    128 + batches.iter().map(|body| 64 + body.len().next_multiple_of(64)).sum::<usize>()
}

/// Rule 3, with recycled files: the file of the open segment has old frames at the offsets of the next frames.
#[test]
fn old_frames_of_a_recycled_file_are_not_replayed() {
    let mut run = Run::new(4096, Durability::Always);
    run.session(30);
    let old = run.disk.files()[&run.segments()[0]].to_vec();
    let disk = SimDisk::new(8);
    disk.put("spare-1", Arc::new(old));
    let (_, mut log) = recovered(&disk, &run.options).unwrap();
    assert!(!disk.files().contains_key("spare-1"), "the spare is in use");
    for index in 0..30 {
        append(&mut log.writer, index, &batch(index));
        let expected: Vec<_> = (0..=index).map(batch).collect();
        let copy = SimDisk::with_files(9, &disk.files());
        assert_eq!(batches_in(&copy, &run.options).unwrap(), expected);
    }
}

#[test]
fn retired_segments_are_recycled_and_not_needed_after_a_checkpoint() {
    let mut run = Run::new(4096, Durability::Always);
    run.session(60);
    let from = position(50);
    let options = LogOptions { from, spare_segments: 2, ..run.options.clone() };
    let mut first = None;
    let log = recover(&run.disk.shared(), &options, &mut |frame| {
        first.get_or_insert(frame.first);
        Ok(())
    })
    .unwrap();
    assert_eq!(first, Some(from));
    let mut cut = run.copy();
    for segment in &log.segments[..2] {
        log.spares.retire(&[segment.number]).unwrap();
        cut = run.disk.crash(Kept::Nothing, Kept::Nothing);
        assert!(!cut.files().contains_key(&format!("{:020}.seg", segment.number)), "it stays removed");
    }
    assert_eq!(log.spares.ready(), 2, "one was kept as a spare, as configured");
    recover(&cut.shared(), &options, &mut |_| Ok(())).unwrap();
    assert_eq!(refusal(&cut, &run.options).position, Some(Position::START));
}

#[test]
fn a_log_that_ends_before_the_checkpoint_is_refused() {
    let mut run = Run::new(4096, Durability::Always);
    run.session(5);
    let options = LogOptions { from: position(6), ..run.options.clone() };
    assert!(refusal(&run.disk, &options).what.contains("is needed up to position"));
}

#[test]
fn a_replay_that_fails_stops_the_start_and_changes_nothing() {
    let mut run = Run::new(4096, Durability::Always);
    run.session(5);
    let before = run.disk.trace_len();
    let error = recover(&run.disk.shared(), &run.options, &mut |_| Err("what is this".into())).err().unwrap();
    assert!(matches!(error, OpenError::Replay { .. }));
    assert!(error.to_string().ends_with("at offset 128 (position 0): what is this"), "{error}");
    assert_eq!(run.disk.trace_len(), before);
}

/// Files whose names do not match exactly are foreign: they are neither read nor removed.
#[test]
fn foreign_files_are_left_alone() {
    let mut run = Run::new(4096, Durability::Always);
    run.session(30);
    let foreign_files =
        ["notes.txt", "1.seg", "00000000000000000001.seg.bak", "spare-01", "spare-", "snapshot.tmp"];
    for name in foreign_files {
        run.disk.put(name, Arc::new(name.as_bytes().to_vec()));
    }
    run.session(30);
    for name in foreign_files {
        assert_eq!(run.disk.files()[name].as_slice(), name.as_bytes());
    }
}

#[test]
fn leftover_spares_are_used_again_or_removed() {
    let disk = SimDisk::new(1);
    disk.put("spare-3", Arc::new(vec![7; 4095]));
    disk.put("spare-4", Arc::new(vec![7; 4096]));
    disk.put("spare-5", Arc::new(vec![7; 4096]));
    recovered(&disk, &options(4096)).unwrap();
    let files = disk.files();
    assert_eq!(files.keys().collect::<Vec<_>>(), ["00000000000000000001.seg"]);
    let segment = &files["00000000000000000001.seg"];
    assert_eq!((segment.len(), segment.last()), (4096, Some(&7)), "it was the spare of the right length");
}

/// One frame per append, one write per frame, one fdatasync per sync, and no other calls.
#[test]
fn an_append_is_one_write_and_a_sync_one_sync() {
    let mut run = Run::new(64 << 10, Durability::Always);
    run.session(1);
    let (_, mut log) = recovered(&run.disk, &run.options).unwrap();
    let (changes, syncs) = (run.disk.trace_len(), run.disk.syncs());
    for index in 1..101 {
        append(&mut log.writer, index, &batch(index));
        log.writer.sync().unwrap();
        log.writer.sync().unwrap();
    }
    assert_eq!((run.disk.trace_len() - changes, run.disk.syncs() - syncs), (200, 100));
}

#[test]
fn a_real_directory_keeps_the_log() {
    let path = std::env::temp_dir().join(format!("sureq-log-{}", std::process::id()));
    let _ = std::fs::remove_dir_all(&path);
    let options = LogOptions { segment_bytes: 64 << 10, may_be_new: true, ..LogOptions::new(UUID) };
    let mut written = 0;
    for _ in 0..3 {
        let disk: Arc<dyn Disk> = Arc::new(DirDisk::open(&path).unwrap());
        let mut list = Vec::new();
        let mut log = recover(&disk, &options, &mut |frame| {
            list.push(frame.body.to_vec());
            Ok(())
        })
        .unwrap();
        assert_eq!(list, (0..written).map(batch).collect::<Vec<_>>());
        for _ in 0..500 {
            append(&mut log.writer, written, &batch(written));
            written += 1;
        }
        log.writer.sync().unwrap();
    }
    std::fs::remove_dir_all(path).unwrap();
}
