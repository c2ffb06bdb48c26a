//! What is exact about `novkv`: the records of value files that no drop-key names are the versions that tables point at.
//!
//! Neither more, or space would be lost for good, nor fewer, or a value would be; after any history, with any set of
//! snapshots, and after a crash at any I/O of whatever drops, collects or leads elsewhere. Both sides are read from the files of
//! a flushed and closed database, by other code than the placement's.

use std::{
    collections::{BTreeMap, BTreeSet},
    path::Path,
    sync::Arc,
    thread,
};

use bifold::{Db, Workers};
use bifold_contract::{FileId, Kind, SeqNo, TableMeta};
use bifold_format::{manifest::ManifestReader, names, sorted, value::ValueKind};
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
    moves::one,
    support::{Bed, Placement, files, options, spec, threaded, walk_values},
};

type Versions = BTreeSet<(Vec<u8>, SeqNo)>;

/// The tables that the manifest lists, and the value files.
fn listed(fs: &MemoryFs) -> (BTreeMap<FileId, Arc<TableMeta>>, BTreeSet<FileId>) {
    let bytes = files(fs).remove(names::MANIFEST).unwrap();
    let (mut tables, mut values) = (BTreeMap::new(), BTreeSet::new());
    for record in ManifestReader::new(&bytes).unwrap() {
        let edit = record.unwrap().edit;
        for level in edit.levels {
            level.removed.iter().for_each(|removed| drop(tables.remove(&removed.table)));
            tables.extend(level.added.into_iter().map(|added| (added.table.id, added.table)));
        }
        edit.values.removed.iter().for_each(|id| {
            values.remove(id);
        });
        values.extend(edit.values.added.iter().map(|meta| meta.id));
    }
    (tables, values)
}

fn versions_in_tables(fs: &MemoryFs, tables: BTreeMap<FileId, Arc<TableMeta>>) -> Versions {
    let dir = Dir::new(Arc::new(fs.clone()), Path::new(env::DIR));
    let context = Arc::new(TableContext::new(0, 0));
    let mut versions = Versions::new();
    for meta in tables.into_values() {
        let mut cursor = Table::open(&dir, meta, &context).unwrap().cursor(ReadMode::Compaction);
        cursor.first().unwrap();
        while let Some(entry) = cursor.entry() {
            if entry.kind == Kind::Pointer {
                assert!(versions.insert((entry.key.to_vec(), entry.seqno)), "a version stands in two tables");
            }
            cursor.next().unwrap();
        }
    }
    versions
}

fn versions_in_values(fs: &MemoryFs, listed: &BTreeSet<FileId>) -> Versions {
    let mut versions = Versions::new();
    let mut dropped = BTreeSet::new();
    walk_values(fs, |file, record| match record.kind {
        _ if !listed.contains(&file) => {}
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

fn check(fs: &MemoryFs) -> usize {
    let (tables, values) = listed(fs);
    let needed = versions_in_tables(fs, tables);
    let valid = versions_in_values(fs, &values);
    let lost: Vec<_> = needed.difference(&valid).collect();
    let kept: Vec<_> = valid.difference(&needed).collect();
    assert!(lost.is_empty() && kept.is_empty(), "lost: {lost:?}, kept in vain: {kept:?}");
    valid.len()
}

/// Flushes and closes a copy of the database as it is, and checks that.
fn check_copy(bed: &Bed) -> usize {
    let fs = bed.fs.fork();
    let db = Db::open_in(env::simulated(&fs), env::DIR, bed.set().database.clone()).unwrap();
    db.flush().unwrap();
    db.close().unwrap();
    check(&fs)
}

/// One of the things that make, hide, drop and move versions.
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
        // Beside its key, after or before one that is apart.
        11..=14 => bed.put(key, 10),
        _ => bed.put(key, 64 + random.below(300) as u32),
    }
}

#[test]
fn valid_records_are_the_versions_in_the_index_after_any_history() {
    for seed in 0..24 {
        let mut random = Random::new(seed, "exact");
        let mut options = options(Placement::NovKv);
        options.keyspace.values.space_target = random.pick(&[1.05, 1.5, 100.0]);
        options.keyspace.values.gc_threshold = random.pick(&[0.5, 0.7, 1.0]);
        options.keyspace.values.file_bytes = random.pick(&[1 << 10, 4 << 10, 64 << 10]);
        let mut bed = Bed::new(options);
        let mut versions = 0;
        for step in 0..600 {
            act(&mut bed, &mut random);
            if step % 40 == 0 {
                versions += check_copy(&bed);
            }
        }
        assert!(versions > 100, "seed {seed}: {versions}");
        bed.check_thoroughly();
        let gc = bed.db().stats().gc;
        assert_eq!((gc.index_lookups, gc.index_inserts), (0, 0));
    }
}

/// Drop-keys are written, tables built, readers led to them, handles repaired: a crash at every I/O of it.
#[test]
fn a_crash_at_any_io_leaves_no_version_lost_or_kept_in_vain() {
    let mut bed = Bed::new(options(Placement::NovKv));
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
    assert!(images.len() > 200, "{} images", images.len());
    for image in &images {
        let fs = image.fs.fork();
        let db = Db::open_in(env::simulated(&fs), env::DIR, bed.set().database.clone()).unwrap();
        db.flush().unwrap();
        db.close().unwrap();
        check(&fs);
    }
    drop(bed);
}

/// What is replayed is written anew: a crash within that, with two keyspaces of which one is flushed first, leaves no copy.
#[test]
fn a_crash_within_a_recovery_of_two_keyspaces_leaves_no_copy() {
    let mut options = options(Placement::NovKv);
    options.memtable_bytes = 64 << 10;
    let mut bed = Bed::new(options);
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
        db.close().unwrap();
        // What a power loss takes of the log before it is synced was never promised.
        most = most.max(check(&fs));
    }
    assert_eq!(most, 60);
}

/// Flushes and merges drop versions on some threads while others switch tables and read.
#[test]
fn what_threads_drop_while_others_collect_is_exact() {
    let fs = MemoryFs::default();
    let mut options = options(Placement::NovKv);
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
    db.flush().unwrap();
    db.close().unwrap();
    check(&fs);
}

/// A power loss that keeps nothing unsynced, right after everything that was asked for was done.
#[test]
fn what_was_synced_is_exact_after_a_power_loss() {
    let mut bed = Bed::new(options(Placement::NovKv));
    for round in 0..6 {
        bed.fill((0..40).step_by(round + 1));
        bed.step(&Op::Flush);
        bed.collect();
        let fs = bed.fs.power_loss(Fate::DropUnsynced);
        let db = Db::open_in(env::simulated(&fs), env::DIR, bed.set().database.clone()).unwrap();
        db.flush().unwrap();
        db.close().unwrap();
        check(&fs);
    }
}
