//! A real disk that is full to its last byte: a process puts until nothing more fits, a filler takes what is left, the
//! process is killed, and what it leaves must open, be read, be emptied and be written to again.
//!
//! ```text
//! disk DIR                     for each placement: fill, kill, check; one line for each check that fails
//! disk-fill DIR PLACEMENT      the process that is killed: acknowledges every put over a pipe
//! disk-check DIR PLACEMENT N   the checks, N puts being acknowledged; a process too, so that a signal ends no other check
//! ```
//!
//! `cargo xtask disks` makes file systems for this and mounts them.

use std::{
    fs,
    io::{BufReader, Read as _, Write as _},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    thread,
    time::Duration,
};

use bifold::{Access, Db, KeyspaceOptions, Options, Placement, Workers, options::Values};

use crate::{random::Random, read::Trouble, report::guarded};

/// The placements, by the names of the command line.
const PLACEMENTS: [(&str, Placement); 6] = [
    ("inline", Placement::Inline),
    ("wisckey", Placement::WiscKey),
    ("hashkv", Placement::HashKv),
    ("novkv", Placement::NovKv),
    ("diffkv", Placement::DiffKv),
    ("unikv", Placement::UniKv),
];

/// A process that does nothing more for so long hangs.
const PATIENCE: Duration = Duration::from_secs(120);

/// Of what is taken, so many percent must come back when half of the entries are deleted.
const FREED_PERCENT: u64 = 40;

/// Room that a full disk gets back at the end.
const ROOM_BYTES: u64 = 8 << 20;

/// What a filling process says when the disk is full.
const FULL: u8 = 0;
/// What it says for each put.
const PUT: u8 = 1;

fn options(placement: &str) -> Result<Options, Trouble> {
    let found = PLACEMENTS.iter().find(|(name, _)| *name == placement);
    let (_, placement) = found.ok_or_else(|| Trouble::wrong(format!("`{placement}` is no placement")))?;
    let usual = if *placement == Placement::UniKv { KeyspaceOptions::unikv() } else { KeyspaceOptions::default() };
    let values = Values { file_bytes: 256 << 10, group_bytes: 1 << 20, ..usual.values };
    let keyspace = KeyspaceOptions { placement: *placement, table_bytes: 512 << 10, values, ..usual };
    Ok(Options {
        memory_limit: 64 << 20,
        memtable_bytes: 512 << 10,
        workers: Workers::Threads(2),
        keyspace,
        ..Options::default()
    })
}

fn key(n: u64) -> String {
    format!("key{n:08}")
}

/// Of all sizes, most of them short.
fn value(n: u64) -> Vec<u8> {
    let mut random = Random::new(n, "a value on a real disk");
    let len = if random.chance(80) { random.within(100, 2_000) } else { random.within(2_000, 30_000) };
    (0..len).map(|at| (n.wrapping_mul(31) + at) as u8 ^ random.below(256) as u8).collect()
}

/// Puts until the disk is full, fills the rest, and waits to be killed.
///
/// # Errors
/// The database's at opening it.
pub fn fill(dir: &Path, placement: &str) -> Result<(), Trouble> {
    fill_up(&room(dir), ROOM_BYTES);
    let db = Db::open_with(dir.join(placement), options(placement)?)?;
    let mut out = std::io::stdout();
    let mut say = |what: u8| out.write_all(&[what]).and_then(|()| out.flush());
    for n in 0.. {
        if db.put(key(n), value(n)).is_err() || say(PUT).is_err() {
            break;
        }
    }
    fill_up(&filler(dir), u64::MAX);
    let _nobody_listens = say(FULL);
    thread::sleep(PATIENCE);
    Ok(())
}

fn filler(dir: &Path) -> PathBuf {
    dir.join("filler")
}

/// What is taken away before a disk is filled, and given back when it shall have room again.
fn room(dir: &Path) -> PathBuf {
    dir.join("room")
}

/// To so many bytes or to the last byte of the disk, as far as the file system gives it away.
fn fill_up(path: &Path, bytes: u64) {
    let Ok(mut file) = fs::OpenOptions::new().create(true).append(true).open(path) else { return };
    let mut left = bytes;
    for piece in [1 << 20, 4096, 512, 1] {
        while left >= piece && file.write_all(&vec![0xA5; piece as usize]).and_then(|()| file.sync_data()).is_ok() {
            left -= piece;
        }
    }
}

/// Gives the disk room again.
fn make_room(dir: &Path) {
    let _gone_already = (fs::remove_file(filler(dir)), fs::remove_file(room(dir)));
}

/// What a killed process left, of which `acknowledged` puts are acknowledged. Prints each check that fails, and goes on
/// where that can be done.
///
/// # Errors
/// How many checks have failed.
pub fn check(dir: &Path, placement: &str, acknowledged: u64) -> Result<(), Trouble> {
    let (path, mut failed) = (dir.join(placement), 0);
    let mut demand = |what: &str, outcome: Result<(), Trouble>| {
        if let Err(trouble) = outcome {
            failed += 1;
            println!("{placement}: {what}: FAILED: {trouble}");
        }
    };
    let read_only = Options { access: Access::ReadOnly, ..options(placement)? };
    demand(
        "a full disk is opened for reading, and everything is there",
        guarded(|| holds_all(&Db::open_with(&path, read_only)?, 0..acknowledged)),
    );
    let opened = guarded(|| Ok(Db::open_with(&path, options(placement)?)?));
    let db = match opened {
        Ok(db) => db,
        Err(trouble) => {
            demand("a full disk is opened", Err(trouble));
            make_room(dir);
            match guarded(|| Ok(Db::open_with(&path, options(placement)?)?)) {
                Ok(db) => db,
                Err(trouble) => {
                    demand("with room again it is opened", Err(trouble));
                    return Err(Trouble::wrong(format!("{failed} checks have failed")));
                }
            }
        }
    };
    demand("nothing acknowledged is lost", guarded(|| holds_all(&db, 0..acknowledged)));
    demand("a full disk is emptied", guarded(|| empty(&db, &path, acknowledged)));
    drop(db);
    make_room(dir);
    demand("with room again it is written to", guarded(|| goes_on(&path, placement, acknowledged)));
    if failed == 0 { Ok(()) } else { Err(Trouble::wrong(format!("{failed} checks have failed"))) }
}

fn holds_all(db: &Db, all: impl Iterator<Item = u64>) -> Result<(), Trouble> {
    for n in all {
        match db.get(key(n))? {
            Some(found) if *found == value(n)[..] => {}
            Some(_) => return Err(Trouble::wrong(format!("{} has another value", key(n)))),
            None => return Err(Trouble::wrong(format!("{} is not there", key(n)))),
        }
    }
    Ok(())
}

/// Deletes every other entry and wants space back for it.
fn empty(db: &Db, path: &Path, acknowledged: u64) -> Result<(), Trouble> {
    let before = bytes_in(path);
    for n in (0..acknowledged).step_by(2) {
        db.delete(key(n)).map_err(|e| Trouble::from(e).during(format!("delete number {}", n / 2)))?;
    }
    db.compact().map_err(|e| Trouble::from(e).during("compaction"))?;
    db.collect_garbage().map_err(|e| Trouble::from(e).during("collection"))?;
    holds_all(db, (1..acknowledged).step_by(2))?;
    let after = bytes_in(path);
    if after * 100 > before * (100 - FREED_PERCENT) {
        return Err(Trouble::wrong(format!("of {before} bytes {after} are still taken")));
    }
    Ok(())
}

fn goes_on(path: &Path, placement: &str, acknowledged: u64) -> Result<(), Trouble> {
    let db = Db::open_with(path, options(placement)?)?;
    for n in acknowledged + 1..acknowledged + 200 {
        db.put(key(n), value(n))?;
    }
    db.sync()?;
    holds_all(&db, (1..acknowledged).step_by(2))?;
    holds_all(&db, acknowledged + 1..acknowledged + 200)?;
    db.close()?;
    match bifold::verify(path)?.problems.first() {
        None => Ok(()),
        Some(problem) => Err(Trouble::wrong(format!("verify: {problem}"))),
    }
}

/// What data takes: not what is kept for a full disk or for appends.
fn bytes_in(dir: &Path) -> u64 {
    let entries = fs::read_dir(dir).into_iter().flatten().flatten();
    let entries = entries.filter(|entry| entry.file_name() != "RESERVE" && entry.file_name() != "APPENDS");
    entries.filter_map(|entry| entry.metadata().ok()).map(|found| found.len()).sum()
}

/// Fills the disk with each placement in turn. `program` is `bifold-sim` itself.
///
/// # Errors
/// Which placements have failed; the checks that did are printed.
pub fn run(program: &Path, dir: &Path) -> Result<(), String> {
    let mut failed = Vec::new();
    for (placement, _) in PLACEMENTS {
        let outcome = guarded(|| fill_and_check(program, dir, placement));
        match &outcome {
            Ok(puts) => println!("{placement}: {puts} puts, and all checks passed"),
            Err(trouble) => println!("{placement}: {trouble}"),
        }
        failed.extend(outcome.err().map(|_| placement));
        let _gone_already = fs::remove_dir_all(dir.join(placement));
        make_room(dir);
    }
    if failed.is_empty() { Ok(()) } else { Err(format!("{}: {} failed", dir.display(), failed.join(", "))) }
}

/// Answers how many puts were acknowledged.
fn fill_and_check(program: &Path, dir: &Path, placement: &str) -> Result<u64, Trouble> {
    let trouble = |e: std::io::Error| Trouble::wrong(format!("child: {e}"));
    let mut command = Command::new(program);
    command.arg("disk-fill").arg(dir).arg(placement).stdout(Stdio::piped());
    let mut child = Killed(command.spawn().map_err(trouble)?);
    let said = child.0.stdout.take().ok_or_else(|| Trouble::wrong("child: no pipe"))?;
    let (mut acknowledged, mut is_full) = (0, false);
    for what in BufReader::new(said).bytes() {
        match what.map_err(trouble)? {
            PUT => acknowledged += 1,
            _ => is_full = true,
        }
        if is_full {
            break;
        }
    }
    if !is_full {
        let status = child.0.wait().map_err(trouble)?;
        return Err(Trouble::wrong(format!("after {acknowledged} puts the process ended by itself: {status}")));
    }
    drop(child);
    let checked =
        Command::new(program).arg("disk-check").arg(dir).args([placement, &acknowledged.to_string()]).status();
    let status = checked.map_err(trouble)?;
    if status.success() {
        Ok(acknowledged)
    } else {
        Err(Trouble::wrong(format!("after {acknowledged} puts and a kill: {status}")))
    }
}

/// A child that does not outlive the test.
struct Killed(Child);

impl Drop for Killed {
    fn drop(&mut self) {
        let _gone_already = self.0.kill();
        let _reaped_already = self.0.wait();
    }
}
