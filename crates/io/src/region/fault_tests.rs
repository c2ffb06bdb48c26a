//! Stores that fault, full disks, and power lost while a file is truncated.

use std::{
    fs::{self, OpenOptions},
    io::{ErrorKind, Write},
    path::{Path, PathBuf},
    process::Command,
};

use super::{
    slots::{APPENDS_MAX, SLOT_BYTES},
    tests::{TempDir, open, read_all},
    *,
};
use crate::{
    fs::{APPENDS_NAME, DirUse, LockMode, Reads},
    memory::{Fate, MemoryFs},
};

fn appended(region: &AppendRegion, path: &Path) -> Appended {
    region.fs.as_ref().unwrap().create_appended(path).unwrap()
}

#[test]
fn appends_are_plain_where_a_store_might_not_find_its_block() {
    const BTRFS: u64 = 0x9123_683E;
    let unknown = [BTRFS, 0x794C_7630, 0x6573_5546, 0x6969, 0x2FC1_2FC1, 0xF2F5_2010, 0];
    for (kind, is_mapped) in unknown.map(|kind| (kind, false)).into_iter().chain([(disk::EXT, true)]) {
        let dir = TempDir::new();
        let mode = LockMode::Exclusive;
        let lock = crate::disk::DiskFs.lock(&dir.0.join("LOCK"), mode).unwrap();
        let how = Appending { files_max: 4, reads: Reads::Mapped, mapped_bytes_max: u64::MAX };
        let region = RegionFs::open(Disk::of_kind(kind), &dir.0, DirLock { lock, used: DirUse::Write }, how).unwrap();
        let a = appended(&region, &dir.0.join("a"));
        a.writer.append(&[b"some", b"thing"]).unwrap();
        assert_eq!(dir.0.join(APPENDS_NAME).exists(), is_mapped, "{kind:#x}");
        assert_eq!(fs::read(dir.0.join("a")).unwrap() == b"something", !is_mapped, "{kind:#x}");
        assert_eq!(read_all(&*a.reader), b"something");
    }
}

#[test]
fn nothing_is_mapped_where_reads_are_done_by_calls() {
    let dir = TempDir::new();
    let mode = LockMode::Exclusive;
    let lock = crate::disk::DiskFs.lock(&dir.0.join("LOCK"), mode).unwrap();
    let how = Appending { files_max: 4, reads: Reads::Called, mapped_bytes_max: 0 };
    let region = crate::disk::DiskFs.append_region(&dir.0, DirLock { lock, used: DirUse::Write }, how).unwrap();
    appended(&region, &dir.0.join("a")).writer.append(&[b"a"]).unwrap();
    assert!(!dir.0.join(APPENDS_NAME).exists(), "there is no handler for `SIGBUS`");
}

/// Runs an otherwise ignored test of this file: a fault that nobody handles ends its process.
fn in_a_process_of_its_own(test: &str) {
    let mut child = Command::new(std::env::current_exe().unwrap());
    let output = child.args(["--exact", &format!("region::fault_tests::{test}"), "--ignored"]).output().unwrap();
    assert!(output.status.success(), "{}{output:?}", String::from_utf8_lossy(&output.stdout));
}

fn truncate_appends(dir: &TempDir, len: usize) {
    OpenOptions::new().write(true).open(dir.0.join(APPENDS_NAME)).unwrap().set_len(len as u64).unwrap();
}

#[test]
#[ignore = "may end its process"]
fn child_has_a_fault_on_a_page_of_its_slot() {
    let dir = TempDir::new();
    let region = open(&dir.0, LockMode::Exclusive, 2);
    let [a, b] = ["a", "b"].map(|name| appended(&region, &dir.0.join(name)));
    let mut model = Vec::new();
    for n in 0..3 {
        a.writer.append(&[&[n; 1000]]).unwrap();
        b.writer.append(&[&[n + 100; 1000]]).unwrap();
        model.extend([n; 1000]);
    }
    // The head and one page of bytes of the first slot behind the spare one are left, and nothing of the second; as
    // if a store into the next page found no block.
    truncate_appends(&dir, SLOT_BYTES + 2 * 4096);
    a.writer.append(&[&[9; 2000]]).unwrap();
    model.extend([9; 2000]);
    assert!(fs::read(dir.0.join("a")).unwrap() == model, "everything is in the file now");
    a.writer.append(&[&[8; 100]]).unwrap();
    model.extend([8; 100]);
    assert!(fs::read(dir.0.join("a")).unwrap() == model && read_all(&*a.reader) == model, "and so is what follows");
    a.writer.sync().unwrap();
    // The other slot's contents are lost, and that is an error.
    for result in [b.writer.append(&[b"more"]), b.writer.sync(), b.reader.read_at(&mut [0; 10], 0)] {
        let error = result.unwrap_err().to_string();
        assert!(error.contains("no longer in the file APPENDS"), "{error}");
    }
    let others = appended(&region, &dir.0.join("c"));
    others.writer.append(&[b"plain"]).unwrap();
    assert_eq!(fs::read(dir.0.join("c")).unwrap(), b"plain");
    drop((a, b, others, region));
    drop(open(&dir.0, LockMode::Exclusive, 2));
    assert!(fs::read(dir.0.join("a")).unwrap() == model);
}

#[test]
fn a_store_that_faults_writes_out_everything_staged_or_is_an_error() {
    in_a_process_of_its_own("child_has_a_fault_on_a_page_of_its_slot");
}

#[test]
#[ignore = "may end its process"]
fn child_has_a_fault_on_the_head_of_its_slot() {
    let dir = TempDir::new();
    let region = open(&dir.0, LockMode::Exclusive, 2);
    let a = appended(&region, &dir.0.join("a"));
    a.writer.append(&[&[1; 1000]]).unwrap();
    truncate_appends(&dir, 0);
    assert!(a.writer.append(&[b"more"]).is_err() && a.writer.sync().is_err());
    assert!(a.reader.read_at(&mut [0; 10], 0).is_err());
    // A slot that was never used is not used now either.
    let b = appended(&region, &dir.0.join("b"));
    b.writer.append(&[b"plain"]).unwrap();
    b.writer.sync().unwrap();
    assert_eq!(fs::read(dir.0.join("b")).unwrap(), b"plain");
}

#[test]
fn appends_truncated_by_another_program_are_errors() {
    in_a_process_of_its_own("child_has_a_fault_on_the_head_of_its_slot");
}

/// Needs a mounted copy-on-write file system of some megabytes, `BIFOLD_DISK`: `cargo xtask disks` creates one and
/// runs this.
#[test]
#[ignore = "fills a disk"]
fn a_store_without_a_block_for_it_loses_nothing() {
    let dir = TempDir::new();
    let region = open(&dir.0, LockMode::Exclusive, 8);
    let mut files: Vec<_> =
        (0..8).map(|n| dir.0.join(format!("{n}"))).map(|p| (appended(&region, &p), p, vec![])).collect();
    let mut round = |n: u8, refused: &mut usize| {
        for (file, _, model) in &mut files {
            let before = model.len() as u64;
            match file.writer.append(&[&[n; 700]]) {
                Ok(()) => model.extend([n; 700]),
                Err(_) => *refused += 1,
            }
            assert!(file.reader.len().unwrap() >= before);
            let mut found = vec![0; model.len()];
            file.reader.read_at(&mut found, 0).unwrap();
            assert!(found == *model, "round {n}");
        }
    };
    let mut refused = 0;
    (0..9).for_each(|n| round(n, &mut refused));
    assert_eq!(refused, 0);
    // Clean pages: the next store to each needs a block.
    fs::File::open(dir.0.join(APPENDS_NAME)).unwrap().sync_all().unwrap();
    let filler = dir.0.join("filler");
    let mut file = fs::File::create(&filler).unwrap();
    for piece in [1 << 20, 4096, 1] {
        while file.write_all(&vec![1; piece]).and_then(|()| file.sync_data()).is_ok() {}
    }
    (9..60).for_each(|n| round(n, &mut refused));
    println!("{refused} appends were refused, none was lost");
    let killed: Vec<(PathBuf, Vec<u8>)> = files.iter().map(|(_, path, model)| (path.clone(), model.clone())).collect();
    // As a killed process leaves it: nothing is closed or written out.
    std::mem::forget((files, region.fs));
    drop(file);
    fs::remove_file(&filler).unwrap();
    std::mem::forget(region.lock);
    fs::remove_file(dir.0.join("LOCK")).unwrap();
    drop(open(&dir.0, LockMode::Exclusive, 0));
    for (path, model) in killed {
        assert!(fs::read(&path).unwrap().starts_with(&model), "{}", path.display());
    }
}

/// A region on the simulated disk.
fn simulated(memory: &MemoryFs, files_max: usize) -> AppendRegion {
    memory.set_append_region(true);
    memory.create_dir_all(Path::new("/d")).unwrap();
    let mode = LockMode::Exclusive;
    let lock = memory.lock(Path::new("/d/LOCK"), mode).unwrap();
    memory
        .append_region(
            Path::new("/d"),
            DirLock { lock, used: DirUse::Write },
            Appending { files_max, reads: Reads::Called, mapped_bytes_max: 0 },
        )
        .unwrap()
}

fn is_disk_full(result: Result<()>) -> bool {
    matches!(result, Err(Error::Io { source, .. }) if source.kind() == ErrorKind::StorageFull)
}

#[test]
fn a_full_disk_is_reported_to_each_writer_and_ends_no_other_file() {
    let memory = MemoryFs::new();
    let region = simulated(&memory, 1);
    let [a, b] = ["/d/a", "/d/b"].map(|path| appended(&region, Path::new(path)));
    a.writer.append(&[&[1; 500]]).unwrap();
    memory.set_capacity(Some(memory.used_bytes()));
    // The only slot cannot be taken over because the disk has no room for the first file, nor for the second.
    assert!(is_disk_full(b.writer.append(&[&[2; 500]])));
    assert_eq!(read_all(&*a.reader), [1; 500]);
    assert!(is_disk_full(a.writer.sync()), "the error is that the disk is full");
    a.writer.append(&[&[3; 500]]).unwrap();
    memory.set_capacity(None);
    b.writer.append(&[&[4; 500]]).unwrap();
    a.writer.sync().unwrap();
    b.writer.sync().unwrap();
    let held = memory.power_loss(Fate::DropUnsynced);
    assert_eq!(held.read(Path::new("/d/a")), None, "its name was never made durable");
    assert_eq!(memory.read(Path::new("/d/a")).unwrap(), [[1; 500], [3; 500]].concat());
}

/// Regression: an append had ended a full slot, and the write of an earlier one failed before the append had another.
/// It went on in the full slot, where it panicked or wrote beyond the slot's end.
#[test]
fn an_append_behind_full_slots_that_cannot_be_written_is_an_error() {
    // Slots that are full of appends, and of bytes.
    for len in [1, 512] {
        let memory = MemoryFs::new();
        let region = simulated(&memory, 4);
        let a = appended(&region, Path::new("/d/a"));
        let in_slot = APPENDS_MAX.min(Simulated::FULL / len);
        let mut model = Vec::new();
        for n in 0..2 * in_slot {
            // The second slot was taken: nothing else needs space.
            if n == in_slot + 1 {
                memory.set_capacity(Some(memory.used_bytes()));
            }
            a.writer.append(&[&vec![n as u8; len]]).unwrap();
            model.extend(vec![n as u8; len]);
        }
        assert!(memory.read(Path::new("/d/a")).unwrap().is_empty(), "all of it is staged");
        assert!(is_disk_full(a.writer.append(&[&vec![7; len]])), "{len} bytes each");
        assert!(read_all(&*a.reader) == model);
        memory.set_capacity(None);
        a.writer.append(&[&vec![8; len]]).unwrap();
        model.extend(vec![8; len]);
        a.writer.sync().unwrap();
        assert!(memory.read(Path::new("/d/a")).unwrap() == model);
    }
}

#[test]
fn what_cannot_be_written_at_the_end_is_read_written_later_and_put_back() {
    let memory = MemoryFs::new();
    let region = simulated(&memory, 3);
    let a = appended(&region, Path::new("/d/a"));
    a.writer.append(&[&[1; 500]]).unwrap();
    memory.set_capacity(Some(memory.used_bytes()));
    drop(a.writer);
    assert_eq!(read_all(&*a.reader), [1; 500]);
    drop(a.reader);
    let fs = region.fs.as_ref().unwrap();
    assert_eq!(read_all(&*fs.open(Path::new("/d/a")).unwrap()), [1; 500], "read through its slot");
    assert!(fs.open_appended(Path::new("/d/a")).is_err(), "what is appended now must come behind it");
    let killed = memory.fork();
    drop(simulated(&killed, 3));
    assert_eq!(killed.read(Path::new("/d/a")).unwrap(), [1; 500]);
    memory.set_capacity(None);
    fs.open_appended(Path::new("/d/a")).unwrap().writer.append(&[&[2; 5]]).unwrap();
    drop(region);
    assert_eq!(memory.read(Path::new("/d/a")).unwrap(), [vec![1; 500], vec![2; 5]].concat());
}

/// Regression: it stayed open until the database was closed, with its slot and the space of all that had been written.
#[test]
fn a_removed_file_that_cannot_be_written_keeps_no_slot_and_is_closed() {
    let path = Path::new("/d/a");
    for is_removed_first in [false, true] {
        let memory = MemoryFs::new();
        let region = simulated(&memory, 1);
        let fs = region.fs.as_ref().unwrap();
        let Appended { writer, reader } = appended(&region, path);
        writer.append(&[&[1; 500]]).unwrap();
        memory.set_capacity(Some(memory.used_bytes()));
        if is_removed_first {
            fs.remove(path).unwrap();
        }
        drop(writer);
        if !is_removed_first {
            assert_eq!(read_all(&*reader), [1; 500]);
            fs.remove(path).unwrap();
        }
        let file = Arc::downgrade(&reader);
        drop(reader);
        assert!(file.upgrade().is_none(), "removed first {is_removed_first}: somebody has it open");
        memory.set_capacity(None);
        let b = appended(&region, Path::new("/d/b"));
        b.writer.append(&[&[2; 500]]).unwrap();
        assert!(memory.read(Path::new("/d/b")).unwrap().is_empty(), "removed first {is_removed_first}: no slot");
        drop((b, region));
        assert_eq!(memory.read(Path::new("/d/b")).unwrap(), [2; 500]);
        assert_eq!(memory.read(&Path::new("/d").join(APPENDS_NAME)), None);
    }
}

#[test]
fn what_a_killed_process_left_is_put_back_on_a_full_disk() {
    for files in [1, 2, 5] {
        let memory = MemoryFs::new();
        let region = simulated(&memory, files);
        let paths: Vec<PathBuf> = (0..files).map(|n| PathBuf::from(format!("/d/{n}"))).collect();
        let open: Vec<_> = paths.iter().map(|path| appended(&region, path)).collect();
        for n in 0..20 {
            open.iter().for_each(|file| file.writer.append(&[&[n; 100]]).unwrap());
        }
        assert!(paths.iter().all(|path| memory.read(path).unwrap().is_empty()), "all of it is staged");
        let killed = memory.fork();
        killed.set_capacity(Some(memory.used_bytes()));
        let model: Vec<u8> = (0..20).flat_map(|n| [n; 100]).collect();
        drop(simulated(&killed, files));
        for path in &paths {
            assert!(killed.read(path).unwrap() == model, "{} of {files}", path.display());
        }
    }
}

/// Regression: the slots of a file were put back as one piece, for which the space of one slot is not enough.
#[test]
fn several_slots_of_a_file_are_put_back_one_by_one_on_a_full_disk() {
    let dir = TempDir::new();
    let region = open(&dir.0, LockMode::Exclusive, 2);
    let a = appended(&region, &dir.0.join("a"));
    let mut model = Vec::new();
    for n in 0..60 {
        a.writer.append(&[&[n; 1000]]).unwrap();
        model.extend([n; 1000]);
    }
    assert!(fs::read(dir.0.join("a")).unwrap().is_empty(), "all of it is staged, in two slots");
    let (memory, path) = (MemoryFs::new(), Path::new("/d/a"));
    for name in ["a", APPENDS_NAME] {
        memory.write_durable(&Path::new("/d").join(name), &fs::read(dir.0.join(name)).unwrap());
    }
    memory.set_capacity(Some(memory.used_bytes()));
    // What a kill at each of its changes leaves.
    let killed: Arc<Mutex<Vec<MemoryFs>>> = Arc::default();
    let (all, now) = (Arc::clone(&killed), memory.clone());
    memory.set_hook(Some(Arc::new(move |_, _, _| all.lock().unwrap().push(now.fork()))));
    drop(simulated(&memory, 2));
    memory.set_hook(None);
    assert!(memory.read(path).unwrap() == model);
    let killed = killed.lock().unwrap();
    assert!(killed.len() >= 6, "two slots are written, each is given back, and so is the empty one");
    for (n, killed) in killed.iter().enumerate() {
        drop(simulated(killed, 2));
        assert!(killed.read(path).unwrap() == model, "killed after change {n}");
    }
}

/// Regression: a slot was taken again with what it had before, and a part of that counted behind the new appends.
#[test]
fn appends_after_a_truncation_are_not_followed_by_older_ones_when_the_process_is_killed() {
    let (memory, path) = (MemoryFs::new(), Path::new("/d/a"));
    let region = simulated(&memory, 2);
    let a = appended(&region, path);
    a.writer.append(&[&[1; 100]]).unwrap();
    a.writer.sync().unwrap();
    a.writer.append(&[&[2; 100]]).unwrap();
    a.writer.append(&[&[3; 100]]).unwrap();
    region.fs.as_ref().unwrap().truncate(path, 100).unwrap();
    a.writer.append(&[&[7; 100]]).unwrap();
    let killed = memory.fork();
    drop(simulated(&killed, 2));
    assert_eq!(killed.read(path).unwrap(), [[1; 100], [7; 100]].concat());
}

/// Whatever a power loss brings back of `APPENDS`: where a file was truncated, old appends are not put over new ones.
#[test]
fn old_appends_are_not_put_over_what_follows_a_truncation() {
    for (seed, is_killed) in (0..200).flat_map(|seed| [(seed, false), (seed, true)]) {
        let memory = MemoryFs::new();
        let region = simulated(&memory, 2);
        let a = appended(&region, Path::new("/d/a"));
        a.writer.append(&[&[1; 700]]).unwrap();
        a.writer.append(&[&[2; 3000]]).unwrap();
        memory.sync_dir(Path::new("/d")).unwrap();
        // Truncated in the same process, or in the next one.
        let (memory, region, a) = if is_killed {
            let killed = memory.fork();
            let region = simulated(&killed, 2);
            let a = region.fs.as_ref().unwrap().open_appended(Path::new("/d/a")).unwrap();
            (killed, region, a)
        } else {
            (memory, region, a)
        };
        region.fs.as_ref().unwrap().truncate(Path::new("/d/a"), 700).unwrap();
        a.writer.append(&[&[7; 2000]]).unwrap();
        a.writer.append(&[&[8; 2000]]).unwrap();
        a.writer.sync().unwrap();
        let lost = memory.power_loss(Fate::Random(seed));
        drop(simulated(&lost, 2));
        let found = lost.read(Path::new("/d/a")).unwrap();
        let model = [vec![1; 700], vec![7; 2000], vec![8; 2000]].concat();
        assert!(found == model, "seed {seed}, killed {is_killed}: what was synced is no longer there");
    }
}

/// A power loss has truncated a file within a record. A second one must not leave a sector with part of that record.
#[test]
fn what_is_put_back_behind_a_tear_is_durable_before_appends_go() {
    for torn_bytes in [8, 500, 700] {
        let memory = MemoryFs::new();
        let region = simulated(&memory, 2);
        let a = appended(&region, Path::new("/d/a"));
        a.writer.append(&[&[3; 900]]).unwrap();
        memory.sync_dir(Path::new("/d")).unwrap();
        let killed = memory.fork();
        let torn = killed.open_append(Path::new("/d/a")).unwrap();
        torn.append(&[&vec![3; torn_bytes]]).unwrap();
        torn.sync().unwrap();
        drop(simulated(&killed, 2));
        for seed in 0..20 {
            let lost = killed.power_loss(Fate::Random(seed));
            drop(simulated(&lost, 2));
            assert!(lost.read(Path::new("/d/a")).unwrap() == [3; 900], "{torn_bytes} bytes, seed {seed}");
        }
    }
}
