//! Iterators over keys alone.

use std::fmt;

use bifold_contract::Result;

use super::scan::{End, Range, ScanState, Wanted};

/// An iterator over the keys of a range, from either end: see [`Range::keys`].
pub struct Keys(Range);

impl Range {
    /// The keys that it has not yielded yet. Values are neither read nor checked, and none is announced to the device:
    /// a separated value that is damaged goes unnoticed. Inline values lie in the same blocks as their keys, so these
    /// blocks are read and checked, but nothing is copied out of memtables.
    ///
    /// ```
    /// # let dir = std::env::temp_dir().join(format!("bifold-doc-keys-{}", std::process::id()));
    /// # let db = bifold::Db::open(&dir)?;
    /// # for key in ["a", "b", "c"] { db.put(key, "value")?; }
    /// let keys: Vec<Box<[u8]>> = db.range("b"..).keys().collect::<bifold::Result<_>>()?;
    /// assert_eq!(keys, [(*b"b").into(), Box::from(*b"c")]);
    /// # db.close()?;
    /// # std::fs::remove_dir_all(&dir)?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn keys(mut self) -> Keys {
        self.wanted = Wanted::Keys;
        if let ScanState::Walking(visible) | ScanState::Met(visible) = &mut self.state {
            visible.leave_out_payloads();
        }
        Keys(self)
    }
}

impl Keys {
    /// As [`Range::limit`].
    #[must_use]
    pub fn limit(self, keys: usize) -> Self {
        Self(self.0.limit(keys))
    }

    /// As [`Range::seek`].
    pub fn seek(&mut self, key: impl AsRef<[u8]>) {
        self.0.seek(key);
    }

    /// As [`Range::seek_for_prev`].
    pub fn seek_for_prev(&mut self, key: impl AsRef<[u8]>) {
        self.0.seek_for_prev(key);
    }

    fn step(&mut self, end: End) -> Option<Result<Box<[u8]>>> {
        Some(self.0.step(end)?.map(|pair| pair.into_key()))
    }
}

impl Iterator for Keys {
    type Item = Result<Box<[u8]>>;

    fn next(&mut self) -> Option<Self::Item> {
        self.step(End::Front)
    }
}

impl DoubleEndedIterator for Keys {
    fn next_back(&mut self) -> Option<Self::Item> {
        self.step(End::Back)
    }
}

impl fmt::Debug for Keys {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Keys").field(&self.0).finish()
    }
}
