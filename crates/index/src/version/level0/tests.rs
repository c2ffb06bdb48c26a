//! Every version of a history, including old ones, finds the runs that have a key.

use std::collections::BTreeSet;

use bifold_contract::{
    Entry, FileId, IoSource, LevelEdit,
    edit::{TableAdded, TableRemoved},
};
use bifold_format::filter::{HASH_BITS, key_hash};
use proptest::prelude::*;

use super::*;
use crate::{
    table::{
        TableOptions, TableWriter,
        tests::samples::{Disk, options as table_options},
    },
    version::Version,
};

/// A change to level 0. Keys are bytes.
#[derive(Clone, Debug)]
enum Step {
    /// A new run of these keys, with one table for the lower half of the keys and one for the upper half.
    Flush(BTreeSet<u8>),
    /// The newest runs are merged into one, in the place of the newest.
    MergeWithin(usize),
    /// The lower or upper halves of the oldest runs are merged down.
    MergeDown(bool, usize),
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        5 => prop::collection::btree_set(0u8..80, 1..25).prop_map(Step::Flush),
        1 => (2usize..5).prop_map(Step::MergeWithin),
        2 => (any::<bool>(), 1usize..6).prop_map(|(upper, runs)| Step::MergeDown(upper, runs)),
    ]
}

struct History {
    disk: Disk,
    version: Version,
    next: FileId,
    filter_bits_per_key: u32,
}

impl History {
    fn apply(&mut self, edit: &LevelEdit) {
        let disk = &self.disk;
        self.version = self.version.apply(edit, &mut |meta| Ok(disk.open(meta))).unwrap();
    }

    fn runs(&self) -> &[Arc<TableRun>] {
        self.version.levels().first().map_or(&[], |runs| runs)
    }

    /// Tables of `run` with these keys.
    fn added(&mut self, run: RunId, keys: &BTreeSet<u8>) -> Vec<TableAdded> {
        let mut added = Vec::new();
        for half in [0..40u8, 40..80] {
            let keys: Vec<u8> = keys.range(half).copied().collect();
            if keys.is_empty() {
                continue;
            }
            self.next += 1;
            let options = TableOptions { filter_bits_per_key: self.filter_bits_per_key, ..table_options() };
            let mut writer = TableWriter::create(&self.disk.dir, self.next, IoSource::Flush, &options).unwrap();
            keys.iter().for_each(|&key| writer.add(&Entry::inline(&[key], self.next, b"")).unwrap());
            added.push(TableAdded { level: 0, run, table: Arc::new(writer.finish().unwrap()) });
        }
        added
    }

    fn step(&mut self, step: &Step) {
        let mut edit = LevelEdit::default();
        let remove = |edit: &mut LevelEdit, run: &TableRun, table: &Table| {
            edit.removed.push(TableRemoved { level: 0, run: run.id(), table: table.meta().id });
        };
        match step {
            Step::Flush(keys) => {
                self.next += 1;
                edit.added = self.added(self.next, keys);
            }
            Step::MergeWithin(count) => {
                let merged: Vec<_> = self.runs().iter().take(*count).cloned().collect();
                let Some(newest) = merged.first().map(|run| run.id()) else { return };
                merged.iter().for_each(|run| run.tables().iter().for_each(|table| remove(&mut edit, run, table)));
                let keys = merged.iter().flat_map(|run| keys_of(run)).collect();
                edit.added = self.added(newest, &keys);
            }
            Step::MergeDown(upper, count) => {
                for run in self.runs().iter().rev().take(*count) {
                    let of_half = |table: &&Arc<Table>| (table.meta().smallest[0] >= 40) == *upper;
                    run.tables().iter().filter(of_half).for_each(|table| remove(&mut edit, run, table));
                }
            }
        }
        self.apply(&edit);
    }
}

fn keys_of(run: &TableRun) -> BTreeSet<u8> {
    let hashes: BTreeSet<u64> = run.tables().iter().flat_map(|table| table.key_hashes().unwrap()).collect();
    (0..80).filter(|&key| hashes.contains(&key_hash(&[key]))).collect()
}

/// Compares the runs that a version's locator names with those that have the key. Returns how many more it named.
fn check(version: &Version) -> usize {
    let runs = version.levels().first().map_or(&[][..], |runs| runs);
    let keys: Vec<_> = runs.iter().map(|run| keys_of(run)).collect();
    let mut false_positives = 0;
    for key in 0..80u8 {
        let mut named = Vec::new();
        version.locator().candidates(key_hash(&[key]), runs.len(), &mut |at| {
            named.push(at);
            true
        });
        assert!(named.is_sorted_by(|a, b| a < b), "newest first, each once: {named:?}");
        let has = |at: &usize| keys[*at].contains(&key);
        let missing: Vec<_> = (0..runs.len()).filter(has).filter(|at| !named.contains(at)).collect();
        assert!(missing.is_empty(), "key {key} is also in runs {missing:?}; named were {named:?}");
        false_positives += named.iter().filter(|at| !has(at)).count();
    }
    false_positives
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn a_version_finds_every_run_of_a_key(
        steps in prop::collection::vec(step(), 1..30),
        (ways, tag_bits, run_bits) in (1u32..=8, 1u32..=16, prop_oneof![Just(2u32), Just(16)]),
        level0_bytes in prop_oneof![Just(None), Just(Some(3000u64))],
        filter_bits_per_key in prop_oneof![Just(HASH_BITS), Just(0), Just(10)],
        memory in prop_oneof![4 => Just(1u64 << 20), 1 => 100u64..3000],
    ) {
        let options = HashIndexOptions { ways, tag_bits, run_bits, written: true };
        let context = Arc::new(TableContext::new(0, memory));
        let version = Version::with_hash_index(options, level0_bytes, &context);
        let mut history = History { disk: Disk::new(), version, next: 0, filter_bits_per_key };
        let mut versions = Vec::new();
        for step in &steps {
            history.step(step);
            check(&history.version);
            versions.push(history.version.clone());
        }
        versions.iter().for_each(|version| { check(version); });
        prop_assert!(context.metadata_bytes() <= memory);
        drop((versions, history));
        prop_assert_eq!(context.metadata_bytes(), 0, "the last version returns its memory");
    }
}

/// Flushes of all keys, and some merges.
fn typical_steps() -> Vec<Step> {
    let keys = |from: u8| (from..80).step_by(3).collect();
    let flushes = (0..8).map(|at| Step::Flush(keys(at % 3)));
    let mut steps: Vec<_> = flushes.collect();
    steps.insert(5, Step::MergeDown(true, 4));
    steps.insert(7, Step::MergeWithin(2));
    steps
}

#[test]
fn few_runs_are_named_in_vain() {
    let context = Arc::new(TableContext::new(0, 1 << 20));
    let version = Version::with_hash_index(HashIndexOptions::default(), None, &context);
    let mut history = History { disk: Disk::new(), version, next: 0, filter_bits_per_key: HASH_BITS };
    for step in typical_steps() {
        history.step(&step);
        // A key that was merged down is still named if its run has the other half: the run's tables do not span the
        // key.
        let runs = history.runs().len();
        let false_positives = check(&history.version);
        assert!(false_positives <= 30 * runs, "{false_positives} false positives in {runs} runs");
    }
    let usage = history.version.hash_index().unwrap();
    assert!(usage.buckets_used + usage.chained <= usage.buckets && usage.runs >= 5, "{usage:?}");
}

#[test]
fn keys_that_are_in_many_runs_keep_their_index() {
    let context = Arc::new(TableContext::new(0, 1 << 20));
    let version = Version::with_hash_index(HashIndexOptions::default(), None, &context);
    let mut history = History { disk: Disk::new(), version, next: 0, filter_bits_per_key: HASH_BITS };
    for flushes in 1..=20 {
        history.step(&Step::Flush((0..80).collect()));
        assert!(history.version.hash_index().is_some(), "after {flushes} flushes");
        check(&history.version);
    }
}

/// A history whose index can tell three runs.
fn history_of_few_runs() -> History {
    let options = HashIndexOptions { run_bits: 2, ..HashIndexOptions::default() };
    let version = Version::with_hash_index(options, None, &Arc::new(TableContext::new(0, 1 << 20)));
    History { disk: Disk::new(), version, next: 0, filter_bits_per_key: HASH_BITS }
}

#[test]
fn while_there_are_more_runs_than_it_can_tell_there_is_no_index() {
    let mut history = history_of_few_runs();
    for flushes in 1..=5 {
        history.step(&Step::Flush((0..20).collect()));
        assert_eq!(history.version.hash_index().is_some(), flushes <= 3, "after {flushes} flushes");
        check(&history.version);
    }
    history.step(&Step::MergeWithin(4));
    assert!(history.version.hash_index().is_some(), "two runs are left");
    check(&history.version);
}

#[test]
fn merges_that_leave_few_enough_runs_bring_the_index_back() {
    let mut history = history_of_few_runs();
    for left in (1..=5).chain([4, 3, 2]) {
        let is_shrinking = history.runs().len() > left;
        let step = if is_shrinking { Step::MergeDown(false, 1) } else { Step::Flush((0..20).collect()) };
        history.step(&step);
        assert_eq!(history.runs().len(), left);
        assert_eq!(history.version.hash_index().is_some(), left <= 3, "{left} runs after {step:?}");
        check(&history.version);
    }
}

#[test]
fn without_memory_every_run_is_searched() {
    let context = Arc::new(TableContext::new(0, 50));
    let version = Version::with_hash_index(HashIndexOptions::default(), None, &context);
    let mut history = History { disk: Disk::new(), version, next: 0, filter_bits_per_key: 0 };
    typical_steps().iter().for_each(|step| history.step(step));
    assert_eq!(history.version.hash_index(), None);
    assert!(check(&history.version) > 0);
}

/// It may become so while the database is open: then a new index cannot be built when the old one is full.
#[test]
fn while_a_table_cannot_be_read_every_run_is_searched() {
    let context = Arc::new(TableContext::new(0, 1 << 20));
    let version = Version::with_hash_index(HashIndexOptions::default(), None, &context);
    // The hashes are not in the files.
    let mut history = History { disk: Disk::new(), version, next: 0, filter_bits_per_key: 0 };
    history.step(&Step::Flush((0..20).collect()));
    let damaged = Arc::clone(&history.runs()[0].tables()[0]);
    let path = history.disk.dir.file(&bifold_format::names::table(damaged.meta().id));
    history.disk.fs.flip_bit(&path, 4 * 8);
    assert!(damaged.key_hashes().is_err(), "a block of entries is damaged");
    let flushes = (0..30).take_while(|_| {
        history.step(&Step::Flush((20..40).collect()));
        history.version.hash_index().is_some()
    });
    let flushes = flushes.count() + 1;
    assert!((1..30).contains(&flushes), "{flushes} flushes fill the index");
    let named = |history: &History| {
        let mut named = 0;
        history.version.locator().candidates(key_hash(&[30]), history.runs().len(), &mut |_| {
            named += 1;
            true
        });
        named
    };
    assert_eq!(named(&history), flushes + 1);
    history.step(&Step::Flush((20..40).collect()));
    assert_eq!((history.version.hash_index(), named(&history)), (None, flushes + 2), "it is not read again");
    history.step(&Step::MergeDown(false, 1));
    assert!(history.version.unindexed().is_some(), "it is reported until the next flush");
    history.step(&Step::Flush((20..40).collect()));
    assert!(history.version.hash_index().is_some(), "it is gone");
    check(&history.version);
}
