//! What the proofs of checkpoints and of backups share: the files to copy, the calls that fail, and how copies are
//! compared.

use std::path::Path;

use bifold::{Access, Db, Error, Options};
use bifold_io::{
    faulty::{FaultKind, Persistence},
    memory::{Fate, MemoryFs},
};

use crate::{
    camera::Plan,
    driver::{Blind, Driver},
    env,
    history::{Flavor, History, Mix, Op},
    model::{Contents, Model},
    options::OptionSet,
    read::Trouble,
    report::time_is_up,
};

const MIX: Mix = Mix { ops: 60, keys: 40, flavor: Flavor::Files };

const KINDS: [FaultKind; 5] =
    [FaultKind::EIO, FaultKind::ENOSPC, FaultKind::EMFILE, FaultKind::EINTR, FaultKind::ShortWrite];

/// One in `EVERY` calls fails, and power is lost after one in `EVERY` changes; other seeds choose others.
const EVERY: u64 = 3;

/// A lasting fault has ended when the copy is read.
pub const LASTING: Persistence = Persistence::Calls(20_000);

/// The history of `seed`.
#[must_use]
pub fn history(seed: u64) -> History {
    let history = History::new(seed, MIX);
    let ops = history.ops.into_iter().filter(|(_, op)| *op != Op::Checkpoint).collect();
    History { ops, ..history }
}

/// What a killed process leaves after the history of `seed`, or, for read-only access, what a power loss leaves, with
/// torn tails.
pub(crate) fn left_by(seed: u64, access: Access) -> Result<(MemoryFs, OptionSet), Trouble> {
    let (fs, history) = (MemoryFs::default(), history(seed));
    let set = OptionSet::of(&history, 0);
    let mut driver = Driver::new(env::simulated(&fs), env::DIR.as_ref(), set.clone(), Model::default(), Blind);
    driver.open()?;
    history.ops.iter().try_for_each(|(_, op)| driver.step(op))?;
    let files = match access {
        Access::ReadWrite => fs.fork(),
        Access::ReadOnly | Access::Follow => {
            fs.power_loss(if seed.is_multiple_of(2) { Fate::KeepAll } else { Fate::Random(seed) })
        }
    };
    Ok((files, set))
}

/// Has one call after the other fail. `fail` returns whether there was a call of that number.
pub(crate) fn fail_each_call(
    seed: u64,
    mut fail: impl FnMut(u64, FaultKind, Persistence) -> Result<bool, Trouble>,
) -> Result<(), Trouble> {
    for call in (1 + seed % EVERY..).step_by(EVERY as usize) {
        let number = seed + call;
        let persistence = if (number / 5).is_multiple_of(2) { Persistence::Once } else { LASTING };
        let kind = KINDS[(number % 5) as usize];
        let place = format!("call {call} fails by {kind:?}, {persistence:?}");
        if time_is_up() || !fail(call, kind, persistence).map_err(|trouble| trouble.during(place))? {
            break;
        }
    }
    Ok(())
}

/// After which changes power is lost.
pub(crate) fn power_losses(seed: u64) -> Plan {
    Plan { seed, every: EVERY, random: 2, only: None }
}

/// The database at `path`, or `None` if what is there is recognisable as no database.
pub(crate) fn open_if_whole(fs: &MemoryFs, path: &Path, options: Options) -> Result<Option<Db>, Trouble> {
    match Db::open_in(env::simulated(fs), path, options) {
        Err(Error::NotFound { .. }) => Ok(None),
        Err(Error::Corruption { detail, .. }) if detail.what == "database directory" => Ok(None),
        Err(error) => Err(Trouble::wrong(format!("the copy at {} does not open: {error}", path.display()))),
        Ok(db) => Ok(Some(db)),
    }
}

pub(crate) fn same(found: &Contents, right: &Contents, what: &str) -> Result<(), Trouble> {
    if found == right { Ok(()) } else { Err(Trouble::wrong(format!("{what} does not hold the expected contents"))) }
}
