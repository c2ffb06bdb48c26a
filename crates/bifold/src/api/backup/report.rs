//! What backups report.

use std::path::PathBuf;

use bifold_contract::Error;
use bifold_format::backup::GenerationRecord;

/// How a backup is made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct BackupOptions {
    /// At most this many bytes are read a second, so that others have the rest of the disk; 0 counts as 1. `None`, the
    /// default: no limit. A file that is new is read twice: to check it, at once after a wait for its length, and to
    /// copy it.
    pub bytes_per_second: Option<u64>,
}

impl BackupOptions {
    /// These options with a limit on the bytes that are read a second.
    #[must_use]
    pub fn with_bytes_per_second(self, bytes_per_second: Option<u64>) -> Self {
        Self { bytes_per_second }
    }
}

/// How far a backup or a restoration has come.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct BackupProgress {
    /// Bytes of all files.
    pub bytes_total: u64,
    /// Of these, bytes that are copied, or found in the repository.
    pub bytes_done: u64,
    /// Of `bytes_done`, bytes that were copied.
    pub bytes_copied: u64,
}

/// One generation of a backup.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Generation {
    /// Its number. Later generations have larger ones.
    pub number: u64,
    /// The id of the database. Copies of a database, restored ones too, have the same id.
    pub database_id: u64,
    /// Where the database was.
    pub source: PathBuf,
    /// When the backup began, in seconds since 1970; 0 if the system did not know.
    pub taken_at_unix_seconds: u64,
    /// How many files it has, without the manifest.
    pub files: u64,
    /// Bytes in them.
    pub bytes: u64,
    /// Of these, bytes that were copied for this generation. The others are shared with older ones.
    pub new_bytes: u64,
    /// Why its record cannot be read. Everything else but the number is unknown then.
    pub damage: Option<Error>,
}

impl Generation {
    pub(super) fn of(record: &GenerationRecord) -> Self {
        Self {
            number: record.number,
            database_id: record.database_id,
            source: record.source.as_str().into(),
            taken_at_unix_seconds: record.taken_at,
            files: record.files.len() as u64,
            bytes: record.files.iter().map(|file| file.bytes).sum(),
            new_bytes: record.new_bytes,
            damage: None,
        }
    }

    pub(super) fn damaged(number: u64, error: &Error) -> Self {
        let unknown = GenerationRecord { number, ..GenerationRecord::default() };
        Self { damage: Some(error.clone()), ..Self::of(&unknown) }
    }
}

/// What was deleted from a repository.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct PruneReport {
    /// The numbers of the generations.
    pub generations: Vec<u64>,
    /// Stored files.
    pub files: u64,
    /// Bytes in them.
    pub bytes: u64,
}
