//! Backups of a reader that is open while one writer follows another.

use std::{path::PathBuf, sync::Arc};

use bifold::{Access, Backup, Db, Env, KeyspaceOptions, Options, PlacementKind};
use bifold_io::faulty::{FaultKind, FaultyFs};

use crate::bed::{Bed, small};

/// A commit whose record does not get out leaves its value behind. The next writer cuts that off, and appends another
/// value of the same length.
#[test]
fn a_value_file_that_another_writer_has_cut_is_read_again() {
    let mut bed = Bed::of(small(PlacementKind::HashKv));
    bed.db.take().unwrap().close().unwrap();
    let faulty = FaultyFs::over_memory(bed.fs.clone());
    let env = || Env { fs: Arc::new(faulty.clone()), ..bed.env() };
    let writer = Db::open_in(env(), "/db", bed.options.clone()).unwrap();
    // Others that stay as they are, some of them in the file of `k`: so little is dead that GC leaves it alone.
    (0..100).for_each(|n| writer.put(format!("other {n}"), [0; 500]).unwrap());
    writer.sync().unwrap();
    let following = Options { access: Access::Follow, keyspace: KeyspaceOptions::default(), ..bed.options.clone() };
    let mut follower = Db::open_in(env(), "/db", following).unwrap();
    faulty.decide_by(Box::new(|call| {
        let is_log = call.path.starts_with("/db") && call.path.extension().is_some_and(|end| end == "log");
        (is_log && call.op == "append to").then_some(FaultKind::EIO)
    }));
    writer.put("k", [1; 500]).unwrap_err();
    let lengths = || {
        let is_one = |path: &PathBuf| path.starts_with("/db") && path.extension().is_some_and(|end| end == "val");
        let files = bed.fs.files().into_iter().filter(is_one);
        files.map(|path| (bed.fs.read(&path).unwrap().len(), path)).collect::<Vec<_>>()
    };
    let before = lengths();
    follower.backup("/backups").unwrap();
    drop(writer);
    faulty.clear();
    let writer = Db::open_in(env(), "/db", bed.options.clone()).unwrap();
    assert!(writer.get("k").unwrap().is_none());
    assert_ne!(lengths(), before, "it is cut");
    writer.put("k", [2; 500]).unwrap();
    assert_eq!(lengths(), before, "and as long again");
    follower.refresh().unwrap();
    follower.backup("/backups").unwrap();
    let backup = Backup::open_in(env(), "/backups").unwrap();
    assert!(backup.verify().unwrap().problems.is_empty());
    for (generation, value) in [(1, None), (2, Some([2; 500]))] {
        let path = format!("/restored{generation}");
        backup.restore_generation(generation, &path).unwrap();
        let restored = Db::open_in(env(), &path, bed.options.clone()).unwrap();
        assert_eq!(restored.get("k").unwrap().as_deref(), value.as_ref().map(|value| &value[..]), "{generation}");
        assert_eq!(restored.get("other 3").unwrap().as_deref(), Some(&[0; 500][..]), "{generation}");
    }
}
