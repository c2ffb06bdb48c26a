//! Creates a directory so that a power loss does not take its name, or that of one above it.

use std::{io::ErrorKind, path::Path};

use bifold_contract::{Error, Result, planted};

use super::Dir;

impl Dir {
    /// Creates the directory, and those above it that are missing, and makes their names durable.
    ///
    /// The name of the innermost one that is there already is made durable, too: whoever made it may have been stopped
    /// before its sync. Where this process may not read the directory that it is in, it is left to who made it.
    ///
    /// # Errors
    /// The file system's.
    pub fn create_dir_durably(&self) -> Result<()> {
        let (mut existing, mut missing) = (&*self.path, Vec::new());
        while !existing.as_os_str().is_empty() && self.fs.kind(existing)?.is_none() {
            missing.push(existing);
            existing = existing.parent().unwrap_or(Path::new(""));
        }
        if missing.is_empty() {
            // Unless it is a directory, that is an error.
            self.create_dir()?;
        }
        if existing.parent().is_some() {
            match self.fs.sync_dir(above(existing)) {
                Err(Error::Io { source, .. }) if source.kind() == ErrorKind::PermissionDenied => {}
                other => other?,
            }
        }
        for dir in missing.into_iter().rev() {
            self.fs.create_dir_all(dir)?;
            if *dir == *self.path || !planted!("sync_one_new_directory") {
                self.fs.sync_dir(above(dir))?;
            }
        }
        Ok(())
    }
}

/// The directory that `path` is in.
#[must_use]
pub fn above(path: &Path) -> &Path {
    path.parent().filter(|above| !above.as_os_str().is_empty()).unwrap_or(Path::new("."))
}
