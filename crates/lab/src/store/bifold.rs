//! Bifold, through its public interface.

mod facts;

use std::path::Path;

use bifold::{Batch, Db, Error, IoSource, Options};

use super::{Gc, Pairs, Store, Totals};
use crate::{Failure, Result};

/// Sources whose reads answer a user; the others are the store's own business.
const READS_FOR_USER: [IoSource; 3] = [IoSource::Get, IoSource::Scan, IoSource::Metadata];

/// An open Bifold database; the workload goes to its default keyspace.
pub struct BifoldStore {
    db: Db,
}

impl BifoldStore {
    /// Opens the database in `dir`, or makes one.
    ///
    /// # Errors
    /// The database's.
    pub fn open(dir: &Path, options: Options) -> Result<Self> {
        Ok(Self { db: Db::open_with(dir, options)? })
    }

    /// The database itself.
    #[must_use]
    pub fn db(&self) -> &Db {
        &self.db
    }
}

impl Store for BifoldStore {
    fn name(&self) -> &'static str {
        "bifold"
    }

    fn put(&self, key: &[u8], value: &[u8]) -> Result<()> {
        Ok(self.db.default_keyspace().put(key, value)?)
    }

    fn put_all(&self, pairs: &Pairs) -> Result<()> {
        let keyspace = self.db.default_keyspace();
        let mut batch = Batch::new();
        for (key, value) in pairs.iter() {
            batch.put(keyspace, key, value)?;
        }
        Ok(self.db.commit(batch)?)
    }

    fn delete(&self, key: &[u8]) -> Result<()> {
        Ok(self.db.default_keyspace().delete(key)?)
    }

    fn get(&self, key: &[u8], seen: &mut dyn FnMut(&[u8])) -> Result<bool> {
        let value = self.db.default_keyspace().get(key)?;
        Ok(value.inspect(|value| seen(value)).is_some())
    }

    fn scan(&self, from: &[u8], limit: usize, seen: &mut dyn FnMut(&[u8], &[u8])) -> Result<usize> {
        let mut found = 0;
        for pair in self.db.default_keyspace().range(from..).take(limit) {
            let pair = pair?;
            seen(pair.key(), &pair.value()?);
            found += 1;
        }
        Ok(found)
    }

    fn flush(&self) -> Result<()> {
        Ok(self.db.flush()?)
    }

    fn wait_idle(&self) -> Result<()> {
        Ok(self.db.wait_idle()?)
    }

    fn compact(&self) -> Result<()> {
        Ok(self.db.compact()?)
    }

    fn sync(&self) -> Result<()> {
        Ok(self.db.sync()?)
    }

    fn version(&self) -> String {
        env!("CARGO_PKG_VERSION").to_owned()
    }

    fn facts(&self) -> Vec<(&'static str, f64)> {
        facts::of(&self.db)
    }

    fn totals(&self) -> Totals {
        let stats = self.db.stats();
        let mut totals = Totals {
            gc: Gc {
                index_lookups: stats.gc.index_lookups,
                index_inserts: stats.gc.index_inserts,
                bytes: stats.gc.bytes,
            },
            ..Totals::default()
        };
        for source in &stats.io {
            totals.written.insert(source.source, source.bytes_written);
            totals.read.insert(source.source, source.bytes_read);
            if READS_FOR_USER.iter().any(|s| s.name() == source.source) {
                totals.read_for_user += source.bytes_read;
            }
        }
        totals
    }

    fn close(self: Box<Self>) -> Result<()> {
        Ok(self.db.close()?)
    }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        Self::Store(error.to_string())
    }
}
