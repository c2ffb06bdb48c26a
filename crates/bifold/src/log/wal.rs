//! The commit log: where a commit is written before it is visible, and how it becomes durable.
//!
//! ```text
//!            commit lock                                 sync lock
//! encode ─▶ pending bytes ─▶ one append to the file ─▶ one fdatasync for all who wait (group commit)
//!           (Memory)          (Buffered)                (Sync)
//! ```
//!
//! A separated value goes to its file before the record that points at it is encoded, and is synced before that record.
//!
//! **Invariants.** Bytes go to the file in commit order, whatever the durability of the commits: a `Buffered` commit
//! also writes the `Memory` commits pending before it. A log is synced before any later log counts as synced, so the
//! durable commits are always a prefix. After a failed append or sync nothing more is written:
//! [`crate::state::health`].

mod large;

use std::{
    collections::VecDeque,
    sync::{Arc, Weak},
    time::Duration,
};

use bifold_contract::{Error, FileId, IoSource, LogFloor, Result, SeqNo, key::MAX_SEQNO, planted};
use bifold_format::{
    log::{self, Before, LogEncoder},
    names,
};
use bifold_io::{Dir, Writer};

use crate::{
    log::kept_logs::{KeptLogs, NotKept},
    state::{
        health::Health,
        tree::{Tree, Values},
    },
    waiting::sync::FairLock,
};

/// Pending bytes of `Memory` commits are written out at this size: large enough that the system call costs little
/// (0.3 µs per KiB in all), small enough that a killed process loses only moments.
const PENDING_BYTES_MAX: usize = 256 << 10;

/// A buffer that one huge commit has grown beyond this is freed.
const BUFFER_BYTES_KEPT: usize = 4 << 20;

/// This many closed logs may be open that no sync has covered, or this share of the files that may be open if that is
/// less. Beyond, the commit that has closed one more syncs them all.
const CLOSED_MAX: usize = 16;
const CLOSED_SHARE: usize = 4;

/// The log being written. The commit lock of the engine is around it.
pub(crate) struct Wal {
    dir: Dir,
    /// `None` when the database is open read-only.
    current: Option<OpenLog>,
    /// Logs closed but not known to be synced, oldest first. They stay open for the sync.
    unsynced: Vec<OpenLog>,
    /// No more of these should stay open.
    closed_max: usize,
    /// Logs that exist, oldest first, the current one last.
    files: Vec<LogFile>,
    /// Those that only the change feed needs, and for how long.
    kept: KeptLogs,
    pending: Vec<u8>,
    /// The number the next operation gets.
    next_seqno: SeqNo,
    /// The directory entry of a log is not durable yet.
    new_in_dir: bool,
    /// How much of the current log is known to be synced.
    synced_bytes: u64,
    /// Where the last commit in the current log ends; 0: it has none.
    commits_end: u64,
    /// The logs say that all commits up to this one are durable.
    marked: SeqNo,
    /// And that this log is the first one that is needed for replay.
    noted_floor: FileId,
    /// Trees in the order in which their memtables got their first entries, each with the log that holds that entry.
    /// Some of the memtables have since been sealed.
    fed: VecDeque<(FileId, Weak<Tree>)>,
}

/// A log that exists.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LogFile {
    pub id: FileId,
    /// Its length, once it is closed.
    pub bytes: u64,
    /// The number of the first operation in it, or of the next one while it is empty.
    pub first: SeqNo,
    /// Whether it has all that a change feed needs.
    pub has_changes: bool,
}

#[derive(Clone)]
struct OpenLog {
    id: FileId,
    file: Arc<Writer>,
}

impl Wal {
    /// Begins a new log.
    ///
    /// # Errors
    /// I/O errors.
    pub fn begin(dir: &Dir, id: FileId, next_seqno: SeqNo, kept: KeptLogs) -> Result<Self> {
        let current = create(dir, id)?;
        let has_changes = kept.limits.is_some();
        let mut wal = Self {
            current: Some(current),
            files: vec![LogFile { id, bytes: 0, first: next_seqno, has_changes }],
            kept,
            new_in_dir: true,
            ..Self::none(dir, next_seqno)
        };
        wal.note_changes()?;
        if has_changes && next_seqno > 1 && !planted!("begin_without_mark") {
            // What else says that changes are kept may be deleted before the first commit.
            wal.write_out()?;
            wal.open()?.file.sync()?;
            wal.synced_bytes = wal.written();
        }
        Ok(wal)
    }

    /// Notes at the beginning of a log that it is kept for the change feed, if it is.
    fn note_changes(&mut self) -> Result<()> {
        let Some(mark) = self.kept.mark() else { return Ok(()) };
        self.append(0, |encoder| encoder.kept(mark))?;
        self.note_large(mark.previous)
    }

    /// Whether logs are kept for the change feed.
    pub fn keeps_changes(&self) -> bool {
        self.kept.limits.is_some()
    }

    /// Logs that only the change feed needs.
    pub fn kept(&self) -> &KeptLogs {
        &self.kept
    }

    /// The logs that a change feed reads, oldest first, with everything in their files that is visible.
    ///
    /// # Errors
    /// I/O errors; the log must not be used after one.
    pub fn changes(&mut self) -> Result<Vec<LogFile>> {
        self.write_out()?;
        let all: Vec<LogFile> = self.kept.files().chain(self.files()).collect();
        let without = all.iter().rposition(|log| !log.has_changes);
        Ok(all[without.map_or(0, |at| at + 1)..].to_vec())
    }

    /// No log: the database is open read-only.
    pub fn none(dir: &Dir, next_seqno: SeqNo) -> Self {
        Self {
            dir: dir.clone(),
            current: None,
            unsynced: Vec::new(),
            closed_max: (dir.open_files().max / CLOSED_SHARE).clamp(1, CLOSED_MAX),
            files: Vec::new(),
            kept: KeptLogs::default(),
            pending: Vec::new(),
            next_seqno,
            new_in_dir: false,
            synced_bytes: 0,
            commits_end: 0,
            marked: next_seqno - 1,
            noted_floor: 0,
            fed: VecDeque::new(),
        }
    }

    /// Notes that the memtable of a tree has got its first entry, which is in the current log.
    pub fn note_fed(&mut self, tree: &Arc<Tree>) {
        // This drops sealed memtables from the front of the list, so that the list stays short.
        let _oldest = self.pins_oldest();
        self.fed.push_back((self.current(), Arc::downgrade(tree)));
    }

    /// The tree whose unsealed memtable needs the oldest log, if all logs together hold more than `bytes_max` and
    /// those from that log on do, too. What only sealed memtables need does not count: their flushes free it, and
    /// sealing a younger memtable would free nothing.
    pub fn pins_more_than(&mut self, bytes_max: u64) -> Option<Arc<Tree>> {
        if self.bytes_from(0) <= bytes_max {
            return None;
        }
        let (log, tree) = self.pins_oldest()?;
        (self.bytes_from(log) > bytes_max || planted!("seal_for_sealed_logs")).then_some(tree)
    }

    /// The oldest log that an unsealed memtable needs, and the tree of that memtable. It skips each list entry once, so
    /// no commit pays for all keyspaces.
    fn pins_oldest(&mut self) -> Option<(FileId, Arc<Tree>)> {
        let pins = |log: FileId, tree: &Arc<Tree>| !tree.is_dropped() && tree.view().active.first_log() == Some(log);
        while let Some((log, tree)) = self.fed.front() {
            if let Some(tree) = tree.upgrade().filter(|tree| pins(*log, tree)) {
                return Some((*log, tree));
            }
            self.fed.pop_front();
        }
        None
    }

    fn open(&self) -> Result<&OpenLog> {
        self.current.as_ref().ok_or(Error::ReadOnly)
    }

    /// The number the next operation gets.
    pub fn next_seqno(&self) -> SeqNo {
        self.next_seqno
    }

    /// The log that the next commit goes to; past all logs when the database is open read-only.
    pub fn current(&self) -> FileId {
        self.current.as_ref().map_or(FileId::MAX, |log| log.id)
    }

    /// Appends one commit of `count` operations to the pending bytes and assigns its sequence numbers. Returns the
    /// first.
    ///
    /// # Errors
    /// [`Error::ReadOnly`]; that of [`Wal::check_numbers`].
    pub fn append(&mut self, count: u32, encode: impl FnOnce(&mut LogEncoder<'_>)) -> Result<SeqNo> {
        self.check_numbers(count as usize)?;
        let first = self.next_seqno;
        let (id, written) = self.open().map(|log| (log.id, log.file.len()))?;
        let durable = self.pending.is_empty() && written == self.synced_bytes;
        let before = if durable { Before::Synced } else { Before::Unsynced };
        let offset = written + self.pending.len() as u64;
        let mut encoder = LogEncoder::begin(&mut self.pending, id, offset, first);
        encode(&mut encoder);
        encoder.finish(before);
        if count > 0 {
            self.commits_end = written + self.pending.len() as u64;
        }
        if !planted!("reuse_seqno") {
            self.next_seqno += SeqNo::from(count);
        }
        Ok(first)
    }

    /// Checks that `count` more operations have numbers, and whatever comes behind them the largest one. No database
    /// gets there by commits of its own.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`].
    pub fn check_numbers(&self, count: usize) -> Result<()> {
        if self.next_seqno.saturating_add(count as SeqNo) > MAX_SEQNO {
            let reason = "no sequence numbers are left for it: copy the database by export and import";
            return Err(Error::invalid("commit", reason));
        }
        Ok(())
    }

    /// Whether so much is pending that it should be written out whatever the durability.
    pub fn is_full(&self) -> bool {
        self.pending.len() >= PENDING_BYTES_MAX
    }

    /// Hands the pending bytes to the operating system.
    ///
    /// # Errors
    /// I/O errors; the log must not be used after one.
    pub fn write_out(&mut self) -> Result<()> {
        if self.pending.is_empty() {
            return Ok(());
        }
        self.open()?.file.append(&[&self.pending])?;
        self.pending.clear();
        if self.pending.capacity() > BUFFER_BYTES_KEPT {
            self.pending = Vec::new();
        }
        Ok(())
    }

    /// Closes the log and begins the next one.
    ///
    /// # Errors
    /// I/O errors; the log must not be used after one.
    pub fn rotate(&mut self, id: FileId) -> Result<()> {
        self.write_out()?;
        let closed = self.current.replace(create(&self.dir, id)?).ok_or(Error::ReadOnly)?;
        if let Some(last) = self.files.last_mut() {
            last.bytes = closed.file.len();
            self.kept.close(closed.id, std::mem::take(&mut self.commits_end));
        }
        let has_changes = self.keeps_changes();
        self.files.push(LogFile { id, bytes: 0, first: self.next_seqno, has_changes });
        self.unsynced.push(closed);
        if self.has_many_closed() && planted!("close_unsynced_logs") {
            self.unsynced.remove(0);
        }
        self.synced_bytes = 0;
        self.new_in_dir = true;
        self.note_changes()
    }

    /// Whether so many closed logs are open that whoever has closed one should sync them, without the commit lock.
    pub fn has_many_closed(&self) -> bool {
        self.unsynced.len() > self.closed_max
    }

    /// Bytes in the logs from `first` on.
    fn bytes_from(&self, first: FileId) -> u64 {
        let closed: u64 = self.files.iter().filter(|f| f.id >= first).map(|f| f.bytes).sum();
        closed + self.written() + self.pending.len() as u64
    }

    /// Bytes in the current log's file.
    fn written(&self) -> u64 {
        self.current.as_ref().map_or(0, |log| log.file.len())
    }

    /// Every log with its length so far, oldest first.
    pub fn files(&self) -> Vec<LogFile> {
        let mut files = self.files.clone();
        if let (Some(current), Some(_)) = (files.last_mut(), &self.current) {
            current.bytes = self.written();
        }
        files
    }

    /// Takes over logs of an earlier session, oldest first, which are kept until nobody needs them.
    pub fn adopt(&mut self, files: impl IntoIterator<Item = LogFile>) {
        let current_at = self.files.iter().rposition(|file| Some(file.id) == self.current.as_ref().map(|log| log.id));
        let at = current_at.unwrap_or(self.files.len());
        self.files.splice(at..at, files);
    }

    /// Forgets logs below `floor`. The caller deletes what is returned.
    pub fn forget_below(&mut self, floor: FileId, now: Duration) -> NotKept {
        self.note_floor(floor);
        let current = self.current();
        self.unsynced.retain(|log| log.id >= floor);
        let (forgotten, files) = self.files.drain(..).partition(|f| f.id < floor && f.id != current);
        self.files = files;
        let upto = self.files.first().map_or(self.next_seqno, |log| log.first);
        self.kept.take(forgotten, upto, now)
    }

    /// Says in the log that `floor` is the manifest's, durably. Where logs are kept, the ones that an older manifest
    /// needs are all there, and nothing else would contradict it.
    fn note_floor(&mut self, floor: FileId) {
        if self.keeps_changes() && floor > self.noted_floor && !planted!("unnoted_floor") {
            let noted = self.append(0, |encoder| encoder.floor(floor));
            debug_assert!(noted.is_ok(), "whoever deletes logs has one");
            self.noted_floor = floor;
        }
    }

    /// The floor if no log before `id` is needed any more.
    pub fn floor_at(&self, id: FileId) -> LogFloor {
        let id = id.min(self.needed_for_changes());
        let first = self.files.iter().find(|f| f.id >= id).map_or(self.next_seqno, |f| f.first);
        LogFloor { log: id, first }
    }

    /// The newest log up to which no log is left to the change feed alone. One that only the feed needs is synced to
    /// its end, and its successor durably names it: else a power loss would leave a hole that nobody sees.
    fn needed_for_changes(&self) -> FileId {
        let unsynced = match self.unsynced.first() {
            _ if !self.keeps_changes() || planted!("keep_hollow_logs") => return FileId::MAX,
            Some(closed) => closed.id,
            None if self.synced_bytes > 0 => return FileId::MAX,
            None => self.current(),
        };
        self.files.iter().rev().find(|log| log.id < unsynced).map_or(unsynced, |synced| synced.id)
    }

    /// What must be synced so that everything appended so far is durable.
    fn sync_task(&mut self) -> Result<SyncTask> {
        self.write_out()?;
        Ok(SyncTask {
            closed: self.unsynced.clone(),
            current: self.open()?.clone(),
            new_in_dir: self.new_in_dir,
            bytes: self.written(),
            upto: self.next_seqno - 1,
        })
    }

    fn synced(&mut self, task: &SyncTask) {
        self.unsynced.retain(|log| task.closed.iter().all(|done| done.id != log.id));
        if self.current() == task.current.id {
            self.new_in_dir = false;
            self.synced_bytes = self.synced_bytes.max(task.bytes);
        }
    }

    /// Notes in the log that all commits up to `last` are durable. A power loss may take the note; a killed process
    /// leaves it. Recovery learns from it which bytes cannot be a torn tail and which need not be written again.
    fn mark_durable(&mut self, last: SeqNo) -> Result<()> {
        if last <= self.marked || self.current.is_none() || planted!("no_marker") {
            return Ok(());
        }
        self.append(0, |encoder| encoder.durable(last))?;
        self.write_out()?;
        self.marked = last;
        Ok(())
    }
}

struct SyncTask {
    closed: Vec<OpenLog>,
    current: OpenLog,
    new_in_dir: bool,
    /// Length of the current log that will be synced.
    bytes: u64,
    upto: SeqNo,
}

impl SyncTask {
    fn sync(&self, dir: &Dir) -> Result<()> {
        for log in self.closed.iter().chain([&self.current]) {
            if !planted!("skip_log_sync") {
                log.file.sync()?;
            }
        }
        if self.new_in_dir { dir.sync() } else { Ok(()) }
    }
}

fn create(dir: &Dir, id: FileId) -> Result<OpenLog> {
    let (file, _nobody_reads_it) = dir.create_appended(&names::log(id), IoSource::Log)?;
    let file = Arc::new(file);
    file.append(&[&log::header(id)])?;
    Ok(OpenLog { id, file })
}

/// Syncs the values, then the logs: a durable log record must not point at a value that is not durable.
///
/// `values` runs under the commit lock and returns the placements to sync. So each commit in the logs of this sync
/// has its values in one of them.
pub(crate) fn sync_now(
    wal: &FairLock<Wal>,
    values: impl FnOnce(&Wal) -> Vec<Arc<Values>>,
    health: &Health,
) -> Result<SeqNo> {
    let (sync, dir) = {
        let mut wal = wal.hold();
        (begin_sync(&mut wal, values, health)?, wal.dir.clone())
    };
    sync.run(&dir, health)?;
    sync.end(&mut wal.hold(), health)
}

/// As [`sync_now`], by a caller who holds the commit lock and keeps it. No other sync may run meanwhile.
pub(crate) fn sync_held(
    wal: &mut Wal,
    values: impl FnOnce(&Wal) -> Vec<Arc<Values>>,
    health: &Health,
) -> Result<SeqNo> {
    let sync = begin_sync(wal, values, health)?;
    sync.run(&wal.dir.clone(), health)?;
    sync.end(wal, health)
}

/// A sync, and what it covers.
struct RunningSync {
    values: Vec<Arc<Values>>,
    task: SyncTask,
}

fn begin_sync(wal: &mut Wal, values: impl FnOnce(&Wal) -> Vec<Arc<Values>>, health: &Health) -> Result<RunningSync> {
    health.well()?;
    let values = values(wal);
    values.iter().for_each(|p| p.begin_sync());
    Ok(RunningSync { values, task: health.watch(wal.sync_task())? })
}

impl RunningSync {
    fn run(&self, dir: &Dir, health: &Health) -> Result<()> {
        let synced = self.values.iter().try_for_each(|p| p.sync()).and_then(|()| self.task.sync(dir));
        // Before a waiting thread can begin another sync: that one might succeed without what this one has lost.
        if planted!("poison_late") {
            synced?;
        } else {
            health.watch(synced)?;
        }
        self.values.iter().for_each(|p| p.synced());
        Ok(())
    }

    fn end(&self, wal: &mut Wal, health: &Health) -> Result<SeqNo> {
        wal.synced(&self.task);
        health.watch(wal.mark_durable(self.task.upto))?;
        Ok(self.task.upto)
    }
}

#[cfg(test)]
mod closed_tests;
mod ingests;
#[cfg(test)]
mod tests;
