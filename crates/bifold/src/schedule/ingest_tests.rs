//! A merge that meets an ingest which readers do not see yet.

use std::thread;

use super::*;
use crate::{
    background::bed::Bed,
    counts::slow::Laps,
    settings::options::{Compaction, Durability, KeyspaceOptions, Leveled},
    state::{
        op::{Act, Op},
        snapshot::Holder,
        tree::View,
    },
};

/// An ingest is in the view before its number is visible. Whoever opens a snapshot in between reads what it overwrites.
#[test]
fn a_merge_waits_for_an_ingest_that_readers_do_not_see_yet() {
    let leveled = Leveled { level0_runs: 2, ..Leveled::default() };
    let bed = Bed::new(KeyspaceOptions { compaction: Compaction::Leveled(leveled), ..KeyspaceOptions::default() });
    let (engine, tree) = (&bed.engine, &bed.tree);
    bed.fill([(1, vec![1; 100])].into_iter());
    bed.flush().unwrap();
    let key = 1_u32.to_be_bytes();
    let op = [Op { tree, key: &key, act: Act::Put(&[2; 100]) }];
    let last = {
        let mut wal = engine.wal.hold();
        let mut laps = Laps::begin(&*engine.env.clock, engine.env.clock.now());
        let last =
            engine.committer.log_and_apply_unseen(&mut wal, (&op, &op), Durability::Buffered, &mut laps).unwrap();
        engine.state.seal(&mut wal, std::slice::from_ref(tree)).unwrap();
        last
    };
    bed.flush().unwrap();
    let task = engine.work.take(|state| state.take_compaction(tree, None, &engine.state.numbers)).expect("two runs");
    // The ingest that these tables are from holds the commit lock until its number is visible.
    let wal = engine.wal.hold();
    let arrived = |view: &View| {
        let mut arrived = view.with(None, Arc::clone(&view.version));
        arrived.ingested = last;
        (arrived, ())
    };
    tree.change(&engine.state.changing([tree.keyspace]), arrived);
    let snapshot = thread::scope(|scope| {
        let merge = scope.spawn(|| engine.scheduler.do_task(task));
        while !merge.is_finished() && !engine.wal.is_awaited() {
            thread::yield_now();
        }
        let snapshot = engine.snapshots.open(&engine.visible, Holder::Snapshot, engine.env.clock.now());
        engine.visible.show(last);
        drop(wal);
        merge.join().unwrap();
        snapshot
    });
    engine.health.well().unwrap();
    let found = |sight| engine.reader.get(tree, &key, sight).unwrap();
    assert_eq!(found(Some(snapshot.sight())).as_deref(), Some(&[1; 100][..]), "in the snapshot");
    assert_eq!(found(None).as_deref(), Some(&[2; 100][..]));
}
