//! Base64 of RFC 4648 §4: the standard alphabet, padded.

use data_encoding::{BASE64, BASE64_NOPAD, DecodeKind};

/// Encodes bytes: three become four characters.
pub fn encode(bytes: &[u8]) -> String {
    BASE64.encode(bytes)
}

/// Decodes text.
///
/// # Errors
/// In words, for text that [`encode`] would not write.
pub fn decode(text: &str) -> Result<Vec<u8>, String> {
    let wrong_length = || "it is not base64: its length must be a multiple of 4, padded with `=`".to_owned();
    // `BASE64` would also accept padding in the middle, so it is removed here; `=` elsewhere is then an invalid
    // digit.
    let digits = text.trim_end_matches('=').as_bytes();
    if !text.len().is_multiple_of(4) || text.len() - digits.len() > 2 {
        return Err(wrong_length());
    }
    BASE64_NOPAD.decode(digits).map_err(|error| match error.kind {
        DecodeKind::Symbol => {
            format!("it is not base64: `{}` is not one of its digits", digits[error.position].escape_ascii())
        }
        DecodeKind::Trailing => "it is not base64: the bits after its end are not zero".to_owned(),
        DecodeKind::Length | DecodeKind::Padding => wrong_length(),
    })
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
