//! Parts of a key range for which the disk has no room are cut until they fit: see [`narrow`].
//!
//! ```text
//! merge a part ─▶ Full ─▶ tables of half as many bytes at most are merged from now on: larger parts are cut first
//!              └▶ done ─▶ of twice as many: what it has replaced is gone
//! ```
//!
//! Only who waits for a rewrite has tables cut. Background work that finds no room is tried again when there is more.

use std::sync::Arc;

use bifold_contract::{CompactionJob, Error, JobShape, Levels, Result, planted};
use bifold_index::compaction::{
    narrow::{self, TableCut},
    parts::Part,
};

use crate::tree::Tree;

/// How large a part may be that is merged.
#[derive(Debug)]
pub(crate) struct Narrowing {
    most: u64,
    /// A cut has made no more tables of one: this goes no further.
    is_at_end: bool,
}

impl Narrowing {
    /// Nothing is cut yet.
    pub fn new() -> Self {
        Self { most: u64::MAX, is_at_end: false }
    }

    /// The table to cut before this part is merged.
    pub fn cut(&self, levels: &Levels, part: &Part) -> Option<TableCut> {
        if self.is_at_end { None } else { narrow::next_cut(levels, &part.tables, self.most) }
    }

    /// Takes note of how the merge of a part has ended. Answers by how many bytes the value files have become smaller; `None` where the
    /// part is to be cut.
    ///
    /// # Errors
    /// Those of the merge, where cutting does not help.
    pub fn merged(&mut self, tree: &Arc<Tree>, job: &CompactionJob, outcome: Result<u64>) -> Result<Option<u64>> {
        let full = match outcome {
            Err(full @ Error::Full { .. }) if !planted!("merge_parts_whole") => full,
            other => {
                self.most = self.most.saturating_mul(2);
                return other.map(Some);
            }
        };
        let view = tree.view();
        let levels = &tree.shape(&view).levels;
        let of_job = |id| job.inputs.iter().any(|input| input.2 == id);
        let bytes: u64 = levels.tables().filter(|(.., table)| of_job(table.id)).map(|(.., table)| table.bytes).sum();
        self.most = self.most.min(bytes) / 2;
        let may_cut = !self.is_at_end && narrow::next_cut(levels, &job.inputs, self.most).is_some();
        if may_cut { Ok(None) } else { Err(full) }
    }

    /// Takes note that a table was written anew, of so many of the tree; now it has others.
    pub fn was_cut(&mut self, (before, after): (usize, usize)) {
        self.is_at_end |= after <= before;
    }
}

/// The job that writes a table anew in its place.
pub(crate) fn cut_job(cut: &TableCut) -> CompactionJob {
    CompactionJob {
        shape: JobShape::Merge,
        inputs: vec![cut.table],
        output_level: cut.table.0,
        output_run: Some(cut.table.1),
        keys: None,
        table_bytes: cut.piece_bytes,
        max_overlap_bytes: u64::MAX,
        reason: "the disk has no room for its part".into(),
    }
}
