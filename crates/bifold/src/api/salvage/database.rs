//! Salvage of a whole directory: the newest version of each key that tables and logs have, whatever is damaged.
//! Page: `docs/salvage.md`.
//!
//! ```text
//! manifest ─▶ keyspaces and their tables ─▶ survey: walk all tables and logs, note what is lost and all range deletes
//!          ─▶ passes: the operations of logs that fit in memory, merged with all tables ─▶ the fate of each key ─▶ put
//! ```
//!
//! * Tables and logs say which versions there are. Value files have only values: a record that no entry leads to is
//!   garbage, or its key was deleted.
//! * The version with the largest number decides, in whichever file it is. A key is left out if its newest value cannot
//!   be read, since every older one would be wrong.
//! * What is lost may have been newer than what is found. Such keys are restored, and counted.
//! * Operands of merge operators are combined with their base, and the result is put: `operands.rs` says which count.
//! * Logs repeat what tables have. Where the manifest is whole and all tables of a keyspace are, operations that have
//!   been flushed are not asked: compaction may have dropped the deletes that follow them.

mod large;
mod logs;
mod merge;
mod operands;
mod pass;
mod reach;
mod report;
mod sources;
mod survey;
mod values;

use std::{collections::BTreeSet, fmt, path::Path, sync::Arc};

use bifold_contract::{Error, FileId, Result};
use bifold_format::{names, table::Place};
use bifold_index::table::salvage::Lost;
use bifold_io::{
    Dir, Env, LockMode,
    fs::{APPENDS_NAME, Appending, FileLock},
};

pub use self::report::{DatabaseReport, LostStretch, RecoveredKeyspace};
use self::{
    logs::{InLog, LogVersions, Logged},
    pass::NewDatabase,
    report::LeftOuts,
    sources::Sources,
};
use super::{SalvageOptions, SalvageProgress, bounded::Subset};
use crate::{api::db::Db, settings::merge::MergeOperators};

/// So many files are open at a time.
const OPEN_FILES_MAX: usize = 256;

/// A database of which anything may be damaged, open for reading only.
pub struct DatabaseSalvage {
    dir: Dir,
    _lock: Box<dyn FileLock>,
    sources: Sources,
    left_out: LeftOuts,
    /// What the first walk through the logs found lost: log, offset, bytes.
    lost_in_logs: BTreeSet<(FileId, u64, u64)>,
    /// The files of large values that an entry names.
    large_named: BTreeSet<FileId>,
    memory_bytes: usize,
    merge_operators: MergeOperators,
}

impl fmt::Debug for DatabaseSalvage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("DatabaseSalvage").field(&self.dir).finish()
    }
}

impl DatabaseSalvage {
    /// Opens the database in `path`. Nothing in it is changed, now or later.
    ///
    /// # Errors
    /// I/O errors; [`Error::Locked`] if it is open for writing; [`Error::NotFound`] if there is none;
    /// [`Error::InvalidArgument`] if two keyspaces get the same name.
    pub fn open(env: &Env, path: &Path, options: &SalvageOptions) -> Result<Self> {
        let names: BTreeSet<&String> = options.names.values().collect();
        if names.len() < options.names.len() {
            return Err(Error::invalid("names of keyspaces", "two ids have the same name: give each a different one"));
        }
        let dir = Dir::new(Arc::clone(&env.fs), path).with_open_files_max(OPEN_FILES_MAX);
        if dir.kind()?.is_none() {
            return Err(Error::NotFound { path: path.into() });
        }
        let mut left_out = LeftOuts::default();
        // With what a killed process has left in its append region, if that can be read.
        let taken = dir.clone().lock_for_use(names::LOCK, LockMode::Shared, Appending::default());
        let (dir, lock) = match taken {
            Err(error) if error.is_unreadable() => {
                let path = dir.file(APPENDS_NAME);
                let (place, problem) = (Place::default(), error.to_string());
                left_out.add(path, None, Lost { place, first: None, last: None, problem });
                let lock = dir.lock(names::LOCK, LockMode::Shared)?;
                (dir, lock)
            }
            taken => taken?,
        };
        let lacks_appends = left_out.stretches > 0;
        let mut sources = Sources::find(&dir, options, &mut left_out)?;
        if lacks_appends {
            sources.lose_any();
        }
        Ok(Self {
            dir,
            _lock: lock,
            sources,
            left_out,
            lost_in_logs: BTreeSet::new(),
            large_named: BTreeSet::new(),
            memory_bytes: options.memory_bytes,
            merge_operators: options.merge_operators.clone(),
        })
    }

    /// Reads everything, and writes nothing.
    ///
    /// # Errors
    /// I/O errors that are not those of unreadable blocks. Damage is not an error.
    pub fn inspect(self, progress: impl FnMut(SalvageProgress)) -> Result<DatabaseReport> {
        self.run(None, progress)
    }

    /// Puts what was found into `db`, each keyspace into the one with its name. Entries that expire keep their
    /// instants. Commits have the durability of `db`.
    ///
    /// # Errors
    /// Those of writing to `db`, and as [`DatabaseSalvage::inspect`].
    pub fn restore(self, db: &Db, progress: impl FnMut(SalvageProgress)) -> Result<DatabaseReport> {
        self.run(Some(db), progress)
    }

    fn run(mut self, db: Option<&Db>, mut progress: impl FnMut(SalvageProgress)) -> Result<DatabaseReport> {
        self.survey_tables(&mut progress)?;
        self.survey_logs()?;
        let mut target = db.map(|db| NewDatabase::of(db, &self.sources.spaces)).transpose()?;
        let mut left = vec![Subset::ALL];
        while let Some(subset) = left.pop() {
            let mut versions = LogVersions::new(subset, self.memory_bytes);
            let mut next = None;
            for log in self.sources.logs.clone() {
                let mut lost = Vec::new();
                logs::walk(&self.dir, log, &mut next, |met| match met {
                    InLog::Operation(seqno, operation) => {
                        if let Some((key, logged)) = Logged::of(seqno, &operation)
                            && self.sources.is_asked((seqno, key), operation.keyspace())
                        {
                            versions.add(operation.keyspace(), key, logged);
                        }
                    }
                    InLog::Lost(records) => lost.push(records),
                    InLog::Record(..) => {}
                })?;
                lost.into_iter().for_each(|records| self.lose_in_log(log, records));
            }
            for at in 0..self.sources.spaces.len() {
                self.merge(at, &mut versions, &mut target)?;
            }
            left.append(&mut versions.left);
        }
        if let Some(target) = &mut target {
            target.commit()?;
        }
        self.report_unnamed();
        let LeftOuts { stretches, bytes, listed } = self.left_out;
        Ok(DatabaseReport {
            manifest_is_whole: self.sources.is_exact,
            left_out_stretches: stretches,
            left_out_bytes: bytes,
            left_out: listed,
            keyspaces: self.sources.spaces.into_iter().map(|space| space.report).collect(),
        })
    }
}
