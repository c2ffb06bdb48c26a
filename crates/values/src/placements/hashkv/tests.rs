//! GC runs that end early, or that an ingest or a death comes into, and rewrites that are abandoned.

use std::{
    cell::{Cell, RefCell},
    path::Path,
};

use bifold_contract::{Entry, Error, Kind};
use bifold_format::{names, pointer};
use bifold_io::memory::MemoryFs;

use super::{options::Cold, regroup::regroup, units::FamilyUnit, *};
use crate::{
    parts::value_files::{COLLECTED, scratch::value_files},
    placement::{Commits, Moved, Scene},
    placements::SMALL,
};

/// Commits moves without an index, and has no room for a memtable after so many times.
struct ShortOfRoom<'a> {
    holds_left: Cell<usize>,
    committed: RefCell<Vec<Moved>>,
    /// Keys whose entries are no longer there.
    vanished: RefCell<BTreeSet<Box<[u8]>>>,
    /// Comes before a hold of the commit lock: the first one, or after so many.
    meanwhile: Cell<Option<&'a dyn Fn()>>,
    holds_before: Cell<usize>,
}

impl ShortOfRoom<'_> {
    fn after(holds: usize) -> Self {
        Self {
            holds_left: Cell::new(holds),
            committed: RefCell::default(),
            vanished: RefCell::default(),
            meanwhile: Cell::new(None),
            holds_before: Cell::new(0),
        }
    }
}

impl Scene for ShortOfRoom<'_> {
    fn hold_commits(&self, act: &mut dyn FnMut(&mut dyn Commits) -> Result<()>) -> Result<bool> {
        struct NotesMoves<'a>(&'a RefCell<Vec<Moved>>, &'a RefCell<BTreeSet<Box<[u8]>>>);
        impl Commits for NotesMoves<'_> {
            fn commit(&mut self, moves: &[Moved], refused: &mut dyn FnMut(&Moved)) -> Result<SeqNo> {
                let vanished = self.1.borrow();
                for moved in moves {
                    if vanished.contains(&moved.key) {
                        refused(moved);
                    } else {
                        self.0.borrow_mut().push(moved.clone());
                    }
                }
                Ok(10_000)
            }
        }
        if self.holds_left.get() == 0 {
            return Err(Error::Full { path: "/db".into(), free_bytes: 0, needed_bytes: 1 });
        }
        self.holds_left.set(self.holds_left.get() - 1);
        let before = self.holds_before.get();
        self.holds_before.set(before.saturating_sub(1));
        if before == 0
            && let Some(meanwhile) = self.meanwhile.take()
        {
            meanwhile();
        }
        let done = act(&mut NotesMoves(&self.committed, &self.vanished));
        assert!(done.is_ok(), "what fails here ends writes: {done:?}");
        Ok(true)
    }
}

const JOB: RewriteJob = RewriteJob { from: None, to: 0, deepest: 0, moving: Vec::new() };

fn options(cold: Cold) -> ValueOptions {
    let mut options = SMALL;
    options.hashkv.cold = cold;
    options
}

/// An empty keyspace.
fn opened(fs: &MemoryFs, cold: Cold) -> (Arc<ValueFiles>, HashKv) {
    let files = Arc::new(value_files(fs, 100));
    let hashkv = HashKv::open(&files, &Settings::new(options(cold))).unwrap();
    (files, hashkv)
}

/// Keys of the first of the groups that a keyspace begins with.
fn keys_of_one_group(count: usize) -> Vec<[u8; 8]> {
    let is_in_group = |key: &[u8; 8]| key_hash(key) & ((1 << GROUP_BITS) - 1) == 0;
    (0..).map(u64::to_be_bytes).filter(is_in_group).take(count).collect()
}

fn put(hashkv: &HashKv, keys: &[[u8; 8]], first: SeqNo) -> Vec<Pointer> {
    let put = |(key, seqno): (&[u8; 8], SeqNo)| hashkv.write(WriteOp::Put { key, value: &[7; 40] }, seqno);
    keys.iter().zip(first..).map(|one| put(one).unwrap().unwrap()).collect()
}

/// GC of the groups with these hashes, and of both of their segments.
fn collect(files: &Arc<ValueFiles>, hashkv: &HashKv, hashes: &[u64], gc: &ShortOfRoom<'_>) -> Result<GcOutcome> {
    let unit = |hash: &u64| FamilyUnit { region: hashkv.state.hold().groups.at(*hash).region, hot_only: false };
    let units = hashes.iter().map(unit).collect();
    regroup((files, &hashkv.state, &hashkv.options.now()), units, gc)
}

fn bytes_in_use(files: &ValueFiles) -> u64 {
    files.in_use().iter().map(|file| file.len() - file.start()).sum()
}

/// All files are in groups, and all their bytes are known there.
fn assert_grouped(files: &ValueFiles, hashkv: &HashKv) {
    let state = hashkv.state.hold();
    let groups = state.groups.all();
    let grouped: BTreeSet<FileId> = groups.iter().flat_map(|group| group.files()).map(|file| file.id).collect();
    let in_use: BTreeSet<FileId> = files.in_use().iter().map(|file| file.id).collect();
    assert_eq!(grouped, in_use);
    assert_eq!(groups.iter().map(|group| group.bytes()).sum::<u64>(), bytes_in_use(files));
}

/// Otherwise the copy of a value that was deleted since comes back with the next opening, above the delete.
#[test]
fn the_copies_of_a_run_that_is_abandoned_are_in_its_groups() {
    for cold in [Cold::Off, Cold::Segments] {
        let (files, hashkv) = opened(&MemoryFs::new(), cold);
        let keys = keys_of_one_group(600);
        put(&hashkv, &keys, 1);
        let (bytes, live) = (bytes_in_use(&files), hashkv.space().live_bytes);
        let gc = ShortOfRoom::after(1);
        assert!(matches!(collect(&files, &hashkv, &[0], &gc), Err(Error::Full { .. })), "{cold:?}");
        assert_eq!(gc.committed.borrow().len(), 512, "{cold:?}: some have moved");
        assert_grouped(&files, &hashkv);
        assert_eq!(hashkv.space().live_bytes, live, "{cold:?}");

        gc.holds_left.set(usize::MAX);
        collect(&files, &hashkv, &[0], &gc).unwrap();
        hashkv.write(WriteOp::Delete { key: &keys[0] }, 700).unwrap();
        collect(&files, &hashkv, &[0], &gc).unwrap();
        assert_eq!(bytes_in_use(&files), bytes / 600 * 599, "{cold:?}: neither the value nor the note");
        let reopened = HashKv::open(&files, &Settings::new(options(cold))).unwrap();
        gc.committed.borrow_mut().clear();
        collect(&files, &reopened, &[0], &gc).unwrap();
        let committed = gc.committed.borrow();
        assert_eq!(committed.len(), 599, "{cold:?}");
        assert!(committed.iter().all(|moved| *moved.key != keys[0]), "{cold:?}: the deleted value moves");
    }
}

#[test]
fn runs_that_are_abandoned_leave_no_empty_files() {
    let (files, hashkv) = opened(&MemoryFs::new(), Cold::Off);
    let keys = keys_of_one_group(300);
    put(&hashkv, &keys, 1);
    for _ in 0..3 {
        collect(&files, &hashkv, &[0], &ShortOfRoom::after(0)).unwrap_err();
        assert!(files.in_use().iter().all(|file| !file.is_empty()));
        assert_grouped(&files, &hashkv);
    }
    put(&hashkv, &keys[..1], 1000);
    assert_grouped(&files, &hashkv);
}

#[test]
fn what_cannot_be_read_of_commits_meanwhile_ends_the_run_and_not_writes() {
    let fs = MemoryFs::new();
    let (files, hashkv) = opened(&fs, Cold::Off);
    let keys = keys_of_one_group(600);
    put(&hashkv, &keys, 1);
    let overwrite = || {
        let at = put(&hashkv, &keys[..1], 1000)[0];
        fs.flip_bit(&Path::new("/db").join(names::value(at.file)), (at.offset + u64::from(at.len) - 4) * 8);
    };
    let gc = ShortOfRoom::after(usize::MAX);
    gc.meanwhile.set(Some(&overwrite));
    assert!(collect(&files, &hashkv, &[0], &gc).unwrap_err().is_unreadable());
    assert_eq!(gc.committed.borrow().len(), 0);
    assert_grouped(&files, &hashkv);
}

/// Groups that have split share the file of an ingest.
#[test]
fn what_an_ingest_writes_while_gc_runs_counts_once() {
    let (files, hashkv) = opened(&MemoryFs::new(), Cold::Off);
    hashkv.state.hold().groups.split_at(0);
    let keys = keys_of_one_group(600);
    let (before, ingested) = keys.split_at(200);
    put(&hashkv, before, 1);
    let arrive = || {
        let mut ingest = hashkv.ingester(&JOB).unwrap();
        for (key, seqno) in ingested.iter().zip(1000..) {
            ingest.keep(&Entry::inline(key, seqno, &[8; 40])).unwrap();
        }
        let edit = ingest.finish().unwrap();
        files.unhide(&edit);
        hashkv.comes_into_force(&edit);
    };
    let gc = ShortOfRoom::after(usize::MAX);
    gc.meanwhile.set(Some(&arrive));
    collect(&files, &hashkv, &[0, 1 << GROUP_BITS], &gc).unwrap();
    let live = hashkv.space().live_bytes;
    let bytes = bytes_in_use(&files);
    assert!(live <= bytes && live > bytes * 9 / 10, "{live} bytes are live of {bytes}");
}

/// A rewrite that drops the entries of these keys, put with the numbers from 1 on, because a range delete with the
/// number 1000 covers them.
fn dropping(hashkv: &HashKv, keys: &[[u8; 8]], pointers: &[Pointer]) -> Box<dyn Rewriter> {
    let mut rewriter = hashkv.rewriter(&JOB).unwrap();
    for ((key, seqno), at) in keys.iter().zip(1..).zip(pointers) {
        let mut payload = Vec::new();
        pointer::encode(*at, &mut payload);
        rewriter.discard(&Entry { key, seqno, kind: Kind::Pointer, payload: &payload }, 1000).unwrap();
    }
    rewriter
}

/// Records the edit of a rewrite.
fn install(files: &ValueFiles, hashkv: &HashKv, mut edit: ValueEdit) {
    hashkv.count_pointers(&mut edit);
    files.installed(&edit);
}

/// The index refuses such a move: the entry has expired, and a flush or compaction has dropped it.
#[test]
fn what_vanishes_before_it_can_move_is_dead() {
    for cold in [Cold::Off, Cold::Segments, Cold::Log] {
        let (files, hashkv) = opened(&MemoryFs::new(), cold);
        let keys = keys_of_one_group(600);
        put(&hashkv, &keys, 1);
        let value_bytes = bytes_in_use(&files) / 600;
        let gc = ShortOfRoom::after(usize::MAX);
        gc.vanished.borrow_mut().extend(keys[..200].iter().map(|key| Box::<[u8]>::from(&key[..])));
        collect(&files, &hashkv, &[0], &gc).unwrap();
        assert_eq!(gc.committed.borrow().len(), 400, "{cold:?}");
        assert_eq!(hashkv.space().live_bytes, 400 * value_bytes, "{cold:?}");

        // Their next values replace nothing, but for a few keys that filters wrongly take for known.
        put(&hashkv, &keys[..200], 2000);
        let live = hashkv.space().live_bytes;
        assert!((590 * value_bytes..=600 * value_bytes).contains(&live), "{cold:?}: {}", live / value_bytes);
    }
}

/// The run has counted the copy as live, and is not over.
#[test]
fn what_vanishes_once_it_has_moved_is_dead_when_the_run_ends() {
    for (cold, class) in [(Cold::Off, COLLECTED), (Cold::Segments, COLD)] {
        let (files, hashkv) = opened(&MemoryFs::new(), cold);
        let keys = keys_of_one_group(600);
        let pointers = put(&hashkv, &keys, 1);
        let value_bytes = bytes_in_use(&files) / 600;
        let drop_some = || {
            hashkv.write(WriteOp::DeleteRange { start: &keys[0], end: Some(&keys[100][..]) }, 1000).unwrap();
            let copy = files.in_use().into_iter().find(|file| file.description.class == class).unwrap();
            let moved: Vec<Pointer> = pointers[..100].iter().map(|at| Pointer { file: copy.id, ..*at }).collect();
            install(&files, &hashkv, dropping(&hashkv, &keys[..100], &moved).finish().unwrap());
        };
        let gc = ShortOfRoom::after(usize::MAX);
        gc.meanwhile.set(Some(&drop_some));
        gc.holds_before.set(1);
        collect(&files, &hashkv, &[0], &gc).unwrap();
        assert_eq!(gc.committed.borrow().len(), 600, "{cold:?}: they moved before");
        assert_eq!(hashkv.space().live_bytes, 500 * value_bytes, "{cold:?}");
    }
}

#[test]
fn what_a_rewrite_drops_counts_once_it_is_recorded() {
    let (files, hashkv) = opened(&MemoryFs::new(), Cold::Off);
    let keys = keys_of_one_group(300);
    let pointers = put(&hashkv, &keys, 1);
    hashkv.write(WriteOp::DeleteRange { start: &[], end: None }, 1000).unwrap();
    let drop_all = || dropping(&hashkv, &keys, &pointers);
    let before = hashkv.space().live_bytes;
    assert!(before > 0);
    drop(drop_all());
    assert_eq!(hashkv.space().live_bytes, before, "it was abandoned");
    let ended = drop_all().finish().unwrap();
    assert_eq!(hashkv.space().live_bytes, before, "another range of its flush may fail");
    install(&files, &hashkv, ended);
    assert_eq!(hashkv.space().live_bytes, 0);
}

/// A group that knows no tags does not hear of them again.
#[test]
fn what_the_cold_log_loses_is_in_the_edit_of_the_rewrite() {
    let (files, hashkv) = opened(&MemoryFs::new(), Cold::Log);
    let keys = keys_of_one_group(300);
    put(&hashkv, &keys, 1);
    let gc = ShortOfRoom::after(usize::MAX);
    collect(&files, &hashkv, &[0], &gc).unwrap();
    let pointers: Vec<Pointer> = gc.committed.borrow().iter().map(|moved| moved.to).collect();

    let reopened = HashKv::open(&files, &Settings::new(options(Cold::Log))).unwrap();
    reopened.write(WriteOp::DeleteRange { start: &[], end: None }, 1000).unwrap();
    let live = || reopened.state.hold().cold_log.live();
    let before = live();
    assert!(before > 0);
    drop(dropping(&reopened, &keys, &pointers).finish().unwrap());
    assert_eq!(live(), before, "it was abandoned");
    let mut edit = dropping(&reopened, &keys, &pointers).finish().unwrap();
    reopened.count_pointers(&mut edit);
    assert_eq!(edit.garbage.iter().map(|&(_, bytes, _)| bytes).sum::<u64>(), before);
    files.installed(&edit);
    assert_eq!(live(), 0);
}
