//! What the change feed costs: `cargo run --release --example feed_costs -- DIR [ENTRIES]`. DIR must not exist. Rates
//! are in thousands per second.

use std::{
    error::Error,
    path::{Path, PathBuf},
    time::Instant,
};

use bifold::{Access, Changes, Db, IfMissing, KeyspaceOptions, Options, PlacementKind, RetainChanges};

type Outcome<T> = Result<T, Box<dyn Error>>;

const ROUNDS: usize = 3;

/// Values are parts of so many bytes, so that they do not compress, and that making them takes no time.
const RANDOM_BYTES: usize = 8 << 20;

fn main() -> Outcome<()> {
    let mut args = std::env::args().skip(1);
    let dir = PathBuf::from(args.next().ok_or("name a directory that does not exist")?);
    let entries: u64 = args.next().map_or(Ok(1_000_000), |entries| entries.parse())?;
    for placement in [PlacementKind::Inline, PlacementKind::HashKv, PlacementKind::Streams] {
        for value_bytes in [100, 1000] {
            let mut rates = [const { Vec::new() }; 4];
            for _ in 0..ROUNDS {
                rates[0].push(run(&dir, placement, (entries, value_bytes), false)?[0]);
                let [put, read, followed] = run(&dir, placement, (entries, value_bytes), true)?;
                rates[1].push(put);
                rates[2].push(read);
                rates[3].push(followed);
            }
            let [without, with, read, followed] = rates.map(median);
            let share = with / without;
            println!("{placement:?}, {value_bytes} B: put {without:.0}, with the feed {with:.0} ({share:.2} times);");
            println!("    changes read {read:.0}, by a follower {followed:.0}");
        }
    }
    Ok(())
}

fn median(mut rates: Vec<f64>) -> f64 {
    rates.sort_by(f64::total_cmp);
    rates[rates.len() / 2]
}

/// Rates of puts in random order until all are in tables, and of reading their changes, here and by a follower.
fn run(
    dir: &Path,
    placement: PlacementKind,
    (entries, value_bytes): (u64, usize),
    keeps_changes: bool,
) -> Outcome<[f64; 3]> {
    let retain_changes = keeps_changes.then_some(RetainChanges { bytes: 1 << 40, age: None });
    let keyspace = KeyspaceOptions::default().with_placement(placement);
    let options = Options { keyspace, retain_changes, ..Options::default() };
    let random = random_bytes();
    let db = Db::open_with(dir, options)?;
    let begin = Instant::now();
    for n in 0..entries {
        let at = n as usize * 61 % (RANDOM_BYTES - value_bytes);
        let key = n.wrapping_mul(0x9E37_79B9_7F4A_7C15).to_be_bytes();
        db.put(key, &random[at..at + value_bytes])?;
    }
    db.flush()?;
    let put = thousands(entries, begin);
    let mut rates = [put, 0.0, 0.0];
    if keeps_changes {
        rates[1] = read(db.changes(0)?, entries)?;
        let following = Options { access: Access::Follow, if_missing: IfMissing::Fail, ..Options::default() };
        rates[2] = read(Db::open_with(dir, following)?.changes(0)?, entries)?;
    }
    db.close()?;
    std::fs::remove_dir_all(dir)?;
    Ok(rates)
}

fn read(changes: Changes, entries: u64) -> Outcome<f64> {
    let (begin, mut count) = (Instant::now(), 0);
    for change in changes {
        count += u64::from(change?.value.is_some());
    }
    if count != entries { Err(format!("{count} changes").into()) } else { Ok(thousands(entries, begin)) }
}

fn thousands(entries: u64, since: Instant) -> f64 {
    entries as f64 / since.elapsed().as_secs_f64() / 1000.0
}

fn random_bytes() -> Vec<u8> {
    let mut state = 1u64;
    let mut next = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 56) as u8
    };
    (0..RANDOM_BYTES).map(|_| next()).collect()
}
