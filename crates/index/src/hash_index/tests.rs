use std::collections::{BTreeMap, BTreeSet};

use bifold_format::filter::key_hash;
use proptest::prelude::*;

use super::*;

fn context(bytes: u64) -> Arc<TableContext> {
    Arc::new(TableContext::new(0, bytes))
}

fn hashes(keys: std::ops::Range<u64>) -> Vec<u64> {
    keys.map(|key| key_hash(&key.to_be_bytes())).collect()
}

fn found(index: &HashIndex, hash: u64) -> BTreeSet<u32> {
    let mut runs = BTreeSet::new();
    index.find(hash, |run| assert!(run > 0 && runs.insert(run) | true));
    runs
}

fn options() -> impl Strategy<Value = HashIndexOptions> {
    (1u32..=8, 1u32..=24, 4u32..=24).prop_map(|(ways, tag_bits, run_bits)| HashIndexOptions {
        ways,
        tag_bits,
        run_bits,
        written: true,
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]

    /// Against a map. Keys are from a small range, so that they occur again in the same run and in others.
    #[test]
    fn every_run_of_a_key_is_found(
        options in options(),
        added in prop::collection::vec((1u64..15, prop::collection::vec(0u64..300, 1..40)), 1..20),
        room in 1usize..400,
    ) {
        let index = HashIndex::with_room(room, &options, &context(1 << 20)).unwrap();
        let mut map: BTreeMap<u64, BTreeSet<RunId>> = BTreeMap::new();
        for (run, keys) in &added {
            let keys: Vec<u64> = keys.iter().map(|key| key_hash(&key.to_be_bytes())).collect();
            if index.add(100 + run, &keys) {
                keys.into_iter().for_each(|key| { map.entry(key).or_default().insert(100 + run); });
            }
        }
        let runs = index.runs();
        for (key, expected) in &map {
            let found: BTreeSet<RunId> = found(&index, *key).into_iter().map(|run| runs[run as usize - 1]).collect();
            prop_assert!(found.is_superset(expected), "{found:?} lacks some of {expected:?}");
        }
        let usage = index.usage();
        prop_assert!(usage.buckets_used + usage.chained <= usage.buckets);
    }
}

#[test]
fn a_full_index_uses_four_buckets_of_five_and_finds_little_else() {
    let index = HashIndex::with_room(100_000, &HashIndexOptions::default(), &context(1 << 20)).unwrap();
    (0..10).for_each(|run| assert!(index.add(run, &hashes(run * 10_000..(run + 1) * 10_000))));
    let usage = index.usage();
    assert_eq!((usage.runs, usage.buckets), (10, 100_000));
    assert!(usage.buckets_used > 85_000 && usage.buckets_used + usage.chained > 99_900, "{usage:?}");
    assert!(usage.bytes < 10 * 100_000, "{usage:?}");
    let all = hashes(0..100_000);
    assert!((0..).zip(&all).all(|(at, &hash)| found(&index, hash).contains(&(at / 10_000 + 1))));
    // Each lookup compares about four entries, each with one of 65 536 tags: six false positives are expected.
    let false_positives = hashes(100_000..200_000).into_iter().filter(|&hash| !found(&index, hash).is_empty()).count();
    assert!(false_positives < 20, "{false_positives} false positives");
}

#[test]
fn chains_have_enough_room_and_little_to_spare_for_any_ways() {
    for ways in 1..=8 {
        let options = HashIndexOptions { ways, tag_bits: 32, ..HashIndexOptions::default() };
        let index = HashIndex::with_room(50_000, &options, &context(1 << 20)).unwrap();
        assert!(index.add(1, &hashes(0..50_000)), "{ways} ways: {:?}", index.usage());
        let (chained, room) = (index.usage().chained as f64, index.overflow.len() as f64);
        assert!(chained > 0.7 * room, "{ways} ways: {chained} of {room}");
    }
}

/// A key has places in at most `ways` buckets, so most of its runs are chained, however many buckets there are.
#[test]
fn long_chains_have_room_for_the_same_keys_of_many_runs() {
    let (options, keys) = (HashIndexOptions::default(), hashes(0..80));
    let index = HashIndex::with_room(20 * 80, &options, &context(1 << 20)).unwrap();
    assert!(!(1..=20).all(|run| index.add(run, &keys)));
    let index = HashIndex::with_long_chains(20 * 80, &options, &context(1 << 20)).unwrap();
    assert!((1..=20).all(|run| index.add(run, &keys)), "{:?}", index.usage());
    let all: BTreeSet<u32> = (1..=20).collect();
    assert!(keys.iter().all(|&key| found(&index, key) == all));
    assert!(!index.add(21, &keys), "it has as many buckets as it has entries");
}

#[test]
fn where_options_allow_no_longer_chains_there_are_more_buckets() {
    // 16 bits lead to the next entry of a chain.
    let options = HashIndexOptions { ways: 1, tag_bits: 32, ..HashIndexOptions::default() };
    let keys = hashes(0..200_000);
    let index = HashIndex::with_room(200_000, &options, &context(8 << 20)).unwrap();
    assert!(!index.add(1, &keys), "{:?}", index.usage());
    let index = HashIndex::with_long_chains(200_000, &options, &context(8 << 20)).unwrap();
    assert!(index.add(1, &keys), "{:?}", index.usage());
    assert_eq!((index.usage().buckets, index.overflow.len()), (334_465, 65_535));
}

#[test]
fn a_key_of_a_run_takes_one_entry_however_often_it_is_added() {
    let options = HashIndexOptions { ways: 1, ..HashIndexOptions::default() };
    let index = HashIndex::with_room(3000, &options, &context(1 << 20)).unwrap();
    assert!(index.add(7, &hashes(0..1000)));
    let once = index.usage();
    assert!(index.add(7, &hashes(0..1000)) && index.add(8, &hashes(0..10)) && index.add(7, &hashes(0..900)));
    assert_eq!(index.usage().buckets_used + index.usage().chained, once.buckets_used + once.chained + 10);
}

#[test]
fn an_index_or_a_key_without_room_is_refused() {
    let none = context(100);
    assert!(HashIndex::with_room(100, &HashIndexOptions::default(), &none).is_none());
    assert_eq!(none.metadata_bytes(), 0);
    let some = context(10_000);
    let index = HashIndex::with_room(100, &HashIndexOptions::default(), &some).unwrap();
    assert_eq!(some.metadata_bytes(), index.usage().bytes);
    assert!(!index.add(1, &hashes(0..101)), "more keys than buckets");
    drop(index);
    assert_eq!(some.metadata_bytes(), 0);

    let one_run = HashIndexOptions { run_bits: 1, ..HashIndexOptions::default() };
    let index = HashIndex::with_room(100, &one_run, &some).unwrap();
    assert!(index.add(1, &hashes(0..1)) && !index.add(2, &hashes(1..2)) && index.add(1, &hashes(1..2)));
}

#[test]
fn options_that_do_not_fit_a_word_are_named() {
    let good = HashIndexOptions::default();
    for (options, says) in [
        (HashIndexOptions { ways: 0, ..good }, "ways"),
        (HashIndexOptions { ways: 9, ..good }, "ways"),
        (HashIndexOptions { tag_bits: 0, ..good }, "tag_bits"),
        (HashIndexOptions { run_bits: 33, ..good }, "run_bits"),
        (HashIndexOptions { tag_bits: 25, run_bits: 24, ..good }, "more than 48 together"),
    ] {
        assert!(options.check("hash_index").unwrap_err().to_string().contains(says), "{options:?}");
    }
    good.check("hash_index").unwrap();
}
