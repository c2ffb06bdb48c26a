//! fjall, as its documentation recommends, with the memory of Bifold's options and without compression.
//!
//! Everything not in [`FjallOptions`] is as fjall has it: leveled compaction with four tables in level 0, blocks of 4
//! KiB, filters of 10 bits per key (with a false positive rate of 0.0001 for level 0). With [`FjallBlobs`] large values
//! are in blob files, whose GC runs in compactions.
//!
//! fjall makes its journals 64 MiB long at once, however little is in them: small databases look larger than they are.
//! Waiting for its background work, and counting it, uses functions that fjall has public but not documented.

use std::{
    path::Path,
    sync::Arc,
    thread,
    time::{Duration, Instant},
};

use fjall::{
    CompressionType, Database, Guard, Keyspace, KeyspaceCreateOptions, KvSeparationOptions, PersistMode,
    compaction::Leveled, config::CompressionPolicy,
};

use super::{Entries, Store, Totals, peer::Budget, sync::Sync, words};
use crate::{
    Failure, Result,
    measure::{self, Called},
};

/// The version of the crate; a test compares it with Cargo.lock.
pub const VERSION: &str = "3.1.13";

/// The least that fjall takes as the size of all journals, in bytes.
const JOURNALS_BYTES_MIN: u64 = 64 << 20;

/// How often in a row, at intervals of [`POLL`], the store must be idle: between a flush and the compactions it
/// requests there is a moment in which neither is visible.
const IDLE_POLLS: u32 = 5;

const POLL: Duration = Duration::from_millis(5);

/// The options that a comparison may vary.
#[derive(Clone, Copy, Debug)]
pub struct FjallOptions {
    /// Size of a memtable, in bytes. fjall recommends 8 to 64 MiB.
    pub memtable_bytes: u64,
    /// Size of a table, in bytes. Level 1 is as large as four of them.
    pub table_bytes: u64,
    /// Size of the block cache, in bytes. fjall recommends a fifth to a fourth of the memory there is.
    pub cache_bytes: u64,
    /// Size of all journals, in bytes, at least 64 MiB.
    pub journals_bytes: u64,
    /// Whether a write is synced before it returns.
    pub sync: Sync,
    /// Background threads: one of several flushes only.
    pub threads: usize,
    /// Values in blob files; inline if `None`.
    pub blobs: Option<FjallBlobs>,
}

/// Options of blob files. The defaults are fjall's, as its code has them (its documentation says 33 % and
/// 20 % where the code has 25 % for both shares).
#[derive(Clone, Copy, Debug)]
pub struct FjallBlobs {
    /// The smallest value that goes there, in bytes.
    pub min_bytes: u32,
    /// Size of a blob file, in bytes.
    pub file_bytes: u64,
    /// A compaction rewrites a file with a larger share of garbage.
    pub gc_staleness: f32,
    /// Compactions take this share of those files, the oldest.
    pub gc_age_cutoff: f32,
}

impl Default for FjallBlobs {
    fn default() -> Self {
        Self { min_bytes: 1 << 10, file_bytes: 64 << 20, gc_staleness: 0.25, gc_age_cutoff: 0.25 }
    }
}

impl Default for FjallOptions {
    fn default() -> Self {
        Self {
            memtable_bytes: 64 << 20,
            table_bytes: 64 << 20,
            cache_bytes: 256 << 20,
            journals_bytes: 512 << 20,
            sync: Sync::Never,
            threads: 2,
            blobs: None,
        }
    }
}

impl From<&Budget> for FjallBlobs {
    fn from(budget: &Budget) -> Self {
        let min_bytes = u32::try_from(budget.min_bytes).unwrap_or(u32::MAX);
        Self { min_bytes, file_bytes: budget.blob_file_bytes, ..Self::default() }
    }
}

impl From<&Budget> for FjallOptions {
    /// fjall's level 1 is as large as four tables, so tables are a fourth of the budget's level 1: 64 MiB by default,
    /// as in fjall itself.
    fn from(budget: &Budget) -> Self {
        Self {
            memtable_bytes: budget.memtable_bytes as u64,
            table_bytes: budget.level1_bytes / 4,
            cache_bytes: budget.cache_bytes as u64,
            journals_bytes: budget.log_bytes,
            sync: budget.sync,
            threads: budget.threads as usize,
            blobs: None,
        }
    }
}

impl FjallOptions {
    /// Opens the database in `dir`, or creates one, and its only keyspace.
    ///
    /// # Errors
    /// The database's.
    pub fn open(self, dir: &Path) -> Result<(Database, Keyspace)> {
        let db = Database::builder(dir)
            .cache_size(self.cache_bytes)
            // fjall panics below that, and without a thread.
            .max_journaling_size(self.journals_bytes.max(JOURNALS_BYTES_MIN))
            .worker_threads(self.threads.max(1))
            .journal_compression(CompressionType::None)
            .open()?;
        let keyspace = db.keyspace("default", || self.keyspace())?;
        Ok((db, keyspace))
    }

    fn keyspace(self) -> KeyspaceCreateOptions {
        let tables = Leveled::default().with_table_target_size(self.table_bytes);
        KeyspaceCreateOptions::default()
            .max_memtable_size(self.memtable_bytes)
            .compaction_strategy(Arc::new(tables))
            .data_block_compression_policy(CompressionPolicy::disabled())
            .index_block_compression_policy(CompressionPolicy::disabled())
            .with_kv_separation(self.blobs.map(|blobs| {
                KvSeparationOptions::default()
                    .compression(CompressionType::None)
                    .separation_threshold(blobs.min_bytes)
                    .file_target_size(blobs.file_bytes)
                    .staleness_threshold(blobs.gc_staleness)
                    .age_cutoff(blobs.gc_age_cutoff)
            }))
    }
}

/// An open fjall database; the workload goes to one keyspace.
pub struct FjallStore {
    keyspace: Keyspace,
    db: Database,
    with: FjallOptions,
    /// The bytes that the process had read and written before.
    called: Called,
}

impl FjallStore {
    /// Opens the database in `dir`, or creates one. An existing one keeps the sizes it was created with.
    ///
    /// # Errors
    /// The database's.
    pub fn open(dir: &Path, with: FjallOptions) -> Result<Self> {
        let called = measure::called().unwrap_or_default();
        let (db, keyspace) = with.open(dir)?;
        Ok(Self { keyspace, db, with, called })
    }

    fn mode(&self) -> PersistMode {
        match self.with.sync {
            Sync::EveryWrite => PersistMode::SyncData,
            Sync::Never => PersistMode::Buffer,
        }
    }

    /// A single write has gone to the system already; a durable one is synced, too.
    fn persist(&self) -> Result<()> {
        match self.with.sync {
            Sync::EveryWrite => Ok(self.db.persist(self.mode())?),
            Sync::Never => Ok(()),
        }
    }
}

/// Waits until `idle` holds `polls` times in a row. Returns false if that is not so at `end`.
fn wait(db: &Database, polls: u32, end: Option<Instant>, idle: impl Fn() -> bool) -> Result<bool> {
    let mut seen = 0;
    while seen < polls {
        if end.is_some_and(|end| Instant::now() >= end) {
            return Ok(false);
        }
        thread::sleep(POLL);
        // A failed worker has poisoned the database, and waiting for it would not end; this returns its error.
        db.persist(PersistMode::Buffer)?;
        seen = if idle() { seen + 1 } else { 0 };
    }
    Ok(true)
}

/// Writes the memtable to tables, and waits for that.
pub(super) fn flush(db: &Database, keyspace: &Keyspace) -> Result<()> {
    keyspace.rotate_memtable()?;
    wait(db, 1, None, || keyspace.sealed_memtable_count() == 0).map(drop)
}

/// fjall looks once for work after each flush, and no more after it: what is due beyond that stays so.
pub(super) fn wait_idle(db: &Database, keyspace: &Keyspace, end: Option<Instant>) -> Result<bool> {
    let idle = || db.outstanding_flushes() + keyspace.sealed_memtable_count() + db.active_compactions() == 0;
    wait(db, IDLE_POLLS, end, idle)
}

/// Passes these entries to `seen`. Returns their number.
fn pass_on(entries: impl Iterator<Item = Guard>, seen: &mut dyn FnMut(&[u8], &[u8])) -> Result<usize> {
    let mut found = 0;
    for entry in entries {
        let (key, value) = entry.into_inner()?;
        seen(&key, &value);
        found += 1;
    }
    Ok(found)
}

/// fjall panics at keys and values of other lengths.
fn check(key: &[u8], value: &[u8]) -> Result<()> {
    let (key_ok, value_ok) = ((1..=usize::from(u16::MAX)).contains(&key.len()), u32::try_from(value.len()).is_ok());
    if key_ok && value_ok {
        return Ok(());
    }
    let (key, value) = (key.len(), value.len());
    Err(Failure::Store(format!(
        "fjall: a key of {key} bytes with a value of {value}: it has keys of 1 to 65535 bytes and values below 4 GiB"
    )))
}

impl Store for FjallStore {
    fn name(&self) -> &'static str {
        if self.with.blobs.is_some() { "fjall-blobs" } else { "fjall" }
    }

    fn version(&self) -> String {
        VERSION.to_owned()
    }

    fn settings(&self) -> Vec<(String, String)> {
        let FjallOptions { memtable_bytes, table_bytes, cache_bytes, journals_bytes, sync, threads, blobs } = self.with;
        let mut settings = words([
            ("memtable_bytes", &memtable_bytes),
            ("table_bytes", &table_bytes),
            ("cache_bytes", &cache_bytes),
            ("journals_bytes", &journals_bytes.max(JOURNALS_BYTES_MIN)),
            ("sync", &sync),
            ("threads", &threads.max(1)),
            ("compression", &"none"),
        ]);
        settings.extend(blobs.into_iter().flat_map(|blobs| {
            words([
                ("blobs.min_bytes", &blobs.min_bytes),
                ("blobs.file_bytes", &blobs.file_bytes),
                ("blobs.gc_staleness", &blobs.gc_staleness),
                ("blobs.gc_age_cutoff", &blobs.gc_age_cutoff),
            ])
        }));
        settings
    }

    fn put(&self, key: &[u8], value: &[u8]) -> Result<()> {
        check(key, value)?;
        self.keyspace.insert(key, value)?;
        self.persist()
    }

    fn put_all(&self, entries: &Entries) -> Result<()> {
        let mut batch = self.db.batch().durability(Some(self.mode()));
        for (key, value) in entries.iter() {
            check(key, value)?;
            batch.insert(&self.keyspace, key, value);
        }
        Ok(batch.commit()?)
    }

    fn delete(&self, key: &[u8]) -> Result<()> {
        check(key, b"")?;
        self.keyspace.remove(key)?;
        self.persist()
    }

    fn get(&self, key: &[u8], seen: &mut dyn FnMut(&[u8])) -> Result<bool> {
        // A slice of the block where the value lies, which it keeps alive: nothing is copied.
        let value = self.keyspace.get(key)?;
        Ok(value.inspect(|value| seen(value)).is_some())
    }

    fn scan(&self, from: &[u8], limit: usize, seen: &mut dyn FnMut(&[u8], &[u8])) -> Result<usize> {
        pass_on(self.keyspace.range::<&[u8], _>(from..).take(limit), seen)
    }

    fn scan_back(&self, from: &[u8], limit: usize, seen: &mut dyn FnMut(&[u8], &[u8])) -> Result<usize> {
        pass_on(self.keyspace.range::<&[u8], _>(..=from).rev().take(limit), seen)
    }

    fn flush(&self) -> Result<()> {
        flush(&self.db, &self.keyspace)
    }

    fn wait_idle(&self, end: Option<Instant>) -> Result<bool> {
        wait_idle(&self.db, &self.keyspace, end)
    }

    /// One merge of everything into the last level, in tables of 64 MB, whatever the options say.
    fn compact(&self) -> Result<()> {
        self.flush()?;
        Ok(self.keyspace.major_compact()?)
    }

    /// By system calls: fjall counts no bytes written. It reads and writes files by calls only, so nothing is left out.
    fn totals(&self) -> Totals {
        Totals::called_since(self.called)
    }

    fn close(self: Box<Self>) -> Result<Totals> {
        let Self { keyspace, db, called, .. } = *self;
        // As it does itself when dropped, but with the error.
        db.persist(PersistMode::SyncAll)?;
        // Its workers still write until the last handle is gone.
        drop((keyspace, db));
        Ok(Totals::called_since(called))
    }
}

impl From<fjall::Error> for Failure {
    fn from(error: fjall::Error) -> Self {
        Self::Store(format!("fjall: {error}"))
    }
}
