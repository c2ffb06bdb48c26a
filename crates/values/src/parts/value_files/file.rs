//! One value file: what is known of it, and reading from it.

use std::sync::{
    Arc, Mutex, OnceLock,
    atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering::Relaxed},
};

use bifold_contract::{Corruption, FileId, IoSource, KeyspaceId, Pointer, Result, ValueFileMeta};
use bifold_format::{compression::zeroed, value::Description};
use bifold_io::{Reader, Writer, with_scratch};

use crate::parts::sync::LockExt;

/// What the manifest records about a file with values sorted by key.
#[derive(Clone, Debug, Default)]
pub struct Extent {
    /// The level of the index whose keys its values follow.
    pub level: u8,
    /// Records in it.
    pub entries: u64,
    /// The smallest key in it.
    pub smallest: Box<[u8]>,
    /// The largest key in it.
    pub largest: Box<[u8]>,
}

/// How the bytes of a record are read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReadBy {
    /// Through mapped pages or by a call, whichever is better where records are read again.
    AnyWay,
    /// By a call.
    Call,
}

/// One value file.
#[derive(Debug)]
pub struct ValueFile {
    /// Its number.
    pub id: FileId,
    /// What it says about itself.
    pub description: Description,
    pub(super) reader: Reader,
    /// While it is open for appending.
    pub(super) writer: Mutex<Option<Arc<Writer>>>,
    /// Where its records begin.
    pub(super) start: u64,
    /// Bytes in it that count.
    pub(super) len: AtomicU64,
    /// The length recorded in the manifest: that much is whole.
    pub(super) recorded_len: AtomicU64,
    /// Dead bytes in it, as far as known.
    pub(super) dead: AtomicU64,
    pub(super) recorded_dead: AtomicU64,
    pub(super) dirty: AtomicBool,
    /// A flush has begun it, or an ingest whose values are separated by a rewrite.
    pub(super) is_of_flush: bool,
    /// Nothing is appended any more: a copy of the database links to it.
    pub(super) sealed: AtomicBool,
    /// The key range of its values, if they are sorted by key.
    pub(super) extent: OnceLock<Extent>,
    pub(super) tags: AtomicU32,
    /// Its length when the running sync began, and when the last successful one began.
    pub(super) syncing: AtomicU64,
    pub(super) synced: AtomicU64,
}

impl ValueFile {
    /// The reader of the file.
    #[must_use]
    pub fn reader(&self) -> &Reader {
        &self.reader
    }

    /// Where its records begin.
    #[must_use]
    pub fn start(&self) -> u64 {
        self.start
    }

    /// Bytes in it.
    #[must_use]
    pub fn len(&self) -> u64 {
        self.len.load(Relaxed)
    }

    /// Whether there is no record in it.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() <= self.start
    }

    /// Whether the manifest knows it.
    #[must_use]
    pub fn is_known(&self) -> bool {
        self.recorded_len.load(Relaxed) > 0
    }

    /// Whether the manifest knows all of it.
    #[must_use]
    pub fn is_recorded(&self) -> bool {
        self.recorded_len.load(Relaxed) == self.len()
    }

    /// Whether a flush has written it, or an ingest. Until it is installed, the memtable and the log of the flush have
    /// its values, too.
    #[must_use]
    pub fn is_of_flush(&self) -> bool {
        self.is_of_flush
    }

    /// The key range of its values, if they are sorted by key.
    #[must_use]
    pub fn extent(&self) -> Option<&Extent> {
        self.extent.get()
    }

    /// The tags recorded in the manifest.
    #[must_use]
    pub fn tags(&self) -> u32 {
        self.tags.load(Relaxed)
    }

    /// Whether nothing may be appended any more.
    #[must_use]
    pub fn is_sealed(&self) -> bool {
        self.sealed.load(Relaxed)
    }

    /// Dead bytes in it, as far as known.
    #[must_use]
    pub fn dead(&self) -> u64 {
        self.dead.load(Relaxed).min(self.len().saturating_sub(self.start))
    }

    /// The share of its record bytes that are needed, as far as known.
    #[must_use]
    pub fn valid_share(&self) -> f64 {
        let bytes = self.len().saturating_sub(self.start);
        bytes.saturating_sub(self.dead()) as f64 / bytes.max(1) as f64
    }

    /// Counts so many more bytes as dead.
    pub fn add_dead(&self, bytes: u64) {
        self.dead.fetch_add(bytes, Relaxed);
    }

    /// Raises the number of dead bytes to this, if fewer were known.
    pub fn raise_dead_to(&self, bytes: u64) {
        self.dead.fetch_max(bytes, Relaxed);
    }

    /// The bytes that a pointer into this file leads to. A damaged pointer never allocates more than the file has.
    ///
    /// # Errors
    /// I/O errors; corruption when the file ends before that.
    pub fn read_bytes(&self, pointer: Pointer, source: IoSource, by: ReadBy) -> Result<Arc<[u8]>> {
        self.check_place(pointer)?;
        let mut bytes = zeroed(pointer.len as usize);
        if let Some(bytes) = Arc::get_mut(&mut bytes) {
            self.fill(bytes, pointer.offset, source, by)?;
        }
        Ok(bytes)
    }

    /// Shows `look` the bytes that a pointer into this file leads to, in a buffer of the thread if there are not many.
    ///
    /// # Errors
    /// As [`ValueFile::read_bytes`], and those of `look`.
    #[inline]
    pub fn look_at_bytes<T>(
        &self,
        pointer: Pointer,
        source: IoSource,
        by: ReadBy,
        look: impl FnOnce(&[u8]) -> std::result::Result<T, Corruption>,
    ) -> Result<T> {
        self.check_place(pointer)?;
        with_scratch(pointer.len as usize, |bytes| {
            self.fill(bytes, pointer.offset, source, by)?;
            look(bytes).map_err(|damage| damage.of(self.reader.path()))
        })
    }

    #[inline]
    fn check_place(&self, pointer: Pointer) -> Result<()> {
        let needed = pointer.offset.saturating_add(u64::from(pointer.len));
        if needed <= self.len().max(self.reader.len()) { Ok(()) } else { self.check_end(pointer, needed) }
    }

    /// The same for a place beyond what is known of the file: another process may have appended to it.
    #[cold]
    fn check_end(&self, pointer: Pointer, needed: u64) -> Result<()> {
        let end = self.reader.len_now()?;
        if needed > end {
            let (expected, found) = (format!("{} bytes", pointer.len), format!("a file of {end} bytes"));
            return Err(Corruption::new(pointer.offset, "value record", expected, found).of(self.reader.path()));
        }
        Ok(())
    }

    #[inline]
    fn fill(&self, bytes: &mut [u8], offset: u64, source: IoSource, by: ReadBy) -> Result<()> {
        match by {
            ReadBy::AnyWay => self.reader.read_at(bytes, offset, source),
            ReadBy::Call => self.reader.call_at(bytes, offset, source),
        }
    }

    /// Closes it for appending if all of it is durable and nobody is appending.
    pub(super) fn close_if_idle(&self) {
        let mut writer = self.writer.hold();
        let is_durable = !self.dirty.load(Relaxed) && self.synced.load(Relaxed) == self.len();
        if is_durable && writer.as_ref().is_some_and(|writer| Arc::strong_count(writer) == 1) {
            *writer = None;
        }
    }

    /// What the manifest records about it.
    pub(super) fn meta(&self, keyspace: KeyspaceId) -> ValueFileMeta {
        let Extent { level, entries, smallest, largest } = self.extent.get().cloned().unwrap_or_default();
        ValueFileMeta {
            id: self.id,
            class: self.description.class,
            keyspace,
            group: self.description.group,
            level,
            tags: self.tags(),
            bytes: self.len(),
            entries,
            deleted: None,
            smallest,
            largest,
        }
    }
}
