//! Other engines as indexes, on the real file system: what a killed process leaves is copied between operations, while
//! the store is open, and opened. So is what is there after a store was dropped without closing it.

use std::{
    fs,
    path::{Path, PathBuf},
    sync::atomic::{AtomicU64, Ordering::Relaxed},
};

use bifold_over::{ForeignIndex, Options, Placement, Store, Workers};

use crate::program::{Model, Program, Shared, assert_same, contents, small};

/// A directory that is removed in the end.
struct Scratch(PathBuf);

impl Scratch {
    fn new() -> Self {
        static COUNT: AtomicU64 = AtomicU64::new(0);
        let name = format!("bifold-over-{}-{}", std::process::id(), COUNT.fetch_add(1, Relaxed));
        // In memory, where there is such a place: syncs of a disk would take most of the time.
        let memory = Path::new("/dev/shm");
        let path = if memory.is_dir() { memory.join(name) } else { std::env::temp_dir().join(name) };
        fs::create_dir_all(&path).unwrap();
        Self(path)
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        // What is left over does not matter.
        let _removed = fs::remove_dir_all(&self.0);
    }
}

fn copy(from: &Path, to: &Path) {
    fs::create_dir_all(to).unwrap();
    for entry in fs::read_dir(from).unwrap().map(Result::unwrap) {
        let target = to.join(entry.file_name());
        match entry.file_type().unwrap().is_dir() {
            true => copy(&entry.path(), &target),
            // The index's own threads may have removed it meanwhile.
            false => drop(fs::copy(entry.path(), target)),
        }
    }
}

/// A copy of a directory in which nobody has written meanwhile. The worker may be at work even after its work has been
/// waited for, and a copy taken meanwhile would be of no one moment.
fn copy_of_one_moment<I: ForeignIndex>(store: &Store<I>, dir: &Path, to: &Path) {
    loop {
        store.wait_idle().unwrap();
        let before = store.stats().written;
        copy(dir, to);
        if store.stats().written == before {
            return;
        }
        fs::remove_dir_all(to).unwrap();
    }
}

fn open<I: ForeignIndex>(dir: &Path, index: &dyn Fn(&Path) -> I, options: Options) -> Store<I> {
    Store::open(dir.join("values"), index(&dir.join("keys")), options).unwrap()
}

fn kills<I: ForeignIndex>(index: &dyn Fn(&Path) -> I, (sessions, steps): (u64, usize)) {
    for placement in [Placement::HashKv, Placement::WiscKey] {
        let scratch = Scratch::new();
        let dir = scratch.0.join("store");
        let model = Shared::new(Model::new());
        let mut program = Program::new(7, model.clone());
        for session in 0..sessions {
            let workers = if session % 2 == 0 { Workers::Thread } else { Workers::Caller };
            let options = Options { workers, ..small(placement, session) };
            let store = open(&dir, index, options);
            assert_same(&contents(&store).unwrap(), model.hold().now(), "opened after the last session");
            for part in 0..3 {
                program.run(&store, steps).unwrap();
                let to = scratch.0.join(format!("copy {session} {part}"));
                copy_of_one_moment(&store, &dir, &to);
                let copied = open(&to, index, options);
                let what = format!("{placement:?}, session {session}, part {part}");
                assert_same(&contents(&copied).unwrap(), model.hold().now(), &what);
                copied.gc().unwrap();
                assert_same(&contents(&copied).unwrap(), model.hold().now(), &what);
                drop(copied);
                fs::remove_dir_all(to).unwrap();
            }
            if session % 3 == 2 { drop(store.close().unwrap()) } else { drop(store) }
        }
    }
}

#[cfg(feature = "fjall")]
mod with_fjall {
    use bifold_over::adapters::fjall::FjallIndex;
    use fjall::{Database, KeyspaceCreateOptions};

    use super::*;

    fn index(path: &Path) -> FjallIndex {
        let db = Database::builder(path).worker_threads(1).open().unwrap();
        let keyspace = db.keyspace("default", KeyspaceCreateOptions::default).unwrap();
        FjallIndex::new(db, keyspace)
    }

    #[test]
    fn a_killed_process_leaves_what_opens_with_every_commit_over_fjall() {
        kills(&index, (4, 40));
    }

    /// fjall's files as of its last sync, with value files that are newer: all that came later is in the logs.
    #[test]
    fn what_fjall_has_lost_since_its_last_sync_is_replayed() {
        for placement in [Placement::HashKv, Placement::WiscKey] {
            let scratch = Scratch::new();
            let dir = scratch.0.join("store");
            let options = Options { workers: Workers::Caller, log_bytes: 1 << 30, ..small(placement, 3) };
            let mut program = Program::without_checkpoints(11, Shared::new(Model::new()));
            let store = open(&dir, &index, options);
            program.run(&store, 100).unwrap();
            store.checkpoint().unwrap();
            let lost = scratch.0.join("lost");
            copy(&dir.join("keys"), &lost.join("keys"));
            let before = store.stats().index_changes;
            program.run(&store, 200).unwrap();
            let stats = store.stats();
            assert!(stats.index_changes > before + 50 && stats.checkpoints == 1 && stats.gc_jobs > 0, "{stats:?}");
            store.sync().unwrap();
            copy(&dir.join("values"), &lost.join("values"));
            drop(store);
            let store = open(&lost, &index, options);
            assert_same(&contents(&store).unwrap(), program.model.hold().now(), "replayed into an older fjall");
            store.gc().unwrap();
            assert_same(&contents(&store).unwrap(), program.model.hold().now(), "after GC");
        }
    }

    /// Its files are older than the value files, as if a backup of them was restored alone.
    #[test]
    fn an_older_fjall_is_refused() {
        let scratch = Scratch::new();
        let dir = scratch.0.join("store");
        let options = Options { workers: Workers::Caller, ..Options::default() };
        let store = open(&dir, &index, options);
        store.put(b"a", &[1; 1000]).unwrap();
        store.close().unwrap();
        copy(&dir.join("keys"), &scratch.0.join("old keys"));
        let store = open(&dir, &index, options);
        store.put(b"b", &[2; 1000]).unwrap();
        store.close().unwrap();
        let old = index(&scratch.0.join("old keys"));
        let error = Store::open(dir.join("values"), old, options).map(drop).unwrap_err();
        assert!(error.to_string().contains("older than the value files"), "{error}");
        drop(open(&dir, &index, options));
    }
}

#[cfg(feature = "rocksdb")]
mod with_rocksdb {
    use bifold_over::adapters::rocksdb::RocksDbIndex;
    use rocksdb::{DB, Options as RocksOptions};

    use super::*;

    fn index(path: &Path) -> RocksDbIndex {
        let mut options = RocksOptions::default();
        options.create_if_missing(true);
        fs::create_dir_all(path).unwrap();
        RocksDbIndex::new(DB::open(&options, path).unwrap())
    }

    #[test]
    fn a_killed_process_leaves_what_opens_with_every_commit_over_rocksdb() {
        kills(&index, (4, 40));
    }
}
