//! How much space a keyspace takes, against its target, and what is under way or due that frees some.

use std::sync::Arc;

use bifold_contract::{Levels, Run};
use bifold_values::placement::{GcClaim, GcJob, SpacePressure};

use crate::{
    limits::pace::rates::{SPACE_FULL, space_rate},
    state::{snapshot::Snapshots, tree::Tree, work::Work},
};

/// Bytes that an entry with a separated value takes in a table in addition to its key: pointer, sequence number,
/// lengths, its share of filter and index. With keys of 24 bytes it is 13, because keys share prefixes.
const SEPARATED_ENTRY_BYTES: u64 = 20;

/// If tables alone exceed the target, writers are slowed this much later.
const UNREACHABLE_LEEWAY: f64 = 0.09;

/// How full the space of a keyspace is, against its target.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Fullness {
    /// The share of the slack that is taken.
    pub share: f64,
    /// The bytes that the target allows beyond live values.
    pub slack_bytes: u64,
}

/// What decides how much of a keyspace's space is garbage that can go.
pub(crate) struct Space {
    snapshots: Arc<Snapshots>,
    work: Arc<Work>,
}

impl Space {
    /// Space as these snapshots and this work leave it.
    pub fn new(snapshots: &Arc<Snapshots>, work: &Arc<Work>) -> Self {
        Self { snapshots: Arc::clone(snapshots), work: Arc::clone(work) }
    }

    /// How tight space is in a keyspace.
    pub fn pressure(&self, tree: &Tree) -> SpacePressure {
        let view = tree.view();
        let levels = &tree.shape(&view).levels;
        // With unreadable tables no rewrite can prove a stale estimate, so it counts as 0.
        let stale_weight = if tree.unreadable.any() { 0.0 } else { 1.0 };
        let memtables = || view.layers().map(|layer| &layer.memtable);
        let overwritten: u64 = memtables().map(|memtable| memtable.entries().saturating_sub(memtable.keys())).sum();
        let mut runs = entries_of_runs(levels);
        runs.extend(memtables().map(|memtable| memtable.keys()));
        let tombstones: u64 = memtables().map(|memtable| memtable.tombstones()).sum();
        let in_tables: u64 = levels.tables().map(|(.., table)| table.tombstones).sum();
        let values = (runs.iter().sum::<u64>() + overwritten).saturating_sub(tombstones + in_tables).max(1) as f64;
        SpacePressure {
            index_bytes: levels.bytes(),
            inline_bytes: inline_bytes(levels),
            being_removed_bytes: tree.placement().being_removed_bytes(),
            entries_above: stale_weight * entries_outside_largest_run(runs) as f64 / values,
            overwritten: stale_weight * overwritten as f64 / values,
            target: tree.view().settings.options.values.space_target,
            copies_percent: tree.placement().profile().copies_percent,
            oldest_snapshot: self.snapshots.oldest(),
            all_before: None,
            boundaries: Arc::clone(&levels.boundaries),
        }
    }

    /// The next GC job of a keyspace while those with the `running` claims are under way.
    pub fn next_gc(&self, tree: &Tree, running: &[GcClaim]) -> Option<Box<dyn GcJob>> {
        if !tree.separates || running.iter().any(|claim| claim.is_alone) {
            return None;
        }
        let job = tree.placement().pick(&self.pressure(tree), running)?;
        (running.is_empty() || !job.claim().is_alone).then_some(job)
    }

    /// Whether GC or reclamation of a keyspace is running, or starts as soon as a worker is free, or files are being
    /// removed.
    pub fn is_freeing(&self, tree: &Tree) -> bool {
        let by_merges = || tree.placement().profile().separates_at_rewrite && self.is_merging(tree);
        self.work.is_freeing(tree.keyspace)
            || tree.placement().being_removed_bytes() > 0
            || self.can_reclaim(tree)
            || self.next_gc(tree, &[]).is_some()
            || by_merges()
    }

    /// Whether tables of a keyspace are being merged, or will be as soon as a worker is free.
    fn is_merging(&self, tree: &Tree) -> bool {
        tree.debt() >= 1.0 || !self.work.busy(tree.keyspace).tables.is_empty()
    }

    /// Whether a keyspace has drained files that only wait for a sync.
    pub fn can_reclaim(&self, tree: &Tree) -> bool {
        tree.separates && tree.placement().can_reclaim(self.snapshots.oldest())
    }

    /// Whether there is no room for the copies of a GC run before the files that others drained are gone.
    pub fn is_full(&self, tree: &Tree) -> bool {
        self.space_taken(tree).share >= SPACE_FULL
    }

    /// How much of the slack of a tree's space target is taken.
    fn space_taken(&self, tree: &Tree) -> Fullness {
        let (pressure, mut space) = (self.pressure(tree), tree.placement().space());
        space.live_bytes = space.live_bytes.saturating_sub(tree.placement().stale_bytes(&pressure));
        let (share, slack_bytes) = (pressure.fullness(&space), pressure.slack(&space) as u64);
        // A trickle only helps to hold a target that is reachable. Each further byte is harder to free here:
        // nearly everything is live.
        let is_reachable = pressure.is_reachable(&space);
        let share = if is_reachable { share } else { (share - UNREACHABLE_LEEWAY).min(SPACE_FULL - 0.03) };
        Fullness { share, slack_bytes }
    }

    /// The same, with a share of 0 if it does not slow writers.
    pub fn fullness(&self, tree: &Tree) -> Fullness {
        let fullness = self.space_taken(tree);
        // While there is no garbage to free, slower writers would only take longer to produce some.
        let slows = space_rate(fullness, 1.0).is_some() && self.is_freeing(tree);
        Fullness { share: if slows { fullness.share } else { 0.0 }, ..fullness }
    }
}

/// Estimated bytes of live inline values. It looks at the run with the most entries, since other runs may overwrite
/// its entries or be overwritten. From that run's bytes it subtracts what its entries would take with separated
/// values and with keys as long as those at the ends of tables. Too low where blocks are compressed, too high where
/// keys at the ends are shorter than others; never more than the run's bytes.
fn inline_bytes(levels: &Levels) -> u64 {
    let runs = levels.levels.iter().flat_map(|level| &level.runs);
    let entries_of = |run: &Run| run.tables.iter().map(|table| table.entries).sum::<u64>();
    let Some(largest) = runs.max_by_key(|run| entries_of(run)) else { return 0 };
    let at_ends: usize = largest.tables.iter().map(|table| table.smallest.len() + table.largest.len()).sum();
    let key_bytes = (at_ends / (2 * largest.tables.len()).max(1)) as u64;
    largest.bytes().saturating_sub(entries_of(largest) * (key_bytes + SEPARATED_ENTRY_BYTES))
}

/// The number of entries of each run.
fn entries_of_runs(levels: &Levels) -> Vec<u64> {
    let runs = levels.levels.iter().flat_map(|level| &level.runs);
    runs.map(|run: &Run| run.tables.iter().map(|table| table.entries).sum()).collect()
}

/// The entries outside the largest of several sorted runs: at most this many entries overwrite others or are
/// overwritten.
fn entries_outside_largest_run(runs: Vec<u64>) -> u64 {
    runs.iter().sum::<u64>() - runs.iter().max().unwrap_or(&0)
}
