//! `import`: checks everything first, then writes everything.
//!
//! The first pass reads all of the input and reports the first thing wrong with it; only a sound input opens or makes
//! the database. The second pass writes and checks the input again, because it may have changed between the passes; a
//! bad line then ends the import, and the commits before it stay. As long as keys ascend, it ingests them; from the
//! first key on that does not, it writes commits of about a megabyte.
//!
//! An input that can be read only once (standard input, a pipe, a device) is saved while it is checked, in a file
//! without a name: nothing is left of it, however the program ends.

use std::{
    fs::{self, File, OpenOptions},
    io::{self, BufWriter, Read, Seek, Write},
    os::unix::fs::OpenOptionsExt,
    path::{Path, PathBuf},
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};

use bifold::{Batch, Db, Ingest, Keyspace};
use clap::Args;
use serde::Serialize;

use crate::{
    failure::{Failure, Result},
    formats::{Entry, Expires, Format, lines, tree},
    global::Global,
    open,
    output::{self, Output},
    progress::Progress,
};

#[derive(Args, Debug)]
pub struct ImportArgs {
    /// The database's directory.
    pub db: PathBuf,
    /// The file or directory; - for standard input.
    pub file: PathBuf,
    /// The format of the input [default: by the file's name].
    #[arg(long, value_enum)]
    pub format: Option<Format>,
    /// Write everything through the log, even entries in key order.
    #[arg(long)]
    pub no_ingest: bool,
}

/// Bytes of keys and values per commit: enough to make the cost of a commit negligible, and little compared with a
/// memtable.
const COMMIT_BYTES: usize = 1 << 20;

/// Bytes of keys and values per ingest: an interrupted import keeps those before.
const INGEST_BYTES: u64 = 256 << 20;

/// The result of an import.
#[derive(Debug, Default, Serialize)]
pub struct Imported {
    /// Entries written.
    pub entries: u64,
    /// Bytes of their keys and values.
    pub bytes: u64,
    /// Time of the second pass.
    pub seconds: f64,
    /// Entries per second.
    pub entries_per_sec: f64,
    /// Entries that came in key order and were written without the log.
    pub ingested: u64,
    /// Symbolic links and other special files that were left out.
    pub skipped: u64,
}

/// `bifold import`
pub fn run(args: &ImportArgs, global: &Global, out: &mut Output) -> Result<()> {
    let from_stdin = args.file == Path::new("-");
    let format = match args.format {
        Some(format) => format,
        None => guess(&args.file)?,
    };
    if from_stdin && format == Format::Dir {
        return Err(Failure::trouble(
            "standard input cannot be a directory: name the directory, or use --format tsv or jsonl",
        ));
    }
    let imported = import(args, format, global)?;
    if global.json {
        return out.json(&imported);
    }
    let skipped = if imported.skipped == 0 {
        String::new()
    } else {
        format!(
            "; left out {} (symbolic links and the like)",
            output::counted(imported.skipped, "special file", "special files")
        )
    };
    out.line(format!(
        "imported {}, {}, into {} in {:.1} s ({} entries/s){skipped}",
        output::counted(imported.entries, "entry", "entries"),
        output::bytes(imported.bytes),
        args.db.display(),
        imported.seconds,
        output::count(imported.entries_per_sec as u64),
    ))
}

/// The format that a file's name suggests.
pub fn guess(file: &Path) -> Result<Format> {
    if file.is_dir() {
        return Ok(Format::Dir);
    }
    match file.extension().and_then(|extension| extension.to_str()) {
        Some("tsv") => Ok(Format::Tsv),
        Some("jsonl" | "ndjson") => Ok(Format::Jsonl),
        _ => Err(Failure::trouble(format!(
            "the name of {} does not show its format: add --format tsv, jsonl or dir",
            file.display()
        ))),
    }
}

fn import(args: &ImportArgs, format: Format, global: &Global) -> Result<Imported> {
    // Finds bad options before it makes anything.
    open::options(global)?;
    let checked = check(&args.db, &args.file, format)?;
    let expiring = checked.first_expiring();
    let writes = expiring.as_deref().map_or(open::Writes::Values, open::Writes::Expiring);
    let (db, keyspace) = open::or_create(&args.db, global, writes)?;
    let imported = write((&db, &keyspace), &checked, !args.no_ingest)?;
    db.close()?;
    Ok(imported)
}

/// A checked input.
pub enum Checked {
    /// Lines.
    Lines(Lines),
    /// Files.
    Tree(tree::Tree),
}

/// Lines that can be read again: a file, or the saved copy of a pipe.
pub struct Lines {
    /// Opened once: the name may later belong to another file.
    file: File,
    /// The name for messages.
    name: PathBuf,
    format: Format,
    /// Total bytes.
    bytes: u64,
    /// The number of the first line whose entry expires.
    expiring: Option<u64>,
}

impl Checked {
    /// `FILE:LINE` of the first entry that expires.
    fn first_expiring(&self) -> Option<String> {
        match self {
            Self::Lines(lines) => lines.expiring.map(|line| format!("{}:{line}", lines.name.display())),
            Self::Tree(_) => None,
        }
    }
}

/// Looks for the first line whose entry expires. Each line has one entry.
#[derive(Default)]
struct Expiring {
    lines: u64,
    first: Option<u64>,
}

impl Expiring {
    fn note(&mut self, entry: &Entry) {
        self.lines += 1;
        if self.first.is_none() && matches!(entry.expires, Expires::AtMillis(_)) {
            self.first = Some(self.lines);
        }
    }
}

impl Lines {
    /// Calls `each` for each entry, with the number of bytes of its line.
    ///
    /// # Errors
    /// A bad line, if the file has changed; errors of the system and of `each`.
    pub fn each(&self, mut each: impl FnMut(Entry, u64) -> Result<()>) -> Result<()> {
        (&self.file).rewind().map_err(|e| Failure::file("read", &self.name, &e))?;
        lines::read(&self.file, &self.name, self.format, |entry, line| each(entry, line.len() as u64))
    }
}

/// Reads all of the input and changes nothing. The directory `db` is skipped if it lies in the input.
pub fn check(db: &Path, path: &Path, format: Format) -> Result<Checked> {
    if path == Path::new("-") {
        return Ok(Checked::Lines(save(io::stdin().lock(), Path::new("standard input"), format)?));
    }
    // Opened only once: a pipe gives its data to the first reader.
    let file = File::open(path).map_err(|e| Failure::file("open", path, &e))?;
    let meta = file.metadata().map_err(|e| Failure::file("look at", path, &e))?;
    match (format, meta.is_dir()) {
        (Format::Dir, false) => {
            Err(Failure::trouble(format!("{} is not a directory: use --format tsv or jsonl for files", path.display())))
        }
        (Format::Tsv | Format::Jsonl, true) => {
            Err(Failure::trouble(format!("{} is a directory: use --format dir", path.display())))
        }
        (Format::Dir, true) => {
            let db = fs::canonicalize(db).ok();
            let leave_out = |dir: &Path| db.is_some() && fs::canonicalize(dir).ok() == db;
            let walk = tree::Walk {
                leave_out: &leave_out,
                unreadable: tree::Unreadable::Refuse,
                files_max: usize::MAX,
                bytes_max: u64::MAX,
            };
            Ok(Checked::Tree(tree::list(path, &walk)?))
        }
        (Format::Tsv | Format::Jsonl, false) if !meta.is_file() => Ok(Checked::Lines(save(file, path, format)?)),
        (Format::Tsv | Format::Jsonl, false) => {
            let progress = Progress::bytes("checking", meta.len());
            let lines = Lines { file, name: path.to_owned(), format, bytes: meta.len(), expiring: None };
            let mut expiring = Expiring::default();
            lines.each(|entry, bytes| {
                progress.advance(bytes);
                expiring.note(&entry);
                Ok(())
            })?;
            Ok(Checked::Lines(Lines { expiring: expiring.first, ..lines }))
        }
    }
}

/// Checks an input that can be read only once, and saves it meanwhile.
fn save(input: impl Read, name: &Path, format: Format) -> Result<Lines> {
    let dir = std::env::temp_dir();
    let failed = |e: io::Error| {
        let (name, dir) = (name.display(), dir.display());
        let advice = "set TMPDIR to a directory with more space, or import from a file";
        Failure::trouble(format!("cannot save {name} to a temporary file in {dir}: {e}; {advice}"))
    };
    let mut saved = BufWriter::with_capacity(256 << 10, nameless(&dir).map_err(failed)?);
    let (mut bytes, mut expiring) = (0, Expiring::default());
    lines::read(input, name, format, |entry, line| {
        bytes += line.len() as u64;
        expiring.note(&entry);
        saved.write_all(line).map_err(failed)
    })?;
    let file = saved.into_inner().map_err(|e| failed(e.into_error()))?;
    Ok(Lines { file, name: name.to_owned(), format, bytes, expiring: expiring.first })
}

/// A file that the system removes when the program ends, however it ends.
fn nameless(dir: &Path) -> io::Result<File> {
    #[cfg(target_os = "linux")]
    {
        use rustix::fs::{Mode, OFlags};
        let flags = OFlags::TMPFILE | OFlags::RDWR | OFlags::CLOEXEC;
        if let Ok(file) = rustix::fs::open(dir, flags, Mode::RUSR | Mode::WUSR) {
            return Ok(File::from(file));
        }
    }
    // Where files cannot be made without a name, it has one for a moment.
    let path = dir.join(format!("bifold-import-{}.tmp", std::process::id()));
    let mut options = OpenOptions::new();
    let file = options.read(true).write(true).create_new(true).mode(0o600).open(&path)?;
    fs::remove_file(&path)?;
    Ok(file)
}

/// Writes a checked input to the database; what is in key order by ingests, if these are allowed.
fn write((db, keyspace): (&Db, &Keyspace), input: &Checked, ingests: bool) -> Result<Imported> {
    let begin = Instant::now();
    let bytes = match input {
        Checked::Lines(lines) => lines.bytes,
        Checked::Tree(tree) => tree.bytes,
    };
    let (ascends, batch) = (ingests && bytes >= COMMIT_BYTES as u64, db.batch());
    let mut writer = Writer { db, keyspace, batch, ascends, ingest: None, last: Vec::new(), done: Imported::default() };
    match input {
        Checked::Lines(lines) => {
            let progress = Progress::bytes("importing", lines.bytes);
            lines.each(|entry, bytes| {
                progress.advance(bytes);
                writer.put(&entry)
            })?;
        }
        Checked::Tree(tree) => {
            let progress = Progress::bytes("importing", tree.bytes);
            for file in &tree.files {
                let (key, value) = (file.key.clone(), tree::content(file)?);
                writer.put(&Entry { key, value, expires: Expires::Unsaid })?;
                progress.advance(file.bytes);
            }
            writer.done.skipped = tree.skipped;
        }
    }
    writer.end_ingest()?;
    writer.commit()?;
    let seconds = begin.elapsed().as_secs_f64();
    let entries_per_sec = writer.done.entries as f64 / seconds.max(1e-9);
    Ok(Imported { seconds, entries_per_sec, ..writer.done })
}

/// Gathers entries into ingests as long as their keys ascend, then into commits.
struct Writer<'a> {
    db: &'a Db,
    keyspace: &'a Keyspace,
    batch: Batch,
    ascends: bool,
    /// With the number of bytes in it.
    ingest: Option<(Ingest, u64)>,
    last: Vec<u8>,
    done: Imported,
}

/// When an entry expires, if its line says so: at an instant, or never.
fn until(expires: Expires) -> Option<Option<SystemTime>> {
    match expires {
        Expires::Unsaid => None,
        Expires::Never => Some(None),
        // Later than any clock can say: for good.
        Expires::AtMillis(millis) => Some(UNIX_EPOCH.checked_add(Duration::from_millis(millis))),
    }
}

impl Writer<'_> {
    fn put(&mut self, entry: &Entry) -> Result<()> {
        if self.ascends && *entry.key <= *self.last {
            self.ascends = false;
            self.end_ingest()?;
        }
        if self.ascends { self.ingest(entry) } else { self.gather(entry) }
    }

    fn ingest(&mut self, Entry { key, value, expires }: &Entry) -> Result<()> {
        let (ingest, bytes) = match &mut self.ingest {
            Some(open) => open,
            none => none.insert((self.keyspace.ingest()?, 0)),
        };
        match until(*expires) {
            None => ingest.put(key, value)?,
            Some(until) => ingest.put_until(key, value, until)?,
        }
        *bytes += (key.len() + value.len()) as u64;
        self.done.entries += 1;
        self.done.bytes += (key.len() + value.len()) as u64;
        self.last.clone_from(key);
        if *bytes >= INGEST_BYTES { self.end_ingest() } else { Ok(()) }
    }

    fn end_ingest(&mut self) -> Result<()> {
        if let Some((ingest, _)) = self.ingest.take() {
            self.done.ingested += ingest.finish()?.entries;
        }
        Ok(())
    }

    fn gather(&mut self, Entry { key, value, expires }: &Entry) -> Result<()> {
        match until(*expires) {
            None => self.batch.put(self.keyspace, key, value)?,
            Some(until) => self.batch.put_until(self.keyspace, key, value, until)?,
        };
        self.done.entries += 1;
        self.done.bytes += (key.len() + value.len()) as u64;
        if self.batch.bytes() >= COMMIT_BYTES { self.commit() } else { Ok(()) }
    }

    fn commit(&mut self) -> Result<()> {
        let batch = std::mem::take(&mut self.batch);
        if !batch.is_empty() {
            self.db.commit(batch)?;
        }
        Ok(())
    }
}
