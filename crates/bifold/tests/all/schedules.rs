//! Runs models under many schedules of `shuttle`.
//!
//! `BIFOLD_SHUTTLE_ITERATIONS` and `BIFOLD_SHUTTLE_SEED` select other schedules and their number. A failure prints
//! its schedule.

use std::{
    fmt::Debug,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::SeqCst},
    },
};

use shuttle::{
    Config, FailurePersistence, Runner,
    scheduler::{PctScheduler, RandomScheduler, Scheduler},
};

const PREEMPTIONS: usize = 5;

/// `DrainsAsOfVisible` of the model of forwarded values takes longest: 7 936 executions with the default seed.
const TRIES: usize = 20_000;

/// Runs the model under random schedules.
pub fn at_random(model: fn()) {
    check(RandomScheduler::new_from_seed(seed(), iterations()), FailurePersistence::Print, model);
}

/// Runs the model under schedules of few preemptions.
pub fn with_few_preemptions(model: fn()) {
    check(PctScheduler::new_from_seed(seed(), PREEMPTIONS, iterations()), FailurePersistence::Print, model);
}

/// Checks that the model fails with each mistake.
pub fn notices<M: Debug + Copy + Send + Sync + 'static>(mistakes: &[M], model: fn(Option<M>)) {
    for &mistake in mistakes {
        let by_chance = || noticed_after(mistake, model, RandomScheduler::new_from_seed(seed(), TRIES));
        let by_preemption = || noticed_after(mistake, model, PctScheduler::new_from_seed(seed(), PREEMPTIONS, TRIES));
        let noticed = by_chance().or_else(by_preemption);
        println!("{mistake:?}: {noticed:?}");
        assert!(noticed.is_some(), "{mistake:?} is not noticed");
    }
}

/// The number of executions after which a mistake shows.
fn noticed_after<M: Copy + Send + Sync + 'static>(
    mistake: M,
    model: fn(Option<M>),
    scheduler: impl Scheduler + 'static,
) -> Option<usize> {
    let executions = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&executions);
    let model = move || {
        counted.fetch_add(1, SeqCst);
        model(Some(mistake));
    };
    let outcome = catch_unwind(AssertUnwindSafe(|| check(scheduler, FailurePersistence::None, model)));
    outcome.is_err().then(|| executions.load(SeqCst))
}

fn check(scheduler: impl Scheduler + 'static, failures: FailurePersistence, model: impl Fn() + Send + Sync + 'static) {
    let mut config = Config::new();
    config.failure_persistence = failures;
    Runner::new(scheduler, config).run(model);
}

fn iterations() -> usize {
    number("BIFOLD_SHUTTLE_ITERATIONS", 10_000) as usize
}

/// Always the same by default, so that a failure repeats.
fn seed() -> u64 {
    number("BIFOLD_SHUTTLE_SEED", 1)
}

fn number(name: &str, default: u64) -> u64 {
    std::env::var(name).map_or(default, |text| text.parse().unwrap())
}
