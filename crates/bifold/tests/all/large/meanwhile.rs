//! What else happens while a large value is written, or read.

use std::{
    io::{self, Read},
    path::Path,
    sync::atomic::{AtomicBool, Ordering::Relaxed},
};

use bifold::{Db, Error, PlacementKind, Workers};
use bifold_format::large::CHUNK_BYTES;

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
        std::thread::scope(|scope| {
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
        check(&bed.fs, Path::new("/db"), Others::None, "in the end");
        assert_eq!(on_disk(&bed.fs, Path::new("/db")).len(), 4, "{placement:?}");
    }
}
