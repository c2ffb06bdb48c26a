//! Backups while the database is written to, and several at once.

use std::time::{Duration, Instant};

use bifold::{Backup, BackupOptions, Db, Error};

use super::held;
use crate::{
    copies::{ALL, check_copy, copy_while_written, crowded},
    support::{TempDir, entries, fill, tiny, tiny_db},
};

#[test]
fn backups_during_writes_and_gc_are_whole() {
    for placement in ALL {
        let dir = TempDir::new();
        let options = crowded(placement);
        let db = Db::open_with(dir.join("db"), options.clone()).unwrap();
        let other = db.keyspace("other", options.keyspace.clone()).unwrap();
        let made = copy_while_written((&db, &other), &[], 6, |_| db.backup(dir.join("backups")));
        let backup = Backup::open(dir.join("backups")).unwrap();
        assert!(backup.verify().unwrap().problems.is_empty(), "{placement:?}");
        for (commits, made) in made {
            let number = made.unwrap_or_else(|error| panic!("{placement:?}: {error}")).number;
            let path = dir.join(&format!("restored{number}"));
            backup.restore_generation(number, &path).unwrap();
            check_copy(&path, &commits, &options);
        }
    }
}

#[test]
fn backups_to_one_repository_exclude_each_other() {
    let (dir, db) = tiny_db();
    fill(db.default_keyspace(), 300, "both");
    let repository = dir.join("backups");
    let mut refused = Vec::new();
    db.backup_with(&repository, BackupOptions::default(), |_| {
        if refused.is_empty() {
            refused.push(db.backup(&repository).unwrap_err());
            let backup = Backup::open(&repository).unwrap();
            refused.push(backup.prune(1).unwrap_err());
            refused.push(backup.verify().unwrap_err());
            refused.push(backup.restore(dir.join("restored")).unwrap_err());
            assert!(backup.generations().unwrap().is_empty(), "listing needs no lock");
        }
        // Writers do not wait for the copy.
        db.put("meanwhile", "written").unwrap();
    })
    .unwrap();
    assert_eq!(refused.len(), 4);
    for error in refused {
        assert!(matches!(error, Error::Locked { .. }) && error.to_string().contains("backup"), "{error}");
    }
    Db::restore(&repository, dir.join("restored")).unwrap();
    assert_eq!(held(&dir.join("restored"), &tiny()).len(), 300, "what came after the backup began is not in it");
}

#[test]
fn a_backup_keeps_to_its_rate() {
    let (dir, db) = tiny_db();
    fill(db.default_keyspace(), 2000, &"long ".repeat(20));
    let slow = BackupOptions::default().with_bytes_per_second(Some(600 << 10));
    let begin = Instant::now();
    let made = db.backup_with(dir.join("backups"), slow, |_| ()).unwrap();
    let least =
        Duration::from_secs_f64(made.bytes as f64 / f64::from(600 << 10)).saturating_sub(Duration::from_millis(200));
    assert!(begin.elapsed() >= least, "{:?} for {} bytes", begin.elapsed(), made.bytes);
    Db::restore(dir.join("backups"), dir.join("restored")).unwrap();
    assert!(held(&dir.join("restored"), &tiny()) == entries(db.iter()));
}
