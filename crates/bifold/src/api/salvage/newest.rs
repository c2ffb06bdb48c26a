//! The newest record of each key.

use std::collections::BTreeMap;

use bifold_contract::SeqNo;
use bifold_format::value::ValueKind;

use super::bounded::{BoundedKeys, OfKey};

/// Bytes of a key's entry without the key: two places (72), a box (16), both in a map node that is two thirds full
/// (× 1.5), the allocator's overhead (16), its entry in the list of values to read (64), and in the list of values
/// that may have been dropped (16).
const ENTRY_BYTES: usize = 240;

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

impl Known {
    /// What a record tells of its key.
    pub fn of(place: Place) -> Self {
        Self { newest: place, value: (place.kind == ValueKind::Value).then_some(place), is_dropped: false }
    }
}

impl OfKey for Known {
    fn bytes(&self) -> usize {
        ENTRY_BYTES
    }

    fn join(&mut self, other: Self) {
        if other.newest.is_newer_than(&self.newest) {
            self.newest = other.newest;
        }
        if other.value.is_some_and(|value| self.value.is_none_or(|known| value.is_newer_than(&known))) {
            self.value = other.value;
        }
    }
}

/// The keys of one subset, by keyspace: an index into `Salvage::keyspaces`.
pub(super) type Newest = BoundedKeys<usize, Known>;

/// By keyspace, the numbers of values that are the newest records of their keys, and whether a drop-key names each.
pub(super) struct NewestVersions(BTreeMap<usize, Vec<(SeqNo, bool)>>);

impl NewestVersions {
    /// The newest values, for which the caller looks up drop-keys. All other drop-keys are ignored.
    pub fn of(newest: &Newest) -> Self {
        let mut asked = BTreeMap::<usize, Vec<_>>::new();
        for (keyspace, _, known) in newest.keys().filter(|(.., known)| known.newest.kind == ValueKind::Value) {
            asked.entry(keyspace).or_default().push((known.newest.seqno, false));
        }
        for numbers in asked.values_mut() {
            numbers.sort_unstable();
            // Two keys have the same number only if a crash took back the commit of one. They are dropped together.
            numbers.dedup();
        }
        Self(asked)
    }

    /// Notes that a drop-key names this version.
    pub fn dropped(&mut self, keyspace: usize, seqno: SeqNo) {
        let Some(numbers) = self.0.get_mut(&keyspace) else { return };
        if let Ok(at) = numbers.binary_search_by_key(&seqno, |asked| asked.0) {
            numbers[at].1 = true;
        }
    }

    /// Notes of each key whether its newest value was dropped.
    pub fn tell(&self, newest: &mut Newest) {
        for (keyspace, known) in newest.keys_mut() {
            let numbers = self.0.get(&keyspace);
            known.is_dropped = numbers.is_some_and(|of| of.binary_search(&(known.newest.seqno, true)).is_ok());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{super::bounded::Subset, *};

    fn place(seqno: SeqNo, source: u32, kind: ValueKind) -> Place {
        Place { seqno, offset: 100, source, len: 10, kind }
    }

    #[test]
    fn a_drop_key_matters_to_the_newest_value_alone() {
        use ValueKind::{Delete, Value};
        let mut newest = Newest::new(Subset::ALL, usize::MAX);
        newest.add(0, b"dropped", Known::of(place(3, 0, Value)));
        newest.add(0, b"dropped", Known::of(place(2, 0, Value)));
        newest.add(0, b"overwritten", Known::of(place(4, 0, Value)));
        newest.add(0, b"overwritten", Known::of(place(5, 0, Value)));
        newest.add(0, b"deleted", Known::of(place(6, 0, Delete)));
        newest.add(1, b"another keyspace", Known::of(place(3, 0, Value)));
        let mut asked = NewestVersions::of(&newest);
        [1, 2, 3, 4, 6].into_iter().for_each(|seqno| asked.dropped(0, seqno));
        asked.tell(&mut newest);
        let dropped: Vec<_> = newest.keys().filter(|(.., known)| known.is_dropped).map(|(_, key, _)| key).collect();
        assert_eq!(dropped, [b"dropped"]);
    }

    #[test]
    fn the_newest_record_decides_in_whatever_order_they_come() {
        use ValueKind::{Delete, Stub, Value};
        let places =
            [place(3, 0, Value), place(7, 2, Delete), place(5, 1, Value), place(6, 0, Stub), place(7, 1, Value)];
        for first in 0..places.len() {
            let mut newest = Newest::new(Subset::ALL, usize::MAX);
            (0..places.len()).for_each(|at| newest.add(0, b"k", Known::of(places[(first + at) % places.len()])));
            let (_, _, known) = newest.keys().next().unwrap();
            assert_eq!((known.newest.seqno, known.newest.kind), (7, Delete), "from {first}");
            assert_eq!(known.value.map(|value| (value.seqno, value.source)), Some((7, 1)), "from {first}");
        }
    }
}
