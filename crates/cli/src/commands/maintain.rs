//! `compact`, `gc` and `checkpoint`.

use std::{
    path::{Path, PathBuf},
    time::Instant,
};

use bifold::Access;
use bifold_lab::measure;
use clap::Args;
use serde::Serialize;

use crate::{
    failure::{Failure, Result},
    formats::escape,
    global::Global,
    interrupt::Unfinished,
    open,
    output::{self, Output},
    progress::Progress,
};

#[derive(Args, Debug)]
pub struct GcArgs {
    /// The database's directory.
    pub db: PathBuf,

    /// List each group or file, and change nothing.
    #[arg(long)]
    pub explain: bool,
}

#[derive(Args, Debug)]
pub struct CheckpointArgs {
    /// The database's directory.
    pub db: PathBuf,
    /// Where the copy goes; must not exist.
    pub to: PathBuf,
}

/// The result of a compaction, a GC run or a checkpoint.
#[derive(Serialize)]
struct Done {
    /// Its duration.
    seconds: f64,
    /// Size of the database's directory before.
    bytes_before: u64,
    /// Size after it, or of the copy.
    bytes_after: u64,
}

/// `bifold compact`
pub fn compact(path: &Path, global: &Global, out: &mut Output) -> Result<()> {
    let db = open::existing(path, global, Access::ReadWrite)?;
    let (begin, bytes_before) = (Instant::now(), size(path)?);
    db.compact()?;
    db.close()?;
    let done = Done { seconds: begin.elapsed().as_secs_f64(), bytes_before, bytes_after: size(path)? };
    if global.json {
        return out.json(&done);
    }
    let (before, after) = (output::bytes(done.bytes_before), output::bytes(done.bytes_after));
    out.line(format!("compacted {} in {:.1} s: {before} before, {after} now", path.display(), done.seconds))
}

/// `bifold gc`
pub fn gc(args: &GcArgs, global: &Global, out: &mut Output) -> Result<()> {
    if args.explain {
        return explain(&args.db, global, out);
    }
    let db = open::existing(&args.db, global, Access::ReadWrite)?;
    let (begin, bytes_before) = (Instant::now(), size(&args.db)?);
    db.collect_garbage()?;
    db.close()?;
    let done = Done { seconds: begin.elapsed().as_secs_f64(), bytes_before, bytes_after: size(&args.db)? };
    if global.json {
        return out.json(&done);
    }
    let (before, after) = (output::bytes(done.bytes_before), output::bytes(done.bytes_after));
    out.line(format!("ran GC on {} in {:.1} s: {before} before, {after} now", args.db.display(), done.seconds))
}

fn explain(path: &Path, global: &Global, out: &mut Output) -> Result<()> {
    let db = open::existing(path, global, Access::ReadOnly)?;
    let units = db.explain_garbage();
    if global.json {
        return units.iter().try_for_each(|unit| out.json(unit));
    }
    if units.is_empty() {
        return out.line("no values are separated, so there is nothing for GC to do");
    }
    let stats = db.stats();
    let (total, live) = (stats.space.values_bytes, stats.space.live_values_estimate);
    out.line(format!("values: {} in files, {} of them live (estimated)", output::bytes(total), output::bytes(live)))?;
    out.line(format!(
        "{:<12} {:<14} {:>10} {:>10} {:>6} {:>8}  why GC does not take it",
        "keyspace", "unit", "bytes", "live", "dead", "score"
    ))?;
    for unit in &units {
        let dead = 100.0 * (1.0 - unit.live_bytes as f64 / unit.total_bytes.max(1) as f64);
        let (total, live) = (output::bytes(unit.total_bytes), output::bytes(unit.live_bytes));
        let held = unit.held.unwrap_or("it takes this next");
        let (keyspace, score) = (escape::escaped(unit.keyspace.as_bytes()), figure(unit.score));
        out.line(format!("{keyspace:<12} {:<14} {total:>10} {live:>10} {dead:>5.0}% {score:>8}  {held}", unit.unit))?;
    }
    Ok(())
}

/// A score: a share for some policies, bytes for others.
fn figure(score: f64) -> String {
    if score.abs() < 1000.0 { format!("{score:.3}") } else { format!("{score:.2e}") }
}

/// `bifold checkpoint`
pub fn checkpoint(args: &CheckpointArgs, global: &Global, out: &mut Output) -> Result<()> {
    if args.to.symlink_metadata().is_ok() {
        return Err(Failure::trouble(format!("{} exists: give a new directory for the checkpoint", args.to.display())));
    }
    let db = open::to_copy(&args.db, global)?;
    let (begin, bytes_before) = (Instant::now(), size(&args.db)?);
    let progress = Progress::bytes("copying", 0);
    let unfinished = Unfinished::new(&args.to);
    db.checkpoint_with(&args.to, |so_far| progress.reach_of(so_far.bytes_done, so_far.bytes_total))?;
    drop((unfinished, progress));
    db.close()?;
    let done = Done { seconds: begin.elapsed().as_secs_f64(), bytes_before, bytes_after: size(&args.to)? };
    if global.json {
        return out.json(&done);
    }
    let (to, after) = (args.to.display(), output::bytes(done.bytes_after));
    out.line(format!("{to} is a copy of {} ({after}, made in {:.1} s)", args.db.display(), done.seconds))
}

fn size(dir: &Path) -> Result<u64> {
    measure::dir_bytes(dir).map_err(|e| Failure::file("read directory", dir, &e))
}
