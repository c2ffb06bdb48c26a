//! RocksDB as an index: the default column family of a database.
//!
//! Writes skip RocksDB's write-ahead log, because the store has one; a sync of the index is a flush.
//!
//! ```no_run
//! use bifold_over::{Options, Store, adapters::rocksdb::RocksDbIndex};
//!
//! let db = rocksdb::DB::open_default("keys")?;
//! let store = Store::open("values", RocksDbIndex::new(db), Options::default())?;
//! store.put(b"key", b"value")?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

use std::ops::Bound;

use bifold_contract::{Error, Result};
use rocksdb::{DB, DBRawIterator, FlushOptions, Snapshot, WriteBatch, WriteOptions};

use crate::index::{Changes, Entries, ForeignIndex, ForeignView};

/// A RocksDB database, to whose default column family nothing else writes.
pub struct RocksDbIndex {
    db: DB,
    writes: WriteOptions,
}

impl RocksDbIndex {
    /// This database.
    #[must_use]
    pub fn new(db: DB) -> Self {
        let mut writes = WriteOptions::default();
        writes.disable_wal(true);
        Self { db, writes }
    }

    /// The database.
    #[must_use]
    pub fn db(&self) -> &DB {
        &self.db
    }
}

/// A snapshot of the database.
pub struct RocksDbView<'a>(Snapshot<'a>);

fn failed(op: &'static str) -> impl FnOnce(rocksdb::Error) -> Error {
    move |error| Error::io(op, "the index (RocksDB)", std::io::Error::other(error))
}

impl ForeignIndex for RocksDbIndex {
    type View<'a> = RocksDbView<'a>;

    fn name(&self) -> &'static str {
        "RocksDB"
    }

    fn get(&self, key: &[u8], see: &mut dyn FnMut(&[u8])) -> Result<bool> {
        let value = self.db.get_pinned(key).map_err(failed("look up a key in"))?;
        Ok(value.inspect(|value| see(value)).is_some())
    }

    fn write(&self, changes: &Changes) -> Result<()> {
        let mut batch = WriteBatch::default();
        for (key, value) in changes.iter() {
            match value {
                Some(value) => batch.put(key, value),
                None => batch.delete(key),
            }
        }
        self.db.write_opt(batch, &self.writes).map_err(failed("write to"))
    }

    fn snapshot(&self) -> Result<RocksDbView<'_>> {
        Ok(RocksDbView(self.db.snapshot()))
    }

    fn sync(&self) -> Result<()> {
        let mut options = FlushOptions::default();
        options.set_wait(true);
        self.db.flush_opt(&options).map_err(failed("flush"))
    }
}

impl ForeignView for RocksDbView<'_> {
    fn get(&self, key: &[u8], see: &mut dyn FnMut(&[u8])) -> Result<bool> {
        let value = self.0.get_pinned(key).map_err(failed("look up a key in"))?;
        Ok(value.inspect(|value| see(value)).is_some())
    }

    fn scan<'s>(&'s self, start: Bound<&[u8]>, end: Bound<&[u8]>) -> Result<Entries<'s>> {
        let mut cursor = self.0.raw_iterator();
        match start {
            Bound::Unbounded => cursor.seek_to_first(),
            Bound::Included(key) => cursor.seek(key),
            Bound::Excluded(key) => {
                cursor.seek(key);
                if cursor.key() == Some(key) {
                    cursor.next();
                }
            }
        }
        Ok(Box::new(Cursor { cursor, end: end.map(<[u8]>::to_vec), is_done: false }))
    }
}

/// A cursor that ends at a bound.
struct Cursor<'s> {
    cursor: DBRawIterator<'s>,
    end: Bound<Vec<u8>>,
    is_done: bool,
}

impl Iterator for Cursor<'_> {
    type Item = Result<(Vec<u8>, Vec<u8>)>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.is_done {
            return None;
        }
        let is_within = |key: &[u8]| match &self.end {
            Bound::Unbounded => true,
            Bound::Included(end) => key <= end.as_slice(),
            Bound::Excluded(end) => key < end.as_slice(),
        };
        match self.cursor.item().filter(|(key, _)| is_within(key)) {
            Some((key, value)) => {
                let entry = (key.to_vec(), value.to_vec());
                self.cursor.next();
                Some(Ok(entry))
            }
            None => {
                self.is_done = true;
                self.cursor.status().err().map(|error| Err(failed("scan")(error)))
            }
        }
    }
}
