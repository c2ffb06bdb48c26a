//! What a runner found: counts, and failures with the line that repeats each.

use std::{
    collections::BTreeMap,
    fmt,
    panic::{self, AssertUnwindSafe},
    sync::Mutex,
    thread,
    time::Instant,
};

use crate::read::Trouble;

/// One failure.
#[derive(Clone, Debug)]
pub struct Failure {
    /// The arguments of `bifold-sim` that repeat it.
    pub replay: String,
    /// What went wrong.
    pub what: String,
}

/// Counts and failures of a run.
#[derive(Clone, Debug, Default)]
pub struct Report {
    /// What was done, and how often.
    pub counts: BTreeMap<&'static str, u64>,
    /// The failures.
    pub failures: Vec<Failure>,
}

/// When the running test of a soak must end.
static DEADLINE: Mutex<Option<Instant>> = Mutex::new(None);

/// From now on work ends at `deadline`: seeds that have begun are interrupted where possible.
pub fn end_at(deadline: Instant) {
    *DEADLINE.lock().unwrap_or_else(std::sync::PoisonError::into_inner) = Some(deadline);
}

/// Whether it is time to end. Only in soaks: otherwise a seed does the same each time.
#[must_use]
pub fn time_is_up() -> bool {
    let deadline = *DEADLINE.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    deadline.is_some_and(|deadline| Instant::now() >= deadline)
}

/// The run ends after this many failures, unless `BIFOLD_SIM_FAILURES` sets another number.
const FAILURES_MAX: u64 = 3;

impl Report {
    /// Counts `times` more of something.
    pub fn count(&mut self, what: &'static str, times: u64) {
        *self.counts.entry(what).or_default() += times;
    }

    /// How often something was done.
    #[must_use]
    pub fn of(&self, what: &str) -> u64 {
        self.counts.get(what).copied().unwrap_or(0)
    }

    /// Records a failure.
    pub fn fail(&mut self, replay: impl Into<String>, trouble: &Trouble) {
        self.failures.push(Failure { replay: replay.into(), what: trouble.to_string() });
    }

    /// Adds another run's counts and failures.
    pub fn merge(&mut self, other: Self) {
        for (what, times) in other.counts {
            self.count(what, times);
        }
        self.failures.extend(other.failures);
    }

    /// Prints the counts. Panics with all failures if there are any, or if something was done less often than
    /// `at_least` requires: a harness that does nothing passes everything.
    ///
    /// # Panics
    /// See above.
    pub fn finish(&self, name: &str, at_least: &[(&str, u64)]) {
        println!("{name}: {self}");
        assert!(self.failures.is_empty(), "{name}: {} failures, see above", self.failures.len());
        for (what, least) in at_least {
            assert!(self.of(what) >= *least, "{name}: only {} {what}, expected at least {least}", self.of(what));
        }
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let counts: Vec<String> = self.counts.iter().map(|(what, times)| format!("{times} {what}")).collect();
        write!(f, "{}, {} failures", counts.join(", "), self.failures.len())?;
        for failure in &self.failures {
            write!(f, "\n  {}\n  repeat with: bifold-sim replay {}", failure.what, failure.replay)?;
        }
        Ok(())
    }
}

/// Runs `one` for every seed on all processors and adds up the reports. Stops early after a few failures.
pub fn over_seeds(seeds: std::ops::Range<u64>, one: impl Fn(u64) -> Report + Sync) -> Report {
    over_seeds_in_time(seeds, one).0
}

/// Like [`over_seeds`], but starts no seed when [`time_is_up`]. Also returns the next seed.
pub fn over_seeds_in_time(seeds: std::ops::Range<u64>, one: impl Fn(u64) -> Report + Sync) -> (Report, u64) {
    let failures_max = number_of("BIFOLD_SIM_FAILURES").unwrap_or(FAILURES_MAX);
    let next = Mutex::new((seeds.clone(), Report::default()));
    let hold = || next.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    let work = || {
        loop {
            let seed = {
                let mut state = hold();
                if state.1.failures.len() as u64 >= failures_max || time_is_up() {
                    return;
                }
                state.0.next()
            };
            let Some(seed) = seed else { return };
            let report = one(seed);
            hold().1.merge(report);
        }
    };
    let processors = thread::available_parallelism().map_or(1, usize::from);
    thread::scope(|scope| (0..processors).for_each(|_| drop(scope.spawn(work))));
    let (left, report) = next.into_inner().unwrap_or_else(std::sync::PoisonError::into_inner);
    (report, left.start)
}

/// Runs `work`; a panic in it becomes trouble like any other.
///
/// # Errors
/// The trouble, or the panic's message.
pub fn guarded<T>(work: impl FnOnce() -> Result<T, Trouble>) -> Result<T, Trouble> {
    panic::catch_unwind(AssertUnwindSafe(work)).unwrap_or_else(|panic| {
        let text = panic.downcast_ref::<String>().map(String::as_str);
        let text = text.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("no message");
        Err(Trouble::wrong(format!("panic: {text}")))
    })
}

/// How much of its usual amount a run does: `BIFOLD_SIM_SCALE`, in percent of what `cargo test` does by default.
#[must_use]
pub fn scaled(amount: u64) -> u64 {
    let percent = number_of("BIFOLD_SIM_SCALE").unwrap_or(100);
    (amount * percent / 100).max(1)
}

/// A number from the environment.
fn number_of(variable: &str) -> Option<u64> {
    std::env::var(variable).ok()?.parse().ok()
}
