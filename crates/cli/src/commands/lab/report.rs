//! `lab report`: draws the page from existing results.

use std::{
    collections::HashSet,
    fs,
    path::{Path, PathBuf},
};

use bifold_lab::{
    Session,
    experiment::{Experiment, Paper},
    page::Page,
    record::Run,
    results::Results,
};
use clap::Args;

use super::run::hint;
use crate::{
    failure::{Failure, Result},
    global::Global,
    output::Output,
    publish::{NewFile, publish},
};

pub const LONG_ABOUT: &str = "\
Draw the report from existing results: DIR/report.html, one page that needs no network, and DIR/report.md with its \
pictures in DIR/pictures. Nothing is run.";

pub const EXAMPLES: &str = "Examples:
  bifold lab report lab-results && xdg-open lab-results/report.html";

/// The folder of pictures next to the report.
const PICTURES: &str = "pictures";

#[derive(Args, Debug)]
pub struct ReportArgs {
    /// The directory of the results.
    #[arg(value_name = "DIR")]
    pub dir: PathBuf,
}

/// `bifold lab report`
pub fn run(args: &ReportArgs, global: &Global, out: &mut Output) -> Result<()> {
    let (session, runs) = Results::read(&args.dir)?;
    let page = write(&args.dir, &session, &runs)?;
    hint(&page, global, out)
}

/// Writes the report, and returns the path of its page.
pub fn write(dir: &Path, session: &Session, runs: &[Run]) -> Result<PathBuf> {
    let experiments = shown(session.experiments(), runs);
    let command = format!("bifold lab report {}", dir.display());
    let page = Page { experiments: &experiments, runs, scale: session.scale, subject: &session.subject, command };
    let pictures = dir.join(PICTURES);
    fs::create_dir_all(&pictures).map_err(|e| Failure::file("make", &pictures, &e))?;
    let file = |path: PathBuf, text: String| NewFile { path, content: text.into_bytes() };
    let html = dir.join("report.html");
    let mut files = vec![file(html.clone(), page.html()), file(dir.join("report.md"), page.markdown(PICTURES))];
    files.extend(page.pictures().into_iter().map(|(name, svg)| file(pictures.join(name), svg)));
    publish(&files)?;
    Ok(html)
}

/// The experiments that have runs. A computed one belongs to the rest of its paper: it is shown with that, or when
/// nothing was run.
fn shown(mut experiments: Vec<Experiment>, runs: &[Run]) -> Vec<Experiment> {
    let keys: HashSet<&str> = runs.iter().map(|run| run.key.as_str()).collect();
    let was_run = |experiment: &Experiment| experiment.arms.iter().any(|arm| keys.contains(arm.spec.key().as_str()));
    let papers: Vec<Paper> = experiments.iter().filter(|experiment| was_run(experiment)).map(|e| e.paper).collect();
    experiments.retain(|experiment| {
        let with_paper = papers.is_empty() || papers.contains(&experiment.paper);
        was_run(experiment) || experiment.arms.is_empty() && with_paper
    });
    experiments
}
