//! `lab run`: makes missing runs, shows progress, prints the results.

use std::{
    collections::BTreeSet,
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use bifold_lab::{
    Plan, Scale, Session, Spec, Workload,
    driver::{self, Job, Watch},
    execute::Seen,
    experiment::{Data, Experiment, Verdict, performance::Setting},
    record::Run,
    results::Results,
    room,
    scale::Rounds,
    session::Subject,
    spec::{Act, PageCache, Step},
    values::Sizes,
};
use clap::Args;
use serde::Serialize;

use super::{compare, given, launch::Processes, performance, report, tuned::Tuned};
use crate::{
    failure::{Failure, Result},
    formats::Format,
    global::Global,
    output::{self, Output, Tone},
    progress::Progress,
};

pub const LONG_ABOUT: &str = "\
Run experiments and say which of the papers' results they reproduce.

NAME is an experiment, a paper (hashkv, novkv, diffkv, unikv, vat) or all; or real, which imports, updates, reads and \
scans your own keys and values (--input; held in memory); or performance, which compares all placements with RocksDB, \
LMDB and fjall in one --setting, prints the figures as tables and reports which of our targets were reached. \
It waits for a machine on which nothing else runs, and refuses after a minute unless --busy is given. Runs that --out \
already has are not made again, so the same command continues a session that was stopped.

tiny     1 MiB of keys and values: checks that it works, figures mean nothing
small    64 MiB, three rounds: all experiments in about an hour, everything in the page cache
medium   1 GiB
device   6 GiB, and 1 GiB of memory for each store, page cache included: reads wait for the device
large    40 GiB, as in the papers; needs four times that on disk, unikv-e4 twelve times

Each run is made three times (at tiny once), in turns. At device all are made once, and then those that took less \
than 15 minutes twice more. --rounds says otherwise.

Verdicts follow rules that are the same for all experiments (`bifold lab list --claims`): half of a gain, half of a \
saving, 0.8 to 1.25 for figures that should be alike. Reproduced is what was measured by every rule, and holds; open \
is what holds as far as it was measured. Experiments with equal runs share them. They decide the options of their \
stores, so --set, --options and --durability are refused; `bifold lab compare` takes --set and --durability.

The page cache is as earlier steps left it; with --cold it is empty before steps that only read. With --memory, each \
store's process gets at most that much memory, page cache included, so data can exceed memory. That needs Linux \
and root, and so does `device`; where no control groups can be made, all other memory is taken meanwhile. With \
--tune-system at most 64 MiB of written pages wait for the device, and it reads ahead 128 KiB, while the command runs: \
many systems allow gigabytes, and read megabytes ahead.";

pub const EXAMPLES: &str = "Examples:
  bifold lab run hashkv-e1
  bifold lab run unikv diffkv-f10 --out results
  bifold lab run hashkv-e1 --scale device --rounds 1 --tune-system --out device
  bifold lab run hashkv --stores hashkv,wisckey --scale device --rounds 1 --minutes 40 --out device
  bifold lab run all --scale tiny --rounds 1
  bifold lab run real --input access.tsv --out real-results
  bifold lab run performance --setting confined --out confined
  bifold lab run performance --setting cache --stores inline,rocksdb --rounds 1 --out in-cache";

/// The default directory for results.
const OUT: &str = "lab-results";

/// A store may take this many times its data while it runs.
const ROOM: u64 = 4;

#[derive(Args, Debug)]
pub struct RunArgs {
    /// Experiments, papers, or all.
    #[arg(required = true, value_name = "NAME")]
    pub names: Vec<String>,

    /// For `real`: your keys and values, in a TSV or JSON Lines file or a directory, as for `bifold import`.
    #[arg(long, value_name = "FILE|DIR")]
    pub input: Option<PathBuf>,

    /// The format of --input [default: by its name].
    #[arg(long, value_name = "FORMAT", requires = "input")]
    pub format: Option<Format>,

    /// For `performance`: cache (1 M entries in memory), large (8 M in memory) or confined (2 M in 768 MiB).
    #[arg(long, value_name = "SETTING")]
    pub setting: Option<Setting>,

    /// Run only these stores now, separated by commas.
    #[arg(long, value_name = "NAMES")]
    pub stores: Option<String>,

    /// For `performance`: run even if other processes use the machine.
    #[arg(long, requires = "setting")]
    pub busy: bool,

    /// How much data: tiny, small, medium, device, large; for `performance`, tiny, or the whole setting with any other.
    #[arg(long, value_name = "SCALE", default_value = "small")]
    pub scale: Scale,

    #[command(flatten)]
    pub how: How,
}

/// The options that `run` and `compare` share.
#[derive(Args, Debug)]
pub struct How {
    /// The directory of results; an existing session there is continued [default: lab-results; lab-compare].
    #[arg(long, value_name = "DIR")]
    pub out: Option<PathBuf>,

    /// The directory of stores while they run [default: the directory of results].
    #[arg(long, value_name = "DIR")]
    pub data: Option<PathBuf>,

    /// How often to make each run [default: 3; 1 at tiny, and at device if the first takes 15 minutes or more].
    #[arg(long, value_name = "N")]
    pub rounds: Option<usize>,

    /// Begin no run after this many minutes; the same command continues the session.
    #[arg(long, value_name = "N")]
    pub minutes: Option<u64>,

    /// The seed of all random choices.
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub seed: u64,

    /// Drop the page cache of a store's files before each step that only reads.
    #[arg(long)]
    pub cold: bool,

    /// The most memory of each store's process, such as 256MiB, page cache of its files included.
    #[arg(long, value_name = "SIZE", value_parser = size)]
    pub memory: Option<u64>,

    /// While the command runs, let at most 64 MiB of written pages wait and read ahead 128 KiB; needs Linux and root.
    #[arg(long)]
    pub tune_system: bool,
}

fn size(text: &str) -> std::result::Result<u64, String> {
    bifold::options::parse_size(text).map_err(|e| e.to_string())
}

/// The result of an experiment, as a line of JSON.
#[derive(Serialize)]
struct OutcomeLine<'a> {
    experiment: &'a str,
    paper: &'a str,
    place: &'a str,
    verdict: Verdict,
    rounds: usize,
    checks: Vec<bifold_lab::experiment::CheckOutcome>,
}

impl How {
    /// How often to make each run: as given, or as the scale says.
    fn rounds(&self, scale: Scale) -> Result<Rounds> {
        match self.rounds {
            Some(0) => Err(Failure::trouble("--rounds 0 measures nothing: give at least 1")),
            Some(rounds) => Ok(Rounds::of(rounds)),
            None => Ok(scale.rounds()),
        }
    }

    /// The session with these settings.
    pub fn session(&self, scale: Scale, subject: Subject) -> Session {
        Session {
            scale,
            seed: self.seed,
            page_cache: if self.cold { PageCache::Cold } else { PageCache::Warm },
            process_memory: self.memory,
            subject,
        }
    }
}

impl RunArgs {
    fn subject(&self) -> Result<Subject> {
        match (self.names.iter().any(|name| name == "performance"), self.setting) {
            (false, None) => self.papers_or_real(),
            (true, Some(setting)) if self.names.len() == 1 && self.input.is_none() => Ok(Subject::Performance(setting)),
            (true, Some(_)) => Err(Failure::trouble("`performance` runs alone: leave out the other names and --input")),
            (true, None) => Err(Failure::trouble("`performance` needs --setting cache, large or confined")),
            (false, Some(_)) => Err(Failure::trouble("--setting is for `bifold lab run performance`")),
        }
    }

    /// How its processes are started.
    fn processes(&self) -> Processes {
        if self.setting.is_some() && !self.busy { Processes::WhenQuiet } else { Processes::Anytime }
    }

    /// Leaves only the runs of the stores that were named.
    fn keep_chosen(&self, experiments: &mut [Experiment]) -> Result<()> {
        let Some(stores) = &self.stores else { return Ok(()) };
        let series = experiments.iter().flat_map(|experiment| &experiment.arms).map(|arm| arm.series.as_str());
        let known: BTreeSet<String> = series.map(str::to_owned).collect();
        let chosen = chosen(stores, &known)?;
        for experiment in experiments {
            experiment.arms.retain(|arm| chosen.contains(arm.series.as_str()));
        }
        Ok(())
    }

    fn papers_or_real(&self) -> Result<Subject> {
        match (self.names.iter().any(|name| name == "real"), &self.input) {
            (false, None) => Ok(Subject::Papers),
            (true, Some(_)) if self.names.len() > 1 => {
                Err(Failure::trouble("`real` cannot run together with experiments: run it alone, with its own --out"))
            }
            (true, Some(path)) => Ok(Subject::Real(given::input(path, self.format)?)),
            (true, None) => Err(Failure::trouble("`real` needs your own keys and values: give --input FILE or DIR")),
            (false, Some(_)) => {
                Err(Failure::trouble("--input is for `bifold lab run real`: leave it out, or run `real`"))
            }
        }
    }
}

/// `bifold lab run`
pub fn run(args: &RunArgs, global: &Global, out: &mut Output) -> Result<()> {
    refuse_options(global)?;
    let session = args.how.session(args.scale, args.subject()?);
    let experiments = session.named(&args.names)?;
    let dir = args.how.out.as_deref().unwrap_or(Path::new(OUT));
    let mut chosen = session.named(&args.names)?;
    args.keep_chosen(&mut chosen)?;
    make(&session, &chosen, (&args.how, args.processes()), dir, global, out)?;
    let (session, runs) = Results::read(dir)?;
    for experiment in &experiments {
        match session.subject {
            Subject::Papers => print(experiment, &runs, global, out)?,
            Subject::Performance(setting) => performance::print(experiment, setting, &runs, global, out)?,
            Subject::Compare(_) | Subject::Real(_) => compare::print(experiment, &runs, global, out)?,
        }
    }
    let page = report::write(dir, &session, &runs)?;
    hint(&page, global, out)
}

/// Experiments decide the options of their stores.
fn refuse_options(global: &Global) -> Result<()> {
    let given = [
        ("--set", !global.set.is_empty()),
        ("--options", global.options.is_some()),
        ("--durability", global.durability.is_some()),
    ];
    let Some((given, _)) = given.into_iter().find(|(_, is_given)| *is_given) else { return Ok(()) };
    let why = "experiments decide the options of their stores: leave it out, or use `bifold lab compare` with --set \
               and --durability";
    Err(Failure::trouble(format!("`lab run` does not take {given}: {why}")))
}

/// Makes missing runs.
pub fn make(
    session: &Session,
    experiments: &[Experiment],
    (how, processes): (&How, Processes),
    dir: &Path,
    global: &Global,
    out: &mut Output,
) -> Result<()> {
    let rounds = how.rounds(session.scale)?;
    let mut results = Results::open(dir, session)?;
    let data = how.data.as_deref().unwrap_or(dir);
    let jobs = driver::jobs(experiments, rounds, &results);
    if jobs.is_empty() {
        return Ok(());
    }
    let largest = jobs.iter().map(|job| data_bytes(&job.arm.spec, session.scale)).max().unwrap_or(0);
    check_room(data, largest)?;
    let quiet = global.json;
    if !quiet && session.scale >= Scale::Medium {
        out.line_now(beforehand(&jobs, largest, session.scale))?;
    }
    let _tuned = how.tune_system.then(|| Tuned::new(data)).transpose()?;
    let time_max = how.minutes.map(|minutes| Duration::from_secs(minutes.saturating_mul(60)));
    let (begin, bar) = (Instant::now(), Progress::steps());
    let mut shown = RunProgress { out, quiet, begin, time_max, bar, at: (0, jobs.len()) };
    driver::drive(&jobs, data, &processes, &mut shown, &mut |run| results.add(run))?;
    match jobs.len() - shown.at.0 {
        0 => Ok(()),
        _ if quiet => Ok(()),
        left => out.line_now(format!("{left} of {} runs are left: the same command continues them", jobs.len())),
    }
}

/// What the runs need, and how long they take at most if the store and the device move [`SLOW`] bytes a second. Runs
/// that are made again only if they are short take no longer than that.
fn beforehand(jobs: &[Job<'_>], largest: u64, scale: Scale) -> String {
    let due: BTreeSet<String> = jobs.iter().filter(|job| job.round == 1).map(|job| job.arm.spec.key()).collect();
    let limit = |job: &Job<'_>| job.again_within.filter(|_| job.round > 1).map(|limit| limit.as_secs());
    let is_open = |job: &&Job<'_>| limit(job).is_some() && due.contains(&job.arm.spec.key());
    let again = jobs.iter().filter(is_open).count();
    let seconds = |step: &Step, data: u64, plan: &Plan| match plan.time_max {
        Some(time) if step.act.has_rate() && step.act != Act::Run(Workload::Load) => time.as_secs(),
        _ => data / SLOW,
    };
    let of = |job: &Job<'_>| {
        let data = data_bytes(&job.arm.spec, scale);
        let all: u64 = job.arm.spec.steps.iter().map(|step| seconds(step, data, &job.arm.spec.plan)).sum();
        limit(job).map_or(all, |limit| all.min(limit))
    };
    let limits: BTreeSet<u64> = jobs.iter().filter_map(|job| job.arm.spec.process_memory).collect();
    let limits: Vec<String> = limits.into_iter().map(output::bytes).collect();
    let memory = if limits.is_empty() { "all memory".to_owned() } else { format!("{} of memory", limits.join(" or ")) };
    let runs = match jobs.iter().find(is_open).and_then(limit) {
        Some(limit) => {
            let within = minutes(Duration::from_secs(limit));
            format!("{} runs, and up to {again} more of those that take less than {within},", jobs.len() - again)
        }
        None => format!("{} runs", jobs.len()),
    };
    format!(
        "{runs} with up to {} of data each: {memory} for a store, up to {} of disk, at most about {}; \
         the same command continues them",
        output::bytes(largest),
        output::bytes(largest.saturating_mul(ROOM)),
        minutes(Duration::from_secs(jobs.iter().map(of).sum())),
    )
}

/// Bytes that a slow store loads in a second, and moves in the background.
const SLOW: u64 = 32 << 20;

/// Bytes of keys and values that a run loads, approximate where they vary.
fn data_bytes(spec: &Spec, scale: Scale) -> u64 {
    match (&spec.input, spec.plan.sizes) {
        (Some(input), _) => input.bytes,
        (None, Sizes::Fixed(bytes)) => spec.plan.keys * (spec.plan.key_bytes + bytes) as u64,
        (None, _) => scale.data_bytes(),
    }
}

fn check_room(data: &Path, largest: u64) -> Result<()> {
    std::fs::create_dir_all(data).map_err(|e| Failure::file("make", data, &e))?;
    let (needed, free) = (largest.saturating_mul(ROOM), room::free(data)?);
    if free < needed {
        let (needed, free) = (output::bytes(needed), output::bytes(free));
        let why = format!("the largest run takes up to {needed}, and {} has {free} free", data.display());
        return Err(Failure::trouble(format!("{why}: give another directory with --data, or a smaller --scale")));
    }
    Ok(())
}

/// Progress: a bar at a terminal, and a line for each finished run.
struct RunProgress<'a> {
    out: &'a mut Output,
    quiet: bool,
    begin: Instant,
    /// No run begins after it.
    time_max: Option<Duration>,
    bar: Progress,
    /// The current run and the number of runs.
    at: (usize, usize),
}

impl RunProgress<'_> {
    /// The time left, if the rest takes as long per run as what is done.
    fn left(&self) -> String {
        let (at, of) = self.at;
        if at < 2 {
            return String::new();
        }
        let each = self.begin.elapsed() / u32::try_from(at - 1).unwrap_or(u32::MAX);
        let left = each * u32::try_from(of + 1 - at).unwrap_or(u32::MAX);
        format!(" ({} to go)", minutes(left))
    }
}

fn minutes(time: Duration) -> String {
    let seconds = time.as_secs();
    if seconds < 100 { format!("{seconds} s") } else { format!("{} min", seconds.div_ceil(60)) }
}

impl Watch for RunProgress<'_> {
    fn begin(&mut self, _: &Job<'_>, at: usize, of: usize) {
        self.at = (at, of);
        self.bar = Progress::steps();
    }

    fn seen(&mut self, job: &Job<'_>, seen: &Seen) {
        let (at, of) = self.at;
        let Job { experiment, arm, round, .. } = job;
        let what = format!("{at}/{of}{} {experiment} {}, round {round}: {}", self.left(), arm.label(), seen.step);
        self.bar.reach(&what, seen.done, seen.total);
    }

    fn goes_on(&self) -> bool {
        self.time_max.is_none_or(|max| self.begin.elapsed() < max)
    }

    fn end(&mut self, run: &Run) {
        if !self.quiet {
            let (at, of) = self.at;
            let Run { experiment, arm, round, seconds, not_loaded, .. } = run;
            let ended = if not_loaded.is_some() { ", not loaded in time" } else { "" };
            let line = format!("{at:>4}/{of}  {experiment:<12} {arm}, round {round}: {seconds:.1} s{ended}");
            // If nobody reads the output any more, the runs continue: their results are in a file.
            let _ = self.out.line_now(self.out.paint(Tone::Dim, &line));
        }
    }
}

/// Prints the result of an experiment.
fn print(experiment: &Experiment, runs: &[Run], global: &Global, out: &mut Output) -> Result<()> {
    let data = Data::new(&experiment.arms, runs);
    let checks = experiment.outcomes(&data);
    let verdict = Verdict::of(&checks);
    let (name, paper, place) = (experiment.name, experiment.paper.name(), experiment.place);
    if global.json {
        return out.json(&OutcomeLine { experiment: name, paper, place, verdict, rounds: data.rounds(), checks });
    }
    let tone = match verdict {
        Verdict::Reproduced => Tone::Good,
        Verdict::Not => Tone::Bad,
        Verdict::Partly | Verdict::Open => Tone::Strong,
    };
    let verdict = out.paint(tone, &format!("{:<10}", verdict.name()));
    out.line(format!("{verdict}  {name:<12}  {}", experiment.title))?;
    for check in checks {
        let mark = match check.holds {
            Some(true) => "yes",
            Some(false) => "no",
            None => "-",
        };
        let ours = check.ours.map_or_else(|| "not measured".to_owned(), |ours| format!("{ours:.2}"));
        let line = format!("  {mark:<3}  {}: {ours} ({}; paper: {})", check.what, check.rule, check.paper);
        out.line(out.paint(Tone::Dim, &line))?;
    }
    Ok(())
}

/// Prints the path of the report.
pub fn hint(page: &Path, global: &Global, out: &mut Output) -> Result<()> {
    if global.json { Ok(()) } else { out.line(format!("report: {}", page.display())) }
}

/// The stores of a list. A comma that belongs to the name of one does not end it.
fn chosen<'a>(mut list: &'a str, known: &BTreeSet<String>) -> Result<BTreeSet<&'a str>> {
    let mut chosen = BTreeSet::new();
    while !list.is_empty() {
        let is_next = |name: &&String| {
            list.strip_prefix(name.as_str()).is_some_and(|rest| rest.is_empty() || rest.starts_with(','))
        };
        let Some(name) = known.iter().filter(is_next).max_by_key(|name| name.len()) else {
            let unknown = list.split(',').next().unwrap_or(list);
            let names: Vec<String> = known.iter().map(|name| format!("`{name}`")).collect();
            return Err(Failure::trouble(format!("`{unknown}` is not measured; these are: {}", names.join(", "))));
        };
        let (name, rest) = list.split_at(name.len());
        chosen.insert(name);
        list = rest.strip_prefix(',').unwrap_or(rest);
    }
    Ok(chosen)
}

#[cfg(test)]
mod tests;
