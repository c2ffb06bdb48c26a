//! What the index has of a key above the last run that may have it.
//!
//! ```text
//! memtables ─▶ level 0 ─▶ level 1 … the last run but one that may have the key │ the last run: not asked
//! ```
//!
//! GC asks this about a version that is known to be in the index. If nothing is found, that version is in the last run
//! or in none of the others: no newer one is above it. So the block that a read would end in is not touched, and
//! filters answer for most keys.

use bifold_contract::{Kind, Result, SeqNo, expiry, key::MAX_SEQNO};
use bifold_index::lookup::Above;
use bifold_values::placement::NewestAbove;

use super::get::{Reader, decode_pointer, lookup_of};
use crate::state::tree::Tree;

impl Reader {
    /// The newest version of `key` above the last run that may have it, whatever the snapshots.
    ///
    /// # Errors
    /// I/O errors and corruption.
    pub fn newest_above(&self, tree: &Tree, key: &[u8]) -> Result<NewestAbove> {
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
        let view = tree.view();
        let mut covered_by: SeqNo = 0;
        for layer in view.layers() {
            covered_by = covered_by.max(layer.memtable.range_tombstones().covering(key, MAX_SEQNO));
            match layer.memtable.get(key, MAX_SEQNO) {
                Some(entry) if entry.seqno < covered_by => return Ok(NewestAbove::Other),
                Some(entry) => return version(entry.kind, entry.payload),
                None => {}
            }
        }
        let lookup = lookup_of(&view, key, MAX_SEQNO, covered_by);
        match view.version.get_above_last(&lookup, &self.counters.lookups)? {
            Above::Found(found) => version(found.kind, &found.payload),
            Above::Deleted => Ok(NewestAbove::Other),
            Above::Nothing => Ok(NewestAbove::Nothing),
        }
    }
}
