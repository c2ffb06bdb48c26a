//! Large values in the feed: their files stay as long as their changes, and no longer.

use std::{
    io::{ErrorKind, Read},
    path::Path,
    sync::{Arc, Mutex},
};

use bifold::{
    Access, Change, ChangeKind, Db, Durability, Error, KeyspaceOptions, Options, PlacementKind, RetainChanges,
};
use bifold_io::memory::{Fate, MemoryFs, OpKind};

use super::{ALL_OF_THEM, bed, key, long, read_large, value};
use crate::{
    bed::{Bed, numbers},
    large::files::{self, Others, on_disk},
    support::entries,
};

const FEW: RetainChanges = RetainChanges { bytes: 200 << 10, age: None };

/// What each commit has put, or that it has deleted the key.
type Told = Vec<(String, Option<Vec<u8>>)>;

/// All changes that are there, whole.
fn all_of(db: &Db) -> Vec<Change> {
    let first = match db.changes(0) {
        Err(Error::ChangesGone { first, .. }) => first,
        other => other.map(|_| 1).unwrap(),
    };
    db.changes(first - 1).unwrap().map(Result::unwrap).collect()
}

fn value_of(db: &Db, change: &Change) -> Option<Vec<u8>> {
    match change.kind {
        ChangeKind::Put if change.large.is_some() => Some(read_large(db, change)),
        ChangeKind::Put => Some(change.value.clone().unwrap().to_vec()),
        _ => None,
    }
}

/// Requires that the changes which are there are the last ones of `told`, and returns how many.
fn are_the_last_of(db: &Db, told: &Told, what: &str) -> usize {
    let found: Told = all_of(db)
        .into_iter()
        .map(|change| (String::from_utf8(change.key.to_vec()).unwrap(), value_of(db, &change)))
        .collect();
    let shown = |told: &[(String, Option<Vec<u8>>)]| {
        told.iter().map(|(key, value)| (key.clone(), value.as_ref().map(Vec::len))).collect::<Vec<_>>()
    };
    assert!(told.ends_with(&found), "{what}: {:?} are there of {:?}", shown(&found), shown(told));
    found.len()
}

fn put_large(db: &Db, told: &Mutex<Told>, n: u32, round: u32) {
    told.lock().unwrap().push((key(n), Some(long(n, round))));
    db.put_reader(key(n), &long(n, round)[..]).unwrap();
}

fn put_small(db: &Db, told: &Mutex<Told>, n: u32, round: u32) {
    told.lock().unwrap().push((key(n), Some(value(n, round))));
    db.put(key(n), value(n, round)).unwrap();
}

fn step(bed: &mut Bed, told: &Mutex<Told>, at: u32, random: &mut impl FnMut(u64) -> u64) {
    let n = random(8) as u32;
    match random(16) {
        0..=3 => put_large(bed.db(), told, n, at),
        4 | 5 => put_small(bed.db(), told, n, at),
        6 => {
            told.lock().unwrap().push((key(n), None));
            bed.db().delete(key(n)).unwrap();
        }
        7..=9 => bed.db().flush().unwrap(),
        10 => bed.ks().compact_range(key(0)..key(4)).unwrap(),
        11 => bed.db().compact().unwrap(),
        12 => bed.db().collect_garbage().unwrap(),
        13 => bed.reopen(),
        14 if random(2) == 0 => {
            // The process is killed.
            bed.fs = bed.fs.fork();
            drop(bed.db.take());
            bed.reopen();
        }
        _ => {}
    }
}

#[test]
fn files_stay_as_long_as_their_changes_and_no_longer() {
    for placement in PlacementKind::ALL {
        for (seed, retain) in [(1, FEW), (2, ALL_OF_THEM), (3, FEW)] {
            let mut bed = bed(placement, retain);
            let (told, mut random) = (Mutex::default(), numbers(seed));
            let (mut most_gone, mut most_left) = (0, 0);
            for at in 0..150 {
                step(&mut bed, &told, at, &mut random);
                let what = format!("{placement:?}, seed {seed}, step {at}");
                files::check(&bed.fs, Path::new("/db"), Others::Feed, &what);
                if at % 4 == 0 {
                    let told = told.lock().unwrap();
                    let found = are_the_last_of(bed.db(), &told, &what);
                    most_gone = most_gone.max(told.len() - found);
                }
                let space = bed.db().stats().space;
                most_left = most_left.max(space.kept_large_files);
                let left = on_disk(&bed.fs, Path::new("/db")).len() as u64 - space.large_files;
                assert_eq!(space.kept_large_files, left, "{what}");
            }
            assert!(most_left > 0, "{placement:?}, seed {seed}");
            assert_eq!(most_gone > 0, retain == FEW, "{placement:?}, seed {seed}");
        }
    }
}

/// It is overwritten in the memtable, so that no table has ever named its file.
#[test]
fn a_value_goes_with_its_log_and_whoever_reads_it_reads_on() {
    for placement in [PlacementKind::Inline, PlacementKind::HashKv] {
        let bed = bed(placement, FEW);
        let told = Mutex::default();
        put_large(bed.db(), &told, 0, 0);
        put_small(bed.db(), &told, 0, 1);
        bed.db().flush().unwrap();
        let change = all_of(bed.db()).remove(0);
        assert_eq!((change.value.clone(), change.large.unwrap().bytes), (None, long(0, 0).len() as u64));
        let space = bed.db().stats().space;
        assert_eq!((space.large_files, space.kept_large_files), (0, 1), "{placement:?}");
        assert!(space.kept_large_bytes > 64 << 10);
        let mut reader = bed.db().change_reader(&change).unwrap();
        let mut first = vec![0; 1000];
        reader.read_exact(&mut first).unwrap();
        for round in 2..6 {
            put_large(bed.db(), &told, 0, round);
            bed.db().flush().unwrap();
            bed.db().compact().unwrap();
        }
        reader.read_to_end(&mut first).unwrap();
        assert!(first == long(0, 0), "{placement:?}");
        let gone = bed.db().change_reader(&change).map(drop);
        let first = all_of(bed.db()).remove(0).seqno;
        assert!(matches!(gone, Err(Error::ChangesGone { since: 0, first: at }) if at <= first && at > 1), "{gone:?}");
        files::check(&bed.fs, Path::new("/db"), Others::Feed, "gone");
        assert!(bed.db().stats().space.kept_large_bytes <= FEW.bytes, "{:?}", bed.db().stats().space);
        let mut delete = change;
        (delete.kind, delete.large) = (ChangeKind::Delete, None);
        assert!(matches!(bed.db().change_reader(&delete), Err(Error::InvalidArgument { .. })));
    }
}

/// One value is longer than all that is kept.
#[test]
fn a_value_longer_than_all_that_is_kept_goes_as_soon_as_its_log() {
    let bed = bed(PlacementKind::Inline, FEW);
    bed.db().put_reader("long", &vec![7; 1 << 20][..]).unwrap();
    bed.db().flush().unwrap();
    // Its entry has it, too: it costs the feed nothing.
    assert_eq!(read_large(bed.db(), &all_of(bed.db())[0]).len(), 1 << 20);
    bed.db().put("long", "short").unwrap();
    assert_eq!(read_large(bed.db(), &all_of(bed.db())[0]).len(), 1 << 20);
    bed.db().flush().unwrap();
    bed.db().compact().unwrap();
    assert!(matches!(bed.db().changes(0), Err(Error::ChangesGone { .. })));
    assert_eq!(on_disk(&bed.fs, Path::new("/db")).len(), 0);
    assert_eq!(bed.db().changes(1).unwrap().count(), 1, "the later change is there");
}

#[test]
fn the_values_of_a_dropped_keyspace_stay() {
    for placement in PlacementKind::ALL {
        let mut bed = bed(placement, ALL_OF_THEM);
        let other = bed.db().keyspace("other", bed.options.keyspace.clone()).unwrap();
        other.put_reader("in a table", &long(1, 1)[..]).unwrap();
        bed.db().flush().unwrap();
        other.put_reader("in a memtable", &long(2, 1)[..]).unwrap();
        drop(other);
        bed.db().drop_keyspace("other").unwrap();
        for round in 0..4 {
            let all: Vec<Change> = all_of(bed.db()).into_iter().filter(|change| change.large.is_some()).collect();
            let found: Vec<_> =
                all.iter().map(|change| (change.keyspace.is_some(), read_large(bed.db(), change))).collect();
            assert!(found == [(false, long(1, 1)), (false, long(2, 1))], "{placement:?}, round {round}");
            bed.db().put(key(round), "x").unwrap();
            bed.db().flush().unwrap();
            bed.db().compact().unwrap();
            assert_eq!(on_disk(&bed.fs, Path::new("/db")).len(), 2);
            if round % 2 == 1 {
                bed.fs = bed.fs.power_loss(Fate::DropUnsynced);
                drop(bed.db.take());
            }
            bed.reopen();
        }
        bed.options.retain_changes = Some(RetainChanges { bytes: 0, age: None });
        bed.reopen();
        assert_eq!(on_disk(&bed.fs, Path::new("/db")).len(), 0, "{placement:?}: changes are not kept any more");
    }
}

/// An opening replays nothing of its log, and only then its entry is dropped.
#[test]
fn an_opening_knows_what_logs_name_that_it_does_not_replay() {
    for placement in PlacementKind::ALL {
        let mut bed = bed(placement, ALL_OF_THEM);
        let told = Mutex::default();
        put_large(bed.db(), &told, 0, 0);
        put_large(bed.db(), &told, 0, 1);
        put_large(bed.db(), &told, 1, 0);
        bed.db().flush().unwrap();
        for opening in 2..6 {
            bed.reopen();
            put_small(bed.db(), &told, opening % 2, opening);
            bed.db().flush().unwrap();
            bed.db().compact().unwrap();
            are_the_last_of(bed.db(), &told.lock().unwrap(), &format!("{placement:?}, opening {opening}"));
            assert_eq!(all_of(bed.db()).len(), told.lock().unwrap().len(), "{placement:?}");
        }
        assert_eq!(bed.db().stats().space.kept_large_files, 3, "{placement:?}");
    }
}

/// Opens what a crash has left, without being told that changes are kept.
fn opened(bed: &Bed, fs: &MemoryFs) -> Db {
    Db::open_in(bed.env_of(fs), "/db", Options { retain_changes: None, ..bed.options.clone() }).unwrap()
}

/// What power losses leave after each change of a file while `play` runs, each with how many commits were told.
fn images(bed: &Bed, told: &Arc<Mutex<Told>>, play: impl FnOnce(&Db)) -> Vec<(MemoryFs, usize, String)> {
    let (images, fs) = (Arc::new(Mutex::new(Vec::new())), bed.fs.clone());
    let (taken, all) = (Arc::clone(&images), Arc::clone(told));
    bed.fs.set_hook(Some(Arc::new(move |call: u64, op: OpKind, path: &Path| {
        let fates = [Fate::DropUnsynced, Fate::KeepAll, Fate::Random(call), Fate::Prefix(call)];
        for fate in [fates[(call % 4) as usize], Fate::Random(!call)] {
            let what = format!("{fate:?} after call {call}, {op:?} of {}", path.display());
            taken.lock().unwrap().push((fs.power_loss(fate), all.lock().unwrap().len(), what));
        }
    })));
    play(bed.db());
    bed.fs.set_hook(None);
    std::mem::take(&mut *images.lock().unwrap())
}

#[test]
fn a_power_loss_takes_no_value_of_a_change_that_is_there() {
    for (placement, retain) in
        [(PlacementKind::Inline, FEW), (PlacementKind::HashKv, FEW), (PlacementKind::Inline, ALL_OF_THEM)]
    {
        let bed = bed(placement, retain);
        let told = Arc::new(Mutex::default());
        put_small(bed.db(), &told, 9, 9);
        bed.db().sync().unwrap();
        let images = images(&bed, &told, |db| {
            for round in 0..8 {
                put_large(db, &told, round % 3, round);
                put_small(db, &told, round % 2, round);
                db.flush().unwrap();
                if round % 3 == 2 {
                    db.compact().unwrap();
                }
            }
        });
        let (mut lengths, told) = (Vec::new(), told.lock().unwrap());
        for (fs, head, what) in &images {
            let db = opened(&bed, fs);
            let changes = all_of(&db);
            let (first, last) = match (changes.first(), changes.last()) {
                (Some(first), Some(last)) => (first.seqno as usize, last.seqno as usize),
                _ => continue,
            };
            assert!(last <= *head, "{placement:?}, {what}");
            let part = told[..last].to_vec();
            assert_eq!(are_the_last_of(&db, &part, what), last + 1 - first, "{placement:?}, {what}");
            let mut right = std::collections::BTreeMap::new();
            part.into_iter().for_each(|(key, value)| drop(right.insert(key.into_bytes(), value.unwrap())));
            let right: Vec<_> = right.into_iter().collect();
            assert!(entries(db.iter()) == right, "{placement:?}, {what}");
            files::check(fs, Path::new("/db"), Others::Feed, what);
            let report = bifold::verify_in(&bed.env_of(&fs.fork()), "/db", |_| {}).unwrap();
            assert!(report.problems.is_empty(), "{placement:?}, {what}: {:?}", report.problems);
            lengths.push(first);
        }
        lengths.sort_unstable();
        lengths.dedup();
        assert!(images.len() > 200, "{} images", images.len());
        assert!((lengths.len() > 3) == (retain == FEW), "{placement:?}: they begin at {lengths:?}");
    }
}

/// While changes are not kept, files go that logs name which come back, or stay for other keyspaces.
#[test]
fn what_an_opening_without_the_feed_has_deleted_ends_what_is_kept() {
    let mut bed = bed(PlacementKind::Inline, ALL_OF_THEM);
    let other = bed.db().keyspace("other", bed.options.keyspace.clone()).unwrap();
    other.put_with("a", "1", Durability::Sync).unwrap();
    let told = Arc::new(Mutex::default());
    put_large(bed.db(), &told, 0, 0);
    bed.db().flush().unwrap();
    put_large(bed.db(), &told, 1, 0);
    put_small(bed.db(), &told, 0, 1);
    put_small(bed.db(), &told, 1, 1);
    other.put_with("b", "2", Durability::Sync).unwrap();
    drop(other);
    bed.fs = bed.fs.power_loss(Fate::DropUnsynced);
    drop(bed.db.take());
    let (images, fs) = (Arc::new(Mutex::new(Vec::new())), bed.fs.clone());
    let taken = Arc::clone(&images);
    bed.fs.set_hook(Some(Arc::new(move |call: u64, _: OpKind, _: &Path| {
        taken
            .lock()
            .unwrap()
            .extend([Fate::KeepAll, Fate::Random(call), Fate::Random(!call)].map(|f| fs.power_loss(f)));
    })));
    let options = bed.options.clone();
    bed.options.retain_changes = Some(RetainChanges { bytes: 0, age: None });
    bed.reopen();
    bed.db().compact().unwrap();
    bed.fs.set_hook(None);
    let (mut some, mut all) = (0, 0);
    for (at, fs) in images.lock().unwrap().drain(..).enumerate() {
        let db = Db::open_in(bed.env_of(&fs), "/db", options.clone()).unwrap();
        let changes = all_of(&db);
        for change in changes.iter().filter(|change| change.large.is_some()) {
            let n = u32::from(*change.key == *key(1).as_bytes());
            assert!(read_large(&db, change) == long(n, 0), "image {at}");
        }
        all += usize::from(changes.len() == 6);
        some += usize::from(changes.len() < 6);
        db.put("c", "3").unwrap();
        assert_eq!(all_of(&db).len(), changes.len() + 1, "image {at}");
    }
    assert!(some > 10 && all > 10, "{some} images without some, {all} with all");
}

#[test]
fn a_state_of_a_reader_has_its_values_until_it_goes_on() {
    for access in [Access::Follow, Access::ReadOnly] {
        let mut bed = bed(PlacementKind::HashKv, FEW);
        let told = Mutex::default();
        put_large(bed.db(), &told, 0, 0);
        put_small(bed.db(), &told, 0, 1);
        bed.db().flush().unwrap();
        bed.db().compact().unwrap();
        put_large(bed.db(), &told, 1, 1);
        if access == Access::ReadOnly {
            bed.db.take().unwrap().close().unwrap();
        }
        let options = Options { access, keyspace: KeyspaceOptions::default(), ..bed.options.clone() };
        let mut reader = Db::open_in(bed.env(), "/db", options).unwrap();
        assert_eq!(are_the_last_of(&reader, &told.lock().unwrap(), "a state"), 3, "{access:?}");
        if access == Access::ReadOnly {
            continue;
        }
        let seen = all_of(&reader).remove(0);
        for round in 2..6 {
            put_large(bed.db(), &told, 0, round);
            bed.db().flush().unwrap();
            bed.db().compact().unwrap();
        }
        assert!(matches!(bed.db().changes(0), Err(Error::ChangesGone { .. })));
        assert!(read_large(&reader, &seen) == long(0, 0), "the state needs it");
        reader.refresh().unwrap();
        are_the_last_of(&reader, &told.lock().unwrap(), "the next state");
        let gone = reader.change_reader(&seen).map(drop);
        let first = all_of(&reader)[0].seqno;
        let is_gone = matches!(gone, Err(Error::ChangesGone { first: at, .. }) if at <= first);
        assert!(is_gone || gone.is_ok(), "{gone:?}");
        drop(reader);
        bed.reopen();
        files::check(&bed.fs, Path::new("/db"), Others::Feed, "nobody follows");
    }
}

#[test]
fn checkpoints_have_none_that_only_the_feed_needs() {
    let bed = bed(PlacementKind::Inline, ALL_OF_THEM);
    let told = Mutex::default();
    for round in 0..3 {
        put_large(bed.db(), &told, 0, round);
        bed.db().flush().unwrap();
        bed.db().compact().unwrap();
        put_large(bed.db(), &told, 1, round);
    }
    assert_eq!(on_disk(&bed.fs, Path::new("/db")).len(), 6);
    bed.db().checkpoint("/copy").unwrap();
    let live = bed.db().stats().space.large_files;
    assert_eq!((live, on_disk(&bed.fs, Path::new("/copy")).len() as u64), (3, live));
    let copy = Db::open_in(bed.env(), "/copy", bed.options.clone()).unwrap();
    assert!(entries(copy.iter()) == entries(bed.db().iter()));
    let last = Mutex::new(told.lock().unwrap().clone());
    put_large(&copy, &last, 2, 2);
    assert!(are_the_last_of(&copy, &last.lock().unwrap(), "the copy") >= 1);
}

#[test]
fn damage_in_a_value_that_only_the_feed_needs_is_reported_and_never_handed_out() {
    let bed = bed(PlacementKind::Inline, ALL_OF_THEM);
    let told = Mutex::default();
    put_large(bed.db(), &told, 0, 0);
    put_small(bed.db(), &told, 0, 1);
    bed.db().flush().unwrap();
    bed.db().put("later", "x").unwrap();
    bed.db().flush().unwrap();
    let (&id, _) = on_disk(&bed.fs, Path::new("/db")).first_key_value().unwrap();
    let path = Path::new("/db").join(bifold_format::names::large(id));
    let whole = bed.fs.read(&path).unwrap();
    let damaged = bed.fs.fork();
    let mut bytes = whole.clone();
    bytes[30_000] ^= 1;
    damaged.write_durable(&path, &bytes);
    let report = bifold::verify_in(&bed.env_of(&damaged), "/db", |_| {}).unwrap();
    assert_eq!(report.problems.len(), 1, "{:?}", report.problems);
    assert!(report.problems[0].to_string().contains(".large"), "{}", report.problems[0]);
    let db = opened(&bed, &damaged);
    let mut reader = db.change_reader(&all_of(&db)[0]).unwrap();
    assert_eq!(reader.read_to_end(&mut Vec::new()).unwrap_err().kind(), ErrorKind::InvalidData);
    drop((reader, db));
    // Somebody has removed it: what is kept ends behind it.
    let removed = bed.fs.fork();
    bifold_io::FileSystem::remove(&removed, &path).unwrap();
    let db = opened(&bed, &removed);
    assert!(all_of(&db).iter().all(|change| change.large.is_none()));
}
