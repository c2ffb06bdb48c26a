//! Records that a keyspace may lose entries that nobody has overwritten: see [`expires`](crate::state::expires).

use std::sync::Arc;

use bifold_contract::{Edit, KeyspaceEdit, Result};

use super::State;
use crate::{state::tree::Tree, waiting::sync::LockExt};

impl State {
    /// From now on the keyspace may lose entries. Durable when this returns.
    ///
    /// # Errors
    /// I/O errors, and every reason to refuse writes.
    pub fn may_lose_entries(&self, tree: &Arc<Tree>) -> Result<()> {
        self.health.takes_writes()?;
        let mut manifest = self.manifest.hold();
        tree.readable(&self.health)?;
        if tree.may_lose_entries() {
            return Ok(());
        }
        tree.lets_expire()?;
        let edit = &mut Edit { keyspaces: vec![KeyspaceEdit::Expires { id: tree.keyspace }], ..Edit::default() };
        // Before any such entry can be visible: a snapshot that sees one must have a time.
        self.time.is_needed();
        self.record(&mut manifest, edit)?;
        tree.loses_entries();
        Ok(())
    }
}
