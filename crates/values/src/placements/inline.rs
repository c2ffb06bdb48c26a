//! `inline`: values stay with their keys, in the tables. A plain LSM-tree, the baseline of every comparison.
//!
//! It is also the no-op implementation of the interface: it separates nothing, moves nothing and has no garbage.

use crate::{
    parts::value_files::ValueFiles,
    placement::{Explained, GcClaim, GcJob, Kept, Placement, Profile, RewriteJob, SpacePressure, ValueSpace, WriteOp},
};
use bifold_contract::{Corruption, Entry, IoSource, Pointer, Result, Rewriter, SeqNo, Value, ValueEdit};

/// The placement without value files.
#[derive(Clone, Copy, Debug, Default)]
pub struct Inline;

impl Placement for Inline {
    fn profile(&self) -> Profile {
        Profile {
            name: "inline",
            separates_from: None,
            hears_of_short_values: false,
            separates_at_rewrite: false,
            learns_from_rewrites: None,
            finds_overwritten: false,
            reads_by_address: true,
            copies_percent: Profile::COPIES_PERCENT,
        }
    }

    fn write(&self, _op: WriteOp<'_>, _seqno: SeqNo) -> Result<Option<Pointer>> {
        Ok(None)
    }

    fn rewriter(&self, _job: &RewriteJob) -> Result<Box<dyn Rewriter>> {
        Ok(Box::new(Unmoved))
    }

    /// No entry of this placement carries a pointer, so an entry that does was not written by us.
    fn read(
        &self,
        _files: &ValueFiles,
        _version: (&[u8], SeqNo),
        pointer: Pointer,
        _source: IoSource,
    ) -> Result<Option<Value>> {
        let found = format!("a pointer to value file {}", pointer.file);
        Err(Corruption::new(pointer.offset, "entry", "an inline value (placement inline)", found).of("tables"))
    }

    fn pick(&self, _pressure: &SpacePressure, _running: &[GcClaim]) -> Option<Box<dyn GcJob>> {
        None
    }

    fn space(&self) -> ValueSpace {
        ValueSpace::default()
    }

    fn explain(&self, _pressure: &SpacePressure) -> Vec<Explained> {
        Vec::new()
    }
}

/// Keeps every entry unchanged.
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
