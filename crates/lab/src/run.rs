//! Phases: threads, time limit, measurements.
//!
//! 1. Record the counters of store and process.
//! 2. Let every thread do its share of the operations ([`crate::worker`]), while one more thread watches the size of
//!    the directory, and one the clock ([`crate::bystander`]).
//! 3. Merge the threads' histograms and report the differences of the counters.
//!
//! Each thread's share and its random numbers follow from the seed, so a run with the same number of threads makes
//! the same calls. Latencies are those of a closed loop: a waiting thread makes no other call, so a stall is one slow
//! operation, not the many that would have queued behind it.

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering::Relaxed},
    },
    thread,
    time::{Duration, Instant},
};

use hdrhistogram::Histogram;

use crate::{
    Failure, PhaseReport, Plan, Result, Store, Workload,
    bystander::{Slowest, WatchedAll},
    choose::Chooser,
    given::Given,
    keys::Keys,
    live::LiveBytes,
    measure,
    plan::Changes,
    report::{Latency, Sums},
    store::Totals,
    values::Values,
    worker::{Counts, Latencies, Task, Worker},
    workload::Operation,
};

/// The interval between measurements of the directory's size.
const WATCH_INTERVAL: Duration = Duration::from_millis(200);

/// Where phases have a limit of time, a wait for background work has this much at least: what it leaves slows the
/// phases after it.
const SETTLE_TIME: Duration = Duration::from_secs(120);

/// A store, a plan, and the state of the run.
pub struct Runner<'a> {
    store: &'a dyn Store,
    dir: PathBuf,
    /// The plan at the beginning.
    base: Plan,
    /// The present plan, with changes.
    plan: Plan,
    keys: Keys,
    values: Values,
    live: LiveBytes,
    /// Existing keys have numbers below this.
    count: u64,
    /// Phases so far; gives each its own random numbers and versions.
    phases: u64,
    sums: Sums,
    /// The stream of random numbers, unless each phase has its own.
    stream: Option<u64>,
    /// Operations of the current phase.
    done: Arc<AtomicU64>,
    /// See [`Runner::limit_load`].
    load_time_max: Option<Duration>,
}

impl<'a> Runner<'a> {
    /// Prepares to run `workloads` on `store`, whose files are in `dir`.
    ///
    /// # Errors
    /// [`Failure::Plan`] for invalid plans.
    pub fn new(store: &'a dyn Store, dir: &Path, plan: Plan, workloads: &[Workload]) -> Result<Self> {
        plan.check()?;
        let keys = Keys::new(plan.key_bytes, plan.order)?;
        let values = Values::new(plan.sizes, plan.compressible, plan.seed)?;
        Ok(Self::with(store, dir, plan, workloads, keys, values))
    }

    /// The same with the user's own keys and values. Only choices and counts of the plan apply. There are no more keys
    /// than given ones, so no workload may insert.
    ///
    /// # Errors
    /// [`Failure::Plan`] for invalid plans.
    pub fn given(
        store: &'a dyn Store,
        dir: &Path,
        plan: Plan,
        workloads: &[Workload],
        given: &Arc<Given>,
    ) -> Result<Self> {
        let plan = Plan { keys: given.len(), ..plan };
        plan.check()?;
        if let Some(workload) = workloads.iter().find(|workload| workload.inserts_max(&plan) > 0) {
            return Err(Failure::Plan(format!("{workload} writes new keys, and the input has no more: leave it out")));
        }
        let (keys, values) = (Keys::given(Arc::clone(given)), Values::given(Arc::clone(given)));
        Ok(Self::with(store, dir, plan, workloads, keys, values))
    }

    fn with(store: &'a dyn Store, dir: &Path, plan: Plan, workloads: &[Workload], keys: Keys, values: Values) -> Self {
        let keys_max = plan.keys + workloads.iter().map(|w| w.inserts_max(&plan)).sum::<u64>();
        let live = LiveBytes::new(keys.len(), keys_max, values.fixed());
        let mut runner = Self {
            store,
            dir: dir.to_owned(),
            keys,
            values,
            live,
            count: 0,
            phases: 0,
            sums: Sums::default(),
            stream: None,
            done: Arc::default(),
            load_time_max: None,
            base: plan.clone(),
            plan,
        };
        if workloads.first() != Some(&Workload::Load) {
            runner.assume_loaded();
        }
        runner
    }

    /// Finished operations of the current phase, for another thread to watch.
    #[must_use]
    pub fn done(&self) -> Arc<AtomicU64> {
        Arc::clone(&self.done)
    }

    /// A load ends after this time, even if keys are left; the plan limits other phases only. Its report then has fewer
    /// operations than there are keys, and no other phase may follow: it would not find what it asks for.
    pub fn limit_load(&mut self, time_max: Option<Duration>) {
        self.load_time_max = time_max;
    }

    /// Changes the next phases; earlier changes no longer apply. The keys, their values and the seed stay the same.
    ///
    /// # Errors
    /// [`Failure::Plan`] for invalid changes.
    pub fn change(&mut self, changes: &Changes) -> Result<()> {
        self.plan = changes.apply(&self.base);
        self.stream = changes.stream;
        self.plan.check()
    }

    /// The store holds what an earlier run of the same plan loaded.
    fn assume_loaded(&mut self) {
        if self.values.fixed().is_none() {
            (0..self.plan.keys).for_each(|index| {
                self.live.wrote(index, self.keys.own_bytes(index) + self.values.size(index, 0));
            });
        }
        self.count = self.plan.keys;
        self.live.reached(self.plan.keys);
    }

    /// Runs one phase.
    ///
    /// # Errors
    /// The store's; [`Failure::WrongAnswer`].
    pub fn phase(&mut self, workload: Workload) -> Result<PhaseReport> {
        self.phases += 1;
        self.done.store(0, Relaxed);
        measure::reset_peak_memory();
        let (before, cpu_before, begin) = (self.store.totals(), measure::cpu_seconds(), Instant::now());
        let done = match workload {
            Workload::Settle => {
                let end = self.plan.time_max.map(|time| Instant::now() + time.max(SETTLE_TIME));
                self.single(|store| store.flush().and_then(|()| store.wait_idle(end)))?
            }
            Workload::Compact => self.single(|store| store.compact().map(|()| true))?,
            _ => self.threads(workload)?,
        };
        let seconds = begin.elapsed().as_secs_f64();
        let cpu_seconds = measure::cpu_seconds() - cpu_before;
        let after = self.store.totals();
        let dir_bytes = measure::dir_bytes(&self.dir).unwrap_or(0);
        self.sums.add(&done.counts);
        let all = done.latencies.merged(&Operation::ALL);
        let latency_us = if all.is_empty() { Latency::once(seconds) } else { Latency::of(&all) };
        let (slowest, slowest_own_us) = done.watched.judge(done.slowest, begin);
        Ok(PhaseReport {
            store: self.store.name(),
            phase: workload.name(),
            operations: done.counts.operations,
            not_found: done.counts.not_found,
            seconds,
            ops_per_sec: done.counts.operations as f64 / seconds.max(1e-9),
            latency_us,
            latency_us_by_operation: by_operation(&done.latencies),
            slowest,
            slowest_own_us: slowest_own_us.unwrap_or(latency_us.max),
            stalled_us: difference(&after.stalled_us, &before.stalled_us),
            slow_commits: after.slow_commits.clone(),
            bystander: done.watched.figures(),
            operations_digest: format!("{:016x}", done.counts.digest),
            user_bytes_written: done.counts.bytes_written,
            user_bytes_read: done.counts.bytes_read,
            user_bytes_read_per_sec: done.counts.bytes_read as f64 / seconds.max(1e-9),
            bytes_written: difference(&after.written, &before.written),
            bytes_read: difference(&after.read, &before.read),
            write_amp: self.sums.write_amp(&after),
            read_amp: self.sums.read_amp(&after),
            space_amp: ratio(dir_bytes, self.live.total()),
            live_bytes: self.live.total(),
            dir_bytes,
            dir_bytes_max: done.dir_bytes_max.max(dir_bytes),
            peak_rss_bytes: measure::peak_memory_bytes(),
            cpu_seconds,
            cpu_us_per_op: cpu_seconds * 1e6 / done.counts.operations.max(1) as f64,
            gc: after.gc,
        })
    }

    /// A phase that is one call of the store, which returns whether it has ended.
    fn single(&self, call: impl FnOnce(&dyn Store) -> Result<bool>) -> Result<Done> {
        watched(&self.dir, || {
            let operations = u64::from(call(self.store)?);
            Ok(Done { counts: Counts { operations, ..Counts::default() }, ..Done::default() })
        })
    }

    /// A phase of many operations on all threads.
    fn threads(&mut self, workload: Workload) -> Result<Done> {
        let Some(mix) = workload.mix(&self.plan) else {
            return Err(Failure::Plan(format!("{workload} is not made of operations")));
        };
        let loading = workload == Workload::Load;
        let start = if loading { 0 } else { self.count };
        let operations = workload.operations(&self.plan);
        // Computed once: the constant of the Zipf generator takes a moment.
        let chooser = Chooser::new(mix.distribution, if loading { self.plan.keys } else { start })?;
        let next_insert = AtomicU64::new(start);
        let time_max = if loading { self.load_time_max } else { self.plan.time_max };
        let task = Task {
            store: self.store,
            plan: &self.plan,
            keys: &self.keys,
            values: &self.values,
            live: &self.live,
            mix,
            vary_scans: workload == Workload::YcsbE,
            loaded: start,
            next_insert: &next_insert,
            deadline: time_max.map(|time| Instant::now() + time),
            stream: self.stream.unwrap_or(self.phases),
            done: &self.done,
        };
        let result = watched(&self.dir, || work(&task, &chooser, operations));
        let reached = if loading { self.plan.keys } else { next_insert.load(Relaxed) };
        self.count = self.count.max(reached);
        self.live.reached(self.count);
        result
    }
}

/// Does `work`, and watches the directory and the clock meanwhile.
fn watched(dir: &Path, work: impl FnOnce() -> Result<Done>) -> Result<Done> {
    let ended = AtomicBool::new(false);
    thread::scope(|scope| {
        let watcher = scope.spawn(|| watch(dir, &ended));
        let bystander = scope.spawn(|| WatchedAll::until(&ended));
        let done = {
            // Those who watch end even if `work` panics, so that the panic is seen.
            let _end = End(&ended);
            work()
        };
        watcher.thread().unpark();
        let dir_bytes_max = watcher.join().unwrap_or(0);
        let watched = bystander.join().unwrap_or_default();
        done.map(|done| Done { dir_bytes_max, watched, ..done })
    })
}

/// Says that something has ended, when it is dropped.
struct End<'a>(&'a AtomicBool);

impl Drop for End<'_> {
    fn drop(&mut self) {
        self.0.store(true, Relaxed);
    }
}

/// Divides `operations` among the plan's threads and waits for them.
fn work(task: &Task<'_>, chooser: &Chooser, operations: u64) -> Result<Done> {
    let threads = task.plan.threads as u64;
    thread::scope(|scope| {
        let share = |thread| operations / threads + u64::from(thread < operations % threads);
        let workers: Vec<_> = (0..threads)
            .map(|thread| (Worker::new(task, thread, chooser.clone()), share(thread)))
            .map(|(worker, share)| scope.spawn(move || worker.run(share)))
            .collect();
        let mut done = Ok(Done::default());
        for worker in workers {
            let result = worker.join().unwrap_or_else(|_| Err(Failure::Store("a thread of the run panicked".into())));
            match (&mut done, result) {
                (Ok(sum), Ok((counts, latencies, slowest))) => {
                    sum.counts.add(&counts);
                    sum.latencies.add(&latencies);
                    sum.slowest.add(&slowest);
                }
                (Ok(_), Err(failure)) => done = Err(failure),
                (Err(_), _) => {}
            }
        }
        done
    })
}

/// What was counted and timed in a phase.
#[derive(Default)]
struct Done {
    counts: Counts,
    latencies: Latencies,
    slowest: Slowest,
    watched: WatchedAll,
    dir_bytes_max: u64,
}

/// The largest size of the directory until `ended`.
fn watch(dir: &Path, ended: &AtomicBool) -> u64 {
    let mut most = 0;
    while !ended.load(Relaxed) {
        most = most.max(measure::dir_bytes(dir).unwrap_or(0));
        thread::park_timeout(WATCH_INTERVAL);
    }
    most
}

fn by_operation(latencies: &Latencies) -> BTreeMap<&'static str, Latency> {
    let of = |operation: Operation| Some((operation.name(), Latency::of(latencies.of(operation)?)));
    let all: BTreeMap<_, _> = Operation::ALL.into_iter().filter_map(of).collect();
    // With one kind of operation the total says it all.
    if all.len() > 1 { all } else { BTreeMap::new() }
}

fn difference(
    after: &BTreeMap<&'static str, u64>,
    before: &BTreeMap<&'static str, u64>,
) -> BTreeMap<&'static str, u64> {
    after.iter().map(|(name, bytes)| (*name, bytes.saturating_sub(before.get(name).copied().unwrap_or(0)))).collect()
}

/// `part` over `whole`; 0 when there is no whole.
pub(crate) fn ratio(part: u64, whole: u64) -> f64 {
    if whole == 0 { 0.0 } else { part as f64 / whole as f64 }
}

impl Sums {
    fn add(&mut self, counts: &Counts) {
        self.bytes_written += counts.bytes_written;
        self.bytes_read += counts.bytes_read;
    }

    fn write_amp(&self, totals: &Totals) -> f64 {
        ratio(totals.written.values().sum(), self.bytes_written)
    }

    fn read_amp(&self, totals: &Totals) -> f64 {
        ratio(totals.read_for_user, self.bytes_read)
    }
}

/// A histogram of nanoseconds up to a minute, three digits exact.
pub(crate) fn histogram() -> Histogram<u64> {
    Histogram::new_with_bounds(1, 60_000_000_000, 3).unwrap_or_else(|e| unreachable!("constant bounds: {e}"))
}

#[cfg(test)]
mod tests;
