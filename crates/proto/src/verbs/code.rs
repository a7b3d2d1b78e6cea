//! Command names as numbers, so that a case-insensitive lookup takes only a few comparisons.

/// A name of at most 16 bytes in capitals: its first and its last eight bytes, which overlap in a shorter name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Code {
    pub(super) len: usize,
    pub(super) first: u64,
    pub(super) last: u64,
}

impl Code {
    /// The code of a name. `None` if it is empty or too long to be a command.
    #[inline]
    pub(super) const fn of(name: &[u8]) -> Option<Self> {
        let (first, last) = match name {
            [] => return None,
            _ if name.len() > 16 => return None,
            _ => match (name.first_chunk(), name.last_chunk()) {
                (Some(first), Some(last)) => (u64::from_le_bytes(*first), u64::from_le_bytes(*last)),
                _ => Self::of_short(name),
            },
        };
        Some(Self { len: name.len(), first: upper(first), last: upper(last) })
    }

    /// The first and last bytes of a name shorter than eight bytes.
    const fn of_short(name: &[u8]) -> (u64, u64) {
        match (name.first_chunk(), name.last_chunk()) {
            (Some(first), Some(last)) => {
                (u32::from_le_bytes(*first) as u64, u32::from_le_bytes(*last) as u64)
            }
            _ => (name[0] as u64, (name[name.len() / 2] as u64) << 8 | name[name.len() - 1] as u64),
        }
    }
}

/// Converts each of eight bytes to upper case if it is an ASCII letter.
const fn upper(bytes: u64) -> u64 {
    const EACH: u64 = u64::MAX / 0xff;
    let low = bytes & (0x7f * EACH);
    let from_a = low + (0x80 - b'a' as u64) * EACH;
    let past_z = low + (0x7f - b'z' as u64) * EACH;
    let letters = !bytes & (from_a ^ past_z) & (0x80 * EACH);
    bytes ^ letters >> 2
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn upper_equals_ascii_uppercase_for_every_byte() {
        for byte in 0..=u8::MAX {
            let raised = upper(u64::from_le_bytes([byte, b'a', byte, b'z', byte, 0, byte, 0xff]));
            let byte = byte.to_ascii_uppercase();
            assert_eq!(raised.to_le_bytes(), [byte, b'A', byte, b'Z', byte, 0, byte, 0xff]);
        }
    }

    #[test]
    fn too_long_and_empty_names_have_no_code() {
        assert!(Code::of(&[b'x'; 16]).is_some());
        assert_eq!(Code::of(&[b'x'; 17]), None);
        assert_eq!(Code::of(b""), None);
    }

    proptest! {
        #[test]
        fn codes_are_equal_when_names_are(a in "[a-bA-B.\\x00é]{0,17}", b in "[a-bA-B.\\x00é]{0,17}") {
            let (x, y) = (Code::of(a.as_bytes()), Code::of(b.as_bytes()));
            prop_assert_eq!(Code::of(a.to_ascii_lowercase().as_bytes()), x);
            if x.is_some() && y.is_some() {
                prop_assert_eq!(x == y, a.eq_ignore_ascii_case(&b));
            }
        }
    }
}
