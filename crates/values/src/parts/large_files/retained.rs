//! Files that the change feed needs, with or without an entry: those that its logs name.
//!
//! ```text
//! retained ─┬─ the store drops the entry ─▶ only the feed needs it ─▶ released ─▶ deleted
//!           └─ released: it is the store's alone, as any other
//! ```
//!
//! Whoever retains a file holds it until the release, so the last one to drop it knows whether both need it no more. A
//! process that ends releases nothing: the files stay, and the logs say which they are.

use std::sync::{
    Arc, OnceLock,
    atomic::{AtomicBool, Ordering::Relaxed},
};

use bifold_contract::{FileId, KeyspaceId, LargeRef, Result};
use bifold_io::Dir;

use super::{LargeFile, LargeFiles, LargeHome, open_with};

impl LargeFile {
    /// A file in `dir` that no entry names any more, but logs that are kept. It is retained.
    #[must_use]
    pub fn left(dir: &Dir, file: FileId, bytes: u64) -> Arc<Self> {
        // Nobody reads it by this: who reads changes knows the key.
        let left = Self::alone(dir, 0, LargeRef { file, len: 0, sum: 0 }, 0);
        let home = Arc::clone(&left.home);
        let (is_obsolete, is_retained) = (AtomicBool::new(true), AtomicBool::new(true));
        Arc::new(Self { home, named: left.named, bytes, reader: OnceLock::new(), is_obsolete, is_retained })
    }

    /// The change feed needs it from now on, whatever happens to its entry.
    pub fn retain(&self) {
        self.is_retained.store(true, Relaxed);
    }

    /// The change feed needs it no more. If no entry names it either, it is deleted when nobody has it any more.
    pub fn release(self: Arc<Self>) {
        self.is_retained.store(false, Relaxed);
    }

    /// Whether no entry names it any more.
    #[must_use]
    pub fn is_obsolete(&self) -> bool {
        self.is_obsolete.load(Relaxed)
    }

    /// Its length.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.bytes
    }
}

impl LargeFiles {
    /// The file that an operation in a log names, of any keyspace, whether or not an entry names it still. It can be
    /// read also when its name is removed meanwhile.
    ///
    /// # Errors
    /// I/O errors, among them that there is no such file; corruption.
    pub fn open_held(&self, keyspace: KeyspaceId, key: &[u8], named: LargeRef) -> Result<Arc<LargeFile>> {
        let of = &self.home;
        let home = LargeHome {
            dir: of.dir.clone(),
            keyspace,
            access: of.access,
            new_file: Arc::clone(&of.new_file),
            buffers: Arc::clone(&of.buffers),
        };
        let reader = open_with(|name| of.dir.open_held(name), named, (keyspace, key))?;
        let (bytes, reader) = (reader.len(), OnceLock::from(reader));
        let (is_obsolete, is_retained) = (AtomicBool::new(false), AtomicBool::new(false));
        Ok(Arc::new(LargeFile { home: Arc::new(home), named, bytes, reader, is_obsolete, is_retained }))
    }
}
