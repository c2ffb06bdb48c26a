//! The placement by itself. [`Stage`] plays the engine's part: it records edits.

use std::{cell::RefCell, collections::BTreeMap, path::Path, sync::atomic::AtomicU64};

use bifold_contract::ValueFileMeta;
use bifold_io::{Dir, fs::FileSystem, memory::MemoryFs};

use super::{victims::Choice, *};
use crate::{
    parts::{
        budget::Memory,
        value_files::{FileAccess, StoreContext},
    },
    placement::{GcOutcome, Scene},
    store::ValueStore,
};

mod handles;

const OPTIONS: crate::placements::ValueOptions = crate::placements::SMALL;

/// Plays the engine's part in GC: it installs edits, and nothing is asked of the index or written to it.
struct Installs<'a> {
    stage: RefCell<&'a mut Stage>,
    /// Comes between the copies and the edit.
    meanwhile: &'a dyn Fn(&mut Stage),
    installed: RefCell<Vec<ValueEdit>>,
}

impl Scene for Installs<'_> {
    fn install(&self, edit: &mut dyn FnMut() -> ValueEdit, in_force: &mut dyn FnMut()) -> Result<()> {
        let stage = &mut **self.stage.borrow_mut();
        (self.meanwhile)(stage);
        let edit = edit();
        stage.record(&edit);
        in_force();
        stage.placement.installed(&edit);
        self.installed.borrow_mut().push(edit);
        Ok(())
    }
}

/// Names every version: its key, its number and where it is.
type Version = (&'static [u8], SeqNo, Pointer);

struct Stage {
    fs: MemoryFs,
    next: Arc<AtomicU64>,
    placement: ValueStore<NovKv>,
    recorded: BTreeMap<FileId, ValueFileMeta>,
}

impl Stage {
    fn new() -> Self {
        let (fs, next) = (MemoryFs::new(), Arc::new(AtomicU64::new(1)));
        let placement = open(&fs, &next, &BTreeMap::new());
        Self { fs, next, placement, recorded: BTreeMap::new() }
    }

    fn put(&self, key: &'static [u8], seqno: SeqNo) -> Version {
        let value = value(key, seqno);
        let pointer = self.placement.write(WriteOp::Put { key, value: &value }, seqno).unwrap().unwrap();
        (key, seqno, pointer)
    }

    /// No more is appended to the present file, and all of it is recorded.
    fn end_file(&mut self) {
        self.placement.begin_sync();
        self.placement.sync().unwrap();
        self.placement.synced();
        self.placement.value_log.seal();
        let added = self.placement.unrecorded();
        self.install(&ValueEdit { added, ..ValueEdit::default() });
        let pending_edit = self.placement.pending_edit(0);
        self.install(&pending_edit);
    }

    /// A rewrite that drops these versions. Its edit is not installed yet.
    fn drop_versions(&self, versions: &[Version]) -> ValueEdit {
        let job = RewriteJob { from: Some(0), to: 1, deepest: 1, moving: Vec::new() };
        let mut rewriter = self.placement.rewriter(&job).unwrap();
        for &(key, seqno, pointer) in versions {
            let mut payload = Vec::new();
            pointer::encode(pointer, &mut payload);
            let entry = Entry { key, seqno, kind: Kind::Pointer, payload: &payload };
            rewriter.discard(&entry, seqno + 1).unwrap();
        }
        rewriter.finish().unwrap()
    }

    fn install(&mut self, edit: &ValueEdit) {
        self.record(edit);
        self.placement.installed(edit);
    }

    fn record(&mut self, edit: &ValueEdit) {
        for id in &edit.removed {
            assert!(self.recorded.remove(id).is_some(), "file {id} is not there");
        }
        for meta in &edit.added {
            assert!(self.recorded.insert(meta.id, meta.clone()).is_none(), "file {} is there already", meta.id);
        }
    }

    fn collect(&mut self, files: Vec<FileId>) {
        self.run(Choice::Rebuild(files.into_iter().map(|file| (file, 0)).collect()), &|_| {});
    }

    /// Runs GC, with something in between the copies and their edit. Returns the edit.
    fn run(&mut self, choice: Choice, meanwhile: &dyn Fn(&mut Self)) -> ValueEdit {
        let job = Job::new(&self.placement.shared, choice);
        let gc = Installs { stage: RefCell::new(self), meanwhile, installed: RefCell::default() };
        assert!(matches!(job.run(&gc), Ok(GcOutcome::Collected { .. })));
        gc.installed.into_inner().pop().expect("GC installs an edit")
    }

    fn reopen(&mut self) {
        self.placement = open(&self.fs, &self.next, &self.recorded);
    }

    /// Reads it and returns the better pointer that is known then.
    fn check(&self, (key, seqno, pointer): Version) -> Option<Pointer> {
        let found = self.placement.read(key, seqno, pointer, IoSource::Get).unwrap();
        let found = found.unwrap_or_else(|| panic!("version {seqno} of {} is lost", key.escape_ascii()));
        assert_eq!(&found[..], value(key, seqno));
        let tables = self.placement.shared.tables.load();
        let epoch = tables.get(pointer.file).map_or(pointer.epoch, |table| table.properties.epoch);
        let offset = (epoch != pointer.epoch).then(|| self.placement.shared.handles.get(pointer, epoch))?;
        offset.map(|offset| Pointer { epoch, offset, ..pointer })
    }

    /// How a rewrite writes it.
    fn kept(&self, (key, seqno, pointer): Version) -> placement::Kept {
        let job = RewriteJob { from: Some(0), to: 1, deepest: 1, moving: Vec::new() };
        let mut payload = Vec::new();
        pointer::encode(pointer, &mut payload);
        let entry = Entry { key, seqno, kind: Kind::Pointer, payload: &payload };
        self.placement.rewriter(&job).unwrap().keep(&entry).unwrap()
    }

    /// As [`Stage::check`], whatever the pointer.
    fn read(&self, version: Version) {
        self.check(version);
    }

    fn is_lost(&self, (key, seqno, pointer): Version) -> bool {
        self.placement.read(key, seqno, pointer, IoSource::Get).unwrap().is_none()
    }

    /// Whether each of these is read by a call for several, if all are announced.
    fn are_read_together(&self, versions: &[Version]) -> Vec<bool> {
        let pointers: Vec<Pointer> = versions.iter().map(|version| version.2).collect();
        let announced = self.placement.prefetch(&pointers);
        let is_read = |&(key, seqno, pointer): &Version| {
            let Some(announced) = &announced else { return false };
            let look = |found: &[u8]| assert_eq!(found, value(key, seqno));
            self.placement.look_at_announced((key, pointer), announced, IoSource::Scan, look).unwrap().is_some()
        };
        versions.iter().map(is_read).collect()
    }

    /// Bytes that are dead as far as known, by file.
    fn dead(&self) -> BTreeMap<FileId, u64> {
        let units = self.placement.explain(&pressure(0.0)).into_iter();
        units.map(|unit| (unit.files[0], (unit.score * 1000.0).round() as u64)).collect()
    }
}

fn open(fs: &MemoryFs, next: &Arc<AtomicU64>, recorded: &BTreeMap<FileId, ValueFileMeta>) -> ValueStore<NovKv> {
    open_to_replay(fs, next, recorded, &[])
}

fn open_to_replay(
    fs: &MemoryFs,
    next: &Arc<AtomicU64>,
    recorded: &BTreeMap<FileId, ValueFileMeta>,
    present: &[FileId],
) -> ValueStore<NovKv> {
    let dir = Dir::new(Arc::new(fs.clone()) as Arc<dyn FileSystem>, Path::new("/db"));
    dir.create_dir().unwrap();
    let next = Arc::clone(next);
    let new_file = Arc::new(move || next.fetch_add(1, Relaxed));
    let context = StoreContext {
        dir,
        keyspace: 1,
        new_file,
        access: FileAccess::Write,
        memory: Memory::new(1 << 20, 1 << 20),
        unsynced: Arc::default(),
    };
    let recorded = ValueEdit { added: recorded.values().cloned().collect(), ..ValueEdit::default() };
    let files = Arc::new(ValueFiles::open(context, &recorded, present).unwrap());
    ValueStore::of(Arc::clone(&files), Box::new(NovKv::open(&files, &Settings::new(OPTIONS)).unwrap()))
}

/// Pressure with so many of all entries above others.
fn pressure(entries_above: f64) -> SpacePressure {
    SpacePressure { entries_above, ..SpacePressure::of_target(1.5) }
}

/// All as long as each other.
fn value(key: &[u8], seqno: SeqNo) -> Vec<u8> {
    [key, b" ", format!("{seqno:03}").as_bytes()].concat().repeat(10)
}

#[test]
fn a_stale_pointer_is_searched_for_once() {
    let mut stage = Stage::new();
    let versions = [stage.put(b"b", 1), stage.put(b"a", 2), stage.put(b"b", 3), stage.put(b"c", 4)];
    stage.end_file();
    let edit = stage.drop_versions(&versions[1..2]);
    stage.install(&edit);
    stage.collect(vec![versions[0].2.file]);
    assert!(stage.is_lost(versions[1]));
    for version in [versions[0], versions[2], versions[3]] {
        assert_eq!(stage.placement.shared.repaired(version.1, version.2).unwrap(), None);
        let fresher = stage.check(version).expect("it had to be searched for");
        assert_eq!(stage.placement.shared.repaired(version.1, version.2).unwrap(), Some(fresher));
        assert_eq!(stage.check(version), Some(fresher));
        assert_eq!(stage.check((version.0, version.1, fresher)), None, "a fresh one leads there at once");
    }
    // A rewrite that finds a stale pointer writes the repaired one.
    assert_eq!(stage.kept(versions[0]), placement::Kept::Pointer(stage.check(versions[0]).unwrap()));
}

#[test]
fn neighbours_are_read_together_in_files_and_tables_unless_a_pointer_is_out_of_date() {
    let mut stage = Stage::new();
    let versions = [stage.put(b"a", 1), stage.put(b"b", 2), stage.put(b"b", 3), stage.put(b"c", 4)];
    stage.end_file();
    assert_eq!(stage.are_read_together(&versions), [true; 4]);
    stage.collect(vec![versions[0].2.file]);
    assert_eq!(stage.are_read_together(&versions), [false; 4]);
    let fresh = versions.map(|(key, seqno, stale)| (key, seqno, stage.check((key, seqno, stale)).unwrap()));
    assert_eq!(stage.are_read_together(&fresh), [true; 4]);
    // Their handles are known now, and announced. That of one version could lead to another one.
    stage.placement.shared.handles.keep(versions[1].2, fresh[2].2.epoch, fresh[2].2.offset);
    assert_eq!(stage.are_read_together(&versions), [false; 4]);
}

#[test]
fn a_handle_of_another_version_is_noticed() {
    let mut stage = Stage::new();
    let (old, new) = (stage.put(b"key", 1), stage.put(b"key", 2));
    stage.end_file();
    stage.collect(vec![old.2.file]);
    let place_of_new = stage.check(new).unwrap();
    stage.placement.shared.handles.keep(old.2, place_of_new.epoch, place_of_new.offset);
    stage.check(old);
    stage.placement.shared.handles.keep(old.2, place_of_new.epoch, place_of_new.offset + 1);
    stage.check(old);
    stage.placement.shared.handles.keep(old.2, place_of_new.epoch, 1 << 39);
    stage.check(old);
}

#[test]
fn drop_keys_that_come_during_gc_are_not_forgotten() {
    let mut stage = Stage::new();
    let versions = [stage.put(b"a", 1), stage.put(b"b", 2), stage.put(b"c", 3), stage.put(b"d", 4)];
    stage.end_file();
    let file = versions[0].2.file;
    let first = stage.drop_versions(&versions[..1]);
    stage.install(&first);
    let edit = stage.run(Choice::Rebuild(vec![(file, 0)]), &|stage| {
        let meanwhile = stage.drop_versions(&versions[1..2]);
        stage.install(&meanwhile);
    });
    assert_eq!(edit.removed, [file, first.added[0].id], "the drop file written meanwhile stays");
    let table = edit.added[0].id;
    assert_eq!(stage.dead(), [(table, 333)].into(), "one of three");
    stage.reopen();
    assert_eq!(stage.dead(), [(table, 333)].into());
    stage.collect(vec![table]);
    assert!(stage.is_lost(versions[0]) && stage.is_lost(versions[1]));
    [versions[2], versions[3]].into_iter().for_each(|version| stage.read(version));
    assert_eq!(stage.recorded.len(), 1, "all drop-keys are regarded: {:?}", stage.recorded);
}

/// A table that lacks what an unreadable drop file drops still says so when it is rewritten: otherwise the same records
/// would be counted twice once the file can be read, and a file with live values would pass for empty.
#[test]
fn what_an_unreadable_drop_file_has_dropped_is_not_counted_again() {
    for also_other in [false, true] {
        let mut stage = Stage::new();
        let first = [stage.put(b"a", 1), stage.put(b"b", 2)];
        stage.end_file();
        let second = [stage.put(b"c", 3), stage.put(b"d", 4)];
        stage.end_file();
        let edit = stage.drop_versions(&[first[0], second[0]]);
        stage.install(&edit);
        let table_in = |stage: &mut Stage, files: Vec<FileId>| {
            let edit = stage.run(Choice::Rebuild(files.into_iter().map(|file| (file, 0)).collect()), &|_| {});
            edit.added[0].id
        };
        let other = second[0].2.file;
        let mut table = table_in(&mut stage, vec![first[0].2.file]);
        assert_eq!(stage.dead(), [(table, 0), (other, 500)].into(), "the drop file stays for the other");
        let path = stage.placement.shared.files.get(edit.added[0].id).unwrap().reader().path().to_owned();
        let bit = (stage.fs.read(&path).unwrap().len() as u64 - 4) * 8;
        stage.fs.flip_bit(&path, bit);
        stage.reopen();
        assert_eq!(stage.dead(), [(table, 0), (other, 0)].into());
        table = table_in(&mut stage, if also_other { vec![table, other] } else { vec![table] });
        stage.fs.flip_bit(&path, bit);
        stage.reopen();
        let dead = if also_other { vec![(table, 0)] } else { vec![(table, 0), (other, 500)] };
        assert_eq!(stage.dead(), dead.into_iter().collect());
        stage.collect(stage.dead().into_keys().collect());
        assert!(stage.is_lost(first[0]));
        [first[1], second[1]].into_iter().for_each(|version| stage.read(version));
    }
}

#[test]
fn a_rewrite_that_was_not_put_in_force_drops_nothing() {
    let mut stage = Stage::new();
    let versions = [stage.put(b"a", 1), stage.put(b"b", 2)];
    stage.end_file();
    let _failed = stage.drop_versions(&versions[..1]);
    assert_eq!(stage.dead(), [(versions[0].2.file, 0)].into());
    let retried = stage.drop_versions(&versions[..1]);
    stage.install(&retried);
    assert_eq!(stage.dead(), [(versions[0].2.file, 500)].into(), "once");
    stage.reopen();
    assert_eq!(stage.dead(), [(versions[0].2.file, 500)].into());
}

#[test]
fn files_are_merged_and_every_number_leads_to_the_table() {
    let mut stage = Stage::new();
    let mut versions = Vec::new();
    for (at, key) in [b"d", b"a", b"c", b"b"].into_iter().enumerate() {
        versions.push(stage.put(key, 2 * at as u64 + 1));
        versions.push(stage.put(b"all", 2 * at as u64 + 2));
        stage.end_file();
    }
    let files: Vec<FileId> = versions.iter().step_by(2).map(|version| version.2.file).collect();
    stage.collect(files.clone());
    assert_eq!(stage.recorded.len(), 1);
    let check_all = |stage: &Stage| versions.iter().for_each(|&version| stage.read(version));
    check_all(&stage);
    stage.reopen();
    check_all(&stage);
    // What one number led to is dropped in full: the next table does without the number.
    let edit = stage.drop_versions(&versions[..2]);
    stage.install(&edit);
    let table = *stage.recorded.keys().next().unwrap();
    stage.collect(vec![table]);
    assert!(stage.placement.shared.tables.load().get(files[0]).is_none());
    assert!(stage.is_lost(versions[0]) && stage.is_lost(versions[1]));
    versions[2..].iter().for_each(|&version| stage.read(version));
    // With everything dropped nothing is left, and nothing is copied for it.
    let rest: Vec<Version> = versions[2..].to_vec();
    let edit = stage.drop_versions(&rest);
    stage.install(&edit);
    let table = stage.recorded.values().find(|meta| meta.class == SORTED).unwrap().id;
    stage.collect(vec![table]);
    assert!(stage.recorded.is_empty(), "{:?}", stage.recorded);
}

#[test]
fn drop_files_are_merged() {
    let mut stage = Stage::new();
    let keys: [&[u8]; 12] = [b"0", b"1", b"2", b"3", b"4", b"5", b"6", b"7", b"8", b"9", b"x", b"y"];
    let versions: Vec<Version> = keys.iter().zip(1..).map(|(key, seqno)| stage.put(key, seqno)).collect();
    stage.end_file();
    for version in &versions[..9] {
        let edit = stage.drop_versions(std::slice::from_ref(version));
        stage.install(&edit);
    }
    let dead = stage.dead();
    let Some(Choice::MergeDrops(files)) = stage.placement.choose(&pressure(0.0)) else { panic!("there are too many") };
    assert!(files.len() > 2 && !files.contains(&versions[0].2.file));
    stage.run(Choice::MergeDrops(files), &|_| {});
    assert_eq!(stage.dead(), dead);
    stage.reopen();
    assert_eq!(stage.dead(), dead);
    stage.collect(vec![versions[0].2.file]);
    assert!(versions[..9].iter().all(|&version| stage.is_lost(version)));
    versions[9..].iter().for_each(|&version| stage.read(version));
    assert_eq!(stage.recorded.len(), 1);
}

/// A stale pointer that leads to the place of another one's handle is not rewritten in the index.
#[test]
fn a_handle_of_another_pointer_is_not_written_into_the_index() {
    let mut stage = Stage::new();
    let (read, other) = (stage.put(b"a", 1), stage.put(b"b", 2));
    stage.end_file();
    stage.collect(vec![read.2.file]);
    let place = stage.check(read).unwrap();
    stage.placement.shared.handles.keep(other.2, place.epoch, place.offset);
    assert_eq!(stage.kept(other), placement::Kept::Unchanged);
    stage.check(other);
    assert_ne!(stage.kept(other), placement::Kept::Unchanged);
}

#[test]
fn a_file_whose_values_a_table_has_does_not_come_back_with_a_log_that_leads_there() {
    let mut stage = Stage::new();
    let versions = [stage.put(b"a", 1), stage.put(b"b", 2)];
    stage.end_file();
    let file = versions[0].2.file;
    let path = Path::new("/db").join(bifold_format::names::value(file));
    let bytes = stage.fs.read(&path).unwrap();
    let edit = stage.drop_versions(&versions[..1]);
    stage.install(&edit);
    stage.collect(vec![file]);
    // A power loss, or a kill right after the manifest's record: the file is still there.
    stage.fs.write_durable(&path, &bytes);
    let placement = open_to_replay(&stage.fs, &stage.next, &stage.recorded, &[file]);
    assert_eq!(placement.locate(versions[1].2).unwrap(), Located::Whole);
    placement.refer(versions[1].2, 2);
    placement.finish_recovery(2, 0).unwrap();
    assert_eq!(placement.live_files().iter().filter(|&&id| id == file).count(), 0, "nothing leads to the file");
}

/// A stage with many files of values of the same length, and all versions in them.
fn filled() -> (Stage, Vec<Version>) {
    let mut stage = Stage::new();
    let versions: Vec<Version> = (1..=1000).map(|seqno| stage.put(b"the one key", seqno)).collect();
    stage.end_file();
    assert_eq!(stage.placement.stale_bytes(&pressure(0.0)), 0);
    (stage, versions)
}

#[test]
fn a_rewrite_is_asked_for_when_files_would_be_worth_collecting_after_it() {
    let (stage, versions) = filled();
    let live = stage.placement.space().live_bytes;
    let pick = |stale: u64| {
        stage.placement.shared.stale.keep_below(0);
        stage.placement.note_overwritten(stale, &|| None);
        stage.placement.choose(&pressure(0.9))
    };
    assert_eq!(pick(live / 10), None, "space is within its target");
    assert_eq!(pick(live * 28 / 100), None, "all files would be more than 0.7 valid");
    assert_eq!(pick(live * 32 / 100), Some(Choice::Search));
    stage.placement.note_overwritten(live, &|| None);
    assert_eq!(stage.placement.choose(&pressure(0.1)), None, "but so much cannot be stale");
    assert_eq!(versions.len(), 1000);
}

#[test]
fn known_garbage_is_collected_before_a_rewrite_looks_for_more_unless_much_is_stale() {
    let is_rewrite = |dropped: usize, stale_percent: u64| {
        let (mut stage, versions) = filled();
        let dropped: Vec<Version> = versions.iter().step_by(dropped).copied().collect();
        let edit = stage.drop_versions(&dropped);
        stage.install(&edit);
        stage.placement.shared.stale.keep_below(0);
        stage.placement.note_overwritten(stage.placement.space().live_bytes * stale_percent / 100, &|| None);
        let pick = stage.placement.choose(&pressure(0.9));
        pick.expect("space is wanted") == Choice::Search
    };
    assert!(is_rewrite(5, 19), "files are 0.8 valid: not worth it as far as known");
    assert!(!is_rewrite(2, 8), "there are files that are half dead");
    assert!(is_rewrite(2, 12), "but more than a fifth of what may be dead is stale");
}

#[test]
fn what_a_rewrite_drops_is_no_longer_stale() {
    let (stage, versions) = filled();
    let each = u64::from(versions[0].2.len);
    stage.placement.note_overwritten(500 * each, &|| None);
    assert_eq!(stage.placement.stale_bytes(&pressure(0.9)), 500 * each);
    let _edit = stage.drop_versions(&versions[..200]);
    assert_eq!(stage.placement.stale_bytes(&pressure(0.9)), 300 * each);
}
