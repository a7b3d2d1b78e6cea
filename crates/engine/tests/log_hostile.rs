//! Rule 12 for the log: headers with arbitrary values and matching checksums. Written against
//! docs/understand/log-format.md, not against the code: no panic, no memory beyond the size of the file, no batch that
//! was not appended.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod log_support;

use log_support::{Run, count_in, refusal};
use sureq_engine::fault::OpenError;
use sureq_engine::log::{Durability, recover};

const SEGMENT_HEADER_BYTES: usize = 128;
const FRAME_HEADER_BYTES: usize = 64;
const CRC_BYTES: usize = 4;

/// The offset of the body's checksum in a frame's header.
const BODY_CRC: usize = 40;

const WORDS: [u64; 9] = [0, 1, 2, 63, 64, 0x7fff_ffff, u32::MAX as u64, i64::MAX as u64, u64::MAX];

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(bytes[at..at + 8].try_into().unwrap())
}

/// Makes the header's checksum match again.
fn fix_frame(bytes: &mut [u8], offset: usize) {
    let salt = u64_at(bytes, 48);
    let seed = (salt as u32) ^ ((salt >> 32) as u32) ^ (offset / 64) as u32;
    let header = &mut bytes[offset..offset + FRAME_HEADER_BYTES];
    let (fields, crc) = header.split_at_mut(FRAME_HEADER_BYTES - CRC_BYTES);
    crc.copy_from_slice(&crc32c::crc32c_append(seed, fields).to_le_bytes());
}

fn fix_segment(bytes: &mut [u8]) {
    let (fields, rest) = bytes.split_at_mut(SEGMENT_HEADER_BYTES - CRC_BYTES);
    rest[..CRC_BYTES].copy_from_slice(&crc32c::crc32c(fields).to_le_bytes());
}

/// The offsets of the frames of a segment, by the lengths in their headers.
fn frame_offsets(bytes: &[u8]) -> Vec<usize> {
    let salt = u64_at(bytes, 48);
    let mut offsets = Vec::new();
    let mut offset = SEGMENT_HEADER_BYTES;
    while offset + FRAME_HEADER_BYTES <= bytes.len() && u64_at(bytes, offset) == salt {
        offsets.push(offset);
        let body_bytes = u32::from_le_bytes(bytes[offset + 36..offset + 40].try_into().unwrap()) as usize;
        offset += FRAME_HEADER_BYTES + body_bytes.next_multiple_of(64);
    }
    offsets
}

/// Changes the segment `name` and fails unless the log is refused, or is a prefix of the original. A recovery of the
/// changed log must not panic either.
fn assert_harmless(run: &Run, name: &str, context: &str, change: impl Fn(&mut Vec<u8>)) {
    let disk = run.copy();
    disk.edit(name, change);
    match count_in(&disk, &run.options, &run.batches) {
        Ok(_) => drop(recover(&disk.shared(), &run.options, &mut |_| Ok(())).unwrap()),
        Err(OpenError::Damaged(_) | OpenError::NewerFormat { .. }) => {}
        Err(other) => panic!("{name}: {context}: {other}"),
    }
}

fn written() -> Run {
    let mut run = Run::new(4096, Durability::Interval);
    run.session(50);
    run
}

#[test]
fn frame_headers_with_arbitrary_values_are_harmless() {
    let run = written();
    for name in run.segments() {
        for offset in frame_offsets(&run.disk.files()[&name]) {
            // Not the checksum of the body: with a forged body checksum any body would be valid.
            let fields = (0..FRAME_HEADER_BYTES - CRC_BYTES).step_by(4).filter(|&field| field != BODY_CRC);
            for (field, word) in fields.flat_map(|field| WORDS.map(|word| (field, word))) {
                for bytes in [4, 8] {
                    let context = format!("{bytes} bytes at {field} of the frame at {offset}: {word}");
                    let end = (field + bytes).min(FRAME_HEADER_BYTES - CRC_BYTES);
                    assert_harmless(&run, &name, &context, |content| {
                        let value = word.to_le_bytes();
                        content[offset + field..offset + end].copy_from_slice(&value[..end - field]);
                        fix_frame(content, offset);
                    });
                }
            }
        }
    }
}

#[test]
fn segment_headers_with_arbitrary_values_are_harmless() {
    let run = written();
    for name in run.segments() {
        for field in (0..SEGMENT_HEADER_BYTES - CRC_BYTES - 4).step_by(4) {
            for word in WORDS {
                let context = format!("header field at {field}: {word}");
                assert_harmless(&run, &name, &context, |content| {
                    content[field..field + 8].copy_from_slice(&word.to_le_bytes());
                    fix_segment(content);
                });
            }
        }
    }
}

/// Fails unless the log is refused with `value` in `field` of a frame in the middle of the open segment.
fn assert_frame_refused(field: usize, value: &[u8]) {
    let run = written();
    let offsets = frame_offsets(&run.disk.files()[&run.last()]);
    let offset = offsets[offsets.len() / 2];
    run.disk.edit(&run.last(), |content| {
        content[offset + field..offset + field + value.len()].copy_from_slice(value);
        fix_frame(content, offset);
    });
    let damage = refusal(&run.disk, &run.options);
    assert_eq!((damage.file, damage.offset), (run.last(), offset as u64));
}

#[test]
fn a_frame_out_of_its_order_is_refused() {
    const FIRST: usize = 16;
    const SYNCED: usize = 24;
    const EVENTS: usize = 32;
    const CHAIN: usize = 44;
    const KIND: usize = 48;
    assert_frame_refused(FIRST, &(1_u64 << 40).to_le_bytes());
    assert_frame_refused(SYNCED, &[0xff; 8]);
    assert_frame_refused(EVENTS, &[0; 4]);
    assert_frame_refused(CHAIN, &[0; 4]);
    assert_frame_refused(KIND, &[9, 0, 0, 0]);
}

#[test]
fn a_segment_that_continues_another_is_refused() {
    const PREVIOUS_CHAIN: usize = 12;
    let run = written();
    run.disk.edit(&run.last(), |content| {
        content[PREVIOUS_CHAIN] ^= 1;
        fix_segment(content);
    });
    assert!(refusal(&run.disk, &run.options).what.ends_with(".seg does not continue it"));
}

/// The written format is the documented one: the checksums computed here match those on disk.
#[test]
fn the_documented_checksums_are_those_on_disk() {
    let run = written();
    for (name, file) in run.disk.files() {
        if !run.segments().contains(&name) {
            continue;
        }
        let mut fixed = file.to_vec();
        fix_segment(&mut fixed);
        for offset in frame_offsets(&file) {
            fix_frame(&mut fixed, offset);
        }
        assert!(fixed == *file, "{name}");
    }
}
