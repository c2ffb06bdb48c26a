//! Large values of one keyspace: each has a file of its own, whatever the placement.
//!
//! ```text
//! written ─▶ synced ─▶ a commit names it ─▶ a flush takes the entry into a table ─▶ a merge drops the entry ─▶ deleted
//! nobody knows it      [`LargeFiles::refer`]   the edit adds the file                the edit removes it
//! ```
//!
//! * **One entry names it**, and it never changes. So it is alive as a whole or dead as a whole, and no GC moves it.
//! * **Its entry decides.** A rewrite that drops the entry reports the file ([`LargeRewriter`]). If the entry never
//!   came into a table, no manifest has named the file.
//! * **It is deleted when nobody reads it.** Who reads it holds a [`LargeFile`]. A reader that has found the entry in
//!   an older view and comes too late looks the key up again, as for a value that has moved.
//! * **The change feed may need it longer** ([`LargeFile::retain`]).
//! * **What no manifest names and no log** is left of a crash or of an error, and is deleted by the next opening.

mod reading;
mod retained;
mod rewriter;
mod writer;

use std::{
    collections::BTreeMap,
    sync::{
        Arc, Mutex, OnceLock,
        atomic::{AtomicBool, Ordering::Acquire, Ordering::Relaxed, Ordering::Release},
    },
};

use bifold_contract::{
    Corruption, FileId, IoSource, KeyspaceId, LargeEdit, LargeFileMeta, LargeRef, Result, Value, planted,
};
use bifold_format::{
    large::{self, LargeLayout},
    names,
};
use bifold_io::{Dir, Reader};

pub use self::{reading::LargeReading, rewriter::LargeRewriter, writer::LargeWriter};
use super::{
    budget::Budget,
    buffers::Buffers,
    sync::LockExt,
    value_files::{FileAccess, NewFile, StoreContext},
};
use crate::placement::Located;

/// The files of large values of one keyspace.
#[derive(Debug)]
pub struct LargeFiles {
    home: Arc<LargeHome>,
    /// There has been one since the database was opened: rewrites must look for their entries.
    has_been_any: AtomicBool,
    files: Mutex<BTreeMap<FileId, Listed>>,
}

/// Where files of large values are, and what is shared by those who have them.
struct LargeHome {
    dir: Dir,
    keyspace: KeyspaceId,
    access: FileAccess,
    new_file: NewFile,
    buffers: Arc<Buffers>,
}

#[derive(Debug)]
struct Listed {
    file: Arc<LargeFile>,
    /// The manifest names it.
    is_recorded: bool,
}

/// The file of one large value. It stays as long as somebody has it.
#[derive(Debug)]
pub struct LargeFile {
    home: Arc<LargeHome>,
    named: LargeRef,
    bytes: u64,
    /// Once its beginning and its end were checked.
    reader: OnceLock<Reader>,
    /// It is deleted when nobody has it any more.
    is_obsolete: AtomicBool,
    /// But not yet: the change feed needs it.
    is_retained: AtomicBool,
}

impl std::fmt::Debug for LargeHome {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("LargeHome").field("dir", &self.dir).field("keyspace", &self.keyspace).finish_non_exhaustive()
    }
}

impl LargeFiles {
    /// The files that the manifest names, among them those of other keyspaces, which are left out. Nothing is read.
    #[must_use]
    pub fn open(context: &StoreContext, recorded: &LargeEdit) -> Self {
        let files = Self {
            home: Arc::new(LargeHome {
                dir: context.dir.clone(),
                keyspace: context.keyspace,
                access: context.access,
                new_file: Arc::clone(&context.new_file),
                buffers: Buffers::new(Arc::clone(&context.memory.buffers)),
            }),
            has_been_any: AtomicBool::new(false),
            files: Mutex::default(),
        };
        for meta in recorded.added.iter().filter(|meta| meta.keyspace == context.keyspace) {
            files.list(meta.named, meta.bytes, true);
        }
        files
    }

    /// A log names the file, as recovery has found.
    pub fn know(&self, file: &LargeFileMeta) {
        self.list(file.named, file.bytes, false);
    }

    fn list(&self, named: LargeRef, bytes: u64, is_recorded: bool) {
        self.has_been_any.store(true, Release);
        let file = LargeFile::of(&self.home, named, bytes);
        self.files.hold().entry(named.file).or_insert(Listed { file, is_recorded });
    }

    /// A commit names the file, or a log does. Called before the entry is in a memtable.
    pub fn refer(&self, named: LargeRef, key_len: usize) {
        self.list(named, LargeLayout::of(key_len, named.len).file_bytes(), false);
    }

    /// Takes over what only logs name, from a state before.
    pub fn take_over(&self, before: &Self) {
        let unrecorded = |listed: &&Listed| !listed.is_recorded;
        let named: Vec<LargeFileMeta> =
            before.files.hold().values().filter(unrecorded).map(|listed| listed.file.meta()).collect();
        named.iter().for_each(|file| self.list(file.named, file.bytes, false));
    }

    /// Whether rewrites may meet entries of large values.
    #[must_use]
    pub fn has_been_any(&self) -> bool {
        self.has_been_any.load(Acquire)
    }

    /// What an entry in the log leads to. The file was synced before the entry was logged, so a crash explains only
    /// that there is no file, or not all of it, if the system has lost what it reported as synced.
    ///
    /// # Errors
    /// I/O errors.
    pub fn locate(&self, key: &[u8], named: LargeRef) -> Result<Located> {
        let bytes = LargeLayout::of(key.len(), named.len).file_bytes();
        match self.home.dir.len(&names::large(named.file))? {
            Some(found) if found >= bytes => {}
            Some(_) | None => return Ok(Located::Missing),
        }
        match LargeFile::of(&self.home, named, bytes).reader(key) {
            Ok(_) => Ok(Located::Whole),
            Err(error) if error.is_unreadable() => Ok(Located::Damaged),
            Err(error) => Err(error),
        }
    }

    /// The file that an entry names; `None` if the entry has been dropped since.
    #[must_use]
    pub fn find(&self, key_len: usize, named: LargeRef) -> Option<Arc<LargeFile>> {
        if let Some(listed) = self.files.hold().get(&named.file).filter(|listed| listed.file.named == named) {
            return Some(Arc::clone(&listed.file));
        }
        // In a reader while another process writes: an earlier state has read the log that names the file. It is
        // pinned.
        let bytes = LargeLayout::of(key_len, named.len).file_bytes();
        (self.home.access == FileAccess::Follow).then(|| LargeFile::of(&self.home, named, bytes))
    }

    /// The value that an entry names, in memory; `None` if the entry has been dropped since.
    ///
    /// # Errors
    /// I/O errors; corruption.
    pub fn read(&self, key: &[u8], named: LargeRef, source: IoSource) -> Result<Option<Value>> {
        self.find(key.len(), named).map(|file| LargeReading::new(file, key, source)?.read_all()).transpose()
    }

    /// Begins a file.
    ///
    /// # Errors
    /// I/O errors; there is no file then.
    pub fn create(&self, key: &[u8]) -> Result<LargeWriter> {
        LargeWriter::create(&self.home, key)
    }

    /// All that the manifest names.
    #[must_use]
    pub fn recorded(&self) -> LargeEdit {
        let files = self.files.hold();
        let recorded = files.values().filter(|listed| listed.is_recorded);
        LargeEdit { added: recorded.map(|listed| listed.file.meta()).collect(), ..LargeEdit::default() }
    }

    /// `edit` is durable and installed.
    pub fn installed(&self, edit: &LargeEdit) {
        let mut files = self.files.hold();
        for meta in &edit.added {
            if let Some(listed) = files.get_mut(&meta.named.file) {
                listed.is_recorded = true;
            }
        }
        let gone = edit.removed.iter().chain(&edit.unneeded).filter_map(|id| files.remove(id)).collect::<Vec<_>>();
        drop(files);
        for Listed { file, .. } in gone {
            file.is_obsolete.store(true, Relaxed);
            if planted!("large_deleted_under_readers") {
                let _counted = file.home.dir.remove(&names::large(file.named.file));
            }
        }
    }

    /// The keyspace is dropped: its files are deleted when the last reader releases them.
    pub fn drop_all(&self) {
        self.files.hold().values().for_each(|listed| listed.file.is_obsolete.store(true, Relaxed));
    }

    /// All files, named by the manifest or by logs alone. They stay as long as the result lives.
    #[must_use]
    pub fn all(&self) -> Vec<Arc<LargeFile>> {
        self.files.hold().values().map(|listed| Arc::clone(&listed.file)).collect()
    }

    /// Number of files, and bytes in them.
    #[must_use]
    pub fn sizes(&self) -> (u64, u64) {
        let files = self.files.hold();
        (files.len() as u64, files.values().map(|listed| listed.file.bytes).sum())
    }

    /// Bytes of memory in buffers of those who write and read.
    #[must_use]
    pub fn memory_bytes(&self) -> u64 {
        self.home.buffers.bytes()
    }
}

impl LargeFile {
    fn of(home: &Arc<LargeHome>, named: LargeRef, bytes: u64) -> Arc<Self> {
        let (is_obsolete, is_retained) = (AtomicBool::new(false), AtomicBool::new(false));
        Arc::new(Self { home: Arc::clone(home), named, bytes, reader: OnceLock::new(), is_obsolete, is_retained })
    }

    /// A file that is only read, whatever database it is of.
    #[must_use]
    pub fn alone(dir: &Dir, keyspace: KeyspaceId, named: LargeRef, key_len: usize) -> Arc<Self> {
        let home = LargeHome {
            dir: dir.clone(),
            keyspace,
            access: FileAccess::Read,
            new_file: Arc::new(|| FileId::MAX),
            buffers: Buffers::new(Budget::new(0)),
        };
        Self::of(&Arc::new(home), named, LargeLayout::of(key_len, named.len).file_bytes())
    }

    /// Its number.
    #[must_use]
    pub fn id(&self) -> FileId {
        self.named.file
    }

    /// What the manifest records of it.
    #[must_use]
    pub fn meta(&self) -> LargeFileMeta {
        LargeFileMeta { keyspace: self.home.keyspace, named: self.named, bytes: self.bytes }
    }

    /// The file, whose beginning and end are those of the value of `key` that the entry names.
    fn reader(&self, key: &[u8]) -> Result<&Reader> {
        match self.reader.get() {
            Some(reader) => Ok(reader),
            None => {
                let reader = open(&self.home.dir, self.named, (self.home.keyspace, key))?;
                Ok(self.reader.get_or_init(|| reader))
            }
        }
    }
}

impl Drop for LargeFile {
    fn drop(&mut self) {
        let is_retained = *self.is_retained.get_mut() && !planted!("large_deleted_under_the_feed");
        if !*self.is_obsolete.get_mut() || is_retained {
            return;
        }
        match self.reader.get() {
            Some(reader) => reader.remove_when_unused(),
            // Not here: whoever installs an edit has locks that commits wait for.
            None => self.home.dir.remove_later(&names::large(self.named.file)),
        }
    }
}

/// Opens the file that an entry names, and checks its beginning and its end.
fn open(dir: &Dir, named: LargeRef, of: (KeyspaceId, &[u8])) -> Result<Reader> {
    open_with(|name| dir.open(name), named, of)
}

fn open_with(
    open: impl FnOnce(&str) -> Result<Reader>,
    named: LargeRef,
    (keyspace, key): (KeyspaceId, &[u8]),
) -> Result<Reader> {
    let reader = open(&names::large(named.file))?;
    let layout = LargeLayout::of(key.len(), named.len);
    check_len(&reader, layout)?;
    let mut head = vec![0; layout.head_bytes()];
    reader.read_at(&mut head, 0, IoSource::Metadata)?;
    let said = large::described(&head).map_err(|damage| damage.of(reader.path()))?;
    if (said.file, said.keyspace, &*said.key) != (named.file, keyspace, key) {
        let shown = |file: FileId, keyspace: KeyspaceId, key: &[u8]| {
            format!("file {file}, keyspace {keyspace}, key `{}`", key.escape_ascii())
        };
        let expected = shown(named.file, keyspace, key);
        let found = shown(said.file, said.keyspace, &said.key);
        return Err(Corruption::new(0, "description of a large value", expected, found).of(reader.path()));
    }
    check_trailer(&reader, layout, named)?;
    Ok(reader)
}

fn check_len(reader: &Reader, layout: LargeLayout) -> Result<()> {
    if reader.len() == layout.file_bytes() {
        return Ok(());
    }
    let (expected, found) = (format!("a file of {} bytes", layout.file_bytes()), reader.len().to_string());
    let at = reader.len().min(layout.file_bytes());
    Err(Corruption::new(at, "large value", expected, found).of(reader.path()))
}

fn check_trailer(reader: &Reader, layout: LargeLayout, named: LargeRef) -> Result<()> {
    let mut last = [0; large::TRAILER_BYTES as usize];
    reader.read_at(&mut last, layout.trailer_at(), IoSource::Metadata)?;
    let said = large::named(&last, named.file, layout.trailer_at()).map_err(|damage| damage.of(reader.path()))?;
    if said == named {
        return Ok(());
    }
    let shown = |said: LargeRef| format!("{} bytes with sum {:016x}", said.len, said.sum);
    Err(Corruption::new(layout.trailer_at(), "trailer of a large value", shown(named), shown(said)).of(reader.path()))
}

/// Reads and checks every byte of a file, of which the manifest or a log says this: of its key it tells the length.
///
/// # Errors
/// I/O errors; corruption.
pub fn verify(dir: &Dir, file: &LargeFileMeta) -> Result<()> {
    let LargeFileMeta { keyspace, named, bytes } = *file;
    let said = described(dir, named.file)?;
    let layout = LargeLayout::of(said.key.len(), named.len);
    if layout.file_bytes() != bytes {
        let expected = format!("a key with which the file has {bytes} bytes");
        let found = format!("key `{}`, with which it has {}", said.key.escape_ascii(), layout.file_bytes());
        let path = dir.file(&names::large(named.file));
        return Err(Corruption::new(0, "description of a large value", expected, found).of(path));
    }
    let reader = open(dir, named, (keyspace, &said.key))?;
    reading::check_all(&reader, layout, named)
}

/// What a file says about itself.
///
/// # Errors
/// I/O errors; corruption.
pub fn described(dir: &Dir, file: FileId) -> Result<large::Described> {
    let reader = dir.open(&names::large(file))?;
    let mut head = vec![0; (reader.len() as usize).min(large::HEAD_BYTES_MAX)];
    reader.read_at(&mut head, 0, IoSource::Maintenance)?;
    large::described(&head).map_err(|damage| damage.of(reader.path()))
}

#[cfg(test)]
mod tests;
