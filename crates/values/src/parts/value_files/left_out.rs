//! Files in which something cannot be read: GC and rewrites leave them out, and they stay as they are.
//!
//! What cannot be read cannot be moved, so its file cannot be freed while something points there. All other files
//! can. This is known until the database is closed: the next session finds out again.

use std::collections::{BTreeMap, BTreeSet};

use bifold_contract::{Error, FileId};

use super::{FORWARDS, ValueFile, ValueFiles};
use crate::{parts::sync::LockExt, placement::Explained};

/// Why GC does not pick a file that is left out.
pub const UNREADABLE: &str = "something in it, or about it, cannot be read";

/// The files, each with the first error.
pub(super) type LeftOut = BTreeMap<FileId, Error>;

impl ValueFiles {
    /// Leaves a file out from now on. Returns whether that is new: the file exists and was not left out before.
    pub(crate) fn leave_out(&self, id: FileId, why: &Error) -> bool {
        let mut left_out = self.left_out.hold();
        if left_out.contains_key(&id) || self.get(id).is_none() {
            return false;
        }
        left_out.insert(id, why.clone());
        true
    }

    /// GC of a file has failed. If something could not be read, the file is left out: it, or what leads to its values,
    /// is damaged. Returns whether it is left out.
    pub fn leave_out_source(&self, id: FileId, why: &Error) -> bool {
        why.is_unreadable() && (self.leave_out(id, why) || self.is_left_out(id))
    }

    /// Whether a file is left out.
    #[must_use]
    pub fn is_left_out(&self, id: FileId) -> bool {
        self.left_out.hold().contains_key(&id)
    }

    /// The files that are left out, without deleted ones.
    #[must_use]
    pub fn left_out_files(&self) -> BTreeSet<FileId> {
        self.existing(|id, _| id)
    }

    /// Why files are left out: each reason once, however many files have it.
    #[must_use]
    pub(crate) fn left_out(&self) -> Vec<Error> {
        let (mut errors, mut known): (Vec<Error>, _) = (self.existing(|_, why| why.clone()), BTreeSet::new());
        errors.retain(|why| known.insert(why.to_string()));
        errors
    }

    /// Why an address may lead nowhere: what says where its value has moved cannot be read.
    #[must_use]
    pub(crate) fn why_lost(&self) -> Option<Error> {
        let left_out = self.left_out.hold();
        let has_rows = |id: &FileId| self.get(*id).is_some_and(|file| file.description.class == FORWARDS);
        left_out.iter().find(|(id, _)| has_rows(id)).map(|(_, why)| why.clone())
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

    /// Dead bytes of files in use, as far as known, without files that are left out: those cannot be freed.
    #[must_use]
    pub fn dead_bytes(&self) -> u64 {
        let left_out = self.left_out_files();
        self.in_use().iter().filter(|file| !left_out.contains(&file.id)).map(|file| file.dead()).sum()
    }

    /// Explanations of the files that are left out.
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

    fn existing<T, C: FromIterator<T>>(&self, report: impl Fn(FileId, &Error) -> T) -> C {
        let left_out = self.left_out.hold();
        left_out.iter().filter(|(id, _)| self.get(**id).is_some()).map(|(&id, why)| report(id, why)).collect()
    }
}
