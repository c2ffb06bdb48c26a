//! Runs policies on a model of a tree in which each table lists all its versions.
//!
//! Random flushes, jobs that run at the same time and end in any order, and changes of policy on the way: after each
//! step, upper levels must hold the newer versions of every key. A policy can break nothing else.

use std::{collections::BTreeSet, sync::Arc};

use bifold_contract::{
    Busy, BusyOutput, CompactionJob, CompactionPolicy, Expiring, FileId, JobShape, Level, Levels, Run, RunId, SeqNo,
    TableMeta,
};
use proptest::prelude::*;

use super::{
    by_partition::TreeShape,
    leveled::{Leveled, LeveledOptions},
    shape::{Placed, Span},
    tiered::{Tiered, TieredOptions},
    two_layer::{TwoLayer, TwoLayerOptions},
};

/// Keys are the numbers below this, so that tables overlap often.
const KEYS: u8 = 24;
const ENTRY_BYTES: u64 = 10;

/// A version of all keys in `start..end`: a single one, or a range tombstone.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct ModelVersion {
    start: u8,
    /// Exclusive; `u8::MAX` for a tombstone without an upper bound.
    end: u8,
    seqno: SeqNo,
    is_range: bool,
}

impl ModelVersion {
    fn spans(&self, key: u8) -> bool {
        self.start <= key && key < self.end
    }
}

/// A table for tests that use only its key range and its size.
pub(super) fn table(smallest: &str, largest: &str, bytes: u64) -> Arc<TableMeta> {
    Arc::new(TableMeta {
        id: 1,
        bytes,
        entries: 1,
        tombstones: 0,
        range_tombstones: 0,
        smallest: smallest.as_bytes().into(),
        largest: largest.as_bytes().into(),
        unbounded: false,
        min_seqno: 1,
        max_seqno: 1,
        expiring: Expiring::default(),
    })
}

fn key(n: u8) -> Box<[u8]> {
    [b'A' + n].into()
}

#[derive(Clone, Debug)]
struct ModelTable {
    level: u8,
    run: RunId,
    meta: Arc<TableMeta>,
    versions: Vec<ModelVersion>,
}

/// What other jobs know of the keys that a job writes.
#[derive(Clone, Copy, Debug)]
enum Marked {
    /// Any of the level.
    Level,
    /// Those of its inputs, as in the engine.
    Keys,
}

#[derive(Debug, Default)]
struct Model {
    tables: Vec<ModelTable>,
    next_id: u64,
    seqno: SeqNo,
    running: Vec<(CompactionJob, RunId, BusyOutput)>,
    boundaries: BTreeSet<u8>,
}

impl Model {
    fn id(&mut self) -> u64 {
        self.next_id += 1;
        self.next_id
    }

    fn levels(&self) -> Levels {
        let boundaries = self.boundaries.iter().map(|&boundary| key(boundary)).collect();
        let mut levels = Levels { boundaries, ..Levels::default() };
        let mut tables: Vec<&ModelTable> = self.tables.iter().collect();
        tables.sort_by_key(|t| (t.level, std::cmp::Reverse(t.run), t.meta.smallest.clone(), t.meta.largest.clone()));
        for table in tables {
            let depth = usize::from(table.level);
            if levels.levels.len() <= depth {
                levels.levels.resize(depth + 1, Level::default());
            }
            let runs = &mut levels.levels[depth].runs;
            if runs.last().is_none_or(|run| run.id != table.run) {
                runs.push(Run { id: table.run, tables: Vec::new() });
            }
            runs.last_mut().unwrap().tables.push(Arc::clone(&table.meta));
        }
        levels
    }

    fn busy(&self) -> Busy {
        Busy {
            tables: self.running.iter().flat_map(|(job, ..)| job.inputs.iter().map(|i| i.2)).collect(),
            outputs: self.running.iter().map(|(_, _, output)| output.clone()).collect(),
            oldest_snapshot: None,
            scans_ask: self.seqno.is_multiple_of(2),
        }
    }

    fn add_table(&mut self, level: u8, run: RunId, versions: Vec<ModelVersion>) {
        let id: FileId = self.id();
        // The largest key that an entry touches, or the end of a range tombstone, as in the manifest.
        let reach = |v: &ModelVersion| match v {
            v if !v.is_range || v.end == u8::MAX => v.start,
            v => v.end,
        };
        let (Some(smallest), Some(largest)) =
            (versions.iter().map(|v| v.start).min(), versions.iter().map(reach).max())
        else {
            return;
        };
        let meta = Arc::new(TableMeta {
            id,
            bytes: versions.len() as u64 * ENTRY_BYTES,
            entries: versions.iter().filter(|v| !v.is_range).count() as u64,
            tombstones: versions.iter().filter(|v| !v.is_range && v.seqno % 3 == 0).count() as u64,
            range_tombstones: versions.iter().filter(|v| v.is_range).count() as u64,
            smallest: key(smallest),
            largest: key(largest),
            unbounded: versions.iter().any(|v| v.end == u8::MAX),
            min_seqno: versions.iter().map(|v| v.seqno).min().unwrap_or(0),
            max_seqno: versions.iter().map(|v| v.seqno).max().unwrap_or(0),
            expiring: Expiring::default(),
        });
        self.tables.push(ModelTable { level, run, meta, versions });
    }

    /// Adds `versions` as a run, cut before each of `cuts`.
    fn add_run(&mut self, level: u8, run: RunId, versions: &[ModelVersion], cuts: &[u8]) {
        let mut edges: Vec<u8> = [&[0], cuts, &[u8::MAX]].concat();
        edges.sort_unstable();
        edges.dedup();
        for edge in edges.windows(2) {
            let clip = |v: &ModelVersion| {
                let (start, end) = (v.start.max(edge[0]), v.end.min(edge[1]));
                (start < end).then_some(ModelVersion { start, end, ..*v })
            };
            self.add_table(level, run, versions.iter().filter_map(clip).collect());
        }
    }

    fn flush(&mut self, keys: &[u8], ranges: &[(u8, u8)], cuts: &[u8]) {
        let mut versions = Vec::new();
        for &start in keys {
            self.seqno += 1;
            versions.retain(|v: &ModelVersion| v.is_range || v.start != start);
            versions.push(ModelVersion { start, end: start + 1, seqno: self.seqno, is_range: false });
        }
        for &(start, len) in ranges {
            self.seqno += 1;
            let end = if len > KEYS / 2 { u8::MAX } else { start + 1 + len };
            versions.push(ModelVersion { start, end, seqno: self.seqno, is_range: true });
        }
        let run = self.id();
        self.add_run(0, run, &versions, cuts);
    }

    /// Asks the policy, checks its plan and begins it.
    fn begin(&mut self, policy: &dyn CompactionPolicy, how: Marked) -> Result<bool, TestCaseError> {
        let (levels, busy) = (self.levels(), self.busy());
        let shape = TreeShape::new(levels.clone(), policy);
        let Some(mut job) = shape.choose(policy, &busy) else { return Ok(false) };
        let to_scans = if busy.scans_ask { shape.debt_to_scans() } else { 0.0 };
        prop_assert!(shape.debt().max(to_scans) >= 1.0, "work is due only if the debt says so: {job:?}");
        prop_assert!(!job.inputs.is_empty());
        let position = |input: &(u8, RunId, FileId)| levels.tables().position(|(l, r, t)| *input == (l, r, t.id));
        let positions: Option<Vec<usize>> = job.inputs.iter().map(position).collect();
        prop_assert!(positions.is_some_and(|p| p.is_sorted()), "inputs exist, newest first: {job:?}");
        prop_assert!(job.inputs.iter().all(|i| !busy.tables.contains(&i.2)), "inputs are free: {job:?}");
        let run = *job.output_run.get_or_insert_with(|| self.id());
        let placed: Vec<Placed<'_>> = levels
            .tables()
            .filter(|(_, _, t)| job.inputs.iter().any(|i| i.2 == t.id))
            .map(|(level, run, table)| Placed { level, run, table })
            .collect();
        let span = Span::of(&placed).unwrap();
        let keys = (Box::from(span.start), span.end.map(Box::from));
        prop_assert_eq!(job.keys.as_ref(), Some(&keys), "the keys of all inputs");
        let output = match how {
            Marked::Level => BusyOutput { keys: None, ..job.output() },
            Marked::Keys => job.output(),
        };
        self.running.push((job, run, output));
        Ok(true)
    }

    fn end(&mut self, at: usize, cuts: &[u8]) -> Result<(), TestCaseError> {
        let (job, run, _) = self.running.swap_remove(at % self.running.len());
        let is_input = |t: &ModelTable| job.inputs.iter().any(|i| i.2 == t.meta.id);
        let (inputs, rest): (Vec<_>, Vec<_>) = std::mem::take(&mut self.tables).into_iter().partition(is_input);
        prop_assert_eq!(inputs.len(), job.inputs.len());
        self.tables = rest;
        if job.shape == JobShape::Move {
            let moved = inputs.into_iter().map(|t| ModelTable { level: job.output_level, run, ..t });
            self.tables.extend(moved);
            return Ok(());
        }
        let all: Vec<ModelVersion> = inputs.into_iter().flat_map(|t| t.versions).collect();
        let is_overwritten = |v: &ModelVersion| all.iter().any(|newer| newer.seqno > v.seqno && newer.spans(v.start));
        let kept: Vec<ModelVersion> = all.iter().filter(|v| v.is_range || !is_overwritten(v)).copied().collect();
        let cuts: Vec<u8> = cuts.iter().chain(&self.boundaries).copied().collect();
        self.add_run(job.output_level, run, &kept, &cuts);
        Ok(())
    }

    /// For every key, an upper level or a newer run is newer. The tables of a run share no key.
    fn check(&self) -> Result<(), TestCaseError> {
        let mut tables: Vec<&ModelTable> = self.tables.iter().collect();
        tables.sort_by_key(|t| (t.level, std::cmp::Reverse(t.run)));
        for key in 0..KEYS {
            let mut oldest = SeqNo::MAX;
            for run in tables.chunk_by(|a, b| (a.level, a.run) == (b.level, b.run)) {
                let holders: Vec<_> = run.iter().filter(|t| t.versions.iter().any(|v| v.spans(key))).collect();
                prop_assert!(holders.len() <= 1, "two tables of run {} hold key {}", run[0].run, key);
                let versions = || holders.iter().flat_map(|t| &t.versions).filter(|v| v.spans(key)).map(|v| v.seqno);
                let Some(newest) = versions().max() else { continue };
                prop_assert!(newest < oldest, "level {} has a newer version of key {} than above", run[0].level, key);
                oldest = versions().min().unwrap_or(oldest);
            }
        }
        Ok(())
    }
}

#[derive(Clone, Debug)]
enum ModelStep {
    /// Where a tree has many boundaries, flushes are not cut at all of them.
    Flush {
        keys: Vec<u8>,
        ranges: Vec<(u8, u8)>,
        cuts: Vec<u8>,
        is_cut_at_boundaries: bool,
    },
    Begin(Marked),
    End {
        at: usize,
        cuts: Vec<u8>,
    },
    Split(u8),
    Policy(usize),
}

fn step() -> impl Strategy<Value = ModelStep> {
    let cuts = || prop::collection::vec(1..KEYS, 0..5);
    // Half of all flushes touch a few neighbouring keys, so that some tables do not overlap.
    let keys = prop_oneof![
        prop::collection::vec(0..KEYS, 1..12),
        (0..KEYS - 3).prop_flat_map(|low| prop::collection::vec(low..low + 3, 1..4)),
    ];
    let ranges = prop::collection::vec((0..KEYS, 0..KEYS), 0..2);
    prop_oneof![
        6 => (keys, ranges, cuts(), any::<bool>()).prop_map(|(keys, ranges, cuts, is_cut_at_boundaries)| {
            ModelStep::Flush { keys, ranges, cuts, is_cut_at_boundaries }
        }),
        6 => prop_oneof![1 => Just(Marked::Level), 4 => Just(Marked::Keys)].prop_map(ModelStep::Begin),
        4 => (0..4usize, cuts()).prop_map(|(at, cuts)| ModelStep::End { at, cuts }),
        1 => (1..KEYS).prop_map(ModelStep::Split),
        1 => (0..POLICIES).prop_map(ModelStep::Policy),
    ]
}

const POLICIES: usize = 8;

fn policy(number: usize) -> Box<dyn CompactionPolicy> {
    // Sizes are in entries of `ENTRY_BYTES`: some flushes fill every level soon.
    let leveled = |levels, level0_runs, size_ratio| {
        let sizes = LeveledOptions { base_bytes: 120, overlap_tables: 4, ..Default::default() };
        let options = LeveledOptions { levels, level0_runs, level0_overlap: 1, size_ratio, ..sizes };
        Box::new(Leveled::new(options, TABLE_BYTES))
    };
    let tiered = |size_ratio, levels, space_percent| {
        Box::new(Tiered::new(TieredOptions { size_ratio, levels, space_percent }, TABLE_BYTES))
    };
    match number {
        0 => leveled(4, 2, 2),
        1 => leveled(2, 3, 10),
        2 => leveled(5, 1, 2),
        3 => tiered(2, 4, 300),
        4 => tiered(3, 2, 100),
        5 => tiered(2, 2, 10_000),
        _ => {
            let overwritten_share = if number == 6 { f64::INFINITY } else { 0.25 };
            let options = TwoLayerOptions { unsorted_bytes: 300, scan_merge_runs: 3 };
            let policy = TwoLayer::new(options, TABLE_BYTES).with_overwritten_share(overwritten_share);
            Box::new(if number == 6 { policy } else { policy.with_hash_index() })
        }
    }
}

/// Output tables are cut at this size.
const TABLE_BYTES: u64 = 40;

proptest! {
    #[test]
    fn newer_data_never_sinks_below_older(first in 0..POLICIES, steps in prop::collection::vec(step(), 1..80)) {
        let mut model = Model::default();
        let mut policy_now = policy(first);
        for step in &steps {
            match step {
                ModelStep::Flush { keys, ranges, cuts, is_cut_at_boundaries } => {
                    let mut cuts = cuts.clone();
                    cuts.extend(model.boundaries.iter().filter(|_| *is_cut_at_boundaries));
                    model.flush(keys, ranges, &cuts);
                }
                ModelStep::Begin(how) => drop(model.begin(policy_now.as_ref(), *how)?),
                ModelStep::End { at, cuts } if !model.running.is_empty() => model.end(*at, cuts)?,
                ModelStep::End { .. } => {}
                ModelStep::Split(at) => drop(model.boundaries.insert(*at)),
                // A tree gets another policy only when it is opened, so running jobs are lost.
                ModelStep::Policy(number) => {
                    model.running.clear();
                    policy_now = policy(*number);
                }
            }
            model.check()?;
        }
        // Without further flushes compaction comes to rest, and then the debt is below 1.0.
        while !model.running.is_empty() {
            model.end(0, &[])?;
        }
        let mut jobs = 0;
        while model.begin(policy_now.as_ref(), Marked::Keys)? {
            model.end(0, &[7, 15])?;
            model.check()?;
            jobs += 1;
            prop_assert!(jobs < 200, "it never comes to rest");
        }
        let debt = TreeShape::new(model.levels(), policy_now.as_ref()).debt();
        prop_assert!(debt < 1.0, "debt without a job: {:?}", model.levels());
    }
}
