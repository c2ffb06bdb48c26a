//! Real processes on the real disk: a child writes and acknowledges over a pipe, the parent kills it at a random
//! moment, opens what is left and compares.
//!
//! Each writer thread of the child has its own keys and its own numbering, so its commits can be recomputed from the
//! seed alone ([`Commits`]). After the kill, each writer's data must be the state after one of its commits, no earlier
//! than the last one whose acknowledgement the parent has read. A directory is killed many times before it is deleted.
//!
//! Where changes are kept, the child reads its feed while its writers write, and tells the parent what it finds. That
//! survives the kill, too, and the feed has the same commits as the database, with the same numbers as before.

use std::{
    fs,
    io::{Read, Stdout, Write as _},
    path::{Path, PathBuf},
    process::{Child, ChildStdout, Command, Stdio},
    sync::{
        Mutex, PoisonError,
        atomic::{AtomicBool, Ordering},
        mpsc::{Sender, channel},
    },
    thread,
    time::Duration,
};

use bifold::{Db, Durability, Keyspace, KeyspaceOptions, Options, SeqNo, Workers};

use crate::{
    commits::{
        Commits,
        fed::{FedCommit, FedCommits},
        written_by,
    },
    model::{CommitNo, Model, NAMES},
    options::OptionSet,
    random::Random,
    read::{self, Trouble},
    report::{Report, guarded},
};

/// Writer threads of a child.
pub const WRITERS: u8 = 2;

/// Kills of one directory before a new one is used.
const KILLS_PER_DIR: u64 = 8;

/// The longest life of a child: from its start on, or, every other time, from its first commit on.
const LIFE_MAX: Duration = Duration::from_millis(60);

/// A child that has not committed anything by then is killed all the same.
const FIRST_MAX: Duration = Duration::from_secs(10);

/// So long a child waits at the end of its feed. Each look there takes the commit lock.
const FEED_PAUSE: Duration = Duration::from_micros(300);

/// Bytes of what a child tells about a commit: the writer, the commit's number, the number of its last change.
const WORD_BYTES: usize = 17;

/// A bit of the number of the writer: the feed has this commit. Without it, the commit is acknowledged.
const IS_FED: u8 = 0x80;

fn options(seed: u64) -> Options {
    let mut options = OptionSet::new(seed, 0, Durability::Buffered).database;
    options.workers = if seed.is_multiple_of(3) { Workers::Caller } else { Workers::Threads(2) };
    options
}

fn durability(seed: u64) -> Durability {
    if seed.is_multiple_of(2) { Durability::Buffered } else { Durability::Sync }
}

/// A process that writes.
struct ChildRun {
    db: Db,
    trees: [Keyspace; 2],
    commits: Commits,
    durability: Durability,
    out: Mutex<Stdout>,
    stop: AtomicBool,
}

/// The child: opens the database and commits forever, each writer starting at its number in `next`. The feed goes on
/// behind the change `since`. Acknowledgements go to standard output.
///
/// # Errors
/// The database's, and a wrong feed.
pub fn child(dir: &Path, seed: u64, next: &[CommitNo], since: SeqNo) -> Result<(), Trouble> {
    let commits = Commits::of(seed);
    let options = commits.suit(options(seed));
    let db = Db::open_with(dir, options.clone())?;
    let second = db.keyspace(NAMES[1], KeyspaceOptions { filter_bits_per_key: 0, ..options.keyspace })?;
    let trees = [db.default_keyspace().clone(), second];
    let (out, stop, durability) = (Mutex::new(std::io::stdout()), AtomicBool::new(false), durability(seed));
    let writing = ChildRun { db, trees, commits, durability, out, stop };
    thread::scope(|scope| {
        let writing = &writing;
        let mut threads: Vec<_> =
            (0..).zip(next).map(|(w, &first)| scope.spawn(move || writing.guard(|| writing.write(w, first)))).collect();
        if writing.commits.has_feed() {
            threads.push(scope.spawn(move || writing.guard(|| writing.follow(next, since))));
        }
        threads.into_iter().try_for_each(|w| w.join().unwrap_or_else(|_| Err(Trouble::wrong("a thread panicked"))))
    })
}

impl ChildRun {
    /// If one thread ends, stops the others.
    fn guard(&self, work: impl FnOnce() -> Result<(), Trouble>) -> Result<(), Trouble> {
        let outcome = guarded(work);
        self.stop.store(true, Ordering::Release);
        outcome
    }

    fn is_over(&self) -> bool {
        self.stop.load(Ordering::Acquire)
    }

    fn write(&self, writer: u8, first: CommitNo) -> Result<(), Trouble> {
        for n in first.. {
            self.commits.commit((&self.db, &self.trees), (writer, n), self.durability)?;
            self.tell(writer, n, 0);
            if self.is_over() {
                break;
            }
        }
        Ok(())
    }

    fn follow(&self, next: &[CommitNo], since: SeqNo) -> Result<(), Trouble> {
        let heads: Vec<CommitNo> = next.iter().map(|next| next - 1).collect();
        let mut fed = FedCommits::new(&self.commits, &heads, since);
        while !self.is_over() {
            for FedCommit { writer, n, seqno } in fed.catch_up(&self.db)? {
                self.tell(writer | IS_FED, n, seqno);
            }
            thread::sleep(FEED_PAUSE);
        }
        Ok(())
    }

    /// Without a parent there is nobody to write for.
    fn tell(&self, who: u8, n: CommitNo, seqno: SeqNo) {
        let word = [&[who][..], &n.to_le_bytes(), &seqno.to_le_bytes()].concat();
        let mut out = self.out.lock().unwrap_or_else(PoisonError::into_inner);
        if out.write_all(&word).and_then(|()| out.flush()).is_err() {
            self.stop.store(true, Ordering::Release);
        }
    }
}

/// What the parent has heard of a child.
#[derive(Clone, Debug)]
struct Heard {
    /// The last commit acknowledged by each writer.
    acked: Vec<CommitNo>,
    /// The last commit of each writer that was in the feed.
    fed: Vec<CommitNo>,
    /// The last commit in the feed.
    last_fed: Option<FedCommit>,
}

impl Heard {
    /// Reads until the child has ended. Each writer began behind its commit in `heads`. Tells when there is something.
    fn read(mut pipe: ChildStdout, heads: &[CommitNo], begun: &Sender<()>) -> Self {
        let mut heard = Self { acked: heads.to_vec(), fed: heads.to_vec(), last_fed: None };
        let mut word = [0; WORD_BYTES];
        while pipe.read_exact(&mut word).is_ok() {
            let _nobody_may_wait = begun.send(());
            let number = |at: usize| word[at..].first_chunk::<8>().map_or(0, |bytes| u64::from_le_bytes(*bytes));
            let (writer, n, seqno) = (word[0] & !IS_FED, number(1), number(9));
            let is_fed = word[0] & IS_FED != 0;
            let told = if is_fed { &mut heard.fed } else { &mut heard.acked };
            if let Some(told) = told.get_mut(usize::from(writer)) {
                *told = n;
            }
            heard.last_fed = if is_fed { Some(FedCommit { writer, n, seqno }) } else { heard.last_fed };
        }
        heard
    }
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
    let mut lives = Lives::new(dir, seed);
    for number in 0..KILLS_PER_DIR {
        let life = Duration::from_micros(random.below(LIFE_MAX.as_micros() as u64));
        let heard =
            lives.run_and_kill(program, life, if number % 2 == 0 { LifeFrom::Start } else { LifeFrom::Commit })?;
        report.count("kills", 1);
        // The logs know that changes are kept: every other opening says nothing.
        let options = lives.commits.suit(options(seed));
        let retain_changes = options.retain_changes.filter(|_| number % 2 == 0);
        let db = Db::open_with(dir, Options { retain_changes, ..options });
        let db = db.map_err(|e| Trouble::from(e).during("open after a kill"))?;
        lives.judge(&db, &heard, report)?;
        db.close()?;
        let report = bifold::verify(dir)?;
        if let Some(problem) = report.problems.first() {
            return Err(Trouble::wrong(format!("verify: {problem}")));
        }
    }
    Ok(())
}

/// When the life of a child begins to count.
#[derive(Clone, Copy, PartialEq, Eq)]
enum LifeFrom {
    /// It may be killed while it opens the database.
    Start,
    /// On a busy machine it would hardly ever commit otherwise.
    Commit,
}

/// What the children of one directory have left.
struct Lives<'a> {
    dir: &'a Path,
    seed: u64,
    commits: Commits,
    /// What each writer has written.
    models: Vec<Model>,
    /// What the feed has told.
    fed: Vec<FedCommit>,
}

impl<'a> Lives<'a> {
    fn new(dir: &'a Path, seed: u64) -> Self {
        let mut model = Model::default();
        model.begin_create(1);
        Self { dir, seed, commits: Commits::of(seed), models: vec![model; WRITERS as usize], fed: Vec::new() }
    }

    fn heads(&self) -> Vec<CommitNo> {
        self.models.iter().map(Model::head).collect()
    }

    /// The last change of the feed.
    fn since(&self) -> SeqNo {
        self.fed.last().map_or(0, |last| last.seqno)
    }

    /// Starts a child, lets it live for a while and kills it.
    fn run_and_kill(&self, program: &Path, life: Duration, since: LifeFrom) -> Result<Heard, Trouble> {
        let trouble = |e: std::io::Error| Trouble::wrong(format!("child: {e}"));
        let heads = self.heads();
        let next = heads.iter().map(|head| (head + 1).to_string()).collect::<Vec<_>>().join(",");
        let mut command = Command::new(program);
        command.arg("child").arg(self.dir).args([self.seed.to_string(), next, self.since().to_string()]);
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = Killed(command.spawn().map_err(trouble)?);
        let pipe: ChildStdout = child.0.stdout.take().ok_or_else(|| Trouble::wrong("child: no pipe"))?;
        let (begun, has_begun) = channel();
        let reader = thread::spawn(move || Heard::read(pipe, &heads, &begun));
        if since == LifeFrom::Commit {
            let _or_it_takes_too_long = has_begun.recv_timeout(FIRST_MAX);
        }
        thread::sleep(life);
        child.0.kill().map_err(trouble)?;
        let status = child.0.wait().map_err(trouble)?;
        if status.code().is_some() {
            let mut said = String::new();
            let _best_effort = child.0.stderr.take().map(|mut e| e.read_to_string(&mut said));
            return Err(Trouble::wrong(format!("the child ended by itself, {status}: {said}")));
        }
        reader.join().map_err(|_| Trouble::wrong("reading acknowledgements panicked"))
    }

    /// Requires what was heard of.
    fn judge(&mut self, db: &Db, heard: &Heard, report: &mut Report) -> Result<(), Trouble> {
        let (contents, before) = (read::contents(db)?, self.heads());
        for (writer, model) in self.models.iter_mut().enumerate() {
            let (acked, fed) = (heard.acked[writer], heard.fed[writer]);
            report.count("commits acknowledged", acked - before[writer]);
            let is_ingest = |n: &CommitNo| self.commits.is_ingest(writer as u8, *n);
            report.count("ingests", (before[writer] + 1..=acked).filter(is_ingest).count() as u64);
            // One commit more than acknowledged may have been made or be in progress, and may be in the feed.
            if fed > acked + 1 {
                return Err(Trouble::wrong(format!("writer {writer}: the feed had commit {fed} after {acked}")));
            }
            for n in model.head() + 1..=acked + 1 {
                model.begin(&self.commits.changes(writer as u8, n));
            }
            if acked > 0 {
                model.acknowledge_change();
            }
            let own = written_by(&contents, writer as u8);
            let n = model
                .check_between(&own, acked.max(fed)..=acked + 1)
                .map_err(|m| Trouble::wrong(format!("writer {writer}: {m}")))?;
            *model = model.recovered(n, &own);
            if model.current(1).is_none() {
                model.begin_create(1);
            }
        }
        if self.commits.has_feed() {
            self.compare_feed(db, &before, heard.last_fed)?;
            let more = |heads: &[CommitNo]| heads.iter().zip(&before).map(|(head, before)| head - before).sum();
            report.count("commits fed before kills", more(&heard.fed));
            report.count("commits fed", more(&self.heads()));
        }
        Ok(())
    }

    /// Reads the feed from its beginning, and behind what was there before.
    fn compare_feed(&mut self, db: &Db, before: &[CommitNo], seen: Option<FedCommit>) -> Result<(), Trouble> {
        let heads = self.heads();
        let whole = FedCommits::new(&self.commits, &[0; WRITERS as usize], 0).end_with(db, &heads)?;
        let rest = FedCommits::new(&self.commits, before, self.since()).end_with(db, &heads)?;
        if !whole.starts_with(&self.fed) || whole[self.fed.len()..] != rest {
            return Err(Trouble::wrong("the feed has other numbers than before"));
        }
        if let Some(seen) = seen.filter(|seen| !whole.contains(seen)) {
            return Err(Trouble::wrong(format!("before the kill the feed had {seen:?}, which is not there any more")));
        }
        self.fed = whole;
        Ok(())
    }
}

/// A child process that ends with the test.
pub(crate) struct Killed(pub(crate) Child);

impl Drop for Killed {
    fn drop(&mut self) {
        let _may_have_ended = self.0.kill();
        let _reaped_already = self.0.wait();
    }
}

/// The path of the program `bifold-sim`, when it is the one running.
///
/// # Errors
/// The system's.
pub fn this_program() -> Result<PathBuf, Trouble> {
    std::env::current_exe().map_err(|e| Trouble::wrong(format!("the path of this program is unknown: {e}")))
}
