//! Keys with many operands in a memtable, with every placement: what readers leave there is what the key has.

use std::{
    collections::BTreeMap,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
};

use bifold::{Error, MergeOperator, MergeOperators, PlacementKind, Snapshot};

use crate::{
    bed::{Bed, numbers},
    support::{check_iterators, entries},
};

const KEYS: u64 = 4;

/// An operand that cannot be combined: it has no eight bytes.
const BAD: &[u8] = b"bad";

/// What keys have; `None`: it cannot be combined.
type Model = BTreeMap<Vec<u8>, Option<Vec<u8>>>;

fn key(n: u64) -> Vec<u8> {
    format!("key{n}").into_bytes()
}

/// x ↦ a·x + b, in eight bytes. The order of operands shows, and so does each that is missing.
fn map(a: u32, b: u32) -> Vec<u8> {
    [(a | 1).to_le_bytes(), b.to_le_bytes()].concat()
}

/// One map after the other. What follows the older one's eight bytes stays.
fn after(older: &[u8], newer: &[u8]) -> Option<Vec<u8>> {
    let parts = |bytes: &[u8]| {
        let (a, rest) = bytes.split_first_chunk()?;
        Some((u32::from_le_bytes(*a), u32::from_le_bytes(*rest.first_chunk()?)))
    };
    let ((a, b), (c, d)) = (parts(older)?, parts(newer)?);
    let both = map(c.wrapping_mul(a), c.wrapping_mul(b).wrapping_add(d));
    Some([&both, &older[both.len()..]].concat())
}

/// The operator, and how often it was called.
fn operator() -> (MergeOperator, Arc<AtomicU64>) {
    let calls = Arc::new(AtomicU64::new(0));
    let counter = Arc::clone(&calls);
    let combine = move |_: &[u8], older: Option<&[u8]>, newer: &[u8]| {
        counter.fetch_add(1, Relaxed);
        after(older.unwrap_or(&map(1, 0)), newer).ok_or_else(|| format!("{} bytes", newer.len()))
    };
    (MergeOperator::new("maps", combine).unwrap(), calls)
}

fn bed(placement: PlacementKind, memtable_bytes: u64) -> (Bed, Arc<AtomicU64>) {
    let (operator, calls) = operator();
    let mut bed = Bed::new(placement);
    (bed.options.memtable_bytes, bed.options.memory_limit) = (memtable_bytes, memtable_bytes * 32);
    bed.options.merge_operators = MergeOperators::default().with(operator.clone()).unwrap();
    bed.begin_with(operator);
    (bed, calls)
}

struct History {
    bed: Bed,
    model: Model,
    held: Vec<(Snapshot, Model)>,
}

impl History {
    fn step(&mut self, step: u32, random: &mut impl FnMut(u64) -> u64) {
        let n = random(KEYS);
        let ks = self.bed.ks().clone();
        match random(200) {
            0..=129 => {
                let operand = map(step, random(1 << 32) as u32);
                ks.merge(key(n), &operand).unwrap();
                let both = match self.model.get(&key(n)) {
                    None => after(&map(1, 0), &operand),
                    Some(older) => older.as_ref().map(|older| after(older, &operand).unwrap()),
                };
                self.model.insert(key(n), both);
            }
            130..=179 => self.check_key(n, step),
            180 => {
                // Some are separated.
                let value = [map(step, 7), vec![b'x'; random(90) as usize]].concat();
                ks.put(key(n), &value).unwrap();
                self.model.insert(key(n), Some(value));
            }
            181 => {
                ks.delete(key(n)).unwrap();
                self.model.remove(&key(n));
            }
            182 => {
                ks.delete_range(key(n)..key(n + 2)).unwrap();
                self.model.retain(|other, _| *other < key(n) || *other >= key(n + 2));
            }
            183 if random(3) == 0 => {
                ks.merge(key(n), BAD).unwrap();
                self.model.insert(key(n), None);
            }
            184 => self.bed.db().flush().unwrap(),
            185 if random(3) == 0 => self.bed.db().compact().unwrap(),
            186 => self.bed.db().collect_garbage().unwrap(),
            187..=190 => self.held.push((self.bed.db().snapshot(), self.model.clone())),
            191..=194 if !self.held.is_empty() => {
                drop(self.held.swap_remove(random(self.held.len() as u64) as usize));
            }
            195..=198 => self.check_held(step),
            199 if random(4) == 0 => {
                drop(ks);
                self.held.clear();
                self.bed.reopen();
            }
            _ => {}
        }
    }

    fn check_key(&self, n: u64, step: u32) {
        let ks = self.bed.ks();
        let what = format!("step {step}, key {n}");
        let expected = self.model.get(&key(n));
        assert_eq!(ks.contains_key(key(n)).unwrap(), expected.is_some(), "{what}");
        let found =
            if step.is_multiple_of(2) { ks.get(key(n)) } else { ks.multi_get([key(n)]).map(|mut all| all.remove(0)) };
        is_as_expected(found.map(|value| value.map(|value| value.to_vec())), expected, &what);
    }

    fn check_held(&self, step: u32) {
        for (at, (snapshot, model)) in self.held.iter().enumerate() {
            for n in 0..KEYS {
                let found = snapshot.get(self.bed.ks(), key(n)).map(|value| value.map(|value| value.to_vec()));
                is_as_expected(found, model.get(&key(n)), &format!("step {step}, snapshot {at}, key {n}"));
            }
        }
    }

    fn check(&self, what: &str) {
        let Some(all) = whole(&self.model) else { return };
        check_iterators(self.bed.ks(), &all, what);
        for (snapshot, model) in &self.held {
            if let Some(all) = whole(model) {
                assert_eq!(entries(snapshot.iter(self.bed.ks())), all, "{what}: a snapshot");
            }
        }
    }
}

fn is_as_expected(found: bifold::Result<Option<Vec<u8>>>, expected: Option<&Option<Vec<u8>>>, what: &str) {
    match expected {
        Some(None) => assert!(matches!(found, Err(Error::Merge { .. })), "{what}: {found:?}"),
        _ => assert_eq!(found.unwrap().as_ref(), expected.and_then(Option::as_ref), "{what}"),
    }
}

/// Everything, if all of it can be combined.
fn whole(model: &Model) -> Option<Vec<(Vec<u8>, Vec<u8>)>> {
    model.iter().map(|(key, value)| Some((key.clone(), value.clone()?))).collect()
}

fn history(placement: PlacementKind, seed: u64) {
    let mut random = numbers(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15));
    let (bed, _) = bed(placement, 48 << 10);
    let mut history = History { bed, model: Model::new(), held: Vec::new() };
    for step in 0..2000 {
        history.step(step, &mut random);
        if step % 50 == 0 {
            history.check(&format!("{placement:?}, seed {seed}, step {step}"));
        }
    }
    history.bed.db().compact().unwrap();
    (0..KEYS).for_each(|n| history.check_key(n, 2000));
    history.check_held(2000);
    history.check("compacted");
    history.held.clear();
    history.bed.reopen();
    (0..KEYS).for_each(|n| history.check_key(n, 2001));
    history.check("at the end");
}

#[test]
fn random_histories_with_long_chains_are_those_of_the_model() {
    for placement in PlacementKind::ALL {
        (0..4).for_each(|seed| history(placement, seed));
    }
}

/// A read combines what has come since the last one, and the operands of a step or two: however many there are.
#[test]
fn the_second_read_of_a_long_chain_calls_the_operator_few_times() {
    let (mut bed, calls) = bed(PlacementKind::Inline, 1 << 20);
    let called = || calls.swap(0, Relaxed);
    let mut expected = map(1, 0);
    let mut merge = |bed: &Bed, n: u32| {
        bed.ks().merge("hot", map(n, n)).unwrap();
        expected = after(&expected, &map(n, n)).unwrap();
        expected.clone()
    };
    let read = |bed: &Bed| bed.ks().get("hot").unwrap().unwrap().to_vec();
    for n in 0..5000 {
        merge(&bed, n);
    }
    assert_eq!(called(), 0, "a merge calls no function");
    assert!(bed.ks().contains_key("hot").unwrap());
    assert_eq!(called(), 0, "nor does who asks whether a key is there");
    read(&bed);
    let first = called();
    assert!((5000..5100).contains(&first), "{first} calls for 5000 operands");
    for n in 5000..6000 {
        let expected = merge(&bed, n);
        assert_eq!(read(&bed), expected);
        let again = called();
        assert!(again <= 16, "{again} calls after {n} operands");
    }
    let before = bed.db().snapshot();
    let old = read(&bed);
    for n in 6000..6200 {
        merge(&bed, n);
    }
    read(&bed);
    called();
    assert_eq!(before.get(bed.ks(), "hot").unwrap().unwrap().to_vec(), old);
    assert!(called() <= 16, "a snapshot has the steps below it");
    assert_eq!(entries(bed.ks().iter()).len(), 1);
    assert!(called() <= 16, "an iterator has them, too");
    drop(before);
    // What is left in memory is not what is written.
    let expected = read(&bed);
    bed.db().flush().unwrap();
    assert_eq!(read(&bed), expected);
    bed.reopen();
    assert_eq!(read(&bed), expected);
}

/// A chain goes through memtables and several runs. What a run does not have costs a look at its filter.
#[test]
fn a_read_of_operands_asks_filters() {
    let (bed, _) = bed(PlacementKind::Inline, 1 << 20);
    let ks = bed.ks();
    let put = |n: u64| ks.put(key(n), map(1, n as u32)).unwrap();
    (0..200).step_by(2).for_each(put);
    bed.db().flush().unwrap();
    bed.db().compact().unwrap();
    for _ in 0..2 {
        (1..200).step_by(2).for_each(put);
        bed.db().flush().unwrap();
    }
    ks.merge(key(100), map(3, 1)).unwrap();
    bed.db().flush().unwrap();
    ks.merge(key(100), map(5, 1)).unwrap();
    let before = bed.db().stats();
    for _ in 0..100 {
        assert_eq!(ks.get(key(100)).unwrap().as_deref(), Some(&map(15, (100 * 3 + 1) * 5 + 1)[..]));
    }
    let after = bed.db().stats();
    // The operand of a table, and the value.
    let searched = after.lookups.tables_searched - before.lookups.tables_searched;
    assert!((200..=230).contains(&searched), "{searched} searches of tables by 100 reads");
    assert!(after.lookups.filters_denied > before.lookups.filters_denied);
}

/// A list that grows by appending is copied a few times, not once for each operand.
#[test]
fn reads_and_flushes_of_a_long_list_copy_it_few_times() {
    let copied = Arc::new(AtomicU64::new(0));
    let counter = Arc::clone(&copied);
    let append = move |_: &[u8], older: Option<&[u8]>, newer: &[u8]| {
        let both = [older.unwrap_or_default(), newer].concat();
        counter.fetch_add(both.len() as u64, Relaxed);
        Ok(both)
    };
    let operator = MergeOperator::new("counted", append).unwrap();
    let mut bed = Bed::new(PlacementKind::Inline);
    (bed.options.memtable_bytes, bed.options.memory_limit) = (1 << 20, 32 << 20);
    bed.options.merge_operators = MergeOperators::default().with(operator.clone()).unwrap();
    bed.begin_with(operator);
    let mut expected = Vec::new();
    for n in 0..4096 {
        bed.ks().merge("list", format!("{n:08}")).unwrap();
        expected.extend_from_slice(format!("{n:08}").as_bytes());
    }
    let is_little = |what: &str| {
        let bytes = copied.swap(0, Relaxed);
        assert!(bytes <= 16 * expected.len() as u64, "{what} copies {bytes} of {}", expected.len());
    };
    assert_eq!(bed.ks().get("list").unwrap().as_deref(), Some(&expected[..]));
    is_little("a read");
    bed.db().flush().unwrap();
    is_little("a flush");
    assert_eq!(bed.ks().get("list").unwrap().as_deref(), Some(&expected[..]));
}
