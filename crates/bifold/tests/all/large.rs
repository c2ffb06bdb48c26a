//! Large values, with every placement: what users see, and which files there are.

mod behaviours;
mod crashes;
pub mod files;
mod meanwhile;

use std::{
    collections::BTreeMap,
    io::{Read, Seek, SeekFrom},
    path::Path,
};

use bifold::{PlacementKind, Snapshot, ValueReader};

use crate::{
    bed::{Bed, numbers, small},
    support::{check_iterators, entries},
};

type Model = BTreeMap<Vec<u8>, Vec<u8>>;

/// Keys of the random histories.
const KEYS: u32 = 30;

/// Longer values get files of their own.
const LARGE: u64 = 64 << 10;

fn key(n: u32) -> Vec<u8> {
    format!("key{n:05}").into_bytes()
}

/// Bytes that are different at each place, for each key and round.
fn bytes(n: u32, round: u32, len: u64) -> Vec<u8> {
    let mut state = u64::from(n) << 32 | u64::from(round) | 1 << 63;
    let mut out = Vec::with_capacity(len as usize + 8);
    while (out.len() as u64) < len {
        state = state.wrapping_mul(0x9E37_79B9_7F4A_7C15).rotate_left(23) + 1;
        out.extend_from_slice(&state.to_le_bytes());
    }
    out.truncate(len as usize);
    out
}

/// A reader that yields pieces of odd lengths.
struct Pieces<'a>(&'a [u8], usize);

impl Read for Pieces<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
        self.1 = self.1 % 70_001 + 7919;
        let len = self.1.min(buffer.len()).min(self.0.len());
        self.0.read(&mut buffer[..len])
    }
}

fn read_all(mut reader: ValueReader) -> Vec<u8> {
    let mut value = Vec::new();
    assert_eq!(reader.read_to_end(&mut value).unwrap() as u64, reader.len());
    value
}

/// Random writes, jobs, snapshots, readers and openings.
struct History {
    bed: Bed,
    model: Model,
    held: Vec<(Snapshot, Model)>,
    readers: Vec<(ValueReader, Vec<u8>)>,
}

impl History {
    fn put(&mut self, n: u32, round: u32, len: u64) {
        let value = bytes(n, round, len);
        if len.is_multiple_of(3) {
            self.bed.ks().put(key(n), &value).unwrap();
        } else {
            self.bed.ks().put_reader(key(n), Pieces(&value, n as usize)).unwrap();
        }
        self.model.insert(key(n), value);
    }

    fn step(&mut self, step: u32, random: &mut impl FnMut(u64) -> u64) {
        let n = random(u64::from(KEYS)) as u32;
        match random(32) {
            0..=5 => self.put(n, step, random(600)),
            6..=8 => self.put(n, step, LARGE - 20 + random(40)),
            9..=14 => {
                let len = LARGE + 1 + random(600 << 10);
                self.put(n, step, if len.is_multiple_of(3) { len + 1 } else { len });
            }
            15..=16 => {
                self.bed.ks().delete(key(n)).unwrap();
                self.model.remove(&key(n));
            }
            17 => {
                self.bed.ks().delete_range(key(n)..key(n + 5)).unwrap();
                (n..n + 5).for_each(|n| drop(self.model.remove(&key(n))));
            }
            18..=20 => self.bed.db().flush().unwrap(),
            21..=22 => self.bed.ks().compact_range(key(n)..key(n + 10)).unwrap(),
            23 if random(3) == 0 => self.bed.db().compact().unwrap(),
            24 => self.bed.db().collect_garbage().unwrap(),
            25 => self.held.push((self.bed.db().snapshot(), self.model.clone())),
            26 if !self.held.is_empty() => drop(self.held.swap_remove(random(self.held.len() as u64) as usize)),
            27 => {
                if let Some(mut reader) = self.bed.ks().get_reader(key(n)).unwrap() {
                    let value = self.model[&key(n)].clone();
                    // So that some is read before and some after what comes.
                    let half = value.len() as u64 / 2;
                    let mut first = vec![0; value.len() / 2];
                    reader.read_exact(&mut first).unwrap();
                    assert_eq!((&first[..], reader.position()), (&value[..half as usize], half));
                    self.readers.push((reader, value));
                }
            }
            28 if !self.readers.is_empty() => {
                let (mut reader, value) = self.readers.swap_remove(random(self.readers.len() as u64) as usize);
                let from = reader.position() as usize;
                let mut rest = Vec::new();
                reader.read_to_end(&mut rest).unwrap();
                assert!(rest == value[from..], "what was opened before");
            }
            29 => self.transaction(n, step),
            30 if random(3) == 0 => {
                self.held.clear();
                self.readers.clear();
                self.bed.reopen();
            }
            31 if random(4) == 0 => self.copy(),
            _ => {}
        }
    }

    fn transaction(&mut self, n: u32, step: u32) {
        let ks = self.bed.ks();
        let mut tx = self.bed.db().transaction();
        assert_eq!(tx.get(ks, key(n)).unwrap().as_deref(), self.model.get(&key(n)).map(Vec::as_slice));
        tx.put(ks, key(n), b"small").unwrap();
        tx.commit().unwrap();
        self.model.insert(key(n), b"small".to_vec());
        if step.is_multiple_of(2) {
            self.put(n, step, 3 * LARGE + 1);
        }
    }

    /// A checkpoint has the same, and files of its own.
    fn copy(&self) {
        let at = format!("/copy{}", self.bed.fs.ops());
        self.bed.db().checkpoint(&at).unwrap();
        let db = bifold::Db::open_in(self.bed.env(), &at, self.bed.options.clone()).unwrap();
        let all: Vec<_> = self.model.clone().into_iter().collect();
        assert!(entries(db.iter()) == all, "a checkpoint");
        db.close().unwrap();
        assert!(bifold::verify_in(&self.bed.env(), &at, |_| {}).unwrap().problems.is_empty());
        files::check(&self.bed.fs, Path::new(&at), files::Others::None, "a checkpoint");
    }

    fn check(&self, what: &str) {
        let ks = self.bed.ks();
        let all: Vec<_> = self.model.clone().into_iter().collect();
        check_iterators(ks, &all, what);
        let keys: Vec<_> = (0..KEYS + 3).map(key).collect();
        for (key, found) in keys.iter().zip(ks.multi_get(&keys).unwrap()) {
            let expected = self.model.get(key).map(Vec::as_slice);
            assert!(found.as_deref() == expected, "{what}: multi_get");
            assert!(ks.get(key).unwrap().as_deref() == expected, "{what}: get");
            assert_eq!(ks.contains_key(key).unwrap(), expected.is_some(), "{what}: contains_key");
            let reader = ks.get_reader(key).unwrap();
            assert_eq!(reader.as_ref().map(|reader| reader.len()), expected.map(|value| value.len() as u64), "{what}");
            if let (Some(mut reader), Some(expected)) = (reader, expected) {
                // From the middle, then from the beginning.
                let middle = expected.len() / 3;
                reader.seek(SeekFrom::Start(middle as u64)).unwrap();
                let mut rest = Vec::new();
                reader.read_to_end(&mut rest).unwrap();
                assert!(rest == expected[middle..], "{what}: from the middle");
                reader.rewind().unwrap();
                assert!(read_all(reader) == expected, "{what}: get_reader");
            }
        }
        for (snapshot, model) in &self.held {
            let all: Vec<_> = model.clone().into_iter().collect();
            assert!(entries(snapshot.iter(ks)) == all, "{what}: a snapshot");
            let n = all.len() / 2;
            if let Some((key, value)) = all.get(n) {
                assert!(read_all(snapshot.get_reader(ks, key).unwrap().unwrap()) == *value, "{what}: a snapshot");
            }
        }
        let others = if self.readers.is_empty() { files::Others::None } else { files::Others::Some };
        files::check(&self.bed.fs, Path::new("/db"), others, what);
    }
}

fn history(placement: PlacementKind, seed: u64) {
    let mut random = numbers(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) + 5);
    let bed = Bed::of(small(placement));
    let mut history = History { bed, model: Model::new(), held: Vec::new(), readers: Vec::new() };
    let mut most = 0;
    for step in 0..220 {
        history.step(step, &mut random);
        most = most.max(history.bed.db().stats().space.large_files);
        if step % 10 == 0 {
            history.check(&format!("{placement:?}, seed {seed}, step {step}"));
        }
    }
    assert!(most >= 5, "{placement:?}, seed {seed}: {most} large values at most");
    (history.held, history.readers) = (Vec::new(), Vec::new());
    let stats = history.bed.db().stats();
    let in_dir = files::on_disk(&history.bed.fs, Path::new("/db"));
    assert_eq!(stats.space.large_files, in_dir.len() as u64, "{placement:?}, seed {seed}");
    assert_eq!(stats.space.large_bytes, in_dir.values().sum::<u64>());
    assert_eq!(stats.keyspaces[0].large_files, stats.space.large_files);
    let what = |when: &str| format!("{placement:?}, seed {seed}, {when}");
    history.bed.db.take().unwrap().close().unwrap();
    let report = bifold::verify_in(&history.bed.env(), Path::new("/db"), |_| {}).unwrap();
    assert!(report.problems.is_empty(), "{}: {:?}", what("verified"), report.problems);
    history.bed.reopen();
    history.check(&what("at the end"));
    history.bed.db().compact().unwrap();
    history.bed.db().collect_garbage().unwrap();
    history.check(&what("merged"));
    // Each of those that are left is the value of a key.
    let large = history.model.values().filter(|value| value.len() as u64 > LARGE).count();
    let left = files::on_disk(&history.bed.fs, Path::new("/db")).len();
    assert!(left <= large, "{}: {left} files for {large} values", what("merged"));
    history.bed.ks().delete_range::<&[u8]>(..).unwrap();
    history.bed.db().compact().unwrap();
    assert_eq!(files::on_disk(&history.bed.fs, Path::new("/db")).len(), 0, "{}", what("deleted"));
}

#[test]
fn random_histories_are_those_of_the_model() {
    for placement in PlacementKind::ALL {
        (0..3).for_each(|seed| history(placement, seed));
    }
}
