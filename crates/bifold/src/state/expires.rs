//! Keyspaces that may lose entries nobody has overwritten, because they expire.
//!
//! ```text
//! first put with an instant ─▶ manifest: Expires, synced ─▶ log, memtable
//! ```
//!
//! A keyspace stays one for good: value files may have values of entries that are no longer in the index, long after
//! the last such entry. From then on GC of a placement that knows by itself what is current asks the index all the
//! same. The record also keeps older releases out, which know neither the operations in the log nor the kinds in
//! tables.

use std::sync::{Arc, atomic::Ordering};

use bifold_contract::{Edit, Error, KeyspaceEdit, Result};

use crate::{
    commit::op::{Act, Op},
    state::{install::State, tree::Tree},
    waiting::sync::LockExt,
};

impl Tree {
    /// Whether entries may vanish that nobody has overwritten.
    pub fn may_lose_entries(&self) -> bool {
        self.loses_entries.load(Ordering::Acquire)
    }

    /// Whether keys may have operands above their values. An operator stays.
    pub fn merges(&self) -> bool {
        self.view().settings.options.merge.is_some()
    }

    /// From now on they may. The manifest says so.
    pub fn loses_entries(&self) {
        self.loses_entries.store(true, Ordering::Release);
    }
}

impl State {
    /// Prepares keyspaces for the entries that these operations let expire. Costs a comparison for each operation, and
    /// a sync of the manifest the first time a keyspace gets such an entry.
    ///
    /// # Errors
    /// I/O errors, and every reason to refuse writes. The operations must not be committed then.
    pub fn note_expiring(&self, ops: &[Op<'_>]) -> Result<()> {
        let is_new = |op: &&Op<'_>| matches!(op.act, Act::PutUntil(..)) && !op.tree.may_lose_entries();
        ops.iter().filter(is_new).try_for_each(|op| self.may_lose_entries(op.tree))
    }

    /// From now on the keyspace may lose entries. Durable when this returns.
    ///
    /// # Errors
    /// As [`State::note_expiring`].
    pub fn may_lose_entries(&self, tree: &Arc<Tree>) -> Result<()> {
        self.health.takes_writes()?;
        let mut manifest = self.manifest.hold();
        tree.readable(&self.health)?;
        if tree.may_lose_entries() {
            return Ok(());
        }
        if tree.merges() {
            let reason = format!("keyspace `{}` has a merge operator, and nothing expires there", tree.name);
            return Err(Error::invalid("time to live", reason));
        }
        let edit = &mut Edit { keyspaces: vec![KeyspaceEdit::Expires { id: tree.keyspace }], ..Edit::default() };
        // Before any such entry can be visible: a snapshot that sees one must have a time.
        self.time.is_needed();
        self.record(&mut manifest, edit)?;
        tree.loses_entries();
        Ok(())
    }
}
