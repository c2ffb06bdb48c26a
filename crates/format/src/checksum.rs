//! Checksums bound to a position: the same bytes in another file, or elsewhere in the same file, do not match.

use bifold_contract::FileId;
use xxhash_rust::xxh3::xxh3_64_with_seed;

/// XXH3-64 of `data`, which starts at `offset` of `file`.
#[inline]
#[must_use]
pub fn checksum(data: &[u8], file: FileId, offset: u64) -> u64 {
    xxh3_64_with_seed(data, seed(file, offset))
}

/// Two odd constants (the fractional parts of the golden ratio and of the square root of 2) mix file and offset: a
/// block moved by n bytes in file f never has the seed of one in a nearby file.
#[inline]
fn seed(file: FileId, offset: u64) -> u64 {
    file.wrapping_mul(0x9E37_79B9_7F4A_7C15) ^ offset.wrapping_mul(0x6A09_E667_F3BC_C909).rotate_left(32)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn another_place_has_another_checksum() {
        let here = checksum(b"block", 7, 4096);
        assert_ne!(here, checksum(b"block", 8, 4096));
        assert_ne!(here, checksum(b"block", 7, 0));
        assert_ne!(here, checksum(b"block", 4096, 7));
    }
}
