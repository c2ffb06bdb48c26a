//! The value files of one keyspace.
//!
//! ```text
//!   create ──▶ appended to ──▶ emptied ──▶ retired ──▶ deleted
//!              (listed by the    (all that   (no snapshot and
//!               next edit)       lived moved) no log needs it)
//! ```
//!
//! Readers find a file by its number with one atomic load. A file that is emptied stays readable until it is retired: a
//! snapshot older than the moves, or a power loss that takes them back, still leads there.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{
        Arc, Mutex, OnceLock,
        atomic::{AtomicBool, AtomicU64, Ordering::Relaxed},
    },
};

use arc_swap::ArcSwap;
use bifold_contract::{
    Corruption, FileId, IoSource, KeyspaceId, Pointer, Result, SeqNo, Value, ValueEdit, ValueFileMeta,
    placement::Replayed,
};
use bifold_format::{
    compression::zeroed,
    names,
    value::{self, DESCRIPTION_BYTES_MAX, Description, ValueRecord},
};
use bifold_io::{Dir, Reader, Writer};

use super::{
    budget::Budget,
    hash_map::HashMap,
    scan::{Met, Scan},
    sync::LockExt,
};

/// Class of the files that commits append to.
pub const APPENDED: u8 = 1;

/// Class of the files that collections write, and that commits may append to later.
pub const COLLECTED: u8 = 2;

/// Class of the files that collections write for what is not updated any more, and append to later.
pub const COLD: u8 = 3;

/// Copies are written in pieces of this size: 0.3 µs per KiB instead of 0.9.
const COPY_BUFFER_BYTES: usize = 256 << 10;

/// Whether values are in memory is asked at every so many announcements: it takes a system call.
const LOOKS_EVERY: u64 = 4;

/// Memory that an open file takes: its record, its path, what reader and append region know of it. Measured with 8 000.
const OPEN_FILE_BYTES: u64 = 1200;

/// Tag of an entry of the manifest for a file that is deleted: logs may still point at what it held.
const GONE: u32 = 1;

/// Hands out numbers for new files.
pub type NewFile = Arc<dyn Fn() -> FileId + Send + Sync>;

/// What a placement is opened with.
#[derive(Clone)]
pub struct Home {
    /// The database's directory.
    pub dir: Dir,
    /// Whose values they are.
    pub keyspace: KeyspaceId,
    /// Numbers for new files.
    pub new_file: NewFile,
    /// Whether anything may be written.
    pub writes: bool,
    /// Memory for filters; all keyspaces of a database share it.
    pub filters: Arc<Budget>,
}

/// One value file.
#[derive(Debug)]
pub struct ValueFile {
    /// Its number.
    pub id: FileId,
    /// What it says about itself.
    pub description: Description,
    reader: Reader,
    writer: OnceLock<Writer>,
    /// Where its records begin.
    start: u64,
    /// Bytes in it that count.
    len: AtomicU64,
    /// How much of it the manifest knows: that much is whole.
    listed: AtomicU64,
    /// Bytes of it that nobody needs, as far as known.
    dead: AtomicU64,
    listed_dead: AtomicU64,
    dirty: AtomicBool,
    /// Nothing is appended any more: it has another name, in a copy of the database.
    sealed: AtomicBool,
    /// Its length when the sync began that runs, and the one that last ended well.
    syncing: AtomicU64,
    synced: AtomicU64,
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

    /// Notes that so many more bytes are not needed.
    pub fn add_dead(&self, bytes: u64) {
        self.dead.fetch_add(bytes, Relaxed);
    }

    /// Notes that so many bytes are not needed, if fewer were known.
    pub fn raise_dead_to(&self, bytes: u64) {
        self.dead.fetch_max(bytes, Relaxed);
    }

    /// What the manifest is to know.
    fn meta(&self, keyspace: KeyspaceId) -> ValueFileMeta {
        ValueFileMeta {
            id: self.id,
            class: self.description.class,
            keyspace,
            group: self.description.group,
            level: 0,
            epoch: 0,
            tags: 0,
            bytes: self.len(),
            entries: 0,
            smallest: Box::default(),
            largest: Box::default(),
        }
    }
}

/// What a collection appends to a file: a new one, or one that it goes on with.
#[derive(Debug)]
pub struct Copy {
    file: Arc<ValueFile>,
    /// Where the next record will stand. The file itself is as long as it was until the copy is finished.
    end: u64,
    /// Records not written yet.
    buffer: Vec<u8>,
}

impl Copy {
    /// Appends a copy of `record`; answers where it will stand.
    ///
    /// # Errors
    /// I/O errors.
    pub fn append(&mut self, record: &ValueRecord<'_>) -> Result<Pointer> {
        let offset = self.end;
        let begin = self.buffer.len();
        let place = (self.file.id, offset);
        value::encode(&mut self.buffer, place, record.kind, record.seqno, record.key, record.stored());
        let len = self.buffer.len() - begin;
        self.end += len as u64;
        if self.buffer.len() >= COPY_BUFFER_BYTES {
            self.write_out()?;
        }
        Ok(Pointer { file: self.file.id, epoch: 0, offset, len: len as u32 })
    }

    fn write_out(&mut self) -> Result<()> {
        if !self.buffer.is_empty() {
            let writer = self.file.writer.get().unwrap_or_else(|| unreachable!("set when the copy began"));
            writer.append(&[&self.buffer])?;
            self.buffer.clear();
        }
        Ok(())
    }
}

/// What is to become of a replayed operation's pointer.
#[derive(Debug)]
pub enum Kept<'a> {
    /// It stays as it is.
    As(Option<Pointer>),
    /// The value is written anew.
    Value(&'a [u8], Value),
}

/// All value files of one keyspace.
pub struct ValueFiles {
    home: Home,
    all: ArcSwap<HashMap<FileId, Arc<ValueFile>>>,
    change: Mutex<()>,
    /// Files with bytes that no sync has covered, and whether names were added.
    dirty: Mutex<Dirty>,
    /// Those that the running sync covers.
    syncing: Mutex<Dirty>,
    /// Files that no edit names yet.
    unlisted: Mutex<Vec<Arc<ValueFile>>>,
    /// Files out of use: their number, and that of the last move out of them.
    emptied: Mutex<BTreeMap<FileId, SeqNo>>,
    /// Deleted files that logs may still point into, with the number of the last move out of them.
    gone: Mutex<BTreeMap<FileId, SeqNo>>,
    /// Of records met in recovery: file, number, where the record ends.
    tails: Mutex<BTreeMap<FileId, Vec<(SeqNo, u64)>>>,
    /// Files that were there for the replay only.
    forgotten: Mutex<BTreeSet<FileId>>,
    /// Calls of [`ValueFiles::prefetch`], and whether what it looked at last was not in memory.
    prefetches: AtomicU64,
    are_cold: AtomicBool,
    dropped: AtomicBool,
}

impl Drop for ValueFiles {
    fn drop(&mut self) {
        if self.dropped.load(Relaxed) {
            for id in self.all.load().keys() {
                let _counted = self.home.dir.remove(&names::value(*id));
            }
        }
    }
}

#[derive(Default)]
struct Dirty {
    files: Vec<Arc<ValueFile>>,
    names: bool,
}

impl ValueFiles {
    /// The files that the manifest lists, and others that commits have begun: what follows the length in the manifest, and
    /// all of the others, is there for the replay of logs only. It may be torn.
    ///
    /// # Errors
    /// I/O errors; corruption when a listed file is missing or damaged.
    pub fn open(home: Home, listed: &ValueEdit, present: &[FileId]) -> Result<Self> {
        let files = Self {
            home,
            all: ArcSwap::default(),
            change: Mutex::default(),
            dirty: Mutex::default(),
            syncing: Mutex::default(),
            gone: Mutex::default(),
            unlisted: Mutex::default(),
            emptied: Mutex::default(),
            tails: Mutex::default(),
            forgotten: Mutex::default(),
            prefetches: AtomicU64::new(0),
            are_cold: AtomicBool::new(false),
            dropped: AtomicBool::new(false),
        };
        for meta in listed.added.iter().filter(|meta| meta.keyspace == files.home.keyspace) {
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
                file.listed_dead.store(bytes, Relaxed);
            }
        }
        Ok(files)
    }

    /// Opens a file of an earlier session. One that is not listed counts if it says that it is of this keyspace.
    fn adopt(&self, id: FileId, meta: Option<&ValueFileMeta>) -> Result<()> {
        let name = names::value(id);
        let path = self.home.dir.file(&name);
        if meta.is_some() && self.home.dir.len(&name)?.is_none() {
            return Err(Corruption::new(0, "value file", "a file that MANIFEST lists", "no such file").of(path));
        }
        if cfg!(planted = "append_to_any") && self.home.writes {
            drop(self.home.dir.open_appended(&name, IoSource::Value)?);
        }
        let reader = self.home.dir.open(&name)?;
        let mut first = vec![0; DESCRIPTION_BYTES_MAX.min(usize::try_from(reader.len()).unwrap_or(usize::MAX))];
        reader.read_at(&mut first, 0, IoSource::Recovery)?;
        let described = value::describe(&first).and_then(|(found, description, start)| {
            if found == id { Ok((description, start)) } else { Err(wrong_id(id, found)) }
        });
        let (description, start) = match described {
            Ok(described) => described,
            Err(damage) if meta.is_some() => return Err(damage.of(path)),
            // Begun right before a crash: nothing in it was ever pointed at.
            Err(_) => return Ok(()),
        };
        let copies_of_a_crashed_collection = meta.is_none() && description.class != APPENDED;
        if description.keyspace != self.home.keyspace || copies_of_a_crashed_collection {
            return Ok(());
        }
        let whole = meta.map_or(start, |meta| meta.bytes);
        if reader.len() < whole {
            let (expected, found) = (format!("at least {whole} bytes"), format!("{} bytes", reader.len()));
            return Err(Corruption::new(reader.len(), "value file", expected, found).of(path));
        }
        let end = reader.len();
        // Not before it is known to be ours: other keyspaces look at it too, and there is one place to append to a file.
        let (writer, reader) = if self.home.writes {
            let (writer, reader) = self.home.dir.open_appended(&name, IoSource::Value)?;
            (OnceLock::from(writer), reader)
        } else {
            (OnceLock::new(), reader)
        };
        let file = Arc::new(ValueFile {
            id,
            description,
            reader,
            writer,
            start,
            len: AtomicU64::new(whole),
            listed: AtomicU64::new(meta.map_or(0, |_| whole)),
            dead: AtomicU64::new(0),
            listed_dead: AtomicU64::new(0),
            dirty: AtomicBool::new(false),
            sealed: AtomicBool::new(self.home.dir.is_shared(&name)?),
            syncing: AtomicU64::new(0),
            synced: AtomicU64::new(whole),
        });
        self.walk_tail(&file, end)?;
        self.insert(std::slice::from_ref(&file));
        // As durable as the logs that point at it, before anything that is replayed becomes a table.
        if self.home.writes && file.len() > whole.max(start) { self.writer(&file)?.sync() } else { Ok(()) }
    }

    /// Notes which records stand behind the part of the file that is known to be whole.
    fn walk_tail(&self, file: &Arc<ValueFile>, end: u64) -> Result<()> {
        let mut scan = Scan::new(file, file.len(), end, IoSource::Recovery);
        let mut tail = Vec::new();
        while let Met::Record(record, len) = scan.step()? {
            let record_end = record.offset + u64::from(len);
            tail.push((record.seqno, record_end));
            file.len.store(record_end, Relaxed);
        }
        self.tails.hold().insert(file.id, tail);
        Ok(())
    }

    /// During recovery: what is to become of a replayed operation's pointer.
    ///
    /// # Errors
    /// I/O errors and corruption.
    pub fn unlisted_value<'a>(&self, op: Replayed<'a>) -> Result<Kept<'a>> {
        let Replayed::Pointer { key, pointer } = op else { return Ok(Kept::As(None)) };
        match self.get(pointer.file) {
            Some(file) if pointer.offset + u64::from(pointer.len) > file.listed.load(Relaxed) => {
                let value = self.read(key, pointer, IoSource::Recovery)?;
                Ok(value.map_or(Kept::As(Some(pointer)), |value| Kept::Value(key, value)))
            }
            _ => Ok(Kept::As(Some(pointer))),
        }
    }

    /// Whether a pointer met in the log leads to a whole record, or to a file that is gone because all it held has moved.
    #[must_use]
    pub fn resolves(&self, pointer: Pointer) -> bool {
        match self.get(pointer.file) {
            Some(file) => pointer.offset + u64::from(pointer.len) <= file.len(),
            None => self.gone.hold().contains_key(&pointer.file),
        }
    }

    /// Forgets what the manifest does not list or, when nothing is written, what follows `last`.
    ///
    /// # Errors
    /// I/O errors.
    pub fn settle(&self, last: SeqNo) -> Result<()> {
        let writes = self.home.writes;
        for (id, tail) in self.tails.hold().iter() {
            let Some(file) = self.get(*id) else { continue };
            let listed = file.listed.load(Relaxed).max(file.start);
            let happened = tail.iter().take_while(|(seqno, _)| *seqno <= last).last();
            let len = if writes { listed } else { happened.map_or(listed, |(_, end)| *end) };
            file.len.store(len, Relaxed);
            if writes && file.listed.load(Relaxed) == 0 {
                self.forgotten.hold().insert(*id);
            }
        }
        Ok(())
    }

    /// Cuts off what was forgotten.
    ///
    /// # Errors
    /// I/O errors.
    pub fn cut(&self) -> Result<()> {
        let forgotten = std::mem::take(&mut *self.forgotten.hold());
        {
            let _alone = self.change.hold();
            let mut all = HashMap::clone(&self.all.load());
            all.retain(|id, _| !forgotten.contains(id));
            self.all.store(Arc::new(all));
        }
        for id in std::mem::take(&mut *self.tails.hold()).into_keys() {
            let Some(file) = self.get(id) else { continue };
            let name = names::value(id);
            if self.home.dir.len(&name)?.is_some_and(|len| len > file.len()) {
                self.home.dir.truncate(&name, file.len())?;
            }
        }
        Ok(())
    }

    /// Deletes all files as soon as nobody reads any more.
    pub fn drop_all(&self) {
        self.dropped.store(true, Relaxed);
    }

    fn writer<'a>(&self, file: &'a ValueFile) -> Result<&'a Writer> {
        if file.writer.get().is_none() {
            let writer = self.home.dir.open_append(&names::value(file.id), IoSource::Value)?;
            let _opened_by_another = file.writer.set(writer);
        }
        Ok(file.writer.get().unwrap_or_else(|| unreachable!("set above")))
    }

    /// The file of this number, unless it is retired.
    #[must_use]
    pub fn get(&self, id: FileId) -> Option<Arc<ValueFile>> {
        self.all.load().get(&id).map(Arc::clone)
    }

    /// All files in use, oldest first; those that are emptied are not among them.
    #[must_use]
    pub fn in_use(&self) -> Vec<Arc<ValueFile>> {
        let (emptied, forgotten) = (self.emptied.hold(), self.forgotten.hold());
        let is_used = |file: &&Arc<ValueFile>| !emptied.contains_key(&file.id) && !forgotten.contains(&file.id);
        let mut files: Vec<_> = self.all.load().values().filter(is_used).map(Arc::clone).collect();
        files.sort_unstable_by_key(|file| file.id);
        files
    }

    fn create(&self, class: u8, group: u64, source: IoSource) -> Result<(Arc<ValueFile>, Writer)> {
        let description = Description { class, keyspace: self.home.keyspace, group };
        let id = (self.home.new_file)();
        let name = names::value(id);
        let (writer, reader) = self.home.dir.create_appended(&name, source)?;
        let header = value::header(id, description);
        writer.append(&[&header])?;
        let start = header.len() as u64;
        let file = Arc::new(ValueFile {
            id,
            description,
            reader,
            writer: OnceLock::new(),
            start,
            len: AtomicU64::new(start),
            listed: AtomicU64::new(0),
            dead: AtomicU64::new(0),
            listed_dead: AtomicU64::new(0),
            dirty: AtomicBool::new(false),
            sealed: AtomicBool::new(false),
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
        let (file, writer) = self.create(APPENDED, group, IoSource::Value)?;
        let _it_had_none = file.writer.set(writer);
        self.insert(std::slice::from_ref(&file));
        self.unlisted.hold().push(Arc::clone(&file));
        self.dirty.hold().names = true;
        Ok(file)
    }

    /// Begins a file for what a collection copies. Nobody sees it before it is finished.
    ///
    /// # Errors
    /// I/O errors.
    pub fn begin_copy(&self, class: u8, group: u64) -> Result<Copy> {
        let (file, writer) = self.create(class, group, IoSource::Collection)?;
        let _it_had_none = file.writer.set(writer);
        Ok(Copy { end: file.len(), file, buffer: Vec::new() })
    }

    /// Goes on with a file that no commit appends to. If the copy is not finished, nothing may be appended to the file any more.
    ///
    /// # Errors
    /// I/O errors.
    pub fn go_on_with(&self, file: &Arc<ValueFile>) -> Result<Copy> {
        self.writer(file)?;
        Ok(Copy { file: Arc::clone(file), end: file.len(), buffer: Vec::new() })
    }

    /// Makes copies durable and lets readers find them. Their names are not durable yet. `None`: a file that was gone on with
    /// has got another name meanwhile, so nothing was copied.
    ///
    /// # Errors
    /// I/O errors.
    pub fn finish_copies(&self, mut copies: Vec<Copy>) -> Result<Option<Vec<Arc<ValueFile>>>> {
        copies.iter_mut().try_for_each(Copy::write_out)?;
        let files: Vec<_> = copies.iter().map(|copy| Arc::clone(&copy.file)).collect();
        self.sync_files(&files)?;
        let alone = self.change.hold();
        if files.iter().any(|file| file.is_sealed()) {
            drop(alone);
            files.iter().filter(|file| self.get(file.id).is_none()).for_each(|file| {
                let _counted = self.home.dir.remove(&names::value(file.id));
            });
            return Ok(None);
        }
        for copy in copies {
            copy.file.len.store(copy.end, Relaxed);
            copy.file.synced.store(copy.end, Relaxed);
        }
        self.insert_alone(&files);
        Ok(Some(files))
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
        self.writer(file)?.append(&[record])?;
        file.len.store(offset + record.len() as u64, Relaxed);
        if !file.dirty.swap(true, Relaxed) {
            self.dirty.hold().files.push(Arc::clone(file));
        }
        Ok(Pointer { file: file.id, epoch: 0, offset, len: record.len() as u32 })
    }

    /// Decides what the next [`ValueFiles::sync`] covers.
    pub fn begin_sync(&self) {
        let dirty = std::mem::take(&mut *self.dirty.hold());
        for file in &dirty.files {
            file.dirty.store(false, Relaxed);
            file.syncing.store(file.len(), Relaxed);
        }
        let mut syncing = self.syncing.hold();
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
        if cfg!(not(planted = "skip_value_sync")) {
            self.sync_files(&files)?;
        }
        if names { self.home.dir.sync() } else { Ok(()) }
    }

    /// Tells that the commits of the last [`ValueFiles::sync`] are durable too, so that their values stay whatever happens.
    pub fn synced(&self) {
        for file in std::mem::take(&mut *self.syncing.hold()).files {
            file.synced.fetch_max(file.syncing.load(Relaxed), Relaxed);
        }
    }

    /// The value at `pointer`; `None` when its file is retired.
    ///
    /// # Errors
    /// I/O errors, corruption.
    pub fn read(&self, key: &[u8], pointer: Pointer, source: IoSource) -> Result<Option<Value>> {
        let all = self.all.load();
        let Some(file) = all.get(&pointer.file) else { return Ok(None) };
        let mut bytes = zeroed(pointer.len as usize);
        if let Some(bytes) = Arc::get_mut(&mut bytes) {
            file.reader.read_at(bytes, pointer.offset, source)?;
        }
        value::read_value(bytes, file.id, pointer.offset, key).map(Some).map_err(|damage| damage.of(file.reader.path()))
    }

    /// Announces reads to come. To ask the system for a value takes as long as to read it from memory, so it is only
    /// asked when the first one is not there; and as long as all are, that is looked at now and then only.
    pub fn prefetch(&self, pointers: &[Pointer]) {
        let all = self.all.load();
        let found = pointers.iter().filter_map(|pointer| Some((all.get(&pointer.file)?, pointer)));
        let calls = self.prefetches.fetch_add(1, Relaxed);
        if self.are_cold.load(Relaxed) || calls.is_multiple_of(LOOKS_EVERY) {
            let is_cold = |(file, at): (&Arc<ValueFile>, &Pointer)| !file.reader.is_in_memory(at.offset, at.len.into());
            self.are_cold.store(found.clone().next().is_some_and(is_cold), Relaxed);
        }
        let announce = if self.are_cold.load(Relaxed) { Reader::prefetch } else { Reader::touch };
        found.for_each(|(file, pointer)| announce(&file.reader, pointer.offset, pointer.len.into()));
    }

    /// Nothing is appended to the present files any more.
    pub fn seal(&self) {
        let _no_copy_ends_meanwhile = self.change.hold();
        self.all.load().values().for_each(|file| file.sealed.store(true, Relaxed));
    }

    /// Takes a file out of use: all it held has moved, by commits up to `last`, or is dead.
    pub fn empty(&self, id: FileId, last: SeqNo) {
        if self.get(id).is_some() {
            self.emptied.hold().insert(id, last);
        }
    }

    /// Lets go of the emptied files that no snapshot and no unsynced commit leads to.
    ///
    /// Never one that was emptied later without one emptied earlier: what comes back after a crash must not be older than what
    /// went, since collecting a hot part takes its newest record of a key for the newest of all.
    #[must_use]
    pub fn retire(&self, durable: SeqNo, oldest_snapshot: Option<SeqNo>) -> ValueEdit {
        let free = |last: SeqNo| last <= durable && oldest_snapshot.is_none_or(|snapshot| snapshot >= last);
        let mut edit = ValueEdit::default();
        for (&id, &last) in self.emptied.hold().iter().filter(|&(_, &last)| free(last)) {
            edit.removed.push(id);
            edit.added.push(self.gone_meta(id, last));
        }
        edit
    }

    /// Whether [`ValueFiles::retire`] would find something after a sync.
    #[must_use]
    pub fn can_retire(&self, oldest_snapshot: Option<SeqNo>) -> bool {
        self.emptied.hold().values().any(|&last| oldest_snapshot.is_none_or(|snapshot| snapshot >= last))
    }

    /// Counts what an edit says is dead, and deletes the files that it has let go of.
    pub fn installed(&self, edit: &ValueEdit) {
        for &(id, bytes, _) in &edit.garbage {
            if let Some(file) = self.get(id) {
                file.dead.fetch_add(bytes, Relaxed);
                file.listed_dead.fetch_add(bytes, Relaxed);
            }
        }
        let is_gone = |id: &FileId| edit.added.iter().all(|added| added.id != *id || added.tags & GONE != 0);
        let _alone = self.change.hold();
        let mut all = HashMap::clone(&self.all.load());
        let gone: Vec<FileId> =
            edit.removed.iter().copied().filter(is_gone).filter(|id| all.remove(id).is_some()).collect();
        if gone.is_empty() {
            return;
        }
        self.all.store(Arc::new(all));
        for id in gone {
            if let Some(last) = self.emptied.hold().remove(&id) {
                self.gone.hold().insert(id, last);
            }
            self.dirty.hold().files.retain(|file| file.id != id);
            let _counted = self.home.dir.remove(&names::value(id));
        }
    }

    /// Files that no edit names yet, and forgets them: the caller records them.
    #[must_use]
    pub fn unlisted(&self) -> Vec<ValueFileMeta> {
        let files = std::mem::take(&mut *self.unlisted.hold());
        let durable = |file: &Arc<ValueFile>| {
            let bytes = file.synced.load(Relaxed);
            file.listed.store(bytes, Relaxed);
            ValueFileMeta { bytes, ..file.meta(self.home.keyspace) }
        };
        files.iter().map(durable).collect()
    }

    /// Makes the beginnings of files durable.
    ///
    /// # Errors
    /// I/O errors.
    pub fn make_durable(&self, files: &[ValueFileMeta]) -> Result<()> {
        self.sync_files(&files.iter().filter_map(|meta| self.get(meta.id)).collect::<Vec<_>>())
    }

    fn sync_files(&self, files: &[Arc<ValueFile>]) -> Result<()> {
        let writers: Vec<&Writer> = files.iter().map(|file| self.writer(file)).collect::<Result<_>>()?;
        self.home.dir.sync_files(writers)
    }

    /// What the manifest should learn when all commits up to `flushed` need no log any more: lengths that are durable,
    /// dead bytes, and gone files that nothing points at.
    #[must_use]
    pub fn news(&self, flushed: SeqNo) -> ValueEdit {
        let mut edit = ValueEdit::default();
        for file in self.listed_files() {
            let bytes = file.synced.load(Relaxed);
            if bytes > file.listed.fetch_max(bytes, Relaxed) {
                edit.removed.push(file.id);
                edit.added.push(ValueFileMeta { bytes, ..file.meta(self.home.keyspace) });
            }
            let news = file.dead.load(Relaxed).saturating_sub(file.listed_dead.load(Relaxed));
            if news > 0 {
                // Counted again by `installed`.
                file.dead.fetch_sub(news, Relaxed);
                edit.garbage.push((file.id, news, 0));
            }
        }
        let mut gone = self.gone.hold();
        edit.removed.extend(gone.iter().filter(|&(_, &last)| last <= flushed).map(|(&id, _)| id));
        gone.retain(|_, last| *last > flushed);
        edit
    }

    /// The files that edits have named, oldest first.
    fn listed_files(&self) -> Vec<Arc<ValueFile>> {
        let mut files: Vec<_> =
            self.all.load().values().filter(|file| file.listed.load(Relaxed) > 0).map(Arc::clone).collect();
        files.sort_unstable_by_key(|file| file.id);
        files
    }

    /// What the manifest is to know of finished copies: files that are new, or longer than it knows.
    #[must_use]
    pub fn added(&self, files: &[Arc<ValueFile>]) -> ValueEdit {
        let mut edit = ValueEdit::default();
        for file in files {
            if file.listed.swap(file.len(), Relaxed) > 0 {
                edit.removed.push(file.id);
            }
            edit.added.push(file.meta(self.home.keyspace));
        }
        edit
    }

    /// Everything that edits have said so far, as one edit.
    #[must_use]
    pub fn listed(&self) -> ValueEdit {
        let files = self.listed_files();
        let meta =
            |file: &Arc<ValueFile>| ValueFileMeta { bytes: file.listed.load(Relaxed), ..file.meta(self.home.keyspace) };
        let dead = |file: &Arc<ValueFile>| (file.id, file.listed_dead.load(Relaxed), 0);
        ValueEdit {
            removed: Vec::new(),
            added: files
                .iter()
                .map(meta)
                .chain(self.gone.hold().iter().map(|(&id, &last)| self.gone_meta(id, last)))
                .collect(),
            garbage: files.iter().map(dead).filter(|garbage| garbage.1 > 0).collect(),
        }
    }

    /// All files that exist.
    #[must_use]
    pub fn present(&self) -> Vec<FileId> {
        self.all.load().keys().copied().collect()
    }

    /// Bytes of memory for the files that are open.
    #[must_use]
    pub fn memory_bytes(&self) -> u64 {
        self.all.load().len() as u64 * OPEN_FILE_BYTES
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

    /// Bytes of emptied files out of which something has moved after the commit `seqno`.
    #[must_use]
    pub fn emptied_after(&self, seqno: SeqNo) -> u64 {
        let emptied = self.emptied.hold();
        let all = self.all.load();
        let later = emptied.iter().filter(|&(_, &last)| last > seqno);
        later.filter_map(|(id, _)| all.get(id)).map(|file| file.len()).sum()
    }
}

impl ValueFiles {
    /// The entry of a deleted file. Its number of entries is that of the last move out of it.
    fn gone_meta(&self, id: FileId, last: SeqNo) -> ValueFileMeta {
        ValueFileMeta {
            id,
            class: 0,
            keyspace: self.home.keyspace,
            group: 0,
            level: 0,
            epoch: 0,
            tags: GONE,
            bytes: 0,
            entries: last,
            smallest: Box::default(),
            largest: Box::default(),
        }
    }

    /// The last commit that was durable before a file was deleted which logs may still point into.
    #[must_use]
    pub fn durable_before(&self) -> SeqNo {
        self.gone.hold().values().copied().max().unwrap_or(0)
    }
}

/// Reads every byte of a value file that the manifest lists.
///
/// # Errors
/// The first damage; I/O errors.
pub fn verify(dir: &Dir, meta: &ValueFileMeta) -> Result<()> {
    if meta.tags & GONE != 0 {
        return Ok(());
    }
    let name = names::value(meta.id);
    let path = dir.file(&name);
    if dir.len(&name)?.is_none() {
        return Err(Corruption::new(0, "value file", "a file that MANIFEST lists", "no such file").of(path));
    }
    let reader = dir.open(&name)?;
    if reader.len() < meta.bytes {
        let (expected, found) = (format!("at least {} bytes", meta.bytes), format!("{} bytes", reader.len()));
        return Err(Corruption::new(reader.len(), "value file", expected, found).of(path));
    }
    let mut first = vec![0; DESCRIPTION_BYTES_MAX.min(usize::try_from(reader.len()).unwrap_or(usize::MAX))];
    reader.read_at(&mut first, 0, IoSource::Maintenance)?;
    let listed = Description { class: meta.class, keyspace: meta.keyspace, group: meta.group };
    let start = match value::describe(&first) {
        Ok((id, described, start)) if (id, described) == (meta.id, listed) => start,
        Ok((id, described, _)) => {
            let (expected, found) = (format!("file {}, {listed:?}", meta.id), format!("file {id}, {described:?}"));
            return Err(Corruption::new(0, "file header", expected, found).of(path));
        }
        Err(damage) => return Err(damage.of(path)),
    };
    let mut scan = Scan::of(meta.id, reader, start, meta.bytes, IoSource::Maintenance);
    while let Some((record, _)) = scan.sound()? {
        record.value().map_err(|damage| damage.of(&path))?;
    }
    Ok(())
}

fn wrong_id(expected: FileId, found: FileId) -> Corruption {
    Corruption::new(16, "file header", format!("file id {expected}"), format!("file id {found}"))
}
