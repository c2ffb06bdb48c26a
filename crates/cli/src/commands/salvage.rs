//! `salvage`: reads value files without their index, or a whole damaged database, and makes a new database from them.

mod database;

use std::{path::PathBuf, time::Instant};

use bifold::{
    Env,
    salvage::{
        Fate, FileReport, KeyspaceReport, Report, Restore, Salvage, SalvageOptions, SalvageProgress, SalvagedKey,
    },
};
use clap::Args;
use serde::Serialize;

use crate::{
    failure::{Failure, Result},
    formats::{base64, escape},
    fresh::Fresh,
    global::Global,
    open,
    output::{self, Output, Tone, counted},
    progress::Progress,
};

/// The most lines of damage printed per file; `--json` has up to a thousand.
const PRINTED_MAX: usize = 20;

#[derive(Args, Debug)]
pub struct SalvageArgs {
    /// The directory of a damaged database, or value files of one database.
    #[arg(required = true, value_name = "DIR|FILE")]
    pub files: Vec<PathBuf>,
    /// Create a new database from them in this directory; must not exist, or be empty.
    #[arg(long, value_name = "DIR")]
    pub out: Option<PathBuf>,
    /// Restore the newest value of every key, even if a delete or a move is newer.
    #[arg(long, requires = "out")]
    pub all: bool,
    /// List each key: its keyspace, the key, the number and kind of its newest record.
    #[arg(long, conflicts_with = "out")]
    pub keys: bool,
    /// The name for the keyspace with this id; may be given several times.
    #[arg(long, value_name = "ID=NAME", value_parser = id_and_name)]
    pub name: Vec<(u32, String)>,
    /// The id of the keyspace that gets the tables whose keyspace a damaged manifest no longer names; `default` has
    /// id 2.
    #[arg(long, value_name = "ID")]
    pub tables_of: Option<u32>,
}

/// What `--json` prints.
#[derive(Serialize)]
struct SalvageReport<'a> {
    /// Whether nothing was damaged.
    ok: bool,
    /// The directory of the new database.
    out: Option<String>,
    seconds: f64,
    #[serde(flatten)]
    report: &'a Report,
}

/// What `--json --keys` prints per key.
#[derive(Serialize)]
struct Key<'a> {
    keyspace: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    key: Option<&'a str>,
    /// For a key that is not UTF-8.
    #[serde(skip_serializing_if = "Option::is_none")]
    key_base64: Option<String>,
    seqno: u64,
    fate: Fate,
    value_seqno: Option<u64>,
    file: u64,
    offset: u64,
}

/// `bifold salvage`
pub fn run(args: &SalvageArgs, global: &Global, out: &mut Output) -> Result<()> {
    if let [dir] = &args.files[..]
        && dir.is_dir()
    {
        return database::run(args, dir, global, out);
    }
    let begin = Instant::now();
    let options = open::options(global)?;
    let restore = if args.all { Restore::LastValue } else { Restore::Newest };
    let names = args.name.iter().cloned().collect();
    let salvage =
        Salvage::open(&Env::system(), &args.files, &SalvageOptions { restore, names, ..SalvageOptions::default() })?;
    let fresh = args.out.as_deref().map(Fresh::at).transpose()?;
    let report = {
        let progress = Progress::bytes("salvaging", 0);
        let show = |at: SalvageProgress| progress.reach_of(at.done_bytes, at.total_bytes);
        match &fresh {
            Some(fresh) => fresh.fill(options, |db| Ok(salvage.restore(db, show)?))?,
            None if args.keys => salvage.inspect(listing(global, out), show)?,
            None => salvage.inspect(|_| Ok::<(), Failure>(()), show)?,
        }
    };
    fresh.map_or(Ok(()), Fresh::publish)?;
    let seconds = begin.elapsed().as_secs_f64();
    let printed = if global.json {
        let made = args.out.as_ref().map(|to| to.display().to_string());
        out.json(&SalvageReport { ok: report.is_sound(), out: made, seconds, report: &report })
    } else {
        print(args, &report, seconds, out).and_then(|()| out.flush())
    };
    if report.is_sound() { printed } else { Failure::No(None).after(printed) }
}

/// Prints keys. Without a reader nothing is printed, but what follows still decides whether anything is damaged.
fn listing(global: &Global, out: &mut Output) -> impl FnMut(SalvagedKey<'_>) -> Result<()> {
    let mut is_closed = false;
    move |key| {
        if is_closed {
            return Ok(());
        }
        match print_key(&key, global, out) {
            Err(Failure::ClosedPipe) => is_closed = true,
            printed => printed?,
        }
        Ok(())
    }
}

fn print_key(key: &SalvagedKey<'_>, global: &Global, out: &mut Output) -> Result<()> {
    let fate = match key.fate {
        Fate::Value => "value",
        Fate::Deleted => "deleted",
        Fate::RangeDeleted => "deleted with a range",
        Fate::Moved => "moved",
        Fate::Dropped => "dropped",
        _ => "unknown to this program",
    };
    if !global.json {
        let keyspace = escape::escaped(key.keyspace.as_bytes());
        return out.line(format!("{keyspace}\t{}\t{}\t{fate}", escape::escaped(key.key), key.seqno));
    }
    let text = std::str::from_utf8(key.key).ok();
    out.json(&Key {
        keyspace: key.keyspace,
        key: text,
        key_base64: text.is_none().then(|| base64::encode(key.key)),
        seqno: key.seqno,
        fate: key.fate,
        value_seqno: key.value_seqno,
        file: key.file,
        offset: key.offset,
    })
}

fn print(args: &SalvageArgs, report: &Report, seconds: f64, out: &mut Output) -> Result<()> {
    report.files.iter().try_for_each(|file| print_file(file, out))?;
    report.keyspaces.iter().try_for_each(|keyspace| print_keyspace(keyspace, out))?;
    let sum = |of: fn(&KeyspaceReport) -> u64| report.keyspaces.iter().map(of).sum::<u64>();
    let Some(to) = &args.out else {
        let entries = counted(sum(|keyspace| keyspace.values), "entry", "entries");
        return out.line(format!("nothing was written: --out DIR creates a new database with {entries}"));
    };
    let lost = match sum(|keyspace| keyspace.lost) {
        0 => String::new(),
        lost => format!("; {} could not be read a second time", output::count(lost)),
    };
    let keys = counted(sum(|k| k.restored), "key", "keys");
    let bytes = output::bytes(sum(|k| k.restored_bytes));
    out.line(format!("{} has {keys}, {bytes}, restored in {seconds:.1} s{lost}", to.display()))
}

fn print_file(file: &FileReport, out: &mut Output) -> Result<()> {
    let name = out.paint(Tone::Strong, &file.path.display().to_string());
    let keyspace = file.keyspace.map_or_else(|| "an unknown keyspace".to_owned(), |id| format!("keyspace {id}"));
    out.line(format!("{name}  value file {} of {keyspace}, {}", file.file, output::bytes(file.bytes)))?;
    out.line(format!(
        "  {}, the newest of commit {}: {}, {}, {}, {}, {}, {}",
        counted(file.records, "whole record", "whole records"),
        output::count(file.newest_seqno),
        counted(file.values, "value", "values"),
        counted(file.deletes, "delete", "deletes"),
        counted(file.stubs, "stub", "stubs"),
        counted(file.tags, "tag", "tags"),
        counted(file.range_deletes, "range delete", "range deletes"),
        counted(file.drop_keys, "drop-key", "drop-keys"),
    ))?;
    for damage in file.damage.iter().take(PRINTED_MAX) {
        let label = out.paint(Tone::Bad, "damage:");
        let bytes = if damage.bytes == 1 { "byte" } else { "bytes" };
        out.line(format!("  {label} {} {bytes} at offset {}: {}", damage.bytes, damage.offset, damage.problem))?;
    }
    if file.damaged_stretches > PRINTED_MAX as u64 {
        let (all, bytes) = (output::count(file.damaged_stretches), output::bytes(file.damaged_bytes));
        out.line(format!("  … {all} damaged stretches, {bytes} in total; --json lists them"))?;
    }
    Ok(())
}

fn print_keyspace(keyspace: &KeyspaceReport, out: &mut Output) -> Result<()> {
    let name = out.paint(Tone::Strong, &escape::escaped(keyspace.name.as_bytes()));
    out.line(format!(
        "keyspace {name}  {}; newest records: {}, {}, {}, {} out of these files, {}",
        counted(keyspace.keys, "key", "keys"),
        counted(keyspace.values, "value", "values"),
        counted(keyspace.deleted, "delete", "deletes"),
        counted(keyspace.range_deleted, "range delete", "range deletes"),
        counted(keyspace.moved, "move", "moves"),
        counted(keyspace.dropped, "dropped value", "dropped values"),
    ))
}

fn id_and_name(text: &str) -> std::result::Result<(u32, String), String> {
    let (id, name) = text.split_once('=').ok_or("write it as ID=NAME, such as 7=users")?;
    let id = id.parse().map_err(|_| format!("`{id}` is not the id of a keyspace: it must be a number"))?;
    if name.is_empty() || name.len() > open::KEYSPACE_NAME_MAX {
        return Err(format!("a name has 1 to {} bytes, this one has {}", open::KEYSPACE_NAME_MAX, name.len()));
    }
    Ok((id, name.to_owned()))
}
