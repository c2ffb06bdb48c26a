//! What GC jobs of one keyspace do to one another when several workers run them.

use std::{
    collections::{BTreeMap, BTreeSet},
    path::{Path, PathBuf},
    sync::{Arc, Condvar, Mutex},
    thread,
    time::Duration,
};

use bifold::{Db, Workers};
use bifold_format::value::ValueKind;
use bifold_io::memory::{MemoryFs, OpKind};
use bifold_sim::{
    env,
    history::{KeyNo, key_bytes},
    judge,
};

use crate::{
    Case,
    support::{spec, threaded, walk_file},
};

/// How long a job waits at most for another one to begin. The second job begins within milliseconds, if it does.
const PATIENCE: Duration = Duration::from_secs(2);

/// The first job that creates a value file waits until another worker creates one, too. Then both copy, and nothing
/// that one of them copies may be among what the other copies: they would have taken one file.
pub fn a04_concurrent_jobs_take_no_file_twice(case: &Case) {
    let fs = MemoryFs::default();
    let meeting = meet(case, &fs, PATIENCE);
    meeting.check(case);
    let db = Db::open_in(env::simulated(&fs), env::DIR, case.options()).unwrap();
    judge::no_orphans(&fs, env::DIR.as_ref(), &db).unwrap();
    drop(db);
    judge::verify_is_clean(&fs).unwrap();
}

/// A history after which there is garbage for several GC jobs at once. The first job that begins a copy waits for
/// another one for `patience` at most. In the end every key has its newest value, and the database is closed.
pub(crate) fn meet(case: &Case, fs: &MemoryFs, patience: Duration) -> Arc<Meeting> {
    let mut options = case.options();
    options.workers = Workers::Threads(4);
    options.keyspace.values.space_target = 1.2;
    let db = Db::open_in(threaded(fs), env::DIR, options).unwrap();
    let value = |round: KeyNo, key: KeyNo| spec(1000 * u32::from(round) + u32::from(key), 400).bytes();
    // Each round makes keys of its own and overwrites three in four of those of the last: each file is partly dead.
    let write = |round: KeyNo| {
        let last = (40 * round.saturating_sub(1)..40 * round).filter(|key| key % 4 != 0);
        last.chain(40 * round..40 * (round + 1)).for_each(|key| db.put(key_bytes(key), value(round, key)).unwrap());
    };
    // While it exists, GC frees nothing and no job begins, so that in the end there is garbage for several.
    let snapshot = db.snapshot();
    (0..30).for_each(write);
    db.compact().unwrap();
    let meeting = Arc::new(Meeting::default());
    let theirs = Arc::clone(&meeting);
    let seen = fs.clone();
    fs.set_hook(Some(Arc::new(move |_, kind, path| theirs.notice(&seen, kind, path, patience))));
    drop(snapshot);
    (30..50).for_each(write);
    db.wait_idle().unwrap();
    fs.set_hook(None);
    for key in 0..2000 {
        let round = if key % 4 == 0 { key / 40 } else { (key / 40 + 1).min(49) };
        assert_eq!(db.get(key_bytes(key)).unwrap().as_deref(), Some(&value(round, key)[..]), "key {key}");
    }
    db.close().unwrap();
    meeting
}

/// Where the first worker waits for a second one.
#[derive(Default)]
pub(crate) struct Meeting {
    state: Mutex<Met>,
    changed: Condvar,
}

#[derive(Default)]
struct Met {
    /// By worker: the file that it was creating when it came, and the bytes of that file when they were last seen.
    files: BTreeMap<String, (PathBuf, Vec<u8>)>,
    is_over: bool,
}

impl Meeting {
    fn notice(&self, fs: &MemoryFs, kind: OpKind, path: &Path, patience: Duration) {
        let me = thread::current();
        let worker = me.name().filter(|name| name.starts_with("bifold-"));
        let mut met = self.state.lock().unwrap();
        for (file, bytes) in met.files.values_mut() {
            *bytes = fs.read(file).unwrap_or_else(|| std::mem::take(bytes));
        }
        let creates = kind == OpKind::Create && path.extension().is_some_and(|end| end == "val");
        let Some(worker) = worker.filter(|_| creates && !met.is_over) else { return };
        met.files.entry(worker.to_owned()).or_insert_with(|| (path.to_owned(), Vec::new()));
        self.changed.notify_all();
        if met.files.len() == 1 {
            met = self.changed.wait_timeout_while(met, patience, |met| met.files.len() < 2).unwrap().0;
        }
        met.is_over = true;
    }

    /// Whether a job began while another one waited.
    pub(crate) fn took_place(&self) -> bool {
        self.state.lock().unwrap().files.len() > 1
    }

    fn check(&self, case: &Case) {
        assert!(self.took_place() || !case.has_concurrent_jobs(), "no job began while another one waited");
        let met = self.state.lock().unwrap();
        let mut copied = BTreeSet::new();
        for (path, bytes) in met.files.values() {
            walk_file(bytes, |_, record| {
                let version = (record.key.to_vec(), record.seqno);
                let is_new = record.kind != ValueKind::Value || copied.insert(version);
                assert!(is_new, "two jobs took one file: {} has a copy that another job made, too", path.display());
            });
        }
        assert!(!copied.is_empty() || !case.has_concurrent_jobs(), "the jobs that met have copied nothing");
    }
}
