//! What users rely on, one behaviour a test.

use std::{
    io::{self, ErrorKind, Read},
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};

use bifold::{
    Access, Backup, CompactionFilter, Db, Error, FilterEntry, IfMissing, MergeOperator, Options, PlacementKind,
    RetainChanges, Verdict,
    salvage::{DatabaseSalvage, SalvageOptions},
};
use bifold_format::large::CHUNK_BYTES;

use super::{
    LARGE, bytes,
    files::{Others, check, on_disk},
    key, read_all,
};
use crate::{bed::Bed, support::entries};

const DB: &str = "/db";

fn count(bed: &Bed) -> usize {
    on_disk(&bed.fs, Path::new(DB)).len()
}

/// The only file of a large value.
fn only_file(bed: &Bed) -> PathBuf {
    let files = on_disk(&bed.fs, Path::new(DB));
    assert_eq!(files.len(), 1);
    Path::new(DB).join(bifold_format::names::large(*files.keys().next().unwrap()))
}

/// A source that fails after some bytes.
struct Fails(u64);

impl Read for Fails {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        if self.0 == 0 {
            return Err(io::Error::new(ErrorKind::ConnectionReset, "the peer is gone"));
        }
        let len = (buffer.len() as u64).min(self.0).min(1000);
        self.0 -= len;
        buffer[..len as usize].fill(3);
        Ok(len as usize)
    }
}

#[test]
fn a_source_that_fails_leaves_everything_as_it_was() {
    let bed = Bed::new(PlacementKind::Inline);
    bed.ks().put("key", "before").unwrap();
    for len in [0, 100, LARGE + 5, 3 * CHUNK_BYTES, 3 * CHUNK_BYTES + 5] {
        let error = bed.ks().put_reader("key", Fails(len)).unwrap_err();
        let Error::Io { source, .. } = &error else { panic!("{error}") };
        assert_eq!(source.kind(), ErrorKind::ConnectionReset);
        assert!(error.to_string().contains("the peer is gone"), "{error}");
        assert_eq!(bed.ks().get("key").unwrap().as_deref(), Some(&b"before"[..]));
        assert_eq!(count(&bed), 0, "{len}");
    }
    bed.ks().put_reader("key", &bytes(1, 1, 2 * LARGE)[..]).unwrap();
    assert_eq!(count(&bed), 1, "nothing is poisoned");
}

#[test]
fn short_values_are_put_like_any_other() {
    let bed = Bed::new(PlacementKind::WiscKey);
    for len in [0, 1, LARGE] {
        bed.ks().put_reader("key", &bytes(1, 1, len)[..]).unwrap();
        assert_eq!(read_all(bed.ks().get_reader("key").unwrap().unwrap()), bytes(1, 1, len));
        assert_eq!(count(&bed), 0);
    }
    assert!(bed.ks().get_reader("none").unwrap().is_none());
    bed.ks().put_reader("key", &bytes(1, 1, LARGE + 1)[..]).unwrap();
    assert_eq!(count(&bed), 1);
}

#[test]
fn it_is_refused_where_it_would_lose_something() {
    let value = || io::repeat(1).take(3 * LARGE);
    let refused = |error: Error, words: &str| {
        assert!(matches!(error, Error::InvalidArgument { .. }), "{error}");
        assert!(error.to_string().contains(words), "{error}");
    };
    let mut bed = Bed::new(PlacementKind::Inline);
    refused(bed.ks().put_reader("", value()).unwrap_err(), "at least one byte");
    let with_ttl = bifold::KeyspaceOptions { ttl: Some(Duration::from_secs(10)), ..bed.options.keyspace.clone() };
    let other = bed.db().keyspace("expires", with_ttl).unwrap();
    refused(other.put_reader("key", value()).unwrap_err(), "keyspace `expires` has a `ttl`");
    drop(other);
    bed.ks().put_reader("key", value()).unwrap();
    bed.options.retain_changes = Some(RetainChanges { bytes: 1 << 20, age: None });
    bed.reopen();
    // The feed begins with what was written since.
    bed.ks().put("small", "value").unwrap();
    let since = bed.db().snapshot().seqno() - 1;
    let changes: Vec<_> = bed.db().changes(since).unwrap().map(|change| change.unwrap().key.to_vec()).collect();
    assert_eq!(changes, [b"small".to_vec()]);
    assert_eq!(count(&bed), 1);
    let read_only = Options { access: Access::ReadOnly, if_missing: IfMissing::Fail, ..bed.options.clone() };
    bed.db.take().unwrap().close().unwrap();
    let db = Db::open_in(bed.env(), DB, read_only).unwrap();
    assert!(matches!(db.put_reader("key", value()), Err(Error::ReadOnly)));
    assert_eq!(db.get_reader("key").unwrap().unwrap().len(), 3 * LARGE);
    drop(db);
}

/// GC that does not ask the index takes the newest value that a group knows of a key: it must know of the other one.
#[test]
fn gc_does_not_bring_back_what_a_large_value_has_replaced() {
    for placement in PlacementKind::ALL {
        let mut bed = Bed::new(placement);
        let mut all = std::collections::BTreeMap::new();
        for n in 0..200 {
            bed.ks().put(key(n), bytes(n, 0, 300)).unwrap();
            all.insert(key(n), bytes(n, 0, 300));
        }
        for n in (0..200).step_by(9) {
            bed.ks().put_reader(key(n), &bytes(n, 1, LARGE + 1)[..]).unwrap();
            all.insert(key(n), bytes(n, 1, LARGE + 1));
        }
        for round in 2..6 {
            for n in (1..200).step_by(3).filter(|n| n % 9 != 0) {
                bed.ks().put(key(n), bytes(n, round, 300)).unwrap();
                all.insert(key(n), bytes(n, round, 300));
            }
            bed.db().collect_garbage().unwrap();
            if round == 4 {
                // Notes are in the files, or are written again from the log.
                bed.reopen();
            }
            let found: std::collections::BTreeMap<_, _> = entries(bed.ks().iter()).into_iter().collect();
            assert!(found == all, "{placement:?}, round {round}");
        }
        bed.db().compact().unwrap();
        let found: std::collections::BTreeMap<_, _> = entries(bed.ks().iter()).into_iter().collect();
        assert!(found == all, "{placement:?}");
    }
}

/// They are dropped by flushes, and a memtable with a few keys is never full.
#[test]
fn overwritten_values_do_not_fill_the_disk() {
    for placement in PlacementKind::ALL {
        let bed = Bed::new(placement);
        let mut most = 0;
        for round in 0..200 {
            bed.ks().put_reader(key(round % 3), &bytes(1, round, 1 << 20)[..]).unwrap();
            most = most.max(count(&bed));
        }
        assert!(most < 50, "{placement:?}: {most} files for 3 keys");
        bed.db().compact().unwrap();
        assert_eq!(count(&bed), 3, "{placement:?}");
    }
}

#[test]
fn operands_are_combined_with_a_large_base() {
    for placement in PlacementKind::ALL {
        let mut bed = Bed::new(placement);
        bed.begin_with(MergeOperator::append());
        let mut expected = bytes(1, 1, 3 * LARGE);
        bed.ks().put_reader("key", &expected[..]).unwrap();
        let snapshot = (bed.db().snapshot(), expected.clone());
        for round in 0..4 {
            bed.ks().merge("key", b"more").unwrap();
            expected.extend_from_slice(b"more");
            if round == 1 {
                bed.db().flush().unwrap();
            }
            assert!(bed.ks().get("key").unwrap().unwrap() == expected, "{placement:?}, {round}");
            assert!(read_all(bed.ks().get_reader("key").unwrap().unwrap()) == expected);
        }
        assert!(read_all(snapshot.0.get_reader(bed.ks(), "key").unwrap().unwrap()) == snapshot.1);
        drop(snapshot);
        bed.db().compact().unwrap();
        bed.db().collect_garbage().unwrap();
        bed.reopen();
        assert!(entries(bed.ks().iter()) == [(b"key".to_vec(), expected.clone())], "{placement:?}");
        assert_eq!(count(&bed), 1, "{placement:?}: the operands need it");
        bed.ks().put("key", "small").unwrap();
        bed.db().compact().unwrap();
        check(&bed.fs, Path::new(DB), Others::None, "overwritten");
        assert_eq!(count(&bed), 0, "{placement:?}");
    }
}

#[test]
fn a_compaction_filter_is_handed_the_value() {
    for placement in PlacementKind::ALL {
        let bed = Bed::new(placement);
        let asked = Arc::new(AtomicU64::new(0));
        let seen = Arc::clone(&asked);
        let keeps_even = move |entry: &FilterEntry<'_>| {
            let value = entry.value()?;
            seen.fetch_add(value.len() as u64, Relaxed);
            Ok(if value.len() % 2 == 0 { Verdict::Keep } else { Verdict::Delete })
        };
        bed.ks().put_reader("even", &bytes(1, 1, 4 * LARGE)[..]).unwrap();
        bed.ks().put_reader("odd", &bytes(2, 1, 2 * LARGE + 1)[..]).unwrap();
        bed.ks().set_compaction_filter(Some(CompactionFilter::new(keeps_even)));
        bed.db().compact().unwrap();
        assert!(asked.load(Relaxed) > 6 * LARGE, "{placement:?}");
        assert!(entries(bed.ks().iter()) == [(b"even".to_vec(), bytes(1, 1, 4 * LARGE))], "{placement:?}");
        bed.ks().set_compaction_filter(None);
        bed.db().compact().unwrap();
        assert_eq!(count(&bed), 1, "{placement:?}");
    }
}

#[test]
fn copies_and_readers_have_it() {
    for placement in PlacementKind::ALL {
        let mut bed = Bed::new(placement);
        let mut all = Vec::new();
        for n in 0..4 {
            let value = bytes(n, 0, 2 * LARGE + u64::from(n));
            bed.ks().put_reader(key(n), &value[..]).unwrap();
            all.push((key(n), value));
            if n == 1 {
                bed.db().flush().unwrap();
            }
        }
        let follow = Options { access: Access::Follow, if_missing: IfMissing::Fail, ..bed.options.clone() };
        let mut reader = Db::open_in(bed.env(), DB, follow.clone()).unwrap();
        assert!(entries(reader.iter()) == all, "{placement:?}: a reader");
        let open = reader.get_reader(key(3)).unwrap().unwrap();
        // In the log alone, in tables, and dropped from both.
        bed.ks().put_reader(key(3), &bytes(3, 1, LARGE + 9)[..]).unwrap();
        bed.ks().delete(key(0)).unwrap();
        assert!(entries(reader.iter()) == all, "{placement:?}: its state");
        bed.db().compact().unwrap();
        assert!(entries(reader.iter()) == all, "{placement:?}: its state, after a merge");
        assert!(read_all(open) == all[3].1, "{placement:?}");
        all[3].1 = bytes(3, 1, LARGE + 9);
        let all = &all[1..];
        reader.refresh().unwrap();
        assert!(entries(reader.iter()) == all, "{placement:?}: refreshed");
        bed.ks().put_reader(key(2), &bytes(2, 0, 2 * LARGE + 2)[..]).unwrap();
        reader.refresh().unwrap();
        assert!(entries(reader.iter()) == all, "{placement:?}: refreshed again");
        // The states before have met what only a log names.
        bed.db().flush().unwrap();
        bed.ks().put("small", "value").unwrap();
        bed.ks().delete("small").unwrap();
        reader.refresh().unwrap();
        reader.checkpoint("/of-reader").unwrap();
        bed.db().checkpoint("/checkpoint").unwrap();
        let first = bed.db().backup("/backups").unwrap();
        bed.ks().put("small", "value").unwrap();
        bed.ks().delete("small").unwrap();
        let second = bed.db().backup("/backups").unwrap();
        assert!(first.new_bytes > 5 * LARGE && second.new_bytes < LARGE, "{placement:?}: {first:?}, {second:?}");
        let backups = Backup::open_in(bed.env(), "/backups").unwrap();
        backups.restore("/restored").unwrap();
        assert_eq!(backups.verify().unwrap().problems.len(), 0, "{placement:?}");
        for copy in ["/of-reader", "/checkpoint", "/restored"] {
            assert!(bifold::verify_in(&bed.env(), copy, |_| {}).unwrap().problems.is_empty(), "{placement:?}: {copy}");
            let db = Db::open_in(bed.env(), copy, bed.options.clone()).unwrap();
            assert!(entries(db.iter()) == all, "{placement:?}: {copy}");
            db.close().unwrap();
            check(&bed.fs, Path::new(copy), Others::None, copy);
        }
        drop(reader);
        bed.reopen();
        check(&bed.fs, Path::new(DB), Others::None, "without readers");
    }
}

#[test]
fn dropped_keyspaces_take_their_files_with_them() {
    for placement in PlacementKind::ALL {
        let bed = Bed::new(placement);
        let other = bed.db().keyspace("other", bed.options.keyspace.clone()).unwrap();
        let value = bytes(1, 1, 3 * CHUNK_BYTES);
        other.put_reader("flushed", &value[..]).unwrap();
        bed.db().flush().unwrap();
        other.put_reader("in memory", &value[..]).unwrap();
        let (open, mut range) = (other.get_reader("flushed").unwrap().unwrap(), other.iter());
        let first = range.next().unwrap().unwrap();
        bed.db().drop_keyspace("other").unwrap();
        assert!(matches!(other.get_reader("flushed"), Err(Error::Closed { .. })));
        assert!(matches!(other.put_reader("more", &value[..]), Err(Error::Closed { .. })));
        assert_eq!(count(&bed), 2, "{placement:?}: they are read");
        assert!(first.value().unwrap() == value && read_all(open) == value, "{placement:?}");
        drop((first, range));
        assert_eq!(count(&bed), 0, "{placement:?}");
    }
}

#[test]
fn damage_is_an_error_that_names_file_and_offset() {
    for placement in [PlacementKind::Inline, PlacementKind::HashKv] {
        for is_flushed in [false, true] {
            let mut bed = Bed::new(placement);
            let value = bytes(1, 1, 2 * CHUNK_BYTES + 100);
            bed.ks().put_reader("key", &value[..]).unwrap();
            bed.ks().put("other", "whole").unwrap();
            if is_flushed {
                bed.db().flush().unwrap();
            }
            let path = only_file(&bed);
            // A bit in the second chunk.
            bed.fs.flip_bit(&path, 8 * (CHUNK_BYTES + 5000));
            bed.reopen();
            let names_it = |error: &Error| {
                let Error::Corruption { path: of, detail } = error else { panic!("{error}") };
                assert!(*of == path && detail.offset > CHUNK_BYTES, "{error}");
            };
            names_it(&bed.ks().get("key").unwrap_err());
            names_it(&bed.ks().iter().next().unwrap().unwrap().value().unwrap_err());
            names_it(&bed.ks().multi_get(["key"]).unwrap_err());
            names_it(&bed.ks().iter().visit(|_, _| std::ops::ControlFlow::Continue(())).unwrap_err());
            let mut reader = bed.ks().get_reader("key").unwrap().unwrap();
            let mut seen = Vec::new();
            let error = reader.read_to_end(&mut seen).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::InvalidData);
            names_it(error.get_ref().unwrap().downcast_ref().unwrap());
            assert!(seen == value[..CHUNK_BYTES as usize], "what comes before the damage, and nothing of it");
            drop(reader);
            let problems = bifold::verify_in(&bed.env(), DB, |_| {}).unwrap().problems;
            assert_eq!(problems.len(), 1, "{problems:?}");
            names_it(&problems[0]);
            names_it(&bed.db().backup("/backups").map(drop).unwrap_err());
            assert_eq!(bed.ks().get("other").unwrap().as_deref(), Some(&b"whole"[..]));
            bed.ks().put("key", "again").unwrap();
            bed.db().compact().unwrap();
            assert_eq!(count(&bed), 0);
        }
    }
}

/// A file that somebody removed, or replaced by another.
#[test]
fn a_file_that_is_not_there_is_an_error_of_its_reads_alone() {
    let mut bed = Bed::new(PlacementKind::Inline);
    bed.ks().put_reader("key", &bytes(1, 1, 2 * LARGE)[..]).unwrap();
    bed.ks().put("other", "whole").unwrap();
    bed.db().flush().unwrap();
    let path = only_file(&bed);
    bed.fs.write_durable(&path, b"bifldlrg is too short");
    bed.reopen();
    let error = bed.ks().get("key").unwrap_err();
    assert!(error.to_string().contains(&path.display().to_string()), "{error}");
    assert!(bed.ks().get_reader("key").is_err());
    assert_eq!(bed.ks().get("other").unwrap().as_deref(), Some(&b"whole"[..]));
    assert_eq!(bifold::verify_in(&bed.env(), DB, |_| {}).unwrap().problems.len(), 1);
}

#[test]
fn salvage_restores_what_is_whole_and_reports_the_rest() {
    for is_flushed in [false, true] {
        let bed = Bed::new(PlacementKind::Inline);
        let values: Vec<Vec<u8>> = (0..3).map(|n| bytes(n, 1, 2 * CHUNK_BYTES + u64::from(n))).collect();
        (0..3).for_each(|n| bed.ks().put_reader(key(n), &values[n as usize][..]).unwrap());
        bed.ks().put_reader(key(2), &values[2][..]).unwrap();
        if is_flushed {
            bed.db().flush().unwrap();
        }
        let fs = bed.fs.fork();
        let files: Vec<u64> = on_disk(&fs, Path::new(DB)).into_keys().collect();
        let path = |at: usize| Path::new(DB).join(bifold_format::names::large(files[at]));
        fs.flip_bit(&path(1), 8 * (CHUNK_BYTES + 5000));
        let salvage = |fs: &bifold_io::memory::MemoryFs, to: &str| {
            let env = bed.env_of(fs);
            let salvage = DatabaseSalvage::open(&env, Path::new(DB), &SalvageOptions::default()).unwrap();
            let db = Db::open_in(env, to, bed.options.clone()).unwrap();
            let report = salvage.restore(&db, |_| {}).unwrap();
            (entries(db.iter()), report)
        };
        let (found, report) = salvage(&fs, "/salvaged");
        let whole = [(key(0), values[0].clone()), (key(2), values[2].clone())];
        assert!(found == whole, "{is_flushed}: {:?}", report);
        assert_eq!(report.keyspaces[0].lost_keys, [key(1).into()], "{report:?}");
        assert!(!report.is_sound());
        // Without a manifest: names and owners are lost, the values are not.
        fs.write_durable(Path::new("/db/MANIFEST"), b"");
        let (_, report) = salvage(&fs, "/salvaged-2");
        let restored: u64 = report.keyspaces.iter().map(|space| space.restored).sum();
        assert_eq!(restored, 2, "{is_flushed}: {report:?}");
        // Without tables and logs nothing names them: each is reported.
        for file in fs.files() {
            if file.extension().is_some_and(|is| is == "tbl" || is == "log") {
                fs.write_durable(&file, b"");
            }
        }
        let (found, report) = salvage(&fs, "/salvaged-3");
        assert!(found.is_empty());
        let named: Vec<_> = report.left_out.iter().filter(|lost| lost.problem.contains("no entry names")).collect();
        assert_eq!(named.len(), files.len(), "{report:?}");
        assert!(named.iter().all(|lost| lost.first.is_some() && lost.bytes > 2 * CHUNK_BYTES), "{report:?}");
    }
}

#[test]
fn what_is_left_of_a_writer_is_deleted_by_the_next_opening() {
    let mut bed = Bed::new(PlacementKind::Inline);
    bed.ks().put_reader("key", &bytes(1, 1, 2 * LARGE)[..]).unwrap();
    bed.db().flush().unwrap();
    // The process is killed while a value is written, and after its file is whole.
    let image = std::cell::RefCell::new(None);
    let source = super::meanwhile::Between::new(3 * CHUNK_BYTES, 2, || *image.borrow_mut() = Some(bed.fs.fork()));
    bed.ks().put_reader("other", source).unwrap();
    let whole = only_file_of(&bed, 1);
    let image = image.into_inner().unwrap();
    assert_eq!(on_disk(&image, Path::new(DB)).len(), 2);
    image.write_durable(&whole, &bed.fs.read(&whole).unwrap());
    std::mem::forget(bed.db.take());
    bed.fs = image;
    bed.reopen();
    assert_eq!(count(&bed), 1);
    assert!(bed.ks().get("other").unwrap().is_none());
    assert!(bed.ks().get("key").unwrap().unwrap() == bytes(1, 1, 2 * LARGE));
    check(&bed.fs, Path::new(DB), Others::None, "after a kill");
}

fn only_file_of(bed: &Bed, at: usize) -> PathBuf {
    let id = *on_disk(&bed.fs, Path::new(DB)).keys().nth(at).unwrap();
    Path::new(DB).join(bifold_format::names::large(id))
}

/// A directory that has lost its manifest keeps its values.
#[test]
fn files_without_a_manifest_are_not_deleted() {
    let mut bed = Bed::new(PlacementKind::Inline);
    bed.ks().put_reader("key", &bytes(1, 1, 2 * LARGE)[..]).unwrap();
    let path = only_file(&bed);
    let fs = bifold_io::memory::MemoryFs::new();
    std::mem::forget(bed.db.take());
    bifold_io::Dir::new(Arc::new(fs.clone()), Path::new(DB)).create_dir().unwrap();
    fs.write_durable(&path, &bed.fs.read(&path).unwrap());
    bed.fs = fs;
    let error = Db::open_in(bed.env(), DB, bed.options.clone()).unwrap_err();
    assert!(error.to_string().contains("the MANIFEST of the database"), "{error}");
    assert_eq!(count(&bed), 1);
}

/// Writes a gibibyte. `cargo test -p bifold --test all large:: -- --ignored`
#[test]
#[ignore = "writes a gibibyte"]
fn the_longest_value_is_taken_and_a_longer_one_is_not() {
    let dir = crate::support::TempDir::new();
    let db = Db::open(dir.join("db")).unwrap();
    let most = bifold::MAX_VALUE_LEN as u64;
    let error = db.put_reader("key", io::repeat(7).take(most + 1)).unwrap_err();
    assert!(error.to_string().contains("longer than the longest value"), "{error}");
    assert!(db.get_reader("key").unwrap().is_none());
    db.put_reader("key", io::repeat(7).take(most)).unwrap();
    let mut reader = db.get_reader("key").unwrap().unwrap();
    assert_eq!(reader.len(), most);
    assert_eq!(io::copy(&mut reader, &mut io::sink()).unwrap(), most);
}
