//! How writers and GC wait for as long as the [pace](super) asks.

use std::{
    sync::{
        Arc,
        atomic::Ordering::{Acquire, Relaxed},
    },
    time::Duration,
};

use bifold_contract::Result;
use bifold_io::Clock;

use crate::{
    counts::counters::{Counters, StallCause},
    limits::{
        memory::MEMTABLES_MAX,
        pace::{
            Pace,
            rates::{SPACE_FULL, memtable_rate, space_rate},
        },
        space::Fullness,
        waits::Waits,
    },
    log::trees::Trees,
    state::{health::Health, op::Op, telling::Events, tree::Tree},
};

/// A few moves at a time fit into the last memtable while it is filled less than this.
const FILL_MOVES: f64 = 0.95;

/// The shortest sleep worth its system call.
const SLEEP_MIN: Duration = Duration::from_micros(100);

/// How much longer than asked for a sleep may last at the expense of later delays: a sleep of 100 us takes 160 to 180,
/// and without this the pace would slow writers by more than it computes.
const OVERSLEEP_MAX: Duration = Duration::from_micros(100);

/// The longest single sleep; the rest of the delay is left to the next commit.
const SLEEP_MAX: Duration = Duration::from_millis(5);

/// The longest that one commit waits for its share of the trickle.
pub(super) const TRICKLE_WAIT_MAX: Duration = Duration::from_secs(5);

/// The noted fullness of the fullest keyspace that these operations write to.
fn fullest(ops: &[Op<'_>]) -> Fullness {
    let noted = |op: &Op<'_>| (op.tree.looks.fullness.load(Relaxed), op.tree.looks.slack_bytes.load(Relaxed));
    let (thousandths, slack_bytes) = ops.iter().map(noted).max().unwrap_or_default();
    Fullness { share: thousandths as f64 / 1000.0, slack_bytes }
}

/// Makes writers wait for as long as the pace asks.
pub(crate) struct Throttle {
    pub clock: Arc<dyn Clock>,
    pub counters: Arc<Counters>,
    pub health: Arc<Health>,
    pub pace: Arc<Pace>,
    pub trees: Arc<Trees>,
    pub waits: Arc<Waits>,
    pub events: Arc<Events>,
    /// A memtable is full with so many bytes.
    pub memtable_bytes: u64,
}

impl Throttle {
    /// Makes the caller wait as long as the pace asks for a commit of `bytes`; `in_memtable` of them go to memtables.
    /// Returns whether the pace had to look at how long.
    ///
    /// # Errors
    /// The failure that poisoned the database while waiting.
    pub fn pace(&self, ops: &[Op<'_>], bytes: u64, in_memtable: u64) -> Result<bool> {
        if self.waits.works_in_caller() {
            return Ok(false);
        }
        let sealed = self.pace.sealed_noted();
        let debt_rate = self.pace.debt_rate.load(Relaxed);
        let fullness = if self.pace.is_space_tight() { fullest(ops) } else { Fullness::default() };
        let space_rate = space_rate(fullness, self.pace.free_rate.load(Relaxed) as f64);
        if sealed == 0 && debt_rate == 0 && space_rate.is_none() {
            self.events.flows();
            return Ok(false);
        }
        let fill = self.pace.fill(ops.iter().map(|op| op.tree));
        if sealed as usize >= MEMTABLES_MAX - 1 && fill >= 1.0 - in_memtable as f64 / self.memtable_bytes as f64 {
            let begin = self.clock.now();
            self.events.stalls(StallCause::MemtablesFull.name());
            self.wait_for_flush("a commit")?;
            self.counters.stalled(StallCause::MemtablesFull, self.clock.now().saturating_sub(begin));
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
        match costs.into_iter().max_by(|a, b| a.0.total_cmp(&b.0)).filter(|most| most.0 > 0.0) {
            Some((seconds, cause)) => {
                let is_full = || cause == StallCause::Space && fullest(ops).share >= SPACE_FULL;
                self.owe(Duration::from_secs_f64(seconds), cause, is_full)?;
            }
            // One sealed memtable, or a little garbage, slows nobody.
            None => self.events.flows(),
        }
        Ok(true)
    }

    /// Makes a GC run, or a compaction with a filter, wait before its next commit while every memtable is full. That is
    /// no stall: no writer waits, and the next commit may come much later.
    ///
    /// # Errors
    /// As [`Throttle::pace`].
    pub fn pace_moves(&self, tree: &Arc<Tree>) -> Result<()> {
        let sealed = self.pace.sealed_noted() as usize;
        if sealed >= MEMTABLES_MAX - 1
            && !self.waits.works_in_caller()
            && self.pace.fill([tree].into_iter()) >= FILL_MOVES
        {
            self.wait_for_flush("a GC run or a filter")?;
        }
        Ok(())
    }

    /// Adds `cost` to the delay that writers owe, and sleeps when that is long enough: for a while only, or, while
    /// space `is_full`, until it is paid.
    fn owe(&self, cost: Duration, cause: StallCause, is_full: impl Fn() -> bool) -> Result<()> {
        let now = self.clock.now();
        let now_ns = nanos(now);
        let after = |free_at: u64| free_at.max(now_ns.saturating_sub(nanos(OVERSLEEP_MAX))) + nanos(cost);
        let before = self.pace.free_at_ns.fetch_update(Relaxed, Relaxed, |free_at| Some(after(free_at)));
        let owed = Duration::from_nanos(after(before.unwrap_or(now_ns)).saturating_sub(now_ns));
        if owed < SLEEP_MIN {
            return Ok(());
        }
        self.events.stalls(cause.name());
        self.clock.sleep(owed.min(SLEEP_MAX));
        if is_full() {
            self.wait_while_full(now + owed.min(TRICKLE_WAIT_MAX), is_full)?;
        }
        self.counters.stalled(cause, self.clock.now().saturating_sub(now));
        Ok(())
    }

    /// Waits until `end`, but only while space is full. It does not wait for work to end, which could take long.
    fn wait_while_full(&self, end: Duration, is_full: impl Fn() -> bool) -> Result<()> {
        while is_full() {
            let now = self.clock.now();
            if now >= end {
                return Ok(());
            }
            self.health.open()?;
            self.clock.sleep((end - now).clamp(SLEEP_MIN, SLEEP_MAX));
            if self.pace.is_stale.load(Acquire) {
                drop(self.pace.refresh());
            }
        }
        // The remaining delay was for a trickle that is no longer needed.
        self.pace.free_at_ns.fetch_min(nanos(self.clock.now()), Relaxed);
        Ok(())
    }

    /// Every memtable is full: waits until one is written.
    fn wait_for_flush(&self, who: &'static str) -> Result<()> {
        // Reads the trees themselves, not the notes.
        let room = || self.pace.sealed_most() < MEMTABLES_MAX - 1;
        self.waits.wait_for_flush_of((who, "a full memtable to be written"), || self.trees.all().to_vec(), room)
    }
}

fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}
