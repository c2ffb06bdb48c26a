//! Makes a generation: copies what the repository lacks, then writes the record.

use std::{
    collections::BTreeMap,
    io::{self, ErrorKind},
    path::Path,
    sync::{Arc, Mutex, PoisonError},
};

use bifold_contract::{Corruption, Error, IoSource, LargeFileMeta, Result, TableMeta, ValueFileMeta, planted};
use bifold_format::{
    backup::{self as format, CHUNK_BYTES, GenerationRecord, StoredFile, chunk_sum},
    frame::FILE_HEADER_BYTES,
    manifest, names,
    walk::{Met, Walk},
};
use bifold_index::table::{Table, TableContext};
use bifold_io::{Dir, Reader, Together, Writer, rate::RateBudget};
use bifold_values::{
    logs::check_header,
    parts::{large_files, value_files},
};

use super::{
    report::{BackupOptions, BackupProgress, Generation},
    repository::{Records, Repository},
};
use crate::{
    api::checkpoint::{self, Plan},
    engine::Engine,
    log::wal::LogFile,
};

/// The sums of a file's chunks.
type Sums = Arc<[u128]>;

/// The sums of immutable files of an open database, by name, with the length they are for. While a database is open,
/// no two of its files have the same name. A reader may outlive several writers: the next one may cut off
/// what recovery does not find in logs, and append other bytes to the same file. So a reader keeps the sums only of
/// files that are never appended to.
#[derive(Debug, Default)]
pub(crate) struct KnownSums(Mutex<BTreeMap<String, (u64, Sums)>>);

impl KnownSums {
    fn of(&self, name: &str, bytes: u64) -> Option<Sums> {
        let known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        known.get(name).filter(|(len, _)| *len == bytes).map(|(_, sums)| Arc::clone(sums))
    }

    /// Replaces all of them.
    fn set(&self, known: BTreeMap<String, (u64, Sums)>) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = known;
    }
}

/// Makes a generation in the repository in `path`.
///
/// # Errors
/// See [`Db::backup`](crate::Db::backup).
pub(crate) fn backup(
    engine: &Engine,
    known: &KnownSums,
    path: &Path,
    options: BackupOptions,
    report: &mut dyn FnMut(BackupProgress),
) -> Result<Generation> {
    engine.health.can_be_copied()?;
    let repository = Repository::claim(&engine.dir, path)?;
    let mut records = repository.records()?;
    repository.remove_unnamed(&mut records)?;
    let taken_at = engine.env.clock.unix_now().as_secs();
    let plan = checkpoint::plan(engine)?;
    let mut making = Making {
        engine,
        repository: &repository,
        number: records.next_number(),
        stored: stored_before(&records, plan.database_id),
        checked: Checked::of(&plan),
        rate: RateBudget::new(Arc::clone(&engine.env.clock), options.bytes_per_second),
        pending: Together::default(),
        made: Vec::new(),
        has_record: false,
        progress: BackupProgress::default(),
        report,
    };
    match making.make(&plan, known, taken_at) {
        Ok(record) => Ok(Generation::of(&record)),
        Err(error) => {
            making.undo();
            Err(error)
        }
    }
}

/// The stored files of a database, by their names in it.
type Stored = BTreeMap<String, Vec<StoredFile>>;

fn stored_before(records: &Records, database_id: u64) -> Stored {
    let mut stored = Stored::new();
    let of_database = records.whole.iter().filter(|record| record.database_id == database_id);
    for file in of_database.flat_map(|record| &record.files) {
        let same_name = stored.entry(file.name.clone()).or_default();
        if !same_name.contains(file) {
            same_name.push(file.clone());
        }
    }
    stored
}

/// What the manifest says about files, by which they are checked.
struct Checked {
    context: Arc<TableContext>,
    tables: BTreeMap<String, Arc<TableMeta>>,
    values: BTreeMap<String, ValueFileMeta>,
    large: BTreeMap<String, LargeFileMeta>,
}

impl Checked {
    fn of(plan: &Plan) -> Self {
        let state = &plan.state;
        let tables = state.levels.iter().flat_map(|change| &change.added);
        Self {
            context: Arc::new(TableContext::new(0, 0)),
            tables: tables.map(|added| (names::table(added.table.id), Arc::clone(&added.table))).collect(),
            values: state.values.added.iter().map(|file| (names::value(file.id), file.clone())).collect(),
            large: plan.large.iter().map(|file| (names::large(file.named.file), *file)).collect(),
        }
    }

    /// Checks every checksum in a file: a backup must not hold what was damaged before.
    fn check(&self, dir: &Dir, name: &str) -> Result<()> {
        if let Some(meta) = self.tables.get(name) {
            let damage = Table::open(dir, Arc::clone(meta), &self.context)?.verify();
            return damage.into_iter().next().map_or(Ok(()), Err);
        }
        if let Some(file) = self.large.get(name) {
            return large_files::verify(dir, file);
        }
        self.values.get(name).map_or(Ok(()), |meta| value_files::verify(dir, meta))
    }
}

/// A generation being made.
struct Making<'a> {
    engine: &'a Engine,
    repository: &'a Repository,
    number: u64,
    stored: Stored,
    checked: Checked,
    rate: RateBudget,
    /// Copies that are not yet synced.
    pending: Together<Writer>,
    /// Stored files that were made.
    made: Vec<String>,
    /// From now on there may be a record.
    has_record: bool,
    progress: BackupProgress,
    report: &'a mut dyn FnMut(BackupProgress),
}

impl Making<'_> {
    fn make(&mut self, plan: &Plan, known: &KnownSums, taken_at: u64) -> Result<GenerationRecord> {
        let logs: u64 = plan.logs.iter().map(|(log, _)| log.bytes).sum();
        self.progress.bytes_total = logs + plan.files.iter().map(|file| file.bytes).sum::<u64>();
        self.require_room(plan, logs)?;
        let (mut files, mut sums) = (Vec::new(), BTreeMap::new());
        for piece in &plan.files {
            let file = self.immutable(&piece.name, piece.bytes, known.of(&piece.name, piece.bytes))?;
            if !piece.may_grow || planted!("sums_of_cut_files") {
                sums.insert(piece.name.clone(), (piece.bytes, Arc::clone(&file.sums)));
            }
            files.push(file);
        }
        for (log, reader) in &plan.logs {
            self.check_log(*log, reader)?;
            files.push(self.copy(&names::log(log.id), log.bytes, reader)?);
        }
        known.set(sums);
        files.sort_unstable_by(|a, b| a.name.cmp(&b.name));
        let header = manifest::header(plan.database_id);
        let state = manifest::encode_record(&plan.state, plan.database_id, header.len() as u64);
        let record = GenerationRecord {
            number: self.number,
            database_id: plan.database_id,
            taken_at,
            source: self.engine.dir.path().display().to_string(),
            new_bytes: files.iter().filter(|file| file.stored_by == self.number).map(|file| file.bytes).sum(),
            files,
            manifest: [&header[..], &state].concat(),
        };
        if planted!("backup_record_first") {
            self.publish(&record)?;
        }
        self.sync_pending()?;
        self.repository.files.sync()?;
        if !planted!("backup_record_first") {
            self.publish(&record)?;
        }
        Ok(record)
    }

    /// Fails early if the files that are certainly new do not fit.
    fn require_room(&self, plan: &Plan, logs: u64) -> Result<()> {
        let is_new = |name: &str| !self.stored.contains_key(name);
        let new = plan.files.iter().filter(|file| is_new(&file.name)).map(|file| file.bytes).sum::<u64>() + logs;
        match self.repository.files.free_bytes() {
            Some(free) if free < new => {
                let reason = format!(
                    "{free} bytes are free and the backup takes {new}; older generations are as they were: prune some, \
                     or make room"
                );
                let path = self.repository.root.path();
                Err(Error::io("back up to", path, io::Error::new(ErrorKind::StorageFull, reason)))
            }
            _ => Ok(()),
        }
    }

    /// A table, value file or large value: the stored one with the same content, or a new copy.
    fn immutable(&mut self, name: &str, bytes: u64, known: Option<Sums>) -> Result<StoredFile> {
        let by_number = planted!("backup_by_number");
        let mut candidates = self.stored.get(name).cloned().unwrap_or_default();
        candidates.retain(|file| file.bytes == bytes || by_number);
        if let (Some(first), true) = (candidates.first(), by_number) {
            return Ok(first.clone());
        }
        if !candidates.is_empty() {
            let sums = match known {
                Some(sums) => sums,
                None => self.read(&self.engine.dir.open(name)?, bytes, None)?,
            };
            if let Some(same) = candidates.into_iter().find(|file| file.sums == sums) {
                self.progress.bytes_done += bytes;
                (self.report)(self.progress);
                return Ok(same);
            }
        }
        // The check reads all of it at once.
        self.rate.acquire(bytes, || self.engine.health.open())?;
        self.checked.check(&self.engine.dir, name)?;
        let reader = self.engine.dir.open(name)?;
        self.copy(name, bytes, &reader)
    }

    /// Checks every record of a log. An open database writes its logs and does not read them, so nobody else would
    /// notice damage before the backup is needed.
    fn check_log(&self, log: LogFile, reader: &Reader) -> Result<()> {
        self.rate.acquire(log.bytes, || self.engine.health.open())?;
        let damage = |at| {
            let damage = Corruption::new(at, "log record", "a whole record", "one that does not check");
            Err(damage.of(reader.path()))
        };
        if log.bytes > FILE_HEADER_BYTES as u64 && !check_header(reader, log.id, log.bytes)? {
            return damage(0);
        }
        let mut walk = Walk::new(log.id, FILE_HEADER_BYTES as u64, log.bytes);
        let read = |buffer: &mut [u8], at: u64| reader.read_at(buffer, at, IoSource::Maintenance);
        loop {
            match walk.step(read)? {
                Met::Record(..) => {}
                Met::End => return Ok(()),
                Met::Torn(_) | Met::Damaged { .. } if planted!("backup_trusts_logs") => return Ok(()),
                Met::Torn(offset) | Met::Damaged { offset, .. } => return damage(offset),
            }
        }
    }

    /// Copies the first `bytes` of a file into the repository.
    fn copy(&mut self, name: &str, bytes: u64, reader: &Reader) -> Result<StoredFile> {
        let stored = format::stored_name(self.number, name);
        self.made.push(stored.clone());
        let writer = self.repository.files.create(&stored, IoSource::Maintenance)?;
        let sums = self.read(reader, bytes, Some(&writer))?;
        self.pending.push(writer);
        if self.pending.is_full() || self.repository.files.is_crowded_by_writers() {
            self.sync_pending()?;
        }
        Ok(StoredFile { name: name.into(), stored_by: self.number, bytes, sums })
    }

    /// Reads the first `bytes` of a file and returns the sums; appends them to `to`.
    fn read(&mut self, reader: &Reader, bytes: u64, to: Option<&Writer>) -> Result<Sums> {
        let mut buffer = vec![0; usize::try_from(bytes.min(CHUNK_BYTES)).unwrap_or(0)];
        let mut sums = Vec::new();
        let mut done = 0;
        while done < bytes {
            self.engine.health.open()?;
            let step = CHUNK_BYTES.min(bytes - done);
            self.rate.acquire(step, || self.engine.health.open())?;
            let chunk = &mut buffer[..usize::try_from(step).unwrap_or(0)];
            reader.read_once(chunk, done, IoSource::Maintenance)?;
            sums.push(chunk_sum(chunk, done));
            if let Some(writer) = to {
                writer.append(&[chunk])?;
                self.progress.bytes_copied += step;
                self.progress.bytes_done += step;
                (self.report)(self.progress);
            }
            done += step;
        }
        Ok(sums.into())
    }

    fn sync_pending(&mut self) -> Result<()> {
        let writers = self.pending.take();
        self.repository.files.sync_files(&writers)
    }

    /// Writes the record. Everything that it names is durable.
    fn publish(&mut self, record: &GenerationRecord) -> Result<()> {
        let generations = &self.repository.generations;
        let (unfinished, name) = (format::unfinished_record_name(self.number), format::record_name(self.number));
        let writer = generations.create(&unfinished, IoSource::Maintenance)?;
        writer.append(&[&format::encode(record)])?;
        writer.sync()?;
        self.has_record = true;
        generations.rename(&unfinished, &name)?;
        generations.sync()
    }

    /// Removes what was made, as far as that is possible. The next backup removes the rest.
    fn undo(&mut self) {
        drop(self.pending.take());
        let unfinished = format::unfinished_record_name(self.number);
        let _removed_by_the_next_backup = self.repository.generations.remove(&unfinished);
        if self.has_record && self.remove_record().is_err() {
            // A record that comes back after a power loss must find its files.
            return;
        }
        for name in &self.made {
            let _removed_by_the_next_backup = self.repository.files.remove(name);
        }
    }

    /// Removes the record durably.
    fn remove_record(&self) -> Result<()> {
        let generations = &self.repository.generations;
        generations.remove(&format::record_name(self.number))?;
        // Through a new handle: after a failed sync the directory's own handle never syncs again.
        generations.sibling(generations.path()).sync()
    }
}
