//! The program `bifold-sim`: repeats failures, soaks for minutes or hours, wakes planted bugs.
//!
//! ```text
//! bifold-sim replay TEST --seed N [--image N] [--set N] [--keep LIST] …   repeat one failure, as printed by a test
//! bifold-sim show TEST --seed N [--keep LIST]                             print the history of a seed
//! bifold-sim soak [TEST …] --minutes M [--seed S] [--ledger FILE]         run seeds from S on, recorded in the ledger
//! bifold-sim table [--ledger FILE]                                        print the ledger's sums as a table
//! bifold-sim planted [NAME …]                                             wake each bug, which a test must catch
//! bifold-sim disk DIR                                                     fill the disk of DIR: `cargo xtask disks`
//! ```

use std::{
    collections::{BTreeMap, BTreeSet},
    path::{Path, PathBuf},
    process::ExitCode,
    time::{Duration, Instant},
};

use bifold_sim::{
    allocations::Counting,
    beside, disks, kill,
    ledger::{self, Line},
    planted::{self, Outcome, Planted, Site},
    report::{end_at, over_seeds_in_time},
    syscalls,
    themes::{self, Replay, THEMES},
};

/// Counts memory for `damage`.
#[global_allocator]
static ALLOCATOR: Counting = Counting;

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).collect();
    match run(&words) {
        Ok(()) => ExitCode::SUCCESS,
        Err(message) => {
            eprintln!("bifold-sim: {message}");
            ExitCode::FAILURE
        }
    }
}

fn run(words: &[String]) -> Result<(), String> {
    let args = Args::parse(words)?;
    match args.command.as_str() {
        "replay" => replay(&args),
        "show" => show(&args),
        "soak" => soak(&args),
        "table" => table(&args),
        "planted" => plant_bugs(&args),
        "child" => child(&args),
        "disk" => disk(&args),
        "disk-fill" | "disk-check" => disk_child(&args),
        "syscalls-child" => syscalls_child(&args),
        "beside-write" | "beside-read" => beside_child(&args),
        other => Err(format!("`{other}` is not a command: use replay, show, soak, table or planted")),
    }
}

/// The command line: a command, positional arguments, and `--name value` options.
struct Args {
    command: String,
    plain: Vec<String>,
    named: BTreeMap<String, String>,
}

impl Args {
    fn parse(words: &[String]) -> Result<Self, String> {
        let mut words = words.iter();
        let command = words.next().ok_or("a command is missing: replay, show, soak, table or planted")?.clone();
        let (mut plain, mut named) = (Vec::new(), BTreeMap::new());
        while let Some(word) = words.next() {
            match word.strip_prefix("--") {
                None => plain.push(word.clone()),
                Some(name) => {
                    let value = words.next().ok_or_else(|| format!("--{name} needs a value"))?;
                    named.insert(name.to_owned(), value.clone());
                }
            }
        }
        Ok(Self { command, plain, named })
    }

    fn number(&self, name: &str) -> Result<Option<u64>, String> {
        let read = |text: &String| text.parse().map_err(|e| format!("--{name} {text}: {e}"));
        self.named.get(name).map(read).transpose()
    }

    fn first(&self) -> Result<&str, String> {
        self.plain.first().map(String::as_str).ok_or_else(|| "a test's name is missing".to_owned())
    }

    fn replay(&self) -> Result<Replay, String> {
        let mut replay = Replay { seed: self.number("seed")?.ok_or("--seed is missing")?, ..Replay::default() };
        if let Some(text) = self.named.get("keep") {
            replay.keep = Some(bifold_sim::history::parse_kept(text)?);
        }
        for (name, text) in self.named.iter().filter(|(name, _)| *name != "seed" && *name != "keep") {
            let number = text.parse().map_err(|e| format!("--{name} {text}: {e}"))?;
            replay.numbers.insert(name.clone(), number);
        }
        Ok(replay)
    }
}

fn replay(args: &Args) -> Result<(), String> {
    let report = themes::replay(args.first()?, &args.replay()?)?;
    println!("{report}");
    if report.failures.is_empty() { Ok(()) } else { Err("it fails again".to_owned()) }
}

fn show(args: &Args) -> Result<(), String> {
    print!("{}", themes::history(args.first()?, &args.replay()?)?);
    Ok(())
}

fn soak(args: &Args) -> Result<(), String> {
    let minutes = args.number("minutes")?.unwrap_or(1);
    let first = args.number("seed")?.unwrap_or(1_000_000);
    let ledger = ledger_of(args);
    let all: Vec<&str> = THEMES.iter().map(|theme| theme.name).collect();
    let chosen: Vec<&str> = if args.plain.is_empty() { all } else { args.plain.iter().map(String::as_str).collect() };
    let (whole, begin) = (Duration::from_secs(minutes * 60), Instant::now());
    let mut failed = 0;
    for (n, name) in chosen.iter().enumerate() {
        let theme = themes::find(name)?;
        let started = begin.elapsed();
        // If a test takes longer, because not every seed can be interrupted, the others take less.
        let share = whole.saturating_sub(started) / (chosen.len() - n) as u32;
        end_at(begin + started + share);
        let (report, end) = over_seeds_in_time(first..u64::MAX, |seed| (theme.soak)(seed));
        println!("{name}, seeds {first}..{end}: {report}");
        let line = Line::of(name, first..end, &report, (begin.elapsed() - started).as_secs());
        line.append_to(ledger).map_err(|e| format!("{}: {e}", ledger.display()))?;
        failed += report.failures.len();
    }
    if failed == 0 { Ok(()) } else { Err(format!("{failed} failures")) }
}

fn table(args: &Args) -> Result<(), String> {
    let ledger = ledger_of(args);
    print!("{}", ledger::table(ledger).map_err(|e| format!("{}: {e}", ledger.display()))?);
    Ok(())
}

fn ledger_of(args: &Args) -> &Path {
    args.named.get("ledger").map_or(Path::new("reliability/ledger.jsonl"), Path::new)
}

fn plant_bugs(args: &Args) -> Result<(), String> {
    let workspace = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let target = args.named.get("target").map_or_else(|| workspace.join("target/planted"), PathBuf::from);
    let site = Site { workspace: &workspace, target: &target };
    let chosen = |bug: &&Planted| args.plain.is_empty() || args.plain.iter().any(|name| name == bug.name);
    let bugs: Vec<&Planted> = planted::ALL.iter().filter(chosen).collect();
    if let Some(unknown) = args.plain.iter().find(|name| bugs.iter().all(|bug| bug.name != name.as_str())) {
        return Err(format!("`{unknown}` is not a planted bug"));
    }
    let cannot = |e| format!("cargo: {e}");
    for test in bugs.iter().map(|bug| bug.caught_by).collect::<BTreeSet<_>>() {
        site.control(test).map_err(cannot)?.map_err(|how| format!("{test} fails without any bug: {how}"))?;
        println!("{:32} {test} passes", "no bug");
    }
    let mut missed = Vec::new();
    for bug in bugs {
        let begin = Instant::now();
        let outcome = site.plant(bug).map_err(cannot)?;
        let seconds = begin.elapsed().as_secs();
        match &outcome {
            Outcome::Caught(how) => println!("{:32} caught in {seconds} s by {how}", bug.name),
            Outcome::Missed => println!("{:32} MISSED by {}", bug.name, bug.caught_by),
            Outcome::NotRun(why) => println!("{:32} NOT RUN: {why}", bug.name),
        }
        if !matches!(outcome, Outcome::Caught(_)) {
            missed.push(bug.name);
        }
    }
    if missed.is_empty() { Ok(()) } else { Err(format!("not caught: {}", missed.join(", "))) }
}

fn disk(args: &Args) -> Result<(), String> {
    let program = kill::this_program().map_err(|trouble| trouble.to_string())?;
    disks::run(&program, Path::new(args.first()?))
}

fn disk_child(args: &Args) -> Result<(), String> {
    let outcome = match args.plain.as_slice() {
        [dir, placement] => disks::fill(Path::new(dir), placement),
        [dir, placement, puts] => {
            let puts = puts.parse().map_err(|e| format!("`{puts}`: {e}"))?;
            disks::check(Path::new(dir), placement, puts)
        }
        _ => return Err("disk-fill DIR PLACEMENT, disk-check DIR PLACEMENT PUTS".to_owned()),
    };
    outcome.map_err(|trouble| trouble.to_string())
}

fn child(args: &Args) -> Result<(), String> {
    let [dir, seed, next, since] = args.plain.as_slice() else {
        return Err("child DIR SEED NEXT,NEXT SINCE".to_owned());
    };
    let number = |text: &str| text.parse::<u64>().map_err(|e| format!("`{text}`: {e}"));
    let next = next.split(',').map(number).collect::<Result<Vec<_>, _>>()?;
    kill::child(Path::new(dir), number(seed)?, &next, number(since)?).map_err(|trouble| trouble.to_string())
}

fn beside_child(args: &Args) -> Result<(), String> {
    let (dir, seed, least) = beside::words(&args.plain)?;
    let act = if args.command == "beside-write" { beside::write } else { beside::read };
    act(&dir, seed, least).map_err(|trouble| trouble.to_string())
}

fn syscalls_child(args: &Args) -> Result<(), String> {
    let [what, dir, seed] = args.plain.as_slice() else { return Err("syscalls-child WHAT DIR SEED".to_owned()) };
    let seed = seed.parse().map_err(|e| format!("`{seed}`: {e}"))?;
    let act = if what == "write" { syscalls::write } else { syscalls::recover };
    act(Path::new(dir), seed).map_err(|trouble| trouble.to_string())
}
