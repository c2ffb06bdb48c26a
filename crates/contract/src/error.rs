//! Everything that can go wrong. Each message says what happened, where, and what to do.

use crate::SeqNo;

use std::{
    fmt, io,
    path::{Path, PathBuf},
    sync::Arc,
};

/// The result of every fallible call of Bifold.
pub type Result<T> = std::result::Result<T, Error>;

/// What Unix systems answer to a process that has too few descriptors or too little memory: `EINTR`, `EAGAIN`,
/// `ENOMEM`, `ENFILE`, `EMFILE`.
const SHORT_OF_RESOURCES: [i32; 5] = [4, 11, 12, 23, 24];

/// Why a call failed. Cheap to clone, so that a failed background job can report its cause to every later call.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum Error {
    /// The operating system refused an operation on a file.
    Io {
        /// The operation: "open", "read", "append", "sync", …
        op: &'static str,
        /// The file or directory.
        path: PathBuf,
        /// The system's error.
        source: Arc<io::Error>,
    },
    /// A file does not hold what was written to it.
    Corruption {
        /// Which file.
        path: PathBuf,
        /// Where and how.
        detail: Corruption,
    },
    /// An argument or option cannot be used. Nothing was changed.
    InvalidArgument {
        /// Which one.
        what: String,
        /// Why, and what would be right.
        reason: String,
    },
    /// The database is open already, in another process or in this one; or the repository of backups is in use.
    Locked {
        /// The lock file.
        path: PathBuf,
    },
    /// There is no database where one was expected.
    NotFound {
        /// The directory.
        path: PathBuf,
    },
    /// A file has a format that only newer releases know.
    NewerFormat {
        /// Which file.
        path: PathBuf,
        /// The version found in it.
        found: u32,
        /// The newest version this release reads.
        supported: u32,
    },
    /// An earlier write or background job failed. The database still serves reads but accepts no writes until it is
    /// reopened.
    Poisoned {
        /// What failed first.
        cause: Box<Error>,
    },
    /// A thread of Bifold panicked, which is a bug. The database accepts no writes until it is reopened.
    Panicked {
        /// What was running when it panicked.
        what: &'static str,
        /// What the panic said.
        message: String,
    },
    /// The disk has too little room for what was asked; nothing was changed. Reads go on, and so do deletes as long
    /// as there is room for them. Writes are accepted again when there is more room.
    Full {
        /// The database's directory.
        path: PathBuf,
        /// Bytes that can still be written there.
        free_bytes: u64,
        /// Bytes that must be free before the operation starts.
        needed_bytes: u64,
    },
    /// The database was opened read-only.
    ReadOnly,
    /// The database was closed, or the keyspace dropped; or this is a forked child of the process that opened the
    /// database, which may only read.
    Closed {
        /// Which.
        what: String,
    },
    /// Another commit has changed what a transaction relies on. Nothing of the transaction was committed; it may
    /// succeed when it is begun again. A compaction filter that asks for a value gets this, too, if the entry was
    /// overwritten.
    Conflict {
        /// The keyspace of the key.
        keyspace: String,
        /// The key that was changed. In a range that the transaction has scanned it may be a new one.
        key: Box<[u8]>,
    },
    /// A merge operator could not combine what is stored. Nothing was changed.
    Merge {
        /// The keyspace.
        keyspace: String,
        /// The key.
        key: Box<[u8]>,
        /// The operator's name.
        operator: String,
        /// Why, in the operator's words, or that it panicked or is not known.
        reason: String,
    },
    /// A separated value cannot move: the operands above it are written again with its new address, and they are too
    /// long for one commit. Nothing was changed. Garbage collection leaves out the file of the value until the database
    /// is closed.
    OperandsTooLong {
        /// The file that has the value.
        path: PathBuf,
        /// The keyspace.
        keyspace: String,
        /// The key.
        key: Box<[u8]>,
        /// Bytes of the commit.
        bytes: u64,
        /// The most that it may have.
        bytes_max: u64,
    },
    /// Open transactions and write caches would take more memory than
    /// `Options::transaction_bytes_max` allows. Nothing of this transaction was committed, and the call that returned
    /// this has changed nothing.
    TransactionTooLarge {
        /// Bytes that all of them would take.
        bytes: u64,
        /// What they may take.
        bytes_max: u64,
    },
    /// Changes that were asked for are no longer kept. Read the keyspaces themselves, and go on from the number of that
    /// snapshot.
    ChangesGone {
        /// After which number they were asked for.
        since: SeqNo,
        /// The number of the first change that is still there.
        first: SeqNo,
    },
}

/// So many bytes of a key are shown in a message.
const KEY_SHOWN_MAX: usize = 64;

/// Damage found in a file: the offset, what should be there and what is there.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Corruption {
    /// Where the damaged structure starts, in bytes from the start of the file.
    pub offset: u64,
    /// Which structure: "data block", "log record", "footer", …
    pub what: &'static str,
    /// What an undamaged file has there.
    pub expected: String,
    /// What this file has.
    pub found: String,
}

impl Corruption {
    /// Damage at `offset`.
    pub fn new(offset: u64, what: &'static str, expected: impl Into<String>, found: impl Into<String>) -> Self {
        Self { offset, what, expected: expected.into(), found: found.into() }
    }

    /// The same damage, `base` bytes further into the file.
    #[must_use]
    pub fn at(mut self, base: u64) -> Self {
        self.offset += base;
        self
    }

    /// Adds the file's path.
    pub fn of(self, path: impl Into<PathBuf>) -> Error {
        Error::Corruption { path: path.into(), detail: self }
    }
}

impl Error {
    /// An argument or option that cannot be used.
    pub fn invalid(what: impl Into<String>, reason: impl Into<String>) -> Self {
        Self::InvalidArgument { what: what.into(), reason: reason.into() }
    }

    /// A failed system call on `path`.
    pub fn io(op: &'static str, path: impl Into<PathBuf>, source: io::Error) -> Self {
        Self::Io { op, path: path.into(), source: Arc::new(source) }
    }

    /// This error as the cause of a poisoned database. [`Error::Poisoned`] does not nest.
    #[must_use]
    pub fn poisoned(self) -> Self {
        match self {
            Self::Poisoned { .. } => self,
            cause => Self::Poisoned { cause: Box::new(cause) },
        }
    }

    /// Whether the disk or a quota is full, whether Bifold or the system found that out.
    #[must_use]
    pub fn is_full(&self) -> bool {
        let kinds = [io::ErrorKind::StorageFull, io::ErrorKind::QuotaExceeded];
        match self {
            Self::Full { .. } => true,
            Self::Io { source, .. } => kinds.contains(&source.kind()),
            Self::Poisoned { cause } => cause.is_full(),
            _ => false,
        }
    }

    /// Whether a transaction failed because of another commit, so that trying again may help.
    #[must_use]
    pub fn is_conflict(&self) -> bool {
        matches!(self, Self::Conflict { .. })
    }

    /// Whether the content of a file is damaged.
    #[must_use]
    pub fn is_corruption(&self) -> bool {
        matches!(self, Self::Corruption { .. })
    }

    /// Whether something that is stored cannot be read: it is damaged, or the system refuses to read it. Not if the
    /// process has too few descriptors or too little memory: it could read it later. A value that garbage collection
    /// cannot move ([`Error::OperandsTooLong`]) counts, too: its file is left out in the same way.
    #[must_use]
    pub fn is_unreadable(&self) -> bool {
        match self {
            Self::Corruption { .. } | Self::OperandsTooLong { .. } => true,
            Self::Io { op: "read" | "open", source, .. } => {
                let is_short = source.raw_os_error().is_some_and(|code| SHORT_OF_RESOURCES.contains(&code));
                !is_short && source.kind() != io::ErrorKind::OutOfMemory && !self.is_full()
            }
            _ => false,
        }
    }

    /// The file or directory the error is about, if it is about one.
    #[must_use]
    pub fn path(&self) -> Option<&Path> {
        match self {
            Self::Io { path, .. }
            | Self::Corruption { path, .. }
            | Self::Locked { path }
            | Self::NotFound { path }
            | Self::NewerFormat { path, .. }
            | Self::OperandsTooLong { path, .. }
            | Self::Full { path, .. } => Some(path),
            Self::Poisoned { cause } => cause.path(),
            Self::InvalidArgument { .. }
            | Self::Panicked { .. }
            | Self::ReadOnly
            | Self::Closed { .. }
            | Self::Conflict { .. }
            | Self::Merge { .. }
            | Self::TransactionTooLarge { .. }
            | Self::ChangesGone { .. } => None,
        }
    }
}

impl fmt::Display for Corruption {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "damaged {} at offset {}: expected {}, found {}", self.what, self.offset, self.expected, self.found)
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Io { op, path, source } => write!(f, "cannot {op} {}: {source}", path.display()),
            Self::Corruption { path, detail } => write!(
                f,
                "{}: {detail}; restore it from a backup (`bifold backup restore`; a checkpoint shares its files and \
                 is none), or see `bifold verify` and `bifold salvage`",
                path.display()
            ),
            Self::InvalidArgument { what, reason } => write!(f, "invalid {what}: {reason}"),
            Self::Locked { path } => write!(
                f,
                "{} is locked: another process, or another handle in this one, has this database open, or uses this \
                 backup; to write, close it there, or wait; to read meanwhile, use `Access::Follow` (commands such as \
                 `get`, `scan`, `stats` do)",
                path.display()
            ),
            Self::NotFound { path } => {
                write!(f, "no Bifold database in {}: check the path, or create one by writing to it", path.display())
            }
            Self::NewerFormat { path, found, supported } => f.write_str(&newer(path, *found, *supported)),
            Self::Poisoned { cause } => write!(
                f,
                "the database stopped accepting writes after an earlier failure ({cause}); reads still work; \
                 fix the cause and reopen the database"
            ),
            Self::Panicked { what, message } => write!(
                f,
                "{what} panicked: {message}; this is a bug in Bifold: please report it, with these words, the \
                 options and the release"
            ),
            Self::Full { path, free_bytes, needed_bytes } => write!(
                f,
                "{}: the disk is nearly full: {free_bytes} bytes are free, this takes {needed_bytes}, for what has \
                 to be written behind it too; reads go on, and deletes as far as there is room: delete entries and \
                 compact, or make room on the disk",
                path.display()
            ),
            Self::ReadOnly => write!(f, "the database was opened read-only: open it for writing to change it"),
            Self::Closed { what } => write!(f, "{what} is closed or dropped"),
            Self::Merge { keyspace, key, operator, reason } => {
                f.write_str(&cannot_combine((keyspace, key), operator, reason))
            }
            Self::Conflict { keyspace, key } => write!(
                f,
                "conflict: key `{}` of keyspace `{keyspace}` was changed after the transaction began; nothing was \
                 committed; begin again, or use `Db::transact`, which does",
                shown(key)
            ),
            Self::OperandsTooLong { path, keyspace, key, bytes, bytes_max } => {
                f.write_str(&cannot_move(path, (keyspace, key), (*bytes, *bytes_max)))
            }
            Self::TransactionTooLarge { bytes, bytes_max } => f.write_str(&too_large(*bytes, *bytes_max)),
            Self::ChangesGone { since, first } => write!(
                f,
                "the changes after {since} are no longer there, the first one that is has number {first}: read the \
                 keyspaces themselves and go on from the number of that snapshot, or keep more by `retain_changes`"
            ),
        }
    }
}

fn newer(path: &Path, found: u32, supported: u32) -> String {
    let path = path.display();
    format!("{path} has format version {found}, this release reads up to {supported}: upgrade Bifold")
}

fn cannot_combine((keyspace, key): (&str, &[u8]), operator: &str, reason: &str) -> String {
    format!(
        "merge operator `{operator}` cannot combine what key `{}` of keyspace `{keyspace}` has: {reason}; put or \
         delete the key, or open the database with an operator that can",
        shown(key)
    )
}

fn cannot_move(path: &Path, (keyspace, key): (&str, &[u8]), (bytes, bytes_max): (u64, u64)) -> String {
    format!(
        "{}: garbage collection leaves this file as it is until the database is closed: the operands of key `{}` of \
         keyspace `{keyspace}` are written again with its value, which takes a commit of {bytes} bytes, and the limit \
         is {bytes_max}; put or delete the key, or compact the keyspace, which combines operands, and open the \
         database again",
        path.display(),
        shown(key)
    )
}

fn too_large(bytes: u64, bytes_max: u64) -> String {
    format!(
        "open transactions and write caches would take {bytes} bytes, they may take {bytes_max}; nothing was \
         committed; split the transaction, read less in it, end others, or raise `transaction_bytes_max` or \
         `memory_limit`"
    )
}

/// The beginning of a key, for a message.
fn shown(key: &[u8]) -> String {
    let shown = key.get(..KEY_SHOWN_MAX).unwrap_or(key);
    let more = if shown.len() < key.len() { "…" } else { "" };
    format!("{}{more}", shown.escape_ascii())
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Io { source, .. } => Some(source.as_ref()),
            Self::Poisoned { cause } => Some(cause.as_ref()),
            _ => None,
        }
    }
}
