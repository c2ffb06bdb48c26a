//! Real processes on the real disk: a child writes and acknowledges over a pipe, the parent kills it at a random
//! moment, opens what is left and compares.
//!
//! Each writer thread of the child has its own keys and its own numbering, so its commits can be recomputed from the
//! seed alone. After the kill, each writer's data must be the state after one of its commits, no earlier than the
//! last one whose acknowledgement the parent has read. A directory is killed many times before it is deleted.

use std::{
    fs,
    io::{Read, Write as _},
    path::{Path, PathBuf},
    process::{Child, ChildStdout, Command, Stdio},
    sync::Mutex,
    thread,
    time::Duration,
};

use bifold::{Batch, Db, Durability, Keyspace, KeyspaceOptions, Options, Workers};

use crate::{
    history::key_bytes,
    model::{Change, CommitNo, Contents, Entries, Model, NAMES, Name},
    options::OptionSet,
    random::Random,
    read::{self, Trouble},
    report::{Report, guarded},
    value::Spec,
};

/// Writer threads of a child.
pub const WRITERS: u8 = 2;

/// Writers with commits of their own: see [`commit_of`].
pub const WRITERS_MAX: u8 = 4;

/// Kills of one directory before a new one is used.
const KILLS_PER_DIR: u64 = 8;

/// The longest life of a child.
const LIFE_MAX: Duration = Duration::from_millis(60);

/// Bytes of one acknowledgement: the writer, then the commit's number.
const ACK_BYTES: usize = 9;

/// Commit number `n` of a writer: its changes in the first two keyspaces.
#[must_use]
pub fn commit_of(seed: u64, writer: u8, n: CommitNo) -> Vec<Change> {
    let mut random = Random::new(seed ^ n.rotate_left(20) ^ u64::from(writer) << 56, "kill");
    let writes = random.within(1, 5);
    let mut changes: Vec<Change> = (0..writes)
        .map(|_| {
            let name = random.below(2) as Name;
            let key = own_key(writer, random.below(60) as u16);
            if random.chance(20) {
                return Change::Delete(name, key);
            }
            let len = if random.chance(90) { random.within(0, 300) } else { random.within(300, 6000) };
            Change::Put(name, key, Spec { tag: n as u32, len: len as u32 })
        })
        .collect();
    // Every commit stores its number in both keyspaces, so no two states are alike and a torn batch is visible.
    for name in 0..2 {
        changes.push(Change::Put(name, own_key(writer, u16::MAX), Spec { tag: n as u32, len: 8 }));
    }
    changes
}

/// The same commit as a batch.
///
/// # Errors
/// The database's.
pub fn batch_of(trees: &[Keyspace; 2], seed: u64, writer: u8, n: CommitNo) -> Result<Batch, Trouble> {
    let mut batch = Batch::new();
    for change in commit_of(seed, writer, n) {
        match change {
            Change::Merge(name, key, operand) => batch.merge(&trees[name as usize], key, operand.bytes())?,
            Change::PutUntil(name, key, value, until) => {
                batch.put_until(&trees[name as usize], key, value.bytes(), Some(until.moment()))?
            }
            Change::Put(name, key, value) => batch.put(&trees[name as usize], key, value.bytes())?,
            Change::Delete(name, key) => batch.delete(&trees[name as usize], key)?,
            Change::DeleteRange(name, bounds) => batch.delete_range(&trees[name as usize], bounds)?,
        };
    }
    Ok(batch)
}

fn own_key(writer: u8, key: u16) -> Box<[u8]> {
    [&[writer][..], &key_bytes(key)].concat().into()
}

fn options(seed: u64) -> Options {
    let mut options = OptionSet::new(seed, 0, Durability::Buffered).database;
    options.workers = if seed.is_multiple_of(3) { Workers::Caller } else { Workers::Threads(2) };
    options
}

fn durability(seed: u64) -> Durability {
    if seed.is_multiple_of(2) { Durability::Buffered } else { Durability::Sync }
}

/// The child: opens the database and commits forever, each writer starting at its number in `next`. Acknowledgements
/// go to standard output.
///
/// # Errors
/// The database's.
pub fn child(dir: &Path, seed: u64, next: &[CommitNo]) -> Result<(), Trouble> {
    let db = Db::open_with(dir, options(seed))?;
    let second = db.keyspace(NAMES[1], KeyspaceOptions { filter_bits_per_key: 0, ..options(seed).keyspace })?;
    let trees = [db.default_keyspace().clone(), second];
    let out = Mutex::new(std::io::stdout());
    let write = |writer: u8, first: CommitNo| -> Result<(), Trouble> {
        for n in first.. {
            db.commit_with(batch_of(&trees, seed, writer, n)?, durability(seed))?;
            let mut ack = vec![writer];
            ack.extend(n.to_le_bytes());
            let mut out = out.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
            if out.write_all(&ack).and_then(|()| out.flush()).is_err() {
                return Ok(());
            }
        }
        Ok(())
    };
    thread::scope(|scope| {
        let writers: Vec<_> = (0..WRITERS)
            .map(|w| {
                scope.spawn({
                    let write = &write;
                    move || write(w, next[w as usize])
                })
            })
            .collect();
        writers.into_iter().try_for_each(|w| w.join().unwrap_or_else(|_| Err(Trouble::wrong("a writer panicked"))))
    })
}

/// Kills children on a directory of its own, `KILLS_PER_DIR` times. `program` is `bifold-sim` itself.
#[must_use]
pub fn run(program: &Path, seed: u64) -> Report {
    let mut report = Report::default();
    let dir = std::env::temp_dir().join(format!("bifold-kill-{}-{seed}", std::process::id()));
    let outcome = guarded(|| kill_again_and_again(program, &dir, seed, &mut report));
    match outcome {
        Ok(()) => drop(fs::remove_dir_all(&dir)),
        Err(trouble) => report.fail(format!("kill --seed {seed}"), &trouble.during(dir.display())),
    }
    report
}

fn kill_again_and_again(program: &Path, dir: &Path, seed: u64, report: &mut Report) -> Result<(), Trouble> {
    let mut random = Random::new(seed, "moments");
    let mut models: Vec<Model> = vec![Model::default(); WRITERS as usize];
    for model in &mut models {
        model.begin_create(1);
    }
    for _ in 0..KILLS_PER_DIR {
        let life = Duration::from_micros(random.below(LIFE_MAX.as_micros() as u64));
        let next: Vec<CommitNo> = models.iter().map(|m| m.head() + 1).collect();
        let acked = run_and_kill(program, dir, seed, &next, life)?;
        report.count("kills", 1);
        report.count("commits acknowledged", acked.iter().zip(&next).map(|(a, n)| (a + 1).saturating_sub(*n)).sum());
        let db = Db::open_with(dir, options(seed)).map_err(|e| Trouble::from(e).during("open after a kill"))?;
        let contents = read::contents(&db)?;
        for (writer, model) in models.iter_mut().enumerate() {
            // One commit more than acknowledged may have been made or be in progress.
            for n in model.head() + 1..=acked[writer] + 1 {
                model.begin(&commit_of(seed, writer as u8, n));
            }
            if acked[writer] > 0 {
                model.acknowledge_change();
            }
            let own = written_by(&contents, writer as u8);
            let n = model
                .check_between(&own, acked[writer]..=acked[writer] + 1)
                .map_err(|m| Trouble::wrong(format!("writer {writer}: {m}")))?;
            *model = model.recovered(n, &own);
            if model.current(1).is_none() {
                model.begin_create(1);
            }
        }
        db.close()?;
        let report = bifold::verify(dir)?;
        if let Some(problem) = report.problems.first() {
            return Err(Trouble::wrong(format!("verify: {problem}")));
        }
    }
    Ok(())
}

/// The entries that one writer wrote.
#[must_use]
pub fn written_by(contents: &Contents, writer: u8) -> Contents {
    let own = |entries: &Entries| entries.iter().filter(|(k, _)| k[0] == writer).cloned().collect();
    contents.iter().map(|(name, entries)| (name.clone(), own(entries))).collect()
}

/// Starts a child, lets it live for a while and kills it. Returns the last number acknowledged by each writer.
fn run_and_kill(
    program: &Path,
    dir: &Path,
    seed: u64,
    next: &[CommitNo],
    life: Duration,
) -> Result<Vec<CommitNo>, Trouble> {
    let trouble = |e: std::io::Error| Trouble::wrong(format!("child: {e}"));
    let words = next.iter().map(CommitNo::to_string).collect::<Vec<_>>().join(",");
    let mut command = Command::new(program);
    command.arg("child").arg(dir).args([seed.to_string(), words]).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = Killed(command.spawn().map_err(trouble)?);
    let pipe: ChildStdout = child.0.stdout.take().ok_or_else(|| Trouble::wrong("child: no pipe"))?;
    let reader = thread::spawn(move || acknowledgements(pipe));
    thread::sleep(life);
    child.0.kill().map_err(trouble)?;
    let status = child.0.wait().map_err(trouble)?;
    if status.code().is_some() {
        let mut said = String::new();
        let _best_effort = child.0.stderr.take().map(|mut e| e.read_to_string(&mut said));
        return Err(Trouble::wrong(format!("the child ended by itself, {status}: {said}")));
    }
    let acked = reader.join().map_err(|_| Trouble::wrong("reading acknowledgements panicked"))?;
    Ok(acked.iter().zip(next).map(|(acked, next)| (*acked).max(next - 1)).collect())
}

/// A child process that ends with the test.
pub(crate) struct Killed(pub(crate) Child);

impl Drop for Killed {
    fn drop(&mut self) {
        let _may_have_ended = self.0.kill();
        let _reaped_already = self.0.wait();
    }
}

fn acknowledgements(mut pipe: ChildStdout) -> Vec<CommitNo> {
    let mut acked = vec![0; WRITERS as usize];
    let mut ack = [0; ACK_BYTES];
    while pipe.read_exact(&mut ack).is_ok() {
        if let (Some(slot), Some(n)) = (acked.get_mut(ack[0] as usize), ack[1..].first_chunk::<8>()) {
            *slot = CommitNo::from_le_bytes(*n).max(*slot);
        }
    }
    acked
}

/// The path of the program `bifold-sim`, when it is the one running.
///
/// # Errors
/// The system's.
pub fn this_program() -> Result<PathBuf, Trouble> {
    std::env::current_exe().map_err(|e| Trouble::wrong(format!("the path of this program is unknown: {e}")))
}
