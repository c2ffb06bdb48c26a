//! Bifold behind a write cache, as HashKV's stores are in its paper. The cache has all that transactions may take:
//! `transaction_bytes_max`.

use std::{path::Path, time::Instant};

use bifold::{Options, WriteCache};

use super::{Entries, Store, Totals, bifold::BifoldStore};
use crate::Result;

/// A Bifold database whose writes to the default keyspace are gathered in a cache. What is not a get is asked of the
/// database itself, after the cache was drained.
pub struct CachedStore {
    // Dropped before the database that it writes to.
    cache: WriteCache,
    store: BifoldStore,
}

impl CachedStore {
    /// Its name in specs and reports.
    pub const NAME: &'static str = "bifold-cached";

    /// Opens the database in `dir`, or creates one.
    ///
    /// # Errors
    /// The database's.
    pub fn open(dir: &Path, options: Options) -> Result<Self> {
        let bytes = options.transaction_bytes_max.unwrap_or(options.memory_limit / 16);
        let store = BifoldStore::open(dir, options)?;
        Ok(Self { cache: store.db().default_keyspace().write_cache(bytes)?, store })
    }
}

impl Store for CachedStore {
    fn name(&self) -> &'static str {
        Self::NAME
    }

    fn version(&self) -> String {
        self.store.version()
    }

    fn settings(&self) -> Vec<(String, String)> {
        self.store.settings()
    }

    fn put(&self, key: &[u8], value: &[u8]) -> Result<()> {
        Ok(self.cache.put(key, value)?)
    }

    fn put_all(&self, entries: &Entries) -> Result<()> {
        self.cache.drain()?;
        self.store.put_all(entries)
    }

    fn delete(&self, key: &[u8]) -> Result<()> {
        Ok(self.cache.delete(key)?)
    }

    fn get(&self, key: &[u8], seen: &mut dyn FnMut(&[u8])) -> Result<bool> {
        let value = self.cache.get(key)?;
        Ok(value.inspect(|value| seen(value)).is_some())
    }

    fn scan(&self, from: &[u8], limit: usize, seen: &mut dyn FnMut(&[u8], &[u8])) -> Result<usize> {
        self.cache.drain()?;
        self.store.scan(from, limit, seen)
    }

    fn scan_back(&self, from: &[u8], limit: usize, seen: &mut dyn FnMut(&[u8], &[u8])) -> Result<usize> {
        self.cache.drain()?;
        self.store.scan_back(from, limit, seen)
    }

    fn flush(&self) -> Result<()> {
        self.cache.drain()?;
        self.store.flush()
    }

    fn wait_idle(&self, end: Option<Instant>) -> Result<bool> {
        self.cache.drain()?;
        self.store.wait_idle(end)
    }

    fn compact(&self) -> Result<()> {
        self.cache.drain()?;
        self.store.compact()
    }

    fn sync(&self) -> Result<()> {
        self.cache.drain()?;
        self.store.sync()
    }

    fn facts(&self) -> Vec<(&'static str, f64)> {
        let mut facts = self.store.facts();
        facts.push(("write_cache_replaced", self.cache.replaced() as f64));
        facts
    }

    fn totals(&self) -> Totals {
        self.store.totals()
    }

    fn close(self: Box<Self>) -> Result<Totals> {
        let Self { cache, store } = *self;
        cache.close()?;
        Box::new(store).close()
    }
}
