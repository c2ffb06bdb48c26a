//! What a rewrite does with the entries of large values: it keeps them as they are, and the files of those that it
//! drops are deleted. No placement sees them.

use std::sync::Arc;

use bifold_contract::{
    Entry, Kept, Kind, LargeEdit, LargeFileMeta, Result, Rewriter, SeqNo, ValueEdit, planted, rewrite::RewriteJob,
};
use bifold_format::large::{self, LargeLayout};

use super::LargeFiles;

/// The hooks of a placement, of which entries of large values are kept away.
pub struct LargeRewriter {
    files: Arc<LargeFiles>,
    rewriter: Box<dyn Rewriter>,
    /// Entries come from a memtable: no manifest names their files yet.
    is_flush: bool,
    edit: LargeEdit,
}

impl LargeRewriter {
    /// The hooks of `rewriter`, if there may be entries of large values.
    pub fn around(files: &Arc<LargeFiles>, job: &RewriteJob, rewriter: Box<dyn Rewriter>) -> Box<dyn Rewriter> {
        if !files.has_been_any() {
            return rewriter;
        }
        let (files, is_flush) = (Arc::clone(files), job.from.is_none());
        Box::new(Self { files, rewriter, is_flush, edit: LargeEdit::default() })
    }

    /// What the manifest records of the file of an entry.
    fn file_of(&self, entry: &Entry<'_>) -> Result<LargeFileMeta> {
        let keyspace = self.files.home.keyspace;
        let named = large::decode(entry.payload).map_err(|damage| damage.of(format!("keyspace {keyspace}")))?;
        Ok(LargeFileMeta { keyspace, named, bytes: LargeLayout::of(entry.key.len(), named.len).file_bytes() })
    }
}

impl Rewriter for LargeRewriter {
    fn keep(&mut self, entry: &Entry<'_>) -> Result<Kept> {
        if entry.kind != Kind::Large {
            return self.rewriter.keep(entry);
        }
        let file = self.file_of(entry)?;
        if self.is_flush && !planted!("large_flush_forgets") {
            self.edit.added.push(file);
        }
        Ok(Kept::Unchanged)
    }

    fn discard(&mut self, entry: &Entry<'_>, newer: SeqNo) -> Result<()> {
        if entry.kind != Kind::Large {
            return self.rewriter.discard(entry, newer);
        }
        let id = self.file_of(entry)?.named.file;
        match self.is_flush {
            true if planted!("large_flush_leaves_dropped") => {}
            true => self.edit.unneeded.push(id),
            false if planted!("large_merge_leaves_file") => {}
            false => self.edit.removed.push(id),
        }
        Ok(())
    }

    fn end_table(&mut self) -> Result<()> {
        self.rewriter.end_table()
    }

    fn finish(self: Box<Self>) -> Result<ValueEdit> {
        let mut edit = self.rewriter.finish()?;
        edit.large.extend(self.edit);
        Ok(edit)
    }
}
