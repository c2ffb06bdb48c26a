//! `export`: all entries of a keyspace in key order, in a format that `import` reads back exactly.

use std::{
    io::{self, Write},
    path::{Path, PathBuf},
};

use bifold::{Access, DamagedBlock, Error, Keyspace, Pair, Value};
use clap::Args;
use serde::Serialize;

use crate::{
    failure::{Failure, Result},
    formats::{Expires, Format, base64, escape, jsonl, tsv},
    global::Global,
    open,
    output::{Output, counted},
    progress::Progress,
};

#[derive(Args, Debug)]
pub struct ExportArgs {
    /// The database's directory.
    pub db: PathBuf,
    /// The format of the output: tsv or jsonl.
    #[arg(long, value_enum, default_value = "tsv")]
    pub format: Format,
    /// Leave out what is damaged and report it on standard error; the exit code is then 1.
    #[arg(long)]
    pub skip_damaged: bool,
}

/// `bifold export`
pub fn run(args: &ExportArgs, global: &Global, out: &mut Output) -> Result<()> {
    // Users know --json from other commands; here it means JSON Lines.
    let format = if global.json { Format::Jsonl } else { args.format };
    if format == Format::Dir {
        return Err(Failure::trouble("export writes to standard output: use --format tsv or jsonl"));
    }
    let (db, keyspace) = open::existing_keyspace(&args.db, global, Access::ReadOnly)?;
    let estimate = db.stats().keyspaces.iter().find(|k| k.name == global.keyspace).map_or(0, |k| k.entries_estimate);
    let progress = Progress::count("exporting", estimate);
    let has_ttl = keyspace.options().ttl.is_some();
    let mut lines = EntryLines { format, has_ttl, line: Vec::new(), progress };
    if args.skip_damaged {
        return around_damage(&keyspace, global, &mut lines, out);
    }
    for pair in keyspace.iter() {
        let pair = pair.map_err(with_hint)?;
        lines.write(&pair, &pair.value().map_err(with_hint)?, out)?;
    }
    out.flush()
}

/// The lines of the output.
struct EntryLines {
    format: Format,
    /// Whether entries of the keyspace expire unless they are told not to.
    has_ttl: bool,
    line: Vec<u8>,
    progress: Progress,
}

impl EntryLines {
    fn expires(&self, pair: &Pair) -> Expires {
        match Expires::at(pair.expires_at()) {
            Expires::Unsaid if self.has_ttl => Expires::Never,
            known => known,
        }
    }

    fn write(&mut self, pair: &Pair, value: &Value, out: &mut Output) -> Result<()> {
        self.line.clear();
        match self.format {
            Format::Jsonl => jsonl::write(pair.key(), Some(value), self.expires(pair), &mut self.line),
            Format::Tsv | Format::Dir if pair.expires_at().is_some() => {
                return Err(Failure::trouble(format!(
                    "key `{}` expires, which lines of format tsv cannot say: use --format jsonl",
                    escape::escaped(pair.key())
                )));
            }
            Format::Tsv | Format::Dir => tsv::write(pair.key(), value, &mut self.line),
        }
        out.bytes(&self.line)?;
        self.progress.advance(1);
        Ok(())
    }
}

/// The error of an export that does not leave out anything.
fn with_hint(error: Error) -> Failure {
    match error.is_unreadable() {
        true => Failure::trouble(format!("{error}; --skip-damaged leaves out what is damaged and exports the rest")),
        false => error.into(),
    }
}

/// Exports what can be read, and reports the rest.
fn around_damage(keyspace: &Keyspace, global: &Global, lines: &mut EntryLines, out: &mut Output) -> Result<()> {
    let mut left_out = (0, 0);
    let written = write_undamaged(keyspace, global, lines, &mut left_out, out).and_then(|()| out.flush());
    let (blocks, values) = left_out;
    if (blocks, values) == (0, 0) {
        return written;
    }
    let blocks = counted(blocks, "damaged block", "damaged blocks");
    let values = counted(values, "damaged value", "damaged values");
    let why = format!("the export is not complete: {blocks} of tables and {values} were left out");
    Failure::No(Some(why)).after(written)
}

/// Writes what can be read, and counts the blocks and values that cannot.
fn write_undamaged(
    keyspace: &Keyspace,
    global: &Global,
    lines: &mut EntryLines,
    (blocks, values): &mut (u64, u64),
    out: &mut Output,
) -> Result<()> {
    let mut entries = keyspace.iter().undamaged();
    loop {
        let next = entries.next();
        while let Some(left_out) = entries.left_out() {
            *blocks += 1;
            report(&Missing::of_block(&left_out), global);
        }
        let Some(pair) = next.transpose()? else { return Ok(()) };
        // An I/O error may be that of a neighbour: the second call reads this value alone.
        match pair.value().or_else(|_| pair.value()) {
            Ok(value) => lines.write(&pair, &value, out)?,
            Err(error) if error.is_unreadable() => {
                *values += 1;
                report(&Missing::of_value(pair.key(), &error), global);
            }
            Err(error) => return Err(error.into()),
        }
    }
}

/// What was left out, as `--json` reports it.
#[derive(Serialize)]
struct Missing<'a> {
    /// "block" or "value".
    left_out: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    file: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    offset: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    bytes: Option<u64>,
    /// All keys from here to `last`, both included, were left out.
    first: Bytes<'a>,
    last: Bytes<'a>,
    problem: String,
}

/// A key.
#[derive(Clone, Copy)]
struct Bytes<'a>(&'a [u8]);

impl Serialize for Bytes<'_> {
    /// As text, or as an object with `base64` if it is not UTF-8.
    fn serialize<S: serde::Serializer>(&self, to: S) -> std::result::Result<S::Ok, S::Error> {
        match std::str::from_utf8(self.0) {
            Ok(text) => to.serialize_str(text),
            Err(_) => to.collect_map([("base64", base64::encode(self.0))]),
        }
    }
}

impl<'a> Missing<'a> {
    fn of_block(block: &'a DamagedBlock) -> Self {
        Self {
            left_out: "block",
            file: Some(shown(&block.file)),
            offset: Some(block.offset),
            bytes: Some(block.bytes),
            first: Bytes(&block.first),
            last: Bytes(&block.last),
            problem: block.error.to_string(),
        }
    }

    fn of_value(key: &'a [u8], error: &Error) -> Self {
        let (file, offset) = match error {
            Error::Corruption { path, detail } => (Some(shown(path)), Some(detail.offset)),
            Error::Io { path, .. } => (Some(shown(path)), None),
            _ => (None, None),
        };
        let (left_out, problem) = ("value", error.to_string());
        Self { left_out, file, offset, bytes: None, first: Bytes(key), last: Bytes(key), problem }
    }
}

fn shown(path: &Path) -> String {
    path.display().to_string()
}

/// Standard output has the entries, so reports go to standard error.
fn report(missing: &Missing<'_>, global: &Global) {
    let mut err = io::stderr().lock();
    // Standard error may be closed; the exit code still says that something is missing.
    let _ = match (global.json, missing.bytes) {
        (true, _) => serde_json::to_writer(&mut err, missing).map_err(io::Error::from).and_then(|()| writeln!(err)),
        (false, Some(bytes)) => {
            let keys = (escape::escaped(missing.first.0), escape::escaped(missing.last.0));
            let (problem, offset) = (&missing.problem, missing.offset.unwrap_or_default());
            let block = format!("a block of {bytes} bytes at offset {offset}");
            writeln!(err, "bifold: left out all keys from `{}` to `{}`, for {block}: {problem}", keys.0, keys.1)
        }
        (false, None) => {
            let key = escape::escaped(missing.first.0);
            writeln!(err, "bifold: left out key `{key}`: {}", missing.problem)
        }
    };
}
