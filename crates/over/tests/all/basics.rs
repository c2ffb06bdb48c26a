//! What a store does without crashes, and what it refuses.

use std::{
    ops::{Bound, ControlFlow},
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
};

use bifold_io::memory::{Fate, MemoryFs};
use bifold_over::{Batch, Error, Options, Placement, Store, Workers};

use crate::{
    memory_index::{Kept, MemoryIndex},
    program::{DIR, Model, Program, Shared, assert_same, contents, env, no_orphans, small},
};

type Opened = bifold_over::Result<Store<MemoryIndex>>;

pub fn open(fs: &MemoryFs, index: &MemoryIndex, options: Options) -> Opened {
    Store::open_in(&env(Arc::new(fs.clone())), DIR, index.clone(), options)
}

/// Options under which no work is due unless a test asks for it.
pub fn calm(placement: Placement) -> Options {
    Options { placement, workers: Workers::Caller, ..Options::default() }
}

/// All files with their bytes, without those that say who has a directory locked.
fn contents_of_files(fs: &MemoryFs) -> Vec<(PathBuf, Option<Vec<u8>>)> {
    let files = fs.files().into_iter().filter(|path| !path.ends_with("LOCK"));
    files.map(|path| (path.clone(), fs.read(&path))).collect()
}

const BOTH: [Placement; 2] = [Placement::HashKv, Placement::WiscKey];

#[test]
fn programs_agree_with_the_model_through_reopenings() {
    for placement in BOTH {
        for seed in 100..130 {
            let (fs, index, model) = (MemoryFs::new(), MemoryIndex::default(), Shared::new(Model::new()));
            let mut program = Program::new(seed, model);
            for session in 0..3 {
                let store = open(&fs, &index, small(placement, seed)).unwrap();
                program.run(&store, 80).unwrap();
                if session == 1 { drop(store.close().unwrap()) } else { drop(store) }
            }
            let store = open(&fs, &index, small(placement, seed)).unwrap();
            let same = |what: &str| {
                let what = format!("{placement:?}, seed {seed}, {what}");
                assert_same(&contents(&store).unwrap(), program.model.hold().now(), &what);
            };
            same("opened again");
            store.gc().unwrap();
            same("after GC");
            no_orphans(&fs, &store);
        }
    }
}

#[test]
fn ranges_have_the_keys_between_their_bounds_from_layers_and_index() {
    let (fs, index) = (MemoryFs::new(), MemoryIndex::default());
    let store = open(&fs, &index, calm(Placement::HashKv)).unwrap();
    let keys: [&[u8]; 6] = [b"\0", b"\0\0", b"\x01", b"a", b"b", b"c"];
    for (at, key) in keys.iter().enumerate() {
        store.put(key, &vec![at as u8; 300]).unwrap();
        if at % 2 == 0 {
            store.checkpoint().unwrap();
        }
    }
    let scan = |start: Bound<&'static [u8]>, end: Bound<&'static [u8]>| {
        let mut found: Vec<Vec<u8>> = Vec::new();
        let see = |key: &[u8], value: &bifold_over::Value| {
            assert_eq!(value.len(), 300);
            found.push(key.to_vec());
            ControlFlow::Continue(())
        };
        store.scan::<&[u8]>((start, end), see).unwrap();
        found
    };
    use Bound::{Excluded, Included, Unbounded};
    assert_eq!(scan(Unbounded, Unbounded), keys);
    assert_eq!(scan(Included(b""), Unbounded), keys);
    assert_eq!(scan(Excluded(b"\0"), Excluded(b"b")), &keys[1..4]);
    assert_eq!(scan(Included(b"\0"), Included(b"b")), &keys[..5]);
    assert_eq!(scan(Included(b"a"), Unbounded), &keys[3..]);
    for (start, end) in [(&b"b"[..], &b"a"[..]), (b"b", b"b"), (b"a", b"")] {
        assert!(scan(Included(start), Excluded(end)).is_empty(), "{start:?} to {end:?}");
    }
    assert!(scan(Unbounded, Excluded(b"")).is_empty());
    let mut seen = 0;
    let stop = |_: &[u8], _: &bifold_over::Value| {
        seen += 1;
        ControlFlow::Break(())
    };
    store.scan::<&[u8]>(.., stop).unwrap();
    assert_eq!(seen, 1);
}

#[test]
fn a_deleted_key_leaves_the_index_and_only_short_values_are_in_it() {
    let (fs, index) = (MemoryFs::new(), MemoryIndex::default());
    let store = open(&fs, &index, calm(Placement::HashKv)).unwrap();
    store.put(b"long", &[1; 5000]).unwrap();
    store.put(b"short", &[2; 10]).unwrap();
    store.put(b"deleted", &[3; 5000]).unwrap();
    store.checkpoint().unwrap();
    store.delete(b"deleted").unwrap();
    store.checkpoint().unwrap();
    assert_eq!(index.keys(), [&b"\0\0"[..], b"long", b"short"]);
    let stats = store.stats();
    assert!(stats.index_bytes < 500, "{stats:?}");
    assert!(stats.value_bytes > 10_000 && stats.checkpoints == 2);
}

/// Regression: where callers do the work, only full layers and values made it due, so logs had no bound.
#[test]
fn deletes_of_one_key_fill_no_layer_and_logs_have_a_bound() {
    let (fs, index) = (MemoryFs::new(), MemoryIndex::default());
    let options = Options { log_bytes: 4 << 10, ..calm(Placement::HashKv) };
    let store = open(&fs, &index, options).unwrap();
    store.put(b"kept", b"short").unwrap();
    for _ in 0..2000 {
        store.delete(b"key").unwrap();
    }
    let stats = store.stats();
    assert!(stats.log_bytes < 16 << 10 && stats.checkpoints > 4, "{stats:?}");
    no_orphans(&fs, &store);
    assert_eq!(index.keys(), [&b"\0\0"[..], b"kept"]);
}

#[test]
fn arguments_out_of_bounds_are_errors_that_name_them() {
    let (fs, index) = (MemoryFs::new(), MemoryIndex::default());
    let text = |outcome: bifold_over::Result<()>| outcome.unwrap_err().to_string();
    let options = Options { layer_bytes: 1, ..calm(Placement::HashKv) };
    assert!(text(open(&fs, &index, options).map(drop)).contains("layer_bytes"));
    let store = open(&fs, &index, calm(Placement::HashKv)).unwrap();
    assert!(text(store.put(b"", b"value")).contains("at least one byte"));
    assert!(text(store.delete(&[7; 65_534])).contains("65533"));
    store.put(&[0; 65_533], b"value").unwrap();
    assert!(store.get(&[]).is_err());
    assert_eq!(store.get(&[0; 65_533]).unwrap().unwrap(), b"value");
    store.write(&Batch::new()).unwrap();
    assert!(matches!(open(&fs, &index, calm(Placement::HashKv)), Err(Error::Locked { .. })));
}

/// One of the two was replaced, or restored alone.
#[test]
fn files_and_an_index_that_do_not_belong_together_are_refused() {
    let (fs, index) = (MemoryFs::new(), MemoryIndex::default());
    let options = calm(Placement::HashKv);
    let store = open(&fs, &index, options).unwrap();
    store.put(b"a", &[1; 500]).unwrap();
    store.checkpoint().unwrap();
    let (old_fs, old_index) = (fs.fork(), index.fork());
    store.put(b"b", &[2; 500]).unwrap();
    store.close().unwrap();
    let refused = |fs: &MemoryFs, index: &MemoryIndex, options, with: &str| {
        let (opened, its_index) = (fs.fork(), index.fork());
        let error = open(&opened, &its_index, options).map(drop).unwrap_err().to_string();
        assert!(error.contains(with), "{error}");
        assert!(contents_of_files(&opened) == contents_of_files(fs), "files were changed: {with}");
        assert_eq!(its_index.keys(), index.keys(), "{with}");
    };
    refused(&fs, &MemoryIndex::default(), options, "was emptied");
    refused(&fs, &old_index, options, "older than the value files");
    refused(&old_fs, &index, options, "commits up to 2");
    refused(&fs, &index, calm(Placement::WiscKey), "open it with `hashkv`");
    let other = MemoryFs::new();
    let others = MemoryIndex::default();
    let path = "/elsewhere";
    let store = Store::open_in(&env(Arc::new(other.clone())), path, others.clone(), options).unwrap();
    store.put(b"a", b"another store's").unwrap();
    store.close().unwrap();
    refused(&fs, &others, options, "another store");
    refused(&MemoryFs::new(), &others, options, "another store");
    let strange = MemoryIndex::default();
    strange.put_strange(b"key", b"value");
    refused(&MemoryFs::new(), &strange, options, "empty index");
    drop(open(&fs, &index, options).unwrap());
}

/// Bifold's engine would take the keys that it does not find for deleted, and their values for garbage.
#[test]
fn bifold_refuses_the_directory_of_a_store_and_a_store_that_of_bifold() {
    let (fs, index) = (MemoryFs::new(), MemoryIndex::default());
    let store = open(&fs, &index, calm(Placement::HashKv)).unwrap();
    store.put(b"a", &[1; 500]).unwrap();
    store.close().unwrap();
    let before = contents_of_files(&fs);
    let env = env(Arc::new(fs.clone()));
    let error = bifold::Db::open_in(env.clone(), DIR, bifold::Options::default()).map(drop).unwrap_err();
    assert!(error.to_string().contains("keys_are_in"), "{error}");
    assert!(contents_of_files(&fs) == before, "Bifold changed files of the store");
    assert_eq!(open(&fs, &index, calm(Placement::HashKv)).unwrap().get(b"a").unwrap().unwrap(), [1; 500]);
    let path = "/bifold";
    bifold::Db::open_in(env.clone(), path, bifold::Options::default()).unwrap().close().unwrap();
    let error = Store::open_in(&env, path, MemoryIndex::default(), calm(Placement::HashKv)).map(drop).unwrap_err();
    assert!(error.to_string().contains("open it with Bifold"), "{error}");
}

#[test]
fn what_is_strange_in_the_index_is_an_error_and_no_panic() {
    let (fs, index) = (MemoryFs::new(), MemoryIndex::default());
    let store = open(&fs, &index, calm(Placement::HashKv)).unwrap();
    store.put(b"a", &[1; 500]).unwrap();
    store.checkpoint().unwrap();
    index.put_strange(b"strange", b"\x09value");
    index.put_strange(b"leads nowhere", &[1, 9, 0, 0, 9]);
    assert!(store.get(b"strange").unwrap_err().is_corruption());
    assert!(store.get(b"leads nowhere").unwrap_err().to_string().contains("000009.val"));
    assert!(contents(&store).unwrap_err().is_corruption());
    assert_eq!(store.get(b"a").unwrap().unwrap().len(), 500);
}

#[test]
fn values_without_their_manifest_are_refused_and_so_is_a_missing_log() {
    let (fs, index) = (MemoryFs::new(), MemoryIndex::default());
    let options = calm(Placement::HashKv);
    let store = open(&fs, &index, options).unwrap();
    store.put(b"a", &[1; 500]).unwrap();
    store.sync().unwrap();
    drop(store);
    let without = |end: &str| {
        let copy = MemoryFs::new();
        bifold_io::FileSystem::create_dir_all(&copy, Path::new(DIR)).unwrap();
        for path in fs.files().into_iter().filter(|path| !path.to_string_lossy().ends_with(end)) {
            copy.write_durable(&path, &fs.read(&path).unwrap());
        }
        open(&copy, &index.fork(), options).map(drop).unwrap_err().to_string()
    };
    assert!(without("MANIFEST").contains("the MANIFEST of the store"));
    assert!(without(".log").contains("which MANIFEST says is needed"));
    assert!(without(".val").contains("no whole record"), "{}", without(".val"));
}

/// The index loses everything that it was not asked to sync, and the logs bring it back.
#[test]
fn what_the_index_has_lost_is_replayed() {
    for placement in BOTH {
        let (fs, index) = (MemoryFs::new(), MemoryIndex::default());
        let options = Options { layer_bytes: 1 << 10, ..calm(placement) };
        let store = open(&fs, &index, options).unwrap();
        for round in 0..40_u8 {
            store.put(&[b'k', round % 20], &[round; 400]).unwrap();
            store.wait_idle().unwrap();
        }
        store.delete(b"k\x03").unwrap();
        store.sync().unwrap();
        let before = contents(&store).unwrap();
        assert!(index.keys().len() > 10 && store.stats().checkpoints == 0);
        let (fs, index) = (fs.power_loss(Fate::DropUnsynced), index.power_loss(Kept::Nothing));
        assert!(index.keys().is_empty());
        drop(store);
        let store = open(&fs, &index, options).unwrap();
        assert_same(&contents(&store).unwrap(), &before, "replayed");
        assert_eq!(index.keys().len(), 20);
    }
}

/// GC of `wisckey` has asked the index and copied the value. Then the key is overwritten.
#[test]
fn a_key_that_is_overwritten_while_its_value_moves_keeps_its_new_value() {
    let (fs, index) = (MemoryFs::new(), MemoryIndex::default());
    let options = calm(Placement::WiscKey);
    let store = open(&fs, &index, options).unwrap();
    (0..10_u8).for_each(|key| store.put(&[b'k', key], &[key; 400]).unwrap());
    store.close().unwrap();
    let store = Arc::new(open(&fs, &index, options).unwrap());
    let (writer, is_first) = (Arc::downgrade(&store), AtomicBool::new(true));
    index.set_get_hook(Some(Arc::new(move |_| {
        if is_first.swap(false, Relaxed)
            && let Some(store) = writer.upgrade()
        {
            // The index is about to show the old address, which the copy is then made from.
            store.put(b"k\0", b"new, and short").unwrap();
            store.put(b"k\x01", &[99; 500]).unwrap();
        }
    })));
    store.gc().unwrap();
    index.set_get_hook(None);
    assert_eq!(store.get(b"k\0").unwrap().unwrap(), b"new, and short");
    assert_eq!(store.get(b"k\x01").unwrap().unwrap(), [99; 500]);
    assert!(store.stats().gc_moves >= 8, "{:?}", store.stats());
}

#[test]
fn hashkv_collects_without_asking_the_index() {
    let (fs, index) = (MemoryFs::new(), MemoryIndex::default());
    let store = open(&fs, &index, calm(Placement::HashKv)).unwrap();
    for round in 0..5_u8 {
        (0..50_u8).for_each(|key| store.put(&[b'k', key], &[round; 400]).unwrap());
    }
    store.checkpoint().unwrap();
    let gets = Arc::new(AtomicBool::new(false));
    let seen = Arc::clone(&gets);
    index.set_get_hook(Some(Arc::new(move |_| seen.store(true, Relaxed))));
    store.gc().unwrap();
    index.set_get_hook(None);
    let stats = store.stats();
    assert!(!gets.load(Relaxed) && stats.gc_lookups == 0 && stats.gc_moves == 50, "{stats:?}");
    assert!(stats.value_bytes < 2 * 50 * 450, "{stats:?}");
    assert!((0..50_u8).all(|key| store.get(&[b'k', key]).unwrap().unwrap() == [4; 400]));
}
