//! After segments were removed, only checkpoints have their contents: each of the two kept ones is sufficient.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod engine_support;

use std::sync::Arc;
use std::time::{Duration, Instant};

use engine_support::{ack_of, execute, pop, push};
use sureq_core::Command;
use sureq_engine::disk::Disk;
use sureq_engine::{Engine, Options};
use sureq_testkit::manual_clock::ManualClock;
use sureq_testkit::sim_disk::SimDisk;
use sureq_testkit::valve::Valve;

const SEGMENT_BYTES: u64 = 64 << 10;
/// The number of finished tasks, and of the remaining ones, which make up most of a checkpoint.
const DONE: usize = 900;
const LEFT: usize = 1500;

fn open(disk: Arc<dyn Disk>) -> Engine {
    let options = Options { segment_bytes: Some(SEGMENT_BYTES), ..Options::default() };
    Engine::open_on(disk, Arc::new(ManualClock::default()), &options).unwrap()
}

fn payload(n: usize) -> Vec<u8> {
    format!("task {n}").into_bytes()
}

fn checkpoints(disk: &SimDisk) -> Vec<String> {
    disk.files().into_keys().filter(|name| name.starts_with("checkpoint-")).collect()
}

#[test]
fn no_flipped_bit_of_a_checkpoint_that_replaced_segments_is_a_loss() {
    let valve = Valve::new();
    let (disk, engine) = (&valve.disk, open(valve.shared()));
    // No checkpoint is completed before all commands, so that two are needed to remove the dead segments.
    valve.hold_compactor();
    let large = vec![b'x'; 1000];
    let ids: Vec<_> = (0..DONE).flat_map(|_| push(&engine, &[&large])).collect();
    let left: Vec<Vec<u8>> = (0..LEFT).map(payload).collect();
    let payloads: Vec<&[u8]> = left.iter().map(Vec::as_slice).collect();
    assert_eq!(pop(&engine, DONE as u32).len(), DONE);
    let ids: Vec<String> = ids.iter().map(ToString::to_string).collect();
    let ids: Vec<&[u8]> = ids.iter().map(String::as_bytes).collect();
    // In one batch, so that no other checkpoint contains any of them.
    let (replies, _) = execute(&engine, &[Command::Push { queue: b"q", payloads: &payloads }, ack_of(&ids)]);
    assert_eq!((replies.ids.len(), replies.indexes.len()), (LEFT, DONE));
    valve.release_compactor();
    let since = Instant::now();
    // Nothing more is logged, so that the last two were taken to free space.
    while engine.status().segments > 2 || engine.status().is_checkpointing || checkpoints(disk).len() != 2 {
        assert!(since.elapsed() < Duration::from_secs(20), "{:?}", engine.status());
        std::thread::yield_now();
    }
    engine.close().unwrap();
    for name in checkpoints(disk) {
        let bytes = disk.files()[&name].len();
        for at in (0..bytes).step_by(199) {
            let damaged = SimDisk::with_files(7, &disk.files());
            damaged.edit(&name, |bytes| bytes[at] ^= 4);
            let engine = open(damaged.shared());
            assert_eq!(pop(&engine, LEFT as u32), left, "{name}, byte {at} of {bytes}");
            engine.close().unwrap();
        }
    }
}
