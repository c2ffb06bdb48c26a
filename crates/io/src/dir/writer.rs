//! A file being appended to.

use std::{
    path::{Path, PathBuf},
    sync::{
        Arc, Weak,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
};

use bifold_contract::{IoSource, Result};

use super::{IoCounters, reader::SharedReader, syncs::Syncs};
use crate::{fs::WriteFile, open_files::Written};

/// A file being appended to. It is open while this lives.
#[derive(Debug)]
pub struct Writer {
    pub(super) file: Arc<dyn WriteFile>,
    pub(super) path: PathBuf,
    pub(super) len: AtomicU64,
    pub(super) source: IoSource,
    pub(super) counters: Arc<IoCounters>,
    /// The reader of the same file; it needs this writer's handle for what was just appended.
    pub(super) readers: Weak<SharedReader>,
    pub(super) syncs: Syncs,
    pub(super) _counted: Written,
}

impl Writer {
    /// Appends `parts` in order as one piece; see [`WriteFile::append`]. Appends must not run concurrently.
    ///
    /// # Errors
    /// The file system's.
    pub fn append(&self, parts: &[&[u8]]) -> Result<()> {
        self.file.append(parts)?;
        let bytes = parts.iter().map(|p| p.len()).sum::<usize>();
        self.len.fetch_add(bytes as u64, Relaxed);
        self.counters.count_written(self.source, bytes);
        Ok(())
    }

    /// Makes everything appended before the call durable.
    ///
    /// # Errors
    /// The file system's, or that of an earlier sync.
    pub fn sync(&self) -> Result<()> {
        self.counters.syncs.fetch_add(1, Relaxed);
        self.syncs.sync(|| self.file.sync())
    }

    /// Asks the system to begin writing out what was appended, without waiting.
    pub fn start_writeback(&self) {
        self.file.start_writeback();
    }

    /// Bytes in the file, including everything appended.
    pub fn len(&self) -> u64 {
        self.len.load(Relaxed)
    }

    /// Whether the file is empty.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The file's path.
    pub fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        if let Some(readers) = self.readers.upgrade() {
            readers.release();
        }
    }
}
