//! `lab`: the papers' experiments and comparisons with other stores, with a report.
//!
//! | file | what it is |
//! |---|---|
//! | [`list`] | prints the experiments |
//! | [`run`] | makes missing runs, shows progress, prints the results |
//! | [`compare`] | compares stores on chosen workloads |
//! | [`report`] | draws the page from existing results |
//! | [`launch`] | starts one process per run |
//! | [`given`] | the user's own keys and values |
//! | [`part`] | the work of such a process |
//! | [`confine`] | limits its memory |

mod compare;
mod confine;
mod given;
mod launch;
mod list;
pub mod part;
mod report;
mod run;

use clap::{Args, Subcommand};

use crate::{args::Global, failure::Result, output::Output};

pub const LONG_ABOUT: &str = "\
The papers' experiments and today's rivals, on this machine, with a report.

Each experiment is a figure or table of a paper: which stores, which options, which workloads, and what must hold for \
its result to count as reproduced. Runs are made in turns (A B C A B C), each in a process and a directory of its own; \
what is read is checked (of scans the first value and the order). Results are a line of JSON for each run, so that a \
session can be stopped at any time and gone on with later, and a report can be drawn again without running anything.

Other stores are measured where this program was built with them: --features rocksdb, fjall, redb, lmdb.";

pub const EXAMPLES: &str = "Examples:
  bifold lab list
  bifold lab run hashkv-e1
  bifold lab run all --out results          # about an hour; go on with the same command
  bifold lab compare --workloads load,read,scan
  bifold lab run real --input access.tsv    # your own keys and values
  bifold lab report results                 # results/report.html";

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
}

/// `bifold lab`
pub fn run(args: &LabArgs, global: &Global, out: &mut Output) -> Result<()> {
    match &args.command {
        LabCommand::List(args) => list::run(args, global, out),
        LabCommand::Run(args) => run::run(args, global, out),
        LabCommand::Compare(args) => compare::run(args, global, out),
        LabCommand::Report(args) => report::run(args, global, out),
    }
}
