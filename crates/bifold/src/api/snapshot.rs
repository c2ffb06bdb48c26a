//! A view of all keyspaces at one moment.

use std::{fmt, ops::RangeBounds, sync::Arc};

use bifold_contract::{Result, SeqNo, Value};

use crate::{
    api::{
        db::Handle,
        keyspace::{Keyspace, owned_bounds, prefix_bounds},
    },
    read::{get::Reader, pair::Pair, scan::Range},
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
/// Cheap to clone. Old versions that only this snapshot can see stay on disk until its last clone is dropped; `stats`
/// shows open snapshots.
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

    /// Reads the tree of `keyspace` in the state that this snapshot is of. Handles of a database that another process
    /// writes may be of other states.
    pub(super) fn read<T>(&self, keyspace: &Keyspace, read: impl FnOnce(&Arc<Reader>, &Arc<Tree>) -> T) -> T {
        let engine = &self.handle.engine;
        let of_this_state = match self.handle.follower.is_some() {
            true => engine.trees.get(keyspace.tree().keyspace),
            false => None,
        };
        read(&engine.reader, of_this_state.as_ref().unwrap_or(keyspace.tree()))
    }

    /// The last commit it sees.
    #[must_use]
    pub fn seqno(&self) -> SeqNo {
        self.guard.seqno
    }

    /// The value that `key` of `keyspace` had.
    ///
    /// # Errors
    /// I/O errors, corruption, [`Closed`](crate::Error::Closed).
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

    /// All entries of `keyspace`, in key order.
    #[must_use]
    pub fn iter(&self, keyspace: &Keyspace) -> Range {
        self.range::<&[u8]>(keyspace, ..)
    }

    /// The entries of `keyspace` whose keys lie in `range`.
    #[must_use]
    pub fn range<K: AsRef<[u8]>>(&self, keyspace: &Keyspace, range: impl RangeBounds<K>) -> Range {
        self.read(keyspace, |reader, tree| reader.range(tree, owned_bounds(&range), Arc::clone(&self.guard)))
    }

    /// The entries of `keyspace` whose keys begin with `prefix`.
    #[must_use]
    pub fn prefix(&self, keyspace: &Keyspace, prefix: impl AsRef<[u8]>) -> Range {
        self.read(keyspace, |reader, tree| reader.range(tree, prefix_bounds(prefix.as_ref()), Arc::clone(&self.guard)))
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
