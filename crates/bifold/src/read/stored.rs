//! What the index has of a key, expired or not.

use bifold_contract::{Entry, Kind, Millis, Result, SeqNo, Value, key::MAX_SEQNO};
use bifold_format::filter::key_hash;

use super::get::{Reader, lookup_of};
use crate::state::{time::Sight, tree::Tree};

/// The newest version of a key, which is not a deletion.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Stored {
    pub seqno: SeqNo,
    /// When it expires. It may have.
    pub expires_at: Option<Millis>,
}

impl Stored {
    fn of(entry: &Entry<'_>) -> Option<Self> {
        (entry.kind != Kind::Delete).then_some(Self { seqno: entry.seqno, expires_at: entry.expires_at() })
    }
}

impl Reader {
    /// The newest version of `key`, whatever the snapshots.
    ///
    /// # Errors
    /// I/O errors and corruption.
    pub fn stored(&self, tree: &Tree, key: &[u8]) -> Result<Option<Stored>> {
        let (view, key_hash) = (tree.view(), key_hash(key));
        let mut covered_by: SeqNo = 0;
        for layer in view.layers() {
            covered_by = covered_by.max(layer.memtable.range_tombstones().covering(key, MAX_SEQNO));
            if let Some(entry) = layer.memtable.get_hashed(key, key_hash, MAX_SEQNO) {
                return Ok(if entry.seqno < covered_by { None } else { Stored::of(&entry) });
            }
        }
        let lookup = lookup_of(&view, (key, key_hash), MAX_SEQNO, covered_by);
        let found = view.version.get(&lookup, &self.counters.lookups)?;
        Ok(found.and_then(|found| {
            Stored::of(&Entry { key, seqno: found.seqno, kind: found.kind, payload: &found.payload })
        }))
    }

    /// The value of the newest version of `key`, if that is the one with this number and stays it meanwhile.
    ///
    /// # Errors
    /// As [`Reader::get`].
    pub fn value_if_newest(&self, tree: &Tree, key: &[u8], seqno: SeqNo) -> Result<Option<Value>> {
        let is_newest = || Ok(self.stored(tree, key)?.is_some_and(|stored| stored.seqno == seqno));
        if !is_newest()? {
            return Ok(None);
        }
        let value = self.seen_at(tree, key, Sight::STORED)?;
        Ok(if is_newest()? { value } else { None })
    }
}
