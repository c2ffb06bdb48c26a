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

    /// The newest value of `key` in `view` that is not newer than `snapshot`.
    ///
    /// # Errors
    /// I/O errors and corruption.
    pub fn find_in(&self, partition: &Partition, view: &View, key: &[u8], snapshot: SeqNo) -> Result<Option<Value>> {
        let mut covered_by: SeqNo = 0;
        for layer in view.layers() {
            covered_by = covered_by.max(layer.memtable.range_tombstones().covering(key, snapshot));
            if let Some(entry) = layer.memtable.get(key, snapshot) {
                return match entry.kind {
                    _ if entry.seqno < covered_by => Ok(None),
                    Kind::Delete => Ok(None),
                    Kind::Inline => Ok(Some(Value::copy_of(entry.payload))),
                    Kind::Pointer => resolve(partition, key, entry.payload).map(Some),
                };
            }
        }
        let lookup = Lookup { key, key_hash: key_hash(key), snapshot, covered_by, locator: partition.locator.as_ref() };
        match view.version.get(&lookup, &self.counters.lookups)? {
            None => Ok(None),
            Some(found) => match found.kind {
                Kind::Delete => Ok(None),
                Kind::Inline => Ok(Some(found.payload)),
                Kind::Pointer => resolve(partition, key, &found.payload).map(Some),
            },
        }
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
