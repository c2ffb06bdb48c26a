//! Room on the disk: puts are refused before it is full, so that it can be emptied.
//!
//! ```text
//! free bytes of the disk, and those of RESERVE
//! ├─ unwritten   what memtables hold: a flush will write it          ┐ a delete, a compaction or a collection begins or
//! ├─ floor       logs, manifest, the steps of a job between two looks ┘ goes on only when it leaves these
//! ├─ for jobs    what a compaction or collection has on disk twice     ─ puts leave this, too
//! └─ spare       for puts
//! ```
//!
//! * **Puts end first.** What is left then is for deletes, flushes, compactions and collections, and these free more. Nothing is
//!   poisoned: when there is room again, puts go on.
//! * **A job that would not leave enough is stopped** before the disk is full, and its output removed. It is not begun again
//!   before there is more room than it has met, or a second has passed.
//! * **`RESERVE`** takes space on the disk that nobody else gets. It is removed when there is no other room; so a disk that
//!   somebody else has filled can be opened and emptied as well. Background work leaves it alone.
//!
//! How much is free is asked rarely: each time commits have brought an eighth of what is spare, or a sixteenth of what the database
//! has. Where a system does not say
//! (quotas of users, file systems of tests), nothing is refused, and a full disk poisons the database as any failure does.

use std::{
    cell::Cell,
    collections::BTreeMap,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};

use bifold_contract::{Error, KeyspaceId, Result, planted};
use bifold_format::names;
use bifold_io::{Dir, fs::APPEND_SLOT_BYTES};
use bifold_values::placement::GcPick;

use crate::{
    engine::Engine,
    sync::LockExt,
    tree::Tree,
    write::{Act, Op},
};

/// Commits look when they have brought such a share of what the database has, or an eighth of what is spare.
const LOOK_SHARE: u64 = 16;
const LOOK_BYTES_MIN: u64 = 1 << 20;
/// Jobs look at least each time they have written so many bytes, commits when they have brought as many.
const LOOK_BYTES_MAX: u64 = 64 << 20;

/// Commits look so often where the system did not say how much is free: it may say later.
const UNKNOWN_BYTES: u64 = 64 << 10;

/// What logs and other small files need, by whole blocks.
const FLOOR_BYTES: u64 = 32 << 10;

/// While a job writes so much it does not look.
const STEP_BYTES: u64 = 64 << 10;

/// A collected unit is gone on with in a file of its own, which has a slot for its appends; and its copies end within blocks.
const UNIT_BYTES: u64 = APPEND_SLOT_BYTES + 4 * 4096;

/// When a table is finished its index and filter are written: about such a share of it.
const INDEX_SHARE: u64 = 32;

/// Up to so many bytes `RESERVE` takes a share of what the database has.
const RESERVE_BYTES_MAX: u64 = 64 << 20;
const RESERVE_SHARE: u64 = 32;
/// At least so many bytes, but no larger a share.
const RESERVE_BYTES_MIN: u64 = 4 << 20;
const RESERVE_SHARE_MAX: u64 = 4;

/// Up to so many bytes jobs may need three quarters of what the database has; then a sixteenth.
const JOB_BYTES: u64 = 64 << 20;
const JOB_SHARE: u64 = 16;

/// Work that has found too little room is tried again after so long, if not before.
const RETRY: Duration = Duration::from_secs(1);

/// What a database knows of its room.
#[derive(Default)]
pub(crate) struct Room {
    /// Commits look at the disk again when they have brought so many bytes in all.
    look_at: AtomicU64,
    is_short: AtomicBool,
    reserve: Mutex<Reserve>,
    manifest_bytes: AtomicU64,
    /// What the file system wants free for any change.
    change_bytes: u64,
    held_up: Mutex<BTreeMap<(KeyspaceId, Job), HeldUp>>,
}

/// What is known of `RESERVE`.
#[derive(Clone, Copy, Debug, Default)]
struct Reserve {
    bytes: u64,
    /// The file system promises no space. It is not asked again and again.
    is_refused: bool,
}

impl Reserve {
    /// Answers whether there was anything to give.
    fn release(&mut self, dir: &Dir) -> bool {
        if self.bytes == 0 {
            return false;
        }
        let given = dir.reserve(names::RESERVE, 0);
        self.bytes = match &given {
            Ok(()) => 0,
            // It may be gone, and only the sync behind that has failed.
            Err(_) => dir.len(names::RESERVE).ok().flatten().unwrap_or(0),
        };
        given.is_ok()
    }

    fn grow_to(&mut self, bytes: u64, dir: &Dir) {
        match dir.reserve(names::RESERVE, bytes) {
            Ok(()) => self.bytes = bytes,
            Err(error) => {
                self.is_refused = !error.is_full();
                // What it has got before it failed is of no use.
                let _counted = dir.remove(names::RESERVE);
                self.bytes = 0;
            }
        }
    }
}

/// What work may use.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Means {
    /// What is free. `RESERVE` stays for whoever opens or empties the database when others have filled the disk.
    #[default]
    Free,
    /// `RESERVE` as well: somebody waits for this work.
    Reserve,
}

/// RewriteScope work of a keyspace has found too little room.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Job {
    /// A flush.
    Flush,
    /// A compaction.
    Compact,
    /// A collection.
    Collect,
}

/// Work that waits for room.
#[derive(Clone, Debug)]
struct HeldUp {
    /// The room that it has met: with more of it, it is tried again.
    left: u64,
    /// When that was. What a system says is free need not change when there is more.
    since: Duration,
    why: Error,
}

impl Means {
    fn reach_reserve(self) -> bool {
        self == Self::Reserve
    }
}

impl Room {
    /// Of a database in `dir` that has so large a `RESERVE`, and a manifest of so many bytes.
    pub fn new(dir: &Dir, reserve_bytes: u64, manifest_bytes: u64) -> Self {
        let reserve = Reserve { bytes: reserve_bytes, is_refused: false };
        let (change_bytes, manifest_bytes) = (dir.change_bytes(), AtomicU64::new(manifest_bytes));
        Self { reserve: Mutex::new(reserve), manifest_bytes, change_bytes, ..Self::default() }
    }

    /// Whether puts are refused.
    pub fn is_short(&self) -> bool {
        self.is_short.load(Relaxed)
    }

    /// Bytes that `RESERVE` takes.
    pub fn reserve_bytes(&self) -> u64 {
        self.reserve.hold().bytes
    }

    /// Notes how long a manifest is that is written anew, which happens beside the old one.
    pub fn note_manifest(&self, bytes: u64) {
        self.manifest_bytes.store(bytes, Relaxed);
    }

    fn floor(&self) -> u64 {
        FLOOR_BYTES + self.change_bytes + 2 * self.manifest_bytes.load(Relaxed)
    }

    /// Gives the disk what `RESERVE` takes. Answers whether that was anything.
    fn release(&self, dir: &Dir) -> bool {
        !planted!("keep_reserve") && self.reserve.hold().release(dir)
    }
}

/// What a compaction or collection may have on disk twice, of a database of so many bytes. A small one may be rewritten as a whole;
/// of a large one only parts are, which have less than this.
fn job_bytes(data_bytes: u64) -> u64 {
    (data_bytes / 4 * 3).min(JOB_BYTES.max(data_bytes / JOB_SHARE))
}

/// What `RESERVE` should take, if the smallest job of all may write so many bytes.
fn reserve_bytes(data_bytes: u64, smallest_job: u64, most: u64) -> u64 {
    (data_bytes / RESERVE_SHARE)
        .clamp(RESERVE_BYTES_MIN, RESERVE_BYTES_MAX)
        .max(written_bytes(smallest_job))
        .min(most)
        .min(data_bytes / RESERVE_SHARE_MAX)
}

impl Engine {
    /// Lets a commit of `bytes` go on, unless the disk has too little room for it.
    ///
    /// # Errors
    /// [`Error::Full`].
    pub fn admit(&self, ops: &[Op<'_>], bytes: u64) -> Result<()> {
        let brought = self.counters.user_bytes_written();
        if brought + bytes < self.room.look_at.load(Relaxed) {
            return Ok(());
        }
        let Some(free) = self.dir.free_bytes() else {
            self.room.look_at.store(brought + UNKNOWN_BYTES, Relaxed);
            return Ok(());
        };
        let data_bytes = self.data_bytes();
        let needed = self.kept_free() + self.room_for_jobs(data_bytes);
        let spare = (free + self.room.reserve_bytes()).saturating_sub(needed);
        let is_short = spare < 2 * bytes + if self.room.is_short() { needed / 8 } else { 0 };
        if self.room.is_short.swap(is_short, Relaxed) && !is_short {
            self.signal.tell();
        }
        if is_short {
            self.room.look_at.store(0, Relaxed);
        } else {
            let often = (data_bytes / LOOK_SHARE).clamp(LOOK_BYTES_MIN, LOOK_BYTES_MAX);
            self.room.look_at.store(brought + often.min(spare / 8), Relaxed);
            self.fit_reserve(data_bytes, free, needed);
        }
        let brings_values = ops.iter().any(|op| matches!(op.act, Act::Put(_)));
        match is_short {
            true if brings_values && !planted!("puts_until_full") => Err(self.full(free, needed + 2 * bytes)),
            true => self.ensure_room(2 * bytes),
            false => Ok(()),
        }
    }

    /// Demands room for so many bytes that are not in memtables yet. Where there is too little, `RESERVE` gives what it has.
    ///
    /// # Errors
    /// [`Error::Full`].
    pub fn ensure_room(&self, bytes: u64) -> Result<()> {
        self.ensure_room_by(Means::Reserve, bytes)
    }

    /// As [`Engine::ensure_room`], by these means.
    ///
    /// # Errors
    /// [`Error::Full`].
    pub fn ensure_room_by(&self, means: Means, bytes: u64) -> Result<()> {
        self.ensure_free(self.kept_free() + bytes, means).map(drop)
    }

    /// Demands room for a flush of so many bytes.
    ///
    /// # Errors
    /// [`Error::Full`].
    pub fn ensure_room_to_flush(&self, bytes: u64, means: Means) -> Result<()> {
        self.ensure_free(self.room.floor() + written_bytes(bytes), means).map(drop)
    }

    /// Demands room for the next step of a job that has written so many bytes more; `unlooked` says how many it may write before the
    /// disk is asked again.
    ///
    /// # Errors
    /// [`Error::Full`].
    pub fn look_for_room(&self, unlooked: &Cell<u64>, bytes: u64, means: Means) -> Result<()> {
        let may_write = unlooked.get().saturating_sub(bytes.max(STEP_BYTES));
        unlooked.set(may_write);
        if may_write == 0 {
            let left = self.ensure_free(self.kept_free() + self.step_bytes(self.data_bytes()), means)?;
            unlooked.set((left / 4).min(LOOK_BYTES_MAX));
        }
        Ok(())
    }

    /// What of a collection the disk has room for: of several units perhaps the first ones only, `least` of them at least.
    /// Where there is too little for these, how much they need.
    pub fn fit_gc(&self, tree: &Tree, pick: &GcPick, least: usize) -> (GcPick, Option<u64>) {
        // A rewrite looks for room as it goes on.
        let (GcPick::Units(units), Some(free)) = (pick, self.dir.free_bytes()) else {
            return (pick.clone(), None);
        };
        let kept = self.kept_free();
        if free / 2 > kept + self.data_bytes() {
            return (pick.clone(), None);
        }
        let pressure = self.pressure(tree);
        let copied = |count: usize| written_bytes(tree.placement().copied_by(&units[..count], &pressure));
        let needed = |count: usize| copied(count) + count as u64 * UNIT_BYTES;
        let mut count = units.len();
        loop {
            let bytes = needed(count);
            let fits = kept + bytes <= free;
            if fits || count <= least {
                return (GcPick::Units(units[..count].to_vec()), (!fits).then_some(bytes));
            }
            count = count.div_ceil(2).max(least);
        }
    }

    /// Demands so many free bytes. Answers how many more there are.
    fn ensure_free(&self, bytes: u64, means: Means) -> Result<u64> {
        let Some(mut free) = self.dir.free_bytes() else { return Ok(u64::MAX) };
        if free < bytes && means.reach_reserve() && self.room.release(&self.dir) {
            free = self.dir.free_bytes().unwrap_or(free);
        }
        free.checked_sub(bytes).ok_or_else(|| self.full(free, bytes))
    }

    fn full(&self, free_bytes: u64, needed_bytes: u64) -> Error {
        Error::Full { path: self.dir.path().into(), free_bytes, needed_bytes }
    }

    /// What is never given away: memtables must reach the disk, and the manifest must go on.
    fn kept_free(&self) -> u64 {
        let trees = self.trees();
        let unwritten: usize =
            trees.iter().map(|p| p.view().layers().map(|l| l.memtable.data_bytes()).sum::<usize>()).sum();
        self.room.floor() + written_bytes(unwritten as u64)
    }

    /// What a job writes between two looks at most: at the end of a table its index and filter as well.
    fn step_bytes(&self, data_bytes: u64) -> u64 {
        let table_bytes = self.trees().iter().map(|p| p.options.table_bytes).max().unwrap_or(0);
        2 * STEP_BYTES + table_bytes.min(data_bytes) / INDEX_SHARE
    }

    fn room_for_jobs(&self, data_bytes: u64) -> u64 {
        self.options.free_bytes_min.unwrap_or_else(|| job_bytes(data_bytes) + self.step_bytes(data_bytes))
    }

    /// What a job writes that is as small as it can be: a table anew, or the copies of one unit of values.
    fn smallest_job(&self) -> u64 {
        let table = |p: &Tree| p.view().version.tables().map(|table| table.meta().bytes).max().unwrap_or(0);
        self.trees().iter().map(|p| table(p).max(p.placement().largest_unit())).max().unwrap_or(0)
    }

    /// Bytes in tables and value files.
    fn data_bytes(&self) -> u64 {
        let trees = self.trees();
        let tables = |p: &Tree| p.view().version.tables().map(|table| table.meta().bytes).sum::<u64>();
        trees.iter().map(|p| tables(p) + p.placement().space().total_bytes).sum()
    }

    /// Has `RESERVE` fit the database, once it is open.
    pub fn provide_reserve(&self) {
        if let Some(free) = self.dir.free_bytes() {
            let data_bytes = self.data_bytes();
            self.fit_reserve(data_bytes, free, self.kept_free() + self.room_for_jobs(data_bytes));
        }
    }

    /// Has `RESERVE` grow and shrink with the database; grow where the disk has plenty of room.
    fn fit_reserve(&self, data_bytes: u64, free: u64, needed: u64) {
        let most = self.options.free_bytes_min.unwrap_or(u64::MAX);
        let wanted = reserve_bytes(data_bytes, self.smallest_job(), most);
        // For the change under way, and for the next one while what that one replaced is not free yet.
        let wanted = wanted + if wanted > 0 { (2 * self.room.change_bytes).min(data_bytes).min(most) } else { 0 };
        let mut reserve = self.room.reserve.hold();
        if reserve.bytes > RESERVE_BYTES_MIN.max(wanted.saturating_mul(4)) {
            reserve.release(&self.dir);
        }
        let is_plenty = free / 4 > wanted && free / 2 > needed;
        if reserve.bytes < wanted / 4 * 3 && is_plenty && !reserve.is_refused && !self.room.is_short() {
            reserve.grow_to(wanted, &self.dir);
        }
    }

    /// Does work, and notes how it has ended: work that has found too little room waits for more.
    pub fn noting_room<T>(&self, tree: &Tree, job: Job, work: impl FnOnce() -> Result<T>) -> Result<T> {
        let outcome = work();
        self.note_room(tree, job, outcome.as_ref().err());
        outcome
    }

    /// Does a flush, a merge or the copies of a collection, which remove their output when they fail and have changed nothing. So a system
    /// that has no room, whatever it has said was free, is told as [`Error::Full`]; but first it is done once more with what
    /// `RESERVE` gives.
    pub fn with_room<T>(&self, means: Means, work: impl Fn() -> Result<T>) -> Result<T> {
        let outcome = match work() {
            Err(error) if error.is_full() && means.reach_reserve() && self.room.release(&self.dir) => work(),
            other => other,
        };
        outcome.map_err(|error| match self.dir.free_bytes() {
            // Where nobody says how much is free, nobody would know when to begin again: it poisons.
            Some(free) if matches!(error, Error::Io { .. }) && error.is_full() => self.full(free, self.kept_free()),
            _ => error,
        })
    }

    /// Waits for memtables of some trees to be written: until `is_enough`, or a flush of one has too little room. `stats` says who waits
    /// on what.
    ///
    /// # Errors
    /// [`Error::Full`], and those of [`Engine::wait_until`].
    pub fn wait_for_flush_of(
        &self,
        (who, on): (&'static str, &'static str),
        trees: impl Fn() -> Vec<Arc<Tree>>,
        is_enough: impl Fn() -> bool,
    ) -> Result<()> {
        // It is kept: what holds a flush up may be over by the time it is asked again, with nothing written.
        let full = Cell::new(None);
        self.wait_until(who, on, || {
            let is_enough = is_enough();
            let held_up = if is_enough { None } else { trees().iter().find_map(|p| self.held_up(p, Job::Flush)) };
            let is_over = is_enough || held_up.is_some();
            full.set(held_up);
            is_over
        })?;
        full.into_inner().map_or(Ok(()), Err)
    }

    fn note_room(&self, tree: &Tree, job: Job, error: Option<&Error>) {
        let mut held_up = self.room.held_up.hold();
        match error {
            Some(why @ Error::Full { .. }) => {
                let left = self.dir.free_bytes().unwrap_or(u64::MAX);
                let since = self.env.clock.now();
                held_up.insert((tree.keyspace, job), HeldUp { left, since, why: why.clone() });
            }
            _ => drop(held_up.remove(&(tree.keyspace, job))),
        }
    }

    /// Why work of a keyspace waits for room, if it does.
    pub fn held_up(&self, tree: &Tree, job: Job) -> Option<Error> {
        let held_up = self.room.held_up.hold();
        let found = held_up.get(&(tree.keyspace, job))?;
        let is_as_before = self.dir.free_bytes().is_some_and(|free| free <= found.left);
        let is_fresh = self.env.clock.now().saturating_sub(found.since) < RETRY;
        (is_as_before && is_fresh && !tree.is_dropped()).then(|| found.why.clone())
    }
}

/// What a flush of memtables with so many bytes writes, their indexes and filters included; or a collection of so many live bytes, its
/// moves included.
fn written_bytes(bytes: u64) -> u64 {
    bytes + bytes / 4
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    #[test]
    fn a_small_database_keeps_room_for_a_rewrite_and_a_large_one_for_a_part() {
        assert_eq!(job_bytes(0), 0);
        assert_eq!(job_bytes(8 * MIB), 6 * MIB);
        assert_eq!(job_bytes(500 * MIB), 64 * MIB);
        assert_eq!(job_bytes(16 << 30), 1 << 30);
    }

    #[test]
    fn the_reserve_is_a_share_of_the_data_within_bounds() {
        assert_eq!(reserve_bytes(0, 0, 0), 0);
        assert_eq!(reserve_bytes(8 * MIB, MIB, MIB * 64), 2 * MIB);
        assert_eq!(reserve_bytes(32 * MIB, MIB, 64 * MIB), RESERVE_BYTES_MIN);
        assert_eq!(reserve_bytes(320 * MIB, MIB, 64 * MIB), 10 * MIB);
        assert_eq!(reserve_bytes(320 * MIB, 16 * MIB, 64 * MIB), 20 * MIB, "a table can be written anew");
        assert_eq!(reserve_bytes(32 * MIB, 16 * MIB, 64 * MIB), 8 * MIB, "but never more than a quarter");
        assert_eq!(reserve_bytes(1 << 40, MIB, 1 << 36), RESERVE_BYTES_MAX);
        assert_eq!(reserve_bytes(1 << 40, MIB, 7), 7, "not more than the options ask for");
    }
}
