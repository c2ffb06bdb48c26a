//! The newest record of each key, for as many keys at a time as memory allows.

use std::collections::BTreeMap;

use bifold_contract::SeqNo;
use bifold_format::{filter::key_hash, value::ValueKind};

/// Bytes of a key's entry without the key: two places (72), a box (16), both in a map node that is two thirds full
/// (× 1.5), the allocator's overhead (16), its entry in the list of values to read (64), and in the list of values
/// that may have been dropped (16).
const ENTRY_BYTES: usize = 240;

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

    pub fn covers(self, key: &[u8]) -> bool {
        key_hash(key) % self.modulus == self.residue
    }

    /// Whether it is halved no more.
    pub fn is_smallest(self) -> bool {
        self.modulus >= MODULUS_MAX
    }

    /// Its two halves.
    pub fn halves(self) -> (Self, Self) {
        let modulus = self.modulus * 2;
        (Self { modulus, ..self }, Self { modulus, residue: self.residue + self.modulus })
    }
}

/// A record and where it is.
#[derive(Clone, Copy, Debug)]
pub(super) struct Place {
    pub seqno: SeqNo,
    pub offset: u64,
    /// The file: an index into the opened files.
    pub source: u32,
    pub len: u32,
    pub kind: ValueKind,
}

impl Place {
    /// Of two records with the same number the one in the later file is newer: a crash took back the commit of the
    /// other. An exception is a tag, which has the number of its value: the value says more.
    fn is_newer_than(&self, other: &Self) -> bool {
        let order = |place: &Self| (place.seqno, place.kind != ValueKind::Tag, place.source, place.offset);
        order(self) > order(other)
    }
}

/// What is known about a key.
#[derive(Clone, Copy, Debug)]
pub(super) struct Known {
    /// Its newest record.
    pub newest: Place,
    /// Its newest value.
    pub value: Option<Place>,
    /// A drop-key names its newest record.
    pub is_dropped: bool,
}

/// By keyspace, the numbers of values that are the newest records of their keys, and whether a drop-key names each.
pub(super) struct NewestVersions(Vec<Vec<(SeqNo, bool)>>);

impl NewestVersions {
    /// Notes that a drop-key names this version.
    pub fn dropped(&mut self, keyspace: usize, seqno: SeqNo) {
        let numbers = &mut self.0[keyspace];
        if let Ok(at) = numbers.binary_search_by_key(&seqno, |asked| asked.0) {
            numbers[at].1 = true;
        }
    }

    fn is_dropped(&self, keyspace: usize, seqno: SeqNo) -> bool {
        self.0[keyspace].binary_search(&(seqno, true)).is_ok()
    }
}

/// The keys of one subset.
pub(super) struct Newest {
    subset: Subset,
    /// By keyspace.
    keys: Vec<BTreeMap<Box<[u8]>, Known>>,
    bytes: usize,
    bytes_max: usize,
    /// Subsets that did not fit.
    pub left: Vec<Subset>,
}

impl Newest {
    pub fn new(subset: Subset, keyspaces: usize, bytes_max: usize) -> Self {
        Self { subset, keys: vec![BTreeMap::new(); keyspaces], bytes: 0, bytes_max, left: Vec::new() }
    }

    /// All keys with what is known about them, in the order of keyspaces and keys.
    pub fn keys(&self) -> impl Iterator<Item = (usize, &[u8], &Known)> {
        self.keys.iter().enumerate().flat_map(|(at, keys)| keys.iter().map(move |(key, known)| (at, &**key, known)))
    }

    /// The newest values, for which the caller looks up drop-keys. All other drop-keys are ignored.
    pub fn ask(&self) -> NewestVersions {
        let asked = |keys: &BTreeMap<Box<[u8]>, Known>| {
            let values = keys.values().filter(|known| known.newest.kind == ValueKind::Value);
            let mut numbers: Vec<_> = values.map(|known| (known.newest.seqno, false)).collect();
            numbers.sort_unstable();
            // Two keys have the same number only if a crash took back the commit of one. They are dropped together.
            numbers.dedup();
            numbers
        };
        NewestVersions(self.keys.iter().map(asked).collect())
    }

    /// Notes which of the newest values were dropped.
    pub fn answer(&mut self, answer: &NewestVersions) {
        for (keyspace, keys) in self.keys.iter_mut().enumerate() {
            keys.values_mut().for_each(|known| known.is_dropped = answer.is_dropped(keyspace, known.newest.seqno));
        }
    }

    /// Takes a record into account if its key belongs to this subset.
    pub fn add(&mut self, keyspace: usize, key: &[u8], place: Place) {
        if !self.subset.covers(key) {
            return;
        }
        let value = (place.kind == ValueKind::Value).then_some(place);
        if let Some(known) = self.keys[keyspace].get_mut(key) {
            if place.is_newer_than(&known.newest) {
                known.newest = place;
            }
            if value.is_some_and(|value| known.value.is_none_or(|known| value.is_newer_than(&known))) {
                known.value = value;
            }
            return;
        }
        self.keys[keyspace].insert(key.into(), Known { newest: place, value, is_dropped: false });
        self.bytes += key.len() + ENTRY_BYTES;
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
        for keys in &mut self.keys {
            keys.retain(|key, _| mine.covers(key));
            self.bytes += keys.keys().map(|key| key.len() + ENTRY_BYTES).sum::<usize>();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn place(seqno: SeqNo, source: u32, kind: ValueKind) -> Place {
        Place { seqno, offset: 100, source, len: 10, kind }
    }

    #[test]
    fn every_key_comes_in_exactly_one_subset_whatever_the_memory() {
        let keys: Vec<String> = (0..1000).map(|n| format!("key {n}")).collect();
        for bytes_max in [1, 1000, 10_000, 100_000, usize::MAX] {
            let (mut left, mut found, mut subsets) = (vec![Subset::ALL], Vec::new(), 0);
            while let Some(subset) = left.pop() {
                let mut newest = Newest::new(subset, 2, bytes_max);
                for round in 0..2 {
                    keys.iter().for_each(|key| newest.add(1, key.as_bytes(), place(round, 0, ValueKind::Value)));
                }
                assert!(newest.bytes <= bytes_max.max(2 * (ENTRY_BYTES + 8)), "{bytes_max}: {}", newest.bytes);
                found.extend(newest.keys().map(|(at, key, known)| (at, key.to_vec(), known.newest.seqno)));
                left.append(&mut newest.left);
                subsets += 1;
            }
            found.sort();
            let mut expected: Vec<_> = keys.iter().map(|key| (1, key.clone().into_bytes(), 1)).collect();
            expected.sort();
            assert!(found == expected, "{bytes_max}: {} of {} keys", found.len(), keys.len());
            assert_eq!(subsets == 1, bytes_max == usize::MAX, "{bytes_max}: {subsets} subsets");
        }
    }

    #[test]
    fn a_drop_key_matters_to_the_newest_value_alone() {
        use ValueKind::{Delete, Value};
        let mut newest = Newest::new(Subset::ALL, 2, usize::MAX);
        newest.add(0, b"dropped", place(3, 0, Value));
        newest.add(0, b"dropped", place(2, 0, Value));
        newest.add(0, b"overwritten", place(4, 0, Value));
        newest.add(0, b"overwritten", place(5, 0, Value));
        newest.add(0, b"deleted", place(6, 0, Delete));
        newest.add(1, b"another keyspace", place(3, 0, Value));
        let mut asked = newest.ask();
        [1, 2, 3, 4, 6].into_iter().for_each(|seqno| asked.dropped(0, seqno));
        newest.answer(&asked);
        let dropped: Vec<_> = newest.keys().filter(|(.., known)| known.is_dropped).map(|(_, key, _)| key).collect();
        assert_eq!(dropped, [b"dropped"]);
    }

    #[test]
    fn the_newest_record_decides_in_whatever_order_they_come() {
        use ValueKind::{Delete, Stub, Value};
        let places =
            [place(3, 0, Value), place(7, 2, Delete), place(5, 1, Value), place(6, 0, Stub), place(7, 1, Value)];
        for first in 0..places.len() {
            let mut newest = Newest::new(Subset::ALL, 1, usize::MAX);
            (0..places.len()).for_each(|at| newest.add(0, b"k", places[(first + at) % places.len()]));
            let (_, _, known) = newest.keys().next().unwrap();
            assert_eq!((known.newest.seqno, known.newest.kind), (7, Delete), "from {first}");
            assert_eq!(known.value.map(|value| (value.seqno, value.source)), Some((7, 1)), "from {first}");
        }
    }
}
