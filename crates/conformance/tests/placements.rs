//! The battery for the placements of Bifold, and what must be exact in those where compaction reports what is dead.

use bifold::{
    Compaction, KeyspaceOptions, PlacementKind,
    options::{Cold, GcUnit, HashIndex, MergePolicy, TwoLayer},
};
use bifold_conformance::{Case, Dead, Separated};

bifold_conformance::battery! {
    inline: case(PlacementKind::Inline).separated(Separated::Never);
    wisckey: case(PlacementKind::WiscKey);
    hashkv: hashkv();
    novkv: novkv();
    hashkv_cold_log: hashkv().with(|keyspace| keyspace.values.hashkv.cold = Cold::Log).with_cold_files();
    diffkv: diffkv();
    diffkv_unmerged: diffkv().with(|keyspace| keyspace.values.diffkv.merge = MergePolicy::Off);
    unikv: unikv();
    unikv_by_partition: unikv_by_partition();
    streams: streams();
}

bifold_conformance::exact! {
    novkv_exact: novkv();
    diffkv_exact: diffkv();
    unikv_exact: unikv();
    unikv_by_partition_exact: unikv_by_partition();
    streams_exact: streams();
}

mod exact {
    #[test]
    fn workers_that_collect_at_once_lose_nothing_and_count_right() {
        bifold_conformance::exact::workers_that_collect_at_once_lose_nothing_and_count_right(&super::diffkv());
    }

    #[test]
    fn streams_collected_at_once_lose_nothing_and_count_right() {
        bifold_conformance::exact::workers_that_collect_at_once_lose_nothing_and_count_right(&super::streams());
    }
}

/// Groups of 2 KiB, and values from 150 bytes on in logs, where a placement has these.
fn case(placement: PlacementKind) -> Case {
    Case::new(placement).with(|keyspace| {
        let values = &mut keyspace.values;
        (values.hashkv.group_bytes, values.hashkv.groups_max) = (2 << 10, 32);
        (values.diffkv.large_bytes, values.diffkv.max_sorted_run) = (150, 3);
    })
}

fn hashkv() -> Case {
    case(PlacementKind::HashKv).with_range_deletes_in_files()
}

fn novkv() -> Case {
    case(PlacementKind::NovKv).dead(Dead::Named)
}

fn diffkv() -> Case {
    case(PlacementKind::DiffKv)
        .separated(Separated::ByCommitsAndFlushes)
        .with_moves_by_rewrites()
        .with_concurrent_jobs()
}

fn streams() -> Case {
    case(PlacementKind::Streams).with_concurrent_jobs()
}

fn unikv_by_partition() -> Case {
    unikv().with(|keyspace| keyspace.values.unikv.gc = GcUnit::Partition)
}

fn unikv() -> Case {
    let two_layers = |keyspace: &mut KeyspaceOptions| {
        keyspace.compaction = Compaction::TwoLayer(TwoLayer { unsorted_bytes: 12 << 10, scan_merge_runs: 3 });
        keyspace.partition_bytes = Some(24 << 10);
        // Tags that lead to wrong runs now and then.
        keyspace.hash_index = Some(HashIndex { tag_bits: 6, ..HashIndex::default() });
        keyspace.filter_bits_per_key = 0;
    };
    case(PlacementKind::UniKv).with(two_layers).separated(Separated::ByMerges).with_moves_by_rewrites()
}
