//! What salvage believes: manifests that are older than logs, names, operations that tables had, and reads that fail
//! later.

use std::sync::atomic::{AtomicU64, Ordering::SeqCst};

use bifold::{Db, Options, RetainChanges};
use bifold_contract::KeyspaceEdit;
use bifold_io::faulty::{FaultKind, FaultyFs};

use super::*;

const MANIFEST: &str = "/db/MANIFEST";

/// A bed whose logs are kept for the change feed.
fn with_logs() -> Bed {
    Bed::of(Options {
        retain_changes: Some(RetainChanges { bytes: u64::MAX, age: None }),
        ..small(PlacementKind::Inline)
    })
}

/// The offsets of the manifest's records, and whether each drops a keyspace.
fn records(fs: &MemoryFs) -> Vec<(usize, bool)> {
    let bytes = fs.read(Path::new(MANIFEST)).unwrap();
    let drops = |edit: &KeyspaceEdit| matches!(edit, KeyspaceEdit::Dropped { .. });
    let records = ManifestReader::new(&bytes).unwrap().map(|record| record.unwrap());
    records.map(|record| (record.offset as usize, record.edit.keyspaces.iter().any(drops))).collect()
}

/// What a database leaves whose manifest has lost its last record. Opening refuses it.
fn without_last_edit(bed: &Bed) -> MemoryFs {
    let fs = bed.fs.fork();
    let mut bytes = fs.read(Path::new(MANIFEST)).unwrap();
    bytes.truncate(records(&fs).last().unwrap().0);
    fs.write_durable(Path::new(MANIFEST), &bytes);
    let opened = Db::open_in(bed.env_of(&fs.fork()), "/db", bed.options.clone());
    assert!(opened.unwrap_err().to_string().contains("older"));
    fs
}

fn newest_table(fs: &MemoryFs) -> PathBuf {
    files(fs).into_iter().rfind(|path| path.extension().is_some_and(|e| e == "tbl")).unwrap()
}

#[test]
fn a_manifest_that_lacks_an_ingest_is_not_believed() {
    let bed = Bed::new(PlacementKind::Inline);
    bed.ks().put(key(1), "before").unwrap();
    let mut ingest = bed.ks().ingest().unwrap();
    (100..120).for_each(|n| ingest.put(key(n), "ingested").unwrap());
    ingest.finish().unwrap();
    bed.ks().put(key(2), "behind").unwrap();
    let found = salvaged(&bed, &without_last_edit(&bed), 1 << 20);
    assert!(!found.report.manifest_is_whole && !found.report.is_sound());
    assert!(found.report.left_out[0].problem.contains("ingest"), "{:?}", found.report);
    let ingested: Model = (100..120).map(|n| (key(n), b"ingested".to_vec())).collect();
    assert!(found.spaces.values().any(|space| *space == ingested), "{:?}", found.spaces.keys());
    assert_eq!(found.spaces["default"].keys().collect::<Vec<_>>(), [&key(1), &key(2)]);
}

/// An announcement without an ingest behind it, because a crash came between: opening uses its numbers again.
#[test]
fn an_ingest_that_never_arrived_is_no_reason_to_doubt_a_manifest() {
    let bed = Bed::new(PlacementKind::Inline);
    bed.ks().put(key(1), "before").unwrap();
    let mut ingest = bed.ks().ingest().unwrap();
    ingest.put(key(2), "ingested").unwrap();
    ingest.finish().unwrap();
    let fs = bed.fs.fork();
    let mut bytes = fs.read(Path::new(MANIFEST)).unwrap();
    bytes.truncate(records(&fs).last().unwrap().0);
    fs.write_durable(Path::new(MANIFEST), &bytes);
    let again = Db::open_in(bed.env_of(&fs), "/db", bed.options.clone()).unwrap();
    assert_eq!(again.get(key(2)).unwrap(), None);
    again.put(key(3), "behind").unwrap();
    let found = salvaged(&bed, &fs.fork(), 1 << 20);
    assert!(found.report.manifest_is_whole && found.report.is_sound(), "{:?}", found.report);
    assert_eq!(found.spaces["default"].keys().collect::<Vec<_>>(), [&key(1), &key(3)]);
}

#[test]
fn a_manifest_older_than_the_floor_that_logs_note_is_not_believed() {
    let bed = with_logs();
    bed.ks().put(key(1), "flushed").unwrap();
    bed.db().flush().unwrap();
    bed.ks().put(key(2), "behind").unwrap();
    bed.db().sync().unwrap();
    let found = salvaged(&bed, &without_last_edit(&bed), 1 << 20);
    assert!(!found.report.manifest_is_whole && !found.report.is_sound());
    assert!(found.report.left_out[0].problem.contains("first log needed"), "{:?}", found.report);
}

/// A keyspace that was dropped and made again, where the record of the drop is lost.
#[test]
fn two_keyspaces_of_one_name_are_not_made_one() {
    let bed = Bed::new(PlacementKind::Inline);
    bed.ks().put(key(1), "not flushed").unwrap();
    let users = || bed.db().keyspace("users", small(PlacementKind::Inline).keyspace).unwrap();
    users().put("old", "of the dropped one").unwrap();
    bed.db().drop_keyspace("users").unwrap();
    users().put("new", "of the new one").unwrap();
    let fs = bed.fs.fork();
    let records = records(&fs);
    let dropped = records.iter().position(|(_, drops)| *drops).unwrap();
    let middle = usize::midpoint(records[dropped].0, records[dropped + 1].0);
    fs.flip_bit(Path::new(MANIFEST), 8 * middle as u64);
    let found = salvaged(&bed, &fs, 1 << 20);
    assert_eq!(found.spaces["users"].keys().collect::<Vec<_>>(), [b"new"]);
    let old = found.report.keyspaces.iter().find(|space| space.name.starts_with("users-")).unwrap();
    assert_eq!(old.name, format!("users-{}", old.id.unwrap()));
    assert_eq!(found.spaces[&old.name].keys().collect::<Vec<_>>(), [b"old"]);
    // The caller's names count more than those of the manifest.
    let named = |names: &[(u32, &str)]| {
        let names = names.iter().map(|(id, name)| (*id, (*name).to_owned())).collect();
        let options = SalvageOptions { names, ..SalvageOptions::default() };
        DatabaseSalvage::open(&bed.env_of(&fs), Path::new("/db"), &options)
    };
    let report = named(&[(old.id.unwrap(), "former users")]).unwrap().inspect(|_| ()).unwrap();
    let names: Vec<_> = report.keyspaces.iter().map(|space| space.name.as_str()).collect();
    assert!(names.contains(&"former users") && names.contains(&"users") && names.len() == 3, "{names:?}");
    assert!(matches!(named(&[(7, "u"), (9, "u")]), Err(Error::InvalidArgument { .. })));
}

/// A kept log has a put that an ingest overwrote. The log has only the ingest's numbers, and what was ingested has
/// expired.
#[test]
fn a_flushed_operation_is_not_asked_for_a_key_of_which_nothing_is_lost() {
    let mut bed = with_logs();
    bed.ks().put("k", "old").unwrap();
    bed.db().flush().unwrap();
    let mut ingest = bed.ks().ingest().unwrap();
    ingest.put_with_ttl("k", "new", Duration::from_secs(1)).unwrap();
    ingest.finish().unwrap();
    bed.set_time(1_000_100);
    bed.db().compact().unwrap();
    assert_eq!(bed.ks().get("k").unwrap(), None);
    bed.ks().put("zz", "another").unwrap();
    bed.db().flush().unwrap();
    bed.db.take().unwrap().close().unwrap();
    let fs = bed.fs.fork();
    fs.flip_bit(&newest_table(&fs), 8 * 3);
    let found = salvaged(&bed, &fs, 1 << 20);
    assert!(found.report.manifest_is_whole && !found.report.is_sound(), "{:?}", found.report);
    // What the table had is asked: the kept log has it.
    assert_eq!(found.spaces["default"].keys().collect::<Vec<_>>(), [b"zz"], "{:?}", found.report);
}

#[test]
fn a_large_value_that_only_the_feed_needs_is_not_reported_as_lost() {
    let mut bed = with_logs();
    let other = bed.db().keyspace("other", small(PlacementKind::Inline).keyspace).unwrap();
    for byte in [1u8, 2] {
        bed.ks().put_reader("k", &vec![byte; 100_000][..]).unwrap();
    }
    bed.db().flush().unwrap();
    bed.db().compact().unwrap();
    other.put("k", "v").unwrap();
    bed.db().flush().unwrap();
    drop(other);
    bed.db.take().unwrap().close().unwrap();
    let fs = bed.fs.fork();
    let large = fs.files().into_iter().filter(|path| path.extension().is_some_and(|e| e == "large")).count();
    assert_eq!(large, 2, "the first one is kept");
    fs.flip_bit(&newest_table(&fs), 8 * 3);
    let found = salvaged(&bed, &fs, 1 << 20);
    assert!(!found.report.is_sound());
    let of_large: Vec<_> = found.report.left_out.iter().filter(|lost| lost.problem.contains("large value")).collect();
    assert!(of_large.is_empty(), "{of_large:?}");
    assert_eq!(found.spaces["default"][&b"k"[..]], vec![2; 100_000]);
}

/// A device that becomes worse between the first walk and the last.
#[test]
fn what_can_be_read_once_and_not_again_is_reported() {
    // Logs are also asked what they say of the manifest.
    for (extension, walks) in [("tbl", 2), ("log", 3)] {
        let mut bed = Bed::new(PlacementKind::Inline);
        bed.ks().put("k", "old").unwrap();
        bed.db().flush().unwrap();
        bed.ks().put("k", "new").unwrap();
        if extension == "tbl" {
            bed.db().flush().unwrap();
        }
        bed.db.take().unwrap().close().unwrap();
        let path = bed.fs.files().into_iter().rfind(|path| path.extension().is_some_and(|e| e == extension)).unwrap();
        let faulty = FaultyFs::over_memory(bed.fs.clone());
        let env = Env { fs: Arc::new(faulty.clone()), ..bed.env() };
        let open = || DatabaseSalvage::open(&env, Path::new("/db"), &SalvageOptions::default()).unwrap();
        let reads = Arc::new(AtomicU64::new(0));
        let fail_from = |nth: u64| {
            let (reads, worse) = (Arc::clone(&reads), path.clone());
            reads.store(0, SeqCst);
            faulty.decide_by(Box::new(move |call| {
                let is_one = call.op == "read" && call.path == worse;
                (is_one && reads.fetch_add(1, SeqCst) >= nth).then_some(FaultKind::EIO)
            }));
        };
        fail_from(u64::MAX);
        assert!(open().inspect(|_| ()).unwrap().is_sound());
        let all = reads.load(SeqCst);
        assert!(all >= walks && all.is_multiple_of(walks), "{all} reads");
        fail_from(all - all / walks);
        let to = Bed::of(small(PlacementKind::Inline));
        let report = open().restore(to.db(), |_| ()).unwrap();
        assert!(report.left_out.iter().any(|lost| lost.file == path) && !report.is_sound(), "{report:?}");
        let [space] = &report.keyspaces[..] else { panic!("{report:?}") };
        assert_eq!((space.restored, space.may_be_older), (1, 1), "{report:?}");
        assert_eq!(to.ks().get("k").unwrap().as_deref(), Some(&b"old"[..]));
    }
}
