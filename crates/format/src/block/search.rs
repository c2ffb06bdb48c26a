//! Finds data blocks where the index of their table is lost.
//!
//! A sealed block does not say how long it is. But its checksum is seeded with its offset, so at a place where a block
//! begins, only its own end makes the checksum match. What precedes the checksum tells cheaply that most other ends
//! are none, and compressed bytes tell themselves where they end. So a checksum is seldom computed in vain.

use bifold_contract::{Corruption, FileId, Value};

use super::{
    BlockCursor, ENTRY_BYTES_MIN, FIXED_TAIL_BYTES, Layout, RESTART_BYTES, Slot, check_restarts,
    sealed::{SEAL_BYTES, check, unseal},
};
use crate::compression::{Method, packed_len};

/// So many bytes behind its first entry a block that is not compressed is searched for its end. Blocks are longer only
/// if the option `block_bytes` is.
const SEARCHED_BYTES: usize = 64 << 10;

/// Longer blocks are not found.
pub const FOUND_BYTES_MAX: usize = 1 << 20;

/// A compressed block claims at least and at most so many bytes.
const UNCOMPRESSED_BYTES_MIN: usize = ENTRY_BYTES_MIN + FIXED_TAIL_BYTES + 1;
const UNCOMPRESSED_BYTES_MAX: usize = 1 << 20;

/// The content and the length of the sealed data block at the beginning of `bytes`, which stand at `offset` of the
/// table `file`; `None` if none begins there.
#[must_use]
pub fn block_at(bytes: &[u8], (file, offset): (FileId, u64)) -> Option<(Value, usize)> {
    let is_sealed = |end: &usize| is_sealed(&bytes[..*end], file, offset);
    let end = compressed_ends(bytes).chain(plain_ends(bytes)).find(is_sealed)?;
    let block = unseal(bytes[..end].into(), (0, end), (file, offset), UNCOMPRESSED_BYTES_MAX).ok()?;
    (check_entries(&block).is_ok() && check_restarts(&block).is_ok()).then_some((block, end))
}

fn is_sealed(bytes: &[u8], file: FileId, offset: u64) -> bool {
    #[cfg(test)]
    tests::CHECKS.set(tests::CHECKS.get() + 1);
    check(bytes, file, offset).is_ok()
}

/// Where a compressed block at the beginning of `bytes` can end: in one place, by the structure of each method.
fn compressed_ends(bytes: &[u8]) -> impl Iterator<Item = usize> {
    [Method::Lz4, Method::Zstd].into_iter().filter_map(move |method| {
        let body = packed_len(method, bytes, UNCOMPRESSED_BYTES_MIN..=UNCOMPRESSED_BYTES_MAX)?;
        let is_end = bytes.get(body) == Some(&(method as u8)) && body + SEAL_BYTES <= bytes.len();
        is_end.then_some(body + SEAL_BYTES)
    })
}

/// Where a block at the beginning of `bytes` that is stored as it is can end.
fn plain_ends(bytes: &[u8]) -> impl Iterator<Item = usize> {
    let first = Layout::slot(bytes, 0).filter(|slot| {
        slot.shared == 0 && slot.key_end > slot.key_start && slot.kind().is_some() && slot.payload_end < bytes.len()
    });
    first.into_iter().flat_map(move |first| {
        let to = bytes.len().min(first.payload_end.saturating_add(SEARCHED_BYTES));
        (first.payload_end + SEAL_BYTES..=to).filter(move |&end| is_plain_end(&bytes[..end], &first))
    })
}

/// Whether a block that begins with the entry `first` can end where `sealed` does: whether its method, its restarts, of
/// which the first one is that entry, and its prefix are possible.
fn is_plain_end(sealed: &[u8], first: &Slot) -> bool {
    let Some((body, [method, ..])) = sealed.split_last_chunk::<SEAL_BYTES>() else { return false };
    let Some((rest, tail)) = body.split_last_chunk::<FIXED_TAIL_BYTES>() else { return false };
    let [a, b, c, d, e, f, g, h] = *tail;
    let prefix_len = u32::from_le_bytes([a, b, c, d]) as usize;
    let restarts = u32::from_le_bytes([e, f, g, h]) as usize;
    let entries_end = rest.len().checked_sub(restarts.saturating_mul(RESTART_BYTES));
    *method == Method::Plain as u8
        && restarts > 0
        && prefix_len <= first.key_end - first.key_start
        && entries_end.is_some_and(|end| end >= first.payload_end)
        && rest[rest.len() - restarts * 4..].starts_with(&[0; 4])
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
    use std::cell::Cell;

    use bifold_contract::{Entry, Kind};
    use proptest::prelude::*;

    use super::*;
    use crate::{
        block::{BlockBuilder, sealed::seal},
        compression::{Compression, Compressor},
        table::index::IndexBuilder,
    };

    thread_local! {
        /// How many checksums this thread has computed.
        pub(super) static CHECKS: Cell<usize> = const { Cell::new(0) };
    }

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

    /// An index has many small numbers, as lengths, methods and counts of restarts are.
    #[test]
    fn few_checksums_are_computed_where_no_block_begins() {
        let mut index = IndexBuilder::default();
        (1u64..=500).for_each(|at| index.add(format!("key{at:06}").as_bytes(), at * 4000));
        let mut bytes = Vec::new();
        index.finish(&mut bytes);
        CHECKS.set(0);
        assert!((0..bytes.len()).all(|at| block_at(&bytes[at..], (3, at as u64)).is_none()));
        let checks = CHECKS.get();
        assert!(checks <= bytes.len(), "{checks} checksums at {} offsets", bytes.len());
    }
}
