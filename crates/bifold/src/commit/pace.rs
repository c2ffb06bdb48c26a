//! How fast writers may go, so that no writer ever has to stop for long.
//!
//! Two things can fall behind: writing memtables (memory runs out) and compacting (reads and space get worse).
//! Writers are slowed by microseconds early instead of being stopped for 100 ms late:
//!
//! * **memtables**: `x` = sealed memtables + how full the active one is. From x = 1.5 on the allowed rate falls from
//!   four times the recent rate of writing memtables, through that rate itself at x = 2.5, to 0.8 of it.
//! * **space**: `f` = value files and tables, as a share of what the space target allows. From f = 0.90 on the
//!   allowed rate falls from four times the rate at which GC recently freed space, through that rate itself at f =
//!   0.95; but only while GC runs or could run. From f = [`SPACE_FULL`] on it is a trickle for all threads together,
//!   whatever GC does, and commits wait for all of it: a disk can be slower than ever before. Only commits to a
//!   keyspace that is this full are slowed.
//! * **debt**: from [`rates::DEBT_SLOW`] on, a feedback loop: each time a job ends, the allowed rate falls by a tenth
//!   if debt still grows and rises by a tenth if it shrinks.
//!
//! Delays accumulate until they are worth a system call, and writers sleep outside the commit lock. A writer waits
//! for a flush only when every memtable that the memory limit allows is full. The statistics count both kinds of
//! waiting by cause.

pub(crate) mod flushes;
mod rates;

use std::{
    collections::BTreeMap,
    sync::{
        Arc, Mutex, MutexGuard,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::Duration,
};

use bifold_contract::{KeyspaceId, Result};
use bifold_io::{Clock, rate::RateBudget};

use crate::{
    api::stats::StallCause,
    background::places::Places,
    commit::{memory::MEMTABLES_MAX, write::Op},
    engine::Engine,
    state::tree::Tree,
    waiting::sync::LockExt,
};

use self::{
    flushes::{FlushBegun, Flushes},
    rates::{DEBT_FREE, RATE_MIN, SPACE_FULL, free_after, memtable_rate, next_rate, space_rate},
};
use Ordering::{AcqRel, Acquire, Relaxed, Release};

/// A few moves at a time fit into the last memtable while it is filled less than this.
const FILL_MOVES: f64 = 0.95;

/// The bytes a second that GC is assumed to free before the first measurement: about what it frees with values of
/// 1000 bytes, rewrites included, on two cores.
const FREE_RATE_ASSUMED: u64 = 96 << 20;

/// The first GC runs outweigh the assumption once they have taken this many seconds.
const ASSUMED_SECONDS: f64 = 0.25;

/// What GC has freed is forgotten over this many seconds of GC.
const FREEING_SECONDS: f64 = 2.0;

/// The shortest sleep worth its system call.
const SLEEP_MIN: Duration = Duration::from_micros(100);

/// The longest single sleep; the rest of the delay is left to the next commit.
const SLEEP_MAX: Duration = Duration::from_micros(1500);

/// If tables alone exceed the target, writers are slowed this much later.
const UNREACHABLE_LEEWAY: f64 = 0.03;

/// The longest that one commit waits for its share of the trickle.
const TRICKLE_WAIT_MAX: Duration = Duration::from_secs(5);

/// The pace of one database.
pub(crate) struct Pace {
    /// Largest number of sealed memtables of any tree at the last change. 0 means that nothing needs to be checked.
    sealed_max: AtomicU64,
    /// Keyspaces (those in `stale`) have changed since this and `fullness` were noted. A reader of these values
    /// updates them first.
    is_stale: AtomicBool,
    stale: Mutex<Places>,
    /// Bytes a second of recent memtable writes; 0 before the first.
    flush_rate: AtomicU64,
    flushes: Mutex<Flushes>,
    /// Bytes a second that debt allows; 0 means any number.
    debt_rate: AtomicU64,
    /// When all delays imposed so far are over, in nanoseconds of the engine's clock.
    free_at_ns: AtomicU64,
    feedback: Mutex<Feedback>,
    /// Space slows writers to some keyspace.
    is_tight: AtomicBool,
    /// The keyspaces that slow writers; all others are in shape. So a commit or a job that changes one keyspace does
    /// not need to look at the others.
    behind: Mutex<BTreeMap<KeyspaceId, Behind>>,
    /// What GC recently freed, and the bytes a second that follow from it.
    freeing: Mutex<Freeing>,
    gc: Mutex<GcTime>,
    free_rate: AtomicU64,
    /// What compactions may write.
    pub budget: RateBudget,
}

/// How far background work is behind in one keyspace.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Behind {
    sealed: usize,
    debt: f64,
    fullness: f64,
}

impl Behind {
    /// Whether nothing in it slows writers. Debt has no effect below [`DEBT_FREE`].
    fn is_in_shape(&self) -> bool {
        self.sealed == 0 && self.debt < DEBT_FREE && self.fullness == 0.0
    }
}

#[derive(Default)]
struct Feedback {
    last_debt: f64,
    last_bytes: u64,
    last_time: Duration,
    ingest_rate: f64,
}

/// What GC recently freed, and how long that took.
#[derive(Clone, Copy, Debug)]
struct Freeing {
    bytes: f64,
    seconds: f64,
}

/// The number of GC runs now, and since when their time has not been counted.
#[derive(Clone, Copy, Debug, Default)]
struct GcTime {
    running: u32,
    since: Duration,
}

impl GcTime {
    fn begin(self, now: Duration) -> Self {
        Self { running: self.running + 1, since: if self.running == 0 { now } else { self.since } }
    }

    /// Also returns the time to be counted: that of concurrent runs only once.
    fn end(self, now: Duration) -> (Self, Duration) {
        (Self { running: self.running - 1, since: now }, now.saturating_sub(self.since))
    }
}

impl Default for Freeing {
    fn default() -> Self {
        Self { bytes: FREE_RATE_ASSUMED as f64 * ASSUMED_SECONDS, seconds: ASSUMED_SECONDS }
    }
}

impl Freeing {
    /// The state after one more run. Pure.
    fn and(self, bytes: f64, seconds: f64) -> Self {
        let kept = (-seconds / FREEING_SECONDS).exp();
        Self { bytes: self.bytes * kept + bytes, seconds: self.seconds * kept + seconds }
    }

    fn rate(self) -> f64 {
        (self.bytes / self.seconds).max(RATE_MIN)
    }
}

impl Pace {
    /// A pace that allows everything at first.
    pub fn new(memtable_bytes: u64, background_bytes_per_second: Option<u64>, clock: &Arc<dyn Clock>) -> Self {
        let budget = RateBudget::new(Arc::clone(clock), background_bytes_per_second);
        Self {
            sealed_max: AtomicU64::new(0),
            is_stale: AtomicBool::new(true),
            stale: Mutex::default(),
            flush_rate: AtomicU64::new(memtable_bytes.max(1) * 4),
            flushes: Mutex::default(),
            debt_rate: AtomicU64::new(0),
            free_at_ns: AtomicU64::new(0),
            feedback: Mutex::default(),
            is_tight: AtomicBool::new(false),
            behind: Mutex::default(),
            freeing: Mutex::default(),
            gc: Mutex::default(),
            free_rate: AtomicU64::new(FREE_RATE_ASSUMED),
            budget,
        }
    }

    /// The notes on these keyspaces are out of date.
    pub fn forget(&self, keyspaces: &[KeyspaceId]) {
        self.stale.hold().add(keyspaces.iter().copied());
        self.is_stale.store(true, Release);
    }

    /// Notes that a flush begins.
    pub fn flush_begins(&self, now: Duration) -> FlushBegun {
        self.flushes.hold().begin(now)
    }

    /// Notes that a flush has ended, and the bytes of its memtable unless it has failed.
    pub fn flush_ends(&self, begun: FlushBegun, bytes: Option<u64>, now: Duration) {
        let at_once = self.flushes.hold().end(begun, now);
        if let Some(bytes) = bytes {
            let time = now.saturating_sub(begun.at).as_secs_f64().max(1e-6);
            let old = self.flush_rate.load(Relaxed) as f64;
            self.flush_rate.store((0.5 * old + 0.5 * at_once * bytes as f64 / time) as u64, Relaxed);
        }
    }

    /// The most flushes that have run at once.
    pub fn flushes_at_once_max(&self) -> u32 {
        self.flushes.hold().most()
    }

    /// Notes that a GC run begins.
    pub fn gc_begins(&self, now: Duration) {
        let mut gc = self.gc.hold();
        *gc = gc.begin(now);
    }

    /// Notes that a GC run has ended and how many bytes it freed; 0 if it only found out what there is to free. With
    /// `None` its time does not count.
    pub fn gc_ends(&self, freed_bytes: Option<u64>, now: Duration) {
        let time = {
            let mut gc = self.gc.hold();
            let (after, time) = gc.end(now);
            *gc = after;
            time
        };
        if let Some(bytes) = freed_bytes {
            self.freed(bytes, time);
        }
    }

    /// Notes that so many bytes of values came free in `time`.
    pub fn freed(&self, bytes: u64, time: Duration) {
        let mut freeing = self.freeing.hold();
        *freeing = freeing.and(bytes as f64, time.as_secs_f64());
        self.free_rate.store(freeing.rate() as u64, Relaxed);
    }

    /// Shows writers what slows them.
    fn show(&self, behind: &BTreeMap<KeyspaceId, Behind>) {
        let sealed = behind.values().map(|of| of.sealed).max().unwrap_or(0);
        self.sealed_max.store(sealed as u64, Relaxed);
        self.is_tight.store(behind.values().any(|of| of.fullness > 0.0), Relaxed);
    }

    /// The feedback on debt. `bytes`: all bytes committed so far.
    fn steer(&self, debt: f64, bytes: u64, now: Duration) {
        let mut feedback = self.feedback.hold();
        let elapsed = now.saturating_sub(feedback.last_time).as_secs_f64();
        if elapsed > 0.05 {
            feedback.ingest_rate = bytes.saturating_sub(feedback.last_bytes) as f64 / elapsed;
            feedback.last_bytes = bytes;
            feedback.last_time = now;
        }
        let rate = next_rate(self.debt_rate.load(Relaxed) as f64, feedback.ingest_rate, debt, feedback.last_debt);
        feedback.last_debt = debt;
        self.debt_rate.store(rate as u64, Relaxed);
    }
}

/// The noted fullness of the fullest keyspace that these operations write to.
fn fullest(ops: &[Op<'_>]) -> f64 {
    let fullest = ops.iter().map(|op| op.tree.looks.fullness.load(Relaxed)).max();
    fullest.unwrap_or(0) as f64 / 1000.0
}

impl Engine {
    /// Makes the caller wait as long as the pace asks for a commit of `bytes`; `in_memtable` of them go to memtables.
    ///
    /// # Errors
    /// The failure that poisoned the database while waiting.
    pub fn pace(&self, ops: &[Op<'_>], bytes: u64, in_memtable: u64) -> Result<()> {
        if self.works_in_caller() {
            return Ok(());
        }
        let sealed = self.sealed_noted();
        let debt_rate = self.pace.debt_rate.load(Relaxed);
        let fullness = if self.is_space_tight() { fullest(ops) } else { 0.0 };
        let space_rate = space_rate(fullness, self.pace.free_rate.load(Relaxed) as f64);
        if sealed == 0 && debt_rate == 0 && space_rate.is_none() {
            return Ok(());
        }
        let fill = self.fill(ops.iter().map(|op| op.tree));
        if sealed as usize >= MEMTABLES_MAX - 1 && fill >= 1.0 - in_memtable as f64 / self.plan.memtable as f64 {
            self.wait_for_flush("a commit")?;
        }
        let flush_rate = self.pace.flush_rate.load(Relaxed) as f64;
        let by_memtables = memtable_rate(sealed as f64 + fill)
            .map_or(0.0, |multiple| in_memtable as f64 / (multiple * flush_rate).max(1.0));
        let by_debt = if debt_rate == 0 { 0.0 } else { bytes as f64 / debt_rate as f64 };
        // Capped by the longest wait: other writers would pay the rest of a large value's delay.
        let by_space = space_rate.map_or(0.0, |rate| (bytes as f64 / rate).min(TRICKLE_WAIT_MAX.as_secs_f64()));
        let costs = [
            (by_memtables, StallCause::Memtables),
            (by_debt, StallCause::CompactionDebt),
            (by_space, StallCause::Space),
        ];
        if let Some((seconds, cause)) = costs.into_iter().max_by(|a, b| a.0.total_cmp(&b.0)).filter(|most| most.0 > 0.0)
        {
            let is_full = || cause == StallCause::Space && fullest(ops) >= SPACE_FULL;
            self.owe(Duration::from_secs_f64(seconds), cause, is_full)?;
        }
        Ok(())
    }

    /// Makes a GC run wait before its next moves while every memtable is full.
    ///
    /// # Errors
    /// As [`Engine::pace`].
    pub fn pace_moves(&self, tree: &Arc<Tree>) -> Result<()> {
        let sealed = self.sealed_noted() as usize;
        if sealed >= MEMTABLES_MAX - 1 && !self.works_in_caller() && self.fill([tree].into_iter()) >= FILL_MOVES {
            self.wait_for_flush("a GC run")?;
        }
        Ok(())
    }

    /// Adds `cost` to the delay that writers owe, and sleeps when that is long enough: for a while only, or, while
    /// space `is_full`, until it is paid.
    fn owe(&self, cost: Duration, cause: StallCause, is_full: impl Fn() -> bool) -> Result<()> {
        let now = self.env.clock.now();
        let now_ns = nanos(now);
        let advance = |free_at: u64| free_after(free_at, now_ns, nanos(cost));
        let update = |free_at: u64| Some(advance(free_at));
        let before = self.pace.free_at_ns.fetch_update(Relaxed, Relaxed, update).unwrap_or(now_ns);
        let owed = Duration::from_nanos(advance(before).saturating_sub(now_ns));
        if owed < SLEEP_MIN {
            return Ok(());
        }
        self.env.clock.sleep(owed.min(SLEEP_MAX));
        if is_full() {
            self.wait_while_full(now + owed.min(TRICKLE_WAIT_MAX), is_full)?;
        }
        self.counters.stalled(cause, self.env.clock.now().saturating_sub(now));
        Ok(())
    }

    /// Waits until `end`, but only while space is full. It does not wait for work to end, which could take long.
    fn wait_while_full(&self, end: Duration, is_full: impl Fn() -> bool) -> Result<()> {
        while is_full() {
            let now = self.env.clock.now();
            if now >= end {
                return Ok(());
            }
            self.health.open()?;
            self.env.clock.sleep((end - now).clamp(SLEEP_MIN, SLEEP_MAX));
            if self.pace.is_stale.load(Acquire) {
                drop(self.refresh_pace());
            }
        }
        // The remaining delay was for a trickle that is no longer needed.
        self.pace.free_at_ns.fetch_min(nanos(self.env.clock.now()), Relaxed);
        Ok(())
    }

    /// Whether space slows writers.
    pub fn is_space_tight(&self) -> bool {
        self.pace.is_tight.load(Relaxed)
    }

    /// Every memtable is full: waits until one is written.
    fn wait_for_flush(&self, who: &'static str) -> Result<()> {
        let begin = self.env.clock.now();
        // Reads the trees themselves, not the notes.
        let room = || self.sealed_most() < MEMTABLES_MAX - 1;
        self.wait_for_flush_of((who, "a full memtable to be written"), || self.trees.all().to_vec(), room)?;
        self.counters.stalled(StallCause::MemtablesFull, self.env.clock.now().saturating_sub(begin));
        Ok(())
    }

    /// How full the fullest active memtable of these trees is, 0 to 1.
    fn fill<'a>(&self, trees: impl Iterator<Item = &'a Arc<Tree>>) -> f64 {
        let fullest = trees.map(|tree| tree.view().active.memtable.bytes()).max().unwrap_or(0);
        (fullest as f64 / self.plan.memtable as f64).min(1.0)
    }

    /// Updates how far background work is behind in all keyspaces, and steers by it.
    pub fn update_pace(&self) {
        self.pace.stale.hold().add_all();
        self.steer(&[]);
    }

    /// The same for these keyspaces: called when a job of one has ended and when there is one more.
    pub fn update_pace_of(&self, keyspaces: &[KeyspaceId]) {
        self.steer(keyspaces);
    }

    fn steer(&self, keyspaces: &[KeyspaceId]) {
        self.pace.stale.hold().add(keyspaces.iter().copied());
        let behind = self.refresh_pace();
        let debt = behind.values().map(|of| of.debt).fold(0.0, f64::max);
        self.pace.steer(debt, self.counters.user_bytes_written(), self.env.clock.now());
    }

    /// Updates how full the value files of a keyspace are, as a share of their space target.
    pub fn update_fullness_of(&self, keyspace: KeyspaceId) {
        self.pace.forget(&[keyspace]);
        drop(self.refresh_pace());
    }

    /// Largest number of sealed memtables of any tree at the last change.
    fn sealed_noted(&self) -> u64 {
        if self.pace.is_stale.load(Acquire) {
            drop(self.refresh_pace());
        }
        self.pace.sealed_max.load(Relaxed)
    }

    /// Updates the notes on the trees that have changed, and on no other.
    fn refresh_pace(&self) -> MutexGuard<'_, BTreeMap<KeyspaceId, Behind>> {
        // Under the lock, so that the last note comes from the last look.
        let mut behind = self.pace.behind.hold();
        // Cleared first: a change during this update causes one more.
        self.pace.is_stale.swap(false, AcqRel);
        let stale = self.pace.stale.hold().take();
        match &stale {
            Places::All => behind.clear(),
            Places::In(some) => behind.retain(|keyspace, _| !some.contains(keyspace)),
        }
        for tree in self.trees.of(&stale) {
            let of_tree = self.behind(&tree);
            tree.looks.fullness.store((of_tree.fullness * 1000.0) as u64, Relaxed);
            if !of_tree.is_in_shape() {
                behind.insert(tree.keyspace, of_tree);
            }
        }
        self.pace.show(&behind);
        behind
    }

    fn behind(&self, tree: &Tree) -> Behind {
        let fullness = if tree.separates { self.fullness(tree) } else { 0.0 };
        Behind { sealed: tree.view().sealed.len(), debt: tree.debt(), fullness }
    }

    /// Largest number of sealed memtables of any tree.
    fn sealed_most(&self) -> usize {
        self.trees.all().iter().map(|p| p.view().sealed.len()).max().unwrap_or(0)
    }

    /// Whether there is no room for the copies of a GC run before the files that others drained are deleted.
    pub fn is_full(&self, tree: &Tree) -> bool {
        self.space_taken(tree) >= SPACE_FULL
    }

    /// The space of a tree's value files, as a share of what they may take.
    fn space_taken(&self, tree: &Tree) -> f64 {
        let (pressure, mut space) = (self.pressure(tree), tree.placement().space());
        space.live_bytes = space.live_bytes.saturating_sub(tree.placement().stale_bytes(&pressure));
        let fullness = pressure.fullness(&space);
        if pressure.is_reachable(&space) {
            return fullness;
        }
        // A trickle only helps to hold a target that is reachable. Each further hundredth is harder to free here:
        // nearly everything is live.
        (fullness - UNREACHABLE_LEEWAY).min(SPACE_FULL - 0.01)
    }

    /// The same if it slows writers; else 0.
    fn fullness(&self, tree: &Tree) -> f64 {
        let fullness = self.space_taken(tree);
        // While there is no garbage to free, slower writers would only take longer to produce some.
        if space_rate(fullness, 1.0).is_some() && self.is_freeing(tree) { fullness } else { 0.0 }
    }
}

fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests;
