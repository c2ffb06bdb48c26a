//! The syncs of one file or directory: they exclude each other, and after one that has failed there is no other.
//!
//! The system tells of a failed write-back once, and may have dropped the bytes. Of two threads that sync one file the second
//! would hear that all is well, before anybody could tell it otherwise, and might name what is lost in the manifest.

use std::sync::{Mutex, MutexGuard, PoisonError};

use bifold_contract::{Error, Result, planted};

/// Whether a sync has failed.
#[derive(Debug, Default)]
pub(super) struct Syncs(Mutex<Option<Error>>);

impl Syncs {
    /// Does `sync`, unless one has failed before.
    pub fn sync(&self, sync: impl FnOnce() -> Result<()>) -> Result<()> {
        Self::sync_all(vec![self], sync)
    }

    /// Does `sync`, which is of all of `files`, unless one of any of them has failed before.
    pub fn sync_all(mut files: Vec<&Self>, sync: impl FnOnce() -> Result<()>) -> Result<()> {
        // In one order, whoever does it, so that nobody waits in a circle.
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

    /// A group sync had failed and had not said so yet, when an install synced the same file with success and listed it.
    #[test]
    fn after_a_sync_that_has_failed_there_is_no_other_of_that_file_or_directory() {
        let fs = FaultyFs::over_memory(MemoryFs::default());
        let dir = Dir::new(Arc::new(fs.clone()), Path::new("/db"));
        dir.create_dir().unwrap();
        let [one, other] = ["one", "other"].map(|name| dir.create(name, IoSource::Flush).unwrap());
        one.append(&[b"lost"]).unwrap();
        fs.decide_by(Box::new(|call| call.op.starts_with("sync").then_some(FaultKind::EIO)));
        assert!(dir.sync_files([&one]).is_err() && dir.sync().is_err());
        fs.clear();
        assert!(one.sync().is_err() && dir.clone().sync().is_err(), "the bytes are lost, whatever the system says now");
        other.sync().unwrap();
        assert!(dir.sync_files([&other, &one]).is_err());
        dir.sync_files([&other]).unwrap();
    }
}
