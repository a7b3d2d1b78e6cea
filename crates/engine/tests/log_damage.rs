//! Content that other programs or the disk have changed: it is refused with the name of the file, or has no effect,
//! or is a torn tail. It never leads to a wrong state or a panic.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod log_support;

use std::sync::Arc;

use log_support::{Run, assert_goes_on, batch, count_in, position, refusal};
use sureq_engine::fault::{Damage, OpenError};
use sureq_engine::log::{Durability, Position};
use sureq_testkit::sim_disk::SimDisk;

const SEGMENT_HEADER_BYTES: usize = 128;

/// A log with sealed segments and an open one that is at least half full.
fn written(segment_bytes: u64, durability: Durability) -> Run {
    let mut run = Run::new(segment_bytes, durability);
    let frames_per_segment = segment_bytes as usize / 180;
    run.session(2 * frames_per_segment + frames_per_segment * 3 / 4);
    assert!(run.segments().len() >= 3);
    run
}

/// The ends of the frames of a log in one segment, with the end of the header first.
fn frame_ends(batches: &[Vec<u8>]) -> Vec<usize> {
    let mut ends = vec![SEGMENT_HEADER_BYTES];
    for body in batches {
        ends.push(ends.last().unwrap() + 64 + body.len().next_multiple_of(64));
    }
    ends
}

#[test]
fn the_last_segment_cut_at_every_byte_gives_the_largest_whole_batch() {
    let mut run = Run::new(64 << 10, Durability::Always);
    let small = (0..500).map(|index: usize| vec![index as u8; 1 + index % 60]).collect();
    run.session_of(small);
    let ends = frame_ends(&run.batches);
    let files = run.disk.files();
    let whole = &files[&run.last()];
    assert!(ends.last().unwrap() > &(whole.len() * 9 / 10));
    // A frame is complete if its body is; the padding does not matter.
    let body_end = |index: usize| ends[index] + 64 + run.batches[index].len();
    let mut held = 0;
    for bytes in 0..whole.len() {
        held += usize::from(held < run.batches.len() && body_end(held) <= bytes);
        let disk = SimDisk::new(5);
        disk.put(&run.last(), Arc::new(whole[..bytes].to_vec()));
        assert_eq!(count_in(&disk, &run.options, &run.batches).unwrap(), held, "{bytes} bytes");
        // Appending takes far more time than reading. A prime step covers every alignment.
        if bytes % 61 == 0 {
            assert_goes_on(&disk, &run.options, &run.batches[..held]);
        }
    }
}

/// Flips every bit of a file, one at a time. `judge` returns whether the outcome is right.
fn flip_every_bit(run: &Run, name: &str, judge: impl Fn(&Result<usize, Damage>) -> bool) {
    let disk = run.copy();
    let bits = run.disk.files()[name].len() * 8;
    for bit in 0..bits {
        let flip = |bytes: &mut Vec<u8>| bytes[bit / 8] ^= 1 << (bit % 8);
        disk.edit(name, flip);
        let outcome = match count_in(&disk, &run.options, &run.batches) {
            Ok(count) => Ok(count),
            Err(OpenError::Damaged(damage)) => Err(damage),
            Err(other) => panic!("bit {bit} of {name}: {other}"),
        };
        if let Err(damage) = &outcome {
            assert!(
                damage.file == name && damage.offset <= (bit / 8) as u64,
                "bit {bit} of {name}: {damage}"
            );
        }
        assert!(judge(&outcome), "bit {bit} of {name}: {outcome:?}");
        disk.edit(name, flip);
    }
}

#[test]
fn every_bit_of_a_sealed_segment_is_refused_or_of_no_consequence() {
    let run = written(32 << 10, Durability::Always);
    let all = run.batches.len();
    flip_every_bit(&run, &run.segments()[1], |outcome| outcome.as_ref().map_or(true, |&count| count == all));
}

#[test]
fn every_bit_of_the_last_segment_costs_the_last_batch_at_most() {
    let run = written(32 << 10, Durability::Always);
    let all = run.batches.len();
    flip_every_bit(&run, &run.last(), |outcome| outcome.as_ref().map_or(true, |&count| count >= all - 1));
}

/// A synced mark is in the frame after the sync: nothing below the highest one is ever cut off.
#[test]
fn every_bit_of_the_last_segment_costs_nothing_below_the_synced_mark() {
    let run = written(8 << 10, Durability::Interval);
    let all = run.batches.len();
    let marked = (all - 1) / 7 * 7;
    flip_every_bit(&run, &run.last(), |outcome| outcome.as_ref().map_or(true, |&count| count >= marked));
}

#[test]
fn without_any_sync_every_bit_of_the_last_segment_leaves_a_prefix_beyond_the_sealed_ones() {
    let run = written(4 << 10, Durability::None);
    let sealed = run.copy();
    sealed.edit(&run.last(), |bytes| bytes.truncate(SEGMENT_HEADER_BYTES));
    let sealed = count_in(&sealed, &run.options, &run.batches).unwrap();
    flip_every_bit(&run, &run.last(), |outcome| outcome.as_ref().map_or(true, |&count| count >= sealed));
}

/// The tail that a recovery has rewritten was durable before it got its name.
#[test]
fn a_rewritten_tail_loses_nothing_to_a_flipped_bit() {
    let mut run = Run::new(4 << 10, Durability::None);
    run.session(15).session(0);
    flip_every_bit(&run, &run.last(), |outcome| outcome.as_ref().map_or(true, |&count| count == 15));
}

/// Damages a new log with `damage`, which gets the names of its segments, and fails unless a recovery refuses it.
fn refused(damage: impl FnOnce(&SimDisk, &[String])) -> Damage {
    let run = written(4096, Durability::Always);
    let disk = run.copy();
    damage(&disk, &run.segments());
    refusal(&disk, &run.options)
}

#[test]
fn a_missing_segment_is_refused_by_name() {
    let first = refused(|disk, names| disk.take(&names[0]));
    assert!(first.what.starts_with("the events before position "), "{first}");
    assert_eq!(first.position, Some(Position::START));
    let middle = refused(|disk, names| disk.take(&names[1]));
    assert!(middle.what.starts_with("00000000000000000002.seg is expected and missing"), "{middle}");
    let last = refused(|disk, names| disk.take(names.last().unwrap()));
    assert!(last.what.ends_with(".seg is expected and missing"), "{last}");
    let all = refused(|disk, names| {
        for name in names {
            disk.take(name);
        }
        // Another file of the same kind shows that the store has been in use.
        disk.put("00000000000000000009.seg", Arc::new(vec![0; 4096]));
    });
    assert!(all.what.contains("does not begin like a segment"), "{all}");
}

#[test]
fn a_store_in_use_without_any_segment_is_refused() {
    let mut run = Run::new(4096, Durability::Always);
    run.options.may_be_new = false;
    assert!(refusal(&run.disk, &run.options).what.contains("no segment"));
}

#[test]
fn a_sealed_segment_cut_at_any_frame_is_refused_with_offset_and_position() {
    let run = written(4096, Durability::Always);
    let name = &run.segments()[0];
    let held = frame_ends(&run.batches).partition_point(|&end| end + 64 <= 4096) - 1;
    for (index, end) in frame_ends(&run.batches[..held - 1]).into_iter().enumerate() {
        let disk = run.copy();
        disk.edit(name, |bytes| bytes.truncate(end));
        let damage = refusal(&disk, &run.options);
        assert_eq!((damage.file.as_str(), damage.offset), (name.as_str(), end as u64));
        assert_eq!(damage.position, Some(position(index)));
    }
}

#[test]
fn a_sealed_segment_shorter_than_its_header_is_refused() {
    for bytes in [0, 1, SEGMENT_HEADER_BYTES - 1] {
        let damage = refused(|disk, names| disk.edit(&names[1], |content| content.truncate(bytes)));
        assert!(damage.what.contains("ends within its header"), "{damage}");
    }
}

#[test]
fn swapped_segments_are_refused() {
    let damage = refused(|disk, names| {
        let files = disk.files();
        disk.put(&names[0], Arc::clone(&files[&names[1]]));
        disk.put(&names[1], Arc::clone(&files[&names[0]]));
    });
    assert!(damage.what.contains("its header says that it is"), "{damage}");
}

#[test]
fn a_duplicated_segment_is_refused() {
    let damage = refused(|disk, names| {
        let first = Arc::clone(&disk.files()[&names[0]]);
        disk.put("00000000000000000099.seg", first);
    });
    assert_eq!((damage.file.as_str(), damage.offset), ("00000000000000000099.seg", 0));
}

#[test]
fn a_zeroed_segment_is_refused_sealed_or_not() {
    for from_end in [0, 1] {
        let damage = refused(|disk, names| {
            disk.edit(&names[names.len() - 1 - from_end], |bytes| bytes.fill(0));
        });
        assert_eq!((damage.offset, damage.what.as_str()), (0, "it does not begin like a segment"));
    }
}

#[test]
fn a_segment_of_another_store_is_refused() {
    let mut foreign = written(4096, Durability::Always);
    foreign.options.uuid = [9; 16];
    assert!(refusal(&foreign.disk, &foreign.options).what.contains("another store"));
}

type Damaging<'a> = dyn Fn(&mut Vec<u8>) + 'a;

/// Rule 3, with damage by the disk: pages that were lost, zeroed, misdirected or swapped, in every segment. If the
/// whole page in which the log ends is lost, nothing shows that there were batches in it; all others must be there.
#[test]
fn a_damaged_page_is_found_unless_the_log_ends_in_it() {
    const PAGE: usize = 4096;
    let run = written(16 << 10, Durability::Always);
    let stale: Vec<u8> = batch(4).repeat(PAGE);
    let before_last_page = run.copy();
    before_last_page.edit(&run.last(), |bytes| {
        let end = bytes.iter().rposition(|&byte| byte != 0).unwrap();
        bytes.truncate(end / PAGE * PAGE);
    });
    let at_least = count_in(&before_last_page, &run.options, &run.batches).unwrap();
    assert!(at_least < run.batches.len());
    for name in run.segments() {
        let pages = run.disk.files()[&name].len() / PAGE;
        for (from, to) in (0..pages).flat_map(|from| (0..pages).map(move |to| (from * PAGE, to * PAGE))) {
            let damages: [&Damaging<'_>; 4] = [
                &|bytes| bytes[to..to + PAGE].fill(0),
                &|bytes| bytes[to..to + PAGE].copy_from_slice(&stale[..PAGE]),
                &|bytes| bytes.copy_within(from..from + PAGE, to),
                &|bytes| (0..PAGE).for_each(|at| bytes.swap(from + at, to + at)),
            ];
            for damage in damages {
                let disk = run.copy();
                disk.edit(&name, damage);
                match count_in(&disk, &run.options, &run.batches) {
                    Ok(count) => assert!(count >= at_least, "{name}: {from} to {to}: {count}"),
                    Err(OpenError::Damaged(_)) => {}
                    Err(other) => panic!("{name}: {from} to {to}: {other}"),
                }
            }
        }
    }
}
