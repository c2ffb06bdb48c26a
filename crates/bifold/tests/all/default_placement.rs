//! What `placement = auto`, the default, means: `streams` for long values in new keyspaces, and in existing ones the
//! placement that they have.

use bifold::{Compression, Db, KeyspaceOptions, Options, PlacementKind, options::Values};
use bifold_io::memory::MemoryFs;

use crate::support::TempDir;

const FROM: usize = PlacementKind::AUTO_FROM_BYTES as usize;

fn options(keyspace: KeyspaceOptions) -> Options {
    Options { keyspace, ..Options::default() }
}

fn open(fs: &MemoryFs, keyspace: KeyspaceOptions) -> bifold::Result<Db> {
    Db::open_in(bifold::Env { fs: std::sync::Arc::new(fs.clone()), ..bifold::Env::system() }, "/db", options(keyspace))
}

/// The placement of a keyspace and the length from which it separates values.
fn chosen(options: &KeyspaceOptions) -> (PlacementKind, Option<u64>) {
    (options.placement, options.values.separate_from_bytes)
}

/// Bytes of value files that `put` adds.
fn separated(db: &Db, put: impl FnOnce()) -> u64 {
    let before = db.stats().space.values_bytes;
    put();
    db.stats().space.values_bytes - before
}

#[test]
fn long_values_are_separated_and_short_ones_are_not() {
    let dir = TempDir::new();
    let db = Db::open(dir.join("db")).unwrap();
    assert_eq!(chosen(&db.default_keyspace().options()), (PlacementKind::Streams, Some(FROM as u64)));
    for (len, is_separated) in [(0, false), (1000, false), (FROM - 1, false), (FROM, true), (10 * FROM, true)] {
        let added = separated(&db, || db.put(len.to_be_bytes(), vec![1; len]).unwrap());
        assert_eq!(added >= len as u64 && added > 0, is_separated, "{len}: {added}");
    }
    // Longer and shorter values replace each other.
    db.put(FROM.to_be_bytes(), b"short").unwrap();
    db.put(1000_usize.to_be_bytes(), vec![2; FROM]).unwrap();
    db.flush().unwrap();
    db.compact().unwrap();
    assert_eq!(db.get(FROM.to_be_bytes()).unwrap().as_deref(), Some(&b"short"[..]));
    assert_eq!(db.get(1000_usize.to_be_bytes()).unwrap().as_deref(), Some(&vec![2; FROM][..]));
    let stats = &db.stats().keyspaces[0];
    assert_eq!(stats.placement, "streams");
}

#[test]
fn other_options_leave_the_choice_alone() {
    let fs = MemoryFs::new();
    let given = KeyspaceOptions { compression: Compression::Lz4, ..KeyspaceOptions::default() };
    let wanted = (PlacementKind::Streams, Some(FROM as u64));
    // The second time the keyspace is there.
    for round in 0..2 {
        let db = open(&fs, given.clone()).unwrap();
        let options = db.default_keyspace().options();
        assert_eq!((chosen(&options), options.compression), (wanted, Compression::Lz4), "{round}");
        db.close().unwrap();
    }
    let values = Values { separate_from_bytes: Some(1000), ..Values::default() };
    let db = open(&fs, KeyspaceOptions { values, ..given.clone() }).unwrap();
    assert_eq!(chosen(&db.default_keyspace().options()), (PlacementKind::Streams, Some(1000)));
    db.default_keyspace().set_options(given).unwrap();
    assert_eq!(chosen(&db.default_keyspace().options()), (PlacementKind::Streams, Some(1000)), "unset: as it was");
}

#[test]
fn a_placement_that_was_chosen_separates_from_192_bytes() {
    let dir = TempDir::new();
    let db = Db::open(dir.join("db")).unwrap();
    for placement in PlacementKind::ALL {
        let given = KeyspaceOptions::default().with_placement(placement);
        let keyspace = db.keyspace(placement.name(), given).unwrap();
        assert_eq!(chosen(&keyspace.options()), (placement, Some(192)));
    }
}

/// As databases that were created before `auto` was the default.
#[test]
fn a_keyspace_keeps_the_placement_it_has() {
    for had in PlacementKind::ALL {
        let fs = MemoryFs::new();
        let created = KeyspaceOptions::default().with_placement(had);
        open(&fs, created.clone()).unwrap().close().unwrap();
        open(&fs, KeyspaceOptions::default()).unwrap().close().unwrap();
        let tree = KeyspaceOptions { placement: PlacementKind::Auto, ..created };
        let db = open(&fs, KeyspaceOptions { compression: Compression::Lz4, ..tree }).unwrap();
        let options = db.default_keyspace().options();
        assert_eq!((chosen(&options), options.compression), ((had, Some(192)), Compression::Lz4));
        db.close().unwrap();
    }
    let fs = MemoryFs::new();
    open(&fs, KeyspaceOptions::default()).unwrap().close().unwrap();
    let refused = open(&fs, KeyspaceOptions::default().with_placement(PlacementKind::Inline)).unwrap_err();
    assert!(refused.to_string().contains("has placement `streams`"), "{refused}");
}

/// Options are checked as those of the placement that the keyspace has.
#[test]
fn what_that_placement_cannot_have_is_refused() {
    let fs = MemoryFs::new();
    let db = open(&fs, KeyspaceOptions::default().with_placement(PlacementKind::NovKv)).unwrap();
    let values = Values { file_bytes: 2 << 30, ..Values::default() };
    let given = KeyspaceOptions { values, ..KeyspaceOptions::default() };
    let refused = db.default_keyspace().set_options(given.clone()).unwrap_err();
    assert!(refused.to_string().contains("file_bytes"), "{refused}");
    db.close().unwrap();
    assert!(open(&fs, given).unwrap_err().to_string().contains("file_bytes"));
}

#[test]
fn another_placement_has_its_own_length_unless_one_was_chosen() {
    let with = |separate_from_bytes| KeyspaceOptions {
        values: Values { separate_from_bytes, ..Values::default() },
        placement: PlacementKind::Streams,
        ..KeyspaceOptions::default()
    };
    let after = |options: KeyspaceOptions, placement| options.with_placement(placement).values.separate_from_bytes;
    assert_eq!(after(with(Some(FROM as u64)), PlacementKind::HashKv), None);
    assert_eq!(after(with(Some(192)), PlacementKind::Auto), None);
    assert_eq!(after(with(Some(64)), PlacementKind::Auto), Some(64));
    assert_eq!(after(with(Some(FROM as u64)), PlacementKind::Streams), Some(FROM as u64), "it has that one");
    for placement in [PlacementKind::HashKv, PlacementKind::Auto] {
        let given = KeyspaceOptions { placement, ..with(Some(FROM as u64)) };
        assert_eq!(after(given, PlacementKind::WiscKey), Some(FROM as u64), "not a default of {placement:?}");
    }
}

/// One thread opens the keyspace with options that leave the length open, while another changes it.
#[test]
fn a_length_that_is_left_open_undoes_no_change_of_another_thread() {
    let db = open(&MemoryFs::new(), KeyspaceOptions::default()).unwrap();
    let (keyspace, is_done) = (db.default_keyspace(), std::sync::atomic::AtomicBool::new(false));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for compression in [Compression::Lz4, Compression::None].iter().cycle() {
                // Default options would change nothing.
                let compression = *compression;
                let given = KeyspaceOptions { compression, restart_interval: 8, ..KeyspaceOptions::default() };
                db.keyspace("default", given).unwrap();
                if is_done.load(std::sync::atomic::Ordering::Relaxed) {
                    break;
                }
            }
        });
        let mut undone = None;
        for len in 1..3000 {
            let mut options = keyspace.options();
            options.values.separate_from_bytes = Some(len);
            keyspace.set_options(options).unwrap();
            std::thread::yield_now();
            undone = undone.or((chosen(&keyspace.options()).1 != Some(len)).then_some(len));
        }
        is_done.store(true, std::sync::atomic::Ordering::Relaxed);
        assert_eq!(undone, None);
    });
}
