//! The pin of one reader, for all states that it still has.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex},
};

use bifold_contract::{FileId, Result, planted};
use bifold_io::{
    Dir,
    fs::FileLock,
    pins::{Need, Pin, Position},
};

use crate::waiting::sync::LockExt;

/// A pin of everything that any state of a reader needs.
#[derive(Debug)]
pub(super) struct ReaderPin {
    pin: Pin,
    needs: Mutex<StatesNeed>,
}

#[derive(Debug, Default)]
struct StatesNeed {
    /// How far each state has read the manifest.
    states: BTreeMap<u64, Position>,
    next_state: u64,
    below: FileId,
    /// A new state is being read: it may need anything.
    is_reading: bool,
}

impl StatesNeed {
    fn held(&self) -> Need {
        let below = if self.is_reading { FileId::MAX } else { self.below };
        Need { since: self.states.values().min().copied().unwrap_or_default(), below }
    }
}

impl ReaderPin {
    /// Pins everything.
    ///
    /// # Errors
    /// The file system's.
    pub fn take(dir: &Dir) -> Result<Arc<Self>> {
        let pin = Pin::take(dir)?;
        if planted!("pin_after_reading") {
            pin.hold(Need { since: Position::LAST, below: 0 })?;
        }
        Ok(Arc::new(Self { pin, needs: Mutex::default() }))
    }

    /// Pins everything while a new state is read.
    ///
    /// # Errors
    /// The file system's.
    pub fn hold_everything(&self) -> Result<()> {
        let mut needs = self.needs.hold();
        needs.is_reading = true;
        self.pin.hold(needs.held())
    }

    /// Nothing came of it.
    pub fn end_reading(&self) {
        let mut needs = self.needs.hold();
        needs.is_reading = false;
        if !needs.states.is_empty() {
            let _more_stays_pinned = self.pin.hold(needs.held());
        }
    }

    /// The new state has read the manifest up to `position`, and no file has a number from `below` on. Pins what it
    /// and earlier ones need, until the result is dropped.
    ///
    /// # Errors
    /// The file system's.
    pub fn begin(self: &Arc<Self>, position: Position, below: FileId) -> Result<PinnedState> {
        let mut needs = self.needs.hold();
        let number = needs.next_state;
        needs.next_state += 1;
        needs.states.insert(number, position);
        (needs.below, needs.is_reading) = (below, false);
        let state = PinnedState { pinned: Arc::clone(self), number };
        let held = self.pin.hold(needs.held());
        drop(needs);
        held.map(|()| state)
    }
}

/// Keeps the files of one state.
#[derive(Debug)]
pub(super) struct PinnedState {
    pinned: Arc<ReaderPin>,
    number: u64,
}

impl FileLock for PinnedState {}

impl Drop for PinnedState {
    fn drop(&mut self) {
        let mut needs = self.pinned.needs.hold();
        needs.states.remove(&self.number);
        if !needs.states.is_empty() {
            // Otherwise more stays pinned until the next state is read.
            let _more_stays_pinned = self.pinned.pin.hold(needs.held());
        }
    }
}
