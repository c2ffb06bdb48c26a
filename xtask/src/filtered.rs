//! Tests that a filter picks. To `cargo test` a filter that matches nothing is no error: after a test was renamed, a
//! step would pass without running it.

use std::{
    io::{self, BufRead, BufReader, Write},
    process::{Command, Stdio},
};

/// Runs `cargo test` with these words.
pub fn run(words: &[String]) -> Result<(), String> {
    let words: Vec<&str> = ["test"].into_iter().chain(words.iter().map(String::as_str)).collect();
    run_tests(&mut crate::cargo_command(&words, &[]))
}

/// Runs a command that runs tests, and shows what it prints. It must succeed, and at least one test must have passed.
pub fn run_tests(command: &mut Command) -> Result<(), String> {
    let words: Vec<String> = command.get_args().map(|word| word.to_string_lossy().into_owned()).collect();
    let what = format!("cargo {}", words.join(" "));
    let mut child = command.stdout(Stdio::piped()).spawn().map_err(|e| format!("cannot start {what}: {e}"))?;
    let output = child.stdout.take().map(BufReader::new);
    let passed = output.map_or(Ok(0), |output| show(output, &mut io::stdout().lock()));
    let status = child.wait().map_err(|e| format!("{what}: {e}"))?;
    if !status.success() {
        return Err(format!("{what} failed: {status}"));
    }
    some(passed.map_err(|e| format!("the output of {what}: {e}"))?, &what)
}

/// Requires that tests have passed.
fn some(passed: u64, what: &str) -> Result<(), String> {
    match passed {
        0 => Err(format!("{what} ran no test: its filter matches none, or only ignored ones")),
        _ => Ok(()),
    }
}

/// Copies the output of tests, line by line. Returns how many have passed, by its own words.
fn show(mut output: impl BufRead, shown: &mut impl Write) -> io::Result<u64> {
    let (mut passed, mut line) = (0, Vec::new());
    while output.read_until(b'\n', &mut line)? > 0 {
        shown.write_all(&line)?;
        passed += passed_by(&String::from_utf8_lossy(&line));
        line.clear();
    }
    shown.flush()?;
    Ok(passed)
}

/// The count in a line such as `test result: ok. 3 passed; 0 failed; …`; 0 in others.
fn passed_by(line: &str) -> u64 {
    let result = line.strip_prefix("test result: ").and_then(|result| result.split_once(" passed;"));
    result.and_then(|(before, _)| before.rsplit(' ').next()?.parse().ok()).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    const NONE: &str = "\n\
        running 0 tests\n\n\
        test result: ok. 0 passed; 0 failed; 0 ignored; 0 measured; 212 filtered out; finished in 0.00s\n\n";

    const SOME: &str = "\n\
        running 2 tests\n\
        test page::passed ... ok\n\
        12 passed; this is what a test prints\n\
        test page::other ... ok\n\n\
        test result: ok. 2 passed; 0 failed; 0 ignored; 0 measured; 9 filtered out; finished in 0.01s\n\n";

    fn counted(output: &str) -> u64 {
        let mut shown = Vec::new();
        let passed = show(output.as_bytes(), &mut shown).unwrap();
        assert_eq!(String::from_utf8(shown).unwrap(), output);
        passed
    }

    #[test]
    fn a_filter_that_matches_nothing_is_an_error_that_says_so() {
        let twice = [NONE, NONE].concat();
        let error = some(counted(&twice), "cargo test -p some-crate old_name").unwrap_err();
        assert!(error.contains("old_name ran no test"), "{error}");
        let ignored = "test result: ok. 0 passed; 0 failed; 1 ignored; 0 measured; 0 filtered out";
        assert_eq!(counted(ignored), 0, "the last line may have no end");
    }

    #[test]
    fn the_tests_of_all_programs_are_added_up() {
        assert_eq!(counted(&[NONE, SOME, NONE, SOME].concat()), 4);
        some(counted(&[NONE, SOME].concat()), "cargo test").unwrap();
        assert_eq!(counted("test result: FAILED. 7 passed; 1 failed; 0 ignored\n"), 7);
        assert_eq!(counted(""), 0);
    }
}
