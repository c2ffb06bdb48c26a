//! Tells an observer which files are created and removed.

use std::{
    fmt,
    path::Path,
    sync::{Arc, OnceLock},
};

use bifold_contract::Error;

use super::Dir;

/// Learns of files that a directory creates and removes. It is called where that happens, perhaps with locks held: it
/// must return at once.
pub trait FileObserver: Send + Sync {
    /// The file `name` was created.
    fn created(&self, name: &str);

    /// The file `name` was removed.
    fn removed(&self, name: &str);

    /// It cannot be found out who reads the directory, so no file is removed that a reader might need. Called once, and
    /// again only after it was known in between.
    fn readers_unknown(&self, _error: &Error) {}
}

/// The observer, once there is one.
#[derive(Default)]
pub(super) struct Observed(OnceLock<Arc<dyn FileObserver>>);

impl Observed {
    pub fn created(&self, path: &Path) {
        if let Some(observer) = self.0.get() {
            observer.created(&name_of(path));
        }
    }

    pub fn removed(&self, path: &Path) {
        if let Some(observer) = self.0.get() {
            observer.removed(&name_of(path));
        }
    }

    pub fn readers_unknown(&self, error: &Error) {
        if let Some(observer) = self.0.get() {
            observer.readers_unknown(error);
        }
    }
}

fn name_of(path: &Path) -> String {
    path.file_name().unwrap_or_default().to_string_lossy().into_owned()
}

impl Dir {
    /// From now on `observer` learns of files that this directory and its clones create and remove. Only the first one
    /// counts.
    pub fn observe(&self, observer: Arc<dyn FileObserver>) {
        let _only_the_first_counts = self.observed.0.set(observer);
    }
}

impl fmt::Debug for Observed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Observed").field(&self.0.get().is_some()).finish()
    }
}
