//! Real processes on the real disk: one writes, merges and collects, others read beside it, and any of them is killed
//! at a random moment.
//!
//! Commit `n` sets the key `count` and one of 64 others to `n`, in two keyspaces. So a state can be judged by itself:
//! each of the 64 keys has the last number up to `count` that is its own. Readers tell their count over a pipe, and the
//! next writer and the next reader must find at least that.

use std::{
    fs,
    io::{BufRead, BufReader, Write as _},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    thread,
    time::Duration,
};

use bifold::{
    Access, Db, Error, IfMissing, Keyspace, KeyspaceOptions, Options, PlacementKind, Workers, options::Values,
};

use crate::{
    random::Random,
    read::Trouble,
    report::{Report, guarded, time_is_up},
};

const SLOTS: u64 = 64;
const SECOND: &str = "second";

/// Kills in one directory.
const KILLS: u64 = 24;

/// Readers beside the writer.
const READERS: usize = 2;

/// Opens beside one writer.
const OPENS: u64 = 500;

fn options(seed: u64) -> Options {
    let values = Values { separate_from_bytes: Some(64), file_bytes: 64 << 10, ..Values::default() };
    let keyspace = KeyspaceOptions { table_bytes: 16 << 10, values, ..KeyspaceOptions::default() };
    Options {
        memory_limit: 4 << 20,
        memtable_bytes: 32 << 10,
        log_bytes: 128 << 10,
        workers: Workers::Threads(2),
        keyspace: keyspace.with_placement(PlacementKind::ALL[(seed % 7) as usize]),
        ..Options::default()
    }
}

fn following() -> Options {
    let access = Access::Follow;
    Options { access, if_missing: IfMissing::Fail, open_files_max: 8, memory_limit: 4 << 20, ..Options::default() }
}

/// Ends this process once the one that began it has ended, however that happened: then its standard input ends.
fn end_with_parent() {
    thread::spawn(|| {
        let _end = std::io::copy(&mut std::io::stdin(), &mut std::io::sink());
        std::process::exit(0);
    });
}

/// The process that writes, forever. It must find a count of at least `least`.
///
/// # Errors
/// The database's, and a count that is too small.
pub fn write(dir: &Path, seed: u64, least: u64) -> Result<(), Trouble> {
    end_with_parent();
    let db = open_to_write(dir, seed)?;
    let second = db.keyspace(SECOND, KeyspaceOptions::default())?;
    let begin = count_of(&db, &second)?;
    at_least(begin, least, "a writer")?;
    println!("ready");
    for n in begin + 1.. {
        let mut batch = db.batch();
        let value = format!("{n}-{}", "v".repeat((n * 37 % 700) as usize));
        for keyspace in [db.default_keyspace(), &second] {
            batch.put(keyspace, "count", n.to_string())?;
            batch.put(keyspace, format!("slot{:02}", n % SLOTS), &value)?;
        }
        db.commit(batch)?;
        match n % 1500 {
            0 => db.compact()?,
            500 => db.collect_garbage()?,
            1000 => db.sync()?,
            _ => {}
        }
    }
    Ok(())
}

/// Opens it for writing. A reader that verifies it while nobody writes keeps writers out until it has ended.
fn open_to_write(dir: &Path, seed: u64) -> Result<Db, Trouble> {
    for _ in 0..200 {
        match Db::open_with(dir, options(seed)) {
            Err(Error::Locked { .. }) => thread::sleep(Duration::from_millis(20)),
            other => return Ok(other?),
        }
    }
    Ok(Db::open_with(dir, options(seed))?)
}

/// A process that reads, forever: it opens, refreshes, gets, scans, verifies. It prints each count.
///
/// # Errors
/// The database's, and a wrong state.
pub fn read(dir: &Path, seed: u64, least: u64) -> Result<(), Trouble> {
    end_with_parent();
    let (mut random, mut last) = (Random::new(seed ^ least, "beside"), least);
    let mut db = Db::open_with(dir, following())?;
    loop {
        match random.below(20) {
            0 => {
                let problems = match bifold::verify(dir) {
                    // Nobody writes, and the last writer was killed while it recovered.
                    Err(Error::InvalidArgument { .. }) => Vec::new(),
                    other => other?.problems,
                };
                problems.first().map_or(Ok(()), |problem| Err(Trouble::wrong(format!("verify: {problem}"))))?;
            }
            1..=6 => db = Db::open_with(dir, following())?,
            _ => drop(db.refresh()?),
        }
        last = judge(&db, last)?;
        let mut out = std::io::stdout();
        if writeln!(out, "{last}").and_then(|()| out.flush()).is_err() {
            return Ok(());
        }
    }
}

fn count_of(db: &Db, second: &Keyspace) -> Result<u64, Trouble> {
    let number = |value: Option<bifold::Value>| -> u64 {
        value.and_then(|value| std::str::from_utf8(&value).ok()?.parse().ok()).unwrap_or(0)
    };
    let counts = (number(db.get("count")?), number(second.get("count")?));
    if counts.0 == counts.1 { Ok(counts.0) } else { Err(Trouble::wrong(format!("half a batch: {counts:?}"))) }
}

fn at_least(count: u64, least: u64, who: &str) -> Result<u64, Trouble> {
    if count >= least { Ok(count) } else { Err(Trouble::wrong(format!("{who} finds {count}, there was {least}"))) }
}

/// Checks that `db` sees a state, no earlier than `least`. Returns its count.
fn judge(db: &Db, least: u64) -> Result<u64, Trouble> {
    let Some(second) = db.existing_keyspace(SECOND)? else { return at_least(0, least, "a reader without keyspace") };
    let count = at_least(count_of(db, &second)?, least, "a reader")?;
    for keyspace in [db.default_keyspace(), &second] {
        let mut found = 0;
        for pair in keyspace.prefix("slot") {
            let (key, value) = pair?.into_parts()?;
            let slot: u64 = std::str::from_utf8(&key[4..]).ok().and_then(|text| text.parse().ok()).unwrap_or(u64::MAX);
            let right = count.saturating_sub((count + SLOTS - slot) % SLOTS);
            let text = format!("{right}-{}", "v".repeat((right * 37 % 700) as usize));
            if value[..] != *text.as_bytes() {
                let is = String::from_utf8_lossy(&value[..value.len().min(12)]).into_owned();
                return Err(Trouble::wrong(format!("at {count} slot {slot} has {is}, not {right}")));
            }
            found += 1;
        }
        if found != count.min(SLOTS) && !(count < SLOTS && found == count) {
            return Err(Trouble::wrong(format!("at {count} there are {found} slots")));
        }
        let key = format!("slot{:02}", count % SLOTS);
        if count > 0 && keyspace.get(&key)?.is_none() {
            return Err(Trouble::wrong(format!("at {count} there is no {key}")));
        }
    }
    Ok(count)
}

/// A process, and the largest count that it has told.
struct Running {
    child: Child,
    told: Arc<AtomicU64>,
}

impl Running {
    fn begin(program: &Path, what: &str, dir: &Path, (seed, least): (u64, u64)) -> Result<Self, Trouble> {
        let words = [what.to_owned(), dir.display().to_string(), seed.to_string(), least.to_string()];
        let mut command = Command::new(program);
        command.args(words).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().map_err(|e| Trouble::wrong(format!("{}: {e}", program.display())))?;
        let told = Arc::new(AtomicU64::new(least));
        if let Some(out) = child.stdout.take() {
            let told = Arc::clone(&told);
            thread::spawn(move || {
                for line in BufReader::new(out).lines().map_while(Result::ok) {
                    told.fetch_max(line.parse().unwrap_or(0), Ordering::AcqRel);
                }
            });
        }
        Ok(Self { child, told })
    }

    /// Ends it by SIGKILL. It must not have ended before.
    fn kill(mut self) -> Result<u64, Trouble> {
        if let Ok(Some(status)) = self.child.try_wait() {
            let said = self.child.wait_with_output().map(|out| String::from_utf8_lossy(&out.stderr).into_owned());
            return Err(Trouble::wrong(format!("a process ended by itself, {status}: {}", said.unwrap_or_default())));
        }
        let killed = self.child.kill().and_then(|()| self.child.wait());
        killed.map_err(|e| Trouble::wrong(format!("kill: {e}")))?;
        Ok(self.told.load(Ordering::Acquire))
    }
}

/// Kills processes on a directory of its own. `program` is `bifold-sim` itself.
#[must_use]
pub fn run(program: &Path, seed: u64) -> Report {
    in_directory(("beside", seed), |dir, report| kill_again_and_again(program, dir, seed, report))
}

/// Opens a database again and again while a process writes it.
#[must_use]
pub fn opens(program: &Path, seed: u64) -> Report {
    in_directory(("opens", seed), |dir, report| {
        let writer = begin_writer(program, dir, (seed, 0))?;
        let mut last = 0;
        for _ in 0..OPENS {
            last = judge(&Db::open_with(dir, following())?, last)?;
            report.count("opened beside a writer", 1);
            if time_is_up() {
                break;
            }
        }
        report.count("commits meanwhile", last);
        writer.kill().map(drop)
    })
}

fn in_directory((name, seed): (&str, u64), work: impl FnOnce(&Path, &mut Report) -> Result<(), Trouble>) -> Report {
    let mut report = Report::default();
    let dir = std::env::temp_dir().join(format!("bifold-{name}-{}-{seed}", std::process::id()));
    match guarded(|| work(&dir, &mut report)) {
        Ok(()) => drop(fs::remove_dir_all(&dir)),
        Err(trouble) => report.fail(format!("{name} --seed {seed}"), &trouble.during(dir.display())),
    }
    report
}

/// A writer that has opened the database.
fn begin_writer(program: &Path, dir: &Path, of: (u64, u64)) -> Result<Running, Trouble> {
    let writer = Running::begin(program, "beside-write", dir, of)?;
    for _ in 0..2000 {
        if Db::open_with(dir, following()).is_ok() {
            break;
        }
        thread::sleep(Duration::from_millis(5));
    }
    Ok(writer)
}

fn kill_again_and_again(program: &Path, dir: &Path, seed: u64, report: &mut Report) -> Result<(), Trouble> {
    let mut random = Random::new(seed, "moments");
    let mut least = 0;
    let mut writer = begin_writer(program, dir, (seed, 0))?;
    let mut readers = Vec::new();
    for _ in 0..KILLS {
        while readers.len() < READERS {
            readers.push(Running::begin(program, "beside-read", dir, (random.below(1 << 40), least))?);
        }
        thread::sleep(Duration::from_millis(random.below(120)));
        if random.chance(50) {
            least = least.max(writer.kill()?);
            least = readers.iter().map(|reader| reader.told.load(Ordering::Acquire)).max().unwrap_or(0).max(least);
            report.count("writers killed", 1);
            writer = Running::begin(program, "beside-write", dir, (seed, least))?;
        } else {
            let at = random.below(READERS as u64) as usize;
            least = least.max(readers.swap_remove(at).kill()?);
            report.count("readers killed", 1);
        }
        if time_is_up() {
            break;
        }
    }
    for process in readers.into_iter().chain([writer]) {
        least = least.max(process.kill()?);
    }
    report.count("commits seen", least);
    let db = open_to_write(dir, seed)?;
    judge(&db, least)?;
    let followers = db.stats().followers;
    if followers.readers + followers.held_files > 0 {
        return Err(Trouble::wrong(format!("all readers were killed, but {followers:?} are counted")));
    }
    db.close()?;
    match bifold::verify(dir)?.problems.first() {
        None => Ok(()),
        Some(problem) => Err(Trouble::wrong(format!("verify: {problem}"))),
    }
}

/// The arguments of a process: directory, seed, least count.
///
/// # Errors
/// What is wrong with them.
pub fn words(words: &[String]) -> Result<(PathBuf, u64, u64), String> {
    let [dir, seed, least] = words else {
        return Err("beside-write DIR SEED LEAST, beside-read DIR SEED LEAST".into());
    };
    let number = |text: &String| text.parse().map_err(|e| format!("`{text}`: {e}"));
    Ok((dir.into(), number(seed)?, number(least)?))
}
