//! When others learn that a task has ended, it holds no files any more.

use std::{
    path::Path,
    sync::{Mutex, PoisonError},
};

use bifold_io::{
    Dir, Env,
    faulty::{Call, FaultyFs},
    memory::MemoryFs,
};
use bifold_values::placement::SpacePressure;

use super::*;
use crate::{
    api::options::{Durability, KeyspaceOptions, Options, PlacementKind},
    background::shared_flush::SharedFlush,
    commit::op::{Act, Op},
    state::recover::recover,
    waiting::sync::LockExt,
};

/// A tree without workers, and how many jobs were running whenever a file was removed.
struct Bed {
    memory: MemoryFs,
    faulty: FaultyFs,
    engine: Arc<Engine>,
    tree: Arc<Tree>,
}

impl Bed {
    fn new(placement: PlacementKind) -> Self {
        let mut keyspace = KeyspaceOptions { placement, ..KeyspaceOptions::default() };
        keyspace.values.file_bytes = 16 << 10;
        let options = Options { workers: Workers::Threads(2), keyspace, ..Options::default() };
        let memory = MemoryFs::new();
        let faulty = FaultyFs::over_memory(memory.clone());
        let env = Env { fs: Arc::new(faulty.clone()), ..Env::system() };
        let engine = recover(env, Path::new("/db"), options).unwrap();
        let tree = engine.state.create_keyspace("k", &engine.options.keyspace).unwrap();
        let bed = Self { memory, faulty, engine, tree };
        bed.fill(0);
        bed.engine.flush_oldest(&bed.tree, Means::Free).unwrap();
        bed
    }

    /// Fills a memtable and seals it.
    fn fill(&self, round: u8) {
        for n in 0..64_u32 {
            let op = Op { tree: &self.tree, key: &n.to_be_bytes(), act: Act::Put(&[round; 2000]) };
            self.engine.commit(&[op], Durability::Buffered).unwrap();
        }
        self.engine.state.seal(&mut self.engine.wal.hold(), std::slice::from_ref(&self.tree)).unwrap();
    }

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
        engine.end_task(task);
        assert_eq!(engine.work.look(|state| state.running), 0);
        let dir = Dir::new(Arc::new(memory), Path::new("/db"));
        let left: Vec<_> = dir.list().unwrap();
        assert!(!left.iter().any(|name| name.ends_with(".tbl") || name.ends_with(".val")), "{left:?}");
        let seen = seen.lock().unwrap_or_else(PoisonError::into_inner);
        seen.clone()
    }
}

#[test]
fn a_gc_job_lets_go_of_the_files_of_a_dropped_keyspace_before_it_has_ended() {
    for placement in [PlacementKind::WiscKey, PlacementKind::HashKv, PlacementKind::NovKv, PlacementKind::Streams] {
        let bed = Bed::new(placement);
        let all_before = Some(bed.engine.numbers.next());
        let pressure = SpacePressure { all_before, ..bed.engine.space.pressure(&bed.tree) };
        let job = bed.tree.placement().pick(&pressure, &[]).unwrap_or_else(|| panic!("{placement:?}: no job"));
        let task = bed.engine.work.take(|state| state.take_gc(&bed.tree, job));
        let seen = bed.drop_and_end(task);
        assert!(!seen.is_empty(), "{placement:?}: the job held nothing");
        assert!(seen.iter().all(|&running| running == 1), "{placement:?}: {seen:?} tasks were running");
    }
}

#[test]
fn a_range_of_a_flush_lets_go_of_the_files_of_a_dropped_keyspace_before_it_has_ended() {
    let bed = Bed::new(PlacementKind::Inline);
    bed.fill(1);
    let view = bed.tree.view_to_hold();
    let layer = view.sealed.last().expect("a memtable is sealed");
    let shared = SharedFlush::new(bed.engine.plan_flush(&bed.tree, &view, layer), Vec::new());
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
