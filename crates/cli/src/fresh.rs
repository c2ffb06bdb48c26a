//! A database that is made completely or not at all: it is called DIR.partial until it is complete.

use std::{
    ffi::OsString,
    fs, io,
    os::unix::fs::MetadataExt,
    path::{Component, Path, PathBuf},
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
    undo: Unfinished,
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
        check_gives_way(&to)?;
        if !is_free(&partial)? {
            let why = "was left by an earlier attempt: remove it, or give another directory";
            return Err(Failure::trouble(format!("{} {why}", partial.display())));
        }
        let undo = Unfinished::new(&partial);
        Ok(Self { to, partial, undo })
    }

    /// The same, for what the database in `source` holds, in whose directory nothing must be made.
    pub fn outside(source: &Path, to: &Path) -> Result<Self> {
        let fresh = Self::at(to)?;
        check_outside(source, &fresh.to)?;
        Ok(fresh)
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
        fs.sync_dir(&self.partial).map_err(|error| self.unfinished(error.into()))?;
        self.undo.complete(|| fs.rename(&self.partial, &self.to)).map_err(|error| {
            let (partial, to) = (self.partial.display(), self.to.display());
            Failure::trouble(format!("{error}; {partial} is complete: rename it to {to}, or to another name"))
        })?;
        Ok(fs.sync_dir(above(&self.to))?)
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

/// Refuses an empty directory that cannot be replaced by renaming another one, before anything is copied.
fn check_gives_way(to: &Path) -> Result<()> {
    let failed = |path: &Path, error: io::Error| Failure::file("look at", path, &error);
    let there = match fs::symlink_metadata(to) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        there => there.map_err(|error| failed(to, error))?,
    };
    let above = above(to);
    let device_above = fs::metadata(above).map_err(|error| failed(above, error))?.dev();
    let why = match () {
        () if there.is_symlink() => "is a symbolic link: give the directory that it leads to, or a new one",
        () if there.dev() != device_above => {
            "is a mount point, which no other directory can replace: give a new directory in it"
        }
        () => return Ok(()),
    };
    Err(Failure::trouble(format!("{} {why}", to.display())))
}

/// Refuses a directory within that of the database in `source`, as a checkpoint does.
fn check_outside(source: &Path, to: &Path) -> Result<()> {
    let failed = |path: &Path, error: io::Error| Failure::file("look at", path, &error);
    let source = fs::canonicalize(source).map_err(|error| failed(source, error))?;
    let mut there = to;
    let resolved = loop {
        match fs::canonicalize(if there.as_os_str().is_empty() { Path::new(".") } else { there }) {
            Ok(resolved) => break resolved,
            Err(error) => match there.parent().filter(|_| error.kind() == io::ErrorKind::NotFound) {
                Some(above) => there = above,
                None => return Err(failed(there, error)),
            },
        }
    };
    let rest = to.strip_prefix(there).unwrap_or(Path::new(""));
    let why = match () {
        () if rest.components().any(|component| component == Component::ParentDir) => {
            "has `..` after a directory that does not exist; name it without `..`"
        }
        () if resolved.starts_with(&source) => "is or lies within the database's own directory; name another one",
        () => return Ok(()),
    };
    Err(Failure::trouble(format!("{} {why}", to.display())))
}

/// The directory in which a path is.
fn above(path: &Path) -> &Path {
    path.parent().filter(|above| !above.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

#[cfg(test)]
mod tests {
    use std::{thread, time::Duration};

    use super::*;

    /// A new empty directory.
    fn scratch(name: &str) -> PathBuf {
        let dir = std::env::temp_dir().join(format!("bifold-fresh-{name}-{}", std::process::id()));
        fs::create_dir_all(&dir).unwrap();
        dir
    }

    /// What an interruption holds while it removes what is incomplete is held here.
    #[test]
    fn a_database_does_not_get_its_name_while_an_interruption_removes_it() {
        let dir = scratch("removed");
        let to = dir.join("new");
        let fresh = Fresh::at(&to).unwrap();
        fs::create_dir(fresh.partial()).unwrap();
        thread::scope(|scope| {
            let publishing = making(|| {
                let publishing = scope.spawn(|| fresh.publish());
                // It has time enough to rename the directory.
                let has_its_name = (0..50).any(|_| {
                    thread::sleep(Duration::from_millis(1));
                    to.exists()
                });
                assert!(!has_its_name);
                publishing
            });
            publishing.join().unwrap().unwrap();
        });
        assert!(to.exists());
        fs::remove_dir_all(dir).unwrap();
    }

    #[test]
    fn a_complete_database_that_gets_no_name_is_not_called_incomplete() {
        let dir = scratch("complete");
        let to = dir.join("new");
        let fresh = Fresh::at(&to).unwrap();
        let partial = fresh.partial().to_owned();
        fs::create_dir(&partial).unwrap();
        // Somebody else takes the name meanwhile.
        fs::create_dir(&to).unwrap();
        fs::write(to.join("file"), "mine").unwrap();
        let Err(Failure::Trouble(why)) = fresh.publish() else { panic!("it has replaced a directory with files") };
        assert!(why.contains(&format!("{} is complete", partial.display())), "{why}");
        assert!(partial.exists() && to.join("file").exists());
        fs::remove_dir_all(dir).unwrap();
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn a_mount_point_is_refused_before_anything_is_copied() {
        let Err(Failure::Trouble(why)) = check_gives_way(Path::new("/proc")) else { panic!("it was accepted") };
        assert!(why.contains("/proc is a mount point"), "{why}");
    }
}
