//! Which placement a keyspace has.

use bifold_contract::Result;
use serde::{Deserialize, Serialize};

use super::PlacementName;

/// Where values live. A keyspace keeps the placement it was created with: opening it with another is an error. `bifold
/// convert` copies a database into one with another placement.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum PlacementKind {
    /// Left to Bifold. A new keyspace gets [`PlacementKind::Streams`] for values of [`PlacementKind::AUTO_FROM_BYTES`]
    /// and more, and shorter ones stay in the tables; an existing one keeps the placement it has. No keyspace has this
    /// one: [`Keyspace::options`](crate::Keyspace::options) says what it stands for. The default.
    #[default]
    Auto,
    /// Inline, in the tables: a plain LSM-tree.
    Inline,
    /// In files, in the order of arrival. GC begins with the oldest and looks each key up in the index.
    #[serde(rename = "wisckey")]
    WiscKey,
    /// In files, grouped by the hash of the key. GC needs no index lookups.
    #[serde(rename = "hashkv")]
    HashKv,
    /// In files, in the order of arrival and then by key. Compaction records what is dead; GC neither looks keys up in
    /// the index nor writes to it.
    #[serde(rename = "novkv")]
    NovKv,
    /// Values of medium size in files sorted by key, which compaction merges; large ones in logs.
    #[serde(rename = "diffkv")]
    DiffKv,
    /// Inline in level 0, from level 1 on in files sorted by key. Meant for `compaction.two_layer` and
    /// `partition_bytes`: [`KeyspaceOptions::unikv`](super::KeyspaceOptions::unikv) has both.
    #[serde(rename = "unikv")]
    UniKv,
    /// In files by update frequency. GC moves them to files by age, with few index lookups and no index writes.
    #[serde(rename = "streams")]
    Streams,
    /// Where a placement of this name in [`Options::placements`](super::Options::placements) puts them. In TOML
    /// `placement = { own = "name" }`.
    Own(PlacementName),
}

impl PlacementKind {
    /// The length from which [`PlacementKind::Auto`] separates values unless
    /// [`Values::separate_from_bytes`](super::Values::separate_from_bytes) says otherwise, in bytes. Measured: with
    /// values of this length `streams` is ahead of `inline` where data exceed memory, in all but scans, which are
    /// level. In memory it loads and gets faster, and updates a fifth slower.
    pub const AUTO_FROM_BYTES: u64 = 16 << 10;

    /// Those that Bifold has.
    pub const ALL: [Self; 7] =
        [Self::Inline, Self::WiscKey, Self::HashKv, Self::NovKv, Self::DiffKv, Self::UniKv, Self::Streams];

    /// A placement that another author wrote: [`Options::placements`](super::Options::placements) must have it whenever
    /// the database is opened.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`](bifold_contract::Error::InvalidArgument) when this is no name for one
    /// ([`PlacementName`]).
    pub fn own(name: &str) -> Result<Self> {
        PlacementName::new(name).map(Self::Own)
    }

    /// As options, statistics and the manifest call it.
    #[must_use]
    pub fn name(&self) -> &str {
        match self {
            Self::Auto => "auto",
            Self::Inline => "inline",
            Self::WiscKey => "wisckey",
            Self::HashKv => "hashkv",
            Self::NovKv => "novkv",
            Self::DiffKv => "diffkv",
            Self::UniKv => "unikv",
            Self::Streams => "streams",
            Self::Own(name) => name.as_str(),
        }
    }
}
