//! A check finds all damage, and changes nothing; a repair saves the rest, and lists the losses.

mod check_support;

use std::sync::Arc;

use check_support::{
    Life, Lived, check_repair, checked, checkpoints, disk_of, frames_of, is_in_gap, is_segment, lived, open,
    repaired,
};
use sureq_core::Command;
use sureq_core::command::LeaseAsk;
use sureq_engine::check::{QueueReport, Report, SegmentReport, Severity};
use sureq_engine::repair::Beginning;
use sureq_home_api::Home as _;
use sureq_testkit::manual_clock::ManualClock;
use sureq_testkit::sim_disk::SimDisk;

/// The contents of a store that its users can see.
fn content(report: &Report) -> impl PartialEq + std::fmt::Debug {
    (report.queues.clone(), report.end, report.live_bytes, report.incarnation, report.starts_from)
}

/// Whether there are no findings at all.
fn is_silent(report: &Report) -> bool {
    report.findings.is_empty()
}

#[test]
fn a_store_with_a_long_history_is_sound() {
    let lived = lived();
    let names: Vec<&String> = lived.files.keys().collect();
    let disk = disk_of(&lived.files);
    let report = checked(&disk);
    assert_eq!(disk.trace_len(), 0, "a check changes nothing");
    assert!(report.is_sound(), "{names:?}\n{:#?}", report.findings);
    assert_eq!(report.refusal, None);
    assert_eq!(report.tasks(), lived.live.len() as u64);
    assert_eq!(report.incarnation, lived.incarnation);
    assert_eq!(report.checkpoints.iter().filter(|file| file.restores).count(), 2, "{:?}", report.checkpoints);
    let mail = report.queues.iter().find(|queue| queue.name == b"mail").expect("it has tasks");
    assert!(mail.ready > 0 && mail.leased > 0 && mail.dead > 0, "{mail:?}");
    assert!(report.queues.iter().any(|queue| queue.delayed > 0 && queue.name == b"later"));
    assert!(report.queues.iter().any(|queue| queue.is_paused && queue.name == b"paused"));
    let live: u64 = report.segments.iter().map(|segment| segment.live_tasks).sum();
    assert_eq!(live, report.tasks());
    let repaired = check_repair(&lived, &disk, "sound");
    assert!(repaired.is_complete(), "{repaired:#?}");
    assert_eq!(repaired.report.queues, report.queues, "states, pauses and payloads are kept");
    assert_eq!(repaired.report.workers, report.workers);
}

#[test]
fn a_store_that_was_closed_and_one_that_never_was_are_sound() {
    let mut life = Life::new();
    assert!(is_silent(&checked(&disk_of(&life.disk.files()))), "it has just been opened");
    life.push(b"q", 3);
    let ids = life.pop(b"q", 1, LeaseAsk::NONE);
    life.ack(b"q", &ids);
    let disk = life.disk.clone();
    let lived = life.end();
    let report = checked(&disk);
    assert!(is_silent(&report), "{:?}", report.findings);
    assert_eq!((report.tasks(), report.checkpoints.len()), (2, 0));
    assert!(check_repair(&lived, &disk, "closed").is_complete());
    let empty = sureq_engine::check::check(&SimDisk::new(1).shared(), &mut |_, _, _| ());
    assert!(empty.is_err_and(|error| error.to_string().contains("no store")));
}

#[test]
fn other_files_are_reported_and_left_alone() {
    let mut files = lived().files;
    for name in ["notes.txt", "checkpoint.new", "store.new", "00000000000000000001.seg.bak"] {
        files.insert(name.to_owned(), Arc::new(b"whatever".to_vec()));
    }
    let report = checked(&disk_of(&files));
    assert!(report.is_sound(), "{:?}", report.findings);
    let reported: Vec<&str> = report.findings.iter().map(|finding| &*finding.file).collect();
    assert_eq!(reported, ["00000000000000000001.seg.bak", "checkpoint.new", "notes.txt", "store.new"]);
}

/// Flips bits all over a file; checks and repairs after each.
fn flip(lived: &Lived, name: &str, step: usize) -> (usize, usize) {
    let sound = checked(&disk_of(&lived.files));
    let bytes = &lived.files[name];
    let (mut flips, mut silent) = (0, 0);
    let edges = (0..bytes.len().min(256)).step_by(13);
    let all = edges.chain((256..bytes.len()).step_by(step)).enumerate();
    for (n, at) in all {
        let disk = disk_of(&lived.files);
        disk.edit(name, |bytes| bytes[at] ^= 1 << (n % 8));
        let context = format!("bit {} of byte {at} of {name}", n % 8);
        let report = checked(&disk);
        assert_eq!(disk.trace_len(), 0);
        flips += 1;
        if is_silent(&report) {
            silent += 1;
            assert_eq!(content(&report), content(&sound), "{context}");
        }
        let repaired = check_repair(lived, &disk, &context);
        if report.is_sound() {
            assert_eq!(report.refusal, None, "{context}");
            // A damaged last frame looks like one that a crash interrupted, which is only a note.
            assert!(repaired.is_complete() || report.end < sound.end, "{context}: {repaired:?}");
        }
    }
    (flips, silent)
}

#[test]
fn every_flipped_bit_is_found_or_harmless_and_sound_tasks_are_saved() {
    let lived = lived();
    let mut flips = 0;
    for (name, bytes) in &lived.files {
        if name.starts_with("spare") {
            continue;
        }
        let step = if is_segment(name) { 41 } else { 29 };
        let (tried, silent) = flip(&lived, name, step);
        println!("{name}: {} bytes, {tried} flips, {silent} of no consequence", bytes.len());
        flips += tried;
        if checkpoints(&lived.files).contains(name) {
            assert_eq!(silent, 0, "every byte of {name} is under a checksum");
        }
    }
    assert!(flips > 500, "{flips}");
}

#[test]
fn every_missing_file_is_found_and_the_rest_is_saved() {
    let lived = lived();
    let sound = checked(&disk_of(&lived.files));
    let kept = sound.checkpoints.iter().filter_map(|file| file.position).min().expect("there are two");
    for name in lived.files.keys().filter(|name| !name.starts_with("spare") && *name != "lock") {
        let disk = disk_of(&lived.files);
        disk.take(name);
        let report = checked(&disk);
        let is_dead = |segment: &SegmentReport| segment.live_tasks == 0 && segment.end <= kept;
        let may_go = sound.segments.iter().any(|segment| segment.file == *name && is_dead(segment));
        // A store with one checkpoint is sound: it may be young, or the older one was dropped on a full disk.
        if !may_go && !checkpoints(&lived.files).contains(name) {
            assert!(!report.is_sound(), "{name} is missing");
        }
        if report.is_sound() {
            assert_eq!((report.queues, report.end), (sound.queues.clone(), sound.end), "without {name}");
        }
        check_repair(&lived, &disk, &format!("without {name}"));
    }
}

#[test]
fn every_pair_of_missing_and_damaged_files_is_survived() {
    let lived = lived();
    let names: Vec<&String> = lived.files.keys().filter(|name| !name.starts_with("spare")).collect();
    for missing in &names {
        for damaged in names.iter().filter(|name| *name != missing) {
            for part in [40, 1000] {
                let disk = disk_of(&lived.files);
                disk.take(missing);
                disk.edit(damaged, |bytes| {
                    let end = bytes.len().min(part + 40);
                    bytes.get_mut(part..end).unwrap_or_default().fill(0xa5);
                });
                let context = format!("without {missing}, {damaged} damaged at {part}");
                checked(&disk);
                check_repair(&lived, &disk, &context);
            }
        }
    }
}

/// Damages body or header of the last frames, with and without the oldest segment. `check_repair` accepts finished
/// tasks that are restored without being doubtful only if the very last frame finished them and its header is lost.
#[test]
fn damage_in_the_last_frames_makes_restored_tasks_doubtful() {
    let lived = lived();
    let segments: Vec<&String> = lived.files.keys().filter(|name| is_segment(name)).collect();
    let (oldest, newest) = (segments[0], segments[segments.len() - 1]);
    let frames = frames_of(&lived.files[newest]);
    let start = lived.files[newest].as_ptr() as usize;
    let sound = checked(&disk_of(&lived.files));
    let checkpoint = sound.checkpoints.iter().filter_map(|file| file.position).max().expect("there are two");
    // Copied tasks may be logged after the last ack, and a checkpoint may contain it.
    let is_last_missed = !lived.last.1.is_empty() && checkpoint.0 <= lived.last.0;
    let places: Vec<usize> =
        frames.iter().rev().take(8).map(|(_, body)| body.as_ptr() as usize - start).collect();
    for (n, &body) in places.iter().enumerate() {
        for (is_oldest_missing, damaged) in [false, true]
            .into_iter()
            .flat_map(|is| [body..body + 1, body - 64..body].map(|damaged| (is, damaged)))
        {
            let disk = disk_of(&lived.files);
            let is_header = damaged.start < body;
            disk.edit(newest, |bytes| bytes[damaged].fill(0xa5));
            if is_oldest_missing {
                disk.take(oldest);
            }
            let what = if is_header { "header" } else { "body" };
            let context =
                format!("{what} of frame {n} from the end, the oldest segment missing: {is_oldest_missing}");
            let repaired = check_repair(&lived, &disk, &context);
            let late = repaired.report.queues.iter().find(|queue| queue.name == b"late");
            if n == 0 && is_last_missed {
                assert_eq!(late.map_or(0, QueueReport::tasks), 6, "{context}");
                assert_eq!(is_in_gap(&repaired, lived.last.0), !is_header, "{context}");
            }
        }
    }
}

/// The contents of a checkpoint's file, and the blobs that it shares, depend on when it was taken. So damage is tried
/// at all places, with and without the other checkpoint.
#[test]
fn without_a_sound_checkpoint_its_sound_parts_are_used() {
    let lived = lived();
    let checkpoints = checkpoints(&lived.files);
    let oldest = lived.files.keys().find(|name| is_segment(name)).expect("there is a segment");
    let reaches_back = checked(&disk_of(&lived.files)).segments[0].first.0 == 0;
    let mut fewest_doubts = usize::MAX;
    for damaged in lived.files.keys().filter(|name| name.starts_with("checkpoint-")) {
        let places = (0..lived.files[damaged].len()).step_by(40);
        for (at, is_alone) in places.flat_map(|at| [(at, false), (at, true)]) {
            let disk = disk_of(&lived.files);
            disk.edit(damaged, |bytes| bytes[at] ^= 1);
            for other in checkpoints.iter().filter(|name| is_alone && *name != damaged) {
                disk.take(other);
            }
            if reaches_back {
                // Otherwise the log would suffice.
                disk.take(oldest);
            }
            let report = checked(&disk);
            let repaired = check_repair(&lived, &disk, &format!("byte {at} of {damaged}, alone: {is_alone}"));
            if matches!(repaired.beginning, Beginning::PartOfCheckpoint { .. }) {
                assert!(report.refusal.is_some() && !report.is_sound(), "byte {at} of {damaged}");
                fewest_doubts = fewest_doubts.min(repaired.doubtful.len());
            }
        }
    }
    let live = lived.live.len();
    assert!(fewest_doubts < live / 2, "at least {fewest_doubts} of {live} are doubtful, for any lost part");
}

#[test]
fn without_any_checkpoint_the_log_is_used() {
    let lived = lived();
    let disk = disk_of(&lived.files);
    let first = lived.files.keys().find(|name| is_segment(name)).expect("there is a segment");
    for name in lived.files.keys().filter(|name| name.starts_with("checkpoint-") || *name == first) {
        disk.take(name);
    }
    let repaired = check_repair(&lived, &disk, "no checkpoint");
    assert_eq!(repaired.beginning, Beginning::Nothing);
    assert!(!repaired.nameless.is_empty(), "names of queues are in checkpoints");
}

#[test]
fn a_damaged_payload_costs_its_task_alone() {
    let lived = lived();
    let (id, (_, payload)) = lived.live.iter().next_back().expect("there are tasks");
    let (name, at) = lived
        .files
        .iter()
        .filter(|(name, _)| is_segment(name))
        .find_map(|(name, bytes)| {
            Some((name, bytes.windows(payload.len()).position(|window| window == &payload[..])?))
        })
        .expect("it is in the log");
    let disk = disk_of(&lived.files);
    disk.edit(name, |bytes| bytes[at + 3] ^= 0x20);
    let report = checked(&disk);
    assert!(!report.is_sound());
    let repaired = check_repair(&lived, &disk, "a payload");
    assert_eq!(repaired.lost.iter().map(|lost| lost.id).collect::<Vec<_>>(), [*id], "{:?}", repaired.lost);
    assert!(repaired.gaps.is_empty() && repaired.doubtful.is_empty(), "{repaired:?}");
}

#[test]
fn a_repaired_store_is_served_and_repeats_no_id_and_no_receipt() {
    let lived = lived();
    let disk = disk_of(&lived.files);
    disk.edit("store", |bytes| bytes.fill(0));
    let (repaired, to) = repaired(&disk);
    assert!(repaired.report.is_sound(), "{:?}", repaired.report.findings);
    let clock = Arc::new(ManualClock::default());
    let engine = open(&to, &clock);
    let mut replies = sureq_core::Replies::default();
    let executed = engine.execute(&[Command::Push { queue: b"q", payloads: &[b"new"] }], &mut replies);
    assert!(engine.wait(executed.position));
    let last = lived.live.keys().chain(&lived.finished).max().expect("there are ids");
    assert!(replies.ids[0] > *last, "{} after {last}", replies.ids[0]);
    engine.inspect(|broker| {
        assert!(broker.incarnation() > lived.incarnation);
        assert_eq!(broker.queues().map(|(_, queue)| queue.len()).sum::<u64>(), lived.live.len() as u64 + 1);
        broker.check().expect("it is sound");
    });
    engine.close().expect("a sound disk");
    let mixed = to;
    let old = lived.files.iter().find(|(name, _)| is_segment(name)).expect("there is a segment");
    mixed.put("00000000000000099999.seg", Arc::clone(old.1));
    assert!(!checked(&mixed).is_sound(), "a file of the old store is not one of the new");
}

#[test]
fn findings_name_the_place_the_damage_and_the_remedy() {
    let lived = lived();
    let name = lived.files.keys().rfind(|name| is_segment(name)).expect("there is a segment");
    let disk = disk_of(&lived.files);
    disk.edit(name, |bytes| bytes[130] ^= 1);
    let report = checked(&disk);
    let finding = &report.findings[0];
    assert_eq!((finding.severity, &finding.file, finding.offset), (Severity::Damage, name, Some(128)));
    assert!(finding.to_string().starts_with(&format!("{name} at offset 128 (position ")), "{finding}");
    assert!(finding.meaning.contains("a start refuses the store"), "{finding:?}");
    assert!(finding.advice.contains("--repair"), "{finding:?}");
    assert!(report.refusal.is_some());
}

/// A process that is killed while it writes leaves an incomplete last frame, which looks like damage. The finding
/// must state what a start does with it.
#[test]
fn a_finding_about_the_last_frame_states_whether_a_start_refuses_it() {
    let lived = lived();
    let name = lived.files.keys().rfind(|name| is_segment(name)).expect("there is a segment");
    let (file, frames) = (&lived.files[name], frames_of(&lived.files[name]));
    for (n, (_, body)) in frames.iter().rev().take(8).enumerate() {
        let disk = disk_of(&lived.files);
        let end = body.as_ptr() as usize - file.as_ptr() as usize + body.len();
        disk.edit(name, |bytes| bytes[end - 1] ^= 1);
        let report = checked(&disk);
        let damage = report.findings.iter().find(|finding| finding.severity == Severity::Damage);
        let meaning = damage.map(|damage| damage.meaning.clone()).expect("it is found");
        let refuses = report.refusal.is_some();
        assert_eq!(
            meaning.contains("a start refuses the store"),
            refuses,
            "frame {n} from the end: {meaning}"
        );
        assert_eq!(meaning.contains("a start cuts it off"), !refuses, "frame {n} from the end: {meaning}");
        assert!(n > 0 || !refuses, "nothing shows that the last frame was durable");
    }
}
