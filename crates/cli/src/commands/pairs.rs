//! `put`, `get`, `del`, `scan`: single keys and ranges of them.

use std::{fs, io::Read, path::Path};

use bifold::{Access, Keyspace, Pair};

use crate::{
    args::{DelArgs, GetArgs, Global, PutArgs, ScanArgs},
    failure::{Failure, Result},
    formats::{self, escape, jsonl, tsv},
    open,
    output::Output,
};

/// `bifold put`
pub fn put(args: &PutArgs, global: &Global) -> Result<()> {
    let key = unescape("key", &args.key)?;
    let value = match (&args.value, &args.value_file) {
        (Some(value), _) => unescape("value", value)?,
        (None, Some(path)) => read_value(path)?,
        (None, None) => return Err(Failure::trouble("no value: give VALUE or --value-file FILE")),
    };
    formats::check(&key, value.len()).map_err(Failure::trouble)?;
    let (db, keyspace) = open::or_create(&args.db, global)?;
    keyspace.put(&key, &value)?;
    Ok(db.close()?)
}

fn read_value(path: &Path) -> Result<Vec<u8>> {
    if path != Path::new("-") {
        return fs::read(path).map_err(|e| Failure::file("read", path, &e));
    }
    let mut value = Vec::new();
    // One byte more than the most tells a value that is too long without reading all of it.
    let most = bifold::MAX_VALUE_LEN as u64 + 1;
    let read = std::io::stdin().lock().take(most).read_to_end(&mut value);
    read.map_err(|e| Failure::trouble(format!("cannot read standard input: {e}")))?;
    Ok(value)
}

/// `bifold get`
pub fn get(args: &GetArgs, global: &Global, out: &mut Output) -> Result<()> {
    let key = key_of(&args.key)?;
    let (_db, keyspace) = open::existing_keyspace(&args.db, global, Access::ReadOnly)?;
    let Some(value) = keyspace.get(&key)? else {
        return Err(Failure::No(Some(format!("no key `{}` in {}", args.key, args.db.display()))));
    };
    if args.raw {
        return out.bytes(&value);
    }
    let mut line = Vec::new();
    if global.json {
        jsonl::write(&key, Some(&value), &mut line);
    } else {
        escape::escape(&value, &mut line);
        line.push(b'\n');
    }
    out.bytes(&line)
}

/// `bifold del`
pub fn del(args: &DelArgs, global: &Global) -> Result<()> {
    let keys = args.keys.iter().map(|key| key_of(key)).collect::<Result<Vec<_>>>()?;
    let (db, keyspace) = open::existing_keyspace(&args.db, global, Access::ReadWrite)?;
    let mut batch = db.batch();
    for key in &keys {
        batch.delete(&keyspace, key)?;
    }
    db.commit(batch)?;
    Ok(db.close()?)
}

/// `bifold scan`
pub fn scan(args: &ScanArgs, global: &Global, out: &mut Output) -> Result<()> {
    let bound = |text: &Option<String>| text.as_deref().map(|text| unescape("key", text)).transpose();
    let (prefix, from, to) = (bound(&args.prefix)?, bound(&args.from)?, bound(&args.to)?);
    if let (Some(from), Some(to)) = (&from, &to)
        && from > to
    {
        return Err(Failure::trouble("--from comes after --to: exchange them (--reverse turns the order of printing)"));
    }
    let (_db, keyspace) = open::existing_keyspace(&args.db, global, Access::ReadOnly)?;
    let range = range(&keyspace, prefix, from, to);
    let limit = args.limit.unwrap_or(usize::MAX);
    let pairs: Box<dyn Iterator<Item = bifold::Result<Pair>>> =
        if args.reverse { Box::new(range.rev()) } else { Box::new(range) };
    let mut line = Vec::new();
    for pair in pairs.take(limit) {
        let pair = pair?;
        // Without its value a pair costs no value read.
        let value = if args.keys_only { None } else { Some(pair.value()?) };
        line.clear();
        match (global.json, &value) {
            (true, value) => jsonl::write(pair.key(), value.as_deref(), &mut line),
            (false, Some(value)) => tsv::write(pair.key(), value, &mut line),
            (false, None) => {
                escape::escape(pair.key(), &mut line);
                line.push(b'\n');
            }
        }
        out.bytes(&line)?;
    }
    Ok(())
}

fn range(keyspace: &Keyspace, prefix: Option<Vec<u8>>, from: Option<Vec<u8>>, to: Option<Vec<u8>>) -> bifold::Range {
    match (prefix, from, to) {
        (Some(prefix), _, _) => keyspace.prefix(prefix),
        (None, Some(from), Some(to)) => keyspace.range(from..to),
        (None, Some(from), None) => keyspace.range(from..),
        (None, None, Some(to)) => keyspace.range(..to),
        (None, None, None) => keyspace.iter(),
    }
}

fn unescape(what: &str, text: &str) -> Result<Vec<u8>> {
    escape::unescape(text).map_err(|why| Failure::trouble(format!("bad {what} `{text}`: {why}")))
}

fn key_of(text: &str) -> Result<Vec<u8>> {
    let key = unescape("key", text)?;
    formats::check(&key, 0).map_err(Failure::trouble)?;
    Ok(key)
}
