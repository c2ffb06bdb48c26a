//! Keyspaces that may lose entries nobody has overwritten, because they expire.
//!
//! ```text
//! first put with an instant ─▶ manifest: Expires, synced ─▶ GC that runs ends ─▶ log, memtable
//! ```
//!
//! A keyspace stays one for good: value files may have values of entries that are no longer in the index, long after
//! the last such entry. From then on GC of a placement that knows by itself what is current asks the index all the
//! same; a run that began before it knew ends before the first such entry is committed (`commit/expiring.rs`). The
//! record also keeps older releases out, which know neither the operations in the log nor the kinds in
//! tables.

use std::sync::atomic::Ordering;

use bifold_contract::{Error, Result};

use super::tree::Tree;

impl Tree {
    /// Whether entries may vanish that nobody has overwritten.
    pub fn may_lose_entries(&self) -> bool {
        self.loses_entries.load(Ordering::Acquire)
    }

    /// Whether keys may have operands above their values. An operator stays.
    pub fn merges(&self) -> bool {
        self.view().settings.options.merge.is_some()
    }

    /// # Errors
    /// [`Error::InvalidArgument`] if nothing may expire.
    pub fn lets_expire(&self) -> Result<()> {
        if !self.merges() {
            return Ok(());
        }
        let reason = format!("keyspace `{}` has a merge operator, and nothing expires there", self.name);
        Err(Error::invalid("time to live", reason))
    }

    /// Whether GC must ask the index although its placement knows by itself what is current.
    pub fn gc_asks_index(&self) -> bool {
        self.may_lose_entries() || self.merges()
    }

    /// They might before this opening: all its GC knows that.
    pub fn has_lost_entries(&self) {
        self.loses_entries();
        self.takes_expiring.store(true, Ordering::Release);
    }

    /// Whether entries that expire can be committed at once.
    pub fn takes_expiring(&self) -> bool {
        self.takes_expiring.load(Ordering::Acquire)
    }

    /// From now on they may. The manifest says so.
    pub fn loses_entries(&self) {
        self.loses_entries.store(true, Ordering::Release);
    }
}
