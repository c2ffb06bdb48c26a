//! Power is lost, or a call fails, at each moment of an ingest: all of it is there, or nothing.

use std::sync::Arc;

use bifold::{Db, Env, Keyspace, Options, PlacementKind, RetainChanges, Workers};
use bifold_io::{
    faulty::FaultKind,
    memory::{Fate, MemoryFs},
};

use super::{Model, expected, key, value};
use crate::{
    bed::small,
    scene::{Scene, calls_of, failing, images},
    support::entries,
};

impl Scene<Model> {
    fn put(&self, at: usize, n: u32, round: u32) -> bifold::Result<()> {
        self.tell(|state| drop(state[at].insert(key(n), value(n, round))));
        self.keyspaces[at].put(key(n), value(n, round))
    }

    fn ingest(&self, keys: impl Iterator<Item = u32> + Clone, round: u32) -> bifold::Result<()> {
        let mut ingest = self.keyspaces[0].ingest()?;
        keys.clone().try_for_each(|n| ingest.put(key(n), value(n, round)))?;
        // A commit that the ingest must not overtake.
        self.put(1, round, round)?;
        self.tell(|state| state[0].extend(keys.map(|n| (key(n), value(n, round)))));
        ingest.finish()?;
        self.is_durable();
        Ok(())
    }

    /// Ingests over a memtable, over tables, into nothing; with commits before and after each.
    fn play(&self) -> bifold::Result<()> {
        for n in 0..20 {
            self.put((n % 2) as usize, n, 0)?;
        }
        self.ingest((0..60).step_by(3), 1)?;
        self.put(0, 3, 2)?;
        self.put(1, 3, 2)?;
        self.db.flush()?;
        self.put(0, 6, 3)?;
        self.ingest(0..30, 4)?;
        self.put(0, 4, 5)?;
        self.ingest(100..130, 6)?;
        self.put(0, 101, 7)?;
        self.put(1, 101, 7)
    }
}

/// The contents of a database that is opened from these files.
fn contents(fs: MemoryFs, options: &Options) -> [Model; 2] {
    let env = Env { fs: Arc::new(fs), ..Env::system() };
    let db = Db::open_in(env, "/db", options.clone()).unwrap();
    let model = |keyspace: &Keyspace| -> Model {
        let all = entries(keyspace.iter());
        let model: Model = all.iter().cloned().map(|(key, value)| (String::from_utf8(key).unwrap(), value)).collect();
        assert_eq!(expected(&model), all);
        for (key, value) in &model {
            assert_eq!(keyspace.get(key).unwrap().as_deref(), Some(&**value), "{key}");
        }
        model
    };
    let other = db.existing_keyspace("other").unwrap();
    if options.retain_changes.is_some() {
        assert_eq!(
            [told(&db, "default"), told(&db, "other")],
            [db.default_keyspace(), other.as_ref().unwrap()].map(model)
        );
    }
    let before = [model(db.default_keyspace()), other.as_ref().map(&model).unwrap_or_default()];
    // GC and merges find the same.
    db.compact().unwrap();
    db.collect_garbage().unwrap();
    assert_eq!([model(db.default_keyspace()), other.as_ref().map(model).unwrap_or_default()], before);
    db.close().unwrap();
    before
}

/// What the change feed tells of a keyspace from its beginning on.
fn told(db: &Db, keyspace: &str) -> Model {
    let changes = db.changes(0).unwrap().map(Result::unwrap);
    let here = changes.filter(|change| change.keyspace.as_deref() == Some(keyspace));
    here.map(|change| (String::from_utf8(change.key.into_vec()).unwrap(), change.value.unwrap().to_vec())).collect()
}

fn with_changes(placement: PlacementKind, are_kept: bool) -> Options {
    let retain_changes = are_kept.then_some(RetainChanges { bytes: 1 << 40, age: None });
    Options { retain_changes, ..small(placement) }
}

#[test]
fn a_power_loss_leaves_all_of_an_ingest_or_nothing_and_all_that_came_before() {
    for (placement, are_kept) in PlacementKind::ALL.into_iter().flat_map(|of| [(of, false), (of, true)]) {
        let options = with_changes(placement, are_kept);
        let images = images(&options, 1, Scene::<Model>::play);
        assert!(images.len() > 100, "{placement:?}: {} images", images.len());
        for image in images {
            let found = contents(image.fs.clone(), &options);
            assert!(image.allows(&found), "{placement:?}, {}: {:?}", image.what, lost(&found));
        }
    }
}

fn lost(found: &[Model; 2]) -> Vec<Vec<&String>> {
    found.iter().map(|model| model.keys().collect()).collect()
}

#[test]
fn a_failing_call_leaves_all_of_an_ingest_or_nothing() {
    fail_each(Workers::Caller, 3);
}

/// Which call fails differs from run to run.
#[test]
fn a_failing_call_of_any_thread_leaves_all_of_an_ingest_or_nothing() {
    fail_each(Workers::Threads(2), 7);
}

/// Each `every`th call fails.
fn fail_each(workers: Workers, every: usize) {
    let kinds = [FaultKind::EIO, FaultKind::ENOSPC].into_iter().cycle();
    for (placement, kind) in PlacementKind::ALL.into_iter().zip(kinds) {
        let options = Options { workers, ..with_changes(placement, workers == Workers::Caller) };
        let all = calls_of(&options, Scene::<Model>::play);
        let mut failed = 0;
        // The first ones are those of commits, which others prove.
        for at in (1..all).step_by(every) {
            let memory = MemoryFs::new();
            let (played, _, scene) = failing(&memory, &options, (at, kind), Scene::<Model>::play);
            failed += u64::from(played.is_err());
            let allowed = scene.allowed();
            if played.is_err() {
                // Reads go on.
                let readable: Vec<_> = scene.keyspaces.iter().map(|keyspace| entries(keyspace.iter())).collect();
                let is_shown = |state: &[Model; 2]| *readable == state.each_ref().map(expected);
                assert!(allowed.iter().any(is_shown), "{placement:?}, call {at}: {played:?}");
            }
            drop(scene);
            for fate in [Fate::KeepAll, Fate::DropUnsynced] {
                let found = contents(memory.power_loss(fate), &options);
                let is_right = allowed.contains(&found);
                assert!(is_right, "{placement:?}, call {at} of {all}, {fate:?}: {played:?}");
            }
        }
        assert!(failed > 10, "{placement:?}: {failed} of {all} calls");
    }
}

/// What an ingest wrote for keys whose older values are in groups must not count before it is in force.
#[test]
fn gc_meets_an_open_ingest() {
    // All of them fill value files while the ingest is open.
    let keys = |round: u32| (0..300).step_by(if round < 7 { 1 } else { 2 });
    for placement in PlacementKind::ALL {
        let fs = MemoryFs::new();
        let options = small(placement);
        let db = Db::open_in(Env { fs: Arc::new(fs.clone()), ..Env::system() }, "/db", options).unwrap();
        let ks = db.default_keyspace();
        let mut model = Model::new();
        for round in 0..4 {
            for n in 0..300 {
                ks.put(key(n), value(n, round)).unwrap();
                model.insert(key(n), value(n, round));
            }
        }
        for (round, finishes) in [(5, false), (6, true), (7, false), (8, true)] {
            let mut ingest = ks.ingest().unwrap();
            keys(round).for_each(|n| ingest.put(key(n), value(n, round)).unwrap());
            db.compact().unwrap();
            db.collect_garbage().unwrap();
            assert_eq!(entries(ks.iter()), expected(&model), "{placement:?}, {round}: open");
            if finishes {
                ingest.finish().unwrap();
                model.extend(keys(round).map(|n| (key(n), value(n, round))));
            } else {
                drop(ingest);
            }
            assert_eq!(entries(ks.iter()), expected(&model), "{placement:?}, {round}: ended");
            db.collect_garbage().unwrap();
            db.compact().unwrap();
            db.collect_garbage().unwrap();
            assert_eq!(entries(ks.iter()), expected(&model), "{placement:?}, {round}: collected");
        }
        // What is overwritten is not kept for good.
        assert!(placement == PlacementKind::Inline || db.stats().space.values_bytes < 400_000, "{placement:?}");
    }
}
