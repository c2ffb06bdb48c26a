//! The versions of all tables of a keyspace, key by key.
//!
//! A table is opened when the merge reaches its first key, and closed behind its last one: of tables that do not
//! overlap, one is open at a time.

use std::{
    cmp::Reverse,
    collections::{BinaryHeap, VecDeque},
};

use bifold_contract::{Result, SeqNo};
use bifold_format::{block::BlockCursor, table::Place};
use bifold_index::table::salvage::{Lost, Met, TableSalvage};
use bifold_io::Dir;

use super::{logs::Version, sources::TableOf};

/// A table that has whole blocks.
#[derive(Clone, Debug)]
pub(super) struct TableStart {
    pub of: TableOf,
    /// The first key of its whole blocks.
    pub first: Box<[u8]>,
    /// What of it is known to be lost.
    pub known: Vec<Place>,
}

/// An entry of a heap: the least key first, and of one key the newest version.
type Next = Reverse<(Vec<u8>, Reverse<SeqNo>, usize)>;

/// A merge of tables.
pub(super) struct Merge<'a> {
    dir: &'a Dir,
    /// Those not opened yet, by their first keys.
    waiting: VecDeque<&'a TableStart>,
    open: Vec<Option<Stream<'a>>>,
    heap: BinaryHeap<Next>,
    lost: Vec<(&'a TableStart, Lost)>,
}

/// An open table, and where it stands.
struct Stream<'a> {
    found: &'a TableStart,
    table: TableSalvage,
    cursor: BlockCursor,
}

impl Stream<'_> {
    /// The next entry, through as many blocks as that takes. What is lost between them goes to `lose`.
    fn advance(&mut self, mut lose: impl FnMut(Lost)) -> Option<(Vec<u8>, SeqNo)> {
        if self.cursor.is_placed() {
            // Blocks were walked before they were handed out.
            self.cursor.next().ok()?;
        }
        while !self.cursor.is_placed() {
            match self.table.step() {
                Met::Block(block) => self.cursor.set_block(block).and_then(|()| self.cursor.first()).ok()?,
                Met::Lost(lost) => lose(lost),
                Met::End => return None,
            }
        }
        self.cursor.entry().map(|entry| (entry.key.to_vec(), entry.seqno))
    }

    fn version(&self) -> Option<Version> {
        let entry = self.cursor.entry()?;
        Some(Version { seqno: entry.seqno, kind: entry.kind, payload: self.cursor.payload()?, is_logged: false })
    }
}

impl<'a> Merge<'a> {
    /// Of `tables`, which are in the order of their first keys.
    pub fn new(dir: &'a Dir, tables: &'a [TableStart]) -> Self {
        let waiting = tables.iter().collect();
        Self { dir, waiting, open: Vec::new(), heap: BinaryHeap::new(), lost: Vec::new() }
    }

    /// The least key, if there is one.
    pub fn key(&mut self) -> Result<Option<&[u8]>> {
        while let Some(&found) = self.waiting.front() {
            if self.heap.peek().is_some_and(|Reverse((key, ..))| **key < *found.first) {
                break;
            }
            let mut table = TableSalvage::open(self.dir, found.of.id)?;
            self.waiting.pop_front();
            self.lost.extend(std::mem::take(&mut table.lost).into_iter().map(|lost| (found, lost)));
            self.open.push(Some(Stream { found, table, cursor: BlockCursor::default() }));
            self.advance(self.open.len() - 1);
        }
        Ok(self.heap.peek().map(|Reverse((key, ..))| &**key))
    }

    /// Takes all versions of `key`, which is the least one: the newest first.
    pub fn take(&mut self, key: &[u8]) -> Vec<Version> {
        let mut versions = Vec::new();
        while let Some(Reverse((next, ..))) = self.heap.peek()
            && **next == *key
        {
            let Some(Reverse((.., at))) = self.heap.pop() else { break };
            versions.extend(self.open[at].as_ref().and_then(Stream::version));
            self.advance(at);
        }
        versions
    }

    /// What was lost on the way here and could be read before: a device may have become worse.
    pub fn take_lost(&mut self) -> Vec<(&'a TableStart, Lost)> {
        let mut lost = std::mem::take(&mut self.lost);
        lost.retain(|(found, lost)| !found.known.contains(&lost.place));
        lost
    }

    fn advance(&mut self, at: usize) {
        let Some(stream) = &mut self.open[at] else { return };
        let found = stream.found;
        match stream.advance(|lost| self.lost.push((found, lost))) {
            Some((key, seqno)) => self.heap.push(Reverse((key, Reverse(seqno), at))),
            None => self.open[at] = None,
        }
    }
}
