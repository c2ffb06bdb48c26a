//! The newest record of each key, as many keys at a time as memory allows.

use std::collections::BTreeMap;

use bifold_contract::SeqNo;
use bifold_format::{filter::key_hash, value::ValueKind};

/// Bytes of a key's entry beside the key: two places (72), a box (16), their share of a node that is two thirds full (×
/// 1.5), what the allocator adds (16), its line in the list of what is to be read (64), and in that of what may have been
/// dropped (16).
const ENTRY_BYTES: usize = 240;

/// Parts are not halved further: then a part has a millionth of all keys, and a few large ones may go beyond the limit.
const MODULUS_MAX: u64 = 1 << 20;

/// Keys whose hash leaves this residue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Part {
    modulus: u64,
    residue: u64,
}

impl Part {
    /// All keys.
    pub const ALL: Self = Self { modulus: 1, residue: 0 };

    fn covers(self, key: &[u8]) -> bool {
        key_hash(key) % self.modulus == self.residue
    }

    /// Both halves of it.
    fn halves(self) -> (Self, Self) {
        let modulus = self.modulus * 2;
        (Self { modulus, ..self }, Self { modulus, residue: self.residue + self.modulus })
    }
}

/// A record and where it stands.
#[derive(Clone, Copy, Debug)]
pub(super) struct Place {
    pub seqno: SeqNo,
    pub offset: u64,
    /// RewriteScope of the files.
    pub source: u32,
    pub len: u32,
    pub kind: ValueKind,
}

impl Place {
    /// Of two records with one number the one in the later file is newer: a crash took back the commit of the other. But a
    /// tag has the number of the value that it is of, which says more.
    fn is_newer_than(&self, other: &Self) -> bool {
        let order = |place: &Self| (place.seqno, place.kind != ValueKind::Tag, place.source, place.offset);
        order(self) > order(other)
    }
}

/// What is known of a key.
#[derive(Clone, Copy, Debug)]
pub(super) struct Known {
    /// Its newest record.
    pub newest: Place,
    /// Its newest value.
    pub value: Option<Place>,
    /// A drop-key names its newest record.
    pub is_dropped: bool,
}

/// The numbers of values that are the newest records of their keys, and which of them drop-keys name; by keyspace.
pub(super) struct NewestVersions(Vec<Vec<(SeqNo, bool)>>);

impl NewestVersions {
    /// A drop-key names this version.
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

/// The keys of one part.
pub(super) struct Newest {
    part: Part,
    /// By keyspace.
    keys: Vec<BTreeMap<Box<[u8]>, Known>>,
    bytes: usize,
    bytes_max: usize,
    /// Parts that did not fit.
    pub left: Vec<Part>,
}

impl Newest {
    pub fn new(part: Part, keyspaces: usize, bytes_max: usize) -> Self {
        Self { part, keys: vec![BTreeMap::new(); keyspaces], bytes: 0, bytes_max, left: Vec::new() }
    }

    /// All keys with what is known of them, in the order of keyspaces and keys.
    pub fn keys(&self) -> impl Iterator<Item = (usize, &[u8], &Known)> {
        self.keys.iter().enumerate().flat_map(|(at, keys)| keys.iter().map(move |(key, known)| (at, &**key, known)))
    }

    /// Asks which of the values that are newest were dropped. Of all that drop-keys name only this is remembered.
    pub fn ask(&self) -> NewestVersions {
        let asked = |keys: &BTreeMap<Box<[u8]>, Known>| {
            let values = keys.values().filter(|known| known.newest.kind == ValueKind::Value);
            let mut numbers: Vec<_> = values.map(|known| (known.newest.seqno, false)).collect();
            numbers.sort_unstable();
            // Two keys have one number only if a crash took back the commit of one: they are dropped together.
            numbers.dedup();
            numbers
        };
        NewestVersions(self.keys.iter().map(asked).collect())
    }

    /// Takes the answer.
    pub fn answer(&mut self, answer: &NewestVersions) {
        for (keyspace, keys) in self.keys.iter_mut().enumerate() {
            keys.values_mut().for_each(|known| known.is_dropped = answer.is_dropped(keyspace, known.newest.seqno));
        }
    }

    /// Takes a record into account, if its key belongs to this part.
    pub fn add(&mut self, keyspace: usize, key: &[u8], place: Place) {
        if !self.part.covers(key) {
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
        while self.bytes > self.bytes_max && self.part.modulus < MODULUS_MAX {
            self.halve();
        }
    }

    /// Leaves half of the keys to a later pass.
    fn halve(&mut self) {
        let (mine, other) = self.part.halves();
        self.part = mine;
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
    fn every_key_comes_in_exactly_one_part_whatever_the_memory() {
        let keys: Vec<String> = (0..1000).map(|n| format!("key {n}")).collect();
        for bytes_max in [1, 1000, 10_000, 100_000, usize::MAX] {
            let (mut left, mut met, mut parts) = (vec![Part::ALL], Vec::new(), 0);
            while let Some(part) = left.pop() {
                let mut newest = Newest::new(part, 2, bytes_max);
                for round in 0..2 {
                    keys.iter().for_each(|key| newest.add(1, key.as_bytes(), place(round, 0, ValueKind::Value)));
                }
                assert!(newest.bytes <= bytes_max.max(2 * (ENTRY_BYTES + 8)), "{bytes_max}: {}", newest.bytes);
                met.extend(newest.keys().map(|(at, key, known)| (at, key.to_vec(), known.newest.seqno)));
                left.append(&mut newest.left);
                parts += 1;
            }
            met.sort();
            let mut expected: Vec<_> = keys.iter().map(|key| (1, key.clone().into_bytes(), 1)).collect();
            expected.sort();
            assert!(met == expected, "{bytes_max}: {} of {} keys", met.len(), keys.len());
            assert_eq!(parts == 1, bytes_max == usize::MAX, "{bytes_max}: {parts} parts");
        }
    }

    #[test]
    fn a_drop_key_matters_to_the_newest_value_alone() {
        use ValueKind::{Delete, Value};
        let mut newest = Newest::new(Part::ALL, 2, usize::MAX);
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
            let mut newest = Newest::new(Part::ALL, 1, usize::MAX);
            (0..places.len()).for_each(|at| newest.add(0, b"k", places[(first + at) % places.len()]));
            let (_, _, known) = newest.keys().next().unwrap();
            assert_eq!((known.newest.seqno, known.newest.kind), (7, Delete), "from {first}");
            assert_eq!(known.value.map(|value| (value.seqno, value.source)), Some((7, 1)), "from {first}");
        }
    }
}
