//! Checkpoints that other programs or the disk have changed, and headers with arbitrary values and matching
//! checksums. Written against docs/understand/log-format.md: an older checkpoint is used, or the file is refused by
//! name. No other bytes than those written are returned, and nothing panics.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod checkpoint_support;

use std::collections::BTreeMap;
use std::sync::Arc;

use checkpoint_support::{UUID, copy, loaded, manifest_of, name, names, refusal, taken};
use sureq_engine::checkpoint::{Blob, Checkpoints};
use sureq_engine::fault::OpenError;
use sureq_testkit::sim_disk::SimDisk;

const HEADER_BYTES: usize = 128;
const CRC: usize = 124;

const VERSION: usize = 8;
const FILES: usize = 12;
const UUID_AT: usize = 16;
const NUMBER: usize = 32;
const BYTES: usize = 48;
const BLOBS_END: usize = 56;
const BLOBS_CRC: usize = 64;
const TABLE_CRC: usize = 68;
const MANIFEST_CRC: usize = 72;

const WORDS: [u64; 10] = [0, 1, 7, 127, 128, 129, 0x7fff_ffff, u32::MAX as u64, i64::MAX as u64, u64::MAX];

/// The number of checkpoints before the damage, so that the newest shares blobs with several.
const TAKEN: u64 = 8;

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(bytes[at..at + 8].try_into().unwrap())
}

fn put_u32(bytes: &mut [u8], at: usize, value: u32) {
    bytes[at..at + 4].copy_from_slice(&value.to_le_bytes());
}

fn fix_header(bytes: &mut [u8]) {
    let crc = crc32c::crc32c(&bytes[..CRC]);
    put_u32(bytes, CRC, crc);
}

/// The offsets of the table and of the manifest.
fn parts_of(bytes: &[u8]) -> (usize, usize) {
    let files = u32::from_le_bytes(bytes[FILES..FILES + 4].try_into().unwrap()) as usize;
    let table = u64_at(bytes, BLOBS_END) as usize;
    (table, table + 8 * files)
}

/// Makes all checksums match again.
fn fix(bytes: &mut [u8]) {
    let (table, manifest) = parts_of(bytes);
    let parts = [
        (BLOBS_CRC, HEADER_BYTES..table),
        (TABLE_CRC, table..manifest),
        (MANIFEST_CRC, manifest..bytes.len()),
    ];
    for (at, part) in parts {
        let crc = crc32c::crc32c(&bytes[part]);
        put_u32(bytes, at, crc);
    }
    fix_header(bytes);
}

/// The checkpoint that a start uses after a file was changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Outcome {
    Newest,
    Older,
    Refused,
}

/// Loads, which must return a state that was written or fail because of the content.
fn outcome(disk: &SimDisk, context: &str) -> Outcome {
    match loaded(disk) {
        Ok(session) => match (session.position, session.skipped) {
            (TAKEN, None) => Outcome::Newest,
            (position, Some(damage)) if position == TAKEN - 1 => {
                assert!(!damage.what.is_empty(), "{context}");
                Outcome::Older
            }
            other => panic!("{context}: {other:?}"),
        },
        Err(OpenError::Damaged(_) | OpenError::NewerFormat { .. }) => Outcome::Refused,
        Err(other) => panic!("{context}: {other}"),
    }
}

/// Whether one of these blobs contains this offset of a file.
fn refers(blobs: &BTreeMap<u32, Blob>, file: u64, at: usize) -> bool {
    let covers = |blob: &Blob| {
        let begin = blob.offset as usize;
        blob.file == file && (begin..begin + blob.bytes as usize).contains(&at)
    };
    blobs.values().any(covers)
}

#[test]
fn every_flipped_bit_falls_back_or_is_refused_or_does_not_matter() {
    let untouched = taken(TAKEN);
    let newest = loaded(&untouched).unwrap().blobs;
    let older = {
        let disk = copy(&untouched);
        disk.take(&name(TAKEN));
        loaded(&disk).unwrap().blobs
    };
    let probe = copy(&untouched);
    let mut seen = BTreeMap::new();
    for (file_name, content) in untouched.files() {
        let file = u64_at(&content, NUMBER);
        let (table, _) = parts_of(&content);
        for bit in 0..content.len() * 8 {
            let at = bit / 8;
            let flip = |bytes: &mut Vec<u8>| bytes[at] ^= 1 << (bit % 8);
            probe.edit(&file_name, flip);
            let context = format!("bit {bit} of {file_name}");
            let hurts = |number: u64, blobs: &BTreeMap<u32, Blob>| {
                let is_used = file == number || blobs.values().any(|blob| blob.file == file);
                let is_own = file == number && at >= table;
                is_used && (at < HEADER_BYTES || is_own || refers(blobs, file, at))
            };
            let expected = match (hurts(TAKEN, &newest), hurts(TAKEN - 1, &older)) {
                (false, _) => Outcome::Newest,
                (true, false) => Outcome::Older,
                (true, true) => Outcome::Refused,
            };
            assert_eq!(outcome(&probe, &context), expected, "{context}");
            *seen.entry(format!("{expected:?}")).or_insert(0) += 1;
            probe.edit(&file_name, flip);
        }
    }
    assert!(seen.len() == 3 && seen.values().all(|&count| count > 1000), "{seen:?}");
}

#[test]
fn every_cut_of_the_newest_falls_back() {
    let untouched = taken(TAKEN);
    let content = Arc::clone(&untouched.files()[&name(TAKEN)]);
    let probe = copy(&untouched);
    for bytes in 0..content.len() {
        probe.put(&name(TAKEN), Arc::new(content[..bytes].to_vec()));
        assert_eq!(outcome(&probe, "a cut"), Outcome::Older, "{bytes} bytes");
    }
    let mut longer = content.to_vec();
    longer.push(0);
    probe.put(&name(TAKEN), Arc::new(longer));
    assert_eq!(outcome(&probe, "one more byte"), Outcome::Older);
    probe.take(&name(TAKEN));
    assert_eq!(loaded(&probe).unwrap().position, TAKEN - 1);
}

#[test]
fn a_missing_or_cut_file_of_blobs_is_named() {
    let untouched = taken(TAKEN);
    let refers_to = loaded(&untouched).unwrap().blobs.values().map(|blob| blob.file).min().unwrap();
    let blobs = format!("{}.blobs", name(refers_to));
    let content = Arc::clone(&untouched.files()[&blobs]);
    let disk = copy(&untouched);
    disk.take(&blobs);
    let damage = refusal(&disk);
    assert!(damage.file == name(TAKEN) && damage.what.contains("whose file is missing"), "{damage}");
    for bytes in 0..content.len() {
        disk.put(&blobs, Arc::new(content[..bytes].to_vec()));
        assert_eq!(refusal(&disk).file, blobs, "{bytes} bytes");
    }
}

#[test]
fn the_newest_is_named_if_no_checkpoint_is_sound() {
    let disk = taken(3);
    for number in 1..=3 {
        if names(&disk).contains(&name(number)) {
            disk.edit(&name(number), |bytes| *bytes.last_mut().unwrap() ^= 1);
        }
    }
    let damage = refusal(&disk);
    let (_, manifest) = parts_of(&disk.files()[&name(3)]);
    assert_eq!((damage.file.clone(), damage.offset), (name(3), manifest as u64), "{damage}");
}

#[test]
fn another_stores_checkpoint_is_refused_and_stays() {
    for file in names(&taken(TAKEN)) {
        let disk = taken(TAKEN);
        disk.edit(&file, |bytes| {
            bytes[UUID_AT] ^= 1;
            fix_header(bytes);
        });
        let damage = refusal(&disk);
        assert!(damage.file == file && damage.what.contains("another store"), "{damage}");
    }
    let disk = taken(2);
    assert!(Checkpoints::open(disk.shared(), [0; 16]).is_err());
}

#[test]
fn a_newer_format_is_refused_by_name() {
    let disk = taken(2);
    disk.edit(&name(2), |bytes| {
        put_u32(bytes, VERSION, 3);
        fix_header(bytes);
    });
    let error = loaded(&disk).err().unwrap().to_string();
    assert!(error.contains(&name(2)) && error.contains("has format 3, this release knows"), "{error}");
}

#[test]
fn a_number_under_two_names_is_refused() {
    let disk = taken(2);
    let content = Arc::clone(&disk.files()[&name(1)]);
    disk.put(&format!("{}.blobs", name(1)), Arc::clone(&content));
    assert!(refusal(&disk).what.contains("another file with its number"));
    let disk = taken(2);
    disk.put(&name(3), content);
    let session = loaded(&disk).unwrap();
    assert!(session.position == 2 && session.skipped.unwrap().what.contains("says that it is checkpoint 1"));
}

#[test]
fn headers_with_arbitrary_values_are_harmless() {
    let untouched = taken(TAKEN);
    let mut refused = 0;
    for file in names(&untouched) {
        let original = Arc::clone(&untouched.files()[&file]);
        let near = [original.len() as u64 - 1, original.len() as u64 + 1, u64_at(&original, BLOBS_END) + 1];
        // Not the checksums of the parts: with a forged checksum any content would be valid.
        for field in (VERSION..CRC - 8).step_by(4) {
            for (word, bytes) in WORDS.into_iter().chain(near).flat_map(|word| [(word, 4), (word, 8)]) {
                let probe = copy(&untouched);
                probe.edit(&file, |content| {
                    content[field..field + bytes].copy_from_slice(&word.to_le_bytes()[..bytes]);
                    fix_header(content);
                });
                let context = format!("{word} in {bytes} bytes at {field} of {file}");
                // Position and reserved bytes can be anything.
                if (40..48).contains(&field) || (36..40).contains(&field) {
                    let _ = checkpoint_support::Session::start(&probe);
                    continue;
                }
                refused += usize::from(outcome(&probe, &context) != Outcome::Newest);
            }
        }
    }
    assert!(refused > 500, "{refused}");
}

/// Arbitrary boundaries between the parts of a file, with checksums that match.
#[test]
fn headers_with_arbitrary_part_boundaries_are_harmless() {
    let untouched = taken(TAKEN);
    let bytes = untouched.files()[&name(TAKEN)].len() as u64;
    for blobs_end in (0..=bytes + 8).chain([u64::MAX - 7, u64::MAX]) {
        for files in [0, 1, 2, 3, 100, 1 << 28, u32::MAX] {
            let probe = copy(&untouched);
            probe.edit(&name(TAKEN), |content| {
                let (table, manifest) = parts_of(content);
                content[BLOBS_END..BLOBS_END + 8].copy_from_slice(&blobs_end.to_le_bytes());
                put_u32(content, FILES, files);
                let is_same = blobs_end == table as u64 && files as usize * 8 == manifest - table;
                let fits = (HEADER_BYTES as u64..=bytes).contains(&blobs_end)
                    && u64::from(files) * 8 <= bytes - blobs_end;
                if fits && !is_same {
                    // All checksums match, so the manifest consists of arbitrary bytes.
                    fix(content);
                } else {
                    fix_header(content);
                }
            });
            let _ = checkpoint_support::Session::start(&probe);
        }
    }
}

#[test]
fn tables_with_arbitrary_entries_are_harmless() {
    let untouched = taken(TAKEN);
    let (table, manifest) = parts_of(&untouched.files()[&name(TAKEN)]);
    assert!(manifest > table, "the newest refers to others");
    for entry in (table..manifest).step_by(8) {
        for word in WORDS.into_iter().chain([TAKEN - 1, TAKEN, TAKEN + 1]) {
            let probe = copy(&untouched);
            let mut is_same = false;
            probe.edit(&name(TAKEN), |content| {
                is_same = u64_at(content, entry) == word;
                content[entry..entry + 8].copy_from_slice(&word.to_le_bytes());
                fix(content);
            });
            let found = outcome(&probe, &format!("{word} in the table"));
            assert_eq!(found == Outcome::Newest, is_same, "{word} at {entry}");
        }
    }
}

#[test]
fn damaged_and_incomplete_tables_are_reported() {
    let disk = taken(TAKEN);
    let (table, manifest) = parts_of(&disk.files()[&name(TAKEN)]);
    disk.edit(&name(TAKEN), |content| content[table] ^= 1);
    let damage = loaded(&disk).unwrap().skipped.unwrap();
    assert!(damage.offset == table as u64 && damage.what.contains("checksum of the table"), "{damage}");

    let disk = taken(TAKEN);
    disk.edit(&name(TAKEN), |content| {
        content.drain(table..manifest);
        let length = content.len() as u64;
        content[BYTES..BYTES + 8].copy_from_slice(&length.to_le_bytes());
        put_u32(content, FILES, 0);
        fix(content);
    });
    let damage = loaded(&disk).unwrap().skipped.unwrap();
    assert!(damage.what.ends_with("its table does not"), "{damage}");
}

#[test]
fn manifests_with_arbitrary_references_are_harmless() {
    let untouched = taken(TAKEN);
    let blobs = loaded(&untouched).unwrap().blobs;
    let file_bytes = untouched.files()[&name(TAKEN)].len() as u64;
    let (table, _) = parts_of(&untouched.files()[&name(TAKEN)]);
    let words = || WORDS.into_iter().chain([TAKEN - 1, TAKEN, table as u64, file_bytes]);
    for file in words() {
        for offset in words() {
            for bytes in words().filter_map(|word| u32::try_from(word).ok()) {
                let mut hostile = blobs.clone();
                let good = hostile[&3];
                hostile.insert(3, Blob { file, offset, bytes, ..good });
                let probe = copy(&untouched);
                probe.edit(&name(TAKEN), |content| {
                    let (_, manifest) = parts_of(content);
                    content.truncate(manifest);
                    content.extend(manifest_of(&hostile));
                    let length = content.len() as u64;
                    content[BYTES..BYTES + 8].copy_from_slice(&length.to_le_bytes());
                    fix(content);
                });
                let context = format!("file {file}, offset {offset}, {bytes} bytes");
                assert_eq!(outcome(&probe, &context), Outcome::Older, "{context}");
            }
        }
    }
}

/// The written format is the documented one: the checksums computed here match those on disk.
#[test]
fn the_documented_checksums_are_those_on_disk() {
    for (name, content) in taken(TAKEN).files() {
        assert_eq!((&content[..8], &content[UUID_AT..NUMBER]), (&b"sureqckp"[..], &UUID[..]));
        assert_eq!(u64_at(&content, BYTES), content.len() as u64);
        let mut fixed = content.to_vec();
        fix(&mut fixed);
        assert!(fixed == *content, "{name}");
    }
}
