//! Reads a checkpoint: its manifest and its blobs, or all of its bytes if it is about to become the only one.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::ops::Range;

use super::Blob;
use super::checkpoint_set::{CheckpointSet, Sound, read_header, read_table};
use super::format::{Header, damage, unreadable};
use crate::disk::DiskFile;
use crate::fault::{OpenError, ReplayError};
use crate::log::Position;

/// Neighbouring blobs are read together up to this size, and content is verified in pieces of it.
const READ_BYTES: u64 = 1 << 20;
/// Reading a gap of this size costs no more than another read.
const GAP_BYTES: u64 = 64 << 10;

/// Receives a blob: its index in the request, and its bytes.
pub type VisitBlob<'a> = dyn FnMut(usize, &[u8]) -> Result<(), ReplayError> + 'a;

/// A checkpoint whose manifest was read and found sound.
pub struct Loaded<'a> {
    /// Its number, which is the `file` of the blobs that were written for it.
    pub number: u64,
    /// The checkpoint contains the events before this position.
    pub position: Position,
    /// The manifest that was passed to [`Draft::finish`](super::Draft::finish).
    pub manifest: Vec<u8>,
    header: &'a Header,
    /// The other files that it refers to.
    files: Vec<u64>,
    set: &'a CheckpointSet,
}

impl<'a> Loaded<'a> {
    pub(super) fn read(set: &'a CheckpointSet, sound: Sound<'a>) -> Result<Loaded<'a>, OpenError> {
        let header = sound.header;
        let manifest = read_manifest(&*set.open(header.number)?, &set.name(header.number), header)?;
        let files = sound.files.to_vec();
        Ok(Loaded { number: header.number, position: header.position, manifest, header, files, set })
    }

    /// Reads and verifies these blobs, and visits them in the order of `blobs`. Blobs that are adjacent both in
    /// `blobs` and in their file share large reads, so sort them if the order does not matter.
    ///
    /// A blob that differs from what was written is [`OpenError::Damaged`]; an error of `visit` is
    /// [`OpenError::Replay`].
    pub fn read_blobs(&self, blobs: &[Blob], visit: &mut VisitBlob<'_>) -> Result<(), OpenError> {
        let mut files = BTreeMap::new();
        let mut buffer = Vec::new();
        let mut first = 0;
        while first < blobs.len() {
            let count = self.neighbours(&blobs[first..])?;
            let run = &blobs[first..first + count];
            let number = run[0].file;
            let file: &mut Box<dyn DiskFile> = match files.entry(number) {
                Entry::Occupied(entry) => entry.into_mut(),
                Entry::Vacant(entry) => entry.insert(self.set.open(number)?),
            };
            let offset = run[0].offset;
            let end = run[count - 1].offset + u64::from(run[count - 1].bytes);
            buffer.resize((end - offset) as usize, 0);
            read_exactly(&**file, &self.set.name(number), offset, &mut buffer)?;
            for (index, blob) in run.iter().enumerate() {
                let begin = (blob.offset - offset) as usize;
                let bytes = &buffer[begin..begin + blob.bytes as usize];
                self.visit_verified(blob, bytes, first + index, visit)?;
            }
            first += count;
        }
        Ok(())
    }

    fn visit_verified(
        &self,
        blob: &Blob,
        bytes: &[u8],
        index: usize,
        visit: &mut VisitBlob<'_>,
    ) -> Result<(), OpenError> {
        let name = || self.set.name(blob.file);
        if crc32c::crc32c(bytes) != blob.crc {
            return Err(damage(&name(), blob.offset, "the checksum of a blob does not match").into());
        }
        visit(index, bytes).map_err(|source| OpenError::Replay {
            file: name(),
            offset: blob.offset,
            position: self.position,
            source,
        })
    }

    /// The number of leading blobs that can be read at once: at least one. Verifies that they are in the area of
    /// blobs.
    fn neighbours(&self, blobs: &[Blob]) -> Result<usize, OpenError> {
        let mut end = self.end_of(&blobs[0])?;
        let mut count = 1;
        for next in &blobs[1..] {
            let is_near = next.file == blobs[0].file && (end..=end + GAP_BYTES).contains(&next.offset);
            if !is_near {
                break;
            }
            end = self.end_of(next)?;
            if end - blobs[0].offset > READ_BYTES {
                break;
            }
            count += 1;
        }
        Ok(count)
    }

    /// The end of a blob. Fails if it is not in one of this checkpoint's files.
    fn end_of(&self, blob: &Blob) -> Result<u64, OpenError> {
        let is_ours = blob.file == self.number || self.files.binary_search(&blob.file).is_ok();
        let header = self.set.header(blob.file).filter(|_| is_ours);
        let own = self.set.name(self.number);
        let manifest = self.header.manifest().start;
        let Some(area) = header.map(Header::blobs) else {
            let what = format!("its manifest refers to checkpoint {}, its table does not", blob.file);
            return Err(damage(&own, manifest, what).into());
        };
        match blob.end() {
            Some(end) if blob.offset >= area.start && end <= area.end => Ok(end),
            _ => {
                let name = self.set.name(blob.file);
                let what =
                    format!("its manifest refers to offset {} of {name}, where no blob is", blob.offset);
                Err(damage(&own, manifest, what).into())
            }
        }
    }

    /// The error for a manifest that matches its checksum but cannot be used.
    pub fn refuse_manifest(&self, source: ReplayError) -> OpenError {
        OpenError::Replay {
            file: self.set.name(self.number),
            offset: self.header.manifest().start,
            position: self.position,
            source,
        }
    }
}

/// Reads all bytes of a checkpoint and of the files that it refers to, and compares them with their checksums.
pub(super) fn verify(set: &CheckpointSet, sound: Sound<'_>) -> Result<(), OpenError> {
    verify_blobs(set, sound.header)?;
    verify_rest(set, sound.header)?;
    for &number in sound.files {
        match set.header(number) {
            Some(header) => verify_blobs(set, header)?,
            None => return Err(damage(&set.name(number), 0, "its header is damaged").into()),
        }
    }
    Ok(())
}

/// Reads the table and the manifest of a checkpoint, and compares them with their checksums.
pub(super) fn verify_rest(set: &CheckpointSet, header: &Header) -> Result<(), OpenError> {
    let (file, name) = (set.open(header.number)?, set.name(header.number));
    read_table(&*file, &name, header)?;
    read_manifest(&*file, &name, header)?;
    Ok(())
}

/// Reads all blobs of a file, and compares them with their checksum.
pub(super) fn verify_blobs(set: &CheckpointSet, header: &Header) -> Result<(), OpenError> {
    let name = set.name(header.number);
    let file = set.open(header.number)?;
    if read_header(&*file, &name, header.number, file.len()?)? != *header {
        return Err(damage(&name, 0, "its header has changed").into());
    }
    let mut crc = 0;
    let Range { start: mut offset, end } = header.blobs();
    while offset < end {
        let next = end.min(offset + READ_BYTES);
        crc = crc32c::crc32c_append(crc, &read_range(&*file, &name, offset..next)?);
        offset = next;
    }
    if crc != header.blobs_crc {
        return Err(damage(&name, header.blobs().start, "the checksum of the blobs does not match").into());
    }
    Ok(())
}

fn read_manifest(file: &dyn DiskFile, name: &str, header: &Header) -> Result<Vec<u8>, OpenError> {
    let manifest = read_range(file, name, header.manifest())?;
    if crc32c::crc32c(&manifest) != header.manifest_crc {
        let what = "the checksum of the manifest does not match";
        return Err(damage(name, header.manifest().start, what).into());
    }
    Ok(manifest)
}

/// A range that was compared with the file's length before.
pub(super) fn read_range(file: &dyn DiskFile, name: &str, range: Range<u64>) -> Result<Vec<u8>, OpenError> {
    let mut bytes = vec![0; (range.end - range.start) as usize];
    read_exactly(file, name, range.start, &mut bytes)?;
    Ok(bytes)
}

fn read_exactly(file: &dyn DiskFile, name: &str, offset: u64, into: &mut [u8]) -> Result<(), OpenError> {
    // An unreadable checkpoint is treated as damaged: the other one is used.
    let read = file.read_at(offset, into).map_err(|fault| unreadable(name, offset, fault))?;
    if read < into.len() {
        return Err(damage(name, offset + read as u64, "the file has become shorter").into());
    }
    Ok(())
}
