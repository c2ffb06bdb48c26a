//! Opening a database: after a clean close, a killed process, a power loss, or a crash during an earlier recovery.
//!
//! ```text
//! looking   1 lock   2 manifest ─▶ which tables and keyspaces there are   3 value files, with what stands behind the lengths it lists
//!           4 logs ─▶ which commits happened ([`logs`]): every error is found by now, and nothing has been changed
//! settling  5 value files and logs are cut behind what happened; what is not known to be durable is written again, in place
//!           6 a new log; the manifest anew, synced (MANIFEST.tmp, rename), with all lengths   7 delete what nothing refers to
//! replaying 8 the old logs into memtables; full ones are flushed on the way, the rest at the end
//! ```
//!
//! * Nothing is served before 6 is durable, so what a reader was shown is never lost later, even if the crash came with a
//!   failed sync.
//! * Every step may be cut short by another crash: each cut of 5 is one step and takes only what never happened; 6 is one
//!   rename; 7 only deletes; each flush in 8 is installed by one manifest record that also says up to where replay may skip.
//! * No value is copied. Where a full disk has no room for 6, `RESERVE` goes first, then what the old manifest does not need; where it
//!   has none for what 8 writes, memtables and logs stay as they are.

mod logs;
mod replay;
mod settle;
mod state;

use std::{
    io::ErrorKind,
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use bifold_contract::{Corruption, Error, FileId, LogFloor, Result, planted};
use bifold_format::{
    frame::FILE_HEADER_BYTES,
    names::{self, FileKind},
};
use bifold_index::table::TableContext;
use bifold_io::{Dir, Env, LockMode, fs::FileLock};
use bifold_values::parts::{budget::Memory, unsynced::Unsynced, value_files::restore_names};

use self::settle::{frozen_logs, release_reserve, settle};
pub(crate) use self::{
    logs::Logs,
    state::{ManifestState, read_manifest},
};
use crate::{
    engine::{Engine, Recovered},
    manifest::ManifestFile,
    memory::MemoryPlan,
    options::{Access, IfMissing, Options},
};

/// Opens the database in `path`.
///
/// # Errors
/// I/O errors, corruption, [`Error::Locked`], [`Error::NotFound`].
pub(crate) fn recover(env: Env, path: &Path, options: Options) -> Result<Arc<Engine>> {
    let plan = MemoryPlan::of(&options);
    let writes = options.access == Access::ReadWrite;
    let creates = writes && options.if_missing == IfMissing::Create;
    let (dir, lock) = take(&env, path, &options, &plan)?;
    // Looked at again under the lock: another process may have created the database meanwhile.
    let files = Files::list(&dir)?;
    let state = state_there(&dir, &files)?;
    let Some(state) = state.or_else(|| creates.then(|| new_state(&env, path, &files))) else {
        return Err(Error::NotFound { path: path.into() });
    };
    files.check_numbers(&dir, state.next_file)?;
    let tables = Arc::new(TableContext::new(plan.cache, plan.metadata));
    let (value_memory, unsynced) = (Memory::new(plan.filters, plan.buffers), Arc::<Unsynced>::default());
    let next_file = Arc::new(AtomicU64::new(state.next_file.max(files.last + 1).max(1)));
    let trees = state.open_trees(&dir, &tables, (&value_memory, &unsynced), &next_file, &files.values, writes)?;
    let logs: Vec<FileId> = files.logs.iter().copied().filter(|&id| id >= state.log_floor.log).collect();
    let found = Logs::find(&dir, &state, &logs, trees.iter().map(|tree| &**tree))?;
    // No new value file gets a number that a log has a pointer to, were it one that a power loss has taken away.
    next_file.fetch_max(found.last_file.saturating_add(1), Ordering::Relaxed);
    trees.iter().try_for_each(|tree| tree.placement().settle(found.next - 1, found.durable))?;
    // Not `found.next` alone: the manifest says which numbers were in use, those of commits that are lost included.
    let next_seqno = found.next.max(state.last_seqno + 1);
    let replaying = if writes { found.floor() } else { Some(state.log_floor) };
    let (manifest, wal) = match options.access {
        Access::ReadWrite => settle(&dir, &state, &found, (&trees, &next_file), next_seqno, &files)?,
        Access::ReadOnly => {
            (ManifestFile::frozen(&dir, state.database_id), frozen_logs(&dir, &logs, (next_seqno, &found))?)
        }
    };
    let reserve_bytes = dir.len(names::RESERVE)?.unwrap_or(0);
    let engine = Engine::new(Recovered {
        env,
        dir,
        options,
        plan,
        tables,
        value_memory,
        unsynced,
        lock,
        manifest,
        wal,
        visible: next_seqno - 1,
        replaying,
        next_file,
        trees,
        damaged: found.damaged.clone(),
        reserve_bytes,
    });
    finish(&engine, &files, &found)?;
    Ok(engine)
}

/// The directory, locked for what it is opened for, and with all files under their own names.
fn take(env: &Env, path: &Path, options: &Options, plan: &MemoryPlan) -> Result<(Dir, Box<dyn FileLock>)> {
    let mut dir = Dir::new(Arc::clone(&env.fs), path);
    if options.open_files_max > 0 {
        dir = dir.with_open_files_max(options.open_files_max as usize);
    }
    let writes = options.access == Access::ReadWrite;
    let creates = writes && options.if_missing == IfMissing::Create;
    if !creates && !is_any_there(&dir)? {
        return Err(Error::NotFound { path: path.into() });
    }
    if writes {
        make_durable_dir(&dir)?;
    }
    let mode = if writes { LockMode::Exclusive } else { LockMode::Shared };
    let (dir, lock) = dir.lock_for_use(names::LOCK, mode, plan.appending(options.reads))?;
    // Where files are copied when they are written to, recovery takes room, too.
    if writes && dir.free_bytes().is_some_and(|free| free < OPENING_BYTES + dir.change_bytes()) {
        release_reserve(&dir)?;
    }
    restore_names(&dir, writes)?;
    Ok((dir, lock))
}

/// What is left to do when there is an engine: leftovers are deleted, logs replayed, the reserve filled.
fn finish(engine: &Arc<Engine>, files: &Files, found: &Logs) -> Result<()> {
    let writes = engine.options.access == Access::ReadWrite;
    if writes {
        engine.remove_unreferenced(files)?;
        // A log that came back with the power would stand between those that count.
        engine.dir.sync()?;
    }
    engine.replay(found)?;
    if writes {
        engine.provide_reserve();
    }
    Ok(())
}

/// With fewer free bytes than this a disk is taken for full before opening writes anything.
const OPENING_BYTES: u64 = 1 << 20;

/// The state of the database that is in `dir`, if there is one.
fn state_there(dir: &Dir, files: &Files) -> Result<Option<ManifestState>> {
    let state = read_manifest(dir)?;
    match &state {
        Some(state) => state.check_logs(dir, files)?,
        None => refuse_leftovers(dir, files)?,
    }
    Ok(state)
}

/// The state of a database that is made in `path`.
fn new_state(env: &Env, path: &Path, files: &Files) -> ManifestState {
    let id = bifold_format::checksum::checksum(path.as_os_str().as_encoded_bytes(), 0, 0);
    let id = id ^ env.clock.now().as_nanos() as u64;
    let log_floor = LogFloor { log: files.logs.first().copied().unwrap_or(0), first: 1 };
    ManifestState { database_id: id, log_floor, ..ManifestState::default() }
}

/// Makes the directory, and its entry in the one above durable.
fn make_durable_dir(dir: &Dir) -> Result<()> {
    dir.create_dir()?;
    let above = dir.path().parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new("."));
    dir.sibling(above).sync()
}

/// Whether there is a file of a database in `dir`, were it the last one left.
///
/// # Errors
/// I/O errors.
pub(crate) fn is_any_there(dir: &Dir) -> Result<bool> {
    if dir.len(names::MANIFEST)?.is_some() {
        return Ok(true);
    }
    match Files::list(dir) {
        Ok(files) => Ok(files.last > 0),
        Err(Error::Io { source, .. }) if source.kind() == ErrorKind::NotFound => Ok(false),
        Err(error) => Err(error),
    }
}

/// Without a manifest a directory must not hold tables, value files or commits: it is a database that has lost its manifest,
/// whose files would be deleted as leftovers. A crash while the database was made leaves a log with its header at most: the first
/// commit comes after the manifest.
///
/// # Errors
/// Corruption; I/O errors.
pub(crate) fn refuse_leftovers(dir: &Dir, files: &Files) -> Result<()> {
    let mut found = files.tables.first().map(|&id| names::table(id));
    found = found.or(files.values.first().map(|&id| names::value(id)));
    for name in files.logs.iter().map(|&id| names::log(id)) {
        if dir.len(&name)?.is_some_and(|len| len > FILE_HEADER_BYTES as u64) && !planted!("logs_alone") {
            found = found.or(Some(name));
        }
    }
    let Some(name) = found else { return Ok(()) };
    let expected = "the MANIFEST of the database whose files are here";
    let found = format!("no such file, but {name}: it was lost, or a checkpoint was cut short here");
    Err(Corruption::new(0, "database directory", expected, found).of(dir.file(names::MANIFEST)))
}

/// The files of a directory by kind.
#[derive(Debug, Default)]
pub(crate) struct Files {
    pub logs: Vec<FileId>,
    pub tables: Vec<FileId>,
    pub values: Vec<FileId>,
    /// The largest number in any name.
    pub last: FileId,
}

/// More files than this no session begins before its next edit, which tells the manifest their numbers. What has a larger number
/// is not of this database: numbers behind it must not be handed out, or they would run out one day.
const NUMBERS_AHEAD_MAX: FileId = 1 << 32;

impl Files {
    /// Demands that no name has a number far from those that the manifest knows, of which `next` is the first one free.
    ///
    /// # Errors
    /// Corruption that names the file.
    pub fn check_numbers(&self, dir: &Dir, next: FileId) -> Result<()> {
        let most = next + NUMBERS_AHEAD_MAX;
        if self.last <= most || planted!("any_number") {
            return Ok(());
        }
        let kinds =
            [(&self.logs, names::log as fn(_) -> _), (&self.tables, names::table), (&self.values, names::value)];
        let name = kinds.iter().find_map(|(ids, name)| ids.last().filter(|&&id| id == self.last).map(|&id| name(id)));
        let expected = format!("a number up to {most}: MANIFEST says that {next} is the next; move the file elsewhere");
        let damage = Corruption::new(0, "file name", expected, self.last.to_string());
        Err(damage.of(dir.file(&name.unwrap_or_default())))
    }

    /// Lists `dir`, ascending by number.
    ///
    /// # Errors
    /// I/O errors.
    pub fn list(dir: &Dir) -> Result<Self> {
        let mut files = Self::default();
        for name in dir.list()? {
            let (list, id) = match names::parse(&name) {
                FileKind::Log(id) => (&mut files.logs, id),
                FileKind::Table(id) => (&mut files.tables, id),
                FileKind::Value(id) => (&mut files.values, id),
                FileKind::Manifest | FileKind::Temporary | FileKind::Lock | FileKind::Reserve | FileKind::Unknown => {
                    continue;
                }
            };
            list.push(id);
            files.last = files.last.max(id);
        }
        files.logs.sort_unstable();
        files.tables.sort_unstable();
        files.values.sort_unstable();
        Ok(files)
    }
}
