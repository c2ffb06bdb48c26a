//! `demo`: shows what Bifold does on real data, and checks every step.
//!
//! 1. Import files (or lines) and remember a digest of every value.
//! 2. Overwrite a third, delete a tenth, scan a prefix.
//! 3. Close; run this program again as a writer that acknowledges each commit over a pipe; kill it midway.
//! 4. Reopen; every acknowledged commit and every earlier value must be there, and nothing else.
//! 5. Verify every byte offline; print what happened and what to type next.

mod source;
mod story;
pub mod writer;

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
    time::Instant,
};

use bifold::{Access, Batch, Db, Durability, Keyspace};
use clap::Args;
use serde::Serialize;
use xxhash_rust::xxh3::xxh3_64;

use self::{source::Source, story::Story};
use crate::{
    failure::{Failure, Result},
    global::Global,
    open,
    output::{self, Output, bytes, count, counted},
    progress::Progress,
};

#[derive(Args, Debug)]
pub struct DemoArgs {
    /// What to import, up to 50 000 entries or 200 MiB: a directory, a .tsv or .jsonl file, or any file of lines
    /// [default: the current repository or directory].
    #[arg(value_name = "FILE|DIR")]
    pub from: Option<PathBuf>,

    /// Where to put the database [default: a new temporary directory].
    #[arg(long, value_name = "DIR")]
    pub dir: Option<PathBuf>,
}

/// Bytes of one commit of the import.
const COMMIT_BYTES: usize = 1 << 20;

/// The suffix of an overwritten value.
const OVERWRITTEN: &[u8] = b"\noverwritten by the demo\n";

/// What the database must hold: a digest of the value of every key.
type Model = BTreeMap<Vec<u8>, u64>;

/// The figures of a demo.
#[derive(Default, Serialize)]
pub struct Figures {
    #[serde(serialize_with = "output::path")]
    pub db: PathBuf,
    pub imported: u64,
    pub imported_bytes: u64,
    pub overwritten: u64,
    pub deleted: u64,
    pub scanned: u64,
    pub acknowledged: u64,
    pub kept: u64,
    pub checked: u64,
    pub verified_files: u64,
    pub verified_bytes: u64,
    pub user_bytes_written: u64,
    pub bytes_written: u64,
    pub write_amp: f64,
    pub seconds: f64,
}

/// `bifold demo`
pub fn run(args: &DemoArgs, global: &Global, out: &mut Output) -> Result<()> {
    let begin = Instant::now();
    let path = place(args, global)?;
    let source = Source::find(args.from.as_deref(), &path)?;
    let mut demo =
        Demo { path, global, story: Story::new(out, global), figures: Figures::default(), model: Model::new() };
    demo.figures.db.clone_from(&demo.path);
    demo.story.begin(&source, &demo.path)?;
    let (db, keyspace) = open::or_create(&demo.path, global, open::Writes::Values)?;
    demo.import(&db, &keyspace, &source)?;
    demo.overwrite(&db, &keyspace)?;
    demo.delete(&db, &keyspace)?;
    let prefix = demo.scan(&keyspace)?;
    demo.note_traffic(&db)?;
    db.close()?;
    drop(keyspace);
    demo.kill()?;
    demo.reopen()?;
    demo.verify()?;
    demo.figures.seconds = begin.elapsed().as_secs_f64();
    demo.story.end(&demo.figures, &prefix, demo.model.keys())
}

/// The directory of the database, which must not exist yet.
fn place(args: &DemoArgs, global: &Global) -> Result<PathBuf> {
    if open::options(global)?.durability == Durability::Memory {
        return Err(Failure::trouble("the demo checks what survives a kill: choose --durability buffered or sync"));
    }
    match &args.dir {
        Some(dir) if dir.exists() => {
            Err(Failure::trouble(format!("{} exists: --dir must name a new directory", dir.display())))
        }
        Some(dir) => Ok(dir.clone()),
        None => {
            let name = format!("bifold-demo-{}", std::process::id());
            let (mut dir, mut next) = (std::env::temp_dir().join(&name), 2);
            // The database of an earlier process with this number stays.
            while dir.symlink_metadata().is_ok() {
                dir.set_file_name(format!("{name}-{next}"));
                next += 1;
            }
            Ok(dir)
        }
    }
}

struct Demo<'a> {
    path: PathBuf,
    global: &'a Global,
    story: Story<'a>,
    figures: Figures,
    model: Model,
}

impl Demo<'_> {
    fn import(&mut self, db: &Db, keyspace: &Keyspace, source: &Source) -> Result<()> {
        let begin = Instant::now();
        let progress = Progress::bytes("importing", source.bytes());
        let (mut batch, mut imported_bytes) = (Batch::new(), 0);
        source.each(|key, value| {
            progress.advance(value.len() as u64);
            imported_bytes += (key.len() + value.len()) as u64;
            batch.put(keyspace, &key, &value)?;
            self.model.insert(key, xxh3_64(&value));
            if batch.bytes() >= COMMIT_BYTES {
                db.commit(std::mem::take(&mut batch))?;
            }
            Ok(())
        })?;
        db.commit(batch)?;
        drop(progress);
        self.figures.imported = self.model.len() as u64;
        self.figures.imported_bytes = imported_bytes;
        let what = format!("imported {} {}, {}", count(self.figures.imported), source.noun(), bytes(imported_bytes));
        self.story.step(&what, begin, self.figures.imported)
    }

    fn overwrite(&mut self, db: &Db, keyspace: &Keyspace) -> Result<()> {
        let begin = Instant::now();
        for (key, digest) in self.model.iter_mut().step_by(3) {
            let value = keyspace.get(key)?.ok_or_else(|| lost(key))?;
            if xxh3_64(&value) != *digest {
                return Err(garbled(key));
            }
            let value = [&value, OVERWRITTEN].concat();
            let mut batch = db.batch();
            batch.put(keyspace, key, &value)?;
            db.commit(batch)?;
            *digest = xxh3_64(&value);
            self.figures.overwritten += 1;
        }
        let what = format!("overwrote {} of them, one commit each", count(self.figures.overwritten));
        self.story.step(&what, begin, self.figures.overwritten)
    }

    fn delete(&mut self, db: &Db, keyspace: &Keyspace) -> Result<()> {
        let begin = Instant::now();
        let doomed: Vec<Vec<u8>> = self.model.keys().skip(7).step_by(10).cloned().collect();
        let mut batch = db.batch();
        for key in &doomed {
            batch.delete(keyspace, key)?;
            self.model.remove(key);
        }
        db.commit(batch)?;
        self.figures.deleted = doomed.len() as u64;
        let what = format!("deleted {} in one atomic commit", count(self.figures.deleted));
        self.story.step(&what, begin, self.figures.deleted)
    }

    /// Scans the prefix that most keys share, and returns it.
    fn scan(&mut self, keyspace: &Keyspace) -> Result<Vec<u8>> {
        let prefix = favourite_prefix(&self.model);
        let begin = Instant::now();
        for pair in keyspace.prefix(&prefix) {
            let pair = pair?;
            self.check(pair.key(), &pair.value()?)?;
            self.figures.scanned += 1;
        }
        let expected = self.model.keys().filter(|key| key.starts_with(&prefix)).count() as u64;
        if self.figures.scanned != expected {
            return Err(wrong(format!("a scan found {} of {expected} keys", self.figures.scanned)));
        }
        let shown = crate::formats::escape::escaped(&prefix);
        let what = format!("scanned {} with prefix `{shown}`", counted(self.figures.scanned, "key", "keys"));
        self.story.step(&what, begin, self.figures.scanned)?;
        Ok(prefix)
    }

    /// Bytes written so far: to the log and, after a flush, to tables.
    fn note_traffic(&mut self, db: &Db) -> Result<()> {
        db.flush()?;
        let stats = db.stats();
        self.figures.user_bytes_written = stats.user_bytes_written;
        self.figures.bytes_written = stats.io.iter().map(|source| source.bytes_written).sum();
        self.figures.write_amp = stats.write_amp;
        Ok(())
    }

    fn kill(&mut self) -> Result<()> {
        let begin = Instant::now();
        self.figures.acknowledged = writer::run_and_kill(&self.path, self.global)?;
        let acknowledged = self.figures.acknowledged;
        let what = format!("killed a writer (kill -9) after {} acknowledged commits", count(acknowledged));
        self.story.step(&what, begin, acknowledged)
    }

    /// Reopens the database and compares every entry with the model.
    fn reopen(&mut self) -> Result<()> {
        let begin = Instant::now();
        let (db, keyspace) = open::existing_keyspace(&self.path, self.global, Access::ReadWrite)?;
        self.story.step("reopened the database", begin, 0)?;
        let begin = Instant::now();
        let (mut found, mut written) = (0, Vec::new());
        for pair in keyspace.iter() {
            let pair = pair?;
            let (key, value) = (pair.key(), pair.value()?);
            match writer::number(key) {
                Some(number) if *value == *writer::value(number) => written.push(number),
                Some(_) => return Err(garbled(key)),
                None => {
                    self.check(key, &value)?;
                    found += 1;
                }
            }
        }
        if found != self.model.len() {
            return Err(wrong(format!("{found} of {} keys were found", self.model.len())));
        }
        self.figures.kept = written.len() as u64;
        // Keys sort by number, so a prefix of the commits is 1, 2, 3, … without a gap.
        if !written.iter().copied().eq(1..=self.figures.kept) || self.figures.kept < self.figures.acknowledged {
            let (kept, acknowledged) = (self.figures.kept, self.figures.acknowledged);
            return Err(wrong(format!("{kept} of {acknowledged} acknowledged commits were found")));
        }
        self.figures.checked = found as u64 + self.figures.kept;
        db.close()?;
        let unacknowledged = match self.figures.kept - self.figures.acknowledged {
            0 => String::new(),
            n => format!(" ({n} committed last, not acknowledged)"),
        };
        let what = format!(
            "checked all {} values: nothing lost, nothing garbled{unacknowledged}",
            count(self.figures.checked)
        );
        self.story.step(&what, begin, self.figures.checked)
    }

    fn verify(&mut self) -> Result<()> {
        let begin = Instant::now();
        let report = bifold::verify(&self.path)?;
        if let Some(problem) = report.problems.first() {
            return Err(wrong(problem.to_string()));
        }
        (self.figures.verified_files, self.figures.verified_bytes) = (report.files, report.bytes);
        let files = counted(report.files, "file", "files");
        let what = format!("verified every byte: {} in {files}", bytes(report.bytes));
        self.story.step(&what, begin, 0)
    }

    fn check(&self, key: &[u8], value: &[u8]) -> Result<()> {
        match self.model.get(key) {
            Some(&digest) if digest == xxh3_64(value) => Ok(()),
            Some(_) => Err(garbled(key)),
            None => Err(wrong(format!("key `{}` should not exist", key.escape_ascii()))),
        }
    }
}

/// The prefix, up to the first `/` or `:`, that most keys share.
fn favourite_prefix(model: &Model) -> Vec<u8> {
    let mut keys_by_prefix: BTreeMap<&[u8], usize> = BTreeMap::new();
    for key in model.keys() {
        if let Some(end) = key.iter().position(|b| b"/:".contains(b)) {
            *keys_by_prefix.entry(&key[..=end]).or_default() += 1;
        }
    }
    let most = keys_by_prefix.into_iter().max_by_key(|&(_, keys)| keys);
    let first = || model.keys().next().map(|key| key[..1].to_vec()).unwrap_or_default();
    most.map_or_else(first, |(prefix, _)| prefix.to_vec())
}

fn wrong(what: String) -> Failure {
    Failure::No(Some(format!("the demo found an error in Bifold, please report it: {what}")))
}

fn lost(key: &[u8]) -> Failure {
    wrong(format!("key `{}` is missing", key.escape_ascii()))
}

fn garbled(key: &[u8]) -> Failure {
    wrong(format!("the value of `{}` is not the one written", key.escape_ascii()))
}

/// How the user can call this program.
fn program() -> String {
    // Cargo sets this for programs that it runs.
    if std::env::var_os("CARGO_PKG_NAME").is_some() {
        return if cfg!(debug_assertions) { "cargo run --" } else { "cargo run --release --" }.to_owned();
    }
    std::env::args().next().unwrap_or_else(|| "bifold".to_owned())
}

/// A path or key quoted for a shell.
fn quoted(word: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "/._-:+,@%=".contains(c);
    if !word.is_empty() && word.chars().all(plain) {
        word.to_owned()
    } else {
        format!("'{}'", word.replace('\'', r"'\''"))
    }
}

/// A path quoted for a shell.
fn quoted_path(path: &Path) -> String {
    quoted(&path.display().to_string())
}

#[cfg(test)]
mod tests {
    use std::{ffi::OsStr, os::unix::ffi::OsStrExt};

    use super::*;

    #[test]
    fn the_directory_that_the_demo_chooses_is_new() {
        let global = Global {
            keyspace: "default".to_owned(),
            names_keyspace: false,
            durability: None,
            set: Vec::new(),
            options: None,
            json: false,
        };
        let chosen = || place(&DemoArgs { from: None, dir: None }, &global).unwrap();
        let first = chosen();
        std::fs::create_dir(&first).unwrap();
        let second = chosen();
        assert!(second != first && !second.exists(), "{}", second.display());
        std::fs::remove_dir(first).unwrap();
    }

    #[test]
    fn a_path_that_is_not_utf_8_is_printed_as_json() {
        let figures = Figures { db: OsStr::from_bytes(b"demo-\xff").into(), ..Figures::default() };
        let json = serde_json::to_value(&figures).unwrap();
        assert_eq!(json["db"], "demo-\u{fffd}");
    }
}
