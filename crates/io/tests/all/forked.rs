//! A child that a process forks without `exec` has everything that its parent has open.

use bifold_io::{FileSystem, disk::DiskFs, fs::LockMode};

#[test]
fn a_forked_child_that_drops_what_it_has_inherited_does_not_unlock_for_its_parent() {
    let dir = std::env::temp_dir().join(format!("bifold-forked-{}", std::process::id()));
    std::fs::create_dir_all(&dir).unwrap();
    let lock = || DiskFs.lock(&dir.join("LOCK"), LockMode::Exclusive);
    let held = lock().unwrap();
    // SAFETY: the child frees one box, for which the C library's allocator is prepared after a fork, closes a file, and
    // ends at once. It takes no lock that another thread may have held at the fork.
    let child = unsafe { libc::fork() };
    if child == 0 {
        drop(held);
        // SAFETY: ends the child without what the test harness does at an exit.
        unsafe { libc::_exit(0) };
    }
    let mut status = -1;
    // SAFETY: waits for that child; `status` lives as long as the call.
    assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
    assert_eq!(status, 0);
    assert!(lock().is_err(), "a second process would be let in");
    drop(held);
    lock().unwrap();
    std::fs::remove_dir_all(dir).unwrap();
}
