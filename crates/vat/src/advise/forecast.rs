//! The cost of a design under a workload: time by cause, amplification, memory.

use serde::Serialize;

use super::{
    candidate::{Candidate, CandidateCompaction, ModelPlacement},
    costs::*,
    flows::{self, Flows},
    skew::Spread,
    workload::Workload,
};
use crate::device::Profile;

/// The page size of the system.
const PAGE_BYTES: f64 = 4096.0;

/// Requests that scans, flushes and merges have in flight at once.
const DEEP: u32 = 32;

/// The resources of the store.
#[derive(Debug, Clone, Copy)]
pub struct Machine<'a> {
    /// Processors for the program and the store together, at least one.
    pub processors: u32,
    /// The store's own memory, in bytes.
    pub memory_limit: f64,
    /// Bytes of the store's files that the system keeps in memory.
    pub page_cache: f64,
    /// The device's throughput; without it, the device counts as fast enough.
    pub device: Option<&'a Profile>,
    /// Bytes of files for each live byte, at most.
    pub space: f64,
}

/// What limits a design.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Bottleneck {
    /// The processor, for commits.
    Commits,
    /// The processor, for reads and scans.
    Reads,
    /// The processor, for flushes, merges and GC.
    Background,
    /// The device, by what is written.
    DeviceWrites,
    /// The device, by what is read.
    DeviceReads,
}

impl Bottleneck {
    /// The name in a table.
    pub fn name(self) -> &'static str {
        match self {
            Self::Commits => "commits",
            Self::Reads => "reads",
            Self::Background => "background work",
            Self::DeviceWrites => "device writes",
            Self::DeviceReads => "device reads",
        }
    }
}

/// Average time of an operation of the mix, in µs, by cause.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Times {
    /// Processor time of commits.
    pub commits_us: f64,
    /// Processor time of reads and scans.
    pub reads_us: f64,
    /// Processor time of flushes, merges and GC.
    pub background_us: f64,
    /// Time that the device writes.
    pub device_writes_us: f64,
    /// Time that the device reads.
    pub device_reads_us: f64,
}

/// The cost of a design under a workload.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Forecast {
    /// The design.
    pub candidate: Candidate,
    /// Operations of the mix per second, by one thread.
    pub operations_per_second: f64,
    /// What limits that.
    pub bottleneck: Bottleneck,
    /// Where the time of an operation goes.
    pub times: Times,
    /// Bytes written to files for each byte that the program writes; 0 if it writes none.
    pub write_amplification: f64,
    /// Bytes read from files for each byte of a returned value, even if the system has them in memory.
    pub read_amplification: f64,
    /// Bytes of files for each live byte, at most.
    pub space_amplification: f64,
    /// Whether that is within the given limit. Designs with values in level 0 may have the 256 MiB of level 0 on top.
    pub within_space: bool,
    /// Bytes of indexes and filters; what exceeds their share of the memory limit goes through the cache.
    pub memory_bytes: f64,
    /// Levels below level 0.
    pub levels: f64,
}

impl Forecast {
    /// For a checked workload.
    pub fn of(workload: &Workload, candidate: Candidate, machine: &Machine<'_>) -> Self {
        let case = Case::new(workload, candidate, machine);
        let times = case.times();
        let (us, bottleneck) = combine(&times, &candidate, case.flows.gc_written > 0.0, machine);
        let space_amplification = case.space_amplification();
        // Values in level 0 take its space whatever the size of the data.
        let is_in_level0 = matches!(candidate.placement, ModelPlacement::Inline | ModelPlacement::UniKv);
        let allowance = if is_in_level0 { BASE_BYTES / workload.data_bytes() } else { 0.0 };
        Self {
            candidate,
            operations_per_second: 1e6 / us,
            bottleneck,
            times,
            write_amplification: case.write_amplification(),
            read_amplification: case.read_amplification(),
            space_amplification,
            within_space: space_amplification <= machine.space + allowance,
            memory_bytes: case.memory_bytes(),
            levels: case.flows.levels,
        }
    }
}

/// The time of an operation, and what takes most of it.
fn combine(times: &Times, candidate: &Candidate, runs_gc: bool, machine: &Machine<'_>) -> (f64, Bottleneck) {
    let Times { commits_us, reads_us, background_us, device_writes_us, device_reads_us } = *times;
    let foreground = commits_us + reads_us;
    let helpers = f64::from(machine.processors.max(2) - 1).min(2.0);
    let background = background_us / helpers;
    let loss = match candidate.placement {
        _ if machine.processors == 1 => 1.0,
        // Writers wait for GC, which runs one job at a time.
        ModelPlacement::NovKv if runs_gc => WAITING_LOSS,
        _ => OVERLAP_LOSS,
    };
    let processors = foreground.max(background) + loss * foreground.min(background);
    // A reading thread waits for the device; writes continue in the background.
    let us = (processors + device_reads_us).max(device_writes_us + device_reads_us).max(f64::MIN_POSITIVE);
    let parts = [
        (commits_us, Bottleneck::Commits),
        (reads_us, Bottleneck::Reads),
        (background, Bottleneck::Background),
        (device_writes_us, Bottleneck::DeviceWrites),
        (device_reads_us, Bottleneck::DeviceReads),
    ];
    let most = parts.into_iter().max_by(|a, b| a.0.total_cmp(&b.0)).map_or(Bottleneck::Commits, |part| part.1);
    (us, most)
}

struct Case<'a> {
    workload: &'a Workload,
    candidate: Candidate,
    machine: &'a Machine<'a>,
    flows: Flows,
    /// The share of writes in the operations.
    writes: f64,
    /// The share of reads whose value is separated.
    separated: f64,
    /// Bytes of the record of a separated value.
    record: f64,
    /// The share of reads that miss memory.
    missed: f64,
}

impl<'a> Case<'a> {
    fn new(workload: &'a Workload, candidate: Candidate, machine: &'a Machine<'a>) -> Self {
        let o = &workload.operations;
        let flows = Flows::of(workload, &candidate, machine.memory_limit, machine.space);
        let (share, record) = flows::separated(workload, &candidate);
        // The unsorted layer has inline values.
        let sorted = (1.0 - UNSORTED_BYTES / workload.data_bytes()).max(0.0);
        let separated = if candidate.placement == ModelPlacement::UniKv { share * sorted } else { share };
        let mut case = Self {
            workload,
            candidate,
            machine,
            flows,
            writes: o.insert + o.update + o.delete,
            separated,
            record,
            missed: 0.0,
        };
        case.missed = case.missed();
        case
    }

    /// The share of reads beyond memory. The most often read keys are in memory, each with its page.
    fn missed(&self) -> f64 {
        let files = self.workload.data_bytes() * self.space_amplification();
        let memory = self.machine.page_cache + self.machine.memory_limit / 4.0;
        if memory >= files {
            return 0.0;
        }
        let entry = self.workload.key_bytes + self.workload.value_bytes();
        let held = (memory / entry.max(PAGE_BYTES)).min(self.workload.keys * memory / files);
        1.0 - Spread::new(self.workload.keys, self.workload.read_skew).hottest(held)
    }

    fn times(&self) -> Times {
        let o = &self.workload.operations;
        let (writes_device, reads_device) = self.device_times();
        Times {
            commits_us: self.writes * flows::commit_time(&self.flows, &self.candidate),
            reads_us: o.read * self.get_time() + o.scan * self.scan_time(),
            background_us: self.writes * flows::background_time(&self.flows, &self.candidate),
            device_writes_us: writes_device,
            device_reads_us: reads_device,
        }
    }

    fn get_time(&self) -> f64 {
        let is_small = self.candidate.block_bytes < PAGE_BYTES as u32;
        let in_block = if is_small { GET_SMALL_BLOCK } else { GET_BLOCK };
        let of = |(hit, miss): (f64, f64)| hit + self.blocks_missed() * miss;
        let from_block = of(in_block) + self.unindexed_time();
        self.separated * of(GET_SEPARATED)
            + (1.0 - self.separated) * from_block
            + self.workload.value_bytes() / 1e3 * GET_KB
    }

    /// The share of reads whose block is not in the store's cache. Keys that are read often are spread over all
    /// tables, so each of them keeps a block in the cache; other keys find their block as often as the cache's share
    /// of all blocks.
    fn blocks_missed(&self) -> f64 {
        let block = self.flows.entry.max(PAGE_BYTES);
        let cached = self.machine.memory_limit * CACHE_SHARE / block;
        let blocks = self.flows.tables / block;
        let seldom = 1.0 - Spread::new(self.workload.keys, self.workload.read_skew).hottest(cached);
        seldom * (1.0 - cached / blocks.max(1.0)).max(0.0)
    }

    fn scan_time(&self) -> f64 {
        let entry_kb = (self.workload.key_bytes + self.workload.value_bytes()) / 1e3;
        let more = if self.is_ordered() { ENTRY_ORDERED } else { ENTRY_SEPARATED };
        let entry = SCAN_ENTRY + entry_kb * SCAN_KB + self.separated * more;
        self.flows.runs * SEEK + self.workload.operations.scan_entries * entry
    }

    /// Whether separated values follow the order of keys.
    fn is_ordered(&self) -> bool {
        matches!(self.candidate.placement, ModelPlacement::DiffKv | ModelPlacement::UniKv)
    }

    /// µs of the device per operation: writes and reads.
    fn device_times(&self) -> (f64, f64) {
        let Some(device) = self.machine.device else { return (0.0, 0.0) };
        let o = &self.workload.operations;
        let (read_rate, write_rate) = device.best_rates();
        let written = self.writes * flows::written(&self.flows);
        // Merges read from the device unless everything is in memory.
        let merged = self.writes * flows::read(&self.flows) * if self.missed > 0.0 { 1.0 } else { 0.0 };
        let one = |bytes: f64, depth| bytes.max(PAGE_BYTES) / device.random_read_rate(bytes.max(PAGE_BYTES), depth);
        let value = self.workload.value_bytes();
        let entry = self.workload.key_bytes + value;
        let block = f64::from(self.candidate.block_bytes).max(self.flows.entry);
        let get = self.separated * one(self.record, 1) + (1.0 - self.separated) * one(block, 1);
        let ordered = entry / read_rate;
        let value = if self.is_ordered() { 1.5 * ordered } else { one(self.record, DEEP) };
        let scan = self.flows.runs * one(block, 1)
            + o.scan_entries * (self.separated * value + (1.0 - self.separated) * ordered);
        let reads = self.missed * (o.read * get + o.scan * scan) + merged / read_rate;
        (written / write_rate * 1e6, reads * 1e6)
    }

    fn write_amplification(&self) -> f64 {
        let o = &self.workload.operations;
        if self.writes == 0.0 {
            return 0.0;
        }
        let puts = (o.insert + o.update) / self.writes;
        flows::written(&self.flows) / (self.workload.key_bytes + puts * self.workload.value_bytes())
    }

    /// Reads that hit the store's cache do not count; those that hit the system's memory do.
    fn read_amplification(&self) -> f64 {
        let value = self.workload.value_bytes().max(1.0);
        let (block, entry) = (f64::from(self.candidate.block_bytes), self.flows.entry);
        // A block ends with the entry that fills it.
        let whole = if entry < block { block + entry / 2.0 } else { entry };
        // Small blocks are mapped, so no cache of the store has them.
        let missed = if block < PAGE_BYTES { 1.0 } else { self.blocks_missed() };
        (missed * whole + self.separated * self.record) / value
    }

    /// What may exist in addition to live data: level 0 and full upper levels; or the runs of a level; or garbage up
    /// to the limit.
    fn space_amplification(&self) -> f64 {
        let o = &self.workload.operations;
        let data = self.workload.data_bytes();
        let files = (self.flows.tables + self.flows.values) / data;
        let garbage = (o.update + o.delete) / self.writes.max(f64::MIN_POSITIVE);
        match (self.candidate.placement, self.candidate.shape) {
            (ModelPlacement::Inline, CandidateCompaction::Leveled { size_ratio }) => {
                let upper = 1.0 / (f64::from(size_ratio) - 1.0) * if self.flows.levels > 1.0 { 1.0 } else { 0.0 };
                files * (1.0 + garbage * (upper + BASE_BYTES.min(data) / data).min(1.0))
            }
            (ModelPlacement::Inline, _) => files * (1.0 + garbage * 0.8),
            (ModelPlacement::UniKv, _) => {
                let unsorted = (UNSORTED_BYTES / data).min(1.0);
                files
                    * (1.0
                        + garbage
                            * (unsorted * 0.65 * (1.0 - 0.4 * self.workload.update_skew)
                                + (1.0 - unsorted) * (self.machine.space - 1.0)))
            }
            _ if garbage > 0.0 => files.max(self.machine.space.max(self.flows.tables / data + 1.0 + GARBAGE_LEAST)),
            _ => files,
        }
    }

    /// For the keys of a full unsorted layer.
    fn hash_index_bytes(&self) -> f64 {
        let unsorted = (UNSORTED_BYTES / (self.workload.keys * self.flows.entry)).min(1.0);
        if self.candidate.shape == CandidateCompaction::TwoLayer {
            self.workload.keys * unsorted * HASH_ENTRY
        } else {
            0.0
        }
    }

    /// µs more for a read of an unsorted layer while its index lacks room. Data that fit into the layer stay there;
    /// otherwise it fills and is merged repeatedly, and is half full on average.
    fn unindexed_time(&self) -> f64 {
        let (needed, room) = (self.hash_index_bytes(), INDEX_SHARE * self.machine.memory_limit);
        if needed <= room {
            return 0.0;
        }
        let stays = self.workload.keys * self.flows.entry <= UNSORTED_BYTES;
        self.flows.runs * GET_RUN * if stays { 1.0 } else { (1.0 - room / needed) / 2.0 }
    }

    /// Filters if there are any, an index entry per block, a hash index entry per key of an unsorted layer, and what
    /// placements know of each key.
    fn memory_bytes(&self) -> f64 {
        let keys = self.workload.keys;
        let blocks = self.flows.tables / f64::from(self.candidate.block_bytes);
        let index = blocks * (self.workload.key_bytes + 16.0);
        if self.candidate.shape == CandidateCompaction::TwoLayer {
            return index + self.hash_index_bytes();
        }
        let of_placement = match self.candidate.placement {
            ModelPlacement::HashKv => 1.25,
            // A row for a value at most.
            ModelPlacement::Streams => ROW * (ROWS_WAIT * self.flows.gc_written / self.record.max(1.0)).min(1.0),
            _ => 0.0,
        };
        index + keys * (1.25 + of_placement)
    }
}
