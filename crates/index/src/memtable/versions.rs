//! The versions of one key, from new to old.

use bifold_contract::Entry;

use super::{
    entry::{Key, VersionRef},
    steps::{KeyStep, Steps},
};

/// The versions of a key that a snapshot sees, from new to old. See [`Memtable::versions`](super::Memtable::versions).
pub struct KeyVersions<'m> {
    next: Option<(Key<'m>, VersionRef<'m>)>,
    steps: &'m Steps,
}

/// One of them.
pub struct KeyVersion<'m> {
    /// The version.
    pub entry: Entry<'m>,
    /// The bytes that it takes in the memtable.
    pub bytes: usize,
    /// What the key has at its number, if it is a step and somebody has left that there.
    pub value: Option<&'m [u8]>,
    /// If it is a step.
    pub step: Option<KeyStep<'m>>,
}

impl<'m> KeyVersions<'m> {
    pub(super) fn new(next: Option<(Key<'m>, VersionRef<'m>)>, steps: &'m Steps) -> Self {
        Self { next, steps }
    }
}

impl<'m> Iterator for KeyVersions<'m> {
    type Item = KeyVersion<'m>;

    fn next(&mut self) -> Option<KeyVersion<'m>> {
        let (key, version) = self.next.take()?;
        self.next = version.older().map(|older| (key, older));
        let slot = version.slot();
        let (value, step) = (slot.and_then(|slot| slot.value()), slot.map(|slot| KeyStep::new(slot, self.steps)));
        Some(KeyVersion { entry: version.entry(key), bytes: version.bytes(), value, step })
    }
}
