//! Checkpoints and backups of the database that a driver runs.

use std::{
    io::ErrorKind,
    path::{Path, PathBuf},
};

use bifold::{Backup, Db, Durability, Error, IfMissing, Options};

use super::{Driver, Watcher};
use crate::read::{self, Trouble};

impl<W: Watcher> Driver<W> {
    /// Copies the database: every other time by a backup, which is then restored.
    pub(super) fn checkpoint(&mut self) -> Result<(), Trouble> {
        let dir = self.new_dir()?;
        // The repository outlasts crashes, and has generations of what a crash took back.
        let repository = self.checkpoints.is_multiple_of(2).then(|| self.path.with_file_name("backups"));
        let done = match &repository {
            Some(repository) => self.db().backup(repository).map(drop),
            None => self.db().checkpoint(&dir),
        };
        self.acknowledge(done, Durability::Memory)?;
        self.watcher.pause();
        let restored = repository.map_or(Ok(()), |repository| self.restore(&repository, &dir));
        let checked = restored.and_then(|()| self.check_checkpoint(&dir));
        self.watcher.resume();
        checked
    }

    fn restore(&self, repository: &Path, dir: &Path) -> Result<(), Trouble> {
        let backup = Backup::open_in(self.env.clone(), repository)?;
        backup.restore(dir)?;
        backup.prune(2)?;
        Ok(())
    }

    /// An empty directory next to the database's. Nothing may be left in it from before a crash either.
    fn new_dir(&mut self) -> Result<PathBuf, Trouble> {
        loop {
            self.checkpoints += 1;
            let dir = self.path.with_file_name(format!("checkpoint-{}", self.checkpoints));
            match self.env.fs.list(&dir) {
                Ok(files) if !files.is_empty() => {}
                Err(Error::Io { source, .. }) if source.kind() == ErrorKind::NotFound => return Ok(dir),
                // This may be an injected fault, which is reported here then.
                other => return other.map(|_| dir).map_err(Trouble::from),
            }
        }
    }

    fn check_checkpoint(&self, dir: &Path) -> Result<(), Trouble> {
        let options = Options { if_missing: IfMissing::Fail, ..self.set.to_open(&self.model) };
        let copy = Db::open_in(self.env.clone(), dir, options)?;
        self.set.check_stored(&copy, &mut self.model.clone())?;
        let contents = read::contents(&copy)?;
        let head = self.model.head();
        self.model.check_between(&contents, head..=head).map_err(|m| Trouble::wrong(format!("checkpoint: {m}")))?;
        copy.close()?;
        Ok(())
    }
}
