//! The shape of a tree and of its partitions (UniKV §III-D), each with what a policy says of it: worked out once for
//! each version, since it is asked for with every piece of background work.
//!
//! A partition is closed under overlap (see [`Levels::partitions`]), so a job that is right for it alone is right for
//! the tree.

use bifold_contract::{Busy, BusyOutput, CompactionJob, CompactionPolicy, Levels, RunId, planted};

use super::shape;

/// See the module's documentation.
#[derive(Debug)]
pub struct TreeShape {
    /// The whole tree.
    pub levels: Levels,
    /// Its partitions, in key order.
    pub partitions: Vec<Levels>,
    /// The debt and the position of each partition, the worst first.
    debts: Vec<(f64, usize)>,
    /// The largest debt to scans of a partition.
    debt_to_scans: f64,
}

impl TreeShape {
    /// The shape of a tree with partitions that `policy` compacts.
    #[must_use]
    pub fn new(levels: Levels, policy: &dyn CompactionPolicy) -> Self {
        let partitions = levels.partitions();
        let mut debts: Vec<(f64, usize)> = partitions.iter().map(|partition| policy.debt(partition)).zip(0..).collect();
        debts.sort_by(|a, b| b.0.total_cmp(&a.0));
        let debt_to_scans = partitions.iter().map(|partition| policy.debt_to_scans(partition)).fold(0.0, f64::max);
        Self { levels, partitions, debts, debt_to_scans }
    }

    /// The debt of the worst partition; from 1.0 on a compaction is due.
    #[must_use]
    pub fn debt(&self) -> f64 {
        self.debts.first().map_or(0.0, |worst| worst.0)
    }

    /// How far the partition that is worst for scans is from the shape that they want, where they have to ask for it:
    /// see [`CompactionPolicy::debt_to_scans`].
    #[must_use]
    pub fn debt_to_scans(&self) -> f64 {
        self.debt_to_scans
    }

    /// The job that `policy` chooses in the worst partition that has one. It must be the policy that gave the debts.
    #[must_use]
    pub fn choose(&self, policy: &dyn CompactionPolicy, busy: &Busy) -> Option<CompactionJob> {
        self.debts.iter().find_map(|&(_, at)| {
            let partition = &self.partitions[at];
            let job = policy.choose(partition, busy)?;
            let is_first = shape::newest_run(partition, job.output_level).is_none();
            let output_run = if is_first { self.run_to_join(&job, busy) } else { job.output_run };
            Some(CompactionJob { output_run, ..job })
        })
    }

    /// The run that receives the result of a job which is the first of its partition at that level: the newest one
    /// that other partitions have there or that a running job begins. A new run would be one more for lookups to
    /// search. `None` if there is none, or where a running job writes some of the job's keys to that level: what the
    /// job writes is newer and must stand above that.
    fn run_to_join(&self, job: &CompactionJob, busy: &Busy) -> Option<RunId> {
        let there = || busy.outputs.iter().filter(|output| output.level == job.output_level);
        let overlaps = |output: &BusyOutput| match &job.keys {
            Some((first, last)) => output.overlaps(first, last.as_deref()),
            None => true,
        };
        if there().any(overlaps) && !planted!("join_anyway") {
            return None;
        }
        let begun = there().filter_map(|output| output.run).max();
        shape::newest_run(&self.levels, job.output_level).max(begun)
    }
}
