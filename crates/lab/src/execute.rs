//! Runs a [`Spec`] in this process: opens the store, runs one step after the other, closes it, and accounts for the
//! bytes.
//!
//! A run should have its own process, so that memory, processor time and system calls belong to the store alone. If a
//! spec ends the process in the middle ([`Act::Recover`]), there are several processes, one for each part.

use std::{
    collections::BTreeMap,
    path::Path,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::{Duration, Instant},
};

use serde::{Deserialize, Serialize};

use crate::{
    Failure, PhaseReport, Result, Runner, Store, Workload,
    given::Given,
    measure::{self, DeviceTraffic},
    probe,
    quiet::Moment,
    record::{Account, FromDevice, NotLoaded, StepRecord},
    spec::{Act, PageCache, Spec, Step},
    store,
};

/// The result of one process of a run.
#[derive(Debug, Serialize, Deserialize)]
pub struct Part<S = StepRecord> {
    /// Its steps.
    pub steps: Vec<S>,
    /// The bytes it wrote.
    pub account: Account,
    /// The version of the store.
    pub version: String,
    /// Settings of the store.
    pub settings: Vec<(String, String)>,
    /// How far its load came, if that took too long. It has no steps then, and no other part may follow.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub not_loaded: Option<NotLoaded>,
}

/// How long a load may take where memory and the time of other steps are limited, as at the scale `device`: a store may
/// need hours there for what others do in minutes.
const LOAD_TIME_MAX: Duration = Duration::from_secs(15 * 60);

/// The progress of a run, shared with the thread that shows it.
#[derive(Debug, Default)]
pub struct Progress {
    step: Mutex<String>,
    done: Mutex<Arc<AtomicU64>>,
    total: AtomicU64,
}

/// A snapshot of a [`Progress`].
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Seen {
    /// The current step.
    pub step: String,
    /// Operations of it that are done.
    pub done: u64,
    /// All its operations.
    pub total: u64,
}

impl Progress {
    fn begin(&self, step: &str, done: Arc<AtomicU64>, total: u64) {
        step.clone_into(&mut self.step.lock().unwrap_or_else(PoisonError::into_inner));
        *self.done.lock().unwrap_or_else(PoisonError::into_inner) = done;
        self.total.store(total, Relaxed);
    }

    /// The present progress.
    #[must_use]
    pub fn look(&self) -> Seen {
        let total = self.total.load(Relaxed);
        let done = self.done.lock().unwrap_or_else(PoisonError::into_inner).load(Relaxed);
        let step = self.step.lock().unwrap_or_else(PoisonError::into_inner).clone();
        Seen { step, done: done.min(total), total }
    }
}

/// The steps of each process: the first one runs up to the first [`Act::Recover`], the second from there to the next
/// one, and so on.
#[must_use]
pub fn parts(spec: &Spec) -> Vec<std::ops::Range<usize>> {
    let mut starts: Vec<usize> = vec![0];
    starts.extend((1..spec.steps.len()).filter(|&at| spec.steps[at].act == Act::Recover));
    starts.iter().enumerate().map(|(n, &start)| start..starts.get(n + 1).copied().unwrap_or(spec.steps.len())).collect()
}

/// How long the load of a run may take. A user's own entries may be of any size, so they have no limit. The limit is no
/// part of the spec: the same run with another one has the same key.
fn load_time_max(spec: &Spec) -> Option<Duration> {
    let is_limited = spec.process_memory.is_some() && spec.plan.time_max.is_some();
    (is_limited && spec.input.is_none()).then_some(LOAD_TIME_MAX)
}

/// Runs part number `part` of `spec` on the store in `dir`, with the entries of its input if it has one.
///
/// Every part but the last leaves the store as a killed process does: the caller must end this process. A load that
/// takes too long ends the run: see [`Part::not_loaded`].
///
/// # Errors
/// Those of the plan and of the store, and [`Failure::WrongAnswer`].
pub fn execute(spec: &Spec, part: usize, dir: &Path, given: Option<&Arc<Given>>, progress: &Progress) -> Result<Part> {
    within(load_time_max(spec), spec, part, dir, given, progress)
}

fn within(
    load_time_max: Option<Duration>,
    spec: &Spec,
    part: usize,
    dir: &Path,
    given: Option<&Arc<Given>>,
    progress: &Progress,
) -> Result<Part> {
    let parts = parts(spec);
    let range = parts.get(part).cloned().ok_or_else(|| Failure::Plan(format!("the run has no part {part}")))?;
    let steps = &spec.steps[range];
    check_input(spec, given)?;
    let before = measure::called();
    let begin = Instant::now();
    let store = store::open(&spec.store, dir, &spec.options()?)?;
    let opening = begin.elapsed().as_secs_f64();
    let (version, settings) = (store.version(), store.settings());
    let workloads: Vec<Workload> = steps
        .iter()
        .filter_map(|step| match step.act {
            Act::Run(workload) => Some(workload),
            Act::Device | Act::Recover => None,
        })
        .collect();
    let mut runner = match given {
        Some(given) => Runner::given(&*store, dir, spec.plan.clone(), &workloads, given)?,
        None => Runner::new(&*store, dir, spec.plan.clone(), &workloads)?,
    };
    runner.limit_load(load_time_max);
    let (mut records, mut not_loaded) = (Vec::with_capacity(steps.len()), None);
    for step in steps {
        progress.begin(&step.name, runner.done(), spec.operations(step));
        let record = one(spec, step, &mut runner, &*store, dir, opening)?;
        not_loaded = load_time_max.and_then(|_| left_at(spec, step, &record.report));
        if not_loaded.is_some() {
            break;
        }
        records.push(record);
    }
    drop(runner);
    if not_loaded.is_some() {
        store.close()?;
        return Ok(Part { steps: Vec::new(), account: Account::default(), version, settings, not_loaded });
    }
    if part + 1 < parts.len() {
        // The files now have what those of a killed process have.
        std::mem::forget(store);
        return Ok(Part { steps: records, account: Account::default(), version, settings, not_loaded });
    }
    let by_source = store.close()?.written.into_iter().map(|(name, bytes)| (name.to_owned(), bytes)).collect();
    let called = measure::called().zip(before).map(|(after, before)| after.since(before).written);
    // A killed process has counted bytes that it did not write, and the next one writes them: neither adds up.
    let account = if parts.len() == 1 { Account { by_source, called } } else { Account::default() };
    Ok(Part { steps: records, account, version, settings, not_loaded })
}

/// Where a step ended, if it is a load that did not write all keys.
fn left_at(spec: &Spec, step: &Step, report: &PhaseReport) -> Option<NotLoaded> {
    let (keys, of) = (report.operations, spec.operations(step));
    let is_cut = step.act == Act::Run(Workload::Load) && keys < of;
    is_cut.then_some(NotLoaded { keys, of, seconds: report.seconds })
}

/// Refuses an input that is not the spec's.
fn check_input(spec: &Spec, given: Option<&Arc<Given>>) -> Result<()> {
    match (&spec.input, given) {
        (None, None) => Ok(()),
        (Some(input), Some(given)) if *input == given.input(&input.path, &input.format) => Ok(()),
        (Some(input), _) => Err(Failure::Plan(format!(
            "{} has changed since the session began: restore it, or give another --out",
            input.path
        ))),
        (None, Some(_)) => {
            Err(Failure::Plan("this run makes its own keys, but an input was given: leave it out".to_owned()))
        }
    }
}

fn one(
    spec: &Spec,
    step: &Step,
    runner: &mut Runner<'_>,
    store: &dyn Store,
    dir: &Path,
    opening: f64,
) -> Result<StepRecord> {
    if spec.page_cache == PageCache::Cold && step.only_reads() {
        store.sync()?;
        measure::drop_page_cache(dir).map_err(|e| Failure::Store(format!("{}: {e}", dir.display())))?;
    }
    runner.change(&step.changes)?;
    let (before, moment, from_device) = (measure::called(), Moment::now(), DeviceTraffic::now(dir));
    let report = match step.act {
        Act::Run(workload) => runner.phase(workload)?,
        Act::Device => probe::random_reads(dir, &step.changes.apply(&spec.plan), &runner.done())?,
        Act::Recover => PhaseReport::opened(store, opening),
    };
    let called = measure::called().zip(before).map(|(after, before)| after.since(before));
    let from_device = DeviceTraffic::now(dir).zip(from_device).map(|(after, before)| after.since(before));
    let busy = Moment::now().zip(moment).map(|(after, before)| after.since(before));
    let facts: BTreeMap<String, f64> = store.facts().into_iter().map(|(name, n)| (name.to_owned(), n)).collect();
    let device = from_device.map(|read| FromDevice::of(read, &report));
    Ok(StepRecord { step: step.name.clone(), report, called, device, busy, facts })
}

#[cfg(test)]
mod tests;
