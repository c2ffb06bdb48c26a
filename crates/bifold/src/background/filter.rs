//! Asks a compaction filter about what a merge writes, and commits what it decides.
//!
//! ```text
//! merge ─▶ entry is kept ─▶ the newest of its key here, not a deletion? ─▶ filter ─┬─ keep
//!                                                                                  └─ delete, replace ─▶ decided
//! decided, 256 at a time ─▶ ┌ commit lock: still the newest of its key? ─┬─ written like a write of the user's ┐
//!                           └                                            └─ asked again, about the newest     ┘
//! ```
//!
//! The merge itself drops nothing: then a snapshot that was opened meanwhile would lose what it has seen, and each
//! placement would have to learn of values that nobody has overwritten. A commit is what all of these know already.
//!
//! These commits are part of a job: they have the job's room on the disk, and without room the job ends, with what was
//! committed so far. A key whose newest version cannot be looked up stays as it is, and the rest goes on.

use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
};

use bifold_contract::{Entry, Error, Kept, Kind, Result, Rewriter, SeqNo, Value, ValueEdit, key::MAX_SEQNO, planted};
use bifold_format::large;
use bifold_index::range_tombstones::{Hint, RangeTombstones};

use crate::{
    commit::moves::{Decided, MoveCommits},
    limits::room::Means,
    settings::filter::{CompactionFilter, FilterEntry, Verdict},
    state::tree::Tree,
};

/// So many decisions are committed under one hold of the commit lock.
const DECIDED_MAX: usize = 256;

/// Or those whose keys and values have so many bytes.
const DECIDED_BYTES_MAX: usize = 1 << 20;

/// So often a decision is made again because its version is out of date.
const ROUNDS_MAX: usize = 4;

/// Reads the value that a filter is asked about.
type Read<'a> = dyn Fn() -> Result<Value> + 'a;

/// The answer of a filter.
enum Decision {
    Stays,
    Made(Decided),
    /// The version it was asked about is no longer the newest.
    OutOfDate,
}

/// A rewriter that asks the tree's filter, if it has one, about what it passes on to `rewriter`. The merge has these
/// `tombstones` and `means`, and `unlooked` is what it may write before it looks at the disk again.
pub(crate) fn asking(
    tree: &Arc<Tree>,
    moves: &Arc<MoveCommits>,
    (unlooked, means): (&Arc<AtomicU64>, Means),
    tombstones: &RangeTombstones,
    rewriter: Box<dyn Rewriter>,
) -> Box<dyn Rewriter> {
    let Some(filter) = tree.filter.get() else { return rewriter };
    let (tree, moves, unlooked) = (Arc::clone(tree), Arc::clone(moves), Arc::clone(unlooked));
    let (tombstones, hint) = (tombstones.clone(), Hint::default());
    let (key, decided, bytes) = (None, Vec::new(), 0);
    Box::new(Asking { filter, tree, moves, unlooked, means, tombstones, hint, rewriter, key, decided, bytes })
}

struct Asking {
    filter: CompactionFilter,
    tree: Arc<Tree>,
    moves: Arc<MoveCommits>,
    unlooked: Arc<AtomicU64>,
    means: Means,
    tombstones: RangeTombstones,
    hint: Hint,
    rewriter: Box<dyn Rewriter>,
    /// Whose newest version was seen.
    key: Option<Vec<u8>>,
    decided: Vec<Decided>,
    bytes: usize,
}

impl Asking {
    /// Asks about an entry of the merge.
    fn ask(&mut self, entry: &Entry<'_>) -> Result<()> {
        let value = || match entry.kind {
            Kind::Pointer | Kind::Operand | Kind::Large => self.value(entry.key, entry.seqno),
            _ => Ok(Value::copy_of(entry.payload)),
        };
        let large_len = match entry.kind {
            Kind::Large => large::decode(entry.payload).ok().map(|named| named.len),
            _ => None,
        };
        let decided = match self.decide((entry.key, entry.seqno), large_len, &value) {
            Decision::Made(decided) => Some(decided),
            Decision::Stays => None,
            Decision::OutOfDate => self.ask_about_newest(entry.key)?,
        };
        self.gather(decided)
    }

    fn gather(&mut self, decided: Option<Decided>) -> Result<()> {
        if self.add(decided) { self.commit() } else { Ok(()) }
    }

    /// Adds a decision to those of the next commit. Returns whether they are enough for one.
    fn add(&mut self, decided: Option<Decided>) -> bool {
        self.bytes += decided.as_ref().map_or(0, |d| d.key.len() + d.value.as_ref().map_or(0, Vec::len));
        self.decided.extend(decided);
        self.decided.len() >= DECIDED_MAX || self.bytes >= DECIDED_BYTES_MAX
    }

    /// Asks about the newest version of a key. GC gives a key a newer version when it moves the value.
    fn ask_about_newest(&self, key: &[u8]) -> Result<Option<Decided>> {
        for _ in 0..ROUNDS_MAX {
            let now = match self.moves.newest_for_filter(&self.tree, key) {
                Err(error) if error.is_unreadable() => return Ok(None),
                found => found?,
            };
            let Some(now) = now else { return Ok(None) };
            match self.decide((key, now.seqno), None, &|| self.value(key, now.seqno)) {
                Decision::Made(decided) => return Ok(Some(decided)),
                Decision::Stays => return Ok(None),
                Decision::OutOfDate => {}
            }
        }
        Ok(None)
    }

    /// What the filter decides about a version. A large value is read only if it is as long as what replaces it.
    fn decide(&self, (key, seqno): (&[u8], SeqNo), large_len: Option<u64>, value: &Read<'_>) -> Decision {
        let counts = &self.tree.filter.counts;
        counts.asked.fetch_add(1, Relaxed);
        let value = match catch_unwind(AssertUnwindSafe(|| self.filter.judge(&FilterEntry { key, value }))) {
            Ok(Ok(Verdict::Keep)) => return Decision::Stays,
            Ok(Err(Error::Conflict { .. })) => return Decision::OutOfDate,
            Ok(Ok(Verdict::Delete)) => None,
            // Else a filter that always answers the same would give compactions work without end.
            Ok(Ok(Verdict::Replace(new)))
                if large_len.is_none_or(|len| len == new.len() as u64) && value().is_ok_and(|old| *old == *new) =>
            {
                return Decision::Stays;
            }
            Ok(Ok(Verdict::Replace(new))) => Some(new),
            // A value that cannot be read is reported by those who need it.
            Ok(Err(_)) | Err(_) => {
                counts.failed.fetch_add(1, Relaxed);
                return Decision::Stays;
            }
        };
        Decision::Made(Decided { key: key.into(), seqno, value })
    }

    /// The value of a version that is still the newest.
    fn value(&self, key: &[u8], seqno: SeqNo) -> Result<Value> {
        let found = self.moves.reader.value_if_newest(&self.tree, key, seqno)?;
        found.ok_or_else(|| Error::Conflict { keyspace: self.tree.name.clone(), key: key.into() })
    }

    /// Commits what was decided. What is out of date by then is decided again, and committed in parts: the first
    /// decision did not say how long the second one would be.
    fn commit(&mut self) -> Result<()> {
        let mut outdated = self.commit_once()?;
        for _ in 1..ROUNDS_MAX {
            if outdated.is_empty() {
                break;
            }
            for key in std::mem::take(&mut outdated) {
                let again = self.ask_about_newest(&key)?;
                if self.add(again) {
                    outdated.extend(self.commit_once()?);
                }
            }
            outdated.extend(self.commit_once()?);
        }
        Ok(())
    }

    /// Commits what was decided. Returns the keys of what is out of date.
    fn commit_once(&mut self) -> Result<Vec<Box<[u8]>>> {
        let decided = std::mem::take(&mut self.decided);
        self.bytes = 0;
        let mut outdated = Vec::new();
        if decided.is_empty() {
            return Ok(outdated);
        }
        self.moves.flush_full(&self.tree);
        let bytes = decided.iter().map(|decided| decided.bytes(&self.tree)).sum();
        if !planted!("filter_asks_for_no_room") {
            self.moves.committer.room.look_to_commit(&self.unlooked, bytes, self.means)?;
        }
        // A keyspace that was dropped meanwhile needs none of it.
        self.moves.hold_commits(&self.tree, &mut |held| {
            outdated = held.commit_decided(&decided)?;
            Ok(())
        })?;
        Ok(outdated)
    }
}

impl Rewriter for Asking {
    fn keep(&mut self, entry: &Entry<'_>) -> Result<Kept> {
        let is_first = self.key.as_deref() != Some(entry.key);
        if is_first {
            let key = self.key.get_or_insert_default();
            key.clear();
            key.extend_from_slice(entry.key);
        }
        match entry.kind {
            _ if !is_first => {}
            Kind::Delete => {}
            // It is deleted, and kept for snapshots alone.
            _ if self.tombstones.covering_near(&mut self.hint, entry.key, MAX_SEQNO) > entry.seqno => {}
            // Its value is what all operands make of the base.
            Kind::Operand => {
                let decided = self.ask_about_newest(entry.key)?;
                self.gather(decided)?;
            }
            _ => self.ask(entry)?,
        }
        self.rewriter.keep(entry)
    }

    fn discard(&mut self, entry: &Entry<'_>, newer: SeqNo) -> Result<()> {
        self.rewriter.discard(entry, newer)
    }

    fn end_table(&mut self) -> Result<()> {
        self.rewriter.end_table()
    }

    fn finish(mut self: Box<Self>) -> Result<ValueEdit> {
        self.commit()?;
        self.rewriter.finish()
    }
}

#[cfg(test)]
mod tests;
