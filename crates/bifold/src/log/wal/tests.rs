//! Syncs that fail.

use std::path::Path;

use bifold_io::{
    faulty::{FaultKind, FaultyFs},
    memory::MemoryFs,
};

use super::*;

/// As soon as a sync returns, [`GroupSync`](crate::waiting::group_sync::GroupSync) lets the next one begin. Racing
/// threads hardly ever hit the moment in between.
#[test]
fn a_sync_that_has_failed_is_known_before_another_can_begin() {
    let faulty = FaultyFs::over_memory(MemoryFs::default());
    let dir = Dir::new(Arc::new(faulty.clone()), Path::new("/db"));
    dir.create_dir().unwrap();
    let mut wal = Wal::begin(&dir, 1, 1, KeptLogs::default()).unwrap();
    wal.append(1, |commit| commit.put(1, b"key", b"value")).unwrap();
    let (wal, health) = (FairLock::new(wal), Health::default());
    faulty.decide_by(Box::new(|call| (call.op == "sync").then_some(FaultKind::EIO)));
    assert!(sync_now(&wal, |_| Vec::new(), &health).is_err());
    assert!(health.well().is_err());
    faulty.clear();
    assert!(matches!(sync_now(&wal, |_| Vec::new(), &health), Err(Error::Poisoned { .. })));
}
