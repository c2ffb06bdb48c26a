//! Opens a database: after a clean close, a killed process, a power loss, or a crash during an earlier recovery.
//!
//! ```text
//! look    1 lock   2 manifest ─▶ tables and keyspaces   3 value files, with what follows the lengths it records
//!         4 logs ─▶ which commits happened ([`logs`]): all errors are found by now, and nothing is changed yet
//! finish  5 truncate value files and logs after the last commit; write again, in place, what may not be durable
//!         6 a new log; a new manifest with all lengths, synced (MANIFEST.tmp, rename)   7 delete unreferenced files
//! replay  8 the old logs into memtables; full memtables are flushed on the way, the rest at the end
//! ```
//!
//! * Nothing is served before 6 is durable, so nothing that a reader has seen is lost later, even if the crash came
//!   with a failed sync.
//! * Another crash may interrupt every step: each truncation of 5 is one step and removes only what never happened; 6
//!   is one rename; 7 only deletes; each flush in 8 is installed by one manifest record that also says up to where
//!   replay may skip.
//! * No value is copied. If a full disk has no room for what `APPENDS` has of a killed process, or for 6, `RESERVE` is
//!   released first; for 6, then files that the old manifest does not need are deleted. If it has no room for the
//!   tables of 8, memtables and logs stay as they are.

mod finish;
mod logs;
#[cfg(test)]
mod lost_tests;
mod replay;
mod state;

use std::{io::ErrorKind, path::Path, sync::Arc};

use bifold_contract::{Corruption, Error, FileId, LogFloor, Result, planted};
use bifold_format::{
    frame::FILE_HEADER_BYTES,
    names::{self, FileKind},
};
use bifold_io::{Dir, Env, LockMode, fs::FileLock, pins::Pins};
use bifold_values::{
    logs::LogSpan,
    parts::{
        unsynced::Unsynced,
        value_files::{FileAccess, restore_names},
    },
};

use self::finish::{finish, frozen_logs, release_reserve};
pub(crate) use self::{
    logs::Logs,
    replay::Replay,
    state::{KeyspaceState, ManifestState, read_manifest, read_whole},
};
pub(crate) use crate::state::files::Files;
use crate::{
    engine::{Engine, Recovered},
    limits::memory::MemoryPlan,
    log::{kept_logs::KeptLogs, manifest::ManifestFile},
    settings::options::{Access, IfMissing, Options, Reads},
    state::{numbers::Numbers, presets::OwnPlacements, telling::Events, time::Time, tree::Tree},
};

/// Opens the database in `path`.
///
/// # Errors
/// I/O errors, corruption, [`Error::Locked`], [`Error::NotFound`].
pub(crate) fn recover(env: Env, path: &Path, options: Options) -> Result<Arc<Engine>> {
    let plan = MemoryPlan::of(&options);
    let writes = options.access.writes();
    let creates = writes && options.if_missing == IfMissing::Create;
    let (dir, lock) = take(&env, path, &options, &plan)?;
    let events = Arc::new(Events::new(&options.listener, &env.clock));
    if let Some(observer) = events.observer() {
        dir.observe(observer);
    }
    // Checked again under the lock: another process may have created the database meanwhile.
    let files = Files::list(&dir)?;
    let Some(state) = state_there(&dir, &files)?.or_else(|| creates.then(|| new_state(&env, path, &files))) else {
        return Err(Error::NotFound { path: path.into() });
    };
    files.check_numbers(&dir, state.next_file)?;
    let tables = plan.tables();
    let (value_memory, unsynced) = (plan.values(&tables), Arc::<Unsynced>::default());
    let numbers = Numbers::from(state.next_file.max(files.last + 1).max(1));
    let file_access = if writes { FileAccess::Write } else { FileAccess::Read };
    let own = (OwnPlacements::Of(&options.placements, &options.merge_operators), file_access);
    let trees = state.open_trees(&dir, &tables, (&value_memory, &unsynced), &numbers, &files.values, own)?;
    let (logs, below): (Vec<FileId>, Vec<FileId>) = files.logs.iter().partition(|&&id| id >= state.log_floor.log);
    let spans: Vec<LogSpan> = logs.iter().map(|&id| LogSpan::whole(id)).collect();
    let found = Logs::find(&dir, &state, (&spans, state.log_floor.first), trees.iter().map(|tree| &**tree))?;
    // No new value file gets a number that a log has a pointer to, even if a power loss has deleted that file.
    numbers.raise_above(found.last_file);
    finish_values(&trees, &found, &events)?;
    // Not `found.next` alone: the manifest says which numbers were in use, including those of lost commits.
    let next_seqno = found.next.max(state.last_seqno + 1);
    let replaying = if writes { found.floor() } else { Some(state.log_floor) };
    let (manifest, wal) = match options.access {
        Access::ReadWrite => {
            let mut kept = KeptLogs::find(&dir, (&below, &logs), options.retain_changes.as_ref(), env.clock.now())?;
            kept.find_ingests(&dir, &files.ingests, (found.floor(), next_seqno))?;
            finish(&dir, &state, &found, (&trees, &numbers), (next_seqno, &kept), &files)?
        }
        Access::ReadOnly | Access::Follow => {
            (ManifestFile::frozen(&dir, state.database_id), frozen_logs(&dir, &logs, (next_seqno, &found))?)
        }
    };
    let reserve_bytes = dir.len(names::RESERVE)?.unwrap_or(0);
    let engine = Engine::new(Recovered {
        time: Arc::new(Time::new(&env.clock, state.seen_time.unwrap_or(0))),
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
        numbers,
        trees,
        damaged: found.damaged.clone(),
        reserve_bytes,
        events,
        counters: Arc::default(),
    });
    start(&engine, &files, &found)?;
    Ok(engine)
}

/// Commits that logs have are known now; so is what in value files cannot be read.
fn finish_values(trees: &[Arc<Tree>], found: &Logs, events: &Events) -> Result<()> {
    for tree in trees {
        tree.placement().finish_recovery(found.next - 1, found.durable)?;
        tree.left_out().iter().for_each(|why| events.left_out(&tree.name, why));
    }
    Ok(())
}

/// The directory, locked for what it is opened for, and with all files under their own names.
fn take(env: &Env, path: &Path, options: &Options, plan: &MemoryPlan) -> Result<(Dir, Box<dyn FileLock>)> {
    let dir = dir_of(env, path, options);
    let writes = options.access.writes();
    let creates = writes && options.if_missing == IfMissing::Create;
    if !creates && !is_any_there(&dir)? {
        return Err(Error::NotFound { path: path.into() });
    }
    if writes {
        dir.create_dir_durably()?;
    }
    let mode = if writes { LockMode::Exclusive } else { LockMode::Shared };
    let dir = if writes { pinned(dir) } else { dir };
    let lock_for_use = || dir.clone().lock_for_use(names::LOCK, mode, plan.appending(options));
    let (dir, lock) = lock_for_use().or_else(|error| {
        // Appends of a killed process need room where they are put back.
        if writes && error.is_full() && give_up_reserve(&dir)? { lock_for_use() } else { Err(error) }
    })?;
    // Where files are copied when they are written to, recovery needs room, too.
    if writes && dir.free_bytes().is_some_and(|free| free < OPENING_BYTES + dir.change_bytes()) {
        release_reserve(&dir)?;
    }
    restore_names(&dir, writes)?;
    Ok((dir, lock))
}

/// Releases `RESERVE` before the directory is in use: with its lock, since another process may use it by now. Returns
/// whether there was any.
fn give_up_reserve(dir: &Dir) -> Result<bool> {
    let _held = dir.lock(names::LOCK, LockMode::Exclusive)?;
    Ok(!planted!("appends_without_reserve") && release_reserve(dir)?)
}

/// The directory of a database, with the limit on open files that `options` ask for.
pub(crate) fn dir_of(env: &Env, path: &Path, options: &Options) -> Dir {
    let dir = Dir::new(Arc::clone(&env.fs), path);
    let dir = if options.reads == Reads::Direct { dir.reading_directly() } else { dir };
    match options.open_files_max {
        0 => dir,
        max => dir.with_open_files_max(max as usize),
    }
}

/// The same directory, in which the files that followers need are kept.
fn pinned(dir: Dir) -> Dir {
    let number = |name: &str| match names::parse(name) {
        FileKind::Log(id) | FileKind::Table(id) | FileKind::Value(id) | FileKind::Large(id) | FileKind::Ingest(id) => {
            Some(id)
        }
        _ => None,
    };
    let pins = Pins::of(&dir, number);
    dir.with_pins(pins)
}

/// What is left to do once there is an engine: leftovers are deleted, logs replayed, the reserve filled.
fn start(engine: &Arc<Engine>, files: &Files, found: &Logs) -> Result<()> {
    let writes = engine.options.access.writes();
    let replay = Replay { state: &engine.state, flusher: &engine.flusher, memtable_bytes: engine.plan.memtable };
    if writes {
        replay.remove_unreferenced(files, found)?;
        // A log that came back with the power would be found between those that count.
        engine.dir.sync()?;
    }
    replay.replay(found)?;
    if writes {
        engine.room.provide_reserve();
    }
    Ok(())
}

/// With fewer free bytes than this, opening treats the disk as full before it writes anything.
const OPENING_BYTES: u64 = 1 << 20;

/// The state of the database in `dir`, if there is one.
fn state_there(dir: &Dir, files: &Files) -> Result<Option<ManifestState>> {
    let state = read_manifest(dir)?;
    match &state {
        Some(state) => state.check_logs(dir, files)?,
        None => refuse_leftovers(dir, files)?,
    }
    Ok(state)
}

/// The state of a new database in `path`.
fn new_state(env: &Env, path: &Path, files: &Files) -> ManifestState {
    let id = bifold_format::checksum::checksum(path.as_os_str().as_encoded_bytes(), 0, 0);
    let id = id ^ env.clock.now().as_nanos() as u64;
    let log_floor = LogFloor { log: files.logs.first().copied().unwrap_or(0), first: 1 };
    ManifestState { database_id: id, log_floor, ..ManifestState::default() }
}

/// Whether `dir` has any file of a database, even a single one.
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

/// Without a manifest a directory must not hold tables, value files or commits: that is a database that has lost its
/// manifest, and its files would be deleted as leftovers. A crash during creation leaves at most a log with its
/// header: the first commit comes after the manifest.
///
/// # Errors
/// Corruption; I/O errors.
pub(crate) fn refuse_leftovers(dir: &Dir, files: &Files) -> Result<()> {
    let mut found = files.tables.first().map(|&id| names::table(id));
    found = found.or(files.values.first().map(|&id| names::value(id)));
    found = found.or(files.large.first().map(|&id| names::large(id)));
    for name in files.logs.iter().map(|&id| names::log(id)) {
        if dir.len(&name)?.is_some_and(|len| len > FILE_HEADER_BYTES as u64) && !planted!("logs_alone") {
            found = found.or(Some(name));
        }
    }
    let Some(name) = found else { return Ok(()) };
    let expected = "the MANIFEST of the database that these files belong to";
    let found = format!("no such file, but {name}: it was lost, or a copy into this directory did not finish");
    Err(Corruption::new(0, "database directory", expected, found).of(dir.file(names::MANIFEST)))
}
