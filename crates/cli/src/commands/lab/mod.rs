//! `lab`: the papers' experiments and comparisons with other stores, with a report.
//!
//! | file | what it is |
//! |---|---|
//! | [`list`] | prints the experiments |
//! | [`run`] | makes missing runs, shows progress, prints the results |
//! | [`compare`] | compares stores on chosen workloads |
//! | [`performance`] | prints the figures of a setting, and which targets were reached |
//! | [`report`] | draws the page from existing results |
//! | [`simulate`] | what designs of GC must write, without an engine |
//! | [`launch`] | starts one process per run |
//! | [`given`] | the user's own keys and values |
//! | [`part`] | the work of such a process |
//! | [`confine`] | limits its memory |

mod compare;
mod confine;
mod given;
pub mod launch;
mod list;
pub mod part;
mod performance;
mod report;
mod run;
mod simulate;
mod tuned;

use clap::{Args, Subcommand};

use crate::{failure::Result, global::Global, output::Output};

pub const LONG_ABOUT: &str = "\
Run the papers' experiments and compare with other stores on this machine, with a report.

Each experiment is a figure or table of a paper: its stores, options and workloads, and the rules by which its result \
counts as reproduced. Runs take turns (A B C A B C), each in its own process and directory. Every value read is \
checked; of a scan, the first value and the order of keys. Each run adds a line of JSON to the results, so you can \
stop a session at any time and continue it later, and draw the report again without running anything.

Other stores are measured if this program was built with them: --features rocksdb, fjall, redb, lmdb.";

pub const EXAMPLES: &str = "Examples:
  bifold lab list
  bifold lab run hashkv-e1
  bifold lab run all --out results          # about an hour; the same command continues it
  bifold lab compare --workloads load,read,scan
  bifold lab run real --input access.tsv    # your own keys and values
  bifold lab report results                 # results/report.html
  bifold lab simulate hashkv streams        # bytes that GC must write, by its rules alone";

#[derive(Args, Debug)]
#[command(subcommand_required = true)]
pub struct LabArgs {
    #[command(subcommand)]
    pub command: LabCommand,
}

#[derive(Subcommand, Debug)]
pub enum LabCommand {
    /// Print the experiments and the papers' claims.
    #[command(long_about = list::LONG_ABOUT, after_long_help = list::EXAMPLES)]
    List(list::ListArgs),

    /// Run experiments and say which of the papers' results they reproduce.
    #[command(long_about = run::LONG_ABOUT, after_long_help = run::EXAMPLES)]
    Run(run::RunArgs),

    /// Compare placements and other stores.
    #[command(long_about = compare::LONG_ABOUT, after_long_help = compare::EXAMPLES)]
    Compare(compare::CompareArgs),

    /// Draw the report from existing results.
    #[command(long_about = report::LONG_ABOUT, after_long_help = report::EXAMPLES)]
    Report(report::ReportArgs),

    /// Simulate what designs of GC must write.
    #[command(long_about = simulate::LONG_ABOUT, after_long_help = simulate::EXAMPLES)]
    Simulate(simulate::SimulateArgs),
}

/// `bifold lab`
pub fn run(args: &LabArgs, global: &Global, out: &mut Output) -> Result<()> {
    match &args.command {
        LabCommand::List(args) => list::run(args, global, out),
        LabCommand::Run(args) => run::run(args, global, out),
        LabCommand::Compare(args) => compare::run(args, global, out),
        LabCommand::Report(args) => report::run(args, global, out),
        LabCommand::Simulate(args) => simulate::run(args, global, out),
    }
}
