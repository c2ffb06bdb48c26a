use std::{path::Path, thread};

use bifold_contract::{Error, IoSource};

use super::*;
use crate::{
    Dir, FileSystem, Reader,
    counting::CountingFs,
    faulty::{Fault, FaultKind, FaultyFs, Persistence},
    memory::MemoryFs,
    random::Random,
};

fn dir(max: usize) -> (CountingFs, Dir) {
    let fs = CountingFs::new(Arc::new(MemoryFs::new()), max);
    (fs.clone(), dir_of(Arc::new(fs), max))
}

fn dir_of(fs: Arc<dyn FileSystem>, max: usize) -> Dir {
    let dir = Dir::new(fs, Path::new("/d")).with_open_files_max(max);
    dir.create_dir().unwrap();
    dir
}

/// Files that contain their number.
fn files(dir: &Dir, count: u8) -> Vec<Reader> {
    (0..count).map(|number| file(dir, number)).collect()
}

fn file(dir: &Dir, number: u8) -> Reader {
    let name = format!("{number}");
    dir.create(&name, IoSource::Flush).unwrap().append(&[&[number; 10]]).unwrap();
    dir.open(&name).unwrap()
}

fn read(reader: &Reader) -> u8 {
    let mut byte = [0];
    reader.read_at(&mut byte, 5, IoSource::Get).unwrap();
    byte[0]
}

#[test]
fn no_more_files_are_open_than_allowed_and_all_can_be_read() {
    let (fs, dir) = dir(4);
    let files = files(&dir, 30);
    let mut random = Random::new(1);
    for _ in 0..2000 {
        let number = random.below(30);
        assert_eq!(u64::from(read(&files[number as usize])), number);
        assert_eq!((fs.open_files(), dir.open_files().open), (4, 4));
    }
    assert_eq!(fs.over_max(), 0);
    drop(files);
    assert_eq!((fs.open_files(), dir.open_files().open), (0, 0));
}

#[test]
fn a_file_that_is_read_often_stays_open() {
    let (_, dir) = dir(4);
    let files = files(&dir, 30);
    let before = dir.open_files().reopened;
    for rarely in files.iter().cycle().take(1000) {
        assert_eq!((read(&files[7]), read(rarely)), (7, read(rarely)));
    }
    let reopened = dir.open_files().reopened - before;
    assert!(reopened <= 1001, "reopened {reopened} times: the file read every second time was among them");
}

#[test]
fn a_file_that_is_closed_while_it_is_read_is_read_to_the_end() {
    let (fs, dir) = dir(1);
    let entry = Entry::new();
    let files = files(&dir, 2);
    let opened = OpenFiles::new(1);
    opened.open(&entry, || fs.open(&dir.file("0"))).unwrap();
    let reading = entry.get();
    opened.open(&Entry::new(), || fs.open(&dir.file("1"))).unwrap();
    assert!(entry.get().is_none(), "it made room for the other");
    let mut byte = [9];
    reading.as_ref().unwrap().read_at(&mut byte, 0).unwrap();
    assert_eq!(byte, [0]);
    let open = fs.open_files();
    drop(reading);
    assert_eq!(fs.open_files(), open - 1);
    drop(files);
}

#[test]
fn threads_read_more_files_than_may_be_open() {
    const THREADS: u64 = 4;
    let (fs, dir) = dir(3);
    let files = files(&dir, 20);
    let read_many = |seed| {
        let mut random = Random::new(seed);
        for _ in 0..2000 {
            let number = random.below(20);
            assert_eq!(u64::from(read(&files[number as usize])), number);
        }
    };
    thread::scope(|scope| {
        (0..THREADS).for_each(|seed| drop(scope.spawn(move || read_many(seed))));
        scope.spawn(|| (100..160).for_each(|number| assert_eq!(read(&file(&dir, number)), number)));
    });
    // One for each read in progress.
    assert!(fs.over_max() <= THREADS as usize + 1, "{}", fs.over_max());
    assert!(dir.open_files().open <= 3, "{:?}", dir.open_files());
}

#[test]
fn files_being_written_count_stay_open_and_are_read_as_they_grow() {
    let (fs, dir) = dir(4);
    let files = files(&dir, 5);
    let (writer, reader) = dir.create_appended("grows", IoSource::Value).unwrap();
    for length in 1..50u8 {
        writer.append(&[&[length]]).unwrap();
        let mut last = [0];
        reader.read_at(&mut last, u64::from(length) - 1, IoSource::Get).unwrap();
        assert_eq!(last, [length]);
        assert_eq!(read(&files[usize::from(length) % 5]), length % 5);
        let now = dir.open_files();
        assert_eq!((now.open, now.written, fs.open_files()), (4, 1, 4));
    }
    drop(writer);
    assert_eq!((read(&reader), dir.open_files().written), (6, 0));
    let writer = dir.append_to(&reader, IoSource::Value).unwrap();
    assert_eq!(writer.len(), 49);
    let more: Vec<_> = (0..9).map(|n| dir.create(&format!("more{n}"), IoSource::Flush).unwrap()).collect();
    assert_eq!((dir.open_files().open, fs.open_files()), (10, 10), "all of them written");
    assert!(dir.is_crowded_by_writers());
    assert_eq!(files.iter().map(read).collect::<Vec<_>>(), [0, 1, 2, 3, 4]);
    assert_eq!((fs.over_max(), fs.open_files()), (1, 11), "the one that is read");
    drop((more, writer));
    assert!(!dir.is_crowded_by_writers());
    assert_eq!(read(&reader), 6);
}

#[test]
fn an_obsolete_file_exists_until_its_last_reader_is_dropped() {
    let (_, dir) = dir(1);
    let obsolete = file(&dir, 1);
    let reading = obsolete.clone();
    obsolete.remove_when_unused();
    drop(obsolete);
    for round in 10..15 {
        assert_eq!(read(&file(&dir, round)), round, "this closes the other");
        assert_eq!(read(&reading), 1);
        assert!(dir.list().unwrap().contains(&"1".to_owned()));
    }
    drop(reading);
    assert!(!dir.list().unwrap().contains(&"1".to_owned()));
}

#[test]
fn a_file_that_cannot_be_opened_again_is_an_error_that_names_it_and_nothing_is_lost() {
    let fs = FaultyFs::new(Arc::new(MemoryFs::new()));
    let dir = dir_of(Arc::new(fs.clone()), 1);
    let files = files(&dir, 2);
    for kind in [FaultKind::EMFILE, FaultKind::EIO] {
        let calls = fs.calls();
        fs.plan(Fault { at: calls + 1, kind, persistence: Persistence::Once });
        match files[0].read_at(&mut [0], 0, IoSource::Get) {
            Err(Error::Io { path, .. }) => assert_eq!(path, dir.file("0")),
            other => panic!("{other:?}"),
        }
        assert_eq!((fs.calls(), dir.open_files().open), (calls + 1, 0));
        assert_eq!((read(&files[0]), read(&files[1])), (0, 1));
    }
}
