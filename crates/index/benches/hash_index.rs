//! The cost of the hash index of level 0: building it from hashes, and lookups.
//!
//! `cargo bench -p bifold-index --bench hash_index` prints, for indexes of several sizes with 8 runs, nanoseconds for
//! each key: wall time of the one thread, the least of five rounds.

#![allow(clippy::unwrap_used, reason = "a benchmark has no caller to return an error to")]

use std::{hint::black_box, sync::Arc, time::Instant};

use bifold_format::filter::key_hash;
use bifold_index::{
    hash_index::{HashIndex, HashIndexOptions},
    table::TableContext,
};

const RUNS: usize = 8;
const ROUNDS: usize = 5;

fn main() {
    let context = Arc::new(TableContext::new(0, 1 << 30));
    for keys in [64 << 10, 1 << 20, 4 << 20] {
        let runs: Vec<Vec<u64>> = (0..RUNS).map(|run| hashes(run * keys / RUNS..(run + 1) * keys / RUNS)).collect();
        let build = || {
            let index = HashIndex::with_room(keys, &HashIndexOptions::default(), &context).unwrap();
            (0..).zip(&runs).for_each(|(run, hashes)| assert!(index.add(run, hashes)));
            index
        };
        let index = build();
        let order = |keys: std::ops::Range<usize>| {
            let mut hashes = hashes(keys);
            // Lookups do not come in the order of hashes.
            hashes.sort_unstable_by_key(|hash| hash.rotate_left(32));
            hashes
        };
        let (present, absent) = (order(0..keys), order(keys..2 * keys));
        let probe =
            |hashes: &[u64]| hashes.iter().for_each(|&hash| index.find(hash, |run| assert!(black_box(run) > 0)));
        println!(
            "{keys} keys, {} KiB: built in {:.1} ns per key; lookup of a key {:.1} ns if present, {:.1} ns if absent",
            index.usage().bytes >> 10,
            least(|| drop(black_box(build()))) / keys as f64,
            least(|| probe(&present)) / keys as f64,
            least(|| probe(&absent)) / keys as f64,
        );
    }
}

/// Hashes of keys, ascending as in tables.
fn hashes(keys: std::ops::Range<usize>) -> Vec<u64> {
    let mut hashes: Vec<u64> = keys.map(|key| key_hash(&key.to_be_bytes())).collect();
    hashes.sort_unstable();
    hashes
}

/// Nanoseconds of the fastest round.
fn least(work: impl Fn()) -> f64 {
    let time = |_| {
        let begin = Instant::now();
        work();
        begin.elapsed().as_nanos() as f64
    };
    (0..ROUNDS).map(time).fold(f64::INFINITY, f64::min)
}
