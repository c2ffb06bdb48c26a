//! The syncs of one file or directory. They exclude one another, and after a failed one there are no others.
//!
//! The system reports a failed write-back once and may have dropped the bytes. If two threads synced one file, the
//! second could see a success before it learned of the failure, and record lost bytes in the manifest.

use std::sync::{Mutex, MutexGuard, PoisonError};

use bifold_contract::{Error, Result, planted};

/// The error of a sync, if one has failed.
#[derive(Debug, Default)]
pub(super) struct Syncs(Mutex<Option<Error>>);

impl Syncs {
    /// Runs `sync`, unless an earlier one has failed.
    pub fn sync(&self, sync: impl FnOnce() -> Result<()>) -> Result<()> {
        Self::sync_all(vec![self], sync)
    }

    /// Runs `sync`, which covers all of `files`, unless an earlier sync of any of them has failed.
    pub fn sync_all(mut files: Vec<&Self>, sync: impl FnOnce() -> Result<()>) -> Result<()> {
        // Always in the same order, so that threads do not deadlock.
        files.sort_unstable_by_key(|syncs| std::ptr::from_ref(*syncs).addr());
        files.dedup_by_key(|syncs| std::ptr::from_ref(*syncs));
        let mut failed: Vec<MutexGuard<'_, Option<Error>>> = files.into_iter().map(Self::hold).collect();
        if let Some(error) = failed.iter().find_map(|failed| failed.as_ref())
            && !planted!("sync_again")
        {
            return Err(error.clone());
        }
        let outcome = sync();
        if let Err(error) = &outcome {
            failed.iter_mut().for_each(|failed| **failed = Some(error.clone()));
        }
        outcome
    }

    fn hold(&self) -> MutexGuard<'_, Option<Error>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use std::{path::Path, sync::Arc};

    use bifold_contract::IoSource;

    use crate::{
        Dir,
        faulty::{FaultKind, FaultyFs},
        memory::MemoryFs,
    };

    /// Regression: a group sync had failed and not reported it yet when an install synced the same file successfully
    /// and recorded it.
    #[test]
    fn after_a_failed_sync_a_file_or_directory_is_not_synced_again() {
        let fs = FaultyFs::over_memory(MemoryFs::default());
        let dir = Dir::new(Arc::new(fs.clone()), Path::new("/db"));
        dir.create_dir().unwrap();
        let [one, other] = ["one", "other"].map(|name| dir.create(name, IoSource::Flush).unwrap());
        one.append(&[b"lost"]).unwrap();
        fs.decide_by(Box::new(|call| call.op.starts_with("sync").then_some(FaultKind::EIO)));
        assert!(dir.sync_files([&one]).is_err() && dir.sync().is_err());
        fs.clear();
        assert!(one.sync().is_err() && dir.clone().sync().is_err(), "the bytes are lost, whatever is reported now");
        other.sync().unwrap();
        assert!(dir.sync_files([&other, &one]).is_err());
        dir.sync_files([&other]).unwrap();
    }
}
