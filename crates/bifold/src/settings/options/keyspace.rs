//! What a user can choose for each keyspace.

use std::time::Duration;

use bifold_contract::{
    Error, Result,
    option::{at_least, duration, optional_size, size, within},
};
use bifold_format::compression::Compression;
use bifold_values::placements::{SEPARATE_FROM_BYTES, novkv};
use serde::{Deserialize, Serialize};

use super::{
    compaction::{Compaction, HashIndex, TwoLayer},
    placement_kind::PlacementKind,
    text::rename_old,
    values::Values,
};
use crate::settings::merge::MergeOperator;

/// Options of a keyspace. The database stores them. All but `placement`, `hash_index` and `merge` can change:
/// [`Keyspace::set_options`](crate::Keyspace::set_options). [`KeyspaceOptions::check`] refuses a value outside of its
/// bounds, and so does whatever takes these options.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct KeyspaceOptions {
    /// Where values live. Cannot change once the keyspace exists. Default: [`PlacementKind::Auto`].
    pub placement: PlacementKind,
    /// How separated values are kept.
    pub values: Values,
    /// How table blocks are compressed.
    pub compression: Compression,
    /// The approximate size of tables, in bytes: at least 1 KiB. Default: 16 MiB.
    #[serde(with = "size")]
    pub table_bytes: u64,
    /// A key range with more bytes than this, values included, is split in two, each compacted on its own (UniKV
    /// §III-D): the cost of merges then follows the size of a range, not that of the keyspace. A split is one edit of
    /// the manifest and rewrites nothing. In bytes, at least 4 KiB. Unset: one range. Meant for `compaction.two_layer`;
    /// with other policies a split is in force only when no table spans it.
    #[serde(with = "optional_size", skip_serializing_if = "Option::is_none")]
    pub partition_bytes: Option<u64>,
    /// The approximate size of data blocks before compression: 64 bytes to 16 MiB. Default: 4 KiB. Blocks that have
    /// only addresses of values end at 1 KiB, unless they are compressed: such a block has some twenty, and a get needs
    /// one.
    pub block_bytes: u32,
    /// After how many entries a block stores a whole key again: 1 to 1024. Default: 16.
    pub restart_interval: u32,
    /// Bits of Bloom filter for each key, 0 to 63; 0 means no filter. Default: 10. Level 0 has no filters if there is a
    /// hash index.
    pub filter_bits_per_key: u32,
    /// How tables are rewritten.
    pub compaction: Compaction,
    /// An index in memory of the keys in level 0, in place of filters there. Unset: none. Meant for a large level 0, as
    /// `compaction.two_layer` has it: a read then searches only the run that has its key, however many runs there are.
    /// Cannot change once the keyspace exists.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub hash_index: Option<HashIndex>,
    /// How long what is put lives, unless the put says otherwise: at least 1 ms. In TOML a text such as `"90s"` or
    /// `"24h"`, or a number of seconds. Unset, or `"never"`: for good. A change applies to later puts; what is stored
    /// keeps its own time. It is rounded up to whole milliseconds, and [`Keyspace::options`](crate::Keyspace::options)
    /// has the rounded one.
    #[serde(with = "duration", skip_serializing_if = "Option::is_none")]
    pub ttl: Option<Duration>,
    /// How operands change values: [`Keyspace::merge`](crate::Keyspace::merge). In TOML the operator's name. Unset: no
    /// operator. One of your own must be in [`Options::merge_operators`](super::Options::merge_operators), too. Cannot
    /// change once the keyspace exists. Nothing expires in a keyspace with an operator, so `ttl` must be unset.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub merge: Option<MergeOperator>,
}

impl Default for KeyspaceOptions {
    fn default() -> Self {
        Self {
            placement: PlacementKind::default(),
            values: Values::default(),
            compression: Compression::default(),
            table_bytes: 16 << 20,
            partition_bytes: None,
            block_bytes: 4096,
            restart_interval: 16,
            filter_bits_per_key: 10,
            compaction: Compaction::default(),
            hash_index: None,
            ttl: None,
            merge: None,
        }
    }
}

impl KeyspaceOptions {
    /// These options with another placement. The length from which the former one separates values by default becomes
    /// the default of the new one. To and from [`PlacementKind::UniKv`] the tree changes, too: to that of
    /// [`KeyspaceOptions::unikv`], or to the default one.
    #[must_use]
    pub fn with_placement(mut self, placement: PlacementKind) -> Self {
        let by_default: &[u64] = match self.placement {
            // What is left open has no length but one that was given.
            PlacementKind::Auto => &[],
            // Chosen by name, or by `Auto`.
            PlacementKind::Streams => &[SEPARATE_FROM_BYTES, PlacementKind::AUTO_FROM_BYTES],
            _ => &[SEPARATE_FROM_BYTES],
        };
        if placement != self.placement {
            self.values.separate_from_bytes.take_if(|bytes| by_default.contains(bytes));
        }
        let is_unikv = |placement| placement == PlacementKind::UniKv;
        let tree = match placement {
            _ if is_unikv(placement) == is_unikv(self.placement) => return Self { placement, ..self },
            PlacementKind::UniKv => Self::unikv(),
            _ => Self::default(),
        };
        let Self { compaction, partition_bytes, block_bytes, filter_bits_per_key, hash_index, .. } = tree;
        Self { placement, compaction, partition_bytes, block_bytes, filter_bits_per_key, hash_index, ..self }
    }

    /// What these options stand for in a new keyspace: nothing is left to Bifold. [`Keyspace::options`] of the keyspace
    /// are these.
    ///
    /// [`Keyspace::options`]: crate::Keyspace::options
    ///
    /// ```
    /// use bifold::{KeyspaceOptions, PlacementKind};
    ///
    /// let options = KeyspaceOptions::default().resolved();
    /// assert_eq!((options.placement, options.values.separate_from_bytes), (PlacementKind::Streams, Some(16 << 10)));
    /// ```
    #[must_use]
    pub fn resolved(&self) -> Self {
        let (placement, separated_from) = match self.placement {
            PlacementKind::Auto => (PlacementKind::Streams, PlacementKind::AUTO_FROM_BYTES),
            chosen => (chosen, SEPARATE_FROM_BYTES),
        };
        let separate_from_bytes = self.values.separate_from_bytes.or(Some(separated_from));
        let values = Values { separate_from_bytes, ..self.values };
        Self { placement, values, ttl: self.ttl.map(as_recorded), ..self.clone() }
    }

    /// What these options stand for in a keyspace that has the options `stored`.
    pub(crate) fn resolved_for(&self, stored: &Self) -> Self {
        let placement = if self.placement == PlacementKind::Auto { stored.placement } else { self.placement };
        let separate_from_bytes = self.values.separate_from_bytes.or(stored.values.separate_from_bytes);
        let values = Values { separate_from_bytes, ..self.values };
        Self { placement, values, ttl: self.ttl.map(as_recorded), ..self.clone() }
    }

    /// UniKV's design: an unsorted layer under a hash index, above a sorted one, separated values in the sorted one,
    /// key ranges that split as they grow, no filters. The sizes are a fourth of the paper's.
    #[must_use]
    pub fn unikv() -> Self {
        Self {
            placement: PlacementKind::UniKv,
            compaction: Compaction::TwoLayer(TwoLayer::default()),
            partition_bytes: Some(10 << 30),
            // A read of a value in level 0 is one block: it need not hold others.
            block_bytes: 1 << 10,
            filter_bits_per_key: 0,
            hash_index: Some(HashIndex::default()),
            ..Self::default()
        }
    }

    /// What the manifest says of a keyspace's options, by whatever version it was written.
    ///
    /// # Errors
    /// In words, when the text is no TOML or has unknown or unusable options: policies rely on the bounds.
    pub(crate) fn recorded(text: &str) -> std::result::Result<Self, String> {
        let mut table: toml::Table = text.parse().map_err(|e: toml::de::Error| e.message().to_owned())?;
        let _whatever_it_was_called = rename_old(&mut table)?;
        // A manifest says so, unless it is from before values could be separated.
        table.entry("placement").or_insert_with(|| PlacementKind::Inline.name().into());
        let options: Self = table.try_into().map_err(|e: toml::de::Error| e.message().to_owned())?;
        let options = options.resolved();
        options.check().map_err(|e| e.to_string())?;
        Ok(options)
    }

    /// These options as the section `[keyspace]` of TOML, as [`Options::from_toml`](super::Options::from_toml)
    /// reads it.
    #[must_use]
    pub fn to_toml(&self) -> String {
        #[derive(Serialize)]
        struct Section<'a> {
            keyspace: &'a KeyspaceOptions,
        }
        toml::to_string(&Section { keyspace: self }).unwrap_or_default()
    }

    /// The text for the manifest.
    pub(crate) fn record(&self) -> String {
        toml::to_string(self).unwrap_or_default()
    }

    /// Checks that the options can be used together.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] naming the option.
    pub fn check(&self) -> Result<()> {
        at_least("keyspace.table_bytes", self.table_bytes, 1 << 10)?;
        at_least("keyspace.partition_bytes", self.partition_bytes.unwrap_or(u64::MAX), 4 << 10)?;
        within("keyspace.block_bytes", u64::from(self.block_bytes), 64, 16 << 20)?;
        within("keyspace.restart_interval", u64::from(self.restart_interval), 1, 1024)?;
        within("keyspace.filter_bits_per_key", u64::from(self.filter_bits_per_key), 0, 63)?;
        if let Some(index) = self.hash_index {
            index.check("keyspace.hash_index")?;
        }
        self.values.check("keyspace.values")?;
        if self.ttl.is_some_and(|ttl| ttl < Duration::from_millis(1)) {
            let reason = "less than a millisecond: all that is put would have expired; write \"never\" to have none";
            return Err(Error::invalid("option `keyspace.ttl`", reason));
        }
        if self.merge.is_some() && self.ttl.is_some() {
            let reason = "nothing expires in a keyspace with a merge operator: leave it or `keyspace.merge` out";
            return Err(Error::invalid("option `keyspace.ttl`", reason));
        }
        if self.placement == PlacementKind::NovKv {
            within("keyspace.values.file_bytes", self.values.file_bytes, 1 << 10, novkv::options::FILE_BYTES_MAX)?;
        }
        self.compaction.check()
    }
}

/// A time to live as the manifest has it: in whole milliseconds, and no more of them than [`duration`] reads. So a
/// keyspace has the same before and after it is opened again. Less than one is left for [`KeyspaceOptions::check`].
fn as_recorded(ttl: Duration) -> Duration {
    let millis = u64::try_from(ttl.as_nanos().div_ceil(1_000_000)).unwrap_or(u64::MAX);
    if ttl < Duration::from_millis(1) { ttl } else { Duration::from_millis(millis) }
}
