//! A child that a process forks without `exec` has everything that its parent has open.

use std::{
    fs::{Permissions, metadata, set_permissions},
    os::unix::fs::{MetadataExt, PermissionsExt, chown},
    path::{Path, PathBuf},
    sync::Arc,
};

use bifold_contract::IoSource;
use bifold_io::{
    Dir, FileSystem,
    disk::DiskFs,
    fs::LockMode,
    pins::{Need, Pin, Pins, Position, READERS},
};

fn scratch(name: &str) -> PathBuf {
    let dir = std::env::temp_dir().join(format!("bifold-forked-{name}-{}", std::process::id()));
    std::fs::create_dir_all(&dir).unwrap();
    dir
}

/// Does `act` in a forked child, which ends without dropping anything else. It has to return whether all is well.
fn in_child(act: impl FnOnce() -> bool) {
    // SAFETY: the child allocates and frees, for which the C library's allocator is prepared after a fork, makes calls
    // of files, and ends. It takes no lock that another thread may have held at the fork.
    let child = unsafe { libc::fork() };
    if child == 0 {
        let is_well = act();
        // SAFETY: ends the child without what the test harness does at an exit.
        unsafe { libc::_exit(i32::from(!is_well)) };
    }
    let mut status = -1;
    // SAFETY: waits for that child; `status` lives as long as the call.
    assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
    assert_eq!(status, 0);
}

#[test]
fn a_forked_child_that_drops_what_it_has_inherited_does_not_unlock_for_its_parent() {
    let dir = scratch("lock");
    let lock = || DiskFs.lock(&dir.join("LOCK"), LockMode::Exclusive);
    let held = lock().unwrap();
    let mut held = Some(held);
    in_child(|| {
        drop(held.take());
        true
    });
    assert!(lock().is_err(), "a second process would be let in");
    drop(held);
    lock().unwrap();
    std::fs::remove_dir_all(dir).unwrap();
}

#[test]
fn a_forked_child_that_drops_readers_removes_no_file_of_its_parent() {
    let path = scratch("readers");
    let dir = Dir::new(Arc::new(DiskFs), &path);
    dir.create("1.tbl", IoSource::Flush).unwrap().append(&[b"xyz"]).unwrap();
    let reader = dir.open("1.tbl").unwrap();
    reader.remove_when_unused();
    let mut reader = Some(reader);
    in_child(|| {
        drop(reader.take());
        dir.remove("1.tbl").is_ok()
    });
    assert_eq!(dir.list().unwrap(), ["1.tbl"]);
    drop(reader);
    assert!(dir.list().unwrap().is_empty());
    std::fs::remove_dir_all(path).unwrap();
}

#[test]
fn a_forked_child_that_drops_a_pin_leaves_it_to_its_parent() {
    let path = scratch("pins");
    let dir = Dir::new(Arc::new(DiskFs), &path);
    let number = |name: &str| name.strip_suffix(".tbl")?.parse().ok();
    let writer = dir.clone().with_pins(Pins::of(&dir, number));
    dir.create("1.tbl", IoSource::Flush).unwrap().append(&[b"xyz"]).unwrap();
    let pin = Pin::take(&dir).unwrap();
    let mut pin = Some(pin);
    in_child(|| {
        let held = pin.as_ref().map(|pin| pin.hold(Need { since: Position::LAST, below: 0 }));
        drop(pin.take());
        held.is_some_and(|held| held.is_err())
    });
    writer.remove("1.tbl").unwrap();
    assert_eq!((writer.release_pinned().readers, writer.release_pinned().files), (1, 1));
    drop(pin);
    assert_eq!((writer.release_pinned().readers, writer.release_pinned().files), (0, 0));
    std::fs::remove_dir_all(path).unwrap();
}

/// Pins the database in `path` in a process that makes private files. Returns the pin's file, which that process leaves
/// behind at its end.
fn pinned_privately(path: &Path) -> PathBuf {
    let dir = Dir::new(Arc::new(DiskFs), path);
    in_child(|| {
        // SAFETY: a call that cannot fail and changes no memory; the mask is that of the child alone.
        unsafe { libc::umask(0o077) };
        Pin::take(&dir).map(std::mem::forget).is_ok()
    });
    let mut pins = DiskFs.list(&path.join(READERS)).unwrap();
    assert_eq!(pins.len(), 1);
    pins.remove(0)
}

fn permissions(path: &Path) -> u32 {
    metadata(path).unwrap().permissions().mode() & 0o777
}

#[test]
fn whoever_uses_a_database_can_list_and_read_its_pins_whatever_mask_their_reader_has() {
    for (of_database, of_pins, of_pin) in [(0o755, 0o755, 0o644), (0o770, 0o770, 0o640), (0o700, 0o700, 0o600)] {
        let path = scratch(&format!("mask-{of_database:o}"));
        set_permissions(&path, Permissions::from_mode(of_database)).unwrap();
        let pin = pinned_privately(&path);
        assert_eq!((permissions(&path.join(READERS)), permissions(&pin)), (of_pins, of_pin), "{of_database:o}");
        std::fs::remove_dir_all(path).unwrap();
    }
}

/// An administrator has read it first: the owner's own readers have to create pins there, too.
#[test]
fn the_directory_of_pins_is_given_to_the_owner_of_the_database() {
    let path = scratch("owner");
    if chown(&path, Some(1), Some(1)).is_err() {
        println!("skipped: only root may give files to others");
        return std::fs::remove_dir_all(path).unwrap();
    }
    set_permissions(&path, Permissions::from_mode(0o700)).unwrap();
    let pin = pinned_privately(&path);
    let readers = metadata(path.join(READERS)).unwrap();
    assert_eq!((readers.uid(), readers.gid(), readers.mode() & 0o777), (1, 1, 0o700));
    assert_eq!(permissions(&pin), 0o644, "it stays the administrator's, and the owner can read it");
    std::fs::remove_dir_all(path).unwrap();
}
