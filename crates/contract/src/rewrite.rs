//! The seam between index and values: what becomes of each entry of a sorted stream that is rewritten.
//!
//! Flush, compaction and the rewrite of a key range are one act: each entry is **kept** (its value perhaps moved) or
//! **dropped**.

use crate::{Entry, FileId, KeyspaceId, Pointer, Result, SeqNo, Value, ValueEdit};

/// What a rewrite is for: enough for a placement to decide what moves.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RewriteJob {
    /// The keyspace.
    pub keyspace: KeyspaceId,
    /// The level of the newest input; `None` when a memtable is flushed.
    pub from: Option<u8>,
    /// The level that receives the output.
    pub to: u8,
    /// The output is the oldest data of its range.
    pub bottom: bool,
    /// The deepest level that has tables, or the one of the output if that is deeper.
    pub deepest: u8,
    /// Values in these files are to move, since a collection has asked for that.
    pub moving: Vec<FileId>,
}

/// Hooks of one rewrite, called in stream order from one thread.
pub trait Rewriter: Send {
    /// An entry survives. The answer says how it is written.
    ///
    /// # Errors
    /// I/O errors of moving its value; the rewrite is then given up and its outputs are deleted.
    fn keep(&mut self, entry: &Entry<'_>) -> Result<Kept>;

    /// An entry is dropped because `newer` (or a tombstone with that number) hides it and no snapshot needs it.
    ///
    /// # Errors
    /// As [`Rewriter::keep`].
    fn discard(&mut self, entry: &Entry<'_>, newer: SeqNo) -> Result<()>;

    /// A table ends: what follows goes into another one, which later rewrites may take without this one.
    ///
    /// # Errors
    /// As [`Rewriter::keep`].
    fn end_table(&mut self) -> Result<()> {
        Ok(())
    }

    /// The stream is at its end: whatever was written is made durable, and the changes of value files are returned.
    /// They go into the same manifest record as the tables.
    ///
    /// # Errors
    /// As [`Rewriter::keep`].
    fn finish(self: Box<Self>) -> Result<ValueEdit>;
}

/// How a surviving entry is written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Kept {
    /// As it came.
    Unchanged,
    /// With its value at this address, where nothing was written for it.
    Pointer(Pointer),
    /// With its value at this address, where it was written now.
    Moved(Pointer),
    /// With its value beside the key.
    Inline(Value),
}
