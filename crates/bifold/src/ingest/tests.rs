//! An ingest whose pieces others write. The test does what workers would.

use std::{
    ops::Bound,
    sync::atomic::{AtomicBool, Ordering::SeqCst},
    thread,
};

use bifold_io::faulty::FaultKind;

use super::*;
use crate::{
    background::bed::Bed,
    settings::options::{KeyspaceOptions, Options, PlacementKind},
    state::pieces::TakenPiece,
};

const KEYS: u32 = 120;

/// A tree with pieces of some 20 entries.
fn bed(placement: PlacementKind) -> Bed {
    bed_with(placement, 16 << 20)
}

/// The same with value files of so many bytes.
fn bed_with(placement: PlacementKind, file_bytes: u64) -> Bed {
    let mut keyspace = KeyspaceOptions { placement, ..KeyspaceOptions::default() };
    keyspace.values.separate_from_bytes = Some(64);
    keyspace.values.file_bytes = file_bytes;
    let options = Options { workers: Workers::Threads(2), keyspace, memtable_bytes: 8 << 10, ..Options::default() };
    Bed::of(options)
}

impl Bed {
    fn put(&self, run: &mut IngestRun, n: u32) -> Result<()> {
        self.engine.ingests.put(run, &n.to_be_bytes(), Act::Put(&[n as u8; 100]))
    }

    /// An ingest whose first piece somebody has taken. Its next entry is that number.
    fn begin(&self) -> (IngestRun, TakenPiece, u32) {
        let mut run = self.engine.ingests.begin(&self.tree).unwrap();
        for n in 0..KEYS {
            self.put(&mut run, n).unwrap();
            let shown = self.engine.work.look(|state| state.ingest.clone());
            if let Some(taken) = shown.and_then(|pieces| pieces.take()) {
                return (run, taken, n + 1);
            }
        }
        panic!("no piece is shown");
    }

    fn data_files(&self) -> Vec<std::path::PathBuf> {
        let is_data = |path: &std::path::PathBuf| path.extension().is_some_and(|ext| ext == "tbl" || ext == "val");
        self.memory.files().into_iter().filter(is_data).collect()
    }

    fn found(&self) -> usize {
        let is_there = |n: &u32| self.engine.reader.get(&self.tree, &n.to_be_bytes(), None).unwrap().is_some();
        (0..KEYS).filter(is_there).count()
    }

    /// Waits until a thread waits for pieces that others write. `is_over`: it does not wait.
    fn until_it_waits(&self, is_over: &AtomicBool) -> bool {
        loop {
            if is_over.load(SeqCst) {
                return false;
            }
            if self.engine.signal.waits().iter().any(|wait| wait.who == "an ingest") {
                return true;
            }
            thread::yield_now();
        }
    }
}

#[test]
fn the_end_waits_for_pieces_that_others_write() {
    for placement in [PlacementKind::Inline, PlacementKind::HashKv, PlacementKind::UniKv] {
        let bed = bed(placement);
        let (mut run, taken, next) = bed.begin();
        (next..KEYS).for_each(|n| bed.put(&mut run, n).unwrap());
        let is_over = AtomicBool::new(false);
        let report = thread::scope(|scope| {
            let end = scope.spawn(|| {
                let report = bed.engine.ingests.finish(&mut run);
                is_over.store(true, SeqCst);
                report
            });
            assert!(bed.until_it_waits(&is_over), "{placement:?}: it does not wait");
            assert_eq!(bed.found(), 0, "{placement:?}");
            bed.engine.ingests.write(&taken);
            drop(taken);
            end.join().unwrap().unwrap()
        });
        assert_eq!((report.entries, bed.found()), (u64::from(KEYS), KEYS as usize), "{placement:?}");
        bed.engine.ingests.end(&mut run);
        assert_eq!(bed.found(), KEYS as usize, "{placement:?}");
        let view = bed.tree.view();
        let tables: Vec<_> = view.version.tables().map(|table| Arc::clone(table.meta())).collect();
        assert!(tables.len() > 3 && tables.windows(2).all(|pair| pair[0].largest < pair[1].smallest), "{tables:?}");
    }
}

#[test]
fn the_next_call_reports_why_a_piece_of_others_is_not_written() {
    for by_finish in [false, true] {
        let bed = bed(PlacementKind::HashKv);
        let (mut run, taken, next) = bed.begin();
        bed.faulty.decide_by(Box::new(|call| (call.op == "create").then_some(FaultKind::EIO)));
        bed.engine.ingests.write(&taken);
        drop(taken);
        bed.faulty.clear();
        let failed = match by_finish {
            true => bed.engine.ingests.finish(&mut run).map(drop),
            false => bed.put(&mut run, next),
        };
        let is_reported = matches!(failed, Err(Error::Io { .. } | Error::Poisoned { .. }));
        assert!(is_reported, "{by_finish}: {failed:?}");
        assert!(bed.put(&mut run, KEYS).is_err() && bed.engine.ingests.finish(&mut run).is_err(), "nor later ones");
        bed.engine.ingests.end(&mut run);
        assert_eq!((bed.found(), bed.data_files()), (0, Vec::new()), "{by_finish}");
    }
}

/// What the ingest has written is removed, and nothing else has changed.
#[test]
fn a_disk_that_is_full_when_value_files_end_fails_the_ingest_alone() {
    for placement in [PlacementKind::WiscKey, PlacementKind::HashKv, PlacementKind::UniKv] {
        let bed = bed(placement);
        // Whoever asks is told how much room there is.
        bed.memory.set_capacity(Some(1 << 30));
        let (mut run, taken, next) = bed.begin();
        bed.engine.ingests.write(&taken);
        drop(taken);
        (next..KEYS).for_each(|n| bed.put(&mut run, n).unwrap());
        bed.faulty.decide_by(Box::new(|call| {
            let is_value = call.path.extension().is_some_and(|ext| ext == "val");
            (call.op == "sync" && is_value).then_some(FaultKind::ENOSPC)
        }));
        let failed = bed.engine.ingests.finish(&mut run);
        bed.faulty.clear();
        assert!(matches!(failed, Err(Error::Full { .. })), "{placement:?}: {failed:?}");
        bed.engine.health.well().unwrap();
        bed.engine.ingests.end(&mut run);
        assert_eq!((bed.found(), bed.data_files()), (0, Vec::new()), "{placement:?}");
        bed.ingest(0, &[1; 100]);
        assert_eq!(bed.found(), 1, "{placement:?}");
    }
}

/// A thread that panics must not make the ingest wait, and what it has not written must not be missing.
#[test]
fn a_piece_that_ends_without_being_written_fails_the_ingest() {
    let bed = bed(PlacementKind::Inline);
    let (mut run, taken, next) = bed.begin();
    drop(taken);
    let failed = bed.put(&mut run, next);
    assert!(matches!(failed, Err(Error::Panicked { .. })), "{failed:?}");
    assert!(bed.engine.ingests.finish(&mut run).is_err());
    bed.engine.ingests.end(&mut run);
    assert_eq!((bed.found(), bed.data_files()), (0, Vec::new()));
    bed.engine.ingests.begin(&bed.tree).expect("another one begins");
}

#[test]
fn an_abandoned_ingest_waits_for_its_writers_and_leaves_nothing() {
    for placement in [PlacementKind::Inline, PlacementKind::HashKv, PlacementKind::DiffKv] {
        let bed = bed(placement);
        let (mut run, taken, next) = bed.begin();
        (next..KEYS).for_each(|n| bed.put(&mut run, n).unwrap());
        let is_over = AtomicBool::new(false);
        thread::scope(|scope| {
            scope.spawn(|| {
                bed.engine.ingests.end(&mut run);
                is_over.store(true, SeqCst);
            });
            let waits = bed.until_it_waits(&is_over);
            bed.engine.ingests.write(&taken);
            drop(taken);
            assert!(waits, "{placement:?}");
        });
        assert_eq!((bed.found(), bed.data_files()), (0, Vec::new()), "{placement:?}");
        assert!(bed.engine.work.look(|state| state.ingest.is_none()));
        bed.engine.health.well().unwrap();
    }
}

/// Merges read value files from front to back: no file may have a piece behind a later one, as an assertion says.
#[test]
fn files_ascend_whoever_writes_first() {
    for placement in [PlacementKind::DiffKv, PlacementKind::UniKv, PlacementKind::NovKv] {
        let bed = bed(placement);
        let (mut run, first, next) = bed.begin();
        let shown = bed.engine.work.look(|state| state.ingest.clone()).unwrap();
        let mut second = None;
        for n in next..KEYS {
            bed.put(&mut run, n).unwrap();
            second = second.or_else(|| shown.take());
        }
        for taken in [second.expect("a second piece"), first] {
            bed.engine.ingests.write(&taken);
        }
        assert_eq!(bed.engine.ingests.finish(&mut run).unwrap().entries, u64::from(KEYS));
        bed.engine.ingests.end(&mut run);
        assert_eq!(bed.found(), KEYS as usize, "{placement:?}");
    }
}

#[test]
fn closing_ends_the_pieces_of_others() {
    let bed = bed(PlacementKind::HashKv);
    let (mut run, taken, next) = bed.begin();
    bed.engine.close().unwrap();
    bed.engine.ingests.write(&taken);
    drop(taken);
    // Until the next piece is full, nobody asks.
    let failed = (next..KEYS).try_for_each(|n| bed.put(&mut run, n));
    assert!(matches!(failed, Err(Error::Closed { .. })), "{failed:?}");
    assert!(bed.engine.ingests.finish(&mut run).is_err());
    bed.engine.ingests.end(&mut run);
    assert_eq!(bed.data_files(), Vec::<std::path::PathBuf>::new());
    assert!(bed.engine.health.failure().is_none(), "closing is no failure");
}

/// GC would take it for garbage, and commits would be slowed because of it.
#[test]
fn nothing_counts_before_it_is_in_force() {
    for placement in PlacementKind::ALL {
        let bed = bed_with(placement, 2 << 10);
        (KEYS..KEYS + 8).for_each(|n| bed.ingest(n, &[1; 100]));
        bed.engine.rewrites.compact_range(&bed.tree, Bound::Unbounded, Bound::Unbounded).unwrap();
        let (before, files) = (bed.tree.placement().space(), bed.data_files().len());
        let (mut run, taken, next) = bed.begin();
        bed.engine.ingests.write(&taken);
        drop(taken);
        for n in next..KEYS {
            bed.put(&mut run, n).unwrap();
            assert_eq!(bed.tree.placement().space(), before, "{placement:?}, key {n}");
        }
        assert!(bed.data_files().len() > files + 2, "{placement:?}: pieces are written");
        assert_eq!(bed.engine.ingests.finish(&mut run).unwrap().entries, u64::from(KEYS));
        bed.engine.ingests.end(&mut run);
        assert_eq!(bed.found(), KEYS as usize, "{placement:?}");
        let after = bed.tree.placement().space();
        let has_values = placement != PlacementKind::Inline;
        assert_eq!(after.live_bytes > before.live_bytes, has_values, "{placement:?}: {after:?}, {before:?} before");
    }
}
