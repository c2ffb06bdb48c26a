//! The interface between index and values: what happens to each entry of a sorted stream that is rewritten.
//!
//! Flush, compaction and the rewrite of a key range are one operation: each entry is **kept** (its value perhaps moved)
//! or **dropped**.

use crate::{Entry, FileId, Pointer, Result, SeqNo, ValueEdit};

/// Describes a rewrite, so that a placement can decide which values move.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RewriteJob {
    /// The level of the newest input; `None` for a flush.
    pub from: Option<u8>,
    /// The level that receives the output.
    pub to: u8,
    /// The deepest level that has tables, or the output level if that is deeper.
    pub deepest: u8,
    /// GC wants the values in these files moved.
    pub moving: Vec<FileId>,
}

/// Hooks of one rewrite, called in stream order by one thread at a time. They see entries without the instants
/// at which they expire.
pub trait Rewriter: Send {
    /// An entry survives. Returns how it is written.
    ///
    /// # Errors
    /// I/O errors while moving its value. The rewrite is then aborted and its outputs are deleted.
    fn keep(&mut self, entry: &Entry<'_>) -> Result<Kept>;

    /// An entry is dropped: the version or tombstone with sequence number `newer` shadows it, and no snapshot needs
    /// it. If `newer` is its own number, nothing shadows it: it has expired. A tombstone with that
    /// number may take its place and is then passed to [`Rewriter::keep`].
    ///
    /// # Errors
    /// As [`Rewriter::keep`].
    fn discard(&mut self, entry: &Entry<'_>, newer: SeqNo) -> Result<()>;

    /// A table ends. Later entries go to another table, which a later rewrite may read without this one.
    ///
    /// # Errors
    /// As [`Rewriter::keep`].
    fn end_table(&mut self) -> Result<()> {
        Ok(())
    }

    /// The stream ends. Makes everything written durable and returns the changes to value files, which go into the
    /// same manifest record as the tables.
    ///
    /// # Errors
    /// As [`Rewriter::keep`].
    fn finish(self: Box<Self>) -> Result<ValueEdit>;
}

/// How a surviving entry is written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Kept {
    /// As it is.
    Unchanged,
    /// With its value at this address. Nothing was written for it.
    Pointer(Pointer),
    /// With its value at this address, where this rewrite wrote it.
    Moved(Pointer),
}
