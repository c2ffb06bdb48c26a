//! Pins: what keeps a database's files while other processes read them.
//!
//! ```text
//! reader   create DIR/readers/N, lock it ─▶ read MANIFEST, logs ─▶ open files ─▶ append what is still needed to N
//! writer   record the removal in MANIFEST ─▶ list DIR/readers ─┬─ a file that is locked: is this file needed there?
//!                                                              └─ a file that is not locked: its reader has ended
//! ```
//!
//! * **The lock is the pin's life.** The system ends it with the process, however that ends. So no pin outlasts its
//!   reader, and the writer removes the file of one that has ended.
//! * **An empty pin holds everything.** So does one that cannot be read. A reader pins before it reads the manifest. If
//!   the writer looked before that, the removal is in the manifest that the reader then reads, and the reader needs no
//!   such file. If it looks later, it finds the pin.
//! * **A pin that has lost its name holds nothing.** Somebody has removed it, usually with the whole directory, and a
//!   writer that looks there finds no reader. Its reader notices when it says what it needs.
//! * **What a reader needs is three numbers** ([`Need`]): the manifest, the offset up to which the reader has read it,
//!   and the first file number that is too large for the reader. It needs files with smaller numbers that were removed
//!   after that offset.
//! * **The writer never waits.** It keeps the names of held files, and asks again when it removes the next file, when
//!   its statistics are read, and when it is opened or closed.
//! * **Reader and writer may be different users.** So a pin, and the directory of pins, get the permissions of the
//!   database's directory. If the writer cannot read them all the same, it keeps every file, and says why.

use std::{
    collections::{BTreeMap, hash_map::RandomState},
    hash::BuildHasher,
    io::ErrorKind,
    path::{Path, PathBuf},
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
};

use bifold_contract::{Corruption, Error, Result, planted};
use xxhash_rust::xxh3::xxh3_64;

use crate::{
    Dir, FileSystem, Opener,
    fs::{FileLock, LockMode, WriteFile},
};

/// The directory of pins, in the database's directory.
pub const READERS: &str = "readers";

/// A pin's record: three numbers and their checksum.
const RECORD_BYTES: usize = 32;

/// A pin's file is emptied before it grows beyond this.
const PIN_BYTES_MAX: u64 = 64 << 10;

/// How often a reader tries another name for its pin: the writer may take a file for that of a reader that has ended,
/// between its creation and its lock.
const NAMES_MAX: u32 = 100;

/// A place in the history of a manifest. Later places are larger.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Position {
    /// The next file number when this manifest was begun. Larger in each later manifest.
    pub manifest: u64,
    /// Where a record ends in it.
    pub offset: u64,
}

impl Position {
    /// After everything that any manifest says so far.
    pub const LAST: Self = Self { manifest: u64::MAX, offset: u64::MAX };
}

/// What a reader needs: files that were removed after `since` and have numbers below `below`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Need {
    /// What the reader has read of the manifest.
    pub since: Position,
    /// The first number of a file that it does not need.
    pub below: u64,
}

impl Need {
    /// Every file.
    pub const EVERYTHING: Self = Self { since: Position { manifest: 0, offset: 0 }, below: u64::MAX };

    fn encode(self) -> [u8; RECORD_BYTES] {
        let mut record = [0; RECORD_BYTES];
        for (at, number) in [self.since.manifest, self.since.offset, self.below].into_iter().enumerate() {
            record[at * 8..at * 8 + 8].copy_from_slice(&number.to_le_bytes());
        }
        let check = xxh3_64(&record[..24]);
        record[24..].copy_from_slice(&check.to_le_bytes());
        record
    }

    fn decode(record: &[u8; RECORD_BYTES]) -> Option<Self> {
        let number = |at: usize| record[at..].first_chunk().map_or(0, |bytes| u64::from_le_bytes(*bytes));
        let since = Position { manifest: number(0), offset: number(8) };
        (xxh3_64(&record[..24]) == number(24)).then_some(Self { since, below: number(16) })
    }
}

/// A reader's pin. It ends when this is dropped, and with the process.
#[derive(Debug)]
pub struct Pin {
    fs: Arc<dyn FileSystem>,
    path: PathBuf,
    opener: Opener,
    file: Mutex<PinFile>,
    _lock: Box<dyn FileLock>,
}

#[derive(Debug)]
struct PinFile {
    writer: Arc<dyn WriteFile>,
    bytes: u64,
    says: Need,
}

impl Pin {
    /// Pins every file of the database in `dir`.
    ///
    /// # Errors
    /// The file system's, such as that files cannot be created there.
    pub fn take(dir: &Dir) -> Result<Self> {
        let (fs, readers) = (dir.file_system(), dir.path().join(READERS));
        if !matches!(fs.kind(&readers), Ok(Some(_))) {
            fs.create_dir_all(&readers)?;
            fs.share_with_users_of(dir.path(), &readers);
        }
        let mut tries = 0;
        loop {
            let path = readers.join(new_name());
            drop(fs.create(&path)?);
            match fs.lock(&path, LockMode::Exclusive) {
                // Until it was locked, the writer may have taken it for one without a reader.
                Ok(lock) if fs.len(&path)?.is_some() => {
                    // If it has removed that one, the lock has created another.
                    fs.share_with_users_of(dir.path(), &path);
                    let writer = fs.open_append(&path)?;
                    let file = PinFile { writer, bytes: 0, says: Need::EVERYTHING };
                    return Ok(Self {
                        fs: Arc::clone(fs),
                        path,
                        opener: Opener::this(),
                        file: Mutex::new(file),
                        _lock: lock,
                    });
                }
                Ok(_) | Err(Error::Locked { .. }) if tries < NAMES_MAX => tries += 1,
                Ok(_) => return Err(Error::Locked { path }),
                Err(error) => return Err(error),
            }
        }
    }

    /// Pins this instead from now on.
    ///
    /// # Errors
    /// The file system's; then more may stay pinned than that. [`Error::Corruption`] if somebody has removed the pin:
    /// then nothing is pinned. [`Error::Closed`] in a forked child: the pin is its parent's.
    pub fn hold(&self, held: Need) -> Result<()> {
        if self.opener.is_another() {
            return Err(Error::Closed { what: "the database in a forked child".into() });
        }
        let mut file = self.file.lock().unwrap_or_else(PoisonError::into_inner);
        // An open file takes appends without its name, too. No other pin has the same one.
        if self.fs.len(&self.path)?.is_none() && !planted!("hold_by_removed_pin") {
            let found = "no such file: the directory may hold another database now";
            return Err(Corruption::new(0, "pin", "the file that this reader has locked", found).of(&self.path));
        }
        if file.says == held {
            return Ok(());
        }
        if file.bytes + RECORD_BYTES as u64 > PIN_BYTES_MAX {
            // Empty, it pins everything.
            self.fs.truncate(&self.path, 0)?;
            file.writer = self.fs.open_append(&self.path)?;
            file.bytes = 0;
        }
        // After a failure it is unknown what it says.
        file.says = Need::EVERYTHING;
        file.bytes += RECORD_BYTES as u64;
        file.writer.append(&[&held.encode()])?;
        file.says = held;
        Ok(())
    }
}

impl Drop for Pin {
    fn drop(&mut self) {
        // A forked child has it only as a copy: the parent goes on reading.
        if self.opener.is_another() {
            return;
        }
        // While it is locked: nobody else removes it.
        let _removed_by_the_writer = self.fs.remove(&self.path);
    }
}

/// A name that no other pin has, whatever process or container it is of.
fn new_name() -> String {
    static COUNTER: AtomicU64 = AtomicU64::new(0);
    let random = RandomState::new().hash_one(COUNTER.fetch_add(1, Ordering::Relaxed));
    format!("{}-{random:016x}", std::process::id())
}

/// The writer's view of all pins.
#[derive(Debug)]
pub struct Pins {
    fs: Arc<dyn FileSystem>,
    readers: PathBuf,
    /// The number in a file's name. A file without one is never held.
    number: fn(&str) -> Option<u64>,
    state: Mutex<PinsState>,
}

#[derive(Debug)]
struct PinsState {
    /// What the manifest says so far.
    position: Position,
    /// Files that wait for their readers.
    waiting: BTreeMap<PathBuf, Waiting>,
    /// Readers at the last look.
    readers: u64,
    /// Not all of them could be found out then.
    is_unknown: bool,
}

#[derive(Clone, Copy, Debug)]
struct Waiting {
    number: u64,
    removed_at: Position,
    bytes: u64,
}

/// What whoever asks the pins has to do.
#[derive(Debug, Default)]
pub(crate) struct PinsAnswer {
    /// Files that have waited for readers, which none needs any more: they are to be removed.
    pub free: Vec<PathBuf>,
    /// Why it is unknown who reads, if it was known before: this is to be told.
    pub unknown: Option<Error>,
}

/// What readers hold.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PinTotals {
    /// Readers.
    pub readers: u64,
    /// Files that only they need.
    pub files: u64,
    /// Bytes in these.
    pub bytes: u64,
}

impl Pins {
    /// The pins of the database in `dir`.
    #[must_use]
    pub fn of(dir: &Dir, number: fn(&str) -> Option<u64>) -> Arc<Self> {
        let state = PinsState { position: Position::LAST, waiting: BTreeMap::new(), readers: 0, is_unknown: false };
        let (fs, readers) = (Arc::clone(dir.file_system()), dir.path().join(READERS));
        Arc::new(Self { fs, readers, number, state: Mutex::new(state) })
    }

    fn state(&self) -> MutexGuard<'_, PinsState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The manifest now ends here, and readers find it there.
    pub fn note_position(&self, position: Position) {
        let mut state = self.state();
        state.position = position;
        for waiting in state.waiting.values_mut().filter(|waiting| waiting.removed_at == Position::LAST) {
            waiting.removed_at = position;
        }
    }

    /// Whether the file at `path`, which the manifest no longer names, has to stay for a reader. It is among those to
    /// be removed later then.
    pub(crate) fn keeps(&self, path: &Path) -> (bool, PinsAnswer) {
        let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        let Some(number) = (self.number)(name) else { return (false, PinsAnswer::default()) };
        if planted!("delete_without_asking") {
            return (false, PinsAnswer::default());
        }
        let mut state = self.state();
        let (held, unknown) = self.look(&mut state);
        if !held.is_empty() {
            let removed_at = state.position;
            let bytes = state.waiting.get(path).map_or_else(|| self.bytes_of(path), |waiting| waiting.bytes);
            state.waiting.entry(path.into()).or_insert(Waiting { number, removed_at, bytes });
        }
        let mut free = self.take_free(&mut state, &held);
        free.retain(|free| free != path);
        (state.waiting.contains_key(path), PinsAnswer { free, unknown })
    }

    /// What is left when the files are removed that nobody needs any more.
    pub(crate) fn release(&self) -> (PinTotals, PinsAnswer) {
        let mut state = self.state();
        let (held, unknown) = self.look(&mut state);
        let free = self.take_free(&mut state, &held);
        let files = state.waiting.len() as u64;
        let bytes = state.waiting.values().map(|waiting| waiting.bytes).sum();
        (PinTotals { readers: state.readers, files, bytes }, PinsAnswer { free, unknown })
    }

    fn bytes_of(&self, path: &Path) -> u64 {
        self.fs.len(path).ok().flatten().unwrap_or(0)
    }

    fn take_free(&self, state: &mut PinsState, held: &[Need]) -> Vec<PathBuf> {
        let is_needed =
            |waiting: &Waiting| held.iter().any(|held| held.since < waiting.removed_at && waiting.number < held.below);
        let free: Vec<PathBuf> =
            state.waiting.iter().filter(|(_, waiting)| !is_needed(waiting)).map(|(path, _)| path.clone()).collect();
        state.waiting.retain(|_, waiting| is_needed(waiting));
        free
    }

    /// What readers hold now; and why that is unknown, if it has just become so. Removes the pins of readers that have
    /// ended.
    fn look(&self, state: &mut PinsState) -> (Vec<Need>, Option<Error>) {
        let mut unknown = None;
        let held: Vec<Need> = match self.fs.list(&self.readers) {
            Ok(pins) => pins.iter().filter_map(|pin| self.look_at(pin, &mut unknown)).collect(),
            // Not if one of the pins was gone when the list came to it.
            Err(Error::Io { source, .. }) if source.kind() == ErrorKind::NotFound && self.is_without_readers() => {
                Vec::new()
            }
            // Nobody knows who reads.
            Err(error) => {
                unknown = Some(error);
                vec![Need::EVERYTHING]
            }
        };
        state.readers = held.len() as u64;
        let was_unknown = std::mem::replace(&mut state.is_unknown, unknown.is_some());
        (held, unknown.filter(|_| !was_unknown))
    }

    /// Whether no reader has ever been there.
    fn is_without_readers(&self) -> bool {
        matches!(self.fs.kind(&self.readers), Ok(None))
    }

    fn look_at(&self, pin: &Path, unknown: &mut Option<Error>) -> Option<Need> {
        match self.fs.lock(pin, LockMode::Shared) {
            Ok(lock) if !planted!("keep_stale_pins") => {
                let _taken_for_nobody_next_time = self.fs.remove(pin);
                drop(lock);
                None
            }
            Err(Error::Io { source, .. }) if source.kind() == ErrorKind::NotFound => None,
            held => {
                // Otherwise it is locked: its reader lives.
                if let Err(error @ Error::Io { .. }) = held {
                    *unknown = unknown.take().or(Some(error));
                }
                Some(self.read(pin).unwrap_or(Need::EVERYTHING))
            }
        }
    }

    fn read(&self, pin: &Path) -> Option<Need> {
        let file = self.fs.open(pin).ok()?;
        let bytes = file.len().ok()?;
        let whole = bytes - bytes % RECORD_BYTES as u64;
        let mut record = [0; RECORD_BYTES];
        file.read_at(&mut record, whole.checked_sub(RECORD_BYTES as u64)?).ok()?;
        Need::decode(&record)
    }
}

#[cfg(test)]
mod tests;
