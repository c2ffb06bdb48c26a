//! Files that are no longer needed and are written again, in place of new ones.
//!
//! ```text
//! nobody has the file any more ─▶ kept under its old name ─┬─ a file is begun: renamed, written from its beginning
//!                                                          └─ too many, the disk full, the end: removed
//! ```
//!
//! A new file costs the system three times what writing an old one again does: pages, blocks, an inode, and later to
//! free all of them. What is kept has no other name and nobody has it open, so nobody sees what is written over it.
//!
//! **After a crash** a spare file has its old name, which nothing in the manifest says: recovery removes it, as one that
//! could not be removed before.

use std::{
    path::{Path, PathBuf},
    sync::{
        Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
};

use crate::fs::FileSystem;

/// The spare files of a directory.
#[derive(Debug, Default)]
pub(super) struct Spares {
    kept: Mutex<Vec<Spare>>,
    bytes: AtomicU64,
    bytes_max: AtomicU64,
}

#[derive(Debug)]
struct Spare {
    path: PathBuf,
    bytes: u64,
}

impl Spares {
    fn kept(&self) -> MutexGuard<'_, Vec<Spare>> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Bytes of the files that are kept.
    pub fn bytes(&self) -> u64 {
        self.bytes.load(Relaxed)
    }

    /// Keeps a file that nobody has open, if there is room for it and it has no other name.
    pub fn keep(&self, fs: &dyn FileSystem, path: &Path) -> bool {
        if self.bytes_max.load(Relaxed) == 0 {
            return false;
        }
        let room = self.bytes_max.load(Relaxed).saturating_sub(self.bytes());
        let has_room = |bytes: &u64| (1..=room).contains(bytes);
        let Some(bytes) = fs.len(path).ok().flatten().filter(has_room) else { return false };
        if fs.is_shared(path).unwrap_or(true) {
            return false;
        }
        self.kept().push(Spare { path: path.into(), bytes });
        self.bytes.fetch_add(bytes, Relaxed);
        true
    }

    /// The file that was kept last, unless it has got another name meanwhile: most of its pages are in memory.
    pub fn take(&self, fs: &dyn FileSystem) -> Option<PathBuf> {
        loop {
            let Spare { path, bytes } = self.kept().pop()?;
            self.bytes.fetch_sub(bytes, Relaxed);
            if fs.is_shared(&path).is_ok_and(|is_shared| !is_shared) {
                return Some(path);
            }
            // The name is removed, the file stays under the other one.
            let _removed_by_the_next_opening = fs.remove(&path);
        }
    }

    /// At most so many bytes are kept from now on. Returns the files beyond that, the oldest first.
    pub fn keep_at_most(&self, bytes_max: u64) -> Vec<PathBuf> {
        self.bytes_max.store(bytes_max, Relaxed);
        let mut kept = self.kept();
        let mut beyond = self.bytes().saturating_sub(bytes_max);
        let is_beyond = |spare: &Spare| {
            let is_beyond = beyond > 0;
            beyond = beyond.saturating_sub(spare.bytes);
            is_beyond
        };
        let count = kept.iter().map(is_beyond).take_while(|&is| is).count();
        let removed: Vec<Spare> = kept.drain(..count).collect();
        self.bytes.fetch_sub(removed.iter().map(|spare| spare.bytes).sum(), Relaxed);
        removed.into_iter().map(|spare| spare.path).collect()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use bifold_contract::IoSource;

    use crate::{
        Dir,
        disk::DiskFs,
        fs::{Appending, FileLock, LockMode, Reads},
        memory::{Fate, MemoryFs},
        region::tests::TempDir,
    };

    /// A directory of each kind, which keeps what is no longer needed.
    fn dirs(temporary: &TempDir) -> Vec<(&'static str, Dir, Option<Box<dyn FileLock>>)> {
        let how = Appending { files_max: 4, reads: Reads::Mapped, mapped_bytes_max: 1 << 30 };
        let locked = |dir: Dir| {
            dir.create_dir().unwrap();
            let (dir, lock) = dir.lock_for_use("LOCK", LockMode::Exclusive, how).unwrap();
            (dir, Some(lock))
        };
        let memory = |fs: MemoryFs| Dir::new(Arc::new(fs), "db".as_ref());
        let (on_disk, disk_lock) = locked(Dir::new(Arc::new(DiskFs), &temporary.0));
        let with_region = MemoryFs::new();
        with_region.set_append_region(true);
        let (simulated, lock) = locked(memory(with_region));
        let plain = memory(MemoryFs::new());
        plain.create_dir().unwrap();
        let dirs = vec![("disk", on_disk, disk_lock), ("region", simulated, lock), ("memory", plain, None)];
        dirs.iter().for_each(|(_, dir, _)| dir.keep_spares(1 << 20));
        dirs
    }

    fn read(dir: &Dir, name: &str) -> Vec<u8> {
        let reader = dir.open(name).unwrap();
        let mut bytes = vec![0; reader.len() as usize];
        reader.read_at(&mut bytes, 0, IoSource::Get).unwrap();
        bytes
    }

    #[test]
    fn a_file_that_is_no_longer_needed_is_written_again() {
        let temporary = TempDir::new();
        for (what, dir, _lock) in dirs(&temporary) {
            for len in [5_000_u64, 100, 9_000, 64 << 10, 3] {
                for name in ["1", "2"] {
                    let (writer, reader) = dir.create_whole_appended(name, IoSource::Gc).unwrap();
                    assert_eq!((dir.spare_bytes(), writer.len(), reader.len()), (0, 0, 0), "{what}");
                    let bytes: Vec<u8> = (0..len).map(|n| n as u8 ^ name.as_bytes()[0]).collect();
                    for piece in bytes.chunks(700) {
                        writer.append(&[piece]).unwrap();
                    }
                    let mut found = vec![0; bytes.len()];
                    reader.read_at(&mut found, 0, IoSource::Get).unwrap();
                    assert!(found == bytes, "{what}: what was appended is read");
                    writer.sync().unwrap();
                    assert_eq!(dir.len(name).unwrap(), Some(len), "{what}");
                    writer.append(&[b"more"]).unwrap();
                    drop(writer);
                    assert!(read(&dir, name) == [&bytes[..], b"more"].concat(), "{what}: the whole file");
                    reader.remove_when_unused();
                    drop(reader);
                    assert_eq!(dir.spare_bytes(), len + 4, "{what}");
                }
                let writer = dir.create_whole("3", IoSource::Flush).unwrap();
                writer.append(&[b"a table"]).unwrap();
                writer.append(&[b", in", b" pieces"]).unwrap();
                writer.sync().unwrap();
                assert!(read(&dir, "3") == b"a table, in pieces", "{what}");
                drop(writer);
                dir.retire("3").unwrap();
            }
            dir.keep_spares(0);
            assert_eq!(dir.spare_bytes(), 0);
            let left: Vec<String> = dir.list().unwrap().into_iter().filter(|name| name.len() == 1).collect();
            assert!(left.is_empty(), "{what}: {left:?}");
        }
    }

    #[test]
    fn at_most_so_many_bytes_are_kept_and_no_file_with_another_name() {
        let fs = MemoryFs::new();
        let dir = Dir::new(Arc::new(fs), "db".as_ref());
        let (other, names) = (dir.sibling("copy".as_ref()), ["1", "2", "3", "4"]);
        [&dir, &other].iter().for_each(|dir| dir.create_dir().unwrap());
        dir.keep_spares(250);
        for name in names {
            let writer = dir.create(name, IoSource::Gc).unwrap();
            writer.append(&[&[0; 100]]).unwrap();
        }
        dir.link_into(&other, "1").unwrap();
        names.iter().for_each(|name| dir.retire(name).unwrap());
        assert_eq!((dir.spare_bytes(), dir.list().unwrap()), (200, vec!["2".to_owned(), "3".to_owned()]));
        dir.link_into(&other, "3").unwrap();
        let writer = dir.create_whole("5", IoSource::Gc).unwrap();
        writer.append(&[b"new"]).unwrap();
        writer.sync().unwrap();
        assert_eq!((dir.spare_bytes(), dir.list().unwrap()), (0, vec!["5".to_owned()]), "2 was written again");
        assert_eq!((read(&other, "3"), read(&other, "1")), (vec![0; 100], vec![0; 100]));
    }

    /// Until the first sync, old bytes may be there; after it, none.
    #[test]
    fn after_a_sync_a_power_loss_leaves_what_was_appended() {
        for fate in [Fate::KeepAll, Fate::DropUnsynced].into_iter().chain((0..50).map(Fate::Random)) {
            let fs = MemoryFs::new();
            let dir = Dir::new(Arc::new(fs.clone()), "db".as_ref());
            dir.create_dir().unwrap();
            dir.keep_spares(1 << 20);
            let writer = dir.create("1", IoSource::Gc).unwrap();
            writer.append(&[&[7; 3000]]).unwrap();
            writer.sync().unwrap();
            drop(writer);
            dir.retire("1").unwrap();
            let writer = dir.create_whole("2", IoSource::Gc).unwrap();
            writer.append(&[&[8; 1000]]).unwrap();
            writer.sync().unwrap();
            dir.sync().unwrap();
            let found = Dir::new(Arc::new(fs.power_loss(fate)), "db".as_ref());
            assert_eq!(found.list().unwrap(), ["2"]);
            assert!(read(&found, "2") == [8; 1000], "{fate:?}");
        }
    }
}
