//! fjall as an index: a keyspace of a database.
//!
//! ```no_run
//! use bifold_over::{Options, Store, adapters::fjall::FjallIndex};
//!
//! let db = fjall::Database::builder("keys").open()?;
//! let keyspace = db.keyspace("default", fjall::KeyspaceCreateOptions::default)?;
//! let store = Store::open("values", FjallIndex::new(db, keyspace), Options::default())?;
//! store.put(b"key", b"value")?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! Leave fjall's own separation of values off: what is in the index is short.

use std::ops::Bound;

use bifold_contract::{Error, Result};
use fjall::{Database, Keyspace, PersistMode, Readable, Snapshot};

use crate::index::{Changes, Entries, ForeignIndex, ForeignView};

/// A keyspace of a fjall database, to which nothing else writes.
pub struct FjallIndex {
    db: Database,
    keyspace: Keyspace,
}

impl FjallIndex {
    /// This keyspace of this database.
    #[must_use]
    pub fn new(db: Database, keyspace: Keyspace) -> Self {
        Self { db, keyspace }
    }

    /// The database.
    #[must_use]
    pub fn db(&self) -> &Database {
        &self.db
    }

    /// The keyspace.
    #[must_use]
    pub fn keyspace(&self) -> &Keyspace {
        &self.keyspace
    }
}

/// A snapshot of the keyspace.
pub struct FjallView<'a> {
    snapshot: Snapshot,
    keyspace: &'a Keyspace,
}

fn failed(op: &'static str) -> impl FnOnce(fjall::Error) -> Error {
    move |error| Error::io(op, "the index (fjall)", std::io::Error::other(error))
}

impl ForeignIndex for FjallIndex {
    type View<'a> = FjallView<'a>;

    fn name(&self) -> &'static str {
        "fjall"
    }

    fn get(&self, key: &[u8], see: &mut dyn FnMut(&[u8])) -> Result<bool> {
        let value = self.keyspace.get(key).map_err(failed("look up a key in"))?;
        Ok(value.inspect(|value| see(value)).is_some())
    }

    /// One batch: fjall has no way to write without its journal.
    fn write(&self, changes: &Changes) -> Result<()> {
        let mut batch = self.db.batch();
        for (key, value) in changes.iter() {
            match value {
                Some(value) => batch.insert(&self.keyspace, key, value),
                None => batch.remove(&self.keyspace, key),
            }
        }
        batch.commit().map_err(failed("write to"))
    }

    fn snapshot(&self) -> Result<FjallView<'_>> {
        Ok(FjallView { snapshot: self.db.snapshot(), keyspace: &self.keyspace })
    }

    fn sync(&self) -> Result<()> {
        self.db.persist(PersistMode::SyncAll).map_err(failed("sync"))
    }
}

impl ForeignView for FjallView<'_> {
    fn get(&self, key: &[u8], see: &mut dyn FnMut(&[u8])) -> Result<bool> {
        let value = self.snapshot.get(self.keyspace, key).map_err(failed("look up a key in"))?;
        Ok(value.inspect(|value| see(value)).is_some())
    }

    fn scan<'s>(&'s self, start: Bound<&[u8]>, end: Bound<&[u8]>) -> Result<Entries<'s>> {
        let entries = self.snapshot.range::<&[u8], _>(self.keyspace, (start, end));
        Ok(Box::new(entries.map(|entry| {
            let (key, value) = entry.into_inner().map_err(failed("scan"))?;
            Ok((key.to_vec(), value.to_vec()))
        })))
    }
}
