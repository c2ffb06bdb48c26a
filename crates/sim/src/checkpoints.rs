//! Checkpoints that fail or are interrupted: each of their calls fails, alone or together with those after it, and
//! power is lost after each of their changes. The database is open for writing, or read-only after a power loss;
//! checkpoints use hard links, or go to another device.
//!
//! Required: a checkpoint that succeeds is an exact copy. One that fails leaves no directory, or reports that it
//! could not remove it. A power loss leaves a complete copy or something recognisable as no database. Whatever is
//! done to the copy, the database does not change.

use std::{path::Path, sync::Arc};

use bifold::{Access, Db, Error, IfMissing, Options};
use bifold_io::{
    FileSystem,
    faulty::{Fault, FaultKind, FaultyFs, Persistence},
    memory::{Fate, MemoryFs},
};

use crate::{
    camera::{Camera, Plan},
    driver::{Blind, Driver},
    env,
    history::{Flavor, History, Mix, Op},
    judge::verify_is_clean_in,
    model::{Contents, Model},
    options::OptionSet,
    read::{self, Trouble},
    report::{Report, guarded, time_is_up},
};

const MIX: Mix = Mix { ops: 60, keys: 40, flavor: Flavor::Files };

/// Neither directory exists before.
const COPY: &str = "/sim/new/copy";
const ABOVE: &str = "/sim/new";

/// "Invalid cross-device link".
const EXDEV: FaultKind = FaultKind::Errno(18);

const KINDS: [FaultKind; 5] =
    [FaultKind::EIO, FaultKind::ENOSPC, FaultKind::EMFILE, FaultKind::EINTR, FaultKind::ShortWrite];

/// One in `EVERY` calls fails, and power is lost after one in `EVERY` changes; other seeds choose others.
const EVERY: u64 = 3;

/// A lasting fault has ended when the copy is read.
const LASTING: Persistence = Persistence::Calls(20_000);

/// How a checkpoint is made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Mode {
    access: Access,
    devices: Devices,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Devices {
    One,
    Two,
}

const MODES: [Mode; 4] = [
    Mode { access: Access::ReadWrite, devices: Devices::One },
    Mode { access: Access::ReadOnly, devices: Devices::One },
    Mode { access: Access::ReadWrite, devices: Devices::Two },
    Mode { access: Access::ReadOnly, devices: Devices::Two },
];

/// Runs the history of `seed`, then makes a checkpoint in each mode: with each call failing in turn, and with a power
/// loss after each change.
#[must_use]
pub fn run(seed: u64) -> Report {
    let mut report = Report::default();
    for mode in MODES {
        let outcome = guarded(|| {
            let bed = Bed::new(seed, mode)?;
            bed.fail_each_call(seed, &mut report)?;
            bed.lose_power_after_each_change(seed, &mut report)
        });
        if let Err(trouble) = outcome {
            report.fail(format!("checkpoints --seed {seed}"), &trouble.during(format!("{mode:?}")));
        }
    }
    report
}

/// The history of `seed`.
#[must_use]
pub fn history(seed: u64) -> History {
    let history = History::new(seed, MIX);
    let ops = history.ops.into_iter().filter(|(_, op)| *op != Op::Checkpoint).collect();
    History { ops, ..history }
}

/// The files of a database to make checkpoints of.
struct Bed {
    mode: Mode,
    files: MemoryFs,
    set: OptionSet,
}

impl Bed {
    /// What a killed process leaves, or, for read-only access, what a power loss leaves, with torn tails.
    fn new(seed: u64, mode: Mode) -> Result<Self, Trouble> {
        let (fs, history) = (MemoryFs::default(), history(seed));
        let set = OptionSet::new(seed, 0, history.durability);
        let mut driver = Driver::new(env::simulated(&fs), env::DIR.as_ref(), set.clone(), Model::default(), Blind);
        driver.open()?;
        history.ops.iter().try_for_each(|(_, op)| driver.step(op))?;
        let files = match mode.access {
            Access::ReadWrite => fs.fork(),
            Access::ReadOnly | Access::Follow => {
                fs.power_loss(if seed.is_multiple_of(2) { Fate::KeepAll } else { Fate::Random(seed) })
            }
        };
        Ok(Self { mode, files, set })
    }

    fn options(&self) -> Options {
        Options { access: self.mode.access, if_missing: IfMissing::Fail, ..self.set.database.clone() }
    }

    /// A copy of the files behind a layer that can fail calls, the database opened in it, and the contents.
    fn open(&self) -> Result<(MemoryFs, FaultyFs, Db, Contents), Trouble> {
        let fs = self.files.fork();
        let faulty = FaultyFs::over_memory(fs.clone());
        let db = Db::open_in(env::over(Arc::new(faulty.clone())), env::DIR, self.options())?;
        if self.mode.access == Access::ReadWrite {
            // Recovery has left the logs empty.
            for n in 0..9_u8 {
                db.put([b'x', n], vec![n; 90 * usize::from(n)])?;
            }
            // A commit without any durability promise could be lost in the failure of a checkpoint.
            db.sync()?;
        }
        let shown = read::contents(&db)?;
        if self.mode.devices == Devices::Two {
            faulty.decide_by(Box::new(|call| (call.op == "link").then_some(EXDEV)));
        }
        Ok((fs, faulty, db, shown))
    }

    fn fail_each_call(&self, seed: u64, report: &mut Report) -> Result<(), Trouble> {
        for call in (1 + seed % EVERY..).step_by(EVERY as usize) {
            let number = seed + call;
            let persistence = if (number / 5).is_multiple_of(2) { Persistence::Once } else { LASTING };
            let kind = KINDS[(number % 5) as usize];
            let place = format!("call {call} fails by {kind:?}, {persistence:?}");
            if time_is_up() || !self.fail_call(call, kind, persistence, report).map_err(|t| t.during(place))? {
                break;
            }
        }
        Ok(())
    }

    /// Makes a checkpoint whose call number `call` fails. Returns whether there was such a call.
    fn fail_call(&self, call: u64, kind: FaultKind, lasts: Persistence, report: &mut Report) -> Result<bool, Trouble> {
        let (fs, faulty, db, shown) = self.open()?;
        let before = env::files_of(&fs, env::DIR.as_ref())?;
        let first = faulty.calls();
        faulty.plan(Fault { at: first + call, kind, persistence: lasts });
        let made = db.checkpoint(COPY);
        let was_reached = faulty.calls() >= first + call;
        faulty.clear();
        report.count("checkpoints with a failing call", u64::from(was_reached));
        report.count("checkpoints that failed", u64::from(made.is_err()));
        let outcome = match made {
            Ok(()) => self.require_whole(&fs, &shown),
            Err(error) if reports_leftovers(&error) && lasts == LASTING => self.whole_or_none(&fs, &shown).map(drop),
            Err(error) => require_nothing(&fs, &error),
        };
        outcome?;
        drop(db);
        self.require_as_before(&fs, &shown, &before)?;
        Ok(was_reached)
    }

    /// The database is unchanged; after read-only access every byte is.
    fn require_as_before(&self, fs: &MemoryFs, shown: &Contents, before: &env::Files) -> Result<(), Trouble> {
        if self.mode.access == Access::ReadOnly && env::files_of(fs, env::DIR.as_ref())? != *before {
            return Err(Trouble::wrong("files of a database that was open read-only have changed"));
        }
        let db = Db::open_in(env::simulated(fs), env::DIR, self.set.database.clone())
            .map_err(|error| Trouble::wrong(format!("the database does not open after a checkpoint: {error}")))?;
        same(&read::contents(&db)?, shown, "the database after its checkpoint")
    }

    /// The copy holds the same contents and can be used independently.
    fn require_whole(&self, fs: &MemoryFs, shown: &Contents) -> Result<(), Trouble> {
        if self.whole_or_none(fs, shown)? { Ok(()) } else { Err(Trouble::wrong("no copy, and no error")) }
    }

    /// Returns whether there is a copy. If there is, it holds the same contents and can be used independently.
    fn whole_or_none(&self, fs: &MemoryFs, shown: &Contents) -> Result<bool, Trouble> {
        let options = Options { if_missing: IfMissing::Fail, ..self.set.database.clone() };
        let copy = match Db::open_in(env::simulated(fs), COPY, options) {
            Err(Error::NotFound { .. }) => return Ok(false),
            Err(Error::Corruption { detail, .. }) if detail.what == "database directory" => return Ok(false),
            opened => opened.map_err(|error| Trouble::wrong(format!("the copy does not open: {error}")))?,
        };
        same(&read::contents(&copy)?, shown, "the copy")?;
        for name in copy.keyspace_names() {
            let Some(keyspace) = copy.existing_keyspace(&name)? else { continue };
            keyspace.delete_range::<&[u8]>(..)?;
            (0..40_u8).try_for_each(|n| keyspace.put([n], vec![n; 200]))?;
        }
        copy.compact()?;
        copy.close()?;
        verify_is_clean_in(fs, COPY.as_ref())?;
        Ok(true)
    }

    fn lose_power_after_each_change(&self, seed: u64, report: &mut Report) -> Result<(), Trouble> {
        let (fs, _faulty, db, shown) = self.open()?;
        let mut camera = Camera::new(&fs, Plan { seed, every: EVERY, random: 2, only: None });
        db.checkpoint(COPY)?;
        for image in camera.take() {
            // Either may be opened first: neither recovery may harm the other.
            let other = image.fs.fork();
            let whole = self.whole_or_none(&image.fs, &shown).map_err(|t| t.during(&image))?;
            self.require_there(&image.fs, &shown).map_err(|t| t.during(&image))?;
            self.require_there(&other, &shown).map_err(|t| t.during(&image))?;
            let again = self.whole_or_none(&other, &shown).map_err(|t| t.during(&image))?;
            if whole != again {
                return Err(Trouble::wrong("whether there is a copy depends on what is opened first").during(&image));
            }
            report.count("power losses in a checkpoint", 1);
            report.count("of them with a whole copy", u64::from(whole));
        }
        Ok(())
    }

    fn require_there(&self, fs: &MemoryFs, shown: &Contents) -> Result<(), Trouble> {
        let db = Db::open_in(env::simulated(fs), env::DIR, self.set.database.clone())?;
        same(&read::contents(&db)?, shown, "the database after the power loss")
    }
}

/// Whether the error reports that something is left.
fn reports_leftovers(error: &Error) -> bool {
    matches!(error, Error::Io { op: "remove the unfinished checkpoint", .. })
}

fn require_nothing(fs: &MemoryFs, error: &Error) -> Result<(), Trouble> {
    match [COPY, ABOVE].iter().find(|dir| !matches!(fs.kind(Path::new(dir)), Ok(None))) {
        None => Ok(()),
        Some(left) => Err(Trouble::wrong(format!("a failed checkpoint has left {left}: {error}"))),
    }
}

fn same(found: &Contents, right: &Contents, what: &str) -> Result<(), Trouble> {
    if found == right { Ok(()) } else { Err(Trouble::wrong(format!("{what} does not hold the expected contents"))) }
}
