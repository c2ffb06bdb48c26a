//! The target directory of a checkpoint or of a restored backup: which directories are refused, and how to undo what
//! failed.
//!
//! Each file and directory is noted before it is made, so that [`Target::undo`] finds all of them. It removes the
//! manifest first, durably: after a power loss in between, what is left is no database.

use std::{
    io,
    path::{Component, Path, PathBuf},
};

use bifold_contract::{Error, Result};
use bifold_format::names;
use bifold_io::{
    Dir, LockMode,
    dir::above,
    fs::{FileLock, PathKind},
};

/// What a directory is for, in errors.
pub(crate) struct Purpose {
    /// The directory.
    pub directory: &'static str,
    /// Where it must not be.
    pub apart_from: &'static str,
    /// What removing an unfinished one is called.
    pub removal: &'static str,
    /// What has failed.
    pub failed: &'static str,
}

/// The directory of a checkpoint.
pub(crate) const CHECKPOINT: Purpose = Purpose {
    directory: "checkpoint directory",
    apart_from: "the database's own directory",
    removal: "remove the unfinished checkpoint",
    failed: "the checkpoint failed",
};

/// The directory of a copy, and what was made for it.
pub(crate) struct Target {
    dir: Dir,
    purpose: &'static Purpose,
    /// Directories that did not exist before, the innermost first.
    made_dirs: Vec<PathBuf>,
    made_files: Vec<String>,
    has_manifest: bool,
    /// Keeps others from opening the copy, or making another one here, before it is complete.
    lock: Option<Box<dyn FileLock>>,
}

impl Target {
    /// Makes `path` a directory that is empty except for its lock.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] when `path` cannot take a copy of what is in `from`; [`Error::Locked`]; I/O errors.
    pub fn claim(from: &Dir, path: &Path, purpose: &'static Purpose) -> Result<Self> {
        // Drops a trailing separator, which would make the system follow a symbolic link.
        let path: PathBuf = path.components().collect();
        let made_dirs = check_place(from, &path, purpose)?;
        let dir = from.sibling(&path);
        let (made_files, has_manifest) = (Vec::new(), false);
        let mut target = Self { dir, purpose, made_dirs, made_files, has_manifest, lock: None };
        match target.take() {
            Ok(()) => Ok(target),
            Err(error) => Err(target.undo(error)),
        }
    }

    fn take(&mut self) -> Result<()> {
        self.dir.create_dir()?;
        self.refuse_files(&[])?;
        match self.make(names::LOCK, |dir| dir.lock(names::LOCK, LockMode::Exclusive)) {
            Err(locked @ Error::Locked { .. }) => {
                // Another checkpoint is running here: everything here belongs to it.
                self.made_nothing();
                Err(locked)
            }
            other => {
                self.lock = Some(other?);
                self.refuse_files(&[names::LOCK])
            }
        }
    }

    fn refuse_files(&mut self, but: &[&str]) -> Result<()> {
        let Some(name) = self.dir.list()?.into_iter().find(|name| !but.contains(&&**name)) else { return Ok(()) };
        // If the directory did not exist before, another checkpoint has finished here meanwhile.
        self.made_nothing();
        let why = format!("already holds files ({name}); name a new or an empty directory");
        Err(refused(self.purpose, self.dir.path(), &why))
    }

    /// Forgets what was noted: everything here belongs to another user.
    fn made_nothing(&mut self) {
        self.made_files.clear();
        self.made_dirs.clear();
    }

    /// The directory.
    pub fn dir(&self) -> &Dir {
        &self.dir
    }

    /// Makes the file `name` by `make`.
    ///
    /// # Errors
    /// Those of `make`.
    pub fn make<T>(&mut self, name: &str, make: impl FnOnce(&Dir) -> Result<T>) -> Result<T> {
        self.made_files.push(name.into());
        let made = make(&self.dir);
        if matches!(&made, Err(Error::Io { source, .. }) if source.kind() == io::ErrorKind::AlreadyExists) {
            // The file belongs to another user.
            self.made_files.pop();
        }
        made
    }

    /// From now on there may be a manifest.
    pub fn begin_manifest(&mut self) {
        self.has_manifest = true;
    }

    /// Checks that a file of the copy has as many bytes as it must have.
    ///
    /// # Errors
    /// When the length differs; I/O errors.
    pub fn check_len(&self, name: &str, bytes: u64) -> Result<()> {
        match self.dir.len(name)? {
            Some(found) if found == bytes => Ok(()),
            found => {
                let reason = format!("the copy has {} bytes instead of {bytes}", found.unwrap_or(0));
                Err(Error::io("copy", self.dir.file(name), io::Error::other(reason)))
            }
        }
    }

    /// Makes durable the names of the directory and of the directories made above it.
    ///
    /// # Errors
    /// I/O errors.
    pub fn make_name_durable(&self) -> Result<()> {
        let path = self.dir.path().to_owned();
        let made = if self.made_dirs.is_empty() { std::slice::from_ref(&path) } else { &self.made_dirs[..] };
        made.iter().try_for_each(|dir| self.dir.sibling(above(dir)).sync())
    }

    /// Removes everything that was made. Returns `error`, or an error that says what could not be removed.
    pub fn undo(self, error: Error) -> Error {
        match self.remove_all() {
            Ok(()) => error,
            Err(left) => {
                let failed = self.purpose.failed;
                let reason =
                    format!("{left}; remove the directory by hand, it holds an incomplete copy ({failed}: {error})");
                Error::io(self.purpose.removal, self.dir.path(), io::Error::other(reason))
            }
        }
    }

    fn remove_all(&self) -> Result<()> {
        if self.has_manifest {
            // A manifest that survives a power loss after the files below are removed would describe missing files,
            // or worse, a copy without its last log.
            self.dir.remove(names::MANIFEST)?;
            self.dir.remove(names::MANIFEST_TEMPORARY)?;
            // Through a new handle: after a failed sync of the copy its own handle never syncs again.
            self.dir.sibling(self.dir.path()).sync()?;
        }
        let files = self.made_files.iter().rev().map(|name| self.dir.remove(name));
        let files = files.fold(Ok(()), Result::and);
        let remove_dir = |dir: &PathBuf| match self.dir.sibling(dir).remove_dir() {
            Err(Error::Io { source, .. }) if source.kind() == io::ErrorKind::NotFound => Ok(()),
            other => other,
        };
        files.and_then(|()| self.made_dirs.iter().try_for_each(remove_dir))
    }
}

/// Refuses a path that cannot take a copy of what is in `from`. Returns the missing directories, the innermost first.
///
/// # Errors
/// [`Error::InvalidArgument`]; I/O errors.
pub(crate) fn check_place(from: &Dir, path: &Path, purpose: &Purpose) -> Result<Vec<PathBuf>> {
    let refused = |path: &Path, why: &str| refused(purpose, path, why);
    if path.file_name().is_none() {
        return Err(refused(path, "does not name a new directory"));
    }
    match from.sibling(path).kind()? {
        Some(PathKind::Link) => {
            return Err(refused(path, "is a symbolic link; name a new or an empty directory itself"));
        }
        Some(PathKind::File) => return Err(refused(path, "is a file; name a new or an empty directory")),
        Some(PathKind::Directory) | None => {}
    }
    let mut missing = Vec::new();
    let mut existing = path;
    while !existing.as_os_str().is_empty() && from.sibling(existing).kind()?.is_none() {
        missing.push(existing.to_owned());
        existing = existing.parent().unwrap_or(Path::new(""));
    }
    let rest = path.strip_prefix(existing).unwrap_or(Path::new(""));
    if rest.components().any(|component| component == Component::ParentDir) {
        return Err(refused(path, "has `..` after a directory that does not exist; name it without `..`"));
    }
    let to = from.sibling(or_here(existing)).resolved()?.join(rest);
    let database = from.resolved()?;
    if to.starts_with(&database) || database.starts_with(&to) {
        let why = format!("is, contains or lies within {}; name another one", purpose.apart_from);
        return Err(refused(path, &why));
    }
    Ok(missing)
}

/// The error for a path that is refused.
pub(crate) fn refused(purpose: &Purpose, path: &Path, why: &str) -> Error {
    Error::invalid(purpose.directory, format!("{} {why}", path.display()))
}

fn or_here(path: &Path) -> &Path {
    if path.as_os_str().is_empty() { Path::new(".") } else { path }
}
