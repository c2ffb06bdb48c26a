//! `import`: first everything is checked, then everything is written.
//!
//! The first pass reads all of the input and names the first thing wrong with it; only a sound input opens, or makes,
//! the database. The second pass writes in commits of about a megabyte. An input that changes between the passes is
//! checked again on the way; a bad line then ends the import, with the commits before it written.

use std::{
    fs::{self, File},
    io,
    path::{Path, PathBuf},
    time::Instant,
};

use bifold::{Batch, Db, Keyspace};
use serde::Serialize;

use crate::{
    args::{Global, ImportArgs},
    failure::{Failure, Result},
    formats::{Format, lines, tree},
    open,
    output::{self, Output},
    progress::Progress,
};

/// Keys and values of one commit, in bytes: large enough that a commit's own costs vanish, small beside a memtable.
const COMMIT_BYTES: usize = 1 << 20;

/// What an import did.
#[derive(Debug, Default, Serialize)]
pub struct Imported {
    /// Pairs written.
    pub entries: u64,
    /// Bytes of their keys and values.
    pub bytes: u64,
    /// Time of the second pass.
    pub seconds: f64,
    /// Pairs a second.
    pub entries_per_sec: f64,
    /// Symbolic links and the like, left out.
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
            "a directory cannot come from standard input: name it, or use --format tsv or jsonl",
        ));
    }
    let spool = if from_stdin { Some(Spool::of_stdin()?) } else { None };
    let file = spool.as_ref().map_or(args.file.as_path(), |spool| spool.path.as_path());
    let imported = import(&args.db, file, format, global)?;
    if global.json {
        return out.json(&imported);
    }
    let skipped = if imported.skipped == 0 {
        String::new()
    } else {
        format!("; left out {} symbolic links and other special files", output::count(imported.skipped))
    };
    out.line(format!(
        "imported {} entries, {}, into {} in {:.1} s ({} entries/s){skipped}",
        output::count(imported.entries),
        output::bytes(imported.bytes),
        args.db.display(),
        imported.seconds,
        output::count(imported.entries_per_sec as u64),
    ))
}

/// What kind of input a name promises.
pub fn guess(file: &Path) -> Result<Format> {
    if file.is_dir() {
        return Ok(Format::Dir);
    }
    match file.extension().and_then(|extension| extension.to_str()) {
        Some("tsv") => Ok(Format::Tsv),
        Some("jsonl" | "ndjson") => Ok(Format::Jsonl),
        _ => Err(Failure::trouble(format!(
            "cannot tell the format of {}: add --format tsv, jsonl or dir",
            file.display()
        ))),
    }
}

fn import(db: &Path, file: &Path, format: Format, global: &Global) -> Result<Imported> {
    // Bad options are found before anything is made, too.
    open::options(global)?;
    let checked = check(db, file, format)?;
    let (db, keyspace) = open::or_create(db, global)?;
    let imported = write(&db, &keyspace, &checked)?;
    db.close()?;
    Ok(imported)
}

/// An input that was found sound.
pub enum Checked {
    /// Lines.
    Lines {
        /// Where they are.
        file: PathBuf,
        /// How they are written.
        format: Format,
        /// Bytes of the file.
        bytes: u64,
    },
    /// Files.
    Tree(tree::Tree),
}

/// Reads all of the input and changes nothing. The directory `db` is left out, should it lie in the input.
pub fn check(db: &Path, file: &Path, format: Format) -> Result<Checked> {
    let meta = fs::metadata(file).map_err(|e| Failure::file("open", file, &e))?;
    match (format, meta.is_dir()) {
        (Format::Dir, false) => {
            Err(Failure::trouble(format!("{} is not a directory: use --format tsv or jsonl for files", file.display())))
        }
        (Format::Tsv | Format::Jsonl, true) => {
            Err(Failure::trouble(format!("{} is a directory: use --format dir", file.display())))
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
            Ok(Checked::Tree(tree::list(file, &walk)?))
        }
        (Format::Tsv | Format::Jsonl, false) => {
            let progress = Progress::bytes("checking", meta.len());
            lines::read(file, format, |_, bytes| {
                progress.advance(bytes);
                Ok(())
            })?;
            Ok(Checked::Lines { file: file.to_owned(), format, bytes: meta.len() })
        }
    }
}

/// Writes a checked input.
pub fn write(db: &Db, keyspace: &Keyspace, input: &Checked) -> Result<Imported> {
    let begin = Instant::now();
    let mut writer = Writer { db, keyspace, batch: db.batch(), done: Imported::default() };
    match input {
        Checked::Lines { file, format, bytes } => {
            let progress = Progress::bytes("importing", *bytes);
            lines::read(file, *format, |(key, value), bytes| {
                progress.advance(bytes);
                writer.put(&key, &value)
            })?;
        }
        Checked::Tree(tree) => {
            let progress = Progress::bytes("importing", tree.bytes);
            for file in &tree.files {
                writer.put(&file.key, &tree::content(file)?)?;
                progress.advance(file.bytes);
            }
            writer.done.skipped = tree.skipped;
        }
    }
    writer.commit()?;
    let seconds = begin.elapsed().as_secs_f64();
    let entries_per_sec = writer.done.entries as f64 / seconds.max(1e-9);
    Ok(Imported { seconds, entries_per_sec, ..writer.done })
}

/// Gathers pairs into commits.
struct Writer<'a> {
    db: &'a Db,
    keyspace: &'a Keyspace,
    batch: Batch,
    done: Imported,
}

impl Writer<'_> {
    fn put(&mut self, key: &[u8], value: &[u8]) -> Result<()> {
        self.batch.put(self.keyspace, key, value)?;
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

/// Standard input saved to a file, so that it can be read twice. Removed when dropped.
struct Spool {
    path: PathBuf,
}

impl Spool {
    fn of_stdin() -> Result<Self> {
        let path = std::env::temp_dir().join(format!("bifold-import-{}.tmp", std::process::id()));
        let mut file = File::create_new(&path).map_err(|e| Failure::file("create", &path, &e))?;
        let spool = Self { path };
        io::copy(&mut io::stdin().lock(), &mut file)
            .map_err(|e| Failure::trouble(format!("cannot save standard input to {}: {e}", spool.path.display())))?;
        Ok(spool)
    }
}

impl Drop for Spool {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.path);
    }
}
