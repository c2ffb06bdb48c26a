//! Numbers of commits that were lost, while an older log is still needed.

use std::{sync::Arc, time::Duration};

use bifold_io::{
    Env,
    memory::{Fate, MemoryFs},
};

use crate::{
    Db, Durability, RetainChanges,
    background::bed::{Bed, DIR},
    open::recover::recover,
    settings::options::{KeyspaceOptions, Options, PlacementKind, Workers},
    state::op::{Act, Op},
};

const VALUE_BYTES: usize = 1 << 20;

fn of(workers: Workers) -> Options {
    Options { workers, ..Options::default() }
}

fn env(fs: &MemoryFs) -> Env {
    Env { fs: Arc::new(fs.clone()), ..Env::system() }
}

fn inline() -> KeyspaceOptions {
    KeyspaceOptions { placement: PlacementKind::Inline, ..KeyspaceOptions::default() }
}

/// Commits 1 and 2 are durable, the manifest has seen commit 9, and a power loss took 3 to 9.
fn with_lost_commits() -> MemoryFs {
    let bed = Bed::new(KeyspaceOptions::default());
    let Bed { memory, engine, tree, .. } = &bed;
    let other = engine.state.create_keyspace("other", &inline()).unwrap();
    let put = |tree, value: u8| {
        let op = Op { tree, key: b"k", act: Act::Put(&[value]) };
        engine.commit(&[op], Durability::Buffered).unwrap();
    };
    put(tree, 1);
    // A table of this has no room below.
    let op = Op { tree: &other, key: b"long", act: Act::Put(&vec![2; VALUE_BYTES]) };
    engine.commit(&[op], Durability::Buffered).unwrap();
    engine.syncs.sync().unwrap();
    engine.state.seal(&mut engine.wal.hold(), std::slice::from_ref(tree)).unwrap();
    (3..10).for_each(|value| put(&other, value));
    bed.flush().unwrap();
    memory.power_loss(Fate::DropUnsynced)
}

#[test]
fn what_is_committed_after_lost_commits_is_there_although_an_older_log_is_needed() {
    for durability in [Durability::Buffered, Durability::Sync] {
        let fs = with_lost_commits();
        fs.set_capacity(Some(fs.used_bytes() + VALUE_BYTES as u64 / 2));
        let engine = recover(env(&fs), DIR.as_ref(), of(Workers::Threads(2))).unwrap();
        assert_eq!(engine.wal.hold().files().len(), 2, "the old log is needed");
        // There is room again, and nobody has used it for the table yet.
        fs.set_capacity(None);
        let other = engine.trees.named("other").unwrap();
        let op = Op { tree: &other, key: b"long", act: Act::Delete };
        engine.commit(&[op], durability).unwrap();
        let killed = fs.fork();
        for _ in 0..2 {
            let db = Db::open_in(env(&killed), DIR, of(Workers::Caller)).unwrap();
            let other = db.keyspace("other", inline()).unwrap();
            assert!(other.get("long").unwrap().is_none(), "{durability:?}: the delete was acknowledged");
        }
    }
}

#[test]
fn a_feed_goes_on_behind_lost_commits() {
    let fs = with_lost_commits();
    let options = Options { retain_changes: Some(RetainChanges { bytes: 1 << 20, age: None }), ..of(Workers::Caller) };
    let db = Db::open_in(env(&fs), DIR, options).unwrap();
    let mut feed = db.changes(2).unwrap();
    assert!(!feed.wait(Some(Duration::ZERO)).unwrap() && feed.next().is_none());
    db.put("k", "after the loss").unwrap();
    assert!(feed.wait(Some(Duration::ZERO)).unwrap());
    assert_eq!(feed.next().unwrap().unwrap().seqno, 10);
}
