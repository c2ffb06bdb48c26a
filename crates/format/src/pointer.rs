//! The encoded form of a [`Pointer`]: `file varint │ epoch varint │ offset varint │ length varint`.
//!
//! Varints, because pointers make up most of an index with separated values: a typical pointer takes 9 bytes, not 24.

use bifold_contract::{Corruption, Pointer};

use crate::{
    bytes::{Input, VARINT_BYTES_MAX, put_varint},
    names::NUMBER_MAX,
};

/// No file is this long, so adding to an offset never overflows.
const OFFSET_MAX: u64 = 1 << 62;

/// No encoded pointer is longer, in bytes: two numbers of at most 64 bits and two of 32.
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
/// If it is not exactly one pointer, or its file number or offset is too large.
#[inline]
pub fn decode(bytes: &[u8]) -> Result<Pointer, Corruption> {
    let mut input = Input::new(bytes, "pointer");
    let file = input.varint_up_to(NUMBER_MAX)?;
    let (epoch, offset) = (input.varint32()?, input.varint_up_to(OFFSET_MAX)?);
    let pointer = Pointer { file, epoch, offset, len: input.varint32()? };
    input.end()?;
    Ok(pointer)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn pointers_come_back(file in 0..=NUMBER_MAX, epoch: u32, offset in 0..=OFFSET_MAX, len: u32) {
            let pointer = Pointer { file, epoch, offset, len };
            let mut bytes = Vec::new();
            encode(pointer, &mut bytes);
            prop_assert!(bytes.len() <= POINTER_BYTES_MAX);
            prop_assert_eq!(decode(&bytes), Ok(pointer));
            prop_assert!(decode(&bytes[..bytes.len() - 1]).is_err());
        }

        #[test]
        fn an_impossible_file_number_or_offset_is_refused(file in NUMBER_MAX + 1.., offset in OFFSET_MAX + 1..) {
            for (file, offset) in [(file, 0), (1, offset), (u64::MAX, u64::MAX)] {
                let mut bytes = Vec::new();
                encode(Pointer { file, epoch: 0, offset, len: 1 }, &mut bytes);
                prop_assert!(decode(&bytes).is_err());
            }
        }

        #[test]
        fn no_bytes_make_the_decoder_panic(bytes: Vec<u8>) {
            let _any_answer = decode(&bytes);
        }
    }
}
