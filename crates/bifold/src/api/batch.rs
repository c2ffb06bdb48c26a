//! Several operations on one or more keyspaces, committed atomically.

use std::{
    ops::RangeBounds,
    time::{Duration, SystemTime},
};

use bifold_contract::{Millis, Result};

use crate::{
    api::keyspace::{Keyspace, delete_bounds},
    state::{
        op::{Act, Op, put_until},
        time::instant_of,
    },
};

/// Operations gathered in memory for one atomic commit ([`Db::commit`](crate::Db::commit)): after a crash either all
/// of them are there or none. Together they may have almost 2 GiB.
///
/// Later operations on a key win over earlier ones of the same batch. Operands are combined with what is before them.
#[derive(Debug, Default)]
pub struct Batch {
    ops: Vec<Owned>,
    bytes: usize,
}

#[derive(Debug)]
struct Owned {
    keyspace: Keyspace,
    key: Box<[u8]>,
    act: OwnedAct,
}

#[derive(Debug)]
enum OwnedAct {
    Put(Box<[u8]>, Option<Millis>),
    Merge(Box<[u8]>),
    Delete,
    DeleteRange(Option<Box<[u8]>>),
}

impl Batch {
    /// An empty batch.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets `key` of `keyspace` to `value`. If the keyspace has a [`ttl`](crate::KeyspaceOptions::ttl), it counts from
    /// now on, not from the commit.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`](crate::Error::InvalidArgument) for a key or value that cannot be stored: see
    /// [`Keyspace::put`]. The batch is then unchanged.
    pub fn put(&mut self, keyspace: &Keyspace, key: impl AsRef<[u8]>, value: impl AsRef<[u8]>) -> Result<&mut Self> {
        self.push_put(keyspace, key.as_ref(), keyspace.put_of(value.as_ref()))
    }

    /// Sets `key` of `keyspace` to `value` for `ttl` from now on, not from the commit: see
    /// [`Keyspace::put_with_ttl`].
    ///
    /// # Errors
    /// As [`Batch::put`], with the limits of [`Keyspace::put_with_ttl`].
    pub fn put_with_ttl(
        &mut self,
        keyspace: &Keyspace,
        key: impl AsRef<[u8]>,
        value: impl AsRef<[u8]>,
        ttl: Duration,
    ) -> Result<&mut Self> {
        self.push_put(keyspace, key.as_ref(), put_until(value.as_ref(), keyspace.instant_after(ttl)))
    }

    /// Sets `key` of `keyspace` to `value` until a moment, or for good: see [`Keyspace::put_until`].
    ///
    /// # Errors
    /// As [`Batch::put_with_ttl`].
    pub fn put_until(
        &mut self,
        keyspace: &Keyspace,
        key: impl AsRef<[u8]>,
        value: impl AsRef<[u8]>,
        expires_at: Option<SystemTime>,
    ) -> Result<&mut Self> {
        self.push_put(keyspace, key.as_ref(), put_until(value.as_ref(), expires_at.and_then(instant_of)))
    }

    fn push_put(&mut self, keyspace: &Keyspace, key: &[u8], put: Act<'_>) -> Result<&mut Self> {
        let act = match put {
            Act::PutUntil(value, instant) => OwnedAct::Put(value.into(), Some(instant)),
            Act::Put(value) => OwnedAct::Put(value.into(), None),
            _ => return Ok(self),
        };
        self.push(keyspace, key, act)
    }

    /// Gives `key` of `keyspace` an operand: see [`Keyspace::merge`]. Operands of one batch are combined in its order.
    ///
    /// # Errors
    /// As [`Batch::put`]; [`Error::InvalidArgument`](crate::Error::InvalidArgument) when the keyspace has no merge
    /// operator.
    pub fn merge(
        &mut self,
        keyspace: &Keyspace,
        key: impl AsRef<[u8]>,
        operand: impl AsRef<[u8]>,
    ) -> Result<&mut Self> {
        self.push(keyspace, key.as_ref(), OwnedAct::Merge(operand.as_ref().into()))
    }

    /// Deletes `key` of `keyspace`. It is no error if the key does not exist.
    ///
    /// # Errors
    /// As [`Batch::put`].
    pub fn delete(&mut self, keyspace: &Keyspace, key: impl AsRef<[u8]>) -> Result<&mut Self> {
        self.push(keyspace, key.as_ref(), OwnedAct::Delete)
    }

    /// Deletes all keys of `keyspace` in `range`.
    ///
    /// # Errors
    /// As [`Batch::put`].
    pub fn delete_range<K: AsRef<[u8]>>(
        &mut self,
        keyspace: &Keyspace,
        range: impl RangeBounds<K>,
    ) -> Result<&mut Self> {
        match delete_bounds(&range) {
            Some((start, end)) => self.push(keyspace, &start, OwnedAct::DeleteRange(end)),
            None => Ok(self),
        }
    }

    fn push(&mut self, keyspace: &Keyspace, key: &[u8], act: OwnedAct) -> Result<&mut Self> {
        let owned = Owned { keyspace: keyspace.clone(), key: key.into(), act };
        owned.as_op().check()?;
        self.bytes += owned.key.len()
            + match &owned.act {
                OwnedAct::Put(value, _) | OwnedAct::Merge(value) => value.len(),
                OwnedAct::Delete | OwnedAct::DeleteRange(None) => 0,
                OwnedAct::DeleteRange(Some(end)) => end.len(),
            };
        self.ops.push(owned);
        Ok(self)
    }

    /// The number of operations in it.
    #[must_use]
    pub fn len(&self) -> usize {
        self.ops.len()
    }

    /// Whether it has no operations.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.ops.is_empty()
    }

    /// Bytes of its keys, values and operands, and of the bounds of ranges.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Removes all operations and keeps the memory for the next ones.
    pub fn clear(&mut self) {
        self.ops.clear();
        self.bytes = 0;
    }

    /// The keyspaces it touches.
    pub(crate) fn keyspaces(&self) -> impl Iterator<Item = &Keyspace> {
        self.ops.iter().map(|op| &op.keyspace)
    }

    /// Its operations, borrowed.
    pub(crate) fn ops(&self) -> Vec<Op<'_>> {
        self.ops.iter().map(Owned::as_op).collect()
    }
}

impl Owned {
    fn as_op(&self) -> Op<'_> {
        let act = match &self.act {
            OwnedAct::Put(value, instant) => put_until(value, *instant),
            OwnedAct::Merge(operand) => Act::Merge(operand),
            OwnedAct::Delete => Act::Delete,
            OwnedAct::DeleteRange(end) => Act::DeleteRange(end.as_deref()),
        };
        Op { tree: self.keyspace.tree(), key: &self.key, act }
    }
}
