//! Bifold's value store (`bifold-over`) with its keys in another engine: HashKV's experiment 13.
//!
//! The directory of a store has two: `values`, and `keys` for the other engine, which has the options that it has as a
//! peer by itself. The value store has those of Bifold's keyspace, and a layer of half a memtable.

use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
    time::Instant,
};

use bifold::{Options, PlacementKind};
use bifold_over::{
    Batch, ForeignIndex, Options as OverOptions, Placement, Stats, Store as ValueStore, ValueOptions, Workers,
};

use super::{Entries, Gc, Store, Totals, peer::Budget, sync::Sync};
use crate::{Failure, Result};

/// What is different from one index to another.
struct Engine<I> {
    name: &'static str,
    version: String,
    settings: Vec<(String, String)>,
    wait: fn(&I, Option<Instant>) -> Result<bool>,
    compact: fn(&I) -> Result<()>,
    /// Bytes that it has written and read, given the figures of the value store.
    moved: Box<dyn Fn(&Stats) -> Moved + Send + std::marker::Sync>,
}

/// Bytes written and read by an index, by source.
struct Moved {
    written: Vec<(&'static str, u64)>,
    read: Vec<(&'static str, u64)>,
    read_for_user: u64,
}

impl<I> Engine<I> {
    /// The bytes that a store with these figures and its index have moved.
    fn totals(&self, stats: &Stats) -> Totals {
        let moved = (self.moved)(stats);
        let own: BTreeMap<_, _> = stats.read.iter().copied().collect();
        let of = |source| own.get(source).copied().unwrap_or(0);
        let read_for_user = moved.read_for_user + of("get") + of("scan");
        Totals {
            written: stats.written.iter().copied().chain(moved.written).collect(),
            read: own.into_iter().chain(moved.read).collect(),
            read_for_user,
            gc: Gc { index_lookups: stats.gc_lookups, index_inserts: stats.gc_moves, bytes: stats.gc_moved_bytes },
            ..Totals::default()
        }
    }
}

/// A value store over an index.
struct OverStore<I: ForeignIndex> {
    store: ValueStore<I>,
    engine: Engine<I>,
    sync: Sync,
}

/// Which placement the options mean: those of a peer usually name none, and then it is `hashkv`.
fn placement(options: &Options) -> Result<Placement> {
    match options.keyspace.placement {
        PlacementKind::Auto | PlacementKind::HashKv => Ok(Placement::HashKv),
        PlacementKind::WiscKey => Ok(Placement::WiscKey),
        other => {
            Err(Failure::Plan(format!("{other:?} needs Bifold's own index: over another, use `hashkv` or `wisckey`")))
        }
    }
}

fn over_options(options: &Options) -> Result<OverOptions> {
    let budget = Budget::of(options);
    let values: ValueOptions = options.keyspace.values;
    Ok(OverOptions {
        placement: placement(options)?,
        values,
        layer_bytes: (budget.memtable_bytes as u64 / 2).max(1 << 10),
        log_bytes: budget.log_bytes,
        filter_bytes: (options.memory_limit / 20).max(64 << 10),
        workers: Workers::Thread,
    })
}

impl<I: ForeignIndex> OverStore<I> {
    fn open(dir: &Path, index: I, options: &Options, mut engine: Engine<I>) -> Result<Box<dyn Store>> {
        let with = over_options(options)?;
        let own = [
            ("placement", with.placement.name().to_owned()),
            ("layer_bytes", with.layer_bytes.to_string()),
            ("log_bytes", with.log_bytes.to_string()),
            ("space_target", with.values.space_target.to_string()),
            ("separate_from_bytes", with.values.separates_from().to_string()),
        ];
        engine.settings.extend(own.map(|(name, value)| (format!("values.{name}"), value)));
        let store = ValueStore::open(dir.join("values"), index, with)?;
        Ok(Box::new(Self { store, engine, sync: Budget::of(options).sync }))
    }

    fn written(&self, batch: &Batch) -> Result<()> {
        self.store.write(batch)?;
        match self.sync {
            Sync::EveryWrite => Ok(self.store.sync()?),
            Sync::Never => Ok(()),
        }
    }
}

impl<I: ForeignIndex> Store for OverStore<I> {
    fn name(&self) -> &'static str {
        self.engine.name
    }

    fn version(&self) -> String {
        self.engine.version.clone()
    }

    fn settings(&self) -> Vec<(String, String)> {
        self.engine.settings.clone()
    }

    fn put(&self, key: &[u8], value: &[u8]) -> Result<()> {
        let mut batch = Batch::new();
        batch.put(key, value)?;
        self.written(&batch)
    }

    fn put_all(&self, entries: &Entries) -> Result<()> {
        let mut batch = Batch::new();
        entries.iter().try_for_each(|(key, value)| batch.put(key, value))?;
        self.written(&batch)
    }

    fn delete(&self, key: &[u8]) -> Result<()> {
        let mut batch = Batch::new();
        batch.delete(key)?;
        self.written(&batch)
    }

    fn get(&self, key: &[u8], seen: &mut dyn FnMut(&[u8])) -> Result<bool> {
        let value = self.store.get(key)?;
        Ok(value.inspect(|value| seen(value)).is_some())
    }

    fn scan(&self, from: &[u8], limit: usize, seen: &mut dyn FnMut(&[u8], &[u8])) -> Result<usize> {
        let snapshot = self.store.snapshot()?;
        let mut found = 0;
        for pair in snapshot.scan::<&[u8]>(from..)?.take(limit) {
            let (key, value) = pair?;
            seen(&key, &value);
            found += 1;
        }
        Ok(found)
    }

    /// Other engines' indexes are asked for ascending scans only.
    fn scan_back(&self, _from: &[u8], _limit: usize, _seen: &mut dyn FnMut(&[u8], &[u8])) -> Result<usize> {
        Err(Failure::Plan(format!("{} does not scan backwards: leave out `scan-back`", self.engine.name)))
    }

    fn flush(&self) -> Result<()> {
        Ok(self.store.checkpoint()?)
    }

    fn wait_idle(&self, end: Option<Instant>) -> Result<bool> {
        self.store.wait_idle()?;
        (self.engine.wait)(self.store.index(), end)
    }

    fn compact(&self) -> Result<()> {
        self.store.checkpoint()?;
        (self.engine.compact)(self.store.index())
    }

    fn sync(&self) -> Result<()> {
        Ok(self.store.sync()?)
    }

    fn facts(&self) -> Vec<(&'static str, f64)> {
        let stats = self.store.stats();
        vec![
            ("value_files", stats.value_files as f64),
            ("value_bytes", stats.value_bytes as f64),
            ("live_value_bytes", stats.live_bytes as f64),
            ("log_bytes", stats.log_bytes as f64),
            ("index_changes", stats.index_changes as f64),
            ("index_change_bytes", stats.index_bytes as f64),
        ]
    }

    fn totals(&self) -> Totals {
        self.engine.totals(&self.store.stats())
    }

    fn close(self: Box<Self>) -> Result<Totals> {
        let Self { store, engine, .. } = *self;
        // GC that still runs is counted.
        Ok(engine.totals(&store.close()?))
    }
}

/// The directory of the other engine.
fn keys_in(dir: &Path) -> Result<PathBuf> {
    let keys = dir.join("keys");
    fs::create_dir_all(&keys).map_err(|error| Failure::Store(format!("cannot create {}: {error}", keys.display())))?;
    Ok(keys)
}

/// Bifold's version, and the engine's.
fn version(of_engine: &str) -> String {
    format!("{} over {of_engine}", env!("CARGO_PKG_VERSION"))
}

/// Opens a store over RocksDB.
///
/// # Errors
/// The engines'.
#[cfg(feature = "rocksdb")]
pub(super) fn rocksdb(dir: &Path, options: &Options) -> Result<Box<dyn Store>> {
    use ::rocksdb::statistics::Ticker;
    use bifold_over::adapters::rocksdb::RocksDbIndex;

    use super::{
        rocksdb::{RocksDbOptions, VERSION, wait_idle},
        words,
    };

    let with = RocksDbOptions::from(&Budget::of(options));
    let keys = keys_in(dir)?;
    let (db, of_db) = with.open(&keys)?;
    let engine = Engine {
        name: "over-rocksdb",
        version: version(VERSION),
        settings: words([
            ("index.memtable_bytes", &with.memtable_bytes),
            ("index.table_bytes", &with.table_bytes),
            ("index.cache_bytes", &with.cache_bytes),
            ("index.background_jobs", &with.background_jobs),
            ("index.filter_bits_per_key", &10),
        ]),
        wait: |index: &RocksDbIndex, end| wait_idle(index.db(), end),
        compact: |index| {
            index.db().compact_range(None::<&[u8]>, None::<&[u8]>);
            Ok(())
        },
        moved: Box::new(move |_| {
            let ticker = |ticker| of_db.get_ticker_count(ticker);
            let read_for_user = ticker(Ticker::BlockCacheBytesWrite);
            Moved {
                written: vec![
                    ("index flush", ticker(Ticker::FlushWriteBytes)),
                    ("index compaction", ticker(Ticker::CompactWriteBytes)),
                ],
                read: vec![("index", read_for_user), ("index compaction", ticker(Ticker::CompactReadBytes))],
                read_for_user,
            }
        }),
    };
    OverStore::open(dir, RocksDbIndex::new(db), options, engine)
}

/// Opens a store over fjall. What fjall writes is what the process has written by system calls and the value store has
/// not.
///
/// # Errors
/// The engines'.
#[cfg(feature = "fjall")]
pub(super) fn fjall(dir: &Path, options: &Options) -> Result<Box<dyn Store>> {
    use bifold_over::adapters::fjall::FjallIndex;

    use super::{
        fjall::{FjallOptions, VERSION, flush, wait_idle},
        words,
    };
    use crate::measure;

    let with = FjallOptions::from(&Budget::of(options));
    let called = measure::called().unwrap_or_default();
    let keys = keys_in(dir)?;
    let (db, keyspace) = with.open(&keys)?;
    let engine = Engine {
        name: "over-fjall",
        version: version(VERSION),
        settings: words([
            ("index.memtable_bytes", &with.memtable_bytes),
            ("index.table_bytes", &with.table_bytes),
            ("index.cache_bytes", &with.cache_bytes),
            ("index.threads", &with.threads),
        ]),
        wait: |index: &FjallIndex, end| wait_idle(index.db(), index.keyspace(), end),
        compact: |index| {
            flush(index.db(), index.keyspace())?;
            Ok(index.keyspace().major_compact()?)
        },
        moved: Box::new(move |stats| {
            let now = measure::called().map_or_else(Default::default, |now| now.since(called));
            let sum = |own: &[(&str, u64)]| own.iter().map(|(_, bytes)| bytes).sum::<u64>();
            Moved {
                written: vec![("index", now.written.saturating_sub(sum(&stats.written)))],
                read: vec![("index", now.read.saturating_sub(sum(&stats.read)))],
                read_for_user: 0,
            }
        }),
    };
    OverStore::open(dir, FjallIndex::new(db, keyspace), options, engine)
}
