//! Hash maps by key with the same order in every run, so that what is done in their order is repeatable.

use std::hash::{BuildHasherDefault, Hasher};

use bifold_format::filter::key_hash;

/// A hash map without a random seed. Keys are hashed as everywhere else in the store.
pub type HashMap<K, V> = std::collections::HashMap<K, V, BuildHasherDefault<KeyHasher>>;

/// Hashes one key, or one number.
#[derive(Clone, Copy, Debug, Default)]
pub struct KeyHasher(u64);

impl Hasher for KeyHasher {
    fn write(&mut self, bytes: &[u8]) {
        self.0 ^= key_hash(bytes);
    }

    fn write_u64(&mut self, number: u64) {
        self.write(&number.to_le_bytes());
    }

    /// The length before a slice: it is in the slice's hash already.
    fn write_usize(&mut self, _length: usize) {}

    fn finish(&self) -> u64 {
        self.0
    }
}
