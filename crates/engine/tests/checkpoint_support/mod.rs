//! Shared by the tests of checkpoints: states that depend on their position, and functions that take and load them.

#![allow(dead_code, unreachable_pub, reason = "each test file uses its part of this")]

use std::collections::BTreeMap;

use sureq_engine::checkpoint::{Blob, Checkpoints, Loaded, Restored};
use sureq_engine::fault::{Damage, OpenError};
use sureq_engine::log::{LogError, Position};
use sureq_testkit::sim_disk::{Crash, Op, SimDisk};

pub const UUID: [u8; 16] = *b"a store of tests";

/// The contents of a checkpoint in these tests.
pub type Parts = BTreeMap<u32, Vec<u8>>;

/// The state at a position. One of five parts changes at a time, so that most of a state is shared with earlier ones;
/// a sixth is only in every fourth state, so that files become sparse.
pub fn parts_at(position: u64) -> Parts {
    let part = |part: u64, version: u64| {
        let bytes = 300 + (part * 61 + version * 37) % 90;
        (part as u32, (0..bytes).map(|at| (part * 31 + version * 7 + at) as u8).collect())
    };
    let steady = (0..5).map(|number| part(number, (position + number) / 5));
    steady.chain(position.is_multiple_of(4).then(|| part(5, position))).collect()
}

/// The checkpoints of a disk, and the state in the newest of them.
pub struct Session {
    pub checkpoints: Checkpoints,
    pub position: u64,
    pub parts: Parts,
    pub blobs: BTreeMap<u32, Blob>,
    pub skipped: Option<Damage>,
}

impl Session {
    /// Opens and loads; the start of the log if there is no checkpoint.
    pub fn start(disk: &SimDisk) -> Result<Session, OpenError> {
        let mut checkpoints = Checkpoints::open(disk.shared(), UUID)?;
        let restored = checkpoints.load(read_parts)?;
        let Some(Restored { value: (parts, blobs), position, skipped, .. }) = restored else {
            let (parts, blobs) = (Parts::new(), BTreeMap::new());
            return Ok(Session { checkpoints, position: 0, parts, blobs, skipped: None });
        };
        Ok(Session { checkpoints, position: position.0, parts, blobs, skipped })
    }

    /// Takes a checkpoint of the next position.
    pub fn next(&mut self) -> Result<(), LogError> {
        self.take(self.position + 1, parts_at(self.position + 1))
    }

    /// Takes a checkpoint that shares unchanged parts.
    pub fn take(&mut self, position: u64, parts: Parts) -> Result<(), LogError> {
        let mut shared = self.blobs.clone();
        shared.retain(|part, _| parts.get(part).is_some_and(|bytes| *bytes == self.parts[part]));
        let sparse = self.checkpoints.sparse(&shared.values().copied().collect::<Vec<_>>());
        shared.retain(|_, blob| !sparse.contains(&blob.file));
        let mut pace = |_| {};
        let mut draft = self.checkpoints.begin(Position(position), &mut pace)?;
        let mut blobs = BTreeMap::new();
        for (&part, bytes) in &parts {
            let blob = match shared.get(&part) {
                Some(&blob) => blob,
                None => draft.write(bytes)?,
            };
            blobs.insert(part, blob);
        }
        let shared: Vec<Blob> = blobs.values().copied().collect();
        draft.finish(&manifest_of(&blobs), &shared)?;
        (self.position, self.parts, self.blobs) = (position, parts, blobs);
        Ok(())
    }
}

pub fn manifest_of(blobs: &BTreeMap<u32, Blob>) -> Vec<u8> {
    let mut manifest = Vec::new();
    for (part, blob) in blobs {
        manifest.extend(part.to_le_bytes());
        blob.encode(&mut manifest);
    }
    manifest
}

fn parse_manifest(mut manifest: &[u8]) -> Option<BTreeMap<u32, Blob>> {
    let mut blobs = BTreeMap::new();
    while !manifest.is_empty() {
        let part = u32::from_le_bytes(*manifest.split_off(..4)?.first_chunk()?);
        blobs.insert(part, Blob::decode(&mut manifest)?);
    }
    Some(blobs)
}

pub fn read_parts(loaded: &Loaded<'_>) -> Result<(Parts, BTreeMap<u32, Blob>), OpenError> {
    let Some(blobs) = parse_manifest(&loaded.manifest) else {
        return Err(loaded.refuse_manifest("not a list of parts".into()));
    };
    let keys: Vec<u32> = blobs.keys().copied().collect();
    let mut parts = Parts::new();
    loaded.read_blobs(&blobs.values().copied().collect::<Vec<_>>(), &mut |index, bytes| {
        assert_eq!(index, parts.len(), "in the order asked for");
        parts.insert(keys[index], bytes.to_vec());
        Ok(())
    })?;
    Ok((parts, blobs))
}

/// A disk on which this many checkpoints were taken.
pub fn taken(checkpoints: u64) -> SimDisk {
    let disk = SimDisk::new(1);
    let mut session = Session::start(&disk).unwrap();
    for _ in 0..checkpoints {
        session.next().unwrap();
    }
    disk
}

/// Loads the newest checkpoint, and fails unless it is the state of its position. Changes nothing.
pub fn loaded(disk: &SimDisk) -> Result<Session, OpenError> {
    let before = disk.trace_len();
    let session = Session::start(disk)?;
    assert_eq!(disk.trace_len(), before, "loading changes nothing");
    let expected = if session.position == 0 { Parts::new() } else { parts_at(session.position) };
    assert!(session.parts == expected, "not the state at {}", session.position);
    Ok(session)
}

/// Loads the newest checkpoint, which must be sound, and returns its position.
pub fn position_in(disk: &SimDisk, context: &str) -> u64 {
    let session = loaded(disk).unwrap_or_else(|error| panic!("{context}: {error}"));
    assert_eq!(session.skipped, None, "{context}");
    session.position
}

/// Fails unless a start refuses because of damage and has changed nothing. Returns the damage.
pub fn refusal(disk: &SimDisk) -> Damage {
    match loaded(disk).err().expect("a refusal") {
        OpenError::Damaged(damage) => damage,
        other => panic!("not a refusal because of damage: {other}"),
    }
}

/// A separate disk with the same files.
pub fn copy(disk: &SimDisk) -> SimDisk {
    SimDisk::with_files(99, &disk.files())
}

/// The files of checkpoints, in order.
pub fn names(disk: &SimDisk) -> Vec<String> {
    disk.files().into_keys().filter(|name| name.starts_with("checkpoint")).collect()
}

/// The name of the checkpoint with this number.
pub fn name(number: u64) -> String {
    format!("checkpoint-{number:020}")
}

/// Calls `check` with the disk after each possible power cut during each change of `trace` on `base`.
pub fn crash_everywhere(base: &SimDisk, trace: &[Op], mut check: impl FnMut(usize, Crash, SimDisk)) {
    for (change, op) in trace.iter().enumerate() {
        for crash in Crash::during(op, change as u64) {
            check(change, crash, base.crash_during(op, crash));
        }
        base.replay(op);
    }
}
