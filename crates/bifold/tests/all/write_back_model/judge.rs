//! What must be true of a store that opens after a power loss, and of one that goes on.

use shuttle::{
    rand::{Rng, thread_rng},
    sync::Mutex,
};

use super::{
    Mistake,
    disk::{Disk, GROUPS},
    store::{Group, Store},
};
use crate::modeled::{self, Model, Promises, hold};

pub(super) type Picture = modeled::Picture<Disk, Mistake>;

impl Picture {
    /// The store that opens after a power loss.
    fn recover(mut self) -> Store {
        self.disk.lose_power();
        self.disk.recover(self.mistake);
        let end = self.disk.log.iter().map(|entry| entry.seqno).max().unwrap_or(0);
        assert!(end >= self.promised, "{} was durable, and the log ends at {end}", self.promised);
        assert!(self.disk.deleted.values().all(|&as_of| as_of <= end), "moves out of a deleted file are lost");
        let files = |group| {
            let of_it = self.disk.files.iter().filter(|(_, file)| file.group == group);
            Mutex::new(Group { files: of_it.map(|(&id, _)| id).collect(), is_open: false })
        };
        Store {
            mistake: self.mistake,
            commits: Mutex::new(end),
            groups: std::array::from_fn(files),
            index: Mutex::new(self.disk.log.clone()),
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
        for _ in 0..2 {
            store.act_at_random();
        }
        store.gc(thread_rng().gen_range(0..GROUPS));
        Self::of(&store.promises, &store.disk, store.mistake).judge(power_losses - 1);
        live_on(&store);
    }
}

/// Runs GC of everything: values stay right, and drained files are deleted.
pub(super) fn live_on(store: &Store) {
    (0..GROUPS).for_each(|group| store.gc(group));
    store.check();
    store.sync();
    store.reclaim();
    assert!(hold(&store.drained).is_empty(), "nothing holds a drained file any more");
    store.check();
}
