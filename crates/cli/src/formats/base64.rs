//! Base64 of RFC 4648 §4: the standard alphabet, padded.

const ALPHABET: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

/// Bytes as text: each three become four characters.
pub fn encode(bytes: &[u8]) -> String {
    let mut out = String::with_capacity(bytes.len().div_ceil(3) * 4);
    for chunk in bytes.chunks(3) {
        let at = |i: usize| u32::from(chunk.get(i).copied().unwrap_or(0));
        let group = at(0) << 16 | at(1) << 8 | at(2);
        for i in 0..4 {
            // One byte makes two characters, two make three.
            let digit = ALPHABET[(group >> (18 - 6 * i)) as usize & 63];
            out.push(if i <= chunk.len() { char::from(digit) } else { '=' });
        }
    }
    out
}

/// Text back to bytes.
///
/// # Errors
/// In words, for text that is not what [`encode`] writes.
pub fn decode(text: &str) -> Result<Vec<u8>, String> {
    let padding = text.bytes().rev().take_while(|&b| b == b'=').count();
    if !text.len().is_multiple_of(4) || padding > 2 {
        return Err("it is not base64: its length must be a multiple of 4, padded with `=`".to_owned());
    }
    let mut out = Vec::with_capacity(text.len() / 4 * 3);
    let digits = &text.as_bytes()[..text.len() - padding];
    for chunk in digits.chunks(4) {
        let mut group = 0;
        for &byte in chunk {
            group = group << 6 | digit(byte)?;
        }
        group <<= 6 * (4 - chunk.len());
        let bytes = group.to_be_bytes();
        let (used, rest) = bytes[1..].split_at(chunk.len() - 1);
        if rest.iter().any(|&b| b != 0) {
            return Err("it is not base64: the bits after its end are not zero".to_owned());
        }
        out.extend_from_slice(used);
    }
    Ok(out)
}

fn digit(byte: u8) -> Result<u32, String> {
    let at = ALPHABET.iter().position(|&b| b == byte);
    at.map(|at| at as u32)
        .ok_or_else(|| format!("it is not base64: `{}` is not one of its digits", byte.escape_ascii()))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn any_bytes_come_back(bytes: Vec<u8>) {
            prop_assert_eq!(decode(&encode(&bytes)), Ok(bytes));
        }

        #[test]
        fn any_text_is_refused_or_the_only_writing_of_its_bytes(text in "[A-Za-z0-9+/=é]{0,12}") {
            if let Ok(bytes) = decode(&text) {
                prop_assert_eq!(encode(&bytes), text);
            }
        }
    }

    #[test]
    fn the_examples_of_the_standard_hold() {
        for (bytes, text) in
            [("", ""), ("f", "Zg=="), ("fo", "Zm8="), ("foo", "Zm9v"), ("foob", "Zm9vYg=="), ("fooba", "Zm9vYmE=")]
        {
            assert_eq!(encode(bytes.as_bytes()), text);
            assert_eq!(decode(text).as_deref(), Ok(bytes.as_bytes()));
        }
    }
}
