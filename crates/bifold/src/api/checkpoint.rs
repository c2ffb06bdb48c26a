//! Checkpoint: a copy of the whole database in another directory.
//!
//! ```text
//! 1 claim the directory: it is new or empty, and locked from then on                               target.rs
//! 2 under the manifest lock: fix the length of the logs and seal the value files after one commit; list the
//!   files of the copy and hold them, so that none is deleted meanwhile
//! 3 link the files that no longer change, or copy them where the system cannot link; copy the logs
//! 4 sync the directory, then write the manifest: it comes last
//! ```
//!
//! Writers, flushes and GC continue from step 3 on, however long copying takes.
//!
//! * Tables and large values never change, so they are linked. Logs still grow, so what they hold at step 2 is copied.
//!   Value files are sealed, so they are linked too, and commits continue in new ones.
//! * **A file is linked only if recovery of either database leaves it as it is**: the manifest records all of it, so
//!   recovery truncates nothing. A database open read-only cannot record what a killed process left. Such files are
//!   copied in full, and the copy recovers from the same bytes as its origin.
//! * A power loss before the manifest is durable leaves a directory that is no database, and opening it says so. After
//!   an error everything that was created is removed.

pub(crate) mod target;

use std::{
    any::Any,
    collections::{BTreeMap, BTreeSet},
    io::{self, ErrorKind},
    path::Path,
    sync::Arc,
};

use bifold_contract::{Edit, Error, FileId, IoSource, LargeFileMeta, LogFloor, Result, ValueFileMeta, planted};
use bifold_format::names;
use bifold_io::{Dir, Reader};
use bifold_values::parts::{
    large_files::LargeFile,
    value_files::{ORDERED, SORTED},
};

use self::target::{CHECKPOINT, Target};
use crate::{
    api::db::Db,
    engine::Engine,
    log::{manifest::ManifestFile, wal::LogFile},
    settings::options::Access,
    waiting::sync::LockExt,
};

/// Bytes copied at a time.
const COPY_BYTES: u64 = 1 << 20;

/// How far a checkpoint has come.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct CheckpointProgress {
    /// Bytes that the copy will hold, without its manifest.
    pub bytes_total: u64,
    /// Bytes that it holds now.
    pub bytes_done: u64,
    /// Of `bytes_done`, bytes that were copied. The others are shared with the database by hard links.
    pub bytes_copied: u64,
}

/// Checkpoints.
impl Db {
    /// Copies the database as it is now to the new or empty directory `dir`. The copy is a database of its own.
    ///
    /// On the same file system this takes almost no time and no space: the copy shares tables and value files with
    /// the database by hard links. So it is **not a backup**, which [`Db::backup`] makes: damage to one of those files
    /// damages both. On another file system every byte is read, written and synced, and the copy shares nothing. Logs
    /// are copied in any case. Where values are separated, everything is synced first. When this returns, the copy
    /// survives a power loss. The database keeps working meanwhile, but files that it no longer needs are deleted only
    /// afterwards. If the database is open read-only, the copy also contains the value files that a killed process left
    /// unrecorded.
    ///
    /// # Errors
    /// I/O errors; [`Error::InvalidArgument`] when `dir` already holds files, is a file or a symbolic link, or is,
    /// contains or lies within the database's own directory; [`Error::Locked`] while another checkpoint is being made
    /// there; [`Error::Poisoned`]; [`Error::Closed`], also in a forked child of the process that writes. On error
    /// everything that was made is removed; if that fails, the error says so.
    pub fn checkpoint(&self, dir: impl AsRef<Path>) -> Result<()> {
        self.checkpoint_with(dir, |_| {})
    }

    /// [`Db::checkpoint`] that reports its progress: after each file and after each MiB copied.
    ///
    /// # Errors
    /// As [`Db::checkpoint`].
    pub fn checkpoint_with(&self, dir: impl AsRef<Path>, mut progress: impl FnMut(CheckpointProgress)) -> Result<()> {
        checkpoint(self.engine(), dir.as_ref(), &mut progress)
    }
}

/// Copies the database to `path`.
///
/// # Errors
/// I/O errors; [`Error::InvalidArgument`] when `path` cannot take a copy; [`Error::Poisoned`]. Nothing is then left at
/// `path`, or the error says what.
fn checkpoint(engine: &Engine, path: &Path, report: &mut dyn FnMut(CheckpointProgress)) -> Result<()> {
    engine.health.can_be_copied()?;
    let mut target = Target::claim(&engine.dir, path, &CHECKPOINT)?;
    let made = plan(engine).and_then(|plan| plan.carry_out(&engine.dir, &mut target, report));
    match made {
        Ok(()) => Ok(()),
        Err(error) if planted!("checkpoint_leaves_directory") => Err(error),
        Err(error) => Err(target.undo(error)),
    }
}

/// What a copy consists of.
pub(crate) struct Plan {
    /// What its manifest begins with.
    pub state: Edit,
    /// The id of the database.
    pub database_id: u64,
    /// Its logs, up to where the copy ends.
    pub logs: Vec<(LogFile, Reader)>,
    /// Its tables, value files and large values.
    pub files: Vec<Piece>,
    /// Its large values, also those that only its logs name.
    pub large: Vec<LargeFileMeta>,
    /// Keeps the files from being deleted.
    _held: Vec<Arc<dyn Any + Send + Sync>>,
}

/// One table or value file.
pub(crate) struct Piece {
    /// Its name.
    pub name: String,
    /// How many bytes of it the copy needs.
    pub bytes: u64,
    /// Another process may append to it, or cut off what it has appended.
    pub may_grow: bool,
    way: Way,
}

impl Piece {
    /// A file that never changes.
    fn unchanging(name: String, bytes: u64) -> Self {
        Self { name, bytes, may_grow: false, way: Way::Link }
    }
}

/// How a file gets into a copy.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Way {
    /// By a hard link, or by copying where the system cannot link.
    Link,
    Copy,
}

/// Fixes the end of the copy and lists its files, which are held as long as the plan lives.
///
/// # Errors
/// I/O errors; [`Error::Poisoned`].
pub(crate) fn plan(engine: &Engine) -> Result<Plan> {
    let mut manifest = engine.state.manifest.hold();
    // The floor before the list of logs: a later floor may name a log that the list lacks.
    let floor = engine.state.log_floor(None);
    let end = end_here(engine)?;
    if end.shares_values {
        engine.syncs.sync_everything()?;
        engine.state.list_lengths(&mut manifest)?;
    }
    let state = state_at(engine, floor, &end);
    let mut files: Vec<Piece> = (state.levels.iter().flat_map(|change| &change.added))
        .map(|added| Piece::unchanging(names::table(added.table.id), added.table.bytes))
        .collect();
    files.extend(value_files(engine, &state, &end)?);
    let large = large_values(engine, &state, &end)?;
    files.extend(large.iter().map(|file| Piece::unchanging(names::large(file.named.file), file.bytes)));
    let open = |log: LogFile| Ok((log, engine.dir.open_held(&names::log(log.id))?));
    let logs = end.logs.iter().copied().map(open).collect::<Result<_>>()?;
    let trees = engine.trees.all();
    let versions = trees.iter().map(|tree| Arc::clone(&tree.view().version) as Arc<dyn Any + Send + Sync>);
    let held = versions.chain(trees.iter().map(|tree| tree.placement().hold_files()));
    let held = held.chain(end.large.iter().map(|file| Arc::clone(file) as _)).collect();
    Ok(Plan { state, database_id: manifest.database_id(), logs, files, large, _held: held })
}

/// Where the copy ends.
struct CopyEnd {
    logs: Vec<LogFile>,
    values: BTreeSet<FileId>,
    large: Vec<Arc<LargeFile>>,
    /// Values are separated, and the database is open for writing. Recovery of the copy truncates what its manifest
    /// does not record, in files that both databases share: so all of it must be recorded, and durable before that.
    shares_values: bool,
}

/// Fixes where logs and value files end for the copy: after the same commit.
fn end_here(engine: &Engine) -> Result<CopyEnd> {
    let mut wal = engine.wal.hold();
    let trees = engine.trees.steady(&*wal);
    let shares_values = trees.iter().any(|p| p.separates) && engine.options.access.writes();
    engine.health.well()?;
    engine.health.watch(wal.write_out())?;
    if shares_values {
        trees.iter().for_each(|p| p.placement().seal());
    }
    Ok(CopyEnd {
        logs: wal.files(),
        values: trees.iter().flat_map(|p| p.placement().live_files()).collect(),
        large: trees.iter().flat_map(|p| p.placement().large().all()).collect(),
        shares_values,
    })
}

/// The state that the manifest of the copy begins with.
fn state_at(engine: &Engine, floor: LogFloor, end: &CopyEnd) -> Edit {
    let mut state = engine.state.as_edit(floor);
    state.values.added.retain(|file| end.values.contains(&file.id) || file.bytes == 0);
    // What its logs have noted of this manifest says nothing of that one, which begins later. A follower
    // may have met logs that the manifest, as it read it, did not know.
    let newest = end.logs.iter().map(|log| log.id + 1).max();
    state.next_file = state.next_file.max(newest);
    state
}

/// The value files of the copy. For a read-only database, also those that only its logs point to.
fn value_files(engine: &Engine, state: &Edit, end: &CopyEnd) -> Result<Vec<Piece>> {
    let added = state.values.added.iter().filter(|file| file.bytes > 0);
    let recorded: BTreeMap<FileId, u64> = added.map(|file| (file.id, file.bytes)).collect();
    let writes = engine.options.access.writes();
    let is_final = |file: &&ValueFileMeta| [SORTED, ORDERED].contains(&file.class);
    let finals: BTreeSet<FileId> = state.values.added.iter().filter(is_final).map(|file| file.id).collect();
    let mut files = Vec::new();
    for &id in end.values.iter().filter(|id| !writes || recorded.contains_key(id)) {
        let (name, recorded) = (names::value(id), recorded.get(&id).copied());
        let actual = engine.dir.len(&name)?;
        let bytes = if writes { recorded } else { actual };
        // Recovery of the copy would copy a shared file before it truncates it. And another process may append to it.
        let may_grow = engine.options.access == Access::Follow && !finals.contains(&id);
        let way = if actual == recorded && !may_grow { Way::Link } else { Way::Copy };
        files.push(Piece { name, bytes: bytes.unwrap_or(0), may_grow, way });
    }
    Ok(files)
}

/// The large values of the copy: those that the manifest names, and those that only logs name. They never change.
fn large_values(engine: &Engine, state: &Edit, end: &CopyEnd) -> Result<Vec<LargeFileMeta>> {
    let recorded: BTreeSet<FileId> = state.values.large.added.iter().map(|file| file.named.file).collect();
    let mut files = Vec::new();
    for file in end.large.iter().map(|file| file.meta()) {
        // Another process may have dropped an entry that this reader has met in a log.
        let is_sure = engine.options.access != Access::Follow || recorded.contains(&file.named.file);
        if is_sure || engine.dir.len(&names::large(file.named.file))?.is_some() {
            files.push(file);
        }
    }
    Ok(files)
}

impl Plan {
    fn carry_out(&self, from: &Dir, target: &mut Target, report: &mut dyn FnMut(CheckpointProgress)) -> Result<()> {
        let logs: u64 = self.logs.iter().map(|(log, _)| log.bytes).sum();
        let bytes_total = logs + self.files.iter().map(|file| file.bytes).sum::<u64>();
        let progress = CheckpointProgress { bytes_total, ..CheckpointProgress::default() };
        let mut reporter = Reporter { progress, report };
        for Piece { name, bytes, way, .. } in &self.files {
            if *way == Way::Copy || !link(from, target, name)? {
                copy(&from.open(name)?, target, name, *bytes, &mut reporter)?;
            } else {
                reporter.linked(*bytes);
            }
            target.check_len(name, *bytes)?;
        }
        for (log, reader) in &self.logs {
            let name = names::log(log.id);
            copy(reader, target, &name, log.bytes, &mut reporter)?;
            target.check_len(&name, log.bytes)?;
        }
        target.dir().sync()?;
        target.begin_manifest();
        ManifestFile::create(target.dir(), self.database_id, &self.state)?;
        target.make_name_durable()
    }
}

/// Links a file into the copy. Returns whether the system can do that.
fn link(from: &Dir, target: &mut Target, name: &str) -> Result<bool> {
    match target.make(name, |to| from.link_into(to, name)) {
        Err(Error::Io { source, .. }) if cannot_link(&source) => Ok(false),
        other => other.map(|()| true),
    }
}

/// Whether a hard link is impossible: another device, a file system without hard links, one that refuses this link,
/// or too many names for one file.
fn cannot_link(error: &io::Error) -> bool {
    let kinds =
        [ErrorKind::CrossesDevices, ErrorKind::Unsupported, ErrorKind::PermissionDenied, ErrorKind::TooManyLinks];
    kinds.contains(&error.kind()) && !planted!("checkpoint_one_device")
}

fn copy(reader: &Reader, target: &mut Target, name: &str, bytes: u64, reporter: &mut Reporter<'_>) -> Result<()> {
    let writer = target.make(name, |to| to.create(name, IoSource::Maintenance))?;
    let mut buffer = vec![0; usize::try_from(bytes.min(COPY_BYTES)).unwrap_or(0)];
    let mut done = 0;
    while done < bytes {
        let step = usize::try_from(COPY_BYTES.min(bytes - done)).unwrap_or(0);
        reader.read_at(&mut buffer[..step], done, IoSource::Maintenance)?;
        writer.append(&[&buffer[..step]])?;
        done += step as u64;
        reporter.copied(step as u64);
    }
    writer.sync()
}

/// Counts the progress and reports it.
struct Reporter<'a> {
    progress: CheckpointProgress,
    report: &'a mut dyn FnMut(CheckpointProgress),
}

impl Reporter<'_> {
    fn linked(&mut self, bytes: u64) {
        self.progress.bytes_done += bytes;
        (self.report)(self.progress);
    }

    fn copied(&mut self, bytes: u64) {
        self.progress.bytes_copied += bytes;
        self.linked(bytes);
    }
}
