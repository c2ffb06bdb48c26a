//! Removes files: now, or, while a reader in another process has a file pinned, once none needs it any more.

use std::{io::ErrorKind, path::Path, sync::atomic::Ordering::Relaxed};

use bifold_contract::{Error, Result, planted};

use super::Dir;
use crate::pins::{PinTotals, PinsAnswer};

impl Dir {
    /// Removes a file, now or, if a reader has pinned it, later. It is no error if it does not exist. A failure is also
    /// counted, since callers that only tidy up ignore it.
    ///
    /// # Errors
    /// The file system's.
    pub fn remove(&self, name: &str) -> Result<()> {
        self.remove_path(&self.file(name))
    }

    pub(super) fn remove_path(&self, path: &Path) -> Result<()> {
        // The parent may still read it.
        if self.is_in_child() {
            return Ok(());
        }
        if let Some(pins) = &self.pins {
            let (keeps, answer) = pins.keeps(path);
            self.heed(&answer);
            if keeps {
                return Ok(());
            }
        }
        self.remove_now(path)
    }

    /// Removes what has waited for readers and is needed by none any more, and says what is left. Nothing where pins
    /// are not asked, and in a forked child.
    pub fn release_pinned(&self) -> PinTotals {
        let Some(pins) = self.pins.as_ref().filter(|_| !self.is_in_child()) else { return PinTotals::default() };
        let (totals, answer) = pins.release();
        self.heed(&answer);
        totals
    }

    fn heed(&self, answer: &PinsAnswer) {
        if let Some(error) = &answer.unknown {
            self.observed.readers_unknown(error);
        }
        for path in &answer.free {
            // What stays takes space only; the next opening removes what the manifest does not name.
            let is_told = !planted!("pinned_files_go_untold");
            let _counted = if is_told { self.remove_now(path) } else { self.fs.remove(path) };
        }
    }

    /// Removes a file that no reader has pinned.
    fn remove_now(&self, path: &Path) -> Result<()> {
        match self.fs.remove(path) {
            Err(Error::Io { source, .. }) if source.kind() == ErrorKind::NotFound => Ok(()),
            Err(error) => {
                self.counters.failed_removals.fetch_add(1, Relaxed);
                Err(error)
            }
            Ok(()) => {
                self.observed.removed(path);
                Ok(())
            }
        }
    }
}
