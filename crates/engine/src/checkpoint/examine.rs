//! Examines each checkpoint of a store independently of the others, for tools that do not open the store.

use std::collections::BTreeSet;
use std::sync::Arc;

use super::checkpoint_set::{CheckpointSet, Sound, read_table};
use super::format::{Header, Role, damage};
use super::read::{Loaded, verify, verify_blobs, verify_rest};
use super::{Checkpoints, DRAFT_NAME};
use crate::disk::Disk;
use crate::fault::{Damage, Fault, OpenError};
use crate::log::Position;

/// The result of reading all bytes of a checkpoint's file.
#[derive(Debug)]
pub(crate) struct Examined {
    pub(crate) name: String,
    pub(crate) bytes: u64,
    /// Whether a start can use it, according to its name; otherwise it is kept for its blobs.
    pub(crate) is_checkpoint: bool,
    /// Its position, if its header is sound.
    pub(crate) position: Option<Position>,
    /// Whether a checkpoint refers to it, or it is one.
    pub(crate) is_needed: bool,
    pub(crate) damages: Vec<Damage>,
}

/// Whether a file of this name is an incomplete checkpoint.
pub(crate) fn is_draft_name(name: &str) -> bool {
    name == DRAFT_NAME
}

impl Checkpoints {
    /// Finds the checkpoints of a store as [`Checkpoints::open`] does, but skips files that it would refuse, and
    /// returns their names and the reasons.
    pub(crate) fn look(
        disk: Arc<dyn Disk>,
        uuid: [u8; 16],
    ) -> Result<(Checkpoints, Vec<(String, OpenError)>), Fault> {
        let (set, refused) = CheckpointSet::scan_past(disk, uuid)?;
        Ok((Checkpoints { set, uuid, relies_on_newest: false, is_poisoned: false }, refused))
    }

    /// Reads all bytes of all files and compares them with their checksums.
    pub(crate) fn examine(&self, read: &mut dyn FnMut(u64)) -> Vec<Examined> {
        let mut needed = BTreeSet::new();
        for (number, _, role, header) in self.set.all() {
            if role == Role::Checkpoint {
                needed.insert(number);
                needed.extend(header.and_then(|header| self.table(header).ok()).unwrap_or_default());
            }
        }
        let condemned: Vec<Damage> = self.set.damages().map(|(_, damage)| damage.clone()).collect();
        let files = self.set.all().map(|(number, bytes, role, header)| {
            let name = self.set.name(number);
            let mut damages: Vec<Damage> =
                condemned.iter().filter(|damage| damage.file == name).cloned().collect();
            if let Some(header) = header {
                damages.extend(self.damages_in(header, role).filter(|found| {
                    let is_same = |known: &Damage| (&known.file, known.offset) == (&found.file, found.offset);
                    !condemned.iter().any(is_same)
                }));
            } else if damages.is_empty() {
                damages.push(damage(&name, 0, "its header is damaged"));
            }
            read(bytes);
            Examined {
                name,
                bytes,
                is_checkpoint: role == Role::Checkpoint,
                position: header.map(|header| header.position),
                is_needed: needed.contains(&number),
                damages,
            }
        });
        files.collect()
    }

    fn damages_in(&self, header: &Header, role: Role) -> impl Iterator<Item = Damage> {
        let blobs = verify_blobs(&self.set, header);
        let rest = if role == Role::Checkpoint { verify_rest(&self.set, header) } else { Ok(()) };
        [blobs, rest].into_iter().filter_map(|verified| match verified {
            Ok(()) => None,
            Err(OpenError::Damaged(damage)) => Some(damage),
            Err(error) => Some(damage(&self.set.name(header.number), 0, error.to_string())),
        })
    }

    /// The numbers of the checkpoints that a start could use, newest first.
    pub(crate) fn numbers(&self) -> Vec<u64> {
        let all = self.set.all().filter(|(_, _, role, _)| *role == Role::Checkpoint);
        let mut numbers: Vec<u64> = all.map(|(number, ..)| number).collect();
        numbers.reverse();
        numbers
    }

    /// The positions of all checkpoints with a sound header, damaged ones included.
    pub(crate) fn positions(&self) -> impl Iterator<Item = Position> {
        let all = self.set.all().filter(|(_, _, role, _)| *role == Role::Checkpoint);
        all.filter_map(|(.., header)| Some(header?.position))
    }

    /// Calls `build` to restore a state from this checkpoint and no other.
    pub(crate) fn load_one<T>(
        &self,
        number: u64,
        build: impl FnOnce(&Loaded<'_>) -> Result<T, OpenError>,
    ) -> Result<T, OpenError> {
        let mut kept = self.set.kept();
        if let Some(sound) = kept.find(|sound| sound.header.number == number) {
            return build(&Loaded::read(&self.set, sound)?);
        }
        let mut damages = self.set.damages();
        let found = damages.find(|(damaged, _)| *damaged == number).map(|(_, damage)| damage.clone());
        let missing = || damage(&self.set.name(number), 0, "the file is missing");
        Err(found.unwrap_or_else(missing).into())
    }

    /// Like [`Self::load_one`], but the files that it refers to may be damaged or missing: only its manifest must be
    /// sound.
    pub(crate) fn load_part<T>(
        &self,
        number: u64,
        build: impl FnOnce(&Loaded<'_>) -> Result<T, OpenError>,
    ) -> Result<T, OpenError> {
        let missing = || damage(&self.set.name(number), 0, "its header is damaged");
        let header = self.set.header(number).ok_or_else(missing)?;
        let files = self.table(header).unwrap_or_default();
        build(&Loaded::read(&self.set, Sound { header, files: &files })?)
    }

    fn table(&self, header: &Header) -> Result<Vec<u64>, OpenError> {
        let file = self.set.open(header.number)?;
        read_table(&*file, &self.set.name(header.number), header)
    }

    /// The name of the file of a checkpoint.
    pub(crate) fn name_of(&self, number: u64) -> String {
        self.set.name(number)
    }

    /// The position of a checkpoint, if its header is sound.
    pub(crate) fn position_of(&self, number: u64) -> Option<Position> {
        self.set.header(number).map(|header| header.position)
    }

    /// Whether every byte of a checkpoint, and of the files that it refers to, matches its checksum.
    pub(crate) fn is_whole(&self, number: u64) -> Result<bool, Fault> {
        let Some(sound) = self.set.kept().find(|sound| sound.header.number == number) else {
            return Ok(false);
        };
        match verify(&self.set, sound) {
            Ok(()) => Ok(true),
            Err(OpenError::Disk(fault)) => Err(fault),
            Err(_) => Ok(false),
        }
    }

    /// The name of a checkpoint's file, and of those that it refers to.
    pub(crate) fn files_of(&self, number: u64) -> Result<Vec<String>, OpenError> {
        let missing = || damage(&self.set.name(number), 0, "its header is damaged");
        let header = self.set.header(number).ok_or_else(missing)?;
        let files = self.table(header)?;
        Ok([number].into_iter().chain(files).map(|number| self.set.name(number)).collect())
    }
}
