//! What else happens while a large value is written, or read.

use std::{
    io::{self, Read},
    path::Path,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    thread,
    time::Duration,
};

use bifold::{Db, Env, Error, KeyspaceOptions, Options, PlacementKind, Workers};
use bifold_format::large::CHUNK_BYTES;
use bifold_io::{faulty::FaultyFs, memory::MemoryFs};

use super::{
    LARGE, bytes,
    files::{Others, check, on_disk},
    key, read_all,
};
use crate::{
    bed::{Bed, small},
    support::entries,
};

/// A source of so many bytes that does something after each so many chunks.
pub struct Between<F> {
    len: u64,
    chunks: u64,
    given: u64,
    act: F,
}

impl<F: FnMut()> Between<F> {
    pub fn new(len: u64, chunks: u64, act: F) -> Self {
        Self { len, chunks, given: 0, act }
    }
}

impl<F: FnMut()> Read for Between<F> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let every = self.chunks * CHUNK_BYTES;
        if self.given > 0 && self.given.is_multiple_of(every) && self.given < self.len {
            (self.act)();
        }
        let len = (buffer.len() as u64).min(self.len - self.given).min(every - self.given % every);
        buffer[..len as usize].fill(9);
        self.given += len;
        Ok(len as usize)
    }
}

#[test]
fn other_work_goes_on_while_a_value_is_written() {
    for placement in PlacementKind::ALL {
        let mut bed = Bed::new(placement);
        bed.ks().put_reader("key", &bytes(1, 1, 2 * LARGE)[..]).unwrap();
        let (mut round, mut held) = (1, Vec::new());
        let source = Between::new(6 * CHUNK_BYTES, 1, || {
            assert!(bed.ks().get("key").unwrap().unwrap() == bytes(1, round, 2 * LARGE), "{placement:?}, {round}");
            round += 1;
            bed.ks().put_reader("key", &bytes(1, round, 2 * LARGE)[..]).unwrap();
            (0..50).for_each(|n| bed.ks().put(key(n), bytes(n, round, 300)).unwrap());
            bed.db().compact().unwrap();
            bed.db().collect_garbage().unwrap();
            if round == 3 {
                held.push(bed.db().snapshot());
                bed.db().checkpoint("/copy").unwrap();
            }
        });
        bed.ks().put_reader("key", source).unwrap();
        assert!(bed.ks().get("key").unwrap().unwrap() == vec![9; 6 * CHUNK_BYTES as usize], "{placement:?}");
        assert!(held[0].get(bed.ks(), "key").unwrap().unwrap() == bytes(1, 3, 2 * LARGE));
        bed.db().compact().unwrap();
        assert!(held[0].get(bed.ks(), "key").unwrap().unwrap() == bytes(1, 3, 2 * LARGE));
        held.clear();
        // A commit, after which callers do what is due.
        bed.ks().put("small", "value").unwrap();
        bed.db().compact().unwrap();
        bed.reopen();
        check(&bed.fs, Path::new("/db"), Others::None, "written");
        assert_eq!(on_disk(&bed.fs, Path::new("/db")).len(), 1, "{placement:?}");
        let copy = Db::open_in(bed.env(), "/copy", bed.options.clone()).unwrap();
        assert!(copy.get("key").unwrap().unwrap() == bytes(1, 3, 2 * LARGE));
        drop(copy);
        check(&bed.fs, Path::new("/copy"), Others::None, "what the writer had not ended is not copied");
    }
}

#[test]
fn a_keyspace_that_is_dropped_meanwhile_takes_nothing_in() {
    for placement in PlacementKind::ALL {
        let mut bed = Bed::new(placement);
        let other = bed.db().keyspace("other", bed.options.keyspace.clone()).unwrap();
        let source = Between::new(2 * CHUNK_BYTES, 1, || bed.db().drop_keyspace("other").unwrap());
        assert!(matches!(other.put_reader("key", source), Err(Error::Closed { .. })), "{placement:?}");
        assert_eq!(on_disk(&bed.fs, Path::new("/db")).len(), 0, "{placement:?}");
        drop(other);
        bed.reopen();
    }
}

/// A source that does something before it yields these bytes.
struct After<F>(Option<F>, &'static [u8]);

impl<F: FnOnce()> Read for After<F> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        if let Some(act) = self.0.take() {
            act();
        }
        self.1.read(buffer)
    }
}

#[test]
fn a_keyspace_that_gets_a_ttl_meanwhile_takes_nothing_in() {
    for is_small in [true, false] {
        let bed = Bed::new(PlacementKind::Inline);
        let ttl = Some(Duration::from_secs(60));
        let act = || bed.ks().set_options(KeyspaceOptions { ttl, ..bed.options.keyspace.clone() }).unwrap();
        let put = match is_small {
            true => bed.ks().put_reader("key", After(Some(act), b"value")),
            false => bed.ks().put_reader("key", Between::new(2 * CHUNK_BYTES, 1, act)),
        };
        assert!(matches!(&put, Err(Error::InvalidArgument { .. })), "{is_small}: {put:?}");
        assert!(put.unwrap_err().to_string().contains("has a `ttl`"), "{is_small}");
        assert!(bed.ks().get("key").unwrap().is_none(), "{is_small}");
        assert_eq!(on_disk(&bed.fs, Path::new("/db")).len(), 0, "{is_small}");
        assert!(bed.db().stats().poisoned.is_none());
    }
}

/// What is appended counts for all who write. Otherwise others would not look at the disk before they have written as
/// much.
#[test]
fn a_disk_that_fills_while_a_value_is_written_refuses_puts_and_poisons_nothing() {
    const BEFORE: u64 = 18;
    let mut options = Options { memory_limit: 8 << 20, memtable_bytes: 64 << 10, ..small(PlacementKind::WiscKey) };
    (options.keyspace.table_bytes, options.keyspace.values.file_bytes) = (64 << 10, 64 << 10);
    let bed = Bed::of(options);
    bed.fs.set_capacity(Some(8 << 20));
    let mut refused = None;
    let fill = || refused = (0..).find_map(|n| bed.ks().put(key(n), [7; 3000]).err());
    let put = bed.ks().put_reader("key", Between::new((BEFORE + 1) * CHUNK_BYTES, BEFORE, fill));
    assert!(matches!(refused, Some(Error::Full { .. })), "{refused:?}");
    assert!(matches!(put, Err(Error::Full { .. })), "{put:?}");
    assert!(bed.db().stats().poisoned.is_none());
    assert_eq!(on_disk(&bed.fs, Path::new("/db")).len(), 0);
    bed.ks().put("key", [7; 3000]).unwrap();
}

/// Whoever installs an edit has locks that commits wait for.
#[test]
fn a_value_that_nobody_has_read_is_deleted_by_the_thread_that_removes_files() {
    let faulty = FaultyFs::over_memory(MemoryFs::new());
    let env = Env { fs: Arc::new(faulty.clone()), ..Env::system() };
    let options = Options { workers: Workers::Threads(2), ..small(PlacementKind::Inline) };
    let db = Db::open_in(env, "/db", options).unwrap();
    let removed_by = Arc::new(Mutex::new(Vec::new()));
    let seen = Arc::clone(&removed_by);
    faulty.decide_by(Box::new(move |call| {
        if call.op == "remove" && call.path.extension().is_some_and(|ending| ending == "large") {
            seen.lock().unwrap().push(thread::current().name().unwrap_or_default().to_owned());
        }
        None
    }));
    for round in 0..2 {
        db.default_keyspace().put_reader("key", &bytes(1, round, 2 * LARGE)[..]).unwrap();
    }
    db.flush().unwrap();
    db.wait_idle().unwrap();
    assert_eq!(*removed_by.lock().unwrap(), ["bifold-remover"]);
    db.close().unwrap();
}

#[test]
fn a_reader_keeps_its_value_whatever_is_written() {
    for placement in PlacementKind::ALL {
        // So that files are closed, and opened again by their names.
        let mut options = small(placement);
        options.open_files_max = 4;
        let bed = Bed::of(options);
        let value = bytes(1, 1, 4 * CHUNK_BYTES);
        for is_flushed in [false, true] {
            bed.ks().put_reader("key", &value[..]).unwrap();
            if is_flushed {
                bed.db().flush().unwrap();
            }
            let mut reader = bed.ks().get_reader("key").unwrap().unwrap();
            let mut range = bed.ks().iter();
            let pair = range.next().unwrap().unwrap();
            let mut first = vec![0; 100];
            reader.read_exact(&mut first).unwrap();
            bed.ks().delete("key").unwrap();
            (0..60).for_each(|n| bed.ks().put(format!("later{n}"), bytes(n, 2, 500)).unwrap());
            bed.db().compact().unwrap();
            assert!(bed.ks().get("key").unwrap().is_none());
            bed.db().collect_garbage().unwrap();
            entries(bed.ks().iter());
            assert_eq!(on_disk(&bed.fs, Path::new("/db")).len(), 1, "{placement:?}: it is read");
            assert!(pair.value().unwrap() == value, "{placement:?}");
            drop((pair, range));
            bed.db().compact().unwrap();
            let mut rest = Vec::new();
            reader.read_to_end(&mut rest).unwrap();
            assert!([first, rest].concat() == value, "{placement:?}");
            assert_eq!(on_disk(&bed.fs, Path::new("/db")).len(), 1, "{placement:?}: it is held");
            drop(reader);
            assert_eq!(on_disk(&bed.fs, Path::new("/db")).len(), 0, "{placement:?}");
            bed.ks().delete_range::<&[u8]>(..).unwrap();
            bed.db().compact().unwrap();
        }
    }
}

/// Values that say what they are: their round, and bytes that follow from it.
fn told(round: u32) -> Vec<u8> {
    [&round.to_le_bytes()[..], &bytes(round % 7, round, LARGE + u64::from(round % 5) * 40_000)].concat()
}

fn is_told(value: &[u8]) -> bool {
    let round = u32::from_le_bytes(*value.first_chunk().unwrap());
    value == told(round)
}

#[test]
fn readers_see_whole_values_while_others_overwrite_them() {
    for placement in [PlacementKind::Inline, PlacementKind::HashKv, PlacementKind::DiffKv] {
        let mut options = small(placement);
        options.workers = Workers::Threads(2);
        let bed = Bed::of(options);
        let ks = bed.ks();
        (0..4).for_each(|n| ks.put_reader(key(n), &told(n)[..]).unwrap());
        let is_done = AtomicBool::new(false);
        thread::scope(|scope| {
            for n in 0..3 {
                let (is_done, bed) = (&is_done, &bed);
                scope.spawn(move || {
                    let ks = bed.ks();
                    while !is_done.load(Relaxed) {
                        assert!(is_told(&ks.get(key(n)).unwrap().unwrap()));
                        assert!(is_told(&read_all(ks.get_reader(key(n)).unwrap().unwrap())));
                        entries(ks.iter()).iter().for_each(|(_, value)| assert!(is_told(value)));
                        let snapshot = bed.db().snapshot();
                        let one = snapshot.get(ks, key(n)).unwrap().unwrap();
                        assert!(read_all(snapshot.get_reader(ks, key(n)).unwrap().unwrap()) == one[..]);
                    }
                });
            }
            for round in 4..160 {
                ks.put_reader(key(round % 4), &told(round)[..]).unwrap();
                if round % 9 == 0 {
                    bed.db().flush().unwrap();
                }
                if round % 40 == 0 {
                    bed.db().compact().unwrap();
                }
            }
            is_done.store(true, Relaxed);
        });
        bed.db().compact().unwrap();
        // Until the last files are removed.
        bed.db().wait_idle().unwrap();
        check(&bed.fs, Path::new("/db"), Others::None, "in the end");
        assert_eq!(on_disk(&bed.fs, Path::new("/db")).len(), 4, "{placement:?}");
    }
}
