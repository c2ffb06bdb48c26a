//! The first put of an entry that expires waits for GC of its keyspace.
//!
//! A GC run decides at its beginning whether it must ask the index, because entries may vanish that nobody has
//! overwritten ([`state::expires`](crate::state::expires)). One that has begun without asking goes on so: it may bring
//! back what has vanished since, or take the wrong one of two copies for the current one. So nothing that expires is
//! committed while such a run is under way.

use std::sync::{Arc, atomic::Ordering};

use bifold_contract::{Result, planted};

use crate::{
    commit::write::Committer,
    state::{
        op::{Act, Op},
        tree::Tree,
    },
};

impl Committer {
    /// Prepares keyspaces for the entries that these operations let expire. Costs a comparison for each operation. The
    /// first time a keyspace gets such an entry it costs a sync of the manifest, and waits for GC.
    ///
    /// # Errors
    /// I/O errors, and every reason to refuse writes. The operations must not be committed then.
    pub fn prepare_expiring(&self, ops: &[Op<'_>]) -> Result<()> {
        let is_new = |op: &&Op<'_>| matches!(op.act, Act::PutUntil(..)) && !op.tree.takes_expiring();
        ops.iter().filter(is_new).try_for_each(|op| self.let_expire(op.tree))
    }

    /// From now on entries of the keyspace may expire.
    ///
    /// # Errors
    /// As [`Committer::prepare_expiring`].
    pub fn let_expire(&self, tree: &Arc<Tree>) -> Result<()> {
        self.state.may_lose_entries(tree)?;
        // Runs that begin from here on ask the index.
        let (who, on) = ("the first put of an entry that expires", "GC that has begun before to end");
        let (work, keyspace) = (&self.state.work, tree.keyspace);
        work.reserve_gc(keyspace);
        let has_ended = || !work.runs_gc(keyspace) || planted!("expires_while_gc_runs");
        let ended = self.throttle.waits.wait_until(who, on, has_ended);
        work.release_gc(keyspace);
        ended?;
        tree.takes_expiring.store(true, Ordering::Release);
        Ok(())
    }
}
