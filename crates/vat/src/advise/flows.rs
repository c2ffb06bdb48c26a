//! How many bytes and entries a design moves for each write: the formulas that docs/cost-model.md states.

use super::{
    candidate::{Candidate, Placement, Shape},
    costs::*,
    skew::{Spread, copied_by_files},
    workload::Workload,
};

/// What each write moves, on average, and what stands where when the store is full.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Flows {
    /// Bytes that commits append to logs and value files.
    pub appended: f64,
    /// Entries that flushes write.
    pub flushed: f64,
    /// Entries that compactions write, and about as many they read.
    pub merged: f64,
    /// Bytes of an entry in the tables.
    pub entry: f64,
    /// Bytes of values that flushes and compactions move to files of their own, besides.
    pub ordered: f64,
    /// How many values that are.
    pub moved: f64,
    /// Bytes that collections write.
    pub collected: f64,
    /// Bytes and records that they read, and how often they ask the index.
    pub collected_read: f64,
    pub records: f64,
    pub lookups: f64,
    /// Bytes of all tables and of all live values apart, when there is no garbage.
    pub tables: f64,
    pub values: f64,
    /// Levels below level 0, and sorted runs that a scan meets.
    pub levels: f64,
    pub runs: f64,
}

/// One workload under one design.
struct Case<'a> {
    workload: &'a Workload,
    candidate: &'a Candidate,
    spread: Spread,
    /// Of writes, the shares that replace something or remove it.
    updates: f64,
    deletes: f64,
    /// Entries of a memtable, as they arrive.
    memtable: f64,
    entry: f64,
}

impl Flows {
    /// Of a workload with writes. `memory` is the limit of the store's, `space` the bytes it may take for each live
    /// one.
    pub fn of(workload: &Workload, candidate: &Candidate, memory: f64, space: f64) -> Self {
        let o = &workload.operations;
        let writes = (o.insert + o.update + o.delete).max(f64::MIN_POSITIVE);
        let (apart, record) = apart(workload, candidate);
        let value = workload.value_bytes();
        let in_table = workload.key_bytes + TABLE_ENTRY;
        let entry = in_table + apart * ADDRESS + in_place(workload, candidate);
        let at_commit = candidate.placement.separates_at_commit();
        let large = large_share(workload, candidate);
        let in_memtable = if at_commit { entry } else { in_table + value } + MEMTABLE_ENTRY;
        let memtable_bytes = MEMTABLE_BYTES.min(memory * MEMTABLES_SHARE / 3.0);
        let case = Case {
            workload,
            candidate,
            spread: Spread::new(workload.keys, workload.update_skew),
            updates: o.update / writes,
            deletes: o.delete / writes,
            memtable: (memtable_bytes / in_memtable).max(1.0),
            entry,
        };
        let mut flows =
            Self { entry, tables: workload.keys * entry, values: workload.keys * apart * record, ..Self::default() };
        let beside_value = if at_commit { apart * (ADDRESS + VALUE_RECORD + workload.key_bytes) } else { 0.0 };
        flows.appended = workload.key_bytes + LOG_RECORD + (1.0 - case.deletes) * (value + beside_value);
        case.tree(&mut flows);
        case.values(&mut flows, (apart, record), large, space);
        flows
    }
}

/// Of all values, the share that is apart, and the bytes of a record of one.
pub(super) fn apart(workload: &Workload, candidate: &Candidate) -> (f64, f64) {
    let parted = || workload.values.iter().filter(|v| candidate.parts(v.bytes));
    let share: f64 = parted().map(|v| v.share).sum();
    let bytes: f64 = parted().map(|v| v.share * v.bytes).sum();
    (share, if share > 0.0 { bytes / share + workload.key_bytes + VALUE_RECORD } else { 0.0 })
}

/// Bytes of values that stay with their keys, for each key.
fn in_place(workload: &Workload, candidate: &Candidate) -> f64 {
    workload.values.iter().filter(|v| !candidate.parts(v.bytes)).map(|v| v.share * v.bytes).sum()
}

/// Of the bytes apart, the share that goes to logs at once although others wait for the flush.
fn large_share(workload: &Workload, candidate: &Candidate) -> f64 {
    let parted = || workload.values.iter().filter(|v| candidate.parts(v.bytes));
    let all: f64 = parted().map(|v| v.share * v.bytes).sum();
    let large: f64 = parted().filter(|v| v.bytes >= LARGE_BYTES).map(|v| v.share * v.bytes).sum();
    if candidate.placement == Placement::DiffKv && all > 0.0 { large / all } else { 0.0 }
}

impl Case<'_> {
    /// How many different keys so many writes meet. Inserts always meet another.
    fn distinct(&self, writes: f64) -> f64 {
        let replacing = self.updates + self.deletes;
        writes * (1.0 - replacing) + self.spread.distinct(writes * replacing)
    }

    /// Entries in the tables, on average while the workload goes on: half of them while they are only being put in.
    fn entries(&self) -> f64 {
        self.workload.keys * f64::midpoint(1.0, self.updates + self.deletes)
    }

    fn tree(&self, flows: &mut Flows) {
        flows.flushed = self.distinct(self.memtable) / self.memtable;
        let entries = self.entries();
        match self.candidate.shape {
            Shape::Leveled { growth } => self.leveled(flows, entries, f64::from(growth)),
            Shape::Tiered { growth } => {
                let growth = f64::from(growth);
                let runs = (entries / (self.memtable * flows.flushed)).max(1.0);
                flows.levels = (runs.ln() / growth.ln()).max(0.0).floor();
                flows.merged = (1..=flows.levels as u32)
                    .map(|level| self.share_left(self.memtable * growth.powi(level as i32)))
                    .sum();
                flows.runs = (growth - 1.0) * (flows.levels + 1.0) * 0.75;
            }
            Shape::TwoLayer => self.two_layer(flows),
        }
    }

    /// Of so many writes that come down together, the share that is left when each key counts once.
    fn share_left(&self, writes: f64) -> f64 {
        self.distinct(writes) / writes
    }

    /// Level 0 is due at about `BASE_BYTES`, earlier where the level below is smaller, and is merged into all of
    /// that. The levels below are merged table by table.
    fn leveled(&self, flows: &mut Flows, entries: f64, growth: f64) {
        let bytes = entries * self.entry;
        let below = (bytes / BASE_BYTES).max(1.0).log(growth).floor();
        let base = entries / growth.powf(below);
        let some_runs = LEVEL0_RUNS * self.memtable * flows.flushed * self.entry;
        let due = (base * self.entry).max(some_runs).min(BASE_BYTES) * LEVEL0_LAG / self.entry;
        let replacing = self.updates + self.deletes;
        let writes = match self.candidate.placement {
            // It learns by merges what is dead, so its tables are merged as soon as there are some.
            Placement::NovKv if replacing > 0.0 => self.memtable,
            _ if replacing > 0.0 => self.spread.writes_until(due).min(due * 20.0),
            // Each write is another key.
            _ => due,
        };
        // Runs of level 0 are merged with each other for what that frees.
        let repeats = 1.0 - self.share_left(8.0 * self.memtable) / flows.flushed;
        flows.levels = 1.0 + below;
        flows.merged = 2.0 * repeats * flows.flushed
            + (self.distinct(writes) + base) / writes
            + below * self.share_left(writes) * (1.0 + ALPHA * growth);
        flows.runs = flows.levels + LEVEL0_RUNS / 2.0;
    }

    /// Runs of level 0 are merged with each other while they are many, and all of it into level 1 when it is full,
    /// where only addresses are merged.
    fn two_layer(&self, flows: &mut Flows) {
        let in_place = self.workload.key_bytes + TABLE_ENTRY + self.workload.value_bytes();
        let whole = self.workload.keys * in_place;
        let unsorted = whole.min(UNSORTED_BYTES);
        let memtable = self.memtable * flows.flushed * in_place;
        let passes = (unsorted / (SCAN_MERGE_RUNS * memtable)).max(1.0).log2();
        let sorted = (1.0 - unsorted / whole).max(self.updates.min(unsorted / UNSORTED_BYTES));
        flows.levels = 1.0;
        // Each of these passes moves whole pairs.
        flows.merged = passes * (1.0 - 0.65 * sorted) * flows.flushed;
        flows.entry = in_place;
        // What comes down to level 1, and the addresses it meets there.
        let addresses = (self.workload.key_bytes + TABLE_ENTRY + ADDRESS) / in_place;
        flows.merged += sorted * (flows.flushed + addresses * whole / unsorted.max(1.0));
        flows.runs = (unsorted / memtable).min(SCAN_MERGE_RUNS);
    }

    /// What placements do with values apart: `record` bytes each for a share `apart` of the puts.
    fn values(&self, flows: &mut Flows, (apart, record): (f64, f64), large: f64, space: f64) {
        if apart == 0.0 {
            return;
        }
        let placement = self.candidate.placement;
        let replacing = self.updates + self.deletes;
        let spare = (space - SPACE_SLACK - 1.0 - flows.tables / flows.values).max(GARBAGE_LEAST);
        let copied = self.copied(spare);
        // Of what is replaced, the share that collections have to find.
        let found = match placement {
            Placement::Inline => 0.0,
            Placement::DiffKv => large,
            Placement::UniKv => (1.0 - UNSORTED_BYTES / self.workload.data_bytes()).max(0.0) * flows.flushed,
            Placement::WiscKey | Placement::HashKv | Placement::NovKv => 1.0,
        };
        let replaced = replacing * apart * record * found;
        flows.collected = replaced * copied;
        flows.collected_read = replaced
            * match placement {
                Placement::WiscKey => 1.0 + copied,
                Placement::HashKv => 1.85 * (1.0 + copied),
                Placement::DiffKv => 2.5 * copied,
                Placement::Inline | Placement::NovKv | Placement::UniKv => 2.0 * copied,
            };
        flows.records = flows.collected_read / record;
        if matches!(placement, Placement::WiscKey | Placement::DiffKv) {
            // Each once when it is read, those that are copied once more when their move is committed.
            flows.lookups = (flows.collected_read + flows.collected) / record;
        }
        if placement == Placement::DiffKv {
            // Parted by the flush, moved once by merges, and as often more as garbage has it.
            let times = (1.0 - self.deletes) * flows.flushed * (2.0 + replacing * copied);
            flows.moved = (1.0 - large) * apart * times;
            flows.ordered = flows.moved * record;
        }
        if matches!(placement, Placement::WiscKey | Placement::HashKv) {
            // Moves are writes of addresses.
            let moves = flows.collected / record;
            flows.appended += moves * (self.workload.key_bytes + LOG_RECORD + ADDRESS);
            flows.flushed *= 1.0 + moves;
            flows.merged *= 1.0 + moves;
        }
    }

    /// Bytes that collections copy for each that is replaced, with room for so much garbage.
    fn copied(&self, spare: f64) -> f64 {
        match self.candidate.placement {
            Placement::WiscKey => self.spread.copied_by_log(spare),
            // A group is collected at its share of the spare bytes, whatever the skew; cold parts spare some of it.
            Placement::HashKv => (1.0 - 0.45 * self.workload.update_skew) / (2.0 * spare),
            _ => copied_by_files(spare) * (1.0 - 0.2 * self.workload.update_skew),
        }
    }
}

/// Bytes that commits and background work write for each write of the program.
pub(super) fn written(flows: &Flows) -> f64 {
    flows.appended + (flows.flushed + flows.merged) * flows.entry + flows.ordered + flows.collected
}

/// Bytes that background work reads for it.
pub(super) fn read(flows: &Flows) -> f64 {
    flows.merged * flows.entry + flows.ordered / 2.0 + flows.collected_read
}

/// Processor time of a commit in µs.
pub(super) fn commit_time(flows: &Flows, candidate: &Candidate) -> f64 {
    let group = if candidate.placement == Placement::HashKv { GROUP } else { 0.0 };
    COMMIT + group + flows.appended / 1e3 * APPEND_KB
}

/// Processor time of background work for each write, in µs.
pub(super) fn background_time(flows: &Flows, candidate: &Candidate) -> f64 {
    let entry = if candidate.placement == Placement::UniKv { ENTRY + INDEXED } else { ENTRY };
    (written(flows) - flows.appended) / 1e3 * WRITE_KB
        + read(flows) / 1e3 * READ_KB
        + (flows.flushed + flows.merged) * entry
        + flows.moved * MOVED
        + flows.records * RECORD
        + flows.lookups * LOOKUP
}
