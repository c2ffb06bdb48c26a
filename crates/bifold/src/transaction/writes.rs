//! What a transaction is to write, and savepoints in it.
//!
//! Of each keyspace: the deleted ranges, and above them the keys that were put or deleted since. A range delete removes
//! the writes it covers, so the order of the rest does not matter: ranges are committed first.
//!
//! Once there is a savepoint, each change also notes what it replaces. Going back undoes the changes, the last one
//! first. A savepoint without a change since the last one is the same moment and takes nothing; so there are at most as
//! many as noted changes and the first one, and each change counts the memory of the next one.

use std::{
    collections::BTreeMap,
    ops::Bound,
    sync::atomic::{AtomicU64, Ordering::Relaxed},
};

use bifold_contract::{Error, KeyspaceId, Millis, Result, Value};

use super::intervals::{Interval, Intervals, bytes_of};
use crate::{
    api::keyspace::Keyspace,
    limits::transaction_memory::Charge,
    state::op::{Act, Op, put_until},
};

/// Memory of a write without key and value, in bytes: pointers, reference counts, its share of the map.
const WRITE_OVERHEAD_BYTES: u64 = 96;

/// Memory of a savepoint, in bytes: two numbers, and what the list has in reserve.
const SAVEPOINT_BYTES: u64 = 24;

/// Memory of a noted change without what it replaces, and of the savepoint that may follow it, in bytes.
const UNDO_OVERHEAD_BYTES: u64 = 96 + SAVEPOINT_BYTES;

/// Savepoints have numbers that no other transaction of the process has.
static NEXT_SAVEPOINT: AtomicU64 = AtomicU64::new(0);

/// A moment in a [`Transaction`](crate::Transaction) to which its writes can be rolled back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Savepoint(u64);

/// A write to one key: a put, or `None` for a delete.
pub(super) type Written = Option<Put>;

/// A value or an operand.
#[derive(Clone, Debug)]
pub(super) struct Put {
    pub value: Value,
    pub what: PutWhat,
}

/// What is put.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PutWhat {
    /// A value, and when it expires. The transaction itself sees it whatever time it is.
    Value(Option<Millis>),
    /// An operand, for whatever the key has at the commit.
    Operand,
}

impl Put {
    fn act(&self) -> Act<'_> {
        match self.what {
            PutWhat::Value(expires_at) => put_until(&self.value, expires_at),
            PutWhat::Operand => Act::Merge(&self.value),
        }
    }
}

/// Writes to one keyspace.
pub(super) struct TreeWrites {
    /// Keeps the database open.
    pub keyspace: Keyspace,
    /// Deleted ranges.
    pub deleted: Intervals,
    /// Keys written since they were last in a deleted range.
    pub keys: BTreeMap<Box<[u8]>, Written>,
}

impl TreeWrites {
    fn ops(&self) -> impl Iterator<Item = Op<'_>> {
        let tree = self.keyspace.tree();
        let ranges = self.deleted.iter().map(move |(key, end)| Op { tree, key, act: Act::DeleteRange(end) });
        let keys = self.keys.iter().map(move |(key, written)| {
            let act = written.as_ref().map_or(Act::Delete, Put::act);
            Op { tree, key, act }
        });
        ranges.chain(keys)
    }
}

/// A change, as what it has replaced.
enum Undo {
    Key { keyspace: KeyspaceId, key: Box<[u8]>, before: Option<Written> },
    Range { keyspace: KeyspaceId, deleted: Intervals, keys: Vec<(Box<[u8]>, Written)> },
}

/// What is to be written.
#[derive(Default)]
pub(super) struct Writes {
    trees: BTreeMap<KeyspaceId, TreeWrites>,
    undo: Vec<Undo>,
    /// Savepoints, oldest first, each with the length of `undo` then. Their numbers and these lengths grow.
    savepoints: Vec<(Savepoint, usize)>,
}

fn bytes_of_write(key: &[u8], put: Option<&Put>) -> u64 {
    (key.len() + put.map_or(0, |put| put.value.len())) as u64 + WRITE_OVERHEAD_BYTES
}

fn bytes_of_undo(undo: &Undo) -> u64 {
    let of_keys = match undo {
        Undo::Key { key, before, .. } => match before {
            Some(written) => bytes_of_write(key, written.as_ref()),
            None => key.len() as u64,
        },
        Undo::Range { deleted, keys, .. } => {
            deleted.bytes() + keys.iter().map(|(key, written)| bytes_of_write(key, written.as_ref())).sum::<u64>()
        }
    };
    of_keys + UNDO_OVERHEAD_BYTES
}

impl Writes {
    /// Writes a value or an operand to `key`, or deletes it. Returns whether that replaces another write of the key.
    ///
    /// # Errors
    /// [`Error::TransactionTooLarge`]; nothing is changed then.
    pub fn set(
        &mut self,
        keyspace: &Keyspace,
        key: &[u8],
        put: Option<(&[u8], PutWhat)>,
        charge: &Charge,
    ) -> Result<bool> {
        let value_bytes = put.map_or(0, |(value, _)| value.len());
        let bytes = (key.len() + value_bytes) as u64 + WRITE_OVERHEAD_BYTES;
        let notes = !self.savepoints.is_empty();
        charge.take(bytes + if notes { key.len() as u64 + UNDO_OVERHEAD_BYTES } else { 0 })?;
        let before = self
            .of(keyspace)
            .keys
            .insert(key.into(), put.map(|(value, what)| Put { value: Value::copy_of(value), what }));
        let (keyspace, has_replaced) = (keyspace.tree().keyspace, before.is_some());
        match (notes, before) {
            (true, before) => {
                if before.is_some() {
                    // The note now counts what was there, with its key.
                    charge.give_back(key.len() as u64);
                }
                self.undo.push(Undo::Key { keyspace, key: key.into(), before });
            }
            (false, Some(before)) => charge.give_back(bytes_of_write(key, before.as_ref())),
            (false, None) => {}
        }
        Ok(has_replaced)
    }

    /// Deletes a range.
    ///
    /// # Errors
    /// As [`Writes::set`].
    pub fn delete_range(&mut self, keyspace: &Keyspace, range: Interval, charge: &Charge) -> Result<()> {
        let notes = !self.savepoints.is_empty();
        let of = self.of(keyspace);
        let copied = if notes { of.deleted.bytes() + UNDO_OVERHEAD_BYTES } else { 0 };
        charge.take(bytes_of(&range.0, range.1.as_deref()) + copied)?;
        let deleted = if notes { of.deleted.clone() } else { Intervals::default() };
        let keys = cut_out(&mut of.keys, &range);
        charge.give_back(of.deleted.add(range));
        if notes {
            self.undo.push(Undo::Range { keyspace: keyspace.tree().keyspace, deleted, keys });
        } else {
            charge.give_back(keys.iter().map(|(key, written)| bytes_of_write(key, written.as_ref())).sum());
        }
        Ok(())
    }

    /// What the transaction itself says about `key`: nothing, or what was written last.
    pub fn look(&self, keyspace: KeyspaceId, key: &[u8]) -> Option<Written> {
        let of = self.trees.get(&keyspace)?;
        match of.keys.get(key) {
            Some(written) => Some(written.clone()),
            None => of.deleted.contains(key).then_some(None),
        }
    }

    /// The writes to one keyspace.
    pub fn to(&self, keyspace: KeyspaceId) -> Option<&TreeWrites> {
        self.trees.get(&keyspace)
    }

    /// Writes by keyspace.
    pub fn iter(&self) -> impl Iterator<Item = &TreeWrites> {
        self.trees.values()
    }

    /// All writes as one commit.
    pub fn ops(&self) -> Vec<Op<'_>> {
        self.trees.values().flat_map(TreeWrites::ops).collect()
    }

    /// A moment to go back to.
    pub fn savepoint(&mut self) -> Savepoint {
        if let Some((last, _)) = self.savepoints.last().filter(|(_, length)| *length == self.undo.len()) {
            return *last;
        }
        let savepoint = Savepoint(NEXT_SAVEPOINT.fetch_add(1, Relaxed));
        self.savepoints.push((savepoint, self.undo.len()));
        savepoint
    }

    /// Undoes what was written since `savepoint`, which stays.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] if it is of another transaction, or an earlier one was gone back to since.
    pub fn go_back(&mut self, savepoint: Savepoint, charge: &Charge) -> Result<()> {
        let Ok(at) = self.savepoints.binary_search_by_key(&savepoint.0, |(there, _)| there.0) else {
            let reason = "it belongs to another transaction, or this one was rolled back to an earlier one since";
            return Err(Error::invalid("savepoint", reason));
        };
        self.savepoints.truncate(at + 1);
        let length = self.savepoints.last().map_or(0, |(_, length)| *length);
        let undone: Vec<Undo> = self.undo.drain(length..).rev().collect();
        undone.into_iter().for_each(|undo| self.revert(undo, charge));
        Ok(())
    }

    fn revert(&mut self, undo: Undo, charge: &Charge) {
        let noted = bytes_of_undo(&undo);
        let (Undo::Key { keyspace, .. } | Undo::Range { keyspace, .. }) = &undo;
        let Some(of) = self.trees.get_mut(keyspace) else { return };
        match undo {
            Undo::Key { key, before, .. } => {
                let now = of.keys.remove(&key);
                charge.give_back(now.map_or(0, |written| bytes_of_write(&key, written.as_ref())));
                let kept = before.as_ref().map_or(0, |written| bytes_of_write(&key, written.as_ref()));
                charge.give_back(noted - kept);
                if let Some(before) = before {
                    of.keys.insert(key, before);
                }
            }
            Undo::Range { deleted, keys, .. } => {
                // What was noted of the ranges is in force again, and so are the keys.
                charge.give_back(of.deleted.bytes() + UNDO_OVERHEAD_BYTES);
                of.deleted = deleted;
                of.keys.extend(keys);
            }
        }
    }

    fn of(&mut self, keyspace: &Keyspace) -> &mut TreeWrites {
        self.trees.entry(keyspace.tree().keyspace).or_insert_with(|| TreeWrites {
            keyspace: keyspace.clone(),
            deleted: Intervals::default(),
            keys: BTreeMap::new(),
        })
    }
}

/// Removes the keys of a range. Returns them.
fn cut_out(keys: &mut BTreeMap<Box<[u8]>, Written>, (start, end): &Interval) -> Vec<(Box<[u8]>, Written)> {
    let upto = end.as_deref().map_or(Bound::Unbounded, Bound::Excluded);
    let found: Vec<Box<[u8]>> =
        keys.range::<[u8], _>((Bound::Included(&**start), upto)).map(|(key, _)| key.clone()).collect();
    found.into_iter().filter_map(|key| keys.remove_entry(&*key)).collect()
}
