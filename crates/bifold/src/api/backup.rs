//! Backups: real copies of a database in a repository of several generations. Page: `docs/backup.md`.
//!
//! ```text
//! repository/   LOCK   files/000003-000012.tbl (table 12, copied for generation 3)   generations/000003.gen
//!
//! 1 lock the repository; delete what no generation names                                       repository.rs
//! 2 fix the end of the copy and hold its files, as a checkpoint does                           checkpoint.rs
//! 3 copy the files that no generation of this database has with the same content               create.rs
//! 4 sync them and their directory; write the generation's record, sync it, rename it into place
//! ```
//!
//! * **A generation is its record.** Whatever a record names was durable before the record had its name. So a crash
//!   leaves the new generation whole or absent, and no other one changes.
//! * **Stored files never change.** Before some are deleted, a durable list says which generations no longer count: a
//!   record whose removal a power loss takes back is none.
//! * **A file is shared by content**: the same database id, name, length, and sum of every MiB. Numbers alone mean
//!   little: a database that was restored and written to gives the same numbers to other files.
//! * Sums of immutable files are kept in memory while the database is open ([`KnownSums`](create::KnownSums)). So its
//!   next backup does not read them again; the first one after opening reads every file.

pub(crate) mod create;
mod prune;
mod report;
mod repository;
mod restore;
mod verify;

use std::path::Path;

use bifold_contract::{Error, Result};
use bifold_format::backup::GenerationRecord;
use bifold_io::{Env, LockMode};

pub use self::report::{BackupOptions, BackupProgress, Generation, PruneReport};
use self::repository::{Repository, no_repository};
use crate::api::{
    db::Db,
    verify::{VerifyProgress, VerifyReport},
};

/// A repository of backups that exists. [`Db::backup`](crate::Db::backup) makes one.
///
/// ```
/// # let dir = std::env::temp_dir().join(format!("bifold-doc-backup-{}", std::process::id()));
/// use bifold::{Backup, Db};
///
/// let db = Db::open(dir.join("db"))?;
/// db.put("lorem", "ipsum")?;
/// db.backup(dir.join("backups"))?;
/// db.put("lorem", "dolor")?;
/// db.backup(dir.join("backups"))?;                       // copies only what is new
///
/// let backup = Backup::open(dir.join("backups"))?;
/// assert!(backup.verify()?.problems.is_empty());         // reads every stored byte
/// let first = backup.generations()?[0].number;
/// backup.restore_generation(first, dir.join("older"))?;
/// assert_eq!(Db::open(dir.join("older"))?.get("lorem")?.as_deref(), Some(&b"ipsum"[..]));
/// Db::restore(dir.join("backups"), dir.join("newest"))?; // the newest generation
/// backup.prune(1)?;                                      // deletes all but the newest
/// # drop(db); std::fs::remove_dir_all(dir).ok();
/// # Ok::<(), bifold::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct Backup {
    env: Env,
    path: Box<Path>,
}

impl Backup {
    /// The repository in `dir`.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] when there is none; I/O errors.
    pub fn open(dir: impl AsRef<Path>) -> Result<Self> {
        Self::open_in(Env::system(), dir)
    }

    /// As [`Backup::open`], on the files of `env`.
    ///
    /// # Errors
    /// As [`Backup::open`].
    pub fn open_in(env: Env, dir: impl AsRef<Path>) -> Result<Self> {
        let backup = Self { env, path: dir.as_ref().into() };
        Repository::find(&backup.env, &backup.path).map(|_| backup)
    }

    /// Its generations, the oldest first. Those whose record cannot be read have their damage in them.
    ///
    /// # Errors
    /// As [`Backup::open`].
    pub fn generations(&self) -> Result<Vec<Generation>> {
        let records = Repository::find(&self.env, &self.path)?.records()?;
        let whole = records.whole.iter().map(Generation::of);
        let damaged = records.damaged.iter().map(|(number, error)| Generation::damaged(*number, error));
        let mut all: Vec<_> = whole.chain(damaged).collect();
        all.sort_by_key(|generation| generation.number);
        Ok(all)
    }

    /// Reads every stored byte of every generation and reports all damage.
    ///
    /// # Errors
    /// [`Error::Locked`] while a backup is being made or pruned; I/O errors of the directories.
    pub fn verify(&self) -> Result<VerifyReport> {
        self.verify_with(|_| ())
    }

    /// As [`Backup::verify`]. Reports its progress before each file.
    ///
    /// # Errors
    /// As [`Backup::verify`].
    pub fn verify_with(&self, mut progress: impl FnMut(VerifyProgress<'_>)) -> Result<VerifyReport> {
        verify::verify(&Repository::lock(&self.env, &self.path, LockMode::Shared)?, &mut progress)
    }

    /// Makes the newest generation a database in the new or empty directory `path`.
    ///
    /// # Errors
    /// [`Error::Corruption`], which names the damaged stored file; [`Error::InvalidArgument`] when `path` cannot take a
    /// database, when there is no generation, or when there are some of several databases: then choose one with
    /// [`Backup::restore_generation`]. [`Error::Locked`] while a backup is being made or pruned; I/O errors. After an
    /// error nothing is left at `path`, or the error says what.
    pub fn restore(&self, path: impl AsRef<Path>) -> Result<()> {
        self.restore_with(None, path, |_| ())
    }

    /// As [`Backup::restore`], for the generation with this number.
    ///
    /// # Errors
    /// As [`Backup::restore`].
    pub fn restore_generation(&self, number: u64, path: impl AsRef<Path>) -> Result<()> {
        self.restore_with(Some(number), path, |_| ())
    }

    /// As [`Backup::restore`], or as [`Backup::restore_generation`] if a number is given. Reports its progress after
    /// each MiB.
    ///
    /// # Errors
    /// As [`Backup::restore`].
    pub fn restore_with(
        &self,
        number: Option<u64>,
        path: impl AsRef<Path>,
        mut progress: impl FnMut(BackupProgress),
    ) -> Result<()> {
        let repository = Repository::lock(&self.env, &self.path, LockMode::Shared)?;
        let record = match number {
            Some(number) => repository.generation(number)?,
            None => self.newest(&repository)?,
        };
        restore::restore(&repository, &record, path.as_ref(), &mut progress)
    }

    fn newest(&self, repository: &Repository) -> Result<GenerationRecord> {
        let mut records = repository.records()?;
        if let Some((number, error)) = records.damaged.last()
            && records.whole.last().is_none_or(|whole| whole.number < *number)
        {
            // An older generation is not what was asked for.
            return Err(error.clone());
        }
        let Some(newest) = records.whole.pop() else { return Err(no_repository(&self.path)) };
        if records.whole.iter().any(|older| older.database_id != newest.database_id) {
            let reason = format!("{} has backups of several databases: choose one by its number", self.path.display());
            return Err(Error::invalid("generation", reason));
        }
        Ok(newest)
    }

    /// Deletes all generations but the newest `keep` of each database, and the files that no other generation names.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] when `keep` is 0; [`Error::Locked`] while the repository is in use; the error of a
    /// record that cannot be read: nothing is deleted as long as it is there. I/O errors; what is left is then deleted
    /// by the next backup or the next pruning.
    pub fn prune(&self, keep: usize) -> Result<PruneReport> {
        if keep == 0 {
            let reason = "at least one must stay: to delete all backups, delete the repository's directory";
            return Err(Error::invalid("number of generations to keep", reason));
        }
        prune::prune(&Repository::lock(&self.env, &self.path, LockMode::Exclusive)?, keep)
    }

    /// The repository's directory.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }
}

/// Backups. See [`Backup`] for what else can be done with a repository.
impl Db {
    /// Copies the database as it is now into the repository in `dir`, as a new generation. The directory is a
    /// repository, or new or empty.
    ///
    /// Every byte is a real copy: nothing is shared with the database, unlike a [checkpoint](Db::checkpoint) on the
    /// same file system. What the repository has from an earlier backup of this database is not copied again: tables
    /// and value files never change. Each file that is copied is checked first, so a backup does not take over damage.
    /// When this returns, the generation survives a power loss.
    ///
    /// The database keeps working meanwhile, but files that it no longer needs are deleted only afterwards. The first
    /// backup after opening reads all files; later ones of the same [`Db`] read only those that are new.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] when `dir` holds anything else, or is, contains or lies within the database's own
    /// directory; [`Error::Locked`] while the repository is in use; [`Error::Corruption`] of the database;
    /// [`Error::Poisoned`]; [`Error::Closed`], also in a forked child of the process that writes; I/O errors, a full
    /// disk among them. After an error the older generations are as they were, and the next backup deletes what may be
    /// left of this one.
    pub fn backup(&self, dir: impl AsRef<Path>) -> Result<Generation> {
        self.backup_with(dir, BackupOptions::default(), |_| ())
    }

    /// As [`Db::backup`], with options. Reports its progress after each MiB copied and after each file found.
    ///
    /// # Errors
    /// As [`Db::backup`].
    pub fn backup_with(
        &self,
        dir: impl AsRef<Path>,
        options: BackupOptions,
        mut progress: impl FnMut(BackupProgress),
    ) -> Result<Generation> {
        create::backup(self.engine(), self.known_sums(), dir.as_ref(), options, &mut progress)
    }

    /// Makes the newest generation of the repository in `dir` a database in the new or empty directory `path`:
    /// [`Backup::restore`].
    ///
    /// # Errors
    /// As [`Backup::open`] and [`Backup::restore`].
    pub fn restore(dir: impl AsRef<Path>, path: impl AsRef<Path>) -> Result<()> {
        Backup::open(dir)?.restore(path)
    }
}
