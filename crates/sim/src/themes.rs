//! The list of all tests, by name: what each runs per seed in a soak, and how a failure is repeated.

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
};

use crate::{
    backups, beside,
    bitflip::{self, Damage, Open, SmallDatabase},
    checkpoints, concurrent, damage, damaged_program, determinism, each_sync, errno, exhaustive, followers, full,
    history::{History, RangeInclusiveOf},
    kill, lost_sync, metamorphic, nested, power, program,
    read::Trouble,
    report::{Report, guarded},
    splits, syscalls, transactions,
};

/// One test.
pub struct Theme {
    /// Its name.
    pub name: &'static str,
    /// Runs one seed of it, as a soak does.
    pub soak: fn(u64) -> Report,
}

/// The identification of one failure.
#[derive(Clone, Debug, Default)]
pub struct Replay {
    /// The seed.
    pub seed: u64,
    /// The positions of the history to keep; `None`: all.
    pub keep: Option<Vec<RangeInclusiveOf>>,
    /// The other numbers, by name.
    pub numbers: BTreeMap<String, u64>,
}

/// All tests.
pub const THEMES: &[Theme] = &[
    Theme { name: "power", soak: |seed| power::run("power", seed, power::PowerSizes::usual(), None) },
    Theme { name: "nested", soak: |seed| power::run("nested", seed, nested_sizes(), None) },
    Theme { name: "exhaustive", soak: |seed| exhaustive::run(seed, None) },
    Theme { name: "splits", soak: |seed| splits::run(seed, None) },
    Theme { name: "errno", soak: |seed| errno::run(seed, errno::ErrnoSizes::usual()) },
    Theme { name: "checkpoints", soak: checkpoints::run },
    Theme { name: "backups", soak: backups::run },
    Theme { name: "followers", soak: followers::run },
    Theme { name: "full", soak: full::run },
    Theme { name: "metamorphic", soak: metamorphic::run },
    Theme { name: "bitflip", soak: |seed| bitflip::run(seed, BITFLIP_EVERY, 16) },
    Theme { name: "damage", soak: |seed| damage::run(seed, damage::TIMES) },
    Theme {
        name: "damaged_program",
        soak: |seed| with_program(|program| damaged_program::run(program, seed, 0..damaged_program::TIMES)),
    },
    Theme { name: "kill", soak: kill_this },
    Theme { name: "beside", soak: |seed| with_this(|program| beside::run(program, seed)) },
    Theme { name: "opens", soak: |seed| with_this(|program| beside::opens(program, seed)) },
    Theme {
        name: "syscalls",
        soak: |seed| with_this(|program| syscalls::run(program, seed, syscalls::SyscallSizes::usual())),
    },
    Theme { name: "program", soak: |seed| with_program(|program| program::run(program, seed, 7)) },
    Theme { name: "concurrent", soak: |seed| concurrent::run(seed, CONCURRENT_STEPS) },
    Theme { name: "lost_sync", soak: lost_sync::run },
    Theme { name: "each_sync", soak: each_sync::run },
    Theme { name: "transactions", soak: transactions::run },
    Theme { name: "determinism", soak: determinism::run },
];

/// All bits of one database take minutes. This many seeds flip each bit once, of different databases.
const BITFLIP_EVERY: u64 = 64;

const CONCURRENT_STEPS: u64 = 2000;

/// The histories of the nested test: the same as for power loss, with every seventh image crashed again.
#[must_use]
pub fn nested_sizes() -> power::PowerSizes {
    let nested = nested::NestedSizes { every: 7, third_every: 97, random: 1 };
    power::PowerSizes { every: 5, nested: Some(nested), ..power::PowerSizes::usual() }
}

fn kill_this(seed: u64) -> Report {
    with_this(|program| kill::run(program, seed))
}

fn with_this(run: impl FnOnce(&Path) -> Report) -> Report {
    with(kill::this_program(), run)
}

fn with_program(run: impl FnOnce(&Path) -> Report) -> Report {
    with(program::next_to_this(), run)
}

fn with(program: Result<PathBuf, Trouble>, run: impl FnOnce(&Path) -> Report) -> Report {
    match program {
        Ok(program) => run(&program),
        Err(trouble) => {
            let mut report = Report::default();
            report.fail("finding the program", &trouble);
            report
        }
    }
}

/// The test called `name`.
///
/// # Errors
/// The names that exist.
pub fn find(name: &str) -> Result<&'static Theme, String> {
    let names = || THEMES.iter().map(|t| t.name).collect::<Vec<_>>().join(", ");
    THEMES.iter().find(|t| t.name == name).ok_or_else(|| format!("`{name}` is not a test: use one of {}", names()))
}

/// The history that a replay of `name` runs.
///
/// # Errors
/// When that test has no history.
pub fn history(name: &str, replay: &Replay) -> Result<History, String> {
    let whole = match name {
        "metamorphic" => metamorphic::history(replay.seed),
        "power" | "nested" => History::new(replay.seed, power::PowerSizes::usual().mix).with_changes_of_options(),
        "exhaustive" => exhaustive::history(replay.seed),
        "splits" => splits::history(replay.seed),
        "errno" => errno::history(replay.seed),
        "checkpoints" => checkpoints::history(replay.seed),
        "backups" => backups::history(replay.seed),
        "followers" => followers::watched::history(replay.seed),
        "determinism" => determinism::history(replay.seed),
        other => return Err(format!("`{other}` has no history to show")),
    };
    Ok(match &replay.keep {
        Some(keep) => whole.filtered(|at| keep.iter().any(|run| run.contains(&at))),
        None => whole,
    })
}

/// Repeats one failure.
///
/// # Errors
/// When the numbers make no sense. Whether it fails is in the report.
pub fn replay(name: &str, replay: &Replay) -> Result<Report, String> {
    let number = |name: &str| replay.numbers.get(name).copied();
    let seed = replay.seed;
    let mut report = Report::default();
    match (name, number("image"), number("set")) {
        ("power", image, _) => return Ok(power::run("power", seed, power::PowerSizes::usual(), image)),
        ("nested", image, _) => return Ok(power::run("nested", seed, nested_sizes(), image)),
        ("exhaustive", image, _) => return Ok(exhaustive::run(seed, image)),
        ("splits", image, _) => return Ok(splits::run(seed, image)),
        ("metamorphic", _, Some(set)) => {
            if let Err(trouble) = metamorphic::run_one(&history(name, replay)?, set) {
                report.fail("metamorphic (as given)", &trouble);
            }
        }
        ("errno", ..) => return Ok(errno::replay(seed, number("call"), number("fault"))),
        ("bitflip", ..) => return Ok(replay_bitflip(seed, number("file"), number("flip"), number("cut"))),
        ("damage", ..) => return Ok(damage::replay(seed, number("number"))),
        ("damaged_program", ..) => {
            return Ok(with_program(|program| damaged_program::replay(program, seed, number("number"))));
        }
        ("program", ..) => {
            let (call, error) = (number("call"), number("error"));
            return Ok(with_program(|program| program::replay(program, seed, call, error)));
        }
        ("syscalls", ..) => {
            let place = syscalls::FailurePlace {
                call: number("call").unwrap_or(0),
                error: number("error"),
                recovery: number("recovery"),
                recovery_error: number("recovery-error"),
                again: number("again"),
            };
            return Ok(with_this(|program| syscalls::replay(program, seed, place)));
        }
        ("transactions", ..) => return Ok(transactions::again(seed)),
        ("concurrent", ..) => return Ok(concurrent::run(seed, number("steps").unwrap_or(CONCURRENT_STEPS))),
        _ => return find(name).map(|theme| (theme.soak)(seed)),
    }
    Ok(report)
}

fn replay_bitflip(seed: u64, file: Option<u64>, flip: Option<u64>, cut: Option<u64>) -> Report {
    let mut report = Report::default();
    let damage = flip.map(Damage::Flip).or(cut.map(Damage::Truncate));
    let outcome = guarded(|| match (file, damage) {
        (Some(file), Some(damage)) => SmallDatabase::new(seed)?.damaged(file as usize, damage, Open::Yes),
        _ => SmallDatabase::new(seed).map(drop),
    });
    if let Err(trouble) = outcome {
        report.fail("bitflip (as given)", &trouble);
    }
    report
}
