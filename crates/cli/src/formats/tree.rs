//! A directory of files: relative paths (with `/`) are keys, contents are values.

use std::{
    fs::{self, File, FileType},
    path::{Path, PathBuf},
};

use super::check;
use crate::failure::{Failure, Result};

/// The files of a directory.
#[derive(Debug, Default)]
pub struct Tree {
    /// Regular files, by key.
    pub files: Vec<TreeFile>,
    /// Bytes in them.
    pub bytes: u64,
    /// Symbolic links, sockets and the like, which are left out.
    pub skipped: u64,
    /// Whether the walk ended early, at one of its limits.
    pub is_limited: bool,
}

/// A regular file in a directory.
#[derive(Debug)]
pub struct TreeFile {
    /// Its path relative to the directory.
    pub key: Vec<u8>,
    /// Where it is.
    pub path: PathBuf,
    /// Its size, in bytes.
    pub bytes: u64,
}

/// Which files of a directory are included.
pub struct Walk<'a> {
    /// Directories that are left out, with everything below them.
    pub leave_out: &'a dyn Fn(&Path) -> bool,
    /// What to do with unreadable files.
    pub unreadable: Unreadable,
    /// The walk ends after this many files.
    pub files_max: usize,
    /// The walk ends before the file that would exceed this many bytes.
    pub bytes_max: u64,
}

/// What to do with files and directories that cannot be read, and with files that cannot be entries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unreadable {
    /// The first one ends the walk with an error.
    Refuse,
    /// They are counted as skipped.
    Skip,
}

/// Lists `root` and everything below it. Opens every file once, so that an unreadable one is found before anything is
/// written.
///
/// # Errors
/// With [`Unreadable::Refuse`], the first directory or file that cannot be read, and the first file that cannot be an
/// entry.
pub fn list(root: &Path, walk: &Walk<'_>) -> Result<Tree> {
    let mut tree = Tree::default();
    let mut pending = vec![root.to_owned()];
    while let Some(dir) = pending.pop() {
        let mut entries = match sorted_entries(&dir) {
            Err(_) if walk.unreadable == Unreadable::Skip => {
                tree.skipped += 1;
                continue;
            }
            entries => entries?,
        };
        // The last one pushed is walked first: with names in order, a large tree always yields the same files.
        entries.reverse();
        for (path, kind) in entries {
            if kind.is_dir() {
                if !(walk.leave_out)(&path) {
                    pending.push(path);
                }
                continue;
            }
            match if kind.is_file() { describe(root, path).map(Some) } else { Ok(None) } {
                Ok(Some(file)) if tree.files.len() == walk.files_max || tree.bytes + file.bytes > walk.bytes_max => {
                    tree.is_limited = true;
                    pending.clear();
                    break;
                }
                Ok(Some(file)) => {
                    tree.bytes += file.bytes;
                    tree.files.push(file);
                }
                Err(failure) if walk.unreadable == Unreadable::Refuse => return Err(failure),
                Ok(None) | Err(_) => tree.skipped += 1,
            }
        }
    }
    tree.files.sort_by(|a, b| a.key.cmp(&b.key));
    Ok(tree)
}

fn sorted_entries(dir: &Path) -> Result<Vec<(PathBuf, FileType)>> {
    let failed = |e| Failure::file("read directory", dir, &e);
    let mut found = Vec::new();
    for entry in fs::read_dir(dir).map_err(failed)? {
        let entry = entry.map_err(failed)?;
        found.push((entry.path(), entry.file_type().map_err(failed)?));
    }
    found.sort_by(|a, b| a.0.cmp(&b.0));
    Ok(found)
}

fn describe(root: &Path, path: PathBuf) -> Result<TreeFile> {
    let meta = File::open(&path).and_then(|file| file.metadata()).map_err(|e| Failure::file("open", &path, &e))?;
    let key = key(path.strip_prefix(root).unwrap_or(&path));
    let bytes = meta.len();
    check(&key, usize::try_from(bytes).unwrap_or(usize::MAX))
        .map_err(|why| Failure::trouble(format!("{}: {why}", path.display())))?;
    Ok(TreeFile { key, path, bytes })
}

/// The components of a path joined by `/`, as bytes.
fn key(relative: &Path) -> Vec<u8> {
    let mut key = Vec::new();
    for part in relative.components() {
        if !key.is_empty() {
            key.push(b'/');
        }
        key.extend_from_slice(part.as_os_str().as_encoded_bytes());
    }
    key
}

/// Reads a file as a value.
///
/// # Errors
/// The system's, and a file that has grown beyond the largest value.
pub fn content(file: &TreeFile) -> Result<Vec<u8>> {
    let value = fs::read(&file.path).map_err(|e| Failure::file("read", &file.path, &e))?;
    check(&file.key, value.len()).map_err(|why| Failure::trouble(format!("{}: {why}", file.path.display())))?;
    Ok(value)
}
