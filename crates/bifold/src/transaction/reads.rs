//! What a transaction has read: keys, and ranges as far as iterators went.
//!
//! A scan is noted with all of its range when it begins, and with what it has seen when it ends. One that is never
//! dropped counts as having seen all.
//!
//! What was read stays noted when writes are rolled back to a savepoint: the program knows it, and what it writes next
//! may depend on it.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use bifold_contract::{KeyspaceId, Millis, Result};

use super::intervals::{Interval, Intervals, bytes_of};
use crate::{limits::transaction_memory::Charge, state::tree::Tree};

/// Memory of a key without its bytes, in bytes: a pointer with a length, what the allocator rounds up, its share of the
/// set.
const KEY_OVERHEAD_BYTES: u64 = 48;

/// What was read of one keyspace.
pub(super) struct TreeReads {
    /// Its tree.
    pub tree: Arc<Tree>,
    /// Keys that were read one by one.
    pub keys: BTreeSet<Box<[u8]>>,
    /// Ranges that were scanned.
    pub ranges: Intervals,
}

/// What was read.
#[derive(Default)]
pub(super) struct ReadSet {
    trees: BTreeMap<KeyspaceId, TreeReads>,
    /// The ranges of scans that have not ended, by number.
    scans: BTreeMap<u64, (Arc<Tree>, Interval)>,
    next_scan: u64,
    /// When the first of all that was read expires.
    expires: Option<Millis>,
}

impl ReadSet {
    /// Notes a key.
    ///
    /// # Errors
    /// [`bifold_contract::Error::TransactionTooLarge`]; the key is not noted then, and must not be read.
    pub fn note_key(&mut self, tree: &Arc<Tree>, key: &[u8], charge: &Charge) -> Result<()> {
        let reads = self.of(tree);
        if reads.keys.contains(key) || reads.ranges.contains(key) {
            return Ok(());
        }
        charge.take(key.len() as u64 + KEY_OVERHEAD_BYTES)?;
        reads.keys.insert(key.into());
        Ok(())
    }

    /// Notes that a scan of `range` begins. Returns its number.
    ///
    /// # Errors
    /// As [`ReadSet::note_key`].
    pub fn begin_scan(&mut self, tree: &Arc<Tree>, range: Interval, charge: &Charge) -> Result<u64> {
        charge.take(bytes_of(&range.0, range.1.as_deref()))?;
        let number = self.next_scan;
        self.next_scan += 1;
        self.scans.insert(number, (Arc::clone(tree), range));
        Ok(number)
    }

    /// Notes that a scan has ended and has seen no more than `seen`. If that takes more memory than there is, all of
    /// its range counts as seen.
    pub fn end_scan(&mut self, number: u64, seen: Vec<Interval>, charge: &Charge) {
        let Some((tree, whole)) = self.scans.remove(&number) else { return };
        let whole_bytes = bytes_of(&whole.0, whole.1.as_deref());
        let seen_bytes = seen.iter().map(|(start, end)| bytes_of(start, end.as_deref())).sum();
        let seen = match charge.take(seen_bytes) {
            Ok(()) => {
                charge.give_back(whole_bytes);
                seen
            }
            Err(_) => vec![whole],
        };
        let ranges = &mut self.of(&tree).ranges;
        seen.into_iter().for_each(|range| charge.give_back(ranges.add(range)));
    }

    /// Notes all of what scans that have not ended may have seen. Called when no iterator can be used any more.
    pub fn end_scans(&mut self, charge: &Charge) {
        for (_, (tree, whole)) in std::mem::take(&mut self.scans) {
            charge.give_back(self.of(&tree).ranges.add(whole));
        }
    }

    /// Notes that a value that was read expires then.
    pub fn note_instant(&mut self, at: Millis) {
        self.expires = Some(self.expires.map_or(at, |first| first.min(at)));
    }

    /// When the first of all that was read expires.
    pub fn expires(&self) -> Option<Millis> {
        self.expires
    }

    fn of(&mut self, tree: &Arc<Tree>) -> &mut TreeReads {
        self.trees.entry(tree.keyspace).or_insert_with(|| TreeReads {
            tree: Arc::clone(tree),
            keys: BTreeSet::new(),
            ranges: Intervals::default(),
        })
    }

    /// What was read, by keyspace.
    pub fn iter(&self) -> impl Iterator<Item = &TreeReads> {
        self.trees.values()
    }
}
