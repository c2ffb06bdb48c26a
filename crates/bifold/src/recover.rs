//! Opening a database: after a clean close, a killed process, a power loss, or a crash during an earlier recovery.
//!
//! ```text
//! 1 lock   2 manifest ─▶ which tables and keyspaces there are   3 begin a new log
//! 4 write the manifest anew, synced (MANIFEST.tmp, rename)   5 sync and replay the old logs, oldest first, into memtables; full ones are flushed on the way
//! 6 flush the rest    7 delete what nothing refers to
//! ```
//!
//! * Nothing is served before 6 is durable, so what a reader was shown is never lost later, even if the crash came with a
//!   failed sync.
//! * Every step may be cut short by another crash: 4 is one rename; each flush in 5 and 6 is installed by one manifest
//!   record that also says up to where replay may skip; 7 only deletes.
//! * A **torn tail** (the log ends inside a record, or sectors of its last record were never written) is where the
//!   crash happened: it and everything behind it is left out. Damage anywhere else is an error naming file and offset.
//! * Commits in the logs have consecutive numbers, from one that the manifest names. A gap within a log is damage. A gap
//!   between two logs, or before the first, is where a power loss cut the older one at the end of a record or took its
//!   name, unless the younger one shows that the older had been synced.

use std::{
    collections::{BTreeMap, BTreeSet},
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use bifold_contract::{
    Corruption, Edit, Error, FileId, IoSource, KeyspaceEdit, KeyspaceId, LevelEdit, LogFloor, Pointer, Result, SeqNo,
    ValueEdit, ValueFileMeta,
    edit::TableAdded,
    placement::{Replayed, Routed},
};
use bifold_format::{
    log::{Before, LogReader, LogRecord, Operation, Tail},
    manifest,
    names::{self, FileKind},
    pointer,
};
use bifold_index::table::{Table, TableContext};
use bifold_io::{Dir, Env, LockMode};
use bifold_values::parts::{budget::Memory, unsynced::Unsynced, value_files::owners};

use crate::{
    engine::{Engine, Recovered, value_home},
    install::state_of,
    manifest::ManifestFile,
    memory::MemoryPlan,
    options::{Access, IfMissing, KeyspaceOptions, Options},
    presets::{self, ValueHome},
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
    let exists = dir.len(names::MANIFEST)?.is_some();
    if !exists && (!writes || options.if_missing == IfMissing::Fail) {
        return Err(Error::NotFound { path: path.into() });
    }
    if writes {
        make_durable_dir(&dir)?;
    }
    let plan = MemoryPlan::of(&options);
    let mode = if writes { LockMode::Exclusive } else { LockMode::Shared };
    let (dir, lock) = dir.lock_for_use(names::LOCK, mode, plan.appending(options.reads))?;
    // Looked at again under the lock: another process may have created the database meanwhile.
    let files = Files::list(&dir)?;
    let state = match read_manifest(&dir)? {
        Some(state) => {
            state.check_logs(&dir, &files)?;
            state
        }
        None => {
            refuse_leftovers(&dir)?;
            let id = bifold_format::checksum::checksum(path.as_os_str().as_encoded_bytes(), 0, 0);
            let id = id ^ env.clock.now().as_nanos() as u64;
            let log_floor = LogFloor { log: files.logs.first().copied().unwrap_or(0), first: 1 };
            ManifestState { database_id: id, log_floor, ..ManifestState::default() }
        }
    };
    let tables = Arc::new(TableContext::new(plan.cache, plan.metadata));
    let (value_memory, unsynced) = (Memory::new(plan.filters, plan.buffers), Arc::<Unsynced>::default());
    let next_file = Arc::new(AtomicU64::new(state.next_file.max(files.last + 1).max(1)));
    let trees = state.open_trees(&dir, &tables, (&value_memory, &unsynced), &next_file, &files.values, writes)?;
    let logs: Vec<FileId> = files.logs.iter().copied().filter(|&id| id >= state.log_floor.log).collect();
    let next_seqno = state.last_seqno + 1;
    let replaying = (!logs.is_empty()).then_some(state.log_floor);
    let (manifest, wal) = if writes {
        let log = next_file.fetch_add(1, Ordering::Relaxed);
        let wal = Wal::begin(&dir, log, next_seqno)?.with_values(&unsynced);
        if cfg!(not(planted = "unnamed_log_floor")) {
            dir.sync()?;
        }
        let floor = replaying.unwrap_or_else(|| wal.floor_at(log));
        let snapshot = state_of(&trees, next_file.load(Ordering::Relaxed), state.last_seqno, floor);
        (ManifestFile::create(&dir, state.database_id, &snapshot)?, wal)
    } else {
        (ManifestFile::frozen(&dir, state.database_id), Wal::none(&dir, next_seqno))
    };
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
        visible: state.last_seqno,
        replaying,
        next_file,
        trees,
    });
    engine.replay(&logs, &state)?;
    if writes {
        engine.remove_unreferenced(&files)?;
    }
    Ok(engine)
}

/// Makes the directory, and its entry in the one above durable.
fn make_durable_dir(dir: &Dir) -> Result<()> {
    dir.create_dir()?;
    let above = dir.path().parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new("."));
    dir.sibling(above).sync()
}

/// Without a manifest a directory must not hold tables or logs: they would be deleted as leftovers.
fn refuse_leftovers(dir: &Dir) -> Result<()> {
    let files = Files::list(dir)?;
    match files.tables.first().map(|&id| names::table(id)).or(files.values.first().map(|&id| names::value(id))) {
        None => Ok(()),
        Some(name) => {
            Err(Corruption::new(0, "database directory", "a MANIFEST beside the tables", format!("{name} alone"))
                .of(dir.file(names::MANIFEST)))
        }
    }
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

impl Files {
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
                FileKind::Manifest | FileKind::Temporary | FileKind::Lock | FileKind::Unknown => continue,
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
            *self.garbage.entry(id).or_default() += bytes;
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

    fn open_trees(
        &self,
        dir: &Dir,
        context: &Arc<TableContext>,
        shared: (&Memory, &Arc<Unsynced>),
        next_file: &Arc<AtomicU64>,
        present: &[FileId],
        writes: bool,
    ) -> Result<Vec<Arc<Tree>>> {
        let unlisted = present.iter().copied().filter(|id| !self.values.contains_key(id));
        let (mut listed, mut owned) = (self.value_edits(), owners(dir, unlisted)?);
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
            let (listed, present) = (listed.remove(&id).unwrap_or_default(), owned.remove(&id).unwrap_or_default());
            let values = ValueHome { home, listed: &listed, present: &present };
            Ok(Arc::new(Tree::new(id, keyspace.name.clone(), options, version, keyspace.flushed, values)?))
        };
        self.keyspaces.iter().map(open).collect()
    }
}

impl Engine {
    /// Puts the commits of `logs` back and writes them as tables.
    fn replay(&self, logs: &[FileId], state: &ManifestState) -> Result<()> {
        let mut next = state.log_floor.first;
        let writes = self.options.access == Access::ReadWrite;
        let mut adopted = Vec::new();
        self.pass_over_numbers_in(logs)?;
        for &log in logs {
            let name = names::log(log);
            if writes {
                self.dir.open_append(&name, IoSource::Recovery)?.sync()?;
            }
            let bytes = read_whole(&self.dir, &name, IoSource::Recovery)?;
            adopted.push(LogFile { id: log, bytes: bytes.len() as u64, first: next });
            let tail = self.replay_log(log, &bytes, state.next_file, &mut next)?;
            let Tail::Torn { offset } = tail else { continue };
            if cfg!(planted = "serve_torn_tail") {
                continue;
            }
            // Whatever later logs hold was committed after what is lost here.
            let later: Vec<FileId> = logs.iter().copied().filter(|&later| later > log).collect();
            self.refuse_if_synced(&name, offset, &later)?;
            adopted.extend(later.iter().map(|&id| LogFile { id, bytes: 0, first: next }));
            break;
        }
        self.refuse_if_moves_are_lost(logs, next)?;
        let last = (next - 1).max(self.visible());
        self.visible.store(last, Ordering::Release);
        self.wal.hold().resume_at(last + 1);
        // Not `last`, which may be that of a commit that is lost: the manifest only says which numbers were in use.
        self.trees().iter().try_for_each(|p| p.placement.settle(next - 1))?;
        if !writes {
            return Ok(());
        }
        self.wal.hold().adopt(&adopted);
        self.flush_replayed(logs)?;
        self.trees().iter().try_for_each(|p| p.placement.cut())
    }

    /// No new value file gets a number that a log has a pointer to, were it one that a power loss has taken away: the pointer
    /// would lead into the new file.
    fn pass_over_numbers_in(&self, logs: &[FileId]) -> Result<()> {
        for &log in logs {
            let bytes = read_whole(&self.dir, &names::log(log), IoSource::Recovery)?;
            // Whatever is damaged is met again, and told of, when the log is replayed.
            let records = LogReader::new(&bytes, log).into_iter().flatten().flatten();
            let operations = records.flat_map(|record| record.operations().flatten().collect::<Vec<_>>());
            let pointers = operations.filter_map(|operation| match operation {
                Operation::Pointer { pointer, .. } => pointer::decode(pointer).ok(),
                _ => None,
            });
            pointers.for_each(|pointer| self.pass_over(pointer.file));
        }
        Ok(())
    }

    /// A log that ends torn was not synced in full, so no later log has been.
    fn refuse_if_synced(&self, name: &str, offset: u64, later: &[FileId]) -> Result<()> {
        for &log in later {
            let bytes = read_whole(&self.dir, &names::log(log), IoSource::Recovery)?;
            if was_synced(&bytes, log) {
                let expected = format!("a whole record: it was synced before commits of {}", names::log(log));
                return Err(Corruption::new(offset, "log record", expected, "a torn one").of(self.dir.file(name)));
            }
        }
        Ok(())
    }

    /// Value files are deleted when the moves out of them are durable. Logs that end before those have lost their end.
    fn refuse_if_moves_are_lost(&self, logs: &[FileId], next: SeqNo) -> Result<()> {
        let needed = self.trees().iter().map(|p| p.placement.durable_before()).max().unwrap_or(0);
        match logs.last() {
            Some(&log) if needed >= next => {
                let name = names::log(log);
                let end = self.dir.len(&name)?.unwrap_or(0);
                let expected = format!("commits up to {needed}, which were synced");
                let found = format!("commits up to {}", next - 1);
                Err(Corruption::new(end, "log", expected, found).of(self.dir.file(&name)))
            }
            _ => Ok(()),
        }
    }

    fn replay_log(&self, log: FileId, bytes: &[u8], next_file: FileId, next: &mut SeqNo) -> Result<Tail> {
        let path = self.dir.file(&names::log(log));
        let mut reader = LogReader::new(bytes, log).map_err(|e| e.of(&path))?;
        let trees: BTreeMap<KeyspaceId, Arc<Tree>> = self.trees().iter().map(|p| (p.keyspace, Arc::clone(p))).collect();
        let mut is_first = true;
        let writes = self.options.access == Access::ReadWrite;
        for record in reader.by_ref() {
            let record = record.map_err(|e| e.of(&path))?;
            let forgets =
                cfg!(planted = "forget_log_gap") && self.replaying.hold().is_some_and(|floor| floor.first == *next);
            let expected = if forgets { record.first_seqno } else { *next };
            if expected != record.first_seqno && cfg!(not(planted = "serve_torn_tail")) {
                if is_first && !was_synced(bytes, log) {
                    return Ok(Tail::Torn { offset: record.offset });
                }
                let expected = format!("commit {expected}, the next one");
                let found = format!("commit {}: records or a log before it are missing", record.first_seqno);
                return Err(Corruption::new(record.offset, "log record", expected, found).of(path));
            }
            is_first = false;
            if let Some(pointer) = dangling(&record, &trees).map_err(|e| e.of(&path))? {
                if synced_behind(bytes, log, record.offset) {
                    let file = self.dir.file(&names::value(pointer.file));
                    let expected = format!("the value of a commit in {} that was synced", names::log(log));
                    return Err(Corruption::new(pointer.offset, "value record", expected, "no whole record").of(file));
                }
                return Ok(Tail::Torn { offset: record.offset });
            }
            let mut seqno = record.first_seqno;
            for operation in record.operations() {
                let operation = operation.map_err(|e| e.of(&path))?;
                let keyspace = operation.keyspace();
                // One that was dropped is silently passed over; its number is below.
                if FileId::from(keyspace) >= next_file {
                    let known = format!("a keyspace below {next_file}, which MANIFEST says is the next number");
                    return Err(Corruption::new(record.offset, "log record", known, keyspace.to_string()).of(path));
                }
                if let Some(tree) = trees.get(&keyspace).filter(|p| seqno > p.flushed()) {
                    replay_operation(tree, &operation, seqno, log, writes)?;
                }
                seqno += 1;
                if cfg!(planted = "half_batch") && !bytes.len().is_multiple_of(2) {
                    break;
                }
            }
            *next = seqno;
            self.flush_overfull()?;
        }
        Ok(reader.tail())
    }

    /// Keeps replay within the memory limit: a memtable that has grown full becomes tables at once.
    fn flush_overfull(&self) -> Result<()> {
        let overfull = |p: &&Arc<Tree>| p.view().active.memtable.bytes() as u64 > self.plan.memtable;
        if self.options.access == Access::ReadOnly {
            return Ok(());
        }
        let trees = self.trees();
        trees.iter().filter(overfull).try_for_each(|tree| {
            tree.seal();
            self.flush_oldest(tree)
        })
    }

    /// Writes everything replayed as tables; from then on the old logs are not needed.
    fn flush_replayed(&self, logs: &[FileId]) -> Result<()> {
        *self.replaying.hold() = None;
        for tree in self.trees().iter().filter(|p| !p.view().active.memtable.is_empty()) {
            tree.seal();
            self.flush_oldest(tree)?;
        }
        if logs.is_empty() { Ok(()) } else { self.retire_logs() }
    }

    /// Deletes what nothing refers to: remains of jobs that a crash cut short.
    fn remove_unreferenced(&self, files: &Files) -> Result<()> {
        let trees = self.trees();
        let live: BTreeSet<FileId> =
            trees.iter().flat_map(|p| p.view().version.tables().map(|t| t.meta().id).collect::<Vec<_>>()).collect();
        for id in files.tables.iter().filter(|id| !live.contains(id)) {
            self.dir.remove(&names::table(*id))?;
        }
        let live: BTreeSet<FileId> = trees.iter().flat_map(|p| p.placement.live_files()).collect();
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

/// Whether a sync happened while this log was the current one. All older logs were synced before it then, so commits
/// missing from their ends are damage; otherwise a power loss may have cut them off at the end of a record.
fn was_synced(bytes: &[u8], log: FileId) -> bool {
    let records = LogReader::new(bytes, log).into_iter().flatten();
    records.flatten().any(|record| record.before == Before::Synced)
}

/// Whether a commit was synced that stands behind `offset` of this log.
fn synced_behind(bytes: &[u8], log: FileId, offset: u64) -> bool {
    let records = LogReader::new(bytes, log).into_iter().flatten();
    records.flatten().any(|record| record.offset > offset && record.before == Before::Synced)
}

/// A pointer of a commit whose value is not there, if any: the power went before it was on the disk.
fn dangling(
    record: &LogRecord<'_>,
    trees: &BTreeMap<KeyspaceId, Arc<Tree>>,
) -> std::result::Result<Option<Pointer>, Corruption> {
    if cfg!(planted = "trust_pointers") {
        return Ok(None);
    }
    for (seqno, operation) in (record.first_seqno..).zip(record.operations()) {
        let Operation::Pointer { keyspace, pointer, .. } = operation? else { continue };
        let Some(tree) = trees.get(&keyspace).filter(|p| seqno > p.flushed()) else { continue };
        let pointer = pointer::decode(pointer).map_err(|damage| damage.at(record.offset))?;
        if !tree.placement.resolves(pointer) {
            return Ok(Some(pointer));
        }
    }
    Ok(None)
}

fn replay_operation(tree: &Arc<Tree>, operation: &Operation<'_>, seqno: SeqNo, log: u64, writes: bool) -> Result<()> {
    let mut encoded = Vec::new();
    let (key, mut act, replayed) = match *operation {
        Operation::Put { key, value, .. } => (key, Act::Put(value), Replayed::Whole(Routed::Put { key, value })),
        Operation::Delete { key, .. } => (key, Act::Delete, Replayed::Whole(Routed::Delete { key })),
        Operation::DeleteRange { start, end, .. } => {
            (start, Act::DeleteRange(end), Replayed::Whole(Routed::DeleteRange { start, end }))
        }
        Operation::Pointer { key, pointer, .. } => {
            let decoded = pointer::decode(pointer).map_err(|damage| damage.of(names::log(log)))?;
            (key, Act::Pointer(pointer), Replayed::Pointer { key, pointer: decoded })
        }
    };
    if writes && let Some(pointer) = tree.placement.replay(replayed, seqno)? {
        pointer::encode(pointer, &mut encoded);
        act = Act::Pointer(&encoded);
    }
    apply(&Op { tree, key, act }, seqno, log);
    Ok(())
}
