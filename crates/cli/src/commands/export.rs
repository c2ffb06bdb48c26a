//! `export`: all entries of a keyspace in key order, in a format that `import` reads back exactly.

use bifold::Access;

use crate::{
    args::{ExportArgs, Global},
    failure::{Failure, Result},
    formats::{Format, escape, jsonl, tsv},
    open,
    output::Output,
    progress::Progress,
};

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
    let mut line = Vec::new();
    for pair in keyspace.iter() {
        let pair = pair?;
        let value = pair.value()?;
        line.clear();
        match format {
            Format::Jsonl => jsonl::write(pair.key(), Some(&value), pair.expires_at(), &mut line),
            Format::Tsv | Format::Dir if pair.expires_at().is_some() => {
                return Err(Failure::trouble(format!(
                    "key `{}` expires, which lines of format tsv cannot say: use --format jsonl",
                    escape::escaped(pair.key())
                )));
            }
            Format::Tsv | Format::Dir => tsv::write(pair.key(), &value, &mut line),
        }
        out.bytes(&line)?;
        progress.advance(1);
    }
    out.flush()
}
