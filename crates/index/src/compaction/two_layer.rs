//! Two layers (UniKV §III-A): tables are kept unsorted as they were flushed until they reach a size, then all of them are
//! merged into the one sorted layer below. When scans would meet too many unsorted runs, those are merged among
//! themselves (§III-D, size-based merge).

use bifold_contract::{Busy, CompactionJob, CompactionPolicy, Error, JobShape, Level, Levels, Result};

/// Options of [`TwoLayer`].
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct TwoLayerOptions {
    /// The unsorted layer is merged into the sorted one at this size, in bytes.
    pub unsorted_bytes: u64,
    /// Unsorted runs that are merged among themselves when there are so many.
    pub scan_merge_runs: u32,
    /// Tables are cut at about this size.
    pub table_bytes: u64,
}

impl Default for TwoLayerOptions {
    fn default() -> Self {
        Self { unsorted_bytes: 1 << 30, scan_merge_runs: 8, table_bytes: 16 << 20 }
    }
}

/// The policy.
#[derive(Clone, Copy, Debug)]
pub struct TwoLayer {
    options: TwoLayerOptions,
}

impl TwoLayer {
    /// A policy with these options.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] for a layer of no bytes or fewer than two runs.
    pub fn new(options: TwoLayerOptions) -> Result<Self> {
        if options.unsorted_bytes == 0 || options.scan_merge_runs < 2 {
            return Err(Error::invalid("two-layer compaction", "it needs a layer of some bytes and 2 runs at least"));
        }
        Ok(Self { options })
    }
}

impl CompactionPolicy for TwoLayer {
    fn choose(&self, levels: &Levels, busy: &Busy) -> Option<CompactionJob> {
        if self.debt(levels) < 1.0 || !busy.outputs.is_empty() || !busy.tables.is_empty() {
            return None;
        }
        let unsorted = levels.levels.first()?;
        let sorts = unsorted.bytes() >= self.options.unsorted_bytes;
        let depths = if sorts { 0..=1 } else { 0..=0 };
        let inputs = depths
            .flat_map(|depth| {
                let runs = levels.levels.get(depth).into_iter().flat_map(|level| &level.runs);
                runs.flat_map(move |run| run.tables.iter().map(move |t| (depth as u8, run.id, t.id)))
            })
            .collect();
        let sorted_run = levels.levels.get(1).and_then(|level| level.runs.first()).map(|run| run.id);
        let newest = unsorted.runs.first().map(|run| run.id);
        let (output_level, output_run) = if sorts { (1, sorted_run) } else { (0, newest) };
        Some(CompactionJob {
            shape: JobShape::Merge,
            inputs,
            output_level,
            output_run,
            table_bytes: self.options.table_bytes,
            max_overlap_bytes: u64::MAX,
            reason: format!("the unsorted layer has {} runs, {} bytes", unsorted.runs.len(), unsorted.bytes()),
        })
    }

    fn debt(&self, levels: &Levels) -> f64 {
        let unsorted = levels.levels.first().map_or(&[][..], |level| &level.runs[..]);
        let bytes = levels.levels.first().map_or(0, Level::bytes) as f64 / self.options.unsorted_bytes as f64;
        bytes.max(unsorted.len() as f64 / f64::from(self.options.scan_merge_runs))
    }

    fn name(&self) -> &'static str {
        "two_layer"
    }
}
