//! How fast sorted entries come in, by `put` and by an ingest:
//! `cargo run --release --example ingest_rate -- DIR [ENTRIES] [VALUE_BYTES] [PLACEMENT]`. DIR must not exist.

use std::{
    error::Error,
    path::{Path, PathBuf},
    time::Instant,
};

use bifold::{Db, KeyspaceOptions, Options, PlacementKind};

const ROUNDS: usize = 3;

/// Values are parts of so many bytes, so that they do not compress, and that making them takes no time.
const RANDOM_BYTES: usize = 8 << 20;

const PLACEMENTS: [PlacementKind; 7] = [
    PlacementKind::Inline,
    PlacementKind::HashKv,
    PlacementKind::UniKv,
    PlacementKind::Streams,
    PlacementKind::WiscKey,
    PlacementKind::NovKv,
    PlacementKind::DiffKv,
];

fn main() -> Result<(), Box<dyn Error>> {
    let mut args = std::env::args().skip(1);
    let dir = PathBuf::from(args.next().ok_or("name a directory that does not exist")?);
    let entries: u64 = args.next().map_or(Ok(1_000_000), |entries| entries.parse())?;
    let value_bytes: usize = args.next().map_or(Ok(100), |bytes| bytes.parse())?;
    let only = args.next().map(|name| name.to_lowercase());
    println!("{entries} entries of {value_bytes} bytes, medians of {ROUNDS}, thousands per second");
    for placement in PLACEMENTS {
        if only.as_ref().is_some_and(|only| *only != format!("{placement:?}").to_lowercase()) {
            continue;
        }
        let mut rates = [Vec::new(), Vec::new()];
        for _ in 0..ROUNDS {
            for (ingests, rates) in [false, true].into_iter().zip(&mut rates) {
                rates.push(rate(&dir, placement, (entries, value_bytes), ingests)?);
                std::fs::remove_dir_all(&dir)?;
            }
        }
        let [put, ingest] = rates.map(|mut rates| {
            rates.sort_by(f64::total_cmp);
            rates[ROUNDS / 2]
        });
        println!("{placement:?}: put {put:.0}, ingest {ingest:.0}, {:.1} times", ingest / put);
    }
    Ok(())
}

/// Thousands of entries per second, until all are durable.
fn rate(
    dir: &Path,
    placement: PlacementKind,
    (entries, value_bytes): (u64, usize),
    ingests: bool,
) -> Result<f64, Box<dyn Error>> {
    let keyspace = KeyspaceOptions::default().with_placement(placement);
    let db = Db::open_with(dir, Options { keyspace, ..Options::default() })?;
    let keyspace = db.default_keyspace();
    let random = random_bytes(RANDOM_BYTES + value_bytes);
    let begin = Instant::now();
    let mut ingest = if ingests { Some(keyspace.ingest()?) } else { None };
    for n in 0..entries {
        let at = n as usize * value_bytes % RANDOM_BYTES;
        let value = &random[at..at + value_bytes];
        match &mut ingest {
            Some(ingest) => ingest.put(n.to_be_bytes(), value)?,
            None => keyspace.put(n.to_be_bytes(), value)?,
        }
    }
    match ingest {
        Some(ingest) => drop(ingest.finish()?),
        None => db.sync()?,
    }
    let seconds = begin.elapsed().as_secs_f64();
    db.close()?;
    Ok(entries as f64 / seconds / 1000.0)
}

fn random_bytes(count: usize) -> Vec<u8> {
    let mut random: u64 = 1;
    let mut next = || {
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (random >> 56) as u8
    };
    (0..count).map(|_| next()).collect()
}
