//! The change feed: whoever applies it has the same entries.

use std::{
    collections::{BTreeMap, BTreeSet},
    io::Read,
    path::Path,
    sync::{Arc, Mutex},
    thread,
    time::{Duration, UNIX_EPOCH},
};

use bifold::{
    Access, Batch, Change, ChangeKind, CompactionFilter, Db, Durability, Env, Error, Keyspace, KeyspaceOptions,
    MergeOperator, Options, PlacementKind, RetainChanges, Verdict,
};
use bifold_io::{
    Dir,
    memory::{Fate, OpKind},
};

use crate::{
    bed::{Bed, numbers},
    support::entries,
};

mod ingests;
mod large;
mod readers;
mod remembered;
mod waiting;

const ALL_OF_THEM: RetainChanges = RetainChanges { bytes: 1 << 40, age: None };

fn bed(placement: PlacementKind, retain: RetainChanges) -> Bed {
    let mut bed = Bed::new(placement);
    bed.options.retain_changes = Some(retain);
    bed.reopen();
    bed
}

fn key(n: u32) -> String {
    format!("key{n:05}")
}

fn value(n: u32, round: u32) -> Vec<u8> {
    format!("{n}.{round} ").into_bytes().repeat(1 + (n % 60) as usize)
}

/// Long enough for a file of its own.
fn long(n: u32, round: u32) -> Vec<u8> {
    value(n, round).into_iter().cycle().take((64 << 10) + 1 + n as usize).collect()
}

fn read_large(db: &Db, change: &Change) -> Vec<u8> {
    let mut value = Vec::new();
    db.change_reader(change).unwrap().read_to_end(&mut value).unwrap();
    assert_eq!(value.len() as u64, change.large.unwrap().bytes);
    value
}

/// What has applied every change so far.
#[derive(Default)]
struct Replica {
    entries: BTreeMap<Vec<u8>, Vec<u8>>,
    seen: u64,
    commits: u32,
}

impl Replica {
    fn apply(&mut self, db: &Db, change: Change) {
        assert!(change.seqno > self.seen, "in order");
        assert_eq!(change.keyspace.as_deref(), Some("default"));
        self.seen = change.seqno;
        self.commits += u32::from(change.ends_commit);
        let value = change.value.as_ref().map(|value| value.to_vec());
        let value = value.or_else(|| change.large.map(|_| read_large(db, &change)));
        let key = change.key.into_vec();
        match change.kind {
            ChangeKind::Put => drop(self.entries.insert(key, value.unwrap())),
            ChangeKind::Merge => self.entries.entry(key).or_default().extend_from_slice(&value.unwrap()),
            ChangeKind::Delete => drop(self.entries.remove(&key)),
            ChangeKind::DeleteRange => {
                let end = change.range_end.map(Vec::from);
                self.entries.retain(|other, _| *other < key || end.as_ref().is_some_and(|end| other >= end));
            }
            other => panic!("{other:?}"),
        }
    }

    fn catch_up(&mut self, db: &Db) {
        db.changes(self.seen).unwrap().for_each(|change| self.apply(db, change.unwrap()));
    }

    fn is_of(&self, ks: &Keyspace, what: &str) {
        let all: Vec<_> = self.entries.clone().into_iter().collect();
        assert!(all == entries(ks.iter()), "{what}: after the change {}", self.seen);
    }
}

fn step(bed: &mut Bed, step: u32, random: &mut impl FnMut(u64) -> u64) {
    let n = random(120) as u32;
    if random(80) == 0 {
        return bed.reopen();
    }
    let ks = bed.ks();
    let merges = ks.options().merge.is_some();
    match random(24) {
        0..=5 if merges => ks.merge(key(n), format!("+{step}")).unwrap(),
        10 | 21 if merges => {
            let mut batch = Batch::new();
            batch.merge(ks, key(n), "!").unwrap().merge(ks, key(n), "?").unwrap().put(ks, key(n + 1), "x").unwrap();
            bed.db().commit(batch).unwrap();
        }
        0..=9 => ks.put(key(n), value(n, step)).unwrap(),
        10 => ks.put_until(key(n), value(n, step), Some(UNIX_EPOCH + Duration::from_secs(1 << 33))).unwrap(),
        11 | 12 => {
            let mut batch = Batch::new();
            for n in n..n + 10 {
                batch.put(ks, key(n), value(n, step)).unwrap();
            }
            batch.delete(ks, key(n + 20)).unwrap();
            bed.db().commit(batch).unwrap();
        }
        13 => ks.delete(key(n)).unwrap(),
        14 => ks.delete_range(key(n)..key(n + 10)).unwrap(),
        15 | 16 => bed.db().flush().unwrap(),
        17 => ks.compact_range(key(n)..key(n + 40)).unwrap(),
        18 => bed.db().compact().unwrap(),
        19 | 20 => bed.db().collect_garbage().unwrap(),
        21 => drop(ks.touch(key(n), Duration::from_secs(1 << 20)).unwrap()),
        22 => ingest(ks, (n..n + 30).step_by(2), step),
        23 => ks.put_reader(key(n), &long(n, step)[..]).unwrap(),
        _ => {}
    }
}

fn ingest(ks: &Keyspace, keys: impl Iterator<Item = u32>, round: u32) {
    let (mut ingest, may_expire) = (ks.ingest().unwrap(), ks.options().merge.is_none());
    for n in keys {
        match n % 5 {
            0 if may_expire => {
                ingest.put_until(key(n), value(n, round), Some(UNIX_EPOCH + Duration::from_secs(1 << 33))).unwrap()
            }
            _ => ingest.put(key(n), value(n, round)).unwrap(),
        }
    }
    ingest.finish().unwrap();
}

#[test]
fn whoever_applies_the_changes_has_the_same_entries() {
    for placement in PlacementKind::ALL {
        for seed in 0..6u64 {
            let mut bed = bed(placement, ALL_OF_THEM);
            if seed % 2 == 1 {
                bed.begin_with(MergeOperator::append());
            }
            let mut random = numbers(seed);
            let mut replica = Replica::default();
            for at in 0..300 {
                step(&mut bed, at, &mut random);
                if random(5) == 0 {
                    replica.catch_up(bed.db());
                    replica.is_of(bed.ks(), &format!("{placement:?}, seed {seed}, step {at}"));
                }
            }
            drop(std::mem::take(&mut replica));
            replica.catch_up(bed.db());
            replica.is_of(bed.ks(), &format!("{placement:?}, seed {seed}: all at once"));
            assert_eq!(bed.db().changes(replica.seen).unwrap().count(), 0);
        }
    }
}

/// With `Sync`, what a reader has seen is there after a power loss, and its changes lead to the same entries.
#[test]
fn a_power_loss_takes_no_change_that_is_in_the_database() {
    for placement in PlacementKind::ALL {
        for durability in [Durability::Sync, Durability::Buffered] {
            let mut bed = bed(placement, ALL_OF_THEM);
            bed.options.durability = durability;
            bed.reopen();
            let mut random = numbers(7);
            for at in 0..120 {
                step(&mut bed, at, &mut random);
                let seen = bed.db().changes(0).unwrap().last().map_or(0, |change| change.unwrap().seqno);
                for fate in [Fate::DropUnsynced, Fate::Random(u64::from(at))] {
                    let env = Env { fs: Arc::new(bed.fs.power_loss(fate)), ..bed.env() };
                    let db = Db::open_in(env, "/db", bed.options.clone()).unwrap();
                    let mut replica = Replica::default();
                    replica.catch_up(&db);
                    replica.is_of(db.default_keyspace(), &format!("{placement:?}, step {at}, {fate:?}"));
                    assert!(durability < Durability::Sync || replica.seen == seen, "{placement:?}, step {at}");
                    drop(db);
                }
            }
        }
    }
}

#[test]
fn what_is_kept_is_bounded_and_an_error_names_the_first_change_there() {
    for placement in [PlacementKind::Inline, PlacementKind::HashKv] {
        let mut bed = bed(placement, RetainChanges { bytes: 40 << 10, age: None });
        for n in 0..2000 {
            bed.ks().put(key(n % 200), value(n % 200, n)).unwrap();
        }
        bed.db().flush().unwrap();
        for _ in 0..2 {
            let Err(Error::ChangesGone { since: 0, first }) = bed.db().changes(0) else { panic!("{placement:?}") };
            let mut changes = bed.db().changes(first - 1).unwrap();
            let mut last = changes.next().unwrap().unwrap().seqno;
            assert!(last >= first, "GC may have had the first number");
            for change in changes {
                let seqno = change.unwrap().seqno;
                assert!(seqno > last);
                last = seqno;
            }
            assert!(last - first > 50, "{first} to {last}");
            let logs = bed.db().stats().space.logs_bytes;
            assert!(logs < 100 << 10, "{logs}");
            // Kept as before, without being told so.
            bed.options.retain_changes = None;
            bed.reopen();
        }
        // Until it is told otherwise.
        bed.options.retain_changes = Some(RetainChanges { bytes: 0, age: None });
        bed.reopen();
        assert!(matches!(bed.db().changes(0), Err(Error::InvalidArgument { .. })));
        bed.options.retain_changes = None;
        bed.reopen();
        assert!(matches!(bed.db().changes(0), Err(Error::InvalidArgument { .. })));
    }
}

/// Its log is deleted, and the one after it, before it asks again.
#[test]
fn a_reader_that_is_too_slow_is_told_so() {
    for placement in [PlacementKind::Inline, PlacementKind::HashKv] {
        let bed = bed(placement, RetainChanges { bytes: 1, age: None });
        bed.ks().put(key(0), value(0, 0)).unwrap();
        let mut changes = bed.db().changes(0).unwrap();
        let seen = changes.next().unwrap().unwrap().seqno;
        assert!(changes.next().is_none());
        for n in 1..4 {
            bed.ks().put(key(n), value(n, 0)).unwrap();
            bed.db().flush().unwrap();
        }
        // What is in the log that it has open it still gets.
        let gone = changes.find_map(Result::err);
        let Some(Error::ChangesGone { since, first }) = gone else { panic!("{placement:?}: {gone:?}") };
        assert!(since >= seen && first > since + 1, "{placement:?}: {since}, {first}");
        assert!(matches!(bed.db().changes(since), Err(Error::ChangesGone { .. })), "{placement:?}");
    }
}

/// The database has not deleted it, so it is not gone for a good reason.
#[test]
fn a_log_that_is_missing_is_an_error_that_names_it() {
    let bed = bed(PlacementKind::Inline, ALL_OF_THEM);
    for n in 0..3 {
        bed.ks().put(key(n), "1").unwrap();
        bed.db().flush().unwrap();
    }
    let logs = || bed.fs.files().into_iter().filter(|path| path.extension().is_some_and(|ending| ending == "log"));
    let missing = logs().min().unwrap();
    let dir = Dir::new(Arc::new(bed.fs.clone()), Path::new("/db"));
    dir.remove(missing.file_name().unwrap().to_str().unwrap()).unwrap();
    let mut changes = bed.db().changes(0).unwrap();
    for _ in 0..2 {
        let error = changes.next().unwrap().unwrap_err();
        assert!(matches!(&error, Error::Io { path, .. } if *path == missing), "{error}");
    }
}

#[test]
fn old_changes_are_deleted_by_age() {
    let bed = bed(PlacementKind::Inline, RetainChanges { bytes: 1 << 40, age: Some(Duration::from_secs(100)) });
    let write = |n: u32| {
        bed.ks().put(key(n), value(n, n)).unwrap();
        bed.db().flush().unwrap();
    };
    write(1);
    assert_eq!(bed.db().changes(0).unwrap().count(), 1);
    bifold_io::Clock::sleep(&bed.clock, Duration::from_secs(99));
    write(2);
    assert_eq!(bed.db().changes(0).unwrap().count(), 2);
    bifold_io::Clock::sleep(&bed.clock, Duration::from_secs(2));
    write(3);
    assert!(matches!(bed.db().changes(0), Err(Error::ChangesGone { .. })));
}

#[test]
fn changes_begin_where_they_began_to_be_kept() {
    let mut bed = Bed::new(PlacementKind::WiscKey);
    bed.ks().put("before", [1; 200]).unwrap();
    assert!(matches!(bed.db().changes(0), Err(Error::InvalidArgument { .. })));
    bed.options.retain_changes = Some(ALL_OF_THEM);
    bed.reopen();
    let Err(Error::ChangesGone { first, .. }) = bed.db().changes(0) else { panic!("its value is not in the log") };
    bed.ks().put("after", [2; 200]).unwrap();
    let all: Vec<Change> = bed.db().changes(first - 1).unwrap().map(Result::unwrap).collect();
    assert_eq!(all.len(), 1);
    assert_eq!((&*all[0].key, all[0].value.as_deref()), (&b"after"[..], Some(&[2; 200][..])));
    for since in [all[0].seqno + 1, u64::MAX] {
        assert!(matches!(bed.db().changes(since), Err(Error::InvalidArgument { .. })), "{since} is not there yet");
    }
}

#[test]
fn commits_and_what_filters_decide_are_changes_and_moves_are_none() {
    let bed = bed(PlacementKind::HashKv, ALL_OF_THEM);
    let mut batch = Batch::new();
    for n in 0..5 {
        batch.put(bed.ks(), key(n), [1; 300]).unwrap();
    }
    bed.db().commit(batch).unwrap();
    let ends: Vec<bool> = bed.db().changes(0).unwrap().map(|change| change.unwrap().ends_commit).collect();
    assert_eq!(ends, [false, false, false, false, true]);
    bed.ks().set_compaction_filter(Some(CompactionFilter::new(|entry| {
        Ok(if entry.key() == key(2).as_bytes() { Verdict::Delete } else { Verdict::Keep })
    })));
    bed.db().compact().unwrap();
    bed.db().collect_garbage().unwrap();
    let later: Vec<Change> = bed.db().changes(5).unwrap().map(Result::unwrap).collect();
    assert_eq!(later.len(), 1, "{later:?}");
    assert_eq!((later[0].kind, &*later[0].key), (ChangeKind::Delete, key(2).as_bytes()));
}

#[test]
fn changes_are_read_while_others_write() {
    let bed = bed(PlacementKind::HashKv, RetainChanges { bytes: 1 << 40, age: None });
    let (db, last) = (bed.db().clone(), 4000);
    thread::scope(|scope| {
        scope.spawn(|| (0..last).for_each(|n| db.put(key(n % 100), value(n % 100, n)).unwrap()));
        let mut replica = Replica::default();
        while replica.commits < last {
            replica.catch_up(&db);
        }
        replica.is_of(bed.ks(), "at the end");
    });
}

#[test]
fn verification_beside_a_writer_reads_kept_logs() {
    let bed = bed(PlacementKind::HashKv, ALL_OF_THEM);
    let files = || {
        let report = bifold::verify_in(&bed.env(), "/db", |_| {}).unwrap();
        assert!(report.problems.is_empty(), "{:?}", report.problems);
        report.files
    };
    let before = files();
    for n in 0..10 {
        bed.ks().put(key(n), value(n, n)).unwrap();
        bed.db().flush().unwrap();
        bed.ks().put(key(n), "unflushed").unwrap();
    }
    assert!(files() >= before + 10);
}

/// Changes were not kept for one opening, after which nobody had flushed what its log has.
#[test]
fn no_feed_jumps_over_a_log_without_changes() {
    for placement in [PlacementKind::Inline, PlacementKind::HashKv] {
        let mut bed = bed(placement, ALL_OF_THEM);
        bed.options.durability = Durability::Sync;
        for (opening, retain) in
            [Some(ALL_OF_THEM), Some(RetainChanges { bytes: 0, age: None }), Some(ALL_OF_THEM)].into_iter().enumerate()
        {
            bed.options.retain_changes = retain;
            bed.fs = bed.fs.power_loss(Fate::DropUnsynced);
            bed.reopen();
            bed.ks().put(key(opening as u32), "1").unwrap();
        }
        bed.db().flush().unwrap();
        let Err(Error::ChangesGone { first, .. }) = bed.db().changes(0) else { panic!("{placement:?}") };
        assert_eq!(bed.db().changes(first - 1).unwrap().count(), 1, "{placement:?}");
        let is_log = |path: &std::path::PathBuf| path.extension().is_some_and(|extension| extension == "log");
        assert_eq!(bed.fs.files().into_iter().filter(is_log).count(), 2, "{placement:?}: logs that no feed can read");
    }
}

/// All logs that it needs are kept: a keyspace that was dropped would be back.
#[test]
fn an_older_manifest_is_refused() {
    let bed = bed(PlacementKind::Inline, ALL_OF_THEM);
    let manifest = Path::new("/db/MANIFEST");
    bed.db().keyspace("dropped", KeyspaceOptions::default()).unwrap().put("a", "1").unwrap();
    bed.db().flush().unwrap();
    let dropped = bed.db().keyspace("late", KeyspaceOptions::default()).unwrap();
    let early = bed.fs.read(manifest).unwrap();
    dropped.put("b", "2").unwrap();
    for n in 0..3 {
        bed.ks().put(key(n), value(n, n)).unwrap();
        bed.db().flush().unwrap();
    }
    drop(dropped);
    bed.db().drop_keyspace("late").unwrap();
    bed.db().sync().unwrap();
    let options = Options { retain_changes: None, ..bed.options.clone() };
    for access in [Access::ReadWrite, Access::ReadOnly] {
        let image = bed.fs.fork();
        Db::open_in(bed.env_of(&image), "/db", Options { access, ..options.clone() }).unwrap().close().unwrap();
        let image = bed.fs.fork();
        image.write_durable(manifest, &early);
        let refused = Db::open_in(bed.env_of(&image), "/db", Options { access, ..options.clone() }).map(drop);
        let Err(error) = refused else { panic!("{access:?}: an older manifest is taken") };
        assert!(error.is_corruption() && error.to_string().contains("MANIFEST"), "{access:?}: {error}");
        let report = bifold::verify_in(&bed.env_of(&image), "/db", |_| {}).unwrap();
        assert!(!report.problems.is_empty(), "{access:?}");
    }
}

/// Their logs have notes of the manifest that they are copies of.
#[test]
fn checkpoints_of_writers_and_readers_are_opened() {
    for placement in [PlacementKind::Inline, PlacementKind::HashKv] {
        let bed = bed(placement, ALL_OF_THEM);
        let follow = Options { access: Access::Follow, keyspace: KeyspaceOptions::default(), ..bed.options.clone() };
        let mut follower = Db::open_in(bed.env(), "/db", follow).unwrap();
        for n in 0..12 {
            bed.ks().put(key(n), value(n, n)).unwrap();
            bed.db().flush().unwrap();
            bed.ks().put(key(n), "again").unwrap();
            if n % 3 == 0 {
                follower.refresh().unwrap();
            }
            for (from, db) in [("writer", bed.db()), ("follower", &follower)] {
                let copy = format!("/{from}{n}");
                db.checkpoint(&copy).unwrap();
                let opened = Db::open_in(bed.env(), &copy, bed.options.clone()).unwrap();
                assert_eq!(entries(opened.iter()), entries(db.iter()), "{placement:?}: {copy}");
            }
        }
    }
}

/// Of several deletions, a power loss takes back any.
#[test]
fn no_feed_jumps_over_logs_that_are_gone() {
    let mut bed = bed(PlacementKind::Inline, ALL_OF_THEM);
    let write = |bed: &Bed, n: u32| {
        bed.ks().put(key(n), value(n, 0)).unwrap();
        bed.db().flush().unwrap();
    };
    (0..12).for_each(|n| write(&bed, n));
    bed.options.retain_changes = Some(RetainChanges { bytes: 400, age: None });
    bed.reopen();
    // Deletes all but the last ones.
    let (images, fs) = (Arc::new(Mutex::new(Vec::new())), bed.fs.clone());
    let taken = Arc::clone(&images);
    bed.fs.set_hook(Some(Arc::new(move |call: u64, _: OpKind, _: &Path| {
        let fates = [2 * call, 2 * call + 1].map(Fate::Random);
        taken.lock().unwrap().extend(fates.map(|fate| fs.power_loss(fate)));
    })));
    write(&bed, 12);
    bed.fs.set_hook(None);
    let mut lengths = BTreeSet::new();
    for (at, fs) in images.lock().unwrap().drain(..).enumerate() {
        let options = Options { retain_changes: None, ..bed.options.clone() };
        let db = Db::open_in(Env { fs: Arc::new(fs), ..bed.env() }, "/db", options).unwrap();
        let first = match db.changes(0) {
            Err(Error::ChangesGone { first, .. }) => first,
            other => other.map(|_| 1).unwrap(),
        };
        let seen: Vec<u64> = db.changes(first - 1).unwrap().map(|change| change.unwrap().seqno).collect();
        let right: Vec<u64> = (first..first + seen.len() as u64).collect();
        assert_eq!(seen, right, "image {at}");
        assert!(seen.last().is_some_and(|&last| last >= 12), "image {at}: {seen:?}");
        lengths.insert(seen.len());
    }
    assert!(lengths.len() > 2, "{lengths:?}");
}
