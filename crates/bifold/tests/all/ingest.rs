//! Ingests: sorted entries that become visible together, beside everything else that a database does.

mod behaviours;
mod crashes;
mod meanwhile;

use std::{collections::BTreeMap, path::Path};

use bifold::{
    Compaction, Ingest, Keyspace, Options, PlacementKind, Snapshot, Workers,
    options::{Tiered, TwoLayer},
};

use crate::{
    bed::{Bed, numbers, small},
    support::entries,
};

fn key(n: u32) -> String {
    format!("key{n:05}")
}

fn value(n: u32, round: u32) -> Vec<u8> {
    // Of each key some are separated, and some are not.
    format!("{n}.{round} ").into_bytes().repeat(1 + ((n + 17 * round) % 60) as usize)
}

type Model = BTreeMap<String, Vec<u8>>;

fn expected(model: &Model) -> Vec<(Vec<u8>, Vec<u8>)> {
    model.iter().map(|(key, value)| (key.clone().into_bytes(), value.clone())).collect()
}

fn check(ks: &Keyspace, model: &Model, what: &str) {
    assert_eq!(entries(ks.iter()), expected(model), "{what}: forward");
    assert_eq!(entries(ks.iter().rev()), expected(model).into_iter().rev().collect::<Vec<_>>(), "{what}: backward");
    for n in 0..KEYS {
        let found = ks.get(key(n)).unwrap();
        assert_eq!(found.as_deref(), model.get(&key(n)).map(|value| &value[..]), "{what}: get of {}", key(n));
    }
}

/// Keys of the random histories.
const KEYS: u32 = 160;

/// Random writes, jobs, snapshots and openings, with ingests that are open meanwhile.
struct History {
    bed: Bed,
    model: Model,
    open: Option<(Ingest, Model, u32)>,
    held: Vec<(Snapshot, Model)>,
}

impl History {
    fn put(&mut self, n: u32, round: u32) {
        self.bed.ks().put(key(n), value(n, round)).unwrap();
        self.model.insert(key(n), value(n, round));
    }

    fn add_to_ingest(&mut self, round: u32, random: &mut impl FnMut(u64) -> u64) {
        let ks = self.bed.ks().clone();
        let (ingest, gathered, next) =
            self.open.get_or_insert_with(|| (ks.ingest().unwrap(), Model::new(), random(u64::from(KEYS)) as u32));
        for _ in 0..random(40) {
            if *next >= KEYS {
                break;
            }
            ingest.put(key(*next), value(*next, round)).unwrap();
            gathered.insert(key(*next), value(*next, round));
            *next += 1 + random(3) as u32;
        }
    }

    fn step(&mut self, step: u32, random: &mut impl FnMut(u64) -> u64) {
        let n = random(u64::from(KEYS)) as u32;
        match random(30) {
            0..=8 => self.put(n, step),
            9..=10 => {
                self.bed.ks().delete(key(n)).unwrap();
                self.model.remove(&key(n));
            }
            11 => {
                self.bed.ks().delete_range(key(n)..key(n + 30)).unwrap();
                (n..n + 30).for_each(|n| drop(self.model.remove(&key(n))));
            }
            12..=17 => self.add_to_ingest(step, random),
            18..=20 => {
                if let Some((ingest, gathered, _)) = self.open.take() {
                    let report = ingest.finish().unwrap();
                    assert_eq!(report.entries, gathered.len() as u64);
                    self.model.extend(gathered);
                }
            }
            21 => self.open = None,
            22..=23 => self.bed.db().flush().unwrap(),
            24 => self.bed.ks().compact_range(key(n)..key(n + 40)).unwrap(),
            25 if random(3) == 0 => self.bed.db().compact().unwrap(),
            26 if random(2) == 0 => self.bed.db().collect_garbage().unwrap(),
            27 => self.held.push((self.bed.db().snapshot(), self.model.clone())),
            28 if !self.held.is_empty() => drop(self.held.swap_remove(random(self.held.len() as u64) as usize)),
            29 if random(5) == 0 => {
                self.open = None;
                self.held.clear();
                self.bed.reopen();
            }
            _ => {}
        }
    }

    fn check(&self, what: &str) {
        check(self.bed.ks(), &self.model, what);
        for (snapshot, then) in &self.held {
            assert_eq!(entries(snapshot.iter(self.bed.ks())), expected(then), "{what}: snapshot");
        }
    }
}

fn history(options: Options, seed: u64, name: &str) {
    let mut random = numbers(seed);
    let mut history = History { bed: Bed::of(options), model: Model::new(), open: None, held: Vec::new() };
    for step in 0..300 {
        history.step(step, &mut random);
        if step % 10 == 0 {
            history.check(&format!("{name}, seed {seed}, step {step}"));
        }
    }
    (history.open, history.held) = (None, Vec::new());
    let bed = &mut history.bed;
    bed.db.take().unwrap().close().unwrap();
    assert!(bifold::verify_in(&bed.env(), Path::new("/db"), |_| {}).unwrap().problems.is_empty(), "{name}, {seed}");
    bed.reopen();
    history.check(&format!("{name}, seed {seed}, at the end"));
    // What merges and GC make of it.
    history.bed.db().compact().unwrap();
    history.bed.db().collect_garbage().unwrap();
    history.check(&format!("{name}, seed {seed}, merged"));
}

#[test]
fn random_histories_of_all_placements() {
    for placement in PlacementKind::ALL {
        (0..6).for_each(|seed| history(small(placement), seed, &format!("{placement:?}")));
    }
}

/// Idle workers write pieces.
#[test]
fn random_histories_with_workers() {
    for placement in PlacementKind::ALL {
        let options = Options { workers: Workers::Threads(2), ..small(placement) };
        (30..34).for_each(|seed| history(options.clone(), seed, &format!("{placement:?} with workers")));
    }
}

#[test]
fn random_histories_of_all_policies() {
    let policies = [
        Compaction::Tiered(Tiered { size_ratio: 2, levels: 3, ..Tiered::default() }),
        Compaction::TwoLayer(TwoLayer { unsorted_bytes: 16 << 10, scan_merge_runs: 2 }),
    ];
    for compaction in policies {
        let mut options = small(PlacementKind::Inline);
        options.keyspace.compaction = compaction;
        (10..16).for_each(|seed| history(options.clone(), seed, &format!("{compaction:?}")));
    }
}

/// Random histories of a tree that is split, with values that merges separate.
#[test]
fn random_histories_of_partitions() {
    let mut options = small(PlacementKind::UniKv);
    options.keyspace.partition_bytes = Some(16 << 10);
    options.keyspace.compaction = Compaction::TwoLayer(TwoLayer { unsorted_bytes: 8 << 10, scan_merge_runs: 2 });
    (20..28).for_each(|seed| history(options.clone(), seed, "partitions"));
}
