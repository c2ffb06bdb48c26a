//! Faults hit the calls they were planned for and leave behind what real ones would.

use std::{io::ErrorKind, path::Path, sync::Arc};

use bifold_contract::{Error, Result};

use super::{Fault, FaultKind, FaultyFs, Persistence};
use crate::{
    fs::{FileSystem, LockMode},
    memory::{Fate, MemoryFs},
};

const DIR: &str = "/db";
const FILE: &str = "/db/a";

/// One call of every kind, in an order in which each succeeds. Stops at the first failure.
fn every_call(fs: &dyn FileSystem) -> Result<()> {
    let (dir, a, b) = (Path::new(DIR), Path::new(FILE), Path::new("/db/b"));
    fs.create_dir_all(dir)?;
    let file = fs.create(a)?;
    file.append(&[b"abc", b"def"])?;
    file.sync()?;
    fs.sync_dir(dir)?;
    fs.open_append(a)?;
    let reader = fs.open(a)?;
    reader.len()?;
    reader.read_at(&mut [0; 3], 0)?;
    reader.read_once(&mut [0; 3], 0)?;
    fs.truncate(a, 2)?;
    fs.link(a, b)?;
    fs.rename(a, b)?;
    fs.list(dir)?;
    fs.len(b)?;
    fs.remove(b)?;
    fs.lock(b, LockMode::Exclusive)?;
    Ok(())
}

const OPS: [&str; 17] = [
    "create directory",
    "create",
    "append to",
    "sync",
    "sync directory",
    "open",
    "open",
    "look up",
    "read",
    "read",
    "truncate",
    "link",
    "rename",
    "list",
    "look up",
    "remove",
    "lock",
];

fn once(at: u64, kind: FaultKind) -> Fault {
    Fault { at, kind, persistence: Persistence::Once }
}

fn kind_of<T>(result: Result<T>) -> ErrorKind {
    match result {
        Err(Error::Io { source, .. }) => source.kind(),
        Err(other) => panic!("{other}"),
        Ok(_) => panic!("it succeeded"),
    }
}

#[test]
fn every_call_is_counted_and_each_can_fail_with_each_error() {
    let fs = FaultyFs::new(Arc::new(MemoryFs::new()));
    every_call(&fs).unwrap();
    assert_eq!((fs.calls(), fs.injected()), (OPS.len() as u64, Vec::new()));
    let kinds = [
        (FaultKind::EIO, 5),
        (FaultKind::ENOSPC, 28),
        (FaultKind::EMFILE, 24),
        (FaultKind::EINTR, 4),
        (FaultKind::Errno(13), 13),
    ];
    for (at, op) in (1..).zip(OPS) {
        for (kind, errno) in kinds {
            for fs in [FaultyFs::new(Arc::new(MemoryFs::new())), FaultyFs::over_memory(MemoryFs::new())] {
                fs.plan(once(at, kind));
                match every_call(&fs) {
                    Err(Error::Io { op: failed, source, .. }) => {
                        assert_eq!((failed, source.raw_os_error()), (op, Some(errno)));
                    }
                    other => panic!("call {at}: {other:?}"),
                }
                assert_eq!(fs.calls(), at);
                let injected: Vec<_> = fs.injected().into_iter().map(|(at, op, _)| (at, op)).collect();
                assert_eq!(injected, [(at, op)]);
            }
        }
    }
}

#[test]
fn a_fault_of_some_calls_ends_after_them() {
    let fs = FaultyFs::new(Arc::new(MemoryFs::default()));
    fs.plan(Fault { at: 2, kind: FaultKind::EIO, persistence: Persistence::Calls(3) });
    let fails: Vec<bool> = (0..6).map(|_| fs.create_dir_all(Path::new(DIR)).is_err()).collect();
    assert_eq!(fails, [false, true, true, true, false, false]);
}

#[test]
fn a_passing_fault_passes_and_a_sticky_one_stays_until_cleared() {
    let fs = FaultyFs::new(Arc::new(MemoryFs::new()));
    fs.plan(once(2, FaultKind::EIO));
    let look = || fs.list(Path::new("/")).is_ok();
    assert_eq!([look(), look(), look()], [true, false, true]);
    fs.plan(Fault { at: 5, kind: FaultKind::EIO, persistence: Persistence::Sticky });
    assert_eq!([look(), look(), look()], [true, false, false]);
    fs.clear();
    assert!(look());
    assert_eq!(fs.calls(), 7);
}

#[test]
fn a_short_write_writes_half_and_leaves_other_calls_alone() {
    let memory = MemoryFs::new();
    let fs = FaultyFs::over_memory(memory.clone());
    fs.plan(Fault { at: 1, kind: FaultKind::ShortWrite, persistence: Persistence::Sticky });
    assert_eq!(kind_of(every_call(&fs)), ErrorKind::StorageFull);
    assert_eq!(memory.read(FILE.as_ref()), Some(b"abc".to_vec()));
    assert_eq!(fs.injected(), [(3, "append to", FILE.into())]);
}

#[test]
fn a_sync_that_failed_is_not_made_good_by_one_that_succeeds() {
    let memory = MemoryFs::new();
    memory.write_durable(FILE.as_ref(), b"old ");
    let fs = FaultyFs::over_memory(memory.clone());
    let file = fs.open_append(FILE.as_ref()).unwrap();
    file.append(&[b"lost "]).unwrap();
    // The bytes must be found through the handle, not the name.
    fs.rename(FILE.as_ref(), "/db/b".as_ref()).unwrap();
    fs.create("/db/new".as_ref()).unwrap();
    fs.plan(once(fs.calls() + 1, FaultKind::EIO));
    assert!(file.sync().is_err());
    file.append(&[b"kept"]).unwrap();
    file.sync().unwrap();
    fs.sync_dir(DIR.as_ref()).unwrap();
    let found = memory.power_loss(Fate::DropUnsynced);
    assert_eq!(found.read("/db/b".as_ref()).unwrap(), b"old \0\0\0\0\0kept");
    assert_eq!(memory.read("/db/b".as_ref()).unwrap(), b"old lost kept");
}

#[test]
fn a_directory_sync_that_failed_is_not_made_good_either() {
    let memory = MemoryFs::new();
    let fs = FaultyFs::over_memory(memory.clone());
    fs.create_dir_all(DIR.as_ref()).unwrap();
    fs.create(FILE.as_ref()).unwrap();
    fs.plan(once(3, FaultKind::EIO));
    assert!(fs.sync_dir(DIR.as_ref()).is_err());
    fs.sync_dir(DIR.as_ref()).unwrap();
    assert_eq!(memory.power_loss(Fate::DropUnsynced).files().len(), 0);
}

#[test]
fn a_decider_is_asked_about_every_call() {
    let fs = FaultyFs::new(Arc::new(MemoryFs::new()));
    fs.decide_by(Box::new(|call| (call.op == "rename").then_some(FaultKind::EIO)));
    assert!(every_call(&fs).is_err());
    assert_eq!(fs.injected(), [(13, "rename", FILE.into())]);
}
