//! What a design costs under a workload: time by what it is spent on, amplification, memory.

use serde::Serialize;

use super::{
    candidate::{Candidate, Placement, Shape},
    costs::*,
    flows::{self, Flows},
    skew::Spread,
    workload::Workload,
};
use crate::device::Profile;

/// The system reads files by pages.
const PAGE_BYTES: f64 = 4096.0;

/// Requests that scans, flushes and merges have under way at once.
const DEEP: u32 = 32;

/// What the store has to work with.
#[derive(Debug, Clone, Copy)]
pub struct Machine<'a> {
    /// Processors for the program and the store together, at least one.
    pub processors: u32,
    /// The store's own memory, in bytes.
    pub memory_limit: f64,
    /// Of its files, what the system keeps in memory, in bytes.
    pub page_cache: f64,
    /// What the device gives; without it, nothing is known but that it is fast enough.
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
    /// The processor, for flushes, merges and collections.
    Background,
    /// The device, by what is written.
    DeviceWrites,
    /// The device, by what is read.
    DeviceReads,
}

impl Bottleneck {
    /// For a table.
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

/// Time of an operation of the mix, on average, in µs, by what it is spent on.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Times {
    /// Processor time of commits.
    pub commits_us: f64,
    /// Of reads and scans.
    pub reads_us: f64,
    /// Of flushes, merges and collections.
    pub background_us: f64,
    /// For how long the device writes.
    pub device_writes_us: f64,
    /// For how long it reads.
    pub device_reads_us: f64,
}

/// What a design costs under a workload.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Forecast {
    /// The design.
    pub candidate: Candidate,
    /// Operations of the mix a second, by one thread.
    pub operations_per_second: f64,
    /// What limits that.
    pub bottleneck: Bottleneck,
    /// Where the time of an operation goes.
    pub times: Times,
    /// Bytes written to files for each that the program writes; 0 where it writes none.
    pub write_amplification: f64,
    /// Bytes read from files for each byte of a value that a read answers, wherever the system has them.
    pub read_amplification: f64,
    /// Bytes of files for each live byte, at most.
    pub space_amplification: f64,
    /// Whether that is within the bound that was given, with the 256 MiB besides that level 0 may hold where values
    /// are in it.
    pub within_space: bool,
    /// Bytes of indexes and filters; what does not fit into the memory limit's share of them goes through the cache.
    pub memory_bytes: f64,
    /// Levels below level 0.
    pub levels: f64,
}

impl Forecast {
    /// Of a checked workload.
    pub fn of(workload: &Workload, candidate: Candidate, machine: &Machine<'_>) -> Self {
        let case = Case::new(workload, candidate, machine);
        let times = case.times();
        let (us, bottleneck) = combine(&times, &candidate, case.flows.collected > 0.0, machine);
        let space_amplification = case.space_amplification();
        // What level 0 may hold is there whatever the size of the data, where values are in it.
        let is_in_level0 = matches!(candidate.placement, Placement::Inline | Placement::UniKv);
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
fn combine(times: &Times, candidate: &Candidate, collects: bool, machine: &Machine<'_>) -> (f64, Bottleneck) {
    let Times { commits_us, reads_us, background_us, device_writes_us, device_reads_us } = *times;
    let foreground = commits_us + reads_us;
    let helpers = f64::from(machine.processors.max(2) - 1).min(2.0);
    let background = background_us / helpers;
    let loss = match candidate.placement {
        _ if machine.processors == 1 => 1.0,
        // Writers wait for its collections, which run one at a time.
        Placement::NovKv if collects => WAITING_LOSS,
        _ => OVERLAP_LOSS,
    };
    let processors = foreground.max(background) + loss * foreground.min(background);
    // A thread that reads waits for the device; writes go on behind it.
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
    /// Writes among the operations.
    writes: f64,
    /// Of what is read, the share that is apart from its key.
    apart: f64,
    /// Bytes of a record of one of these.
    record: f64,
    /// Of what is read, the share that is not in memory.
    missed: f64,
}

impl<'a> Case<'a> {
    fn new(workload: &'a Workload, candidate: Candidate, machine: &'a Machine<'a>) -> Self {
        let o = &workload.operations;
        let flows = Flows::of(workload, &candidate, machine.memory_limit, machine.space);
        let (parted, record) = flows::apart(workload, &candidate);
        // In the unsorted layer values are beside their keys.
        let sorted = (1.0 - UNSORTED_BYTES / workload.data_bytes()).max(0.0);
        let apart = if candidate.placement == Placement::UniKv { parted * sorted } else { parted };
        let mut case = Self {
            workload,
            candidate,
            machine,
            flows,
            writes: o.insert + o.update + o.delete,
            apart,
            record,
            missed: 0.0,
        };
        case.missed = case.missed();
        case
    }

    /// Files beyond what memory holds. Keys that are read more often are there rather than others, each with its page.
    fn missed(&self) -> f64 {
        let files = self.workload.data_bytes() * self.space_amplification();
        let memory = self.machine.page_cache + self.machine.memory_limit / 4.0;
        if memory >= files {
            return 0.0;
        }
        let pair = self.workload.key_bytes + self.workload.value_bytes();
        let held = (memory / pair.max(PAGE_BYTES)).min(self.workload.keys * memory / files);
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
        self.apart * of(GET_APART) + (1.0 - self.apart) * from_block + self.workload.value_bytes() / 1e3 * GET_KB
    }

    /// Of reads, the share whose block is not in the store's cache. Keys that are read often are all over the tables,
    /// so each of them keeps a block there; others find theirs as often as there are blocks in it.
    fn blocks_missed(&self) -> f64 {
        let block = self.flows.entry.max(PAGE_BYTES);
        let cached = self.machine.memory_limit * CACHE_SHARE / block;
        let blocks = self.flows.tables / block;
        let seldom = 1.0 - Spread::new(self.workload.keys, self.workload.read_skew).hottest(cached);
        seldom * (1.0 - cached / blocks.max(1.0)).max(0.0)
    }

    fn scan_time(&self) -> f64 {
        let pair_kb = (self.workload.key_bytes + self.workload.value_bytes()) / 1e3;
        let more = if self.is_ordered() { PAIR_ORDERED } else { PAIR_APART };
        let pair = PAIR + pair_kb * PAIR_KB + self.apart * more;
        self.flows.runs * SEEK + self.workload.operations.scan_entries * pair
    }

    /// Whether values apart follow the order of keys.
    fn is_ordered(&self) -> bool {
        matches!(self.candidate.placement, Placement::DiffKv | Placement::UniKv)
    }

    /// µs of the device for each operation, writes and reads.
    fn device_times(&self) -> (f64, f64) {
        let Some(device) = self.machine.device else { return (0.0, 0.0) };
        let o = &self.workload.operations;
        let (read_rate, write_rate) = device.best_rates();
        let written = self.writes * flows::written(&self.flows);
        // Merges read what is on the device, wherever it was read last.
        let merged = self.writes * flows::read(&self.flows) * if self.missed > 0.0 { 1.0 } else { 0.0 };
        let one = |bytes: f64, depth| bytes.max(PAGE_BYTES) / device.random_read_rate(bytes.max(PAGE_BYTES), depth);
        let value = self.workload.value_bytes();
        let pair = self.workload.key_bytes + value;
        let block = f64::from(self.candidate.block_bytes).max(self.flows.entry);
        let get = self.apart * one(self.record, 1) + (1.0 - self.apart) * one(block, 1);
        let ordered = pair / read_rate;
        let apart = if self.is_ordered() { 1.5 * ordered } else { one(self.record, DEEP) };
        let scan =
            self.flows.runs * one(block, 1) + o.scan_entries * (self.apart * apart + (1.0 - self.apart) * ordered);
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

    /// The system's memory not counted, the store's cache counted.
    fn read_amplification(&self) -> f64 {
        let value = self.workload.value_bytes().max(1.0);
        let (block, entry) = (f64::from(self.candidate.block_bytes), self.flows.entry);
        // A block ends with the entry that fills it.
        let whole = if entry < block { block + entry / 2.0 } else { entry };
        // Small blocks are mapped, and in no cache.
        let missed = if block < PAGE_BYTES { 1.0 } else { self.blocks_missed() };
        (missed * whole + self.apart * self.record) / value
    }

    /// What may be there beside what is live: level 0 and full upper levels; runs of a level; or garbage up to the
    /// bound.
    fn space_amplification(&self) -> f64 {
        let o = &self.workload.operations;
        let data = self.workload.data_bytes();
        let files = (self.flows.tables + self.flows.values) / data;
        let garbage = (o.update + o.delete) / self.writes.max(f64::MIN_POSITIVE);
        match (self.candidate.placement, self.candidate.shape) {
            (Placement::Inline, Shape::Leveled { growth }) => {
                let upper = 1.0 / (f64::from(growth) - 1.0) * if self.flows.levels > 1.0 { 1.0 } else { 0.0 };
                files * (1.0 + garbage * (upper + BASE_BYTES.min(data) / data).min(1.0))
            }
            (Placement::Inline, _) => files * (1.0 + garbage * 0.8),
            (Placement::UniKv, _) => {
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

    /// Of the keys in an unsorted layer, when it is full.
    fn hash_index_bytes(&self) -> f64 {
        let unsorted = (UNSORTED_BYTES / (self.workload.keys * self.flows.entry)).min(1.0);
        if self.candidate.shape == Shape::TwoLayer { self.workload.keys * unsorted * HASH_ENTRY } else { 0.0 }
    }

    /// µs more for a read of an unsorted layer while its index has no room. What fits into the layer stays there;
    /// else it fills and is merged again and again, and is half full on average.
    fn unindexed_time(&self) -> f64 {
        let (needed, room) = (self.hash_index_bytes(), INDEX_SHARE * self.machine.memory_limit);
        if needed <= room {
            return 0.0;
        }
        let stays = self.workload.keys * self.flows.entry <= UNSORTED_BYTES;
        self.flows.runs * GET_RUN * if stays { 1.0 } else { (1.0 - room / needed) / 2.0 }
    }

    /// Filters, where there are any, an index entry for each block, and for each key of an unsorted layer one of its
    /// index.
    fn memory_bytes(&self) -> f64 {
        let keys = self.workload.keys;
        let blocks = self.flows.tables / f64::from(self.candidate.block_bytes);
        let index = blocks * (self.workload.key_bytes + 16.0);
        if self.candidate.shape == Shape::TwoLayer {
            return index + self.hash_index_bytes();
        }
        let groups = if self.candidate.placement == Placement::HashKv { keys * 1.25 } else { 0.0 };
        index + keys * 1.25 + groups
    }
}
