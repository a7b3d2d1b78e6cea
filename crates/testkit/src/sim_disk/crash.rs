//! The effect of a power cut: on the write in progress, on unsynced data, and on names.

use super::Op;

/// How much of the write in progress reached the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Torn {
    /// The first bytes, up to this number.
    First(usize),
    /// All but the last byte.
    AllButOne,
}

/// The unsynced data that survives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kept {
    /// Nothing.
    Nothing,
    /// Everything.
    Everything,
    /// Of names, only the removal of files: their replacements do not exist.
    Removals,
    /// A part chosen by the seed, sector by sector and name by name; a sector has the content that it had after any
    /// of its writes.
    Some {
        /// The seed of the choice.
        seed: u64,
        /// The size of an atomic write.
        sector_bytes: usize,
    },
}

/// A power cut.
#[derive(Clone, Copy, Debug)]
pub struct Crash {
    /// The write in progress.
    pub torn: Torn,
    /// The content of files.
    pub content: Kept,
    /// Creates, renames and removes.
    pub names: Kept,
}

impl Crash {
    /// The crashes to try during `op`: unsynced data is lost, kept, or kept in part; a write in progress is torn at
    /// the places that have caused defects before.
    pub fn during(op: &Op, seed: u64) -> Vec<Crash> {
        use Kept::{Everything, Nothing};
        let some =
            |n: u64, sector_bytes| Kept::Some { seed: seed.wrapping_mul(31).wrapping_add(n), sector_bytes };
        let whole = Torn::First(usize::MAX);
        let mut crashes = vec![
            Crash { torn: whole, content: Nothing, names: Nothing },
            Crash { torn: whole, content: Nothing, names: Everything },
            Crash { torn: whole, content: Everything, names: Nothing },
            Crash { torn: whole, content: Everything, names: Everything },
            Crash { torn: whole, content: some(1, 512), names: some(2, 512) },
            Crash { torn: whole, content: some(3, 4096), names: some(4, 512) },
            Crash { torn: Torn::First(512), content: some(5, 512), names: some(6, 512) },
        ];
        if matches!(op, Op::Write { .. }) {
            let places =
                [Torn::First(0), Torn::First(1), Torn::First(512), Torn::First(4096), Torn::AllButOne];
            crashes.extend(places.map(|torn| Crash { torn, content: Everything, names: Everything }));
        }
        crashes
    }
}

impl Torn {
    pub(super) fn bytes_of(self, whole: usize) -> usize {
        match self {
            Torn::First(bytes) => bytes.min(whole),
            Torn::AllButOne => whole.saturating_sub(1),
        }
    }
}

impl Kept {
    /// Whether the write `index` of `writes` to `thing` has survived: the seed chooses how many of them did.
    pub(super) fn keeps(self, thing: u64, writes: u64, index: u64) -> bool {
        match self {
            Kept::Nothing | Kept::Removals => false,
            Kept::Everything => true,
            Kept::Some { seed, .. } => index < mix(seed ^ mix(thing)) % (writes + 1),
        }
    }

    pub(super) fn sector_bytes(self) -> u64 {
        match self {
            Kept::Nothing | Kept::Everything | Kept::Removals => u64::MAX,
            Kept::Some { sector_bytes, .. } => sector_bytes as u64,
        }
    }
}

/// The pieces of a write, one per sector.
pub(super) fn sectors(offset: u64, mut bytes: &[u8], sector_bytes: u64) -> Vec<(u64, &[u8])> {
    let mut pieces = Vec::new();
    let mut at = offset;
    while !bytes.is_empty() {
        let room = (sector_bytes - at % sector_bytes).min(bytes.len() as u64);
        let (piece, rest) = bytes.split_at(room as usize);
        pieces.push((at, piece));
        at += room;
        bytes = rest;
    }
    pieces
}

/// One step of splitmix64.
pub(super) fn mix(seed: u64) -> u64 {
    let mut z = seed.wrapping_add(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}
