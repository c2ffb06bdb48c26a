//! A memtable as a sorted stream.
//!
//! The cursor takes a leaf's order once when it comes there and walks along it; entries added meanwhile may show or
//! not, which is all the same to a snapshot older than they are. Forward it follows the links of the leaves, backward
//! it descends anew for each: links both ways could not be published in one store. Versions of a key are linked from
//! new to old only, so going backward it keeps those newer than where it is on a stack, collected in one walk: a
//! key with n versions costs n steps, not n².

use std::sync::Arc;

use bifold_contract::{Entry, Result, SeqNo, Value};

use super::{
    Memtable,
    entry::{Key, VersionRef},
    node::{Found, Node},
    order::Order,
    tree::Tree,
};
use crate::cursor::Cursor;

/// How many keys ahead of the cursor are prefetched: 4 × 10 ns of use cover most of a memory access.
const AHEAD: usize = 4;

/// A position in a memtable. Keeps the memtable alive.
pub struct MemtableCursor {
    position: Option<Position>,
    /// If `newer_known`: the versions of the current key that are newer than the current one, newest first.
    newer: Vec<VersionRef<'static>>,
    newer_known: bool,
    memtable: Arc<Memtable>,
}

/// The lifetimes are really those of the cursor's memtable. They leave the cursor only shortened to a borrow of it.
#[derive(Clone, Copy)]
struct Position {
    leaf: Node<'static>,
    order: Order,
    rank: usize,
    key: Key<'static>,
    version: VersionRef<'static>,
}

impl MemtableCursor {
    pub(super) fn new(memtable: Arc<Memtable>) -> Self {
        Self { position: None, newer: Vec::new(), newer_known: false, memtable }
    }

    /// The newest version of the key at `rank`, or of the first key of the next leaf.
    #[inline]
    fn key_from(&mut self, leaf: Node<'static>, order: Order, rank: usize) {
        self.newer_known = false;
        self.position = if rank < order.len() {
            Some(newest_at(leaf, order, rank))
        } else {
            leaf.next().map(|leaf| {
                let order = leaf.order();
                (1..AHEAD.min(order.len())).for_each(|rank| leaf.key_at(order, rank).prefetch());
                newest_at(leaf, order, 0)
            })
        };
    }

    /// The oldest version of the key at `rank`.
    fn oldest_at(&mut self, leaf: Node<'static>, order: Order, rank: usize) {
        let key = leaf.key_at(order, rank);
        self.position = Some(Position { leaf, order, rank, key, version: key.newest() });
        self.newer.clear();
        self.newer_known = true;
        self.go_to_oldest();
    }

    fn go_to_oldest(&mut self) {
        let Some(position) = &mut self.position else { return };
        while let Some(older) = position.version.older() {
            self.newer.push(position.version);
            position.version = older;
        }
    }

    /// Moves to the last key of `leaf` below `key`, if it has one.
    fn last_below(&mut self, leaf: Option<Node<'static>>, key: &[u8]) {
        self.position = None;
        let Some(leaf) = leaf else { return };
        let place = leaf.search(key);
        if let Some(rank) = place.rank.checked_sub(1) {
            self.oldest_at(leaf, place.order, rank);
        }
    }

    fn stack_newer(&mut self, position: &Position) {
        self.newer.clear();
        let mut version = Some(position.key.newest());
        while let Some(newer) = version.filter(|version| *version != position.version) {
            self.newer.push(newer);
            version = newer.older();
        }
        self.newer_known = true;
    }

    fn tree(&self) -> &'static Tree {
        // SAFETY: the memtable does not move while `self.memtable` holds it, which is as long as anything found in it
        // is kept: in `self.position` and `self.newer`.
        unsafe { &(*Arc::as_ptr(&self.memtable)).tree }
    }
}

/// Neighbours in key order are anywhere in memory, so the next ones are prefetched while this one is used.
#[inline]
fn newest_at(leaf: Node<'static>, order: Order, rank: usize) -> Position {
    if rank + AHEAD < order.len() {
        leaf.key_at(order, rank + AHEAD).prefetch();
    }
    let key = leaf.key_at(order, rank);
    Position { leaf, order, rank, key, version: key.newest() }
}

impl Cursor for MemtableCursor {
    #[inline]
    fn entry(&self) -> Option<Entry<'_>> {
        self.position.map(|position| position.version.entry(position.key))
    }

    fn payload(&self) -> Value {
        Value::copy_of(self.entry().map_or(&[], |entry| entry.payload))
    }

    fn first(&mut self) -> Result<()> {
        self.position = None;
        if let Some(leaf) = self.tree().first_leaf() {
            self.key_from(leaf, leaf.order(), 0);
        }
        Ok(())
    }

    fn last(&mut self) -> Result<()> {
        self.position = None;
        if let Some(leaf) = self.tree().last_leaf() {
            let order = leaf.order();
            self.oldest_at(leaf, order, order.len() - 1);
        }
        Ok(())
    }

    fn seek(&mut self, key: &[u8], seqno: SeqNo) -> Result<()> {
        self.position = None;
        let Some(leaf) = self.tree().leaf_of(key) else { return Ok(()) };
        let place = leaf.search(key);
        self.key_from(leaf, place.order, place.rank);
        if place.found == Found::Exact
            && let Some(position) = &mut self.position
        {
            match position.key.at(seqno) {
                Some(version) => position.version = version,
                None => self.key_from(leaf, place.order, place.rank + 1),
            }
        }
        Ok(())
    }

    fn seek_before(&mut self, key: &[u8]) -> Result<()> {
        self.last_below(self.tree().leaf_below(key), key);
        Ok(())
    }

    #[inline]
    fn next(&mut self) -> Result<()> {
        let Some(position) = &mut self.position else { return Ok(()) };
        if let Some(older) = position.version.older() {
            self.newer_known = false;
            position.version = older;
            return Ok(());
        }
        let Position { leaf, order, rank, .. } = *position;
        self.key_from(leaf, order, rank + 1);
        Ok(())
    }

    fn prev(&mut self) -> Result<()> {
        let Some(position) = self.position else { return Ok(()) };
        if !self.newer_known {
            self.stack_newer(&position);
        }
        let Position { leaf, order, rank, key, .. } = position;
        if let Some(version) = self.newer.pop() {
            self.position = Some(Position { version, ..position });
        } else if let Some(rank) = rank.checked_sub(1) {
            self.oldest_at(leaf, order, rank);
        } else {
            self.last_below(self.tree().leaf_below(key.bytes()), key.bytes());
        }
        Ok(())
    }
}

// SAFETY: the cursor points into the memtable that it keeps alive, and any thread may read that.
unsafe impl Send for MemtableCursor {}
