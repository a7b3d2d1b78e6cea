//! Recognizable payloads: a sequence number, then filler that is unique to this number in this run.

/// The length of every payload.
pub(crate) const PAYLOAD_BYTES: usize = 64;

const WORD: usize = size_of::<u64>();

/// Creates the payloads of one run, and checks whether a delivered one is among them.
#[derive(Clone, Copy)]
pub(crate) struct Payloads {
    salt: u64,
}

impl Payloads {
    /// Payloads that differ from those of any other salt.
    pub(crate) fn new(salt: u64) -> Self {
        Payloads { salt }
    }

    /// The payload with this number.
    pub(crate) fn make(self, number: u64) -> [u8; PAYLOAD_BYTES] {
        let mut payload = [0; PAYLOAD_BYTES];
        self.write(number, &mut payload);
        payload
    }

    /// The payload with this number, with any other length. A payload that is too short for its number is identified
    /// by its position.
    pub(crate) fn write(self, number: u64, payload: &mut [u8]) {
        let mut state = mix(number ^ self.salt);
        for (index, word) in payload.chunks_mut(WORD).enumerate() {
            let bytes = if index == 0 { number } else { state }.to_le_bytes();
            word.copy_from_slice(&bytes[..word.len()]);
            state = mix(state);
        }
    }

    /// A length between 1 and `longest` that only depends on the number.
    pub(crate) fn length(self, number: u64, longest: usize) -> usize {
        1 + (mix(number ^ !self.salt) % longest as u64) as usize
    }

    /// The number of a payload, if all its bytes are unchanged.
    pub(crate) fn number_of(self, payload: &[u8]) -> Option<u64> {
        let number = u64::from_le_bytes(*payload.first_chunk()?);
        (payload == self.make(number)).then_some(number)
    }
}

/// The finalizer of `SplitMix64`: similar inputs give unrelated outputs.
pub(crate) fn mix(value: u64) -> u64 {
    let mut z = value.wrapping_add(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_payload_may_have_any_length() {
        let payloads = Payloads::new(7);
        let whole = payloads.make(42);
        for length in 0..PAYLOAD_BYTES {
            let mut short = vec![0; length];
            payloads.write(42, &mut short);
            assert_eq!(short, whole[..length]);
        }
        let lengths: Vec<usize> = (0..1000).map(|number| payloads.length(number, 200)).collect();
        assert_eq!((lengths.iter().min(), lengths.iter().max()), (Some(&1), Some(&200)));
    }

    #[test]
    fn a_changed_byte_is_noticed_wherever_it_is() {
        let payloads = Payloads::new(7);
        let good = payloads.make(42);
        assert_eq!(payloads.number_of(&good), Some(42));
        for at in 0..PAYLOAD_BYTES {
            let mut bad = good;
            bad[at] ^= 1;
            assert_eq!(payloads.number_of(&bad), None, "byte {at}");
        }
        assert_eq!(payloads.number_of(&good[..63]), None);
        assert_eq!(payloads.number_of(b""), None);
        assert_eq!(Payloads::new(8).number_of(&good), None);
    }
}
