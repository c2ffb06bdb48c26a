//! Which keyspaces have something for the next sync to cover. A sync asks no others: if one of 2 000 keyspaces is
//! written, a sync is as cheap as with one.

use std::{
    collections::BTreeSet,
    sync::{
        Mutex,
        atomic::{AtomicBool, Ordering::AcqRel, Ordering::Release},
    },
};

use bifold_contract::KeyspaceId;

use super::sync::LockExt;

/// The keyspaces of a database that the next sync must ask.
#[derive(Debug, Default)]
pub struct Unsynced {
    keyspaces: Mutex<BTreeSet<KeyspaceId>>,
}

impl Unsynced {
    /// Takes them all, ascending. Each must be asked then: it is added again when something new needs a sync.
    #[must_use]
    pub fn take(&self) -> BTreeSet<KeyspaceId> {
        std::mem::take(&mut *self.keyspaces.hold())
    }
}

/// Whether one keyspace is among them.
#[derive(Debug, Default)]
pub struct Recorded(AtomicBool);

impl Recorded {
    /// Adds the keyspace, after noting what the next sync must cover.
    pub fn note(&self, keyspace: KeyspaceId, all: &Unsynced) {
        if !self.0.swap(true, AcqRel) {
            all.keyspaces.hold().insert(keyspace);
        }
    }

    /// The keyspace is being asked. Called before it reads what was noted: what comes later is for the sync after
    /// this one.
    pub fn asked(&self) {
        self.0.store(false, Release);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_keyspace_is_asked_once_for_all_that_was_noted_before_and_again_for_what_comes_later() {
        let all = Unsynced::default();
        let (three, five) = (Recorded::default(), Recorded::default());
        [&five, &three, &five]
            .into_iter()
            .zip([5, 3, 5])
            .for_each(|(recorded, keyspace)| recorded.note(keyspace, &all));
        assert_eq!(Vec::from_iter(all.take()), [3, 5]);
        three.asked();
        three.note(3, &all);
        five.asked();
        assert_eq!(Vec::from_iter(all.take()), [3]);
        assert!(Vec::from_iter(all.take()).is_empty());
    }
}
