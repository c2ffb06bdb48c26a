//! `salvage DIR`: a whole database of which anything may be damaged.

use std::{path::Path, time::Instant};

use bifold::{
    Env,
    salvage::{DatabaseReport, DatabaseSalvage, LostStretch, RecoveredKeyspace, SalvageOptions, SalvageProgress},
};
use serde::Serialize;

use super::PRINTED_MAX;
use super::SalvageArgs;
use crate::{
    failure::{Failure, Result},
    formats::escape,
    fresh::Fresh,
    global::Global,
    open,
    output::{self, Output, Tone, counted},
    progress::Progress,
};

/// What `--json` prints.
#[derive(Serialize)]
struct Salvaged<'a> {
    /// Whether nothing was damaged or missing.
    ok: bool,
    /// The directory of the new database.
    out: Option<String>,
    seconds: f64,
    #[serde(flatten)]
    report: &'a DatabaseReport,
}

/// `bifold salvage DIR`
pub fn run(args: &SalvageArgs, dir: &Path, global: &Global, out: &mut Output) -> Result<()> {
    let begin = Instant::now();
    if args.all || args.keys {
        let why = "--all and --keys are for value files: name the files, such as DIR/*.val, not the directory";
        return Err(Failure::trouble(why));
    }
    let options = open::options(global)?;
    let names = args.name.iter().cloned().collect();
    let salvage_options = SalvageOptions { names, tables_of: args.tables_of, ..SalvageOptions::default() };
    let salvage = DatabaseSalvage::open(&Env::system(), dir, &salvage_options)?;
    let fresh = args.out.as_deref().map(|to| Fresh::outside(dir, to)).transpose()?;
    let report = {
        let progress = Progress::bytes("reading tables", 0);
        let show = |at: SalvageProgress| progress.reach_of(at.done_bytes, at.total_bytes);
        match &fresh {
            Some(fresh) => fresh.fill(options, |db| Ok(salvage.restore(db, show)?))?,
            None => salvage.inspect(show)?,
        }
    };
    fresh.map_or(Ok(()), Fresh::publish)?;
    let seconds = begin.elapsed().as_secs_f64();
    let printed = if global.json {
        let made = args.out.as_ref().map(|to| to.display().to_string());
        out.json(&Salvaged { ok: report.is_sound(), out: made, seconds, report: &report })
    } else {
        print(args, &report, seconds, out).and_then(|()| out.flush())
    };
    if report.is_sound() { printed } else { Failure::No(None).after(printed) }
}

fn print(args: &SalvageArgs, report: &DatabaseReport, seconds: f64, out: &mut Output) -> Result<()> {
    report.left_out.iter().take(PRINTED_MAX).try_for_each(|left_out| print_left_out(left_out, out))?;
    if report.left_out_stretches > PRINTED_MAX as u64 {
        let (all, bytes) = (output::count(report.left_out_stretches), output::bytes(report.left_out_bytes));
        out.line(format!("… {all} lost stretches, {bytes} in total; --json lists them"))?;
    }
    if !report.manifest_is_whole {
        let of_manifest = |left_out: &&LostStretch| left_out.file.ends_with("MANIFEST");
        let why = report.left_out.iter().find(of_manifest).map(|left_out| &*left_out.problem);
        let why = why.unwrap_or("it is damaged");
        out.line(format!("the manifest does not say what there is: {why}"))?;
        out.line("deleted keys may be back, and a table may have lost its keyspace")?;
    }
    report.keyspaces.iter().try_for_each(|keyspace| print_keyspace(keyspace, out))?;
    let keys = report.keyspaces.iter().map(|keyspace| keyspace.restored).sum();
    let keys = counted(keys, "key", "keys");
    match &args.out {
        Some(to) => out.line(format!("{} has {keys}, restored in {seconds:.1} s", to.display())),
        None => out.line(format!("nothing was written: --out DIR creates a new database with {keys}")),
    }
}

fn print_left_out(left_out: &LostStretch, out: &mut Output) -> Result<()> {
    let label = out.paint(Tone::Bad, "lost:");
    let bound = |key: &Option<Box<[u8]>>| key.as_ref().map(|key| format!("`{}`", escape::escaped(key)));
    let of = left_out.keyspace.as_ref().map_or_else(String::new, |name| format!(" of keyspace {}", name_of(name)));
    let keys = match (bound(&left_out.first), bound(&left_out.last)) {
        (None, None) => format!("any keys{of}"),
        (Some(first), None) => format!("keys{of} from {first} on"),
        (None, Some(last)) => format!("keys{of} up to {last}"),
        (Some(first), Some(last)) => format!("keys{of} from {first} to {last}"),
    };
    let (file, bytes) = (left_out.file.display(), counted(left_out.bytes, "byte", "bytes"));
    out.line(format!("{label} {file}: {bytes} at offset {}, {keys}: {}", left_out.offset, left_out.problem))
}

fn name_of(keyspace: &str) -> String {
    escape::escaped(keyspace.as_bytes())
}

fn print_keyspace(keyspace: &RecoveredKeyspace, out: &mut Output) -> Result<()> {
    let name = out.paint(Tone::Strong, &name_of(&keyspace.name));
    let older = match keyspace.may_be_older {
        0 => String::new(),
        older => format!("; {} of them may be older than what was lost", output::count(older)),
    };
    out.line(format!(
        "keyspace {name}  {}, {}{older}; {}, {}; {}",
        counted(keyspace.restored, "key", "keys"),
        output::bytes(keyspace.restored_bytes),
        counted(keyspace.deleted, "deleted key", "deleted keys"),
        counted(keyspace.range_deleted, "key in a deleted range", "keys in deleted ranges"),
        counted(keyspace.lost_values, "lost value", "lost values"),
    ))?;
    let label = out.paint(Tone::Bad, "lost:");
    for key in keyspace.lost_keys.iter().take(PRINTED_MAX) {
        out.line(format!("  {label} the value of key `{}`", escape::escaped(key)))?;
    }
    if let Some(why) = &keyspace.operator_problem {
        let keys = counted(keyspace.operands, "key", "keys");
        out.line(format!("  {label} the operands of {keys}: {why}"))?;
    }
    let label = out.paint(Tone::Bad, "may lack operands:");
    for key in keyspace.lacking_keys.iter().take(PRINTED_MAX) {
        out.line(format!("  {label} key `{}`; its value may be one that it never had", escape::escaped(key)))?;
    }
    if keyspace.may_lack_operands > PRINTED_MAX as u64 {
        let all = output::count(keyspace.may_lack_operands);
        out.line(format!("  … {all} keys may lack operands that a log has lost; --json lists them"))?;
    }
    Ok(())
}
