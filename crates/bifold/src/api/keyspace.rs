//! A named, ordered map within a database.

use std::{
    fmt,
    ops::{Bound, RangeBounds},
    sync::Arc,
};

use bifold_contract::{Result, Value};

use crate::{
    api::db::Handle,
    read::{
        estimate::RangeSize,
        pair::Pair,
        scan::{KeyBounds, Range, prefix_end},
    },
    settings::options::{Durability, KeyspaceOptions},
    state::{
        op::{Act, Op},
        snapshot::Holder,
        tree::Tree,
    },
};

/// A named, ordered map within a database, with options of its own. Keyspaces share the log, so a
/// [`Batch`](crate::Batch) may touch several and still be atomic.
///
/// Cheap to clone; keeps the database open while it lives.
#[derive(Clone)]
pub struct Keyspace {
    handle: Arc<Handle>,
    tree: Arc<Tree>,
}

/// The outcome of [`Keyspace::compare_and_swap`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Swap {
    /// The key had the expected value and now has the new one.
    Done,
    /// The key had another value, which is unchanged.
    Mismatch {
        /// Its current value; `None` if it has none.
        current: Option<Value>,
    },
}

impl Keyspace {
    pub(crate) fn new(handle: Arc<Handle>, tree: Arc<Tree>) -> Self {
        Self { handle, tree }
    }

    pub(crate) fn handle(&self) -> &Arc<Handle> {
        &self.handle
    }

    pub(crate) fn tree(&self) -> &Arc<Tree> {
        &self.tree
    }

    pub(crate) fn belongs_to(&self, handle: &Arc<Handle>) -> bool {
        Arc::ptr_eq(&self.handle.engine, &handle.engine)
    }

    /// Its name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.tree.name
    }

    /// Its options in force.
    #[must_use]
    pub fn options(&self) -> KeyspaceOptions {
        self.tree.options()
    }

    /// Changes its options: all of them to those given. They are recorded in the manifest and in force when this
    /// returns; jobs that are running end with the options they began with. What is stored already changes when
    /// compaction or GC rewrites it. Placement, hash index and merge operator must be those that the keyspace has:
    /// `bifold convert`, which copies a database, changes the first two.
    ///
    /// To change some options only, begin with those in force:
    ///
    /// ```
    /// # let dir = std::env::temp_dir().join(format!("bifold-doc-options-{}", std::process::id()));
    /// # let db = bifold::Db::open(&dir)?;
    /// # let keyspace = db.default_keyspace();
    /// let options = keyspace.options();
    /// keyspace.set_options(bifold::KeyspaceOptions { filter_bits_per_key: 14, ..options })?;
    /// # db.close()?;
    /// # std::fs::remove_dir_all(dir).ok();
    /// # Ok::<(), bifold::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`InvalidArgument`](crate::Error::InvalidArgument) for invalid options, and for another placement, hash index or
    /// merge operator; I/O errors; [`Poisoned`](crate::Error::Poisoned), [`ReadOnly`](crate::Error::ReadOnly),
    /// [`Closed`](crate::Error::Closed). Nothing is changed then. If the database is poisoned by this, it has the old
    /// options or the new ones after it is opened again.
    pub fn set_options(&self, options: KeyspaceOptions) -> Result<()> {
        let engine = &self.handle.engine;
        engine.call(|| engine.set_options(&self.tree, &options))
    }

    /// Sets `key` to `value`, with the database's durability. If the keyspace has a
    /// [`ttl`](KeyspaceOptions::ttl), the entry expires after it. It is a commit of its own, and waits as
    /// [`Db::commit`](crate::Db::commit) does.
    ///
    /// # Errors
    /// [`InvalidArgument`](crate::Error::InvalidArgument) for an empty key, a key over 64 KiB or a value over 1 GiB;
    /// otherwise as [`Db::commit`](crate::Db::commit).
    pub fn put(&self, key: impl AsRef<[u8]>, value: impl AsRef<[u8]>) -> Result<()> {
        self.put_with(key, value, self.durability())
    }

    /// [`Keyspace::put`] with the given durability.
    ///
    /// # Errors
    /// As [`Keyspace::put`].
    pub fn put_with(&self, key: impl AsRef<[u8]>, value: impl AsRef<[u8]>, durability: Durability) -> Result<()> {
        self.write(key.as_ref(), self.put_of(value.as_ref()), durability)
    }

    /// Deletes `key`. It is no error if the key does not exist. A tombstone is written in any case.
    ///
    /// # Errors
    /// As [`Keyspace::put`].
    pub fn delete(&self, key: impl AsRef<[u8]>) -> Result<()> {
        self.delete_with(key, self.durability())
    }

    /// [`Keyspace::delete`] with the given durability.
    ///
    /// # Errors
    /// As [`Keyspace::put`].
    pub fn delete_with(&self, key: impl AsRef<[u8]>, durability: Durability) -> Result<()> {
        self.write(key.as_ref(), Act::Delete, durability)
    }

    /// Deletes all keys in `range`, however many, at the cost of one record. `delete_range::<&[u8]>(..)` clears the
    /// keyspace. Compaction and GC free the space later.
    ///
    /// # Errors
    /// As [`Db::commit`](crate::Db::commit); [`InvalidArgument`](crate::Error::InvalidArgument) for a bound that is
    /// longer than any key.
    pub fn delete_range<K: AsRef<[u8]>>(&self, range: impl RangeBounds<K>) -> Result<()> {
        self.delete_range_with(range, self.durability())
    }

    /// [`Keyspace::delete_range`] with the given durability. A range without keys writes nothing, and makes nothing
    /// durable.
    ///
    /// # Errors
    /// As [`Keyspace::put`].
    pub fn delete_range_with<K: AsRef<[u8]>>(&self, range: impl RangeBounds<K>, durability: Durability) -> Result<()> {
        match delete_bounds(&range) {
            Some((start, end)) => self.write(&start, Act::DeleteRange(end.as_deref()), durability),
            None => Ok(()),
        }
    }

    pub(super) fn durability(&self) -> Durability {
        self.handle.engine.options.durability
    }

    pub(super) fn write(&self, key: &[u8], act: Act<'_>, durability: Durability) -> Result<()> {
        let op = Op { tree: &self.tree, key, act };
        op.check()?;
        self.handle.engine.commit(&[op], durability)
    }

    /// The value of `key`, if it has one. A large value is read into memory as a whole:
    /// [`Keyspace::get_reader`] reads it piece by piece.
    ///
    /// # Errors
    /// I/O errors, corruption, [`Closed`](crate::Error::Closed); [`Merge`](crate::Error::Merge) if the key has operands
    /// that the merge operator cannot combine.
    pub fn get(&self, key: impl AsRef<[u8]>) -> Result<Option<Value>> {
        self.handle.engine.reader.get(&self.tree, key.as_ref(), None)
    }

    /// Whether `key` has a value. Cheaper than [`Keyspace::get`]: it copies no value, reads no separated one and
    /// combines no operands. [`Stats`](crate::Stats) count it as a get that returned no bytes.
    ///
    /// # Errors
    /// I/O errors, corruption, [`Closed`](crate::Error::Closed).
    pub fn contains_key(&self, key: impl AsRef<[u8]>) -> Result<bool> {
        self.handle.engine.reader.contains(&self.tree, key.as_ref(), None)
    }

    /// The values of several keys, in the order of `keys`, all as of one moment.
    ///
    /// # Errors
    /// As [`Keyspace::get`].
    pub fn multi_get<K: AsRef<[u8]>>(&self, keys: impl IntoIterator<Item = K>) -> Result<Vec<Option<Value>>> {
        let snapshot = self.handle.open_snapshot(Holder::MultiGet);
        self.handle.engine.reader.multi_get(&self.tree, keys, snapshot.sight())
    }

    /// All entries, in key order, as they are now: see [`Range`]. If the database or the keyspace is closed, the
    /// iterator yields that error.
    #[must_use]
    pub fn iter(&self) -> Range {
        self.scan((Bound::Unbounded, Bound::Unbounded))
    }

    /// The entries whose keys lie in `range`, in key order.
    #[must_use]
    pub fn range<K: AsRef<[u8]>>(&self, range: impl RangeBounds<K>) -> Range {
        self.scan(owned_bounds(&range))
    }

    /// The entries whose keys begin with `prefix`, in key order.
    #[must_use]
    pub fn prefix(&self, prefix: impl AsRef<[u8]>) -> Range {
        self.scan(prefix_bounds(prefix.as_ref()))
    }

    /// The entry with the smallest key. As [`Keyspace::iter`] with a [limit](Range::limit) of one.
    ///
    /// # Errors
    /// As [`Keyspace::get`].
    pub fn first_key_value(&self) -> Result<Option<Pair>> {
        self.iter().limit(1).next().transpose()
    }

    /// The entry with the largest key.
    ///
    /// # Errors
    /// As [`Keyspace::get`].
    pub fn last_key_value(&self) -> Result<Option<Pair>> {
        self.iter().limit(1).next_back().transpose()
    }

    /// About how many keys have a value. Reads nothing: all versions in tables and memtables, less two for each
    /// deletion of a single key. Too many where keys were overwritten, deleted by range or moved by GC (`wisckey`,
    /// `hashkv`, `diffkv`), until compaction has dropped what is old; too few where keys were deleted that did not
    /// exist. Exact if every key was put once and none deleted.
    ///
    /// # Errors
    /// [`Closed`](crate::Error::Closed).
    pub fn approximate_len(&self) -> Result<u64> {
        self.handle.engine.reader.approximate_len(&self.tree)
    }

    /// About how much the keys in `range` take, old versions included. Reads at most two indexes of tables in each
    /// sorted run, and no entries of tables.
    ///
    /// * Tables: each table that a bound lies in adds an error of at most half a block. Level 0 has many such tables.
    ///   With nothing but whole tables in the range, the sum is exact.
    /// * Memtables: up to 1000 entries in the range are counted. More are estimated from how the tree of the memtable
    ///   branches, whose nodes are half full at least where keys come in random order: by less than half in our tests.
    /// * Separated values: live bytes of the keyspace times the range's share of entries. No bound can be given where
    ///   values of very different lengths are not spread evenly, or some of them are inline.
    ///
    /// # Errors
    /// I/O errors and corruption of indexes; [`Closed`](crate::Error::Closed).
    ///
    /// ```
    /// # let dir = std::env::temp_dir().join(format!("bifold-doc-size-{}", std::process::id()));
    /// # let db = bifold::Db::open(&dir)?;
    /// # let keyspace = db.default_keyspace();
    /// for n in 0..100u32 {
    ///     keyspace.put(n.to_be_bytes(), [0; 96])?;
    /// }
    /// let half = keyspace.size_of_range(50u32.to_be_bytes()..)?;
    /// assert_eq!((half.entries, half.bytes()), (50, 5000));
    /// # db.close()?;
    /// # std::fs::remove_dir_all(&dir).ok();
    /// # Ok::<(), bifold::Error>(())
    /// ```
    pub fn size_of_range<K: AsRef<[u8]>>(&self, range: impl RangeBounds<K>) -> Result<RangeSize> {
        match delete_bounds(&range) {
            Some((start, end)) => self.handle.engine.reader.size_of_range(&self.tree, &start, end.as_deref()),
            None => Ok(RangeSize::default()),
        }
    }

    fn scan(&self, bounds: KeyBounds) -> Range {
        let snapshot = Arc::new(self.handle.open_snapshot(Holder::Iterator));
        self.handle.engine.reader.range(&self.tree, bounds, snapshot)
    }

    /// Sets `key` to `new` if its value is `expected`, with no other write in between. A `new` of `None` deletes the
    /// key; an `expected` of `None` means that the key has no value. The value is read while other commits wait.
    ///
    /// # Errors
    /// As [`Keyspace::put`] and [`Keyspace::get`].
    pub fn compare_and_swap(&self, key: impl AsRef<[u8]>, expected: Option<&[u8]>, new: Option<&[u8]>) -> Result<Swap> {
        self.compare_and_swap_with(key, expected, new, self.durability())
    }

    /// [`Keyspace::compare_and_swap`] with the given durability, which counts only if the swap is done.
    ///
    /// # Errors
    /// As [`Keyspace::compare_and_swap`].
    pub fn compare_and_swap_with(
        &self,
        key: impl AsRef<[u8]>,
        expected: Option<&[u8]>,
        new: Option<&[u8]>,
        durability: Durability,
    ) -> Result<Swap> {
        let key = key.as_ref();
        let op = Op { tree: &self.tree, key, act: new.map_or(Act::Delete, |new| self.put_of(new)) };
        op.check()?;
        let engine = &self.handle.engine;
        let mut current = None;
        let swapped = engine.commit_if(&[op], durability, &mut || {
            current = engine.reader.current(&self.tree, key)?;
            Ok(current.as_deref() == expected)
        })?;
        Ok(if swapped.is_some() { Swap::Done } else { Swap::Mismatch { current } })
    }

    /// Merges all data of `range` into one sorted run and drops what is deleted, overwritten or expired, but for what
    /// open snapshots see. Waits for the end. GC of separated values is not part of it:
    /// [`Db::collect_garbage`](crate::Db::collect_garbage). As with [`Db::compact`](crate::Db::compact), the first call
    /// after an opening may read tables to find out that nothing is left to do.
    ///
    /// # Errors
    /// As [`Db::flush`](crate::Db::flush); corruption.
    pub fn compact_range<K: AsRef<[u8]>>(&self, range: impl RangeBounds<K>) -> Result<()> {
        let (start, end) = (range.start_bound().map(K::as_ref), range.end_bound().map(K::as_ref));
        let engine = &self.handle.engine;
        engine.call(|| engine.rewrites.compact_range(&self.tree, start, end))
    }
}

impl fmt::Debug for Keyspace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Keyspace").field(&self.name()).finish()
    }
}

/// The first key of a deleted range and the first key after it (`None`: no end).
pub(crate) type DeleteBounds = (Box<[u8]>, Option<Box<[u8]>>);

/// Bounds as owned keys.
pub(crate) fn owned_bounds<K: AsRef<[u8]>>(range: &impl RangeBounds<K>) -> KeyBounds {
    let owned = |bound: Bound<&K>| bound.map(|key| Box::from(key.as_ref()));
    (owned(range.start_bound()), owned(range.end_bound()))
}

/// The bounds of all keys that begin with `prefix`.
pub(crate) fn prefix_bounds(prefix: &[u8]) -> KeyBounds {
    (Bound::Included(prefix.into()), prefix_end(prefix).map_or(Bound::Unbounded, Bound::Excluded))
}

/// A range as a first key and an exclusive end (`None`: no end). `None` when no key can lie in it.
pub(crate) fn delete_bounds<K: AsRef<[u8]>>(range: &impl RangeBounds<K>) -> Option<DeleteBounds> {
    interval_of(&owned_bounds(range))
}

/// The same for owned bounds.
pub(crate) fn interval_of((lower, upper): &KeyBounds) -> Option<DeleteBounds> {
    // The smallest key greater than `key` is `key` followed by a zero byte.
    let after = |key: &[u8]| Box::from([key, &[0]].concat());
    let start: Box<[u8]> = match lower {
        Bound::Included(key) => key.clone(),
        Bound::Excluded(key) => after(key),
        Bound::Unbounded => Box::default(),
    };
    let end: Option<Box<[u8]>> = match upper {
        Bound::Included(key) => Some(after(key)),
        Bound::Excluded(key) => Some(key.clone()),
        Bound::Unbounded => None,
    };
    end.as_ref().is_none_or(|end| start < *end).then_some((start, end))
}
