//! The versions of all tables of a keyspace, key by key.
//!
//! A table is opened when the merge reaches its first key, and closed behind its last one: of tables that do not
//! overlap, one is open at a time.

use std::{
    cmp::Reverse,
    collections::{BinaryHeap, VecDeque},
};

use bifold_contract::{FileId, Result, SeqNo};
use bifold_format::block::BlockCursor;
use bifold_index::table::salvage::{Met, TableSalvage};
use bifold_io::Dir;

use super::logs::Version;

/// A table and the first key of its whole blocks.
#[derive(Clone, Debug)]
pub(super) struct TableStart {
    pub table: FileId,
    pub first: Box<[u8]>,
}

/// An entry of a heap: the least key first, and of one key the newest version.
type Next = Reverse<(Vec<u8>, Reverse<SeqNo>, usize)>;

/// A merge of tables.
pub(super) struct Merge<'a> {
    dir: &'a Dir,
    /// Those not opened yet, by their first keys.
    waiting: VecDeque<&'a TableStart>,
    open: Vec<Option<Stream>>,
    heap: BinaryHeap<Next>,
}

/// An open table, and where it stands.
struct Stream {
    table: TableSalvage,
    cursor: BlockCursor,
}

impl Stream {
    /// The next entry, through as many blocks as that takes.
    fn advance(&mut self) -> Option<(Vec<u8>, SeqNo)> {
        if self.cursor.is_placed() {
            // Blocks were walked before they were handed out.
            self.cursor.next().ok()?;
        }
        while !self.cursor.is_placed() {
            match self.table.step() {
                Met::Block(block) => self.cursor.set_block(block).and_then(|()| self.cursor.first()).ok()?,
                Met::Lost(_) => {}
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
        Self { dir, waiting: tables.iter().collect(), open: Vec::new(), heap: BinaryHeap::new() }
    }

    /// The least key, if there is one.
    pub fn key(&mut self) -> Result<Option<&[u8]>> {
        while let Some(found) = self.waiting.front() {
            if self.heap.peek().is_some_and(|Reverse((key, ..))| **key < *found.first) {
                break;
            }
            let table = TableSalvage::open(self.dir, found.table)?;
            self.waiting.pop_front();
            self.open.push(Some(Stream { table, cursor: BlockCursor::default() }));
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

    fn advance(&mut self, at: usize) {
        let Some(stream) = &mut self.open[at] else { return };
        match stream.advance() {
            Some((key, seqno)) => self.heap.push(Reverse((key, Reverse(seqno), at))),
            None => self.open[at] = None,
        }
    }
}
