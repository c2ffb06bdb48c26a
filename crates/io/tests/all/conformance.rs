//! What every file system must do: run on the real one, on the one in memory, and on the latter behind a wrapper that
//! could fail calls but does not.

use std::{
    io::ErrorKind,
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use bifold_contract::{Error, IoSource, Result};
use bifold_io::{Dir, FileSystem, LockMode, ReadFile, disk::DiskFs, faulty::FaultyFs, fs::PathKind, memory::MemoryFs};

/// Runs `test` in an empty directory of each file system.
fn on_each(test: impl Fn(&Arc<dyn FileSystem>, &Path)) {
    static NUMBER: AtomicU64 = AtomicU64::new(0);
    let number = NUMBER.fetch_add(1, Ordering::Relaxed);
    let name = format!("bifold-conformance-{}-{number}", std::process::id());
    let memory: Arc<dyn FileSystem> = Arc::new(MemoryFs::new());
    let faulty: Arc<dyn FileSystem> = Arc::new(FaultyFs::over_memory(MemoryFs::new()));
    for fs in [memory, faulty] {
        let dir = Path::new("/tests").join(&name);
        fs.create_dir_all(&dir).unwrap();
        test(&fs, &dir);
    }
    let dir = Removed(std::env::temp_dir().join(name));
    let disk: Arc<dyn FileSystem> = Arc::new(DiskFs);
    disk.create_dir_all(&dir.0).unwrap();
    test(&disk, &dir.0);
}

/// A directory that is removed at the end of the test, also if it fails.
struct Removed(PathBuf);

impl Drop for Removed {
    fn drop(&mut self) {
        if let Err(error) = std::fs::remove_dir_all(&self.0) {
            eprintln!("{} stays: {error}", self.0.display());
        }
    }
}

fn write(fs: &dyn FileSystem, path: &Path, bytes: &[u8]) {
    let file = fs.create(path).unwrap();
    file.append(&[bytes]).unwrap();
    file.sync().unwrap();
}

fn read(file: &dyn ReadFile) -> Vec<u8> {
    let mut bytes = vec![0; file.len().unwrap() as usize];
    file.read_at(&mut bytes, 0).unwrap();
    let mut once = vec![0; bytes.len()];
    file.read_once(&mut once, 0).unwrap();
    assert!(once == bytes, "reading once gives the same");
    bytes
}

/// What failed: the operation and the kind of error.
fn failure<T>(result: Result<T>) -> (&'static str, ErrorKind) {
    match result {
        Err(Error::Io { op, source, .. }) => (op, source.kind()),
        Err(other) => panic!("{other}"),
        Ok(_) => panic!("it succeeded"),
    }
}

#[test]
fn appended_parts_are_read_back_as_one_piece() {
    on_each(|fs, dir| {
        let path = dir.join("a");
        let file = fs.create(&path).unwrap();
        let reader = fs.open(&path).unwrap();
        assert!(reader.is_empty().unwrap());
        file.append(&[b"", b"ab", b"", b"cde", b""]).unwrap();
        file.append(&[]).unwrap();
        file.append(&[b"", b""]).unwrap();
        file.append(&[b"f"]).unwrap();
        file.start_writeback();
        assert_eq!(read(&*reader), b"abcdef", "a reader sees what is appended after it was opened");
        reader.prefetch(0, 6);
        let mut some = [0; 3];
        reader.read_at(&mut some, 2).unwrap();
        assert_eq!(&some, b"cde");
        assert_eq!(fs.len(&path).unwrap(), Some(6));
    });
}

#[test]
fn many_parts_and_large_ones_are_all_written() {
    on_each(|fs, dir| {
        // More slices than a vectored write takes at once (1024 on Linux).
        let parts: Vec<Vec<u8>> = (0..3000).map(|n| vec![n as u8; n % 7]).collect();
        let slices: Vec<&[u8]> = parts.iter().map(Vec::as_slice).collect();
        let large = vec![9; 300_000];
        let file = fs.create(&dir.join("a")).unwrap();
        file.append(&slices).unwrap();
        file.append(&[&large]).unwrap();
        let expected = [parts.concat(), large].concat();
        assert!(read(&*fs.open(&dir.join("a")).unwrap()) == expected);
    });
}

#[test]
fn a_file_opened_again_continues_at_its_end() {
    on_each(|fs, dir| {
        let path = dir.join("a");
        write(&**fs, &path, b"abc");
        let file = fs.open_append(&path).unwrap();
        file.append(&[b"d"]).unwrap();
        fs.truncate(&path, 2).unwrap();
        file.append(&[b"x"]).unwrap();
        assert_eq!(read(&*fs.open(&path).unwrap()), b"abx");
    });
}

#[test]
fn truncating_behind_the_end_adds_zeros() {
    on_each(|fs, dir| {
        let path = dir.join("a");
        write(&**fs, &path, b"abc");
        fs.truncate(&path, 1).unwrap();
        fs.truncate(&path, 4).unwrap();
        assert_eq!(read(&*fs.open(&path).unwrap()), b"a\0\0\0");
    });
}

#[test]
fn reading_behind_the_end_fails() {
    on_each(|fs, dir| {
        let path = dir.join("a");
        write(&**fs, &path, b"abc");
        let file = fs.open(&path).unwrap();
        for (len, offset) in [(4, 0), (1, 3), (2, 2), (1, 1 << 40)] {
            assert_eq!(failure(file.read_at(&mut vec![0; len], offset)), ("read", ErrorKind::UnexpectedEof));
        }
        file.read_at(&mut [], 3).unwrap();
    });
}

#[test]
fn missing_files_and_directories_are_errors() {
    on_each(|fs, dir| {
        let (none, deep) = (dir.join("none"), dir.join("no-directory/none"));
        let not = |op| (op, ErrorKind::NotFound);
        assert_eq!(failure(fs.open(&none)), not("open"));
        assert_eq!(failure(fs.open_append(&none)), not("open"));
        assert_eq!(failure(fs.truncate(&none, 0)), not("truncate"));
        assert_eq!(failure(fs.rename(&none, &dir.join("a"))), not("rename"));
        assert_eq!(failure(fs.remove(&none)), not("remove"));
        assert_eq!(failure(fs.link(&none, &dir.join("a"))), not("link"));
        assert_eq!(failure(fs.create(&deep)), not("create"));
        assert_eq!(failure(fs.list(&none)), not("list"));
        assert_eq!(failure(fs.list_dirs(&none)), not("list"));
        assert_eq!(failure(fs.sync_dir(&none)), not("sync directory"));
        assert_eq!((fs.len(&none).unwrap(), fs.len(&deep).unwrap()), (None, None));
        assert!(fs.lock(&deep, LockMode::Exclusive).is_err());
        write(&**fs, &dir.join("a"), b"");
        assert_eq!(failure(fs.rename(&dir.join("a"), &deep)), not("rename"));
        assert_eq!(failure(fs.link(&dir.join("a"), &deep)), not("link"));
    });
}

#[test]
fn existing_files_are_neither_created_nor_linked_over() {
    on_each(|fs, dir| {
        let (a, b) = (dir.join("a"), dir.join("b"));
        write(&**fs, &a, b"abc");
        write(&**fs, &b, b"def");
        assert_eq!(failure(fs.create(&a)), ("create", ErrorKind::AlreadyExists));
        assert_eq!(failure(fs.link(&a, &b)), ("link", ErrorKind::AlreadyExists));
        assert_eq!(failure(fs.create(dir)).0, "create");
        assert!(fs.create_dir_all(&a).is_err(), "a file is in the way");
        assert!(fs.create_dir_all(&a.join("below")).is_err(), "a file is in the way");
        assert_eq!((read(&*fs.open(&a).unwrap()), read(&*fs.open(&b).unwrap())), (b"abc".to_vec(), b"def".to_vec()));
    });
}

#[test]
fn renaming_replaces_and_open_files_keep_their_contents() {
    on_each(|fs, dir| {
        let (a, b) = (dir.join("a"), dir.join("b"));
        write(&**fs, &b, b"old");
        let old = fs.open(&b).unwrap();
        let file = fs.create(&a).unwrap();
        file.append(&[b"ne"]).unwrap();
        fs.rename(&a, &b).unwrap();
        file.append(&[b"w"]).unwrap();
        file.sync().unwrap();
        assert_eq!(read(&*old), b"old");
        assert_eq!(read(&*fs.open(&b).unwrap()), b"new");
        assert_eq!(fs.list(dir).unwrap(), std::slice::from_ref(&b));
        let new = fs.open(&b).unwrap();
        fs.remove(&b).unwrap();
        assert_eq!(read(&*new), b"new");
        assert_eq!(fs.list(dir).unwrap(), Vec::<PathBuf>::new());
        assert!(fs.rename(&b, &a).is_err() && fs.len(&a).unwrap().is_none());
    });
}

#[test]
fn kinds_of_paths_are_reported_and_only_empty_directories_are_removed() {
    on_each(|fs, dir| {
        let (deep, file) = (dir.join("a/b"), dir.join("a/b/file"));
        assert_eq!(fs.kind(&deep).unwrap(), None);
        assert_eq!(failure(fs.resolve(&deep)), ("look up", ErrorKind::NotFound));
        fs.create_dir_all(&deep).unwrap();
        write(&**fs, &file, b"abc");
        let kinds = [&deep, &file].map(|path| fs.kind(path).unwrap());
        assert_eq!(kinds, [Some(PathKind::Directory), Some(PathKind::File)]);
        assert!(fs.resolve(&file).unwrap().is_absolute());
        assert_eq!(failure(fs.remove_dir(&deep)), ("remove directory", ErrorKind::DirectoryNotEmpty));
        assert_eq!(failure(fs.remove_dir(&dir.join("a"))), ("remove directory", ErrorKind::DirectoryNotEmpty));
        fs.remove(&file).unwrap();
        fs.remove_dir(&deep).unwrap();
        assert_eq!(failure(fs.remove_dir(&deep)), ("remove directory", ErrorKind::NotFound));
        fs.remove_dir(&dir.join("a")).unwrap();
        assert_eq!(fs.kind(&dir.join("a")).unwrap(), None);
    });
}

#[test]
fn a_symbolic_link_is_reported_as_such_and_resolved() {
    let dir = Removed(std::env::temp_dir().join(format!("bifold-links-{}", std::process::id())));
    DiskFs.create_dir_all(&dir.0.join("there")).unwrap();
    let (link, nowhere) = (dir.0.join("link"), dir.0.join("nowhere"));
    std::os::unix::fs::symlink("there", &link).unwrap();
    std::os::unix::fs::symlink("not there", &nowhere).unwrap();
    assert_eq!([&link, &nowhere].map(|path| DiskFs.kind(path).unwrap()), [Some(PathKind::Link); 2]);
    assert_eq!(DiskFs.resolve(&link).unwrap(), DiskFs.resolve(&dir.0).unwrap().join("there"));
}

#[test]
fn two_names_are_one_file() {
    on_each(|fs, dir| {
        let other = dir.join("other");
        fs.create_dir_all(&other).unwrap();
        let (a, b) = (dir.join("a"), other.join("b"));
        write(&**fs, &a, b"abc");
        fs.link(&a, &b).unwrap();
        fs.open_append(&b).unwrap().append(&[b"d"]).unwrap();
        fs.rename(&a, &b).unwrap();
        assert_eq!(fs.len(&a).unwrap(), Some(4), "renaming a file to itself does nothing");
        fs.remove(&a).unwrap();
        assert_eq!(read(&*fs.open(&b).unwrap()), b"abcd");
        fs.rename(&b, &a).unwrap();
        assert_eq!((fs.len(&b).unwrap(), fs.len(&a).unwrap()), (None, Some(4)), "renamed across directories");
    });
}

#[test]
fn files_and_directories_are_listed_sorted_each_without_the_others() {
    on_each(|fs, dir| {
        for name in ["b", "a", "000010.log", "000009.log", "a.b", "A"] {
            fs.create(&dir.join(name)).unwrap();
        }
        fs.create_dir_all(&dir.join("below/it")).unwrap();
        fs.create_dir_all(&dir.join("below/it")).unwrap();
        fs.create(&dir.join("below/c")).unwrap();
        let sorted = ["000009.log", "000010.log", "A", "a", "a.b", "b"].map(|name| dir.join(name));
        assert_eq!(fs.list(dir).unwrap(), sorted);
        fs.create_dir_all(&dir.join("Below")).unwrap();
        assert_eq!(fs.list_dirs(dir).unwrap(), ["Below", "below"].map(|name| dir.join(name)));
        assert_eq!(fs.list_dirs(&dir.join("below/it")).unwrap(), Vec::<PathBuf>::new());
        fs.sync_dir(dir).unwrap();
    });
}

#[test]
fn locks_exclude_as_their_modes_say_and_end_when_dropped() {
    on_each(|fs, dir| {
        let path = dir.join("LOCK");
        let lock = |mode| fs.lock(&path, mode);
        let exclusive = lock(LockMode::Exclusive).unwrap();
        assert_eq!(fs.len(&path).unwrap(), Some(0), "the file is made");
        for mode in [LockMode::Exclusive, LockMode::Shared] {
            assert!(matches!(lock(mode), Err(Error::Locked { path: locked }) if locked == path));
        }
        drop(exclusive);
        let shared = [lock(LockMode::Shared).unwrap(), lock(LockMode::Shared).unwrap()];
        for one in shared {
            assert!(matches!(lock(LockMode::Exclusive), Err(Error::Locked { .. })));
            drop(one);
        }
        assert!(lock(LockMode::Exclusive).is_ok());
    });
}

#[test]
fn a_directory_counts_bytes_by_source() {
    on_each(|fs, path| {
        let dir = Dir::new(Arc::clone(fs), &path.join("db"));
        dir.create_dir().unwrap();
        let [first, second] = [IoSource::ALL[0], IoSource::ALL[1]];
        let writer = dir.create("a", first).unwrap();
        writer.append(&[b"abc", b"de"]).unwrap();
        writer.sync().unwrap();
        dir.sync().unwrap();
        assert_eq!((writer.len(), dir.list().unwrap()), (5, vec!["a".to_owned()]));
        let reader = dir.open("a").unwrap();
        reader.read_at(&mut [0; 4], 1, second).unwrap();
        let totals = dir.clone().totals();
        assert_eq!(totals.written_bytes[first as usize], 5);
        assert_eq!((totals.read_bytes[second as usize], totals.reads[second as usize]), (4, 1));
        assert_eq!((totals.read_bytes[first as usize], totals.syncs), (0, 1));
        let again = dir.open_append("a", second).unwrap();
        again.append(&[b"f"]).unwrap();
        assert_eq!((again.len(), dir.len("a").unwrap()), (6, Some(6)));
        dir.remove("a").unwrap();
        dir.remove("a").unwrap();
        assert_eq!(failure(dir.open_append("a", first)), ("open", ErrorKind::NotFound));
    });
}

#[test]
fn what_is_written_again_or_copied_counts_as_written_by_recovery() {
    on_each(|fs, path| {
        let dir = Dir::new(Arc::clone(fs), path);
        dir.create("a", IoSource::Log).unwrap().append(&[&[7; 1000]]).unwrap();
        let recovered = || dir.totals().written_bytes[IoSource::Recovery as usize];
        assert_eq!(recovered(), 0);
        dir.write_again("a", 0).unwrap();
        assert_eq!(recovered(), 1000);
        dir.write_again("a", 900).unwrap();
        assert_eq!(recovered(), 1100);
        dir.truncate("a", 800).unwrap();
        assert_eq!(recovered(), 1100, "it has no other name");
        fs.link(&path.join("a"), &path.join("b")).unwrap();
        dir.truncate("a", 300).unwrap();
        assert_eq!(recovered(), 1400, "what stays of it was copied");
        assert_eq!((dir.len("a").unwrap(), dir.len("b").unwrap()), (Some(300), Some(800)));
    });
}
