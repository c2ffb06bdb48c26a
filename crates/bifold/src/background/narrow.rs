//! Cuts parts of a key range until the disk has room for them: see [`narrow`].
//!
//! ```text
//! merge a part ─▶ Full ─▶ from now on parts have at most half as many bytes: larger ones are cut first
//!              └▶ done ─▶ twice as many: what it replaced is deleted
//! ```
//!
//! Only a rewrite that a caller waits for cuts tables. Background work that finds no room is tried again when there
//! is more.

use std::sync::Arc;

use bifold_contract::{CompactionJob, Error, JobShape, Levels, Result, planted};
use bifold_index::compaction::{
    narrow::{self, TableCut},
    parts::Part,
};

use crate::state::tree::Tree;

/// The size limit of a part to merge.
#[derive(Debug)]
pub(crate) struct Narrowing {
    most: u64,
    /// The last cut has not made more tables: cutting goes no further.
    is_at_end: bool,
}

impl Narrowing {
    /// No limit yet.
    pub fn new() -> Self {
        Self { most: u64::MAX, is_at_end: false }
    }

    /// The table to cut before this part is merged.
    pub fn cut(&self, levels: &Levels, part: &Part) -> Option<TableCut> {
        if self.is_at_end { None } else { narrow::next_cut(levels, &part.tables, self.most) }
    }

    /// Notes how the merge of a part has ended. Returns by how many bytes the value files have shrunk; `None` if the
    /// part is to be cut.
    ///
    /// # Errors
    /// The merge's errors, if cutting does not help.
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

    /// Notes that a table was rewritten, and the tree's number of tables before and after.
    pub fn was_cut(&mut self, (before, after): (usize, usize)) {
        self.is_at_end |= after <= before;
    }
}

/// The job that rewrites a table in its place, in smaller pieces.
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
