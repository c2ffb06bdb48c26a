//! Tests of the tests: the engine can be built with known bugs, and each must be caught.
//!
//! A build with `--cfg planted` carries all of them, asleep (`bifold_contract::planted`), so they are compiled once.
//! For each bug the table names what must fail while the bug is awake: a proof, which is a test binary of this crate,
//! or tests of the crate that has the bug. The runner first runs these with every bug asleep, since a test that fails
//! anyway catches nothing. Then it wakes one bug after the other and runs its test (proofs at half their usual
//! amount, until the first failure). It requires a proof's line that repeats the failure, or the name of the failed
//! test. A failed build, or a proof that did less than it should, is not enough.

use std::{
    fmt, io,
    path::Path,
    process::{Command, Output},
};

use bifold_contract::planted::VARIABLE;

pub use self::list::ALL;

mod list;

/// One planted bug.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Planted {
    /// Its name in `planted!(…)`.
    pub name: &'static str,
    /// What must catch it.
    pub caught_by: Test,
}

/// What catches a bug.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Test {
    /// A test binary of this crate.
    Proof(&'static str),
    /// The unit tests of a crate with this in their names.
    Unit(&'static str, &'static str),
    /// The integration tests of a crate and binary with this in their names.
    Integration(&'static str, &'static str, &'static str),
}

impl Test {
    /// The arguments of `cargo test`.
    fn words(self) -> Vec<&'static str> {
        match self {
            Self::Proof(name) => vec!["-p", "bifold-sim", "--test", name],
            Self::Unit(krate, names) => vec!["-p", krate, "--lib", names],
            Self::Integration(krate, binary, names) => vec!["-p", krate, "--test", binary, names],
        }
    }
}

impl fmt::Display for Test {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Proof(name) => f.write_str(name),
            Self::Unit(krate, names) | Self::Integration(krate, _, names) => write!(f, "{krate} {names}"),
        }
    }
}

/// The result for one planted bug.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The test failed: what it did until then, and how to repeat the failure.
    Caught(String),
    /// The test passed.
    Missed,
    /// The test was not run, or failed without saying how to repeat it.
    NotRun(String),
}

/// How the tests are built: like the proofs.
const PROFILE: &str = "prove";

/// How much of its usual amount a test does. Half: a bug that is only just found would be missed after the next
/// change of a random number.
const SCALE_PERCENT: &str = "50";

/// Where bugs are planted.
#[derive(Clone, Copy, Debug)]
pub struct Site<'a> {
    /// The sources.
    pub workspace: &'a Path,
    /// Where they are built: a directory of its own, since the programs in it have bugs.
    pub target: &'a Path,
}

impl Site<'_> {
    /// Wakes `bug` and runs the test that must catch it.
    ///
    /// # Errors
    /// When cargo cannot be started.
    pub fn plant(self, bug: &Planted) -> io::Result<Outcome> {
        let tested = self.test(bug.caught_by, bug.name)?;
        if tested.status.success() {
            return Ok(Outcome::Missed);
        }
        let output = [tested.stdout, tested.stderr].concat();
        Ok(story(&output, bug.caught_by).map_or_else(|| Outcome::NotRun(last_line(&output)), Outcome::Caught))
    }

    /// Requires that `test` passes while every bug is asleep.
    ///
    /// # Errors
    /// When cargo cannot be started.
    pub fn control(self, test: Test) -> io::Result<Result<(), String>> {
        let tested = self.test(test, "")?;
        let output = [tested.stdout, tested.stderr].concat();
        Ok(if tested.status.success() {
            Ok(())
        } else {
            Err(story(&output, test).unwrap_or_else(|| last_line(&output)))
        })
    }

    fn test(self, test: Test, awake: &str) -> io::Result<Output> {
        let mut cargo = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
        cargo.current_dir(self.workspace).env("CARGO_TARGET_DIR", self.target);
        cargo.env("RUSTFLAGS", "--cfg planted").env(VARIABLE, awake);
        cargo.env("BIFOLD_SIM_FAILURES", "1").env("BIFOLD_SIM_SCALE", SCALE_PERCENT);
        // A failure caused by a planted bug is not a regression to keep with the sources.
        cargo.env("PROPTEST_DISABLE_FAILURE_PERSISTENCE", "1");
        cargo.args(["test", "--profile", PROFILE]).args(test.words()).output()
    }
}

/// What a failed test did and how to repeat its first failure, from its output.
fn story(output: &[u8], test: Test) -> Option<String> {
    let output = String::from_utf8_lossy(output);
    if let Test::Unit(krate, _) | Test::Integration(krate, ..) = test {
        let failed = |line: &str| Some(line.strip_prefix("test ")?.strip_suffix(" ... FAILED")?.to_owned());
        return output.lines().find_map(failed).map(|name| format!("{krate} {name}"));
    }
    let line = |begin: &str| output.lines().map(str::trim).find(|line| line.starts_with(begin));
    let repeat = line("repeat with: ")?;
    let counts = line(&format!("{test}: ")).unwrap_or_default();
    Some(format!("{counts}; {repeat}"))
}

fn last_line(text: &[u8]) -> String {
    String::from_utf8_lossy(text).lines().rev().find(|line| !line.trim().is_empty()).unwrap_or_default().to_owned()
}

#[cfg(test)]
mod tests {
    use std::{collections::BTreeSet, fs, path::Path};

    use super::ALL;

    #[test]
    fn every_bug_in_the_sources_has_a_test_that_must_catch_it() {
        let crates = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
        let mut planted = BTreeSet::new();
        for name in ["contract", "format", "io", "index", "values", "bifold", "over"] {
            gather(&crates.join(name).join("src"), &mut planted);
        }
        // The example in the macro's own documentation is also the name of a bug.
        let listed: BTreeSet<String> = ALL.iter().map(|bug| bug.name.to_owned()).collect();
        assert_eq!(planted, listed);
    }

    fn gather(dir: &Path, names: &mut BTreeSet<String>) {
        for entry in fs::read_dir(dir).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                gather(&path, names);
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                let text = fs::read_to_string(&path).unwrap();
                let after = text.split("planted!(\"").skip(1);
                names.extend(after.filter_map(|rest| rest.split_once('"')).map(|(name, _)| name.to_owned()));
            }
        }
    }
}
