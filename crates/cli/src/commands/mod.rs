//! One file per command.

pub mod advise;
pub mod backup;
pub mod bench;
pub mod changes;
mod compare;
mod convert;
mod demo;
mod entries;
mod export;
mod import;
pub mod lab;
mod maintain;
mod options;
pub mod salvage;
mod stats;
pub mod vat;
mod verify;

use crate::{
    args::{Cli, Command},
    failure::Result,
    output::Output,
};

/// Runs the given command.
pub fn run(cli: &Cli) -> Result<()> {
    let global = &cli.global;
    let mut out = Output::new();
    match &cli.command {
        Command::Demo(args) => demo::run(args, global, &mut out),
        Command::DemoWriter(args) => demo::writer::run(&args.db, global, &mut out),
        Command::Put(args) => entries::put(args, global),
        Command::Get(args) => entries::get(args, global, &mut out),
        Command::Del(args) => entries::del(args, global),
        Command::Scan(args) => entries::scan(args, global, &mut out),
        Command::Import(args) => import::run(args, global, &mut out),
        Command::Changes(args) => changes::run(args, global, &mut out),
        Command::Export(args) => export::run(args, global, &mut out),
        Command::Stats(args) => stats::run(&args.db, global, &mut out),
        Command::Options(args) => options::run(&args.db, global, &mut out),
        Command::Verify(args) => verify::run(&args.db, global, &mut out),
        Command::Compact(args) => maintain::compact(&args.db, global, &mut out),
        Command::Gc(args) => maintain::gc(args, global, &mut out),
        Command::Checkpoint(args) => maintain::checkpoint(args, global, &mut out),
        Command::Backup(args) => backup::run(args, global, &mut out),
        Command::Convert(args) => convert::run(args, global, &mut out),
        Command::Salvage(args) => salvage::run(args, global, &mut out),
        Command::Bench(args) => bench::run(args, global, &mut out),
        Command::Lab(args) => lab::run(args, global, &mut out),
        Command::LabPart(args) => lab::part::run(args, &mut out),
        Command::Vat(args) => vat::run(args, global, &mut out),
        Command::Advise(args) => advise::run(args, global, &mut out),
    }?;
    out.flush()
}
