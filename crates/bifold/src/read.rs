//! Point reads.
//!
//! ```text
//! view (one atomic load) ─▶ active memtable ─▶ sealed memtables ─▶ level 0, newest run first ─▶ level 1 … n
//! ```
//!
//! The first layer that knows the key decides, because layers are ordered by age. A range tombstone met on the way hides
//! everything older in the layers below, so the newest one that covers the key is carried along.
//!
//! **Order of the two loads.** A read without a snapshot loads the view first and `visible` after it: then whatever a
//! flush or compaction dropped before the view was made is hidden by something the read can see. The other way round a
//! version could be gone that the older number still needs.

use std::sync::Arc;

use bifold_contract::{Kind, Result, SeqNo, Value, key::MAX_SEQNO};
use bifold_format::{filter::key_hash, pointer};
use bifold_index::lookup::Lookup;

use crate::{
    engine::Engine,
    partition::{Partition, View},
};

/// A version that is there, its value not taken yet.
enum Live<'v> {
    /// The value, in a memtable of the view.
    InMemtable(&'v [u8]),
    /// The value, sharing the buffer of its block.
    InBlock(Value),
    /// An encoded pointer, in a memtable of the view.
    PointerInMemtable(&'v [u8]),
    /// An encoded pointer, sharing the buffer of its block.
    PointerInBlock(Value),
}

impl Engine {
    /// The newest value of `key`, at `snapshot` or now.
    ///
    /// # Errors
    /// I/O errors, corruption, [`Error::Closed`](bifold_contract::Error::Closed).
    pub fn get(&self, partition: &Partition, key: &[u8], snapshot: Option<SeqNo>) -> Result<Option<Value>> {
        self.readable(partition)?;
        let begin = self.counters.sample_get(|| self.env.clock.now());
        let value = {
            let view = partition.view();
            let seqno = snapshot.unwrap_or_else(|| self.visible());
            self.find_in(partition, &view, key, seqno)?
        };
        self.counters.got(value.as_ref().map(|v| v.len()), || self.env.clock.now(), begin);
        Ok(value)
    }

    /// Whether `key` has a value, at `snapshot` or now. No value is copied or fetched for the answer.
    ///
    /// # Errors
    /// As [`Engine::get`].
    pub fn contains(&self, partition: &Partition, key: &[u8], snapshot: Option<SeqNo>) -> Result<bool> {
        self.readable(partition)?;
        let begin = self.counters.sample_get(|| self.env.clock.now());
        let found = {
            let view = partition.view();
            let seqno = snapshot.unwrap_or_else(|| self.visible());
            self.newest(partition, &view, key, seqno)?.is_some()
        };
        self.counters.got(found.then_some(0), || self.env.clock.now(), begin);
        Ok(found)
    }

    /// The newest value of `key` in `view` that is not newer than `snapshot`.
    ///
    /// # Errors
    /// I/O errors and corruption.
    pub fn find_in(&self, partition: &Partition, view: &View, key: &[u8], snapshot: SeqNo) -> Result<Option<Value>> {
        Ok(match self.newest(partition, view, key, snapshot)? {
            None => None,
            Some(Live::InMemtable(value)) => Some(Value::copy_of(value)),
            Some(Live::InBlock(value)) => Some(value),
            Some(Live::PointerInMemtable(pointer)) => Some(resolve(partition, key, pointer)?),
            Some(Live::PointerInBlock(pointer)) => Some(resolve(partition, key, &pointer)?),
        })
    }

    /// The newest version of `key` in `view` that is not newer than `snapshot`, unless that is a deletion.
    #[inline]
    fn newest<'v>(
        &self,
        partition: &Partition,
        view: &'v View,
        key: &[u8],
        snapshot: SeqNo,
    ) -> Result<Option<Live<'v>>> {
        let mut covered_by: SeqNo = 0;
        for layer in view.layers() {
            covered_by = covered_by.max(layer.memtable.range_tombstones().covering(key, snapshot));
            if let Some(entry) = layer.memtable.get(key, snapshot) {
                return Ok(match entry.kind {
                    _ if entry.seqno < covered_by => None,
                    Kind::Delete => None,
                    Kind::Inline => Some(Live::InMemtable(entry.payload)),
                    Kind::Pointer => Some(Live::PointerInMemtable(entry.payload)),
                });
            }
        }
        let lookup = Lookup { key, key_hash: key_hash(key), snapshot, covered_by, locator: partition.locator.as_ref() };
        Ok(view.version.get(&lookup, &self.counters.lookups)?.and_then(|found| match found.kind {
            Kind::Delete => None,
            Kind::Inline => Some(Live::InBlock(found.payload)),
            Kind::Pointer => Some(Live::PointerInBlock(found.payload)),
        }))
    }

    /// The newest values of `keys` in one consistent view.
    ///
    /// # Errors
    /// As [`Engine::get`].
    pub fn multi_get<K: AsRef<[u8]>>(
        &self,
        partition: &Partition,
        keys: impl IntoIterator<Item = K>,
        snapshot: SeqNo,
    ) -> Result<Vec<Option<Value>>> {
        self.readable(partition)?;
        let view = partition.view_to_hold();
        keys.into_iter().map(|key| self.find_in(partition, &view, key.as_ref(), snapshot)).collect()
    }

    /// The newest value of `key` whatever the snapshots: for conditions checked under the commit lock.
    ///
    /// # Errors
    /// As [`Engine::get`].
    pub fn current(&self, partition: &Arc<Partition>, key: &[u8]) -> Result<Option<Value>> {
        self.find_in(partition, &partition.view(), key, MAX_SEQNO)
    }
}

/// The value behind an encoded pointer.
///
/// # Errors
/// I/O errors and corruption.
pub(crate) fn resolve(partition: &Partition, key: &[u8], encoded: &[u8]) -> Result<Value> {
    let pointer = pointer::decode(encoded).map_err(|damage| damage.of(format!("keyspace {}", partition.name)))?;
    Ok(partition.placement.read(key, pointer)?.value)
}
