//! The directory that a checkpoint goes to: what it must not be, and how it goes away again when the checkpoint fails.
//!
//! Everything made is noted before it is made, so that [`Target::undo`] finds all of it. The manifest goes first and durably:
//! what is left if the power goes meanwhile is no database.

use std::{
    io,
    path::{Component, Path, PathBuf},
};

use bifold_contract::{Error, Result};
use bifold_format::names;
use bifold_io::{
    Dir, LockMode,
    fs::{FileLock, PathKind},
};

/// A directory for a copy, with what was made of it.
pub(super) struct Target {
    dir: Dir,
    /// Directories that were not there, the innermost first.
    made_dirs: Vec<PathBuf>,
    made_files: Vec<String>,
    has_manifest: bool,
    /// Nobody opens the copy, or makes another one here, before it is whole.
    lock: Option<Box<dyn FileLock>>,
}

impl Target {
    /// Makes `path` a directory that is empty but for its lock.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] when that is no place for a copy of the database in `from`; [`Error::Locked`]; I/O errors.
    pub fn claim(from: &Dir, path: &Path) -> Result<Self> {
        // Without a separator at the end, which would have a symbolic link followed.
        let path: PathBuf = path.components().collect();
        let made_dirs = check_place(from, &path)?;
        let dir = from.sibling(&path);
        let mut target = Self { dir, made_dirs, made_files: Vec::new(), has_manifest: false, lock: None };
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
                // Another checkpoint is at work here: all of it is that one's.
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
        // Another checkpoint has ended here meanwhile, if the directory was not there before.
        self.made_nothing();
        Err(refused(self.dir.path(), &format!("holds files already ({name}); name a new or an empty directory")))
    }

    /// What is here is another one's.
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
            // Somebody else's.
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
    /// When it has not; I/O errors.
    pub fn check_len(&self, name: &str, bytes: u64) -> Result<()> {
        match self.dir.len(name)? {
            Some(found) if found == bytes => Ok(()),
            found => {
                let reason = format!("the copy has {} bytes instead of {bytes}", found.unwrap_or(0));
                Err(Error::io("copy", self.dir.file(name), io::Error::other(reason)))
            }
        }
    }

    /// Makes the names of the directory and of those made above it durable.
    ///
    /// # Errors
    /// I/O errors.
    pub fn make_name_durable(&self) -> Result<()> {
        let path = self.dir.path().to_owned();
        let made = if self.made_dirs.is_empty() { std::slice::from_ref(&path) } else { &self.made_dirs[..] };
        made.iter().try_for_each(|dir| self.dir.sibling(above(dir)).sync())
    }

    /// Removes everything that was made. Answers `error`, with what could not be removed.
    pub fn undo(self, error: Error) -> Error {
        match self.remove_all() {
            Ok(()) => error,
            Err(left) => {
                let reason = format!(
                    "{left}; remove the directory by hand, it is no whole copy (the checkpoint failed: {error})"
                );
                Error::io("remove the unfinished checkpoint", self.dir.path(), io::Error::other(reason))
            }
        }
    }

    fn remove_all(&self) -> Result<()> {
        if self.has_manifest {
            // Were it found again after a power loss, without files that go below, it would lead to nothing, or worse: to a
            // copy without the last log.
            self.dir.remove(names::MANIFEST)?;
            self.dir.remove(names::MANIFEST_TEMPORARY)?;
            // Through a directory of its own: where a sync of the copy has failed there is no other of the copy.
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

/// Refuses what is no place for a copy of the database in `from`. Answers which directories are missing, the innermost first.
fn check_place(from: &Dir, path: &Path) -> Result<Vec<PathBuf>> {
    if path.file_name().is_none() {
        return Err(refused(path, "is no name for a directory of its own"));
    }
    match from.sibling(path).kind()? {
        Some(PathKind::Link) => {
            return Err(refused(path, "is a symbolic link; name a new or an empty directory itself"));
        }
        Some(PathKind::File) => return Err(refused(path, "is a file; name a new or an empty directory")),
        Some(PathKind::Directory) | None => {}
    }
    let mut missing = Vec::new();
    let mut there = path;
    while !there.as_os_str().is_empty() && from.sibling(there).kind()?.is_none() {
        missing.push(there.to_owned());
        there = there.parent().unwrap_or(Path::new(""));
    }
    let rest = path.strip_prefix(there).unwrap_or(Path::new(""));
    if rest.components().any(|part| part == Component::ParentDir) {
        return Err(refused(path, "goes back by `..` from a directory that is not there; name it without"));
    }
    let to = from.sibling(or_here(there)).resolved()?.join(rest);
    let database = from.resolved()?;
    if to.starts_with(&database) || database.starts_with(&to) {
        return Err(refused(path, "is the database's own directory, or in it, or around it; name another one"));
    }
    Ok(missing)
}

fn refused(path: &Path, why: &str) -> Error {
    Error::invalid("checkpoint directory", format!("{} {why}", path.display()))
}

/// The directory that `path` is in.
fn above(path: &Path) -> &Path {
    or_here(path.parent().unwrap_or(Path::new("")))
}

fn or_here(path: &Path) -> &Path {
    if path.as_os_str().is_empty() { Path::new(".") } else { path }
}
