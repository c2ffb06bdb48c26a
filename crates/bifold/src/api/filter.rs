//! How a compaction filter is set. Page: `docs/filters.md`.

use crate::{api::keyspace::Keyspace, settings::filter::CompactionFilter};

impl Keyspace {
    /// From now on compactions of this keyspace ask `filter` about the entries that they pass; `None`: no longer.
    ///
    /// What the filter deletes or replaces is committed like a write of the user's, provided the entry is still the
    /// newest of its key: snapshots keep their answers, transactions that have read it conflict. So space is freed by a
    /// later compaction, not by this one.
    ///
    /// The filter is not stored. Set it again after each opening; compactions before that do without. It is asked about
    /// an entry each time a compaction writes it. Entries that were never compacted have not been asked about:
    /// [`Keyspace::compact_range`] asks about all in its range.
    ///
    /// ```
    /// use bifold::{CompactionFilter, Verdict};
    ///
    /// # let dir = std::env::temp_dir().join(format!("bifold-doc-filter-{}", std::process::id()));
    /// # let db = bifold::Db::open(&dir)?;
    /// let users = db.default_keyspace();
    /// users.set_compaction_filter(Some(CompactionFilter::new(|entry| {
    ///     Ok(if entry.key().starts_with(b"gone/") { Verdict::Delete } else { Verdict::Keep })
    /// })));
    /// users.put("gone/ann", "1")?;
    /// users.put("here/bob", "2")?;
    /// users.compact_range::<&str>(..)?;
    /// assert_eq!(users.get("gone/ann")?, None);
    /// assert_eq!(users.get("here/bob")?.as_deref(), Some(&b"2"[..]));
    /// # db.close()?;
    /// # std::fs::remove_dir_all(dir).ok();
    /// # Ok::<(), bifold::Error>(())
    /// ```
    pub fn set_compaction_filter(&self, filter: Option<CompactionFilter>) {
        self.tree().filter.set(filter);
    }
}
