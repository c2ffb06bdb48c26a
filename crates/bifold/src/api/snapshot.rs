//! A view of all keyspaces at one moment.

use std::{fmt, ops::RangeBounds, sync::Arc};

use bifold_contract::{Error, FileId, Result, SeqNo, Value};

use crate::{
    api::{
        db::Handle,
        keyspace::{Keyspace, owned_bounds, prefix_bounds},
    },
    read::{
        get::Reader,
        pair::Pair,
        scan::{KeyBounds, Range},
    },
    state::{
        snapshot::{Holder, SnapshotGuard},
        time::Sight,
        tree::Tree,
    },
};

/// A view of all keyspaces at one moment. Reads through it always return the same results, whatever is written,
/// flushed, compacted or garbage-collected, and whatever expires meanwhile: it sees what had not expired when it was
/// opened.
///
/// Cheap to clone. Old versions that only this snapshot can see stay on disk until its last clone is dropped:
/// [`Stats::snapshots`](crate::Stats::snapshots) lists open ones, [`SpaceStats`](crate::stats::SpaceStats) what they
/// keep.
#[derive(Clone)]
pub struct Snapshot {
    handle: Arc<Handle>,
    guard: Arc<SnapshotGuard>,
}

impl Snapshot {
    pub(crate) fn of(handle: &Arc<Handle>) -> Self {
        Self::new(handle, Arc::new(handle.open_snapshot(Holder::Snapshot)))
    }

    pub(super) fn sight(&self) -> Sight {
        self.guard.sight()
    }

    pub(crate) fn new(handle: &Arc<Handle>, guard: Arc<SnapshotGuard>) -> Self {
        Self { handle: Arc::clone(handle), guard }
    }

    /// Reads the tree of `keyspace` in the state that this snapshot is of.
    ///
    /// # Errors
    /// Those of [`Snapshot::tree_of`] and of `read`.
    pub(super) fn read<T>(
        &self,
        keyspace: &Keyspace,
        read: impl FnOnce(&Arc<Reader>, &Arc<Tree>) -> Result<T>,
    ) -> Result<T> {
        let of_this_state = self.tree_of(keyspace)?;
        read(&self.handle.engine.reader, of_this_state.as_ref().unwrap_or(keyspace.tree()))
    }

    fn scan(&self, keyspace: &Keyspace, bounds: KeyBounds) -> Range {
        let (reader, guard) = (&self.handle.engine.reader, Arc::clone(&self.guard));
        match self.tree_of(keyspace) {
            Ok(of_this_state) => reader.range(of_this_state.as_ref().unwrap_or(keyspace.tree()), bounds, guard),
            Err(error) => {
                let mut refused = reader.range(keyspace.tree(), bounds, guard);
                refused.end(Err(error));
                refused
            }
        }
    }

    /// The tree of `keyspace` in the state that this snapshot is of; `None` if the handle has it. Handles of a database
    /// that another process writes may be of other states.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] for a keyspace of another database: its values could even be cached as those of this
    /// one, because both number their files alike. [`Error::Closed`] if it is dropped in this state.
    fn tree_of(&self, keyspace: &Keyspace) -> Result<Option<Arc<Tree>>> {
        if keyspace.belongs_to(&self.handle) {
            return Ok(None);
        }
        let followers = self.handle.follower.as_ref().zip(keyspace.handle().follower.as_ref());
        if !followers.is_some_and(|(ours, theirs)| Arc::ptr_eq(ours, theirs)) {
            let reason = "the keyspace belongs to another database, or to another opening of this one";
            return Err(Error::invalid("snapshot", reason));
        }
        let (engine, tree) = (&self.handle.engine, keyspace.tree());
        let found = engine.trees.get(tree.keyspace);
        // The edit that creates a keyspace raises the next number above that of the keyspace. One with a larger number
        // is of a later state: this snapshot sees nothing of it.
        if found.is_none() && FileId::from(tree.keyspace) < engine.state.numbers.next() {
            return Err(Error::Closed { what: format!("keyspace `{}`", tree.name) });
        }
        Ok(found)
    }

    /// The number of the last operation it sees.
    #[must_use]
    pub fn seqno(&self) -> SeqNo {
        self.guard.seqno
    }

    /// The value that `key` of `keyspace` had.
    ///
    /// # Errors
    /// As [`Keyspace::get`]; [`InvalidArgument`](crate::Error::InvalidArgument) for a keyspace of another database.
    pub fn get(&self, keyspace: &Keyspace, key: impl AsRef<[u8]>) -> Result<Option<Value>> {
        self.read(keyspace, |reader, tree| reader.get(tree, key.as_ref(), Some(self.guard.sight())))
    }

    /// Whether `key` of `keyspace` had a value; see [`Keyspace::contains_key`].
    ///
    /// # Errors
    /// As [`Snapshot::get`].
    pub fn contains_key(&self, keyspace: &Keyspace, key: impl AsRef<[u8]>) -> Result<bool> {
        self.read(keyspace, |reader, tree| reader.contains(tree, key.as_ref(), Some(self.guard.sight())))
    }

    /// The values that several keys had, in the order of `keys`.
    ///
    /// # Errors
    /// As [`Snapshot::get`].
    pub fn multi_get<K: AsRef<[u8]>>(
        &self,
        keyspace: &Keyspace,
        keys: impl IntoIterator<Item = K>,
    ) -> Result<Vec<Option<Value>>> {
        self.read(keyspace, |reader, tree| reader.multi_get(tree, keys, self.guard.sight()))
    }

    /// All entries of `keyspace`, in key order. If [`Snapshot::get`] refuses the keyspace, the iterator yields that
    /// error.
    #[must_use]
    pub fn iter(&self, keyspace: &Keyspace) -> Range {
        self.range::<&[u8]>(keyspace, ..)
    }

    /// The entries of `keyspace` whose keys lie in `range`. Errors are those of [`Snapshot::iter`].
    #[must_use]
    pub fn range<K: AsRef<[u8]>>(&self, keyspace: &Keyspace, range: impl RangeBounds<K>) -> Range {
        self.scan(keyspace, owned_bounds(&range))
    }

    /// The entries of `keyspace` whose keys begin with `prefix`. Errors are those of [`Snapshot::iter`].
    #[must_use]
    pub fn prefix(&self, keyspace: &Keyspace, prefix: impl AsRef<[u8]>) -> Range {
        self.scan(keyspace, prefix_bounds(prefix.as_ref()))
    }

    /// The entry of `keyspace` with the smallest key.
    ///
    /// # Errors
    /// As [`Snapshot::get`].
    pub fn first_key_value(&self, keyspace: &Keyspace) -> Result<Option<Pair>> {
        self.iter(keyspace).limit(1).next().transpose()
    }

    /// The entry of `keyspace` with the largest key.
    ///
    /// # Errors
    /// As [`Snapshot::get`].
    pub fn last_key_value(&self, keyspace: &Keyspace) -> Result<Option<Pair>> {
        self.iter(keyspace).limit(1).next_back().transpose()
    }
}

impl fmt::Debug for Snapshot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Snapshot").field(&self.seqno()).finish()
    }
}
