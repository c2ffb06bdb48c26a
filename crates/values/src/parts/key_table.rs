//! Keys of a GC run, with what is known of each: one allocation for all keys instead of one for each.

use bifold_format::filter::key_hash;
use hashbrown::HashTable;

/// What is known of keys. Keys are compared by their bytes; the hash only finds them.
#[derive(Debug)]
pub struct KeyTable<T> {
    entries: Vec<Entry<T>>,
    /// Where the keys stand, one behind the other.
    bytes: Vec<u8>,
    /// Their numbers, by hash.
    by_hash: HashTable<u32>,
}

#[derive(Debug)]
struct Entry<T> {
    start: usize,
    len: u32,
    what: T,
}

impl<T> Default for KeyTable<T> {
    fn default() -> Self {
        Self { entries: Vec::new(), bytes: Vec::new(), by_hash: HashTable::new() }
    }
}

impl<T> KeyTable<T> {
    /// The number of a key, by its hash and bytes.
    #[must_use]
    pub fn find(&self, hash: u64, key: &[u8]) -> Option<u32> {
        self.by_hash.find(turned(hash), |&number| self.key(number) == key).copied()
    }

    /// Adds a key that is not there, by its hash; keys are numbered from 0.
    pub fn add(&mut self, hash: u64, key: &[u8], what: T) {
        let number = u32::try_from(self.entries.len());
        let number = number.unwrap_or_else(|_| unreachable!("that many keys do not fit into memory"));
        make_room(&mut self.entries, 1);
        self.entries.push(Entry { start: self.bytes.len(), len: key.len() as u32, what });
        make_room(&mut self.bytes, key.len());
        self.bytes.extend_from_slice(key);
        let Self { entries, bytes, by_hash } = self;
        let hash_of = |&number: &u32| turned(key_hash(entries[number as usize].key(bytes)));
        by_hash.insert_unique(turned(hash), number, hash_of);
    }

    /// Bytes of memory that it takes, about.
    #[must_use]
    pub fn memory_bytes(&self) -> usize {
        self.entries.capacity() * size_of::<Entry<T>>() + self.bytes.capacity() + self.by_hash.allocation_size()
    }

    /// A key, by its number.
    #[must_use]
    pub fn key(&self, number: u32) -> &[u8] {
        self.entries[number as usize].key(&self.bytes)
    }

    /// The hash of a key, by its number.
    #[must_use]
    pub fn hash(&self, number: u32) -> u64 {
        key_hash(self.key(number))
    }

    /// What is known of a key, by its number.
    #[must_use]
    pub fn at(&self, number: u32) -> &T {
        &self.entries[number as usize].what
    }

    /// What is known of a key, by its number.
    pub fn at_mut(&mut self, number: u32) -> &mut T {
        &mut self.entries[number as usize].what
    }

    /// The numbers of all keys.
    pub fn numbers(&self) -> impl ExactSizeIterator<Item = u32> + use<T> {
        0..self.entries.len() as u32
    }
}

impl<T> Entry<T> {
    fn key<'b>(&self, bytes: &'b [u8]) -> &'b [u8] {
        &bytes[self.start..self.start + self.len as usize]
    }
}

/// All keys of a group have the same low bits, by which the table finds its slots.
fn turned(hash: u64) -> u64 {
    hash.rotate_left(u64::BITS / 2)
}

/// A vector that doubles when it is full wastes up to half of the memory of a GC run. Large ones are moved by the
/// system's page tables, so smaller steps cost little.
pub fn make_room<T>(vec: &mut Vec<T>, more: usize) {
    if vec.capacity() - vec.len() < more {
        vec.reserve_exact(more.max(vec.len() / 8).max(64));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_of_one_hash_are_told_apart() {
        let mut table = KeyTable::default();
        // Another hash than the key's, as for keys whose hashes are equal. Few keys, so the table does not grow.
        for (number, key) in ["a", "bb", ""].into_iter().enumerate() {
            assert_eq!(table.find(7, key.as_bytes()), None);
            table.add(7, key.as_bytes(), key.len());
            assert_eq!(table.find(7, key.as_bytes()), Some(number as u32));
        }
        assert_eq!(table.find(7, b"c"), None);
    }

    #[test]
    fn keys_are_found_by_their_bytes_and_numbered() {
        let mut table = KeyTable::default();
        let keys: Vec<String> = (0..1000).map(|n| format!("{n:0width$}", width = n % 7)).collect();
        let distinct: std::collections::BTreeSet<&String> = keys.iter().collect();
        for (number, key) in distinct.iter().enumerate() {
            let (key, number) = (key.as_bytes(), number as u32);
            assert_eq!(table.find(key_hash(key), key), None);
            table.add(key_hash(key), key, key.len());
            assert_eq!((table.hash(number), table.key(number), *table.at(number)), (key_hash(key), key, key.len()));
        }
        for (number, key) in distinct.iter().enumerate() {
            assert_eq!(table.find(key_hash(key.as_bytes()), key.as_bytes()), Some(number as u32));
        }
        assert_eq!(table.numbers().count(), distinct.len());
    }

    #[test]
    fn it_takes_little_more_memory_than_what_is_in_it() {
        let mut table = KeyTable::default();
        for n in 0..100_000_u64 {
            let key = n.to_be_bytes();
            table.add(key_hash(&key), &key, [n; 5]);
        }
        let needed = 100_000 * (size_of::<Entry<[u64; 5]>>() + 8);
        let of_vectors = table.entries.capacity() * size_of::<Entry<[u64; 5]>>() + table.bytes.capacity();
        assert!(of_vectors < needed * 9 / 8 + 10_000, "{of_vectors} of {needed}");
        assert_eq!(table.memory_bytes() - of_vectors, table.by_hash.allocation_size());
    }
}
