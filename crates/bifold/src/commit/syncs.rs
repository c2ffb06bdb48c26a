//! Syncs of everything that commits and GC have written: log and values.

use std::sync::Arc;

use bifold_contract::{Result, SeqNo, planted};
use bifold_io::Clock;

use crate::{
    install::State,
    log::{
        trees::Trees,
        wal::{self, Wal},
    },
    state::health::Health,
    waiting::{
        group_sync::{GroupSync, SyncTarget},
        signal::Signal,
        sync::FairLock,
    },
};

/// Makes commits durable, for all threads that wait for that at once.
pub(crate) struct Syncs {
    pub clock: Arc<dyn Clock>,
    pub signal: Arc<Signal>,
    pub health: Arc<Health>,
    pub wal: Arc<FairLock<Wal>>,
    pub trees: Arc<Trees>,
    pub state: Arc<State>,
    pub group: GroupSync,
}

impl Syncs {
    /// All commits up to this one are durable.
    pub fn durable(&self) -> SeqNo {
        self.group.durable()
    }

    /// Makes everything committed so far survive a power loss.
    ///
    /// # Errors
    /// I/O errors, and every reason to refuse writes.
    pub fn sync(&self) -> Result<()> {
        self.health.takes_writes()?;
        let last = self.wal.hold().next_seqno() - 1;
        self.sync_upto(last)
    }

    /// Returns when everything up to `seqno` survives a power loss.
    ///
    /// # Errors
    /// I/O errors.
    pub fn sync_upto(&self, seqno: SeqNo) -> Result<()> {
        self.sync_as_far_as(SyncTarget::Commit(seqno))
    }

    /// Returns when everything in logs and value files survives a power loss.
    ///
    /// # Errors
    /// I/O errors.
    pub fn sync_everything(&self) -> Result<()> {
        self.sync_as_far_as(SyncTarget::Everything)
    }

    /// Calls `act` while no sync runs. It may sync with the commit lock held ([`Syncs::sync_held`]), and returns up to
    /// which commit everything is durable then. Lock order: manifest, this, commit lock.
    ///
    /// # Errors
    /// Those of `act`, and every reason not to sync.
    pub fn in_place_of_a_sync(&self, act: impl FnOnce() -> Result<SeqNo>) -> Result<()> {
        let since = self.clock.now();
        self.group.sync(SyncTarget::Everything, (&self.signal, since), || self.health.writable(), act)
    }

    /// Makes everything in logs and value files survive a power loss, while the caller holds the commit lock and no
    /// other sync runs.
    ///
    /// # Errors
    /// I/O errors.
    pub fn sync_held(&self, wal: &mut Wal) -> Result<SeqNo> {
        wal::sync_held(wal, |wal| self.state.values_to_sync(wal), &self.health)
    }

    fn sync_as_far_as(&self, upto: SyncTarget) -> Result<()> {
        let early = planted!("sync_list_before_wait").then(|| self.trees.all().to_vec());
        let values = |wal: &Wal| match &early {
            Some(early) => self.state.values_to_sync_of(early, wal),
            None => self.state.values_to_sync(wal),
        };
        let sync = || self.health.guard("a sync", || wal::sync_now(&self.wal, values, &self.health));
        let since = self.clock.now();
        self.health.watch(self.group.sync(upto, (&self.signal, since), || self.health.writable(), sync))
    }
}
