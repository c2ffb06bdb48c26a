//! The commit log, in Bifold's format (`docs/formats/log.md`), and how everything becomes durable: values before the
//! log records that point at them, older logs before newer ones, so that the durable commits are always a prefix.

use std::sync::Arc;

use bifold_contract::{FileId, IoSource, KeyspaceId, LogFloor, Result, SeqNo, planted};
use bifold_format::{
    log::{self, Before, LogEncoder},
    names, pointer,
};
use bifold_io::{Dir, Writer};
use bifold_values::store::ValueStore;

use crate::{health::Health, index::Entry};

/// The number of the keyspace that values and log records name: a store has one.
pub(crate) const KEYSPACE: KeyspaceId = 1;

/// A buffer that one huge commit has grown beyond this is freed.
const BUFFER_BYTES_KEPT: usize = 4 << 20;

/// The logs. The commit lock is around it.
pub(crate) struct Log {
    dir: Dir,
    current: OpenLog,
    /// Closed logs that are not known to be synced, oldest first.
    unsynced: Vec<OpenLog>,
    /// Logs that exist, oldest first, the current one last: number, and bytes once it is closed.
    files: Vec<LogFile>,
    next: SeqNo,
    /// The name of the current log is not durable yet.
    is_unnamed: bool,
    /// How much of the current log is known to be synced.
    synced_bytes: u64,
    /// The logs say that all commits up to this one are durable.
    marked: SeqNo,
    buffer: Vec<u8>,
}

/// A log that exists.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LogFile {
    pub id: FileId,
    /// The number of its first commit, or of the next one while it is empty.
    pub first: SeqNo,
    /// Its length, once it is closed.
    pub bytes: u64,
}

#[derive(Clone)]
struct OpenLog {
    id: FileId,
    file: Arc<Writer>,
}

impl OpenLog {
    fn create(dir: &Dir, id: FileId) -> Result<Self> {
        let (file, _nobody_reads_it) = dir.create_appended(&names::log(id), IoSource::Log)?;
        file.append(&[&log::header(id)])?;
        Ok(Self { id, file: Arc::new(file) })
    }
}

impl Log {
    /// Begins the log `id`. `earlier` are the logs before it, which are durable.
    ///
    /// # Errors
    /// I/O errors.
    pub fn begin(dir: &Dir, id: FileId, next: SeqNo, earlier: Vec<LogFile>) -> Result<Self> {
        let current = OpenLog::create(dir, id)?;
        let mut files = earlier;
        files.push(LogFile { id, first: next, bytes: 0 });
        Ok(Self {
            dir: dir.clone(),
            current,
            unsynced: Vec::new(),
            files,
            next,
            is_unnamed: true,
            synced_bytes: 0,
            marked: next - 1,
            buffer: Vec::new(),
        })
    }

    /// The number that the next operation gets.
    pub fn next(&self) -> SeqNo {
        self.next
    }

    /// Appends one commit. Its operations get the numbers from [`Log::next`] on. A record of none gets no number.
    ///
    /// # Errors
    /// I/O errors; nothing must be appended after one.
    fn append(&mut self, count: usize, encode: impl FnOnce(&mut LogEncoder<'_>)) -> Result<()> {
        let OpenLog { id, file } = &self.current;
        let before = if file.len() == self.synced_bytes { Before::Synced } else { Before::Unsynced };
        self.buffer.clear();
        let mut encoder = LogEncoder::begin(&mut self.buffer, *id, file.len(), self.next);
        encode(&mut encoder);
        encoder.finish(before);
        file.append(&[&self.buffer])?;
        self.next += count as SeqNo;
        if self.buffer.capacity() > BUFFER_BYTES_KEPT {
            self.buffer = Vec::new();
        }
        Ok(())
    }

    /// Appends a commit with these entries.
    ///
    /// # Errors
    /// I/O errors; nothing must be appended after one.
    pub fn commit<K: AsRef<[u8]>>(&mut self, entries: &[(K, Entry)]) -> Result<()> {
        let mut address = Vec::new();
        self.append(entries.len(), |encoder| {
            for (key, entry) in entries {
                match entry {
                    Entry::Deleted => encoder.delete(KEYSPACE, key.as_ref()),
                    Entry::Inline(value) => encoder.put(KEYSPACE, key.as_ref(), value),
                    Entry::Separated(to) => {
                        address.clear();
                        pointer::encode(*to, &mut address);
                        encoder.pointer(KEYSPACE, key.as_ref(), &address);
                    }
                }
            }
        })
    }

    /// Closes the log and begins the next one.
    ///
    /// # Errors
    /// I/O errors; nothing must be appended after one.
    pub fn rotate(&mut self, id: FileId) -> Result<()> {
        let closed = std::mem::replace(&mut self.current, OpenLog::create(&self.dir, id)?);
        if let Some(last) = self.files.last_mut() {
            last.bytes = closed.file.len();
        }
        self.files.push(LogFile { id, first: self.next, bytes: 0 });
        self.unsynced.push(closed);
        (self.synced_bytes, self.is_unnamed) = (0, true);
        Ok(())
    }

    /// Bytes in all logs.
    pub fn bytes(&self) -> u64 {
        self.files.iter().map(|file| file.bytes).sum::<u64>() + self.current.file.len()
    }

    /// Where replay begins if no log before `id` is needed.
    pub fn floor_at(&self, id: FileId) -> LogFloor {
        let first = self.files.iter().find(|file| file.id >= id).map_or(self.next, |file| file.first);
        LogFloor { log: id, first }
    }

    /// The logs that exist.
    pub fn ids(&self) -> Vec<FileId> {
        self.files.iter().map(|file| file.id).collect()
    }

    /// Forgets the logs before `floor`, which are not the current one. The caller deletes them.
    pub fn forget_below(&mut self, floor: FileId) -> Vec<FileId> {
        self.unsynced.retain(|log| log.id >= floor);
        let (gone, files): (Vec<_>, Vec<_>) = self.files.drain(..).partition(|file| file.id < floor);
        self.files = files;
        gone.into_iter().map(|file| file.id).collect()
    }
}

/// A sync that has begun: what it covers.
pub(crate) struct RunningSync {
    /// Logs closed before it began, oldest first.
    closed: Vec<OpenLog>,
    /// The log that was current then.
    current: OpenLog,
    is_unnamed: bool,
    /// How much of that log there was.
    bytes: u64,
    upto: SeqNo,
}

impl RunningSync {
    /// Begins a sync of everything written so far.
    pub fn begin(log: &Log, values: &ValueStore) -> Self {
        values.begin_sync();
        Self {
            closed: log.unsynced.clone(),
            current: log.current.clone(),
            is_unnamed: log.is_unnamed,
            bytes: log.current.file.len(),
            upto: log.next - 1,
        }
    }

    /// Makes it durable, without the commit lock. One runs at a time.
    ///
    /// # Errors
    /// I/O errors. None may succeed after one that has failed.
    pub fn run(&self, dir: &Dir, values: &ValueStore, health: &Health) -> Result<()> {
        let logs = || {
            self.closed.iter().chain([&self.current]).try_for_each(|log| log.file.sync())?;
            if self.is_unnamed { dir.sync() } else { Ok(()) }
        };
        health.watch(values.sync().and_then(|()| logs()))?;
        values.synced();
        Ok(())
    }

    /// Notes in the log that it was synced. A power loss may take the note; a killed process leaves it. Recovery learns
    /// from it what cannot be a torn end.
    ///
    /// # Errors
    /// I/O errors; nothing must be appended after one.
    pub fn end(self, log: &mut Log) -> Result<SeqNo> {
        // What was current may have got commits and been closed meanwhile, so the next sync covers it once more.
        log.unsynced.retain(|open| self.closed.iter().all(|synced| synced.id != open.id));
        if planted!("over_forgets_closed_logs") {
            log.unsynced.retain(|open| open.id != self.current.id);
        }
        if self.current.id == log.current.id {
            log.is_unnamed = false;
            log.synced_bytes = log.synced_bytes.max(self.bytes);
        }
        if self.upto > log.marked {
            log.append(0, |encoder| encoder.durable(self.upto))?;
            log.marked = self.upto;
        }
        Ok(self.upto)
    }
}
