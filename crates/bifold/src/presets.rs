//! From a user's options to the parts of a tree: the one place that knows which placement and which policy a name means.

use std::sync::Arc;

use bifold_contract::{CompactionPolicy, Result};
use bifold_format::compression::Compression as BlockCompression;
use bifold_index::{
    compaction::{leveled, tiered, two_layer},
    table::TableOptions,
};
use bifold_values::placements::inline::Inline;

use crate::options::{Compaction, Compression, KeyspaceOptions, Placement};

/// Zstandard level for tables: the lowest, since tables are rewritten several times.
const ZSTD_LEVEL: i32 = 1;

/// The placement an option names.
pub(crate) fn placement(options: &KeyspaceOptions) -> Arc<dyn bifold_contract::Placement> {
    match options.placement {
        Placement::Inline => Arc::new(Inline),
    }
}

/// The compaction policy that options describe.
///
/// # Errors
/// Options that cannot be used together.
pub(crate) fn policy(options: &KeyspaceOptions) -> Result<Box<dyn CompactionPolicy>> {
    let table_bytes = options.table_bytes;
    Ok(match options.compaction {
        Compaction::Leveled(o) => Box::new(leveled::Leveled::new(leveled::LeveledOptions {
            growth: o.growth,
            levels: o.levels,
            level0_runs: o.level0_runs,
            base_bytes: o.base_bytes,
            table_bytes,
            ..Default::default()
        })?),
        Compaction::Tiered(o) => Box::new(tiered::Tiered::new(tiered::TieredOptions {
            growth: o.growth,
            levels: o.levels,
            table_bytes,
            ..Default::default()
        })?),
        Compaction::TwoLayer(o) => Box::new(two_layer::TwoLayer::new(two_layer::TwoLayerOptions {
            unsorted_bytes: o.unsorted_bytes,
            scan_merge_runs: o.scan_merge_runs,
            table_bytes,
        })?),
    })
}

/// How tables are written.
pub(crate) fn table_options(options: &KeyspaceOptions) -> TableOptions {
    TableOptions {
        block_bytes: options.block_bytes as usize,
        restart_interval: options.restart_interval as usize,
        filter_bits_per_key: options.filter_bits_per_key,
        compression: match options.compression {
            Compression::None => BlockCompression::None,
            Compression::Lz4 => BlockCompression::Lz4,
            Compression::Zstd => BlockCompression::Zstd(ZSTD_LEVEL),
        },
    }
}
