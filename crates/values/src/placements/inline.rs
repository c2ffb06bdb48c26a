//! `inline`: values stay beside their keys, in the tables. A plain LSM-tree, the baseline of every comparison.
//!
//! It is also the no-op implementation of the seam: it parts nothing, moves nothing and has nothing to collect.

use bifold_contract::{
    Corruption, Entry, FileId, Placement, Pointer, Profile, Result, Rewriter, SeqNo, ValueEdit,
    placement::{Collected, Collection, Found, IndexView, Kept, RewriteJob, RoutedOp, SpacePressure},
};

/// The placement without value files.
#[derive(Clone, Copy, Debug, Default)]
pub struct Inline;

impl Placement for Inline {
    fn profile(&self) -> Profile {
        Profile { name: "inline", parts_at_write: false, parts_at_rewrite: false }
    }

    fn route(&self, _ops: &mut [RoutedOp<'_>], _durable: bool) -> Result<()> {
        Ok(())
    }

    fn rewriter(&self, _job: &RewriteJob) -> Result<Box<dyn Rewriter>> {
        Ok(Box::new(Unmoved))
    }

    /// No entry of this placement carries a pointer, so one that does was not written by us.
    fn read(&self, _key: &[u8], pointer: Pointer) -> Result<Found> {
        let found = format!("a pointer to value file {}", pointer.file);
        Err(Corruption::new(pointer.offset, "entry", "a value beside its key (placement inline)", found).of("tables"))
    }

    fn prefetch(&self, _pointers: &[Pointer]) {}

    fn pick(&self, _pressure: &SpacePressure) -> Option<Collection> {
        None
    }

    fn collect(&self, _files: &[FileId], _view: &dyn IndexView) -> Result<Collected> {
        Ok(Collected::default())
    }

    fn may_move(&self, _from: u8, _to: u8) -> bool {
        true
    }

    fn installed(&self, _edit: &ValueEdit) {}
}

/// Keeps every entry as it came.
#[derive(Clone, Copy, Debug, Default)]
pub struct Unmoved;

impl Rewriter for Unmoved {
    fn keep(&mut self, _entry: &Entry<'_>) -> Result<Kept> {
        Ok(Kept::Unchanged)
    }

    fn discard(&mut self, _entry: &Entry<'_>, _newer: SeqNo) -> Result<()> {
        Ok(())
    }

    fn finish(self: Box<Self>) -> Result<ValueEdit> {
        Ok(ValueEdit::default())
    }
}
