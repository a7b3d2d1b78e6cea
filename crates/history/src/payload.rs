//! Payloads that identify their task, so that a changed one is noticed.

/// The payload of task `number`: its number in eight bytes, and 8 to 95 more bytes derived from it.
pub fn encode(number: u64) -> Vec<u8> {
    let seed = mix(number);
    let len = 2 * NUMBER_BYTES + (seed >> 32) as usize % 88;
    let words = std::iter::successors(Some(seed), |&word| Some(mix(word)));
    let filler = words.skip(1).flat_map(u64::to_le_bytes);
    number.to_le_bytes().into_iter().chain(filler).take(len).collect()
}

/// The task with exactly this payload.
pub fn decode(payload: &[u8]) -> Option<u64> {
    let number = u64::from_le_bytes(*payload.first_chunk::<NUMBER_BYTES>()?);
    (encode(number) == payload).then_some(number)
}

const NUMBER_BYTES: usize = 8;

/// splitmix64.
const fn mix(number: u64) -> u64 {
    let mut word = number.wrapping_add(0x9e37_79b9_7f4a_7c15);
    word = (word ^ (word >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    word = (word ^ (word >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    word ^ (word >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_payload_identifies_its_task() {
        for number in [0, 1, 77, 1 << 40] {
            let mut payload = encode(number);
            assert_eq!(decode(&payload), Some(number));
            for at in 0..payload.len() {
                payload[at] ^= 1;
                assert_eq!(decode(&payload), None, "{number}: byte {at}");
                payload[at] ^= 1;
            }
            payload.push(0);
            assert_eq!(decode(&payload), None);
        }
        assert_eq!(decode(b""), None);
    }
}
