//! The stores that Bifold is compared with, each behind a feature of this crate, and the budget that they get from
//! Bifold's options.

use std::{fmt, path::Path, str::FromStr};

use bifold::{
    Durability, Options,
    options::{Compaction, Workers},
};

use super::{Store, sync::Sync};
use crate::{Failure, Result};

/// A store to compare with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Peer {
    /// RocksDB.
    RocksDb,
    /// RocksDB with the options that its authors recommend.
    RocksDbRecommended,
    /// The same, reading past the page cache.
    RocksDbDirect,
    /// RocksDB with values in blob files.
    BlobDb,
    /// fjall.
    Fjall,
    /// fjall with key-value separation.
    FjallBlobs,
    /// redb.
    Redb,
    /// LMDB.
    Lmdb,
    /// Bifold's value store with its keys in RocksDB.
    OverRocksDb,
    /// Bifold's value store with its keys in fjall.
    OverFjall,
}

/// The budget of every peer, from Bifold's options: the same memory, durability and threads.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Budget {
    /// Size of a memtable, in bytes, as Bifold has it: at most `memtable_bytes`, less if `memory_limit` requires it.
    pub memtable_bytes: usize,
    /// Size of the cache, in bytes: `cache_bytes`, or half of `memory_limit`.
    pub cache_bytes: usize,
    /// If logs have more bytes than this, memtables that need them are flushed.
    pub log_bytes: u64,
    /// Size of a table, in bytes.
    pub table_bytes: u64,
    /// Size of level 1, in bytes, where the peer has levels: that of Bifold's leveled compaction.
    pub level1_bytes: u64,
    /// The smallest separated value, in bytes, if the peer separates values.
    pub min_bytes: u64,
    /// Size of a file of separated values, in bytes, if the peer separates values: that of Bifold's.
    pub blob_file_bytes: u64,
    /// The durability of writes.
    pub sync: Sync,
    /// Background threads.
    pub threads: u32,
}

impl Budget {
    /// The budget of `options`.
    #[must_use]
    pub fn of(options: &Options) -> Self {
        let bytes = |bytes: u64| usize::try_from(bytes).unwrap_or(usize::MAX);
        Self {
            // Bifold has up to three memtables in at most two fifths of its memory.
            memtable_bytes: bytes(options.memtable_bytes.min(options.memory_limit / 15 * 2)),
            cache_bytes: bytes(options.cache_bytes.unwrap_or(options.memory_limit / 2)),
            log_bytes: options.log_bytes,
            table_bytes: options.keyspace.table_bytes,
            level1_bytes: match options.keyspace.compaction {
                Compaction::Leveled(leveled) => leveled.base_bytes,
                // As many memtables as in Bifold's defaults.
                _ => options.memtable_bytes.saturating_mul(4),
            },
            min_bytes: options.keyspace.values.separates_from() as u64,
            blob_file_bytes: options.keyspace.values.file_bytes,
            sync: if options.durability == Durability::Sync { Sync::EveryWrite } else { Sync::Never },
            threads: match options.workers {
                Workers::Threads(threads) => threads,
                // The peers have no such option; one thread is the nearest.
                Workers::Caller => 1,
            },
        }
    }
}

impl Peer {
    /// Every peer, built in or not.
    pub const ALL: [Self; 10] = [
        Self::RocksDb,
        Self::BlobDb,
        Self::Fjall,
        Self::FjallBlobs,
        Self::Redb,
        Self::Lmdb,
        Self::RocksDbRecommended,
        Self::RocksDbDirect,
        Self::OverRocksDb,
        Self::OverFjall,
    ];

    /// Its name on the command line and in reports.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::RocksDb => "rocksdb",
            Self::RocksDbRecommended => "rocksdb-recommended",
            Self::RocksDbDirect => "rocksdb-direct",
            Self::BlobDb => "blobdb",
            Self::Fjall => "fjall",
            Self::FjallBlobs => "fjall-blobs",
            Self::Redb => "redb",
            Self::Lmdb => "lmdb",
            Self::OverRocksDb => "over-rocksdb",
            Self::OverFjall => "over-fjall",
        }
    }

    /// A line of help.
    #[must_use]
    pub fn about(self) -> &'static str {
        match self {
            Self::RocksDb => "RocksDB",
            Self::RocksDbRecommended => {
                "RocksDB with the options its authors recommend: blocks of 16 KiB, indexes and filters in the cache"
            }
            Self::RocksDbDirect => {
                "RocksDB as recommended, reading and writing tables without the page cache, with eight times the cache"
            }
            Self::BlobDb => {
                "RocksDB with values in blob files, which are as large as Bifold's and have values from the same size \
                 on; GC with age cutoff 0.25 and force threshold 0.5"
            }
            Self::Fjall => "fjall, an LSM-tree in Rust",
            Self::FjallBlobs => "fjall with key-value separation, from the same size on and into files as in Bifold",
            Self::Redb => "redb, a copy-on-write B-tree in Rust",
            Self::Lmdb => "LMDB, a copy-on-write B-tree in a mapped file",
            Self::OverRocksDb => "Bifold's value files, `hashkv` or `wisckey`, with their keys in RocksDB",
            Self::OverFjall => "Bifold's value files, `hashkv` or `wisckey`, with their keys in fjall",
        }
    }

    /// The feature of this crate and of the program that includes it.
    #[must_use]
    pub fn feature(self) -> &'static str {
        match self {
            Self::RocksDb | Self::RocksDbRecommended | Self::RocksDbDirect | Self::BlobDb | Self::OverRocksDb => {
                "rocksdb"
            }
            Self::Fjall | Self::FjallBlobs | Self::OverFjall => "fjall",
            Self::Redb => "redb",
            Self::Lmdb => "lmdb",
        }
    }

    /// Whether comparisons include it unless others are named: not those that differ from another one in options only,
    /// and not Bifold's own value store over another index.
    #[must_use]
    pub fn is_compared(self) -> bool {
        let is_variant = matches!(self, Self::RocksDbRecommended | Self::RocksDbDirect);
        self.built_in() && !is_variant && !self.is_over()
    }

    /// Whether it is Bifold's value store over another index.
    #[must_use]
    pub fn is_over(self) -> bool {
        matches!(self, Self::OverRocksDb | Self::OverFjall)
    }

    /// Whether this build includes it.
    #[must_use]
    pub fn built_in(self) -> bool {
        match self.feature() {
            "rocksdb" => cfg!(feature = "rocksdb"),
            "fjall" => cfg!(feature = "fjall"),
            "redb" => cfg!(feature = "redb"),
            _ => cfg!(feature = "lmdb"),
        }
    }

    /// Refuses a peer that is not built in.
    ///
    /// # Errors
    /// [`Failure::Plan`] with the name of the feature.
    pub fn check_built_in(self) -> Result<()> {
        if self.built_in() {
            return Ok(());
        }
        let feature = self.feature();
        let cost = if feature == "rocksdb" { " (25 minutes of C++)" } else { "" };
        Err(Failure::Plan(format!("this program was built without {self}: build it with --features {feature}{cost}")))
    }

    /// Opens its database in `dir`, or creates one, with the [`Budget`] of `options`.
    ///
    /// # Errors
    /// The peer's; [`Failure::Plan`] if it is not built in.
    #[cfg_attr(
        not(any(feature = "rocksdb", feature = "fjall", feature = "redb", feature = "lmdb")),
        expect(unused_variables, reason = "there is nothing to open")
    )]
    pub fn open(self, dir: &Path, options: &Options) -> Result<Box<dyn Store>> {
        self.check_built_in()?;
        match self {
            #[cfg(feature = "rocksdb")]
            Self::RocksDb | Self::RocksDbRecommended | Self::RocksDbDirect | Self::BlobDb => {
                use super::rocksdb::{RocksBlobs, RocksDbOptions, RocksDbStore, Tuning};
                let budget = Budget::of(options);
                let blobs = (self == Self::BlobDb).then(|| RocksBlobs::from(&budget));
                let tuning = match self {
                    Self::RocksDbRecommended => Tuning::Recommended,
                    Self::RocksDbDirect => Tuning::Direct,
                    _ => Tuning::Filters,
                };
                Ok(Box::new(RocksDbStore::open(dir, RocksDbOptions { blobs, tuning, ..(&budget).into() })?))
            }
            #[cfg(feature = "fjall")]
            Self::Fjall | Self::FjallBlobs => {
                use super::fjall::{FjallBlobs, FjallOptions, FjallStore};
                let budget = Budget::of(options);
                let blobs = (self == Self::FjallBlobs).then(|| FjallBlobs::from(&budget));
                Ok(Box::new(FjallStore::open(dir, FjallOptions { blobs, ..(&budget).into() })?))
            }
            #[cfg(feature = "rocksdb")]
            Self::OverRocksDb => super::over::rocksdb(dir, options),
            #[cfg(feature = "fjall")]
            Self::OverFjall => super::over::fjall(dir, options),
            #[cfg(feature = "redb")]
            Self::Redb => Ok(Box::new(super::redb::RedbStore::open(dir, (&Budget::of(options)).into())?)),
            #[cfg(feature = "lmdb")]
            Self::Lmdb => Ok(Box::new(super::lmdb::LmdbStore::open(dir, (&Budget::of(options)).into())?)),
            #[cfg(not(all(feature = "rocksdb", feature = "fjall", feature = "redb", feature = "lmdb")))]
            _ => Err(Failure::Plan(format!("{self} was not built in"))),
        }
    }
}

impl fmt::Display for Peer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Peer {
    type Err = Failure;

    fn from_str(name: &str) -> Result<Self> {
        Self::ALL.into_iter().find(|peer| peer.name() == name).ok_or_else(|| {
            let names = Self::ALL.map(Self::name).join(", ");
            Failure::Plan(format!("`{name}` is not a peer; there are {names}"))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Scale;

    #[test]
    fn every_peer_is_found_by_its_name_and_names_its_feature() {
        for peer in Peer::ALL {
            assert_eq!(peer.name().parse::<Peer>().unwrap(), peer);
            let feature = format!("--features {}", peer.feature());
            let opened = peer.check_built_in();
            assert!(peer.built_in() || opened.unwrap_err().to_string().contains(&feature), "{peer}");
        }
        assert!("leveldb".parse::<Peer>().unwrap_err().to_string().contains("rocksdb, blobdb, fjall"));
    }

    #[test]
    fn the_budget_is_bifolds() {
        let mut options = Options::default();
        let budget = Budget::of(&options);
        assert_eq!((budget.memtable_bytes, budget.cache_bytes), (64 << 20, 256 << 20));
        assert_eq!((budget.sync, budget.threads), (Sync::Never, 2));
        ["memory_limit=30MiB", "durability=sync", "workers=caller"].iter().for_each(|set| options.set(set).unwrap());
        let budget = Budget::of(&options);
        assert_eq!((budget.memtable_bytes, budget.cache_bytes), (4 << 20, 15 << 20));
        assert_eq!((budget.sync, budget.threads), (Sync::EveryWrite, 1));
        options.set("cache_bytes=1MiB").unwrap();
        assert_eq!(Budget::of(&options).cache_bytes, 1 << 20);
    }

    #[test]
    fn sizes_of_the_budget_follow_the_scale() {
        let mut options = Options::default();
        let sizes = |options: &Options| {
            let Budget { memtable_bytes, table_bytes, level1_bytes, blob_file_bytes, .. } = Budget::of(options);
            [memtable_bytes as u64, table_bytes, level1_bytes, blob_file_bytes].map(|bytes| bytes >> 20)
        };
        assert_eq!(sizes(&options), [64, 16, 256, 16]);
        let scale = Scale::Device;
        for word in [scale.options(), scale.leveled()].concat() {
            options.set(&word).unwrap();
        }
        assert_eq!(sizes(&options), [16, 4, 64, 4]);
        options.set("keyspace.values.file_bytes=3MiB").unwrap();
        assert_eq!(sizes(&options), [16, 4, 64, 3]);
        let budget = Budget::of(&options);
        #[cfg(feature = "rocksdb")]
        assert_eq!(crate::store::rocksdb::RocksBlobs::from(&budget).file_bytes, 3 << 20);
        #[cfg(feature = "fjall")]
        assert_eq!(crate::store::fjall::FjallBlobs::from(&budget).file_bytes, 3 << 20);
        assert_eq!(budget.min_bytes, 192);
    }
}
