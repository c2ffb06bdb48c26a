//! GC of some files of the cold log (HashKV §3.4: "GC on the cold data log as in vLog").
//!
//! ```text
//! a file ─▶ each value: does the index lead here? ─▶ copy it to a file of survivors
//! a few at a time: commit the moves that the index still agrees to ─▶ for each, a new tag in the group of its key
//! when all have new tags: the files are drained
//! ```
//!
//! The tags are appended before the old files are drained, so the sync that allows these to be reclaimed makes the
//! tags durable. No reader misses a tag lost in a crash; the log only does not learn when its value dies. Where a run
//! ends between moves and their tags, it takes these values for dead: GC of their file moves those that are not, and
//! they get tags then.

use std::{
    collections::BTreeSet,
    sync::{Arc, Mutex},
};

use bifold_contract::{FileId, IoSource, Pointer, Result, SeqNo, planted};
use bifold_format::value::ValueKind;

use super::{HashKvState, What, cold_log::End};
use crate::{
    parts::{
        scan::Scan,
        sync::LockExt,
        value_files::{ValueFile, ValueFiles},
    },
    placement::{GcContext, GcOutcome, Moved},
    placements::ValueOptions,
};

/// Moves that are committed, and tagged, before others get the commit lock: less than half a millisecond of tags.
const MOVES_AT_ONCE: usize = 256;

/// Collects those of these files of the cold log that GC does not have already.
pub(super) fn relocate(
    (files, state, options): (&Arc<ValueFiles>, &Mutex<HashKvState>, &ValueOptions),
    sources: &BTreeSet<FileId>,
    gc: &dyn GcContext,
) -> Result<GcOutcome> {
    let sources = state.hold().cold_log.take(sources);
    let run = Relocation { files, state, options, sources };
    let Some(copied) = run.copy(gc)? else { return Ok(GcOutcome::freed(0)) };
    let mut left = &copied.moves[..];
    for (moves, seqnos) in copied.moves.chunks(MOVES_AT_ONCE).zip(copied.seqnos.chunks(MOVES_AT_ONCE)) {
        let moved = run.move_some(moves, seqnos, gc);
        left = &left[moves.len()..];
        moved.inspect_err(|_| {
            // The files they come from stay in use, so nobody needs these copies.
            left.iter().for_each(|moved| run.note_dead(moved));
        })?;
    }
    gc.hold_commits(&mut |commits| {
        let last = commits.commit(&[], &mut |_| {})?;
        files.mark_drained(run.sources.iter().map(|source| source.id), last);
        state.hold().cold_log.remove(&run.sources);
        Ok(())
    })?;
    let read_bytes: u64 = run.sources.iter().map(|source| source.len()).sum();
    Ok(GcOutcome::freed(read_bytes.saturating_sub(copied.bytes)))
}

/// Files of the cold log that are taken for GC.
struct Relocation<'a> {
    files: &'a Arc<ValueFiles>,
    state: &'a Mutex<HashKvState>,
    options: &'a ValueOptions,
    sources: Vec<Arc<ValueFile>>,
}

/// What was copied.
#[derive(Default)]
struct Copied {
    moves: Vec<Moved>,
    /// The sequence number of each record.
    seqnos: Vec<SeqNo>,
    bytes: u64,
}

impl Relocation<'_> {
    /// Copies what the index says is live. `None` if that is not possible now.
    fn copy(&self, gc: &dyn GcContext) -> Result<Option<Copied>> {
        // Survivors do not share files with what is new to the log: they die more rarely.
        let mut end = End::of_new_files(self.options.file_bytes);
        let mut copied = Copied::default();
        for source in &self.sources {
            self.copy_file(source, gc, &mut end, &mut copied).inspect_err(|error| {
                if self.files.leave_out_source(source.id, error) {
                    self.state.hold().left_out.insert(source.id);
                }
            })?;
        }
        let (copies, _no_head) = end.into_parts();
        let Some(files) = self.files.finish_copies(copies)? else { return Ok(None) };
        let state = &mut *self.state.hold();
        state.cold_log.add(files, state.groups.clock);
        Ok(Some(copied))
    }

    fn copy_file(&self, source: &ValueFile, gc: &dyn GcContext, end: &mut End, copied: &mut Copied) -> Result<()> {
        let mut scan = Scan::new(source, source.start(), source.len(), IoSource::Gc);
        while let Some((record, len)) = scan.sound()? {
            let from = Pointer { file: source.id, epoch: 0, offset: record.offset, len };
            if record.kind != ValueKind::Value || gc.look_up(record.key)? != Some(from) {
                continue;
            }
            let to = end.append(self.files, &record)?;
            copied.bytes += u64::from(to.len);
            copied.seqnos.push(record.seqno);
            copied.moves.push(Moved { key: record.key.into(), from, to });
        }
        Ok(())
    }

    /// A copy is not needed after all, or has no tag.
    fn note_dead(&self, moved: &Moved) {
        self.state.hold().cold_log.note_dead(moved.to.file, u64::from(moved.to.len));
    }

    /// Commits some moves, and appends a tag for each that was committed to the group of its key.
    fn move_some(&self, moves: &[Moved], seqnos: &[SeqNo], gc: &dyn GcContext) -> Result<()> {
        let mut refused = BTreeSet::new();
        let mut refuse = |moved: &Moved| {
            // It has no tag that could report its death. If a run fails, it may be refused again.
            if refused.insert((moved.to.file, moved.to.offset)) {
                self.note_dead(moved);
            }
        };
        let relocated = if planted!("log_moves_unasked") {
            gc.hold_commits(&mut |commits| commits.commit(moves, &mut |_| {}).map(drop)).map(drop)
        } else {
            gc.relocate(moves, &mut refuse).map(drop)
        };
        let is_committed = |(moved, _): &(&Moved, &SeqNo)| !refused.contains(&(moved.to.file, moved.to.offset));
        let committed = || moves.iter().zip(seqnos).filter(is_committed);
        let add_tags = || {
            gc.hold_commits(&mut |_| {
                let state = &mut *self.state.hold();
                for (moved, &seqno) in committed() {
                    state.append((self.files, self.options), &moved.key, seqno, What::Tag(moved.to))?;
                }
                Ok(())
            })
        };
        relocated.and_then(|()| add_tags()).map(drop).inspect_err(|_| {
            // Nobody would report their deaths.
            committed().for_each(|(moved, _)| self.note_dead(moved));
        })
    }
}

impl Drop for Relocation<'_> {
    fn drop(&mut self) {
        self.state.hold().cold_log.give_back(&self.sources);
    }
}

#[cfg(test)]
mod tests {
    use std::{
        cell::{Cell, RefCell},
        collections::BTreeMap,
    };

    use bifold_contract::{Corruption, Error};
    use bifold_format::value;
    use bifold_io::memory::MemoryFs;

    use super::*;
    use crate::{
        parts::value_files::{COLD, scratch::value_files},
        placement::{Commits, Scene},
        placements::{
            SMALL, Settings,
            hashkv::{HashKv, NO_REGION},
        },
    };

    /// An index that cannot be read any more once so many moves were asked for. On a full disk nobody gets the commit
    /// lock for tags.
    struct Fails {
        places: RefCell<BTreeMap<Vec<u8>, Pointer>>,
        after: Cell<usize>,
        is_full: Cell<bool>,
    }

    impl Scene for Fails {
        fn look_up(&self, key: &[u8]) -> Result<Option<Pointer>> {
            Ok(self.places.borrow().get(key).copied())
        }

        fn relocate(&self, moves: &[Moved], refused: &mut dyn FnMut(&Moved)) -> Result<Option<SeqNo>> {
            if self.after.get() == 0 {
                moves.iter().for_each(refused);
                return Err(Corruption::new(0, "data block", "a block", "zeros").of("/db/1.tbl"));
            }
            self.after.set(self.after.get() - 1);
            self.places.borrow_mut().extend(moves.iter().map(|moved| (moved.key.to_vec(), moved.to)));
            Ok(Some(10_000))
        }

        fn hold_commits(&self, act: &mut dyn FnMut(&mut dyn Commits) -> Result<()>) -> Result<bool> {
            struct None;
            impl Commits for None {
                fn commit(&mut self, _moves: &[Moved], _refused: &mut dyn FnMut(&Moved)) -> Result<SeqNo> {
                    Ok(10_000)
                }
            }
            if self.is_full.get() {
                return Err(Error::Full { path: "/db".into(), free_bytes: 0, needed_bytes: 1 });
            }
            act(&mut None).map(|()| true)
        }
    }

    /// A log of one file with so many values.
    fn filled(files: &Arc<ValueFiles>, values: usize) -> (HashKv, Arc<ValueFile>, BTreeMap<Vec<u8>, Pointer>) {
        let hashkv = HashKv::open(files, &Settings::new(SMALL)).unwrap();
        let mut copy = files.begin_copy(COLD, NO_REGION).unwrap();
        let mut places = BTreeMap::new();
        for (n, seqno) in (0..values as u64).zip(1..) {
            let key = n.to_be_bytes();
            let at = copy.append_with(|out, at| {
                value::encode(out, at, ValueKind::Value, seqno, &key, value::Stored::plain(&[7; 20]));
            });
            places.insert(key.to_vec(), at.unwrap());
        }
        let sources = files.finish_copies(vec![copy]).unwrap().unwrap();
        let source = Arc::clone(&sources[0]);
        hashkv.state.hold().cold_log.add(sources, 0);
        (hashkv, source, places)
    }

    #[test]
    fn values_that_got_no_tags_are_taken_for_dead_until_they_move_again() {
        let files = Arc::new(value_files(&MemoryFs::new(), 100));
        let (hashkv, source, places) = filled(&files, MOVES_AT_ONCE + 10);
        let gc = Fails { places: RefCell::new(places), after: Cell::new(usize::MAX), is_full: Cell::new(true) };
        let collect = |ids: BTreeSet<FileId>| relocate((&files, &hashkv.state, &SMALL), &ids, &gc);
        assert!(matches!(collect([source.id].into()), Err(Error::Full { .. })));
        let live = || hashkv.state.hold().cold_log.live();
        let bytes = source.len() - source.start();
        assert_eq!(live(), bytes, "those in the old file alone");

        gc.is_full.set(false);
        let all: BTreeSet<FileId> = hashkv.state.hold().cold_log.ids().collect();
        collect(all).unwrap();
        assert_eq!(live(), bytes);
        assert!(hashkv.state.hold().groups.all().iter().any(|group| group.tag_bytes > 0));
    }

    #[test]
    fn copies_that_nothing_leads_to_are_dead_when_moves_fail() {
        let files = Arc::new(value_files(&MemoryFs::new(), 100));
        let (hashkv, source, places) = filled(&files, 3 * MOVES_AT_ONCE + 10);
        let record_bytes = u64::from(places.values().next().unwrap().len);

        let gc = Fails { places: RefCell::new(places), after: Cell::new(1), is_full: Cell::new(false) };
        relocate((&files, &hashkv.state, &SMALL), &[source.id].into(), &gc).unwrap_err();
        let copies = files.in_use().into_iter().filter(|file| file.description.class == COLD && file.id != source.id);
        let live: u64 = copies.map(|file| file.len() - file.start() - file.dead()).sum();
        assert_eq!(live, MOVES_AT_ONCE as u64 * record_bytes, "those of the first moves");
        assert_eq!(source.dead(), 0);
    }
}
