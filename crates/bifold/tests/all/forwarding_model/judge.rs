//! What must be true of a store that opens after a power loss, and of one that goes on.

use std::collections::BTreeMap;

use shuttle::sync::Mutex;

use super::{Mistake, disk::Disk, store::Store};
use crate::modeled::{self, FileId, Model, Promises, hold};

pub(super) type Picture = modeled::Picture<Disk, Mistake>;

impl Picture {
    /// The store that opens after a power loss.
    fn recover(mut self) -> Store {
        self.disk.lose_power();
        self.disk.recover(self.mistake);
        let end = self.disk.index().iter().map(|entry| entry.seqno).max().unwrap_or(0);
        let end = end.max(self.disk.log.iter().map(|entry| entry.seqno).max().unwrap_or(0));
        assert!(end >= self.promised, "{} was durable, and the log ends at {end}", self.promised);
        Store {
            mistake: self.mistake,
            commits: Mutex::new(end),
            promises: Promises::kept_up_to(end, self.history),
            disk: Mutex::new(self.disk),
            ..Store::default()
        }
    }

    /// Checks what opens, also under writes, GC and more power losses.
    pub(super) fn judge(self, power_losses: u32) {
        let store = self.recover();
        store.check();
        if power_losses == 0 {
            return live_on(&store);
        }
        store.write_at_random();
        store.gc();
        store.flush();
        store.gc();
        store.reclaim();
        store.check();
        store.picture().judge(power_losses - 1);
        live_on(&store);
    }
}

/// Merges everything: values stay right, no row is left, and each file counts as dead what no entry leads to.
pub(super) fn live_on(store: &Store) {
    store.gc();
    let moved_before = hold(&store.disk).memory.moved_before.clone();
    let is_left = |id: &FileId| {
        let disk = hold(&store.disk);
        disk.files.contains_key(id) && !disk.memory.drained.contains_key(id)
    };
    moved_before.into_iter().filter(is_left).for_each(|id| store.collect(id, 0));
    store.check();
    store.flush();
    // Some merges are abandoned.
    (0..20).for_each(|_| store.merge());
    store.reclaim();
    store.check();
    let disk = hold(&store.disk);
    assert!(disk.memory.drained.is_empty(), "nothing holds a drained file any more");
    assert!(disk.units.is_empty(), "every address was written anew: {:?}", *disk);
    let mut led_to: BTreeMap<FileId, usize> = BTreeMap::new();
    for at in disk.last_run.iter().filter_map(|entry| entry.what) {
        *led_to.entry(at.file).or_default() += 1;
    }
    for (id, file) in &disk.files {
        let live = led_to.remove(id).unwrap_or(0);
        assert_eq!(file.records.len() - file.dead, live, "live records of file {id}: {:?}", *disk);
    }
    assert!(led_to.is_empty(), "addresses lead to files that are not there: {led_to:?}");
}
