//! What the hash index over level 0 costs: making it of hashes, and asking it.
//!
//! `cargo bench -p bifold-index --bench hash_index` prints, for indexes of several sizes with 8 runs, nanoseconds for
//! each key: wall time of the one thread, the least of five rounds.

#![allow(clippy::unwrap_used, reason = "a benchmark has nobody to hand an error to")]

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
        let make = || {
            let index = HashIndex::with_room(keys, &HashIndexOptions::default(), &context).unwrap();
            (0..).zip(&runs).for_each(|(run, hashes)| assert!(index.add(run, hashes)));
            index
        };
        let index = make();
        let order = |keys: std::ops::Range<usize>| {
            let mut hashes = hashes(keys);
            // Nobody asks in the order of hashes.
            hashes.sort_unstable_by_key(|hash| hash.rotate_left(32));
            hashes
        };
        let (there, not_there) = (order(0..keys), order(keys..2 * keys));
        let ask = |hashes: &[u64]| hashes.iter().for_each(|&hash| index.find(hash, |run| assert!(black_box(run) > 0)));
        println!(
            "{keys} keys, {} KiB: made in {:.1} ns a key; asked for one that is there {:.1} ns, not there {:.1} ns",
            index.usage().bytes >> 10,
            least(|| drop(black_box(make()))) / keys as f64,
            least(|| ask(&there)) / keys as f64,
            least(|| ask(&not_there)) / keys as f64,
        );
    }
}

/// Hashes of keys, ascending as tables have them.
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
