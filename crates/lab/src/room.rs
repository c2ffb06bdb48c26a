//! Directories that are filled for a while: whether they exist and have space.

use std::{fs, io, path::Path};

use crate::{Failure, Result};

/// The free bytes in `dir`.
///
/// # Errors
/// [`Failure::System`].
pub fn free(dir: &Path) -> Result<u64> {
    let found = rustix::fs::statvfs(dir).map_err(|e| Failure::file("ask for the free space of", dir, &e.into()))?;
    Ok(found.f_bavail.saturating_mul(found.f_frsize))
}

/// Refuses anything that is not a directory.
///
/// # Errors
/// [`Failure::Plan`] if it is missing or no directory; [`Failure::System`].
pub fn check_dir(dir: &Path) -> Result<()> {
    match fs::metadata(dir) {
        Ok(there) if there.is_dir() => Ok(()),
        Ok(_) => Err(Failure::Plan(format!("{} is not a directory: give one", dir.display()))),
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            Err(Failure::Plan(format!("{} does not exist: make it, or give another directory", dir.display())))
        }
        Err(error) => Err(Failure::file("look at", dir, &error)),
    }
}
