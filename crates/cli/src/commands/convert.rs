//! `convert`: the same entries in a new database with another placement.
//!
//! ```text
//! SRC, read-only, one snapshot ─▶ DST.partial, keyspace by keyspace, in key order ─▶ flush, close, open again
//!                                  ─▶ compare every entry with SRC ─▶ rename to DST
//! ```

use std::{path::Path, time::Instant};

use bifold::{Access, DEFAULT_KEYSPACE, Db, IfMissing, Keyspace, KeyspaceOptions, Options, Pair, Range, Snapshot};
use bifold_lab::measure;
use serde::Serialize;

use crate::{
    args::{ConvertArgs, Global},
    failure::{Failure, Result},
    formats::escape::escaped,
    fresh::Fresh,
    open,
    output::{self, Output},
    progress::Progress,
};

/// Bytes of keys and values per commit.
const COMMIT_BYTES: usize = 1 << 20;

/// The result of a conversion.
#[derive(Serialize)]
struct Converted {
    placement: String,
    keyspaces: Vec<Copied>,
    entries: u64,
    /// Bytes of keys and values.
    bytes: u64,
    seconds: f64,
    /// Size of SRC's directory.
    bytes_before: u64,
    /// Size of DST's directory.
    bytes_after: u64,
}

/// The result for one keyspace.
#[derive(Serialize)]
struct Copied {
    name: String,
    entries: u64,
    bytes: u64,
}

/// A keyspace and its options in the copy.
struct Plan {
    from: Keyspace,
    options: KeyspaceOptions,
}

/// `bifold convert`
pub fn run(args: &ConvertArgs, global: &Global, out: &mut Output) -> Result<()> {
    let begin = Instant::now();
    let options = options(args, global, &KeyspaceOptions::default())?;
    let memory_limit = options.memory_limit;
    let reading = Options { access: Access::ReadOnly, if_missing: IfMissing::Fail, memory_limit, ..Options::default() };
    let src = Db::open_with(&args.src, reading.clone())?;
    let plans = plans(&src, args, global)?;
    let fresh = Fresh::at(&args.dst)?;
    let snapshot = src.snapshot();
    let of_default = plans.iter().find(|plan| plan.from.name() == DEFAULT_KEYSPACE).map(|plan| plan.options.clone());
    let making = Options { keyspace: of_default.unwrap_or_default(), ..options };
    let estimate = src.stats().keyspaces.iter().map(|keyspace| keyspace.entries_estimate).sum();
    let keyspaces = fresh.fill(making, |db| {
        let progress = Progress::count("converting", estimate);
        plans.iter().map(|plan| copy(&snapshot, plan, db, &progress)).collect::<Result<Vec<_>>>()
    })?;
    let (entries, bytes) = keyspaces.iter().fold((0, 0), |sum, k| (sum.0 + k.entries, sum.1 + k.bytes));
    // Reads the files back: entries that were in memory during the copy prove nothing.
    Db::open_with(fresh.partial(), reading)
        .map_err(Failure::from)
        .and_then(|dst| compare(&snapshot, &plans, &keyspaces, &dst, &Progress::count("comparing", entries)))
        .map_err(|failure| fresh.unfinished(failure))?;
    fresh.publish()?;
    let (seconds, placement) = (begin.elapsed().as_secs_f64(), args.placement.clone());
    let (bytes_before, bytes_after) = (size(&args.src)?, size(&args.dst)?);
    let done = Converted { placement, keyspaces, entries, bytes, seconds, bytes_before, bytes_after };
    if global.json {
        return out.json(&done);
    }
    out.line(format!(
        "{} has all of {}: {}, {}, each compared; placement {}; {} on disk, {} before; {seconds:.1} s",
        args.dst.display(),
        args.src.display(),
        output::counted(entries, "entry", "entries"),
        output::bytes(bytes),
        done.placement,
        output::bytes(bytes_after),
        output::bytes(bytes_before),
    ))
}

/// The options of a new database, for keyspaces that had the options `had`.
fn options(args: &ConvertArgs, global: &Global, had: &KeyspaceOptions) -> Result<Options> {
    // Keyspace options in --options are ignored: they come from SRC.
    let mut options = Options { keyspace: had.clone(), ..open::options(global)? };
    options.set(&format!("keyspace.preset={}", args.placement))?;
    for set in &global.set {
        options.set(set)?;
    }
    options.set(&format!("keyspace.placement={}", args.placement))?;
    Ok(options)
}

fn plans(src: &Db, args: &ConvertArgs, global: &Global) -> Result<Vec<Plan>> {
    let mut plans = Vec::new();
    for name in src.keyspace_names() {
        if let Some(from) = src.existing_keyspace(&name)? {
            let options = options(args, global, &from.options())?.keyspace;
            plans.push(Plan { from, options });
        }
    }
    Ok(plans)
}

/// Copies a keyspace in key order.
fn copy(snapshot: &Snapshot, plan: &Plan, db: &Db, progress: &Progress) -> Result<Copied> {
    let to = db.keyspace(plan.from.name(), plan.options.clone())?;
    let mut copied = Copied { name: plan.from.name().to_owned(), entries: 0, bytes: 0 };
    let mut batch = db.batch();
    for pair in snapshot.iter(&plan.from) {
        let (key, value) = pair?.into_parts()?;
        batch.put(&to, &key, &value)?;
        copied.entries += 1;
        copied.bytes += (key.len() + value.len()) as u64;
        progress.advance(1);
        if batch.bytes() >= COMMIT_BYTES {
            db.commit(std::mem::take(&mut batch))?;
        }
    }
    if !batch.is_empty() {
        db.commit(batch)?;
    }
    Ok(copied)
}

/// Compares all keyspaces.
fn compare(snapshot: &Snapshot, plans: &[Plan], copied: &[Copied], dst: &Db, progress: &Progress) -> Result<()> {
    let names: Vec<&str> = plans.iter().map(|plan| plan.from.name()).collect();
    if dst.keyspace_names() != names {
        let found = dst.keyspace_names().join(", ");
        return Err(Failure::trouble(format!("the copy has keyspaces {found} instead of {}", names.join(", "))));
    }
    for (plan, copied) in plans.iter().zip(copied) {
        let name = plan.from.name();
        let Some(to) = dst.existing_keyspace(name)? else { continue };
        let entries = compare_entries(name, snapshot.iter(&plan.from), to.iter(), progress)?;
        if entries != copied.entries || to.options() != plan.options {
            let why =
                format!("{entries} entries were found of {}, or its options differ from those given", copied.entries);
            return Err(Failure::trouble(format!("the copy of keyspace `{name}` is wrong: {why}")));
        }
    }
    Ok(())
}

/// Compares two keyspaces entry by entry, and returns the number of entries.
fn compare_entries(name: &str, mut from: Range, mut to: Range, progress: &Progress) -> Result<u64> {
    for entries in 0.. {
        let parts = |pair: Option<bifold::Result<Pair>>| pair.map(|pair| pair?.into_parts()).transpose();
        let (from, to) = (parts(from.next())?, parts(to.next())?);
        if from.is_none() && to.is_none() {
            return Ok(entries);
        }
        if from.as_ref().map(|(key, value)| (key, &value[..])) != to.as_ref().map(|(key, value)| (key, &value[..])) {
            let key = from.or(to).map(|(key, _)| escaped(&key)).unwrap_or_default();
            return Err(Failure::trouble(format!("the copy of keyspace `{name}` differs at key `{key}`")));
        }
        progress.advance(1);
    }
    Ok(u64::MAX)
}

fn size(dir: &Path) -> Result<u64> {
    measure::dir_bytes(dir).map_err(|e| Failure::file("read directory", dir, &e))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_that_differ_are_named_and_all_others_counted() {
        let dir = std::env::temp_dir().join(format!("bifold-convert-{}", std::process::id()));
        let db = Db::open(&dir).unwrap();
        let fill = |name: &str, entries: &[(&str, &str)]| {
            let keyspace = db.keyspace(name, KeyspaceOptions::default()).unwrap();
            entries.iter().for_each(|(key, value)| keyspace.put(key, value).unwrap());
            keyspace
        };
        let from = fill("from", &[("a", "1"), ("b", "2")]);
        let progress = Progress::count("comparing", 2);
        assert!(matches!(compare_entries("x", from.iter(), from.iter(), &progress), Ok(2)));
        for (name, entries, key) in [
            ("other", &[("a", "1"), ("b", "3")][..], "`b`"),
            ("less", &[("a", "1")], "`b`"),
            ("more", &[("a", "1"), ("b", "2"), ("c", "3")], "`c`"),
            ("none", &[], "`a`"),
        ] {
            let to = fill(name, entries);
            let failure = compare_entries("x", from.iter(), to.iter(), &progress).unwrap_err();
            assert!(matches!(&failure, Failure::Trouble(why) if why.contains(key)), "{name}: {failure:?}");
        }
        drop(from);
        db.close().unwrap();
        std::fs::remove_dir_all(dir).unwrap();
    }
}
