//! Merges several sorted streams into one.
//!
//! All sources with a current entry are in a small array in stream order, and the merge is at the first of them. A
//! step moves that source and, only if it is now after its neighbour, shifts it to its new position. With the one to
//! eight sources of a well-shaped tree this beats a heap: no pointers, and one comparison for each of the many steps
//! within one source.
//!
//! Going backward, the array is in reverse stream order. A change of direction moves all other sources across the
//! current entry, so each step can go in either direction.
//!
//! Invariants: `heads` has each source with a current entry once, in the order of `direction`; a source not in
//! `heads` has no more entries in that direction; after an error `heads` is empty and every move returns the same
//! error.

use std::cmp::Ordering;

use bifold_contract::{Entry, Error, Result, SeqNo, Value};

use crate::{
    cursor::{Cursor, Direction},
    memtable::MemtableCursor,
    table::TableCursor,
    version::RunCursor,
};

/// A stream to merge. The cursors of this crate are called directly, all others through dynamic dispatch.
#[allow(clippy::large_enum_variant, reason = "a merge has a handful of sources; a box would cost a step each time")]
pub enum Source {
    /// A memtable.
    Memtable(MemtableCursor),
    /// A sorted run of tables.
    Run(RunCursor),
    /// A table.
    Table(TableCursor),
    /// Any other stream.
    Boxed(Box<dyn Cursor + Send>),
}

/// Calls a method of the cursor in a source.
macro_rules! each {
    ($source:expr, $cursor:ident => $call:expr) => {
        match $source {
            Source::Memtable($cursor) => $call,
            Source::Run($cursor) => $call,
            Source::Table($cursor) => $call,
            Source::Boxed($cursor) => $call,
        }
    };
}

/// A source with a current entry, and the start of its key, which decides most comparisons.
#[derive(Clone, Copy)]
struct SourceHead {
    prefix: u64,
    source: usize,
}

/// The merge of any number of sorted streams, itself a sorted stream.
pub struct MergeCursor {
    sources: Vec<Source>,
    heads: Vec<SourceHead>,
    direction: Direction,
    failed: Option<Error>,
}

impl MergeCursor {
    /// The merge of `sources`, which may be at any position. The merge is not on an entry until it is placed.
    #[must_use]
    pub fn new(sources: Vec<Source>) -> Self {
        Self { heads: Vec::with_capacity(sources.len()), sources, direction: Direction::Forward, failed: None }
    }

    /// Moves the first source one step in the current direction and puts it at its new position.
    fn advance(&mut self) -> Result<()> {
        let source = self.heads[0].source;
        let moved = match self.direction {
            Direction::Forward => self.sources[source].next(),
            Direction::Backward => self.sources[source].prev(),
        };
        if let Err(error) = moved {
            return self.fail(error);
        }
        let Some(head) = head_of(&self.sources, source) else {
            self.heads.remove(0);
            return Ok(());
        };
        self.heads[0] = head;
        if self.heads.len() > 1 && !self.is_before(head, self.heads[1]) {
            let passed = 2 + self.heads[2..].partition_point(|&other| self.is_before(other, head));
            self.heads[..passed].rotate_left(1);
        }
        Ok(())
    }

    /// Moves every source by `step` and sets `direction`.
    fn place(&mut self, direction: Direction, mut step: impl FnMut(&mut Source) -> Result<()>) -> Result<()> {
        if let Some(error) = &self.failed {
            return Err(error.clone());
        }
        for source in &mut self.sources {
            if let Err(error) = step(source) {
                return self.fail(error);
            }
        }
        self.sort_heads(direction);
        Ok(())
    }

    /// Whether it goes forward, and sources without an entry have ended in that direction.
    pub(crate) fn goes_forward(&self) -> bool {
        self.direction == Direction::Forward
    }

    /// Moves every source by `step`, none of them back.
    pub(crate) fn move_forward(&mut self, step: impl FnMut(&mut Source) -> Result<()>) -> Result<()> {
        self.place(Direction::Forward, step)
    }

    /// Moves every source by `step`, none of them forward.
    pub(crate) fn move_backward(&mut self, step: impl FnMut(&mut Source) -> Result<()>) -> Result<()> {
        self.place(Direction::Backward, step)
    }

    /// Moves every source but the first across the current entry.
    fn turn(&mut self, direction: Direction) -> Result<()> {
        let here = self.heads[0].source;
        for other in 0..self.sources.len() {
            // The indices are equal only for the first source, which stays.
            let Ok([pivot, other]) = self.sources.get_disjoint_mut([here, other]) else { continue };
            if let Err(error) = cross(pivot, other, direction) {
                return self.fail(error);
            }
        }
        self.sort_heads(direction);
        debug_assert_eq!(self.heads[0].source, here, "the others now come after it in the new direction");
        Ok(())
    }

    fn sort_heads(&mut self, direction: Direction) {
        self.direction = direction;
        let mut heads = std::mem::take(&mut self.heads);
        heads.clear();
        heads.extend((0..self.sources.len()).filter_map(|source| head_of(&self.sources, source)));
        heads.sort_unstable_by(|&a, &b| self.order(a, b));
        self.heads = heads;
    }

    fn is_before(&self, a: SourceHead, b: SourceHead) -> bool {
        self.order(a, b) == Ordering::Less
    }

    /// The order of two heads in the current direction.
    fn order(&self, a: SourceHead, b: SourceHead) -> Ordering {
        let order = a.prefix.cmp(&b.prefix).then_with(|| {
            let order = match (self.sources[a.source].entry(), self.sources[b.source].entry()) {
                (Some(a), Some(b)) => stream_order(&a, &b),
                _ => Ordering::Equal,
            };
            debug_assert!(order.is_ne() || a.source == b.source, "two sources have the same version of a key");
            order
        });
        match self.direction {
            Direction::Forward => order,
            Direction::Backward => order.reverse(),
        }
    }

    fn fail(&mut self, error: Error) -> Result<()> {
        self.heads.clear();
        self.failed = Some(error.clone());
        Err(error)
    }

    fn step(&mut self, direction: Direction) -> Result<()> {
        if let Some(error) = &self.failed {
            return Err(error.clone());
        }
        if self.heads.is_empty() {
            return Ok(());
        }
        if self.direction != direction {
            self.turn(direction)?;
        }
        self.advance()
    }
}

impl Cursor for MergeCursor {
    #[inline]
    fn entry(&self) -> Option<Entry<'_>> {
        self.heads.first().and_then(|head| self.sources[head.source].entry())
    }

    fn payload(&self) -> Value {
        self.heads.first().map_or_else(|| Value::copy_of(&[]), |head| self.sources[head.source].payload())
    }

    fn first(&mut self) -> Result<()> {
        self.place(Direction::Forward, Cursor::first)
    }

    fn last(&mut self) -> Result<()> {
        self.place(Direction::Backward, Cursor::last)
    }

    fn seek(&mut self, key: &[u8], seqno: SeqNo) -> Result<()> {
        self.place(Direction::Forward, |source| source.seek(key, seqno))
    }

    fn seek_before(&mut self, key: &[u8]) -> Result<()> {
        self.place(Direction::Backward, |source| source.seek_before(key))
    }

    fn next(&mut self) -> Result<()> {
        self.step(Direction::Forward)
    }

    fn prev(&mut self) -> Result<()> {
        self.step(Direction::Backward)
    }
}

impl Cursor for Source {
    #[inline]
    fn entry(&self) -> Option<Entry<'_>> {
        each!(self, cursor => cursor.entry())
    }

    #[inline]
    fn payload(&self) -> Value {
        each!(self, cursor => cursor.payload())
    }

    fn first(&mut self) -> Result<()> {
        each!(self, cursor => cursor.first())
    }

    fn last(&mut self) -> Result<()> {
        each!(self, cursor => cursor.last())
    }

    fn seek(&mut self, key: &[u8], seqno: SeqNo) -> Result<()> {
        each!(self, cursor => cursor.seek(key, seqno))
    }

    fn seek_before(&mut self, key: &[u8]) -> Result<()> {
        each!(self, cursor => cursor.seek_before(key))
    }

    #[inline]
    fn next(&mut self) -> Result<()> {
        each!(self, cursor => cursor.next())
    }

    #[inline]
    fn prev(&mut self) -> Result<()> {
        each!(self, cursor => cursor.prev())
    }
}

impl From<Box<dyn Cursor + Send>> for Source {
    fn from(cursor: Box<dyn Cursor + Send>) -> Self {
        Self::Boxed(cursor)
    }
}

/// Key ascending, then the newest version first.
pub(crate) fn stream_order(a: &Entry<'_>, b: &Entry<'_>) -> Ordering {
    a.key.cmp(b.key).then_with(|| b.seqno.cmp(&a.seqno))
}

#[inline]
fn head_of(sources: &[Source], source: usize) -> Option<SourceHead> {
    sources[source].entry().map(|entry| SourceHead { prefix: prefix_of(entry.key), source })
}

/// The first eight bytes as a number with the same order. Shorter keys are padded with zeros, so equal numbers do not
/// decide the order.
#[inline]
fn prefix_of(key: &[u8]) -> u64 {
    match key.first_chunk::<8>() {
        Some(chunk) => u64::from_be_bytes(*chunk),
        None => {
            let mut chunk = [0; 8];
            chunk[..key.len()].copy_from_slice(key);
            u64::from_be_bytes(chunk)
        }
    }
}

/// Moves `other` to its first entry beyond the current entry of `pivot`. One step is enough unless entries were added
/// to a memtable meanwhile: those on the wrong side are skipped.
fn cross(pivot: &Source, other: &mut Source, direction: Direction) -> Result<()> {
    let Some(pivot) = pivot.entry() else { return Ok(()) };
    let is_placed = other.entry().is_some();
    match direction {
        Direction::Forward if is_placed => other.next()?,
        Direction::Forward => other.first()?,
        Direction::Backward if is_placed => other.prev()?,
        Direction::Backward => other.last()?,
    }
    while let Some(entry) = other.entry() {
        match (direction, stream_order(&entry, &pivot)) {
            (Direction::Forward, Ordering::Greater) | (Direction::Backward, Ordering::Less) => break,
            (Direction::Forward, _) => other.next()?,
            (Direction::Backward, _) => other.prev()?,
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests;
#[cfg(test)]
pub(crate) mod vec_cursor;
