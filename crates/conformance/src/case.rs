//! What the battery tests: a placement, its options, and what is known about it.

use std::sync::Arc;

use bifold::{
    Compaction, KeyspaceOptions, Options, PlacementKind, Result, Workers,
    options::{Leveled, Values},
    placement::{self, Registry, Settings, ValueFiles},
};

/// Values of this length and above are separated, in bytes ([`Values::separate_from_bytes`]).
pub const MIN_BYTES: u32 = 64;

/// Which operations separate values from their keys.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Separated {
    /// None: all values are inline.
    Never,
    /// Commits, before they are logged.
    #[default]
    ByCommits,
    /// Commits separate some values, flushes the others.
    ByCommitsAndFlushes,
    /// Only merges.
    ByMerges,
}

/// How a placement knows which values are dead, where it must know that exactly. The rows of
/// [`exact`](mod@crate::exact) need it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Dead {
    /// The manifest counts the dead bytes of each file.
    #[default]
    Counted,
    /// Files of drop-keys name each dead version, and GC does not ask the index.
    Named,
}

/// A placement with options, and what the rows must know about it. [`Case::new`] describes an append-only log; methods
/// say what is different.
///
/// ```
/// use bifold::{PlacementKind, options::Cold};
/// use bifold_conformance::{Case, Separated};
///
/// let plain = Case::new(PlacementKind::Inline).separated(Separated::Never);
/// assert!(!plain.separates());
/// let cold_log = Case::new(PlacementKind::HashKv).with(|keyspace| keyspace.values.hashkv.cold = Cold::Log);
/// assert_eq!(cold_log.options().keyspace.values.separate_from_bytes, Some(u64::from(bifold_conformance::MIN_BYTES)));
/// ```
#[derive(Clone, Debug)]
pub struct Case {
    keyspace: KeyspaceOptions,
    placements: Registry,
    separated: Separated,
    dead: Dead,
    moves_values_with_keys: bool,
    records_range_deletes: bool,
    cools_by_gc: bool,
    has_concurrent_jobs: bool,
}

impl Case {
    /// A placement whose commits separate all values of [`MIN_BYTES`] and above, and whose GC moves them. Tables and
    /// files have a few KiB, so that a few hundred writes fill and empty many.
    #[must_use]
    pub fn new(placement: PlacementKind) -> Self {
        let values = Values {
            separate_from_bytes: Some(u64::from(MIN_BYTES)),
            space_target: 100.0,
            file_bytes: 2 << 10,
            ..Values::default()
        };
        let leveled = Leveled { size_ratio: 3, levels: 4, level0_runs: 2, base_bytes: 8 << 10, ..Leveled::default() };
        let keyspace = KeyspaceOptions {
            placement,
            values,
            table_bytes: 4 << 10,
            block_bytes: 512,
            compaction: Compaction::Leveled(leveled),
            ..KeyspaceOptions::default()
        };
        Self {
            keyspace,
            placements: Registry::default(),
            separated: Separated::default(),
            dead: Dead::default(),
            moves_values_with_keys: false,
            records_range_deletes: false,
            cools_by_gc: false,
            has_concurrent_jobs: false,
        }
    }

    /// The same with other options. Keep [`Values::separate_from_bytes`] and [`Values::space_target`]: the rows write
    /// values that are just long enough, and start GC themselves.
    #[must_use]
    pub fn with(mut self, change: impl FnOnce(&mut KeyspaceOptions)) -> Self {
        change(&mut self.keyspace);
        self
    }

    /// The same for a placement that is not Bifold's, which `open` opens ([`Registry::with`]).
    ///
    /// # Panics
    /// If `name` is no name for a placement.
    #[must_use]
    pub fn own<F>(name: &str, open: F) -> Self
    where
        F: Fn(&Arc<ValueFiles>, &Settings) -> Result<Box<dyn placement::Placement>> + Send + Sync + 'static,
    {
        let placements = Registry::default().with(name, open).unwrap();
        Self { placements, ..Self::new(PlacementKind::own(name).unwrap()) }
    }

    /// Says which operations separate values.
    #[must_use]
    pub fn separated(self, separated: Separated) -> Self {
        Self { separated, ..self }
    }

    /// Says how it is known which values are dead.
    #[must_use]
    pub fn dead(self, dead: Dead) -> Self {
        Self { dead, ..self }
    }

    /// Says that values move while their keys are rewritten: GC alone does not move a value out of a file without
    /// garbage.
    #[must_use]
    pub fn with_moves_by_rewrites(self) -> Self {
        Self { moves_values_with_keys: true, ..self }
    }

    /// Says that value files record range deletes, as [`ValueKind::DeleteRange`](bifold_format::value::ValueKind).
    #[must_use]
    pub fn with_range_deletes_in_files(self) -> Self {
        Self { records_range_deletes: true, ..self }
    }

    /// Says that GC makes values cold: those that it has moved once go to files which the rows should see in GC, too.
    #[must_use]
    pub fn with_cold_files(self) -> Self {
        Self { cools_by_gc: true, ..self }
    }

    /// Says that several GC jobs of a keyspace run at the same time, each on files of its own: claims are not
    /// [alone](bifold::placement::GcClaim::is_alone).
    #[must_use]
    pub fn with_concurrent_jobs(self) -> Self {
        Self { has_concurrent_jobs: true, ..self }
    }

    /// Options for a database of this case. GC runs only when a row asks for it.
    #[must_use]
    pub fn options(&self) -> Options {
        Options {
            memory_limit: 1 << 20,
            memtable_bytes: 16 << 10,
            workers: Workers::Caller,
            placements: self.placements.clone(),
            keyspace: self.keyspace.clone(),
            ..Options::default()
        }
    }

    /// The same, but GC starts by itself as soon as there is a little garbage.
    #[must_use]
    pub fn eager(&self) -> Options {
        let mut options = self.options();
        options.keyspace.values.space_target = 1.05;
        options
    }

    /// Whether values of [`MIN_BYTES`] and above are ever in value files.
    #[must_use]
    pub fn separates(&self) -> bool {
        self.separated != Separated::Never
    }

    /// Whether commits put values there; otherwise only merges do.
    #[must_use]
    pub fn separates_at_commit(&self) -> bool {
        matches!(self.separated, Separated::ByCommits | Separated::ByCommitsAndFlushes)
    }

    pub(crate) fn separates_by_flushes(&self) -> bool {
        self.separated == Separated::ByCommitsAndFlushes
    }

    pub(crate) fn separates_by_merges(&self) -> bool {
        self.separated == Separated::ByMerges
    }

    pub(crate) fn moves_values_with_keys(&self) -> bool {
        self.moves_values_with_keys
    }

    pub(crate) fn records_range_deletes(&self) -> bool {
        self.records_range_deletes
    }

    pub(crate) fn cools_by_gc(&self) -> bool {
        self.cools_by_gc
    }

    pub(crate) fn has_concurrent_jobs(&self) -> bool {
        self.has_concurrent_jobs
    }

    pub(crate) fn names_the_dead(&self) -> bool {
        self.dead == Dead::Named
    }
}
