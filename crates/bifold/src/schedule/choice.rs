//! Which work comes first. Pure.

/// The kinds of work that a worker may take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Role {
    /// Flushes, and reclaiming value files; and short GC runs while there is nothing of these to do.
    Flusher,
    /// The same, but flushes come last: it is the turn of the others.
    ReclaimsFirst,
    /// All but reclaiming: with that, a GC worker would wait for a sync.
    Merger,
    /// The same, but flushes come last: it is the turn of compactions and GC.
    MergesFirst,
    /// Everything that is due.
    Alone,
}

/// The load of a tree: the input of [`choose`].
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Load {
    /// Memtables waiting to be written.
    pub sealed: usize,
    /// One of them is being written now.
    pub flushing: bool,
    /// That flush has key ranges that nobody has taken.
    pub shared: bool,
    /// An ingest has pieces that nobody has taken.
    pub pieces: bool,
    /// The compaction policy's measure; compaction is due from 1.0 on.
    pub debt: f64,
    /// Whether there is garbage that no GC run has taken yet.
    pub garbage: Garbage,
    /// The GC run that is due is short.
    pub short: bool,
    /// There are drained value files that nobody reclaims yet.
    pub drained: bool,
    /// A table has many entries kept only for snapshots that have ended.
    pub held: bool,
}

impl Load {
    /// Whether there is work for anyone, now or when the running work has ended.
    pub fn is_due(&self) -> bool {
        self.sealed > 0 || self.pieces || self.debt >= 1.0 || self.garbage != Garbage::None || self.drained || self.held
    }
}

/// Which tree to serve next, and how.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Choice {
    /// Flush the tree at this position.
    Flush(usize),
    /// Write a key range for the running flush of this tree.
    FlushRange(usize),
    /// Write a piece of the ingest into this tree.
    IngestPiece(usize),
    /// Compact it, if its policy finds a job.
    Compact(usize),
    /// Garbage-collect its values.
    Gc(usize),
    /// Reclaim its drained value files.
    Reclaim(usize),
    /// Rewrite a table with many entries kept only for snapshots that have ended.
    Prune(usize),
}

/// From this debt on compaction goes before GC.
const DEBT_URGENT: f64 = 2.0;

/// Garbage of a tree that no GC run has taken yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Garbage {
    /// None that is worth a run.
    None,
    /// No GC runs in this tree.
    Due,
    /// There is more than the running GC of this tree will free: work for another worker, not for a caller.
    Concurrent,
}

/// The work due, most urgent first. Under steady updates GC is always due, so compaction takes turns with it. Pure.
pub(crate) fn choose(loads: &[Load], role: Role, gc_came_last: bool) -> Vec<Choice> {
    let mut flushes: Vec<usize> = (0..loads.len()).filter(|&i| loads[i].sealed > 0 && !loads[i].flushing).collect();
    flushes.sort_by_key(|&i| std::cmp::Reverse(loads[i].sealed));
    let ranges = (0..loads.len()).filter(|&i| loads[i].shared).map(Choice::FlushRange);
    let pieces = (0..loads.len()).filter(|&i| loads[i].pieces).map(Choice::IngestPiece);
    let flushes: Vec<Choice> = flushes.into_iter().map(Choice::Flush).chain(ranges).chain(pieces).collect();
    let come_last = matches!(role, Role::ReclaimsFirst | Role::MergesFirst);
    let mut choices = if come_last { Vec::new() } else { flushes.clone() };
    if matches!(role, Role::Flusher | Role::ReclaimsFirst | Role::Alone) {
        choices.extend((0..loads.len()).filter(|&i| loads[i].drained).map(Choice::Reclaim));
    }
    if matches!(role, Role::Merger | Role::MergesFirst | Role::Alone) {
        let mut merges: Vec<usize> = (0..loads.len()).filter(|&i| loads[i].debt >= 1.0).collect();
        merges.sort_by(|&a, &b| loads[b].debt.total_cmp(&loads[a].debt));
        let is_urgent = |&&i: &&usize| gc_came_last || loads[i].debt >= DEBT_URGENT;
        let urgent = merges.iter().take_while(is_urgent).count();
        choices.extend(merges[..urgent].iter().copied().map(Choice::Compact));
        let with = |garbage| (0..loads.len()).filter(move |&i| loads[i].garbage == garbage).map(Choice::Gc);
        choices.extend(with(Garbage::Due));
        choices.extend(merges[urgent..].iter().copied().map(Choice::Compact));
        if role != Role::Alone {
            choices.extend(with(Garbage::Concurrent));
        }
        // After compactions, which may do the same. Tables that none of them has are pruned meanwhile.
        choices.extend((0..loads.len()).filter(|&i| loads[i].held).map(Choice::Prune));
    }
    if come_last {
        choices.extend(flushes);
    }
    if matches!(role, Role::Flusher | Role::ReclaimsFirst) {
        let is_short = |&i: &usize| loads[i].garbage != Garbage::None && loads[i].short;
        choices.extend((0..loads.len()).filter(is_short).map(Choice::Gc));
    }
    choices
}
