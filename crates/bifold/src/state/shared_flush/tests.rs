//! How a flush is shared.

use std::{
    path::Path,
    sync::{
        Arc, Barrier,
        atomic::{
            AtomicBool, AtomicU32,
            Ordering::{Relaxed, SeqCst},
        },
    },
    thread,
};

use bifold_io::faulty::FaultKind;

use super::*;
use crate::{
    background::bed::{Bed, DIR},
    settings::options::KeyspaceOptions,
};

const KEYS: u32 = 64;

/// A tree with tables of four keys.
fn bed() -> Bed {
    Bed::new(KeyspaceOptions { table_bytes: 1600, ..KeyspaceOptions::default() })
}

impl Bed {
    /// Fills a memtable and seals it.
    fn seal(&self, round: u8) {
        self.fill((0..KEYS).map(|n| (n, vec![round; 100])));
    }

    /// The values of all keys.
    fn values(&self) -> Vec<u8> {
        let get = |n: u32| self.engine.reader.get(&self.tree, &n.to_be_bytes(), None).unwrap().unwrap()[0];
        (0..KEYS).map(get).collect()
    }

    /// The flush that workers would find.
    fn shared(&self) -> Option<Arc<SharedFlush>> {
        self.engine.work.look(|state| state.shared.get(&self.tree.keyspace).cloned())
    }

    fn tables(&self) -> usize {
        let dir = bifold_io::Dir::new(Arc::new(self.memory.clone()), Path::new(DIR));
        dir.list().unwrap().iter().filter(|name| name.ends_with(".tbl")).count()
    }
}

fn keys(text: &str) -> Vec<Box<[u8]>> {
    text.bytes().map(|key| [key].into()).collect()
}

#[test]
fn ranges_have_about_equally_many_tables() {
    assert_eq!(bounds(&keys("bcdefgh"), 4), keys("ceg"), "two tables each");
    assert_eq!(bounds(&keys("bcd"), 3), keys("bc"), "one, one and two");
    assert_eq!(bounds(&keys("bc"), 16), keys("bc"), "at most one for each table");
    assert_eq!(bounds(&keys("bcd"), 1), keys(""));
    assert_eq!(bounds(&[], 4), keys(""), "nowhere to cut");
}

#[test]
fn garbage_of_one_file_is_counted_once() {
    let output = |garbage: &[(FileId, u64, u64)]| Output {
        values: ValueEdit { garbage: garbage.to_vec(), ..ValueEdit::default() },
        ..Output::default()
    };
    let all = joined([output(&[(7, 10, 1), (8, 5, 1)]), output(&[(7, 30, 2)])].into_iter());
    assert_eq!(all.values.garbage, [(7, 40, 3), (8, 5, 1)]);
}

#[test]
fn memtables_are_installed_oldest_first() {
    let bed = bed();
    (1..=2).for_each(|round| bed.seal(round));
    bed.flush().unwrap();
    assert_eq!(bed.values(), [2; KEYS as usize]);
    assert_eq!(bed.tree.flushed(), u64::from(KEYS), "the older one");
    bed.flush().unwrap();
    assert_eq!(bed.values(), [2; KEYS as usize]);
    assert!(bed.tree.view().sealed.is_empty());
}

/// The flush must wait for the range of another thread, and installs all ranges at once.
#[test]
fn a_flush_waits_for_the_ranges_of_others() {
    let bed = bed();
    bed.seal(1);
    bed.flush().unwrap();
    bed.seal(2);
    let (held, go) = (Barrier::new(2), Barrier::new(2));
    let is_unwritten = thread::scope(|scope| {
        // Holds the flush at its first call until another thread has a range.
        let at_first = AtomicBool::new(true);
        let (entered, enter) = (Arc::new(Barrier::new(2)), Arc::new(Barrier::new(2)));
        let (here, on) = (Arc::clone(&entered), Arc::clone(&enter));
        bed.faulty.decide_by(Box::new(move |call| {
            let is_table = call.op == "create" && call.path.to_string_lossy().ends_with(".tbl");
            if is_table && at_first.swap(false, SeqCst) {
                here.wait();
                on.wait();
            }
            None
        }));
        let flush = scope.spawn(|| bed.flush());
        entered.wait();
        let range = bed.shared().expect("it is shown").take().expect("most are free");
        scope.spawn(|| {
            held.wait();
            go.wait();
            bed.engine.flusher.help_flush(&range);
            drop(range);
        });
        held.wait();
        enter.wait();
        while bed.shared().is_some() {
            thread::yield_now();
        }
        let is_unwritten = bed.tree.view().sealed.len() == 1;
        go.wait();
        flush.join().unwrap().unwrap();
        is_unwritten
    });
    assert!(is_unwritten, "it waits");
    assert!(bed.tree.view().sealed.is_empty());
    assert_eq!(bed.values(), [2; KEYS as usize]);
    let view = bed.tree.view();
    let newest = &view.version.shape().levels[0].runs[0].tables;
    assert!(newest.len() > 2 && newest.windows(2).all(|pair| pair[0].largest < pair[1].smallest), "{newest:?}");
    assert_eq!(newest.iter().map(|table| table.entries).sum::<u64>(), u64::from(KEYS));
}

/// Whichever table cannot be written, no other of the flush stays.
#[test]
fn nothing_is_left_of_a_flush_with_a_failed_range() {
    for failing in 0..8 {
        let bed = bed();
        bed.seal(1);
        bed.flush().unwrap();
        let before = bed.tables();
        bed.seal(2);
        let created = AtomicU32::new(0);
        bed.faulty.decide_by(Box::new(move |call| {
            let is_table = call.op == "create" && call.path.to_string_lossy().ends_with(".tbl");
            let is_doomed = is_table && created.fetch_add(1, Relaxed) == failing;
            is_doomed.then_some(FaultKind::EIO)
        }));
        assert!(bed.flush().is_err(), "table {failing}");
        assert_eq!(bed.tables(), before, "table {failing}");
        assert!(bed.shared().is_none());
        assert_eq!(bed.values(), [2; KEYS as usize]);
        bed.faulty.clear();
        bed.flush().unwrap();
        assert_eq!(bed.values(), [2; KEYS as usize]);
    }
}

/// A thread that panics must not make the flush wait, and what it has not written must not be installed.
#[test]
fn a_range_that_ends_without_being_written_fails_the_flush() {
    let bed = bed();
    bed.seal(1);
    bed.flush().unwrap();
    bed.seal(2);
    let view = bed.tree.view_to_hold();
    let flush = bed.engine.flusher.plan_flush(&bed.tree, &view, view.sealed.last().unwrap());
    let bounds = bounds(&flush.cuts, 4);
    assert!(!bounds.is_empty());
    let shared = SharedFlush::new(flush, bounds);
    let abandoned = shared.take().unwrap();
    shared.take().unwrap().write(|flush, keys| bed.engine.flusher.write_range(flush, keys));
    drop(abandoned);
    assert!(shared.take().is_none() && !shared.has_more(), "no more are begun");
    shared.wait(&bed.engine.signal, Duration::ZERO);
    let before = bed.tree.view().version.tables().count();
    assert!(matches!(
        shared.outcome(|flush, output| bed.engine.flusher.give_up_flush(flush, output)),
        Err(Error::Panicked { .. })
    ));
    assert_eq!(bed.tables(), before);
}
