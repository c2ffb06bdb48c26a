//! LMDB with its defaults, through `heed`.
//!
//! Every call is a transaction of its own, as every call of the other stores is atomic: a write transaction with one
//! commit for a write or a batch, a read transaction for a read or a scan. There is no cache but the system's page
//! cache, which no budget bounds, no compression, no background thread and one writer at a time.
//!
//! Of its flags `NO_READ_AHEAD` is used, which LMDB suggests for data larger than memory: without it a load of 2 GB
//! in 768 MiB read 654 GB in 14 minutes and was not done. And `NO_SYNC`, for writes that are not synced ([`Sync`]).
//! `WRITE_MAP`, faster by LMDB's word, lets a stray pointer of the program damage the file, so it is not the default.

use std::{fs, ops::Bound, path::Path, time::Instant};

use heed::{Database, Env, EnvFlags, EnvOpenOptions, types::Bytes};

use super::{Entries, Store, Totals, peer::Budget, sync::Sync, words};
use crate::{
    Failure, Result,
    measure::{self, Called},
};

/// The longest key, in bytes: LMDB is built with this.
pub const KEY_BYTES_MAX: usize = 511;

/// Threads that may read at once; LMDB has 126 otherwise.
const READERS_MAX: u32 = 1024;

/// The options that a comparison may vary. LMDB has no memory budget: it uses the page cache.
#[derive(Clone, Copy, Debug)]
pub struct LmdbOptions {
    /// Addresses reserved for the file, in bytes, which it can never outgrow. They cost nothing until they are used,
    /// and do not lengthen the file.
    pub map_bytes: usize,
    /// Whether a commit is synced before it returns.
    pub sync: Sync,
}

impl Default for LmdbOptions {
    fn default() -> Self {
        // 1 TiB of the 128 that a process can address: more than a run writes, so none ends with MDB_MAP_FULL.
        Self { map_bytes: 1 << 40, sync: Sync::Never }
    }
}

impl From<&Budget> for LmdbOptions {
    fn from(budget: &Budget) -> Self {
        Self { sync: budget.sync, ..Self::default() }
    }
}

/// An open LMDB environment; the workload goes to its unnamed database.
pub struct LmdbStore {
    env: Env,
    entries: Database<Bytes, Bytes>,
    with: LmdbOptions,
    /// The bytes that the process had read and written before.
    called: Called,
}

impl LmdbStore {
    /// Opens the environment in `dir`, or creates one.
    ///
    /// # Errors
    /// The environment's.
    pub fn open(dir: &Path, with: LmdbOptions) -> Result<Self> {
        let called = measure::called().unwrap_or_default();
        fs::create_dir_all(dir).map_err(heed::Error::from)?;
        let mut options = EnvOpenOptions::new();
        options.map_size(with.map_bytes).max_readers(READERS_MAX);
        let unsynced = if with.sync == Sync::Never { EnvFlags::NO_SYNC } else { EnvFlags::empty() };
        // SAFETY: `NO_SYNC` is called unsafe for what power loss does to the file; a file damaged so is never opened
        // here, a run makes its own. The other flag is a hint to the system.
        unsafe { options.flags(EnvFlags::NO_READ_AHEAD | unsynced) };
        // SAFETY: the file is mapped and must not change but through LMDB. It is in a directory of the run's own, and
        // LMDB's lock file, which is used, orders processes that open the same environment.
        let env = unsafe { options.open(dir)? };
        let mut transaction = env.write_txn()?;
        let entries = env.create_database(&mut transaction, None)?;
        transaction.commit()?;
        Ok(Self { env, entries, with, called })
    }
}

/// LMDB itself says no more than MDB_BAD_VALSIZE.
fn check(key: &[u8]) -> Result<()> {
    if (1..=KEY_BYTES_MAX).contains(&key.len()) {
        return Ok(());
    }
    Err(Failure::Store(format!("LMDB: a key of {} bytes: it has keys of 1 to {KEY_BYTES_MAX} bytes", key.len())))
}

/// Passes these entries to `seen`. Returns their number.
fn pass_on<'t>(
    entries: impl Iterator<Item = heed::Result<(&'t [u8], &'t [u8])>>,
    seen: &mut dyn FnMut(&[u8], &[u8]),
) -> Result<usize> {
    let mut found = 0;
    for entry in entries {
        let (key, value) = entry?;
        seen(key, value);
        found += 1;
    }
    Ok(found)
}

impl Store for LmdbStore {
    fn name(&self) -> &'static str {
        "lmdb"
    }

    fn version(&self) -> String {
        let version = heed::lmdb_version();
        format!("{}.{}.{}", version.major, version.minor, version.patch)
    }

    fn settings(&self) -> Vec<(String, String)> {
        let flags = match self.with.sync {
            Sync::EveryWrite => "NO_READ_AHEAD",
            Sync::Never => "NO_READ_AHEAD, NO_SYNC",
        };
        words([
            ("map_bytes", &self.with.map_bytes),
            ("flags", &flags),
            ("cache", &"the system's page cache, without bound"),
        ])
    }

    fn put(&self, key: &[u8], value: &[u8]) -> Result<()> {
        check(key)?;
        let mut transaction = self.env.write_txn()?;
        self.entries.put(&mut transaction, key, value)?;
        Ok(transaction.commit()?)
    }

    fn put_all(&self, entries: &Entries) -> Result<()> {
        let mut transaction = self.env.write_txn()?;
        for (key, value) in entries.iter() {
            check(key)?;
            self.entries.put(&mut transaction, key, value)?;
        }
        Ok(transaction.commit()?)
    }

    fn delete(&self, key: &[u8]) -> Result<()> {
        check(key)?;
        let mut transaction = self.env.write_txn()?;
        self.entries.delete(&mut transaction, key)?;
        Ok(transaction.commit()?)
    }

    fn get(&self, key: &[u8], seen: &mut dyn FnMut(&[u8])) -> Result<bool> {
        check(key)?;
        let transaction = self.env.read_txn()?;
        // Shown where it lies in the map: nothing is copied.
        let value = self.entries.get(&transaction, key)?;
        Ok(value.inspect(|value| seen(value)).is_some())
    }

    fn scan(&self, from: &[u8], limit: usize, seen: &mut dyn FnMut(&[u8], &[u8])) -> Result<usize> {
        // LMDB has no empty key to begin at; this is the first there can be.
        let from = if from.is_empty() { &[0][..] } else { from };
        check(from)?;
        let transaction = self.env.read_txn()?;
        let range: (Bound<&[u8]>, Bound<&[u8]>) = (Bound::Included(from), Bound::Unbounded);
        pass_on(self.entries.range(&transaction, &range)?.take(limit), seen)
    }

    fn scan_back(&self, from: &[u8], limit: usize, seen: &mut dyn FnMut(&[u8], &[u8])) -> Result<usize> {
        if from.is_empty() {
            return Ok(0);
        }
        check(from)?;
        let transaction = self.env.read_txn()?;
        let range: (Bound<&[u8]>, Bound<&[u8]>) = (Bound::Unbounded, Bound::Included(from));
        pass_on(self.entries.rev_range(&transaction, &range)?.take(limit), seen)
    }

    /// Syncs the file: every commit is in it already.
    fn flush(&self) -> Result<()> {
        Ok(self.env.force_sync()?)
    }

    /// Nothing: LMDB works in the calls themselves.
    fn wait_idle(&self, _end: Option<Instant>) -> Result<bool> {
        Ok(true)
    }

    /// Nothing: LMDB compacts only into a copy, and never shortens the file that is open.
    fn compact(&self) -> Result<()> {
        Ok(())
    }

    /// By system calls: LMDB counts no bytes. Writes are all there, for without `WRITE_MAP` it writes by calls; reads
    /// are not, for it reads the map.
    fn totals(&self) -> Totals {
        Totals::called_since(self.called)
    }

    fn close(self: Box<Self>) -> Result<Totals> {
        let Self { env, called, .. } = *self;
        env.prepare_for_closing().wait();
        Ok(Totals::called_since(called))
    }
}

impl From<heed::Error> for Failure {
    fn from(error: heed::Error) -> Self {
        Self::Store(format!("LMDB: {error}"))
    }
}
