//! What is due in a database that is only read, its writer does.

use bifold_io::{Env, memory::MemoryFs};

use super::*;
use crate::{
    Db,
    api::db::DEFAULT_KEYSPACE,
    background::bed::{Bed, DIR},
    settings::options::{Compaction, KeyspaceOptions, Leveled, Options},
};

const KEYS: u32 = 100;

/// A database that somebody wrote with a merge left to do.
fn with_a_merge_due() -> MemoryFs {
    let compaction = Compaction::Leveled(Leveled { level0_runs: 2, ..Leveled::default() });
    let bed = Bed::new(KeyspaceOptions { compaction, ..KeyspaceOptions::default() });
    bed.engine.state.create_keyspace(DEFAULT_KEYSPACE, &KeyspaceOptions::default()).unwrap();
    for round in 1..=2 {
        bed.fill((0..KEYS).map(|n| (n, vec![round; 1000])));
        bed.flush().unwrap();
    }
    assert!(bed.tree.debt() >= 1.0, "nothing is due");
    bed.memory.fork()
}

fn tables(fs: &MemoryFs) -> Vec<String> {
    let paths = fs.files().into_iter().map(|path| path.display().to_string());
    paths.filter(|path| path.ends_with(".tbl")).collect()
}

#[test]
fn who_waits_for_idleness_where_only_is_read_does_nothing_and_does_not_wait() {
    for access in [Access::ReadOnly, Access::Follow] {
        for workers in [Workers::Caller, Workers::Threads(2)] {
            let fs = with_a_merge_due();
            let env = || Env { fs: Arc::new(fs.clone()), ..Env::system() };
            let before = tables(&fs);
            let db = Db::open_in(env(), DIR, Options { access, workers, ..Options::default() }).unwrap();
            assert!(db.wait_idle_within(Duration::from_secs(1)).unwrap(), "{access:?}, {workers:?}");
            drop(db);
            assert_eq!(tables(&fs), before, "{access:?}, {workers:?}");
            let db = Db::open_in(env(), DIR, Options::default()).unwrap();
            let keyspace = db.existing_keyspace("k").unwrap().unwrap();
            for n in 0..KEYS {
                let value = keyspace.get(n.to_be_bytes()).unwrap();
                assert_eq!(value.as_deref(), Some(&[2; 1000][..]), "{access:?}, {workers:?}, key {n}");
            }
        }
    }
}
