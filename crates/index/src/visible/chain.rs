//! The versions of a key below the one that the front has moved to: for operands, which are combined with them.

use bifold_contract::{Kind, Result, SeqNo, Value, planted};

use super::{At, Front, Outcome, Visible};
use crate::cursor::Cursor;

/// Called with kind, number and payload of a version. Returns whether it wants an older one.
type See<'a> = dyn FnMut(Kind, SeqNo, Value) -> bool + 'a;

impl Visible {
    /// Shows the entry that the front has moved to and older versions of its key to `see`, at most `most`, as long as
    /// it wants more and no range tombstone covers them. Returns whether it has seen what it wanted. In any case the
    /// front has passed the key.
    ///
    /// # Errors
    /// As [`Visible::next_front`].
    pub fn pass_versions(&mut self, most: usize, see: &mut See<'_>) -> Result<bool> {
        let Some(front) = self.front.as_mut().filter(|front| front.at == At::Entry) else { return Ok(false) };
        let covered_by = self.tombstones.covering_near(&mut front.hint, &front.key, self.snapshot);
        let covered_by = if planted!("chain_forgets_deletes") { 0 } else { covered_by };
        let passed = front.pass_versions(covered_by, most, see);
        if let Err(error) = &passed {
            self.outcome = Outcome::Failed(error.clone());
        }
        passed
    }
}

impl Front {
    fn pass_versions(&mut self, covered_by: SeqNo, most: usize, see: &mut See<'_>) -> Result<bool> {
        self.at = At::Passed;
        for _ in 0..most {
            let entry = self.cursor.entry().filter(|entry| entry.key == self.key && entry.seqno >= covered_by);
            let Some((kind, seqno)) = entry.map(|entry| (entry.kind, entry.seqno)) else {
                return self.leave_key().map(|()| true);
            };
            if !see(kind, seqno, self.cursor.payload()) {
                return self.leave_key().map(|()| true);
            }
            self.cursor.next()?;
        }
        self.leave_key().map(|()| planted!("chain_is_cut_off"))
    }
}
