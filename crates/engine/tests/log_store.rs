//! The `store` file: its values never go back, whether a write is torn, a bit flips or the power is cut.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::sync::Arc;

use sureq_engine::fault::OpenError;
use sureq_engine::log::LogError;
use sureq_engine::store::{Store, StoreValues};
use sureq_testkit::sim_disk::{Crash, FailureKind, Repeat, SimDisk};

fn open(disk: &SimDisk) -> Result<Store, OpenError> {
    Store::open(&disk.shared())
}

/// The values after this many updates.
fn nth(store: &Store, n: u64) -> StoreValues {
    StoreValues { incarnation: n, id_mark: n * 1000, log_time: n * 7, ..*store.values() }
}

/// A store after this many updates.
fn updated(disk: &SimDisk, updates: u64) -> Store {
    let mut store = open(disk).unwrap();
    for n in 1..=updates {
        store.update(nth(&store, n)).unwrap();
    }
    store
}

#[test]
fn a_new_store_has_an_identity_and_keeps_it() {
    let disk = SimDisk::new(1);
    let made = *open(&disk).unwrap().values();
    assert_ne!((made.uuid, made.hash_key), ([0; 16], [0; 16]));
    assert_eq!(made.incarnation, 0);
    assert_eq!(*open(&disk).unwrap().values(), made);
    assert_ne!(open(&SimDisk::new(2)).unwrap().values().uuid, made.uuid);
}

#[test]
fn a_power_cut_at_any_moment_loses_no_update() {
    let disk = SimDisk::new(1);
    let mut store = open(&disk).unwrap();
    let mut confirmed_at = vec![(disk.trace_len(), 0)];
    for n in 1..=5 {
        store.update(nth(&store, n)).unwrap();
        confirmed_at.push((disk.trace_len(), n));
    }
    let replayed = SimDisk::new(2);
    for (change, op) in disk.trace().iter().enumerate() {
        let confirmed = confirmed_at.iter().rev().find(|(changes, _)| *changes <= change).map(|&(_, n)| n);
        for crash in Crash::during(op, change as u64) {
            let after = open(&replayed.crash_during(op, crash)).unwrap();
            let found = after.values().incarnation;
            let next = confirmed.map_or(0, |n| n + 1);
            assert!((confirmed.unwrap_or(0)..=next).contains(&found), "change {change}, {crash:?}: {found}");
            if confirmed.is_some() {
                assert_eq!(*after.values(), nth(&store, found), "change {change}, {crash:?}");
            }
        }
        replayed.replay(op);
    }
}

#[test]
fn no_flipped_bit_loses_an_update() {
    for updates in 0..3 {
        let disk = SimDisk::new(1);
        let values = *updated(&disk, updates).values();
        let bits = disk.files()["store"].len() * 8;
        for bit in 0..bits {
            let flip = |bytes: &mut Vec<u8>| bytes[bit / 8] ^= 1 << (bit % 8);
            disk.edit("store", flip);
            assert_eq!(*open(&disk).unwrap().values(), values, "bit {bit}");
            disk.edit("store", flip);
        }
    }
}

#[test]
fn a_damaged_copy_is_healed_by_the_next_update() {
    for slot in [0, 4096] {
        let disk = SimDisk::new(1);
        updated(&disk, 1);
        disk.edit("store", |bytes| bytes[slot + 20] ^= 1);
        let mut store = open(&disk).unwrap();
        store.update(nth(&store, 2)).unwrap();
        disk.edit("store", |bytes| bytes[4096 - slot + 20] ^= 1);
        assert_eq!(open(&disk).unwrap().values().incarnation, 2);
    }
}

fn refusal(disk: &SimDisk) -> String {
    let before = disk.trace_len();
    let error = open(disk).err().expect("a refusal");
    assert_eq!(disk.trace_len(), before, "a refusal changes nothing");
    error.to_string()
}

#[test]
fn two_damaged_copies_are_refused_by_name() {
    let disk = SimDisk::new(1);
    updated(&disk, 2);
    disk.edit("store", |bytes| {
        bytes[20] ^= 1;
        bytes[4096 + 20] ^= 1;
    });
    assert!(refusal(&disk).starts_with("store is damaged"), "{}", refusal(&disk));
    disk.edit("store", Vec::clear);
    assert!(refusal(&disk).starts_with("store is damaged"));
}

#[test]
fn segments_without_a_store_are_refused() {
    let disk = SimDisk::new(1);
    disk.put("00000000000000000001.seg", Arc::new(vec![0; 4096]));
    assert!(refusal(&disk).contains("the file is missing, but 00000000000000000001.seg is there"));
}

#[test]
fn a_newer_format_is_refused_as_such() {
    let disk = SimDisk::new(1);
    updated(&disk, 1);
    disk.edit("store", |bytes| {
        bytes[8] = 3;
        let crc = crc32c::crc32c(&bytes[..124]);
        bytes[124..128].copy_from_slice(&crc.to_le_bytes());
    });
    assert!(
        refusal(&disk).starts_with("store has format 3, this release knows formats up to 2"),
        "{}",
        refusal(&disk)
    );
}

#[test]
fn a_failed_update_poisons_and_is_not_synced_again() {
    for call in 1..=4 {
        let disk = SimDisk::new(1);
        let mut store = updated(&disk, 1);
        disk.fail(disk.calls() + call, FailureKind::Broken, Repeat::Once);
        assert!(matches!(store.update(nth(&store, 2)), Err(LogError::Fault(_))));
        assert!(matches!(store.update(nth(&store, 2)), Err(LogError::Poisoned)));
        assert_eq!(disk.syncs_after_failure(), 0);
        disk.heal();
        assert!((1..=2).contains(&open(&disk).unwrap().values().incarnation));
    }
}
