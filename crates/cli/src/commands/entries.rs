//! `put`, `get`, `del`, `scan`: single keys and ranges.
//!
//! One rule for keys and values in arguments, [`bytes_of`]: they are taken as typed unless --escape is given.

use std::{
    ffi::{OsStr, OsString},
    fs::File,
    io::{self, BufRead, IsTerminal, Read, Seek, Write},
    os::unix::ffi::OsStrExt,
    path::{Path, PathBuf},
};

use bifold::{Access, Error, Keyspace, Pair, ValueReader};
use clap::Args;

use crate::{
    failure::{Failure, Result},
    formats::{self, Expires, escape, jsonl, tsv},
    global::Global,
    open::{self, Writes},
    output::Output,
};

#[derive(Args, Debug)]
pub struct PutArgs {
    /// The database's directory.
    pub db: PathBuf,
    /// The key.
    pub key: OsString,
    /// The value; - for standard input, @FILE for the content of a file.
    #[arg(required_unless_present = "value_file", conflicts_with = "value_file", allow_negative_numbers = true)]
    pub value: Option<OsString>,
    /// Take the value unchanged from a file; - for standard input.
    #[arg(long, value_name = "FILE")]
    pub value_file: Option<PathBuf>,
    /// Let the entry expire after this time, such as 90s, 15min, 24h or 30d.
    #[arg(long, value_name = "TIME", value_parser = bifold::options::parse_duration)]
    pub ttl: Option<std::time::Duration>,
    /// Combine VALUE with the value that is there, by the keyspace's merge operator.
    #[arg(long, conflicts_with = "ttl")]
    pub merge: bool,
    /// Take VALUE as typed, even - and @FILE.
    #[arg(long, conflicts_with_all = ["value_file", "escape"])]
    pub literal: bool,
    #[command(flatten)]
    pub typed: Typed,
}

#[derive(Args, Debug)]
pub struct GetArgs {
    /// The database's directory.
    pub db: PathBuf,
    /// The key.
    pub key: OsString,
    /// Print the bytes of the value unchanged, even to a terminal.
    #[arg(long, conflicts_with = "json")]
    pub raw: bool,
    #[command(flatten)]
    pub typed: Typed,
}

#[derive(Args, Debug)]
pub struct DelArgs {
    /// The database's directory.
    pub db: PathBuf,
    /// The keys.
    #[arg(required = true, value_name = "KEY")]
    pub keys: Vec<OsString>,
    #[command(flatten)]
    pub typed: Typed,
}

#[derive(Args, Debug)]
pub struct ScanArgs {
    /// The database's directory.
    pub db: PathBuf,
    /// Only keys with this prefix.
    #[arg(long, value_name = "KEY", conflicts_with_all = ["from", "to"])]
    pub prefix: Option<OsString>,
    /// From this key on.
    #[arg(long, value_name = "KEY")]
    pub from: Option<OsString>,
    /// Up to but not including this key.
    #[arg(long, value_name = "KEY")]
    pub to: Option<OsString>,
    /// In descending key order.
    #[arg(long)]
    pub reverse: bool,
    /// At most this many entries.
    #[arg(long, value_name = "N")]
    pub limit: Option<usize>,
    /// Print keys without values.
    #[arg(long)]
    pub keys_only: bool,
    #[command(flatten)]
    pub typed: Typed,
}

/// How arguments give keys and values: the same rule for all commands.
#[derive(Args, Debug, Clone, Copy)]
pub struct Typed {
    /// Interpret the escapes \\ \t \n \r \xHH in keys and values.
    #[arg(long)]
    pub escape: bool,
}

/// `bifold put`
pub fn put(args: &PutArgs, global: &Global) -> Result<()> {
    let key = bytes_of("key", &args.key, args.typed)?;
    let value = match GivenValue::of(args)? {
        GivenValue::Whole(value) => value,
        GivenValue::Long(mut file) => {
            formats::check(&key, file.len).map_err(Failure::trouble)?;
            let (db, keyspace) = open::or_create(&args.db, global, Writes::Values)?;
            file.put(&keyspace, &key)?;
            return Ok(db.close()?);
        }
    };
    formats::check(&key, value.len()).map_err(Failure::trouble)?;
    let writes = match args.ttl {
        _ if args.merge => Writes::Operands,
        Some(_) => Writes::Expiring("--ttl"),
        None => Writes::Values,
    };
    let (db, keyspace) = open::or_create(&args.db, global, writes)?;
    match args.ttl {
        _ if args.merge => keyspace.merge(&key, &value)?,
        Some(ttl) => keyspace.put_with_ttl(&key, &value, ttl)?,
        None => keyspace.put(&key, &value)?,
    }
    Ok(db.close()?)
}

/// The value of `put`.
enum GivenValue<'a> {
    /// It is in memory.
    Whole(Vec<u8>),
    Long(LongFile<'a>),
}

/// A file that is put piece by piece.
struct LongFile<'a> {
    path: &'a Path,
    file: File,
    len: usize,
    failed: Option<io::Error>,
}

/// Longer files are put piece by piece.
const PIECEWISE_BYTES: u64 = 1 << 20;

impl<'a> GivenValue<'a> {
    fn of(args: &'a PutArgs) -> Result<Self> {
        match (&args.value, &args.value_file) {
            (Some(value), _) => Self::typed(value, args),
            (None, Some(path)) => Self::read(path, args),
            (None, None) => Err(Failure::trouble("no value: give VALUE or --value-file FILE")),
        }
    }

    fn typed(value: &'a OsStr, args: &PutArgs) -> Result<Self> {
        match value.as_bytes() {
            bytes if args.literal => Ok(Self::Whole(bytes.to_owned())),
            b"-" => Self::read(Path::new("-"), args),
            b"@" => Err(Failure::trouble("@ alone names no file: write @FILE, or --literal @ for the character")),
            [b'@', file @ ..] => {
                Self::read(Path::new(OsStr::from_bytes(file)), args).map_err(|failure| match failure {
                    Failure::Trouble(message) => Failure::Trouble(format!("{message} (--literal takes @… as typed)")),
                    other => other,
                })
            }
            _ => bytes_of("value", value, args.typed).map(Self::Whole),
        }
    }

    /// The content of a file or of standard input. How long a pipe is, nobody knows.
    fn read(path: &'a Path, args: &PutArgs) -> Result<Self> {
        if path == Path::new("-") {
            let failed = |error: io::Error| Failure::trouble(format!("cannot read standard input: {error}"));
            return read_value(io::stdin().lock()).map(Self::Whole).map_err(failed);
        }
        let failed = |error: io::Error| Failure::file("read", path, &error);
        // Opened only once: a FIFO gives its data to the first reader.
        let file = File::open(path).map_err(failed)?;
        let data = file.metadata().map_err(failed)?;
        if data.is_file() && data.len() > PIECEWISE_BYTES && args.ttl.is_none() && !args.merge {
            let len = usize::try_from(data.len()).unwrap_or(usize::MAX);
            return Ok(Self::Long(LongFile { path, file, len, failed: None }));
        }
        read_value(file).map(Self::Whole).map_err(failed)
    }
}

impl LongFile<'_> {
    fn put(&mut self, keyspace: &Keyspace, key: &[u8]) -> Result<()> {
        let put = keyspace.put_reader(key, &mut *self);
        match (put, self.failed.take()) {
            (Err(_), Some(error)) => Err(Failure::file("read", self.path, &error)),
            // This keyspace takes no values piece by piece.
            (Err(Error::InvalidArgument { what, .. }), None) if what == "put_reader" => {
                let value = self.file.rewind().and_then(|()| read_value(&self.file));
                Ok(keyspace.put(key, value.map_err(|error| Failure::file("read", self.path, &error))?)?)
            }
            (put, _) => Ok(put?),
        }
    }
}

impl Read for LongFile<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.file.read(buffer).inspect_err(|error| {
            if error.kind() != io::ErrorKind::Interrupted {
                self.failed = Some(io::Error::new(error.kind(), error.to_string()));
            }
        })
    }
}

/// Reads a value to its end. One that exceeds memory is an error like any other.
fn read_value(from: impl Read) -> io::Result<Vec<u8>> {
    // One byte above the limit shows that a value is too long without reading all of it.
    let mut from = from.take(bifold::MAX_VALUE_LEN as u64 + 1);
    let (mut value, mut piece) = (Vec::new(), vec![0; 64 << 10]);
    loop {
        match from.read(&mut piece) {
            Ok(0) => return Ok(value),
            Ok(bytes) => {
                value.try_reserve(bytes)?;
                value.extend_from_slice(&piece[..bytes]);
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
}

/// `bifold get`
pub fn get(args: &GetArgs, global: &Global, out: &mut Output) -> Result<()> {
    let key = key_of(&args.key, args.typed)?;
    let (_db, keyspace) = open::existing_keyspace(&args.db, global, Access::ReadOnly)?;
    let no_key = || Failure::No(Some(format!("no key `{}` in {}", escape::escaped(&key), args.db.display())));
    let mut line = Vec::new();
    if global.json {
        let pair = keyspace.range(&key[..]..=&key[..]).next().transpose()?.ok_or_else(no_key)?;
        jsonl::write(&key, Some(&pair.value()?), Expires::at(pair.expires_at()), &mut line);
        return out.bytes(&line);
    }
    if args.raw || !(args.typed.escape || io::stdout().is_terminal()) {
        return copy(&mut keyspace.get_reader(&key)?.ok_or_else(no_key)?, out);
    }
    let value = keyspace.get(&key)?.ok_or_else(no_key)?;
    if args.typed.escape {
        escape::escape(&value, &mut line);
        line.push(b'\n');
        return out.bytes(&line);
    }
    if !for_terminal(&value, &mut line) {
        let note =
            "this value is not printable text, so it is shown with escapes; a pipe, a file or --raw gets its bytes";
        // If the note cannot be shown, the value still can.
        let _ = writeln!(io::stderr(), "bifold: {note}");
    }
    out.bytes(&line)
}

/// Writes a value piece by piece.
fn copy(value: &mut ValueReader, out: &mut Output) -> Result<()> {
    loop {
        let piece = value.fill_buf().map_err(|error| Failure::trouble(error.to_string()))?;
        if piece.is_empty() {
            return Ok(());
        }
        out.bytes(piece)?;
        let bytes = piece.len();
        value.consume(bytes);
    }
}

/// Appends a value as a terminal may show it, on lines of its own. Returns whether it is printable unchanged.
fn for_terminal(value: &[u8], line: &mut Vec<u8>) -> bool {
    let is_shown = |c: char| !c.is_control() || c == '\n' || c == '\t';
    let is_text = std::str::from_utf8(value).is_ok_and(|text| text.chars().all(is_shown));
    if is_text {
        line.extend_from_slice(value);
    } else {
        escape::escape_for_terminal(value, line);
    }
    if !line.ends_with(b"\n") {
        line.push(b'\n');
    }
    is_text
}

/// `bifold del`
pub fn del(args: &DelArgs, global: &Global) -> Result<()> {
    let keys = args.keys.iter().map(|key| key_of(key, args.typed)).collect::<Result<Vec<_>>>()?;
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
    let bound = |text: &Option<OsString>| text.as_deref().map(|text| bytes_of("key", text, args.typed)).transpose();
    let (prefix, from, to) = (bound(&args.prefix)?, bound(&args.from)?, bound(&args.to)?);
    if let (Some(from), Some(to)) = (&from, &to)
        && from > to
    {
        return Err(Failure::trouble("--from comes after --to: swap them (for descending order use --reverse)"));
    }
    let (_db, keyspace) = open::existing_keyspace(&args.db, global, Access::ReadOnly)?;
    let range = range(&keyspace, prefix, from, to).limit(args.limit.unwrap_or(usize::MAX));
    let pairs: Box<dyn Iterator<Item = bifold::Result<Pair>>> =
        if args.reverse { Box::new(range.rev()) } else { Box::new(range) };
    let mut line = Vec::new();
    for pair in pairs {
        let pair = pair?;
        // Without its value an entry costs no value read.
        let value = if args.keys_only { None } else { Some(pair.value()?) };
        line.clear();
        match (global.json, &value) {
            (true, value) => jsonl::write(pair.key(), value.as_deref(), Expires::at(pair.expires_at()), &mut line),
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

/// The bytes of an argument.
fn bytes_of(what: &str, typed: &OsStr, how: Typed) -> Result<Vec<u8>> {
    if !how.escape {
        return Ok(typed.as_bytes().to_owned());
    }
    let bad = |why: &str| Failure::trouble(format!("bad {what} `{}`: {why}", typed.display()));
    let text = typed.to_str().ok_or_else(|| bad("it is not UTF-8; with --escape, write such bytes as \\xHH"))?;
    escape::unescape(text).map_err(|why| bad(&why))
}

fn key_of(typed: &OsStr, how: Typed) -> Result<Vec<u8>> {
    let key = bytes_of("key", typed, how)?;
    formats::check(&key, 0).map_err(Failure::trouble)?;
    Ok(key)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_terminal_gets_text_unchanged_and_anything_else_as_escapes() {
        for (value, shown, is_text) in [
            (&b"plain \xc3\xbc"[..], &b"plain \xc3\xbc\n"[..], true),
            (b"", b"\n", true),
            (b"two\nlines\n", b"two\nlines\n", true),
            (br"C:\temp\new", b"C:\\temp\\new\n", true),
            (b"\x1b[2J", b"\\x1b[2J\n", false),
            (b"\xc2\x9b2J", b"\\xc2\\x9b2J\n", false),
            (b"half \xc3", b"half \\xc3\n", false),
            (b"back\rwards", b"back\\rwards\n", false),
        ] {
            let mut line = Vec::new();
            assert_eq!(for_terminal(value, &mut line), is_text, "{}", value.escape_ascii());
            assert_eq!(line, shown, "{}", line.escape_ascii());
        }
    }
}
