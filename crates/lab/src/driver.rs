//! Makes the runs that experiments need and that are not there yet, in turns: A B C A B C.
//!
//! In turns, because a machine's speed drifts over minutes. Each in a process and a directory of its own, so that one
//! store's memory, threads and files do not burden another; how a process is made is the caller's business
//! ([`Launch`]). A run that two experiments ask for is made once.

use std::{
    collections::HashSet,
    fs::{self, File},
    io,
    path::{Path, PathBuf},
    time::{Instant, SystemTime, UNIX_EPOCH},
};

use serde_json::Value;

use crate::{
    Failure, Result, Spec,
    execute::{self, Part, Seen},
    experiment::{Arm, Experiment},
    machine::Machine,
    record::Run,
    results::Results,
};

/// A run that is due.
#[derive(Clone, Debug)]
pub struct Job<'a> {
    /// The experiment it is made for.
    pub experiment: &'a str,
    /// What is run.
    pub arm: &'a Arm,
    /// Which of several equal runs, from 1 on.
    pub round: usize,
}

/// Runs part number `part` of a spec in a process of its own, on the store in a directory, and tells how far it is
/// now and then.
pub trait Launch {
    /// See the trait.
    ///
    /// # Errors
    /// What went wrong there.
    fn launch(&self, spec: &Spec, part: usize, dir: &Path, seen: &mut dyn FnMut(Seen)) -> Result<Part<Value>>;
}

/// Who is told how the work goes on.
pub trait Watch {
    /// A run begins: number `at` of `of`, from 1 on.
    fn begin(&mut self, job: &Job<'_>, at: usize, of: usize);
    /// It is so far.
    fn seen(&mut self, job: &Job<'_>, seen: &Seen);
    /// It has ended.
    fn end(&mut self, run: &Run);
}

/// The runs that are due, in the order in which they are made.
#[must_use]
pub fn jobs<'a>(experiments: &'a [Experiment], rounds: usize, results: &Results) -> Vec<Job<'a>> {
    let mut due = HashSet::new();
    let mut jobs = Vec::new();
    for experiment in experiments {
        for round in 1..=rounds {
            for arm in &experiment.arms {
                let key = arm.spec.key();
                if !results.has(&key, round) && due.insert((key, round)) {
                    jobs.push(Job { experiment: experiment.name, arm, round });
                }
            }
        }
    }
    jobs
}

/// Makes these runs, with the stores' files below `data`, and adds them to the results one by one.
///
/// # Errors
/// The first run's that fails, with its name; those before it are kept.
pub fn drive(
    jobs: &[Job<'_>],
    data: &Path,
    results: &mut Results,
    launch: &dyn Launch,
    watch: &mut dyn Watch,
) -> Result<()> {
    let _held = hold(data)?;
    let machine = Machine::here(data);
    for (at, job) in jobs.iter().enumerate() {
        watch.begin(job, at + 1, jobs.len());
        let run = one(job, data, &machine, launch, watch).map_err(|failure| {
            let Job { experiment, arm, round } = job;
            Failure::Store(format!("{experiment}, {}, round {round}: {failure}", arm.label()))
        })?;
        watch.end(&run);
        results.add(run)?;
    }
    Ok(())
}

fn one(job: &Job<'_>, data: &Path, machine: &Machine, launch: &dyn Launch, watch: &mut dyn Watch) -> Result<Run> {
    let spec = &job.arm.spec;
    let dir = Fresh::make(data.join("bifold-lab-store"))?;
    let began = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_secs());
    let begin = Instant::now();
    let mut run = Run {
        key: spec.key(),
        round: job.round,
        experiment: job.experiment.to_owned(),
        arm: job.arm.label(),
        spec: spec.clone(),
        version: String::new(),
        settings: Vec::new(),
        machine: machine.clone(),
        began,
        seconds: 0.0,
        steps: Vec::new(),
        accounts: Vec::new(),
    };
    for part in 0..execute::parts(spec).len() {
        let done = launch.launch(spec, part, &dir.0, &mut |seen| watch.seen(job, &seen))?;
        run.steps.extend(done.steps);
        run.accounts.extend(Some(done.account).filter(|account| !account.by_source.is_empty()));
        (run.version, run.settings) = (done.version, done.settings);
    }
    run.seconds = begin.elapsed().as_secs_f64();
    Ok(run)
}

/// Keeps other sessions out of the directory where the stores are: each empties it before a run.
fn hold(data: &Path) -> Result<File> {
    let path = data.join("bifold-lab.lock");
    let trouble = |error: &dyn std::fmt::Display| {
        Failure::Store(format!("cannot hold {} (another session has its stores there?): {error}", path.display()))
    };
    let file = fs::create_dir_all(data).and_then(|()| File::create(&path)).map_err(|e| trouble(&e))?;
    file.try_lock().map_err(|e| trouble(&e))?;
    Ok(file)
}

/// A directory that is empty now and gone when this is dropped.
struct Fresh(PathBuf);

impl Fresh {
    fn make(dir: PathBuf) -> Result<Self> {
        let trouble = |verb, e: io::Error| Failure::Store(format!("cannot {verb} {}: {e}", dir.display()));
        if dir.exists() {
            // What a session left that was stopped.
            fs::remove_dir_all(&dir).map_err(|e| trouble("remove", e))?;
        }
        fs::create_dir_all(&dir).map_err(|e| trouble("make", e))?;
        Ok(Self(dir))
    }
}

impl Drop for Fresh {
    fn drop(&mut self) {
        // The next run removes what could not be removed now, or says why not.
        let _ = fs::remove_dir_all(&self.0);
    }
}

impl Part {
    /// The same with its steps as they are kept.
    ///
    /// # Errors
    /// [`Failure::Results`] for figures that JSON cannot hold.
    pub fn erased(self) -> Result<Part<Value>> {
        let json =
            |step| serde_json::to_value(step).map_err(|e| Failure::Results(format!("cannot keep a result: {e}")));
        let steps = self.steps.iter().map(json).collect::<Result<_>>()?;
        let Self { account, version, settings, .. } = self;
        Ok(Part { steps, account, version, settings })
    }
}
