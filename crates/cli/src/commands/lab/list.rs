//! `lab list`: prints the experiments.

use bifold_lab::{Session, experiment::Experiment};
use clap::Args;
use serde::Serialize;

use crate::{
    failure::Result,
    global::Global,
    output::{Output, Tone},
};

pub const LONG_ABOUT: &str = "\
Print the experiments: name, title, and the place in the paper.

With --claims also the findings of the paper, and the rule by which ours counts as reproduced. With --json all of it,
one object per line.";

pub const EXAMPLES: &str = "Examples:
  bifold lab list
  bifold lab list --claims
  bifold lab list --json | jq -r .name";

#[derive(Args, Debug)]
pub struct ListArgs {
    /// Also print the paper's claims and the rule by which each counts as reproduced.
    #[arg(long)]
    pub claims: bool,
}

#[derive(Serialize)]
struct ExperimentLine<'a> {
    name: &'a str,
    paper: &'a str,
    place: &'a str,
    title: &'a str,
    note: &'a str,
    arms: Vec<String>,
    claims: Vec<Claim<'a>>,
}

#[derive(Serialize)]
struct Claim<'a> {
    what: &'a str,
    paper: &'a str,
    rule: String,
}

impl<'a> ExperimentLine<'a> {
    fn of(experiment: &'a Experiment) -> Self {
        let claims = experiment.checks.iter();
        Self {
            name: experiment.name,
            paper: experiment.paper.name(),
            place: experiment.place,
            title: experiment.title,
            note: experiment.note,
            arms: experiment.arms.iter().map(bifold_lab::experiment::Arm::label).collect(),
            claims: claims.map(|c| Claim { what: &c.what, paper: &c.paper, rule: c.rule.to_string() }).collect(),
        }
    }
}

/// `bifold lab list`
pub fn run(args: &ListArgs, global: &Global, out: &mut Output) -> Result<()> {
    for experiment in &Session::default().experiments() {
        let line = ExperimentLine::of(experiment);
        if global.json {
            out.json(&line)?;
            continue;
        }
        let name = out.paint(Tone::Strong, &format!("{:<12}", line.name));
        let place = format!("{}, {}", line.paper, line.place);
        out.line(format!("{name}  {:<44}  {}", line.title, out.paint(Tone::Dim, &place)))?;
        if args.claims {
            for Claim { what, paper, rule } in &line.claims {
                out.line(format!("              {what}: {paper}; counts: {rule}"))?;
            }
        }
    }
    Ok(())
}
