//! Seeks of one iterator against a new iterator for each key.
//!
//! `cargo bench -p bifold --bench seeks` prints nanoseconds for each entry found, medians of five rounds: 500 000
//! entries of 100 bytes in memory, in tables of several levels; every 2nd, 20th, 200th key in order, and keys at
//! random.

#![allow(clippy::unwrap_used, reason = "a benchmark has no caller to return an error to")]

use std::time::Instant;

use bifold::{Db, Options};
use bifold_io::random::Random;

const KEYS: u64 = 500_000;
const FOUND: u64 = 20_000;

fn median(mut work: impl FnMut() -> u64) -> u64 {
    let mut rounds: Vec<u64> = (0..5)
        .map(|_| {
            let begin = Instant::now();
            assert_eq!(work(), FOUND);
            begin.elapsed().as_nanos() as u64 / FOUND
        })
        .collect();
    rounds.sort_unstable();
    rounds[2]
}

fn main() {
    let dir = std::env::temp_dir().join(format!("bifold-seeks-{}", std::process::id()));
    let db = Db::open_with(&dir, Options { memtable_bytes: 8 << 20, ..Options::default() }).unwrap();
    let mut random = Random::new(1);
    for _ in 0..KEYS * 2 {
        db.put(random.below(KEYS).to_be_bytes(), [1; 100]).unwrap();
    }
    db.wait_idle().unwrap();
    for step in [2, 20, 200, 0] {
        let key = |n: u64, random: &mut Random| if step == 0 { random.below(KEYS / 2) } else { n * step % (KEYS / 2) };
        let sought = median(|| {
            let (mut range, mut random) = (db.iter(), Random::new(2));
            (0..FOUND)
                .filter(|&n| {
                    range.seek(key(n, &mut random).to_be_bytes());
                    range.next().is_some()
                })
                .count() as u64
        });
        let opened = median(|| {
            let mut random = Random::new(2);
            (0..FOUND).filter(|&n| db.range(key(n, &mut random).to_be_bytes()..).next().is_some()).count() as u64
        });
        let name = if step == 0 { "at random".to_owned() } else { format!("every {step}th") };
        println!("{name:<12} seek {sought:>6} ns, new range {opened:>6} ns");
    }
    db.close().unwrap();
    std::fs::remove_dir_all(&dir).unwrap();
}
