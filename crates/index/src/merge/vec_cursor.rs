//! A sorted stream in a vector: the obvious cursor, for tests. It can be made to fail at one entry.

use std::{path::Path, sync::Arc};

use bifold_contract::{Corruption, Entry, Kind, Result, SeqNo, Value};

use crate::{
    cursor::Cursor,
    merge::{MergeCursor, Source, stream_order},
};

/// An entry that owns its bytes.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct OwnedEntry {
    pub key: Vec<u8>,
    pub seqno: SeqNo,
    pub kind: Kind,
    pub payload: Vec<u8>,
}

impl OwnedEntry {
    pub(crate) fn of(entry: Entry<'_>) -> Self {
        Self { key: entry.key.into(), seqno: entry.seqno, kind: entry.kind, payload: entry.payload.into() }
    }

    pub(crate) fn borrow(&self) -> Entry<'_> {
        Entry { key: &self.key, seqno: self.seqno, kind: self.kind, payload: &self.payload }
    }
}

/// A cursor over a vector. Position `len` and `None` both mean "no entry".
#[derive(Clone)]
pub(crate) struct VecCursor {
    entries: Arc<[OwnedEntry]>,
    at: Option<usize>,
    fails_at: Option<usize>,
    failed: bool,
}

impl VecCursor {
    pub(crate) fn new(mut entries: Vec<OwnedEntry>) -> Self {
        entries.sort_by(|a, b| stream_order(&a.borrow(), &b.borrow()));
        Self { entries: entries.into(), at: None, fails_at: None, failed: false }
    }

    pub(crate) fn failing_at(mut self, position: usize) -> Self {
        self.fails_at = Some(position);
        self
    }

    fn go(&mut self, to: Option<usize>) -> Result<()> {
        self.failed |= to.is_some() && to == self.fails_at;
        if self.failed {
            self.at = None;
            return Err(Corruption::new(7, "test block", "intact bytes", "damaged bytes").of(Path::new("test.table")));
        }
        self.at = to.filter(|&to| to < self.entries.len());
        Ok(())
    }
}

impl Cursor for VecCursor {
    fn entry(&self) -> Option<Entry<'_>> {
        self.at.map(|at| self.entries[at].borrow())
    }

    fn payload(&self) -> Value {
        Value::copy_of(self.entry().map_or(&[], |entry| entry.payload))
    }

    fn first(&mut self) -> Result<()> {
        self.go(Some(0))
    }

    fn last(&mut self) -> Result<()> {
        self.go(self.entries.len().checked_sub(1))
    }

    fn seek(&mut self, key: &[u8], seqno: SeqNo) -> Result<()> {
        let sought = Entry::delete(key, seqno);
        self.go(Some(self.entries.partition_point(|e| stream_order(&e.borrow(), &sought).is_lt())))
    }

    fn seek_before(&mut self, key: &[u8]) -> Result<()> {
        self.go(self.entries.partition_point(|e| e.key.as_slice() < key).checked_sub(1))
    }

    fn next(&mut self) -> Result<()> {
        self.go(self.at.map(|at| at + 1))
    }

    fn prev(&mut self) -> Result<()> {
        self.go(self.at.and_then(|at| at.checked_sub(1)))
    }
}

/// The merge of these vectors.
pub(crate) fn merge_of(sources: impl IntoIterator<Item = VecCursor>) -> MergeCursor {
    MergeCursor::new(sources.into_iter().map(|source| Source::Boxed(Box::new(source))).collect())
}
