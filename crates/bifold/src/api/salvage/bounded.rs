//! What is known of keys, for as many keys at a time as memory allows.

use std::collections::BTreeMap;

use bifold_format::filter::key_hash;

/// The smallest subset has a millionth of all keys. It is not halved again, so a few large keys may exceed the limit.
const MODULUS_MAX: u64 = 1 << 20;

/// The keys whose hash has this residue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Subset {
    modulus: u64,
    residue: u64,
}

impl Subset {
    /// All keys.
    pub const ALL: Self = Self { modulus: 1, residue: 0 };

    fn covers(self, key: &[u8]) -> bool {
        key_hash(key) % self.modulus == self.residue
    }

    /// Whether it is halved no more.
    fn is_smallest(self) -> bool {
        self.modulus >= MODULUS_MAX
    }

    /// Its two halves.
    fn halves(self) -> (Self, Self) {
        let modulus = self.modulus * 2;
        (Self { modulus, ..self }, Self { modulus, residue: self.residue + self.modulus })
    }
}

/// What is known of a key.
pub(super) trait OfKey {
    /// Bytes that it takes in memory, without the key.
    fn bytes(&self) -> usize;

    /// Takes into account what else is known.
    fn join(&mut self, other: Self);
}

/// What is known of the keys of one subset, by spaces of keys. If the keys do not fit, half of them are left to a later
/// pass, again and again.
pub(super) struct BoundedKeys<S, V> {
    subset: Subset,
    spaces: BTreeMap<S, BTreeMap<Box<[u8]>, V>>,
    bytes: usize,
    bytes_max: usize,
    /// Subsets that did not fit.
    pub left: Vec<Subset>,
}

impl<S: Ord + Copy, V: OfKey> BoundedKeys<S, V> {
    pub fn new(subset: Subset, bytes_max: usize) -> Self {
        Self { subset, spaces: BTreeMap::new(), bytes: 0, bytes_max, left: Vec::new() }
    }

    /// Whether a key belongs to the subset.
    pub fn covers(&self, key: &[u8]) -> bool {
        self.subset.covers(key)
    }

    /// Takes what is known of a key into account, if it belongs to the subset.
    pub fn add(&mut self, space: S, key: &[u8], known: V) {
        if !self.subset.covers(key) {
            return;
        }
        let keys = self.spaces.entry(space).or_default();
        if let Some(present) = keys.get_mut(key) {
            self.bytes -= present.bytes();
            present.join(known);
            self.bytes += present.bytes();
        } else {
            self.bytes += key.len() + known.bytes();
            keys.insert(key.into(), known);
        }
        while self.bytes > self.bytes_max && !self.subset.is_smallest() {
            self.halve();
        }
    }

    /// Leaves half of the keys to a later pass.
    fn halve(&mut self) {
        let (mine, other) = self.subset.halves();
        self.subset = mine;
        self.left.push(other);
        self.bytes = 0;
        for keys in self.spaces.values_mut() {
            keys.retain(|key, _| mine.covers(key));
            self.bytes += keys.iter().map(|(key, known)| key.len() + known.bytes()).sum::<usize>();
        }
    }

    /// All keys with what is known about them, in the order of spaces and keys.
    pub fn keys(&self) -> impl Iterator<Item = (S, &[u8], &V)> {
        self.spaces.iter().flat_map(|(&space, keys)| keys.iter().map(move |(key, known)| (space, &**key, known)))
    }

    /// The same, to be changed. What is known must not grow.
    pub fn keys_mut(&mut self) -> impl Iterator<Item = (S, &mut V)> {
        self.spaces.iter_mut().flat_map(|(&space, keys)| keys.values_mut().map(move |known| (space, known)))
    }

    /// Takes out the keys of a space.
    pub fn take(&mut self, space: S) -> BTreeMap<Box<[u8]>, V> {
        self.spaces.remove(&space).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Numbers of a key, of eight bytes each.
    #[derive(Debug, PartialEq)]
    struct Numbers(Vec<u64>);

    impl OfKey for Numbers {
        fn bytes(&self) -> usize {
            8 * self.0.len()
        }

        fn join(&mut self, other: Self) {
            self.0.extend(other.0);
        }
    }

    #[test]
    fn every_key_comes_in_exactly_one_subset_whatever_the_memory() {
        let keys: Vec<String> = (0..1000).map(|n| format!("key {n}")).collect();
        for bytes_max in [1, 1000, 10_000, 20_000, usize::MAX] {
            let (mut left, mut found, mut subsets) = (vec![Subset::ALL], Vec::new(), 0);
            while let Some(subset) = left.pop() {
                let mut bounded = BoundedKeys::new(subset, bytes_max);
                for round in 0..2 {
                    keys.iter().for_each(|key| bounded.add(7, key.as_bytes(), Numbers(vec![round])));
                }
                assert!(bounded.bytes <= bytes_max.max(2 * (16 + 8)), "{bytes_max}: {}", bounded.bytes);
                assert_eq!(bounded.bytes, bounded.keys().map(|(_, key, known)| key.len() + known.bytes()).sum());
                found.extend(bounded.keys().map(|(at, key, known)| (at, key.to_vec(), known.0.clone())));
                left.append(&mut bounded.left);
                subsets += 1;
            }
            found.sort();
            let mut expected: Vec<_> = keys.iter().map(|key| (7, key.clone().into_bytes(), vec![0, 1])).collect();
            expected.sort();
            assert!(found == expected, "{bytes_max}: {} of {} keys", found.len(), keys.len());
            assert_eq!(subsets == 1, bytes_max == usize::MAX, "{bytes_max}: {subsets} subsets");
        }
    }
}
