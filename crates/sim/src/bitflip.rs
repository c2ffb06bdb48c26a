//! Damage: every bit of every file flipped, every file truncated at every byte.
//!
//! After any flip, offline verification must name the file. A database that opens at all must either answer exactly
//! as before or report which file is damaged. The same holds for a truncated file, with one exception that follows
//! from what logs are: the newest log, truncated, looks as if the commits behind its end had never been written. They
//! may be lost, but those before must be there. A truncated manifest is an older state; the files that do not fit it
//! are reported.

use std::path::{Path, PathBuf};

use bifold::{Compression, Db, Durability, Error, PlacementKind};
use bifold_io::{FileSystem, memory::MemoryFs};

use crate::{
    driver::{Blind, Driver},
    env::{self, Files},
    history::{Extras, Flavor, History, Mix, Op},
    model::{CommitNo, Model},
    options::OptionSet,
    read::{self, Trouble},
    report::{Report, guarded, time_is_up},
};

/// A small closed database with sound files.
pub struct SmallDatabase {
    files: Files,
    model: Model,
    set: OptionSet,
    /// The newest log.
    log: PathBuf,
    /// Its length and the last commit, after each of the last operations.
    lengths: Vec<(u64, CommitNo)>,
    seed: u64,
}

/// The damage to a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Damage {
    /// The bit of this number is flipped.
    Flip(u64),
    /// The file is truncated to this many bytes.
    Truncate(u64),
}

impl SmallDatabase {
    /// The fixture of a seed: a few dozen operations, some of them still only in the log.
    ///
    /// # Errors
    /// What went wrong without any damage.
    pub fn new(seed: u64) -> Result<Self, Trouble> {
        let mix = Mix { ops: 60, keys: 40, flavor: Flavor::Files };
        let extras = Extras::of(seed).without_large();
        let mut history = History::with_extras(seed, mix, extras);
        history.durability = Durability::Buffered;
        let mut set = OptionSet::of(&history, 0);
        set.keyspaces[0].compression = [Compression::None, Compression::Lz4, Compression::Zstd][(seed % 3) as usize];
        // With inline values nothing syncs a log before its first commit. If no commit is synced either, only the
        // manifest shows that an older log is missing.
        let is_never_synced = seed % 4 == 1;
        if is_never_synced {
            set.keyspaces.iter_mut().for_each(|keyspace| keyspace.placement = PlacementKind::Inline);
        }
        set.database.keyspace = set.keyspaces[0].clone();
        // Large enough for the last commits to stay in one log.
        set.database.memory_limit = 64 << 20;
        set.database.memtable_bytes = 8 << 20;
        set.database.log_bytes = 8 << 20;
        let fs = MemoryFs::default();
        let mut driver = Driver::new(env::simulated(&fs), env::DIR.as_ref(), set.clone(), Model::default(), Blind);
        driver.open()?;
        for (_, op) in history.ops.iter().filter(|(_, op)| !matches!(op, Op::Checkpoint | Op::Abandon)) {
            driver.step(op)?;
        }
        driver.step(&Op::Flush)?;
        let (mut log, len) = newest_log(&fs)?;
        let mut lengths = vec![(len, driver.model.head())];
        let last = History::with_extras(seed, Mix { ops: 400, ..mix }, extras).ops.into_iter().map(|(_, op)| op);
        // Without operations that stay in the log's buffer for a while.
        let logged = |op: &Op| match op {
            Op::Write(_) | Op::Batch(Durability::Buffered, _) => true,
            Op::Batch(Durability::Sync, _) => !is_never_synced,
            _ => false,
        };
        for op in last.filter(logged).skip(60).take(8) {
            driver.step(&op)?;
            if newest_log(&fs)?.0 != log {
                // A memtable was sealed. Its contents go to tables, so only the newest log is needed.
                driver.step(&Op::Flush)?;
                log = newest_log(&fs)?.0;
                lengths.clear();
            }
            lengths.push((newest_log(&fs)?.1, driver.model.head()));
        }
        driver.close()?;
        let files = env::files_of(&fs, env::DIR.as_ref())?;
        let files = files.into_iter().filter(|(path, bytes)| !path.ends_with("LOCK") && !bytes.is_empty()).collect();
        Ok(Self { files, model: driver.model, set, log, lengths, seed })
    }

    /// The fixture's files.
    #[must_use]
    pub fn files(&self) -> &[(PathBuf, Vec<u8>)] {
        &self.files
    }

    /// Whether only opening can report this damage: a truncated manifest is an older one, and may be sound.
    fn is_only_reported_by_opening(&self, at: usize, damage: Damage) -> bool {
        matches!(damage, Damage::Truncate(_)) && self.files[at].0.ends_with("MANIFEST")
    }

    /// Damages file number `at` and checks everything that is promised for this damage.
    ///
    /// # Errors
    /// The promise that is not kept.
    pub fn damaged(&self, at: usize, damage: Damage, open_too: Open) -> Result<(), Trouble> {
        let mut files = self.files.clone();
        let (path, bytes) = &mut files[at];
        let path = path.clone();
        let mut floor = self.model.head();
        match damage {
            Damage::Flip(bit) => bytes[(bit / 8) as usize] ^= 1 << (bit % 8),
            Damage::Truncate(len) => {
                bytes.truncate(len as usize);
                if path == self.log {
                    let whole = self.lengths.iter().rev().find(|(end, _)| *end <= len);
                    floor = whole.or(self.lengths.first()).map_or(floor, |(_, commit)| *commit);
                }
            }
        }
        let fs = env::holding(&files);
        let tail = match damage {
            Damage::Truncate(_) if path == self.log => Tail::Log,
            Damage::Truncate(_) if path.ends_with("MANIFEST") => Tail::Manifest,
            _ => Tail::Whole,
        };
        guarded(|| {
            verify_names(&fs, &path, tail).map_err(|t| t.during("verify"))?;
            match open_too {
                Open::Yes => self.open_reports_or_answers(&fs, &path, tail, floor).map_err(|t| t.during("open")),
                Open::No => Ok(()),
            }
        })
    }

    fn open_reports_or_answers(&self, fs: &MemoryFs, path: &Path, tail: Tail, floor: CommitNo) -> Result<(), Trouble> {
        let opened = Db::open_in(env::simulated(fs), env::DIR, self.set.database.clone())
            .map_err(Trouble::from)
            .and_then(|db| Ok((read::contents(&db)?, db)));
        let outcome = opened.and_then(|(contents, db)| {
            let n = self.model.check_between(&contents, floor..=self.model.head());
            let n = n.map_err(|m| Trouble::wrong(m.to_string()))?;
            read::compare_everything(&db, &self.model.recovered(n, &contents), n)
        });
        match outcome {
            Err(Trouble::Refused(error)) if !names(&error, path) && tail != Tail::Manifest => {
                Err(Trouble::wrong(format!("{} is damaged, but the error is: {error}", path.display())))
            }
            Err(Trouble::Refused(_)) => Ok(()),
            other => other,
        }
    }
}

/// The end of a damaged file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Tail {
    /// As it was written.
    Whole,
    /// The newest log simply ends, as if commits had never been written.
    Log,
    /// The manifest simply ends: an older state that other files contradict, and these are reported.
    Manifest,
}

fn verify_names(fs: &MemoryFs, path: &Path, tail: Tail) -> Result<(), Trouble> {
    let problems = match bifold::verify_in(&env::simulated(fs), env::DIR, |_| {}) {
        Ok(report) => report.problems,
        Err(error) => vec![error],
    };
    let named = problems.iter().any(|problem| names(problem, path));
    let fits = match tail {
        Tail::Whole => named,
        Tail::Log => named || problems.is_empty(),
        Tail::Manifest => true,
    };
    if fits {
        return Ok(());
    }
    Err(Trouble::wrong(format!("{} is damaged, but verify found {problems:?}", path.display())))
}

/// Whether the database is also opened and read, not only verified.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Open {
    /// It is opened.
    Yes,
    /// It is only verified.
    No,
}

/// Whether the error names this file and an offset in it.
fn names(error: &Error, file: &Path) -> bool {
    match error {
        Error::Corruption { path, .. } | Error::NewerFormat { path, .. } => path == file,
        Error::Poisoned { cause } => names(cause, file),
        _ => false,
    }
}

fn newest_log(fs: &MemoryFs) -> Result<(PathBuf, u64), Trouble> {
    let logs = fs.list(env::DIR.as_ref())?.into_iter().filter(|path| path.extension().is_some_and(|e| e == "log"));
    let newest = logs.max().ok_or_else(|| Trouble::wrong("there is no log"))?;
    let len = fs.len(&newest)?.unwrap_or(0);
    Ok((newest, len))
}

/// Damages the fixture of `seed` in every `every`th possible way, and opens one in `open_every` of the results.
#[must_use]
pub fn run(seed: u64, every: u64, open_every: u64) -> Report {
    let mut report = Report::default();
    let fixture = match guarded(|| SmallDatabase::new(seed)) {
        Ok(fixture) => fixture,
        Err(trouble) => {
            report.fail(format!("bitflip --seed {seed}"), &trouble);
            return report;
        }
    };
    let mut number = seed;
    for (at, (_, bytes)) in fixture.files().iter().enumerate() {
        let len = bytes.len() as u64;
        let flips = (seed % every..len * 8).step_by(every as usize).map(Damage::Flip);
        let truncations = (seed % every..len).step_by(every as usize).map(Damage::Truncate);
        for damage in flips.chain(truncations) {
            if time_is_up() {
                return report;
            }
            number += 1;
            let open_too = if number.is_multiple_of(open_every) || fixture.is_only_reported_by_opening(at, damage) {
                Open::Yes
            } else {
                Open::No
            };
            report.count(if matches!(damage, Damage::Flip(_)) { "bit flips" } else { "truncations" }, 1);
            report.count("damaged databases opened", u64::from(open_too == Open::Yes));
            if let Err(trouble) = fixture.damaged(at, damage, open_too) {
                let (kind, place) = match damage {
                    Damage::Flip(bit) => ("flip", bit),
                    Damage::Truncate(len) => ("cut", len),
                };
                let name = fixture.files[at].0.display();
                report.fail(
                    format!("bitflip --seed {} --file {at} --{kind} {place}", fixture.seed),
                    &trouble.during(format!("{kind} at {place} of {name} ({len} bytes)")),
                );
                return report;
            }
        }
    }
    report
}
