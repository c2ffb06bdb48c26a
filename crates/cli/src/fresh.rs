//! A database that is made completely or not at all: it is called DIR.partial until it is complete.

use std::{
    ffi::OsString,
    fs, io,
    path::{Path, PathBuf},
};

use bifold::{Access, Db, Env, IfMissing, Options};

use crate::{
    failure::{Failure, Result},
    interrupt::{Unfinished, making},
};

/// The suffix of an incomplete directory.
const UNFINISHED: &str = ".partial";

/// The directory of a new database.
pub struct Fresh {
    to: PathBuf,
    partial: PathBuf,
    /// Removes the directory if the program is interrupted.
    _unfinished: Unfinished,
}

impl Fresh {
    /// Claims `to`, which must not exist or be empty.
    pub fn at(to: &Path) -> Result<Self> {
        // Without a trailing separator: a suffix after it would name a file in the directory.
        let to: PathBuf = to.components().collect();
        let Some(name) = to.file_name() else {
            return Err(Failure::trouble(format!(
                "{} cannot be the name of a new directory: give another one",
                to.display()
            )));
        };
        let partial = to.with_file_name([name, UNFINISHED.as_ref()].into_iter().collect::<OsString>());
        if !is_free(&to)? {
            let why = "is not empty: give a new or an empty directory for the new database";
            return Err(Failure::trouble(format!("{} {why}", to.display())));
        }
        if !is_free(&partial)? {
            let why = "was left by an earlier attempt: remove it, or give another directory";
            return Err(Failure::trouble(format!("{} {why}", partial.display())));
        }
        let _unfinished = Unfinished::new(&partial);
        Ok(Self { to, partial, _unfinished })
    }

    /// Its path until it is complete.
    pub fn partial(&self) -> &Path {
        &self.partial
    }

    /// Makes a database, fills it with `fill`, writes all of it as tables, and closes it.
    pub fn fill<T>(&self, options: Options, fill: impl FnOnce(&Db) -> Result<T>) -> Result<T> {
        let options = Options { access: Access::ReadWrite, if_missing: IfMissing::Create, ..options };
        let filled = making(|| Db::open_with(&self.partial, options)).map_err(Failure::from).and_then(|db| {
            let filled = fill(&db)?;
            db.flush()?;
            db.close()?;
            Ok(filled)
        });
        filled.map_err(|failure| self.unfinished(failure))
    }

    /// Gives the database its name, durably.
    pub fn publish(self) -> Result<()> {
        let fs = Env::system().fs;
        let above = self.to.parent().filter(|above| !above.as_os_str().is_empty()).unwrap_or(Path::new("."));
        let published = fs
            .sync_dir(&self.partial)
            .and_then(|()| fs.rename(&self.partial, &self.to))
            .and_then(|()| fs.sync_dir(above));
        published.map_err(|error| self.unfinished(error.into()))
    }

    /// Adds to a failure what it has left behind.
    pub fn unfinished(&self, failure: Failure) -> Failure {
        match failure {
            Failure::Trouble(message) if self.partial.exists() => {
                Failure::Trouble(format!("{message}; {} is incomplete: remove it", self.partial.display()))
            }
            other => other,
        }
    }
}

/// Whether nothing is at `path`, or an empty directory.
fn is_free(path: &Path) -> Result<bool> {
    match fs::read_dir(path) {
        Ok(mut entries) => Ok(entries.next().is_none()),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(true),
        Err(error) if error.kind() == io::ErrorKind::NotADirectory => Ok(false),
        Err(error) => Err(Failure::file("read directory", path, &error)),
    }
}
