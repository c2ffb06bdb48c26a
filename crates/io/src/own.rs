//! Gives a file with several names (hard links) a copy under this name before it is truncated or written in place.
//! Under its other names, in a copy of the directory made of hard links, the file stays as it was.

use std::path::{Path, PathBuf};

use bifold_contract::{Result, planted};

use crate::fs::FileSystem;

/// Files are copied in pieces of this size.
const PIECE_BYTES: u64 = 1 << 20;

/// Appended to a file's name while its copy is made. Nobody needs what a crash leaves under such a name.
const OWN: &str = ".own";

/// Makes sure that the file at `path` has no other name. If it has one, its first `len` bytes are copied and synced.
/// Returns how many bytes were copied, or `None` if it has no other name.
///
/// # Errors
/// The file system's; then the file is unchanged.
pub(crate) fn own(fs: &dyn FileSystem, path: &Path, len: u64) -> Result<Option<u64>> {
    if planted!("change_shared_files") || !fs.is_shared(path)? {
        return Ok(None);
    }
    let copy = copy_path(path);
    if fs.len(&copy)?.is_some() {
        fs.remove(&copy)?;
    }
    let copied = copy_to(fs, path, &copy, len).and_then(|bytes| fs.rename(&copy, path).map(|()| Some(bytes)));
    copied.inspect_err(|_| {
        let _removed_by_the_next_opening = fs.remove(&copy);
    })
}

fn copy_path(path: &Path) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(OWN);
    name.into()
}

fn copy_to(fs: &dyn FileSystem, path: &Path, copy: &Path, len: u64) -> Result<u64> {
    let (from, to) = (fs.open(path)?, fs.create(copy)?);
    let end = len.min(from.len()?);
    let mut buffer = vec![0; usize::try_from(end.min(PIECE_BYTES)).unwrap_or(0)];
    let mut at = 0;
    while at < end {
        let step = usize::try_from((end - at).min(PIECE_BYTES)).unwrap_or(0);
        from.read_at(&mut buffer[..step], at)?;
        to.append(&[&buffer[..step]])?;
        at += step as u64;
    }
    to.sync().map(|()| end)
}
