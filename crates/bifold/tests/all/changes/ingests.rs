//! Ingests in the feed: one commit each, from a file that lives as long as the log that leads to it.

use std::{
    collections::BTreeSet,
    path::PathBuf,
    sync::{
        Arc, Mutex,
        atomic::{AtomicU64, Ordering},
    },
};

use bifold::{Access, Backup, Change, Db, Env, Error, KeyspaceOptions, Options, PlacementKind, RetainChanges};
use bifold_io::{
    FileSystem,
    faulty::FaultyFs,
    memory::{Fate, MemoryFs, OpKind},
};

use super::{ALL_OF_THEM, Replica, bed, ingest, key, value};
use crate::{bed::Bed, support::entries};

/// The files of ingests that are there.
fn files(fs: &MemoryFs) -> usize {
    fs.files().iter().filter(|path| path.extension().is_some_and(|extension| extension == "ingest")).count()
}

fn changes_after(db: &Db, since: u64) -> Vec<Change> {
    db.changes(since).unwrap().map(Result::unwrap).collect()
}

#[test]
fn an_ingest_is_one_commit_and_can_be_read_from_its_middle() {
    for placement in PlacementKind::ALL {
        let mut bed = bed(placement, ALL_OF_THEM);
        bed.ks().put(key(3), "before").unwrap();
        let before = changes_after(bed.db(), 0).last().unwrap().seqno;
        // Several records, and with this memory several pieces.
        ingest(bed.ks(), 0..4000, 1);
        bed.ks().put(key(5), "after").unwrap();
        for is_reopened in [false, true] {
            let all = changes_after(bed.db(), before);
            assert_eq!(all.len(), 4001, "{placement:?}");
            let ends = all.iter().filter(|change| change.ends_commit).count();
            assert_eq!(ends, 2, "{placement:?}: the ingest and a put");
            for (n, change) in (0..4000).zip(&all) {
                assert_eq!((&*change.key, change.value.as_deref()), (key(n).as_bytes(), Some(&*value(n, 1))));
                assert_eq!(change.expires_at.is_some(), n % 5 == 0);
                assert_eq!(change.keyspace.as_deref(), Some("default"));
            }
            for at in [0, 1, 1999, 3998, 3999, 4000] {
                assert_eq!(changes_after(bed.db(), all[at].seqno), all[at + 1..], "{placement:?}, from {at} on");
            }
            let verified = bifold::verify_in(&bed.env(), "/db", |_| {}).unwrap();
            assert!(verified.problems.is_empty(), "{placement:?}, {is_reopened}: {:?}", verified.problems);
            bed.reopen();
        }
    }
}

#[test]
fn a_feed_that_is_read_on_meets_an_ingest() {
    let bed = bed(PlacementKind::HashKv, ALL_OF_THEM);
    let mut changes = bed.db().changes(0).unwrap();
    for round in 0..3 {
        assert!(changes.next().is_none());
        ingest(bed.ks(), 0..10, round);
        assert_eq!(changes.by_ref().map(Result::unwrap).count(), 10, "{round}: at once, not with the next commit");
        let dropped = bed.ks().ingest().unwrap();
        drop(dropped);
        let mut dropped = bed.ks().ingest().unwrap();
        dropped.put("a", "1").unwrap();
        drop(dropped);
    }
    assert_eq!(files(&bed.fs), 3, "of those that are in force");
}

/// Both go together, also if others come beside them that nobody knows any more.
#[test]
fn files_live_as_long_as_the_logs_that_lead_to_them() {
    for placement in [PlacementKind::Inline, PlacementKind::HashKv] {
        let mut bed = bed(placement, RetainChanges { bytes: 200 << 10, age: None });
        let mut slow = None;
        for round in 0..30 {
            ingest(bed.ks(), 0..300, round);
            bed.ks().put(key(round), value(round, round)).unwrap();
            bed.db().flush().unwrap();
            slow.get_or_insert_with(|| bed.db().changes(0).unwrap());
            assert!(bed.db().stats().space.logs_bytes < 500 << 10, "{placement:?}: {:?}", bed.db().stats().space);
            if round % 7 == 6 {
                drop(slow);
                bed.reopen();
                slow = Some(bed.db().changes(first(bed.db()) - 1).unwrap());
            }
        }
        assert!((1..12).contains(&files(&bed.fs)), "{placement:?}: {}", files(&bed.fs));
        let gone = slow.unwrap().find_map(Result::err);
        assert!(gone.is_none_or(|error| matches!(error, Error::ChangesGone { .. })), "{placement:?}");
        let since = first(bed.db()) - 1;
        let there: BTreeSet<u64> = changes_after(bed.db(), since).iter().map(|change| change.seqno).collect();
        assert!(there.len() > 300, "{placement:?}: {}", there.len());
        bed.options.retain_changes = Some(RetainChanges { bytes: 0, age: None });
        bed.reopen();
        assert_eq!(files(&bed.fs), 0, "{placement:?}");
    }
}

/// The first change that is there.
fn first(db: &Db) -> u64 {
    match db.changes(0) {
        Err(Error::ChangesGone { first, .. }) => first,
        other => other.map(|_| 1).unwrap(),
    }
}

/// A reader has an ingest open before its log goes, or learns that it is gone.
#[test]
fn an_ingest_that_is_read_is_read_to_its_end_and_a_later_one_may_be_gone() {
    let bed = bed(PlacementKind::Inline, RetainChanges { bytes: 1, age: None });
    ingest(bed.ks(), 0..100, 0);
    ingest(bed.ks(), 0..100, 1);
    let mut changes = bed.db().changes(0).unwrap();
    assert_eq!(&*changes.next().unwrap().unwrap().key, key(0).as_bytes());
    for n in 0..3 {
        bed.ks().put(key(n), "1").unwrap();
        bed.db().flush().unwrap();
    }
    assert_eq!(files(&bed.fs), 0);
    let (read, failed): (Vec<_>, Vec<_>) = changes.by_ref().take(200).partition(Result::is_ok);
    assert_eq!(read.len(), 99);
    assert!(matches!(failed[0], Err(Error::ChangesGone { .. })), "{:?}", failed[0]);
}

#[test]
fn a_damaged_file_of_an_ingest_is_an_error_that_names_it_and_verification_finds_it() {
    let mut bed = bed(PlacementKind::Inline, ALL_OF_THEM);
    ingest(bed.ks(), 0..2000, 0);
    bed.reopen();
    let path =
        bed.fs.files().into_iter().find(|path| path.extension().is_some_and(|ending| ending == "ingest")).unwrap();
    let whole = bed.fs.read(&path).unwrap();
    let flipped = |at: usize| [&whole[..at], &[whole[at] ^ 4], &whole[at + 1..]].concat();
    for bytes in [flipped(whole.len() / 2), flipped(3), whole[..whole.len() - 1].to_vec(), whole[..20].to_vec()] {
        bed.fs.write_durable(&path, &bytes);
        let error = bed.db().changes(0).unwrap().find_map(Result::err).unwrap();
        assert!(matches!(&error, Error::Corruption { path: named, .. } if *named == path), "{error}");
        let problems = bifold::verify_in(&bed.env(), "/db", |_| {}).unwrap().problems;
        assert_eq!(problems.len(), 1, "{problems:?}");
    }
}

/// Whatever power leaves, each log that is there leads to files that are.
#[test]
fn no_power_loss_leaves_a_log_without_its_ingests() {
    let bed = bed(PlacementKind::HashKv, RetainChanges { bytes: 60 << 10, age: None });
    let (images, disk) = (Arc::new(Mutex::new(Vec::new())), bed.fs.clone());
    let taken = Arc::clone(&images);
    bed.fs.set_hook(Some(Arc::new(move |call: u64, op: OpKind, _: &std::path::Path| {
        if matches!(op, OpKind::Remove | OpKind::SyncDir) {
            taken.lock().unwrap().extend((0..4).map(|n| disk.power_loss(Fate::Random(call * 4 + n))));
        }
    })));
    // A reader holds files that are deleted. They go when it ends, in any order.
    let mut follower = follow(&bed, &FaultyFs::over_memory(bed.fs.clone()));
    for round in 0..12 {
        ingest(bed.ks(), 0..100, round);
        bed.ks().put(key(round), value(round, round)).unwrap();
        bed.db().flush().unwrap();
        if round % 4 == 3 {
            follower.refresh().unwrap();
        }
    }
    drop(follower);
    let _lets_go = bed.db().stats();
    bed.ks().put("a", "1").unwrap();
    bed.db().flush().unwrap();
    bed.fs.set_hook(None);
    assert!((1..4).contains(&files(&bed.fs)), "{} files stay", files(&bed.fs));
    let images = std::mem::take(&mut *images.lock().unwrap());
    assert!(images.len() > 100, "{}", images.len());
    for (at, image) in images.into_iter().enumerate() {
        let db = Db::open_in(bed.env_of(&image), "/db", bed.options.clone()).unwrap();
        let mut all = db.changes(first(&db) - 1).unwrap();
        assert!(all.all(|change| change.is_ok()), "image {at}");
        db.close().unwrap();
    }
}

/// It has the log that leads to the ingest, because replay needs that, and the file is for the feed only.
#[test]
fn copies_say_that_the_changes_of_an_ingest_are_gone() {
    for placement in PlacementKind::ALL {
        let bed = bed(placement, ALL_OF_THEM);
        bed.ks().put(key(3), "before").unwrap();
        ingest(bed.ks(), 100..300, 1);
        bed.ks().put(key(5), "after").unwrap();
        let all = changes_after(bed.db(), 0);
        let (before, after) = (all[0].seqno, &all[201..]);
        // The database itself has the file: without it, it is damaged.
        let damaged = bed.fs.fork();
        let is_of_ingest = |path: &&PathBuf| path.extension().is_some_and(|extension| extension == "ingest");
        let lost = damaged.files().iter().find(is_of_ingest).unwrap().clone();
        damaged.remove(&lost).unwrap();
        let env = Env { fs: Arc::new(damaged), ..bed.env() };
        let problems = bifold::verify_in(&env, "/db", |_| {}).unwrap().problems;
        assert!(problems.iter().any(|problem| problem.to_string().contains("ingest")), "{placement:?}: {problems:?}");
        bed.db().checkpoint("/checkpoint").unwrap();
        bed.db().backup("/backups").unwrap();
        Backup::open_in(bed.env(), "/backups").unwrap().restore("/restored").unwrap();
        for copy in ["/checkpoint", "/restored"] {
            let is_whole = |what: &str| {
                let problems = bifold::verify_in(&bed.env(), copy, |_| {}).unwrap().problems;
                assert!(problems.is_empty(), "{placement:?}, {copy}, {what}: {problems:?}");
            };
            is_whole("new");
            for access in [Access::Follow, Access::ReadOnly, Access::ReadWrite, Access::ReadWrite] {
                let what = format!("{placement:?}, {copy}, {access:?}");
                let db = Db::open_in(bed.env(), copy, Options { access, ..bed.options.clone() }).unwrap();
                assert!(entries(db.iter()) == entries(bed.ks().iter()), "{what}");
                let mut changes = db.changes(0).unwrap();
                assert_eq!(changes.next().unwrap().unwrap(), all[0], "{what}");
                for _ in 0..2 {
                    let Err(Error::ChangesGone { since, first }) = changes.next().unwrap() else { panic!("{what}") };
                    assert_eq!((since, first <= after[0].seqno), (before, true), "{what}");
                    assert_eq!(changes_after(&db, first - 1), after, "{what}");
                }
                db.close().unwrap();
                is_whole(&what);
            }
            let db = Db::open_in(bed.env(), copy, bed.options.clone()).unwrap();
            let here = db.changes(after[0].seqno).unwrap();
            ingest(db.default_keyspace(), 300..310, 2);
            db.flush().unwrap();
            assert_eq!(here.map(Result::unwrap).count(), 10, "{placement:?}, {copy}");
            db.close().unwrap();
            is_whole("flushed");
        }
    }
}

/// Opens a reader whose calls go through `faulty`.
fn follow(bed: &Bed, faulty: &FaultyFs) -> Db {
    let env = Env { fs: Arc::new(faulty.clone()), ..bed.env() };
    let keyspace = KeyspaceOptions::default();
    Db::open_in(env, "/db", Options { access: Access::Follow, keyspace, ..bed.options.clone() }).unwrap()
}

/// A reader that has an older manifest than logs would miss an ingest, and see what was committed after it.
#[test]
fn a_follower_sees_no_commit_without_the_ingest_before_it() {
    for retain in [None, Some(ALL_OF_THEM)] {
        let (mut at, mut seen_between) = (0, 0);
        for moment in 1.. {
            let bed = Bed::of(Options { retain_changes: retain, ..Bed::new(PlacementKind::WiscKey).options });
            bed.ks().put("first", "1").unwrap();
            let faulty = FaultyFs::over_memory(bed.fs.clone());
            let mut follower = follow(&bed, &faulty);
            let (calls, writer) = (Arc::new(AtomicU64::new(0)), bed.ks().clone());
            let counted = Arc::clone(&calls);
            bed.ks().put("second", "1").unwrap();
            faulty.decide_by(Box::new(move |_| {
                if counted.fetch_add(1, Ordering::Relaxed) == moment {
                    ingest(&writer, 0..20, 1);
                    writer.put("later", "1").unwrap();
                }
                None
            }));
            follower.refresh().unwrap();
            at = calls.load(Ordering::Relaxed);
            let (has_ingest, has_later) =
                (follower.get(key(7)).unwrap().is_some(), follower.get("later").unwrap().is_some());
            assert!(has_ingest || !has_later, "call {moment}");
            seen_between += u32::from(has_later);
            if retain.is_some() {
                let mut replica = Replica::default();
                replica.catch_up(&follower);
                replica.is_of(follower.default_keyspace(), &format!("call {moment}"));
            }
            faulty.clear();
            follower.refresh().unwrap();
            assert_eq!(entries(follower.default_keyspace().iter()), entries(bed.ks().iter()), "call {moment}");
            if moment > at {
                break;
            }
        }
        assert!(at > 10 && seen_between > 0, "{at} calls, {seen_between}");
    }
}

/// It was announced, and power was lost before the manifest had it: the numbers are free again.
#[test]
fn an_ingest_that_did_not_arrive_leaves_nothing() {
    for placement in [PlacementKind::Inline, PlacementKind::NovKv] {
        let bed = bed(placement, ALL_OF_THEM);
        bed.ks().put(key(1), "1").unwrap();
        let (images, disk) = (Arc::new(Mutex::new(Vec::new())), bed.fs.clone());
        let taken = Arc::clone(&images);
        bed.fs.set_hook(Some(Arc::new(move |_: u64, _: OpKind, _: &std::path::Path| {
            taken.lock().unwrap().push(disk.fork());
        })));
        ingest(bed.ks(), 0..50, 1);
        bed.fs.set_hook(None);
        let mut found = BTreeSet::new();
        for image in std::mem::take(&mut *images.lock().unwrap()) {
            let open = |access| {
                let options = Options { access, ..bed.options.clone() };
                Db::open_in(bed.env_of(&image), "/db", options).unwrap()
            };
            for access in [Access::Follow, Access::ReadOnly, Access::ReadWrite, Access::ReadWrite] {
                let db = open(access);
                let mut replica = Replica::default();
                replica.catch_up(&db);
                replica.is_of(db.default_keyspace(), &format!("{placement:?}, {access:?}"));
                found.insert(replica.entries.len());
                assert!(replica.commits <= 3 && !replica.entries.is_empty());
                if access == Access::ReadWrite {
                    db.put(key(1), "2").unwrap();
                }
                db.close().unwrap();
            }
            assert_eq!(files(&image), usize::from(replica_len(&bed, &image) > 1), "{placement:?}");
        }
        assert_eq!(found, BTreeSet::from([1, 50]), "{placement:?}: without it, and with it");
    }
}

fn replica_len(bed: &Bed, image: &MemoryFs) -> usize {
    let db = Db::open_in(bed.env_of(image), "/db", bed.options.clone()).unwrap();
    entries(db.default_keyspace().iter()).len()
}
