//! How fast writers may go, so that no writer ever has to stop for long.
//!
//! Two things can fall behind: writing memtables (memory runs out) and compacting (reads and space get worse).
//! Writers are slowed by microseconds early instead of being stopped for 100 ms late:
//!
//! * **memtables**: `x` = sealed memtables + how full the active one is. From x = 1.5 on the allowed rate falls from
//!   four times the recent rate of writing memtables, through that rate itself at x = 2.5, to 0.8 of it.
//! * **space**: `f` = garbage and tables, as a share of what the space target allows beyond live values. On its scale,
//!   GC of each placement starts at f = 0.75 (`SpacePressure::fullness`). From f = 0.70 on the allowed rate falls from
//!   four times the rate at which GC recently freed space, through that rate itself at f = 0.85; but only while GC runs
//!   or could run. From f = `SPACE_FULL` on commits wait for all of their delay, and the rate falls steeply, to a
//!   trickle for all threads together at f = `SPACE_OVER`, whatever GC does: a disk can be slower than ever before.
//!   Only commits to a keyspace that is this full are slowed.
//! * **debt**: from [`rates::DEBT_SLOW`] on, a feedback loop: each time a job ends, the allowed rate falls by a tenth
//!   if debt still grows and rises by a tenth if it shrinks.
//!
//! Delays accumulate until they are worth a system call, and writers sleep outside the commit lock. A writer waits
//! for a flush only when every memtable that the memory limit allows is full. The statistics count both kinds of
//! waiting by cause.

pub(crate) mod flushes;
mod freeing;
pub(crate) mod rates;
pub(crate) mod slowed;

use std::{
    collections::BTreeMap,
    sync::{
        Arc, Mutex, MutexGuard,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::Duration,
};

use bifold_contract::KeyspaceId;
use bifold_io::{Clock, rate::RateBudget};

use crate::{
    counts::counters::Counters,
    limits::space::{Fullness, Space},
    log::trees::Trees,
    state::{op::Op, places::Places, tree::Tree, work::Work},
    waiting::sync::LockExt,
};

use self::{
    flushes::{FlushBegun, Flushes},
    freeing::{FREE_RATE_ASSUMED, Freeing, GcTime},
    rates::{DEBT_FREE, next_rate},
};
use Ordering::{AcqRel, Acquire, Relaxed, Release};

/// Workers look for garbage each time commits have written this share of a keyspace's separated values.
const LOOK_SHARE: u64 = 64;

/// The share where space is so tight that writers are slowed.
const TIGHT_SHARE: u64 = 512;

/// Workers look at most once per this many bytes.
const LOOK_BYTES_MIN: u64 = 64 << 10;

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
    memtable_bytes: u64,
    clock: Arc<dyn Clock>,
    counters: Arc<Counters>,
    trees: Arc<Trees>,
    work: Arc<Work>,
    space: Arc<Space>,
}

/// What the pace follows from, in addition to time.
pub(crate) struct PacedBy<'a> {
    pub counters: &'a Arc<Counters>,
    pub trees: &'a Arc<Trees>,
    pub work: &'a Arc<Work>,
    pub space: &'a Arc<Space>,
}

/// How far background work is behind in one keyspace.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Behind {
    sealed: usize,
    debt: f64,
    fullness: Fullness,
}

impl Behind {
    /// Whether nothing in it slows writers. Debt has no effect below [`DEBT_FREE`].
    fn is_in_shape(&self) -> bool {
        self.sealed == 0 && self.debt < DEBT_FREE && self.fullness.share == 0.0
    }
}

#[derive(Default)]
struct Feedback {
    last_debt: f64,
    last_bytes: u64,
    last_time: Duration,
    ingest_rate: f64,
}

impl Pace {
    /// A pace that allows everything at first.
    pub fn new(
        memtable_bytes: u64,
        background_bytes_per_second: Option<u64>,
        clock: &Arc<dyn Clock>,
        by: &PacedBy<'_>,
    ) -> Self {
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
            memtable_bytes,
            clock: Arc::clone(clock),
            counters: Arc::clone(by.counters),
            trees: Arc::clone(by.trees),
            work: Arc::clone(by.work),
            space: Arc::clone(by.space),
        }
    }

    /// The notes on these keyspaces are out of date.
    pub fn forget(&self, keyspaces: &[KeyspaceId]) {
        self.stale.hold().add(keyspaces.iter().copied());
        self.is_stale.store(true, Release);
    }

    /// The notes on all keyspaces are out of date.
    pub fn forget_all(&self) {
        self.stale.hold().add_all();
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
        self.is_tight.store(behind.values().any(|of| of.fullness.share > 0.0), Relaxed);
    }

    /// The feedback on debt. `bytes`: all bytes committed so far.
    fn steer_by(&self, debt: f64, bytes: u64, now: Duration) {
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

    /// Whether space slows writers.
    pub fn is_space_tight(&self) -> bool {
        self.is_tight.load(Relaxed)
    }

    /// How full the fullest active memtable of these trees is, 0 to 1.
    fn fill<'a>(&self, trees: impl Iterator<Item = &'a Arc<Tree>>) -> f64 {
        let fullest = trees.map(|tree| tree.view().active.memtable.bytes()).max().unwrap_or(0);
        (fullest as f64 / self.memtable_bytes as f64).min(1.0)
    }

    /// Updates how far background work is behind in all keyspaces, and steers by it.
    pub fn update(&self) {
        self.stale.hold().add_all();
        self.steer(&[]);
    }

    /// The same for these keyspaces: called when a job of one has ended and when there is one more.
    pub fn update_of(&self, keyspaces: &[KeyspaceId]) {
        self.steer(keyspaces);
    }

    fn steer(&self, keyspaces: &[KeyspaceId]) {
        self.stale.hold().add(keyspaces.iter().copied());
        let behind = self.refresh();
        let debt = behind.values().map(|of| of.debt).fold(0.0, f64::max);
        self.steer_by(debt, self.counters.user_bytes_written(), self.clock.now());
    }

    /// Updates how full the value files of a keyspace are, as a share of their space target.
    pub fn update_fullness_of(&self, keyspace: KeyspaceId) {
        self.forget(&[keyspace]);
        drop(self.refresh());
    }

    /// Largest number of sealed memtables of any tree at the last change.
    fn sealed_noted(&self) -> u64 {
        if self.is_stale.load(Acquire) {
            drop(self.refresh());
        }
        self.sealed_max.load(Relaxed)
    }

    /// Updates the notes on the trees that have changed, and on no other.
    fn refresh(&self) -> MutexGuard<'_, BTreeMap<KeyspaceId, Behind>> {
        // Under the lock, so that the last note comes from the last look.
        let mut behind = self.behind.hold();
        // Cleared first: a change during this update causes one more.
        self.is_stale.swap(false, AcqRel);
        let stale = self.stale.hold().take();
        match &stale {
            Places::All => behind.clear(),
            Places::In(some) => behind.retain(|keyspace, _| !some.contains(keyspace)),
        }
        for tree in self.trees.of(&stale) {
            let of_tree = self.behind(&tree);
            tree.looks.slack_bytes.store(of_tree.fullness.slack_bytes, Relaxed);
            tree.looks.fullness.store((of_tree.fullness.share * 1000.0) as u64, Relaxed);
            if !of_tree.is_in_shape() {
                behind.insert(tree.keyspace, of_tree);
            }
        }
        self.show(&behind);
        behind
    }

    fn behind(&self, tree: &Tree) -> Behind {
        let fullness = if tree.separates { self.space.fullness(tree) } else { Fullness::default() };
        Behind { sealed: tree.view().sealed.len(), debt: tree.debt(), fullness }
    }

    /// Largest number of sealed memtables of any tree.
    fn sealed_most(&self) -> usize {
        self.trees.all().iter().map(|p| p.view().sealed.len()).max().unwrap_or(0)
    }

    /// Wakes the workers when commits have written so much of a keyspace's values that GC may be due, and updates how
    /// full its space is. It looks at no other keyspace: this is part of every commit, after its lock. Calls
    /// `will_look` first where it looks at all.
    pub fn note_values(&self, ops: &[Op<'_>], mut will_look: impl FnMut()) {
        let mut due = Vec::new();
        for op in ops.iter().filter(|op| op.tree.routes) {
            let (looks, bytes) = (&op.tree.looks, op.bytes());
            let written = looks.written.fetch_add(bytes, Relaxed) + bytes;
            if written >= looks.due_at.load(Relaxed) {
                will_look();
                let space = op.tree.placement().space().total_bytes;
                let share = if self.is_space_tight() { TIGHT_SHARE } else { LOOK_SHARE };
                looks.due_at.store(written + (space / share).max(LOOK_BYTES_MIN), Relaxed);
                self.update_fullness_of(op.tree.keyspace);
                due.push(op.tree.keyspace);
            }
        }
        if !due.is_empty() {
            self.work.look_at(&due);
        }
    }
}

#[cfg(test)]
mod tests;
