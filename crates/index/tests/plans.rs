//! Golden plans: a tree in text, a policy, and the jobs it chooses. `plans/*.txt` hold the cases; after a wanted
//! change of a policy `BIFOLD_WRITE_PLANS=1 cargo test -p bifold-index --test plans` writes the new plans, and the
//! diff shows what has changed.
//!
//! ```text
//! == what this case shows
//! policy leveled level0_runs=4 base_bytes=1000    tables end at 100 bytes
//! run L0 9: 91 a-m 50, 92 n-z 50 tombstones=10    level, run: table, keys, bytes (entries are bytes / 10)
//! split at m                                      a boundary between partitions
//! busy 91                                         tables that running jobs have
//! scans ask                                       a scan has met a tree in debt to scans
//! writes L1 12 a-f                                a running job writes these keys to that level and run
//! choose 2                                        choose a job, take it as running, choose another
//! -> debt 1.25
//! -> merge L0 91 92 and L6 11 into L6 run 1: level 0 has 2 overlapping runs
//! -> nothing
//! ```
#![allow(clippy::unwrap_used, clippy::panic, reason = "tests fail by panicking")]

use std::{fmt::Write as _, fs, path::Path, sync::Arc};

use bifold_contract::{
    Busy, BusyOutput, CompactionJob, CompactionPolicy, Expiring, JobShape, Level, Levels, Run, TableMeta,
};
use bifold_index::compaction::{
    by_partition::TreeShape,
    leveled::{Leveled, LeveledOptions},
    tiered::{Tiered, TieredOptions},
    two_layer::{TwoLayer, TwoLayerOptions},
};

/// Output tables are cut at this size.
const TABLE_BYTES: u64 = 100;

#[test]
fn leveled_chooses_what_its_plans_say() {
    check("leveled");
}

#[test]
fn tiered_chooses_what_its_plans_say() {
    check("tiered");
}

#[test]
fn two_layer_chooses_what_its_plans_say() {
    check("two_layer");
}

fn check(name: &str) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("tests/plans/{name}.txt"));
    let golden = fs::read_to_string(&path).unwrap();
    let cases = golden.split_inclusive('\n').filter(|line| line.starts_with("== ")).count();
    assert!(cases >= 5, "{name} has {cases} cases");
    let mut now = String::new();
    for line in golden.lines().filter(|line| !line.starts_with("->")) {
        writeln!(now, "{line}").unwrap();
        if line.starts_with("choose") {
            now += &plan(&golden, &now);
        }
    }
    if std::env::var_os("BIFOLD_WRITE_PLANS").is_some() {
        fs::write(&path, now).unwrap();
    } else if now != golden {
        let (at, (is, should)) = now.lines().zip(golden.lines()).enumerate().find(|(_, (a, b))| a != b).unwrap();
        panic!(
            "{name}.txt, line {}:\n  planned {is}\n  golden  {should}\nBIFOLD_WRITE_PLANS=1 writes new plans",
            at + 1
        );
    }
}

/// The answer to the last command of `text`, which stands in the last case of it.
fn plan(golden: &str, text: &str) -> String {
    let case = text.rfind("== ").map_or(text, |begin| &text[begin..]);
    let mut bed = Bed::default();
    for line in case.lines().skip(1) {
        bed.read(line).unwrap_or_else(|| panic!("`{line}` of `{golden:.60}…` is no line of a plan"));
    }
    bed.answer
}

/// A tree with a policy.
#[derive(Default)]
struct Bed {
    policy: Option<Box<dyn CompactionPolicy>>,
    levels: Levels,
    busy: Busy,
    answer: String,
}

impl Bed {
    fn read(&mut self, line: &str) -> Option<()> {
        let (word, rest) = line.split_once(' ').unwrap_or((line, ""));
        match word {
            "" | "#" => {}
            "policy" => self.policy = Some(policy(rest)?),
            "run" => self.add_run(rest)?,
            "split" => {
                let key: Box<[u8]> = rest.strip_prefix("at ")?.as_bytes().into();
                self.levels.boundaries = self.levels.boundaries.iter().cloned().chain([key]).collect();
            }
            "busy" => {
                for id in rest.split(' ') {
                    self.busy.tables.insert(id.parse().ok()?);
                }
            }
            "writes" => {
                let (place, keys) = rest.strip_prefix('L')?.rsplit_once(' ')?;
                let (level, run) = place.split_once(' ')?;
                let (first, last) = keys.split_once('-')?;
                let keys = Some((first.as_bytes().into(), Some(last.as_bytes().into())));
                let (level, run) = (level.parse().ok()?, Some(run.parse().ok()?));
                self.busy.outputs.push(BusyOutput { level, run, keys });
            }
            "scans" => self.busy.scans_ask = rest == "ask",
            "snapshot" => self.busy.oldest_snapshot = Some(rest.parse().ok()?),
            "choose" => self.answer = self.choose(rest.parse().ok()?)?,
            _ => return None,
        }
        Some(())
    }

    /// `L0 9: 91 a-m 50, 92 n-z 50 tombstones=10`
    fn add_run(&mut self, text: &str) -> Option<()> {
        let (place, tables) = text.split_once(": ")?;
        let (level, id) = place.strip_prefix('L')?.split_once(' ')?;
        let level: usize = level.parse().ok()?;
        let tables = tables.split(", ").map(table).collect::<Option<Vec<_>>>()?;
        if self.levels.levels.len() <= level {
            self.levels.levels.resize_with(level + 1, Level::default);
        }
        let runs = &mut self.levels.levels[level].runs;
        runs.push(Run { id: id.parse().ok()?, tables });
        runs.sort_by_key(|run| std::cmp::Reverse(run.id));
        Some(())
    }

    fn choose(&self, times: u32) -> Option<String> {
        let policy = self.policy.as_deref()?;
        let shape = TreeShape::new(self.levels.clone(), policy);
        let mut busy = self.busy.clone();
        let mut answer = match shape.debt_to_scans() {
            0.0 => format!("-> debt {:.2}\n", shape.debt()),
            to_scans => format!("-> debt {:.2}, to scans {to_scans:.2}\n", shape.debt()),
        };
        for _ in 0..times {
            let Some(mut job) = shape.choose(policy, &busy) else {
                answer += "-> nothing\n";
                break;
            };
            writeln!(answer, "-> {}", in_words(&job)).unwrap();
            let begun = self.levels.tables().map(|(_, run, _)| run).max().unwrap_or(0) + 1 + busy.outputs.len() as u64;
            job.output_run.get_or_insert(begun);
            busy.tables.extend(job.inputs.iter().map(|input| input.2));
            busy.outputs.push(job.output());
        }
        Some(answer)
    }
}

/// `91 a-m 50 tombstones=10`
fn table(text: &str) -> Option<Arc<TableMeta>> {
    let mut words = text.split(' ');
    let id = words.next()?.parse().ok()?;
    let (smallest, largest) = words.next()?.split_once('-')?;
    let bytes: u64 = words.next()?.parse().ok()?;
    let tombstones = match words.next() {
        Some(word) => word.strip_prefix("tombstones=")?.parse().ok()?,
        None => 0,
    };
    let table = TableMeta {
        id,
        bytes,
        entries: bytes / 10,
        tombstones,
        range_tombstones: 0,
        smallest: smallest.as_bytes().into(),
        largest: largest.as_bytes().into(),
        unbounded: false,
        min_seqno: id,
        max_seqno: id,
        expiring: Expiring::default(),
    };
    words.next().is_none().then(|| Arc::new(table))
}

fn in_words(job: &CompactionJob) -> String {
    let verb = match job.shape {
        JobShape::Merge => "merge",
        JobShape::Move => "move",
    };
    let by_level = job.inputs.chunk_by(|a, b| a.0 == b.0).map(|inputs| {
        let ids: Vec<String> = inputs.iter().map(|input| input.2.to_string()).collect();
        format!("L{} {}", inputs[0].0, ids.join(" "))
    });
    let from = by_level.collect::<Vec<_>>().join(" and ");
    let run = job.output_run.map_or("a new run".to_owned(), |run| format!("run {run}"));
    format!("{verb} {from} into L{} {run}: {}", job.output_level, job.reason)
}

/// `leveled level0_runs=4 base_bytes=1000`
fn policy(text: &str) -> Option<Box<dyn CompactionPolicy>> {
    let (name, options) = text.split_once(' ').unwrap_or((text, ""));
    let options: Vec<(&str, u64)> = options
        .split_whitespace()
        .map(|word| word.split_once('=').and_then(|(name, value)| Some((name, value.parse().ok()?))))
        .collect::<Option<_>>()?;
    match name {
        "leveled" => leveled(&options),
        "tiered" => tiered(&options),
        "two_layer" => two_layer(&options),
        _ => None,
    }
}

fn leveled(options: &[(&str, u64)]) -> Option<Box<dyn CompactionPolicy>> {
    let mut o = LeveledOptions { base_bytes: 1000, ..LeveledOptions::default() };
    for &(name, value) in options {
        match name {
            "size_ratio" => o.size_ratio = value as u32,
            "levels" => o.levels = value as u8,
            "level0_runs" => o.level0_runs = value as u32,
            "level0_overlap" => o.level0_overlap = value as u32,
            "base_bytes" => o.base_bytes = value,
            "overlap_tables" => o.overlap_tables = value as u32,
            _ => return None,
        }
    }
    Some(Box::new(Leveled::new(o, TABLE_BYTES)))
}

fn tiered(options: &[(&str, u64)]) -> Option<Box<dyn CompactionPolicy>> {
    let mut o = TieredOptions::default();
    for &(name, value) in options {
        match name {
            "size_ratio" => o.size_ratio = value as u32,
            "levels" => o.levels = value as u8,
            "space_percent" => o.space_percent = value as u32,
            _ => return None,
        }
    }
    Some(Box::new(Tiered::new(o, TABLE_BYTES)))
}

fn two_layer(options: &[(&str, u64)]) -> Option<Box<dyn CompactionPolicy>> {
    let mut o = TwoLayerOptions { unsorted_bytes: 1000, ..TwoLayerOptions::default() };
    let (mut overwritten_share, mut has_hash_index) = (f64::INFINITY, false);
    for &(name, value) in options {
        match name {
            "unsorted_bytes" => o.unsorted_bytes = value,
            "overwritten_percent" => overwritten_share = value as f64 / 100.0,
            "hash_index" => has_hash_index = value > 0,
            "scan_merge_runs" => o.scan_merge_runs = value as u32,
            _ => return None,
        }
    }
    let policy = TwoLayer::new(o, TABLE_BYTES).with_overwritten_share(overwritten_share);
    Some(Box::new(if has_hash_index { policy.with_hash_index() } else { policy }))
}
