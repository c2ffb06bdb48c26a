//! What a listener is told, and metrics.

use std::{
    collections::BTreeMap,
    sync::{
        Arc, Mutex, OnceLock,
        atomic::{AtomicBool, Ordering::SeqCst},
    },
    thread,
    time::Duration,
};

use bifold::{
    Db, Durability, Error, KeyspaceOptions, Options, PlacementKind, Workers,
    events::{EventListener, JobEnd, JobInfo, Listener},
    metrics::Recorder,
    options::Values,
};
use bifold_io::{
    Env,
    disk::DiskFs,
    faulty::{FaultKind, FaultyFs},
    memory::MemoryFs,
};

use crate::support::{TempDir, tiny};

/// Writes everything down.
#[derive(Default)]
struct Notebook {
    lines: Mutex<Vec<String>>,
    /// Called once for each event.
    also: OnceLock<Box<dyn Fn() + Send + Sync>>,
}

impl Notebook {
    fn note(&self, line: String) {
        self.lines.lock().unwrap().push(line);
        if let Some(also) = self.also.get() {
            also();
        }
    }

    fn count(&self, begins: &str) -> usize {
        self.lines.lock().unwrap().iter().filter(|line| line.starts_with(begins)).count()
    }
}

impl EventListener for Notebook {
    fn flush_begun(&self, job: &JobInfo) {
        self.note(format!("flush+ {} {}", job.number, job.keyspace));
    }

    fn flush_ended(&self, job: &JobInfo, end: &JobEnd) {
        self.note(format!("flush- {} {} {:?}", job.number, job.keyspace, end.error));
    }

    fn compaction_begun(&self, job: &JobInfo) {
        self.note(format!("compaction+ {} {}", job.number, job.keyspace));
    }

    fn compaction_ended(&self, job: &JobInfo, end: &JobEnd) {
        self.note(format!("compaction- {} {} {:?}", job.number, job.keyspace, end.error));
    }

    fn gc_begun(&self, job: &JobInfo) {
        self.note(format!("gc+ {} {}", job.number, job.keyspace));
    }

    fn gc_ended(&self, job: &JobInfo, end: &JobEnd) {
        self.note(format!("gc- {} {} {:?}", job.number, job.keyspace, end.error));
    }

    fn stall_begun(&self, cause: &'static str) {
        self.note(format!("stall+ {cause}"));
    }

    fn stall_ended(&self, cause: &'static str, _time: Duration) {
        self.note(format!("stall- {cause}"));
    }

    fn file_created(&self, name: &str) {
        self.note(format!("file+ {name}"));
    }

    fn file_deleted(&self, name: &str) {
        self.note(format!("file- {name}"));
    }

    fn readers_unknown(&self, error: &Error) {
        self.note(format!("readers unknown {error}"));
    }

    fn left_out(&self, keyspace: &str, error: &Error) {
        self.note(format!("left out {keyspace} {error}"));
    }

    fn poisoned(&self, error: &Error) {
        self.note(format!("poisoned {error}"));
    }

    fn events_lost(&self, count: u64) {
        self.note(format!("lost {count}"));
    }
}

fn options(placement: PlacementKind, workers: Workers, listener: &Arc<Notebook>) -> Options {
    let values = Values { separate_from_bytes: Some(64), file_bytes: 16 << 10, ..Values::default() };
    let keyspace = KeyspaceOptions { values, ..tiny().keyspace }.with_placement(placement);
    Options { workers, keyspace, listener: Listener::new(Arc::clone(listener) as _), ..tiny() }
}

fn update(db: &Db, rounds: u32) {
    for n in 0..rounds * 500 {
        db.put((n * 7 % 500).to_be_bytes(), [n as u8; 300]).unwrap();
    }
}

#[test]
fn every_job_begins_and_ends_and_every_file_is_told() {
    for placement in PlacementKind::ALL {
        for workers in [Workers::Caller, Workers::Threads(2)] {
            let (dir, notebook) = (TempDir::new(), Arc::new(Notebook::default()));
            let db = Db::open_with(dir.join("db"), options(placement, workers, &notebook)).unwrap();
            update(&db, 4);
            db.compact().unwrap();
            db.close().unwrap();
            let what = format!("{placement:?}, {workers:?}");
            let lines = notebook.lines.lock().unwrap();
            let mut open = BTreeMap::new();
            for line in lines.iter() {
                let words: Vec<&str> = line.split(' ').collect();
                match words[0].split_at(words[0].len() - 1) {
                    ("file", _) => {}
                    (_, "+") if words[0] != "stall+" => {
                        assert_eq!((open.insert(words[1], words[0]), words[2]), (None, "default"), "{what}: {line}");
                    }
                    (kind, "-") if words[0] != "stall-" => {
                        let begun = open.remove(words[1]).unwrap_or_else(|| panic!("{what}: {line} has not begun"));
                        // Closing cancels the jobs that it meets, such as a flush that moves of a GC run have made due.
                        let end = if words[3] == "Some(Closed" { "None" } else { words[3] };
                        assert_eq!((&begun[..begun.len() - 1], end), (kind, "None"), "{what}: {line}");
                    }
                    _ => {}
                }
            }
            assert!(open.is_empty(), "{what}: {open:?}");
            let has = |begins: &str| lines.iter().any(|line| line.starts_with(begins));
            assert!(has("flush-") && has("compaction-"), "{what}");
            if matches!(placement, PlacementKind::WiscKey | PlacementKind::HashKv | PlacementKind::NovKv) {
                assert!(has("gc-"), "{what}");
            }
            // What was created and not deleted is there, and nothing else with a number.
            let named = |sign: &str| {
                let mut names: Vec<String> =
                    lines.iter().filter_map(|line| Some(line.strip_prefix(sign)?.to_owned())).collect();
                names.sort_unstable();
                names
            };
            let (mut left, deleted) = (named("file+ "), named("file- "));
            left.retain(|name| deleted.binary_search(name).is_err());
            let is_numbered = |name: &String| name.starts_with(|first: char| first.is_ascii_digit());
            let entries = std::fs::read_dir(dir.join("db")).unwrap();
            let mut there: Vec<String> =
                entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).filter(is_numbered).collect();
            there.sort_unstable();
            assert_eq!(left.into_iter().filter(is_numbered).collect::<Vec<_>>(), there, "{what}");
        }
    }
}

#[test]
fn a_listener_may_panic_and_call_the_database() {
    for workers in [Workers::Caller, Workers::Threads(2)] {
        let (dir, notebook) = (TempDir::new(), Arc::new(Notebook::default()));
        let db = Db::open_with(dir.join("db"), options(PlacementKind::HashKv, workers, &notebook)).unwrap();
        let other = db.clone();
        let calls = move || {
            other.put("from the listener", "x").unwrap();
            panic!("of the listener");
        };
        assert!(notebook.also.set(Box::new(calls)).is_ok());
        update(&db, 2);
        db.flush().unwrap();
        db.wait_idle().unwrap();
        while notebook.count("flush-") == 0 {
            thread::yield_now();
        }
        assert!(db.stats().poisoned.is_none());
        db.put("still", "taken").unwrap();
        assert!(db.get("from the listener").unwrap().is_some());
        // The listener has a handle: only this call closes the database.
        db.close().unwrap();
    }
}

/// There is no other thread that would tell it.
#[test]
fn where_callers_do_the_work_each_call_tells_at_its_end_what_happened_in_it() {
    let (faulty, notebook) = (FaultyFs::over_memory(MemoryFs::new()), Arc::new(Notebook::default()));
    let env = Env { fs: Arc::new(faulty.clone()), ..Env::system() };
    let options = options(PlacementKind::HashKv, Workers::Caller, &notebook);
    let db = Db::open_in(env, "/db", options).unwrap();
    assert!(notebook.count("file+ ") > 0, "opening makes a log");
    update(&db, 4);
    db.compact().unwrap();
    for (kind, call) in [("compaction-", Db::compact as fn(&Db) -> _), ("gc-", Db::collect_garbage)] {
        // Nothing is due, and one value is garbage.
        db.wait_idle().unwrap();
        db.put(5_u32.to_be_bytes(), [1; 300]).unwrap();
        let before = notebook.count(kind);
        call(&db).unwrap();
        assert!(notebook.count(kind) > before, "{kind}");
    }
    faulty.decide_by(Box::new(|call| (call.op == "sync").then_some(FaultKind::EIO)));
    assert!(db.put_with("a", "b", Durability::Sync).is_err());
    assert_eq!(notebook.count("poisoned"), 1);
}

/// GC may wait for a flush in the middle of a job, and a caller does that flush.
#[test]
fn a_listener_may_wait_for_the_job_that_its_event_comes_from() {
    for placement in PlacementKind::ALL {
        let (dir, notebook) = (TempDir::new(), Arc::new(Notebook::default()));
        let db = Db::open_with(dir.join("db"), options(placement, Workers::Caller, &notebook)).unwrap();
        let (is_armed, outcome) = (Arc::new(AtomicBool::new(false)), Arc::new(Mutex::new(None)));
        let (other, armed, noted) = (db.clone(), Arc::clone(&is_armed), Arc::clone(&outcome));
        let collects = move || {
            if armed.swap(false, SeqCst) {
                let collected = other.collect_garbage();
                *noted.lock().unwrap() = Some(collected);
            }
        };
        assert!(notebook.also.set(Box::new(collects)).is_ok());
        update(&db, 3);
        // There is something to be flushed.
        db.put("last", [1; 300]).unwrap();
        is_armed.store(true, SeqCst);
        db.collect_garbage().unwrap();
        if !is_armed.swap(false, SeqCst) {
            assert!(matches!(*outcome.lock().unwrap(), Some(Ok(()))), "{placement:?}: it waited for itself");
        }
        assert_eq!(db.stats().overdue_waits, 0, "{placement:?}");
        // The listener has a handle: only this call closes the database.
        db.close().unwrap();
    }
}

#[test]
fn a_slow_listener_delays_nothing_and_learns_what_it_has_lost() {
    let (dir, notebook) = (TempDir::new(), Arc::new(Notebook::default()));
    let gate = Arc::new(Mutex::new(()));
    let closed = gate.lock().unwrap();
    let at_gate = Arc::clone(&gate);
    assert!(notebook.also.set(Box::new(move || drop(at_gate.lock()))).is_ok());
    let options = options(PlacementKind::HashKv, Workers::Threads(2), &notebook);
    let db = Db::open_with(dir.join("db"), options).unwrap();
    for round in 0.. {
        update(&db, 1);
        db.flush().unwrap();
        if round > 20 && db.stats().flushes.at_once_max > 0 && db.stats().seqno > 60_000 {
            break;
        }
    }
    assert!(notebook.lines.lock().unwrap().len() <= 1, "it is still at the gate");
    drop(closed);
    db.close().unwrap();
    let lines = notebook.lines.lock().unwrap();
    let lost = lines.iter().filter_map(|line| line.strip_prefix("lost ")?.parse::<u64>().ok()).sum::<u64>();
    assert!(lines.len() <= 4096 + 10_000 && (lines.len() < 4096 || lost > 0), "{} told, {lost} lost", lines.len());
}

#[test]
fn stalls_and_failures_are_told() {
    let (dir, notebook) = (TempDir::new(), Arc::new(Notebook::default()));
    let faulty = Arc::new(FaultyFs::new(Arc::new(DiskFs)));
    let env = Env { fs: Arc::clone(&faulty) as _, ..Env::system() };
    let options = options(PlacementKind::Inline, Workers::Threads(2), &notebook);
    let db = Db::open_in(env, dir.join("db"), options).unwrap();
    // Tables are slow to be written.
    faulty.decide_by(Box::new(|call| {
        if call.op == "sync" && call.path.extension().is_some_and(|ext| ext == "tbl") {
            thread::sleep(Duration::from_millis(5));
        }
        None
    }));
    while notebook.count("stall+") == 0 {
        update(&db, 1);
    }
    faulty.clear();
    db.wait_idle().unwrap();
    while notebook.count("stall-") == 0 {
        db.put("a", "b").unwrap();
    }
    faulty.decide_by(Box::new(|call| (call.op == "sync").then_some(FaultKind::EIO)));
    assert!(db.flush().is_err() || db.sync().is_err());
    drop(db);
    assert_eq!(notebook.count("poisoned"), 1);
    let lines = notebook.lines.lock().unwrap();
    let stalls: Vec<&String> = lines.iter().filter(|line| line.starts_with("stall")).collect();
    for pair in stalls.chunks_exact(2) {
        assert_eq!(pair[0].strip_prefix("stall+"), pair[1].strip_prefix("stall-"), "each ends before the next begins");
    }
}

#[test]
fn why_it_is_unknown_who_reads_is_told_once() {
    let (dir, notebook) = (TempDir::new(), Arc::new(Notebook::default()));
    let faulty = Arc::new(FaultyFs::new(Arc::new(DiskFs)));
    let env = Env { fs: Arc::clone(&faulty) as _, ..Env::system() };
    let options = options(PlacementKind::Inline, Workers::Caller, &notebook);
    let db = Db::open_in(env, dir.join("db"), options).unwrap();
    faulty.decide_by(Box::new(|call| {
        (call.op == "list" && call.path.ends_with("readers")).then_some(FaultKind::Errno(13))
    }));
    (0..3).for_each(|_| assert_eq!(db.stats().followers.readers, 1, "there may be one"));
    db.close().unwrap();
    assert_eq!(notebook.count("readers unknown cannot list "), 1);
}

#[test]
fn all_figures_are_recorded_with_names_and_labels() {
    #[derive(Default)]
    struct Figures(BTreeMap<(String, String), f64>);
    impl Recorder for Figures {
        fn counter(&mut self, name: &'static str, labels: &[(&'static str, &str)], value: u64) {
            assert!(name.ends_with("_total"), "{name}");
            self.gauge(name, labels, value as f64);
        }

        fn gauge(&mut self, name: &'static str, labels: &[(&'static str, &str)], value: f64) {
            let before = self.0.insert((name.to_owned(), format!("{labels:?}")), value);
            assert_eq!(before, None, "{name} {labels:?} came twice");
        }
    }
    let notebook = Arc::new(Notebook::default());
    let dir = TempDir::new();
    let db = Db::open_with(dir.join("db"), options(PlacementKind::HashKv, Workers::Caller, &notebook)).unwrap();
    update(&db, 2);
    let (mut figures, stats) = (Figures::default(), db.stats());
    stats.record(&mut figures);
    let of = |name: &str, labels: &str| figures.0.get(&(name.to_owned(), labels.to_owned())).copied();
    assert_eq!(of("bifold_commits_total", "[]"), Some(1000.0));
    assert_eq!(of("bifold_disk_bytes", "[(\"part\", \"values\")]"), Some(stats.space.values_bytes as f64));
    assert_eq!(of("bifold_poisoned", "[]"), Some(0.0));
    assert!(of("bifold_tables", "[(\"keyspace\", \"default\")]").is_some_and(|tables| tables > 0.0));
    // The page lists every name.
    let page = std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/metrics.md")).unwrap();
    for (name, _) in figures.0.keys() {
        assert!(page.contains(&format!("`{name}`")), "docs/metrics.md does not have {name}");
    }
}
