//! Backups, prunings and restorations that fail or are interrupted: each of their calls fails, alone or together with
//! those after it, and power is lost after each of their changes.
//!
//! Required: older generations restore exactly, whatever happens. A backup that succeeds restores exactly; one that
//! fails or is interrupted is whole or absent. The next backup succeeds, and after pruning nothing is left that no
//! generation names. A restoration that fails leaves no directory, or reports that it could not remove it. The database
//! does not change.

use std::{path::Path, sync::Arc};

use bifold::{Access, Backup, Db, Error, IfMissing, Options};
use bifold_io::{
    FileSystem,
    faulty::{Fault, FaultKind, FaultyFs, Persistence},
    memory::{Fate, MemoryFs},
};

pub use crate::copies::history;
use crate::{
    camera::Camera,
    copies::{LASTING, fail_each_call, left_by, open_if_whole, power_losses, same},
    env,
    judge::verify_is_clean_in,
    model::Contents,
    options::OptionSet,
    read::{self, Trouble},
    report::{Report, guarded, time_is_up},
};

/// The repository. Neither directory exists before.
const REPOSITORY: &str = "/sim/kept/backups";
const STORED: &str = "/sim/kept/backups/files";

/// Where a restored database is written to, which gives the same numbers to other files.
const BRANCH: &str = "/sim/branch";

/// Where generations are restored to.
const RESTORED: &str = "/sim/again";

/// What there is before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Scene {
    /// No repository.
    First,
    /// A generation of the same database, which was written to since.
    Later,
    /// Two generations of a database; the first was restored and written to.
    Branch,
    /// A generation of a database that is open read-only after a power loss.
    ReadOnly,
}

impl Scene {
    fn access(self) -> Access {
        if self == Self::ReadOnly { Access::ReadOnly } else { Access::ReadWrite }
    }
}

/// What fails or is interrupted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Act {
    Backup,
    Prune,
    Restore,
}

const ACTS: [(Scene, Act); 6] = [
    (Scene::First, Act::Backup),
    (Scene::Later, Act::Backup),
    (Scene::Branch, Act::Backup),
    (Scene::ReadOnly, Act::Backup),
    (Scene::Branch, Act::Prune),
    (Scene::Later, Act::Restore),
];

/// Runs the history of `seed`, then makes backups of what it left, prunes and restores them: with each call failing in
/// turn, and with a power loss after each change.
#[must_use]
pub fn run(seed: u64) -> Report {
    let mut report = Report::default();
    for (scene, act) in ACTS {
        let outcome = guarded(|| {
            let bed = Repositories::new(seed, scene, act)?;
            fail_each_call(seed, |call, kind, lasts| bed.fail_call(call, kind, lasts, &mut report))?;
            bed.lose_power_after_each_change(seed, &mut report)
        });
        if let Err(trouble) = outcome {
            report.fail(format!("backups --seed {seed}"), &trouble.during(format!("{act:?}, {scene:?}")));
        }
    }
    report
}

/// The files of a database and its repository.
struct Repositories {
    scene: Scene,
    act: Act,
    files: MemoryFs,
    set: OptionSet,
    /// What each generation holds, the oldest first.
    former: Vec<Contents>,
}

/// A copy of the files, with the database open.
struct BackupStage {
    fs: MemoryFs,
    faulty: FaultyFs,
    db: Db,
    /// What the database holds.
    shown: Contents,
    /// What the generations hold.
    former: Vec<Contents>,
}

impl Repositories {
    fn new(seed: u64, scene: Scene, act: Act) -> Result<Self, Trouble> {
        let (files, set) = left_by(seed, scene.access())?;
        let mut bed = Self { scene, act, files, set, former: Vec::new() };
        if scene != Scene::First {
            let db = Db::open_in(env::simulated(&bed.files), env::DIR, bed.options())?;
            bed.former.push(backed_up(&db)?);
            if scene == Scene::Branch {
                write(&db, b'o')?;
                bed.former.push(backed_up(&db)?);
                Backup::open_in(env::simulated(&bed.files), REPOSITORY)?.restore_generation(1, BRANCH)?;
            }
        }
        Ok(bed)
    }

    fn options(&self) -> Options {
        Options { access: self.scene.access(), if_missing: IfMissing::Fail, ..self.set.database.clone() }
    }

    fn database(&self) -> &'static str {
        if self.scene == Scene::Branch { BRANCH } else { env::DIR }
    }

    fn open(&self) -> Result<BackupStage, Trouble> {
        let fs = self.files.fork();
        let faulty = FaultyFs::over_memory(fs.clone());
        let db = Db::open_in(env::over(Arc::new(faulty.clone())), self.database(), self.options())?;
        if self.scene != Scene::ReadOnly {
            write(&db, b'x')?;
        }
        let shown = read::contents(&db)?;
        let mut former = self.former.clone();
        if self.act != Act::Backup {
            former.push(backed_up(&db)?);
        }
        Ok(BackupStage { fs, faulty, db, shown, former })
    }

    fn act(&self, stage: &BackupStage) -> bifold::Result<()> {
        let backup = || Backup::open_in(env::over(Arc::new(stage.faulty.clone())), REPOSITORY);
        match self.act {
            Act::Backup => stage.db.backup(REPOSITORY).map(drop),
            Act::Prune => backup()?.prune(1).map(drop),
            Act::Restore => backup()?.restore(RESTORED),
        }
    }

    /// Acts, and call number `call` fails. Returns whether there was such a call.
    fn fail_call(&self, call: u64, kind: FaultKind, lasts: Persistence, report: &mut Report) -> Result<bool, Trouble> {
        let stage = self.open()?;
        let first = stage.faulty.calls();
        stage.faulty.plan(Fault { at: first + call, kind, persistence: lasts });
        let done = self.act(&stage);
        let was_reached = stage.faulty.calls() >= first + call;
        stage.faulty.clear();
        report.count("backups, prunings and restorations with a failing call", u64::from(was_reached));
        report.count("of them that failed", u64::from(done.is_err()));
        let BackupStage { fs, db, shown, former, .. } = stage;
        drop(db);
        match (self.act, &done) {
            (Act::Restore, Ok(())) => self.require_restored(&fs, &shown)?,
            (Act::Restore, Err(error)) if reports_leftovers(error) && lasts == LASTING => {
                self.is_restored(&fs, &shown)?;
            }
            (Act::Restore, Err(error)) if !matches!(fs.kind(RESTORED.as_ref()), Ok(None)) => {
                return Err(Trouble::wrong(format!("a failed restoration has left its directory: {error}")));
            }
            _ => {}
        }
        let must_be_there = self.act == Act::Backup && done.is_ok();
        self.judge(&fs, &former, &shown, must_be_there)?;
        Ok(was_reached)
    }

    fn lose_power_after_each_change(&self, seed: u64, report: &mut Report) -> Result<(), Trouble> {
        let stage = self.open()?;
        let mut camera = Camera::new(&stage.fs, power_losses(seed));
        self.act(&stage)?;
        for image in camera.take() {
            if time_is_up() {
                break;
            }
            if self.act == Act::Restore {
                self.is_restored(&image.fs.fork(), &stage.shown).map_err(|t| t.during(&image))?;
            }
            let whole = self.judge(&image.fs, &stage.former, &stage.shown, false).map_err(|t| t.during(&image))?;
            report.count("power losses meanwhile", 1);
            report.count("of them with a whole new generation", u64::from(whole));
        }
        Ok(())
    }

    /// Judges the repository and the database, and goes on with both. Returns whether the new generation is there.
    fn judge(&self, fs: &MemoryFs, former: &[Contents], shown: &Contents, must: bool) -> Result<bool, Trouble> {
        let whole = self.judge_repository(fs, former, shown, must)?;
        let db = Db::open_in(env::simulated(fs), self.database(), self.options())?;
        same(&read::contents(&db)?, shown, "the database")?;
        let made = db.backup(REPOSITORY).map_err(|error| Trouble::wrong(format!("the next backup fails: {error}")))?;
        // What a pruning has removed may come back.
        for fate in [Fate::DropUnsynced, Fate::Random(made.number)] {
            sound(&fs.power_loss(fate)).map_err(|t| t.during("a power loss after the next backup"))?;
        }
        let backup = Backup::open_in(env::simulated(fs), REPOSITORY)?;
        backup.prune(1)?;
        self.restore(fs, &backup, made.number, shown)?;
        let stored: u64 =
            fs.list(STORED.as_ref())?.iter().filter_map(|path| fs.read(path)).map(|b| b.len() as u64).sum();
        if stored != made.bytes {
            return Err(Trouble::wrong(format!("{stored} bytes are stored for a generation of {}", made.bytes)));
        }
        Ok(whole)
    }

    fn judge_repository(
        &self,
        fs: &MemoryFs,
        former: &[Contents],
        shown: &Contents,
        must: bool,
    ) -> Result<bool, Trouble> {
        let backup = match Backup::open_in(env::simulated(fs), REPOSITORY) {
            Err(Error::InvalidArgument { .. }) if former.is_empty() && !must => return Ok(false),
            opened => opened?,
        };
        sound(fs)?;
        let generations = backup.generations()?;
        let all: Vec<&Contents> = former.iter().chain([shown]).collect();
        let (first, last) = (generations.first().map_or(1, |g| g.number), generations.last().map_or(0, |g| g.number));
        let is_pruned = self.act == Act::Prune && last == former.len() as u64;
        let is_new = last == all.len() as u64;
        if !(first == 1 || is_pruned) || !(is_new || last == former.len() as u64) || must && !is_new {
            return Err(Trouble::wrong(format!("generations {first} to {last} of {}", former.len())));
        }
        for generation in &generations {
            let right = all[generation.number as usize - 1];
            let place = || format!("generation {} of {last}", generation.number);
            self.restore(fs, &backup, generation.number, right).map_err(|t| t.during(place()))?;
        }
        Ok(is_new)
    }

    /// Restores a generation and compares it.
    fn restore(&self, fs: &MemoryFs, backup: &Backup, number: u64, right: &Contents) -> Result<(), Trouble> {
        let copy = fs.fork();
        let path = format!("/sim/of-{number}");
        Backup::open_in(env::simulated(&copy), backup.path())?.restore_generation(number, &path)?;
        verify_is_clean_in(&copy, path.as_ref())?;
        let options = Options { access: Access::ReadWrite, ..self.options() };
        let db = Db::open_in(env::simulated(&copy), &path, options)?;
        same(&read::contents(&db)?, right, "the restored database")
    }

    fn require_restored(&self, fs: &MemoryFs, shown: &Contents) -> Result<(), Trouble> {
        if self.is_restored(fs, shown)? { Ok(()) } else { Err(Trouble::wrong("nothing is restored, and no error")) }
    }

    /// Whether there is a restored database. If there is, it holds the right contents.
    fn is_restored(&self, fs: &MemoryFs, shown: &Contents) -> Result<bool, Trouble> {
        let Some(db) = open_if_whole(fs, RESTORED.as_ref(), self.options())? else { return Ok(false) };
        same(&read::contents(&db)?, shown, "what was restored")?;
        drop(db);
        verify_is_clean_in(fs, Path::new(RESTORED))?;
        Ok(true)
    }
}

/// Every generation of the repository is whole.
fn sound(fs: &MemoryFs) -> Result<(), Trouble> {
    match Backup::open_in(env::simulated(fs), REPOSITORY)?.verify()?.problems.first() {
        None => Ok(()),
        Some(problem) => Err(Trouble::wrong(format!("the repository is damaged: {problem}"))),
    }
}

/// Makes a generation, and returns what it holds.
fn backed_up(db: &Db) -> Result<Contents, Trouble> {
    let shown = read::contents(db)?;
    db.backup(REPOSITORY)?;
    Ok(shown)
}

/// Writes what is in tables, and what is in logs. Values differ by `of`, and their lengths do not.
fn write(db: &Db, of: u8) -> Result<(), Trouble> {
    for flushes in [true, false] {
        for n in 0..9_u8 {
            db.put([b'x', n, u8::from(flushes)], vec![of; 90 * usize::from(n)])?;
        }
        if flushes {
            db.flush()?;
        }
    }
    // A commit without any durability promise could be lost in the failure of a backup.
    Ok(db.sync()?)
}

/// Whether the error reports that something is left.
fn reports_leftovers(error: &Error) -> bool {
    matches!(error, Error::Io { op: "remove the unfinished restored database", .. })
}
