//! Offline verification: reads and checks every byte of every file, without opening the database.
//!
//! In a value file, the bytes that the manifest records must be intact. After a crash, what follows them may be torn,
//! and the logs say which of it counts. Verification walks the logs as opening does, so it also reports what would
//! keep the database from opening. Unlike opening, it does not stop at the first damage: it lists everything it
//! finds, with file and offset. It needs no placement of others to be registered: it reads files, not keys.

use std::{path::Path, sync::Arc};

use bifold_contract::{Corruption, Error, FileId, Result, TableMeta};
use bifold_format::names;
use bifold_index::table::{Table, TableContext};
use bifold_io::{Dir, Env, LockMode, fs::Appending};
use bifold_values::parts::{
    budget::Memory,
    value_files::{self, restore_names},
};

use crate::state::{
    numbers::Numbers,
    presets::OwnPlacements,
    recover::{Files, Logs, ManifestState, is_any_there, read_manifest, refuse_leftovers},
};

/// What a verification found.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct VerifyReport {
    /// Files read.
    pub files: u64,
    /// Bytes in them.
    pub bytes: u64,
    /// All damage found; empty for an intact database.
    pub problems: Vec<Error>,
}

/// How far a verification has come.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct VerifyProgress<'a> {
    /// The file read next.
    pub file: &'a str,
    /// Bytes of the files read before it.
    pub done_bytes: u64,
    /// Bytes of all files.
    pub total_bytes: u64,
}

/// Reads every byte of the database in `path` and reports all damage.
///
/// # Errors
/// [`Error::NotFound`] when there is none, [`Error::Locked`] when it is open for writing, [`Error::InvalidArgument`]
/// when a crash interrupted its recovery while a file had another name, I/O errors of the directory.
pub fn verify(path: impl AsRef<Path>) -> Result<VerifyReport> {
    verify_in(&Env::system(), path, |_| ())
}

/// As [`verify`], on the files of `env`. Reports its progress before each file.
///
/// # Errors
/// As [`verify`].
pub fn verify_in(
    env: &Env,
    path: impl AsRef<Path>,
    mut progress: impl FnMut(VerifyProgress<'_>),
) -> Result<VerifyReport> {
    let dir = Dir::new(Arc::clone(&env.fs), path.as_ref());
    if !is_any_there(&dir)? {
        return Err(Error::NotFound { path: path.as_ref().into() });
    }
    let (dir, _lock) = dir.lock_for_use(names::LOCK, LockMode::Shared, Appending::default())?;
    // An interrupted recovery is no damage; only the next opening can finish it.
    restore_names(&dir, false)?;
    let mut check = Check { report: VerifyReport::default(), total_bytes: total_bytes(&dir)?, dir };
    check.begin(names::MANIFEST, &mut progress);
    let state = match read_manifest(&check.dir) {
        Ok(Some(state)) => state,
        Ok(None) => {
            let files = Files::list(&check.dir)?;
            let damage = refuse_leftovers(&check.dir, &files).err();
            check.report.problems.push(damage.ok_or(Error::NotFound { path: path.as_ref().into() })?);
            return Ok(check.report);
        }
        Err(damage) => {
            check.report.problems.push(damage);
            return Ok(check.report);
        }
    };
    check.tables(&state, &mut progress)?;
    for file in state.values.values() {
        check.begin(&names::value(file.id), &mut progress);
        check.report.problems.extend(value_files::verify(&check.dir, file).err());
    }
    let files = Files::list(&check.dir)?;
    check.tails(&state, &files, &mut progress)?;
    check.logs(&state, &files, &mut progress)?;
    Ok(check.report)
}

struct Check {
    dir: Dir,
    report: VerifyReport,
    total_bytes: u64,
}

fn total_bytes(dir: &Dir) -> Result<u64> {
    dir.list()?.iter().try_fold(0, |sum, name| Ok(sum + dir.len(name)?.unwrap_or(0)))
}

impl Check {
    fn begin(&mut self, name: &str, progress: &mut impl FnMut(VerifyProgress<'_>)) {
        progress(VerifyProgress { file: name, done_bytes: self.report.bytes, total_bytes: self.total_bytes });
        self.report.files += 1;
        self.report.bytes += self.dir.len(name).ok().flatten().unwrap_or(0);
    }

    fn tables(&mut self, state: &ManifestState, progress: &mut impl FnMut(VerifyProgress<'_>)) -> Result<()> {
        // No cache and no metadata budget: each table is read once, front to back.
        let context = Arc::new(TableContext::new(0, 0));
        for added in state.keyspaces.values().flat_map(|k| k.tables.values()) {
            self.begin(&names::table(added.table.id), progress);
            self.table(&added.table, &context)?;
        }
        Ok(())
    }

    fn table(&mut self, meta: &Arc<TableMeta>, context: &Arc<TableContext>) -> Result<()> {
        let name = names::table(meta.id);
        if self.dir.len(&name)?.is_none() {
            let missing = Corruption::new(0, "table", format!("{} bytes", meta.bytes), "no such file");
            self.report.problems.push(missing.of(self.dir.file(&name)));
            return Ok(());
        }
        match Table::open(&self.dir, Arc::clone(meta), context) {
            Ok(table) => self.report.problems.extend(table.verify()),
            Err(damage) => self.report.problems.push(damage),
        }
        Ok(())
    }

    /// Checks what value files hold after the lengths in the manifest, and files that the manifest does not record.
    fn tails(
        &mut self,
        state: &ManifestState,
        files: &Files,
        progress: &mut impl FnMut(VerifyProgress<'_>),
    ) -> Result<()> {
        for &id in &files.values {
            let recorded = state.values.get(&id).map(|file| file.bytes);
            if recorded == Some(0) {
                // Everything in it has moved, and a crash kept its name.
                continue;
            }
            let name = names::value(id);
            if recorded.is_none() {
                self.begin(&name, progress);
            }
            if self.dir.len(&name)?.is_some_and(|len| len > recorded.unwrap_or(0)) {
                match value_files::verify_tail(&self.dir, id, recorded) {
                    Ok(damage) => self.report.problems.extend(damage),
                    Err(unreadable) => self.report.problems.push(unreadable),
                }
            }
        }
        Ok(())
    }

    /// Walks the logs as opening does, and reports what would keep the database from opening.
    fn logs(
        &mut self,
        state: &ManifestState,
        files: &Files,
        progress: &mut impl FnMut(VerifyProgress<'_>),
    ) -> Result<()> {
        let live: Vec<FileId> = files.logs.iter().copied().filter(|&id| id >= state.log_floor.log).collect();
        live.iter().for_each(|&id| self.begin(&names::log(id), progress));
        let numbers = files.check_numbers(&self.dir, state.next_file);
        if let Err(damage) = numbers.and_then(|()| state.check_logs(&self.dir, files)) {
            self.report.problems.push(damage);
            return Ok(());
        }
        let context = Arc::new(TableContext::new(0, 0));
        let memory = Memory::new(0, 0);
        let numbers = Numbers::from(files.last.saturating_add(1));
        let found = state
            .open_trees(
                &self.dir,
                &context,
                (&memory, &Arc::default()),
                &numbers,
                &files.values,
                (OwnPlacements::OnlyFiles, false),
            )
            .and_then(|trees| Logs::find(&self.dir, state, &live, trees.iter().map(|tree| &**tree)));
        // `tails` has already reported damaged values after the recorded lengths.
        if let Err(error) = found
            && self.report.problems.iter().all(|known| known.to_string() != error.to_string())
        {
            self.report.problems.push(error);
        }
        Ok(())
    }
}
