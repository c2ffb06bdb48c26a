//! What the log has to do with large values that the change feed needs.

use std::sync::Arc;

use bifold_contract::{FileId, Result, planted};
use bifold_values::parts::large_files::LargeFile;

use super::Wal;
use crate::log::kept_large::KeptLarge;

impl Wal {
    /// Notes, behind the mark of a log, which large values the kept log before it names: `previous`.
    pub(super) fn note_large(&mut self, previous: FileId) -> Result<()> {
        let named = self.kept.large.named_in(previous);
        if named.is_empty() || planted!("unlisted_large_values") {
            return Ok(());
        }
        self.append(0, |encoder| encoder.large_before(named)).map(drop)
    }

    /// The commit that was appended last names the file of a large value, which the change feed needs.
    pub fn retain_large(&self, file: Arc<LargeFile>) {
        if !planted!("unretained_large_values") {
            self.kept.large.note(self.current(), file);
        }
    }

    /// Large values that the change feed needs, to be asked without the commit lock.
    pub fn kept_large(&self) -> KeptLarge {
        self.kept.large.clone()
    }
}
