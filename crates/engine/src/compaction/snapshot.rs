//! The contents of a checkpoint: the whole state, as a manifest and pieces. A piece is written once, and later
//! checkpoints refer to it until it changes.
//!
//! The manifest is the head of the image (bytes), the live payloads by segment (their number, then segment, tasks and
//! bytes of each), and the queues (their number, then of each its number, its head, and its parts: their number, then
//! stamp and place of each). Numbers are varints, bytes have their length before them.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use sureq_core::Broker;
use sureq_core::broker::{Image, Stored};
use sureq_core::codec::{decode, read_number, write_number};
use sureq_core::event::{Event, QueueNo};
use sureq_core::queue::Part;

use crate::checkpoint::{Blob, Checkpoints, Draft, Loaded};
use crate::compaction::live::{Live, LiveBodies};
use crate::fault::OpenError;
use crate::log::{LogError, Position};
use crate::payload::body::Body;

/// The state at the last image, and the places of its pieces.
#[derive(Default)]
pub(crate) struct Snapshot {
    head: Vec<u8>,
    queues: BTreeMap<QueueNo, Section>,
}

/// The pieces that a checkpoint shares with earlier ones.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Sharing {
    /// All that have not changed.
    Unchanged,
    /// All that have not changed, except those in the file of the newest checkpoint.
    NotWithNewest,
    /// None, so that the earlier files can be removed.
    Nothing,
}

/// Why a checkpoint was not written.
pub(crate) enum Unwritten {
    /// The disk or the log failed.
    Failed(LogError),
    /// A piece of an older checkpoint cannot be read back.
    Unreadable(OpenError),
}

impl From<LogError> for Unwritten {
    fn from(error: LogError) -> Self {
        Self::Failed(error)
    }
}

/// One queue of the snapshot.
struct Section {
    head: Vec<u8>,
    parts: Vec<Piece>,
}

/// A piece of a queue.
struct Piece {
    stamp: u64,
    at: At,
}

enum At {
    /// In the file of a checkpoint.
    Disk(Blob),
    /// Only in memory.
    Memory(Part<Body>),
    /// In the file of the newest checkpoint, and still in memory in case it is written again.
    Both(Blob, Part<Body>),
}

/// A state that was loaded. The default is that of a new store.
#[derive(Default)]
pub(crate) struct Restored {
    pub(crate) broker: Broker<Body>,
    pub(crate) live: LiveBodies,
    pub(crate) snapshot: Snapshot,
}

impl Snapshot {
    /// Updates the snapshot to a later image.
    pub(crate) fn update(&mut self, image: Image<Body>) {
        self.head = image.head;
        for (no, queue) in image.queues {
            let before = self.queues.remove(&no);
            let Some(queue) = queue else { continue };
            let written: HashMap<u64, Blob> = before.iter().flat_map(Section::written).collect();
            let parts = queue.parts().iter().map(|part| {
                let stamp = part.stamp();
                let at = written.get(&stamp).map_or_else(|| At::Memory(part.clone()), |&blob| At::Disk(blob));
                Piece { stamp, at }
            });
            let mut head = Vec::new();
            queue.head(&mut head);
            self.queues.insert(no, Section { head, parts: parts.collect() });
        }
    }

    /// Writes a checkpoint of the state at `position`. Returns the bytes written. `confirm` is called before the
    /// checkpoint becomes valid. After a failure the pieces stay in memory for the next attempt; if a piece that is
    /// only on disk cannot be read back, the next attempt needs an image of all queues.
    pub(crate) fn write(
        &mut self,
        checkpoints: &mut Checkpoints,
        position: Position,
        live: &LiveBodies,
        sharing: Sharing,
        pace: &mut dyn FnMut(usize),
        confirm: impl FnOnce() -> Result<(), LogError>,
    ) -> Result<u64, Unwritten> {
        let shared: Vec<Blob> = self.pieces().filter_map(|piece| piece.at.blob()).collect();
        let sparse = match sharing {
            Sharing::Unchanged => checkpoints.sparse(&shared),
            Sharing::NotWithNewest => {
                let mut files = checkpoints.sparse(&shared);
                files.extend(checkpoints.newest(1));
                files
            }
            Sharing::Nothing => shared.iter().map(|blob| blob.file).collect(),
        };
        let on_disk_alone = self.pieces().filter_map(|piece| match piece.at {
            At::Disk(blob) if sparse.contains(&blob.file) => Some(blob),
            _ => None,
        });
        let again = read_again(checkpoints, &on_disk_alone.collect::<Vec<_>>());
        let again = again.map_err(Unwritten::Unreadable)?;
        let mut bytes = 0;
        let mut count = |piece: usize| {
            bytes += piece as u64;
            pace(piece);
        };
        let mut draft = checkpoints.begin(position, &mut count)?;
        let places = self.write_pieces(&mut draft, &again, &sparse)?;
        let manifest = self.manifest(live, &places);
        confirm()?;
        let kept: Vec<Blob> = shared.into_iter().filter(|blob| !sparse.contains(&blob.file)).collect();
        draft.finish(&manifest, &kept)?;
        let pieces = self.queues.values_mut().flat_map(|section| &mut section.parts);
        for (piece, blob) in pieces.zip(places) {
            piece.at = match std::mem::replace(&mut piece.at, At::Disk(blob)) {
                At::Disk(_) => At::Disk(blob),
                At::Memory(part) | At::Both(_, part) => At::Both(blob, part),
            };
        }
        Ok(bytes)
    }

    /// Frees all pieces that are on disk: the newest checkpoint is not written again.
    pub(crate) fn free_written(&mut self) {
        for piece in self.queues.values_mut().flat_map(|section| &mut section.parts) {
            if let At::Both(blob, _) = piece.at {
                piece.at = At::Disk(blob);
            }
        }
    }

    /// Ensures that all pieces are in files that the checkpoint may refer to. Returns their places.
    fn write_pieces(
        &self,
        draft: &mut Draft<'_>,
        again: &HashMap<Blob, Vec<u8>>,
        sparse: &BTreeSet<u64>,
    ) -> Result<Vec<Blob>, LogError> {
        let mut room = Vec::new();
        self.pieces()
            .map(|piece| match &piece.at {
                At::Disk(blob) => again.get(blob).map_or(Ok(*blob), |bytes| draft.write(bytes)),
                At::Both(blob, _) if !sparse.contains(&blob.file) => Ok(*blob),
                At::Memory(part) | At::Both(_, part) => {
                    room.clear();
                    part.encode(&mut room);
                    draft.write(&room)
                }
            })
            .collect()
    }

    fn pieces(&self) -> impl Iterator<Item = &Piece> {
        self.queues.values().flat_map(|section| &section.parts)
    }

    fn manifest(&self, live: &LiveBodies, places: &[Blob]) -> Vec<u8> {
        let mut out = Vec::new();
        put_bytes(&self.head, &mut out);
        live.encode(&mut out);
        put_len(self.queues.len(), &mut out);
        let mut places = places.iter();
        for (no, section) in &self.queues {
            write_number(u64::from(no.0), &mut out);
            put_bytes(&section.head, &mut out);
            put_len(section.parts.len(), &mut out);
            for (piece, blob) in section.parts.iter().zip(&mut places) {
                write_number(piece.stamp, &mut out);
                blob.encode(&mut out);
            }
        }
        out
    }

    /// Builds the state of a checkpoint.
    pub(crate) fn load(loaded: &Loaded<'_>) -> Result<Restored, OpenError> {
        let bad = || loaded.refuse_manifest("the manifest is not one".into());
        let (snapshot, live) = Self::read(&loaded.manifest).ok_or_else(bad)?;
        let blobs: Vec<Blob> = snapshot.pieces().filter_map(|piece| piece.at.blob()).collect();
        let mut parts: Vec<Vec<u8>> = vec![Vec::new(); blobs.len()];
        loaded.read_blobs(&blobs, &mut |index, bytes| {
            parts[index] = bytes.to_vec();
            Ok(())
        })?;
        let mut parts = parts.into_iter();
        let queues: Vec<_> = snapshot
            .queues
            .iter()
            .map(|(&queue, section)| {
                let stamps = section.parts.iter().map(|piece| piece.stamp);
                let parts: Vec<(u64, Vec<u8>)> = stamps.zip(&mut parts).collect();
                Stored { queue, head: &section.head, parts }
            })
            .collect();
        let broker = Broker::restore(&snapshot.head, queues);
        let broker = broker.map_err(|damaged| loaded.refuse_manifest(Box::new(damaged)))?;
        Ok(Restored { broker, live, snapshot })
    }

    /// Builds as much as possible of the state of a checkpoint with damaged or missing blobs. Returns the number of
    /// those.
    pub(crate) fn load_partly(loaded: &Loaded<'_>) -> Result<(Broker<Body>, LiveBodies, usize), OpenError> {
        let bad = || loaded.refuse_manifest("the manifest is not one".into());
        let (snapshot, live) = Self::read(&loaded.manifest).ok_or_else(bad)?;
        let mut blob = |piece: &Piece| -> Option<Vec<u8>> {
            let mut part = None;
            let read = loaded.read_blobs(&[piece.at.blob()?], &mut |_, bytes| {
                part = Some(bytes.to_vec());
                Ok(())
            });
            read.ok().and(part)
        };
        let queues: Vec<_> = snapshot
            .queues
            .iter()
            .map(|(&queue, section)| {
                let parts: Vec<Option<Vec<u8>>> = section.parts.iter().map(&mut blob).collect();
                Stored { queue, head: &section.head, parts }
            })
            .collect();
        let restored = Broker::restore_partly(&snapshot.head, queues);
        let (broker, lost) = restored.map_err(|damaged| loaded.refuse_manifest(Box::new(damaged)))?;
        Ok((broker, live, lost))
    }

    /// The names of the queues of a checkpoint.
    pub(crate) fn names(manifest: &[u8]) -> Vec<(QueueNo, Vec<u8>)> {
        let Some((snapshot, _)) = Self::read(manifest) else { return Vec::new() };
        let name = |head: &[u8]| {
            let made = decode(head, |event| match event {
                Event::QueueMade { name, .. } => Some(name.to_vec()),
                _ => None,
            });
            made.ok().and_then(|(name, _)| name)
        };
        snapshot.queues.iter().filter_map(|(&no, section)| Some((no, name(&section.head)?))).collect()
    }

    fn read(manifest: &[u8]) -> Option<(Self, LiveBodies)> {
        let mut rest = manifest;
        let head = take_bytes(&mut rest)?.to_vec();
        let live = LiveBodies::decode(&mut rest)?;
        let mut queues = BTreeMap::new();
        for _ in 0..take_number(&mut rest)? {
            let no = QueueNo(u32::try_from(take_number(&mut rest)?).ok()?);
            let head = take_bytes(&mut rest)?.to_vec();
            let mut parts = Vec::new();
            for _ in 0..take_number(&mut rest)? {
                let stamp = take_number(&mut rest)?;
                parts.push(Piece { stamp, at: At::Disk(Blob::decode(&mut rest)?) });
            }
            queues.insert(no, Section { head, parts });
        }
        rest.is_empty().then_some((Self { head, queues }, live))
    }
}

/// Reads the blobs of sparse files, which are written again.
fn read_again(checkpoints: &Checkpoints, blobs: &[Blob]) -> Result<HashMap<Blob, Vec<u8>>, OpenError> {
    let mut again = HashMap::with_capacity(blobs.len());
    checkpoints.read_blobs(blobs, &mut |index, bytes| {
        again.insert(blobs[index], bytes.to_vec());
        Ok(())
    })?;
    Ok(again)
}

impl Section {
    /// The pieces that are on disk.
    fn written(&self) -> impl Iterator<Item = (u64, Blob)> {
        self.parts.iter().filter_map(|piece| Some((piece.stamp, piece.at.blob()?)))
    }
}

impl At {
    const fn blob(&self) -> Option<Blob> {
        match self {
            Self::Disk(blob) | Self::Both(blob, _) => Some(*blob),
            Self::Memory(_) => None,
        }
    }
}

impl LiveBodies {
    fn encode(&self, out: &mut Vec<u8>) {
        let segments: Vec<(u64, Live)> = self.segments().filter(|(_, live)| live.tasks > 0).collect();
        put_len(segments.len(), out);
        for (number, live) in segments {
            for n in [number, live.tasks, live.bytes] {
                write_number(n, out);
            }
        }
    }

    fn decode(rest: &mut &[u8]) -> Option<Self> {
        let mut live = Self::default();
        for _ in 0..take_number(rest)? {
            let segment = u32::try_from(take_number(rest)?).ok()?;
            live.put(segment, Live { tasks: take_number(rest)?, bytes: take_number(rest)? })?;
        }
        Some(live)
    }
}

fn put_len(len: usize, out: &mut Vec<u8>) {
    write_number(len as u64, out);
}

fn put_bytes(bytes: &[u8], out: &mut Vec<u8>) {
    put_len(bytes.len(), out);
    out.extend_from_slice(bytes);
}

fn take_number(rest: &mut &[u8]) -> Option<u64> {
    let (number, behind) = read_number(rest).ok()?;
    *rest = behind;
    Some(number)
}

fn take_bytes<'b>(rest: &mut &'b [u8]) -> Option<&'b [u8]> {
    let len = usize::try_from(take_number(rest)?).ok()?;
    rest.split_off(..len)
}
