//! A real disk, full to its last byte: a process puts until it is told that the disk is full, and nothing may have
//! failed by then. A filler takes the rest, the process is killed. What it leaves must open, and it must be possible to
//! read it, to empty it and to write to it again.
//!
//! ```text
//! disk DIR                     for each placement: fill, kill, check; one line for each check that fails
//! disk-fill DIR PLACEMENT      the process that is killed: acknowledges every put over a pipe
//! disk-check DIR PLACEMENT N   the checks after N acknowledged puts; a process, so that a signal ends no other check
//! ```
//!
//! `cargo xtask disks` makes file systems for this and mounts them.

use std::{
    fs,
    io::{BufReader, Read as _, Write as _},
    path::{Path, PathBuf},
    process::{Command, Stdio},
    thread,
    time::Duration,
};

use bifold::{
    Access, Db, Error, KeyspaceOptions, Options, PlacementKind, Workers,
    options::{HashKv, Values},
};

use crate::{kill::Killed, random::Random, read::Trouble, report::guarded};

/// The placements, by the names of the command line.
const PLACEMENTS: [(&str, PlacementKind); 7] = [
    ("inline", PlacementKind::Inline),
    ("wisckey", PlacementKind::WiscKey),
    ("hashkv", PlacementKind::HashKv),
    ("novkv", PlacementKind::NovKv),
    ("diffkv", PlacementKind::DiffKv),
    ("unikv", PlacementKind::UniKv),
    ("streams", PlacementKind::Streams),
];

/// A process that does nothing for this long hangs.
const PATIENCE: Duration = Duration::from_secs(120);

/// When half of the entries are deleted, this share of the space must be freed, in percent.
const FREED_PERCENT: u64 = 40;

/// Room that a full disk gets back at the end.
const ROOM_BYTES: u64 = 8 << 20;

/// A disk takes so many puts at least. They have less than a megabyte, and there is room for more than ten.
const PUTS_MIN: u64 = 100;

/// A filling process writes this when the disk is full.
const FULL: u8 = 0;
/// It writes this for each put.
const PUT: u8 = 1;

fn options(placement: &str) -> Result<Options, Trouble> {
    let found = PLACEMENTS.iter().find(|(name, _)| *name == placement);
    let (_, placement) = found.ok_or_else(|| Trouble::wrong(format!("`{placement}` is not a placement")))?;
    let usual = if *placement == PlacementKind::UniKv { KeyspaceOptions::unikv() } else { KeyspaceOptions::default() };
    let values = Values {
        file_bytes: 256 << 10,
        hashkv: HashKv { group_bytes: 1 << 20, ..usual.values.hashkv },
        ..usual.values
    };
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

/// Values of all sizes, most of them short.
fn value(n: u64) -> Vec<u8> {
    let mut random = Random::new(n, "a value on a real disk");
    let len = if random.chance(80) { random.within(100, 2_000) } else { random.within(2_000, 30_000) };
    (0..len).map(|at| (n.wrapping_mul(31) + at) as u8 ^ random.below(256) as u8).collect()
}

/// Puts until the disk is full, fills the rest, and waits to be killed.
///
/// # Errors
/// The database's at opening it; what a put has failed with before the disk was full.
pub fn fill(dir: &Path, placement: &str) -> Result<(), Trouble> {
    fill_up(&room(dir), ROOM_BYTES);
    let db = Db::open_with(dir.join(placement), options(placement)?)?;
    let mut out = std::io::stdout();
    let mut say = |what: u8| out.write_all(&[what]).and_then(|()| out.flush());
    put_until_full(&db, || say(PUT).is_ok())?;
    fill_up(&filler(dir), u64::MAX);
    let _nobody_listens = say(FULL);
    thread::sleep(PATIENCE);
    Ok(())
}

/// Puts until the disk is full, or somebody who is told of each put has heard enough.
///
/// # Errors
/// See [`is_only_full`].
fn put_until_full(db: &Db, mut tell: impl FnMut() -> bool) -> Result<(), Trouble> {
    for n in 0.. {
        match db.put(key(n), value(n)) {
            Ok(()) if tell() => {}
            Ok(()) => break,
            Err(error) => {
                return is_only_full(error, db.stats().poisoned).map_err(|t| t.during(format!("put number {n}")));
            }
        }
    }
    Ok(())
}

/// Requires of a put's error that it says that the disk is full, before anything has failed.
fn is_only_full(error: Error, poisoned: Option<String>) -> Result<(), Trouble> {
    match (error, poisoned) {
        (Error::Full { .. }, None) => Ok(()),
        (Error::Full { .. }, Some(cause)) => Err(Trouble::wrong(format!("refused too late: {cause}"))),
        (error, _) => Err(error.into()),
    }
}

fn filler(dir: &Path) -> PathBuf {
    dir.join("filler")
}

/// Space taken before a disk is filled, and freed when it needs room again.
fn room(dir: &Path) -> PathBuf {
    dir.join("room")
}

/// Appends `bytes` bytes, or as many as the file system allows until the disk is full.
fn fill_up(path: &Path, bytes: u64) {
    let Ok(mut file) = fs::OpenOptions::new().create(true).append(true).open(path) else { return };
    let mut left = bytes;
    for piece in [1 << 20, 4096, 512, 1] {
        while left >= piece && file.write_all(&vec![0xA5; piece as usize]).and_then(|()| file.sync_data()).is_ok() {
            left -= piece;
        }
    }
}

/// Frees space on the disk.
fn make_room(dir: &Path) {
    let _may_not_exist = (fs::remove_file(filler(dir)), fs::remove_file(room(dir)));
}

/// Checks what a killed process left after `acknowledged` acknowledged puts. Prints each check that fails, and
/// continues if possible.
///
/// # Errors
/// How many checks failed.
pub fn check(dir: &Path, placement: &str, acknowledged: u64) -> Result<(), Trouble> {
    let (path, mut failed) = (dir.join(placement), 0);
    let mut require = |what: &str, outcome: Result<(), Trouble>| {
        if let Err(trouble) = outcome {
            failed += 1;
            println!("{placement}: {what}: FAILED: {trouble}");
        }
    };
    let read_only = Options { access: Access::ReadOnly, ..options(placement)? };
    require(
        "a full disk is opened for reading and has everything",
        guarded(|| holds_all(&Db::open_with(&path, read_only)?, 0..acknowledged)),
    );
    let opened = guarded(|| Ok(Db::open_with(&path, options(placement)?)?));
    let db = match opened {
        Ok(db) => db,
        Err(trouble) => {
            require("a full disk is opened", Err(trouble));
            make_room(dir);
            match guarded(|| Ok(Db::open_with(&path, options(placement)?)?)) {
                Ok(db) => db,
                Err(trouble) => {
                    require("with room again it is opened", Err(trouble));
                    return Err(Trouble::wrong(format!("{failed} checks have failed")));
                }
            }
        }
    };
    require("nothing acknowledged is lost", guarded(|| holds_all(&db, 0..acknowledged)));
    require("a full disk is emptied", guarded(|| empty(&db, &path, acknowledged)));
    drop(db);
    make_room(dir);
    require("with room again it is written to", guarded(|| continues(&path, placement, acknowledged)));
    if failed == 0 { Ok(()) } else { Err(Trouble::wrong(format!("{failed} checks have failed"))) }
}

fn holds_all(db: &Db, all: impl Iterator<Item = u64>) -> Result<(), Trouble> {
    for n in all {
        match db.get(key(n))? {
            Some(found) if *found == value(n)[..] => {}
            Some(_) => return Err(Trouble::wrong(format!("{} has another value", key(n)))),
            None => return Err(Trouble::wrong(format!("{} is missing", key(n)))),
        }
    }
    Ok(())
}

/// Deletes every other entry and requires that space is freed.
fn empty(db: &Db, path: &Path, acknowledged: u64) -> Result<(), Trouble> {
    let before = bytes_in(path);
    for n in (0..acknowledged).step_by(2) {
        db.delete(key(n)).map_err(|e| Trouble::from(e).during(format!("delete number {}", n / 2)))?;
    }
    db.compact().map_err(|e| Trouble::from(e).during("compaction"))?;
    db.collect_garbage().map_err(|e| Trouble::from(e).during("GC"))?;
    holds_all(db, (1..acknowledged).step_by(2))?;
    let after = bytes_in(path);
    if after * 100 > before * (100 - FREED_PERCENT) {
        return Err(Trouble::wrong(format!("{after} of {before} bytes are still in use")));
    }
    Ok(())
}

fn continues(path: &Path, placement: &str, acknowledged: u64) -> Result<(), Trouble> {
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

/// The space that data takes, without the files for a full disk and for appends.
fn bytes_in(dir: &Path) -> u64 {
    let entries = fs::read_dir(dir).into_iter().flatten().flatten();
    let entries = entries.filter(|entry| entry.file_name() != "RESERVE" && entry.file_name() != "APPENDS");
    entries.filter_map(|entry| entry.metadata().ok()).map(|found| found.len()).sum()
}

/// Fills the disk with each placement in turn. `program` is `bifold-sim` itself.
///
/// # Errors
/// Which placements failed. Their failed checks are printed.
pub fn run(program: &Path, dir: &Path) -> Result<(), String> {
    let mut failed = Vec::new();
    for (placement, _) in PLACEMENTS {
        let outcome = guarded(|| fill_and_check(program, dir, placement));
        match &outcome {
            Ok(puts) => println!("{placement}: {puts} puts, and all checks passed"),
            Err(trouble) => println!("{placement}: {trouble}"),
        }
        failed.extend(outcome.err().map(|_| placement));
        let _may_not_exist = fs::remove_dir_all(dir.join(placement));
        make_room(dir);
    }
    if failed.is_empty() { Ok(()) } else { Err(format!("{}: {} failed", dir.display(), failed.join(", "))) }
}

/// Returns how many puts were acknowledged.
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
    if acknowledged < PUTS_MIN {
        return Err(Trouble::wrong(format!("only {acknowledged} puts fit on the disk, not even {PUTS_MIN}")));
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

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use bifold::Durability;
    use bifold_io::{
        faulty::{Fault, FaultKind, FaultyFs, Persistence},
        memory::MemoryFs,
    };

    use super::*;
    use crate::{env, options::OptionSet};

    #[test]
    fn a_put_that_fails_for_another_reason_does_not_count_as_a_full_disk() {
        let faulty = FaultyFs::over_memory(MemoryFs::default());
        let options = OptionSet::new(0, 0, Durability::Buffered).database;
        let db = Db::open_in(env::over(Arc::new(faulty.clone())), env::DIR, options).unwrap();
        let mut puts = 0;
        let filled = put_until_full(&db, || {
            puts += 1;
            if puts == 3 {
                let at = faulty.calls() + 1;
                faulty.plan(Fault { at, kind: FaultKind::EIO, persistence: Persistence::Sticky });
            }
            puts < 100
        });
        assert!(filled.is_err_and(|trouble| trouble.to_string().contains("put number 3")), "after {puts} puts");
        assert_eq!(puts, 3);
    }

    #[test]
    fn a_full_disk_counts_only_as_long_as_nothing_has_failed() {
        let full = || Error::Full { path: "/disk".into(), free_bytes: 1, needed_bytes: 2 };
        assert!(is_only_full(full(), None).is_ok());
        assert!(is_only_full(full(), Some("cannot append".into())).is_err());
        assert!(is_only_full(full().poisoned(), None).is_err());
    }
}
