//! Checksums bound to a position: the same bytes in another file, or elsewhere in the same file, do not match.

use bifold_contract::FileId;
use twox_hash::XxHash3_64;

/// XXH3-64 of `data`, which starts at `offset` of `file`. With the widest instructions that the processor has: 4 KiB
/// take half as long as with those that every processor has.
#[inline]
#[must_use]
pub fn checksum(data: &[u8], file: FileId, offset: u64) -> u64 {
    XxHash3_64::oneshot_with_seed(seed(file, offset), data)
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

    /// Lengths around those at which XXH3 changes its method, and those of blocks.
    #[test]
    fn what_the_processor_can_do_changes_no_checksum() {
        let data: Vec<u8> = (0..9000u32).map(|at| (at.wrapping_mul(0x9E37_79B1) >> 24) as u8).collect();
        for len in (0..300).chain([511, 512, 513, 1000, 1023, 1024, 1025, 4096, 8999]) {
            let expected = xxhash_rust::xxh3::xxh3_64_with_seed(&data[..len], seed(7, 4096));
            assert_eq!(checksum(&data[..len], 7, 4096), expected, "{len} bytes");
        }
    }

    #[test]
    fn another_place_has_another_checksum() {
        let here = checksum(b"block", 7, 4096);
        assert_ne!(here, checksum(b"block", 8, 4096));
        assert_ne!(here, checksum(b"block", 7, 0));
        assert_ne!(here, checksum(b"block", 4096, 7));
    }
}
