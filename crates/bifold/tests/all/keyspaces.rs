//! Named maps within a database.

use std::{path::PathBuf, sync::Arc};

use bifold::{Compression, Db, Env, Error, KeyspaceOptions, Options, Workers, options::Values};
use bifold_io::{FileSystem, memory::MemoryFs};

use crate::{
    support::{check_filled, entries, fill, keys, tiny, tiny_db, value},
    waits::PLACEMENTS,
};

#[test]
fn keyspaces_do_not_see_each_other_and_come_back_with_their_options() {
    let (dir, db) = tiny_db();
    let zstd = KeyspaceOptions { compression: Compression::Zstd, ..tiny().keyspace };
    let (a, b) = (db.keyspace("a", tiny().keyspace).unwrap(), db.keyspace("b", zstd.clone()).unwrap());
    fill(&a, 300, "in a");
    fill(&b, 200, "in b");
    assert_eq!(keys(db.iter()), Vec::<String>::new());
    check_filled(&a, 300, "in a");
    check_filled(&b, 200, "in b");
    drop((a, b));
    db.close().unwrap();
    let db = Db::open_with(dir.join("db"), tiny()).unwrap();
    assert_eq!(db.keyspace_names(), ["a", "b", "default"]);
    let b = db.keyspace("b", KeyspaceOptions::default()).unwrap();
    assert_eq!(b.options(), zstd.resolved(), "an existing keyspace keeps its options");
    check_filled(&b, 200, "in b");
    check_filled(&db.existing_keyspace("a").unwrap().unwrap(), 300, "in a");
    assert!(db.existing_keyspace("c").unwrap().is_none());
}

#[test]
fn a_dropped_keyspace_does_not_come_back_and_its_name_is_free() {
    let (dir, db) = tiny_db();
    let old = db.keyspace("k", tiny().keyspace).unwrap();
    fill(&old, 300, "old");
    let iterator = old.iter();
    db.drop_keyspace("k").unwrap();
    assert!(matches!(old.get("key0001"), Err(Error::Closed { .. })));
    assert!(matches!(old.put("key0001", "x"), Err(Error::Closed { .. })));
    assert_eq!(iterator.count(), 300, "an open iterator goes on");
    let new = db.keyspace("k", tiny().keyspace).unwrap();
    assert_eq!(keys(new.iter()), Vec::<String>::new());
    new.put("n", "1").unwrap();
    drop((old, new));
    db.close().unwrap();
    let db = Db::open_with(dir.join("db"), tiny()).unwrap();
    assert_eq!(keys(db.existing_keyspace("k").unwrap().unwrap().iter()), ["n"]);
}

/// The current tables and value files.
fn data_files(fs: &MemoryFs) -> Vec<PathBuf> {
    let is_data = |path: &PathBuf| path.extension().is_some_and(|e| e == "tbl" || e == "val");
    fs.list("/db".as_ref()).unwrap().into_iter().filter(is_data).collect()
}

/// A handle used to keep the value files of a dropped keyspace.
#[test]
fn the_files_of_a_dropped_keyspace_go_with_its_last_reader_whoever_has_a_handle() {
    for placement in PLACEMENTS {
        let fs = MemoryFs::new();
        let env = Env { fs: Arc::new(fs.clone()), ..Env::system() };
        let db = Db::open_in(env, "/db", Options { workers: Workers::Threads(2), ..tiny() }).unwrap();
        let kept = db.keyspace("k", KeyspaceOptions { placement, ..tiny().keyspace }).unwrap();
        for round in ["old", "new"] {
            fill(&kept, 300, round);
            kept.put("large", [7; 70_000]).unwrap();
            db.flush().unwrap();
        }
        db.wait_idle().unwrap();
        let (stats, open) = (db.stats(), db.stats().files.open);
        let (mut iterator, snapshot) = (kept.iter(), db.snapshot());
        let pair = iterator.next().unwrap().unwrap();
        kept.compact_range::<&[u8]>(..).unwrap();
        assert!(!data_files(&fs).is_empty());
        db.drop_keyspace("k").unwrap();
        assert_eq!(entries(&mut iterator).len(), 300, "{placement:?}: an open iterator goes on");
        assert!(matches!(snapshot.get(&kept, "large"), Err(Error::Closed { .. })));
        assert!(matches!(kept.iter().next(), Some(Err(Error::Closed { .. }))));
        drop(iterator);
        assert_eq!(
            pair.value().unwrap()[..],
            *value(0, "new").as_bytes(),
            "{placement:?}: and an entry that it yielded"
        );
        drop(pair);
        db.wait_idle().unwrap();
        assert_eq!(data_files(&fs), Vec::<PathBuf>::new(), "{placement:?}");
        assert!(db.stats().files.open < open, "{placement:?}: they are closed, so that their space is free");
        assert_eq!((kept.name(), stats.keyspaces.len()), ("k", 2));
    }
}

/// The iterator's tables have addresses that GC has left and that only later tables have anew.
#[test]
fn an_iterator_over_a_dropped_keyspace_finds_what_had_moved_before() {
    for placement in PLACEMENTS {
        let env = Env { fs: Arc::new(MemoryFs::new()), ..Env::system() };
        let db = Db::open_in(env, "/db", Options { workers: Workers::Caller, ..tiny() }).unwrap();
        let values = Values { file_bytes: 4 << 10, ..Values::default() };
        let short = db.keyspace("k", KeyspaceOptions { placement, values, ..tiny().keyspace }).unwrap();
        for n in [300, 150] {
            fill(&short, n, &"long enough to be separated ".repeat(20));
            db.flush().unwrap();
        }
        db.collect_garbage().unwrap();
        db.sync().unwrap();
        let iterator = short.iter();
        // Between these are all others, so all are merged.
        ["aaa", "zzz"].iter().for_each(|key| short.put(key, "newer than the iterator").unwrap());
        short.compact_range::<&[u8]>(..).unwrap();
        db.collect_garbage().unwrap();
        db.drop_keyspace("k").unwrap();
        assert_eq!(entries(iterator).len(), 300, "{placement:?}");
    }
}

#[test]
fn names_are_checked() {
    let (_dir, db) = tiny_db();
    assert!(matches!(db.keyspace("", KeyspaceOptions::default()), Err(Error::InvalidArgument { .. })));
    assert!(matches!(db.keyspace(&"n".repeat(256), KeyspaceOptions::default()), Err(Error::InvalidArgument { .. })));
    assert!(matches!(db.drop_keyspace("default"), Err(Error::InvalidArgument { .. })));
    assert!(matches!(db.drop_keyspace("nobody"), Err(Error::InvalidArgument { .. })));
    let bad = KeyspaceOptions { restart_interval: 0, ..KeyspaceOptions::default() };
    assert!(matches!(db.keyspace("bad", bad), Err(Error::InvalidArgument { .. })));
    assert_eq!(db.keyspace_names(), ["default"]);
}

/// Nothing is flushed meanwhile, and no other job ends.
#[test]
fn the_manifest_stays_short_where_keyspaces_only_come_and_go_and_change_their_options() {
    let fs = MemoryFs::new();
    let env = || Env { fs: Arc::new(fs.clone()), ..Env::system() };
    let db = Db::open_in(env(), "/db", tiny()).unwrap();
    let kept = db.keyspace("kept", tiny().keyspace).unwrap();
    kept.put("a", "1").unwrap();
    let length = || fs.read("/db/MANIFEST".as_ref()).unwrap().len();
    let is_rewritten_by = |change: &dyn Fn(usize)| {
        let mut before = length();
        (0..200).any(|_| {
            (0..100).for_each(change);
            let now = length();
            std::mem::replace(&mut before, now) > now
        })
    };
    let name = "n".repeat(255);
    let come_and_go = |_: usize| {
        drop(db.keyspace(&name, tiny().keyspace).unwrap());
        db.drop_keyspace(&name).unwrap();
    };
    assert!(is_rewritten_by(&come_and_go), "{} bytes", length());
    let change_options = |n: usize| {
        let table_bytes = if n.is_multiple_of(2) { 16 << 10 } else { 32 << 10 };
        kept.set_options(KeyspaceOptions { table_bytes, ..tiny().keyspace }).unwrap();
    };
    assert!(is_rewritten_by(&change_options), "{} bytes", length());
    let options = kept.options();
    drop(kept);
    db.close().unwrap();
    let db = Db::open_in(env(), "/db", tiny()).unwrap();
    assert_eq!(db.keyspace_names(), ["default", "kept"]);
    let kept = db.existing_keyspace("kept").unwrap().unwrap();
    assert_eq!((kept.options(), kept.get("a").unwrap().as_deref()), (options, Some(&b"1"[..])));
}
