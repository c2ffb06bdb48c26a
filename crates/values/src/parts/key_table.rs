//! Keys of a GC run, with what is known of each: one allocation for all keys instead of one for each.

use bifold_format::filter::key_hash;

use super::hash_map::HashedMap;

/// What is known of keys. Keys are compared by their bytes; the hash only finds them.
#[derive(Debug)]
pub struct KeyTable<T> {
    entries: Vec<Entry<T>>,
    /// Where the keys stand, one behind the other.
    bytes: Vec<u8>,
    /// The last key added with each hash.
    by_hash: HashedMap<u32>,
}

#[derive(Debug)]
struct Entry<T> {
    start: usize,
    len: u32,
    /// The key of the same hash that was added before this one.
    before: u32,
    what: T,
}

const NONE: u32 = u32::MAX;

impl<T> Default for KeyTable<T> {
    fn default() -> Self {
        Self { entries: Vec::new(), bytes: Vec::new(), by_hash: HashedMap::default() }
    }
}

impl<T> KeyTable<T> {
    /// The number of a key, by its hash and bytes.
    #[must_use]
    pub fn find(&self, hash: u64, key: &[u8]) -> Option<u32> {
        let mut at = self.by_hash.get(&hash).copied();
        while let Some(number) = at.filter(|&number| self.key(number) != key) {
            at = Some(self.entries[number as usize].before).filter(|&before| before != NONE);
        }
        at
    }

    /// Adds a key that is not there, by its hash; keys are numbered from 0.
    pub fn add(&mut self, hash: u64, key: &[u8], what: T) {
        let number = u32::try_from(self.entries.len()).ok().filter(|&number| number != NONE);
        let number = number.unwrap_or_else(|| unreachable!("that many keys do not fit into memory"));
        let before = self.by_hash.insert(hash, number).unwrap_or(NONE);
        make_room(&mut self.entries, 1);
        self.entries.push(Entry { start: self.bytes.len(), len: key.len() as u32, before, what });
        make_room(&mut self.bytes, key.len());
        self.bytes.extend_from_slice(key);
    }

    /// Bytes of memory that it takes, about.
    #[must_use]
    pub fn memory_bytes(&self) -> usize {
        // A map has a byte for each slot, and an eighth of the slots stay free.
        let of_map = self.by_hash.capacity() * (size_of::<(u64, u32)>() + 1) * 8 / 7;
        self.entries.capacity() * size_of::<Entry<T>>() + self.bytes.capacity() + of_map
    }

    /// A key, by its number.
    #[must_use]
    pub fn key(&self, number: u32) -> &[u8] {
        let Entry { start, len, .. } = self.entries[number as usize];
        &self.bytes[start..start + len as usize]
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
    pub fn numbers(&self) -> impl Iterator<Item = u32> + use<T> {
        0..self.entries.len() as u32
    }
}

/// A vector that doubles when it is full wastes up to half of the memory of a GC run. Large ones are moved by the
/// system's page tables, so smaller steps cost little.
fn make_room<T>(vec: &mut Vec<T>, more: usize) {
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
        for (hash, key) in [(7, "a"), (7, "bb"), (9, "bb"), (7, "")] {
            assert_eq!(table.find(hash, key.as_bytes()), None);
            table.add(hash, key.as_bytes(), key.len());
        }
        for (number, (hash, key)) in [(7, "a"), (7, "bb"), (9, "bb"), (7, "")].into_iter().enumerate() {
            let number = number as u32;
            assert_eq!(table.find(hash, key.as_bytes()), Some(number));
            assert_eq!((table.hash(number), table.key(number)), (key_hash(key.as_bytes()), key.as_bytes()));
            assert_eq!(*table.at(number), key.len());
        }
        assert_eq!(table.find(9, b"a"), None);
    }
    #[test]
    fn it_takes_little_more_memory_than_what_is_in_it() {
        let mut table = KeyTable::default();
        for n in 0..100_000_u64 {
            let key = n.to_be_bytes();
            table.add(key_hash(&key), &key, [n; 5]);
        }
        let needed = 100_000 * (size_of::<Entry<[u64; 5]>>() + 8);
        let of_map =
            table.memory_bytes() - table.entries.capacity() * size_of::<Entry<[u64; 5]>>() - table.bytes.capacity();
        assert!(table.memory_bytes() - of_map < needed * 9 / 8 + 10_000, "{} of {needed}", table.memory_bytes());
    }
}
