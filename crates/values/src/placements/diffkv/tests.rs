//! The placement by itself. [`Stage`] plays the engine's part: it merges entries and records edits.

mod stage;

use std::{collections::BTreeMap, path::Path, sync::Barrier};

use bifold_contract::{IoSource, Kept as Written, Kind};
use bifold_format::pointer;
use bifold_io::{Dir, fs::FileSystem};

use super::{options::DiffKvOptions, *};
use crate::{
    parts::{
        budget::Memory,
        ordered_values::order::MergePolicy,
        value_files::{COLLECTED, OVERLAPS},
    },
    placement::{Moved, Scene},
    placements::SMALL,
};
use stage::{Row, Stage, job, values, with};

/// Paper §3.2, §4.1.
#[test]
fn a_flush_separates_medium_values_by_key_and_leaves_the_others() {
    let mut stage = Stage::new(ValueOptions { separate_from_bytes: Some(100), ..SMALL });
    let large = stage.placement.write(WriteOp::Put { key: b"00500", value: &[7; 1 << 10] }, 7).unwrap().unwrap();
    assert_eq!(stage.placement.write(WriteOp::Put { key: b"00501", value: &[7; 1023] }, 8).unwrap(), None);
    let mut payload = Vec::new();
    pointer::encode(large, &mut payload);
    let mut rows = values(0..100, 1, 100, 200);
    rows.push(Row { key: b"00500".into(), seqno: 7, kind: Kind::Pointer, payload });
    rows.push(Row::value(900, 9, 99));
    let flushed = stage.flush(&rows);
    stage.check(&flushed[..100], 200);
    assert_eq!(flushed[100..], rows[100..]);
    let ranges: Vec<_> =
        stage.recorded.values().map(|meta| (meta.level, meta.group, &*meta.smallest, &*meta.largest)).collect();
    assert!(ranges.len() > 4, "{ranges:?}");
    assert!(ranges.windows(2).all(|pair| pair[0].1 == pair[1].1 && pair[0].3 < pair[1].2), "{ranges:?}");
    assert_eq!(stage.recorded.values().map(|meta| meta.entries).sum::<u64>(), 100);
}

/// The memtable and the log have its values, too: GC would find no garbage, and writers would be slowed for nothing.
#[test]
fn what_a_flush_writes_counts_once_it_is_installed() {
    let mut stage = Stage::new(SMALL);
    stage.flush(&values(0..60, 1, 1, 100));
    let before = stage.placement.space();
    let (_, edit) = stage.try_rewrite(&job(None, 0), &values(60..120, 1, 61, 100), &[]).unwrap();
    assert!(edit.added.len() > 1, "{edit:?}");
    assert_eq!(stage.placement.space(), before);
    stage.install(&edit);
    let after = stage.placement.space();
    assert_eq!(after.total_bytes - after.live_bytes, before.total_bytes - before.live_bytes, "none of it is garbage");
    assert!(after.live_bytes > before.live_bytes + 6000 && after.files > before.files, "{after:?}");
}

/// Paper §3.4, figure 6: what is merged among the levels above the last two stays where it is.
#[test]
fn lazily_values_move_to_the_last_two_levels_only() {
    let mut stage = Stage::new(with(DiffKvOptions { merge: MergePolicy::Lazy, ..SMALL.diffkv }));
    let mut rows = stage.flush(&values(0..50, 1, 1, 100));
    for (from, to, moves) in [(0, 1, false), (1, 4, false), (4, 5, true), (5, 5, false), (5, 6, true), (6, 6, false)] {
        let (merged, edit) = stage.rewrite(&job(Some(from), to), &rows, &[]);
        assert_eq!(merged != rows, moves, "from {from} to {to}");
        assert_eq!(edit.added.iter().all(|meta| meta.level == to) && !edit.added.is_empty(), moves);
        stage.check(&merged, 100);
        rows = merged;
    }
    let work = stage.placement.order();
    assert_eq!((work.merged_bytes, work.untangled_bytes + work.gc_bytes), (2 * work.separated_bytes, 0));
    assert_eq!(work.level_merges, 2);
}

/// A sync is due for each file, however small it is: short tables of keys do not make short vTables.
#[test]
fn a_vtable_ends_with_the_first_table_of_keys_at_which_it_is_half_full() {
    let mut stage = Stage::new(SMALL);
    let rows = stage.flush(&values(0..200, 1, 1, 100));
    let mut rewriter = stage.placement.rewriter(&job(Some(0), 6)).unwrap();
    for row in &rows {
        assert!(matches!(rewriter.keep(&row.entry()).unwrap(), Written::Moved(_)), "{row:?}");
        rewriter.end_table().unwrap();
    }
    let bytes: Vec<u64> = rewriter.finish().unwrap().added.iter().map(|meta| meta.bytes).collect();
    let half_bytes = SMALL.file_bytes / 2;
    let others = &bytes[..bytes.len() - 1];
    assert!(others.len() > 5 && others.iter().all(|&bytes| bytes >= half_bytes), "too short: {bytes:?}");
    assert!(bytes.iter().all(|&bytes| bytes < half_bytes + 200), "not at the first: {bytes:?}");
}

/// Paper §3.5: the next merge that reads a file with more garbage than the threshold drains it, and then it is
/// deleted.
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
    let order = stage.placement.order();
    assert_eq!((order.levels.iter().map(|level| level.tagged).sum::<u64>(), order.level_merges), (1, 1));
    stage.reopen();
    let (rest, _) = stage.rewrite(&job(Some(6), 6), &rest, &[]);
    assert_ne!(rest[0].pointer().file, old);
    stage.check(&rest, 100);
    let order = stage.placement.order();
    assert!(order.gc_bytes > 1000 && order.level_merges == 0, "GC moves no value to another level: {order:?}");
    assert!(!stage.recorded.contains_key(&old) && stage.recorded.contains_key(&rest[0].pointer().file));
    assert_eq!(stage.placement.read(&rows[0].key, 1, rows[0].pointer(), IoSource::Get).unwrap().map(|_| ()), None);
    stage.check(&rest, 100);
}

/// Paper §3.5: the tag waits for a merge that moves values. Merges of the levels above the last two are none.
#[test]
fn garbage_waits_for_a_merge_that_lazy_merge_makes() {
    for merge in [MergePolicy::Lazy, MergePolicy::ScanOptimised] {
        let mut stage = Stage::new(with(DiffKvOptions { merge, ..SMALL.diffkv }));
        let rows = stage.flush(&values(0..20, 1, 1, 100));
        let (rows, _) = stage.rewrite(&job(Some(0), 1), &rows[10..], &rows[..10]);
        assert_eq!(stage.placement.order().levels[0].tagged, 1, "half of the file is dead");
        for (from, to) in [(0, 0), (1, 1), (1, 2), (2, 4)] {
            let (merged, edit) = stage.rewrite(&job(Some(from), to), &rows, &[]);
            assert_eq!((&merged, edit.added.len()), (&rows, 0), "{merge:?}, from {from} to {to}");
        }
        let (merged, _) = stage.rewrite(&job(Some(4), 5), &rows, &[]);
        stage.check(&merged, 100);
        assert_eq!(stage.levels(), [(5, 1)], "{merge:?}: the old file is drained");
    }
}

/// Paper §3.4, figure 7: groups that overlap too much are tagged, the tags outlive a reopening, and the next merge
/// makes one of them.
#[test]
fn a_merge_untangles_groups_that_overlap_too_much() {
    let mut stage = Stage::new(with(DiffKvOptions { max_sorted_run: 2, ..SMALL.diffkv }));
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
    assert_eq!(stage.levels(), [(6, 3)], "those of level 0 are empty and deleted");
    stage.reopen();
    let (merged, edit) = stage.rewrite(&job(Some(0), 6), &rows, &[]);
    assert_eq!((edit.added.len(), edit.tagged.len()), (1, 0));
    assert!(merged.iter().all(|row| row.pointer().file == edit.added[0].id));
    merged.iter().for_each(|row| stage.check(std::slice::from_ref(row), 60));
    assert!(stage.placement.order().untangled_bytes > 0);
}

#[test]
fn unmerged_values_move_only_out_of_garbage() {
    let mut stage = Stage::new(with(DiffKvOptions { merge: MergePolicy::Off, ..SMALL.diffkv }));
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

/// Files of 512 KiB that all overlap: with memory for two buffers they are read in smaller pieces, and what comes out
/// is the same.
#[test]
fn buffers_of_a_merge_are_counted_and_keep_to_their_share() {
    const SHARE_BYTES: u64 = 512 << 10;
    const FILES: u32 = 40;
    let options = ValueOptions { file_bytes: 1 << 20, ..with(DiffKvOptions { max_sorted_run: 1000, ..SMALL.diffkv }) };
    let merge = |memory: &Memory| {
        let mut stage = Stage::with_memory(options, memory);
        let mut rows: Vec<Row> = (0..FILES).flat_map(|n| stage.flush(&values(n..20_000, 40, 1, 900))).collect();
        rows.sort_by(|a, b| a.key.cmp(&b.key));
        let of_files = stage.placement.memory_bytes();
        let mut rewriter = stage.placement.rewriter(&job(Some(0), 6)).unwrap();
        let mut most = 0;
        let moved = rows.iter().map(|row| {
            let kept = rewriter.keep(&row.entry()).unwrap();
            most = most.max(stage.placement.memory_bytes() - of_files);
            kept
        });
        let moved: Vec<Written> = moved.collect();
        drop(rewriter);
        assert_eq!((stage.placement.memory_bytes(), memory.buffers.used_bytes()), (of_files, 0));
        (moved, most)
    };
    let (plenty, scarce) = (merge(&Memory::new(0, 1 << 30)), merge(&Memory::new(0, SHARE_BYTES)));
    assert!(plenty.1 > u64::from(FILES) * (200 << 10), "{} bytes", plenty.1);
    assert!(scarce.1 < SHARE_BYTES + u64::from(FILES) * (16 << 10), "{} bytes", scarce.1);
    assert!(plenty.0 == scarce.0 && plenty.0.iter().all(|kept| matches!(kept, Written::Moved(_))));
}

/// The newest place of each key, as tables and memtables have it.
#[derive(Default)]
struct Places(Mutex<BTreeMap<Vec<u8>, Pointer>>);

/// Plays the engine's part in GC.
struct Moves<'a> {
    places: &'a Places,
    /// Comes between the copies and the moves.
    copied: &'a (dyn Fn() + Sync),
}

impl Scene for Moves<'_> {
    fn look_up(&self, key: &[u8]) -> Result<Option<Pointer>> {
        Ok(self.places.0.hold().get(key).copied())
    }

    fn relocate(&self, moves: &[Moved], refused: &mut dyn FnMut(&Moved)) -> Result<Option<SeqNo>> {
        (self.copied)();
        for moved in moves {
            match self.places.0.hold().get_mut(&*moved.key) {
                Some(place) if *place == moved.from => *place = moved.to,
                _ => refused(moved),
            }
        }
        Ok(Some(10_000))
    }
}

/// Logs with two thirds overwritten, again and again, and the index that says so.
fn overwritten_logs() -> (Stage, Places) {
    let (mut stage, places) = (Stage::new(SMALL), Places::default());
    for round in 0..5 {
        for n in (0..60).filter(|n| round == 0 || n % 3 != 0) {
            let (key, seqno) = (format!("{n:05}"), round * 60 + n + 1);
            let put = WriteOp::Put { key: key.as_bytes(), value: &vec![seqno as u8; 1100] };
            let to = stage.placement.write(put, seqno).unwrap().unwrap();
            if let Some(from) = places.0.hold().insert(key.into(), to) {
                stage.placement.ordered.files().get(from.file).unwrap().add_dead(u64::from(from.len));
            }
        }
    }
    stage.list();
    (stage, places)
}

/// Collects logs until nothing is worth it, so many at once. Returns what was collected, in order.
fn collect_logs(stage: &mut Stage, places: &Places, at_once: usize) -> Vec<Vec<u64>> {
    let pressure = SpacePressure::of_target(1.5);
    let mut collected = Vec::new();
    loop {
        let (mut jobs, mut claims) = (Vec::new(), Vec::new());
        while jobs.len() < at_once
            && let Some(job) = stage.placement.pick(&pressure, &claims)
        {
            assert!(!job.claim().rewrites && !job.claim().is_alone);
            claims.push(job.claim().clone());
            jobs.push(job);
        }
        if jobs.is_empty() {
            return collected;
        }
        let (all_copied, recorded) = (Barrier::new(jobs.len() + 1), Barrier::new(jobs.len() + 1));
        let copied = || {
            all_copied.wait();
            recorded.wait();
        };
        let run = |job: Box<dyn GcJob>| job.run(&Moves { places, copied: &copied }).unwrap();
        std::thread::scope(|scope| {
            let threads: Vec<_> = jobs.into_iter().map(|job| scope.spawn(move || run(job))).collect();
            all_copied.wait();
            // An edit of another thread records the copies before any move leads there.
            stage.list();
            recorded.wait();
            threads.into_iter().for_each(|thread| assert!(thread.join().is_ok()));
        });
        collected.extend(claims.into_iter().map(|claim| claim.files));
    }
}

/// Paper §4.2: several threads collect the logs, each its own, and the result is that of one alone.
#[test]
fn threads_that_collect_different_logs_do_what_one_does() {
    let ((mut alone, its_places), (mut several, their_places)) = (overwritten_logs(), overwritten_logs());
    let (by_one, by_many) = (collect_logs(&mut alone, &its_places, 1), collect_logs(&mut several, &their_places, 3));
    assert!(by_many.len() > 3, "{by_many:?}");
    let logs: Vec<u64> = by_many.iter().flatten().copied().collect();
    assert_eq!(logs.iter().collect::<std::collections::BTreeSet<_>>().len(), logs.len(), "twice: {by_many:?}");
    assert_eq!(by_one, by_many);
    assert_eq!(alone.placement.space(), several.placement.space());
    for (key, place) in &*their_places.0.hold() {
        let read = |stage: &Stage, at| stage.placement.read(key, 0, at, IoSource::Get).unwrap().unwrap();
        assert_eq!(read(&several, *place), read(&alone, its_places.0.hold()[key]));
        assert!(!logs.contains(&place.file));
    }
}

/// Running GC counts as done: no more is collected than space asks for.
#[test]
fn what_runs_is_not_collected_again() {
    let (stage, _) = overwritten_logs();
    let all: Vec<FileId> = stage.placement.ordered.files().in_use().iter().map(|file| file.id).collect();
    let pick = |target: f64, running: &[GcClaim]| {
        stage.placement.pick(&SpacePressure::of_target(target), running).map(|job| job.claim().clone())
    };
    let first = pick(1.5, &[]).unwrap();
    let second = pick(1.5, std::slice::from_ref(&first)).unwrap();
    assert_ne!(first, second);
    let dead = |id: &FileId| stage.placement.ordered.files().get(*id).unwrap().dead();
    let (total, dead): (u64, u64) = (stage.placement.space().total_bytes, first.files.iter().map(dead).sum());
    // The target at which space without what the first frees is just small enough.
    let live = stage.placement.space().live_bytes;
    let enough = ((total - dead) as f64 / live as f64 - 1.0) / 0.75 + 1.001;
    assert_eq!(pick(enough, &[]), Some(first.clone()));
    assert_eq!(pick(enough, &[first]), None);
    assert_eq!(pick(1.5, &[GcClaim::of(all)]), None);
}

/// A search for what is stale decides what is next.
#[test]
fn nothing_runs_concurrently_with_a_search() {
    let search = Rewrite::search();
    assert!(search.claim().is_alone && search.claim().rewrites);
}

/// Recorded copies whose first moves were refused look like garbage until the others are committed.
#[test]
fn copies_are_not_collected_before_moves_lead_to_them() {
    let (mut stage, places) = overwritten_logs();
    let oldest = stage.placement.ordered.files().in_use();
    let first: Vec<&Arc<ValueFile>> = oldest.iter().take(4).collect();
    let job = stage.placement.logs(&first);
    let (all_copied, looked) = (Barrier::new(2), Barrier::new(2));
    let places = &places;
    let copied = || {
        all_copied.wait();
        looked.wait();
    };
    let copies = std::thread::scope(|scope| {
        let running = scope.spawn(|| job.run(&Moves { places, copied: &copied }).unwrap());
        all_copied.wait();
        stage.list();
        let mut copies = stage.placement.ordered.files().in_use();
        copies.retain(|file| file.description.class == COLLECTED);
        assert!(copies.iter().all(|copy| copy.is_known()) && !copies.is_empty());
        copies.iter().for_each(|copy| copy.add_dead(copy.len() * 9 / 10));
        assert!(!may_have_gc(&stage, &copies));
        looked.wait();
        assert!(running.join().is_ok());
        copies
    });
    assert!(may_have_gc(&stage, &copies));
}

/// Whether GC may take any of these files.
fn may_have_gc(stage: &Stage, files: &[Arc<ValueFile>]) -> bool {
    let queue = stage.placement.explain(&SpacePressure::of_target(1.05));
    files.iter().any(|file| queue.iter().any(|unit| unit.files.contains(&file.id)))
}
