//! `lab compare`: compares stores on chosen workloads.

use std::path::Path;

use bifold_lab::{
    Scale, Workload,
    experiment::{
        Data, Experiment,
        data::{Figure, RATE},
        rivals::Comparison,
    },
    record::Run,
    report::grouped,
    results::Results,
    session::Subject,
    store::Peer,
    values::Sizes,
};
use clap::Args;
use serde::Serialize;

use super::{
    launch::Processes,
    report,
    run::{self, How},
};
use crate::{
    commands::bench,
    failure::{Failure, Result},
    global::Global,
    output::{Output, Tone},
};

pub const LONG_ABOUT: &str = "\
Compare Bifold's placements and other stores: same keys and values, same durability, same memory budget.

Prints medians of all rounds and ratios to the first store, and draws a report. --set and --durability apply to all \
stores: other stores take from them the sizes of memtables, tables and caches, and the durability of writes. The \
report lists the settings of each store.

Other stores are those that this program was built with (--features rocksdb, fjall, redb, lmdb): rocksdb, blobdb, \
fjall, fjall-blobs, redb, lmdb. With rocksdb also rocksdb-recommended and rocksdb-direct, which differ in options and \
are measured if they are named.";

pub const EXAMPLES: &str = "Examples:
  bifold lab compare
  bifold lab compare --placements inline,hashkv --workloads load,update,read --value-size 4KiB
  bifold lab compare --peers rocksdb,lmdb --scale medium --memory 256MiB --out beyond-memory
  bifold lab compare --durability sync --workloads load,update --scale tiny --rounds 3";

/// The default directory for results.
const OUT: &str = "lab-compare";

#[derive(Args, Debug)]
pub struct CompareArgs {
    /// Placements of Bifold, or leveldb-like (`inline` configured like LevelDB); `none` for none [default: all].
    #[arg(long, value_name = "NAMES", value_delimiter = ',')]
    pub placements: Option<Vec<String>>,

    /// Other stores; `none` for none [default: all that this program was built with].
    #[arg(long, value_name = "NAMES", value_delimiter = ',')]
    pub peers: Option<Vec<String>>,

    /// What to measure, in this order; `bifold bench --help` lists the workloads.
    #[arg(long, value_name = "NAMES", value_delimiter = ',', default_value = "load,update,settle,read,scan,mix")]
    pub workloads: Vec<Workload>,

    /// Bytes of each value, or `pareto`.
    #[arg(long, value_name = "BYTES|pareto", default_value = "1000", value_parser = bench::sizes)]
    pub value_size: Sizes,

    /// Threads that call the store.
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub threads: usize,

    /// How much data: tiny, small, medium, device (with 1 GiB of memory for each store) or large.
    #[arg(long, value_name = "SCALE", default_value = "small")]
    pub scale: Scale,

    #[command(flatten)]
    pub how: How,
}

/// A workload on a store, as a line of JSON.
#[derive(Serialize)]
struct WorkloadLine<'a> {
    workload: &'a str,
    store: &'a str,
    ops_per_sec: Spread,
    ratio: Option<f64>,
}

#[derive(Serialize)]
struct Spread {
    median: f64,
    least: f64,
    most: f64,
}

/// `bifold lab compare`
pub fn run(args: &CompareArgs, global: &Global, out: &mut Output) -> Result<()> {
    let session = args.how.session(args.scale, Subject::Compare(args.comparison(global)?));
    let experiments = session.experiments();
    let dir = args.how.out.as_deref().unwrap_or(Path::new(OUT));
    run::make(&session, &experiments, (&args.how, Processes::Anytime), dir, global, out)?;
    let (session, runs) = Results::read(dir)?;
    for experiment in &experiments {
        print(experiment, &runs, global, out)?;
    }
    let page = report::write(dir, &session, &runs)?;
    run::hint(&page, global, out)
}

impl CompareArgs {
    fn comparison(&self, global: &Global) -> Result<Comparison> {
        let default = Comparison::default();
        if global.options.is_some() {
            return Err(Failure::trouble("`lab compare` does not take --options: give options one by one with --set"));
        }
        let chosen = |given: &Option<Vec<String>>, all: Vec<String>| match given.as_deref() {
            None => all,
            Some([none]) if none == "none" => Vec::new(),
            Some(names) => names.to_vec(),
        };
        let comparison = Comparison {
            placements: chosen(&self.placements, default.placements),
            peers: chosen(&self.peers, default.peers),
            workloads: self.workloads.clone(),
            sizes: self.value_size,
            threads: self.threads,
            set: global
                .durability
                .map(|level| format!("durability={}", format!("{level:?}").to_lowercase()))
                .into_iter()
                .chain(global.set.iter().cloned())
                .collect(),
        };
        check(&comparison)?;
        Ok(comparison)
    }
}

fn check(comparison: &Comparison) -> Result<()> {
    for peer in &comparison.peers {
        peer.parse::<Peer>()?.check_built_in()?;
    }
    let stores = comparison.placements.len() + comparison.peers.len();
    if stores == 0 || comparison.workloads.is_empty() {
        return Err(Failure::trouble("nothing to compare: give at least one store and one workload"));
    }
    for arm in comparison.experiment(Scale::Tiny, 1).arms {
        arm.spec.options()?;
        arm.spec.plan.check()?;
    }
    Ok(())
}

/// Prints medians, and ratios to the first store.
pub fn print(experiment: &Experiment, runs: &[Run], global: &Global, out: &mut Output) -> Result<()> {
    let data = Data::new(&experiment.arms, runs);
    let series = data.series();
    let steps = experiment.arms.first().map(|arm| arm.spec.steps.as_slice()).unwrap_or_default();
    if !global.json {
        let head = format!("{:<10} {:<12} {:>6} {:>11} {:>23}", "workload", "store", "×", "ops/s", "least to most");
        out.line(out.paint(Tone::Strong, &head))?;
    }
    // A wait for background work has no rate: `lab report` has its bytes.
    for step in steps.iter().filter(|step| step.act.has_rate()) {
        let first = series.first().and_then(|name| data.of(name, &step.name, RATE));
        for &store in &series {
            let Some(Figure { median, least, most }) = data.figure(store, None, &step.name, RATE) else { continue };
            let ratio = first.map(|first| median / first);
            if global.json {
                let ops_per_sec = Spread { median, least, most };
                out.json(&WorkloadLine { workload: &step.name, store, ops_per_sec, ratio })?;
                continue;
            }
            let spread = format!("{} to {}", grouped(least), grouped(most));
            let ratio = ratio.map_or_else(String::new, |ratio| format!("{ratio:.2}"));
            out.line(format!("{:<10} {store:<12} {ratio:>6} {:>11} {spread:>23}", step.name, grouped(median)))?;
        }
    }
    Ok(())
}
