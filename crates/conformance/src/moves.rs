//! What a value is after it moved: the same, once, under every codec, threshold, compaction and manifest.

use std::{
    collections::{BTreeMap, BTreeSet},
    ops::Bound,
};

use bifold::{
    Compaction, Compression, Db,
    options::{Leveled, Tiered, TwoLayer, Victim},
    stats::SpaceStats,
};
use bifold_io::memory::MemoryFs;
use bifold_sim::{
    env,
    history::{Flavor, History, KeyNo, Mix, Op, key_bytes},
    judge,
    options::suit,
    random::Random,
};

use crate::{
    Case, MIN_BYTES,
    meanwhile::{Act, Acted, Ends, at_change, at_every_change, at_every_change_of_gc, delete, put},
    support::{Bed, Record, compare, contents, files, records, spec},
};

const KEYS: KeyNo = 60;

/// Moving everything again and again drops nothing, and takes nothing that moved for dead.
pub fn a10_a_moved_value_is_not_a_dropped_one(case: &Case) {
    let mut bed = Bed::new(case);
    bed.fill(0..KEYS);
    let payload: u64 = contents(bed.db())["default"].iter().map(|(_, value)| value.len() as u64).sum();
    for _ in 0..4 {
        bed.collect();
        bed.check();
        bed.step(&Op::Compact);
        bed.check();
        let space = bed.db().stats().space;
        assert!(!case.separates() || space.live_values_estimate >= payload, "{payload} of values, {space:?}");
        assert_eq!(space.drained_bytes, 0, "{space:?}");
    }
    bed.reopen();
    bed.check();
}

/// Both versions are in one file when GC takes it; a snapshot between them sees the older one.
pub fn a10_of_two_versions_in_one_file_the_newer_is_kept(case: &Case) {
    let mut bed = Bed::new(case);
    for key in 0..KEYS {
        bed.put(key, 100);
        if key % 2 == 0 {
            bed.put(key, 90);
        }
    }
    bed.collect();
    bed.check();
    bed.put(1, 200);
    bed.step(&Op::Snapshot(0));
    bed.put(1, 201);
    bed.put(1, 202);
    for _ in 0..3 {
        bed.collect();
        bed.step(&Op::ReadSnapshot(0, 0));
        bed.check();
    }
    bed.step(&Op::DropSnapshot(0));
    bed.check_thoroughly();
}

/// Files in which 0 to 99 of 100 values are dead, by overwriting, by deleting, by range deletes.
pub fn a10_every_value_reads_back_whatever_share_of_its_file_is_dead(case: &Case) {
    for dead in [0, 1, 10, 25, 50, 75, 90, 99] {
        let mut bed = Bed::new(case);
        bed.fill(0..100);
        for key in (0..100).filter(|key| key * 37 % 100 < dead) {
            match key % 3 {
                0 => bed.put(key, 70),
                1 => bed.delete(key),
                _ => bed.delete_range(one(key)),
            }
        }
        bed.collect();
        bed.check();
        bed.check_thoroughly();
    }
}

pub(crate) fn one(key: KeyNo) -> bifold_sim::history::Span {
    bifold_sim::history::Span(Bound::Included(key), Bound::Included(key))
}

/// Each length around the threshold in turn, with nothing, a flush, a merge or GC between them.
pub fn a20_values_about_the_threshold_do_not_get_mixed_up(case: &Case) {
    let lengths = [0, 1, MIN_BYTES - 1, MIN_BYTES, MIN_BYTES + 1, 6 * MIN_BYTES];
    for between in 0..4 {
        let mut bed = Bed::new(case);
        let pairs = lengths.iter().flat_map(|first| lengths.iter().map(move |second| (*first, *second)));
        let pairs: Vec<(KeyNo, (u32, u32))> = (0..).zip(pairs).collect();
        pairs.iter().for_each(|&(key, (first, _))| bed.put(key, first));
        bed.step(&Op::Snapshot(0));
        match between {
            0 => {}
            1 => bed.step(&Op::Flush),
            2 => bed.step(&Op::Compact),
            _ => bed.collect(),
        }
        pairs.iter().for_each(|&(key, (_, second))| bed.put(key, second));
        bed.check();
        bed.collect();
        bed.step(&Op::ReadSnapshot(0, 0));
        bed.check_thoroughly();
    }
}

/// Values that compress and values that do not, moved three times and read after reopening, under every codec.
pub fn a08_a_moved_value_has_its_bytes_whatever_the_codec(case: &Case) {
    let mut sizes = Vec::new();
    for compression in [Compression::None, Compression::Lz4, Compression::Zstd] {
        let mut options = case.options();
        options.keyspace.values.compression = compression;
        let mut bed = Bed::with(case, options);
        for key in 0..KEYS {
            bed.put(key, MIN_BYTES + 33 * u32::from(key));
        }
        for _ in 0..3 {
            bed.collect();
            bed.check();
            bed.reopen();
            bed.check();
        }
        sizes.push(bed.db().stats().space.values_bytes);
        let prepared = bed.close();
        judge::verify_is_clean(&prepared.fs).unwrap();
    }
    assert!(sizes[0] == 0 || (sizes[1] < sizes[0] && sizes[2] < sizes[0]), "nothing was compressed: {sizes:?}");
}

/// GC makes no record that was not there before: no other number, kind, method or body.
pub fn a12_a_moved_record_keeps_number_kind_and_body(case: &Case) {
    let mut options = case.options();
    options.keyspace.values.compression = Compression::Lz4;
    let mut bed = Bed::with(case, options);
    bed.fill(0..KEYS);
    bed.separate();
    (0..KEYS).step_by(4).for_each(|key| bed.delete(key));
    (1..KEYS).step_by(4).for_each(|key| bed.put(key, 10));
    (2..KEYS).step_by(4).for_each(|key| bed.put(key, 500));
    // A flush may separate inline values, and so may a merge.
    bed.step(&Op::Flush);
    bed.separate();
    let before: BTreeSet<Record> = records(&bed.fs).into_iter().collect();
    let files_before = files(&bed.fs);
    for _ in 0..3 {
        bed.collect();
        let strange: Vec<Record> = records(&bed.fs).into_iter().filter(|record| !before.contains(record)).collect();
        assert!(strange.is_empty(), "GC made {strange:?}");
    }
    let moved = files(&bed.fs).keys().any(|name| name.ends_with(".val") && !files_before.contains_key(name));
    assert_eq!(moved, case.separates(), "values were to move");
    bed.check();
}

/// The same for records that another thread appends during GC of their group. A snapshot keeps all copies.
pub fn a12_a_record_carried_over_keeps_number_kind_and_body(case: &Case) {
    if case.separates_by_merges() {
        // Nobody appends to what merges read, and they write each record for the first time.
        return;
    }
    let mut bed = Bed::new(case);
    bed.fill(0..20);
    bed.cool();
    let prepared = bed.close();
    at_every_change(case, Ends::Meanwhile, |at| {
        let bed = prepared.open();
        let _keeps_files = bed.db().snapshot();
        let before: BTreeSet<Record> = records(&bed.fs).into_iter().collect();
        let (db, keys) = (bed.db().clone(), [2, 3, 5, 7, 11, 13, 17]);
        let put = move || keys.iter().for_each(|&key| db.put(key_bytes(key), spec(1, 200).bytes()).unwrap());
        let acted = at_change(&bed.fs, at, put, || bed.db().collect_garbage().unwrap());
        if acted == Acted::Never {
            return acted;
        }
        let after: BTreeSet<Record> = records(&bed.fs).into_iter().collect();
        let made: Vec<&Record> = after.difference(&before).collect();
        let puts = if case.separates() { keys.len() } else { 0 };
        assert_eq!(made.len(), puts, "{at:?}: {puts} puts made {made:?}");
        acted
    });
}

/// What is known about files: their names and lengths on the disk, and how many the database counts.
type Shape = (BTreeMap<String, usize>, u64, u64, BTreeSet<String>);

fn shape(bed: &Bed) -> Shape {
    let held = files(&bed.fs).into_iter().filter(|(name, _)| name.ends_with(".val") || name.ends_with(".tbl"));
    let explained = bed.db().explain_garbage().into_iter().flat_map(|unit| unit.files);
    let space = bed.db().stats().space;
    (
        held.map(|(name, bytes)| (name, bytes.len())).collect(),
        space.value_files,
        space.values_bytes,
        explained.collect(),
    )
}

/// After each step that changes files, a database opened again knows the same files, lengths and units.
pub fn a11_the_manifest_says_what_is_there(case: &Case) {
    let mut bed = Bed::new(case);
    for step in 0..8 {
        bed.fill((0..KEYS).map(|key| key * 7 % 31));
        match step % 4 {
            0 => bed.collect(),
            1 => bed.step(&Op::Compact),
            2 => bed.delete_range(one(3)),
            _ => (0..20).for_each(|key| bed.delete(key)),
        }
        bed.step(&Op::Flush);
        // Files that are appended to when the database closes are not continued when it is opened: they may be units
        // only then.
        let (files, count, bytes, units) = shape(&bed);
        bed.reopen();
        let after = shape(&bed);
        assert_eq!((files, count, bytes), (after.0, after.1, after.2), "step {step}");
        assert!(units.is_subset(&after.3), "step {step}: {units:?} became {:?}", after.3);
        bed.check();
    }
}

/// What was known to be dead before the database was closed is known afterwards, and GC frees it.
pub fn a11_garbage_is_remembered_across_reopening(case: &Case) {
    let mut bed = Bed::new(case);
    (0..6).for_each(|_| bed.fill(0..KEYS));
    bed.step(&Op::Flush);
    bed.db().default_keyspace().compact_range::<&[u8]>(..).unwrap();
    bed.step(&Op::Flush);
    let before = bed.db().stats().space;
    bed.reopen();
    let after = bed.db().stats().space;
    // Files without live values may be deleted already.
    let written = 6 * contents(bed.db())["default"].iter().map(|(_, value)| value.len() as u64).sum::<u64>();
    let is_deleted = before.values_bytes <= written / 3;
    assert!(is_deleted || before.live_values_estimate <= before.values_bytes / 2, "{before:?}");
    // About as much: files that groups share are known to be as dead as the most dead of these.
    let dead = |space: &SpaceStats| space.values_bytes - space.live_values_estimate;
    assert!(dead(&after) >= dead(&before) / 2, "{before:?} became {after:?}");
    bed.collect();
    let collected = bed.db().stats().space;
    let is_freed = collected.values_bytes <= before.values_bytes / 2 || collected.values_bytes <= written / 4;
    // What dies before it is separated leaves none.
    let is_freed = is_freed || (dead(&before) == 0 && !case.separates_at_commit());
    assert!(is_freed, "{before:?} became {collected:?}");
    bed.check_thoroughly();
}

/// Random histories with forced GC between their operations, under every compaction and victim policy.
pub fn a15_constant_gc_changes_no_answer(case: &Case) {
    let compactions = [
        Compaction::Leveled(Leveled {
            size_ratio: 2,
            levels: 2,
            level0_runs: 1,
            base_bytes: 4096,
            ..Leveled::default()
        }),
        Compaction::Tiered(Tiered { size_ratio: 2, levels: 3, ..Tiered::default() }),
        Compaction::TwoLayer(TwoLayer { unsorted_bytes: 8192, scan_merge_runs: 2 }),
    ];
    let victims = [Victim::Greedy, Victim::CostBenefit, Victim::GreedyRandom(2), Victim::Random];
    for seed in 0..12 {
        let mut options = case.eager();
        options.keyspace.compaction = compactions[seed as usize % 3];
        options.keyspace.values.hashkv.victim = victims[seed as usize % 4];
        let history = History::new(seed, Mix { ops: 300, keys: 50, flavor: Flavor::Reads });
        suit(&mut options, &history);
        let mut bed = Bed::with(case, options);
        for (at, op) in &history.ops {
            bed.step(op);
            if at % 7 == 0 {
                bed.collect();
            }
        }
        bed.check_thoroughly();
    }
}

/// A flush by another thread at every change of the files that GC makes, with values that no table holds yet.
pub fn a04_a_flush_in_the_middle_of_gc_loses_nothing(case: &Case) {
    let mut bed = Bed::new(case);
    bed.fill(0..20);
    bed.cool();
    let prepared = bed.close();
    let flush = |db: &Db| db.flush();
    let merge = |db: &Db| db.flush().and_then(|()| db.default_keyspace().compact_range::<&[u8]>(..));
    let changes = vec![put(3, spec(7, 150)), put(4, spec(8, 5)), delete(5), put(30, spec(9, 80))];
    let acts = [
        Act { changes: changes.clone(), then: flush, ends: Ends::Meanwhile },
        Act { changes, then: merge, ends: Ends::AnyTime },
    ];
    for act in &acts {
        let acted = at_every_change_of_gc(&prepared, act);
        assert!(acted > 10 || !case.separates(), "{acted} changes");
    }
}

/// Another thread asks for GC at every change of the files that GC makes.
pub fn a04_two_gc_calls_at_once_follow_each_other(case: &Case) {
    let mut bed = Bed::new(case);
    bed.fill(0..20);
    bed.cool();
    bed.fill(0..10);
    let prepared = bed.close();
    let act = Act { changes: Vec::new(), then: Db::collect_garbage, ends: Ends::AnyTime };
    let acted = at_every_change_of_gc(&prepared, &act);
    assert!(acted > 10 || !case.separates(), "{acted} changes");
}

/// A checkpoint shares files with its origin. Whatever GC does in one of them, the other stays as it was.
pub fn a05_a_checkpoint_and_its_origin_run_gc_on_their_own(case: &Case) {
    let mut bed = Bed::new(case);
    bed.fill(0..KEYS);
    // So that files which GC has written are shared, too.
    bed.cool();
    bed.collect();
    bed.fill(0..KEYS / 2);
    bed.separate();
    let copied = bed.model().clone();
    bed.db().checkpoint("/sim/copy").unwrap();
    bed.fill(KEYS / 3..KEYS);
    bed.delete_range(one(1));
    let surroundings = || env::simulated(&bed.fs);
    let copy = Db::open_in(surroundings(), "/sim/copy", case.options()).unwrap();
    for round in 0..3 {
        let first = if round == 1 { &copy } else { bed.db() };
        first.collect_garbage().unwrap();
        first.compact().unwrap();
        bed.check();
        compare(&copy, &copied).unwrap();
    }
    copy.close().unwrap();
    let copy = Db::open_in(surroundings(), "/sim/copy", case.options()).unwrap();
    compare(&copy, &copied).unwrap();
    drop(copy);
    bed.check_thoroughly();
}

/// The files of a checkpoint are links to those of its origin. What the origin writes, merges and garbage-collects
/// later goes to other files; so does what the copy writes.
pub fn a05_nothing_is_appended_to_the_files_of_a_checkpoint(case: &Case) {
    let mut bed = Bed::new(case);
    bed.fill(0..KEYS);
    // Some files were written by GC, which may go on in them, and commits may go on in those that it has begun.
    bed.cool();
    bed.collect();
    bed.fill(0..KEYS / 4);
    bed.separate();
    bed.db().checkpoint("/sim/copy").unwrap();
    let value_files = |fs: &MemoryFs, dir: &str| {
        let paths = fs.files().into_iter().filter(|path| path.starts_with(dir));
        let values = paths.filter(|path| path.extension().is_some_and(|end| end == "val"));
        values.map(|path| (path.clone(), fs.read(&path).unwrap())).collect::<BTreeMap<_, _>>()
    };
    let copied = value_files(&bed.fs, "/sim/copy");
    assert!(!copied.is_empty() || !case.separates());
    let unchanged = |fs: &MemoryFs, who: &str| {
        let now = value_files(fs, "/sim/copy");
        let changed: Vec<_> = copied.keys().filter(|path| now.get(*path) != copied.get(*path)).collect();
        assert!(changed.is_empty(), "{who} changed files of the checkpoint: {changed:?}");
    };
    // Before anything is overwritten: GC must have something to move.
    (0..2).for_each(|_| bed.collect());
    unchanged(&bed.fs, "GC of the origin");
    bed.fill(0..KEYS);
    unchanged(&bed.fs, "the origin");
    bed.check_thoroughly();
    unchanged(&bed.fs, "the origin");
    let own = value_files(&bed.fs, env::DIR);
    let copy = Db::open_in(env::simulated(&bed.fs), "/sim/copy", case.options()).unwrap();
    (0..KEYS).for_each(|key| copy.put(key_bytes(key), spec(7, 150).bytes()).unwrap());
    copy.close().unwrap();
    assert!(own == value_files(&bed.fs, env::DIR), "the copy changed files of its origin");
}

/// Three keyspaces, two of them with separated values, written in turns and reopened again and again.
pub fn b01_all_keys_of_all_keyspaces_are_there_after_reopening(case: &Case) {
    let mut bed = Bed::new(case);
    let mut random = Random::new(1, "b01");
    bed.step(&Op::Create(1));
    bed.step(&Op::Create(2));
    for round in 0..5 {
        for _ in 0..300 {
            let (name, key) = (random.below(3) as u8, random.below(400) as KeyNo);
            bed.put_in(name, key, random.within(0, 300) as u32);
        }
        if round % 2 == 0 {
            bed.collect();
        }
        bed.reopen();
        bed.check();
    }
}
