//! Statistics of GC, and what GC knows about each unit of separated values.

use std::sync::atomic::Ordering::Relaxed;

use bifold_format::names;
use bifold_values::placement::StaleReads;
use serde::Serialize;

use crate::engine::Engine;

/// GcPick of parted values.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub struct GcStats {
    /// Questions that collections asked of the index, and looks at how much there is to collect.
    pub index_lookups: u64,
    /// Addresses that collections wrote to the index.
    pub index_inserts: u64,
    /// Bytes of values that moved.
    pub bytes: u64,
    /// Collections.
    pub jobs: u64,
    /// Reads of values that have moved since the index learnt where they are (`novkv`): where an earlier read knew the place.
    pub repaired_reads: u64,
    /// And where the value had to be searched for.
    pub searched_reads: u64,
}

/// A group or file of values kept apart: what garbage collection knows of it.
#[derive(Clone, Debug, Serialize)]
#[non_exhaustive]
pub struct GarbageStats {
    /// The keyspace.
    pub keyspace: String,
    /// RewriteScope group or file.
    pub unit: String,
    /// Its files.
    pub files: Vec<String>,
    /// Bytes in it.
    pub total_bytes: u64,
    /// Bytes of it that are live, as far as known or estimated.
    pub live_bytes: u64,
    /// Bytes written to the keyspace since it was collected, or since the database was opened.
    pub age_bytes: u64,
    /// How much the policy wants it; the largest first.
    pub score: f64,
    /// Why it is not collected now; nothing when it is next.
    pub held: Option<&'static str>,
}

impl GarbageStats {
    /// All units of a database.
    pub(crate) fn of(engine: &Engine) -> Vec<Self> {
        let trees = engine.trees();
        let units = trees.iter().flat_map(|p| {
            let explained = p.placement().explain(&engine.pressure(p));
            explained.into_iter().map(move |unit| Self {
                keyspace: p.name.clone(),
                unit: unit.unit,
                files: unit.files.into_iter().map(names::value).collect(),
                total_bytes: unit.total_bytes,
                live_bytes: unit.live_bytes,
                age_bytes: unit.age_bytes,
                score: unit.score,
                held: unit.held,
            })
        });
        units.collect()
    }
}

impl GcStats {
    pub(super) fn of(engine: &Engine) -> Self {
        let gc = &engine.counters.gc;
        let stale: Vec<StaleReads> = engine.trees().iter().map(|p| p.placement().stale_reads()).collect();
        Self {
            index_lookups: gc.lookups.load(Relaxed),
            index_inserts: gc.inserts.load(Relaxed),
            bytes: gc.moved_bytes.load(Relaxed),
            jobs: gc.jobs.load(Relaxed),
            repaired_reads: stale.iter().map(|reads| reads.repaired).sum(),
            searched_reads: stale.iter().map(|reads| reads.searched).sum(),
        }
    }
}
