//! The cluster slot of a key.

/// The number of slots in a cluster.
const SLOTS: u16 = 16_384;

/// The slot of a key, which is the hash of the part in its first braces, if there is one.
pub(crate) fn slot_of(key: &[u8]) -> u16 {
    crc16(tag_of(key)) % SLOTS
}

fn tag_of(key: &[u8]) -> &[u8] {
    let open = key.iter().position(|&c| c == b'{').map(|at| at + 1);
    let tag = open.and_then(|open| {
        let len = key[open..].iter().position(|&c| c == b'}')?;
        Some(&key[open..open + len])
    });
    tag.filter(|tag| !tag.is_empty()).unwrap_or(key)
}

/// CRC-16 with the polynomial 0x1021, the highest bit first.
fn crc16(bytes: &[u8]) -> u16 {
    bytes.iter().fold(0, |crc, &byte| {
        (0..8).fold(crc ^ u16::from(byte) << 8, |crc: u16, _| {
            let high = crc & 0x8000 != 0;
            crc << 1 ^ if high { 0x1021 } else { 0 }
        })
    })
}
