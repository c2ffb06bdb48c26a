//! `lab simulate`: what designs of GC must write.

use bifold_lab::simulate::{DESIGNS, Design, Outcome, Simulation, Updates};
use clap::Args;
use serde::Serialize;

use crate::{
    failure::Result,
    global::Global,
    output::{Output, Tone},
    progress::Progress,
};

pub const LONG_ABOUT: &str = "\
Simulate what designs of garbage collection must write: their rules alone, without an engine.

Prints the values written for each update, copies by GC included, for each design and space target: 1 would be no \
copies. All values have one length; there is no log and no index, and what is dead is known at once, so an engine can \
only write more. The result is that of the second half of the updates. The same arguments give the same figures on \
every machine.

A space target of 1.25 means that at most 1.25 values are stored for each live one, copies under way included.";

pub const EXAMPLES: &str = "Examples:
  bifold lab simulate
  bifold lab simulate hashkv hashkv-segments --groups 256
  bifold lab simulate streams --updates-of shifting --space-target 1.1,1.25,1.5
  bifold lab simulate hashkv --buffer 3125            # a write buffer of a 64th of the keys
  bifold lab simulate --json | jq -r '[.design, .space_target, .written] | @tsv'";

#[derive(Args, Debug)]
pub struct SimulateArgs {
    /// The designs [default: all].
    #[arg(value_name = "DESIGN")]
    pub designs: Vec<Design>,

    /// Space targets: the most values that are stored for each live one.
    #[arg(long, value_name = "RATIOS", value_delimiter = ',', default_value = "1.25,1.5")]
    pub space_target: Vec<f64>,

    /// Which keys are updated: uniform, zipf, zipf:SKEW or shifting (nine of ten updates to a tenth of the keys, and to
    /// another tenth after as many updates as there are keys).
    #[arg(long, value_name = "WHICH", default_value = "zipf:0.99")]
    pub updates_of: Updates,

    /// The number of keys.
    #[arg(long, value_name = "N", default_value_t = Simulation::default().keys)]
    pub keys: u32,

    /// The number of updates [default: ten for each key].
    #[arg(long, value_name = "N")]
    pub updates: Option<u64>,

    /// How many full files would hold all keys.
    #[arg(long, value_name = "N", default_value_t = Simulation::default().files)]
    pub files: u32,

    /// The number of HashKV's groups.
    #[arg(long, value_name = "N", default_value_t = Simulation::default().groups)]
    pub groups: u32,

    /// Values in a write buffer, in which they are overwritten in place (HashKV §3.8).
    #[arg(long, value_name = "N", default_value_t = Simulation::default().buffer)]
    pub buffer: u32,

    /// The seed of all random choices.
    #[arg(long, value_name = "N", default_value_t = Simulation::default().seed)]
    pub seed: u64,
}

/// A design with a space target.
#[derive(Serialize)]
struct Line<'a> {
    design: &'a str,
    about: &'a str,
    updates_of: String,
    space_target: f64,
    written: f64,
    copied: f64,
    absorbed: f64,
    space_max: f64,
}

/// `bifold lab simulate`
pub fn run(args: &SimulateArgs, global: &Global, out: &mut Output) -> Result<()> {
    let all: Vec<Simulation> = args.space_target.iter().map(|&target| args.simulation(target)).collect();
    all.iter().try_for_each(Simulation::check)?;
    let designs = if args.designs.is_empty() { DESIGNS.to_vec() } else { args.designs.clone() };
    if !global.json {
        let targets: String = args.space_target.iter().map(|target| format!("{target:>8}")).collect();
        let head = format!("{:<21}{targets}  values written for each update of {}", "design", args.updates_of);
        out.line_now(out.paint(Tone::Strong, &head))?;
    }
    for design in designs {
        let outcomes = all.iter().map(|simulation| simulate(design, simulation)).collect::<Result<Vec<_>>>()?;
        if !global.json {
            let written: String = outcomes.iter().map(|outcome| format!("{:>8.2}", outcome.written)).collect();
            out.line_now(format!("{:<21}{written}  {}", design.name, out.paint(Tone::Dim, design.about)))?;
            continue;
        }
        for (simulation, Outcome { written, copied, absorbed, space_max }) in all.iter().zip(outcomes) {
            let Design { name, about, .. } = design;
            let (updates_of, space_target) = (simulation.which.to_string(), simulation.space_target);
            out.json(&Line { design: name, about, updates_of, space_target, written, copied, absorbed, space_max })?;
        }
    }
    Ok(())
}

fn simulate(design: Design, simulation: &Simulation) -> Result<Outcome> {
    let progress = Progress::count(design.name, simulation.updates);
    Ok(simulation.run(design, &mut |done| progress.reach_of(done, simulation.updates))?)
}

impl SimulateArgs {
    fn simulation(&self, space_target: f64) -> Simulation {
        Simulation {
            keys: self.keys,
            updates: self.updates.unwrap_or(10 * u64::from(self.keys)),
            which: self.updates_of,
            space_target,
            files: self.files,
            groups: self.groups,
            buffer: self.buffer,
            seed: self.seed,
        }
    }
}
