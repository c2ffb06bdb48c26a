//! Reclaims drained value files: those from which GC has moved everything.
//!
//! They leave the manifest once the moves are durable, and are deleted when their last reader has ended.

use std::sync::Arc;

use bifold_contract::{Result, planted};
use bifold_io::Clock;

use crate::{
    commit::syncs::Syncs,
    install::State,
    limits::{pace::Pace, space::Space},
    state::{snapshot::Snapshots, tree::Tree},
};

/// Reclaims drained value files.
pub(crate) struct Reclaims {
    pub clock: Arc<dyn Clock>,
    pub snapshots: Arc<Snapshots>,
    pub space: Arc<Space>,
    pub pace: Arc<Pace>,
    pub state: Arc<State>,
    pub syncs: Arc<Syncs>,
}

impl Reclaims {
    /// Makes everything durable, and reclaims the drained files whose moves are durable.
    ///
    /// # Errors
    /// I/O errors.
    pub fn reclaim_values(&self, tree: &Tree) -> Result<()> {
        if !self.space.can_reclaim(tree) {
            return Ok(());
        }
        // On a slow disk the sync takes longer than the GC runs before it.
        self.pace.gc_begins(self.clock.now());
        let outcome = self.reclaim_unpaced(tree);
        self.pace.gc_ends(Some(0), self.clock.now());
        outcome
    }

    fn reclaim_unpaced(&self, tree: &Tree) -> Result<()> {
        let durable = if planted!("reclaim_unsynced") {
            self.state.visible()
        } else {
            self.syncs.sync_everything()?;
            self.syncs.durable()
        };
        self.state.install_values(tree, || tree.placement().reclaim(durable, self.snapshots.oldest()), || {})
    }
}
