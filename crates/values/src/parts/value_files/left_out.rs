//! Files in which something cannot be read: they are left out of what collects and rewrites, and stay as they are.
//!
//! What cannot be read can be moved nowhere, so its file cannot come free as long as something leads there. All other files can.
//! This is known until the database is closed: the next session finds out anew.

use std::collections::{BTreeMap, BTreeSet};

use bifold_contract::{Error, FileId};

use super::{ValueFile, ValueFiles};
use crate::{parts::sync::LockExt, placement::Explained};

/// Why a file is not collected that is left out.
pub const UNREADABLE: &str = "something in it cannot be read";

/// The files, each with the first error.
pub(super) type LeftOut = BTreeMap<FileId, Error>;

impl ValueFiles {
    /// Leaves a file out from now on. Answers whether that is new: it is there, and was not left out before.
    pub fn leave_out(&self, id: FileId, why: &Error) -> bool {
        let mut left_out = self.left_out.hold();
        if left_out.contains_key(&id) || self.get(id).is_none() {
            return false;
        }
        left_out.insert(id, why.clone());
        true
    }

    /// Whether a file is left out.
    #[must_use]
    pub fn is_left_out(&self, id: FileId) -> bool {
        self.left_out.hold().contains_key(&id)
    }

    /// The files that are left out. One that is deleted is not.
    #[must_use]
    pub fn left_out_files(&self) -> BTreeSet<FileId> {
        self.there(|id, _| id)
    }

    /// Why files are left out.
    #[must_use]
    pub fn left_out(&self) -> Vec<Error> {
        self.there(|_, why| why.clone())
    }

    /// Bytes of the files in use that are left out.
    #[must_use]
    pub fn left_out_bytes(&self) -> u64 {
        let left_out = self.left_out_files();
        if left_out.is_empty() {
            return 0;
        }
        self.in_use().iter().filter(|file| left_out.contains(&file.id)).map(|file| file.len()).sum()
    }

    /// Bytes of files in use that are dead, as far as known; of those that are left out, none can come free.
    #[must_use]
    pub fn dead_bytes(&self) -> u64 {
        let left_out = self.left_out_files();
        self.in_use().iter().filter(|file| !left_out.contains(&file.id)).map(|file| file.dead()).sum()
    }

    /// The same for who asks why a file is not collected.
    #[must_use]
    pub fn explain_left_out(&self) -> Vec<Explained> {
        let files = self.left_out_files().into_iter().filter_map(|id| self.get(id));
        let explain = |file: std::sync::Arc<ValueFile>| Explained {
            unit: format!("file {}", file.id),
            files: vec![file.id],
            total_bytes: file.len(),
            live_bytes: file.len() - file.dead(),
            age_bytes: 0,
            score: 0.0,
            held: Some(UNREADABLE),
        };
        files.map(explain).collect()
    }

    fn there<T, C: FromIterator<T>>(&self, tell: impl Fn(FileId, &Error) -> T) -> C {
        let left_out = self.left_out.hold();
        left_out.iter().filter(|(id, _)| self.get(**id).is_some()).map(|(&id, why)| tell(id, why)).collect()
    }
}
