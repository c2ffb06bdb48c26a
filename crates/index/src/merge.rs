//! Several sorted streams as one.
//!
//! All sources that stand somewhere are kept in a small array in stream order; the merge stands where the first of them
//! stands. A step moves that one source and, only if it is now behind its neighbour, shifts it to its place. With the
//! one to eight sources that a well-shaped tree has, this beats a heap: no pointers, and one comparison for each of the
//! many steps that stay in one source.
//!
//! Going backward the array is in reverse stream order. A turn moves all other sources across the entry that the merge
//! stands on, so either direction may be taken at any step.
//!
//! Invariants: `heads` holds each source that stands somewhere once, in the order of `direction`; a source not in
//! `heads` has no entry in that direction; after an error `heads` is empty and every move answers the same error.

use std::cmp::Ordering;

use bifold_contract::{Entry, Error, Result, SeqNo, Value};

use crate::{cursor::Cursor, memtable::MemtableCursor, table::TableCursor, version::RunCursor};

/// A stream to merge. The cursors of this crate are called directly; anything else through its table of methods.
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

/// Calls a method of whatever cursor a source holds.
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

/// Which way the merge goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Direction {
    Forward,
    Backward,
}

/// A source that stands somewhere, and the start of the key it stands on: most comparisons end there.
#[derive(Clone, Copy)]
struct Head {
    prefix: u64,
    source: usize,
}

/// The merge of any number of sorted streams, itself a sorted stream.
pub struct MergeCursor {
    sources: Vec<Source>,
    heads: Vec<Head>,
    direction: Direction,
    failed: Option<Error>,
}

impl MergeCursor {
    /// The merge of `sources`, which may stand anywhere: the merge stands nowhere until it is placed.
    #[must_use]
    pub fn new(sources: Vec<Source>) -> Self {
        Self { heads: Vec::with_capacity(sources.len()), sources, direction: Direction::Forward, failed: None }
    }

    /// Moves the first source on in the present direction and puts it where it now belongs.
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

    /// Moves every source by `step` and takes up `direction`.
    fn place(&mut self, direction: Direction, mut step: impl FnMut(&mut Source) -> Result<()>) -> Result<()> {
        if let Some(error) = &self.failed {
            return Err(error.clone());
        }
        for source in &mut self.sources {
            if let Err(error) = step(source) {
                return self.fail(error);
            }
        }
        self.take_up(direction);
        Ok(())
    }

    /// Moves every source but the one it stands on across the entry it stands on.
    fn turn(&mut self, direction: Direction) -> Result<()> {
        let here = self.heads[0].source;
        for other in 0..self.sources.len() {
            // The two are the same source exactly when they overlap, and that one stays.
            let Ok([pivot, other]) = self.sources.get_disjoint_mut([here, other]) else { continue };
            if let Err(error) = cross(pivot, other, direction) {
                return self.fail(error);
            }
        }
        self.take_up(direction);
        debug_assert_eq!(self.heads[0].source, here, "the others now stand behind, seen in the new direction");
        Ok(())
    }

    fn take_up(&mut self, direction: Direction) {
        self.direction = direction;
        let mut heads = std::mem::take(&mut self.heads);
        heads.clear();
        heads.extend((0..self.sources.len()).filter_map(|source| head_of(&self.sources, source)));
        heads.sort_unstable_by(|&a, &b| self.order(a, b));
        self.heads = heads;
    }

    fn is_before(&self, a: Head, b: Head) -> bool {
        self.order(a, b) == Ordering::Less
    }

    /// Which of two heads comes first in the present direction.
    fn order(&self, a: Head, b: Head) -> Ordering {
        let order = a.prefix.cmp(&b.prefix).then_with(|| {
            let order = match (self.sources[a.source].entry(), self.sources[b.source].entry()) {
                (Some(a), Some(b)) => stream_order(&a, &b),
                _ => Ordering::Equal,
            };
            debug_assert!(order.is_ne() || a.source == b.source, "two sources hold one version of a key");
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
fn head_of(sources: &[Source], source: usize) -> Option<Head> {
    sources[source].entry().map(|entry| Head { prefix: prefix_of(entry.key), source })
}

/// The first eight bytes as a number that orders as they do. Shorter keys are filled up with zeros, so equal numbers
/// leave the order open.
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

/// Moves `other` to its first entry beyond the one `pivot` stands on. One step does it, unless entries came into a
/// memtable in between: those of the wrong side are stepped over.
fn cross(pivot: &Source, other: &mut Source, direction: Direction) -> Result<()> {
    let Some(pivot) = pivot.entry() else { return Ok(()) };
    let stands = other.entry().is_some();
    match direction {
        Direction::Forward if stands => other.next()?,
        Direction::Forward => other.first()?,
        Direction::Backward if stands => other.prev()?,
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
