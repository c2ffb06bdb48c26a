//! Room on the disk: puts are refused before the disk is full, so that it can be emptied.
//!
//! ```text
//! free bytes of the disk, and those of RESERVE, but no more than there are for jobs
//! ├─ unwritten   what memtables hold: a flush will write it            ┐ a delete, a compaction or a GC run begins or
//! ├─ floor       logs, manifest, the steps of a job between two checks ┘ goes on only when it leaves these
//! ├─ for jobs    what a compaction or GC run has on disk twice         ─ puts leave this, too
//! └─ spare       for puts
//! ```
//!
//! * **Puts end first.** The rest is for deletes, flushes, compactions and GC, and these free more. Nothing is
//!   poisoned: puts go on when there is room again.
//! * **A job that would not leave enough is stopped** before the disk is full, and its output removed. It starts
//!   again when there is more room than it found, or after a second.
//! * **What was deleted** is waited for before anything is refused or `RESERVE` is touched: on copy-on-write file
//!   systems its space becomes free later.
//! * **`RESERVE`** holds space on the disk that nobody else gets. It is removed when there is no other room; so a
//!   database can be opened and emptied even if others have filled its disk. Background work leaves it alone.
//!
//! The free space is checked rarely: each time commits have written an eighth of what is spare, or a sixteenth of the
//! database's size. If a system does not report it (quotas of users, file systems of tests), nothing is refused, and
//! a full disk poisons the database as any failure does.

mod held_up;

use std::{
    collections::BTreeMap,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicU64, Ordering::Relaxed},
    },
};

use bifold_contract::{Error, KeyspaceId, Result, planted};
use bifold_format::names;
use bifold_io::{Dir, clock::Clock, fs::APPEND_SLOT_BYTES};

use self::held_up::HeldUp;
pub(crate) use self::held_up::Job;
use crate::{
    limits::memory::LIMIT_MAX,
    log::trees::Trees,
    state::{
        op::{Act, Op},
        tree::Tree,
    },
    waiting::{signal::Signal, sync::LockExt},
};

/// Commits check when they have written this share of the database's size, or an eighth of what is spare.
const LOOK_SHARE: u64 = 16;
const LOOK_BYTES_MIN: u64 = 1 << 20;
/// Jobs check at least each time they have written this many bytes; so do commits.
const LOOK_BYTES_MAX: u64 = 64 << 20;

/// Commits check this often if the system did not report how much is free: it may report it later.
const UNKNOWN_BYTES: u64 = 64 << 10;

/// What logs and other small files need, in whole blocks.
const FLOOR_BYTES: u64 = 32 << 10;

/// A job writes this much between two checks.
const STEP_BYTES: u64 = 64 << 10;

/// After GC a unit goes on in a file of its own, which has a slot for its appends, and its copies end within blocks.
const UNIT_BYTES: u64 = APPEND_SLOT_BYTES + 4 * 4096;

/// Finishing a table writes its index and filter: about this share of it.
const INDEX_SHARE: u64 = 32;

/// Up to this many bytes `RESERVE` takes a share of the database's size.
const RESERVE_BYTES_MAX: u64 = 64 << 20;
const RESERVE_SHARE: u64 = 32;
/// At least this many bytes, but no larger a share.
const RESERVE_BYTES_MIN: u64 = 4 << 20;
const RESERVE_SHARE_MAX: u64 = 4;

/// Up to this many bytes jobs may need three quarters of the database's size; beyond, a sixteenth.
const JOB_BYTES: u64 = 64 << 20;
const JOB_SHARE: u64 = 16;

/// How much room the disk has for a database.
pub(crate) struct Room {
    dir: Dir,
    clock: Arc<dyn Clock>,
    trees: Arc<Trees>,
    signal: Arc<Signal>,
    /// What the options keep free from puts.
    free_bytes_min: Option<u64>,
    /// Commits check the disk again when they have written this many bytes in all.
    look_at: AtomicU64,
    /// What has been appended to files of large values, those of commits to come included.
    large_bytes: AtomicU64,
    is_short: AtomicBool,
    reserve: Mutex<Reserve>,
    manifest_bytes: AtomicU64,
    /// What the file system needs free for any change.
    change_bytes: u64,
    held_up: Mutex<BTreeMap<(KeyspaceId, Job), HeldUp>>,
}

/// The state of `RESERVE`.
#[derive(Clone, Copy, Debug, Default)]
struct Reserve {
    bytes: u64,
    /// The file system cannot reserve space. It is not asked again.
    is_refused: bool,
}

impl Reserve {
    /// Returns whether there was anything to release.
    fn release(&mut self, dir: &Dir) -> bool {
        if self.bytes == 0 {
            return false;
        }
        let given = dir.reserve(names::RESERVE, 0);
        self.bytes = match &given {
            Ok(()) => 0,
            // The file may be deleted already, and only the sync after it has failed.
            Err(_) => dir.len(names::RESERVE).ok().flatten().unwrap_or(0),
        };
        given.is_ok()
    }

    fn grow_to(&mut self, bytes: u64, dir: &Dir) {
        match dir.reserve(names::RESERVE, bytes) {
            Ok(()) => self.bytes = bytes,
            Err(error) => {
                self.is_refused = !error.is_full();
                // A partial reserve is of no use.
                let _counted = dir.remove(names::RESERVE);
                self.bytes = 0;
            }
        }
    }
}

/// The space that work may use.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Means {
    /// The free space. `RESERVE` stays for whoever opens or empties the database when others have filled the disk.
    #[default]
    Free,
    /// `RESERVE` as well: a caller waits for this work.
    Reserve,
}

impl Means {
    fn reach_reserve(self) -> bool {
        self == Self::Reserve
    }
}

impl Room {
    /// The room of these trees in `dir`, with the present sizes of `RESERVE` and manifest.
    pub fn new(
        (dir, clock): (&Dir, &Arc<dyn Clock>),
        (trees, signal): (&Arc<Trees>, &Arc<Signal>),
        free_bytes_min: Option<u64>,
        (reserve_bytes, manifest_bytes): (u64, u64),
    ) -> Self {
        Self {
            dir: dir.clone(),
            clock: Arc::clone(clock),
            trees: Arc::clone(trees),
            signal: Arc::clone(signal),
            free_bytes_min: free_bytes_min.map(|bytes| bytes.min(LIMIT_MAX)),
            look_at: AtomicU64::new(0),
            large_bytes: AtomicU64::new(0),
            is_short: AtomicBool::new(false),
            reserve: Mutex::new(Reserve { bytes: reserve_bytes, is_refused: false }),
            manifest_bytes: AtomicU64::new(manifest_bytes),
            change_bytes: dir.change_bytes(),
            held_up: Mutex::default(),
        }
    }

    /// Whether puts are refused.
    pub fn is_short(&self) -> bool {
        self.is_short.load(Relaxed)
    }

    /// The bytes of `RESERVE`.
    pub fn reserve_bytes(&self) -> u64 {
        self.reserve.hold().bytes
    }

    /// Notes the length of a rewritten manifest. The next rewrite is on disk together with the old one.
    pub fn note_manifest(&self, bytes: u64) {
        self.manifest_bytes.store(bytes, Relaxed);
    }

    /// Notes that so many bytes were appended to the file of a large value.
    pub fn appended(&self, bytes: u64) {
        self.large_bytes.fetch_add(bytes, Relaxed);
    }

    fn floor(&self) -> u64 {
        FLOOR_BYTES + self.change_bytes + 2 * self.manifest_bytes.load(Relaxed)
    }

    /// Releases the space of `RESERVE`. Returns whether there was any.
    fn release(&self) -> bool {
        !planted!("keep_reserve") && self.reserve.hold().release(&self.dir)
    }
}

/// The bytes that a compaction or GC run may have on disk twice. A small database may be rewritten as a whole; of a
/// large one only parts are, which have less than this.
fn job_bytes(data_bytes: u64) -> u64 {
    (data_bytes / 4 * 3).min(JOB_BYTES.max(data_bytes / JOB_SHARE))
}

/// The size that `RESERVE` should have if the smallest possible job may write `smallest_job` bytes.
fn reserve_bytes(data_bytes: u64, smallest_job: u64, most: u64) -> u64 {
    (data_bytes / RESERVE_SHARE)
        .clamp(RESERVE_BYTES_MIN, RESERVE_BYTES_MAX)
        .max(written_bytes(smallest_job))
        .min(most)
        .min(data_bytes / RESERVE_SHARE_MAX)
}

/// The bytes for puts. `RESERVE` stands for what jobs need, and for nothing else: nobody else gets what it holds. If it
/// has more, as where one table or value is large, that is not there for puts.
fn spare(free: u64, reserve: u64, kept: u64, for_jobs: u64) -> u64 {
    let counts = if planted!("reserve_beyond_jobs_is_spare") { reserve } else { reserve.min(for_jobs) };
    (free + counts).saturating_sub(kept + for_jobs)
}

impl Room {
    /// Lets a commit of `bytes` go on, or the next `bytes` of a large value, unless the disk has too little room for
    /// them. `committed`: what commits have written so far. Returns whether it looked at the disk.
    ///
    /// # Errors
    /// [`Error::Full`].
    pub fn admit(&self, ops: &[Op<'_>], bytes: u64, committed: u64) -> Result<bool> {
        // The same for all callers, since they share `look_at`. A large value counts again once it is committed: then
        // commits look earlier.
        let written = committed + self.large_bytes.load(Relaxed);
        if written + bytes < self.look_at.load(Relaxed) {
            return Ok(false);
        }
        let Some(free) = self.dir.free_bytes() else {
            self.look_at.store(written + UNKNOWN_BYTES, Relaxed);
            return Ok(true);
        };
        let data_bytes = self.data_bytes();
        let (kept, for_jobs) = (self.kept_free(), self.room_for_jobs(data_bytes));
        let needed = kept + for_jobs;
        let spare = spare(free, self.reserve_bytes(), kept, for_jobs);
        let is_short = spare < 2 * bytes + if self.is_short() { needed / 8 } else { 0 };
        if self.is_short.swap(is_short, Relaxed) && !is_short {
            self.signal.notify();
        }
        if is_short {
            self.look_at.store(0, Relaxed);
        } else {
            let often = (data_bytes / LOOK_SHARE).clamp(LOOK_BYTES_MIN, LOOK_BYTES_MAX);
            self.look_at.store(written + often.min(spare / 8), Relaxed);
            self.fit_reserve(data_bytes, free, needed);
        }
        let writes_values = ops.iter().any(|op| matches!(op.act, Act::Put(_) | Act::PutUntil(..) | Act::Large(..)));
        match is_short {
            true if writes_values && !planted!("puts_until_full") => Err(self.full(free, needed + 2 * bytes)),
            true => self.ensure(2 * bytes).map(|()| true),
            false => Ok(true),
        }
    }

    /// Requires room for this many bytes that are not in memtables yet. If there is too little, it releases `RESERVE`.
    ///
    /// # Errors
    /// [`Error::Full`].
    pub fn ensure(&self, bytes: u64) -> Result<()> {
        self.ensure_by(Means::Reserve, bytes)
    }

    /// As [`Room::ensure`], with these means.
    ///
    /// # Errors
    /// [`Error::Full`].
    pub fn ensure_by(&self, means: Means, bytes: u64) -> Result<()> {
        self.ensure_free(self.kept_free() + bytes, means).map(drop)
    }

    /// Requires room for a flush of this many bytes.
    ///
    /// # Errors
    /// [`Error::Full`].
    pub fn ensure_to_flush(&self, bytes: u64, means: Means) -> Result<()> {
        self.ensure_free(self.floor() + written_bytes(bytes), means).map(drop)
    }

    /// Requires room for the next step of a job that has written `bytes` more. `unlooked` holds how many it may write
    /// before the disk is checked again.
    ///
    /// # Errors
    /// [`Error::Full`].
    pub fn look(&self, unlooked: &AtomicU64, bytes: u64, means: Means) -> Result<()> {
        let may_write = unlooked.load(Relaxed).saturating_sub(bytes.max(STEP_BYTES));
        unlooked.store(may_write, Relaxed);
        if may_write == 0 { self.look_to_commit(unlooked, 0, means) } else { Ok(()) }
    }

    /// Requires room for `bytes` that a job commits now, and for its next step. `unlooked` is as for [`Room::look`].
    ///
    /// # Errors
    /// [`Error::Full`].
    pub fn look_to_commit(&self, unlooked: &AtomicU64, bytes: u64, means: Means) -> Result<()> {
        // Once in the log, and once in a value file or in what a flush writes of the memtable.
        let committed = bytes + written_bytes(bytes);
        let left = self.ensure_free(self.kept_free() + self.step_bytes(self.data_bytes()) + committed, means)?;
        unlooked.store((left / 4).min(LOOK_BYTES_MAX), Relaxed);
        Ok(())
    }

    /// How many of these copies, in their order, there is room for, but `least` or all at least; and how many bytes
    /// they need if that is more than there is.
    pub fn fitting(&self, copies: &[u64], least: usize) -> (usize, Option<u64>) {
        let Some(free) = self.dir.free_bytes() else { return (copies.len(), None) };
        let kept = self.kept_free();
        if free / 2 > kept + self.data_bytes() {
            return (copies.len(), None);
        }
        let needed = |count: usize| written_bytes(copies[..count].iter().sum()) + count as u64 * UNIT_BYTES;
        let mut count = copies.len();
        loop {
            let bytes = needed(count);
            let fits = kept + bytes <= free;
            if fits || count <= least {
                return (count, (!fits).then_some(bytes));
            }
            count = count.div_ceil(2).max(least);
        }
    }

    /// Requires this many free bytes. Returns how many more there are.
    fn ensure_free(&self, bytes: u64, means: Means) -> Result<u64> {
        let Some(mut free) = self.dir.free_bytes() else { return Ok(u64::MAX) };
        if free < bytes {
            free = self.free_after_deletes(free);
        }
        if free < bytes && means.reach_reserve() && self.release() {
            free = self.dir.free_bytes().unwrap_or(free);
        }
        free.checked_sub(bytes).ok_or_else(|| self.full(free, bytes))
    }

    /// The free bytes once everything is free that was deleted or overwritten. `free` are so now.
    fn free_after_deletes(&self, free: u64) -> u64 {
        // If it fails, there is no more.
        let finished = self.dir.finish_deletes().ok();
        finished.and_then(|()| self.dir.free_bytes()).unwrap_or(free)
    }

    fn full(&self, free_bytes: u64, needed_bytes: u64) -> Error {
        Error::Full { path: self.dir.path().into(), free_bytes, needed_bytes }
    }

    /// What always stays free: memtables must reach the disk, and the manifest must go on.
    fn kept_free(&self) -> u64 {
        let trees = self.trees.all();
        let unwritten: usize =
            trees.iter().map(|p| p.view().layers().map(|l| l.memtable.data_bytes()).sum::<usize>()).sum();
        self.floor() + written_bytes(unwritten as u64)
    }

    /// The most that a job writes between two checks: at the end of a table its index and filter as well.
    fn step_bytes(&self, data_bytes: u64) -> u64 {
        let table_bytes = self.trees.all().iter().map(|p| p.view().settings.options.table_bytes).max().unwrap_or(0);
        2 * STEP_BYTES + table_bytes.min(data_bytes) / INDEX_SHARE
    }

    fn room_for_jobs(&self, data_bytes: u64) -> u64 {
        self.free_bytes_min.unwrap_or_else(|| job_bytes(data_bytes) + self.step_bytes(data_bytes))
    }

    /// What the smallest possible job writes: a rewritten table, or the copies of one unit of values.
    fn smallest_job(&self) -> u64 {
        let table = |p: &Tree| p.view().version.tables().map(|table| table.meta().bytes).max().unwrap_or(0);
        self.trees.all().iter().map(|p| table(p).max(p.placement().largest_unit())).max().unwrap_or(0)
    }

    /// Bytes in tables and value files.
    fn data_bytes(&self) -> u64 {
        let trees = self.trees.all();
        let tables = |p: &Tree| p.view().version.tables().map(|table| table.meta().bytes).sum::<u64>();
        trees.iter().map(|p| tables(p) + p.placement().space().total_bytes).sum()
    }

    /// Fits `RESERVE` to the database after opening it.
    pub fn provide_reserve(&self) {
        if let Some(free) = self.dir.free_bytes() {
            let data_bytes = self.data_bytes();
            self.fit_reserve(data_bytes, free, self.kept_free() + self.room_for_jobs(data_bytes));
        }
    }

    /// Grows and shrinks `RESERVE` with the database. It grows only if the disk has plenty of room.
    fn fit_reserve(&self, data_bytes: u64, free: u64, needed: u64) {
        let most = self.free_bytes_min.unwrap_or(u64::MAX);
        // Where each change needs room of its own, also for the one under way, and for the next one while the space
        // that the first one replaces is not free yet. There nothing goes on without a reserve, so it is taken early.
        let for_changes = (2 * self.change_bytes).min(most);
        let wanted = reserve_bytes(data_bytes, self.smallest_job(), most) + for_changes;
        let mut reserve = self.reserve.hold();
        if reserve.bytes > RESERVE_BYTES_MIN.max(wanted.saturating_mul(4)) {
            reserve.release(&self.dir);
        }
        let is_plenty = match for_changes {
            0 => free / 4 > wanted && free / 2 > needed,
            // What it has already is not taken once more.
            _ => free / 2 > wanted.saturating_sub(reserve.bytes),
        };
        if reserve.bytes < wanted / 4 * 3 && is_plenty && !reserve.is_refused && !self.is_short() {
            reserve.grow_to(wanted, &self.dir);
        }
    }

    /// Runs a flush, a merge or the copies of a GC run, which remove their output when they fail and change nothing.
    /// So a system without room reports [`Error::Full`], whatever it said was free; but first the work runs once more
    /// with the space of `RESERVE`.
    pub fn with_room<T>(&self, means: Means, work: impl Fn() -> Result<T>) -> Result<T> {
        let outcome = match work() {
            Err(error) if error.is_full() && means.reach_reserve() && self.release() => work(),
            other => other,
        };
        outcome.map_err(|error| match self.dir.free_bytes() {
            // If the system does not report how much is free, nobody would know when to begin again: it poisons.
            Some(free) if matches!(error, Error::Io { .. }) && error.is_full() => self.full(free, self.kept_free()),
            _ => error,
        })
    }
}

/// What a flush of memtables with this many bytes writes, including indexes and filters; or a GC run over this many
/// live bytes, including its moves.
fn written_bytes(bytes: u64) -> u64 {
    bytes + bytes / 4
}

#[cfg(test)]
mod tests;
