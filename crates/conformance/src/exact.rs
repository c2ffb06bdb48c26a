//! What is exact where compaction reports what is dead.
//!
//! * `novkv`: the records of value files that no drop-key names are the versions that tables point at.
//! * `diffkv`: the bytes of a vTable that its counter does not call dead are those of the records that tables point
//!   at. (Of a log, too, unless a crash has left copies whose moves it took: then there are more.) And its records
//!   ascend by key.
//!
//! * `streams`: the same of its files, through the forwarding files that lead there; and the rows of those that are
//!   not counted as used are the ones through which tables lead.
//!
//! Neither more, or space would be lost for good, nor fewer, or a value would be lost; after any history, with any
//! set of snapshots, and after a crash at any I/O of whatever drops or moves values. Both sides are read
//! from the files of a flushed and closed database, by other code than the placement's.

use std::{
    collections::{BTreeMap, BTreeSet},
    path::Path,
    sync::Arc,
    thread,
    time::Duration,
};

use bifold::{Db, Workers};
use bifold_contract::{FileId, Kind, Pointer, RangeTombstone, SeqNo, TableMeta, ValueFileMeta};
use bifold_format::{
    forward::{self, ROW_BYTES},
    manifest::ManifestReader,
    names, pointer, sorted,
    value::{self, ValueKind},
};
use bifold_index::{
    cursor::Cursor,
    table::{ReadMode, Table, TableContext},
};
use bifold_io::{
    Dir,
    memory::{Fate, MemoryFs},
};
use bifold_sim::{
    camera::{Camera, Plan},
    env,
    history::{KeyNo, Op, key_bytes},
    random::Random,
};

use crate::{
    Case, jobs,
    moves::one,
    support::{Bed, files, spec, threaded, walk_values},
};

/// How long GC is paused at most.
const PATIENCE: Duration = Duration::from_secs(10);

type Versions = BTreeSet<(Vec<u8>, SeqNo)>;

/// Class of value files that are sorted by key.
const ORDERED: u8 = 6;

/// Class of files that say where values have moved.
const FORWARDS: u8 = 7;

/// Where the value at a file and offset has moved, and the forwarding file that says so.
type Forwarded = BTreeMap<(FileId, u64), ((FileId, u64), FileId)>;

/// The recorded tables and value files, and what the manifest says of dead bytes in them.
#[derive(Default)]
struct Recorded {
    tables: BTreeMap<FileId, Arc<TableMeta>>,
    values: BTreeMap<FileId, ValueFileMeta>,
    dead: BTreeMap<FileId, u64>,
}

fn recorded(fs: &MemoryFs) -> Recorded {
    let bytes = files(fs).remove(names::MANIFEST).unwrap();
    let mut recorded = Recorded::default();
    for record in ManifestReader::new(&bytes).unwrap() {
        let edit = record.unwrap().edit;
        for level in edit.levels {
            level.removed.iter().for_each(|removed| drop(recorded.tables.remove(&removed.table)));
            recorded.tables.extend(level.added.into_iter().map(|added| (added.table.id, added.table)));
        }
        edit.values.removed.iter().for_each(|id| drop(recorded.values.remove(id)));
        recorded.values.extend(edit.values.added.into_iter().map(|meta| (meta.id, meta)));
        edit.values.garbage.iter().for_each(|&(id, bytes, _)| *recorded.dead.entry(id).or_default() += bytes);
    }
    recorded
}

/// What tables hold.
#[derive(Default)]
struct InTables {
    /// The versions with separated values, and where these are.
    separated: BTreeMap<(Vec<u8>, SeqNo), Pointer>,
    /// The newest version of each key, whatever it is.
    newest: BTreeMap<Vec<u8>, SeqNo>,
    ranges: Vec<RangeTombstone>,
}

impl InTables {
    /// Whether something newer overwrites this version.
    fn is_overwritten(&self, (key, seqno): &(Vec<u8>, SeqNo)) -> bool {
        let spans =
            |range: &RangeTombstone| *range.start <= **key && range.end.as_ref().is_none_or(|end| **key < **end);
        self.newest[key] > *seqno || self.ranges.iter().any(|range| range.seqno > *seqno && spans(range))
    }
}

fn in_tables(fs: &MemoryFs, recorded: &Recorded) -> InTables {
    let dir = Dir::new(Arc::new(fs.clone()), Path::new(env::DIR));
    let context = Arc::new(TableContext::new(0, 0));
    let mut found = InTables::default();
    for meta in recorded.tables.values() {
        let table = Table::open(&dir, Arc::clone(meta), &context).unwrap();
        found.ranges.extend(table.range_tombstones().iter().cloned());
        let mut cursor = table.cursor(ReadMode::Compaction);
        cursor.first().unwrap();
        while let Some(entry) = cursor.entry() {
            let newest = found.newest.entry(entry.key.to_vec()).or_default();
            *newest = entry.seqno.max(*newest);
            if entry.kind == Kind::Pointer {
                let at = pointer::decode(entry.payload).unwrap();
                let is_new = found.separated.insert((entry.key.to_vec(), entry.seqno), at).is_none();
                assert!(is_new, "a version stands in two tables");
            }
            cursor.next().unwrap();
        }
    }
    found
}

fn versions_in_values(fs: &MemoryFs, recorded: &Recorded) -> Versions {
    let mut versions = Versions::new();
    let mut dropped = BTreeSet::new();
    walk_values(fs, |file, record| match record.kind {
        _ if !recorded.values.contains_key(&file) => {}
        ValueKind::Value => {
            assert!(versions.insert((record.key.to_vec(), record.seqno)), "a version stands in two files");
        }
        ValueKind::Drops => sorted::decode_drops(record.body(), |seqno| {
            dropped.insert(seqno);
        })
        .unwrap(),
        _ => {}
    });
    versions.retain(|(_, seqno)| !dropped.contains(seqno));
    versions
}

fn check(fs: &MemoryFs, case: &Case) -> usize {
    let recorded = recorded(fs);
    let in_tables = in_tables(fs, &recorded);
    if !case.names_the_dead() {
        check_counters((fs, case), &recorded, &in_tables);
        check_order(fs, &recorded);
        return in_tables.separated.len();
    }
    let needed: Versions = in_tables.separated.into_keys().collect();
    let valid = versions_in_values(fs, &recorded);
    let lost: Vec<_> = needed.difference(&valid).collect();
    let kept: Vec<_> = valid.difference(&needed).collect();
    assert!(lost.is_empty() && kept.is_empty(), "lost: {lost:?}, kept in vain: {kept:?}");
    valid.len()
}

fn check_counters((fs, case): (&MemoryFs, &Case), recorded: &Recorded, in_tables: &InTables) {
    let forwarded = forwarded(fs, recorded);
    let (mut needed, mut rows) = (BTreeMap::new(), BTreeMap::new());
    let mut places = BTreeMap::new();
    for (version, at) in &in_tables.separated {
        let mut place = (at.file, at.offset);
        while let Some(&(next, unit)) = forwarded.get(&place) {
            *rows.entry(unit).or_insert(0) += ROW_BYTES;
            place = next;
        }
        *needed.entry(place.0).or_insert(0) += u64::from(at.len);
        places.insert(version, (place.0, at));
    }
    let bytes = files(fs);
    for (id, meta) in recorded.values.iter().filter(|(_, meta)| meta.bytes > 0) {
        let dead = recorded.dead.get(id).copied().unwrap_or(0);
        if meta.class == FORWARDS {
            let all = forwarded.values().filter(|(_, unit)| unit == id).count() as u64 * ROW_BYTES;
            let unused = all.checked_sub(dead);
            assert_eq!(unused, Some(rows.get(id).copied().unwrap_or(0)), "unused rows of file {id}");
            continue;
        }
        let (_, _, start) = value::describe(&bytes[&names::value(*id)]).unwrap();
        let valid = (meta.bytes - start).checked_sub(dead);
        let needed = needed.remove(id).unwrap_or(0);
        let may_have_more = case.separates_by_flushes() && meta.class != ORDERED;
        let is_right = valid.is_some_and(|valid| valid == needed || (may_have_more && valid > needed));
        assert!(is_right, "file {id} of class {}: {needed} bytes are needed, {valid:?} counted", meta.class);
    }
    let mut lost =
        places.iter().filter(|(version, (file, _))| needed.contains_key(file) && !in_tables.is_overwritten(version));
    assert_eq!(lost.next(), None, "its file is not there");
}

/// What the recorded forwarding files say.
fn forwarded(fs: &MemoryFs, recorded: &Recorded) -> Forwarded {
    let mut forwarded = Forwarded::new();
    walk_values(fs, |unit, record| {
        if record.kind == ValueKind::Forwards && recorded.values.contains_key(&unit) {
            let forwards = forward::decode(record.body()).unwrap();
            for row in forwards.rows {
                let to = (forwards.outputs[usize::from(row.output)], u64::from(row.to));
                let is_new = forwarded.insert((record.seqno, u64::from(row.from)), (to, unit)).is_none();
                assert!(is_new, "a value has moved twice from one place");
            }
        }
    });
    forwarded
}

fn check_order(fs: &MemoryFs, recorded: &Recorded) {
    let mut last: BTreeMap<FileId, Vec<u8>> = BTreeMap::new();
    walk_values(fs, |file, record| {
        let Some(meta) = recorded.values.get(&file).filter(|meta| meta.class == ORDERED) else { return };
        assert!(*meta.smallest <= *record.key && *record.key <= *meta.largest, "a key beyond the file's range");
        let before = last.insert(file, record.key.to_vec());
        assert!(before.is_none_or(|before| *before <= *record.key), "records of file {file} do not ascend");
    });
}

/// Opens, flushes and closes a copy of these files, and checks that.
fn check_flushed_copy(fs: &MemoryFs, bed: &Bed, case: &Case) -> usize {
    let fs = fs.fork();
    let db = Db::open_in(env::simulated(&fs), env::DIR, bed.set().database.clone()).unwrap();
    db.flush().unwrap();
    db.close().unwrap();
    check(&fs, case)
}

/// One of the operations that make, overwrite, drop and move versions.
fn act(bed: &mut Bed, random: &mut Random) {
    let key = random.below(60) as KeyNo;
    match random.below(40) {
        0 => bed.step(&Op::Flush),
        1 => bed.step(&Op::Compact),
        2 => bed.collect(),
        3 => bed.step(&Op::Snapshot(random.below(3) as usize)),
        4 => bed.step(&Op::DropSnapshot(random.below(3) as usize)),
        5 => bed.step(&Op::Reopen),
        6..=9 => bed.delete(key),
        10 => bed.delete_range(one(key)),
        // An inline value, after or before a separated one.
        11..=14 => bed.put(key, 10),
        _ => bed.put(key, 64 + random.below(300) as u32),
    }
}

/// Puts, deletes, flushes, merges, GC, snapshots and reopenings in random order, with three space targets.
pub fn valid_records_are_the_versions_in_the_index_after_any_history(case: &Case) {
    for seed in 0..24 {
        let mut random = Random::new(seed, "exact");
        let mut options = case.options();
        options.keyspace.values.space_target = random.pick(&[1.05, 1.5, 100.0]);
        let values = &mut options.keyspace.values;
        values.novkv.gc_threshold = random.pick(&[0.5, 0.7, 1.0]);
        values.diffkv.gc_threshold = values.novkv.gc_threshold;
        values.unikv.gc_threshold = values.novkv.gc_threshold;
        options.keyspace.values.file_bytes = random.pick(&[1 << 10, 4 << 10, 64 << 10]);
        let mut bed = Bed::with(case, options);
        let mut versions = 0;
        for step in 0..600 {
            act(&mut bed, &mut random);
            if step % 40 == 0 {
                versions += check_flushed_copy(&bed.fs, &bed, case);
            }
        }
        assert!(versions > 100, "seed {seed}: {versions}");
        bed.check_thoroughly();
        let gc = bed.db().stats().gc;
        assert!(!case.names_the_dead() || (gc.index_lookups, gc.index_inserts) == (0, 0));
    }
}

/// Drop-keys are written, tables built, readers led to them, handles repaired: a crash at every I/O of it.
pub fn a_crash_at_any_io_leaves_no_version_lost_or_kept_in_vain(case: &Case) {
    let mut bed = Bed::new(case);
    (0..3).for_each(|_| bed.fill(0..40));
    bed.step(&Op::Snapshot(1));
    bed.fill((0..40).step_by(2));
    (0..40).step_by(5).for_each(|key| bed.delete(key));
    let mut camera = Camera::new(&bed.fs, Plan { seed: 5, every: 1, random: 2, only: None });
    for _ in 0..2 {
        bed.db().flush().unwrap();
        bed.db().compact().unwrap();
        bed.db().collect_garbage().unwrap();
        bed.check();
        bed.fill((0..40).step_by(3));
    }
    let images = camera.take();
    drop(camera);
    assert!(images.len() > 150, "{} images", images.len());
    for image in &images {
        check_flushed_copy(&image.fs, &bed, case);
    }
    drop(bed);
}

/// Replayed values are written again: a crash during that, with two keyspaces of which one is flushed first, leaves
/// no copy.
pub fn a_crash_within_a_recovery_of_two_keyspaces_leaves_no_copy(case: &Case) {
    let mut options = case.options();
    options.memtable_bytes = 64 << 10;
    let mut bed = Bed::with(case, options);
    bed.step(&Op::Create(1));
    for key in 0..30 {
        bed.put_in(0, key, 100);
        bed.put_in(1, key, 200);
    }
    let fs = bed.fs.power_loss(Fate::KeepAll);
    let set = bed.set().database.clone();
    drop(bed);
    let mut camera = Camera::new(&fs, Plan { seed: 6, every: 1, random: 2, only: None });
    Db::open_in(env::simulated(&fs), env::DIR, set.clone()).unwrap().close().unwrap();
    let images = camera.take();
    drop(camera);
    assert!(images.len() > 50, "{} images", images.len());
    let mut most = 0;
    for image in &images {
        let fs = image.fs.fork();
        let db = Db::open_in(env::simulated(&fs), env::DIR, set.clone()).unwrap();
        db.flush().unwrap();
        if case.separates_by_merges() {
            db.compact().unwrap();
        }
        db.close().unwrap();
        // What a power loss removes from the log before a sync was never promised.
        most = most.max(check(&fs, case));
    }
    assert_eq!(most, 60);
}

/// Flushes and merges drop versions on some threads while others switch tables and read.
pub fn what_threads_drop_while_others_collect_is_exact(case: &Case) {
    let fs = MemoryFs::default();
    let mut options = case.options();
    options.workers = Workers::Threads(3);
    options.keyspace.values.space_target = 1.05;
    let db = Db::open_in(threaded(&fs), env::DIR, options).unwrap();
    let put = |round: u32, key: KeyNo| {
        db.put(key_bytes(key), spec(1000 * round + u32::from(key), 64 + round % 100).bytes()).unwrap();
    };
    thread::scope(|scope| {
        scope.spawn(|| (0..40).for_each(|round| (0..60).for_each(|key| put(round, key))));
        scope.spawn(|| (0..40).for_each(|round| (60..120).step_by(3).for_each(|key| put(round, key))));
        scope.spawn(|| (0..20).for_each(|_| db.compact().unwrap()));
        scope.spawn(|| (0..20).for_each(|_| db.collect_garbage().unwrap()));
    });
    let found = db.default_keyspace().range::<&[u8]>(..).map(|pair| pair.unwrap().into_parts().unwrap());
    assert_eq!(found.count(), 80);
    db.close().unwrap();
    check_flushed(&fs, case);
}

/// When workers end, moves of GC may be only in the log, and tables point at the old places. So everything is flushed
/// once more without workers, until no flush has led to another GC run.
fn check_flushed(fs: &MemoryFs, case: &Case) {
    let db = Db::open_in(env::simulated(fs), env::DIR, case.options()).unwrap();
    let gc_jobs = || db.stats().gc.jobs;
    while {
        let before = gc_jobs();
        db.flush().unwrap();
        gc_jobs() > before
    } {}
    db.close().unwrap();
    check(fs, case);
}

/// Workers run GC of logs concurrently: the first that begins a copy waits until a second one has begun another.
pub fn workers_that_collect_at_once_lose_nothing_and_count_right(case: &Case) {
    let fs = MemoryFs::default();
    assert!(jobs::meet(case, &fs, PATIENCE).took_place(), "nobody came while the first one waited");
    check_flushed(&fs, case);
}

/// A power loss at any I/O of GC takes commits whose values it moves before they are durable. What GC wrote may stay.
pub fn what_moves_before_its_commit_is_durable_is_dead_after_a_power_loss(case: &Case) {
    let mut bed = Bed::new(case);
    bed.fill(0..40);
    bed.step(&Op::Flush);
    let mut camera = Camera::new(&bed.fs, Plan { seed: 7, every: 1, random: 1, only: None });
    for round in 0..3 {
        bed.fill((0..40).step_by(round + 1));
        bed.collect();
    }
    let images = camera.take();
    drop(camera);
    assert!(images.len() > 100, "{} images", images.len());
    for image in &images {
        check_flushed_copy(&image.fs, &bed, case);
    }
    drop(bed);
}

/// A power loss that keeps nothing unsynced, right after everything was done.
pub fn what_was_synced_is_exact_after_a_power_loss(case: &Case) {
    let mut bed = Bed::new(case);
    for round in 0..6 {
        bed.fill((0..40).step_by(round + 1));
        bed.step(&Op::Flush);
        bed.collect();
        let fs = bed.fs.power_loss(Fate::DropUnsynced);
        let db = Db::open_in(env::simulated(&fs), env::DIR, bed.set().database.clone()).unwrap();
        db.flush().unwrap();
        db.close().unwrap();
        check(&fs, case);
    }
}
