//! A view of a database at one moment.

use std::{fmt, ops::RangeBounds, sync::Arc};

use bifold_contract::{Result, SeqNo, Value};

use crate::{
    api::{
        db::Handle,
        keyspace::{Keyspace, owned_bounds, prefix_bounds},
    },
    read::scan::{Pair, Range},
    state::snapshot::{Holder, SnapshotGuard},
};

/// A view of all keyspaces at one moment. Reads through it always return the same results, whatever is written,
/// flushed, compacted or garbage-collected.
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
        let guard = Arc::new(handle.open_snapshot(Holder::Snapshot));
        Self { handle: Arc::clone(handle), guard }
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
        self.handle.engine.reader.get(keyspace.tree(), key.as_ref(), Some(self.seqno()))
    }

    /// Whether `key` of `keyspace` had a value; see [`Keyspace::contains_key`].
    ///
    /// # Errors
    /// As [`Snapshot::get`].
    pub fn contains_key(&self, keyspace: &Keyspace, key: impl AsRef<[u8]>) -> Result<bool> {
        self.handle.engine.reader.contains(keyspace.tree(), key.as_ref(), Some(self.seqno()))
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
        self.handle.engine.reader.multi_get(keyspace.tree(), keys, self.seqno())
    }

    /// All entries of `keyspace`, in key order.
    #[must_use]
    pub fn iter(&self, keyspace: &Keyspace) -> Range {
        self.range::<&[u8]>(keyspace, ..)
    }

    /// The entries of `keyspace` whose keys lie in `range`.
    #[must_use]
    pub fn range<K: AsRef<[u8]>>(&self, keyspace: &Keyspace, range: impl RangeBounds<K>) -> Range {
        self.handle.engine.reader.range(keyspace.tree(), owned_bounds(&range), Arc::clone(&self.guard))
    }

    /// The entries of `keyspace` whose keys begin with `prefix`.
    #[must_use]
    pub fn prefix(&self, keyspace: &Keyspace, prefix: impl AsRef<[u8]>) -> Range {
        self.handle.engine.reader.range(keyspace.tree(), prefix_bounds(prefix.as_ref()), Arc::clone(&self.guard))
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
