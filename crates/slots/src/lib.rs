//! Hash slots: the part of a Redis Cluster that a key belongs to. Redis computes the same, so that a home can tell
//! which server has a queue, and the module which queues share a server.
#![no_std]
#![forbid(unsafe_code)]

pub const SLOTS: u16 = 16_384;

/// The slot of a key: of its slot tag, if it has one.
pub fn slot_of(key: &[u8]) -> u16 {
    crc16(tag_of(key).unwrap_or(key)) % SLOTS
}

/// The slot tag of a key: the text in its first pair of braces, unless that is empty.
pub fn tag_of(key: &[u8]) -> Option<&[u8]> {
    let from = key.iter().position(|&c| c == b'{')? + 1;
    let len = key[from..].iter().position(|&c| c == b'}').filter(|&len| len > 0)?;
    Some(&key[from..from + len])
}

/// CRC-16/XMODEM.
fn crc16(bytes: &[u8]) -> u16 {
    bytes.iter().fold(0, |crc, &byte| {
        (0..8).fold(crc ^ (u16::from(byte) << 8), |crc, _| {
            if crc & 0x8000 == 0 { crc << 1 } else { (crc << 1) ^ 0x1021 }
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slots_are_those_of_redis() {
        // As CLUSTER KEYSLOT answers.
        for (key, slot) in
            [("", 0), ("123456789", 12_739), ("foo", 12_182), ("foo{bar}{zap}", 5_061), ("bar", 5_061)]
        {
            assert_eq!(slot_of(key.as_bytes()), slot, "{key}");
        }
        assert_eq!(slot_of(b"foo{}{bar}"), crc16(b"foo{}{bar}") % SLOTS);
        assert_eq!(slot_of(b"foo{{bar}}zap"), crc16(b"{bar") % SLOTS);
    }
}
