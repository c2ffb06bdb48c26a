//! The stores that can be measured, behind one small trait.

pub mod bifold;
pub mod cached;
#[cfg(feature = "fjall")]
pub mod fjall;
#[cfg(feature = "lmdb")]
pub mod lmdb;
#[cfg(any(feature = "fjall", feature = "rocksdb"))]
pub mod over;
pub mod peer;
#[cfg(feature = "redb")]
pub mod redb;
#[cfg(feature = "rocksdb")]
pub mod rocksdb;
pub mod sync;
#[cfg(test)]
mod tests;

use std::{collections::BTreeMap, path::Path, time::Instant};

use ::bifold::Options;
use serde::Serialize;

pub use self::peer::Peer;
use crate::{
    Result,
    measure::{self, Called},
};

/// An ordered key-value store, as a workload uses it.
pub trait Store: Send + Sync {
    /// Its name in reports.
    fn name(&self) -> &'static str;

    /// Its version; empty if it does not report one.
    fn version(&self) -> String {
        String::new()
    }

    /// The settings that matter, by name, as text for a report.
    fn settings(&self) -> Vec<(String, String)> {
        Vec::new()
    }

    /// Writes one key.
    ///
    /// # Errors
    /// The store's.
    fn put(&self, key: &[u8], value: &[u8]) -> Result<()>;

    /// Writes all entries in one atomic commit.
    ///
    /// # Errors
    /// The store's.
    fn put_all(&self, entries: &Entries) -> Result<()>;

    /// Deletes one key.
    ///
    /// # Errors
    /// The store's.
    fn delete(&self, key: &[u8]) -> Result<()>;

    /// Passes the value of `key` to `seen`. Returns whether there is one.
    ///
    /// # Errors
    /// The store's.
    fn get(&self, key: &[u8], seen: &mut dyn FnMut(&[u8])) -> Result<bool>;

    /// Passes up to `limit` keys and values from `from` on to `seen`, in ascending order. Returns their number.
    ///
    /// # Errors
    /// The store's.
    fn scan(&self, from: &[u8], limit: usize, seen: &mut dyn FnMut(&[u8], &[u8])) -> Result<usize>;

    /// Passes up to `limit` keys and values to `seen`, in descending order, the first at or before `from`. Returns
    /// their number.
    ///
    /// # Errors
    /// The store's.
    fn scan_back(&self, from: &[u8], limit: usize, seen: &mut dyn FnMut(&[u8], &[u8])) -> Result<usize>;

    /// Writes memtables to tables, and waits for that.
    ///
    /// # Errors
    /// The store's.
    fn flush(&self) -> Result<()>;

    /// Waits until no background work is due. Returns false if that is not so at `end`; a store that cannot end its
    /// wait waits for as long as it takes.
    ///
    /// # Errors
    /// The store's.
    fn wait_idle(&self, end: Option<Instant>) -> Result<bool>;

    /// Compacts everything, and waits for that.
    ///
    /// # Errors
    /// The store's.
    fn compact(&self) -> Result<()>;

    /// Makes all writes so far durable.
    ///
    /// # Errors
    /// The store's.
    fn sync(&self) -> Result<()> {
        self.flush()
    }

    /// The store's own figures, by name, for reports.
    fn facts(&self) -> Vec<(&'static str, f64)> {
        Vec::new()
    }

    /// The bytes that the store has read and written since it was opened.
    fn totals(&self) -> Totals;

    /// Ends all background work, closes the store, and returns the bytes it has moved in all.
    ///
    /// # Errors
    /// The store's.
    fn close(self: Box<Self>) -> Result<Totals>;
}

/// Opens the store called `name` in `dir`, with these options or, for a peer, with the same budgets.
///
/// # Errors
/// [`Failure::Plan`](crate::Failure::Plan) for unknown names and for peers that are not built in; the store's own.
pub fn open(name: &str, dir: &Path, options: &Options) -> Result<Box<dyn Store>> {
    match name {
        "bifold" => Ok(Box::new(bifold::BifoldStore::open(dir, options.clone())?)),
        cached::CachedStore::NAME => Ok(Box::new(cached::CachedStore::open(dir, options.clone())?)),
        _ => name.parse::<Peer>()?.open(dir, options),
    }
}

/// Settings from names and values.
#[cfg(any(feature = "fjall", feature = "lmdb", feature = "redb", feature = "rocksdb"))]
fn words<const N: usize>(settings: [(&str, &dyn std::fmt::Display); N]) -> Vec<(String, String)> {
    settings.map(|(name, value)| (name.to_owned(), value.to_string())).into()
}

/// The bytes that a store has moved since it was opened.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Totals {
    /// Bytes written to files, by source within the store.
    pub written: BTreeMap<&'static str, u64>,
    /// Bytes read from files, by source within the store.
    pub read: BTreeMap<&'static str, u64>,
    /// Bytes of `read` that were for a user.
    pub read_for_user: u64,
    /// Microseconds for which writers were slowed or stopped, by cause.
    pub stalled_us: BTreeMap<&'static str, u64>,
    /// The slowest commits since the store was opened and what they waited for, in words.
    pub slow_commits: Vec<String>,
    /// The work of GC.
    pub gc: Gc,
}

impl Totals {
    /// The bytes that the process has read and written by system calls since `begin`, for a store that counts none.
    ///
    /// The only source is "calls". Bytes of mapped files do not count. It is not known which reads were for a user,
    /// so `read_for_user` stays 0, and so does a report's read amplification. Other files that the process reads and
    /// writes count, too; a run of the lab has next to none.
    #[must_use]
    pub fn called_since(begin: Called) -> Self {
        let Some(called) = measure::called().map(|now| now.since(begin)) else { return Self::default() };
        Self { read: [("calls", called.read)].into(), written: [("calls", called.written)].into(), ..Self::default() }
    }
}

/// The work of GC of separated values.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Gc {
    /// Index lookups that check whether a value is live.
    pub index_lookups: u64,
    /// New addresses written to the index.
    pub index_inserts: u64,
    /// Bytes written.
    pub bytes: u64,
}

/// Keys and values of one commit, in two buffers that are reused.
#[derive(Debug, Default)]
pub struct Entries {
    bytes: Vec<u8>,
    /// The end of each key and of each value.
    ends: Vec<(usize, usize)>,
}

impl Entries {
    /// Adds an entry.
    pub fn push(&mut self, key: &[u8], value: &[u8]) {
        self.bytes.extend_from_slice(key);
        let key_end = self.bytes.len();
        self.bytes.extend_from_slice(value);
        self.ends.push((key_end, self.bytes.len()));
    }

    /// The number of entries.
    #[must_use]
    pub fn len(&self) -> usize {
        self.ends.len()
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.ends.is_empty()
    }

    /// Removes all.
    pub fn clear(&mut self) {
        self.bytes.clear();
        self.ends.clear();
    }

    /// All entries, in the order in which they were added.
    pub fn iter(&self) -> impl Iterator<Item = (&[u8], &[u8])> {
        let mut start = 0;
        self.ends.iter().map(move |&(key_end, end)| {
            let entry = (&self.bytes[start..key_end], &self.bytes[key_end..end]);
            start = end;
            entry
        })
    }
}
