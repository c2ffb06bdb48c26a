//! The cost of compaction policies: bytes written, runs to read and space, from a simulation with keys only.
//!
//! ```text
//! cargo run --release -p bifold-index --example compaction_wa -- [data GiB] [compaction speed]
//! ```
//!
//! Loads so many GiB of 1000-byte values in random order, then updates as many with a Zipf distribution (0.99).
//! Memtables of 64 MiB are flushed, a newer version replacing the older as in the engine, and one worker does what
//! the policy chooses. It reads and writes `speed` bytes while the user writes one (0: in no time, so that everything
//! is merged as soon as it is due, which writes the most).

#![allow(clippy::expect_used, reason = "an example ends if its arguments or the policies are wrong")]

use std::{collections::BTreeMap, sync::Arc};

use bifold_contract::{Busy, CompactionJob, CompactionPolicy, Expiring, JobShape, Level, Levels, Run, TableMeta};
use bifold_index::compaction::{
    leveled::{Leveled, LeveledOptions},
    tiered::{Tiered, TieredOptions},
    two_layer::{TwoLayer, TwoLayerOptions},
};

const MIB: u64 = 1 << 20;
/// A key of 16 bytes, a value of 1000 bytes and the overhead in a table.
const ENTRY_BYTES: u64 = 1024;
const MEMTABLE_BYTES: u64 = 64 * MIB;

fn main() {
    let mut arguments = std::env::args().skip(1).map(|word| word.parse::<f64>().expect("a number"));
    let gib = arguments.next().unwrap_or(1.0);
    let speeds = arguments.next().map_or(vec![0.0, 2.0], |speed| vec![speed]);
    println!(
        "{gib} GiB loaded at random, then as much updated (Zipf 0.99); one unit of WA is a byte written per byte put"
    );
    println!(
        "{:38} {:>5} | load {:>5} all {:>5} | runs mean {:>4} max {:>3} | space max {:>5} | \
         jobs {:>5} largest {:>6} MiB",
        "policy", "speed", "WA", "WA", "", "", "", "", ""
    );
    for (name, policy) in policies() {
        for &speed in &speeds {
            let mut tree = Tree::new(policy.as_ref(), speed);
            let keys = (gib * 1024.0 * MIB as f64) as u64 / ENTRY_BYTES;
            let mut random = Random(0x9e37_79b9_7f4a_7c15);
            for n in 0..keys {
                tree.put(scatter(n, keys));
            }
            let load = tree.write_amplification();
            let zipf = Zipf::new(keys, 0.99);
            for _ in 0..keys {
                tree.put(scatter(zipf.rank(random.unit()), keys));
            }
            tree.finish();
            println!(
                "{name:38} {speed:5.1} | load {load:5.2} all {:5.2} | runs mean {:4.1} max {:3} | space max {:5.2} | \
                 jobs {:5} largest {:6} MiB",
                tree.write_amplification(),
                tree.runs_sum as f64 / tree.flushes.max(1) as f64,
                tree.runs_max,
                tree.space_max,
                tree.jobs,
                tree.largest_job / MIB,
            );
        }
    }
}

fn policies() -> Vec<(String, Box<dyn CompactionPolicy>)> {
    let mut all: Vec<(String, Box<dyn CompactionPolicy>)> = Vec::new();
    for (level0_runs, level0_overlap, base) in
        [(4, 3, 256), (4, 3, 64), (6, 3, 256), (8, 3, 256), (8, 2, 256), (8, 4, 256), (8, 3, 64), (12, 3, 256)]
    {
        let name = format!("leveled l0={level0_runs} overlap={level0_overlap} base={base}");
        let options = LeveledOptions { level0_runs, level0_overlap, base_bytes: base * MIB, ..Default::default() };
        all.push((name, Box::new(Leveled::new(options, 16 * MIB))));
    }
    for (size_ratio, space_percent) in [(4, 200), (4, 100), (3, 100), (8, 100)] {
        let options = TieredOptions { size_ratio, space_percent, ..Default::default() };
        all.push((
            format!("tiered size_ratio={size_ratio} space={space_percent}%"),
            Box::new(Tiered::new(options, 16 * MIB)),
        ));
    }
    let options = TwoLayerOptions { unsorted_bytes: 512 * MIB, ..Default::default() };
    all.push(("two-layer unsorted=512".into(), Box::new(TwoLayer::new(options, 16 * MIB))));
    all
}

/// A tree with sorted lists of keys as tables.
struct Tree<'a> {
    policy: &'a dyn CompactionPolicy,
    speed: f64,
    memtable: Vec<u64>,
    levels: Levels,
    keys: BTreeMap<u64, Arc<[u64]>>,
    next_id: u64,
    seqno: u64,
    running: Option<(CompactionJob, f64)>,
    /// Time, in bytes put by the user.
    now: f64,
    written: u64,
    live: std::collections::HashSet<u64>,
    flushes: u64,
    runs_sum: u64,
    runs_max: usize,
    space_max: f64,
    jobs: u64,
    largest_job: u64,
}

impl<'a> Tree<'a> {
    fn new(policy: &'a dyn CompactionPolicy, speed: f64) -> Self {
        Self {
            policy,
            speed,
            memtable: Vec::new(),
            levels: Levels::default(),
            keys: BTreeMap::new(),
            next_id: 1,
            seqno: 0,
            running: None,
            now: 0.0,
            written: 0,
            live: Default::default(),
            flushes: 0,
            runs_sum: 0,
            runs_max: 0,
            space_max: 0.0,
            jobs: 0,
            largest_job: 0,
        }
    }

    fn put(&mut self, key: u64) {
        self.memtable.push(key);
        self.live.insert(key);
        self.seqno += 1;
        self.now += ENTRY_BYTES as f64;
        self.written += ENTRY_BYTES;
        if self.memtable.len() as u64 * ENTRY_BYTES >= MEMTABLE_BYTES {
            self.flush();
        }
    }

    fn flush(&mut self) {
        let mut keys = std::mem::take(&mut self.memtable);
        keys.sort_unstable();
        keys.dedup();
        let run = self.id();
        let table = self.table(&keys);
        self.written += table.bytes;
        self.place(0, run, vec![table]);
        self.work();
        let runs: usize = self.levels.levels.iter().map(|level| level.runs.len()).sum();
        self.flushes += 1;
        self.runs_sum += runs as u64;
        self.runs_max = self.runs_max.max(runs);
    }

    /// Ends the running job when its time is up, and starts the next job that is due.
    fn work(&mut self) {
        loop {
            if let Some((_, end)) = &self.running
                && *end > self.now
            {
                return;
            }
            let began = self.running.take().map(|(job, end)| {
                self.install(&job);
                end
            });
            if self.policy.debt(&self.levels) < 1.0 {
                return;
            }
            let Some(job) = self.policy.choose(&self.levels, &Busy::default()) else { return };
            let moved = 2.0 * self.input_bytes(&job) as f64;
            let cost = if self.speed == 0.0 || job.shape == JobShape::Move { 0.0 } else { moved / self.speed };
            // A busy worker continues at once; an idle one starts now.
            let begin = began.filter(|&end| end > 0.0).unwrap_or(self.now);
            self.running = Some((job, begin + cost));
        }
    }

    fn finish(&mut self) {
        self.flush();
        self.now = f64::INFINITY;
        self.work();
    }

    fn input_bytes(&self, job: &CompactionJob) -> u64 {
        job.inputs.iter().map(|(_, _, id)| self.keys[id].len() as u64 * ENTRY_BYTES).sum()
    }

    fn install(&mut self, job: &CompactionJob) {
        let run = job.output_run.unwrap_or_else(|| self.id());
        self.jobs += 1;
        if job.shape == JobShape::Move {
            let ids: Vec<u64> = job.inputs.iter().map(|i| i.2).collect();
            let tables =
                self.levels.tables().filter(|(_, _, t)| ids.contains(&t.id)).map(|(_, _, t)| Arc::clone(t)).collect();
            self.remove(job);
            self.place(job.output_level, run, tables);
            return;
        }
        let mut keys: Vec<u64> = job.inputs.iter().flat_map(|(_, _, id)| self.keys[id].iter().copied()).collect();
        keys.sort_unstable();
        keys.dedup();
        let per_table = (job.table_bytes / ENTRY_BYTES).max(1) as usize;
        let tables: Vec<_> = keys.chunks(per_table).map(|keys| self.table(keys)).collect();
        let bytes: u64 = tables.iter().map(|t| t.bytes).sum();
        self.written += bytes;
        self.largest_job = self.largest_job.max(bytes);
        let live = (self.live.len() as u64 * ENTRY_BYTES) as f64;
        self.space_max = self.space_max.max((self.levels.bytes() + bytes) as f64 / live);
        self.remove(job);
        self.place(job.output_level, run, tables);
    }

    fn remove(&mut self, job: &CompactionJob) {
        for level in &mut self.levels.levels {
            for run in &mut level.runs {
                run.tables.retain(|table| !job.inputs.iter().any(|i| i.2 == table.id));
            }
            level.runs.retain(|run| !run.tables.is_empty());
        }
    }

    fn place(&mut self, depth: u8, run: u64, tables: Vec<Arc<TableMeta>>) {
        let depth = usize::from(depth);
        if self.levels.levels.len() <= depth {
            self.levels.levels.resize(depth + 1, Level::default());
        }
        let runs = &mut self.levels.levels[depth].runs;
        if !runs.iter().any(|r| r.id == run) {
            runs.push(Run { id: run, tables: Vec::new() });
            runs.sort_by_key(|r| std::cmp::Reverse(r.id));
        }
        let run = runs.iter_mut().find(|r| r.id == run).expect("just added");
        run.tables.extend(tables);
        run.tables.sort_by(|a, b| a.smallest.cmp(&b.smallest));
    }

    fn table(&mut self, keys: &[u64]) -> Arc<TableMeta> {
        let id = self.id();
        self.keys.insert(id, keys.into());
        let key = |key: Option<&u64>| Box::from(key.copied().unwrap_or(0).to_be_bytes());
        Arc::new(TableMeta {
            id,
            bytes: keys.len() as u64 * ENTRY_BYTES,
            entries: keys.len() as u64,
            tombstones: 0,
            range_tombstones: 0,
            smallest: key(keys.first()),
            largest: key(keys.last()),
            unbounded: false,
            min_seqno: 1,
            max_seqno: self.seqno,
            expiring: Expiring::default(),
        })
    }

    fn id(&mut self) -> u64 {
        self.next_id += 1;
        self.next_id - 1
    }

    fn write_amplification(&self) -> f64 {
        self.written as f64 / (self.seqno * ENTRY_BYTES) as f64
    }
}

/// A permutation of `0..keys`, so that neighbours in rank are distant in key order.
fn scatter(n: u64, keys: u64) -> u64 {
    // Any odd multiplier permutes the numbers below a power of two. Results outside `0..keys` are permuted again.
    let mask = keys.next_power_of_two() - 1;
    let mut at = n;
    loop {
        at = at.wrapping_mul(0x2545_f491_4f6c_dd1d) & mask;
        at ^= at >> (mask.count_ones() / 2);
        if at < keys {
            return at;
        }
    }
}

struct Random(u64);

impl Random {
    /// A number in `0.0..1.0` (xorshift).
    fn unit(&mut self) -> f64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) as f64 / (1u64 << 53) as f64
    }
}

/// Ranks by Gray et al., "Quickly generating billion-record synthetic databases".
struct Zipf {
    items: f64,
    theta: f64,
    zeta: f64,
    eta: f64,
}

impl Zipf {
    fn new(items: u64, theta: f64) -> Self {
        let zeta: f64 = (1..=items).map(|i| (i as f64).powf(-theta)).sum();
        let zeta2 = 1.0 + 0.5f64.powf(theta);
        let items = items as f64;
        let eta = (1.0 - (2.0 / items).powf(1.0 - theta)) / (1.0 - zeta2 / zeta);
        Self { items, theta, zeta, eta }
    }

    fn rank(&self, unit: f64) -> u64 {
        let z = unit * self.zeta;
        match z {
            z if z < 1.0 => 0,
            z if z < 1.0 + 0.5f64.powf(self.theta) => 1,
            _ => (self.items * (self.eta * unit - self.eta + 1.0).powf(1.0 / (1.0 - self.theta))) as u64,
        }
    }
}
