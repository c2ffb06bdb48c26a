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

use std::{
    collections::{BTreeMap, BTreeSet},
    io::ErrorKind,
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use bifold_contract::{
    Corruption, Edit, Error, FileId, IoSource, KeyspaceEdit, KeyspaceId, LevelEdit, LogFloor, Result, SeqNo, ValueEdit,
    ValueFileMeta,
    edit::TableAdded,
    placement::{Replayed, Routed},
};
use bifold_format::{
    frame::FILE_HEADER_BYTES,
    log::{LogRecord, Operation},
    manifest,
    names::{self, FileKind},
};
use bifold_index::table::{Table, TableContext};
use bifold_io::{Dir, Env, LockMode};
use bifold_values::parts::{
    budget::Memory,
    unsynced::Unsynced,
    value_files::{owners, restore_names},
};

pub(crate) use self::logs::Logs;
use self::logs::{FoundLog, each_record};
use crate::{
    engine::{Engine, Recovered, value_home},
    install::state_of,
    manifest::ManifestFile,
    memory::MemoryPlan,
    options::{Access, IfMissing, KeyspaceOptions, Options},
    presets::{self, ValueHome},
    room::Job,
    sync::LockExt,
    tree::Tree,
    wal::{LogFile, Wal},
    write::{Act, Op, apply},
};

/// Opens the database in `path`.
///
/// # Errors
/// I/O errors, corruption, [`Error::Locked`], [`Error::NotFound`].
pub(crate) fn recover(env: Env, path: &Path, options: Options) -> Result<Arc<Engine>> {
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
    let plan = MemoryPlan::of(&options);
    let mode = if writes { LockMode::Exclusive } else { LockMode::Shared };
    let (dir, lock) = dir.lock_for_use(names::LOCK, mode, plan.appending(options.reads))?;
    let reserve_bytes = dir.len(names::RESERVE)?.unwrap_or(0);
    // Where files are copied when they are written to, settling takes room, too.
    let is_full = writes && dir.free_bytes().is_some_and(|free| free < OPENING_BYTES + reserve_bytes * RESERVES_FREE);
    if is_full {
        release_reserve(&dir)?;
    }
    restore_names(&dir, writes)?;
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
    let (manifest, wal) = if writes {
        settle(&dir, &state, &found, (&trees, &next_file), next_seqno, &files)?
    } else {
        (ManifestFile::frozen(&dir, state.database_id), frozen_logs(&dir, &logs, (next_seqno, &found))?)
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
    if writes {
        engine.remove_unreferenced(&files)?;
        // A log that came back with the power would stand between those that count.
        engine.dir.sync()?;
    }
    engine.replay(&found)?;
    if writes {
        engine.provide_reserve();
    }
    Ok(engine)
}

/// With fewer free bytes than this, and so many times what `RESERVE` takes, a disk is taken for full before opening writes anything:
/// what a file system says is free may be for itself.
const OPENING_BYTES: u64 = 256 << 10;
const RESERVES_FREE: u64 = 8;

/// The logs as they stand, for whoever copies a database that is open read-only.
fn frozen_logs(dir: &Dir, logs: &[FileId], (next_seqno, found): (SeqNo, &Logs)) -> Result<Wal> {
    let mut wal = Wal::none(dir, next_seqno);
    for &id in logs.iter().filter(|_| cfg!(not(planted = "checkpoint_without_logs"))) {
        wal.adopt([LogFile { id, bytes: dir.len(&names::log(id))?.unwrap_or(0), first: found.next }]);
    }
    Ok(wal)
}

/// Settles the logs, begins the next one, and has the manifest list everything that stays.
fn settle(
    dir: &Dir,
    state: &ManifestState,
    found: &Logs,
    (trees, next_file): (&[Arc<Tree>], &AtomicU64),
    next_seqno: SeqNo,
    files: &Files,
) -> Result<(ManifestFile, Wal)> {
    found.logs.iter().try_for_each(|log| settle_log(dir, log))?;
    let begin = || begin(dir, state, found, (trees, next_file), next_seqno);
    begin().or_else(|error| if error.is_full() && release_reserve(dir)? { begin() } else { Err(error) }).or_else(
        |error| {
            if error.is_full() && remove_leftovers(dir, state, trees, files)? { begin() } else { Err(error) }
        },
    )
}

/// Gives a full disk what `RESERVE` takes. Answers whether that was anything.
fn release_reserve(dir: &Dir) -> Result<bool> {
    match dir.len(names::RESERVE)? {
        Some(_) if cfg!(planted = "keep_reserve") => Ok(false),
        Some(_) => dir.reserve(names::RESERVE, 0).map(|()| true),
        None => Ok(false),
    }
}

/// On a full disk: what the manifest does not need goes before there is another. So this one is made durable first: what a killed
/// process has appended to it may be in the system's cache only. Answers whether there was anything.
fn remove_leftovers(dir: &Dir, state: &ManifestState, trees: &[Arc<Tree>], files: &Files) -> Result<bool> {
    dir.write_again(names::MANIFEST, 0)?;
    dir.sync()?;
    let live: BTreeSet<FileId> = trees.iter().flat_map(|p| p.placement().live_files()).collect();
    let tables: BTreeSet<FileId> = state.keyspaces.values().flat_map(|k| k.tables.keys().copied()).collect();
    let tables = files.tables.iter().filter(|id| !tables.contains(id)).map(|&id| (id, names::table(id)));
    let values = files.values.iter().filter(|id| !live.contains(id)).map(|&id| (id, names::value(id)));
    // The last number stays taken: a crash now must not lead to a second file with it.
    let gone: Vec<String> = tables.chain(values).filter(|&(id, _)| id < files.last).map(|(_, name)| name).collect();
    gone.iter().try_for_each(|name| dir.remove(name))?;
    Ok(!gone.is_empty())
}

/// Begins a log and a manifest. Where that fails for want of room, nothing is left of either.
fn begin(
    dir: &Dir,
    state: &ManifestState,
    found: &Logs,
    (trees, next_file): (&[Arc<Tree>], &AtomicU64),
    next_seqno: SeqNo,
) -> Result<(ManifestFile, Wal)> {
    let log = next_file.fetch_add(1, Ordering::Relaxed);
    let forget = |_: &Error| {
        let _the_next_opening_does = dir.remove(names::MANIFEST_TEMPORARY).and_then(|()| dir.remove(&names::log(log)));
    };
    let mut wal = Wal::begin(dir, log, next_seqno).inspect_err(forget)?;
    if cfg!(not(planted = "unnamed_log_floor")) {
        dir.sync()?;
    }
    let floor = found.floor().unwrap_or_else(|| wal.floor_at(log));
    let snapshot = state_of(trees, next_file.load(Ordering::Relaxed), state.last_seqno, floor);
    // Only what no manifest names is forgotten: as long as the new one has its temporary name.
    let is_unnamed = || dir.len(names::MANIFEST_TEMPORARY).is_ok_and(|len| len.is_some());
    let created = ManifestFile::create(dir, state.database_id, &snapshot);
    let manifest = created.inspect_err(|error| {
        if is_unnamed() {
            forget(error)
        }
    })?;
    wal.adopt(found.logs.iter().map(|log| LogFile { id: log.id, bytes: log.bytes, first: log.first }));
    Ok((manifest, wal))
}

/// Cuts a log behind its last commit that happened, and makes durable what is not known to be.
fn settle_log(dir: &Dir, log: &FoundLog) -> Result<()> {
    let name = names::log(log.id);
    if log.file_bytes > log.bytes {
        dir.truncate(&name, log.bytes)?;
    }
    if log.durable_bytes < log.bytes && cfg!(not(planted = "trust_cached_log")) {
        dir.write_again(&name, log.durable_bytes)?;
    }
    Ok(())
}

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
        if dir.len(&name)?.is_some_and(|len| len > FILE_HEADER_BYTES as u64) && cfg!(not(planted = "logs_alone")) {
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
        if self.last <= most || cfg!(planted = "any_number") {
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

/// What the manifest says, all edits applied.
#[derive(Debug, Default)]
pub(crate) struct ManifestState {
    pub database_id: u64,
    pub next_file: FileId,
    pub last_seqno: SeqNo,
    pub log_floor: LogFloor,
    pub keyspaces: BTreeMap<KeyspaceId, KeyspaceState>,
    pub values: BTreeMap<FileId, ValueFileMeta>,
    /// Bytes known to be dead, by value file.
    pub garbage: BTreeMap<FileId, u64>,
}

/// One keyspace in the manifest.
#[derive(Debug, Default)]
pub(crate) struct KeyspaceState {
    pub name: String,
    pub options: String,
    pub flushed: SeqNo,
    pub tables: BTreeMap<FileId, TableAdded>,
    pub boundaries: Vec<Box<[u8]>>,
}

/// The state that the manifest of `dir` describes; `None` when there is no manifest.
///
/// # Errors
/// I/O errors and corruption.
pub(crate) fn read_manifest(dir: &Dir) -> Result<Option<ManifestState>> {
    if dir.len(names::MANIFEST)?.is_none() {
        return Ok(None);
    }
    let bytes = read_whole(dir, names::MANIFEST, IoSource::Recovery)?;
    let path = dir.file(names::MANIFEST);
    let reader = manifest::ManifestReader::new(&bytes).map_err(|e| e.of(&path))?;
    let mut state = ManifestState { database_id: reader.database_id(), ..ManifestState::default() };
    for record in reader {
        let record = record.map_err(|e| e.of(&path))?;
        state.apply(record.edit).map_err(|what| {
            Corruption::new(record.offset, "manifest record", "an edit that fits the state before it", what).of(&path)
        })?;
    }
    Ok(Some(state))
}

/// All bytes of a file.
///
/// # Errors
/// I/O errors.
pub(crate) fn read_whole(dir: &Dir, name: &str, source: IoSource) -> Result<Vec<u8>> {
    let reader = dir.open(name)?;
    let mut bytes = vec![0; usize::try_from(reader.len()).unwrap_or(usize::MAX)];
    reader.read_at(&mut bytes, 0, source)?;
    Ok(bytes)
}

impl ManifestState {
    fn apply(&mut self, edit: Edit) -> std::result::Result<(), String> {
        self.next_file = self.next_file.max(edit.next_file.unwrap_or(0));
        self.last_seqno = self.last_seqno.max(edit.last_seqno.unwrap_or(0));
        self.log_floor = edit.log_floor.unwrap_or(self.log_floor);
        for change in edit.keyspaces {
            match change {
                KeyspaceEdit::Created { id, name, options } => {
                    let new = KeyspaceState { name, options, ..KeyspaceState::default() };
                    if self.keyspaces.insert(id, new).is_some() {
                        return Err(format!("keyspace {id} created twice"));
                    }
                }
                KeyspaceEdit::Configured { id, options } => self.keyspace(id)?.options = options,
                KeyspaceEdit::Dropped { id } => {
                    self.keyspace(id)?;
                    self.keyspaces.remove(&id);
                    self.values.retain(|_, file| file.keyspace != id);
                }
                KeyspaceEdit::Flushed { id, seqno } => {
                    let keyspace = self.keyspace(id)?;
                    keyspace.flushed = keyspace.flushed.max(seqno);
                }
            }
        }
        edit.levels.into_iter().try_for_each(|change| self.apply_tables(change))?;
        self.apply_values(edit.values)
    }

    fn apply_values(&mut self, change: ValueEdit) -> std::result::Result<(), String> {
        for id in change.removed {
            if self.values.remove(&id).is_none() {
                return Err(format!("value file {id} removed, which is not there"));
            }
        }
        for file in change.added {
            let id = file.id;
            self.keyspace(file.keyspace)?;
            if self.values.insert(id, file).is_some() {
                return Err(format!("value file {id} added twice"));
            }
        }
        for (id, bytes, _) in change.garbage {
            let sum = self.garbage.entry(id).or_default();
            *sum = sum.saturating_add(bytes);
        }
        for (id, tags) in change.tagged {
            if let Some(file) = self.values.get_mut(&id) {
                file.tags |= tags;
            }
        }
        let values = &self.values;
        self.garbage.retain(|id, _| values.contains_key(id));
        Ok(())
    }

    /// What it says of the value files of each keyspace.
    fn value_edits(&self) -> BTreeMap<KeyspaceId, ValueEdit> {
        let mut edits: BTreeMap<KeyspaceId, ValueEdit> = BTreeMap::new();
        for (&id, file) in &self.values {
            let edit = edits.entry(file.keyspace).or_default();
            edit.added.push(file.clone());
            edit.garbage.extend(self.garbage.get(&id).map(|&bytes| (id, bytes, 0)));
        }
        edits
    }

    fn apply_tables(&mut self, change: LevelEdit) -> std::result::Result<(), String> {
        let keyspace = self.keyspace(change.keyspace)?;
        for removed in change.removed {
            if keyspace.tables.remove(&removed.table).is_none() {
                return Err(format!("table {} removed, which is not there", removed.table));
            }
        }
        for added in change.added {
            let id = added.table.id;
            if keyspace.tables.insert(id, added).is_some() {
                return Err(format!("table {id} added twice"));
            }
        }
        keyspace.boundaries.extend(change.boundaries);
        Ok(())
    }

    fn keyspace(&mut self, id: KeyspaceId) -> std::result::Result<&mut KeyspaceState, String> {
        self.keyspaces.get_mut(&id).ok_or_else(|| format!("a change of keyspace {id}, which is not there"))
    }

    /// The oldest log still needed was durable, with its name, before the manifest named it. When it is not there, it was
    /// deleted by hand, or because a later manifest did not need it any more: then the end of this one is missing.
    ///
    /// # Errors
    /// Corruption.
    pub fn check_logs(&self, dir: &Dir, files: &Files) -> Result<()> {
        let name = names::log(self.log_floor.log);
        if files.logs.contains(&self.log_floor.log) || cfg!(planted = "overlook_lost_log") {
            return Ok(());
        }
        let found = "no such file: it was deleted, or MANIFEST is older than the other files or cut short";
        Err(Corruption::new(0, "log", format!("{name}, which MANIFEST says is needed"), found).of(dir.file(&name)))
    }

    /// The trees that it lists.
    ///
    /// # Errors
    /// I/O errors and corruption.
    pub fn open_trees(
        &self,
        dir: &Dir,
        context: &Arc<TableContext>,
        shared: (&Memory, &Arc<Unsynced>),
        next_file: &Arc<AtomicU64>,
        present: &[FileId],
        writes: bool,
    ) -> Result<Vec<Arc<Tree>>> {
        let unlisted = present.iter().copied().filter(|id| !self.values.contains_key(id));
        let (mut listed, owners) = (self.value_edits(), owners(dir, unlisted)?);
        let open = |(&id, keyspace): (&KeyspaceId, &KeyspaceState)| {
            let options: KeyspaceOptions = toml::from_str(&keyspace.options).map_err(|e| {
                Error::invalid(
                    format!("options of keyspace `{}` in the manifest", keyspace.name),
                    e.message().to_owned(),
                )
            })?;
            let added = keyspace.tables.values().cloned().collect();
            let boundaries = keyspace.boundaries.clone();
            let edit = LevelEdit { keyspace: id, added, boundaries, ..LevelEdit::default() };
            let version = presets::empty_version(&options, context)?
                .apply(&edit, &mut |meta| Table::open(dir, Arc::clone(meta), context))?;
            let home = value_home(dir, id, next_file, shared, writes);
            let (listed, present) = (listed.remove(&id).unwrap_or_default(), owners.of(id));
            let values = ValueHome { home, listed: &listed, present: &present };
            Ok(Arc::new(Tree::new(id, keyspace.name.clone(), options, version, keyspace.flushed, values)?))
        };
        self.keyspaces.iter().map(open).collect()
    }
}

impl Engine {
    /// Puts the commits of the logs back, and writes them as tables.
    fn replay(&self, found: &Logs) -> Result<()> {
        for log in &found.logs {
            each_record(&self.dir, log, |record| self.replay_record(record, log))?;
        }
        if self.options.access == Access::ReadWrite { self.flush_replayed(&found.logs) } else { Ok(()) }
    }

    fn replay_record(&self, record: &LogRecord<'_>, log: &FoundLog) -> Result<()> {
        let writes = self.options.access == Access::ReadWrite;
        let mut fed: BTreeMap<KeyspaceId, Arc<Tree>> = BTreeMap::new();
        for (seqno, operation) in (record.first_seqno..).zip(record.operations()) {
            let operation = operation.map_err(|e| e.of(self.dir.file(&names::log(log.id))))?;
            if let Some(tree) = self.tree(operation.keyspace()).filter(|tree| seqno > tree.flushed()) {
                replay_operation(&tree, &operation, seqno, log.id, writes)?;
                fed.insert(tree.keyspace, tree);
            }
            if cfg!(planted = "half_batch") && !log.bytes.is_multiple_of(2) {
                break;
            }
        }
        if writes { self.flush_overfull(fed.values()) } else { Ok(()) }
    }

    /// Keeps replay within the memory limit: a memtable that has grown full becomes tables at once.
    fn flush_overfull<'a>(&self, fed: impl Iterator<Item = &'a Arc<Tree>>) -> Result<()> {
        let overfull = |p: &&Arc<Tree>| p.view().active.memtable.bytes() as u64 > self.plan.memtable;
        fed.filter(overfull).try_for_each(|tree| {
            tree.seal(&self.changing([tree.keyspace]));
            self.flush_sealed(tree)
        })
    }

    /// Writes everything replayed as tables; from then on the old logs are not needed.
    fn flush_replayed(&self, logs: &[FoundLog]) -> Result<()> {
        *self.replaying.hold() = None;
        for tree in self.trees().iter() {
            if !tree.view().active.memtable.is_empty() {
                tree.seal(&self.changing([tree.keyspace]));
            }
            self.flush_sealed(tree)?;
        }
        if logs.is_empty() { Ok(()) } else { self.retire_logs() }
    }

    /// Writes the sealed memtables of a tree. Where the disk has no room, they stay, with their logs: the database is open all the
    /// same, if need be beyond its memory limit.
    fn flush_sealed(&self, tree: &Arc<Tree>) -> Result<()> {
        while !tree.view().sealed.is_empty() {
            match self.noting_room(tree, Job::Flush, || self.flush_oldest(tree)) {
                Err(Error::Full { .. }) => break,
                other => other?,
            }
        }
        Ok(())
    }

    /// Deletes what nothing refers to: remains of jobs that a crash cut short.
    fn remove_unreferenced(&self, files: &Files) -> Result<()> {
        let trees = self.trees();
        let live: BTreeSet<FileId> =
            trees.iter().flat_map(|p| p.view().version.tables().map(|t| t.meta().id).collect::<Vec<_>>()).collect();
        for id in files.tables.iter().filter(|id| !live.contains(id)) {
            self.dir.remove(&names::table(*id))?;
        }
        let live: BTreeSet<FileId> = trees.iter().flat_map(|p| p.placement().live_files()).collect();
        for id in files.values.iter().filter(|id| !live.contains(id)) {
            self.dir.remove(&names::value(*id))?;
        }
        let kept: BTreeSet<FileId> = self.wal.hold().files().iter().map(|f| f.id).collect();
        for id in files.logs.iter().filter(|id| !kept.contains(id)) {
            self.dir.remove(&names::log(*id))?;
        }
        Ok(())
    }
}

fn replay_operation(tree: &Arc<Tree>, operation: &Operation<'_>, seqno: SeqNo, log: u64, writes: bool) -> Result<()> {
    let (key, act, replayed) = match *operation {
        Operation::Put { key, value, .. } => (key, Act::Put(value), Replayed::Whole(Routed::Put { key, value })),
        Operation::Pointer { key, pointer, .. } => (key, Act::Pointer(pointer), Replayed::Pointer { key }),
        Operation::Delete { key, .. } => (key, Act::Delete, Replayed::Whole(Routed::Delete { key })),
        Operation::DeleteRange { start, end, .. } => {
            (start, Act::DeleteRange(end), Replayed::Whole(Routed::DeleteRange { start, end }))
        }
    };
    if writes {
        tree.placement().replay(replayed, seqno)?;
    }
    apply(&Op { tree, key, act }, seqno, log);
    Ok(())
}
