//! redb with its defaults and the memory of Bifold's options.
//!
//! Every call is a transaction of its own, as every call of the other stores is atomic: a write transaction with one
//! commit for a write or a batch, a read transaction for a read or a scan. There is no compression, no background
//! thread and one writer at a time.
//!
//! redb lengthens its file ahead of what it needs, by holes where the file system has them: a directory's size counts
//! those, too.

use std::{
    fs,
    path::Path,
    sync::{PoisonError, RwLock, RwLockReadGuard},
    time::Instant,
};

use redb::{
    AccessGuard, Database, Durability, Error, ReadOnlyTable, ReadableDatabase, StorageError, Table, TableDefinition,
};

use super::{Entries, Store, Totals, peer::Budget, sync::Sync, words};
use crate::{
    Failure, Result,
    measure::{self, Called},
};

/// The version of the crate; a test compares it with Cargo.lock.
pub const VERSION: &str = "4.6.0";

/// The one table, from bytes to bytes.
const ENTRIES: TableDefinition<&[u8], &[u8]> = TableDefinition::new("entries");

/// The options that a comparison may vary.
#[derive(Clone, Copy, Debug)]
pub struct RedbOptions {
    /// Size of the cache, in bytes: of pages read, and of pages written and not in the file yet.
    pub cache_bytes: usize,
    /// Whether a commit is durable.
    pub sync: Sync,
}

impl Default for RedbOptions {
    fn default() -> Self {
        Self { cache_bytes: 384 << 20, sync: Sync::Never }
    }
}

impl From<&Budget> for RedbOptions {
    /// redb's cache also serves as an LSM-tree's memtables, so it gets the memory of both, with two memtables: one that
    /// is filled and one that is written.
    fn from(budget: &Budget) -> Self {
        let memtables = budget.memtable_bytes.saturating_mul(2);
        Self { cache_bytes: budget.cache_bytes.saturating_add(memtables), sync: budget.sync }
    }
}

/// An open redb database.
pub struct RedbStore {
    /// In a lock, because `Database::compact` needs exclusive access.
    db: RwLock<Database>,
    with: RedbOptions,
    /// The bytes that the process had read and written before.
    called: Called,
}

impl RedbStore {
    /// Opens the database in `dir`, or creates one.
    ///
    /// # Errors
    /// The database's.
    pub fn open(dir: &Path, with: RedbOptions) -> Result<Self> {
        let called = measure::called().unwrap_or_default();
        fs::create_dir_all(dir).map_err(|e| Failure::from(Error::from(StorageError::from(e))))?;
        let db = Database::builder().set_cache_size(with.cache_bytes).create(dir.join("data.redb"));
        let store = Self { db: RwLock::new(db.map_err(Error::from)?), with, called };
        // Reads need the table to exist.
        store.write(Durability::Immediate, |_| Ok(()))?;
        Ok(store)
    }

    fn db(&self) -> RwLockReadGuard<'_, Database> {
        self.db.read().unwrap_or_else(PoisonError::into_inner)
    }

    /// The durability of a write.
    fn durability(&self) -> Durability {
        match self.with.sync {
            Sync::EveryWrite => Durability::Immediate,
            Sync::Never => Durability::None,
        }
    }

    /// Runs `change` in a write transaction.
    fn write(
        &self,
        durability: Durability,
        change: impl FnOnce(&mut Table<'_, &'static [u8], &'static [u8]>) -> std::result::Result<(), Error>,
    ) -> std::result::Result<(), Error> {
        let mut transaction = self.db().begin_write()?;
        transaction.set_durability(durability)?;
        change(&mut transaction.open_table(ENTRIES)?)?;
        Ok(transaction.commit()?)
    }

    /// The present table.
    fn table(&self) -> std::result::Result<ReadOnlyTable<&'static [u8], &'static [u8]>, Error> {
        Ok(self.db().begin_read()?.open_table(ENTRIES)?)
    }
}

type Pair<'t> = (AccessGuard<'t, &'static [u8]>, AccessGuard<'t, &'static [u8]>);

/// Passes these entries to `seen`. Returns their number.
fn pass_on<'t>(
    entries: impl Iterator<Item = std::result::Result<Pair<'t>, StorageError>>,
    seen: &mut dyn FnMut(&[u8], &[u8]),
) -> std::result::Result<usize, Error> {
    let mut found = 0;
    for entry in entries {
        let (key, value) = entry?;
        seen(key.value(), value.value());
        found += 1;
    }
    Ok(found)
}

impl Store for RedbStore {
    fn name(&self) -> &'static str {
        "redb"
    }

    fn version(&self) -> String {
        VERSION.to_owned()
    }

    fn settings(&self) -> Vec<(String, String)> {
        let durability = match self.with.sync {
            Sync::EveryWrite => "immediate",
            Sync::Never => "none: a killed process loses all since the last flush",
        };
        words([("cache_bytes", &self.with.cache_bytes), ("durability", &durability)])
    }

    fn put(&self, key: &[u8], value: &[u8]) -> Result<()> {
        Ok(self.write(self.durability(), |table| {
            table.insert(key, value)?;
            Ok(())
        })?)
    }

    fn put_all(&self, entries: &Entries) -> Result<()> {
        Ok(self.write(self.durability(), |table| {
            for (key, value) in entries.iter() {
                table.insert(key, value)?;
            }
            Ok(())
        })?)
    }

    fn delete(&self, key: &[u8]) -> Result<()> {
        Ok(self.write(self.durability(), |table| {
            table.remove(key)?;
            Ok(())
        })?)
    }

    fn get(&self, key: &[u8], seen: &mut dyn FnMut(&[u8])) -> Result<bool> {
        // Shown where it lies in the cached page: nothing is copied.
        let table = self.table()?;
        let value = table.get(key).map_err(Error::from)?;
        Ok(value.inspect(|value| seen(value.value())).is_some())
    }

    fn scan(&self, from: &[u8], limit: usize, seen: &mut dyn FnMut(&[u8], &[u8])) -> Result<usize> {
        let table = self.table()?;
        Ok(pass_on(table.range::<&[u8]>(from..).map_err(Error::from)?.take(limit), seen)?)
    }

    fn scan_back(&self, from: &[u8], limit: usize, seen: &mut dyn FnMut(&[u8], &[u8])) -> Result<usize> {
        let table = self.table()?;
        Ok(pass_on(table.range::<&[u8]>(..=from).map_err(Error::from)?.rev().take(limit), seen)?)
    }

    /// An empty durable commit, which makes all earlier ones durable.
    fn flush(&self) -> Result<()> {
        Ok(self.write(Durability::Immediate, |_| Ok(()))?)
    }

    /// Nothing: redb works in the calls themselves.
    fn wait_idle(&self, _end: Option<Instant>) -> Result<bool> {
        Ok(true)
    }

    /// Moves pages from the end of the file to holes nearer to its beginning, and shortens it.
    fn compact(&self) -> Result<()> {
        let mut db = self.db.write().unwrap_or_else(PoisonError::into_inner);
        db.compact().map_err(Error::from)?;
        Ok(())
    }

    /// By system calls: redb counts no bytes. It reads and writes its file by calls only, so nothing is left out.
    fn totals(&self) -> Totals {
        Totals::called_since(self.called)
    }

    fn close(self: Box<Self>) -> Result<Totals> {
        // A drop would do the same, but report no error.
        self.flush()?;
        Ok(self.totals())
    }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        Self::Store(format!("redb: {error}"))
    }
}
