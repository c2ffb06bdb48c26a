//! Space is held on a slow disk: writers are slowed before value files exceed their target.

use std::{
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering::Relaxed},
    },
    thread,
    time::Duration,
};

use bifold::{Db, Env, KeyspaceOptions, Options, PlacementKind};
use bifold_io::{FileSystem, faulty::FaultyFs, memory::MemoryFs};

const KEYS: u64 = 64_000;
const VALUE_BYTES: u64 = 1000;
const TARGET: f64 = 1.5;

/// A sync of one file takes this long. `hashkv` has some fifty files to sync before it may delete those that GC has
/// drained.
const SYNC: Duration = Duration::from_millis(4);

/// Removing one file takes this long: some systems discard its blocks. That is more than GC takes to free a file.
const REMOVAL: Duration = Duration::from_millis(20);

/// Bytes of value files and tables.
fn space(fs: &MemoryFs) -> u64 {
    let of_data = |path: &Path| path.extension().is_some_and(|extension| extension == "val" || extension == "tbl");
    let files = fs.list(Path::new("/db")).unwrap();
    files.iter().filter(|path| of_data(path)).map(|path| fs.len(path).unwrap().unwrap_or(0)).sum()
}

/// The largest space amplification while every key is overwritten twice, in a mixed order. Each `slow` call takes so
/// long.
fn largest(placement: PlacementKind, slow: Option<(&'static str, Duration)>) -> f64 {
    let memory = MemoryFs::new();
    let faulty = FaultyFs::over_memory(memory.clone());
    let env = Env { fs: Arc::new(faulty.clone()), ..Env::system() };
    let mut options = Options { memory_limit: 64 << 20, ..Options::default() };
    options.keyspace = match placement {
        PlacementKind::UniKv => KeyspaceOptions::unikv(),
        placement => KeyspaceOptions { placement, ..KeyspaceOptions::default() },
    };
    options.keyspace.table_bytes = 1 << 20;
    (options.keyspace.values.file_bytes, options.keyspace.values.space_target) = (1 << 20, TARGET);
    let db = Db::open_in(env, "/db", options).unwrap();
    let put = |n: u64| db.put(format!("key{n:08}"), vec![n as u8; VALUE_BYTES as usize]).unwrap();
    (0..KEYS).for_each(put);
    db.wait_idle().unwrap();
    faulty.decide_by(Box::new(move |call| {
        let (_, time) = slow.filter(|(op, _)| *op == call.op)?;
        thread::sleep(time);
        None
    }));
    let (most, ends) = (AtomicU64::new(0), AtomicBool::new(false));
    thread::scope(|scope| {
        scope.spawn(|| {
            while !ends.load(Relaxed) {
                most.fetch_max(space(&memory), Relaxed);
                thread::sleep(Duration::from_millis(2));
            }
        });
        (0..2 * KEYS).for_each(|n| put(n * 40_503 % KEYS));
        ends.store(true, Relaxed);
    });
    faulty.clear();
    db.close().unwrap();
    most.load(Relaxed) as f64 / (KEYS * (VALUE_BYTES + 11)) as f64
}

/// Measured on two processors: 1.5 to 1.75; before writers waited, 2.9, 2.1 and 2.4.
#[test]
fn writers_wait_for_a_slow_disk_before_space_is_beyond_its_target() {
    for placement in [PlacementKind::HashKv, PlacementKind::WiscKey, PlacementKind::NovKv, PlacementKind::Streams] {
        let largest = largest(placement, Some(("sync", SYNC)));
        assert!((1.2..TARGET * 1.25).contains(&largest), "{placement:?}: {largest:.2} bytes a byte");
    }
}

/// Measured: 1.56 to 1.66. Before files that are being removed counted, and with slow syncs too, 1.69 to 2.27.
#[test]
fn writers_wait_for_files_to_be_removed_before_space_is_beyond_its_target() {
    for placement in [PlacementKind::HashKv, PlacementKind::WiscKey, PlacementKind::NovKv, PlacementKind::Streams] {
        let largest = largest(placement, Some(("remove", REMOVAL)));
        assert!((1.2..TARGET * 1.25).contains(&largest), "{placement:?}: {largest:.2} bytes a byte");
    }
}

/// A merge that moves values has its part of the tree on disk twice until it ends, and a part is a good share of such
/// a small database: 1.73 to 1.87, and 1.74 to 1.79. With a level 0 as large as `unsorted_bytes` allows, `unikv` took
/// 3.4.
#[test]
fn merges_that_move_values_take_their_part_of_space_twice_and_no_more() {
    for (placement, bound) in [(PlacementKind::DiffKv, 2.1), (PlacementKind::UniKv, 2.3)] {
        let largest = largest(placement, None);
        assert!((1.2..bound).contains(&largest), "{placement:?}: {largest:.2} bytes a byte");
    }
}
