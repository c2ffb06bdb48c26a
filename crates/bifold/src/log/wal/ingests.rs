//! What the log says of ingests, and of numbers that no operation has.

use std::collections::BTreeSet;

use bifold_contract::{FileId, Result, SeqNo, planted};
use bifold_format::log::{LogEncoder, LoggedIngest};

use super::Wal;

impl Wal {
    /// The next operation gets the number `ingest.next`: those before it belong to this ingest, or to nobody. The log
    /// says so.
    ///
    /// # Errors
    /// [`bifold_contract::Error::ReadOnly`].
    pub fn announce(&mut self, ingest: LoggedIngest) -> Result<()> {
        self.skip(ingest.next, |encoder| encoder.announced(ingest))
    }

    /// The next operation gets the number `next`: those before it belong to nobody. The log says so.
    ///
    /// # Errors
    /// [`bifold_contract::Error::ReadOnly`].
    pub fn skip_to(&mut self, next: SeqNo) -> Result<()> {
        self.skip(next, |encoder| encoder.skipped(next))
    }

    fn skip(&mut self, next: SeqNo, encode: impl FnOnce(&mut LogEncoder<'_>)) -> Result<()> {
        if !planted!("ingest_without_skip") {
            self.append(0, encode)?;
            // It counts as a commit: a log that has nothing else is needed, too.
            self.commits_end = self.written() + self.pending.len() as u64;
        }
        self.next_seqno = next;
        Ok(())
    }

    /// An ingest that was announced has arrived.
    pub fn has_arrived(&mut self, ingest: LoggedIngest, first: SeqNo) {
        self.kept.keep_ingest(ingest, first);
    }

    /// The files of ingests to which no log leads any more, if only logs of `known` are there.
    ///
    /// # Errors
    /// I/O errors.
    pub fn take_leaving(&mut self, known: &BTreeSet<FileId>) -> Result<Vec<FileId>> {
        self.kept.take_leaving(&self.dir, known)
    }
}
