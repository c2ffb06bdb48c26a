//! Files that commits append to, and their creation in advance.
//!
//! ```text
//! commit ─▶ its file is full ─▶ is one of that group prepared? ─┬─ yes ─▶ readers and the next edit learn of it
//!                                                               └─ no ──▶ it is created first
//! ```
//!
//! Creating a file may take long: a directory has one change at a time, and a file system may wait for the device. So
//! GC does it where it can. Nobody knows of a prepared file: closing the database deletes it, and after a crash
//! recovery does, as it does with all files that nothing leads to.

use std::{
    collections::{BTreeMap, btree_map::Entry},
    sync::{Arc, Mutex},
};

use bifold_contract::{FileId, IoSource, Result};

use super::{APPENDED, ValueFile, ValueFiles, names};
use crate::parts::sync::LockExt;

/// Files that commits may append to soon, by their groups.
#[derive(Debug)]
pub(super) struct PreparedFiles {
    files: Mutex<BTreeMap<u64, Arc<ValueFile>>>,
    /// A forked child does not delete what its parent goes on with.
    process: u32,
}

impl Default for PreparedFiles {
    fn default() -> Self {
        Self { files: Mutex::default(), process: std::process::id() }
    }
}

impl PreparedFiles {
    /// Takes all of them.
    pub fn take_all(&self) -> BTreeMap<u64, Arc<ValueFile>> {
        std::mem::take(&mut *self.files.hold())
    }
}

impl ValueFiles {
    /// Begins a file that commits append to. Readers may look there, and the next edit records it.
    ///
    /// # Errors
    /// I/O errors.
    pub fn begin(&self, group: u64) -> Result<Arc<ValueFile>> {
        let prepared = self.prepared.files.hold().remove(&group);
        let file = match prepared {
            Some(file) => file,
            None => self.create(APPENDED, group, IoSource::Value)?.0,
        };
        self.insert(std::slice::from_ref(&file));
        self.unrecorded.hold().push(Arc::clone(&file));
        self.mark_named();
        Ok(file)
    }

    /// Creates the file that this group begins next, unless there is one.
    ///
    /// # Errors
    /// I/O errors.
    pub fn prepare(&self, group: u64) -> Result<()> {
        if self.prepared.files.hold().contains_key(&group) {
            return Ok(());
        }
        let (file, _writer) = self.create(APPENDED, group, IoSource::Value)?;
        let surplus = match self.prepared.files.hold().entry(group) {
            Entry::Vacant(place) => {
                place.insert(file);
                None
            }
            // Somebody else was faster.
            Entry::Occupied(_) => Some(file.id),
        };
        self.delete_prepared(surplus);
        Ok(())
    }

    /// Deletes the files that no group has begun. No commit and no GC run comes after this.
    pub fn forget_prepared(&self) {
        self.delete_prepared(self.prepared.take_all().into_values().map(|file| file.id));
    }

    fn delete_prepared(&self, files: impl IntoIterator<Item = FileId>) {
        if self.prepared.process == std::process::id() {
            // Recovery deletes what stays.
            files.into_iter().for_each(|file| drop(self.context.dir.remove(&names::value(file))));
        }
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use bifold_io::{fs::FileSystem, memory::MemoryFs};

    use crate::parts::{sync::LockExt, value_files::scratch::value_files};

    #[test]
    fn a_prepared_file_is_known_once_it_is_begun_and_deleted_if_it_is_not() {
        let fs = MemoryFs::new();
        let files = value_files(&fs, 100);
        let count = || fs.list(Path::new("/db")).unwrap().len();
        let before = count();
        for group in [3, 4, 3] {
            files.prepare(group).unwrap();
        }
        assert_eq!((files.in_use().len(), count()), (0, before + 2));
        let file = files.begin(3).unwrap();
        assert_eq!((files.in_use().len(), count(), file.description.group), (1, before + 2, 3));
        assert_eq!(files.unrecorded.hold().len(), 1);
        let at = files.append(&file, &[7; 50]).unwrap();
        assert_eq!((at.file, at.len), (file.id, 50));
        files.forget_prepared();
        assert_eq!((files.in_use().len(), count()), (1, before + 1));
        assert_ne!(files.begin(4).unwrap().id, file.id, "it is created again");
    }

    #[test]
    fn a_forked_child_leaves_what_its_parent_has_prepared() {
        let fs = MemoryFs::new();
        let mut files = value_files(&fs, 100);
        files.prepare(0).unwrap();
        files.prepared.process ^= 1;
        let count = || fs.list(Path::new("/db")).unwrap().len();
        let before = count();
        files.forget_prepared();
        assert_eq!(count(), before);
    }
}
