//! Statistics of GC, and what GC knows about each unit of separated values.

use std::sync::atomic::Ordering::Relaxed;

use bifold_format::names;
use bifold_values::placement::StaleReads;
use serde::Serialize;

use crate::engine::Engine;

/// GC of separated values.
#[derive(Clone, Copy, Debug, Default, Serialize)]
#[non_exhaustive]
pub struct GcStats {
    /// Lookups in the index by GC and by the estimates of how much garbage there is.
    pub index_lookups: u64,
    /// Pointers that GC wrote to the index.
    pub index_inserts: u64,
    /// Bytes of values that GC moved.
    pub bytes: u64,
    /// GC runs.
    pub jobs: u64,
    /// Reads of values that moved after the index recorded their place (`novkv`), answered because an earlier read
    /// had found the new place.
    pub repaired_reads: u64,
    /// The same, where the read had to search for the value.
    pub searched_reads: u64,
}

/// A group or file of separated values: what GC knows about it.
#[derive(Clone, Debug, Serialize)]
#[non_exhaustive]
pub struct GarbageStats {
    /// The keyspace.
    pub keyspace: String,
    /// Which group or file it is.
    pub unit: String,
    /// Its files.
    pub files: Vec<String>,
    /// Bytes in it.
    pub total_bytes: u64,
    /// Live bytes in it, known or estimated.
    pub live_bytes: u64,
    /// Bytes written to the keyspace since the last GC of this unit, or since the database was opened.
    pub age_bytes: u64,
    /// Its priority in the GC policy; GC picks the largest first.
    pub score: f64,
    /// Why GC does not pick it now; `None` when it is next.
    pub held: Option<&'static str>,
}

impl GarbageStats {
    /// All units of a database.
    pub(crate) fn of(engine: &Engine) -> Vec<Self> {
        let trees = engine.trees.all();
        let units = trees.iter().flat_map(|p| {
            let explained = p.placement().explain(&engine.space.pressure(p));
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
        let stale: Vec<StaleReads> = engine.trees.all().iter().map(|p| p.placement().stale_reads()).collect();
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
