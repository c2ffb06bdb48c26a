//! The value files of one keyspace.
//!
//! ```text
//!   create ──▶ appended to ──▶ emptied ──▶ reclaimed ──▶ deleted
//!              (listed by the    (all that   (no snapshot and
//!               next edit)       lived moved) no log needs it)
//! ```
//!
//! Readers find a file by its number with one atomic load. A file that is emptied stays readable until it is reclaimed: a
//! snapshot older than the moves, or a power loss that takes them back, still leads there. It is deleted when the last of those lets
//! go that found it before it was reclaimed: until then it may be closed, and opened again by its name.

mod ahead;
mod copies;
mod file;
mod left_out;
mod listing;
mod owners;
mod recovery;

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
use bifold_io::{Dir, Writer};

use super::{
    budget::Memory,
    buffers::Buffers,
    hash_map::HashMap,
    sync::LockExt,
    unsynced::{Recorded, Unsynced},
};
use crate::placement::FilesHeld;

pub use self::{
    copies::Copy,
    file::{Extent, ValueFile},
    left_out::UNREADABLE,
    owners::owners,
    recovery::{name_again, restore_names, verify, verify_tail},
};

/// Class of the files that commits append to.
pub const APPENDED: u8 = 1;

/// Class of the files that collections write, and that commits may append to later.
pub const COLLECTED: u8 = 2;

/// Class of the files that collections write for what is not updated any more, and append to later.
pub const COLD: u8 = 3;

/// Class of files that drop-keys are in, instead of values.
pub const DROPS: u8 = 4;

/// Class of files with values by key and an index.
pub const SORTED: u8 = 5;

/// Class of files with values by key, which only the index of the keyspace leads to.
pub const ORDERED: u8 = 6;

/// Memory that an open file takes: its record, its path, what reader and append region know of it. Measured with 8 000.
const OPEN_FILE_BYTES: u64 = 1200;

/// Tag of an entry of the manifest for a file that is deleted: logs may still point at what it held.
const GONE: u32 = 1;

/// Tag of a file whose key range overlaps those of too many others.
pub const OVERLAPS: u32 = 2;

/// Hands out numbers for new files.
pub type NewFile = Arc<dyn Fn() -> FileId + Send + Sync>;

/// What a placement is opened with.
#[derive(Clone)]
pub struct StoreContext {
    /// The database's directory.
    pub dir: Dir,
    /// Whose values they are.
    pub keyspace: KeyspaceId,
    /// Numbers for new files.
    pub new_file: NewFile,
    /// Whether anything may be written.
    pub writes: bool,
    /// Memory that all keyspaces of a database share.
    pub memory: Memory,
    /// Which of them the next sync must ask.
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
    /// Files out of use.
    emptied: Mutex<BTreeMap<FileId, Emptied>>,
    /// Deleted files that logs may still point into, with the number of the last move out of them.
    gone: Mutex<BTreeMap<FileId, SeqNo>>,
    /// During recovery: what stands behind the lengths that the manifest lists.
    tails: Mutex<BTreeMap<FileId, recovery::Tail>>,
    /// During recovery: files that the manifest does not list and whose beginning is damaged, so that they may be of any keyspace.
    unreadable: Mutex<BTreeMap<FileId, Error>>,
    /// Calls of [`ValueFiles::prefetch`], and whether what it looked at last was not in memory.
    prefetches: AtomicU64,
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

/// A file out of use.
#[derive(Clone, Copy)]
struct Emptied {
    /// The number of the last move out of it.
    last: SeqNo,
    /// A sync began after it was emptied, and whether one has ended well: the copies of what it held are durable.
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
            gone: Mutex::default(),
            unrecorded: Mutex::default(),
            emptied: Mutex::default(),
            tails: Mutex::default(),
            unreadable: Mutex::default(),
            prefetches: AtomicU64::new(0),
            are_cold: AtomicBool::new(false),
            dropped: AtomicBool::new(false),
            left_out: Mutex::default(),
            to_sync: Recorded::default(),
        }
    }

    /// No files, where these are.
    #[must_use]
    pub fn without_any(&self) -> Self {
        Self::none_of(self.context.clone())
    }

    /// The files that the manifest lists, and others of this keyspace that commits have begun ([`owners()`]). What follows the
    /// length in the manifest, and all of the others, may be torn; [`ValueFiles::settle`] keeps of it what commits have written.
    ///
    /// # Errors
    /// I/O errors; corruption when a listed file is missing or damaged.
    pub fn open(context: StoreContext, listed: &ValueEdit, present: &[FileId]) -> Result<Self> {
        let files = Self::none_of(context);
        for meta in listed.added.iter().filter(|meta| meta.keyspace == files.context.keyspace) {
            if meta.tags & GONE == 0 {
                files.adopt(meta.id, Some(meta))?;
            } else {
                files.gone.hold().insert(meta.id, meta.entries);
            }
        }
        let is_known = |id: FileId| files.get(id).is_some() || files.gone.hold().contains_key(&id);
        for &id in present.iter().filter(|&&id| !is_known(id)) {
            files.adopt(id, None)?;
        }
        for &(id, bytes, _) in &listed.garbage {
            if let Some(file) = files.get(id) {
                file.add_dead(bytes);
                file.recorded_dead.store(bytes, Relaxed);
            }
        }
        Ok(files)
    }

    /// Deletes all files as soon as nobody reads any more.
    pub fn drop_all(&self) {
        self.dropped.store(true, Relaxed);
    }

    /// To append to the file, which is opened for that if need be.
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

    /// The file of this number, unless it is reclaimed.
    #[must_use]
    pub fn get(&self, id: FileId) -> Option<Arc<ValueFile>> {
        self.all.load().get(&id).map(Arc::clone)
    }

    /// All files in use, oldest first; those that are emptied are not among them.
    #[must_use]
    pub fn in_use(&self) -> Vec<Arc<ValueFile>> {
        let emptied = self.emptied.hold();
        let is_used = |file: &&Arc<ValueFile>| !emptied.contains_key(&file.id);
        let mut files: Vec<_> = self.all.load().values().filter(is_used).map(Arc::clone).collect();
        files.sort_unstable_by_key(|file| file.id);
        files
    }

    /// The length of the longest file.
    #[must_use]
    pub fn largest(&self) -> u64 {
        self.all.load().values().map(|file| file.len()).max().unwrap_or(0)
    }

    /// All files that exist, those that are emptied included.
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
            listed: AtomicU64::new(0),
            dead: AtomicU64::new(0),
            recorded_dead: AtomicU64::new(0),
            dirty: AtomicBool::new(false),
            sealed: AtomicBool::new(false),
            extent: OnceLock::new(),
            tags: AtomicU32::new(0),
            syncing: AtomicU64::new(0),
            synced: AtomicU64::new(start),
        });
        Ok((file, writer))
    }

    /// Begins a file that commits append to. Readers may look there, and the next edit lists it.
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

    /// A number that no file has: for a group of files.
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

    /// Appends one encoded record; answers where it stands.
    ///
    /// # Errors
    /// I/O errors; nothing must be appended after one.
    pub fn append(&self, file: &Arc<ValueFile>, record: &[u8]) -> Result<Pointer> {
        let offset = file.len();
        let mut writer = file.writer.hold();
        self.open_in(&mut writer, file)?.append(&[record])?;
        file.len.store(offset + record.len() as u64, Relaxed);
        // Before the writer is let go of: a file is only closed while nothing in it waits for a sync.
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

    /// Decides what the next [`ValueFiles::sync`] covers.
    pub fn begin_sync(&self) {
        self.to_sync.asked();
        self.emptied.hold().values_mut().for_each(|emptied| emptied.is_syncing = true);
        let mut syncing = self.syncing.hold();
        let dirty = std::mem::take(&mut *self.dirty.hold());
        for file in &dirty.files {
            file.dirty.store(false, Relaxed);
            file.syncing.store(file.len(), Relaxed);
        }
        // What an earlier one began with and did not end is covered again.
        syncing.files.extend(dirty.files);
        syncing.names |= dirty.names;
    }

    /// Makes everything durable that was appended before [`ValueFiles::begin_sync`].
    ///
    /// # Errors
    /// I/O errors.
    pub fn sync(&self) -> Result<()> {
        let (files, names) = {
            let syncing = self.syncing.hold();
            (syncing.files.clone(), syncing.names)
        };
        if !planted!("skip_value_sync") {
            self.sync_files(&files)?;
        }
        if names { self.context.dir.sync() } else { Ok(()) }
    }

    /// Tells that the commits of the last [`ValueFiles::sync`] are durable too, so that their values stay whatever happens.
    pub fn synced(&self) {
        for file in std::mem::take(&mut *self.syncing.hold()).files {
            file.synced.fetch_max(file.syncing.load(Relaxed), Relaxed);
        }
        self.emptied.hold().values_mut().for_each(|emptied| emptied.is_synced = emptied.is_syncing);
        self.close_idle();
    }

    /// Whether something was appended that no sync has covered whose commits are durable.
    #[must_use]
    pub fn has_unsynced(&self) -> bool {
        // In this order: a sync takes what is dirty over while it holds the other.
        !self.dirty.hold().files.is_empty() || !self.syncing.hold().files.is_empty()
    }

    /// The value at `pointer`; `None` when its file is reclaimed.
    ///
    /// # Errors
    /// I/O errors, corruption.
    pub fn read(&self, key: &[u8], pointer: Pointer, source: IoSource) -> Result<Option<Value>> {
        let all = self.all.load();
        let Some(file) = all.get(&pointer.file) else { return Ok(None) };
        let (bytes, offset) = (file.read_bytes(pointer, source)?, pointer.offset);
        value::read_value(bytes, file.id, offset, key).map(Some).map_err(|damage| damage.of(file.reader.path()))
    }

    /// Nothing is appended to the present files any more.
    pub fn seal(&self) {
        let _no_copy_ends_meanwhile = self.change.hold();
        self.all.load().values().for_each(|file| file.sealed.store(true, Relaxed));
    }

    fn sync_files(&self, files: &[Arc<ValueFile>]) -> Result<()> {
        let writers: Vec<Arc<Writer>> = files.iter().map(|file| self.writer(file)).collect::<Result<_>>()?;
        self.context.dir.sync_files(writers.iter().map(|writer| &**writer))
    }

    /// What filters and indexes may take.
    #[must_use]
    pub fn filters(&self) -> &Arc<super::budget::Budget> {
        &self.context.memory.filters
    }

    /// All files that exist.
    #[must_use]
    pub fn present(&self) -> Vec<FileId> {
        self.all.load().keys().copied().collect()
    }

    /// Keeps all files that exist from being deleted for as long as the answer lives.
    #[must_use]
    pub fn hold(&self) -> FilesHeld {
        self.all.load_full()
    }

    /// Bytes of memory for the files that are open, and of the buffers through which they are rewritten.
    #[must_use]
    pub fn memory_bytes(&self) -> u64 {
        self.all.load().len() as u64 * OPEN_FILE_BYTES + self.buffers.bytes()
    }

    /// Memory for what rewrites and collections hold.
    #[must_use]
    pub fn buffers(&self) -> &Arc<Buffers> {
        &self.buffers
    }

    /// Number of files, bytes in them, and of these bytes in emptied files.
    #[must_use]
    pub fn sizes(&self) -> (u64, u64, u64) {
        let emptied = self.emptied.hold();
        let all = self.all.load();
        let total = all.values().map(|file| file.len()).sum();
        let idle = all.values().filter(|file| emptied.contains_key(&file.id)).map(|file| file.len()).sum();
        (all.len() as u64, total, idle)
    }
}
