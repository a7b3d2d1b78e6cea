//! The `store` file: the identity of the store, and the few numbers that must never go back. It is synced at every
//! durability level.
//!
//! It has two copies of the same values, each with a sequence number and a checksum. An update writes and syncs first
//! the older copy, then the other. One of them is intact at any time, and after an update both are, so that neither a
//! torn write nor one damaged copy loses an update.
//!
//! To change the layout: raise [`STORE_VERSION`], redraw docs/understand/log-format.md, keep decoding the old
//! version. Magic, version and the place of the checksum stay where they are for ever. Reserved bytes are written as
//! zero and ignored when read.

use std::sync::Arc;

use crate::checkpoint::is_checkpoint_name;
use crate::disk::{Disk, DiskFile};
use crate::failpoint::failpoint;
use crate::fault::{Damage, Fault, OpenError};
use crate::log::field::{get, get_u32, get_u64, put, put_u32, put_u64};
use crate::log::{LogError, is_segment_name};
use crate::offline::unfinished;

/// The format of the `store` file that this release writes. It is 2 since old segments are removed: a release without
/// checkpoints must not open such a store.
pub const STORE_VERSION: u32 = 2;

pub(crate) const NAME: &str = "store";
/// The name of the file until it is complete.
pub(crate) const NEW_NAME: &str = "store.new";

const MAGIC_VALUE: [u8; 8] = *b"sureqsto";

const MAGIC: usize = 0;
const VERSION: usize = MAGIC + 8;
const RESERVED_WORD: usize = VERSION + 4;
const SEQUENCE: usize = RESERVED_WORD + 4;
const UUID: usize = SEQUENCE + 8;
const INCARNATION: usize = UUID + 16;
const ID_MARK: usize = INCARNATION + 8;
const LOG_TIME: usize = ID_MARK + 8;
const HASH_KEY: usize = LOG_TIME + 8;
const RESERVED: usize = HASH_KEY + 16;
const CRC: usize = RESERVED + 44;
const SLOT_BYTES: usize = CRC + 4;

const _: () = assert!(SLOT_BYTES == 128);

/// The copies are in different pages, so that no torn write affects both.
const SLOT_OFFSETS: [u64; 2] = [0, 4096];

/// The content of the `store` file: the identity of the store, and counters that never decrease.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StoreValues {
    /// The identity of the store, drawn when it was created.
    pub uuid: [u8; 16],
    /// The incarnation of the last start; zero before the first.
    pub incarnation: u64,
    /// No id at or above this mark has been assigned.
    pub id_mark: u64,
    /// The log time in milliseconds, at least every ten seconds.
    pub log_time: u64,
    /// The key of the payload hashes, drawn when the store was created.
    pub hash_key: [u8; 16],
}

/// The open `store` file.
pub struct Store {
    file: Box<dyn DiskFile>,
    values: StoreValues,
    sequence: u64,
    /// The slot that the next update writes first: the older or damaged one.
    stale: usize,
    poisoned: bool,
}

impl Store {
    /// Opens the store in `disk`, or creates one if there are neither segments nor checkpoints.
    pub fn open(disk: &Arc<dyn Disk>) -> Result<Store, OpenError> {
        let names = disk.list()?;
        unfinished::refuse(&**disk)?;
        if !names.iter().any(|name| name == NAME) {
            let is_of_a_store = |name: &&String| is_segment_name(name) || is_checkpoint_name(name);
            if let Some(name) = names.iter().find(is_of_a_store) {
                return Err(damaged(&format!("the file is missing, but {name} is there")));
            }
            create(&**disk, names.iter().any(|name| name == NEW_NAME))?;
        }
        let file = disk.open(NAME)?;
        match [read_slot(&*file, 0)?, read_slot(&*file, 1)?] {
            [None, None] => Err(damaged("the checksums of both copies do not match")),
            [Some(a), Some(b)] if a.values.uuid != b.values.uuid => {
                Err(damaged("its copies belong to different stores"))
            }
            [a, b] => {
                let stale = usize::from(sequence_of(a) > sequence_of(b));
                let newest = if stale == 1 { a } else { b }.expect("a missing slot is never the newer one");
                Ok(Store { file, values: newest.values, sequence: newest.sequence, stale, poisoned: false })
            }
        }
    }

    pub fn values(&self) -> &StoreValues {
        &self.values
    }

    /// Stores `values` durably. After a failure the store is poisoned, as the log is.
    pub fn update(&mut self, values: StoreValues) -> Result<(), LogError> {
        if self.poisoned {
            return Err(LogError::Poisoned);
        }
        let bytes = encode_slot(&values, self.sequence.saturating_add(1));
        for slot in [self.stale, 1 - self.stale] {
            if let Err(fault) =
                self.file.write_at(SLOT_OFFSETS[slot], &bytes).and_then(|()| self.file.sync_data())
            {
                self.poisoned = true;
                return Err(fault.into());
            }
            failpoint("store.one-written");
        }
        self.values = values;
        self.sequence = self.sequence.saturating_add(1);
        Ok(())
    }
}

/// One of the two copies.
#[derive(Clone, Copy, Debug)]
pub(crate) struct StoreCopy {
    pub(crate) sequence: u64,
    pub(crate) values: StoreValues,
}

/// Both copies as they are, `None` for one that does not match its checksum; nothing at all if there is no such file.
pub(crate) fn read_copies(disk: &dyn Disk) -> Result<Option<[Option<StoreCopy>; 2]>, OpenError> {
    if !disk.list()?.iter().any(|name| name == NAME) {
        return Ok(None);
    }
    let file = disk.open(NAME)?;
    Ok(Some([read_slot(&*file, 0)?, read_slot(&*file, 1)?]))
}

/// The offsets of both copies.
pub(crate) const COPY_OFFSETS: [u64; 2] = SLOT_OFFSETS;

/// Creates the file with these values. This is the last step of creating a store, since a directory without it is none.
pub(crate) fn create_with(disk: &dyn Disk, values: &StoreValues) -> Result<(), Fault> {
    let bytes = encode_slot(values, 1);
    let file = disk.create(NEW_NAME)?;
    for offset in SLOT_OFFSETS {
        file.write_at(offset, &bytes)?;
    }
    file.sync_data()?;
    drop(file);
    disk.rename(NEW_NAME, NAME)?;
    disk.sync_dir()
}

/// The sequence number of a slot. A damaged one counts as older than any.
fn sequence_of(slot: Option<StoreCopy>) -> Option<u64> {
    slot.map(|slot| slot.sequence)
}

fn create(disk: &dyn Disk, has_leftover: bool) -> Result<(), Fault> {
    if has_leftover {
        disk.remove(NEW_NAME)?;
    }
    let values = StoreValues { uuid: disk.entropy()?, hash_key: disk.entropy()?, ..StoreValues::default() };
    create_with(disk, &values)
}

fn encode_slot(values: &StoreValues, sequence: u64) -> [u8; SLOT_BYTES] {
    let mut bytes = [0; SLOT_BYTES];
    put(&mut bytes, MAGIC, MAGIC_VALUE);
    put_u32(&mut bytes, VERSION, STORE_VERSION);
    put_u64(&mut bytes, SEQUENCE, sequence);
    put(&mut bytes, UUID, values.uuid);
    put_u64(&mut bytes, INCARNATION, values.incarnation);
    put_u64(&mut bytes, ID_MARK, values.id_mark);
    put_u64(&mut bytes, LOG_TIME, values.log_time);
    put(&mut bytes, HASH_KEY, values.hash_key);
    let crc = crc32c::crc32c(&bytes[..CRC]);
    put_u32(&mut bytes, CRC, crc);
    bytes
}

/// The slot, or none if it does not match its checksum.
fn read_slot(file: &dyn DiskFile, slot: usize) -> Result<Option<StoreCopy>, OpenError> {
    let mut bytes = [0; SLOT_BYTES];
    let read = file.read_at(SLOT_OFFSETS[slot], &mut bytes)?;
    let is_whole = read == SLOT_BYTES
        && get::<8>(&bytes, MAGIC) == MAGIC_VALUE
        && get_u32(&bytes, CRC) == crc32c::crc32c(&bytes[..CRC]);
    if !is_whole {
        return Ok(None);
    }
    let found = get_u32(&bytes, VERSION);
    if found > STORE_VERSION {
        return Err(OpenError::NewerFormat { file: NAME.to_owned(), found, known: STORE_VERSION });
    }
    let values = StoreValues {
        uuid: get(&bytes, UUID),
        incarnation: get_u64(&bytes, INCARNATION),
        id_mark: get_u64(&bytes, ID_MARK),
        log_time: get_u64(&bytes, LOG_TIME),
        hash_key: get(&bytes, HASH_KEY),
    };
    Ok(Some(StoreCopy { sequence: get_u64(&bytes, SEQUENCE), values }))
}

fn damaged(what: &str) -> OpenError {
    Damage { file: NAME.to_owned(), offset: 0, position: None, what: what.to_owned() }.into()
}
