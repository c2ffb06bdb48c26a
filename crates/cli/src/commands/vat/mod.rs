//! `vat`: the cost model of the VAT paper, its calibration for a device, and its validation against this engine.
//!
//! | file | what it is |
//! |---|---|
//! | [`model`] | what a design costs |
//! | [`plot`] | the paper's projections as pictures |
//! | [`calibrate`] | measures a device |
//! | [`validate`] | how well the model predicts this engine |

mod calibrate;
mod model;
mod plot;
mod validate;

use clap::{Args, Subcommand};

use crate::{failure::Result, global::Global, output::Output};

pub const LONG_ABOUT: &str = "\
Predict the cost of a design by the VAT model (Variable Amplification-Throughput, 2020).

The model counts the bytes that a store reads and writes on its device until data have reached the last level, \
and how long that takes. It needs no database and no device, only figures: the number of levels, the size ratio \
(how many times larger each level is than the one above it), and the share of the lower level that a merge touches. \
docs/cost-model.md explains it.";

pub const EXAMPLES: &str = "Examples:
  bifold vat model --levels 5 --growth 4 --alpha 1
  bifold vat plot --out pictures
  bifold vat calibrate /mnt/nvme --out nvme.toml
  bifold vat model --levels 5 --growth 4 --alpha 0.25 --device nvme.toml --unit 8KiB";

#[derive(Args, Debug)]
#[command(subcommand_required = true)]
pub struct VatArgs {
    #[command(subcommand)]
    pub command: VatCommand,
}

#[derive(Subcommand, Debug)]
pub enum VatCommand {
    /// Print the cost of a design, and the best levels and size ratio for its size.
    #[command(long_about = model::LONG_ABOUT, after_long_help = model::EXAMPLES)]
    Model(model::ModelArgs),

    /// Draw the projections of the paper as SVG.
    #[command(long_about = plot::LONG_ABOUT, after_long_help = plot::EXAMPLES)]
    Plot(plot::PlotArgs),

    /// Measure the device under a directory, and write a profile.
    #[command(long_about = calibrate::LONG_ABOUT, after_long_help = calibrate::EXAMPLES)]
    Calibrate(calibrate::CalibrateArgs),

    /// Run the engine over trees of several depths, and compare what it moves with the model.
    #[command(long_about = validate::LONG_ABOUT, after_long_help = validate::EXAMPLES)]
    Validate(validate::ValidateArgs),
}

/// `bifold vat`
pub fn run(args: &VatArgs, global: &Global, out: &mut Output) -> Result<()> {
    match &args.command {
        VatCommand::Model(args) => model::run(args, global, out),
        VatCommand::Plot(args) => plot::run(args, global, out),
        VatCommand::Calibrate(args) => calibrate::run(args, global, out),
        VatCommand::Validate(args) => validate::run(args, global, out),
    }
}
