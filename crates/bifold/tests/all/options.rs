//! Options of keyspaces that change: by `set_options` and at opening.

use std::{
    collections::BTreeMap,
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use bifold::{
    Access, CachedValues, Compaction, Compression, Db, Env, Error, Keyspace, KeyspaceOptions, Options, PlacementKind,
    Workers,
    options::{Cold, DiffKv, HashIndex, HashKv, Leveled, MergePolicy, NovKv, Tiered, TwoLayer, UniKv, Values, Victim},
    verify, verify_in,
};
use bifold_io::{
    faulty::{FaultKind, FaultyFs},
    memory::MemoryFs,
};

use crate::{
    support::{TempDir, check_filled, entries, fill, tiny, tiny_db},
    waits::PLACEMENTS,
};

/// What a keyspace must hold.
type Contents = BTreeMap<Vec<u8>, Vec<u8>>;

fn separated(placement: PlacementKind) -> KeyspaceOptions {
    let values = Values {
        separate_from_bytes: Some(64),
        file_bytes: 16 << 10,
        hashkv: HashKv { group_bytes: 8 << 10, ..HashKv::default() },
        diffkv: DiffKv { large_bytes: 250, ..DiffKv::default() },
        ..Values::default()
    };
    KeyspaceOptions { placement, values, ..tiny().keyspace }
}

fn with(keyspace: KeyspaceOptions) -> Options {
    Options { keyspace, ..tiny() }
}

/// Puts, deletes and range deletes over 300 keys, with values of 0 to 400 bytes.
fn churn(keyspace: &Keyspace, contents: &mut Contents, round: u32) {
    for n in 0..300_u32 {
        let key = format!("key{:04}", n * 7 % 300).into_bytes();
        match (n * 31 + round * 17) % 11 {
            0 => {
                keyspace.delete(&key).unwrap();
                contents.remove(&key);
            }
            1 if n % 10 == 0 => {
                let end = format!("key{:04}", n * 7 % 300 + 5).into_bytes();
                keyspace.delete_range(key.clone()..end.clone()).unwrap();
                contents.retain(|k, _| *k < key || *k >= end);
            }
            _ => {
                let value = format!("{n}.{round} ").into_bytes().repeat(((n + round * 13) % 60) as usize);
                keyspace.put(&key, &value).unwrap();
                contents.insert(key, value);
            }
        }
    }
}

fn check(keyspace: &Keyspace, contents: &Contents, when: &str) {
    assert!(entries(keyspace.iter()).into_iter().eq(contents.clone()), "{when}");
    for n in 0..300 {
        let key = format!("key{n:04}");
        let found = keyspace.get(&key).unwrap();
        assert_eq!(found.as_deref(), contents.get(key.as_bytes()).map(Vec::as_slice), "{when}: {key}");
    }
}

fn is_sound(dir: &Path) {
    assert_eq!(verify(dir).unwrap().problems.len(), 0);
}

/// Options with each one that can change changed.
fn changed(options: &KeyspaceOptions) -> KeyspaceOptions {
    KeyspaceOptions {
        placement: options.placement,
        hash_index: options.hash_index,
        values: Values {
            separate_from_bytes: Some(20),
            space_target: 1.3,
            file_bytes: 4 << 10,
            compression: Compression::Lz4,
            cache: CachedValues::Gets,
            hashkv: HashKv { victim: Victim::Greedy, cold: Cold::Log, group_bytes: 4 << 10, groups_max: 16 },
            novkv: NovKv { gc_threshold: 0.5 },
            diffkv: DiffKv { gc_threshold: 0.4, large_bytes: 100, merge: MergePolicy::EachLevel, max_sorted_run: 2 },
            unikv: UniKv { gc_threshold: 0.6, ..UniKv::default() },
        },
        compression: Compression::Zstd,
        table_bytes: 4 << 10,
        partition_bytes: Some(64 << 10),
        block_bytes: 256,
        restart_interval: 4,
        filter_bits_per_key: 5,
        compaction: Compaction::Tiered(Tiered { size_ratio: 3, ..Tiered::default() }),
        ttl: Some(Duration::from_secs(86_400)),
        merge: options.merge.clone(),
    }
}

#[test]
fn every_option_but_two_can_change_and_comes_back() {
    for placement in PLACEMENTS {
        let dir = TempDir::new();
        let (old, mut contents) = (separated(placement), Contents::new());
        let new = changed(&old);
        let db = Db::open_with(dir.join("db"), with(old.clone())).unwrap();
        let keyspace = db.default_keyspace();
        churn(keyspace, &mut contents, 0);
        assert_eq!(keyspace.options(), old);
        keyspace.set_options(new.clone()).unwrap();
        assert_eq!(keyspace.options(), new);
        check(keyspace, &contents, "after the change");
        churn(keyspace, &mut contents, 1);
        db.compact().unwrap();
        check(keyspace, &contents, "after a compaction");
        db.checkpoint(dir.join("copy")).unwrap();
        db.close().unwrap();
        for path in [dir.join("db"), dir.join("copy")] {
            is_sound(&path);
            let db = Db::open_with(&path, tiny_stored()).unwrap();
            assert_eq!(db.default_keyspace().options(), new, "{placement:?} {}", path.display());
            check(db.default_keyspace(), &contents, "opened again");
            db.close().unwrap();
        }
    }
}

/// Of the keyspace, nothing: it has the options that are stored.
fn tiny_stored() -> Options {
    Options { keyspace: KeyspaceOptions::default(), ..tiny() }
}

/// The knobs of each placement, changed between rounds of writes with background threads.
#[test]
fn each_placement_changes_its_knobs_while_it_is_written_to() {
    for placement in PLACEMENTS {
        let dir = TempDir::new();
        let old = separated(placement);
        let options = Options { workers: Workers::Threads(2), ..with(old.clone()) };
        let db = Db::open_with(dir.join("db"), options).unwrap();
        let keyspace = db.default_keyspace().clone();
        let done = Arc::new(AtomicBool::new(false));
        let (changer, ended) = (keyspace.clone(), Arc::clone(&done));
        let changes = std::thread::spawn(move || {
            let colds = [Cold::Segments, Cold::Log, Cold::UnlimitedLog, Cold::Off];
            let merges = [MergePolicy::Off, MergePolicy::EachLevel, MergePolicy::Lazy, MergePolicy::ScanOptimised];
            let victims = [Victim::Greedy, Victim::CostBenefit, Victim::GreedyRandom(2), Victim::Random];
            let mut turns = 0;
            while !ended.load(Ordering::Relaxed) || turns < 12 {
                let mut options = if turns % 2 == 0 { changed(&old) } else { old.clone() };
                options.values.hashkv.cold = colds[turns % 4];
                options.values.hashkv.victim = victims[turns % 4];
                options.values.diffkv.merge = merges[turns % 4];
                options.values.separate_from_bytes = Some([1, 64, 200][turns % 3]);
                changer.set_options(options.clone()).unwrap();
                assert_eq!(changer.options(), options);
                turns += 1;
                std::thread::yield_now();
            }
        });
        let mut contents = Contents::new();
        (0..12).for_each(|round| churn(&keyspace, &mut contents, round));
        done.store(true, Ordering::Relaxed);
        changes.join().unwrap();
        db.wait_idle().unwrap();
        check(&keyspace, &contents, "when all is idle");
        db.collect_garbage().unwrap();
        check(&keyspace, &contents, "after GC");
        drop(keyspace);
        db.close().unwrap();
        is_sound(&dir.join("db"));
        let db = Db::open_with(dir.join("db"), tiny_stored()).unwrap();
        check(db.default_keyspace(), &contents, "opened again");
    }
}

#[test]
fn values_are_separated_from_the_length_in_force() {
    for placement in PLACEMENTS.into_iter().filter(|p| !matches!(p, PlacementKind::Inline | PlacementKind::UniKv)) {
        let dir = TempDir::new();
        let mut options = separated(placement);
        options.values.separate_from_bytes = Some(u64::MAX);
        options.values.diffkv.large_bytes = u64::MAX;
        let db = Db::open_with(dir.join("db"), with(options.clone())).unwrap();
        let keyspace = db.default_keyspace();
        let put_all = |round: u8| (0..50_u8).for_each(|n| keyspace.put([n], [round; 100]).unwrap());
        put_all(0);
        db.flush().unwrap();
        assert_eq!(db.stats().space.values_bytes, 0, "{placement:?}");
        options.values.separate_from_bytes = Some(100);
        keyspace.set_options(options.clone()).unwrap();
        put_all(1);
        db.flush().unwrap();
        assert!(db.stats().space.values_bytes > 5000, "{placement:?}");
        // What was separated is dead now, though nothing is separated any more.
        options.values.separate_from_bytes = Some(u64::MAX);
        keyspace.set_options(options).unwrap();
        (0..50_u8).step_by(2).for_each(|n| keyspace.delete([n]).unwrap());
        (1..50_u8).step_by(2).for_each(|n| keyspace.put([n], [2; 100]).unwrap());
        db.compact().unwrap();
        let live = entries(keyspace.iter());
        assert!(
            live.iter().map(|(key, value)| (key[0], &value[..])).eq((1..50).step_by(2).map(|n| (n, &[2; 100][..])))
        );
        assert!(db.stats().space.live_values_estimate < 500, "{placement:?}");
    }
}

#[test]
fn a_lower_space_target_is_kept_without_another_write() {
    for placement in [PlacementKind::WiscKey, PlacementKind::HashKv, PlacementKind::NovKv] {
        let dir = TempDir::new();
        let mut options = separated(placement);
        options.values.space_target = 100.0;
        let db = Db::open_with(dir.join("db"), with(options.clone())).unwrap();
        for round in 0..4_u8 {
            (0..200_u8).for_each(|n| db.put([n], [round; 300]).unwrap());
        }
        db.flush().unwrap();
        db.wait_idle().unwrap();
        let before = db.stats();
        options.values.space_target = 1.5;
        db.default_keyspace().set_options(options).unwrap();
        db.wait_idle().unwrap();
        let after = db.stats();
        assert!(after.gc.jobs > before.gc.jobs, "{placement:?}: {:?}", after.gc);
        assert!(after.space.values_bytes < before.space.values_bytes / 2, "{placement:?}");
        assert!((0..200_u8).all(|n| db.get([n]).unwrap().as_deref() == Some(&[3; 300])), "{placement:?}");
    }
}

const COMPACTIONS: [Compaction; 5] = [
    Compaction::Leveled(Leveled {
        size_ratio: 3,
        levels: 5,
        level0_runs: 2,
        level0_overlap: 2,
        base_bytes: 8 << 10,
        overlap_tables: 25,
    }),
    Compaction::Leveled(Leveled {
        size_ratio: 10,
        levels: 2,
        level0_runs: 4,
        level0_overlap: 2,
        base_bytes: 64 << 10,
        overlap_tables: 25,
    }),
    Compaction::Tiered(Tiered { size_ratio: 3, levels: 4, space_percent: 200 }),
    Compaction::Tiered(Tiered { size_ratio: 2, levels: 2, space_percent: 1000 }),
    Compaction::TwoLayer(TwoLayer { unsorted_bytes: 16 << 10, scan_merge_runs: 3 }),
];

/// Each policy accepts the tree that each other one has left, and gives it the shape it has with this policy.
#[test]
fn compaction_can_change_from_each_kind_to_each_other() {
    let ways = [(Workers::Caller, None), (Workers::Threads(3), None), (Workers::Caller, Some(HashIndex::default()))];
    for n in 0..25 {
        let ((from, to), (workers, hash_index)) = ((COMPACTIONS[n / 5], COMPACTIONS[n % 5]), ways[(n + n / 5) % 3]);
        let fs = MemoryFs::new();
        let open = |options| Db::open_in(Env { fs: Arc::new(fs.clone()), ..Env::system() }, "/db", options).unwrap();
        let keyspace =
            KeyspaceOptions { compaction: from, table_bytes: 4 << 10, hash_index, ..separated(PlacementKind::DiffKv) };
        let options = Options { workers, memtable_bytes: 8 << 10, ..with(keyspace.clone()) };
        let db = open(options.clone());
        let (tree, mut contents) = (db.default_keyspace(), Contents::new());
        (0..4).for_each(|round| churn(tree, &mut contents, round));
        tree.set_options(KeyspaceOptions { compaction: to, ..keyspace }).unwrap();
        let when = format!("{from:?} to {to:?}, {workers:?}");
        check(tree, &contents, &when);
        db.wait_idle().unwrap();
        check(tree, &contents, &when);
        has_shape(&db, to, &when);
        (4..6).for_each(|round| churn(tree, &mut contents, round));
        db.wait_idle().unwrap();
        check(tree, &contents, &when);
        has_shape(&db, to, &when);
        db.close().unwrap();
        let report = verify_in(&Env { fs: Arc::new(fs.clone()), ..Env::system() }, "/db", |_| {}).unwrap();
        assert_eq!(report.problems.len(), 0, "{when}");
        let db = open(Options { keyspace: KeyspaceOptions::default(), ..options });
        assert_eq!(db.default_keyspace().options().compaction, to);
        check(db.default_keyspace(), &contents, &when);
    }
}

fn has_shape(db: &Db, compaction: Compaction, when: &str) {
    let keyspace = &db.stats().keyspaces[0];
    let runs: Vec<u64> = keyspace.levels.iter().map(|level| level.runs).collect();
    let beneath = runs.get(1..).unwrap_or_default();
    let is_right = match compaction {
        Compaction::Leveled(_) => beneath.iter().all(|&runs| runs <= 1),
        Compaction::Tiered(tiered) => runs.iter().all(|&runs| runs < u64::from(tiered.size_ratio)),
        Compaction::TwoLayer(_) => beneath.iter().sum::<u64>() <= 1,
        other => panic!("{other:?} has no shape here"),
    };
    assert!(is_right, "{when}: runs of levels {runs:?}");
}

#[test]
fn what_cannot_change_is_refused_and_changes_nothing() {
    let (_dir, db) = tiny_db();
    let keyspace = db.default_keyspace();
    fill(keyspace, 100, "first");
    let stored = keyspace.options();
    let index = HashIndex::default();
    for (given, says) in [
        (
            KeyspaceOptions { placement: PlacementKind::HashKv, ..stored.clone() },
            &["`streams`", "`hashkv`", "bifold convert"],
        ),
        (
            KeyspaceOptions { hash_index: Some(index), compression: Compression::Zstd, ..stored.clone() },
            &["no hash index", "ways = ", "bifold convert"],
        ),
        (KeyspaceOptions { restart_interval: 0, ..stored.clone() }, &["restart_interval", "0", "between"]),
    ] {
        for refused in
            [keyspace.set_options(given.clone()).unwrap_err(), db.keyspace("default", given.clone()).unwrap_err()]
        {
            assert!(matches!(refused, Error::InvalidArgument { .. }), "{refused}");
            let refused = refused.to_string();
            assert!(says.iter().all(|word| refused.contains(word)), "{refused}");
        }
        assert_eq!(keyspace.options(), stored);
    }
    check_filled(keyspace, 100, "first");
}

#[test]
fn a_database_that_is_not_opened_because_of_its_options_can_be_opened_at_once() {
    let (dir, db) = tiny_db();
    fill(db.default_keyspace(), 100, "first");
    db.close().unwrap();
    for workers in [Workers::Caller, Workers::Threads(2)] {
        let keyspace = KeyspaceOptions { placement: PlacementKind::WiscKey, ..tiny().keyspace };
        let refused = Db::open_with(dir.join("db"), Options { workers, keyspace, ..tiny() }).unwrap_err().to_string();
        assert!(refused.contains("`streams`") && refused.contains("`wisckey`"), "{refused}");
        let db = Db::open_with(dir.join("db"), tiny()).unwrap();
        check_filled(db.default_keyspace(), 100, "first");
        db.close().unwrap();
    }
}

#[test]
fn options_that_are_given_at_opening_are_in_force() {
    let (dir, db) = tiny_db();
    let stored = db.default_keyspace().options();
    let other = db.keyspace("other", stored.clone()).unwrap();
    let zstd = KeyspaceOptions { compression: Compression::Zstd, ..stored.clone() };
    assert_eq!(db.keyspace("other", KeyspaceOptions::default()).unwrap().options(), stored, "as stored");
    assert_eq!(db.keyspace("other", zstd.clone()).unwrap().options(), zstd);
    assert_eq!(other.options(), zstd, "of all handles");
    drop(other);
    db.close().unwrap();
    let path = dir.join("db");
    let db = Db::open_with(&path, with(zstd.clone())).unwrap();
    assert_eq!(db.default_keyspace().options(), zstd);
    db.close().unwrap();
    let read = |keyspace: KeyspaceOptions| Db::open_with(&path, Options { access: Access::ReadOnly, ..with(keyspace) });
    for keyspace in [KeyspaceOptions::default(), zstd.clone()] {
        let db = read(keyspace).unwrap();
        assert_eq!(db.default_keyspace().options(), zstd);
        assert!(matches!(db.default_keyspace().set_options(stored.clone()), Err(Error::ReadOnly)));
        let refused = db.keyspace("other", stored.clone()).unwrap_err();
        assert!(
            matches!(refused, Error::InvalidArgument { .. }) && refused.to_string().contains("read-only"),
            "{refused}"
        );
        assert_eq!(db.keyspace("other", zstd.clone()).unwrap().options(), zstd);
    }
    let refused = read(stored).unwrap_err();
    assert!(matches!(refused, Error::InvalidArgument { .. }) && refused.to_string().contains("read-only"), "{refused}");
    let db = Db::open_with(&path, tiny_stored()).unwrap();
    assert_eq!(db.default_keyspace().options(), zstd, "nothing has changed");
    assert_eq!(db.existing_keyspace("other").unwrap().unwrap().options(), zstd);
}

/// The manifest has whole milliseconds, and as many as its text can say.
#[test]
fn a_ttl_is_the_same_before_and_after_an_opening() {
    let millis = Duration::from_millis;
    for (ttl, recorded) in [(Duration::from_micros(1500), millis(2)), (Duration::MAX, millis(u64::MAX))] {
        let fs = MemoryFs::new();
        let options = with(KeyspaceOptions { ttl: Some(ttl), ..tiny().keyspace });
        let open = |access| {
            let env = Env { fs: Arc::new(fs.clone()), ..Env::system() };
            let db = Db::open_in(env, "/db", Options { access, ..options.clone() }).unwrap();
            assert_eq!(db.default_keyspace().options().ttl, Some(recorded));
            db
        };
        open(Access::ReadWrite).close().unwrap();
        open(Access::ReadOnly).close().unwrap();
        let db = open(Access::ReadWrite);
        db.default_keyspace().set_options(options.keyspace.clone()).unwrap();
        let manifest = fs.read(Path::new("/db/MANIFEST")).unwrap();
        let recorded = manifest.windows(6).filter(|word| **word == *b"ttl = ").count();
        assert_eq!(recorded, 1, "with the keyspace, and no change of it");
        let too_short = KeyspaceOptions { ttl: Some(Duration::from_micros(999)), ..options.keyspace.clone() };
        assert!(matches!(db.default_keyspace().set_options(too_short), Err(Error::InvalidArgument { .. })));
    }
}

/// The edit fails to reach the disk: nobody may see options that a crash takes back.
#[test]
fn options_that_are_not_durable_are_not_in_force() {
    let fs = FaultyFs::over_memory(MemoryFs::new());
    let env = || Env { fs: Arc::new(fs.clone()), ..Env::system() };
    let db = Db::open_in(env(), "/db", tiny()).unwrap();
    let (keyspace, stored) = (db.default_keyspace().clone(), db.default_keyspace().options());
    let is_manifest = |path: &Path| path.file_name().is_some_and(|name| name == "MANIFEST");
    fs.decide_by(Box::new(move |call| (call.op == "sync" && is_manifest(call.path)).then_some(FaultKind::EIO)));
    let failed = keyspace.set_options(KeyspaceOptions { compression: Compression::Zstd, ..stored.clone() });
    assert!(matches!(failed, Err(Error::Io { .. } | Error::Poisoned { .. })), "{failed:?}");
    assert_eq!(keyspace.options(), stored);
    fs.clear();
    drop((keyspace, db));
    let db = Db::open_in(env(), "/db", tiny_stored()).unwrap();
    let found = db.default_keyspace().options();
    assert!([Compression::None, Compression::Zstd, stored.compression].contains(&found.compression));
    assert_eq!(KeyspaceOptions { compression: stored.compression, ..found }, stored);
}

#[test]
fn a_dropped_keyspace_has_options_and_takes_no_others() {
    let (_dir, db) = tiny_db();
    let keyspace = db.keyspace("k", tiny().keyspace).unwrap();
    let stored = keyspace.options();
    db.drop_keyspace("k").unwrap();
    assert_eq!(keyspace.options(), stored);
    let zstd = KeyspaceOptions { compression: Compression::Zstd, ..stored };
    assert!(matches!(keyspace.set_options(zstd), Err(Error::Closed { .. })));
}

/// The manifests of the fixtures name options of values as they were called before placements had groups.
#[test]
fn options_of_a_database_of_an_older_version_can_change() {
    let from = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fixtures/v1-cold-log/database");
    let dir = TempDir::new();
    let path = dir.join("db");
    std::fs::create_dir_all(&path).unwrap();
    for file in std::fs::read_dir(from).unwrap().map(Result::unwrap) {
        std::fs::copy(file.path(), path.join(file.file_name())).unwrap();
    }
    let is_old = |word: &str| {
        let manifest = std::fs::read(path.join("MANIFEST")).unwrap();
        manifest.windows(word.len()).any(|window| window == word.as_bytes())
    };
    assert!(is_old("min_bytes = ") && !is_old("separate_from_bytes"));
    let open = || Db::open_with(&path, tiny_stored());
    let db = open().unwrap();
    let hashkv = db.existing_keyspace("hashkv").unwrap().unwrap();
    let (before, stored) = (entries(hashkv.iter()), hashkv.options());
    assert_eq!((stored.values.separate_from_bytes, stored.values.hashkv.cold), (Some(64), Cold::Log));
    let mut new = stored;
    new.values.hashkv.cold = Cold::Segments;
    hashkv.set_options(new.clone()).unwrap();
    db.compact().unwrap();
    assert!(entries(hashkv.iter()) == before);
    drop(hashkv);
    db.close().unwrap();
    assert!(!is_old("min_bytes = "));
    let hashkv = open().unwrap().existing_keyspace("hashkv").unwrap().unwrap();
    assert_eq!(hashkv.options(), new);
    assert!(entries(hashkv.iter()) == before);
}
