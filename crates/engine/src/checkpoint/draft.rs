//! A checkpoint that is being written. It is written in pieces between which the caller can pause, and synced as it
//! grows, so that no sync takes long and delays those of the log.

use std::collections::BTreeSet;
use std::io;

use super::format::{DRAFT_NAME, HEADER_BYTES, Header, encode_table};
use super::{Blob, Checkpoints};
use crate::disk::DiskFile;
use crate::failpoint::failpoint;
use crate::fault::{Fault, Operation};
use crate::log::{LogError, Position};

/// The size of a write. Larger ones create larger folios, which make small writes more expensive.
const PIECE_BYTES: u64 = 256 << 10;
/// The bytes between two syncs.
const SYNC_BYTES: u64 = 4 << 20;

/// A checkpoint that is being written. Dropping it unfinished removes its file.
///
/// After an error it is spent: all further calls fail.
pub struct Draft<'a> {
    checkpoints: &'a mut Checkpoints,
    /// Called after each piece with its size.
    pace: &'a mut dyn FnMut(usize),
    file: Option<Box<dyn DiskFile>>,
    number: u64,
    position: Position,
    /// Bytes that are not written yet.
    buffer: Vec<u8>,
    /// The offset at which the buffer will be written.
    written: u64,
    blobs_crc: u32,
}

impl<'a> Draft<'a> {
    pub(super) fn begin(
        checkpoints: &'a mut Checkpoints,
        position: Position,
        pace: &'a mut dyn FnMut(usize),
    ) -> Result<Draft<'a>, LogError> {
        let set = &mut checkpoints.set;
        let number = set.next_number();
        let created = set.remove_draft().and_then(|()| set.disk.create(DRAFT_NAME));
        let file = Some(created.map_err(|fault| checkpoints.fail(fault))?);
        checkpoints.set.has_draft = true;
        let buffer = Vec::with_capacity(PIECE_BYTES as usize);
        let written = HEADER_BYTES as u64;
        Ok(Draft { checkpoints, pace, file, number, position, buffer, written, blobs_crc: 0 })
    }

    /// Appends a blob of less than 4 GiB.
    pub fn write(&mut self, bytes: &[u8]) -> Result<Blob, LogError> {
        let blob = Blob {
            file: self.number,
            offset: self.end(),
            bytes: u32::try_from(bytes.len()).expect("a blob is smaller than 4 GiB"),
            crc: crc32c::crc32c(bytes),
        };
        self.blobs_crc = crc32c::crc32c_append(self.blobs_crc, bytes);
        self.append(bytes)?;
        Ok(blob)
    }

    /// Completes the checkpoint, and then removes all others but the newest. `shared` are the blobs of older
    /// checkpoints that the manifest refers to; it may also contain blobs written here.
    ///
    /// [`LogError::NoSpace`] means that nothing has changed. After any other failure the state of the disk is unknown
    /// until the next start.
    pub fn finish(mut self, manifest: &[u8], shared: &[Blob]) -> Result<(), LogError> {
        let files = self.files_of(shared);
        let blobs_end = self.end();
        let table = encode_table(files.iter().copied());
        self.append(&table)?;
        self.append(manifest)?;
        let header = Header {
            uuid: self.checkpoints.uuid,
            number: self.number,
            position: self.position,
            bytes: self.end(),
            blobs_end,
            files: u32::try_from(files.len()).expect("files are few"),
            blobs_crc: self.blobs_crc,
            table_crc: crc32c::crc32c(&table),
            manifest_crc: crc32c::crc32c(manifest),
        };
        self.complete(&header)?;
        if let Err(fault) = self.checkpoints.set.place_draft(header, files) {
            return Err(self.give_up(fault));
        }
        self.checkpoints.confirm_placed()
    }

    fn files_of(&self, shared: &[Blob]) -> Vec<u64> {
        let files: BTreeSet<u64> =
            shared.iter().map(|blob| blob.file).filter(|&file| file != self.number).collect();
        for &file in &files {
            assert!(self.checkpoints.set.header(file).is_some(), "no blob of checkpoint {file} can be read");
        }
        files.into_iter().collect()
    }

    fn end(&self) -> u64 {
        self.written + self.buffer.len() as u64
    }

    fn append(&mut self, mut bytes: &[u8]) -> Result<(), LogError> {
        self.refuse_if_spent()?;
        while !bytes.is_empty() {
            // Pieces end at page boundaries.
            let room = PIECE_BYTES - self.end() % PIECE_BYTES;
            let (now, later) = bytes.split_at(bytes.len().min(room as usize));
            self.buffer.extend_from_slice(now);
            bytes = later;
            if self.end().is_multiple_of(PIECE_BYTES) {
                self.write_piece()?;
            }
        }
        Ok(())
    }

    fn write_piece(&mut self) -> Result<(), LogError> {
        let file = self.file.as_ref().expect("a spent draft writes nothing");
        let end = self.end();
        let mut outcome = file.write_at(self.written, &self.buffer);
        if end.is_multiple_of(SYNC_BYTES) {
            outcome = outcome.and_then(|()| file.sync_data());
        }
        outcome.map_err(|fault| self.give_up(fault))?;
        (self.pace)(self.buffer.len());
        self.written = end;
        self.buffer.clear();
        Ok(())
    }

    /// Writes the rest and the header, and makes all of it durable.
    fn complete(&mut self, header: &Header) -> Result<(), LogError> {
        if !self.buffer.is_empty() {
            self.write_piece()?;
        }
        failpoint("checkpoint.half");
        let file = self.file.as_ref().expect("a spent draft writes nothing");
        let outcome = file.write_at(0, &header.encode()).and_then(|()| file.sync_data());
        outcome.map_err(|fault| self.give_up(fault))
    }

    fn refuse_if_spent(&self) -> Result<(), LogError> {
        self.checkpoints.refuse_if_poisoned()?;
        if self.file.is_none() {
            let full = io::Error::from(io::ErrorKind::StorageFull);
            return Err(LogError::NoSpace(Fault::new(Operation::Write, DRAFT_NAME, full)));
        }
        Ok(())
    }

    fn give_up(&mut self, fault: Fault) -> LogError {
        self.discard();
        self.checkpoints.fail(fault)
    }

    /// Removes the file, since other threads may wait for its space. If that fails, the next draft removes it.
    fn discard(&mut self) {
        self.file = None;
        let _ = self.checkpoints.set.remove_draft();
    }
}

impl Drop for Draft<'_> {
    fn drop(&mut self) {
        self.discard();
    }
}
