//! Files that appear completely or not at all, and replace only regular files.
//!
//! 1. Each name must be free or belong to a regular file: anything else must not be replaced.
//! 2. All files are written under temporary names in the same directory before the first one is renamed. If the disk
//!    is full, that shows here, and removing the temporary files leaves everything as it was.
//! 3. The files are renamed, so each final name stands for a complete file.

use std::{
    fs::{self, File},
    io::{self, Write},
    path::{Path, PathBuf},
};

use crate::{
    failure::{Failure, Result},
    interrupt::Unfinished,
};

/// A file to be written.
pub struct NewFile {
    pub path: PathBuf,
    pub content: Vec<u8>,
}

impl NewFile {
    /// Its temporary path. The process is in the name, so that two processes do not write to one file.
    fn partial(&self) -> PathBuf {
        let mut name = self.path.file_name().unwrap_or_default().to_owned();
        name.push(format!(".{}.partial", std::process::id()));
        self.path.with_file_name(name)
    }

    fn write(&self) -> Result<()> {
        let partial = self.partial();
        let written = File::create(&partial).and_then(|mut file| {
            file.write_all(&self.content)?;
            file.sync_all()
        });
        written.map_err(|e| Failure::file("write", &partial, &e))
    }

    fn rename(&self) -> Result<()> {
        fs::rename(self.partial(), &self.path).map_err(|e| Failure::file("write", &self.path, &e))
    }
}

/// Writes all files completely, or none.
pub fn publish(files: &[NewFile]) -> Result<()> {
    files.iter().try_for_each(|file| check_free(&file.path))?;
    let _unfinished: Vec<_> = files.iter().map(|file| Unfinished::new(&file.partial())).collect();
    let published = files.iter().try_for_each(NewFile::write).and_then(|()| files.iter().try_for_each(NewFile::rename));
    if published.is_err() {
        for file in files {
            // Some may not exist, and the first failure is the one to report.
            let _ = fs::remove_file(file.partial());
        }
    }
    published
}

/// Refuses a path if something exists there that is not a regular file.
pub fn check_free(path: &Path) -> Result<()> {
    let taken = match fs::symlink_metadata(path) {
        Ok(there) => !there.is_file(),
        Err(error) if error.kind() == io::ErrorKind::NotFound => false,
        Err(error) => return Err(Failure::file("look at", path, &error)),
    };
    if taken {
        let why = "is not a regular file, so it is not replaced: remove it, or choose another name";
        return Err(Failure::trouble(format!("{} {why}", path.display())));
    }
    Ok(())
}
