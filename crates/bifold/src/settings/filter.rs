//! Compaction filters: a function of the user's decides which entries stay. Page: `docs/filters.md`.

use std::{fmt, sync::Arc};

use bifold_contract::{Result, Value};

/// Decides about an entry.
type Judge = dyn Fn(&FilterEntry<'_>) -> Result<Verdict> + Send + Sync;

/// Decides which entries of a keyspace stay, whenever a compaction passes them.
#[derive(Clone)]
pub struct CompactionFilter {
    judge: Arc<Judge>,
}

/// What becomes of an entry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// It stays.
    Keep,
    /// It is deleted.
    Delete,
    /// It has this value from now on. If it expires, it still does.
    Replace(Vec<u8>),
}

/// An entry that a filter decides about.
pub struct FilterEntry<'a> {
    pub(crate) key: &'a [u8],
    pub(crate) value: &'a dyn Fn() -> Result<Value>,
}

impl CompactionFilter {
    /// A filter that asks `judge`. It is called by several threads at once, and must not write to the database.
    ///
    /// If `judge` returns an error, or panics, the entry stays, and
    /// [`FilterStats::failed`](crate::stats::FilterStats::failed) counts it.
    pub fn new(judge: impl Fn(&FilterEntry<'_>) -> Result<Verdict> + Send + Sync + 'static) -> Self {
        Self { judge: Arc::new(judge) }
    }

    pub(crate) fn judge(&self, entry: &FilterEntry<'_>) -> Result<Verdict> {
        (self.judge)(entry)
    }
}

impl<'a> FilterEntry<'a> {
    /// Its key.
    #[must_use]
    pub fn key(&self) -> &'a [u8] {
        self.key
    }

    /// Its value. A separated one is read for this: a filter that can decide by keys should not ask.
    ///
    /// # Errors
    /// I/O errors and corruption; [`Error::Conflict`](crate::Error::Conflict) if the entry was overwritten since: then
    /// it does not matter what becomes of it.
    pub fn value(&self) -> Result<Value> {
        (self.value)()
    }
}

impl fmt::Debug for CompactionFilter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CompactionFilter").finish_non_exhaustive()
    }
}

impl fmt::Debug for FilterEntry<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FilterEntry").field("key", &self.key.escape_ascii().to_string()).finish_non_exhaustive()
    }
}
