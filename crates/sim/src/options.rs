//! Random option sets, all far too small for real use, so that a few hundred operations flush, split, merge and evict
//! all the time.

use bifold::{
    CachedValues, Compaction, Compression, Db, Durability, KeyspaceOptions, Options, PlacementKind, Reads,
    RetainChanges, Workers,
    options::{
        Cold, DiffKv, GcUnit, HashIndex, HashKv, Leveled, MergePolicy, NovKv, Tiered, TwoLayer, UniKv, Values, Victim,
    },
};

use crate::{
    history::{History, Puts},
    model::{Model, NAMES, Name, Variant},
    random::Random,
    read::Trouble,
    value,
};

/// The options of a database and of each keyspace of [`NAMES`].
#[derive(Clone, Debug, PartialEq)]
pub struct OptionSet {
    /// Of the database and its default keyspace.
    pub database: Options,
    /// Of each keyspace, by position of its name.
    pub keyspaces: Vec<KeyspaceOptions>,
}

impl OptionSet {
    /// The option set number `index` for a history.
    #[must_use]
    pub fn of(history: &History, index: u64) -> Self {
        let mut set = Self::new(history.seed, index, history.durability);
        if history.extras.puts == Puts::Operands {
            set.keyspaces.iter_mut().for_each(|keyspace| keyspace.merge = Some(value::operator()));
        }
        suit(&mut set.database, history);
        if history.extras.feed && Random::new(history.seed ^ index.rotate_left(40), "changes").below(3) == 0 {
            set.database.retain_changes = Some(RetainChanges { bytes: 2 << 10, ..ALL_CHANGES });
        }
        set
    }

    /// The option set number `index` of `seed`, with background work in the calling thread.
    #[must_use]
    pub fn new(seed: u64, index: u64, durability: Durability) -> Self {
        let mut random = Random::new(seed ^ index.rotate_left(40), "options");
        let mut keyspaces: Vec<KeyspaceOptions> = NAMES.iter().map(|_| keyspace(&mut random)).collect();
        // Sampled separately, so that old seeds that found a bug still find it.
        let mut random_partitions = Random::new(seed ^ index.rotate_left(40), "partitions");
        for keyspace in &mut keyspaces {
            keyspace.partition_bytes = random_partitions.pick(&[None, None, Some(4 << 10), Some(16 << 10)]);
            if random_partitions.below(6) == 0 {
                keyspace.placement = PlacementKind::UniKv;
            }
        }
        let mut random_streams = Random::new(seed ^ index.rotate_left(40), "streams");
        for keyspace in &mut keyspaces {
            if random_streams.below(5) == 0 {
                keyspace.placement = PlacementKind::Streams;
            }
        }
        let mut random_indexes = Random::new(seed ^ index.rotate_left(40), "hash indexes");
        keyspaces.iter_mut().for_each(|keyspace| keyspace.hash_index = hash_index(&mut random_indexes));
        let memory_limit = random.pick(&[1 << 20, 2 << 20, 8 << 20, 64 << 20]);
        let database = Options {
            durability,
            memory_limit,
            memtable_bytes: 4096 << random.below(5),
            cache_bytes: random.pick(&[None, None, Some(0), Some(64 << 10)]),
            workers: Workers::Caller,
            log_bytes: random.pick(&[8 << 10, 64 << 10, 1 << 20]),
            open_files_max: open_files_max(seed, index),
            reads: Random::new(seed ^ index.rotate_left(40), "reads").pick(&[Reads::Auto, Reads::Direct]),
            keyspace: keyspaces[0].clone(),
            merge_operators: value::operators(),
            ..Options::default()
        };
        Self { database, keyspaces }
    }
}

impl OptionSet {
    /// Variant number so many of the options of a keyspace: other ones wherever they can change. Number 0 is what it is
    /// created with.
    #[must_use]
    pub fn variant(&self, name: Name, variant: Variant) -> KeyspaceOptions {
        let made_with = self.keyspaces[name as usize].clone();
        if variant == 0 {
            return made_with;
        }
        let mut random = Random::new(u64::from(variant), "changed options");
        KeyspaceOptions {
            placement: made_with.placement,
            hash_index: made_with.hash_index,
            merge: made_with.merge,
            partition_bytes: random.pick(&[None, made_with.partition_bytes, Some(8 << 10)]),
            ..keyspace(&mut random)
        }
    }

    /// The options for opening a database that `model` describes: if options of keyspaces have changed, as they are
    /// stored.
    #[must_use]
    pub fn to_open(&self, model: &Model) -> Options {
        let mut options = self.database.clone();
        if model.has_changed_options() {
            options.keyspace = KeyspaceOptions::default();
        }
        // The logs know that changes are kept: every other opening says nothing.
        options.retain_changes = options.retain_changes.filter(|_| model.head().is_multiple_of(2));
        options
    }

    /// Whether every change is kept; `None` if no changes are.
    #[must_use]
    pub fn keeps_all_changes(&self) -> Option<bool> {
        self.database.retain_changes.map(|retained| retained == ALL_CHANGES)
    }

    /// Checks that each keyspace has options that `model` allows, and lets it know which.
    ///
    /// # Errors
    /// The keyspace that has others.
    pub fn check_stored(&self, db: &Db, model: &mut Model) -> Result<(), Trouble> {
        for (name, text) in (0..).zip(NAMES) {
            let Some(keyspace) = db.existing_keyspace(text)?.filter(|_| model.has_changed_options()) else { continue };
            let (found, allowed) = (keyspace.options(), model.options(name));
            match allowed.iter().find(|&&variant| self.variant(name, variant) == found) {
                Some(&variant) => model.resolve_options(name, variant),
                None => {
                    let wrong = format!("keyspace `{text}` has options that are not of {allowed:?}: {found:?}");
                    return Err(Trouble::wrong(wrong));
                }
            }
        }
        Ok(())
    }
}

/// Mostly so few that files are closed and opened again all the time, otherwise as many as there are, whatever this
/// process may have. Sampled separately, so that old seeds that found a bug still find it.
fn open_files_max(seed: u64, index: u64) -> u32 {
    let mut random = Random::new(seed ^ index.rotate_left(40), "open files");
    random.pick(&[2, 3, 4, 8, 1 << 20])
}

/// Gives a database what the operations of a history need.
pub fn suit(options: &mut Options, history: &History) {
    if history.extras.puts == Puts::Operands {
        options.keyspace.merge = Some(value::operator());
        options.merge_operators = value::operators();
    }
    if history.extras.feed {
        options.retain_changes = Some(ALL_CHANGES);
    }
}

/// Keeps every change.
pub const ALL_CHANGES: RetainChanges = RetainChanges { bytes: 1 << 40, age: None };

/// Half of the time none. Otherwise with tags so short that they lead to wrong runs, and with few distinguishable
/// runs.
fn hash_index(random: &mut Random) -> Option<HashIndex> {
    let index = HashIndex {
        ways: random.pick(&[1, 2, 4, 8]),
        tag_bits: random.pick(&[1, 4, 16]),
        run_bits: random.pick(&[2, 5, 16]),
        written: random.below(3) > 0,
    };
    (random.below(2) == 0).then_some(index)
}

fn keyspace(random: &mut Random) -> KeyspaceOptions {
    KeyspaceOptions {
        compression: random.pick(&[Compression::None, Compression::Lz4, Compression::Zstd]),
        compaction: compaction(random),
        table_bytes: 2048 << random.below(5),
        partition_bytes: None,
        block_bytes: random.pick(&[128, 256, 1024, 4096]),
        restart_interval: random.pick(&[1, 2, 4, 16]),
        filter_bits_per_key: random.pick(&[0, 5, 10]),
        placement: random.pick(&[
            PlacementKind::Inline,
            PlacementKind::WiscKey,
            PlacementKind::HashKv,
            PlacementKind::NovKv,
            PlacementKind::DiffKv,
        ]),
        values: values(random),
        hash_index: None,
        ttl: None,
        merge: None,
    }
}

/// Groups and files so small, and a target so low, that GC runs every few dozen operations.
fn values(random: &mut Random) -> Values {
    // In this order, so that old seeds that found a bug still find it.
    let mut values = Values {
        separate_from_bytes: Some(random.pick(&[1, 8, 64, 1000])),
        space_target: random.pick(&[1.05, 1.1, 1.5]),
        hashkv: HashKv {
            victim: random.pick(&[Victim::Greedy, Victim::CostBenefit, Victim::GreedyRandom(2), Victim::Random]),
            cold: random.pick(&[Cold::Off, Cold::Segments, Cold::Log, Cold::UnlimitedLog]),
            group_bytes: 1024 << random.below(4),
            groups_max: random.pick(&[16, 20, 64]),
        },
        file_bytes: 1024 << random.below(5),
        diffkv: DiffKv {
            large_bytes: random.pick(&[64, 500, 2000]),
            merge: random.pick(&[
                MergePolicy::Off,
                MergePolicy::EachLevel,
                MergePolicy::Lazy,
                MergePolicy::ScanOptimised,
                MergePolicy::ScanOptimised,
            ]),
            max_sorted_run: random.pick(&[1, 2, 10]),
            gc_threshold: 0.7,
        },
        compression: random.pick(&[Compression::None, Compression::Lz4, Compression::Zstd]),
        cache: CachedValues::None,
        novkv: NovKv { gc_threshold: 0.7 },
        unikv: UniKv { gc_threshold: 0.7, gc: GcUnit::File },
    };
    // Not sampled, so that old seeds that found a bug still find it.
    if matches!(values.hashkv.victim, Victim::Greedy | Victim::Random) {
        values.cache = CachedValues::Gets;
    }
    if values.hashkv.victim == Victim::Random {
        values.unikv.gc = GcUnit::Partition;
    }
    if values.space_target < 1.2 {
        (values.novkv.gc_threshold, values.diffkv.gc_threshold, values.unikv.gc_threshold) = (1.0, 1.0, 1.0);
    }
    values
}

fn compaction(random: &mut Random) -> Compaction {
    match random.below(3) {
        0 => Compaction::Leveled(Leveled {
            size_ratio: random.pick(&[2, 3, 10]),
            levels: random.pick(&[2, 3, 4, 7]),
            level0_runs: random.pick(&[1, 2, 4]),
            base_bytes: 4096 << random.below(5),
            ..Leveled::default()
        }),
        1 => Compaction::Tiered(Tiered {
            size_ratio: random.pick(&[2, 3, 4]),
            levels: random.pick(&[2, 3, 5]),
            ..Tiered::default()
        }),
        _ => Compaction::TwoLayer(TwoLayer {
            unsorted_bytes: 4096 << random.below(6),
            scan_merge_runs: random.pick(&[2, 3, 8]),
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_option_set_can_be_used() {
        for index in 0..500 {
            let set = OptionSet::new(3, index, Durability::Buffered);
            set.database.check().unwrap_or_else(|e| panic!("{index}: {e}"));
            set.keyspaces.iter().for_each(|k| k.check().unwrap_or_else(|e| panic!("{index}: {e}")));
        }
    }
}
