//! Every release restores from repositories that earlier ones wrote. The one in `v1`, next to this file, was written by
//! the first release.

use std::{
    fs,
    path::{Path, PathBuf},
    sync::Arc,
};

use bifold::{Backup, Db, Env, PlacementKind};
use bifold_io::{clock::ManualClock, memory::MemoryFs};

use super::{held, options};
use crate::support::{TempDir, entries, fill};

fn fixture() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/all/backups/v1")
}

/// The history of the fixture. Returns what each generation holds. It stays as it is as long as the fixture does.
fn history(fs: &MemoryFs) -> Vec<Vec<(Vec<u8>, Vec<u8>)>> {
    let clock = ManualClock::default();
    clock.advance(std::time::Duration::from_secs(1_795_595_400));
    let env = Env { fs: Arc::new(fs.clone()), clock: Arc::new(clock), ..Env::system() };
    let db = Db::open_in(env, "/db", options(PlacementKind::WiscKey)).unwrap();
    let mut shown = Vec::new();
    for round in ["first", "second"] {
        fill(db.default_keyspace(), 120, round);
        db.flush().unwrap();
        db.put("in the log", round).unwrap();
        db.backup("/backups").unwrap();
        shown.push(entries(db.iter()));
        db.delete_range("key0010".."key0040").unwrap();
    }
    shown
}

/// Writes the fixture if it is not there: `cargo test -p bifold --test all backups::fixture -- --ignored`.
#[test]
#[ignore = "writes a file of the repository"]
fn write_the_fixture() {
    let fs = MemoryFs::default();
    history(&fs);
    assert!(!fixture().exists(), "a fixture is never replaced");
    for path in fs.files().into_iter().filter(|path| path.starts_with("/backups") && !path.ends_with("LOCK")) {
        let to = fixture().join(path.strip_prefix("/backups").unwrap());
        fs::create_dir_all(to.parent().unwrap()).unwrap();
        fs::write(to, fs.read(&path).unwrap()).unwrap();
    }
}

#[test]
fn a_repository_of_version_1_is_read() {
    let (dir, shown) = (TempDir::new(), history(&MemoryFs::default()));
    let repository = dir.join("backups");
    for part in ["files", "generations"] {
        fs::create_dir_all(repository.join(part)).unwrap();
        for entry in fs::read_dir(fixture().join(part)).unwrap() {
            let entry = entry.unwrap();
            fs::copy(entry.path(), repository.join(part).join(entry.file_name())).unwrap();
        }
    }
    let backup = Backup::open(&repository).unwrap();
    assert!(backup.verify().unwrap().problems.is_empty());
    let generations = backup.generations().unwrap();
    assert_eq!(generations.iter().map(|g| g.taken_at_unix_seconds).collect::<Vec<_>>(), [1_795_595_400; 2]);
    for (number, shown) in (1..).zip(shown) {
        let path = dir.join(&format!("restored{number}"));
        backup.restore_generation(number, &path).unwrap();
        assert!(held(&path, &options(PlacementKind::WiscKey)) == shown, "generation {number}");
    }
}
