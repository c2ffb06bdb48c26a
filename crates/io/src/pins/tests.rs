//! Pins in memory, with the locks of processes that end.

use std::{path::Path, sync::Arc};

use bifold_contract::IoSource;

use super::*;
use crate::{
    FileObserver,
    faulty::{FaultKind, FaultyFs},
    memory::MemoryFs,
};

fn number(name: &str) -> Option<u64> {
    name.strip_suffix(".tbl")?.parse().ok()
}

/// A directory, and the same one as its writer sees it.
fn directories() -> (MemoryFs, Dir, Dir) {
    let fs = MemoryFs::default();
    let dir = Dir::new(Arc::new(fs.clone()), "/d".as_ref());
    dir.create_dir().unwrap();
    let pins = Pins::of(&dir, number);
    (fs, dir.clone(), dir.with_pins(pins))
}

fn position(manifest: u64, offset: u64) -> Position {
    Position { manifest, offset }
}

fn make(dir: &Dir, names: &[&str]) {
    for name in names {
        dir.create(name, IoSource::Flush).unwrap().append(&[b"xyz"]).unwrap();
    }
}

fn totals(writer: &Dir) -> (u64, u64, u64) {
    let totals = writer.release_pinned();
    (totals.readers, totals.files, totals.bytes)
}

#[test]
fn a_new_pin_holds_everything_and_a_dropped_one_nothing() {
    let (_fs, dir, writer) = directories();
    make(&dir, &["1.tbl", "2.tbl", "other"]);
    writer.remove("1.tbl").unwrap();
    let pin = Pin::take(&dir).unwrap();
    writer.pins().unwrap().note_position(position(5, 100));
    writer.remove("2.tbl").unwrap();
    writer.remove("other").unwrap();
    assert_eq!(dir.list().unwrap(), ["2.tbl"]);
    assert_eq!(totals(&writer), (1, 1, 3));
    drop(pin);
    assert_eq!(totals(&writer), (0, 0, 0));
    assert!(dir.list().unwrap().is_empty());
    assert!(dir.sibling(&Path::new("/d").join(READERS)).list().unwrap().is_empty());
}

#[test]
fn a_pin_holds_files_that_are_removed_later_and_were_there_before() {
    let (_fs, dir, writer) = directories();
    make(&dir, &["1.tbl", "2.tbl", "7.tbl", "9.tbl"]);
    let pins = writer.pins().unwrap();
    let pin = Pin::take(&dir).unwrap();
    pin.hold(Need { since: position(5, 200), below: 8 }).unwrap();
    // An older manifest, and an earlier place in the same one: the reader knows of these removals.
    pins.note_position(position(4, 900));
    writer.remove("1.tbl").unwrap();
    pins.note_position(position(5, 200));
    writer.remove("2.tbl").unwrap();
    // A later place, and one in a later manifest, where offsets are smaller again.
    pins.note_position(position(6, 50));
    writer.remove("7.tbl").unwrap();
    writer.remove("9.tbl").unwrap();
    assert_eq!(dir.list().unwrap(), ["7.tbl"]);
    pin.hold(Need { since: position(6, 50), below: 12 }).unwrap();
    assert_eq!(totals(&writer), (1, 0, 0));
    assert!(dir.list().unwrap().is_empty());
}

#[test]
fn what_an_opening_removes_is_held_until_the_reader_has_read_the_new_manifest() {
    let (_fs, dir, writer) = directories();
    make(&dir, &["3.tbl"]);
    let pin = Pin::take(&dir).unwrap();
    pin.hold(Need { since: position(5, 200), below: 8 }).unwrap();
    writer.remove("3.tbl").unwrap();
    writer.pins().unwrap().note_position(position(9, 80));
    assert_eq!(totals(&writer), (1, 1, 3));
    pin.hold(Need { since: position(9, 80), below: 10 }).unwrap();
    assert_eq!(totals(&writer), (1, 0, 0));
}

#[test]
fn the_pin_of_a_killed_process_ends_with_it() {
    let (fs, dir, writer) = directories();
    make(&dir, &["3.tbl"]);
    std::mem::forget(Pin::take(&dir).unwrap());
    writer.remove("3.tbl").unwrap();
    assert_eq!(totals(&writer), (1, 1, 3));
    let readers = Path::new("/d").join(READERS);
    fs.end_locks_in(&readers);
    assert_eq!(totals(&writer), (0, 0, 0));
    assert!(fs.list(&readers).unwrap().is_empty(), "its file is removed");
}

#[test]
fn a_pin_that_cannot_be_read_holds_everything() {
    let (fs, dir, writer) = directories();
    make(&dir, &["3.tbl"]);
    let pin = Pin::take(&dir).unwrap();
    pin.hold(Need { since: Position::LAST, below: 0 }).unwrap();
    let path = fs.list(&Path::new("/d").join(READERS)).unwrap().remove(0);
    let mut bytes = fs.read(&path).unwrap();
    bytes[3] ^= 1;
    fs.write_durable(&path, &bytes);
    writer.remove("3.tbl").unwrap();
    assert_eq!(totals(&writer), (1, 1, 3));
}

#[test]
fn the_file_of_a_pin_stays_short() {
    let (fs, dir, writer) = directories();
    let pin = Pin::take(&dir).unwrap();
    let path = fs.list(&Path::new("/d").join(READERS)).unwrap().remove(0);
    for offset in 0..5000 {
        pin.hold(Need { since: position(1, offset), below: 3 }).unwrap();
        assert!(fs.len(&path).unwrap().unwrap() <= PIN_BYTES_MAX);
    }
    make(&dir, &["2.tbl", "3.tbl"]);
    writer.pins().unwrap().note_position(position(1, 5000));
    writer.remove("2.tbl").unwrap();
    writer.remove("3.tbl").unwrap();
    assert_eq!(dir.list().unwrap(), ["2.tbl"]);
}

#[test]
fn on_a_real_disk_a_pin_ends_with_its_lock() {
    let path = std::env::temp_dir().join(format!("bifold-pins-{}", std::process::id()));
    let dir = Dir::new(Arc::new(crate::disk::DiskFs), &path);
    dir.create_dir().unwrap();
    let writer = dir.clone().with_pins(Pins::of(&dir, number));
    make(&dir, &["3.tbl", "4.tbl"]);
    let pin = Pin::take(&dir).unwrap();
    writer.remove("3.tbl").unwrap();
    assert_eq!(totals(&writer), (1, 1, 3));
    // As a killed process leaves it: the file is there, and nobody has locked it.
    let left = path.join(READERS).join("left");
    std::fs::write(&left, []).unwrap();
    assert_eq!(totals(&writer), (1, 1, 3));
    assert!(!left.exists());
    drop(pin);
    assert_eq!(totals(&writer), (0, 0, 0));
    std::fs::remove_dir_all(&path).unwrap();
}

/// Between the creation of a pin's file and its lock the writer removes it, and the lock creates another.
#[test]
fn a_pin_whose_file_the_writer_has_removed_before_its_lock_says_what_it_holds() {
    let (fs, dir, writer) = directories();
    make(&dir, &["3.tbl"]);
    let (faulty, looks) = (FaultyFs::over_memory(fs), writer.clone());
    faulty.decide_by(Box::new(move |call| {
        if call.op == "lock" {
            assert_eq!(totals(&looks), (0, 0, 0));
        }
        None
    }));
    let pin = Pin::take(&Dir::new(Arc::new(faulty), "/d".as_ref())).unwrap();
    writer.remove("3.tbl").unwrap();
    assert_eq!(totals(&writer), (1, 1, 3));
    pin.hold(Need { since: Position::LAST, below: 0 }).unwrap();
    assert_eq!(totals(&writer), (1, 0, 0));
    drop(pin);
    assert_eq!(totals(&writer), (0, 0, 0));
}

/// Notes what an observer is told: names of removed files, and errors.
#[derive(Default)]
struct Noted(Mutex<Vec<String>>);

impl FileObserver for Noted {
    fn created(&self, _name: &str) {}

    fn removed(&self, name: &str) {
        self.0.lock().unwrap().push(name.to_owned());
    }

    fn readers_unknown(&self, error: &Error) {
        self.0.lock().unwrap().push(error.to_string());
    }
}

/// A reader's directory, its writer's over calls that can be made to fail, and what is noted of the latter.
fn observed() -> (Dir, FaultyFs, Dir, Arc<Noted>) {
    let (fs, dir, _) = directories();
    let faulty = FaultyFs::over_memory(fs);
    let over_faults = Dir::new(Arc::new(faulty.clone()), "/d".as_ref());
    let writer = over_faults.clone().with_pins(Pins::of(&over_faults, number));
    let noted = Arc::new(Noted::default());
    writer.observe(Arc::clone(&noted) as Arc<dyn FileObserver>);
    (dir, faulty, writer, noted)
}

#[test]
fn a_file_that_has_waited_for_a_reader_is_told_when_it_is_removed_and_counted_when_that_fails() {
    let (dir, faulty, writer, noted) = observed();
    make(&dir, &["1.tbl", "2.tbl", "3.tbl", "4.tbl"]);
    let pin = Pin::take(&dir).unwrap();
    writer.remove("1.tbl").unwrap();
    writer.remove("2.tbl").unwrap();
    faulty.decide_by(Box::new(|call| (call.op == "remove" && call.path.ends_with("2.tbl")).then_some(FaultKind::EIO)));
    drop(pin);
    assert!(noted.0.lock().unwrap().is_empty());
    assert_eq!(totals(&writer), (0, 0, 0));
    assert_eq!(*noted.0.lock().unwrap(), ["1.tbl"]);
    assert_eq!(writer.totals().failed_removals, 1);
    // And when another one is removed.
    let pin = Pin::take(&dir).unwrap();
    writer.remove("3.tbl").unwrap();
    drop(pin);
    writer.remove("4.tbl").unwrap();
    assert_eq!(*noted.0.lock().unwrap(), ["1.tbl", "3.tbl", "4.tbl"]);
    assert_eq!(dir.list().unwrap(), ["2.tbl"]);
}

/// As where the directory of pins, or a pin, belongs to another user.
#[test]
fn why_it_is_unknown_who_reads_is_told_once_until_it_is_known() {
    const EACCES: FaultKind = FaultKind::Errno(13);
    let (dir, faulty, writer, noted) = observed();
    make(&dir, &["1.tbl"]);
    let pin = Pin::take(&dir).unwrap();
    pin.hold(Need { since: Position::LAST, below: 0 }).unwrap();
    for op in ["list", "lock"] {
        let about_readers = Path::new("/d").join(READERS);
        faulty.decide_by(Box::new(move |call| {
            (call.op == op && call.path.starts_with(&about_readers)).then_some(EACCES)
        }));
        (0..3).for_each(|_| assert_eq!(totals(&writer).0, 1, "{op}"));
        let told = std::mem::take(&mut *noted.0.lock().unwrap());
        assert!(told.len() == 1 && told[0].starts_with(&format!("cannot {op} /d/readers")), "{told:?}");
        faulty.clear();
        assert_eq!(totals(&writer).0, 1);
        assert!(noted.0.lock().unwrap().is_empty(), "{op}");
    }
    drop(pin);
    assert_eq!(totals(&writer), (0, 0, 0));
}

/// As where a directory does not say what its entries are, and one is gone when it is looked up.
#[test]
fn a_list_that_does_not_find_one_of_the_pins_says_nothing_of_the_others() {
    const ENOENT: FaultKind = FaultKind::Errno(2);
    let (fs, dir, _) = directories();
    make(&dir, &["1.tbl"]);
    let faulty = FaultyFs::over_memory(fs);
    let over_faults = Dir::new(Arc::new(faulty.clone()), "/d".as_ref());
    let writer = over_faults.clone().with_pins(Pins::of(&over_faults, number));
    let pin = Pin::take(&dir).unwrap();
    faulty.decide_by(Box::new(|call| (call.op == "list" && call.path.ends_with(READERS)).then_some(ENOENT)));
    writer.remove("1.tbl").unwrap();
    assert_eq!(dir.list().unwrap(), ["1.tbl"]);
    faulty.clear();
    assert_eq!(totals(&writer), (1, 1, 3));
    drop(pin);
    assert_eq!(totals(&writer), (0, 0, 0));
}

#[test]
fn a_pin_that_somebody_has_removed_says_so_whatever_it_is_to_hold() {
    let (fs, dir, _) = directories();
    let pin = Pin::take(&dir).unwrap();
    fs.remove(&fs.list(&Path::new("/d").join(READERS)).unwrap().remove(0)).unwrap();
    for need in [Need::EVERYTHING, Need { since: position(5, 200), below: 8 }] {
        assert!(matches!(pin.hold(need), Err(Error::Corruption { .. })), "{need:?}");
    }
}
