//! Finds data blocks where the index of their table is lost.
//!
//! A sealed block does not say how long it is. But its checksum is seeded with its offset, so at a place where a block
//! begins, only its own end makes the checksum match. What precedes the checksum tells cheaply that most other ends
//! are none.

use bifold_contract::{Corruption, FileId, Value};

use super::{
    BlockCursor, ENTRY_BYTES_MIN, FIXED_TAIL_BYTES, Layout, RESTART_BYTES, check_restarts,
    sealed::{SEAL_BYTES, check, unseal},
};
use crate::compression::Method;

/// So many bytes behind its first entry a block is searched for its end. Blocks are longer only if the option
/// `block_bytes` is.
const SEARCHED_BYTES: usize = 64 << 10;

/// Longer blocks are not found.
pub const FOUND_BYTES_MAX: usize = 1 << 20;

/// A compressed block claims at most this many bytes.
const UNCOMPRESSED_BYTES_MAX: usize = 1 << 20;

/// The content and the length of the sealed data block at the beginning of `bytes`, which stand at `offset` of the
/// table `file`; `None` if none begins there.
#[must_use]
pub fn block_at(bytes: &[u8], (file, offset): (FileId, u64)) -> Option<(Value, usize)> {
    let first_end = Layout::slot(bytes, 0).filter(|slot| {
        slot.shared == 0 && slot.key_end > slot.key_start && slot.kind().is_some() && slot.payload_end < bytes.len()
    });
    let claimed = bytes.first_chunk().map_or(usize::MAX, |claimed| u32::from_le_bytes(*claimed) as usize);
    let may_be_compressed = claimed <= UNCOMPRESSED_BYTES_MAX && claimed > ENTRY_BYTES_MIN + FIXED_TAIL_BYTES;
    let is_end = |end: &usize| {
        let body = &bytes[..*end - SEAL_BYTES];
        match Method::from_byte(bytes[body.len()]) {
            Some(Method::Plain) => first_end.is_some_and(|first| is_tail(body, first.payload_end)),
            Some(_) => may_be_compressed,
            None => false,
        }
    };
    let from = match (may_be_compressed, &first_end) {
        (false, None) => return None,
        (false, Some(first)) => first.payload_end,
        (true, _) => 4,
    };
    let to = bytes.len().min(first_end.map_or(0, |first| first.payload_end).saturating_add(SEARCHED_BYTES));
    let mut ends = (from + SEAL_BYTES + 1..=to).filter(is_end);
    let end = ends.find(|&end| check(&bytes[..end], file, offset).is_ok())?;
    let block = unseal(bytes[..end].into(), (0, end), (file, offset), UNCOMPRESSED_BYTES_MAX).ok()?;
    (check_entries(&block).is_ok() && check_restarts(&block).is_ok()).then_some((block, end))
}

/// Whether the number of restarts at the end of `body` is possible.
fn is_tail(body: &[u8], first_end: usize) -> bool {
    let restarts = body.last_chunk().map_or(0, |restarts| u32::from_le_bytes(*restarts) as usize);
    let tail = restarts.saturating_mul(RESTART_BYTES).saturating_add(FIXED_TAIL_BYTES);
    restarts > 0 && tail.saturating_add(first_end) <= body.len()
}

/// Checks that every entry of a block can be decoded.
///
/// # Errors
/// If that is not so. The offset is relative to the block.
pub fn check_entries(block: &Value) -> Result<(), Corruption> {
    let mut cursor = BlockCursor::default();
    cursor.set_block(block.clone())?;
    cursor.first()?;
    while cursor.is_placed() {
        cursor.next()?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use bifold_contract::{Entry, Kind};
    use proptest::prelude::*;

    use super::*;
    use crate::{
        block::{BlockBuilder, sealed::seal},
        compression::{Compression, Compressor},
    };

    /// Blocks in a row of a table, and where each begins and ends.
    fn blocks(sizes: &[usize], compression: Compression) -> (Vec<u8>, Vec<(usize, usize)>) {
        let (mut out, mut places, mut n) = (Vec::new(), Vec::new(), 0u32);
        for &entries in sizes {
            let (start, mut builder) = (out.len(), BlockBuilder::new(16));
            builder.begin(&out);
            for _ in 0..entries {
                let (key, value) = (format!("key{n:06}").into_bytes(), vec![n as u8; n as usize % 90]);
                builder.add(&Entry { key: &key, seqno: 7, kind: Kind::Inline, payload: &value }, &mut out);
                n += 1;
            }
            builder.finish(&mut out);
            seal(&mut out, start, &mut Compressor::new(compression), 3, start as u64);
            places.push((start, out.len()));
        }
        (out, places)
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(32))]

        #[test]
        fn blocks_are_found_where_they_begin_and_nowhere_else(
            sizes in prop::collection::vec(1usize..60, 1..5), which in 0usize..3,
        ) {
            let compression = [Compression::None, Compression::Lz4, Compression::Zstd][which];
            let (bytes, places) = blocks(&sizes, compression);
            for at in 0..bytes.len() {
                let found = block_at(&bytes[at..], (3, at as u64)).map(|(_, len)| at + len);
                let expected = places.iter().find(|(start, _)| *start == at).map(|&(_, end)| end);
                prop_assert_eq!(found, expected, "at {}", at);
            }
        }

        #[test]
        fn no_bytes_make_it_panic(bytes: Vec<u8>) {
            prop_assert!(block_at(&bytes, (3, 0)).is_none());
        }
    }
}
