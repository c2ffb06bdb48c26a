//! Blocks as stored in a file: optionally compressed, and sealed with a checksum.
//!
//! ```text
//! sealed block   body │ method u8 │ checksum u64 over body and method, bound to file id and offset
//! ```

use std::sync::Arc;

use bifold_contract::{Corruption, FileId, Value, planted};

use crate::{
    checksum::checksum,
    compression::{Compressor, Method, decompress},
};

/// Bytes after the body.
pub const SEAL_BYTES: usize = 9;

/// Largest block, uncompressed. No valid block reaches it: a block ends with the entry that fills it, and an entry
/// has at most 1 GiB and 64 KiB.
pub const BLOCK_BYTES_MAX: usize = (2 << 30) - 1;

/// Compresses and seals the block `out[start..]`, which will be at `offset` of `file`.
pub fn seal(out: &mut Vec<u8>, start: usize, compressor: &mut Compressor, file: FileId, offset: u64) {
    let method = compressor.compress(out, start);
    out.push(method as u8);
    let check = checksum(&out[start..], file, offset);
    out.extend_from_slice(&check.to_le_bytes());
}

/// The content of the sealed block `bytes[start..end]`, which was read from `offset` of `file`. An uncompressed block
/// shares the buffer. A compressed one may have at most `size_max` bytes.
///
/// # Errors
/// If the checksum does not match or the body does not decompress.
///
/// # Panics
/// If `start..end` is not within `bytes`.
#[inline]
pub fn unseal(
    bytes: Arc<[u8]>,
    (start, end): (usize, usize),
    (file, offset): (FileId, u64),
    size_max: usize,
) -> Result<Value, Corruption> {
    match check(&bytes[start..end], file, offset)? {
        Method::Plain => Ok(Value::slice(bytes, start, end - SEAL_BYTES)),
        method => {
            let body = &bytes[start..end - SEAL_BYTES];
            let block = decompress(method, body, size_max).map_err(|damage| damage.at(offset))?;
            let len = block.len();
            Ok(Value::slice(block, 0, len))
        }
    }
}

/// Checks the checksum of a sealed block and returns how its body is stored.
///
/// # Errors
/// If the checksum does not match.
#[inline]
pub fn check(sealed: &[u8], file: FileId, offset: u64) -> Result<Method, Corruption> {
    let damage = |expected, found| Corruption::new(offset, "block", expected, found);
    let Some((covered, sum)) = sealed.split_last_chunk::<8>().filter(|(covered, _)| !covered.is_empty()) else {
        return Err(damage("a body, a method and a checksum".into(), format!("{} bytes", sealed.len())));
    };
    let (expected, found) = (u64::from_le_bytes(*sum), checksum(covered, file, offset));
    if expected != found && !planted!("no_checksum_check") {
        return Err(damage(format!("checksum {expected:016x}"), format!("{found:016x}")));
    }
    let method = covered[covered.len() - 1];
    Method::from_byte(method).ok_or_else(|| damage("a known compression method".into(), method.to_string()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::compression::Compression;

    #[test]
    fn every_flipped_bit_and_every_cut_of_a_sealed_block_is_found() {
        for compression in [Compression::None, Compression::Lz4, Compression::Zstd] {
            let content = b"a block like a block like a block like a block like a block".repeat(3);
            let mut sealed = content.clone();
            seal(&mut sealed, 0, &mut Compressor::new(compression), 3, 4096);
            let open = |bytes: &[u8]| unseal(bytes.into(), (0, bytes.len()), (3, 4096), BLOCK_BYTES_MAX);
            assert_eq!(open(&sealed).unwrap(), content);
            for bit in 0..sealed.len() * 8 {
                sealed[bit / 8] ^= 1 << (bit % 8);
                assert!(open(&sealed).is_err(), "{compression:?}: bit {bit}");
                sealed[bit / 8] ^= 1 << (bit % 8);
            }
            for len in 0..sealed.len() {
                assert!(open(&sealed[..len]).is_err(), "{compression:?}: truncated to {len} bytes");
            }
        }
    }

    #[test]
    fn a_block_larger_than_the_reader_expects_is_refused() {
        let mut sealed = vec![7; 10_000];
        seal(&mut sealed, 0, &mut Compressor::new(Compression::Lz4), 3, 0);
        let open = |max| unseal(sealed[..].into(), (0, sealed.len()), (3, 0), max);
        assert!(open(10_000).is_ok());
        assert!(open(9_999).is_err());
    }
}
