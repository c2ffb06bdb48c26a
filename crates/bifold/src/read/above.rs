//! What the index has of a key above the last run that may have it.
//!
//! ```text
//! memtables ─▶ level 0 ─▶ level 1 … the last run but one that may have the key │ the last run: not asked
//! ```
//!
//! GC asks this about versions that are known to be in the index. Only what is newer counts. If nothing is found, that
//! version is in the last run or in none of the others: no newer one is above it. So the block that a read would end in
//! is not touched, and filters answer for most keys.

use std::sync::Arc;

use bifold_contract::{IoSource, Kind, Result, SeqNo, expiry, key::MAX_SEQNO};
use bifold_format::filter::key_hash;
use bifold_index::lookup::{Above, Lookup};
use bifold_values::placement::NewestAbove;

use super::get::{Reader, decode_pointer, lookup_of};
use crate::state::tree::{Layer, Tree, View};

impl Reader {
    /// For each of these keys, the newest version above the last run that may have it, if that is newer than `after`,
    /// whatever the snapshots. Filters answer for most, so those of all keys are prefetched first.
    ///
    /// # Errors
    /// I/O errors and corruption.
    pub fn newest_above(&self, tree: &Tree, asked: &[(&[u8], SeqNo)]) -> Result<Vec<NewestAbove>> {
        let view = tree.view();
        for &(key, after) in asked {
            let key_hash = key_hash(key);
            layers_after(&view, after).for_each(|layer| layer.memtable.expect(key_hash));
            let lookup = Lookup { after, source: IoSource::Gc, ..lookup_of(&view, (key, key_hash), MAX_SEQNO, 0) };
            view.version.expect_above_last(&lookup);
        }
        asked.iter().map(|&(key, after)| self.newest_above_after(tree, &view, key, after)).collect()
    }

    fn newest_above_after(&self, tree: &Tree, view: &View, key: &[u8], after: SeqNo) -> Result<NewestAbove> {
        let version = |kind: Kind, payload: &[u8]| match kind {
            Kind::Pointer => decode_pointer(tree, payload).map(NewestAbove::Separated),
            Kind::PointerUntil => decode_pointer(tree, expiry::split(payload).1).map(NewestAbove::Separated),
            Kind::Inline | Kind::InlineUntil | Kind::Large | Kind::Delete => Ok(NewestAbove::Other),
            // It overwrites nothing.
            Kind::Operand => {
                let below = self.current_pointer(tree, key)?;
                Ok(below.map_or(NewestAbove::Other, NewestAbove::Separated))
            }
        };
        let key_hash = key_hash(key);
        let mut covered_by: SeqNo = 0;
        for layer in layers_after(view, after) {
            let covering = layer.memtable.range_tombstones().covering(key, MAX_SEQNO);
            covered_by = covered_by.max(if covering > after { covering } else { 0 });
            match layer.memtable.get_hashed(key, key_hash, MAX_SEQNO) {
                Some(entry) if entry.seqno < covered_by => return Ok(NewestAbove::Other),
                Some(entry) if entry.seqno < after => return Ok(NewestAbove::Nothing),
                Some(entry) => return version(entry.kind, entry.payload),
                None => {}
            }
        }
        let lookup = Lookup { after, source: IoSource::Gc, ..lookup_of(view, (key, key_hash), MAX_SEQNO, covered_by) };
        match view.version.get_above_last(&lookup, &self.counters.lookups)? {
            Above::Found(found) => version(found.kind, &found.payload),
            Above::Deleted => Ok(NewestAbove::Other),
            Above::Nothing => Ok(NewestAbove::Nothing),
        }
    }
}

/// The memtables that have something newer than `after`.
fn layers_after(view: &View, after: SeqNo) -> impl Iterator<Item = &Arc<Layer>> {
    view.layers().filter(move |layer| layer.memtable.max_seqno().is_some_and(|newest| newest > after))
}
