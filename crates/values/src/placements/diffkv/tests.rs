//! The placement by itself; the engine's part, which merges entries and records edits, is played by [`Stage`].

use std::{collections::BTreeMap, path::Path, sync::atomic::AtomicU64};

use bifold_contract::{Entry, Kind, placement::Kept as Written};
use bifold_format::pointer;
use bifold_io::{Dir, fs::FileSystem, memory::MemoryFs};

use super::{order::MergePolicy, *};
use crate::{
    parts::{budget::Budget, value_files::OVERLAPS},
    placements::SMALL,
};

/// An entry of the index, as tables have it.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Row {
    key: Vec<u8>,
    seqno: SeqNo,
    kind: Kind,
    payload: Vec<u8>,
}

impl Row {
    fn value(key: u32, seqno: SeqNo, len: usize) -> Self {
        Self { key: format!("{key:05}").into(), seqno, kind: Kind::Inline, payload: vec![seqno as u8; len] }
    }

    fn entry(&self) -> Entry<'_> {
        Entry { key: &self.key, seqno: self.seqno, kind: self.kind, payload: &self.payload }
    }

    fn pointer(&self) -> Pointer {
        assert_eq!(self.kind, Kind::Pointer, "{self:?}");
        pointer::decode(&self.payload).unwrap()
    }
}

struct Stage {
    fs: MemoryFs,
    next: Arc<AtomicU64>,
    options: ValueOptions,
    placement: DiffKv,
    listed: BTreeMap<FileId, ValueFileMeta>,
    dead: BTreeMap<FileId, u64>,
}

fn job(from: Option<u8>, to: u8) -> RewriteJob {
    RewriteJob { keyspace: 1, from, to, bottom: true, deepest: 6, moving: Vec::new() }
}

impl Stage {
    fn new(options: ValueOptions) -> Self {
        let (fs, next) = (MemoryFs::new(), Arc::new(AtomicU64::new(1)));
        let placement = open(&fs, &next, options, &ValueEdit::default());
        Self { fs, next, options, placement, listed: BTreeMap::new(), dead: BTreeMap::new() }
    }

    fn try_rewrite(&self, job: &RewriteJob, kept: &[Row], dropped: &[Row]) -> Result<(Vec<Row>, ValueEdit)> {
        let mut rewriter = self.placement.rewriter(job)?;
        let mut rows = Vec::new();
        for row in kept {
            let (kind, payload) = match rewriter.keep(&row.entry())? {
                Written::Unchanged => (row.kind, row.payload.clone()),
                Written::Pointer(to) | Written::Moved(to) => {
                    let mut payload = Vec::new();
                    pointer::encode(to, &mut payload);
                    (Kind::Pointer, payload)
                }
                Written::Inline(value) => (Kind::Inline, value.to_vec()),
            };
            rows.push(Row { kind, payload, ..row.clone() });
        }
        dropped.iter().try_for_each(|row| rewriter.discard(&row.entry(), row.seqno + 1))?;
        Ok((rows, rewriter.finish()?))
    }

    fn rewrite(&mut self, job: &RewriteJob, kept: &[Row], dropped: &[Row]) -> (Vec<Row>, ValueEdit) {
        let (rows, edit) = self.try_rewrite(job, kept, dropped).unwrap();
        self.install(&edit);
        (rows, edit)
    }

    fn flush(&mut self, kept: &[Row]) -> Vec<Row> {
        self.rewrite(&job(None, 0), kept, &[]).0
    }

    fn install(&mut self, edit: &ValueEdit) {
        edit.removed.iter().for_each(|id| assert!(self.listed.remove(id).is_some(), "file {id} is not there"));
        for meta in &edit.added {
            assert!(self.listed.insert(meta.id, meta.clone()).is_none(), "file {} is there already", meta.id);
        }
        edit.garbage.iter().for_each(|&(id, bytes, _)| *self.dead.entry(id).or_default() += bytes);
        for (id, tags) in &edit.tagged {
            self.listed.get_mut(id).unwrap().tags |= tags;
        }
        self.placement.installed(edit);
    }

    fn reopen(&mut self) {
        let mut listed = ValueEdit { added: self.listed.values().cloned().collect(), ..ValueEdit::default() };
        listed.garbage = self.dead.iter().map(|(&id, &bytes)| (id, bytes, 0)).collect();
        self.placement = open(&self.fs, &self.next, self.options, &listed);
    }

    fn check(&self, rows: &[Row], len: usize) {
        for row in rows {
            let found = self.placement.read(&row.key, row.seqno, row.pointer(), IoSource::Get).unwrap().unwrap();
            assert_eq!(&found.value[..], vec![row.seqno as u8; len]);
        }
    }

    fn levels(&self) -> Vec<(u8, u64)> {
        self.placement.order().levels.iter().map(|level| (level.level, level.groups)).collect()
    }
}

fn open(fs: &MemoryFs, next: &Arc<AtomicU64>, options: ValueOptions, listed: &ValueEdit) -> DiffKv {
    let fs: Arc<dyn FileSystem> = Arc::new(fs.clone());
    let dir = Dir::new(fs, Path::new("/db"));
    dir.create_dir().unwrap();
    let next = Arc::clone(next);
    let new_file = Arc::new(move || next.fetch_add(1, std::sync::atomic::Ordering::Relaxed));
    let home = Home { dir, keyspace: 1, new_file, writes: true, filters: Budget::new(1 << 20) };
    let placement = DiffKv::open(home, options, listed, &[]).unwrap();
    placement.cut().unwrap();
    placement
}

/// So many keys, one apart from the next by `step`.
fn values(keys: std::ops::Range<u32>, step: usize, seqno: SeqNo, len: usize) -> Vec<Row> {
    keys.step_by(step).zip(seqno..).map(|(key, seqno)| Row::value(key, seqno, len)).collect()
}

/// Paper §3.2, §4.1.
#[test]
fn a_flush_parts_medium_values_by_key_and_leaves_the_others() {
    let mut stage = Stage::new(ValueOptions { min_bytes: 100, ..SMALL });
    let large = stage.placement.route(Routed::Put { key: b"00500", value: &[7; 1 << 10] }, 7).unwrap().unwrap();
    assert_eq!(stage.placement.route(Routed::Put { key: b"00501", value: &[7; 1023] }, 8).unwrap(), None);
    let mut payload = Vec::new();
    pointer::encode(large, &mut payload);
    let mut rows = values(0..100, 1, 100, 200);
    rows.push(Row { key: b"00500".into(), seqno: 7, kind: Kind::Pointer, payload });
    rows.push(Row::value(900, 9, 99));
    let flushed = stage.flush(&rows);
    stage.check(&flushed[..100], 200);
    assert_eq!(flushed[100..], rows[100..]);
    let ranges: Vec<_> =
        stage.listed.values().map(|meta| (meta.level, meta.group, &*meta.smallest, &*meta.largest)).collect();
    assert!(ranges.len() > 4, "{ranges:?}");
    assert!(ranges.windows(2).all(|pair| pair[0].1 == pair[1].1 && pair[0].3 < pair[1].2), "{ranges:?}");
    assert_eq!(stage.listed.values().map(|meta| meta.entries).sum::<u64>(), 100);
}

/// Paper §3.4, figure 6: what is merged among the levels above the last two stays where it is.
#[test]
fn lazily_values_move_to_the_last_two_levels_only() {
    let mut stage = Stage::new(ValueOptions { merge: MergePolicy::Lazy, ..SMALL });
    let mut rows = stage.flush(&values(0..50, 1, 1, 100));
    for (from, to, moves) in [(0, 1, false), (1, 4, false), (4, 5, true), (5, 5, false), (5, 6, true), (6, 6, false)] {
        let (merged, edit) = stage.rewrite(&job(Some(from), to), &rows, &[]);
        assert_eq!(merged != rows, moves, "from {from} to {to}");
        assert_eq!(edit.added.iter().all(|meta| meta.level == to) && !edit.added.is_empty(), moves);
        stage.check(&merged, 100);
        rows = merged;
    }
    let work = stage.placement.order();
    assert_eq!((work.merged_bytes, work.untangled_bytes + work.collected_bytes), (2 * work.parted_bytes, 0));
}

/// Paper §3.5: a file with more garbage than the threshold is emptied by the next merge that meets it, and then it goes.
#[test]
fn a_merge_empties_files_with_too_much_garbage() {
    let mut stage = Stage::new(SMALL);
    let rows = stage.flush(&values(0..60, 1, 1, 100));
    let (rows, _) = stage.rewrite(&job(Some(0), 6), &rows, &[]);
    let old = rows[0].pointer().file;
    let (few, rest) = rows.split_at(5);
    let (rest, _) = stage.rewrite(&job(Some(6), 6), rest, few);
    assert_eq!(rest[0].pointer().file, old, "a seventh of it is dead");
    let (more, rest) = rest.split_at(8);
    let (rest, _) = stage.rewrite(&job(Some(6), 6), rest, more);
    assert_eq!(rest[0].pointer().file, old, "it was not known before");
    assert_eq!(
        stage.placement.order().levels.iter().map(|level| level.tagged).sum::<u64>(),
        3,
        "two of level 0, one of level 6"
    );
    stage.reopen();
    let (rest, _) = stage.rewrite(&job(Some(6), 6), &rest, &[]);
    assert_ne!(rest[0].pointer().file, old);
    stage.check(&rest, 100);
    assert!(stage.placement.order().collected_bytes > 1000);
    let pressure = SpacePressure {
        index_bytes: 0,
        entries_above: 0.0,
        overwritten: 0.0,
        target: 100.0,
        oldest_snapshot: None,
        all_before: None,
    };
    let Some(Collection::Units(empty)) = stage.placement.pick(&pressure) else { panic!("nothing is empty") };
    assert!(empty.contains(&old) && !empty.contains(&rest[0].pointer().file), "{empty:?}");
    let edit = stage.placement.collect(&Collection::Units(empty), &NoIndex).unwrap().edit();
    stage.install(&edit);
    assert_eq!(stage.placement.pick(&pressure), None);
    assert_eq!(stage.placement.read(&rows[0].key, 1, rows[0].pointer(), IoSource::Get).unwrap().map(|_| ()), None);
    stage.check(&rest, 100);
}

/// Paper §3.4, figure 7: groups that overlap too much are tagged, the tags outlive a reopening, and the next merge makes one of them.
#[test]
fn a_merge_untangles_groups_that_overlap_too_much() {
    let mut stage = Stage::new(ValueOptions { max_sorted_run: 2, ..SMALL });
    let mut rows: Vec<Row> = Vec::new();
    for round in 0..3 {
        let flushed = stage.flush(&values(round..30, 3, u64::from(round) * 100 + 1, 60));
        rows.extend(flushed);
        rows.sort_by(|a, b| a.key.cmp(&b.key));
        let (merged, edit) = stage.rewrite(&job(Some(0), 6), &rows, &[]);
        rows = merged;
        let tagged = edit.tagged.iter().filter(|tag| tag.1 == OVERLAPS).count();
        assert_eq!(tagged, if round == 2 { 3 } else { 0 }, "round {round}: {:?}", edit.tagged);
    }
    assert_eq!(stage.levels(), [(0, 3), (6, 3)]);
    stage.reopen();
    let (merged, edit) = stage.rewrite(&job(Some(0), 6), &rows, &[]);
    assert_eq!((edit.added.len(), edit.tagged.len()), (1, 0));
    assert!(merged.iter().all(|row| row.pointer().file == edit.added[0].id));
    merged.iter().for_each(|row| stage.check(std::slice::from_ref(row), 60));
    assert!(stage.placement.order().untangled_bytes > 0);
}

#[test]
fn unmerged_values_move_only_out_of_garbage() {
    let mut stage = Stage::new(ValueOptions { merge: MergePolicy::Off, ..SMALL });
    let rows = stage.flush(&values(0..20, 1, 1, 100));
    let (merged, edit) = stage.rewrite(&job(Some(0), 6), &rows[10..], &rows[..10]);
    assert_eq!((&merged[..], edit.added.len()), (&rows[10..], 0));
    let (moved, edit) = stage.rewrite(&job(Some(6), 6), &merged, &[]);
    assert_eq!((moved != merged, edit.added.len()), (true, 1));
}

#[test]
fn a_rewrite_that_is_given_up_leaves_nothing() {
    let mut stage = Stage::new(SMALL);
    let rows = stage.flush(&values(0..100, 1, 1, 100));
    let before = stage.placement.live_files();
    let mut broken = rows.clone();
    // A place that is not the value of this key.
    broken[90].payload = rows[89].payload.clone();
    let error = stage.try_rewrite(&job(Some(0), 6), &broken, &[]).unwrap_err().to_string();
    assert!(error.contains("the value of `00090`"), "{error}");
    let mut after = stage.placement.live_files();
    let names = Dir::new(Arc::new(stage.fs.clone()) as Arc<dyn FileSystem>, Path::new("/db")).list().unwrap();
    assert_eq!(names.len(), before.len());
    after.sort_unstable();
    assert!(before.iter().all(|id| after.contains(id)) && after.len() == before.len());
    let (merged, _) = stage.rewrite(&job(Some(0), 6), &rows, &[]);
    stage.check(&merged, 100);
}

/// Nothing is asked of the index.
struct NoIndex;

impl IndexView for NoIndex {
    fn current(&self, _key: &[u8]) -> Result<Option<Pointer>> {
        panic!("the index was asked")
    }
}
