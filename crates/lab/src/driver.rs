//! Makes the missing runs of experiments, in turns: A B C A B C. Where only short runs are made again ([`Rounds`]), all
//! runs of all experiments are made once before any is made again.
//!
//! Runs take turns because a machine's speed drifts over minutes. Each has its own process and directory, so that the
//! memory, threads and files of one store do not burden another. The caller starts the processes ([`Launch`]). A run
//! that two experiments need is made once.

use std::{
    collections::HashSet,
    fs::{self, File},
    io,
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};

use serde_json::Value;

use crate::{
    Failure, Result, Spec,
    execute::{self, Part, Seen},
    experiment::{Arm, Experiment},
    machine::Machine,
    record::Run,
    results::Results,
    scale::Rounds,
};

/// A run to make.
#[derive(Clone, Debug)]
pub struct Job<'a> {
    /// The experiment that needs it.
    pub experiment: &'a str,
    /// The arm to run.
    pub arm: &'a Arm,
    /// The number of the round, from 1 on.
    pub round: usize,
    /// [`Rounds::again_within`].
    pub again_within: Option<Duration>,
}

impl Job<'_> {
    /// Whether a first round that took so many seconds has no further one.
    fn is_long(&self, seconds: f64) -> bool {
        self.again_within.is_some_and(|limit| seconds >= limit.as_secs_f64())
    }
}

/// Starts the processes of runs.
pub trait Launch {
    /// Runs part number `part` of a spec in its own process, on the store in `dir`, and reports progress to `seen`.
    ///
    /// # Errors
    /// Those of the run, and of starting its process.
    fn launch(&self, spec: &Spec, part: usize, dir: &Path, seen: &mut dyn FnMut(Seen)) -> Result<Part<Value>>;
}

/// Receives progress.
pub trait Watch {
    /// A run begins: number `at` of `of`, from 1 on.
    fn begin(&mut self, job: &Job<'_>, at: usize, of: usize);
    /// Its progress.
    fn seen(&mut self, job: &Job<'_>, seen: &Seen);
    /// It has ended.
    fn end(&mut self, run: &Run);
    /// Whether another run may begin.
    fn goes_on(&self) -> bool {
        true
    }
}

/// The missing runs, in the order in which they are made. Further rounds of runs whose first one has still to be made
/// are among them: whether they are made is known then.
#[must_use]
pub fn jobs<'a>(experiments: &'a [Experiment], rounds: Rounds, results: &Results) -> Vec<Job<'a>> {
    let Rounds { most, again_within } = rounds;
    let first = if again_within.is_some() { most.min(1) } else { most };
    let mut due = HashSet::new();
    let mut jobs = Vec::new();
    for part in [1..=first, first + 1..=most] {
        for experiment in experiments {
            for round in part.clone() {
                for arm in &experiment.arms {
                    let (key, job) = (arm.spec.key(), Job { experiment: experiment.name, arm, round, again_within });
                    let is_long = results.first_took(&key).is_some_and(|seconds| job.is_long(seconds));
                    let is_over = is_long && round > 1 || results.is_too_slow(&key) || results.has(&key, round);
                    if !is_over && due.insert((key, round)) {
                        jobs.push(job);
                    }
                }
            }
        }
    }
    jobs
}

/// Makes these runs, or as many as `watch` lets begin, with the stores' files below `data`, and passes each to `keep`.
/// A run whose load took too long ([`Run::not_loaded`]) has no further round, nor has one whose first took longer than
/// [`Rounds`] allow.
///
/// # Errors
/// That of the first run that fails, with its name; the runs before it have been passed on. Those of `keep`.
pub fn drive(
    jobs: &[Job<'_>],
    data: &Path,
    launch: &dyn Launch,
    watch: &mut dyn Watch,
    keep: &mut dyn FnMut(Run) -> Result<()>,
) -> Result<()> {
    let _lock = Lock::take(data)?;
    let machine = Machine::here(data);
    // Those that have no further round: it would end, or last, like the first.
    let mut made_once = HashSet::new();
    for (at, job) in jobs.iter().enumerate() {
        let is_over = made_once.contains(&job.arm.spec.key());
        if !is_over && !watch.goes_on() {
            break;
        }
        watch.begin(job, at + 1, jobs.len());
        if is_over {
            continue;
        }
        let run = one(job, data, &machine, launch, watch).map_err(|failure| {
            let Job { experiment, arm, round, .. } = job;
            Failure::Store(format!("{experiment}, {}, round {round}: {failure}", arm.label()))
        })?;
        if run.not_loaded.is_some() || job.round == 1 && job.is_long(run.seconds) {
            made_once.insert(run.key.clone());
        }
        watch.end(&run);
        keep(run)?;
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
        not_loaded: None,
    };
    for part in 0..execute::parts(spec).len() {
        let done = launch.launch(spec, part, &dir.0, &mut |seen| watch.seen(job, &seen))?;
        run.steps.extend(done.steps);
        run.accounts.extend(Some(done.account).filter(|account| !account.by_source.is_empty()));
        (run.version, run.settings) = (done.version, done.settings);
        if done.not_loaded.is_some() {
            run = Run { steps: Vec::new(), accounts: Vec::new(), not_loaded: done.not_loaded, ..run };
            break;
        }
    }
    run.seconds = begin.elapsed().as_secs_f64();
    Ok(run)
}

/// Locks the directory of the stores against other sessions: each session clears it before a run.
struct Lock {
    path: PathBuf,
    _file: File,
}

impl Lock {
    fn take(data: &Path) -> Result<Self> {
        let path = data.join("bifold-lab.lock");
        let failed = |error: &dyn std::fmt::Display| {
            let hint = "does another session use this directory? give another one with --data or --dir";
            Failure::System(format!("cannot lock {}: {error}; {hint}", path.display()))
        };
        let file = fs::create_dir_all(data).and_then(|()| File::create(&path)).map_err(|e| failed(&e))?;
        file.try_lock().map_err(|e| failed(&e))?;
        // A session that ended meanwhile has removed this file, and another one may have locked its successor.
        let inode = |meta: io::Result<fs::Metadata>| meta.map(|meta| meta.ino()).map_err(|e| failed(&e));
        if inode(file.metadata())? != inode(fs::metadata(&path))? {
            return Err(failed(&"it was removed"));
        }
        Ok(Self { path, _file: file })
    }
}

impl Drop for Lock {
    fn drop(&mut self) {
        // Still locked. A file that cannot be removed does no harm.
        let _ = fs::remove_file(&self.path);
    }
}

/// An empty directory that is removed on drop.
struct Fresh(PathBuf);

impl Fresh {
    fn make(dir: PathBuf) -> Result<Self> {
        let trouble = |verb, e: io::Error| Failure::Store(format!("cannot {verb} {}: {e}", dir.display()));
        if dir.exists() {
            // Left by a session that was stopped.
            fs::remove_dir_all(&dir).map_err(|e| trouble("remove", e))?;
        }
        fs::create_dir_all(&dir).map_err(|e| trouble("make", e))?;
        Ok(Self(dir))
    }
}

impl Drop for Fresh {
    fn drop(&mut self) {
        // The next run removes what could not be removed now, or fails and says why.
        let _ = fs::remove_dir_all(&self.0);
    }
}

impl Part {
    /// The same with its steps as JSON.
    ///
    /// # Errors
    /// [`Failure::Results`] for figures that JSON cannot hold.
    pub fn erased(self) -> Result<Part<Value>> {
        let json =
            |step| serde_json::to_value(step).map_err(|e| Failure::Results(format!("cannot store a result: {e}")));
        let steps = self.steps.iter().map(json).collect::<Result<_>>()?;
        let Self { account, version, settings, not_loaded, .. } = self;
        Ok(Part { steps, account, version, settings, not_loaded })
    }
}
