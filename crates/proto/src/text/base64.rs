//! Standard base64 with padding, for bodies that would not survive on a line.

const LETTERS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

/// Appends the encoded form of `bytes`.
pub(super) fn encode(bytes: &[u8], out: &mut Vec<u8>) {
    out.reserve(bytes.len().div_ceil(3) * 4);
    for chunk in bytes.chunks(3) {
        let byte = |n: usize| u32::from(chunk.get(n).copied().unwrap_or(0));
        let bits = byte(0) << 16 | byte(1) << 8 | byte(2);
        for n in 0..4 {
            let letter = LETTERS[(bits >> (18 - 6 * n) & 63) as usize];
            out.push(if n <= chunk.len() { letter } else { b'=' });
        }
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn the_vectors_of_rfc_4648() {
        for (plain, coded) in [
            ("", ""),
            ("f", "Zg=="),
            ("fo", "Zm8="),
            ("foo", "Zm9v"),
            ("foob", "Zm9vYg=="),
            ("fooba", "Zm9vYmE="),
            ("foobar", "Zm9vYmFy"),
        ] {
            let mut out = Vec::new();
            super::encode(plain.as_bytes(), &mut out);
            assert_eq!(String::from_utf8(out).unwrap(), coded);
        }
        let mut out = Vec::new();
        super::encode(&[0xfb, 0xff, 0xfe, 0xff], &mut out);
        assert_eq!(out, b"+//+/w==");
    }
}
