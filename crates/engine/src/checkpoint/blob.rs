//! The place of a blob, and its encoding in a manifest.

use sureq_core::codec::{read_number, write_number};

/// A piece of a checkpoint: its place and its checksum. Ordered by place.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Blob {
    /// The number of the checkpoint whose file contains it.
    pub file: u64,
    /// The offset of its first byte there.
    pub offset: u64,
    pub bytes: u32,
    pub crc: u32,
}

impl Blob {
    /// Appends the blob's place to a manifest.
    pub fn encode(self, into: &mut Vec<u8>) {
        write_number(self.file, into);
        write_number(self.offset, into);
        write_number(u64::from(self.bytes), into);
        into.extend(self.crc.to_le_bytes());
    }

    /// Takes a blob's place from the front of `from`; `None` if it is malformed.
    ///
    /// ```
    /// use sureq_engine::checkpoint::Blob;
    ///
    /// let blob = Blob { file: 7, offset: 128, bytes: 4096, crc: 0xc0ff_ee00 };
    /// let mut manifest = Vec::new();
    /// blob.encode(&mut manifest);
    /// assert_eq!(manifest.len(), 9);
    /// assert_eq!(Blob::decode(&mut &manifest[..]), Some(blob));
    /// ```
    pub fn decode(from: &mut &[u8]) -> Option<Blob> {
        let (file, rest) = read_number(from).ok()?;
        let (offset, rest) = read_number(rest).ok()?;
        let (bytes, rest) = read_number(rest).ok()?;
        let (crc, rest) = rest.split_first_chunk()?;
        let (bytes, crc) = (bytes.try_into().ok()?, u32::from_le_bytes(*crc));
        *from = rest;
        Some(Blob { file, offset, bytes, crc })
    }

    /// The offset after its last byte; `None` on overflow.
    pub(super) fn end(self) -> Option<u64> {
        self.offset.checked_add(u64::from(self.bytes))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_place_survives_encoding_and_a_part_of_one_is_refused() {
        for number in [0, 1, 127, 128, 1 << 32, u64::MAX] {
            let blob = Blob { file: number, offset: number / 3, bytes: number as u32, crc: !(number as u32) };
            let mut bytes = Vec::new();
            blob.encode(&mut bytes);
            for cut in 0..bytes.len() {
                assert_eq!(Blob::decode(&mut &bytes[..cut]), None, "{cut} bytes of {blob:?}");
            }
            bytes.push(9);
            let mut rest = &bytes[..];
            assert_eq!((Blob::decode(&mut rest), rest), (Some(blob), &[9][..]));
        }
    }

    #[test]
    fn a_number_that_is_too_large_is_refused() {
        assert_eq!(Blob::decode(&mut &[0xff; 40][..]), None);
        let mut bytes = vec![1, 1];
        write_number(1 << 32, &mut bytes);
        bytes.extend([0; 4]);
        assert_eq!(Blob::decode(&mut &bytes[..]), None, "a length of more than 32 bits");
    }
}
