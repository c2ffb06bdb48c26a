//! Closed logs that no sync has covered: few stay open, and none is forgotten.

use std::path::Path;

use bifold_io::{
    Env,
    memory::{Fate, MemoryFs},
};

use super::*;
use crate::{
    engine::Engine,
    log::kept_logs,
    open::recover::recover,
    settings::{
        options::{Durability, Options, Workers},
        retain_changes::RetainChanges,
    },
    state::op::{Act, Op},
};

/// As many keyspaces, each with a full memtable.
const KEYSPACES: usize = 60;

fn open(fs: &MemoryFs, open_files_max: u32) -> Arc<Engine> {
    open_with(fs, Options { open_files_max, ..Options::default() })
}

fn open_with(fs: &MemoryFs, options: Options) -> Arc<Engine> {
    let env = Env { fs: Arc::new(fs.clone()), ..Env::system() };
    // No worker runs, so each sealed memtable keeps a log that was closed with it.
    let workers = Workers::Threads(2);
    let options = Options { workers, memtable_bytes: 4 << 10, ..options };
    recover(env, Path::new("/db"), options).unwrap()
}

/// Fills one memtable after the other and seals it. Returns the most files that were open for writing.
fn seal_many(engine: &Engine, durability: Durability) -> usize {
    let options = &engine.options.keyspace;
    let create = |number| engine.state.create_keyspace(&format!("k{number}"), options).unwrap();
    let trees: Vec<Arc<Tree>> = (0..KEYSPACES).map(create).collect();
    let mut most = 0;
    for tree in &trees {
        for number in 0..10u8 {
            let op = Op { tree, key: &[number], act: Act::Put(&[1; 1000]) };
            engine.commit(&[op], durability).unwrap();
            most = most.max(engine.dir.open_files().written);
            if !tree.view().sealed.is_empty() {
                break;
            }
        }
        assert_eq!(tree.view().sealed.len(), 1);
    }
    most
}

#[test]
fn few_closed_logs_stay_open_however_many_memtables_need_one() {
    for (open_files_max, most) in [(1000, CLOSED_MAX), (8, 8 / CLOSED_SHARE)] {
        for durability in [Durability::Memory, Durability::Buffered] {
            let engine = open(&MemoryFs::new(), open_files_max);
            // And three more: the manifest, the current log, and the log that one commit has just closed.
            let open = seal_many(&engine, durability);
            assert!(open <= most + 3, "{open} files are open for writing, of {open_files_max}");
            let logs = engine.wal.hold().files().len();
            assert!(logs > KEYSPACES, "{logs} logs are needed");
        }
    }
}

#[test]
fn a_durable_commit_has_all_closed_logs_before_it() {
    let fs = MemoryFs::new();
    let engine = open(&fs, 1000);
    seal_many(&engine, Durability::Buffered);
    engine.syncs.sync().unwrap();
    let engine = open(&fs.power_loss(Fate::DropUnsynced), 1000);
    for number in 0..KEYSPACES {
        let tree = engine.trees.named(&format!("k{number}")).unwrap();
        assert!(engine.reader.get(&tree, &[0], None).unwrap().is_some(), "keyspace {number} is empty");
    }
}

/// Their keyspaces are dropped, so nothing but the change feed needs these logs.
#[test]
fn a_log_that_is_only_kept_is_durable_to_its_end() {
    let fs = MemoryFs::new();
    let retain_changes = Some(RetainChanges { bytes: 1 << 30, age: None });
    let engine = open_with(&fs, Options { open_files_max: 1000, retain_changes, ..Options::default() });
    seal_many(&engine, Durability::Buffered);
    for number in 0..KEYSPACES {
        assert!(engine.state.drop_keyspace(&format!("k{number}")).unwrap());
    }
    for is_synced in [false, true] {
        engine.state.delete_logs().unwrap();
        let kept: Vec<_> = engine.wal.hold().kept().to_verify().collect();
        assert!(!is_synced || kept.len() >= KEYSPACES, "{kept:?}");
        let image = Dir::new(Arc::new(fs.power_loss(Fate::DropUnsynced)), Path::new("/db"));
        kept.iter().for_each(|&log| drop(kept_logs::verify(&image, log).unwrap()));
        engine.syncs.sync().unwrap();
    }
}
