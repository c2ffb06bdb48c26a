//! Checkpoints of databases with separated values.

use bifold::{Db, KeyspaceOptions, Options, options::Values};

use super::{SEPARATED, check_all, separated, update_all};
use crate::support::TempDir;

/// A checkpoint shares its value files with the database: neither may append to them or truncate them, now or after
/// reopening.
#[test]
fn a_database_and_its_checkpoint_go_on_without_touching_each_other() {
    for placement in SEPARATED {
        let dir = TempDir::new();
        let paths = [dir.join("db"), dir.join("copy")];
        let db = Db::open_with(&paths[0], separated(placement)).unwrap();
        update_all(&db, 300, 0);
        db.collect_garbage().unwrap();
        update_all(&db, 150, 1);
        db.checkpoint(&paths[1]).unwrap();
        db.close().unwrap();
        for round in [2, 4, 6] {
            for (n, path) in paths.iter().enumerate() {
                let db = Db::open_with(path, separated(placement)).unwrap();
                update_all(&db, 300, round + n as u32);
                db.collect_garbage().unwrap();
                update_all(&db, 40, round + n as u32);
                db.close().unwrap();
            }
            for (n, path) in paths.iter().enumerate() {
                assert_eq!(bifold::verify(path).unwrap().problems.len(), 0, "{placement:?}, {}", path.display());
                let db = Db::open_with(path, separated(placement)).unwrap();
                check_all(&db, 300, round + n as u32);
                db.close().unwrap();
            }
        }
    }
}

/// The same without GC in between, so that both still share files when they write again.
#[test]
fn a_checkpoint_that_is_written_to_at_once_leaves_the_database_as_it_is() {
    for placement in SEPARATED {
        let dir = TempDir::new();
        let paths = [dir.join("db"), dir.join("copy")];
        let options = Options {
            keyspace: KeyspaceOptions {
                values: Values { space_target: 100.0, ..separated(placement).keyspace.values },
                ..separated(placement).keyspace
            },
            ..separated(placement)
        };
        let db = Db::open_with(&paths[0], options.clone()).unwrap();
        update_all(&db, 100, 0);
        db.checkpoint(&paths[1]).unwrap();
        db.close().unwrap();
        for round in 1..4 {
            for (n, path) in paths.iter().enumerate() {
                let db = Db::open_with(path, options.clone()).unwrap();
                check_all(&db, 100, if round == 1 { 0 } else { 10 * n as u32 + round - 1 });
                update_all(&db, 100, 10 * n as u32 + round);
                db.close().unwrap();
                assert_eq!(bifold::verify(path).unwrap().problems.len(), 0, "{placement:?}, {}", path.display());
            }
        }
    }
}
