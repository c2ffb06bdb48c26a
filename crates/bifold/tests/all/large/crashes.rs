//! Power is lost, or a call fails, at each moment of writing large values: each is there as a whole, or not at all.

use std::{path::Path, sync::Arc};

use bifold::{Db, Durability, Env, Keyspace, Options, PlacementKind};
use bifold_io::{
    faulty::FaultKind,
    memory::{Fate, MemoryFs},
};

use super::{LARGE, Model, bytes, files, key};
use crate::{
    bed::small,
    scene::{Scene, calls_of, failing, images},
    support::entries,
};

impl Scene<Model> {
    fn put(&self, at: usize, n: u32, round: u32, durability: Durability) -> bifold::Result<()> {
        let value = bytes(n, round, if round.is_multiple_of(2) { LARGE + 1 + u64::from(n) * 9000 } else { 200 });
        self.tell(|state| drop(state[at].insert(key(n), value.clone())));
        self.keyspaces[at].put_reader_with(key(n), &value[..], durability)?;
        if durability == Durability::Sync {
            self.is_durable();
        }
        Ok(())
    }

    fn delete(&self, at: usize, n: u32) -> bifold::Result<()> {
        self.tell(|state| drop(state[at].remove(&key(n))));
        self.keyspaces[at].delete(key(n))
    }

    /// Large values in memtables, in tables, overwritten in both, deleted, and held by a snapshot.
    fn play(&self) -> bifold::Result<()> {
        use Durability::{Buffered, Memory, Sync};
        self.put(0, 0, 0, Buffered)?;
        self.put(1, 1, 0, Memory)?;
        self.put(0, 2, 1, Buffered)?;
        self.put(0, 3, 2, Sync)?;
        self.put(0, 3, 4, Sync)?;
        self.put(1, 3, 2, Buffered)?;
        self.db.flush()?;
        let snapshot = self.db.snapshot();
        self.put(0, 3, 6, Buffered)?;
        self.put(0, 2, 8, Memory)?;
        self.delete(1, 1)?;
        self.put(0, 0, 3, Sync)?;
        self.db.flush()?;
        self.db.compact()?;
        drop(snapshot);
        self.put(1, 5, 10, Sync)?;
        self.delete(0, 3)?;
        self.db.compact()?;
        self.put(0, 7, 12, Buffered)
    }
}

/// The contents of a database that is opened from these files.
fn contents(fs: &MemoryFs, options: &Options) -> [Model; 2] {
    let env = Env { fs: Arc::new(fs.clone()), ..Env::system() };
    let db = Db::open_in(env, "/db", options.clone()).unwrap();
    let model = |keyspace: &Keyspace| -> Model {
        let model: Model = entries(keyspace.iter()).into_iter().collect();
        for (key, value) in &model {
            assert!(keyspace.get(key).unwrap().unwrap() == *value);
        }
        model
    };
    let other = db.existing_keyspace("other").unwrap();
    let before = [model(db.default_keyspace()), other.as_ref().map(&model).unwrap_or_default()];
    files::check(fs, Path::new("/db"), files::Others::None, "opened after a crash");
    db.compact().unwrap();
    db.collect_garbage().unwrap();
    assert!([model(db.default_keyspace()), other.as_ref().map(model).unwrap_or_default()] == before);
    drop(other);
    db.close().unwrap();
    files::check(fs, Path::new("/db"), files::Others::None, "merged after a crash");
    before
}

fn shown(found: &[Model; 2]) -> Vec<Vec<(String, usize)>> {
    let shown = |(key, value): (&Vec<u8>, &Vec<u8>)| (key.escape_ascii().to_string(), value.len());
    found.iter().map(|model| model.iter().map(shown).collect()).collect()
}

#[test]
fn a_power_loss_leaves_whole_values_and_all_that_was_promised() {
    for placement in PlacementKind::ALL {
        let options = small(placement);
        let images = images(&options, 2, Scene::<Model>::play);
        assert!(images.len() > 150, "{placement:?}: {} images", images.len());
        for image in images {
            let found = contents(&image.fs, &options);
            assert!(image.allows(&found), "{placement:?}, {}: {:?}", image.what, shown(&found));
        }
    }
}

#[test]
fn a_failing_call_leaves_whole_values_and_no_file_in_excess() {
    let kinds = [FaultKind::EIO, FaultKind::ENOSPC].into_iter().cycle();
    for (placement, kind) in PlacementKind::ALL.into_iter().zip(kinds) {
        let options = small(placement);
        let all = calls_of(&options, Scene::<Model>::play);
        let (mut failed, mut went_on) = (0, 0);
        for at in 0..all {
            let memory = MemoryFs::new();
            let (played, _, scene) = failing(&memory, &options, (at, kind), Scene::<Model>::play);
            failed += u64::from(played.is_err());
            let what = format!("{placement:?}, call {at} of {all}: {played:?}");
            let is_of_file = played.as_ref().is_err_and(|error| error.to_string().contains(".large"));
            if is_of_file && scene.db.stats().poisoned.is_none() {
                // What failed was a file that nothing named: it is gone, and the next one is taken.
                went_on += 1;
                files::check(&memory, Path::new("/db"), files::Others::None, &what);
                scene.told.lock().unwrap().states.pop();
                scene.put(0, 9, 14, Durability::Sync).unwrap();
            }
            let allowed = scene.allowed();
            let readable = scene.keyspaces.each_ref().map(|ks| entries(ks.iter()).into_iter().collect::<Model>());
            assert!(allowed.contains(&readable), "{what}: {:?}", shown(&readable));
            drop(scene);
            for fate in [Fate::KeepAll, Fate::DropUnsynced] {
                let found = contents(&memory.power_loss(fate), &options);
                assert!(allowed.contains(&found), "{what}, {fate:?}: {:?}", shown(&found));
            }
        }
        assert!(failed > 20 && went_on > 5, "{placement:?}: {failed} of {all} calls, {went_on} without poison");
    }
}

/// A disk without room: nothing is poisoned, and nothing stays.
#[test]
fn a_value_that_does_not_fit_leaves_nothing() {
    for reports_free in [true, false] {
        let memory = MemoryFs::new();
        memory.set_capacity(Some(6 << 20));
        let env = Env { fs: Arc::new(memory.clone()), ..Env::system() };
        let db = Db::open_in(env, "/db", small(PlacementKind::Inline)).unwrap();
        db.put_reader("key", &bytes(1, 1, LARGE * 8)[..]).unwrap();
        db.flush().unwrap();
        let before = memory.used_bytes();
        let error = db.put_reader("other", std::io::Read::take(std::io::repeat(1), 20 << 20)).unwrap_err();
        assert!(error.is_full(), "{error}");
        assert!(db.stats().poisoned.is_none(), "{error}");
        assert!(memory.used_bytes() <= before + (64 << 10), "{before} bytes before, {} after", memory.used_bytes());
        files::check(&memory, Path::new("/db"), files::Others::None, "full");
        assert!(db.get("key").unwrap().unwrap() == bytes(1, 1, LARGE * 8));
        if reports_free {
            memory.set_capacity(None);
            db.put_reader("other", &bytes(2, 1, LARGE * 8)[..]).unwrap();
            assert!(db.get("other").unwrap().unwrap() == bytes(2, 1, LARGE * 8));
        }
    }
}
