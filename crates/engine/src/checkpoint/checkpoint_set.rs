//! The files of checkpoints in the directory: those that are kept, that are needed for their blobs, that can be
//! removed.

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::format::{
    DRAFT_NAME, HEADER_BYTES, Header, Role, damage, decode_table, name_of, parse_name, unreadable,
};
use super::read::read_range;
use crate::disk::{Disk, DiskFile};
use crate::failpoint::failpoint;
use crate::fault::{Damage, Fault, OpenError};

/// The files, by number.
pub(super) struct CheckpointSet {
    pub(super) disk: Arc<dyn Disk>,
    files: BTreeMap<u64, CheckpointFile>,
    /// Numbers are not used twice, not even after the file was removed.
    last_number: u64,
    /// Whether an incomplete file has the name of the next draft.
    pub(super) has_draft: bool,
}

struct CheckpointFile {
    role: Role,
    bytes: u64,
    /// `None` if it is damaged. Blobs can be read if it is not.
    header: Option<Header>,
    /// The other files that it refers to, or the damage because of which a start cannot use it.
    verdict: Result<Vec<u64>, Damage>,
}

/// A checkpoint in which no damage was found so far.
#[derive(Clone, Copy)]
pub(super) struct Sound<'a> {
    pub(super) header: &'a Header,
    /// The other files that it refers to.
    pub(super) files: &'a [u64],
}

impl CheckpointSet {
    /// Reads the headers and tables of all files. Changes nothing.
    pub(super) fn scan(disk: Arc<dyn Disk>, uuid: [u8; 16]) -> Result<CheckpointSet, OpenError> {
        let (set, refused) = CheckpointSet::scan_past(disk, uuid)?;
        refused.into_iter().next().map_or(Ok(set), |(_, error)| Err(error))
    }

    /// Like [`Self::scan`], but skips files that a start refuses, and returns them with the reason.
    pub(super) fn scan_past(
        disk: Arc<dyn Disk>,
        uuid: [u8; 16],
    ) -> Result<(CheckpointSet, Vec<(String, OpenError)>), Fault> {
        let mut set = CheckpointSet { disk, files: BTreeMap::new(), last_number: 0, has_draft: false };
        let mut refused = Vec::new();
        for name in set.disk.list()? {
            set.has_draft |= name == DRAFT_NAME;
            let Some((number, role)) = parse_name(&name) else { continue };
            set.last_number = set.last_number.max(number);
            match (examine(&*set.disk, &name, number, role, uuid), set.files.entry(number)) {
                (Ok(file), Entry::Vacant(entry)) => drop(entry.insert(file)),
                (Err(error), _) => refused.push((name, error)),
                (Ok(_), Entry::Occupied(_)) => {
                    let twice = damage(&name, 0, "there is another file with its number");
                    refused.push((name, twice.into()));
                }
            }
        }
        set.condemn_incomplete();
        Ok((set, refused))
    }

    /// Marks checkpoints as unusable whose blobs are in missing or damaged files.
    fn condemn_incomplete(&mut self) {
        let incomplete: Vec<_> = self
            .kept()
            .filter_map(|sound| {
                let missing = sound.files.iter().find_map(|&file| self.fault_in_blobs_of(sound.header, file));
                missing.map(|damage| (sound.header.number, damage))
            })
            .collect();
        for (number, damage) in incomplete {
            self.condemn(number, damage);
        }
    }

    fn fault_in_blobs_of(&self, from: &Header, file: u64) -> Option<Damage> {
        let Some(file) = self.files.get(&file) else {
            let what = format!("it refers to checkpoint {file}, whose file is missing");
            return Some(damage(&self.name(from.number), from.table().start, what));
        };
        match (&file.header, &file.verdict) {
            (None, Err(damage)) => Some(damage.clone()),
            _ => None,
        }
    }

    /// The usable checkpoints, as far as is known, newest first.
    pub(super) fn kept(&self) -> impl Iterator<Item = Sound<'_>> {
        self.files.values().rev().filter_map(|file| {
            let header = file.header.as_ref()?;
            let files = file.verdict.as_ref().ok()?;
            (file.role == Role::Checkpoint).then_some(Sound { header, files })
        })
    }

    pub(super) fn newest(&self) -> Option<Sound<'_>> {
        self.kept().next()
    }

    /// The damages of unusable checkpoints, newest first.
    pub(super) fn damages(&self) -> impl Iterator<Item = (u64, &Damage)> {
        let checkpoints = self.files.iter().rev().filter(|(_, file)| file.role == Role::Checkpoint);
        checkpoints.filter_map(|(&number, file)| Some((number, file.verdict.as_ref().err()?)))
    }

    /// Marks a checkpoint as unusable.
    pub(super) fn condemn(&mut self, number: u64, damage: Damage) {
        if let Some(file) = self.files.get_mut(&number) {
            file.verdict = Err(damage);
        }
    }

    /// All files: number, length, role, and header unless it is damaged.
    pub(super) fn all(&self) -> impl Iterator<Item = (u64, u64, Role, Option<&Header>)> {
        self.files.iter().map(|(&number, file)| (number, file.bytes, file.role, file.header.as_ref()))
    }

    /// The header of a file, if it exists and is not damaged.
    pub(super) fn header(&self, number: u64) -> Option<&Header> {
        self.files.get(&number)?.header.as_ref()
    }

    /// The present name of a file.
    pub(super) fn name(&self, number: u64) -> String {
        name_of(number, self.files.get(&number).map_or(Role::Checkpoint, |file| file.role))
    }

    pub(super) fn any(&self) -> Option<u64> {
        self.files.keys().next().copied()
    }

    pub(super) fn open(&self, number: u64) -> Result<Box<dyn DiskFile>, Fault> {
        self.disk.open(&self.name(number))
    }

    pub(super) fn next_number(&self) -> u64 {
        self.last_number + 1
    }

    pub(super) fn bytes(&self) -> u64 {
        self.files.values().map(|file| file.bytes).sum()
    }

    /// Renames the draft, which is complete and synced, to its final name. Does not sync the directory.
    pub(super) fn place_draft(&mut self, header: Header, files: Vec<u64>) -> Result<(), Fault> {
        failpoint("checkpoint.before-rename");
        self.disk.rename(DRAFT_NAME, &name_of(header.number, Role::Checkpoint))?;
        failpoint("checkpoint.after-rename");
        self.has_draft = false;
        self.last_number = header.number;
        let file = CheckpointFile {
            role: Role::Checkpoint,
            bytes: header.bytes,
            header: Some(header),
            verdict: Ok(files),
        };
        self.files.insert(header.number, file);
        Ok(())
    }

    /// Removes an incomplete draft.
    pub(super) fn remove_draft(&mut self) -> Result<(), Fault> {
        if self.has_draft {
            self.disk.remove(DRAFT_NAME)?;
            self.has_draft = false;
            failpoint("checkpoint.draft-removed");
        }
        Ok(())
    }

    /// Removes all files except these checkpoints and the files that they refer to. Their names must be durable
    /// before, and at least one of them must be sound.
    pub(super) fn keep_only(&mut self, kept: &BTreeSet<u64>) -> Result<(), Fault> {
        let is_kept = |sound: &Sound<'_>| kept.contains(&sound.header.number);
        let needed: BTreeSet<u64> =
            self.kept().filter(is_kept).flat_map(|sound| sound.files).copied().collect();
        let others: Vec<(u64, Role)> = self
            .files
            .iter()
            .map(|(&number, file)| (number, file.role))
            .filter(|(number, _)| !kept.contains(number))
            .collect();
        let mut has_changed = false;
        for (number, role) in others {
            match (needed.contains(&number), role) {
                (true, Role::Blobs) => continue,
                (true, Role::Checkpoint) => self.demote(number)?,
                (false, _) => self.discard(number)?,
            }
            has_changed = true;
            failpoint("checkpoint.one-dropped");
        }
        failpoint("checkpoint.before-the-last-sync");
        if has_changed { self.disk.sync_dir() } else { Ok(()) }
    }

    /// Renames a checkpoint that is only needed for its blobs.
    fn demote(&mut self, number: u64) -> Result<(), Fault> {
        self.disk.rename(&name_of(number, Role::Checkpoint), &name_of(number, Role::Blobs))?;
        if let Some(file) = self.files.get_mut(&number) {
            file.role = Role::Blobs;
        }
        Ok(())
    }

    fn discard(&mut self, number: u64) -> Result<(), Fault> {
        self.disk.remove(&self.name(number))?;
        self.files.remove(&number);
        Ok(())
    }
}

fn examine(
    disk: &dyn Disk,
    name: &str,
    number: u64,
    role: Role,
    uuid: [u8; 16],
) -> Result<CheckpointFile, OpenError> {
    let file = disk.open(name)?;
    let bytes = file.len()?;
    let header = match read_header(&*file, name, number, bytes) {
        Err(OpenError::Damaged(damage)) => {
            return Ok(CheckpointFile { role, bytes, header: None, verdict: Err(damage) });
        }
        header => header?,
    };
    if header.uuid != uuid {
        return Err(damage(name, 0, "it belongs to another store").into());
    }
    let verdict = match role {
        Role::Checkpoint => match read_table(&*file, name, &header) {
            Err(OpenError::Damaged(damage)) => Err(damage),
            table => Ok(table?),
        },
        Role::Blobs => Ok(Vec::new()),
    };
    Ok(CheckpointFile { role, bytes, header: Some(header), verdict })
}

pub(super) fn read_header(
    file: &dyn DiskFile,
    name: &str,
    number: u64,
    bytes: u64,
) -> Result<Header, OpenError> {
    let mut head = [0; HEADER_BYTES];
    if file.read_at(0, &mut head).map_err(|fault| unreadable(name, 0, fault))? < HEADER_BYTES {
        return Err(damage(name, bytes, "it is shorter than its header").into());
    }
    Header::decode(&head, name, number, bytes)
}

pub(super) fn read_table(file: &dyn DiskFile, name: &str, header: &Header) -> Result<Vec<u64>, OpenError> {
    let bytes = read_range(file, name, header.table())?;
    let what = if crc32c::crc32c(&bytes) != header.table_crc {
        "the checksum of the table of files does not match"
    } else if let Some(files) = decode_table(&bytes, header.number) {
        return Ok(files);
    } else {
        "the table of files contradicts itself"
    };
    Err(damage(name, header.table().start, what).into())
}
