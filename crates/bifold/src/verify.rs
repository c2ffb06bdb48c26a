//! Offline verification: every byte of every file is read and checked, without opening the database.
//!
//! Of value files that part is checked which the manifest lists; what follows it, after a crash, is for the logs to explain.
//! Unlike opening, it does not stop at the first damage: it lists all it finds, each with file and offset.

use std::{collections::BTreeSet, path::Path, sync::Arc};

use bifold_contract::{Corruption, Error, FileId, IoSource, Result, TableMeta};
use bifold_format::{log::LogReader, names};
use bifold_index::table::{Table, TableContext};
use bifold_io::{Dir, Env, LockMode, fs::Appending};
use bifold_values::parts::value_files;

use crate::recover::{Files, ManifestState, read_manifest, read_whole};

/// What a verification found.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct VerifyReport {
    /// Files read.
    pub files: u64,
    /// Bytes in them.
    pub bytes: u64,
    /// All damage found; empty for a sound database.
    pub problems: Vec<Error>,
}

/// How far a verification is.
#[derive(Clone, Copy, Debug)]
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
/// [`Error::NotFound`] when there is none, [`Error::Locked`] when it is open for writing, I/O errors of the directory.
pub fn verify(path: impl AsRef<Path>) -> Result<VerifyReport> {
    verify_in(&Env::system(), path, |_| ())
}

/// As [`verify`], on the files of `env`, telling its progress before each file.
///
/// # Errors
/// As [`verify`].
pub fn verify_in(
    env: &Env,
    path: impl AsRef<Path>,
    mut progress: impl FnMut(VerifyProgress<'_>),
) -> Result<VerifyReport> {
    let dir = Dir::new(Arc::clone(&env.fs), path.as_ref());
    if dir.len(names::MANIFEST)?.is_none() {
        return Err(Error::NotFound { path: path.as_ref().into() });
    }
    let (dir, _lock) = dir.lock_for_use(names::LOCK, LockMode::Shared, Appending::default())?;
    let mut check = Check { report: VerifyReport::default(), total_bytes: total_bytes(&dir)?, dir };
    check.begin(names::MANIFEST, &mut progress);
    let state = match read_manifest(&check.dir) {
        Ok(state) => state.unwrap_or_default(),
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
    check.logs(&state, &mut progress)?;
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

    fn logs(&mut self, state: &ManifestState, progress: &mut impl FnMut(VerifyProgress<'_>)) -> Result<()> {
        let files = Files::list(&self.dir)?;
        self.report.problems.extend(state.check_logs(&self.dir, &files).err());
        self.report.problems.extend(files.check_numbers(&self.dir, state.next_file).err());
        let live: BTreeSet<FileId> = files.logs.into_iter().filter(|&id| id >= state.log_floor.log).collect();
        for id in live {
            let name = names::log(id);
            self.begin(&name, progress);
            let bytes = read_whole(&self.dir, &name, IoSource::Maintenance)?;
            if let Err(damage) = check_log(&bytes, id) {
                self.report.problems.push(damage.of(self.dir.file(&name)));
            }
        }
        Ok(())
    }
}

fn check_log(bytes: &[u8], id: FileId) -> std::result::Result<(), Corruption> {
    for record in LogReader::new(bytes, id)? {
        record?.operations().try_for_each(|operation| operation.map(drop))?;
    }
    Ok(())
}
