//! What a database shows of its workload: the number and sizes of its entries, and the number of writes.

use std::{collections::BTreeMap, path::Path};

use bifold::{Access, Keyspace, Options, Pair};
use bifold_vat::advise::{Operations, ValueSize, Workload};

use crate::{
    failure::{Failure, Result},
    global::Global,
    open,
    progress::Progress,
};

/// Places in key order from which entries are sampled.
const PLACES: u64 = 256;

/// Entries sampled at each place.
const ENTRIES: usize = 64;

/// Entries of each assumed scan.
const SCAN_ENTRIES: f64 = 100.0;

/// The figures of a database.
pub struct Stored {
    keys: f64,
    key_bytes: f64,
    values: Vec<ValueSize>,
    /// Writes since it was created, including moves of values.
    writes: f64,
    /// The keyspace's.
    space_target: f64,
}

impl Stored {
    /// The figures of one keyspace of a database.
    pub fn of(path: &Path, global: &Global) -> Result<Self> {
        // Options that are given are those of the advice: the database is read as it is.
        let as_it_is = Global { set: Vec::new(), options: None, ..global.clone() };
        let (db, keyspace) = open::existing_keyspace(path, &as_it_is, Access::ReadOnly)?;
        let stats = db.stats();
        let entries = stats.keyspaces.iter().find(|k| k.name == global.keyspace).map_or(0, |k| k.entries_estimate);
        let sample = Sample::take(&keyspace)?;
        if sample.entries == 0 {
            let why = "is empty, so it shows no workload: describe one with --workload";
            return Err(Failure::trouble(format!("{}: keyspace `{}` {why}", path.display(), global.keyspace)));
        }
        let sampled = sample.entries as f64;
        let keys = if sample.is_all { sampled } else { (entries as f64).max(sampled) };
        Ok(Self {
            keys,
            key_bytes: (sample.key_bytes as f64 / sampled).max(1.0),
            values: sample.values(),
            writes: stats.seqno as f64,
            space_target: keyspace.options().values.space_target,
        })
    }

    /// The options of the advice where none are given: what is stored bounds the space.
    pub fn options(&self) -> Options {
        let mut options = open::of_anyone();
        options.keyspace.values.space_target = self.space_target;
        options
    }

    /// Its sizes, with the operations of another workload.
    pub fn under(self, described: Workload) -> Workload {
        Workload { keys: self.keys, key_bytes: self.key_bytes, values: self.values, ..described }
    }

    /// Its sizes, and its writes as recorded: a write beyond the present entries counts as an update.
    pub fn assuming(self, reads_per_write: f64, scans_per_write: f64, skew: f64) -> Workload {
        let inserts = self.keys.min(self.writes.max(1.0));
        let updates = (self.writes - inserts).max(0.0);
        let writes = inserts + updates;
        let operations = Operations {
            insert: inserts,
            update: updates,
            delete: 0.0,
            read: writes * reads_per_write,
            scan: writes * scans_per_write,
            scan_entries: SCAN_ENTRIES,
        };
        let Self { keys, key_bytes, values, .. } = self;
        Workload { keys, key_bytes, values, operations, update_skew: skew, read_skew: skew }
    }
}

/// A sample of entries from all over a keyspace.
#[derive(Default)]
struct Sample {
    entries: u64,
    key_bytes: u64,
    /// Entries and bytes of their values, by binary order of magnitude.
    lengths: BTreeMap<u32, (u64, u64)>,
    /// Whether these are all entries, not a sample.
    is_all: bool,
}

impl Sample {
    /// Takes the first entries, and some at each of many places between the first key and the last.
    fn take(keyspace: &Keyspace) -> Result<Self> {
        let mut sample = Self { is_all: true, ..Self::default() };
        let (first, last) = (keyspace.iter().next().transpose()?, keyspace.iter().next_back().transpose()?);
        let (Some(first), Some(last)) = (first, last) else { return Ok(sample) };
        let places = between(first.key(), last.key());
        let progress = Progress::count("sampling entries", places.len() as u64);
        for (at, place) in places.iter().enumerate() {
            let mut seen = 0;
            for pair in keyspace.range(place.clone()..).limit(ENTRIES) {
                let pair = pair?;
                if places.get(at + 1).is_some_and(|next| pair.key() >= &next[..]) {
                    break;
                }
                seen += 1;
                if let Some(value_bytes) = value_bytes(keyspace, &pair)? {
                    sample.add(pair.key().len() as u64, value_bytes);
                }
            }
            sample.is_all &= seen < ENTRIES;
            progress.advance(1);
        }
        Ok(sample)
    }

    fn add(&mut self, key_bytes: u64, value_bytes: u64) {
        self.entries += 1;
        self.key_bytes += key_bytes;
        let (entries, bytes) = self.lengths.entry((value_bytes + 1).ilog2()).or_default();
        (*entries, *bytes) = (*entries + 1, *bytes + value_bytes);
    }

    fn values(&self) -> Vec<ValueSize> {
        let value = |&(n, bytes): &(u64, u64)| ValueSize { bytes: bytes as f64 / n as f64, share: n as f64 };
        self.lengths.values().map(value).collect()
    }
}

/// The length of an entry's value. A value with a file of its own is only opened; its entry may have expired meanwhile.
fn value_bytes(keyspace: &Keyspace, pair: &Pair) -> Result<Option<u64>> {
    if pair.is_large() {
        return Ok(keyspace.get_reader(pair.key())?.map(|value| value.len()));
    }
    Ok(Some(pair.value()?.len() as u64))
}

/// Keys at equal distances from the first to the last, by the eight bytes after their common prefix; the first is
/// one.
fn between(first: &[u8], last: &[u8]) -> Vec<Vec<u8>> {
    let common = first.iter().zip(last).take_while(|(a, b)| a == b).count();
    let number = |key: &[u8]| {
        let mut bytes = [0; 8];
        let rest = &key[common.min(key.len())..];
        let len = rest.len().min(8);
        bytes[..len].copy_from_slice(&rest[..len]);
        u64::from_be_bytes(bytes)
    };
    let (low, high) = (number(first), number(last));
    let step = (high.saturating_sub(low) / PLACES).max(1);
    let key = |n: u64| [&first[..common.min(first.len())], &n.to_be_bytes()[..]].concat();
    let mut places = vec![first.to_vec()];
    places.extend((1..PLACES).map_while(|n| low.checked_add(step * n)).take_while(|&n| n <= high).map(key));
    places
}

#[cfg(test)]
mod tests {
    use std::io::Read;

    use bifold::Db;

    use super::*;

    #[test]
    fn the_length_of_a_large_value_costs_no_read_of_it() {
        let dir = std::env::temp_dir().join(format!("bifold-advise-{}", std::process::id()));
        let db = Db::open(&dir).unwrap();
        db.put_reader("large", std::io::repeat(7).take(4 << 20)).unwrap();
        db.put("short", "value").unwrap();
        let read_bytes = |db: &Db| db.stats().io.iter().map(|source| source.bytes_read).sum::<u64>();
        let before = read_bytes(&db);
        let sample = Sample::take(db.default_keyspace()).unwrap();
        let after = read_bytes(&db);
        let mut values: Vec<f64> = sample.values().iter().map(|value| value.bytes).collect();
        values.sort_by(f64::total_cmp);
        assert_eq!((sample.entries, &values[..]), (2, &[5.0, f64::from(4 << 20)][..]));
        assert!(after - before < 1 << 20, "{} bytes were read", after - before);
        db.close().unwrap();
        std::fs::remove_dir_all(dir).unwrap();
    }

    #[test]
    fn places_ascend_between_the_ends() {
        for (first, last) in
            [(&b"a"[..], &b"z"[..]), (b"user/1", b"user/999"), (b"", b"\xff"), (b"k", b"k"), (b"k", b"k1")]
        {
            let places = between(first, last);
            assert!(places[0] == first && places.len() <= PLACES as usize);
            assert!(places.windows(2).all(|pair| pair[0] < pair[1]), "{places:?}");
        }
        assert_eq!(between(b"a", b"z").len(), PLACES as usize);
    }
}
