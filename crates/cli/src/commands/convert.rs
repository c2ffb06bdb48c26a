//! `convert`: the same entries in a new database with another placement.
//!
//! ```text
//! SRC, read-only, one snapshot ─▶ DST.partial, keyspace by keyspace, in key order ─▶ flush, close, open again
//!                                  ─▶ compare every entry with SRC ─▶ rename to DST
//! ```

use std::{
    path::{Path, PathBuf},
    time::{Instant, SystemTime},
};

use bifold::{
    Access, DEFAULT_KEYSPACE, Db, Error, IfMissing, Keyspace, KeyspaceOptions, Options, Pair, Range, Snapshot, Value,
};
use bifold_lab::measure;
use clap::Args;
use serde::Serialize;

use crate::{
    failure::{Failure, Result},
    formats::escape::escaped,
    fresh::Fresh,
    global::Global,
    open,
    output::{self, Output},
    progress::Progress,
};

#[derive(Args, Debug)]
pub struct ConvertArgs {
    /// The directory of the database to copy.
    pub src: PathBuf,
    /// The directory of the new database; must not exist, or be empty.
    pub dst: PathBuf,
    /// The placement of the new database: auto, inline, wisckey, hashkv, novkv, diffkv, unikv or streams.
    #[arg(long, value_name = "NAME")]
    pub placement: String,
}

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
    let reading = Options { access: Access::ReadOnly, if_missing: IfMissing::Fail, memory_limit, ..open::of_anyone() };
    let src = Db::open_with(&args.src, reading.clone())?;
    let plans = plans(&src, args, global)?;
    let fresh = Fresh::outside(&args.src, &args.dst)?;
    let snapshot = src.snapshot();
    let of_default = plans.iter().find(|plan| plan.from.name() == DEFAULT_KEYSPACE).map(|plan| plan.options.clone());
    let making = Options { keyspace: of_default.unwrap_or_default(), ..options };
    let estimate = src.stats().keyspaces.iter().map(|keyspace| keyspace.entries_estimate).sum();
    let placement = making.keyspace.resolved().placement.name().to_owned();
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
    let seconds = begin.elapsed().as_secs_f64();
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
            let options = options(args, global, &from.options())?.keyspace.resolved();
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
        let pair = pair?;
        if let Some(bytes) = copy_large(snapshot, (plan, &to), &pair)? {
            copied.entries += 1;
            copied.bytes += bytes;
            progress.advance(1);
            continue;
        }
        let expires_at = pair.expires_at();
        let (key, value) = pair.into_parts()?;
        // Not `put`: what does not expire must not begin to, whatever the keyspace's default is.
        batch.put_until(&to, &key, &value, expires_at)?;
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

/// Copies the value of an entry piece by piece, if it has a file of its own and the copy takes that. Returns bytes of
/// key and value.
fn copy_large(snapshot: &Snapshot, (plan, to): (&Plan, &Keyspace), pair: &Pair) -> Result<Option<u64>> {
    if !pair.is_large() {
        return Ok(None);
    }
    let Some(value) = snapshot.get_reader(&plan.from, pair.key())? else { return Ok(None) };
    let bytes = pair.key().len() as u64 + value.len();
    match to.put_reader(pair.key(), value) {
        Err(Error::InvalidArgument { .. }) => Ok(None),
        other => Ok(other.map(|()| Some(bytes))?),
    }
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

/// Compares two keyspaces entry by entry, and returns the number of entries. Of those that have expired since they were
/// copied only the number counts: the copy no longer shows them.
fn compare_entries(name: &str, mut from: Range, mut to: Range, progress: &Progress) -> Result<u64> {
    let now = SystemTime::now();
    let mut entries = 0;
    loop {
        let (from, expired) = next_alive(&mut from, now)?;
        let (to, _) = next_alive(&mut to, now)?;
        entries += expired;
        let alike = |pair: &Option<(Pair, Value)>| {
            pair.as_ref().map(|(pair, value)| (Box::from(pair.key()), value.to_vec(), pair.expires_at()))
        };
        let (left, right): (Option<(Box<[u8]>, _, _)>, _) = (alike(&from), alike(&to));
        if left != right {
            let key = from.or(to).map(|(pair, _)| escaped(pair.key())).unwrap_or_default();
            return Err(Failure::trouble(format!("the copy of keyspace `{name}` differs at key `{key}`")));
        }
        if left.is_none() {
            return Ok(entries);
        }
        entries += 1;
        progress.advance(1);
    }
}

/// The next entry that has not expired at `now`, and how many others come before it.
fn next_alive(range: &mut Range, now: SystemTime) -> Result<(Option<(Pair, Value)>, u64)> {
    let mut expired = 0;
    for pair in range {
        let pair = pair?;
        if pair.expires_at().is_none_or(|at| at > now) {
            let value = pair.value()?;
            return Ok((Some((pair, value)), expired));
        }
        expired += 1;
    }
    Ok((None, expired))
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
