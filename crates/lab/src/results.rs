//! A directory of results. Every run that ends adds a line to `runs.jsonl`, so a session can be stopped at any time and
//! continued later. `session.json` has the settings that all runs share.

use std::{
    collections::HashSet,
    fs::{self, File, OpenOptions},
    io::{self, Seek, SeekFrom, Write},
    path::{Path, PathBuf},
};

use crate::{Failure, Result, Session, record::Run};

/// The runs of a directory, and the file that takes more.
#[derive(Debug)]
pub struct Results {
    path: PathBuf,
    file: File,
    runs: Vec<Run>,
    keys: HashSet<(String, usize)>,
}

/// The name of the file of runs.
pub const FILE_NAME: &str = "runs.jsonl";

/// The name of the file of settings.
pub const SESSION_NAME: &str = "session.json";

impl Results {
    /// Opens the results of `session` in `dir`, which is created if needed, and locks them until dropped: no other
    /// process can add to them.
    ///
    /// An incomplete last line is removed, and its run is made again.
    ///
    /// # Errors
    /// [`Failure::Results`] if the file cannot be read or written, is locked by another process, belongs to a session
    /// with other settings, or has an invalid line; the error has its number.
    pub fn open(dir: &Path, session: &Session) -> Result<Self> {
        let path = dir.join(FILE_NAME);
        let trouble = |verb: &str, error: &dyn std::fmt::Display| {
            Failure::Results(format!("cannot {verb} {}: {error}", path.display()))
        };
        fs::create_dir_all(dir).map_err(|e| Failure::Results(format!("cannot create {}: {e}", dir.display())))?;
        let opened = OpenOptions::new().read(true).write(true).create(true).truncate(false).open(&path);
        let mut file = opened.map_err(|e| trouble("open", &e))?;
        file.try_lock().map_err(|e| trouble("lock (is another session writing to it?)", &e))?;
        match session_of(dir)? {
            Some(stored) => session.check_same(&stored)?,
            None => write_session(dir, session)?,
        }
        let text = fs::read_to_string(&path).map_err(|e| trouble("read", &e))?;
        let whole = text.rfind('\n').map_or(0, |end| end + 1);
        file.set_len(whole as u64).map_err(|e| trouble("truncate", &e))?;
        file.seek(SeekFrom::End(0)).map_err(|e| trouble("write", &e))?;
        let runs = parse(&path, &text[..whole])?;
        let keys = runs.iter().map(|run| (run.key.clone(), run.round)).collect();
        Ok(Self { path, file, runs, keys })
    }

    /// The settings and the runs in `dir`, without a lock.
    ///
    /// # Errors
    /// As [`Results::open`]; also if there are no results.
    pub fn read(dir: &Path) -> Result<(Session, Vec<Run>)> {
        let path = dir.join(FILE_NAME);
        let text = fs::read_to_string(&path).map_err(|e| {
            Failure::Results(format!("cannot read {}: {e}: `bifold lab run … --out DIR` makes results", path.display()))
        })?;
        let missing = || {
            Failure::Results(format!(
                "{} has no {SESSION_NAME}, so the settings of its runs are unknown: restore that file",
                dir.display()
            ))
        };
        let session = session_of(dir)?.ok_or_else(missing)?;
        Ok((session, parse(&path, &text[..text.rfind('\n').map_or(0, |end| end + 1)])?))
    }

    /// All runs, oldest first.
    #[must_use]
    pub fn runs(&self) -> &[Run] {
        &self.runs
    }

    /// Whether a run is stored.
    #[must_use]
    pub fn has(&self, key: &str, round: usize) -> bool {
        self.keys.contains(&(key.to_owned(), round))
    }

    /// Whether a round of a run ended because its load took too long. Another round would take as long.
    #[must_use]
    pub fn is_too_slow(&self, key: &str) -> bool {
        self.runs.iter().any(|run| run.key == key && run.not_loaded.is_some())
    }

    /// How long the first round of a run took, in seconds; `None` if it is not stored.
    #[must_use]
    pub fn first_took(&self, key: &str) -> Option<f64> {
        self.runs.iter().find(|run| run.key == key && run.round == 1).map(|run| run.seconds)
    }

    /// Adds a run, durably.
    ///
    /// # Errors
    /// [`Failure::Results`] if it cannot be written.
    pub fn add(&mut self, run: Run) -> Result<()> {
        let trouble =
            |error: &dyn std::fmt::Display| Failure::Results(format!("cannot write {}: {error}", self.path.display()));
        let mut line = serde_json::to_vec(&run).map_err(|e| trouble(&e))?;
        line.push(b'\n');
        self.file.write_all(&line).and_then(|()| self.file.sync_data()).map_err(|e| trouble(&e))?;
        self.keys.insert((run.key.clone(), run.round));
        self.runs.push(run);
        Ok(())
    }
}

/// The settings of a directory, if it has any.
fn session_of(dir: &Path) -> Result<Option<Session>> {
    let path = dir.join(SESSION_NAME);
    let trouble = |error: &dyn std::fmt::Display| Failure::Results(format!("cannot read {}: {error}", path.display()));
    match fs::read_to_string(&path) {
        Ok(text) => serde_json::from_str(&text).map(Some).map_err(|e| trouble(&e)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(trouble(&error)),
    }
}

fn write_session(dir: &Path, session: &Session) -> Result<()> {
    let path = dir.join(SESSION_NAME);
    let trouble = |error: &dyn std::fmt::Display| Failure::Results(format!("cannot write {}: {error}", path.display()));
    let mut text = serde_json::to_string_pretty(session).map_err(|e| trouble(&e))?;
    text.push('\n');
    fs::write(&path, text).map_err(|e| trouble(&e))
}

fn parse(path: &Path, text: &str) -> Result<Vec<Run>> {
    let run = |(at, line): (usize, &str)| {
        serde_json::from_str(line).map_err(|e| {
            let place = format!("{}:{}", path.display(), at + 1);
            Failure::Results(format!(
                "{place}: not a run of this version of the lab: {e}: move the file away to start again"
            ))
        })
    };
    text.lines().enumerate().map(run).collect()
}

#[cfg(test)]
mod tests;
