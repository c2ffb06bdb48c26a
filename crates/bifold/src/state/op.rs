//! The operations of a commit.

use std::sync::{Arc, atomic::Ordering::Relaxed};

use bifold_contract::{
    Entry, Error, Kind, Millis, Pointer, RangeTombstone, Result, SeqNo,
    expiry::{self, INSTANT_BYTES},
    key, planted,
};
use bifold_values::placement::WriteOp;

use crate::state::tree::Tree;

/// One operation of a commit.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Op<'a> {
    /// The tree it goes to.
    pub tree: &'a Arc<Tree>,
    /// The key, or the first key of a range.
    pub key: &'a [u8],
    /// What is done to it.
    pub act: Act<'a>,
}

/// What an operation does.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Act<'a> {
    /// Sets the value.
    Put(&'a [u8]),
    /// Sets the value until an instant.
    PutUntil(&'a [u8], Millis),
    /// Sets the value, a separated one, by its encoded pointer.
    Pointer(&'a [u8]),
    /// The same until an instant, which is before the pointer.
    PointerUntil(&'a [u8]),
    /// Adds an operand of the keyspace's merge operator.
    Merge(&'a [u8]),
    /// Sets the value, a large one, by what is said of its file, encoded; and bytes of the value.
    Large(&'a [u8], u64),
    /// Deletes the key.
    Delete,
    /// Deletes all keys from the operation's key up to this one, exclusive; without one, to the end.
    DeleteRange(Option<&'a [u8]>),
}

/// Sets a value that expires, or one that does not.
pub(crate) fn put_until(value: &[u8], instant: Option<Millis>) -> Act<'_> {
    instant.map_or(Act::Put(value), |instant| Act::PutUntil(value, instant))
}

/// Bytes that an operation may take in addition to its key and value: log header and memtable node.
const OP_OVERHEAD_BYTES: u64 = 64;

/// Bytes that so many operations on this key add, whose payloads have so many bytes in all.
pub(crate) fn bytes_on(key: &[u8], count: usize, payload_bytes: u64) -> u64 {
    count as u64 * (key.len() as u64 + OP_OVERHEAD_BYTES) + payload_bytes
}

impl Op<'_> {
    /// Checks the sizes of key and value, and whether the keyspace takes such an operation.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`].
    pub fn check(&self) -> Result<()> {
        match self.act {
            Act::Put(value) => {
                key::check_key(self.key)?;
                key::check_value(value)
            }
            Act::Merge(operand) => {
                key::check_key(self.key)?;
                key::check_value(operand)?;
                if self.tree.merges() {
                    return Ok(());
                }
                let reason = format!(
                    "keyspace `{}` has no merge operator: open it with `KeyspaceOptions::merge`",
                    self.tree.name
                );
                Err(Error::invalid("merge", reason))
            }
            Act::PutUntil(value, _) => {
                key::check_key(self.key)?;
                if value.len() > key::MAX_VALUE_LEN - INSTANT_BYTES {
                    let reason = format!("a value of {} bytes is too long to expire: 6 bytes less may be", value.len());
                    return Err(Error::invalid("value", reason));
                }
                self.tree.lets_expire()
            }
            Act::Pointer(_) | Act::PointerUntil(_) | Act::Large(..) | Act::Delete => key::check_key(self.key),
            Act::DeleteRange(end) => [Some(self.key), end].into_iter().flatten().try_for_each(|bound| {
                if bound.len() > key::MAX_KEY_LEN + 1 {
                    return Err(Error::invalid(
                        "range",
                        format!("a bound of {} bytes is longer than any key", bound.len()),
                    ));
                }
                Ok(())
            }),
        }
    }

    /// Bytes it adds.
    pub fn bytes(&self) -> u64 {
        let rest = match self.act {
            Act::Put(payload)
            | Act::Pointer(payload)
            | Act::PointerUntil(payload)
            | Act::Large(payload, _)
            | Act::Merge(payload) => payload.len(),
            Act::PutUntil(value, _) => value.len() + INSTANT_BYTES,
            Act::Delete => 0,
            Act::DeleteRange(end) => end.map_or(0, <[u8]>::len),
        };
        (self.key.len() + rest) as u64 + OP_OVERHEAD_BYTES
    }

    /// Whether the placement need not hear of it: its value stays inline, and what it may overwrite is of no concern.
    /// So short values cost what they cost where none is separated.
    pub fn bypasses_placement(&self) -> bool {
        let tree = &**self.tree;
        match self.act {
            _ if !tree.routes => true,
            Act::Put(value) | Act::PutUntil(value, _) => {
                value.len() < tree.separates_from()
                    && !tree.hears_of_short_values
                    && tree.overwrites.as_ref().is_none_or(|overwrites| overwrites.ignore(value.len()))
            }
            _ => false,
        }
    }

    /// Gives it to the placement, which may separate its value. Returns where that is then.
    ///
    /// # Errors
    /// I/O errors.
    pub fn route(&self, seqno: SeqNo) -> Result<Option<Pointer>> {
        let op = match self.act {
            _ if !self.tree.routes => return Ok(None),
            Act::Large(..) if planted!("large_without_note") => return Ok(None),
            Act::Put(value) | Act::PutUntil(value, _) => WriteOp::Put { key: self.key, value },
            // To the placement, which has no value of the key from now on.
            Act::Delete | Act::Large(..) => WriteOp::Delete { key: self.key },
            Act::DeleteRange(end) => WriteOp::DeleteRange { start: self.key, end },
            // An operand stays inline, and what it is above stays live.
            Act::Pointer(_) | Act::PointerUntil(_) | Act::Merge(_) => return Ok(None),
        };
        self.tree.view().values.write(op, seqno)
    }

    /// The value that it sets, unless that is given by its address.
    pub fn value(&self) -> Option<&[u8]> {
        match self.act {
            Act::Put(value) | Act::PutUntil(value, _) => Some(value),
            _ => None,
        }
    }

    /// Bytes it takes in a memtable.
    pub fn memtable_bytes(&self) -> u64 {
        match self.act {
            Act::Put(value) | Act::PutUntil(value, _) if value.len() >= self.tree.separates_from() => {
                self.key.len() as u64 + OP_OVERHEAD_BYTES
            }
            _ => self.bytes(),
        }
    }
}

/// Applies one operation, already in the log, to its memtable. Returns whether it is the memtable's first operation.
pub(crate) fn apply(op: &Op<'_>, seqno: SeqNo, log: u64) -> bool {
    let view = op.tree.view();
    let is_first = view.active.fed_by(log);
    let mut memtable = view.active.memtable.writer();
    match op.act {
        Act::Put(value) => memtable.insert(&Entry::inline(op.key, seqno, value)),
        Act::PutUntil(value, instant) => {
            let payload = [&expiry::encode(instant), value].concat();
            memtable.insert(&Entry { key: op.key, seqno, kind: Kind::InlineUntil, payload: &payload });
        }
        Act::Pointer(payload) => memtable.insert(&Entry { key: op.key, seqno, kind: Kind::Pointer, payload }),
        Act::PointerUntil(payload) => {
            memtable.insert(&Entry { key: op.key, seqno, kind: Kind::PointerUntil, payload });
        }
        Act::Merge(operand) => memtable.insert(&Entry::operand(op.key, seqno, operand)),
        Act::Large(payload, len) => {
            view.active.large_bytes.fetch_add(len, Relaxed);
            memtable.insert(&Entry { key: op.key, seqno, kind: Kind::Large, payload });
        }
        Act::Delete => memtable.insert(&Entry::delete(op.key, seqno)),
        Act::DeleteRange(end) => {
            memtable.delete_range(RangeTombstone { start: op.key.into(), end: end.map(Into::into), seqno });
        }
    }
    is_first
}
