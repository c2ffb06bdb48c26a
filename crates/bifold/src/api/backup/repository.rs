//! The directory of a repository: finding, creating and locking it, its records, and what no record names.

use std::{
    collections::BTreeSet,
    io::ErrorKind,
    path::{Path, PathBuf},
    sync::Arc,
};

use bifold_contract::{Corruption, Error, IoSource, Result, planted};
use bifold_format::{
    backup::{self as format, Deleted, GenerationRecord},
    names,
};
use bifold_io::{
    Dir, Env, LockMode,
    fs::{FileLock, PathKind},
};

use crate::{
    api::checkpoint::target::{Purpose, check_place, refused},
    open::recover::read_whole,
};

/// The directory of the stored files.
const FILES: &str = "files";

/// The directory of the records.
const GENERATIONS: &str = "generations";

const REPOSITORY: Purpose = Purpose {
    directory: "backup repository",
    apart_from: "the database's own directory",
    removal: "remove the unfinished repository",
    failed: "the backup failed",
};

/// A repository's directory.
pub(super) struct Repository {
    pub root: Dir,
    pub files: Dir,
    pub generations: Dir,
    /// Keeps others from changing it.
    lock: Option<Box<dyn FileLock>>,
}

/// All records of a repository, in ascending order of their numbers.
#[derive(Default)]
pub(super) struct Records {
    pub whole: Vec<GenerationRecord>,
    /// Those that cannot be read.
    pub damaged: Vec<(u64, Error)>,
    /// What is deleted, whatever the directory says.
    deleted: Deleted,
    /// Why that cannot be read.
    pub list_damage: Option<Error>,
}

impl Repository {
    fn at(root: Dir) -> Self {
        let (files, generations) = (root.sibling(&root.file(FILES)), root.sibling(&root.file(GENERATIONS)));
        Self { root, files, generations, lock: None }
    }

    /// The repository in `path`, for backups of the database in `from`; makes one if the directory is new or empty.
    /// Everything of it is durable then.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] for another directory; [`Error::Locked`]; I/O errors.
    pub fn claim(from: &Dir, path: &Path) -> Result<Self> {
        let mut path: PathBuf = path.components().collect();
        if from.sibling(&path).kind()? == Some(PathKind::Link) {
            path = from.sibling(&path).resolved()?;
        }
        check_place(from, &path, &REPOSITORY)?;
        let root = from.sibling(&path);
        root.create_dir_durably()?;
        let mut repository = Self::at(root);
        if let Some(foreign) = repository.foreign()? {
            let why = format!("holds other files ({foreign}); name a repository, or a new or empty directory");
            return Err(refused(&REPOSITORY, &path, &why));
        }
        repository.take(LockMode::Exclusive)?;
        repository.files.create_dir()?;
        repository.generations.create_dir()?;
        repository.root.sync()?;
        Ok(repository)
    }

    /// What is in the directory and in no repository, if anything is. A crash while one was made may have left empty
    /// directories.
    fn foreign(&self) -> Result<Option<String>> {
        let file = self.root.list()?.into_iter().find(|name| name != names::LOCK);
        if file.is_some() || self.generations.kind()? == Some(PathKind::Directory) {
            return Ok(file);
        }
        for name in self.root.list_dirs()? {
            if name != FILES || !self.files.list()?.is_empty() || !self.files.list_dirs()?.is_empty() {
                return Ok(Some(name));
            }
        }
        Ok(None)
    }

    /// The repository in `path`, which must exist.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] when there is none; I/O errors.
    pub fn find(env: &Env, path: &Path) -> Result<Self> {
        let repository = Self::at(Dir::new(Arc::clone(&env.fs), path));
        if repository.generations.kind()? != Some(PathKind::Directory) {
            return Err(no_repository(path));
        }
        Ok(repository)
    }

    /// The same, locked.
    ///
    /// # Errors
    /// Those of [`Repository::find`]; [`Error::Locked`].
    pub fn lock(env: &Env, path: &Path, mode: LockMode) -> Result<Self> {
        let mut repository = Self::find(env, path)?;
        repository.take(mode)?;
        Ok(repository)
    }

    fn take(&mut self, mode: LockMode) -> Result<()> {
        self.lock = Some(self.root.lock(names::LOCK, mode)?);
        Ok(())
    }

    /// All its records.
    ///
    /// # Errors
    /// I/O errors that say nothing about the records.
    pub fn records(&self) -> Result<Records> {
        let mut records = Records::default();
        match self.deleted() {
            Ok(deleted) => records.deleted = deleted,
            Err(error) if error.is_unreadable() => records.list_damage = Some(error),
            Err(error) => return Err(error),
        }
        let names = self.generations.list()?;
        let mut numbers: Vec<u64> = names.iter().filter_map(|name| format::parse_record(name)).collect();
        numbers.retain(|&number| !records.deleted.contains(number));
        numbers.sort_unstable();
        for number in numbers {
            match self.record(number) {
                Ok(record) => records.whole.push(record),
                // It was pruned meanwhile.
                Err(Error::InvalidArgument { .. }) => {}
                Err(error) if error.is_unreadable() => records.damaged.push((number, error)),
                Err(error) => return Err(error),
            }
        }
        Ok(records)
    }

    /// Which generations are deleted.
    fn deleted(&self) -> Result<Deleted> {
        if self.generations.len(format::DELETED)?.is_none() {
            return Ok(Deleted::default());
        }
        let bytes = read_whole(&self.generations, format::DELETED, IoSource::Maintenance)?;
        format::decode_deleted(&bytes).map_err(|damage| damage.of(self.generations.file(format::DELETED)))
    }

    /// The record of a generation that is not deleted.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] when there is none; corruption; I/O errors.
    pub fn generation(&self, number: u64) -> Result<GenerationRecord> {
        // Damage of this list is no reason not to restore.
        if self.deleted().is_ok_and(|deleted| deleted.contains(number)) {
            return Err(self.no_generation(number));
        }
        self.record(number)
    }

    fn no_generation(&self, number: u64) -> Error {
        Error::invalid("generation", format!("{} has no generation {number}", self.root.path().display()))
    }

    /// One record.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] when there is none; corruption; I/O errors.
    fn record(&self, number: u64) -> Result<GenerationRecord> {
        let name = format::record_name(number);
        let bytes = match read_whole(&self.generations, &name, IoSource::Maintenance) {
            Err(Error::Io { source, .. }) if source.kind() == ErrorKind::NotFound => {
                return Err(self.no_generation(number));
            }
            read => read?,
        };
        let path = self.generations.file(&name);
        let record = format::decode(&bytes).map_err(|damage| damage.of(&path))?;
        if record.number != number {
            let (expected, found) = (format!("number {number}"), format!("number {}", record.number));
            return Err(Corruption::new(0, "generation record", expected, found).of(path));
        }
        Ok(record)
    }

    /// Deletes the stored files that no record names, and what else is left over. While a record cannot be read, the
    /// files that it may name stay. Returns how many files and bytes were deleted.
    ///
    /// # Errors
    /// I/O errors.
    pub fn remove_unnamed(&self, records: &mut Records) -> Result<(u64, u64)> {
        let named = records.named();
        let next = records.next_number();
        let may_be_named = |stored_by: u64| !records.damaged.is_empty() && stored_by < next;
        let mut doomed = Vec::new();
        let mut upto = 0;
        for name in self.files.list()? {
            if let Some(stored_by) =
                format::parse_stored(&name).filter(|&by| !named.contains(&name) && !may_be_named(by))
            {
                upto = upto.max(stored_by);
                doomed.push(name);
            }
        }
        if !doomed.is_empty() && !planted!("delete_before_sync") {
            self.record_deleted(records, upto.max(next - 1))?;
        }
        for name in self.generations.list()? {
            let is_deleted = format::parse_record(&name).is_some_and(|number| records.deleted.contains(number));
            if is_deleted || format::is_unfinished_record(&name) {
                self.generations.remove(&name)?;
            }
        }
        let mut bytes = 0;
        for name in &doomed {
            bytes += self.files.len(name)?.unwrap_or(0);
            self.files.remove(name)?;
        }
        Ok((doomed.len() as u64, bytes))
    }

    /// Records durably that all generations up to a number are deleted, but those of `records`. The removal of a record
    /// may not be durable, even after a later sync of the directory, if an earlier one failed: such a record comes back
    /// with a power loss, and must not be taken for a generation whose files are missing.
    fn record_deleted(&self, records: &mut Records, upto: u64) -> Result<()> {
        let whole = records.whole.iter().map(|record| record.number);
        let mut but: Vec<u64> = whole.chain(records.damaged.iter().map(|(number, _)| *number)).collect();
        but.sort_unstable();
        records.deleted = Deleted { upto, but };
        self.generations.remove(format::DELETED_TEMPORARY)?;
        let writer = self.generations.create(format::DELETED_TEMPORARY, IoSource::Maintenance)?;
        writer.append(&[&format::encode_deleted(&records.deleted)])?;
        writer.sync()?;
        self.generations.rename(format::DELETED_TEMPORARY, format::DELETED)?;
        self.generations.sync()
    }
}

impl Records {
    /// The number of the next generation: larger than any before that is there or deleted, so larger than in the name
    /// of any file that a record names.
    pub fn next_number(&self) -> u64 {
        let whole = self.whole.last().map_or(0, |record| record.number);
        whole.max(self.damaged.last().map_or(0, |(number, _)| *number)).max(self.deleted.upto) + 1
    }

    /// The stored files that some record names.
    fn named(&self) -> BTreeSet<String> {
        self.whole.iter().flat_map(|record| &record.files).map(format::StoredFile::stored_name).collect()
    }
}

/// The error for a directory without a repository, or without any generation.
pub(super) fn no_repository(path: &Path) -> Error {
    let why = "holds no backup: check the path, or make one with `Db::backup` or `bifold backup create`";
    refused(&REPOSITORY, path, why)
}
