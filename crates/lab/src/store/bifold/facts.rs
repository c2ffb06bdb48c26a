//! Bifold's own figures for experiments.

use bifold::{
    Db,
    stats::{KeyspaceStats, LevelOrderStats},
};

/// All of them, of the default keyspace. Figures of GC, stalls and moved bytes count from the opening of the database.
pub fn of(db: &Db) -> Vec<(&'static str, f64)> {
    let stats = db.stats();
    let memory = [stats.memory.memtables, stats.memory.cache, stats.memory.metadata, stats.memory.values];
    let mut facts = vec![
        ("gc_jobs", stats.gc.jobs as f64),
        ("gc_index_lookups", stats.gc.index_lookups as f64),
        ("gc_index_inserts", stats.gc.index_inserts as f64),
        ("gc_bytes", stats.gc.bytes as f64),
        ("reads_repaired", stats.gc.repaired_reads as f64),
        ("reads_searched", stats.gc.searched_reads as f64),
        ("gets", stats.gets as f64),
        ("tables_searched", stats.lookups.tables_searched as f64),
        ("memory", memory.iter().sum::<u64>() as f64),
        ("memory_metadata", stats.memory.metadata as f64),
        ("memory_values", stats.memory.values as f64),
        ("memory_memtables", stats.memory.memtables as f64),
        ("memory_cache", stats.memory.cache as f64),
        ("stalled_us", stats.stalls.iter().map(|stall| stall.total_us as f64).sum()),
        ("syncs", stats.syncs as f64),
    ];
    facts.extend(stats.keyspaces.iter().find(|keyspace| keyspace.name == "default").into_iter().flat_map(of_keyspace));
    facts.extend(of_groups(db));
    facts
}

fn of_keyspace(keyspace: &KeyspaceStats) -> Vec<(&'static str, f64)> {
    let filled = keyspace.levels.iter().filter(|level| level.bytes > 0);
    let mut facts = vec![
        ("alpha", keyspace.alpha),
        ("merges", keyspace.merges as f64),
        ("partitions", keyspace.partitions as f64),
        ("levels_filled", filled.clone().count() as f64),
        ("table_bytes", filled.map(|level| level.bytes as f64).sum()),
        ("level0_bytes", keyspace.levels.first().map_or(0.0, |level| level.bytes as f64)),
    ];
    if let Some(index) = &keyspace.hash_index {
        facts.extend([
            ("hash_index_bytes", index.bytes as f64),
            ("hash_index_buckets", index.buckets as f64),
            ("hash_index_used", index.buckets_used as f64),
        ]);
    }
    if let Some(order) = &keyspace.values {
        let levels = &order.levels;
        let deepest = levels.iter().map(|level| level.level).max().unwrap_or(0);
        let last_two = levels.iter().filter(|level| level.level + 1 >= deepest);
        facts.extend([
            ("value_merges", order.merges as f64),
            ("level_merges", order.level_merges as f64),
            ("value_merge_ms", order.merge_ms as f64),
            ("separated_values", order.separated_bytes as f64),
            ("values_merged", order.merged_bytes as f64),
            ("values_untangled", order.untangled_bytes as f64),
            ("values_collected", order.gc_bytes as f64),
            ("value_groups", levels.iter().map(|level| level.groups as f64).sum()),
            ("value_overlap", overlap(levels.iter())),
            ("value_overlap_last_two", overlap(last_two)),
        ]);
    }
    facts
}

/// How many files of its level overlap a file of these levels, itself included, on average.
fn overlap<'a>(levels: impl Iterator<Item = &'a LevelOrderStats> + Clone) -> f64 {
    let files: f64 = levels.clone().map(|level| level.files as f64).sum();
    let overlaps: f64 = levels.map(|level| level.overlap * level.files as f64).sum();
    if files > 0.0 { overlaps / files } else { 0.0 }
}

/// How evenly groups of values are filled (`hashkv`).
fn of_groups(db: &Db) -> Vec<(&'static str, f64)> {
    let units = db.explain_garbage();
    let sizes: Vec<f64> =
        units.iter().filter(|unit| unit.total_bytes > 0).map(|unit| unit.total_bytes as f64).collect();
    let (Some(least), Some(most)) = (sizes.iter().copied().reduce(f64::min), sizes.iter().copied().reduce(f64::max))
    else {
        return Vec::new();
    };
    let mean = sizes.iter().sum::<f64>() / sizes.len() as f64;
    vec![
        ("value_units", sizes.len() as f64),
        ("value_unit_least", least),
        ("value_unit_most", most),
        ("value_unit_most_over_mean", most / mean),
        ("value_unit_least_over_mean", least / mean),
        ("value_live_bytes", units.iter().map(|unit| unit.live_bytes as f64).sum()),
        ("value_bytes", sizes.iter().sum()),
    ]
}
