//! When others learn that a task has ended, it holds no files any more.

use std::{
    path::Path,
    sync::{Mutex, PoisonError},
};

use bifold_io::{Dir, faulty::Call};
use bifold_values::placement::SpacePressure;

use super::*;
use crate::{
    background::bed::{Bed, DIR},
    settings::options::{KeyspaceOptions, PlacementKind},
    state::shared_flush::SharedFlush,
    waiting::sync::LockExt,
};

/// A tree with a table of 64 keys, and values in files of their own where the placement separates them.
fn bed(placement: PlacementKind) -> Bed {
    let mut keyspace = KeyspaceOptions { placement, ..KeyspaceOptions::default() };
    keyspace.values.file_bytes = 16 << 10;
    let bed = Bed::new(keyspace);
    bed.fill(entries(0));
    bed.flush().unwrap();
    bed
}

fn entries(round: u8) -> impl Iterator<Item = (u32, Vec<u8>)> {
    (0..64).map(move |n| (n, vec![round; 2000]))
}

impl Bed {
    /// The keyspace is dropped while the task runs. Returns how many tasks seemed to run whenever a file was removed
    /// at the end.
    fn drop_and_end(self, task: Task) -> Vec<usize> {
        let Self { memory, faulty, engine, tree } = self;
        engine.state.drop_keyspace("k").unwrap();
        drop(tree);
        let seen = Arc::new(Mutex::new(Vec::new()));
        let (noted, looked_at) = (Arc::clone(&seen), Arc::downgrade(&engine));
        let note = move |call: &Call<'_>| {
            if call.op == "remove" {
                let engine = looked_at.upgrade()?;
                noted.hold().push(engine.work.look(|state| state.running));
            }
            None
        };
        faulty.decide_by(Box::new(note));
        engine.scheduler.end_task(task);
        assert_eq!(engine.work.look(|state| state.running), 0);
        let dir = Dir::new(Arc::new(memory), Path::new(DIR));
        let left: Vec<_> = dir.list().unwrap();
        assert!(!left.iter().any(|name| name.ends_with(".tbl") || name.ends_with(".val")), "{left:?}");
        let seen = seen.lock().unwrap_or_else(PoisonError::into_inner);
        seen.clone()
    }
}

#[test]
fn a_gc_job_releases_the_files_of_a_dropped_keyspace_before_it_has_ended() {
    for placement in [PlacementKind::WiscKey, PlacementKind::HashKv, PlacementKind::NovKv, PlacementKind::Streams] {
        let bed = bed(placement);
        let all_before = Some(bed.engine.state.numbers.next());
        let pressure = SpacePressure { all_before, ..bed.engine.space.pressure(&bed.tree) };
        let job = bed.tree.placement().pick(&pressure, &[]).unwrap_or_else(|| panic!("{placement:?}: no job"));
        let task = bed.engine.work.take(|state| state.take_gc(&bed.tree, job));
        let seen = bed.drop_and_end(task);
        assert!(!seen.is_empty(), "{placement:?}: the job held nothing");
        assert!(seen.iter().all(|&running| running == 1), "{placement:?}: {seen:?} tasks were running");
    }
}

#[test]
fn a_range_of_a_flush_releases_the_files_of_a_dropped_keyspace_before_it_has_ended() {
    let bed = bed(PlacementKind::Inline);
    bed.fill(entries(1));
    let view = bed.tree.view_to_hold();
    let layer = view.sealed.last().expect("a memtable is sealed");
    let shared = SharedFlush::new(bed.engine.flusher.plan_flush(&bed.tree, &view, layer), Vec::new());
    drop(view);
    let keyspace = bed.tree.keyspace;
    let task = bed.engine.work.take(|state| {
        state.shared.insert(keyspace, shared);
        let task = state.take_range(&bed.tree).expect("nobody has taken it");
        state.shared.remove(&keyspace);
        task
    });
    let seen = bed.drop_and_end(task);
    assert!(!seen.is_empty() && seen.iter().all(|&running| running == 1), "{seen:?} tasks were running");
}
