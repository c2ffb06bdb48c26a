//! From a user's options to the parts of a tree: the one place that knows which placement and which policy a name
//! means.

use std::{collections::BTreeSet, sync::Arc};

use bifold_contract::{CompactionPolicy, FileId, KeyspaceId, Result, ValueEdit};
use bifold_format::filter::HASH_BITS;
use bifold_index::{
    compaction::{leveled, tiered, two_layer},
    table::{TableContext, TableOptions},
    version::Version,
};
use bifold_io::Dir;
use bifold_values::{
    parts::{
        budget::Memory,
        large_files::LargeFiles,
        unsynced::Unsynced,
        value_files::{FileAccess, StoreContext, ValueFiles},
    },
    placements::{
        Settings, diffkv::DiffKv, hashkv::HashKv, inline::Inline, novkv::NovKv, streams::Streams, unikv::UniKv,
        wisckey::WiscKey,
    },
    store::ValueStore,
};

use crate::{
    settings::{
        merge::MergeOperators,
        options::{Compaction, HashIndex, KeyspaceOptions, PlacementKind},
        placement::Registry,
    },
    state::numbers::Numbers,
};

/// The values of a keyspace, where the placement is the one an option names, with the value files that are there. It
/// reads the options of values from `of_values`.
///
/// # Errors
/// I/O errors and corruption of value files.
pub(crate) fn values(options: &KeyspaceOptions, of_values: &Settings, found: FoundFiles<'_>) -> Result<ValueStore> {
    let FoundFiles { context, listed, present, before, own } = found;
    let large = LargeFiles::open(&context, &listed.large);
    let files = Arc::new(match before {
        Some(before) => ValueFiles::open_after(context, listed, before)?,
        None => ValueFiles::open(context, listed, present)?,
    });
    let store = match options.placement {
        PlacementKind::Inline => ValueStore::new(files, Inline),
        PlacementKind::WiscKey => ValueStore::new(Arc::clone(&files), WiscKey::open(&files, of_values)),
        PlacementKind::HashKv => ValueStore::new(Arc::clone(&files), HashKv::open(&files, of_values)?),
        PlacementKind::NovKv => ValueStore::new(Arc::clone(&files), NovKv::open(&files, of_values)?),
        PlacementKind::DiffKv => ValueStore::new(Arc::clone(&files), DiffKv::open(&files, of_values)),
        PlacementKind::UniKv => ValueStore::new(Arc::clone(&files), UniKv::open(&files, of_values)),
        // No tree has options that leave it open.
        PlacementKind::Streams | PlacementKind::Auto => {
            ValueStore::new(Arc::clone(&files), Streams::open(&files, of_values)?)
        }
        PlacementKind::Own(name) => match own {
            OwnPlacements::Of(registry, _) => {
                ValueStore::of(Arc::clone(&files), registry.open(name, &files, of_values)?)
            }
            OwnPlacements::OnlyFiles => ValueStore::new(files, Inline),
        },
    };
    Ok(store.with_large(large))
}

/// The context of the value files of a keyspace.
pub(crate) fn value_home(
    dir: &Dir,
    keyspace: KeyspaceId,
    numbers: &Numbers,
    (memory, unsynced): (&Memory, &Arc<Unsynced>),
    access: FileAccess,
) -> StoreContext {
    let numbers = numbers.clone();
    let new_file = Arc::new(move || numbers.take());
    StoreContext {
        dir: dir.clone(),
        keyspace,
        new_file,
        access,
        memory: memory.clone(),
        unsynced: Arc::clone(unsynced),
    }
}

/// Where a placement finds its files.
pub(crate) struct FoundFiles<'a> {
    /// The directory, and how new files are numbered.
    pub context: StoreContext,
    /// What the manifest says of value files.
    pub listed: &'a ValueEdit,
    /// The value files in the directory.
    pub present: &'a [FileId],
    /// The files of an earlier state, which stay open, if another process is writing; and which were removed since.
    pub before: Option<(&'a ValueFiles, &'a BTreeSet<FileId>)>,
    /// Placements of others.
    pub own: OwnPlacements<'a>,
}

/// What is known of placements of others.
#[derive(Clone, Copy)]
pub(crate) enum OwnPlacements<'a> {
    /// Those that are registered, and merge operators.
    Of(&'a Registry, &'a MergeOperators),
    /// None is needed: what every placement does alike is asked for, and no value is read.
    OnlyFiles,
}

impl OwnPlacements<'_> {
    /// See [`Registry::check`] and [`MergeOperators::resolve`].
    ///
    /// # Errors
    /// [`Error::InvalidArgument`](bifold_contract::Error::InvalidArgument) for a placement or a merge operator that
    /// nobody has registered.
    pub fn resolve(self, keyspace: &str, options: KeyspaceOptions) -> Result<KeyspaceOptions> {
        match self {
            Self::Of(registry, operators) => {
                registry.check(keyspace, &options)?;
                operators.resolve(keyspace, &options)
            }
            Self::OnlyFiles => Ok(options),
        }
    }
}

/// The compaction policy that options, which have been checked, describe.
pub(crate) fn policy(options: &KeyspaceOptions) -> Box<dyn CompactionPolicy> {
    let table_bytes = options.table_bytes;
    match options.compaction {
        Compaction::Leveled(leveled) => Box::new(leveled::Leveled::new(leveled, table_bytes)),
        Compaction::Tiered(tiered) => Box::new(tiered::Tiered::new(tiered, table_bytes)),
        Compaction::TwoLayer(layers) => {
            let policy = two_layer::TwoLayer::new(layers, table_bytes);
            let policy = policy.with_overwritten_share(overwritten_share(options));
            Box::new(if options.hash_index.is_some() { policy.with_hash_index() } else { policy })
        }
    }
}

/// How many of the entries level 0 may overwrite before it is merged, where values are separated when they leave it:
/// a fourth of what the space target leaves for garbage. A merge takes as much again until it ends, and value files
/// need the rest.
fn overwritten_share(options: &KeyspaceOptions) -> f64 {
    match options.placement {
        PlacementKind::UniKv => (options.values.space_target - 1.0) / 4.0,
        _ => f64::INFINITY,
    }
}

/// A version without tables.
pub(crate) fn empty_version(options: &KeyspaceOptions, context: &Arc<TableContext>) -> Version {
    let Some(index) = options.hash_index else { return Version::default() };
    Version::with_hash_index(index, level0_bytes(options), context)
}

/// The same version, for a keyspace that has these options from now on.
pub(crate) fn version_with(version: &Version, options: &KeyspaceOptions) -> Version {
    version.with_level0_bytes(level0_bytes(options))
}

fn level0_bytes(options: &KeyspaceOptions) -> Option<u64> {
    match options.compaction {
        Compaction::TwoLayer(layers) => Some(layers.unsorted_bytes),
        Compaction::Leveled(_) | Compaction::Tiered(_) => None,
    }
}

/// How tables of a level are written.
pub(crate) fn table_options(options: &KeyspaceOptions, level: u8) -> TableOptions {
    let filter_bits_per_key = match options.hash_index {
        Some(HashIndex { written: true, .. }) if level == 0 => HASH_BITS,
        Some(_) if level == 0 => 0,
        _ => options.filter_bits_per_key,
    };
    TableOptions {
        block_bytes: options.block_bytes as usize,
        restart_interval: options.restart_interval as usize,
        filter_bits_per_key,
        compression: options.compression,
    }
}
