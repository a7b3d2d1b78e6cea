//! Shared by the tests of the log: runs that record which batches are durable, and recoveries that check the batches.

#![allow(dead_code, unreachable_pub, reason = "each test file uses its part of this")]

use sureq_engine::fault::{Damage, OpenError};
use sureq_engine::log::{
    Durability, FrameBuf, LogOptions, Position, Recovered, ReplayFrame, Writer, recover, scan,
};
use sureq_testkit::sim_disk::SimDisk;

pub const UUID: [u8; 16] = *b"a store of tests";

/// Options for small segments, of which none has to exist yet.
pub fn options(segment_bytes: u64) -> LogOptions {
    LogOptions { segment_bytes, spare_segments: 1, may_be_new: true, ..LogOptions::new(UUID) }
}

/// The batch with this index. Its length and content depend on the index.
pub fn batch(index: usize) -> Vec<u8> {
    let bytes = 1 + index * 37 % 150;
    (0..bytes).map(|at| (index * 7 + at) as u8).collect()
}

/// The number of events of the batch with this index.
pub fn events(index: usize) -> u32 {
    1 + index as u32 % 3
}

/// The position after this many batches.
pub fn position(batches: usize) -> Position {
    Position((batches / 3 * 6 + [0, 1, 3][batches % 3]) as u64)
}

/// A log that is being written, and a record of which batches were durable when.
pub struct Run {
    pub disk: SimDisk,
    pub options: LogOptions,
    pub durability: Durability,
    pub batches: Vec<Vec<u8>>,
    /// After this many changes of the disk, this many batches were confirmed as durable.
    promises: Vec<(usize, usize)>,
}

impl Run {
    pub fn new(segment_bytes: u64, durability: Durability) -> Run {
        let disk = SimDisk::new(1);
        Run { disk, options: options(segment_bytes), durability, batches: Vec::new(), promises: vec![(0, 0)] }
    }

    /// Opens the log, appends this many batches, syncs as the durability level demands, and stops without closing it.
    pub fn session(&mut self, batches: usize) -> &mut Run {
        let all = (0..batches).map(|more| batch(self.batches.len() + more)).collect();
        self.session_of(all)
    }

    /// Opens the log, appends these batches, and stops without closing it.
    pub fn session_of(&mut self, batches: Vec<Vec<u8>>) -> &mut Run {
        let mut writer = self.start();
        for body in batches {
            append(&mut writer, self.batches.len(), &body);
            self.batches.push(body);
            let syncs = match self.durability {
                Durability::Always => true,
                Durability::Interval => self.batches.len().is_multiple_of(7),
                Durability::None => false,
            };
            if syncs {
                writer.sync().unwrap();
                self.promise();
            }
        }
        self
    }

    /// Recovers all batches, since no power was cut. All of them are durable then.
    fn start(&mut self) -> Writer {
        let (list, recovered) = recovered(&self.disk, &self.options).unwrap();
        assert_eq!(list, self.batches);
        self.promise();
        while recovered.spares.wanted() > 0 {
            recovered.spares.prepare().unwrap();
        }
        recovered.writer
    }

    fn promise(&mut self) {
        self.promises.push((self.disk.trace_len(), self.batches.len()));
    }

    /// The number of batches that were confirmed before the change with this index ended.
    pub fn promised(&self, change: usize) -> usize {
        self.promises.iter().rev().find(|(changes, _)| *changes <= change).unwrap().1
    }

    /// Fails unless `list` is a prefix of the appended batches, and has at least this many.
    pub fn assert_legal(&self, list: &[Vec<u8>], at_least: usize, context: &str) {
        assert!(self.batches.starts_with(list), "not a prefix: {context}");
        assert!(list.len() >= at_least, "{} of {at_least} promised batches: {context}", list.len());
    }

    /// The names of the segments, in order.
    pub fn segments(&self) -> Vec<String> {
        self.disk.files().into_keys().filter(|name| name.starts_with('0')).collect()
    }

    /// The name of the open segment.
    pub fn last(&self) -> String {
        self.segments().pop().unwrap()
    }

    /// A separate disk with the same files.
    pub fn copy(&self) -> SimDisk {
        SimDisk::with_files(99, &self.disk.files())
    }
}

/// Appends the batch with this index.
pub fn append(writer: &mut Writer, index: usize, body: &[u8]) {
    let mut frame = FrameBuf::new();
    frame.extend(body);
    assert_eq!(writer.end(), position(index));
    writer.append(&mut frame, events(index)).unwrap();
    assert_eq!(frame.body(), body, "the buffer still holds the batch");
}

/// Recovers the log. Checks the positions of its batches, and returns them and the log.
pub fn recovered(disk: &SimDisk, options: &LogOptions) -> Result<(Vec<Vec<u8>>, Recovered), OpenError> {
    let mut list = Vec::new();
    let recovered = recover(&disk.shared(), options, &mut |frame: ReplayFrame<'_>| {
        assert_eq!((frame.first, frame.events), (position(list.len()), events(list.len())));
        list.push(frame.body.to_vec());
        Ok(())
    })?;
    assert_eq!(recovered.end, position(list.len()));
    Ok((list, recovered))
}

/// Recovers the log and returns its batches.
pub fn batches_in(disk: &SimDisk, options: &LogOptions) -> Result<Vec<Vec<u8>>, OpenError> {
    recovered(disk, options).map(|(list, _)| list)
}

/// Reads the log without changing anything, and returns the number of batches, which must be a prefix of `expected`.
pub fn count_in(disk: &SimDisk, options: &LogOptions, expected: &[Vec<u8>]) -> Result<usize, OpenError> {
    let mut count = 0;
    scan(disk, options, &mut |frame: ReplayFrame<'_>| {
        assert!(
            expected.get(count).is_some_and(|body| body == frame.body),
            "batch {count} is not what was appended"
        );
        count += 1;
        Ok(())
    })?;
    Ok(count)
}

/// Fails unless a recovery refuses because of damage and has changed nothing. Returns the damage.
pub fn refusal(disk: &SimDisk, options: &LogOptions) -> Damage {
    let before = disk.trace_len();
    let error = batches_in(disk, options).expect_err("a refusal");
    assert_eq!(disk.trace_len(), before, "a refusal changes nothing");
    match error {
        OpenError::Damaged(damage) => damage,
        other => panic!("not a refusal because of damage: {other}"),
    }
}

/// Fails unless the log accepts another batch, and has all batches after a restart.
pub fn assert_goes_on(disk: &SimDisk, options: &LogOptions, list: &[Vec<u8>]) {
    let (before, mut recovered) = recovered(disk, options).unwrap();
    assert_eq!(before, list);
    let more = b"one more".to_vec();
    append(&mut recovered.writer, list.len(), &more);
    assert_eq!(recovered.writer.sync().unwrap(), position(list.len() + 1));
    let after = batches_in(disk, options).unwrap();
    assert_eq!((&after[..list.len()], &after[list.len()..]), (list, &[more][..]));
}
