//! Opens a store: a new one, or one after a clean close, a killed process, a power loss, a crash during recovery.
//!
//! ```text
//! look    1 lock   2 manifest   3 value files, with what follows the lengths in the manifest   4 the index's mark
//!         5 logs ─▶ which commits happened: all errors are found by now, and nothing is changed yet
//! finish  6 truncate value files and logs after the last commit; write again, in place, what may not be durable
//!         7 a new log; a new manifest with all lengths, synced   8 delete files that it does not name
//! replay  9 commits that the index may not have ─▶ layers ─▶ the index; it is synced, and the old logs are deleted
//! ```
//!
//! Everything that is replayed is durable since 6 and 7, so the index never gets what another crash may take.

use std::{
    collections::BTreeSet,
    path::Path,
    sync::{Arc, Mutex, atomic::AtomicU64},
};

use bifold_contract::{Corruption, Error, FileId, LogFloor, Result, SeqNo, planted};
use bifold_format::{checksum::checksum, frame::FILE_HEADER_BYTES, names};
use bifold_io::{Dir, Env, LockMode, fs, machine};
use bifold_values::{
    logs::{FoundLog, FoundLogs, NUMBERS_AHEAD_MAX, each_record},
    parts::{
        budget::Memory,
        large_files::LargeFiles,
        unsynced::Unsynced,
        value_files::{FileAccess, StoreContext, ValueFiles, name_again, owners, restore_names},
    },
    placement::{Replayed, WriteOp},
    placements::{Settings, hashkv::HashKv, wisckey::WiscKey},
    store::ValueStore,
};

use crate::{
    core::{Core, Numbers, Snapshots, Upto, hold},
    found::{Files, entry_of, find_logs},
    index::{Entry, ForeignIndex, ForeignView, MARK_KEY, Mark},
    layers::Layers,
    log::{KEYSPACE, Log, LogFile},
    manifest::{Manifest, Recorded, whole},
    options::{Options, Placement},
};

/// Memory for the buffers through which GC copies, in bytes.
const BUFFER_BYTES: u64 = 8 << 20;

/// Files with a slot of the append region: two for each group and the log.
const SLOTS_PER_GROUP: usize = 2;

/// Opens the store in `path` over `index`, or creates one.
pub(crate) fn open<I: ForeignIndex>(env: &Env, path: &Path, index: I, options: Options) -> Result<Core<I>> {
    options.check()?;
    let dir = Dir::new(Arc::clone(&env.fs), path);
    dir.create_dir_durably()?;
    let (dir, lock) = dir.lock_for_use(names::LOCK, LockMode::Exclusive, appending(&options))?;
    restore_names(&dir, true)?;
    let files = Files::list(&dir)?;
    let recorded = match Recorded::read(&dir)? {
        Some(recorded) => recorded,
        None => new_store(env, &dir, &files, options.placement)?,
    };
    check_files(&dir, &recorded, (&files, options.placement))?;
    let numbers = Arc::new(Numbers::from(recorded.next_file.max(files.last + 1).max(u64::from(KEYSPACE) + 1)));
    let settings = Settings::new(options.values);
    let values = values_of(&dir, &recorded, (&numbers, &settings), &files, &options)?;
    let marked = marked(&index, &recorded)?;
    let logs: Vec<FileId> = files.logs.iter().copied().filter(|&id| id >= recorded.log_floor.log).collect();
    let upto = (recorded.flushed, marked);
    let found = find_logs(&dir, &values, (&logs, recorded.log_floor), upto, recorded.next_file)?;
    numbers.raise_above(found.last_file);
    values.finish_recovery(found.next - 1, found.durable)?;
    let (manifest, log) = finish(&dir, (&recorded, &found), &values, &numbers)?;
    let core = Core {
        layers: Layers::new(log.ids().last().copied().unwrap_or_default()),
        visible: AtomicU64::new(found.next - 1),
        durable: Mutex::new(found.next - 1),
        manifest: Mutex::new(manifest),
        log: Mutex::new(log),
        dir,
        index,
        options,
        settings,
        values,
        numbers,
        health: Default::default(),
        gc: Mutex::default(),
        snapshots: Snapshots::default(),
        counters: Default::default(),
        signal: Default::default(),
        _lock: lock,
    };
    core.remove_unnamed(&files)?;
    core.replay(&found, if planted!("over_replays_from_mark") { marked } else { recorded.flushed })?;
    Ok(core)
}

fn appending(options: &Options) -> fs::Appending {
    let groups = options.values.hashkv.groups_max as usize;
    fs::Appending {
        files_max: SLOTS_PER_GROUP * groups + 2,
        reads: fs::Reads::Auto,
        mapped_bytes_max: machine::memory_bytes() / 2,
    }
}

/// What the manifest of a new store will say. Without a manifest a directory must not hold values or commits: that is a
/// store that has lost its manifest.
fn new_store(env: &Env, dir: &Dir, files: &Files, placement: Placement) -> Result<Recorded> {
    let mut found = files.values.first().map(|&id| names::value(id));
    for name in files.logs.iter().map(|&id| names::log(id)) {
        // A crash during creation leaves at most a header.
        if dir.len(&name)?.is_some_and(|len| len > FILE_HEADER_BYTES as u64) {
            found = found.or(Some(name));
        }
    }
    if let Some(name) = found {
        let expected = "the MANIFEST of the store that these files belong to";
        let found = format!("no such file, but {name}: it was lost, or a copy into this directory did not finish");
        return Err(Corruption::new(0, "directory", expected, found).of(dir.file(names::MANIFEST)));
    }
    let path = dir.path().as_os_str().as_encoded_bytes();
    let store = checksum(path, 0, 0) ^ env.clock.unix_now().as_nanos() as u64;
    let log_floor = LogFloor { log: files.logs.first().copied().unwrap_or(0), first: 1 };
    Ok(Recorded::of_new(store, placement, log_floor))
}

/// Checks that the files are those of the manifest, and the placement is that of the store.
fn check_files(dir: &Dir, recorded: &Recorded, (files, placement): (&Files, Placement)) -> Result<()> {
    if recorded.placement != placement {
        let (has, asked) = (recorded.placement.name(), placement.name());
        let reason = format!("the store in {} has `{has}`, not `{asked}`: open it with `{has}`", dir.path().display());
        return Err(Error::invalid("placement", reason));
    }
    let floor = recorded.log_floor.log;
    if floor > 0 && recorded.next_file > 0 && !files.logs.contains(&floor) {
        let name = names::log(floor);
        let found = "no such file: it was deleted, or MANIFEST is older than the other files";
        let expected = format!("{name}, which MANIFEST says is needed");
        return Err(Corruption::new(0, "log", expected, found).of(dir.file(&name)));
    }
    let most = recorded.next_file + NUMBERS_AHEAD_MAX;
    if files.last > most {
        let expected = format!("numbers of files up to {most}: move the file with a larger one elsewhere");
        return Err(Corruption::new(0, "file name", expected, files.last.to_string()).of(dir.path()));
    }
    Ok(())
}

/// Up to which commit the index has everything. 0 for an index that has nothing yet.
fn marked(index: &impl ForeignIndex, recorded: &Recorded) -> Result<SeqNo> {
    let named = |damage: Corruption| damage.of(format!("the index ({})", index.name()));
    let mut found = None;
    index.get(MARK_KEY, &mut |bytes| found = Some(Mark::decode(bytes)))?;
    let mark = found.transpose().map_err(named)?;
    let expected = format!("the mark of the store {:016x} up to commit {} or later", recorded.store, recorded.flushed);
    let wrong = |found: String| Err(named(Corruption::new(0, "mark of the index", expected.clone(), found)));
    match mark {
        Some(mark) if mark.store != recorded.store => {
            wrong(format!("that of the store {:016x}: it is the index of another store", mark.store))
        }
        Some(mark) if mark.last < recorded.flushed => {
            wrong(format!("commit {}: the index is older than the value files, or has lost what it synced", mark.last))
        }
        Some(mark) => Ok(mark.last),
        None if recorded.flushed > 0 => {
            wrong("none: the index was emptied, or is not the one of this store".to_owned())
        }
        None => {
            let view = index.snapshot()?;
            let mut entries = view.scan(std::ops::Bound::Unbounded, std::ops::Bound::Unbounded)?;
            // A power loss may have taken the first mark and left entries.
            let is_unknown = recorded.next_file == 0 && entries.next().transpose()?.is_some();
            if is_unknown {
                return Err(Error::invalid("index", "a new store needs an empty index, and this one has entries"));
            }
            Ok(0)
        }
    }
}

fn values_of(
    dir: &Dir,
    recorded: &Recorded,
    (numbers, settings): (&Arc<Numbers>, &Settings),
    files: &Files,
    options: &Options,
) -> Result<ValueStore> {
    let new = Arc::clone(numbers);
    let context = StoreContext {
        dir: dir.clone(),
        keyspace: KEYSPACE,
        new_file: Arc::new(move || new.take()),
        access: FileAccess::Write,
        memory: Memory::new(options.filter_bytes, BUFFER_BYTES),
        unsynced: Arc::<Unsynced>::default(),
    };
    let unnamed = files.values.iter().copied().filter(|&id| !recorded.names(id));
    let present = owners(dir, unnamed)?.of(KEYSPACE);
    let listed = recorded.value_edit();
    let large = LargeFiles::open(&context, &listed.large);
    let files = Arc::new(ValueFiles::open(context, &listed, &present)?);
    let store = match options.placement {
        Placement::HashKv => ValueStore::new(Arc::clone(&files), HashKv::open(&files, settings)?),
        Placement::WiscKey => ValueStore::new(Arc::clone(&files), WiscKey::open(&files, settings)),
    };
    Ok(store.with_large(large))
}

/// Truncates the logs, begins the next one, and writes a manifest that records everything that stays.
fn finish(
    dir: &Dir,
    (recorded, found): (&Recorded, &FoundLogs),
    values: &ValueStore,
    numbers: &Numbers,
) -> Result<(Manifest, Log)> {
    found.logs.iter().try_for_each(|log| truncate(dir, log))?;
    // If nothing of a log is known to be durable, its name may not be either, whatever a sync of the directory says.
    let unnamed = found.logs.iter().filter(|log| log.durable_bytes == 0);
    name_again(dir, &unnamed.map(|log| names::log(log.id)).collect::<Vec<_>>())?;
    let id = numbers.take();
    let earlier = found.logs.iter().map(|log| LogFile { id: log.id, first: log.first, bytes: log.bytes }).collect();
    let log = Log::begin(dir, id, found.next, earlier)?;
    dir.sync()?;
    let floor = found.logs.first().map_or_else(|| log.floor_at(id), FoundLog::floor);
    let now = whole(recorded.placement, recorded.flushed, (numbers.next(), floor), values.recorded());
    Ok((Manifest::create(dir, recorded, &now)?, log))
}

/// Truncates a log after its last commit that happened, and makes durable what is not known to be.
fn truncate(dir: &Dir, log: &FoundLog) -> Result<()> {
    let name = names::log(log.id);
    if log.file_bytes > log.bytes {
        dir.truncate(&name, log.bytes)?;
    }
    if log.durable_bytes < log.bytes { dir.write_again(&name, log.durable_bytes) } else { Ok(()) }
}

impl<I: ForeignIndex> Core<I> {
    /// Deletes what the new manifest does not name: remains of jobs and commits that a crash interrupted.
    fn remove_unnamed(&self, files: &Files) -> Result<()> {
        let live: BTreeSet<FileId> = self.values.live_files().into_iter().collect();
        for id in files.values.iter().filter(|id| !live.contains(id)) {
            self.dir.remove(&names::value(*id))?;
        }
        let logs = hold(&self.log).ids();
        for id in files.logs.iter().filter(|id| !logs.contains(id)) {
            self.dir.remove(&names::log(*id))?;
        }
        // A log that came back with the power would be found between those that count.
        self.dir.sync()
    }

    /// Brings the index to where the logs are. It has all commits up to `flushed`, and of later ones some.
    fn replay(&self, found: &FoundLogs, flushed: SeqNo) -> Result<()> {
        for log in &found.logs {
            each_record(&self.dir, log, |record| {
                let mut entries: Vec<(Vec<u8>, Entry)> = Vec::new();
                let mut first = record.first_seqno;
                for (seqno, operation) in (record.first_seqno..).zip(record.operations()) {
                    let of_log = |damage: Corruption| damage.of(self.dir.file(&names::log(log.id)));
                    let (key, entry) = operation.and_then(|operation| entry_of(&operation)).map_err(of_log)?;
                    if seqno <= flushed {
                        first = seqno + 1;
                        continue;
                    }
                    self.values.replay(replayed(key, &entry), seqno)?;
                    entries.push((key.to_vec(), entry));
                }
                if planted!("over_replay_forgets_deletes") {
                    entries.retain(|(_, entry)| *entry != Entry::Deleted);
                }
                self.take_in(first, &entries)
            })?;
        }
        if found.logs.is_empty() {
            return Ok(());
        }
        // Notes in groups were perhaps written again.
        self.sync(Upto::Everything)?;
        self.checkpoint_all()
    }

    fn take_in(&self, first: SeqNo, entries: &[(Vec<u8>, Entry)]) -> Result<()> {
        let layer = self.layers.newest();
        layer.insert(first, entries.iter().map(|(key, entry)| (key.as_slice(), entry.clone())), None);
        if layer.bytes() < self.options.layer_bytes {
            return Ok(());
        }
        self.seal()?;
        self.drain(&mut hold(&self.manifest)).map(drop)
    }
}

fn replayed<'a>(key: &'a [u8], entry: &'a Entry) -> Replayed<'a> {
    match entry {
        Entry::Inline(value) => Replayed::Whole(WriteOp::Put { key, value }),
        Entry::Deleted => Replayed::Whole(WriteOp::Delete { key }),
        Entry::Separated(_) => Replayed::Pointer { key },
    }
}
