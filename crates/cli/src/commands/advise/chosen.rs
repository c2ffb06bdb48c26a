//! A candidate as options of the engine.

use bifold::{
    Compaction, KeyspaceOptions, Options, PlacementKind,
    options::{Leveled, Tiered, Values},
};
use bifold_vat::advise::{self, Candidate, CandidateCompaction, Forecast};

/// Options for a candidate, on top of the given ones.
pub fn options(given: &Options, candidate: &Candidate) -> Options {
    let placement = match candidate.placement {
        advise::ModelPlacement::Inline => PlacementKind::Inline,
        advise::ModelPlacement::WiscKey => PlacementKind::WiscKey,
        advise::ModelPlacement::HashKv => PlacementKind::HashKv,
        advise::ModelPlacement::NovKv => PlacementKind::NovKv,
        advise::ModelPlacement::DiffKv => PlacementKind::DiffKv,
        advise::ModelPlacement::UniKv => PlacementKind::UniKv,
        advise::ModelPlacement::Streams => PlacementKind::Streams,
    };
    let keyspace = given.keyspace.clone().with_placement(placement);
    let compaction = match candidate.shape {
        CandidateCompaction::Leveled { size_ratio } => {
            Compaction::Leveled(Leveled { size_ratio, ..leveled(&keyspace) })
        }
        CandidateCompaction::Tiered { size_ratio } => Compaction::Tiered(Tiered { size_ratio, ..Tiered::default() }),
        CandidateCompaction::TwoLayer => keyspace.compaction,
    };
    let separate_from_bytes = candidate.min_bytes.or(keyspace.values.separate_from_bytes);
    let keyspace = KeyspaceOptions {
        compaction,
        block_bytes: candidate.block_bytes,
        values: Values { separate_from_bytes, ..keyspace.values },
        ..keyspace
    };
    Options { keyspace, ..given.clone() }
}

fn leveled(keyspace: &KeyspaceOptions) -> Leveled {
    match keyspace.compaction {
        Compaction::Leveled(leveled) => leveled,
        _ => Leveled::default(),
    }
}

/// The comment at the top of the file.
pub fn head(best: &Forecast, source: &str) -> String {
    let (name, limit) = (best.candidate.placement.name(), best.bottleneck.name());
    let rate = bifold_lab::report::grouped(best.operations_per_second);
    format!(
        "# Options that `bifold advise` chose for {source}: {name}, {}.\n\
         # Expected: {rate} operations per second by one thread, limited by {limit}.\n\
         # A keyspace keeps its placement: `bifold convert` copies a database into one with another.\n\n",
        shape(&best.candidate)
    )
}

/// A short description of the tree.
pub fn shape(candidate: &Candidate) -> String {
    match candidate.shape {
        CandidateCompaction::Leveled { size_ratio } => format!("leveled x{size_ratio}"),
        CandidateCompaction::Tiered { size_ratio } => format!("tiered x{size_ratio}"),
        CandidateCompaction::TwoLayer => "two layers".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use bifold::options::TwoLayer;
    use bifold_vat::advise::costs;

    use super::*;

    /// The model does not depend on the engine, so it has its own copy of these.
    #[test]
    fn the_model_has_the_engines_defaults() {
        let (leveled, options) = (Leveled::default(), Options::default());
        let values = &options.keyspace.values;
        assert_eq!(leveled.size_ratio, costs::GROWTH);
        assert_eq!(leveled.base_bytes as f64, costs::BASE_BYTES);
        assert_eq!(f64::from(leveled.level0_runs) / 2.0, costs::LEVEL0_RUNS);
        assert_eq!(Tiered::default().size_ratio, costs::TIERED_GROWTH);
        assert_eq!(TwoLayer::default().unsorted_bytes as f64, costs::UNSORTED_BYTES);
        assert_eq!(f64::from(TwoLayer::default().scan_merge_runs), costs::SCAN_MERGE_RUNS);
        assert_eq!(options.memtable_bytes as f64, costs::MEMTABLE_BYTES);
        assert_eq!(values.separates_from() as u64, costs::MIN_BYTES_DEFAULT);
        assert_eq!(values.diffkv.large_bytes as f64, costs::LARGE_BYTES);
    }
}
