//! A file being appended to.

use std::{
    borrow::Borrow,
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
        let bytes = parts.iter().map(|p| p.len() as u64).sum::<u64>();
        self.len.fetch_add(bytes, Relaxed);
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

/// The files that one rewrite has finished and that no sync has covered. Syncs of several files at once share the
/// device's flushes and the file system's journal; and a file is written out while the next ones are made.
#[derive(Debug)]
pub struct Together<W> {
    writers: Vec<W>,
    bytes: u64,
}

/// So many files, or so many bytes, are synced together: more would not be faster, and each file is open until then.
const FILES_TOGETHER: usize = 16;
const BYTES_TOGETHER: u64 = 64 << 20;

impl<W> Default for Together<W> {
    fn default() -> Self {
        Self { writers: Vec::new(), bytes: 0 }
    }
}

impl<W: Borrow<Writer>> Together<W> {
    /// Adds a file to which nothing is appended any more.
    pub fn push(&mut self, writer: W) {
        self.bytes += writer.borrow().len();
        self.writers.push(writer);
    }

    /// Whether they should be synced before others are made.
    #[must_use]
    pub fn is_full(&self) -> bool {
        self.writers.len() >= FILES_TOGETHER || self.bytes >= BYTES_TOGETHER
    }

    /// Takes them all, to sync them.
    #[must_use]
    pub fn take(&mut self) -> Vec<W> {
        std::mem::take(self).writers
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        if let Some(readers) = self.readers.upgrade() {
            readers.release();
        }
    }
}
