//! Flushes that run at once, and flushes that several threads write.

use std::{
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering::SeqCst},
        mpsc,
    },
    time::Duration,
};

use bifold::{Db, Env, KeyspaceOptions, Options, Workers};
use bifold_io::{
    faulty::FaultyFs,
    memory::{Fate, MemoryFs},
};

use crate::{
    support::{check_filled, fill, tiny},
    threads::must_end,
    waits::{Held, PLACEMENTS},
};

/// Long enough for a thread to wake up, on a machine that is busy with other tests.
const PATIENCE: Duration = Duration::from_secs(20);

fn options() -> Options {
    let keyspace = KeyspaceOptions { table_bytes: 4 << 10, ..tiny().keyspace };
    Options { memory_limit: 8 << 20, memtable_bytes: 1 << 20, workers: Workers::Threads(2), keyspace, ..tiny() }
}

fn open(fs: impl bifold_io::FileSystem + 'static, options: Options) -> Db {
    Db::open_in(Env { fs: Arc::new(fs), ..Env::system() }, "/db", options).unwrap()
}

/// The flush of one keyspace is held up. That of another one ends meanwhile; then the power fails.
#[test]
fn flushes_of_two_keyspaces_run_at_once() {
    must_end(|doing| {
        let memory = MemoryFs::new();
        let fs = FaultyFs::over_memory(memory.clone());
        let db = open(fs.clone(), options());
        let other = db.keyspace("other", options().keyspace).unwrap();
        fill(db.default_keyspace(), 300, "r");
        fill(&other, 200, "r");
        db.sync().unwrap();
        let held = Held::first(&fs, "create", ".tbl");
        let lost = std::thread::scope(|scope| {
            scope.spawn(|| db.flush().unwrap());
            held.entered.recv().unwrap();
            doing.now("main", "one flush is held up, the other ends".into());
            let tables = |of: &bifold::stats::KeyspaceStats| of.levels.iter().map(|level| level.tables).sum::<u64>();
            while db.stats().keyspaces.iter().all(|of| tables(of) == 0) {
                std::thread::yield_now();
            }
            assert_eq!(db.stats().keyspaces.iter().filter(|of| tables(of) > 0).count(), 1);
            let lost = memory.power_loss(Fate::DropUnsynced);
            held.go.send(()).unwrap();
            lost
        });
        assert_eq!(db.stats().flushes.at_once_max, 2);
        assert_eq!(db.stats().overdue_waits, 0);
        drop((db, other));
        for (fs, when) in [(lost, "after the power loss"), (memory, "after both")] {
            doing.now("main", when.into());
            let db = open(fs, options());
            check_filled(db.default_keyspace(), 300, "r");
            check_filled(&db.existing_keyspace("other").unwrap().unwrap(), 200, "r");
        }
    });
}

/// Two threads create tables of one flush at the same time: neither goes on before the other has come.
#[test]
fn two_threads_write_one_flush() {
    for placement in PLACEMENTS {
        must_end(move |doing| {
            let memory = MemoryFs::new();
            let fs = FaultyFs::over_memory(memory.clone());
            let options = Options { keyspace: KeyspaceOptions { placement, ..options().keyspace }, ..options() };
            let db = open(fs.clone(), options.clone());
            fill(db.default_keyspace(), 400, "first");
            db.flush().unwrap();
            db.wait_idle().unwrap();
            fill(db.default_keyspace(), 400, "second");
            doing.now("main", format!("{placement:?}: each of two threads waits for the other"));
            let (came, comes) = (mpsc::channel(), mpsc::channel());
            let met = Arc::new(AtomicBool::new(false));
            let turns = Mutex::new(vec![(came.0, comes.1), (comes.0, came.1)]);
            let have_met = Arc::clone(&met);
            fs.decide_by(Box::new(move |call| {
                if call.op == "create" && call.path.to_string_lossy().ends_with(".tbl") {
                    let turn = turns.lock().unwrap().pop();
                    if let Some((here, there)) = turn {
                        here.send(()).unwrap();
                        have_met.fetch_or(there.recv_timeout(PATIENCE).is_ok(), SeqCst);
                    }
                }
                None
            }));
            db.flush().unwrap();
            assert!(met.load(SeqCst), "{placement:?}: one thread alone writes the flush");
            assert!(db.stats().flushes.ranges_helped > 0 && db.stats().overdue_waits == 0);
            check_filled(db.default_keyspace(), 400, "second");
            db.close().unwrap();
            let db = open(memory, options);
            check_filled(db.default_keyspace(), 400, "second");
        });
    }
}
