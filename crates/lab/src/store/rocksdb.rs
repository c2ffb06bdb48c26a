//! RocksDB, with the same setup in all of Bifold's comparisons.
//!
//! Bloom filters have 10 bits per key; there is no compression; the write-ahead log is on; the comparison gives the
//! sizes of tables, memtable, level 1 and block cache, and the background threads. All else is RocksDB's default, or
//! what its authors recommend ([`Tuning`]).
//!
//! With [`RocksBlobs`] it is BlobDB: large values are in blob files, whose GC runs in compactions. The same counters
//! include the bytes of blob files: flushes and compactions count all bytes that their threads write.

use std::{path::Path, time::Instant};

use rocksdb::{
    BlockBasedOptions, Cache, DB, DBCompressionType, DBRawIterator, ErrorKind, FlushOptions, Options,
    WaitForCompactOptions, WriteBatch, WriteOptions, statistics::Ticker,
};

use super::{Entries, Gc, Store, Totals, peer::Budget, sync::Sync, words};
use crate::{Failure, Result};

/// The options that a comparison may vary.
#[derive(Clone, Copy, Debug)]
pub struct RocksDbOptions {
    /// Size of a memtable, in bytes.
    pub memtable_bytes: usize,
    /// Size of a table, in bytes.
    pub table_bytes: u64,
    /// Size of level 1, in bytes: `max_bytes_for_level_base`.
    pub level1_bytes: u64,
    /// Size of the block cache, in bytes.
    pub cache_bytes: usize,
    /// Whether a write is synced before it returns.
    pub sync: Sync,
    /// Threads for flushes and compactions.
    pub background_jobs: i32,
    /// Values in blob files; inline if `None`.
    pub blobs: Option<RocksBlobs>,
    /// Options of reads.
    pub tuning: Tuning,
}

/// Options that decide how tables are read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Tuning {
    /// RocksDB's defaults, with Bloom filters.
    #[default]
    Filters,
    /// What RocksDB's wiki recommends to start with ("Setup Options and Basic Tuning"): blocks of 16 KiB, indexes and
    /// filters in the block cache, those of level 0 pinned there, written bytes handed to the device every mebibyte.
    Recommended,
    /// The same with direct reads, and direct writes of flushes and compactions. The page cache then caches nothing, so
    /// the block cache has [`DIRECT_CACHE`] times the bytes.
    Direct,
}

/// See [`Tuning::Direct`]: of 768 MiB with 64 MiB of block cache, 512 instead.
pub const DIRECT_CACHE: usize = 8;

/// Options of blob files.
#[derive(Clone, Copy, Debug)]
pub struct RocksBlobs {
    /// The smallest value that goes there, in bytes.
    pub min_bytes: u64,
    /// Size of a blob file, in bytes.
    pub file_bytes: u64,
    /// Compactions move values out of this share of the blob files, the oldest.
    pub gc_age_cutoff: f64,
    /// Compactions start for GC when this share of the bytes of those files is garbage. RocksDB's default of 1 never
    /// starts one, and a blob file stays while one value in it is needed: 0.5 allows them twice their live bytes.
    pub gc_force_threshold: f64,
}

impl Default for RocksBlobs {
    fn default() -> Self {
        Self { min_bytes: 192, file_bytes: 64 << 20, gc_age_cutoff: 0.25, gc_force_threshold: 0.5 }
    }
}

/// The header of each record of RocksDB's log: checksum, length, type.
const RECORD_HEADER_BYTES: u64 = 7;

/// The header of each record of a blob file, which is read with the value: lengths, expiration, checks.
const BLOB_HEADER_BYTES: u64 = 32;

impl Default for RocksDbOptions {
    fn default() -> Self {
        Self {
            memtable_bytes: 64 << 20,
            table_bytes: 16 << 20,
            level1_bytes: 256 << 20,
            cache_bytes: 256 << 20,
            sync: Sync::Never,
            background_jobs: 2,
            blobs: None,
            tuning: Tuning::Filters,
        }
    }
}

impl From<&Budget> for RocksBlobs {
    fn from(budget: &Budget) -> Self {
        Self { min_bytes: budget.min_bytes, file_bytes: budget.blob_file_bytes, ..Self::default() }
    }
}

impl From<&Budget> for RocksDbOptions {
    fn from(budget: &Budget) -> Self {
        Self {
            memtable_bytes: budget.memtable_bytes,
            table_bytes: budget.table_bytes,
            level1_bytes: budget.level1_bytes,
            cache_bytes: budget.cache_bytes,
            sync: budget.sync,
            background_jobs: i32::try_from(budget.threads).unwrap_or(i32::MAX),
            blobs: None,
            tuning: Tuning::Filters,
        }
    }
}

/// The version of the C++ library in the crate `librocksdb-sys`; a test compares it with Cargo.lock.
pub const VERSION: &str = "11.8.1";

/// An open RocksDB database.
pub struct RocksDbStore {
    db: DB,
    /// Kept for its statistics.
    options: Options,
    writes: WriteOptions,
    with: RocksDbOptions,
}

impl RocksDbStore {
    /// Opens the database in `dir`, or creates one.
    ///
    /// # Errors
    /// The database's.
    pub fn open(dir: &Path, with: RocksDbOptions) -> Result<Self> {
        let (db, options) = with.open(dir)?;
        let mut writes = WriteOptions::default();
        writes.set_sync(with.sync == Sync::EveryWrite);
        Ok(Self { db, options, writes, with })
    }

    fn ticker(&self, ticker: Ticker) -> u64 {
        self.options.get_ticker_count(ticker)
    }
}

impl RocksDbOptions {
    /// Opens the database in `dir`, or creates one. The options have its statistics.
    ///
    /// # Errors
    /// The database's.
    pub fn open(&self, dir: &Path) -> Result<(DB, Options)> {
        let mut table = BlockBasedOptions::default();
        let cache = Cache::new_lru_cache(self.cache_bytes());
        table.set_bloom_filter(10.0, false);
        table.set_block_cache(&cache);
        let mut options = Options::default();
        options.create_if_missing(true);
        options.set_write_buffer_size(self.memtable_bytes);
        options.set_target_file_size_base(self.table_bytes);
        options.set_max_bytes_for_level_base(self.level1_bytes);
        options.set_compression_type(DBCompressionType::None);
        options.set_max_background_jobs(self.background_jobs);
        options.enable_statistics();
        self.tuning.set(&mut options, &mut table);
        options.set_block_based_table_factory(&table);
        self.blobs.inspect(|blobs| blobs.set(&mut options, &cache));
        Ok((DB::open(&options, dir)?, options))
    }

    fn cache_bytes(&self) -> usize {
        if self.tuning == Tuning::Direct { self.cache_bytes.saturating_mul(DIRECT_CACHE) } else { self.cache_bytes }
    }
}

impl Tuning {
    fn name(self) -> &'static str {
        match self {
            Self::Filters => "filters",
            Self::Recommended => "recommended",
            Self::Direct => "recommended, direct",
        }
    }

    fn set(self, options: &mut Options, table: &mut BlockBasedOptions) {
        if self == Self::Filters {
            return;
        }
        table.set_block_size(16 << 10);
        table.set_cache_index_and_filter_blocks(true);
        table.set_pin_l0_filter_and_index_blocks_in_cache(true);
        options.set_bytes_per_sync(1 << 20);
        if self == Self::Direct {
            options.set_use_direct_reads(true);
            options.set_use_direct_io_for_flush_and_compaction(true);
        }
    }
}

impl RocksBlobs {
    /// Blobs share the cache of the blocks: the same memory as without them.
    fn set(&self, options: &mut Options, cache: &Cache) {
        options.set_enable_blob_files(true);
        options.set_min_blob_size(self.min_bytes);
        options.set_blob_file_size(self.file_bytes);
        options.set_blob_compression_type(DBCompressionType::None);
        options.set_blob_cache(cache);
        options.set_enable_blob_gc(true);
        options.set_blob_gc_age_cutoff(self.gc_age_cutoff);
        options.set_blob_gc_force_threshold(self.gc_force_threshold);
    }
}

impl Store for RocksDbStore {
    fn name(&self) -> &'static str {
        match (self.with.blobs, self.with.tuning) {
            (Some(_), _) => "blobdb",
            (None, Tuning::Filters) => "rocksdb",
            (None, Tuning::Recommended) => "rocksdb-recommended",
            (None, Tuning::Direct) => "rocksdb-direct",
        }
    }

    fn version(&self) -> String {
        VERSION.to_owned()
    }

    fn settings(&self) -> Vec<(String, String)> {
        let RocksDbOptions { memtable_bytes, table_bytes, level1_bytes, sync, background_jobs, blobs, tuning, .. } =
            self.with;
        let mut settings = words([
            ("memtable_bytes", &memtable_bytes),
            ("table_bytes", &table_bytes),
            ("level1_bytes", &level1_bytes),
            ("cache_bytes", &self.with.cache_bytes()),
            ("tuning", &tuning.name()),
            ("sync", &sync),
            ("background_jobs", &background_jobs),
            ("filter_bits_per_key", &10),
            ("compression", &"none"),
        ]);
        settings.extend(blobs.into_iter().flat_map(|blobs| {
            words([
                ("blobs.min_bytes", &blobs.min_bytes),
                ("blobs.file_bytes", &blobs.file_bytes),
                ("blobs.gc_age_cutoff", &blobs.gc_age_cutoff),
                ("blobs.gc_force_threshold", &blobs.gc_force_threshold),
            ])
        }));
        settings
    }

    fn put(&self, key: &[u8], value: &[u8]) -> Result<()> {
        Ok(self.db.put_opt(key, value, &self.writes)?)
    }

    fn put_all(&self, entries: &Entries) -> Result<()> {
        let mut batch = WriteBatch::default();
        for (key, value) in entries.iter() {
            batch.put(key, value);
        }
        Ok(self.db.write_opt(batch, &self.writes)?)
    }

    fn delete(&self, key: &[u8]) -> Result<()> {
        Ok(self.db.delete_opt(key, &self.writes)?)
    }

    fn get(&self, key: &[u8], seen: &mut dyn FnMut(&[u8])) -> Result<bool> {
        // Pinned: the value is passed from its place in the block, the cheapest read of RocksDB.
        let value = self.db.get_pinned(key)?;
        Ok(value.inspect(|value| seen(value)).is_some())
    }

    fn scan(&self, from: &[u8], limit: usize, seen: &mut dyn FnMut(&[u8], &[u8])) -> Result<usize> {
        let mut cursor = self.db.raw_iterator();
        cursor.seek(from);
        pass_on(cursor, |cursor| cursor.next(), limit, seen)
    }

    fn scan_back(&self, from: &[u8], limit: usize, seen: &mut dyn FnMut(&[u8], &[u8])) -> Result<usize> {
        let mut cursor = self.db.raw_iterator();
        cursor.seek_for_prev(from);
        pass_on(cursor, |cursor| cursor.prev(), limit, seen)
    }

    fn flush(&self) -> Result<()> {
        let mut options = FlushOptions::default();
        options.set_wait(true);
        Ok(self.db.flush_opt(&options)?)
    }

    fn wait_idle(&self, end: Option<Instant>) -> Result<bool> {
        wait_idle(&self.db, end)
    }

    fn compact(&self) -> Result<()> {
        self.db.compact_range(None::<&[u8]>, None::<&[u8]>);
        Ok(())
    }

    /// The log's counter leaves out the headers of records, one for each group of writes: 100 000 single puts are
    /// 13.9 MB by the counter, 14.6 MB as a file. Reads for the user are counted as bytes that went into the cache,
    /// those of blobs with their headers: compactions do not fill it.
    fn totals(&self) -> Totals {
        let blobs =
            self.ticker(Ticker::BlobDbCacheBytesWrite) + BLOB_HEADER_BYTES * self.ticker(Ticker::BlobDbCacheAdd);
        let read_for_user = self.ticker(Ticker::BlockCacheBytesWrite) + blobs;
        Totals {
            written: [
                ("log", self.ticker(Ticker::WalFileBytes) + RECORD_HEADER_BYTES * self.ticker(Ticker::WriteDoneBySelf)),
                ("flush", self.ticker(Ticker::FlushWriteBytes)),
                ("compaction", self.ticker(Ticker::CompactWriteBytes)),
            ]
            .into(),
            read: [("get_and_scan", read_for_user), ("compaction", self.ticker(Ticker::CompactReadBytes))].into(),
            read_for_user,
            gc: Gc { bytes: self.ticker(Ticker::BlobDbGcBytesRelocated), ..Gc::default() },
            ..Totals::default()
        }
    }

    fn close(self: Box<Self>) -> Result<Totals> {
        self.db.cancel_all_background_work(true);
        Ok(self.totals())
    }
}

/// Passes up to `limit` entries to `seen`, from where the cursor is, moved on by `step`. Returns their number.
fn pass_on<'d>(
    mut cursor: DBRawIterator<'d>,
    step: impl Fn(&mut DBRawIterator<'d>),
    limit: usize,
    seen: &mut dyn FnMut(&[u8], &[u8]),
) -> Result<usize> {
    let mut found = 0;
    while found < limit {
        let Some((key, value)) = cursor.item() else { break };
        seen(key, value);
        found += 1;
        step(&mut cursor);
    }
    cursor.status()?;
    Ok(found)
}

/// Waits until no compaction is due or running. Returns false if that is not so at `end`.
pub(super) fn wait_idle(db: &DB, end: Option<Instant>) -> Result<bool> {
    let mut options = WaitForCompactOptions::default();
    if let Some(end) = end {
        let left = end.saturating_duration_since(Instant::now()).as_micros();
        // 0 would be no limit.
        options.set_timeout(u64::try_from(left).unwrap_or(u64::MAX).max(1));
    }
    match db.wait_for_compact(&options) {
        Err(error) if error.kind() == ErrorKind::TimedOut => Ok(false),
        result => Ok(result.map(|()| true)?),
    }
}

impl From<rocksdb::Error> for Failure {
    fn from(error: rocksdb::Error) -> Self {
        Self::Store(format!("RocksDB: {error}"))
    }
}
