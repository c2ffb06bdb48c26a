//! One value file: what is known of it, and reading from it.

use std::sync::{
    Arc, Mutex, OnceLock,
    atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering::Relaxed},
};

use bifold_contract::{Corruption, FileId, IoSource, KeyspaceId, Pointer, Result, ValueFileMeta};
use bifold_format::{compression::zeroed, value::Description};
use bifold_io::{Reader, Writer};

use crate::parts::sync::LockExt;

/// What the manifest says of a file with values by key.
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
    /// How much of it the manifest knows: that much is whole.
    pub(super) listed: AtomicU64,
    /// Bytes of it that nobody needs, as far as known.
    pub(super) dead: AtomicU64,
    pub(super) recorded_dead: AtomicU64,
    pub(super) dirty: AtomicBool,
    /// Nothing is appended any more: it has another name, in a copy of the database.
    pub(super) sealed: AtomicBool,
    /// Where its values stand in the order of keys, if they do in some.
    pub(super) extent: OnceLock<Extent>,
    pub(super) tags: AtomicU32,
    /// Its length when the sync began that runs, and the one that last ended well.
    pub(super) syncing: AtomicU64,
    pub(super) synced: AtomicU64,
}

impl ValueFile {
    /// To read from.
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
        self.listed.load(Relaxed) > 0
    }

    /// Whether the manifest knows all of it.
    #[must_use]
    pub fn is_recorded(&self) -> bool {
        self.listed.load(Relaxed) == self.len()
    }

    /// Where its values stand in the order of keys, if they do in some.
    #[must_use]
    pub fn extent(&self) -> Option<&Extent> {
        self.extent.get()
    }

    /// Marks that the manifest remembers.
    #[must_use]
    pub fn tags(&self) -> u32 {
        self.tags.load(Relaxed)
    }

    /// Whether nothing may be appended any more.
    #[must_use]
    pub fn is_sealed(&self) -> bool {
        self.sealed.load(Relaxed)
    }

    /// Bytes of it that nobody needs, as far as known.
    #[must_use]
    pub fn dead(&self) -> u64 {
        self.dead.load(Relaxed).min(self.len().saturating_sub(self.start))
    }

    /// Of its records, the share of bytes that is needed, as far as known.
    #[must_use]
    pub fn valid_share(&self) -> f64 {
        let bytes = self.len().saturating_sub(self.start);
        bytes.saturating_sub(self.dead()) as f64 / bytes.max(1) as f64
    }

    /// Notes that so many more bytes are not needed.
    pub fn add_dead(&self, bytes: u64) {
        self.dead.fetch_add(bytes, Relaxed);
    }

    /// Notes that so many bytes are not needed, if fewer were known.
    pub fn raise_dead_to(&self, bytes: u64) {
        self.dead.fetch_max(bytes, Relaxed);
    }

    /// The bytes that a pointer into this file leads to. A pointer may be damaged: memory is taken for no more than the file
    /// has.
    ///
    /// # Errors
    /// I/O errors; corruption when the file ends before.
    pub fn read_bytes(&self, pointer: Pointer, source: IoSource) -> Result<Arc<[u8]>> {
        let end = self.len().max(self.reader.len());
        if pointer.offset.saturating_add(u64::from(pointer.len)) > end {
            let (expected, found) = (format!("{} bytes", pointer.len), format!("a file of {end} bytes"));
            return Err(Corruption::new(pointer.offset, "value record", expected, found).of(self.reader.path()));
        }
        let mut bytes = zeroed(pointer.len as usize);
        if let Some(bytes) = Arc::get_mut(&mut bytes) {
            self.reader.read_at(bytes, pointer.offset, source)?;
        }
        Ok(bytes)
    }

    /// Closes it for appending if all of it is durable and nobody appends to it just now.
    pub(super) fn close_if_idle(&self) {
        let mut writer = self.writer.hold();
        let is_durable = !self.dirty.load(Relaxed) && self.synced.load(Relaxed) == self.len();
        if is_durable && writer.as_ref().is_some_and(|writer| Arc::strong_count(writer) == 1) {
            *writer = None;
        }
    }

    /// What the manifest is to know.
    pub(super) fn meta(&self, keyspace: KeyspaceId) -> ValueFileMeta {
        let Extent { level, entries, smallest, largest } = self.extent.get().cloned().unwrap_or_default();
        ValueFileMeta {
            id: self.id,
            class: self.description.class,
            keyspace,
            group: self.description.group,
            level,
            epoch: 0,
            tags: self.tags(),
            bytes: self.len(),
            entries,
            smallest,
            largest,
        }
    }
}
