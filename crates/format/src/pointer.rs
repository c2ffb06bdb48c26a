//! The encoded form of a [`Pointer`]: `file varint │ epoch varint │ offset varint │ length varint`.
//!
//! Varints, because pointers are what a parted index mostly consists of: the usual pointer takes 9 bytes, not 24.

use bifold_contract::{Corruption, Pointer};

use crate::bytes::{Input, VARINT_BYTES_MAX, put_varint};

/// The longest encoded pointer, in bytes: two numbers of 64 bits, two of 32.
pub const POINTER_BYTES_MAX: usize = 2 * VARINT_BYTES_MAX + 2 * 5;

/// Appends the encoded form.
pub fn encode(pointer: Pointer, out: &mut Vec<u8>) {
    put_varint(out, pointer.file);
    put_varint(out, u64::from(pointer.epoch));
    put_varint(out, pointer.offset);
    put_varint(out, u64::from(pointer.len));
}

/// Decodes a whole payload.
///
/// # Errors
/// When it is not one pointer.
pub fn decode(bytes: &[u8]) -> Result<Pointer, Corruption> {
    let mut input = Input::new(bytes, "pointer");
    let pointer =
        Pointer { file: input.varint()?, epoch: input.varint32()?, offset: input.varint()?, len: input.varint32()? };
    input.end()?;
    Ok(pointer)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn pointers_come_back(file: u64, epoch: u32, offset: u64, len: u32) {
            let pointer = Pointer { file, epoch, offset, len };
            let mut bytes = Vec::new();
            encode(pointer, &mut bytes);
            prop_assert!(bytes.len() <= POINTER_BYTES_MAX);
            prop_assert_eq!(decode(&bytes), Ok(pointer));
            prop_assert!(decode(&bytes[..bytes.len() - 1]).is_err());
        }

        #[test]
        fn no_bytes_make_the_decoder_panic(bytes: Vec<u8>) {
            let _any_answer = decode(&bytes);
        }
    }
}
