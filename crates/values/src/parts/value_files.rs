//! The value files of one keyspace.
//!
//! ```text
//!   create ──▶ appended to ──▶ drained ──▶ reclaimed ──▶ deleted
//!              (recorded by the  (all that   (no snapshot needs it,
//!               next edit)       lived moved) the copies are durable)
//! ```
//!
//! Readers find a file by its number with one atomic load. A drained file stays readable until it is reclaimed: a
//! snapshot older than the moves, or a power loss that undoes them, still leads there. It is deleted when the last
//! reader that found it before it was reclaimed releases it. Until then it may be closed, and opened again by its
//! name.

mod ahead;
mod copies;
mod file;
mod follow;
mod left_out;
mod listing;
mod owners;
mod recovery;
#[cfg(test)]
pub mod scratch;

use std::{
    collections::BTreeMap,
    sync::{
        Arc, Mutex, OnceLock,
        atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering::Relaxed},
    },
};

use arc_swap::ArcSwap;
use bifold_contract::{Error, FileId, IoSource, KeyspaceId, Pointer, Result, SeqNo, Value, ValueEdit, planted};
use bifold_format::{
    names,
    value::{self, Description},
};
use bifold_io::{Dir, Writer, remover::BeingRemoved};

use super::{
    budget::Memory,
    buffers::Buffers,
    hash_map::HashMap,
    sync::LockExt,
    unsynced::{Recorded, Unsynced},
};
use crate::placement::FilesHeld;

pub use self::{
    ahead::Stretches,
    copies::{Copy, Finished},
    file::{Extent, ReadBy, ValueFile},
    follow::FileAccess,
    left_out::UNREADABLE,
    owners::owners,
    recovery::{name_again, restore_names, verify, verify_tail},
};

/// Class of the files that commits append to.
pub const APPENDED: u8 = 1;

/// Class of the files that GC writes, and that commits may append to later.
pub const COLLECTED: u8 = 2;

/// Class of the files that GC writes for values that are no longer updated, and appends to later.
pub const COLD: u8 = 3;

/// Class of the files that hold drop-keys instead of values.
pub const DROPS: u8 = 4;

/// Class of files with values sorted by key and an index.
pub const SORTED: u8 = 5;

/// Class of files with values sorted by key, found only through the index of the keyspace.
pub const ORDERED: u8 = 6;

/// Class of files that say where the values of other files have moved.
pub const FORWARDS: u8 = 7;

/// Memory that an open file takes: its record, its path, the state of its reader and append region. Measured.
const OPEN_FILE_BYTES: u64 = 1200;

/// Tag of a file whose key range overlaps those of too many others. The manifest has another meaning for 1.
pub const OVERLAPS: u32 = 2;

/// Records of at most so many bytes are read into a buffer of the thread, and the value is copied from there. That
/// takes less than memory for the whole record, which for a value of a kilobyte is just longer than what allocators
/// have at hand. Longer ones are read where they stay.
const COPIED_BYTES_MAX: u32 = 2 << 10;

/// Hands out numbers for new files.
pub type NewFile = Arc<dyn Fn() -> FileId + Send + Sync>;

/// What a placement is opened with.
#[derive(Clone)]
pub struct StoreContext {
    /// The database's directory.
    pub dir: Dir,
    /// The keyspace that the values belong to.
    pub keyspace: KeyspaceId,
    /// Numbers for new files.
    pub new_file: NewFile,
    /// What its files are opened for.
    pub access: FileAccess,
    /// Memory that all keyspaces of a database share.
    pub memory: Memory,
    /// The keyspaces that the next sync must ask.
    pub unsynced: Arc<Unsynced>,
}

/// All value files of one keyspace.
pub struct ValueFiles {
    context: StoreContext,
    buffers: Arc<Buffers>,
    all: ArcSwap<HashMap<FileId, Arc<ValueFile>>>,
    change: Mutex<()>,
    /// Files with bytes that no sync has covered, and whether names were added.
    dirty: Mutex<Dirty>,
    /// Those that the running sync covers.
    syncing: Mutex<Dirty>,
    /// Files that no edit names yet.
    unrecorded: Mutex<Vec<Arc<ValueFile>>>,
    /// Files of ingests that no edit has named yet.
    hidden: Mutex<BTreeMap<FileId, Arc<ValueFile>>>,
    /// Drained files.
    drained: Mutex<BTreeMap<FileId, Drained>>,
    /// Deleted files that logs may still point into, with the number of the last move out of them.
    deleted: Mutex<BTreeMap<FileId, SeqNo>>,
    /// Of these, files that are still on the disk.
    being_removed: Arc<BeingRemoved>,
    /// During recovery: what follows the lengths recorded in the manifest.
    tails: Mutex<BTreeMap<FileId, recovery::Tail>>,
    /// During recovery: files that are not in the manifest and whose beginning is damaged, so that they may belong to
    /// any keyspace.
    unreadable: Mutex<BTreeMap<FileId, Error>>,
    /// See [`ValueFiles::prefetch`].
    looks_every: AtomicU64,
    /// Whether one of the values checked last was not in memory.
    are_cold: AtomicBool,
    dropped: AtomicBool,
    /// Files in which something cannot be read.
    left_out: Mutex<left_out::LeftOut>,
    /// The next sync must ask here.
    to_sync: Recorded,
}

impl Drop for ValueFiles {
    fn drop(&mut self) {
        if self.dropped.load(Relaxed) {
            self.all.load().values().for_each(|file| file.reader.remove_when_unused());
        }
    }
}

#[derive(Default)]
struct Dirty {
    files: Vec<Arc<ValueFile>>,
    names: bool,
}

/// A drained file.
#[derive(Clone, Copy)]
struct Drained {
    /// The number of the last move out of it.
    last: SeqNo,
    /// Whether a sync began after it was drained, and whether one has succeeded: then the copies of what it held are
    /// durable.
    is_syncing: bool,
    is_synced: bool,
}

impl ValueFiles {
    fn none_of(context: StoreContext) -> Self {
        Self {
            buffers: Buffers::new(Arc::clone(&context.memory.buffers)),
            context,
            all: ArcSwap::default(),
            change: Mutex::default(),
            dirty: Mutex::default(),
            syncing: Mutex::default(),
            deleted: Mutex::default(),
            being_removed: Arc::default(),
            unrecorded: Mutex::default(),
            hidden: Mutex::default(),
            drained: Mutex::default(),
            tails: Mutex::default(),
            unreadable: Mutex::default(),
            looks_every: AtomicU64::new(0),
            are_cold: AtomicBool::new(false),
            dropped: AtomicBool::new(false),
            left_out: Mutex::default(),
            to_sync: Recorded::default(),
        }
    }

    /// No files, in the same place.
    #[must_use]
    pub(crate) fn without_any(&self) -> Self {
        Self::none_of(self.context.clone())
    }

    /// The files recorded in the manifest, and others of this keyspace that commits have begun ([`owners()`]). What
    /// follows the recorded length, and all of the others, may be torn; recovery keeps of it what
    /// commits have written.
    ///
    /// # Errors
    /// I/O errors; corruption when a recorded file is missing or damaged.
    pub fn open(context: StoreContext, recorded: &ValueEdit, present: &[FileId]) -> Result<Self> {
        let files = Self::none_of(context);
        for meta in recorded.added.iter().filter(|meta| meta.keyspace == files.context.keyspace) {
            match meta.deleted {
                None => files.adopt(meta.id, Some(meta))?,
                Some(last) => drop(files.deleted.hold().insert(meta.id, last)),
            }
        }
        let is_known = |id: FileId| files.get(id).is_some() || files.deleted.hold().contains_key(&id);
        for &id in present.iter().filter(|&&id| !is_known(id)) {
            files.adopt(id, None)?;
        }
        for &(id, bytes, _) in &recorded.garbage {
            if let Some(file) = files.get(id) {
                file.add_dead(bytes);
                file.recorded_dead.store(bytes, Relaxed);
            }
        }
        Ok(files)
    }

    /// Deletes all files when nothing reads them any more.
    pub(crate) fn drop_all(&self) {
        self.dropped.store(true, Relaxed);
    }

    /// The writer of the file, which is opened for appending if need be.
    fn writer(&self, file: &ValueFile) -> Result<Arc<Writer>> {
        self.open_in(&mut file.writer.hold(), file).map(Arc::clone)
    }

    fn open_in<'a>(&self, writer: &'a mut Option<Arc<Writer>>, file: &ValueFile) -> Result<&'a Arc<Writer>> {
        if writer.is_none() {
            *writer = Some(Arc::new(self.context.dir.append_to(&file.reader, IoSource::Value)?));
        }
        Ok(writer.as_ref().unwrap_or_else(|| unreachable!("set above")))
    }

    /// Closes files to which nothing was appended since the last sync, where too many are open for appending.
    fn close_idle(&self) {
        if self.context.dir.is_crowded_by_writers() {
            self.all.load().values().for_each(|file| file.close_if_idle());
        }
    }

    /// The file of this number, unless it was reclaimed.
    #[must_use]
    pub fn get(&self, id: FileId) -> Option<Arc<ValueFile>> {
        self.all.load().get(&id).map(Arc::clone)
    }

    /// All files in use, oldest first, without drained files.
    #[must_use]
    pub fn in_use(&self) -> Vec<Arc<ValueFile>> {
        let drained = self.drained.hold();
        let is_used = |file: &&Arc<ValueFile>| !drained.contains_key(&file.id);
        let mut files: Vec<_> = self.all.load().values().filter(is_used).map(Arc::clone).collect();
        files.sort_unstable_by_key(|file| file.id);
        files
    }

    /// The length of the longest file, in bytes.
    #[must_use]
    pub fn largest(&self) -> u64 {
        self.all.load().values().map(|file| file.len()).max().unwrap_or(0)
    }

    /// All files that exist, drained files included.
    #[must_use]
    pub fn all(&self) -> Vec<Arc<ValueFile>> {
        self.all.load().values().map(Arc::clone).collect()
    }

    fn create(&self, class: u8, group: u64, source: IoSource) -> Result<(Arc<ValueFile>, Arc<Writer>)> {
        let description = Description { class, keyspace: self.context.keyspace, group };
        let id = (self.context.new_file)();
        let name = names::value(id);
        let (writer, reader) = self.context.dir.create_appended(&name, source)?;
        let header = value::header(id, description);
        writer.append(&[&header]).inspect_err(|_| {
            let _counted = self.context.dir.remove(&name);
        })?;
        let (writer, start) = (Arc::new(writer), header.len() as u64);
        let file = Arc::new(ValueFile {
            id,
            description,
            reader,
            writer: Mutex::new(Some(Arc::clone(&writer))),
            start,
            len: AtomicU64::new(start),
            recorded_len: AtomicU64::new(0),
            dead: AtomicU64::new(0),
            recorded_dead: AtomicU64::new(0),
            dirty: AtomicBool::new(false),
            is_of_flush: source == IoSource::Flush,
            sealed: AtomicBool::new(false),
            extent: OnceLock::new(),
            tags: AtomicU32::new(0),
            syncing: AtomicU64::new(0),
            synced: AtomicU64::new(start),
        });
        Ok((file, writer))
    }

    /// Begins a file that commits append to. Readers may look there, and the next edit records it.
    ///
    /// # Errors
    /// I/O errors.
    pub fn begin(&self, group: u64) -> Result<Arc<ValueFile>> {
        let (file, _writer) = self.create(APPENDED, group, IoSource::Value)?;
        self.insert(std::slice::from_ref(&file));
        self.unrecorded.hold().push(Arc::clone(&file));
        self.mark_named();
        Ok(file)
    }

    /// A number that no file has, for a group of files.
    #[must_use]
    pub fn new_number(&self) -> u64 {
        (self.context.new_file)()
    }

    /// Lets readers find files.
    fn insert(&self, files: &[Arc<ValueFile>]) {
        let _alone = self.change.hold();
        self.insert_alone(files);
    }

    fn insert_alone(&self, files: &[Arc<ValueFile>]) {
        let mut all = HashMap::clone(&self.all.load());
        all.extend(files.iter().map(|file| (file.id, Arc::clone(file))));
        self.all.store(Arc::new(all));
    }

    /// Appends one encoded record and returns where it is.
    ///
    /// # Errors
    /// I/O errors; nothing must be appended after one.
    pub fn append(&self, file: &Arc<ValueFile>, record: &[u8]) -> Result<Pointer> {
        let offset = file.len();
        let mut writer = file.writer.hold();
        self.open_in(&mut writer, file)?.append(&[record])?;
        file.len.store(offset + record.len() as u64, Relaxed);
        // Before the writer is released: a file is only closed while nothing in it waits for a sync.
        self.mark_dirty(file);
        Ok(Pointer { file: file.id, epoch: 0, offset, len: record.len() as u32 })
    }

    /// The next sync covers the file.
    fn mark_dirty(&self, file: &Arc<ValueFile>) {
        if !file.dirty.swap(true, Relaxed) {
            self.dirty.hold().files.push(Arc::clone(file));
            self.ask_at_sync();
        }
    }

    /// The next sync covers the names of new files.
    fn mark_named(&self) {
        self.dirty.hold().names = true;
        self.ask_at_sync();
    }

    fn ask_at_sync(&self) {
        if !planted!("sync_asks_nobody") {
            self.to_sync.note(self.context.keyspace, &self.context.unsynced);
        }
    }

    /// Determines what the next [`ValueFiles::sync`] covers.
    pub(crate) fn begin_sync(&self) {
        self.to_sync.asked();
        self.drained.hold().values_mut().for_each(|drained| drained.is_syncing = true);
        let mut syncing = self.syncing.hold();
        let dirty = std::mem::take(&mut *self.dirty.hold());
        for file in &dirty.files {
            file.dirty.store(false, Relaxed);
            file.syncing.store(file.len(), Relaxed);
        }
        // What an earlier sync began and did not finish is covered again.
        syncing.files.extend(dirty.files);
        syncing.names |= dirty.names;
    }

    /// Makes everything durable that was appended before [`ValueFiles::begin_sync`].
    ///
    /// # Errors
    /// I/O errors.
    pub(crate) fn sync(&self) -> Result<()> {
        let (files, names) = {
            let syncing = self.syncing.hold();
            (syncing.files.clone(), syncing.names)
        };
        if !planted!("skip_value_sync") {
            self.sync_files(&files)?;
        }
        if names { self.context.dir.sync() } else { Ok(()) }
    }

    /// The commits of the last [`ValueFiles::sync`] are durable too, so their values stay whatever happens.
    pub(crate) fn synced(&self) {
        for file in std::mem::take(&mut *self.syncing.hold()).files {
            file.synced.fetch_max(file.syncing.load(Relaxed), Relaxed);
        }
        self.drained.hold().values_mut().for_each(|drained| drained.is_synced = drained.is_syncing);
        self.close_idle();
    }

    /// Whether something was appended that no sync with durable commits has covered.
    #[must_use]
    pub(crate) fn has_unsynced(&self) -> bool {
        // In this order: a sync takes over what is dirty while it holds the other lock.
        !self.dirty.hold().files.is_empty() || !self.syncing.hold().files.is_empty()
    }

    /// The value at `pointer`; `None` when its file was reclaimed.
    ///
    /// # Errors
    /// I/O errors, corruption.
    pub fn read(&self, key: &[u8], pointer: Pointer, source: IoSource) -> Result<Option<Value>> {
        let all = self.all.load();
        let Some(file) = all.get(&pointer.file) else { return Ok(None) };
        let (way, offset) = (self.way(source), pointer.offset);
        if pointer.len <= COPIED_BYTES_MAX {
            let copy = |bytes: &[u8]| value::look_at_value(bytes, (file.id, offset), key, Value::copy_of);
            return file.look_at_bytes(pointer, source, way, copy).map(Some);
        }
        let bytes = file.read_bytes(pointer, source, way)?;
        value::read_value(bytes, file.id, offset, key).map(Some).map_err(|damage| damage.of(file.reader.path()))
    }

    /// As [`ValueFiles::read`], but the value is only shown to `see`, without an allocation if it is not long. Returns
    /// whether it was there.
    ///
    /// # Errors
    /// As [`ValueFiles::read`].
    pub fn show(&self, key: &[u8], pointer: Pointer, source: IoSource, see: &mut dyn FnMut(&[u8])) -> Result<bool> {
        let all = self.all.load();
        let Some(file) = all.get(&pointer.file) else { return Ok(false) };
        let show = |bytes: &[u8]| value::look_at_value(bytes, (file.id, pointer.offset), key, see);
        file.look_at_bytes(pointer, source, self.way(source), show).map(|()| true)
    }

    /// Nothing is appended to the present files any more.
    pub fn seal(&self) {
        let _no_copy_ends_meanwhile = self.change.hold();
        self.all.load().values().for_each(|file| {
            let _no_copy_is_written_meanwhile = file.writer.hold();
            file.sealed.store(true, Relaxed);
        });
    }

    fn sync_files(&self, files: &[Arc<ValueFile>]) -> Result<()> {
        let writers: Vec<Arc<Writer>> = files.iter().map(|file| self.writer(file)).collect::<Result<_>>()?;
        self.context.dir.sync_files(writers.iter().map(|writer| &**writer))
    }

    /// The memory budget of filters and indexes.
    #[must_use]
    pub fn filters(&self) -> &Arc<super::budget::Budget> {
        &self.context.memory.filters
    }

    /// The numbers of all files that exist, drained files included.
    #[must_use]
    pub fn present(&self) -> Vec<FileId> {
        self.all.load().keys().copied().collect()
    }

    /// Keeps all files that exist from being deleted while the result lives.
    #[must_use]
    pub fn hold(&self) -> FilesHeld {
        self.all.load_full()
    }

    /// Bytes of memory for open files and for the buffers through which they are rewritten.
    #[must_use]
    pub fn memory_bytes(&self) -> u64 {
        self.all.load().len() as u64 * OPEN_FILE_BYTES + self.buffers.bytes()
    }

    /// Memory for the buffers of rewrites and GC.
    #[must_use]
    pub fn buffers(&self) -> &Arc<Buffers> {
        &self.buffers
    }
}
