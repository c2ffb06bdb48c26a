//! How many bytes and entries a design moves for each write, by the formulas of docs/cost-model.md.

use super::{
    candidate::{Candidate, CandidateCompaction, ModelPlacement},
    costs::*,
    skew::{Spread, copied_by_files},
    workload::Workload,
};

/// What each write moves on average, and what the full store holds where.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Flows {
    /// Bytes that commits append to logs and value files.
    pub appended: f64,
    /// Entries that flushes write.
    pub flushed: f64,
    /// Entries that compactions write; they read about as many.
    pub merged: f64,
    /// Bytes of an entry in the tables.
    pub entry: f64,
    /// Bytes of values that flushes and compactions also move to value files.
    pub ordered: f64,
    /// How many such values there are.
    pub moved: f64,
    /// Bytes that GC writes.
    pub gc_written: f64,
    /// Bytes and records that GC reads, and how often it asks the index.
    pub gc_read: f64,
    pub records: f64,
    pub lookups: f64,
    /// Bytes of all tables and of all live separated values, without garbage.
    pub tables: f64,
    pub values: f64,
    /// Levels below level 0, and sorted runs that a scan reads.
    pub levels: f64,
    pub runs: f64,
}

/// One workload under one design.
struct FlowCase<'a> {
    workload: &'a Workload,
    candidate: &'a Candidate,
    spread: Spread,
    /// The shares of writes that replace or remove a key.
    updates: f64,
    deletes: f64,
    /// Entries of a memtable, in order of arrival.
    memtable: f64,
    entry: f64,
    /// The store's memory limit.
    memory: f64,
}

impl Flows {
    /// For a workload with writes. `memory` is the store's memory limit, `space` the bytes it may use for each live
    /// one.
    pub fn of(workload: &Workload, candidate: &Candidate, memory: f64, space: f64) -> Self {
        let o = &workload.operations;
        let writes = (o.insert + o.update + o.delete).max(f64::MIN_POSITIVE);
        let (separated, record) = separated(workload, candidate);
        let value = workload.value_bytes();
        let in_table = workload.key_bytes + TABLE_ENTRY;
        let entry = in_table + separated * ADDRESS + in_place(workload, candidate);
        let at_commit = candidate.placement.separates_at_commit();
        let large = large_share(workload, candidate);
        let in_memtable = if at_commit { entry } else { in_table + value } + MEMTABLE_ENTRY;
        let memtable_bytes = MEMTABLE_BYTES.min(memory * MEMTABLES_SHARE / 3.0);
        let case = FlowCase {
            workload,
            candidate,
            spread: Spread::new(workload.keys, workload.update_skew),
            updates: o.update / writes,
            deletes: o.delete / writes,
            memtable: (memtable_bytes / in_memtable).max(1.0),
            entry,
            memory,
        };
        let mut flows = Self {
            entry,
            tables: workload.keys * entry,
            values: workload.keys * separated * record,
            ..Self::default()
        };
        let extra = if at_commit { separated * (ADDRESS + VALUE_RECORD + workload.key_bytes) } else { 0.0 };
        flows.appended = workload.key_bytes + LOG_RECORD + (1.0 - case.deletes) * (value + extra);
        case.tree(&mut flows);
        case.values(&mut flows, (separated, record), large, space);
        flows
    }
}

/// The share of values that is separated, and the bytes of one record.
pub(super) fn separated(workload: &Workload, candidate: &Candidate) -> (f64, f64) {
    let values = || workload.values.iter().filter(|v| candidate.separates(v.bytes));
    let share: f64 = values().map(|v| v.share).sum();
    let bytes: f64 = values().map(|v| v.share * v.bytes).sum();
    (share, if share > 0.0 { bytes / share + workload.key_bytes + VALUE_RECORD } else { 0.0 })
}

/// Bytes of inline values per key.
fn in_place(workload: &Workload, candidate: &Candidate) -> f64 {
    workload.values.iter().filter(|v| !candidate.separates(v.bytes)).map(|v| v.share * v.bytes).sum()
}

/// The share of separated bytes that go to logs at once, while others wait for the flush.
fn large_share(workload: &Workload, candidate: &Candidate) -> f64 {
    let values = || workload.values.iter().filter(|v| candidate.separates(v.bytes));
    let all: f64 = values().map(|v| v.share * v.bytes).sum();
    let large: f64 = values().filter(|v| v.bytes >= LARGE_BYTES).map(|v| v.share * v.bytes).sum();
    if candidate.placement == ModelPlacement::DiffKv && all > 0.0 { large / all } else { 0.0 }
}

impl FlowCase<'_> {
    /// How many distinct keys this many writes touch. Each insert has a new key.
    fn distinct(&self, writes: f64) -> f64 {
        let replacing = self.updates + self.deletes;
        writes * (1.0 - replacing) + self.spread.distinct(writes * replacing)
    }

    /// Average number of entries in the tables while the workload runs: half of them if it only inserts.
    fn entries(&self) -> f64 {
        self.workload.keys * f64::midpoint(1.0, self.updates + self.deletes)
    }

    fn tree(&self, flows: &mut Flows) {
        flows.flushed = self.distinct(self.memtable) / self.memtable;
        let entries = self.entries();
        match self.candidate.shape {
            CandidateCompaction::Leveled { size_ratio } => self.leveled(flows, entries, f64::from(size_ratio)),
            CandidateCompaction::Tiered { size_ratio } => {
                let size_ratio = f64::from(size_ratio);
                let runs = (entries / (self.memtable * flows.flushed)).max(1.0);
                flows.levels = (runs.ln() / size_ratio.ln()).max(0.0).floor();
                flows.merged = (1..=flows.levels as u32)
                    .map(|level| self.share_left(self.memtable * size_ratio.powi(level as i32)))
                    .sum();
                flows.runs = (size_ratio - 1.0) * (flows.levels + 1.0) * 0.75;
            }
            CandidateCompaction::TwoLayer => self.two_layer(flows),
        }
    }

    /// The share that is left of this many writes merged together, when each key counts once.
    fn share_left(&self, writes: f64) -> f64 {
        self.distinct(writes) / writes
    }

    /// Level 0 is due at about `BASE_BYTES`, earlier if the level below is smaller, and is merged into all of that
    /// level. Deeper levels are merged table by table.
    fn leveled(&self, flows: &mut Flows, entries: f64, size_ratio: f64) {
        let bytes = entries * self.entry;
        let below = (bytes / BASE_BYTES).max(1.0).log(size_ratio).floor();
        let base = entries / size_ratio.powf(below);
        let some_runs = LEVEL0_RUNS * self.memtable * flows.flushed * self.entry;
        let due = (base * self.entry).max(some_runs).min(BASE_BYTES) * LEVEL0_LAG / self.entry;
        let replacing = self.updates + self.deletes;
        let writes = match self.candidate.placement {
            // NovKV learns from merges which values are dead, so level 0 is merged as soon as it has some tables.
            ModelPlacement::NovKv if replacing > 0.0 => self.memtable,
            _ if replacing > 0.0 => self.spread.writes_until(due).min(due * 20.0),
            // Each write has another key.
            _ => due,
        };
        // Runs of level 0 are merged with each other where that frees space.
        let repeats = 1.0 - self.share_left(8.0 * self.memtable) / flows.flushed;
        flows.levels = 1.0 + below;
        flows.merged = 2.0 * repeats * flows.flushed
            + (self.distinct(writes) + base) / writes
            + below * self.share_left(writes) * (1.0 + ALPHA * size_ratio);
        flows.runs = flows.levels + LEVEL0_RUNS / 2.0;
    }

    /// Runs of level 0 are merged with each other once a scan has met many; without a hash index in memory each read
    /// does. When level 0 is full, all of it is merged into level 1, where only addresses are merged.
    fn two_layer(&self, flows: &mut Flows) {
        let in_place = self.workload.key_bytes + TABLE_ENTRY + self.workload.value_bytes();
        let whole = self.workload.keys * in_place;
        let unsorted = whole.min(UNSORTED_BYTES);
        let memtable = self.memtable * flows.flushed * in_place;
        let is_indexed = self.workload.keys * unsorted / whole * HASH_ENTRY <= INDEX_SHARE * self.memory;
        let passes = if self.workload.operations.scan > 0.0 || !is_indexed {
            (unsorted / (SCAN_MERGE_RUNS * memtable)).max(1.0).log2()
        } else {
            0.0
        };
        let sorted = (1.0 - unsorted / whole).max(self.updates.min(unsorted / UNSORTED_BYTES));
        flows.levels = 1.0;
        // Each of these passes moves whole entries.
        flows.merged = passes * (1.0 - 0.65 * sorted) * flows.flushed;
        flows.entry = in_place;
        // The entries that come down to level 1, and the addresses there that they are merged with.
        let addresses = (self.workload.key_bytes + TABLE_ENTRY + ADDRESS) / in_place;
        flows.merged += sorted * (flows.flushed + addresses * whole / unsorted.max(1.0));
        flows.runs = (unsorted / memtable).min(SCAN_MERGE_RUNS);
    }

    /// The work of placements on separated values: a share `separated` of the puts, `record` bytes each.
    fn values(&self, flows: &mut Flows, (separated, record): (f64, f64), large: f64, space: f64) {
        if separated == 0.0 {
            return;
        }
        let placement = self.candidate.placement;
        let replacing = self.updates + self.deletes;
        let spare = (space - SPACE_SLACK - 1.0 - flows.tables / flows.values).max(GARBAGE_LEAST);
        let copied = self.copied(spare);
        // The share of replaced values that GC has to find.
        let found = match placement {
            ModelPlacement::Inline => 0.0,
            ModelPlacement::DiffKv => large,
            ModelPlacement::UniKv => (1.0 - UNSORTED_BYTES / self.workload.data_bytes()).max(0.0) * flows.flushed,
            ModelPlacement::WiscKey | ModelPlacement::HashKv | ModelPlacement::NovKv | ModelPlacement::Streams => 1.0,
        };
        let replaced = replacing * separated * record * found;
        flows.gc_written = replaced * copied;
        flows.gc_read = replaced
            * match placement {
                ModelPlacement::WiscKey | ModelPlacement::Streams => 1.0 + copied,
                ModelPlacement::HashKv => 1.85 * (1.0 + copied),
                ModelPlacement::DiffKv => 2.5 * copied,
                ModelPlacement::Inline | ModelPlacement::NovKv | ModelPlacement::UniKv => 2.0 * copied,
            };
        flows.records = flows.gc_read / record;
        if matches!(placement, ModelPlacement::WiscKey | ModelPlacement::DiffKv) {
            // One lookup when GC reads a record, another for each copied record when its move is committed.
            flows.lookups = (flows.gc_read + flows.gc_written) / record;
        }
        if placement == ModelPlacement::Streams {
            flows.lookups = LOOKUPS_ABOVE * flows.records;
        }
        if placement == ModelPlacement::DiffKv {
            // The flush separates each value, merges move it once, and more often the more garbage there is.
            let times = (1.0 - self.deletes) * flows.flushed * (2.0 + replacing * copied);
            flows.moved = (1.0 - large) * separated * times;
            flows.ordered = flows.moved * record;
        }
        if matches!(placement, ModelPlacement::WiscKey | ModelPlacement::HashKv) {
            // Moves are writes of addresses.
            let moves = flows.gc_written / record;
            flows.appended += moves * (self.workload.key_bytes + LOG_RECORD + ADDRESS);
            flows.flushed *= 1.0 + moves;
            flows.merged *= 1.0 + moves;
        }
    }

    /// Bytes that GC copies for each replaced byte, with this much room for garbage.
    fn copied(&self, spare: f64) -> f64 {
        match self.candidate.placement {
            ModelPlacement::WiscKey => self.spread.copied_by_log(spare),
            // GC takes a group at its share of the spare bytes, whatever the skew; cold segments save some copies.
            ModelPlacement::HashKv => (1.0 - 0.45 * self.workload.update_skew) / (2.0 * spare),
            // Skewed updates are told from others by streams (`bifold lab simulate streams`).
            ModelPlacement::Streams => copied_by_files(spare) * (1.0 - 0.6 * self.workload.update_skew.powi(3)),
            _ => copied_by_files(spare) * (1.0 - 0.2 * self.workload.update_skew),
        }
    }
}

/// Bytes that commits and background work write for each write of the program.
pub(super) fn written(flows: &Flows) -> f64 {
    flows.appended + (flows.flushed + flows.merged) * flows.entry + flows.ordered + flows.gc_written
}

/// Bytes that background work reads for each write of the program.
pub(super) fn read(flows: &Flows) -> f64 {
    flows.merged * flows.entry + flows.ordered / 2.0 + flows.gc_read
}

/// Processor time of a commit in µs.
pub(super) fn commit_time(flows: &Flows, candidate: &Candidate) -> f64 {
    let group = if candidate.placement == ModelPlacement::HashKv { GROUP } else { 0.0 };
    COMMIT + group + flows.appended / 1e3 * APPEND_KB
}

/// Processor time of background work for each write, in µs.
pub(super) fn background_time(flows: &Flows, candidate: &Candidate) -> f64 {
    let entry = if candidate.placement == ModelPlacement::UniKv { ENTRY + INDEXED } else { ENTRY };
    (written(flows) - flows.appended) / 1e3 * WRITE_KB
        + read(flows) / 1e3 * READ_KB
        + (flows.flushed + flows.merged) * entry
        + flows.moved * MOVED
        + flows.records * RECORD
        + flows.lookups * LOOKUP
}
