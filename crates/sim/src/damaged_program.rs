//! The program `bifold` as users get it, on damaged databases, with outside limits on memory and time.
//!
//! The databases and the damage are those of [`crate::damage`], including append regions, written to a file system in
//! memory if there is one. Then `verify`, `stats`, `export` of each keyspace, and `salvage` of all value files into a
//! new database read them, each in a process of its own with limited address space.
//!
//! Required of each: it ends by itself in time, with exit code 0, 1 or 2, without a signal or a panic; with 1 or 2 it
//! names a file. No command changes the database. What salvage creates is sound.
//!
//! The address space is limited to the sum of the least that the same command needs for the sound database (found by
//! bisection), the `memory_limit` given to it, and the damaged files, which may be mapped; where a large value is, also
//! of what one takes, because damage of a log may bring one back that the sound database no longer has. The system
//! lets us limit nothing but address space. Most of that goes to the program's own pages, its libraries and its
//! threads' stacks, hence the bisection.

use std::{
    collections::BTreeMap,
    fs::{self, File},
    io,
    path::{Path, PathBuf},
    process::{Child, Command, ExitStatus, Stdio},
    thread,
    time::{Duration, Instant},
};

use crate::{
    damage::{Fixture, MEMORY_LIMIT, Mutation},
    model::NAMES,
    read::Trouble,
    report::{Report, guarded, time_is_up},
    trace::scratch,
};

/// A command.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum ReadCommand {
    Verify,
    Stats,
    Export(&'static str),
    Salvage,
}

const ACTS: [ReadCommand; 6] = [
    ReadCommand::Verify,
    ReadCommand::Stats,
    ReadCommand::Export(NAMES[0]),
    ReadCommand::Export(NAMES[1]),
    ReadCommand::Export(NAMES[2]),
    ReadCommand::Salvage,
];

/// How often the database of a seed is damaged in a soak.
pub const TIMES: u64 = 100;

/// The option given to commands that open a database.
const SETTING: &str = "memory_limit=1MiB";
const _: () = assert!(MEMORY_LIMIT == 1 << 20, "SETTING says the same");

/// The step of the address space limits, and the highest limit.
const STEP_KIB: u64 = 256;
const SPACE_MAX_KIB: u64 = 1 << 20;

/// A large value is printed as a line of base64, from a buffer that doubles.
const COPIES_OF_A_LARGE_VALUE: u64 = 5;

/// Two starts of a program may not need the same number of pages: its mappings are at random addresses.
const SLACK_KIB: u64 = 1 << 10;

/// A command takes milliseconds. One that uses this much processor time, or waits this long, would never end.
const PROCESSOR_SECONDS: u64 = 20;
const ENDS_WITHIN: Duration = Duration::from_secs(120);

/// How a command ended.
struct Ended {
    /// `None`: it had to be killed.
    status: Option<ExitStatus>,
    out: String,
    err: String,
}

impl Ended {
    fn code(&self) -> Option<i32> {
        self.status.and_then(|status| status.code())
    }

    fn how(&self) -> String {
        let end = self.status.map_or_else(|| "it never ended".to_owned(), |status| status.to_string());
        format!("{end}, output: {} {}", self.out.trim_end(), self.err.trim_end())
    }

    /// Requires that it ended by itself, and named the place if it did not succeed.
    fn is_well(&self, root: &Path) -> Result<(), Trouble> {
        let names = |text: &str| text.contains(&*root.to_string_lossy()) || text.contains("keyspace");
        let wrong = |what: &str| Err(Trouble::wrong(format!("{what}: {}", self.how())));
        match self.code() {
            _ if self.err.contains("panicked") => wrong("a panic"),
            None if self.status.is_none() => wrong("it hangs"),
            None => wrong("a signal"),
            Some(0) => Ok(()),
            // Damage that was found and counted is in the output.
            Some(1) if names(&self.out) || names(&self.err) => Ok(()),
            Some(2) if names(&self.err) => Ok(()),
            Some(1 | 2) => wrong("a message that names no file"),
            Some(_) => wrong("an unexpected end"),
        }
    }
}

/// A database in a directory.
struct DamagedStage<'a> {
    program: &'a Path,
    root: PathBuf,
    fixture: Fixture,
    /// The address space that each command needs for the sound database, in KiB.
    needs: BTreeMap<ReadCommand, u64>,
}

impl<'a> DamagedStage<'a> {
    fn new(program: &'a Path, seed: u64) -> Result<Self, Trouble> {
        let root = scratch().join(format!("bifold-damaged-{}-{seed}", std::process::id()));
        let mut stage = Self { program, root, fixture: Fixture::new(seed)?, needs: BTreeMap::new() };
        stage.put(&stage.fixture.unchanged()).map_err(|e| stage.cannot(&e))?;
        for act in ACTS {
            if let Some(need) = stage.need(act).map_err(|t| t.during(format!("{act:?} without damage")))? {
                stage.needs.insert(act, need);
            }
        }
        Ok(stage)
    }

    fn cannot(&self, error: &io::Error) -> Trouble {
        Trouble::wrong(format!("{}: {error}", self.root.display()))
    }

    fn db(&self) -> PathBuf {
        self.root.join("db")
    }

    fn salvaged(&self) -> PathBuf {
        self.root.join("salvaged")
    }

    /// Writes the files.
    fn put(&self, change: &Mutation) -> io::Result<()> {
        drop(fs::remove_dir_all(&self.root));
        fs::create_dir_all(self.db())?;
        change.files.iter().try_for_each(|(path, bytes)| fs::write(self.db().join(name_of(path)), bytes))
    }

    /// The least address space, in KiB, with which the command ends as it does with the maximum. `None` when it has
    /// nothing to do.
    fn need(&self, act: ReadCommand) -> Result<Option<u64>, Trouble> {
        let Some(ended) = self.run(act, SPACE_MAX_KIB)? else { return Ok(None) };
        ended.is_well(&self.root)?;
        let (mut too_little, mut enough) = (0, SPACE_MAX_KIB / STEP_KIB);
        while enough - too_little > 1 {
            let tried = too_little.midpoint(enough);
            let now = self.run(act, tried * STEP_KIB)?;
            match now.is_some_and(|now| now.code() == ended.code()) {
                true => enough = tried,
                false => too_little = tried,
            }
        }
        Ok(Some(enough * STEP_KIB))
    }

    /// Runs a command with this much address space, if it has anything to do.
    fn run(&self, act: ReadCommand, kib: u64) -> Result<Option<Ended>, Trouble> {
        let mut words = vec!["--set".into(), SETTING.into()];
        match act {
            ReadCommand::Verify => words.extend(["verify".into(), self.db().into_os_string()]),
            ReadCommand::Stats => words.extend(["stats".into(), self.db().into_os_string()]),
            ReadCommand::Export(keyspace) => {
                words.extend(["export".into(), self.db().into_os_string(), "--keyspace".into(), keyspace.into()]);
                // Some entries expire.
                words.extend(["--format".into(), "jsonl".into()]);
            }
            ReadCommand::Salvage => {
                let files = fs::read_dir(self.db()).map_err(|e| self.cannot(&e))?;
                let mut values: Vec<_> = files.filter_map(|file| Some(file.ok()?.path().into_os_string())).collect();
                values.retain(|path| Path::new(path).extension().is_some_and(|end| end == "val"));
                values.sort();
                if values.is_empty() {
                    return Ok(None);
                }
                drop(fs::remove_dir_all(self.salvaged()));
                drop(fs::remove_dir_all(self.salvaged().with_extension("partial")));
                words.push("salvage".into());
                words.extend(values);
                words.extend(["--out".into(), self.salvaged().into_os_string()]);
            }
        }
        let mut command = Command::new(self.program);
        command.args(words);
        bounded(&command, kib, &self.root).map(Some).map_err(|e| self.cannot(&e))
    }

    /// The bytes of the longest large value that is there.
    fn longest_large(&self) -> io::Result<u64> {
        let is_large = |path: &Path| path.extension().is_some_and(|end| end == "large");
        let mut longest = 0;
        for file in fs::read_dir(self.db())? {
            let file = file?;
            if is_large(&file.path()) {
                longest = longest.max(file.metadata()?.len());
            }
        }
        Ok(longest)
    }

    /// Damages the database and runs all commands on it.
    fn check(&self, change: &Mutation, report: &mut Report) -> Result<(), Trouble> {
        self.put(change).map_err(|e| self.cannot(&e))?;
        let bytes: u64 = change.files.iter().map(|(_, bytes)| bytes.len() as u64).sum();
        let large_bytes = self.longest_large().map_err(|e| self.cannot(&e))? * COPIES_OF_A_LARGE_VALUE;
        let more_kib = (MEMORY_LIMIT + bytes + large_bytes) / 1024 + SLACK_KIB;
        report.count(self.fixture.session(), 1);
        for act in ACTS {
            // Damage may leave fewer files, so a command may have nothing to do.
            let Some(need) = self.needs.get(&act) else { continue };
            let during = |trouble: Trouble| trouble.during(format!("{act:?}, {} KiB", need + more_kib));
            let Some(ended) = self.run(act, need + more_kib).map_err(during)? else { continue };
            ended.is_well(&self.root).map_err(during)?;
            report.count("commands on damaged databases", 1);
            report.count("commands that named a file", u64::from(ended.code() != Some(0)));
            if act == ReadCommand::Salvage && self.salvaged().is_dir() {
                self.is_sound(&self.salvaged()).map_err(during)?;
                report.count("salvaged databases verified", 1);
            }
        }
        self.is_unchanged(change)
    }

    fn is_sound(&self, dir: &Path) -> Result<(), Trouble> {
        let mut command = Command::new(self.program);
        command.arg("verify").arg(dir);
        let ended = bounded(&command, SPACE_MAX_KIB, &self.root).map_err(|e| self.cannot(&e))?;
        if ended.code() == Some(0) { Ok(()) } else { Err(Trouble::wrong(format!("the new database: {}", ended.how()))) }
    }

    fn is_unchanged(&self, change: &Mutation) -> Result<(), Trouble> {
        let found = fs::read_dir(self.db()).map_err(|e| self.cannot(&e))?;
        let mut names: Vec<_> = found.filter_map(|file| Some(file.ok()?.file_name())).collect();
        // Every command that opens a database creates its lock anew.
        names.retain(|name| name != "LOCK");
        let others = change.files.iter().filter(|(path, _)| !path.ends_with("LOCK"));
        let others: BTreeMap<_, _> = others.map(|(path, bytes)| (name_of(path).into_os_string(), bytes)).collect();
        if names.len() != others.len() {
            return Err(Trouble::wrong(format!("the files have changed: {names:?}")));
        }
        for (name, bytes) in others {
            if fs::read(self.db().join(&name)).ok().as_ref() != Some(bytes) {
                return Err(Trouble::wrong(format!("{} has changed", name.display())));
            }
        }
        Ok(())
    }
}

impl Drop for DamagedStage<'_> {
    fn drop(&mut self) {
        drop(fs::remove_dir_all(&self.root));
    }
}

fn name_of(path: &Path) -> PathBuf {
    path.file_name().map(PathBuf::from).unwrap_or_default()
}

/// Runs a program with limited address space and processor time. Its output goes to files in `root`: a pipe that
/// nobody reads meanwhile could fill up.
fn bounded(command: &Command, kib: u64, root: &Path) -> io::Result<Ended> {
    let (out, err) = (root.join("out"), root.join("err"));
    let mut shell = Command::new("sh");
    shell.args(["-c", "ulimit -v \"$1\" && ulimit -t \"$2\" && shift 2 && exec \"$@\"", "sh"]);
    shell.args([kib, PROCESSOR_SECONDS].map(|limit| limit.to_string()));
    shell.arg(command.get_program()).args(command.get_args());
    // Memory that each thread reserves for itself is address space that the engine has not asked for.
    shell.env("MALLOC_ARENA_MAX", "1").env_remove("RUST_BACKTRACE");
    let child = shell.stdin(Stdio::null()).stdout(File::create(&out)?).stderr(File::create(&err)?).spawn()?;
    let status = ends_in_time(child)?;
    let read = |path| fs::read(path).map(|bytes| String::from_utf8_lossy(&bytes).into_owned());
    Ok(Ended { status, out: read(out)?, err: read(err)? })
}

/// Waits for a process to end, and kills it if that takes too long.
fn ends_in_time(mut child: Child) -> io::Result<Option<ExitStatus>> {
    let begin = Instant::now();
    let mut pause = Duration::from_micros(200);
    loop {
        if let Some(status) = child.try_wait()? {
            return Ok(Some(status));
        }
        if begin.elapsed() > ENDS_WITHIN {
            child.kill()?;
            child.wait()?;
            return Ok(None);
        }
        thread::sleep(pause);
        pause = (pause * 5 / 4).min(Duration::from_millis(50));
    }
}

/// Whether programs can be limited here.
///
/// # Errors
/// Why not.
pub fn availability() -> Result<(), String> {
    let root = scratch().join(format!("bifold-limits-{}-{:?}", std::process::id(), thread::current().id()));
    let tried = fs::create_dir_all(&root).and_then(|()| bounded(Command::new("true").arg("it"), SPACE_MAX_KIB, &root));
    drop(fs::remove_dir_all(&root));
    match tried {
        Ok(ended) if ended.code() == Some(0) => Ok(()),
        Ok(ended) => Err(format!("programs cannot be limited here: {}", ended.how())),
        Err(error) => Err(format!("programs cannot be limited here: {error}")),
    }
}

/// Damages the database of `seed` with the damage of these numbers.
#[must_use]
pub fn run(program: &Path, seed: u64, numbers: std::ops::Range<u64>) -> Report {
    let mut report = Report::default();
    let stage = match guarded(|| DamagedStage::new(program, seed)) {
        Ok(stage) => stage,
        Err(trouble) => {
            report.fail(format!("damaged_program --seed {seed}"), &trouble);
            return report;
        }
    };
    for number in numbers {
        let change = stage.fixture.change(seed, number);
        if let Err(trouble) = guarded(|| stage.check(&change, &mut report)) {
            report.fail(format!("damaged_program --seed {seed} --number {number}"), &trouble.during(&change));
        }
        if !report.failures.is_empty() || time_is_up() {
            break;
        }
    }
    report
}

/// Repeats one failure, or all of a seed.
#[must_use]
pub fn replay(program: &Path, seed: u64, number: Option<u64>) -> Report {
    run(program, seed, number.map_or(0..TIMES, |number| number..number + 1))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shell(script: &str, kib: u64) -> Option<(Ended, PathBuf)> {
        if let Err(why) = availability() {
            println!("skipped: {why}");
            return None;
        }
        let root = scratch().join(format!("bifold-bounded-{}-{kib}", std::process::id()));
        fs::create_dir_all(&root).unwrap();
        let mut command = Command::new("sh");
        command.args(["-c", script, "sh"]).arg(&root);
        let ended = bounded(&command, kib, &root).unwrap();
        fs::remove_dir_all(&root).unwrap();
        Some((ended, root))
    }

    #[test]
    fn each_bad_end_is_distinguished_from_a_good_one() {
        for (at, (script, is_well)) in [
            ("exit 0", true),
            ("echo \"bifold: $1/db is damaged\" >&2; exit 2", true),
            ("echo \"damage: $1/db/000001.val\"; exit 1", true),
            ("echo \"bifold: something is damaged\" >&2; exit 2", false),
            ("echo \"$1: thread 'main' panicked\" >&2; exit 2", false),
            ("echo \"$1\" >&2; exit 101", false),
            ("kill -ABRT $$", false),
        ]
        .into_iter()
        .enumerate()
        {
            let Some((ended, root)) = shell(script, SPACE_MAX_KIB + at as u64) else { return };
            assert_eq!(ended.is_well(&root).is_ok(), is_well, "{script}: {}", ended.how());
        }
    }

    #[test]
    fn a_program_that_takes_more_than_its_limit_does_not_end_well() {
        // Twice the limit, in one block.
        let script = "exec head -c 64000000 /dev/zero | tail -c 64000000 > /dev/null";
        let Some((ended, root)) = shell(script, 32_000) else { return };
        assert!(ended.is_well(&root).is_err(), "{}", ended.how());
        assert_eq!(shell(script, SPACE_MAX_KIB).map(|(ended, _)| ended.code()), Some(Some(0)));
    }
}
